"""Is a score better than every control on the same answers? The strongest one is named, not the one that was hoped for.

A control is a number that is free (length, mean log-probability, the run's identity) or a simpler predictor. To say
that a score beats *its controls*, it has to beat each of them; the p-values are corrected for their number as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.metrics.bootstrap import Interval, resample_values, resampled_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.ranked import Floats, MetricFunction
from metaprobe.records.extras import require

LEVEL = 0.95


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
    """Two-sided, of no difference; nan where the difference cannot be judged (one group only, or one class)."""
    p_holm: float
    """After Holm's correction over all controls of the comparison."""

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
    """The strongest first."""

    @property
    def strongest(self) -> ControlDifference:
        """The control with the highest value on these answers: nobody could have known it beforehand, so it is the
        hardest one that an honest reader can ask for."""
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
    """(R,); nan where the metric is undefined."""


def against_controls(
    y: ArrayLike,
    score: ArrayLike,
    controls: Mapping[str, ArrayLike],
    weights: NDArray[np.integer],
    *,
    metric: MetricFunction = auroc,
    level: float = LEVEL,
) -> ControlComparison:
    """`score` against each of `controls` (name -> (n,) scores, higher for likelier right), by a bootstrap over groups.

    `weights` (R, n) as `cluster_weights` gives them; the score and all controls share the resamples. `metric` is one of
    which more is better (`auroc`, `brier_skill`, a `StratifiedAuroc`). The p-value takes a difference as normal with
    the standard error of the resamples: a share of 1,000 resamples could not stand a correction for several tests.

    Raises ValueError without controls.
    """
    own = metric_values(metric, y, score, weights)
    of_controls = {name: metric_values(metric, y, values, weights) for name, values in controls.items()}
    return control_comparison(own, of_controls, weights, level=level)


def metric_values(metric: MetricFunction, y: ArrayLike, score: ArrayLike, weights: NDArray[np.integer]) -> MetricValues:
    """`metric(y, score)` with its values on all resamples, for more than one comparison."""
    estimate = float(np.asarray(metric(y, score)))
    return MetricValues(estimate, resample_values(lambda weight: np.asarray(metric(y, score, weight)), weights))


def paired_interval(
    one: MetricValues, other: MetricValues, weights: NDArray[np.integer], *, level: float = LEVEL
) -> Interval:
    """The first less the second, both on these resamples."""
    return resampled_interval(one.estimate - other.estimate, one.resamples - other.resamples, weights, level=level)


def control_comparison(
    own: MetricValues, controls: Mapping[str, MetricValues], weights: NDArray[np.integer], *, level: float = LEVEL
) -> ControlComparison:
    """The same as `against_controls`, of values that are known."""
    if not controls:
        raise ValueError("controls is empty: a gain over nothing is no gain; name at least one control")
    intervals = [paired_interval(own, control, weights, level=level) for control in controls.values()]
    p = [
        _p_value(interval, own.resamples - control.resamples)
        for interval, control in zip(intervals, controls.values(), strict=True)
    ]
    differences = [
        ControlDifference(name, control.estimate, interval, single, float(corrected))
        for (name, control), interval, single, corrected in zip(controls.items(), intervals, p, holm(p), strict=True)
    ]
    differences.sort(key=lambda control: -np.nan_to_num(control.estimate, nan=-np.inf))
    return ControlComparison(own.estimate, tuple(differences))


def _p_value(difference: Interval, resamples: Floats) -> float:
    known = resamples[np.isfinite(resamples)]
    if difference.groups < 2 or known.size < 2:
        return float("nan")
    error = float(known.std(ddof=1))
    if error < 1e-12 and abs(difference.estimate) > 1e-12:
        # The same in every resample, as between a perfect score and a constant: as rare as resamples can show.
        return 1 / (known.size + 1)
    return normal_p(difference.estimate, error if error >= 1e-12 else 0.0)


def normal_p(difference: float, standard_error: float) -> float:
    """Returns the two-sided p of a normally distributed difference from 0.

    It is nan where the standard error is 0 and the difference is not.
    """
    if standard_error == 0:
        return 1.0 if abs(difference) < 1e-12 else float("nan")
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
