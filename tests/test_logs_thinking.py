"""Thinking, several choices and errors in other programs' logs: kept apart, or left out with the reason."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from metaprobe.records.errors import ImportFileError
from metaprobe.records.import_store import ImportReport, import_file
from metaprobe.records.logs.logged_answer import (
    OTHER_TOKENS,
)
from metaprobe.records.logs.promptfoo import THOUGHT
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call

LOGS = Path(__file__).parent / "logs"
PIECES = ["<think>", "\n", "17", " and", " 28", "\n", "</think>", "\n\n", "It", " is", " 45", ".", "<|im_end|>"]
THOUGHTS, SAID = "17 and 28", "It is 45."
ENTRIES = [{"token": piece, "logprob": -0.1 * (n + 1)} for n, piece in enumerate(PIECES)]


def imported(path: Path, folder: Path) -> tuple[ImportReport, list[Call]]:
    store = RunStore(folder / "runs")
    report = import_file(path, store)
    return report, [call for run in store for call in run.calls]


def of_inspect(folder: Path, content: object, entries: list[dict[str, Any]], choices: int = 1) -> Path:
    """A log with one sample, whose answer this is."""
    log = json.loads((LOGS / "inspect" / "plain.json").read_text(encoding="utf-8"))
    log["samples"] = log["samples"][:1]
    output = log["samples"][0]["output"]
    output["choices"][0] |= {"logprobs": {"content": entries}}
    output["choices"][0]["message"]["content"] = content
    output["choices"] *= choices
    path = folder / "log.json"
    path.write_text(json.dumps(log), encoding="utf-8")
    return path


def parts(reasoning: str) -> list[dict[str, str]]:
    return [{"type": "reasoning", "reasoning": reasoning}, {"type": "text", "text": SAID}]


def check_apart(call: Call) -> None:
    kinds = {segment.kind: (segment.start, segment.end) for segment in call.segments}
    assert "".join(PIECES[slice(*kinds["thinking"])]).strip() == THOUGHTS
    assert "".join(PIECES[slice(*kinds["answer"])]) == SAID
    assert call.text.strip().endswith(SAID)


def test_inspects_reasoning_is_a_segment_of_its_own(tmp_path: Path) -> None:
    report, [call] = imported(of_inspect(tmp_path, parts(THOUGHTS), ENTRIES), tmp_path)
    assert report.left_out == {}
    check_apart(call)


def test_numbers_of_the_answer_alone_are_stored_without_the_reasoning(tmp_path: Path) -> None:
    report, [call] = imported(of_inspect(tmp_path, parts(THOUGHTS), ENTRIES[8:]), tmp_path)
    assert call.logprobs is not None
    assert (report.left_out, len(call.logprobs)) == ({}, 4)


def test_tokens_that_spell_another_thought_are_of_another_answer(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    _, [kept] = imported(of_inspect(first, parts(THOUGHTS), ENTRIES), first)
    assert kept.segments
    with pytest.raises(ImportFileError, match="do not spell the answer"):
        import_file(of_inspect(second, parts("another thought"), ENTRIES), RunStore(second / "runs"))


def test_a_further_choice_is_counted_and_not_stored(tmp_path: Path) -> None:
    report, calls = imported(of_inspect(tmp_path, SAID, ENTRIES[8:], choices=2), tmp_path)
    assert len(calls) == 1
    assert report.left_out == {"a further choice, which has no score": 1}


def test_helms_thinking_is_a_segment_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(LOGS / "helm" / "sampled", folder)
    state = json.loads((folder / "scenario_state.json").read_text(encoding="utf-8"))
    state["request_states"] = state["request_states"][:1]
    tokens = [{"text": entry["token"], "logprob": entry["logprob"]} for entry in ENTRIES]
    [one] = state["request_states"][0]["result"]["completions"]
    one |= {"text": SAID, "thinking": {"text": THOUGHTS}, "tokens": tokens}
    (folder / "scenario_state.json").write_text(json.dumps(state), encoding="utf-8")
    report, [call] = imported(folder, tmp_path)
    assert report.left_out == {}
    check_apart(call)


@pytest.mark.parametrize(
    ("output", "numbers", "reasoning", "why"),
    [
        ("Thinking: 17 + 20\n\nIt is 45.", 11, 0, THOUGHT),  # as promptfoo shows it
        ("It is 45.", 11, 7, OTHER_TOKENS),  # `showThinking: false`
        ("It is certainly 45 and no other number.", 2, 0, OTHER_TOKENS),
        ("It is 45.", 4, 0, ""),
        ("It is 45.", 7, 0, OTHER_TOKENS),
    ],
)
def test_promptfoos_numbers_are_of_the_answer_or_left_out(
    output: str, numbers: int, reasoning: int, why: str, tmp_path: Path
) -> None:
    log = json.loads((LOGS / "promptfoo" / "sums.json").read_text(encoding="utf-8"))
    held = log["results"]["results"] = log["results"]["results"][:2]
    response = held[0]["response"]
    response |= {"output": output, "logProbs": [-0.1 - n / 100 for n in range(numbers)]}
    response["tokenUsage"]["completionDetails"]["reasoning"] = reasoning
    response["tokenUsage"]["completion"] = 4 if numbers == 7 else numbers
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log), encoding="utf-8")
    report, calls = imported(path, tmp_path)
    assert report.left_out == ({why: 1} if why else {})
    assert len(calls) == 2 - bool(why)


def zeros_of(form: str, folder: Path, count: int) -> Path:
    """A log whose only sample, or whose first of two, has so many log-probabilities that are 0."""
    if form == "inspect":
        pieces = ["It", " is", " 45", ".", " Yes"][:count]
        return of_inspect(folder, "".join(pieces), [{"token": piece, "logprob": 0.0} for piece in pieces])
    path = folder / "log.json"
    if form == "promptfoo":
        log = json.loads((LOGS / "promptfoo" / "sums.json").read_text(encoding="utf-8"))
        held = log["results"]["results"] = log["results"]["results"][:1]
        held[0]["response"] |= {"output": "It is 45.", "logProbs": [0] * count}
        held[0]["response"]["tokenUsage"]["completion"] = count
        path.write_text(json.dumps(log), encoding="utf-8")
        return path
    content = [{"token": f" {n}", "logprob": 0.0, "top_logprobs": []} for n in range(count)]
    message = {"role": "assistant", "content": "".join(entry["token"] for entry in content)}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": content}}
    return of_batch(folder, response={"status_code": 200, "body": {"object": "chat.completion", "choices": [choice]}})


@pytest.mark.parametrize("form", ["inspect", "promptfoo", "openai-batch"])
def test_zeros_alone_are_no_numbers_and_few_of_them_may_be(form: str, tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match="1 x every log-probability is 0"):
        imported(zeros_of(form, tmp_path, 5), tmp_path)
    report, [call] = imported(zeros_of(form, tmp_path, 4), tmp_path)
    assert report.left_out == {}
    assert call.logprobs is not None
    store = RunStore(tmp_path / "plain")
    report = import_file(zeros_of(form, tmp_path, 5), store, plain=True)
    [call] = [call for run in store for call in run.calls]
    assert call.logprobs is None, "another model reads it"
    assert report.left_out == {}


def of_batch(folder: Path, **changes: Any) -> Path:
    body = {
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {"index": n, "message": {"role": "assistant", "content": text}, "finish_reason": "stop",
             "logprobs": {"content": [{"token": text, "logprob": -0.1 - n}]}}
            for n, text in enumerate(("yes", "no"))
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }  # fmt: skip
    record = {"id": "b", "custom_id": "q1", "response": {"status_code": 200, "body": body}, "error": None} | changes
    path = folder / "output.jsonl"
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    return path


def test_every_choice_of_a_batchs_line_is_an_answer_of_one_group(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    import_file(of_batch(tmp_path, labels={"correct": 1}), store)
    runs = list(store)
    labels = {run.calls[0].text: [(label.name, label.value) for label in run.labels] for run in runs}
    assert labels == {"yes": [("correct", 1.0)], "no": []}  # what the line says is of the first
    assert {run.item.group for run in runs} == {"q1"}
    assert sorted((call.text, round(float(call.logprobs[0]), 3)) for run in runs for call in run.calls) == [  # type: ignore[index]
        ("no", -1.1),
        ("yes", -0.1),
    ]


def test_an_error_that_is_a_text_is_a_failed_request(tmp_path: Path) -> None:
    good = of_batch(tmp_path).read_text(encoding="utf-8")
    bad = of_batch(tmp_path, custom_id="q2", response=None, error="boom").read_text(encoding="utf-8")
    (tmp_path / "output.jsonl").write_text(good + bad, encoding="utf-8")
    report, calls = imported(tmp_path / "output.jsonl", tmp_path)
    assert (report.left_out, len(calls)) == ({"the request failed (boom)": 1}, 2)


@pytest.mark.parametrize("form", ["inspect", "helm"])
def test_an_answer_whose_numbers_are_of_another_text_is_kept_for_another_model_to_read(
    form: str, tmp_path: Path
) -> None:
    if form == "inspect":
        path = of_inspect(tmp_path, "Something else.", ENTRIES[8:])
    else:
        path = tmp_path / "run"
        shutil.copytree(LOGS / "helm" / "sampled", path)
        state = json.loads((path / "scenario_state.json").read_text(encoding="utf-8"))
        state["request_states"] = state["request_states"][:1]
        [one] = state["request_states"][0]["result"]["completions"]
        one["text"] = "Something else."
        (path / "scenario_state.json").write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(ImportFileError, match=f"1 x {OTHER_TOKENS}"):
        imported(path, tmp_path)
    store = RunStore(tmp_path / "plain")
    import_file(path, store, plain=True)
    [call] = [call for run in store for call in run.calls]
    assert (call.text.strip(), call.logprobs) == ("Something else.", None)
