"""Verdicts as OpenTelemetry events.

    watch(stream, predictor, on_verdict=evaluation_events())

The events follow the semantic conventions for generative AI (`gen_ai.evaluation.result`, status: development;
https://github.com/open-telemetry/semantic-conventions-genai). Their names are written out here: the package
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
    """An `on_verdict` that emits an event for each verdict, in the context of the current span.

    The event has the score in [0, 1], or the agreement under the name `<name>.agreement` where the checkpoint was
    trained without labels, the label `fail` where the verdict is flagged and else `pass` (none where the checkpoint has
    no threshold), the reason as explanation, and the response's id, by which it is found where the
    answer's own span has ended or is on another thread. Where there is no verdict it has the error type `not_scored`.

    `heads`: one event more for every head, `<name>.<head>`, on the head's own scale. `on_span`: as events of the
    current span instead of log records, for a backend that reads only traces. `logger_provider`: instead of the global
    one.
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
        named, value = named_value(name, verdict.score, verdict.heads) if verdict else (name, None)
        flagged = verdict.flagged if verdict else None
        emit(evaluation_attributes(named, score=value, flagged=flagged, reason=reason, response_id=scored.response_id))
        if heads and verdict is not None and verdict.score is not None:
            common = {RESPONSE_ID: scored.response_id} if scored.response_id else {}
            for head, of_head in verdict.heads.items():
                emit({EVALUATION_NAME: f"{name}.{head}", SCORE_VALUE: of_head, **common})

    return emit_all


def named_value(name: str, score: float | None, heads: Mapping[str, float]) -> tuple[str, float | None]:
    """Returns the name and the number under which a verdict is handed on: the score under `name`, or, where a
    checkpoint was trained without labels, the agreement under `<name>.agreement`; None where there is neither."""
    if score is None and AGREEMENT in heads:
        return f"{name}.{AGREEMENT}", heads[AGREEMENT]
    return name, score


def evaluation_attributes(
    name: str, *, score: float | None, flagged: bool | None, reason: str, response_id: str
) -> dict[str, str | float]:
    """Returns the attributes of one verdict's event; see `evaluation_events`."""
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
