"""Measures whether a stated probability p comes true a share p of the time. Scores here are probabilities in [0, 1].

Bins hold equal mass (except in `ece_equal_width`). All answers of one probability go to the same bin: floor(B * mid /
total), where mid is the mass above them plus half their own. So the order of ties cannot matter, a constant predictor
fills one bin, and few distinct values leave bins empty.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.metrics.bootstrap import (
    Interval,
    find_groups,
    interval,
    metric_values,
    resample_values,
    resampled_interval,
)
from metaprobe.eval.metrics.ranked import Floats, Ranked, Value, rank_scores, ratio

DEFAULT_BINS = 15
"""Number of bins of equal mass."""
EQUAL_WIDTH_BINS = 10
"""Number of bins of equal width, as in most papers: 0 to 0.1, above 0.1 to 0.2, ..."""
TRUE_ERRORS = np.concatenate([np.zeros(1), np.geomspace(0.001, 1.0, 60)])
"""The true errors that `debiased_ece` compares with the measured error."""


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """One point of a reliability diagram."""

    probability: float
    """Mean predicted probability."""
    accuracy: float
    """Share of y = 1."""
    low: float
    """Lower end of Wilson's 95 % interval of the share; answers are taken as independent."""
    high: float
    """Upper end of the same interval."""
    n: int
    """Number of answers."""


