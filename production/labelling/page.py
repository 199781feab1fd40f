"""The labelling page: one answer at a time, right, wrong, unsure or skip, by keyboard. For this machine only."""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from metaprobe.api import RecordError
from metaprobe.production.http.completion_json import UNREADABLE
from metaprobe.production.monitoring.label_draw import SheetRow
from metaprobe.production.monitoring.label_words import HUMAN, label_value
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog

LABELLING_PAGE = Path(__file__).with_name("page.html")
MAX_BODY_BYTES = 1 << 16
LOOPBACK = ("127.0.0.1", "localhost")
LABELLING_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'",
}


class LabelServer:
    """Serves the page and its data on a free port of the loopback address. The URL holds a secret key."""

    def __init__(self, log: ScoreLog, rows: Sequence[SheetRow], *, who: str = "", port: int = 0) -> None:
        self._log = log
        self._rows = [{key: value for key, value in asdict(row).items() if key != "label"} for row in rows]
        self._request_ids = {row.request_id for row in rows}
        self._who = who
        self.key = secrets.token_urlsafe(16)
        self.done = threading.Event()
        """Set when the page reports that labelling is finished."""
        listener = socket.create_server((LOOPBACK[0], port))
        self.port = int(listener.getsockname()[1])
        # An address holds the key: nothing is logged.
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
        self._server = uvicorn.Server(
            uvicorn.Config(self._answer_request, interface="asgi3", proxy_headers=False, **quiet)
        )
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """URL of the page, with its key."""
        return f"http://{LOOPBACK[0]}:{self.port}/?key={self.key}"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def store(self, label: Mapping[str, Any]) -> None:
        """Stores one label. Raises `ValueError` for an invalid label, and `LogError` if it cannot be stored."""
        if label.get("request_id") not in self._request_ids:
            raise ValueError("that answer is not on this sheet")
        value = label_value(label.get("label"))
        self._log.add_labels([FeedbackLabel(label["request_id"], value, self._who, time.time(), HUMAN)])

    async def _answer_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request of the page, if it has the key and was addressed to this machine."""
        request, status = Request(scope, receive), 200
        content: object = {}
        key = request.headers.get("x-metaprobe-key", "") or request.query_params.get("key", "")
        # Another host name may point to this machine: then a page in its browser could read the answers.
        name = request.headers.get("host", "").rpartition(":")[0]
        if name not in LOOPBACK or not secrets.compare_digest(key.encode(), self.key.encode()):
            status, content = 403, {"error": "open the page by the address that `metaprobe sample --page` printed"}
        elif (request.method, request.url.path) == ("GET", "/"):
            content = LABELLING_PAGE.read_bytes()
        elif (request.method, request.url.path) == ("GET", "/rows"):
            content = {"rows": self._rows, "who": self._who}
        elif (request.method, request.url.path) == ("POST", "/done"):
            self.done.set()
        elif (request.method, request.url.path) == ("POST", "/label"):
            try:
                length = int(request.headers.get("content-length", ""))
                if not 0 <= length <= MAX_BODY_BYTES:
                    raise ValueError(f"{length} bytes came; at most {MAX_BODY_BYTES} are read")
                self.store(msgspec.json.decode(await request.body(), type=dict[str, Any]))
            except (*UNREADABLE, RecordError) as error:
                status, content = 422, {"error": str(error)}
        else:
            status, content = 404, {"error": "there is nothing at this address"}
        is_page = isinstance(content, bytes)
        body, content_type = (
            (content, "text/html; charset=utf-8") if is_page else (msgspec.json.encode(content), "application/json")
        )
        await Response(body, status, LABELLING_HEADERS, content_type)(scope, receive, send)


def label_on_page(
    log: ScoreLog, rows: Sequence[SheetRow], *, who: str = "", port: int = 0, say: Callable[[str], object] = print
) -> None:
    """Serves the page until the user finishes or presses Ctrl-C. Labels are stored one by one.

    Args:
        log: the score log.
        rows: answers to label.
        who: name of the user.
        port: port of the page; 0 takes a free one.
        say: called with messages for the user.
    """
    server = LabelServer(log, rows, who=who, port=port)
    try:
        say(f"label {len(rows)} answers at {server.url}")
        say("Ctrl-C ends it; every label is stored at once")
        while not server.done.wait(0.2):
            pass
    finally:
        server.close()
