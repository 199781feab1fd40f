"""A study: evidence, methods, and the methods' held-out scores. All training and comparing begins with a study.

Every method is fitted and calibrated in the same outer folds by group. So each answer is judged by a model that saw no
answer of its group. A recipe of `metaprobe.training.recipes` then fits on all groups and writes a checkpoint, whose
figures are those of the folds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import FlagOptions
from metaprobe.checkpoints.flagging import AGREEMENT
from metaprobe.eval.answer_table import AnswerTable, usable_groups
from metaprobe.eval.audits import AuditInputs, AuditReport, LeftOutDomains, judge_left_out, run_audits
from metaprobe.eval.compare import BEST_BASELINE, Judged, auroc_gain, control_names, method_results
from metaprobe.eval.controls import (
    DECISION,
    NUMBERS,
    REVERSED,
    distinct_controls,
)
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import debiased_ece
from metaprobe.eval.metrics.ranked import MetricFunction, auroc, auroc_within
from metaprobe.eval.results import CONTROL_FAMILIES
from metaprobe.probes.decision_predictor import COMPUTED_SUFFIXES, is_predicate
from metaprobe.probes.features import DECIDED
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.training.calibrators import fit_platt, probabilities_as_log_odds, sigmoid
from metaprobe.training.evidence import INVERTED, Evidence, Scores, invert, load_evidence, origin_of_states, runs_of
from metaprobe.training.folds import Roles, outer_folds, roles_without, with_fewer
from metaprobe.training.linear_probe import LinearProbe
from metaprobe.training.methods import (
    AFTER,
    BEFORE,
    CONFIDENCE,
    DECISIONS,
    MEAN_LOGPROB,
    RUN_IDENTITY,
    TRUE,
    USUAL_LADDER,
    Blend,
    FeatureTrees,
    Fitted,
    GivenScore,
    HiddenProbeMethod,
    JoinedFit,
    LearnedDecisions,
    LogprobLadder,
    Method,
    TermsPart,
    calibrator_of,
    control_methods,
    controls_to_exclude,
)
from metaprobe.training.stored_states import InMemory, StatesRequest
from metaprobe.training.thresholds import (
    ScoredAnswers,
    flagging_of,
    flagging_without_labels,
    operating_points,
    share_below,
)
from metaprobe.training.training_options import BlendOptions, OnStep, quiet

OwnMethods = Callable[[Evidence, Sequence[str]], Sequence[Method]]


@dataclass(frozen=True, slots=True, eq=False)
class CrossFit:
    """Held-out results of all methods on the same folds."""

    methods: tuple[Judged, ...]
    best_baseline: tuple[str, ...]
    """The control that each fold chose on its selection rows."""
    roles: tuple[Roles, ...]
    """Roles of each fold."""
    probes: Mapping[str, tuple[LinearProbe, ...]]
    """Maps each method on hidden states to its probe of every fold."""
    joined: Mapping[str, tuple[JoinedFit, ...]] = field(default_factory=dict)
    """Maps each method that joins others to its joined parts of every fold."""
    rank_shares: Mapping[str, Scores] = field(default_factory=dict)
    """Maps the name of a method to the rank share (n,) of each answer's score among the calibration answers of its fold
    (`share_below`).
    """
    best_learned: tuple[str, ...] = ()
    """The learned method that each fold chose on its seen rows; empty if no method was learned."""
    best_implicit: tuple[str, ...] = ()
    """The same among methods that read no stated number, which are all but the blend."""
    same_order: Mapping[str, str] = field(default_factory=dict)
    """Maps each control that was left out to the control that puts the answers in the same order."""
    decided: tuple[str, ...] = ()
    """The one number of a decision that orders the answers of each fold, for the method on decisions; empty if several
    numbers do, or if there is no such method.
    """

    @property
    def fold(self) -> NDArray[np.int64]:
        """The outer fold (n,) in which each answer was judged."""
        fold = np.zeros(sum(len(roles.test) for roles in self.roles), dtype=np.int64)
        for number, roles in enumerate(self.roles):
            fold[roles.test] = number
        return fold

    def made_of(self, name: str, number: str) -> "CrossFit":
        """Returns the results with the method `name` ranking answers by one number alone, as the exported method does.

        Calibration is monotone, and the number's order was not learned in any fold. So the method ranks the answers by
        the number, even if a fold used more numbers. The probabilities stay those of the folds. If `number` is none of
        the methods, the results are returned unchanged.

        Args:
            name: name of the method.
            number: name of the number, as a ladder names it.
        """
        unreversed = number.removesuffix(REVERSED)
        control_name = (
            f"{DECISION}{number}"
            if name == DECISIONS
            else f"{NUMBERS.get(unreversed, '')}{number.removeprefix(unreversed)}"
        )
        control_name = self.same_order.get(control_name, control_name)
        if control_name not in {method.name for method in self.methods}:
            return self
        as_number = replace(self[name], ranking=self[control_name].ranking, calibrated_control=control_name)
        return replace(
            self,
            methods=tuple(as_number if other_method.name == name else other_method for other_method in self.methods),
        )

    def __getitem__(self, name: str) -> Judged:
        return next(method for method in self.methods if method.name == name)


def standard_methods(evidence: Evidence, *, ladder: LogprobLadder = USUAL_LADDER) -> list[Method]:
    """Returns the methods of the comparison, in its order.

    Probes are included if hidden states were captured, and stated numbers if the model stated any.
    """
    methods: list[Method] = [*decision_methods(evidence), *control_methods(evidence)]
    methods += [ladder] if evidence.feature_names else []
    positions = () if evidence.states is None else evidence.states.positions
    answer = tuple(position for position in positions if position != "prompt_last")
    for name, positions_read in ((BEFORE, ("prompt_last",) if "prompt_last" in positions else ()), (AFTER, answer)):
        if positions_read:
            methods.append(HiddenProbeMethod(name, positions_read))
    blend = blend_of(evidence.table, [method for method in methods if isinstance(method, HiddenProbeMethod)])
    return methods if blend is None else [*methods, blend]


def blend_of(table: AnswerTable, probes: Sequence[HiddenProbeMethod]) -> Blend | None:
    """Returns the blend of one signal of each kind that these answers have; None if they have only one signal.

    Log-probabilities and states of the answer are always joined. Stated numbers and the state of the prompt are joined
    only if they pay.
    """
    answer_probes = [probe for probe in probes if probe.name == AFTER]
    parts: list[Method] = [*((TermsPart(),) if table.measured else ()), *answer_probes]
    extras: list[Method] = [part for part in (TRUE, CONFIDENCE) if np.isfinite(part.values(table)).any()]
    extras += [probe for probe in probes if probe.name == BEFORE]
    return Blend(tuple(parts), tuple(extras)) if parts and len(parts) + len(extras) > 1 else None


def decision_methods(evidence: Evidence) -> list[Method]:
    """Returns a method for each question's number, and a method that learns from all numbers; empty without decisions.

    A number that is higher for wrong answers is included a second time with its sign reversed, as in `free_controls`.
    """
    decisions = evidence.decisions
    if decisions is None:
        return []

    def column_of(_: AnswerTable, *, column: Scores) -> Scores:
        return column

    columns = zip(decisions.names, decisions.values.T, strict=True)
    question_columns = [
        (name, column) for name, column in columns if "=" not in name and not name.endswith(COMPUTED_SUFFIXES)
    ]
    known_columns = [(name, column) for name, column in question_columns if np.isfinite(column).any()]
    higher_when_wrong = [
        method for method in known_columns if auroc(evidence.table.y, _without_gaps(method[1])[0]) < 0.5
    ]
    signed = [*known_columns, *((f"{name}{REVERSED}", 1 - column) for name, column in higher_when_wrong)]
    predicates = {name for name, column in known_columns if is_predicate(name, decisions.names, column)}
    given_numbers = [
        GivenScore(
            f"{DECISION}{name}",
            "decision",
            partial(column_of, column=column),
            probability=name.removesuffix(REVERSED) in predicates,
        )
        for name, column in signed
    ]
    return [*given_numbers, *(() if evidence.schema == DECIDED else (LearnedDecisions(),))]


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Evidence, methods, and the methods' held-out scores by outer fold."""

    evidence: Evidence
    methods: tuple[Method, ...]
    fits: CrossFit
    seed: int
    target: str = "correct"
    """Name of the label that the methods predict."""
    stage: str | None = None
    """The only stage whose answers were studied; None for all."""
    agent: str | None = None
    """The only agent whose answers were studied; None for all."""
    stores: tuple[Path, ...] = ()
    """Folders of the run stores, which a comparison describes; empty if the runs are not in stores."""

    @property
    def ladder(self) -> LogprobLadder:
        """The method of this study that fits the quality predictor."""
        return next(method for method in self.methods if isinstance(method, LogprobLadder))


