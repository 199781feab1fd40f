"""Reads bodies of requests within limits of size, time and memory, and makes the server's own answers: JSON and
refusals.

A JSON value of two characters becomes an object of 30 to 200 bytes. So a body of 16 MiB that holds only `[],[]` would
take half a gigabyte and seconds. Its brackets and commas are counted first, which takes milliseconds. Large bodies are
processed in threads. Refusals have the format of OpenAI's errors.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from metaprobe.production.http.settings import Settings


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a response with the value as JSON.

    Args:
        value: the value.
        status: status of the response.
        headers: further headers.
    """
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


class Refusal(Exception):
    """Ends a request with an error status. `code` is for programs, `message` for people; neither is ever logged."""

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
    """Returns the object under `error`, as OpenAI's clients read it.

    Args:
        status: HTTP status.
        code: code for programs.
        message: message for people.
    """
    kind = "invalid_request_error" if status < 500 else "upstream_error" if code.startswith("upstream") else "error"
    return {"message": message, "type": kind, "param": None, "code": code}


Result = TypeVar("Result")

LOOP_BYTES = 32 << 10
"""Bytes of a request or an answer that the event loop may read at once.

Larger ones are read in a thread, which costs a tenth of a millisecond. The worst case of this size takes some ten
milliseconds (`benchmarks/fuzz_serving.py`).
"""
LARGE_BYTES = 1 << 20
"""Weight in bytes above which a task is large. It may use neither the last free thread, nor the last quarter of memory
or queue.
"""
THREADS_PER_KIND = 2
"""Threads for each kind of task in one process. More would slow down the event loop."""
MAX_WAITING_BYTES = 64 << 20
"""Most weight in bytes of all tasks that wait for a thread: about half a minute of the slowest kind."""
MAX_WAITING_TASKS = 512
"""Most tasks that may wait for a thread, even if they are small."""
SHARE_OF_ONE_KEY = 0.5
"""Share of a queue that one key may fill, so that other keys always find room."""
SHARE_OF_LARGE = 0.75
"""Share of memory and queue that large bodies may take, so that small bodies find room."""
RETRY_AFTER_S = 5

OWNER: ContextVar[tuple[str, str]] = ContextVar("metaprobe_owner", default=("", ""))
"""(key, connection) for which the current task runs. Turns are shared between keys, then between connections."""


class Busy(Refusal):
    """Too many tasks wait for a thread; nothing was done."""


@dataclass(slots=True, eq=False)
class _WaitingTask:
    """One task that waits for a thread."""

    work: Callable[[], Any]
    weight: int
    owner: tuple[str, str]
    future: Future[Any]

    @property
    def is_large(self) -> bool:
        return self.weight > LARGE_BYTES


