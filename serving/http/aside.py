"""Work on a large body, in a thread: on the event loop it would hold up every other request and stream."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

LARGE_BYTES = 1 << 20
"""About 5 ms of reading and scoring; a thread costs a tenth of a millisecond, and its share of Python's lock."""
AT_ONCE = 2
"""Large bodies in work at one time in one process; more would slow down the event loop that they are to spare."""

_threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="metaprobe-large")


async def aside(size: int, work: Callable[[], Result]) -> Result:
    """What `work` returns: on the event loop for a body of up to `LARGE_BYTES`, else in a thread."""
    if size <= LARGE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads, work)
