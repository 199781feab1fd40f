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
from metaprobe.production.http.settings import HEADER_NAME, AgentUpstream, Settings

logger = logging.getLogger(__name__)

_HEADERS_TO_UPSTREAM = {
    "openai-organization",
    "openai-project",
    "openai-beta",
    "idempotency-key",
    "user-agent",
    "accept-language",
}
_HEADERS_TO_UPSTREAM |= {"traceparent", "tracestate", "baggage"}
_REQUEST_IDS = "request-id"
"""Ending of the headers in which servers and clients name a request: `x-request-id`, `x-client-request-id`, ..."""
_HEADERS_TO_CALLER = {"content-type", "retry-after", "retry-after-ms", "x-should-retry", "cache-control", "warning"}
_PREFIXES_TO_CALLER = ("openai-", "x-ratelimit-")
_NOT_IN_HEADERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Matches characters that no header may hold. With one of them the server would send no answer at all."""


def to_upstream(
    headers: Mapping[str, str], *, upstream_key: str, own_keys: Container[str], more_headers: Iterable[str] = ()
) -> dict[str, str]:
    """Returns the headers of the request to the upstream.

    Args:
        headers: headers of the caller.
        upstream_key: key for the upstream, which replaces the caller's. Without it, the caller's `Authorization` is
            forwarded, unless it is a key for this server.
        own_keys: all keys for this server.
        more_headers: names of additional headers to forward.
    """
    allowed = _HEADERS_TO_UPSTREAM | {name.lower() for name in more_headers}
    forwarded = {
        name: value
        for name, value in headers.items()
        if name in allowed or name.startswith("x-stainless-") or name.endswith(_REQUEST_IDS)
    }
    # Read as it comes: nothing to unpack, so nothing that unpacks to more than it seems.
    forwarded |= {"content-type": "application/json", "accept-encoding": "identity"}
    forwarded["accept"] = headers.get("accept", "*/*")
    if upstream_key:
        forwarded["authorization"] = f"Bearer {upstream_key}"
    elif "authorization" in headers and headers["authorization"].partition(" ")[2].strip() not in own_keys:
        forwarded["authorization"] = headers["authorization"]
    return forwarded


def to_caller(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the headers of the answer to the caller, from the raw bytes: latin-1 restores every byte."""
    decoded = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)
    return {
        name: value
        for name, value in decoded
        if (name in _HEADERS_TO_CALLER or name.startswith(_PREFIXES_TO_CALLER) or name.endswith(_REQUEST_IDS))
        and HEADER_NAME.fullmatch(name)
        and not _NOT_IN_HEADERS.search(value)
    }


KEEP_IDLE_S = 2.0
"""Seconds for which idle connections are kept: less than servers keep them, so that a request meets no closing
connection.
"""
CONNECT_TIMEOUT_S = 10.0
PIECEWISE_BYTES = 1 << 20
"""A larger body is written in pieces."""
SCOPE_DEADLINE = "metaprobe.end"
"""Key of the ASGI scope with the event loop's time at which the upstream's answer must be complete.

A request that is sent twice has one such time.
"""


CUT_CODE = "upstream_cut"
"""Code for an upstream that closed the connection too early."""
UNREACHABLE_CODE = "upstream_unreachable"
"""Code for an upstream that cannot be reached."""
TOO_SLOW_CODE = "upstream_total_timeout"
"""Code for an upstream whose answer was not complete in time."""
EVENT_STREAM = "text/event-stream"


class UpstreamAnswer:
    """An answer whose header has arrived. `UpstreamClient.asking` closes it."""

    def __init__(
        self, answer: aiohttp.ClientResponse, timeout_s: float, key: str = "", timeout: asyncio.Timeout | None = None
    ) -> None:
        """Sets up the answer.

        Args:
            answer: the client's response.
            timeout_s: seconds of silence after which the answer counts as cut.
            key: the key that was sent to the upstream, which its error may repeat.
            timeout: ends the reading in time. It is lifted when the body has arrived, because the use of a whole answer
                does not take the upstream's time.
        """
        self._answer, self._timeout = answer, timeout
        self._key = key.encode() if len(key) >= MIN_KEY_LENGTH else b""  # `EMPTY` may stand in any text
        self._timeout_s = timeout_s
        self.status = answer.status
        self.headers: tuple[tuple[bytes, bytes], ...] = answer.raw_headers

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of events."""
        return self._answer.content_type == EVENT_STREAM

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yields the body as it arrives. Raises `Refusal` if it is cut, or does not continue."""
        with _errors_as_refusals(self._timeout_s):
            async for part in self._answer.content.iter_any():
                yield part
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(None)

    async def whole(self, max_bytes: int, on_size: Callable[[int], None] | None = None) -> bytes:
        """Returns the body, and closes the answer. An error's body is returned without the upstream's key.

        Raises `Refusal` as `parts` does, and for more than `max_bytes` bytes. `on_size` is called with the number of
        bytes so far, and may raise.
        """
        parts, size = [], 0
        try:
            async for part in self.parts():
                parts.append(part)
                size += len(part)
                if on_size is not None:
                    on_size(size)
                if size > max_bytes:
                    raise Refusal(502, "upstream_too_large", f"the upstream's answer is larger than {max_bytes} bytes")
        finally:  # a complete body leaves the connection open; otherwise closing tells the upstream to stop
            self._answer.close()
        body = b"".join(parts)
        return body.replace(self._key, b"***") if self._key and self.status >= 400 else body


