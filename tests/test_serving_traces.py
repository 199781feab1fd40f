"""A request keeps its place in the caller's trace, upstream and in the log; OpenTelemetry gets a span of it."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving_clients
from served import Upstream, running
from serving_clients import LOGPROBS, Served, serving
from tiny import tiny_quality

from metaprobe.production.http.app import create_app
from metaprobe.production.http.exchange import Passing, UpstreamExchange
from metaprobe.production.http.judges import load_judges
from metaprobe.production.http.metrics import JsonLine, Metrics
from metaprobe.production.http.settings import Settings

upstream = serving_clients.upstream
callers_keys = serving_clients.callers_keys

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_quality(tmp_path_factory.mktemp("checkpoints") / "tiny").path


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Yields the server's log, written as `--log-format json` does."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLine())
    logger = logging.getLogger("metaprobe")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_upstream_and_log_name_the_request_and_whose_key_it_was_and_the_callers_trace_goes_on_unread(
    checkpoint: Path, upstream: tuple[Upstream, str], lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", f"team-a={serving_clients.KEY}")
    with serving(checkpoint, upstream[1], on_mismatch="ignore") as client:
        client.ask(traceparent=GIVEN, x_request_id="mine-1")
        assert upstream[0].headers[-1]["traceparent"] == GIVEN
    [line] = (json.loads(line) for line in lines.getvalue().splitlines() if "/v1/chat" in line)
    known = {"callers_id": "mine-1", "endpoint": "/v1/chat/completions", "status": 200, "key": "team-a"}
    assert {name: line[name] for name in known} == known
    assert line["ms"] >= 0
    assert line["level"] == "INFO"
    assert line["time"].endswith("+00:00")


def test_a_fault_is_one_line_of_json_with_its_traceback() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed: %s", ("c",), (ValueError, error, None))
    line = JsonLine().format(record)
    assert "\n" not in line
    held = json.loads(line)
    assert (held["message"], held["level"], held["logger"]) == ("failed: c", "ERROR", "x")
    assert "ValueError: a\nb" in held["exception"]


def test_opentelemetry_gets_a_span_in_the_callers_trace_with_the_verdict_as_event(
    checkpoint: Path, upstream: tuple[Upstream, str], lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace: Any = pytest.importorskip("opentelemetry.trace")
    sdk: Any = pytest.importorskip("opentelemetry.sdk.trace")
    memory: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    export: Any = pytest.importorskip("opentelemetry.sdk.trace.export")
    kept, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    settings = Settings(checkpoint=checkpoint, upstream=upstream[1], on_mismatch="ignore", otel=True)
    request = {"model": "m", "messages": [{"content": "plain"}]}
    with running(create_app(settings)) as (url, _):
        for stream in (False, True):
            answer = Served(url).post("/v1/chat/completions", request | {"stream": stream}, traceparent=GIVEN)
            assert answer.status_code == 200
        sent = upstream[0].headers[-1]["traceparent"]
        Served(url).post("/v1/score", LOGPROBS, authorization="Bearer wrong")
        broken = request | {"messages": [{"content": "refuses-logprobs-500"}], "logprobs": True}
        assert Served(url).post("/v1/chat/completions", broken).status_code == 500
    *answered, refused, failed = kept.get_finished_spans()
    for span in answered:
        assert (span.name, span.kind) == ("/v1/chat/completions", trace.SpanKind.SERVER)
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == SPAN
        assert span.attributes["http.response.status_code"] == 200
        [event] = span.events
        assert event.name == "gen_ai.evaluation.result"
        assert 0 < event.attributes["gen_ai.evaluation.score.value"] < 1
    assert sent == f"00-{TRACE}-{answered[-1].context.span_id:016x}-01"
    logged = [json.loads(line) for line in lines.getvalue().splitlines() if "/v1/" in line]
    assert (logged[0]["trace_id"], logged[0]["span_id"]) == (TRACE, f"{answered[0].context.span_id:016x}")
    assert logged[2]["trace_id"] != TRACE  # a caller without a trace begins one
    assert refused.attributes["http.response.status_code"] == 401
    assert not refused.events
    assert refused.status.status_code is trace.StatusCode.UNSET  # the caller's fault is none of the server
    assert failed.status.status_code is trace.StatusCode.ERROR


@pytest.mark.parametrize("keeps_texts", [False, True])
def test_no_word_of_an_answer_is_in_a_span_unless_texts_are_kept(
    checkpoint: Path, keeps_texts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace: Any = pytest.importorskip("opentelemetry.trace")
    told: list[dict[str, Any]] = []

    class Span:
        def add_event(self, name: str, attributes: dict[str, Any]) -> None:
            told.append(attributes)

    monkeypatch.setattr(trace, "get_current_span", Span)
    log = {"log": str(tmp_path / "log.sqlite"), "log_texts": True} if keeps_texts else {}
    judges = load_judges(Settings(checkpoint=checkpoint, otel=True, **log), Metrics())  # type: ignore[arg-type]
    entry = {"token": "sk-secret-of-the-answer", "logprob": -0.5}
    choice = {"message": {"content": "other words"}, "finish_reason": "stop", "logprobs": {"content": [entry] * 3}}
    verdict = judges.default.verdict(json.dumps({"model": "m", "choices": [choice]}).encode())
    assert "sk-secret" in verdict["reason"], "the caller may read it: it is of the caller's own answer"
    assert ("sk-secret" in json.dumps(told)) is keeps_texts
    assert told


def test_no_model_that_an_upstream_or_caller_names_is_in_a_span(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace: Any = pytest.importorskip("opentelemetry.trace")
    told: list[dict[str, Any]] = []

    class Span:
        def add_event(self, name: str, attributes: dict[str, Any]) -> None:
            told.append(attributes)

    monkeypatch.setattr(trace, "get_current_span", Span)
    judges = load_judges(Settings(checkpoint=checkpoint, otel=True), Metrics())
    entries = [{"token": " w", "logprob": -0.5}] * 3
    choice = {"message": {"content": " w w w"}, "finish_reason": "stop", "logprobs": {"content": entries}}
    verdict = judges.default.verdict(json.dumps({"model": "sk-secret", "choices": [choice]}).encode())
    assert "sk-secret" in verdict["reason"], "the caller may read whose answer it is"
    assert "checkpoint trained on" in json.dumps(told)
    assert "sk-secret" not in json.dumps(told)


@pytest.mark.parametrize("begun", [False, True], ids=["before the answer", "within the answer"])
def test_no_word_of_a_fault_or_of_a_request_is_in_a_span_or_a_line_of_the_log(
    begun: bool, checkpoint: Path, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace: Any = pytest.importorskip("opentelemetry.trace")
    sdk: Any = pytest.importorskip("opentelemetry.sdk.trace")
    memory: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    export: Any = pytest.importorskip("opentelemetry.sdk.trace.export")
    kept, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)

    async def faulty(exchange: UpstreamExchange, body: bytes, passing: Passing, within_s: float | None) -> None:
        if begun:
            await passing.begin(200, [(b"content-type", b"text/event-stream")])
            await passing.feed(b": still here\n\n")
        raise ValueError(f"sk-secret of {body!r}")

    monkeypatch.setattr(UpstreamExchange, "ask", faulty)
    settings = Settings(checkpoint=checkpoint, upstream="http://127.0.0.1:9/v1", auth=False, otel=True)
    request = {"model": "sk-secret", "messages": [{"content": "sk-secret"}], "stream": True}
    with running(create_app(settings)) as (url, _):
        try:
            answer = Served(url).post("/v1/chat/completions?key=sk-secret", request, authorization="Bearer sk-secret")
            assert answer.status_code == 500
        except httpx.RemoteProtocolError:
            assert begun
    [span] = kept.get_finished_spans()
    assert "ERROR" in span.to_json()
    assert "sk-secret" not in span.to_json()
    assert "ValueError" in lines.getvalue()
    assert "sk-secret" not in lines.getvalue()
