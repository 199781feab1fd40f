"""Exploration: everything is tried, or now and then something else, with propensities that are true."""

from collections import Counter

import pytest

from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.errors import RecordError
from metaprobe.routing.explore import EpsilonGreedy, Exhaustive
from metaprobe.routing.paper import AGAIN, ASK, EXECUTE, STOP, PaperRules
from metaprobe.routing.policy import State

SURE = Signals(confidence=Signal(0.95, "stated"), quality=Signal(0.99, "stated"))


def test_exhaustive_asks_and_goes_on_where_the_rule_would_stop_and_says_so() -> None:
    rules, everything = PaperRules(), Exhaustive()
    for point, legal, rule, most in (
        ("assess", (EXECUTE, ASK), EXECUTE, ASK),
        ("iterate", (STOP, AGAIN), STOP, AGAIN),
    ):
        state = State("d", point, SURE, round=1)
        assert rules.decide(state, legal).action == rule
        decision = everything.decide(state, legal)
        assert decision.action == most
        assert f"the papers' rule says {rule}" in decision.reason


def test_exhaustive_ends_after_the_last_cycle() -> None:
    assert Exhaustive().decide(State("d", "iterate", Signals(), round=3), (STOP, AGAIN)).action == STOP


def test_epsilon_greedy_draws_as_often_as_its_propensities_say() -> None:
    policy = EpsilonGreedy(PaperRules(), epsilon=0.4, seed=1)
    decisions = [policy.decide(State(f"d{i}", "assess", SURE), (EXECUTE, ASK)) for i in range(4000)]
    assert decisions[0].propensities == pytest.approx({EXECUTE: 0.8, ASK: 0.2})
    counts = Counter(decision.action for decision in decisions)
    assert counts[ASK] / 4000 == pytest.approx(0.2, abs=0.025)
    explored = next(decision for decision in decisions if decision.action == ASK)
    assert explored.reason == "explored in place of execute"


def test_a_resumed_collection_draws_what_it_drew() -> None:
    draws = [
        [
            EpsilonGreedy(PaperRules(), epsilon=0.5).decide(State(f"d{i}", "assess", SURE), (EXECUTE, ASK)).action
            for i in ids
        ]
        for ids in (range(50), reversed(range(50)))
    ]
    assert draws[0] == draws[1][::-1]


def test_epsilon_is_a_probability() -> None:
    with pytest.raises(RecordError, match=r"epsilon is 1\.5"):
        EpsilonGreedy(PaperRules(), epsilon=1.5)
