"""The recipe of the quality predictor: a calibrated head for each target on log-probabilities, from a study of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.checkpoints import Checkpoint, FlagOptions, Generator
from metaprobe.checkpoints.flagging import AGREEMENT, FLAGGED_BY, USUAL_FLAGS, promise_refused
from metaprobe.checkpoints.rendered_table import format_interval
from metaprobe.eval.answer_table import AnswerTable, answer_table
from metaprobe.eval.audits import beats_controls
from metaprobe.eval.compare import control_names
from metaprobe.eval.controls import REVERSED
from metaprobe.eval.metrics.bootstrap import Interval, against_controls, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import brier
from metaprobe.eval.metrics.ranked import Floats, auprc, quadratic_weighted_kappa, spearman
from metaprobe.eval.results import Finding
from metaprobe.probes.decision_predictor import JUDGES, is_predicate, question_of
from metaprobe.probes.features import ALONE, DECIDED, baseline_scores, schema
from metaprobe.probes.quality import FEATURES_INPUT, FLAGGED_HEADS, MAIN_HEADS, QUALITY_KIND, QualityPredictor
from metaprobe.probes.training_runs import BASE_RATES_KEY
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Run
from metaprobe.training.agreement import agreement_pairs, with_agreement_labels
from metaprobe.training.base_rates import scales_between
from metaprobe.training.calibrators import Calibrator, Platt, anchored, fit_platt, mean_error
from metaprobe.training.evidence import (
    CRITICAL,
    INVERTED,
    LABEL_LEVELS,
    QUALITY,
    SCALES,
    Evidence,
    evidence_of,
    invert,
    paired,
    read_decisions_alike,
    runs_of,
)
from metaprobe.training.export import Export, GraphBuilder, StoredFlags, write_checkpoint, writes
from metaprobe.training.folds import Roles, final_roles, outer_folds
from metaprobe.training.ladder import (
    ALL_TERMS,
    DRAWN_TERMS,
    USUAL_BAR,
    WHOLE,
    WITH_TREES,
    Bar,
    Ladder,
    LadderColumns,
    LadderRows,
    LadderStep,
    fit_ladder,
    scores_to_calibrate,
)
from metaprobe.training.methods import DECISION_LADDER, LogprobLadder, agreement_ladder, control_methods
from metaprobe.training.stored_runs import load_runs
from metaprobe.training.study import RANK_RESAMPLES, Study, crossfit, decision_methods, measure_held_out, study_of
from metaprobe.training.thresholds import (
    ScoredAnswers,
    critical_thresholds,
    flagging_of,
    flagging_without_labels,
    operating_points,
)
from metaprobe.training.training_options import OnStep, QualityOptions, WrongOptions, question_texts, quiet
from metaprobe.training.trees import Trees, fit_trees, on_cluster

# The fitted heads: a probability, a level from 1 to 3, and Q, each as NumPy and as ONNX nodes.
#
# A head is named by its label. For `critical` the label 1 means a bad answer. Its model learns the opposite, so that
# higher raw scores mean better answers in every head, and the probability is inverted at the end.


@dataclass(frozen=True, slots=True, eq=False)
class Probability:
    """A calibrated score."""

    scorer: Ladder | Trees
    calibrator: Calibrator
    inverted: bool = False
    """Whether the head is one minus what was learned."""
    kind: ClassVar[str] = "binary"

    @property
    def calibrations(self) -> tuple[str, ...]:
        return (self.calibrator.name,)

    def learned(self, X: NDArray[np.float32]) -> Floats:
        """Returns P(good) (n,) for features X (n, d) of answers, in a run of average base rate."""
        return self.calibrator.probability(self.scorer.score(X))

    def value(self, X: NDArray[np.float32]) -> Floats:
        return 1 - self.learned(X) if self.inverted else self.learned(X)

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        score = self.scorer.add_to(graph, features, width)
        if not self.inverted:
            return self.calibrator.add_to(graph, score, output)
        return graph.add("Sub", graph.number(1.0), self.calibrator.add_to(graph, score), name=output)


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Expected level of an ordinal label: the lowest level, plus P(y >= k) of every level k above it.

    There is one classifier for each level, as Frank and Hall (2001, doi:10.1007/3-540-44795-4_13) split an ordinal
    label. Here each classifier is calibrated, and the expected level is returned instead of the likeliest. Calibrated
    probabilities may cross: P(y >= 3) > P(y >= 2). They need no correction, because replacing both by their mean would
    not change the sum, which is the expected level.
    """

    base: float
    """Lowest level, plus the shares of the levels for which nothing could be fitted."""
    level_heads: tuple["RunProbability", ...]
    levels: tuple[int, ...] = ()
    """Level k of each head in `level_heads`, which gives P(y >= k)."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """Maps a level for which nothing could be fitted to the share of the training rows that reach the level."""
    kind: ClassVar[str] = "ordinal"

    @property
    def calibrations(self) -> tuple[str, ...]:
        return tuple(level_head.calibrator.name for level_head in self.level_heads)

    def value(self, X: NDArray[np.float32]) -> Floats:
        return np.asarray(self.base + sum(level_head.learned(X) for level_head in self.level_heads), dtype=np.float64)

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        output_names = [QualityPredictor.level_output(output, level) for level in self.levels] if output else []
        names = output_names or [""] * len(self.level_heads)
        parts = [
            level_head.add_to(graph, features, width, name)
            for level_head, name in zip(self.level_heads, names, strict=True)
        ]
        for level, share in self.shares.items() if output else ():
            zero = graph.add("Mul", parts[0], graph.number(0.0))
            graph.add("Add", zero, graph.number(share), name=QualityPredictor.level_output(output, level))
        return graph.add("Sum", graph.number([[self.base]]), *parts, name=output)

    def at_least(self, X: NDArray[np.float32]) -> dict[int, Floats]:
        """Returns the probability (n,) of at least each level above the lowest."""
        learned_shares = {
            level: level_head.learned(X) for level, level_head in zip(self.levels, self.level_heads, strict=True)
        }
        return learned_shares | {level: np.full(len(X), share) for level, share in self.shares.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Amount:
    """A regression for Q: the trees' value, corrected by a line and clipped to the scale.

    Q could also be composed of the other heads: (1 - P(critical)) times the sum of the levels. That orders unseen
    answers equally well but has a larger error, because failures and levels are correlated. It also needs every part to
    be learnable, including the critical flag, which some judges never raise.
    """

    trees: Trees
    slope: float
    intercept: float
    scale: tuple[int, int]
    kind: ClassVar[str] = "regression"
    calibrations: ClassVar[tuple[str, ...]] = ("line",)

    def value(self, X: NDArray[np.float32]) -> Floats:
        return np.clip(self.slope * self.trees.score(X) + self.intercept, *self.scale)

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        scaled = graph.add("Mul", self.trees.add_to(graph, features, width), graph.number(self.slope))
        low, high = self.scale
        floored = graph.add("Max", graph.add("Add", scaled, graph.number(self.intercept)), graph.number(low))
        return graph.add("Min", floored, graph.number(high), name=output)


@dataclass(frozen=True, slots=True, eq=False)
class RunProbability(Probability):
    """A probability by the ladder, which knows the base rates of the runs that it was fitted on."""

    scorer: Ladder
    calibrator: Platt

    @property
    def shifts(self) -> dict[str, float]:
        """Maps a run to the number that is added to the log-odds of the head's value."""
        sign = -1.0 if self.inverted else 1.0
        return {run: sign * self.calibrator.slope * offset for run, offset in self.scorer.rates.runs.items()}

    @property
    def between(self) -> float:
        """Standard deviation of the runs' base rates around their mean, in log-odds."""
        return abs(self.calibrator.slope) * self.scorer.rates.between


