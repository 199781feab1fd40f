"""Tree ensembles of a graph: whether their nodes are trees, what they read and write, and how long a row takes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.errors import UnsafeModel
from metaprobe.checkpoints.graph_nodes import FLOAT, INT64, Node
from metaprobe.checkpoints.size_bounds import Sized, needed, plain

MODES = frozenset((b"LEAF", b"BRANCH_LEQ", b"BRANCH_LT", b"BRANCH_GTE", b"BRANCH_GT", b"BRANCH_EQ", b"BRANCH_NEQ"))
DEEPEST = 512
"""Levels of a tree. LightGBM's deepest of 31 leaves has 30."""
TARGETS = 1024
"""Numbers that an ensemble gives for a row; ours give one."""
STEP = 5
"""What one step down a tree takes, in units of a sum."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """What a tree ensemble does with one row."""

    features: int
    """One more than the last column that is read."""
    targets: int
    """Numbers that it gives."""
    steps: int
    """Steps down all trees together, at most."""


def read_ensemble(node: Node) -> Ensemble:
    """Returns what a `TreeEnsembleRegressor` or `TreeEnsembleClassifier` does. Raises `UnsafeModel` for no trees.

    Every node but a tree's first has one parent in the same tree, so that no way down is without end. Columns, targets
    and the nodes that carry weights are held to what there is: the runtime looks them up unchecked.
    """
    kind = "target" if node.kind.endswith("Regressor") else "class"
    trees, ids, features, true, false = (
        node.integers(f"nodes_{name}") for name in ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    )
    count, modes = len(ids), node.texts("nodes_modes")
    lengths = {len(one) for one in (trees, ids, features, true, false, modes)} | {node.count("nodes_values")}
    if lengths != {count} or not count:
        raise UnsafeModel(f"{node.kind}: the lists of nodes have {sorted(lengths)} entries; expected one number")
    if not set(modes) <= MODES:
        raise UnsafeModel(f"{node.kind} has nodes of modes other than {', '.join(sorted(m.decode() for m in MODES))}")
    for name in ("hitrates", "missing_value_tracks_true"):
        many = node.count("nodes_hitrates") if name == "hitrates" else len(node.integers(f"nodes_{name}"))
        if many not in (0, count):
            raise UnsafeModel(f"{node.kind}: nodes_{name} has {many} entries of {count}")
    numbers = (ids, features, trees, true, false, *(node.integers(f"{kind}_{name}") for name in ("treeids", "nodeids")))
    if any(len(one) and (one.min() < 0 or one.max() >= 1 << 31) for one in numbers):
        raise UnsafeModel(f"{node.kind} has a negative or huge number of a node, a tree or a feature")
    if np.count_nonzero(np.diff(trees)) != len(np.unique(trees)) - 1:  # on which the runtime ends the process
        raise UnsafeModel(f"{node.kind} has a tree whose nodes do not stand together")
    keys = trees << 32 | ids
    order = np.argsort(keys, kind="stable")
    if (np.diff(keys[order]) == 0).any():
        raise UnsafeModel(f"{node.kind} has a node twice")
    branch = np.fromiter((mode != b"LEAF" for mode in modes), bool, count)
    targets = _targets(node, kind, keys[order])
    steps = _steps(node, keys, order, branch, trees, true, false)
    return Ensemble(int(features[branch].max(initial=-1)) + 1, targets, steps)


def _targets(node: Node, kind: str, sorted_keys: NDArray[np.int64]) -> int:
    """How many numbers it gives; its weights stand at nodes that exist, for targets that exist."""
    trees, ids, targets = (node.integers(f"{kind}_{name}") for name in ("treeids", "nodeids", "ids"))
    if len({len(trees), len(ids), len(targets), node.count(f"{kind}_weights")}) != 1:
        raise UnsafeModel(f"{node.kind}: the lists of weights differ in length")
    labels = len(node.integers("classlabels_int64s"))
    many = node.integer("n_targets", 1) if kind == "target" else labels
    if many > TARGETS:
        raise UnsafeModel(f"{node.kind} gives {many} numbers a row; at most {TARGETS}")
    if many < 1 or (len(targets) and not 0 <= targets.min() <= targets.max() < many):
        raise UnsafeModel(f"{node.kind} gives {many} numbers, and has weights for others")
    if node.count("base_values") not in (0, many, 1):
        raise UnsafeModel(f"{node.kind}: {node.count('base_values')} base values of {many}")
    wanted = trees << 32 | ids
    if (
        len(wanted)
        and not (sorted_keys[np.searchsorted(sorted_keys, wanted).clip(max=len(sorted_keys) - 1)] == wanted).all()
    ):
        raise UnsafeModel(f"{node.kind} has weights at nodes that do not exist")
    return many


def _steps(
    node: Node,
    keys: NDArray[np.int64],
    order: NDArray[np.intp],
    branch: NDArray[np.bool_],
    trees: NDArray[np.int64],
    true: NDArray[np.int64],
    false: NDArray[np.int64],
) -> int:
    """Levels of all trees together, from the nodes without a parent down."""
    sorted_keys = keys[order]
    children = np.concatenate([trees[branch] << 32 | true[branch], trees[branch] << 32 | false[branch]])
    at = np.searchsorted(sorted_keys, children).clip(max=len(keys) - 1)
    parents = np.zeros(len(keys), np.int64)
    found = order[at]
    if len(children):
        if (sorted_keys[at] != children).any():
            raise UnsafeModel(f"{node.kind} has a branch to a node that does not exist in its tree")
        parents = np.bincount(found, minlength=len(keys))
    if (parents > 1).any():
        raise UnsafeModel(f"{node.kind} has a node with two parents; expected trees")
    roots = np.flatnonzero(parents == 0)
    if len(np.unique(trees[roots])) != len(roots):
        raise UnsafeModel(f"{node.kind} has a tree with two first nodes")
    down = np.full((2, len(keys)), -1, np.int64)
    down[:, branch] = found.reshape(2, -1)
    level, seen, steps = roots, 0, 0
    for _ in range(DEEPEST):
        if not len(level):
            break
        seen, steps = seen + len(level), steps + len(np.unique(trees[level]))
        level = down[:, level[branch[level]]].ravel()
    if len(level) or seen != len(keys):  # what was not reached is a circle, for every node has one parent at most
        raise UnsafeModel(f"{node.kind} has nodes in a circle, or trees of more than {DEEPEST} levels; expected trees")
    return steps


def ensemble_sizes(node: Node, ensemble: Ensemble, inputs: list[Sized | None]) -> list[Sized]:
    """Sizes of what an ensemble gives for these rows."""
    rows = needed(node, inputs, 0)
    if len(rows.shape) != 2 or rows.least[1] < ensemble.features:
        raise UnsafeModel(
            f"{node.kind} reads {ensemble.features} features of rows of shape {list(rows.shape)}; expected as many"
        )
    numbers = plain(FLOAT, (rows.shape[0], ensemble.targets), (rows.least[0], ensemble.targets))
    return [numbers] if node.kind.endswith("Regressor") else [plain(INT64, rows.shape[:1], rows.least[:1]), numbers]
