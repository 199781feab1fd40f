"""The proxy: a chat completion from the upstream, passed on with a verdict.

What a caller gets is what the upstream gave. Added are the verdict, under `metaprobe`, and log-probabilities in the
request where the caller asked for none, which are then taken out of the answer again. An error of the upstream passes
with its status and body.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from metaprobe.serving.gating import Gates
from metaprobe.serving.http.aside import aside
from metaprobe.serving.http.connection import read_json_body, while_connected
from metaprobe.serving.http.headers import REASON, to_caller, to_upstream
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.request_log import ServerLog
from metaprobe.serving.http.scorer import Scorer
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.streamed_answer import ScoredStream
from metaprobe.serving.http.whole_answer import with_own_verdict
from metaprobe.serving.http.wire import ChatRequest, asked

logger = logging.getLogger(__name__)

REFUSED = (400, 403, 422)
"""Statuses with which an upstream may refuse log-probabilities; the request is then sent again as it came."""
KEEP_IDLE_S = 2.0
"""Less than what servers keep an idle connection for, so that a request does not meet one that is just being closed."""
EVENTS = "text/event-stream"


class Proxy:
    """Answers requests for chat completions by asking the upstream, and only it."""

    def __init__(
        self,
        settings: Settings,
        scorer: Scorer,
        gates: Gates | None,
        metrics: Metrics,
        log: ServerLog | None = None,
    ) -> None:
        self._settings = settings
        self._scorer = scorer
        self._gates = gates
        self._metrics = metrics
        self._log = log
        self._upstream_key = settings.upstream_key()
        self._own_keys = frozenset(settings.api_keys())
        self._top = settings.top_logprobs if scorer.uses_top else 0
        # trust_env would take proxies, and passwords from ~/.netrc, from the machine.
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(settings.timeout_s, connect=settings.connect_timeout_s),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_IDLE_S),
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # one caller's would be sent with another's
            trust_env=False,
        )
        self._chat, self._models = httpx.URL(settings.chat_url), httpx.URL(settings.models_url)

    async def close(self) -> None:
        await self._client.aclose()

    async def __call__(self, request: Request) -> Response:
        """The upstream's answer with a verdict. Raises `Refusal` where there is none."""
        body = await read_json_body(request, self._settings)
        started = time.perf_counter()
        question = await aside(len(body), lambda: asked(body, top_logprobs=self._top))
        headers, url = self._headers(request), _with_query(self._chat, request)
        scorer = self._scorer.of(self._log.request(request, question) if self._log else None)
        own = time.perf_counter() - started
        return await while_connected(request.receive, self._answer(url, question, headers, own, scorer))

    async def models(self, request: Request) -> Response:
        """The upstream's list of models, or what it says of one, as it is."""
        url = _with_query(_with_model(self._models, request), request)
        answer = await self._send("GET", url, None, self._headers(request))
        body = await self._whole(answer)
        if 300 <= answer.status_code < 400:
            raise _redirect(answer)
        return Response(body, answer.status_code, to_caller(answer.headers.raw))

    def _headers(self, request: Request) -> dict[str, str]:
        return to_upstream(
            request.headers,
            upstream_key=self._upstream_key,
            own_keys=self._own_keys,
            more=self._settings.forward_headers,
        )

    async def _answer(
        self, url: httpx.URL, question: ChatRequest, headers: dict[str, str], own: float, scorer: Scorer
    ) -> Response:
        started = time.perf_counter()
        answer = await self._send("POST", url, question.sent, headers)
        refused = ""
        if question.changed and answer.status_code in REFUSED:
            # Perhaps it is what the caller has not asked for that it refuses: log-probabilities, or alternatives.
            if not question.wants_logprobs:
                refused = f"the upstream refused to give log-probabilities (status {answer.status_code})"
            await answer.aclose()
            answer = await self._send("POST", url, question.body, headers)
        passed = to_caller(answer.headers.raw)
        if answer.status_code == 200 and answer.headers.get("content-type", "").lower().startswith(EVENTS):
            stream = ScoredStream(
                scorer,
                question,
                self._gates,
                gated_reason=self._settings.gate_finish_reason,
                max_bytes=self._settings.max_answer_bytes,
                no_logprobs=refused,
            )
            return _Streaming(answer, stream, passed, self._metrics, started, own)
        body = await self._whole(answer)
        done = time.perf_counter()
        self._metrics.upstream_seconds.observe(done - started)
        if 300 <= answer.status_code < 400:
            raise _redirect(answer)
        if answer.status_code != 200:
            self._metrics.errors.labels("upstream_status").inc()
            return Response(body, answer.status_code, passed)
        body, reason = await aside(len(body), partial(with_own_verdict, scorer, body, question, refused))
        if reason:
            passed[REASON] = reason
        self._metrics.added_seconds.observe(own + time.perf_counter() - done)
        return Response(body, answer.status_code, passed)

    async def _send(self, method: str, url: httpx.URL, body: bytes | None, headers: dict[str, str]) -> httpx.Response:
        async with _explain(self._settings):
            given = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
            request = self._client.build_request(method, url, content=body, headers=given)
            return await self._client.send(request, stream=True)

    async def _whole(self, answer: httpx.Response) -> bytes:
        limit = self._settings.max_answer_bytes
        parts, size = [], 0
        try:
            async with _explain(self._settings):
                async for part in answer.aiter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > limit:
                        raise Refusal(502, "upstream_too_large", f"the upstream's answer is larger than {limit} bytes")
        finally:
            await answer.aclose()
        return b"".join(parts)


