"""`POST /v1/success`: P(success) of each candidate on a request, before any candidate is asked."""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from metaprobe.api import RecordError, SuccessEstimator
from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.completion_json import UNREADABLE

READING_COST = 200_000
"""Weight of an estimate, in scored bytes: reading a prompt takes about as long, whatever its length."""
MAX_CANDIDATES = 128
"""Most candidates in a request."""


class _EstimateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of a request."""

    messages: list[dict[str, Any]] | str
    candidates: list[str] | None = None
    dimension: str | None = None
    versions: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SuccessDesk:
    """Estimates P(success) for callers."""

    estimator: SuccessEstimator

    def estimate(self, body: bytes) -> dict[str, Any]:
        """Returns `{"estimates": [...]}` for messages, and optional candidates, dimension and versions.

        Raises `Refusal` for invalid JSON, and for more than `MAX_CANDIDATES` candidates.
        """
        try:
            question = msgspec.convert(json.loads(body), _EstimateRequest)
        except msgspec.ValidationError as error:
            message = f"{error}; expected messages, and candidates, dimension and versions where they are known"
            raise Refusal(400, "invalid_request", message) from error
        except UNREADABLE as error:
            raise Refusal(400, "invalid_json", f"the body is not JSON ({type(error).__name__})") from error
        if question.candidates is not None and len(question.candidates) > MAX_CANDIDATES:
            message = f"{len(question.candidates)} candidates in one request; at most {MAX_CANDIDATES} are estimated"
            raise Refusal(413, "batch_too_large", message)
        try:
            estimates = self.estimator.estimate(
                question.messages, question.candidates, question.dimension, versions=question.versions
            )
        except RecordError as error:
            raise Refusal(400, "invalid_request", str(error)) from error
        return {"estimates": [estimate.to_dict() for estimate in estimates]}
