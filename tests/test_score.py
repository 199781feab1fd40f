"""`metaprobe score`: what a user hands over by mistake is named once and well, and what was not scored is said."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metaprobe.cli import main

CONTENT = [{"token": "t", "logprob": -0.3}] * 4
CHOICE = {"message": {"content": "tttt"}, "finish_reason": "stop", "logprobs": {"content": CONTENT}}
LINE = {"id": "q", "response": {"choices": [CHOICE]}}


def score(file: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["score", "bundled:quality", str(file), *options])


def scored(folder: Path, *records: Any) -> list[dict[str, Any]]:
    path = folder / "lines.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [json.loads(line) for line in score(path).stdout.splitlines()]


def test_the_reason_is_empty_where_all_is_well_as_it_is_in_python(tmp_path: Path) -> None:
    [line] = scored(tmp_path, LINE)
    assert line["id"] == "q"
    assert line["reason"].startswith("how often answers of this run are right is not known"), "and nothing else"
    assert ";" not in line["reason"].removesuffix("; adapt the checkpoint with labelled answers")
    assert 0 < line["score"] < 1


def test_what_was_not_scored_of_a_line_stands_in_its_reason(tmp_path: Path) -> None:
    chunk = {"choices": [{"delta": {"content": "tttt"}, "logprobs": {"content": CONTENT}}]}
    body = {"status_code": 200, "body": {"choices": [CHOICE] * 2}}
    responses = ({"choices": [CHOICE] * 2}, [chunk], json.dumps({"choices": [CHOICE] * 2}), body)
    lines = scored(tmp_path, LINE, *({"response": response} for response in responses), {"choices": [CHOICE] * 2})
    assert len({line["score"] for line in lines}) == 1
    said = ["several answers" in line["reason"] for line in lines]
    assert said == [False, True, False, True, True, True]
    assert "is it cut?" in lines[2]["reason"]


def test_nan_or_half_a_surrogate_pair_costs_its_own_line_at_most(tmp_path: Path) -> None:
    nan = {**CHOICE, "logprobs": {"content": [{"token": "t", "logprob": float("nan")}]}}
    half = {"id": "half \ud800", "response": {"choices": [{**CHOICE, "message": {"content": "tttt \ud800"}}]}}
    lines = scored(tmp_path, LINE, {"response": {"choices": [nan]}}, half, LINE)
    assert [line["score"] is None for line in lines] == [False, True, False, False]
    assert "NaN" in lines[1]["reason"]
    assert lines[2]["id"] == "half \ud800"


def test_a_line_without_an_answer_quotes_what_the_server_said(tmp_path: Path) -> None:
    failed = {"custom_id": "a", "response": None, "error": {"code": "x", "message": "the batch expired"}}
    refused = {"message": {"content": None, "refusal": "No."}, "logprobs": {"content": None, "refusal": CONTENT}}
    body = {"status_code": 400, "body": {"error": {"message": "unknown model"}}}
    bare = {"response": None}
    lines = scored(tmp_path, failed, {"response": {"choices": [refused]}}, {"response": body}, bare)
    assert [line["score"] for line in lines] == [None] * 4
    for line, why in zip(lines, ("'the batch expired'", "is a refusal", "'unknown model'", "is null; "), strict=True):
        assert why in line["reason"]


@pytest.mark.parametrize("document", [[LINE] * 50, LINE])
def test_a_document_over_many_lines_is_one_error(tmp_path: Path, document: Any) -> None:
    path = tmp_path / "pretty.json"
    path.write_text(json.dumps(document, indent=2))
    result = score(path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert "one JSON document" in result.stderr


@pytest.mark.skipif(not Path("/dev/stdin").exists(), reason="no /dev/stdin")
def test_a_dash_is_standard_input(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, json.dumps(LINE).encode() + b"\n{")
    os.close(writing)
    kept = os.dup(0)
    try:
        os.dup2(reading, 0)
        result = score(Path("-"))
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reading)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["score"] is None for line in lines] == [False, True]
    assert "/dev/stdin:2" in lines[1]["reason"]


def test_refusing_another_model_names_no_python_argument(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({**LINE, "model": "another"}))
    [line] = [json.loads(line) for line in score(path, "--on-mismatch", "refuse").stdout.splitlines()]
    assert "response of 'another" in line["reason"]
    assert line["reason"].endswith("or take on_mismatch 'warn'")


def test_a_line_without_an_id_is_named_as_its_log_or_its_response_names_it(tmp_path: Path) -> None:
    completion = {"id": "chatcmpl-7", "choices": [CHOICE]}
    lines = scored(
        tmp_path,
        {"response": completion},
        completion,
        {"request_id": "r-1", "response": completion},
        {"id": "own", "request_id": "r-1", "response": completion},
        {"trace_id": "t-1", "response": None},
        {"response": {"choices": [CHOICE]}},
    )
    assert [line["id"] for line in lines] == ["chatcmpl-7", "chatcmpl-7", "r-1", "own", "t-1", "line-6"]


def test_ids_of_other_kinds_name_a_line_in_one_order(tmp_path: Path) -> None:
    completion = {"id": "chatcmpl-7", "choices": [CHOICE]}
    flat = {"answer": "tttt", "tokens": ["t"] * 4, "logprobs": [-0.3] * 4}
    lines = scored(
        tmp_path,
        {**flat, "id": "own", "custom_id": "c-1"},
        {**flat, "custom_id": 7},
        {"custom_id": None, "request_id": 8, "response": completion},
        {"run_id": "r", "trace_id": "t-1", "response": completion},
        {"id": "batch_1", "custom_id": "c-2", "response": {"status_code": 200, "body": completion}},
        {"id": "batch_2", "custom_id": "c-3", "response": None},
        {"trace_id": True, "response": {"choices": [CHOICE]}},
    )
    assert [line["id"] for line in lines] == ["own", "7", "8", "r/t-1", "c-2", "c-3", "line-7"]


def test_flagged_answers_are_counted_and_with_flagged_alone_printed(tmp_path: Path) -> None:
    unsure = {**CHOICE, "logprobs": {"content": [{"token": "t", "logprob": -3.0}] * 4}}
    path = tmp_path / "lines.jsonl"
    records = [LINE, {"id": "unsure", "response": {"choices": [unsure]}}, {"id": "none", "response": None}]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    whole = score(path, "--flag-below", "0.3")
    assert "flagged 1 of 3 lines; of 1 it is not known" in whole.stderr
    every = [json.loads(line) for line in whole.stdout.splitlines()]
    assert [line["flagged"] for line in every] == [False, True, None]
    result = score(path, "--flag-below", "0.3", "--flagged")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [every[1]]
    assert "flagged 1 of 3 lines; of 1 it is not known" in result.stderr
    unknown = score(path, "--flagged")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "give --flag-rate or --flag-below" in unknown.stderr


def test_why_lines_have_no_score_is_said_once_with_their_number(tmp_path: Path) -> None:
    answers = [{"id": n, "question": "?", "answer": "4"} | ({"logprobs": [-0.1]} if n == 3 else {}) for n in range(4)]
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(map(json.dumps, answers)), encoding="utf-8")
    done = CliRunner().invoke(main, ["score", "bundled:quality", str(file)])
    assert done.exit_code == 0, done.output
    [told] = [line for line in done.stderr.splitlines() if line.startswith("not scored")]
    assert "3 lines" in told
    assert "no log-probabilities" in told
    assert "--plain" not in done.output, "`score` has no such option"