class FairThreads:
    """The threads for one kind of task, with a bounded queue that is shared fairly between callers.

    The next task is the one that would end first if every connection had an equal share of a thread (self-clocked fair
    queueing). So a small task does not wait for large tasks before it, nor one connection for all of another's. Tasks
    of a key with many connections weigh more, so that more connections give no larger share. At least one thread takes
    no large task. Several event loops may use it.
    """

    def __init__(self, name: str, *, max_bytes: int = MAX_WAITING_BYTES, max_tasks: int = MAX_WAITING_TASKS) -> None:
        """Sets up the threads.

        Args:
            name: name of the kind of task.
            max_bytes: most weight of the waiting tasks.
            max_tasks: most waiting tasks.
        """
        self._name, self._max_bytes, self._max_tasks = name, max_bytes, max_tasks
        self._threads = ThreadPoolExecutor(THREADS_PER_KIND, thread_name_prefix=f"metaprobe-{name}")
        self._lock = Lock()
        self._small: list[tuple[float, int, _WaitingTask]] = []
        """Heap of waiting small tasks: (finish tag, task number, task)."""
        self._large: list[tuple[float, int, _WaitingTask]] = []
        """Heap of waiting large tasks."""
        self._clock = 0.0
        """Finish tag of the last task that was started."""
        self._finishes: dict[tuple[str, str], float] = {}
        """Maps an owner to the finish tag of its last task, while it has one here."""
        self._waiting: Counter[tuple[str, str]] = Counter()
        """Maps an owner to its number of waiting tasks."""
        self._bytes: Counter[str] = Counter()
        """Maps a key to the weight of its waiting tasks."""
        self.waiting_count = 0
        """Number of waiting tasks."""
        self._task_number = 0
        self._running_large = 0

    async def run(self, work: Callable[[], Result], weight: int = 0, *, begun: bool = False) -> Result:
        """Returns the result of `work`.

        Raises `Busy`: 429 if the key's own tasks fill the queue, 503 if tasks of others do.

        Args:
            work: called in a thread.
            weight: bytes that it reads, times how slow it is.
            begun: whether an earlier task of the same request is done, so that this one is not refused.
        """
        task = _WaitingTask(partial(copy_context().run, work), max(weight, 1), OWNER.get(), Future())
        with self._lock:
            if not begun:
                self._check_room(task)
            self._add(task)
        task.future.add_done_callback(lambda _: self._drop_if_cancelled(task))
        self._threads.submit(self._work)
        return cast(Result, await asyncio.wrap_future(task.future))

    def _check_room(self, task: _WaitingTask) -> None:
        """Raises `Busy` if the queue has no room for a task. Call it with the lock held."""
        key = task.owner[0]
        share = SHARE_OF_LARGE if task.is_large else 1.0
        waiting_bytes, waiting_bytes_of_key = self._bytes.total(), self._bytes[key]
        tasks_of_key = sum(count for owner, count in self._waiting.items() if owner[0] == key)
        # A piece always finds an empty queue, however heavy it is.
        if waiting_bytes_of_key and (
            waiting_bytes_of_key + task.weight > share * SHARE_OF_ONE_KEY * self._max_bytes
            or tasks_of_key >= self._max_tasks // 2
        ):
            raise _busy(429, f"{tasks_of_key} pieces of this key's work wait")
        if waiting_bytes and (
            waiting_bytes + task.weight > share * self._max_bytes or self.waiting_count >= self._max_tasks
        ):
            raise _busy(503, f"{self.waiting_count} pieces of work wait")

    def _add(self, task: _WaitingTask) -> None:
        """Puts a task into the queue. Call it with the lock held."""
        key = task.owner[0]
        self._waiting[task.owner] += 1
        connections = sum(owner[0] == key for owner in self._waiting)
        begins = max(self._clock, self._finishes.get(task.owner, 0.0))
        finish = self._finishes[task.owner] = begins + task.weight * connections
        self._bytes[key] += task.weight
        self.waiting_count, self._task_number = self.waiting_count + 1, self._task_number + 1
        heapq.heappush(self._large if task.is_large else self._small, (finish, self._task_number, task))

    def _leave(self, task: _WaitingTask) -> None:
        """Takes a task's weight out of the queue. Call it with the lock held."""
        key = task.owner[0]
        self.waiting_count -= 1
        self._waiting[task.owner] -= 1
        self._bytes[key] -= task.weight
        if not self._waiting[task.owner]:
            del self._waiting[task.owner], self._finishes[task.owner]
        if self._bytes[key] <= 0:
            del self._bytes[key]

    def _drop_if_cancelled(self, task: _WaitingTask) -> None:
        """Removes a waiting task at once if it was cancelled because its caller is gone."""
        if task.future.cancelled():
            with self._lock:
                for heap in (self._small, self._large):
                    remaining = [entry for entry in heap if entry[2] is not task]
                    if len(remaining) < len(heap):
                        heap[:] = remaining
                        heapq.heapify(heap)
                        self._leave(task)

    def _next(self) -> _WaitingTask | None:
        """Returns the task whose turn it is; None if no task may run now."""
        with self._lock:
            heaps = [self._small] if self._running_large >= THREADS_PER_KIND - 1 else [self._small, self._large]
            while filled_heaps := [heap for heap in heaps if heap]:
                self._clock, _, task = heapq.heappop(min(filled_heaps, key=lambda heap: heap[0]))
                self._leave(task)
                if task.future.set_running_or_notify_cancel():
                    self._running_large += task.is_large
                    return task
        return None

    def _work(self) -> None:
        """Runs waiting tasks until no task may run."""
        while (task := self._next()) is not None:
            try:
                result = task.work()
            except BaseException as error:
                self._done(task)
                task.future.set_exception(error)
            else:
                self._done(task)
                task.future.set_result(result)
            del task

    def _done(self, task: _WaitingTask) -> None:
        with self._lock:
            self._running_large -= task.is_large


def _busy(status: int, what_waits: str) -> Busy:
    message = f"{what_waits} to be read; try again in {RETRY_AFTER_S} s"
    return Busy(status, "busy", message, {"retry-after": str(RETRY_AFTER_S)})


REQUESTS = FairThreads("requests")
"""Threads for tasks of callers: reading, scoring, panels. They can be refused, because nothing was paid yet."""
ANSWERS = FairThreads("answers")
"""Threads for answers of the upstream, whole and streamed. If there is no room, an answer passes without a score."""


