"""Log-probabilities that were asked for though the caller did not, and an upstream that fails because of them.

A request that was changed and failed is asked once more as it came. Where that is answered, the model is remembered for
a while as one that is asked without log-probabilities.
"""

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from metaprobe.serving.http.seldom import Seldom
from metaprobe.serving.http.sse import data_of
from metaprobe.serving.http.wire import UNREADABLE

logger = logging.getLogger(__name__)

NOT_OURS = frozenset({401, 402, 407, 408, 429, 503, 504})
"""Statuses of 400 and above that log-probabilities cannot cause: keys, money, time and load. 403 is looked at."""
FORBIDDEN = 403
"""Of keys, unless its body names log-probabilities, as OpenAI's does for models that may not give them."""
REMEMBER_S = 600.0
"""How long a model is asked without log-probabilities before it is asked with them again."""
GIVEN_S = 3600.0
"""How long a model that gave log-probabilities is known to do so."""
IN_A_ROW = 8
"""Failures in a row that outweigh log-probabilities given before: one fault, or one kind of request, does not."""
MAX_MODELS = 1024
"""Names that are remembered; callers choose them."""
MAX_NAME = 512
"""Characters of a name that is remembered: a caller may send one of megabytes, and a thousand of them."""

_NAMED = re.compile(rb"log[ _-]?prob", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,128}")


def failure_of(status: int, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """What an answer's head says against log-probabilities, as in "500"; empty for none.

    `headers`: with names in any case. Of `FORBIDDEN`, the body decides (`names_logprobs`).
    """
    if status < 400 or status in NOT_OURS or any(name.lower() == b"retry-after" for name, _ in headers):
        return ""
    return str(status)


def names_logprobs(body: bytes) -> bool:
    """Whether an error speaks of log-probabilities."""
    return _NAMED.search(body) is not None


def failure_in(body: bytes) -> str:
    """What the JSON of an answer or a chunk with status 200 says against log-probabilities; empty for none."""
    if b'"error"' not in body:
        return ""
    try:
        outline = _outline(body)  # walks over the rest, and makes no objects of it
        error: Any = msgspec.json.decode(outline.error)
    except UNREADABLE:
        return ""
    if not error or bytes(outline.choices).strip() not in _NO_CHOICES:
        return ""
    code = error.get("code") if isinstance(error, dict) else None
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else 0
    if status in NOT_OURS or (status == FORBIDDEN and not names_logprobs(body)):
        return ""
    return "an error"


def failure_in_event(event: bytes) -> str:
    """The same of the first event of a stream."""
    data = data_of(event)
    return failure_in(data) if data else ""


class _Outline(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"null")
    choices: msgspec.Raw = msgspec.Raw(b"null")


_outline = msgspec.json.Decoder(_Outline).decode
_NO_CHOICES = (b"null", b"[]")


class Declined:
    """Which models are asked without log-probabilities for now. One for each upstream."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seldom = Seldom(logger)
        self._until: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
        self._row: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._given: OrderedDict[tuple[str, str], float] = OrderedDict()

    def why(self, model: str, asked_for: str) -> str:
        """What the upstream answered when it was asked for more; empty where it is to be asked for it now.

        `asked_for`: what is asked for beside what the caller wants.
        """
        until, why = self._until.get((model, asked_for), (0.0, ""))
        return why if self._clock() < until else ""

    def gave(self, model: str, asked_for: str) -> None:
        """A changed request was answered."""
        at = (model, asked_for)
        self._row.pop(at, None)
        self._until.pop(at, None)
        _keep(self._given, at, self._clock())

    def failed(self, model: str, asked_for: str, why: str) -> None:
        """A changed request failed, and was answered as it came."""
        at, now = (model, asked_for), self._clock()
        _keep(self._row, at, self._row.get(at, 0) + 1)
        known_to_give = now - self._given.get(at, -GIVEN_S) < GIVEN_S
        remembered = not known_to_give or self._row[at] >= IN_A_ROW
        if remembered:
            _keep(self._until, at, (now + REMEMBER_S, why))
        if not remembered:
            self._seldom(f"the upstream fails some requests for {asked_for} that the caller did not ask for ({why})")
            return
        logger.warning(
            "the upstream answered %s to a request of %s with %s that the caller did not ask for, and answered it"
            " without: for %g s the model is asked without, and its answers have no score; switch log-probabilities on"
            " at the upstream if they are to be scored",
            why,
            model if _PLAIN_NAME.fullmatch(model) else "a model with an odd name",
            asked_for,
            REMEMBER_S,
        )


def no_logprobs(why: str, *, again: bool) -> str:
    """The reason for a verdict without a score. `again`: whether this request was asked twice."""
    if again:
        return f"no log-probabilities: the upstream answered {why} to a request with logprobs; asked again without"
    return f"no log-probabilities: the upstream answered {why} to an earlier request with logprobs; asked without"


def _keep(held: "OrderedDict[tuple[str, str], Any]", at: tuple[str, str], value: object) -> None:
    if len(at[0]) > MAX_NAME:
        return
    held[at] = value
    held.move_to_end(at)
    if len(held) > MAX_MODELS:
        held.popitem(last=False)
