"""One exchange with the upstream: it is asked, its answer is passed on with a verdict, and closed on every path.

Whatever can refuse a request is checked before an `Exchange` is made. It asks only when it is sent, and `asking` owns
the answer: nothing between asking and closing can leave a connection behind.
"""

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from metaprobe.serving.http.bodies import STREAMS, aside, while_connected
from metaprobe.serving.http.metrics import Metrics, Seldom
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.streamed_answer import data_of
from metaprobe.serving.http.upstream import CUT, UpstreamAnswer, UpstreamClient, redirect, to_caller
from metaprobe.serving.http.wire import UNREADABLE

logger = logging.getLogger(__name__)

REASON = "metaprobe-reason"
"""On an answer that cannot carry a verdict, since it is no JSON object: why there is none."""
NOT_OURS = frozenset({401, 402, 407, 408, 429, 503, 504})
"""Statuses of 400 and above that log-probabilities cannot cause: keys, money, time and load. 403 is looked at."""
FORBIDDEN = 403
"""Of keys, unless its body names log-probabilities, as OpenAI's does for models that may not give them."""
REMEMBER_S = 600.0
"""How long a model is asked without log-probabilities before it is asked with them again."""
GIVEN_S = 3600.0
"""How long a model that gave log-probabilities is known to do so."""
IN_A_ROW = 8
"""Failures in a row that outweigh log-probabilities given before: one fault, or one kind of request, does not."""
MAX_MODELS = 1024
"""Names that are remembered; callers choose them."""
MAX_NAME = 512
"""Characters of a name that is remembered: a caller may send one of megabytes, and a thousand of them."""

_NAMED = re.compile(rb"log[ _-]?prob", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,128}")


