"""How much memory requests may take: counted in their bytes before they are read, and held for all at once.

A JSON value of two characters becomes an object of 30 to 200 bytes, so a body of 16 MiB that holds nothing but `[],[]`
would take half a gigabyte and seconds. Its brackets and commas are counted first, which takes milliseconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from starlette.types import ASGIApp, Receive, Scope, Send

from metaprobe.serving.http.aside import LARGE_BYTES
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.settings import Settings

SCOPE_LEASE = "metaprobe.memory"
"""Where a request finds its `Lease`."""
OBJECT_BYTES, ARRAY_BYTES, VALUE_BYTES = 160, 64, 32
"""What `json.loads` takes for each `{`, each `[` and each value, about."""
DENSEST = 16
"""Bytes of objects that a byte of the body may become. Log-probabilities become 8 to 12, a list of empty lists 32."""
SPARED_BYTES = 4 << 20
"""A body may always become so much."""
SMALL_BYTES = LARGE_BYTES
"""Bodies up to here are read on the event loop, one at a time."""
BODIES = 16
"""Requests in flight may take as much memory as so many of the largest bodies."""
LARGE_SHARE = 0.75
"""Share of it that bodies above `SMALL_BYTES` may take, so that they leave room for the small ones."""
_CHUNK = 1 << 20
_QUOTE, _COMMA, _OPEN_ARRAY, _OPEN_OBJECT = b'",[{'


class Memory:
    """The memory of all requests in flight in one worker, in bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(BODIES * settings.max_body_bytes)

    def lease(self) -> "Lease":
        return Lease(self)

    def _change(self, held: int, wanted: int, *, large: bool) -> None:
        most = int(self._most * LARGE_SHARE) if large else self._most
        if wanted > most:
            message = f"reading the request takes about {wanted >> 20} MiB, and at most {most >> 20} are given to one"
            raise Refusal(413, "too_many_values", f"{message}; send fewer or shorter responses")
        if wanted > held and self._used - held + wanted > most:
            message = "other requests take the memory that there is for them; try again in 1 s"
            # Perhaps a part of the request is still on its way, and is not read.
            raise Refusal(429, "out_of_memory", message, {"retry-after": "1", "connection": "close"})
        self._used += wanted - held


@dataclass(slots=True)
class Lease:
    """The memory of one request."""

    memory: Memory
    held: int = 0

    def hold_body(self, size: int) -> None:
        """Holds the bytes of a body while it comes: they are there twice when its parts are joined.

        Raises `Refusal` (429) where other requests hold what is left.
        """
        self._hold(2 * size, large=size > SMALL_BYTES)

    def hold_read(self, weight: int, size: int) -> None:
        """Holds what a body of `size` bytes takes once it is read, as `weigh` says.

        A small one is read on the event loop, where no other is read meanwhile, so that its bytes alone count. Raises
        `Refusal`: 413 where it is too much for any request, 429 where other requests hold what is left.
        """
        large = size > SMALL_BYTES
        self._hold(weight if large else size, large=large)

    def _hold(self, wanted: int, *, large: bool) -> None:
        self.memory._change(self.held, wanted, large=large)
        self.held = wanted

    def give_back(self) -> None:
        self.memory._used -= self.held
        self.held = 0


class Leasing:
    """Gives every request its lease, for as long as it is answered. Plain ASGI, around the application."""

    def __init__(self, app: ASGIApp, *, memory: Memory) -> None:
        self._app, self._memory = app, memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = self._memory.lease()
        try:
            await self._app({**scope, SCOPE_LEASE: lease}, receive, send)
        finally:
            lease.give_back()


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
    depth, found = 0, 1
    for values in _outside_strings(array):
        step = np.zeros(len(values), dtype=np.int32)
        step[(values == _OPEN_OBJECT) | (values == _OPEN_ARRAY)] = 1
        step[(values == ord("}")) | (values == ord("]"))] = -1
        depths = np.cumsum(step, dtype=np.int32) + depth
        found += int(np.count_nonzero((values == _COMMA) & (depths == 1)))
        depth = int(depths[-1]) if len(depths) else depth
    return found


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
