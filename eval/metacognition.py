"""A model's knowledge of its own answers: beyond the question's difficulty, beyond d', and whether control acts on it.

At equal difficulty, for a model that says "sure" of easy questions and "unsure" of hard ones may know nothing of its
answers; over-confidence by difficulty; metacognitive efficiency of two-choice answers; and whether monitoring detects
which answers of recorded runs are wrong, and control fixes what it flags.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.table import format_interval
from metaprobe.eval.compare import RESAMPLES, Judged
from metaprobe.eval.controls import P_TRUE, STATED
from metaprobe.eval.metrics.bootstrap import (
    Interval,
    cluster_weights,
    interval,
    mean_interval,
    paired_difference,
    resampled_interval,
    statistic_interval,
)
from metaprobe.eval.metrics.ranked import Floats, StratifiedAuroc, auroc, ratio
from metaprobe.eval.metrics.type2 import equal_grades, fit_meta_d, response_counts, sensitivity
from metaprobe.eval.results import Coupling, Difficulty, Efficiency, Overconfidence, Stratum, TwoChoice, WithinStrata
from metaprobe.eval.systems.mgv import attempts
from metaprobe.eval.table import LEVELS, AnswerTable, group_of, runs_by_variant
from metaprobe.records.correctness import is_correct
from metaprobe.records.types import Item, Run

QUANTILES = 5
ALL = "all"
ENOUGH = 0.85
"""Mean evaluation at which Monitor-Generate-Verify stops, and below which it flags an answer."""
FEW = 10
"""Groups below which no interval is given (its bounds are nan): resampling a handful shows less than is not known."""
CYCLED = ("verify", "feedback")
"""Stages that evaluate one answer before the next is made."""


@dataclass(frozen=True, slots=True, eq=False)
class Strata:
    """Answers sorted by how difficult their questions are."""

    by: str
    names: tuple[str, ...]
    member: NDArray[np.int64]
    """(n,): index into `names`."""


def difficulty_strata(table: AnswerTable, *, estimate: Judged | None = None) -> Strata | None:
    """Cells of dimension and level, as far as these differ between the items; else fifths of an estimate.

    `estimate` must not know the answer's own label, and so is one from outer folds: by default there is none, and in a
    comparison it is what the words of the question show. What it does not know of the difficulty stays uncontrolled.
    None where there is nothing to stratify by, which an estimate is that may as well be chance (the interval of its
    AUROC holds 0.5).
    """
    levels, dimensions = (len(np.unique(column)) > 1 for column in (table.levels, table.dimensions))
    if levels or dimensions:
        cells = [
            " / ".join(part for part, given in ((d, dimensions), (level, levels)) if given)
            for d, level in zip(table.dimensions.tolist(), table.levels.tolist(), strict=True)
        ]
        order = {level: rank for rank, level in enumerate(LEVELS)}
        names = sorted(set(cells), key=lambda cell: (*_head(cell), order.get(cell.split(" / ")[-1], -1), cell))
        by = " x ".join(name for name, given in (("dimension", dimensions), ("level", levels)) if given)
        return Strata(by, tuple(names), np.array([names.index(cell) for cell in cells], dtype=np.int64))
    if estimate is None or not _tells(table, estimate):
        return None
    member = equal_grades(-estimate.probability, grades=QUANTILES)
    count = int(member.max()) + 1
    if count < 2:
        return None
    names = [f"{number + 1} of {count}" for number in range(count)]
    names[0], names[-1] = f"{names[0]}, easiest", f"{names[-1]}, hardest"
    return Strata(f"difficulty as {estimate.name} estimates it", tuple(names), member)


def _tells(table: AnswerTable, estimate: Judged) -> bool:
    """Whether right answers are clearly more often those to the questions that it takes for easy."""
    discrimination = interval(auroc, table.y, estimate.probability, cluster_weights(list(table.groups)))
    return discrimination.low > 0.5


def _head(cell: str) -> tuple[str, ...]:
    """The dimension of a cell, where it has one and a level."""
    return tuple(cell.split(" / ")[:-1])


def at_equal_difficulty(
    table: AnswerTable, judged: Sequence[Judged], strata: Strata, *, resamples: int = RESAMPLES, seed: int = 0
) -> Difficulty:
    """Every method's AUROC over pairs within strata, beside its difference from stated confidence there."""
    weights = cluster_weights(list(table.groups), resamples, seed)
    within = StratifiedAuroc(strata.member)
    members = [np.flatnonzero(strata.member == number) for number in range(len(strata.names))]
    stated = next((method.ranking for method in judged if method.name == STATED), None)
    return Difficulty(
        by=strata.by,
        strata=tuple(
            Stratum(name, len(rows), float(table.y[rows].mean()))
            for name, rows in zip(strata.names, members, strict=True)
        ),
        methods=tuple(
            WithinStrata(
                method=method.name,
                auroc=interval(within, table.y, method.ranking, weights),
                diff_stated=None
                if stated is None or method.name == STATED
                else paired_difference(within, table.y, method.ranking, stated, weights),
            )
            for method in judged
        ),
    )


