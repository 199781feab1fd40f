"""Fits the models of a panel: how likely each answer is right, and each class of equal answers.

Two small models, each fitted on groups that the one before has not seen:

- the answers' odds: a logistic regression on an answer's own signals, its agent and its dimension, whose effects are
  shrunk by `training.panel.effects`;
- the classes' probabilities: a conditional logistic regression (McFadden 1974) over the classes of equal answers and
  "none of these", on votes, odds and mean signals. It is fitted on draws of every size, so that it knows what two
  answers say as well as what sixteen do. Where several different answers can be right, or it is not known which are
  the same, each class has a logistic regression of its own in place of the softmax.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.routing.panel.model_rows import (
    AgentProfiles,
    Answers,
    Classes,
    Floats,
    Ints,
    Mask,
    answer_columns,
    answer_rows,
    class_rows,
)
from metaprobe.training.folds import group_folds
from metaprobe.training.panel.effects import fit_effects
from metaprobe.training.panel.labelled_panels import Panels, agents_in, right_classes
from metaprobe.training.trees import Trees

MIN_PANEL_GROUPS = 50
"""Fewest groups of questions for learning a panel."""
PANEL_FOLDS = 4
"""Number of inner folds. They give odds and probabilities of answers that the models have not seen."""
DRAW_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of answers in a draw. A size is used for questions that have so many answers."""
DRAWS_PER_SIZE = 4
"""Number of draws of each size for each question."""
PENALTY = 10.0
"""L2 penalty of the classes' weights, per standard deviation of their columns, on the summed loss of the questions."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A linear score of rows: weights (F,) of the columns as they are, and an intercept."""

    weights: Floats
    intercept: float = 0.0

    def score(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Returns the scores (...) of rows (..., F)."""
        return np.asarray(X @ self.weights + self.intercept)


@dataclass(frozen=True, slots=True, eq=False)
class FittedPanel:
    """The models of a panel, before their export."""

    agents: AgentProfiles
    odds: Linear
    classes: Linear
    exclusive: bool
    gain: Trees | None
    """Trees that give the gain of asking on; None if the answers are of several agents."""

    def classes_of(self, answers: Answers, odds: Floats | None = None) -> tuple[Classes, Floats]:
        """Returns the classes of panels, and P(right) of each class and of "none of these", (b, c + 1).

        `odds` (b, k): log-odds of the answers; by default from this fit.
        """
        odds = self.odds.score(answer_rows(answers, self.agents)) if odds is None else odds
        classes = class_rows(answers, odds, self.agents, exclusive=self.exclusive)
        return classes, probabilities(classes, self.classes.score(classes.rows), self.exclusive)


def probabilities(classes: Classes, scores: Floats, exclusive: bool) -> Floats:
    """Returns P(right) (b, c + 1) of each class and of "none of these", from scores (b, c + 1)."""
    if exclusive:
        return softmax_rows(scores, with_none(classes.there))
    right = np.where(classes.there, 1 / (1 + np.exp(-scores[:, :-1])), 0.0)
    return np.concatenate([right, np.prod(1 - right, axis=1, keepdims=True)], axis=1)


def with_none(there: Mask) -> Mask:
    """Returns which classes (b, c) exist, and a last column for "none of these", which always does."""
    return np.concatenate([there, np.ones((len(there), 1), dtype=bool)], axis=1)


def softmax_rows(scores: Floats, legal: Mask) -> Floats:
    """Returns the probabilities (b, c + 1) of scores (b, c + 1); 0 for columns that are not `legal`."""
    raised = np.where(legal, scores, -np.inf)
    raised = np.exp(raised - raised.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def renumbered(answers: Answers) -> Answers:
    """Returns the answers with the classes of each panel numbered from 0 in order of appearance."""
    k = answers.answer_class.shape[1]
    first = (answers.answer_class[:, :, None] == answers.answer_class[:, None, :]).argmax(
        axis=2
    )  # place of the class's first answer
    opens = (first == np.arange(k)) & (answers.answer_class >= 0) & answers.present
    number = np.cumsum(opens, axis=1) - 1
    form = np.where((answers.answer_class >= 0) & answers.present, np.take_along_axis(number, first, axis=1), -1)
    return Answers(form, answers.agent, answers.dimension, answers.scaled, answers.present)


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Answers with their odds (b, k) and labels (b, k), which are drawn together."""

    answers: Answers
    odds: Floats
    right: Floats

    def rows(self, rows: Ints) -> "Placed":
        """Returns the panels of these rows."""
        return Placed(self.answers.rows(rows), self.odds[rows], self.right[rows])

    def draw(self, size: int, rng: np.random.Generator) -> "Placed":
        """Returns `size` answers of each panel, drawn without replacement, with their classes numbered anew.

        A panel with fewer answers keeps all of them.
        """
        rank = np.where(self.answers.present, rng.random(self.answers.present.shape), 2.0)
        columns = np.argsort(rank, axis=1)[:, :size]
        odds, right = (np.take_along_axis(values, columns, axis=1) for values in (self.odds, self.right))
        return Placed(renumbered(self.answers.take(columns)), odds, right)

    def first(self, size: int) -> "Placed":
        """Returns the first `size` answers of each panel. The classes keep their numbers."""
        columns = np.broadcast_to(np.arange(size), (len(self.odds), size))
        return Placed(self.answers.take(columns), self.odds[:, :size], self.right[:, :size])


@dataclass(frozen=True, slots=True, eq=False)
class CrossFitPanel:
    """A panel fitted on all questions, and models by fold: each question has models fitted without its group."""

    fitted: FittedPanel
    fold: Ints
    """Inner fold of each question (n,)."""
    placed: Placed
    """Answers of the questions, with log-odds from models that were fitted on the other folds."""
    models: tuple[FittedPanel, ...]
    """For each fold, the panel that was fitted on the other folds."""


def cross_fit(data: Panels, *, seed: int = 0, on_step: Callable[[str], None] = lambda _: None) -> CrossFitPanel:
    """Fits odds and classes on these questions, and for each inner fold on the others."""
    rng = np.random.default_rng(seed)
    agents, exclusive = agents_in(data), data.exclusive
    answers, fold = data.answers(agents), _fold_numbers(data, seed)
    odds = np.zeros(data.answer_class.shape)
    for number in range(PANEL_FOLDS):
        test_rows = np.flatnonzero(fold == number)
        model = _fit_odds(data.take(np.flatnonzero(fold != number)), agents)
        odds[test_rows] = model.score(answer_rows(answers.rows(test_rows), agents))
    placed = Placed(answers, odds, data.right)
    odds_model = _fit_odds(data, agents)
    models = []
    for number in range(PANEL_FOLDS):
        on_step(f"fold {number + 1} of {PANEL_FOLDS}")
        classes = _fit_classes(placed.rows(np.flatnonzero(fold != number)), agents, exclusive, rng)
        models.append(FittedPanel(agents, odds_model, classes, exclusive, None))
    on_step("fit on all questions")
    classes = _fit_classes(placed, agents, exclusive, rng)
    return CrossFitPanel(FittedPanel(agents, odds_model, classes, exclusive, None), fold, placed, tuple(models))


def _fold_numbers(data: Panels, seed: int) -> Ints:
    """Returns the inner fold (n,) of each question, by group. Questions with many right answers are spread evenly."""
    share = np.nan_to_num(data.right).mean(axis=1)
    many = (share > np.median(share)).astype(np.int64)
    if min(np.bincount(many, minlength=2)) < PANEL_FOLDS:
        many = np.zeros(len(data), dtype=np.int64)
    number = np.zeros(len(data), dtype=np.int64)
    for fold, (_, part) in enumerate(group_folds(np.arange(len(data)), data.groups, many, PANEL_FOLDS, seed + 1)):
        number[part] = fold
    return number


def _fit_odds(data: Panels, agents: AgentProfiles) -> Linear:
    """Fits the answers' log-odds of being right, on answers that can be read and have a label."""
    answers = data.answers(agents)
    is_labelled = data.present & (data.answer_class >= 0) & np.isfinite(data.right)
    A, D, width = len(agents.names), len(agents.dimensions), len(answer_columns(agents))
    y = data.right[is_labelled]
    if not len(y) or y.min() == y.max():
        rate = (y.sum() + 1) / (len(y) + 2)
        return Linear(np.zeros(width), float(np.log(rate / (1 - rate))))
    scaled, lead = answers.scaled[is_labelled], None
    others = [s for s, name in enumerate(agents.signals) if name != agents.leading]
    if agents.leading:
        lead = scaled[:, agents.signals.index(agents.leading)]
    dimension = np.broadcast_to(answers.dimension[:, None], is_labelled.shape)[is_labelled]
    found = fit_effects(answers.agent[is_labelled], dimension, y, (A, D), lead=lead, others=scaled[:, others])
    # The effects as weights of `answer_columns`: what all agents share, then what each adds, everywhere and on each
    # dimension. With one agent there is no column of an agent, and all of its own is shared.
    signals = np.zeros(len(agents.signals))
    signals[others] = found.others
    weights = [signals]
    usual = [table[:, D].mean() for table in (found.intercept, found.slope)]
    tables = list(zip((found.intercept, found.slope), usual, strict=True))[: 2 if agents.leading else 1]
    if A > 1:
        weights += [table[:, D] - mean for table, mean in tables]
    weights += [(table[:, :D] - table[:, D:]).ravel() for table, _ in tables]
    if agents.leading:
        signals[agents.signals.index(agents.leading)] = usual[1]
    return Linear(np.concatenate(weights), float(usual[0]))


def _fit_classes(placed: Placed, agents: AgentProfiles, exclusive: bool, rng: np.random.Generator) -> Linear:
    """Fits the classes' scores on draws of every size. The draws of one question weigh as one question together."""
    count = placed.answers.present.sum(axis=1)
    tables: list[tuple[NDArray[np.float32], NDArray[np.bool_], Floats]] = []
    for size in [s for s in DRAW_SIZES if s < count.max()] + [int(count.max())]:
        enough = placed.rows(np.flatnonzero(count >= min(size, 2)))
        for _ in range(DRAWS_PER_SIZE):
            drawn = enough.draw(size, rng)
            classes = class_rows(drawn.answers, drawn.odds, agents, exclusive=exclusive)
            tables.append((classes.rows, classes.there, class_right(drawn)))
    return _solve(tables, len(count) / sum(len(table[0]) for table in tables), exclusive)


def class_right(placed: Placed) -> Floats:
    """Returns for each class (b, c) whether it is right: the majority of its labelled answers. 0 without any."""
    return right_classes(placed.answers.answer_class, placed.answers.present, placed.right)


def _solve(
    tables: Sequence[tuple[NDArray[np.float32], NDArray[np.bool_], Floats]], weight: float, exclusive: bool
) -> Linear:
    """Minimises the penalised loss over tables of rows (b, c + 1, F), classes that are there and labels (b, c).

    `weight`: of each panel's loss. A column that never varies has weight 0.
    """
    optimize = require("scipy.optimize", "fit")
    F = tables[0][0].shape[2]
    used = np.concatenate([X[with_none(exists)] for X, exists, _ in tables])
    spread = used.astype(np.float64).std(axis=0)
    spread = np.where(spread > 1e-9, spread, np.inf)
    scaled = [(X / spread, exists, with_none(exists), y, _targets(y * exists)) for X, exists, y in tables]

    def loss(beta: Floats) -> tuple[float, Floats]:
        total, gradient = 0.5 * PENALTY * float(beta @ beta), PENALTY * beta
        for X, exists, legal, y, target in scaled:
            S = X @ beta
            if exclusive:
                p = softmax_rows(S, legal)
                total -= weight * float((target * np.log(np.maximum(p, 1e-12))).sum())
                error = weight * (target - p)
            else:
                logit = S[:, :-1]
                share = weight * exists / np.maximum(exists.sum(axis=1), 1)[:, None]
                total += float((share * (np.logaddexp(0, logit) - y * logit)).sum())
                error = np.zeros(S.shape)
                error[:, :-1] = share * (y - 1 / (1 + np.exp(-logit)))
            gradient = gradient - np.einsum("bc,bcf->f", error, X)
        return total, gradient

    fit = optimize.minimize(loss, np.zeros(F), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return Linear(np.asarray(fit.x) / spread)


def _targets(right: Floats) -> Floats:
    """Returns the probabilities (b, c + 1) that a fit aims at: the right classes (b, c) share 1, or none has it."""
    count = right.sum(axis=1, keepdims=True)
    return np.concatenate([right / np.maximum(count, 1.0), 1.0 - np.minimum(count, 1.0)], axis=1)


def kept_right(placed: Placed, kept: Ints) -> Floats:
    """Returns whether the kept class (b,) is right; 0 where none is kept."""
    labels = class_right(placed)
    return np.where(kept >= 0, labels[np.arange(len(kept)), np.maximum(kept, 0)], 0.0)
