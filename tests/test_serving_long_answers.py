"""Long answers: what a busy event loop finds of a stream at once, and answers of a million tokens."""

import asyncio
import json
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.completion_json import read_chat
from metaprobe.production.http.exchange import LOOP_BYTES, SLICED_BYTES, Declined, Exchange, Passing, ScoredRequest
from metaprobe.production.http.judges import Scorer
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings
from metaprobe.production.http.streamed_answer import ScoredStream
from metaprobe.records.errors import InvalidResponse

MILLION = 1_000_000
TEN = tuple(f" w{number}" for number in range(10))
"""Tokens of an answer, again and again."""
CHAT = read_chat(b'{"model": "m", "messages": [], "stream": true}')


@cache
def predictor() -> QualityPredictor:
    return QualityPredictor.load(on_mismatch="ignore")


def entries(count: int) -> str:
    """The JSON of this many entries, in tens."""
    ten = ",".join(json.dumps({"token": word, "logprob": -0.25 - n / 8}) for n, word in enumerate(TEN))
    return ",".join([ten] * (count // len(TEN)))


def body(tokens: int, said: str) -> bytes:
    message = f'{{"role": "assistant", "content": {json.dumps(said)}}}'
    choice = (
        f'{{"index": 0, "finish_reason": "stop", "message": {message}, "logprobs": {{"content": [{entries(tokens)}]}}}}'
    )
    return f'{{"model": "m", "choices": [{choice}]}}'.encode()


def event(tokens: int, index: int = 0) -> bytes:
    """An event that brings this many tokens of one choice."""
    delta = json.dumps({"content": "".join(TEN) * (tokens // len(TEN))})
    end = "null" if tokens else '"stop"'
    logprobs = f'{{"content": [{entries(tokens)}]}}' if tokens else "null"
    choice = f'{{"index": {index}, "delta": {delta}, "finish_reason": {end}, "logprobs": {logprobs}}}'
    return f'data: {{"id": "c", "model": "m", "choices": [{choice}]}}\n\n'.encode()


class Here(Exchange):
    """An exchange whose upstream streams these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        settings = Settings(checkpoint=QualityPredictor.bundled, upstream="http://127.0.0.1:9/v1", auth=False)
        scored_request = ScoredRequest(settings, b"{}", Scorer(predictor(), Metrics()), CHAT)
        super().__init__(scored_request, metrics=Metrics(), declined=Declined())
        self.pieces, self.sent, self.turns = pieces, b"", 0

    async def send(self, message: Mapping[str, Any]) -> None:  # type: ignore[override]
        self.sent += message.get("body", b"")

    async def ask(self, body: bytes, passing: Passing, within_s: float | None) -> None:
        await passing.begin(200, [(b"content-type", b"text/event-stream")])
        for piece in self.pieces:
            await passing.feed(piece)
        await passing.end()

    def excuse(self, error: Exception) -> str:
        return ""

    async def others(self) -> None:
        """Counts the turns that another task gets."""
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    async def run_beside_others(self) -> None:
        beside = asyncio.ensure_future(self.others())
        await self.run()
        beside.cancel()


def passed(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> tuple[Here, list[tuple[int, bool]]]:
    """Passes a stream. Returns the exchange, and for each read its bytes and whether it was on the event loop."""
    reads: list[tuple[int, bool]] = []
    feed = ScoredStream.feed

    def noted(self: ScoredStream, data: bytes, **more: Any) -> bytes:
        reads.append((self.pending + len(data), threading.current_thread() is threading.main_thread()))
        return feed(self, data, **more)

    monkeypatch.setattr(ScoredStream, "feed", noted)
    exchange = Here(pieces)
    asyncio.run(exchange.run_beside_others())
    return exchange, reads


END = event(0) + b"data: [DONE]\n\n"


def test_events_that_come_at_once_are_read_in_slices_on_the_loop_with_turns_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    piece = event(10) * ((SLICED_BYTES - len(END)) // len(event(10))) + END
    assert 3 * LOOP_BYTES < len(piece) <= SLICED_BYTES
    exchange, reads = passed([event(10), piece], monkeypatch)
    sizes = [size for size, on_loop in reads if on_loop]
    assert len(sizes) > len(piece) // LOOP_BYTES
    assert max(sizes) <= LOOP_BYTES
    assert exchange.turns > len(piece) // LOOP_BYTES
    assert b'"score":0.' in exchange.sent
    assert exchange.sent.count(b" w9") == (event(10) + piece).count(b"w0 w1")


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(event(10) * (2 * SLICED_BYTES // len(event(10))), id="more than is sliced"),
        pytest.param(event(10) + event(LOOP_BYTES // 20), id="one event longer than a slice"),
        pytest.param(event(10, index=1) + event(10) * 200, id="a second choice, so that each event is read"),
    ],
)
def test_what_takes_longer_is_read_in_a_thread(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, reads = passed([event(10), piece, END], monkeypatch)
    assert max(size for size, on_loop in reads if not on_loop) > LOOP_BYTES
    assert max(size for size, on_loop in reads if on_loop) <= LOOP_BYTES
    assert exchange.sent.endswith(b"data: [DONE]\n\n")
    assert b'"metaprobe":' in exchange.sent


def test_an_answer_of_a_million_tokens_is_scored_whole_and_as_a_stream() -> None:
    said = "".join(TEN) * (MILLION // len(TEN))
    ten = [-0.25 - number / 8 for number in range(len(TEN))]
    expected = predictor().predict(ten * (MILLION // len(TEN))).score
    assert expected is not None
    assert predictor().predict(body(MILLION, said)).score == expected
    stream = ScoredStream(Scorer(predictor(), Metrics()), CHAT, max_bytes=1 << 28)
    for _ in range(100):
        stream.feed(event(MILLION // 100))
    told = stream.feed(END).rpartition(b"data: {")[2].partition(b"\n\n")[0]
    assert json.loads(b"{" + told)["metaprobe"]["score"] == pytest.approx(expected)


@pytest.mark.slow
def test_a_million_tokens_that_do_not_spell_the_answer_are_refused() -> None:
    said = "".join(TEN).upper() * (MILLION // len(TEN))
    with pytest.raises(InvalidResponse, match="do not spell the answer"):
        predictor().predict(body(MILLION, said))