class UpstreamClient:
    """Connections to one upstream. They follow no redirect, keep no cookie, and use nothing from the environment."""

    def __init__(self, settings: Settings, keys: Keys, *, agent_upstream: AgentUpstream | None = None) -> None:
        """Sets up the client; connections open later.

        Args:
            settings: the settings.
            keys: keys of callers.
            agent_upstream: the upstream of one agent, if there are several. It never gets the caller's own key, which
                may belong to another upstream, nor the caller's idempotency key, which would apply to several answers.
        """
        self._settings = settings
        self._keys = keys
        self._one_of_several = agent_upstream is not None
        self._base = (settings.upstream if agent_upstream is None else agent_upstream.url).rstrip("/")
        self._upstream_key = settings.upstream_key("" if agent_upstream is None else agent_upstream.name)
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
        deadline: float | None = None,
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
            deadline: time by which the answer must be complete, by the event loop's clock; by default the settings'
                total time from now.
        """
        query: bytes = request.scope["query_string"]
        url = f"{self._base}{path}" + (f"?{query.decode('latin-1')}" if query else "")
        headers = to_upstream(
            request.headers,
            upstream_key=self._upstream_key,
            own_keys=self._keys,
            more_headers=self._settings.forward_headers,
        )
        if self._one_of_several:
            headers.pop("idempotency-key", None)
            if not self._upstream_key:
                headers.pop("authorization", None)
        data = io.BytesIO(body) if body is not None and len(body) > PIECEWISE_BYTES else body
        now = asyncio.get_running_loop().time()
        if deadline is None:
            deadline = request.scope.setdefault(SCOPE_DEADLINE, now + self._settings.total_timeout_s)
        answer = None
        try:
            # One timer for the request: aiohttp's own timer would be set again for every chunk.
            async with asyncio.timeout_at(deadline) as timeout:
                with _errors_as_refusals(self._settings.timeout_s):
                    async with asyncio.timeout(within_s):
                        answer = await self._opened().request(
                            method, URL(url, encoded=True), data=data, headers=headers, allow_redirects=False
                        )
                if not 200 <= answer.status < 600:
                    message = f"the upstream answered with status {answer.status}; expected one from 200 to 599"
                    raise Refusal(502, "upstream_status", message)
                yield UpstreamAnswer(answer, self._settings.timeout_s, self._upstream_key, timeout)
        except TimeoutError as error:
            message = f"the upstream's answer was not whole in time ({deadline - now:.3g} s); it was closed"
            raise Refusal(504, TOO_SLOW_CODE, message) from error
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
def _errors_as_refusals(timeout_s: float) -> Iterator[None]:
    """Converts the client's errors to refusals."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
        # The log does not name the upstream's address, which an error's text holds: its operator knows the address.
        logger.warning("the upstream cannot be reached: %s", getattr(error, "strerror", None) or type(error).__name__)
        message = "the upstream cannot be reached; the server's log says why"
        raise Refusal(502, UNREACHABLE_CODE, message) from error
    except TimeoutError as error:
        message = f"the upstream did not go on within {timeout_s:g} s"
        raise Refusal(504, "upstream_timeout", message) from error
    except (aiohttp.ClientError, OSError) as error:
        message = "the upstream closed the connection before its answer was whole"
        raise Refusal(502, CUT_CODE, message) from error


def redirect(answer: UpstreamAnswer) -> Refusal:
    """Returns the refusal for a redirect: the upstream sends the caller to an address that is not followed."""
    return Refusal(502, "upstream_redirect", f"the upstream redirects (status {answer.status}); it is not followed")
