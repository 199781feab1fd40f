"""Connects to one OpenAI-compatible endpoint: address, key, time limits, retries, and errors without secrets."""

import asyncio
import email.utils
import importlib
import ipaddress
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import openai
import tenacity

from metaprobe.llms.base import LLMError
from metaprobe.llms.pricing import OPENAI_HOST
from metaprobe.records.errors import InvalidResponse

MAX_REASON = 400
"""Most characters of a server's own message that are passed on."""

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable that holds the key, if no other one is named."""

_KEY_LIKE = re.compile(r"(?i)\b(?:sk|pk|rk|hf|gsk|key)[-_][\w*.\-]{6,}|\bbearer\s+[\w.~+/-]*[\w=]")
_SECRET_HEADER = re.compile(r"(?i)auth|key|token|secret|cookie")
_PASSING_STATUSES = {408, 409, 425, 429}
_OUT_OF_CREDIT_CODES = ("insufficient_quota", "billing_hard_limit_reached")
_REMEDIES = {
    401: "check {key}",
    403: "check {key} and what it may use",
    404: "check the address (it usually ends in /v1) and the model's name",
}


class EndpointError(LLMError):
    """A request failed."""

    def __init__(
        self,
        reason: str,
        *,
        passing: bool,
        refused: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.passing = passing
        """Whether the same request may succeed later."""
        self.refused = refused
        self.retry_after_s = retry_after_s
        """Seconds that the server asked to wait; None if it did not."""
        self.status = status
        """HTTP status of the answer; None if no answer came."""


def _connection_errors() -> tuple[type[Exception], ...]:
    """Returns the errors of the HTTP clients that openai uses: httpx2 from openai 3 on, httpx before.

    openai before 3 does not wrap the error of a stream that breaks off.
    """
    errors: list[type[Exception]] = []
    for name in ("httpx", "httpx2"):
        with suppress(ModuleNotFoundError):
            errors.append(importlib.import_module(name).TransportError)
    return tuple(errors)


_CONNECTION_ERRORS = _connection_errors()
REQUEST_FAILURES: tuple[type[Exception], ...] = (
    EndpointError,
    openai.OpenAIError,
    *_CONNECTION_ERRORS,
    TimeoutError,
    InvalidResponse,
    json.JSONDecodeError,
    UnicodeDecodeError,
)
"""Exceptions that a request, or reading its answer, may raise."""


class Redactor:
    """Removes a client's secrets, and everything that looks like a secret, from a text."""

    def __init__(self, client: openai.AsyncOpenAI, *, harmless: Iterable[str] = ()) -> None:
        self._client = client
        self._harmless = {"", *harmless}

    def __call__(self, text: str) -> str:
        # Read anew each time: a client may be given a new key while it lives.
        headers = self._client.default_headers.items()
        secrets = {value for name, value in headers if isinstance(value, str) and _SECRET_HEADER.search(name)}
        secrets |= {part for value in secrets for part in value.split() if part.lower() not in ("bearer", "basic")}
        keys = (self._client.api_key, getattr(self._client, "admin_api_key", None))  # the second since openai 3
        secrets |= {str(key or "").strip() for key in keys}
        for secret in sorted(secrets - self._harmless, key=len, reverse=True):
            text = text.replace(secret, "[secret]")
        return _KEY_LIKE.sub("[secret]", text)


def endpoint_error(
    error: Exception,
    *,
    address: str,
    timeout_s: float,
    max_wait_s: float,
    redact: Redactor,
    key_variable: str = KEY_VARIABLE,
) -> EndpointError:
    """Returns an `EndpointError` for an exception of the client, or of reading its answer.

    Args:
        error: the exception.
        address: address of the endpoint.
        timeout_s: time limit of one attempt, in seconds.
        max_wait_s: longest wait before a retry, in seconds.
        redact: removes secrets from the message.
        key_variable: environment variable that holds the key.
    """
    if isinstance(error, EndpointError):
        return error
    if isinstance(error, (TimeoutError, openai.APITimeoutError)):
        return EndpointError(f"{address} did not answer within {timeout_s:g} s", passing=True)
    if isinstance(error, openai.APIStatusError):
        status = error.status_code
        message = _message(error.body) or error.response.reason_phrase
        # llama-cpp-python answers 500 to what it cannot accept.
        is_refused = status in (400, 422) or (status == 500 and "validation error" in message)
        is_passing = not is_refused and (status >= 500 or status in _PASSING_STATUSES)
        if (should_retry := error.response.headers.get("x-should-retry")) in (
            "true",
            "false",
        ):  # of OpenAI's own servers
            is_passing = should_retry == "true"
        remedy = _REMEDIES.get(status, "").format(key=key_variable)
        if error.code in _OUT_OF_CREDIT_CODES:
            is_passing, remedy = False, "the account has no credit left"
        wait_s = retry_after_s(error.response.headers) if is_passing else None
        if wait_s is not None and wait_s > max_wait_s:
            is_passing = False
            remedy = f"it asks to wait {wait_s:g} s, more than the {max_wait_s:g} s allowed here: try later"
        reason = _shorten(redact(f"{address} answered {status}: {message}")) + (f"; {remedy}" if remedy else "")
        return EndpointError(reason, passing=is_passing, refused=is_refused, retry_after_s=wait_s, status=status)
    if isinstance(error, (openai.APIConnectionError, *_CONNECTION_ERRORS)):
        cause = error.__cause__
        fault = (str(cause) or type(cause).__name__) if cause is not None else str(error)
        return EndpointError(_shorten(redact(f"no connection to {address}: {fault}")), passing=True)
    if isinstance(error, openai.APIError):  # an error that came as part of a stream
        return EndpointError(_shorten(redact(f"{address} broke off: {error.message}")), passing=True)
    if isinstance(error, openai.OpenAIError):  # the client itself refuses: no key, above all
        return EndpointError(_shorten(redact(str(error))), passing=False)
    return EndpointError(_shorten(redact(f"{address} gave no readable answer: {error}")), passing=True)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds that `Retry-After` (seconds or a date) or `retry-after-ms` asks to wait, else None."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if seconds >= 0 else None  # NaN gives None as well
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(date.timestamp() - time.time(), 0.0)


