"""Explicit against implicit metacognition: every method's metrics on the same held-out answers."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.controls import STATED
from metaprobe.eval.metrics.bootstrap import (
    ControlComparison,
    Interval,
    MetricValues,
    cluster_weights,
    control_comparison,
    interval,
    metric_values,
    paired_difference,
    paired_interval,
    resampled_interval,
)
from metaprobe.eval.metrics.calibration import brier, brier_skill, ece_interval, reliability_table, stated_calibration
from metaprobe.eval.metrics.ranked import (
    MetricFunction,
    accuracy_at_coverage,
    auprc,
    aurc,
    auroc_within,
    error_fall,
    prediction_rejection_ratio,
)
from metaprobe.eval.results import CONTROL_FAMILIES, Family, MethodResult, OfModel
from metaprobe.eval.table import AnswerTable
from metaprobe.records.extras import require

BEST_BASELINE = "best plain baseline"
"""The row of controls chosen in advance: in each fold the one that was best on its selection data."""
APART = 0.02
"""Least distance between two points of a reliability diagram: nearer points cannot be told apart by eye."""

RESAMPLES = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One method, each answer judged by a model that saw no answer of its group."""

    name: str
    family: Family
    probability: NDArray[np.float64]
    """Calibrated P(right), shape (n,)."""
    ranking: NDArray[np.float64]
    """Score that orders the answers, shape (n,). A score whose sign is known beforehand is taken as it is: a calibrator
    may reverse a score that is confident the wrong way, and would hide that."""
    coverage: float
    """Share of answers with a score of this method; the others get the median of these scores."""
    apart: tuple[str, ...] = ()
    """Controls that the method is not held against: they know what it was made to do without."""
    beside: tuple[str, ...] = ()
    """Methods that it is held against as well, though they are no controls of others: the numbers that it reads."""
    given: NDArray[np.float64] | None = None
    """(n,): probabilities that the answers are right, as they were given, NaN where none was; None for other scores."""
    itself: str = ""
    """The one number, a control or a decision, that it is after calibration; empty where it is more."""


