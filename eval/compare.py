"""Compares explicit and implicit metacognition: every method's metrics on the same held-out answers."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.controls import STATED
from metaprobe.eval.metrics.bootstrap import (
    ControlComparison,
    Interval,
    MetricValues,
    cluster_weights,
    control_comparison,
    holm,
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
from metaprobe.eval.results import (
    CONTROL_FAMILIES,
    Family,
    MethodResult,
    ModelResult,
    PartKind,
    SignalComparison,
    SignalResult,
)
from metaprobe.records.extras import require

BEST_BASELINE = "best plain baseline"
"""Row of the control that was chosen in advance: in each fold, the control that was best on its selection data."""
MIN_BIN_DISTANCE = 0.02
"""Least distance between two points of a reliability diagram; nearer points cannot be told apart by eye."""

RESAMPLES = 1000
"""Number of bootstrap resamples."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One method's scores. Each answer was judged by a model that saw no answer of its group."""

    name: str
    family: Family
    probability: NDArray[np.float64]
    """Calibrated P(right), shape (n,)."""
    ranking: NDArray[np.float64]
    """Score that orders the answers, shape (n,). A score whose sign is known in advance is taken as it is: a calibrator
    may reverse a score that is confident in the wrong direction, and would hide that.
    """
    coverage: float
    """Share of answers with a score of this method; the others get the median of these scores."""
    excluded_controls: tuple[str, ...] = ()
    """Controls with which the method is not compared, because they use information that the method must not use."""
    extra_controls: tuple[str, ...] = ()
    """Additional controls with which only this method is compared: the single numbers that the method reads."""
    stated_probability: NDArray[np.float64] | None = None
    """Stated probabilities (n,) that the answers are right, NaN if none was stated; None for other scores."""
    calibrated_control: str = ""
    """Name of the control or decision of which this method is only the calibrated form. The two are not compared.
    Empty for other methods.
    """

    def rows(self, rows: NDArray[np.bool_]) -> "Judged":
        """Returns the method's scores of these rows of the n answers."""
        stated = None if self.stated_probability is None else self.stated_probability[rows]
        return replace(self, probability=self.probability[rows], ranking=self.ranking[rows], stated_probability=stated)


