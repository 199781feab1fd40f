"""Who may learn what from which answers: four roles, split by group.

What is chosen is chosen on selection rows; once it is, they join the train rows for the last fit. Calibration and test
rows never do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Roles:
    """Row indices of each role. No group has rows in two of them."""

    train: Rows
    """Weights are fitted here."""
    selection: Rows
    """Layers, windows, hyper-parameters, early stopping and the best baseline are chosen here."""
    calibration: Rows
    """Calibrators and thresholds are fitted here."""
    test: Rows
    """Only measured. Empty for the model that is exported."""

    @property
    def learning(self) -> Rows:
        """Train and selection rows: what a model is fitted on once its hyper-parameters are chosen."""
        return np.sort(np.concatenate([self.train, self.selection]))

    @property
    def seen(self) -> Rows:
        """Everything but the test rows."""
        return np.sort(np.concatenate([self.train, self.selection, self.calibration]))


def outer_folds(groups: Sequence[str], y: NDArray[np.int64], *, folds: int = 5, seed: int = 0) -> Iterator[Roles]:
    """One `Roles` an outer fold: every row is a test row once. Folds are balanced in y as far as groups allow."""
    rows = np.arange(len(y))
    for seen, test in group_folds(rows, groups, y, folds, seed):
        yield _inner(seen, test, groups, y, seed)


def roles_without(test: Rows, groups: Sequence[str], y: NDArray[np.int64], *, seed: int = 0) -> Roles:
    """Roles whose test rows are given: the other rows are seen, but for those of a group that has a test row."""
    named = np.asarray(groups)
    seen = np.flatnonzero(~np.isin(named, named[test]))
    return _inner(seen, test, groups, y, seed)


def final_roles(groups: Sequence[str], y: NDArray[np.int64], *, seed: int = 0) -> Roles:
    """Roles for the model that is exported: all rows are seen, none is left for a test."""
    return _inner(np.arange(len(y)), np.empty(0, dtype=np.int64), groups, y, seed)


def _inner(seen: Rows, test: Rows, groups: Sequence[str], y: NDArray[np.int64], seed: int) -> Roles:
    """Of the seen groups, about 60 % train, 20 % select, 20 % calibrate."""
    parts = [part for _, part in group_folds(seen, groups, y, 5, seed + 1)]
    return Roles(train=np.sort(np.concatenate(parts[:3])), selection=parts[3], calibration=parts[4], test=test)


def group_folds(
    rows: Rows, groups: Sequence[str], y: NDArray[np.int64], folds: int, seed: int
) -> Iterator[tuple[Rows, Rows]]:
    """(the other rows, the fold's rows) for each fold by group, balanced in y as far as groups allow."""
    labels, places = np.asarray(y)[rows], np.unique(np.asarray(groups)[rows], return_inverse=True)[1]
    try:
        number = _fold_numbers(labels.dtype.str, labels.tobytes(), places.tobytes(), folds, seed)
    except ValueError as error:
        raise RecordError(
            f"{len(rows)} answers in {len({groups[i] for i in rows})} groups do not suffice for {folds} folds: {error}"
        ) from error
    for fold in range(folds):
        yield rows[number != fold], rows[number == fold]


@lru_cache(maxsize=16)  # every method of a comparison asks for the same folds
def _fold_numbers(kind: str, labels: bytes, groups: bytes, folds: int, seed: int) -> Rows:
    """The fold (n,) that each row is judged in."""
    y, named = np.frombuffer(labels, dtype=kind), np.frombuffer(groups, dtype=np.intp)
    number: Rows = np.empty(len(y), dtype=np.int64)
    for fold, (_, part) in enumerate(_splitter()(folds, shuffle=True, random_state=seed).split(y, y, named)):
        if not len(part):  # scikit-learn #34828: with as many groups as folds one may be empty
            raise ValueError(f"one of {folds} folds is empty")
        number[part] = fold
    return number


@cache
def _splitter() -> Any:
    """scikit-learn's `StratifiedGroupKFold`, whose search for a group's fold is made for all folds at once.

    The folds are the same. Of thousands of groups they take a fifth of the time, and a training makes hundreds of
    splits.
    """

    class GroupFolds(require("sklearn.model_selection", "fit").StratifiedGroupKFold):  # type: ignore[misc]
        def _find_best_fold(self, y_counts_per_fold: Floats, y_cnt: Rows, group_y_counts: Floats) -> int:
            tried = np.repeat(y_counts_per_fold[None], self.n_splits, axis=0)  # (fold it goes to, fold, class)
            tried[np.arange(self.n_splits), np.arange(self.n_splits)] += group_y_counts
            spreads = np.std(tried / y_cnt, axis=1).mean(axis=1).tolist()
            best, least, fewest = 0, np.inf, np.inf
            for fold, (spread, held) in enumerate(zip(spreads, y_counts_per_fold.sum(axis=1).tolist(), strict=True)):
                tied = abs(spread - least) <= 1e-8 + 1e-5 * least < np.inf  # as np.isclose has it
                if spread < least or (tied and held < fewest):
                    best, least, fewest = fold, spread, held
            return best

    return GroupFolds
