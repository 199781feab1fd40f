"""Linear probes on hidden states: all penalties of one layer and position from one decomposition."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics import auroc
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.types import FloatArray
from metaprobe.training.roles import Roles

PENALTIES = tuple(10.0**k for k in range(-2, 4))
"""Ridge penalties, in units of the mean eigenvalue of the standardised features' covariance."""


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
    sweep: tuple["SweepPoint", ...] = ()
    """AUROC on the selection rows of every layer and position tried, at the best penalty."""

    def score(self, hidden: FloatArray) -> NDArray[np.float64]:
        """(n, width) -> (n,), higher is likelier to be right; not yet a probability."""
        return ((hidden.astype(np.float64) - self.mean) / self.scale) @ self.weights + self.intercept


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """What one layer and position reached."""

    layer: int
    position: str
    penalty: float
    auroc: float
    """On the selection rows."""


def fit_linear_probe(
    activations: Activations, y: NDArray[np.int64], roles: Roles, *, positions: Sequence[str]
) -> LinearProbe:
    """Least-squares probe with the layer, position and penalty that rank the selection rows best.

    Row i of `activations` belongs to y[i]. For two classes, ridge regression on the label gives the direction of
    regularised linear discriminant analysis; the scale of its score is left to the calibrator.
    """
    if absent := [p for p in positions if p not in activations.positions]:
        raise RecordError(f"positions {absent} were not captured; there are: {', '.join(activations.positions)}")
    best: tuple[float, LinearProbe] | None = None
    sweep = []
    for position in positions:
        at = activations.positions.index(position)
        for index, layer in enumerate(activations.layers):
            hidden = activations.values[:, index, at].astype(np.float64)  # (n, D)
            if bad := int((~np.isfinite(hidden)).any(axis=1).sum()):
                raise RecordError(
                    f"layer {layer}, {position}: {bad} of {len(hidden)} hidden states are not finite: capture again"
                )
            probes = _ridge_path(hidden[roles.train], y[roles.train], layer=layer, position=position)
            scores = [float(auroc(y[roles.selection], probe.score(hidden[roles.selection]))) for probe in probes]
            top = int(np.argmax(scores))
            sweep.append(SweepPoint(layer, position, probes[top].penalty, scores[top]))
            if best is None or scores[top] > best[0]:
                best = (scores[top], probes[top])
    assert best is not None
    chosen = best[1]
    return LinearProbe(
        chosen.layer,
        chosen.position,
        chosen.penalty,
        chosen.mean,
        chosen.scale,
        chosen.weights,
        chosen.intercept,
        tuple(sweep),
    )


def _ridge_path(X: NDArray[np.float64], y: NDArray[np.int64], *, layer: int, position: str) -> list[LinearProbe]:
    """One probe a penalty. With Z = U S V', the ridge solution is V diag(s / (s^2 + a)) U' (y - mean)."""
    mean, scale = X.mean(axis=0), X.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)  # a constant unit carries nothing: its standardised value is 0
    U, s, Vt = np.linalg.svd((X - mean) / scale, full_matrices=False)
    target = U.T @ (y - y.mean())
    # Where all rows are the same (layer 0 at the last prompt token, which is always the same one), nothing is learned.
    unit = float((s**2).mean()) or 1.0
    return [
        LinearProbe(
            layer,
            position,
            penalty,
            mean,
            scale,
            Vt.T @ (s / (s**2 + penalty * unit) * target),
            float(y.mean()),
        )
        for penalty in PENALTIES
    ]
