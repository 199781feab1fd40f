"""Joins the inputs that answers bring to the streaming gate beside their log-probabilities, where they pay.

That is the form of the question, and the hidden states from which the tokens were drawn. An answer may come without
its question or without states. Answers that bring the question, and answers that bring states too, have a score, a
calibrator and thresholds of their own, so that the promise holds for each kind of answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.question_form import question_form
from metaprobe.records.errors import RecordError
from metaprobe.records.types import look_position
from metaprobe.routing.gate import GATE_INPUT, LOGPROBS_ALONE, QUESTION_INPUT, STATES_INPUT
from metaprobe.training.base_rates import SAME_VALUE, fit_offsets
from metaprobe.training.calibrators import Calibrator, Platt, fit_platt, rising_calibrator
from metaprobe.training.export import GraphBuilder
from metaprobe.training.folds import Roles, Rows, group_folds
from metaprobe.training.linear_probe import fit_linear_probe, held_out_folds, unseen_probe_scores
from metaprobe.training.methods import LinearScore, pays, weigh_parts
from metaprobe.training.stored_states import ChosenRows, States
from metaprobe.training.thresholds import Surprise

Floats = NDArray[np.float64]
Features = NDArray[np.float32]
GraphInputs = Mapping[str, NDArray[np.floating]]
"""Arrays of n rows by the names of the graph's inputs, without those that the answers do not bring."""


@dataclass(frozen=True, slots=True, eq=False)
class GateInputs:
    """Inputs that n answers bring to a gate."""

    features: Features
    """Features (n, d) of the gate's schema."""
    forms: Features | None = None
    """Forms (n, 5) of the questions; None for answers that come without their question."""
    states: States | None = None
    """Hidden states (n, D) by layer and look; None for answers that come without states. Those of an answer that is
    shorter than a look are not read.
    """
    layer: int | None = None
    """The layer that is read, once it is chosen (`choose_layer`)."""

    @property
    def beside(self) -> str:
        """Name of what the answers bring beside the log-probabilities, one of `routing.gate.BESIDE_LOGPROBS`."""
        if self.states is not None:
            return STATES_INPUT
        return LOGPROBS_ALONE if self.forms is None else QUESTION_INPUT

    def rows(self, rows: NDArray[np.generic]) -> "GateInputs":
        """Returns the inputs of some answers; `rows`: their indices, or a mask (n,)."""
        indices = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.intp)
        return replace(
            self,
            features=self.features[indices],
            forms=None if self.forms is None else self.forms[indices],
            states=None if self.states is None else ChosenRows(self.states, indices),
        )

    def only(self, beside: str) -> "GateInputs":
        """Returns the inputs without what such answers do not bring; `beside` as the property."""
        return replace(
            self,
            forms=None if beside == LOGPROBS_ALONE else self.forms,
            states=self.states if beside == STATES_INPUT else None,
        )

    def at(self, look: int) -> GraphInputs:
        """Returns the inputs of the graph at a look. The layer must be chosen if there are states."""
        inputs: dict[str, NDArray[np.floating]] = {GATE_INPUT: self.features}
        if self.forms is not None:
            inputs[QUESTION_INPUT] = self.forms
        if self.states is not None:
            assert self.layer is not None
            inputs[STATES_INPUT] = self.states.read(self.layer, look_position(look)).astype(np.float32)
        return inputs


def forms_of(questions: Sequence[str]) -> Features | None:
    """Returns the form of each question (n, 5); None if a question was not stored."""
    form_of_text = {text: question_form(text) for text in dict.fromkeys(questions)}
    forms = np.array([form_of_text[text] for text in questions], np.float32)
    return forms if len(forms) and np.isfinite(forms).all() else None


def choose_layer(
    states: States,
    y: NDArray[np.int64],
    groups: NDArray[np.str_],
    roles_by_look: Mapping[int, Roles],
    seed: int,
) -> int:
    """Returns the layer with the best mean AUROC over the looks, each held out in inner folds at its best penalty.

    Args:
        states: the states at the looks.
        y: 1 for good answers.
        groups: the group of each answer.
        roles_by_look: maps a look to the roles of the answers that are long enough for it.
        seed: seed of the folds.
    """
    if len(states.layers) == 1:
        return states.layers[0]
    aurocs = np.zeros(len(states.layers))
    for look, roles in roles_by_look.items():
        cells = [(layer, look_position(look)) for layer in states.layers]
        held_out = held_out_folds(states, y, groups.tolist(), roles, cells, seed=seed)  # (layers, folds, penalties)
        aurocs += held_out.mean(axis=1).max(axis=1)
    return states.layers[int(aurocs.argmax())]