def study(
    stores: Sequence[str | Path],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    folds: int = 5,
    seed: int = 0,
    hidden: bool = True,
    own_methods: OwnMethods = lambda evidence, names: (),
    bare: bool = False,
    on_step: OnStep = quiet,
) -> Study:
    """Makes a study of the labelled answers of these stores, by every standard method.

    The label `critical`, whose 1 is bad, is inverted, so that higher scores always mean better answers.

    Args:
        stores: run stores, or files of lines.
        target: name of the label.
        stage: only calls of this stage.
        agent: only calls of this agent.
        folds: outer folds by group.
        seed: seed of folds and fits.
        hidden: whether probes on hidden states are included.
        own_methods: gives further methods for the evidence and the names of the standard methods.
        bare: whether answers without log-probabilities are accepted if no answer has any.
        on_step: called with each step in words.
    """
    evidence = load_evidence(stores, target=target, stage=stage, agent=agent, hidden=hidden, bare=bare)
    if target in INVERTED:
        evidence = invert(evidence)
    crossfitted = study_of(evidence, folds=folds, seed=seed, own_methods=own_methods, on_step=on_step)
    return replace(crossfitted, target=target, stage=stage, agent=agent, stores=tuple(Path(store) for store in stores))


def load_with_states(stores: Sequence[str | Path], options: BlendOptions) -> Evidence:
    """Returns the labelled answers with the hidden states that the options choose, and reports the choice.

    Raises `RecordError` if an answer has no hidden states.
    """
    request = StatesRequest(options.layers, tuple(options.position), options.states_of)
    evidence = load_evidence(
        stores,
        target=options.target,
        stage=options.stage,
        agent=options.agent,
        request=request,
        same=options.same,
    )
    if (states := evidence.states) is None:
        raise RecordError(
            f"{evidence.without_hidden} of {len(evidence.table)} labelled answers have no hidden states: run "
            "`metaprobe extract`, or collect them with a local model and --layers; without them there is `metaprobe "
            "train quality`"
        )
    options.on_line(f"states      layers {', '.join(map(str, states.layers))} at {', '.join(states.positions)}")
    for line in (*origin_of_states(evidence), *filter(None, [evidence.compared, evidence.regrouped])):
        options.on_line(line)
    return evidence


