"""Splits of the questions, and the router fitted and played on them, for research/routing/measure.py."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.routing_controls import always
from metaprobe.eval.routing_performance import Matrix, Played, replay
from metaprobe.routing.learned_budget import Alone, BudgetPlan, Point
from metaprobe.training.router.curve import alone_of, choices_by_rule, cross_played, curve_of, rule_of
from metaprobe.training.router.data import Outcomes
from metaprobe.training.router.evaluate import matrix_of
from metaprobe.training.router.fit import FittedRouter, fit_router
from metaprobe.training.router.rows import Rates
from metaprobe.training.router.words import Words

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Result = tuple[Floats, Floats, Floats]
"""(n,) each, of the test questions: score of the kept answer, US dollars for 1,000 questions, agents asked."""
TEST = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    data: Outcomes
    words: Words
    train: Ints
    test: Ints
    budgets: tuple[float, ...]
    seed: int

    @property
    def training(self) -> Matrix:
        return matrix_of(self.data.take(self.train))

    @property
    def testing(self) -> Matrix:
        return matrix_of(self.data.take(self.test))


def result_of(matrix: Matrix, played: Sequence[Played]) -> Result:
    run = replay(matrix, played)
    return run.score, 1000 * run.cost, run.asked.sum(axis=1).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """This project's router, and what its checkpoint would hold to read means off."""

    router: FittedRouter
    curve: list[Point]
    rule: list[Point]
    alone: list[Alone]


def fitted(split: Split) -> Fitted:
    train = split.data.take(split.train)
    words = Words(split.words.counts[split.train])  # type: ignore[index]
    held_out = cross_played(train, words, folds=3, seed=split.seed)
    router = fit_router(split.data, split.words, split.train, seed=split.seed)
    curve = curve_of(held_out, router, split.data, split.words, split.train)
    return Fitted(router, curve, rule_of(held_out), alone_of(held_out, train.agents))


def planned(split: Split, router: FittedRouter, plan: BudgetPlan) -> Result:
    """What `LearnedRouter` does on the test questions by this plan."""
    return result_of(split.testing, plays(split, router, plan))


def plays(split: Split, router: FittedRouter, plan: BudgetPlan) -> list[Played]:
    """Whom it asks, and whose answer it keeps."""
    if plan.agent:
        return always(split.testing, split.data.agents.index(plan.agent))
    board = router.board(split.data, split.words, split.test)
    n, A = board.data.score.shape
    rates = Rates(np.full(n, plan.lambda_), np.full(n, plan.per_second))
    if plan.instead:
        chosen = choices_by_rule(board, np.arange(n), rates)
        mask = np.arange(A) == chosen[:, None]
    else:
        mask, p = board.play(router.gain, np.arange(n), np.zeros((n, A), dtype=bool), rates)
        chosen = np.where(mask, p, -1.0).argmax(axis=1)
    column = np.array(router.offered)
    return [Played(tuple(column[asked].tolist()), int(column[kept])) for asked, kept in zip(mask, chosen, strict=True)]


def split_of(data: Outcomes, words: Words, budgets: tuple[float, ...], seed: int) -> Split:
    """A random split by group."""
    groups = sorted(set(data.groups))
    test = set(np.random.default_rng(seed).permutation(groups)[: int(TEST * len(groups))].tolist())
    held = np.array([group in test for group in data.groups])
    return Split(data, words, np.flatnonzero(~held), np.flatnonzero(held), budgets, seed)


def at_lambda(split: Split, lambda_: float) -> Result:
    """The learned router at one price, without a budget."""
    router = fit_router(split.data, split.words, split.train, seed=split.seed)
    return planned(split, router, BudgetPlan(lambda_))
