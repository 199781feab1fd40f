"""Monitor-Generate-Verify and its baselines: what the cycles cost and gain, and what evaluations are worth.

For runs of `monitor-generate-verify`, `self-refine` and `self-verification`. The numbers of the paper's Table 1, and
others: accuracy by cycle, how well evaluation and difficulty rank the answers, and where the stop threshold might lie.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from metaprobe.eval.answer_table import group_of, runs_by_variant
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Run

EVALUATIONS = {
    "verify": ("coherence", "plausibility", "consistency", "goal_conduciveness"),
    "feedback": ("accepted",),
    "backward": ("verified",),
}
"""Maps the stage of an evaluating call to what it states about its parent's answer."""
THRESHOLDS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer of a run, in the order in which they were given."""

    round: int
    correct: float
    quality: float | None
    """Its evaluation in [0, 1]: read by a checkpoint, else the mean of the stated numbers; None for neither."""
    difficulty: float | None
    """Difficulty stated before this answer, in [0, 1]; None if none was stated."""
    tokens: float
    """Tokens generated in its cycle, by all stages."""


@dataclass(frozen=True, slots=True)
class StopAt:
    """Outcome of stopping at another threshold."""

    threshold: float
    """Evaluation, in [0, 1], at which a run stops."""
    accuracy: Interval
    """Accuracy of the best-evaluated answer until then."""
    attempts: Interval
    """Number of answers of a run."""
    tokens: Interval
    """Number of tokens generated in a run."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Whether returning the best-evaluated answer pays. Differences are paired."""

    best: Interval
    """Accuracy of the best-evaluated answer, the first of equals."""
    over_first: Interval
    """`best` minus the accuracy of the first answer."""
    over_last: Interval
    """`best` minus the accuracy of the last answer."""
    oracle: Interval
    """Share of runs with any right answer: no selection can do better."""


@dataclass(frozen=True, slots=True)
class CycleReport:
    """Figures of one system in one variant; intervals from a bootstrap over groups."""

    system: str
    variant: str
    accuracy: Interval
    """Accuracy of the returned answers."""
    attempts: Interval
    """Number of cycles of a run; for self-verification 1, or 2 if candidates were verified."""
    stopped_first: Interval
    """Share of runs that ended after one attempt."""
    solved_first: Interval
    """Share of runs that ended after one attempt with a right answer."""
    tokens: Interval
    """Tokens generated in a run."""
    latency_ms: Interval | None
    """Latency of a run in milliseconds, summed over its calls. Calls of one batch share its time. None if the latency
    of a call is not known.
    """
    by_cycle: tuple[Interval, ...]
    """Accuracy of the first answer, the second, and so on, each over the runs that gave it."""
    quality_auroc: Interval | None
    """AUROC of the evaluation, over all answers that were evaluated; None without any."""
    difficulty_auroc: Interval | None
    """AUROC of the stated ease for the first answer; None if none was stated."""
    quality_given: float
    """Share of answers with an evaluation."""
    difficulty_given: float
    """Share of first answers with a difficulty."""
    selection: Selection
    thresholds: tuple[StopAt, ...]
    """Outcomes of other stop thresholds. Empty unless all runs have the same number of cycles, more than one, because a
    cycle that was not run cannot be simulated.
    """


