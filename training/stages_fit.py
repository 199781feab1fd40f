"""Fits the heads of a stage policy: logistic regressions on a few columns, shrunk, for there are few problems.

Fixes and breaks are of the answer that would be *returned*: the next cycle breaks an answer only where the selection
then returns a wrong one. The selection is the paper's rule (best evaluated, the first of equals), or the learned one
where that is in use. All heads standardise alike, by the rows of all answers, and a missing value counts as their mean,
so that they are one graph.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.routing.paper import AGAIN
from metaprobe.routing.stages import ACTIONS, BREAKS, FIXES, LENGTH, MOST_TOKENS, RIGHT, after
from metaprobe.routing.stages_state import COLUMNS, READS
from metaprobe.training.calibrate import sigmoid
from metaprobe.training.stages_data import Critics, Cycles, Floats, Ints

PENALTIES = (0.003, 0.03, 0.3)
"""Inverse strengths of the L2 penalty, to choose among; the strongest first, which is taken among equals."""
INNER_FOLDS = 3
FEWEST = 10
"""Rows of either class below which a head gives their share alone: so few teach no slope."""
QUANTILE = 0.98
"""Of the answers' lengths, for the budget."""
LENGTH_PENALTY = 1e-4
"""L1; so small that it only keeps columns that never vary at 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    weights: Floats
    """(len(COLUMNS),), for standardised columns; 0 for those that the head does not read."""
    intercept: float


@dataclass(frozen=True, slots=True, eq=False)
class FittedStages:
    """The heads before their export."""

    mean: Floats
    scale: Floats
    heads: Mapping[str, Linear]
    """By the graph's output."""
    tokens: Mapping[str, float]
    """Generated on average: by a cycle, or after each choice of critics."""
    selects: bool
    """Whether the learned selection is in use."""

    def output(self, name: str, X: NDArray[np.float32]) -> Floats:
        """What the graph's output gives for rows (..., len(COLUMNS))."""
        head = self.heads[name]
        return sigmoid(standardised(X, self.mean, self.scale) @ head.weights + head.intercept)

    def kept(self, data: Cycles) -> Ints:
        """(n, T): which answer is returned after each cycle."""
        if not self.selects:
            return best_evaluated(data.quality)
        there = np.isfinite(data.rows[..., COLUMNS.index("round")])  # (n, T, T)
        return np.asarray(np.where(there, self.output(RIGHT, data.rows), -np.inf).argmax(axis=2))


def best_evaluated(quality: Floats) -> Ints:
    """(n, T): the place of the best evaluated answer after each cycle, by the paper's rule."""
    known = np.where(np.isnan(quality), -1.0, quality)
    return np.stack([known[:, : t + 1].argmax(axis=1) for t in range(known.shape[1])], axis=1)


def returned(data: Cycles, kept: Ints) -> Floats:
    """(n, T): whether the answer returned after each cycle is right."""
    return np.take_along_axis(data.correct, kept, axis=1)


def standardised(X: NDArray[np.float32], mean: Floats, scale: Floats) -> Floats:
    """Missing values become 0, the mean."""
    return np.nan_to_num((X.astype(np.float64) - mean) / scale, nan=0.0)


def fit_stages(data: Cycles | Critics, *, used: Collection[str] = (), seed: int = 0) -> FittedStages:
    """All heads of the system that the data are of.

    `used`: points whose learned head is in use. A learned selection says what is returned on the rows that it was
    fitted on itself, so that fixes seem a little more frequent there than they are.
    """
    if isinstance(data, Critics):
        return _fit_critics(data, seed)
    n, T = data.correct.shape
    X = data.rows[:, T - 1].reshape(n * T, -1)  # every answer, seen from the end
    mean, scale = _spread(X)
    Z, groups = standardised(X, mean, scale), np.repeat(data.groups, T).tolist()
    right = fit_logistic(_read(Z, "select"), data.correct.ravel(), groups, seed)
    heads = {RIGHT: right, LENGTH: _fit_length(_read(Z, "budget"), data.lengths.ravel())}
    tokens = {AGAIN: float(data.tokens[:, 1:].mean())}
    fitted = FittedStages(mean, scale, heads, tokens, "select" in used)
    now = step_rows(data)  # (n * (T - 1), d)
    Z, groups = standardised(now, mean, scale), np.repeat(data.groups, T - 1).tolist()
    correct = returned(data, fitted.kept(data))
    had, has = correct[:, :-1].ravel(), correct[:, 1:].ravel()
    for name, event in ((FIXES, (had == 0) & (has == 1)), (BREAKS, (had == 1) & (has == 0))):
        heads[name] = fit_logistic(_read(Z, "iterate"), event.astype(np.float64), groups, seed)
    return fitted


