"""The proxy passes every event of a stream, and where there is no score it passes the reason."""

import json
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import watched_streams
from chat_completions import server_sent
from hypothesis import given
from hypothesis import strategies as st
from serving_clients import LOGPROBS
from watched_streams import FakeGate

from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.completion_json import read_chat
from metaprobe.production.http.judges import Scorer
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.streamed_answer import ScoredStream
from metaprobe.records.answer_stream import AnswerStream

predictor = watched_streams.predictor

ALL = b'{"logprobs": true, "top_logprobs": 1}'
"""A request of which nothing is changed."""
NONE = b"{}"
"""A request for no log-probabilities, which are then hidden."""
TWO = b'data: {"choices" :[{"index":0,"delta":{}},{"index":1,"delta":{}}]}\r\n\r\n'
"""A chunk of two answers: from here on each chunk is read, where those of one plain answer are outlined."""
DONE = b"data: [DONE]\n\n"
SECRET = "nobody elses business"


def chunk(logprob: float | None = None, finish_reason: str | None = None, index: object = 0) -> dict[str, Any]:
    logprobs = None if logprob is None else {"content": [{"token": "t", "logprob": logprob}]}
    delta = {} if logprob is None else {"content": "t"}
    return {"choices": [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}]}


END = chunk(finish_reason="stop")
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 6}}


ANSWER = b"".join(server_sent(chunk(logprob)) for logprob in LOGPROBS)

Started = Callable[..., ScoredStream]


@pytest.fixture
def started(predictor: QualityPredictor) -> Started:
    def start(request: bytes = ALL, *, gates: Any | None = None, most: int = 1 << 20, why: str = "") -> ScoredStream:
        scorer = Scorer(predictor, Metrics(), max_tokens=10_000)
        question = read_chat(request)
        return ScoredStream(scorer, question, gates, gated_reason="length", max_bytes=most, no_logprobs=why)

    return start


def said(out: bytes) -> list[dict[str, Any]]:
    """The chunks that the proxy added, which have the verdict."""
    held = [json.loads(part[6:]) for part in out.split(b"\n\n") if b'"metaprobe"' in part]
    assert all(each["object"] == "chat.completion.chunk" for each in held)
    return held


def verdict_of(out: bytes) -> dict[str, Any]:
    """The one verdict that was given."""
    (last,) = said(out)
    verdict: dict[str, Any] = last["metaprobe"]
    return verdict


# Streams that pass


@pytest.mark.parametrize("first", [b"", TWO])
@pytest.mark.parametrize(("request_", "logprob"), [(ALL, "-0.50"), (NONE, None)])
def test_events_pass_byte_for_byte_where_there_is_nothing_to_hide(
    started: Started, request_: bytes, logprob: str | None, first: bytes
) -> None:
    held = f'{{"content" : [{{"token":"t","logprob":{logprob}}}]}}' if logprob else "null"
    written = (
        ": a comment\r\n\r\nid: 7\r\n"
        f'data:  {{"choices" :[{{ "index":0, "delta":{{"content":"é"}},"logprobs":{held}}}]}}\r\n\r\n'
        'event: x\ndata: {"choices": [ ], "x" : 1e400}\n\ndata: {"x" :1}\r\n\r\n'
    ).encode()
    assert started(request_).feed(first + written) == first + written


def test_the_verdicts_chunk_names_the_answer_as_its_chunks_do(started: Started, predictor: QualityPredictor) -> None:
    known = {"id": "c-9", "created": 7, "model": "m", "system_fingerprint": "f", "service_tier": "flex"}
    through = started()
    out = b"".join(through.feed(server_sent({**known, **chunk(logprob, index=1)})) for logprob in LOGPROBS)
    (last,) = said(out + through.feed(server_sent(chunk(finish_reason="stop", index=1)) + DONE))
    assert {key: last[key] for key in known} == known
    assert last["choices"] == [{"index": 1, "delta": {}, "logprobs": None, "finish_reason": None}]
    assert last["metaprobe"]["score"] == pytest.approx(predictor.predict(LOGPROBS).score)


