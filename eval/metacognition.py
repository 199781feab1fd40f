"""Measures what a model knows of its own answers, and whether control acts on that knowledge.

- AUROC at equal difficulty: a model that says "sure" for easy questions and "unsure" for hard ones may know nothing
  about its answers.
- Over-confidence by level or difficulty.
- Metacognitive efficiency of two-choice answers.
- Coupling: whether monitoring detects wrong answers in recorded runs, and whether control fixes the flagged ones.
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

DIFFICULTY_QUANTILES = 5
"""Number of strata into which answers are cut by estimated difficulty."""
ALL_LEVELS = "all"
"""Name of the row over all answers."""
GOOD_EVALUATION = 0.85
"""Mean evaluation at which Monitor-Generate-Verify stops, and below which it flags an answer."""
MIN_INTERVAL_GROUPS = 10
"""Fewest groups for which bounds are given; with fewer they are nan. Resampling a handful of groups understates the
uncertainty.
"""
DIFFICULTY_MONITOR, EVALUATION_MONITOR = "stated difficulty", f"evaluation below {GOOD_EVALUATION}"
"""The monitor that never flags, and the monitor whose flag starts another cycle."""


@dataclass(frozen=True, slots=True, eq=False)
class Strata:
    """Answers grouped by the difficulty of their questions."""

    by: str
    """Name of the quantity that the strata are made from."""
    names: tuple[str, ...]
    """Names of the strata, the easiest first where they are quantiles."""
    member: NDArray[np.int64]
    """Index into `names`; shape (n,)."""


def difficulty_strata(table: AnswerTable, *, estimate: Judged | None = None) -> Strata | None:
    """Returns cells of dimension and level, if these differ between the items; otherwise fifths of an estimate.

    `estimate` must not know the answer's own label, so it comes from outer folds. A comparison gives the estimate from
    the words of the question. Difficulty that the estimate does not know stays uncontrolled. Returns None if there is
    nothing to stratify by. An estimate that may be chance (the interval of its AUROC holds 0.5) counts as nothing.
    """
    levels_differ, dimensions_differ = (len(np.unique(column)) > 1 for column in (table.levels, table.dimensions))
    if levels_differ or dimensions_differ:
        cells = [
            " / ".join(part for part, differs in ((d, dimensions_differ), (level, levels_differ)) if differs)
            for d, level in zip(table.dimensions.tolist(), table.levels.tolist(), strict=True)
        ]
        names = sorted(set(cells))
        if levels_differ:
            names.sort(key=lambda cell: (cell.split(" / ")[:-1], level_place(cell.split(" / ")[-1])))
        by = " x ".join(
            name for name, differs in (("dimension", dimensions_differ), ("level", levels_differ)) if differs
        )
        return Strata(by, tuple(names), np.array([names.index(cell) for cell in cells], dtype=np.int64))
    if estimate is None:
        return None
    # The estimate must clearly give a higher probability to questions that were answered rightly.
    if not interval(auroc, table.y, estimate.probability, cluster_weights(list(table.groups))).low > 0.5:
        return None
    member = equal_grades(-estimate.probability, grades=DIFFICULTY_QUANTILES)
    strata_count = int(member.max()) + 1
    if strata_count < 2:
        return None
    names = [f"{number + 1} of {strata_count}" for number in range(strata_count)]
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
    auroc_within_strata = StratifiedAuroc(strata.member)
    rows_of_stratum = [np.flatnonzero(strata.member == number) for number in range(len(strata.names))]
    stated_ranking = next((method.ranking for method in judged if method.name == STATED), None)
    return Difficulty(
        by=strata.by,
        strata=tuple(
            Stratum(name, len(rows), float(table.y[rows].mean()))
            for name, rows in zip(strata.names, rows_of_stratum, strict=True)
        ),
        methods=tuple(
            WithinStrata(
                method=method.name,
                auroc=interval(auroc_within_strata, table.y, method.ranking, weights),
                diff_stated=None
                if stated_ranking is None or method.name == STATED
                else paired_difference(auroc_within_strata, table.y, method.ranking, stated_ranking, weights),
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
    rows_by_level = {ALL_LEVELS: np.ones(len(table), dtype=bool)}
    if len(levels := sorted(set(table.levels.tolist()), key=level_place)) > 1:
        rows_by_level |= {level or "no level": table.levels == level for level in levels}
    elif strata is not None:
        rows_by_level |= {name: strata.member == i for i, name in enumerate(strata.names)}
    results: list[Overconfidence] = []
    for method in judged:
        is_stated = method.name in stated_values
        if not is_stated and method.family != "learned":
            continue
        confidence = stated_values[method.name] if is_stated else method.probability
        finite = np.isfinite(confidence)
        for level, level_rows in rows_by_level.items():
            members = finite & level_rows
            if not members.any():
                continue
            gap = confidence[members] - table.y[members]
            weights = cluster_weights(list(table.groups[members]), resamples, seed)
            results.append(
                Overconfidence(
                    method=method.name,
                    stated=is_stated,
                    level=level,
                    confidence=float(confidence[members].mean()),
                    accuracy=float(table.y[members].mean()),
                    gap=mean_interval(gap, weights),
                )
            )
    return tuple(results)


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
    """Returns signal and response of each answer, both for the first choice, which is `true` in true-false tasks.

    A wrong answer counts as the other choice only if a program reads it so. Raises `NotTwoChoice` if an item does not
    have the same two choices as the others, or if its gold answer is neither of them. It is also raised if a wrong
    answer's text was not stored (None).

    Args:
        items: the item of each answer.
        answers: the texts.
        y: whether each answer was right (n,).
    """
    # The two choices, or the reason why the items cannot be read.
    choice_sets = {item.choices for item in items if item.check == "choice"}
    if len(choice_sets) != 1 or any(item.check != "choice" for item in items):
        without_choices = sum(item.check != "choice" for item in items)
        raise NotTwoChoice(
            f"the items are not choices between the same two answers: {without_choices} of {len(items)} answers are to "
            f"items without choices, the others have {len(choice_sets)} different sets of them"
        )
    (choices,) = choice_sets
    if len(choices) != 2:
        raise NotTwoChoice(f"the items have {len(choices)} choices; d' and meta-d' are of two")
    first, second = choices
    opposite = {first: second, second: first}
    golds = [item.gold[0] if item.gold else "" for item in items]
    if unknown_gold := next((gold for gold in golds if gold not in opposite), None):
        raise NotTwoChoice(f"a gold answer is {unknown_gold!r}, which is none of {first!r} and {second!r}")
    if any(answer is None and not right for answer, right in zip(answers, y.tolist(), strict=True)):
        raise NotTwoChoice(
            "the answers' texts were not stored, so that a wrong answer cannot be distinguished from one that cannot "
            "be read"
        )
    # The choice that each answer gave.
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
    refused, with the reason, if all scores are equal, or if the interval of d' is not above 0. The answers are then no
    better than guessing, and the ratio would be noise. Raises `NotTwoChoice` if one of the two choices was never right,
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
    unweighted = np.ones((1, len(rows)), dtype=np.int32)

    def to_interval(values: Floats, estimate: Floats) -> Interval:
        return resampled_interval(float(estimate[0]), values, weights)

    # Sensitivity of the answers themselves.
    ungraded = np.zeros(len(rows), dtype=np.int64)
    estimated, resampled = (sensitivity(response_counts(signal, response, ungraded, w)) for w in (unweighted, weights))
    d_prime = to_interval(resampled[0], estimated[0])
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
        once, fits = (fit_meta_d(response_counts(signal, response, grade, w)) for w in (unweighted, weights))
        return Efficiency(
            method=method.name,
            type2_auroc=type2,
            meta_d=to_interval(fits.meta_d, once.meta_d),
            m_ratio=to_interval(fits.m_ratio, once.m_ratio),
            bins=bins,
        )

    return TwoChoice(
        choices=responses.choices,
        n=len(rows),
        unreadable=len(table) - len(rows),
        d_prime=d_prime,
        criterion=to_interval(resampled[1], estimated[1]),
        methods=tuple(efficiency(method) for method in judged),
    )


def judge_first_answer(run: Run) -> dict[str, float | None]:
    """Returns how each monitor judges the first answer: higher means likelier wrong; None if it says nothing."""
    first_call_of_stage = {call.stage: call.id for call in reversed(run.calls)}
    monitor, control = (
        run.stated("flags", first_call_of_stage[stage]) if stage in first_call_of_stage else None
        for stage in ("monitor", "control")
    )
    quality = attempts(run)[0].quality if {"verify", "feedback"} & first_call_of_stage.keys() else None
    return {
        DIFFICULTY_MONITOR: next(
            (s.value for s in run.statements if s.kind == "difficulty"), None
        ),  # not of a later answer
        "monitor flags": monitor,
        "control flags": control,
        "either flags": None if monitor is None or control is None else max(monitor, control),
        EVALUATION_MONITOR: None if quality is None else GOOD_EVALUATION - quality,
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
        first_correct = next(
            (value for call in run.calls if (value := run.label("correct", call.id)) is not None), None
        )
        if run.outcome is not None and first_correct is not None:
            by_variant.setdefault((run.system, run.variant), []).append((run, first_correct, judge_first_answer(run)))
    rows = []
    for (system, variant), members in sorted(by_variant.items()):
        for monitor in members[0][2]:
            judged = [
                (run, first_correct, judgements[monitor])
                for run, first_correct, judgements in members
                if judgements[monitor] is not None
            ]
            if judged:
                rows.append(_coupling(system, variant, monitor, judged, resamples=resamples, seed=seed))
    return tuple(rows)


def _coupling(
    system: str,
    variant: str,
    monitor: str,
    judged: Sequence[tuple[Run, float, float | None]],
    *,
    resamples: int,
    seed: int,
) -> Coupling:
    """Returns the row of one system, variant and monitor.

    Args:
        system: the system.
        variant: the prompt variant.
        monitor: name of the monitor.
        judged: for each run, the run, whether its first answer is right, and how the monitor judges that answer.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    weights = cluster_weights([group_of(run.item) for run, *_ in judged], resamples, seed)
    wrong = np.array([first_correct == 0 for _, first_correct, _ in judged])
    judgements = np.array([judgement for *_, judgement in judged], dtype=np.float64)
    flagged, can_flag = judgements > 0, monitor != DIFFICULTY_MONITOR
    # An evaluation leads to another cycle, so the last cycle's answer counts, whichever answer is returned.
    is_evaluation = monitor == EVALUATION_MONITOR
    ends_right = np.array(
        [attempts(run)[-1].correct if is_evaluation else run.outcome for run, *_ in judged], dtype=np.float64
    )
    fixed = _compare(ends_right, wrong, flagged, weights) if can_flag else (None, None, None)
    broken = _compare(1 - ends_right, ~wrong, flagged, weights) if can_flag else (None, None, None)
    return Coupling(
        system=system,
        variant=variant,
        monitor=monitor,
        n=len(judged),
        failure_auroc=interval(auroc, wrong, judgements, weights) if 0 < wrong.sum() < len(wrong) else None,
        flagged_wrong=_mean_among(flagged, wrong, weights) if can_flag else None,
        flagged_right=_mean_among(flagged, ~wrong, weights) if can_flag else None,
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
    """Returns the mean over the flagged rows of `among`, the mean over its other rows, and their paired difference.

    Args:
        values: the values.
        among: the rows to use.
        flagged: the flagged rows.
        weights: the resamples.
    """
    means = [_mean_among(values, among & side, weights) for side in (flagged, ~flagged)]
    if None in means:
        return means[0], means[1], None
    y, side = values[among], flagged[among]

    def difference(weight: NDArray[np.integer]) -> Floats:
        return _weighted_mean(y, weight * side) - _weighted_mean(y, weight * ~side)

    gap = statistic_interval(difference, weights[:, among])
    return means[0], means[1], _drop_bounds_of_few_groups(gap, min(mean.groups for mean in means if mean))


def _mean_among(values: Floats | RowMask, among: RowMask, weights: NDArray[np.int32]) -> Interval | None:
    """Returns the mean over the rows `among`; None if there are none. Resamples without any of them are left out.

    Args:
        values: the values.
        among: the rows to use.
        weights: the resamples.
    """
    if not among.any():
        return None
    y = np.asarray(values[among], dtype=np.float64)
    mean = statistic_interval(lambda weight: _weighted_mean(y, weight), weights[:, among])
    return _drop_bounds_of_few_groups(mean, mean.groups)


def _drop_bounds_of_few_groups(interval: Interval, groups: int) -> Interval:
    """Returns the interval, for few groups with bounds of nan. Otherwise three right of three would be 1 [1, 1]."""
    return interval if groups >= MIN_INTERVAL_GROUPS else replace(interval, low=float("nan"), high=float("nan"))


def _weighted_mean(values: Floats, weight: NDArray[np.integer]) -> Floats:
    return ratio(weight @ values, weight.sum(axis=1).astype(np.float64))
