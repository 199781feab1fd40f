"""Fits the models of a panel and its ways to choose whom to ask, and plays questions by models that have not seen them.

Two small models, each fitted on groups that the one before has not seen, and trees for samples of one agent:

- the answers' odds: a logistic regression on an answer's own signals, its agent and its dimension, whose effects are
  shrunk by `training.panel_effects`;
- the classes' probabilities: a conditional logistic regression (McFadden 1974) over the classes of equal answers and
  "none of these", on votes, odds and mean signals. It was fitted on draws of every size, so that it knows what two
  answers say as well as what sixteen do. Where several different answers can be right, or it is not known which are
  the same, each class has a logistic regression of its own in place of the softmax;
- the gain of asking on, for samples of one agent: trees on the panel's state, whose target is "right in the end minus
  right now", halfway between outcome and probability, which has less noise.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.routing.panel import Panel
from metaprobe.routing.panel_asks import (
    AGREE,
    ASKED_ON,
    ASKS,
    CASCADE,
    GAIN,
    GAIN_MARGIN,
    KEEPS_LAST,
    MAX_AFTER,
    MOST_ASKED,
    ONE,
    PRICED,
    QUESTION_BUCKETS,
    SUREST_BEFORE,
    TABLE,
    WORDS,
    After,
    Asking,
    AskPlan,
    AskSetting,
    Curves,
    QuestionWords,
    ask_rows,
    chance_of,
    hull_corners,
    kept_by,
    mixed,
    neighbours,
    next_agent,
    probability_of,
    word_buckets,
)
from metaprobe.routing.panel_cascade import FURTHEST_ODDS, Surety
from metaprobe.routing.panel_rows import (
    ANSWER_SIGNALS,
    JOINT,
    PANEL_STATE,
    PICKS,
    STATED,
    UNREADABLE_CLASS,
    Agents,
    Answers,
    Classes,
    Floats,
    Ints,
    Mask,
    answer_columns,
    answer_rows,
    class_rows,
    pick,
    state_rows,
)
from metaprobe.routing.panel_sources import FROM_LOGPROBS, is_from, mean_confidence, source_for
from metaprobe.training.folds import group_folds
from metaprobe.training.ladder import Trees, float32_thresholds
from metaprobe.training.panel_data import Panels, agents_in, right_classes
from metaprobe.training.panel_effects import fit_effects

MIN_PANEL_GROUPS = 50
"""Groups of questions that a panel is learned from at least."""
PANEL_FOLDS = 4
"""Inner folds, on which odds and probabilities are made of answers that their models have not seen."""
DRAW_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Answers of a draw; those that a question has enough of."""
DRAWS_PER_SIZE = 4
"""Draws of each size, for each question."""
PENALTY = 10.0
"""L2 penalty of the classes' weights, per standard deviation of their columns, on the summed loss of the questions."""
GAIN_TREES: Mapping[str, Any] = {
    "objective": "regression",
    "num_leaves": 8,
    "min_data_in_leaf": 200,
    "learning_rate": 0.05,
    "rounds": 120,
}
ORDERS = 6
"""Random orders of each question's answers that are played."""


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

    agents: Agents
    odds: Linear
    classes: Linear
    exclusive: bool
    gain: Trees | None
    """Trees of the gain of asking on; None where the answers are of several agents."""

    def classes_of(self, answers: Answers, odds: Floats | None = None) -> tuple[Classes, Floats]:
        """Returns the classes of panels and P(right) of each and of none, (b, c + 1).

        `odds` (b, k): by default those of this fit.
        """
        odds = self.odds.score(answer_rows(answers, self.agents)) if odds is None else odds
        classes = class_rows(answers, odds, self.agents, exclusive=self.exclusive)
        return classes, probabilities(classes, self.classes.score(classes.rows), self.exclusive)


def probabilities(classes: Classes, scores: Floats, exclusive: bool) -> Floats:
    """Returns P(right) (b, c + 1) of each class and of none, from scores (b, c + 1)."""
    if exclusive:
        return softmax_rows(scores, classes.there)
    right = np.where(classes.there, 1 / (1 + np.exp(-scores[:, :-1])), 0.0)
    return np.concatenate([right, np.prod(1 - right, axis=1, keepdims=True)], axis=1)


