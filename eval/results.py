"""What a comparison found, as plain dataclasses: computed in `metaprobe.eval`, rendered in `metaprobe.eval.report`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.display import explain_fields
from metaprobe.eval.comparison_display import ShownComparison
from metaprobe.eval.method_results import CONTROL_FAMILIES, Family, Finding, MethodResult
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.calibration import ReliabilityBin
from metaprobe.eval.system_results import Agreement, CostQuality, Coupling, Failures, SimilarityFlow, StageAccuracy

Place = tuple[int, str]
"""A layer and a position."""


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


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryBands:
    """Mean and percentiles over answers at each normalised position; every array (points,), in nats but `position`."""

    position: NDArray[np.float64]
    """Per cent of the answer: 0 is its first token, 100 its last."""
    mean: NDArray[np.float64]
    p10: NDArray[np.float64]
    p25: NDArray[np.float64]
    p75: NDArray[np.float64]
    p90: NDArray[np.float64]
    n: int
    """Answers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSweep:
    """One kind of probe over all layers. Each fold chooses by `training.linear.one_standard_error`, which
    need not be where `selection_auroc` is highest."""

    probe: str
    layers: tuple[int, ...]
    """0 is the embeddings' output, i the output of block i."""
    positions: tuple[str, ...]
    selection_auroc: NDArray[np.floating]
    """(layers, positions), on selection data, averaged over the folds."""
    choices: tuple[Place, ...]
    """What each fold chose, in the folds' order."""
    shipped: Place | None = None
    """What the checkpoint of this probe reads, which chose anew from all groups; None where no checkpoint is known."""
    test_auroc: Interval
    """Of the chosen ones, on held-out answers."""

    @property
    def chosen(self) -> Place:
        """What most folds chose; of several the last."""
        return max(set(self.choices), key=lambda place: (self.choices.count(place), place))

    @property
    def counted(self) -> tuple[tuple[Place, int], ...]:
        """What the folds chose and how many of them, the most frequent first."""
        places = sorted(set(self.choices), key=lambda place: (-self.choices.count(place), place))
        return tuple((place, self.choices.count(place)) for place in places)


@dataclass(frozen=True, slots=True)
class Trajectories:
    """Log-probabilities over the course of right and of wrong answers."""

    correct: TrajectoryBands
    wrong: TrajectoryBands
    role: str = ""
    """Whose answers: system, stage and agent, as far as there are several; empty for all."""


