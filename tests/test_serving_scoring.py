"""The server scores what is posted to it as the predictor does, and keeps its bounds of size, time and number."""

import http.client
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import serving_clients
from hypothesis import given, settings
from hypothesis import strategies as st
from served import KEY, TOKENS, Upstream, answering, completion, respond, running, stream_events
from serving_clients import LOGPROBS, TEXT, Served, serving, verdict_of
from starlette.types import Receive, Scope, Send

from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.verdict import Verdict
from metaprobe.production.http.app import create_app
from metaprobe.production.http.settings import Settings

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
upstream = serving_clients.upstream
callers_keys = serving_clients.callers_keys
served = serving_clients.served


# Scoring


def test_a_response_and_a_batch_score_as_the_predictor_does(served: Served, predictor: QualityPredictor) -> None:
    whole = completion({"model": "m", "logprobs": True})
    expected = predictor.predict(whole)
    assert served.post("/v1/score", whole).json() == msgspec.to_builtins(expected)
    verdicts = served.post("/v1/score", {"responses": [whole, LOGPROBS]}).json()["verdicts"]
    assert [v["score"] for v in verdicts] == [expected.score, predictor.predict(LOGPROBS).score]
    assert served.post("/v1/score", LOGPROBS).json()["score"] == expected.score
    assert expected.flagged is (expected.score < 0.5)


def test_a_bad_response_in_a_batch_loses_none_of_the_others(served: Served) -> None:
    named = completion({"model": "half \ud800", "logprobs": True})
    bad = [{"choices": []}, "text", None, [0.5], [], [-0.5, float("nan")], [-0.5, float("-inf")]]
    answer = served.post("/v1/score", {"responses": [LOGPROBS, *bad, named, LOGPROBS]})
    assert answer.status_code == 200
    verdicts = answer.json()["verdicts"]
    assert [v["score"] is None for v in verdicts] == [False, *[True] * len(bad), False, False]
    assert all(v["reason"] for v in verdicts[1:-1])
    assert "half \\ud800" in verdicts[-2]["reason"]  # it is another model than the checkpoint's
    assert verdicts[0] == verdicts[-1]
    alone = served.post("/v1/score", [-0.5, float("nan")])
    assert (alone.status_code, alone.json()["error"]["code"]) == (422, "unscorable")


def test_the_verdict_on_another_model_says_so(served: Served) -> None:
    answer = served.post("/v1/score", completion({"model": "other", "logprobs": True}))
    assert answer.headers["content-type"] == "application/json"
    verdict = answer.json()
    assert "response of 'other', checkpoint trained on m" in verdict["reason"]
    assert verdict["score"] is not None


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b'{"responses": [', 400, "invalid_json"),
        (b'{"responses": 7}', 400, "invalid_request"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b"[" * 40_000, 400, "invalid_json"),
        (b"{}", 422, "unscorable"),
        (b"null", 422, "unscorable"),
        (b'{"choices": [{"message": {"content": "x"}}]}', 422, "unscorable"),
        (b" " * 100_000, 400, "invalid_json"),  # as large as a body may be
        (b" " * 100_001, 413, "body_too_large"),
    ],
)
def test_a_body_that_cannot_be_scored_says_why(served: Served, body: bytes, status: int, code: str) -> None:
    answer = served.post("/v1/score", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["choices", "message", "logprobs", "content", "logprob", "model"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=30)
@given(json_values)
def test_no_json_whatsoever_breaks_scoring(served: Served, value: object) -> None:
    answer = served.post("/v1/score", {"responses": [value, LOGPROBS]})
    assert [v["score"] is None for v in answer.json()["verdicts"]][1] is False


# Bounds


def test_more_responses_than_a_batch_may_hold_are_refused_before_any_is_scored(served: Served) -> None:
    assert len(served.post("/v1/score", {"responses": [1] * 1024}).json()["verdicts"]) == 1024
    answer = served.post("/v1/score", {"responses": [1] * 1025})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "batch_too_large")
    assert "1025 responses in one request; at most 1024" in answer.json()["error"]["message"]


