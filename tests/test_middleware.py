"""Inside an engine's server the middleware gives what the proxy gives, and leaves everything else as it is."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import serving_clients
from answering_server import wait_for
from served import TOKENS, Upstream, completion, running
from serving_clients import LOGPROBS, Served, verdict_of
from test_serving_gate import FakeGates

from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.http.middleware import VerdictMiddleware, settings_from_environment
from metaprobe.production.http.settings import Settings
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.records.errors import RecordError
from research.engines.vllm_server import free_port

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
upstream = serving_clients.upstream
callers_keys = serving_clients.callers_keys
served = serving_clients.served


@contextmanager
def inside(engine: Any, checkpoint: Path, **options: Any) -> Iterator[Served]:
    """The engine's own server with the middleware in it."""
    logged = {name: options.pop(name) for name in ("log", "log_texts") if name in options}
    about = {"upstream": "http://127.0.0.1/v1", "auth": False, "max_body_bytes": 100_000, **logged}
    settings = Settings(checkpoint=checkpoint, **about)
    with running(VerdictMiddleware(engine, settings=settings, **options)) as (url, _):
        yield Served(url)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[tuple[Upstream, Served]]:
    told = Upstream()
    with inside(told, checkpoint) as served:
        yield told, served


def request(said: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": said}], **more}


@pytest.mark.parametrize("said", ["plain", "torn", "no-done", "half", "no-blank-line", "comments", "nan", "needs-top"])
def test_an_answer_is_what_the_proxy_gives(engine: tuple[Upstream, Served], served: Served, said: str) -> None:
    ways: list[dict[str, Any]] = [{"stream": True}, {"stream": True, "logprobs": True}, {"logprobs": True}]
    if said == "plain":
        ways += [{}, {"n": 2, "stream": True}, {"logprobs": True, "top_logprobs": 2, "stream": True}]
    for more in ways:
        asked = request(said, **more)
        own, proxied = (each.post("/v1/chat/completions", asked) for each in (engine[1], served))
        assert own.status_code == proxied.status_code
        assert own.text == proxied.text
        assert "metaprobe" in own.text or said == "nan"
        assert said != "no-done" or "[DONE]" not in own.text
        assert own.headers.get("metaprobe-reason") == proxied.headers.get("metaprobe-reason")


def test_the_answer_passes_unchanged_but_for_the_verdict(
    engine: tuple[Upstream, Served], predictor: QualityPredictor
) -> None:
    told, served = engine
    asked = request("plain", logprobs=True, top_logprobs=2)
    answer = served.post("/v1/chat/completions", asked)
    body = answer.json()
    assert body.pop("metaprobe")["score"] == pytest.approx(predictor.predict(LOGPROBS).score)
    assert body == completion(asked)
    assert answer.headers["set-cookie"] == "a=b"  # it is the engine's own server: its headers stay
    assert int(answer.headers["content-length"]) == len(answer.content)
    served.post("/v1/chat/completions", request("plain", temperature=0.3))
    assert told.bodies[-1] == request("plain", temperature=0.3, logprobs=True, top_logprobs=1)


def test_what_is_no_chat_completion_passes_untouched(engine: tuple[Upstream, Served]) -> None:
    told, served = engine
    assert served.get("/v1/models").json()["data"][0]["id"] == "m"
    other = served.post("/v1/embeddings", request("plain"))
    assert "metaprobe" not in other.json()
    assert told.bodies[-1] == request("plain")
    odd = served.post("/v1/chat/completions", request("plain"), content_type="text/plain")
    assert "metaprobe" not in odd.json()
    long = request("plain", filler="x" * 200_000)
    assert "metaprobe" not in served.post("/v1/chat/completions", long).json()
    assert told.bodies[-1] == long


@pytest.mark.parametrize("action", ["stop", "escalate"])
def test_a_gated_answer_ends_early_and_the_engine_stops_writing(checkpoint: Path, action: str) -> None:
    told = Upstream()
    with inside(told, checkpoint, gates=FakeGates(action)) as served:
        told.go_on.release(3)
        *before, _, last = served.chat("steps", stream=True)
        assert told.closed.wait(timeout=20)
        assert told.sent == 3
    assert [chunk.choices[0].delta.content for chunk in before] == [token for token, _ in TOKENS[:3]]
    assert verdict_of(last)["gate"] == {"action": action, "tokens": 3}
    assert last.choices[0].finish_reason == "content_filter"


def test_the_environment_sets_it_up_and_what_cannot_be_meant_is_refused(checkpoint: Path) -> None:
    assert settings_from_environment({"PATH": "x"}).checkpoint == "bundled:quality"
    given = {"METAPROBE_CHECKPOINT": str(checkpoint), "METAPROBE_GATE": "g", "METAPROBE_GATE_STOP": "0.1"}
    settings = settings_from_environment(given)
    assert (settings.checkpoint, settings.gate, settings.gate_stop) == (str(checkpoint), "g", 0.1)
    with pytest.raises(RecordError, match="METAPROBE_GATE_STOP is 'much'; expected a number"):
        settings_from_environment({"METAPROBE_GATE_STOP": "much"})
    with pytest.raises(RecordError, match=r"gate_stop is 2\.0; expected a number"):
        settings_from_environment({"METAPROBE_GATE_STOP": "2"})
    logged = settings_from_environment({"METAPROBE_LOG": "scores.sqlite", "METAPROBE_LOG_TEXTS": "true"})
    assert (logged.log, logged.log_texts) == ("scores.sqlite", True)


def test_a_teach_rate_is_refused_because_no_application_is_asked_again(checkpoint: Path, tmp_path: Path) -> None:
    asked = {"log": str(tmp_path / "log.sqlite"), "upstream": "http://127.0.0.1/v1", "teach_rate": 0.1}
    settings = Settings(checkpoint=checkpoint, auth=False, **asked)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=r"teach_rate is 0\.1; expected 0, .*metaprobe serve --teach-rate"):
        VerdictMiddleware(Upstream(), settings=settings)


