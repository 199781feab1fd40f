"""Fits the probe of a blend: strongly regularised, on states centred run by run, the runs' base rates kept apart."""

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.training.common.offsets import fit_offsets

POSITION = "answer_mean"
INNER = 3
WEIGHT_SD = 0.02
"""Of the prior of a weight, per standard deviation of its column: strongly regularised, fixed before any layer."""
Floats = NDArray[np.float64]


def weights_of(X: Floats, y: NDArray[np.int64], runs: NDArray[np.str_], rows: NDArray[np.int64]) -> Floats:
    """Returns the probe's weights (d,) for states X (n, d), learned from these rows; base rates of runs are apart."""
    spread = X[rows].std(axis=0) + 1e-6
    found = fit_offsets(X[rows] / spread, y[rows], runs[rows], sd=WEIGHT_SD)
    weights: Floats = found.weights / spread
    return weights


def choose_layer(
    inputs: dict[int, Floats],
    y: NDArray[np.int64],
    runs: NDArray[np.str_],
    tasks: NDArray[np.str_],
    rows: NDArray[np.int64],
) -> int:
    """Returns the layer whose probe orders best the answers of tasks left out, among these rows."""
    parts = parts_of(tasks[rows], INNER)
    reached = {}
    for layer, X in inputs.items():
        scores = np.full(len(y), np.nan)
        for part in range(INNER):
            here = rows[parts == part]
            scores[here] = X[here] @ weights_of(X, y, runs, rows[parts != part])
        found = []
        for run in np.unique(runs[rows]):
            here = rows[runs[rows] == run]
            if 0 < y[here].sum() < len(here):
                found.append(float(auroc(y[here], scores[here])))
        reached[layer] = np.mean(found)
    return max(reached, key=lambda layer: reached[layer])


def centred(X: Floats, runs: NDArray[np.str_]) -> Floats:
    """Returns X less the mean of the answers of the same run; no label is looked at."""
    names, place = np.unique(runs, return_inverse=True)
    sums = np.zeros((len(names), X.shape[1]))
    np.add.at(sums, place, X)
    return X - (sums / np.bincount(place)[:, None])[place]


def parts_of(tasks: NDArray[np.str_], count: int) -> NDArray[np.int64]:
    """Returns the part (n,) that each answer falls into, where whole tasks are dealt into so many parts."""
    names = np.unique(tasks)
    part = dict(zip(names, np.random.default_rng(0).permutation(len(names)) % count, strict=True))
    return np.array([part[name] for name in tasks])