def overconfidence(
    table: AnswerTable, judged: Sequence[Judged], strata: Strata | None, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Overconfidence, ...]:
    """Mean confidence minus accuracy, over all answers and by level (or by stratum where the items have no levels).

    Of the numbers that the model gave itself (stated confidence, P(true)), as it gave them and where it did; and, to
    hold them against, of the calibrated probabilities of what was learned.
    """
    own = {STATED: table.stated_confidence, P_TRUE: table.p_true}
    rows: list[Overconfidence] = []
    for method in judged:
        stated = method.name in own
        if not stated and method.family != "learned":
            continue
        confidence = own[method.name] if stated else method.probability
        known = np.isfinite(confidence)
        for level, members in {ALL: known, **{name: known & here for name, here in _levels(table, strata)}}.items():
            if not members.any():
                continue
            gap = confidence[members] - table.y[members]
            weights = cluster_weights(list(table.groups[members]), resamples, seed)
            rows.append(
                Overconfidence(
                    method=method.name,
                    stated=stated,
                    level=level,
                    confidence=float(confidence[members].mean()),
                    accuracy=float(table.y[members].mean()),
                    gap=mean_interval(gap, weights),
                )
            )
    return tuple(rows)


def _levels(table: AnswerTable, strata: Strata | None) -> list[tuple[str, NDArray[np.bool_]]]:
    levels = sorted(
        set(table.levels.tolist()),
        key=lambda level: (LEVELS.index(level) if level in LEVELS else len(LEVELS), level),
    )
    if len(levels) > 1:
        return [(level or "no level", table.levels == level) for level in levels]
    return [] if strata is None else [(name, strata.member == i) for i, name in enumerate(strata.names)]


