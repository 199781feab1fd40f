"""Bodies of requests, read within bounds of size, time and memory, and the server's own answers: JSON and refusals.

A JSON value of two characters becomes an object of 30 to 200 bytes, so a body of 16 MiB that holds nothing but `[],[]`
would take half a gigabyte and seconds. Its brackets and commas are counted first, which takes milliseconds. Large
bodies are worked on in threads. Refusals have the shape in which OpenAI's API says them.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from metaprobe.serving.http.settings import Settings


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a response that holds the value as JSON."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


class Refusal(Exception):
    """Ends a request with `status`. `code` is for programs, `message` for people; neither is ever logged."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    def response(self) -> Response:
        error = error_object(self.status, self.code, self.message)
        return json_response({"error": error}, self.status, self.headers)


def error_object(status: int, code: str, message: str) -> dict[str, object]:
    """Returns the object under `error`, as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "upstream_error" if code.startswith("upstream") else "error"
    return {"message": message, "type": kind, "param": None, "code": code}


Result = TypeVar("Result")

LARGE_BYTES = 1 << 20
"""About 5 ms of reading and scoring, of an answer that is as it should be; a thread costs a tenth of a millisecond, and
its share of Python's lock."""
SCORED_BYTES = 64 << 10
"""Bytes that take at most 20 ms to score, whatever a caller sends."""
AT_ONCE = 2
"""Threads for each kind of work in one process; more would slow down the event loop that they are to spare."""
MOST_WAITING = 16
"""Large requests that wait for a thread: each takes at most a second or two, so the last one waits half a minute."""
RETRY_AFTER_S = 5


class Threads:
    """The threads for one kind of work, so that one kind does not wait for another."""

    def __init__(self, name: str, *, most_waiting: int | None = None) -> None:
        """`most_waiting`: pieces of work that may wait for a thread; None for any number."""
        self._name, self._most = name, None if most_waiting is None else most_waiting + AT_ONCE
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"metaprobe-{name}")
        self._held = 0
        """Pieces of work that wait or are in a thread."""
        self._lock = Lock()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Returns what `work` returns. Raises `Refusal` (429) where too many pieces wait already."""
        if self._most is not None and self._held >= self._most:
            message = f"{self._held} large requests wait to be read; try again in {RETRY_AFTER_S} s"
            raise Refusal(429, "busy", message, {"retry-after": str(RETRY_AFTER_S)})
        self._count(1)
        future = self._threads.submit(work)
        future.add_done_callback(lambda _: self._count(-1))
        return await asyncio.wrap_future(future)

    def _count(self, change: int) -> None:
        with self._lock:
            self._held += change


REQUESTS = Threads("requests", most_waiting=MOST_WAITING)
"""For what callers send. It can be refused: nothing was paid for yet."""
SCORED = Threads("scored")
"""For what callers send to be scored, of up to `LARGE_BYTES`: as many as there may be requests in flight."""
ANSWERS = Threads("answers")
"""For whole answers of the upstream, which are paid for and so wait for their turn."""
STREAMS = Threads("streams")
"""For the chunks of streams, which come one after the other."""


async def aside(size: int, work: Callable[[], Result], threads: Threads = ANSWERS) -> Result:
    """Returns what `work` returns. A body above `LARGE_BYTES` is worked on in a thread, others on the event loop.

    Raises `Refusal` (429) where the threads have too much to do.
    """
    return work() if size <= LARGE_BYTES else await threads.run(work)


class Scoring:
    """Scores what callers send, one piece of it at a time on the event loop. One for each event loop.

    Tokens that do not spell their answer, thinking or chunks cost 30 times as long a byte as others. So above
    `SCORED_BYTES` they are scored in a thread; and of many that are ready at once, other requests have their turn after
    each.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def of(self, size: int, work: Callable[[], Result]) -> Result:
        """Returns what `work` on a body of `size` bytes returns. Raises `Refusal` (429) as `aside` does."""
        if size > LARGE_BYTES:
            return await REQUESTS.run(work)
        if size > SCORED_BYTES:
            return await SCORED.run(work)
        async with self._turn:
            scored = work()
            await asyncio.sleep(0)
        return scored


SCOPE_LEASE = "metaprobe.memory"
"""Key of the scope with the request's `Lease`."""
OBJECT_BYTES, ARRAY_BYTES, VALUE_BYTES = 160, 64, 32
"""Bytes that `json.loads` takes for each `{`, each `[` and each value, about."""
DENSEST = 16
"""Bytes of objects that a byte of the body may become. Log-probabilities become 8 to 12, a list of empty lists 32."""
SPARED_BYTES = 4 << 20
"""A body may always become so much."""
BODIES = 16
"""Requests in flight may take as much memory as so many of the largest bodies."""
LARGE_SHARE = 0.75
"""Share of it that bodies above `LARGE_BYTES` may take, so that they leave room for the small ones."""
_CHUNK = 1 << 20
_QUOTE, _COMMA, _OPEN_ARRAY, _OPEN_OBJECT = b'",[{'


class Leasing:
    """Bounds the memory of all requests in flight in one worker: each has a lease for as long as it is answered.

    Plain ASGI, around the application.
    """

    def __init__(self, app: ASGIApp, *, most: int) -> None:
        """`most`: bytes."""
        self._app, self.most, self.used = app, most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = Lease(self)
        try:
            await self._app({**scope, SCOPE_LEASE: lease}, receive, send)
        finally:
            lease.hold(0, large=False)


