"""A watched stream is neither changed nor cut short, whatever goes wrong, and ends with a verdict."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import serving_clients
import watched_streams
from faulty_server import FaultyServer
from served import TOKENS, Upstream
from serving_clients import LOGPROBS, TEXT
from watched_streams import FakeGate, ask, text_of

from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.scored_answer import Scored
from metaprobe.routing.watch_stream import AsyncWatchedStream, watch

predictor = watched_streams.predictor
client = watched_streams.client
upstream = serving_clients.upstream


# Without a gate


def test_every_chunk_passes_untouched_and_the_verdict_is_that_of_the_whole_answer(
    client: openai.OpenAI, predictor: QualityPredictor
) -> None:
    unwatched = [chunk.model_dump() for chunk in ask(client)]
    chunks = list(watched := watch(ask(client), predictor))
    assert [chunk.model_dump() for chunk in chunks] == unwatched
    assert isinstance(chunks[0], openai.types.chat.ChatCompletionChunk)
    assert watched.verdict == predictor.predict(LOGPROBS)
    assert (watched.action, watched.tokens_seen, watched.reason) == ("continue", len(TOKENS), "")
    assert watched.scored is not None
    assert (watched.scored.response_id, watched.scored.model) == ("c-1", "m")
    assert list(watched) == []  # it has ended


def test_chunks_come_as_the_server_sends_them(
    client: openai.OpenAI, upstream: tuple[Upstream, str], predictor: QualityPredictor
) -> None:
    told = upstream[0]
    told.begin()
    watched = watch(ask(client, "steps"), predictor)
    for token, _ in TOKENS:
        told.go_on.release()  # the server sends the next token only now
        assert text_of([next(watched)]) == token
        assert watched.verdict is None
    told.go_on.release()
    assert len(list(watched)) == 1
    assert watched.verdict == predictor.predict(LOGPROBS)


def test_the_async_client_is_watched_alike(upstream: tuple[Upstream, str], predictor: QualityPredictor) -> None:
    handed: list[Scored] = []

    async def take(scored: Scored) -> None:
        await asyncio.sleep(0)
        handed.append(scored)

    async def run() -> AsyncWatchedStream[Any]:
        async with openai.AsyncOpenAI(base_url=upstream[1], api_key="k", max_retries=0, timeout=20) as client:
            chunks = []
            async for chunk in (watched := watch(await ask(client), predictor, on_verdict=take)):
                chunks.append(chunk)
            assert text_of(chunks) == TEXT
            assert [chunk async for chunk in watched] == []
            return watched

    watched = asyncio.run(run())
    assert watched.verdict == predictor.predict(LOGPROBS)
    assert handed == [watched.scored]


def test_openais_own_streaming_helper_is_watched_too(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "plain"}], "logprobs": True}
    with client.chat.completions.stream(**asked) as stream:
        watched = watch(stream, predictor)
        kinds = {event.type for event in watched}
        assert {"chunk", "content.delta"} <= kinds
        assert watched.get_final_completion().choices[0].message.content == TEXT  # its own methods are there
    assert watched.verdict == predictor.predict(LOGPROBS)
    assert watched.tokens_seen == len(TOKENS)


def test_of_several_answers_the_first_is_followed(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    list(watched := watch(ask(client, n=2), predictor))
    assert watched.verdict == predictor.predict(LOGPROBS)
    assert "several answers and this is of the first" in watched.reason


# Faults


def test_without_logprobs_there_is_a_reason_and_no_exception(
    client: openai.OpenAI, predictor: QualityPredictor
) -> None:
    gate, handed = FakeGate(1), []
    chunks = list(watched := watch(ask(client, logprobs=False), predictor, gate, on_verdict=handed.append))
    assert text_of(chunks) == TEXT
    assert watched.verdict is None
    assert "logprobs=True" in watched.reason
    assert (watched.action, watched.tokens_seen, gate.pushed) == ("continue", 0, [])
    assert handed == [watched.scored]


@pytest.fixture(scope="module")
def faulty() -> Iterator[openai.OpenAI]:
    with FaultyServer() as server, openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        yield client


def test_a_log_probability_that_is_none_costs_the_verdict_only(
    faulty: openai.OpenAI, predictor: QualityPredictor
) -> None:
    chunks = list(watched := watch(ask(faulty, "q: bad-logprobs"), predictor, FakeGate(99)))
    assert text_of(chunks) == " w0 w1 w2 w3"
    assert watched.verdict is None
    assert "token 1" in watched.reason


def test_an_error_of_the_stream_passes_through_and_is_the_reason(
    faulty: openai.OpenAI, predictor: QualityPredictor
) -> None:
    handed: list[Scored] = []
    watched = watch(ask(faulty, "q: cut"), predictor, on_verdict=handed.append)
    assert text_of([next(watched) for _ in range(3)]) == " w0 w1"
    with pytest.raises((openai.APIConnectionError, httpx.TransportError)):  # openai 3, and 2
        next(watched)
    assert watched.verdict is None
    assert "after 2 tokens" in watched.reason
    assert handed == [watched.scored]


def test_a_stream_that_ends_early_is_scored_with_a_word_of_caution(
    faulty: openai.OpenAI, predictor: QualityPredictor
) -> None:
    lenient = QualityPredictor(predictor.checkpoint, on_mismatch="ignore")  # the server answers as another model
    list(watched := watch(ask(faulty, "q: ends-early"), lenient))
    assert watched.verdict is not None
    assert "cut" in watched.reason


def test_an_error_of_the_caller_passes_through_and_the_connection_is_closed(
    client: openai.OpenAI, upstream: tuple[Upstream, str], predictor: QualityPredictor
) -> None:
    told = upstream[0]
    told.begin(1)
    watched = watch(ask(client, "steps"), predictor)

    def mine() -> None:
        with watched:
            for _ in watched:
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mine()
    assert told.closed.wait(timeout=20)
    assert watched.verdict is None
    assert "before its end, after 1 tokens" in watched.reason


def test_leaving_the_block_after_the_end_keeps_the_verdict(client: openai.OpenAI, predictor: QualityPredictor) -> None:
    handed: list[Scored] = []
    with watch(ask(client), predictor, on_verdict=handed.append) as watched:
        assert watched.response.status_code == 200  # attributes of openai's stream
        assert text_of(list(watched)) == TEXT
    assert watched.response.is_closed
    assert watched.verdict == predictor.predict(LOGPROBS)
    assert len(handed) == 1


def test_a_scoring_that_fails_is_logged_and_costs_the_caller_nothing(
    client: openai.OpenAI,
    predictor: QualityPredictor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(predictor, "predict", broken)
    assert text_of(list(watched := watch(ask(client), predictor))) == TEXT
    assert "ZeroDivisionError" in watched.reason
    assert "planted" in caplog.text


def test_arguments_that_were_mixed_up_are_told_at_once(predictor: QualityPredictor) -> None:
    gate = FakeGate(1)
    with pytest.raises(TypeError, match="predictor is a FakeGate"):
        watch([], gate, predictor)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="gate is a str"):
        watch([], predictor, "gate")  # type: ignore[arg-type]
    gate.push(-1.0)
    with pytest.raises(ValueError, match="has fired"):
        watch([], predictor, gate)
