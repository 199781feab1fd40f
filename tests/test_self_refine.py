"""Self-Refine follows Algorithm 3: critique, refinement with the whole history, stop on positive feedback."""

import pytest
from scripted import Answer, ScriptedLLM, run_once

from metaprobe.pipelines.self_refine import ACCEPTED, SYSTEM, parse_verdict
from metaprobe.records.types import Item, Run
from metaprobe.routing.explore import Exhaustive

ITEM = Item(id="i1", question="What is 3 times 4?", gold=("12",), check="number")
ANSWERS = ["first try\nAnswer: 7", "second try\nAnswer: 34", "third try\nAnswer: 12", "fourth try\nAnswer: 0"]


def run(feedback: Answer, *, variant: str = "", **setup: object) -> tuple[Run, ScriptedLLM]:
    llm = ScriptedLLM({"answer": ANSWERS, "feedback": feedback})
    return run_once(SYSTEM, ITEM, llm, variant=variant, **setup), llm


def test_it_stops_on_positive_feedback_and_returns_the_answer_that_was_praised() -> None:
    found, llm = run(["That adds.\nVerdict: IMPROVE", "Fine.\nVerdict: GOOD"])
    assert llm.stages == ["answer", "feedback", "answer", "feedback"]
    assert found.final_answer == "34"
    assert [found.stated(ACCEPTED, call.id) for call in found.calls if call.stage == "feedback"] == [0.0, 1.0]


def test_a_first_answer_that_is_praised_is_not_refined() -> None:
    found, llm = run("Verdict: GOOD")
    assert llm.stages == ["answer", "feedback"]
    assert found.final_answer == "7"


def test_three_cycles_at_most_and_the_last_answer_is_returned() -> None:
    found, llm = run("Wrong.\nVerdict: IMPROVE")
    assert llm.stages == ["answer", "feedback"] * 3
    assert found.final_answer == "12"


def test_without_a_readable_verdict_the_feedback_is_not_positive() -> None:
    found, llm = run("This is a good answer.")
    assert llm.stages.count("feedback") == 3
    assert found.stated(ACCEPTED) is None


def test_the_refiner_sees_every_answer_and_all_feedback_so_far() -> None:
    found, llm = run(["It adds.\nVerdict: IMPROVE", "It glues.\nVerdict: IMPROVE", "Verdict: GOOD"])
    _, second, third = llm.prompts_of("answer")
    parts = ["first try", "It adds.", "second try", "It glues."]
    assert [part in second for part in parts] == [True, True, False, False]
    assert [third.index(part) for part in parts] == sorted(third.index(part) for part in parts)
    assert [call.round for call in found.calls if call.stage == "answer"] == [0, 1, 2]
    assert found.calls[2].parent == found.calls[0].id


def test_temperature_and_length_are_the_papers() -> None:
    _, llm = run("Verdict: IMPROVE")
    assert {(request.sampling.temperature, request.sampling.max_tokens) for request in llm.asked} == {(0.3, 800)}
    assert [request.hidden for request in llm.asked] == [True, False] * 3


def test_every_round_is_collected_whatever_the_feedback() -> None:
    _, llm = run("Verdict: GOOD", policy=Exhaustive())
    assert llm.stages == ["answer", "feedback"] * 3


def test_the_raw_critique_variant_adds_its_directive_to_every_prompt_and_nothing_else() -> None:
    _, plain = run("Verdict: IMPROVE")
    _, raw = run("Verdict: IMPROVE", variant="raw-critique")
    for before, after in zip(plain.asked, raw.asked, strict=True):
        added = after.messages[-1].content.replace(before.messages[-1].content.split("\n\n")[-1], "")
        assert "trick" in added
        assert "trick" not in before.messages[-1].content


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("Verdict: GOOD", 1.0),
        ("**Verdict:** improve", 0.0),
        ('All is well.\n"Verdict: GOOD".', 1.0),
        ("Verdict: GOOD or Verdict: IMPROVE", None),
        ("Verdict: IMPROVE or GOOD", None),
        ("Verdict: good / improve", None),
        ("Good work.", None),
        ("Verdict: goodness", None),
        ("", None),
    ],
)
def test_a_verdict_is_read_as_written_or_not_at_all(text: str, accepted: float | None) -> None:
    assert parse_verdict(text) == accepted