FittedHead = Probability | Level | Amount
"""A fitted head. It maps features (n, d) to one value (n,) by `value`; in a graph the output is (n, 1), with the name
`output` if one is given.
"""


def fit_probability(
    sample: LadderRows,
    roles: Roles,
    *,
    inverted: bool = False,
    climb: bool = True,
    only: str = "",
    bar: Bar = USUAL_BAR,
    seed: int = 0,
) -> RunProbability:
    """Fits the ladder as far as the data support it (`fit_ladder`), and Platt's map on the scores of all seen rows.

    Each score for the map comes from a ladder that saw no answer of the row's group (`scores_to_calibrate`). A ladder
    without trees has so few weights that scores of its own rows are spread like those of new answers. The intercept is
    then chosen so that the mean probability of its own rows is the share of good answers.

    Only Platt's map is used, because with it a base rate is still an amount added to the log-odds. It must rise,
    because the ladder has already decided the direction of its number.

    Args:
        sample: the labelled answers.
        roles: rows of each role.
        inverted: whether the label 1 means a bad answer.
        climb: as in `fit_ladder`. If false, for new runs, the map is fitted on scores without base rates.
        only: as in `fit_ladder`.
        bar: as in `fit_ladder`.
        seed: seed of folds and fits.
    """
    ladder = fit_ladder(sample, roles, climb=climb, only=only, bar=bar, seed=seed)
    rows, scores = scores_to_calibrate(ladder, sample, roles, rates=climb, seed=seed)
    platt = fit_platt(scores, sample.y[rows], rising=True)
    if ladder.trees is None:
        X = sample.X[rows]
        exported = ladder.score_of(X, sample.runs[rows]) if climb else ladder.score(X)
        platt = anchored(platt, exported, sample.y[rows])
    return RunProbability(ladder, platt, inverted)


def trees_graph(
    heads: Mapping[str, FittedHead | tuple[Ladder | Trees, Calibrator]], *, width: int, input_name: str = "features"
) -> bytes:
    """Returns the graph of fitted heads: float32 features (n, width) in, one value (n, 1) for each head out.

    After the heads come, for each head with levels, the probabilities of reaching each level (`outputs_of`). NaN
    features are treated as LightGBM treats them.

    Args:
        heads: maps a name to a head, or to a pair of a model that gives log-odds and its calibrator.
        width: number of features.
        input_name: name of the graph's input.
    """
    graph, outputs = GraphBuilder(), list(heads)
    for name, head in heads.items():
        fitted = Probability(*head) if isinstance(head, tuple) else head
        fitted.add_to(graph, input_name, width, name)
        if isinstance(fitted, Level):
            outputs += [QualityPredictor.level_output(name, level) for level in (*fitted.levels, *fitted.shares)]
    return graph.model({input_name: width}, outputs)


def outputs_of(heads: Mapping[str, FittedHead], X: NDArray[np.float32]) -> dict[str, Floats]:
    """Returns the outputs (n,) by name that the graph of these heads computes from features (n, d)."""
    values = {name: head.value(X) for name, head in heads.items()}
    for name, head in heads.items():
        if isinstance(head, Level):
            values |= {QualityPredictor.level_output(name, level): p for level, p in head.at_least(X).items()}
    return values


