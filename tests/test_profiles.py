"""Profiles follow outcomes as equation 4 says, and a run tells who learns from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.eval.systems.dispatch import DispatchedRun
from metaprobe.papers.policies.profiles import Experience, Profiles, experiences
from metaprobe.records.types import Call, Decision, Item, Label, Run, Statement

OUTCOMES = st.lists(st.sampled_from((0.0, 1.0)), max_size=30)


def past(outcomes: list[float], agent: str = "a", dimension: str = "d") -> list[Experience]:
    return [Experience(agent, dimension, outcome) for outcome in outcomes]


def run_of(actions: dict[str, str], answers: dict[str, float | None], dimension: str | None = "d") -> Run:
    """Labelled answers by agent, where `a` was dispatched to."""
    calls = [Call(id="c", stage="classify"), *(Call(id=name, stage="answer", agent=name) for name in answers)]
    labels = [Label(name, "correct", value, "program") for name, value in answers.items() if value is not None]
    return Run(
        id="r",
        system="metacogagent",
        variant="algorithm",
        item=Item(id="i", question="q"),
        calls=tuple(calls),
        statements=(Statement("c", f"dimension:{dimension}", 1.0),) if dimension else (),
        labels=(Label("c", "dispatched:a", 1.0, "round-robin"), *labels),
        decisions=tuple(Decision(point, point, action) for point, action in actions.items()),
    )


@given(OUTCOMES, st.floats(0, 1))
def test_a_profile_is_the_weighted_sum_that_equation_4_unrolls_to(outcomes: list[float], rate: float) -> None:
    n = len(outcomes)
    known = 0.5 * (1 - rate) ** n + sum(rate * (1 - rate) ** (n - 1 - t) * r for t, r in enumerate(outcomes))
    assert Profiles(past(outcomes), rate=rate).rate_of("a", "d") == pytest.approx(known)


@given(OUTCOMES)
def test_profiles_stay_in_the_unit_interval_and_apart_by_agent_and_dimension(outcomes: list[float]) -> None:
    profiles = Profiles(past(outcomes))
    assert 0 <= profiles.rate_of("a", "d") <= 1
    assert profiles.rate_of("b", "d") == profiles.rate_of("a", "e") == 0.5


@pytest.mark.parametrize(
    ("actions", "who"),
    [
        ({"assess": "execute"}, ("a",)),
        ({"assess": "ask", "assign": "b"}, ("b",)),
        ({"assess": "ask", "assign": "collaborate"}, ("a", "b")),
        ({}, ("a", "b")),
    ],
)
def test_those_learn_whom_the_system_made_answer(actions: dict[str, str], who: tuple[str, ...]) -> None:
    run = run_of(actions, {"a": 1.0, "b": 0.0})
    assert DispatchedRun(run).executing == who
    expected = {"a": 1.0, "b": 0.0}
    assert list(experiences(run)) == [Experience(agent, "d", expected[agent]) for agent in who]


def test_nothing_is_learned_without_a_label_or_a_dimension() -> None:
    assert list(experiences(run_of({"assess": "execute"}, {"a": None}))) == []
    baseline = run_of({}, {"a": 1.0}, dimension=None)
    assert list(experiences(baseline)) == []
    assert (DispatchedRun(baseline).dimension, DispatchedRun(baseline).first) == (None, "a")
