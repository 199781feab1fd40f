"""Other checkpoints are taken in while requests go on, all at once; a broken one changes nothing, and that is said."""

import asyncio
import os
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import serving_clients
from served import running
from serving_clients import LOGPROBS, Served
from tiny import tiny_quality

from metaprobe.checkpoints import Checkpoint, CheckpointError
from metaprobe.serving.http import reload
from metaprobe.serving.http.app import create_app
from metaprobe.serving.http.judges import Office, load_judges
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.reload import Reloader
from metaprobe.serving.http.settings import Settings, SettingsError

callers_keys = serving_clients.callers_keys


@pytest.fixture
def two(tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    return tiny_quality(tmp_path / "one"), tiny_quality(tmp_path / "two", slope=2.0)


def office_of(settings: Settings) -> tuple[Office, Reloader, Metrics]:
    metrics = Metrics()
    load = partial(load_judges, settings, metrics)
    office = Office(load())
    return office, Reloader(office, load, settings.pins, metrics), metrics


def replace(place: Path, by: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(by, place)


def test_a_reload_takes_in_what_the_place_holds_now_and_requests_in_work_keep_theirs(
    two: tuple[Checkpoint, Checkpoint], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "metaprobe")
    one, other = two
    office, reloader, metrics = office_of(Settings(checkpoint=one.path))
    in_work = office.now.pick("m", "r")
    replace(one.path, other.path)
    assert asyncio.run(reloader.reload())
    assert office.now.default.digest == other.digest
    assert in_work.digest == one.digest
    assert in_work.verdict([-0.5] * 5)["score"] is not None
    assert f"every other model is judged by {other.digest[:16]}, from now on" in caplog.text
    assert 'metaprobe_reloads_total{outcome="taken"} 1.0' in metrics.exposition().decode()


@pytest.mark.parametrize("fault", ["damaged", "gone", "one of two"])
def test_a_checkpoint_that_does_not_load_leaves_all_those_before_it_and_the_log_says_so(
    two: tuple[Checkpoint, Checkpoint], caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    one, other = two
    more = (f"b={other.path}",) if fault == "one of two" else ()
    office, reloader, metrics = office_of(Settings(checkpoint=one.path, more_checkpoints=more))
    before = office.now
    if fault == "gone":
        shutil.rmtree(one.path)
    else:
        broken = other if fault == "one of two" else one
        (broken.path / "model.onnx").write_bytes(b"no model")
    assert not asyncio.run(reloader.reload())
    assert office.now is before
    assert reloader.refused
    assert "the checkpoints stay as they were" in caplog.text
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
    for written, said in (("# nothing\n", "names no checkpoint"), (f"{other.path}\n", "has 1 words")):
        pins.write_text(written)
        with pytest.raises(SettingsError, match=said):
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
    monkeypatch.setattr(reload, "LOOK_S", 0.02)
    one, other = two
    pins, fresh = tmp_path / "pins", tmp_path / "fresh"

    def pin(checkpoint: Checkpoint, digest: str = "") -> None:
        fresh.write_text(f"{checkpoint.path} {digest or checkpoint.digest}\n")
        fresh.replace(pins)

    pin(one)
    with running(create_app(Settings(checkpoint=one.path, pins=pins))) as (url, _):
        client = Served(url)
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
    office, reloader, _ = office_of(Settings(checkpoint=one.path))

    async def lives() -> None:
        async with reloader.watching():
            replace(one.path, other.path)
            os.kill(os.getpid(), signal.SIGHUP)
            while office.now.default.digest != other.digest:
                await asyncio.sleep(0.01)

    assert threading.current_thread() is threading.main_thread()
    before: Any = signal.getsignal(signal.SIGHUP)
    asyncio.run(asyncio.wait_for(lives(), 60))
    assert signal.getsignal(signal.SIGHUP) == before  # the handler went with the server
