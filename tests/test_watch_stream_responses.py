"""Answers of the Responses API are scored whole and streamed, and the gate ends their streams too."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
import watched_streams
from served import TOKENS, running
from serving_clients import LOGPROBS, TEXT
from watched_streams import FakeGate

from metaprobe.probes.quality import QualityPredictor
from metaprobe.routing.watch_stream import WatchedStream, watch

predictor = watched_streams.predictor


# The Responses API, whose events come from a server of the same kind


EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"id": "r-1", "object": "response", "model": "m", "output": []}},
    *(
        {
            "type": "response.output_text.delta",
            "output_index": 0,
            "content_index": 0,
            "item_id": "i",
            "delta": token,
            "logprobs": [{"token": token, "logprob": logprob, "top_logprobs": [{"token": "t", "logprob": logprob}]}],
        }
        for token, logprob in TOKENS
    ),
]
PART = {
    "type": "output_text",
    "text": TEXT,
    "annotations": [],
    "logprobs": [{"token": t, "logprob": p, "bytes": [], "top_logprobs": []} for t, p in TOKENS],
}
MESSAGE = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [PART]}
COMPLETED = {
    "type": "response.completed",
    "response": {"id": "r-1", "object": "response", "model": "m", "status": "completed", "output": [MESSAGE]},
}


async def responses_server(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    if scope["type"] == "lifespan":
        return
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message.get("more_body"):
            break
    streamed = bool(json.loads(body).get("stream"))
    kind = b"text/event-stream" if streamed else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    parts = [{**event, "sequence_number": n} for n, event in enumerate([*EVENTS, COMPLETED])]
    sent = [f"event: {part['type']}\ndata: {json.dumps(part)}\n\n" for part in parts]
    whole = "".join(sent) if streamed else json.dumps(COMPLETED["response"])
    await send({"type": "http.response.body", "body": whole.encode()})


@pytest.fixture(scope="module")
def responses() -> Iterator[Callable[..., Any]]:
    with (
        running(responses_server, lifespan="off") as (url, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=20) as client,
    ):
        yield lambda **more: client.responses.create(
            model="m", input="q", include=["message.output_text.logprobs"], **more
        )


def test_the_responses_api_is_scored_whole_and_streamed(
    responses: Callable[..., Any], predictor: QualityPredictor
) -> None:
    events = list(watched := watch(responses(stream=True), predictor, FakeGate(99)))
    assert [event.type for event in events] == [event["type"] for event in [*EVENTS, COMPLETED]]
    assert watched.verdict == predictor.predict(responses()) == predictor.predict(LOGPROBS)
    assert watched.tokens_seen == len(TOKENS)
    assert watched.scored is not None
    assert (watched.scored.response_id, watched.scored.model) == ("r-1", "m")


def test_the_gate_ends_a_stream_of_the_responses_api(
    responses: Callable[..., Any], predictor: QualityPredictor
) -> None:
    gate = FakeGate(2, "escalate")
    events = list(watched := watch(responses(stream=True), predictor, gate))
    assert isinstance(watched, WatchedStream)
    assert len(events) == 3
    assert gate.pushed == list(LOGPROBS[:2])
    assert (watched.action, gate.started_for) == ("escalate", ["m"])


def test_an_error_in_the_middle_of_a_stream_is_no_answer(predictor: QualityPredictor) -> None:
    entry = {"token": "x", "logprob": -0.1, "top_logprobs": []}
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [entry]}}]},
        {"error": {"message": "overloaded"}},
    ]
    assert list(watched := watch(chunks, predictor)) == chunks
    assert watched.verdict is None
    assert "the error 'overloaded'" in watched.reason


def test_the_last_tokens_of_a_finished_answer_stop_nothing(predictor: QualityPredictor) -> None:
    entry = {"token": "x", "logprob": -0.1, "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": "xxx"}, "logprobs": {"content": [entry] * 3}, "finish_reason": "stop"}
    list(watched := watch([{"choices": [choice]}], predictor, FakeGate(2)))
    assert watched.action == "continue"
    assert watched.verdict is not None
    assert "stopped" not in watched.verdict.reason


CALL = {"type": "function_call", "id": "f", "call_id": "c", "name": "delete", "arguments": '{"path": "/tmp/a"}'}


@pytest.mark.parametrize(
    "begun",
    [
        {"type": "response.output_item.added", "output_index": 0, "item": CALL},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "f", "delta": "{"},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "a_kind_of_tomorrow"}},
    ],
)
@pytest.mark.parametrize("text_before", [0, 2])
def test_a_stream_of_events_that_calls_a_tool_is_never_cut(
    predictor: QualityPredictor, begun: dict[str, Any], text_before: int
) -> None:
    begins, texts = EVENTS[:1], EVENTS[1:]
    ends = {**COMPLETED, "response": {**COMPLETED["response"], "output": [MESSAGE, CALL]}}  # type: ignore[dict-item]
    events = [*begins, *texts[:text_before], begun, *texts[text_before:], ends]
    passed = list(watched := watch(events, predictor, FakeGate(3)))
    assert passed == events
    assert (watched.action, watched.verdict) == ("continue", None)
    assert "is a tool call" in watched.reason
