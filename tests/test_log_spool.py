"""Rows that the log's database refuses are kept in a file and stored later; lost rows are counted and reported."""

import errno
import json
import logging
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import logged_entries
import psycopg
import pytest
import serving_clients
from databases import PostgresServer, database, has_postgres, postgres_server, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from logged_entries import WHOLE, entry
from served import KEY
from serving_clients import LOGPROBS, Served, program, serving

from metaprobe.production.http.settings import Settings, SettingsError
from metaprobe.production.monitoring import log_writer
from metaprobe.production.monitoring.entry import row_of
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.log_writer import LOST_EVENT, Spool
from metaprobe.production.monitoring.tables import LogError, LogUnavailable, UrlTables

server, where = logged_entries.server, logged_entries.where
checkpoint = serving_clients.checkpoint


class Away:
    """A database that takes nothing while `on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = True
        insert = log_writer.BackgroundWriter._insert

        def failing(writer: Any, *given: Any) -> int:
            if self.on:
                raise LogUnavailable("as planned")
            return insert(writer, *given)

        monkeypatch.setattr(log_writer.BackgroundWriter, "_insert", failing)
        monkeypatch.setattr(log_writer, "RETRY_S", 0.01)
        monkeypatch.setattr(log_writer, "FAILING_CLOSE_S", 0.5)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    return Away(monkeypatch)


def test_what_waits_at_the_end_is_stored_by_whoever_opens_the_log_next(
    where: str, tmp_path: Path, away: Away, caplog: pytest.LogCaptureFixture
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    log = ScoreLog.open(where, spool=spool)
    for number in range(600):
        log.write(entry(number))
    log.write(WHOLE)
    wait_until(lambda: "as planned" in caplog.text)
    assert not log.close()
    assert (log.spooled, log.dropped) == (601, 0)
    (file,) = spool.iterdir()
    assert f"601 entries of the score log wait in {file}" in caplog.text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # it may hold texts
    away.on = False
    with ScoreLog.open(where, entries=False, spool=spool) as reader:
        assert len(reader.columns()) == 0  # who only reads stores nothing
    with ScoreLog.open(where, spool=spool) as log:
        wait_until(lambda: len(log.columns(gated=True)) == 601)
        assert log.entry("whole") == WHOLE
        assert (log.lost, log.events(LOST_EVENT)) == (0, [])
    assert not list(spool.iterdir())


def test_a_database_that_comes_back_gets_what_was_in_the_file_from_the_same_process(tmp_path: Path, away: Away) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite", capacity=20) as log:
        for batch in range(5):  # more than memory may hold
            for number in range(15):
                assert log.write(entry(100 * batch + number))
            wait_until(lambda: not log._writer._queue)
        assert (log.spooled, log.dropped) == (75, 0)
        assert not log.flush(timeout_s=0.05)
        away.on = False
        assert log.flush()
        assert len(log.columns()) == 75
    assert [file.name for file in tmp_path.iterdir()] == ["scores.sqlite"]


def test_what_neither_the_queue_nor_the_file_takes_is_counted_and_said_by_the_log_itself(
    tmp_path: Path, away: Away, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("metaprobe.production.monitoring.log_writer.MAX_SPOOL_BYTES", 2000)
    path = tmp_path / "scores.sqlite"
    log = ScoreLog.open(path, capacity=10)
    for number in range(50):
        log.write(entry(number))
    wait_until(lambda: log.spooled)
    for number in range(50, 100):
        log.write(entry(number))
    assert not log.close()
    assert 0 < log.spooled < 10
    assert log.spooled + log.dropped == 100
    assert f"{log.dropped} entries of the score log were dropped" in caplog.text
    away.on = False
    with ScoreLog.open(path) as again:
        wait_until(lambda: len(again.columns()) == log.spooled and _lost(again) == log.dropped)
        events = again.events(LOST_EVENT)
    with ScoreLog.open(path) as again:
        assert again.events(LOST_EVENT) == events  # they are said once


def _lost(log: ScoreLog) -> int:
    return sum(one.details["entries"] for one in log.events(LOST_EVENT))


def test_what_a_full_queue_dropped_is_an_event_as_soon_as_the_database_is_back(tmp_path: Path, away: Away) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite", capacity=1) as log:
        for number in range(4):
            log.write(entry(number))
        dropped = log.dropped
        assert dropped >= 2
        away.on = False
        wait_until(lambda: log.events(LOST_EVENT))
        assert log.events(LOST_EVENT)[0].details["entries"] == dropped


def test_a_full_disk_drops_counts_and_raises_nothing_and_a_folder_that_is_gone_is_said_at_once(
    tmp_path: Path, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LogError, match="check that its folder can be written"):
        ScoreLog.open(tmp_path / "scores.sqlite", spool=tmp_path / "gone")
    log = ScoreLog.open(tmp_path / "scores.sqlite")
    monkeypatch.setattr("os.fsync", full)
    for number in range(7):
        log.write(entry(number))
    assert not log.close()
    assert (log.spooled, log.dropped) == (0, 7)


def full(_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


KILLED = """
import os, signal, sys
from metaprobe.production.monitoring import log_writer
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.tables import LogUnavailable
log_writer.RETRY_S = 0.01
def away(*_):
    raise LogUnavailable("as planned")