def step_rows(data: Cycles) -> NDArray[np.float32]:
    """(n (T - 1), len(COLUMNS)): the last answer after each cycle but the last, a problem's one after another."""
    return np.stack([data.rows[:, t, t] for t in range(data.cycles - 1)], axis=1).reshape(-1, len(COLUMNS))


def rows_of(data: Cycles | Critics, point: str) -> NDArray[np.float32]:
    """(N, len(COLUMNS)): every row that a point's heads learn from."""
    if isinstance(data, Critics):
        return data.rows
    return step_rows(data) if point == "iterate" else data.rows[:, -1].reshape(-1, len(COLUMNS))


def _fit_critics(data: Critics, seed: int) -> FittedStages:
    mean, scale = _spread(data.rows)
    Z = _read(standardised(data.rows, mean, scale), "regulate")
    heads = {
        after(action): fit_logistic(Z, data.correct[:, column], list(data.groups), seed)
        for column, action in enumerate(ACTIONS)
    }
    tokens = dict(zip(ACTIONS, map(float, data.tokens.mean(axis=0)), strict=True))
    return FittedStages(mean, scale, heads, tokens, False)


def fit_logistic(Z: Floats, event: Floats, groups: list[str], seed: int) -> Linear:
    """P(event); the penalty by the log-loss in inner folds by group. The share alone where there is too little."""
    y = event.astype(np.int64)
    count = int(y.sum())
    share = (count + 0.5) / (len(y) + 1)
    constant = Linear(np.zeros(Z.shape[1]), float(np.log(share / (1 - share))))
    if min(count, len(y) - count) < FEWEST:
        return constant
    loss = np.zeros(len(PENALTIES))
    names, member = np.unique(groups, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(names))[member] % INNER_FOLDS
    for part in (fold == number for number in range(INNER_FOLDS)):
        rest = ~part
        if y[rest].min() == y[rest].max():  # all of one class in one fold
            return constant
        for place, penalty in enumerate(PENALTIES):
            fitted = _logistic(Z[rest], y[rest], penalty)
            logits = Z[part] @ fitted.weights + fitted.intercept
            loss[place] += np.logaddexp(0, np.where(y[part] == 1, -logits, logits)).sum()
    return _logistic(Z, y, PENALTIES[int(loss.argmin())])


def _logistic(Z: Floats, y: Ints, penalty: float) -> Linear:
    linear = require("sklearn.linear_model", "train")
    model = linear.LogisticRegression(C=penalty, max_iter=1000).fit(Z, y)
    return Linear(model.coef_[0], float(model.intercept_[0]))


def _fit_length(Z: Floats, lengths: Floats) -> Linear:
    """A quantile of the length, as log-odds of its share of `MOST_TOKENS`: quantiles pass through a rising map.

    An answer that max_tokens cut counts with the length that it got to, so the quantile is a little low.
    """
    share = np.clip(lengths / MOST_TOKENS, 1e-4, 1 - 1e-4)
    linear = require("sklearn.linear_model", "train")
    model = linear.QuantileRegressor(quantile=QUANTILE, alpha=LENGTH_PENALTY).fit(Z, np.log(share / (1 - share)))
    return Linear(np.asarray(model.coef_), float(model.intercept_))


def _spread(X: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the known values; 0 and 1 where none is known, 1 where they do not vary."""
    known = np.isfinite(X)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, X, 0).astype(np.float64).sum(axis=0) / count
    scale = np.sqrt((np.where(known, X - mean, 0) ** 2).sum(axis=0) / count)
    return mean, np.where(scale > 1e-6, scale, 1.0)


def _read(Z: Floats, point: str) -> Floats:
    """The columns that a point's heads do not read are 0, and so get no weight."""
    return Z * np.isin(COLUMNS, READS[point])
