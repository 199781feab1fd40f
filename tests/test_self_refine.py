"""Self-Refine follows Algorithm 3: critique, refinement with the whole history, stop on positive feedback."""

import pytest
from scripted import Answer, ScriptedLLM, run_once

from metaprobe.papers.policies.explore import Exhaustive
from metaprobe.papers.systems.self_refine import ACCEPTED, SYSTEM, parse_good
from metaprobe.records.types import Item, Run

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


def test_three_cycles_at_most_and_the_last_answer_is_returned() -> None:
    found, llm = run("Wrong.\nVerdict: IMPROVE")
    assert llm.stages == ["answer", "feedback"] * 3
    assert found.final_answer == "12"


def test_without_a_readable_verdict_the_feedback_is_not_positive() -> None:
    found, llm = run("This is a good answer.")
    assert llm.stages.count("feedback") == 3
    assert found.stated(ACCEPTED) is None


def test_every_round_is_collected_whatever_the_feedback() -> None:
    _, llm = run("Verdict: GOOD", policy=Exhaustive())
    assert llm.stages == ["answer", "feedback"] * 3


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
    assert parse_good(text) == accepted