def softmax_rows(scores: Floats, there: NDArray[np.bool_]) -> Floats:
    """Returns the probabilities (b, c + 1) of scores (b, c + 1): those of classes that are there, and of none."""
    raised = np.where(np.pad(there, ((0, 0), (0, 1)), constant_values=True), scores, -np.inf)
    raised = np.exp(raised - raised.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def renumbered(answers: Answers) -> Answers:
    """Returns the answers with the classes of each panel numbered from 0 in order of appearance."""
    k = answers.form.shape[1]
    first = (answers.form[:, :, None] == answers.form[:, None, :]).argmax(axis=2)  # place of the class's first answer
    opens = (first == np.arange(k)) & (answers.form >= 0) & answers.present
    number = np.cumsum(opens, axis=1) - 1
    form = np.where((answers.form >= 0) & answers.present, np.take_along_axis(number, first, axis=1), -1)
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
        at = np.argsort(rank, axis=1)[:, :size]
        odds, right = (np.take_along_axis(values, at, axis=1) for values in (self.odds, self.right))
        return Placed(renumbered(self.answers.take(at)), odds, right)

    def first(self, size: int) -> "Placed":
        """Returns the first `size` answers of each panel. The classes keep their numbers."""
        at = np.broadcast_to(np.arange(size), (len(self.odds), size))
        return Placed(self.answers.take(at), self.odds[:, :size], self.right[:, :size])


@dataclass(frozen=True, slots=True, eq=False)
class PlayedPanels:
    """Panels while they grow, answer by answer, judged by models that have not seen them: o orders of n questions."""

    groups: NDArray[np.str_]
    """(n,)"""
    right: Mapping[str, Floats]
    """Way to pick -> whether the kept answer is right after 1, ..., K answers, (o, n, K)."""
    states: NDArray[np.float32]
    """(o, n, K, len(STATE))"""
    counts: Ints
    """(o, n, K, 3): answers of the largest class, of the next, and how many of the latest are the same."""
    gain: Floats | None
    """(o, n, K): expected by trees that have not seen the question."""
    answers: Ints
    """(n,): how many there are of each question; a place beyond them repeats the last."""

    def with_gain(self, gain: Callable[[NDArray[np.float32]], Floats]) -> "PlayedPanels":
        """Returns the same with the expected gain, by a model of the states."""
        rows = self.states.reshape(-1, self.states.shape[-1])
        return replace(self, gain=np.asarray(gain(rows).reshape(self.states.shape[:-1])))

    @property
    def score(self) -> Floats:
        """(o, n, K): P(right) of the kept answer by the joint way."""
        return np.asarray(self.states[..., PANEL_STATE.index("kept")], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class CrossFitPanel:
    """A panel fitted on some questions, and for each of them models that were fitted without its group."""

    fitted: FittedPanel
    fold: Ints
    """(n,): inner fold of each question."""
    placed: Placed
    """Their answers, with the odds of models of the other folds."""
    models: tuple[FittedPanel, ...]
    """Holds, for each fold, the panel that was fitted on the other folds."""


def cross_fit(data: Panels, *, seed: int = 0, on_step: Callable[[str], None] = lambda _: None) -> CrossFitPanel:
    """Fits odds and classes on these questions, and for each inner fold on the others."""
    rng = np.random.default_rng(seed)
    agents, exclusive = agents_in(data), data.exclusive
    answers, fold = data.answers(agents), _fold_numbers(data, seed)
    odds = np.zeros(data.form.shape)
    for number in range(PANEL_FOLDS):
        here = np.flatnonzero(fold == number)
        model = _fit_odds(data.take(np.flatnonzero(fold != number)), agents)
        odds[here] = model.score(answer_rows(answers.rows(here), agents))
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


def play_panels(data: Panels, cross: CrossFitPanel, *, seed: int = 0) -> tuple[FittedPanel, PlayedPanels]:
    """Plays each question by models that have not seen its group. Of samples the panel gets the gain of asking on."""
    rng = np.random.default_rng([seed, 1])
    folds = [np.flatnonzero(cross.fold == number) for number in range(PANEL_FOLDS)]
    groups = np.array(data.groups)
    played = [
        play(model, cross.placed.rows(here), groups[here], rng) for model, here in zip(cross.models, folds, strict=True)
    ]
    fitted = cross.fitted
    if data.sampled and fitted.exclusive:
        gained = []
        for held in played:  # the gain of asking all the rest: the mean of the changes in outcome and probability
            right, score = held.right[JOINT], held.score
            gain = (right[..., -1:] - right[..., :-1] + score[..., -1:] - score[..., :-1]) / 2
            gained.append((held.states[..., :-1, :].reshape(-1, len(PANEL_STATE)), gain.ravel()))
        trees = [grow_gain(GAIN_TREES, gained, int(rng.integers(1 << 30)), without=fold) for fold in range(PANEL_FOLDS)]
        played = [one.with_gain(tree.score) for one, tree in zip(played, trees, strict=True)]
        fitted = replace(fitted, gain=grow_gain(GAIN_TREES, gained, int(rng.integers(1 << 30))))
    return fitted, _joined(played, np.argsort(np.concatenate(folds)))


def play(
    model: FittedPanel | Panel,
    placed: Placed,
    groups: NDArray[np.str_],
    rng: np.random.Generator,
    *,
    orders: int = ORDERS,
) -> PlayedPanels:
    """Returns what is known of these panels after each answer, in so many random orders of their answers."""
    n, K = placed.answers.form.shape
    right = {way: np.zeros((orders, n, K)) for way in PICKS}
    states = np.zeros((orders, n, K, len(PANEL_STATE)), dtype=np.float32)
    counts = np.zeros((orders, n, K, 3), dtype=np.int64)
    for number in range(orders):
        order = placed.draw(K, rng)
        form, in_a_row = order.answers.form, np.zeros(n, dtype=np.int64)
        for size in range(1, K + 1):
            last, part = form[:, size - 1], order.first(size)
            goes_on = last == form[:, size - 2] if size > 1 else np.zeros(n, dtype=bool)
            in_a_row = np.where(last >= 0, np.where(goes_on, in_a_row, 0) + 1, 0)  # 0 after one that is unreadable
            counts[number, :, size - 1, 2] = in_a_row
            classes, p = model.classes_of(part.answers, part.odds)
            for way in PICKS:
                kept = pick(way, classes, p)
                right[way][number, :, size - 1] = kept_right(part, kept)
            states[number, :, size - 1] = state_rows(classes, p, kept)
            largest = -np.sort(-classes.count, axis=1)[:, :2]
            counts[number, :, size - 1, : largest.shape[1]] = largest
    return PlayedPanels(groups, right, states, counts, None, placed.answers.present.sum(axis=1))


def _joined(parts: Sequence[PlayedPanels], order: Ints) -> PlayedPanels:
    """Returns the parts as one, with the questions in their first order."""

    def whole(values: Sequence[NDArray[Any]], axis: int = 1) -> NDArray[Any]:
        return np.take(np.concatenate(values, axis=axis), order, axis=axis)

    right = {way: whole([one.right[way] for one in parts]) for way in PICKS}
    states, counts = whole([one.states for one in parts]), whole([one.counts for one in parts])
    gains = [one.gain for one in parts if one.gain is not None]
    groups, answers = whole([one.groups for one in parts], 0), whole([one.answers for one in parts], 0)
    return PlayedPanels(groups, right, states, counts, whole(gains) if gains else None, answers)


def grow_gain(
    settings: Mapping[str, Any],
    parts: Sequence[tuple[NDArray[np.float32], Floats]],
    seed: int,
    *,
    without: int | None = None,
) -> Trees:
    """Fits the gain on the rows and targets of all parts but one, by trees of fixed parameters, without a search."""
    rest = [one for place, one in enumerate(parts) if place != without]
    X, y = (np.concatenate(columns) for columns in zip(*rest, strict=True))
    lightgbm, fixed = require("lightgbm", "fit"), {"deterministic": True, "force_row_wise": True, "num_threads": 1}
    parameters = {**settings, **fixed, "seed": seed, "verbosity": -1}
    rounds = parameters.pop("rounds")
    booster = lightgbm.train(parameters, lightgbm.Dataset(X, y), num_boost_round=rounds)
    return Trees(float32_thresholds(booster), dict(settings), float("nan"))


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


def _fit_odds(data: Panels, agents: Agents) -> Linear:
    """Fits the answers' log-odds of being right, on answers that can be read and have a label."""
    answers = data.answers(agents)
    known = data.present & (data.form >= 0) & np.isfinite(data.right)
    A, D, width = len(agents.names), len(agents.dimensions), len(answer_columns(agents))
    y = data.right[known]
    if not len(y) or y.min() == y.max():
        rate = (y.sum() + 1) / (len(y) + 2)
        return Linear(np.zeros(width), float(np.log(rate / (1 - rate))))
    scaled, lead = answers.scaled[known], None
    others = [s for s, name in enumerate(agents.signals) if name != agents.leading]
    if agents.leading:
        lead = scaled[:, agents.signals.index(agents.leading)]
    dimension = np.broadcast_to(answers.dimension[:, None], known.shape)[known]
    found = fit_effects(answers.agent[known], dimension, y, (A, D), lead=lead, others=scaled[:, others])
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


def _fit_classes(placed: Placed, agents: Agents, exclusive: bool, rng: np.random.Generator) -> Linear:
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
    return right_classes(placed.answers.form, placed.answers.present, placed.right)


def _solve(
    tables: Sequence[tuple[NDArray[np.float32], NDArray[np.bool_], Floats]], weight: float, exclusive: bool
) -> Linear:
    """Minimises the penalised loss over tables of rows (b, c + 1, F), classes that are there and labels (b, c).

    `weight`: of each panel's loss. A column that never varies has weight 0.
    """
    optimize = require("scipy.optimize", "fit")
    F = tables[0][0].shape[2]
    # The last row of a table is of "none of these", and always there.
    used = np.concatenate([X[np.pad(there, ((0, 0), (0, 1)), constant_values=True)] for X, there, _ in tables])
    spread = used.astype(np.float64).std(axis=0)
    spread = np.where(spread > 1e-9, spread, np.inf)
    scaled = [(X / spread, there, y) for X, there, y in tables]

    def loss(beta: Floats) -> tuple[float, Floats]:
        total, gradient = 0.5 * PENALTY * float(beta @ beta), PENALTY * beta
        for X, there, y in scaled:
            S = X @ beta
            if exclusive:
                p = softmax_rows(S, there)
                right = y * there
                none = 1.0 - np.minimum(right.sum(axis=1), 1.0)
                target = np.concatenate([right / np.maximum(right.sum(axis=1), 1.0)[:, None], none[:, None]], axis=1)
                total -= weight * float((target * np.log(np.maximum(p, 1e-12))).sum())
                error = weight * (target - p)
            else:
                logit = S[:, :-1]
                share = weight * there / np.maximum(there.sum(axis=1), 1)[:, None]
                total += float((share * (np.logaddexp(0, logit) - y * logit)).sum())
                error = np.zeros(S.shape)
                error[:, :-1] = share * (y - 1 / (1 + np.exp(-logit)))
            gradient = gradient - np.einsum("bc,bcf->f", error, X)
        return total, gradient

    fit = optimize.minimize(loss, np.zeros(F), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return Linear(np.asarray(fit.x) / spread)


def kept_right(placed: Placed, kept: Ints) -> Floats:
    """Returns whether the kept class (b,) is right; 0 where none is kept."""
    labels = class_right(placed)
    return np.where(kept >= 0, labels[np.arange(len(kept)), np.maximum(kept, 0)], 0.0)


# Whom to ask next: the ways to choose (`routing.panel_asks`) are fitted and tuned, and held against each other.
#
# Every way is tuned on the same questions, as finely as every other, with numbers that models of other groups gave. It
# is then played on groups left out, and which way decides at a budget follows from that. The settings that it mixes
# there are the ones tuned on all questions.


FEWEST_ASKED = 60
"""Groups of questions, all of whose agents were asked at a known price, that this is learned from at least."""
OUTER = 3
"""Folds by group in which the ways are held against each other."""
BUDGET_COUNT = 24
"""Number of budgets at which the ways to ask are compared."""
NEAR_BUDGETS = 3
"""Budgets on each side whose gains count as well where two ways are compared."""
LEAST_AHEAD = 0.003
"""Accuracy, beyond a standard error, by which a way must be ahead of the one that stands."""
PRICES = 300
"""Prices at which ways that ask one agent are tuned, beside 0 and one so high that only the cheapest is asked."""
GAIN_PRICES = 24
"""Prices at which the expected gain is."""
RANGE = (0.005, 30.0)
"""Accuracy that the mean cost of an answer must bring, at the lowest and the highest price."""
CUTS = 64
"""Thresholds of a cascade that are tried: quantiles of an agent's log-odds."""
MAX_CASCADE_AGENTS = 3
"""Agents of a cascade."""
LEAST_EQUAL = 0.05
"""Least share of pairs of answers to a question that are equal, for agreement to say something."""
MOST_IN_THREES = 12
"""Cheapest agents of which every three is tried."""
ASKED_SETS = 20
"""Random sets of asked agents that gains are learned from, for each question; one of them is empty."""
UNREADABLE_LOG_ODDS = -50.0
"""Log-odds of an answer that cannot be read."""
ASK_TREES: Mapping[str, Any] = {
    "objective": "regression",
    "num_leaves": 8,
    "min_data_in_leaf": 100,
    "learning_rate": 0.06,
    "rounds": 150,
}


def by_agent(data: Panels, agents: Sequence[str] = (), *, fewest: int = FEWEST_ASKED) -> Panels:
    """Returns the questions of which every agent answered once at a known price, with agent j's answer at place j.

    `agents`: in this order, by default all in that of the data; answers of others are left out. A failed call without a
    price has the agent's mean. Raises `RecordError` where fewer than `fewest` groups are left, or an agent is missing.
    """
    names = tuple(agents) or data.agents
    if missing := sorted(set(names) - set(data.agents)):
        raise RecordError(f"no answer of {', '.join(missing)} came; the answers are of {', '.join(data.agents)}")
    n, A = len(data), len(names)
    column = np.array([names.index(name) if name in names else -1 for name in data.agents])
    at = np.full((n, A), -1)
    once = np.ones(n, dtype=bool)
    for i in range(n):
        places = np.flatnonzero(data.present[i] & np.isfinite(data.score[i]) & (column[data.agent[i]] >= 0))
        at[i, column[data.agent[i, places]]] = places
        once[i] = len(places) == A and bool((at[i] >= 0).all())
    rows = np.flatnonzero(once)
    part, where = data.take(rows), at[rows]

    def ordered(values: NDArray[Any]) -> NDArray[Any]:
        if values.ndim == 3:
            return np.take_along_axis(values, where[..., None], axis=1)
        return np.take_along_axis(values, where, axis=1)

    cost, form = ordered(part.cost), ordered(part.form)
    for j in range(A):
        known = np.isfinite(cost[:, j])
        failed = ~known & (form[:, j] == UNREADABLE_CLASS)
        if known.any():
            cost[failed, j] = cost[known, j].mean()
    priced = np.isfinite(cost).all(axis=1)
    laid = replace(
        part,
        agents=names,
        agent=np.repeat(np.arange(A)[None], len(rows), axis=0),
        form=form,
        right=ordered(part.right),
        score=ordered(part.score),
        cost=cost,
        tokens=ordered(part.tokens),
        signals=ordered(part.signals),
        present=np.ones((len(rows), A), dtype=bool),
    ).take(np.flatnonzero(priced))
    if len(set(laid.groups)) < fewest:
        raise RecordError(
            f"{len(laid)} of {n} questions in {len(set(laid.groups))} groups have an answer with a cost of each of "
            f"{A} agents; expected at least {fewest} groups"
        )
    return laid


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Holds what is known about m questions if their agents are asked, by models that have not seen their groups."""

    model: FittedPanel | Panel
    gain: Callable[[NDArray[np.float32]], Floats] | None
    """Returns a number (n,) for rows (n, len(ASK_STATE))."""
    answers: Answers
    odds: Floats
    """(m, A)"""
    rate_here: Floats
    """(m, A): log-odds on the question's dimension."""
    chance: Floats
    """(m, A): P(right) before anybody is asked, with the question's words."""
    price: Floats
    """(m, A): expected US dollars for 1,000 answers."""
    score: Floats
    """(m, A): how good each answer is."""
    cost: Floats
    """(m, A): US dollars for 1,000 of what was paid."""
    sure: Surety | None = None
    """How far answers move P(right); None where no priced cascade is played."""

    @classmethod
    def of(cls, model: FittedPanel | Panel, data: Panels, answers: Answers, odds: Floats, **known: Any) -> "View":
        """Returns the view of questions with these answers, whose log-odds are `odds`.

        `known`: `gain`, `shift` of P(right) by the words, and by dimension (A, D + 1) `rate` and `price`.
        """
        rate = known.pop("rate")[:, answers.dimension].T
        return cls(
            model=model,
            answers=answers,
            odds=np.where(answers.form >= 0, odds, UNREADABLE_LOG_ODDS),
            rate_here=rate,
            chance=chance_of(rate, known.pop("shift")),
            price=known.pop("price")[:, answers.dimension].T,
            score=data.score,
            cost=1000 * data.cost,
            **known,
        )

    def known(self, rows: Ints, asked: Mask) -> Iterator[Asking]:
        """Returns what is known of each of these questions where these agents were asked."""
        answered = asked & (self.answers.form[rows] >= 0)
        numbers = [values[rows].tolist() for values in (self.odds, self.rate_here, self.chance, self.price)]
        forms = self.answers.form[rows].tolist()
        for was_asked, was_answered, form, odds, rate, chance, price in zip(
            asked.tolist(), answered.tolist(), forms, *numbers, strict=True
        ):
            left = [agent for agent, was in enumerate(was_asked) if not was]
            yield Asking(was_asked, was_answered, left, odds, rate, chance, price, form, self.sure)

    def judged(self, rows: Ints, asked: Mask, way: str) -> tuple[Ints, NDArray[np.float32]]:
        """Returns whose answer is kept (b,), -1 for nobody's, and the state of the panel (b, len(STATE))."""
        part = self.answers.rows(rows)
        form = np.where(asked, part.form, UNREADABLE_CLASS)
        answers = renumbered(Answers(form, part.agent, part.dimension, part.scaled, asked))
        odds = self.odds[rows]
        classes, p = self.model.classes_of(answers, odds)
        kept = pick(way, classes, p)
        member = (answers.form == kept[:, None]) & asked & (kept[:, None] >= 0)
        agent = np.where(member, odds, -np.inf).argmax(axis=1)
        return np.where(kept >= 0, agent, -1), state_rows(classes, p, kept)

    def rows(self, states: NDArray[np.float32], rows: Ints, asked: Mask) -> NDArray[np.float32]:
        """Returns the rows by which the gain of asking each agent is expected, (b, A, len(ASK_STATE))."""
        return ask_rows(states, self.chance[rows], ~asked, self.rate_here[rows])

    def kept_score(self, rows: Ints, agent: Ints) -> Floats:
        """Returns how good the kept answers are; 0 where none is kept."""
        return np.where(agent >= 0, self.score[rows, np.maximum(agent, 0)], 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class FittedAsks:
    """The ways, fitted and tuned on some questions."""

    panel: FittedPanel
    pick: str
    words: QuestionWords
    price: Floats
    """(A, D + 1): US dollars for 1,000 answers on each dimension, and in the last column over all."""
    gain: Trees | None
    """Trees of the expected gain; None where no way goes by the gain."""
    settings: dict[str, list[AskSetting]]
    """Way -> corners of its hull, cheapest first."""
    views: tuple[View, ...]
    """The questions of each inner fold, by models that have not seen their groups: the settings are tuned on them."""
    sure: Surety | None = None
    """How far answers move P(right); None where no priced cascade is played."""

    def spent(self, plan: AskPlan) -> Floats:
        """Returns US dollars for 1,000 of each question by a plan, (n,), in the order of the inner folds."""
        return np.concatenate([expected_at(view, plan, self.pick).cost for view in self.views])

    def view(self, data: Panels, counts: Any) -> View:
        """Returns what is known of other questions. `counts` (m, QUESTION_BUCKETS): of their words."""
        agents = self.panel.agents
        answers = data.answers(agents)
        odds = self.panel.odds.score(answer_rows(answers, agents))
        gain, shift = self.gain.score if self.gain else None, word_shifts(self.words, counts)
        known = {"gain": gain, "shift": shift, "rate": agents.rate, "price": self.price, "sure": self.sure}
        return View.of(self.panel, data, answers, odds, **known)


def fit_asks(
    data: Panels, counts: Any, cross: CrossFitPanel, way: str, *, ways: Sequence[str] = ASKS, seed: int = 0
) -> FittedAsks:
    """Fits and tunes ways on questions in the order of `by_agent`, by models that `cross_fit` made of them.

    `counts` (n, QUESTION_BUCKETS): the words of the questions. `way`: by which the panel picks the answer that is
    kept. `ways`: some of `ASKS`, by default all.
    """
    rng = np.random.default_rng([seed, 2])
    views = []
    for number, model in enumerate(cross.models):  # each inner fold, by what the other folds show
        here, rest = np.flatnonzero(cross.fold == number), np.flatnonzero(cross.fold != number)
        answers, odds, others = cross.placed.answers.rows(here), cross.placed.odds[here], data.take(rest)
        rate = agents_in(others).rate
        usual = probability_of(rate[:, others.dimension].T)
        shift = word_shifts(fit_words(counts[rest], others.score - usual), counts[here])
        known = {"gain": None, "shift": shift, "rate": rate, "price": mean_prices(others)}
        views.append(View.of(model, data.take(here), answers, odds, **known))
    learned = [_gained(view, way, rng) for view in views] if GAIN in ways else []
    if learned:
        trees = [grow_gain(ASK_TREES, learned, seed, without=fold) for fold in range(PANEL_FOLDS)]
        views = [replace(view, gain=tree.score) for view, tree in zip(views, trees, strict=True)]
    sure, signals = None, bool(cross.fitted.agents.leading)
    if PRICED in ways:
        sure = fit_surety(views, signals)
        ways = [name for name in ways if name != PRICED or signals]  # without signals it is the domain table
        views = [replace(view, sure=sure) for view in views]
    settings = _tuned(views, way, float(1000 * data.cost.mean()), ways)
    return FittedAsks(
        panel=cross.fitted,
        pick=way,
        words=fit_words(counts, data.score - probability_of(cross.fitted.agents.rate[:, data.dimension].T)),
        price=mean_prices(data),
        gain=grow_gain(ASK_TREES, learned, seed) if learned else None,
        settings=settings,
        views=tuple(views),
        sure=sure,
    )


AFTER_SD = (0.5, 0.3, 0.5, 0.5, 0.5)
"""Standard deviations of the priors around 0 of the weights of `panel_asks.AFTER_COLUMNS`, in log-odds."""


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """The kept answers of m questions once asking stopped, where one was kept."""

    before: Floats
    """(m,): P(right) of the kept answer by the panel, as if the answers had not been chosen."""
    answers: Ints
    """(m,): how many answers that can be read came."""
    agreeing: Ints
    """(m,): how many other answers are equal to the kept one."""
    score: Floats
    """(m,): how good the kept answer is."""
    weight: Floats
    """(m,): share of the plan's questions that this setting decides."""
    question: Ints
    """(m,): row of each question in its view. A question stands there once for each setting."""

    @property
    def columns(self) -> Floats:
        """(m, len(AFTER_COLUMNS))"""
        p = np.clip(self.before, SUREST_BEFORE, 1 - SUREST_BEFORE)
        return np.stack(
            [np.ones(len(p)), np.log(p / (1 - p)), self.answers == 2, self.answers > 2, self.agreeing > 0], axis=1
        ).astype(np.float64)

    def probability(self, after: After) -> Floats:
        """Returns what `After.probability` gives, (m,)."""
        X = self.columns
        return self.before if not any(after.weights) else probability_of(X[:, 1] + X @ np.array(after.weights))


def ended(view: View, plans: Sequence[AskPlan], way: str) -> Ended:
    """Returns how the plans end on the questions of a view, one plan after another."""
    parts: list[list[NDArray[Any]]] = []
    for plan in plans:
        for setting, share in ((plan.first, plan.share), (plan.second, 1 - plan.share)):
            if share <= 0:
                continue
            played = play_setting(view, setting, way)
            rows = np.flatnonzero(played.kept >= 0)
            part, asked = view.answers.rows(rows), played.asked[rows]
            form = np.where(asked, part.form, UNREADABLE_CLASS)
            answers = renumbered(Answers(form, part.agent, part.dimension, part.scaled, asked))
            _, p = view.model.classes_of(answers, view.odds[rows])
            own = answers.form[np.arange(len(rows)), played.kept[rows]]
            same = (answers.form == own[:, None]).sum(axis=1)
            came = (answers.form >= 0).sum(axis=1)
            before, score, weight = p[np.arange(len(rows)), own], played.score[rows], np.full(len(rows), share)
            parts.append([before, came, same - 1, score, weight, rows])
    return Ended(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def fit_after(held: Sequence[Ended]) -> After:
    """Returns the correction of P(right) after the play, by a logistic regression that is shrunk towards none."""
    X = np.concatenate([one.columns for one in held])
    y, weight = (np.concatenate([getattr(one, name) for one in held]) for name in ("score", "weight"))
    precision = np.diag(np.array(AFTER_SD) ** -2.0)
    w = np.zeros(X.shape[1])
    for _ in range(20):  # Newton's steps; from a start at no correction it takes a handful
        p = probability_of(X[:, 1] + X @ w)
        curvature = (X * (weight * p * (1 - p))[:, None]).T @ X + precision
        w = w + np.linalg.solve(curvature, X.T @ (weight * (y - p)) - precision @ w)
    return After(tuple(np.clip(w, -MAX_AFTER, MAX_AFTER).tolist()))


CARRIES = np.linspace(0.0, 1.2, 25)
"""Shares of an answer's surprise that are tried; the likeliest is taken."""
SLACK, SLACK_OF_FEW = 0.015, 10.0
"""Gain over the price from which a priced cascade asks on with many labels, and what is added to it, by the number of
questions learned from. Both were chosen on the development sets (`research.routing.data`)."""
SPREAD_PRIOR = 20.0
"""Answers that the spread of all agents weighs against an agent's own."""


def fit_surety(views: Sequence[View], signals: bool) -> Surety:
    """Returns how far answers move what is believed, of answers whose odds were made without their group.

    `signals`: whether answers bring any; else they move nothing.
    """
    odds, rate, score = (
        np.concatenate([getattr(view, name) for view in views]) for name in ("odds", "rate_here", "score")
    )
    came = np.concatenate([view.answers.form for view in views]) >= 0
    A = odds.shape[1]
    if not signals or not came.any():
        return Surety(np.zeros(A), 0.0, 0.0)
    apart = np.where(came, np.clip(odds, -FURTHEST_ODDS, FURTHEST_ODDS) - rate, 0.0)
    count = came.sum(axis=0)
    variance = (apart**2).sum(axis=0) - apart.sum(axis=0) ** 2 / np.maximum(count, 1)
    pooled = variance.sum() / max(count.sum() - A, 1)
    sure = Surety(
        np.sqrt((variance + SPREAD_PRIOR * pooled) / (count + SPREAD_PRIOR)), 0.0, SLACK + SLACK_OF_FEW / len(odds)
    )
    centre = sure.centred(rate)
    surprise = np.where(came, np.clip(odds, -FURTHEST_ODDS, FURTHEST_ODDS) - centre, 0.0)
    losses = np.zeros(len(CARRIES))
    for agent in range(A):
        rows, others = np.flatnonzero(came[:, agent]), [other for other in range(A) if other != agent]
        right, before = score[rows][:, others], centre[rows][:, others]
        for place, carry in enumerate(CARRIES.tolist()):
            logit = before + carry * surprise[rows, agent, None]
            losses[place] += float((np.logaddexp(0, logit) - right * logit).sum())
    return replace(sure, carry=float(CARRIES[int(losses.argmin())]))


def standing_way(ways: Collection[str], signals: bool) -> str:
    """Returns the way that stands where no other one is shown to be better: a priced cascade where answers bring
    signals, agreement where they can be equal, and else the domain table."""
    if signals and PRICED in ways:
        return PRICED
    return AGREE if AGREE in ways else TABLE


def cross_played(
    data: Panels,
    fitted: FittedAsks,
    crossed: Callable[[Ints], CrossFitPanel],
    *,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda _: None,
) -> tuple[Curves, dict[str, Floats]]:
    """Returns the settings with what each way came to on groups left out, where it was tuned on the other groups.

    Ways are compared at equal spending on the groups left out. Another way than the one that stands
    (`standing_way`) must be ahead of it there by a standard error of the difference, which grows as labels shrink, and
    by `LEAST_AHEAD`.

    `crossed`: returns the models of some of the questions. Second: way -> expected score of each question at each
    budget, (g, n), whose mean is the curve.
    """
    counts = count_words(data.questions)
    spent = [one.cost for settings in fitted.settings.values() for one in settings]
    budgets = np.geomspace(max(min(spent), 1e-9), max(max(spent), 2e-9), BUDGET_COUNT)
    came = {way: np.zeros((2, BUDGET_COUNT, len(data))) for way in fitted.settings}
    right = np.zeros(len(data), dtype=np.int64)
    for number, (rest, here) in enumerate(group_folds(np.arange(len(data)), data.groups, right, OUTER, seed)):
        on_step(f"whom to ask: fold {number + 1} of {OUTER}")
        part = data.take(rest)
        tuned = fit_asks(part, counts[rest], crossed(rest), fitted.pick, ways=tuple(fitted.settings), seed=seed)
        view = tuned.view(data.take(here), counts[here])
        for way in fitted.settings:
            settings = tuned.settings.get(way) or tuned.settings[ONE]  # answers may hardly ever be equal in a fold
            played = {one: play_setting(view, one, fitted.pick) for one in settings}
            for place, budget in enumerate(budgets.tolist()):
                first, second, share = mixed(settings, budget)
                both = expected_of(played[first], played[second], share)
                came[way][:, place, here] = both.score, both.cost
    held = {way: _at_spending(score, cost, budgets) for way, (score, cost) in came.items()}
    accuracy = {way: values.mean(axis=1) for way, values in held.items()}
    prior = standing_way(fitted.settings, bool(fitted.panel.agents.leading))
    margin = {}
    for way in held:
        if way != prior:  # both spend the same, also where one of the two cannot spend as little as the budget
            least = max(float(came[one][1].mean(axis=1).min()) for one in (way, prior))
            at = np.maximum(budgets, least)
            own, standing = (_at_spending(came[one][0], came[one][1], at) for one in (way, prior))
            margin[way] = accuracy[way] - accuracy[prior] - _surely_ahead(own - standing, data.groups)
    return Curves(fitted.settings, budgets, accuracy, margin), held


def _at_spending(score: Floats, cost: Floats, budgets: Floats) -> Floats:
    """Returns the scores (g, n) of a way where it spends each of the budgets (g,) on these very questions, from scores
    and costs (g, n) at plans for these budgets; or where it spends the most or the least that it does."""
    spent = cost.mean(axis=1)
    order = np.argsort(spent, kind="stable")
    found = np.zeros(score.shape)
    for place, budget in enumerate(budgets.tolist()):
        left, right, share = neighbours(spent[order].tolist(), budget)
        found[place] = share * score[order[left]] + (1 - share) * score[order[right]]
    return found


def _surely_ahead(gain: Floats, groups: Sequence[str]) -> Floats:
    """Returns by how much a way is ahead (g,) for sure, from its gain (g, n) on each question: a standard error over
    groups below the mean of neighbouring budgets, and `LEAST_AHEAD` below that. May be negative."""
    g, n = gain.shape
    number = np.unique(np.array(groups), return_inverse=True)[1]
    near = np.abs(np.arange(g)[:, None] - np.arange(g)) <= NEAR_BUDGETS
    smooth = near / near.sum(axis=1, keepdims=True) @ gain  # (g, n)
    mean = smooth.mean(axis=1)
    sums = np.zeros((g, number.max() + 1))
    np.add.at(sums.T, number, (smooth - mean[:, None]).T)
    return np.asarray(mean - np.sqrt((sums**2).sum(axis=1)) / n - LEAST_AHEAD)


def mean_prices(data: Panels) -> Floats:
    """Returns mean US dollars for 1,000 answers, (A, D + 1); last over all, which stands for an unseen dimension."""
    return by_dimension(1000 * data.cost, data)


def by_dimension(values: Floats, data: Panels) -> Floats:
    """Returns the means (A, D + 1) of what is known among values (n, A); of an unseen dimension those over all."""
    columns = []
    for rows in (*(data.dimension == d for d in range(len(data.dimensions))), np.ones(len(data), dtype=bool)):
        count = np.isfinite(values[rows]).sum(axis=0)
        columns.append(np.where(count, np.nansum(values[rows], axis=0) / np.maximum(count, 1), np.nan))
    return np.stack([np.where(np.isfinite(column), column, columns[-1]) for column in columns], axis=1)


def _gained(view: View, way: str, rng: np.random.Generator) -> tuple[NDArray[np.float32], Floats]:
    """Returns rows of random states, and what asking one agent more gained: halfway between outcome and probability."""
    m, A = view.score.shape
    rows = np.repeat(np.arange(m), ASKED_SETS)
    size = rng.integers(0, min(A, MOST_ASKED), size=len(rows))
    asked = rng.random((len(rows), A)).argsort(axis=1).argsort(axis=1) < size[:, None]
    asked[::ASKED_SETS] = False
    agent, states = view.judged(rows, asked, way)
    X = view.rows(states, rows, asked)
    state, added = np.nonzero(~asked)
    then = asked[state]
    then[np.arange(len(then)), added] = True
    agent_then, states_then = view.judged(rows[state], then, way)
    now, later = view.kept_score(rows, agent)[state], view.kept_score(rows[state], agent_then)
    expected = states_then[:, 0].astype(np.float64) - states[state, 0]
    return X[state, added], (later - now + expected) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Holds the result of one setting on m questions."""

    score: Floats
    """(m,): of the kept answer."""
    cost: Floats
    """(m,): US dollars for 1,000."""
    asked: Mask
    """(m, A)"""
    kept: Ints
    """(m,): whose answer is kept, -1 for nobody's."""
    order: Ints
    """(m, A): agents in the order in which they were asked, -1 after the last."""


def play_setting(view: View, setting: AskSetting, way: str) -> Played:
    """Plays a setting to its end on the questions of a view."""
    m, A = view.score.shape
    asked, order = np.zeros((m, A), dtype=bool), np.full((m, A), -1)
    active = np.arange(m)
    for step in range(A):
        if setting.way in KEEPS_LAST:
            known = view.known(active, asked[active])
            chosen = np.array([next_agent(setting, one) for one in known])
        elif setting.way == PRICED:
            chosen = _priced_next(view, setting, active, asked[active])
        else:
            chosen = _worthiest_next(view, setting, active, asked[active], way)
        active, chosen = active[chosen >= 0], chosen[chosen >= 0]
        if not len(active):
            break
        asked[active, chosen] = True
        order[active, step] = chosen
    answered = asked & (view.answers.form >= 0)
    kept = np.array([kept_by(setting, *one) for one in zip(answered.tolist(), view.odds.tolist(), strict=True)])
    judged = np.flatnonzero(kept < 0)
    if len(judged):
        kept[judged] = view.judged(judged, asked[judged], way)[0]
    return Played(view.kept_score(np.arange(m), kept), (view.cost * asked).sum(axis=1), asked, kept, order)


def _worthiest_next(view: View, setting: AskSetting, rows: Ints, asked: Mask, way: str) -> Ints:
    """Returns what `next_agent` does on these questions, (b,), by a way that asks whom its number favours."""
    left, rate = ~asked, view.rate_here[rows]
    done = (asked & (view.answers.form[rows] >= 0)).any(axis=1)
    merit = probability_of(rate) if setting.way == TABLE else view.chance[rows]
    if setting.way == GAIN:
        assert view.gain is not None
        _, states = view.judged(rows, asked, way)
        X = view.rows(states, rows, asked)
        merit = view.gain(X.reshape(-1, X.shape[2])).reshape(X.shape[:2])
    legal = left & np.isin(np.arange(asked.shape[1]), setting.agents)
    value = np.where(legal, merit - setting.price * view.price[rows], -np.inf)
    best, worth = value.argmax(axis=1), value.max(axis=1)
    goes_on = ~done & legal.any(axis=1)
    if setting.way == GAIN:
        goes_on |= done & (worth > GAIN_MARGIN) & (asked.sum(axis=1) < MOST_ASKED)
    likeliest = np.where(left, rate, -np.inf).argmax(axis=1)
    return np.where(goes_on, best, np.where(~done & left.any(axis=1), likeliest, -1))


def _priced_next(view: View, setting: AskSetting, rows: Ints, asked: Mask) -> Ints:
    """Returns whom a priced cascade asks next on these questions, (b,); -1 where it stops."""
    assert view.sure is not None
    legal = np.isin(np.arange(asked.shape[1]), setting.agents)
    answered = asked & (view.answers.form[rows] >= 0)
    known = (view.rate_here[rows], view.price[rows], ~asked & legal, view.odds[rows], answered)
    return view.sure.worth(setting.price, *known)[1]


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Expectation of two settings that are mixed, (m,) each."""

    score: Floats
    cost: Floats
    """US dollars for 1,000 questions."""
    asked: Floats
    """How many agents are asked."""


def expected_of(one: Played, two: Played, share: float) -> Expected:
    """Returns what two settings come to, of which the first decides this share of the questions."""
    return Expected(
        share * one.score + (1 - share) * two.score,
        share * one.cost + (1 - share) * two.cost,
        share * one.asked.sum(axis=1) + (1 - share) * two.asked.sum(axis=1),
    )


def _tuned(views: Sequence[View], way: str, cost: float, ways: Sequence[str]) -> dict[str, list[AskSetting]]:
    """Returns for each way the settings on its upper hull. `cost`: mean US dollars for 1,000 answers."""
    A = views[0].score.shape[1]
    everybody = tuple(range(A))
    cost = cost or 1.0  # where every answer is free, a price changes nothing
    lambdas = np.concatenate([[0.0], np.geomspace(*RANGE, PRICES) / cost, [1e9 / cost]]).tolist()
    few = np.geomspace(*RANGE, GAIN_PRICES) / cost
    of_cascade = np.concatenate([[0.0], few, [1e9 / cost]]).tolist()
    candidates: dict[str, list[AskSetting]] = {
        ONE: [AskSetting(ONE, 0.0, (agent,), (), 0.0, 0.0) for agent in everybody],
        TABLE: [AskSetting(TABLE, value, everybody, (), 0.0, 0.0) for value in lambdas],
        PRICED: [AskSetting(PRICED, value, everybody, (), 0.0, 0.0) for value in of_cascade],
        AGREE: _agreements(views) if AGREE in ways else [],
        WORDS: [AskSetting(WORDS, value, everybody, (), 0.0, 0.0) for value in lambdas],
        CASCADE: _cascades(views) if CASCADE in ways else [],
        GAIN: [AskSetting(GAIN, float(value), everybody, (), 0.0, 0.0) for value in few],
    }
    assert tuple(candidates) == ASKS
    tuned = {}
    for name, settings in candidates.items():
        if name not in ways or not settings:
            continue
        if name in (ONE, TABLE, WORDS):
            costs, scores, settings = _of_one(views, settings, name)
        else:
            played = [[play_setting(view, one, way) for view in views] for one in settings]
            costs = np.array([np.concatenate([part.cost for part in parts]).mean() for parts in played])
            if name == PRICED:
                believed = [
                    [_believed(view, part) for view, part in zip(views, parts, strict=True)] for parts in played
                ]
                scores = np.array([np.concatenate(parts).mean() for parts in believed])
            else:
                scores = np.array([np.concatenate([part.score for part in parts]).mean() for parts in played])
        tuned[name] = [
            replace(settings[corner], cost=float(costs[corner]), accuracy=float(scores[corner]))
            for corner in hull_corners(costs, scores)
        ]
    return tuned


def _believed(view: View, played: Played) -> Floats:
    """Returns P(right) of the kept answers by their own odds, (m,); 0 where none is kept."""
    odds = np.take_along_axis(view.odds, np.maximum(played.kept, 0)[:, None], axis=1)[:, 0]
    return np.where(played.kept >= 0, probability_of(odds), 0.0)


def _agreements(views: Sequence[View]) -> list[AskSetting]:
    """Returns the threes that are on the upper hull of all threes, and the single agents, where the last answer is
    kept. Empty where answers hardly ever are equal."""
    score, cost = (np.concatenate([getattr(view, name) for view in views]) for name in ("score", "cost"))
    form = np.concatenate([view.answers.form for view in views])
    A = score.shape[1]
    equal = (form[:, :, None] == form[:, None, :]) & (form >= 0)[:, :, None]
    if equal[:, ~np.eye(A, dtype=bool)].mean() < LEAST_EQUAL:
        return []
    by_cost = np.argsort(cost.mean(axis=0), kind="stable").tolist()
    points = [(float(cost[:, a].mean()), float(score[:, a].mean())) for a in by_cost]
    chains: list[tuple[int, ...]] = [(a,) for a in by_cost]
    for i, j, k in permutations(by_cost[:MOST_IN_THREES], 3):
        if by_cost.index(i) < by_cost.index(j):
            same, read = equal[:, i, j], form[:, [i, j, k]] >= 0
            own = np.where(
                same, score[:, j], np.where(read[:, 2], score[:, k], np.where(read[:, 1], score[:, j], score[:, i]))
            )
            points.append((float((cost[:, i] + cost[:, j] + ~same * cost[:, k]).mean()), float(own.mean())))
            chains.append((i, j, k))
    corners = hull_corners(*np.array(points).T)
    return [AskSetting(AGREE, 0.0, chains[corner], (), *points[corner]) for corner in corners]


def _cascades(views: Sequence[View]) -> list[AskSetting]:
    """Returns the chains that are on the upper hull of all chains and thresholds, where the last answer is kept."""
    score, cost, odds = (np.concatenate([getattr(view, name) for view in views]) for name in ("score", "cost", "odds"))
    by_cost = np.argsort(cost.mean(axis=0), kind="stable").tolist()
    points: list[tuple[float, float]] = []
    made: list[AskSetting] = []
    for length in range(1, MAX_CASCADE_AGENTS + 1):
        for chain in combinations(by_cost, length):
            cuts = []
            for agent in chain[:-1]:  # quantiles, one below all to stop for sure and one above to go on
                inner = np.unique(np.quantile(odds[:, agent], np.linspace(0, 1, CUTS), method="higher"))
                cuts.append(np.concatenate([[inner[0] - 1], inner, [inner[-1] + 1]]))
            costs, scores = _at_all_cuts(score, cost, odds, chain, cuts)
            for corner in hull_corners(costs.ravel(), scores.ravel()):
                at = np.unravel_index(corner, costs.shape)
                points.append((float(costs[at]), float(scores[at])))
                thresholds = tuple(float(cut[place]) for cut, place in zip(cuts, at, strict=True))
                made.append(AskSetting(CASCADE, 0.0, chain, thresholds, *points[-1]))
    return [made[corner] for corner in hull_corners(*np.array(points).T)]


def _at_all_cuts(
    score: Floats, cost: Floats, odds: Floats, chain: tuple[int, ...], cuts: list[Floats]
) -> tuple[Floats, Floats]:
    """Returns mean cost and mean score of a chain at all its thresholds: one axis for each of `cuts`."""
    # An answer goes on at every threshold above its odds: it counts from place `at` of the cuts on.
    place = [np.searchsorted(cut, odds[:, agent], side="right") for agent, cut in zip(chain, cuts, strict=False)]
    shape = tuple(len(cut) for cut in cuts)
    costs, scores = np.full(shape, cost[:, chain[0]].mean()), np.full(shape, score[:, chain[0]].mean())
    for depth in range(1, len(chain)):
        sizes = [size + 1 for size in shape[:depth]]  # the last place is of odds above every threshold
        where = np.ravel_multi_index(place[:depth], sizes)
        before, agent = chain[depth - 1], chain[depth]
        for total, adds in ((costs, cost[:, agent]), (scores, score[:, agent] - score[:, before])):
            counted = np.bincount(where, weights=adds, minlength=int(np.prod(sizes))).reshape(sizes)
            for axis in range(depth):
                counted = np.cumsum(counted, axis=axis)
            kept = counted[tuple(slice(0, size) for size in shape[:depth])] / len(score)
            total += kept.reshape(kept.shape + (1,) * (len(shape) - depth))
    return costs, scores


def _of_one(views: Sequence[View], settings: Sequence[AskSetting], way: str) -> tuple[Floats, Floats, list[AskSetting]]:
    """Returns the same of ways that ask one agent, and the settings: those that choose alike on all questions are one.

    Their accuracy is what the models expect, but for single agents: which corner of the hull was lucky is not learned
    by mistake. A setting has the middle of their prices: at the edge of such a run other questions, whose P(right) is a
    little surer, would be dealt with as at the next price.
    """
    chance = np.concatenate([view.chance if way == WORDS else probability_of(view.rate_here) for view in views])
    price = np.concatenate([view.price for view in views])
    best = [(chance - one.price * price)[:, list(one.agents)].argmax(axis=1) for one in settings]
    agent = np.stack([np.array(one.agents)[at] for one, at in zip(settings, best, strict=True)])
    score, cost = (np.concatenate([getattr(view, name) for view in views]) for name in ("score", "cost"))
    starts = np.flatnonzero(np.concatenate([[True], (agent[1:] != agent[:-1]).any(axis=1)]))
    middle = (starts + np.append(starts[1:], len(agent)) - 1) // 2
    rows, counted = np.arange(len(score)), score if way == ONE else chance
    return (
        np.array([cost[rows, agent[at]].mean() for at in middle]),
        np.array([counted[rows, agent[at]].mean() for at in middle]),
        [settings[at] for at in middle],
    )


# The next functions measure the words of a question for each agent (`metaprobe.routing.panel_asks`).

FEWEST_QUESTIONS = 3
"""Fewest questions that must hold a word for it to count."""
WORD_PENALTY = 20.0
"""L2 penalty on the words' weights, for vectors of length 1."""


def count_words(questions: Sequence[str]) -> Any:
    """Returns which buckets of words each question has, (n, QUESTION_BUCKETS) of 0 and 1 as scipy CSR."""
    sparse = require("scipy.sparse", "fit")
    places = [word_buckets(question) for question in questions]
    ends = np.cumsum([0, *(len(buckets) for buckets in places)])
    columns = np.concatenate(places) if places else np.empty(0, dtype=np.int64)
    return sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(questions), QUESTION_BUCKETS))


def fit_words(counts: Any, residual: Floats) -> QuestionWords:
    """Fits a ridge regression, on TF-IDF of the words (n, QUESTION_BUCKETS), of how far each score lies above what is
    usual, (n, A)."""
    linear = require("sklearn.linear_model", "fit")
    n, A = residual.shape
    seen = np.asarray(counts.sum(axis=0)).ravel()
    idf = np.where(seen >= FEWEST_QUESTIONS, np.log((1 + n) / (1 + seen)) + 1, 0.0)
    if not idf.any():
        return QuestionWords(np.zeros((0, A), dtype=np.float32), np.zeros(0, dtype=np.float32))
    X = counts.multiply(idf).tocsr()
    length = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    X = require("scipy.sparse", "fit").diags(1 / np.maximum(length, 1e-12)) @ X
    model = linear.Ridge(alpha=WORD_PENALTY, fit_intercept=False, solver="sparse_cg", tol=1e-4)
    coefficients = np.reshape(model.fit(X, residual).coef_, (A, QUESTION_BUCKETS))
    return QuestionWords((coefficients.T * idf[:, None]).astype(np.float32), (idf**2).astype(np.float32))


def word_shifts(words: QuestionWords, counts: Any) -> Floats:
    """Returns what `QuestionWords.shifts` gives, for many questions, (n, A)."""
    A = words.weights.shape[1]
    if not len(words.weights):
        return np.zeros((counts.shape[0], A))
    length = np.sqrt(np.asarray(counts @ words.squares.astype(np.float64)).ravel())
    sums = np.asarray(counts @ words.weights.astype(np.float64))
    return np.asarray(np.divide(sums, length[:, None], out=np.zeros_like(sums), where=length[:, None] > 0))


# Questions whose answers are known, played by the panel of a checkpoint: whom it asks, and what comes of it.


def expected_at(view: View, plan: AskPlan, way: str) -> Expected:
    """Returns what a plan comes to on the questions of a view. `way`: by which the answer that is kept is picked."""
    first, second = (play_setting(view, one, way) for one in (plan.first, plan.second))
    return expected_of(first, second, plan.share)


def with_learned_sources(panel: Panel, data: Panels) -> Panels:
    """Returns questions with confidences from the sources that the panel learned from; all others are left out.

    Where it learned from log-probabilities and these came, they give the confidence.
    """
    agents = panel.agents
    if STATED not in agents.signals:
        return data
    signals, place = data.signals.copy(), ANSWER_SIGNALS.index(STATED)
    with np.errstate(over="ignore"):
        mean = -np.exp(signals[..., ANSWER_SIGNALS.index("mean")])
    for column, name in enumerate(data.agents):
        at = 0 if len(agents.names) == 1 else agents.agent(name)
        learned = source_for(panel.sources, agents.names[at] if at < len(agents.names) else None)
        own = data.agent == column
        if is_from(learned, data.sources.get(name, "")):
            continue
        levels = agents.scales[at][agents.signals.index(STATED)]
        known = [mean_confidence(one, levels) if learned in FROM_LOGPROBS else np.nan for one in mean[own].tolist()]
        signals[own, place] = known
    return replace(data, signals=signals)


def other_sources(panel: Panel, data: Panels) -> str:
    """Returns which confidences of the questions the panel cannot read, for they are from another source than those
    that it learned from; empty where there are none."""
    if STATED not in panel.agents.signals:
        return ""
    came = data.present & np.isfinite(data.signals[..., ANSWER_SIGNALS.index(STATED)])
    read = np.isfinite(with_learned_sources(panel, data).signals[..., ANSWER_SIGNALS.index(STATED)])
    lost = came & ~read
    if not lost.any():
        return ""
    names = sorted({data.agents[at] for at in data.agent[lost].tolist()})
    return (
        f"{int(lost.sum())} confidences (of {', '.join(names)}) are from another source than those that the panel "
        "learned from, and were left out"
    )


def view_of(panel: Panel, data: Panels) -> View:
    """Returns what the panel of a checkpoint knows of questions in the order of its agents."""
    assert panel.asks is not None
    agents, data = panel.agents, with_learned_sources(panel, data)
    where = np.array([agents.dimension(name) for name in data.dimensions] + [len(agents.dimensions)])
    dimension = where[data.dimension]
    answers = data.answers(agents, dimension=dimension)
    shift = np.stack([panel.asks.words.shifts(text) for text in data.questions])
    told = {"gain": panel.gain, "shift": shift, "rate": agents.rate, "price": panel.asks.price, "sure": panel.asks.sure}
    return View.of(panel, data, answers, panel.odds(answers), **told)


def played_by(panel: Panel, data: Panels, *, seed: int = 0, orders: int = ORDERS) -> PlayedPanels:
    """Returns the questions played by the panel of a checkpoint, in so many random orders of their answers."""
    data = with_learned_sources(panel, data)
    who = np.array([0 if len(panel.agents.names) == 1 else panel.agents.agent(name) for name in data.agents])
    where = np.array([panel.agents.dimension(name) for name in data.dimensions] + [len(panel.agents.dimensions)])
    answers = data.answers(panel.agents, agent=who[data.agent], dimension=where[data.dimension])
    placed = Placed(answers, panel.odds(answers), data.right)
    held = play(panel, placed, np.array(data.groups), np.random.default_rng(seed), orders=orders)
    # Where several answers can be right no gain is learned, and no way to stop goes by one.
    by_gain = any(one.way == ASKED_ON for one in panel.settings)
    return held.with_gain(panel.gain) if data.sampled and by_gain else held
