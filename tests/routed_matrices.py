"""Helpers of `test_routing_eval.py` and `test_routing_curves.py`."""

import numpy as np
from hypothesis import strategies as st

from metaprobe.eval.routing_performance import (
    Matrix,
    Played,
)

NAN = float("nan")


def matrix_of(score, cost, *, latency=None, groups=None):
    score = np.array(score, dtype=float)
    cost = np.broadcast_to(np.array(cost, dtype=float), score.shape)
    latency = np.full(score.shape, 100.0) if latency is None else np.array(latency, dtype=float)
    names = tuple("abcdefghi"[: score.shape[1]])
    return Matrix(score, cost, latency, names, [str(i) for i in range(len(score))] if groups is None else groups)


# Four questions, agents a (0.001 dollars), b (0.002), c (0.010).
HAND = matrix_of(
    [[1, 1, 1], [0, 1, 1], [0, 0, 1], [1, 0, 0]], [0.001, 0.002, 0.010], latency=[[10, 20, 40]] * 3 + [[10, 20, 80]]
)


# Kept as asked first; delegated and rescued; delegated in vain; delegated and harmed.
CASCADE = [Played((0,), 0), Played((0, 1), 1), Played((0, 1), 1), Played((0, 2), 2)]


@st.composite
def routed(draw):
    """A full matrix and a policy on it."""
    n, agents = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    score = draw(st.lists(st.lists(st.integers(0, 1), min_size=agents, max_size=agents), min_size=n, max_size=n))
    cost = draw(st.lists(st.lists(st.integers(1, 9), min_size=agents, max_size=agents), min_size=n, max_size=n))
    played = []
    for _ in range(n):
        asked = draw(st.lists(st.integers(0, agents - 1), min_size=1, max_size=agents, unique=True))
        played.append(Played(tuple(asked), draw(st.sampled_from(asked))))
    return matrix_of(score, np.array(cost) / 1000), played
