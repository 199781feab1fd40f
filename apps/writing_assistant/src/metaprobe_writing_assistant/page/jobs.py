"""Work that continues without listeners: an answer is not lost if its page is closed or loaded again."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

Event = dict[str, Any]
Work = Callable[["Job"], Awaitable[None]]
HEARTBEAT_S = 15.0
SILENCE_EVENT = ": still at work\n\n"
END_EVENT = "event: end\ndata: {}\n\n"
MAX_ENDED_JOBS = 200
"""Number of ended jobs whose events can still be read, for pages that come late."""


class Job:
    """One piece of work and everything that it has reported."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def tell(self, **event: Any) -> None:
        """Adds an event and wakes the listeners."""
        self.events.append(event)
        self._wake()

    def end(self) -> None:
        """Marks the job as ended."""
        self.ended = True
        self._wake()

    async def follow(self, start: int = 0, heartbeat_s: float = HEARTBEAT_S) -> AsyncIterator[tuple[int, Event] | None]:
        """Yields (number, event) from number `start` on until the end; None after each silence of `heartbeat_s`."""
        number = start
        while True:
            while number < len(self.events):
                yield number, self.events[number]
                number += 1
            if self.ended:
                return
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), heartbeat_s)
            except TimeoutError:
                yield None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Jobs:
    """The jobs of this process, by name."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def begin(self, name: str, work: Work) -> Job:
        """Starts a job, which ends when `work` does; `work` itself reports its errors."""
        job = Job(name)
        self._jobs[name] = job
        for old_job in [job for job in self._jobs.values() if job.ended][:-MAX_ENDED_JOBS]:
            del self._jobs[old_job.name]

        async def run() -> None:
            try:
                await work(job)
            finally:
                job.end()

        job.task = asyncio.create_task(run())
        return job

    def get(self, name: str) -> Job | None:
        """Returns a job, or None if this process no longer has it."""
        return self._jobs.get(name)

    def running(self, name: str) -> bool:
        """Whether that job is still at work."""
        job = self._jobs.get(name)
        return job is not None and not job.ended

    async def stop(self, name: str) -> bool:
        """Stops a job and waits until it has cleaned up. Returns whether it was at work."""
        job = self._jobs.get(name)
        if job is None or job.ended or job.task is None:
            return False
        job.task.cancel()
        with suppress(asyncio.CancelledError):
            await job.task
        return True

    async def forget(self, name: str) -> None:
        """Stops a job, and drops its events."""
        await self.stop(name)
        self._jobs.pop(name, None)

    async def stop_all(self) -> None:
        """Stops all jobs, when the server ends."""
        for name in list(self._jobs):
            await self.stop(name)


def stream_job(request: Request, job: Job) -> Response:
    """Returns the events of a job, from the one after `Last-Event-ID` on, and the event `end` after the last."""
    last_seen = request.headers.get("last-event-id", "")
    start = int(last_seen) + 1 if last_seen.isdecimal() else 0

    async def lines() -> AsyncIterator[str]:
        async for numbered_event in job.follow(start):
            yield (
                SILENCE_EVENT
                if numbered_event is None
                else f"id: {numbered_event[0]}\ndata: {json.dumps(numbered_event[1])}\n\n"
            )
        yield END_EVENT

    return StreamingResponse(lines(), media_type="text/event-stream")
