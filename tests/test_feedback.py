"""Labels come back: from files of every kind, on the command line, and from the labelling page."""

import csv
import gzip
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from metaprobe.cli import main
from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring.label_files import NAMES, read_label_file
from metaprobe.monitoring.label_values import label_value
from metaprobe.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.monitoring.sheet_files import read_sheet
from metaprobe.records.errors import ImportFileError
from metaprobe.serving.labelling.page import LabelServer, label_on_page

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


# The commands


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """A log of ten answers."""
    path = tmp_path / "scores.sqlite"
    with ScoreLog.open(path) as log:
        for number in range(10):
            log.write(
                Entry(
                    request_id=f"r{number}",
                    time=NOON + number,
                    model="m",
                    checkpoint="c",
                    score=0.5,
                    tags={"task": "faq"},
                    question=f"What is {number} + 1?",
                    answer=f"It is {number + 1}.",
                )
            )
    return path


def test_the_command_stores_labels_and_says_what_the_log_does_not_know(where: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "labels.jsonl", [{"request_id": "r1", "label": 1}, {"request_id": "other", "label": 0}])
    done = run("feedback", path, "--log", where)
    assert done.exit_code == 0
    assert "stored 2 labels: 1 right, 1 wrong, 0 neither" in done.output
    assert "1 are of answers that the log does not hold" in done.output
    with ScoreLog.open(where) as log:
        assert {(one.request_id, one.value) for one in log.current_labels()} == {("r1", 1), ("other", 0)}


