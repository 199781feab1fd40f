"""From run stores to the labelled answers of several heads, which may be labelled on different calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.table import AnswerTable, answer_table
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Label, Run
from metaprobe.training.common.heads import INVERTED, LEVELS, QUALITY, SCALES
from metaprobe.training.crossfit.evidence import evidence_of, invert, load_runs
from metaprobe.training.crossfit.methods import Evidence

FEW = 10
"""Groups on either side that a step between two grades needs, as a binary label does."""


NAMES = {QUALITY: ("q", QUALITY)}
"""Names of a label, where they are not the head's: judges write `q`."""


@dataclass(frozen=True, slots=True, eq=False)
class Graded:
    """Answers with a label on a scale."""

    target: str
    evidence: Evidence
    """Its table's `y` says whether an answer is above the middle: what its folds can be balanced by."""
    grades: NDArray[np.float64]
    """(n,), in `SCALES`."""
    steps: tuple[int, ...] = ()
    """Levels k for which y >= k can be learned."""

    @property
    def strata(self) -> NDArray[np.int64]:
        """(n,): how many steps an answer passes, what folds are balanced by. Few answers join the stratum above."""
        if not self.steps:
            return self.evidence.table.y
        passed: NDArray[np.int64] = np.sum([self.grades >= step for step in self.steps], axis=0, dtype=np.int64)
        counts = np.bincount(passed, minlength=len(self.steps) + 1)
        for stratum in range(len(self.steps)):
            if counts[stratum] < FEW:
                counts[stratum + 1] += counts[stratum]
                passed[passed == stratum] = stratum + 1
        return passed


def load_heads(
    stores: Sequence[str | Path],
    targets: Sequence[str],
    *,
    stage: str | None = None,
    agent: str | None = None,
    source: str | None = None,
    spread: bool = False,
) -> dict[str, Evidence | Graded]:
    """Of each head, the answers that have its label, with their features; runs and features are read once.

    `source`: only labels of this source, in full ("judge:MODEL") or up to the colon ("judge"); else the last label of
    each call. Groups that ask the same question are one group (`training.common.grouping`). A head in `INVERTED` has
    `y` turned round. Raises `RecordError` where a head has no labels, where a label is not on its scale, and where too
    few groups have another grade. `spread`: features are a Dask array on the workers of the default Dask client.
    """
    runs = load_runs(stores)
    kept = runs if source is None else [_of_source(run, source) for run in runs]
    if source is not None and not any(run.labels for run in kept):
        known = sorted({label.source for run in runs for label in run.labels})
        raise RecordError(f"no label of source {source!r}; sources found: {', '.join(known) or 'none'}")
    tables: dict[str, AnswerTable] = {}
    graded: dict[str, NDArray[np.float64]] = {}
    for target in dict.fromkeys(targets):
        if target in SCALES:
            graded[target], tables[target] = _graded(kept, target, stage, agent)
        else:
            tables[target] = answer_table(kept, target=target, stage=stage, agent=agent)
    found: dict[str, Evidence | Graded] = {}
    for target, evidence in evidence_of(runs, tables, spread=spread).items():
        if target in INVERTED:
            evidence = invert(evidence)
        found[target] = collect_graded(evidence, graded[target], target) if target in graded else evidence
    return found


def collect_graded(evidence: Evidence, grades: ArrayLike, target: str) -> Graded:
    """Answers with their grades (n,), and what can be learned of them.

    Raises `RecordError` where too few groups lie on either side of every cut.
    """
    groups, (low, high) = evidence.table.groups, SCALES[target]
    grades = np.asarray(grades, dtype=np.float64)
    cuts = range(low + 1, high + 1)
    sides = {cut: [len(np.unique(groups[side])) for side in (grades >= cut, grades < cut)] for cut in cuts}
    middle = max(cuts, key=lambda cut: min(sides[cut]))
    if min(sides[middle]) < FEW:
        above, below = sides[middle]
        raise RecordError(
            f"label {target}: {above} groups have at least {middle} and {below} less, and no other cut is more even; "
            f"{FEW} of either are needed: there is nothing to distinguish"
        )
    evidence = replace(evidence, table=replace(evidence.table, y=(grades >= middle).astype(np.int64)))
    if target not in LEVELS:
        return Graded(target, evidence, grades)
    return Graded(target, evidence, grades, tuple(cut for cut in cuts if min(sides[cut]) >= FEW))


def _graded(
    runs: Sequence[Run], target: str, stage: str | None, agent: str | None
) -> tuple[NDArray[np.float64], AnswerTable]:
    """Grades, and the table of the answers that have one; a table holds 0 and 1, so that its `y` is 1 throughout."""
    low, high = SCALES[target]
    names = NAMES.get(target, (target,))
    grades = {label.call_id: label.value for run in runs for label in run.labels if label.name in names}
    for call_id, value in grades.items():
        if not low <= value <= high or (target in LEVELS and value != int(value)):
            kind = "a whole number" if target in LEVELS else "a number"
            raise RecordError(f"call {call_id}: label {target} is {value:g}; expected {kind} from {low} to {high}")
    present = [replace(run, labels=tuple(_present(run, names, target))) for run in runs]
    table = answer_table(present, target=target, stage=stage, agent=agent)
    return np.array([grades[call_id] for call_id in table.call_ids.tolist()], dtype=np.float64), table


def _present(run: Run, names: Sequence[str], target: str) -> Iterator[Label]:
    for label in run.labels:
        yield replace(label, name=target, value=1.0) if label.name in names else label


def _of_source(run: Run, source: str) -> Run:
    kept = tuple(label for label in run.labels if source in (label.source, label.source.partition(":")[0]))
    return replace(run, labels=kept)
