"""A gate ends the stream where it fires and tells the server, and one that never fires changes nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
import serving_clients
import watched_streams
from served import TOKENS, Upstream, chunks
from serving_clients import LOGPROBS, TEXT
from watched_streams import FakeGate, ask, text_of

from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.scored_answer import Scored
from metaprobe.records.errors import InvalidResponse
from metaprobe.routing.watch_stream import watch

predictor = watched_streams.predictor
client = watched_streams.client
upstream = serving_clients.upstream


class Startless:
    """A gate that was started already."""

    def __init__(self, gate: FakeGate) -> None:
        self._gate = gate
        self.push, self.score = gate.push, gate.score

    @property
    def tokens_seen(self) -> int:
        return self._gate.tokens_seen

    @property
    def fired_at(self) -> int | None:
        return self._gate.fired_at


@pytest.mark.parametrize("action", ["stop", "escalate"])
def test_the_gate_ends_the_stream_and_the_server_is_told(
    client: openai.OpenAI, upstream: tuple[Upstream, str], predictor: QualityPredictor, action: str
) -> None:
    told, gate, handed = upstream[0], FakeGate(3, action), []
    told.begin(3)
    passed = list(watched := watch(ask(client, "steps"), predictor, gate, on_verdict=handed.append))
    assert told.closed.wait(timeout=20)
    assert told.sent == 3
    assert text_of(passed) == "".join(token for token, _ in TOKENS[:3])  # the deciding chunk is not withheld
    assert (watched.action, watched.tokens_seen, gate.started_for) == (action, 3, ["m"])
    assert gate.pushed == list(LOGPROBS[:3])
    assert watched.verdict is not None
    assert (watched.verdict.score, watched.verdict.flagged) == (gate.score, True)
    assert "3 tokens" in watched.reason
    assert handed == [watched.scored]


def test_the_gate_ends_an_async_stream(upstream: tuple[Upstream, str], predictor: QualityPredictor) -> None:
    told = upstream[0]
    told.begin(2)

    async def run() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=upstream[1], api_key="k", max_retries=0, timeout=20) as client:
            watched = watch(await ask(client, "steps"), predictor, FakeGate(2))
            return text_of([chunk async for chunk in watched]), watched.action

    assert asyncio.run(run()) == ("".join(token for token, _ in TOKENS[:2]), "stop")
    assert told.closed.wait(timeout=20)


class Source:
    """An asynchronous stream, which breaks after `most` chunks and, where it can be closed, counts how often it was."""

    def __init__(self, *, most: int = 99) -> None:
        self.most, self.closed = most, 0

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        for number, chunk in enumerate(chunks({"model": "m", "logprobs": True})):
            if number == self.most:
                raise ConnectionError("gone")
            yield chunk


class OpenAIs(Source):
    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


class Generators(Source):
    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1

    def close(self) -> None:
        raise AssertionError("the synchronous one")


@pytest.mark.parametrize("kind", [OpenAIs, Generators])
def test_an_async_stream_is_closed_where_the_gate_fires_and_where_its_caller_leaves(
    predictor: QualityPredictor, kind: type[Any]
) -> None:
    async def take(scored: Scored) -> None:
        await asyncio.sleep(0)
        handed.append(scored)

    async def run() -> None:
        assert len([chunk async for chunk in watch(fired, predictor, FakeGate(2), on_verdict=take)]) == 2
        assert fired.closed == 1
        async with watch(left, predictor, on_verdict=take) as watched:
            await anext(watched)
        assert left.closed == 1
        assert watched.reason == "the stream was closed before its end, after 1 tokens"
        await watched.close()
        assert [chunk async for chunk in watched] == []

    handed: list[Scored] = []
    fired, left = kind(), kind()
    asyncio.run(run())
    assert [scored.verdict is None for scored in handed] == [False, True]


def test_an_async_stream_that_breaks_raises_what_it_raised_and_says_so(predictor: QualityPredictor) -> None:
    async def take(scored: Scored) -> None:
        await asyncio.sleep(0)
        handed.append(scored)

    async def run() -> None:
        watched = watch(Source(most=3), predictor, on_verdict=take)  # one that cannot be closed
        with pytest.raises(ConnectionError, match="gone"):
            [chunk async for chunk in watched]
        await watched.aclose()

    handed: list[Scored] = []
    asyncio.run(run())
    assert [scored.reason for scored in handed] == ["the stream failed (ConnectionError), after 3 tokens"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stream_that_is_both_is_watched_as_its_caller_takes_it(
    predictor: QualityPredictor, asynchronous: bool
) -> None:
    """LiteLLM's streams are like this: one class serves both."""

    class Both(Source):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return chunks({"model": "m", "logprobs": True})

    async def run() -> None:
        async for chunk in watched:
            taken.append(chunk)

    taken: list[Any] = []
    watched: Any = watch(Both(), predictor)
    if asynchronous:
        asyncio.run(run())
    else:
        taken += watched
    assert taken == list(chunks({"model": "m", "logprobs": True}))
    assert watched.verdict == predictor.predict(LOGPROBS)


