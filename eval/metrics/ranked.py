"""Metrics of how a score orders answers, and the checked input of every metric.

They measure whether a higher score goes with y = 1 (`auroc`, `auprc`; among answers of one kind `StratifiedAuroc`),
what is gained by answering only if confident (`aurc`, `accuracy_at_coverage`), and whether a graded target rises with a
score (`spearman`, `quadratic_weighted_kappa`). Strictly increasing maps of the scores change only the kappa.

Input is sorted once, with equal scores pooled. Letters: n items, G distinct scores, R weightings (bootstrap resamples).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Value = float | Floats
"""A float for one weighting, an array of shape (R,) for R weightings."""
COVERAGE = 0.8
"""Share of the answers that is given. The answers with the lowest scores are held back."""


class MetricFunction(Protocol):
    """A function of labels, scores and multiplicities."""

    def __call__(self, y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, /) -> Value: ...


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Items pooled by score, highest first, so that nothing can depend on the order within ties."""

    score: Floats
    """The distinct scores (G,), strictly descending."""
    count: Floats
    """Number of items with each score, multiplicities counted, (R, G). Whole numbers, exact in float64."""
    ones: Floats
    """Number of these items with y = 1, (R, G)."""
    weight: Floats
    """Multiplicity of each answer in each resample (R, n), in the order of the scores."""
    single: bool
    """Whether one weighting was given, so that the result is a float."""

    def value(self, values: Floats) -> Value:
        """Returns the values (R,) as an array, or as a float if one weighting was given."""
        return float(values[0]) if self.single else values


def rank_scores(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Ranked:
    """Returns checked and sorted input.

    Args:
        y: labels (n,) of 0 and 1.
        score: scores (n,).
        weight: counts (n,) or (R, n), all 1 by default.
    """
    labels, scores = check_labels(y), checked_scores(score)
    if labels.shape != scores.shape:
        raise ValueError(f"y and score must have the same shape; got {labels.shape} and {scores.shape}")
    weights, single = check_weights(weight, len(labels))
    order = np.argsort(-scores, kind="stable")
    scores, labels = scores[order], labels[order]
    counts: Floats = np.take(weights, order, axis=1).astype(np.float64)  # (R, n)
    starts = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])
    return Ranked(scores[starts], _pool(counts, starts), _pool(counts * labels, starts), counts, single)


def _pool(values: Floats, starts: NDArray[np.intp]) -> Floats:
    """Returns sums over equal scores: (R, n) to (R, G)."""
    return values if len(starts) == values.shape[1] else np.add.reduceat(values, starts, axis=1)


def check_labels(y: ArrayLike) -> Floats:
    """Returns the labels (n,) as float64 of 0 and 1. Raises ValueError for other values and for an empty array."""
    values = np.asarray(y, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"y must be a non-empty one-dimensional array; got shape {values.shape}")
    wrong = np.count_nonzero((values != 0) & (values != 1))
    if wrong:
        raise ValueError(f"y must hold 0 and 1 only; {wrong} of {values.size} entries are something else")
    return values


def checked_scores(score: ArrayLike) -> Floats:
    """Returns the scores (n,) as float64. Raises ValueError for NaN. Infinities rank like any other number."""
    values = np.asarray(score, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"score must be one-dimensional; got shape {values.shape}")
    nan_count = np.count_nonzero(np.isnan(values))
    if nan_count:
        raise ValueError(
            f"{nan_count} of {values.size} scores are NaN: drop these answers, or give them a fallback score"
        )
    return values


def check_weights(weight: ArrayLike | None, n: int) -> tuple[NDArray[np.integer], bool]:
    """Returns the counts (R, n), and whether a single weighting was given."""
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
    """Returns `above / below`, and nan if `below` is 0."""
    value: Floats = np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below != 0)
    return value


