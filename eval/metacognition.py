"""A model's knowledge of its own answers: beyond the question's difficulty, beyond d', and whether control acts on it.

AUROC at equal difficulty: a model that says "sure" for easy questions and "unsure" for hard ones may know nothing about
its answers. Over-confidence by difficulty. Metacognitive efficiency of two-choice answers. And whether monitoring
detects wrong answers in recorded runs, and whether control fixes the flagged ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.rendered_table import format_interval
from metaprobe.eval.answer_table import AnswerTable, group_of, level_place
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
from metaprobe.eval.systems.mgv_figures import attempts
from metaprobe.records.correctness import is_correct
from metaprobe.records.types import Item, Run

QUANTILES = 5
ALL = "all"
GOOD_EVALUATION = 0.85
"""Mean evaluation at which Monitor-Generate-Verify stops, and below which it flags an answer."""
MIN_INTERVAL_GROUPS = 10
"""With fewer groups no interval is given (its bounds are nan): resampling a handful of groups understates the
uncertainty.
"""
DIFFICULTY, EVALUATED = "stated difficulty", f"evaluation below {GOOD_EVALUATION}"
"""The monitor that never flags, and the monitor whose flag starts another cycle."""


@dataclass(frozen=True, slots=True, eq=False)
class Strata:
    """Answers grouped by the difficulty of their questions."""

    by: str
    names: tuple[str, ...]
    member: NDArray[np.int64]
    """Index into `names`; shape (n,)."""


def difficulty_strata(table: AnswerTable, *, estimate: Judged | None = None) -> Strata | None:
    """Returns cells of dimension and level, if these differ between the items; otherwise fifths of an estimate.

    `estimate` must not know the answer's own label, so it comes from outer folds. By default there is none; a
    comparison uses the estimate from the words of the question. Difficulty that the estimate does not know stays
    uncontrolled. Returns None if there is nothing to stratify by. An estimate that may be chance (the interval of its
    AUROC holds 0.5) counts as nothing.
    """
    levels, dimensions = (len(np.unique(column)) > 1 for column in (table.levels, table.dimensions))
    if levels or dimensions:
        cells = [
            " / ".join(part for part, differs in ((d, dimensions), (level, levels)) if differs)
            for d, level in zip(table.dimensions.tolist(), table.levels.tolist(), strict=True)
        ]
        names = sorted(set(cells))
        if levels:
            names.sort(key=lambda cell: (cell.split(" / ")[:-1], level_place(cell.split(" / ")[-1])))
        by = " x ".join(name for name, differs in (("dimension", dimensions), ("level", levels)) if differs)
        return Strata(by, tuple(names), np.array([names.index(cell) for cell in cells], dtype=np.int64))
    if estimate is None:
        return None
    # Whether right answers are clearly more often those to the questions that it takes for easy.
    if not interval(auroc, table.y, estimate.probability, cluster_weights(list(table.groups))).low > 0.5:
        return None
    member = equal_grades(-estimate.probability, grades=QUANTILES)
    count = int(member.max()) + 1
    if count < 2:
        return None
    names = [f"{number + 1} of {count}" for number in range(count)]
    names[0], names[-1] = f"{names[0]}, easiest", f"{names[-1]}, hardest"
    return Strata(f"difficulty as {estimate.name} estimates it", tuple(names), member)


def at_equal_difficulty(
    table: AnswerTable, judged: Sequence[Judged], strata: Strata, *, resamples: int = RESAMPLES, seed: int = 0
) -> Difficulty:
    """Returns every method's AUROC over pairs within strata, and its difference from stated confidence there.

    Args:
        table: the answers.
        judged: the methods.
        strata: the strata.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
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
    """Returns mean confidence minus accuracy, over all answers and by level (by stratum if the items have no levels).

    Numbers that the model stated itself (stated confidence, P(true)) are taken as stated, over the answers that have
    one. Calibrated probabilities of learned methods are added for comparison.

    Args:
        table: the answers.
        judged: the methods.
        strata: the strata; None if there are none.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    stated_values = {STATED: table.stated_confidence, P_TRUE: table.p_true}
    by_level = {ALL: np.ones(len(table), dtype=bool)}
    if len(levels := sorted(set(table.levels.tolist()), key=level_place)) > 1:
        by_level |= {level or "no level": table.levels == level for level in levels}
    elif strata is not None:
        by_level |= {name: strata.member == i for i, name in enumerate(strata.names)}
    rows: list[Overconfidence] = []
    for method in judged:
        stated = method.name in stated_values
        if not stated and method.family != "learned":
            continue
        confidence = stated_values[method.name] if stated else method.probability
        finite = np.isfinite(confidence)
        for level, level_rows in by_level.items():
            members = finite & level_rows
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


class NotTwoChoice(ValueError):
    """The answers cannot be read as a choice between the same two options; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """Answers to two-choice items."""

    choices: tuple[str, str]
    signal: NDArray[np.int64]
    """1 if the first choice is right, else 0; shape (n,)."""
    response: NDArray[np.int64]
    """1 if the first choice was given, 0 for the second, -1 for neither; shape (n,)."""


