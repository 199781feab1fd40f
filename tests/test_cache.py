"""The call cache: what was paid for is never lost, never asked twice, and never changed."""

import asyncio
import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from metaprobe.llms.base import Capabilities, LLMError, Request, Token
from metaprobe.llms.cache import CachedLLM, CallCache
from metaprobe.llms.replay import ReplayLLM
from metaprobe.records.types import Call, Hidden, Message, Sampling, Segment, Usage

QUESTION = Request(id="q1", messages=(Message("user", "six times seven?"),), stage="answer", agent="a", parent="p")


class Counting:
    """Answers with the number of the request, after all tasks have had their turn."""

    name, revision, capabilities = "counting", "1", Capabilities(stream=True, loglikelihood=True, hidden=True)

    def __init__(self, *, failing: int = 0) -> None:
        self.asked: list[Request] = []
        self._failing = failing

    async def complete(self, request: Request) -> Call:
        self.asked.append(request)
        for _ in range(5):
            await asyncio.sleep(0)
        if len(self.asked) <= self._failing:
            raise LLMError("busy")
        return request.call(
            text=f"{len(self.asked)}",
            tokens=("x", "y"),
            logprobs=np.array([-1.5, -0.25], np.float32),
            latency_ms=12.5,
        )

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        call = await self.complete(request)
        for token, logprob in zip(call.tokens, (-1.5, -0.25), strict=True):
            yield Token(token, logprob)
        yield call

    async def loglikelihood(self, request: Request, continuation: str) -> Call:
        return dataclasses.replace(await self.complete(request), text=continuation)


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    with CallCache(tmp_path / "calls.db") as opened:
        yield opened


