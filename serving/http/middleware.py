"""Verdicts inside an engine's own server: an ASGI middleware, so that no request goes through a proxy.

    METAPROBE_CHECKPOINT=my/checkpoint vllm serve MODEL --middleware metaprobe.serving.http.middleware.VerdictMiddleware

Any ASGI application with `/v1/chat/completions` takes it. It is set up by environment variables, for engines make it
without arguments.
"""

import asyncio
import logging
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metaprobe.checkpoints import ContractMismatch
from metaprobe.checkpoints.flagging import flag_options_of_environment
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.routing.gate import StreamingGate
from metaprobe.serving.gating import Gates
from metaprobe.serving.http.asgi_messages import first_of, is_json, once_more, read_body, until_the_end, with_length
from metaprobe.serving.http.aside import aside
from metaprobe.serving.http.declined import (
    FORBIDDEN,
    Declined,
    failure_in,
    failure_in_event,
    failure_of,
    names_logprobs,
    no_logprobs,
)
from metaprobe.serving.http.headers import REASON
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.request_log import SCOPE_CALLERS_ID, SCOPE_ID, RequestLog, ServerLog, callers_id
from metaprobe.serving.http.scorer import Scorer
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.sse import EventSplitter
from metaprobe.serving.http.streamed_answer import ScoredStream
from metaprobe.serving.http.whole_answer import with_own_verdict
from metaprobe.serving.http.wire import ChatRequest, asked

logger = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"
VARIABLES = {
    "METAPROBE_CHECKPOINT": "checkpoint",
    "METAPROBE_SHA256": "sha256",
    "METAPROBE_RUN": "base_rates",
    "METAPROBE_GATE": "gate",
    "METAPROBE_GATE_SHA256": "gate_sha256",
    "METAPROBE_GATE_STOP": "gate_stop",
    "METAPROBE_GATE_ESCALATE": "gate_escalate",
    "METAPROBE_GATE_FINISH_REASON": "gate_finish_reason",
    "METAPROBE_ON_MISMATCH": "on_mismatch",
    "METAPROBE_LOG": "log",
    "METAPROBE_LOG_TEXTS": "log_texts",
    "METAPROBE_LOG_LOGPROBS": "log_logprobs",
}
"""Environment variable -> the setting of `metaprobe serve` that it is. METAPROBE_FLAG_RATE, METAPROBE_FLAG_BELOW,
METAPROBE_CATCH and METAPROBE_RISK say which answers are flagged, at most one of them."""
NUMBERS = ("gate_stop", "gate_escalate")
SWITCHES = {"METAPROBE_LOG_TEXTS": "log_texts", "METAPROBE_LOG_LOGPROBS": "log_logprobs"}
OFF_AND_ON = {"0": False, "false": False, "1": True, "true": True}
HERE = "http://127.0.0.1/v1"
"""The application is its own upstream."""


def settings_of(environment: Mapping[str, str]) -> Settings:
    """The settings that these variables give. Raises `RecordError` for one that cannot be meant."""
    given: dict[str, Any] = {VARIABLES[name]: value for name, value in environment.items() if name in VARIABLES}
    for name in NUMBERS:
        if name in given:
            try:
                given[name] = float(given[name])
            except ValueError as error:
                raise RecordError(f"{name} is {given[name]!r}; expected a share between 0 and 1") from error
    for name, setting in SWITCHES.items():
        if setting in given:
            if given[setting].lower() not in OFF_AND_ON:
                raise RecordError(f"{name} is {given[setting]!r}; expected one of {', '.join(OFF_AND_ON)}")
            given[setting] = OFF_AND_ON[given[setting].lower()]
    if "base_rates" in given:
        given["base_rates"] = (given["base_rates"],)
    try:
        given |= flag_options_of_environment(environment).flags
    except ContractMismatch as error:
        raise RecordError(str(error)) from error
    return Settings(**{"checkpoint": "bundled:quality", **given, "upstream": HERE, "auth": False})


