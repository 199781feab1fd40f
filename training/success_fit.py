"""Fits P(success) of each candidate before it is asked: rates, dimensions, surface, prompt states, and their ladder.

Every step is judged on groups left out. All models are logistic and share one form: the log-odds of the step below as
an offset, and a linear map beside it.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.routing.question_surface import LabelledForms
from metaprobe.routing.success_estimator import (
    DIMENSION,
    RATE,
    RUNGS,
    STATES,
    SURFACE,
    LabelledStates,
    log_odds,
    probability,
)
from metaprobe.training.folds import join_groups
from metaprobe.training.success_posterior import SuccessPosterior, design_effect, fit_posterior, posterior_columns
from metaprobe.training.surface_fit import SurfaceRows, SurfaceSpan, fit_forms, read_surfaces, surface_span

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MIN_SUCCESS_GROUPS = 50
"""Fewest groups of questions for learning P(success)."""
SUCCESS_FOLDS = 5
"""Number of outer folds, by group, on which the steps are compared and calibrated."""
INNER_FOLDS = 4
"""Number of folds of the learning rows, on which layer, pooling, components and penalty are chosen."""
COMPONENTS = (8, 32, 96)
"""Numbers of principal components that are tried. At most half as many as learning rows are used."""
SUCCESS_PENALTIES = (3.0, 10.0, 30.0, 100.0)
"""L2 penalties of the heads, on the summed loss, that are tried. The first component has variance 1."""
SURFACE_PENALTIES = (1.0, 3.0, 10.0, 30.0)
"""L2 penalties of the surface, on the summed loss, that are tried."""
FORM_SCALES = (0.1, 0.3)
"""Standard deviations that are tried for a count of form, beside words of length 2 and pieces of length 1. Form tells
much on word problems, and nothing on trivia."""
STEADY = 10.0
"""Weight of a candidate's overall rate in its rate on a dimension, in questions."""
SLOPE_PENALTY = 5.0
"""L2 penalty of the calibrator's slope, measured from 1."""
MAX_FIT_STEPS, FIT_GRADIENT = 300, 1e-5
"""Most steps of a fit, and the mean gradient at which it ends."""


@dataclass(frozen=True, slots=True, eq=False)
class SuccessData:
    """n questions with the score of each of A candidates."""

    questions: tuple[str, ...]
    groups: tuple[str, ...]
    dimensions: tuple[str, ...]
    """Names of the dimensions, sorted."""
    dimension: Ints
    """Dimension of each question (n,) as an index into `dimensions`; the number of dimensions if it has none."""
    candidates: tuple[str, ...]
    score: Floats
    """Score of each candidate's answer (n, A), in [0, 1]; NaN without a label."""
    propensity: Floats
    """Probability in (0, 1] with which each answer was drawn for a label (n, A); 1 if all answers were labelled."""
    notes: tuple[str, ...] = ()
    """Sentences that say what was joined or left out."""

    @property
    def weight(self) -> Floats:
        """Returns the weight (n, A) of each label: 1 / propensity, times a constant of the candidate; 0 without a
        label.

        A candidate's weights add up to its effective number of labels (Kish 1965), so that unequal weights count less
        against penalties than equally many labels of equal weight.
        """
        weight = np.where(np.isfinite(self.score), 1 / self.propensity, 0.0)
        squares = np.square(weight).sum(axis=0)
        return np.asarray(weight * np.divide(weight.sum(axis=0), squares, out=np.ones_like(squares), where=squares > 0))

    @property
    def is_weighted(self) -> bool:
        """Whether labels of one candidate have different weights."""
        labelled = np.isfinite(self.score)
        return any(
            np.ptp(self.propensity[labelled[:, column], column]) > 0 for column in np.flatnonzero(labelled.any(axis=0))
        )

    @property
    def fingerprint(self) -> str:
        """Digest of the questions, groups, dimensions, scores and unequal propensities, in any order."""
        drawn = self.propensity.tolist() if self.is_weighted else [[]] * len(self.questions)
        rows = sorted(
            json.dumps(
                [question, group, int(dimension_index), [None if np.isnan(value) else value for value in row], *chances]
            )
            for question, group, dimension_index, row, chances in zip(
                self.questions, self.groups, self.dimension, self.score.tolist(), drawn, strict=True
            )
        )
        return f"sha256:{hashlib.sha256(json.dumps([self.candidates, self.dimensions, rows]).encode()).hexdigest()}"

    def take(self, rows: Ints) -> "SuccessData":
        """Returns some of the questions."""
        questions, groups = (tuple(many[row] for row in rows.tolist()) for many in (self.questions, self.groups))
        return replace(
            self,
            questions=questions,
            groups=groups,
            dimension=self.dimension[rows],
            score=self.score[rows],
            propensity=self.propensity[rows],
        )


