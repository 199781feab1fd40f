"""Fits the learned router's two heads, and plays the policy that they make.

Success head: LightGBM on rows of random states (a question, a random set of agents asked). A part of the rows lacks the
dimension or the text, so that it knows what to do without.

Gain head: fitted by policy iteration on the known outcomes. A random state, a random agent to ask, a random lambda:
then the policy of the round before plays on to its end. The target is what that added, halfway between outcome and
P(right), which has less noise: score at the end - what was asked after at its price - score before. P(right)
comes from heads fitted without the question's group, or else what one sees there would be surer than later.

A failed call is an outcome of score 0 for the agent that is not asked yet, so that P(right) of asking it counts the
failures. It is never among the agents that were heard, and its price is paid.

What was tried and did not help on development questions (research/routing/ names the set): columns naming each
agent, its confidence and agreement one by one; logistic regression in place of trees, or blended with them; only
outcomes or only P(right) as target; more rounds, more leaves, more columns for the gain head; at most two or three
agents a question. What helped most was to offer few agents (`worth_offering`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.routing_cascade import tune_cascade
from metaprobe.eval.routing_performance import Matrix
from metaprobe.routing.learned_state import Past
from metaprobe.routing.learned_stored import WordScores
from metaprobe.training.folds import group_folds
from metaprobe.training.router.data import Floats, Ints, Outcomes, pasts_of
from metaprobe.training.router.rows import Mask, Rates, Views, batch_rows, views_of
from metaprobe.training.router.words import Words, texts_of, word_scores
from metaprobe.training.trees import Trees, grow

GAIN_ROW = ("best", "success", "lead", "rate", "log_priced", "others", "log_lambda")
"""Columns of the gain head: P(right) of the best asked (0 if none), of the row's agent, their difference, its rate, the
logarithm of lambda * its price, how many others were asked, the logarithm of lambda."""
FOLDS = 3
MAX_ASKED = 4
MARGIN = 0.005
"""What asking must be worth beyond its price: the most promising of several estimates is promising by chance too."""
ROUNDS = 3
FEW, WHOLE = 4, 100
"""Agents that are all offered; questions asked of every agent that a choice among more needs."""
PRICES = (0.02, 2.0, 8)
"""Least and highest lambda, as `LAMBDAS` has it, and how many, at which cascades are tuned to see who is of use."""
STATES = 20_000
"""Random states for a gain head; rows of a success head are twice as many."""
SIZES = (0.08, 0.32, 0.3, 0.2, 0.1)
"""Of 0, 1, ... agents asked, in a random state of the success head."""
GAIN_SIZES = (0.25, 0.4, 0.25, 0.1)
"""The same of the gain head: whom to ask first is decided for every question."""
HEARD = 0.35
"""Of the success head's rows whose agent is asked on top, so that about half are of asked agents."""
LOST = -20.0
"""Log-odds that a failed call is right, where a cascade goes by them: it always goes on."""
WITHOUT = {"dimension": 0.1, "text": 0.1}
"""Of its rows that lack it."""
LAMBDAS = (0.004, 8.0)
"""Range of lambda, where 1 is one right answer for what the dearest agent costs."""
SUCCESS_TREES: Mapping[str, Any] = {
    "objective": "cross_entropy",
    "num_leaves": 8,
    "min_data_in_leaf": 150,
    "learning_rate": 0.09,
    "feature_fraction": 0.6,
    "lambda_l2": 5.0,
    "rounds": 100,
}
GAIN_TREES: Mapping[str, Any] = {
    "objective": "regression",
    "num_leaves": 8,
    "min_data_in_leaf": 300,
    "learning_rate": 0.09,
    "feature_fraction": 0.7,
    "lambda_l2": 5.0,
    "rounds": 100,
    "monotone_constraints": [int(name == "success") - int(name == "log_priced") for name in GAIN_ROW],
}


@dataclass(frozen=True, slots=True, eq=False)
class FittedRouter:
    """What a checkpoint holds, before its export."""

    pasts: dict[str, dict[str, Past]]
    """Of every agent."""
    offered: tuple[int, ...]
    """Columns of the agents that it asks; those of `words` are the same."""
    words: WordScores
    success: Trees
    gain: Trees
    max_asked: int

    def board(self, data: Outcomes, words: Words, rows: Ints) -> "Board":
        """Questions to play on; `data` and `words` hold all, `rows` says which."""
        part = data.take(rows).only(self.offered)
        views = views_of(part, self.pasts, texts_of(self.words, words, rows))
        return Board(views, part, lambda X, _: probability(self.success, X), self.max_asked)


