"""Emits verdicts as OpenTelemetry events.

    watch(stream, predictor, on_verdict=evaluation_events())

The events follow the semantic conventions for generative AI (`gen_ai.evaluation.result`, status: development;
https://github.com/open-telemetry/semantic-conventions-genai). Their names are repeated here, because the package
`opentelemetry-semantic-conventions` has deprecated its copies.
"""

from collections.abc import Mapping
from typing import Any

from metaprobe.api import AGREEMENT, OnVerdict, Scored, require

EVENT = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
SCORE_VALUE = "gen_ai.evaluation.score.value"
RESPONSE_ID = "gen_ai.response.id"

SCOPE = "metaprobe"


def evaluation_events(
    *, name: str = "metaprobe", heads: bool = False, on_span: bool = False, logger_provider: Any = None
) -> OnVerdict:
    """Returns an `on_verdict` function that emits an event for each verdict, in the context of the current span.

    The event has the score in [0, 1]. For a checkpoint trained without labels it has the agreement, under the name
    `<name>.agreement`. The label is `fail` if the verdict is flagged, else `pass`; without a threshold there is no
    label. The event also has the reason as explanation. The response's id identifies it if the answer's own span has
    ended, or is on another thread. Without a verdict the event has the error type `not_scored`.

    Args:
        name: name of the evaluation.
        heads: whether every head gets an additional event, `<name>.<head>`, on its own scale.
        on_span: whether to emit events of the current span instead of log records, for a backend that reads only
            traces.
        logger_provider: replaces the global logger provider.
    """
    if on_span:
        trace = require("opentelemetry.trace", "serve")
    else:
        logger = require("opentelemetry._logs", "serve").get_logger(SCOPE, logger_provider=logger_provider)

    def emit(attributes: dict[str, str | float]) -> None:
        if on_span:
            trace.get_current_span().add_event(EVENT, attributes)
        else:
            logger.emit(event_name=EVENT, attributes=attributes)

    def emit_all(scored: Scored) -> None:
        verdict, reason = scored.verdict, scored.as_metadata()["reason"]
        value_name, value = named_value(name, verdict.score, verdict.heads) if verdict else (name, None)
        flagged = verdict.flagged if verdict else None
        emit(
            evaluation_attributes(
                value_name, score=value, flagged=flagged, reason=reason, response_id=scored.response_id
            )
        )
        if heads and verdict is not None and verdict.score is not None:
            response_fields = {RESPONSE_ID: scored.response_id} if scored.response_id else {}
            for head, head_value in verdict.heads.items():
                emit({EVALUATION_NAME: f"{name}.{head}", SCORE_VALUE: head_value, **response_fields})

    return emit_all


def named_value(name: str, score: float | None, heads: Mapping[str, float]) -> tuple[str, float | None]:
    """Returns the name and number of a verdict's event: the score under `name`, or the agreement under
    `<name>.agreement`.

    Agreement is used for a checkpoint that was trained without labels. The number is None if there is neither.

    Args:
        name: name of the evaluation.
        score: the verdict's score.
        heads: the verdict's heads.
    """
    if score is None and AGREEMENT in heads:
        return f"{name}.{AGREEMENT}", heads[AGREEMENT]
    return name, score


def evaluation_attributes(
    name: str, *, score: float | None, flagged: bool | None, reason: str, response_id: str
) -> dict[str, str | float]:
    """Returns the attributes of one verdict's event; see `evaluation_events`.

    Args:
        name: name of the evaluation.
        score: the score; None without a verdict.
        flagged: whether the verdict is flagged; None without a threshold.
        reason: the verdict's reason.
        response_id: id of the response.
    """
    attributes: dict[str, str | float] = {EVALUATION_NAME: name}
    if response_id:
        attributes[RESPONSE_ID] = response_id
    if reason:
        attributes["gen_ai.evaluation.explanation"] = reason
    if score is None:
        return {**attributes, "error.type": "not_scored"}
    attributes[SCORE_VALUE] = score
    if flagged is not None:
        attributes["gen_ai.evaluation.score.label"] = "fail" if flagged else "pass"
    return attributes