def test_more_tokens_than_are_scored_at_once_are_refused_with_both_numbers(
    checkpoint: Path, upstream: tuple[Upstream, str]
) -> None:
    with serving(checkpoint, upstream[1], max_scored_tokens=10) as client:
        assert client.post("/v1/score", [-0.5] * 10).status_code == 200
        for body, asked in (([-0.5] * 11, 11), ({"responses": [[-0.5] * 4] * 4}, 12)):
            answer = client.post("/v1/score", body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_tokens")
            assert f"{asked} tokens or more, and at most 10 are scored" in answer.json()["error"]["message"]
        assert verdict_of(client.chat(n=2))["score"] is not None  # of six tokens and five: each is an answer
    with serving(checkpoint, upstream[1], max_scored_tokens=5) as client:
        whole, *_, last = [client.chat(), *client.chat(stream=True)]
    assert whole.choices[0].message.content == TEXT
    for answer in (whole, last):
        assert "6 tokens to score, and at most 5" in verdict_of(answer)["reason"]


class Waits:
    """A predictor that waits, at an answer of more than ten thousand tokens, until it is told to go on."""

    input_kind = QualityPredictor.input_kind

    def __init__(self, predictor: QualityPredictor) -> None:
        self.parse = predictor.parse
        self.checkpoint, self.schema, self._predictor = predictor.checkpoint, predictor.schema, predictor
        self.waiting, self.go_on = threading.Event(), threading.Event()

    def predict(self, response: Any) -> Verdict:
        if len(response.logprobs) > 10_000:
            self.waiting.set()
            assert self.go_on.wait(timeout=20)
        return self._predictor.predict(response)


LONG = {"model": "m", "logprobs": True, "messages": [{"content": "plain"}]}


@answering
async def long_answers(scope: Scope, asked: bytes, receive: Receive, send: Send) -> None:
    """An upstream whose answers are 20,000 tokens long, more than a megabyte, whole or as one event of a stream."""
    streams = b'"stream"' in asked
    entries = [{"token": " w", "logprob": -x, "bytes": [32, 119], "top_logprobs": []} for x in (0.5, 0.25) * 10_000]
    choice = {"index": 0, "logprobs": {"content": entries}, "finish_reason": "stop"}
    said = {"role": "assistant", "content": " w" * 20_000}
    body = {"model": "m", "choices": [{**choice, "delta" if streams else "message": said}]}
    if streams:
        await stream_events(send, [body, *[b"[DONE]"] * (b'"done"' in asked)])
    else:
        await respond(send, 200, body)


@pytest.mark.parametrize("way", ["score", "batch", "chat", "stream", "done"])
def test_others_are_answered_while_a_large_body_is_scored(predictor: QualityPredictor, way: str) -> None:
    waits = Waits(predictor)
    entries = [{"token": " w", "logprob": -x, "bytes": [32, 119]} for x in (0.5, 0.25) * 10_000]
    response = {"choices": [{"message": {"content": " w" * 20_000}, "logprobs": {"content": entries}}]}
    path, body = {
        "score": ("/v1/score", response),
        "batch": ("/v1/score", {"responses": [LOGPROBS, response]}),
        "chat": ("/v1/chat/completions", LONG),
        "stream": ("/v1/chat/completions", {**LONG, "stream": True}),
        "done": ("/v1/chat/completions", {**LONG, "stream": True, "user": "done"}),
    }[way]
    with running(long_answers) as (upstream, _):
        app = create_app(
            Settings(checkpoint="c", upstream=f"{upstream}/v1"),
            predictor=waits,  # type: ignore[arg-type]
        )
        with running(app) as (url, _), ThreadPoolExecutor(1) as pool:
            try:
                large = pool.submit(Served(url).post, path, body)
                assert waits.waiting.wait(timeout=20)
                assert Served(url).post("/v1/score", LOGPROBS).json()["score"] is not None
                assert not large.done()
            finally:
                waits.go_on.set()
            answer = large.result()
    assert answer.status_code == 200
    assert re.search(rb'"score":[01][.]', answer.content)


@pytest.mark.parametrize(("number", "status", "code"), [(100, 400, "invalid_json"), (101, 413, "body_too_large")])
def test_a_body_without_an_announced_length_is_counted_as_it_comes(
    served: Served, number: int, status: int, code: str
) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(number):
            yield b" " * 1000

    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    answer = httpx.post(f"{served.url}/v1/score", content=parts(), headers=headers, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_request_that_does_not_arrive_is_not_waited_for(checkpoint: Path) -> None:
    with running(create_app(Settings(checkpoint=checkpoint, body_timeout_s=0.2))) as (url, _):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        connection.putrequest("POST", "/v1/score")
        for name, value in {"authorization": f"Bearer {KEY}", "content-type": "application/json"}.items():
            connection.putheader(name, value)
        connection.putheader("content-length", "100")
        connection.endheaders(b"[")
        assert connection.getresponse().status == 408
        connection.close()


def test_more_than_the_bound_are_answered_503_and_none_is_lost(
    checkpoint: Path, upstream: tuple[Upstream, str]
) -> None:
    told, upstream_url = upstream
    told.begin()
    with serving(checkpoint, upstream_url, max_concurrency=2) as client:
        held = [client.chat("steps", stream=True) for _ in range(2)]  # both have begun, and wait
        busy = client.post("/v1/score", LOGPROBS)
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
        assert client.get("/healthz").status_code == 200
        told.go_on.release(2 * (len(TOKENS) + 1))
        whole = [list(stream) for stream in held]
        assert client.post("/v1/score", LOGPROBS).status_code == 200
    assert all(len(chunks) == len(TOKENS) + 2 for chunks in whole)
    assert all(verdict_of(chunks[-1])["score"] is not None for chunks in whole)


def test_a_shutdown_finishes_what_is_in_flight(checkpoint: Path, upstream: tuple[Upstream, str]) -> None:
    told, upstream_url = upstream
    told.begin(1)
    with running(create_app(Settings(checkpoint=checkpoint, upstream=upstream_url))) as (url, server):
        stream = Served(url).chat("steps", stream=True)
        next(iter(stream))
        server.should_exit = True
        told.go_on.release(len(TOKENS))
        *_, last = stream
    assert verdict_of(last)["score"] is not None
