"""`POST /v1/feedback`: labels come back for what was answered before."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from metaprobe.monitoring.label_values import label_value
from metaprobe.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.monitoring.tables import LogError
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.wire import UNREADABLE

SHAPE = '{"request_id": "...", "label": 1, "who": "ada"}, or {"feedback": [...]} with several'
_WAIT_S = 1.0
"""How long labels wait for their answers to be stored, so that an answer just given is known."""


async def take_feedback(body: bytes, log: ScoreLog, *, most: int) -> dict[str, int]:
    """Stores labels, all or none; how many they were, and how many are of requests that the log does not know.

    Raises `Refusal` for what is no feedback, and for more than `most` labels.
    """
    labels = read_feedback(body, most=most)

    def store() -> int:
        log.flush(_WAIT_S)
        return log.add_labels(labels)

    try:
        known = await asyncio.to_thread(store)
    except LogError as error:
        raise Refusal(422, "invalid_feedback", str(error)) from error
    return {"stored": len(labels), "unknown": len(labels) - known}


def read_feedback(body: bytes, *, most: int) -> list[FeedbackLabel]:
    """The labels in a request's body. Raises `Refusal`."""
    try:
        held = msgspec.json.decode(body)
    except UNREADABLE as error:
        raise Refusal(
            400, "invalid_json", f"the body is not JSON ({type(error).__name__}); expected {SHAPE}"
        ) from error
    several = held.get("feedback") if isinstance(held, Mapping) and "feedback" in held else [held]
    if not isinstance(several, list) or not all(isinstance(one, Mapping) for one in several):
        raise Refusal(400, "invalid_feedback", f"expected {SHAPE}")
    if len(several) > most:
        raise Refusal(413, "batch_too_large", f"{len(several)} labels in one request; at most {most} are taken at once")
    return [_label(one) for one in several]


def _label(one: Mapping[str, Any]) -> FeedbackLabel:
    if "label" not in one or not isinstance(one.get("request_id"), str):
        raise Refusal(400, "invalid_feedback", f"a label has no `request_id`, or no `label`; expected {SHAPE}")
    identity, at = one["request_id"][:200], one.get("time")
    if at is not None and (isinstance(at, bool) or not isinstance(at, (int, float))):
        raise Refusal(422, "invalid_feedback", f"request {identity}: `time` is no number; expected seconds since 1970")
    try:
        return FeedbackLabel(one["request_id"], label_value(one["label"]), str(one.get("who") or "")[:200], at)
    except ValueError as error:
        raise Refusal(422, "invalid_feedback", f"request {identity}: {error}") from error