@dataclass(frozen=True, slots=True)
class SeenMethod:
    """One method that reads the first tokens only."""

    name: str
    family: Family
    auroc: tuple[Interval, ...]
    """One for each entry of `SeenTokens.tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTokens:
    """How early right can be distinguished from wrong: the same answers at every k, a shorter one read to its end."""

    tokens: tuple[int, ...]
    """k, ascending."""
    finished: tuple[float, ...]
    """Share of answers that have no more than k tokens, and are read whole."""
    methods: tuple[SeenMethod, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTest:
    """Whether one method distinguishes right from wrong better than a reference: AUROC, paired, on the same answers."""

    method: str
    reference: str
    """Stated confidence, or the strongest single control."""
    difference: Interval
    """AUROC of the method minus that of the reference, with its interval before any correction."""
    test: Literal["DeLong", "clustered bootstrap"]
    """DeLong where every group has one answer, so that answers are independent; else the bootstrap over groups."""
    p: float
    """Two-sided, of no difference."""
    p_holm: float
    """After Holm's correction over all pairs in the table."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """Answers of one difficulty."""

    name: str
    n: int
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinStrata:
    """What one method knows beyond the difficulty of the question."""

    method: str
    auroc: Interval
    """Over pairs of a right and a wrong answer of the same stratum only. 0.5: it knew the difficulty and no more."""
    diff_stated: Interval | None
    """Minus that of stated confidence, paired; None for stated confidence itself, or where none was stated."""
    by_stratum: tuple[Interval | None, ...]
    """AUROC within each stratum, in the order of `Difficulty.strata`; None where a class is missing there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """The comparison at equal difficulty. A method's AUROC over all answers is in `MethodResult.auroc`."""

    by: str
    """What the strata are: `dimension x level`, or quantiles of what."""
    strata: tuple[Stratum, ...]
    methods: tuple[WithinStrata, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overconfidence:
    """Mean confidence against accuracy of the answers of one level."""

    method: str
    stated: bool
    """Whether the confidence is the model's own number, as it gave it; else it is the calibrated probability."""
    level: str
    """`all`, a level of the items, or a stratum of difficulty."""
    confidence: float
    accuracy: float
    gap: Interval
    """Mean confidence minus accuracy; above 0 is over-confident. Of the answers with a confidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Metacognitive efficiency of one method as the confidence, on a two-choice task."""

    method: str
    type2_auroc: Interval
    """AUROC of the confidence, in `bins` grades, for being right."""
    meta_d: Interval | None
    """meta-d': the d' that an ideal observer with this confidence would have; None where refused."""
    m_ratio: Interval | None
    """meta-d' / d': 1 is as much as the answer itself knew, above 1 more; None where refused."""
    bins: int
    """Grades of confidence, of equal mass as far as ties allow."""
    refused: str = ""
    """Why meta-d' is None; empty where it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoChoice:
    """What the model's answers to two-choice items know of the truth, and its confidence of its answers."""

    choices: tuple[str, str]
    """The signal is that the first is right, the response that it was given."""
    n: int
    """Answers that state one of the two."""
    unreadable: int
    """Answers that state neither, left out."""
    d_prime: Interval
    """Sensitivity of the answers themselves; 0 is guessing."""
    criterion: Interval
    """Above 0: it gives the first choice less often than an unbiased observer."""
    methods: tuple[Efficiency, ...]


@explain_fields
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Comparison(ShownComparison):
    """Everything a report shows. Sections without content are left out, apart from the method table."""

    title: str
    """Heading of the report."""
    summary: tuple[str, ...]
    """What was found, in sentences."""
    provenance: Mapping[str, str]
    """Model, revision, dtype, task, items, answers, seeds, versions, command, date; shown in this order."""
    y: NDArray[np.integer]
    """(n,): 1 where the answer is right."""
    methods: tuple[MethodResult, ...]
    """Every method with its metrics, in the order of the tables."""
    best_baseline: str = ""
    """Name of the row of controls chosen in advance, in each fold on its selection data; empty where there is none."""
    baselines: Mapping[str, int] = field(default_factory=dict)
    """The controls that the folds chose for it, and in how many folds each was chosen, the most frequent first."""
    exported: str = ""
    """A sentence: which checkpoint comes nearest to the headline method, where none holds that method itself."""
    accuracy: tuple[AccuracyRow, ...] = ()
    """Share of right answers by dimension and level."""
    sweeps: tuple[LayerSweep, ...] = ()
    """What each probe reached at every layer and position."""
    trajectories: Trajectories | None = None
    """Log-probabilities over the course of right and of wrong answers."""
    choices: tuple[PolicyResult, ...] = ()
    """Ways to choose between a direct answer and one step by step."""
    pairs: tuple[PairTest, ...] = ()
    """Paired tests of the methods against stated confidence and the strongest control."""
    ordinal: str = ""
    """What `MethodResult.spearman` and `kendall` correlate the scores with; empty where nothing is ordered."""
    difficulty: Difficulty | None = None
    """The comparison at equal difficulty; None where the items have none."""
    overconfidence: tuple[Overconfidence, ...] = ()
    """Mean confidence against accuracy, by level."""
    two_choice: TwoChoice | None = None
    """Metacognitive efficiency on two-choice tasks; None elsewhere."""
    two_choice_refused: str = ""
    """Why there is no metacognitive efficiency; empty where there is."""
    coupling: tuple[Coupling, ...] = ()
    """Whether control repairs what monitoring flags, by system."""
    agreement: tuple[Agreement, ...] = ()
    """MetaCrit: what came of the runs in which the same critics flagged a concern."""
    failures: Failures | None = None
    """MetaCrit: how wrong runs went wrong."""
    headline: str = ""
    """Name of the learned method that was named beforehand; empty for the last of them."""
    seen: SeenTokens | None = None
    """How early right and wrong answers differ."""
    role_trajectories: tuple[Trajectories, ...] = ()
    """`trajectories` by system, stage and agent."""
    stages: tuple[StageAccuracy, ...] = ()
    """Share of right answers after each stage of a system."""
    similarity: tuple[SimilarityFlow, ...] = ()
    """How answers change from stage to stage."""
    routing: tuple[CostQuality, ...] = ()
    """Cost and accuracy of the ways to route."""
    audits: tuple[Finding, ...] = ()
    """What could make the numbers mean less than they seem to."""
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
    def controls(self) -> tuple[MethodResult, ...]:
        """The single controls, the strongest on these answers first."""
        found = (m for m in self.methods if m.family in CONTROL_FAMILIES and m.name != self.best_baseline)
        return tuple(sorted(found, key=lambda method: -method.auroc.estimate))

    @property
    def base_rate(self) -> float:
        """Share of right answers."""
        return float(np.mean(self.y))

    @property
    def variants(self) -> tuple[str, ...]:
        """Columns of the accuracy table, in order of appearance."""
        return tuple(dict.fromkeys(variant for row in self.accuracy for variant in row.by_variant))
