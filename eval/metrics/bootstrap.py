"""Intervals from resampling groups, and comparisons of a score with its controls on the same resamples.

Answers that share a template or a fact are not independent, but their groups are.

The ends of an interval are quantiles of the resampled values. Their levels are corrected twice. Plain levels of 2.5 %
and 97.5 % cover too little if there are few groups: an AUROC of 0.92 among 60 groups, 12 of them with a right answer,
is covered in only 89 % of the cases.

- Skewed values: the levels are moved by the acceleration of BCa (Efron 1987, doi:10.1080/01621459.1987.10478410). Its
  correction of bias is left out: for metrics without much bias it adds the noise of counting resamples, and paired
  differences were covered less often with it.
- Few groups: Student's t replaces the normal ("expanded" intervals, Hesterberg 2015, arXiv:1411.5279). Its degrees of
  freedom follow from how much each group moves the metric (Satterthwaite): few groups that decide give few degrees.

In simulations of 30 and 60 groups, AUROC and differences of two AUROCs are covered in 94 % to 97 % of the cases. Means,
Brier skills and more groups were not simulated in this final form.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.metrics.ranked import Floats, MetricFunction, auroc
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require

NORMAL = NormalDist()
MAX_SKEW = 0.25
"""Largest acceleration for which the formula of the bias-corrected interval is trusted."""
RESAMPLES_AT_A_TIME = 32
"""Number of resamples that are turned into floats at a time, so that they stay in the processor's cache."""
MIN_DEGREES_OF_FREEDOM = 4.0
"""Fewest degrees of freedom for a t quantile. With fewer, the quantile lies outside the resampled values."""
BLOCK_MULTIPLICITIES, MAX_MULTIPLICITIES = 2**18, 2**21
"""Number of multiplicities that a metric gets at a time, and the largest number. A temporary array of 2 MB stays in the
processor's cache, which takes half the time of 16 MB. A metric sorts the answers each time, so it gets at least
`RESAMPLES_AT_A_TIME` resamples. `MAX_MULTIPLICITIES` keeps temporaries in the tens of megabytes for any n.
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its bootstrap interval."""

    estimate: float
    low: float
    high: float
    n: int
    """Number of answers."""
    groups: int
    """Number of independent groups of the answers."""
    level: float = 0.95

    @staticmethod
    def of_mean(values: Iterable[tuple[float, object]], *, resamples: int = 1000, seed: int = 0) -> "Interval | None":
        """Returns the mean of pairs (value, group), resampled by group; None if there are none.

        Args:
            values: pairs (value, group).
            resamples: number of resamples.
            seed: seed of the draws.
        """
        numbers, groups = zip(*values, strict=True) if (values := list(values)) else ((), ())
        return mean_interval(numbers, cluster_weights(groups, resamples, seed)) if numbers else None

    @staticmethod
    def of_share(share: float, n: float) -> "Interval":
        """Returns Wilson's 95 % interval of a share of n independent answers (Wilson 1927, doi:10.2307/2276774)."""
        z = NORMAL.inv_cdf(0.975)
        centre = (share + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
        low, high = max(float(centre - half), 0.0), min(float(centre + half), 1.0)
        return Interval(share, low, high, round(n), round(n))

    @staticmethod
    def of_metric(
        metric: MetricFunction, rows: Iterable[tuple[float, float, object]], *, resamples: int = 1000, seed: int = 0
    ) -> "Interval | None":
        """Returns a metric of rows (label, score, group), resampled by group; None if there are none.

        Args:
            metric: the metric.
            rows: rows (label, score, group).
            resamples: number of resamples.
            seed: seed of the draws.
        """
        y, scores, groups = zip(*rows, strict=True) if (rows := list(rows)) else ((), (), ())
        return interval(metric, y, scores, cluster_weights(groups, resamples, seed)) if y else None


def cluster_weights(
    groups: Sequence[object] | NDArray[np.generic], resamples: int = 1000, seed: int = 0
) -> NDArray[np.int32]:
    """Returns how often each answer occurs in each resample, (resamples, n).

    A resample draws whole groups with replacement, as many as there are. The number of answers varies between resamples
    if groups differ in size. Use the same weights for everything that is to be compared.

    Args:
        groups: the group of each answer.
        resamples: number of resamples.
        seed: seed of the draws.
    """
    if len(groups) == 0:
        raise ValueError("groups is empty: one group label an answer is needed")
    number_of_group: dict[object, int] = {}
    member = np.array([number_of_group.setdefault(group, len(number_of_group)) for group in groups])  # (n,)
    draw = _cached_draw if len(number_of_group) * resamples <= MAX_MULTIPLICITIES else _draw
    return np.take(draw(len(number_of_group), resamples, seed), member, axis=1)


def _draw(group_count: int, resamples: int, seed: int) -> NDArray[np.int32]:
    """Returns how often each group is drawn, (resamples, groups).

    Args:
        group_count: number of groups.
        resamples: number of resamples.
        seed: seed of the draws.
    """
    group_weights = np.random.default_rng(seed).multinomial(
        group_count, np.full(group_count, 1 / group_count), size=resamples
    )
    return group_weights.astype(np.int32)


_cached_draw = lru_cache(maxsize=4)(_draw)  # a training asks for the same draw again and again; at most 8 MB each


def interval(metric: MetricFunction, y: ArrayLike, score: ArrayLike, weights: NDArray[np.integer]) -> Interval:
    """Returns `metric(y, score)` with its 95 % interval over the resamples of `cluster_weights`.

    Resamples in which the metric is undefined (one class only) are left out; the bounds are nan if all are.

    Args:
        metric: the metric.
        y: the labels (n,).
        score: the scores (n,).
        weights: the resamples (R, n).
    """
    values = metric_values(metric, y, score, weights)
    return resampled_interval(values.estimate, values.resamples, weights)


def paired_difference(
    metric: MetricFunction, y: ArrayLike, score_a: ArrayLike, score_b: ArrayLike, weights: NDArray[np.integer]
) -> Interval:
    """Returns `metric(y, score_a) - metric(y, score_b)` with its interval, both on the same resamples.

    Args:
        metric: the metric.
        y: the labels (n,).
        score_a: the first scores (n,).
        score_b: the scores to subtract.
        weights: the resamples (R, n).
    """
    first, other = (metric_values(metric, y, score, weights) for score in (score_a, score_b))
    return paired_interval(first, other, weights)


def mean_interval(
    values: ArrayLike, weights: NDArray[np.integer], row_weights: NDArray[np.float64] | None = None
) -> Interval:
    """Returns the mean of `values`, such as an accuracy or the tokens of a question. Give differences for a paired
    mean.

    Args:
        values: (n,) finite numbers.
        weights: how often each value occurs in each resample, (R, n), as `cluster_weights` gives.
        row_weights: weight of each value in the mean, (n,) above 0, such as 1 / propensity; 1 by default.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if non_finite_count := np.count_nonzero(~np.isfinite(numbers)):
        raise RecordError(f"{non_finite_count} of {numbers.size} values are not finite: leave these answers out")
    if row_weights is None:
        return statistic_interval(lambda weight: weight @ numbers / weight.sum(axis=1), weights)
    weight_of_value = np.asarray(row_weights, dtype=np.float64)
    return statistic_interval(lambda weight: weight @ (weight_of_value * numbers) / (weight @ weight_of_value), weights)


def statistic_interval(statistic: Callable[[NDArray[np.integer]], Floats], weights: NDArray[np.integer]) -> Interval:
    """Returns the 95 % interval of a function that maps multiplicities (R, n) to values (R,). Values of nan are left
    out.
    """
    values = resample_values(statistic, weights)
    estimate = statistic(np.ones((1, weights.shape[1]), dtype=np.int32))[0]
    return resampled_interval(float(estimate), values, weights)


def resample_values(statistic: Callable[[NDArray[np.integer]], Floats], weights: NDArray[np.integer]) -> Floats:
    """Returns the values (R,) of a function of multiplicities, computed in blocks."""
    if weights.ndim != 2 or weights.size == 0:
        raise ValueError(f"weights must have shape (resamples, n), as `cluster_weights` gives; got {weights.shape}")
    resamples, n = weights.shape
    rows = max(1, BLOCK_MULTIPLICITIES // n, min(RESAMPLES_AT_A_TIME, MAX_MULTIPLICITIES // n))
    return np.concatenate([statistic(weights[start : start + rows]) for start in range(0, resamples, rows)])


def resampled_interval(
    estimate: float, values: Floats, weights: NDArray[np.integer], *, level: float = 0.95
) -> Interval:
    """Returns an estimate with the interval of its values (R,) on these resamples.

    Values that are not finite are left out. Both ends are the estimate if all values are the same or there is one
    group, and nan if no value is finite.

    Args:
        estimate: the estimate.
        values: its values (R,).
        weights: the resamples (R, n).
        level: level of the interval.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level}")
    groups, finite_rows = find_groups(weights)[0], np.isfinite(values)
    low, high = np.nan, np.nan
    if finite_rows.any():
        finite = (values, weights) if finite_rows.all() else (values[finite_rows], weights[finite_rows])
        low, high = np.quantile(finite[0], _corrected_levels(*finite, groups, level))
    return Interval(estimate, float(low), float(high), weights.shape[1], len(groups), level)