def study_of(
    evidence: Evidence,
    *,
    folds: int = 5,
    seed: int = 0,
    ladder: LogprobLadder = USUAL_LADDER,
    own_methods: OwnMethods = lambda evidence, names: (),
    on_step: OnStep = quiet,
) -> Study:
    """Makes a study of evidence that is already loaded.

    Args:
        evidence: the labelled answers.
        folds: outer folds by group.
        seed: seed of folds and fits.
        ladder: the quality predictor's method.
        own_methods: gives further methods for the evidence and the names of the standard methods.
        on_step: called with each step in words.
    """
    methods = tuple(standard_methods(evidence, ladder=ladder))
    methods += tuple(own_methods(evidence, [method.name for method in methods]))
    fits = crossfit(evidence, methods, folds=folds, seed=seed, on_step=on_step)
    return Study(evidence, methods, fits, seed)


def crossfit(
    evidence: Evidence,
    methods: Sequence[Method],
    *,
    folds: int = 5,
    seed: int = 0,
    labels: int | None = None,
    splits: Sequence[Roles] = (),
    on_step: OnStep = quiet,
) -> CrossFit:
    """Fits and calibrates every method in every outer fold, by group.

    The calibrator is chosen on all seen rows for which the method has scores by fits without their group. Given
    probabilities are calibrated on their log-odds. The best plain baseline, which each fold chooses on its selection
    rows, is added. Parts of a blend that are among the methods are not fitted twice. Raises `RecordError` if there are
    too few groups.

    Args:
        evidence: the labelled answers.
        methods: the methods.
        folds: outer folds by group.
        seed: seed of folds and fits.
        labels: number of labels that each fold learns from, calibration included, in whole groups drawn by `seed`; None
            for all. The test rows stay the same.
        splits: roles of each outer fold; by default drawn by `folds` and `seed`.
        on_step: called with each step in words.
    """
    # Arrays and lists that the folds fill.
    table = evidence.table
    usable_groups(list(table.groups), table.y, folds=folds)
    n, runs = len(table), runs_of(table)
    columns = [(method.name, method.family) for method in methods if not isinstance(method, Blend)]
    if any(method.family in CONTROL_FAMILIES for method in methods):
        columns.append((BEST_BASELINE, "plain"))
    columns += [(method.name, method.family) for method in methods if isinstance(method, Blend)]
    probability = {name: np.full(n, np.nan) for name, _ in columns}
    ranking = dict(probability)  # the same arrays, but for given scores
    rank_shares = {name: np.full(n, np.nan) for name, _ in columns}
    selection_aurocs: dict[str, list[float]] = {method.name: [] for method in methods}
    ordering_numbers: dict[str, list[str]] = {}
    probes: dict[str, list[LinearProbe]] = {}
    joined: dict[str, list[JoinedFit]] = {}
    raw_scores: dict[str, Scores] = {}
    coverage: dict[str, float] = {name: 1.0 for name, _ in columns}
    chosen_baselines = []
    chosen_learned: list[str] = []
    chosen_implicit: list[str] = []

    # Fit and calibrate every method in every fold; blends come last, because they join the other fits.
    splits = tuple(
        roles if labels is None else with_fewer(roles, labels, list(table.groups), table.y, seed=seed)
        for roles in splits or outer_folds(list(table.groups), table.y, folds=folds, seed=seed)
    )
    blends_last = sorted(methods, key=lambda method: isinstance(method, Blend))
    for fold_index, roles in enumerate(splits):
        logits: dict[str, Scores] = {}
        unseen: dict[str, Scores] = {}
        fitted_by_method: dict[Method, Fitted] = {}
        for method_index, method in enumerate(blends_last, 1):
            on_step(f"fold {fold_index + 1} of {folds}, method {method_index} of {len(methods)}: {method.name}")
            if isinstance(method, Blend):
                fitted = method.fit_with(fitted_by_method, evidence, roles, seed=seed)
            else:
                fitted_by_method[method] = fitted = method.fit(evidence, roles, seed=seed)
            if method.family == "learned" and fitted.unseen is not None:
                unseen[method.name] = fitted.unseen
            if fitted.probe is not None:
                probes.setdefault(method.name, []).append(fitted.probe)
            if fitted.joined is not None:
                joined.setdefault(method.name, []).append(fitted.joined)
            raw = fitted.score(np.arange(n))
            if isinstance(method, GivenScore) and method.probability:
                raw_scores[method.name] = raw
            scores, coverage[method.name] = _without_gaps(raw)
            if not method.fitted:
                ranking[method.name] = scores
            calibrator_input = scores if method.fitted else probabilities_as_log_odds(scores)
            calibrator = calibrator_of(method, fitted, calibrator_input, table, roles, seed)
            logits[method.name] = calibrator.logit(calibrator_input)
            selection_aurocs[method.name].append(fitted.selection_auroc)
            if isinstance(method, LogprobLadder | LearnedDecisions):
                ordering_numbers.setdefault(method.name, []).append(fitted.ordering_number)
        if unseen:
            chosen_learned.append(_best_unseen(unseen, table.y, runs))
        if implicit := {name: scores for name, scores in unseen.items() if name not in joined}:
            chosen_implicit.append(_best_unseen(implicit, table.y, runs))
        if (BEST_BASELINE, "plain") in columns:
            # A reversed control is no candidate: its sign was read from all answers, test rows included.
            candidates = [m.name for m in methods if m.family in CONTROL_FAMILIES and not m.name.endswith(REVERSED)]
            best_control = max(candidates, key=lambda name: selection_aurocs[name][-1])
            chosen_baselines.append(best_control)
            logits[BEST_BASELINE] = logits[best_control]
        for name, logit in logits.items():
            probability[name][roles.test] = sigmoid(logit[roles.test])
            rank_shares[name][roles.test] = share_below(logit[roles.calibration], logit[roles.test])
    # If one number orders the answers in every fold, the method ranks answers by that number.
    number_of_method = {
        name: fold_numbers[0]
        for name, fold_numbers in ordering_numbers.items()
        if len(set(fold_numbers)) == 1 and fold_numbers[0]
    }
    positions = () if evidence.states is None else evidence.states.positions
    excluded_controls = {method.name: controls_to_exclude(method, methods, positions) for method in methods}
    decision_numbers = tuple(method.name for method in methods if method.family == "decision" and not method.fitted)
    results = tuple(
        Judged(
            name,
            family,
            probability[name],
            ranking[name],
            coverage[name],
            excluded_controls.get(name, ()),
            decision_numbers if name == DECISIONS else (),
            raw_scores.get(name),
        )
        for name, family in columns
    )
    fits = CrossFit(
        methods=results,
        best_baseline=tuple(chosen_baselines),
        roles=splits,
        probes={name: tuple(fitted_of_folds) for name, fitted_of_folds in probes.items()},
        joined={name: tuple(fitted_of_folds) for name, fitted_of_folds in joined.items()},
        rank_shares=rank_shares,
        best_learned=tuple(chosen_learned),
        best_implicit=tuple(chosen_implicit),
        same_order=distinct_controls(table).same_order,
        decided=tuple(ordering_numbers.get(DECISIONS, ())),
    )
    for name, only_number in number_of_method.items():
        fits = fits.made_of(name, only_number)
    return fits