class VerdictMiddleware:
    """Puts a verdict under `metaprobe` into every chat completion of the application inside, streamed or whole.

    Log-probabilities are asked for where the caller did not, and taken out again. Where the settings name a gate, a
    streamed answer that begins badly is ended, and the application hears that its caller is gone. Where they name a
    log, each verdict is logged, under an id made here, with the caller's x-request-id beside it. Whatever else comes or
    goes, errors included, passes as it is.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: Settings | None = None,
        predictor: QualityPredictor | None = None,
        gates: Gates | None = None,
    ) -> None:
        """Without `settings` those of the environment; `predictor` and `gates` in place of those the settings name."""
        self._app = app
        self._settings = settings = settings or settings_of(os.environ)
        on_mismatch: Any = "note" if settings.on_mismatch == "warn" else settings.on_mismatch
        if predictor is None:
            predictor = QualityPredictor.load(
                settings.checkpoint,
                sha256=settings.sha256,
                run=settings.run_by_model.get(""),
                on_mismatch=on_mismatch,
                **settings.flags,
            )
        if gates is None and settings.gate is not None:
            gates = StreamingGate.load(
                settings.gate,
                stop=settings.gate_stop,
                escalate=settings.gate_escalate,
                sha256=settings.gate_sha256,
                on_mismatch=on_mismatch,
            )
        self._gates = gates
        self._declined = Declined()
        metrics = Metrics()
        self._scorer = Scorer(predictor, metrics, max_tokens=settings.max_scored_tokens)
        self._log = ServerLog.open(settings, metrics, gated=gates is not None) if settings.log else None
        self._top = settings.top_logprobs if self._scorer.uses_top else 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, as ASGI has it."""
        if scope["type"] == "lifespan" and self._log is not None:
            await until_the_end(self._app, scope, receive, send, self._log.log.close)
            return
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(CHAT):
            await self._app(scope, receive, send)
            return
        body, whole = await read_body(receive, self._settings.max_body_bytes)
        question = self._question(body) if whole and is_json(scope) else None
        if question is None:
            await self._app(scope, once_more(body, whole, receive), send)
            return
        scorer = self._scorer.of(self._logged(scope, question))
        why = self._declined.why(question.model, question.added) if question.added else ""
        known = bool(why)
        if not known:
            why = await self._as_changed(scope, receive, send, scorer, question)
        if why:
            without = "" if question.wants_logprobs else no_logprobs(why, again=not known)
            again = _Answer(self, scorer, question, send, without=without)
            await self._app(with_length(scope, body), again.receive_after(body, receive), again.take)
            if not known and again.status == 200:
                self._declined.failed(question.model, question.added, why)

    async def _as_changed(
        self, scope: Scope, receive: Receive, send: Send, scorer: Scorer, question: ChatRequest
    ) -> str:
        """Puts the changed request to the application; where that failed and nothing was sent, returns how."""
        answer = _Answer(self, scorer, question, send, may_fail=question.changed)
        try:
            await self._app(
                with_length(scope, question.sent), answer.receive_after(question.sent, receive), answer.take
            )
        except Exception as error:
            if not question.changed or answer.begun:
                raise
            logger.warning("the application failed a request with log-probabilities: %s", type(error).__name__)
            return type(error).__name__
        if question.changed and answer.status == 200 and not answer.failed:
            self._declined.gave(question.model, question.added)
        return answer.failed

    def _question(self, body: bytes) -> ChatRequest | None:
        try:
            return asked(body, top_logprobs=self._top)
        except Refusal:
            return None  # the application says best what is wrong with it

    def _logged(self, scope: Scope, question: ChatRequest) -> RequestLog | None:
        """What the answers to this request are logged by; None without a log. Tags that cannot be read are left out:
        the application has no quarrel with them."""
        if self._log is None:
            return None
        identity, theirs = uuid.uuid4().hex, callers_id(Headers(scope=scope).get("x-request-id", ""))
        request = Request({**scope, SCOPE_ID: identity, SCOPE_CALLERS_ID: theirs})
        try:
            return self._log.request(request, question)
        except Refusal as refusal:
            logger.warning("request %s is logged without tags: %s", identity, refusal)
            return self._log.request(request, question, tags={})

    def stream(self, scorer: Scorer, question: ChatRequest, refused: str) -> ScoredStream:
        """What reads a streamed answer along."""
        return ScoredStream(
            scorer,
            question,
            self._gates,
            gated_reason=self._settings.gate_finish_reason,
            max_bytes=self._settings.max_answer_bytes,
            no_logprobs=refused,
        )

    async def whole(self, scorer: Scorer, body: bytes, question: ChatRequest, refused: str) -> tuple[bytes, str]:
        """An answer that came whole, with its verdict; else as it came, and why."""
        return await aside(len(body), partial(with_own_verdict, scorer, body, question, refused))


