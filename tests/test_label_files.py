"""Labels out of files: what people write for right and wrong, what each program exports, and what is no label."""

import csv
import gzip
import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.production.monitoring.label_files import read_label_file
from metaprobe.production.monitoring.label_words import label_value
from metaprobe.production.monitoring.log import FeedbackLabel
from metaprobe.records.errors import ImportFileError
from metaprobe.records.label_state import why_not_right

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
        (True, 1.0),
        (0.5, 0.5),
        ("Right", 1.0),
        ("INCORRECT", 0.0),
        ("0.25", 0.25),
        ("thumbs_up", 1.0),
        ("", None),
    ],
)
def test_what_people_write_for_right_and_wrong_is_understood(said: object, value: float | None) -> None:
    assert label_value(said) == value


@pytest.mark.parametrize("said", ["perhaps", 2, -0.1, float("nan"), [1], "1e9"])
def test_what_is_no_label_is_refused_with_what_was_expected(said: object) -> None:
    with pytest.raises(ValueError, match="expected 1 or right, 0 or wrong, null or unsure"):
        label_value(said)


# Each program's export, by the shapes of its own documentation

LINES = [
    {"request_id": "a", "label": "right", "who": "ada", "time": NOON},
    {"request_id": "b", "label": 0, "who": "ada", "time": "2023-11-14T22:13:20Z"},
    {"request_id": "c", "label": None, "who": "ada", "time": NOON * 1000},
]
AT, EXACT = "2023-11-14T22:13:20Z", "2023-11-14T22:13:20.000Z"


def langfuse(kind: str | None = "BOOLEAN", value: object = 1, text: str | None = None, **more: Any) -> dict[str, Any]:
    held = {"traceId": "a", "name": "correct", "value": value, "dataType": kind, "source": "ANNOTATION", **more}
    return held | ({} if text is None else {"stringValue": text})


def phoenix(name: str, score: object = None, label: str | None = None, **more: Any) -> dict[str, Any]:
    result = {"score": score, "label": label, "explanation": "x"}
    return {"span_id": "a", "name": name, "annotator_kind": "HUMAN", "result": result, **more}


def mlflow(value: object, name: str = "correctness", **more: Any) -> dict[str, Any]:
    given = {"trace_id": "a", "assessment_name": name, "source": {"source_type": "HUMAN", "source_id": "ada"}}
    return {**given, "feedback": {"value": value}, "valid": True, **more}


def evals(passed: object = True, item: str = "pass", **more: Any) -> dict[str, Any]:
    result = {"name": "Match", "type": "string_check", "passed": passed, "score": 1.0, **more}
    return {"id": "o", "datasource_item": {"request_id": "a"}, "results": [result], "status": item}


def traced(name: str, value: object) -> dict[str, Any]:
    assessments = [
        mlflow(value, trace_id=f"tr-{name}", assessment_id="x", create_time=AT, last_update_time=AT),
        {"assessment_name": "correctness", "feedback": {"value": not value}, "valid": False},
        {"assessment_name": "expected_answer", "expectation": {"value": "4"}},
    ]
    info = {"trace_id": f"tr-{name}", "client_request_id": name, "tags": {}, "assessments": assessments}
    return {"info": info, "data": {"spans": []}}


