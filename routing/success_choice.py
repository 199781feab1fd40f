"""Chooses a candidate by P(success) before anybody is asked: the cheapest that meets a target, the best at a budget, or
the best at a worth of a success.

`cheapest_meeting` holds every request to the target: an easy request gets the cheapest candidate that suffices. Where
no candidate reaches the target, the likeliest is taken, and no easy request makes up for it. Near the best candidate's
rate the share of right answers therefore falls below the target. `worth_meeting` and `best_at_worth` hold the mean of
the requests to the target, which costs less.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.records.errors import RecordError
from metaprobe.routing.success_estimator import SuccessEstimate


@dataclass(frozen=True, slots=True)
class SuccessChoice:
    """The candidate to ask first."""

    candidate: str | None
    """Name of the candidate; None if none can be chosen."""
    p: float | None
    """P(success) of the chosen candidate; None if unknown."""
    price: float | None
    reason: str
    """Rule or number that decided, in words."""


def cheapest_meeting(
    estimates: Sequence[SuccessEstimate],
    prices: Mapping[str, float],
    target: float,
    *,
    fallback: str | None = None,
) -> SuccessChoice:
    """Returns the cheapest candidate whose P(success) is at least the target.

    If no candidate reaches the target, the likeliest one is chosen, and the reason says so. On four sets of outcomes
    this held for 25 to 68 % of requests at a target 2 points below the best candidate's rate, and the share of right
    answers was at least the target in 12 of 24 splits (`best_at_worth`: 17). A candidate with insufficient evidence is
    never chosen. If there is no other one, the fallback is chosen.

    Args:
        estimates: estimates of the candidates, from `SuccessEstimator.estimate`.
        prices: candidate -> price, in any one unit.
        target: P(success), from 0 to 1.
        fallback: candidate for requests without sufficient evidence; None for none.

    Raises `RecordError` for a target out of range, or a price that is missing or no number of at least 0.
    """
    if not _is_number(target) or not 0 <= target <= 1:
        raise RecordError(f"target is {target!r}; expected a probability from 0 to 1")
    priced = _priced(estimates, prices)
    if not priced:
        return _fallback(estimates, prices, fallback)
    meeting = [candidate for candidate in priced if candidate[1] >= target]
    if meeting:
        name, p, price = min(meeting, key=lambda candidate: (candidate[2], -candidate[1]))
        return SuccessChoice(name, p, price, f"the cheapest candidate with P(success) of at least {target:g}")
    name, p, price = max(priced, key=lambda candidate: (candidate[1], -candidate[2]))
    reason = (
        f"no candidate reaches {target:g}; this one is the likeliest to be right, and no other request makes up for "
        "it: best_at_worth would"
    )
    return SuccessChoice(name, p, price, reason)


def best_within(
    estimates: Sequence[SuccessEstimate],
    prices: Mapping[str, float],
    budget: float,
    *,
    fallback: str | None = None,
) -> SuccessChoice:
    """Returns the candidate with the highest P(success) among those that cost at most the budget. If two are equally
    likely, the cheaper one is returned.

    Args:
        estimates: estimates of the candidates, from `SuccessEstimator.estimate`.
        prices: candidate -> price, in the unit of the budget.
        budget: most that the request may cost.
        fallback: candidate for requests without sufficient evidence; None for none.

    Raises `RecordError` for a budget or a price that is no number of at least 0, or a price that is missing.
    """
    if not _is_number(budget) or not 0 <= budget < math.inf:
        raise RecordError(f"budget is {budget!r}; expected a number of at least 0")
    priced = _priced(estimates, prices)
    if not priced:
        return _fallback(estimates, prices, fallback)
    within = [candidate for candidate in priced if candidate[2] <= budget]
    if not within:
        return SuccessChoice(None, None, None, f"every candidate with sufficient evidence costs more than {budget:g}")
    name, p, price = max(within, key=lambda candidate: (candidate[1], -candidate[2]))
    return SuccessChoice(name, p, price, f"the highest P(success) at a price of at most {budget:g}")


WORTHS = np.concatenate([[0.0], np.geomspace(1e-3, 1e4, 141)])
"""Values of one right answer that are tried, in units of the highest price. Neighbours differ by 12 %."""


@dataclass(frozen=True, slots=True)
class WorthOfSuccess:
    """The value of one right answer that meets a target, with the accuracy and the mean price at this value."""

    worth: float
    """Value of one right answer, in the unit of the prices; the argument of `best_at_worth`."""
    accuracy: float
    """Share of right answers on the labelled requests at this worth."""
    price: float
    """Mean price of a request at this worth."""


def worth_meeting(p: ArrayLike, score: ArrayLike, prices: Sequence[float], target: float) -> WorthOfSuccess:
    """Returns the least worth at which `best_at_worth` meets the target on labelled requests, on average.

    Where no worth meets the target, the result has the highest accuracy, which then lies below it.

    Args:
        p: (n, A) P(success) of A candidates on n requests that the estimator has not learned from.
        score: (n, A) whether each was right, from 0 to 1.
        prices: (A,) of the candidates, in any one unit.
        target: share of right answers, from 0 to 1.

    Raises `RecordError` for arrays of other shapes or ranges, and for a price that is no number of at least 0.
    """
    P, right, cost = (np.asarray(array, dtype=np.float64) for array in (p, score, prices))
    if P.ndim != 2 or not P.size or P.shape != right.shape or cost.shape != P.shape[1:]:
        raise RecordError(
            f"p is {P.shape}, score {right.shape} and prices {cost.shape}; expected (n, A), (n, A) and (A,), none empty"
        )
    if not all(((values >= 0) & (values <= 1)).all() for values in (P, right)):
        raise RecordError("p or score has a number outside 0 to 1; leave out requests that lack an estimate or a label")
    if not ((cost >= 0) & np.isfinite(cost)).all():
        raise RecordError(f"prices are {cost.tolist()}; expected numbers of at least 0")
    if not _is_number(target) or not 0 <= target <= 1:
        raise RecordError(f"target is {target!r}; expected a share from 0 to 1")
    rows, tried = np.arange(len(P)), WORTHS * (float(cost.max()) or 1.0)
    chosen = [_best_at(P, cost, worth) for worth in tried.tolist()]
    accuracy = np.array([right[rows, columns].mean() for columns in chosen])
    meeting = np.flatnonzero(accuracy >= target)
    chosen_place = int(meeting[0]) if len(meeting) else int(accuracy.argmax())
    return WorthOfSuccess(
        float(tried[chosen_place]), float(accuracy[chosen_place]), float(cost[chosen[chosen_place]].mean())
    )


def _best_at(p: NDArray[np.float64], cost: NDArray[np.float64], worth: float) -> NDArray[np.intp]:
    """Returns the candidate (n,) with the highest p * worth - price; of equals the likelier one."""
    value = p * worth - cost
    equal = value >= value.max(axis=1, keepdims=True) - 1e-12 * max(worth, float(cost.max()))
    return np.asarray(np.where(equal, p, -1.0).argmax(axis=1))


def best_at_worth(
    estimates: Sequence[SuccessEstimate],
    prices: Mapping[str, float],
    worth: float,
    *,
    fallback: str | None = None,
) -> SuccessChoice:
    """Returns the candidate with the highest P(success) * worth - price. If two are equal, the likelier one is
    returned.

    Args:
        estimates: estimates of the candidates, from `SuccessEstimator.estimate`.
        prices: candidate -> price, in the unit of the worth.
        worth: most that a success may cost more than a failure; from `worth_meeting`.
        fallback: candidate for requests without sufficient evidence; None for none.

    Raises `RecordError` for a worth or a price that is no number of at least 0, or a price that is missing.
    """
    if not _is_number(worth) or not 0 <= worth < math.inf:
        raise RecordError(f"worth is {worth!r}; expected a number of at least 0")
    priced = _priced(estimates, prices)
    if not priced:
        return _fallback(estimates, prices, fallback)
    p, cost = (np.array([candidate[place] for candidate in priced]) for place in (1, 2))
    name, chance, price = priced[int(_best_at(p[None], cost, worth)[0])]
    return SuccessChoice(name, chance, price, f"the highest P(success) times {worth:g}, less the price")


def _is_number(value: object) -> bool:
    """Returns whether a caller's value is a real number, and not True or False."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _priced(estimates: Sequence[SuccessEstimate], prices: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Returns name, P(success) and price of each candidate whose evidence is sufficient."""
    for estimate in estimates:
        price = prices.get(estimate.candidate)
        if price is None or not _is_number(price) or not 0 <= price < math.inf:
            raise RecordError(f"price of {estimate.candidate!r} is {price!r}; expected a number of at least 0")
    return [
        (estimate.candidate, estimate.p, float(prices[estimate.candidate]))
        for estimate in estimates
        if estimate.p is not None
    ]


def _fallback(estimates: Sequence[SuccessEstimate], prices: Mapping[str, float], fallback: str | None) -> SuccessChoice:
    """Returns the fallback, and why nobody was chosen by a number."""
    why = estimates[0].reason if estimates else "there are no candidates"
    price = None if fallback is None else prices.get(fallback)
    return SuccessChoice(fallback, None, price, f"no candidate has sufficient evidence ({why})")
