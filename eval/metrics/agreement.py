"""Do two raters give the same grades? `y` and `score` are whole grades on one scale, a human's and a judge's."""

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.eval.metrics.ranked import Floats, Value, check_weights, ratio


def quadratic_weighted_kappa(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Agreement beyond chance, 1 for none but equal grades, 0 for a rater who does not look; can be negative.

    1 minus the mean squared difference of the pairs, over that of all grades of `y` with all grades of `score`: the
    usual matrices of weights, written out. nan where both give one grade only. Cohen 1968, doi:10.1037/h0026256.
    """
    first, second = _grades(y), _grades(score)
    if first.shape != second.shape:
        raise ValueError(f"y and score must have the same shape; got {first.shape} and {second.shape}")
    weights, single = check_weights(weight, len(first))
    counts = weights.astype(np.float64)  # (R, n)
    observed = counts @ (first - second) ** 2
    squares = counts @ (first**2 + second**2)
    expected = squares - 2 * ratio((counts @ first) * (counts @ second), counts.sum(axis=1))
    kappa: Floats = 1 - ratio(observed, expected)
    return float(kappa[0]) if single else kappa


def _grades(values: ArrayLike) -> Floats:
    grades = np.asarray(values, dtype=np.float64)
    if grades.ndim != 1 or grades.size == 0:
        raise ValueError(f"grades must be a non-empty one-dimensional array; got shape {grades.shape}")
    if missing := np.count_nonzero(~np.isfinite(grades)):
        raise ValueError(f"{missing} of {grades.size} grades are missing: leave these out, and report how many")
    return grades
