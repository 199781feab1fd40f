"""Settings of the trees for tasks that the runs do not hold: those that do best on a task left out.

Chosen on rows of the same tasks, trees grow large and learn which task an answer is from, which is worth much at home
and less than nothing elsewhere.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.audits.domains import FEWEST, suffices
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require

LEAVES = (2, 4, 8)
ROUNDS = (30, 60, 120)
SMALLEST_LEAF = 40
"""Answers."""


def best_elsewhere(
    X: NDArray[np.float32],
    y: NDArray[np.int64],
    rows: NDArray[np.int64],
    domain: NDArray[np.str_],
    *,
    base: dict[str, Any],
    names: Sequence[str],
    start: NDArray[np.float64] | None = None,
) -> tuple[dict[str, Any], int, float]:
    """(parameters, rounds, mean AUROC on a domain left out): of those tried on `rows`, the best.

    `base` holds what is not chosen, `start` (n,) the log-odds that the trees add to. Raises
    `RecordError` where there are not two domains with enough answers of both classes.
    """
    lightgbm = require("lightgbm", "fit")
    base = {**base, "min_data_in_leaf": SMALLEST_LEAF}
    here = [rows[domain[rows] == name] for name in np.unique(domain[rows])]
    left_out = [part for part in here if suffices(y[part])]
    if len(left_out) < 2:
        found = ", ".join(f"{domain[part[0]]} {len(part)} ({int(y[part].sum())} of them 1)" for part in here)
        raise RecordError(
            f"settings for new tasks are judged by tasks left out, which takes two of {FEWEST} answers, with "
            f"{FEWEST // 10} of either kind; there are: {found}"
        )
    merit = np.zeros((len(LEAVES), len(ROUNDS)))
    for part in left_out:
        others = rows[domain[rows] != domain[part[0]]]
        known = None if start is None else start[others]
        data = lightgbm.Dataset(X[others], y[others], init_score=known, feature_name=list(names), free_raw_data=False)
        for i, leaves in enumerate(LEAVES):
            booster = lightgbm.train({**base, "num_leaves": leaves}, data, num_boost_round=ROUNDS[-1])
            for j, rounds in enumerate(ROUNDS):
                added = booster.predict(X[part], raw_score=True, num_iteration=rounds)
                merit[i, j] += auroc(y[part], added if start is None else added + start[part])
    size, stop = np.unravel_index(int(merit.argmax()), merit.shape)
    return {**base, "num_leaves": LEAVES[size]}, ROUNDS[stop], float(merit.max()) / len(left_out)