def success_data(outcomes: Sequence[QuestionOutcomes]) -> SuccessData:
    """Returns the labelled questions of outcomes; groups that ask the same or nearly the same are joined.

    Logged decisions are left out: they show the answers that a policy chose to ask for, so that their rates are not
    those of all questions.

    Raises `RecordError` where there are too few groups, or no candidate is right and wrong at least once.
    """
    full = [question for question in outcomes if not question.propensities]
    names = sorted({name for question in full for name in question.agents})
    score = np.full((len(full), len(names)), np.nan)
    propensity = np.ones(score.shape)
    for row, question in enumerate(full):
        for column, name in enumerate(names):
            outcome = question.agents.get(name)
            if outcome is not None and outcome.score is not None:
                score[row, column] = outcome.score
                propensity[row, column] = outcome.label_propensity or 1.0
    varied = [
        column for column in range(len(names)) if len(np.unique(score[np.isfinite(score[:, column]), column])) > 1
    ]
    kept_rows = np.flatnonzero(np.isfinite(score[:, varied]).any(axis=1))
    chosen = [full[row] for row in kept_rows.tolist()]
    # A question that stands in several folds is recognised, and noise is taken for what questions tell.
    groups, joined = join_groups([question.group for question in chosen], [question.question for question in chosen])
    labelled = np.isfinite(score).any(axis=0)
    constant = [name for column, name in enumerate(names) if column not in varied and labelled[column]]
    if len(np.unique(groups)) < MIN_SUCCESS_GROUPS:
        raise RecordError(
            f"{len(kept_rows)} labelled questions in {len(np.unique(groups))} groups came; P(success) needs at least "
            f"{MIN_SUCCESS_GROUPS} groups of candidates that are sometimes right and sometimes wrong: label more "
            "questions"
        )
    dimensions = tuple(sorted({question.dimension for question in chosen} - {""}))
    column_of_dimension = {name: column for column, name in enumerate(dimensions)}
    return SuccessData(
        questions=tuple(question.question for question in chosen),
        groups=tuple(groups.tolist()),
        dimensions=dimensions,
        dimension=np.array(
            [column_of_dimension.get(question.dimension, len(dimensions)) for question in chosen], dtype=np.int64
        ),
        candidates=tuple(names[column] for column in varied),
        score=score[kept_rows][:, varied],
        propensity=propensity[kept_rows][:, varied],
        notes=tuple(
            filter(None, [joined, f"left out, always right or always wrong: {', '.join(constant)}" if constant else ""])
        ),
    )


def label_counts(data: SuccessData) -> Ints:
    """Returns the labels (A, D + 1) of each candidate on each dimension, and in all in the last column.

    Labels of unequal weight count as their effective number: (sum of weights)^2 / sum of squares.
    """
    every, weight = np.arange(len(data.questions)), data.weight
    counts = []
    for rows in (
        *(np.flatnonzero(data.dimension == dimension_index) for dimension_index in range(len(data.dimensions))),
        every,
    ):
        total, squares = weight[rows].sum(axis=0), np.square(weight[rows]).sum(axis=0)
        counts.append(np.divide(total**2, squares, out=np.zeros_like(total), where=squares > 0))
    return np.asarray(np.floor(np.stack(counts, axis=1) + 1e-6), dtype=np.int64)


def fold_numbers(groups: Sequence[str], folds: int, seed: int) -> Ints:
    """Returns the fold (n,) of each row, by group; folds have about as many groups each."""
    names, group_index = np.unique(np.asarray(groups), return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))
    return np.asarray(order[group_index] % folds, dtype=np.int64)


