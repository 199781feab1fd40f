"""Limits and constants of every system can be set, are refused before anything is asked, and stand beside the runs."""

from pathlib import Path

import asked_endpoint
import pytest
from set_up_systems import run_of

from metaprobe.papers.systems import SYSTEMS

environment = asked_endpoint.environment

VARIANTS = [(name, variant) for name, system in SYSTEMS.items() for variant in system.variants]


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=str)
def test_a_run_keeps_to_the_limits_that_are_set(tmp_path: Path, name: str, variant: str) -> None:
    system = SYSTEMS[name]
    limits = tuple(f"{stage}={300 + place}" for place, stage in enumerate(system.stages))
    assert set(system.limits) <= set(system.stages)
    run = run_of(tmp_path, name, variant, tokens=limits if system.limits else ())
    for call in run.calls:
        assert call.sampling.max_tokens == 300 + system.stages.index(system.limited(call.stage))


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
    calls = run_of(tmp_path, name, variant, constants=constant).calls
    assert sum(call.stage == stage for call in calls) == asked != default
