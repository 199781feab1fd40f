"""Verdicts as JSON objects: one for every answer, whatever is in it."""

import logging
import traceback
from dataclasses import asdict
from typing import Any

from metaprobe.checkpoints import ContractMismatch
from metaprobe.probes.quality import QualityPredictor, Verdict
from metaprobe.records.errors import InvalidResponse
from metaprobe.serving.metrics import Metrics

logger = logging.getLogger(__name__)


class Scorer:
    """A predictor that counts what it says, and never loses an answer to what it cannot say."""

    def __init__(self, predictor: QualityPredictor, metrics: Metrics) -> None:
        self._predictor = predictor
        self._metrics = metrics
        self.digest = predictor.checkpoint.digest
        self.uses_top: bool = predictor.schema.uses_top

    def verdict(self, response: object) -> dict[str, Any]:
        """The verdict on whatever `QualityPredictor.predict` takes; `score` null and a reason where there is none."""
        try:
            return self.counted(self._predict(response))
        except (InvalidResponse, ContractMismatch) as error:
            return self.none(str(error))
        except Exception as error:  # the answer is paid for, and must reach its caller whatever is wrong here
            log_unexpected(logger, "scoring", error)
            self._metrics.errors.labels("scoring").inc()
            return self.none(f"scoring failed ({type(error).__name__}); the server's log has more")

    def none(self, reason: str) -> dict[str, Any]:
        """No verdict, and why."""
        return self.counted(Verdict(None, {}, None, None, None, self.digest, reason))

    def stopped(self, score: float | None, reason: str) -> dict[str, Any]:
        """The verdict on an answer that the gate ended: the gate's own, for the predictor knows only finished ones."""
        return self.counted(Verdict(score, {}, None, True, None, self.digest, reason))

    def counted(self, verdict: Verdict) -> dict[str, Any]:
        """The verdict as JSON, and in the metrics."""
        if verdict.score is None:
            self._metrics.abstained.inc()
        else:
            self._metrics.scores.observe(verdict.score)
        if verdict.flagged:
            self._metrics.flagged.inc()
        return asdict(verdict)

    def _predict(self, response: object) -> Verdict:
        return self._predictor.predict(response)


def log_unexpected(log: logging.Logger, where: str, error: BaseException) -> None:
    """Type and place of an error. Its message is left out: it may quote what a model or a caller wrote."""
    places = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s failed: %s\n%s", where, type(error).__name__, places)
