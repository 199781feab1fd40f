"""The learned choice after a direct answer: accept it, or ask again step by step. All outcomes are known."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, Generator, Training
from metaprobe.eval.compare import PolicyOutcomes, policy_results
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import PolicyResult
from metaprobe.eval.table import usable_groups
from metaprobe.probes.signals import Signals, signals_of
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.records.fingerprint import fingerprint
from metaprobe.records.types import Call, Run
from metaprobe.routing.ask_again import ACCEPT, AGAIN, INPUT, INPUTS, KIND, POINT, REQUIRED, StatedThreshold, signal_row
from metaprobe.routing.policy import State
from metaprobe.training.common.calibrate import sigmoid
from metaprobe.training.common.graphs import linear_graph
from metaprobe.training.common.grouping import join_items
from metaprobe.training.common.roles import outer_folds
from metaprobe.training.common.write import Export, write_checkpoint
from metaprobe.training.crossfit.evidence import generator_of, load_runs

DIRECT, STEPS = "direct", "step-by-step"
STATEMENTS = ("difficulty", "confidence")
LEARNED, ORACLE = "learned choice", "oracle"
PENALTY = 1.0
"""Inverse strength of the L2 penalty on standardised signals."""


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """n items that were answered both ways."""

    groups: tuple[str, ...]
    signals: tuple[Signals, ...]
    """Known after the direct answer."""
    correct: NDArray[np.int64]
    """(n, 2): direct, step by step."""
    tokens: NDArray[np.float64]
    """(n, 2): generated tokens of the two answers."""
    fingerprint: str
    generator: Generator | None
    statement_tokens: NDArray[np.float64]
    """(n, 2): tokens of the calls that stated difficulty and confidence."""
    regrouped: str = ""
    """Which groups were joined because their questions repeat, in words; empty where none were."""

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def X(self) -> NDArray[np.float32]:  # noqa: N802 - a matrix
        """(n, 6), in the order of `routing.ask_again.INPUTS`, NaN where unknown."""
        return np.stack([signal_row(signals) for signals in self.signals])


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
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


def pair_variants(runs: Iterable[Run]) -> Paired:
    """The items that have a labelled answer in both variants. Raises `RecordError` where there are too few."""
    runs = list(runs)
    by_item: dict[str, dict[str, tuple[Run, Call]]] = {}
    for run in runs:
        answers = [call for call in run.calls if run.label("correct", call.id) is not None]
        if run.variant in (DIRECT, STEPS) and answers:
            asked = f"{answers[-1].model}/{run.item.task}/{run.item.id}"
            by_item.setdefault(asked, {})[run.variant] = (run, answers[-1])
    both = [pair for _, pair in sorted(by_item.items()) if len(pair) == 2]
    if len(both) < 50:
        raise RecordError(
            f"{len(both)} items were answered and labelled both directly and step by step; the choice needs at least 50"
        )
    joined = join_items([pair[DIRECT][0].item for pair in both])
    return Paired(
        groups=tuple(joined.groups.tolist()),
        regrouped=joined.note,
        signals=tuple(
            signals_of(call, difficulty=run.stated("difficulty"), confidence=run.stated("confidence"))
            for run, call in (pair[DIRECT] for pair in both)
        ),
        correct=np.array([[int(run.label("correct", call.id) or 0) for run, call in _in_order(pair)] for pair in both]),
        tokens=np.array([[float(call.usage.completion_tokens) for _, call in _in_order(pair)] for pair in both]),
        fingerprint=fingerprint(runs),
        generator=generator_of([call for pair in both for _, call in pair.values()]),
        statement_tokens=np.array([[_stage_tokens(pair[DIRECT][0], s) for s in STATEMENTS] for pair in both]),
    )


def _stage_tokens(run: Run, stage: str) -> float:
    return float(sum(call.usage.completion_tokens for call in run.calls if call.stage == stage))


def _in_order(pair: dict[str, tuple[Run, Call]]) -> list[tuple[Run, Call]]:
    return [pair[DIRECT], pair[STEPS]]


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
        learned[roles.test] = _fit(X[roles.seen], data.correct[roles.seen]).probability(X[roles.test])
        threshold = _best_threshold(mean_logprob[roles.seen], data.correct[roles.seen])
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


def export_choice(
    path: str | Path,
    data: Paired,
    policies: Sequence[PolicyOutcomes],
    learned: NDArray[np.float64],
    *,
    seed: int,
    command: str,
) -> Checkpoint:
    """Fit on all items and write the checkpoint that `routing.ask_again.LearnedChoice` loads."""
    X = data.X
    pair = _fit(X, data.correct)
    probability = pair.probability(X)
    weights = cluster_weights(data.groups)
    correct = {policy.name: policy.correct for policy in policies}
    gains = {
        name: mean_interval(correct[LEARNED] - other, weights)
        for name, other in correct.items()
        if name not in (LEARNED, ORACLE)
    }
    metrics = {
        "accuracy": mean_interval(correct[LEARNED], weights),
        **{f"accuracy gain over {name}": gain for name, gain in gains.items()},
        "auroc_direct": interval(auroc, data.correct[:, 0], learned[:, 0], weights),
        "auroc_step_by_step": interval(auroc, data.correct[:, 1], learned[:, 1], weights),
    }
    return write_checkpoint(
        path,
        Export(
            kind=KIND,
            title="Choice: accept a direct answer, or ask again step by step",
            summary=(
                "P(right) of the direct answer at hand and of a step-by-step answer, from what is known after the "
                "direct one: stated difficulty and confidence, mean, minimum and first log-probability, length. Ask "
                "again where the gain exceeds `price`."
            ),
            graph=_graph(pair),
            input_name=INPUT,
            inputs=X,
            expected={ACCEPT: probability[:, 0], AGAIN: probability[:, 1]},
            contract={"point": POINT, "actions": [ACCEPT, AGAIN], "signals": list(INPUTS), "required": list(REQUIRED)},
            generator=data.generator,
            training=Training(data.fingerprint, len(data), len(set(data.groups)), seed, command, data.regrouped),
            calibration="logistic regression",
            calibrated_on="all rows, with the model itself",
            metrics=metrics,
            audits=[
                (f"beats {name}", g.low > 0, f"accuracy gain {g.estimate:+.3f} [{g.low:+.3f}, {g.high:+.3f}]")
                for name, g in gains.items()
            ],
            thresholds={"price": 0.0},
        ),
    )


def _graph(pair: _Pair) -> bytes:
    return linear_graph(
        input_name=INPUT,
        mean=pair.mean,
        scale=pair.scale,
        weights=pair.weights,
        intercept=pair.intercept,
        outputs=[ACCEPT, AGAIN],
        impute=True,
    )


def _fit(X: NDArray[np.float32], correct: NDArray[np.int64]) -> _Pair:
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
    return _Pair(mean, scale, np.stack(columns, axis=1), np.array(intercepts))


def _rule(data: Paired, rule: StatedThreshold) -> NDArray[np.bool_]:
    decisions = [rule.decide(State(str(i), POINT, s), (ACCEPT, AGAIN)) for i, s in enumerate(data.signals)]
    return np.array([decision.action == AGAIN for decision in decisions])


def _best_threshold(values: NDArray[np.float32], correct: NDArray[np.int64]) -> float:
    """The threshold below which asking again gains most right answers on these rows; -inf for never."""
    order = np.argsort(values)
    gain = np.concatenate([[0], np.cumsum(correct[order, 1] - correct[order, 0])])
    best = int(np.argmax(gain))
    if best == 0:
        return float("-inf")
    return float("inf") if best == len(values) else float((values[order[best - 1]] + values[order[best]]) / 2)


def train_choice(
    out: str | Path, runs: Sequence[str | Path], *, seed: int = 0, folds: int = 5, command: str = ""
) -> tuple[Checkpoint, tuple[PolicyResult, ...]]:
    """The learned choice between accepting a direct answer and asking again, beside the fixed thresholds."""
    data = pair_variants(load_runs(runs))
    policies, learned = evaluate_choice(data, folds=folds, seed=seed)
    checkpoint = export_choice(out, data, policies, learned, seed=seed, command=command)
    return checkpoint, policy_results(data.groups, policies, seed=seed)
