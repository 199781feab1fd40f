"""Log lines of what may happen thousands of times a second, without thousands of lines."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

SAY_AGAIN_S = 60.0


class Seldom:
    """Logs the first of many equal events at once, and of the others once a minute how many there were."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}

    def __call__(self, what: str) -> None:
        now = self._clock()
        last, unsaid = self._said.get(what, (-SAY_AGAIN_S, 0))
        if now - last < SAY_AGAIN_S:
            self._said[what] = (last, unsaid + 1)
            return
        self._log.warning("%s%s", what, f" ({unsaid + 1} times since it was last said)" if unsaid else "")
        self._said[what] = (now, 0)


def say_out_of_files_once(loop: asyncio.AbstractEventLoop) -> None:
    """Where no more connections can be taken in, one line says so, in place of a traceback for every attempt."""
    seldom = Seldom(logger)
    before = loop.get_exception_handler() or type(loop).default_exception_handler

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if str(context.get("message", "")).startswith("socket.accept() out of system resource"):
            seldom(f"no new connection can be taken in: {context.get('exception')}")
        else:
            before(loop, context)

    loop.set_exception_handler(handle)
