"""From fitted folds to the comparison that is printed and reported."""

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np

from metaprobe.eval.compare import (
    BEST_BASELINE,
    STATED,
    accuracy_rows,
    auroc_gain,
    method_results,
    trajectories,
)
from metaprobe.eval.compare_details import detailed, ordinal_outcome
from metaprobe.eval.compare_difficulty import at_equal_difficulty, difficulty_strata, overconfidence
from metaprobe.eval.compare_pairs import pair_tests
from metaprobe.eval.metrics import Interval
from metaprobe.eval.report.model import (
    Comparison,
    Difficulty,
    LayerSweep,
    MethodResult,
    Overconfidence,
    PairTest,
    PolicyResult,
    TwoChoice,
)
from metaprobe.eval.report.numbers import spread
from metaprobe.eval.report.runs import with_runs
from metaprobe.eval.report.seen import seen_tokens
from metaprobe.records.types import Run
from metaprobe.training.audit import audited
from metaprobe.training.crossfit import CrossFit
from metaprobe.training.fit import ENOUGH_FOR_ECE
from metaprobe.training.hidden import LinearProbe
from metaprobe.training.methods import (
    AFTER,
    BEFORE,
    BLEND,
    MEAN_LOGPROB,
    TREES,
    Evidence,
    HiddenProbe,
    Method,
    PromptTfidf,
)
from metaprobe.training.report_runs import efficiency_of, graded_labels, sections_of_runs
from metaprobe.training.seen import first_token_scores

SIGNIFICANT = 0.05
EXPORTED = {TREES: "quality", BEFORE: "hidden --when before", AFTER: "hidden --when after"}
"""Methods of which there are checkpoints: what of `metaprobe train` writes them."""


def comparison(
    evidence: Evidence,
    methods: Sequence[Method],
    fits: CrossFit,
    *,
    runs: Sequence[Run] = (),
    target: str = "correct",
    choices: tuple[PolicyResult, ...] = (),
    notes: Sequence[str] = (),
    command: str,
    seed: int,
) -> Comparison:
    """Everything a report shows, from one cross-fit of answers with the label `target`.

    What needs the `runs` themselves (metacognitive efficiency, monitoring and control, graded labels) is left out
    where none are given.
    """
    table = evidence.table
    ordinal = ordinal_outcome(table, graded_labels(runs, table))
    results = detailed(table, fits.methods, method_results(table, fits.methods, seed=seed), ordinal=ordinal, seed=seed)
    baselines = dict(Counter(fits.best_baseline).most_common())
    words = PromptTfidf().name
    strata = difficulty_strata(table, estimate=next((m for m in fits.methods if m.name == words), None))
    equal = None if strata is None else at_equal_difficulty(table, fits.methods, strata, seed=seed)
    pairs = pair_tests(table, fits.methods, seed=seed)
    gaps = overconfidence(table, fits.methods, strata, seed=seed)
    efficiency, refused = efficiency_of(evidence.table, fits, runs, target=target, seed=seed)
    learned = _named(results)
    diff_mean = auroc_gain(table, fits[learned.name], fits[MEAN_LOGPROB])
    found = Comparison(
        title="Explicit and implicit metacognition",
        summary=(
            *_summary(results, float(table.y.mean()), len(table), baselines),
            *([f"{evidence.regrouped}."] if evidence.regrouped else []),
            f"Its gain over the {MEAN_LOGPROB} alone is {spread(diff_mean, signed=True)}, {_verdict(diff_mean, 0.0)}.",
            *_beyond(learned.name, pairs, equal, gaps, efficiency),
        ),
        headline=learned.name,
        provenance=_provenance(evidence, command, seed),
        y=table.y,
        methods=results,
        best_baseline=BEST_BASELINE,
        baselines=baselines,
        diff_mean=diff_mean,
        exported=_exported(results),
        accuracy=accuracy_rows(table),
        sweeps=tuple(
            _sweep(fits.probes[method.name], next(r for r in results if r.name == method.name))
            for method in methods
            if isinstance(method, HiddenProbe)
        ),
        trajectories=trajectories(table),
        choices=choices,
        pairs=pairs,
        ordinal=ordinal.name if ordinal else "",
        difficulty=equal,
        overconfidence=gaps,
        two_choice=efficiency,
        two_choice_refused=refused,
        seen=seen_tokens(table, learned=first_token_scores(evidence, folds=len(fits.roles), seed=seed), seed=seed),
        **sections_of_runs(runs, seed=seed),
        audits=tuple(
            dict.fromkeys(
                audit
                for method in methods
                if method.family == "learned"
                for audit in audited(evidence, fits, method, refits=False, seed=seed).audits
            )
        ),
        notes=(
            *notes,
            *(
                [f"Difficulty: the items have no levels, and {words} knows nothing of it; nothing is held constant."]
                if strata is None
                else []
            ),
            *(
                [f"{evidence.without_hidden} of {len(table)} answers have no hidden states: no probes."]
                if 0 < evidence.without_hidden < len(table)
                else []
            ),
            *([f"No probes: {evidence.states_refused}."] if evidence.states_refused else []),
            *(
                [f"ECE: {len(table)} answers are too few to quote it; {ENOUGH_FOR_ECE} are needed."]
                if len(table) < ENOUGH_FOR_ECE
                else []
            ),
        ),
    )
    return with_runs(found, runs, seed=seed)