def _best_unseen(unseen: Mapping[str, Scores], y: NDArray[np.int64], runs: NDArray[np.generic]) -> str:
    """Returns the method whose unseen scores order the seen rows best; the last of equal methods.

    Pairs of answers of one run are compared, if any run has right and wrong answers: only some methods know the runs'
    base rates.

    Args:
        unseen: maps a method to scores (n,) by fits without the row's group; NaN for test rows. Only rows that all
            methods score are compared.
        y: labels (n,).
        runs: run of each row (n,).
    """
    rows = np.flatnonzero(np.isfinite(list(unseen.values())).all(axis=0))
    if len(np.unique(y[rows])) < 2:
        return list(unseen)[-1]
    within = auroc_within(runs[rows])
    mixed = np.isfinite(float(np.asarray(within(y[rows], np.zeros(len(rows))))))
    metric = within if mixed else auroc
    return max(reversed(list(unseen)), key=lambda name: float(np.asarray(metric(y[rows], unseen[name][rows]))))


def _without_gaps(scores: Scores) -> tuple[Scores, float]:
    """Returns the scores with the median in place of those that are not finite, and the share that was finite."""
    is_finite = np.isfinite(scores)
    return np.where(is_finite, scores, np.median(scores[is_finite]) if is_finite.any() else 0.0), float(
        is_finite.mean()
    )


