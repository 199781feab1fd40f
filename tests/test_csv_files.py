"""CSV files of answers and of items, and the keys that people write at the top of a line."""

import csv
import gzip
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprobe.papers.tasks import load_task
from metaprobe.records.errors import ImportFileError
from metaprobe.records.import_line import run_of_line
from metaprobe.records.import_store import import_file
from metaprobe.records.importer import read_openai_lines
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run

HEAD = ("id", "question", "response", "logprobs", "correct")
TOKENS = [{"token": "4", "logprob": -0.1}, {"token": ".", "logprob": -0.2}]


def write(path: Path, *rows: Any, delimiter: str = ",", lead: str = "") -> Path:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(rows)
    data = (lead + text.getvalue()).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def imported(path: Path, folder: Path, **options: Any) -> list[Run]:
    store = RunStore(folder / "runs")
    import_file(path, store, **options)
    return sorted(store, key=lambda run: run.id)


@pytest.mark.parametrize(
    ("name", "delimiter", "lead"), [("a.csv.gz", ",", ""), ("a.CSV", ";", "\ufeff"), ("a.tsv", "\t", "")]
)
def test_a_row_is_an_answer_as_the_line_of_json_that_says_the_same(
    name: str, delimiter: str, lead: str, tmp_path: Path
) -> None:
    rows = [("1", "2+2?", "4.", json.dumps(TOKENS), "1"), ("2", 'Say "a,\nb"; please', "b", "[-0.5]", "FALSE")]
    path = write(tmp_path / name, HEAD, *rows, delimiter=delimiter, lead=lead)
    first, second = imported(path, tmp_path)
    line = {
        "id": "1",
        "messages": [{"role": "user", "content": "2+2?"}],
        "labels": {"correct": 1},
        "response": {"choices": [{"message": {"content": "4."}, "logprobs": {"content": TOKENS}}]},
    }
    wanted = run_of_line(line, "")
    assert (first.item, first.labels, first.outcome) == (wanted.item, wanted.labels, 1.0)
    assert first.calls[0].tokens == wanted.calls[0].tokens
    assert first.calls[0].logprobs is not None
    assert wanted.calls[0].logprobs is not None
    assert first.calls[0].logprobs.tolist() == wanted.calls[0].logprobs.tolist()
    assert (second.item.question, second.calls[0].text, second.outcome) == ('Say "a,\nb"; please', "b", 0.0)


def test_all_columns_of_a_line_may_be_given(tmp_path: Path) -> None:
    row = {
        "id": "q",
        "run_id": "monday",
        "group": "g",
        "model": "m",
        "messages": json.dumps([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]),
        "response": "4.",
        "logprobs": "[-0.1, -0.2]",
        "tokens": '["4", "."]',
        "finish_reason": "length",
        "labels.critical": "0",
        "labels": '{"correct": 1}',
        "verbalized_confidence": "0.75",
        "sampling": '{"temperature": 0.5}',
        "mine": "kept out",
    }
    (run,) = imported(write(tmp_path / "a.csv", row.keys(), row.values()), tmp_path)
    (call,) = run.calls
    assert (run.id, run.item.group, call.model, call.finish_reason) == ("monday/q", "g", "m", "length")
    assert (call.tokens, call.sampling.temperature, len(call.messages)) == (("4", "."), 0.5, 2)
    assert (run.stated("confidence"), run.outcome, run.label("critical", run.id)) == (0.75, 1.0, 0.0)


def test_without_a_column_of_log_probabilities_a_cell_is_a_whole_response_or_a_text(tmp_path: Path) -> None:
    whole = json.dumps({"choices": [{"message": {"content": "4."}, "logprobs": {"content": TOKENS}}]})
    first, second = imported(
        write(tmp_path / "a.csv", ("id", "response"), ("1", whole), ("2", "4")), tmp_path, plain=True
    )
    assert first.calls[0].tokens == ("4", ".")
    assert (second.calls[0].text, second.calls[0].logprobs) == ("4", None)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([("1", "q", "4", "[-0.1]", "maybe")], "a.csv:2: .*correct.*maybe.*expected 1, 0"),
        ([("1", "q", "4", "-0.1;-0.2", "1")], 'a.csv:2: .*"logprobs" is no JSON'),
        ([("1", "q", "4", "-0.1", "1")], 'a.csv:2: "logprobs" is -0.1 .*expected a JSON list'),
        ([("1", "q", "4", "[-0.1]", "1"), ("2", "q")], "a.csv:3: .*2 cells.*5"),
        ([("1", "q\nr", "4", "[-0.1]", "1"), ("2", "q", "4", "[]", "1", "x")], "a.csv:4: .*6 cells"),
        ([("1", "q", "4", "[-0.1]", "1"), ("1", "q", "4", "[-0.1]", "1")], "a.csv:3: id '1' was already used"),
    ],
)
def test_a_bad_row_is_named_with_its_line(rows: list[Any], why: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", HEAD, *rows)
    with pytest.raises(ImportFileError, match=why):
        imported(path, tmp_path, strict=True)
    good = write(tmp_path / "b.csv", HEAD, *rows, ("9", "q", "4", "[-0.1]", "1"))
    assert "9" in [run.id for run in imported(good, tmp_path / "skipped")]


@pytest.mark.parametrize(
    "data",
    [b'id,response\n1,"4\n', b"\xff\xfe\n", b"id,id\n1,2\n", b"one\n4\n", b"id,,response\n1,2,3\n"],
)
def test_what_is_no_csv_is_an_import_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(ImportFileError, match=r"expected|UTF-8"):
        imported(tmp_path / "a.csv", tmp_path)


MLFLOW = r"MLflow.*search_traces"


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("question reply correct", "question, reply, correct; expected `response`"),
        ("trace_id trace state request response trace_metadata spans assessments", MLFLOW),
        ("Start Time,Duration,Run ID,Name,Status", MLFLOW),
        ("inputs outputs exact_match/v1/score", MLFLOW),
        ("trace_id request response correctness/value", MLFLOW),
    ],
)
def test_a_table_of_something_else_is_named_with_the_way_on(head: str, why: str, tmp_path: Path) -> None:
    names = head.split("," if "," in head else " ")
    path = write(tmp_path / "a.csv", names, ["x"] * len(names))
    with pytest.raises(ImportFileError, match=why):
        imported(path, tmp_path, plain=why is MLFLOW)