@pytest.mark.parametrize(
    ("rest", "end"),
    [
        (b"", b""),
        (b"\n", b"\n"),
        (b": bye", b": bye\n\n"),
        (b"event: x\nid: 7", b"event: x\nid: 7\n\n"),
        (b'data: {"choices": []}\r\n', b'data: {"choices": []}\r\n\n\n'),
    ],
)
def test_what_comes_after_the_last_whole_event_passes_and_the_verdict_is_an_event_of_its_own(
    started: Started, rest: bytes, end: bytes
) -> None:
    through = started()
    before = through.feed(ANSWER + server_sent(END) + rest)
    out = through.end()
    assert before == ANSWER + server_sent(END)
    assert out.startswith(end + b"data: {")
    assert verdict_of(out)["score"] is not None
    assert b"[DONE]" not in out  # it is not made up


def test_a_done_without_its_empty_line_comes_last_and_once(started: Started) -> None:
    through = started()
    assert through.feed(ANSWER + server_sent(END) + b"data: [DONE]") == ANSWER + server_sent(END)
    out = through.end()
    assert out.endswith(b"}\n\n" + DONE)
    assert verdict_of(out)["score"] is not None


@pytest.mark.parametrize("rest", [b"da", b'data: {"choices": [', b"data: [DO"])
def test_the_middle_of_an_event_is_an_error_and_no_end(started: Started, rest: bytes) -> None:
    through = started()
    through.feed(ANSWER + server_sent(END) + rest)
    last = json.loads(through.end().removeprefix(b"data: "))
    assert last["error"]["code"] == "upstream_cut"
    assert (last["error"]["type"], last["metaprobe"]["score"]) == ("upstream_error", None)
    assert through.cut(502, "upstream_cut", "again") == b""  # it is said once


# When the verdict comes


def test_a_usage_in_the_middle_of_the_answer_does_not_bring_the_verdict_forward(started: Started) -> None:
    """The stream has vLLM's `continuous_usage_stats`, and a usage while one of two answers goes on."""
    for middle in (server_sent(USAGE), server_sent(END) + server_sent(chunk(-0.5, index=1)) + server_sent(USAGE)):
        through = started()
        assert not said(through.feed(ANSWER + middle))
        ends = server_sent(END) + server_sent(chunk(finish_reason="stop", index=1))
        assert verdict_of(through.feed(ends + server_sent(USAGE) + DONE))["score"] is not None


def test_the_usage_comes_after_the_verdict_where_there_is_none_to_wait_for(started: Started) -> None:
    out = started(why="the upstream refused").feed(server_sent(USAGE) + DONE)
    assert verdict_of(out)["reason"] == "the upstream refused"
    assert out.endswith(server_sent(USAGE) + DONE)


def test_a_stream_without_an_answer_says_that_it_holds_none(started: Started) -> None:
    verdict = verdict_of(started().feed(DONE))
    assert (verdict["score"], verdict["reason"]) == (None, "the upstream's stream holds no answer")


# Streams that cannot be scored


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (b"7", "is not an object"),
        (b"{", "is not JSON"),
        ({"error": {"message": SECRET}}, "sent an error instead of the rest"),
        ({"choices": [7]}, "not what a chunk should be"),
        (chunk(-0.5, index=-1), "not what a chunk should be"),
        (chunk(-0.5, index="0"), "not what a chunk should be"),
    ],
)
def test_what_is_no_chunk_passes_the_gate_lets_go_and_the_first_reason_counts(
    started: Started, wrong: object, reason: str
) -> None:
    through = started(gates=FakeGate(3))
    data = server_sent(wrong) + ANSWER + server_sent(b"[") + server_sent(END)
    out = through.feed(data + DONE)
    assert through.action == ""
    assert out.startswith(data)
    assert out.endswith(DONE)
    verdict = verdict_of(out)
    assert verdict["score"] is None
    assert reason in verdict["reason"]


def test_an_answer_without_an_index_is_the_first(started: Started) -> None:
    chunks = [chunk(-0.5), chunk(finish_reason="stop")]
    for each in chunks:
        del each["choices"][0]["index"]
    (last,) = said(started().feed(b"".join(map(server_sent, chunks)) + DONE))
    assert last["metaprobe"]["score"] is not None
    assert last["choices"][0]["index"] == 0


