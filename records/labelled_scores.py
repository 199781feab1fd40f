"""Answers with a score and a label, and which of them to keep so that all had the same chance to be drawn."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LabelledScores:
    """Answers with a score and a label. Every field has an entry for each, in the order of their times."""

    score: Floats
    """In [0, 1], as the checkpoint gave it."""
    label: Floats
    """1 right, 0 wrong, or the share of several judges."""
    propensity: Floats
    """Probability with which the answer was drawn for a label; NaN where it was not drawn."""
    time: Floats
    """Seconds since 1970 when the answer ended; 0 where it is not known."""
    model: NDArray[np.str_]
    group: NDArray[np.str_]
    """Name of what belongs together, such as answers to one question; in a log each answer is a group."""

    def __len__(self) -> int:
        return len(self.score)

    @property
    def y(self) -> NDArray[np.int64]:
        """Right or wrong, 1 or 0: what most judges said, and right where they were divided."""
        return (self.label >= 0.5).astype(np.int64)

    def rows(self, chosen: NDArray[Any]) -> "LabelledScores":
        """The chosen answers, by index or by mask."""
        return LabelledScores(*(getattr(self, one.name)[chosen] for one in fields(self)))


def thin(propensity: ArrayLike, *, seed: int = 0) -> NDArray[np.bool_]:
    """Returns which of the labelled answers (n,) to keep so that all answers had the same chance to be among them.

    An answer that was drawn with probability p is kept with probability smallest p / p. What promises something of
    answers that are as good as new ones, as thresholds do, can then be used as it is, with fewer labels. Where some
    have a propensity, those without one are left out; where none has, all are kept.
    """
    drawn = np.asarray(propensity, dtype=np.float64)
    known = np.isfinite(drawn)
    if not known.any():
        return np.ones(len(drawn), dtype=np.bool_)
    lots = np.random.default_rng(seed).random(len(drawn))
    kept: NDArray[np.bool_] = known & (lots * np.where(known, drawn, 1.0) < drawn[known].min())
    return kept
