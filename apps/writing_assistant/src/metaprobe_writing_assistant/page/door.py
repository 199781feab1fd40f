"""Checks who may send requests to the page, and limits what a browser may load on it.

The page has no password and listens on this machine, so any web site in the same browser could send it requests. Such
requests are recognised by their `Host` and `Origin`, which a site cannot forge, and refused.
"""

import json
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metaprobe.records.errors import RecordError, Unwritable
from metaprobe_writing_assistant.page.sessions import ChangedElsewhere, NotThere
from metaprobe_writing_assistant.page.settings import AssistSettings

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


MAX_DEPTH = 8
"""Most levels of objects and lists in a request; the page itself sends two."""


class TooLarge(RecordError):
    """A request is larger than the page accepts."""


def refuse(status: int, message: str) -> Response:
    """Returns a response that says why the request was refused."""
    return JSONResponse({"error": message}, status)


def refusal_of(error: RecordError) -> Response:
    """Returns the response to a request that failed with this error."""
    status_of_error: tuple[tuple[type[RecordError], int], ...] = (
        (NotThere, 404),
        (ChangedElsewhere, 409),
        (TooLarge, 413),
        (Unwritable, 507),
    )
    return refuse(next((status for kind, status in status_of_error if isinstance(error, kind)), 422), str(error))


class Door:
    """Checks every request to the page."""

    def __init__(self, app: ASGIApp, settings: AssistSettings) -> None:
        self._app = app
        self._names = settings.names
        self._proxies = {name.lower() for name in settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses requests from elsewhere, and adds the headers that restrict the browser."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_bound(message: Message) -> None:
            if message["type"] == "http.response.start":
                own_headers = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                other_headers = [
                    pair for pair in message["headers"] if pair[0].decode().lower() not in SECURITY_HEADERS
                ]
                message = {**message, "headers": [*other_headers, *own_headers]}
            await send(message)

        refused = self._refused(Request(scope))
        await (refused or self._app)(scope, receive, send_bound)

    def _refused(self, request: Request) -> Response | None:
        host = _host_name_of(f"//{request.headers.get('host', '')}")
        if host not in self._names:
            return refuse(
                421, f"this page is not served under the name {host!r}; start it with --allow-host for another name"
            )
        origin = request.headers.get("origin")
        if origin is not None and not self._is_own(origin, request):
            return refuse(403, "another web site may not use this page")
        is_from_elsewhere = request.headers.get("sec-fetch-site") not in (None, "same-origin", "none")
        if is_from_elsewhere and (request.method, request.url.path) != ("GET", "/"):  # a link to the page is welcome
            return refuse(403, "another web site may not use this page")
        return None

    def _is_own(self, origin: str, request: Request) -> bool:
        """Whether an origin is the page's own: the scheme, name and port under which it was requested.

        A proxy before the page may use TLS, under its own name, and request the page under another.
        """
        host = request.headers.get("host", "").lower()
        if origin.lower() == f"{request.url.scheme}://{host}":
            return True
        scheme, _, host_and_port = origin.lower().partition("://")
        is_proxied = _host_name_of(origin) in self._proxies and host_and_port in (host, _host_name_of(origin))
        return is_proxied and scheme in ("http", "https")


async def body_of(request: Request, settings: AssistSettings) -> dict[str, Any]:
    """Returns the JSON object in a request. Raises `RecordError` if it holds something else or too much."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RecordError("expected Content-Type: application/json")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > settings.max_body_bytes:
            raise TooLarge(
                f"this is more than {settings.max_body_bytes >> 20} MB; take a part of the text. Nothing was changed"
            )
        parts.append(part)
    try:
        body = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:  # a JSON text may nest deeper than Python follows
        raise RecordError(f"the request is not JSON that can be read: {error}") from error
    if not isinstance(body, dict):
        raise RecordError("the request is no JSON object")
    containers: list[Any] = [body]
    for _ in range(MAX_DEPTH):  # the request is written into messages and files, which nest as deep
        containers = [
            entry
            for container in containers
            for entry in (container.values() if isinstance(container, dict) else container)
        ]
        containers = [entry for entry in containers if isinstance(entry, (dict, list))]
    if containers:
        raise RecordError(f"the request nests deeper than {MAX_DEPTH} levels; expected texts and numbers")
    return body


def text_in(body: dict[str, Any], name: str, default: str | None = None) -> str:
    """Returns a field that must be a text, without what no file can hold: the character 0, and half of an emoji.

    Args:
        body: the request.
        name: name of the field.
        default: its value if it is missing.
    """
    value = body.get(name, default)
    if not isinstance(value, str):
        raise RecordError(f"{name} is {type(value).__name__}; expected a text")
    return value.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def number_in(body: dict[str, Any], name: str) -> int:
    """Returns a field that must be a whole number."""
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RecordError(f"{name} is {value!r}; expected a whole number")
    return value


def _host_name_of(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
