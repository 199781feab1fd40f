"""What the answers themselves are like: how many are right, and the course of their log-probabilities."""

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.results import Accuracy, AccuracyRow, Trajectories
from metaprobe.eval.table import AnswerTable
from metaprobe.eval.trajectory import trajectory_bands

LEVELS = ("easy", "medium", "hard", "cross")


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
    if not table.measured:
        return None
    right = [np.asarray(x) for x in table.logprobs[table.y == 1]]
    wrong = [np.asarray(x) for x in table.logprobs[table.y == 0]]
    if not right or not wrong:
        return None
    return Trajectories(trajectory_bands(right), trajectory_bands(wrong))