def _named(results: Sequence[MethodResult]) -> MethodResult:
    """The learned method that was named beforehand: the best of several would look better than it is."""
    by_name = {result.name: result for result in results}
    return by_name.get(BLEND) or by_name[TREES]


def _summary(results: Sequence[MethodResult], share: float, n: int, baselines: Mapping[str, int]) -> list[str]:
    by_name = {result.name: result for result in results}
    learned = _named(results)
    sentences = [f"{share:.0%} of {n} answers are right."]
    if (stated := by_name.get(STATED)) is not None:
        sentences.append(
            f"Asked for its confidence, which it stated for {stated.coverage:.0%} of the answers, the model tells "
            f"right from wrong with AUROC {spread(stated.auroc)}: {_verdict(stated.auroc, 0.5)}."
        )
    sentences.append(f"The learned method named beforehand ({learned.name}) reaches {spread(learned.auroc)}.")
    if (base := by_name.get(BEST_BASELINE)) is not None and learned.diff_baseline is not None:
        chosen = ", ".join(f"{name} in {folds}" for name, folds in baselines.items())
        sentences.append(
            f"The plain baseline chosen on selection data in each of {sum(baselines.values())} folds ({chosen}) "
            f"reaches {spread(base.auroc)}; the learned method's gain over it is "
            f"{spread(learned.diff_baseline, signed=True)}, {_verdict(learned.diff_baseline, 0.0)}."
        )
    return sentences


def _beyond(
    learned: str,
    pairs: Sequence[PairTest],
    equal: Difficulty | None,
    gaps: Sequence[Overconfidence],
    efficiency: TwoChoice | None,
) -> list[str]:
    """What is left at equal difficulty, after correction, and of the model's own numbers as numbers."""
    sentences = []
    if equal is not None:
        within = {row.method: row.auroc for row in equal.methods}
        shown = [f"{name} {spread(within[name])}" for name in (STATED, learned) if name in within]
        sentences.append(f"At equal difficulty ({equal.by}) the AUROC is: {', '.join(shown)}.")
    if pairs:
        stand = sum(pair.p_holm < SIGNIFICANT for pair in pairs)
        sentences.append(
            f"{stand} of {len(pairs)} differences from stated confidence or the best plain baseline stand after Holm's "
            f"correction ({pairs[0].test}, p < {SIGNIFICANT})."
        )
    own = [row for row in gaps if row.method == STATED]
    if own:
        levels = ", ".join(f"{row.level} {row.gap.estimate:+.2f}" for row in own[1:])
        sentences.append(
            f"Stated confidence minus accuracy is {spread(own[0].gap, signed=True)}{f' ({levels})' if levels else ''}."
        )
    if efficiency is not None:
        sentences += _of_choices(efficiency, learned)
    return sentences


