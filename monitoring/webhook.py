"""Alarms to a webhook, in bounded time; what is not taken stays where it waits."""

from typing import Any

from metaprobe.records.posting import NotPosted, post_json

TIMEOUT_S = 10.0
"""How long one try may take in all."""
TRIES = 2


def post_pending(url: str, pending: list[dict[str, Any]]) -> str:
    """Posts alarms in their order and takes each out of the list that was taken; returns why one was not, or nothing.

    After the first failure the others wait too, so that all this takes `TRIES` times `TIMEOUT_S` at most beyond what is
    answered.
    """
    while pending:
        failed = ""
        for _ in range(TRIES):
            try:
                post_json(url, pending[0], {}, timeout_s=TIMEOUT_S)
            except NotPosted as error:
                failed = str(error)
            else:
                failed = ""
                break
        if failed:
            return failed
        pending.pop(0)
    return ""
