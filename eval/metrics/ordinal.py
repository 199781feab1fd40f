"""Do two quantities rise together? The rank correlation of a graded target with a score; `y` may be any numbers."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.metrics.ranked import Floats, Value, check_scores, check_weights, ratio


def spearman(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Spearman's rank correlation, ties by their mean rank; nan where one side is constant."""
    first, second = check_scores(y), check_scores(score)
    if first.shape != second.shape:
        raise ValueError(f"y and score must have the same shape; got {first.shape} and {second.shape}")
    weights, single = check_weights(weight, len(first))
    n = weights.sum(axis=1).astype(np.float64)
    one, other = _midranks(first, weights), _midranks(second, weights)  # (R, n)
    centre = n * ((n + 1) / 2) ** 2
    spread = [(weights * a * b).sum(axis=1) - centre for a, b in ((one, other), (one, one), (other, other))]
    value = ratio(spread[0], np.sqrt(spread[1] * spread[2]))
    return float(value[0]) if single else value


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