MLFLOW = {"traces": [traced(name, value) for name, value in [("a", True), ("b", "no"), ("c", "unsure")]]}
LANGFUSE = {
    "data": [
        langfuse(kind, value, text, traceId=name, observationId=f"o-{name}", authorUserId="ada", timestamp=EXACT)
        for name, kind, value, text in [
            ("a", "BOOLEAN", 1, "True"),
            ("b", "CATEGORICAL", 7, "incorrect"),
            ("c", "CATEGORICAL", 1, "unsure"),
        ]
    ],
    "meta": {"page": 1, "limit": 50, "totalItems": 3, "totalPages": 1},
}
ANNOTATED = {"id": "U3Bhbg==", "created_at": "2023-11-14T22:00:00+00:00", "updated_at": "2023-11-14T22:13:20+00:00"}
ANNOTATED |= {"source": "APP", "user_id": "ada", "identifier": "", "span_id": "67f6740bbe1ddc3f"}
PHOENIX = {
    "data": [
        phoenix("correctness", score, label, metadata={"request_id": name}, **ANNOTATED)
        for name, score, label in [("a", 1.0, None), ("b", None, "incorrect"), ("c", None, "unsure")]
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
EXPECTED = [("a", 1.0), ("b", 0.0), ("c", None)]


def read(path: Path, *form: str, **more: Any) -> tuple[list[FeedbackLabel], list[str]]:
    """The labels, and the lines that were said of them."""
    said: list[str] = []
    return read_label_file(path, *form, **more, say=said.append), said


@pytest.mark.parametrize(
    ("form", "held"), [("lines", LINES), ("mlflow", MLFLOW), ("langfuse", LANGFUSE), ("phoenix", PHOENIX)]
)
def test_each_programs_labels_are_known_by_their_content(form: str, held: Any, tmp_path: Path) -> None:
    source = "" if form == "lines" else "human"
    expected = [FeedbackLabel(name, value, "ada", NOON, source) for name, value in EXPECTED]
    path = written(tmp_path / "labels.json", held)
    assert read(path)[0] == expected
    assert read(path, form)[0] == expected
    listed = next(iter(held.values())) if isinstance(held, dict) else held
    assert read(written(tmp_path / "labels.jsonl", listed))[0] == expected


def test_evals_of_openai_are_read_by_the_items_own_id(tmp_path: Path) -> None:
    found = read_label_file(written(tmp_path / "labels.json", EVALS))
    assert found == [FeedbackLabel(name, value, "openai-evals", NOON, "judge") for name, value in EXPECTED[:2]]


# A value without its type, direction or validity is no label


FAILED = {"value": None, "error": {"error_code": "X", "error_message": "judge failed"}}
NO_LABELS = {
    "a text": langfuse("TEXT", 0, "Great answer, exactly right"),
    "a correction": langfuse("CORRECTION", 0, "4"),
    "a number of an unknown range": langfuse("NUMERIC", 1),
    "a number without a type": langfuse(None, 1),
    "a type that nobody knows": langfuse("STARS", 1),
    "a boolean that is none": langfuse("BOOLEAN", 0.5),
    "a boolean whose text says the opposite": langfuse("BOOLEAN", 1, "False"),
    "a category without its name": langfuse("CATEGORICAL", 1),
    "a category that is a rank": langfuse("CATEGORICAL", 1, "1"),
    "a category that nobody knows": langfuse("CATEGORICAL", 0, "so so"),
    "a boolean of something without a direction": langfuse(name="polite"),
    "a boolean of a negated name": langfuse(name="not_correct"),
    "a score of a session": langfuse(traceId=None, sessionId="s"),
    "a score of a data set's run": langfuse(traceId=None, subject={"kind": "experiment", "id": "r"}),
    "a verdict of our own": langfuse(name="metaprobe.correct"),
    "a score without a direction": phoenix("tone", 1.0),
    "a score of no direction": phoenix("correctness", 1.0, metadata={"direction": "neutral"}),
    "a score whose metadata cannot be read": phoenix("correctness", 1.0, metadata="{'direction': <object>}"),
    "a score of another range": phoenix("correctness", 87.0),
    "a label that nobody knows": phoenix("tone", None, "warm"),
    "a label and a score that contradict each other": phoenix("correctness", 0.0, "correct"),
    "a note": phoenix("note"),
    "an annotation without a result": {"span_id": "a", "annotator_kind": "HUMAN", "name": "correctness"},
    "an annotation of a document": phoenix("relevance", 1.0, document_position=0),
    "an annotation of a session": {**phoenix("correctness", 1.0), "span_id": None, "session_id": "s"},
    "a failed judge": mlflow(None, feedback=FAILED),
    "a failed judge with a value": mlflow(None, feedback=FAILED | {"value": True}),
    "a failed judge of older versions": mlflow(True, error={"error_code": "X"}),
    "an overridden assessment": mlflow(True, valid=False),
    "a rating": mlflow(1),
    "several values": mlflow(["correct"]),
    "an expectation": {"assessment_name": "correct", "expectation": {"value": True}, "trace_id": "a"},
    "an issue": {"assessment_name": "correct", "issue": {"issue_name": "x"}, "trace_id": "a"},
    "a grader that failed": evals(sample={"error": {"code": "x", "message": "y"}}),
    "an item that failed": evals(False, "error"),
    "an item that was skipped": evals(False, "skipped"),
    "a grader without a result": evals(None),
    "a label of no direction": {"request_id": "a", "label": 1, "direction": "sideways"},
    "two labels that contradict each other": {"request_id": "a", "label": 0, "correct": 1},
    "a label beside a value that is none": {"request_id": "a", "label": 1, "value": "7 of 10"},
    "a label of what may be bad": {"request_id": "a", "label": 1, "name": "hallucination"},
    "a result whose grader failed": evals(False, "fail", status="errored"),
    "a result whose grader's metadata say so": evals(False, "fail", metadata={"grader": {"error": "x"}}),
    "a word that says the opposite of its score": phoenix("correctness", 1.0, "not correct"),
    "a no that says the opposite of its score": phoenix("correctness", 1.0, "no"),
    "a word for what is good beside a low score": phoenix("correctness", 0.1, "correct"),
    "a word beside a score that nobody knows": phoenix("quality", 1.0, "very poor"),
    "a judgement that could not be read": phoenix("correctness", 0.0, "NOT_PARSABLE"),
    "a judgement with a direction that could not be read": phoenix(
        "tone", 0.0, "NOT_PARSABLE", metadata={"direction": "maximize"}
    ),
    "a word that may mean a failed judge": phoenix("correctness", 0.0, "error"),
    "a part beside a whole score": phoenix("correctness", 1.0, "partially correct"),
    "a kind for what is bad": {"request_id": "a", "label": 1, "kind": "toxicity"},
    "a word for what is good under a name for what is bad": phoenix("hallucination", 1.0, "factual"),
    "a result with an error": {"span_id": "a", "annotator_kind": "LLM", "name": "correctness"}
    | {"result": {"score": 0.0, "error": "timed out"}},
    "a judge's failure in a feedback's field": mlflow(True, feedback={"value": True, "error_message": "x"}),
    "a judge's failure in a feedback's trace": mlflow(True, feedback={"value": True, "stack_trace": "x"}),
    "a name and a direction that contradict each other": langfuse(higherIsBetter=False),
    "two directions": langfuse(higherIsBetter=True, metadata={"direction": "minimize"}),
}
STATES: dict[str, object] = {
    "isDeleted": True,
    "archived": "2026-08-01T10:00:00Z",
    "superseded_by": "l2",
    "status_": "draft",
    "invalid": True,
    "isInvalid": 1,
    "invalidated": "2026-08-01T10:00:00Z",
    "invalidated_by": "ada",
    "valid": False,
    "is-valid": "False",
    "reviewStatus": "rejected",
    "review": "to be done",
    "queueStatus": "PENDING",
    "executionStatus": "FAILED",
    "execution_status": "MISSING INPUT",
    "state": "open",
    "status": "error",
    "retracted": True,
    "retractedAt": 1_700_000_000,
    "error": "timeout",
    "errors": ["timeout"],
    "error_message": {"text": "timeout"},
    "exceptions": "['RateLimitError()']",
    "stackTrace": "line 1",
    "failed": "yes",
    "timeout": True,
    "parse_success": False,
    "higherIsBetter": False,
    "lower_is_better": True,
    "greater_is_better": "no",
    "direction": "minimize",
    "score_direction": "sideways",
    "inverted": True,
}
"""Fields by which a judgement of correctness does not count, or is turned."""
SETTLED: dict[str, object] = {
    "invalid": False,
    "invalidatedAt": None,
    "is_valid": "True",
    "reviewStatus": "APPROVED",
    "reviewed_by": "ada",
    "reviewComment": "looks wrong to me",
    "queueId": "q",
    "executionStatus": "COMPLETED",
    "execution_status": "COMPLETED WITH RETRIES",
    "status": 200,
    "retracted": 0,
    "error": None,
    "errors": [],
    "error_message": "",
    "feedback_error": {"error_code": "", "error_message": None},
    "exceptions": "[]",
    "higherIsBetter": True,
    "direction": "maximize",
    "inverted": "false",
    "statement": "error",
    "timeout": 30,
    "draft_model": "tiny",
    "max": 1,
    "min": 0,
    "validator": "judge-1",
    "configId": "c",
    "environment": "default",
    "mlflow.assessment.judgeCost": "0.1",
}
"""Fields that say nothing against it."""


SOUND = {
    "dataType": langfuse(traceId="b"),
    "annotator_kind": phoenix("correctness", 1.0, span_id="b"),
    "assessment_name": mlflow(True, trace_id="b"),
    "datasource_item": evals() | {"datasource_item": {"request_id": "b"}},
    "label": {"request_id": "b", "label": 1},
}
"""Marks of each program's record, and one of its records that is a label."""


@pytest.mark.parametrize("held", NO_LABELS.values(), ids=NO_LABELS)
def test_a_value_without_type_direction_or_validity_is_no_label(held: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match=r"holds no label: .*left out"):
        read(written(tmp_path / "labels.json", held))
    [beside] = [one for key, one in SOUND.items() if key in held]
    if "87" not in str(held):  # scores of one name are read alike
        labels, said = read(written(tmp_path / "labels.jsonl", [held, beside]))
        assert [label.request_id for label in labels] == ["b"]
        assert any("left out" in line for line in said)


def with_field(form: str, place: str, key: str, value: object) -> dict[str, Any]:
    """A judgement that an answer is right, with a field of its own or of its metadata."""
    field = {"metadata": {key: value}} if place == "metadata" else {key: value}
    made: dict[str, Callable[..., dict[str, Any]]] = {
        "langfuse": langfuse,
        "phoenix": partial(phoenix, "correctness", 1.0),
        "mlflow": partial(mlflow, True),
        "evals": evals,
        "lines": partial(dict, request_id="a", label=1),
    }
    return made[form](**field)


PLACES = [
    (form, place) for form in ("langfuse", "phoenix", "mlflow", "evals", "lines") for place in ("own", "metadata")
]


def found(held: dict[str, Any], folder: Path) -> list[float | None]:
    with suppress(ImportFileError):
        return [one.value for one in read(written(folder / "labels.json", held))[0]]
    return []


@pytest.mark.parametrize(("form", "place"), PLACES)
def test_a_state_one_level_off_counts_in_any_spelling(form: str, place: str, tmp_path: Path) -> None:
    turning = {"higherIsBetter", "lower_is_better", "greater_is_better", "direction", "score_direction", "inverted"}
    wrong = {}
    for key, value in STATES.items():
        if form == "evals" and key in turning:
            continue  # it says itself whether the answer passed
        values = found(with_field(form, place, key, value), tmp_path)
        if values and not (form == "lines" and key in turning and values == [0]):
            wrong[key] = values
    assert not wrong


@pytest.mark.parametrize(("form", "place"), PLACES)
def test_fields_that_say_nothing_against_a_label_leave_it_out_nowhere(form: str, place: str, tmp_path: Path) -> None:
    lost = [key for key, value in SETTLED.items() if found(with_field(form, place, key, value), tmp_path) != [1]]
    assert not lost


def test_a_line_tells_why_its_labels_do_not_count() -> None:
    line = {"id": "q", "labels": {"correct": 1}, "response": {"error": None}}
    for key, value in STATES.items():
        assert why_not_right(line | {key: value})
        assert why_not_right(line | {"metadata": {key: value}})
    for key, value in SETTLED.items():
        assert not why_not_right(line | {key: value})
        assert not why_not_right(line | {"metadata": {key: value}})


@pytest.mark.parametrize("metadata", [{}, None, "{}", "", "nan", "{ }", [], {"model": "gpt"}])
def test_metadata_that_states_nothing_leave_no_label_out(metadata: object, tmp_path: Path) -> None:
    for held in (phoenix("correctness", 1.0), langfuse(), mlflow(True)):
        assert found(held | {"metadata": metadata}, tmp_path) == [1]


LABELS = {
    "a word that agrees with its score": (phoenix("correctness", 1.0, "correct"), 1.0),
    "a yes that agrees with its score": (phoenix("hallucination", 1.0, "yes"), 0.0),
    "an evaluator's word for what is bad": (phoenix("hallucination", 1.0, "hallucinated"), 0.0),
    "an evaluator's word for what is good": (phoenix("hallucination", 0.0, "factual"), 1.0),
    "a part": (phoenix("correctness", 0.5, "partially_correct"), 0.5),
    "a goal": (phoenix("tone", 1.0, metadata={"goal": "Lower is better"}), 0.0),
    "an answer that reads like a direction": ({"request_id": "a", "label": 1, "answer": "minimize"}, 1.0),
    "a negated word": (phoenix("toxicity", 0.0, "non-toxic"), 1.0),
    "a word for what has no relevance": (phoenix("relevance", 0.0, "unrelated"), 0.0),
    "a score that its label repeats": (phoenix("correctness", 1.0, "1"), 1.0),
    "labels that agree": ({"request_id": "a", "label": "right", "correct": 1, "value": ""}, 1.0),
    "a label of a person's name": ({"request_id": "a", "label": 1, "name": "ada"}, 1.0),
    "a label of a good name": ({"request_id": "a", "label": 0, "name": "correctness"}, 0.0),
    "a word under a bad name": ({"request_id": "a", "label": "wrong", "name": "hallucination"}, 0.0),
    "a label of a bad name with its direction": (
        {"request_id": "a", "label": 1, "name": "hallucination", "direction": "minimize"},
        0.0,
    ),
    "a result of a grader that ran": (evals(False, "fail", status="failed"), 0.0),
    "a yes": (langfuse("BOOLEAN", 1, "True"), 1.0),
    "a boolean of the newer interface": (langfuse("BOOLEAN", False, subject={"kind": "trace", "id": "a"}), 0.0),
    "a boolean that says what is bad": (langfuse(name="hallucination"), 0.0),
    "a category": (langfuse("CATEGORICAL", 7, "incorrect"), 0.0),
    "a category of the newer interface": (langfuse("CATEGORICAL", "Correct"), 1.0),
    "a category of what is bad": (langfuse("CATEGORICAL", 1, "no", name="is_toxic"), 1.0),
    "a score of an annotation's trace": (phoenix("correctness", 1.0, span_id=None, trace_id="a"), 1.0),
    "a score to be minimised": (phoenix("tone", 1.0, "harsh", metadata={"direction": "minimize"}), 0.0),
    "a share to be minimised": (phoenix("tone", 0.25, metadata={"optimization_direction": "MINIMIZE"}), 0.75),
    "a score to be maximised": (phoenix("tone", 1.0, metadata={"direction": "maximize"}), 1.0),
    "a direction that Python wrote": (phoenix("tone", 1.0, metadata="{'direction': 'minimize', 'x': None}"), 0.0),
    "a score that its name explains": (phoenix("Hallucination", 0.0), 1.0),
    "a label whose score has no direction": (phoenix("tone", 0.0, "correct"), 1.0),
    "a label and its score": (phoenix("errors", 1.0, "incorrect", metadata={"direction": "minimize"}), 0.0),
    "a truth": (mlflow(True), 1.0),
    "a word": (mlflow("yes"), 1.0),
    "a word for what is bad": (mlflow("yes", "hallucination"), 0.0),
    "an older assessment, which does not say that it is valid": (mlflow(False, valid=None), 0.0),
    "a grader": (evals(False, "fail"), 0.0),
    "a label that was handed in": ({"request_id": "a", "label": 1, "status": "submitted", "deleted": False}, 1.0),
    "a label with its direction": ({"request_id": "a", "label": 1, "direction": "minimize"}, 0.0),
}


@pytest.mark.parametrize(("held", "value"), LABELS.values(), ids=LABELS)
def test_a_value_that_says_what_it_means_is_read_by_that(held: dict[str, Any], value: float, tmp_path: Path) -> None:
    labels, said = read(written(tmp_path / "labels.json", held))
    assert [(one.request_id, one.value) for one in labels] == [("a", value)]
    assert len(said) == 1
    assert "left out" not in said[0]


def meant(kind: str | None, value: object, text: str | None, name: str) -> float | None:
    """Returns the meaning of a Langfuse score by the rules of its types; None where it has none."""
    yes: object = None
    if str(kind).upper() == "BOOLEAN" and not isinstance(value, str | None):
        agreed = text in (None, "", "True" if value == 1 else "False")
        yes = {0.0: False, 1.0: True}.get(float(value)) if agreed else None  # type: ignore[arg-type]
    elif kind == "CATEGORICAL":
        word = text or (value if value in ("good", "x") else None)
        if word in ("good", "bad"):
            return float(word == "good")
        yes = {"True": True, "False": False}.get(str(word))
    if yes is None or name not in ("correct", "hallucination"):
        return None
    return float(yes is (name == "correct"))


@given(
    kind=st.sampled_from(["BOOLEAN", "CATEGORICAL", "NUMERIC", "TEXT", "CORRECTION", "", None, "STARS", "boolean"]),
    value=st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.floats(-1, 9), st.sampled_from(["good", "x"])),
    text=st.sampled_from([None, "", "True", "False", "good", "bad", "so so", "3"]),
    name=st.sampled_from(["correct", "polite", "hallucination", "not_correct", "tone correct"]),
    state=st.sampled_from([{}, {"isDeleted": True}, {"status": "draft"}, {"valid": False}, {"error": "x"}]),
)
def test_only_known_combinations_of_type_name_and_state_make_a_label(
    kind: str | None, value: object, text: str | None, name: str, state: dict[str, Any]
) -> None:
    held = langfuse(kind, value, text, name=name, **state)
    found = None
    with TemporaryDirectory() as folder, suppress(ImportFileError):
        [label], _ = read(written(Path(folder) / "labels.json", held))
        found = label.value
    assert found == (None if state else meant(kind, value, text, name))


def test_kinds_are_said_one_line_each_and_without_a_listener_those_that_were_not_taken_are_warned_of(
    tmp_path: Path,
) -> None:
    held = [langfuse(traceId=str(i)) for i in range(3)]
    held += [langfuse("NUMERIC", i, traceId=str(i), name="score") for i in range(6)]
    held += [langfuse("TEXT", 0, "fine", name="feedback")]
    path = written(tmp_path / "scores.jsonl", held)
    labels, said = read(path)
    assert (len(labels), len(said)) == (3, 3)
    assert said[0] == 'langfuse: 3 BOOLEAN "correct": 1 is right, by the name'
    assert said[1].startswith('langfuse: 6 NUMERIC "score" 0..5: left out, ')
    assert "--value-map" in said[1]
    assert said[2].startswith('langfuse: 1 TEXT "feedback": left out, a text')
    with pytest.warns(UserWarning, match="left out") as warned:
        assert read_label_file(path) == labels
    assert len(warned) == 2


def test_a_weaker_assessment_neither_overrides_nor_erases_a_persons(tmp_path: Path) -> None:
    """Only what may be a label takes the place of another one, and a judge's never of a person's."""

    def assessed(*more: dict[str, Any]) -> list[tuple[float | None, str]]:
        mine = mlflow(True, assessment_id="mine")
        labels, _ = read(written(tmp_path / "a.json", {"traces": [{"info": {"assessments": [mine, *more]}}]}))
        return [(one.value, one.source) for one in labels]

    judge = {"source": {"source_type": "LLM_JUDGE", "source_id": "gpt"}, "overrides": "mine"}
    assert assessed({**mlflow(None), "feedback": FAILED, **judge}) == [(1, "human")]
    assert assessed(mlflow(False, **judge)) == [(1, "human"), (0, "judge")]
    assert assessed(mlflow(False, overrides="mine")) == [(0, "human")]


def test_labels_of_several_parts_of_one_trace_say_nothing_of_its_answer(tmp_path: Path) -> None:
    held = [langfuse(value=value, observationId=f"o{value}") for value in (0, 1)]
    path = written(tmp_path / "scores.jsonl", held)
    with pytest.raises(ImportFileError, match="several parts of its trace"):
        read(path)
    assert [one.request_id for one in read(path, id_key="observationId")[0]] == ["o0", "o1"]
    whole = written(path, [*held, langfuse(value=0)])
    assert [(one.request_id, one.value) for one in read(whole)[0]] == [("a", 0)]


STARS = [langfuse("NUMERIC", value, traceId=f"r{value}", name="stars") for value in range(1, 6)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (">=4=correct,<=2=wrong", {"r1": 0, "r2": 0, "r4": 1, "r5": 1}),
        ({"5": "correct", "<3": "wrong", "3": "unsure"}, {"r1": 0, "r2": 0, "r3": None, "r5": 1}),
        ("1=wrong", {"r1": 0}),
    ],
)
def test_a_value_map_says_what_nobody_else_can_know(
    given: Any, expected: dict[str, float | None], tmp_path: Path
) -> None:
    labels, said = read(written(tmp_path / "scores.jsonl", STARS), value_map=given)
    assert {one.request_id: one.value for one in labels} == expected
    assert any("by the value map" in line for line in said)
    assert any("left out" in line for line in said) == (len(expected) < 5)


