"""Other checkpoints are taken in while requests go on, all at once; a broken one changes nothing, and that is said."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import serving_clients
from served import KEY
from serving_clients import LOGPROBS, Served, serving
from tiny import tiny_quality

from metaprobe.checkpoints import Checkpoint, CheckpointError
from metaprobe.production.http import judges
from metaprobe.production.http.judges import Judges, JudgesHolder, load_judges
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings, SettingsError

callers_keys = serving_clients.callers_keys


@pytest.fixture
def two(tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    return tiny_quality(tmp_path / "one"), tiny_quality(tmp_path / "two", slope=2.0)


def office_of(settings: Settings) -> tuple[JudgesHolder, Metrics]:
    metrics = Metrics()
    load = partial(load_judges, settings, metrics)
    return JudgesHolder(load, settings.pins, metrics), metrics


def replace(place: Path, by: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(by, place)


def test_a_reload_takes_in_what_the_place_holds_now_and_requests_in_work_keep_theirs(
    two: tuple[Checkpoint, Checkpoint], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "metaprobe")
    one, other = two
    office, metrics = office_of(Settings(checkpoint=one.path))
    in_work = office.current.pick("m", "r")
    replace(one.path, other.path)
    assert asyncio.run(office.reload())
    assert office.current.default.digest == other.digest
    assert in_work.digest == one.digest
    assert in_work.verdict([-0.5] * 5)["score"] is not None
    assert f"every other model is judged by {other.digest[:16]}, from now on" in caplog.text
    assert 'metaprobe_reloads_total{outcome="taken"} 1.0' in metrics.exposition().decode()


@pytest.mark.parametrize("fault", ["damaged", "gone", "one of two", "unforeseen"])
def test_a_checkpoint_that_does_not_load_leaves_all_those_before_it_and_the_log_says_so(
    two: tuple[Checkpoint, Checkpoint], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    secret = "what a file said"

    def fail() -> Judges:
        raise ZeroDivisionError(secret)

    one, other = two
    more = (f"b={other.path}",) if fault == "one of two" else ()
    office, metrics = office_of(Settings(checkpoint=one.path, more_checkpoints=more))
    before = office.current
    if fault == "gone":
        shutil.rmtree(one.path)
    elif fault == "unforeseen":
        monkeypatch.setattr(office, "_load", fail)
    else:
        broken = other if fault == "one of two" else one
        (broken.path / "model.onnx").write_bytes(b"no model")
    assert not asyncio.run(office.reload())
    assert office.current is before
    assert office.refused
    told = "loading checkpoints failed: ZeroDivisionError" if fault == "unforeseen" else "the checkpoints stay as they"
    assert told in caplog.text
    assert secret not in caplog.text
    assert 'metaprobe_reloads_total{outcome="refused"} 1.0' in metrics.exposition().decode()


def test_the_file_of_pins_counts_for_more_and_a_place_that_holds_something_else_is_refused(
    two: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    one, other = two
    pins = tmp_path / "pins"
    pins.write_text(f"# what runs\n\n{other.path} {other.digest}  # promoted\nb={one.path} {one.digest}\n")
    settings = Settings(checkpoint=one.path, pins=pins)
    assert load_judges(settings, Metrics()).digests() == {"": other.digest, "b": one.digest}
    pins.write_text(f"{other.path} {one.digest}\n")
    with pytest.raises(CheckpointError):
        load_judges(settings, Metrics())
    for written, message in (("# nothing\n", "names no checkpoint"), (f"{other.path}\n", "has 1 words")):
        pins.write_text(written)
        with pytest.raises(SettingsError, match=message):
            load_judges(settings, Metrics())


def judge_of(client: Served) -> str:
    return str(client.post("/v1/score", LOGPROBS).json()["checkpoint"])


def wait_for(client: Served, digest: str) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if judge_of(client) == digest:
            return True
        time.sleep(0.02)
    return False


def test_a_running_server_follows_its_pins_there_and_back_and_says_when_it_could_not(
    two: tuple[Checkpoint, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judges, "PINS_CHECK_S", 0.02)
    one, other = two
    pins, fresh = tmp_path / "pins", tmp_path / "fresh"

    def pin(checkpoint: Checkpoint, digest: str = "") -> None:
        fresh.write_text(f"{checkpoint.path} {digest or checkpoint.digest}\n")
        fresh.replace(pins)

    pin(one)
    with serving(one.path, pins=pins) as client:
        assert judge_of(client) == one.digest
        pin(other)
        assert wait_for(client, other.digest)
        pin(one)
        assert wait_for(client, one.digest)
        pin(other, "0" * 64)
        while "reload_refused" not in client.get("/readyz").json():
            time.sleep(0.02)
        assert judge_of(client) == one.digest


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no such signal")
def test_a_signal_reloads(two: tuple[Checkpoint, Checkpoint]) -> None:
    one, other = two
    office, _ = office_of(Settings(checkpoint=one.path))

    async def lives() -> None:
        async with office.watching():
            replace(one.path, other.path)
            os.kill(os.getpid(), signal.SIGHUP)
            while office.current.default.digest != other.digest:
                await asyncio.sleep(0.01)

    assert threading.current_thread() is threading.main_thread()
    before: Any = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever began under nohup ignores it
    try:
        asyncio.run(asyncio.wait_for(lives(), 60))
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL  # the handler went with the server
    finally:
        signal.signal(signal.SIGHUP, before)


@contextmanager
def program(
    folder: Path, *words: str, workers: int, hurried: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], Served]]:
    """The server as it is started, and a client of it, once all its workers are there. `hurried`: asked for a reload
    while these begin."""
    log = folder / "log"
    command = [sys.executable, "-c", "from metaprobe.production.serving_commands import serve; serve()", *words]
    command += ["--port", "0", "--workers", str(workers)]
    with log.open("w") as file:
        server = subprocess.Popen(command, stderr=file)
    try:
        while log.read_text().count("Application startup complete") < workers:
            assert server.poll() is None, log.read_text()
            if hurried and "Started parent process" in log.read_text():
                server.send_signal(signal.SIGHUP)
                hurried = False
            time.sleep(0.05)
        address = re.search(r"running on (http://[\d.:]+)", log.read_text())
        assert address is not None
        yield server, Served(address[1])
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


def taken(client: Served, workers: int) -> bool:
    """Whether so many workers have taken in other checkpoints, within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        counts = client.get("/metrics", authorization=f"Bearer {KEY}").text
        if f'metaprobe_reloads_total{{outcome="taken"}} {workers}.0' in counts:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no such signal")
