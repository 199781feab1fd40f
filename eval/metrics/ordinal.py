"""Do two quantities rise together? Rank correlations of a graded target with a score."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.eval.metrics.ranked import Floats, Value, checked_scores, checked_weights
from metaprobe.records.extras import require


def spearman(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Spearman's rank correlation, ties by their mean rank; nan where one side is constant. `y` may be any number."""
    return _over_weights("spearmanr", y, score, weight)


def kendall(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Kendall's tau-b, which allows for ties; nan where one side is constant."""
    return _over_weights("kendalltau", y, score, weight)


def _over_weights(name: str, y: ArrayLike, score: ArrayLike, weight: ArrayLike | None) -> Value:
    stats: Any = require("scipy.stats", "train")
    first, second = checked_scores(y), checked_scores(score)
    if first.shape != second.shape:
        raise ValueError(f"y and score must have the same shape; got {first.shape} and {second.shape}")
    weights, single = checked_weights(weight, len(first))
    values: Floats = np.empty(len(weights))
    for number, counts in enumerate(weights):
        a, b = np.repeat(first, counts), np.repeat(second, counts)
        constant = len(a) == 0 or (a == a[0]).all() or (b == b[0]).all()
        values[number] = np.nan if constant else getattr(stats, name)(a, b).statistic
    return float(values[0]) if single else values