@dataclass(frozen=True, slots=True, eq=False)
class PartScore:
    """Calibrated log-odds computed from one input of the graph."""

    linear: LinearScore
    """Maps the input to log-odds, Platt's map included."""
    unseen: Floats
    """Log-odds (n,) of the learning rows, from fits that saw no answer of the row's group; NaN for other rows."""


def fit_question_score(
    counts: NDArray[np.floating], y: NDArray[np.int64], groups: NDArray[np.str_], rows: Rows, *, folds: int, seed: int
) -> PartScore | None:
    """Returns a score fitted on the learning rows; None if the counts do not predict the label, or for too few rows.

    Args:
        counts: counts (n, d) of the question of each answer, finite on the rows.
        y: 1 for good answers.
        groups: the group of each answer.
        rows: the learning rows.
        folds: number of folds; each is scored by a fit on the others.
        seed: seed of the folds.
    """
    unseen = np.full(len(y), np.nan)
    try:
        for rest, part in group_folds(rows, groups.tolist(), y, folds, seed):
            unseen[part] = _fit_linear(counts, y, rest)(counts[part])
    except RecordError:
        return None
    return _calibrated(_fit_linear(counts, y, rows), unseen, y, rows)


def fit_states_score(
    states: States, layer: int, look: int, y: NDArray[np.int64], groups: NDArray[np.str_], roles: Roles, *, seed: int
) -> PartScore | None:
    """Returns a linear probe of the states at a look; None if it does not predict the label, or for too few rows.

    Args:
        states: the states at the looks.
        layer: the layer to read.
        look: number of tokens seen.
        y: 1 for good answers.
        groups: the group of each answer.
        roles: the answers of each role that are long enough for the look.
        seed: seed of the folds.
    """
    try:
        probe = fit_linear_probe(
            states, y, groups.tolist(), roles, positions=[look_position(look)], layers=[layer], seed=seed
        )
        unseen = unseen_probe_scores(probe, states, y, groups.tolist(), roles, seed=seed)
    except RecordError:
        return None
    linear = LinearScore(probe.mean, probe.scale, probe.weights, probe.intercept)
    return _calibrated(linear, unseen, y, roles.learning)


def _calibrated(linear: LinearScore, unseen: Floats, y: NDArray[np.int64], rows: Rows) -> PartScore | None:
    """Returns a score with Platt's map; None if higher scores are not likelier good on groups left out.

    `unseen`: scores (n,) of the learning rows `rows`, from fits that saw no answer of the row's group.
    """
    try:
        platt = fit_platt(unseen[rows], y[rows])
    except RecordError:
        return None
    if not platt.slope > 0:
        return None
    odds = np.full(len(y), np.nan)
    odds[rows] = platt.logit(unseen[rows])
    weights, intercept = platt.slope * linear.weights, platt.slope * linear.intercept + platt.intercept
    return PartScore(LinearScore(linear.mean, linear.scale, weights, float(intercept)), odds)


def _fit_linear(X: NDArray[np.floating], y: NDArray[np.int64], rows: Rows) -> LinearScore:
    """Returns a logistic regression on the standardised columns, with a normal prior of 1 on each weight."""
    values = X[rows].astype(np.float64)
    centre, spread = values.mean(axis=0), values.std(axis=0)
    spread = np.where(spread > SAME_VALUE * (1 + np.abs(centre)), spread, 1.0)
    fit = fit_offsets((values - centre) / spread, y[rows], np.full(len(rows), ""))
    return LinearScore(centre, spread, fit.weights, fit.rates.mean)


