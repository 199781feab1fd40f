"""Results of a comparison as plain dataclasses: computed in `metaprobe.eval`, rendered in `metaprobe.eval.report`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Severity
from metaprobe.checkpoints.display import explain_fields
from metaprobe.checkpoints.rendered_table import format_interval, html_table
from metaprobe.eval.metrics.bootstrap import ControlComparison, Interval
from metaprobe.eval.metrics.calibration import ReliabilityBin, StatedCalibration
from metaprobe.records.errors import MissingExtra

PER_ANSWER_FIELDS = ("y", "probability", "ranking")
"""Fields of a comparison or method that hold an entry for every answer; `to_dict` leaves them out."""
INTERVAL_FIELDS = ("auroc", "within_runs", "auprc", "brier_skill", "aurc", "ece", "diff_stated", "diff_control")
"""Fields of a method that hold an estimate with its interval; `to_pandas` makes three columns of each."""

Family = Literal["explicit", "decision", "log-probability", "plain", "learned", "own"]
"""Source of a score: stated by the model, stated by a decision model, log-probabilities, a baseline without these,
training, or the user.
"""

FAMILIES: tuple[Family, ...] = ("explicit", "decision", "log-probability", "plain", "learned", "own")
CONTROL_FAMILIES: tuple[Family, ...] = ("explicit", "log-probability", "plain")
"""Families of the controls: cheap scores, all of which a learned method has to beat."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MethodResult:
    """One way to distinguish right answers from wrong ones, on the held-out answers."""

    name: str
    family: Family
    coverage: float
    """Share of answers with a score of this method, in [0, 1]; the others get a fallback."""
    auroc: Interval
    within_runs: Interval | None = None
    """AUROC over pairs of answers of one run (model, task, prompt variant). None if there is only one run, or if no run
    has right and wrong answers.
    """
    auprc: Interval
    ece: Interval
    """Expected calibration error of `probability`, over bins of equal mass."""
    stated: StatedCalibration | None = None
    """Calibration of the numbers as the model or the judge stated them, taken as probabilities that the answer is
    right; None if the method is not a stated number.
    """
    brier_skill: Interval
    aurc: Interval
    brier: Interval | None = None
    prr: Interval | None = None
    """Prediction rejection ratio: 1 is a perfect ranking, 0 a random one, below 0 worse."""
    right_at_80: Interval | None = None
    """Share of right answers among the 80 % of the answers with the highest scores."""
    error_fall: Interval | None = None
    """Relative fall of the error if only these 80 % are given; 0 is chance."""
    diff_stated: Interval | None = None
    """AUROC on equal terms minus that of verbalised confidence, paired; None for verbalised confidence itself."""
    diff_control: Interval | None = None
    """AUROC on equal terms minus that of the strongest single control, paired; None for that control itself."""
    controls: ControlComparison | None = None
    """AUROC against every control, corrected for their number; for methods that are learned, stated or the user's."""
    controls_within: ControlComparison | None = None
    """`controls` over pairs of answers of one run; None if there is only one run."""
    calibrated_control: str = ""
    """Name of a control, if the method is only that control after calibration: the two are not compared. Else empty."""
    probability: NDArray[np.floating]
    """Calibrated out-of-fold probability that the answer is right, (n,)."""
    ranking: NDArray[np.floating] | None = None
    """Score that orders the answers, if it is not the probability, (n,)."""
    reliability: tuple[ReliabilityBin, ...] = ()

    @property
    def auroc_on_equal_terms(self) -> Interval:
        """AUROC by which methods are compared: within runs if there are several runs, else over all answers.

        Some methods know the base rate of each run and others do not, so that AUROCs over all answers are not
        comparable.
        """
        return self.within_runs or self.auroc

    @property
    def controls_on_equal_terms(self) -> ControlComparison | None:
        """Comparison with every control, within runs if there are several runs, else over all answers."""
        return self.controls_within or self.controls

    @property
    def order(self) -> NDArray[np.floating]:
        """The scores that order the answers, shape (n,)."""
        return self.probability if self.ranking is None else self.ranking


