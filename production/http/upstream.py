"""Asks an upstream API, with aiohttp: its answers as they arrive, and its faults as refusals."""

import asyncio
import io
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Container, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import aiohttp
from starlette.requests import Request
from yarl import URL

from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.keys import MIN_KEY_LENGTH, Keys
from metaprobe.production.http.settings import HEADER_NAME, Settings, UpstreamOf

logger = logging.getLogger(__name__)

_UP = {"openai-organization", "openai-project", "openai-beta", "idempotency-key", "user-agent", "accept-language"}
_UP |= {"traceparent", "tracestate", "baggage"}
_REQUEST_IDS = "request-id"
"""Ending of the headers in which servers and clients name a request: `x-request-id`, `x-client-request-id`, ..."""
_DOWN = {"content-type", "retry-after", "retry-after-ms", "x-should-retry", "cache-control", "warning"}
_DOWN_PREFIXES = ("openai-", "x-ratelimit-")
_NO_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Matches characters that no header may hold. With one of them the server would send no answer at all."""


def to_upstream(
    headers: Mapping[str, str], *, upstream_key: str, own_keys: Container[str], more: Iterable[str] = ()
) -> dict[str, str]:
    """Returns the headers of the request to the upstream.

    Args:
        headers: headers of the caller.
        upstream_key: key for the upstream, which replaces the caller's. Without it, the caller's `Authorization` is
            forwarded, unless it is a key for this server.
        own_keys: all keys for this server.
        more: names of additional headers to forward.
    """
    allowed = _UP | {name.lower() for name in more}
    passed = {
        name: value
        for name, value in headers.items()
        if name in allowed or name.startswith("x-stainless-") or name.endswith(_REQUEST_IDS)
    }
    # Read as it comes: nothing to unpack, so nothing that unpacks to more than it seems.
    passed |= {"content-type": "application/json", "accept-encoding": "identity"}
    passed["accept"] = headers.get("accept", "*/*")
    if upstream_key:
        passed["authorization"] = f"Bearer {upstream_key}"
    elif "authorization" in headers and headers["authorization"].partition(" ")[2].strip() not in own_keys:
        passed["authorization"] = headers["authorization"]
    return passed


def to_caller(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the headers of the answer to the caller, from the raw bytes: latin-1 restores every byte."""
    decoded = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)
    return {
        name: value
        for name, value in decoded
        if (name in _DOWN or name.startswith(_DOWN_PREFIXES) or name.endswith(_REQUEST_IDS))
        and HEADER_NAME.fullmatch(name)
        and not _NO_VALUE.search(value)
    }


KEEP_IDLE_S = 2.0
"""Seconds for which idle connections are kept: less than servers keep them, so that a request meets no closing
connection.
"""
CONNECT_TIMEOUT_S = 10.0
PIECEWISE_BYTES = 1 << 20
"""A larger body is written in pieces."""
SCOPE_END = "metaprobe.end"
"""Key of the ASGI scope with the event loop's time at which the upstream's answer must be complete.

A request that is sent twice has one such time.
"""


CUT = "upstream_cut"
"""Code for an upstream that closed the connection too early."""
UNREACHABLE = "upstream_unreachable"
"""Code for an upstream that cannot be reached."""
TOO_SLOW = "upstream_total_timeout"
"""Code for an upstream whose answer was not complete in time."""
EVENTS = "text/event-stream"


class UpstreamAnswer:
    """An answer whose header has arrived. `UpstreamClient.asking` closes it."""

    def __init__(
        self, answer: aiohttp.ClientResponse, timeout_s: float, key: str = "", limit: asyncio.Timeout | None = None
    ) -> None:
        """Sets up the answer.

        Args:
            answer: the client's response.
            timeout_s: seconds of silence after which the answer counts as cut.
            key: the key that was sent to the upstream, which its error may repeat.
            limit: ends the reading in time. It is lifted when the body has arrived, because the use of a whole answer
                does not take the upstream's time.
        """
        self._answer, self._limit = answer, limit
        self._key = key.encode() if len(key) >= MIN_KEY_LENGTH else b""  # `EMPTY` may stand in any text
        self._timeout_s = timeout_s
        self.status = answer.status
        self.headers: tuple[tuple[bytes, bytes], ...] = answer.raw_headers

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of events."""
        return self._answer.content_type == EVENTS

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yields the body as it arrives. Raises `Refusal` if it is cut, or does not continue."""
        with _explained(self._timeout_s):
            async for part in self._answer.content.iter_any():
                yield part
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None)

    async def whole(self, limit: int, hold: Callable[[int], None] | None = None) -> bytes:
        """Returns the body, and closes the answer. An error's body is returned without the upstream's key.

        `hold` is called with the number of bytes so far, and may raise. Raises `Refusal` as `parts` does, and for more
        than `limit` bytes.
        """
        parts, size = [], 0
        try:
            async for part in self.parts():
                parts.append(part)
                size += len(part)
                if hold is not None:
                    hold(size)
                if size > limit:
                    raise Refusal(502, "upstream_too_large", f"the upstream's answer is larger than {limit} bytes")
        finally:  # keeps the connection where the body has come whole; else the upstream hears that it can stop
            self._answer.close()
        body = b"".join(parts)
        return body.replace(self._key, b"***") if self._key and self.status >= 400 else body


