"""One answer and its verdict, in the form in which every integration hands it on."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import fields, once, text

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scored:
    """A verdict, with the answer and the call that it is about."""

    verdict: Verdict | None
    """The verdict; None if there is none, with the cause in `reason`."""
    reason: str = ""
    """Why there is no verdict, or a warning about it; empty if there is nothing to say."""
    response_id: str = ""
    """The server's id of the answer; empty where it is unknown."""
    model: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the call that the integration knows, under its library's own names (`run_id`, `metadata`, ...)."""
    action: str = ""
    """How the gate ended the answer: `stop` or `escalate`; empty where it did not."""
    response: object = field(default=None, repr=False, compare=False)
    """The response that was scored, in the form in which it came; None if it could not be read."""

    def as_metadata(self) -> dict[str, Any]:
        """Returns the verdict's fields, and `reason`, in types that JSON has."""
        verdict_fields = {} if self.verdict is None else asdict(self.verdict)
        return {
            "score": None,
            **verdict_fields,
            "reason": "; ".join(dict.fromkeys(filter(None, [verdict_fields.get("reason"), self.reason]))),
        }

    @classmethod
    def of(
        cls,
        predictor: QualityPredictor,
        response: object,
        *,
        note: str = "",
        response_id: str = "",
        model: str = "",
        context: Mapping[str, Any] | None = None,
    ) -> "Scored":
        """Scores a response in any form that `QualityPredictor.predict` takes. Never raises: the answer matters more
        than its score.

        An unexpected error is logged as well.

        Args:
            predictor: gives the verdict.
            response: the response.
            note: a further reason to store beside the verdict.
            response_id: the server's id; by default the id in the response.
            model: the model; by default the model that the response names.
            context: facts about the call that the integration knows.
        """
        response_fields = fields(response) or {}
        response_id, model = (
            response_id or text(response_fields.get("id")),
            model or once(text(response_fields.get("model"))),
        )
        verdict = None
        try:
            verdict = predictor.predict(response)
        except (InvalidResponse, ContractMismatch) as error:
            note = "; ".join(filter(None, [str(error), note]))
        except Exception as error:
            logger.exception("metaprobe could not score a response")
            note = f"scoring failed ({type(error).__name__}: {error})"
        return cls(verdict, note, response_id, model, context or {}, response=response)


OnVerdict = Callable[[Scored], object]
"""Function that an integration calls once for each answer. An asynchronous integration awaits the result if it is
awaitable.
"""
