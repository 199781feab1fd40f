"""From fitted folds to the comparison that is printed and reported."""

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np

from metaprobe.eval.compare import BEST_BASELINE, method_results
from metaprobe.eval.compare_answers import accuracy_rows, trajectories
from metaprobe.eval.compare_details import add_details, ordinal_outcome
from metaprobe.eval.compare_difficulty import at_equal_difficulty, difficulty_strata, overconfidence
from metaprobe.eval.compare_pairs import pair_tests
from metaprobe.eval.method_results import Finding, MethodResult
from metaprobe.eval.results import Comparison, LayerSweep, Place, PolicyResult
from metaprobe.eval.run_results import with_runs
from metaprobe.eval.seen_tokens import auroc_by_tokens_seen
from metaprobe.records.types import Run
from metaprobe.training.common.write_checkpoint import read_by
from metaprobe.training.comparison.conclusions import (
    further_sentences,
    headline_method,
    headline_sentences,
    nearest_checkpoint,
)
from metaprobe.training.comparison.first_tokens import first_token_scores
from metaprobe.training.comparison.run_sections import collect_grades, efficiency_of, sections_of_runs
from metaprobe.training.crossfit.audit import audit_method
from metaprobe.training.crossfit.folds import CrossFit
from metaprobe.training.crossfit.held_out import ENOUGH_FOR_ECE
from metaprobe.training.crossfit.methods import Evidence, HiddenProbeMethod, Method, PromptTfidf
from metaprobe.training.linear.probe import LinearProbe

WORDS = PromptTfidf().name
"""The method whose estimate stands for difficulty where the items have no levels."""


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
    """Returns everything a report shows, from one cross-fit of answers with the label `target`.

    `shipped`: which layer and position the checkpoint of a probe reads, by the probe's name, where there are any.
    What needs the `runs` themselves (metacognitive efficiency, monitoring and control, graded labels) is left out
    where none are given.
    """
    table = evidence.table
    ordinal = ordinal_outcome(table, collect_grades(runs, table))
    plain = method_results(table, fits.methods, seed=seed)
    results = add_details(table, fits.methods, plain, ordinal=ordinal, seed=seed)
    strata = difficulty_strata(table, estimate=next((m for m in fits.methods if m.name == WORDS), None))
    equal = None if strata is None else at_equal_difficulty(table, fits.methods, strata, seed=seed)
    pairs = pair_tests(table, fits.methods, seed=seed)
    gaps = overconfidence(table, fits.methods, strata, seed=seed)
    efficiency, refused = efficiency_of(table, fits, runs, target=target, seed=seed)
    first_tokens = first_token_scores(evidence, folds=len(fits.roles), seed=seed)
    found = Comparison(
        title="Explicit and implicit metacognition",
        summary=(
            *headline_sentences(results, y=table.y, baselines=fits.best_baseline),
            *([f"{evidence.regrouped}."] if evidence.regrouped else []),
            *further_sentences(results, pairs, equal, gaps, efficiency),
        ),
        headline=headline_method(results).name,
        provenance=_provenance(evidence, command, seed),
        y=table.y,
        methods=results,
        best_baseline=BEST_BASELINE,
        baselines=dict(Counter(fits.best_baseline).most_common()),
        exported=nearest_checkpoint(results),
        accuracy=accuracy_rows(table),
        sweeps=_sweeps(methods, fits, results, shipped or {}),
        trajectories=trajectories(table),
        choices=choices,
        pairs=pairs,
        ordinal=ordinal.name if ordinal else "",
        difficulty=equal,
        overconfidence=gaps,
        two_choice=efficiency,
        two_choice_refused=refused,
        seen=auroc_by_tokens_seen(table, learned=first_tokens, seed=seed),
        **sections_of_runs(runs, seed=seed),
        audits=_audits(evidence, methods, fits, seed=seed),
        notes=(*notes, *_limits(evidence, has_difficulty=strata is not None)),
    )
    return with_runs(found, runs, seed=seed)


def _audits(evidence: Evidence, methods: Sequence[Method], fits: CrossFit, *, seed: int) -> tuple[Finding, ...]:
    """Returns each audit of the learned methods once, in the order of the methods."""
    learned = [method for method in methods if method.family == "learned"]
    reports = [audit_method(evidence, fits, method, refits=False, seed=seed) for method in learned]
    return tuple(dict.fromkeys(audit for report in reports for audit in report.audits))


def _limits(evidence: Evidence, *, has_difficulty: bool) -> list[str]:
    """Returns a sentence for each thing that these answers do not allow to be shown."""
    n, without = len(evidence.table), evidence.without_hidden
    limits = []
    if not has_difficulty:
        limits.append(
            f"Difficulty: the items have no levels, and {WORDS} knows nothing of it; nothing is held constant."
        )
    if not evidence.table.measured:
        limits.append("The answers hold no log-probabilities: no method that reads them is shown.")
    if 0 < without < n:
        limits.append(f"{without} of {n} answers have no hidden states: no probes.")
    if evidence.states_refused:
        limits.append(f"No probes: {evidence.states_refused}.")
    if n < ENOUGH_FOR_ECE:
        limits.append(f"ECE: {n} answers are too few to quote it; {ENOUGH_FOR_ECE} are needed.")
    return limits


def _sweeps(
    methods: Sequence[Method], fits: CrossFit, results: Sequence[MethodResult], shipped: Mapping[str, Place]
) -> tuple[LayerSweep, ...]:
    by_name = {result.name: result for result in results}
    probes = [method.name for method in methods if isinstance(method, HiddenProbeMethod)]
    return tuple(_sweep(fits.probes[name], by_name[name], shipped.get(name)) for name in probes)


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
        "log-probabilities": (generator.logprobs_mode if generator else "unknown") + read_by(evidence.logprobs_reader),
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
