"""Checked input of every metric, sorted once, with equal scores pooled.

Letters: n items, G distinct scores, R weightings (bootstrap resamples).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Value = float | Floats
"""A float for one weighting, an array of shape (R,) for R of them."""


class MetricFunction(Protocol):
    """A function of labels, scores and multiplicities."""

    def __call__(self, y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, /) -> Value: ...


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Items pooled by score, highest first: nothing read from it can depend on the order within ties."""

    score: Floats
    """(G,), strictly descending."""
    count: Floats
    """(R, G): how many items have this score, multiplicities counted. Whole numbers, exact in float64."""
    ones: Floats
    """(R, G): how many of them have y = 1."""
    weight: Floats
    """(R, n): the multiplicities in the order of the scores."""
    single: bool
    """Whether one weighting was asked for, so that the result is a float."""

    def value(self, values: Floats) -> Value:
        """(R,) values in the form that was asked for."""
        return float(values[0]) if self.single else values


def rank_scores(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Ranked:
    """Checked and sorted input. `y` (n,) of 0 and 1; `score` (n,); `weight` (n,) or (R, n) counts, all 1 by default."""
    labels, scores = check_labels(y), check_scores(score)
    if labels.shape != scores.shape:
        raise ValueError(f"y and score must have the same shape; got {labels.shape} and {scores.shape}")
    weights, single = check_weights(weight, len(labels))
    order = np.argsort(-scores, kind="stable")
    scores, labels = scores[order], labels[order]
    counts: Floats = np.take(weights, order, axis=1).astype(np.float64)  # (R, n)
    starts = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])
    return Ranked(scores[starts], _pool(counts, starts), _pool(counts * labels, starts), counts, single)


def _pool(values: Floats, starts: NDArray[np.intp]) -> Floats:
    """Sums over equal scores: (R, n) to (R, G)."""
    return values if len(starts) == values.shape[1] else np.add.reduceat(values, starts, axis=1)


def check_labels(y: ArrayLike) -> Floats:
    """(n,) float64 of 0 and 1. Raises ValueError for anything else, an empty array included."""
    values = np.asarray(y, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"y must be a non-empty one-dimensional array; got shape {values.shape}")
    wrong = np.count_nonzero((values != 0) & (values != 1))
    if wrong:
        raise ValueError(f"y must hold 0 and 1 only; {wrong} of {values.size} entries are something else")
    return values


def check_scores(score: ArrayLike) -> Floats:
    """(n,) float64 without NaN. Infinities rank like any other number."""
    values = np.asarray(score, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"score must be one-dimensional; got shape {values.shape}")
    missing = np.count_nonzero(np.isnan(values))
    if missing:
        raise ValueError(
            f"{missing} of {values.size} scores are NaN: drop these answers, or give them a fallback score"
        )
    return values


def check_weights(weight: ArrayLike | None, n: int) -> tuple[NDArray[np.integer], bool]:
    """(R, n) counts, and whether a single weighting was meant."""
    if weight is None:
        return np.ones((1, n), dtype=np.int32), True
    values = np.asarray(weight)
    if values.dtype.kind not in "iub":
        raise ValueError(f"weight holds multiplicities and must be of an integer type; got {values.dtype}")
    if values.ndim not in (1, 2) or values.shape[-1] != n:
        raise ValueError(f"weight must have shape ({n},) or (R, {n}); got {values.shape}")
    if values.size and values.min() < 0:
        raise ValueError(f"weight must not be negative; the smallest is {values.min()}")
    return np.atleast_2d(values), values.ndim == 1


def ratio(above: Floats, below: Floats) -> Floats:
    """`above / below`, and nan where `below` is 0."""
    value: Floats = np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below != 0)
    return value