def _message(body: object) -> str:
    """Returns the server's own message: OpenAI's `message`, FastAPI's `detail`, or the whole body."""
    if isinstance(body, Mapping):
        message: Any = body.get("message") or body.get("detail") or body.get("error") or dict(body)
        if isinstance(message, list):  # FastAPI names each field that is wrong
            entries = [entry for entry in message if isinstance(entry, Mapping)]
            field_messages = [
                ".".join(map(str, entry.get("loc", ()))) + ": " + str(entry.get("msg", "")) for entry in entries
            ]
            return "; ".join(field_messages) or str(message)
        return str(message)
    return str(body or "").strip()


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"


OPENAI_URL = f"https://{OPENAI_HOST}/v1"
NO_KEY = "no-key-needed"
"""Key that is sent if none is set and the endpoint is not OpenAI's: the client requires one."""
MAX_BACKOFF_S = 30.0
"""Longest random wait before a retry, in seconds, where the server asks for none."""

Sleep = Callable[[float], Awaitable[None]]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Connections:
    """Connections and slots of one event loop."""

    client: openai.AsyncOpenAI
    slots: asyncio.Semaphore
    redact: Redactor


class Endpoint:
    """One address, with a limit on concurrent requests, a time limit for each, and retries of passing failures."""

    def __init__(
        self,
        url: str | None,
        *,
        concurrency: int = 16,
        timeout_s: float = 120.0,
        attempts: int = 6,
        max_wait_s: float = 60.0,
        sleep: Sleep = asyncio.sleep,
        key_variable: str = KEY_VARIABLE,
    ) -> None:
        """`key_variable`: environment variable that holds the key. For the other arguments see `OpenAILLM`."""
        if concurrency < 1 or attempts < 1 or not timeout_s > 0:
            raise LLMError(
                f"concurrency {concurrency}, attempts {attempts}, timeout_s {timeout_s}: "
                "expected at least 1, at least 1, and more than 0"
            )
        self._url = url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        self.address, self.host = public_address(self._url)
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._max_wait_s = max_wait_s
        self._sleep = sleep
        self._key_variable = key_variable
        self._connections_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = WeakKeyDictionary()
        _key_from_environment(self.host, key_variable)  # a missing one is reported now, and not once a request

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[openai.AsyncOpenAI]:
        """Yields the client, while a slot for one of the concurrent requests is held.

        The slot is held while a request waits for its retry, so that an overloaded endpoint gets fewer requests.
        """
        connections = self._connections()
        async with connections.slots:
            yield connections.client

    async def ask(self, request: Callable[[], Awaitable[Answer]], name: str) -> Answer:
        """Returns the answer of `request`, with retries after passing failures. Raises `EndpointError`."""
        attempts_made = 0

        async def attempt() -> Answer:
            nonlocal attempts_made
            attempts_made += 1
            return await self.once(request(), name, f"asked {attempts_made} times" if attempts_made > 1 else "")

        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=_seconds_to_wait,
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, EndpointError) and error.passing),
            sleep=self._sleep,
            reraise=True,
        )
        return await retrying(attempt)

    async def once(self, answer: Awaitable[Answer], name: str, so_far: str = "") -> Answer:
        """Returns the answer if it comes within the time limit.

        Raises `EndpointError`, which holds nothing of the request.

        Args:
            answer: the answer to wait for.
            name: name of the request in errors.
            so_far: what was tried before, for errors.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except REQUEST_FAILURES as error:
            failure = endpoint_error(
                error,
                address=self.address,
                timeout_s=self._timeout_s,
                max_wait_s=self._max_wait_s,
                redact=self._connections().redact,
                key_variable=self._key_variable,
            )
        # Outside of `except`: as its context, the client's error would bring the key along into crash reports.
        failure.args = (f"{name}: {failure}" + (f" ({so_far})" if so_far else ""),)
        raise failure

    async def aclose(self) -> None:
        """Closes the connections that this event loop has opened."""
        connections = self._connections_of_loop.pop(asyncio.get_running_loop(), None)
        if connections is not None:
            await connections.client.close()

    def _connections(self) -> _Connections:
        """Returns the connections and slots of the running event loop. A program may run several loops, one after
        another.
        """
        loop = asyncio.get_running_loop()
        connections = self._connections_of_loop.get(loop)
        if connections is None:
            try:
                is_local = ipaddress.ip_address(self.host).is_loopback
            except ValueError:
                is_local = self.host == "localhost" or self.host.endswith(".localhost")
            # A proxy of the environment cannot know this machine's own ports.
            http_client = openai.DefaultAsyncHttpxClient(trust_env=False) if is_local else None
            client = openai.AsyncOpenAI(
                api_key=_key_from_environment(self.host, self._key_variable),
                base_url=self._url,
                http_client=http_client,
                max_retries=0,
                timeout=self._timeout_s,
            )
            connections = _Connections(
                client, asyncio.Semaphore(self._concurrency), Redactor(client, harmless=[NO_KEY])
            )
            self._connections_of_loop[loop] = connections
        return connections


class Reach(TypedDict, total=False):
    """Options of the connection to an endpoint: see `OpenAILLM`."""

    concurrency: int
    timeout_s: float
    attempts: int
    max_wait_s: float
    sleep: Sleep


class EndpointLLM:
    """A model behind an endpoint. Subclasses make the requests and read the answers."""

    SCHEME: str
    """Prefix of the names of such models, with its colon."""

    def __init__(self, model: str, base_url: str | None, revision: str, **connection_options: Unpack[Reach]) -> None:
        """Raises `LLMError` for an empty name, and for an invalid address.

        Args:
            model: name of the model.
            base_url: address of the endpoint.
            revision: version of the weights.
            **reach: options of the connection, see `Reach`.
        """
        if not model:
            raise LLMError(f"the model has no name; expected {self.SCHEME}MODEL or {self.SCHEME}MODEL@URL")
        self.name, self.revision = model, revision
        self._endpoint = Endpoint(base_url, **connection_options)

    @classmethod
    def parse(cls, spec: str, **options: Any) -> Self:
        """Returns the model of a specification `SCHEME:MODEL` or `SCHEME:MODEL@http://host:port/v1`.

        `options` are those of the constructor. Raises `LLMError` for another specification.
        """
        model, separator, url = spec.removeprefix(cls.SCHEME).partition("@http")
        if not spec.startswith(cls.SCHEME) or not model or re.search(r"@[\w.-]+(:\d|/)", model):  # without http://
            raise LLMError(
                f"model {_without_secrets(spec)!r}: expected {cls.SCHEME}MODEL or {cls.SCHEME}MODEL@http://host:port/v1"
            )
        return cls(model, base_url=f"http{url}" if separator else None, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, endpoint={self.endpoint!r})"

    @property
    def endpoint(self) -> str:
        """The address, without secrets."""
        return self._endpoint.address

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections that this event loop has opened."""
        await self._endpoint.aclose()


