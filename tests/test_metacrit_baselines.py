"""The baselines of the MetaCrit paper: who sees what, how often they are asked, and what is returned."""

import pytest
from scripted import ScriptedLLM, run_once

from metaprobe.llms.base import Request
from metaprobe.papers.systems import (
    expert_prompting,
    multi_agent_debate,
    multi_expert,
    universal_self_consistency,
    zero_shot_cot,
)
from metaprobe.papers.systems.universal_self_consistency import SAMPLE_COUNT, chosen_number
from metaprobe.records.types import Item

ITEM = Item(id="i", question="What is 2 + 2?", gold=("4",), check="number")
COT, USC, EXPERT, DEBATE, PANEL = (
    module.SYSTEM
    for module in (zero_shot_cot, universal_self_consistency, expert_prompting, multi_agent_debate, multi_expert)
)
EXPERTS = "1. Teacher: knows sums.\n2. Clerk: adds all day.\n3. Child: learns it now."
SAID = {
    "answer": "2 and 2 make four.\nAnswer: 4",
    "choice": "Response: 1",
    "identity": "You are a teacher of sums.",
    "experts": EXPERTS,
    "merge": "All say so.\nAnswer: 4",
    "moderator": "Undecided yet.\nDecided: no\nAnswer: 4",
    "judge": "4, 5.\nAnswer: 4",
    "monitor": "NOTE: one answer, by arithmetic.\nConcern: no",
    "control": "CRITIQUE: in base 3 it is 11.\nConcern: yes\nAnswer: 11",
}


def scripted(**said: object) -> ScriptedLLM:
    return ScriptedLLM({**SAID, **said})  # type: ignore[arg-type]


# Universal self-consistency


def samples(*answers: str):  # type: ignore[no-untyped-def]
    return lambda request: f"sample {request.round}\nAnswer: {answers[request.round - 1]}"


def test_the_vote_asks_for_no_choice_and_returns_what_most_of_the_same_samples_say() -> None:
    drawn = {}
    for variant in ("plain", "vote"):
        llm = scripted(answer=samples(*"44555667"), choice="Response: 7")
        found = run_once(USC, ITEM, llm, variant=variant)
        drawn[variant] = [request.sampling for request in llm.asked if request.stage == "answer"]
    assert drawn["vote"] == drawn["plain"]
    assert llm.stages == ["answer"] * SAMPLE_COUNT.default
    assert found.final_answer == "5"
    assert [(label.call_id, label.name, label.source) for label in found.labels] == [("r/answer/3", "chosen", "vote")]


def test_samples_are_drawn_apart_and_the_named_one_is_returned() -> None:
    llm = scripted(answer=samples(*"44455667"), choice="Response: 7")
    found = run_once(USC, ITEM, llm)
    drawn = [request.sampling for request in llm.asked if request.stage == "answer"]
    assert len({sampling.seed for sampling in drawn}) == len(drawn) == SAMPLE_COUNT.default
    assert {sampling.temperature for sampling in drawn} == {universal_self_consistency.SAMPLING_TEMPERATURE.default}
    assert all(f"Response {n}:\nsample {n}" in llm.prompts_of("choice")[0] for n in range(1, SAMPLE_COUNT.default + 1))
    assert found.final_answer == "6"
    assert [(label.call_id, label.name, label.source) for label in found.labels] == [("r/answer/7", "chosen", "choice")]


@pytest.mark.parametrize(
    "choice", ["They are all nice.", "Response: 9", "Response: 0", "Response 1 and Response 2", ""]
)
def test_an_unreadable_choice_is_put_to_the_vote_and_says_so(choice: str) -> None:
    found = run_once(USC, ITEM, scripted(answer=samples(*"75644657"), choice=choice))
    assert found.final_answer == "7"  # 7, 5, 6 and 4 twice each: the first of equals
    found = run_once(USC, ITEM, scripted(answer=samples(*"75644647"), choice=choice))
    assert found.final_answer == "4"
    assert [(label.call_id, label.source) for label in found.labels] == [("r/answer/4", "vote")]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Response: 2", 2),
        ("The most consistent one is Response 3.", 3),
        (" 5. ", 5),
        ("Response 1 and 4 agree.\nResponse: 4", 4),
        ("Response: 4\nResponse: 5", None),
        ("2 and 2 make 4", None),
    ],
)
def test_the_chosen_number_is_read_or_left_open(text: str, number: int | None) -> None:
    assert chosen_number(text, 8) == number


# Debate


def speech(request: Request) -> str:
    return f"{request.agent} speaks in {request.round}.\nAnswer: {'4' if request.agent == 'affirmative' else '5'}"


def test_a_debate_goes_on_until_the_moderator_decides() -> None:
    verdicts = ["Both have a point.\nDecided: no\nAnswer: 4", "Clear now.\nDecided: yes\nAnswer: 5"]
    llm = scripted(answer=speech, moderator=verdicts)
    found = run_once(DEBATE, ITEM, llm)
    assert llm.stages == ["answer", "answer", "moderator"] * 2
    assert found.final_answer == "5"
    assert [statement.value for statement in found.statements] == [0.0, 1.0]


def test_after_three_rounds_without_a_readable_verdict_the_judge_decides_on_the_last_words() -> None:
    llm = scripted(answer=speech, moderator="Well.\nAnswer: 9", judge="Both.\nAnswer: 5")
    found = run_once(DEBATE, ITEM, llm)
    assert llm.stages == ["answer", "answer", "moderator"] * 3 + ["judge"]
    assert "speaks in 3" in llm.prompts_of("judge")[0]
    assert "speaks in 2" not in llm.prompts_of("judge")[0]
    assert found.final_answer == "5"
    assert [statement.value for statement in found.statements] == [None, None, None, 1.0]


def test_a_verdict_without_an_answer_does_not_end_the_debate() -> None:
    llm = scripted(moderator="Decided: yes")
    run_once(DEBATE, ITEM, llm)
    assert llm.stages[-1] == "judge"


def test_where_the_judge_gives_no_answer_the_sides_and_the_moderator_vote() -> None:
    found = run_once(DEBATE, ITEM, scripted(answer=speech, moderator="Decided: no\nAnswer: 5", judge="Hard to say."))
    assert found.final_answer == "5"
    assert found.statements[-1].value is None


# Multi-expert prompting


@pytest.mark.parametrize(
    ("text", "share", "general"),
    [("1. Teacher: knows sums.", 1 / 3, 2), ("No idea.", None, 3), (EXPERTS + "\n4. Dog: none.", 1.0, 0)],
)
def test_experts_who_cannot_be_read_are_replaced_and_counted(text: str, share: float | None, general: int) -> None:
    llm = scripted(experts=text)
    found = run_once(PANEL, ITEM, llm)
    assert found.stated("experts") == pytest.approx(share)
    assert sum(multi_expert.ANY_EXPERT in prompt for prompt in llm.prompts_of("answer")) == general
    assert "Dog" not in llm.prompts_of("merge")[0]
