"""Descriptions of answers and runs: accuracy, log-probabilities along the answer, AUROC by tokens read, accuracy by
stage.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.answer_table import AnswerTable, level_place, runs_by_variant
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.results import (
    Accuracy,
    AccuracyRow,
    Comparison,
    Family,
    SeenMethod,
    SeenTokens,
    Trajectories,
    TrajectoryBands,
)
from metaprobe.eval.systems.metacrit_figures import stage_accuracy
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Run

CURVE_POSITIONS = 50
"""Number of positions along the answer to which log-probabilities are interpolated."""
PREFIX_LENGTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200)
"""Numbers k of first tokens for which AUROC is computed, unless learned scores name their own k."""
MIN_LONGER_SHARE = 0.05
"""If at most this share of the answers is longer than k tokens, larger k are not shown, because little changes."""


def accuracy_rows(table: AnswerTable) -> tuple[AccuracyRow, ...]:
    """Returns the share of right answers by dimension and level, and over all answers."""
    rows_of_cell: dict[tuple[str, str], NDArray[np.bool_]] = {
        (dimension, level): (table.dimensions == dimension) & (table.levels == level)
        for dimension, level in sorted(
            set(zip(table.dimensions.tolist(), table.levels.tolist(), strict=True)),
            key=lambda cell: (cell[0], level_place(cell[1])),
        )
    }
    rows_of_cell["all", "all"] = np.ones(len(table), dtype=bool)
    variants = list(dict.fromkeys(table.variants.tolist()))
    return tuple(
        AccuracyRow(
            dimension,
            level,
            {
                variant: Accuracy(float(table.y[rows].mean()), int(rows.sum()))
                for variant in variants
                if (rows := cell_rows & (table.variants == variant)).any()
            },
        )
        for (dimension, level), cell_rows in rows_of_cell.items()
    )


def trajectories(table: AnswerTable) -> Trajectories | None:
    """Returns log-probabilities along right and along wrong answers; None if there are no right or no wrong ones."""
    right, wrong = (list(table.logprobs[table.y == label]) for label in (1, 0))
    if not table.measured or not right or not wrong:
        return None
    return Trajectories(trajectory_bands(right), trajectory_bands(wrong))


def trajectory_bands(logprobs: Sequence[ArrayLike]) -> TrajectoryBands:
    """Returns the bands over answers.

    Each answer is interpolated to `CURVE_POSITIONS` positions, so that all answers weigh the same.

    An answer of one token is constant. Raises ValueError if there are no answers, or if one is empty or not finite.
    """
    if not logprobs:
        raise ValueError("no answers: trajectories need at least one list of log-probabilities")
    position = np.linspace(0.0, 1.0, CURVE_POSITIONS)
    curves = np.empty((len(logprobs), CURVE_POSITIONS))
    for row, values in enumerate(logprobs):
        curve = np.asarray(values, dtype=np.float64)
        if curve.ndim != 1 or curve.size == 0 or not np.isfinite(curve).all():
            raise ValueError(
                f"answer {row}: one finite log-probability a token is needed; got shape {curve.shape} with "
                f"{np.count_nonzero(~np.isfinite(curve))} not finite. Leave such answers out"
            )
        curves[row] = np.interp(position, np.linspace(0.0, 1.0, curve.size), curve)
    p10, p25, p75, p90 = np.percentile(curves, [10, 25, 75, 90], axis=0)
    return TrajectoryBands(100 * position, curves.mean(axis=0), p10, p25, p75, p90, len(curves))


def auroc_by_tokens_seen(
    table: AnswerTable,
    *,
    learned: Mapping[str, Mapping[int, ArrayLike]] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> SeenTokens | None:
    """Returns the AUROC of the mean and minimum log-probability of the first k tokens, of all answers at every k.

    Shorter answers are read to their end. Returns None if all answers are right or all are wrong, or if there are no
    log-probabilities.

    Args:
        table: the n answers.
        learned: maps a name and a k to out-of-fold scores (n,) from the first k tokens, as a model of the schema
            `prefix-k` gives them. Every name must have the same k, and only these k are shown.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    if len(np.unique(table.y)) < 2 or not table.measured:
        return None
    learned_scores, token_counts = learned or {}, list(PREFIX_LENGTHS)
    if learned_scores:
        token_counts = sorted(next(iter(learned_scores.values())))
        for name, scores in learned_scores.items():
            if sorted(scores) != token_counts:
                raise RecordError(f"{name} has scores for k in {sorted(scores)}; the others for k in {token_counts}")
    else:
        longer_shares = [float(np.mean(table.tokens > k)) for k in token_counts]
        # The first k at which nearly all answers have ended is the last one worth showing.
        shown_count = next(
            (index + 1 for index, share in enumerate(longer_shares) if share <= MIN_LONGER_SHARE), len(longer_shares)
        )
        token_counts = token_counts[:shown_count]
    weights = cluster_weights(list(table.groups), resamples, seed)

    def seen_method(name: str, family: Family, scores: Mapping[int, ArrayLike]) -> SeenMethod:
        return SeenMethod(name, family, tuple(interval(auroc, table.y, scores[k], weights) for k in token_counts))

    first_logprobs = {k: [np.asarray(values[:k], dtype=np.float64) for values in table.logprobs] for k in token_counts}
    return SeenTokens(
        tokens=tuple(token_counts),
        finished=tuple(float(np.mean(table.tokens <= k)) for k in token_counts),
        methods=(
            seen_method(
                "mean log-probability",
                "log-probability",
                {k: [x.mean() for x in first_logprobs[k]] for k in token_counts},
            ),
            seen_method(
                "minimum log-probability",
                "log-probability",
                {k: [x.min() for x in first_logprobs[k]] for k in token_counts},
            ),
            *(seen_method(name, "learned", scores) for name, scores in learned_scores.items()),
        ),
    )


def with_stage_accuracy(
    comparison: Comparison, runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0
) -> Comparison:
    """Returns the comparison with accuracy by stage, for systems that have more than one stage.

    Args:
        comparison: the comparison.
        runs: the runs.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    return replace(
        comparison,
        stages=tuple(
            accuracy_of_stage
            for runs_of_variant in runs_by_variant(runs).values()
            if len(
                {
                    call.stage
                    for run in runs_of_variant
                    for call in run.calls
                    if run.label("correct", call.id) is not None
                }
            )
            > 1
            for accuracy_of_stage in stage_accuracy(runs_of_variant, resamples=resamples, seed=seed)
        ),
    )
