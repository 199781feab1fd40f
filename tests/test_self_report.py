"""The first system asks for difficulty, answer and confidence, and records what was said."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scripted import ScriptedLLM, run_once

from metaprobe.papers.systems import SYSTEMS, PromptError, Prompts
from metaprobe.papers.systems.self_report import extract_answer, p_true
from metaprobe.records.types import Call, Item, Run

SYSTEM = SYSTEMS["self-report"]
ITEM = Item(id="i1", question="What is 2 + 2?", gold=("4",), check="number")


def scripted(**texts: str) -> ScriptedLLM:
    return ScriptedLLM({"difficulty": "20", "answer": "4", "confidence": "90", **texts})


def run(llm: ScriptedLLM, variant: str = "direct", item: Item = ITEM) -> Run:
    return run_once(SYSTEM, item, llm, variant=variant)


@pytest.mark.parametrize("variant", SYSTEM.variants)
def test_a_run_has_its_calls_and_what_was_stated(variant: str) -> None:
    llm = scripted(answer="2 and 2 make four.\nAnswer: 4" if variant == "step-by-step" else "4", p_true="True")
    found = run(llm, variant)
    stages = ["difficulty", "answer", "confidence", *(["p_true"] if variant == "p-true" else [])]
    assert [call.stage for call in found.calls] == stages
    assert (found.stated("difficulty"), found.stated("confidence"), found.final_answer) == (0.2, 0.9, "4")
    assert found.calls[2].parent == found.calls[1].id
    assert len({call.id for call in found.calls}) == len(stages)


@pytest.mark.parametrize(
    ("text", "expected"), [("True", 0.8), (" true.", 0.8), ("False", 0.2), ("Maybe", None), ("", None)]
)
def test_p_true_is_the_probability_of_the_first_token(text: str, expected: float | None) -> None:
    logprobs = np.log([0.8, 0.5]).astype(np.float32)
    assert p_true(Call(id="c", text=text, logprobs=logprobs)) == (expected and pytest.approx(expected))
    assert p_true(Call(id="c", text=text)) is None


def test_what_cannot_be_read_is_none_and_not_a_guess() -> None:
    found = run(scripted(difficulty="I would rather not say", confidence="between 10 and 90"))
    assert found.stated("difficulty") is None
    assert found.stated("confidence") is None
    assert [statement.kind for statement in found.statements] == ["difficulty", "confidence"]


def test_difficulty_is_asked_before_the_answer_and_confidence_sees_the_answer() -> None:
    llm = scripted(answer="5")
    run(llm)
    first, second, third = (" ".join(message.content for message in request.messages) for request in llm.asked)
    assert ITEM.question in first
    assert ITEM.question in second
    assert "5" in third.replace(ITEM.question, "")


@pytest.mark.parametrize(
    ("variant", "text", "answer"),
    [
        ("direct", "\n Paris.\nIt is in France.", "Paris."),
        ("direct", "", ""),
        ("direct", "The code prints:\n\n6", "6"),
        ("step-by-step", "First 2 + 2.\nAnswer: 5\nNo wait.\n**Answer:** 4\nDone.", "4"),
        ("step-by-step", "So it must be\nParis", "Paris"),
        ("step-by-step", "We add. The sum is 4. Final answer: 4", "4"),
    ],
)
def test_the_answer_is_found_in_the_text(variant: str, text: str, answer: str) -> None:
    assert extract_answer(ITEM, Call(id="c", text=text), variant) == answer


def prompt_folder(tmp_path: Path, change: Callable[[str, str], str]) -> Path:
    for name, text in Prompts.load(SYSTEM.name, SYSTEM.prompts).texts.items():
        (tmp_path / f"{name}.txt").write_text(change(name, text))
    return tmp_path


def test_a_users_prompts_replace_the_shipped_ones(tmp_path: Path) -> None:
    folder = prompt_folder(tmp_path, lambda name, text: text.replace("$question", "Mine: $question"))
    mine = Prompts.load(SYSTEM.name, SYSTEM.prompts, folder)
    assert "Mine: Q" in mine.messages("direct", question="Q")[-1].content
    assert mine.digest != Prompts.load(SYSTEM.name, SYSTEM.prompts).digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("hello", "begins with text"),
        ("--- robot\nhi", "'robot'"),
        (None, "no prompt file direct.txt"),
        ("--- user\n$question costs 5 $", "has a '\\$' that opens no slot"),
        (b"--- user\n\xe9$question", r"direct\.txt: byte 10 is not UTF-8"),
    ],
)
def test_a_prompt_file_that_is_not_right_is_named(tmp_path: Path, text: str | bytes | None, said: str) -> None:
    folder = prompt_folder(tmp_path, lambda name, shipped: shipped)
    (folder / "direct.txt").unlink()
    if text is not None:
        (folder / "direct.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PromptError, match=said):
        Prompts.load(SYSTEM.name, SYSTEM.prompts, folder)


def test_a_slot_left_open_and_a_list_in_the_place_of_turns_are_named() -> None:
    prompts = Prompts({"a": "--- user\n$question $note", "b": "--- list\n one \n\ntwo"})
    with pytest.raises(PromptError, match=r"prompt a\.txt has a slot that is not filled: 'note'; known: \$question"):
        prompts.messages("a", question="q")
    with pytest.raises(PromptError, match=r"prompt b\.txt is a list"):
        prompts.messages("b")
    assert prompts.entries("b") == ("one", "two")
    with pytest.raises(PromptError, match=r"prompt a\.txt is no list"):
        prompts.entries("a")
    assert [m.role for m in Prompts({"c": "\n--- system\nx\n--- user\ny"}).messages("c")] == ["system", "user"]
