"""What a router must beat: every simple way of choosing. What is learned is learned from training rows only."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.routing import Matrix, Played
from metaprobe.eval.routing_curves import upper_hull
from metaprobe.records.errors import RecordError

STREAM = 0x0DD
"""Keeps these draws apart from those that split the questions with the same seed: equal seeds give equal numbers."""


def always(matrix: Matrix, agent: int) -> list[Played]:
    """One agent for every question."""
    return [Played((agent,), agent)] * len(matrix)


def shuffled(played: Sequence[Played], *, seed: int = 0) -> list[Played]:
    """The policy's own choices dealt to other questions: random at exactly its rates of asking and keeping."""
    return [played[row] for row in np.random.default_rng([seed, STREAM]).permutation(len(played))]


def mixture(first: Sequence[Played], second: Sequence[Played], part: float, *, seed: int = 0) -> list[Played]:
    """The second policy for each question with probability `part`, otherwise the first: a point between the two."""
    if not 0 <= part <= 1:
        raise RecordError(f"part is {part}; expected a probability")
    draws = np.random.default_rng([seed, STREAM]).random(len(first)) < part
    return [two if drawn else one for one, two, drawn in zip(first, second, draws, strict=True)]


def random_at_cost(training: Matrix, matrix: Matrix, cost_per_1000: float, *, seed: int = 0) -> list[Played]:
    """Two single agents mixed at random so that the training rows would cost this much: the best such mixture.

    The "zero router" of RouterBench (Hu et al. 2024, arXiv:2403.12031). Below the cheapest agent's cost that agent,
    above the best one's that one.
    """
    costs, accuracies = 1000 * training.cost.mean(axis=0), training.score.mean(axis=0)
    hull = upper_hull(costs, accuracies)
    corners = [
        int(np.flatnonzero((costs == cost) & (accuracies == accuracy))[0])
        for cost, accuracy in zip(hull.cost, hull.accuracy, strict=True)
    ]
    right = int(np.clip(np.searchsorted(hull.cost, cost_per_1000), 0, len(corners) - 1))
    left = max(right - 1, 0)
    width = hull.cost[right] - hull.cost[left]
    part = float(np.clip((cost_per_1000 - hull.cost[left]) / width, 0, 1)) if width else 0.0
    return mixture(always(matrix, corners[left]), always(matrix, corners[right]), part, seed=seed)


def domain_table(
    training: Matrix,
    training_dimensions: Sequence[str],
    dimensions: Sequence[str],
    *,
    price: float = 0.0,
    prior: float = 10.0,
) -> list[Played]:
    """The agent of highest mean value on each question's dimension, as the training rows show it.

    Means are shrunk towards the agent's mean over all dimensions, which counts as `prior` questions, so that a rare
    dimension does not follow chance; one never seen gets the best agent over all. `dimensions`: of the questions that
    are played.
    """
    if len(training_dimensions) != len(training):
        raise RecordError(f"{len(training_dimensions)} dimensions for {len(training)} training questions")
    if not prior >= 0:
        raise RecordError(f"prior is {prior}; expected a number of questions of at least 0")
    value = training.value(price)
    overall = value.mean(axis=0)
    if np.isnan(overall).any():
        raise RecordError("some agents were not asked all training questions: their means are not comparable")
    of: NDArray[np.str_] = np.asarray(training_dimensions)
    agent: dict[str, int] = {}
    for dimension in set(dimensions):
        rows = value[of == dimension]
        mean = (rows.sum(axis=0) + prior * overall) / (len(rows) + prior) if len(rows) else overall
        agent[dimension] = int(mean.argmax())
    return [Played((agent[dimension],), agent[dimension]) for dimension in dimensions]