def test_a_value_map_reads_words_and_says_which_of_its_values_were_not_met(tmp_path: Path) -> None:
    held = [phoenix("tone", None, label, span_id=label) for label in ("warm, kind", "harsh", "good")]
    path = written(tmp_path / "tones.jsonl", held)
    labels, said = read(path, value_map="Warm, kind=correct,harsh=wrong,a=b=unsure")
    assert [(one.request_id, one.value) for one in labels] == [("warm, kind", 1), ("harsh", 0), ("good", 1)]
    assert any("no value fits a=b=unsure" in line for line in said)


@pytest.mark.parametrize(
    ("held", "given", "message"),
    [
        (STARS, ">=3=correct,<=3=wrong", "both fit"),
        (STARS, "3=correct,3=wrong", "is both correct and wrong"),
        (STARS, "7=correct", "no value fits 7=correct"),
        (STARS, "5=great", "expected VALUE=correct"),
        (STARS, "correct", "expected VALUE=correct"),
        ([langfuse("CATEGORICAL", 1, "incorrect")], "incorrect=correct", "says the opposite"),
        ([phoenix("tone", 1.0, metadata={"direction": "minimize"})], "1=correct", "says the opposite"),
    ],
)
def test_a_value_map_that_contradicts_or_fits_nothing_is_refused(
    held: list[dict[str, Any]], given: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ImportFileError, match=message):
        read(written(tmp_path / "scores.jsonl", held), value_map=given)


