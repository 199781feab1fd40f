"""One exchange: a request is sent, and its answer is passed on with a verdict.

A request to which log-probabilities were added may fail because of them. It is then sent again in its original form. If
that succeeds, the model is remembered for a while as one without log-probabilities. `Exchange` and `Passing` are the
same before an upstream and inside an engine's own server (`metaprobe.production.http.middleware`).
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
from metaprobe.production.http.completion_json import (
    UNREADABLE,
    ChatRequest,
    beyond_limit,
    choices_of,
    combine_verdicts,
    with_verdict,
)
from metaprobe.production.http.judges import PLAIN_NAME, Scorer
from metaprobe.production.http.metrics import Metrics, Seldom
from metaprobe.production.http.panels import PANEL_COST, PanelDesk, with_panel
from metaprobe.production.http.settings import Settings
from metaprobe.production.http.streamed_answer import BYTE_ORDER_MARK, FirstEvent, ScoredStream, data_of
from metaprobe.production.http.upstream import (
    CUT_CODE,
    EVENT_STREAM,
    UpstreamAnswer,
    UpstreamClient,
    redirect,
    to_caller,
)

logger = logging.getLogger(__name__)

NO_OBJECT = "the upstream's answer is not a JSON object"
REASON_HEADER = "metaprobe-reason"
"""Header that says why there is no verdict, on an answer that cannot carry one because it is no JSON object."""
STATUSES_NOT_OURS = frozenset({401, 402, 407, 408, 429, 503, 504})
"""Statuses from 400 that requested log-probabilities cannot cause: keys, money, time and load. For 403 the body
decides.
"""
FORBIDDEN = 403
"""A status about keys, unless its body names log-probabilities: OpenAI sends it for models that may not give them."""
REMEMBER_S = 600.0
"""Seconds for which a model is asked without log-probabilities after a failure."""
GAVE_LOGPROBS_S = 3600.0
"""Seconds for which a model that gave log-probabilities is assumed to give them again."""
MAX_FAILURES_IN_A_ROW = 8
"""Failures in a row after which a model is asked without log-probabilities, even if it gave some recently. A single
fault, or one kind of request, is not enough.
"""
MAX_MODELS = 1024
"""Most model names that are remembered, because callers choose the names."""
MAX_ERROR_BYTES = 4 << 20
"""Most bytes of an upstream's error that are read. They are not counted in the memory limit, because an error must
pass.
"""
MAX_FIRST_EVENT = 1 << 16
"""Most bytes of a stream's first event that are awaited before anything is passed on; errors are shorter."""
MAX_QUOTED = 500
"""Most bytes of an upstream's error that are quoted if the error cannot pass unchanged."""
MAX_NAME = 512
"""Most characters of a name that is remembered. A caller may send a name of megabytes, and a thousand of them."""

RESERVED_AHEAD_BYTES = 8 << 10
"""Bytes of a stream for which memory is reserved in advance, so that not every event takes the memory's lock."""
SLICED_BYTES = 128 << 10
"""Most bytes of a plain stream that are read on the event loop in slices of `LOOP_BYTES`, with turns between them.

A busy event loop finds many events at once, and a thread for them costs more than it spares: their outlines take a few
microseconds each.
"""
SENT_BYTES = 256 << 10
"""Bytes of an answer that are sent at once.

The server copies what its caller has not yet read. So it holds one piece instead of a second copy of the answer, and
other requests get a turn between two pieces.
"""
ANSWER_COPIES = 3
"""Memory of a whole answer, in multiples of its bytes: its parts, the joined answer, and the answer with
its verdict.
"""
CHOICE_BYTES = 8 << 10
"""Weight in bytes of the verdict on one more choice."""

_NAMES_LOGPROBS = re.compile(rb"log[ _-]?prob", re.IGNORECASE)