def test_an_engine_makes_it_without_arguments(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAPROBE_CHECKPOINT", str(checkpoint))
    with running(VerdictMiddleware(Upstream())) as (url, _):
        answer = Served(url).post("/v1/chat/completions", request("plain"))
    assert json.loads(answer.text)["metaprobe"]["checkpoint"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_log_holds_each_verdict_under_the_callers_id_and_tags(tmp_path: Path, checkpoint: Path, stream: bool) -> None:
    url = str(tmp_path / "scores.sqlite")
    named = {"x_request_id": "mine-1", "x_metaprobe_tags": "task=faq"}
    with inside(Upstream(), checkpoint, log=url, log_texts=True) as served:
        answer = served.post("/v1/chat/completions", request("plain", stream=stream), **named)
        served.post("/v1/chat/completions", request("plain"), x_metaprobe_tags="no tag")
    with ScoreLog.open(url) as log:
        entry = log.entry("mine-1")
        assert entry is not None
        assert f'"request_id":"{entry.request_id}"' in answer.text
        assert len(log.columns().time) == 2, "tags that cannot be read cost no entry"
    assert entry is not None
    assert json.dumps(entry.score)[:6] in answer.text
    assert (entry.model, entry.tags, entry.answer) == ("m", {"task": "faq"}, "".join(token for token, _ in TOKENS))


ENDS = """
import os, sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from metaprobe.production.http.middleware import VerdictMiddleware

async def answer(request):
    entry = {"token": "4", "logprob": -0.5}
    message = {"role": "assistant", "content": "4"}
    choice = {"index": 0, "message": message, "logprobs": {"content": [entry]}, "finish_reason": "stop"}
    return JSONResponse({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]})

engine = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
if sys.argv[2] == "without":
    served = engine
    async def engine(scope, receive, send):
        assert scope["type"] == "http"
        await served(scope, receive, send)
uvicorn.run(VerdictMiddleware(engine), port=int(sys.argv[1]), log_level="error")
"""


@pytest.mark.parametrize("life", ["with", "without"])
def test_sigterm_stores_every_verdict_that_was_given(tmp_path: Path, checkpoint: Path, life: str) -> None:
    port, log = free_port(), tmp_path / "scores.sqlite"
    environment = {**os.environ, "METAPROBE_CHECKPOINT": str(checkpoint), "METAPROBE_LOG": str(log)}
    server = subprocess.Popen([sys.executable, "-c", ENDS, str(port), life], env=environment)
    try:
        wait_for(port)
        served = Served(f"http://127.0.0.1:{port}")
        answers = [served.post("/v1/chat/completions", request("plain")).json() for _ in range(20)]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    names = {answer["metaprobe"]["request_id"] for answer in answers}
    assert len(names) == 20
    with ScoreLog.open(log) as stored:
        assert stored.lost == 0
        assert all(stored.entry(name) is not None for name in names)


def test_an_engine_without_a_log_needs_no_database_library() -> None:
    code = "import sys; sys.modules['sqlalchemy'] = None; import metaprobe.production.http.middleware"
    subprocess.run([sys.executable, "-c", code], check=True)


async def asked_of(
    engine: Any, checkpoint: Path, predictor: QualityPredictor, sent: list[dict[str, Any]], **limits: int
) -> None:
    """Asks an application inside the middleware, and adds what it sends to `sent`."""

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(request("plain")).encode()}

    settings = Settings(checkpoint=checkpoint, upstream="http://127.0.0.1/v1", auth=False, **limits)  # type: ignore[arg-type]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b""}
    headers = [(b"content-type", b"application/json")]
    inside = VerdictMiddleware(engine, settings=settings, predictor=predictor)
    await inside({**scope, "headers": headers}, receive, send)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [{"max_answer_bytes": 1000}, {"max_body_bytes": 1000}])
