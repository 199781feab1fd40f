"""Limits and constants of every system can be set, are refused before anything is asked, and stand beside the runs."""

from collections import Counter
from pathlib import Path

import asked_endpoint
import pytest
from scripted import ScriptedLLM
from set_up_systems import run_of, setup_of

from metaprobe.collecting.models import options_of
from metaprobe.pipelines import SYSTEMS
from metaprobe.records.types import Run

environment = asked_endpoint.environment

VARIANTS = [(name, variant) for name, system in SYSTEMS.items() for variant in system.variants]


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


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_a_system_asks_where_nothing_is_set(name: str) -> None:
    system = SYSTEMS[name]
    assert dict(system.limits) == LIMITS[name]
    assert {c.name: (c.default, c.low) for c in system.constants} == CONSTANTS.get(name, {})
    assert {c.high for c in system.constants if c.name == "temperature"} <= {2}
    assert system.answer_stages == LABELLED.get(name, ("answer",))


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=str)
def test_a_run_keeps_to_the_limits_that_are_set_and_the_calls_that_its_system_declares(
    tmp_path: Path, name: str, variant: str
) -> None:
    system = SYSTEMS[name]
    limits = tuple(f"{stage}={300 + place}" for place, stage in enumerate(system.stages))
    setup = setup_of(name, options_of(system, limits), ScriptedLLM({}))
    most = system.calls(setup, variant)
    assert set(most) <= set(system.limits) <= set(system.stages)
    run = run_of(tmp_path, name, variant, tokens=limits if system.limits else ())
    calls = [call for call in run.calls if call.stage != "likelihood"]
    for call in calls:
        assert call.sampling.max_tokens == 300 + system.stages.index(system.limited(call.stage))
    asked = Counter(system.limited(call.stage) for call in calls)
    assert all(asked[stage] <= most[stage] for stage in asked), (asked, most)
    assert sum(call.sampling.max_tokens for call in calls) <= system.most_tokens(setup, variant)


def calls_of(run: Run) -> Counter[str]:
    return Counter(call.stage for call in run.calls)


@pytest.mark.parametrize(
    ("name", "variant", "constant", "stage", "default", "asked"),
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
    tmp_path: Path, name: str, variant: str, constant: str, stage: str, default: int, asked: int
) -> None:
    assert calls_of(run_of(tmp_path, name, variant, constants=constant))[stage] == asked != default
