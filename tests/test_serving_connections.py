"""Connections that say nothing, say it slowly or read nothing cost the server a place, and no one an answer."""

import asyncio
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import serving_clients
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from served import KEY, TOKENS, Upstream, answering, running
from serving_clients import LOGPROBS, Served, program, verdict_of
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl

from metaprobe.production.http import sockets
from metaprobe.production.http.app import KEEP_ALIVE_S, create_app
from metaprobe.production.http.metrics import SAY_AGAIN_S, Seldom
from metaprobe.production.http.settings import Settings
from metaprobe.production.http.sockets import MAX_HEADER_BYTES, BoundedProtocol, within_file_limit

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
    bounds = {"max_connections": connections, "header_timeout_s": header_s, "send_timeout_s": send_s}
    settings = Settings(checkpoint=checkpoint, upstream=upstream, **bounds, **more)
    app, protocol = create_app(settings), partial(BoundedProtocol, settings=settings)
    with running(app, http=protocol, timeout_keep_alive=KEEP_ALIVE_S) as (url, _):
        yield Served(url)


@pytest.fixture(scope="module")
def served_bounded(checkpoint: Path) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        with bounded(checkpoint) as client:
            yield client


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_seldom", Seldom(sockets.logger))


def connected(client: Served, sent: str = "") -> socket.socket:
    host, port = client.url.removeprefix("http://").split(":")
    opened = socket.create_connection((host, int(port)), timeout=WITHIN_S)
    opened.sendall(sent.encode())
    return opened


def everything(opened: socket.socket) -> bytes:
    """Returns all bytes that the server sends until it closes the connection; raises `TimeoutError` where it does
    not."""
    parts = []
    try:
        while part := opened.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


# Requests that are not clear


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


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_offers_of_another_protocol_are_passed_over_however_the_bytes_are_torn(
    served_bounded: Served, data: st.DataObject
) -> None:
    """The offer is that of the first request of Java's own client; a body that looks like an offer is read as a
    body."""
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUPGRADE: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    odd = json.dumps({"logprobs": LOGPROBS, "x": "\r\nupgrade: h2c\r\n\r\n"}).encode()
    sent, number = b"", data.draw(st.integers(1, 4))
    for place in range(number):
        body = data.draw(st.sampled_from([json.dumps(LOGPROBS).encode(), odd, b""]))
        chunked = data.draw(st.booleans()) and body
        framed = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" if chunked else body
        length = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
        closing = "connection: close\r\n" * (place == number - 1)
        sent += f"{SCORE}{closing}{offer * data.draw(st.booleans())}{length}\r\n\r\n".encode() + framed
    size = data.draw(st.sampled_from([1, 7, 100_000]))
    with connected(served_bounded) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(sent), size):
            opened.sendall(sent[at : at + size])
        assert everything(opened).count(b"HTTP/1.1 ") == number


def test_a_tunnel_is_refused(served_bounded: Served) -> None:
    with connected(served_bounded, "CONNECT example.com:443 HTTP/1.1\r\nhost: x\r\n\r\n") as opened:
        assert everything(opened).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("size", [1, 100_000])
def test_offers_in_pieces_and_behind_other_requests_are_answered(served_bounded: Served, size: int) -> None:
    body = json.dumps(LOGPROBS)
    offer = "connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    plain, offering = (f"{SCORE}{more}content-length: {len(body)}\r\n\r\n{body}" for more in ("", offer))
    last = offering.replace("connection: Upgrade", "connection: close, Upgrade")
    sent = (plain + offering + offering + plain + last).encode()
    with connected(served_bounded) as opened:
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
    told.begin(1)
    with bounded(checkpoint, url, header_s=0.2, send_s=0.2, body_timeout_s=0.2) as client:
        stream = client.chat("steps", stream=True)
        first = next(iter(stream))
        with connected(client) as silent:  # opened later, and closed since the time is over
            assert everything(silent) == b""
        told.go_on.release(len(TOKENS))
        rest = list(stream)
    assert len([first, *rest]) == len(TOKENS) + 2
    assert verdict_of(rest[-1])["score"] is not None


