"""Who may learn what from which answers: four roles, split by group.

What is chosen is chosen on selection rows; once it is, they join the train rows for the last fit. Calibration and test
rows never do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.audits_of_data import nearly_identical, normalise, number_series
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Roles:
    """Row indices of each role. No group has rows in two of them."""

    train: Rows
    """Rows on which weights are fitted."""
    selection: Rows
    """Rows on which layers, windows, hyper-parameters, early stopping and the best baseline are chosen."""
    calibration: Rows
    """Rows on which calibrators and thresholds are fitted."""
    test: Rows
    """Rows on which the finished model is only measured. Empty for the model that is exported."""

    @property
    def learning(self) -> Rows:
        """Train and selection rows together. A model is fitted on them after its hyper-parameters are chosen."""
        return np.sort(np.concatenate([self.train, self.selection]))

    @property
    def parts(self) -> dict[str, Rows]:
        """The rows of each role by its name."""
        return {"train": self.train, "selection": self.selection, "calibration": self.calibration, "test": self.test}

    @property
    def seen(self) -> Rows:
        """Everything but the test rows."""
        return np.sort(np.concatenate([self.train, self.selection, self.calibration]))


def outer_folds(groups: Sequence[str], y: NDArray[np.int64], *, folds: int = 5, seed: int = 0) -> Iterator[Roles]:
    """Returns one `Roles` for each outer fold: every row is a test row once. Folds are balanced in y as far as groups
    allow."""
    rows = np.arange(len(y))
    for seen, test in group_folds(rows, groups, y, folds, seed):
        yield _inner(seen, test, groups, y, seed)


def roles_without(test: Rows, groups: Sequence[str], y: NDArray[np.int64], *, seed: int = 0) -> Roles:
    """Returns roles with these test rows. All other rows are seen, except rows of a group that has a test row."""
    group_names = np.asarray(groups)
    seen = np.flatnonzero(~np.isin(group_names, group_names[test]))
    return _inner(seen, test, groups, y, seed)


def final_roles(groups: Sequence[str], y: NDArray[np.int64], *, seed: int = 0) -> Roles:
    """Returns roles for the exported model: all rows are seen, and no row is a test row."""
    return _inner(np.arange(len(y)), np.empty(0, dtype=np.int64), groups, y, seed)


def with_fewer(roles: Roles, labels: int, groups: Sequence[str], y: NDArray[np.int64], *, seed: int = 0) -> Roles:
    """Returns roles with the same test rows and about `labels` seen rows: whole groups, drawn with `seed`."""
    group_names = np.asarray(groups)
    drawn = np.random.default_rng(seed).permutation(np.unique(group_names[roles.seen]))
    place = {name: i for i, name in enumerate(drawn.tolist())}
    order = np.array([place[name] for name in group_names[roles.seen].tolist()])
    last = np.searchsorted(np.cumsum(np.bincount(order)), labels)
    return _inner(roles.seen[order <= last], roles.test, groups, y, seed)


def _inner(seen: Rows, test: Rows, groups: Sequence[str], y: NDArray[np.int64], seed: int) -> Roles:
    """Returns the roles: about 60 % of the seen groups train, 20 % select and 20 % calibrate."""
    parts = [part for _, part in group_folds(seen, groups, y, 5, seed + 1)]
    return Roles(train=np.sort(np.concatenate(parts[:3])), selection=parts[3], calibration=parts[4], test=test)


def group_folds(
    rows: Rows, groups: Sequence[str], y: NDArray[np.int64], folds: int, seed: int
) -> Iterator[tuple[Rows, Rows]]:
    """Returns (the other rows, the fold's rows) for each fold by group, balanced in y as far as groups allow."""
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
    """Returns the fold (n,) in which each row is judged."""
    y, group_numbers = np.frombuffer(labels, dtype=kind), np.frombuffer(groups, dtype=np.intp)
    number: Rows = np.empty(len(y), dtype=np.int64)
    for fold, (_, part) in enumerate(_splitter()(folds, shuffle=True, random_state=seed).split(y, y, group_numbers)):
        if not len(part):  # scikit-learn #34828: with as many groups as folds one may be empty
            raise ValueError(f"one of {folds} folds is empty")
        number[part] = fold
    return number


@cache
def _splitter() -> Any:
    """Returns scikit-learn's `StratifiedGroupKFold`, whose search for a group's fold is made for all folds at once.

    The folds are the same. Of thousands of groups they take a fifth of the time, and a training makes hundreds of
    splits.
    """

    class GroupFolds(require("sklearn.model_selection", "fit").StratifiedGroupKFold):  # type: ignore[misc]
        def _find_best_fold(self, y_counts_per_fold: Floats, y_cnt: Rows, group_y_counts: Floats) -> int:
            tried = np.repeat(y_counts_per_fold[None], self.n_splits, axis=0)  # (fold it goes to, fold, class)
            tried[np.arange(self.n_splits), np.arange(self.n_splits)] += group_y_counts
            spreads = np.std(tried / y_cnt, axis=1).mean(axis=1).tolist()
            best, least, fewest = 0, np.inf, np.inf
            for fold, (spread, fold_size) in enumerate(
                zip(spreads, y_counts_per_fold.sum(axis=1).tolist(), strict=True)
            ):
                tied = abs(spread - least) <= 1e-8 + 1e-5 * least < np.inf  # as np.isclose has it
                if spread < least or (tied and fold_size < fewest):
                    best, least, fewest = fold, spread, fold_size
            return best

    return GroupFolds


# Groups that must stay in one split: the given ones, joined where they ask the same question.
#
# Data sets hold questions twice, under two ids. Were one of them learned from and the other tested on, the test would
# be of memory. So groups whose questions repeat, or nearly do, become one group before anything is split.

JOINABLE_GROUPS = 10
"""Largest number of groups that may always be joined into one."""
JOINABLE_SHARE = 0.1
"""Share of all groups that may be joined into one, where that is more than `JOINABLE_GROUPS`. What more of them have
in common is a way of asking ("Which of these is true?"), no question that repeats: as one group it would leave nothing
to split."""

Numbers = NDArray[np.intp]


def join_table(table: AnswerTable) -> tuple[AnswerTable, str]:
    """Returns the table with its groups joined, and a clause that says so; empty if no groups were joined."""
    groups, note = join_groups(table.groups.tolist(), table.questions.tolist())
    return (replace(table, groups=groups), note) if note else (table, "")


def join_groups(groups: Sequence[str], questions: Sequence[str]) -> tuple[NDArray[np.str_], str]:
    """Returns the groups (n,) of n answers to these questions (n,). Groups that hold the same question are joined.

    Joined groups get the first of their names in sorted order. Also returns a clause that says which groups were
    joined; empty for none.

    Two questions are the same by the rule of the audits: equal but for case, spacing and punctuation, or with the same
    numbers in the same order and a Jaccard similarity of word 3-grams of at least 0.8. Choices are no part of a
    question. Empty questions, as in a store without texts, are never the same. A set of more than `JOINABLE_GROUPS`
    groups and more than `JOINABLE_SHARE` of all groups is not joined; then only groups with equal questions in it are
    joined. The audits report the remaining repetitions.
    """
    names, group = np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True)
    texts, text = np.unique([normalise(question) for question in questions], return_inverse=True)
    text_of_group = np.unique(
        np.stack([text, group], axis=1)[(texts != "")[text]], axis=0
    )  # (m, 2): which group asks which
    pairs = [np.stack([i, j], axis=1) for _, i, j in nearly_identical(texts.tolist())]
    near = np.concatenate([np.empty((0, 2), dtype=np.intp), *pairs])
    singles = np.arange(len(names))
    label, most = singles, max(JOINABLE_GROUPS, int(JOINABLE_SHARE * len(names)))
    for level, links in enumerate((near[:0], near), start=1):
        linked = _link(len(names), len(texts), text_of_group, links)
        label = np.where(np.bincount(linked)[linked] <= most, level * len(names) + linked, label)
    _, first, number, sizes = np.unique(label, return_index=True, return_inverse=True, return_counts=True)
    several = sizes > 1
    count, into = int(sizes[several].sum()), int(several.sum())
    note = f"{count} groups that ask the same questions, or nearly the same, were joined into {into}" if count else ""
    return names[first[number][group]], note