log = ScoreLog.open(sys.argv[1], capacity=20)
def put(first, last):
    for i in range(first, last):
        log.write(Entry(request_id=f"r{i}", time=1e9, model="", checkpoint="", score=0.5))
put(0, 5)
assert log.flush()
log_writer.BackgroundWriter._insert = away
put(5, 20)
while log._writer._queue:
    pass
put(20, 23)
print("written", flush=True)
signal.pause()
"""


def test_a_killed_process_loses_what_was_in_memory_and_not_what_was_in_its_file(where: str, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, where], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        with ScoreLog.open(where) as meanwhile:
            assert len(meanwhile.columns()) == 5  # the file of a process that lives is left alone
        os.kill(process.pid, signal.SIGKILL)
    with ScoreLog.open(where) as log:
        wait_until(lambda: len(log.columns()) == 20)
        assert log.lost == 3
        assert [one.details for one in log.events(LOST_EVENT)] == [{"entries": 3, "of": 23}]
    with ScoreLog.open(where) as log:
        assert log.lost == 0, "it is said once"


@settings(max_examples=25)
@given(st.lists(st.integers(1, 30), max_size=6), st.integers(1, 40), st.data())
def test_a_spool_gives_back_what_it_took_in_its_order_whoever_reads_it(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int, data: st.DataObject
) -> None:
    spool = Spool.make(tmp_path_factory.mktemp("spool") / "log")
    put, found, number = [], [], 0
    for size in sizes:
        rows = [row_of(entry(number + at, logprobs=[-0.5, -float(at)])) for at in range(size)]
        number += size
        assert spool.add(rows) == size
        put += rows
        if data.draw(st.booleans()):
            taken, _, place = spool.next(most)
            spool.taken(len(taken), place)
            found += taken
    assert spool.waiting == len(put) - len(found)
    while spool.unread:
        taken, dropped, place = spool.next(most)
        assert dropped == 0
        spool.taken(len(taken), place)
        found += taken
    assert found == put
    spool.close()
    assert not spool.path.exists()


def test_a_file_that_is_not_ours_or_is_damaged_brings_nothing_into_the_log(tmp_path: Path) -> None:
    beside = tmp_path / "scores.sqlite"
    real = tmp_path / "real"
    real.write_text("{}\n")
    (tmp_path / "scores.sqlite.a.spool").symlink_to(real)
    os.mkfifo(tmp_path / "scores.sqlite.c.spool") if os.geteuid() else None
    whole = json.dumps({**row_of(entry(1)), "logprobs": None}).encode()
    damaged = whole + b"\n[1]\nnot json\n" + b"[" * 100_000 + b"\n" + whole[:-9]
    (tmp_path / "scores.sqlite.b.spool").write_bytes(b"%20d\n" % 0 + damaged)
    with ScoreLog.open(beside) as log:
        wait_until(lambda: log.events(LOST_EVENT))
        assert len(log.columns()) == 1
        assert log.events(LOST_EVENT)[0].details["entries"] == 4
    assert real.exists()


# With a database that really goes away


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    if not has_postgres():
        pytest.skip("PostgreSQL is not installed here")
    with postgres_server() as found:
        yield found


USER, PASSWORD = "somebody_in_particular", "a-word-that-is-secret"


def stored(url: str) -> int:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        found = connection.execute("SELECT count(*) FROM scores").fetchone()
    return int(found[0]) if found else 0


@pytest.mark.slow
def test_nothing_is_lost_where_the_server_is_ended_while_its_database_is_away(
    postgres: PostgresServer, checkpoint: Path, tmp_path: Path
) -> None:
    plain = database(postgres.url)
    with psycopg.connect(plain.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {USER} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    url, spool = plain.replace("//log@", f"//{USER}@"), tmp_path / "spool"
    spool.mkdir()
    batch = {"responses": [LOGPROBS] * 1000}
    words, log = [checkpoint, "--log", url, "--log-spool", spool], tmp_path / "log"
    with program(log, *words, PGPASSWORD=PASSWORD) as (process, client):
        client.post("/v1/score", batch)
        wait_until(lambda: stored(plain) == 1000)
        postgres.stop()
        for _ in range(11):  # more than the queue may hold
            verdicts = client.post("/v1/score", batch).json()["verdicts"]
            wait_until(lambda: "go into a file" in log.read_text())
        refused = client.post("/v1/feedback", {"request_id": verdicts[0]["request_id"], "label": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "log_unavailable")
        wait_until(lambda: spool_lines(spool) > 5000)
        counts = client.get("/metrics", authorization=f"Bearer {KEY}").text
        spooled = re.search(r"metaprobe_log_spooled_total ([\d.e+]+)", counts)
        assert spooled is not None
        assert float(spooled[1]) > 5000
        dropped = float(re.search(r"metaprobe_log_dropped_total ([\d.e+]+)", counts)[1])  # type: ignore[index]
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) in (0, -signal.SIGTERM)
        assert time.monotonic() - started < 45
        said = log.read_text()
    assert "entries of the score log wait in" in said
    for text in (said, refused.text):
        for secret in ("127.0.0.1:" + str(postgres.port), f"port {postgres.port}", USER, PASSWORD):
            assert secret not in text
        assert not re.search(rf"\b{postgres.port}\b", text)
    postgres.start()
    with program(log, *words, PGPASSWORD=PASSWORD) as (_, client):
        wait_until(lambda: stored(plain) == 12_000 - dropped, seconds=60)
        assert client.post("/v1/feedback", {"request_id": verdicts[0]["request_id"], "label": 1}).status_code == 200
    assert dropped == 0
    assert not list(spool.iterdir())


@pytest.mark.slow
def test_a_database_that_is_away_is_503_with_a_time_and_200_when_it_is_back(
    postgres: PostgresServer, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", KEY)
    pages = ("/dashboard/data", "/dashboard/queue")

    def statuses(client: Served) -> list[int]:
        return [client.get(page, authorization=f"Bearer {KEY}").status_code for page in pages]

    with serving(checkpoint, log=database(postgres.url), log_spool=tmp_path) as client:
        client.post("/v1/score", LOGPROBS)
        assert statuses(client) == [200, 200]
        postgres.stop()
        assert statuses(client) == [503, 503]
        assert int(client.get(pages[0], authorization=f"Bearer {KEY}").headers["retry-after"]) > 0
        assert client.post("/v1/score", LOGPROBS).status_code == 200, "verdicts do not wait for the database"
        postgres.start()
        assert statuses(client) == [200, 200]


def spool_lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.iterdir())


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://{user}@127.0.0.1:{port}/nowhere",
        "postgresql+psycopg:///nowhere?host=127.0.0.1&port={port}&user={user}&password={password}",
        "postgresql+psycopg://{user}:{password}@host-of-somebody.invalid:{port}/nowhere",
        "postgresql+psycopg://{user}:{password}@127.0.0.1:{port}/nowhere?sslmode=verify-full&sslrootcert=/no/{user}",
        "postgresql+psycopg://{user}:{password}@127.0.0.1:{port}x/nowhere",
        "postgresql+{user}://127.0.0.1:{port}/nowhere",
        "postgresql+psycopg://{user}:{password}@127.0.0.1:{port}/nowhere?nonsense={password}",
    ],
)
def test_no_error_of_the_database_names_host_port_user_or_password(
    server: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("sqlalchemy")
    caplog.set_level(logging.DEBUG)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        ports = [server.rpartition(":")[2].strip("/"), str(nobody.getsockname()[1])]
    for port in ports:
        with pytest.raises(LogError) as found:
            UrlTables(url.format(user=USER, password=PASSWORD, port=port))
        text = str(found.value) + caplog.text
        for secret in (USER, PASSWORD, port, "host-of-somebody", "127.0.0.1", "nowhere"):
            assert secret not in text.replace("user@host", "")
        assert "the score log's database failed (" in str(found.value)


@pytest.mark.parametrize("query", ["password=x", "host=h&PASSWORD=x", "user=u&sslpassword=x", "a=b;password=x"])
def test_a_password_in_the_query_of_a_logs_url_is_refused(query: str) -> None:
    with pytest.raises(SettingsError, match="holds a password"):
        Settings(checkpoint="c", log=f"postgresql+psycopg:///db?{query}")