@dataclass(slots=True)
class _Body:
    """What has come of an answer that is passed on when it is whole."""

    start: Message
    parts: list[bytes]


class _Answer:
    """One answer of the application on its way to the caller."""

    def __init__(
        self,
        owner: VerdictMiddleware,
        scorer: Scorer,
        question: ChatRequest,
        send: Send,
        *,
        without: str = "",
        may_fail: bool = False,
    ) -> None:
        """`scorer`: that of this request. `without`: why there are no log-probabilities. `may_fail`: whether a failure
        may be due to what was added to the request, and is then not sent."""
        self._owner, self._scorer, self._question, self._to_caller = owner, scorer, question, send
        self._why_none = without
        self._may_fail = may_fail
        self.status = 0
        self.begun = False
        """Whether anything was sent."""
        self.failed = ""
        """How the application failed; nothing of that answer was sent."""
        self._held: Message | None = None
        """The start of an answer whose first bytes say whether it is a failure."""
        self._stream: ScoredStream | None = None
        self._body: _Body | None = None
        self._ended = asyncio.Event()
        """Set when the gate has ended the answer."""

    def receive_after(self, body: bytes, receive: Receive) -> Receive:
        """What the application receives: this body, then what the caller does, and that it is gone once the gate has
        ended the answer."""
        told = False

        async def received() -> Message:
            nonlocal told
            if not told:
                told = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await first_of(receive, self._ended)

        return received

    async def take(self, message: Message) -> None:
        """Takes in a message of the application, and sends what is to be sent now."""
        if self.failed or self._ended.is_set():
            return
        if self._held is not None:
            await self._look(self._held, message)
            return
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._stream is not None and message["type"] == "http.response.body":
            await self._pass(self._stream, message)
        elif self._body is not None and message["type"] == "http.response.body":
            await self._gather(self._body, message)
        else:
            await self._send(message)

    async def _send(self, message: Message) -> None:
        self.begun = True
        await self._to_caller(message)

    async def _begin(self, start: Message) -> None:
        headers = list(start.get("headers", ()))
        self.status, kind = start["status"], Headers(raw=headers).get("content-type", "").lower()
        streamed = self.status == 200 and kind.startswith("text/event-stream")
        if streamed:
            self._stream = self._owner.stream(self._scorer, self._question, self._why_none)
        if self._may_fail and (streamed or self.status == FORBIDDEN):
            self._held = start
        elif self._may_fail and (failed := failure_of(self.status, headers)):
            self.failed = failed
        elif self.status == 200 and kind.startswith("application/json"):
            self._body = _Body(start, [])
        else:
            await self._send(start)

    async def _look(self, start: Message, message: Message) -> None:
        """Decides by its first bytes whether an answer is a failure; else what was held is sent."""
        body = message.get("body", b"")
        if not body and message.get("more_body", False):
            return
        if self._stream is None:
            self.failed = failure_of(self.status, start.get("headers", ())) if names_logprobs(body) else ""
        else:
            self.failed = failure_in_event((EventSplitter().feed(body) or [body])[0])
        if self.failed:
            return
        self._held = None
        await self._send(start)
        await self.take(message)

    async def _pass(self, stream: ScoredStream, message: Message) -> None:
        out = stream.feed(message.get("body", b""))
        if stream.action:
            self._ended.set()
        last = self._ended.is_set() or not message.get("more_body", False)
        if last:
            out += stream.end()
        if out or last:
            await self._send({"type": "http.response.body", "body": out, "more_body": not last})

    async def _gather(self, held: _Body, message: Message) -> None:
        held.parts.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        whole = b"".join(held.parts)
        if self._may_fail and (failed := failure_in(whole)):
            self.failed = failed
            return
        body, reason = await self._owner.whole(self._scorer, whole, self._question, self._why_none)
        headers = MutableHeaders(raw=list(held.start.get("headers", ())))
        headers["content-length"] = str(len(body))
        if reason:
            headers[REASON] = reason
        await self._send({**held.start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
