"""What a job says, as server-sent events: a page that was closed and comes again hears all of it."""

import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from metaprobe.serving.assistant.jobs import Job

SILENCE = ": still at work\n\n"
END = "event: end\ndata: {}\n\n"


def stream_job(request: Request, job: Job) -> Response:
    """Returns the events of a job, from the one after `Last-Event-ID` on, and the event `end` after the last."""
    seen = request.headers.get("last-event-id", "")
    start = int(seen) + 1 if seen.isdecimal() else 0

    async def lines() -> AsyncIterator[str]:
        async for heard in job.follow(start):
            yield SILENCE if heard is None else f"id: {heard[0]}\ndata: {json.dumps(heard[1])}\n\n"
        yield END

    return StreamingResponse(lines(), media_type="text/event-stream")
