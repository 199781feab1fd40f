"""Fit a calibrator on the calibration rows, and choose among several there.

All smooth the labels (the sigmoids by Platt's targets), so that log-odds stay finite where the classes separate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.common.calibrators import (
    PARITY,
    Beta,
    Calibrator,
    Floats,
    Isotonic,
    Platt,
    Temperature,
    beta_design,
    sigmoid,
)
from metaprobe.training.common.roles import Rows, group_folds

__all__ = [
    "FITTERS",
    "PARITY",
    "Beta",
    "Calibrator",
    "Chosen",
    "Compared",
    "Isotonic",
    "Platt",
    "Temperature",
    "choose_calibrator",
    "fit_beta",
    "fit_isotonic",
    "fit_platt",
    "fit_temperature",
    "sigmoid",
]

Labels = NDArray[np.int64]

ISOTONIC_ROWS = 500
"""Calibration rows from which isotonic regression is worth comparing; below, it memorises them."""
STEEPEST = 2.0
"""Probability that an isotonic map may gain over one standard deviation of the scores. A steeper map would turn the
rounding of a float32 score (some 1e-6 of its spread) into more than `PARITY`."""


def fit_platt(score: Floats, y: Labels) -> Platt:
    """Platt scaling (Platt 1999): a logistic regression on one score, with his smoothed targets against overconfidence.

    The slope may come out negative, where higher scores are likelier wrong; no other calibrator turns scores round.
    Raises `RecordError` where only one class is there, or a score is not finite.
    """
    targets = _targets(score, y)
    z, centre, spread = _standardise(score)
    design = np.stack([z, np.ones_like(z)], axis=1)
    slope, intercept = _logistic(design, targets, start=(0.0, _prior(targets)))
    return Platt(slope=slope / spread, intercept=intercept - slope * centre / spread)


def fit_temperature(score: Floats, y: Labels) -> Temperature:
    """Temperature scaling (Guo et al. 2017, arXiv:1706.04599, section 4.2) of log-odds.

    On Platt's targets and above 0, so that neither perfect nor inverted scores end in a sharp sigmoid: scores that go
    the wrong way give a huge temperature, that is 1/2 everywhere. Raises as `fit_platt` does.
    """
    targets = _targets(score, y)
    spread = float(np.sqrt(np.mean(np.square(score)))) or 1.0
    [scale] = _logistic((score / spread)[:, None], targets, start=(1.0,), bounds=[(1e-6, None)])
    return Temperature(spread / scale)


def fit_beta(score: Floats, y: Labels) -> Beta:
    """Beta calibration (Kull et al. 2017, AISTATS, PMLR 54:623-631, Eq. 2), a and b >= 0.

    The paper calibrates probabilities, and scores are none: here p is the sigmoid of the standardised score, so that
    beta contains every rising line of Platt's and bends at the mean score, whatever the scale. (Platt's probability in
    place of p is the other way; where scores say little it hardly varies, and a, b and c cannot be separated.) On
    Platt's targets. a and b are bounded in the fit; the paper drops a negative one and fits again, which ends at the
    same bound. Raises as `fit_platt` does.
    """
    targets = _targets(score, y)
    z, centre, spread = _standardise(score)
    a, b, c = _logistic(
        beta_design(z),
        targets,
        start=(0.0, 0.0, _prior(targets)),
        bounds=[(0, None), (0, None), (None, None)],
    )
    return Beta(centre, spread, a, b, c)


def fit_isotonic(score: Floats, y: Labels) -> Isotonic:
    """Isotonic regression (scikit-learn), centred: each block is one knot at the mean of its scores.

    Centring (Oron and Flournoy 2017, doi:10.1080/19466315.2017.1286256) replaces the steps by lines, which keeps the
    ranking between blocks; blocks joined by a line steeper than `STEEPEST` are pooled. A block of n rows that are all
    wrong gets 1 / (n + 2), or its neighbour's probability if that is less; all right likewise. Raises as `fit_platt`
    does.
    """
    _targets(score, y)
    regression = require("sklearn.isotonic", "fit").IsotonicRegression(out_of_bounds="clip")
    values, block = np.unique(regression.fit(score, y).predict(score), return_inverse=True)
    rows = np.bincount(block).astype(np.float64)
    knots = [*zip(np.bincount(block, weights=score) / rows, values, rows, strict=True)]
    _, _, spread = _standardise(score)
    while len(knots) > 1:
        x, p, n = np.array(knots).T
        # A block of nothing but ties with its neighbour has no width: infinitely steep.
        slopes = np.diff(p) * spread / np.maximum(np.diff(x), 1e-12 * spread)
        worst = int(np.argmax(slopes))
        if slopes[worst] <= STEEPEST:
            break
        pair = slice(worst, worst + 2)
        knots[pair] = [(np.average(x[pair], weights=n[pair]), np.average(p[pair], weights=n[pair]), n[pair].sum())]
    x, p, n = np.array(knots).T
    if len(p) > 1:  # only the first block can be all wrong, and only the last all right
        p = np.clip(p, min(1 / (n[0] + 2), p[1]), max((n[-1] + 1) / (n[-1] + 2), p[-2]))
    # As float32 holds them; knots that it cannot separate are one.
    x, first = np.unique(x.astype(np.float32).astype(np.float64), return_index=True)
    p = p[first]
    if len(x) == 1:
        x, p = np.array([x[0], x[0] + max(spread, abs(x[0]))]), np.repeat(p, 2)
    return Isotonic(x.astype(np.float32).astype(np.float64), p)


FITTERS: Mapping[str, Callable[[Floats, Labels], Calibrator]] = MappingProxyType(
    {
        Platt.name: fit_platt,
        Temperature.name: fit_temperature,
        Beta.name: fit_beta,
        Isotonic.name: fit_isotonic,
    }
)
"""How each calibrator is fitted, by name."""


class Compared(NamedTuple):
    """How one calibrator did on folds it was not fitted on."""

    name: str
    loss: float
    """Mean log loss, in nats."""
    se: float
    """Standard error of this loss less the best one, paired by row and clustered by group; 0 for the best."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The calibrator chosen, fitted on all the rows."""

    calibrator: Calibrator
    compared: tuple[Compared, ...]
    """In the order of the candidates. Empty where there was only one, or too few groups to compare any."""