def test_logprobs_that_were_not_asked_for_are_hidden_where_there_is_no_verdict_too(started: Started) -> None:
    through = started(NONE)
    second = {"choices": [*chunk()["choices"], *chunk(-0.5, index=1)["choices"]]}
    for each in (chunk(-0.5, index=5000), chunk(-0.5), second):  # the first cannot be read
        out = through.feed(server_sent(each))
        choices = json.loads(out.removeprefix(b"data: "))["choices"]
        assert [choice["logprobs"] for choice in choices] == [None] * len(choices)


def test_a_fault_of_our_own_while_reading_is_logged_without_what_was_said(
    started: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(AnswerStream, "add", broken)
    out = started().feed(ANSWER + DONE)
    assert out.startswith(ANSWER)
    assert "not what a chunk should be" in verdict_of(out)["reason"]
    assert "reading a chunk failed: RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_a_chunk_of_the_upstream_that_is_wrong_is_no_fault_of_ours(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    started().feed(server_sent({"choices": [SECRET]}) + DONE)
    assert not caplog.records


def test_an_event_that_is_too_long_passes_as_it_comes_and_nothing_is_scored(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.production.http.streamed_answer.MAX_EVENT_BYTES", 100)
    through, long = started(gates=FakeGate(3)), b"data: " + b"x" * 94
    assert through.feed(long) == b""  # as long as an event may be
    assert through.feed(b"x") == long + b"x"
    out = through.feed(b"x\n\n" + ANSWER + server_sent(END) + DONE)
    assert out.startswith(b"x\n\n" + ANSWER + server_sent(END))
    assert "too long to be read" in verdict_of(out)["reason"]


@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_of_as_many_bytes_as_are_read_is_scored_and_a_longer_one_not(started: Started, more: int) -> None:
    whole = ANSWER + server_sent(END)
    out = (through := started(most=len(whole) - more)).feed(whole)
    out += through.end()
    assert (verdict_of(out)["score"] is None) is bool(more)
    assert verdict_of(out)["reason"] == (f"the answer is longer than {len(whole) - 1} bytes" if more else "")


# Read all together, or chunk by chunk


@cache
def bundled() -> QualityPredictor:
    return QualityPredictor.load(on_mismatch="ignore")


@st.composite
def odd_streams(draw: st.DrawFn) -> bytes:
    """Chunks of an answer, some of which are of no plain one, or not there, or spaced in another way."""
    made = [chunk(draw(st.floats(-9, 0, width=32))) for _ in range(draw(st.integers(0, 6)))]
    odd = [
        chunk(-0.5, index=1), {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]}, USAGE, {"x": 1},
        {"choices": [{"index": 0, "delta": {"refusal": "no"}}]}, {"choices": [{"delta": {"reasoning": "hm"}}]},
        {"choices": None}, {"choices": [chunk()["choices"][0]] * 2}, b"7",
    ]  # fmt: skip
    for _ in range(draw(st.integers(0, 2))):
        made.insert(draw(st.integers(0, len(made))), draw(st.sampled_from(odd)))
    if draw(st.booleans()):
        made.append(END)
    written = [server_sent(each) for each in made]
    if draw(st.booleans()):
        written = [each.replace(b'": ', b'":') for each in written]
    return b"".join(written) + DONE * draw(st.booleans())


@given(odd_streams(), st.sampled_from([ALL, NONE, b'{"logprobs": true}']))
def test_an_answer_that_is_read_at_its_end_gets_the_verdict_that_reading_each_chunk_gives(
    whole: bytes, request_: bytes
) -> None:
    def passed(closely: bool) -> tuple[Any, Any]:
        scorer = Scorer(bundled(), Metrics())
        through = ScoredStream(
            scorer, read_chat(request_), None, gated_reason="length", max_bytes=1 << 20, no_logprobs=""
        )
        if closely:
            through._read_chunk_by_chunk()
        out = through.feed(whole)
        out += through.end()
        held = [json.loads(part[6:]) for part in out.split(b"\n\n") if part[:7] == b"data: {"]
        for each in held:
            each.pop("created", None)
        return held, out.count(b"\n\n")

    assert passed(closely=False) == passed(closely=True)