@dataclass(frozen=True, slots=True, eq=False)
class Board:
    """Questions whose outcomes are known, to play policies on."""

    views: Views
    data: Outcomes
    head: Callable[[NDArray[np.float32], Ints], Floats]
    """P(right) (b,) of rows (b, len(ROW)) of these questions (b,)."""
    max_asked: int

    def success(self, question: Ints, mask: Mask) -> Floats:
        """(b, A): P(right) of every agent in each state. Equal states are computed once."""
        A = mask.shape[1]
        # Numbers of the sets that occur, not their bits: these would overflow with some dozens of agents.
        sets = np.unique(np.packbits(mask, axis=1), axis=0, return_inverse=True)[1].ravel()
        key = question * (1 + sets.max(initial=0)) + sets
        _, first, back = np.unique(key, return_index=True, return_inverse=True)
        q, m = np.repeat(question[first], A), np.repeat(mask[first], A, axis=0)
        found = self.head(batch_rows(self.views, q, m, np.tile(np.arange(A), len(first))), q)
        return np.asarray(found.reshape(-1, A)[back.ravel()])

    def play(self, gain: Trees | None, question: Ints, mask: Mask, rates: Rates) -> tuple[Mask, Floats]:
        """Agents asked in the end (b, A), and P(right) of each then. Without a gain head nobody else is asked.

        Whoever was asked and failed is paid for, and neither heard nor counted among the asked that have a say.
        """
        mask = mask.copy()
        failed = self.data.failed
        success = self.success(question, mask & ~failed[question])
        going = np.arange(len(question))
        while gain is not None and len(going):
            q, m, p, due = question[going], mask[going], success[going], rates.take(going)
            legal, heard = ~m & self.data.legal[q], m & ~failed[q]
            worth = np.where(legal, self.worth(gain, q, heard, p, due), -np.inf)
            best, count = worth.argmax(axis=1), heard.sum(axis=1)
            worthwhile = (worth.max(axis=1) > MARGIN) & (count < self.max_asked)
            more = np.flatnonzero(((count == 0) | worthwhile) & legal.any(axis=1))
            going = going[more]
            mask[going, best[more]] = True
            if len(going):
                success[going] = self.success(question[going], mask[going] & ~failed[question[going]])
        return mask, success

    def kept(self, question: Ints, mask: Mask, success: Floats) -> Ints:
        """(b,) columns: the asked agent likeliest to be right; one that failed only where all that were asked did."""
        heard = np.where(self.data.failed[question], -0.5, success)
        return np.asarray(np.where(mask, heard, -1.0).argmax(axis=1))

    def worth(self, gain: Trees, question: Ints, mask: Mask, success: Floats, rates: Rates) -> Floats:
        """(b, A): gain - dues of asking each agent; before anybody was asked, on top of its P(right)."""
        b, A = mask.shape
        X = self.gain_rows(question, mask, success, rates)
        gained = gain.score(X.reshape(b * A, -1)).reshape(b, A)
        first = np.logical_not(mask.any(axis=1))[:, None]
        return gained + np.where(first, success, 0.0) - self.views.dues(question, rates)

    def gain_rows(self, question: Ints, mask: Mask, success: Floats, rates: Rates) -> NDArray[np.float32]:
        """(b, A, len(GAIN_ROW))."""
        success = success.astype(np.float32)
        best = np.where(mask, success, np.float32(0)).max(axis=1, keepdims=True)
        columns: dict[str, NDArray[Any]] = {
            "best": best,
            "success": success,
            "lead": success - best,
            "rate": self.views.rate[question],
            "log_priced": self.views.log_priced(question, rates),
            "others": mask.sum(axis=1, keepdims=True) - mask,
            "log_lambda": np.log(rates.dollar)[:, None],
        }
        return np.stack([np.broadcast_to(columns[name], mask.shape) for name in GAIN_ROW], axis=2).astype(np.float32)