def choose_calibrator(
    score: Floats,
    y: Labels,
    groups: Sequence[str] | NDArray[np.str_],
    *,
    candidates: Sequence[str] = (Platt.name, Beta.name, Isotonic.name),
    folds: int = 5,
    seed: int = 0,
) -> Chosen:
    """The first of the candidates (simplest first) whose cross-fitted log loss is within a standard error of the best.

    Isotonic regression is compared from `ISOTONIC_ROWS` rows on. Folds are by group; there are fewer where a class is
    in fewer groups, and where no split leaves both classes to fit on, the first candidate is taken without comparison.
    "temperature" is for scores that are log-odds. The same rows in another order give the same choice.

    The standard error is that of the paired difference: the loss's own is mostly how hard the rows are, which all
    candidates share, and would have the simplest win nearly always.
    """
    if unknown := [name for name in candidates if name not in FITTERS]:
        raise RecordError(f"no calibrator is called {', '.join(unknown)}; there are {', '.join(FITTERS)}")
    _targets(score, y)
    offered = [name for name in candidates if name != Isotonic.name or len(y) >= ISOTONIC_ROWS]
    if not offered:
        raise RecordError(
            f"isotonic calibration needs {ISOTONIC_ROWS} rows, got {len(y)}: offer a simpler one beside it"
        )
    order = np.lexsort((y, score, np.asarray(groups)))
    score, y, groups = score[order], y[order], np.asarray(groups)[order]
    parts = _parts(y, groups, folds, seed) if len(offered) > 1 else []
    compared: list[Compared] = []
    if parts:
        losses = np.empty((len(offered), len(y)))
        for row, name in enumerate(offered):
            for rest, part in parts:
                logit = FITTERS[name](score[rest], y[rest]).logit(score[part])
                losses[row, part] = np.logaddexp(0, np.where(y[part] == 1, -logit, logit))
        means = losses.mean(axis=1)
        excess = losses - losses[np.argmin(means)]
        cluster = np.unique(groups, return_inverse=True)[1]
        compared = [
            Compared(name, float(mean), _clustered_se(more, cluster))
            for name, mean, more in zip(offered, means, excess, strict=True)
        ]
    least = min((found.loss for found in compared), default=0.0)
    chosen = next((found.name for found in compared if found.loss - least <= found.se), offered[0])
    return Chosen(FITTERS[chosen](score, y), tuple(compared))


