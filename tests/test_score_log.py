"""The score log: nothing waits for it, what it took is there, and what it lost is said."""

import errno
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import logged_entries
import numpy as np
import pytest
from logged_entries import START, WHOLE, entry, keep

from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.production.monitoring.tables import LogError

server, where = logged_entries.server, logged_entries.where


def test_an_entry_comes_back_as_it_was_written(where: str) -> None:
    bare = Entry(request_id="bare", time=START, model="", checkpoint="", score=None)
    with ScoreLog.open(where) as log:
        keep(log, WHOLE, bare)
        assert log.entry("whole") == WHOLE
        assert log.entry("bare") == bare
        assert log.entry("other") is None
        assert list(log.entries_named(["bare", "other", "whole", "bare"])) == [bare, None, WHOLE, bare]


def test_what_a_database_cannot_hold_does_not_cost_the_entry_nor_those_beside_it(where: str) -> None:
    odd = replace(
        WHOLE, request_id="odd", answer="half \ud83d, nul \0", tokens=1 << 70, critical=float("nan"), reason="\ud800"
    )
    broken = replace(WHOLE, request_id="broken", time=float("nan"))
    with ScoreLog.open(where) as log:
        keep(log, *(WHOLE, odd, broken))
        held = log.entry("odd")
        assert held is not None
        assert (held.answer, held.tokens, held.critical) == ("half \\ud83d, nul \\x00", None, None)
        assert log.entry("whole") == WHOLE
        assert log.entry("broken") is None
        assert log.dropped == 1


def test_of_two_entries_with_one_request_id_the_first_stays_and_is_counted_once(where: str) -> None:
    with ScoreLog.open(where) as log:
        keep(log, entry(1, score=0.9), entry(1, score=0.1))
        keep(log, entry(1, score=0.2))
        assert log.repeated == 2
        assert log.columns().score.tolist() == [0.9]
        assert [row[0] for row in log.tables.read("SELECT answers FROM hours")] == [1]


def test_columns_are_in_the_order_of_time_with_nan_where_nothing_is_known(where: str) -> None:
    with ScoreLog.open(where) as log:
        log.write(entry(2, score=None, flagged=None, tags={"task": "b", "prompt": "v2"}))
        log.write(entry(1, model="other", tags={"task": "a"}))
        log.write(entry(3, shadow_of="r1"))
        assert log.flush()
        log.label("r1", 0)
        columns = log.columns(ids=True)
        assert len(columns) == 2
        assert columns.request_id.tolist() == ["r1", "r2"]
        assert columns.time.tolist() == [START + 1, START + 2]
        np.testing.assert_array_equal(columns.score, [0.1, np.nan])
        np.testing.assert_array_equal(columns.flagged, [1, np.nan])
        np.testing.assert_array_equal(columns.label, [0, np.nan])
        np.testing.assert_array_equal(columns.propensity, [np.nan, np.nan])
        assert columns.model.tolist() == ["other", "m"]
        assert columns.task.tolist() == ["a", "b"]
        assert columns.tag("prompt").tolist() == ["", "v2"]
        assert columns.finish_reason.tolist() == ["stop", "stop"]
        assert log.columns(shadow=True, ids=True).request_id.tolist() == ["r3"]


