"""Figures of the MetaCrit paper, from recorded runs: who flags, how it fails, and what it costs.

Every interval resamples groups of items. Runs without an outcome count only for cost.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from metaprobe.eval.answer_table import group_of, runs_by_variant
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.results import Agreement, Failures, StageAccuracy
from metaprobe.records.types import Call, Run

STAGES = ("answer", "monitor", "control", "synthesis")
"""Stages of A1 to A4."""
FINAL = "final"

BOTH, CONTROL_ONLY, MONITOR_ONLY, NEITHER, UNREADABLE = "both", "control only", "monitor only", "neither", "unreadable"
BY_FLAGS = {(1, 1): BOTH, (0, 1): CONTROL_ONLY, (1, 0): MONITOR_ONLY, (0, 0): NEITHER}
"""Maps the flags of monitor and control to the pattern."""
PATTERNS = (*BY_FLAGS.values(), UNREADABLE)

COLLAPSE, GAP, RECONCILIATION = "consensus collapse", "knowledge gap", "reconciliation failure"
FAILURES = (COLLAPSE, GAP, RECONCILIATION, UNREADABLE)


@dataclass(frozen=True, slots=True)
class SystemCost:
    """Mean cost of a question, in the units of table 8. A cost is None if it is not known of every call."""

    system: str
    variant: str
    n: int
    calls: float
    tokens: float | None
    """Mean prompt plus completion tokens per question."""
    latency_s: float | None
    """Latency of a question: the sum over its calls; calls that ran at the same time are counted in full."""
    cost_per_1000: float | None
    """US dollars for 1,000 questions."""
    accuracy: Interval | None


def stage_accuracy(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[StageAccuracy, ...]:
    """Returns the accuracy after each stage, by system and variant, in the order in which the stages were first asked.

    Args:
        runs: the runs.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    rows = []
    for (system, variant), runs_of_variant in runs_by_variant(runs).items():
        group_of_run = {run.id: group_of(run.item) for run in runs_of_variant if run.outcome is not None}
        answers_of_stage: dict[str, dict[str, list[float]]] = defaultdict(dict)  # by stage and run
        for run in runs_of_variant:
            for call in run.calls if run.id in group_of_run else ():
                if (label := run.label("correct", call.id)) is not None:
                    answers_of_stage[call.stage].setdefault(run.id, []).append(label)
        first_stage = next(iter(answers_of_stage), FINAL)
        answers_of_stage[FINAL] = {run.id: [run.outcome] for run in runs_of_variant if run.outcome is not None}
        for stage, answers_of_run in answers_of_stage.items():
            answers = [(value, group_of_run[run]) for run, values in answers_of_run.items() for value in values]
            gains = [
                (float(np.mean(values) - np.mean(answers_of_stage[first_stage][run])), group_of_run[run])
                for run, values in answers_of_run.items()
                if stage != first_stage and run in answers_of_stage[first_stage]
            ]
            if (accuracy := Interval.of_mean(answers, resamples=resamples, seed=seed)) is not None:
                gain = Interval.of_mean(gains, resamples=resamples, seed=seed)
                rows.append(StageAccuracy(system, variant, stage, accuracy, gain))
    return tuple(rows)