class NotTwoChoice(ValueError):
    """The answers cannot be read as a choice between the same two; says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """Answers to two-choice items."""

    choices: tuple[str, str]
    signal: NDArray[np.int64]
    """(n,): 1 where the first choice is right."""
    response: NDArray[np.int64]
    """(n,): 1 where the first choice was given, 0 for the second, -1 for neither."""


def two_choice_responses(items: Sequence[Item], answers: Sequence[str | None], y: NDArray[np.int64]) -> Responses:
    """Reads signal and response from the item of each answer, the answer, and whether it was right (n,).

    Signal and response are those of the first choice, `true` in true-false tasks. A wrong answer gave the other choice
    only if a program reads it so. Raises `NotTwoChoice` where an item has other than two choices, or other ones than
    the rest, where its gold answer is none of them, and where a wrong answer's text (None) was not stored.
    """
    kinds = {item.choices for item in items if item.check == "choice"}
    if len(kinds) != 1 or any(item.check != "choice" for item in items):
        unlike = sum(item.check != "choice" for item in items)
        raise NotTwoChoice(
            f"the items are not choices between the same two answers: {unlike} of {len(items)} answers are to items "
            f"without choices, the others have {len(kinds)} different sets of them"
        )
    (choices,) = kinds
    if len(choices) != 2:
        raise NotTwoChoice(f"the items have {len(choices)} choices; d' and meta-d' are of two")
    first, second = choices
    opposite = {first: second, second: first}
    golds = [item.gold[0] if item.gold else "" for item in items]
    if strange := next((gold for gold in golds if gold not in opposite), None):
        raise NotTwoChoice(f"a gold answer is {strange!r}, which is none of {first!r} and {second!r}")
    if any(answer is None and not right for answer, right in zip(answers, y.tolist(), strict=True)):
        raise NotTwoChoice(
            "the answers' texts were not stored, so that a wrong answer cannot be distinguished from one that cannot "
            "be read"
        )
    given = []
    for item, gold, answer, right in zip(items, golds, answers, y.tolist(), strict=True):
        other = opposite[gold]
        if right:
            given.append(int(gold == first))
        elif is_correct(replace(item, gold=(other,)), answer or ""):
            given.append(int(other == first))
        else:
            given.append(-1)
    signal = np.array([gold == first for gold in golds], dtype=np.int64)
    return Responses((first, second), signal, np.array(given, dtype=np.int64))


def metacognitive_efficiency(
    table: AnswerTable, judged: Sequence[Judged], responses: Responses, *, resamples: int = RESAMPLES, seed: int = 0
) -> TwoChoice:
    """d' of the answers, and type-2 AUROC, meta-d' and M-ratio of every method as the confidence in them.

    Over the answers that can be read. Scores are graded into quarters of the answers before anything is resampled.
    meta-d' is refused, with the reason, where the answers are no better than guessing (the interval of d' is not above
    0: the ratio is then of noise), and where the scores are all equal. Raises `NotTwoChoice` where one of the two was
    never right, or too few answers can be read.
    """
    rows = np.flatnonzero(responses.response >= 0)
    signal, response = responses.signal[rows], responses.response[rows]
    first, second = responses.choices
    if len(rows) < 2 or len(np.unique(signal)) < 2:
        raise NotTwoChoice(
            f"of {len(table)} answers {len(rows)} can be read, and not both {first} and {second} are right"
        )
    weights = cluster_weights(list(table.groups[rows]), resamples, seed)
    single = np.ones((1, len(rows)), dtype=np.int32)

    def summed(values: Floats, estimate: Floats) -> Interval:
        return resampled_interval(float(estimate[0]), values, weights)

    ungraded = np.zeros(len(rows), dtype=np.int64)
    alone, spread = (sensitivity(response_counts(signal, response, ungraded, w)) for w in (single, weights))
    d_prime = summed(spread[0], alone[0])
    right = (signal == response).astype(np.int64)

    def efficiency(method: Judged) -> Efficiency:
        grade = equal_grades(method.ranking[rows])
        bins = int(grade.max()) + 1
        type2 = interval(auroc, right, grade, weights)
        if refused := _refusal(bins, d_prime):
            return Efficiency(
                method=method.name, type2_auroc=type2, meta_d=None, m_ratio=None, bins=bins, refused=refused
            )
        once, fits = (fit_meta_d(response_counts(signal, response, grade, w)) for w in (single, weights))
        return Efficiency(
            method=method.name,
            type2_auroc=type2,
            meta_d=summed(fits.meta_d, once.meta_d),
            m_ratio=summed(fits.m_ratio, once.m_ratio),
            bins=bins,
        )

    return TwoChoice(
        choices=responses.choices,
        n=len(rows),
        unreadable=len(table) - len(rows),
        d_prime=d_prime,
        criterion=summed(spread[1], alone[1]),
        methods=tuple(efficiency(method) for method in judged),
    )


def _refusal(bins: int, d_prime: Interval) -> str:
    """Returns why there is no meta-d', as a clause; empty where there is one."""
    if bins < 2:
        return "all scores are equal"
    if not d_prime.low > 0:
        return f"the answers are not clearly better than guessing: d' {format_interval(d_prime)}"
    return ""


@dataclass(frozen=True, slots=True)
class Monitor:
    """One way in which the first answer of a run is judged."""

    name: str
    says: Callable[[Run], float | None]
    """Higher for likelier wrong; None where it says nothing."""
    flags: bool
    """Whether it flags an answer by saying something above 0."""
    ends: Callable[[Run], float | None]
    """Whether the run ended with a right answer."""


