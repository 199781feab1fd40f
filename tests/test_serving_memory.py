"""Requests in flight have limits of memory and threads, counted before anything is made of them."""

import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving_clients
from hypothesis import given
from hypothesis import strategies as st
from served import KEY
from serving_clients import LOGPROBS, program, serving

from metaprobe.production.http.bodies import (
    LARGE_BYTES,
    OWNER,
    THREADS_PER_KIND,
    Busy,
    FairThreads,
    Lease,
    Leasing,
    Refusal,
    count_elements,
    count_outside_strings,
    reading_bytes,
)

checkpoint = serving_clients.checkpoint

LARGEST = 16 << 20
"""Bytes that a body may have by default."""
MOST_RSS_MIB = 512
MOST_S = 2.0

texts = st.text(st.sampled_from('[]{},:"\\a\u00e9\U0001f600'), max_size=8)
values = st.recursive(
    st.none() | st.integers() | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
)


def shape(value: Any) -> tuple[int, int, int]:
    """How many objects, arrays and commas a value is written with."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    counts = [shape(one) for one in inner]
    own = (int(isinstance(value, dict)), int(isinstance(value, list)), max(0, len(inner) - 1))
    return tuple(map(sum, zip(own, *counts, strict=True)))  # type: ignore[return-value]


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_brackets_and_commas_within_strings_do_not_count(value: Any, escaped: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=escaped, indent=indent).encode()
    assert count_outside_strings(body) == shape(value)
    if isinstance(value, list) and value:
        assert count_elements(body) == len(value)


@pytest.mark.parametrize(
    "unit", ["[],", "{},", "[[[]]],", '{"a":{}},', "[" * 20 + "]" * 20 + ",", '[{"a":[1,2,{"b":3}]}],']
)
def test_a_body_of_brackets_is_refused_and_the_same_as_text_is_not(unit: str) -> None:
    many = unit * (LARGEST // len(unit) - 1)
    with pytest.raises(Refusal) as refused:
        reading_bytes(f"[{many}0]".encode())
    assert (refused.value.status, refused.value.code) == (413, "too_many_values")
    assert reading_bytes(json.dumps({"text": many}).encode()) < 3 * LARGEST


def test_a_full_body_of_log_probabilities_fits_and_two_of_them_wait_for_each_other() -> None:
    other = {"token": " word", "logprob": -1.25, "bytes": [32, 119]}
    one = json.dumps({"token": " word", "logprob": -0.5, "top_logprobs": [other] * 20})
    body = f'{{"choices": [{{"logprobs": {{"content": [{",".join([one] * (LARGEST // len(one) - 1))}]}}}}]}}'.encode()
    memory = Leasing(lambda *_: None, max_bytes=16 * LARGEST)  # type: ignore[arg-type, return-value]
    first, second = Lease(memory), Lease(memory)
    for lease in (first, second):
        lease.hold(2 * len(body), large=True)
    first.hold(reading_bytes(body), large=True)
    with pytest.raises(Refusal) as refused:
        second.hold(reading_bytes(body), large=True)
    assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "1")
    small = Lease(memory)
    small.hold(2 * LARGE_BYTES, large=False)  # small bodies have room of their own
    first.hold(0, large=False)
    second.hold(reading_bytes(body), large=True)


def test_work_is_refused_where_as_much_waits_as_may_and_other_kinds_go_on() -> None:
    free, requests, streams = (
        threading.Event(),
        FairThreads("test", max_bytes=8, max_tasks=99),
        FairThreads("test-other"),
    )

    async def main() -> None:
        waiting = [asyncio.ensure_future(requests.run(free.wait, 4)) for _ in range(THREADS_PER_KIND)]
        await asyncio.to_thread(until, lambda: requests.waiting_count == 0)  # each has a thread
        waiting.append(asyncio.ensure_future(requests.run(free.wait, 4)))
        await asyncio.sleep(0)
        with pytest.raises(Busy) as refused:
            await requests.run(free.wait, 1)
        assert refused.value.status == 429
        assert int(refused.value.headers["retry-after"]) > 0
        assert await streams.run(lambda: "read") == "read"
        waiting.pop().cancel()  # its caller is gone, so that its place is free
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.append(asyncio.ensure_future(requests.run(free.wait, 4)))
        await asyncio.sleep(0)
        free.set()
        assert all(await asyncio.gather(*waiting))
        assert await requests.run(lambda: "read") == "read"

    asyncio.run(main())


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def order_of(pieces: list[tuple[str, str, str, int]]) -> list[str]:
    """Names of pieces (key, connection, name, weight) in the order in which they are done, when all have come."""
    free, done, threads = threading.Event(), [], FairThreads("test")

    async def main() -> None:
        async def add(key: str, connection: str, work: Callable[[], object], weight: int) -> None:
            OWNER.set((key, connection))
            await threads.run(work, weight)

        held = [asyncio.ensure_future(add("held", str(n), free.wait, 1)) for n in range(THREADS_PER_KIND - 1)]
        held.append(asyncio.ensure_future(add("held", "last", free.wait, LARGE_BYTES + 1)))
        await asyncio.sleep(0)
        await asyncio.to_thread(until, lambda: threads.waiting_count == 0)
        for key, connection, name, weight in pieces:
            held.append(asyncio.ensure_future(add(key, connection, partial(done.append, name), weight)))
            await asyncio.sleep(0)
        free.set()
        await asyncio.gather(*held)

    asyncio.run(main())
    return done


def test_turns_are_shared_between_keys_and_connections_and_a_small_piece_waits_for_no_large_one() -> None:
    many = [("hostile", str(n), f"hostile {n}", 1000) for n in range(8)]
    done = order_of([*many, ("honest", "one", "honest", 1000), ("hostile", "nine", "small", 10)])
    assert done.index("honest") <= 2
    assert done.index("small") <= 2
    one = [("same", "first", f"first {n}", 1000) for n in range(8)]
    done = order_of([*one, ("same", "second", "second", 1000)])
    assert done.index("second") <= 3


def test_a_large_piece_leaves_a_thread_for_small_ones() -> None:
    free, threads = threading.Event(), FairThreads("test")

    async def main() -> None:
        large = [asyncio.ensure_future(threads.run(free.wait, LARGE_BYTES + 1)) for _ in range(2 * THREADS_PER_KIND)]
        await asyncio.sleep(0)
        assert await threads.run(lambda: "small", 1) == "small"
        free.set()
        assert all(await asyncio.gather(*large))

    asyncio.run(main())


def test_a_key_fills_no_more_than_its_share_of_the_queue_and_another_key_finds_room() -> None:
    free, threads = threading.Event(), FairThreads("test", max_bytes=100, max_tasks=99)

    async def main() -> None:
        async def add(key: str, weight: int) -> None:
            OWNER.set((key, ""))
            await threads.run(free.wait, weight)

        running = [asyncio.ensure_future(add("hostile", 1)) for _ in range(THREADS_PER_KIND)]
        await asyncio.sleep(0)
        await asyncio.to_thread(until, lambda: threads.waiting_count == 0)
        running += [asyncio.ensure_future(add("hostile", 10)) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(Busy) as refused:
            await add("hostile", 10)
        assert refused.value.status == 429
        running += [asyncio.ensure_future(add(key, 10)) for key in "abcde"]
        await asyncio.sleep(0)
        with pytest.raises(Busy) as refused:
            await add("last", 10)
        assert refused.value.status == 503
        free.set()
        await asyncio.gather(*running)

    asyncio.run(main())


def wide(path: str, unit: bytes) -> bytes:
    """The largest body of such a request that holds nothing but one unit, again and again."""
    before, after = {
        "/v1/feedback": (b'{"request_id": "a", "label": [', b"0]}"),
        "/v1/score": (b'{"responses": [', b"0]}"),
        "/v1/chat/completions": (b'{"model": "m", "messages": [], "metadata": {"a": [', b"0]}}"),
    }[path]
    return before + unit * ((LARGEST - 100) // len(unit)) + after


ATTACKS = [
    ("/v1/feedback", b"[],"),
    ("/v1/feedback", b'"a",'),
    ("/v1/score", b"{},"),
    ("/v1/score", b'{"logprob":-0.1,"token":"a"},'),
    ("/v1/chat/completions", b'{"a":1},'),
    ("/v1/chat/completions", b"[],"),
]
"""Each path and each unit; a body is weighed by its unit alone, whatever its path."""


@pytest.mark.slow
def test_threads_let_the_event_loop_go_on_sooner_than_python_does(checkpoint: Path) -> None:
    before = sys.getswitchinterval()
    with serving(checkpoint, auth=False) as client:
        assert client.get("/livez").status_code == 200
        assert sys.getswitchinterval() <= 0.001 < before
    assert sys.getswitchinterval() == before


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_four_wide_bodies_at_once_stay_within_the_memory_and_an_honest_request_is_answered(
    checkpoint: Path, tmp_path: Path
) -> None:
    words = [checkpoint, "--log", tmp_path / "scores.sqlite", "--upstream", "http://127.0.0.1:9/v1", "--grace", 1]
    with (
        program(tmp_path / "log", *words) as (server, served),
        httpx.Client(base_url=served.url, headers={"authorization": f"Bearer {KEY}"}, timeout=120) as client,
    ):
        for path, unit in ATTACKS:
            slowest = attacked(client, path, wide(path, unit))
            assert slowest < MOST_S, f"{path} with {unit!r} held up others for {slowest:.1f} s"
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
        assert peak is not None
        assert int(peak[1]) / 1024 < MOST_RSS_MIB


def attacked(client: httpx.Client, path: str, body: bytes) -> float:
    """Longest time of an honest request, while four of those bodies are sent at once."""
    as_json = {"content-type": "application/json"}
    slowest = 0.0
    with ThreadPoolExecutor(4) as callers:
        sent = [callers.submit(client.post, path, content=body, headers=as_json) for _ in range(4)]
        while not all(one.done() for one in sent):
            started = time.monotonic()
            assert client.post("/v1/score", content=json.dumps(LOGPROBS), headers=as_json).status_code == 200
            slowest = max(slowest, time.monotonic() - started)
            time.sleep(0.05)
    assert all(400 <= one.result().status_code < 600 for one in sent)
    return slowest
