"""The score log: nothing waits for it, what it took is there, and what it lost is said."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from databases import database, has_postgres, postgres, wait_until

from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring.log import LOST, FeedbackLabel, ScoreLog
from metaprobe.monitoring.tables import LogError
from metaprobe.records.errors import MissingExtra
from metaprobe.records.store import RunStore

DAY = 86400.0
START = 20_000 * DAY


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if not has_postgres():
        pytest.skip("PostgreSQL is not installed here")
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a log, in each kind of database."""
    if request.param == "sqlite":
        return str(tmp_path / "scores.sqlite")
    return database(request.getfixturevalue("server"))


def entry(number: int, **more: object) -> Entry:
    given = {
        "request_id": f"r{number}",
        "time": START + number,
        "model": "m",
        "checkpoint": "c" * 64,
        "score": (number % 10) / 10,
        "flagged": number % 10 < 3,
        "in_support": True,
        "finish_reason": "stop",
        "tokens": 7,
    }
    return Entry(**given | more)  # type: ignore[arg-type]


WHOLE = Entry(
    request_id="whole",
    time=START + 0.25,
    model="llama",
    checkpoint="d" * 64,
    score=0.125,
    flagged=True,
    in_support=False,
    critical=0.5,
    heads={"evidence": 2.5},
    reason="the base rate is unknown",
    finish_reason="length",
    action="stop",
    prompt_tokens=11,
    tokens=3,
    tokens_saved=40,
    cost_usd=0.002,
    latency_s=0.7,
    shadow_of="",
    tags={"task": "faq", "prompt": "v7"},
    logprobs=[-0.5, -0.25, -2.0],
    question="What is 2 + 2?",
    answer="4",
)


def test_an_entry_comes_back_as_it_was_written(where: str) -> None:
    bare = Entry(request_id="bare", time=START, model="", checkpoint="", score=None)
    with ScoreLog.open(where) as log:
        log.write(WHOLE)
        log.write(bare)
        assert log.flush()
        assert log.entry("whole") == WHOLE
        assert log.entry("bare") == bare
        assert log.entry("other") is None


def test_what_a_database_cannot_hold_does_not_cost_the_entry_nor_those_beside_it(where: str) -> None:
    odd = replace(
        WHOLE, request_id="odd", answer="half \ud83d, nul \0", tokens=1 << 70, critical=float("nan"), reason="\ud800"
    )
    broken = replace(WHOLE, request_id="broken", time=float("nan"))
    with ScoreLog.open(where) as log:
        for one in (WHOLE, odd, broken):
            log.write(one)
        assert log.flush()
        held = log.entry("odd")
        assert held is not None
        assert (held.answer, held.tokens, held.critical) == ("half \\ud83d, nul \\x00", None, None)
        assert log.entry("whole") == WHOLE
        assert log.entry("broken") is None
        assert log.dropped == 1


def test_of_two_entries_with_one_request_id_the_first_stays_and_is_counted_once(where: str) -> None:
    with ScoreLog.open(where) as log:
        log.write(entry(1, score=0.9))
        log.write(entry(1, score=0.1))
        assert log.flush()
        log.write(entry(1, score=0.2))
        assert log.flush()
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


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"since": START + 2}, ["r2", "r3"]),
        ({"until": START + 2}, ["r1"]),
        ({"model": "other"}, ["r3"]),
        ({"model": "nobody"}, []),
        ({"checkpoint": "c" * 64}, ["r1", "r2", "r3"]),
        ({"tags": {"task": "a"}}, ["r1", "r3"]),
        ({"tags": {"task": "a", "prompt": "v1"}}, ["r1"]),
        ({"labelled": True}, ["r2"]),
    ],
)
def test_columns_can_be_narrowed(tmp_path: Path, chosen: dict[str, object], expected: list[str]) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        log.write(entry(1, tags={"task": "a", "prompt": "v1"}))
        log.write(entry(2))
        log.write(entry(3, model="other", tags={"task": "a"}))
        assert log.flush()
        log.label("r2", None)
        assert log.columns(ids=True, **chosen).request_id.tolist() == expected  # type: ignore[arg-type]


def test_the_latest_label_counts_whenever_it_arrives(where: str) -> None:
    with ScoreLog.open(where) as log:
        log.write(entry(1))
        log.write(entry(2))
        log.write(entry(3))
        assert log.flush()
        log.label("r1", 1, who="ada", time=START + 9)
        log.label("r1", 0, who="bob", time=START + 5)
        log.label("r2", 1, time=START)
        log.label("r2", 0, time=START)
        log.label("r3", 1, time=START)
        log.label("r3", None, time=START + 1)
        np.testing.assert_array_equal(log.columns().label, [1, 0, np.nan])
        assert FeedbackLabel("r1", 1, "ada", START + 9) in log.current_labels()
        first = {one.request_id: (one.value, one.time) for one in log.first_labels()}
        assert first == {"r1": (0, START + 5), "r2": (1, START), "r3": (1, START)}


