"""Is one AUROC higher than another on the same independent answers? DeLong's test, in the time of a few sorts."""

from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.eval.metrics.ranked import Floats, check_labels, check_scores
from metaprobe.records.extras import require


@dataclass(frozen=True, slots=True)
class DeLongTest:
    """Two AUROCs of the same answers."""

    difference: float
    """The first minus the second."""
    standard_error: float
    p: float
    """Two-sided, of no difference; 1 for two rankings without any difference, nan where the variance is 0 otherwise."""


def delong_covariance(y: ArrayLike, scores: ArrayLike) -> tuple[Floats, Floats]:
    """AUROCs (k,) of k scores (k, n) on the same answers, and their covariance (k, k).

    DeLong, DeLong and Clarke-Pearson 1988, doi:10.2307/2531595, from midranks as in Sun and Xu 2014,
    doi:10.1109/LSP.2014.2337313. Answers must be independent; neither the scores' own uncertainty from being fitted is
    in it. Raises ValueError unless both classes have at least two answers.
    """
    labels = check_labels(y)
    rows = np.stack([check_scores(row) for row in np.atleast_2d(np.asarray(scores, dtype=np.float64))])  # (k, n)
    if rows.shape[1] != len(labels):
        raise ValueError(f"scores must have shape (k, {len(labels)}), one column an answer; got {rows.shape}")
    ones = labels == 1
    m, n = int(ones.sum()), int((~ones).sum())
    if min(m, n) < 2:
        raise ValueError(f"a variance needs two answers of each class; got {m} with y = 1 and {n} with y = 0")
    ranked: Any = require("scipy.stats", "fit").rankdata
    among_all = ranked(rows, axis=1)
    # How each right answer stands among the wrong ones, and the other way round: (k, m) and (k, n), in [0, 1].
    above = (among_all[:, ones] - ranked(rows[:, ones], axis=1)) / n
    below = 1 - (among_all[:, ~ones] - ranked(rows[:, ~ones], axis=1)) / m
    covariance = np.atleast_2d(np.cov(above)) / m + np.atleast_2d(np.cov(below)) / n
    return np.asarray(above.mean(axis=1), dtype=np.float64), np.asarray(covariance, dtype=np.float64)


def delong_test(y: ArrayLike, score_a: ArrayLike, score_b: ArrayLike) -> DeLongTest:
    """AUROC of the first score minus that of the second, with a two-sided p. See `delong_covariance`."""
    (a, b), covariance = delong_covariance(y, np.stack([np.asarray(score_a), np.asarray(score_b)]))
    # The difference of two equal rankings is rounding error.
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    error = sqrt(variance) if variance > 1e-12 else 0.0
    return DeLongTest(float(a - b), error, normal_p(float(a - b), error))


def normal_p(difference: float, standard_error: float) -> float:
    """Returns the two-sided p of a normally distributed difference from 0.

    It is nan where the standard error is 0 and the difference is not.
    """
    if standard_error == 0:
        return 1.0 if abs(difference) < 1e-12 else nan
    return float(2 * require("scipy.stats", "fit").norm.sf(abs(difference) / standard_error))


def holm(p: ArrayLike) -> Floats:
    """p-values (k,) after Holm's step-down correction for k tests, in the order given; nan stays out and nan.

    Holm 1979, Scandinavian Journal of Statistics 6: 65-70.
    """
    values = np.asarray(p, dtype=np.float64)
    adjusted = np.full(values.shape, np.nan)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values[known], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
