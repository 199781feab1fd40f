"""Adds verdicts inside an engine's own server: an ASGI middleware, so that no request passes through a proxy.

    METAPROBE_CHECKPOINT=CHECKPOINT vllm serve MODEL --middleware metaprobe.production.http.middleware.VerdictMiddleware

Any ASGI application with `/v1/chat/completions` can use it. It is configured by environment variables, because engines
create it without arguments.
"""

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metaprobe.api import QualityPredictor, StreamingGate
from metaprobe.production.http.bodies import (
    LARGE_BYTES,
    MEMORY_IN_BODIES,
    OWNER,
    REQUESTS,
    Lease,
    Leasing,
    Refusal,
    aside,
    is_json,
)
from metaprobe.production.http.completion_json import ChatRequest, read_chat
from metaprobe.production.http.environment import from_environment
from metaprobe.production.http.exchange import (
    ANSWER_COPIES,
    FORBIDDEN,
    MAX_ERROR_BYTES,
    Declined,
    Exchange,
    Passing,
    ScoredRequest,
)
from metaprobe.production.http.judges import Scorer, load_gates, load_judge
from metaprobe.production.http.metrics import Metrics
from metaprobe.production.http.request_log import SCOPE_CALLERS_ID, SCOPE_ID, RequestLog, ServerLog, callers_id
from metaprobe.production.http.settings import Settings, SettingsError

logger = logging.getLogger(__name__)

CHAT_ROUTE = "/v1/chat/completions"
OWN_UPSTREAM = "http://127.0.0.1/v1"
"""Upstream's address in the settings: the application itself is the upstream."""


def settings_from_environment(environment: Mapping[str, str]) -> Settings:
    """Returns the settings from environment variables: the options of `Settings` with `variable=True`.

    Raises `RecordError` for an invalid value.
    """
    from_variables = from_environment(Settings, environment, SettingsError)
    return Settings(**{"checkpoint": "bundled:quality", **from_variables, "upstream": OWN_UPSTREAM, "auth": False})


