"""In the proxy a gate ends text and nothing else, and whoever reads the answer can tell that end from a natural one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import serving_clients
from chat_completions import server_sent
from served import KEY, TOKENS, Upstream, running, small_checkpoint
from serving_clients import LOGPROBS, TEXT, Served, serving, verdict_in, verdict_of

from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.app import create_app
from metaprobe.production.http.completion_json import read_chat
from metaprobe.production.http.judges import Scorer
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings
from metaprobe.production.http.streamed_answer import ScoredStream
from metaprobe.training.evidence import Evidence

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
upstream = serving_clients.upstream
callers_keys = serving_clients.callers_keys

SEEN = "".join(token for token, _ in TOKENS[:3])
"""Text that a caller sees of an answer that `FakeGate` ended."""


class FakeGate:
    """Fires after three tokens."""

    def __init__(self, action: str, model: str) -> None:
        self.action, self.model, self.note = action, model, ""
        self.tokens_seen = 0
        self.score: float | None = None
        self.fired_at: int | None = None

    def push(self, logprob: float) -> str:
        self.tokens_seen += 1
        if self.tokens_seen == 3:
            self.score, self.fired_at = 0.125, 3
        return self.action if self.fired_at else "continue"


class FakeGates:
    def __init__(self, action: str) -> None:
        self.action = action

    def start(self, *, model: str = "") -> FakeGate:
        return FakeGate(self.action, model)


@contextmanager
def gated(checkpoint: Path, upstream: tuple[Upstream, str], action: str = "stop", **more: Any) -> Iterator[Served]:
    app = create_app(Settings(checkpoint=checkpoint, upstream=upstream[1], **more), gates=FakeGates(action))
    with running(app) as (url, _):
        yield Served(url)


# The end of a gated answer


@pytest.mark.parametrize("action", ["stop", "escalate"])
def test_the_gate_ends_the_answer_and_closes_the_upstream(
    checkpoint: Path, upstream: tuple[Upstream, str], action: str
) -> None:
    told = upstream[0]
    told.begin(3)
    with gated(checkpoint, upstream, action) as served:
        *before, verdict, last = served.chat("steps", stream=True)
        assert told.closed.wait(timeout=20)
        assert told.sent == 3
        several = list(served.chat(n=2, stream=True))
        whole = served.chat()
        metrics = served.get("/metrics", authorization=f"Bearer {KEY}").text
    assert [chunk.choices[0].delta.content for chunk in before] == [token for token, _ in TOKENS[:3]]
    assert verdict_of(verdict) == verdict_of(last)
    assert (verdict_of(last)["score"], verdict_of(last)["flagged"]) == (0.125, True)
    assert "early by the gate after 3 tokens" in verdict_of(last)["reason"]
    assert verdict_of(last)["gate"] == {"action": action, "tokens": 3}
    assert len(verdict_of(several[-1])["choices"]) == 2  # two answers in one stream go on to their ends
    assert whole.choices[0].message.content == TEXT
    assert f'metaprobe_gated_total{{action="{action}"}} 1.0' in metrics


def test_the_finish_reason_tells_a_gated_end_from_a_natural_one(
    checkpoint: Path, upstream: tuple[Upstream, str]
) -> None:
    with gated(checkpoint, upstream) as served:
        reasons = [chunk.choices[0].finish_reason for chunk in served.chat(stream=True)]
    assert reasons == [None, None, None, None, "content_filter"]
    with gated(checkpoint, upstream, gate_finish_reason="a_word_of_ours") as served:
        *_, last = served.chat(stream=True)  # the client reads what its types do not list
    assert last.choices[0].finish_reason == "a_word_of_ours"


TOOL: Any = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}


def take(stream: Any, seen: list[Any]) -> Any:
    """The completion, and every event that comes before it in `seen`: where tools are offered, one of them raises."""
    for event in stream:
        seen += [event]
    return stream.get_final_completion()


@pytest.mark.parametrize("reason", ["content_filter", "length"])
@pytest.mark.parametrize("form", [{}, {"tools": [TOOL]}])
def test_the_clients_stream_helper_hands_on_the_verdict_before_it_raises(
    checkpoint: Path, upstream: tuple[Upstream, str], reason: str, form: dict[str, Any]
) -> None:
    raised = {"content_filter": openai.ContentFilterFinishReasonError, "length": openai.LengthFinishReasonError}
    messages: Any = [{"role": "user", "content": "plain"}]
    seen: list[Any] = []
    with (
        gated(checkpoint, upstream, gate_finish_reason=reason) as served,
        served.client.chat.completions.stream(model="m", messages=messages, **form) as stream,
        pytest.raises(raised[reason]),
    ):
        take(stream, seen)
    assert verdict_in(event.chunk for event in seen if event.type == "chunk")["gate"] == {"action": "stop", "tokens": 3}


def test_the_clients_stream_helper_gives_the_text_where_its_finish_reason_lets_it(
    checkpoint: Path, upstream: tuple[Upstream, str]
) -> None:
    messages: Any = [{"role": "user", "content": "plain"}]
    with (
        gated(checkpoint, upstream, gate_finish_reason="gated") as served,
        served.client.chat.completions.stream(model="m", messages=messages) as stream,
    ):
        final = stream.get_final_completion()
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == (SEEN, "gated")


def test_what_gate_and_predictor_both_say_of_an_answer_is_said_once(
    evidence: Evidence, upstream: tuple[Upstream, str], tmp_path: Path
) -> None:
    class Noting(FakeGates):
        def start(self, *, model: str = "") -> FakeGate:
            gate = super().start(model=model)
            gate.note = f"response of {model!r}, checkpoint trained on other"
            return gate

    other = small_checkpoint(tmp_path / "other", evidence, model="other").path
    with serving(other, upstream[1], gates=Noting("continue")) as client:
        *_, last = client.chat(stream=True)
    assert verdict_of(last)["reason"] == "response of 'm', checkpoint trained on other"


# Answers that are ended or not, from the events themselves


def delta(index: int = 0, **brought: Any) -> dict[str, Any]:
    """A chunk of one token."""
    logprobs = {"content": [{"token": "t", "logprob": LOGPROBS[0]}]}
    return {"model": "m", "choices": [{"index": index, "delta": brought, "logprobs": logprobs, "finish_reason": None}]}


WORD, SILENT = delta(content="word"), delta(role="assistant")
CALL = delta(tool_calls=[{"index": 0, "function": {"name": "delete", "arguments": '{"path": "/tmp/'}}])
OLDER = delta(content=None, function_call={"name": "delete", "arguments": '{"path": "/tmp/'})
END = {"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 6}}


def events(*chunks: dict[str, Any]) -> bytes:
    return b"".join(map(server_sent, [*chunks, "[DONE]"]))


def stream(predictor: QualityPredictor, request: bytes = b'{"logprobs": true, "top_logprobs": 1}') -> ScoredStream:
    """One that changes nothing of the events, and has a gate that fires after three tokens."""
    return ScoredStream(
        Scorer(predictor, Metrics(), max_tokens=10_000),
        read_chat(request),
        FakeGates("stop"),
        gated_reason="content_filter",
        max_bytes=1 << 20,
        no_logprobs="",
    )


def passed(out: bytes) -> list[dict[str, Any]]:
    """The chunks that are passed on, without those of the proxy."""
    chunks = [json.loads(event[6:]) for event in out.split(b"\n\n") if event and event != b"data: [DONE]"]
    return [chunk for chunk in chunks if "metaprobe" not in chunk]


@pytest.mark.parametrize(
    "chunks",
    [
        [CALL] * 6,
        [OLDER] * 6,
        [WORD, *[CALL] * 5],
        [WORD, WORD, CALL, WORD, WORD],  # the token that decides is the call's, and text comes after it
        [SILENT, SILENT, SILENT, CALL, CALL],  # held back until the server knew the tool's name
        [WORD, SILENT, SILENT, SILENT, OLDER, WORD],
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_an_answer_that_calls_a_tool_is_never_cut_and_has_no_score(
    predictor: QualityPredictor, chunks: list[dict[str, Any]], at_once: bool
) -> None:
    through, data = stream(predictor), events(*chunks, END)
    parts = [data] if at_once else [bytes([byte]) for byte in data]
    out = b"".join(map(through.feed, parts)) + through.end()
    assert through.action == ""
    assert passed(out) == [*chunks, END]
    verdict = json.loads(out.split(b"\n\n")[-3][6:])["metaprobe"]
    assert verdict["score"] is None
    assert "is a tool call" in verdict["reason"]


def test_what_the_gate_says_of_tokens_without_text_waits_for_text(predictor: QualityPredictor) -> None:
    through = stream(predictor)
    out = through.feed(events(WORD, WORD, SILENT, SILENT, WORD, WORD, END))
    assert through.action == "stop"
    assert passed(out) == [WORD, WORD, SILENT, SILENT, WORD]
    assert b'"tokens":3}' in out


def test_the_thinking_is_never_ended_and_the_answer_after_it_by_its_own_tokens(predictor: QualityPredictor) -> None:
    through, thought = stream(predictor), delta(reasoning_content="hm")
    assert passed(through.feed(events(*[thought] * 6))) == [thought] * 6
    out = through.feed(events(*[WORD] * 6, END))
    assert passed(out) == [WORD] * 3
    assert b'"tokens":3}' in out


def test_answers_that_nobody_asked_for_in_one_stream_do_not_end_each_other(predictor: QualityPredictor) -> None:
    through, other = stream(predictor), delta(1, content="other")
    chunks = [WORD, other, WORD, other, WORD, other, END]
    assert passed(through.feed(events(*chunks)) + through.end()) == chunks
    assert through.action == ""


def test_nothing_of_the_upstream_comes_after_the_cut(predictor: QualityPredictor) -> None:
    through = stream(predictor)
    out = through.feed(events(*[WORD] * 6, END, USAGE))
    assert passed(out) == [WORD] * 3
    assert out.endswith(b"data: [DONE]\n\n")
    assert out.count(b"[DONE]") == 1
    assert through.end() == through.cut(502, "upstream_cut", "closed") == b""