@dataclass(frozen=True, slots=True)
class StatedCalibration:
    """Calibration of stated numbers, taken as probabilities of y = 1, over the answers that have one."""

    mean: float
    """Mean stated number."""
    accuracy: float
    """Share of y = 1 among the same answers."""
    ece: Interval
    brier: Interval
    brier_skill: Interval
    """Brier skill score. Below 0, it would have been better to state the share of right answers every time."""
    reliability: tuple[ReliabilityBin, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Binned:
    """Sums over bins, each (R, B)."""

    mass: Floats
    """Number of answers."""
    ones: Floats
    """Number of answers with y = 1."""
    probability: Floats
    """Sum of the probabilities."""

    @property
    def gap(self) -> Floats:
        """Mean probability minus share of ones; 0 in an empty bin, which weighs nothing."""
        return (self.probability - self.ones) / np.maximum(self.mass, 1)


def brier(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns the mean of (p - y)^2, in [0, 1]; lower is better.

    Args:
        y: labels (n,) of 0 and 1.
        score: probabilities (n,).
        weight: counts (n,) or (R, n), all 1 by default.
    """
    data = _rank_probabilities(y, score, weight)
    return data.value(_brier(data))


def brier_skill(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns 1 - Brier / (Brier of always stating the base rate of these answers).

    1 is perfect, 0 is no better than stating the base rate, and nan stands for one class.

    Args:
        y: labels (n,) of 0 and 1.
        score: probabilities (n,).
        weight: counts (n,) or (R, n), all 1 by default.
    """
    data = _rank_probabilities(y, score, weight)
    base = ratio(data.ones.sum(axis=1), data.count.sum(axis=1))
    return data.value(1.0 - ratio(_brier(data), base * (1.0 - base)))


def ece(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, *, bins: int = DEFAULT_BINS) -> Value:
    """Returns the expected calibration error: sum over bins of (n_b / n) |mean p - share of ones|, in [0, 1].

    Naeini et al. 2015, doi:10.1609/aaai.v29i1.9602, over bins of equal mass, whose bias is less (Roelofs et al. 2022,
    arXiv:2012.08668). Noise in the bins still makes it too high, by some 0.03 for 1,000 answers of a calibrated
    predictor. So read it together with the Brier skill score, or with `debiased_ece`, which removes the noise. For its
    interval see `ece_interval`.

    Args:
        y: the labels (n,).
        score: the probabilities (n,).
        weight: multiplicities of the answers.
        bins: number of bins.
    """
    data = _rank_probabilities(y, score, weight)
    return data.value(_weighted_mean_gap(_bin(data, bins)))


def ece_interval(y: ArrayLike, score: ArrayLike, weights: NDArray[np.integer]) -> Interval:
    """Returns `ece` with its 95 % interval over resamples of groups.

    Resampling adds noise to the noise that the bins already have, so most resampled errors lie above the estimate. They
    are moved down until their median is the estimate. The interval says how far the estimate varies, noise included. No
    end is below 0.

    Args:
        y: the labels (n,).
        score: the probabilities (n,).
        weights: the resamples (R, n).
    """
    values = metric_values(ece, y, score, weights)
    moved = np.maximum(values.resamples + values.estimate - np.nanmedian(values.resamples), 0.0)
    return resampled_interval(values.estimate, moved, weights)


def ece_equal_width(
    y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, *, bins: int = EQUAL_WIDTH_BINS
) -> Value:
    """Returns the expected calibration error over bins of equal width, as in Guo et al. 2017 (arXiv:1706.04599).

    Bin b of B is ((b-1)/B, b/B]. Probabilities of 0 go to the first bin.

    Args:
        y: the labels (n,).
        score: the probabilities (n,).
        weight: multiplicities of the answers.
        bins: number of bins.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1; got {bins}")
    data = _rank_probabilities(y, score, weight)
    # An edge such as 0.3 is not a whole number of tenths in binary: a score within rounding of an edge lies at it.
    index = np.clip(np.ceil(np.round(data.score * bins, 9)).astype(int) - 1, 0, bins - 1)
    return data.value(_weighted_mean_gap(_sum_over_bins(data, np.tile(index, (len(data.count), 1)), bins)))


def _weighted_mean_gap(binned: _Binned) -> Floats:
    """Returns the mean of the bins' absolute gaps, weighted by mass, (R,)."""
    return ratio((binned.mass * np.abs(binned.gap)).sum(axis=1), binned.mass.sum(axis=1))


def debiased_ece(y: ArrayLike, score: ArrayLike, weights: NDArray[np.integer]) -> Interval:
    """Returns the expected calibration error without the bins' noise, with its 95 % interval.

    `ece` of calibrated scores is never 0, because the noise of the bins adds up. The noise of each bin is simulated by
    resampling whole groups. The estimate is the true error, the same in all bins, that together with this noise gives
    the measured `ece` on average. The ends are the true errors for which an `ece` as large, or as small, has a chance
    of 2.5 %.

    The estimate is negative if the measured `ece` is smaller than the average of noise alone. Its size is then the
    estimate for an excess of the same size. So the estimates for calibrated scores average 0.

    Args:
        y: the labels (n,).
        score: the probabilities (n,).
        weights: the resamples, as `cluster_weights` returns them.
    """
    data = _rank_probabilities(y, score, None)
    scores = np.asarray(score, dtype=np.float64)
    bin_of_answer = _equal_mass_bins(data, DEFAULT_BINS)[0][np.searchsorted(-data.score, -scores)]
    share, gap, noise = _noisy_gaps(scores - np.asarray(y), bin_of_answer, weights)
    sign = np.where(gap < 0, -1.0, 1.0)
    simulated_errors = np.array([np.abs(error * sign + noise) @ share for error in TRUE_ERRORS])  # (errors, R)
    curves = simulated_errors.mean(axis=1), *np.quantile(simulated_errors, [0.975, 0.025], axis=1)
    estimate, low, high = (_true_error(float(share @ np.abs(gap)), curve) for curve in curves)
    return Interval(estimate, min(low, estimate), max(high, estimate), len(scores), len(find_groups(weights)[0]))


def _noisy_gaps(
    differences: Floats, bin_of_answer: NDArray[np.int_], weights: NDArray[np.integer]
) -> tuple[Floats, Floats, Floats]:
    """Returns share of answers (bins,), mean gap (bins,) and noise of the gap (R, bins) of the bins that hold answers.

    Args:
        differences: probability minus label of each answer.
        bin_of_answer: the bin of each answer.
        weights: the resamples (R, n).
    """
    first, member = find_groups(weights)
    used_bins, bin_place = np.unique(bin_of_answer, return_inverse=True)

    def summed(values: Floats) -> Floats:
        """Returns sums (groups, bins)."""
        total = np.bincount(member * len(used_bins) + bin_place, values, len(first) * len(used_bins))
        return np.asarray(total.reshape(len(first), len(used_bins)), dtype=np.float64)

    count = summed(np.ones(len(differences)))
    mass, groups_in_bin = count.sum(axis=0), (count > 0).sum(axis=0)
    gap = summed(differences).sum(axis=0) / mass
    deviation = summed(differences - gap[bin_place])

    def noise(weight: NDArray[np.integer]) -> Floats:
        group_counts = weight[:, first].astype(np.float64)
        return np.asarray(np.nan_to_num(ratio(group_counts @ deviation, group_counts @ count)))

    # Resampling a bin of k groups shows (k - 1) / k of the variance.
    drawn_noise = resample_values(noise, weights) * np.sqrt(groups_in_bin / np.maximum(groups_in_bin - 1, 1))
    return mass / mass.sum(), gap, drawn_noise - drawn_noise.mean(axis=0)


def _true_error(measured_error: float, curve: Floats) -> float:
    """Returns the true error at which `curve`, one measure for each of `TRUE_ERRORS`, reaches the measured error."""
    rising = np.maximum.accumulate(curve)
    beyond = measured_error - rising[0]
    return float(np.sign(beyond) * np.interp(rising[0] + abs(beyond), rising, TRUE_ERRORS))


def reliability_table(y: ArrayLike, score: ArrayLike, *, min_distance: float = 0.0) -> tuple[ReliabilityBin, ...]:
    """Returns the non-empty bins of a reliability diagram, lowest probability first.

    Bins whose mean probabilities are nearer than `min_distance` are merged, from the lowest on. Otherwise a few stated
    numbers, each calibrated a little differently in every fold, would fill many bins at one place.

    Args:
        y: the labels (n,).
        score: the probabilities (n,).
        min_distance: least distance of two bins.
    """
    binned = _bin(_rank_probabilities(y, score, None), DEFAULT_BINS)
    merged_sums: list[NDArray[np.float64]] = []  # number of answers, number of right ones, sum of probabilities
    for bin_sums in np.array([binned.mass[0], binned.ones[0], binned.probability[0]]).T[::-1]:
        if (
            merged_sums
            and bin_sums[0]
            and bin_sums[2] / bin_sums[0] - merged_sums[-1][2] / merged_sums[-1][0] < min_distance
        ):
            merged_sums[-1] = merged_sums[-1] + bin_sums
        elif bin_sums[0]:
            merged_sums.append(bin_sums)
    shares = [Interval.of_share(ones / n, n) for n, ones, _ in merged_sums]
    return tuple(
        ReliabilityBin(float(total / n), float(share.estimate), share.low, share.high, int(n))
        for (n, _, total), share in zip(merged_sums, shares, strict=True)
    )


def stated_calibration(
    y: ArrayLike, stated: ArrayLike, weights: NDArray[np.integer], *, min_distance: float = 0.0
) -> StatedCalibration | None:
    """Returns how far numbers in [0, 1] come true as they were stated; None if no number was stated.

    Args:
        y: the labels (n,).
        stated: the numbers (n,); NaN if nothing was stated.
        weights: (R, n) from `cluster_weights`.
        min_distance: as in `reliability_table`.
    """
    numbers, labels = np.asarray(stated, dtype=np.float64), np.asarray(y)
    finite = np.isfinite(numbers)
    if not finite.any():
        return None
    numbers, labels, weights = numbers[finite], labels[finite], weights[:, finite]
    return StatedCalibration(
        mean=float(numbers.mean()),
        accuracy=float(labels.mean()),
        ece=ece_interval(labels, numbers, weights),
        brier=interval(brier, labels, numbers, weights),
        brier_skill=interval(brier_skill, labels, numbers, weights),
        reliability=reliability_table(labels, numbers, min_distance=min_distance),
    )


def _rank_probabilities(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None) -> Ranked:
    """Returns checked and sorted input. Raises ValueError if a score is no probability."""
    data = rank_scores(y, score, weight)
    if data.score[0] > 1 or data.score[-1] < 0:
        raise ValueError(
            f"probabilities in [0, 1] are needed; got {data.score[-1]:g} to {data.score[0]:g}: calibrate first"
        )
    return data


def _brier(data: Ranked) -> Floats:
    """Returns the Brier score, (R,)."""
    p = data.score
    return ratio((data.ones * (1 - p) ** 2 + (data.count - data.ones) * p**2).sum(axis=1), data.count.sum(axis=1))


def _bin(data: Ranked, bins: int) -> _Binned:
    return _sum_over_bins(data, _equal_mass_bins(data, bins), bins)


def _equal_mass_bins(data: Ranked, bins: int) -> NDArray[np.int_]:
    """Returns the bin of each distinct score, (R, G)."""
    if bins < 1:
        raise ValueError(f"bins must be at least 1; got {bins}")
    total_counts = np.maximum(data.count.sum(axis=1, keepdims=True), 1)
    # Masses are counted in halves. So only the division is inexact, and equal masses fall exactly on edges of bins.
    twice_mid = 2 * np.cumsum(data.count, axis=1) - data.count
    index: NDArray[np.int_] = np.minimum((bins * twice_mid // (2 * total_counts)).astype(int), bins - 1)
    return index


def _sum_over_bins(data: Ranked, index: NDArray[np.int_], bins: int) -> _Binned:
    """Returns sums over the bins in which `index` (R, G) puts each distinct score.

    Args:
        data: the sorted scores.
        index: the bin of each distinct score (R, G).
        bins: number of bins.
    """
    rows = len(data.count)
    flat = (index + bins * np.arange(rows)[:, None]).ravel()

    def summed(values: Floats) -> Floats:
        total: Floats = np.bincount(flat, values.ravel(), rows * bins).astype(np.float64, copy=False)
        return total.reshape(rows, bins)

    return _Binned(summed(data.count), summed(data.ones), summed(data.count * data.score))
