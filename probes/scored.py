"""One answer and its verdict, in the form in which every integration hands it on, and as OpenTelemetry events.

    watch(stream, predictor, on_verdict=evaluation_events())

The events follow the semantic conventions for generative AI (`gen_ai.evaluation.result`, status: development;
https://github.com/open-telemetry/semantic-conventions-genai). Their names are written out here: the package
`opentelemetry-semantic-conventions` has deprecated its copies.
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.extras import require
from metaprobe.records.reading import fields, once, text

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scored:
    """A verdict, and what it is of."""

    verdict: Verdict | None
    """The verdict; None where there is none, for `reason`."""
    reason: str = ""
    """Why there is no verdict, or what else is to be known of it; empty where all is well."""
    response_id: str = ""
    """The server's id of the answer; empty where it is unknown."""
    model: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)
    """The integration's knowledge of the call, under the names that its library uses (`run_id`, `metadata`, ...)."""
    action: str = ""
    """How the gate ended the answer: `stop` or `escalate`; empty where it did not."""
    response: object = field(default=None, repr=False, compare=False)
    """The response that was scored, in whatever form it came; None where it was not to be read."""

    def as_metadata(self) -> dict[str, Any]:
        """The verdict's fields, and `reason`, in types that JSON has."""
        known = {} if self.verdict is None else asdict(self.verdict)
        return {
            "score": None,
            **known,
            "reason": "; ".join(dict.fromkeys(filter(None, [known.get("reason"), self.reason]))),
        }


OnVerdict = Callable[[Scored], object]
"""Called once an answer. Where the integration is asynchronous, what it returns is awaited if it can be."""


async def hand_on(scored: Scored, on_verdict: OnVerdict | None) -> None:
    """Calls `on_verdict`, and awaits what it returns if that can be awaited."""
    if on_verdict is not None and inspect.isawaitable(handed := on_verdict(scored)):
        await handed


def score(
    predictor: QualityPredictor,
    response: object,
    *,
    note: str = "",
    response_id: str = "",
    model: str = "",
    context: Mapping[str, Any] | None = None,
) -> Scored:
    """The verdict on whatever `QualityPredictor.predict` takes. Never raises: the answer matters more than its score.

    An error that is not the response's goes to the log as well. `note`: what else is to be known of the verdict.
    """
    held = fields(response) or {}
    response_id, model = response_id or text(held.get("id")), model or once(text(held.get("model")))
    verdict = None
    try:
        verdict = predictor.predict(response)
    except (InvalidResponse, ContractMismatch) as error:
        note = "; ".join(filter(None, [str(error), note]))
    except Exception as error:
        logger.exception("metaprobe could not score a response")
        note = f"scoring failed ({type(error).__name__}: {error})"
    return Scored(verdict, note, response_id, model, context or {}, response=response)


EVENT = "gen_ai.evaluation.result"
NAME = "gen_ai.evaluation.name"
SCORE_VALUE = "gen_ai.evaluation.score.value"
RESPONSE_ID = "gen_ai.response.id"

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
        value, flagged = (verdict.score, verdict.flagged) if verdict else (None, None)
        emit(evaluation_attributes(name, score=value, flagged=flagged, reason=reason, response_id=scored.response_id))
        if heads and verdict is not None and value is not None:
            common = {RESPONSE_ID: scored.response_id} if scored.response_id else {}
            for head, of_head in verdict.heads.items():
                emit({NAME: f"{name}.{head}", SCORE_VALUE: of_head, **common})

    return emit_all


def evaluation_attributes(
    name: str, *, score: float | None, flagged: bool | None, reason: str, response_id: str
) -> dict[str, str | float]:
    """Returns the attributes of one verdict's event; see `evaluation_events`."""
    attributes: dict[str, str | float] = {NAME: name}
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