def agreement(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[Agreement, ...]:
    """Returns outcomes by who flags a concern, in the order of `PATTERNS`, from runs in which both critics were asked.

    Args:
        runs: the runs.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    outcomes_of_pattern: dict[str, list[tuple[float, float | None, str]]] = {pattern: [] for pattern in PATTERNS}
    for run in runs:
        flags = _flags(run)
        if flags is not None and run.outcome is not None:
            monitor, control = flags
            pattern = UNREADABLE
            if monitor is not None and control is not None:
                pattern = BY_FLAGS.get((int(monitor), int(control)), UNREADABLE)
            outcomes_of_pattern[pattern].append((run.outcome, _first_answer(run), group_of(run.item)))
    rows = []
    for pattern, outcomes in outcomes_of_pattern.items():
        checked = [(final, first, group) for final, first, group in outcomes if first is not None]
        shares = (
            [(final, group) for final, _, group in outcomes],
            [(first, group) for _, first, group in checked],
            [(final, group) for final, first, group in checked if first == 0],
            [(1 - final, group) for final, first, group in checked if first == 1],
        )
        means = (Interval.of_mean(share, resamples=resamples, seed=seed) for share in shares)
        rows.append(Agreement(pattern, len(outcomes), *means))
    return tuple(rows)


def failure_types(runs: Iterable[Run]) -> Failures:
    """Returns why wrong runs went wrong, for runs in which both critics were asked.

    The paper names the types by hand (appendix H), and its examples do not always follow its own definitions. Here they
    are:

    - reconciliation failure: A1 was right or control flagged a concern, and the synthesis did not use it;
    - consensus collapse: A1 was wrong, control did not flag, and some answer to this item by the same models is right.
      What the monitor said does not matter, as in the paper's example of collapse;
    - knowledge gap: the same, but no answer to this item by these models is right;
    - unreadable: A1 was wrong, and control's flag could not be read.

    All `runs` show what the models know. So give the runs of ablations, baselines and samples as well.
    """
    runs = list(runs)
    answers: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for run in runs:
        for call in run.calls:
            if (label := run.label("correct", call.id)) is not None:
                answers[run.item.task, run.item.id, call.model].append(label)
    counts = dict.fromkeys(FAILURES, 0)
    evidence = []
    for run in runs:
        flags = _flags(run)
        if flags is None or run.outcome != 0:
            continue
        if _first_answer(run) == 1 or flags[1] == 1:
            counts[RECONCILIATION] += 1
        elif flags[1] is None:
            counts[UNREADABLE] += 1
        else:
            models = {call.model for call in run.calls}
            labels = [label for model in models for label in answers[run.item.task, run.item.id, model]]
            counts[COLLAPSE if any(labels) else GAP] += 1
            evidence.append(len(labels))
    return Failures(counts, float(np.mean(evidence)) if evidence else float("nan"))


def cost_table(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[SystemCost, ...]:
    """Returns calls, tokens, latency, price and accuracy of each system and variant.

    Args:
        runs: the runs.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    rows = []
    for (system, variant), runs_of_variant in runs_by_variant(runs).items():
        calls = [call for run in runs_of_variant for call in run.calls]
        n = len(runs_of_variant)
        tokens = _mean_per_run([_tokens(call) for call in calls], n)
        latency_ms, cost_usd = (
            _mean_per_run([call.latency_ms for call in calls], n),
            _mean_per_run([call.cost_usd for call in calls], n),
        )
        outcomes = [(run.outcome, group_of(run.item)) for run in runs_of_variant if run.outcome is not None]
        rows.append(
            SystemCost(
                system=system,
                variant=variant,
                n=n,
                calls=len(calls) / n,
                tokens=tokens,
                latency_s=None if latency_ms is None else latency_ms / 1000,
                cost_per_1000=None if cost_usd is None else cost_usd * 1000,
                accuracy=Interval.of_mean(outcomes, resamples=resamples, seed=seed),
            )
        )
    return tuple(rows)


def _mean_per_run(values: list[float | None], n: int) -> float | None:
    """Returns the sum of the calls' values over n runs; None if a value is not known."""
    return None if None in values else sum(filter(None, values)) / n


def _tokens(call: Call) -> float | None:
    """Returns the number of tokens read and written: as the server counted them, else by the token ids."""
    if counted := call.usage.prompt_tokens + call.usage.completion_tokens:
        return counted
    if call.prompt_token_ids is None or call.token_ids is None:
        return None
    return len(call.prompt_token_ids) + len(call.token_ids)


def _flags(run: Run) -> tuple[float | None, float | None] | None:
    """Returns the flags of monitor and control; None if one of them was not asked."""
    critics = {call.stage: call.id for call in run.calls if call.stage in ("monitor", "control")}
    if len(critics) < 2:
        return None
    return run.stated("flags", critics["monitor"]), run.stated("flags", critics["control"])


def _first_answer(run: Run) -> float | None:
    """Returns whether A1 was right."""
    return next((run.label("correct", call.id) for call in run.calls if call.stage == STAGES[0]), None)
