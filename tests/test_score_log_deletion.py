"""Deleted answers leave nothing: no tag, no sheet, no event's word, no byte; and nothing of the others is lost."""

import json
import random
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import logged_entries
import pytest
from click.testing import CliRunner
from logged_entries import DAY, START, WHOLE, entry, keep

from metaprobe.cli import main
from metaprobe.production.monitoring import waiting_labels as log_labels
from metaprobe.production.monitoring.label_draw import draw_sheet
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.production.monitoring.tables import LogError

server, where = logged_entries.server, logged_entries.where


def traces(folder: Path, *texts: str) -> list[str]:
    """Which of the texts stand somewhere in the bytes of the files of a folder."""
    held = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    return [text for text in texts if text.encode() in held]


def tags_held(log: ScoreLog) -> set[str]:
    return {str(row[0]) for row in log.tables.read("SELECT tags FROM contexts")}


def unlinked(log: ScoreLog) -> int:
    """Answers whose context is gone: no page, no sum and no estimate would show them."""
    asked = "SELECT count(*) FROM scores s WHERE NOT EXISTS (SELECT 1 FROM contexts c WHERE c.id = s.context)"
    return int(log.tables.read(asked)[0][0])


def test_no_byte_of_a_deleted_request_is_left_beside_many_that_stay(tmp_path: Path) -> None:
    chance = random.Random(5)
    secrets = ("PRIVATE", "private-user", "private-sheet", "private-judge", "private-task")
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        doomed = []
        for number in range(400):
            private = number % 5 == 0
            name = f"{'PRIVATE' if private else 'public'}-{chance.getrandbits(64):016x}"
            tags = {"user": f"private-user-{number}", "task": "private-task"} if private else {"task": "faq"}
            text = f"{'PRIVATE' if private else 'public'} text {number} " * chance.choice((1, 5, 90, 400))
            log.write(entry(number, request_id=name, tags=tags, question=text, answer=text))
            if private:
                doomed.append(name)
        shadow = entry(999, request_id="PRIVATE-shadow", shadow_of=doomed[0], tags={"user": "private-user-s"})
        keep(log, shadow)
        draw_sheet(log, 3, tags={"user": "private-user-0"})
        log.add_labels(FeedbackLabel(name, 1, who="private-judge") for name in doomed)
        log.event("alarm", {"worst": doomed[:3], "said": f"{doomed[1]}, and others", "answers": 5})
        assert traces(tmp_path, *secrets[:2], secrets[3]) == [*secrets[:2], secrets[3]]
        assert log.delete_all(doomed) == []
        assert traces(tmp_path, *secrets, "private") == []
        assert len(log.columns()) == 320
        assert tags_held(log) == {'{"task": "faq"}'}
        (event,) = log.events("alarm")
        assert event.details == {"worst": ["(deleted)"] * 3, "said": "(deleted), and others", "answers": 5}
        assert log.tables.read("SELECT count(*) FROM sheets")[0][0] == 0
        assert log.delete_all(["never there"]) == ["never there"]


def test_a_deletion_says_so_where_another_process_keeps_the_bytes_and_ends_when_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.production.monitoring.tables.ERASE_S", 0.05)
    path = tmp_path / "scores.sqlite"
    with ScoreLog.open(path) as log:
        keep(log, replace(WHOLE, answer="A PRIVATE answer"))
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM scores").fetchall()
            with pytest.raises(LogError, match="was taken away, but its bytes may still be in the file: run the same"):
                log.delete_all(["whole"])
            assert log.entry("whole") is None
        assert traces(tmp_path, "PRIVATE") == ["PRIVATE"]
        assert log.delete_all(["whole"]) == ["whole"]
        assert traces(tmp_path, "PRIVATE") == []
        log.write(WHOLE)
        assert log.flush(), "the log goes on in the file that was written anew"
        assert log.entry("whole") == WHOLE


def test_tags_go_with_the_last_answer_that_has_them_and_come_back_with_the_next(where: str) -> None:
    with ScoreLog.open(where) as log, ScoreLog.open(where) as other:
        keep(log, *(entry(number, tags={"user": user}) for number, user in enumerate(("ada", "ada", "bob", "cyd"))))
        for number in range(2):
            assert '{"user": "ada"}' in tags_held(log)
            assert other.delete_all([f"r{number}"]) == []
        assert tags_held(log) == {'{"user": "bob"}', '{"user": "cyd"}'}
        assert other.delete_all(["r3"]) == [], "the newest context goes as well"
        keep(other, entry(10, tags={"user": "dan"}))
        # which this writer remembers
        keep(log, *(entry(number, tags={"user": user}) for number, user in ((11, "cyd"), (12, "ada"))))
        assert unlinked(log) == 0
        columns = log.columns(ids=True)
        assert dict(zip(columns.request_id.tolist(), columns.tag("user").tolist(), strict=True)) == {
            "r2": "bob",
            "r10": "dan",
            "r11": "cyd",
            "r12": "ada",
        }
        assert log.columns(tags={"user": "ada"}, ids=True).request_id.tolist() == ["r12"]


