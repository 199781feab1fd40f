"""Connections that say nothing, say it slowly or read nothing cost the server a place, and no one an answer."""

import asyncio
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httptools
import pytest
import serving_clients
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from served import KEY, TOKENS, Upstream, lifespan, running
from serving_clients import LOGPROBS, Served, verdict_of
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl

from metaprobe.serving.http import sockets
from metaprobe.serving.http.app import create_app
from metaprobe.serving.http.metrics import SAY_AGAIN_S, Seldom, say_out_of_files_once
from metaprobe.serving.http.run_server import KEEP_ALIVE_S, server_config
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.sockets import MAX_HEADER_BYTES, BoundedProtocol, Bounds, OffersLeftOut, bounds_of

checkpoint = serving_clients.checkpoint
predictor = serving_clients.predictor
upstream = serving_clients.upstream
callers_keys = serving_clients.callers_keys
served = serving_clients.served

SCORE = f"POST /v1/score HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
WITHIN_S = 20.0
"""After which a server that never closes a connection makes a test fail."""


@contextmanager
def bounded(
    checkpoint: Path,
    upstream: str = "",
    *,
    connections: int = 64,
    header_s: float = 10,
    send_s: float = 10,
    **more: Any,
) -> Iterator[Served]:
    """A server with the connections of `metaprobe serve`."""
    app = create_app(Settings(checkpoint=checkpoint, upstream=upstream, **more))
    protocol = partial(BoundedProtocol, bounds=Bounds(connections, header_s, send_s))
    with running(app, http=protocol, timeout_keep_alive=KEEP_ALIVE_S) as (url, _):
        yield Served(url)


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_seldom", Seldom(sockets.logger))


def connected(client: Served, sent: str = "") -> socket.socket:
    host, port = client.url.removeprefix("http://").split(":")
    opened = socket.create_connection((host, int(port)), timeout=WITHIN_S)
    opened.sendall(sent.encode())
    return opened


def everything(opened: socket.socket) -> bytes:
    """What the server sends until it closes the connection; raises `TimeoutError` where it does not."""
    parts = []
    try:
        while part := opened.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


# What is not clear


def test_a_request_with_two_lengths_is_refused_and_what_follows_it_is_not_answered(served: Served) -> None:
    hidden = f"GET /healthz HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n"
    for first in ("content-length: 5\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 5"):
        with connected(served, f"{SCORE}{first}\r\n\r\n0\r\n\r\n{hidden}") as opened:
            answer = everything(opened)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1


def test_two_lengths_are_refused_under_a_server_that_lets_them_pass(checkpoint: Path) -> None:
    answered: list[Any] = []

    async def sent(message: Any) -> None:
        answered.append(message)

    async def nothing() -> Any:
        raise AssertionError("the body of such a request was read")

    given = [
        (b"authorization", f"Bearer {KEY}".encode()),
        (b"content-length", b"5"),
        (b"transfer-encoding", b"chunked"),
    ]
    scope = {"type": "http", "method": "POST", "path": "/v1/score", "query_string": b"", "headers": given}
    asyncio.run(create_app(Settings(checkpoint=checkpoint))(scope, nothing, sent))
    assert answered[0]["status"] == 400
    assert b"ambiguous_length" in answered[1]["body"]


def test_a_header_that_does_not_end_is_refused_as_too_large(checkpoint: Path) -> None:
    with bounded(checkpoint) as client, connected(client, "GET /healthz HTTP/1.1\r\nx: ") as opened:
        with suppress(OSError):  # the server may close it before all is sent
            opened.sendall(b"x" * (MAX_HEADER_BYTES + 1))
        assert everything(opened).startswith(b"HTTP/1.1 431 ")
    with bounded(checkpoint) as client:  # a body of that size is none, nor are many requests together
        body = json.dumps([-0.5] * 40_000).encode()
        assert len(body) > 2 * MAX_HEADER_BYTES
        assert client.post("/v1/score", body).status_code == 200


def test_a_client_that_offers_another_protocol_is_answered_and_may_ask_again(checkpoint: Path) -> None:
    """As Java's own client does in its first request."""
    offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    body = json.dumps(LOGPROBS)
    request = f"{SCORE}{offer}content-length: {len(body)}\r\n\r\n{body}"
    with bounded(checkpoint) as client, connected(client) as opened:
        for _ in range(2):
            opened.sendall(request.encode())
            answer = opened.recv(65536)
            while b'"score"' not in answer and (more := opened.recv(65536)):
                answer += more
            assert answer.startswith(b"HTTP/1.1 200 ")