def test_a_label_may_come_before_its_answer_and_the_unknown_ones_are_said(where: str) -> None:
    with ScoreLog.open(where) as log:
        log.write(entry(1))
        assert log.flush()
        assert log.add_labels([FeedbackLabel("r1", 1), FeedbackLabel("r2", 0)]) == 1
        log.write(entry(2))
        assert log.flush()
        np.testing.assert_array_equal(log.columns().label, [1, 0])


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


def test_threads_that_write_at_once_lose_nothing(where: str) -> None:
    def work(thread: int) -> None:
        for number in range(200):
            log.write(entry(1000 * thread + number))

    with ScoreLog.open(where) as log:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert log.flush()
        assert len(log.columns()) == 800
        assert log.dropped == 0


def test_close_stores_what_waits_and_what_comes_later_is_counted_as_dropped(where: str) -> None:
    log = ScoreLog.open(where)
    for number in range(1200):
        log.write(entry(number))
    assert log.close()
    log.write(entry(5000))
    assert log.dropped == 1
    with ScoreLog.open(where) as again:
        assert len(again.columns()) == 1200
        assert again.lost == 0


DIES = """
import os, signal, sys
from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring import log_writer
from metaprobe.monitoring.log import ScoreLog
log = ScoreLog.open(sys.argv[1])
def put(first, last):
    for i in range(first, last):
        log.write(Entry(request_id=f"r{i}", time=1e9, model="", checkpoint="", score=0.5))
put(0, 30)
assert log.flush()
log_writer.BackgroundWriter._store = lambda self, batch: signal.pause()  # nothing more reaches the database
put(30, 47)
print("written", flush=True)
signal.pause()
"""


