"""How many calls a system declares that a run makes at most: what the estimate before a collection is made of."""

from types import SimpleNamespace
from typing import Any

import pytest

from metaprobe.pipelines import SYSTEMS
from metaprobe.routing.paper import PaperRules

CONSTANTS = {
    "reflections": 3,
    "attempts": 5,
    "talk_rounds": 3,
    "rounds": 4,
    "experts": 5,
    "candidates": 5,
    "verifications": 2,
    "conditions": 3,
    "samples": 7,
}
"""All of them another number, so that no sum is a product."""


REVIEWED = {"zero-shot-cot": {"answer": 1}, "multi-expert": {"experts": 1, "answer": 5, "merge": 1}}
"""Systems whose answers may be monitored or controlled."""


def declared(name: str, variant: str, *, policy: object = None, agents: tuple[str, ...] = (), **more: int) -> Any:
    """What a system says with these constants; stages with no call are left out."""
    given = {**CONSTANTS, **more}
    setup: Any = SimpleNamespace(
        options=SimpleNamespace(value=lambda constant: given.get(constant.name, constant.default)),
        policy=policy,
        agents=agents,
        models=SimpleNamespace(by_name={}),
    )
    found = SYSTEMS[name].calls(setup, variant)
    return {stage: count for stage, count in found.items() if count}


# Two assistants of CAELF who reflect three times each, and the user who contests, are 9 arguments, each against 8.
@pytest.mark.parametrize(
    ("name", "variant", "expected"),
    [
        ("caelf", "single", {"answer": 2, "contest": 1}),
        ("caelf", "levels", {"argue": 2, "reflect": 6, "answer": 2, "contest": 1}),
        ("caelf", "no-contest", {"argue": 2, "reflect": 6, "attack": 8 * 7, "answer": 1}),
        ("caelf", "", {"argue": 2, "reflect": 6, "attack": 9 * 8, "answer": 2, "contest": 1}),
        ("essay-debate", "", {"argument": 10, "score": 2, "judge": 4}),
        ("essay-debate", "no-judge", {"argument": 10, "score": 2}),
        ("expert-prompting", "", {"identity": 1, "answer": 1}),
        ("metacogagent", "algorithm", {"classify": 1, "assess": 3, "answer": 3}),
        ("metacogagent", "majority", {"answer": 3}),
        ("metacogagent", "panel", {"classify": 1, "answer": 3}),
        ("metacogagent", "conversation", {"answer": 9}),
        ("metacogagent", "random", {"answer": 1}),
        ("metacrit", "", {"answer": 1, "monitor": 1, "control": 1, "synthesis": 1}),
        ("metacrit", "every-stage", {"answer": 1, "monitor": 1, "control": 2, "synthesis": 4}),
        ("multi-agent-debate", "", {"answer": 8, "moderator": 4, "judge": 1}),
        ("multi-expert", "", {"experts": 1, "answer": 5, "merge": 1}),
        ("self-report", "", {"difficulty": 1, "answer": 1, "confidence": 1}),
        ("self-verification", "paper", {"answer": 5, "backward": 5 * 2 * 3}),
        ("universal-self-consistency", "", {"answer": 7, "choice": 1}),
        ("universal-self-consistency", "vote", {"answer": 7}),
        ("zero-shot-cot", "plain", {"answer": 1}),
        *((name, stage, {**of, stage: 1}) for stage in ("monitor", "control") for name, of in REVIEWED.items()),
        ("self-report", "p-true", {"difficulty": 1, "answer": 1, "confidence": 1, "p_true": 1}),
    ],
)
def test_the_calls_of_a_run_are_those_of_its_variant_and_constants(
    name: str, variant: str, expected: dict[str, int]
) -> None:
    assert declared(name, variant) == expected


def test_a_rule_that_never_asks_again_needs_one_attempt_and_more_agents_need_more_calls() -> None:
    assert declared("essay-debate", "", policy=PaperRules())["argument"] == 2
    assert declared("metacogagent", "conversation", agents=("a", "b"))["answer"] == 6
    assert declared("metacogagent", "algorithm", agents=("a", "b"))["assess"] == 2


@pytest.mark.parametrize("name", ["monitor-generate-verify", "self-refine"])
def test_a_loop_that_may_go_on_is_counted_with_three_cycles_or_with_fewer_where_fewer_are_allowed(name: str) -> None:
    assert set(declared(name, "", most_cycles=9).values()) == {3}
    assert set(declared(name, "", most_cycles=2).values()) == {2}
