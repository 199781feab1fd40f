"""Shared by tests of calibration: scores whose labels are drawn from known probabilities."""

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from metaprobe.training.calibrators import sigmoid

Arrays = tuple[NDArray[np.float64], NDArray[np.int64]]


def drawn(probability: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    return (rng.uniform(size=probability.shape) < probability).astype(np.int64)


def planted(n: int, seed: int, log_odds: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Arrays:
    """Scores, and labels with these log-odds of the score."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n)
    return score, drawn(sigmoid(log_odds(score)), rng)


small_samples = st.tuples(
    st.integers(0, 10_000), st.integers(8, 80), st.sampled_from([1e-3, 1.0, 50.0]), st.sampled_from([0.0, 1.0, 30.0])
)


def sample(seed: int, n: int, scale: float, slope: float) -> Arrays:
    """Scores with ties on some scale, both labels there, without a signal up to separated classes."""
    rng = np.random.default_rng(seed)
    z = np.round(rng.normal(size=n), 1)
    y = drawn(sigmoid(slope * z), rng)
    y[:2] = 0, 1
    return scale * z, y


def beta_world(rng: np.random.Generator, n: int) -> Arrays:
    p = rng.beta(2.5, 1.0, n)
    return p, drawn(p, rng)


def uneven_world(rng: np.random.Generator, n: int) -> Arrays:
    """The share of wrong ones among the accepted rises above 10 % as the threshold falls, then falls, then rises."""
    p = rng.uniform(0.4, 1, n)
    right = np.select([p > 0.9, p > 0.85, p > 0.6], [0.97, 0.75, 0.95], 0.3)
    return p, drawn(right, rng)
