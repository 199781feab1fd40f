"""Exploration: everything is tried, or now and then something else, with propensities that are true."""

from collections import Counter
from typing import ClassVar

import pytest

from metaprobe.papers.policies.explore import EpsilonGreedy, Exhaustive
from metaprobe.papers.policies.review import ReviewRules
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.errors import RecordError
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Action, Outcome, State

SURE = Signals(confidence=Signal(0.95, "stated"), quality=Signal(0.99, "stated"))


def test_exhaustive_asks_and_goes_on_where_the_rule_would_stop_and_says_so() -> None:
    rules, everything = PaperRules(), Exhaustive()
    for point, legal, rule, most in (
        ("assess", (Action.EXECUTE, Action.ASK), Action.EXECUTE, Action.ASK),
        ("iterate", (Action.STOP, Action.AGAIN), Action.STOP, Action.AGAIN),
    ):
        state = State("d", point, SURE, round=1)
        assert rules.decide(state, legal).action == rule
        decision = everything.decide(state, legal)
        assert decision.action == most
        assert f"the papers' rule says {rule}" in decision.reason
    assert (
        everything.decide(State("d", "iterate", Signals(), round=3), (Action.STOP, Action.AGAIN)).action == Action.STOP
    ), "the last cycle"


def test_epsilon_greedy_draws_as_often_as_its_propensities_say() -> None:
    policy = EpsilonGreedy(PaperRules(), epsilon=0.4, seed=1)
    decisions = [policy.decide(State(f"d{i}", "assess", SURE), (Action.EXECUTE, Action.ASK)) for i in range(4000)]
    assert decisions[0].propensities == pytest.approx({Action.EXECUTE: 0.8, Action.ASK: 0.2})
    counts = Counter(decision.action for decision in decisions)
    assert counts[Action.ASK] / 4000 == pytest.approx(0.2, abs=0.025)
    explored = next(decision for decision in decisions if decision.action == Action.ASK)
    assert explored.reason == "explored in place of execute"


def test_a_resumed_collection_draws_what_it_drew() -> None:
    draws = []
    for ids in (range(50), reversed(range(50))):
        policy = EpsilonGreedy(PaperRules(), epsilon=0.5)
        draws.append([policy.decide(State(f"d{i}", "assess", SURE), (Action.EXECUTE, Action.ASK)).action for i in ids])
    assert draws[0] == draws[1][::-1]


def test_the_extremes_of_epsilon_are_the_other_policy_and_an_even_draw() -> None:
    never, always = (EpsilonGreedy(PaperRules(), epsilon=epsilon) for epsilon in (0, 1))
    states = [State(f"d{i}", "assess", SURE) for i in range(50)]
    assert {never.decide(state, (Action.EXECUTE, Action.ASK)).action for state in states} == {Action.EXECUTE}
    assert always.decide(states[0], (Action.EXECUTE, Action.ASK)).propensities == {Action.EXECUTE: 0.5, Action.ASK: 0.5}
    drawn = {seed: EpsilonGreedy(PaperRules(), epsilon=1, seed=seed) for seed in (0, 1)}
    actions = {
        seed: [policy.decide(state, (Action.EXECUTE, Action.ASK)).action for state in states]
        for seed, policy in drawn.items()
    }
    assert actions[0] != actions[1]
    assert actions[0] == [always.decide(state, (Action.EXECUTE, Action.ASK)).action for state in states], (
        "the seed is 0 by default"
    )


class Learning(PaperRules):
    """The papers' rules in a policy that learns, and remembers what it was told."""

    learns = True
    label = "learning"
    told: ClassVar[list[tuple[str, Outcome]]] = []

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        self.told.append((decision_id, outcome))


def test_exploration_hands_on_what_came_of_it_and_says_of_itself_what_the_other_policy_does() -> None:
    policy = EpsilonGreedy(Learning(), epsilon=0.25, seed=3)
    policy.observe("d", Outcome(correct=1.0))
    assert Learning.told == [("d", Outcome(correct=1.0))]
    assert (policy.label, policy.learns) == ("learning with epsilon 0.25", True)
    assert EpsilonGreedy(PaperRules(), epsilon=0.25).learns is False
    assert policy.reads == PaperRules.reads
    assert policy.own == tuple(PaperRules.reads), "each point can be explored"
    assert repr(policy) == f"EpsilonGreedy({policy.policy!r}, epsilon=0.25, seed=3)"
    within = EpsilonGreedy(ReviewRules(), epsilon=0.25)
    assert (within.own, within.rules) == (("review",), ReviewRules().rules)
    with pytest.raises(RecordError, match=r"epsilon is 1\.5"):
        EpsilonGreedy(PaperRules(), epsilon=1.5)