@dataclass(slots=True)
class Lease:
    """The memory of one request, in bytes."""

    memory: Leasing
    held: int = 0

    def hold(self, wanted: int, *, large: bool) -> None:
        """Holds this many bytes from now on. `large`: of a body above `LARGE_BYTES`.

        Raises `Refusal`: 413 where it is too much for any request, 429 where other requests hold what is left.
        """
        memory, more = self.memory, wanted - self.held
        most = int(memory.most * LARGE_SHARE) if large else memory.most
        if wanted > most:
            message = f"reading the request takes about {wanted >> 20} MiB, and at most {most >> 20} are given to one"
            raise Refusal(413, "too_many_values", f"{message}; send fewer or shorter responses")
        if more > 0 and memory.used + more > most:
            message = "other requests take the memory that there is for them; try again in 1 s"
            # Perhaps a part of the request is still on its way, and is not read.
            raise Refusal(429, "out_of_memory", message, {"retry-after": "1", "connection": "close"})
        memory.used += more
        self.held = wanted


def weigh(body: bytes) -> int:
    """About how many bytes reading a JSON body takes, the body and its text included.

    Raises `Refusal` (413) for one that becomes far more than what it is for: it holds next to nothing but brackets.
    """
    texts = len(body) * (2 if body.isascii() else 5)  # as bytes, and as a string of up to four bytes a character
    limit = DENSEST * len(body) + SPARED_BYTES
    made = _made(body.count(b"{"), body.count(b"["), body.count(b","))
    if made > limit and b"\x00" not in body:  # UTF-16: what is within strings cannot be told
        made = _made(*count_outside_strings(body))
    if made > limit:
        message = f"the body has {len(body)} bytes and as many values as take {made >> 20} MiB"
        raise Refusal(413, "too_many_values", f"{message}; expected responses with log-probabilities, or labels")
    return texts + made


def _made(objects: int, arrays: int, commas: int) -> int:
    return OBJECT_BYTES * objects + ARRAY_BYTES * arrays + VALUE_BYTES * (objects + arrays + commas + 1)


def count_outside_strings(body: bytes) -> tuple[int, int, int]:
    """How many `{`, `[` and commas of a JSON text are no part of a string."""
    objects = arrays = commas = 0
    for values in _outside_strings(body):
        objects += int(np.count_nonzero(values == _OPEN_OBJECT))
        arrays += int(np.count_nonzero(values == _OPEN_ARRAY))
        commas += int(np.count_nonzero(values == _COMMA))
    return objects, arrays, commas


def count_elements(array: bytes) -> int:
    """How many elements a JSON array has, at least: its commas that are in nothing else, and one."""
    depth, elements = 0, 1
    for values in _outside_strings(array):
        step = np.zeros(len(values), dtype=np.int32)
        step[(values == _OPEN_OBJECT) | (values == _OPEN_ARRAY)] = 1
        step[(values == ord("}")) | (values == ord("]"))] = -1
        depths = np.cumsum(step, dtype=np.int32) + depth
        elements += int(np.count_nonzero((values == _COMMA) & (depths == 1)))
        depth = int(depths[-1]) if len(depths) else depth
    return elements


def _outside_strings(body: bytes) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a JSON text, a chunk at a time, those within strings as 0."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    inside = 0
    for at in range(0, len(body), _CHUNK):
        values = np.frombuffer(body, dtype=np.uint8, count=min(_CHUNK, len(body) - at), offset=at)
        quotes = np.cumsum(values == _QUOTE, dtype=np.int32) + inside
        yield np.where(quotes % 2 == 0, values, np.uint8(0))
        inside = int(quotes[-1]) % 2


def is_json(headers: Headers) -> bool:
    """Whether a request says that its body is JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def gone() -> Refusal:
    """The caller closed the connection; nobody will read this."""
    return Refusal(499, "client_gone", "the caller closed the connection")


async def read_json_body(request: Request, settings: Settings) -> bytes:
    """The request's body, counted as it comes, whatever Content-Length says, and weighed. Raises `Refusal`."""
    if not is_json(request.headers):
        # A page in a browser may send any other kind to this machine without being asked about it.
        raise Refusal(415, "unsupported_media_type", "expected Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        # A body that is never unpacked cannot unpack to more than it seems.
        raise Refusal(415, "unsupported_encoding", "the request is compressed; expected it as it is, in JSON")
    limit = settings.max_body_bytes
    lease: Lease = request.scope[SCOPE_LEASE]
    announced = request.headers.get("content-length", "")
    parts: list[bytes] = []
    size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
    received = 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            if size <= limit:
                lease.hold(2 * size, large=size > LARGE_BYTES)  # it is there twice when its parts are joined
                async for part in request.stream():
                    received += len(part)
                    if received > limit:
                        break
                    lease.hold(2 * max(size, received), large=max(size, received) > LARGE_BYTES)
                    parts.append(part)
    except TimeoutError as error:
        message = f"the request did not arrive within {settings.body_timeout_s:g} s"
        raise Refusal(408, "body_timeout", message, {"connection": "close"}) from error
    except ClientDisconnect as error:
        raise gone() from error
    if max(size, received) > limit:
        # The rest of the body is not read, so the connection cannot be used again.
        message = f"the request is larger than {limit} bytes; send fewer or shorter ones"
        raise Refusal(413, "body_too_large", message, {"connection": "close"})
    body = b"".join(parts)
    del parts  # the body's second copy, while it waits for a thread
    weight, large = await aside(len(body), lambda: weigh(body), REQUESTS), len(body) > LARGE_BYTES
    # A small body is read on the event loop, where no other is read meanwhile, so that its bytes alone count.
    lease.hold(weight if large else len(body), large=large)
    return body


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Returns what `work` returns. Cancels it and raises `gone()` when the caller closes the connection first.

    The request's body must have been read.
    """

    async def closed() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(closed())
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise gone()
        return task.result()
    finally:
        for running in (task, left):
            running.cancel()
            with suppress(asyncio.CancelledError, Exception):  # what counts was raised above
                await running
