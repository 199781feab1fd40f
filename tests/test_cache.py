"""The call cache: what was paid for is never lost, never asked twice, and never changed."""

import asyncio
import dataclasses
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import cached_calls
import numpy as np
import pytest
from cached_calls import QUESTION, Counting, everything, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from stored_runs import any_calls

from metaprobe.llms.base import Capabilities, LLMError
from metaprobe.llms.cache import CallCache, ReplayLLM
from metaprobe.records.types import Call, Hidden, Message, Sampling, Segment

cache = cached_calls.cache


anything = st.text(st.characters())  # lone surrogates too: half a character in a broken token


numbers = st.floats(allow_nan=False)


calls = any_calls(
    anything,
    numbers,
    st.integers(),
    prompt_token_ids=st.none() | arrays(np.int32, st.integers(0, 5)),
    segments=st.lists(st.builds(Segment, st.sampled_from(("thinking", "answer")), st.just(0), st.integers(1, 9))).map(
        tuple
    ),
    token_ids=st.none() | arrays(np.int32, st.integers(0, 5)),
    logprobs=st.none() | arrays(np.float32, st.integers(0, 5)) | arrays(np.float16, 3),
    top_logprobs=st.none() | arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(0, 3))),
    sampling=st.builds(
        Sampling,
        temperature=numbers,
        top_p=numbers,
        seed=st.none() | st.integers(),
        max_tokens=st.integers(),
        stop=st.lists(anything, max_size=2).map(tuple),
        json_schema=anything,
    ),
    hidden=st.none()
    | st.builds(
        Hidden,
        values=arrays(np.float16, (2, 1, 3)),
        layers=st.just((0, 3)),
        positions=st.just(("answer_last",)),
    ),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(call=calls)
def test_a_call_goes_through_the_cache_unchanged(cache: CallCache, call: Call) -> None:
    key = os.urandom(8).hex()
    cache.put(key, call)
    kept = cache.get(key)
    assert kept is not None
    assert same(kept, call)
    assert not same(kept, dataclasses.replace(call, text=call.text + "."))


def test_a_hit_is_the_kept_answer_under_the_new_requests_identity(cache: CallCache) -> None:
    inner = Counting()
    first = asyncio.run(cache.wrap(inner).complete(QUESTION))
    again = dataclasses.replace(QUESTION, id="q2", stage="retry", agent="b", round=3, parent="other")
    second = asyncio.run(cache.wrap(inner).complete(again))
    assert len(inner.asked) == len(cache) == 1
    assert (second.id, second.stage, second.agent, second.round, second.parent) == ("q2", "retry", "b", 3, "other")
    assert same(dataclasses.replace(second, id="q1", stage="answer", agent="a", round=0, parent="p"), first)


@pytest.mark.parametrize(
    "change",
    [
        {"messages": (Message("user", "six times eight?"),)},
        {"messages": (Message("system", "six times seven?"),)},
        {"hidden": True},
        *(
            {"sampling": Sampling(**{field: value})}  # type: ignore[arg-type]
            for field, value in {"max_tokens": 9, "seed": 1, "stop": ("\n",), "json_schema": "{}", "top_p": 0.5}.items()
        ),
    ],
)
def test_another_question_is_asked(cache: CallCache, change: dict[str, Any]) -> None:
    llm = cache.wrap(Counting())
    asyncio.run(llm.complete(QUESTION))
    assert asyncio.run(llm.complete(dataclasses.replace(QUESTION, **change))).text == "2"


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("name", "other"),
        ("revision", "2"),
        ("dtype", "float32"),
        ("asked_how", "http://localhost:8001/v1"),
        ("capture", "layers 1, 2"),
        ("capabilities", Capabilities(top_logprobs=5, hidden=True)),
    ],
)
def test_another_model_or_capture_is_asked(cache: CallCache, attribute: str, value: object) -> None:
    wanted = dataclasses.replace(QUESTION, hidden=True)
    asyncio.run(cache.wrap(Counting()).complete(wanted))
    other = Counting()
    setattr(other, attribute, value)
    for _ in range(2):
        asyncio.run(cache.wrap(other).complete(wanted))
    assert len(other.asked) == 1


def test_unseeded_draws_stay_apart_and_seeded_ones_are_the_same(cache: CallCache) -> None:
    def draw(identity: str, seed: int | None) -> str:
        sampled = dataclasses.replace(QUESTION, id=identity, sampling=Sampling(temperature=1.0, seed=seed))
        return asyncio.run(cache.wrap(inner).complete(sampled)).text

    inner = Counting()
    assert [draw("a", None), draw("b", None), draw("a", None)] == ["1", "2", "1"]
    assert [draw("a", 5), draw("b", 5), draw("a", 6)] == ["3", "3", "4"]


def test_requests_alike_in_flight_are_asked_once(cache: CallCache) -> None:
    inner = Counting()
    llm = cache.wrap(inner)

    async def ask() -> list[Call]:
        alike = [dataclasses.replace(QUESTION, id=f"q{i}") for i in range(20)]
        return list(await asyncio.gather(*map(llm.complete, alike)))

    answered = asyncio.run(ask())
    assert len(inner.asked) == 1
    assert [call.id for call in answered] == [f"q{i}" for i in range(20)]


def test_errors_are_not_kept_and_do_not_answer_for_others(cache: CallCache) -> None:
    llm = cache.wrap(Counting(failing=1))

    async def ask() -> list[Call | BaseException]:
        return list(await asyncio.gather(llm.complete(QUESTION), llm.complete(QUESTION), return_exceptions=True))

    failed, answered = asyncio.run(ask())
    assert isinstance(failed, LLMError)
    assert isinstance(answered, Call)
    assert len(cache) == 1


