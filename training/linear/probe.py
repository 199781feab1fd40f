"""A linear probe on hidden states, fitted: which layers and position it reads, its weights, and what else was tried."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.activations import CONVENTION
from metaprobe.records.types import FloatArray
from metaprobe.training.common.roles import Rows
from metaprobe.training.linear.states import States

Kind = Literal["logistic", "ridge", "mass-mean"]
"""How the direction of a probe is fitted."""
KINDS: tuple[Kind, ...] = get_args(Kind)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """What one layer and position reached at its best penalty."""

    layer: int
    position: str
    penalty: float
    auroc: float
    """Mean over the inner folds, of rows of the learning part that the probe was not fitted on; for a graded target
    Spearman's correlation."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearProbe:
    """score = ((h - mean) / scale) @ weights + intercept; h: the states of its layers at one position, side by side."""

    kind: str
    layers: tuple[int, ...]
    position: str
    penalty: float
    mean: Floats
    """(layers * D,), as scale and weights."""
    scale: Floats
    weights: Floats
    intercept: float
    sweep: tuple[SweepPoint, ...] = ()
    """Every layer and position tried."""
    tried: int = 1
    """Combinations of layer, position and penalty among which it was chosen."""

    def contract(self, target: str) -> dict[str, Any]:
        """What its checkpoint says that it reads and gives."""
        return {
            **({"layer": self.layers[0]} if len(self.layers) == 1 else {"layers": list(self.layers)}),
            "position": self.position,
            "width": len(self.weights) // len(self.layers),
            "convention": CONVENTION,
            "target": target,
        }

    def score(self, states: States, rows: Rows | None = None) -> Floats:
        """(rows,), higher is likelier to be right; not yet a probability."""
        return self.score_of(self.read(states, rows))

    def read(self, states: States, rows: Rows | None = None) -> FloatArray:
        """What it reads of these states: float32 (rows, layers * D)."""
        blocks = [states.read(layer, self.position) for layer in self.layers]
        chosen = [block if rows is None else block[rows] for block in blocks]
        return np.concatenate(chosen, axis=1).astype(np.float32)

    def score_of(self, hidden: FloatArray) -> Floats:
        """(n, layers * D) -> (n,)."""
        return ((hidden.astype(np.float64) - self.mean) / self.scale) @ self.weights + self.intercept