def logprobs_failure(status: int, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Returns how an answer's head shows a failure because of log-probabilities, such as "500"; empty if it shows none.

    `headers` may have names in any case. For `FORBIDDEN` the body decides (`names_logprobs`).
    """
    if status < 400 or status in STATUSES_NOT_OURS or any(name.lower() == b"retry-after" for name, _ in headers):
        return ""
    return str(status)


def failure_of_whole(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> str:
    """Returns how a whole answer fails because of log-probabilities; empty if it does not.

    Args:
        status: HTTP status.
        headers: headers of the answer.
        body: body of the answer.
    """
    if status == 200:
        return failure_in(body)
    return logprobs_failure(status, headers) if status != FORBIDDEN or names_logprobs(body) else ""


def names_logprobs(body: bytes) -> bool:
    """Returns whether an error mentions log-probabilities."""
    return _NAMES_LOGPROBS.search(body) is not None


def failure_in(body: bytes) -> str:
    """Returns how the JSON of an answer or chunk with status 200 fails; empty if it does not."""
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
    if status in STATUSES_NOT_OURS or (status == FORBIDDEN and not names_logprobs(body)):
        return ""
    return "an error"


class _Outline(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"null")
    choices: msgspec.Raw = msgspec.Raw(b"null")


_outline = msgspec.json.Decoder(_Outline).decode
_NO_CHOICES = (b"null", b"[]")


@dataclass(slots=True)
class _ModelRecord:
    """Record of one model's requests with additions, such as log-probabilities."""

    failures: int = 0
    """Failures in a row."""
    gave_at: float = -inf
    """Time of the last answer to a request with additions."""
    skipped_until: float = 0.0
    """Time until which the model is asked without additions."""
    why: str = ""
    """How the last request with additions failed."""


class Declined:
    """Remembers which models are asked without log-probabilities for now. There is one for each upstream."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seldom = Seldom(logger)
        self._records: OrderedDict[tuple[str, str], _ModelRecord] = OrderedDict()

    def why(self, model: str, asked_for: str) -> str:
        """Returns the upstream's earlier failure, because of which the model is now asked without additions; empty if
        additions may be made.

        `asked_for` names what is added to the caller's request.
        """
        record = self._records.get((model, asked_for))
        return record.why if record is not None and self._clock() < record.skipped_until else ""

    def gave(self, model: str, asked_for: str) -> None:
        """Records that a request with added fields was answered, so the model is no longer skipped."""
        record = self._record_of_model(model, asked_for)
        record.failures, record.skipped_until, record.gave_at = 0, 0.0, self._clock()

    def failed(self, model: str, asked_for: str, why: str) -> None:
        """Records that a changed request failed, and its original form was answered.

        Args:
            model: name of the model.
            asked_for: what was added to the caller's request.
            why: how the request failed.
        """
        record, now = self._record_of_model(model, asked_for), self._clock()
        record.failures += 1
        is_remembered = now - record.gave_at >= GAVE_LOGPROBS_S or record.failures >= MAX_FAILURES_IN_A_ROW
        if is_remembered:
            record.skipped_until, record.why = now + REMEMBER_S, why
        if not is_remembered:
            self._seldom(f"the upstream fails some requests for {asked_for} that the caller did not ask for ({why})")
            return
        logger.warning(
            "the upstream answered %s to a request of %s with %s that the caller did not ask for, and answered it"
            " without: for %g s the model is asked without, and its answers have no score; switch log-probabilities on"
            " at the upstream if they are to be scored",
            why,
            model if PLAIN_NAME.fullmatch(model) else "a model with an odd name",
            asked_for,
            REMEMBER_S,
        )

    def _record_of_model(self, model: str, asked_for: str) -> _ModelRecord:
        if len(model) > MAX_NAME:
            return _ModelRecord()
        record = self._records.setdefault((model, asked_for), _ModelRecord())
        self._records.move_to_end((model, asked_for))
        if len(self._records) > MAX_MODELS:
            self._records.popitem(last=False)
        return record


def announced_size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Returns the bytes that an answer announces; 0 if it does not."""
    length_header = next((value for name, value in headers if name.lower() == b"content-length"), b"")
    return int(length_header) if length_header.isdigit() and len(length_header) < 20 else 0


def unscored(refusal: Refusal) -> str:
    """Returns the reason for a verdict without a score, if this server had no room to read an answer."""
    return f"not scored: {refusal.message.partition(';')[0]}"


def no_logprobs(why: str, *, again: bool) -> str:
    """Returns the reason for a verdict without a score. `again`: whether this request was sent twice."""
    if again:
        return f"no log-probabilities: the upstream answered {why} to a request with logprobs; asked again without"
    return f"no log-probabilities: the upstream answered {why} to an earlier request with logprobs; asked without"


@dataclass(frozen=True, slots=True)
class ScoredRequest:
    """A request, and the scorer of its answer."""

    settings: Settings
    body: bytes
    """The request as the caller sent it."""
    scorer: Scorer | None
    """Judges the answer; None if there is nothing to score."""
    chat: ChatRequest | None = None
    """Request of a chat completion; None for a request that passes unchanged, as does its answer."""
    gates: StreamingGate | None = None
    panels: PanelDesk | None = None
    """Says which of several choices to keep."""


class Passing:
    """One answer on its way to the caller: its head (`begin`), then its body, streamed (`feed`, `end`) or whole
    (`judge`, `send_whole`).

    The head of a stream is sent at once. If its first event is a failure, the answer to the original request follows
    under the same head.
    """

    def __init__(
        self,
        exchange: "Exchange",
        *,
        no_logprobs_reason: str = "",
        earlier_failure: str = "",
        resend_until: float = 0.0,
    ) -> None:
        """Sets up the passing of one answer.

        Args:
            exchange: the exchange.
            no_logprobs_reason: why the answer has no log-probabilities; empty if they were requested.
            earlier_failure: how the changed request failed, if this is the answer to the original request; else empty.
            resend_until: time (by `time.perf_counter`) until which a failure is held back, because the request can
                still be sent again.
        """
        self._exchange = exchange
        self._no_logprobs_reason, self._earlier_failure, self._resend_until = (
            no_logprobs_reason,
            earlier_failure,
            resend_until,
        )
        self._headers: list[tuple[bytes, bytes]] = []
        self._reason = ""
        self._received = 0
        self._reserved_bytes = 0
        """Length of the stream for which memory is reserved. Past it, `RESERVED_AHEAD_BYTES` more are reserved."""
        self._first_event: FirstEvent | None = None
        """Reads a stream's first event, which shows whether the answer is a failure; None once this is known or does
        not matter.
        """
        self.checks_failure = bool(earlier_failure or resend_until)
        """Whether it is checked if the answer is a failure, because the request can be sent again or was changed."""
        self.stream: ScoredStream | None = None
        """Reader of a streamed answer; None for an answer that is passed whole."""
        self.status = 0
        self.begun = False
        """Whether the caller has received a part of this answer's body."""
        self.failed = ""
        """How the request failed; no part of this answer was passed on."""
        self.ended = asyncio.Event()
        """Set when the gate has ended the answer."""

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Takes in the answer's head."""
        self.status, self._headers = status, list(headers)
        if status == 200 and Headers(raw=self._headers).get("content-type", "").lower().startswith(EVENT_STREAM):
            self.stream = self._exchange.stream(self._no_logprobs_reason)
        if self.stream is not None:
            self._first_event = FirstEvent() if self.checks_failure else None
            await self._start(self._headers)
        elif status not in (200, FORBIDDEN):
            self._passes(logprobs_failure(status, self._headers))

    async def feed(self, data: bytes) -> None:
        """Passes on the complete events of a stream.

        If a stream may be a failure, no event is passed before the first one is complete, unless it is a comment: a
        caller that waits for a comment gets it at once.
        """
        if self._first_event is not None:
            end = self._first_event.feed(data)
            if end or self._first_event.pending > MAX_FIRST_EVENT:
                await self._begin_stream(self._first_event.received(), end)
        else:
            await self._feed(data)

    async def end(self) -> None:
        """Ends a stream with its verdict."""
        if self._first_event is not None:
            await self._begin_stream(self._first_event.received(), self._first_event.pending)
        if self.stream is not None and not self.failed:
            await self._send(await self._read_along(self.stream, self.stream.bytes_at_end, self.stream.end), more=False)

    async def cut(self, refusal: Refusal) -> None:
        """Ends a stream that broke off."""
        stream = self.stream or self._exchange.stream(self._no_logprobs_reason)
        assert stream is not None  # without it no head has been sent
        await self._send(stream.cut(refusal.status, refusal.code, refusal.message), more=False)

    async def judge(self, body: bytes) -> bytes | None:
        """Returns the whole body to pass on, with its verdict; None if the answer is held back."""
        failure = ""
        if self.checks_failure and self.status in (200, FORBIDDEN):
            with suppress(Busy):  # nothing is held back then
                failure = await aside(len(body), partial(failure_of_whole, self.status, self._headers, body))
        if not self._passes(failure):
            return None
        if self.status == 200:
            body, self._reason = await self._exchange.judged(body, self._no_logprobs_reason)
        return body

    async def pass_on(self, parts: list[bytes], coming_parts: AsyncIterator[bytes], refusal: Refusal) -> None:
        """Sends a whole answer as it arrives, without reading it, because there is no memory for it.

        Raises `RuntimeError` if the answer breaks off, so that the connection is closed and half an answer is not taken
        for a whole one.

        Args:
            parts: the parts that have arrived.
            coming_parts: the parts that follow.
            refusal: why the answer is not read.
        """
        if not await self.begin_unread(parts, refusal):
            return
        try:
            async for part in coming_parts:
                await self._send(part, more=True)
        except Refusal as error:
            raise RuntimeError("the upstream's answer broke off") from error
        await self._send(b"", more=False)

    async def begin_unread(self, parts: list[bytes], refusal: Refusal) -> bool:
        """Sends the head of a whole answer that is not read, and the parts that have arrived, and empties `parts`.

        Returns whether to send the rest as well. If the answer is only quoted, the rest is not sent.
        """
        self._passes("")
        self._reason = self._exchange.not_scored(unscored(refusal))
        if self._exchange.begun:
            await self.send_whole(b"".join(parts))
            parts.clear()
            return False
        headers = MutableHeaders(raw=list(self._headers))
        if self._reason:
            headers[REASON_HEADER] = self._reason
        await self._start(headers.raw)
        while parts:
            await self._send(parts.pop(0), more=True)
            await asyncio.sleep(0)
        return True

    async def send_whole(self, body: bytes) -> None:
        """Sends the answer with this body. If the head of a stream was sent, an error event quotes the body."""
        if self._exchange.begun:
            quoted = body[:MAX_QUOTED].decode("utf-8", "replace")
            message = f"asked again without {self._exchange.added}, the upstream answered {self.status}: {quoted}"
            await self.cut(Refusal(502 if self.status == 200 else self.status, "upstream_status", message))
            return
        headers = MutableHeaders(raw=list(self._headers))
        headers["content-length"] = str(len(body))
        if self._reason:
            headers[REASON_HEADER] = self._reason
        await self._start(headers.raw)
        await self._send(body, more=False)

    def _passes(self, failure: str) -> bool:
        """Returns whether the answer is passed on, so that the request is not sent again."""
        if failure and time.perf_counter() < self._resend_until:
            self.failed = failure
            return False
        if not failure and self.status == 200 and self.checks_failure:
            exchange = self._exchange
            if self._earlier_failure:
                exchange.declined.failed(exchange.model, exchange.added, self._earlier_failure)
            else:
                exchange.declined.gave(exchange.model, exchange.added)
        return True

    async def _begin_stream(self, first_bytes: bytes, end: int) -> None:
        """Passes on the beginning of a stream, unless its first event, which ends at `end`, is a failure."""
        self._first_event = None
        if self._passes(failure_in(data_of(first_bytes[:end].removeprefix(BYTE_ORDER_MARK)))):
            await self._feed(first_bytes)

    async def _feed(self, data: bytes) -> None:
        assert self.stream is not None
        stream = self.stream
        self._received += len(data)
        if self._received > self._reserved_bytes:
            self._count_memory(stream)
        while data:
            room = LOOP_BYTES - stream.pending
            if len(data) <= room:  # as almost every piece of a stream
                out, data = stream.feed(data, max_reread=LOOP_BYTES), b""
            elif room > 0 and stream.is_plain and len(data) <= SLICED_BYTES:
                out, data = stream.feed(data[:room], max_reread=LOOP_BYTES), data[room:]
            else:
                work = partial(stream.feed, data, max_reread=LOOP_BYTES)
                out, data = await self._read_along(stream, stream.pending + len(data), work), b""
            if stream.waiting_bytes:
                out += await self._read_along(stream, stream.waiting_bytes, partial(stream.feed, b""))
            if out:
                await self._send(out, more=True)
            if stream.action:
                break
            if data:
                await asyncio.sleep(0)  # the turn of other requests
        if stream.action:
            self._exchange.metrics.gated.labels(stream.action).inc()
            self.ended.set()

    def _count_memory(self, stream: ScoredStream) -> None:
        """Reserves memory for the stream so far and for its next `RESERVED_AHEAD_BYTES`.

        If there is no memory, the rest of the stream passes unread.
        """
        self._reserved_bytes = self._received + RESERVED_AHEAD_BYTES
        if self._exchange.lease is None:
            return
        try:
            self._exchange.lease.hold(stream.held_bytes(self._reserved_bytes), large=self._reserved_bytes > LARGE_BYTES)
        except Refusal as refusal:
            stream.drop(unscored(refusal))
            self._exchange.lease.hold(0, large=False)

    async def _read_along(self, stream: ScoredStream, size: int, work: Callable[[], bytes]) -> bytes:
        """Returns the result of `work` on a stream. If too many tasks wait for a thread, the rest passes unread.

        Args:
            stream: the stream.
            size: bytes of the task.
            work: the task.
        """
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
                await asyncio.sleep(0)  # else a caller that reads as fast as we send would leave no turn to others


class Exchange(ABC):
    """Sends a request to the upstream. If an addition (`added`) makes it fail, sends the original."""

    send: Send
    """Sends a message to the caller."""

    def __init__(self, scored_request: ScoredRequest, *, metrics: Metrics, declined: Declined) -> None:
        self.settings, self.metrics, self.declined = scored_request.settings, metrics, declined
        self._scored, chat = scored_request, scored_request.chat
        self.added = "" if chat is None else chat.added
        """Name of what was added to the request, such as "log-probabilities"; empty if nothing was added."""
        self.model = "" if chat is None else chat.model
        """Model that the caller names; empty if nothing was added."""
        self.started = 0.0
        self.begun = False
        """Whether the caller has received the head of an answer."""
        self.lease: Lease | None = None
        """Memory of the answer; None if it is not counted."""

    def stream(self, no_logprobs_reason: str) -> ScoredStream | None:
        """Returns the reader of a streamed answer; None if there is nothing to score.

        `no_logprobs_reason`: why the answer has no log-probabilities.
        """
        scored_request = self._scored
        if scored_request.scorer is None:
            return None
        return ScoredStream(
            scored_request.scorer,
            scored_request.chat,
            scored_request.gates,
            gated_reason=self.settings.gate_finish_reason,
            max_bytes=self.settings.max_answer_bytes,
            no_logprobs=self._none_because(no_logprobs_reason),
        )

    async def judged(self, body: bytes, no_logprobs_reason: str) -> tuple[bytes, str]:
        """Returns (the answer with its verdict, ""), without log-probabilities that the caller did not request.

        A large answer, or one with many choices, is read in a thread. If too many tasks wait for a thread, or there is
        no memory, the result is (the unchanged answer, why). `no_logprobs_reason` says why the answer has no
        log-probabilities, if this is known.
        """
        if self._scored.scorer is None:
            return body, ""
        cost = 1 if self._scored.panels is None else PANEL_COST
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
            return await aside(weight, partial(self._whole, body, no_logprobs_reason, choices))
        except Refusal as refusal:
            return body, self.not_scored(unscored(refusal))

    def not_scored(self, reason: str) -> str:
        """Logs that the answer has no verdict, and returns why; empty if there is no scorer."""
        if self._scored.scorer is None:
            return ""
        self._scored.scorer.none(reason)
        return reason

    def _whole(
        self, body: bytes, no_logprobs_reason: str, choices_read: tuple[list[bytes], int] | None
    ) -> tuple[bytes, str]:
        """Does the work of `judged`, which has waited for its turn. Raises `Refusal` if there is no memory for the
        answer.

        Args:
            body: the answer.
            no_logprobs_reason: why the answer has no log-probabilities; empty if this is not known.
            choices_read: the answer's choices and their number, if they were already read.
        """
        scorer, chat, panels = self._scored.scorer, self._scored.chat, self._scored.panels
        assert scorer is not None
        if len(body) > LARGE_BYTES:
            weight = reading_bytes(body) + len(body)  # the answer is written once more, with its verdict
            if self.lease is not None:
                self.lease.hold(weight, large=True)
        try:
            choices, count = choices_read or choices_of(body)
        except UNREADABLE:
            return body, self.not_scored(NO_OBJECT)
        why_unscored = self._none_because(no_logprobs_reason)
        verdicts = [
            scorer.none(why_unscored)
            if why_unscored
            else scorer.verdict(choice, asked_model=None if chat is None else chat.model)
            for choice in choices
        ]
        if count > len(choices):
            beyond_reason = beyond_limit(count)
            verdicts.append(scorer.none(beyond_reason))
        verdict = combine_verdicts(verdicts)
        if count > len(choices):
            verdict["reason"] = "; ".join(filter(None, [verdict["reason"], beyond_reason]))
        if panels is not None and count > 1:
            panel_verdict = panels.verdict(choices, count, (chat.messages if chat else None) or [])
            # If nobody named a predictor, the default one's score is left out: only the panel's was asked for.
            verdict = with_panel(
                verdict, panel_verdict, panel_only=str(self.settings.checkpoint) == QualityPredictor.bundled
            )
        return with_verdict(body, verdict, chat), ""

    def _none_because(self, no_logprobs_reason: str) -> str:
        chat = self._scored.chat
        return no_logprobs_reason if chat is not None and not chat.wants_logprobs else ""

    @abstractmethod
    async def ask(self, body: bytes, passing: Passing, within_s: float | None) -> None:
        """Sends this body, and has the answer passed on.

        Args:
            body: the body.
            passing: passes the answer on.
            within_s: time limit for the answer's head, if it is shorter than the settings'.
        """

    @abstractmethod
    def excuse(self, error: Exception) -> str:
        """Returns how an addition to the request may have caused an error; empty if it cannot."""

    async def run(self) -> None:
        """Passes the answer on. Raises the error of `ask` if the request cannot be sent again."""
        self.started = time.perf_counter()
        within_s, failed = None, ""
        scored_request, earlier_failure = self._scored, self.declined.why(self.model, self.added) if self.added else ""
        if not earlier_failure:
            first_passing = Passing(self, resend_until=self.started + self.settings.timeout_s if self.added else 0.0)
            try:
                await self.ask(
                    scored_request.body if scored_request.chat is None else scored_request.chat.sent,
                    first_passing,
                    None,
                )
            except Exception as error:
                first_passing.failed = self.excuse(error) if self.added and not first_passing.begun else ""
                if not first_passing.failed:
                    await self._end(first_passing, error)
                    return
            if not first_passing.failed:
                return
            failed = first_passing.failed
            self.metrics.errors.labels("logprobs_declined").inc()
            within_s = self.settings.timeout_s - (time.perf_counter() - self.started)
        no_logprobs_reason = no_logprobs(earlier_failure or failed, again=not earlier_failure)
        passing = Passing(self, no_logprobs_reason=no_logprobs_reason, earlier_failure=failed)
        try:
            await self.ask(scored_request.body, passing, within_s)
        except Refusal as refusal:
            await self._end(passing, refusal)

    async def _end(self, passing: Passing, error: Exception) -> None:
        """Ends a stream whose head was sent with an error event. Raises any other error.

        Raises `RuntimeError` if a part of a whole answer was sent, so that the connection is closed.
        """
        if not self.begun or not isinstance(error, Refusal):
            raise error
        if passing.begun and passing.stream is None:
            raise RuntimeError("the upstream's answer broke off") from error
        self.metrics.errors.labels(error.code).inc()
        await passing.cut(error)


class UpstreamExchange(Exchange, Response):
    """The upstream's answer to one request. Sending it raises `Refusal` if nothing was sent yet.

    All checks that can refuse a request come before. The upstream is asked only when the answer is sent, and `asking`
    owns the upstream's answer. So no error between asking and closing can leave a connection open.
    """

    def __init__(
        self,
        scored_request: ScoredRequest,
        request: Request,
        path: str,
        client: UpstreamClient,
        seconds_here: float,
        **shared: Any,
    ) -> None:
        """Sets up the exchange.

        Args:
            scored_request: the request and its scorer.
            request: the caller's request.
            path: path below the upstream's base address.
            client: the upstream's client.
            seconds_here: seconds spent on the request here so far.
            **shared: other arguments of `Exchange`.
        """
        Exchange.__init__(self, scored_request, **shared)
        Response.__init__(self)
        self._request, self._path, self._client, self._seconds_here = request, path, client, seconds_here

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.send = send
        self.lease = Lease(scope[SCOPE_LEASE].memory)
        try:
            await while_connected(receive, self.run())
        finally:
            self.lease.close()

    def excuse(self, error: Exception) -> str:
        """Returns how the upstream failed if a field that was added to the request may be the cause; empty otherwise.

        The request is then sent again without the added fields.
        """
        return "with a closed connection" if isinstance(error, Refusal) and error.code == CUT_CODE else ""

    async def ask(self, body: bytes, passing: Passing, within_s: float | None) -> None:
        """Sends the request to the upstream. Events are passed on as they arrive, and end with the verdict.

        Args:
            body: the request.
            passing: passes events on.
            within_s: time limit for the answer's head, if it is shorter than the settings'.
        """
        async with self._client.asking(self._request, "POST", self._path, body, within_s=within_s) as answer:
            caller_headers = to_caller(answer.headers).items()
            await passing.begin(
                answer.status, [(name.encode("latin-1"), value.encode("latin-1")) for name, value in caller_headers]
            )
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
                        self.metrics.added_seconds.observe(self._seconds_here + passing.stream.seconds)
            elif not passing.failed:
                answer_body = await self._read_whole_answer(answer, passing)
                if answer_body is None:
                    return
                answered_at = time.perf_counter()
                # The judged answer replaces the first, so that a large answer is not held twice while it is sent.
                answer_body = await passing.judge(answer_body)
                if answer_body is None:
                    return
                self.metrics.upstream_seconds.observe(answered_at - self.started)
                if 300 <= answer.status < 400:
                    raise redirect(answer)
                if answer.status != 200:
                    self.metrics.errors.labels("upstream_status").inc()
                else:
                    self.metrics.added_seconds.observe(self._seconds_here + time.perf_counter() - answered_at)
                await passing.send_whole(answer_body)

    async def _read_whole_answer(self, answer: UpstreamAnswer, passing: Passing) -> bytes | None:
        """Returns the whole answer; None if it was passed on unread, because there was no memory for it.

        Raises `Refusal` as `UpstreamAnswer.whole` does, which reads errors.
        """
        limit = self.settings.max_answer_bytes
        if answer.status != 200:
            return await answer.whole(min(limit, MAX_ERROR_BYTES))
        assert self.lease is not None
        parts: list[bytes] = []
        size, announced = 0, min(announced_size(answer.headers), limit)
        async with aclosing(answer.parts()) as coming_parts:
            async for part in coming_parts:
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise Refusal(502, "upstream_too_large", f"the upstream's answer is larger than {limit} bytes")
                try:
                    expected_size = max(size, announced)  # by the announced size nothing is kept that will find no room
                    self.lease.hold(ANSWER_COPIES * expected_size, large=expected_size > LARGE_BYTES)
                except Refusal as refusal:
                    self.lease.hold(0, large=False)
                    await passing.pass_on(parts, coming_parts, refusal)
                    return None
        return b"".join(parts)
