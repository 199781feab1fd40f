"""The server, asked by the real OpenAI client over a real connection, with an upstream that does as it is told."""

import asyncio
import http.client
import json
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import uvicorn
from click.testing import CliRunner
from faulty_server import FaultyServer
from hypothesis import given, settings
from hypothesis import strategies as st
from served import KEY, TOKENS, Upstream, chunks, completion, running, small_checkpoint

from metaprobe.probes.quality import QualityPredictor
from metaprobe.serve_cli import serve
from metaprobe.serving.app import create_app
from metaprobe.serving.run import serve as run_server
from metaprobe.serving.run import server_config
from metaprobe.serving.settings import Settings, SettingsError
from metaprobe.serving.sse import EventSplitter, data_of, with_data
from metaprobe.serving.wire import asked, hide
from metaprobe.training.methods import Evidence

SECRET = "the-prompt-and-the-answer-are-nobody-elses-business"
LOGPROBS = [logprob for _, logprob in TOKENS]
TEXT = "".join(token for token, _ in TOKENS)


@pytest.fixture(scope="module")
def checkpoint(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("checkpoints") / "quality", evidence).path


@pytest.fixture(scope="module")
def predictor(checkpoint: Path) -> QualityPredictor:
    return QualityPredictor.load(checkpoint)


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[Upstream, str]]:
    told = Upstream()
    with running(told) as (url, _):
        yield told, f"{url}/v1"