# Labelled answers of each head.

MIN_GRADE_GROUPS = 10
"""Fewest groups on each side of a cut between two grades, as for a binary label."""


@dataclass(frozen=True, slots=True, eq=False)
class Graded:
    """Answers with a label on a scale."""

    target: str
    evidence: Evidence
    """The evidence. Its `y` says whether a grade is above the middle, so that folds can be balanced by it."""
    grades: NDArray[np.float64]
    """Grade of each answer (n,), on the scale in `SCALES`."""
    learnable_levels: tuple[int, ...] = ()
    """Levels k for which `grade >= k` can be learned."""

    @property
    def strata(self) -> NDArray[np.int64]:
        """The stratum (n,) of each answer, by which folds are balanced: the number of learnable levels that its
        grade reaches.

        A stratum of few answers is joined with the stratum above.
        """
        if not self.learnable_levels:
            return self.evidence.table.y
        passed: NDArray[np.int64] = np.sum(
            [self.grades >= level for level in self.learnable_levels], axis=0, dtype=np.int64
        )
        counts = np.bincount(passed, minlength=len(self.learnable_levels) + 1)
        for stratum in range(len(self.learnable_levels)):
            if counts[stratum] < MIN_GRADE_GROUPS:
                counts[stratum + 1] += counts[stratum]
                passed[passed == stratum] = stratum + 1
        return passed


def load_heads(
    stores: Sequence[str | Path],
    targets: Sequence[str],
    *,
    stage: str | None = None,
    agent: str | None = None,
    source: str | None = None,
    decisions: bool = False,
    same: str | None = None,
) -> dict[str, Evidence | Graded]:
    """Returns for each head the answers that have its label, with features. Runs and features are read once.

    Groups that ask the same question become one group (`training.folds`). The labels of a head in `INVERTED` are
    inverted.

    Args:
        stores: run stores, or files of lines.
        targets: name of the label of each head.
        stage: only calls of this stage.
        agent: only calls of this agent.
        source: only labels of this source, in full ("judge:MODEL") or up to the colon ("judge"); by default the last
            label of each call.
        decisions: whether the features are numbers of decision models (`read_decisions_alike`).
        same: the reading by which answers agree (`agreement_pairs`), for the target `agreement` alone.

    Raises `RecordError` if a head has no labels, if a label is not on its scale, and if too few groups have another
    grade.
    """
    # The runs with the labels of the source.
    chosen_runs = runs = load_runs(stores)  # evidence has the labels of all sources: an audit compares them
    if source is not None:
        label_sources = sorted({label.source for run in runs for label in run.labels})
        wanted_sources = {name for name in label_sources if source in (name, name.partition(":")[0])}
        if not wanted_sources:
            raise RecordError(f"no label of source {source!r}; sources found: {', '.join(label_sources) or 'none'}")
        chosen_runs = [
            replace(run, labels=tuple(run_label for run_label in run.labels if run_label.source in wanted_sources))
            for run in runs
        ]
    # A table of each head.
    tables: dict[str, AnswerTable] = {}
    grades_of_target: dict[str, Mapping[str, float]] = {}
    pairs = agreement_pairs(runs, stage=stage, agent=agent, same=same) if AGREEMENT in targets else None
    for target in dict.fromkeys(targets):
        labelled_runs = chosen_runs
        if target in SCALES:
            # A table holds labels of 0 and 1 only: each graded answer gets 1.
            names = ("q", QUALITY) if target == QUALITY else (target,)  # judges write `q`
            grades_of_target[target] = _grades(chosen_runs, target, names)
            labelled_runs = []
            for run in chosen_runs:
                labels = (
                    replace(run_label, name=target, value=1.0) if run_label.name in names else run_label
                    for run_label in run.labels
                )
                labelled_runs.append(replace(run, labels=tuple(labels)))
        elif target == AGREEMENT and pairs is not None:
            labelled_runs = with_agreement_labels(runs, pairs)
        tables[target] = answer_table(labelled_runs, target=target, stage=stage, agent=agent, bare=decisions)
    # The evidence of each head.
    heads: dict[str, Evidence | Graded] = {}
    evidence_of_target = evidence_of(runs, tables)
    for target, evidence in (read_decisions_alike(evidence_of_target) if decisions else evidence_of_target).items():
        if target in INVERTED:
            evidence = invert(evidence)
        if target == AGREEMENT and pairs is not None:
            evidence = paired(evidence, pairs)
        if target in grades_of_target:
            grades = [grades_of_target[target][call_id] for call_id in evidence.table.call_ids.tolist()]
            heads[target] = collect_graded(evidence, grades, target)
        else:
            heads[target] = evidence
    return heads


def _grades(runs: Sequence[Run], target: str, names: Sequence[str]) -> dict[str, float]:
    """Maps the id of a call to its grade, by the labels of these names.

    Raises `RecordError` for a grade that is not on the scale.
    """
    low, high = SCALES[target]
    grades = {label.call_id: label.value for run in runs for label in run.labels if label.name in names}
    for call_id, value in grades.items():
        if not low <= value <= high or (target in LABEL_LEVELS and value != int(value)):
            kind = "a whole number" if target in LABEL_LEVELS else "a number"
            raise RecordError(f"call {call_id}: label {target} is {value:g}; expected {kind} from {low} to {high}")
    return grades


