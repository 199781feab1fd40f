"""Whether an answer lies where those of the training lay, for checkpoints of version 0.1 that say so."""

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_OUTSIDE = 0.25
"""Share of features outside their training range beyond which nothing is in support, however few were trained on."""


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """Where the training data lie: a response is in support if few of its features leave their training range."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    """Per feature, the range that holds 99 % of the training rows (NaN where a feature was never defined)."""
    allowed: float
    """Share of defined features that may lie outside: what 99 % of the calibration rows keep to."""
    _low: NDArray[np.float32] = field(init=False, repr=False)
    _high: NDArray[np.float32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        never = np.isnan(self.low)  # defined in training: then every value is outside
        object.__setattr__(self, "_low", np.where(never, np.float32(np.inf), self.low))
        object.__setattr__(self, "_high", np.where(never, np.float32(np.inf), self.high))

    @classmethod
    def fit(cls, train: NDArray[np.float32], calibration: NDArray[np.float32]) -> "Support":
        """From features of the training rows (n, d) and the calibration rows (m, d)."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # all-NaN columns stay NaN, and are meant to
            low, high = np.nanquantile(train, [0.005, 0.995], axis=0).astype(np.float32)
        kept_to = float(np.quantile(cls(low, high, 1.0).outside(calibration), 0.99))
        return cls(low, high, min(kept_to, MOST_OUTSIDE))

    @classmethod
    def from_manifest(cls, support: dict[str, Any], *, width: int) -> "Support | NoSupport":
        """From the manifest's `support` object, of `width` features; one that knows nothing where it is empty."""
        if not support:
            return NoSupport()
        columns = [
            np.array([np.nan if value is None else value for value in support[name]], dtype=np.float32)
            for name in ("low", "high")
        ]
        if any(column.shape != (width,) for column in columns):
            raise ValueError(f"support has {[column.shape for column in columns]}; expected twice ({width},)")
        return cls(columns[0], columns[1], float(support["allowed"]))

    def to_manifest(self) -> dict[str, Any]:
        """As JSON: NaN is null."""
        as_json = [[None if np.isnan(v) else float(v) for v in column] for column in (self.low, self.high)]
        return {"low": as_json[0], "high": as_json[1], "allowed": self.allowed}

    def outside(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Share of each row's defined features that lie outside their training range, (n,)."""
        defined = ~np.isnan(X)
        # A feature that training never saw defined (a window longer than any training answer) is outside.
        beyond = defined & ~((self.low <= X) & (self.high >= X))
        share: NDArray[np.float64] = beyond.sum(axis=1) / np.maximum(defined.sum(axis=1), 1)
        return share

    def contains(self, X: NDArray[np.float32], *, decisive: int | None = None) -> list[bool | None]:
        """Whether each row is like the training data: few features outside, and the decisive one inside."""
        inside = self.outside(X) <= self.allowed
        if decisive is not None:
            inside &= ~((X[:, decisive] < self._low[decisive]) | (X[:, decisive] > self._high[decisive]))
        return [bool(value) for value in inside]

    def contains_one(self, row: NDArray[np.float32], *, decisive: int | None = None) -> bool | None:
        """As `contains`, for the features of one response, (d,)."""
        below, above = row < self._low, row > self._high
        if decisive is not None and (below[decisive] or above[decisive]):
            return False
        outside = np.count_nonzero(below) + np.count_nonzero(above)
        return not outside or bool(outside / np.count_nonzero(row == row) <= self.allowed)


class NoSupport:
    """A checkpoint that says nothing about its training range."""

    def contains(self, X: NDArray[np.float32], *, decisive: int | None = None) -> list[bool | None]:
        """None for every row."""
        return [None] * len(X)

    def contains_one(self, row: NDArray[np.float32], *, decisive: int | None = None) -> bool | None:
        """None."""
        return None