@dataclass(frozen=True, slots=True)
class Finding:
    """A possible reason why the numbers mean less than they seem to."""

    name: str
    passed: bool
    detail: str
    severity: Severity = "weak"
    """How much a failure means."""
    method: str = ""
    """The method whose numbers the finding concerns. Empty if it concerns the answers, and so every method."""
    control: str = ""
    """The control that the method was held against; empty if the audit is about something else."""


@dataclass(frozen=True, slots=True)
class StageAccuracy:
    """Accuracy of the answers of one stage."""

    system: str
    variant: str
    stage: str
    """`final` is what the run returned."""
    accuracy: Interval
    gain: Interval | None
    """Difference from the first stage, paired by run; a run's answers of one stage are averaged. None for the first
    stage.
    """


@dataclass(frozen=True, slots=True)
class Agreement:
    """Outcomes of the runs in which the same critics flagged a concern. Table 9."""

    pattern: str
    """One of `PATTERNS`; `unreadable` if a critic's flag could not be read."""
    n: int
    accuracy: Interval | None
    """Accuracy of the returned answer; None if there is no run."""
    first_accuracy: Interval | None
    """Accuracy of A1's answer."""
    repaired: Interval | None
    """Share of A1's wrong answers that ended right; None if none was wrong."""
    broken: Interval | None
    """Share of A1's right answers that ended wrong; None if none was right."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Kinds of failure of wrong runs. Table 10."""

    counts: dict[str, int]
    """Number of runs of each of `FAILURES`."""
    evidence: float
    """Mean number of checked answers by the same models to the same item, over the runs counted as collapse or gap.
    With more answers, "never right" is surer. NaN if there is no such run.
    """

    @property
    def wrong(self) -> int:
        """Number of wrong runs."""
        return sum(self.counts.values())

    def share(self, kind: str) -> float:
        """Returns the share of one kind among the wrong runs; NaN if none is wrong."""
        return self.counts[kind] / self.wrong if self.wrong else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupling:
    """Whether monitoring detects wrong answers, and control fixes them, in one system and variant."""

    system: str
    variant: str
    monitor: str
    """The judge of the first answer: `stated difficulty`, `monitor flags`, `control flags`, `either flags`, ..."""
    n: int
    """Number of runs with a checked first answer that the monitor judged."""
    failure_auroc: Interval | None
    """AUROC of the monitor's judgement for a wrong first answer; None if all are right, or all wrong."""
    flagged_wrong: Interval | None
    """P(flagged | first answer wrong); None if this monitor flags nothing, or no answer is wrong."""
    flagged_right: Interval | None
    """P(flagged | first answer right): false alarms."""
    fixed_flagged: Interval | None
    """P(ends right | first answer wrong and flagged)."""
    fixed_unflagged: Interval | None
    """P(ends right | first answer wrong and not flagged)."""
    fixed_difference: Interval | None
    """`fixed_flagged` minus `fixed_unflagged`: above 0, control fixes what monitoring flags."""
    broken_flagged: Interval | None
    """P(ends wrong | first answer right and flagged)."""
    broken_unflagged: Interval | None
    """P(ends wrong | first answer right and not flagged)."""
    broken_difference: Interval | None
    """`broken_flagged` minus `broken_unflagged`: above 0, a false alarm harms."""


LayerPosition = tuple[int, str]
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
    """Mean and percentiles over answers at each normalised position. Arrays have shape (points,), in nats."""

    position: NDArray[np.float64]
    """Position in per cent of the answer: 0 is its first token, 100 its last."""
    mean: NDArray[np.float64]
    p10: NDArray[np.float64]
    p25: NDArray[np.float64]
    p75: NDArray[np.float64]
    p90: NDArray[np.float64]
    n: int
    """Number of answers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSweep:
    """One kind of probe over all layers. Each fold chooses by `training.linear_probe.near_best`, so its choice need not
    be the layer and position with the highest `selection_auroc`.
    """

    probe: str
    layers: tuple[int, ...]
    """0 is the embeddings' output, i the output of block i."""
    positions: tuple[str, ...]
    selection_auroc: NDArray[np.floating]
    """AUROC on selection data, averaged over the folds, (layers, positions)."""
    choices: tuple[LayerPosition, ...]
    """Layer and position that each fold chose, in the folds' order."""
    shipped: LayerPosition | None = None
    """Layer and position that the probe's checkpoint reads, chosen again from all groups; None without a checkpoint."""
    test_auroc: Interval
    """AUROC at the chosen layers and positions, on held-out answers."""

    @property
    def chosen(self) -> LayerPosition:
        """The layer and position that most folds chose; with a tie, the last in order."""
        return max(set(self.choices), key=lambda layer_position: (self.choices.count(layer_position), layer_position))

    @property
    def fold_counts(self) -> tuple[tuple[LayerPosition, int], ...]:
        """Each chosen layer and position with its number of folds, the most frequent first."""
        layer_positions = sorted(
            set(self.choices), key=lambda layer_position: (-self.choices.count(layer_position), layer_position)
        )
        return tuple((layer_position, self.choices.count(layer_position)) for layer_position in layer_positions)