def test_no_map_makes_a_label_of_what_is_invalid_or_no_judgement(tmp_path: Path) -> None:
    for held in (langfuse("TEXT", 0, "fine"), mlflow(True, valid=False), langfuse(isDeleted=True)):
        with pytest.raises(ImportFileError, match=r"left out|no value fits"):
            read(written(tmp_path / "labels.json", held), value_map="fine=correct,1=correct,0=wrong")


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


def test_one_of_several_things_judged_is_chosen_by_name(tmp_path: Path) -> None:
    judged = [("correct", 1), ("helpful", 0)]
    held = [{"traceId": "a", "name": name, "value": value, "dataType": "BOOLEAN"} for name, value in judged]
    path = written(tmp_path / "scores.jsonl", held)
    with pytest.raises(ImportFileError, match=r"judges correct, helpful: choose one \(--name\)"):
        read_label_file(path)
    assert [one.value for one in read_label_file(path, name="helpful")] == [0]
    with pytest.raises(ImportFileError, match="nothing is called 'kind'; there are correct, helpful"):
        read_label_file(path, name="kind")


def test_the_id_may_stand_anywhere(tmp_path: Path) -> None:
    metadata = {"metadata": {"ours": {"id": "a"}}, "observationId": "o"}
    held = [{"traceId": "t", "name": "correct", "value": 1, "dataType": "BOOLEAN", **metadata}]
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
        (
            '{"request_id": "a"}\n{"request_id": "b"}\n{"request_id": "c", "label": 1}',
            r"record 1: .* labels \(KeyError",
        ),
        ('{"request_id": "a", "label": 1, "time": "noon"}', "record 1: time 'noon'; expected seconds"),
        ('{"request_id": "a", "label": 1, "time": true}', "record 1: time True; expected seconds"),
        ('{"colour": "red"}', "its records have colour; expected request_id and label"),
        ("[3]", "record 1: came int; expected an object"),
        ('{"info": {"assessments": "x"}}', "record 1: it is no record of MLflow"),
        ('{"span_id": "a", "annotator_kind": "HUMAN", "result": 3}', "left out, its result, which .* cannot be read"),
    ],
)
def test_a_bad_file_is_refused_with_the_record_and_what_was_expected(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(text)
    with pytest.raises(ImportFileError, match=message):
        read_label_file(path)


def test_a_bad_record_is_left_out_and_named_and_the_others_are_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    good = '{"request_id": "a%d", "label": 1}'
    bad = ['{"request_id": "b"}', '{"request_id": "c", "label": "perhaps"}', '{"label": 1}', "nonsense", "[1]"]
    path.write_text("\n".join([*bad, *(good % number for number in range(6))]))
    with pytest.warns(UserWarning, match="5 of 11 records of") as said:
        labels = read_label_file(path, say=lambda line: None)
    assert [one.request_id for one in labels] == [f"a{number}" for number in range(6)]
    [told] = [str(one.message) for one in said]
    assert all(f"record {number}: " in told for number in (1, 2, 3))
    assert "labels.jsonl:4: not JSON" in told
    with pytest.raises(ImportFileError, match=r"labels\.jsonl:4: not JSON"):
        read_label_file(path, strict=True)


@pytest.mark.parametrize("begins", ["", '{"request_id": "a", "label": 1, "note": "', "request_id,label\na,"])
def test_a_file_that_unpacks_to_more_than_is_read_is_refused_before_it_fills_the_memory(
    tmp_path: Path, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.production.monitoring.label_files.MAX_FILE_BYTES", 1 << 20)
    path = tmp_path / "labels.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(begins.encode())
        for _ in range(64):
            file.write(b"0" * (1 << 20))
    assert path.stat().st_size < 1 << 17
    tracemalloc.start()
    try:
        with pytest.raises(ImportFileError, match="holds more than 1 MiB"):
            read_label_file(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