def fit_logistic(X: Floats, offset: Floats, Y: Floats, penalty: float, weight: Floats | None = None) -> Floats:
    """Returns weights (A, d + 1), the intercept last, of A ridge logistic regressions on the same rows.

    Each step uses the bound of all Hessians, X'X / 4 (Böhning 1992), which is inverted once for all candidates.

    Args:
        X: (n, d) columns.
        offset: (n, A) log-odds that are added and not fitted.
        Y: (n, A) targets in [0, 1], NaN where there is no label.
        penalty: L2 penalty of the weights on the summed loss; the intercept has none.
        weight: (n, A) of the targets, at least 0; 1 by default.
    """
    n, d = X.shape
    columns = np.column_stack([X, np.ones(n)])
    mask = np.isfinite(Y).astype(np.float64) * (1.0 if weight is None else weight)
    target = np.where(np.isfinite(Y), Y, 0.0)
    ridge = np.full(d + 1, penalty)
    ridge[-1] = 1e-3
    # The row's largest weight bounds the Hessians of all candidates.
    bound = columns.T @ (columns * (1.0 if weight is None else weight.max(axis=1)[:, None])) / 4 + np.diag(ridge)
    inverse = np.linalg.inv(bound)
    ridge[-1] = 0.0
    W = np.zeros((d + 1, Y.shape[1]))
    for _ in range(MAX_FIT_STEPS):
        error = mask * (target - probability(columns @ W + offset))
        gradient = columns.T @ error - ridge[:, None] * W
        if np.abs(gradient).max(initial=0.0) <= FIT_GRADIENT * n:
            break
        W += inverse @ gradient
    return np.asarray(W.T)


