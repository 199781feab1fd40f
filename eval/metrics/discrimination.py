"""Does a higher score go with y = 1? Rank metrics; any strictly increasing map of the scores leaves them unchanged."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.eval.metrics.ranked import Floats, Value, rank_scores, ratio


@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """Receiver operating characteristic: what each threshold accepts, the strictest first, from nothing to all."""

    wrong: Floats
    """(G + 1,): share of the y = 0 that are accepted; nan where there are none."""
    right: Floats
    """(G + 1,): share of the y = 1 that are accepted; nan where there are none."""


def roc_curve(y: ArrayLike, score: ArrayLike) -> Roc:
    """Returns the operating points of every distinct score, and that of accepting nothing.

    Straight lines between them average over the order of equal scores; the area below is `auroc`.
    """
    data = rank_scores(y, score)
    ones, zeros = data.ones[0], (data.count - data.ones)[0]  # (G,)
    wrong, right = (ratio(np.cumsum(part), np.full(len(part), part.sum())) for part in (zeros, ones))
    start = np.zeros(1)
    return Roc(np.concatenate([start, wrong]), np.concatenate([start, right]))


def auroc(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """P(score of a random 1 > score of a random 0), ties counted half (Mann-Whitney). nan if a class is absent."""
    data = rank_scores(y, score, weight)
    zeros = data.count - data.ones
    total_zeros = zeros.sum(axis=1)
    outranked = total_zeros[:, None] - np.cumsum(zeros, axis=1) + 0.5 * zeros  # (R, G) zeros below, ties half
    return data.value(ratio((data.ones * outranked).sum(axis=1), data.ones.sum(axis=1) * total_zeros))


def auprc(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Average precision: precision at each distinct score, weighted by the recall gained there.

    No interpolation, and equal scores enter together, as in scikit-learn. A random score gives the base rate.
    nan if a class is absent.
    """
    data = rank_scores(y, score, weight)
    selected = np.cumsum(data.count, axis=1)
    precision = np.cumsum(data.ones, axis=1) / np.maximum(selected, 1)  # nothing selected yet: no ones, no weight
    positives = data.ones.sum(axis=1)
    value = ratio((data.ones * precision).sum(axis=1), positives)
    return data.value(np.where(positives == data.count.sum(axis=1), np.nan, value))
