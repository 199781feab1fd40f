"""Fits the heads of a stage policy: logistic regressions on a few columns, shrunk, for there are few problems.

Fixes and breaks are of the answer that would be *returned*: the next cycle breaks an answer only where the selection
then returns a wrong one. The selection is the paper's rule (best evaluated, the first of equals), or the learned one
where that is in use; Self-Refine returns the last. All heads standardise alike, by the rows of all answers that are
decided on, and a missing value counts as their mean, so that they are one graph.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.routing.actions import AGAIN
from metaprobe.training.common.calibrate import sigmoid
from research.stages.data import SELF_REFINE, Candidates, Critics, Cycles, Floats, Ints, StageData
from research.stages.policy import ACTIONS, BREAKS, FIXES, LENGTH, MOST_TOKENS, RIGHT, SYSTEM_POINTS, after
from research.stages.state import COLUMNS, READS

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
        if data.system == SELF_REFINE:
            return np.broadcast_to(np.arange(data.cycles), data.correct.shape)
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


def fit_stages(data: StageData, *, used: Collection[str] = (), seed: int = 0) -> FittedStages:
    """All heads of the system that the data are of.

    `used`: points whose learned head is in use. A learned selection says what is returned on the rows that it was
    fitted on itself, so that fixes seem a little more frequent there than they are.
    """
    if isinstance(data, Critics):
        return _fit_critics(data, seed)
    points = SYSTEM_POINTS[data.system]
    mean, scale = _spread(rows_of(data, point_of_answers(data.system)))
    fitted = FittedStages(mean, scale, {}, {}, "select" in used)
    heads: dict[str, Linear] = {}
    if "select" in points:
        heads |= _fit_select(data, fitted, seed)
    if "budget" in points and isinstance(data, Cycles):
        X = rows_of(data, "budget")
        heads[LENGTH] = _fit_length(_read(standardised(X, mean, scale), "budget"), data.lengths.ravel())
    fitted = replace(fitted, heads=heads)
    return _with_iterate(data, fitted, seed) if isinstance(data, Cycles) else fitted


def _fit_select(data: Cycles | Candidates, fitted: FittedStages, seed: int) -> dict[str, Linear]:
    """P(right) of the answers of problems that have different ones to choose from."""
    choice, chosen = candidates_in(data), open_choices(data)
    Z = _read(standardised(choice.rows[chosen], fitted.mean, fitted.scale), "select")
    groups = np.repeat(choice.groups, chosen.sum(axis=1)).tolist()
    return {RIGHT: fit_logistic(Z, choice.correct[chosen], groups, seed)}


def _with_iterate(data: Cycles, fitted: FittedStages, seed: int) -> FittedStages:
    """With the heads for another cycle: from those that were run."""
    on = data.went_on
    Z = _read(standardised(data.steps[on], fitted.mean, fitted.scale), "iterate")
    groups = np.repeat(data.groups, on.sum(axis=1)).tolist()
    correct = returned(data, fitted.kept(data))
    had, has = correct[:, :-1][on], correct[:, 1:][on]
    heads = {
        name: fit_logistic(Z, event.astype(np.float64), groups, seed)
        for name, event in ((FIXES, (had == 0) & (has == 1)), (BREAKS, (had == 1) & (has == 0)))
    }
    return replace(fitted, heads={**fitted.heads, **heads}, tokens={AGAIN: float(data.tokens[:, 1:][on].mean())})


def candidates_in(data: Cycles | Candidates) -> Candidates:
    """The answers to choose from at the end."""
    return data.candidates if isinstance(data, Cycles) else data


def open_choices(data: Cycles | Candidates) -> NDArray[np.bool_]:
    """(n, K): the answers of problems that have more than one."""
    choice = candidates_in(data)
    return np.asarray(choice.there & (choice.counts > 1)[:, None])


def point_of_answers(system: str) -> str:
    """The point whose rows are all answers that the system decides on."""
    points = SYSTEM_POINTS[system]
    return "select" if "select" in points else points[0]


def rows_of(data: StageData, point: str) -> NDArray[np.float32]:
    """(N, len(COLUMNS)): every row that a point's heads learn from."""
    if isinstance(data, Critics):
        return data.rows
    if point == "iterate" and isinstance(data, Cycles):
        return data.steps[data.went_on]
    return candidates_in(data).rows[open_choices(data)]


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
    linear = require("sklearn.linear_model", "fit")
    model = linear.LogisticRegression(C=penalty, max_iter=1000).fit(Z, y)
    return Linear(model.coef_[0], float(model.intercept_[0]))


def _fit_length(Z: Floats, lengths: Floats) -> Linear:
    """A quantile of the length, as log-odds of its share of `MOST_TOKENS`: quantiles pass through a rising map.

    An answer that max_tokens cut counts with the length that it got to, so the quantile is a little low.
    """
    share = np.clip(lengths / MOST_TOKENS, 1e-4, 1 - 1e-4)
    linear = require("sklearn.linear_model", "fit")
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
