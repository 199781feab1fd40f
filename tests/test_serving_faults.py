"""Whatever goes wrong upstream or in the server, the caller gets status, words or answer, and no log a word of it."""

import asyncio
import json
import logging
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import httpx
import openai
import pytest
import serving_clients
from faulty_server import FaultyServer
from served import KEY, Upstream, answering, completion, respond, running
from serving_clients import TEXT, Served, serving, verdict_in, verdict_of
from starlette.types import Message, Receive, Scope, Send

from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.app import create_app
from metaprobe.production.http.guard import Guard
from metaprobe.production.http.keys import Keys
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.settings import Settings

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
upstream = serving_clients.upstream
callers_keys = serving_clients.callers_keys
served = serving_clients.served

SECRET = "the-prompt-and-the-answer-are-nobody-elses-business"


# Faults upstream


@contextmanager
def before_faults(checkpoint: Path, timeout_s: float) -> Iterator[Served]:
    with FaultyServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        with serving(checkpoint, server.base_url, timeout_s=timeout_s) as client:
            yield client


@pytest.fixture(scope="module")
def faulty(checkpoint: Path) -> Iterator[Served]:
    with before_faults(checkpoint, 60) as served:
        yield served


@pytest.mark.parametrize(
    ("fault", "status", "message"),
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
    ],
)
def test_an_error_of_the_upstream_keeps_its_status_and_words(
    faulty: Served, fault: str, status: int, message: str
) -> None:
    for stream in (False, True) if fault != "cut" else (False,):  # a stream that is cut has begun with 200: see below
        with pytest.raises(openai.APIStatusError, match=message) as caught:
            faulty.chat(f"a:{fault}", stream=stream)
        assert caught.value.status_code == status
        if fault == "429":
            assert caught.value.response.headers["retry-after"] == "0.25"


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_goes_silent_is_a_time_out(checkpoint: Path, stream: bool) -> None:
    with before_faults(checkpoint, 0.1) as impatient:
        with pytest.raises(openai.APIStatusError, match=r"did not go on within 0\.1 s") as caught:
            impatient.chat("a:silent", stream=stream)
        assert caught.value.status_code == 504


@pytest.mark.parametrize(("fault", "reason"), [("no-logprobs", "no log-prob"), ("bad-logprobs", ""), ("empty", "")])
def test_an_answer_that_cannot_be_scored_passes_with_the_reason(faulty: Served, fault: str, reason: str) -> None:
    whole = faulty.chat(f"a:{fault}")
    for verdict in (verdict_of(whole), verdict_in(faulty.chat(f"b:{fault}", stream=True))):
        assert verdict["score"] is None
        assert verdict["reason"]
        assert reason in verdict["reason"]


