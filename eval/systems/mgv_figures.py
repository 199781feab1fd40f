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
    """Difficulty stated before it, in [0, 1]."""
    tokens: float
    """Tokens generated in its cycle, by all stages."""


@dataclass(frozen=True, slots=True)
class StopAt:
    """Outcome of stopping at another threshold."""

    threshold: float
    accuracy: Interval
    attempts: Interval
    tokens: Interval


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
    """Cycles a run; for self-verification 1, and 2 if candidates were verified."""
    stopped_first: Interval
    """Share of runs that ended after one attempt."""
    solved_first: Interval
    """Share of runs that ended after one attempt with a right answer."""
    tokens: Interval
    """Tokens generated in a run."""
    latency_ms: Interval | None
    """Milliseconds: sum over a run's calls. Calls of one batch share its time; None if a call has none."""
    by_cycle: tuple[Interval, ...]
    """Accuracy of the first answer, the second, and so on, for the runs that got that far."""
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
    """Empty unless all runs have the same number of cycles, more than one: cycles that a run left out cannot be
    simulated.
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
    tried = []
    for call in answers:
        correct = run.label("correct", call.id)
        if correct is None:
            raise RecordError(f"answer {call.id} has no label 'correct': collect a task that a program can check")
        cycle = [other for other in run.calls if other.round == call.round]
        before = [run.stated("difficulty", other.id) for other in cycle if other.stage == "monitor"]
        tokens = float(sum(map(_tokens, cycle)))
        tried.append(Attempt(call.round, correct, _quality(run, call), before[0] if before else None, tokens))
    if not tried or run.outcome is None:
        raise RecordError(f"run {run.id} has no checked answer: collect a task that a program can check")
    return tuple(tried)


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


def _best(tried: Sequence[Attempt]) -> Attempt:
    return max(tried, key=lambda attempt: -1.0 if attempt.quality is None else attempt.quality)


def _until(tried: Sequence[Attempt], threshold: float) -> Sequence[Attempt]:
    """Returns the attempts up to the first that is good enough."""
    for number, attempt in enumerate(tried, start=1):
        if attempt.quality is not None and attempt.quality >= threshold:
            return tried[:number]
    return tried


def _report(runs: Sequence[Run], resamples: int, seed: int) -> CycleReport:
    tried = [attempts(run) for run in runs]
    groups = [group_of(run.item) for run in runs]
    weights = cluster_weights(groups, resamples, seed)  # (R, runs)

    def mean(values: Iterable[float]) -> Interval:
        return mean_interval(list(values), weights)

    def discrimination(scored: Sequence[tuple[int, float, float]]) -> Interval | None:
        """Returns the AUROC of pairs (run, correct, score), one an answer."""
        if not scored:
            return None
        chosen, y, score = zip(*scored, strict=True)
        return interval(auroc, y, score, weights[:, list(chosen)])

    def stop_at(threshold: float) -> StopAt:
        kept_attempts = [_until(each, threshold) for each in tried]
        tokens = mean(sum(attempt.tokens for attempt in each) for each in kept_attempts)
        return StopAt(
            threshold, mean(_best(each).correct for each in kept_attempts), mean(map(len, kept_attempts)), tokens
        )

    # Best answers, counts and outcomes of the runs, and the answers that were evaluated or whose difficulty was stated.
    best = [_best(t).correct for t in tried]
    counts = np.array([_cycle_count(run) for run in runs])
    outcomes = np.array([float(run.outcome or 0.0) for run in runs])
    latencies = [[call.latency_ms for call in run.calls] for run in runs]
    every = [(i, attempt) for i, t in enumerate(tried) for attempt in t]
    judged = [(i, a.correct, a.quality) for i, a in every if a.quality is not None]
    eased = [(i, t[0].correct, 1 - t[0].difficulty) for i, t in enumerate(tried) if t[0].difficulty is not None]
    # Other thresholds can be simulated only if all runs have the same number of cycles.
    cycling = any(decision.point == "iterate" for run in runs for decision in run.decisions)
    whole = cycling and len(set(map(len, tried))) == 1 and len(tried[0]) > 1
    return CycleReport(
        system=runs[0].system,
        variant=runs[0].variant,
        accuracy=mean(outcomes),
        attempts=mean(counts),
        stopped_first=mean(counts == 1),
        solved_first=mean((counts == 1) * outcomes),
        tokens=mean(sum(map(_tokens, run.calls)) for run in runs),
        latency_ms=None if any(None in each for each in latencies) else mean(sum(filter(None, ms)) for ms in latencies),
        # Few runs may get far: resampled by themselves, so that none of their resamples is empty.
        by_cycle=tuple(
            Interval.of_mean(  # type: ignore[misc]
                [(t[n].correct, g) for g, t in zip(groups, tried, strict=True) if len(t) > n],
                resamples=resamples,
                seed=seed,
            )
            for n in range(max(map(len, tried)))
        ),
        quality_auroc=discrimination(judged),
        difficulty_auroc=discrimination(eased),
        quality_given=len(judged) / len(every),
        difficulty_given=len(eased) / len(tried),
        selection=Selection(
            best=mean(best),
            over_first=mean(y - t[0].correct for y, t in zip(best, tried, strict=True)),
            over_last=mean(y - t[-1].correct for y, t in zip(best, tried, strict=True)),
            oracle=mean(max(a.correct for a in t) for t in tried),
        ),
        thresholds=tuple(map(stop_at, THRESHOLDS)) if whole else (),
    )


def _cycle_count(run: Run) -> int:
    """Returns the number of cycles. Self-verification draws its candidates at once, so its cycles are drawing and
    verifying.
    """
    stages = [call.stage for call in run.calls]
    return 1 + ("backward" in stages) if run.system == "self-verification" else stages.count("answer")
