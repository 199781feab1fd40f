"""Labels out of files: what people write for right and wrong, and what each program exports."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from metaprobe.monitoring.label_files import read_label_file
from metaprobe.monitoring.label_values import label_value
from metaprobe.monitoring.log import FeedbackLabel
from metaprobe.records.errors import ImportFileError

NOON = 1_700_000_000.0


def written(path: Path, held: object) -> Path:
    """A file of JSON lines where `held` is a list, or of one document."""
    text = "\n".join(map(json.dumps, held)) if isinstance(held, list) else json.dumps(held, indent=1)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("said", "value"),
    [
        (1, 1.0),
        (0, 0.0),
        (True, 1.0),
        (0.5, 0.5),
        ("Right", 1.0),
        ("INCORRECT", 0.0),
        (" 1 ", 1.0),
        ("0.25", 0.25),
        ("thumbs_up", 1.0),
        ("unsure", None),
        ("", None),
        (None, None),
    ],
)
def test_what_people_write_for_right_and_wrong_is_understood(said: object, value: float | None) -> None:
    assert label_value(said) == value


@pytest.mark.parametrize("said", ["perhaps", 2, -0.1, float("nan"), [1], "1e9"])
def test_what_is_no_label_is_refused_with_what_was_expected(said: object) -> None:
    with pytest.raises(ValueError, match="expected 1 or right, 0 or wrong, null or unsure"):
        label_value(said)


# What each program gives, by the shapes of its own documentation

LINES = [
    {"request_id": "a", "label": "right", "who": "ada", "time": NOON},
    {"request_id": "b", "label": 0, "who": "ada", "time": "2023-11-14T22:13:20Z"},
    {"request_id": "c", "label": None, "who": "ada", "time": NOON * 1000},
]
MLFLOW = {
    "traces": [
        {
            "info": {
                "trace_id": f"tr-{name}",
                "client_request_id": name,
                "tags": {},
                "assessments": [
                    {
                        "assessment_id": "x",
                        "assessment_name": "correctness",
                        "trace_id": f"tr-{name}",
                        "source": {"source_type": "HUMAN", "source_id": "ada"},
                        "create_time": "2023-11-14T22:13:20Z",
                        "last_update_time": "2023-11-14T22:13:20Z",
                        "feedback": {"value": value},
                        "valid": True,
                    },
                    {"assessment_name": "correctness", "feedback": {"value": not value}, "valid": False},
                    {"assessment_name": "expected_answer", "expectation": {"value": "4"}},
                ],
            },
            "data": {"spans": []},
        }
        for name, value in [("a", True), ("b", False), ("c", None)]
    ]
}
LANGFUSE = {
    "data": [
        {
            "id": "s",
            "traceId": name,
            "observationId": f"o-{name}",
            "name": "correct",
            "source": "ANNOTATION",
            "authorUserId": "ada",
            "timestamp": "2023-11-14T22:13:20.000Z",
            "dataType": kind,
            "value": value,
            "stringValue": text,
        }
        for name, kind, value, text in [
            ("a", "BOOLEAN", 1, "True"),
            ("b", "CATEGORICAL", 7, "incorrect"),
            ("c", "CATEGORICAL", 1, "unsure"),
        ]
    ],
    "meta": {"page": 1, "limit": 50, "totalItems": 3, "totalPages": 1},
}
PHOENIX = {
    "data": [
        {
            "id": "U3Bhbg==",
            "created_at": "2023-11-14T22:00:00+00:00",
            "updated_at": "2023-11-14T22:13:20+00:00",
            "source": "APP",
            "user_id": "ada",
            "name": "correctness",
            "annotator_kind": "HUMAN",
            "result": result,
            "metadata": {"request_id": name},
            "identifier": "",
            "span_id": "67f6740bbe1ddc3f",
        }
        for name, result in [
            ("a", {"label": None, "score": 1.0, "explanation": None}),
            ("b", {"label": "incorrect", "score": None, "explanation": "no"}),
            ("c", {"label": "unsure", "score": None, "explanation": None}),
        ]
    ],
    "next_cursor": None,
}
EVALS = {
    "object": "list",
    "data": [
        {
            "object": "eval.run.output_item",
            "id": f"outputitem_{name}",
            "created_at": int(NOON),
            "run_id": "evalrun_1",
            "eval_id": "eval_1",
            "status": "pass",
            "datasource_item_id": 5,
            "datasource_item": {"item": {"input": "2 + 2", "request_id": name}},
            "results": [{"name": "Match", "sample": None, "passed": passed, "score": float(passed)}],
            "sample": {"input": [], "output": []},
        }
        for name, passed in [("a", True), ("b", False)]
    ],
}
EXPECTED = [FeedbackLabel(name, value, "ada", NOON) for name, value in [("a", 1.0), ("b", 0.0), ("c", None)]]


@pytest.mark.parametrize(
    ("form", "held"), [("lines", LINES), ("mlflow", MLFLOW), ("langfuse", LANGFUSE), ("phoenix", PHOENIX)]
)
def test_each_programs_labels_are_known_by_their_content(form: str, held: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "labels.json", held)
    assert read_label_file(path) == EXPECTED
    assert read_label_file(path, form) == EXPECTED
    listed = next(iter(held.values())) if isinstance(held, dict) else held
    assert read_label_file(written(tmp_path / "labels.jsonl", listed)) == EXPECTED


def test_evals_of_openai_are_read_by_the_items_own_id(tmp_path: Path) -> None:
    found = read_label_file(written(tmp_path / "labels.json", EVALS))
    assert found == [FeedbackLabel("a", 1.0, "openai-evals", NOON), FeedbackLabel("b", 0.0, "openai-evals", NOON)]


def test_a_table_is_read_as_its_program_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "annotations.csv"
    columns = ["span_id", "annotation_name", "annotator_kind", "result.label", "result.score", "metadata"]
    rows = [["s1", "correctness", "HUMAN", "correct", "1.0", '{"request_id": "a"}'], ["s2", "correctness", "LLM"]]
    rows[1] += ["incorrect", "", "{}"]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    assert [(one.request_id, one.value, one.who) for one in read_label_file(path)] == [
        ("a", 1, "HUMAN"),
        ("s2", 0, "LLM"),
    ]
    path.write_text("request_id,label,who\na,right,ada\nb,0,\n")
    assert [(one.request_id, one.value, one.who) for one in read_label_file(path)] == [("a", 1, "ada"), ("b", 0, "")]


def test_a_table_of_tabs_is_read_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "labels.TSV"
    path.write_text("request_id\tlabel\twho\na, b\tright\tada\n")
    assert [(one.request_id, one.value, one.who) for one in read_label_file(path)] == [("a, b", 1, "ada")]


def test_one_of_several_things_judged_is_chosen_by_name(tmp_path: Path) -> None:
    held = [{"traceId": "a", "name": name, "value": value} for name, value in [("correct", 1), ("polite", 0)]]
    path = written(tmp_path / "scores.jsonl", held)
    with pytest.raises(ImportFileError, match=r"judges correct, polite: choose one \(--name\)"):
        read_label_file(path)
    assert [one.value for one in read_label_file(path, name="polite")] == [0]
    with pytest.raises(ImportFileError, match="nothing is called 'kind'; there are correct, polite"):
        read_label_file(path, name="kind")


def test_the_id_may_stand_anywhere(tmp_path: Path) -> None:
    held = [{"traceId": "t", "name": "x", "value": 1, "metadata": {"ours": {"id": "a"}}, "observationId": "o"}]
    path = written(tmp_path / "scores.jsonl", held)
    assert [read_label_file(path, id_key=key)[0].request_id for key in ("metadata.ours.id", "observationId")] == [
        "a",
        "o",
    ]
    with pytest.raises(ImportFileError, match=r"record 1: no id of an answer; .*\(--id\)"):
        read_label_file(path, id_key="metadata.nothing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no records"),
        ("[]", "holds no records"),
        ('{"request_id": "a", "label": "perhaps"}', "record 1: label 'perhaps'; expected 1 or right"),
        ('{"request_id": "a", "label": 1}\n{"request_id": "b"}', r"record 2: it is no record of labels \(KeyError"),
        ('{"request_id": "a", "label": 1, "time": "noon"}', "record 1: time 'noon'; expected seconds"),
        ('{"request_id": "a", "label": 1, "time": true}', "record 1: time True; expected seconds"),
        ('{"colour": "red"}', "its records have colour; expected request_id and label"),
        ("[3]", "record 1: came int; expected an object"),
        ('{"info": {"assessments": "x"}}', "record 1: it is no record of MLflow"),
        ('{"span_id": "a", "annotator_kind": "HUMAN", "result": 3}', "record 1: it is no record of Phoenix"),
    ],
)
def test_a_bad_file_is_refused_with_the_record_and_what_was_expected(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(text)
    with pytest.raises(ImportFileError, match=message):
        read_label_file(path)