def two_choice_responses(items: Sequence[Item], answers: Sequence[str | None], y: NDArray[np.int64]) -> Responses:
    """Reads signal and response from the item of each answer, the answer, and whether it was right (n,).

    Signal and response refer to the first choice, which is `true` in true-false tasks. A wrong answer counts as the
    other choice only if a program reads it so. Raises `NotTwoChoice` if an item does not have the same two choices as
    the others, if its gold answer is none of them, or if a wrong answer's text was not stored (None).

    Args:
        items: the item of each answer.
        answers: the texts.
        y: whether each answer was right.
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
    responses = []
    for item, gold, answer, right in zip(items, golds, answers, y.tolist(), strict=True):
        other = opposite[gold]
        if right:
            responses.append(int(gold == first))
        elif is_correct(replace(item, gold=(other,)), answer or ""):
            responses.append(int(other == first))
        else:
            responses.append(-1)
    signal = np.array([gold == first for gold in golds], dtype=np.int64)
    return Responses((first, second), signal, np.array(responses, dtype=np.int64))


def metacognitive_efficiency(
    table: AnswerTable, judged: Sequence[Judged], responses: Responses, *, resamples: int = RESAMPLES, seed: int = 0
) -> TwoChoice:
    """Returns d' of the answers, and type-2 AUROC, meta-d' and M-ratio of every method as the confidence in them.

    Only answers that can be read count. Scores are graded into quarters of the answers before resampling. meta-d' is
    refused, with the reason, if the answers are no better than guessing (the interval of d' is not above 0, so the
    ratio would be noise), or if all scores are equal. Raises `NotTwoChoice` if one of the two choices was never right,
    or if too few answers can be read.

    Args:
        table: the answers.
        judged: the methods.
        responses: signal and response of the answers.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    # Signal and response of the answers that can be read.
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

    # Sensitivity of the answers themselves.
    ungraded = np.zeros(len(rows), dtype=np.int64)
    alone, spread = (sensitivity(response_counts(signal, response, ungraded, w)) for w in (single, weights))
    d_prime = summed(spread[0], alone[0])
    right = (signal == response).astype(np.int64)

    def efficiency(method: Judged) -> Efficiency:
        grade = equal_grades(method.ranking[rows])
        bins = int(grade.max()) + 1
        type2 = interval(auroc, right, grade, weights)
        refused = ""
        if bins < 2:
            refused = "all scores are equal"
        elif not d_prime.low > 0:
            refused = f"the answers are not clearly better than guessing: d' {format_interval(d_prime)}"
        if refused:
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


def monitored(run: Run) -> dict[str, float | None]:
    """Returns how each monitor judges the first answer: higher means likelier wrong; None if it says nothing."""
    first_of = {call.stage: call.id for call in reversed(run.calls)}
    monitor, control = (
        run.stated("flags", first_of[stage]) if stage in first_of else None for stage in ("monitor", "control")
    )
    quality = attempts(run)[0].quality if {"verify", "feedback"} & first_of.keys() else None
    return {
        DIFFICULTY: next((s.value for s in run.statements if s.kind == "difficulty"), None),  # not of a later answer
        "monitor flags": monitor,
        "control flags": control,
        "either flags": None if monitor is None or control is None else max(monitor, control),
        EVALUATED: None if quality is None else GOOD_EVALUATION - quality,
    }


