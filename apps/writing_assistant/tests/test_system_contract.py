"""The system keeps what it declares: limits, calls, points, and what it asks. It is found by its entry point."""

import ast
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from scripted import ScriptedLLM, run_once
from test_contract import SAID, Curious, Watching
from test_what_is_asked import asked

import metaprobe_writing_assistant
from metaprobe.papers.collecting.models import call_options
from metaprobe.papers.systems import SYSTEMS, load_system
from metaprobe.papers.systems.named_systems import system_names
from metaprobe.papers.tasks.named_tasks import load_task, task_names
from metaprobe.records.types import Item

WRITTEN = Path(__file__).parent / "what_is_asked.json"
SYSTEM = load_system("writing-assistant")
TURN = Item(
    id="turn",
    question="Is my claim right?",
    group="turn",
    fields={
        "demographic": "16 years old",
        "proficiency": "",
        "goals": "",
        "preferences": "",
        "draft": "Veins look blue. The blood inside them is blue, because it has no oxygen.",
        "message": "Is my claim right?",
        "history": "[]",
    },
)
FULL = {**SAID, "stage": "DURING", "reasoning": "REASONING"}
"""Answers on which the assistant asks most."""
LIMITS = {
    "profile": 96, "stage": 16, "topic": 12, "guide": 192, "aggregate": 192, "words": 48, "explain": 320,
    "extract": 512, "assess": 320, "reasoning": 16, "answer": 224, "monitor": 160, "control": 288,
    "synthesis": 288, "respond": 384,
}  # fmt: skip
"""Stage -> the most tokens of a call: what recorded runs, their ids and costs rest on."""
MOST_CALLS = {
    "metacrit": {**dict.fromkeys(LIMITS, 1), "stage": 2, "assess": 2, "reasoning": 2},
    "multi": {
        **{"profile": 1, "stage": 2, "topic": 1, "guide": 1, "aggregate": 1, "words": 1, "explain": 1},
        **{"extract": 1, "assess": 2, "respond": 1},
    },
    "single": {"stage": 2, "guide": 1, "respond": 1},
}
VARIANTS = pytest.mark.parametrize("variant", SYSTEM.variants)


def test_system_and_tasks_are_known_by_their_names_and_are_no_part_of_the_package() -> None:
    assert "writing-assistant" in system_names()
    assert "writing-assistant" not in SYSTEMS
    assert {"writing-cases", "writing-turns"} <= set(task_names())
    assert (len(load_task("writing-cases")), len(load_task("writing-turns"))) == (22, 332)


def test_the_app_uses_public_names_of_metaprobe_only() -> None:
    [folder] = metaprobe_writing_assistant.__path__
    for path in Path(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "metaprobe":
                names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
                assert not [name for name in names if name.startswith("_")], f"{path.name}: {node.module}"


def test_limits_and_constants_are_those_of_the_recorded_runs() -> None:
    assert dict(SYSTEM.limits) == LIMITS
    assert {one.name: (one.default, one.low) for one in SYSTEM.constants} == {
        "shown_words": (1200, 20),
        "learned": (0, 0),
    }
    assert SYSTEM.answer_stages == ("respond",)


@VARIANTS
def test_a_run_makes_no_more_calls_than_its_variant_should(variant: str) -> None:
    stages = Counter(call.stage for call in run_once(SYSTEM, TURN, ScriptedLLM(FULL), variant=variant).calls)
    assert all(stages[stage] <= MOST_CALLS[variant][stage] for stage in stages)


@VARIANTS
def test_the_limit_of_every_stage_can_be_set(variant: str) -> None:
    options = call_options(SYSTEM, tuple(f"{stage}={300 + place}" for place, stage in enumerate(SYSTEM.stages)))
    for call in run_once(SYSTEM, TURN, ScriptedLLM(FULL), variant=variant, options=options).calls:
        assert call.sampling.max_tokens == 300 + SYSTEM.stages.index(call.stage)


@VARIANTS
def test_what_a_variant_declares_is_what_it_asks_for(variant: str) -> None:
    policy, signals = Curious(), Watching()
    run_once(SYSTEM, TURN, ScriptedLLM(FULL), variant=variant, policy=policy, signals=signals)
    assert policy.points == set(SYSTEM.points_in(variant))
    assert signals.asked == set(SYSTEM.signals_in(variant))


@VARIANTS
def test_the_system_asks_what_it_has_always_asked(variant: str) -> None:
    """A change here makes stores and caches of before ask anew. `python FILE` writes the file again."""
    written = json.loads(WRITTEN.read_text(encoding="utf-8"))
    assert set(written) == {f"writing-assistant {one}" for one in SYSTEM.variants}
    assert asked(SYSTEM, TURN, variant, FULL) == written[f"writing-assistant {variant}"]


if __name__ == "__main__":
    every = {f"writing-assistant {variant}": asked(SYSTEM, TURN, variant, FULL) for variant in SYSTEM.variants}
    WRITTEN.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{sum(map(len, every.values()))} lines\n")
