"""Which headers pass the proxy; all others stay where they are."""

import re
from collections.abc import Container, Iterable, Mapping

from metaprobe.serving.http.settings import HEADER_NAME

KEY_HEADER = "x-metaprobe-key"
"""A caller's key for this server, where `Authorization` is meant for the upstream."""
REQUEST_ID = "metaprobe-request-id"
REASON = "metaprobe-reason"
"""On an answer that cannot carry a verdict, since it is no JSON object: why there is none."""

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
