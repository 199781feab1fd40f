"""One exchange: a request is asked, and its answer is passed on with a verdict.

A request to which log-probabilities were added may fail because of them. It is then asked once more as it came, and
where that is answered, the model is remembered for a while as one that is asked without. `Exchange` and `Passing` are
the same before an upstream and inside an engine's own server (`metaprobe.production.http.middleware`).
"""

import asyncio
import logging
import re
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from metaprobe.api import QualityPredictor, StreamingGate
from metaprobe.production.http.bodies import (
    LARGE_BYTES,
    LOOP_BYTES,
    SCOPE_LEASE,
    Busy,
    Lease,
    Refusal,
    aside,
    reading_bytes,
    while_connected,
)
from metaprobe.production.http.judges import Scorer
from metaprobe.production.http.metrics import Metrics, Seldom
from metaprobe.production.http.panels import PANEL_COST, PanelDesk, with_panel
from metaprobe.production.http.settings import Settings
from metaprobe.production.http.streamed_answer import BYTE_ORDER_MARK, FirstEvent, ScoredStream, data_of
from metaprobe.production.http.upstream import CUT, EVENTS, UpstreamAnswer, UpstreamClient, redirect, to_caller
from metaprobe.production.http.wire import (
    MOST_CHOICES,
    UNREADABLE,
    ChatRequest,
    choices_of,
    combine_verdicts,
    with_verdict,
)

logger = logging.getLogger(__name__)

NO_OBJECT = "the upstream's answer is not a JSON object"
REASON = "metaprobe-reason"
"""On an answer that cannot carry a verdict, since it is no JSON object: why there is none."""
NOT_OURS = frozenset({401, 402, 407, 408, 429, 503, 504})
"""Statuses of 400 and above that log-probabilities cannot cause: keys, money, time and load. 403 is looked at."""
FORBIDDEN = 403
"""A status about keys, unless its body names log-probabilities: OpenAI gives it for models that may not give them."""
REMEMBER_S = 600.0
"""How long a model is asked without log-probabilities before it is asked with them again."""
GIVEN_S = 3600.0
"""How long a model that gave log-probabilities is known to do so."""
IN_A_ROW = 8
"""Failures in a row that outweigh log-probabilities given before: one fault, or one kind of request, does not."""
MAX_MODELS = 1024
"""Names that are remembered; callers choose them."""
MAX_ERROR_BYTES = 4 << 20
"""Bytes of an upstream's error that are read. They are not counted with the memory, for an error must pass."""
MAX_FIRST_EVENT = 1 << 16
"""Bytes of the first event of a stream that are waited for before anything is passed on; errors are shorter."""
MAX_QUOTED = 500
"""Bytes of an upstream's error that are quoted where they cannot pass as they came."""
MAX_NAME = 512
"""Characters of a name that is remembered: a caller may send one of megabytes, and a thousand of them."""

COUNTED_BYTES = 8 << 10
"""Bytes of a stream whose memory is counted ahead, so that not every event takes the lock of the memory."""
SENT_BYTES = 256 << 10
"""Bytes of an answer that are sent at once. The server copies what its caller does not take yet: it holds one piece,
and not the answer once more, and other requests have their turn between two pieces."""
ANSWER_COPIES = 3
"""How many times its bytes a whole answer takes in memory: as its parts came, joined, and with its verdict."""
CHOICE_BYTES = 8 << 10
"""Weight in bytes of the verdict on one more choice."""

_NAMED = re.compile(rb"log[ _-]?prob", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,128}")