def auroc(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns P(score of a random 1 > score of a random 0), ties counted half (Mann-Whitney); nan if a
    class is absent.

    Args:
        y: labels (n,) of 0 and 1.
        score: scores (n,).
        weight: counts (n,) or (R, n), all 1 by default.
    """
    data = rank_scores(y, score, weight)
    zeros = data.count - data.ones
    total_zeros = zeros.sum(axis=1)
    outranked = total_zeros[:, None] - np.cumsum(zeros, axis=1) + 0.5 * zeros  # (R, G) zeros below, ties half
    return data.value(ratio((data.ones * outranked).sum(axis=1), data.ones.sum(axis=1) * total_zeros))


def auprc(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns the average precision: precision at each distinct score, weighted by the recall gained there.

    There is no interpolation, and equal scores enter together, as in scikit-learn. A random score gives the base rate.
    nan if a class is absent.

    Args:
        y: labels (n,) of 0 and 1.
        score: scores (n,).
        weight: counts (n,) or (R, n), all 1 by default.
    """
    data = rank_scores(y, score, weight)
    selected = np.cumsum(data.count, axis=1)
    precision = np.cumsum(data.ones, axis=1) / np.maximum(selected, 1)  # nothing selected yet: no ones, no weight
    positives = data.ones.sum(axis=1)
    value = ratio((data.ones * precision).sum(axis=1), positives)
    return data.value(np.where(positives == data.count.sum(axis=1), np.nan, value))


@dataclass(frozen=True, slots=True, eq=False)
class StratifiedAuroc:
    """A metric: P(score of a 1 > score of a 0), both drawn from one stratum, over all such pairs; ties count half.

    It is the mean of the strata's AUROCs, weighted by their pairs. It is 0.5 for a score that only knows the stratum,
    however well the strata distinguish right from wrong. nan if no stratum has both classes.
    """

    strata: NDArray[np.generic]
    """The stratum of each answer (n,); any labels."""

    def __call__(self, y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, /) -> Value:
        labels, scores = np.asarray(y, dtype=np.float64), np.asarray(score, dtype=np.float64)
        if not labels.shape == scores.shape == self.strata.shape:
            raise ValueError(f"{len(self.strata)} strata for y of shape {labels.shape} and score {scores.shape}")
        weights, single = check_weights(weight, len(labels))
        ordered_pairs: Floats = np.zeros(len(weights))
        pairs: Floats = np.zeros(len(weights))
        for stratum in np.unique(self.strata):
            rows = np.flatnonzero(self.strata == stratum)
            weights_of_rows = weights[:, rows]
            pairs_of_stratum = (weights_of_rows @ labels[rows]) * (weights_of_rows @ (1 - labels[rows]))  # (R,)
            if pairs_of_stratum.any():
                ordered_pairs += pairs_of_stratum * np.nan_to_num(
                    np.asarray(auroc(labels[rows], scores[rows], weights_of_rows))
                )
                pairs += pairs_of_stratum
        value = ratio(ordered_pairs, pairs)
        return float(value[0]) if single else value


def auroc_within(*strata: NDArray[np.generic] | None) -> MetricFunction:
    """Returns the AUROC over pairs of answers that agree in each of these columns (n,); a column of None is ignored.

    Scores of two outer folds come from two models with different scales. So only pairs of one fold are compared (Forman
    and Scholz 2010, doi:10.1145/1882471.1882479). A method that is in each fold a rising map of a number then gets
    exactly that number's AUROC.
    """
    columns = [np.unique(column, return_inverse=True)[1] for column in strata if column is not None]
    if not columns:
        return auroc
    return StratifiedAuroc(np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1))


# Selective answering: the error among the accepted against the share accepted. y = 1 means a correct answer. Equal
# scores are averaged over: the risk is its expectation when ties are broken at random, computed in closed form.


def risk_coverage(y: ArrayLike, score: ArrayLike) -> tuple[Floats, Floats]:
    """Returns the coverages k / n, k = 1 ... n, and the expected share of wrong answers among the k most confident.

    This is the risk-coverage curve of El-Yaniv and Wiener 2010.
    """
    data = rank_scores(y, score)
    count, wrong = data.count[0], (data.count - data.ones)[0]  # (G,)
    n = data.weight.shape[1]
    pool = np.repeat(np.arange(len(count)), count.astype(int))  # (n,): the tie each k falls into
    k = np.arange(1, n + 1)
    into_pool = k - (np.cumsum(count) - count)[pool]
    errors = (np.cumsum(wrong) - wrong)[pool] + (wrong / count)[pool] * into_pool
    return k / n, errors / k