def method_results(
    table: AnswerTable,
    judged: Sequence[Judged],
    *,
    fold: NDArray[np.int64] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[MethodResult, ...]:
    """Figures with intervals from a bootstrap over groups; differences are paired, on the same resamples.

    Controls are the methods of `CONTROL_FAMILIES`, but for the one that was chosen in each fold.

    Args:
        table: the n answers.
        judged: the methods.
        fold: (n,) outer fold in which each answer was judged; every AUROC is over pairs of one fold. None where all
            answers were judged by the same models.
        resamples: of the bootstrap.
        seed: of the bootstrap.
    """
    weights = cluster_weights(list(table.groups), resamples, seed)
    pooled = _Against.of(auroc_within(fold), table, judged, weights)
    runs = run_of_answers(table)
    inside = _Against.of(auroc_within(fold, runs), table, judged, weights) if runs.max() else None

    def result(method: Judged) -> MethodResult:
        compared = method.family in ("explicit", "decision", "learned", "own")
        controls = pooled.comparison(method) if compared else None
        strongest = controls.strongest.name if controls else "" if method.itself else pooled.strongest
        return MethodResult(
            name=method.name,
            family=method.family,
            coverage=method.coverage,
            auroc=pooled.interval(method.name),
            within_runs=inside.interval(method.name) if inside else None,
            auprc=interval(auprc, table.y, method.ranking, weights),
            ece=ece_interval(table.y, method.probability, weights),
            stated=None if method.given is None else stated_calibration(table.y, method.given, weights, apart=APART),
            brier_skill=interval(brier_skill, table.y, method.probability, weights),
            aurc=interval(aurc, table.y, method.ranking, weights),
            diff_stated=pooled.difference(method.name, STATED),
            diff_control=pooled.difference(method.name, strongest),
            itself=method.itself,
            controls=controls,
            controls_within=inside.comparison(method) if inside and compared else None,
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
        own = self.values[name]
        return resampled_interval(own.estimate, own.resamples, self.weights)

    def difference(self, name: str, other: str) -> Interval | None:
        if name == other or other not in self.values:
            return None
        return paired_interval(self.values[name], self.values[other], self.weights)

    def comparison(self, method: Judged) -> ControlComparison | None:
        apart = (method.name, method.itself, *method.apart)
        against = [name for name in (*self.controls, *method.beside) if name in self.values and name not in apart]
        controls = {name: self.values[name] for name in against}
        return control_comparison(self.values[method.name], controls, self.weights) if controls else None


def auroc_gain(table: AnswerTable, method: Judged, other: Judged, fold: NDArray[np.int64] | None = None) -> Interval:
    """AUROC of one method minus that of another, paired, by a bootstrap over groups; `fold` as of `method_results`."""
    weights = cluster_weights(list(table.groups), RESAMPLES)
    return paired_difference(auroc_within(fold), table.y, method.ranking, other.ranking, weights)


def add_details(
    table: AnswerTable,
    judged: Sequence[Judged],
    results: Sequence[MethodResult],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[MethodResult, ...]:
    """`results`, one for each of `judged`, with the further numbers filled in; the same resamples as theirs."""
    weights = cluster_weights(list(table.groups), resamples, seed)
    return tuple(
        replace(
            result,
            brier=interval(brier, table.y, method.probability, weights),
            prr=interval(prediction_rejection_ratio, table.y, method.ranking, weights),
            right_at_80=interval(accuracy_at_coverage, table.y, method.ranking, weights),
            error_fall=interval(error_fall, table.y, method.ranking, weights),
        )
        for method, result in zip(judged, results, strict=True)
    )


_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([mb])(?![a-z0-9])", re.I)


def parameters_of(model: str) -> float | None:
    """Returns the number of parameters that a model's name states, such as 0.5e9 of `qwen-coder-0.5b`; else None."""
    match = _SIZE.search(model)
    return None if match is None else float(match[1]) * (1e6 if match[2].lower() == "m" else 1e9)


def headline_by_model(
    table: AnswerTable,
    judged: Sequence[Judged],
    headline: str,
    *,
    fold: NDArray[np.int64] | None = None,
    seed: int = 0,
) -> tuple[OfModel, ...]:
    """Returns the headline method beside its strongest control on each model's answers, the smallest model first.

    `fold` as of `method_results`. Empty for answers of one model. Models without right or without wrong answers are
    left out.
    """
    rows = []
    for model in np.unique(table.models).tolist() if len(np.unique(table.models)) > 1 else []:
        at = table.models == model
        if len(np.unique(table.y[at])) < 2:
            continue
        cut = [replace(one, probability=one.probability[at], ranking=one.ranking[at]) for one in judged]
        here = None if fold is None else fold[at]
        results = method_results(table.rows(at), cut, fold=here, seed=seed)
        result = next(one for one in results if one.name == headline)
        rows.append(
            OfModel(
                model=model,
                parameters=parameters_of(model),
                n=int(at.sum()),
                accuracy=float(table.y[at].mean()),
                auroc=result.auroc,
                control=result.controls.strongest.name if result.controls else "",
                diff_control=result.diff_control,
                diff_stated=result.diff_stated,
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.parameters or math.inf, row.model)))


def write_item_table(folder: str | Path, table: AnswerTable, judged: Sequence[Judged]) -> tuple[Path, Path]:
    """items.csv and items.parquet in `folder`, with the same rows; an answer's methods stand together.

    `score` orders the answers, `probability` is calibrated; both come from folds that had not seen the answer's group.
    Where a method says nothing of an answer, which its `coverage` counts, they are those of its median answer.
    """
    arrow: Any = require("pyarrow", "fit")
    n, k = len(table), len(judged)

    def each(values: Any) -> Any:
        return np.repeat(np.asarray(values), k)

    rows = arrow.table(
        {
            "call_id": each(table.call_ids),
            "item": each(table.items),
            "group": each(table.groups),
            "dimension": each(table.dimensions),
            "level": each(table.levels),
            "variant": each(table.variants),
            "model": each(table.models),
            "y": each(table.y),
            "method": np.tile(np.array([method.name for method in judged]), n),
            "family": np.tile(np.array([method.family for method in judged]), n),
            "score": np.stack([method.ranking for method in judged], axis=1).ravel(),
            "probability": np.stack([method.probability for method in judged], axis=1).ravel(),
        }
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "items.csv", folder / "items.parquet"
    require("pyarrow.csv", "fit").write_csv(rows, str(paths[0]))
    require("pyarrow.parquet", "fit").write_table(rows, str(paths[1]))
    return paths
