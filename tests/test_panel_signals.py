"""Tests that a confidence that only some agents or answers carry is read where it can be, or said to be left out."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_once import MadeOnce
from test_panel_after import tenths

from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import PanelAnswer
from metaprobe.routing.panel.model_rows import STATED
from metaprobe.training.panel.labelled_panels import agents_in, panels_of_outcomes, signals_left_out
from metaprobe.training.recipes.panel import train_panel
from metaprobe.training.training_options import PanelOptions


def stating(keeps: Callable[[int, str], bool], n: int = 200) -> list[QuestionOutcomes]:
    """Returns questions of which an answer states how sure it is where `keeps` says so of its number and its agent."""
    made = []
    for number, question in enumerate(tenths(n, hard=0.0)):
        agents = {
            name: one if keeps(number, name) else dataclasses.replace(one, confidence=None)
            for name, one in question.agents.items()
        }
        made.append(dataclasses.replace(question, agents=agents))
    return made


def panel_of(questions: list[QuestionOutcomes], folder: Path) -> None:
    train_panel(panels_of_outcomes(questions), PanelOptions(out=folder))


@pytest.fixture(scope="module")
def one_states(made_once: MadeOnce) -> Panel:
    """Only the cheap agent states how sure it is: a third of all answers."""
    return Panel.load(made_once("one of three states", lambda out: panel_of(stating(lambda _, a: a == "cheap"), out)))


@pytest.fixture(scope="module")
def few_state(made_once: MadeOnce) -> Panel:
    """Each agent states it on a fifth of its answers. They have no costs, so whom to ask is not learned."""
    free = [
        dataclasses.replace(q, agents={name: dataclasses.replace(one, cost_usd=None) for name, one in q.agents.items()})
        for q in stating(lambda i, _: i % 5 == 0)
    ]
    return Panel.load(made_once("few state", lambda out: panel_of(free, out)))


def test_the_confidence_of_one_agent_alone_is_read(one_states: Panel) -> None:
    assert one_states.agents.signals == (STATED,)
    assert one_states.left_out == {}
    others = [PanelAnswer("b", "middle"), PanelAnswer("c", "dear")]
    low, high = (
        one_states.judge([PanelAnswer("a", "cheap", stated=p), *others], dimension="topic 3") for p in (0.05, 0.97)
    )
    first = [next(one.probability for one in v.classes if 0 in one.members) for v in (low, high)]
    assert first[1] > first[0] + 0.2
    assert "confidence" not in high.reason, "the others never gave any, so that none is missing"


def test_the_confidence_of_an_agent_that_gave_none_in_training_is_not_read_by_anothers_scale(one_states: Panel) -> None:
    verdicts = [
        one_states.judge([PanelAnswer("a", "middle", stated=p), PanelAnswer("b", "cheap", stated=0.5)])
        for p in (None, 0.05, 0.97)
    ]
    chances = [next(one.probability for one in v.classes if 0 in one.members) for v in verdicts]
    assert chances == [chances[0]] * 3
    told = "its stated confidence is not read: none of middle's answers learned from had any"
    assert [told in v.reason for v in verdicts] == [False, True, True]


def test_an_agent_that_usually_states_it_is_said_to_lack_it(one_states: Panel) -> None:
    verdict = one_states.judge([PanelAnswer("a", "cheap"), PanelAnswer("b", "middle")], dimension="topic 3")
    assert "1 answers have no stated confidence" in verdict.reason


def test_a_confidence_that_too_few_answers_have_is_said_to_be_left_out(few_state: Panel) -> None:
    assert few_state.agents.signals == ()
    assert few_state.left_out == {"stated confidence": pytest.approx(0.2)}
    answers = [PanelAnswer("a", "cheap", stated=0.9), PanelAnswer("b", "middle")]
    reason = few_state.judge(answers, dimension="topic 3").reason
    assert "of 1 answers: its stated confidence is not read: 20.0% of the answers learned from had any" in reason
    card = (few_state.checkpoint.path / "README.md").read_text(encoding="utf-8")
    assert "not read: the stated confidence that 20.0% of the answers have" in card


def test_a_confidence_on_all_of_an_agents_few_answers_is_too_little_to_be_read() -> None:
    questions = stating(lambda *_: False)
    sure = tenths(len(questions), hard=0.0)
    for number in range(5):
        agents = {**questions[number].agents, "rare": sure[number].agents["dear"]}
        questions[number] = dataclasses.replace(questions[number], agents=agents)
    data = panels_of_outcomes(questions)
    assert agents_in(data).signals == ()
    assert signals_left_out(data) == {"stated confidence": pytest.approx(5 / 605)}


def test_where_no_answer_has_a_confidence_nothing_is_said_to_be_left_out() -> None:
    data = panels_of_outcomes(stating(lambda *_: False))
    assert agents_in(data).signals == ()


@pytest.mark.parametrize("left_out", [{"stated confidence": "much"}, [1]])
def test_a_contract_that_says_it_badly_is_refused(few_state: Panel, left_out: object) -> None:
    from metaprobe.routing.panel.sources import LEFT_OUT_KEY, read_left_out

    contract = json.loads(json.dumps({LEFT_OUT_KEY: left_out}))
    with pytest.raises((AttributeError, ValueError)):
        read_left_out(contract)


def test_reading_one_agents_confidence_asks_on_where_it_is_unsure(one_states: Panel) -> None:
    budget = one_states.ask_plan().cost
    asked = []
    for stated in (0.05, 0.97):
        answers = [PanelAnswer("a", "cheap", stated=stated)]
        step = one_states.next("question", "topic 5", answers, price=0.3 / budget)
        asked.append(step.agent)
    assert asked[0] is not None
    assert asked[1] is None
    assert np.isfinite(budget)
