"""Explicit against implicit metacognition: every method's metrics on the same held-out answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.method_results import CONTROL_FAMILIES, Family, MethodResult
from metaprobe.eval.metrics.bootstrap import (
    Interval,
    cluster_weights,
    interval,
    paired_difference,
    resampled_interval,
)
from metaprobe.eval.metrics.calibration import brier_skill, ece_interval, reliability_table, stated_calibration
from metaprobe.eval.metrics.discrimination import auprc, auroc
from metaprobe.eval.metrics.ranked import MetricFunction
from metaprobe.eval.metrics.selective import aurc
from metaprobe.eval.metrics.stratified import StratifiedAuroc
from metaprobe.eval.metrics.strongest_control import (
    ControlComparison,
    MetricValues,
    control_comparison,
    metric_values,
    paired_interval,
)
from metaprobe.eval.table import AnswerTable

STATED = "stated confidence"
P_TRUE = "P(true)"
BEST_BASELINE = "best plain baseline"
"""The row of controls chosen in advance: in each fold the one that was best on its selection data."""
APART = 0.02
"""Of the points of a reliability diagram: nearer ones could not be distinguished."""

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


def method_results(
    table: AnswerTable, judged: Sequence[Judged], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[MethodResult, ...]:
    """Figures with intervals from a bootstrap over groups; differences are paired, on the same resamples.

    Controls are the methods of `CONTROL_FAMILIES`, but for the one that was chosen in each fold.
    """
    weights = cluster_weights(list(table.groups), resamples, seed)
    pooled = _Against.of(auroc, table, judged, weights)
    runs = run_of_answers(table)
    inside = _Against.of(StratifiedAuroc(runs), table, judged, weights) if runs.max() else None
    own = {STATED: table.stated_confidence, P_TRUE: table.p_true}

    def result(method: Judged) -> MethodResult:
        said = method.family in ("explicit", "learned", "own")
        return MethodResult(
            name=method.name,
            family=method.family,
            coverage=method.coverage,
            auroc=pooled.interval(method.name),
            within_runs=inside.interval(method.name) if inside else None,
            auprc=interval(auprc, table.y, method.ranking, weights),
            ece=ece_interval(table.y, method.probability, weights),
            stated=stated_calibration(table.y, own[method.name], weights, apart=APART) if method.name in own else None,
            brier_skill=interval(brier_skill, table.y, method.probability, weights),
            aurc=interval(aurc, table.y, method.ranking, weights),
            diff_stated=pooled.difference(method.name, STATED),
            diff_control=pooled.difference(method.name, pooled.strongest),
            controls=pooled.comparison(method.name) if said else None,
            controls_within=inside.comparison(method.name) if inside and said else None,
            probability=method.probability,
            ranking=method.ranking,
            reliability=reliability_table(table.y, method.probability, apart=APART),
        )

    return tuple(result(method) for method in judged)


def control_names(judged: Sequence[Judged]) -> tuple[str, ...]:
    """The single controls among the methods, in their order."""
    return tuple(m.name for m in judged if m.family in CONTROL_FAMILIES and m.name != BEST_BASELINE)


def run_of_answers(table: AnswerTable) -> NDArray[np.int64]:
    """(n,): the run of each answer as a number from 0 on: its model, task and way of asking."""
    names = ["\0".join(of) for of in zip(table.models, table.tasks, table.variants, strict=True)]
    return np.asarray(np.unique(names, return_inverse=True)[1], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Against:
    """One metric of every method on the same resamples."""

    values: Mapping[str, MetricValues]
    controls: tuple[str, ...]
    weights: NDArray[np.int32]

    @classmethod
    def of(
        cls, metric: MetricFunction, table: AnswerTable, judged: Sequence[Judged], weights: NDArray[np.int32]
    ) -> Self:
        values = {method.name: metric_values(metric, table.y, method.ranking, weights) for method in judged}
        return cls(values, control_names(judged), weights)

    @property
    def strongest(self) -> str:
        """The control with the highest value; empty where there are none."""
        return max(self.controls, key=lambda name: self.values[name].estimate, default="")

    def interval(self, name: str) -> Interval:
        found = self.values[name]
        return resampled_interval(found.estimate, found.resamples, self.weights)

    def difference(self, name: str, other: str) -> Interval | None:
        if name == other or other not in self.values:
            return None
        return paired_interval(self.values[name], self.values[other], self.weights)

    def comparison(self, name: str) -> ControlComparison | None:
        controls = {control: self.values[control] for control in self.controls}
        return control_comparison(self.values[name], controls, self.weights) if controls else None


def auroc_gain(table: AnswerTable, method: Judged, other: Judged, *, seed: int = 0) -> Interval:
    """AUROC of one method minus that of another, paired, by a bootstrap over groups."""
    weights = cluster_weights(list(table.groups), RESAMPLES, seed)
    return paired_difference(auroc, table.y, method.ranking, other.ranking, weights)