def test_a_whole_answer_is_not_gathered_beyond_the_limits(
    checkpoint: Path, predictor: QualityPredictor, limit: dict[str, int]
) -> None:
    parts = [b'{"choices":[],"a":"', *[b"x" * 4000] * 20, b'"}']
    held_back = []
    sent: list[dict[str, Any]] = []

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % sum(map(len, parts)))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for place, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": place < len(parts)})
            held_back.append(sum(map(len, parts[:place])) - sum(len(message.get("body", b"")) for message in sent))

    asyncio.run(asked_of(engine, checkpoint, predictor, sent, **limit))
    head, *bodies = sent
    assert b"".join(message["body"] for message in bodies) == b"".join(parts)
    assert not bodies[-1].get("more_body")
    assert b"not scored" in dict(head["headers"])[b"metaprobe-reason"]
    assert max(held_back) <= 8 * 1000


def test_a_long_answer_is_sent_in_pieces_so_that_the_server_never_copies_it_whole(
    checkpoint: Path, predictor: QualityPredictor
) -> None:
    body = json.dumps({"choices": [], "a": "x" * 1_000_000}).encode()
    sent: list[dict[str, Any]] = []

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})

    asyncio.run(asked_of(engine, checkpoint, predictor, sent))
    head, *bodies = sent
    whole = b"".join(message["body"] for message in bodies)
    assert max(len(message["body"]) for message in bodies) <= 1 << 18
    assert [message["more_body"] for message in bodies] == [True] * (len(bodies) - 1) + [False]
    assert int(dict(head["headers"])[b"content-length"]) == len(whole)
    assert "metaprobe" in json.loads(whole)


@pytest.mark.parametrize("limit", [{}, {"max_answer_bytes": 4_900_000}])
def test_others_have_their_turn_while_a_long_answer_is_sent_to_a_fast_reader(
    checkpoint: Path, predictor: QualityPredictor, limit: dict[str, int]
) -> None:
    part, turns = b"x" * 100_000, 0
    sent: list[dict[str, Any]] = []

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for data in (b'{"choices": [], "a": "', *[part] * 50):
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b'"}'})

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += bool(sent) and sent[-1].get("more_body", False)

    async def both() -> None:
        beside = asyncio.ensure_future(other())
        await asked_of(engine, checkpoint, predictor, sent, **limit)
        beside.cancel()

    asyncio.run(both())
    assert turns >= 15