# The audits of one method of a cross-fit, with inputs gathered from evidence and folds.

RANK_RESAMPLES = 400
"""Number of bootstrap resamples for rank correlations, which cannot be computed in one array operation."""
REFIT_FOLDS = 2
"""Number of outer folds of the refits on shuffled labels and on noise. Their scores must be held out, but need not be
good.
"""


def audit_method(
    evidence: Evidence,
    fits: CrossFit,
    method: Method | Judged,
    *,
    left_out_domains: LeftOutDomains | None = None,
    seed: int = 0,
) -> AuditReport:
    """Returns every audit of this method that can be made.

    The method is compared with every control of the folds except those in `excluded_controls`. Audits that need refits
    are made only for a `Method`. If the answers are too few for refits in two folds, these audits are listed as
    skipped, with the reason.

    Args:
        evidence: the labelled answers.
        fits: the held-out results.
        method: the method, or only its scores.
        left_out_domains: the result of `out_of_domain`.
        seed: seed of the audits.
    """
    judged, recipe = fits[method.name], None if isinstance(method, Judged) else method
    shape, refit_features = (None, None) if recipe is None else _refit_on_noise(evidence, recipe)
    controls = {*control_names(fits.methods), *judged.extra_controls} - {
        judged.name,
        judged.calibrated_control,
        *judged.excluded_controls,
    }
    sweeps = fits.probes.get(method.name)
    inputs = AuditInputs(
        name=method.name,
        table=evidence.table,
        score=judged.ranking,
        splits=[roles.parts for roles in fits.roles],
        controls={control.name: control.ranking for control in fits.methods if control.name in controls},
        calibrated_control=judged.calibrated_control,
        refit_labels=None
        if recipe is None
        else lambda y: _refit(replace(evidence, table=replace(evidence.table, y=y)), recipe),
        refit_features=refit_features,
        features_shape=shape,
        labels=evidence.labels_by_source,
        of_pairs=bool(evidence.compared),
        left_out_domains=left_out_domains,
        selection_auroc=(
            None if sweeps is None else np.array([[point.auroc for point in probe.sweep] for probe in sweeps])
        ),
    )
    return run_possible_audits(inputs, seed=seed)


