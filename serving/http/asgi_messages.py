"""What an ASGI middleware does with a request's messages: read a body, hand it on, live as long as the application."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)


async def read_body(receive: Receive, limit: int) -> tuple[bytes, bool]:
    """The request's body, and whether it is whole: one above `limit` is read no further, one that broke off ends."""
    parts: list[bytes] = []
    size, more = 0, True
    while more and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts), False
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
    return b"".join(parts), not more


async def until_the_end(app: ASGIApp, scope: Scope, receive: Receive, send: Send, close: Callable[[], Any]) -> None:
    """Has the application live, and calls `close` before the server hears that it has ended: then it ends the process.

    An application without a life of its own fails at once and says nothing; it is answered for here.
    """
    heard, said = [], False

    async def hear() -> Message:
        heard.append(await receive())
        return heard[-1]

    async def say(message: Message) -> None:
        nonlocal said
        said = True
        if message["type"].startswith("lifespan.shutdown"):
            await asyncio.to_thread(close)
        await send(message)

    try:
        await app(scope, hear, say)
    except Exception as error:
        if said:
            await asyncio.to_thread(close)
            raise
        logger.info("the application has no lifespan of its own (%s: %s)", type(error).__name__, error)
        if not heard:
            await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.to_thread(close)
        await send({"type": "lifespan.shutdown.complete"})


async def first_of(receive: Receive, ended: asyncio.Event) -> Message:
    """What the caller does next, or that it is gone where the answer was ended before."""
    waiting = [asyncio.ensure_future(receive()), asyncio.ensure_future(ended.wait())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return {"type": "http.disconnect"} if ended.is_set() else await waiting[0]  # type: ignore[return-value]
    finally:
        for task in waiting:
            task.cancel()


def once_more(body: bytes, whole: bool, receive: Receive) -> Receive:
    """What has been received, once more, then the rest."""
    told = False

    async def received() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": not whole}

    return received


def is_json(scope: Scope) -> bool:
    """Whether the request says that its body is JSON."""
    return Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def with_length(scope: Scope, body: bytes) -> Scope:
    """The same request with a body of another length."""
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
