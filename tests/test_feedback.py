"""Labels come back: on the command line, and from the labelling page."""

import gzip
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner, Result
from test_label_files import NOON, langfuse, mlflow, phoenix, written

from metaprobe.cli import main, own_commands
from metaprobe.production.labelling.page import LabelServer, label_on_page
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.label_draw import SheetRow
from metaprobe.production.monitoring.label_files import PRESET_NAMES, read_label_file
from metaprobe.production.monitoring.log import ScoreLog

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


def read_sheet(path: Path) -> list[SheetRow]:
    """The rows that a sheet was written from."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [SheetRow(**{"time" if name == "answered" else name: value for name, value in row.items()}) for row in rows]


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


def test_a_draw_may_be_of_a_time_and_a_checkpoint_and_warns_of_labels_that_will_not_count(
    where: Path, tmp_path: Path
) -> None:
    digest = "d" * 64
    with ScoreLog.open(where) as log:
        for number in range(10):
            at = NOON + 100 + number
            log.write(Entry(request_id=f"n{number}", time=at, model="m", checkpoint=digest, score=0.5))
    all_of_them = run("sample", "--log", where, "--budget", 20, "--out", tmp_path / "all.jsonl")
    assert "warning: of these 20 answers 10 will not count for `promote`" in all_of_them.stderr
    with ScoreLog.open(where) as log, log.tables.transaction() as execute:
        execute("DELETE FROM samples")
    some = run(
        "sample", "--log", where, "--since", NOON + 105, "--checkpoint", "dddddddd", "--out", tmp_path / "some.jsonl"
    )
    assert "warning" not in some.output
    assert {json.loads(line)["request_id"] for line in (tmp_path / "some.jsonl").read_text().splitlines()} == {
        f"n{number}" for number in range(5, 10)
    }
    for words, message in [
        (["--checkpoint", "eeeeee"], "is none of the checkpoints that gave this log's scores (c, dddddddddddd)"),
        (["--checkpoint", tmp_path / "nothing"], "expected a folder, or at least 4 digits of a digest"),
    ]:
        refused = run("sample", "--log", where, "--out", tmp_path / "x.jsonl", *words)
        assert (refused.exit_code in (1, 2), message in refused.output) == (True, True), refused.output


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
        ("latin.csv", CSV.replace("ada", "L\xe9a").encode("latin-1"), "0xe9 is not UTF-8; save the file as CSV UTF-8"),
        ("cut.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:-12], "damaged or cut off"),
        ("label.jsonl", b'{"request_id": "r1", "label": 1' + b"0" * 400 + b"}", "expected 1 or right"),
        ("time.jsonl", b'{"request_id": "r1", "label": 1, "time": 1' + b"0" * 400 + b"}", "time of 401 digits"),
        ("prose.txt", b"all of them were right", "expected a first row that names each column"),
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
    ("row", "said"),
    [
        (b"r4", "the row has 1 cells, and the head has 3"),
        (b"r4,ada,1,1", "the row has 4 cells, and the head has 3"),
        (b'r4,"ada,1\n', "a quote"),
    ],
)
def test_a_row_that_is_cut_is_left_out_and_named_and_the_others_are_stored(
    row: bytes, said: str, where: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_bytes(CSV.encode() + row)
    with pytest.warns(UserWarning, match=said):
        done = run("feedback", tmp_path / "rows.csv", "--log", where)
    assert done.exit_code == 0, done.output
    with ScoreLog.open(where) as log:
        assert {label.request_id: label.value for label in log.current_labels()} == {"r1": 1, "r3": 0}


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("labels.txt", CSV.encode()),
        ("labels.csv", b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode()),
        ("labels", CSV.replace(",", "\t").encode()),
        ("semicolon.csv", CSV.replace(",", ";").encode()),
        ("labels.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        ("mac.csv", CSV.replace("\n", "\r").replace("ada", "a\tb").encode()),
        ("line.csv", CSV.replace("ada", "a\u2028b\x0bc").encode()),
    ],
)
def test_lines_and_csv_are_told_apart_by_what_they_hold(name: str, held: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(held)
    found = [(one.request_id, one.value) for one in read_label_file(tmp_path / name)]
    assert found == [("r1", 1.0), ("r3", 0.0)]


def test_a_score_to_be_minimised_is_turned_and_that_is_said_before_it_is_stored(where: Path, tmp_path: Path) -> None:
    held = [
        phoenix("hallucination", score, label, span_id=name, metadata={"direction": "minimize"})
        for name, score, label in [("r1", 1.0, "hallucinated"), ("r2", 0.0, "grounded")]
    ]
    done = run("feedback", written(tmp_path / "labels.json", {"data": held}), "--log", where)
    assert done.exit_code == 0
    assert 'phoenix: 2 HUMAN score "hallucination": turned: 1 is wrong' in done.stderr
    assert done.output.index("turned") < done.output.index("stored 2 labels: 1 right, 1 wrong")
    with ScoreLog.open(where) as log:
        assert {one.request_id: one.value for one in log.current_labels()} == {"r1": 0, "r2": 1}


def test_a_judges_label_never_takes_the_place_of_a_persons_and_is_said(where: Path, tmp_path: Path) -> None:
    judge = {"source": {"source_type": "LLM_JUDGE", "source_id": "gpt"}, "last_update_time": "2030-01-01T00:00:00Z"}
    held = [mlflow(False, trace_id=name, **judge) for name in ("r1", "r2", "r3", "r4")]
    with ScoreLog.open(where) as log:
        log.label("r1", 1, who="ada")  # by a way that does not say by whom: as before, a person
        log.label("r2", 1, who="ada", source="human")
        log.label("r3", 1, who="tests", source="program")
        log.label("r4", 1, who="other", source="judge", time=NOON)
    done = run("feedback", written(tmp_path / "labels.json", held), "--log", where)
    assert "3 of judges or programs do not count" in done.stderr
    assert "for these answers: r1, r2, r3\n" in done.stderr
    with ScoreLog.open(where) as log:
        assert {one.request_id: one.value for one in log.current_labels()} == {"r1": 1, "r2": 1, "r3": 1, "r4": 0}
        assert len(log.tables.read("SELECT 1 FROM labels")) == 8, "what was said stays in the log"
        log.label("r4", 1, who="ada", source="human", time=NOON)
        assert [one.value for one in log.current_labels() if one.request_id == "r4"] == [1], "however early it was"


def test_values_mean_what_the_user_says(where: Path, tmp_path: Path) -> None:
    held = [langfuse("NUMERIC", stars, traceId=f"r{stars}", name="stars") for stars in (1, 2, 3, 4)]
    path = written(tmp_path / "labels.json", held)
    unknown = run("feedback", path, "--log", where)
    assert (unknown.exit_code, "1..4: left out" in unknown.output) == (1, True)
    done = run("feedback", path, "--log", where, "--value-map", "4=correct", "--value-map", "<=2=wrong")
    assert "stored 3 labels: 1 right, 2 wrong" in done.stdout


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
        (["--out", "x", "--model", "nobody"], "none of the 0 answers of that time, model, checkpoint and tags"),
    ],
)
def test_a_draw_that_cannot_be_meant_is_refused(words: list[str], message: str, where: Path) -> None:
    done = run("sample", "--log", where, *words)
    assert done.exit_code != 0
    assert message in done.output


def test_the_commands_formats_are_the_librarys() -> None:
    [form] = [one for one in own_commands()["feedback"].params if one.name == "form"]
    assert isinstance(form.type, click.Choice)
    assert ("auto", *PRESET_NAMES) == tuple(form.type.choices)


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
