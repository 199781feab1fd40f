"""The HTTP server of the tests: a function answers each request, as an upstream, a hub or another product does."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JSON = "application/json"


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """The answer to one request."""

    body: bytes = b"{}"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": JSON})
    claimed_bytes: int | None = None
    """Length that the head claims, if it is not that of the body."""

    @classmethod
    def of(cls, value: object, status: int = 200) -> "Reply":
        """Returns a value as JSON."""
        return cls(json.dumps(value).encode(), status)


@contextmanager
def serving(answer: Callable[[Asked], Reply], port: int = 0) -> Iterator[str]:
    """Yields the address, without a path, of a server that answers HEAD, GET and POST in threads of their own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for the acknowledgement of its head

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = answer(Asked(self.command, self.path, dict(self.headers), body))
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            length = len(reply.body) if reply.claimed_bytes is None else reply.claimed_bytes
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        def do_HEAD(self) -> None:
            self.respond()

        def do_GET(self) -> None:
            self.respond()

        def do_POST(self) -> None:
            self.respond()

        def log_message(self, *_: object) -> None:
            """Prints nothing about a request."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