def test_columns_can_be_narrowed(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        keep(log, entry(1, tags={"task": "a", "prompt": "v1"}), entry(2), entry(3, model="other", tags={"task": "a"}))
        log.label("r2", None)
        chosen: list[tuple[dict[str, Any], list[str]]] = [
            ({"since": START + 2}, ["r2", "r3"]),
            ({"until": START + 2}, ["r1"]),
            ({"model": "other"}, ["r3"]),
            ({"model": "nobody"}, []),
            ({"checkpoint": "c" * 64}, ["r1", "r2", "r3"]),
            ({"tags": {"task": "a"}}, ["r1", "r3"]),
            ({"tags": {"task": "a", "prompt": "v1"}}, ["r1"]),
            ({"labelled": True}, ["r2"]),
        ]
        assert [log.columns(ids=True, **one).request_id.tolist() for one, _ in chosen] == [ids for _, ids in chosen]


def test_the_label_that_came_last_counts_whatever_its_clock_said(where: str) -> None:
    with ScoreLog.open(where) as log:
        keep(log, *(entry(number) for number in range(1, 5)))
        log.label("r1", 1, who="ada", time=START + 9)  # by a clock that is ahead
        log.label("r1", 0, who="bob", time=START + 5)
        log.label("r2", 1, time=START)
        log.label("r2", 0, time=START)
        log.label("r3", 1, time=START)
        log.label("r3", None, time=START + 1)
        together = [FeedbackLabel("r4", 1, time=START + 2), FeedbackLabel("r4", 0, time=START + 1)]  # newest first
        log.add_labels(together)
        np.testing.assert_array_equal(log.columns().label, [0, 0, np.nan, 1])
        assert FeedbackLabel("r1", 0, "bob", START + 5) in log.current_labels()
        log.label("r5", 1, time=time.time() + 1e9)  # a label of the future can be corrected
        log.label("r5", 0)
        assert [one.value for one in log.current_labels() if one.request_id == "r5"] == [0]
        first = {one.request_id: (one.value, one.time) for one in log.first_labels() if one.request_id != "r5"}
        assert first == {"r1": (1, START + 9), "r2": (1, START), "r3": (1, START), "r4": (0, START + 1)}


def test_labels_that_are_read_again_do_not_undo_a_correction(where: str) -> None:
    exported = [FeedbackLabel("r1", 1, "judge", START), FeedbackLabel("r1", None, "ada", START + 1)]
    with ScoreLog.open(where) as log:
        keep(log, entry(1))
        log.add_labels(exported)
        log.label("r1", 0, who="bob")
        assert log.add_labels(exported) == 2, "both are of answers in the log"
        assert log.columns().label.tolist() == [0]
        log.label("r1", 1, who="judge")  # said now: no label that is read again
        assert log.columns().label.tolist() == [1]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (FeedbackLabel("r1", 2), "label 2; expected 1"),
        (FeedbackLabel("r1", float("nan")), "label nan; expected 1"),
        (FeedbackLabel("r1", "yes"), "label 'yes'; expected 1"),  # type: ignore[arg-type]
        (FeedbackLabel("", 1), "expected the id that came with the verdict"),
        (FeedbackLabel("r1", 1, time=1.7e12), "expected seconds since 1970"),
    ],
)
def test_a_bad_label_is_refused_and_so_are_those_that_came_with_it(
    tmp_path: Path, label: FeedbackLabel, message: str
) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        with pytest.raises(LogError, match=message):
            log.add_labels([FeedbackLabel("r1", 1), label])
        assert log.current_labels() == []


def test_events_come_back_oldest_first(where: str) -> None:
    with ScoreLog.open(where) as log:
        log.event("promotion", {"new": "d"}, time=5)
        log.event("drift", {"of": ["score"]}, time=3)
        assert [(one.time, one.kind) for one in log.events()] == [(3, "drift"), (5, "promotion")]
        assert [one.details for one in log.events("drift")] == [{"of": ["score"]}]
        assert [one.kind for one in log.events(since=4)] == ["promotion"]


def test_a_counter_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(LogError, match=r"no counter can be kept beside the score log .*No space left"):
        ScoreLog.open(tmp_path / "log.sqlite")
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith((".new", ".spool"))] == []


def test_a_place_that_is_no_log_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("no database, but some text that is long enough to be looked at" * 20)
    with pytest.raises(LogError, match=r"score log .*other is damaged .*: move it away"):
        ScoreLog.open(tmp_path / "other")
    with pytest.raises(LogError, match="check its URL"):
        ScoreLog.open("postgresql+psycopg://u:secret@127.0.0.1:1/x")
    with pytest.raises(LogError) as told:
        ScoreLog.open("no-such-thing://u:secret@127.0.0.1/x")
    assert "secret" not in str(told.value)
    with pytest.raises(LogError, match="capacity 0; expected at least one"):
        ScoreLog.open(tmp_path / "scores.sqlite", capacity=0)
    ScoreLog.open(tmp_path / "scores.sqlite", capacity=1).close()


@pytest.mark.parametrize("version", ["1", "3", "'none'", None])
def test_a_log_of_another_version_is_refused_as_it_is(tmp_path: Path, version: str | None) -> None:
    path = tmp_path / "scores.sqlite"
    ScoreLog.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("DROP TABLE marks" if version is None else f"UPDATE marks SET value = {version}")
    before = path.read_bytes()
    with pytest.raises(LogError, match="this score log has format"):
        ScoreLog.open(path)
    assert path.read_bytes() == before


def test_a_log_without_sqlalchemy_names_the_extra() -> None:
    code = "import sys; sys.modules['sqlalchemy'] = None; import metaprobe.production.monitoring.log"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtra" in failed.stderr
    assert "pip install '.[serve]'" in failed.stderr
