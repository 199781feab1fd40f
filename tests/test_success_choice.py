"""Whom to ask by P(success): the cheapest that meets a target, the best at a budget, nobody by a number unknown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.records.errors import RecordError
from metaprobe.routing.success_choice import best_at_worth, best_within, cheapest_meeting, worth_meeting
from metaprobe.routing.success_estimator import SuccessEstimate


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


@given(CANDIDATES, st.floats(0, 9))
def test_nobody_gains_more_at_the_worth(given_ones: list[tuple[float | None, float]], worth: float) -> None:
    estimates = [estimate(f"m{i}", p) for i, (p, _) in enumerate(given_ones)]
    prices = {f"m{i}": price for i, (_, price) in enumerate(given_ones)}
    choice = best_at_worth(estimates, prices, worth, fallback="m0")
    gains = [one.p * worth - prices[one.candidate] for one in estimates if one.p is not None]
    if not gains:
        assert (choice.candidate, choice.p) == ("m0", None)
        return
    assert choice.p is not None
    assert choice.price is not None
    assert choice.p * worth - choice.price == pytest.approx(max(gains), abs=1e-9)


def test_the_worth_meets_the_target_on_average_for_less_than_every_request_at_the_target() -> None:
    rng = np.random.default_rng(0)
    easy = rng.random(4000)
    p = np.column_stack([0.2 + 0.7 * easy, np.full(4000, 0.9)])
    right, prices, target = (rng.random(p.shape) < p).astype(float), [1.0, 10.0], 0.8
    found = worth_meeting(p[:2000], right[:2000], prices, target)
    assert target <= found.accuracy < target + 0.02
    names = {"small": prices[0], "large": prices[1]}

    def asked(row: int, way: str) -> int:
        estimates = [estimate(name, float(value)) for name, value in zip(names, p[row], strict=True)]
        average = way == "average"
        choice = best_at_worth(estimates, names, found.worth) if average else cheapest_meeting(estimates, names, target)
        return int(choice.candidate == "large")

    spent = {}
    for way in ("average", "each"):
        columns = [asked(row, way) for row in range(2000, 4000)]
        assert right[np.arange(2000, 4000), columns].mean() > target - 0.03
        spent[way] = np.mean([prices[column] for column in columns])
    assert spent["average"] < 0.9 * spent["each"]


def test_a_target_near_the_best_rate_is_missed_request_by_request_and_met_on_average() -> None:
    """The large candidate answers 80 in 100: easy requests better than that, hard ones less well."""
    rng = np.random.default_rng(1)
    hard = rng.random(6000) < 0.3
    p = np.column_stack([np.where(hard, 0.3, 0.81), np.where(hard, 0.45, 0.95)])
    right, target = (rng.random(p.shape) < p).astype(float), 0.79
    prices = {"small": 1.0, "large": 10.0}
    worth = worth_meeting(p[:3000], right[:3000], list(prices.values()), target).worth
    accuracy = dict.fromkeys(("each", "mean"), 0.0)
    for row in range(3000, 6000):
        estimates = [estimate(name, float(value)) for name, value in zip(prices, p[row], strict=True)]
        each, mean = cheapest_meeting(estimates, prices, target), best_at_worth(estimates, prices, worth)
        assert ("best_at_worth" in each.reason) == hard[row]
        for way, choice in (("each", each), ("mean", mean)):
            accuracy[way] += right[row, list(prices).index(choice.candidate or "")] / 3000
    assert accuracy["each"] < target - 0.05
    assert accuracy["mean"] > target - 0.02


def test_a_target_out_of_reach_shows_in_the_accuracy() -> None:
    found = worth_meeting([[0.5, 0.6]] * 4, [[0, 1], [1, 0], [0, 1], [0, 1]], [0.0, 0.0], 0.9)
    assert found.accuracy == 0.75


@pytest.mark.parametrize(
    ("given_ones", "noun"),
    [
        (([[0.5]], [[1, 0]], [1.0], 0.5), "p is"),
        (([[np.nan]], [[1]], [1.0], 0.5), "outside 0 to 1"),
        (([[0.5]], [[1]], [-1.0], 0.5), "prices are"),
        (([[0.5]], [[1]], [1.0], 2), "target is"),
    ],
)
def test_arrays_that_do_not_fit_are_named(given_ones: tuple[object, ...], noun: str) -> None:
    with pytest.raises(RecordError, match=noun):
        worth_meeting(*given_ones)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="worth is"):
        best_at_worth([], {}, -1.0)
