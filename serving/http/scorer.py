"""Verdicts as JSON objects: one for every answer, whatever is in it."""

import logging
import traceback
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict
from typing import Any

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.verdict import Verdict
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_format import ParsedResponse, parse_response
from metaprobe.records.raw_body import parse_body
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.request_log import RequestLog

logger = logging.getLogger(__name__)


class Allowance:
    """The tokens that may still be scored, of one request."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked = 0
        """Tokens counted so far, those that were too many included."""

    @property
    def exceeded(self) -> bool:
        return self.asked > self.most

    def take(self, tokens: int) -> None:
        """Raises `InvalidResponse` where that is too many."""
        self.asked += tokens
        if self.exceeded:
            raise InvalidResponse(f"{self.asked} tokens to score, and at most {self.most} are scored in one request")


class Scorer:
    """A predictor that counts what it says, and never loses an answer to what it cannot say."""

    def __init__(self, predictor: QualityPredictor, metrics: Metrics, *, max_tokens: int) -> None:
        self._predictor = predictor
        self._metrics = metrics
        self._max_tokens = max_tokens
        self._request: RequestLog | None = None
        self._answer: ParsedResponse | None = None
        self.digest = predictor.checkpoint.digest
        self.uses_top: bool = predictor.schema.uses_top

    def of(self, request: RequestLog | None) -> "Scorer":
        """The same scorer, each of whose verdicts is logged as one on an answer to this request."""
        if request is None:
            return self
        logging_ = copy(self)
        logging_._request = request
        return logging_

    def allowance(self) -> Allowance:
        """What one request may have scored."""
        return Allowance(self._max_tokens)

    def verdict(self, response: object, allowance: Allowance | None = None) -> dict[str, Any]:
        """The verdict on whatever `QualityPredictor.predict` takes; `score` null and a reason where there is none.

        `allowance`: shared by the responses of one request; without it, each has its own.
        """
        try:
            return self.counted(self._predict(response, allowance or self.allowance()))
        except (InvalidResponse, ContractMismatch) as error:
            return self.none(str(error))
        except Exception as error:  # the answer is paid for, and must reach its caller whatever is wrong here
            log_unexpected(logger, "scoring", error)
            self._metrics.errors.labels("scoring").inc()
            return self.none(f"scoring failed ({type(error).__name__}); the server's log has more")

    def none(self, reason: str) -> dict[str, Any]:
        """No verdict, and why."""
        return self.counted(Verdict(None, {}, None, None, None, self.digest, reason))

    def stopped(self, score: float | None, reason: str, gate: Mapping[str, Any]) -> dict[str, Any]:
        """The verdict on an answer that the gate ended: the gate's own, for the predictor knows only finished ones.

        `gate`: what it did, under `action` and `tokens`; it stands in the verdict under `gate`.
        """
        return {**self.counted(Verdict(score, {}, None, True, None, self.digest, reason), gate), "gate": gate}

    def counted(self, verdict: Verdict, gate: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The verdict as JSON, in the metrics, and in the log where there is one."""
        if verdict.score is None:
            self._metrics.abstained.inc()
        else:
            self._metrics.scores.observe(verdict.score)
        if verdict.flagged:
            self._metrics.flagged.inc()
        # A reason may quote half of a surrogate pair, which JSON text can hold and UTF-8 cannot.
        shown = {**asdict(verdict), "reason": verdict.reason.encode("utf-8", "backslashreplace").decode()}
        if self._request is not None:
            self._request.add(shown, self._answer, gate)
            self._answer = None
        return shown

    def _predict(self, response: object, allowance: Allowance) -> Verdict:
        if isinstance(response, (str, bytes, bytearray)):
            parsed = parse_body(response, top=self.uses_top)
        else:
            parsed = parse_response(response, top=self.uses_top)
        allowance.take(len(parsed.logprobs))
        if self._request is not None:
            self._answer = parsed
        return self._predictor.predict(parsed)


def log_unexpected(log: logging.Logger, where: str, error: BaseException) -> None:
    """Type and place of an error. Its message is left out: it may quote what a model or a caller wrote."""
    places = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s failed: %s\n%s", where, type(error).__name__, places)