def find_groups(weights: NDArray[np.integer]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the first answer of each group (groups,), and the index of each answer's group (n,).

    Members of one group always occur together, and two groups do not agree in 64 resamples by chance. Each column is
    identified by one number, an exact sum of its counts times fixed random numbers.
    """
    first_weights = weights[:64].astype(np.int64)
    factors = np.random.default_rng(0).integers(1, 2**62, size=len(first_weights))
    _, first, member = np.unique(factors @ first_weights, return_index=True, return_inverse=True)
    return first, member


def _corrected_levels(
    values: Floats, weights: NDArray[np.integer], first_answers: NDArray[np.intp], level: float
) -> tuple[float, float]:
    """Returns the two levels whose quantiles of the values (R,) are the ends of the interval.

    Args:
        values: the values (R,).
        weights: the resamples (R, n).
        first_answers: the first answer of each group.
        level: level of the interval.
    """
    # How far one more copy of its group moves the metric, for each answer and then for each group.
    centred, pulls = (values - values.mean()) / len(values), np.zeros(weights.shape[1])
    for start in range(0, len(values), RESAMPLES_AT_A_TIME):
        pulls += centred[start : start + RESAMPLES_AT_A_TIME] @ weights[start : start + RESAMPLES_AT_A_TIME].astype(
            np.float64
        )
    group_count, pull = len(first_answers), pulls[first_answers]
    noise = float(values.var()) / len(values)  # variance of each pull, because R is finite
    spread = float(np.square(pull).sum()) - group_count * noise
    if group_count < 2 or not spread > 1e-12 * float(np.square(values).mean()):
        return (1 - level) / 2, (1 + level) / 2
    # Acceleration from the pulls' third moment, degrees of freedom from their fourth.
    skew = float(np.clip((pull**3).sum() / 6 / spread**1.5, -MAX_SKEW, MAX_SKEW))
    fourth = float((pull**4).sum()) - 6 * noise * spread - 3 * group_count * noise**2
    kurtosis = group_count * fourth / spread**2
    degrees = float(
        np.clip(
            2 * group_count / (kurtosis - 1) if kurtosis > 1 else group_count - 1,
            min(MIN_DEGREES_OF_FREEDOM, group_count - 1),
            group_count - 1,
        )
    )
    t_end = _t_quantile((1 + level) / 2, degrees) * ((degrees + 1) / degrees) ** 0.5
    low, high = (NORMAL.cdf(side * t_end / max(1 - skew * side * t_end, 1e-9)) for side in (-1, 1))
    return low, high


def _t_quantile(share: float, degrees: float) -> float:
    """Returns Student's t quantile by its expansion around the normal's (Abramowitz and Stegun 26.7.5), from 4 degrees
    on.
    """
    z = NORMAL.inv_cdf(share)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


# Comparisons of a score with every control on the same answers.
#
# A control is a free number (length, mean log-probability, the run's identity) or a simpler predictor. A score beats
# *its controls* only if it beats each of them. The p-values are corrected for the number of controls.


@dataclass(frozen=True, slots=True)
class ControlDifference:
    """A score against one control, on the same answers and the same resamples."""

    name: str
    """Name of the control."""
    estimate: float
    """The control's own value of the metric."""
    difference: Interval
    """The score's value minus the control's, paired, with its interval before any correction."""
    p: float
    """Two-sided p-value of no difference; nan if the difference cannot be judged (only one group, or one class)."""
    p_holm: float
    """The p-value after Holm's correction over all controls of the comparison."""

    @property
    def beaten(self) -> bool:
        """Whether the score is above this control after the correction, and its interval lies above 0."""
        clear = bool(self.p_holm <= 1 - self.difference.level)  # nan decides nothing
        return clear and self.difference.low > 0


@dataclass(frozen=True, slots=True)
class ControlComparison:
    """A score against all its controls."""

    estimate: float
    """The score's own value of the metric."""
    controls: tuple[ControlDifference, ...]
    """The controls, the strongest first."""

    @property
    def strongest(self) -> ControlDifference:
        """The control with the highest value on these answers. It is chosen afterwards, so it is the hardest one."""
        return self.controls[0]

    @property
    def beaten(self) -> bool:
        """Whether the score is shown to be better than every single control."""
        return all(control.beaten for control in self.controls)

    @property
    def standing(self) -> tuple[ControlDifference, ...]:
        """The controls that the score is not shown to beat, the strongest first."""
        return tuple(control for control in self.controls if not control.beaten)


@dataclass(frozen=True, slots=True, eq=False)
class MetricValues:
    """A metric of one score, on the answers as they are and on resamples of them."""

    estimate: float
    resamples: Floats
    """Values on the resamples, (R,); nan if the metric is undefined."""


def against_controls(
    y: ArrayLike,
    score: ArrayLike,
    controls: Mapping[str, ArrayLike],
    weights: NDArray[np.integer],
    *,
    metric: MetricFunction = auroc,
) -> ControlComparison:
    """Compares `score` with each of `controls` by a bootstrap over groups.

    The p-value takes a difference as normal with the standard error of the resamples: a share of 1,000 resamples is too
    coarse to be corrected for several tests. Raises ValueError without controls.

    Args:
        y: the labels (n,).
        score: the scores (n,).
        controls: maps names to scores (n,); higher means likelier right.
        weights: (R, n) as `cluster_weights` returns them; the score and all controls share the resamples.
        metric: a metric of which more is better (`auroc`, `brier_skill`, a `StratifiedAuroc`).
    """
    score_values = metric_values(metric, y, score, weights)
    of_controls = {name: metric_values(metric, y, values, weights) for name, values in controls.items()}
    return control_comparison(score_values, of_controls, weights)


def metric_values(metric: MetricFunction, y: ArrayLike, score: ArrayLike, weights: NDArray[np.integer]) -> MetricValues:
    """Returns `metric(y, score)` and its values on all resamples, which several comparisons can share.

    Args:
        metric: the metric.
        y: the labels (n,).
        score: the scores (n,).
        weights: the resamples (R, n).
    """
    estimate = float(np.asarray(metric(y, score)))
    return MetricValues(estimate, resample_values(lambda weight: np.asarray(metric(y, score, weight)), weights))


def paired_interval(first: MetricValues, other: MetricValues, weights: NDArray[np.integer]) -> Interval:
    """Returns the first minus the second with its interval, both on these resamples.

    Args:
        first: values of the first score.
        other: values of the second score.
        weights: the resamples (R, n).
    """
    return resampled_interval(first.estimate - other.estimate, first.resamples - other.resamples, weights)


def control_comparison(
    method_values: MetricValues, controls: Mapping[str, MetricValues], weights: NDArray[np.integer]
) -> ControlComparison:
    """Compares a score with its controls like `against_controls`, from metric values that are already computed.

    Args:
        method_values: values of the score.
        controls: values of the controls by name.
        weights: the resamples (R, n).
    """
    if not controls:
        raise ValueError("controls is empty: a gain over nothing is no gain; name at least one control")
    intervals = [paired_interval(method_values, control, weights) for control in controls.values()]
    p_values = [
        _p_value(interval, method_values.resamples - control.resamples)
        for interval, control in zip(intervals, controls.values(), strict=True)
    ]
    differences = [
        ControlDifference(name, control.estimate, interval, p, float(p_holm))
        for (name, control), interval, p, p_holm in zip(
            controls.items(), intervals, p_values, holm(p_values), strict=True
        )
    ]
    differences.sort(key=lambda control: -np.nan_to_num(control.estimate, nan=-np.inf))
    return ControlComparison(method_values.estimate, tuple(differences))


def _p_value(difference: Interval, resamples: Floats) -> float:
    """Returns the two-sided p-value of a difference from its values on resamples; nan if it cannot be judged."""
    finite = resamples[np.isfinite(resamples)]
    if difference.groups < 2 or finite.size < 2:
        return float("nan")
    error = float(finite.std(ddof=1))
    if error < 1e-12 and abs(difference.estimate) > 1e-12:
        # Every resample gives the same difference, as between a perfect score and a constant. The p-value is then the
        # smallest that this number of resamples can show.
        return 1 / (finite.size + 1)
    return normal_p(difference.estimate, error if error >= 1e-12 else 0.0)


def normal_p(difference: float, standard_error: float) -> float:
    """Returns the two-sided p of a normally distributed difference from 0.

    It is nan if the standard error is 0 and the difference is not.
    """
    if standard_error == 0:
        return 1.0 if abs(difference) < 1e-12 else float("nan")
    return float(2 * require("scipy.stats", "fit").norm.sf(abs(difference) / standard_error))


def holm(p: ArrayLike) -> Floats:
    """Returns p-values (k,) after Holm's step-down correction for k tests, in the same order; nan stays nan and is not
    counted.

    Holm 1979, Scandinavian Journal of Statistics 6: 65-70.
    """
    values = np.asarray(p, dtype=np.float64)
    adjusted = np.full(values.shape, np.nan)
    valid = np.flatnonzero(~np.isnan(values))
    order = valid[np.argsort(values[valid], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted
