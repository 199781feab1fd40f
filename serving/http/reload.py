"""Takes in other checkpoints while requests go on: at a signal, or when the file that pins them has changed."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from metaprobe.checkpoints import CheckpointError
from metaprobe.records.errors import RecordError
from metaprobe.serving.http.hangup import take_hangups
from metaprobe.serving.http.judges import Judges, Office
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.scorer import log_unexpected

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often the file of pins is looked at."""


class Reloader:
    """Puts other judges into office, all at once; where one of them does not load, those before stay and it says so."""

    def __init__(self, office: Office, load: Callable[[], Judges], pins: Path | None, metrics: Metrics) -> None:
        self._office = office
        self._load = load
        self._pins = pins
        self._metrics = metrics
        self._seen = self._look()
        self._asked = asyncio.Event()
        self.refused = False
        """Whether the last attempt failed, and older checkpoints judge than are meant to."""

    async def reload(self) -> bool:
        """Whether the judges are now those that the settings and the file of pins name."""
        try:
            judges = await asyncio.to_thread(self._load)
        except (CheckpointError, RecordError, OSError, UnicodeDecodeError) as error:
            logger.error("the checkpoints stay as they were: %s", error)
            self.refused = True
        except Exception as error:
            log_unexpected(logger, "loading checkpoints", error)
            self.refused = True
        else:
            before, self._office.now = self._office.now, judges
            self.refused = False
            for name, digest in judges.digests().items():
                changed = "as before" if before.digests().get(name) == digest else "from now on"
                logger.info("%s is judged by %s, %s", name or "every other model", digest[:16], changed)
        self._metrics.reloads.labels("refused" if self.refused else "taken").inc()
        return not self.refused

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Reloads at SIGHUP (where there is one, in a process of its own) and when the file of pins has changed."""
        loop = asyncio.get_running_loop()
        signals = hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread()
        if signals:
            loop.add_signal_handler(signal.SIGHUP, self._asked.set)
            take_hangups()
        watch = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            if signals:
                loop.remove_signal_handler(signal.SIGHUP)
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._pins is None else LOOK_S):
                    await self._asked.wait()
            found = self._look()
            if self._asked.is_set() or found != self._seen:
                self._asked.clear()
                self._seen = found
                await self.reload()

    def _look(self) -> bytes | None:
        """What the file of pins says; None where there is none, or it cannot be read now."""
        if self._pins is None:
            return None
        try:
            return self._pins.read_bytes()
        except OSError:
            return None