def run_possible_audits(inputs: AuditInputs, *, seed: int = 0) -> AuditReport:
    """Runs the audits. If there are too few answers for refits, the audits that need refits are listed as skipped, with
    the reason.
    """
    try:
        return run_audits(inputs, seed=seed)
    except RecordError as error:
        if inputs.refit_labels is None:
            raise
        inputs_without_refits = replace(inputs, refit_labels=None, refit_features=None, features_shape=None)
        report = run_audits(inputs_without_refits, seed=seed)
        return replace(report, skipped=(*report.skipped, f"refits: {error}"))


def out_of_domain(evidence: Evidence, method: Method, *, seed: int = 0) -> LeftOutDomains | None:
    """Returns the figures of the recipe on each task, fitted without this task; for a single task, on each dimension.

    Returns None if there are fewer than two domains, if the rest is too small for a fit, or without log-probabilities,
    with which the figures are compared.
    """
    table = evidence.table
    if not table.measured:
        return None

    def fit(rows: NDArray[np.int64]) -> tuple[Scores, Scores]:
        roles = roles_without(rows, table.groups.tolist(), table.y, seed=seed)
        fitted = method.fit(evidence, roles, seed=seed)
        scores = fitted.score(np.arange(len(table)))
        calibrator = calibrator_of(method, fitted, scores, table, roles, seed)
        return scores[rows], calibrator.probability(scores[rows])

    try:
        mean = np.array([values.mean() for values in table.logprobs])
        return judge_left_out(table, fit, mean, seed=seed)
    except RecordError:
        return None