def collect_graded(evidence: Evidence, grades: ArrayLike, target: str) -> Graded:
    """Returns the answers with their grades (n,), labelled by whether the grade is at least the most even cut.

    Raises `RecordError` if for every cut one side has too few groups.
    """
    groups, (low, high) = evidence.table.groups, SCALES[target]
    grades = np.asarray(grades, dtype=np.float64)
    cuts = range(low + 1, high + 1)
    groups_of_cut = {cut: [len(np.unique(groups[side])) for side in (grades >= cut, grades < cut)] for cut in cuts}
    middle_cut = max(cuts, key=lambda cut: min(groups_of_cut[cut]))
    if min(groups_of_cut[middle_cut]) < MIN_GRADE_GROUPS:
        above, below = groups_of_cut[middle_cut]
        raise RecordError(
            f"label {target}: {above} groups have at least {middle_cut} and {below} less, and no other cut is more "
            f"even; {MIN_GRADE_GROUPS} of either are needed: there is nothing to distinguish"
        )
    evidence = replace(evidence, table=replace(evidence.table, y=(grades >= middle_cut).astype(np.int64)))
    if target not in LABEL_LEVELS:
        return Graded(target, evidence, grades)
    return Graded(target, evidence, grades, tuple(cut for cut in cuts if min(groups_of_cut[cut]) >= MIN_GRADE_GROUPS))


# Held-out values of the heads that are no probability, compared with controls.

NOT_AUDITED = ("refits on shuffled labels, near duplicates, agreement of sources: made for binary heads only",)


WORDS_OF_STEP = {
    "scaled": "the total log-probability over the root of the length",
    "lowest3": "the mean of the three lowest log-probabilities",
    "mean": "the mean log-probability",
    "min": "the lowest log-probability",
    "total": "the total log-probability",
    "first": "the first log-probability",
    "length": "the number of tokens",
    ALL_TERMS: "all seven terms",
    DRAWN_TERMS: "all seven terms, drawn to the total log-probability over the root of the length",
    WITH_TREES: "terms and trees",
}
"""Maps a step of the ladder to its name in words."""
WORDS_OF_DECISION_STEP = {ALL_TERMS: "all numbers of the decisions"}
"""Maps a step of the ladder on decisions to its name in words. A step that is not listed is the number of one question.
"""


@dataclass(frozen=True, slots=True, eq=False)
class GradedStudy:
    """Held-out values of a head on a scale, and of its controls."""

    data: Graded
    values: Floats
    """The head's value for each answer (n,), by trees and calibrators that saw no answer of its group."""
    controls: Mapping[str, Floats]
    """Maps the name of a control to its held-out scores (n,). Controls learn whether a grade is above the middle."""
    seed: int

    @property
    def evidence(self) -> Evidence:
        return self.data.evidence


def study_grades(data: Graded, *, folds: int = 5, seed: int = 0, on_step: OnStep = quiet) -> GradedStudy:
    """Fits and calibrates the head in every outer fold, by group. Raises `RecordError` for too few groups."""
    X, groups = data.evidence.features, data.evidence.table.groups.tolist()
    values = np.full(len(X), np.nan)
    for fold_index, roles in enumerate(outer_folds(groups, data.strata, folds=folds, seed=seed)):
        on_step(f"fold {fold_index + 1} of {folds}")
        values[roles.test] = fit_graded(data, roles, seed).value(X[roles.test])
    on_step("controls")
    decisions = decision_methods(data.evidence) if data.evidence.schema == DECIDED else []
    fits = crossfit(data.evidence, [*decisions, *control_methods(data.evidence)], folds=folds, seed=seed)
    names = (*control_names(fits.methods), *(method.name for method in decisions))
    return GradedStudy(data, values, {name: fits[name].ranking for name in names}, seed)


def fit_graded(data: Graded, roles: Roles, seed: int) -> Level | Amount:
    """Returns the head, fitted in these roles.

    A `Level` has a classifier for each level that can be learned. For any other level, the share of the seen rows that
    reach the level is used.
    An amount has a line by least squares on the calibration rows, with a slope of at least 0.
    """
    evidence, grades, (low, high) = data.evidence, data.grades, SCALES[data.target]
    if data.target not in LABEL_LEVELS:
        X = evidence.features
        trees = fit_trees(X, grades, roles, names=evidence.feature_names, objective="regression", seed=seed)
        tree_values, truth = trees.score(X[roles.calibration]), grades[roles.calibration]
        variance = float(tree_values.var())
        slope = (
            max(float(np.mean((tree_values - tree_values.mean()) * (truth - truth.mean()))) / variance, 0.0)
            if variance
            else 0.0
        )
        return Amount(trees, slope, float(truth.mean() - slope * tree_values.mean()), (low, high))
    samples = [evidence.sample((grades >= level).astype(np.int64)) for level in data.learnable_levels]
    level_heads = [fit_probability(sample, roles, seed=seed) for sample in samples]
    unlearned_levels = [level for level in range(low + 1, high + 1) if level not in data.learnable_levels]
    shares = {level: float((grades[roles.seen] >= level).mean()) for level in unlearned_levels}
    return Level(low + sum(shares.values()), tuple(level_heads), data.learnable_levels, shares)


