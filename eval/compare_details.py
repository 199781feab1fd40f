"""What a comparison says of each method beside the numbers that every checkpoint needs: calibration taken apart,
selective prediction, rank correlation with an ordered outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import RESAMPLES, Judged
from metaprobe.eval.compare_answers import LEVELS
from metaprobe.eval.method_results import AcceptedAtRisk as AtRisk
from metaprobe.eval.method_results import MethodResult
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval
from metaprobe.eval.metrics.calibration import brier, brier_reliability, brier_resolution, brier_uncertainty
from metaprobe.eval.metrics.ordinal import kendall, spearman
from metaprobe.eval.metrics.ranked import MetricFunction
from metaprobe.eval.metrics.selective import CoverageAtRisk, excess_aurc, prediction_rejection_ratio
from metaprobe.eval.table import AnswerTable

RISKS = (0.05, 0.1, 0.2)
"""Shares of wrong answers that one may be ready to accept."""
ENOUGH_GRADED = 30
"""Answers with an ordered outcome, below which a correlation is not worth a row."""


@dataclass(frozen=True, slots=True, eq=False)
class Ordinal:
    """An outcome with more than two grades, in their order."""

    name: str
    values: NDArray[np.float64]
    """(n,), higher is better (or easier); NaN where there is none."""


def ordinal_outcome(table: AnswerTable, grades: Mapping[str, NDArray[np.float64]]) -> Ordinal | None:
    """What the scores may be correlated with: the graded label that most answers have, or else how easy the item is.

    `grades`: name -> (n,), NaN where the answer has no such label; those with two values or fewer are no grades. The
    items' ease is their level, where these are of easy, medium and hard, or numbers; of at least two kinds. None where
    there is neither.
    """
    graded = {
        name: values
        for name, values in grades.items()
        if len(np.unique(values[np.isfinite(values)])) > 2 and np.isfinite(values).sum() >= ENOUGH_GRADED
    }
    if graded:
        name = max(graded, key=lambda name: (int(np.isfinite(graded[name]).sum()), name))
        return Ordinal(f"label {name!r}", graded[name])
    ease = -level_ranks(table.levels)
    known = ease[np.isfinite(ease)]
    if len(known) < ENOUGH_GRADED or len(np.unique(known)) < 2:
        return None
    return Ordinal("ease of the item's level", ease)


def level_ranks(levels: NDArray[np.str_]) -> NDArray[np.float64]:
    """(n,): 0 for easy, 1 for medium, 2 for hard, and numbers ("3", "level 3") as they are; NaN for any other level."""
    ordered = LEVELS[:3]  # "cross" is another kind of item, not a harder one

    def rank(level: str) -> float:
        if level in ordered:
            return float(ordered.index(level))
        last = level.rsplit(maxsplit=1)[-1] if level.strip() else ""
        return float(last) if last.isdecimal() else float("nan")

    return np.array([rank(level) for level in levels.tolist()], dtype=np.float64)


def add_details(
    table: AnswerTable,
    judged: Sequence[Judged],
    results: Sequence[MethodResult],
    *,
    ordinal: Ordinal | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[MethodResult, ...]:
    """`results`, one for each of `judged`, with the further numbers filled in; the same resamples as theirs."""
    weights = cluster_weights(list(table.groups), resamples, seed)

    def measured(metric: MetricFunction, score: NDArray[np.float64]) -> Interval:
        return interval(metric, table.y, score, weights)

    known = np.isfinite(ordinal.values) if ordinal is not None else np.zeros(len(table), dtype=bool)

    def correlation(metric: MetricFunction, method: Judged) -> Interval | None:
        if ordinal is None:
            return None
        return interval(metric, ordinal.values[known], method.ranking[known], weights[:, known])

    return tuple(
        replace(
            result,
            brier=measured(brier, method.probability),
            brier_reliability=measured(brier_reliability, method.probability),
            brier_resolution=measured(brier_resolution, method.probability),
            brier_uncertainty=measured(brier_uncertainty, method.probability),
            excess_aurc=measured(excess_aurc, method.ranking),
            prr=measured(prediction_rejection_ratio, method.ranking),
            coverage_at=tuple(AtRisk(risk, measured(CoverageAtRisk(risk), method.ranking)) for risk in RISKS),
            spearman=correlation(spearman, method),
            kendall=correlation(kendall, method),
        )
        for method, result in zip(judged, results, strict=True)
    )