@dataclass(frozen=True, slots=True, eq=False)
class JoinedLook:
    """The judgement at one look of answers that bring more than their log-probabilities."""

    platt: Platt
    """Maps the score of the log-probabilities to log-odds."""
    parts: Mapping[str, LinearScore]
    """Maps the name of each further input of the graph to its map to log-odds."""
    weights: Floats
    """Weights of the log-odds: those from the log-probabilities, then those of the parts."""
    shift: float
    calibrator: Calibrator
    """Maps the joined score to P(good). It rises strictly, so a threshold on the probability is also one on the score.
    """
    surprise: Surprise

    def score(self, logprob_scores: Floats, inputs: GraphInputs) -> Floats:
        """Returns log-odds (n,), from the score of the log-probabilities (n,) and the further inputs."""
        logits = [self.platt.logit(logprob_scores), *(part(inputs[name]) for name, part in self.parts.items())]
        return np.asarray(self.weights @ np.array(logits) + self.shift)

    def add_to(self, graph: GraphBuilder, *, logprob_score: str, otherwise: str, output: str = "") -> str:
        """Adds P(good) (n, 1) to a graph and returns its name.

        Args:
            graph: the graph that is being written.
            logprob_score: the score of the log-probabilities (n, 1) in the graph.
            otherwise: P(good) (n, 1) of the rows in which an input is NaN.
            output: the name of the result, if it is an output of the graph.
        """
        scaled = graph.add("Mul", logprob_score, graph.number(self.platt.slope))
        odds = [graph.add("Add", scaled, graph.number(self.platt.intercept))]
        for name, part in self.parts.items():
            centred = graph.add("Sub", name, graph.number(part.mean))
            product = graph.add("MatMul", centred, graph.number((part.weights / part.scale)[:, None]))
            odds.append(graph.add("Add", product, graph.number([part.intercept])))
        weighted = graph.add("MatMul", graph.add("Concat", *odds, axis=1), graph.number(self.weights[:, None]))
        joined = graph.add("Add", weighted, graph.number([self.shift]))
        absent = graph.add("IsNaN", joined)
        probability = self.calibrator.add_to(graph, joined)
        return graph.add("Where", absent, otherwise, probability, name=output)


@dataclass(frozen=True, slots=True, eq=False)
class LookOdds:
    """One look's log-odds from the log-probabilities, and the answers that further parts are joined on."""

    platt: Platt
    """Maps the score of the log-probabilities to log-odds."""
    unseen: Floats
    """Log-odds (n,) of the learning rows, from fits that saw no answer of the row's group; NaN for other rows."""
    calibration: Floats
    """Log-odds (m,) of the calibration rows."""
    y: NDArray[np.int64]
    groups: NDArray[np.str_]
    roles: Roles
    """The answers of each role that are long enough for the look."""

    def pays(self, part: PartScore, parts: Mapping[str, PartScore], seed: int) -> bool:
        """Returns whether a part lowers the log loss on groups left out by more than a standard error.

        `parts`: those that are joined already.
        """
        before = np.array([self.unseen, *(other.unseen for other in parts.values())])
        one_run = np.zeros(len(self.y), dtype=np.int64)  # a gate knows no base rates of runs
        return pays(part.unseen, before, self.y, self.groups.tolist(), one_run, self.roles.learning, seed)

    def join(self, parts: Mapping[str, PartScore], inputs: GraphInputs, seed: int) -> JoinedLook:
        """Returns the judgement by the log-probabilities and these parts.

        Raises `RecordError` if the calibration rows hold only one class.

        Args:
            parts: maps the name of an input to its score.
            inputs: the inputs of all n answers.
            seed: seed of the calibrator's folds.
        """
        rows, calibrating = self.roles.learning, self.roles.calibration
        odds = np.array([self.unseen[rows], *(part.unseen[rows] for part in parts.values())])
        weights, rates = weigh_parts(odds, self.y[rows], np.zeros(len(rows), dtype=np.int64))
        shift = rates.mean
        surprise = Surprise.fit((weights @ odds + shift)[self.y[rows] == 1])
        linear = {name: part.linear for name, part in parts.items()}
        logits = np.array([self.calibration, *(score(inputs[name][calibrating]) for name, score in linear.items())])
        scores = weights @ logits + shift
        calibrator = rising_calibrator(scores, self.y[calibrating], self.groups[calibrating].tolist(), seed=seed)
        return JoinedLook(self.platt, linear, weights, float(shift), calibrator, surprise)
