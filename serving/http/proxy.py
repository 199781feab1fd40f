"""The proxy: a chat completion from the upstream, passed on with a verdict.

What a caller gets is what the upstream gave. Added are the verdict, under `metaprobe`, and log-probabilities in the
request where the caller asked for none, which are then taken out of the answer again. An error of the upstream passes
with its status and body.
"""

import time
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from metaprobe.serving.gating import Gates
from metaprobe.serving.http.aside import REQUESTS, STREAMS, aside
from metaprobe.serving.http.connection import read_json_body, while_connected
from metaprobe.serving.http.guard import request_id
from metaprobe.serving.http.headers import REASON, to_caller
from metaprobe.serving.http.judges import Office
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.request_log import ServerLog
from metaprobe.serving.http.scorer import Scorer
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.streamed_answer import ScoredStream
from metaprobe.serving.http.upstream import UpstreamAnswer, UpstreamClient, redirect
from metaprobe.serving.http.whole_answer import with_own_verdict
from metaprobe.serving.http.wire import ChatRequest, asked

REFUSED = (400, 403, 422)
"""Statuses with which an upstream may refuse log-probabilities; the request is then sent again as it came."""
EVENTS = "text/event-stream"
CHAT = "/chat/completions"


class Proxy:
    """Answers requests for chat completions by asking the upstream, and only it."""

    def __init__(
        self,
        settings: Settings,
        office: Office,
        gates: Gates | None,
        client: UpstreamClient,
        metrics: Metrics,
        log: ServerLog | None,
    ) -> None:
        self._settings = settings
        self._log = log
        self._office = office
        self._gates = gates
        self._client = client
        self._metrics = metrics

    async def __call__(self, request: Request) -> Response:
        """The upstream's answer with a verdict. Raises `Refusal` where there is none."""
        body = await read_json_body(request, self._settings)
        started = time.perf_counter()
        judges = self._office.now
        top = self._settings.top_logprobs if judges.uses_top else 0
        question = await aside(len(body), lambda: asked(body, top_logprobs=top), REQUESTS)
        scorer = judges.pick(question.model, request_id(request))
        if log := self._log:
            scorer = scorer.of(await aside(len(body), lambda: log.request(request, question), REQUESTS))
        own = time.perf_counter() - started
        return await while_connected(request.receive, self._answer(request, question, scorer, own))

    async def models(self, request: Request) -> Response:
        """The upstream's list of models, or what it says of one, as it is."""
        answer = await self._client.ask(request, "GET", _model_path(request), None)
        body = await answer.whole(self._settings.max_answer_bytes)
        if 300 <= answer.status < 400:
            raise redirect(answer)
        return Response(body, answer.status, to_caller(answer.headers))

    async def _answer(self, request: Request, question: ChatRequest, scorer: Scorer, own: float) -> Response:
        started = time.perf_counter()
        answer = await self._client.ask(request, "POST", CHAT, question.sent)
        refused = ""
        if question.changed and answer.status in REFUSED:
            # Perhaps it is what the caller has not asked for that it refuses: log-probabilities, or alternatives.
            if not question.wants_logprobs:
                refused = f"the upstream refused to give log-probabilities (status {answer.status})"
            answer.close()
            answer = await self._client.ask(request, "POST", CHAT, question.body)
        passed = to_caller(answer.headers)
        if answer.status == 200 and answer.content_type.startswith(EVENTS):
            stream = ScoredStream(
                scorer,
                question,
                self._gates,
                gated_reason=self._settings.gate_finish_reason,
                max_bytes=self._settings.max_answer_bytes,
                no_logprobs=refused,
            )
            return Streaming(answer, stream, passed, self._metrics, started, own)
        body = await answer.whole(self._settings.max_answer_bytes)
        done = time.perf_counter()
        self._metrics.upstream_seconds.observe(done - started)
        if 300 <= answer.status < 400:
            raise redirect(answer)
        if answer.status != 200:
            self._metrics.errors.labels("upstream_status").inc()
            return Response(body, answer.status, passed)
        body, reason = await aside(len(body), partial(with_own_verdict, scorer, body, question, refused))
        if reason:
            passed[REASON] = reason
        self._metrics.added_seconds.observe(own + time.perf_counter() - done)
        return Response(body, answer.status, passed)


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


class Streaming(Response):
    """Passes events on as they come, closes the upstream when the caller is gone, and ends with the verdict."""

    def __init__(
        self,
        answer: UpstreamAnswer,
        stream: PassingStream,
        headers: dict[str, str],
        metrics: Metrics,
        started: float,
        own: float,
    ) -> None:
        super().__init__(status_code=answer.status)
        self.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self._answer = answer
        self._stream = stream
        self._metrics = metrics
        self._started = started
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._pass(send))
        except Refusal as refusal:  # the caller is gone, so there is nobody to answer
            self._metrics.errors.labels(refusal.code).inc()
        finally:
            self._answer.close()
            self._metrics.upstream_seconds.observe(time.perf_counter() - self._started)
            self._metrics.added_seconds.observe(self._own + self._stream.seconds)

    async def _pass(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            received = 0
            async for data in self._answer.parts():
                received += len(data)
                if out := await aside(received, partial(self._stream.feed, data), STREAMS):
                    await send({"type": "http.response.body", "body": out, "more_body": True})
                if self._stream.action:
                    self._metrics.gated.labels(self._stream.action).inc()
                    break
            last = await aside(received, self._stream.end, STREAMS)
        except Refusal as refusal:
            self._metrics.errors.labels(refusal.code).inc()
            last = self._stream.cut(refusal.status, refusal.code, refusal.message)
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _model_path(request: Request) -> str:
    """The path of the model that the caller names, as it was written; of the list where none is named."""
    if "model" not in request.path_params:
        return "/models"
    # A step up would reach an address that is none of the two that are ever asked.
    if {"", ".", ".."} & set(request.path_params["model"].replace("\\", "/").split("/")):
        raise Refusal(404, "unknown_model", "this is no name of a model")
    written: bytes = request.scope["raw_path"].partition(b"/models/")[2]
    return f"/models/{written.decode('latin-1')}"