class VerdictMiddleware:
    """Puts a verdict under `metaprobe` into every chat completion of the application, streamed or whole.

    If the caller did not request log-probabilities, they are added to the request and removed from the answer. If the
    settings name a gate, a streamed answer with a bad beginning is ended, and the application is told that its caller
    has gone. If they name a log, each verdict is logged under an id made here, with the caller's x-request-id beside
    it. All other traffic, also errors, passes unchanged.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: Settings | None = None,
        predictor: QualityPredictor | None = None,
        gates: StreamingGate | None = None,
    ) -> None:
        """Sets up the middleware.

        Args:
            app: the application.
            settings: the settings; by default those of the environment.
            predictor: replaces the predictor that the settings name.
            gates: replaces the gate that the settings name.

        Raises `SettingsError` for a teach rate: an application in the same process is not asked again.
        """
        self._app = app
        self._settings = settings = settings or settings_from_environment(os.environ)
        if settings.teach_rate:
            raise SettingsError(
                f"teach_rate is {settings.teach_rate:g}; expected 0, because a middleware does not ask its application "
                "again: put `metaprobe serve --teach-rate` before the engine, or leave it out"
            )
        if predictor is None:
            predictor = load_judge(settings, settings.checkpoint, settings.sha256, settings.run_by_model.get(""))
        self._gates = gates = gates or load_gates(settings)
        self._declined = Declined()
        self._metrics = Metrics()
        self._memory = Leasing(app, max_bytes=MEMORY_IN_BODIES * settings.max_body_bytes)
        self._scorer = Scorer(predictor, self._metrics, max_tokens=settings.max_scored_tokens)
        self._log = ServerLog.open(settings, self._metrics, gated=gates is not None) if settings.log else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; the arguments are those of ASGI."""
        if scope["type"] == "lifespan" and self._log is not None:
            await run_lifespan(self._app, scope, receive, send, self._log.log.close)
            return
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(CHAT_ROUTE):
            await self._app(scope, receive, send)
            return
        host, port = scope.get("client") or ("", 0)
        OWNER.set((host, f"{host}:{port}"))
        body, is_whole = await read_body(receive, self._settings.max_body_bytes)
        chat = log = None
        if is_whole and is_json(Headers(scope=scope)):
            with suppress(Refusal):  # the application reports a bad body itself; a busy server passes it unread
                chat, log = await aside(len(body), partial(self._parse_chat, scope, body), REQUESTS)
        if chat is None:
            await self._app(scope, receive_again(body, is_whole, receive), send)
            return
        scorer = self._scorer.of(log)
        scored_request = ScoredRequest(self._settings, body, scorer, chat, self._gates)
        exchange_options = {"metrics": self._metrics, "declined": self._declined}
        exchange = _InnerExchange(scored_request, self._app, scope, receive, send, **exchange_options)
        exchange.lease = lease = Lease(self._memory)
        try:
            await exchange.run()
        finally:
            lease.close()

    def _parse_chat(self, scope: Scope, body: bytes) -> tuple[ChatRequest, RequestLog | None]:
        """Returns the parsed request, and the log of its answers. Raises `Refusal` for a body that is no
        chat request.
        """
        chat = read_chat(body)
        return chat, self._logged(scope, chat)

    def _logged(self, scope: Scope, chat: ChatRequest) -> RequestLog | None:
        """Returns the log of this request's answers; None without a log.

        Unreadable tags are left out, because the application itself accepts them.
        """
        if self._log is None:
            return None
        identity, callers_request_id = uuid.uuid4().hex, callers_id(Headers(scope=scope).get("x-request-id", ""))
        request = Request({**scope, SCOPE_ID: identity, SCOPE_CALLERS_ID: callers_request_id})
        try:
            return RequestLog(self._log, request, chat)
        except Refusal as refusal:
            logger.warning("request %s is logged without tags: %s", identity, refusal)
            return RequestLog(self._log, request, chat, tags={})


class _InnerExchange(Exchange):
    """The application's answer to one request."""

    def __init__(
        self, scored_request: ScoredRequest, app: ASGIApp, scope: Scope, receive: Receive, send: Send, **shared: Any
    ) -> None:
        """Sets up the exchange.

        Args:
            scored_request: the request and its scorer.
            app: the application.
            scope: the ASGI scope.
            receive: the ASGI function that receives.
            send: the ASGI function that sends.
            **shared: other arguments of `Exchange`.
        """
        super().__init__(scored_request, **shared)
        self._app, self._scope, self._receive, self.send = app, scope, receive, send

    def excuse(self, error: Exception) -> str:
        """Returns the name of the error: an addition may have caused any error of the application."""
        logger.warning("the application failed a request with log-probabilities: %s", type(error).__name__)
        return type(error).__name__

    async def ask(self, body: bytes, passing: Passing, within_s: float | None) -> None:
        """Passes the request to the application, which is told that its caller has gone once the gate has ended the
        answer.

        An answer that is neither a scored stream nor JSON passes unchanged, and so does an answer for which there is no
        memory.

        Args:
            body: the request's body.
            passing: passes the answer on.
            within_s: time limit; ignored here.
        """
        parts: list[bytes] = []
        size, passes_unchanged = 0, False

        async def pass_message(message: Message) -> None:
            nonlocal size, passes_unchanged
            if passing.failed or passing.ended.is_set():
                return
            data, more_follows = message.get("body", b""), message.get("more_body", False)
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", ()))
                await passing.begin(status, headers)
                is_json_body = Headers(raw=headers).get("content-type", "").lower().startswith("application/json")
                is_judged = (status == 200 and is_json_body) or (status == FORBIDDEN and passing.checks_failure)
                passes_unchanged = not (passing.failed or passing.stream or is_judged or self.begun)
            if passes_unchanged or message["type"] not in ("http.response.start", "http.response.body"):
                passing.begun = True
                await self.send(message)
            elif passing.stream is not None and message["type"] == "http.response.body":
                await passing.feed(data)
                if passing.ended.is_set() or not more_follows:
                    await passing.end()
            elif message["type"] == "http.response.body":
                parts.append(data)
                size += len(data)
                if (refusal := self._memory_refusal(size, passing.status)) is not None:
                    passes_unchanged = await passing.begin_unread(parts, refusal)
                    if not passes_unchanged:
                        passing.ended.set()
                    elif not more_follows:
                        await self.send({"type": "http.response.body", "body": b""})
                elif not more_follows and (judged_body := await passing.judge(b"".join(parts))) is not None:
                    await passing.send_whole(judged_body)

        headers = [(name, value) for name, value in self._scope["headers"] if name.lower() != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        receive = receive_again(body, True, partial(next_message, self._receive, passing.ended))
        await self._app({**self._scope, "headers": headers}, receive, pass_message)

    def _memory_refusal(self, size: int, status: int) -> Refusal | None:
        """Counts the memory of a whole answer as it arrives. Returns why it cannot be read; None if it can."""
        limit = self.settings.max_answer_bytes if status == 200 else MAX_ERROR_BYTES
        if size > limit:
            return Refusal(502, "upstream_too_large", f"the answer is larger than {limit} bytes")
        if self.lease is None:
            return None
        try:
            self.lease.hold(ANSWER_COPIES * size, large=size > LARGE_BYTES)
        except Refusal as refusal:
            self.lease.hold(0, large=False)
            return refusal
        return None


async def read_body(receive: Receive, limit: int) -> tuple[bytes, bool]:
    """Returns the request's body, and whether it is complete. Reading stops above `limit`, or if the caller
    breaks off.
    """
    parts: list[bytes] = []
    size, more_follows = 0, True
    while more_follows and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts), False
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more_follows = message.get("more_body", False)
    return b"".join(parts), not more_follows