@settings(max_examples=15)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1), min_size=1))
def test_any_text_comes_through_a_cell(texts: list[str]) -> None:
    texts = [text for text in texts if text.strip() and not text.lstrip().startswith("{")]
    with TemporaryDirectory() as folder:
        rows = [(text, text, "[-0.5]") for text in texts]
        runs = list(read_openai_lines(write(Path(folder, "a.csv"), ("question", "response", "logprobs"), *rows)))
    assert [run.calls[0].text for run in runs] == texts
    assert [run.item.question for run in runs] == texts


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_correct_may_stand_at_the_top_and_must_not_contradict_the_labels(form: str, tmp_path: Path) -> None:
    response = {"choices": [{"message": {"content": "4."}, "logprobs": {"content": TOKENS}}]}

    def line(**said: Any) -> list[Run]:
        path = tmp_path / f"a.{form}"
        if form == "jsonl":
            path.write_text(json.dumps({"response": response, **said}) + "\n")
        else:
            cells = {"response": json.dumps(response)} | {key: json.dumps(value) for key, value in said.items()}
            write(path, cells.keys(), cells.values())
        return list(read_openai_lines(path))

    assert [run.outcome for run in line(correct=1)] == [1.0]
    assert [run.outcome for run in line(correct=0, labels={"correct": 0, "critical": 1})] == [0.0]
    assert [run.outcome for run in line(correct=1, labels={"critical": 1})] == [1.0]
    for said in ({"correct": 1, "labels": {"correct": 0}}, {"correct": 2}):
        with pytest.raises(ImportFileError, match="correct"):
            line(**said)


ITEMS = [
    {"id": "a", "question": "2+2?", "gold": ["4", "four"], "check": "exact", "level": "easy"},
    {"id": "b", "question": "Capital?\nOf France", "gold": ["Paris"], "choices": ["Paris", "Rome"], "check": "choice"},
    {"id": "c", "question": "Which list?", "gold": ["[1, 2]"], "check": "exact"},
]


@pytest.mark.parametrize("gold", ["gold", "answer"])
def test_items_of_a_csv_file_are_those_of_the_same_lines(gold: str, tmp_path: Path) -> None:
    lines = tmp_path / "own.jsonl"
    lines.write_text(
        "".join(json.dumps({gold if k == "gold" else k: v for k, v in item.items()}) + "\n" for item in ITEMS)
    )
    head = ("id", "question", gold, "choices", "check", "level")
    rows = [
        ("a", "2+2?", '["4", "four"]', "", "", "easy"),
        ("b", "Capital?\nOf France", "Paris", '["Paris", "Rome"]', "choice", ""),
        ("c", "Which list?", "[1, 2]", "", "exact", ""),
    ]
    assert load_task(str(write(tmp_path / "own.csv.gz", head, *rows))) == load_task(str(lines))


@pytest.mark.parametrize(
    ("head", "row", "why"),
    [
        (("question", "gold", "choices"), ("q", "a", "a|b"), "own.csv:2: choices is 'a|b'; expected JSON"),
        (("question", "gold", "answer"), ("q", "a", "b"), "answer is 'b' and gold 'a'"),
        (("question", "expected"), ("q", "a"), "unknown field 'expected'"),
        (("question", "level"), ("q", "easy"), "gold is empty"),
        (("id", "question", "gold"), ("", "q", "a"), "id and question are needed"),
    ],
)
def test_a_row_that_is_no_item_is_named(head: Any, row: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match=why):
        load_task(str(write(tmp_path / "own.csv", head, row)))


def test_answer_and_gold_of_a_line_must_be_the_same(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"id": "a", "question": "q", "answer": "4", "gold": ["4"]}) + "\n")
    assert load_task(str(path))[0].gold == ("4",)
    path.write_text(json.dumps({"id": "a", "question": "q", "answer": "4", "gold": "5"}) + "\n")
    with pytest.raises(ImportFileError, match="expected one of the two"):
        load_task(str(path))