@pytest.mark.parametrize("way", ["signal", "pins"])
def test_every_worker_of_a_server_takes_in_the_other_checkpoint(
    two: tuple[Checkpoint, Checkpoint], tmp_path: Path, way: str
) -> None:
    one, other = two
    pins, words = tmp_path / "pins", [str(one.path)]
    if way == "pins":
        pins.write_text(f"{one.path} {one.digest}\n")
        words += ["--pins", str(pins)]
    with program(tmp_path, *words, workers=3) as (server, client):
        assert {judge_of(client) for _ in range(20)} == {one.digest}
        if way == "pins":
            pins.write_text(f"{other.path} {other.digest}\n")
        else:
            replace(one.path, other.path)
            server.send_signal(signal.SIGHUP)
        assert taken(client, 3)
        assert {judge_of(client) for _ in range(40)} == {other.digest}  # each asked over a connection of its own


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no such signal")
def test_workers_that_are_asked_for_a_reload_while_they_start_live_and_reload(
    two: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    with program(tmp_path, str(two[0].path), workers=3, hurried=True) as (_, client):
        assert taken(client, 3)
        assert "died" not in (tmp_path / "log").read_text()


EARLY = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("HANGUP_AT"):
            del os.environ["HANGUP_AT"]
            os.kill(os.getpid(), signal.SIGHUP)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no such signal")
@pytest.mark.parametrize("at", ["importlib.metadata", "metaprobe.production.http.endpoints"])
def test_a_signal_that_comes_while_the_server_starts_waits_until_it_is_there(
    two: tuple[Checkpoint, Checkpoint], tmp_path: Path, at: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(EARLY)
    log, path = tmp_path / "log", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "metaprobe", "serve", str(two[0].path), "--port", "0"]
    with log.open("w") as file:
        server = subprocess.Popen(command, stderr=file, env={**os.environ, "HANGUP_AT": at, "PYTHONPATH": path})
    try:
        end = time.monotonic() + 60
        while "as before" not in log.read_text() and time.monotonic() < end:
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        assert "every other model is judged by" in log.read_text()
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) in (0, -signal.SIGTERM)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no such signal")
def test_an_error_while_a_process_starts_is_told_though_a_signal_waits(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(EARLY)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "metaprobe", "serve", str(tmp_path), "--no-auth", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HANGUP_AT": "importlib.metadata", "PYTHONPATH": path},
    )
    assert done.returncode == 1, done.stderr
    assert f"Error: {tmp_path}" in done.stderr


def test_only_the_server_has_the_signal_wait() -> None:
    done = "import signal, sys; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    for words in (["serve"], ["score"]):
        written = [sys.executable, "-c", f"import metaprobe; {done}", *words]
        assert subprocess.run(written, stdout=subprocess.PIPE, text=True).stdout == "set()\n"