def coupling(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[Coupling, ...]:
    """Measures whether control fixes what monitoring flags. Returns a row for each system, variant and monitor, over
    runs whose first answer a program has checked.

    Args:
        runs: the runs.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    by_variant: dict[tuple[str, str], list[tuple[Run, float, dict[str, float | None]]]] = {}
    for run in runs:
        first = next((value for call in run.calls if (value := run.label("correct", call.id)) is not None), None)
        if run.outcome is not None and first is not None:
            by_variant.setdefault((run.system, run.variant), []).append((run, first, monitored(run)))
    rows = []
    for (system, variant), members in sorted(by_variant.items()):
        for monitor in members[0][2]:
            judged = [(run, first, says[monitor]) for run, first, says in members if says[monitor] is not None]
            if judged:
                rows.append(_coupling(system, variant, monitor, judged, resamples, seed))
    return tuple(rows)


def _coupling(
    system: str,
    variant: str,
    monitor: str,
    judged: Sequence[tuple[Run, float, float | None]],
    resamples: int,
    seed: int,
) -> Coupling:
    """Returns one row.

    Args:
        system: the system.
        variant: the prompt variant.
        monitor: name of the monitor.
        judged: a run, whether its first answer is right, and how the monitor judges that answer.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    weights = cluster_weights([group_of(run.item) for run, *_ in judged], resamples, seed)
    wrong = np.array([first == 0 for _, first, _ in judged])
    says = np.array([verdict for *_, verdict in judged], dtype=np.float64)
    flagged, flags = says > 0, monitor != DIFFICULTY
    # An evaluation leads to another cycle, whose answer counts, whichever is returned.
    last = monitor == EVALUATED
    ends = np.array([attempts(run)[-1].correct if last else run.outcome for run, *_ in judged], dtype=np.float64)
    fixed = _compare(ends, wrong, flagged, weights) if flags else (None, None, None)
    broken = _compare(1 - ends, ~wrong, flagged, weights) if flags else (None, None, None)
    return Coupling(
        system=system,
        variant=variant,
        monitor=monitor,
        n=len(judged),
        failure_auroc=interval(auroc, wrong, says, weights) if 0 < wrong.sum() < len(wrong) else None,
        flagged_wrong=_mean_of(flagged, wrong, weights) if flags else None,
        flagged_right=_mean_of(flagged, ~wrong, weights) if flags else None,
        fixed_flagged=fixed[0],
        fixed_unflagged=fixed[1],
        fixed_difference=fixed[2],
        broken_flagged=broken[0],
        broken_unflagged=broken[1],
        broken_difference=broken[2],
    )


RowMask = NDArray[np.bool_]


def _compare(
    values: Floats, among: RowMask, flagged: RowMask, weights: NDArray[np.int32]
) -> tuple[Interval | None, Interval | None, Interval | None]:
    """Returns means over the flagged rows of `among` and over its other rows, and their difference on the same
    resamples.

    Args:
        values: the values.
        among: the rows to use.
        flagged: the flagged rows.
        weights: the resamples.
    """
    means = [_mean_of(values, among & side, weights) for side in (flagged, ~flagged)]
    if None in means:
        return means[0], means[1], None
    y, side = values[among], flagged[among]

    def difference(weight: NDArray[np.integer]) -> Floats:
        return _mean(y, weight * side) - _mean(y, weight * ~side)

    gap = statistic_interval(difference, weights[:, among])
    return means[0], means[1], _bounded(gap, min(mean.groups for mean in means if mean))


def _mean_of(values: Floats | RowMask, among: RowMask, weights: NDArray[np.int32]) -> Interval | None:
    """Returns the mean over the rows `among`; None if there are none. Resamples without any of them are left out.

    Args:
        values: the values.
        among: the rows to use.
        weights: the resamples.
    """
    if not among.any():
        return None
    y = np.asarray(values[among], dtype=np.float64)
    mean = statistic_interval(lambda weight: _mean(y, weight), weights[:, among])
    return _bounded(mean, mean.groups)


def _bounded(interval: Interval, groups: int) -> Interval:
    """Returns the estimate without an interval for few groups: otherwise three of three would be 1 [1, 1]."""
    return interval if groups >= MIN_INTERVAL_GROUPS else replace(interval, low=float("nan"), high=float("nan"))


def _mean(values: Floats, weight: NDArray[np.integer]) -> Floats:
    return ratio(weight @ values, weight.sum(axis=1).astype(np.float64))
