"""A flag threshold that follows the labels, and whose promise needs no assumption at all.

A stored threshold promises to flag 90 % of the wrong answers as long as answers are like those it was set on. This one
moves at every wrong answer whose label comes back: up by `step * (1 - rate)` where it was not flagged, down by
`step * rate` where it was. It cannot move out of [-step, 1 + step], for there all or no answers are flagged, so the sum
of its moves is bounded: after T labelled wrong answers the share missed is `rate` to within (1 + step) / (step * T),
whatever came and in whichever order (adaptive conformal inference, Gibbs and Candes 2021, arXiv:2106.00170; for losses
other than coverage, Feldman et al. 2022, arXiv:2205.09095).

A label of an answer that was drawn with a propensity counts as 1 / propensity answers, and one between 0 and 1 as a
part of one. The promise is then for the weighted share.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan

from metaprobe.records.errors import RecordError

RATE = 0.1
"""Share of the wrong answers that may pass unflagged, as of the threshold that checkpoints store."""
STEP = 0.02


@dataclass(slots=True)
class OnlineThreshold:
    """Answers of a score below `threshold` are to be flagged."""

    threshold: float
    """Where it begins, such as the checkpoint's own; then where it is."""
    rate: float = RATE
    """Share of the wrong answers that may be missed, in the long run."""
    step: float = STEP
    """How fast it follows: large steps follow soon, and swing more."""
    wrong: float = 0.0
    """Labelled wrong answers so far, weighted."""
    missed: float = 0.0
    """Those of them that were not flagged."""
    heaviest: float = 1.0
    """The largest weight so far."""

    def __post_init__(self) -> None:
        if not (0 < self.rate < 1 and self.step > 0 and 0 <= self.threshold <= 1):
            raise RecordError(
                f"got threshold {self.threshold:g}, rate {self.rate:g} and step {self.step:g}; expected a threshold in "
                "[0, 1], a rate between 0 and 1 and a step above 0"
            )

    @property
    def missed_share(self) -> float:
        """Share of the wrong answers that was missed, by the threshold of their time; NaN before the first."""
        return self.missed / self.wrong if self.wrong else float("nan")

    @property
    def bound(self) -> float:
        """How far `missed_share` can be from `rate`, whatever came; infinite before the first wrong answer."""
        if not self.wrong:
            return float("inf")
        return (1 + self.step * self.heaviest) / (self.step * self.wrong)

    def flags(self, score: float) -> bool:
        return score < self.threshold

    def observe(self, score: float, label: float, propensity: float = 1.0) -> float:
        """Returns the threshold after a label in [0, 1], 1 being right; NaN for a propensity stands for 1.

        Raises `RecordError` for a label or a propensity out of range.
        """
        drawn = 1.0 if isnan(propensity) else propensity
        if not (0 <= label <= 1 and 0 < drawn <= 1):
            raise RecordError(f"got label {label:g} and propensity {propensity:g}; expected [0, 1] and (0, 1]")
        weight = (1 - label) / drawn
        missed = not self.flags(score)
        self.threshold += self.step * weight * (missed - self.rate)
        self.wrong += weight
        self.missed += weight * missed
        self.heaviest = max(self.heaviest, weight)
        return self.threshold

    def observe_all(self, answers: Iterable[tuple[float, float, float]]) -> float:
        """Returns the threshold after labels in their order, as (score, label, propensity); one NaN is passed over."""
        for score, label, propensity in answers:
            if not (isnan(score) or isnan(label)):
                self.observe(score, label, propensity)
        return self.threshold
