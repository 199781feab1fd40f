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
    method_results,
    trajectories,
)
from metaprobe.eval.compare_details import add_details, ordinal_outcome
from metaprobe.eval.compare_difficulty import at_equal_difficulty, difficulty_strata, overconfidence
from metaprobe.eval.compare_pairs import pair_tests
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.controls import ControlDifference
from metaprobe.eval.results import (
    Comparison,
    Difficulty,
    LayerSweep,
    MethodResult,
    Overconfidence,
    PairTest,
    Place,
    PolicyResult,
    TwoChoice,
)
from metaprobe.eval.run_results import with_runs
from metaprobe.eval.seen_tokens import auroc_by_tokens_seen
from metaprobe.eval.wording import calibration_words, control_named, format_interval, p_value
from metaprobe.records.types import Run
from metaprobe.training.comparison.first_tokens import first_token_scores
from metaprobe.training.comparison.runs import collect_grades, efficiency_of, sections_of_runs
from metaprobe.training.crossfit.audit import audit_method
from metaprobe.training.crossfit.folds import CrossFit
from metaprobe.training.crossfit.held_out import ENOUGH_FOR_ECE
from metaprobe.training.crossfit.methods import (
    AFTER,
    BEFORE,
    BLEND,
    LADDER,
    Evidence,
    HiddenProbeMethod,
    Method,
    PromptTfidf,
)
from metaprobe.training.linear.layers import LinearProbe