def test_a_killed_process_loses_only_what_waited_and_the_next_one_says_how_many(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    with subprocess.Popen([sys.executable, "-c", DIES, where], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        with ScoreLog.open(where) as meanwhile:
            assert meanwhile.lost == 0  # it lives
        os.kill(process.pid, signal.SIGKILL)
    with ScoreLog.open(where) as log:
        assert log.lost == 17
        assert len(log.columns()) == 30
        assert [one.details for one in log.events(LOST)] == [{"entries": 17, "of": 47}]
    assert "lost 17 entries" in caplog.text
    with ScoreLog.open(where) as log:
        assert log.lost == 0  # it is said once


def test_a_process_that_ends_without_close_loses_nothing(tmp_path: Path) -> None:
    code = DIES.partition("log_writer.BackgroundWriter._store")[0] + "put(30, 47)\n"
    path = tmp_path / "scores.sqlite"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    with ScoreLog.open(path) as log:
        assert len(log.columns()) == 47
        assert log.lost == 0
    assert [found.name for found in tmp_path.iterdir()] == ["scores.sqlite"]  # nothing is left lying about


def test_a_database_that_comes_back_gets_what_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("metaprobe.monitoring.log_writer.RETRY_S", 0.01)
    fails: list[Callable[[], None]] = []
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        insert = log._writer._insert

        def failing(*given: object) -> int:
            if fails:
                raise LogError("the disk is full")
            return insert(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(log._writer, "_insert", failing)
        fails.append(lambda: None)
        log.write(entry(1))
        wait_until(lambda: "the disk is full" in caplog.text)
        assert not log.flush(timeout_s=0.05)
        fails.clear()
        assert log.flush()
        assert len(log.columns()) == 1
    assert caplog.text.count("the disk is full") == 1  # not once a try


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


def test_a_url_without_sqlalchemy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(MissingExtra, match=r"metaprobe\[monitor\]"):
        ScoreLog.open("postgresql+psycopg://u@127.0.0.1/x")


def totals(log: ScoreLog) -> list[tuple[float, ...]]:
    """The sums that pages read, over all hours: answers, sum of scores, flagged, tokens; and answers in the bins."""
    asked = "SELECT sum(answers), sum(score_sum), sum(flagged), sum(tokens) FROM hours"
    bins = "SELECT sum(answers), sum(score_sum), sum(flagged) FROM bins"
    return [tuple(round(float(value or 0), 9) for value in log.tables.read(one)[0]) for one in (asked, bins)]


def test_sums_are_those_of_the_rows_whatever_came_and_went(where: str) -> None:
    with ScoreLog.open(where) as log:
        for number in range(700):
            log.write(entry(number, time=START + 600 * number, score=None if number % 7 == 0 else number / 700))
        assert log.flush()
        log.delete("r3")
        log.tables.read("SELECT 1")
        columns = log.columns()
        assert len(columns) == 699
        expected = (699.0, round(float(np.nansum(columns.score)), 9), columns.flagged.sum(), 699 * 7.0)
        assert totals(log) == [expected, expected[:3]]


def test_a_log_of_an_earlier_version_gets_the_sums_that_it_lacks_and_keeps_the_others(where: str) -> None:
    with ScoreLog.open(where) as log:
        log.write(entry(1))
        assert log.flush()
        with log.tables.transaction() as run:
            for name in ("priced", "spared"):
                run(f"ALTER TABLE hours DROP COLUMN {name}")
    with ScoreLog.open(where) as log:
        log.write(entry(2, cost_usd=0.0))
        log.write(entry(3, tokens_saved=5))
        assert log.flush()
        assert log.dropped == 0
        [sums] = log.tables.read("SELECT sum(answers), sum(priced), sum(spared), sum(tokens_saved) FROM hours")
        assert list(sums) == [3, 1, 1, 5]
        log.delete("r3")
        [sums] = log.tables.read("SELECT sum(answers), sum(priced), sum(spared), sum(tokens_saved) FROM hours")
        assert list(sums) == [2, 1, 0, 0]


def test_prune_takes_away_what_is_older_and_its_labels_and_nothing_else(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.monitoring.retention.CHUNK", 4)
    monkeypatch.setattr("time.time", lambda: START + 10 * DAY + 0.5)
    with ScoreLog.open(where) as log:
        for number in range(20):
            log.write(entry(number, time=START + number * DAY / 2))
        log.flush()
        log.label("r2", 1)
        log.label("r19", 1)
        assert log.prune(5) == 11
        columns = log.columns(ids=True)
        assert columns.request_id.tolist() == [f"r{number}" for number in range(11, 20)]
        assert [one.request_id for one in log.current_labels()] == ["r19"]
        assert [sums[0] for sums in totals(log)] == [9, 9]
        with pytest.raises(LogError, match="days 0; expected more than 0"):
            log.prune(0)


def test_a_deleted_request_is_nowhere_not_even_in_the_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    with ScoreLog.open(path) as log:
        secret = "a text that nobody is to find again"
        log.write(replace(WHOLE, answer=secret))
        log.write(replace(WHOLE, request_id="its-shadow", shadow_of="whole", answer=secret))
        log.write(entry(1))
        log.flush()
        log.label("whole", 0, who="the one who asked")
        assert secret.encode() in path.read_bytes() + Path(f"{path}-wal").read_bytes()
        assert log.delete("whole")
        assert not log.delete("whole")
        assert log.columns(ids=True).request_id.tolist() == ["r1"]
        assert log.current_labels() == []
        held = path.read_bytes() + Path(f"{path}-wal").read_bytes()
        assert secret.encode() not in held
        assert b"the one who asked" not in held


def test_rotated_log_probabilities_are_in_the_run_store_with_their_labels_and_no_longer_in_the_log(
    where: str, tmp_path: Path
) -> None:
    with ScoreLog.open(where) as log:
        log.write(WHOLE)
        log.write(entry(1))
        log.flush()
        log.label("whole", 1)
        assert log.rotate(tmp_path / "runs", days=1) == 1
        assert log.rotate(tmp_path / "runs", days=1) == 0
        (run,) = RunStore(tmp_path / "runs")
        (call,) = run.calls
        assert (run.id, run.outcome, run.label("correct", call.id), run.item.task) == ("whole", 1, 1, "faq")
        assert (call.text, call.messages[0].content, call.model) == ("4", "What is 2 + 2?", "llama")
        assert call.logprobs is not None
        assert call.logprobs.tolist() == [-0.5, -0.25, -2.0]
        held = log.entry("whole")
        assert held == replace(WHOLE, logprobs=None, question=None, answer=None)
        assert log.delete("whole", store=tmp_path / "runs")
        assert not list((tmp_path / "runs").glob("*.parquet"))


def test_deleting_from_a_store_leaves_its_other_runs(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        log.write(WHOLE)
        log.write(replace(WHOLE, request_id="other"))
        log.flush()
        log.rotate(tmp_path / "runs", days=1)
        assert log.delete("whole", store=tmp_path / "runs")
        assert [run.id for run in RunStore(tmp_path / "runs")] == ["other"]