def test_a_gate_that_never_fires_changes_nothing(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    gate = FakeGate(99)
    passed = list(watched := watch(ask(client, top_logprobs=2), predictor, gate))
    assert text_of(passed) == TEXT
    assert gate.pushed == list(LOGPROBS)
    assert watched.verdict == predictor.predict(LOGPROBS)


def test_a_gate_that_was_started_already_is_used_as_it_is(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    gate = FakeGate(2)
    list(watched := watch(ask(client), predictor, Startless(gate)))
    assert (watched.action, watched.tokens_seen, gate.started_for) == ("stop", 2, [])


def test_a_gate_that_cannot_judge_lets_the_answer_pass(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    class Refuses(FakeGate):
        def push(self, logprob: float) -> str:
            raise InvalidResponse("no log-probability")

    assert text_of(list(watched := watch(ask(client), predictor, Refuses(1)))) == TEXT
    assert watched.verdict == predictor.predict(LOGPROBS)


def test_one_of_several_answers_never_ends_the_others(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    passed = list(watched := watch(ask(client, n=2), predictor, FakeGate(at=9)))
    assert passed
    assert watched.action == "continue"


def test_an_answer_of_a_server_that_numbers_none_is_ended_as_the_first(predictor: QualityPredictor) -> None:
    logprobs = {"content": [{"token": "t", "logprob": -0.3}]}
    given = [{"id": "a", "choices": [{"delta": {"content": "t"}, "logprobs": logprobs}]} for _ in range(6)]
    passed = list(watched := watch(given, predictor, FakeGate(3)))
    assert (len(passed), watched.action) == (3, "stop")


@pytest.mark.parametrize("said", [True, False])
def test_a_refusal_is_not_gated_and_has_no_verdict(predictor: QualityPredictor, said: bool) -> None:
    tokens = [{"token": "No", "logprob": -0.3}]
    delta = {"refusal": "No"} if said else {}
    chunk = {"id": "a", "choices": [{"index": 0, "delta": delta, "logprobs": {"content": None, "refusal": tokens}}]}
    gate = FakeGate(3)
    passed = list(watched := watch([chunk] * 6, predictor, gate))
    assert len(passed) == 6
    assert (gate.pushed, watched.action, watched.verdict) == ([], "continue", None)


@pytest.mark.parametrize("call", [{"tool_calls": [{"index": 0}]}, {"function_call": {"arguments": "{"}}])
@pytest.mark.parametrize("before", [[], [{"content": "Let me"}, {"content": " look"}], [{}, {}, {}]])
def test_a_tool_call_is_never_cut(
    predictor: QualityPredictor, call: dict[str, Any], before: list[dict[str, str]]
) -> None:
    deltas = [*before, *[call] * 4, {"content": "and text"}]
    tokens = [{"content": [{"token": "t", "logprob": -0.3 - i}]} for i in range(len(deltas))]
    given = [
        {"id": "a", "choices": [{"index": 0, "delta": delta, "logprobs": logprobs}]}
        for delta, logprobs in zip(deltas, tokens, strict=True)
    ]
    passed = list(watched := watch(given, predictor, FakeGate(3)))
    assert passed == given
    assert (watched.action, watched.verdict) == ("continue", None)
    assert "is a tool call" in watched.reason


def test_what_the_gate_says_of_tokens_without_text_waits_for_text(predictor: QualityPredictor) -> None:
    tokens = {"content": [{"token": "t", "logprob": -0.3}]}
    deltas: list[dict[str, str]] = [{"role": "assistant"}] * 4 + [{"content": "a"}] * 2
    given = [{"id": "a", "choices": [{"index": 0, "delta": delta, "logprobs": tokens}]} for delta in deltas]
    passed = list(watched := watch(given, predictor, FakeGate(3)))
    assert (len(passed), watched.action) == (5, "stop")