def logprobs_failure(status: int, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns how an answer's head fails because of log-probabilities, as in "500"; empty where it does not.

    `headers`: with names in any case. Of `FORBIDDEN`, the body decides (`names_logprobs`).
    """
    if status < 400 or status in NOT_OURS or any(name.lower() == b"retry-after" for name, _ in headers):
        return ""
    return str(status)


def failure_of_whole(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> str:
    """Returns how a whole answer fails because of log-probabilities; empty where it does not."""
    if status == 200:
        return failure_in(body)
    return logprobs_failure(status, headers) if status != FORBIDDEN or names_logprobs(body) else ""


def names_logprobs(body: bytes) -> bool:
    """Whether an error speaks of log-probabilities."""
    return _NAMED.search(body) is not None


def failure_in(body: bytes) -> str:
    """Returns how the JSON of an answer or chunk with status 200 fails; empty where it does not."""
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


class _Outline(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"null")
    choices: msgspec.Raw = msgspec.Raw(b"null")


_outline = msgspec.json.Decoder(_Outline).decode
_NO_CHOICES = (b"null", b"[]")


@dataclass(slots=True)
class _Known:
    """One model: changed requests that failed in a row, when one was answered last, and until when the model is asked
    without, for `why`."""

    failures: int = 0
    given: float = -inf
    until: float = 0.0
    why: str = ""


class Declined:
    """Which models are asked without log-probabilities for now. One for each upstream."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seldom = Seldom(logger)
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def why(self, model: str, asked_for: str) -> str:
        """Returns what the upstream answered when it was asked for more; empty where it is to be asked for more now.

        `asked_for`: what is asked for beside what the caller wants.
        """
        known = self._known.get((model, asked_for))
        return known.why if known is not None and self._clock() < known.until else ""

    def gave(self, model: str, asked_for: str) -> None:
        """A changed request was answered."""
        known = self._of(model, asked_for)
        known.failures, known.until, known.given = 0, 0.0, self._clock()

    def failed(self, model: str, asked_for: str, why: str) -> None:
        """A changed request failed, and was answered as it came."""
        known, now = self._of(model, asked_for), self._clock()
        known.failures += 1
        remembered = now - known.given >= GIVEN_S or known.failures >= IN_A_ROW
        if remembered:
            known.until, known.why = now + REMEMBER_S, why
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

    def _of(self, model: str, asked_for: str) -> _Known:
        if len(model) > MAX_NAME:
            return _Known()
        known = self._known.setdefault((model, asked_for), _Known())
        self._known.move_to_end((model, asked_for))
        if len(self._known) > MAX_MODELS:
            self._known.popitem(last=False)
        return known


def announced_size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Returns the bytes that an answer says it has; 0 where it does not say so."""
    announced = next((value for name, value in headers if name.lower() == b"content-length"), b"")
    return int(announced) if announced.isdigit() and len(announced) < 20 else 0


def unscored(refusal: Refusal) -> str:
    """The reason for a verdict without a score, where this server had no room to read an answer."""
    return f"not scored: {refusal.message.partition(';')[0]}"


def beyond(count: int) -> str:
    """The reason for the choices of an answer that are too many to be scored. `count`: choices of the answer."""
    return f"choices {MOST_CHOICES} to {count - 1} are not scored: at most {MOST_CHOICES} of an answer are"


def no_logprobs(why: str, *, again: bool) -> str:
    """The reason for a verdict without a score. `again`: whether this request was asked twice."""
    if again:
        return f"no log-probabilities: the upstream answered {why} to a request with logprobs; asked again without"
    return f"no log-probabilities: the upstream answered {why} to an earlier request with logprobs; asked without"


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and who judges its answer."""

    settings: Settings
    body: bytes
    """The request as the caller sent it."""
    scorer: Scorer | None
    """Judges the answer; None where there is nothing to score."""
    chat: ChatRequest | None = None
    """A chat completion's request; None for a request that passes as it came, as its answer does."""
    gates: StreamingGate | None = None
    panels: PanelDesk | None = None
    """Says which choice of several to keep."""


class Passing:
    """One answer on its way to the caller: its head (`begin`), then its body, streamed (`feed`, `end`) or whole
    (`judge`, `send_whole`).

    The head of a stream is sent at once. Where its first event is a failure, the answer to the request as it came
    goes on under the same head.
    """

    def __init__(self, exchange: "Exchange", *, without: str = "", before: str = "", until: float = 0.0) -> None:
        """`without`: why the answer has no log-probabilities. `before`: how the changed request failed, of an answer to
        the request as it came. `until`: up to when (by `time.perf_counter`) a failure is held back, for the request is
        then asked again."""
        self._exchange = exchange
        self._without, self._before, self._until = without, before, until
        self._headers: list[tuple[bytes, bytes]] = []
        self._reason = ""
        self._received = 0
        self._counted = 0
        """Bytes of a stream up to which its memory is counted."""
        self._first: FirstEvent | None = None
        """Reads a stream's first event, which says whether the answer is a failure; None once that is known, or where
        it does not matter."""
        self.looks = bool(before or until)
        """Whether it matters that the answer may be a failure."""
        self.stream: ScoredStream | None = None
        """The reader of a streamed answer; None for an answer that is passed on whole."""
        self.status = 0
        self.begun = False
        """Whether the caller has got anything of this answer's body."""
        self.failed = ""
        """How the request failed; nothing of this answer was passed on."""
        self.ended = asyncio.Event()
        """Set when the gate has ended the answer."""

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Takes the answer's head."""
        self.status, self._headers = status, list(headers)
        if status == 200 and Headers(raw=self._headers).get("content-type", "").lower().startswith(EVENTS):
            self.stream = self._exchange.stream(self._without)
        if self.stream is not None:
            self._first = FirstEvent() if self.looks else None
            await self._start(self._headers)
        elif status not in (200, FORBIDDEN):
            self._passes(logprobs_failure(status, self._headers))

    async def feed(self, data: bytes) -> None:
        """Passes on what is whole by now of the events of a stream.

        Of a stream that may be a failure no event is passed on before the first one is whole, unless that is a comment:
        a caller who waits for a comment is not kept waiting for more.
        """
        if self._first is not None:
            end = self._first.feed(data)
            if end or self._first.pending > MAX_FIRST_EVENT:
                await self._begin_stream(self._first.came(), end)
        else:
            await self._feed(data)

    async def end(self) -> None:
        """Ends a stream with its verdict."""
        if self._first is not None:
            await self._begin_stream(self._first.came(), self._first.pending)
        if self.stream is not None and not self.failed:
            await self._send(await self._read_along(self.stream, self.stream.left, self.stream.end), more=False)

    async def cut(self, refusal: Refusal) -> None:
        """Ends a stream that broke."""
        stream = self.stream or self._exchange.stream(self._without)
        assert stream is not None  # without it no head has been sent
        await self._send(stream.cut(refusal.status, refusal.code, refusal.message), more=False)

    async def judge(self, body: bytes) -> bytes | None:
        """The whole body as it is to be passed on, with its verdict; None where the answer is held back."""
        failure = ""
        if self.looks and self.status in (200, FORBIDDEN):
            with suppress(Busy):  # nothing is held back then
                failure = await aside(len(body), partial(failure_of_whole, self.status, self._headers, body))
        if not self._passes(failure):
            return None
        if self.status == 200:
            body, self._reason = await self._exchange.judged(body, self._without)
        return body

    async def pass_on(self, parts: list[bytes], coming: AsyncIterator[bytes], refusal: Refusal) -> None:
        """Sends a whole answer as it comes, without reading it, for there is no room for it.

        `parts`: what has come of it so far. Raises `RuntimeError` where the answer breaks off, so that the connection
        is closed and half an answer is not taken for a whole one.
        """
        if not await self.begin_unread(parts, refusal):
            return
        try:
            async for part in coming:
                await self._send(part, more=True)
        except Refusal as error:
            raise RuntimeError("the upstream's answer broke off") from error
        await self._send(b"", more=False)

    async def begin_unread(self, parts: list[bytes], refusal: Refusal) -> bool:
        """Sends the head of a whole answer that is not read, and what has come of it, and empties `parts`.

        Returns whether the rest is to be sent, too: it is not where the answer is only quoted.
        """
        self._passes("")
        self._reason = self._exchange.not_scored(unscored(refusal))
        if self._exchange.begun:
            await self.send_whole(b"".join(parts))
            parts.clear()
            return False
        headers = MutableHeaders(raw=list(self._headers))
        if self._reason:
            headers[REASON] = self._reason
        await self._start(headers.raw)
        while parts:
            await self._send(parts.pop(0), more=True)
            await asyncio.sleep(0)
        return True

    async def send_whole(self, body: bytes) -> None:
        """Sends the answer with this body. Where the head of a stream has been sent, an error event quotes the body."""
        if self._exchange.begun:
            quoted = body[:MAX_QUOTED].decode("utf-8", "replace")
            message = f"asked again without {self._exchange.added}, the upstream answered {self.status}: {quoted}"
            await self.cut(Refusal(502 if self.status == 200 else self.status, "upstream_status", message))
            return
        headers = MutableHeaders(raw=list(self._headers))
        headers["content-length"] = str(len(body))
        if self._reason:
            headers[REASON] = self._reason
        await self._start(headers.raw)
        await self._send(body, more=False)

    def _passes(self, failure: str) -> bool:
        """Whether the answer is passed on, and not the request asked again."""
        if failure and time.perf_counter() < self._until:
            self.failed = failure
            return False
        if not failure and self.status == 200 and self.looks:
            asked = self._exchange
            if self._before:
                asked.declined.failed(asked.model, asked.added, self._before)
            else:
                asked.declined.gave(asked.model, asked.added)
        return True

    async def _begin_stream(self, came: bytes, end: int) -> None:
        """Passes on what came of a stream. Nothing where its first event, which ends at `end`, is a failure."""
        self._first = None
        if self._passes(failure_in(data_of(came[:end].removeprefix(BYTE_ORDER_MARK)))):
            await self._feed(came)

    async def _feed(self, data: bytes) -> None:
        assert self.stream is not None
        stream = self.stream
        self._received += len(data)
        if self._received > self._counted:
            self._count(stream)
        size = stream.pending + len(data)
        if size <= LOOP_BYTES:  # as almost every piece of a stream, so that it takes no further call
            out = stream.feed(data, most=LOOP_BYTES)
        else:
            out = await self._read_along(stream, size, partial(stream.feed, data, most=LOOP_BYTES))
        if stream.waits:
            out += await self._read_along(stream, stream.waits, partial(stream.feed, b""))
        if out:
            await self._send(out, more=True)
        if stream.action:
            self._exchange.metrics.gated.labels(stream.action).inc()
            self.ended.set()

    def _count(self, stream: ScoredStream) -> None:
        """Counts the memory of a stream, for the next `COUNTED_BYTES` too. Where there is none, the rest is unread."""
        self._counted = self._received + COUNTED_BYTES
        if self._exchange.lease is None:
            return
        try:
            self._exchange.lease.hold(stream.held_bytes(self._counted), large=self._counted > LARGE_BYTES)
        except Refusal as refusal:
            stream.drop(unscored(refusal))
            self._exchange.lease.hold(0, large=False)

    async def _read_along(self, stream: ScoredStream, size: int, work: Callable[[], bytes]) -> bytes:
        """Returns what `work` on a stream returns. Where too much waits for a thread, the rest passes on unread."""
        try:
            return await aside(size, work)
        except Busy as busy:
            stream.drop(unscored(busy))
            return work()

    async def _start(self, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._exchange.begun:
            self._exchange.begun = True
            await self._exchange.send({"type": "http.response.start", "status": self.status, "headers": headers})

    async def _send(self, body: bytes, *, more: bool) -> None:
        self.begun = True
        if len(body) <= SENT_BYTES:
            await self._exchange.send({"type": "http.response.body", "body": body, "more_body": more})
            return
        view = memoryview(body)
        for start in range(0, len(body), SENT_BYTES):
            piece = bytes(view[start : start + SENT_BYTES])
            goes_on = more or start + SENT_BYTES < len(body)
            await self._exchange.send({"type": "http.response.body", "body": piece, "more_body": goes_on})
            if goes_on:
                await asyncio.sleep(0)  # a caller who reads as fast as this is sent would leave no turn to others


class Exchange(ABC):
    """Asks, and asks again without what was added to the request where that made it fail."""

    send: Send
    """Sends a message to the caller."""

    def __init__(self, question: Question, *, metrics: Metrics, declined: Declined) -> None:
        self.settings, self.metrics, self.declined = question.settings, metrics, declined
        self._question, chat = question, question.chat
        self.added = "" if chat is None else chat.added
        """The name of what was added to the request, such as "log-probabilities"; empty for nothing."""
        self.model = "" if chat is None else chat.model
        """The model as the caller names it; empty where nothing is added."""
        self.started = 0.0
        self.begun = False
        """Whether the caller has got the head of an answer."""
        self.lease: Lease | None = None
        """The memory of the answer; None where nothing counts it."""

    def stream(self, without: str) -> ScoredStream | None:
        """Returns the reader of a streamed answer, or None. `without`: why the answer has no log-probabilities."""
        asked = self._question
        if asked.scorer is None:
            return None
        return ScoredStream(
            asked.scorer,
            asked.chat,
            asked.gates,
            gated_reason=self.settings.gate_finish_reason,
            max_bytes=self.settings.max_answer_bytes,
            no_logprobs=self._none_because(without),
        )

    async def judged(self, body: bytes, without: str) -> tuple[bytes, str]:
        """A whole answer with its verdict, without log-probabilities that were not asked for; else as it came, and why.

        What is large, or has many choices, is read in a thread. Where too much waits for one, or there is no memory for
        the answer, it stays as it came. `without`: why it has no log-probabilities, where that is known.
        """
        if self._question.scorer is None:
            return body, ""
        cost = 1 if self._question.panels is None else PANEL_COST
        weight, choices = len(body), None
        if weight <= LOOP_BYTES:
            try:
                choices = choices_of(body)
            except UNREADABLE:
                return body, self.not_scored(NO_OBJECT)
            if len(choices[0]) > 1:
                weight = cost * (weight + CHOICE_BYTES * len(choices[0]))
        else:
            weight *= cost
        try:
            return await aside(weight, partial(self._whole, body, without, choices))
        except Refusal as refusal:
            return body, self.not_scored(unscored(refusal))

    def not_scored(self, reason: str) -> str:
        """Logs that the answer has no verdict, and returns why; empty where nobody would have judged it."""
        if self._question.scorer is None:
            return ""
        self._question.scorer.none(reason)
        return reason

    def _whole(self, body: bytes, without: str, read: tuple[list[bytes], int] | None) -> tuple[bytes, str]:
        """`judged` of an answer whose turn has come. Raises `Refusal` where there is no memory for it.

        `read`: its choices, where they have been read already.
        """
        scorer, chat, panels = self._question.scorer, self._question.chat, self._question.panels
        assert scorer is not None
        if len(body) > LARGE_BYTES:
            weight = reading_bytes(body) + len(body)  # the answer is written once more, with its verdict
            if self.lease is not None:
                self.lease.hold(weight, large=True)
        try:
            choices, count = read or choices_of(body)
        except UNREADABLE:
            return body, self.not_scored(NO_OBJECT)
        refused = self._none_because(without)
        verdicts = [scorer.none(refused) if refused else scorer.verdict(one) for one in choices]
        if count > len(choices):
            rest = beyond(count)
            verdicts.append(scorer.none(rest))
        verdict = combine_verdicts(verdicts)
        if count > len(choices):
            verdict["reason"] = "; ".join(filter(None, [verdict["reason"], rest]))
        if panels is not None and count > 1:
            told = panels.verdict(choices, count, (chat.messages if chat else None) or [])
            # Nobody named the default predictor: its scores would stand beside the panel's for nobody.
            verdict = with_panel(verdict, told, alone=str(self.settings.checkpoint) == QualityPredictor.bundled)
        return with_verdict(body, verdict, chat), ""

    def _none_because(self, without: str) -> str:
        chat = self._question.chat
        return without if chat is not None and not chat.wants_logprobs else ""

    @abstractmethod
    async def ask(self, body: bytes, passing: Passing, within_s: float | None) -> None:
        """Asks with this body, and has the answer passed on. `within_s`: time for the answer's head, where it is less
        than the settings'."""

    @abstractmethod
    def excuse(self, error: Exception) -> str:
        """Returns how an error can be due to what was added to the request; empty where it cannot."""

    async def run(self) -> None:
        """Passes the answer on. Raises what `ask` raises where it cannot be asked again."""
        self.started = time.perf_counter()
        within_s, failed = None, ""
        asked, known = self._question, self.declined.why(self.model, self.added) if self.added else ""
        if not known:
            first = Passing(self, until=self.started + self.settings.timeout_s if self.added else 0.0)
            try:
                await self.ask(asked.body if asked.chat is None else asked.chat.sent, first, None)
            except Exception as error:
                first.failed = self.excuse(error) if self.added and not first.begun else ""
                if not first.failed:
                    await self._end(first, error)
                    return
            if not first.failed:
                return
            failed = first.failed
            self.metrics.errors.labels("logprobs_declined").inc()
            within_s = self.settings.timeout_s - (time.perf_counter() - self.started)
        without = no_logprobs(known or failed, again=not known)
        passing = Passing(self, without=without, before=failed)
        try:
            await self.ask(asked.body, passing, within_s)
        except Refusal as refusal:
            await self._end(passing, refusal)

    async def _end(self, passing: Passing, error: Exception) -> None:
        """Ends a stream whose head has been sent with an error event. Raises any other error.

        Raises `RuntimeError` for a whole answer of which a part has been sent, so that the connection is closed.
        """
        if not self.begun or not isinstance(error, Refusal):
            raise error
        if passing.begun and passing.stream is None:
            raise RuntimeError("the upstream's answer broke off") from error
        self.metrics.errors.labels(error.code).inc()
        await passing.cut(error)


class UpstreamExchange(Exchange, Response):
    """The answer of the upstream to one request. Raises `Refusal` while it is sent, where nothing has been sent yet.

    Whatever can refuse a request is checked before. The upstream is asked only when the answer is sent, and `asking`
    owns the upstream's answer: nothing between asking and closing can leave a connection behind.
    """

    def __init__(
        self, question: Question, request: Request, path: str, client: UpstreamClient, own: float, **known: Any
    ) -> None:
        """`path`: below the upstream's base address. `own`: seconds that were spent on the request here so far.
        `known`: as of `Exchange`."""
        Exchange.__init__(self, question, **known)
        Response.__init__(self)
        self._request, self._path, self._client, self._own = request, path, client, own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.send = send
        self.lease = Lease(scope[SCOPE_LEASE].memory)
        try:
            await while_connected(receive, self.run())
        finally:
            self.lease.close()

    def excuse(self, error: Exception) -> str:
        """A connection that the upstream closed."""
        return "with a closed connection" if isinstance(error, Refusal) and error.code == CUT else ""

    async def ask(self, body: bytes, passing: Passing, within_s: float | None) -> None:
        """Asks the upstream. Events are passed on as they come, and end with the verdict."""
        async with self._client.asking(self._request, "POST", self._path, body, within_s=within_s) as answer:
            passed = to_caller(answer.headers).items()
            await passing.begin(answer.status, [(n.encode("latin-1"), v.encode("latin-1")) for n, v in passed])
            if passing.stream is not None:
                try:
                    async with aclosing(answer.parts()) as parts:
                        async for data in parts:
                            await passing.feed(data)
                            if passing.failed or passing.ended.is_set():
                                break
                    await passing.end()
                finally:
                    if passing.begun and passing.stream is not None:
                        self.metrics.upstream_seconds.observe(time.perf_counter() - self.started)
                        self.metrics.added_seconds.observe(self._own + passing.stream.seconds)
            elif not passing.failed:
                came = await self._read(answer, passing)
                if came is None:
                    return
                done = time.perf_counter()
                came = await passing.judge(came)  # one copy: a large answer is not held twice while it is sent
                if came is None:
                    return
                self.metrics.upstream_seconds.observe(done - self.started)
                if 300 <= answer.status < 400:
                    raise redirect(answer)
                if answer.status != 200:
                    self.metrics.errors.labels("upstream_status").inc()
                else:
                    self.metrics.added_seconds.observe(self._own + time.perf_counter() - done)
                await passing.send_whole(came)

    async def _read(self, answer: UpstreamAnswer, passing: Passing) -> bytes | None:
        """The whole answer; None where it was passed on unread, for there was no memory for it.

        Raises `Refusal` as `UpstreamAnswer.whole` does, by which errors are read.
        """
        limit = self.settings.max_answer_bytes
        if answer.status != 200:
            return await answer.whole(min(limit, MAX_ERROR_BYTES))
        assert self.lease is not None
        parts: list[bytes] = []
        size, announced = 0, min(announced_size(answer.headers), limit)
        async with aclosing(answer.parts()) as coming:
            async for part in coming:
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise Refusal(502, "upstream_too_large", f"the upstream's answer is larger than {limit} bytes")
                try:
                    most = max(size, announced)  # by the announced size nothing is kept that will find no room
                    self.lease.hold(ANSWER_COPIES * most, large=most > LARGE_BYTES)
                except Refusal as refusal:
                    self.lease.hold(0, large=False)
                    await passing.pass_on(parts, coming, refusal)
                    return None
        return b"".join(parts)