def measure_grades(study: GradedStudy, *, seed: int = 0) -> tuple[dict[str, Interval], list[Finding]]:
    """Returns Spearman, quadratic weighted kappa of the rounded value and mean absolute error, with their audits.

    Two gains are returned too. The first is that of the rank correlation over the mean log-probability, if answers have
    one. The second is the error of the best constant minus the head's. That constant is the median of these same
    answers, which is more than a real constant could know. The audits say whether the values order answers better than
    each control.
    """
    table, truth, values = study.evidence.table, study.data.grades, study.values
    weights = cluster_weights(table.groups.tolist(), RANK_RESAMPLES, seed)
    rounded = np.clip(np.rint(values), *SCALES[study.data.target])
    constant, mae = np.full(len(truth), np.median(truth)), partial(mean_error, np.abs)
    figures = {
        "spearman": interval(spearman, truth, values, weights),
        "quadratic_weighted_kappa": interval(quadratic_weighted_kappa, truth, rounded, weights),
        "mae": interval(mae, truth, values, weights),
    }
    if table.measured:
        mean = baseline_scores(list(table.logprobs))["mean_logprob"]
        name = "spearman_gain_over_mean_log_probability"
        figures[name] = paired_difference(spearman, truth, values, mean, weights)
    audits = []
    if study.controls:
        controls = against_controls(truth, values, study.controls, weights, metric=spearman)
        figures["spearman_gain_over_strongest_control"] = controls.strongest.difference
        audits = beats_controls(controls, name=study.data.target, metric="Spearman", chance=0.0)
    figures["mae_of_the_best_constant_minus_mae"] = paired_difference(mae, truth, constant, values, weights)
    return figures, audits


@writes(QUALITY_KIND, "lightgbm", "sklearn", "onnxmltools")
def train_quality(stores: Sequence[str | Path], options: QualityOptions) -> Checkpoint:
    """Returns the predictor's checkpoint, fitted on the labelled answers of these stores.

    Raises `RecordError` if data or options do not suffice, `MissingExtra` without the extra `fit`, and
    `CheckpointExists` if `out` holds something else.
    """
    if options.new_tasks and (graded := sorted(set(options.targets) & set(SCALES))):
        raise WrongOptions(f"new_tasks makes predictors of labels that are 0 or 1, not of {', '.join(graded)}")
    if options.flags and not any(name in FLAGGED_HEADS and name not in SCALES for name in options.targets):
        raise WrongOptions(
            f"{next(iter(options.flags))} sets the threshold of a score that is the probability of being right, or of "
            f"being said again; the targets are {', '.join(options.targets)}: add the target correct or agreement, or "
            "leave the option out"
        )
    if options.targets == (AGREEMENT,):
        if refused := promise_refused(options):
            raise WrongOptions(refused)
        if options.label_source is not None:
            raise WrongOptions("label_source chooses among labels, and the target agreement reads none: leave it out")
        if options.reads == "decisions":
            raise WrongOptions("the target agreement is learned from log-probabilities: leave out reads=decisions")
    with on_cluster(options.dask):
        studies = head_studies(stores, options)
        options.on_step("audit and export")
        command = options.recorded("train_quality")
        questions = question_texts(options.questions, *options.targets)
        writing_options: dict[str, Any] = {"flags": options.as_flags(), "questions": questions}
        return write_quality(options.out, studies, command=command, **writing_options)


def head_studies(stores: Sequence[str | Path], options: QualityOptions) -> dict[str, Study | GradedStudy]:
    """Returns a study of each head that the targets need, from runs that are read once; for `write_quality`.

    A head is learned from the answers that have its label.
    """
    studies: dict[str, Study | GradedStudy] = {}
    selection = {"stage": options.stage, "agent": options.agent, "source": options.label_source}
    decisions = options.reads == "decisions"
    heads = load_heads(stores, options.targets, **selection, decisions=decisions, same=options.same)
    for head_index, (target, data) in enumerate(heads.items(), 1):
        head = f"head {head_index} of {len(heads)}, {target}"

        def report_step(what: str, head: str = head) -> None:
            options.on_step(f"{head}: {what}")

        evidence = data.evidence if isinstance(data, Graded) else data
        if evidence.compared:
            options.on_line(f"{target}: {evidence.compared}")
        for note in filter(None, (evidence.regrouped, evidence.without_decisions)):
            report_step(note)
        if isinstance(data, Graded):
            studies[target] = study_grades(data, folds=options.folds, seed=options.seed, on_step=report_step)
        else:
            ladder = DECISION_LADDER if decisions else LogprobLadder(options.new_tasks)
            if target == AGREEMENT and not options.new_tasks:
                ladder = agreement_ladder(len(set(evidence.table.call_ids.tolist())))
            studies[target] = study_of(data, folds=options.folds, seed=options.seed, ladder=ladder, on_step=report_step)
    return studies


