"""The steps of Python that a sound response takes to its verdict do not grow with its tokens."""

import json
import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

import pytest
from chat_completions import server_sent
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from metaprobe import QualityPredictor
from metaprobe.production.http.completion_json import read_chat
from metaprobe.production.http.judges import Scorer
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.streamed_answer import ScoredStream
from metaprobe.routing.watch_stream import watch

FEW, MANY = 40, 240
"""Numbers of tokens that are compared: both above the few tokens whose alternatives are looked at."""
MOST_A_TOKEN = 20
"""Calls of Python that a chunk of one token may take in a watched stream or the proxy."""
WORDS = ("The", " dog", " barks", " at", " night", ",", " and", " <b>", " [1]", "\n")
Body = dict[str, Any]


@cache
def predictor() -> QualityPredictor:
    return QualityPredictor.load(on_mismatch="ignore")


def entry(number: int, spell: Callable[[str], str] = str) -> Body:
    word, logprob = WORDS[number % len(WORDS)], -0.25 - number * 7919 % 1009 / 500
    drawn = {"token": spell(word), "logprob": logprob, "bytes": list(word.encode())}
    return drawn | {"top_logprobs": [drawn, {"token": "x", "logprob": -9.0, "bytes": [120]}]}


def completion(count: int, spell: Callable[[str], str] = str) -> Body:
    entries = [entry(number, spell) for number in range(count)]
    message = {"role": "assistant", "content": "".join(WORDS[number % len(WORDS)] for number in range(count))}
    choice = {"index": 0, "message": message, "logprobs": {"content": entries}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


def chunk(delta: Body, entries: list[Body] | None, end: str | None = None) -> Body:
    choice = {"index": 0, "delta": delta, "logprobs": entries and {"content": entries}, "finish_reason": end}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


def chunks(count: int, tokens_a_chunk: int = 1) -> list[Body]:
    entries = [entry(number) for number in range(count)]
    parts = [entries[i : i + tokens_a_chunk] for i in range(0, count, tokens_a_chunk)]
    said = [chunk({"content": "".join(one["token"] for one in part)}, part) for part in parts]
    return [chunk({"role": "assistant", "content": ""}, None), *said, chunk({}, None, "stop")]


def calls(act: Callable[[], object]) -> int:
    """Counts the calls of Python functions; those of the second time, since the first one fills caches."""
    act()
    count = 0

    def seen(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


def byte_level(word: str) -> str:
    return word.replace(" ", "Ġ").replace("\n", "Ċ")


FORMS: dict[str, Callable[[int], object]] = {
    "list": lambda count: [entry(number)["logprob"] for number in range(count)],
    "dictionary": completion,
    "body": lambda count: json.dumps(completion(count)).encode(),
    "openai object": lambda count: ChatCompletion.model_validate(completion(count)),
    "byte-level BPE": lambda count: completion(count, byte_level),
    "SentencePiece": lambda count: completion(count, lambda word: word.replace(" ", "▁")),
    "body of another spelling": lambda count: json.dumps(completion(count, byte_level)),
    "tokens by their bytes alone": lambda count: completion(count, lambda word: "\ufffd"),
    "one chunk": lambda count: chunks(count, count),
    "without its last mark": lambda count: shortened(completion(count)),
}


def shortened(whole: Body) -> Body:
    whole["choices"][0]["message"]["content"] = whole["choices"][0]["message"]["content"].rstrip() + " it said."
    whole["choices"][0]["logprobs"]["content"] += [entry(0) | {"token": " it"}, entry(1) | {"token": " said"}]
    return whole


@pytest.mark.parametrize("form", FORMS)
def test_the_calls_of_a_verdict_do_not_grow_with_the_tokens(form: str) -> None:
    few, many = (FORMS[form](count) for count in (FEW, MANY))
    assert predictor().predict(many).score is not None
    assert calls(lambda: predictor().predict(few)) >= calls(lambda: predictor().predict(many))


def watched(stream: list[Any]) -> None:
    list(answer := watch(stream, predictor()))
    assert answer.verdict is not None


def test_the_calls_of_a_watched_stream_grow_with_its_chunks_alone() -> None:
    whole = [calls(lambda count=count: watched(chunks(count, count))) for count in (FEW, MANY)]  # type: ignore[misc]
    assert whole[0] - calls(lambda: chunks(FEW, FEW)) >= whole[1] - calls(lambda: chunks(MANY, MANY))
    for make in (chunks, lambda count: [ChatCompletionChunk.model_validate(one) for one in chunks(count)]):
        few, many = make(FEW), make(MANY)
        assert calls(lambda many=many: watched(many)) - calls(lambda few=few: watched(few)) <= (MANY - FEW) * (
            MOST_A_TOKEN + 10 * (make is not chunks)
        )


@pytest.mark.parametrize("request_", [b'{"logprobs": true, "top_logprobs": 1}', b"{}"])
def test_the_calls_of_the_proxy_grow_with_its_events_alone(request_: bytes) -> None:
    scorer = Scorer(predictor(), Metrics())

    def passed(stream: list[bytes]) -> None:
        through = ScoredStream(scorer, read_chat(request_), None, max_bytes=1 << 22)
        out = b"".join(map(through.feed, stream)) + through.end()
        assert b'"score":0.' in out

    def sent(count: int, tokens_a_chunk: int) -> list[bytes]:
        events = [server_sent(one) for one in chunks(count, tokens_a_chunk)]
        return [*events, b"data: [DONE]\n\n"]

    one_few, one_many, few, many = sent(FEW, FEW), sent(MANY, MANY), sent(FEW, 1), sent(MANY, 1)
    assert calls(lambda: passed(one_few)) >= calls(lambda: passed(one_many))
    assert calls(lambda: passed(many)) - calls(lambda: passed(few)) <= (MANY - FEW) * MOST_A_TOKEN
