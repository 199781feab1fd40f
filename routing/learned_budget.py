"""From a budget to a price: the cost-accuracy curve of a checkpoint, and what its agents reach alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from metaprobe.records.errors import RecordError

ROUNDING = 1 + 1e-9
"""A mean cost is over a budget where it is so by more than adding it up can make it."""


@dataclass(frozen=True, slots=True)
class Point:
    """One lambda on the cost-accuracy curve of a checkpoint, as held-out questions show it."""

    lambda_: float
    """Accuracy that one US dollar for 1,000 questions must bring."""
    accuracy: float
    cost: float
    """US dollars for 1,000 questions."""


@dataclass(frozen=True, slots=True)
class Alone:
    """One agent asked every question, on the same questions as the curve."""

    agent: str
    accuracy: float
    cost: float
    """US dollars for 1,000 questions."""


def lambda_of_budget(curve: Sequence[Point], budget: float) -> float:
    """The lambda of the most accurate point that costs no more than `budget` US dollars for 1,000 questions.

    Where that is the dearest of those, and the next dearer one is more accurate still, lambda lies between the two, on
    a logarithmic scale, where a line between their costs meets the budget. Raises `RecordError` below the cheapest.
    """
    points = sorted(curve, key=lambda point: (point.cost, -point.accuracy))
    within = [point for point in points if point.cost <= budget * ROUNDING]
    if not within:
        raise RecordError(
            f"a budget of {budget:g} US dollars for 1,000 questions is below {points[0].cost:.4g}, the cheapest way"
        )
    best = max(within, key=lambda point: point.accuracy)  # the cheapest of equals
    if best is not within[-1] or len(within) == len(points) or points[len(within)].accuracy <= best.accuracy:
        return best.lambda_
    dearer = points[len(within)]
    share = max(budget - best.cost, 0.0) / (dearer.cost - best.cost)
    return math.exp(math.log(best.lambda_) + share * (math.log(dearer.lambda_) - math.log(best.lambda_)))


def alone_of_budget(alone: Sequence[Alone], curve: Sequence[Point], budget: float) -> Alone | None:
    """The agent that is more accurate alone, within the budget, than every point of the curve within it; else None."""
    reached = max((point.accuracy for point in curve if point.cost <= budget * ROUNDING), default=-math.inf)
    better = [one for one in alone if one.cost <= budget * ROUNDING and one.accuracy > reached]
    return max(better, key=lambda one: one.accuracy, default=None)