def _of_choices(found: TwoChoice, learned: str) -> list[str]:
    """The answers as choices between two; those that are none are wrong for another reason than not knowing."""
    methods = [row for row in found.methods if row.method in (STATED, learned)]
    told = ", ".join(f"{row.method} {spread(row.type2_auroc)}" for row in methods)
    unreadable = f"{found.unreadable} of {found.n + found.unreadable} answers state neither choice and count as wrong. "
    ratios = ", ".join(f"{row.method} {spread(row.m_ratio)}" for row in methods if row.m_ratio is not None)
    reason = next((row.refused for row in methods if row.refused), "")
    return [
        f"{unreadable if found.unreadable else ''}Among answers that choose, the AUROC is: {told}.",
        f"d' of the answers is {spread(found.d_prime)}; "
        + (f"M-ratio: {ratios}." if ratios else f"there is no M-ratio, for {reason}."),
    ]


def _exported(results: Sequence[MethodResult]) -> str:
    """Which checkpoint comes nearest to the blend, of which there is none."""
    if _named(results).name != BLEND:
        return ""
    best = max((result for result in results if result.name in EXPORTED), key=lambda result: result.auroc.estimate)
    beside = "" if best.diff_baseline is None else f", {spread(best.diff_baseline, signed=True)} against the baseline"
    return (
        f"There is no checkpoint of the {BLEND}: `metaprobe compare` makes it of several methods. The nearest one is "
        f"that of `metaprobe train {EXPORTED[best.name]}` ({best.name}): AUROC {spread(best.auroc)}{beside}."
    )


def _verdict(interval: Interval, nothing: float) -> str:
    if interval.low > nothing:
        return "better than chance" if nothing else "so it is better"
    if interval.high < nothing:
        return "worse than chance" if nothing else "so it is worse"
    return "not to be told from chance" if nothing else "so this sample does not settle which is better"


def _sweep(probes: Sequence[LinearProbe], result: MethodResult) -> LayerSweep:
    """Selection AUROC, averaged over the folds; the layer chosen most often."""
    first = probes[0].sweep
    layers = tuple(dict.fromkeys(point.layer for point in first))
    positions = tuple(dict.fromkeys(point.position for point in first))
    grid = np.zeros((len(layers), len(positions)))
    for probe in probes:
        for point in probe.sweep:
            at = layers.index(point.layer), positions.index(point.position)
            grid[at] += point.auroc / len(probes)
    chosen = [(probe.layers[0], probe.position) for probe in probes]
    layer, position = max(set(chosen), key=lambda choice: (chosen.count(choice), choice))
    return LayerSweep(
        probe=result.name,
        layers=layers,
        positions=positions,
        selection_auroc=grid,
        chosen_layer=layer,
        chosen_position=position,
        test_auroc=result.auroc,
    )


def _provenance(evidence: Evidence, command: str, seed: int) -> Mapping[str, str]:
    table, generator = evidence.table, evidence.generator
    packages = ("metaprobe", "numpy", "lightgbm", "scikit-learn", "onnxruntime")
    return {
        "model": ", ".join(generator.models) if generator else ", ".join(sorted(set(table.models.tolist()))),
        "revision": generator.revision or "several" if generator else "several",
        "dtype": generator.dtype or "several" if generator else "several",
        "log-probabilities": generator.logprobs_mode if generator else "unknown",
        "items": str(len(set(table.items.tolist()))),
        "answers": str(len(table)),
        "groups": str(len(set(table.groups.tolist()))),
        "training data": evidence.fingerprint,
        "seed": str(seed),
        "versions": ", ".join(f"{package} {version(package)}" for package in packages),
        "python": platform.python_version(),
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