class Endless:
    """An upstream whose streams never end; `closed` says that the caller of one has gone."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    @answering
    async def __call__(self, scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        kind = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b": " + b"x" * 65536 + b"\n\n", "more_body": True})
            await asyncio.sleep(0)
        self.closed.set()


def chat_request(messages: str = "[]", more: str = ', "stream": true') -> str:
    body = f'{{"messages": {messages}{more}}}'
    return f"{SCORE.replace('/v1/score', '/v1/chat/completions')}content-length: {len(body)}\r\n\r\n{body}"


def test_who_does_not_read_is_closed_and_so_is_the_upstream(checkpoint: Path) -> None:
    endless = Endless()
    with (
        running(endless) as (url, _),
        bounded(checkpoint, f"{url}/v1", send_s=0.2) as client,
        connected(client, chat_request()),
    ):
        assert endless.closed.wait(timeout=WITHIN_S)


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
    given: dict[str, Any] = {"config": uvicorn.Config(Endless()), "server_state": uvicorn.server.ServerState()}
    settings = Settings(checkpoint="c", send_timeout_s=1)
    connection = BoundedProtocol(**given, app_state={}, _loop=clock, settings=settings)
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
    told.begin(1)
    with bounded(checkpoint, url, connections=4) as client, ExitStack() as open_ones:
        stream = client.chat("steps", stream=True)
        first = next(iter(stream))
        silent = [open_ones.enter_context(connected(client)) for _ in range(20)]
        assert client.post("/v1/score", LOGPROBS).status_code == 200
        assert everything(silent[0]) == b""  # the oldest made room
        told.go_on.release(len(TOKENS))
        assert len([first, *stream]) == len(TOKENS) + 2
    lines = [record.getMessage() for record in caplog.records if record.name == "metaprobe.production.http.sockets"]
    assert lines == ["all 4 connections taken: closed the one idle for longest"]


def test_where_every_connection_is_being_answered_a_new_one_is_refused(
    checkpoint: Path, upstream: tuple[Upstream, str], caplog: pytest.LogCaptureFixture
) -> None:
    told, url = upstream
    told.begin()
    with bounded(checkpoint, url, connections=2) as client:
        held = [client.chat("steps", stream=True) for _ in range(2)]
        with connected(client) as refused:
            answer = everything(refused)
        told.go_on.release(2 * (len(TOKENS) + 1))
        assert [len(list(stream)) for stream in held] == [len(TOKENS) + 2] * 2
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
    assert b"retry-after: 1\r\n" in answer.lower()
    lines = [record.getMessage() for record in caplog.records if record.name == "metaprobe.production.http.sockets"]
    assert lines == ["all 2 connections are being answered: refused a new one"]


def test_callers_who_do_not_read_make_room_for_one_who_does(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "STALLED_S", 0.0)

    with (
        running(Endless()) as (url, _),
        bounded(checkpoint, f"{url}/v1", connections=2) as client,
        connected(client, chat_request()),
        connected(client, chat_request()),
    ):
        for _ in range(1200):  # until what they do not read fills every buffer, a new connection is refused
            if (status := client.get("/livez").status_code) == 200:
                break
            time.sleep(0.05)
        assert status == 200


# Ahead of their turn


@pytest.mark.parametrize("ahead", [["GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"] * 300, ["long"]])
def test_who_sends_much_ahead_of_its_turn_is_closed(
    checkpoint: Path, upstream: tuple[Upstream, str], ahead: list[str]
) -> None:
    told, url = upstream
    told.begin()
    first = chat_request('[{"role": "user", "content": "steps"}]')
    more = f"{SCORE}content-length: 200000\r\n\r\n{' ' * 200000}" if ahead == ["long"] else "".join(ahead)
    with bounded(checkpoint, url) as client, connected(client, first) as opened:
        with suppress(OSError):  # it may be closed before all is sent
            opened.sendall(more.encode())
        assert b"livez" not in everything(opened)  # which ends, though the stream does not
        told.go_on.release(2 * len(TOKENS))


def test_who_goes_after_a_second_request_lets_the_upstream_go(checkpoint: Path) -> None:
    asked, closed = threading.Event(), threading.Event()

    @answering
    async def silent(scope: Scope, raw: bytes, receive: Receive, send: Send) -> None:
        asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        closed.set()

    request = chat_request(more="")
    with running(silent) as (url, _), bounded(checkpoint, f"{url}/v1") as client:
        with connected(client, request) as opened:
            assert asked.wait(timeout=WITHIN_S)
            opened.sendall(request.encode())
            time.sleep(0.2)
        assert closed.wait(timeout=WITHIN_S)


def test_a_trailer_is_no_header(checkpoint: Path) -> None:
    body = LOGPROBS if isinstance(LOGPROBS, str) else json.dumps(LOGPROBS)
    sent = "POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
    sent += f"connection: close\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\nauthorization: Bearer {KEY}\r\n\r\n"
    with bounded(checkpoint) as client, connected(client, sent) as opened:
        assert everything(opened).startswith(b"HTTP/1.1 401 ")


def test_connections_leave_files_for_the_upstream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def most(files: int | None, **more: Any) -> int:
        monkeypatch.setattr("metaprobe.production.http.sockets._most_files", lambda: files)
        return within_file_limit(Settings(checkpoint="c", **more)).max_connections

    assert most(120) == 88
    assert most(120, upstream="http://u/v1") == 44
    assert "120 files may be open, which leaves room for 44 connections" in caplog.text
    caplog.clear()
    assert most(1024, upstream="http://u/v1") == most(None) == Settings(checkpoint="c").max_connections
    assert not caplog.records


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on open files")
def test_a_hundred_and_forty_silent_connections_and_few_files_stop_nobody(checkpoint: Path, tmp_path: Path) -> None:
    limited, log = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120)); ", tmp_path / "log"
    with program(log, checkpoint, "--grace", 1, before=limited) as (_, client), ExitStack() as open_ones:
        for _ in range(140):
            open_ones.enter_context(connected(client))
        for _ in range(3):
            assert client.post("/v1/score", LOGPROBS).status_code == 200
    lines = log.read_text().splitlines()
    assert not [line for line in lines if "Traceback" in line]
    assert len(lines) < 30


# Log lines


def test_what_happens_often_is_counted_and_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((0.0, 1.0, 2.0, SAY_AGAIN_S, SAY_AGAIN_S + 1))
    seldom = Seldom(logging.getLogger("metaprobe.test"), lambda: next(times))
    for what in "aaaab":
        seldom(what)
    assert [record.getMessage() for record in caplog.records] == ["a", "a (3 times since it was last said)", "b"]
