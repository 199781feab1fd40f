"""Chooses a candidate by P(success) before anybody is asked: the cheapest that meets a target, the best at a budget."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from metaprobe.records.errors import RecordError
from metaprobe.routing.success import SuccessEstimate


@dataclass(frozen=True, slots=True)
class SuccessChoice:
    """Whom to ask first."""

    candidate: str | None
    """None where nobody can be chosen."""
    p: float | None
    """P(success) of the chosen candidate; None where it is not known."""
    price: float | None
    reason: str
    """Says what decided."""


def cheapest_meeting(
    estimates: Sequence[SuccessEstimate],
    prices: Mapping[str, float],
    target: float,
    *,
    fallback: str | None = None,
) -> SuccessChoice:
    """Returns the cheapest candidate whose P(success) is at least the target.

    Where none of them reaches it, the likeliest one is chosen. A candidate with insufficient evidence is never chosen
    by a number: where there is no other, the fallback is.

    Args:
        estimates: of the candidates, from `SuccessEstimator.estimate`.
        prices: candidate -> price, in any one unit.
        target: P(success), from 0 to 1.
        fallback: candidate for requests without sufficient evidence; None for none.

    Raises `RecordError` for a target out of range, or a price that is missing or no number of at least 0.
    """
    if not _is_number(target) or not 0 <= target <= 1:
        raise RecordError(f"target is {target!r}; expected a probability from 0 to 1")
    known = _priced(estimates, prices)
    if not known:
        return _fallback(estimates, prices, fallback)
    meeting = [one for one in known if one[1] >= target]
    if meeting:
        name, p, price = min(meeting, key=lambda one: (one[2], -one[1]))
        return SuccessChoice(name, p, price, f"the cheapest candidate with P(success) of at least {target:g}")
    name, p, price = max(known, key=lambda one: (one[1], -one[2]))
    return SuccessChoice(name, p, price, f"no candidate reaches {target:g}; this one is the likeliest to be right")


def best_within(
    estimates: Sequence[SuccessEstimate],
    prices: Mapping[str, float],
    budget: float,
    *,
    fallback: str | None = None,
) -> SuccessChoice:
    """Returns the candidate with the highest P(success) of those that cost at most the budget; the cheaper of equals.

    Args:
        estimates: of the candidates, from `SuccessEstimator.estimate`.
        prices: candidate -> price, in the unit of the budget.
        budget: most that the request may cost.
        fallback: candidate for requests without sufficient evidence; None for none.

    Raises `RecordError` for a budget or a price that is no number of at least 0, or a price that is missing.
    """
    if not _is_number(budget) or not 0 <= budget < math.inf:
        raise RecordError(f"budget is {budget!r}; expected a number of at least 0")
    known = _priced(estimates, prices)
    if not known:
        return _fallback(estimates, prices, fallback)
    within = [one for one in known if one[2] <= budget]
    if not within:
        return SuccessChoice(None, None, None, f"every candidate with sufficient evidence costs more than {budget:g}")
    name, p, price = max(within, key=lambda one: (one[1], -one[2]))
    return SuccessChoice(name, p, price, f"the highest P(success) at a price of at most {budget:g}")


def _is_number(given: object) -> bool:
    """Returns whether what a caller gave is a real number, and no truth value."""
    return isinstance(given, Real) and not isinstance(given, bool)


def _priced(estimates: Sequence[SuccessEstimate], prices: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Returns name, P(success) and price of each candidate whose evidence is sufficient."""
    for one in estimates:
        price = prices.get(one.candidate)
        if price is None or not _is_number(price) or not 0 <= price < math.inf:
            raise RecordError(f"price of {one.candidate!r} is {price!r}; expected a number of at least 0")
    return [(one.candidate, one.p, float(prices[one.candidate])) for one in estimates if one.p is not None]


def _fallback(estimates: Sequence[SuccessEstimate], prices: Mapping[str, float], fallback: str | None) -> SuccessChoice:
    """Returns the fallback, and why nobody was chosen by a number."""
    why = estimates[0].reason if estimates else "there are no candidates"
    price = None if fallback is None else prices.get(fallback)
    return SuccessChoice(fallback, None, price, f"no candidate has sufficient evidence ({why})")