def join_copies(table: AnswerTable) -> tuple[AnswerTable, str]:
    """Returns the table after joining groups that hold the same answer, and a clause that says so; empty if nothing was
    joined.

    Two answers are the same if their log-probabilities agree token by token: the rule of the audit of repeated answers.
    """
    series = number_series(table.logprobs)
    names, group = np.unique(table.groups, return_inverse=True)
    with_series = np.flatnonzero(series >= 0)
    series_of_group = np.unique(np.stack([series[with_series], group[with_series]], axis=1), axis=0)
    label = _link(len(names), int(series.max(initial=-1)) + 1, series_of_group, np.empty((0, 2), dtype=np.intp))
    _, first = np.unique(label, return_index=True)
    joined = len(names) - len(first)
    if not joined:
        return table, ""
    note = f"{len(names)} groups were joined into {len(first)}, for they hold answers that agree token by token"
    return replace(table, groups=names[first[label]][group]), note


def _link(groups: int, texts: int, asked: Numbers, near: Numbers) -> Numbers:
    """Returns (groups,): the component of each, where groups are linked to the texts they ask and near texts to each
    other."""
    sparse = require("scipy.sparse", "fit")
    ends = np.concatenate([asked + np.array([groups, 0]), near + groups])
    graph = sparse.coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(groups + texts,) * 2)
    labels = require("scipy.sparse.csgraph", "fit").connected_components(graph, directed=False)[1][:groups]
    return np.unique(labels, return_inverse=True)[1]
