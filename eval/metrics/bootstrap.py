"""Intervals from resampling groups: answers that share a template or a fact are not independent, their groups are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.metrics.ranked import Floats, MetricFunction

BLOCK = 2**21
"""Multiplicities given to a metric at a time: its temporaries stay in the tens of megabytes for any n."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its percentile bootstrap interval."""

    estimate: float
    low: float
    high: float
    n: int
    """Answers."""
    groups: int
    """Independent groups they fall into."""
    level: float = 0.95


def cluster_weights(
    groups: Sequence[object] | NDArray[np.generic], resamples: int = 1000, seed: int = 0
) -> NDArray[np.int32]:
    """(resamples, n): how often each answer occurs when whole groups are drawn with replacement, as many as there are.

    The number of answers varies between resamples where groups differ in size. Use the same weights for everything
    that is to be compared.
    """
    if len(groups) == 0:
        raise ValueError("groups is empty: one group label an answer is needed")
    number: dict[object, int] = {}
    member = np.array([number.setdefault(group, len(number)) for group in groups])  # (n,)
    drawn = np.random.default_rng(seed).multinomial(len(number), np.full(len(number), 1 / len(number)), size=resamples)
    return np.take(drawn.astype(np.int32), member, axis=1)


def interval(
    metric: MetricFunction, y: ArrayLike, score: ArrayLike, weights: NDArray[np.integer], *, level: float = 0.95
) -> Interval:
    """`metric(y, score)` with its interval over the resamples of `cluster_weights`.

    Resamples where the metric is undefined (one class only) are left out; nan bounds where all are.
    """
    return statistic_interval(lambda weight: np.asarray(metric(y, score, weight)), weights, level=level)


def paired_difference(
    metric: MetricFunction,
    y: ArrayLike,
    score_a: ArrayLike,
    score_b: ArrayLike,
    weights: NDArray[np.integer],
    *,
    level: float = 0.95,
) -> Interval:
    """`metric(y, score_a) - metric(y, score_b)`, both on the same resamples."""
    return statistic_interval(
        lambda weight: np.asarray(metric(y, score_a, weight)) - np.asarray(metric(y, score_b, weight)),
        weights,
        level=level,
    )


def mean_interval(values: ArrayLike, weights: NDArray[np.integer], *, level: float = 0.95) -> Interval:
    """The mean of `values` (n,), for example an accuracy or tokens a question. Give a difference for a paired one."""
    numbers = np.asarray(values, dtype=np.float64)
    missing = np.count_nonzero(~np.isfinite(numbers))
    if missing:
        raise ValueError(f"{missing} of {numbers.size} values are not finite: leave these answers out")
    return statistic_interval(lambda weight: weight @ numbers / weight.sum(axis=1), weights, level=level)


def statistic_interval(
    statistic: Callable[[NDArray[np.integer]], Floats], weights: NDArray[np.integer], *, level: float = 0.95
) -> Interval:
    """Of any function that takes multiplicities (R, n) to R values; resamples for which it is nan are left out."""
    values = resample_values(statistic, weights)
    estimate = statistic(np.ones((1, weights.shape[1]), dtype=np.int32))[0]
    return percentile_interval(float(estimate), values, weights, level=level)


def resample_values(statistic: Callable[[NDArray[np.integer]], Floats], weights: NDArray[np.integer]) -> Floats:
    """(R,) values of a function of multiplicities, computed in blocks."""
    if weights.ndim != 2 or weights.size == 0:
        raise ValueError(f"weights must have shape (resamples, n), as `cluster_weights` gives; got {weights.shape}")
    resamples, n = weights.shape
    rows = max(1, BLOCK // n)
    return np.concatenate([statistic(weights[at : at + rows]) for at in range(0, resamples, rows)])


def percentile_interval(
    estimate: float, values: Floats, weights: NDArray[np.integer], *, level: float = 0.95
) -> Interval:
    """An estimate with the interval of its values (R,) on these resamples; those that are not finite are left out."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level}")
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2]) if known.size else (np.nan, np.nan)
    return Interval(estimate, float(low), float(high), weights.shape[1], _count_groups(weights), level)


def _count_groups(weights: NDArray[np.integer]) -> int:
    """Distinct columns: members of one group always occur together, and two groups do not agree 64 times by chance."""
    return int(np.unique(weights[:64], axis=1).shape[1])