def test_a_sheet_is_drawn_filled_in_and_given_back(where: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.jsonl"
    done = run("sample", "--log", where, "--budget", 4, "--out", sheet, "--seed", 1, "--tag", "task=faq")
    assert done.exit_code == 0
    assert "drew 4 of 10 answers" in done.output
    rows = [json.loads(line) for line in sheet.read_text().splitlines()]
    assert set(rows[0]) == {"request_id", "answered", "model", "tags", "question", "answer", "label"}
    assert [row.request_id for row in read_sheet(sheet)] == [row["request_id"] for row in rows]
    for row in rows:
        row["label"] = "right"
    assert run("feedback", written(sheet, rows), "--log", where).exit_code == 0
    name = done.output.splitlines()[-1].removeprefix("sheet ")
    again = run("sample", "--log", where, "--sheet", name, "--out", tmp_path / "left" / "again.jsonl")
    assert again.exit_code == 0
    assert (tmp_path / "left" / "again.jsonl").read_text() == ""  # nothing of it is left
    assert "no sheet 'x' in this log" in run("sample", "--log", where, "--sheet", "x", "--out", tmp_path / "x").output


def test_a_sheet_takes_the_place_of_nothing_neither_of_labels_nor_of_the_log(where: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.jsonl"
    run("sample", "--log", where, "--budget", 4, "--out", sheet, "--seed", 1)
    for there in (sheet, where):
        before = there.read_bytes()
        refused = run("sample", "--log", where, "--budget", 2, "--out", there)
        assert (refused.exit_code, "is not replaced; give another name" in refused.output) == (2, True), refused.output
        assert there.read_bytes() == before
    with ScoreLog.open(where) as log:
        assert len(log.tables.read("SELECT sheet FROM sheets")) == 1, "drawn for a sheet that could not be written"
    failed = run("sample", "--log", where, "--out", tmp_path / "n" / "s", "--model", "nobody")
    assert (failed.exit_code, list((tmp_path / "n").iterdir())) == (1, [])


def test_a_sheet_that_was_cut_down_to_id_time_and_label_corrects_what_was_said_before(
    where: Path, tmp_path: Path
) -> None:
    """A spreadsheet may keep some columns only; the time among them is the answer's, long before any label's."""
    sheet = tmp_path / "sheet.jsonl"
    run("sample", "--log", where, "--budget", 1, "--out", sheet, "--seed", 1)
    [row] = [json.loads(line) for line in sheet.read_text().splitlines()]
    with ScoreLog.open(where) as log:
        log.label(row["request_id"], 1, who="user", time=NOON + 1e6)
    kept = {name: row[name] for name in row if name in ("request_id", "answered", "time")}
    blank = {"request_id": "r0", "answered": NOON, "label": ""}
    done = run("feedback", written(sheet, [{**kept, "label": 0}, blank]), "--log", where)
    assert "stored 1 labels: 0 right, 1 wrong" in done.output, done.output
    with ScoreLog.open(where) as log:
        assert [one.value for one in log.current_labels()] == [0]
    stated = written(sheet, [{**row, "label": 1, "time": NOON}])
    assert [one.time for one in read_label_file(stated)] == [NOON], "a time that a label states is the label's"


def test_a_sheets_label_is_of_now_and_what_nobody_filled_in_says_nothing(where: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.jsonl"
    run("sample", "--log", where, "--budget", 4, "--out", sheet, "--seed", 1)
    rows = [json.loads(line) for line in sheet.read_text().splitlines()]
    with ScoreLog.open(where) as log:
        for row in rows:
            log.label(row["request_id"], 1, time=NOON + 1e6)  # after the answers, and before the sheet comes back
    unfilled = run("feedback", sheet, "--log", where)
    assert (unfilled.exit_code, "a sheet without any label" in unfilled.output) == (1, True)
    rows[0]["label"], rows[1]["label"] = 0, "unsure"
    assert (
        "stored 2 labels: 0 right, 1 wrong, 1 neither" in run("feedback", written(sheet, rows), "--log", where).output
    )
    with ScoreLog.open(where) as log:
        found = {one.request_id: one.value for one in log.current_labels()}
    assert [found[row["request_id"]] for row in rows] == [0, None, 1, 1]


CSV = "request_id,who,label\nr1,ada,1\nr3,ada,0\n"


@pytest.mark.parametrize(
    ("name", "held", "said"),
    [
        ("cut.csv", CSV.encode() + b"r4", "record 3: it has 1 cells, and the head has 3"),
        ("more.csv", CSV.encode() + b"r4,ada,1,1", "record 3: it has 4 cells, and the head has 3"),
        ("latin.csv", CSV.replace("ada", "L\xe9a").encode("latin-1"), "0xe9) is not UTF-8; save it as UTF-8"),
        ("wide.csv", CSV.encode("utf-16"), "is not UTF-8"),
        ("field.csv", CSV.encode() + b'r4,"' + b"x" * 140_000 + b'",1', "cannot be read as CSV"),
        ("cut.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:-12], "damaged or cut off"),
        ("label.jsonl", b'{"request_id": "r1", "label": 1' + b"0" * 400 + b"}", "expected 1 or right"),
        ("time.jsonl", b'{"request_id": "r1", "label": 1, "time": 1' + b"0" * 400 + b"}", "time of 401 digits"),
        ("open.csv", CSV.encode() + b'r4,"ada,1\nr5,ada,0\n', "a quote left open"),
        ("semicolon.csv", CSV.replace(",", ";").encode(), "whose cells commas or tabs part"),
        ("long.txt", b"x" * 140_000, "cannot be read as CSV"),
        ("prose.txt", b"all of them were right", "neither JSON nor a table"),
    ],
)
def test_a_file_that_is_cut_or_of_other_bytes_stores_nothing_and_says_why(
    name: str, held: bytes, said: str, where: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(held)
    refused = run("feedback", tmp_path / name, "--log", where)
    assert (refused.exit_code, said in refused.output) == (1, True), refused.output
    with ScoreLog.open(where) as log:
        assert log.current_labels() == []


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("labels.txt", CSV.encode()),
        ("labels.csv", b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode()),
        ("labels", CSV.replace(",", "\t").encode()),
        ("labels.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        ("mac.csv", CSV.replace("\n", "\r").replace("ada", "a\tb").encode()),
        ("line.csv", CSV.replace("ada", "a\u2028b\x0bc").encode()),
        ("empty.csv", CSV.replace("1\n", "1,\n").encode()),
        ("quoted.csv", CSV.replace("who", '"who\tsaid"').encode()),
    ],
)
def test_lines_and_csv_are_told_apart_by_what_they_hold(name: str, held: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(held)
    found = [(one.request_id, one.value) for one in read_label_file(tmp_path / name)]
    assert found == [("r1", 1.0), ("r3", 0.0)]


def test_zero_is_an_id(tmp_path: Path) -> None:
    assert [one.request_id for one in read_label_file(written(tmp_path / "l", [{"request_id": 0, "label": 1}]))] == [
        "0"
    ]


def test_a_label_of_the_future_can_be_corrected(where: Path) -> None:
    with ScoreLog.open(where) as log:
        log.label("r1", 1, time=time.time() + 1e9)
        log.label("r1", 0)
        assert [one.value for one in log.current_labels()] == [0]


@pytest.mark.parametrize("empty", [False, True])
def test_labels_for_a_log_that_is_none_are_refused_and_none_is_made(tmp_path: Path, empty: bool) -> None:
    path, none = written(tmp_path / "labels.jsonl", [{"request_id": "r1", "label": 1}]), tmp_path / "typo.sqlite"
    if empty:
        none.touch()
    for words in (["feedback", path], ["sample", "--out", tmp_path / "sheet"], ["estimate"]):
        refused = run(*words, "--log", none)
        assert (refused.exit_code, "there is no score log" in refused.output) == (2, True), refused.output
    assert (none.exists(), none.exists() and none.stat().st_size) == (empty, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing option '--out' or '--page'"),
        (["--out", "x", "--tag", "faq"], "--tag 'faq' is not NAME=VALUE"),
        (["--out", "x", "--model", "nobody"], "none of the 0 answers of that time, model and tags"),
    ],
)
def test_a_draw_that_cannot_be_meant_is_refused(words: list[str], message: str, where: Path) -> None:
    done = run("sample", "--log", where, *words)
    assert done.exit_code != 0
    assert message in done.output


def test_the_commands_formats_are_the_librarys() -> None:
    from metaprobe.feedback_cli import FORMS

    assert ("auto", *NAMES) == FORMS


# The page


def test_the_page_is_served_at_the_port_that_was_asked_for_until_whoever_labels_says_done(
    where: Path, tmp_path: Path
) -> None:
    run("sample", "--log", where, "--budget", 3, "--out", tmp_path / "sheet.jsonl", "--seed", 1)
    rows = read_sheet(tmp_path / "sheet.jsonl")
    said: list[str] = []

    def act(line: str) -> None:
        said.append(line)
        if len(said) == 2:  # both lines are said before it waits
            found = re.fullmatch(r"label 3 answers at http://127\.0\.0\.1:(\d+)/\?key=(\S+)", said[0])
            assert found is not None, said[0]
            assert found[1] == str(port)
            done = httpx.post(
                f"http://127.0.0.1:{port}/done", content="{}", headers={"x-metaprobe-key": found[2]}, trust_env=False
            )
            assert done.status_code == 200

    with ScoreLog.open(where) as log, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.close()
        label_on_page(log, rows, port=port, say=act)
    assert len(said) == 2


@pytest.fixture
def page(where: Path, tmp_path: Path) -> Iterator[tuple[LabelServer, ScoreLog]]:
    run("sample", "--log", where, "--budget", 3, "--out", tmp_path / "sheet.jsonl", "--seed", 1)
    with ScoreLog.open(where) as log:
        server = LabelServer(log, read_sheet(tmp_path / "sheet.jsonl"), who="ada")
        yield server, log
        server.close()


def ask(server: LabelServer, path: str, body: object = None, *, key: str | None = None, **headers: str) -> Any:
    given = {"x-metaprobe-key": server.key if key is None else key} | headers
    url = f"http://127.0.0.1:{server.port}{path}"
    if body is None:
        return httpx.get(url, params={"key": given["x-metaprobe-key"]}, headers=headers, trust_env=False)
    return httpx.post(url, content=json.dumps(body), headers=given, trust_env=False)


def test_the_page_shows_the_sheet_without_scores_and_stores_each_label(page: tuple[LabelServer, ScoreLog]) -> None:
    server, log = page
    shown = ask(server, "/rows").json()
    assert shown["who"] == "ada"
    assert len(shown["rows"]) == 3
    assert set(shown["rows"][0]) == {"request_id", "time", "model", "tags", "question", "answer"}
    chosen = shown["rows"][1]["request_id"]
    assert ask(server, "/label", {"request_id": chosen, "label": "0"}).status_code == 200
    (label,) = log.current_labels()
    assert (label.request_id, label.value, label.who) == (chosen, 0, "ada")
    assert "Is this answer right?" in ask(server, "/").text
    assert not server.done.is_set()
    ask(server, "/done", {})
    assert server.done.wait(5)


@pytest.mark.parametrize(
    ("path", "body", "given", "status"),
    [
        ("/rows", None, {"key": "wrong"}, 403),
        ("/label", {}, {"key": "wrong"}, 403),
        ("/rows", None, {"host": "evil.example:80"}, 403),
        ("/elsewhere", None, {}, 404),
        ("/label", {"request_id": "r-other", "label": 1}, {}, 422),
        ("/label", [], {}, 422),
    ],
)
def test_the_page_answers_only_its_own_requests(
    page: tuple[LabelServer, ScoreLog], path: str, body: object, given: dict[str, str], status: int
) -> None:
    answer = ask(page[0], path, body, **given)
    assert answer.status_code == status
    assert answer.json()["error"]
    assert page[1].current_labels() == []