def _parts(y: Labels, groups: NDArray[np.str_], folds: int, seed: int) -> list[tuple[Rows, Rows]]:
    """(rows to fit on, rows to judge on) a fold; empty where a fold would be fitted on one class."""
    folds = min(folds, *(len(np.unique(groups[y == label])) for label in (0, 1)))
    if folds < 2:
        return []
    parts = [*group_folds(np.arange(len(y)), groups.tolist(), y, folds, seed)]
    return parts if all(len(np.unique(y[rest])) == 2 for rest, _ in parts) else []


def _clustered_se(values: Floats, cluster: NDArray[np.int64]) -> float:
    """Standard error of the mean of `values`, dependent within clusters (two at least)."""
    sums = np.bincount(cluster, weights=values - values.mean())
    return float(np.sqrt(len(sums) / (len(sums) - 1) * np.square(sums).sum()) / len(values))


def _targets(score: Floats, y: Labels) -> Floats:
    """Platt's targets, (n+ + 1) / (n+ + 2) for label 1 and 1 / (n- + 2) for label 0, of rows that can be fitted."""
    if np.shape(score) != np.shape(y) or np.ndim(score) != 1:
        raise RecordError(f"calibration needs one score a label, got shapes {np.shape(score)} and {np.shape(y)}")
    if unknown := int((~np.isfinite(score)).sum()):
        raise RecordError(
            f"calibration needs finite scores, got {unknown} of {len(score)} that are not: leave them out"
        )
    positives, negatives = int((y == 1).sum()), int((y == 0).sum())
    if not positives or not negatives or positives + negatives != len(y):
        raise RecordError(
            f"calibration needs both classes, got {positives} of label 1 and {negatives} of label 0 among {len(y)} rows"
        )
    return np.where(y == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))


def _standardise(score: Floats) -> tuple[Floats, float, float]:
    """Standardised scores, their mean and their standard deviation (1 where they do not vary)."""
    centre, spread = float(np.mean(score)), float(np.std(score)) or 1.0
    return (score - centre) / spread, centre, spread


def _prior(targets: Floats) -> float:
    """Log-odds of the mean target."""
    return float(np.log(targets.mean() / (1 - targets.mean())))


def _logistic(
    design: Floats, targets: Floats, *, start: Sequence[float], bounds: Sequence[tuple[Any, Any]] | None = None
) -> tuple[float, ...]:
    """Weights of the logistic regression on soft targets, within bounds."""

    def loss(weights: Floats) -> tuple[float, Floats]:
        logit = design @ weights
        value = np.logaddexp(0, logit) - targets * logit
        return float(value.mean()), design.T @ (sigmoid(logit) - targets) / len(targets)

    optimize = require("scipy.optimize", "fit")
    # L-BFGS-B now and then stops at a bound that it should leave.
    found = optimize.minimize(
        loss, start, jac=True, method="SLSQP", bounds=bounds, options={"ftol": 1e-16, "maxiter": 500}
    )
    return tuple(float(weight) for weight in found.x)
