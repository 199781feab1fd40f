"""Do the off-policy estimates hold what they promise? Where every outcome is known, log and compare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.ranked import Floats
from metaprobe.eval.ope import Logged, PolicyValue, doubly_robust, ips, snips

STREAM = 0x0BE
"""Keeps these draws apart from those of whoever made the data with the same seed: equal seeds give equal numbers."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One estimator over many logs of the same questions."""

    bias: float
    """Mean estimate minus the truth."""
    bias_error: float
    """Standard error of that mean: a bias within two of it is none that these logs can show."""
    deviation: float
    """Standard deviation of the estimates."""
    coverage: float
    """Share of the intervals that hold the truth; its own standard error at 0.95 is 0.22 / sqrt(logs)."""
    width: float
    """Mean width of the intervals."""
    effective_sample_size: float
    """Mean."""


def drawn(
    reward: Floats, propensity: Floats, groups: Sequence[object] | NDArray[np.generic], *, seed: int = 0
) -> Logged:
    """One log: for each question an action drawn by its propensity (n, A), and its reward out of the full (n, A)."""
    chance = np.random.default_rng([seed, STREAM]).random(len(reward))
    # A sum that rounds to just below 1 must not lead beyond the last action that can be taken.
    last = propensity.shape[1] - 1 - (propensity[:, ::-1] > 0).argmax(axis=1)
    action = np.minimum((chance[:, None] >= np.cumsum(propensity, axis=1)).sum(axis=1), last)
    return Logged(action, reward[np.arange(len(reward)), action], propensity, groups)


def verified(
    reward: Floats,
    propensity: Floats,
    policy: Floats,
    predicted: Floats,
    groups: Sequence[object] | NDArray[np.generic],
    *,
    logs: int = 500,
    sampled: int | None = None,
    seed: int = 0,
) -> tuple[float, dict[str, Verified]]:
    """The true mean reward of `policy` (n, A), and how IPS, SNIPS and the doubly robust estimate do on it.

    For every log `sampled` groups are drawn with replacement (by default as many as there are) and then the actions:
    the questions at hand stand for the population, and the intervals must cover chance in both.
    """
    member = np.unique(np.asarray(groups), return_inverse=True)[1]
    order, size = np.argsort(member, kind="stable"), np.bincount(member)  # (n,), (G,)
    start = np.cumsum(size) - size
    truth = float((policy * reward).sum(axis=1).mean())
    rng = np.random.default_rng([seed, STREAM, STREAM])
    estimates: dict[str, list[PolicyValue]] = {"ips": [], "snips": [], "doubly robust": []}
    for log in range(logs):
        chosen = rng.integers(len(size), size=sampled or len(size))
        sizes = size[chosen]
        again = np.repeat(np.arange(len(chosen)), sizes)  # a group drawn twice is two groups
        rows = order[start[chosen][again] + np.arange(len(again)) - (np.cumsum(sizes) - sizes)[again]]
        logged = drawn(reward[rows], propensity[rows], again, seed=seed * logs + log)
        q, m = policy[rows], predicted[rows]
        estimates["ips"].append(ips(logged, q))
        estimates["snips"].append(snips(logged, q))
        estimates["doubly robust"].append(doubly_robust(logged, q, m))
    return truth, {name: _summary(found, truth) for name, found in estimates.items()}


def _summary(found: Sequence[PolicyValue], truth: float) -> Verified:
    def each(of: Callable[[PolicyValue], float]) -> Floats:
        return np.array([of(estimate) for estimate in found])

    value = each(lambda e: e.value.estimate)
    deviation = float(value.std(ddof=1))
    return Verified(
        bias=float(value.mean()) - truth,
        bias_error=deviation / len(found) ** 0.5,
        deviation=deviation,
        coverage=float(each(lambda e: e.value.low <= truth <= e.value.high).mean()),
        width=float(each(lambda e: e.value.high - e.value.low).mean()),
        effective_sample_size=float(each(lambda e: e.effective_sample_size).mean()),
    )
