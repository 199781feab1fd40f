"""Alarms to a webhook, in bounded time; what is not taken stays where it waits."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from metaprobe.records.errors import RecordError

TIMEOUT_S = 10.0
"""How long one try may take in all."""
TRIES = 2


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without the alarm."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def checked_url(url: str) -> str:
    """Returns the URL. Raises `RecordError`, which does not show it, where nothing can be posted there."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not url.isascii() or any(letter.isspace() for letter in url):
        raise RecordError("the webhook is no address; expected a URL that begins with https:// or http://")
    return url


def post_pending(url: str, pending: list[dict[str, Any]]) -> str:
    """Posts alarms in their order and takes each out of the list that was taken; returns why one was not, or nothing.

    After the first failure the others wait too, so that all this takes `TRIES` times `TIMEOUT_S` at most beyond what is
    answered.
    """
    while pending:
        failed = ""
        for _ in range(TRIES):
            failed = _post(url, pending[0])
            if not failed:
                break
        if failed:
            return failed
        pending.pop(0)
    return ""


def _post(url: str, alarm: Mapping[str, Any]) -> str:
    """Returns why the alarm was not taken, without the URL, which may hold a secret; empty where it was."""
    said = ["no answer in time"]

    def send() -> None:
        try:
            body = json.dumps(alarm).encode()
            headers = {"Content-Type": "application/json", "User-Agent": "metaprobe"}
            asked = urllib.request.Request(url, body, headers, method="POST")
            with urllib.request.build_opener(_NoRedirect).open(asked, timeout=TIMEOUT_S) as answer:
                said[0] = "" if 200 <= answer.status < 300 else f"status {answer.status}"
        except urllib.error.HTTPError as error:
            said[0] = f"status {error.code}"
        except Exception as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            said[0] = type(reason).__name__

    # Each read has its own timeout: a server that sends a byte now and then would hold us for ever.
    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(TIMEOUT_S)
    return said[0]
