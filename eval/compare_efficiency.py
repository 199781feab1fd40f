"""Metacognitive efficiency of every method, where the task is a choice between two."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import RESAMPLES, Judged
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, resampled_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.ranked import Floats
from metaprobe.eval.metrics.type2 import equal_grades, fit_meta_d, response_counts, sensitivity
from metaprobe.eval.results import Efficiency, TwoChoice
from metaprobe.eval.table import AnswerTable
from metaprobe.records.correctness import is_correct
from metaprobe.records.types import Item


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
    """What was asked and answered, from the item of each answer, the answer itself, and whether it was right (n,).

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
        return (
            f"the answers are not clearly better than guessing: d' {d_prime.estimate:.2f} "
            f"[{d_prime.low:.2f}, {d_prime.high:.2f}]"
        )
    return ""