def write_quality(
    path: str | Path,
    studies: Mapping[str, Study | GradedStudy],
    *,
    command: str,
    flags: FlagOptions = USUAL_FLAGS,
    questions: Mapping[str, Mapping[str, Sequence[str]]] = MappingProxyType({}),
) -> Checkpoint:
    """Fits one calibrated head for each target on all groups, writes them in one graph, and returns the checkpoint.

    The checkpoint does not say whether an answer is like the training data: on models left out, ranges and densities of
    the features pointed the wrong way (docs/research/travel.md).

    Args:
        path: folder of the checkpoint.
        studies: maps a target to its study. The study of `critical` must have inverted labels, as from `head_studies`.
        command: command that made the checkpoint.
        flags: which answers the stored threshold flags.
        questions: the contract's questions, from `question_texts`.
    """
    # The heads.
    heads = _Heads(flags, has_several_heads=len(studies) > 1, has_score_head=bool(set(MAIN_HEADS) & set(studies)))
    for target, study in studies.items():
        if isinstance(study, GradedStudy):
            heads.add_graded(target, study)
        else:
            heads.add_probability(target, study)
    # The features that the heads read, and the graph.
    evidence = max((study.evidence for study in studies.values()), key=lambda evidence: len(evidence.table))
    reads_decisions = evidence.schema == DECIDED
    if reads_decisions:
        columns_read = heads.narrow(len(evidence.feature_names))
        schema_name, feature_names = DECIDED, tuple(evidence.feature_names[column] for column in columns_read)
        X = evidence.features[:, columns_read]
    else:
        feature_schema = schema(evidence.schema if heads.grown else ALONE)
        schema_name, feature_names = feature_schema.name, feature_schema.names
        X = evidence.features[:, len(evidence.feature_names) - len(feature_names) :]
    graph = trees_graph(heads.fitted, width=X.shape[1], input_name=FEATURES_INPUT)
    names = list(heads.fitted)
    origin = evidence.origin(next(iter(studies.values())).seed, command)
    # The models of all heads' answers; None if a model has no name, or if modes differ.
    generator, *others = {study.evidence.generator for study in studies.values()}
    named_models = [model for model in (generator, *others) if model is not None]
    if len({model.logprobs_mode for model in named_models}) > 1 or len(named_models) <= len(others):
        generator = None
    elif others:
        models = sorted({name for model in named_models for name in model.models})
        generator = Generator(models[0], logprobs_mode=named_models[0].logprobs_mode, others=tuple(models[1:]))
    return write_checkpoint(
        path,
        Export(
            kind=QUALITY_KIND,
            title=f"Quality predictor: {' and '.join(names)}",
            summary=heads.summary(feature_names, reads_decisions=reads_decisions),
            graph=graph,
            inputs={FEATURES_INPUT: X},
            expected=outputs_of(heads.fitted, X),
            contract={
                "schema": schema_name,
                "features": list(feature_names),
                **(
                    {JUDGES: list(evidence.decisions.judges)}
                    if reads_decisions and evidence.decisions is not None
                    else {}
                ),
                "targets": names,
                "kinds": {name: head.kind for name, head in heads.fitted.items()},
                "scales": {name: list(SCALES[name]) for name in names if name in SCALES},
                **heads.base_rates(),
                **({FLAGGED_BY: heads.flagged_by} if heads.flagged_by else {}),
                **questions,
            },
            **{**origin, "generator": generator},
            logprobs_reader=evidence.logprobs_reader,
            calibration=", ".join(dict.fromkeys(name for h in heads.fitted.values() for name in h.calibrations)),
            metrics=heads.metrics,
            audits=heads.audits,
            not_audited=heads.not_audited,
            thresholds=heads.thresholds,
            stored=heads.stored,
            runs=heads.runs,
            packages=("lightgbm", "onnxmltools", "onnx") if heads.grown else ("onnx",),
            heads=[*filter(None, [evidence.compared, evidence.without_decisions]), *heads.lines],
        ),
    )


