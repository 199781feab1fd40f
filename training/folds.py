"""Splits answers by group into four roles: train, selection, calibration and test.

Everything that is chosen is chosen on selection rows. For the last fit the selection rows join the train rows.
Calibration and test rows never do.
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
    """Row indices of each role. No group has rows in two roles."""

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
        """All rows except the test rows."""
        return np.sort(np.concatenate([self.train, self.selection, self.calibration]))


def outer_folds(groups: Sequence[str], y: NDArray[np.int64], *, folds: int = 5, seed: int = 0) -> Iterator[Roles]:
    """Yields one `Roles` for each outer fold. Every row is a test row once.

    Folds are balanced in y as far as groups allow.
    """
    rows = np.arange(len(y))
    for seen, test in group_folds(rows, groups, y, folds, seed):
        yield _split_seen(seen, groups, y, test=test, seed=seed)


def roles_without(test: Rows, groups: Sequence[str], y: NDArray[np.int64], *, seed: int = 0) -> Roles:
    """Returns roles with these test rows. All rows of other groups are seen."""
    group_names = np.asarray(groups)
    seen = np.flatnonzero(~np.isin(group_names, group_names[test]))
    return _split_seen(seen, groups, y, test=test, seed=seed)


def final_roles(groups: Sequence[str], y: NDArray[np.int64], *, seed: int = 0) -> Roles:
    """Returns roles for the exported model: all rows are seen, and no row is a test row."""
    return _split_seen(np.arange(len(y)), groups, y, test=np.empty(0, dtype=np.int64), seed=seed)


def with_fewer(roles: Roles, labels: int, groups: Sequence[str], y: NDArray[np.int64], *, seed: int = 0) -> Roles:
    """Returns roles with the same test rows and about `labels` seen rows: whole groups, drawn with `seed`."""
    group_names = np.asarray(groups)
    drawn = np.random.default_rng(seed).permutation(np.unique(group_names[roles.seen]))
    index_of_group = {name: i for i, name in enumerate(drawn.tolist())}
    draw_of_row = np.array([index_of_group[name] for name in group_names[roles.seen].tolist()])
    last_draw = np.searchsorted(np.cumsum(np.bincount(draw_of_row)), labels)
    return _split_seen(roles.seen[draw_of_row <= last_draw], groups, y, test=roles.test, seed=seed)


def _split_seen(seen: Rows, groups: Sequence[str], y: NDArray[np.int64], *, test: Rows, seed: int) -> Roles:
    """Returns the roles: about 60 % of the seen groups for training, 20 % for selection and 20 % for calibration.

    Args:
        seen: the rows to split.
        groups: the groups (n,) of all answers.
        y: the labels (n,) of all answers.
        test: the test rows.
        seed: seed of the split.
    """
    parts = [part for _, part in group_folds(seen, groups, y, 5, seed + 1)]
    return Roles(train=np.sort(np.concatenate(parts[:3])), selection=parts[3], calibration=parts[4], test=test)


def group_folds(
    rows: Rows, groups: Sequence[str], y: NDArray[np.int64], folds: int, seed: int
) -> Iterator[tuple[Rows, Rows]]:
    """Yields (the other rows, the fold's rows) for each fold by group, balanced in y as far as groups allow.

    Args:
        rows: the rows to split.
        groups: the groups (n,) of all answers.
        y: the labels (n,) of all answers.
        folds: number of folds.
        seed: seed of the split.
    """
    labels, group_indices = np.asarray(y)[rows], np.unique(np.asarray(groups)[rows], return_inverse=True)[1]
    try:
        fold_of_row = _cached_folds(
            labels.dtype.str, label_bytes=labels.tobytes(), group_bytes=group_indices.tobytes(), folds=folds, seed=seed
        )
    except ValueError as error:
        raise RecordError(
            f"{len(rows)} answers in {len({groups[i] for i in rows})} groups do not suffice for {folds} folds: {error}"
        ) from error
    for fold in range(folds):
        yield rows[fold_of_row != fold], rows[fold_of_row == fold]


@lru_cache(maxsize=16)  # every method of a comparison asks for the same folds
def _cached_folds(label_dtype: str, *, label_bytes: bytes, group_bytes: bytes, folds: int, seed: int) -> Rows:
    """Returns the fold (n,) in which each row is judged. Arrays come as bytes, because a cache needs hashable keys.

    Args:
        label_dtype: type of the labels.
        label_bytes: the labels (n,).
        group_bytes: the group indices (n,), of type intp.
        folds: number of folds.
        seed: seed of the split.
    """
    y, group_indices = np.frombuffer(label_bytes, dtype=label_dtype), np.frombuffer(group_bytes, dtype=np.intp)
    fold_of_row: Rows = np.empty(len(y), dtype=np.int64)
    for fold, (_, fold_rows) in enumerate(
        _splitter()(folds, shuffle=True, random_state=seed).split(y, y, group_indices)
    ):
        if not len(fold_rows):  # scikit-learn #34828: with as many groups as folds one may be empty
            raise ValueError(f"one of {folds} folds is empty")
        fold_of_row[fold_rows] = fold
    return fold_of_row


@cache
def _splitter() -> Any:
    """Returns scikit-learn's `StratifiedGroupKFold` with a faster search for a group's fold: all folds at once.

    The folds are the same: sums are those of `np.std` and `np.mean`, to the last bit, without the time that calling
    these takes. A training makes hundreds of splits.
    """
    total, each_fold = np.add.reduce, cache(lambda folds: np.eye(folds)[:, :, None])

    class GroupFolds(require("sklearn.model_selection", "fit").StratifiedGroupKFold):  # type: ignore[misc]
        def _find_best_fold(self, y_counts_per_fold: Floats, y_cnt: Rows, group_y_counts: Floats) -> int:
            folds = self.n_splits
            # (fold that gets the group, fold, class)
            share = (y_counts_per_fold + each_fold(folds) * group_y_counts) / y_cnt
            distance = share - total(share, axis=1, keepdims=True) / folds
            spread_of_class = np.sqrt(total(distance * distance, axis=1) / folds)
            spreads, sizes = total(spread_of_class, axis=1) / len(y_cnt), total(y_counts_per_fold, axis=1)
            best_fold, least_spread, smallest_size = 0, np.inf, np.inf
            for fold, (spread, fold_size) in enumerate(zip(spreads.tolist(), sizes.tolist(), strict=True)):
                tied = abs(spread - least_spread) <= 1e-8 + 1e-5 * least_spread < np.inf  # as np.isclose has it
                if spread < least_spread or (tied and fold_size < smallest_size):
                    best_fold, least_spread, smallest_size = fold, spread, fold_size
            return best_fold

    return GroupFolds


# Groups that must stay in one split: the given groups, joined where they ask the same question.
#
# Data sets hold some questions twice, under two ids. If one were learned from and the other tested on, the test would
# measure memory. So groups whose questions repeat, or nearly repeat, become one group before anything is split.

JOINABLE_GROUPS = 10
"""Largest number of groups that may always be joined into one."""
JOINABLE_SHARE = 0.1
"""Share of all groups that may be joined into one, if that is more than `JOINABLE_GROUPS`. A larger set of groups has a
way of asking in common ("Which of these is true?"), not a repeated question. As one group it would leave nothing to
split.
"""

Numbers = NDArray[np.intp]


def join_table(table: AnswerTable) -> tuple[AnswerTable, str]:
    """Returns the table with its groups joined, and a clause that says so; empty if no groups were joined."""
    groups, note = join_groups(table.groups.tolist(), table.questions.tolist())
    return (replace(table, groups=groups), note) if note else (table, "")


def join_groups(groups: Sequence[str], questions: Sequence[str]) -> tuple[NDArray[np.str_], str]:
    """Returns the groups (n,) of n answers after joining those that hold the same question, and a clause about it.

    Joined groups get the first of their names in sorted order. The clause is empty if no groups were joined.

    Two questions are the same by the rule of the audits: equal but for case, spacing and punctuation, or with the same
    numbers in the same order and a Jaccard similarity of word 3-grams of at least 0.8. Choices are no part of a
    question. Empty questions, as in a store without texts, are never the same. A set of more than `JOINABLE_GROUPS`
    groups and more than `JOINABLE_SHARE` of all groups is not joined; then only groups with equal questions in it are
    joined. The audits report the remaining repetitions.
    """
    names, group_index = np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True)
    texts, text_index = np.unique([normalise(question) for question in questions], return_inverse=True)
    # Which group asks which text, (m, 2), and which texts are nearly identical.
    text_of_group = np.unique(np.stack([text_index, group_index], axis=1)[(texts != "")[text_index]], axis=0)
    pairs = [np.stack([i, j], axis=1) for _, i, j in nearly_identical(texts.tolist())]
    near_pairs = np.concatenate([np.empty((0, 2), dtype=np.intp), *pairs])
    # Join by equal texts, then by nearly identical ones, as long as a component is not too large.
    singles = np.arange(len(names))
    component, max_joined = singles, max(JOINABLE_GROUPS, int(JOINABLE_SHARE * len(names)))
    for pass_number, linked_texts in enumerate((near_pairs[:0], near_pairs), start=1):
        linked = _link(len(names), len(texts), text_of_group, linked_texts)
        component = np.where(np.bincount(linked)[linked] <= max_joined, pass_number * len(names) + linked, component)
    _, first, index_of_component, sizes = np.unique(
        component, return_index=True, return_inverse=True, return_counts=True
    )
    is_joined = sizes > 1
    joined_count, merged_count = int(sizes[is_joined].sum()), int(is_joined.sum())
    note = (
        f"{joined_count} groups that ask the same questions, or nearly the same, were joined into {merged_count}"
        if joined_count
        else ""
    )
    return names[first[index_of_component][group_index]], note


def join_copies(table: AnswerTable) -> tuple[AnswerTable, str]:
    """Returns the table after joining groups that hold the same answer, and a clause about it; empty for none.

    Two answers are the same if their log-probabilities agree token by token, as in the audit of repeated answers.
    """
    series = number_series(table.logprobs)
    names, group_index = np.unique(table.groups, return_inverse=True)
    with_series = np.flatnonzero(series >= 0)
    series_of_group = np.unique(np.stack([series[with_series], group_index[with_series]], axis=1), axis=0)
    component = _link(len(names), int(series.max(initial=-1)) + 1, series_of_group, np.empty((0, 2), dtype=np.intp))
    _, first = np.unique(component, return_index=True)
    removed_count = len(names) - len(first)
    if not removed_count:
        return table, ""
    note = f"{len(names)} groups were joined into {len(first)}, for they hold answers that agree token by token"
    return replace(table, groups=names[first[component]][group_index]), note


def _link(group_count: int, text_count: int, asked_pairs: Numbers, near_pairs: Numbers) -> Numbers:
    """Returns the component of each group, (groups,): groups are linked to their texts, and near texts to each other.

    Args:
        group_count: number of groups.
        text_count: number of texts.
        asked_pairs: pairs (text, group) of a group and a text that it asks, (m, 2).
        near_pairs: pairs of texts that count as the same, (k, 2).
    """
    sparse = require("scipy.sparse", "fit")
    edges = np.concatenate([asked_pairs + np.array([group_count, 0]), near_pairs + group_count])
    graph = sparse.coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(group_count + text_count,) * 2)
    labels = require("scipy.sparse.csgraph", "fit").connected_components(graph, directed=False)[1][:group_count]
    return np.unique(labels, return_inverse=True)[1]
