"""The verdict of a predictor on one response, with its forms for a terminal, a notebook and JSON."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from metaprobe.checkpoints.display import explain_fields
from metaprobe.checkpoints.flagging import AGREEMENT
from metaprobe.checkpoints.rendered_table import html_table


@explain_fields
@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """The verdict of a predictor on one response.

    An example:

        >>> from metaprobe import QualityPredictor
        >>> verdict = QualityPredictor.load().predict([-0.05, -0.01, -0.002, -1.2, -0.03])
        >>> 0 < verdict.score < 1, verdict.flagged, verdict.to_dict()["reason"][:9]
        (True, None, 'how often')
    """

    critical_head: ClassVar[str] = "critical"
    """Name of the head of P(critical failure), in `heads` and as a label."""
    score: float | None
    """How good the response is, in [0, 1]: a calibrated probability where the main head gives one, else its position
    on the head's scale. None where the predictor gives no score."""
    heads: dict[str, float]
    """Every head's value: a calibrated probability, or the expected level on the scale that the contract states
    (`instruction`, `justification`, `evidence` from 1 to 3, `quality`, which is Q, from 0 to 9)."""
    critical: float | None
    """Probability of a critical failure; None if the checkpoint has no such head."""
    flagged: bool | None
    """Whether the answer is flagged: its score is below the predictor's threshold, or P(critical failure) reaches the
    threshold `critical`. A checkpoint without a score compares its agreement instead. None if the predictor has no
    threshold, or does not know how often answers of this run are right.
    """
    checkpoint: str
    """Digest of the checkpoint that gave the verdict."""
    reason: str = ""
    """Why there is no score, or what makes it doubtful; empty if nothing does."""

    @property
    def agreement(self) -> float | None:
        """The probability that the model, asked again, would say the same; None if the checkpoint has no such head.

        This head was trained without labels. It is not P(right): a model may say the same wrong thing each time.
        """
        return self.heads.get(AGREEMENT)

    def __repr__(self) -> str:
        score = "None" if self.score is None else f"{self.score:.3f}"
        agreement = "" if self.agreement is None else f", agreement={self.agreement:.3f}"
        reason = f", reason={self.reason!r}" if self.reason else ""
        return f"Verdict(score={score}{agreement}, flagged={self.flagged}{reason})"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks."""
        heads = {f"head {name}": f"{value:.3f}" for name, value in self.heads.items()}
        text_by_name = {"score": "none" if self.score is None else f"{self.score:.3f}", **heads}
        if self.critical is not None:
            text_by_name["critical"] = f"{self.critical:.3f}"
        rows = [*text_by_name.items(), ("flagged", self.flagged), ("reason", self.reason)]
        return html_table("Verdict", [*rows, ("checkpoint", f"{self.checkpoint[:12]}...")])

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as types of JSON."""
        return asdict(self)
