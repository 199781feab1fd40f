"""Do two quantities rise together? Rank correlations of a graded target with a score; `y` may be any numbers."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.metrics.ranked import Floats, Value, check_scores, check_weights, ratio
from metaprobe.records.extras import require

FEW_GRADES = 32
"""Distinct values, of the one or the other side, up to which Kendall's tau of all resamples is counted at once."""


def spearman(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Spearman's rank correlation, ties by their mean rank; nan where one side is constant."""
    first, second, weights, single = _check(y, score, weight)
    n = weights.sum(axis=1).astype(np.float64)
    one, other = _midranks(first, weights), _midranks(second, weights)  # (R, n)
    centre = n * ((n + 1) / 2) ** 2
    spread = [(weights * a * b).sum(axis=1) - centre for a, b in ((one, other), (one, one), (other, other))]
    value = ratio(spread[0], np.sqrt(spread[1] * spread[2]))
    return float(value[0]) if single else value


def kendall(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Kendall's tau-b, which allows for ties; nan where one side is constant."""
    first, second, weights, single = _check(y, score, weight)
    if len(np.unique(first)) > len(np.unique(second)):
        first, second = second, first
    by_grade = len(np.unique(first)) <= FEW_GRADES
    value = (_tau_by_grade if by_grade else _tau_one_by_one)(first, second, weights)
    return float(value[0]) if single else value


def _check(
    y: ArrayLike, score: ArrayLike, weight: ArrayLike | None
) -> tuple[Floats, Floats, NDArray[np.integer], bool]:
    first, second = check_scores(y), check_scores(score)
    if first.shape != second.shape:
        raise ValueError(f"y and score must have the same shape; got {first.shape} and {second.shape}")
    weights, single = check_weights(weight, len(first))
    return first, second, weights, single


def _midranks(values: Floats, weights: NDArray[np.integer]) -> Floats:
    """(R, n): the mean rank of each answer among its copies and equals, 1 for the least."""
    counts, pool = _pool(values, weights)
    ranks: Floats = np.cumsum(counts, axis=1) - (counts - 1) / 2
    return ranks[:, pool]


def _pool(values: Floats, weights: NDArray[np.integer]) -> tuple[Floats, NDArray[np.intp]]:
    """(R, G) multiplicities of the distinct values, ascending, and the place (n,) of each answer's value among them."""
    distinct, pool = np.unique(values, return_inverse=True)
    order = np.argsort(pool, kind="stable")
    starts = np.searchsorted(pool[order], np.arange(len(distinct)))
    if not len(distinct):
        return np.zeros((len(weights), 0)), pool
    return np.add.reduceat(weights[:, order], starts, axis=1).astype(np.float64), pool


def _tau_by_grade(grades: Floats, score: Floats, weights: NDArray[np.integer]) -> Floats:
    """(R,): for each grade, the pairs with all lower ones, by how many of these have a lower score."""
    all_scores, _ = _pool(score, weights)
    all_grades, grade = _pool(grades, weights)
    lower = np.zeros_like(all_scores)  # (R, G): answers of lower grades, by score
    concordance = np.zeros(len(weights))
    for number in range(all_grades.shape[1]):
        here = _pool(score, weights * (grade == number))[0]
        concordance += (here * _before(lower) - lower * _before(here)).sum(axis=1)
        lower += here
    pairs = _pairs(weights.sum(axis=1).astype(np.float64))
    untied = [pairs - _pairs(counts).sum(axis=1) for counts in (all_scores, all_grades)]
    return ratio(concordance, np.sqrt(untied[0] * untied[1]))


def _before(counts: Floats) -> Floats:
    """How many have a lower score."""
    below: Floats = np.cumsum(counts, axis=1) - counts
    return below


def _pairs(counts: Floats) -> Floats:
    return counts * (counts - 1) / 2


def _tau_one_by_one(first: Floats, second: Floats, weights: NDArray[np.integer]) -> Floats:
    stats: Any = require("scipy.stats", "fit")
    values: Floats = np.empty(len(weights))
    for number, counts in enumerate(weights):
        a, b = np.repeat(first, counts), np.repeat(second, counts)
        constant = len(a) == 0 or (a == a[0]).all() or (b == b[0]).all()
        values[number] = np.nan if constant else stats.kendalltau(a, b).statistic
    return values
