"""The one API that this server asks, by aiohttp: its answers as they come, and its faults as refusals."""

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
"""How names end under which servers and clients name a request: `x-request-id`, `x-client-request-id`, ..."""
_DOWN = {"content-type", "retry-after", "retry-after-ms", "x-should-retry", "cache-control", "warning"}
_DOWN_PREFIXES = ("openai-", "x-ratelimit-")
_NO_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no header may hold; the server would send no answer at all."""


def to_upstream(
    given: Mapping[str, str], *, upstream_key: str, own_keys: Container[str], more: Iterable[str] = ()
) -> dict[str, str]:
    """Headers of the request to the upstream.

    `upstream_key`, where there is one, stands in for whatever the caller sent. Else the caller's `Authorization` goes
    on, unless it is a key for this server, of which `own_keys` are all.
    """
    allowed = _UP | {name.lower() for name in more}
    passed = {
        name: value
        for name, value in given.items()
        if name in allowed or name.startswith("x-stainless-") or name.endswith(_REQUEST_IDS)
    }
    # Read as it comes: nothing to unpack, so nothing that unpacks to more than it seems.
    passed |= {"content-type": "application/json", "accept-encoding": "identity"}
    passed["accept"] = given.get("accept", "*/*")
    if upstream_key:
        passed["authorization"] = f"Bearer {upstream_key}"
    elif "authorization" in given and given["authorization"].partition(" ")[2].strip() not in own_keys:
        passed["authorization"] = given["authorization"]
    return passed


def to_caller(given: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers of the answer to the caller, from the bytes that came: latin-1 gives every byte back as it was."""
    named = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in given)
    return {
        name: value
        for name, value in named
        if (name in _DOWN or name.startswith(_DOWN_PREFIXES) or name.endswith(_REQUEST_IDS))
        and HEADER_NAME.fullmatch(name)
        and not _NO_VALUE.search(value)
    }


KEEP_IDLE_S = 2.0
"""Less than what servers keep an idle connection for, so that a request does not meet one that is just being closed."""
CONNECT_TIMEOUT_S = 10.0
LARGE_BYTES = 1 << 20
"""A larger body is written in pieces."""
SCOPE_END = "metaprobe.end"
"""Key of the scope with the time of the event loop at which the one upstream's answer must be whole. A request that is
asked twice has one such time."""


CUT = "upstream_cut"
"""The code where the upstream closed the connection too early."""
UNREACHABLE = "upstream_unreachable"
"""The code where no connection to the upstream comes about."""
TOO_SLOW = "upstream_total_timeout"
"""The code where the upstream's answer was not whole in time."""
EVENTS = "text/event-stream"


class UpstreamAnswer:
    """An answer whose header has come; `UpstreamClient.asking` closes it."""

    def __init__(
        self, answer: aiohttp.ClientResponse, timeout_s: float, key: str = "", limit: asyncio.Timeout | None = None
    ) -> None:
        """`key`: what the upstream was asked with, which an error of it may repeat. `limit`: ends the reading in time;
        it is lifted when the body has come, for what is done with a whole answer is no longer the upstream's time."""
        self._answer, self._limit = answer, limit
        self._key = key.encode() if len(key) >= MIN_KEY_LENGTH else b""  # `EMPTY` may stand in any text
        self._timeout_s = timeout_s
        self.status = answer.status
        self.headers: tuple[tuple[bytes, bytes], ...] = answer.raw_headers

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The body, as it comes. Raises `Refusal` where it is cut, or does not go on."""
        with _explained(self._timeout_s):
            async for part in self._answer.content.iter_any():
                yield part
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None)

    async def whole(self, limit: int, hold: Callable[[int], None] | None = None) -> bytes:
        """The body, and closes it; of an error without the upstream's key.

        `hold` is told how many bytes have come, and may raise. Raises `Refusal` as `parts` does, and for more than
        `limit` bytes.
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
    """Connections to one upstream. No redirect is followed, no cookie kept, nothing taken from the environment."""

    def __init__(self, settings: Settings, keys: Keys, *, only: UpstreamOf | None = None) -> None:
        """`only`: one of several upstreams. It never gets the caller's own key, which may be of another upstream, nor
        the caller's idempotency key, which would hold for several answers."""
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
        """Asks what a caller asks, waits for the answer's header, and closes the answer when the block ends.

        With the path goes what stands behind the question mark (`?api-version=...`), and those of the caller's headers
        that may. Raises `Refusal` where no header comes, and where the answer is not whole in time.

        Args:
            request: the caller's.
            method: of HTTP.
            path: below the upstream's base address, as it is written.
            body: of the request to the upstream.
            within_s: time for the header, where it is less than the settings'.
            end: when the answer must be whole, by the event loop's time; by default after the settings' total time.
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
        data = io.BytesIO(body) if body is not None and len(body) > LARGE_BYTES else body
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
        """Closes what is open. Connections need a turn of the event loop to end."""
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
    """Turns the client's errors into refusals."""
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
    """The upstream sends the caller elsewhere, and he has no business there."""
    return Refusal(502, "upstream_redirect", f"the upstream redirects (status {answer.status}); it is not followed")
