"""The form of the question at a look of the streaming gate, joined with the log-probabilities where it pays.

An answer may come without its question. Answers that come with their question have a score, a calibrator and thresholds
of their own, so that the promise holds with and without the question.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.question_form import question_form
from metaprobe.records.errors import RecordError
from metaprobe.training.base_rates import SAME_VALUE, fit_offsets
from metaprobe.training.calibrators import Calibrator, Platt, fit_platt, rising_calibrator
from metaprobe.training.export import GraphBuilder
from metaprobe.training.folds import Roles, Rows, group_folds
from metaprobe.training.methods import LinearScore, pays, weigh_parts
from metaprobe.training.thresholds import Surprise

Floats = NDArray[np.float64]


def forms_of(questions: Sequence[str]) -> NDArray[np.float32] | None:
    """Returns the form of each question (n, 5); None if a question was not stored."""
    form_of_text = {text: question_form(text) for text in dict.fromkeys(questions)}
    forms = np.array([form_of_text[text] for text in questions], np.float32)
    return forms if len(forms) and np.isfinite(forms).all() else None


@dataclass(frozen=True, slots=True, eq=False)
class QuestionScore:
    """Calibrated log-odds computed from counts of the question."""

    linear: LinearScore
    """Maps the counts to log-odds, Platt's map included."""
    unseen: Floats
    """Log-odds (n,) of the learning rows, from fits that saw no answer of the row's group; NaN for other rows."""


def fit_question_score(
    counts: NDArray[np.floating], y: NDArray[np.int64], groups: NDArray[np.str_], rows: Rows, *, folds: int, seed: int
) -> QuestionScore | None:
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
        platt = fit_platt(unseen[rows], y[rows])
    except RecordError:
        return None
    if not platt.slope > 0:  # on groups left out, higher scores are not likelier good
        return None
    raw = _fit_linear(counts, y, rows)
    weights, intercept = platt.slope * raw.weights, platt.slope * raw.intercept + platt.intercept
    return QuestionScore(LinearScore(raw.mean, raw.scale, weights, float(intercept)), platt.logit(unseen))


def _fit_linear(X: NDArray[np.floating], y: NDArray[np.int64], rows: Rows) -> LinearScore:
    """Returns a logistic regression on the standardised columns, with a normal prior of 1 on each weight."""
    values = X[rows].astype(np.float64)
    centre, spread = values.mean(axis=0), values.std(axis=0)
    spread = np.where(spread > SAME_VALUE * (1 + np.abs(centre)), spread, 1.0)
    fit = fit_offsets((values - centre) / spread, y[rows], np.full(len(rows), ""))
    return LinearScore(centre, spread, fit.weights, fit.rates.mean)


@dataclass(frozen=True, slots=True, eq=False)
class JoinedLook:
    """The judgement at one look of answers that come with their question."""

    platt: Platt
    """Maps the score of the log-probabilities to log-odds."""
    form: LinearScore
    """Maps the form of the question (5,) to log-odds."""
    weights: Floats
    """Weights of the two log-odds: those from the log-probabilities, and those from the form of the question."""
    shift: float
    calibrator: Calibrator
    """Maps the joined score to P(good). It rises strictly, so a threshold on the probability is also one on the score.
    """
    surprise: Surprise

    def score(self, logprob_scores: Floats, forms: NDArray[np.floating]) -> Floats:
        """Returns log-odds (n,), from the score of the log-probabilities (n,) and the forms (n, 5)."""
        logits = np.array([self.platt.logit(logprob_scores), self.form(forms)])
        return np.asarray(self.weights @ logits + self.shift)

    def add_to(
        self, graph: GraphBuilder, *, logprob_score: str, forms: str, logprob_probability: str, output: str
    ) -> None:
        """Adds P(good) to a graph, as `output` (n, 1).

        Args:
            graph: the graph that is being written.
            logprob_score: the score of the log-probabilities (n, 1) in the graph.
            forms: the forms (n, 5) in the graph, NaN in the rows of answers without their question.
            logprob_probability: P(good) by the log-probabilities alone (n, 1), which is the output of such rows.
            output: the name of the output.
        """
        scaled = graph.add("Mul", logprob_score, graph.number(self.platt.slope))
        logit = graph.add("Add", scaled, graph.number(self.platt.intercept))
        centred = graph.add("Sub", forms, graph.number(self.form.mean))
        form_sum = graph.add("MatMul", centred, graph.number((self.form.weights / self.form.scale)[:, None]))
        form_odds = graph.add("Add", form_sum, graph.number([self.form.intercept]))
        two_odds = graph.add("Concat", logit, form_odds, axis=1)
        weighted = graph.add("MatMul", two_odds, graph.number(self.weights[:, None]))
        joined = self.calibrator.add_to(graph, graph.add("Add", weighted, graph.number([self.shift])))
        absent = graph.add("IsNaN", form_odds)
        graph.add("Where", absent, logprob_probability, joined, name=output)


def join_question(
    forms: NDArray[np.float32],
    y: NDArray[np.int64],
    groups: NDArray[np.str_],
    roles: Roles,
    *,
    unseen: Floats,
    calibration_scores: Floats,
    folds: int,
    seed: int,
) -> JoinedLook | None:
    """Returns how a look reads the form of the question; None if the form does not pay.

    The form pays if it lowers the log loss on groups left out by more than a standard error. Raises `RecordError` if
    the calibration rows hold only one class.

    Args:
        forms: form (n, 5) of the question of each answer.
        y: 1 for good answers.
        groups: the group of each answer.
        roles: the learning and calibration rows of the look.
        unseen: scores of the learning rows by the log-probabilities, from fits that saw no answer of the row's group.
        calibration_scores: scores of the calibration rows by the log-probabilities.
        folds: number of folds of `fit_question_score`.
        seed: seed of the folds.
    """
    rows, calibrating = roles.learning, roles.calibration
    platt = fit_platt(unseen, y[rows], rising=True)
    unseen_odds = np.full(len(y), np.nan)
    unseen_odds[rows] = platt.logit(unseen)
    form_score = fit_question_score(forms, y, groups, rows, folds=folds, seed=seed)
    one_run = np.zeros(len(y), dtype=np.int64)  # a gate knows no base rates of runs
    if form_score is None or not pays(form_score.unseen, unseen_odds[None], y, groups.tolist(), one_run, rows, seed):
        return None
    two_odds = np.array([unseen_odds[rows], form_score.unseen[rows]])
    weights, rates = weigh_parts(two_odds, y[rows], one_run[rows])
    shift = rates.mean
    surprise = Surprise.fit((weights @ two_odds + shift)[y[rows] == 1])
    scores = weights @ np.array([platt.logit(calibration_scores), form_score.linear(forms[calibrating])]) + shift
    calibrator = rising_calibrator(scores, y[calibrating], groups[calibrating].tolist(), seed=seed)
    return JoinedLook(platt, form_score.linear, weights, float(shift), calibrator, surprise)
