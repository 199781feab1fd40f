"""`POST /v1/feedback`: stores labels for earlier answers."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from metaprobe.production.http.bodies import REQUESTS, Refusal, aside
from metaprobe.production.http.completion_json import UNREADABLE, Object, bounded
from metaprobe.production.http.metrics import Seldom
from metaprobe.production.monitoring.label_words import EXPECTED, label_value
from metaprobe.production.monitoring.labeller import Labeller, NotYours
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.production.monitoring.tables import LogError, LogUnavailable

logger = logging.getLogger(__name__)

LABEL_FORMAT = (
    '{"request_id": "...", "label": 1}, with "who", "time" (seconds since 1970) and "source" (human, program, judge)'
    ' where they are known, or {"feedback": [...]} with several'
)
_WAIT_S = 1.0
"""Seconds for which labels wait until their answers are stored, so that a very recent answer is known."""
MAX_WAITING_REQUESTS = 8
"""Most requests with labels that may wait for the database at once: the last one waits less than a minute."""
RETRY_AFTER_S = 5

_threads = ThreadPoolExecutor(1, thread_name_prefix="metaprobe-feedback")


class SentLabel(msgspec.Struct, forbid_unknown_fields=True):
    """A label as a caller sends it. Any other key might change its meaning, so it is refused."""

    request_id: Annotated[str, Meta(description="The id that came with the verdict, or the caller's own.")]
    label: Annotated[bool | int | float | str | None, Meta(description=f"{EXPECTED}.")]
    who: Annotated[str | None, Meta(description="Who says so; a later label of the same request counts.")] = None
    time: Annotated[float | None, Meta(description="Seconds since 1970; now where it is left out.")] = None
    source: Annotated[
        Literal["human", "program", "judge", ""] | None,
        Meta(description="What gave the label. One of a judge never replaces a person's; without it: a person."),
    ] = None
    comment: Annotated[msgspec.Raw | msgspec.UnsetType, Meta(description="Not stored.")] = msgspec.UNSET


class SentLabels(msgspec.Struct):
    """Several labels in one request."""

    feedback: list[SentLabel]


_object = msgspec.json.Decoder(Object)
_label, _labels = msgspec.json.Decoder(SentLabel), msgspec.json.Decoder(list[SentLabel])


class FeedbackDesk:
    """Stores labels in one log. Writing may wait for the database, which delays only other labels."""

    def __init__(self, log: ScoreLog, *, max_labels: int) -> None:
        """`max_labels` is the most labels in one request."""
        self._log, self._max_labels = log, max_labels
        self._waiting = 0
        self._seldom = Seldom(logger)

    async def take(self, body: bytes, labeller: Labeller) -> dict[str, int]:
        """Stores all labels or none. Returns how many were stored, and how many belong to requests that the log does
        not know.

        Raises `Refusal` for anything but labels, for too many labels, and for answers that `labeller` may not label.
        Raises it with status 503 and a retry time if the database cannot store them now.
        """
        labels = await aside(len(body), lambda: read_feedback(body, max_labels=self._max_labels), REQUESTS)
        if self._waiting >= MAX_WAITING_REQUESTS:
            raise _busy(f"{self._waiting} requests wait for the score log already")
        self._waiting += 1
        try:
            known_count = await asyncio.get_running_loop().run_in_executor(_threads, self._store, labels, labeller)
        except LogUnavailable as error:
            self._seldom(f"labels were refused for the time being: {error}")
            raise _busy("the score log cannot be written now; the server's log says why") from error
        except NotYours as error:
            raise Refusal(403, "not_yours", str(error)) from error
        except LogError as error:
            raise Refusal(422, "invalid_feedback", str(error)) from error
        finally:
            self._waiting -= 1
        return {"stored": len(labels), "unknown": len(labels) - known_count}

    def _store(self, labels: list[FeedbackLabel], labeller: Labeller) -> int:
        self._log.flush(_WAIT_S)
        return self._log.add_labels(labels, labeller=labeller)


def _busy(reason: str) -> Refusal:
    return Refusal(503, "log_unavailable", f"nothing was stored: {reason}", {"retry-after": str(RETRY_AFTER_S)})


def read_feedback(body: bytes, *, max_labels: int) -> list[FeedbackLabel]:
    """Returns the labels in a request's body. Raises `Refusal`."""
    try:
        body_fields = _object.decode(body)
        if "feedback" in body_fields and body_fields.keys() & {"request_id", "label"}:
            raise Refusal(400, "invalid_feedback", f"a label stands beside a list of labels; expected {LABEL_FORMAT}")
        raw_list = body_fields.get("feedback")
        sent_labels = (
            [_label.decode(body)]
            if raw_list is None
            else bounded(bytes(raw_list), max_labels, _labels.decode, "labels")
        )
    except msgspec.ValidationError as error:
        # The error names a key of the caller's, which may be as long as the body.
        raise Refusal(400, "invalid_feedback", f"{str(error)[:200]}; expected {LABEL_FORMAT}") from error
    except UNREADABLE as error:
        message = f"the body is not JSON ({type(error).__name__}); expected {LABEL_FORMAT}"
        raise Refusal(400, "invalid_json", message) from error
    labels = []
    for sent in sent_labels:
        try:
            value = label_value(sent.label)
        except ValueError as error:
            raise Refusal(422, "invalid_feedback", f"request {sent.request_id[:200]}: {error}") from error
        labels.append(FeedbackLabel(sent.request_id, value, (sent.who or "")[:200], sent.time, sent.source or ""))
    return labels