@dataclass(frozen=True, slots=True)
class Trajectories:
    """Log-probabilities along right and along wrong answers."""

    correct: TrajectoryBands
    wrong: TrajectoryBands


@dataclass(frozen=True, slots=True)
class SeenMethod:
    """One method that reads only the first tokens."""

    name: str
    family: Family
    auroc: tuple[Interval, ...]
    """An interval for each entry of `SeenTokens.tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTokens:
    """How early right answers differ from wrong ones. All k use the same answers; a shorter answer is read
    to its end.
    """

    tokens: tuple[int, ...]
    """The values of k, ascending."""
    finished: tuple[float, ...]
    """Share of answers that have no more than k tokens, and are read whole."""
    methods: tuple[SeenMethod, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """How good methods become with more labels. All points are for the same test answers."""

    labels: tuple[int, ...]
    """Number of labels from which each fold learns, calibration included, ascending; the last is all of them."""
    methods: tuple[SeenMethod, ...]
    """An interval for each entry of `labels`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """The headline method on the answers of one model."""

    model: str
    parameters: float | None
    """Number of parameters that the model's name states, such as 0.5e9 for "0.5b"; None if it states none."""
    n: int
    accuracy: float
    auroc: Interval
    control: str
    """The single control that is strongest on these answers; empty if there is none."""
    diff_control: Interval | None
    """AUROC minus that of this control, paired."""
    diff_stated: Interval | None
    """AUROC minus that of stated confidence, paired; None if none was stated."""


PartKind = Literal["all", "task", "model", "task and model"]
"""Kind of a part of the answers on which explicit and implicit signals are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalResult:
    """Explicit against implicit on one part of the answers: on all, on one task, on one model or on one of both.

    Every AUROC is over pairs of answers of one run if the part holds several runs.
    """

    by: PartKind
    name: str
    """Name of the task or model, or both; `all answers` for the whole."""
    n: int
    accuracy: float
    explicit: Interval
    """AUROC of what the model states."""
    implicit: Interval
    """AUROC of what is learned from its signals."""
    difference: Interval
    """`implicit` minus `explicit`, paired."""
    p_holm: float
    """P-value of no difference, after Holm's correction over the parts of this kind."""
    joined: Interval | None = None
    """AUROC of both joined; None without a method that joins them."""
    joined_gain: Interval | None = None
    """`joined` minus the higher of the two on this part, paired."""

    @property
    def ahead(self) -> Literal["implicit", "explicit", ""]:
        """The signal that is shown to be better after the correction; empty if neither is."""
        if not self.p_holm <= 1 - self.difference.level or self.difference.low <= 0 <= self.difference.high:
            return ""
        return "implicit" if self.difference.estimate > 0 else "explicit"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalComparison:
    """Explicit against implicit, with the names of the methods that stand for them."""

    explicit: str
    implicit: str
    """The learned method without stated numbers that most folds chose."""
    joined: str
    """The method that joins these two and nothing else; empty if none does."""
    parts: tuple[SignalResult, ...]
    """All answers, then each task and each model if there are several, and each model on each task if both are."""
    left_out: tuple[str, ...] = ()
    """Tasks and models without right or without wrong answers."""
    runs: int = 1
    """Number of runs (model, task, way of asking)."""

    @property
    def whole(self) -> SignalResult:
        """The comparison on all answers."""
        return self.parts[0]


