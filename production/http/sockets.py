"""Limits of connections: their number, how long they may send nothing, and how long they may read nothing.

A request that is being answered has other limits (`Settings.body_timeout_s`, `timeout_s`, `max_concurrency`). So a
running stream is never cut here.
"""

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.metrics import Seldom
from metaprobe.production.http.settings import Settings

logger = logging.getLogger(__name__)

OTHER_FILES = 32
"""File descriptors reserved for everything except connections: listener, event loop, log, files that workers share."""


def within_file_limit(settings: Settings) -> Settings:
    """Returns the settings with at most as many connections as the process's limit on open files allows.

    Of a small limit, half is reserved for connections to the upstream. A lowered setting is logged.
    """
    max_connections, max_files = settings.max_connections, _most_files()
    if max_files is not None:
        file_limit = max(max_files - OTHER_FILES, 2)
        max_connections = min(
            max_connections, file_limit - (min(settings.max_concurrency, file_limit // 2) if settings.upstreams else 0)
        )
    if max_connections < settings.max_connections:
        logger.warning(
            "%d files may be open, which leaves room for %d connections, not the %d asked for; raise the limit with"
            " `ulimit -n`, or give a smaller --max-connections",
            max_files,
            max_connections,
            settings.max_connections,
        )
    return replace(settings, max_connections=max_connections)


def _most_files() -> int | None:
    """Returns how many file descriptors this process may hold; None if there is no limit."""
    try:
        import resource
    except ImportError:  # there is none on Windows
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if most == resource.RLIM_INFINITY else most


_seldom = Seldom(logger)


MAX_HEADER_BYTES = 64 << 10
"""Most bytes of a request's first line and header."""
MAX_AHEAD = 16
"""Most requests that a connection may send ahead of the one being answered.

Each takes two kilobytes, and hundreds fit into one read.
"""
MAX_AHEAD_BYTES = 64 << 10
"""Most bytes of a body that may arrive before its request's turn. Beyond them reading would stop, and a caller that
leaves would not be noticed.
"""
STALLED_S = 2.0
"""Seconds after which a caller that reads nothing of a waiting answer makes room for a new connection, if
no other can.
"""


class BoundedProtocol(HttpToolsProtocol):
    """One connection, which ends if it sends or reads nothing for too long, or if its place is needed.

    If all places are taken, the connection that has been without a request for longest makes room. If every connection
    is being answered, the one whose answer has waited longest for its caller makes room. If no answer waits, the new
    connection is refused with 503.
    """

    def __init__(self, *arguments: Any, settings: Settings, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._max_connections, self._send_timeout_s = settings.max_connections, settings.send_timeout_s
        self._header_timeout_s = settings.header_timeout_s
        self._header_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._quiet_since = 0.0
        self._header_bytes = 0
        """Bytes so far of an incomplete header."""
        self._begun = False
        """Whether a request has begun and is not complete."""
        self._header_is_whole = False
        self._stalled_since: float | None = None
        """Time since which a part of the answer waits for the caller; None while nothing waits."""
        self._ahead: list[RequestResponseCycle] = []
        """Requests before the last one that may not have been answered yet. uvicorn knows only the last one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._quiet_since = self.loop.time()
        self._await_header()
        if len(self.connections) > self._max_connections:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        if not self._answering():
            self._await_header()
        self._feed(data)
        if self._answering():
            self._header_timer = _cancel(self._header_timer)

    def _feed(self, data: bytes) -> None:
        """Passes data to the parser.

        The parser stops at a request that offers another protocol, as a Java client's first request does, and drops its
        body. Such a request is parsed again without the offer, which HTTP lets a server ignore.
        """
        self._header_bytes += len(data)
        self._unset_keepalive_if_required()
        while data and not self.transport.is_closing():
            try:
                self.parser.feed_data(data)
                break
            except HttpParserUpgrade as offer:
                if self.parser.get_method() == b"CONNECT":  # which asks for a tunnel, whatever its header says
                    self.send_400_response("CONNECT is not answered here.")
                    break
                first = (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
                fields = (name + b": " + value for name, value in self.headers if name != b"upgrade")
                data = b"\r\n".join([b"%s %s HTTP/%s" % first, *fields, b"", data[offer.args[0] :]])
                self.parser = HttpRequestParser(self)
            except HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            message = f"the header of a request is longer than {MAX_HEADER_BYTES} bytes"
            self._refuse(Refusal(431, "header_too_large", message))

    def on_message_begin(self) -> None:
        self._begun, self._header_is_whole = True, False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer comes behind the body. As a header it could be a key, or a tag, that nobody in front has seen.
        if not self._header_is_whole:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():  # it is read anew
            return
        self._header_bytes, self._header_is_whole = 0, True
        if self.transport.is_closing():  # a further request in the same read
            return
        self._ahead = [cycle for cycle in (*self._ahead, self.cycle) if cycle and not cycle.response_complete]
        super().on_headers_complete()
        if len(self._ahead) > MAX_AHEAD:
            self._drop(f"closed a connection that sent more than {MAX_AHEAD} requests ahead of their answers")
        elif self._ahead:
            self.flow.resume_reading()  # uvicorn has stopped reading, and would not notice that the caller leaves

    def on_body(self, body: bytes) -> None:
        if self.transport.is_closing():
            return
        self._header_bytes = 0
        super().on_body(body)
        if self._ahead and len(self.cycle.body) > MAX_AHEAD_BYTES and not self._ahead[-1].response_complete:
            self._drop(f"closed a connection that sent more than {MAX_AHEAD_BYTES} bytes ahead of their turn")

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() or self.transport.is_closing():
            return
        self._begun, self._header_bytes = False, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._quiet_since = self.loop.time()
        super().on_response_complete()
        # The rest of this request, or of the next one, may still come, but only for a limited time.
        if not self._answering() and self._begun:
            self._await_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_timer = _cancel(self._header_timer)
        self._send_timer = _cancel(self._send_timer)
        super().connection_lost(exc)
        for cycle in self._ahead:
            cycle.disconnected = True
            cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_since = time.monotonic()
        self._await_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._send_timer, self._stalled_since = _cancel(self._send_timer), None
        super().resume_writing()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_header(self) -> None:
        """Starts the timer within which a request's header must be complete, unless it is running."""
        if self._header_timer is None:
            reason = f"closed a connection that sent no whole request header within {self._header_timeout_s:g} s"
            self._header_timer = self.loop.call_later(self._header_timeout_s, self._drop, reason)

    def _await_reader(self, unread: int) -> None:
        self._send_timer = self.loop.call_later(self._send_timeout_s, self._look_whether_read, unread)

    def _look_whether_read(self, unread_before: int) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes < unread_before:
            self._await_reader(unread_bytes)
        else:
            self._drop(f"closed a connection that read nothing of its answer for {self._send_timeout_s:g} s")

    def _make_room(self) -> None:
        other_connections = [
            connection
            for connection in self.connections
            if isinstance(connection, BoundedProtocol) and connection is not self
        ]
        if idle_connections := [connection for connection in other_connections if not connection._answering()]:
            oldest = min(idle_connections, key=lambda connection: connection._quiet_since)
            oldest._drop(f"all {self._max_connections} connections taken: closed the one idle for longest")
            return
        stalled_since_of = {
            connection: connection._stalled_since
            for connection in other_connections
            if connection._stalled_since is not None
        }
        if stalled_since_of and time.monotonic() - min(stalled_since_of.values()) >= STALLED_S:
            longest = min(stalled_since_of, key=stalled_since_of.__getitem__)
            longest._drop(f"all {self._max_connections} connections taken: closed one whose caller does not read")
            return
        _seldom(f"all {self._max_connections} connections are being answered: refused a new one")
        message = "all connections are in use; try again in a moment"
        self._refuse(Refusal(503, "too_many_connections", message, {"retry-after": "1"}))

    def _refuse(self, refusal: Refusal) -> None:
        """Sends a refusal if no request has arrived, or an incomplete one, and closes the connection."""
        answer = refusal.response()
        headers = (*answer.raw_headers, (b"connection", b"close"))
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[answer.status_code] + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def _drop(self, reason: str) -> None:
        _seldom(reason)
        self.connections.discard(self)  # at once: the next one that needs a place counts them
        self.transport.abort()  # an orderly close would wait for a reader that there may not be


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancels a timer if there is one, and returns None, which the caller stores in the timer's place."""
    if timer is not None:
        timer.cancel()
    return None