@dataclass(slots=True)
class _Heads:
    """The heads of one checkpoint, and what each head adds to it: metrics, audits, thresholds and lines of the card."""

    flags: FlagOptions
    has_several_heads: bool
    has_score_head: bool
    """Whether one of the heads gives the score; otherwise the flag may be about `agreement`."""
    fitted: dict[str, FittedHead] = field(default_factory=dict)
    metrics: dict[str, Interval] = field(default_factory=dict)
    audits: list[Finding] = field(default_factory=list)
    not_audited: list[str] = field(default_factory=list)
    """Audits that could not be made, and why."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """Thresholds besides those in `stored`."""
    stored: StoredFlags = field(default_factory=StoredFlags)
    """Thresholds and curve of the head that gives the score."""
    runs: int = 1
    """Number of runs from which the head that gives the score learned."""
    lines: list[str] = field(default_factory=list)
    """Lines of the card about the heads."""
    positive_shares: dict[str, float] = field(default_factory=dict)
    """Maps a head to the share of its labelled answers whose label is 1."""
    scales_between_runs: dict[str, float] = field(default_factory=dict)
    """Maps a head to how much the scales of its runs differ."""
    flagged_by: str = ""
    """Head that the threshold `flag` is about, if it is not the score; else empty."""
    for_new_tasks: bool = False
    """Whether the predictor is for models and tasks outside its training runs: it then has no base rates, and no
    threshold that depends on a base rate."""

    @property
    def grown(self) -> bool:
        """Whether a head reads more than the terms."""
        return any(
            not isinstance(head, RunProbability) or head.scorer.trees is not None for head in self.fitted.values()
        )

    def narrow(self, width: int) -> list[int]:
        """Restricts the heads to the features that at least one of them reads, and returns the indices of these.

        If a head has trees, all `width` features are kept.
        """
        probability_heads = [
            head_part
            for head in self.fitted.values()
            for head_part in (head.level_heads if isinstance(head, Level) else (head,))
        ]
        linear = [
            head_part
            for head_part in probability_heads
            if isinstance(head_part, RunProbability) and head_part.scorer.trees is None
        ]
        if len(linear) < len(probability_heads):
            return list(range(width))
        columns_read = sorted(
            {
                linear_head.scorer.read.places[int(i)]
                for linear_head in linear
                for i in np.flatnonzero(linear_head.scorer.weights)
            }
        )

        def narrow_head(head_part: RunProbability) -> RunProbability:
            before = head_part.scorer.read
            closest = tuple(np.array(before.closest)[columns_read].tolist()) if before.closest else ()
            columns = LadderColumns(tuple(range(len(columns_read))), {}, before.logprobs, closest=closest)
            return replace(
                head_part,
                scorer=replace(head_part.scorer, weights=head_part.scorer.weights[columns_read], read=columns),
            )

        for name, head in self.fitted.items():
            if isinstance(head, Level):
                self.fitted[name] = replace(head, level_heads=tuple(map(narrow_head, head.level_heads)))
            elif isinstance(head, RunProbability):
                self.fitted[name] = narrow_head(head)
        return columns_read

    def base_rates(self) -> dict[str, Any]:
        """Returns the contract's entry with the runs' base rates; empty if the predictor was trained on one run."""
        heads = {name: head for name, head in self.fitted.items() if isinstance(head, RunProbability)}
        if not any(head.shifts for head in heads.values()):
            return {}
        runs: dict[str, dict[str, float]] = {}
        for name, head in heads.items():
            for run, shift in head.shifts.items() if not self.for_new_tasks else ():
                runs.setdefault(run, {})[name] = shift
        between = {name: head.between for name, head in heads.items()}
        return {
            BASE_RATES_KEY: {
                "between": between,
                "scale": self.scales_between_runs,
                "average": self.positive_shares,
                "runs": runs,
            }
        }

    def add_graded(self, target: str, study: GradedStudy) -> None:
        """Fits the head of a graded target."""
        groups = study.evidence.table.groups.tolist()
        roles = final_roles(groups, study.data.strata, seed=study.seed)
        self.fitted[target] = head = fit_graded(study.data, roles, study.seed)
        figures, audits = measure_grades(study, seed=study.seed)
        self._note(target, figures, audits, NOT_AUDITED)
        low, high = SCALES[target]
        head_line = f"{target}: {head.kind}, {low} to {high}, {len(study.evidence.table)} answers"
        unlearned_levels = [
            str(level) for level in range(low + 1, high + 1) if level not in study.data.learnable_levels
        ]
        if study.data.learnable_levels and unlearned_levels:
            head_line += f"; too few answers to learn the step to {', '.join(unlearned_levels)}: its share is taken"
        self.lines.append(head_line)

    def add_probability(self, target: str, study: Study) -> None:
        """Fits the head of a target of two classes, and sets its thresholds."""
        # Fit the head.
        evidence, ladder, seed = study.evidence, study.ladder, study.seed
        table, X, runs = evidence.table, evidence.features, runs_of(evidence.table)
        roles, inverted = final_roles(table.groups.tolist(), table.y, seed=seed), target in INVERTED
        climb = not ladder.new_tasks
        sample, only_number, bar = evidence.sample(), ladder.only, ladder.bar
        head = fit_probability(sample, roles, inverted=inverted, climb=climb, only=only_number, bar=bar, seed=seed)
        self.fitted[target] = head
        self.for_new_tasks = self.for_new_tasks or ladder.new_tasks
        share = float(table.y.mean())
        self.positive_shares[target] = 1 - share if inverted else share
        learning_rows = roles.learning
        self.scales_between_runs[target] = scales_between(
            head.scorer.score(X[learning_rows]), table.y[learning_rows], runs[learning_rows]
        )
        # Held-out figures and audits.
        fits = study.fits
        if not ladder.new_tasks and len(set(runs.tolist())) == 1 and head.scorer.number:
            fits = fits.made_of(ladder.name, head.scorer.number)
        figures, report = measure_held_out(evidence, fits, ladder, seed)
        held_out = fits[ladder.name].probability
        if inverted:
            # The AUPRC is that of failures, the rarer class. AUROC and Brier skill are the same for both classes.
            weights = cluster_weights(table.groups.tolist(), RANK_RESAMPLES, seed)
            figures["auprc"] = interval(auprc, 1 - table.y, 1 - held_out, weights)
        self._note(target, figures, report.audits, report.skipped)
        head_line = (
            f"{target}: {head.kind}, a probability, {len(table)} answers, {self.positive_shares[target]:.0%} positive"
        )
        # Thresholds. A threshold of these runs says nothing of new tasks.
        if not ladder.new_tasks:
            scores, rows = head.scorer.score_of(X, runs), roles.calibration  # with the base rates of the runs
            rank_shares = fits.rank_shares[ladder.name]
            has_few_weights = head.scorer.trees is None
            answers = ScoredAnswers.of(
                table, rows, scores, head.calibrator, held_out, rank_shares, few_weights=has_few_weights
            )
            if target == CRITICAL:
                self.thresholds |= critical_thresholds(answers, seed=seed)
            elif target == AGREEMENT:
                if not self.has_score_head:
                    self.stored, self.runs = (
                        flagging_without_labels(answers, self.flags, seed=seed),
                        len(np.unique(runs)),
                    )
                    self.flagged_by = AGREEMENT
                    head_line += self.stored.lacking
            elif target in MAIN_HEADS:
                self.stored, self.runs = flagging_of(answers, self.flags, seed=seed), len(np.unique(runs))
                calibrated = head.calibrator.probability(scores[rows])
                self.thresholds |= operating_points(calibrated, table.call_ids[rows].tolist(), evidence.evaluated)
                head_line += self.stored.lacking
        # Lines of the card about the steps of the ladder.
        columns, reached = head.scorer.read, head.scorer.reached
        notes = [f"made of {step_in_words(reached, columns)}"]
        notes += [
            f"{step_in_words(step.name, columns)} over {step_in_words(step.against, columns)}: log loss "
            f"{-step.gain:+.4f} (standard error {step.se:.4f}) on groups left out{_within_in_words(step)}, "
            f"{'taken' if step.taken else 'not taken'}"
            for step in head.scorer.steps
        ]
        if numbers_of_folds := fits.decided:
            # The card's figures are of the step that each fold reached. If every fold were fitted with the step that
            # all labels chose, labels of test rows would influence the choice.
            same_step_count = sum(number == head.scorer.number for number in numbers_of_folds)
            calibration_note = (
                f"the order is that of {fits[ladder.name].calibrated_control}, and "
                if fits[ladder.name].calibrated_control
                else ""
            )
            notes.append(
                f"{same_step_count} of {len(numbers_of_folds)} folds reached the same step by themselves; "
                f"{calibration_note}the "
                f"{'other ' * bool(calibration_note)}held-out figures are of what each fold reached"
            )
        notes += raw_number(evidence, target, head.scorer, held_out, seed)
        self.lines += [head_line, *(f"{target}: {step}" for step in notes)]

    def _note(
        self, target: str, figures: Mapping[str, Interval], audits: Sequence[Finding], skipped: Sequence[str]
    ) -> None:
        """Adds figures and audits of a head, under the head's name if there are several heads.

        Args:
            target: name of the head.
            figures: the held-out figures.
            audits: the findings.
            skipped: audits that could not be made, and why.
        """
        prefix = f"{target}." if self.has_several_heads else ""
        self.metrics.update({f"{prefix}{name}": value for name, value in figures.items()})
        prefix = f"not {target}." if target in INVERTED else prefix  # audits saw inverted labels
        self.audits.extend(replace(audit, name=f"{prefix}{audit.name}") for audit in audits)
        self.not_audited.extend(f"{prefix}{reason}" for reason in skipped)

    def summary(self, feature_names: Sequence[str], *, reads_decisions: bool) -> str:
        """Returns the card's first paragraph, without the meaning of the thresholds.

        Args:
            feature_names: features that are read.
            reads_decisions: whether they are numbers of decisions.
        """
        names, parts = list(self.fitted), []
        if binary := [name for name in names if name not in SCALES and name != AGREEMENT]:
            parts.append(f"Probability that an answer is {' and '.join(binary)}")
        if AGREEMENT in names:
            parts.append(
                "probability that the model, asked again, would say the same (learned without labels, and no "
                "probability of being right)"
            )
        if levels := [name for name in names if name in LABEL_LEVELS]:
            parts.append(f"expected level of {', '.join(levels)}")
        if QUALITY in names:
            parts.append("expected Q (the sum of the three levels, 0 where critical)")
        if reads_decisions:
            questions = ", ".join(dict.fromkeys(map(question_of, feature_names)))
            source_text = f"what a decision model said of it ({questions}): what each head is made of stands below"
        elif self.grown:
            source_text = (
                f"{len(feature_names)} statistics of its token log-probabilities over windows (LightGBM, then a "
                "calibrator)"
            )
        else:
            source_text = "its token log-probabilities: what each head is made of stands below"
        parts_text = "; ".join(parts)
        return f"{parts_text[0].upper()}{parts_text[1:]}, from {source_text}."


def raw_number(evidence: Evidence, target: str, exported: Ladder, held_out: Floats, seed: int) -> list[str]:
    """Returns a sentence on the Brier score of a predicate's own probability, in a list; an empty list without one.

    The predicate is the one named like the target, else the one that is exported alone.

    Args:
        evidence: the labelled answers.
        target: name of the label.
        exported: the exported ladder.
        held_out: held-out probabilities (n,) of the head.
        seed: seed of the bootstrap.
    """
    names, y = evidence.feature_names, evidence.table.y
    question = target if target in names else exported.reached
    if evidence.schema != DECIDED or question not in names:
        return []
    raw = evidence.features[:, names.index(question)].astype(np.float64)
    if not is_predicate(question, names, raw):
        return []
    weights = cluster_weights(evidence.table.groups.tolist(), seed=seed)
    scores = {
        "as the judge gave it": 1 - raw if question == target and target in INVERTED else raw,
        "of this predictor, held out": held_out,
        "of the share of the label": np.full(len(y), y.mean()),
    }
    errors = (
        f"{format_interval(interval(brier, y, score, weights), 3)} {score_name}" for score_name, score in scores.items()
    )
    return [f"Brier score (lower is better) of the number {question}: {'; '.join(errors)}"]


def _within_in_words(step: LadderStep) -> str:
    """Returns the gain of a step within runs, as a clause; empty if it was not computed."""
    if np.isnan(step.within):
        return ""
    return f", AUROC within runs {step.within:+.4f} (standard error {step.within_se:.4f})"


def step_in_words(step: str, columns: LadderColumns) -> str:
    """Returns a step of the ladder in words."""
    unreversed = step.removesuffix(REVERSED)
    if columns is WHOLE:
        words = WORDS_OF_STEP[unreversed]
    else:
        words = WORDS_OF_DECISION_STEP.get(unreversed, f"the number {unreversed}")
    return f"{words}{step.removeprefix(unreversed)}"