def _refit_on_noise(
    evidence: Evidence, method: Method
) -> tuple[tuple[int, ...] | None, Callable[[NDArray[np.float32]], Scores] | None]:
    """Returns the shape of noise that replaces the method's features, and a function that fits the method on noise.

    The features are all features, or the states of one layer at one position. Both results are None if the method
    reads neither.
    """
    table, states = evidence.table, evidence.states
    if isinstance(method, FeatureTrees | LogprobLadder):
        # All answers get one run, because base rates of runs would predict labels whatever the features.
        no_names = np.full(len(table), "")
        without_runs = replace(evidence, table=replace(table, models=no_names, tasks=no_names, variants=no_names))
        return evidence.features.shape, lambda noise: _refit(replace(without_runs, features=noise), method)
    if not isinstance(method, HiddenProbeMethod) or states is None:
        return None, None
    ids, position = tuple(table.call_ids.tolist()), method.positions[:1]

    def refit_noise(noise: NDArray[np.float32]) -> Scores:
        noise_states = Activations(ids, noise[:, None, None].astype(np.float16), (0,), position)
        return _refit(replace(evidence, states=InMemory(noise_states)), replace(method, positions=position))

    return states.read(states.layers[0], position[0]).shape, refit_noise


def _refit(evidence: Evidence, method: Method) -> Scores:
    """Returns held-out log-odds (n,) of the recipe in `REFIT_FOLDS` folds."""
    table = evidence.table
    scores = np.full(len(table), np.nan)
    for roles in outer_folds(table.groups.tolist(), table.y, folds=REFIT_FOLDS):
        all_scores = method.fit(evidence, roles, seed=0).score(np.arange(len(table)))
        rows = roles.calibration
        scores[roles.test] = fit_platt(all_scores[rows], table.y[rows]).logit(all_scores)[roles.test]
    return scores


# Held-out figures, as checkpoints and cards give them.

ENOUGH_FOR_ECE = 1000
"""Fewest held-out answers for quoting a calibration error."""


def measure_held_out(
    evidence: Evidence, fits: CrossFit, method: Method, seed: int
) -> tuple[dict[str, Interval], AuditReport]:
    """Returns figures and audits of one method from the folds."""
    table, judged = evidence.table, fits[method.name]
    # The gain over the mean log-probability, which needs no selection and which anybody would try first.
    metrics = figures_of(table, judged, fits[MEAN_LOGPROB] if table.measured else None, fits.fold)
    if "ece" in metrics:
        weights = cluster_weights(table.groups.tolist(), seed=seed)
        metrics["ece_debiased"] = debiased_ece(table.y, judged.probability, weights)
    left_out_domains = out_of_domain(evidence, method, seed=seed)
    if left_out_domains is not None:
        metrics |= {
            f"auroc_without_{left_out_domains.by}.{name}": value for name, value in left_out_domains.auroc.items()
        }
        metrics[f"auroc_without_{left_out_domains.by}"] = left_out_domains.mean
        metrics[f"auroc_gain_over_mean_log_probability_without_{left_out_domains.by}"] = left_out_domains.gain
        if left_out_domains.ece is not None:
            metrics[f"ece_without_{left_out_domains.by}"] = left_out_domains.ece
    report = audit_method(evidence, fits, method, left_out_domains=left_out_domains, seed=seed)
    if report.controls is not None:
        metrics["auroc_gain_over_strongest_control"] = report.controls.strongest.difference
    figures_of_runs = within_runs(table, fits, judged, seed=seed)
    if report.controls_within is not None:
        figures_of_runs["auroc_within_runs_gain_over_strongest_control"] = report.controls_within.strongest.difference
    return figures_of_runs | metrics, report


