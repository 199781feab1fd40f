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
from metaprobe.records.parse import parse_response
from metaprobe.records.raw_body import parse_body
from metaprobe.records.response import ParsedResponse
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.request_log import RequestLog
from metaprobe.serving.scored import OnVerdict, Scored

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

    def __init__(
        self,
        predictor: QualityPredictor,
        metrics: Metrics,
        *,
        max_tokens: int = 1 << 20,
        role: str = "judge",
        shadow: "Scorer | None" = None,
        events: OnVerdict | None = None,
    ) -> None:
        """`shadow`: what scores the same answers, for comparison only. `role`: as what this one is counted. `events` is
        told of every verdict."""
        self._predictor = predictor
        self._role = role
        self._shadow = shadow
        self._events = events
        self._metrics = metrics
        self._max_tokens = max_tokens
        self._request: RequestLog | None = None
        self.digest = predictor.checkpoint.digest
        self.uses_top: bool = predictor.schema.uses_top or (shadow is not None and shadow.uses_top)
        """Whether alternatives are read, here or in the shadow."""

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
        parsed, granted = None, None
        try:
            parsed = self._parse(response)
            granted = allowance or self.allowance()
            granted.take(len(parsed.logprobs))
            verdict = self._predictor.predict(parsed)
        except (InvalidResponse, ContractMismatch) as error:
            verdict = self._no_verdict(str(error))
        except Exception as error:  # the answer is paid for, and must reach its caller whatever is wrong here
            log_unexpected(logger, "scoring", error)
            self._metrics.errors.labels("scoring").inc()
            verdict = self._no_verdict(f"scoring failed ({type(error).__name__}); the server's log has more")
        said = self._counted(verdict, parsed)
        if self._shadow is not None and parsed is not None and granted is not None and not granted.exceeded:
            self._shadow._follow(verdict, parsed, self._request)
        return said

    def none(self, reason: str) -> dict[str, Any]:
        """No verdict, and why."""
        return self._counted(self._no_verdict(reason), None)

    def stopped(self, score: float | None, reason: str, gate: Mapping[str, Any], model: str = "") -> dict[str, Any]:
        """The verdict on an answer that the gate ended: the gate's own, for the predictor knows only finished ones.

        `gate`: what it did, under `action` and `tokens`; it stands in the verdict under `gate`. `model`: as the
        upstream names it, where it did.
        """
        verdict = Verdict(score, {}, critical=None, flagged=True, checkpoint=self.digest, reason=reason)
        return {**self._counted(verdict, None, {**gate, "model": model}), "gate": gate}

    def _no_verdict(self, reason: str) -> Verdict:
        return Verdict(None, {}, critical=None, flagged=None, checkpoint=self.digest, reason=reason)

    def _follow(self, given: Verdict, parsed: ParsedResponse, request: RequestLog | None) -> None:
        """Scores what another has scored, for comparison, and logs it. Never raises: nobody waits for this."""
        try:
            verdict = self._predictor.predict(parsed)
        except Exception as error:
            log_unexpected(logger, "scoring in the shadow", error)
            self._metrics.errors.labels("shadow").inc()
            return
        self._metrics.verdicts.labels(self._role).inc()
        if verdict.score is not None and given.score is not None:
            self._metrics.shadow_difference.observe(abs(verdict.score - given.score))
        if request is not None:
            request.add_shadow(_shown(verdict), parsed)

    def _counted(
        self, verdict: Verdict, parsed: ParsedResponse | None, gate: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The verdict as JSON, in the metrics, and in the log where there is one."""
        self._metrics.verdicts.labels(self._role).inc()
        if self._events is not None:
            self._events(Scored(verdict))
        if verdict.score is None:
            self._metrics.abstained.inc()
        else:
            self._metrics.scores.observe(verdict.score)
        if verdict.flagged:
            self._metrics.flagged.inc()
        shown = _shown(verdict)
        if self._request is not None:
            self._request.add(shown, parsed, gate)
        return shown

    def _parse(self, response: object) -> ParsedResponse:
        if isinstance(response, (str, bytes, bytearray)):
            return parse_body(response, top=self.uses_top)
        return parse_response(response, top=self.uses_top)


def _shown(verdict: Verdict) -> dict[str, Any]:
    """As JSON's own types. A reason may quote half of a surrogate pair, which JSON text can hold and UTF-8 cannot."""
    return {**asdict(verdict), "reason": verdict.reason.encode("utf-8", "backslashreplace").decode()}


def log_unexpected(log: logging.Logger, where: str, error: BaseException) -> None:
    """Type and place of an error. Its message is left out: it may quote what a model or a caller wrote."""
    places = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s failed: %s\n%s", where, type(error).__name__, places)
