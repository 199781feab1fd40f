"""What a report shows: facts only, computed elsewhere (`metaprobe.eval`), rendered here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Severity
from metaprobe.eval.metrics import Interval, ReliabilityBin
from metaprobe.eval.report.trajectory import TrajectoryBands

Family = Literal["explicit", "log-probability", "plain", "learned"]
"""Said by the model; read off its log-probabilities; a baseline that ignores both; trained."""

FAMILIES: tuple[Family, ...] = ("explicit", "log-probability", "plain", "learned")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MethodResult:
    """One way to tell right answers from wrong ones, on the held-out answers."""

    name: str
    family: Family
    coverage: float
    """Share of answers for which it said something, in [0, 1]; the others were given a fallback."""
    auroc: Interval
    auprc: Interval
    ece: Interval
    """Debiased; may be below 0."""
    brier_skill: Interval
    aurc: Interval
    diff_stated: Interval | None = None
    """AUROC minus that of verbalised confidence, paired; None for verbalised confidence itself."""
    diff_baseline: Interval | None = None
    """AUROC minus that of the best plain baseline, paired; None for that baseline itself."""
    probability: NDArray[np.floating]
    """(n,): calibrated out-of-fold probability that the answer is right."""
    ranking: NDArray[np.floating] | None = None
    """(n,): what orders the answers, where that is not the probability."""
    reliability: tuple[ReliabilityBin, ...] = ()


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Share of right answers among n."""

    accuracy: float
    n: int


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """Accuracy in one dimension at one level."""

    dimension: str
    level: str
    by_variant: Mapping[str, Accuracy]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSweep:
    """One kind of probe over all layers; layer and position are chosen where `selection_auroc` is highest."""

    probe: str
    layers: tuple[int, ...]
    """0 is the embeddings' output, i the output of block i."""
    positions: tuple[str, ...]
    selection_auroc: NDArray[np.floating]
    """(layers, positions), on the selection split."""
    chosen_layer: int
    chosen_position: str
    test_auroc: Interval
    """Of the chosen one, on held-out answers."""


@dataclass(frozen=True, slots=True)
class Trajectories:
    """Log-probabilities over the course of right and of wrong answers."""

    correct: TrajectoryBands
    wrong: TrajectoryBands


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """What came of one way to choose between a direct answer and step by step."""

    policy: str
    accuracy: Interval
    tokens_per_question: float
    step_by_step: float
    """Share of questions answered step by step, in [0, 1]."""
    reliability: tuple[ReliabilityBin, ...] = ()
    """Of the probability it chose by, where it has one."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Something that could make the numbers mean less than they seem to."""

    name: str
    passed: bool
    detail: str
    severity: Severity = "weak"
    """What it means where it failed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Everything a report shows. Sections without content are left out, apart from the method table."""

    title: str
    summary: tuple[str, ...]
    """Sentences."""
    provenance: Mapping[str, str]
    """Model, revision, dtype, task, items, answers, seeds, versions, command, date; shown in this order."""
    y: NDArray[np.integer]
    """(n,): 1 where the answer is right."""
    methods: tuple[MethodResult, ...]
    best_baseline: str
    """Name of the plain baseline that was best on selection data."""
    accuracy: tuple[AccuracyRow, ...] = ()
    sweeps: tuple[LayerSweep, ...] = ()
    trajectories: Trajectories | None = None
    choices: tuple[PolicyResult, ...] = ()
    audits: tuple[Audit, ...] = ()
    notes: tuple[str, ...] = ()
    """Limits, and what did not work."""

    def __post_init__(self) -> None:
        names = [method.name for method in self.methods]
        if len(set(names)) < len(names):
            raise ValueError(f"methods need names of their own; got {', '.join(names)}")
        for method in self.methods:
            if len(method.probability) != len(self.y):
                raise ValueError(
                    f"{method.name} has {len(method.probability)} probabilities for {len(self.y)} labels: "
                    "every method needs one probability for every answer"
                )

    @property
    def base_rate(self) -> float:
        """Share of right answers."""
        return float(np.mean(self.y))

    @property
    def variants(self) -> tuple[str, ...]:
        """Columns of the accuracy table, in order of appearance."""
        return tuple(dict.fromkeys(variant for row in self.accuracy for variant in row.by_variant))