def held_out_fields(
    study: Study, method: Method, answers: ScoredAnswers, *, target: str, flags: FlagOptions, command: str
) -> dict[str, Any]:
    """Returns the fields of an `Export` about the one probability of a method: its origin, figures, audits and flags.

    Args:
        study: the study.
        method: the method.
        answers: the calibration rows that the thresholds are set on.
        target: name of the label.
        flags: which answers the stored threshold flags.
        command: command that made the checkpoint.
    """
    evidence, seed = study.evidence, study.seed
    labelled = target != AGREEMENT
    stored = (flagging_of if labelled else flagging_without_labels)(answers, flags, seed=seed)
    metrics, report = measure_held_out(evidence, study.fits, method, seed)
    calibrated = evidence.table.call_ids[answers.rows].tolist()
    lines = [evidence.compared, f"{target}: a probability{stored.lacking}" if stored.lacking else ""]
    return {
        **evidence.origin(seed, command),
        "metrics": metrics,
        "audits": report.audits,
        "not_audited": report.skipped,
        "stored": stored,
        "thresholds": operating_points(answers.exported, calibrated, evidence.evaluated) if labelled else {},
        "heads": list(filter(None, lines)),
    }


def within_runs(table: AnswerTable, fits: CrossFit, judged: Judged, *, seed: int = 0) -> dict[str, Interval]:
    """Returns the AUROC over pairs of answers of one run, and the AUROC of a score that only knows the run.

    A run is a model, a task and a way of asking. The result is empty if there is one run, or if the control of the
    run's identity was not fitted.
    """
    if not RUN_IDENTITY.varies(table) or RUN_IDENTITY.name not in {method.name for method in fits.methods}:
        return {}
    within, weights = auroc_within(fits.fold, runs_of(table)), cluster_weights(table.groups.tolist(), seed=seed)
    run_score, mean = fits[RUN_IDENTITY.name].ranking, fits[MEAN_LOGPROB].ranking if table.measured else None
    return {
        **figures_within(within, table.y, judged.ranking, mean, weights),
        "auroc_of_run_identity": interval(auroc_within(fits.fold), table.y, run_score, weights),
    }


def figures_of(
    table: AnswerTable, judged: Judged, mean: Judged | None, fold: NDArray[np.int64] | None = None
) -> dict[str, Interval]:
    """Returns the metrics of a method's held-out scores, and their gain over the mean log-probability if it is given.

    Args:
        table: the n answers.
        judged: the method.
        mean: the mean log-probability as a method; None to leave out the gain.
        fold: outer fold (n,) in which each answer was judged. Answers are compared within folds; None if one model
            judged all answers.
    """
    [result] = method_results(table, [judged], fold=fold)
    metrics = {name: getattr(result, name) for name in ("auroc", "auprc", "brier_skill", "aurc")}
    if len(table) >= ENOUGH_FOR_ECE:
        metrics["ece"] = result.ece
    if mean is not None:
        metrics["auroc_gain_over_mean_log_probability"] = auroc_gain(table, judged, mean, fold)
    return metrics


def figures_within(
    within: MetricFunction, y: NDArray[np.int64], ranking: Scores, mean: Scores | None, weights: NDArray[np.int32]
) -> dict[str, Interval]:
    """Returns the AUROC within runs and its gain over the mean log-probability, if it is given.

    Both are left out if no run has right and wrong answers.

    Args:
        within: the AUROC over pairs of answers of one run.
        y: the labels (n,).
        ranking: the method's scores (n,).
        mean: mean log-probability (n,); None to leave out the gain.
        weights: the resamples (R, n).
    """
    figures = {"auroc_within_runs": interval(within, y, ranking, weights)}
    if mean is not None:
        over_mean = paired_difference(within, y, ranking, mean, weights)
        figures["auroc_within_runs_gain_over_mean_log_probability"] = over_mean
    return {name: figure for name, figure in figures.items() if np.isfinite(figure.estimate)}
