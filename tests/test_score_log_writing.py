"""Answers written to a score log are not lost: threads, queues, killed processes, databases that go away."""

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import logged_entries
import pytest
from logged_entries import entry, keep

from metaprobe.production.monitoring.log import ScoreLog

server, where = logged_entries.server, logged_entries.where


def test_write_never_waits_and_what_the_queue_cannot_take_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    with ScoreLog.open(path, capacity=10) as log:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")  # the writer cannot store anything
        for number in range(25):
            log.write(entry(number))
        assert log.dropped == 15
        other.execute("COMMIT")
        other.close()
        assert log.flush()
        assert len(log.columns()) == 10


def test_a_log_that_was_hurried_waits_again_and_does_not_spin(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        keep(log, entry(1))
        hurry, end = log._writer._wake, time.monotonic() + 20
        while hurry.is_set() and time.monotonic() < end:
            time.sleep(0.01)
        assert not hurry.is_set(), "while it is set the thread runs in circles on a whole core"


def test_close_stores_what_waits_and_what_comes_later_is_counted_as_dropped(where: str) -> None:
    log = ScoreLog.open(where)
    for number in range(600):
        log.write(entry(number))
    assert log.close()
    log.write(entry(5000))
    assert log.dropped == 1
    with ScoreLog.open(where) as again:
        assert len(again.columns()) == 600
        assert again.lost == 0


ENDS = """
import sys
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.log import ScoreLog
log = ScoreLog.open(sys.argv[1])
def put(first, last):
    for i in range(first, last):
        log.write(Entry(request_id=f"r{i}", time=1e9, model="", checkpoint="", score=0.5))
put(0, 47)
"""


def test_a_process_that_ends_without_close_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    subprocess.run([sys.executable, "-c", ENDS, str(path)], check=True)
    with ScoreLog.open(path) as log:
        assert len(log.columns()) == 47
        assert log.lost == 0
    assert [found.name for found in tmp_path.iterdir()] == ["scores.sqlite"]  # nothing is left lying about


@pytest.mark.parametrize("how", ["deleted", "moved", "another put there"])
def test_a_log_that_was_taken_away_while_it_was_open_is_begun_anew_and_nothing_more_is_lost(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("metaprobe.production.monitoring.log_writer.RETRY_S", 0.01)
    path, other = tmp_path / "scores.sqlite", tmp_path / "other.sqlite"
    with ScoreLog.open(other) as before:
        before.write(entry(7))
    with ScoreLog.open(path) as log:
        keep(log, entry(1))
        if how == "deleted":
            path.unlink()
        elif how == "moved":
            path.rename(tmp_path / "old.sqlite")
        else:
            other.replace(path)
        keep(log, entry(2))
        assert "was moved or deleted while it was open" in caplog.text
        log.label("r", 1)
    with ScoreLog.open(path) as again:
        assert len(again.columns()) == (2 if how == "another put there" else 1)
        assert len(again.current_labels()) == 1
        assert again.lost == 0
