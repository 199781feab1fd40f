"""Limits and constants of every system can be set, are refused before anything is asked, and stand beside the runs."""

import asyncio
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import asked_endpoint
import pytest
from asked_endpoint import complete
from click.testing import CliRunner
from faulty_server import FaultyServer
from scripted import ScriptedLLM

from metaprobe.cli import main
from metaprobe.collecting.collect import collect, run_id
from metaprobe.collecting.given_options import check_limits, options_of
from metaprobe.collecting.launch import CollectionPlan, CollectionWatch, TimeEstimate, launch
from metaprobe.llms.base import Request
from metaprobe.pipelines import SYSTEMS, Models, Prompts, Setup
from metaprobe.pipelines.session import READ
from metaprobe.pipelines.system_options import Options
from metaprobe.records.errors import MissingExtra, RecordError, StoreMismatch
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision, Item, Run
from metaprobe.routing.paper import AGAIN
from metaprobe.routing.policy import Outcome, State, make_decision

environment = asked_endpoint.environment
server = asked_endpoint.server

SUM = Item(
    id="sum", question="Tom has 3 apples, buys 4 and eats 2 of 9. How many?", gold=("5",), check="number", group="sum"
)
ESSAY = Item(
    id="essay",
    question="Grade the essay.",
    gold=("2",),
    check="number",
    fields={
        "essay": "Once I had to wait for my friend. I waited for hours and was calm.",
        "trait": "ideas",
        "rubric": "0: no story. 1: a story without details. 2: a story with details. 3: rich in details.",
        "essay_prompt": "Write about patience.",
        "low": "0",
        "high": "3",
    },
)
PAIR = Item(id="pair", question="?", gold=("Yes.",), choices=("Yes.", "Is."), check="choice")
ITEM_OF = {"essay-debate": ESSAY, "caelf": ESSAY, "likelier-choice": PAIR}
VARIANTS = [(name, variant) for name, system in SYSTEMS.items() for variant in system.variants]
BY_NAME = {constant.name for system in SYSTEMS.values() for constant in system.constants}


def disagreeing(request: Request) -> str:
    """Answers that differ, so that there is always something left to do."""
    mine = f"{len(request.id)}{request.round}"
    return f"{mine}\n1. One: a\n2. Two: b\n3. Three: c\nyes. Answer: {mine}. Verdict: IMPROVE"


def setup_of(name: str, options: Options, llm: ScriptedLLM) -> Setup:
    system = SYSTEMS[name]
    prompts = Prompts.load(system.folder or name, system.prompts, optional=system.agents)
    return Setup(Models(llm), prompts, agents=system.agents, options=options)


def run_of(folder: Path, name: str, variant: str = "", *, tokens: tuple[str, ...] = (), constants: str = "") -> Run:
    """One run, with what was asked in it."""
    system = SYSTEMS[name]
    options = options_of(system, tokens, tuple(filter(None, constants.split(","))))
    setup = setup_of(name, options, ScriptedLLM({"*": disagreeing}))
    item = ITEM_OF.get(name, SUM)
    chosen = [variant or system.variants[0]]
    report = asyncio.run(collect(system, [item], setup, RunStore(folder), variants=chosen))
    assert not report.failed
    (run,) = RunStore(folder)
    return run


