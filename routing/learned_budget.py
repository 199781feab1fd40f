"""From budgets to prices: the curve of a checkpoint in accuracy, cost and waiting, and what simpler ways reach."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from metaprobe.records.errors import RecordError

ROUNDING = 1 + 1e-9
"""A mean cost is over a budget where it is so by more than adding it up can make it."""


@dataclass(frozen=True, slots=True)
class Point:
    """One pair of prices on the curve of a checkpoint, as held-out questions show it."""

    lambda_: float
    """Accuracy that one US dollar for 1,000 questions must bring."""
    accuracy: float
    cost: float
    """US dollars for 1,000 questions."""
    per_second: float = 0.0
    """Accuracy that one second of waiting must bring."""
    seconds: float | None = None
    """Waited for an answer on average, agents asked one after another; None where the outcomes do not say."""


@dataclass(frozen=True, slots=True)
class Alone:
    """One agent asked every question, on the same questions as the curve."""

    agent: str
    accuracy: float
    cost: float
    """US dollars for 1,000 questions."""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """What a budget comes to."""

    lambda_: float
    per_second: float = 0.0
    agent: str = ""
    """The only one that is asked, where it is better alone."""
    instead: str = ""
    """Why a simpler way is taken in place of the learned one, as a clause; empty where it is not."""


def plan_of(
    curve: Sequence[Point],
    rule: Sequence[Point],
    alone: Sequence[Alone],
    *,
    budget: float | None = None,
    seconds: float | None = None,
) -> BudgetPlan:
    """The most accurate way within the means of both: US dollars for 1,000 questions, seconds a question.

    The learned way by default; the fixed rule (highest past rate on the dimension less its price; `rule` is its curve)
    or one agent `alone` where it was more accurate on the same held-out questions. Raises `RecordError` where no way
    is within, or waiting is limited and the curve does not give it.
    """
    if budget is None and seconds is None:
        raise ValueError("neither a budget nor seconds were given")
    if seconds is not None and any(point.seconds is None for point in curve):
        raise RecordError(
            f"waiting is limited to {seconds:g} s, but the outcomes that the router was trained on have no latency_ms"
        )

    def within(one: Point | Alone) -> bool:
        return (budget is None or one.cost <= budget * ROUNDING) and (
            seconds is None or (one.seconds is not None and one.seconds <= seconds * ROUNDING)
        )

    learned = [point for point in curve if within(point) and (seconds is not None or not point.per_second)]
    reached = max((point.accuracy for point in learned), default=-math.inf)
    mine = None
    if seconds is None and learned and budget is not None:
        mine = BudgetPlan(lambda_of_budget([point for point in curve if not point.per_second], budget))
    elif learned:
        best_point = min(learned, key=lambda point: (-point.accuracy, point.cost))
        mine = BudgetPlan(best_point.lambda_, best_point.per_second)
    # The first of equals: one agent is simpler than a rule.
    ways: list[Point | Alone] = [*alone, *rule]
    simple = [one for one in ways if within(one) and one.accuracy > reached]
    if simple:
        best = max(simple, key=lambda one: one.accuracy)
        had = f"had {best.accuracy:.3f} of the held-out questions right within the budget, the learned way fewer"
        if isinstance(best, Alone):
            # The learned way's prices stay, for where that agent may not be asked; the highest if only it was within.
            prices = mine or BudgetPlan(max(point.lambda_ for point in curve))
            return BudgetPlan(prices.lambda_, prices.per_second, best.agent, f"{best.agent} alone {had}")
        return BudgetPlan(best.lambda_, best.per_second, "", f"past success rates alone {had}")
    if mine is None:
        raise RecordError(_nothing_within([*curve, *alone], budget, seconds))
    return mine


def lambda_of_budget(curve: Sequence[Point], budget: float) -> float:
    """The lambda of the most accurate point that costs no more than `budget` US dollars for 1,000 questions.

    Where that is the dearest of those, and the next dearer one is more accurate still, lambda lies between the two, on
    a logarithmic scale, where a line between their costs meets the budget. Raises `RecordError` below the cheapest.
    """
    points = sorted(curve, key=lambda point: (point.cost, -point.accuracy))
    within = [point for point in points if point.cost <= budget * ROUNDING]
    if not within:
        raise RecordError(_nothing_within(points, budget, None))
    best = max(within, key=lambda point: point.accuracy)  # the cheapest of equals
    if best is not within[-1] or len(within) == len(points) or points[len(within)].accuracy <= best.accuracy:
        return best.lambda_
    dearer = points[len(within)]
    share = max(budget - best.cost, 0.0) / (dearer.cost - best.cost)
    return math.exp(math.log(best.lambda_) + share * (math.log(dearer.lambda_) - math.log(best.lambda_)))


def _nothing_within(ways: Sequence[Point | Alone], budget: float | None, seconds: float | None) -> str:
    cheapest = min(ways, key=lambda way: way.cost)
    if budget is not None and cheapest.cost > budget * ROUNDING:
        return f"a budget of {budget:g} US dollars for 1,000 questions is below {cheapest.cost:.4g}, the cheapest way"
    quickest = min((way for way in ways if way.seconds is not None), key=lambda way: way.seconds or 0.0)
    limit = f"{seconds:g} s of waiting"
    if budget is not None:
        limit += f" and {budget:g} US dollars for 1,000 questions"
    return f"no way keeps within {limit}; the quickest takes {quickest.seconds:.4g} s and costs {quickest.cost:.4g}"