SIGNIFICANT = 0.05
EXPORTED = {LADDER: "quality", BEFORE: "hidden --when before", AFTER: "hidden --when after"}
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
    shipped: Mapping[str, Place] | None = None,
    command: str,
    seed: int,
) -> Comparison:
    """Everything a report shows, from one cross-fit of answers with the label `target`.

    `shipped`: which layer and position the checkpoint of a probe reads, by the probe's name, where there are any.
    What needs the `runs` themselves (metacognitive efficiency, monitoring and control, graded labels) is left out
    where none are given.
    """
    table = evidence.table
    ordinal = ordinal_outcome(table, collect_grades(runs, table))
    results = add_details(
        table, fits.methods, method_results(table, fits.methods, seed=seed), ordinal=ordinal, seed=seed
    )
    baselines = dict(Counter(fits.best_baseline).most_common())
    words = PromptTfidf().name
    strata = difficulty_strata(table, estimate=next((m for m in fits.methods if m.name == words), None))
    equal = None if strata is None else at_equal_difficulty(table, fits.methods, strata, seed=seed)
    pairs = pair_tests(table, fits.methods, seed=seed)
    gaps = overconfidence(table, fits.methods, strata, seed=seed)
    efficiency, refused = efficiency_of(evidence.table, fits, runs, target=target, seed=seed)
    learned = _named(results)
    by_name = {result.name: result for result in results}
    found = Comparison(
        title="Explicit and implicit metacognition",
        summary=(
            *_summary(results, float(table.y.mean()), len(table), baselines),
            *([f"{evidence.regrouped}."] if evidence.regrouped else []),
            *_beyond(learned.name, pairs, equal, gaps, efficiency),
        ),
        headline=learned.name,
        provenance=_provenance(evidence, command, seed),
        y=table.y,
        methods=results,
        best_baseline=BEST_BASELINE,
        baselines=baselines,
        exported=_exported(results),
        accuracy=accuracy_rows(table),
        sweeps=tuple(
            _sweep(fits.probes[method.name], by_name[method.name], (shipped or {}).get(method.name))
            for method in methods
            if isinstance(method, HiddenProbeMethod)
        ),
        trajectories=trajectories(table),
        choices=choices,
        pairs=pairs,
        ordinal=ordinal.name if ordinal else "",
        difficulty=equal,
        overconfidence=gaps,
        two_choice=efficiency,
        two_choice_refused=refused,
        seen=auroc_by_tokens_seen(
            table, learned=first_token_scores(evidence, folds=len(fits.roles), seed=seed), seed=seed
        ),
        **sections_of_runs(runs, seed=seed),
        audits=tuple(
            dict.fromkeys(
                audit
                for method in methods
                if method.family == "learned"
                for audit in audit_method(evidence, fits, method, refits=False, seed=seed).audits
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
                ["The answers hold no log-probabilities: nothing that reads them stands here."]
                if not table.measured
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
    """The learned method that was named beforehand: the best of several would look better than it is.

    Without log-probabilities it is a probe, else the user's own method, else the first of all.
    """
    by_name = {result.name: result for result in results}
    named = (by_name.get(name) for name in (BLEND, LADDER, AFTER, BEFORE))
    own = (result for result in results if result.family == "own")
    return next((found for found in (*named, *own) if found is not None), results[0])


def _summary(results: Sequence[MethodResult], share: float, n: int, baselines: Mapping[str, int]) -> list[str]:
    by_name = {result.name: result for result in results}
    learned = _named(results)
    sentences = [f"{share:.0%} of {n} answers are right."]
    if (stated := by_name.get(STATED)) is not None:
        sentences.append(
            f"Asked for its confidence, which it stated for {stated.coverage:.0%} of the answers, the model tells "
            f"right from wrong with AUROC {format_interval(stated.auroc)}: {_verdict(stated.auroc)}."
        )
        sentences += calibration_words(stated)
    if learned.family == "explicit":
        return sentences
    kind = "learned method named beforehand" if learned.family == "learned" else "method of your own"
    sentences.append(f"The {kind} ({learned.name}) reaches {format_interval(learned.auroc)}.")
    if (over := learned.controls) is not None:
        sentences.append(
            f"The strongest of {len(over.controls)} controls on these answers is "
            f"{control_named(over.strongest.name)} with {format_interval(by_name[over.strongest.name].auroc)}; the "
            "method's gain over it is "
            f"{_gain(over.strongest)}; it beats {_count_beaten(over.controls)}."
        )
    if (base := by_name.get(BEST_BASELINE)) is not None:
        chosen = ", ".join(f"{name} in {folds}" for name, folds in baselines.items())
        sentences.append(
            f"The control chosen in advance, on selection data in each of {sum(baselines.values())} folds ({chosen}), "
            f"reaches {format_interval(base.auroc)}."
        )
    if learned.within_runs is not None and (inside := learned.controls_within) is not None:
        sentences.append(
            f"Among answers of one run (model, task, way of asking) the learned method reaches "
            f"{format_interval(learned.within_runs)}, its strongest control there, {inside.strongest.name}, "
            f"{inside.strongest.estimate:.2f}; the gain is {_gain(inside.strongest)}."
        )
    return sentences


def _gain(over: ControlDifference) -> str:
    """`+0.03 [+0.01, +0.05] (p < 0.001 after Holm's correction), so it is better`."""
    if over.beaten:
        says = "so it is better"
    else:
        says = "so it is worse" if over.difference.high < 0 else "so this sample does not settle which is better"
    p = p_value(over.p_holm)
    shown = p if p.startswith("<") else f"= {p}"
    return f"{format_interval(over.difference, signed=True)} (p {shown} after Holm's correction), {says}"


def _count_beaten(controls: Sequence[ControlDifference]) -> str:
    beaten = sum(control.beaten for control in controls)
    return f"all {beaten}" if beaten == len(controls) else f"{beaten} of {len(controls)}"


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
        shown = [f"{name} {format_interval(within[name])}" for name in (STATED, learned) if name in within]
        sentences.append(f"At equal difficulty ({equal.by}) the AUROC is: {', '.join(shown)}.")
    if pairs:
        stand = sum(pair.p_holm < SIGNIFICANT for pair in pairs)
        sentences.append(
            f"{stand} of {len(pairs)} differences from stated confidence or the strongest control stand after Holm's "
            f"correction ({pairs[0].test}, p < {SIGNIFICANT})."
        )
    own = [row for row in gaps if row.method == STATED]
    if own:
        levels = ", ".join(f"{row.level} {row.gap.estimate:+.2f}" for row in own[1:])
        sentences.append(
            f"Stated confidence minus accuracy is {format_interval(own[0].gap, signed=True)}"
            f"{f' ({levels})' if levels else ''}."
        )
    if efficiency is not None:
        sentences += _of_choices(efficiency, learned)
    return sentences


def _of_choices(found: TwoChoice, learned: str) -> list[str]:
    """The answers as choices between two; those that are none are wrong for another reason than not knowing."""
    methods = [row for row in found.methods if row.method in (STATED, learned)]
    told = ", ".join(f"{row.method} {format_interval(row.type2_auroc)}" for row in methods)
    unreadable = f"{found.unreadable} of {found.n + found.unreadable} answers state neither choice and count as wrong. "
    ratios = ", ".join(f"{row.method} {format_interval(row.m_ratio)}" for row in methods if row.m_ratio is not None)
    reason = next((row.refused for row in methods if row.refused), "")
    return [
        f"{unreadable if found.unreadable else ''}Among answers that choose, the AUROC is: {told}.",
        f"d' of the answers is {format_interval(found.d_prime)}; "
        + (f"M-ratio: {ratios}." if ratios else f"there is no M-ratio, for {reason}."),
    ]


def _exported(results: Sequence[MethodResult]) -> str:
    """Which checkpoint comes nearest to the blend, of which there is none."""
    if _named(results).name != BLEND:
        return ""
    best = max((result for result in results if result.name in EXPORTED), key=lambda result: result.auroc.estimate)
    beside = ""
    if (over := best.controls) is not None:
        beside = (
            f", {format_interval(over.strongest.difference, signed=True)} against {control_named(over.strongest.name)}"
        )
        if not over.beaten:
            beside += (
                f". It is not shown to beat {control_named(over.standing[0].name)}: where the blend cannot be had, use "
                "that instead"
            )
    return (
        f"There is no checkpoint of the {BLEND}: `metaprobe compare` makes it of several methods. The nearest one is "
        f"that of `metaprobe train {EXPORTED[best.name]}` ({best.name}): AUROC {format_interval(best.auroc)}{beside}."
    )


def _verdict(auroc: Interval) -> str:
    if auroc.low > 0.5:
        return "better than chance"
    return "worse than chance" if auroc.high < 0.5 else "not to be told from chance"


def _sweep(probes: Sequence[LinearProbe], result: MethodResult, shipped: Place | None) -> LayerSweep:
    """Selection AUROC, averaged over the folds, and what each of them chose."""
    first = probes[0].sweep
    layers = tuple(dict.fromkeys(point.layer for point in first))
    positions = tuple(dict.fromkeys(point.position for point in first))
    grid = np.zeros((len(layers), len(positions)))
    for probe in probes:
        for point in probe.sweep:
            at = layers.index(point.layer), positions.index(point.position)
            grid[at] += point.auroc / len(probes)
    return LayerSweep(
        probe=result.name,
        layers=layers,
        positions=positions,
        selection_auroc=grid,
        choices=tuple((probe.layers[0], probe.position) for probe in probes),
        shipped=shipped,
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