class Served:
    """A running server, and clients of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": KEY, "max_retries": 0, "timeout": 20}
        self.client = openai.OpenAI(**options)
        self.options = options

    def chat(self, said: str = "plain", **more: Any) -> Any:
        return self.client.chat.completions.create(model="m", messages=[{"role": "user", "content": said}], **more)

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"authorization": f"Bearer {KEY}", "content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return httpx.post(f"{self.url}{path}", content=content, headers=given, timeout=20, trust_env=False)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=20, trust_env=False)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", f"another-key-of-this-test, {KEY}")
    monkeypatch.delenv("METAPROBE_UPSTREAM_KEY", raising=False)


@pytest.fixture(scope="module")
def served(checkpoint: Path, upstream: tuple[Upstream, str]) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", f"another-key-of-this-test, {KEY}")
        app = create_app(Settings(checkpoint=checkpoint, upstream=upstream[1], max_body_bytes=100_000))
    with running(app) as (url, _):
        yield Served(url)


def verdict_of(answer: Any) -> dict[str, Any]:
    return answer.model_extra["metaprobe"]


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
    batch = [LOGPROBS, {"choices": []}, "text", None, [0.5], [], LOGPROBS]
    verdicts = served.post("/v1/score", {"responses": batch}).json()["verdicts"]
    assert [v["score"] is None for v in verdicts] == [False, True, True, True, True, True, False]
    assert all(v["reason"] for v in verdicts[1:-1])
    assert verdicts[0] == verdicts[-1]


def test_the_verdict_on_another_model_says_so(served: Served) -> None:
    verdict = served.post("/v1/score", completion({"model": "other", "logprobs": True})).json()
    assert "response of other, checkpoint trained on m" in verdict["reason"]
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


@settings(max_examples=60, deadline=None)
@given(json_values)
def test_no_json_whatsoever_breaks_scoring(served: Served, value: object) -> None:
    answer = served.post("/v1/score", {"responses": [value, LOGPROBS]})
    if answer.status_code == 400:  # NaN and infinities, which Python writes and JSON does not have
        assert answer.json()["error"]["code"] == "invalid_json"
    else:
        assert [v["score"] is None for v in answer.json()["verdicts"]][1] is False


# The proxy


def test_an_answer_carries_its_verdict_and_no_logprobs_that_were_not_asked_for(
    served: Served, upstream: tuple[Upstream, str], predictor: QualityPredictor
) -> None:
    answer = served.chat()
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].logprobs is None
    assert upstream[0].bodies[-1]["logprobs"] is True
    expected = predictor.predict(LOGPROBS)
    verdict = verdict_of(answer)
    assert verdict["score"] == pytest.approx(expected.score)
    assert set(verdict) == {"score", "heads", "critical", "flagged", "in_support", "reason", "checkpoint"}
    assert verdict["checkpoint"] == predictor.checkpoint.digest


def test_the_upstream_answer_passes_unchanged_but_for_the_verdict(served: Served) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "plain"}], "logprobs": True, "top_logprobs": 2}
    answer = served.post("/v1/chat/completions", request)
    body = answer.json()
    del body["metaprobe"]
    assert body == completion(request)
    assert answer.headers["x-request-id"] == "up-1"
    assert answer.headers["x-ratelimit-limit-requests"] == "9"
    assert "set-cookie" not in answer.headers


def test_the_request_passes_unchanged_but_for_the_logprobs(served: Served, upstream: tuple[Upstream, str]) -> None:
    request = {
        "model": "m",
        "messages": [{"role": "user", "content": "plain"}],
        "temperature": 0.3,
        "x_vendor": {"deep": [1, None, 12345678901234567890123]},
    }
    served.post("/v1/chat/completions", request)
    assert upstream[0].bodies[-1] == request | {"logprobs": True, "top_logprobs": 1}
    served.post("/v1/chat/completions", request | {"logprobs": True, "top_logprobs": 4})
    assert upstream[0].bodies[-1] == request | {"logprobs": True, "top_logprobs": 4}


def test_every_choice_has_a_verdict_of_its_own(served: Served, predictor: QualityPredictor) -> None:
    expected = [predictor.predict(LOGPROBS[: len(LOGPROBS) - i]).score for i in range(3)]
    whole = verdict_of(served.chat(n=3))
    assert [v["score"] for v in whole["choices"]] == pytest.approx(expected)
    assert whole["score"] == pytest.approx(expected[0])
    *_, last = served.chat(n=3, stream=True)
    assert verdict_of(last) == whole


def test_a_stream_ends_with_the_verdict_that_the_whole_answer_has(served: Served) -> None:
    whole = verdict_of(served.chat())
    for said in ("plain", "comments", "torn"):
        *before, last = served.chat(said, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in before) == TEXT
        assert all(chunk.choices[0].logprobs is None for chunk in before)
        assert [chunk.choices[0].finish_reason for chunk in before].count("stop") == 1
        assert verdict_of(last) == whole
        assert (last.id, last.choices[0].delta.content) == ("c-1", None)


def test_the_events_of_a_stream_pass_unchanged_where_logprobs_were_asked_for(served: Served) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "plain"}], "logprobs": True, "stream": True}
    events = served.post("/v1/chat/completions", request).content.split(b"\n\n")
    assert [json.loads(event[6:]) for event in events[:-3]] == list(chunks(request))
    assert b'"metaprobe"' in events[-3]
    assert events[-2:] == [b"data: [DONE]", b""]


def test_the_clients_own_stream_helper_and_the_async_client_read_it(served: Served) -> None:
    messages: Any = [{"role": "user", "content": "plain"}]
    with served.client.chat.completions.stream(model="m", messages=messages) as stream:
        final = stream.get_final_completion()
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == (TEXT, "stop")

    async def main() -> list[Any]:
        async with openai.AsyncOpenAI(**served.options) as client:
            whole = await client.chat.completions.create(model="m", messages=messages)
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            return [whole, *[chunk async for chunk in stream]]

    whole, *_, last = asyncio.run(main())
    assert verdict_of(whole) == verdict_of(last)
    assert verdict_of(whole)["score"] is not None


def test_chunks_pass_as_they_come(served: Served, upstream: tuple[Upstream, str]) -> None:
    told, _ = upstream
    told.begin()
    told.go_on.release()
    seen = 0
    for chunk in served.chat("steps", stream=True):
        seen += 1
        if "metaprobe" in (chunk.model_extra or {}):
            break
        assert told.sent == seen  # the next one is not even sent before this one has arrived
        told.go_on.release()
    assert seen == len(TOKENS) + 2


def test_a_caller_who_leaves_ends_the_upstream(served: Served, upstream: tuple[Upstream, str]) -> None:
    told, _ = upstream
    told.begin()
    told.go_on.release()
    stream = served.chat("steps", stream=True)
    next(iter(stream))
    stream.close()
    assert told.closed.wait(timeout=20)


def test_an_upstream_that_refuses_logprobs_still_answers(served: Served) -> None:
    answer = served.chat("refuses-logprobs")
    assert answer.choices[0].message.content == TEXT
    assert verdict_of(answer)["score"] is None
    assert "refused to give log-probabilities (status 400)" in verdict_of(answer)["reason"]
    *_, last = served.chat("refuses-logprobs", stream=True)
    assert "refused" in verdict_of(last)["reason"]
    with pytest.raises(openai.BadRequestError, match="logprobs are not supported"):
        served.chat("refuses-logprobs", logprobs=True)


def test_a_redirect_is_not_followed_and_not_passed_on(served: Served) -> None:
    with pytest.raises(openai.InternalServerError, match="redirects") as found:
        served.chat("redirect")
    assert found.value.status_code == 502
    assert "location" not in found.value.response.headers


def test_an_answer_that_is_no_json_passes_as_it_came_and_says_that_it_has_no_verdict(served: Served) -> None:
    answer = served.post("/v1/chat/completions", {"model": "m", "messages": [{"content": "nan"}]})
    assert answer.content == b'{"choices": [], "x": NaN}'
    assert answer.headers["metaprobe-reason"] == "the upstream's answer is not a JSON object"


def test_a_stream_without_done_gets_a_verdict_and_no_done(served: Served) -> None:
    request = {"model": "m", "messages": [{"content": "no-done"}], "stream": True}
    content = served.post("/v1/chat/completions", request).content
    assert json.loads(content.split(b"data: ")[-1])["metaprobe"]["score"] is not None
    assert b"[DONE]" not in content


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"7", b'{"model"', b"\xff", b'{"a":' * 15_000],
)
def test_a_malformed_request_never_reaches_the_upstream(
    served: Served, upstream: tuple[Upstream, str], body: bytes
) -> None:
    before = len(upstream[0].bodies)
    answer = served.post("/v1/chat/completions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert len(upstream[0].bodies) == before


# What goes wrong upstream


@pytest.fixture(scope="module")
def faulty(checkpoint: Path) -> Iterator[Served]:
    with FaultyServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        app = create_app(Settings(checkpoint=checkpoint, upstream=server.base_url, timeout_s=0.5))
        with running(app) as (url, _):
            yield Served(url)


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("400", 400, "bad temperature"),
        ("401", 401, "Incorrect API key provided: None"),  # ours is not handed on
        ("404", 404, "no such model"),
        ("429", 429, "slow down"),
        ("quota", 429, "you have spent all"),
        ("500", 500, "out of memory"),
        ("503", 503, "overloaded"),
        ("reset", 502, "before its answer was whole"),
        ("cut", 502, "before its answer was whole"),
        ("silent", 504, "did not go on within 0.5 s"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_upstream_keeps_its_status_and_words(
    faulty: Served, fault: str, status: int, said: str, stream: bool
) -> None:
    if fault == "cut" and stream:
        pytest.skip("a stream that is cut has begun with 200: see below")
    with pytest.raises(openai.APIStatusError, match=said) as found:
        faulty.chat(f"a:{fault}", stream=stream)
    assert found.value.status_code == status
    if fault == "429":
        assert found.value.response.headers["retry-after"] == "0.25"


@pytest.mark.parametrize(("fault", "reason"), [("no-logprobs", "no log-prob"), ("bad-logprobs", ""), ("empty", "")])
def test_an_answer_that_cannot_be_scored_passes_with_the_reason(faulty: Served, fault: str, reason: str) -> None:
    whole = faulty.chat(f"a:{fault}")
    *_, last = faulty.chat(f"b:{fault}", stream=True)
    for verdict in (verdict_of(whole), verdict_of(last)):
        assert verdict["score"] is None
        assert verdict["reason"]
        assert reason in verdict["reason"]


def test_what_is_no_json_passes_untouched(faulty: Served) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "a:html"}]}
    assert faulty.post("/v1/chat/completions", request).content == b"<html>Welcome to the proxy</html>"
    request["messages"][0]["content"] = "a:malformed"  # type: ignore[index]
    assert faulty.post("/v1/chat/completions", request).content.startswith(b'{"id": "x"')


def test_a_cut_stream_raises_in_the_client_and_never_looks_finished(faulty: Served) -> None:
    seen = []
    with pytest.raises(openai.APIError, match="before its answer was whole"):
        seen += list(faulty.chat("a:cut", stream=True))
    request = {"model": "m", "messages": [{"role": "user", "content": "b:cut"}], "stream": True}
    content = faulty.post("/v1/chat/completions", request).content
    assert b"[DONE]" not in content
    last = json.loads(content.split(b"data: ")[-1])
    assert last["metaprobe"]["score"] is None
    assert last["error"]["code"] == "upstream_cut"


def test_a_stream_that_ends_early_has_no_score(faulty: Served) -> None:
    *_, last = faulty.chat("a:ends-early", stream=True)
    assert verdict_of(last)["score"] is None
    assert "ended before the answer did" in verdict_of(last)["reason"]
    assert last.choices[0].finish_reason is None


def test_a_chunk_that_is_no_json_passes_and_there_is_no_score(faulty: Served) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "a:malformed"}], "stream": True}
    events = faulty.post("/v1/chat/completions", request).content.split(b"\n\n")
    assert b'data: {"choices": [{"del' in events
    assert json.loads(events[-3][6:])["metaprobe"]["reason"] == "a chunk of the upstream's stream is not JSON"
    assert events[-2] == b"data: [DONE]"


def test_an_upstream_that_is_not_there_is_said_to_be(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        upstream = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with running(create_app(Settings(checkpoint=checkpoint, upstream=upstream))) as (url, _):
        answer = Served(url).post("/v1/chat/completions", {"model": "m", "messages": []})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
    (why,) = [r.getMessage() for r in caplog.records if r.name == "metaprobe.serving.proxy"]
    assert why.removeprefix("the upstream cannot be reached: ")
    assert upstream not in answer.text


# The gate


class FakeGate:
    """Fires after three tokens."""

    def __init__(self, action: str, model: str) -> None:
        self.action, self.model, self.note = action, model, ""
        self.tokens_seen = 0
        self.score: float | None = None
        self.fired_at: int | None = None

    def push(self, logprob: float, top: Any = None) -> str:
        assert logprob == LOGPROBS[self.tokens_seen]
        self.tokens_seen += 1
        if self.tokens_seen == 3:
            self.score, self.fired_at = 0.125, 3
        return self.action if self.fired_at else "continue"


class FakeGates:
    def __init__(self, action: str) -> None:
        self.action = action

    def start(self, *, model: str = "") -> FakeGate:
        return FakeGate(self.action, model)


@pytest.mark.parametrize("action", ["stop", "escalate"])
def test_the_gate_ends_the_answer_and_closes_the_upstream(
    checkpoint: Path, upstream: tuple[Upstream, str], action: str
) -> None:
    told, upstream_url = upstream
    told.begin()
    app = create_app(Settings(checkpoint=checkpoint, upstream=upstream_url), gates=FakeGates(action))
    with running(app) as (url, _):
        for _ in range(3):
            told.go_on.release()
        *before, last = Served(url).chat("steps", stream=True)
        assert told.closed.wait(timeout=20)
        assert told.sent == 3
        several = list(Served(url).chat(n=2, stream=True))
        whole = Served(url).chat()
        metrics = Served(url).get("/metrics", authorization=f"Bearer {KEY}").text
    assert [chunk.choices[0].delta.content for chunk in before] == [token for token, _ in TOKENS[:3]]
    assert last.choices[0].finish_reason == "stop"
    verdict = verdict_of(last)
    assert (verdict["score"], verdict["flagged"]) == (0.125, True)
    assert "early by the gate after 3 tokens" in verdict["reason"]
    assert verdict["gate"] == {"action": action, "tokens": 3}
    assert len(verdict_of(several[-1])["choices"]) == 2  # two answers in one stream go on to their ends
    assert whole.choices[0].message.content == TEXT
    assert f'metaprobe_gated_total{{action="{action}"}} 1.0' in metrics


def test_what_gate_and_predictor_both_say_of_an_answer_is_said_once(
    evidence: Evidence, upstream: tuple[Upstream, str], tmp_path: Path
) -> None:
    class Noting(FakeGates):
        def start(self, *, model: str = "") -> FakeGate:
            gate = super().start(model=model)
            gate.note = f"response of {model}, checkpoint trained on other"
            return gate

    other = small_checkpoint(tmp_path / "other", evidence, model="other").path
    app = create_app(Settings(checkpoint=other, upstream=upstream[1]), gates=Noting("continue"))
    with running(app) as (url, _):
        *_, last = Served(url).chat(stream=True)
    assert verdict_of(last)["reason"] == "response of m, checkpoint trained on other"


# Keys, limits, metrics, logs


@pytest.mark.parametrize("path", ["/v1/score", "/v1/chat/completions", "/metrics", "/elsewhere"])
def test_nothing_but_health_answers_without_a_key(served: Served, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}, {"x-metaprobe-key": ""}):
        method = "GET" if path == "/metrics" else "POST"
        answer = httpx.request(method, served.url + path, headers=headers, trust_env=False)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    health = served.get("/healthz")
    assert health.status_code == 200
    assert len(health.json()["checkpoint"]) == 64


def test_the_key_for_this_server_is_never_handed_on_and_the_callers_is(
    served: Served, upstream: tuple[Upstream, str]
) -> None:
    request = {"model": "m", "messages": [{"content": "plain"}]}
    served.post("/v1/chat/completions", request, cookie="c=1", x_forwarded_for="1.2.3.4", openai_project="p")
    seen = upstream[0].headers[-1]
    assert not {"authorization", "cookie", "x-forwarded-for", "x-metaprobe-key"} & set(seen)
    assert seen["openai-project"] == "p"
    served.post("/v1/chat/completions", request, authorization="Bearer callers-own", x_metaprobe_key=KEY)
    seen = upstream[0].headers[-1]
    assert seen["authorization"] == "Bearer callers-own"
    assert KEY not in str(seen)
    served.post("/v1/chat/completions", request, x_metaprobe_key=KEY)  # and the same key as `Authorization`
    assert KEY not in str(upstream[0].headers[-1])


def test_the_models_are_the_upstreams_and_need_a_key(served: Served, upstream: tuple[Upstream, str]) -> None:
    assert [model.id for model in served.client.models.list()] == ["m"]
    assert KEY not in str(upstream[0].headers[-1])
    assert served.get("/v1/models").status_code == 401


def test_a_header_named_beforehand_reaches_the_upstream(checkpoint: Path, upstream: tuple[Upstream, str]) -> None:
    app = create_app(Settings(checkpoint=checkpoint, upstream=upstream[1], forward_headers=("X-Tenant",)))
    with running(app) as (url, _):
        Served(url).post("/v1/chat/completions", {"model": "m", "messages": [{"content": "plain"}]}, x_tenant="t1")
    assert upstream[0].headers[-1]["x-tenant"] == "t1"


@pytest.mark.parametrize("stream", [False, True])
def test_headers_that_are_not_ascii_cost_no_answer(served: Served, stream: bool) -> None:
    request = {"model": "m", "stream": stream, "messages": [{"content": "odd-header"}]}
    answer = httpx.post(
        f"{served.url}/v1/chat/completions",
        json=request,
        headers=[(b"authorization", f"Bearer {KEY}".encode()), (b"user-agent", "café".encode())],
        timeout=20,
        trust_env=False,
    )
    assert answer.status_code == 200
    assert b'"metaprobe"' in answer.content
    if not stream:
        [given] = [value for name, value in answer.headers.raw if name == b"openai-organization"]
        assert given.decode() == "Müller – GmbH"


def test_more_responses_than_a_batch_may_hold_are_refused_before_any_is_scored(served: Served) -> None:
    answer = served.post("/v1/score", {"responses": [1] * 1025})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "batch_too_large")


def test_without_keys_the_server_does_not_start(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METAPROBE_API_KEY")
    with pytest.raises(SettingsError, match="no key for callers"):
        create_app(Settings(checkpoint=checkpoint))


def test_a_stream_that_stops_in_the_middle_of_an_event_is_cut_and_not_scored(served: Served) -> None:
    with pytest.raises(openai.APIError, match="middle of an event"):
        list(served.chat("half", stream=True))


def test_a_last_event_without_its_empty_line_does_not_swallow_the_verdict(served: Served) -> None:
    *_, last = served.chat("no-blank-line", stream=True, logprobs=True)
    assert last.model_extra["metaprobe"]["score"] is not None


def test_the_upstreams_key_stands_in_for_the_callers(
    checkpoint: Path, upstream: tuple[Upstream, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_UPSTREAM_KEY", "sk-upstream")
    app = create_app(Settings(checkpoint=checkpoint, upstream=upstream[1], auth=False))
    with running(app) as (url, _):
        Served(url).chat()
        other = Served(url).post("/v1/score", LOGPROBS, host="evil.example")
        assert (other.status_code, other.json()["error"]["code"]) == (403, "bad_host")
        form = Served(url).post("/v1/score", LOGPROBS, content_type="text/plain")
        assert form.status_code == 415
    assert upstream[0].headers[-1]["authorization"] == "Bearer sk-upstream"


def test_a_body_without_an_announced_length_is_counted_as_it_comes(served: Served) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * 1000

    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    answer = httpx.post(f"{served.url}/v1/score", content=parts(), headers=headers, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


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
    app = create_app(Settings(checkpoint=checkpoint, upstream=upstream_url, max_concurrency=2))
    with running(app) as (url, _):
        client = Served(url)
        held = [client.chat("steps", stream=True) for _ in range(2)]  # both have begun, and wait
        busy = client.post("/v1/score", LOGPROBS)
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
        assert client.get("/healthz").status_code == 200
        told.go_on.release(2 * (len(TOKENS) + 1))
        whole = [list(stream) for stream in held]
        assert client.post("/v1/score", LOGPROBS).status_code == 200
    assert all(len(chunks) == len(TOKENS) + 2 for chunks in whole)
    assert all(verdict_of(chunks[-1])["score"] is not None for chunks in whole)


def test_sixty_requests_at_once_each_get_their_own_answer(served: Served) -> None:
    def ask(number: int) -> tuple[int, Any]:
        return number, served.chat(n=1 + number % 4, stream=number % 2 == 0)

    with ThreadPoolExecutor(16) as pool:
        for number, answer in pool.map(ask, range(60)):
            verdict = verdict_of(answer) if number % 2 else verdict_of(list(answer)[-1])
            assert len(verdict.get("choices", [verdict])) == 1 + number % 4
            assert verdict["score"] is not None


def test_a_shutdown_finishes_what_is_in_flight(checkpoint: Path, upstream: tuple[Upstream, str]) -> None:
    told, upstream_url = upstream
    told.begin()
    with running(create_app(Settings(checkpoint=checkpoint, upstream=upstream_url))) as (url, server):
        told.go_on.release()
        stream = Served(url).chat("steps", stream=True)
        next(iter(stream))
        server.should_exit = True
        told.go_on.release(len(TOKENS))
        *_, last = stream
    assert verdict_of(last)["score"] is not None


def test_neither_logs_nor_metrics_hold_a_word_of_prompt_or_answer(
    faulty: Served, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "metaprobe")
    caplog.set_level(logging.DEBUG, "uvicorn")
    for fault in ("ok", "malformed", "bad-logprobs", "400"):
        faulty.post("/v1/chat/completions", {"model": SECRET, "messages": [{"content": f"{SECRET}:{fault}"}]})
        faulty.post(
            "/v1/chat/completions", {"model": SECRET, "messages": [{"content": f"{SECRET}:{fault}"}], "stream": True}
        )
    served.post("/v1/score", {"responses": [SECRET, {"choices": [{"logprobs": {"content": [SECRET]}}]}]})
    served.post(f"/{SECRET}?q={SECRET}", {}, x_request_id=f"{SECRET} with spaces")
    counts = faulty.get("/metrics", authorization=f"Bearer {KEY}").text
    # The access log, which has addresses as callers wrote them, is off (below); pytest itself switches it on again.
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name != "uvicorn.access")
    assert SECRET not in logged
    assert SECRET not in counts
    assert "/v1/chat/completions 200" in logged
    assert 'metaprobe_requests_total{endpoint="/v1/chat/completions",status="200"}' in counts
    for name in ("upstream_seconds", "added_seconds", "score", "flagged", "abstained", "errors"):
        assert f"metaprobe_{name}" in counts


class Breaks:
    """A predictor with a fault."""

    def __init__(self, predictor: QualityPredictor) -> None:
        self.checkpoint, self.schema = predictor.checkpoint, predictor.schema

    def predict(self, response: object) -> None:
        raise RuntimeError(SECRET)


def test_a_fault_of_our_own_costs_the_verdict_and_not_the_answer(
    predictor: QualityPredictor, upstream: tuple[Upstream, str], caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(Settings(checkpoint=Path("x"), upstream=upstream[1]), predictor=Breaks(predictor))  # type: ignore[arg-type]
    with running(app) as (url, _):
        answer = Served(url).chat()
        *_, last = Served(url).chat(stream=True)
    assert answer.choices[0].message.content == TEXT
    assert verdict_of(answer) == verdict_of(last)
    assert "scoring failed (RuntimeError)" in verdict_of(answer)["reason"]
    assert "scoring failed: RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_request_ids_come_back(served: Served) -> None:
    assert served.post("/v1/score", LOGPROBS, x_request_id="mine-1").headers["metaprobe-request-id"] == "mine-1"
    made = {served.post("/v1/score", LOGPROBS).headers["metaprobe-request-id"] for _ in range(2)}
    assert len(made) == 2


# Settings


def test_the_program_serves_as_its_options_say(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Settings] = []
    monkeypatch.setattr("metaprobe.serving.run.serve", started.append)
    options = (
        f"--checkpoint {checkpoint} --upstream http://u/v1 --no-auth --port 0 --max-body 9 --timeout 3 --workers 2 "
        "--max-answer 7 --forward-header x-tenant --top-logprobs 3"
    )
    assert CliRunner().invoke(serve, options.split()).exit_code == 0
    [found] = started
    assert (found.checkpoint, found.upstream, found.auth, found.port) == (str(checkpoint), "http://u/v1", False, 0)
    assert (found.max_body_bytes, found.timeout_s, found.workers) == (9, 3.0, 2)
    assert (found.max_answer_bytes, found.forward_headers, found.top_logprobs) == (7, ("x-tenant",), 3)
    config = server_config(found, log_config=None)
    assert config.access_log is False
    refused = CliRunner().invoke(serve, ["--checkpoint", str(checkpoint), "--no-auth", "--host", "0.0.0.0"])
    assert isinstance(refused.exception, SettingsError)


def test_a_port_that_is_taken_is_named_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"port {port}.*another --port"):
            run_server(Settings(checkpoint=Path("none"), auth=False, port=port))


def test_ctrl_c_is_a_good_end(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: uvicorn.Server) -> None:
        raise KeyboardInterrupt  # as uvicorn does after an orderly end

    monkeypatch.setattr(uvicorn.Server, "run", interrupted)
    monkeypatch.setattr("metaprobe.serving.run.server_config", partial(server_config, log_config=None))
    run_server(Settings(checkpoint=checkpoint, auth=False, port=0))


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/score", 405), ("POST", "/v1/completions", 404)])
def test_an_address_that_is_not_there_is_answered_with_those_that_are(
    served: Served, method: str, path: str, status: int
) -> None:
    answer = httpx.request(
        method, f"{served.url}{path}", headers={"authorization": f"Bearer {KEY}"}, timeout=20, trust_env=False
    )
    assert answer.status_code == status
    assert "POST /v1/score" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"auth": False, "host": "0.0.0.0"}, "bind to 127.0.0.1"),
        ({"upstream": "ftp://x/v1"}, "is not a base URL"),
        ({"upstream": "http://user:secret@x/v1"}, "holds a user or password"),
        ({"upstream": "http://x:port/v1"}, "cannot be read"),
        ({"upstream": "http://x/v1?key=secret"}, "is not a base URL"),
        ({"gate": Path("g")}, "no upstream is given"),
        ({"forward_headers": ("Authorization",)}, "not one that may be handed on"),
        ({"forward_headers": ("a b",)}, "not one that may be handed on"),
        ({"timeout_s": 0.0}, "expected more than 0"),
        ({"gate_stop": 1.0}, "between 0 and 1"),
    ],
)
def test_settings_that_are_not_safe_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as found:
        Settings(checkpoint=Path("c"), **wrong)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    ("keys", "said"), [("", "no key for callers"), ("short", "fewer than 16"), ("é" * 20, "ASCII")]
)
def test_keys_that_protect_nothing_are_refused(
    predictor: QualityPredictor, monkeypatch: pytest.MonkeyPatch, keys: str, said: str
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", keys)
    settings = Settings(checkpoint=Path("c"))
    with pytest.raises(SettingsError, match=said):
        settings.api_keys()
    assert repr(keys) not in repr(settings) or not keys


# The pieces


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b": c", b"\r"])), st.data())
def test_events_are_the_same_however_the_bytes_are_torn(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    at = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    torn, at_once = EventSplitter(), EventSplitter()
    pieces = [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]
    events = [event for piece in pieces for event in torn.feed(piece)]
    assert b"".join(events) + torn.rest() == whole
    assert b"".join(at_once.feed(whole)) + at_once.rest() == whole


def test_an_event_keeps_its_other_lines_when_its_data_change() -> None:
    event = b"event: x\r\nid: 7\r\ndata: {}\r\n\r\n"
    assert data_of(event) == b"{}"
    assert with_data(event, b"[]") == b"event: x\nid: 7\ndata: [] \n\n".replace(b" \n", b"\n")
    assert data_of(b": comment\n\n") == b""
    assert data_of(b"data: a\ndata: b\n\n") == b"a\nb"


def test_alternatives_asked_for_the_predictor_alone_are_hidden() -> None:
    question = asked(b'{"logprobs": true, "n": 1}', top_logprobs=5)
    assert json.loads(question.sent) == {"logprobs": True, "n": 1, "top_logprobs": 5}
    answer = b'{"choices":[{"logprobs":{"content":[{"logprob":-0.10,"top_logprobs":[{"logprob":-0.1}]}]}}],"z":1e400}'
    assert (
        hide(answer, question)
        == b'{"choices":[{"logprobs":{"content":[{"logprob":-0.10,"top_logprobs":[]}]}}],"z":1e400}'
    )
    assert not asked(b'{"logprobs": true, "top_logprobs": 2}', top_logprobs=5).changed


def test_a_choice_that_is_none_does_not_keep_the_logprobs_of_the_others() -> None:
    answer = b'{"choices":[null,{"logprobs":{"content":[{"logprob":-0.1}]}}]}'
    assert hide(answer, asked(b"{}", top_logprobs=0)) == b'{"choices":[null,{"logprobs":null}]}'