LIMITS = {
    "self-report": {"difficulty": 8, "answer": 96, "confidence": 8, "p_true": 2},
    "metacrit": {"answer": 256, "monitor": 128, "control": 256, "synthesis": 320},
    "monitor-generate-verify": {"monitor": 100, "strategy": 32, "answer": 800, "verify": 300},
    "metacogagent": {"classify": 6, "assess": 16, "answer": 96},
    "essay-debate": {"argument": 320, "score": 16, "judge": 192},
    "caelf": {"argue": 192, "reflect": 192, "attack": 4, "answer": 288, "contest": 192, "judge": 64},
    "zero-shot-cot": {"answer": 256, "monitor": 128, "control": 256},
    "self-refine": {"answer": 800, "feedback": 800},
    "self-verification": {"answer": 800, "backward": 400},
    "universal-self-consistency": {"answer": 256, "choice": 16},
    "expert-prompting": {"identity": 96, "answer": 256},
    "multi-agent-debate": {"answer": 192, "moderator": 96, "judge": 192},
    "multi-expert": {"experts": 128, "answer": 192, "monitor": 128, "control": 256, "merge": 320},
    "likelier-choice": {},
}
"""System -> stage -> the most tokens of a call: what recorded runs, their ids and costs rest on."""
CONSTANTS = {
    "monitor-generate-verify": {"most_cycles": (10, 1)},
    "metacogagent": {"talk_rounds": (2, 1)},
    "essay-debate": {"attempts": (2, 1), "temperature": (1.0, 0)},
    "caelf": {"reflections": (1, 0)},
    "self-refine": {"most_cycles": (10, 1), "temperature": (0.3, 0)},
    "self-verification": {
        "candidates": (3, 1), "verifications": (1, 1), "conditions": (4, 1), "temperature": (0.3, 0)
    },
    "universal-self-consistency": {"samples": (8, 1), "temperature": (0.6, 0)},
    "multi-agent-debate": {"rounds": (3, 1)},
    "multi-expert": {"experts": (3, 1)},
}  # fmt: skip
"""System -> constant -> its default, which is the paper's where that says one, and the least it may be."""
LABELLED = {
    "metacrit": ("answer", "synthesis", "synthesis-without-monitor", "synthesis-without-control",
                 "synthesis-without-both"),
    "essay-debate": ("score",),
    "zero-shot-cot": ("answer", "control"),
    "multi-agent-debate": ("answer", "moderator", "judge"),
    "multi-expert": ("answer", "merge"),
    "likelier-choice": (),
}  # fmt: skip
"""System -> the stages whose calls are answers, where these are others than `answer`."""
MOST_CALLS = {
    "self-report": {"difficulty": 1, "answer": 1, "confidence": 1},
    "metacrit": {"answer": 1, "monitor": 1, "control": 1, "synthesis": 1},
    "monitor-generate-verify": {"monitor": 3, "strategy": 3, "answer": 3, "verify": 3},
    "metacogagent": {"classify": 1, "assess": 3, "answer": 3},
    "essay-debate": {"argument": 2, "score": 2, "judge": 4},
    "caelf": {"argue": 2, "reflect": 2, "attack": 20, "answer": 2, "contest": 1},
    "zero-shot-cot": {"answer": 1},
    "self-refine": {"answer": 3, "feedback": 3},
    "self-verification": {"answer": 3, "backward": 12},
    "universal-self-consistency": {"answer": 8, "choice": 1},
    "expert-prompting": {"identity": 1, "answer": 1},
    "multi-agent-debate": {"answer": 6, "moderator": 3, "judge": 1},
    "multi-expert": {"experts": 1, "answer": 3, "merge": 1},
    "likelier-choice": {},
}
"""System -> stage -> calls of a run of its own variant at most, by which the time of a collection is estimated."""
IN_OTHERS = {
    ("self-report", "p-true"): {"p_true": 1},
    ("metacrit", "every-stage"): {"control": 2, "synthesis": 4},
    ("zero-shot-cot", "monitor"): {"monitor": 1},
    ("zero-shot-cot", "control"): {"control": 1},
    ("multi-expert", "monitor"): {"monitor": 1},
    ("multi-expert", "control"): {"control": 1},
    ("essay-debate", "no-judge"): {"judge": 0},
    ("caelf", "levels"): {"attack": 0},
    ("caelf", "no-contest"): {"attack": 12, "answer": 1, "contest": 0},
    ("caelf", "single"): {"argue": 0, "reflect": 0, "attack": 0},
    ("metacogagent", "conversation"): {"classify": 0, "assess": 0, "answer": 6},
    ("metacogagent", "majority"): {"classify": 0, "assess": 0},
    **{("metacogagent", name): {"classify": 0, "assess": 0, "answer": 1}
       for name in ("single", "round-robin", "random", "keyword")},
}  # fmt: skip
"""(system, variant) -> where it asks more or less often than the system's own variant."""


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_a_system_asks_where_nothing_is_set(name: str) -> None:
    system = SYSTEMS[name]
    assert dict(system.limits) == LIMITS[name]
    assert {c.name: (c.default, c.low) for c in system.constants} == CONSTANTS.get(name, {})
    assert {c.high for c in system.constants if c.name == "temperature"} <= {2}
    assert system.answer_stages == LABELLED.get(name, ("answer",))
    setup = setup_of(name, Options(), ScriptedLLM({}))
    for variant in system.variants:
        expected = MOST_CALLS[name] | IN_OTHERS.get((name, variant), {})
        calls = dict(system.calls(setup, variant))
        assert {stage: n for stage, n in calls.items() if n} == {stage: n for stage, n in expected.items() if n}
        tokens = sum(n * LIMITS[name][stage] for stage, n in expected.items())
        assert system.most_tokens(setup, variant) == tokens


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=str)
def test_a_run_stays_within_the_calls_and_tokens_that_its_system_declares(
    tmp_path: Path, name: str, variant: str
) -> None:
    system = SYSTEMS[name]
    run = run_of(tmp_path, name, variant)
    setup = setup_of(name, Options(), ScriptedLLM({}))
    most = system.calls(setup, variant)
    asked = [call for call in run.calls if call.stage != "likelihood"]
    assert set(most) <= set(system.limits) <= set(system.stages)
    stages = Counter(system.limited(call.stage) for call in asked)
    assert all(stages[stage] <= most[stage] for stage in stages), (stages, most)
    assert sum(call.sampling.max_tokens or 0 for call in asked) <= system.most_tokens(setup, variant)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "likelier-choice"])
