"""What a router must beat: every simple way of choosing. What is learned is learned from training rows only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, mean_interval, resample_values
from metaprobe.eval.metrics.delong import holm, normal_p
from metaprobe.eval.metrics.ranked import Floats
from metaprobe.eval.routing_curves import hull_corners
from metaprobe.eval.routing_performance import Matrix, Played
from metaprobe.records.errors import RecordError

STREAM = 0x0DD
"""Keeps these draws apart from those that split the questions with the same seed: equal seeds give equal numbers."""
SIGNIFICANT = 0.05


def always(matrix: Matrix, agent: int) -> list[Played]:
    """One agent for every question."""
    return [Played((agent,), agent)] * len(matrix)


def shuffle_choices(played: Sequence[Played], *, seed: int = 0) -> list[Played]:
    """The policy's own choices dealt to other questions: random at exactly its rates of asking and keeping."""
    return [played[row] for row in np.random.default_rng([seed, STREAM]).permutation(len(played))]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Two settings of a way of routing, and the probability with which a question gets the second of them."""

    first: int
    second: int
    part: float
    """In [0, 1]."""

    def of(self, values: Floats) -> Floats:
        """The expectation of `values` (k, ...), one row for each setting: the mean of the two rows, shape (...)."""
        mixed: Floats = (1 - self.part) * values[self.first] + self.part * values[self.second]
        return mixed


def mixture_at(cost: Floats, accuracy: Floats, budget: float) -> Mixture:
    """The mixture of two of k settings that spends the budget, and is the most accurate of those that do.

    `cost` and `accuracy`, (k,): of each setting as training rows show it, the cost and `budget` in one unit. A way of
    routing has steps, and a control that stops at the step below its budget has less than it may: so whatever is
    compared at a budget is mixed like this, and its expectation is taken. Settings below the hull of the others are
    never used. Below the cheapest setting that one is taken, above the most accurate one that one. With one setting an
    agent this is the "zero router" of RouterBench (Hu et al. 2024, arXiv:2403.12031).
    """
    corners = hull_corners(cost, accuracy)
    right = int(np.clip(np.searchsorted(cost[corners], budget), 0, len(corners) - 1))
    left, right = corners[max(right - 1, 0)], corners[right]
    width = cost[right] - cost[left]
    part = float(np.clip((budget - cost[left]) / width, 0, 1)) if width else 0.0
    return Mixture(left, right, part)


@dataclass(frozen=True, slots=True)
class Against:
    """A way of routing minus one control, on the same questions."""

    difference: Interval
    """Of the mean score, 95 %, by a bootstrap over groups."""
    p: float
    """Two-sided, of the difference taken as normal with the bootstrap's standard error."""
    p_holm: float
    """Corrected by Holm over all controls."""

    @property
    def word(self) -> str:
        """`ahead`, `behind`, or `tie` where the corrected p does not separate the two."""
        if not self.p_holm < SIGNIFICANT:
            return "tie"
        return "ahead" if self.difference.estimate > 0 else "behind"


def against(mine: Floats, controls: Mapping[str, Floats], weights: NDArray[np.integer]) -> dict[str, Against]:
    """How a way of routing stands to each control, the strongest control first.

    `mine` and each control, (n,): the score of every question, or its expectation. `weights`: of `cluster_weights`.
    The strongest is the one of highest mean score on these very questions, which favours the controls: the word that
    is said of the router goes by that one.
    """
    rows: dict[str, tuple[Interval, float]] = {}
    for name in sorted(controls, key=lambda name: -float(controls[name].mean())):
        difference = mine - controls[name]
        found = mean_interval(difference, weights)
        rows[name] = found, normal_p(found.estimate, _standard_error(difference, weights))
    corrected = holm([p for _, p in rows.values()])
    return {
        name: Against(difference, p, float(p_holm))
        for (name, (difference, p)), p_holm in zip(rows.items(), corrected, strict=True)
    }


def _standard_error(values: Floats, weights: NDArray[np.integer]) -> float:
    """Of the mean of `values` (n,), over the resamples; 0 where they are all the same."""
    means = resample_values(lambda weight: weight @ values / weight.sum(axis=1), weights)
    return float(means.std()) if np.ptp(values) else 0.0


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