def method_results(
    table: AnswerTable,
    judged: Sequence[Judged],
    *,
    fold: NDArray[np.int64] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[MethodResult, ...]:
    """Returns figures with intervals from a bootstrap over groups. Differences are paired, on the same resamples.

    Differences in AUROC are those within runs if there are several runs with right and wrong answers.

    Controls are the methods of `CONTROL_FAMILIES`, except the control that was chosen in each fold.

    Args:
        table: the n answers.
        judged: the methods.
        fold: (n,) outer fold in which each answer was judged; every AUROC is over pairs of one fold. None if all
            answers were judged by the same models.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    # The AUROC of every method, over all pairs of a fold and over pairs of one run, on shared resamples.
    weights = cluster_weights(list(table.groups), resamples, seed)
    pooled = _MetricOnResamples.of(auroc_within(fold), table, judged, weights)
    run_of_answer = run_of_answers(table)
    within_runs = (
        _MetricOnResamples.of(auroc_within(fold, run_of_answer), table, judged, weights)
        if run_of_answer.max()
        else None
    )
    if within_runs and not all(math.isfinite(values.estimate) for values in within_runs.values.values()):
        within_runs = None
    # Only some methods know the base rates of runs, so differences are those within runs.
    on_equal_terms = within_runs or pooled

    def result(method: Judged) -> MethodResult:
        is_compared = method.family in ("explicit", "decision", "learned", "own")
        controls = pooled.comparison(method) if is_compared else None
        controls_within = within_runs.comparison(method) if within_runs and is_compared else None
        compared = controls_within or controls
        strongest = (
            compared.strongest.name if compared else "" if method.calibrated_control else on_equal_terms.strongest
        )
        return MethodResult(
            name=method.name,
            family=method.family,
            coverage=method.coverage,
            auroc=pooled.interval(method.name),
            within_runs=within_runs.interval(method.name) if within_runs else None,
            auprc=interval(auprc, table.y, method.ranking, weights),
            ece=ece_interval(table.y, method.probability, weights),
            stated=None
            if method.stated_probability is None
            else stated_calibration(table.y, method.stated_probability, weights, min_distance=MIN_BIN_DISTANCE),
            brier_skill=interval(brier_skill, table.y, method.probability, weights),
            aurc=interval(aurc, table.y, method.ranking, weights),
            diff_stated=on_equal_terms.difference(method.name, STATED),
            diff_control=on_equal_terms.difference(method.name, strongest),
            calibrated_control=method.calibrated_control,
            controls=controls,
            controls_within=controls_within,
            probability=method.probability,
            ranking=method.ranking,
            reliability=reliability_table(table.y, method.probability, min_distance=MIN_BIN_DISTANCE),
        )

    return tuple(result(method) for method in judged)


def control_names(judged: Sequence[Judged]) -> tuple[str, ...]:
    """Returns the names of the single controls among the methods, in their order."""
    return tuple(m.name for m in judged if m.family in CONTROL_FAMILIES and m.name != BEST_BASELINE)


def run_of_answers(table: AnswerTable) -> NDArray[np.int64]:
    """Returns (n,) the run of each answer as a number from 0 on. A run is a model, a task and a prompt variant."""
    names = ["\0".join(parts) for parts in zip(table.models, table.tasks, table.variants, strict=True)]
    return np.asarray(np.unique(names, return_inverse=True)[1], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _MetricOnResamples:
    """One metric of every method on the same resamples."""

    values: Mapping[str, MetricValues]
    """Maps each method to its values."""
    controls: tuple[str, ...]
    """Names of the single controls."""
    weights: NDArray[np.int32]

    @classmethod
    def of(
        cls, metric: MetricFunction, table: AnswerTable, judged: Sequence[Judged], weights: NDArray[np.int32]
    ) -> Self:
        values = {method.name: metric_values(metric, table.y, method.ranking, weights) for method in judged}
        return cls(values, control_names(judged), weights)

    @property
    def strongest(self) -> str:
        """The control with the highest value; empty if there are none."""
        return max(self.controls, key=lambda name: self.values[name].estimate, default="")

    def interval(self, name: str) -> Interval:
        values = self.values[name]
        return resampled_interval(values.estimate, values.resamples, self.weights)

    def difference(self, name: str, other: str) -> Interval | None:
        if name == other or other not in self.values:
            return None
        return paired_interval(self.values[name], self.values[other], self.weights)

    def comparison(self, method: Judged) -> ControlComparison | None:
        excluded = (method.name, method.calibrated_control, *method.excluded_controls)
        compared_names = [
            name for name in (*self.controls, *method.extra_controls) if name in self.values and name not in excluded
        ]
        controls = {name: self.values[name] for name in compared_names}
        return control_comparison(self.values[method.name], controls, self.weights) if controls else None


def auroc_gain(table: AnswerTable, method: Judged, other: Judged, fold: NDArray[np.int64] | None = None) -> Interval:
    """Returns the AUROC of one method minus that of another, paired, by a bootstrap over groups.

    Args:
        table: the n answers.
        method: the method.
        other: the method to subtract.
        fold: as in `method_results`.
    """
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
    """Returns `results` with further numbers, on the same resamples.

    Args:
        table: the n answers.
        judged: the methods.
        results: a result for each of `judged`.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
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


_PARAMETER_COUNT = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([mb])(?![a-z0-9])", re.I)


def parameters_of(model: str) -> float | None:
    """Returns the number of parameters that a model's name states, such as 0.5e9 for `qwen-coder-0.5b`; else None."""
    match = _PARAMETER_COUNT.search(model)
    return None if match is None else float(match[1]) * (1e6 if match[2].lower() == "m" else 1e9)


def headline_by_model(
    table: AnswerTable,
    judged: Sequence[Judged],
    headline: str,
    *,
    fold: NDArray[np.int64] | None = None,
    seed: int = 0,
) -> tuple[ModelResult, ...]:
    """Returns the headline method and its strongest control on each model's answers, the smallest model first.

    The result is empty for answers of one model. Models without right or without wrong answers are left out.

    Args:
        table: the n answers.
        judged: the methods.
        headline: name of the headline method.
        fold: as in `method_results`.
        seed: seed of the bootstrap.
    """
    model_results = []
    for model in np.unique(table.models).tolist() if len(np.unique(table.models)) > 1 else []:
        model_rows = table.models == model
        if len(np.unique(table.y[model_rows])) < 2:
            continue
        judged_of_model = [method.rows(model_rows) for method in judged]
        model_fold = None if fold is None else fold[model_rows]
        results = method_results(table.rows(model_rows), judged_of_model, fold=model_fold, seed=seed)
        result = next(candidate for candidate in results if candidate.name == headline)
        model_results.append(
            ModelResult(
                model=model,
                parameters=parameters_of(model),
                n=int(model_rows.sum()),
                accuracy=float(table.y[model_rows].mean()),
                auroc=result.auroc,
                control=result.controls.strongest.name if result.controls else "",
                diff_control=result.diff_control,
                diff_stated=result.diff_stated,
            )
        )
    return tuple(sorted(model_results, key=lambda row: (row.parameters or math.inf, row.model)))


def explicit_and_implicit(
    table: AnswerTable,
    judged: Sequence[Judged],
    names: tuple[str, str, str],
    *,
    fold: NDArray[np.int64] | None = None,
    seed: int = 0,
) -> SignalComparison:
    """Returns the comparison of a stated number with a learned method, on all answers, by task, by model and by both.

    Args:
        table: the n answers.
        judged: the methods.
        names: names of the explicit, the implicit and the joining method; the last may be empty.
        fold: as in `method_results`.
        seed: seed of the bootstrap.
    """
    explicit, implicit, joined_name = names
    ranking = {method.name: method.ranking for method in judged}
    weights, runs = cluster_weights(list(table.groups), RESAMPLES, seed), run_of_answers(table)
    left_out: list[str] = []

    def result(by: PartKind, name: str, rows: NDArray[np.bool_]) -> tuple[SignalResult, float]:
        y, row_weights = table.y[rows], weights[:, rows]
        metric = auroc_within(None if fold is None else fold[rows], runs[rows])
        values = {each: metric_values(metric, y, ranking[each][rows], row_weights) for each in names if each}
        over_explicit = control_comparison(values[implicit], {explicit: values[explicit]}, row_weights).controls[0]
        better = max((values[explicit], values[implicit]), key=lambda each: each.estimate)
        signal_result = SignalResult(
            by=by,
            name=name,
            n=int(rows.sum()),
            accuracy=float(y.mean()),
            explicit=resampled_interval(values[explicit].estimate, values[explicit].resamples, row_weights),
            implicit=resampled_interval(values[implicit].estimate, values[implicit].resamples, row_weights),
            difference=over_explicit.difference,
            p_holm=over_explicit.p_holm,
            joined=resampled_interval(values[joined_name].estimate, values[joined_name].resamples, row_weights)
            if joined_name
            else None,
            joined_gain=paired_interval(values[joined_name], better, row_weights) if joined_name else None,
        )
        return signal_result, over_explicit.p

    parts = [result("all", "all answers", np.ones(len(table), dtype=bool))[0]]
    columns: list[tuple[PartKind, NDArray[np.str_]]] = [("task", table.tasks), ("model", table.models)]
    if all(len(np.unique(column)) > 1 for _, column in columns):
        run_names = np.array([f"{model} on {task}" for task, model in zip(table.tasks, table.models, strict=True)])
        columns.append(("task and model", run_names))
    for by, column in columns:
        part_names = np.unique(column).tolist()
        results = []
        for name in part_names if len(part_names) > 1 else []:
            part, p = result(by, name, column == name)
            if math.isfinite(part.difference.estimate):
                results.append((part, p))
            else:
                left_out.append(name)
        corrected = holm([p for _, p in results])
        parts += [replace(part, p_holm=float(p)) for (part, _), p in zip(results, corrected, strict=True)]
    return SignalComparison(
        explicit=explicit,
        implicit=implicit,
        joined=joined_name,
        parts=tuple(parts),
        left_out=tuple(left_out),
        runs=int(runs.max()) + 1,
    )


def write_item_table(folder: str | Path, table: AnswerTable, judged: Sequence[Judged]) -> tuple[Path, Path]:
    """Writes items.csv and items.parquet into `folder`. Both hold the same rows: each answer's methods, one after
    another.

    `score` orders the answers, `probability` is calibrated. Both come from folds that had not seen the answer's group.
    If a method has no score for an answer (see `coverage`), its median answer's values are used.

    Args:
        folder: the folder.
        table: the n answers.
        judged: the methods.
    """
    arrow: Any = require("pyarrow", "fit")
    n, k = len(table), len(judged)

    def repeat_per_method(values: Any) -> Any:
        return np.repeat(np.asarray(values), k)

    rows = arrow.table(
        {
            "call_id": repeat_per_method(table.call_ids),
            "item": repeat_per_method(table.items),
            "group": repeat_per_method(table.groups),
            "task": repeat_per_method(table.tasks),
            "dimension": repeat_per_method(table.dimensions),
            "level": repeat_per_method(table.levels),
            "variant": repeat_per_method(table.variants),
            "model": repeat_per_method(table.models),
            "y": repeat_per_method(table.y),
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