def test_the_limit_of_every_stage_of_every_system_can_be_set_and_is_counted_in_the_estimate(
    tmp_path: Path, name: str
) -> None:
    system = SYSTEMS[name]
    for variant in system.variants:
        each = tuple(f"{stage}={300 + place}" for place, stage in enumerate(system.stages))
        run = run_of(tmp_path / f"each {variant}", name, variant, tokens=each)
        for call in run.calls:
            assert call.sampling.max_tokens == 300 + system.stages.index(system.limited(call.stage))
        assert {
            call.sampling.max_tokens for call in run_of(tmp_path / variant, name, variant, tokens=("7",)).calls
        } == {7}
    short, long = (
        system.most_tokens(setup_of(name, options_of(system, (f"{n}",)), ScriptedLLM({})), system.variants[0])
        for n in (1, 10)
    )
    assert long == 10 * short > 0


def calls_of(run: Run) -> Counter[str]:
    return Counter(call.stage for call in run.calls)


@pytest.mark.parametrize(
    ("name", "variant", "constant", "stage", "before", "after"),
    [
        ("metacogagent", "conversation", "talk_rounds=3", "answer", 6, 9),
        ("caelf", "", "reflections=0", "reflect", 2, 0),
        ("caelf", "", "reflections=2", "reflect", 2, 4),
        ("monitor-generate-verify", "", "most_cycles=2", "answer", 3, 2),
        ("self-refine", "", "most_cycles=1", "answer", 3, 1),
        ("self-verification", "", "candidates=2", "answer", 3, 2),
        ("self-verification", "", "verifications=2", "backward", 12, 24),
        ("self-verification", "", "conditions=1", "backward", 12, 3),
        ("universal-self-consistency", "", "samples=3", "answer", 8, 3),
        ("multi-agent-debate", "", "rounds=1", "moderator", 3, 1),
        ("multi-expert", "", "experts=2", "answer", 3, 2),
    ],
)
def test_a_constant_changes_what_is_asked(
    tmp_path: Path, name: str, variant: str, constant: str, stage: str, before: int, after: int
) -> None:
    assert calls_of(run_of(tmp_path / "default", name, variant))[stage] == before
    assert calls_of(run_of(tmp_path / "set", name, variant, constants=constant))[stage] == after