async def aside(
    size: int, work: Callable[[], Result], threads: FairThreads = ANSWERS, *, begun: bool = False
) -> Result:
    """Returns the result of `work` on `size` bytes. Up to `LOOP_BYTES` it runs on the event loop, else in a thread.

    Raises `Busy` if the threads have too much to do, unless an earlier task of the request is done.

    Args:
        size: bytes of the task.
        work: the task.
        threads: the threads for its kind.
        begun: whether an earlier task of the request is done.
    """
    return work() if size <= LOOP_BYTES else await threads.run(work, size, begun=begun)


class Scoring:
    """Scores bodies of callers, one at a time on the event loop. There is one for each event loop.

    A body above `LOOP_BYTES` is scored in a thread. If many small bodies are ready at once, other requests get a turn
    after each.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def of(self, size: int, work: Callable[[], Result]) -> Result:
        """Returns the result of `work` on a body of `size` bytes. Raises `Busy` as `aside` does."""
        if size > LOOP_BYTES:
            return await REQUESTS.run(work, size)
        async with self._turn:
            scored = work()
            await asyncio.sleep(0)
        return scored


SCOPE_LEASE = "metaprobe.memory"
"""Key of the ASGI scope with the request's `Lease`."""
OBJECT_BYTES, ARRAY_BYTES, VALUE_BYTES = 160, 64, 32
"""Approximate bytes that `json.loads` takes for each `{`, each `[` and each value."""
MAX_BYTES_PER_BODY_BYTE = 16
"""Most bytes of objects that one byte of the body may become. A byte of log-probabilities becomes 8 to 12 bytes, of a
list of empty lists 32.
"""
ALWAYS_ALLOWED_BYTES = 4 << 20
"""Bytes of objects that any body may become."""
MEMORY_IN_BODIES = 16
"""Memory limit of all open requests and answers, in multiples of the largest body."""
_CHUNK_BYTES = 1 << 20
_QUOTE, _COMMA, _OPEN_ARRAY, _OPEN_OBJECT = b'",[{'


class Leasing:
    """Bounds the memory of all open requests and their answers in one worker. Each has a lease until it is answered.

    It is plain ASGI, around the application.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        """`max_bytes` is the limit of all leases together."""
        self._app, self.max_bytes, self.used_bytes = app, max_bytes, 0
        self.lock = Lock()
        """Lock for changes of `used_bytes`, because answers are weighed in threads."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = Lease(self)
        try:
            await self._app({**scope, SCOPE_LEASE: lease}, receive, send)
        finally:
            lease.hold(0, large=False)


@dataclass(slots=True)
class Lease:
    """Memory of one request, or of one answer, in bytes."""

    memory: Leasing
    held_bytes: int = 0
    closed: bool = False
    """Whether the lease is closed, so that it holds no memory whatever follows."""

    def close(self) -> None:
        """Releases the memory."""
        self.hold(0, large=False)
        self.closed = True

    def hold(self, byte_count: int, *, large: bool) -> None:
        """Sets the memory of this lease to `byte_count` bytes. `large` says that the body is above `LARGE_BYTES`.

        Raises `Refusal`: 413 if this is too much for any request, 429 if other requests hold the rest.
        """
        with self.memory.lock:
            if not self.closed:
                self._hold(byte_count, large)

    def _hold(self, byte_count: int, large: bool) -> None:
        memory, more_bytes = self.memory, byte_count - self.held_bytes
        max_bytes = int(memory.max_bytes * SHARE_OF_LARGE) if large else memory.max_bytes
        if byte_count > max_bytes:
            message = f"reading it takes about {byte_count >> 20} MiB, and at most {max_bytes >> 20} are given to one"
            raise Refusal(413, "too_many_values", f"{message}; send fewer or shorter responses")
        if more_bytes > 0 and memory.used_bytes + more_bytes > max_bytes:
            message = "other requests take the memory that there is for them; try again in 1 s"
            # Perhaps a part of the request is still on its way, and is not read.
            raise Refusal(429, "out_of_memory", message, {"retry-after": "1", "connection": "close"})
        memory.used_bytes += more_bytes
        self.held_bytes = byte_count


