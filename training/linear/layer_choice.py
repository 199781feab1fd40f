"""The choice of layer, position and penalty of a probe: all are tried in inner folds, and one is chosen.

What is chosen is chosen on rows of the learning part that the probe was not fitted on; test rows are never read.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.ranked import MetricFunction
from metaprobe.training.common.roles import Roles, group_folds
from metaprobe.training.linear.fit_block import fit_linear, score_held_out
from metaprobe.training.linear.probe import Kind, LinearProbe, SweepPoint
from metaprobe.training.linear.states import States, check_captured

PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Ridge penalties, in units of the mean eigenvalue of the standardised states' covariance, which is 1."""
INNER_FOLDS = 5

Floats = NDArray[np.float64]


def fit_linear_probe(
    states: States,
    y: NDArray[np.int64] | Floats,
    groups: Sequence[str],
    roles: Roles,
    *,
    positions: Sequence[str],
    kind: Kind = "logistic",
    penalties: Sequence[float] = PENALTIES,
    metric: MetricFunction = auroc,
    seed: int = 0,
) -> LinearProbe:
    """The probe of the layer, position and penalty chosen by `one_standard_error`, fitted on all learning rows.

    Hundreds of combinations are tried, so a single selection part of some hundred rows would mostly select noise: every
    learning row takes its turn, in `INNER_FOLDS` folds by group. Raises `RecordError` where a position is missing.
    """
    check_captured(states, (), positions)
    penalties = (0.0,) if kind == "mass-mean" else tuple(penalties)
    pool, target = roles.learning, y.astype(np.float64)
    fold = np.empty(len(y), dtype=np.intp)
    balanced = (target > np.median(target[pool])).astype(np.int64) if metric is not auroc else y.astype(np.int64)
    for number, (_, part) in enumerate(group_folds(pool, groups, balanced, INNER_FOLDS, seed + 2)):
        fold[part] = number
    places = [(layer, position) for position in positions for layer in states.layers]
    found = np.empty((len(places), INNER_FOLDS, len(penalties)))
    for i, (layer, position) in enumerate(places):
        scores = score_held_out(states.read(layer, position)[pool], target[pool], fold[pool], kind, penalties)
        for f, p in np.ndindex(found.shape[1:]):
            here = fold[pool] == f
            found[i, f, p] = metric(y[pool][here], scores[here, p])
    # A fold of one class, or a score that never varies, says nothing.
    found = np.where(np.isnan(found), 0.5 if metric is auroc else 0.0, found)
    place, p = one_standard_error(found)
    means = found.mean(axis=1)
    best = means.argmax(axis=1)
    layer, position = places[place]
    fitted = fit_linear(states.read(layer, position)[pool], target[pool], kind, penalties[p : p + 1])
    return LinearProbe(
        kind=kind,
        layers=(layer,),
        position=position,
        penalty=penalties[p],
        mean=fitted.mean,
        scale=fitted.scale,
        weights=fitted.weights[:, 0],
        intercept=float(fitted.intercept[0]),
        sweep=tuple(
            SweepPoint(layer, position, penalties[best[i]], float(means[i, best[i]]))
            for i, (layer, position) in enumerate(places)
        ),
        tried=found.shape[0] * found.shape[2],
    )


def one_standard_error(found: Floats) -> tuple[int, int]:
    """(place, penalty) of the simplest choice that the folds cannot distinguish from the best one.

    `found` (places, folds, penalties): held-out AUROC, places in the order of their layers, penalties ascending. The
    standard error is that of the paired difference from the best over the folds, for what makes one fold easier than
    another is shared. Simplest: the strongest penalty, then the best mean (Breiman et al. 1984, section 3.4.3, for the
    rule; the choice of what is simple is ours, for one layer is no simpler than another).
    """
    means = found.mean(axis=1)
    best = np.unravel_index(int(means.argmax()), means.shape)
    behind = found[best[0], :, best[1]][None, :, None] - found
    error = behind.std(axis=1, ddof=1) / np.sqrt(found.shape[1])
    near = behind.mean(axis=1) <= error  # the best itself has 0 <= 0
    penalty = int(np.flatnonzero(near.any(axis=0)).max())
    return int(np.where(near[:, penalty], means[:, penalty], -np.inf).argmax()), penalty
