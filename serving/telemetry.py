"""Verdicts as OpenTelemetry events, by the semantic conventions for generative AI (`gen_ai.evaluation.result`).

    watch(stream, predictor, on_verdict=evaluation_events())

https://github.com/open-telemetry/semantic-conventions-genai (status: development). The names are written out here: the
package `opentelemetry-semantic-conventions` has deprecated its copies.
"""

from collections.abc import Iterator
from typing import Any

from metaprobe.records.extras import require
from metaprobe.serving.scored import OnVerdict, Scored

EVENT = "gen_ai.evaluation.result"
NAME = "gen_ai.evaluation.name"
SCORE_VALUE = "gen_ai.evaluation.score.value"
SCORE_LABEL = "gen_ai.evaluation.score.label"
EXPLANATION = "gen_ai.evaluation.explanation"
RESPONSE_ID = "gen_ai.response.id"
ERROR_TYPE = "error.type"

SCOPE = "metaprobe"


def evaluation_events(
    *, name: str = "metaprobe", heads: bool = False, on_span: bool = False, logger_provider: Any = None
) -> OnVerdict:
    """An `on_verdict` that emits an event for each verdict, in the context of the current span.

    The event has the score in [0, 1], the label `fail` where the verdict is flagged and else `pass` (none where the
    checkpoint has no threshold), the reason as explanation, and the response's id, by which it is found where the
    answer's own span has ended or is on another thread. Where there is no verdict it has the error type `not_scored`.

    `heads`: one event more for every head, `<name>.<head>`, on the head's own scale. `on_span`: as events of the
    current span instead of log records, for a backend that reads only traces. `logger_provider`: instead of the global
    one.
    """
    if on_span:
        trace = require("opentelemetry.trace", "otel")

        def add_to_span(scored: Scored) -> None:
            span = trace.get_current_span()
            for attributes in _events(scored, name, heads):
                span.add_event(EVENT, attributes)

        return add_to_span

    logs = require("opentelemetry._logs", "otel")
    logger = logs.get_logger(SCOPE, logger_provider=logger_provider)

    def emit(scored: Scored) -> None:
        for attributes in _events(scored, name, heads):
            logger.emit(event_name=EVENT, attributes=attributes)

    return emit


def _events(scored: Scored, name: str, heads: bool) -> Iterator[dict[str, str | float]]:
    """The attributes of each event."""
    common = {RESPONSE_ID: scored.response_id} if scored.response_id else {}
    verdict = scored.verdict
    main: dict[str, str | float] = {NAME: name, **common}
    if reason := scored.as_metadata()["reason"]:
        main[EXPLANATION] = reason
    if verdict is None or verdict.score is None:
        yield {**main, ERROR_TYPE: "not_scored"}
        return
    main[SCORE_VALUE] = verdict.score
    if verdict.flagged is not None:
        main[SCORE_LABEL] = "fail" if verdict.flagged else "pass"
    yield main
    if heads:
        for head, value in verdict.heads.items():
            yield {NAME: f"{name}.{head}", SCORE_VALUE: value, **common}