async def run_lifespan(app: ASGIApp, scope: Scope, receive: Receive, send: Send, close: Callable[[], Any]) -> None:
    """Runs the application's lifespan, and calls `close` before the server learns that it has ended and ends the
    process.

    An application without lifespan events fails at once without an answer; this function then answers for it.

    Args:
        app: the application.
        scope: the ASGI scope.
        receive: the ASGI function that receives.
        send: the ASGI function that sends.
        close: closes what is open.
    """
    messages_heard, has_answered = [], False

    async def hear() -> Message:
        messages_heard.append(await receive())
        return messages_heard[-1]

    async def say(message: Message) -> None:
        nonlocal has_answered
        has_answered = True
        if message["type"].startswith("lifespan.shutdown"):
            await asyncio.to_thread(close)
        await send(message)

    try:
        await app(scope, hear, say)
    except Exception as error:
        if has_answered:
            await asyncio.to_thread(close)
            raise
        logger.info("the application has no lifespan of its own (%s: %s)", type(error).__name__, error)
        if not messages_heard:
            await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.to_thread(close)
        await send({"type": "lifespan.shutdown.complete"})


async def next_message(receive: Receive, ended: asyncio.Event) -> Message:
    """Returns the caller's next message, or a disconnect if the answer was ended before."""
    waiting = [asyncio.ensure_future(receive()), asyncio.ensure_future(ended.wait())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return {"type": "http.disconnect"} if ended.is_set() else await waiting[0]  # type: ignore[return-value]
    finally:
        for task in waiting:
            task.cancel()


def receive_again(body: bytes, is_whole: bool, receive: Receive) -> Receive:
    """Returns a `receive` that first repeats the received body, then passes on the rest.

    Args:
        body: the received body.
        is_whole: whether it is complete.
        receive: the original function.
    """
    was_repeated = False

    async def receive_body_first() -> Message:
        nonlocal was_repeated
        if was_repeated:
            return await receive()
        was_repeated = True
        return {"type": "http.request", "body": body, "more_body": not is_whole}

    return receive_body_first
