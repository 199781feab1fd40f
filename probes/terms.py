"""Seven numbers of a finished response that a linear model can read: how surprising its tokens were, on a log scale.

A token's surprise is minus its log-probability, in nats. The numbers are the definition of what free scores are made
of: mean, maximum and total surprise, that of the first token, and the mean of the three largest.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-4
"""Nats added to every surprise before its logarithm is taken: a server rounds what is surer than that."""
MOST_SURPRISING = 3
"""Tokens whose surprise `lowest3` is the mean of; of a shorter answer it is the mean of all."""
TERMS = ("lowest3", "mean", "min", "total", "first", "halves", "length")
"""In this order; named after the log-probability that each is made of. `halves`: mean surprise of the first half
against the second."""
SCALED = "scaled"
FREE: Mapping[str, Mapping[str, float]] = {
    SCALED: {"mean": 1.0, "length": 0.5},
    "total": {"total": 1.0},
    "lowest3": {"lowest3": 1.0},
    "mean": {"mean": 1.0},
    "min": {"min": 1.0},
    "first": {"first": 1.0},
    "length": {"length": 1.0},
}
"""Numbers that order answers by themselves, as weights of the terms: more surprise, or more tokens, a worse answer.
`scaled` is the
total surprise over the root of the length, half-way between mean and total: over models and tasks that were left out
it was never far behind the best of them (docs/research/travel.md)."""


def terms(logprobs: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Returns the terms (n, 7) of n responses of one length: natural logarithms, `length` of the token count.

    `logprobs` (n, T), T >= 1: nats, finite and at most 0; they are rounded to float32 first, as in all features. A
    response has the same terms alone and among others, to the bit.
    """
    ordered = np.array(logprobs, np.float32)
    length = ordered.shape[1]
    half = max(1, length // 2)
    # Between the halves of an odd number of tokens stands one of neither.
    starts = sorted({0, half, length - half} - {length})
    sums = _columns(np.add.reduceat(ordered, starts, 1, np.float64))
    first = _columns(ordered[:, :1].astype(np.float64))[0]
    ordered.sort(1)  # quicker than a partition of the usual few hundred tokens
    least = _columns(ordered[:, :MOST_SURPRISING].astype(np.float64))
    total = _added(sums)
    logprob = [_added(least) / len(least), total / length, least[0], total, first, sums[0] / half, sums[-1] / half]
    logs = np.log(FLOOR - np.array(logprob))
    logs[5] -= logs[6]
    logs[6] = math.log(length)
    return logs.T.astype(np.float32, order="C").reshape(-1, len(TERMS))


def _columns(values: NDArray[np.float64]) -> list[Any]:
    """The columns (n,) of values (n, k); of one row plain numbers, with which the same arithmetic takes less time."""
    columns: list[Any] = values[0].tolist() if len(values) == 1 else list(values.T)
    return columns


def _added(columns: Sequence[Any]) -> Any:
    """Their sum from left to right; `sum` adds plain numbers more exactly than arrays."""
    return reduce(operator.add, columns)