def reading_bytes(body: bytes) -> int:
    """Returns about how many bytes reading a JSON body takes, with the body and its text.

    Raises `Refusal` (413) for a body that would become far more than a normal one, because it holds almost only
    brackets.
    """
    text_bytes = len(body) * (2 if body.isascii() else 5)  # as bytes, and as a string of up to four bytes a character
    value_bytes = values_bytes(body)
    if value_bytes > MAX_BYTES_PER_BODY_BYTE * len(body) + ALWAYS_ALLOWED_BYTES:
        message = f"the body has {len(body)} bytes and as many values as take {value_bytes >> 20} MiB"
        raise Refusal(413, "too_many_values", f"{message}; expected responses with log-probabilities, or labels")
    return text_bytes + value_bytes


def values_bytes(body: bytes) -> int:
    """Returns about how many bytes the values of a JSON text take once they are read, apart from its strings."""
    size = _bytes_of_values(body.count(b"{"), body.count(b"["), body.count(b","))
    if (
        size > MAX_BYTES_PER_BODY_BYTE * len(body) + ALWAYS_ALLOWED_BYTES and b"\x00" not in body
    ):  # in UTF-16, strings cannot be told apart
        size = _bytes_of_values(*count_outside_strings(body))
    return size


def _bytes_of_values(objects: int, arrays: int, commas: int) -> int:
    return OBJECT_BYTES * objects + ARRAY_BYTES * arrays + VALUE_BYTES * (objects + arrays + commas + 1)


def count_outside_strings(body: bytes) -> tuple[int, int, int]:
    """Returns how many `{`, `[` and commas of a JSON text are outside strings."""
    objects = arrays = commas = 0
    for values in _outside_strings(body):
        objects += int(np.count_nonzero(values == _OPEN_OBJECT))
        arrays += int(np.count_nonzero(values == _OPEN_ARRAY))
        commas += int(np.count_nonzero(values == _COMMA))
    return objects, arrays, commas


def count_elements(array: bytes) -> int:
    """Returns at least how many elements a JSON array has: its commas outside inner values, plus one."""
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
    """Yields the bytes of a JSON text, one chunk at a time, with 0 for bytes within strings."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    inside = 0
    for offset in range(0, len(body), _CHUNK_BYTES):
        values = np.frombuffer(body, dtype=np.uint8, count=min(_CHUNK_BYTES, len(body) - offset), offset=offset)
        quotes = np.cumsum(values == _QUOTE, dtype=np.int32) + inside
        yield np.where(quotes % 2 == 0, values, np.uint8(0))
        inside = int(quotes[-1]) % 2


def is_json(headers: Headers) -> bool:
    """Returns whether a request states that its body is JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def gone() -> Refusal:
    """Returns the refusal for a closed connection; nobody will read it."""
    return Refusal(499, "client_gone", "the caller closed the connection")


async def read_json_body(request: Request, settings: Settings) -> bytes:
    """Returns the request's body, with its memory accounted. Bytes are counted as they arrive. Raises `Refusal`."""
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
    announced_size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
    received_bytes = 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            if announced_size <= limit:
                lease.hold(
                    2 * announced_size, large=announced_size > LARGE_BYTES
                )  # while its parts are joined, it is in memory twice
                async for part in request.stream():
                    received_bytes += len(part)
                    if received_bytes > limit:
                        break
                    lease.hold(
                        2 * max(announced_size, received_bytes), large=max(announced_size, received_bytes) > LARGE_BYTES
                    )
                    parts.append(part)
    except TimeoutError as error:
        message = f"the request did not arrive within {settings.body_timeout_s:g} s"
        raise Refusal(408, "body_timeout", message, {"connection": "close"}) from error
    except ClientDisconnect as error:
        raise gone() from error
    if max(announced_size, received_bytes) > limit:
        # The rest of the body is not read, so the connection cannot be used again.
        message = f"the request is larger than {limit} bytes; send fewer or shorter ones"
        raise Refusal(413, "body_too_large", message, {"connection": "close"})
    body = b"".join(parts)
    del parts  # the body's second copy, while it waits for a thread
    large = len(body) > LARGE_BYTES
    weight = await REQUESTS.run(partial(reading_bytes, body), len(body)) if large else reading_bytes(body)
    # Small bodies are decoded one at a time on the event loop, so only their bytes are counted, not their objects.
    lease.hold(weight if large else len(body), large=large)
    return body


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of `work`. If the caller closes the connection first, cancels it and raises `gone()`.

    The request's body must have been read before.
    """

    async def closed() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, closing = asyncio.ensure_future(work), asyncio.ensure_future(closed())
    try:
        await asyncio.wait((task, closing), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise gone()
        return task.result()
    finally:
        for running in (task, closing):
            running.cancel()
            with suppress(asyncio.CancelledError, Exception):  # what counts was raised above
                await running