def failure_of(status: int, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """What an answer's head says against log-probabilities, as in "500"; empty for none.

    `headers`: with names in any case. Of `FORBIDDEN`, the body decides (`names_logprobs`).
    """
    if status < 400 or status in NOT_OURS or any(name.lower() == b"retry-after" for name, _ in headers):
        return ""
    return str(status)


def names_logprobs(body: bytes) -> bool:
    """Whether an error speaks of log-probabilities."""
    return _NAMED.search(body) is not None


def failure_in(body: bytes) -> str:
    """What the JSON of an answer or a chunk with status 200 says against log-probabilities; empty for none."""
    if b'"error"' not in body:
        return ""
    try:
        outline = _outline(body)  # walks over the rest, and makes no objects of it
        error: Any = msgspec.json.decode(outline.error)
    except UNREADABLE:
        return ""
    if not error or bytes(outline.choices).strip() not in _NO_CHOICES:
        return ""
    code = error.get("code") if isinstance(error, dict) else None
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else 0
    if status in NOT_OURS or (status == FORBIDDEN and not names_logprobs(body)):
        return ""
    return "an error"


def failure_in_event(event: bytes) -> str:
    """The same of the first event of a stream."""
    data = data_of(event)
    return failure_in(data) if data else ""


class _Outline(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"null")
    choices: msgspec.Raw = msgspec.Raw(b"null")


_outline = msgspec.json.Decoder(_Outline).decode
_NO_CHOICES = (b"null", b"[]")


class Declined:
    """Which models are asked without log-probabilities for now. One for each upstream."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seldom = Seldom(logger)
        self._until: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
        self._row: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._given: OrderedDict[tuple[str, str], float] = OrderedDict()

    def why(self, model: str, asked_for: str) -> str:
        """What the upstream answered when it was asked for more; empty where it is to be asked for it now.

        `asked_for`: what is asked for beside what the caller wants.
        """
        until, why = self._until.get((model, asked_for), (0.0, ""))
        return why if self._clock() < until else ""

    def gave(self, model: str, asked_for: str) -> None:
        """A changed request was answered."""
        at = (model, asked_for)
        self._row.pop(at, None)
        self._until.pop(at, None)
        _keep(self._given, at, self._clock())

    def failed(self, model: str, asked_for: str, why: str) -> None:
        """A changed request failed, and was answered as it came."""
        at, now = (model, asked_for), self._clock()
        _keep(self._row, at, self._row.get(at, 0) + 1)
        known_to_give = now - self._given.get(at, -GIVEN_S) < GIVEN_S
        remembered = not known_to_give or self._row[at] >= IN_A_ROW
        if remembered:
            _keep(self._until, at, (now + REMEMBER_S, why))
        if not remembered:
            self._seldom(f"the upstream fails some requests for {asked_for} that the caller did not ask for ({why})")
            return
        logger.warning(
            "the upstream answered %s to a request of %s with %s that the caller did not ask for, and answered it"
            " without: for %g s the model is asked without, and its answers have no score; switch log-probabilities on"
            " at the upstream if they are to be scored",
            why,
            model if _PLAIN_NAME.fullmatch(model) else "a model with an odd name",
            asked_for,
            REMEMBER_S,
        )


def no_logprobs(why: str, *, again: bool) -> str:
    """The reason for a verdict without a score. `again`: whether this request was asked twice."""
    if again:
        return f"no log-probabilities: the upstream answered {why} to a request with logprobs; asked again without"
    return f"no log-probabilities: the upstream answered {why} to an earlier request with logprobs; asked without"


def _keep(held: "OrderedDict[tuple[str, str], Any]", at: tuple[str, str], value: object) -> None:
    if len(at[0]) > MAX_NAME:
        return
    held[at] = value
    held.move_to_end(at)
    if len(held) > MAX_MODELS:
        held.popitem(last=False)


class PassingStream(Protocol):
    """Reads along while a stream passes."""

    seconds: float
    """Time spent on it."""

    @property
    def action(self) -> str:
        """How the gate ended the answer; empty as long as it has not."""

    def feed(self, data: bytes) -> bytes:
        """What to pass on for what came."""

    def end(self) -> bytes:
        """What to pass on when the upstream has closed the stream in good order."""

    def cut(self, status: int, code: str, message: str) -> bytes:
        """What to pass on when it broke."""


class Question(Protocol):
    """What is asked, and how its answer is read."""

    @property
    def path(self) -> str:
        """Below the upstream's base address."""

    @property
    def body(self) -> bytes:
        """As the caller sent it."""

    @property
    def sent(self) -> bytes:
        """As it is sent; `body` itself where nothing was added."""

    @property
    def model(self) -> str:
        """As the caller names it."""

    @property
    def added(self) -> str:
        """What was added to the request, such as "logprobs"; empty for nothing."""

    def stream(self, without: str) -> PassingStream | None:
        """What reads a streamed answer; None where nothing does. `without`: why it has no log-probabilities."""

    def whole(self, body: bytes, without: str) -> tuple[bytes, str]:
        """A whole answer with its verdict; else as it came, and why."""


class Exchange(Response):
    """The answer to one request. Raises `Refusal` while it is sent, where nothing of it has been sent yet."""

    def __init__(
        self,
        request: Request,
        question: Question,
        *,
        settings: Settings,
        client: UpstreamClient,
        metrics: Metrics,
        declined: Declined,
        own: float = 0.0,
    ) -> None:
        """`own`: seconds that were spent on the request here so far."""
        super().__init__()
        self._request, self._question = request, question
        self._settings, self._client, self._metrics, self._declined = settings, client, metrics, declined
        self._own = own
        self._begun = False
        """Whether the caller has got anything."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: dict[str, object]) -> None:
            self._begun = True
            await send(message)

        await while_connected(receive, self._answer(scope, receive, noted))  # type: ignore[arg-type]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked, started = self._question, time.perf_counter()
        if not asked.added:
            await self._as_it_came(started, "", scope, receive, send)
        elif known := self._declined.why(asked.model, asked.added):
            await self._as_it_came(started, no_logprobs(known, again=False), scope, receive, send)
        elif failed := await self._as_changed(started, scope, receive, send):
            self._metrics.errors.labels("logprobs_declined").inc()
            await self._as_it_came(started, no_logprobs(failed, again=True), scope, receive, send, failed=failed)

    async def _as_changed(self, started: float, scope: Scope, receive: Receive, send: Send) -> str:
        """Passes the answer to the changed request on; where that failed, passes nothing on and returns how."""
        asked = self._question
        try:
            async with self._client.asking(self._request, "POST", asked.path, asked.sent) as answer:
                failed = await _failure(answer, self._settings.max_answer_bytes)
                if failed and time.perf_counter() - started < self._settings.timeout_s:
                    return failed
                if answer.status == 200:
                    self._declined.gave(asked.model, asked.added)
                await self._pass_on(answer, started, "", scope, receive, send)
                return ""
        except Refusal as refusal:
            if refusal.code != CUT or self._begun:
                raise
            return "with a closed connection"

    async def _as_it_came(
        self, started: float, without: str, scope: Scope, receive: Receive, send: Send, *, failed: str = ""
    ) -> None:
        """`without`: why no log-probabilities are asked for. `failed`: how the changed request failed, where it did."""
        asked = self._question
        left = self._settings.timeout_s - (time.perf_counter() - started) if failed else None
        async with self._client.asking(self._request, "POST", asked.path, asked.body, within_s=left) as answer:
            if failed and answer.status == 200 and not await _failure(answer, self._settings.max_answer_bytes):
                self._declined.failed(asked.model, asked.added, failed)
            await self._pass_on(answer, started, without, scope, receive, send)

    async def _pass_on(
        self, answer: UpstreamAnswer, started: float, without: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        passed = to_caller(answer.headers)
        if answer.status == 200 and answer.is_stream:
            stream = self._question.stream(without)
            if stream is not None:
                await self._pass_stream(answer, started, stream, passed, send)
                return
        body = await answer.whole(self._settings.max_answer_bytes)
        done = time.perf_counter()
        self._metrics.upstream_seconds.observe(done - started)
        if 300 <= answer.status < 400:
            raise redirect(answer)
        if answer.status != 200:
            self._metrics.errors.labels("upstream_status").inc()
        else:
            body, reason = await aside(len(body), partial(self._question.whole, body, without))
            if reason:
                passed[REASON] = reason
            self._metrics.added_seconds.observe(self._own + time.perf_counter() - done)
        await Response(body, answer.status, passed)(scope, receive, send)

    async def _pass_stream(
        self, answer: UpstreamAnswer, started: float, stream: PassingStream, headers: dict[str, str], send: Send
    ) -> None:
        """Passes events on as they come, and ends with the verdict."""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        try:
            await send({"type": "http.response.start", "status": answer.status, "headers": raw})
            try:
                last = await self._pass_events(answer, stream, send)
            except Refusal as refusal:
                self._metrics.errors.labels(refusal.code).inc()
                last = stream.cut(refusal.status, refusal.code, refusal.message)
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._metrics.upstream_seconds.observe(time.perf_counter() - started)
            self._metrics.added_seconds.observe(self._own + stream.seconds)

    async def _pass_events(self, answer: UpstreamAnswer, stream: PassingStream, send: Send) -> bytes:
        """What is still to be passed on when all events have been, or the gate has ended the answer."""
        received = 0
        async with aclosing(answer.parts()) as parts:
            async for data in parts:
                received += len(data)
                if out := await aside(received, partial(stream.feed, data), STREAMS):
                    await send({"type": "http.response.body", "body": out, "more_body": True})
                if stream.action:
                    self._metrics.gated.labels(stream.action).inc()
                    break
        return await aside(received, stream.end, STREAMS)


async def _failure(answer: UpstreamAnswer, limit: int) -> str:
    """How the answer to a changed request fails such that the change may be why; empty where it does not.

    Of a stream the first event is looked at, unless that is a comment: who waits for it is not kept waiting for more.
    """
    if answer.status == FORBIDDEN:
        body = await answer.whole(limit)
        answer.unread(body)
        return failure_of(answer.status, answer.headers) if names_logprobs(body) else ""
    if answer.status == 200 and answer.is_stream:
        return failure_in_event(await answer.first_event())
    if answer.status == 200:
        body = await answer.whole(limit)
        answer.unread(body)
        return await aside(len(body), partial(failure_in, body))
    return failure_of(answer.status, answer.headers)
