"""Ridge and mass-mean probes from sums over rows: one pass over the states learns every fold, one more scores them.

Gram matrices add up, so each fold's is the whole one minus that of the rows it leaves out; nothing larger than (D, D)
a fold is kept, whatever the number of answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Moments:
    """Sums over rows: their number, the states, the targets, and products of both."""

    n: float
    x: Floats
    """(D,)."""
    xx: Floats
    """(D, D)."""
    y: float
    xy: Floats
    """(D,): also the sum of the states of right answers, for y of 0 and 1."""

    @classmethod
    def none(cls, width: int) -> "Moments":
        return cls(0.0, np.zeros(width), np.zeros((width, width)), 0.0, np.zeros(width))

    def add(self, X: Floats, y: Floats) -> None:
        """Rows X (m, D) with targets y (m,)."""
        self.n += len(X)
        self.x += X.sum(axis=0)
        self.xx += X.T @ X
        self.y += float(y.sum())
        self.xy += X.T @ y

    @classmethod
    def total(cls, parts: "Sequence[Moments]") -> "Moments":
        """The sums over the rows of all parts."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.sum([getattr(part, name) for part in parts], axis=0) for name in names})

    def without(self, other: "Moments") -> "Moments":
        """The sums over the rows that are not in `other`."""
        return Moments(self.n - other.n, self.x - other.x, self.xx - other.xx, self.y - other.y, self.xy - other.xy)

    def spread(self) -> tuple[Floats, Floats]:
        """(mean, scale) of each unit; a constant unit has scale infinity, so that it weighs nothing."""
        mean = self.x / self.n
        scale = np.sqrt(np.maximum(np.diagonal(self.xx) / self.n - mean**2, 0))
        # What is left of a constant unit by cancellation is about 1e-8 of its size.
        return mean, np.where(scale > 1e-6 * np.abs(mean), scale, np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """score = ((x - mean) / scale) @ weights + intercept, for P penalties."""

    mean: Floats
    """(D,)."""
    scale: Floats
    """(D,), positive; 1 for a unit that is constant, which weighs nothing."""
    weights: Floats
    """(D, P)."""
    intercept: Floats
    """(P,)."""

    def score(self, X: Floats) -> Floats:
        """(n, D) -> (n, P)."""
        scores: Floats = ((X - self.mean) / self.scale) @ self.weights + self.intercept
        return scores


def ridge(moments: Moments, penalties: Sequence[float]) -> Direction:
    """Least squares on standardised states, min (1/N) sum (w z + b - y)^2 / 2 + (alpha / 2) |w|^2, for each alpha.

    For labels 0 and 1 the direction is that of regularised linear discriminant analysis.
    """
    linalg: Any = require("scipy.linalg", "fit")
    mean, scale = moments.spread()
    level = moments.y / moments.n
    gram = (moments.xx / moments.n - np.outer(mean, mean)) / scale[:, None] / scale
    target = (moments.xy / moments.n - mean * level) / scale
    weights = np.stack(
        [
            linalg.cho_solve(linalg.cho_factor(gram + (alpha + 1e-10) * np.eye(len(mean))), target)
            for alpha in penalties
        ],
        axis=1,
    )
    return direction(weights, mean, scale, np.full(len(penalties), level))


def mass_mean(moments: Moments) -> Direction:
    """Mean of the right answers' states minus that of the wrong ones' (Marks & Tegmark 2023, arXiv:2310.06824).

    On standardised states, so that units of large spread do not decide alone. P is 1: there is no penalty.
    """
    mean, scale = moments.spread()
    right = moments.xy / moments.y
    wrong = (moments.x - moments.xy) / (moments.n - moments.y)
    return direction(((right - wrong) / scale)[:, None], mean, scale, np.array([moments.y / moments.n]))


def direction(weights: Floats, mean: Floats, scale: Floats, intercept: Floats) -> Direction:
    """With scale 1 and weight 0 where the scale is infinite."""
    constant = np.isinf(scale)
    return Direction(mean, np.where(constant, 1.0, scale), np.where(constant[:, None], 0.0, weights), intercept)
