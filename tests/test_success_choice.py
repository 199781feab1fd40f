"""Whom to ask by P(success): the cheapest that meets a target, the best at a budget, nobody by a number unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.records.errors import RecordError
from metaprobe.routing.success import SuccessEstimate
from metaprobe.routing.success_choice import best_within, cheapest_meeting


def estimate(name: str, p: float | None) -> SuccessEstimate:
    evidence = "insufficient" if p is None else "measured"
    interval = None if p is None else (p, p)
    return SuccessEstimate(name, p, interval, 1, "", "", "", evidence, "" if p else "outside")  # type: ignore[arg-type]


CANDIDATES = st.lists(st.tuples(st.none() | st.floats(0.01, 1), st.floats(0, 9)), min_size=1, max_size=5)


@given(CANDIDATES, st.floats(0, 1))
def test_nobody_cheaper_meets_the_target(given_ones: list[tuple[float | None, float]], target: float) -> None:
    estimates = [estimate(f"m{i}", p) for i, (p, _) in enumerate(given_ones)]
    prices = {f"m{i}": price for i, (_, price) in enumerate(given_ones)}
    choice, known = cheapest_meeting(estimates, prices, target), [one for one in estimates if one.p is not None]
    if not known:
        assert choice.candidate is None
        return
    meeting = [prices[one.candidate] for one in known if one.p is not None and one.p >= target]
    assert choice.candidate is not None
    assert choice.p is not None
    if meeting:
        assert choice.p >= target
        assert choice.price == min(meeting)
    else:
        assert choice.p == max(one.p for one in known if one.p is not None)


@given(CANDIDATES, st.floats(0, 9))
def test_nobody_within_the_budget_is_likelier(given_ones: list[tuple[float | None, float]], budget: float) -> None:
    estimates = [estimate(f"m{i}", p) for i, (p, _) in enumerate(given_ones)]
    prices = {f"m{i}": price for i, (_, price) in enumerate(given_ones)}
    choice = best_within(estimates, prices, budget)
    within = [one.p for one in estimates if one.p is not None and prices[one.candidate] <= budget]
    assert (choice.p, choice.candidate is None) == (max(within, default=None), not within)


def test_without_evidence_the_fallback_is_asked_and_the_reason_is_given() -> None:
    for choose in (cheapest_meeting, best_within):
        choice = choose([estimate("a", None)], {"a": 1.0, "b": 2.0}, 0.5, fallback="b")
        assert (choice.candidate, choice.p, choice.price) == ("b", None, 2.0)
        assert "outside" in choice.reason


@pytest.mark.parametrize("wrong", [-1, 2, float("nan"), True, "x"])
def test_a_target_or_price_that_cannot_be_is_refused(wrong: float) -> None:
    with pytest.raises(RecordError, match="target"):
        cheapest_meeting([estimate("a", 0.5)], {"a": 1.0}, wrong)
    with pytest.raises(RecordError, match="price"):
        cheapest_meeting([estimate("a", 0.5)], {"b": 1.0}, 0.5)
    if wrong != 2:
        with pytest.raises(RecordError, match="budget"):
            best_within([estimate("a", 0.5)], {"a": 1.0}, wrong)