def fit_router(data: Outcomes, words: Words, rows: Ints, *, seed: int = 0, states: int = STATES) -> FittedRouter:
    """Everything from the questions of these rows alone.

    `states`: how many random ones the gain head learns from; where times are known twice as many, for half of them are
    then of a policy that pays for waiting.
    """
    rng = np.random.default_rng(seed)
    pasts = pasts_of(data.take(rows))
    offered = worth_offering(data.take(rows), pasts)
    data = data.only(offered)
    part = data.take(rows)
    states *= 1 + part.timed
    folds = [fold for _, fold in group_folds(np.arange(len(rows)), part.groups, _right(part), FOLDS, seed)]
    fold_of = np.zeros(len(rows), dtype=np.int64)
    for number, fold in enumerate(folds):
        fold_of[fold] = number
    text = np.full(part.score.shape, np.nan)
    for fold in folds:  # of each question from the others, as it will be with new ones
        rest = np.setdiff1d(np.arange(len(rows)), fold)
        text[fold] = texts_of(word_scores(words, data, rows[rest]), words, rows[fold])
    views = [
        views_of(part, pasts, text),
        views_of(part, pasts, text, dimension=False),
        views_of(part, pasts, np.full_like(text, np.nan)),
    ]
    # What a second agent would have added to the first, logged single decisions do not show.
    most = 1 if part.logged else min(MAX_ASKED, len(part.agents))
    everything = np.arange(len(rows))
    heads = [_success_head(part, views, np.flatnonzero(fold_of != f), most, 2 * states, rng) for f in range(len(folds))]
    success = _success_head(part, views, everything, most, 2 * states, rng)

    def held_out(X: NDArray[np.float32], question: Ints) -> Floats:
        found, fold = np.zeros(len(X)), fold_of[question]
        for number, head in enumerate(heads):
            here = fold == number
            if here.any():
                found[here] = probability(head, X[here])
        return found

    board = Board(views[0], part, held_out, most)
    gain = no_gain() if part.logged else _gain_head(board, states, rng)
    return FittedRouter(pasts, offered, word_scores(words, data, rows), success, gain, most)


def worth_offering(part: Outcomes, pasts: Mapping[str, Mapping[str, Past]]) -> tuple[int, ...]:
    """Columns of the agents that some tuned cascade asks, at one of the prices, in their order.

    The most promising of many estimated gains is often promising by chance, and a router that may ask agents of little
    use does ask them. Few agents are all offered; so are all where no cascade can be tuned, for want of confidences or
    of questions that every agent was asked, as in logged decisions.
    """
    whole = part.take(np.flatnonzero(part.known.all(axis=1)))
    everybody = tuple(range(len(part.agents)))
    if part.logged or len(everybody) <= FEW or len(whole) < WHOLE or not np.isfinite(whole.confidence).any():
        return everybody
    odds = views_of(whole, pasts, np.full(whole.score.shape, np.nan)).calibrated
    odds = np.where(whole.failed, LOST, odds)
    matrix = Matrix(whole.score, whole.cost, np.full(whole.score.shape, np.nan), whole.agents, whole.groups)
    prices = 1000 * np.geomspace(*PRICES) / cost_scale(whole)
    useful = {agent for price in prices for agent in tune_cascade(matrix, odds, price=float(price)).agents}
    return tuple(sorted(useful)) if len(useful) > 1 else everybody


def _success_head(
    part: Outcomes, views: Sequence[Views], rows: Ints, most: int, count: int, rng: np.random.Generator
) -> Trees:
    question = rows[np.arange(count) % len(rows)]
    mask, agent = _random_states(part.known[question], SIZES[: most + 1], rng)
    mask[np.arange(len(question)), agent] |= rng.random(len(question)) < HEARD
    mask &= ~part.failed[question]  # a failed agent is never among those that were heard
    view = rng.choice(len(views), size=len(question), p=[1 - sum(WITHOUT.values()), *WITHOUT.values()])
    X = np.concatenate([batch_rows(views[v], question[i], mask[i], agent[i]) for v, i in _parts(view, len(views))])
    y = np.concatenate([part.score[question[i], agent[i]] for _, i in _parts(view, len(views))])
    weight = np.concatenate([part.weight[question[i], agent[i]] for _, i in _parts(view, len(views))])
    return grow(SUCCESS_TREES, X, y, int(rng.integers(1 << 30)), weight / weight.mean() if part.logged else None)


