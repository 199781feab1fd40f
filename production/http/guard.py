"""Guards the application: access, limits on concurrent requests, and the log line of each request. Plain ASGI."""

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metaprobe.api import require
from metaprobe.production.http.bodies import OWNER, Refusal
from metaprobe.production.http.keys import ANYONE, Caller, KeyLimits, Keys
from metaprobe.production.http.metrics import RECORD_ATTRIBUTE, Metrics, log_unexpected
from metaprobe.production.http.openapi import ADMIN_ADDRESSES, ENDPOINTS, KEYLESS_ADDRESSES
from metaprobe.production.http.request_log import SCOPE_CALLER, SCOPE_CALLERS_ID, SCOPE_ID, callers_id
from metaprobe.production.http.settings import Settings, is_loopback

logger = logging.getLogger(__name__)


KEY_HEADER = "x-metaprobe-key"
"""Header with a caller's key for this server, for requests whose `Authorization` is meant for the upstream."""
REQUEST_ID = "metaprobe-request-id"


def trial_id(request: Request) -> str:
    """Returns the id that decides whether a checkpoint on trial judges the request: the caller's id, else ours. It is
    empty outside the guard.

    A caller that repeats a request under the same id gets the same judge.
    """
    return str(request.scope.get(SCOPE_CALLERS_ID) or request.scope.get(SCOPE_ID, ""))


