"""Holds answers with a score and a label, and selects labelled answers so that all had an equal chance to be drawn."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LabelledScores:
    """Answers with a score and a label. Every field has one entry for each answer, in the order of time."""

    score: Floats
    """Score of the checkpoint, in [0, 1]."""
    label: Floats
    """1 right, 0 wrong, or the share of several judges who said right."""
    propensity: Floats
    """Probability with which the answer was drawn for a label; NaN if it was not drawn."""
    time: Floats
    """Seconds since 1970 when the answer ended; 0 if the time is not known."""
    model: NDArray[np.str_]
    group: NDArray[np.str_]
    """Group of the answer, such as its question. In a log each answer is a group."""

    def __len__(self) -> int:
        return len(self.score)

    @property
    def y(self) -> NDArray[np.int64]:
        """Labels as 1 (right) or 0 (wrong): the vote of most judges, and right if they were divided."""
        return (self.label >= 0.5).astype(np.int64)

    def rows(self, selection: NDArray[Any]) -> "LabelledScores":
        """Returns the chosen answers, by index or by mask."""
        return LabelledScores(*(getattr(self, field.name)[selection] for field in fields(self)))


def equal_chance_mask(propensity: ArrayLike, *, seed: int = 0) -> NDArray[np.bool_]:
    """Returns a mask (n,) of the labelled answers to keep, so that all answers had an equal chance to be kept.

    An answer that was drawn with probability p is kept with probability (smallest p) / p. The kept answers are like new
    ones, as a promise about new answers, such as a threshold, needs. The cost is that fewer labels remain. If some
    answers have a propensity, answers without one are left out. If none has one, all are kept.
    """
    propensities = np.asarray(propensity, dtype=np.float64)
    has_propensity = np.isfinite(propensities)
    if not has_propensity.any():
        return np.ones(len(propensities), dtype=np.bool_)
    uniform = np.random.default_rng(seed).random(len(propensities))
    keep: NDArray[np.bool_] = has_propensity & (
        uniform * np.where(has_propensity, propensities, 1.0) < propensities[has_propensity].min()
    )
    return keep