@dataclasses.dataclass(frozen=True)
class Stubborn:
    """Asks again wherever it may."""

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        return make_decision(
            state, AGAIN if AGAIN in legal_actions else legal_actions[0], legal_actions, {}, "never content"
        )

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Learns nothing."""


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_a_debater_argues_as_often_as_is_set_where_the_policy_asks_again(tmp_path: Path, attempts: int) -> None:
    system = SYSTEMS["essay-debate"]
    options = options_of(system, constants=(f"attempts={attempts}",))
    setup = dataclasses.replace(setup_of(system.name, options, ScriptedLLM({"*": disagreeing})), policy=Stubborn())
    asyncio.run(collect(system, [ESSAY], setup, RunStore(tmp_path)))
    (run,) = RunStore(tmp_path)
    assert calls_of(run)["argument"] == system.calls(setup, "paper")["argument"] == 2 * attempts


@pytest.mark.parametrize(
    "name", [name for name, system in SYSTEMS.items() if any(c.name == "temperature" for c in system.constants)]
)
def test_a_temperature_can_be_set(tmp_path: Path, name: str) -> None:
    drawn = [call.sampling.temperature for call in run_of(tmp_path, name, constants="temperature=0.9").calls]
    assert 0.9 in drawn
    assert set(drawn) <= {0.0, 0.9}


def test_every_constant_is_one_of_those_that_were_tried_here() -> None:
    marks = next(mark for mark in test_a_constant_changes_what_is_asked.pytestmark if mark.name == "parametrize")
    assert {row[2].partition("=")[0] for row in marks.args[1]} | {"temperature", "attempts"} == BY_NAME


@pytest.mark.parametrize(
    ("tokens", "constants", "said"),
    [
        (("essay=9",), (), r"caelf has no stage 'essay'; .* argue \(192\), reflect \(192\), attack \(4\)"),
        (("attack=0",), (), "above 0 or 'none'"),
        (("attack=many",), (), "above 0 or 'none'"),
        (("attack=4", "attack=5"), (), "attack has 4 already"),
        ((), ("rounds=2",), r"a constant of caelf: reflections \(1: how often .* --policy"),
        ((), ("reflections",), "expected NAME=VALUE"),
        ((), ("reflections=-1",), "reflections=-1: expected a whole number of at least 0"),
        ((), ("reflections=1.5",), "expected a whole number"),
        ((), ("reflections=1", "reflections=2"), "reflections is 1 already"),
    ],
)
def test_what_a_system_does_not_have_is_refused_before_a_model_is_loaded_and_what_it_has_is_named(
    tmp_path: Path, tokens: tuple[str, ...], constants: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        launch(
            CollectionPlan(system="caelf", task="nowhere", llm=("nowhere",), tokens=tokens, constant=constants),
            tmp_path,
        )
    words = [word for text in tokens for word in ("--tokens", text)]
    words += [word for text in constants for word in ("--constant", text)]
    result = CliRunner().invoke(main, ["collect", "caelf", "--task", "nowhere", "--out", str(tmp_path), *words])
    assert result.exit_code == 1
    assert "caelf" in result.output or "already" in result.output or "expected" in result.output


def test_a_store_says_what_was_set_and_is_not_continued_with_something_else(tmp_path: Path) -> None:
    run_of(tmp_path, "caelf", tokens=("attack=9",), constants="reflections=2")
    pinned = json.loads((tmp_path / "collection.json").read_text())
    assert (pinned["tokens"], pinned["constants"]) == ({"attack": 9}, {"reflections": 2})
    for tokens, constants in (((), "reflections=2"), (("attack=9",), "")):
        with pytest.raises(StoreMismatch, match=r"tokens|constants"):
            run_of(tmp_path, "caelf", tokens=tokens, constants=constants)


def test_only_what_differs_from_the_default_makes_another_run(tmp_path: Path) -> None:
    plain, same, fewer, longer = (
        run_of(tmp_path / f"{place}", "caelf", **options).id
        for place, options in enumerate(
            ({}, {"constants": "reflections=1"}, {"constants": "reflections=0"}, {"tokens": ("attack=9",)})  # type: ignore[list-item]
        )
    )
    assert plain == same
    assert len({plain, fewer, longer}) == 3


def test_a_store_from_before_options_could_be_set_is_continued_with_the_defaults_only(tmp_path: Path) -> None:
    run_of(tmp_path, "caelf")
    settings = tmp_path / "collection.json"
    old = {k: v for k, v in json.loads(settings.read_text()).items() if k not in ("tokens", "constants", "profiles")}
    settings.write_text(json.dumps(old))
    run_of(tmp_path, "caelf")
    with pytest.raises(StoreMismatch, match=r"constants \{'reflections': 1\}, now \{'reflections': 2\}"):
        run_of(tmp_path, "caelf", constants="reflections=2")


def test_without_a_limit_an_endpoint_is_told_none_and_a_model_of_this_machine_is_refused_first(
    server: FaultyServer, tmp_path: Path
) -> None:
    call = complete(server, "q: ok", sampling={"max_tokens": None})
    assert not {"max_tokens", "max_completion_tokens"} & set(server.bodies[0])
    assert call.sampling.max_tokens is None
    plan = CollectionPlan(system="metacogagent", task="metacog-eval", llm=("nowhere",), tokens=("answer=none",))
    with pytest.raises(RecordError, match="tokens answer=none: nowhere runs on this machine"):
        launch(plan, tmp_path)
    system, endpoint = SYSTEMS["metacogagent"], "openai:m@http://127.0.0.1:9/v1"
    options = options_of(system, ("answer=none",))
    check_limits(options, system, {"": endpoint, "assess": "local"}, system.agents)  # only answers are not cut
    with pytest.raises(RecordError, match="local runs on this machine"):
        check_limits(options, system, {"": endpoint, "gamma": "local"}, system.agents)


def test_a_run_without_limits_is_stored_and_resumed(tmp_path: Path) -> None:
    run = run_of(tmp_path, "metacogagent", tokens=("none",))
    assert {call.sampling.max_tokens for call in run.calls if call.stage != READ} == {None}
    assert run_of(tmp_path, "metacogagent", tokens=("none",)).id == run.id


def test_the_estimate_before_a_collection_follows_limits_and_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = ScriptedLLM({"*": disagreeing})
    monkeypatch.setattr("metaprobe.collecting.launch.load_models", lambda *_, **__: Models(llm))
    task = tmp_path / "task.jsonl"
    task.write_text(json.dumps({"id": "i", "question": "1 + 1?", "gold": ["2"], "check": "number"}))
    told: list[TimeEstimate] = []
    for place, (tokens, constants) in enumerate((((), ()), (("answer=1000",), ()), ((), ("samples=2",)))):
        plan = CollectionPlan(
            system="universal-self-consistency", task=str(task), tokens=tokens, constant=constants, llm=("scripted",)
        )
        launch(plan, tmp_path / f"{place}", CollectionWatch(on_estimate=told.append))
    assert [estimate.tokens_per_run for estimate in told] == [8 * 256 + 16, 8 * 1000 + 16, 2 * 256 + 16]


def test_a_package_that_a_system_needs_is_missed_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "clingo", None)
    with pytest.raises(MissingExtra, match=r"clingo .*metaprobe\[argumentation\]"):
        launch(CollectionPlan(system="caelf", task="nowhere", llm=("nowhere",)), tmp_path)
    with pytest.raises(RecordError, match="nowhere"):  # one model in one conversation argues about nothing
        launch(CollectionPlan(system="caelf", task="nowhere", llm=("nowhere",), variant=("single",)), tmp_path)


def test_answers_that_their_limit_has_cut_are_counted_by_stage(tmp_path: Path) -> None:
    class Cut(ScriptedLLM):
        def _call(self, request: Request, text: str) -> Call:
            cut = request.stage == "answer" and request.agent != "beta"
            return dataclasses.replace(super()._call(request, text), finish_reason="length" if cut else "stop")

    setup = setup_of("metacogagent", Options(), Cut({"*": disagreeing}))
    store = RunStore(tmp_path)
    report = asyncio.run(collect(SYSTEMS["metacogagent"], [SUM], setup, store, variants=["every-agent"]))
    assert report.cut == {"answer": (2, 3)}


@pytest.mark.parametrize("name", ["gsm8k-self-refine", "creak-cot"])
def test_recorded_runs_keep_their_ids_where_nothing_is_set(name: str) -> None:
    """So that a store from before options could be set is resumed, and its calls are not asked again."""
    runs = list(RunStore(Path(__file__).parent.parent / "recorded" / name))
    system, model = SYSTEMS[runs[0].system], runs[0].id.split("/")[2]
    setup = setup_of(system.name, Options(), ScriptedLLM({}, name=model))
    found = {run_id(system, run.variant, setup, run.item) == run.id for run in runs}
    assert found == {True}
    changed = dataclasses.replace(setup, options=Options(tokens={"answer": 9}))
    assert run_id(system, runs[0].variant, changed, runs[0].item) != runs[0].id
