"""The labelling page: one answer at a time, right, wrong, unsure or skip, by keyboard. For this machine only."""

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from metaprobe.monitoring.labels import HUMAN, label_value
from metaprobe.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.monitoring.sampling import SheetRow
from metaprobe.records.errors import RecordError

PAGE = Path(__file__).with_name("page.html")
MAX_BODY = 1 << 16
LOOPBACK = ("127.0.0.1", "localhost")


class LabelServer:
    """The page and its answers, on a free port of the loopback address; the URL holds a key that nobody else knows."""

    def __init__(self, log: ScoreLog, rows: Sequence[SheetRow], *, who: str = "", port: int = 0) -> None:
        self._log = log
        self._rows = [{key: value for key, value in asdict(row).items() if key != "label"} for row in rows]
        self._known = {row.request_id for row in rows}
        self._who = who
        self.key = secrets.token_urlsafe(16)
        self.done = threading.Event()
        """Set once the page says that it is done."""
        handler = type("_BoundHandler", (_Handler,), {"page": self})
        self._server = ThreadingHTTPServer((LOOPBACK[0], port), handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The page's URL, with its key."""
        return f"http://{LOOPBACK[0]}:{self.port}/?key={self.key}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def rows(self) -> dict[str, Any]:
        """Returns the rows that the page shows, and who labels."""
        return {"rows": self._rows, "who": self._who}

    def store(self, given: Mapping[str, Any]) -> None:
        """Keeps one label. Raises `ValueError` for what is none, and `LogError` where it cannot be stored."""
        if given.get("request_id") not in self._known:
            raise ValueError("that answer is not on this sheet")
        value = label_value(given.get("label"))
        self._log.add_labels([FeedbackLabel(given["request_id"], value, self._who, time.time(), HUMAN)])


class _Handler(BaseHTTPRequestHandler):
    """Answers the page's requests; only those that come with the key, and were meant for this machine."""

    page: LabelServer
    timeout = 30

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if not self._may(parse_qs(parts.query).get("key", [""])[0]):
            return
        if parts.path == "/":
            self._answer(PAGE.read_bytes(), "text/html; charset=utf-8")
        elif parts.path == "/rows":
            self._answer(json.dumps(self.page.rows()).encode(), "application/json")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")

    def do_POST(self) -> None:
        if not self._may(self.headers.get("x-metaprobe-key", "")):
            return
        try:
            length = int(self.headers.get("content-length", ""))
            if not 0 <= length <= MAX_BODY:
                raise ValueError(f"{length} bytes came; at most {MAX_BODY} are read")
            given = json.loads(self.rfile.read(length))
            if self.path == "/done":
                self._answer(b"{}", "application/json")
                self.page.done.set()
                return
            self.page.store(given)
        except (ValueError, TypeError, AttributeError, RecordError, RecursionError) as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
            return
        self._answer(b"{}", "application/json")

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing: an address holds the key."""

    def _may(self, key: str) -> bool:
        # A name that someone else made point here would let a page in this machine's browser read the answers.
        name = self.headers.get("host", "").rpartition(":")[0]
        if name not in LOOPBACK or not secrets.compare_digest(key.encode(), self.page.key.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "open the page by the address that `metaprobe sample --page` printed")
            return False
        return True

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._answer(json.dumps({"error": message}).encode(), "application/json", status)

    def _answer(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("cache-control", "no-store")
        self.send_header("referrer-policy", "no-referrer")
        self.send_header("x-content-type-options", "nosniff")
        self.send_header(
            "content-security-policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
        )
        self.end_headers()
        self.wfile.write(body)


def label_on_page(
    log: ScoreLog, rows: Sequence[SheetRow], *, who: str = "", port: int = 0, say: Callable[[str], object] = print
) -> None:
    """Serves the page until whoever labels says that it is done, or presses Ctrl-C; labels are stored one by one."""
    server = LabelServer(log, rows, who=who, port=port)
    try:
        say(f"label {len(rows)} answers at {server.url}")
        say("Ctrl-C ends it; every label is stored at once")
        while not server.done.wait(0.2):
            pass
    finally:
        server.close()
