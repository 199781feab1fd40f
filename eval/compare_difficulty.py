"""The comparison at equal difficulty, and over-confidence by difficulty: a model that says "sure" of easy questions and
"unsure" of hard ones may know nothing of its answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import P_TRUE, RESAMPLES, STATED, Judged
from metaprobe.eval.compare_answers import LEVELS
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval, paired_difference
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.stratified import StratifiedAuroc
from metaprobe.eval.metrics.type2 import equal_grades
from metaprobe.eval.results import Difficulty, Overconfidence, Stratum, WithinStrata
from metaprobe.eval.table import AnswerTable

QUANTILES = 5
ALL = "all"


@dataclass(frozen=True, slots=True, eq=False)
class Strata:
    """Answers sorted by how difficult their questions are."""

    by: str
    names: tuple[str, ...]
    member: NDArray[np.int64]
    """(n,): index into `names`."""


def difficulty_strata(table: AnswerTable, *, estimate: Judged | None = None) -> Strata | None:
    """Cells of dimension and level, as far as these differ between the items; else fifths of an estimate.

    `estimate` must not know the answer's own label, and so is one from outer folds: by default there is none, and in a
    comparison it is what the words of the question show. What it does not know of the difficulty stays uncontrolled.
    None where there is nothing to stratify by, which an estimate is that may as well be chance (the interval of its
    AUROC holds 0.5).
    """
    levels, dimensions = (len(np.unique(column)) > 1 for column in (table.levels, table.dimensions))
    if levels or dimensions:
        cells = [
            " / ".join(part for part, given in ((d, dimensions), (level, levels)) if given)
            for d, level in zip(table.dimensions.tolist(), table.levels.tolist(), strict=True)
        ]
        order = {level: rank for rank, level in enumerate(LEVELS)}
        names = sorted(set(cells), key=lambda cell: (*_head(cell), order.get(cell.split(" / ")[-1], -1), cell))
        by = " x ".join(name for name, given in (("dimension", dimensions), ("level", levels)) if given)
        return Strata(by, tuple(names), np.array([names.index(cell) for cell in cells], dtype=np.int64))
    if estimate is None or not _tells(table, estimate):
        return None
    member = equal_grades(-estimate.probability, grades=QUANTILES)
    count = int(member.max()) + 1
    if count < 2:
        return None
    names = [f"{number + 1} of {count}" for number in range(count)]
    names[0], names[-1] = f"{names[0]}, easiest", f"{names[-1]}, hardest"
    return Strata(f"difficulty as {estimate.name} estimates it", tuple(names), member)


def _tells(table: AnswerTable, estimate: Judged) -> bool:
    """Whether right answers are clearly more often those to the questions that it takes for easy."""
    found = interval(auroc, table.y, estimate.probability, cluster_weights(list(table.groups)))
    return found.low > 0.5


def _head(cell: str) -> tuple[str, ...]:
    """The dimension of a cell, where it has one and a level."""
    return tuple(cell.split(" / ")[:-1])


def at_equal_difficulty(
    table: AnswerTable, judged: Sequence[Judged], strata: Strata, *, resamples: int = RESAMPLES, seed: int = 0
) -> Difficulty:
    """Every method's AUROC over pairs within strata, beside its difference from stated confidence there."""
    weights = cluster_weights(list(table.groups), resamples, seed)
    within = StratifiedAuroc(strata.member)
    members = [np.flatnonzero(strata.member == number) for number in range(len(strata.names))]
    stated = next((method.ranking for method in judged if method.name == STATED), None)

    def inside(method: Judged, rows: NDArray[np.int64]) -> Interval | None:
        if len(np.unique(table.y[rows])) < 2:
            return None
        return interval(auroc, table.y[rows], method.ranking[rows], weights[:, rows])

    return Difficulty(
        by=strata.by,
        strata=tuple(
            Stratum(name, len(rows), float(table.y[rows].mean()))
            for name, rows in zip(strata.names, members, strict=True)
        ),
        methods=tuple(
            WithinStrata(
                method=method.name,
                auroc=interval(within, table.y, method.ranking, weights),
                diff_stated=None
                if stated is None or method.name == STATED
                else paired_difference(within, table.y, method.ranking, stated, weights),
                by_stratum=tuple(inside(method, rows) for rows in members),
            )
            for method in judged
        ),
    )


def overconfidence(
    table: AnswerTable, judged: Sequence[Judged], strata: Strata | None, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Overconfidence, ...]:
    """Mean confidence minus accuracy, over all answers and by level (or by stratum where the items have no levels).

    Of the numbers that the model gave itself (stated confidence, P(true)), as it gave them and where it did; and, to
    hold them against, of the calibrated probabilities of what was learned.
    """
    own = {STATED: table.stated_confidence, P_TRUE: table.p_true}
    rows: list[Overconfidence] = []
    for method in judged:
        stated = method.name in own
        if not stated and method.family != "learned":
            continue
        confidence = own[method.name] if stated else method.probability
        known = np.isfinite(confidence)
        for level, members in {ALL: known, **{name: known & here for name, here in _levels(table, strata)}}.items():
            if not members.any():
                continue
            gap = confidence[members] - table.y[members]
            weights = cluster_weights(list(table.groups[members]), resamples, seed)
            rows.append(
                Overconfidence(
                    method=method.name,
                    stated=stated,
                    level=level,
                    confidence=float(confidence[members].mean()),
                    accuracy=float(table.y[members].mean()),
                    gap=mean_interval(gap, weights),
                )
            )
    return tuple(rows)


def _levels(table: AnswerTable, strata: Strata | None) -> list[tuple[str, NDArray[np.bool_]]]:
    found = sorted(
        set(table.levels.tolist()),
        key=lambda level: (LEVELS.index(level) if level in LEVELS else len(LEVELS), level),
    )
    if len(found) > 1:
        return [(level or "no level", table.levels == level) for level in found]
    return [] if strata is None else [(name, strata.member == i) for i, name in enumerate(strata.names)]
