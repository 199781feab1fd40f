"""What was found about one method, as plain dataclasses: its metrics, and what speaks against them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Severity
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.calibration import ReliabilityBin, StatedCalibration
from metaprobe.eval.metrics.strongest_control import ControlComparison

Family = Literal["explicit", "log-probability", "plain", "learned", "own"]
"""Said by the model; read off its log-probabilities; a baseline that ignores both; trained; given by the user."""

FAMILIES: tuple[Family, ...] = ("explicit", "log-probability", "plain", "learned", "own")
CONTROL_FAMILIES: tuple[Family, ...] = ("log-probability", "plain")
"""What is to be had for little, and what a learned method has to beat, every one of them."""


@dataclass(frozen=True, slots=True)
class AcceptedAtRisk:
    """How many answers can be accepted where at most a given share of the accepted may be wrong."""

    risk: float
    """Largest share of wrong answers among the accepted, such as 0.1."""
    coverage: Interval
    """Share of answers accepted, 0 where no threshold keeps to the risk; threshold and share on the same answers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MethodResult:
    """One way to distinguish right answers from wrong ones, on the held-out answers."""

    name: str
    family: Family
    coverage: float
    """Share of answers for which it said something, in [0, 1]; the others were given a fallback."""
    auroc: Interval
    within_runs: Interval | None = None
    """AUROC over pairs of answers of one run (model, task, way of asking); None where there is one run only."""
    auprc: Interval
    ece: Interval
    """Expected calibration error of `probability`, over bins of equal mass."""
    stated: StatedCalibration | None = None
    """The model's own numbers as it stated them, where the method is that; all other metrics are of `probability`."""
    brier_skill: Interval
    aurc: Interval
    brier: Interval | None = None
    brier_reliability: Interval | None = None
    """Part of the Brier score: squared distance of the probabilities from what came true; 0 is calibrated. Brier =
    reliability - resolution + uncertainty + what the probabilities vary within their bins."""
    brier_resolution: Interval | None = None
    """Part of the Brier score: how far what came true differs between the bins; higher is better."""
    brier_uncertainty: Interval | None = None
    """Part of the Brier score that no method can change: base rate x (1 - base rate)."""
    excess_aurc: Interval | None = None
    """AURC minus that of a perfect ranking; 0 is perfect."""
    prr: Interval | None = None
    """Prediction rejection ratio: 1 is a perfect ranking, 0 a random one, below 0 worse."""
    coverage_at: tuple[AcceptedAtRisk, ...] = ()
    spearman: Interval | None = None
    """Rank correlation of the score with the ordered outcome `Comparison.ordinal`; None where there is none."""
    kendall: Interval | None = None
    """The same as Kendall's tau-b."""
    diff_stated: Interval | None = None
    """AUROC minus that of verbalised confidence, paired; None for verbalised confidence itself."""
    diff_control: Interval | None = None
    """AUROC minus that of the strongest single control on these answers, paired; None for that control itself."""
    controls: ControlComparison | None = None
    """Of what is learned or said by the model: AUROC against every control, corrected for their number."""
    controls_within: ControlComparison | None = None
    """The same over pairs of answers of one run; None where there is one run only."""
    probability: NDArray[np.floating]
    """(n,): calibrated out-of-fold probability that the answer is right."""
    ranking: NDArray[np.floating] | None = None
    """(n,): what orders the answers, where that is not the probability."""
    reliability: tuple[ReliabilityBin, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that could make the numbers mean less than they seem to."""

    name: str
    passed: bool
    detail: str
    severity: Severity = "weak"
    """What it means where it failed."""
    method: str = ""
    """The method whose numbers it is about; empty where it is about the answers, and so about every method."""
