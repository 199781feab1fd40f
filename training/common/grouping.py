"""What must stay in one split: the given groups, joined where they ask the same question.

Data sets hold questions twice, under two ids. Were one of them learned from and the other tested on, the test would be
of memory. So groups whose questions repeat, or nearly do, become one group before anything is split.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.audits.similar import nearly_identical, normalise
from metaprobe.eval.audits.twins import number_series
from metaprobe.eval.table import AnswerTable, group_of
from metaprobe.records.extras import require
from metaprobe.records.types import Item

FEW = 10
"""Groups that may always be joined into one."""
SHARE = 0.1
"""Share of all groups that may be joined into one, where that is more than `FEW`. What more of them have in common is a
way of asking ("Which of these is true?"), no question that repeats: as one group it would leave nothing to split."""

Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """Groups after joining."""

    groups: NDArray[np.str_]
    """(n,): of those that were joined, the first name in sorted order stands for all."""
    questions: int
    """Questions that repeat under another group, each counted once for every given group that asks it."""
    into: int
    """Groups that hold them now."""

    @property
    def note(self) -> str:
        """What was done, as a clause; empty where nothing was."""
        if not self.questions:
            return ""
        return (
            f"{self.questions} questions that repeat, or nearly do, under different groups were joined into "
            f"{self.into} group{'s' * (self.into != 1)}"
        )


def join_table(table: AnswerTable) -> tuple[AnswerTable, str]:
    """The table with its groups joined, and what was done to them (`Joined.note`)."""
    joined = join_groups(table.groups.tolist(), table.questions.tolist())
    return (replace(table, groups=joined.groups), joined.note) if joined.questions else (table, "")


def join_items(items: Sequence[Item]) -> Joined:
    """The groups of these items (`eval.table.group_of`), joined."""
    return join_groups([group_of(item) for item in items], [item.question for item in items])


def join_groups(groups: Sequence[str], questions: Sequence[str]) -> Joined:
    """The groups (n,) of n answers to these questions (n,), joined where they hold the same question.

    The same is what the audits take for the same: equal but for case, spacing and punctuation, or with the same numbers
    in the same order and a Jaccard similarity of word 3-grams of at least 0.8. Choices are no part of a question. An
    empty one, as of a store without texts, repeats nothing. What would join more than `FEW` groups and more than
    `SHARE` of all is not joined; then only the equal questions among them are tried. The audits find what is left.
    """
    names, group = np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True)
    texts, text = np.unique([normalise(question) for question in questions], return_inverse=True)
    asked = np.unique(np.stack([text, group], axis=1)[(texts != "")[text]], axis=0)  # (m, 2): which group asks which
    found = [np.stack([i, j], axis=1) for _, i, j in nearly_identical(texts.tolist())]
    near = np.concatenate([np.empty((0, 2), dtype=np.intp), *found])
    own = np.arange(len(names))
    label, most = own, max(FEW, int(SHARE * len(names)))
    for level, links in enumerate((near[:0], near), start=1):
        linked = _link(len(names), len(texts), asked, links)
        label = np.where(np.bincount(linked)[linked] <= most, level * len(names) + linked, label)
    _, first, number, sizes = np.unique(label, return_index=True, return_inverse=True, return_counts=True)
    standing, several = first[number], (sizes > 1)[number]  # by group: the first one it was joined with, if any
    repeats = _repeating(len(texts), asked, near)
    counted = asked[repeats[asked[:, 0]] & several[asked[:, 1]]]
    return Joined(names[standing[group]], len(counted), len(np.unique(standing[counted[:, 1]])))


def join_copies(table: AnswerTable) -> tuple[AnswerTable, str]:
    """The table with the groups joined that hold the same answer, and what was done, in words; empty for nothing.

    The same are answers whose log-probabilities agree token by token, as the audit of answers that occur twice has it.
    """
    series = number_series(table.logprobs)
    names, group = np.unique(table.groups, return_inverse=True)
    told = np.flatnonzero(series >= 0)
    held = np.unique(np.stack([series[told], group[told]], axis=1), axis=0)
    label = _link(len(names), int(series.max(initial=-1)) + 1, held, np.empty((0, 2), dtype=np.intp))
    _, first = np.unique(label, return_index=True)
    joined = len(names) - len(first)
    if not joined:
        return table, ""
    said = f"{len(names)} groups were joined into {len(first)}, for they hold answers that agree token by token"
    return replace(table, groups=names[first[label]][group]), said


def _link(groups: int, texts: int, asked: Numbers, near: Numbers) -> Numbers:
    """(groups,): the component of each, where groups are linked to the texts they ask and near texts to each other."""
    sparse = require("scipy.sparse", "fit")
    ends = np.concatenate([asked + np.array([groups, 0]), near + groups])
    graph = sparse.coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(groups + texts,) * 2)
    labels = require("scipy.sparse.csgraph", "fit").connected_components(graph, directed=False)[1][:groups]
    return np.unique(labels, return_inverse=True)[1]


def _repeating(texts: int, asked: Numbers, near: Numbers) -> NDArray[np.bool_]:
    """(texts,): whether another group asks the same, or nearly."""
    held: list[list[int]] = [[] for _ in range(texts)]
    for text, group in asked.tolist():
        held[text].append(group)
    numbers: dict[tuple[int, ...], int] = {}
    kind = np.array([numbers.setdefault(tuple(groups), len(numbers)) for groups in held], dtype=np.intp)
    repeats = np.array([len(groups) > 1 for groups in held], dtype=bool)
    repeats[near[kind[near[:, 0]] != kind[near[:, 1]]].ravel()] = True
    return repeats
