"""The upstream's other endpoints: passed on as they came, and scored where they have log-probabilities."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import serving_clients
from chat_completions import server_sent
from served import KEY, TOKENS, answering, respond, running
from serving_clients import LOGPROBS, TEXT, Served, serving
from starlette.types import Receive, Scope, Send

from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.feedback import read_feedback
from metaprobe.production.http.openapi import ALL_ADDRESSES, openapi

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
callers_keys = serving_clients.callers_keys

ENTRIES = [{"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []} for token, logprob in TOKENS]


def text_chunks(body: dict[str, Any]) -> list[bytes]:
    chunks = []
    for token, logprob in TOKENS:
        columns = {"tokens": [token], "token_logprobs": [logprob], "top_logprobs": None, "text_offset": [0]}
        choice = {"index": 0, "text": token, "logprobs": columns if "logprobs" in body else None, "finish_reason": None}
        chunks.append({"id": "t", "object": "text_completion", "created": 7, "model": "m", "choices": [choice]})
    end = {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    chunks.append({"id": "t", "object": "text_completion", "created": 7, "model": "m", "choices": [end]})
    return [*(json.dumps(chunk).encode() for chunk in chunks), b"[DONE]"]


def whole_text(body: dict[str, Any]) -> dict[str, Any]:
    columns = {"tokens": [token for token, _ in TOKENS], "token_logprobs": LOGPROBS, "top_logprobs": None}
    logprobs = columns if "logprobs" in body else None
    choice = {"index": 0, "text": TEXT, "logprobs": logprobs, "finish_reason": "stop"}
    return {"id": "t", "object": "text_completion", "created": 7, "model": "m", "choices": [choice], "x": 1e-30}


def response(body: dict[str, Any], *, whole: bool = True) -> dict[str, Any]:
    part = {"type": "output_text", "text": TEXT, "annotations": [], "logprobs": ENTRIES if body.get("include") else []}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    known = {"id": "r", "object": "response", "created_at": 7, "model": "m", "tools": [], "tool_choice": "auto"}
    status = "completed" if whole else "in_progress"
    return {**known, "status": status, "output": [message] if whole else [], "parallel_tool_calls": True}


def response_events(body: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"type": "response.created", "response": response(body, whole=False)}]
    place = {"item_id": "m", "output_index": 0, "content_index": 0}
    for entry in ENTRIES:
        logprobs = [entry] if body.get("include") else []
        events.append({"type": "response.output_text.delta", **place, "delta": entry["token"], "logprobs": logprobs})
    events.append({"type": "response.completed", "response": response(body)})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


class OtherEndpoints:
    """An upstream with text completions, responses and embeddings; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []

    @answering
    async def __call__(self, scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        self.asked.append((scope["path"], raw))
        body, path = json.loads(raw), scope["path"]
        if body.get("model") == "absent":
            await respond(send, 404, {"error": {"message": "no such model"}})
        elif path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
            await respond(send, 200, {"object": "list", "data": data, "model": "e"})
        elif not body.get("stream"):
            await respond(send, 200, whole_text(body) if path == "/v1/completions" else response(body))
        else:
            if path == "/v1/completions":
                events = list(map(server_sent, text_chunks(body)))
            else:
                told = response_events(body)
                events = [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in told]
            cut = body["model"] == "cut"
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            sent = b"".join(events[:2] if cut else events)
            await send({"type": "http.response.body", "body": sent, "more_body": cut})
            if cut:
                raise ConnectionError("as planned")


@pytest.fixture(scope="module")
def other() -> Iterator[tuple[OtherEndpoints, str]]:
    told = OtherEndpoints()
    with running(told) as (url, _):
        yield told, f"{url}/v1"


@pytest.fixture(scope="module")
def served(checkpoint: Any, other: tuple[OtherEndpoints, str]) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        with serving(checkpoint, other[1]) as client:
            yield client


def test_a_text_completion_whole_or_streamed_has_the_verdict_on_its_tokens(
    served: Served, predictor: QualityPredictor
) -> None:
    expected = predictor.predict(LOGPROBS).score
    asked: dict[str, Any] = {"model": "m", "prompt": "say", "logprobs": 1}
    whole = served.client.completions.create(**asked)
    assert whole.choices[0].text == TEXT
    assert whole.model_extra["metaprobe"]["score"] == pytest.approx(expected)
    *chunks, last = served.client.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert last.choices[0].text == ""
    assert last.model_extra["metaprobe"]["score"] == pytest.approx(expected)


def test_a_response_whole_or_streamed_has_the_verdict_on_its_tokens(
    served: Served, predictor: QualityPredictor
) -> None:
    expected = predictor.predict(LOGPROBS).score
    asked: dict[str, Any] = {"model": "m", "input": "say", "include": ["message.output_text.logprobs"]}
    whole = served.client.responses.create(**asked)
    assert whole.output_text == TEXT
    assert whole.model_extra["metaprobe"]["score"] == pytest.approx(expected)
    *events, last = served.client.responses.create(**asked, stream=True)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
    assert last.type == "response.completed"
    assert last.response.model_extra["metaprobe"]["score"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("path", "asked"), [("/v1/completions", {"prompt": "say"}), ("/v1/responses", {"input": "say"})]
)
def test_without_logprobs_the_answer_passes_with_the_reason_and_none_are_asked_for(
    served: Served, other: tuple[OtherEndpoints, str], path: str, asked: dict[str, Any]
) -> None:
    sent = json.dumps({"model": "m", **asked}).encode() + b"  "
    answer = served.post(path, sent).json()
    assert other[0].asked[-1] == (path, sent)  # byte for byte
    assert answer["metaprobe"]["score"] is None
    assert "log-probabilities" in answer["metaprobe"]["reason"]


def test_embeddings_pass_as_they_come(served: Served, other: tuple[OtherEndpoints, str]) -> None:
    answer = served.post("/v1/embeddings", {"model": "e", "input": "x"})
    assert answer.json()["data"][0]["embedding"] == [0.5]
    assert "metaprobe" not in answer.json()
    assert other[0].asked[-1][0] == "/v1/embeddings"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/embeddings"])
def test_an_error_of_the_upstream_keeps_its_status_and_words(served: Served, path: str) -> None:
    answer = served.post(path, {"model": "absent"})
    assert (answer.status_code, answer.json()) == (404, {"error": {"message": "no such model"}})


@pytest.mark.parametrize(("path", "asked"), [("/v1/completions", {"logprobs": 1}), ("/v1/responses", {})])
def test_a_stream_that_is_cut_ends_with_an_error_and_never_looks_whole(
    served: Served, path: str, asked: dict[str, Any]
) -> None:
    content = served.post(path, {"model": "cut", "stream": True, **asked}).content
    assert b"[DONE]" not in content
    assert b"response.completed" not in content
    last = json.loads(content.rpartition(b"data: ")[2])
    assert last["error"]["code"] == "upstream_cut"
    assert last["metaprobe"]["score"] is None


def test_what_can_be_asked_is_described_in_openapi_and_in_the_message_of_a_wrong_address(served: Served) -> None:
    described = served.get("/openapi.json", authorization=f"Bearer {KEY}").json()
    named = {f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods}
    assert named == set(ALL_ADDRESSES.split(", "))
    schema = described["components"]["schemas"]["Verdict"]
    assert set(served.post("/v1/score", LOGPROBS).json()) == set(schema["properties"]) == set(schema["required"])


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        ({"request_id": "a", "label": 1}, True),
        ({"request_id": "a", "label": "right", "who": "ada", "time": 1.7e9}, True),
        ({"feedback": [{"request_id": "a", "label": None}, {"request_id": "b", "label": False}]}, True),
        ({"request_id": "a"}, False),
        ({"label": 1}, False),
        ({"request_id": 7, "label": 1}, False),
        ({"request_id": "a", "label": [1]}, False),
        ({"request_id": "a", "label": 1, "time": "yesterday"}, False),
        ({"feedback": {"request_id": "a", "label": 1}}, False),
    ],
)
def test_labels_are_taken_as_openapi_describes_them(body: dict[str, Any], taken: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    described = openapi()
    asked = described["paths"]["/v1/feedback"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    whole = {**asked, "components": described["components"]}
    assert jsonschema.Draft202012Validator(whole).is_valid(body) is taken
    try:
        read_feedback(json.dumps(body).encode(), max_labels=10)
    except Refusal:
        assert not taken
    else:
        assert taken