@dataclass(frozen=True, slots=True)
class Stratum:
    """Answers of one difficulty."""

    name: str
    n: int
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinStrata:
    """AUROC of one method at equal difficulty of the questions."""

    method: str
    auroc: Interval
    """AUROC over pairs of a right and a wrong answer of one stratum. It is 0.5 if the method knows only the
    difficulty.
    """
    diff_stated: Interval | None
    """AUROC minus that of stated confidence, paired; None for stated confidence itself, or if none was stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """The comparison at equal difficulty. A method's AUROC over all answers is in `MethodResult.auroc`."""

    by: str
    """Source of the strata: `dimension x level`, or an estimate whose quantiles they are."""
    strata: tuple[Stratum, ...]
    methods: tuple[WithinStrata, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overconfidence:
    """Mean confidence against accuracy of the answers of one level."""

    method: str
    stated: bool
    """Whether the confidence is the model's own number, as stated; otherwise it is the calibrated probability."""
    level: str
    """`all`, a level of the items, or a stratum of difficulty."""
    confidence: float
    accuracy: float
    gap: Interval
    """Mean confidence minus accuracy, over the answers with a confidence; above 0 is over-confident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Metacognitive efficiency of one method as the confidence, on a two-choice task."""

    method: str
    type2_auroc: Interval
    """AUROC of the confidence, in `bins` grades, for being right."""
    meta_d: Interval | None
    """meta-d': the d' that an ideal observer with this confidence would have; None if refused."""
    m_ratio: Interval | None
    """meta-d' / d'. At 1 the confidence knows as much as the answer, above 1 it knows more. None if refused."""
    bins: int
    """Grades of confidence, of equal mass as far as ties allow."""
    refused: str = ""
    """Why meta-d' is None; empty if it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoChoice:
    """Sensitivity of the answers to two-choice items, and of the confidence in these answers."""

    choices: tuple[str, str]
    """The two choices. In the terms of signal detection, the signal is that the first choice is right. The response is
    that the first choice was given.
    """
    n: int
    """Number of answers that state one of the two choices."""
    unreadable: int
    """Number of answers that state neither choice; they are left out."""
    d_prime: Interval
    """Sensitivity of the answers themselves; 0 is guessing."""
    criterion: Interval
    """Above 0: the first choice is given less often than by an unbiased observer."""
    methods: tuple[Efficiency, ...]


@explain_fields
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Comparison:
    """Everything that a report shows. Sections without content are left out, except the method table."""

    title: str
    """Heading of the report."""
    provenance: Mapping[str, str]
    """Model, revision, dtype, task, items, answers, seeds, versions, command, date; shown in this order."""
    y: NDArray[np.integer]
    """1 if the answer is right, else 0; (n,)."""
    methods: tuple[MethodResult, ...]
    """Every method with its metrics, in the order of the tables."""
    best_baseline: str = ""
    """Name of the row of controls chosen in advance, in each fold on its selection data; empty if there is none."""
    baselines: Mapping[str, int] = field(default_factory=dict)
    """Maps each control that a fold chose for `best_baseline` to its number of folds, the most frequent first."""
    chosen: Mapping[str, int] = field(default_factory=dict)
    """Maps each learned method that a fold chose on its learning answers to its number of folds."""
    runs: str = "RUNS"
    """The stores of the answers, as a command line names them."""
    exported: str = ""
    """Sentences that say what writes the checkpoint of the recommended method; empty if there is none."""
    accuracy: tuple[AccuracyRow, ...] = ()
    """Share of right answers by dimension and level."""
    sweeps: tuple[LayerSweep, ...] = ()
    """AUROC of each probe at every layer and position."""
    trajectories: Trajectories | None = None
    """Log-probabilities along right and along wrong answers."""
    difficulty: Difficulty | None = None
    """The comparison at equal difficulty; None if the items have none."""
    overconfidence: tuple[Overconfidence, ...] = ()
    """Mean confidence against accuracy, by level."""
    two_choice: TwoChoice | None = None
    """Metacognitive efficiency on two-choice tasks; None for other tasks."""
    two_choice_refused: str = ""
    """Why there is no metacognitive efficiency; empty if there is."""
    coupling: tuple[Coupling, ...] = ()
    """Whether control repairs what monitoring flags, by system."""
    agreement: tuple[Agreement, ...] = ()
    """MetaCrit: outcomes by which critics flagged a concern."""
    failures: Failures | None = None
    """MetaCrit: how wrong runs went wrong."""
    headline: str = ""
    """Name of the learned method that the folds chose; empty for the last of the learned ones."""
    seen: SeenTokens | None = None
    """How early right and wrong answers differ."""
    learning: LearningCurve | None = None
    """AUROC by the number of labels; None if it was not asked for."""
    signals: SignalComparison | None = None
    """Explicit against implicit on equal terms; None without a stated number or without a learned method."""
    by_model: tuple[ModelResult, ...] = ()
    """The headline method on each model's answers, the smallest model first; empty for one model."""
    stages: tuple[StageAccuracy, ...] = ()
    """Share of right answers after each stage of a system."""
    audits: tuple[Finding, ...] = ()
    """Results of the audits: possible reasons why the numbers mean less than they seem to."""
    notes: tuple[str, ...] = ()
    """Limits of the data and the methods."""

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
        """The single controls, the strongest on these answers first, on equal terms."""
        singles = (m for m in self.methods if m.family in CONTROL_FAMILIES and m.name != self.best_baseline)
        return tuple(sorted(singles, key=lambda method: -method.auroc_on_equal_terms.estimate))

    @property
    def base_rate(self) -> float:
        """Share of right answers."""
        return float(np.mean(self.y))

    @property
    def variants(self) -> tuple[str, ...]:
        """Columns of the accuracy table, in order of appearance."""
        return tuple(dict.fromkeys(variant for row in self.accuracy for variant in row.by_variant))

    def __repr__(self) -> str:
        headlines = [method for method in self.methods if method.name == self.headline]
        best = "".join(f", {method.name} AUROC {format_interval(method.auroc, 3)}" for method in headlines)
        return f"Comparison({len(self.y)} answers, {len(self.methods)} methods{best})"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks: every method's AUROC and its paired differences, with 95 % intervals."""
        rows = []
        for method in self.methods:
            intervals = (method.auroc, method.diff_stated, method.diff_control)
            interval_texts = ["-" if interval is None else format_interval(interval, 3) for interval in intervals]
            rows.append((method.name, method.family, f"{method.coverage:.0%}", *interval_texts))
        head = ("method", "kind", "said", "AUROC", "minus stated confidence", "minus strongest control")
        return html_table(f"Comparison on {len(self.y)} answers", rows, head=head)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything but the values of single answers, as JSON's own types. NaN is None."""

        def to_json_fields(value: Any, left_out: Sequence[str]) -> dict[str, Any]:
            return {
                field.name: plain(getattr(value, field.name)) for field in fields(value) if field.name not in left_out
            }

        return {
            "answers": len(self.y),
            "base_rate": plain(self.y.mean()),
            "methods": {method.name: to_json_fields(method, PER_ANSWER_FIELDS) for method in self.methods},
            **to_json_fields(self, (*PER_ANSWER_FIELDS, "methods")),
        }

    def to_pandas(self) -> Any:
        """Returns a pandas DataFrame with a row a method: kind, coverage, and each metric with `_low` and `_high`.

        Raises `MissingExtra` if pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise MissingExtra("pandas is needed here and not installed: pip install pandas") from error
        rows = []
        for method in self.methods:
            row = {"method": method.name, "family": method.family, "coverage": method.coverage}
            for name in INTERVAL_FIELDS:
                interval = getattr(method, name)
                numbers = (None, None, None) if interval is None else (interval.estimate, interval.low, interval.high)
                row |= dict(zip((name, f"{name}_low", f"{name}_high"), numbers, strict=True))
            rows.append(row)
        return pandas.DataFrame(rows).set_index("method")


def plain(value: Any) -> Any:
    """Returns dataclasses and arrays as JSON's own types; not a number is null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        named_entries = (
            (" -> ".join(map(str, key)) if isinstance(key, tuple) else str(key), entry) for key, entry in value.items()
        )
        return {name: plain(entry) for name, entry in named_entries}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
