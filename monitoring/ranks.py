"""The rank of each value among all that came before it, in a memory that does not grow.

Where values are exchangeable (their order says nothing) these ranks are independent and uniform in [0, 1] (Vovk,
Gammerman and Shafer, Algorithmic Learning in a Random World): it is what the bets of `monitoring.evidence` need. They
must be ranks among *all* earlier values. A rank in a fixed window of reference is not uniform but as that window
happened to be, and over a long stream a bet on this difference makes a gain, which would be a false alarm.

Numbers are put into the bins of a grid that was fixed beforehand; ties are broken at random.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import floor, log, log2
from typing import Any, Protocol

BINS = 1000
WIDEST = 10.0
"""Log-odds, at either end of the grid for scores."""


class Ranks(Protocol):
    """Ranks of the values of one stream."""

    def rank(self, value: Any, tie: float) -> float:
        """Returns the share of earlier values that are lower, with `tie` in [0, 1) of those that are the same."""
        ...

    def as_json(self) -> dict[str, Any]: ...


@dataclass(slots=True)
class NumberRanks:
    """Of numbers, by a map into `BINS` bins."""

    grid: Callable[[float], int]
    counts: list[int] = field(default_factory=lambda: [0] * BINS)
    total: int = 0

    def rank(self, value: float, tie: float) -> float:
        place = min(max(self.grid(value), 0), BINS - 1)
        below = sum(self.counts[:place])
        self.counts[place] += 1
        self.total += 1
        return (below + tie * self.counts[place]) / self.total

    def as_json(self) -> dict[str, Any]:
        return {"counts": {str(place): n for place, n in enumerate(self.counts) if n}}


@dataclass(slots=True)
class NameRanks:
    """Of names, by how often they came: a rare one is low. Their own names play no part, nor does which was first."""

    counts: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def rank(self, value: str, tie: float) -> float:
        mine = self.counts[value] = self.counts.get(value, 0) + 1
        self.total += 1
        below = sum(n for n in self.counts.values() if n < mine)
        same = sum(n for n in self.counts.values() if n == mine)
        return (below + tie * same) / self.total

    def as_json(self) -> dict[str, Any]:
        return {"counts": self.counts}


def place_score(value: float) -> int:
    """Returns the bin of a number in [0, 1], by its log-odds: 0.99 and 0.999 differ as much as 0.5 and 0.91."""
    p = min(max(value, 1e-6), 1 - 1e-6)
    return floor((log(p / (1 - p)) + WIDEST) / (2 * WIDEST) * BINS)


def place_count(value: float) -> int:
    """Returns the bin of a count, in steps of 2 %: up to a million."""
    return floor(log2(1 + max(value, 0.0)) / 20 * BINS)


def ranks_from_json(found: Ranks, stored: dict[str, Any]) -> Ranks:
    """Returns the empty ranks `found`, filled with what `as_json` gave."""
    if isinstance(found, NumberRanks):
        for place, n in stored["counts"].items():
            found.counts[int(place)] = int(n)
        found.total = sum(found.counts)
    elif isinstance(found, NameRanks):
        found.counts = {str(name): int(n) for name, n in stored["counts"].items()}
        found.total = sum(found.counts.values())
    return found
