"""Self-Verification follows Algorithm 2: candidates, hidden conditions, the best verified answer."""

import re
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from scripted import Answer, ScriptedLLM, run_once

from metaprobe.llms.base import Request
from metaprobe.papers.systems.self_verification import MOST_CONDITIONS, SYSTEM, VERIFIED, masked_conditions
from metaprobe.records.types import Item, Run

ITEM = Item(id="i1", question="Ann has 3 bags of 4 apples. How many apples?", gold=("12",), check="number")


def run(answers: list[str], backward: Answer, item: Item = ITEM) -> tuple[Run, ScriptedLLM]:
    llm = ScriptedLLM({"answer": answers, "backward": backward})
    return run_once(SYSTEM, item, llm), llm


def knows(*right: str) -> Callable[[Request], str]:
    """A verifier that finds the hidden number where the claimed answer is one of `right`."""

    def answer(request: Request) -> str:
        prompt = request.messages[-1].content
        hidden = "4" if re.search(r"3 bags of X", prompt) else "3"
        claimed = re.search(r"The answer to this question is (\d+)", prompt)
        return f"Answer: {hidden if claimed and claimed[1] in right else 99}"

    return answer


def test_the_answer_from_which_the_conditions_follow_wins_over_the_majority() -> None:
    found, llm = run(["Answer: 7", "Answer: 12", "Answer: 7"], knows("12"))
    assert found.final_answer == "12"
    assert llm.stages == ["answer"] * 3 + ["backward"] * 4  # two distinct answers, two conditions each
    assert found.decisions[-1].scores == {"0": 0.0, "1": 1.0}


def test_of_equally_verified_answers_the_majority_wins() -> None:
    found, _ = run(["Answer: 7", "Answer: 12", "Answer: 12"], knows())
    assert found.final_answer == "12"
    assert run(["Answer: 7", "Answer: 12", "Answer: 8"], knows())[0].final_answer == "7"  # then the first


def test_where_all_agree_nothing_is_verified() -> None:
    found, llm = run(["Answer: 12", "Answer: **12**.", "so\nAnswer: 12 apples"], [])
    assert llm.stages == ["answer"] * 3
    assert found.final_answer == "12"


def test_a_backward_call_shows_the_masked_problem_and_the_conclusion_and_not_the_condition() -> None:
    found, llm = run(["Answer: 7", "Answer: 12", "Answer: 12"], knows("12"))
    prompt = llm.prompts_of("backward")[1]
    assert "Ann has 3 bags of X apples. How many apples?\nThe answer to this question is 12." in prompt
    assert found.calls[3].parent == found.calls[1].id


def test_a_reconstruction_that_cannot_be_read_is_none_and_no_success() -> None:
    found, _ = run(["Answer: 7", "Answer: 12", "Answer: 12"], ["no idea", "Answer: 4", "Answer: 3", "Answer: 4"])
    stated = [statement.value for statement in found.statements if statement.kind == VERIFIED]
    assert stated == [None, 1.0, 1.0, 1.0]
    assert found.final_answer == "7"


def test_without_numbers_the_model_is_asked_whether_the_statement_is_true() -> None:
    item = Item(
        id="i2", question="Which is larger, a cat or a cow?", gold=("cow",), choices=("cat", "cow"), check="choice"
    )

    def judge(request: Request) -> str:
        return f"Answer: {'true' if 'question is cow' in request.messages[-1].content else 'false'}"

    found, llm = run(["Answer: cat", "Answer: cow", "Answer: cat"], judge, item)
    assert found.final_answer == "cow"
    assert llm.stages.count("backward") == 2
    unread, _ = run(["Answer: cat", "Answer: cow", "Answer: cat"], "Answer: perhaps", item)
    assert [s.value for s in unread.statements] == [None, None]


@given(st.lists(st.integers(0, 9999), max_size=8))
def test_every_condition_is_hidden_once_and_the_rest_of_the_problem_is_kept(values: list[int]) -> None:
    question = "He has " + " and ".join(f"${value:,}" for value in values) + "."
    found = masked_conditions(Item(id="i", question=question, check="number"), MOST_CONDITIONS.default)
    assert [value for _, value in found] == [f"{value:,}" for value in values][: MOST_CONDITIONS.default]
    assert all(masked.replace("X", value) == question for masked, value in found)