class UpstreamClient:
    """Connections to one upstream. They follow no redirect, keep no cookie, and use nothing from the environment."""

    def __init__(self, settings: Settings, keys: Keys, *, only: UpstreamOf | None = None) -> None:
        """Sets up the client; connections open later.

        Args:
            settings: the settings.
            keys: keys of callers.
            only: one of several upstreams. It never gets the caller's own key, which may belong to another upstream,
                nor the caller's idempotency key, which would apply to several answers.
        """
        self._settings = settings
        self._keys = keys
        self._one_of_several = only is not None
        self._base = (settings.upstream if only is None else only.url).rstrip("/")
        self._upstream_key = settings.upstream_key("" if only is None else only.name)
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def asking(
        self,
        request: Request,
        method: str,
        path: str,
        body: bytes | None,
        *,
        within_s: float | None = None,
        end: float | None = None,
    ) -> AsyncIterator[UpstreamAnswer]:
        """Sends a caller's request, waits for the answer's header, and closes the answer at the end of the block.

        The query string (`?api-version=...`) and the allowed headers of the caller are forwarded. Raises `Refusal` if
        no header arrives, or if the answer is not complete in time.

        Args:
            request: the caller's request.
            method: the HTTP method.
            path: path below the upstream's base address, as written.
            body: body of the request to the upstream.
            within_s: time limit for the header, if it is shorter than the settings'.
            end: time by which the answer must be complete, by the event loop's clock; by default after the settings'
                total time.
        """
        query: bytes = request.scope["query_string"]
        url = f"{self._base}{path}" + (f"?{query.decode('latin-1')}" if query else "")
        headers = to_upstream(
            request.headers,
            upstream_key=self._upstream_key,
            own_keys=self._keys,
            more=self._settings.forward_headers,
        )
        if self._one_of_several:
            headers.pop("idempotency-key", None)
            if not self._upstream_key:
                headers.pop("authorization", None)
        data = io.BytesIO(body) if body is not None and len(body) > PIECEWISE_BYTES else body
        now = asyncio.get_running_loop().time()
        if end is None:
            end = request.scope.setdefault(SCOPE_END, now + self._settings.total_timeout_s)
        answer = None
        try:
            # One timer a request, and none a chunk: aiohttp's own would be entered whenever a chunk is waited for.
            async with asyncio.timeout_at(end) as limit:
                with _explained(self._settings.timeout_s):
                    async with asyncio.timeout(within_s):
                        answer = await self._opened().request(
                            method, URL(url, encoded=True), data=data, headers=headers, allow_redirects=False
                        )
                if not 200 <= answer.status < 600:
                    message = f"the upstream answered with status {answer.status}; expected one from 200 to 599"
                    raise Refusal(502, "upstream_status", message)
                yield UpstreamAnswer(answer, self._settings.timeout_s, self._upstream_key, limit)
        except TimeoutError as error:
            message = f"the upstream's answer was not whole in time ({end - now:.3g} s); it was closed"
            raise Refusal(504, TOO_SLOW, message) from error
        finally:
            if answer is not None:
                answer.close()

    async def close(self) -> None:
        """Closes open connections, which need a turn of the event loop to end."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:  # it belongs to the event loop, which there is not yet when the server is made
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_S),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=self._settings.timeout_s
                ),
                cookie_jar=aiohttp.DummyCookieJar(),  # one caller's would be sent with another's
                skip_auto_headers=("user-agent",),
                trust_env=False,  # else proxies, and passwords from ~/.netrc, would come from the machine
            )
        return self._session


@contextmanager
def _explained(timeout_s: float) -> Iterator[None]:
    """Converts the client's errors to refusals."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
        # For who runs the server and knows where the upstream is; an error's text would say it to whoever reads logs.
        logger.warning("the upstream cannot be reached: %s", getattr(error, "strerror", None) or type(error).__name__)
        message = "the upstream cannot be reached; the server's log says why"
        raise Refusal(502, UNREACHABLE, message) from error
    except TimeoutError as error:
        message = f"the upstream did not go on within {timeout_s:g} s"
        raise Refusal(504, "upstream_timeout", message) from error
    except (aiohttp.ClientError, OSError) as error:
        message = "the upstream closed the connection before its answer was whole"
        raise Refusal(502, CUT, message) from error


def redirect(answer: UpstreamAnswer) -> Refusal:
    """Returns the refusal for a redirect: the upstream sends the caller to an address that is not followed."""
    return Refusal(502, "upstream_redirect", f"the upstream redirects (status {answer.status}); it is not followed")
