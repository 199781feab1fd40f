"""Fits and tunes the ways to choose whom to ask next (`routing.panel.planner`).

Every way is tuned on the same questions, as finely as every other, with numbers that models of other groups gave.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.routing.panel.model_rows import Floats, answer_rows
from metaprobe.routing.panel.planner import (
    AGREE,
    ASKS,
    CASCADE,
    GAIN,
    MOST_ASKED,
    ONE,
    PRICED,
    TABLE,
    WORDS,
    AskPlan,
    AskSetting,
    QuestionWords,
    hull_corners,
    probability_of,
)
from metaprobe.routing.panel.priced_cascade import FURTHEST_ODDS, Surety
from metaprobe.training.panel.fitted_panel import PANEL_FOLDS, CrossFitPanel, FittedPanel
from metaprobe.training.panel.labelled_panels import Panels, agents_in
from metaprobe.training.panel.played_asks import Played, View, expected_at, play_setting
from metaprobe.training.panel.played_panels import grow_gain
from metaprobe.training.panel.question_words import fit_words, word_shifts
from metaprobe.training.trees import Trees

PRICES = 300
"""Number of prices at which the ways that ask one agent are tuned, besides price 0 and a price at which only the
cheapest agent is asked.
"""
GAIN_PRICES = 24
"""Number of prices at which the way by expected gain is tuned."""
RANGE = (0.005, 30.0)
"""Lowest and highest price that is tried: the accuracy that must be gained for the mean cost of one answer."""
CUTS = 64
"""Number of thresholds of a cascade that are tried: quantiles of an agent's log-odds."""
MAX_CASCADE_AGENTS = 3
"""Most agents in a cascade."""
LEAST_EQUAL = 0.05
"""Least share of the pairs of answers to a question that are equal, for agreement to be used."""
MOST_IN_THREES = 12
"""Number of cheapest agents of which every combination of three is tried."""
ASKED_SETS = 20
"""Number of random sets of asked agents, for each question, from which the gains are learned. One of them is empty."""
ASK_TREES: Mapping[str, Any] = {
    "objective": "regression",
    "num_leaves": 8,
    "min_data_in_leaf": 100,
    "learning_rate": 0.06,
    "rounds": 150,
}
CARRIES = np.linspace(0.0, 1.2, 25)
"""Values of `Surety.carry` that are tried; the likeliest is taken."""
SLACK, SLACK_OF_FEW = 0.015, 10.0
"""Gain over the price from which a priced cascade asks on with many labels, and what is added to it, by the number of
questions learned from. Both were chosen on the development sets (`research.routing.data`)."""
SPREAD_PRIOR = 20.0
"""Weight of the spread over all agents against an agent's own spread, in answers."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedAsks:
    """The ways to ask, fitted and tuned on some questions."""

    panel: FittedPanel
    pick: str
    words: QuestionWords
    price: Floats
    """Price (A, D + 1) of 1,000 answers on each dimension, in US dollars; the last column is over all dimensions."""
    gain: Trees | None
    """Trees that give the expected gain; None if no way uses the gain."""
    settings: dict[str, list[AskSetting]]
    """Maps a way to ask to the settings at the corners of its hull (accuracy over cost), the cheapest first."""
    views: tuple[View, ...]
    """Questions of each inner fold, judged by models that have not seen their groups. The settings are tuned on them.
    """
    sure: Surety | None = None
    """How far one answer changes the expected P(right) of the others; None if no priced cascade is played."""

    def spent(self, plan: AskPlan) -> Floats:
        """Returns US dollars for 1,000 of each question by a plan, (n,), in the order of the inner folds."""
        return np.concatenate([expected_at(view, plan, self.pick).cost for view in self.views])

    def view(self, data: Panels, counts: Any) -> View:
        """Returns the view of m other questions by these models. `counts` (m, QUESTION_BUCKETS): their word counts."""
        agents = self.panel.agents
        answers = data.answers(agents)
        odds = self.panel.odds.score(answer_rows(answers, agents))
        gain, shift = self.gain.score if self.gain else None, word_shifts(self.words, counts)
        view_fields = {"gain": gain, "shift": shift, "rate": agents.rate, "price": self.price, "sure": self.sure}
        return View.of(self.panel, data, answers, odds, **view_fields)


def fit_asks(
    data: Panels, counts: Any, cross: CrossFitPanel, way: str, *, ways: Sequence[str] = ASKS, seed: int = 0
) -> FittedAsks:
    """Fits and tunes the ways to ask on questions in the order of `by_agent`, with the models of `cross_fit`.

    Args:
        data: the questions.
        counts: counts (n, QUESTION_BUCKETS) of the questions' words.
        cross: models by inner fold.
        way: way to pick the answer that is kept.
        ways: some of `ASKS`; by default all.
        seed: seed of draws and fits.
    """
    rng = np.random.default_rng([seed, 2])
    views = []
    for number, model in enumerate(cross.models):  # each inner fold, by what the other folds show
        test_rows, train_rows = np.flatnonzero(cross.fold == number), np.flatnonzero(cross.fold != number)
        answers, odds, others = (
            cross.placed.answers.rows(test_rows),
            cross.placed.odds[test_rows],
            data.take(train_rows),
        )
        rate = agents_in(others).rate
        usual = probability_of(rate[:, others.dimension].T)
        shift = word_shifts(fit_words(counts[train_rows], others.score - usual), counts[test_rows])
        view_fields = {"gain": None, "shift": shift, "rate": rate, "price": mean_prices(others)}
        views.append(View.of(model, data.take(test_rows), answers, odds, **view_fields))
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


def fit_surety(views: Sequence[View], signals: bool) -> Surety:
    """Returns how far one answer changes the expected P(right) of others, fitted on the answers of these views.

    `signals`: whether answers have signals. Without signals they change nothing.
    """
    odds, rate, score = (
        np.concatenate([getattr(view, name) for view in views]) for name in ("odds", "rate_here", "score")
    )
    is_readable = np.concatenate([view.answers.answer_class for view in views]) >= 0
    A = odds.shape[1]
    if not signals or not is_readable.any():
        return Surety(np.zeros(A), 0.0, 0.0)
    odds_beyond_rate = np.where(is_readable, np.clip(odds, -FURTHEST_ODDS, FURTHEST_ODDS) - rate, 0.0)
    count = is_readable.sum(axis=0)
    variance = (odds_beyond_rate**2).sum(axis=0) - odds_beyond_rate.sum(axis=0) ** 2 / np.maximum(count, 1)
    pooled = variance.sum() / max(count.sum() - A, 1)
    sure = Surety(
        np.sqrt((variance + SPREAD_PRIOR * pooled) / (count + SPREAD_PRIOR)), 0.0, SLACK + SLACK_OF_FEW / len(odds)
    )
    centre = sure.centred(rate)
    surprise = np.where(is_readable, np.clip(odds, -FURTHEST_ODDS, FURTHEST_ODDS) - centre, 0.0)
    losses = np.zeros(len(CARRIES))
    for agent in range(A):
        rows, others = np.flatnonzero(is_readable[:, agent]), [other for other in range(A) if other != agent]
        right, before = score[rows][:, others], centre[rows][:, others]
        for place, carry in enumerate(CARRIES.tolist()):
            logit = before + carry * surprise[rows, agent, None]
            losses[place] += float((np.logaddexp(0, logit) - right * logit).sum())
    return replace(sure, carry=float(CARRIES[int(losses.argmin())]))


def mean_prices(data: Panels) -> Floats:
    """Returns mean US dollars for 1,000 answers, (A, D + 1); last over all, which stands for an unseen dimension."""
    return by_dimension(1000 * data.cost, data)


def by_dimension(values: Floats, data: Panels) -> Floats:
    """Returns the means (A, D + 1) of the known values (n, A) by dimension. A dimension without values gets the mean
    over all dimensions.
    """
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
            played = [[play_setting(view, setting, way) for view in views] for setting in settings]
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
    form = np.concatenate([view.answers.answer_class for view in views])
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
            same_answer = np.where(
                same, score[:, j], np.where(read[:, 2], score[:, k], np.where(read[:, 1], score[:, j], score[:, i]))
            )
            points.append((float((cost[:, i] + cost[:, j] + ~same * cost[:, k]).mean()), float(same_answer.mean())))
            chains.append((i, j, k))
    corners = hull_corners(*np.array(points).T)
    return [AskSetting(AGREE, 0.0, chains[corner], (), *points[corner]) for corner in corners]


def _cascades(views: Sequence[View]) -> list[AskSetting]:
    """Returns the chains that are on the upper hull of all chains and thresholds, where the last answer is kept."""
    score, cost, odds = (np.concatenate([getattr(view, name) for view in views]) for name in ("score", "cost", "odds"))
    by_cost = np.argsort(cost.mean(axis=0), kind="stable").tolist()
    points: list[tuple[float, float]] = []
    cascades: list[AskSetting] = []
    for length in range(1, MAX_CASCADE_AGENTS + 1):
        for chain in combinations(by_cost, length):
            cuts = []
            for agent in chain[:-1]:  # quantiles, one below all to stop for sure and one above to go on
                inner = np.unique(np.quantile(odds[:, agent], np.linspace(0, 1, CUTS), method="higher"))
                cuts.append(np.concatenate([[inner[0] - 1], inner, [inner[-1] + 1]]))
            costs, scores = _at_all_cuts(score, cost, odds, chain, cuts)
            for corner in hull_corners(costs.ravel(), scores.ravel()):
                thresholds_at = np.unravel_index(corner, costs.shape)
                points.append((float(costs[thresholds_at]), float(scores[thresholds_at])))
                thresholds = tuple(float(cut[place]) for cut, place in zip(cuts, thresholds_at, strict=True))
                cascades.append(AskSetting(CASCADE, 0.0, chain, thresholds, *points[-1]))
    return [cascades[corner] for corner in hull_corners(*np.array(points).T)]


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
    """Returns mean cost, mean accuracy, and the setting, for each setting of a way that asks one agent.

    Neighbouring settings that choose the same agents for all questions are merged into the middle one. At the edge of
    their prices, a question with a slightly higher P(right) would get the agent of the next price.

    For the way `ONE` the accuracy is the mean score. For other ways it is the mean P(right) of the models, so that a
    setting is not preferred because it was lucky on these questions.
    """
    chance = np.concatenate([view.chance if way == WORDS else probability_of(view.rate_here) for view in views])
    price = np.concatenate([view.price for view in views])
    best = [(chance - setting.price * price)[:, list(setting.agents)].argmax(axis=1) for setting in settings]
    agent = np.stack([np.array(setting.agents)[place] for setting, place in zip(settings, best, strict=True)])
    score, cost = (np.concatenate([getattr(view, name) for view in views]) for name in ("score", "cost"))
    starts = np.flatnonzero(np.concatenate([[True], (agent[1:] != agent[:-1]).any(axis=1)]))
    middle = (starts + np.append(starts[1:], len(agent)) - 1) // 2
    rows, counted = np.arange(len(score)), score if way == ONE else chance
    return (
        np.array([cost[rows, agent[place]].mean() for place in middle]),
        np.array([counted[rows, agent[place]].mean() for place in middle]),
        [settings[place] for place in middle],
    )
