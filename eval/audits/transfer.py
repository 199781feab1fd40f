"""Does what was learned on one set of answers hold on another?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.audits.simpler_predictors import Scores
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, resampled_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.strongest_control import metric_values
from metaprobe.eval.table import AnswerTable

Rows = NDArray[np.int64]
Scorer = Callable[[Rows], Scores]


@dataclass(frozen=True, slots=True, eq=False)
class TransferResult:
    """AUROC of learning on set i (row) and judging set j (column)."""

    names: tuple[str, ...]
    auroc: NDArray[np.float64]
    """(k, k); NaN where set j has one class. The diagonal is from folds by group."""
    intervals: tuple[tuple[Interval, ...], ...]
    """Of each entry, by a bootstrap over groups."""
    elsewhere: Interval | None
    """Mean of the entries off the diagonal, all on the same resamples; None for a single set."""


def transfer_matrix(
    table: AnswerTable,
    sets: Mapping[str, Rows],
    fit: Callable[[Rows], Scorer],
    *,
    folds: int = 5,
    resamples: int = 1000,
    seed: int = 0,
) -> TransferResult:
    """Learn on each set, judge each set. `fit` takes rows of the table and returns what scores any rows of it.

    No answer is judged by what saw its group: where the two sets share groups, as on the diagonal, set j is judged fold
    by fold, by a fit on set i without the groups of that fold. Scores of several fits are then pooled: let them be
    log-odds or probabilities. Takes k fits, and `folds` more for each two sets that share groups.
    """
    weights = cluster_weights(table.groups.tolist(), resamples, seed)
    whole: dict[str, Scorer] = {}

    def held_out(source: str, target: str) -> Scores:
        learn, judge = sets[source], sets[target]
        shared = np.intersect1d(table.groups[learn], table.groups[judge])
        if not len(shared):
            if source not in whole:
                whole[source] = fit(learn)
            return np.asarray(whole[source](judge), dtype=np.float64)
        fold = _fold_of(table.groups[judge], folds, seed)
        scores = np.full(len(judge), np.nan)
        for number in range(folds):
            if (part := fold == number).any():
                rest = learn[~np.isin(table.groups[learn], table.groups[judge[part]])]
                scores[part] = fit(rest)(judge[part])
        return scores

    estimates = np.full((len(sets), len(sets)), np.nan)
    resampled = np.full((len(sets), len(sets), resamples), np.nan)
    for i, source in enumerate(sets):
        for j, target in enumerate(sets):
            rows = sets[target]
            found = metric_values(auroc, table.y[rows], held_out(source, target), weights[:, rows])
            estimates[i, j], resampled[i, j] = found.estimate, found.resamples
    off = ~np.eye(len(sets), dtype=bool)
    return TransferResult(
        names=tuple(sets),
        auroc=estimates,
        intervals=tuple(
            tuple(
                resampled_interval(float(estimates[i, j]), resampled[i, j], weights[:, rows])
                for j, rows in enumerate(sets.values())
            )
            for i in range(len(sets))
        ),
        elsewhere=(
            resampled_interval(float(estimates[off].mean()), resampled[off].mean(axis=0), weights)
            if off.any()
            else None
        ),
    )


def _fold_of(groups: NDArray[np.str_], folds: int, seed: int) -> NDArray[np.int64]:
    """Fold of each row: groups dealt out in random order."""
    distinct, number = np.unique(groups, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(distinct)) % folds)[number]
