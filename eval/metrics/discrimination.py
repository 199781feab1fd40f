"""Does a higher score go with y = 1? Rank metrics; any strictly increasing map of the scores leaves them unchanged."""

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.eval.metrics.ranked import Value, ranked, ratio


def auroc(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """P(score of a random 1 > score of a random 0), ties counted half (Mann-Whitney). nan if a class is absent."""
    data = ranked(y, score, weight)
    zeros = data.count - data.ones
    total_zeros = zeros.sum(axis=1)
    outranked = total_zeros[:, None] - np.cumsum(zeros, axis=1) + 0.5 * zeros  # (R, G) zeros below, ties half
    return data.value(ratio((data.ones * outranked).sum(axis=1), data.ones.sum(axis=1) * total_zeros))


def auprc(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Average precision: precision at each distinct score, weighted by the recall gained there.

    No interpolation, and equal scores enter together, as in scikit-learn. A random score gives the base rate.
    nan if a class is absent.
    """
    data = ranked(y, score, weight)
    selected = np.cumsum(data.count, axis=1)
    precision = np.cumsum(data.ones, axis=1) / np.maximum(selected, 1)  # nothing selected yet: no ones, no weight
    positives = data.ones.sum(axis=1)
    value = ratio((data.ones * precision).sum(axis=1), positives)
    return data.value(np.where(positives == data.count.sum(axis=1), np.nan, value))
