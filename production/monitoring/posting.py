"""Posts JSON to another program's address, with the standard library alone, and reveals no secret."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from metaprobe.api import RecordError

POST_TIMEOUT_S = 20.0
"""Most seconds that one request may take in all."""
MAX_ANSWER_BYTES = 1 << 20
"""Most bytes of an answer that are read."""


class NotPosted(RecordError):
    """A request was not accepted. The message holds no URL, no header and nothing of the answer."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because a redirect would send the credentials to another address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def checked_url(url: str, setting_name: str, *, bare: bool = False) -> str:
    """Returns the address. Raises `RecordError`, which does not show it, if it cannot be posted to.

    Args:
        url: the address.
        setting_name: name of the setting with the address.
        bare: whether user, password and query are refused; the address is then returned without a slash at its end.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_valid = is_valid and not (bare and (parts.username or parts.password or parts.query or parts.fragment))
    except ValueError:
        is_valid = False
    if not is_valid or not url.isascii() or any(letter.isspace() for letter in url):
        raise RecordError(
            f"{setting_name} is no address; expected a URL that begins with https:// or http://"
            + (", without user, password and query" if bare else "")
        )
    return url.rstrip("/") if bare else url


def post_json(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str], *, timeout_s: float = POST_TIMEOUT_S
) -> dict[str, Any]:
    """Returns the JSON object of the answer, empty if there is none. Raises `NotPosted` if the request was not
    accepted.

    Args:
        url: the address.
        body: the JSON object to post.
        headers: additional headers.
        timeout_s: seconds that the request may take in all.
    """
    data = json.dumps(body, allow_nan=False).encode()
    all_headers = {"Content-Type": "application/json", "User-Agent": "metaprobe", **headers}
    failure: list[str] = ["no answer in time"]
    answers: list[bytes] = []

    def send() -> None:
        try:
            request = urllib.request.Request(url, data, all_headers, method="POST")
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s) as answer:
                answers.append(answer.read(MAX_ANSWER_BYTES))
            failure[0] = ""
        except urllib.error.HTTPError as error:
            failure[0] = f"status {error.code}"
        except Exception as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            failure[0] = type(reason).__name__

    # The timeout above is for each read: a server that sends a byte now and then would never reach it.
    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(timeout_s)
    if failure[0]:
        raise NotPosted(failure[0])
    try:
        parsed = json.loads(answers[0] or b"{}")
    except (ValueError, RecursionError):
        parsed = {}
    return parsed if isinstance(parsed, dict) else {}
