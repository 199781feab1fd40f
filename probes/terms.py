"""Seven numbers of a finished response that a linear model can read: how surprising its tokens were, on a log scale.

A token's surprise is minus its log-probability, in nats. The numbers are the definition of what free scores are made
of: mean, maximum and total surprise, that of the first token, and the mean of the three largest, which over models and
tasks that nobody tuned on orders answers best (docs/research/travel.md).
"""

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
FREE = TERMS[:4]
"""Those that order answers by themselves: more surprise, worse answer."""


def terms(logprobs: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Returns the terms (n, 7) of n responses of one length: natural logarithms, `length` of the token count.

    `logprobs` (n, T), T >= 1: nats, finite and at most 0; they are rounded to float32 first, as in all features.
    """
    surprise = -np.asarray(logprobs, np.float32).astype(np.float64)
    length = surprise.shape[1]
    half = max(1, length // 2)
    total = surprise.sum(axis=1)
    largest = surprise
    if length > MOST_SURPRISING:
        largest = np.partition(surprise, length - MOST_SURPRISING, axis=1)[:, -MOST_SURPRISING:]
    raw = np.empty((len(surprise), len(TERMS) + 1))
    raw[:, 0] = np.sort(largest, axis=1).mean(axis=1)  # sorted: a sum depends on its order in the last digit
    raw[:, 1] = total / length
    raw[:, 2] = surprise.max(axis=1)
    raw[:, 3] = total
    raw[:, 4] = surprise[:, 0]
    raw[:, 5] = surprise[:, :half].mean(axis=1)
    raw[:, 6] = surprise[:, -half:].mean(axis=1)
    raw[:, 7] = length - FLOOR
    logs = np.log(raw + FLOOR)
    logs[:, 5] -= logs[:, 6]
    logs[:, 6] = logs[:, 7]
    return logs[:, : len(TERMS)].astype(np.float32)
