"""Watched streams of text completions, and of Ollama's own API."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import openai
import pytest
import watched_streams
from hypothesis import given, settings
from hypothesis import strategies as st
from watched_streams import FakeGate

from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.parse import parse_response
from metaprobe.records.reading import UNSTATED
from metaprobe.routing.watch_stream import watch

predictor = watched_streams.predictor

WORDS = ("It", " is", " 4", ".", " Yes")
VALUES = (-0.1, -0.9, -0.4, -0.05, -1.5)
ROWS = [{word: value, " x": -3.0} for word, value in zip(WORDS, VALUES, strict=True)]


def columns(begin: int, end: int) -> dict[str, Any]:
    return {
        "tokens": list(WORDS[begin:end]),
        "token_logprobs": list(VALUES[begin:end]),
        "top_logprobs": ROWS[begin:end],
        "text_offset": [0] * (end - begin),
    }


def entries(begin: int, end: int) -> dict[str, Any]:
    """Returns entries as llama.cpp's server gives them."""
    rows = zip(WORDS[begin:end], VALUES[begin:end], ROWS[begin:end], strict=True)
    return {
        "content": [
            {"token": word, "logprob": value, "top_logprobs": [{"token": t, "logprob": v} for t, v in row.items()]}
            for word, value, row in rows
        ]
    }


def completions(cuts: Sequence[int] = (1, 2, 3, 4), given: Any = columns, ended: str | None = "stop") -> list[Any]:
    """The chunks of a text completion that is cut after these tokens."""
    places = [0, *cuts, len(WORDS)]
    base: dict[str, Any] = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    chunks: list[Any] = []
    for begin, end in zip(places, places[1:], strict=False):  # noqa: RUF007
        choice = {"index": 0, "text": "".join(WORDS[begin:end]), "logprobs": given(begin, end), "finish_reason": None}
        chunks.append({**base, "choices": [choice]})
    if ended:
        chunks.append({**base, "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": ended}]})
    return chunks


def ollama(generate: bool) -> list[Mapping[str, Any]]:
    chunks: list[Mapping[str, Any]] = []
    for place, word in enumerate(WORDS):
        own: dict[str, Any] = {"response": word} if generate else {"message": {"role": "assistant", "content": word}}
        chunks.append({"model": "m", "done": False, **own, "logprobs": entries(place, place + 1)["content"]})
    own = {"response": ""} if generate else {"message": {"role": "assistant", "content": ""}}
    return [*chunks, {"model": "m", "done": True, "done_reason": "stop", **own}]


STREAMS = {
    "columns": completions(),
    "objects": [openai.types.Completion.construct(**chunk) for chunk in completions()],
    "entries": completions(given=entries),
    "a first chunk without choices": [{"id": "cmpl-1", "model": "m", "choices": []}, *completions()],
    "Ollama chat": ollama(generate=False),
    "Ollama generate": ollama(generate=True),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stream_of_text_has_the_verdict_of_its_whole_answer(
    name: str, asynchronous: bool, predictor: QualityPredictor
) -> None:
    async def asked() -> AsyncIterator[Any]:
        for chunk in STREAMS[name]:
            yield chunk

    async def passed() -> tuple[list[Any], Any]:
        watched = watch(asked(), predictor)
        return [chunk async for chunk in watched], watched

    if asynchronous:
        chunks, watched = asyncio.run(passed())
    else:
        chunks = list(watched := watch(iter(STREAMS[name]), predictor))
    assert all(came is sent for came, sent in zip(chunks, STREAMS[name], strict=True))
    assert watched.verdict == predictor.predict(parse_response(STREAMS[name]))
    assert watched.verdict == predictor.predict(parse_response(completions()))
    assert (watched.tokens_seen, watched.reason) == (len(WORDS), "")


@pytest.mark.parametrize("name", STREAMS)
def test_the_gate_reads_a_stream_of_text_token_by_token(name: str, predictor: QualityPredictor) -> None:
    gate = FakeGate(at=3)
    chunks = list(watched := watch(iter(STREAMS[name]), predictor, gate))
    assert (watched.action, len(chunks)) == ("stop", 3 + name.startswith("a first"))
    assert gate.pushed == list(VALUES[:3])
    assert watched.verdict is not None
    assert watched.verdict.score == gate.score


@settings(max_examples=12)
@given(st.lists(st.integers(1, 4), unique=True).map(sorted))
def test_how_a_text_completion_is_cut_into_chunks_changes_nothing(cuts: list[int]) -> None:
    quality = QualityPredictor.load(on_mismatch="ignore")
    list(watched := watch(completions(cuts), quality))
    list(whole := watch(completions(()), quality))
    assert watched.verdict == whole.verdict is not None


def test_an_echoed_prompt_is_not_gated(predictor: QualityPredictor) -> None:
    stream = completions()
    stream[0]["choices"][0]["logprobs"]["token_logprobs"] = [None]
    gate = FakeGate(at=1)
    chunks = list(watched := watch(stream, predictor, gate))
    assert (watched.action, len(chunks), gate.pushed) == ("continue", len(stream), [])


def test_a_text_completion_that_was_cut_or_failed_says_so(predictor: QualityPredictor) -> None:
    list(watched := watch(completions(ended=None), predictor))
    assert watched.verdict is not None
    assert UNSTATED in watched.verdict.reason
    list(watched := watch([*completions(ended=None), {"error": {"message": "lost"}}], predictor))
    assert watched.verdict is None
    assert "error" in watched.reason


@pytest.mark.parametrize(
    "chunk",
    [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "4"}},
        {"candidates": [{"content": {"parts": [{"text": "4"}]}}], "modelVersion": "m"},
        {"token": {"id": 1, "text": "4", "logprob": -0.1, "special": False}, "generated_text": None},
    ],
    ids=["Anthropic", "Gemini", "TGI"],
)
def test_chunks_of_an_unknown_kind_are_named_with_the_way_on(
    chunk: Mapping[str, Any], predictor: QualityPredictor
) -> None:
    assert len(list(watched := watch([chunk] * 3, predictor))) == 3
    assert watched.verdict is None
    assert sorted(chunk)[0] in watched.reason
    assert "ask an endpoint that speaks OpenAI's format" in watched.reason