def test_who_waits_for_a_cancelled_request_asks_itself(cache: CallCache) -> None:
    llm = cache.wrap(Counting())

    async def ask() -> Call:
        first, second = asyncio.create_task(llm.complete(QUESTION)), asyncio.create_task(llm.complete(QUESTION))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(ask()).text == "2"


def test_a_hit_is_streamed_from_the_record(cache: CallCache) -> None:
    inner = Counting()
    llm = cache.wrap(inner)
    live, live_call = asyncio.run(everything(llm.stream(QUESTION)))
    kept, kept_call = asyncio.run(everything(llm.stream(QUESTION)))
    assert len(inner.asked) == 1
    assert live == kept == [("x", -1.5), ("y", -0.25)]
    assert same(live_call, kept_call)
    assert same(asyncio.run(llm.complete(QUESTION)), live_call)


def test_a_stream_left_early_is_not_kept_and_stops_nobody(cache: CallCache) -> None:
    llm = cache.wrap(Counting())

    async def ask() -> Call:
        stream = llm.stream(QUESTION)
        await anext(stream)
        return await llm.complete(QUESTION)

    assert asyncio.run(ask()).text == "2"


# --- The file of the call cache: killed writers, several processes, damage


# Puts calls as fast as it can, says so after each, and waits for its end between two of them.
WRITER = """
import sys
from metaprobe.llms.cache import CallCache
from metaprobe.records.types import Call
with CallCache(sys.argv[1]) as cache:
    for i in range(int(sys.argv[3])):
        cache.put(f"{sys.argv[2]}{i}", Call(id=str(i), text="answer " * 100))
        print(i, flush=True)
    sys.stdin.readline()
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_several_processes_share_a_file_and_a_killed_one_loses_no_finished_call(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    killed, *others = [writer(path, name, 30) for name in "kab"]
    with killed:
        assert killed.stdout is not None
        while killed.stdout.readline().strip() != "29":
            pass
        killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    for process in others:
        process.communicate("\n")
    assert [process.returncode for process in others] == [0, 0]
    with CallCache(path) as cache:
        assert len(cache) == 90
        assert all((call := cache.get(f"k{i}")) is not None and call.id == str(i) for i in range(30))


@pytest.mark.parametrize("damage", ["arrays = x'00'", "call = '{}'", "sha256 = NULL", "arrays = NULL", "call = x'ff'"])
def test_a_damaged_row_is_asked_again(cache: CallCache, damage: str) -> None:
    inner = Counting()
    llm = cache.wrap(inner)
    asyncio.run(llm.complete(QUESTION))
    with sqlite3.connect(cache.path) as other:
        other.execute(f"UPDATE calls SET {damage}")
    other.close()
    assert [asyncio.run(llm.complete(QUESTION)).text for _ in range(2)] == ["2", "2"]


def test_a_file_that_is_no_cache_is_named_and_left_alone(tmp_path: Path) -> None:
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"not a database, and long enough to have a header " * 40)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE bank (account)")
    database.close()
    before = noise.read_bytes(), other.read_bytes()
    with pytest.raises(LLMError, match=r"noise\.db is damaged .* move it away"):
        CallCache(noise)
    with pytest.raises(LLMError, match=r"other\.db is a database but no call cache .* choose another file"):
        CallCache(other)
    with pytest.raises(LLMError, match="noise"):
        CallCache(noise / "calls.db")
    assert (noise.read_bytes(), other.read_bytes()) == before


def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with CallCache(path) as cache:
        for i in range(200):
            cache.put(str(i), Call(id=str(i), text="x" * 500))
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    with CallCache(path) as cache, pytest.raises(LLMError, match=r"calls\.db is damaged .* move it away"):
        cache.get("7")


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("[" * 100_000, b""),
        ("[]", b""),
        ("null", b""),
        ('{"arrays": [], "unknown": 1}', b""),
        ('{"arrays": ["logprobs"]}', b"no array"),
        ('{"arrays": [], "messages": 5}', b""),
    ],
)
def test_a_row_of_another_program_is_asked_again(cache: CallCache, text: str, data: bytes) -> None:
    """Its digest is right, as whoever writes the row can make it so."""
    digest = hashlib.sha256(text.encode() + b"\0" + data).hexdigest()
    with sqlite3.connect(cache.path) as database:
        database.execute("INSERT INTO calls VALUES (?, ?, ?, ?)", ("key", text, data, digest))
    assert cache.get("key") is None


# --- Recorded calls are played again in the place of a model


def test_replay_prefers_the_call_of_the_same_id_and_streams_it() -> None:
    recorded = [
        Call(id=identity, messages=QUESTION.messages, text=identity, tokens=(identity,), logprobs=np.float32([-1]))
        for identity in ("one", "two")
    ]
    llm = ReplayLLM(recorded)
    ask = [dataclasses.replace(QUESTION, id=identity) for identity in ("one", "two", "three")]
    assert [asyncio.run(llm.complete(request)).text for request in ask] == ["one", "two", "two"]
    tokens, call = asyncio.run(everything(llm.stream(ask[0])))
    assert (tokens, call.text) == ([("one", -1.0)], "one")
    assert llm.capabilities == Capabilities(logprobs=True, stream=True)
    with pytest.raises(LLMError, match="was not recorded: 2 calls"):
        asyncio.run(llm.complete(dataclasses.replace(QUESTION, messages=())))
    with pytest.raises(LLMError, match="no recorded calls to replay: the store is empty, or was written without texts"):
        ReplayLLM([])
