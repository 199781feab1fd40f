"""Explicit against implicit metacognition: every method's figures on the same held-out answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics import (
    Interval,
    auprc,
    aurc,
    auroc,
    brier_skill,
    cluster_weights,
    ece,
    interval,
    mean_interval,
    paired_difference,
    reliability_table,
)
from metaprobe.eval.report.model import Accuracy, AccuracyRow, Family, MethodResult, PolicyResult, Trajectories
from metaprobe.eval.report.trajectory import trajectory_bands
from metaprobe.eval.table import AnswerTable

STATED = "stated confidence"
BEST_BASELINE = "best plain baseline"
APART = 0.02
"""Of the points of a reliability diagram: nearer ones could not be told from each other."""
LEVELS = ("easy", "medium", "hard", "cross")

RESAMPLES = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One method, each answer judged by a model that saw no answer of its group."""

    name: str
    family: Family
    probability: NDArray[np.float64]
    """Calibrated P(right), shape (n,)."""
    ranking: NDArray[np.float64]
    """What orders the answers, shape (n,). For a score that is given, with a sign known beforehand, the score itself: a
    calibrator may turn round one that is confident the wrong way, and would hide that."""
    coverage: float
    """Share of answers about which the method says something; the others get the median of those."""


@dataclass(frozen=True, slots=True)
class PolicyOutcomes:
    """What came of one way of choosing how to answer, on the same items."""

    name: str
    correct: NDArray[np.float64]
    """(items,): whether the answer that was kept is right."""
    tokens: NDArray[np.float64]
    """(items,): tokens generated for the question, the direct answer included where it was asked for first."""
    step_by_step: NDArray[np.bool_]
    """(items,): whether the kept answer is the step-by-step one."""


def method_results(
    table: AnswerTable, judged: Sequence[Judged], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[MethodResult, ...]:
    """Figures with intervals from a bootstrap over groups; differences are paired, on the same resamples."""
    weights = cluster_weights(list(table.groups), resamples, seed)
    by_name = {method.name: method for method in judged}

    def difference(method: Judged, other: str) -> Interval | None:
        if method.name == other or other not in by_name:
            return None
        return paired_difference(auroc, table.y, method.ranking, by_name[other].ranking, weights)

    return tuple(
        MethodResult(
            name=method.name,
            family=method.family,
            coverage=method.coverage,
            auroc=interval(auroc, table.y, method.ranking, weights),
            auprc=interval(auprc, table.y, method.ranking, weights),
            ece=interval(ece, table.y, method.probability, weights),
            brier_skill=interval(brier_skill, table.y, method.probability, weights),
            aurc=interval(aurc, table.y, method.ranking, weights),
            diff_stated=difference(method, STATED),
            diff_baseline=difference(method, BEST_BASELINE),
            probability=method.probability,
            ranking=method.ranking,
            reliability=reliability_table(table.y, method.probability, apart=APART),
        )
        for method in judged
    )


def accuracy_rows(table: AnswerTable) -> tuple[AccuracyRow, ...]:
    """Share of right answers by dimension and level, and over all."""
    cells: dict[tuple[str, str], NDArray[np.bool_]] = {
        (d, level): (table.dimensions == d) & (table.levels == level)
        for d, level in sorted(set(zip(table.dimensions.tolist(), table.levels.tolist(), strict=True)), key=_cell_order)
    }
    cells["all", "all"] = np.ones(len(table), dtype=bool)
    variants = list(dict.fromkeys(table.variants.tolist()))
    return tuple(
        AccuracyRow(
            dimension,
            level,
            {
                variant: Accuracy(float(table.y[rows].mean()), int(rows.sum()))
                for variant in variants
                if (rows := cell & (table.variants == variant)).any()
            },
        )
        for (dimension, level), cell in cells.items()
    )


def _cell_order(cell: tuple[str, str]) -> tuple[str, int, str]:
    dimension, level = cell
    return dimension, LEVELS.index(level) if level in LEVELS else len(LEVELS), level


def trajectories(table: AnswerTable) -> Trajectories | None:
    """Log-probabilities over the course of right and of wrong answers; None where one kind is missing."""
    right = [np.asarray(x) for x in table.logprobs[table.y == 1]]
    wrong = [np.asarray(x) for x in table.logprobs[table.y == 0]]
    if not right or not wrong:
        return None
    return Trajectories(trajectory_bands(right), trajectory_bands(wrong))


def policy_results(
    groups: Sequence[str], policies: Sequence[PolicyOutcomes], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[PolicyResult, ...]:
    """Accuracy with interval, tokens and share of step-by-step answers of each policy."""
    weights = cluster_weights(list(groups), resamples, seed)
    return tuple(
        PolicyResult(
            policy=policy.name,
            accuracy=mean_interval(policy.correct, weights),
            tokens_per_question=float(policy.tokens.mean()),
            step_by_step=float(policy.step_by_step.mean()),
        )
        for policy in policies
    )


def auroc_gain(table: AnswerTable, method: Judged, other: Judged, *, seed: int = 0) -> Interval:
    """AUROC of one method minus that of another, paired, by a bootstrap over groups."""
    weights = cluster_weights(list(table.groups), RESAMPLES, seed)
    return paired_difference(auroc, table.y, method.ranking, other.ranking, weights)