class _Streaming(Response):
    """Passes events on as they come, closes the upstream when the caller is gone, and ends with the verdict."""

    def __init__(
        self,
        answer: httpx.Response,
        stream: ScoredStream,
        headers: dict[str, str],
        metrics: Metrics,
        started: float,
        own: float,
    ) -> None:
        super().__init__(status_code=answer.status_code)
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
            # Shielded: where this request is being cancelled, the upstream must still hear that it can stop.
            await asyncio.shield(self._answer.aclose())
            self._metrics.upstream_seconds.observe(time.perf_counter() - self._started)
            self._metrics.added_seconds.observe(self._own + self._stream.seconds)

    async def _pass(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            received = 0
            async for data in self._answer.aiter_bytes():
                received += len(data)
                if out := await aside(received, partial(self._stream.feed, data)):
                    await send({"type": "http.response.body", "body": out, "more_body": True})
                if self._stream.action:
                    self._metrics.gated.labels(self._stream.action).inc()
                    break
            last = await aside(received, self._stream.end)
        except httpx.HTTPError as error:
            refusal = _refusal(error, None)
            self._metrics.errors.labels(refusal.code).inc()
            last = self._stream.cut(refusal.status, refusal.code, refusal.message)
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _with_query(url: httpx.URL, request: Request) -> httpx.URL:
    """The address with what the caller wrote behind the question mark (`?api-version=...`)."""
    query: bytes = request.scope["query_string"]
    return url.copy_with(query=query) if query else url


def _with_model(models: httpx.URL, request: Request) -> httpx.URL:
    """The address of the model that the caller names, as it was written; of the list where none is named."""
    if "model" not in request.path_params:
        return models
    # A step up would reach an address that is none of the two that are ever asked.
    if {"", ".", ".."} & set(request.path_params["model"].replace("\\", "/").split("/")):
        raise Refusal(404, "unknown_model", "this is no name of a model")
    written: bytes = request.scope["raw_path"].partition(b"/models/")[2]
    return models.copy_with(raw_path=models.raw_path + b"/" + written)


@asynccontextmanager
async def _explain(settings: Settings) -> AsyncIterator[None]:
    """Turns the client's errors into refusals."""
    try:
        yield
    except httpx.HTTPError as error:
        raise _refusal(error, settings) from error


def _redirect(answer: httpx.Response) -> Refusal:
    return Refusal(
        502, "upstream_redirect", f"the upstream redirects (status {answer.status_code}); it is not followed"
    )


def _refusal(error: httpx.HTTPError, settings: Settings | None) -> Refusal:
    if isinstance(error, (httpx.ConnectTimeout, httpx.ConnectError)):
        # For who runs the server; the caller need not know where the upstream is.
        logger.warning("the upstream cannot be reached: %s", str(error) or type(error).__name__)
        return Refusal(502, "upstream_unreachable", "the upstream cannot be reached; the server's log says why")
    if isinstance(error, httpx.TimeoutException):
        within = "in time" if settings is None else f"within {settings.timeout_s:g} s"
        return Refusal(504, "upstream_timeout", f"the upstream did not go on {within}")
    return Refusal(502, "upstream_cut", "the upstream closed the connection before its answer was whole")
