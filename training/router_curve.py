"""The cost-accuracy curve of a learned router, from questions that it was fitted without: what budgets are read off."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.routing.learned_budget import Point
from metaprobe.training.roles import group_folds
from metaprobe.training.router_data import Floats, Ints, Outcomes, Words
from metaprobe.training.router_fit import LAMBDAS, STATES, Board, FittedRouter, cost_scale, fit_router

FOLDS = 5
"""Outer folds by group."""
POINTS = 24
"""Lambdas of the curve."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """The curve, every question played by a router that was fitted without its group."""

    lambdas: Floats
    """(k,) rising."""
    score: Floats
    """(k, n) of the kept answers."""
    cost: Floats
    """(k, n) realised US dollars for 1,000 questions, of everybody asked."""
    success: Floats
    """(n, A): P(right) when everybody up to the limit has been asked at random, NaN where unknown; for the AUROC."""
    asked: NDArray[np.bool_]
    """(n, A): who had been asked then."""


def cross_played(data: Outcomes, words: Words, *, folds: int = FOLDS, seed: int = 0, states: int = STATES) -> HeldOut:
    """Fits a router for each outer fold without it, and plays it there at every lambda of the curve."""
    n, A = data.score.shape
    lambdas = np.geomspace(*LAMBDAS, POINTS) / cost_scale(data)
    score, cost = np.zeros((POINTS, n)), np.zeros((POINTS, n))
    success, asked = np.full((n, A), np.nan), np.zeros((n, A), dtype=bool)
    mostly_right: Ints = (np.nanmean(data.score, axis=1) > 0.5).astype(np.int64)
    rng = np.random.default_rng(seed + 1)
    for rest, fold in group_folds(np.arange(n), data.groups, mostly_right, folds, seed + 1):
        fitted = fit_router(data, words, rest, seed=seed, states=states)
        board = fitted.board(data, words, fold)
        score[:, fold], cost[:, fold] = played(board, fitted, lambdas)
        had = board.data.known & (rng.random(board.data.score.shape) < 0.3)
        columns = np.ix_(fold, np.array(fitted.offered))
        asked[columns], success[columns] = had, board.success(np.arange(len(fold)), had)
    return HeldOut(lambdas, score, cost, np.where(data.known, success, np.nan), asked)


def played(board: Board, fitted: FittedRouter, lambdas: Floats) -> tuple[Floats, Floats]:
    """Score of the kept answer and realised cost for 1,000 questions, (k, n) each, at k lambdas."""
    n, A = board.data.score.shape
    k = len(lambdas)
    question = np.tile(np.arange(n), k)
    mask, p = board.play(fitted.gain, question, np.zeros((n * k, A), dtype=bool), np.repeat(lambdas, n))
    kept = np.where(mask, p, -1.0).argmax(axis=1)
    cost = 1000 * np.where(mask, np.nan_to_num(board.data.cost[question]), 0.0).sum(axis=1)
    return board.data.score[question, kept].reshape(k, n), cost.reshape(k, n)


def curve_of(held_out: HeldOut, fitted: FittedRouter, data: Outcomes, words: Words, rows: Ints) -> list[Point]:
    """What each lambda gives with this very fit, on questions like the ones it was made from.

    Two fits at one lambda can differ by a tenth in what they spend. So the cost is this fit's own on the rows that it
    was made from (what is spent there and on new questions agrees within a few percent; accuracy would not), and the
    accuracy is what the fits without a question's group reached at that cost.
    """
    _, spent = played(fitted.board(data, words, rows), fitted, held_out.lambdas)
    cost, reached = held_out.cost.mean(axis=1), held_out.score.mean(axis=1)
    order = np.argsort(cost)
    own = spent.mean(axis=1)
    accuracy = np.interp(own, cost[order], reached[order])
    return [Point(*map(float, point)) for point in zip(held_out.lambdas, accuracy, own, strict=True)]


def alone_of(data: Outcomes) -> list[tuple[str, float, float]]:
    """Name, accuracy and cost of 1,000 questions, of each agent that was asked all of them."""
    return [
        (name, float(data.score[:, column].mean()), float(1000 * data.cost[:, column].mean()))
        for column, name in enumerate(data.agents)
        if data.known[:, column].all()
    ]