def _parts(view: Ints, count: int) -> list[tuple[int, Ints]]:
    return [(v, np.flatnonzero(view == v)) for v in range(count)]


def _gain_head(board: Board, states: int, rng: np.random.Generator) -> Trees:
    n = len(board.data)
    gain: Trees | None = None
    for _ in range(ROUNDS):
        question = np.arange(states) % n
        mask, agent = _random_states(board.data.known[question], GAIN_SIZES[: board.max_asked], rng)
        mask &= ~board.data.failed[question]
        at = np.arange(states)
        rates = _random_rates(board.data, states, rng)
        before = board.success(question, mask)
        # Before anybody was asked the row's own P(right) is what is gained over.
        start = _halfway(board, question, mask, before)
        start = np.where(mask.any(axis=1), start, before[at, agent])
        X = board.gain_rows(question, mask, before, rates)[at, agent]
        mask[at, agent] = True
        end, after = board.play(gain, question, mask, rates)
        later = np.where(end & ~mask, board.views.dues(question, rates), 0.0).sum(axis=1)
        target = _halfway(board, question, end, after) - later - start
        gain = grow(GAIN_TREES, X, target, int(rng.integers(1 << 30)))
    assert gain is not None
    return gain


def no_gain() -> Trees:
    """0 for every state: whom to ask then depends on P(right) and the price alone."""
    X = np.zeros((2 * GAIN_TREES["min_data_in_leaf"], len(GAIN_ROW)), dtype=np.float32)
    return grow({**GAIN_TREES, "rounds": 1}, X, np.zeros(len(X)), 0)


def _random_rates(data: Outcomes, count: int, rng: np.random.Generator) -> Rates:
    """Random lambdas; where times are known, half of the states with a random price of waiting too."""
    low, high = math.log(LAMBDAS[0]), math.log(LAMBDAS[1])
    rates = Rates.of(np.exp(rng.uniform(low, high, count)) / cost_scale(data))
    if not data.timed:
        return rates
    second = np.exp(rng.uniform(low, high, count)) / time_scale(data)
    return Rates(rates.dollar, np.where(rng.random(count) < 0.5, second, 0.0))


def _halfway(board: Board, question: Ints, mask: Mask, success: Floats) -> Floats:
    """(b,): mean of P(right) and outcome of the answer that would be kept."""
    kept = board.kept(question, mask, success)
    score = board.data.score[question, kept]
    p = np.where(board.data.failed[question, kept], 0.0, success[np.arange(len(kept)), kept])
    return np.asarray((p + np.nan_to_num(score)) / 2)


def _random_states(known: Mask, sizes: Sequence[float], rng: np.random.Generator) -> tuple[Mask, Ints]:
    """Random sets of agents, of 0, 1, ... as often as `sizes` says, and one more agent each; all among the known."""
    b, A = known.shape
    count = rng.choice(len(sizes), size=b, p=np.array(sizes) / sum(sizes))
    order = np.where(known, rng.random((b, A)), 2.0).argsort(axis=1)  # what is not known comes last
    count = np.minimum(count, known.sum(axis=1) - 1)
    place = order.argsort(axis=1)
    return place < count[:, None], order[np.arange(b), count]


def probability(head: Trees, X: NDArray[np.float32]) -> Floats:
    """P(right) (b,) from log-odds."""
    return 1 / (1 + np.exp(-head.score(X)))


def cost_scale(data: Outcomes) -> float:
    """US dollars for 1,000 questions of the dearest agent: what makes lambda a number without a unit."""
    found = float(1000 * np.nanmean(data.cost, axis=0).max())
    return found if found > 0 else 1.0


def time_scale(data: Outcomes) -> float:
    """Seconds that the slowest agent takes on average, for the price of a second likewise."""
    found = float(np.nanmean(data.seconds, axis=0).max())
    return found if found > 0 else 1.0


def _right(data: Outcomes) -> Ints:
    """(n,) 0 or 1, for folds that are alike: whether most agents are right."""
    right: Ints = (np.nanmean(data.score, axis=1) > 0.5).astype(np.int64)
    return right