def aurc(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns the area under the risk-coverage curve, the mean of its n risks, in [0, 1]; lower is better.

    Defined for one class too. A random score gives the error rate. Geifman, Uziel and El-Yaniv 2019, arXiv:1805.08206.

    Args:
        y: labels (n,) of 0 and 1.
        score: scores (n,).
        weight: counts (n,) or (R, n), all 1 by default.
    """
    data = rank_scores(y, score, weight)
    return data.value(_mean_risk(data))


def prediction_rejection_ratio(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns how much of the gap between a random and a perfect ranking's AURC this ranking closes: 1 is perfect, 0
    random.

    It is (error rate - AURC) / (error rate - AURC of a perfect ranking), below 0 if it is worse than random, and nan
    for one class. Only accepted answers count, and all shares accepted weigh the same. Malinin and Gales 2021,
    arXiv:2002.07650, replace rejected answers by the truth instead; for right and wrong answers that ratio is 2 AUROC -
    1, and says nothing new.

    Args:
        y: labels (n,) of 0 and 1.
        score: scores (n,).
        weight: counts (n,) or (R, n), all 1 by default.
    """
    data = rank_scores(y, score, weight)
    n = data.count.sum(axis=1)
    chance = ratio(n - data.ones.sum(axis=1), n)
    return data.value(ratio(chance - _mean_risk(data), chance - _least_mean_risk(data)))


def accuracy_at_coverage(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns the share of right answers among the share `COVERAGE` of the answers with the highest scores.

    Equal scores at the edge count in part, as if their order were random.

    Args:
        y: labels (n,) of 0 and 1.
        score: scores (n,).
        weight: counts (n,) or (R, n), all 1 by default.
    """
    data = rank_scores(y, score, weight)
    answers_kept = COVERAGE * data.count.sum(axis=1, keepdims=True)
    before = np.cumsum(data.count, axis=1) - data.count
    part = np.clip(ratio(answers_kept - before, data.count), 0, 1)
    return data.value(ratio((np.nan_to_num(part) * data.ones).sum(axis=1), answers_kept[:, 0]))


def error_fall(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns the relative fall of the error if only the share `COVERAGE` of the answers is given; 0 by chance.

    Args:
        y: labels (n,) of 0 and 1.
        score: scores (n,).
        weight: counts (n,) or (R, n), all 1 by default.
    """
    data = rank_scores(y, score, weight)
    n = data.count.sum(axis=1)
    right = np.asarray(accuracy_at_coverage(y, score, weight)).reshape(-1)
    return data.value(1 - ratio(1 - right, ratio(n - data.ones.sum(axis=1), n)))


def _least_mean_risk(data: Ranked) -> Floats:
    """Returns the AURC of a perfect ranking, (R,)."""
    n, right = data.count.sum(axis=1), data.ones.sum(axis=1)
    # It errs only after its `right` correct answers: the sum of (k - right) / k for k = right + 1 ... n.
    spread = _harmonic(n)[n.astype(int)] - _harmonic(n)[right.astype(int)]
    return ratio(n - right - right * spread, n)


def _mean_risk(data: Ranked) -> Floats:
    """Returns the mean risk, (R,).

    A pool of m ties with e errors, after N answers with E errors, adds the sum over j = 1 ... m of

        (E + e j / m) / (N + j)  =  E h + (e / m) (m - N h),   h = H(N + m) - H(N),   H the harmonic numbers.
    """
    wrong = data.count - data.ones
    reached = np.cumsum(data.count, axis=1)
    before = reached - data.count
    errors_before = np.cumsum(wrong, axis=1) - wrong
    harmonic = _harmonic(reached[:, -1])
    h = harmonic[reached.astype(int)] - harmonic[before.astype(int)]
    share = wrong / np.maximum(data.count, 1)
    return ratio((errors_before * h + wrong - share * before * h).sum(axis=1), reached[:, -1])


def _harmonic(largest: Floats) -> Floats:
    """Returns H(0) ... H(max)."""
    table: Floats = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, int(largest.max()) + 1))])
    return table


# Graded targets: `y` may be any numbers, and for the kappa whole grades of two raters on one scale.


def spearman(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns Spearman's rank correlation, ties by their mean rank; nan if one side is constant.

    Args:
        y: target (n,), any numbers.
        score: scores (n,).
        weight: counts (n,) or (R, n), all 1 by default.
    """
    first, second = checked_scores(y), checked_scores(score)
    if first.shape != second.shape:
        raise ValueError(f"y and score must have the same shape; got {first.shape} and {second.shape}")
    weights, single = check_weights(weight, len(first))
    n = weights.sum(axis=1).astype(np.float64)
    ranks, other = (_midranks(values, weights) for values in (first, second))  # (R, n)
    centre = n * ((n + 1) / 2) ** 2
    spread = [(weights * a * b).sum(axis=1) - centre for a, b in ((ranks, other), (ranks, ranks), (other, other))]
    value = ratio(spread[0], np.sqrt(spread[1] * spread[2]))
    return float(value[0]) if single else value


def _midranks(values: Floats, weights: NDArray[np.integer]) -> Floats:
    """Returns the mean rank (R, n) of each answer among its copies and equals, 1 for the lowest."""
    distinct, pool = np.unique(values, return_inverse=True)
    if not len(distinct):
        return np.zeros((len(weights), 0))
    order = np.argsort(pool, kind="stable")
    starts = np.searchsorted(pool[order], np.arange(len(distinct)))
    counts = np.add.reduceat(weights[:, order], starts, axis=1).astype(np.float64)  # (R, G) of the distinct values
    ranks: Floats = np.cumsum(counts, axis=1) - (counts - 1) / 2
    return ranks[:, pool]


def quadratic_weighted_kappa(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns the agreement beyond chance: 1 if all grades are equal, 0 for a rater who does not look; can be negative.

    It is 1 minus the mean squared difference of the pairs, divided by that of all grades of `y` with all grades of
    `score`: the usual matrices of weights, written out. nan if both raters give one grade only. Cohen 1968,
    doi:10.1037/h0026256.

    Args:
        y: grades of the first rater (n,).
        score: grades of the second rater (n,).
        weight: counts (n,) or (R, n), all 1 by default.
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
    if non_finite_count := np.count_nonzero(~np.isfinite(grades)):
        raise ValueError(
            f"{non_finite_count} of {grades.size} grades are missing: leave these out, and report how many"
        )
    return grades
