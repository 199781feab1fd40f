"""Work on a large body, in a thread: on the event loop it would hold up every other request and stream."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from metaprobe.serving.http.refusal import Refusal

Result = TypeVar("Result")

LARGE_BYTES = 1 << 20
"""About 5 ms of reading and scoring, of an answer that is as it should be; a thread costs a tenth of a millisecond, and
its share of Python's lock."""
SCORED_BYTES = 64 << 10
"""At most 20 ms of scoring, whatever a caller sends."""
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
        """What `work` returns. Raises `Refusal` (429) where too many pieces wait already."""
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
    """What `work` returns: on the event loop for a body of up to `LARGE_BYTES`, else in one of the threads.

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
        """What `work` on a body of `size` bytes returns. Raises `Refusal` (429) as `aside` does."""
        if size > LARGE_BYTES:
            return await REQUESTS.run(work)
        if size > SCORED_BYTES:
            return await SCORED.run(work)
        async with self._turn:
            scored = work()
            await asyncio.sleep(0)
        return scored