def test_log_probabilities_that_the_upstream_drops_are_its_fault_in_the_reason_the_log_and_the_metrics(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with before_faults(checkpoint, 60) as asked:
        verdicts = [
            verdict_of(asked.chat("c:no-logprobs", "forgetful")),
            verdict_in(asked.chat("d:no-logprobs", "forgetful", stream=True)),
        ]
        counted = asked.get("/metrics", authorization=f"Bearer {KEY}").text
    for verdict in verdicts:
        assert "the upstream was asked for logprobs and sent none" in verdict["reason"]
        assert "logprobs=True" not in verdict["reason"]
    assert 'metaprobe_errors_total{code="logprobs_dropped"} 2.0' in counted
    said = [record for record in caplog.messages if "asked for logprobs of forgetful" in record]
    assert len(said) == 1


def test_what_is_no_json_passes_untouched(faulty: Served) -> None:
    assert faulty.ask("a:html").content == b"<html>Welcome to the proxy</html>"
    assert faulty.ask("a:malformed").content.startswith(b'{"id": "x"')


def test_a_cut_stream_raises_in_the_client_and_never_looks_finished(faulty: Served) -> None:
    seen = []
    with pytest.raises(openai.APIError, match="before its answer was whole"):
        seen += list(faulty.chat("a:cut", stream=True))
    content = faulty.ask("b:cut", {"stream": True}).content
    assert b"[DONE]" not in content
    last = json.loads(content.split(b"data: ")[-1])
    assert last["metaprobe"]["score"] is None
    assert last["error"]["code"] == "upstream_cut"
    counted = faulty.get("/metrics", authorization=f"Bearer {KEY}").text
    assert 'metaprobe_errors_total{code="upstream_cut"}' in counted  # though it began with 200


def test_a_stream_that_ends_early_has_no_score(faulty: Served) -> None:
    *_, last = faulty.chat("a:ends-early", stream=True)
    assert verdict_of(last)["score"] is None
    assert "ended before the answer did" in verdict_of(last)["reason"]
    assert last.choices[0].finish_reason is None


def test_an_upstream_that_is_not_there_is_said_to_be(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        upstream = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with serving(checkpoint, upstream) as client:
        answer = client.post("/v1/chat/completions", {"model": "m", "messages": []})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
    (why,) = [r.getMessage() for r in caplog.records if r.name == "metaprobe.production.http.upstream"]
    assert why.removeprefix("the upstream cannot be reached: ")
    assert upstream not in answer.text


@contextmanager
def before_bytes(checkpoint: Path, answer: bytes) -> Iterator[Served]:
    """A server whose upstream gives these bytes for an answer, whatever it is asked, and closes the connection."""

    class Give(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                name, _, value = line.lower().partition(b": ")
                length = int(value) if name == b"content-length" else length
            self.rfile.read(length)
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Give) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        base = f"http://127.0.0.1:{server.server_address[1]}/v1"
        try:
            with serving(checkpoint, base) as client:
                yield client
        finally:
            server.shutdown()
            thread.join()


def in_bytes(body: bytes, *, status: str = "200 OK", kind: str = "application/json", header: bytes = b"") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n".encode()
    return head + header + b"\r\n" + body


@pytest.mark.parametrize(
    ("status", "path"), [("600 What", "chat/completions"), ("999 No", "embeddings"), ("101 Switching", "embeddings")]
)
def test_a_status_that_is_none_is_the_upstreams_fault(checkpoint: Path, status: str, path: str) -> None:
    with before_bytes(checkpoint, in_bytes(b"{}", status=status)) as client:
        answer = client.post(f"/v1/{path}", {"model": "m", "messages": [], "input": "a"})
    assert answer.status_code == 502
    assert answer.json()["error"]["code"].startswith("upstream")


def test_a_header_that_none_may_be_costs_no_answer(checkpoint: Path) -> None:
    header = b"openai-odd: a\x01b\r\nopenai-processing-ms: 7\r\n"
    with before_bytes(checkpoint, in_bytes(b"{}", header=header)) as client:
        answer = client.post("/v1/embeddings", {"model": "m", "input": "a"})
    assert answer.status_code == 200
    assert "openai-odd" not in answer.headers
    assert answer.headers["openai-processing-ms"] == "7"


def test_an_error_that_repeats_the_upstreams_key_does_not_give_it_away(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_UPSTREAM_KEY", "the-key-of-the-upstream")
    error = b'{"error": {"message": "no such key: the-key-of-the-upstream"}}'
    with before_bytes(checkpoint, in_bytes(error, status="401 Unauthorized")) as client:
        answer = client.post("/v1/chat/completions", {"model": "m", "messages": []})
    assert answer.status_code == 401
    assert answer.json()["error"]["message"] == "no such key: ***"


RESPONSE = (
    rb'event: response.completed\ndata: {"type": "response.completed", "response": {"id": "r", "object": "response",'
    rb' "status": "completed", "model": "m", "odd": %s, "output": []}}\n\n'
)
TEXT_CHUNK = (
    rb'data: {"id": "t", "object": "text_completion", "model": %s, "choices": [{"index": 0, "text": "a", "logprobs":'
    rb' null, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize(
    ("path", "event", "odd"),
    [
        *(("responses", RESPONSE, odd) for odd in (rb'"a\ud83d"', b"NaN", b"0.10000000000000000001", b"9" * 30)),
        *(("completions", TEXT_CHUNK, odd) for odd in (rb'"a\ud83d"', b"1e400")),
    ],
)
def test_what_python_reads_and_msgspec_does_not_write_costs_no_stream(
    checkpoint: Path, path: str, event: bytes, odd: bytes
) -> None:
    events = (event % odd).replace(rb"\n", b"\n")
    with before_bytes(checkpoint, in_bytes(events, kind="text/event-stream")) as client:
        content = client.post(f"/v1/{path}", {"model": "m", "prompt": "a", "input": "a", "stream": True}).content
    assert content.count(b'"metaprobe":') == 1
    assert odd in content


# An upstream that does not end


class Endless:
    """Answers with `status` and a body that never ends, but to a request for no log-probabilities in good order."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.closed = threading.Event()

    @answering
    async def __call__(self, scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        asked = json.loads(raw)
        if self.status != 200 and not asked.get("logprobs"):
            await respond(send, 200, completion(asked))
            return
        kind = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": kind})
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b" " * 1000, "more_body": True})
            await asyncio.sleep(0)
        self.closed.set()


@pytest.mark.parametrize("status", [200, 400, 500])
def test_an_upstream_is_closed_where_its_answer_is_too_large_or_not_wanted(checkpoint: Path, status: int) -> None:
    endless = Endless(status)
    with running(endless) as (up, _), serving(checkpoint, f"{up}/v1", max_answer_bytes=100_000) as client:
        answer = client.post("/v1/chat/completions", {"model": "m", "messages": []})
        assert endless.closed.wait(timeout=20)
    if status != 200:  # its failure with log-probabilities is not read to its end: the second answer counts
        assert answer.json()["choices"][0]["message"]["content"] == TEXT
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_too_large")
        assert "larger than 100000 bytes" in answer.json()["error"]["message"]


def test_the_end_of_the_server_closes_its_connections_to_the_upstream(
    checkpoint: Path, upstream: tuple[Upstream, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[aiohttp.ClientSession] = []
    close = aiohttp.ClientSession.close

    async def noted(session: aiohttp.ClientSession) -> None:
        closed.append(session)
        await close(session)

    monkeypatch.setattr(aiohttp.ClientSession, "close", noted)
    with serving(checkpoint, upstream[1]) as client:
        client.chat()
        assert not closed
    assert len(closed) == 1


# Faults here, and their log lines


def test_neither_logs_nor_metrics_hold_a_word_of_prompt_or_answer(
    faulty: Served, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "metaprobe")
    caplog.set_level(logging.DEBUG, "uvicorn")
    for fault in ("ok", "malformed", "bad-logprobs", "400"):
        for stream in (False, True):
            faulty.ask(f"{SECRET}:{fault}", {"model": SECRET, "stream": stream})
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

    input_kind = QualityPredictor.input_kind

    def __init__(self, predictor: QualityPredictor) -> None:
        self.parse = predictor.parse
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


@pytest.mark.parametrize("begun", [False, True])
def test_a_fault_behind_the_door_is_said_by_its_kind_and_half_an_answer_never_looks_whole(
    caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    @answering
    async def broken(scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError(SECRET)

    metrics, settings = Metrics(), Settings(checkpoint="c", max_concurrency=1)
    with running(Guard(broken, settings=settings, keys=Keys.of(settings), metrics=metrics)) as (url, _):
        for _ in range(2):  # a place is free again after a fault
            if begun:
                with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):  # which of them, the system decides
                    Served(url).post("/v1/score", [])
                continue
            answer = Served(url).post("/v1/score", [], x_request_id="mine-1")
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
            assert f"request id {answer.headers['metaprobe-request-id']}" in answer.json()["error"]["message"]
    counts = metrics.exposition().decode()
    assert 'metaprobe_errors_total{code="internal"} 2.0' in counts
    assert f'metaprobe_requests_total{{endpoint="/v1/score",status="{200 if begun else 500}"}} 2.0' in counts
    assert "failed: RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_a_caller_who_leaves_before_the_request_is_whole_is_counted_as_gone(checkpoint: Path) -> None:
    sent: list[Message] = []
    coming = iter([{"type": "http.request", "body": b"[", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(coming)

    async def send(message: Message) -> None:
        sent.append(message)

    async def main() -> str:
        app = create_app(Settings(checkpoint=checkpoint))
        given = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        headers = [(name.encode(), value.encode()) for name, value in given.items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/score", "query_string": b"", "headers": headers}
        await app(scope, receive, send)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x", headers=given) as client:
            return (await client.get("/metrics")).text

    counts = asyncio.run(main())
    assert sent[0]["status"] == 499
    assert 'metaprobe_requests_total{endpoint="/v1/score",status="499"} 1.0' in counts
    assert 'metaprobe_errors_total{code="client_gone"} 1.0' in counts
