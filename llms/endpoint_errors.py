"""What went wrong at an endpoint: a sentence without secrets, and whether it makes sense to ask again."""

import email.utils
import json
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
import openai

from metaprobe.llms.base import LLMError
from metaprobe.records.errors import InvalidResponse

MAX_REASON = 400
"""Characters of a server's own words that are passed on."""

KEY_VARIABLE = "OPENAI_API_KEY"
"""The environment variable that holds the key, where no other one is named."""

_KEY_LIKE = re.compile(r"(?i)\b(?:sk|pk|rk|hf|gsk|key)[-_][\w*.\-]{6,}|\bbearer\s+[\w.~+/-]*[\w=]")
_SECRET_HEADER = re.compile(r"(?i)auth|key|token|secret|cookie")
_PASSING = {408, 409, 425, 429}
_OUT_OF_MONEY = ("insufficient_quota", "billing_hard_limit_reached")
_REMEDIES = {
    401: "check {key}",
    403: "check {key} and what it may use",
    404: "check the address (it usually ends in /v1) and the model's name",
}


class EndpointError(LLMError):
    """One request that went wrong."""

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
        """Whether the endpoint will not have the request as it is."""
        self.retry_after_s = retry_after_s
        """How long the server asked to be left alone."""
        self.status = status
        """The HTTP status of the answer; None where no answer came."""


FAILURES = (
    EndpointError,
    openai.OpenAIError,
    httpx.TransportError,  # a stream that breaks off, which openai does not wrap before 3.x
    TimeoutError,
    InvalidResponse,
    json.JSONDecodeError,
    UnicodeDecodeError,
)
"""What making a request and reading its answer may raise."""


class Redactor:
    """Takes a client's secrets, and whatever looks like one, out of a text."""

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
    """What an exception of the client, or of reading its answer, means."""
    if isinstance(error, EndpointError):
        return error
    if isinstance(error, (TimeoutError, openai.APITimeoutError)):
        return EndpointError(f"{address} did not answer within {timeout_s:g} s", passing=True)
    if isinstance(error, openai.APIStatusError):
        return _status_error(error, address, max_wait_s, redact, key_variable)
    if isinstance(error, (openai.APIConnectionError, httpx.TransportError)):
        cause = error.__cause__
        why = (str(cause) or type(cause).__name__) if cause is not None else str(error)
        return EndpointError(_shorten(redact(f"no connection to {address}: {why}")), passing=True)
    if isinstance(error, openai.APIError):  # an error that came as part of a stream
        return EndpointError(_shorten(redact(f"{address} broke off: {error.message}")), passing=True)
    if isinstance(error, openai.OpenAIError):  # the client itself refuses: no key, above all
        return EndpointError(_shorten(redact(str(error))), passing=False)
    return EndpointError(_shorten(redact(f"{address} gave no readable answer: {error}")), passing=True)


def _status_error(
    error: openai.APIStatusError, address: str, max_wait_s: float, redact: Redactor, key_variable: str
) -> EndpointError:
    status = error.status_code
    said = _message(error.body) or error.response.reason_phrase
    # llama-cpp-python answers 500 to what it cannot accept.
    refused = status in (400, 422) or (status == 500 and "validation error" in said)
    passing = not refused and (status >= 500 or status in _PASSING)
    if (told := error.response.headers.get("x-should-retry")) in ("true", "false"):  # of OpenAI's own servers
        passing = told == "true"
    reason = f"{address} answered {status}: {said}"
    remedy = _REMEDIES.get(status, "").format(key=key_variable)
    if error.code in _OUT_OF_MONEY:
        passing, remedy = False, "the account has no credit left"
    wait = retry_after_s(error.response.headers) if passing else None
    if wait is not None and wait > max_wait_s:
        passing, remedy = False, f"it asks to wait {wait:g} s, more than the {max_wait_s:g} s allowed here: try later"
    reason = _shorten(redact(reason)) + (f"; {remedy}" if remedy else "")
    return EndpointError(reason, passing=passing, refused=refused, retry_after_s=wait, status=status)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds that `Retry-After` (seconds, or a date; or `retry-after-ms`) asks for; None where it asks nothing."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if seconds >= 0 else None  # NaN is none either
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(date.timestamp() - time.time(), 0.0)


def _message(body: object) -> str:
    """The server's own words: OpenAI's `message`, FastAPI's `detail`, or whatever else it sent."""
    if isinstance(body, Mapping):
        said: Any = body.get("message") or body.get("detail") or body.get("error") or dict(body)
        if isinstance(said, list):  # FastAPI names each field that is wrong
            parts = [entry for entry in said if isinstance(entry, Mapping)]
            fields = [".".join(map(str, entry.get("loc", ()))) + ": " + str(entry.get("msg", "")) for entry in parts]
            return "; ".join(fields) or str(said)
        return str(said)
    return str(body or "").strip()


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"