def test_a_prune_takes_the_tags_that_only_old_answers_had(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaprobe.production.monitoring.retention.ROWS_PER_TRANSACTION", 10)
    monkeypatch.setattr("time.time", lambda: START + 10 * DAY)
    with ScoreLog.open(where) as log:
        for number in range(24):  # more than are taken away in one transaction
            log.write(entry(number, tags={"user": f"u{number}"}))
        keep(log, *(entry(2000 + number, time=START + 9 * DAY, tags={"user": f"u{number}"}) for number in range(3)))
        sheet = draw_sheet(log, 2, tags={"user": "u7"})
        assert len(sheet.rows) == 1
        assert log.prune(5, sure=True) == 24
        assert tags_held(log) == {json.dumps({"user": f"u{number}"}) for number in range(3)}
        assert log.tables.read("SELECT count(*) FROM sheets")[0][0] == 0, "nobody could be on it any more"


def test_the_rule_of_a_sheet_stays_as_long_as_an_answer_could_have_been_on_it(where: str) -> None:
    with ScoreLog.open(where) as log:
        keep(log, *(entry(number, score=0.5) for number in range(6)))
        sheet = draw_sheet(log, 2, seed=3)
        for row in sheet.rows:
            log.delete_all([row.request_id])
        assert log.tables.read("SELECT count(*) FROM samples")[0][0] == 0
        log.write(entry(50, score=0.5))  # stored since: that sheet could not have drawn it
        assert log.flush()
        draw_sheet(log, 2, seed=4)
        columns = log.columns(ids=True)
        drawn = dict(zip(columns.request_id.tolist(), columns.propensity.tolist(), strict=True))
        expected = {name: 0.4 if name == "r50" else 1 - (1 - 2 / 6) * (1 - 0.4) for name in drawn}
        assert {name: value for name, value in drawn.items() if value == value} == pytest.approx(
            {name: expected[name] for name, value in drawn.items() if value == value}
        )
        assert log.tables.read("SELECT count(*) FROM sheets")[0][0] == 2


def test_who_writes_while_others_delete_and_prune_loses_no_answer(where: str) -> None:
    ended = threading.Event()
    problems: list[Exception] = []

    def delete() -> None:
        try:
            with ScoreLog.open(where, entries=False) as other:
                number = 0
                while not ended.is_set():
                    other.delete_all([f"r{number}"])
                    number += 1
        except Exception as error:
            problems.append(error)

    with ScoreLog.open(where) as log:
        thread = threading.Thread(target=delete)
        thread.start()
        for number in range(120):
            log.write(entry(number, tags={"user": f"u{number % 5}"}))
            if number % 20 == 0:
                assert log.flush()
        assert log.flush()
        ended.set()
        thread.join()
        assert (problems, log.dropped, unlinked(log)) == ([], 0, 0)
        columns = log.columns(ids=True)
        assert [f"u{int(name[1:]) % 5}" for name in columns.request_id] == columns.tag("user").tolist()


def test_labels_without_an_answer_are_bounded_in_number_and_the_oldest_go(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(log_labels, "MAX_WAITING_LABELS", 20)
    now = [START]
    monkeypatch.setattr("time.time", lambda: now[0])
    with ScoreLog.open(where) as log:
        keep(log, entry(1))
        log.label("r1", 1, time=START - 9 * DAY)
        log.label("r2", 0, time=START - 9 * DAY)  # before its answer
        keep(log, entry(2))
        for number in range(30):
            now[0] += 1
            assert log.add_labels([FeedbackLabel(f"never-{number}", 1)]) == 0
        held = [one.request_id for one in log.current_labels()]
        assert sorted(held) == sorted(["r1", "r2", *(f"never-{number}" for number in range(10, 30))])
        assert log.dropped_labels == 10
        assert log.add_labels(FeedbackLabel(f"all-at-once-{number}", 1) for number in range(35)) == 0
        assert len(log.current_labels()) == 22
        assert log.dropped_labels == 45
        assert {one.request_id for one in log.current_labels()} >= {"r1", "r2", "all-at-once-34"}
        keep(log, entry(3, request_id="all-at-once-34"))
        assert dict(zip(*[log.columns(ids=True).request_id, log.columns().label], strict=True))["all-at-once-34"] == 1
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps({"request_id": f"x{i}", "label": 1}) + "\n" for i in range(25)))
    done = CliRunner().invoke(main, ["feedback", str(labels), "--log", where])
    assert "25 are of answers that the log does not hold" in done.output
    assert "24 labels of answers that the log does not hold were dropped" in done.output


def test_labels_without_an_answer_wait_for_seven_days(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [START]
    monkeypatch.setattr("time.time", lambda: now[0])
    with ScoreLog.open(where) as log:
        log.label("never", 1, time=START - 100 * DAY)
        log.label("late", 1, time=START - 100 * DAY)
        now[0] += 6.9 * DAY
        log.label("other", 1)
        assert len(log.current_labels()) == 3
        keep(log, entry(1, request_id="late", time=now[0]))
        now[0] += 0.2 * DAY
        log.prune(90)
        assert sorted(one.request_id for one in log.current_labels()) == ["late", "other"]
        assert log.dropped_labels == 1


def test_every_text_of_a_label_is_bounded(where: str) -> None:
    long = "x" * 300
    with ScoreLog.open(where) as log:
        keep(log, entry(1, request_id=long))
        log.label(long, 1, who="w" * 1_000_000)
        log.label("y" * 300, 1)  # of no answer, under a long id
        (label,) = log.current_labels()
        assert (label.request_id, len(label.who)) == (long, 200)
        assert log.dropped_labels == 1
        with pytest.raises(LogError, match="request id has 3000 characters"):
            log.label("z" * 3000, 1)


def test_the_command_says_which_answers_to_a_request_stay(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    with ScoreLog.open(path) as log:
        for name in ("r", "r:1", "r:2", "r:x"):
            log.write(entry(1, request_id=name))
    done = CliRunner().invoke(main, ["log", "delete", "r", "r:1", "--log", str(path)])
    assert done.exit_code == 0, done.output
    assert "took away 2 requests" in done.output
    assert "other answers to these requests stay: r:2;" in done.output
