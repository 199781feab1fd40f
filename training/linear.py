"""Linear probes on hidden states: all penalties of one layer and position from one decomposition."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics import auroc
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.types import FloatArray
from metaprobe.training.roles import Roles, Rows, group_folds

PENALTIES = tuple(10.0**k for k in np.arange(-1, 2.6, 0.5))
"""Ridge penalties, in units of the mean eigenvalue of the standardised hidden states' Gram matrix."""
INNER_FOLDS = 4


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """What one layer and position reached."""

    layer: int
    position: str
    penalty: float
    auroc: float
    """On rows of the learning part that the probe was not fitted on."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearProbe:
    """score = ((h - mean) / scale) @ weights + intercept, for hidden states h of one layer and position."""

    layer: int
    position: str
    penalty: float
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]
    intercept: float
    sweep: tuple[SweepPoint, ...] = ()
    """Every layer and position tried, at its best penalty."""

    def score(self, hidden: FloatArray) -> NDArray[np.float64]:
        """(n, width) -> (n,), higher is likelier to be right; not yet a probability."""
        return ((hidden.astype(np.float64) - self.mean) / self.scale) @ self.weights + self.intercept


def fit_linear_probe(
    activations: Activations,
    y: NDArray[np.int64],
    groups: Sequence[str],
    roles: Roles,
    *,
    positions: Sequence[str],
    seed: int = 0,
) -> LinearProbe:
    """Least-squares probe with the layer, position and penalty that rank held-out rows of the learning part best.

    Row i of `activations` belongs to y[i]. Hundreds of combinations are tried, so a single selection part of some
    hundred rows would mostly select noise: every learning row takes its turn, in `INNER_FOLDS` folds by group.
    For two classes, ridge regression on the label gives the direction of regularised linear discriminant analysis; the
    scale of its score is left to the calibrator.
    """
    if absent := [p for p in positions if p not in activations.positions]:
        raise RecordError(f"positions {absent} were not captured; there are: {', '.join(activations.positions)}")
    pool = roles.learning
    inner = [part for _, part in group_folds(pool, groups, y, INNER_FOLDS, seed + 2)]
    sweep = []
    for position in positions:
        for layer in activations.layers:
            scores = np.empty((len(y), len(PENALTIES)))
            for part, held_out in _held_out(_states(activations, layer, position), y, pool, inner):
                scores[part] = held_out
            found = [float(auroc(y[pool], column)) for column in scores[pool].T]
            best = int(np.argmax(found))
            sweep.append(SweepPoint(layer, position, PENALTIES[best], found[best]))
    chosen = max(sweep, key=lambda point: point.auroc)
    hidden = _states(activations, chosen.layer, chosen.position)[pool]
    mean, scale = _moments(hidden)
    Z, centre = (hidden - mean) / scale, float(y[pool].mean())
    weights = _ridge_path(Z.T @ Z, Z.T @ (y[pool] - centre), (chosen.penalty,))[:, 0]
    return LinearProbe(chosen.layer, chosen.position, chosen.penalty, mean, scale, weights, centre, tuple(sweep))


def _states(activations: Activations, layer: int, position: str) -> NDArray[np.float64]:
    """(n, D). Raises `RecordError` where some are not finite."""
    at = activations.layers.index(layer), activations.positions.index(position)
    hidden = activations.values[:, at[0], at[1]].astype(np.float64)
    if bad := int((~np.isfinite(hidden)).any(axis=1).sum()):
        raise RecordError(
            f"layer {layer}, {position}: {bad} of {len(hidden)} hidden states are not finite: capture again"
        )
    return hidden


def _held_out(
    hidden: NDArray[np.float64], y: NDArray[np.int64], pool: Rows, inner: Sequence[Rows]
) -> Iterator[tuple[Rows, NDArray[np.float64]]]:
    """For each inner fold: its rows, and their scores (rows, penalties) by probes fitted on the other folds.

    Gram matrices add up over rows, so each fold's is taken from that of the pool. Mean and scale are the pool's.
    """
    mean, scale = _moments(hidden[pool])
    Z, target = (hidden - mean) / scale, y - y[pool].mean()
    gram, moment = Z[pool].T @ Z[pool], Z[pool].T @ target[pool]
    for part in inner:
        out = Z[part]
        yield part, out @ _ridge_path(gram - out.T @ out, moment - out.T @ target[part], PENALTIES)


def _moments(hidden: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean, scale = hidden.mean(axis=0), hidden.std(axis=0)
    # A constant unit carries nothing: its standardised value is 0. Rounding leaves it a spread of about 1e-16.
    return mean, np.where(scale > 1e-9 * np.maximum(np.abs(mean), 1.0), scale, 1.0)


def _ridge_path(
    gram: NDArray[np.float64], moment: NDArray[np.float64], penalties: Sequence[float]
) -> NDArray[np.float64]:
    """(D, penalties): (Z'Z + a I)^-1 Z't for every penalty a, from one eigendecomposition of Z'Z."""
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 0)
    # Where all rows are the same (layer 0 at the last prompt token, always the same one), nothing is learned.
    unit = float(values.mean()) or 1.0
    path: NDArray[np.float64] = vectors @ (
        (vectors.T @ moment)[:, None] / (values[:, None] + unit * np.asarray(penalties))
    )
    return path