class Guard:
    """Checks host and key, limits concurrent requests, gives each request an id, counts it, and logs one line.

    The line has the id, the address (one of ours, never the caller's text), the status and the time.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings, keys: Keys, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._keys = keys
        self._limits = KeyLimits()
        self._in_flight = 0
        self._tracer: Any = None
        """OpenTelemetry's tracer; None without it. The process's starter configures where spans go
        (`opentelemetry-instrument`).
        """
        if settings.otel:
            self._trace = require("opentelemetry.trace", "serve")
            tracecontext = require("opentelemetry.trace.propagation.tracecontext", "serve")
            self._propagator = tracecontext.TraceContextTextMapPropagator()
            self._tracer = self._trace.get_tracer("metaprobe")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        callers_request_id = headers.get("x-request-id", "")
        identity = uuid.uuid4().hex  # ours: under a name that two callers chose, one would land on the other's row
        endpoint = _endpoint(scope["path"])
        with self._span(endpoint, headers) as (headers_to_add, span_attributes):
            headers_to_add["x-request-id"] = callers_request_id or identity  # the upstream is to log the same id
            passed_headers = [pair for pair in scope["headers"] if pair[0].decode("latin-1") not in headers_to_add]
            passed_headers += [(name.encode(), value.encode("latin-1")) for name, value in headers_to_add.items()]
            ids = {SCOPE_ID: identity, SCOPE_CALLERS_ID: callers_id(callers_request_id)}
            await self._answer_request(
                {**scope, "headers": passed_headers, **ids},
                receive,
                send,
                headers_to_add.get("traceparent", ""),
                span_attributes,
            )

    @contextmanager
    def _span(self, endpoint: str, headers: Headers) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
        """Yields (headers that pass the request's span to the upstream, attributes of the span).

        The attributes are read when the span ends.
        """
        headers_to_add: dict[str, str] = {}
        span_attributes: dict[str, Any] = {}
        if self._tracer is None:
            yield headers_to_add, span_attributes
            return
        context, kind = self._propagator.extract(headers), self._trace.SpanKind.SERVER
        attributes = {"url.path": endpoint}
        with self._tracer.start_as_current_span(endpoint, context=context, kind=kind, attributes=attributes) as span:
            self._propagator.inject(headers_to_add)
            try:
                yield headers_to_add, span_attributes
            finally:
                span.set_attributes(span_attributes)
                if span_attributes.get("http.response.status_code", 0) >= 500:
                    span.set_status(self._trace.StatusCode.ERROR)

    async def _answer_request(
        self, scope: Scope, receive: Receive, send: Send, traceparent: str, span_attributes: dict[str, Any]
    ) -> None:
        started, status, caller = time.perf_counter(), 0, None
        headers, identity, endpoint = Headers(scope=scope), scope[SCOPE_ID], _endpoint(scope["path"])

        async def send_with_ids(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                response_headers = MutableHeaders(scope=message)
                response_headers[REQUEST_ID] = identity
                # An id that the upstream has set is not replaced.
                response_headers.setdefault("x-request-id", scope[SCOPE_CALLERS_ID] or identity)
            await send(message)

        # Check the caller and answer, or refuse.
        is_bounded = endpoint not in KEYLESS_ADDRESSES
        self._in_flight += is_bounded
        try:
            try:
                admitted_caller = self._admit(headers, endpoint, scope.get("http_version", ""), bounded=is_bounded)
                host, port = scope.get("client") or ("", 0)
                OWNER.set((host if admitted_caller is ANYONE else admitted_caller.digest.hex(), f"{host}:{port}"))
                if is_bounded:
                    self._limits.enter(admitted_caller)
                    caller = admitted_caller
                await self._app({**scope, SCOPE_CALLER: admitted_caller}, receive, send_with_ids)
            except Refusal as refusal:
                self._metrics.errors.labels(refusal.code).inc()
                if not status:
                    await refusal.response()(scope, receive, send_with_ids)
        except Exception as error:
            log_unexpected(logger, f"request {identity}", error)
            self._metrics.errors.labels("internal").inc()
            if status:
                raise _Broken from None  # the server closes the connection: half an answer must not look whole
            await Refusal(500, "internal", f"something failed here; request id {identity}").response()(
                scope, receive, send_with_ids
            )
        finally:
            self._in_flight -= is_bounded
            if caller is not None:
                self._limits.leave(caller)
                self._metrics.key_requests.labels(caller.name, str(status or 499)).inc()
            self._metrics.requests.labels(endpoint, str(status or 499)).inc()
            span_attributes["http.response.status_code"] = status or 499
            took_ms = 1e3 * (time.perf_counter() - started)
            log_fields = {
                "request_id": identity,
                "endpoint": endpoint,
                "status": status or 499,
                "ms": round(took_ms, 1),
            }
            log_fields |= {"callers_id": scope[SCOPE_CALLERS_ID], "key": caller.name if caller else ""}
            if traceparent:
                _, log_fields["trace_id"], log_fields["span_id"], _ = traceparent.split("-")
            logger.info(
                "%s %s %d %.1f ms", identity, endpoint, status or 499, took_ms, extra={RECORD_ATTRIBUTE: log_fields}
            )

    def _admit(self, headers: Headers, endpoint: str, http_version: str, *, bounded: bool) -> Caller:
        """Returns the caller. Raises `Refusal` for a caller without access.

        Args:
            headers: headers of the request.
            endpoint: one of this server's addresses, or `other`.
            http_version: for example "1.1".
            bounded: whether the request counts in the limit of concurrent requests.
        """
        settings = self._settings
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy in front may have ended the body by the other header, and taken the rest for a new request.
            message = "a request has either Content-Length or Transfer-Encoding, and this one has both"
            raise Refusal(400, "ambiguous_length", message, {"connection": "close"})
        hosts = headers.getlist("host")
        if len(hosts) > 1 or (not hosts and http_version == "1.1"):
            # A proxy in front may have read another host than this server.
            message = f"{len(hosts)} Host headers came; expected one, as HTTP/1.1 has it"
            raise Refusal(400, "bad_host", message, {"connection": "close"})
        if hosts and {" ", "\t", ","} & set(hosts[0]):
            message = "the Host header is no name with a port; expected one name, without blanks and commas"
            raise Refusal(400, "bad_host", message, {"connection": "close"})
        host = headers.get("host", "")  # with a port, perhaps: `localhost:80`, `[::1]:80`
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if not settings.auth and not is_loopback(name.lower()):
            # A name that someone else made point here would let a page in this machine's browser use the server.
            raise Refusal(403, "bad_host", "without keys, only requests to localhost are answered")
        caller: Caller | None = ANYONE
        if settings.auth and endpoint not in KEYLESS_ADDRESSES:
            scheme, _, bearer = headers.get("authorization", "").partition(" ")
            key = headers.get(KEY_HEADER, bearer if scheme.lower() == "bearer" else None)
            caller = None if key is None else self._keys.caller(key)
        if caller is None:
            raise Refusal(
                401,
                "invalid_api_key",
                f"no valid key: send one as `Authorization: Bearer KEY`, or as `{KEY_HEADER}: KEY`",
                {"www-authenticate": "Bearer"},
            )
        if endpoint in ADMIN_ADDRESSES and not caller.admin:
            message = (
                f"{endpoint} shows what all callers asked, and this key is {caller.name}'s alone; ask with a key that"
                " has no name, or that is an admin's in the file of keys (admin = true)"
            )
            raise Refusal(403, "admins_only", message)
        if bounded and self._in_flight > settings.max_concurrency:
            raise Refusal(
                503,
                "busy",
                f"{settings.max_concurrency} requests are in flight; try again in 1 s",
                {"retry-after": "1"},
            )
        return caller


class _Broken(Exception):
    """An error without the text of its cause."""


def _endpoint(path: str) -> str:
    """Returns one of our addresses, or `other`: a caller's text is neither logged nor counted."""
    if path.startswith("/v1/models/"):
        return "/v1/models"
    return path if path in ENDPOINTS else "other"