def same(left: Call, right: Call) -> bool:
    """Equal in every field, arrays bit for bit."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, np.ndarray):
            return isinstance(b, np.ndarray) and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        if isinstance(a, Hidden):
            return (
                isinstance(b, Hidden)
                and equal(a.values, b.values)
                and (a.layers, a.positions)
                == (
                    b.layers,
                    b.positions,
                )
            )
        return type(a) is type(b) and a == b

    return all(equal(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(Call))


anything = st.text(st.characters())  # lone surrogates too: half a character in a broken token
numbers = st.floats(allow_nan=False)
calls = st.builds(
    Call,
    id=anything,
    stage=anything,
    agent=anything,
    round=st.integers(),
    parent=st.none() | anything,
    model=anything,
    model_revision=anything,
    model_dtype=anything,
    messages=st.lists(st.builds(Message, anything, anything), max_size=3).map(tuple),
    prompt_token_ids=st.none() | arrays(np.int32, st.integers(0, 5)),
    text=anything,
    tokens=st.lists(anything, max_size=4).map(tuple),
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
    logprobs_mode=st.sampled_from(["raw", "processed", "unknown"]),
    finish_reason=anything,
    usage=st.builds(Usage, st.integers(0), st.integers(0)),
    latency_ms=st.none() | numbers,
    cost_usd=st.none() | numbers,
    error=st.none() | anything,
    hidden=st.none()
    | st.builds(
        Hidden,
        values=arrays(np.float16, (2, 1, 3)),
        layers=st.just((0, 3)),
        positions=st.just(("answer_last",)),
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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
    first = asyncio.run(CachedLLM(inner, cache).complete(QUESTION))
    again = dataclasses.replace(QUESTION, id="q2", stage="retry", agent="b", round=3, parent="other")
    second = asyncio.run(CachedLLM(inner, cache).complete(again))
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
    llm = CachedLLM(Counting(), cache)
    asyncio.run(llm.complete(QUESTION))
    assert asyncio.run(llm.complete(dataclasses.replace(QUESTION, **change))).text == "2"


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("name", "other"),
        ("revision", "2"),
        ("dtype", "float32"),
        ("asked_how", "http://localhost:8001/v1"),
        ("capabilities", Capabilities(top_logprobs=5, hidden=True)),
    ],
)
def test_another_model_is_asked(cache: CallCache, attribute: str, value: object) -> None:
    asyncio.run(CachedLLM(Counting(), cache).complete(QUESTION))
    other = Counting()
    setattr(other, attribute, value)
    asyncio.run(CachedLLM(other, cache).complete(QUESTION))
    assert len(other.asked) == 1


def test_hidden_states_of_other_layers_are_another_question(cache: CallCache) -> None:
    wanted = dataclasses.replace(QUESTION, hidden=True)
    inner = Counting()
    for capture in ("layers 1, 2", "layers 3", "layers 3"):
        inner.capture = capture  # type: ignore[attr-defined]
        asyncio.run(CachedLLM(inner, cache).complete(wanted))
    assert len(inner.asked) == 2


def test_unseeded_draws_stay_apart_and_seeded_ones_are_the_same(cache: CallCache) -> None:
    def draw(identity: str, seed: int | None) -> str:
        sampled = dataclasses.replace(QUESTION, id=identity, sampling=Sampling(temperature=1.0, seed=seed))
        return asyncio.run(CachedLLM(inner, cache).complete(sampled)).text

    inner = Counting()
    assert [draw("a", None), draw("b", None), draw("a", None)] == ["1", "2", "1"]
    assert [draw("a", 5), draw("b", 5), draw("a", 6)] == ["3", "3", "4"]


def test_requests_alike_in_flight_are_asked_once(cache: CallCache) -> None:
    inner = Counting()
    llm = CachedLLM(inner, cache)

    async def ask() -> list[Call]:
        alike = [dataclasses.replace(QUESTION, id=f"q{i}") for i in range(20)]
        return list(await asyncio.gather(*map(llm.complete, alike)))

    answered = asyncio.run(ask())
    assert len(inner.asked) == 1
    assert [call.id for call in answered] == [f"q{i}" for i in range(20)]


def test_errors_are_not_kept_and_do_not_answer_for_others(cache: CallCache) -> None:
    llm = CachedLLM(Counting(failing=1), cache)

    async def ask() -> list[Call | BaseException]:
        return list(await asyncio.gather(llm.complete(QUESTION), llm.complete(QUESTION), return_exceptions=True))

    failed, answered = asyncio.run(ask())
    assert isinstance(failed, LLMError)
    assert isinstance(answered, Call)
    assert len(cache) == 1


def test_who_waits_for_a_cancelled_request_asks_itself(cache: CallCache) -> None:
    llm = CachedLLM(Counting(), cache)

    async def ask() -> Call:
        first, second = asyncio.create_task(llm.complete(QUESTION)), asyncio.create_task(llm.complete(QUESTION))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(ask()).text == "2"


async def everything(stream: AsyncIterator[Token | Call]) -> tuple[list[tuple[str, float | None]], Call]:
    events = [event async for event in stream]
    assert isinstance(events[-1], Call)
    return [(event.text, event.logprob) for event in events[:-1] if isinstance(event, Token)], events[-1]


def test_a_hit_is_streamed_from_the_record(cache: CallCache) -> None:
    inner = Counting()
    llm = CachedLLM(inner, cache)
    live, live_call = asyncio.run(everything(llm.stream(QUESTION)))
    kept, kept_call = asyncio.run(everything(llm.stream(QUESTION)))
    assert len(inner.asked) == 1
    assert live == kept == [("x", -1.5), ("y", -0.25)]
    assert same(live_call, kept_call)
    assert same(asyncio.run(llm.complete(QUESTION)), live_call)


def test_a_stream_left_early_is_not_kept_and_stops_nobody(cache: CallCache) -> None:
    llm = CachedLLM(Counting(), cache)

    async def ask() -> Call:
        stream = llm.stream(QUESTION)
        await anext(stream)
        return await llm.complete(QUESTION)

    assert asyncio.run(ask()).text == "2"


def test_loglikelihoods_are_kept_by_continuation(cache: CallCache) -> None:
    inner = Counting()
    llm = CachedLLM(inner, cache)

    async def ask() -> list[str]:
        return [(await llm.loglikelihood(QUESTION, text)).text for text in ("yes", "no", "yes")]

    assert asyncio.run(ask()) == ["yes", "no", "yes"]
    asyncio.run(llm.complete(QUESTION))
    assert len(inner.asked) == 3


def test_a_cached_model_is_the_model(cache: CallCache) -> None:
    inner = Counting()
    llm = CachedLLM(inner, cache)
    assert (llm.name, llm.revision, llm.capabilities) == (inner.name, inner.revision, inner.capabilities)


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


def test_a_killed_process_loses_no_finished_call(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with writer(path, "k", 50) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "49":
            pass
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert path.with_name("calls.db-wal").exists()  # it was not closed in order
    with CallCache(path) as cache:
        assert len(cache) == 50
        assert all((call := cache.get(f"k{i}")) is not None and call.id == str(i) for i in range(50))


def test_several_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    processes = [writer(path, name, 30) for name in "abc"]
    for process in processes:
        process.communicate("\n")
    assert [process.returncode for process in processes] == [0, 0, 0]
    with CallCache(path) as cache:
        assert len(cache) == 90


@pytest.mark.parametrize("damage", ["arrays = x'00'", "call = '{}'", "sha256 = NULL", "arrays = NULL", "call = x'ff'"])
def test_a_damaged_row_is_asked_again(cache: CallCache, damage: str) -> None:
    inner = Counting()
    llm = CachedLLM(inner, cache)
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


def test_a_closed_cache_says_so(cache: CallCache) -> None:
    cache.close()
    with pytest.raises(LLMError, match="closed"):
        len(cache)


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
    assert llm.capabilities == Capabilities(logprobs=True, json_schema=True, stream=True)
    with pytest.raises(LLMError, match="ask the model itself"):
        asyncio.run(llm.loglikelihood(QUESTION, "42"))


def test_a_replay_of_nothing_is_refused() -> None:
    with pytest.raises(LLMError, match="no recorded calls to replay: the store is empty, or was written without texts"):
        ReplayLLM([])
