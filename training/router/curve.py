"""The curve of a learned router in accuracy, cost and waiting, from questions that it was fitted without.

Budgets are read off it. Beside it stand the same numbers of two simpler ways, so that the router can step back where
they are better: the fixed rule that it falls back to, and each agent alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.routing.learned_budget import Alone, Point
from metaprobe.training.folds import group_folds
from metaprobe.training.router.data import Floats, Ints, Outcomes
from metaprobe.training.router.fit import LAMBDAS, STATES, Board, FittedRouter, cost_scale, fit_router, time_scale
from metaprobe.training.router.rows import Mask, Rates
from metaprobe.training.router.words import Words

FOLDS = 5
"""Outer folds by group."""
POINTS = 24
"""Lambdas of the curve."""
SAMPLE = 400
"""Questions of each fold's fit that are played by it too, for `HeldOut.surer`."""
WAITS = 8
"""Prices of waiting, where times are known, each with every third lambda."""


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """What a way of routing came to at k pairs of prices on n questions."""

    score: Floats
    """(k, n) of the kept answers. Of logged decisions the terms whose mean is the doubly robust estimate
    (`metaprobe.eval.ope`), and so below."""
    cost: Floats
    """(k, n) realised US dollars for 1,000 questions, of everybody asked."""
    seconds: Floats
    """(k, n) realised, one after another; NaN where not recorded."""

    @classmethod
    def empty(cls, k: int, n: int) -> "Reached":
        return cls(*(np.full((k, n), np.nan) for _ in range(3)))

    def put(self, columns: Ints, part: "Reached") -> None:
        self.score[:, columns], self.cost[:, columns], self.seconds[:, columns] = part.score, part.cost, part.seconds


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """The curve, every question played by a router that was fitted without its group."""

    rates: Rates
    """(k,): first those without a price of waiting, lambda rising."""
    learned: Reached
    rule: Reached
    """Of the fixed rule at the same prices."""
    each: Reached
    """(A, n): of every agent alone; NaN where that is not known."""
    surer: Floats
    """(k,): cost of a question by a fit without it, over that by a fit that had it: on what it was fitted on a router
    is surer, and asks less."""
    success: Floats
    """(n, A): P(right) when everybody up to the limit has been asked at random, NaN where unknown; for the AUROC."""
    asked: NDArray[np.bool_]
    """(n, A): who had been asked then."""


def rates_of(data: Outcomes) -> Rates:
    """The pairs of prices of the curve."""
    lambdas = np.geomspace(*LAMBDAS, POINTS) / cost_scale(data)
    if not data.timed:
        return Rates.of(lambdas)
    seconds = np.geomspace(*LAMBDAS, WAITS) / time_scale(data)
    some = lambdas[::3]
    return Rates(
        np.concatenate([lambdas, np.tile(some, WAITS)]),
        np.concatenate([np.zeros(POINTS), np.repeat(seconds, len(some))]),
    )


def cross_played(data: Outcomes, words: Words, *, folds: int = FOLDS, seed: int = 0, states: int = STATES) -> HeldOut:
    """Fits a router for each outer fold without it, and plays it there at every pair of prices of the curve."""
    n, A = data.score.shape
    rates = rates_of(data)
    learned, rule = Reached.empty(len(rates), n), Reached.empty(len(rates), n)
    each = Reached.empty(A, n) if data.logged else Reached(data.score.T, 1000 * data.cost.T, data.seconds.T)
    success, asked = np.full((n, A), np.nan), np.zeros((n, A), dtype=bool)
    mostly_right: Ints = (np.nanmean(data.score, axis=1) > 0.5).astype(np.int64)
    rng = np.random.default_rng(seed + 1)
    known, times = np.zeros((len(rates), n)), np.zeros(n)
    for rest, fold in group_folds(np.arange(n), data.groups, mostly_right, folds, seed + 1):
        fitted = fit_router(data, words, rest, seed=seed, states=states)
        board = fitted.board(data, words, fold)
        learned.put(fold, play_prices(board, fitted, rates))
        rule.put(fold, by_rule(board, rates))
        some = np.sort(rng.choice(rest, size=min(SAMPLE, len(rest)), replace=False))
        known[:, some] += play_prices(fitted.board(data, words, some), fitted, rates).cost
        times[some] += 1
        if data.logged:  # everybody is offered then
            each.put(fold, each_alone(board))
        had = board.data.known & (rng.random(board.data.score.shape) < 0.3) & ~board.data.failed
        columns = np.ix_(fold, np.array(fitted.offered))
        asked[columns], success[columns] = had, board.success(np.arange(len(fold)), had)
    twice = times > 0
    by_known = (known[:, twice] / times[twice]).mean(axis=1)
    by_others = learned.cost[:, twice].mean(axis=1)
    surer = np.divide(by_others, by_known, out=np.ones(len(rates)), where=by_known > 0)
    return HeldOut(rates, learned, rule, each, surer, np.where(data.known, success, np.nan), asked)


def play_prices(board: Board, fitted: FittedRouter, rates: Rates) -> Reached:
    """The learned way at k pairs of prices."""
    n, A = board.data.score.shape
    k = len(rates)
    question = np.tile(np.arange(n), k)
    each = rates.take(np.repeat(np.arange(k), n))
    mask, p = board.play(fitted.gain, question, np.zeros((n * k, A), dtype=bool), each)
    return _came_to(board, mask, board.kept(question, mask, p), k)


