"""`POST /v1/feedback`: labels come back for what was answered before."""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from metaprobe.monitoring.labels import SOURCES, Labeller, NotYours, label_value
from metaprobe.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.monitoring.tables import LogError, LogUnavailable
from metaprobe.serving.http.bodies import REQUESTS, aside, count_elements
from metaprobe.serving.http.metrics import Seldom
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.wire import MOST_UNCOUNTED, UNREADABLE, Object

logger = logging.getLogger(__name__)

SHAPE = '{"request_id": "...", "label": 1, "who": "ada"}, or {"feedback": [...]} with several'
KEYS = frozenset(("request_id", "label", "who", "time", "source", "comment"))
"""What a label may say. `comment` is not stored. Any other key might change what the label means, and is refused."""
_WAIT_S = 1.0
"""How long labels wait for their answers to be stored, so that an answer just given is known."""
MOST_WAITING = 8
"""Requests with labels that may wait for the database at once: the last one waits less than a minute."""
RETRY_AFTER_S = 5

_threads = ThreadPoolExecutor(1, thread_name_prefix="metaprobe-feedback")
_object, _objects = msgspec.json.Decoder(Object), msgspec.json.Decoder(list[Object])
_TIMES = frozenset({"when", "at", "timestamp", "date"})


class FeedbackDesk:
    """Takes labels for one log. Writing them may wait for the database, which holds up nothing but other labels."""

    def __init__(self, log: ScoreLog, *, most: int) -> None:
        """`most`: labels that are taken in one request."""
        self._log, self._most = log, most
        self._waiting = 0
        self._seldom = Seldom(logger)

    async def take(self, body: bytes, by: Labeller) -> dict[str, int]:
        """Stores labels, all or none; how many they were, and how many are of requests that the log does not know.

        Raises `Refusal` for what is no feedback, for more than `most` labels, for answers that `by` may not label, and,
        with 503 and a time after which to try again, where the database does not take them now.
        """
        labels = await aside(len(body), lambda: read_feedback(body, most=self._most), REQUESTS)
        if self._waiting >= MOST_WAITING:
            raise _busy(f"{self._waiting} requests wait for the score log already")
        self._waiting += 1
        try:
            known = await asyncio.get_running_loop().run_in_executor(_threads, self._store, labels, by)
        except LogUnavailable as error:
            self._seldom(f"labels were refused for the time being: {error}")
            raise _busy("the score log cannot be written now; the server's log says why") from error
        except NotYours as error:
            raise Refusal(403, "not_yours", str(error)) from error
        except LogError as error:
            raise Refusal(422, "invalid_feedback", str(error)) from error
        finally:
            self._waiting -= 1
        return {"stored": len(labels), "unknown": len(labels) - known}

    def _store(self, labels: list[FeedbackLabel], by: Labeller) -> int:
        self._log.flush(_WAIT_S)
        return self._log.add_labels(labels, by=by)


def _busy(why: str) -> Refusal:
    return Refusal(503, "log_unavailable", f"nothing was stored: {why}", {"retry-after": str(RETRY_AFTER_S)})


def read_feedback(body: bytes, *, most: int) -> list[FeedbackLabel]:
    """The labels in a request's body. Raises `Refusal`."""
    try:
        held = _object.decode(body)
        if "feedback" in held and held.keys() & {"request_id", "label"}:
            raise Refusal(400, "invalid_feedback", f"a label stands beside a list of labels; expected {SHAPE}")
        several = _several(bytes(held["feedback"]), most) if "feedback" in held else [held]
    except msgspec.ValidationError as error:
        raise Refusal(400, "invalid_feedback", f"expected {SHAPE}") from error
    except UNREADABLE as error:
        raise Refusal(
            400, "invalid_json", f"the body is not JSON ({type(error).__name__}); expected {SHAPE}"
        ) from error
    return [_label({name: _plain(one[name]) if name in KEYS else None for name in one}) for one in several]


def _several(array: bytes, most: int) -> list[Object]:
    """The labels of a list, counted before an object is made of each where they might be very many."""
    count = count_elements(array) if array.count(b",") > MOST_UNCOUNTED else 0
    found = [] if count > most else _objects.decode(array)
    if max(count, len(found)) > most:
        message = f"{max(count, len(found))} labels in one request; at most {most} are taken at once"
        raise Refusal(413, "batch_too_large", message)
    return found


def _plain(value: msgspec.Raw) -> object:
    """A text, a number, a truth value or None. Of a list or an object, only its beginning, in a list."""
    try:
        return msgspec.json.decode(value, type=str | float | int | bool | None)
    except msgspec.ValidationError:
        return [bytes(value)[:40].decode("utf-8", "replace")]


def _label(one: Mapping[str, Any]) -> FeedbackLabel:
    if "label" not in one or not isinstance(one.get("request_id"), str):
        raise Refusal(400, "invalid_feedback", f"a label has no `request_id`, or no `label`; expected {SHAPE}")
    identity, at = one["request_id"][:200], one.get("time")
    if unknown := sorted(map(str, one.keys() - KEYS)):
        wanted = "`time`, in seconds since 1970" if unknown[0] in _TIMES else f"only {', '.join(sorted(KEYS))}"
        said = f"request {identity}: `{unknown[0][:40]}` is not read; expected {wanted}"
        raise Refusal(422, "invalid_feedback", said)
    source = one.get("source") or ""
    if source not in ("", *SOURCES):
        said = f"request {identity}: source {str(source)[:40]!r}; expected {', '.join(SOURCES)}, or none"
        raise Refusal(422, "invalid_feedback", said)
    if at is not None and (isinstance(at, bool) or not isinstance(at, (int, float))):
        raise Refusal(422, "invalid_feedback", f"request {identity}: `time` is no number; expected seconds since 1970")
    try:
        return FeedbackLabel(one["request_id"], label_value(one["label"]), str(one.get("who") or "")[:200], at, source)
    except ValueError as error:
        raise Refusal(422, "invalid_feedback", f"request {identity}: {error}") from error
