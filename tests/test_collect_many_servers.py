"""Collecting from two servers behind a balancer, one of which is killed in the middle: the same runs as from one."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answering_server import wait_for
from cached_calls import same
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from research.engines.vllm_server import free_port

SCRIPT = Path(__file__).parent / "answering_server.py"


@contextmanager
def servers(count: int) -> Iterator[list[tuple[int, Any]]]:
    """Ports and processes of servers that answer."""
    ports = [free_port() for _ in range(count)]
    started = [subprocess.Popen([sys.executable, SCRIPT, str(port)], stdout=subprocess.PIPE) for port in ports]
    try:
        for port in ports:
            wait_for(port)
        yield list(zip(ports, started, strict=True))
    finally:
        for process in started:
            process.kill()
            process.wait(20)
            process.stdout.close()


@contextmanager
def balanced(ports: list[int]) -> Iterator[int]:
    """The port of a balancer that hands each connection to the next server that takes it, as HAProxy does with TCP."""
    turn, mine, ready, ends = iter(range(10**9)), free_port(), threading.Event(), []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = next(turn)
        for i in range(len(ports)):
            try:
                there, back = await asyncio.open_connection("127.0.0.1", ports[(first + i) % len(ports)])
            except OSError:
                continue
            await asyncio.gather(pump(reader, back), pump(there, writer))
            return
        writer.close()

    async def balance() -> None:
        stop = asyncio.Event()
        ends.append((asyncio.get_running_loop(), stop))
        async with await asyncio.start_server(serve, "127.0.0.1", mine):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(balance()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield mine
    finally:
        [(loop, stop)] = ends
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)


def collect(port: int, out: Path) -> list[Run]:
    options = ["--task", "arithmetic", "--limit", "24", "--concurrency", "8", "--shard-runs", "8"]
    model = ["--llm", f"openai:m@http://127.0.0.1:{port}/v1", "--out", str(out)]
    done = CliRunner().invoke(
        main, ["collect", "self-report", *options, *model], env={"OPENAI_API_KEY": "k"}, catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    runs = sorted(RunStore(out), key=lambda run: run.id)
    return [replace(run, calls=tuple(replace(call, latency_ms=0) for call in run.calls)) for run in runs]


@pytest.mark.slow
def test_a_server_that_is_killed_costs_no_run_and_changes_none(tmp_path: Path) -> None:
    with servers(1) as [(port, _)]:
        expected = collect(port, tmp_path / "one")
    with servers(2) as both, balanced([port for port, _ in both]) as port:
        answered: list[int] = [0, 0]

        def kill_in_the_middle() -> None:
            for _ in both[1][1].stdout:
                answered[1] += 1
                if answered[1] == 20:
                    both[1][1].kill()

        def count() -> None:
            for _ in both[0][1].stdout:
                answered[0] += 1

        watchers = [threading.Thread(target=of, daemon=True) for of in (kill_in_the_middle, count)]
        [watcher.start() for watcher in watchers]
        found = collect(port, tmp_path / "two")
        assert both[1][1].wait(20) != 0
    for watcher in watchers:
        watcher.join(20)
    assert len(expected) == 48  # two variants
    assert [repr(replace(run, calls=())) for run in found] == [repr(replace(run, calls=())) for run in expected]
    pairs = [zip(one.calls, other.calls, strict=True) for one, other in zip(found, expected, strict=True)]
    assert all(same(one, other) for pair in pairs for one, other in pair)
    assert answered[1] >= 20
    assert answered[0] > 48, "the other server went on"
