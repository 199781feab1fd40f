"""The door: who may come in, how many at once, and what is noted of a visit. Plain ASGI, around the application."""

import hashlib
import hmac
import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metaprobe.serving.http.headers import KEY_HEADER, REQUEST_ID
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.request_log import SCOPE_ID
from metaprobe.serving.http.scorer import log_unexpected
from metaprobe.serving.http.settings import Settings, is_loopback

logger = logging.getLogger(__name__)

ENDPOINTS = frozenset(
    "/v1/score /v1/chat/completions /v1/models /v1/feedback /metrics /healthz /dashboard /dashboard/data "
    "/dashboard/queue".split()
)
OPEN = ("/healthz", "/dashboard")
"""The addresses that need no key; the second is a page without anything of ours, which asks for one."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Guard:
    """Checks host and key, bounds what is in flight, gives a request its id, counts it, and logs one line of it.

    What is logged is the id, the address (one of ours, never what a caller wrote), the status and the time.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._keys = tuple(hashlib.sha256(key.encode()).digest() for key in settings.api_keys())
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        identity = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope = {**scope, SCOPE_ID: identity}
        if not given:  # the upstream is to log the same one
            scope = {**scope, "headers": [*scope["headers"], (b"x-request-id", identity.encode())]}
        endpoint = _endpoint(scope["path"])

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                named = MutableHeaders(scope=message)
                named[REQUEST_ID] = identity
                named.setdefault("x-request-id", identity)  # the upstream's own counts for more
            await send(message)

        bounded = endpoint.startswith("/v1/")
        self._in_flight += bounded
        try:
            try:
                self._check(headers, endpoint, bounded)
                await self._app(scope, receive, marked)
            except Refusal as refusal:
                self._metrics.errors.labels(refusal.code).inc()
                if not status:
                    await refusal.response()(scope, receive, marked)
        except Exception as error:
            log_unexpected(logger, f"request {identity}", error)
            self._metrics.errors.labels("internal").inc()
            if status:
                raise _Broken from None  # the server closes the connection, so that half an answer is not taken for one
            await Refusal(500, "internal", f"something failed here; request id {identity}").response()(
                scope, receive, marked
            )
        finally:
            self._in_flight -= bounded
            self._metrics.requests.labels(endpoint, str(status or 499)).inc()
            logger.info("%s %s %d %.1f ms", identity, endpoint, status or 499, 1e3 * (time.perf_counter() - started))

    def _check(self, headers: Headers, endpoint: str, bounded: bool) -> None:
        settings = self._settings
        if "content-length" in headers and "transfer-encoding" in headers:
            # Whoever stands in front may have taken the other one for the body's end, and the rest for a new request.
            message = "a request has either Content-Length or Transfer-Encoding, and this one has both"
            raise Refusal(400, "ambiguous_length", message, {"connection": "close"})
        if not settings.auth and not is_loopback(_host_name(headers.get("host", ""))):
            # A name that someone else made point here would let a page in this machine's browser use the server.
            raise Refusal(403, "bad_host", "without keys, only requests to localhost are answered")
        if settings.auth and endpoint not in OPEN and not self._known(headers):
            raise Refusal(
                401,
                "invalid_api_key",
                f"no valid key: send one as `Authorization: Bearer KEY`, or as `{KEY_HEADER}: KEY`",
                {"www-authenticate": "Bearer"},
            )
        if bounded and self._in_flight > settings.max_concurrency:
            raise Refusal(
                503,
                "busy",
                f"{settings.max_concurrency} requests are in flight; try again in {settings.retry_after_s} s",
                {"retry-after": str(settings.retry_after_s)},
            )

    def _known(self, headers: Headers) -> bool:
        key = headers.get(KEY_HEADER)
        if key is None:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer":
                return False
        digest = hashlib.sha256(key.strip().encode()).digest()
        found = False
        for known in self._keys:  # all of them, always: the time must not reveal which one it was
            found |= hmac.compare_digest(digest, known)
        return found


class _Broken(Exception):
    """Carries no text of the error it stands for."""


def _endpoint(path: str) -> str:
    """One of ours, or `other`: what a caller wrote is neither logged nor counted."""
    if path.startswith("/v1/models/"):
        return "/v1/models"
    return path if path in ENDPOINTS else "other"


def _host_name(host: str) -> str:
    """Without the port: `localhost:80`, `[::1]:80`."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower()
