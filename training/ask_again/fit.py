"""Learns whether to ask again: P(right) of both ways from the signals of the direct answer, and its rivals."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import PolicyOutcomes
from metaprobe.eval.table import usable_groups
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.routing.ask_again import ACCEPT, AGAIN, INPUTS, POINT, StatedThreshold
from metaprobe.routing.policy import State
from metaprobe.training.ask_again.data import Paired
from metaprobe.training.calibration import sigmoid
from metaprobe.training.folds import outer_folds

LEARNED, ORACLE = "learned choice", "oracle"
PENALTY = 1.0
"""Inverse strength of the L2 penalty on standardised signals."""


@dataclass(frozen=True, slots=True, eq=False)
class PairedModel:
    """Two logistic regressions on the same standardised signals: P(right) directly and step by step."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]
    """(d, 2)."""
    intercept: NDArray[np.float64]
    """(2,)."""

    def probability(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n, 2)."""
        Z = np.nan_to_num((X.astype(np.float64) - self.mean) / self.scale, nan=0.0)
        return sigmoid(Z @ self.weights + self.intercept)


def fit_pair(X: NDArray[np.float32], correct: NDArray[np.int64]) -> PairedModel:
    linear = require("sklearn.linear_model", "fit")
    known = np.isfinite(X)
    count = np.maximum(known.sum(axis=0), 1)
    values = np.where(known, X, 0).astype(np.float64)
    mean = values.sum(axis=0) / count  # 0 where a signal was never known
    scale = np.sqrt((np.where(known, X - mean, 0) ** 2).sum(axis=0) / count)
    scale = np.where(scale > 0, scale, 1.0)
    Z = np.nan_to_num((X - mean) / scale, nan=0.0)
    columns, intercepts = [], []
    for y in correct.T:
        if y.min() == y.max():
            raise RecordError(f"all answers of one variant are {'right' if y[0] else 'wrong'}: nothing to learn")
        model = linear.LogisticRegression(C=PENALTY, max_iter=1000).fit(Z, y)
        columns.append(model.coef_[0])
        intercepts.append(float(model.intercept_[0]))
    return PairedModel(mean, scale, np.stack(columns, axis=1), np.array(intercepts))


def evaluate_choice(data: Paired, *, folds: int = 5, seed: int = 0) -> tuple[list[PolicyOutcomes], NDArray[np.float64]]:
    """Every policy on every item, learned ones from other groups only; and the learned P(right) (n, 2).

    Tokens count what a policy has to ask for: the answers it needs, and the statements it reads.
    """
    X, y = data.X, data.correct[:, 0]
    usable_groups(data.groups, y, folds=folds)
    learned = np.zeros((len(data), 2))
    tuned = np.zeros(len(data), dtype=bool)
    mean_logprob = X[:, INPUTS.index("mean_logprob")]
    for roles in outer_folds(list(data.groups), y, folds=folds, seed=seed):
        learned[roles.test] = fit_pair(X[roles.seen], data.correct[roles.seen]).probability(X[roles.test])
        threshold = best_threshold(mean_logprob[roles.seen], data.correct[roles.seen])
        tuned[roles.test] = mean_logprob[roles.test] < threshold
    ask_again = {
        "stated confidence < 0.5": _rule(data, StatedThreshold()),
        "stated difficulty >= 0.5": _rule(data, StatedThreshold("difficulty", again_if_above=True)),
        "mean log-probability < tuned": tuned,
        LEARNED: learned[:, 1] > learned[:, 0],
        ORACLE: data.correct[:, 1] > data.correct[:, 0],
    }
    n = len(data)
    policies = [
        PolicyOutcomes("always direct", data.correct[:, 0].astype(float), data.tokens[:, 0], np.zeros(n, bool)),
        PolicyOutcomes("always step by step", data.correct[:, 1].astype(float), data.tokens[:, 1], np.ones(n, bool)),
    ]
    for name, again in ask_again.items():
        kept = np.where(again, data.correct[:, 1], data.correct[:, 0]).astype(float)
        # Difficulty is stated before anything is answered; all else needs the direct answer first.
        early = name.startswith("stated difficulty")
        direct = np.where(again, 0, data.tokens[:, 0]) if early else data.tokens[:, 0]
        asked = {"stated difficulty >= 0.5": [0], "stated confidence < 0.5": [1], LEARNED: [0, 1]}.get(name, [])
        tokens = direct + np.where(again, data.tokens[:, 1], 0) + data.statement_tokens[:, asked].sum(axis=1)
        policies.append(PolicyOutcomes(name, kept, tokens, again))
    return policies, learned


def _rule(data: Paired, rule: StatedThreshold) -> NDArray[np.bool_]:
    decisions = [rule.decide(State(str(i), POINT, s), (ACCEPT, AGAIN)) for i, s in enumerate(data.signals)]
    return np.array([decision.action == AGAIN for decision in decisions])


def best_threshold(values: NDArray[np.float32], correct: NDArray[np.int64]) -> float:
    """Returns the threshold below which asking again gains most right answers on these rows; -inf for never.

    `values` (n,), NaN where unknown, which is below no threshold; `correct` (n, 2): direct, step by step. It lies
    between two different values, for rows of equal value go one way together.
    """
    order = np.argsort(values)
    ascending = values[order]
    gain = np.concatenate([[0], np.cumsum(correct[order, 1] - correct[order, 0])])
    known = int(np.isfinite(values).sum())
    between = np.flatnonzero(ascending[1:known] > ascending[: known - 1]) + 1
    cuts = np.unique([0, *between, known])
    best = int(cuts[np.argmax(gain[cuts])])
    if best == 0:
        return float("-inf")
    return float("inf") if best == known else float((ascending[best - 1] + ascending[best]) / 2)