def rate_tables(data: SuccessData, *, by_dimension: bool) -> Floats:
    """Returns log-odds (A, D + 1): of each candidate on each dimension, and over all questions in the last column."""
    A, D = len(data.candidates), len(data.dimensions)
    mask = data.weight
    right = np.where(np.isfinite(data.score), data.score, 0.0) * mask
    overall = (right.sum(axis=0) + 0.5) / (mask.sum(axis=0) + 1)
    table = np.repeat(overall[:, None], D + 1, axis=1)
    if by_dimension:
        for dimension_index in range(D):
            rows = data.dimension == dimension_index
            table[:, dimension_index] = (right[rows].sum(axis=0) + STEADY * overall) / (mask[rows].sum(axis=0) + STEADY)
    return log_odds(table).reshape(A, D + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Holds what is known without prompt states: rates, and the surface of questions where it pays."""

    rung: str
    table: Floats
    """Log-odds (A, D + 1) of each candidate on each dimension; the last column is over all dimensions."""
    span: SurfaceSpan | None = None
    """The directions of the questions' surface; None where the surface is not read."""
    weights: Floats | None = None
    """Heads (A, k + 1) on the coordinates along the directions, the intercept last. None if the surface is not read."""

    def log_odds(self, data: SuccessData, rows: SurfaceRows) -> Floats:
        """Returns log-odds (n, A) of questions; `rows`: their surface, as `read_surfaces` gives it."""
        base = np.asarray(self.table[:, data.dimension].T)
        if self.span is None or self.weights is None:
            return base
        return np.asarray(base + self.span.project(rows) @ self.weights[:, :-1].T + self.weights[:, -1])


def fit_prior(
    data: SuccessData, rows: SurfaceRows, rung: str, *, by_dimension: bool, seed: int
) -> tuple[Prior, Floats]:
    """Returns the prior of a rung, and its log-odds (n, A) of the questions it learned from, for a step above it.

    Those of the surface are by folds that did not learn from the question's group: a step above would else take it for
    surer than it is on new questions.

    Args:
        data: the labelled questions.
        rows: their surface.
        rung: the rung that is fitted.
        by_dimension: whether the surface stands on the dimension table.
        seed: seed of the folds.
    """
    table = rate_tables(data, by_dimension=rung == DIMENSION or by_dimension)
    base = np.asarray(table[:, data.dimension].T)
    if rung != SURFACE:
        return Prior(rung, table), base
    weight, fold = data.weight, fold_numbers(data.groups, INNER_FOLDS, seed + 1)
    losses: dict[tuple[float, float], float] = {}
    fits = {}
    for form_scale in FORM_SCALES:
        span = surface_span(rows, form_scale=form_scale, seed=seed)
        Z = span.project(rows)
        for penalty in SURFACE_PENALTIES:
            logit = left_out_log_odds(Z, data, base, penalty, fold, weight)
            losses[form_scale, penalty] = float(np.nansum(log_loss(logit, data.score) * weight) / weight.sum())
            fits[form_scale, penalty] = span, Z, logit
    choice = min(losses, key=losses.__getitem__)
    span, Z, logit = fits[choice]
    return Prior(rung, table, span, fit_logistic(Z, base, data.score, choice[1], weight)), logit


def left_out_log_odds(
    Z: Floats, data: SuccessData, prior: Floats, penalty: float, fold: Ints, weight: Floats
) -> Floats:
    """Returns log-odds (n, A) of each question by heads on Z (n, d) that were fitted on the other folds."""
    logit = np.array(prior)
    for number in np.unique(fold).tolist():
        in_fold = fold == number
        W = fit_logistic(Z[~in_fold], prior[~in_fold], data.score[~in_fold], penalty, weight[~in_fold])
        logit[in_fold] += Z[in_fold] @ W[:, :-1].T + W[:, -1]
    return logit


# Prompt states.


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    """Principal components of standardised states."""

    mean: Floats
    scale: Floats
    directions: Floats
    """Principal directions (k, D), by falling variance."""
    spread: Floats
    """Standard deviation along each direction (k,), falling."""

    def project(self, states: NDArray[np.floating[Any]]) -> Floats:
        """Returns (n, k) components, of which the first has variance 1."""
        centred = (np.asarray(states, dtype=np.float64) - self.mean) / self.scale
        return np.asarray(centred @ self.directions.T / self.spread[0])


def fit_components(states: NDArray[np.floating[Any]], most: int) -> Components:
    """Returns the first components of states (n, D), at most half as many as there are rows."""
    values = np.asarray(states, dtype=np.float64)
    mean, scale = values.mean(axis=0), values.std(axis=0)
    scale = np.where(scale > 1e-6 * np.abs(mean), scale, np.inf)
    centred = (values - mean) / scale
    variance, directions = np.linalg.eigh(centred.T @ centred / len(values))
    count = max(1, min(most, len(values) // 2, int((variance > 1e-9 * variance[-1]).sum())))
    # States that never vary have no direction: then each component is 0.
    spread = np.sqrt(np.maximum(variance[::-1][:count], 1e-12))
    return Components(mean, scale, directions[:, ::-1][:, :count].T, spread)


@dataclass(frozen=True, slots=True)
class StatesChoice:
    """Where states are read and how the heads are fitted."""

    output: str
    """Name of the reader graph's output, which tells pooling and layer."""
    components: int
    penalty: float


def log_loss(logit: Floats, Y: Floats) -> Floats:
    """Returns the cross-entropy (n, A) in nats, NaN without a label."""
    return np.asarray(np.logaddexp(0, logit) - Y * logit)


def question_loss(logit: Floats, data: SuccessData, weight: Floats) -> Floats:
    """Returns the mean cross-entropy (n,) of each question over its labels, in nats, with weights (n, A)."""
    return np.asarray(np.nansum(log_loss(logit, data.score) * weight, axis=1) / weight.sum(axis=1))


def choose(
    states: Mapping[str, NDArray[np.floating[Any]]], data: SuccessData, prior: Floats, *, seed: int
) -> tuple[StatesChoice, dict[str, Components]]:
    """Returns the choice with the lowest log loss in inner folds by group, and the components of every output.

    Components come from all these rows, without labels; heads are fitted on the other folds alone.
    """
    weight = data.weight
    fold = fold_numbers(data.groups, INNER_FOLDS, seed + 1)
    fitted: dict[str, Components] = {}
    losses: dict[StatesChoice, float] = {}
    for output, values in states.items():
        fitted[output] = fit_components(values, max(COMPONENTS))
        Z = fitted[output].project(values)
        for count in COMPONENTS:
            if count > Z.shape[1] and count != min(COMPONENTS):
                continue
            part = Z[:, :count]
            for penalty in SUCCESS_PENALTIES:
                logit = left_out_log_odds(part, data, prior, penalty, fold, weight)
                loss = np.nansum(log_loss(logit, data.score) * weight) / weight.sum()
                losses[StatesChoice(output, part.shape[1], penalty)] = float(loss)
    return min(losses, key=losses.__getitem__), fitted


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """A head for each candidate on the components of the chosen states."""

    choice: StatesChoice
    components: Components
    weights: Floats
    """Weights of each candidate's head (A, d + 1), the intercept last."""

    def log_odds(self, states: NDArray[np.floating[Any]], prior: Floats) -> Floats:
        """Returns log-odds (n, A) of questions with these states (n, D) and log-odds without them (n, A)."""
        Z = self.components.project(states)[:, : self.choice.components]
        return np.asarray(prior + Z @ self.weights[:, :-1].T + self.weights[:, -1])


def fit_heads(states: Mapping[str, NDArray[np.floating[Any]]], data: SuccessData, prior: Floats, *, seed: int) -> Heads:
    """Returns the logistic heads on the hidden states of the model output that inner folds choose."""
    choice, fitted = choose(states, data, prior, seed=seed)
    components = fitted[choice.output]
    Z = components.project(states[choice.output])[:, : choice.components]
    return Heads(choice, components, fit_logistic(Z, prior, data.score, choice.penalty, data.weight))


# The ladder.


@dataclass(frozen=True, slots=True)
class SuccessStep:
    """The gain of a step of the ladder over the step that was reached before."""

    name: str
    over: str
    gain: Interval
    """Mean log loss of the step below minus that of this step, in nats, on groups left out; above 0 if this step is
    better.
    """

    @property
    def taken(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.gain.low > 0

    def __str__(self) -> str:
        verdict = "taken" if self.taken else "not taken"
        gain = f"{self.gain.estimate:+.4f} [{self.gain.low:+.4f}, {self.gain.high:+.4f}]"
        return f"{self.name} over {self.over}: log loss lower by {gain}, {verdict}"


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Log-odds (n, A) of every rung that was tried, on groups left out."""

    fold: Ints
    logit: Mapping[str, Floats]
    calibrated: Floats
    """Log-odds (n, A) of the step that was reached, calibrated on the other folds."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedSuccess:
    """The models of all candidates, fitted on all questions."""

    rung: str
    prior: Prior
    heads: Heads | None
    calibration: Floats
    """Slope and intercept (A, 2) that calibrate each candidate's log-odds."""
    span: SurfaceSpan | None
    """The directions of the questions' surface, for the interval; None where no question has a text."""
    posterior: SuccessPosterior
    labelled_states: LabelledStates | None
    """The labelled questions in the reader's space; None without prompt states."""
    forms: LabelledForms | None
    """The forms of the labelled questions; None where their texts are not read."""
    steps: tuple[SuccessStep, ...]
    held: HeldOut


def fit_success(
    data: SuccessData,
    states: Mapping[str, NDArray[np.floating[Any]]] | None,
    *,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda _: None,
) -> FittedSuccess:
    """Climbs the ladder on groups left out, and fits the step that was reached on all questions.

    `states`: by output of the reader's graph, (n, D) each; None without a reader.
    """
    fold = fold_numbers(data.groups, SUCCESS_FOLDS, seed)
    weights, label_weight = cluster_weights(data.groups), data.weight
    question_weight = label_weight.sum(axis=1) / np.isfinite(data.score).sum(axis=1)
    rows = read_surfaces(data.questions)
    logit: dict[str, Floats] = {}
    steps: list[SuccessStep] = []
    reached, by_dimension = RATE, False

    def try_rung(name: str, made: Floats) -> None:
        nonlocal reached, by_dimension
        logit[name] = made
        if name == RATE:
            return
        steps.append(step_over(name, reached))
        # Surface and states both read the question: states need not be surely ahead of the surface, only of the rates.
        if name == STATES and reached == SURFACE and steps[-1].gain.estimate > 0 and not steps[-1].taken:
            steps.append(step_over(name, DIMENSION if by_dimension else RATE))
        if steps[-1].taken:
            by_dimension = by_dimension or name == DIMENSION
            reached = name

    def step_over(name: str, lower: str) -> SuccessStep:
        lower_loss, loss = (question_loss(logit[step], data, label_weight) for step in (lower, name))
        return SuccessStep(name, lower, mean_interval(lower_loss - loss, weights, question_weight))

    # Rates, dimensions and surface, each on the step that was reached.
    for name in RUNGS[:-1]:
        if name == DIMENSION and len(data.dimensions) < 2:
            continue
        if name == SURFACE and not any(data.questions):
            continue
        on_step(f"held out: {name}")
        made = np.empty(data.score.shape)
        for rest, fold_rows in _parts(fold):
            prior, _ = fit_prior(data.take(rest), rows[rest], name, by_dimension=by_dimension, seed=seed)
            made[fold_rows] = prior.log_odds(data.take(fold_rows), rows[fold_rows])
        try_rung(name, made)
    base = reached
    if states is not None:
        made = np.empty(data.score.shape)
        for number, (rest, fold_rows) in enumerate(_parts(fold), start=1):
            on_step(f"held out: {STATES}, fold {number} of {SUCCESS_FOLDS}")
            part = data.take(rest)
            prior, learned_odds = fit_prior(part, rows[rest], base, by_dimension=by_dimension, seed=seed)
            of_fold = fit_heads(_rows(states, rest), part, learned_odds, seed=seed)
            prior_odds = prior.log_odds(data.take(fold_rows), rows[fold_rows])
            made[fold_rows] = of_fold.log_odds(states[of_fold.choice.output][fold_rows], prior_odds)
        try_rung(STATES, made)
    # The step that was reached, fitted on all questions.
    on_step(f"fit {reached}")
    prior, prior_logit = fit_prior(data, rows, base, by_dimension=by_dimension, seed=seed)
    heads = None if reached != STATES or states is None else fit_heads(states, data, prior_logit, seed=seed)
    held_out = logit[reached]
    calibrated = np.empty(held_out.shape)
    for rest, test in _parts(fold):
        fitted = fit_calibration(held_out[rest], data.score[rest], label_weight[rest])
        calibrated[test] = _calibrated(held_out[test], fitted)
    calibration = fit_calibration(held_out, data.score, label_weight)
    # The interval reads the text whether or not the estimate does.
    span = prior.span
    if span is None and any(data.questions):
        span = surface_span(rows, form_scale=max(FORM_SCALES), seed=seed)
    reading = [] if span is None else [span.project(rows)]
    labelled_states = None
    if heads is not None and states is not None:
        chosen = states[heads.choice.output]
        reading.append(heads.components.project(chosen)[:, : heads.choice.components])
        labelled_states = fit_labelled_states(heads.components, chosen, data)
    error = np.where(np.isfinite(data.score), data.score - probability(calibrated), 0.0) * label_weight
    point = _coefficients(prior, heads, calibration, 0 if span is None else reading[0].shape[1])
    return FittedSuccess(
        rung=reached,
        prior=prior,
        heads=heads,
        calibration=calibration,
        span=span,
        posterior=fit_posterior(
            posterior_columns(data.dimension, len(data.dimensions), reading),
            [block.shape[1] for block in reading],
            data.score,
            label_weight / design_effect(data.groups, error),
            point,
        ),
        labelled_states=labelled_states,
        forms=fit_forms(rows.form, data.groups, SEEN_SHARE) if reached in (SURFACE, STATES) else None,
        steps=tuple(steps),
        held=HeldOut(fold, logit, calibrated),
    )


def _coefficients(prior: Prior, heads: Heads | None, calibration: Floats, directions: int) -> Floats:
    """Returns the calibrated log-odds as coefficients (A, K) of the columns of `posterior_columns`.

    `directions`: number of directions of the surface; their coefficients are 0 where the estimate does not read it.
    """
    table, A = prior.table, len(prior.table)
    surface_weights = np.zeros((A, directions + 1)) if prior.weights is None else prior.weights
    state_weights = np.zeros((A, 1)) if heads is None else heads.weights
    dimensions = table[:, :-1] - table[:, -1:] if table.shape[1] > 2 else np.zeros((A, 0))
    rate = table[:, -1] + surface_weights[:, -1] + state_weights[:, -1]
    coefficients = (
        np.column_stack([rate, dimensions, surface_weights[:, :-1], state_weights[:, :-1]]) * calibration[:, :1]
    )
    coefficients[:, 0] += calibration[:, 1]
    return np.asarray(coefficients)


def _parts(fold: Ints) -> Iterator[tuple[Ints, Ints]]:
    for number in np.unique(fold).tolist():
        yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)


def _rows(states: Mapping[str, NDArray[np.floating[Any]]], rows: Ints) -> dict[str, NDArray[np.floating[Any]]]:
    return {name: values[rows] for name, values in states.items()}


def fit_calibration(logit: Floats, Y: Floats, weight: Floats) -> Floats:
    """Returns slope and intercept (A, 2) of each candidate's log-odds on groups left out, with weights (n, A)."""
    fitted = []
    for column in range(logit.shape[1]):
        candidate_logit = logit[:, column : column + 1]
        weights = fit_logistic(
            candidate_logit, candidate_logit, Y[:, column : column + 1], SLOPE_PENALTY, weight[:, column : column + 1]
        )[0]
        # A slope below 0 would turn the ranking round; then nothing but the rate is believed.
        fitted.append([max(1 + weights[0], 0.0), weights[1]])
    return np.array(fitted)


def _calibrated(logit: Floats, calibration: Floats) -> Floats:
    return np.asarray(logit * calibration[:, 0] + calibration[:, 1])


# Where the labelled questions lie.

PLACE_COMPONENTS = 32
"""Number of directions in which distances are measured, besides the distance outside all of them."""
NEIGHBOURS = 5
"""Number of nearest labelled questions to which a request's mean distance is measured."""
NEAR_NEIGHBOURS = 10
"""Sets the radius of coverage: within it, half of the questions have at least so many labelled questions of other
groups.
"""
SEEN_SHARE = 0.99
"""Share of the questions of left-out groups that counts as seen. The limit of the distance is this quantile."""


def fit_labelled_states(components: Components, states: NDArray[np.floating[Any]], data: SuccessData) -> LabelledStates:
    """Returns the labelled questions in the reader's space, with the largest distance at which a request counts as
    seen.

    For this limit, a question's distances are measured to questions of other groups only.
    """
    k = min(PLACE_COMPONENTS, len(components.spread))
    # A unit that never moved may move in a foreign request: it then counts as the others do.
    moving = np.isfinite(components.scale)
    usual = float(np.median(components.scale[moving])) if moving.any() else 1.0
    unscaled = LabelledStates(
        mean=components.mean.astype(np.float32),
        scale=np.where(moving, components.scale, usual).astype(np.float32),
        directions=(components.directions[:k] / components.spread[:k, None]).astype(np.float32),
        spread=components.spread[:k].astype(np.float32),
        rest=1.0,
        points=np.zeros((0, k + 1), dtype=np.float32),
        radius=1.0,
        limit=1.0,
        neighbours=NEIGHBOURS,
    )
    points = unscaled.coordinates_of(states)
    rest = float(np.median(points[:, -1])) or 1.0
    points[:, -1] /= rest
    group = np.unique(np.asarray(data.groups), return_inverse=True)[1]
    near, nearest = np.empty(len(points)), np.empty(len(points))
    for row in range(len(points)):
        others = group != group[row]
        distances = np.sort(np.sqrt(((points[others] - points[row]) ** 2).sum(axis=1)))
        nearest[row] = distances[:NEIGHBOURS].mean()
        near[row] = distances[min(NEAR_NEIGHBOURS, len(distances)) - 1]
    return LabelledStates(
        mean=unscaled.mean,
        scale=unscaled.scale,
        directions=unscaled.directions,
        spread=unscaled.spread,
        rest=rest,
        points=points.astype(np.float32),
        radius=float(np.median(near)),
        limit=float(np.quantile(nearest, SEEN_SHARE)),
        neighbours=NEIGHBOURS,
    )