def cycle_reports(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[CycleReport, ...]:
    """Returns a report for each system and variant. Raises `RecordError` if a run has no checked answer.

    Args:
        runs: the runs.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    by_variant = sorted(runs_by_variant(runs).items())
    return tuple(_report(members, resamples, seed) for _, members in by_variant)


def attempts(run: Run) -> tuple[Attempt, ...]:
    """Returns a run's answers with what is known about each. Raises `RecordError` if an answer was not checked."""
    answers = sorted((call for call in run.calls if call.stage == "answer"), key=lambda call: call.round)
    attempts_of_run = []
    for call in answers:
        correct = run.label("correct", call.id)
        if correct is None:
            raise RecordError(f"answer {call.id} has no label 'correct': collect a task that a program can check")
        cycle = [other for other in run.calls if other.round == call.round]
        difficulties = [run.stated("difficulty", other.id) for other in cycle if other.stage == "monitor"]
        tokens = float(sum(map(_tokens, cycle)))
        attempts_of_run.append(
            Attempt(call.round, correct, _quality(run, call), difficulties[0] if difficulties else None, tokens)
        )
    if not attempts_of_run or run.outcome is None:
        raise RecordError(f"run {run.id} has no checked answer: collect a task that a program can check")
    return tuple(attempts_of_run)


def _quality(run: Run, answer: Call) -> float | None:
    quality = run.label("signal:quality", answer.id)
    if quality is not None:
        return quality
    stated: list[float | None] = []
    for call in run.calls:
        if call.parent == answer.id and call.stage in EVALUATIONS:
            values = [run.stated(kind, call.id) for kind in EVALUATIONS[call.stage]]
            # An unreadable evaluation is no score, but an unreadable reconstruction did not succeed.
            stated += [value or 0.0 for value in values] if call.stage == "backward" else values
    numbers = [value for value in stated if value is not None]
    return fmean(numbers) if numbers else None


def _tokens(call: Call) -> int:
    return call.usage.completion_tokens or (0 if call.logprobs is None else len(call.logprobs))


def _best_evaluated(tried: Sequence[Attempt]) -> Attempt:
    return max(tried, key=lambda attempt: -1.0 if attempt.quality is None else attempt.quality)


def _attempts_until(tried: Sequence[Attempt], threshold: float) -> Sequence[Attempt]:
    """Returns the attempts up to the first that is good enough."""
    for number, attempt in enumerate(tried, start=1):
        if attempt.quality is not None and attempt.quality >= threshold:
            return tried[:number]
    return tried


def _report(runs: Sequence[Run], resamples: int, seed: int) -> CycleReport:
    attempts_by_run = [attempts(run) for run in runs]
    groups = [group_of(run.item) for run in runs]
    weights = cluster_weights(groups, resamples, seed)  # (R, runs)

    def mean(values: Iterable[float]) -> Interval:
        return mean_interval(list(values), weights)

    def discrimination(scored: Sequence[tuple[int, float, float]]) -> Interval | None:
        """Returns the AUROC of answers, each given as (index of its run, correctness, score)."""
        if not scored:
            return None
        chosen, y, score = zip(*scored, strict=True)
        return interval(auroc, y, score, weights[:, list(chosen)])

    def stop_at(threshold: float) -> StopAt:
        kept_attempts = [_attempts_until(one_run, threshold) for one_run in attempts_by_run]
        tokens = mean(sum(attempt.tokens for attempt in one_run) for one_run in kept_attempts)
        return StopAt(
            threshold,
            mean(_best_evaluated(one_run).correct for one_run in kept_attempts),
            mean(map(len, kept_attempts)),
            tokens,
        )

    # Per run: correctness of the best-evaluated answer, number of cycles, outcome, latencies of the calls. Per answer:
    # its evaluation. Per first answer: its stated difficulty.
    best_correct = [_best_evaluated(tried).correct for tried in attempts_by_run]
    cycle_counts = np.array([_cycle_count(run) for run in runs])
    outcomes = np.array([float(run.outcome or 0.0) for run in runs])
    latencies = [[call.latency_ms for call in run.calls] for run in runs]
    all_attempts = [(i, attempt) for i, tried in enumerate(attempts_by_run) for attempt in tried]
    evaluated = [(i, a.correct, a.quality) for i, a in all_attempts if a.quality is not None]
    with_difficulty = [
        (i, tried[0].correct, 1 - tried[0].difficulty)
        for i, tried in enumerate(attempts_by_run)
        if tried[0].difficulty is not None
    ]
    # Other thresholds can be simulated only if all runs have the same number of cycles.
    has_cycles = any(decision.point == "iterate" for run in runs for decision in run.decisions)
    can_simulate = has_cycles and len(set(map(len, attempts_by_run))) == 1 and len(attempts_by_run[0]) > 1
    return CycleReport(
        system=runs[0].system,
        variant=runs[0].variant,
        accuracy=mean(outcomes),
        attempts=mean(cycle_counts),
        stopped_first=mean(cycle_counts == 1),
        solved_first=mean((cycle_counts == 1) * outcomes),
        tokens=mean(sum(map(_tokens, run.calls)) for run in runs),
        latency_ms=None
        if any(None in one_run for one_run in latencies)
        else mean(sum(filter(None, ms)) for ms in latencies),
        # Few runs may reach a late cycle. They are resampled by themselves, so that no resample is empty.
        by_cycle=tuple(
            Interval.of_mean(  # type: ignore[misc]
                [(tried[n].correct, g) for g, tried in zip(groups, attempts_by_run, strict=True) if len(tried) > n],
                resamples=resamples,
                seed=seed,
            )
            for n in range(max(map(len, attempts_by_run)))
        ),
        quality_auroc=discrimination(evaluated),
        difficulty_auroc=discrimination(with_difficulty),
        quality_given=len(evaluated) / len(all_attempts),
        difficulty_given=len(with_difficulty) / len(attempts_by_run),
        selection=Selection(
            best=mean(best_correct),
            over_first=mean(y - tried[0].correct for y, tried in zip(best_correct, attempts_by_run, strict=True)),
            over_last=mean(y - tried[-1].correct for y, tried in zip(best_correct, attempts_by_run, strict=True)),
            oracle=mean(max(a.correct for a in tried) for tried in attempts_by_run),
        ),
        thresholds=tuple(map(stop_at, THRESHOLDS)) if can_simulate else (),
    )


def _cycle_count(run: Run) -> int:
    """Returns the number of cycles. Self-verification draws its candidates at once, so its cycles are drawing and
    verifying.
    """
    stages = [call.stage for call in run.calls]
    return 1 + ("backward" in stages) if run.system == "self-verification" else stages.count("answer")