def requests_of(offers: list[bool], chunked: list[bool], bodies: list[bytes]) -> bytes:
    """Requests one after another, some of which offer another protocol, or come in chunks."""
    sent = b""
    for offered, in_chunks, body in zip(offers, chunked, bodies, strict=True):
        offer = "Connection: Upgrade, HTTP2-Settings\r\nUPGRADE: h2c\r\n" if offered else ""
        framed = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" if in_chunks and body else body
        length = "Transfer-Encoding: chunked" if in_chunks and body else f"Content-Length: {len(body)}"
        sent += f"POST /a HTTP/1.1\r\nHost: x\r\n{offer}{length}\r\n\r\n".encode() + framed
    return sent


class Parsed:
    """What a parser behind `OffersLeftOut` makes of bytes."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpRequestParser(self)
        self.offers = OffersLeftOut(self._feed)

    def _feed(self, data: bytes) -> bool:
        self._parser.feed_data(data)
        return True

    def on_message_begin(self) -> None:
        self._headers = []
        self.bodies.append(b"")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.offers.header_is_whole(self._headers)

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def on_message_complete(self) -> None:
        self.offers.message_is_whole()


OFFERED = st.lists(
    st.tuples(
        st.booleans(),
        st.booleans(),
        st.one_of(st.binary(max_size=20), st.sampled_from([b"\r\n\r\n", b"\r\nupgrade: h2c\r\n", b"\r\n\r", b"a\r\n"])),
    ),
    min_size=1,
    max_size=4,
)


@given(OFFERED, st.data())
def test_offers_are_left_out_of_headers_and_of_no_body_however_the_bytes_are_torn(
    made: list[tuple[bool, bool, bytes]], data: st.DataObject
) -> None:
    offers, chunked, bodies = (list(column) for column in zip(*made, strict=True))
    sent, parsed = requests_of(offers, chunked, bodies), Parsed()
    while sent:
        size = data.draw(st.integers(1, min(len(sent), 30)))
        parsed.offers.take(sent[:size])
        sent = sent[size:]
    assert parsed.bodies == bodies


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_offers_in_pieces_and_behind_other_requests_are_answered(checkpoint: Path, size: int) -> None:
    body = json.dumps(LOGPROBS)
    offer = "connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    plain, offering = (f"{SCORE}{more}content-length: {len(body)}\r\n\r\n{body}" for more in ("", offer))
    last = offering.replace("connection: Upgrade", "connection: close, Upgrade")
    sent = (plain + offering + offering + plain + last).encode()
    with bounded(checkpoint) as client, connected(client) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(sent), size):
            opened.sendall(sent[at : at + size])
        answer = everything(opened)
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b'"score"') == 5


# Silence


@pytest.mark.parametrize(
    "said",
    [
        "",
        "POST /v1/sco",
        f"{SCORE}content-length: 10\r\n\r\n[-0.",  # with a key: 408
        "POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n[-0.",  # without: 401, and then silence
        f"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n{SCORE}",  # a second request that never ends
    ],
)
def test_who_does_not_finish_a_request_is_not_waited_for(checkpoint: Path, said: str) -> None:
    with bounded(checkpoint, header_s=0.2, body_timeout_s=0.2) as client, connected(client, said) as opened:
        everything(opened)
        assert client.get("/healthz").status_code == 200


def test_a_header_that_dribbles_is_closed_although_it_never_stops(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with bounded(checkpoint, header_s=0.2) as client, connected(client, "GET /healthz HTTP/1.1\r\nx: ") as opened:
        opened.settimeout(0.02)
        for _ in range(1000):
            try:
                opened.sendall(b"x")
                if not opened.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the server reads on after a thousand bytes")
    assert "sent no whole request header within 0.2 s" in caplog.text


def test_a_stream_outlives_the_time_for_a_header(checkpoint: Path, upstream: tuple[Upstream, str]) -> None:
    told, url = upstream
    told.begin()
    with bounded(checkpoint, url, header_s=0.2, send_s=0.2, body_timeout_s=0.2) as client:
        told.go_on.release()
        stream = client.chat("steps", stream=True)
        first = next(iter(stream))
        with connected(client) as silent:  # opened later, and closed since the time is over
            assert everything(silent) == b""
        told.go_on.release(len(TOKENS))
        rest = list(stream)
    assert len([first, *rest]) == len(TOKENS) + 2
    assert verdict_of(rest[-1])["score"] is not None


def test_who_does_not_read_is_closed_and_so_is_the_upstream(checkpoint: Path) -> None:
    closed = threading.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        await receive()
        kind = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b": " + b"x" * 65536 + b"\n\n", "more_body": True})
            await asyncio.sleep(0)
        closed.set()

    body = '{"messages": [], "stream": true}'
    request = f"{SCORE.replace('/v1/score', '/v1/chat/completions')}content-length: {len(body)}\r\n\r\n{body}"
    with (
        running(endless) as (url, _),
        bounded(checkpoint, f"{url}/v1", send_s=0.2) as client,
        connected(client, request),
    ):
        assert closed.wait(timeout=WITHIN_S)


def test_who_reads_slowly_is_waited_for_as_long_as_anything_is_read(caplog: pytest.LogCaptureFixture) -> None:
    class Clock:
        def call_later(self, seconds: float, look: Any, *given: Any) -> asyncio.TimerHandle:
            self.look = partial(look, *given)
            return asyncio.TimerHandle(seconds, look, given, loop)

    class Transport:
        unread, aborted = 9, False

        def get_write_buffer_size(self) -> int:
            return self.unread

        def abort(self) -> None:
            self.aborted = True

    loop, clock, transport = asyncio.new_event_loop(), Clock(), Transport()
    given: dict[str, Any] = {"config": uvicorn.Config(lifespan), "server_state": uvicorn.server.ServerState()}
    connection = BoundedProtocol(**given, app_state={}, _loop=clock, bounds=Bounds(1, 1, 1))
    connection.transport, connection.flow = transport, FlowControl(transport)  # type: ignore[arg-type, assignment]
    connection.pause_writing()
    for transport.unread in (8, 5, 1):
        clock.look()
    assert not transport.aborted
    clock.look()
    assert transport.aborted
    assert "read nothing of its answer" in caplog.text
    loop.close()


# Number


def test_silent_connections_make_room_and_no_answer_is_lost(
    checkpoint: Path, upstream: tuple[Upstream, str], caplog: pytest.LogCaptureFixture
) -> None:
    told, url = upstream
    told.begin()
    with bounded(checkpoint, url, connections=4) as client, ExitStack() as open_ones:
        told.go_on.release()
        stream = client.chat("steps", stream=True)
        first = next(iter(stream))
        silent = [open_ones.enter_context(connected(client)) for _ in range(20)]
        assert client.post("/v1/score", LOGPROBS).status_code == 200
        assert everything(silent[0]) == b""  # the oldest made room
        told.go_on.release(len(TOKENS))
        assert len([first, *stream]) == len(TOKENS) + 2
    lines = [record.getMessage() for record in caplog.records if record.name == "metaprobe.serving.http.sockets"]
    assert lines == ["all 4 connections taken: closed the one idle for longest"]


def test_where_every_connection_is_being_answered_a_new_one_is_refused(
    checkpoint: Path, upstream: tuple[Upstream, str], caplog: pytest.LogCaptureFixture
) -> None:
    told, url = upstream
    told.begin()
    with bounded(checkpoint, url, connections=2) as client:
        told.go_on.release(2)
        asked = {"stream": True, "logprobs": True, "top_logprobs": 1}  # of a changed request the first token is awaited
        held = [client.chat("steps", **asked) for _ in range(2)]
        with connected(client) as refused:
            answer = everything(refused)
        told.go_on.release(2 * len(TOKENS))
        assert [len(list(stream)) for stream in held] == [len(TOKENS) + 2] * 2
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
    assert b"retry-after: 1\r\n" in answer.lower()
    lines = [record.getMessage() for record in caplog.records if record.name == "metaprobe.serving.http.sockets"]
    assert lines == ["all 2 connections are being answered: refused a new one"]


def test_callers_who_do_not_read_make_room_for_one_who_does(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "STALLED_S", 0.0)

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b": " + b"x" * 65536 + b"\n\n", "more_body": True})
            await asyncio.sleep(0)

    body = '{"messages": [], "stream": true}'
    request = f"{SCORE.replace('/v1/score', '/v1/chat/completions')}content-length: {len(body)}\r\n\r\n{body}"
    with (
        running(endless) as (url, _),
        bounded(checkpoint, f"{url}/v1", connections=2) as client,
        connected(client, request),
        connected(client, request),
    ):
        time.sleep(1.0)  # until what they do not read fills every buffer
        assert client.get("/livez").status_code == 200


# Ahead of their turn


@pytest.mark.parametrize("ahead", [["GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"] * 300, ["long"]])
def test_who_sends_much_ahead_of_its_turn_is_closed(
    checkpoint: Path, upstream: tuple[Upstream, str], ahead: list[str]
) -> None:
    told, url = upstream
    told.begin()
    body = '{"messages": [{"role": "user", "content": "steps"}], "stream": true}'
    first = f"{SCORE.replace('/v1/score', '/v1/chat/completions')}content-length: {len(body)}\r\n\r\n{body}"
    more = f"{SCORE}content-length: 200000\r\n\r\n{' ' * 200000}" if ahead == ["long"] else "".join(ahead)
    with bounded(checkpoint, url) as client, connected(client, first) as opened:
        with suppress(OSError):  # it may be closed before all is sent
            opened.sendall(more.encode())
        assert b"livez" not in everything(opened)  # which ends, though the stream does not
        told.go_on.release(2 * len(TOKENS))


def test_who_goes_after_a_second_request_lets_the_upstream_go(checkpoint: Path) -> None:
    asked, closed = threading.Event(), threading.Event()

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        closed.set()

    body = '{"messages": []}'
    request = f"{SCORE.replace('/v1/score', '/v1/chat/completions')}content-length: {len(body)}\r\n\r\n{body}"
    with running(silent) as (url, _), bounded(checkpoint, f"{url}/v1") as client:
        with connected(client, request) as opened:
            assert asked.wait(timeout=WITHIN_S)
            opened.sendall(request.encode())
            time.sleep(0.2)
        assert closed.wait(timeout=WITHIN_S)


def test_a_trailer_is_no_header(checkpoint: Path) -> None:
    body = LOGPROBS if isinstance(LOGPROBS, str) else json.dumps(LOGPROBS)
    said = "POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
    said += f"connection: close\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\nauthorization: Bearer {KEY}\r\n\r\n"
    with bounded(checkpoint) as client, connected(client, said) as opened:
        assert everything(opened).startswith(b"HTTP/1.1 401 ")


def test_connections_leave_files_for_the_upstream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def most(files: int | None, **more: Any) -> int:
        monkeypatch.setattr("metaprobe.serving.http.sockets._most_files", lambda: files)
        return bounds_of(Settings(checkpoint="c", **more)).connections

    assert most(120) == 88
    assert most(120, upstream="http://u/v1") == 44
    assert "120 files may be open, which leaves room for 44 connections" in caplog.text
    caplog.clear()
    assert most(1024, upstream="http://u/v1") == most(None) == Settings(checkpoint="c").max_connections
    assert not caplog.records


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on open files")
def test_a_hundred_and_forty_silent_connections_and_few_files_stop_nobody(checkpoint: Path, tmp_path: Path) -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120)); "
    command = [sys.executable, "-c", f"{limited}from metaprobe.serving_cli import serve; serve()"]
    log = tmp_path / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [*command, str(checkpoint), "--port", "0", "--grace", "1"],
            stderr=file,
            env={**os.environ, "METAPROBE_API_KEY": KEY, "PYTHONWARNINGS": "ignore"},
        )
    try:
        for _ in range(600):
            if found := re.search(r"running on (http://[\d.:]+)", log.read_text()):
                break
            with pytest.raises(subprocess.TimeoutExpired):  # it is still there
                server.wait(timeout=0.1)
        assert found is not None
        with ExitStack() as open_ones:
            for _ in range(140):
                open_ones.enter_context(connected(Served(found[1])))
            for _ in range(3):
                assert Served(found[1]).post("/v1/score", LOGPROBS).status_code == 200
    finally:
        server.terminate()
        server.wait(timeout=30)
    lines = log.read_text().splitlines()
    assert not [line for line in lines if "Traceback" in line]
    assert len(lines) < 30


# What is logged


def test_running_out_of_files_is_one_line_and_other_errors_stay_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    try:
        say_out_of_files_once(loop)
        full = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
        for _ in range(2048):
            loop.call_exception_handler(full)
        assert [record.getMessage() for record in caplog.records] == [
            "no new connection can be taken in: [Errno 24] Too many open files"
        ]
        loop.call_exception_handler({"message": "something else"})
        assert caplog.records[-1].getMessage() == "something else"
    finally:
        loop.close()


def test_what_happens_often_is_counted_and_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((0.0, 1.0, 2.0, SAY_AGAIN_S, SAY_AGAIN_S + 1))
    seldom = Seldom(logging.getLogger("metaprobe.test"), lambda: next(times))
    for what in "aaaab":
        seldom(what)
    assert [record.getMessage() for record in caplog.records] == ["a", "a (3 times since it was last said)", "b"]


def test_the_program_bounds_its_connections_as_its_settings_say() -> None:
    settings = Settings(checkpoint="c", max_connections=7, header_timeout_s=3, send_timeout_s=4)
    protocol: Any = server_config(settings, log_config=None).http
    assert (protocol.func, protocol.keywords) == (BoundedProtocol, {"bounds": Bounds(7, 3, 4)})