def by_rule(board: Board, rates: Rates) -> Reached:
    """The fixed rule at k pairs of prices."""
    n, A = board.data.score.shape
    k = len(rates)
    question, each = np.tile(np.arange(n), k), rates.take(np.repeat(np.arange(k), n))
    chosen = choices_by_rule(board, question, each)
    mask = np.arange(A) == chosen[:, None]
    for _ in range(0 if board.data.logged else A - 1):  # the next best is asked where one failed
        left = board.data.legal[question] & ~mask
        again = np.flatnonzero(board.data.failed[question, chosen] & left.any(axis=1))
        if not len(again):
            break
        chosen[again] = choices_by_rule(board, question[again], each.take(again), left[again])
        mask[again, chosen[again]] = True
    return _came_to(board, mask, chosen, k)


def choices_by_rule(board: Board, question: Ints, rates: Rates, legal: Mask | None = None) -> Ints:
    """(b,) columns: the agent of highest past rate on the dimension less its dues, of those that can be asked.

    `legal`, (b, A): of these alone.
    """
    chance = 1 / (1 + np.exp(-board.views.rate[question]))
    legal = board.data.legal[question] if legal is None else legal
    return np.asarray(np.where(legal, chance - board.views.dues(question, rates), -np.inf).argmax(axis=1))


def each_alone(board: Board) -> Reached:
    """Each agent asked every question, (A, n)."""
    n, A = board.data.score.shape
    kept = np.repeat(np.arange(A), n)
    return _came_to(board, np.arange(A) == kept[:, None], kept, A)


def _came_to(board: Board, mask: Mask, kept: Ints, k: int) -> Reached:
    data, n = board.data, len(board.data)
    question = np.tile(np.arange(n), k)
    if data.logged:
        return Reached(*(terms.reshape(k, n) for terms in _doubly_robust(board, question, kept)))
    cost = 1000 * np.where(mask, data.cost[question], 0.0).sum(axis=1)
    seconds = np.where(mask, data.seconds[question], 0.0).sum(axis=1)
    return Reached(*(found.reshape(k, n) for found in (data.score[question, kept], cost, seconds)))


def _doubly_robust(board: Board, question: Ints, kept: Ints) -> tuple[Floats, Floats, Floats]:
    """(b,) terms of score, cost and seconds of asking `kept`; NaN where it could not have been asked.

    What is expected of it, and where it was the one asked, what came of it beyond that, by 1 / propensity.
    """
    data, views = board.data, board.views
    n, A = data.score.shape
    success = board.success(np.arange(n), np.zeros((n, A), dtype=bool))
    weight = np.where(data.legal, data.weight, np.nan)[question, kept]

    def terms(expected: Floats, came: Floats) -> Floats:
        beyond = np.nan_to_num(came[question, kept] - expected[question, kept])
        return np.asarray(expected[question, kept] + weight * beyond)

    waited = terms(views.seconds, data.seconds) if data.timed else np.full(len(question), np.nan)
    return terms(success, data.score), terms(views.price, 1000 * data.cost), waited


def curve_of(held_out: HeldOut, fitted: FittedRouter, data: Outcomes, words: Words, rows: Ints) -> list[Point]:
    """What each pair of prices gives with this very fit, on questions like the ones it was made from.

    Two fits at one lambda can differ by a tenth in what they spend. So cost and waiting are this fit's own on the rows
    that it was made from, corrected for its being surer of them, and the accuracy is what the fits without a question's
    group reached at that cost.
    """
    rates, own = held_out.rates, play_prices(fitted.board(data, words, rows), fitted, held_out.rates)
    spent, accuracy = own.cost.mean(axis=1) * held_out.surer, np.zeros(len(rates))
    for second in np.unique(rates.second):
        here = np.flatnonzero(rates.second == second)
        here = here[np.argsort(held_out.learned.cost[here].mean(axis=1))]
        cost, reached = held_out.learned.cost[here].mean(axis=1), held_out.learned.score[here].mean(axis=1)
        accuracy[here] = np.interp(spent[here], cost, reached)
    return _points(rates, accuracy, spent, own.seconds.mean(axis=1) * held_out.surer)


def rule_of(held_out: HeldOut) -> list[Point]:
    """The same of the fixed rule."""
    rule = held_out.rule
    return _points(held_out.rates, rule.score.mean(axis=1), rule.cost.mean(axis=1), rule.seconds.mean(axis=1))


def _points(rates: Rates, accuracy: Floats, cost: Floats, seconds: Floats) -> list[Point]:
    return [
        Point(lambda_, right, spent, per_second, None if np.isnan(waited) else waited)
        for lambda_, right, spent, per_second, waited in zip(
            *(column.tolist() for column in (rates.dollar, accuracy, cost, rates.second, seconds)), strict=True
        )
    ]


def alone_of(held_out: HeldOut, agents: Sequence[str]) -> list[Alone]:
    """Each agent of which it is known for every question."""
    each = held_out.each
    return [
        Alone(agents[column], right, spent, None if np.isnan(waited) else waited)
        for column, (right, spent, waited) in enumerate(
            zip(*(found.mean(axis=1).tolist() for found in (each.score, each.cost, each.seconds)), strict=True)
        )
        if not np.isnan(right)
    ]
