"""The variant `panel` of the systems: a panel keeps one of their answers, and says when to stop and whom to ask."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_once import MadeOnce
from panel_worlds import biased_vote, topics, trained
from scripted import ScriptedLLM, run_once
from test_panel_next import panel_of_specialists

from metaprobe.llms.base import Request
from metaprobe.papers.collecting.collect import run_id
from metaprobe.papers.collecting.launch import launch
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.papers.systems import SYSTEMS, Models, Prompts, Setup
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.planner import FIRST_TO, FIXED, Setting

ITEM = Item(id="i", question="What is 5 + 7?", gold=("12",), check="number", group="g")
USC, METACOG = SYSTEMS["universal-self-consistency"], SYSTEMS["metacogagent"]


@pytest.fixture(scope="module")
def samples(made_once: MadeOnce) -> Panel:
    return Panel.load(trained(biased_vote, made_once))


@pytest.fixture(scope="module")
def team(made_once: MadeOnce) -> Panel:
    return Panel.load(trained(topics, made_once))


@pytest.fixture(scope="module")
def special(made_once: MadeOnce) -> Panel:
    return panel_of_specialists(made_once)


class Sure(ScriptedLLM):
    """Gives an answer of 12 with three nats less surprise a token than others."""

    def _call(self, request: Request, text: str) -> Call:
        call = super()._call(request, text)
        call.logprobs[:] = -0.05 if "12" in text else -0.4  # type: ignore[index]
        return call


def drawn(*answers: int) -> Callable[[Request], str]:
    return lambda request: f"Answer: {answers[request.round - 1]}"


def test_sampling_stops_where_the_panel_says_so(samples: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "settings", (Setting(FIRST_TO, 2, 2.5, 0.5),))
    llm = Sure({"answer": drawn(12, 7, 12, 12, 12, 12, 12, 12)})
    found = run_once(USC, ITEM, llm, variant="panel", panel=samples)
    assert (llm.stages, found.final_answer) == (["answer"] * 3, "12")
    [label] = [one for one in found.labels if one.name == "panel"]
    assert label.source == samples.checkpoint.digest
    assert 0 < label.value <= 1


def test_the_panel_keeps_the_surer_answer_where_the_vote_keeps_the_mistake(
    samples: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "settings", (Setting(FIXED, 3, 3.0, 0.5),))
    kept = {
        variant: run_once(
            USC, ITEM, Sure({"answer": drawn(*[7, 7, 12] * 3)}), variant=variant, panel=samples
        ).final_answer
        for variant in ("panel", "vote")
    }
    assert kept == {"panel": "12", "vote": "7"}


@pytest.mark.parametrize(
    ("question", "first"), [("sum of the numbers 7", "maths"), ("year of the battle 7", "history")]
)
def test_metacogagent_asks_whom_the_panel_names_and_nobody_how_sure_it_is(
    special: Panel, question: str, first: str
) -> None:
    agents = ("maths", "history")
    llm = ScriptedLLM({"classify": "math", "answer": lambda request: f"{len(request.agent)}"})
    item = dataclasses.replace(ITEM, question=question)
    found = run_once(METACOG, item, llm, variant="panel", panel=special, agents=agents)
    assert [request.agent for request in llm.asked][:2] == ["", first]
    assert set(llm.stages) == {"classify", "answer"}
    assert "dear" not in {request.agent for request in llm.asked}, "it is not of this team"
    assert found.final_answer == str(len(first))


def test_a_panel_that_stores_no_way_of_asking_has_all_agents_answer(team: Panel) -> None:
    llm = ScriptedLLM({"classify": "math", "maths:answer": "12", "*": "7"})
    found = run_once(METACOG, ITEM, llm, variant="panel", panel=team, agents=("history", "maths", "neither"))
    own = team.judge(["7", "12", "7"], agents=["history", "maths", "neither"], question=ITEM.question)
    assert sorted(llm.stages) == ["answer"] * 3 + ["classify"]
    assert found.final_answer == ["7", "12", "7"][own.kept or 0]


@pytest.mark.parametrize(("name", "last"), [("multi-agent-debate", "judge"), ("multi-expert", "merge")])
def test_the_panel_has_the_last_word_in_place_of_a_call(name: str, last: str) -> None:
    said = {"experts": "1. a cook: cooks", "moderator": "Decided: no\nAnswer: 7", "*": "Answer: 12"}
    stages = {}
    for variant in ("plain", "panel"):
        llm = ScriptedLLM(said)
        assert run_once(SYSTEMS[name], ITEM, llm, variant=variant).final_answer == "12"
        stages[variant] = llm.stages
    assert stages["plain"] == [*stages["panel"], last]


def test_another_panel_makes_another_run(samples: Panel, team: Panel) -> None:
    prompts = Prompts.load(USC.folder, USC.prompts)
    setups = [Setup(Models(ScriptedLLM({})), prompts, panel=panel) for panel in (None, samples, team)]
    assert len({run_id(USC, "panel", setup, ITEM) for setup in setups}) == 3
    assert len({run_id(USC, "vote", setup, ITEM) for setup in setups}) == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"variant": ("panel",)}, "add --panel CHECKPOINT"),
        ({"variant": ("vote",), "panel": Path("p")}, "only panel: leave --panel away"),
        ({"system": "metacrit", "panel": Path("p")}, "no variant of it does"),
    ],
)
def test_a_panel_without_its_variant_is_refused_and_the_other_way_round(
    given: dict[str, Any], match: str, tmp_path: Path
) -> None:
    plan = CollectionPlan(**{"system": USC.name, "task": "gsm8k", **given})
    with pytest.raises(RecordError, match=match):
        launch(plan, tmp_path / "runs")


def test_the_stored_call_is_judged_as_it_was_answered(samples: Panel) -> None:
    call = Call(id="c", text="so\n#### 12", tokens=("12",), logprobs=np.array([-0.1], np.float32), finish_reason="stop")
    given = samples.judge([call])
    assert given.reason == "one answer alone: nothing agrees or disagrees with it"
