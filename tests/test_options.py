"""Limits and constants of every system can be set, are refused before anything is asked, and stand beside the runs."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import asked_endpoint
import pytest
from scripted import ScriptedLLM
from set_up_systems import ESSAY, disagreeing, run_of, setup_of

from metaprobe.collecting.collect import collect
from metaprobe.collecting.models import options_of
from metaprobe.pipelines import SYSTEMS
from metaprobe.pipelines.system_options import Options
from metaprobe.records.store import RunStore
from metaprobe.records.types import Decision, Run
from metaprobe.routing.policy import AGAIN, Outcome, State, make_decision

environment = asked_endpoint.environment

VARIANTS = [(name, variant) for name, system in SYSTEMS.items() for variant in system.variants]
BY_NAME = {constant.name for system in SYSTEMS.values() for constant in system.constants}


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
}  # fmt: skip
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
}  # fmt: skip
"""System -> stage -> calls of a run of its own variant at most, by which the time of a collection is estimated."""
IN_OTHERS = {
    ("self-report", "p-true"): {"p_true": 1},
    ("metacrit", "every-stage"): {"control": 2, "synthesis": 4},
    ("universal-self-consistency", "vote"): {"choice": 0},
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
