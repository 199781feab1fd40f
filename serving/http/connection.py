"""What a caller's connection needs: a body of bounded size and time, and an end of work when the caller is gone."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from metaprobe.serving.http.aside import REQUESTS, aside
from metaprobe.serving.http.memory import SCOPE_LEASE, Memory, weigh
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.settings import Settings

Result = TypeVar("Result")


def gone() -> Refusal:
    """The caller closed the connection; nobody will read this."""
    return Refusal(499, "client_gone", "the caller closed the connection")


async def read_json_body(request: Request, settings: Settings) -> bytes:
    """The request's body, counted as it comes, whatever Content-Length says, and weighed. Raises `Refusal`."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # A page in a browser may send any other kind to this machine without being asked about it.
        raise Refusal(415, "unsupported_media_type", "expected Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        # What is never unpacked cannot unpack to more than it seems.
        raise Refusal(415, "unsupported_encoding", "the request is compressed; expected it as it is, in JSON")
    limit, lease = settings.max_body_bytes, request.scope.get(SCOPE_LEASE) or Memory.of(settings).lease()
    announced = request.headers.get("content-length", "")
    parts: list[bytes] = []
    size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
    received = 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            if size <= limit:
                lease.hold_body(size)
                async for part in request.stream():
                    received += len(part)
                    if received > limit:
                        break
                    lease.hold_body(max(size, received))
                    parts.append(part)
    except TimeoutError as error:
        message = f"the request did not arrive within {settings.body_timeout_s:g} s"
        raise Refusal(408, "body_timeout", message, {"connection": "close"}) from error
    except ClientDisconnect as error:
        raise gone() from error
    if max(size, received) > limit:
        # What is still on its way is not read, so the connection cannot be used again.
        message = f"the request is larger than {limit} bytes; send fewer or shorter ones"
        raise Refusal(413, "body_too_large", message, {"connection": "close"})
    body = b"".join(parts)
    del parts  # the body's second copy, while it waits for a thread
    lease.hold_read(await aside(len(body), lambda: weigh(body), REQUESTS), len(body))
    return body


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` returns. Cancels it and raises `gone()` when the caller closes the connection first.

    The request's body must have been read.
    """
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(_closed(receive))
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


async def _closed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