def public_address(url: str) -> tuple[str, str]:
    """Returns an endpoint's address without possible secrets, and its host. Raises `LLMError` for an
    invalid address.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.scheme not in ("http", "https") or not host:
        raise LLMError(f"{_without_secrets(url)!r} is no address of an endpoint; expected http://host:port/v1")
    if parts.username or parts.password:
        raise LLMError(f"the address of {host} holds a user or password: give the key by OPENAI_API_KEY instead")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}{f':{port}' if port else ''}{parts.path.rstrip('/')}", host


def _without_secrets(address: str) -> str:
    """Returns the part of an address that holds neither a user, nor a password, nor a key."""
    return address.split("@")[-1].split("?")[0][:80]


_backoff = tenacity.wait_random_exponential(multiplier=1, max=MAX_BACKOFF_S)


def _seconds_to_wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, EndpointError) or error.retry_after_s is None:
        return float(_backoff(state))
    # Spread over a quarter more, so that those who were sent away together do not come back together.
    return error.retry_after_s * (1 + 0.25 * random.random())


def _key_from_environment(host: str, variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not key and host == OPENAI_HOST:
        raise LLMError(f"{variable} is not set: export it, or name another endpoint: openai:MODEL@http://host:port/v1")
    if not (key.isascii() and key.isprintable()):
        raise LLMError(f"{variable} holds characters that no key has: export it again")
    return key or NO_KEY
