"""Answers that are one and the same under two names: their log-probabilities agree token by token.

Where questions were not stored, this is how a data set that holds answers twice is noticed.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.audits.training_data import (
    TEST,
    TOLERATED,
    Split,
    auroc_ceiling,
    leak_reach,
    leak_severity,
)
from metaprobe.eval.method_results import Finding

FEWEST_TOKENS = 5
DECIMALS = 4
"""Of nats: what two servers, or two formats, keep of one number."""
FEWEST_VALUES = 3
"""Different values of a series, without which it tells nothing: a sure answer is a row of zeros, as others are."""
FEWEST_TWINS = 20
DISAGREEING = 0.1
"""Share of twins with the other label from which the labels are called noisy."""

Numbers = NDArray[np.int64]


def number_series(logprobs: NDArray[np.object_]) -> Numbers:
    """(n,): a number for each series of log-probabilities, equal for equal ones; -1 for one that tells too little."""
    known: dict[bytes, int] = {}
    found = np.full(len(logprobs), -1)
    for row, values in enumerate(logprobs):
        rounded = np.round(np.asarray(values, dtype=np.float64), DECIMALS) + 0.0  # -0.0 becomes 0.0
        if len(rounded) >= FEWEST_TOKENS and len(np.unique(rounded)) >= FEWEST_VALUES:
            found[row] = known.setdefault(rounded.tobytes(), len(known))
    return found


def repeated_series(logprobs: NDArray[np.object_], splits: Sequence[Split], *, y: Numbers | None = None) -> Finding:
    """At most 1 % of the test answers have the log-probabilities of a seen answer, token by token.

    Compared are answers of at least 5 tokens, to four decimals. Two answers to different questions never agree so: one
    of them is a copy, under another group. Fails as `near_duplicates` does, and says how far AUROC can move.
    """
    series = number_series(logprobs)
    touched, total = [], 0
    for split in splits:
        rows = split.get(TEST, np.empty(0, dtype=np.int64))
        rows = rows[series[rows] >= 0]
        seen = np.concatenate([series[part] for role, part in split.items() if role != TEST])
        touched.append(rows[np.isin(series[rows], seen)])
        total += len(rows)
    count = sum(map(len, touched))
    detail = (
        f"{count} of {total} test answers of {FEWEST_TOKENS} tokens and more have the log-probabilities of a seen one"
    )
    if count:
        detail += f"; {leak_reach(touched, splits, y)}. Give answers that are copies one group"
    return Finding("no answer twice", count <= TOLERATED * total, detail, leak_severity(touched, splits))


def twins_disagree(logprobs: NDArray[np.object_], y: Numbers) -> Finding | None:
    """At most 10 % of the answers that occur more than once have another label than their twin; None below 20 of them.

    Twins have the same log-probabilities, as in `repeated_series`, whatever their groups. Of two labels for one answer
    one is wrong. The detail gives the best AUROC that labels of such noise leave: `auroc_ceiling`.
    """
    series = number_series(logprobs)
    told = np.flatnonzero(series >= 0)
    _, member, size = np.unique(series[told], return_inverse=True, return_counts=True)
    ones = np.bincount(member, weights=y[told])[member]
    several = size[member] > 1
    if several.sum() < FEWEST_TWINS:
        return None
    labels, others = y[told][several], size[member][several] - 1
    same = np.where(labels == 1, ones[several] - 1, others - ones[several])
    agreement = float(np.mean(same / others))
    detail = f"{int(several.sum())} answers occur more than once; their twin has the other label in {1 - agreement:.1%}"
    if 0 < y.mean() < 1 and agreement < 1:
        detail += f"; with labels so noisy no score has more than AUROC {auroc_ceiling(agreement, float(y.mean())):.2f}"
    return Finding("twins have one label", 1 - agreement <= DISAGREEING, detail)