def coupling(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[Coupling, ...]:
    """Returns a row for each system, variant and monitor that judged a first answer that a program checked."""
    checked = [run for run in runs if run.outcome is not None and _first_right(run) is not None]
    rows = [
        _coupling(key, monitor, members, resamples, seed)
        for key, members in sorted(runs_by_variant(checked).items())
        for monitor in MONITORS
    ]
    return tuple(row for row in rows if row is not None)


def _coupling(
    key: tuple[str, str], monitor: Monitor, members: Sequence[Run], resamples: int, seed: int
) -> Coupling | None:
    judged = [(run, verdict) for run in members if (verdict := monitor.says(run)) is not None]
    if not judged:
        return None
    weights = cluster_weights([group_of(run.item) for run, _ in judged], resamples, seed)
    wrong = np.array([_first_right(run) == 0 for run, _ in judged])
    says = np.array([verdict for _, verdict in judged])
    flagged = says > 0
    ends = np.array([monitor.ends(run) for run, _ in judged], dtype=np.float64)
    fixed = _compare(ends, wrong, flagged, weights) if monitor.flags else NOTHING
    broken = _compare(1 - ends, ~wrong, flagged, weights) if monitor.flags else NOTHING
    return Coupling(
        system=key[0],
        variant=key[1],
        monitor=monitor.name,
        n=len(judged),
        failure_auroc=interval(auroc, wrong, says, weights) if 0 < wrong.sum() < len(wrong) else None,
        flagged_wrong=_mean_of(flagged, wrong, weights) if monitor.flags else None,
        flagged_right=_mean_of(flagged, ~wrong, weights) if monitor.flags else None,
        fixed_flagged=fixed[0],
        fixed_unflagged=fixed[1],
        fixed_difference=fixed[2],
        broken_flagged=broken[0],
        broken_unflagged=broken[1],
        broken_difference=broken[2],
    )


Rows = NDArray[np.bool_]
Compared = tuple[Interval | None, Interval | None, Interval | None]
NOTHING: Compared = (None, None, None)


def _compare(values: Floats, among: Rows, flagged: Rows, weights: NDArray[np.int32]) -> Compared:
    """Means over the flagged rows of `among` and over its other rows, and their difference on the same resamples."""
    means = [_mean_of(values, among & side, weights) for side in (flagged, ~flagged)]
    if None in means:
        return means[0], means[1], None
    y, side = values[among], flagged[among]

    def difference(weight: NDArray[np.integer]) -> Floats:
        return _mean(y, weight * side) - _mean(y, weight * ~side)

    gap = statistic_interval(difference, weights[:, among])
    return means[0], means[1], gap if min(mean.groups for mean in means if mean) >= FEW else _unbounded(gap)


def _mean_of(values: Floats | Rows, among: Rows, weights: NDArray[np.int32]) -> Interval | None:
    """Over the rows `among`; None where there is none. Resamples without any are left out."""
    if not among.any():
        return None
    y = np.asarray(values[among], dtype=np.float64)
    mean = statistic_interval(lambda weight: _mean(y, weight), weights[:, among])
    return mean if mean.groups >= FEW else _unbounded(mean)


def _unbounded(interval: Interval) -> Interval:
    """The estimate alone: three of three would else be 1 [1, 1]."""
    return replace(interval, low=float("nan"), high=float("nan"))


def _mean(values: Floats, weight: NDArray[np.integer]) -> Floats:
    return ratio(weight @ values, weight.sum(axis=1).astype(np.float64))


def _first_right(run: Run) -> float | None:
    """Whether the first checked answer is right."""
    return next((value for call in run.calls if (value := run.label("correct", call.id)) is not None), None)


def _stated_difficulty(run: Run) -> float | None:
    """Stated of the first answer, and not of a later one."""
    return next((s.value for s in run.statements if s.kind == "difficulty"), None)


def _flag(stage: str) -> Callable[[Run], float | None]:
    """Returns a monitor that reads the flag of the critic of a stage."""

    def says(run: Run) -> float | None:
        asked = next((call.id for call in run.calls if call.stage == stage), None)
        return None if asked is None else run.stated("flags", asked)

    return says


def _either(run: Run) -> float | None:
    both = [_flag(stage)(run) for stage in ("monitor", "control")]
    return None if None in both else max(flag for flag in both if flag is not None)


def _evaluated(run: Run) -> float | None:
    """Returns how far the first answer's evaluation lies below `ENOUGH`."""
    if not any(call.stage in CYCLED for call in run.calls):
        return None
    quality = attempts(run)[0].quality
    return None if quality is None else ENOUGH - quality


def _last_attempt(run: Run) -> float | None:
    """Whether the last cycle's answer is right, whichever is returned."""
    return attempts(run)[-1].correct


def _outcome(run: Run) -> float | None:
    return run.outcome


MONITORS = (
    Monitor("stated difficulty", _stated_difficulty, flags=False, ends=_outcome),
    Monitor("monitor flags", _flag("monitor"), flags=True, ends=_outcome),
    Monitor("control flags", _flag("control"), flags=True, ends=_outcome),
    Monitor("either flags", _either, flags=True, ends=_outcome),
    Monitor(f"evaluation below {ENOUGH}", _evaluated, flags=True, ends=_last_attempt),
)
