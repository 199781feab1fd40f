"""Fits how often each agent is right on each dimension, and what its signals tell, with shrinkage that the data choose.

The model is a logistic regression with effects of the agent, of the dimension and of both together, on the intercept
and on the slope of each agent's leading signal. Each kind of effect has a normal prior around 0 whose standard
deviation is fitted too (empirical Bayes, by EM on Laplace's approximation). With few labels an agent on a dimension is
therefore expected to be what the agent and the dimension are elsewhere.
"""

from dataclasses import dataclass

import numpy as np

from metaprobe.routing.panel.model_rows import Floats, Ints

FIRST_SD = (0.7, 0.7, 0.4)
"""Initial standard deviations, in log-odds, of the effects of agents, of dimensions, and of both together."""
FIRST_SLOPE_SD = (0.4, 0.3, 0.2)
"""Initial standard deviations of the effects on the slope of the leading signal: of agents, of dimensions, and of both
together, per unit of the signal's normal score.
"""
PRIOR_EFFECTS = 4.0
"""Number of effects that the first standard deviation of each kind weighs."""
COMMON_PRECISION = 0.1
"""Precision of the prior of the overall intercept and of the common slope of the leading signal."""
SIGNAL_PRECISION = 1.0
"""Precision of the prior of the slopes of all other signals."""
ROUNDS, STEPS, FIRST_STEPS = 8, 2, 5
"""Most rounds of EM, Newton steps in each round, and Newton steps in the first round."""
CLOSE_SD = 0.01
"""Change of the standard deviations below which EM ends."""
LONGEST = 2.0
"""Largest change of a weight in one Newton step."""
LEAST_DISPERSION = 0.1
"""Least estimated variance of the outcomes, as a share of a coin's variance with the same mean. A lower estimate is
raised to it.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Fitted log-odds by agent and dimension."""

    intercept: Floats
    """Log-odds (A, D + 1) of an agent's answer on each dimension, without signals; the last column is for an unknown
    dimension.
    """
    slope: Floats
    """Rise of these log-odds (A, D + 1) for each unit of the leading signal; 0 if there is no leading signal."""
    others: Floats
    """Rise of the log-odds for each unit of every other signal (S,), equal for all agents."""
    sd: Floats
    """Standard deviations (3,) or (6,) of the effects of agents, dimensions and both: of the intercepts, then of the
    slopes.
    """


def fit_effects(
    agent: Ints,
    dimension: Ints,
    y: Floats,
    shape: tuple[int, int],
    *,
    lead: Floats | None = None,
    others: Floats | None = None,
    sd: Floats | None = None,
) -> Effects:
    """Returns the effects that explain n outcomes.

    Args:
        agent: (n,) column of the agent of each answer.
        dimension: (n,) column of its dimension, D where it is not known.
        y: (n,) outcomes, mostly in [0, 1]. Estimates outside of it are taken as they are.
        shape: how many agents and dimensions there are, (A, D).
        lead: (n,) normal score of the leading signal.
        others: (n, S) normal scores of further signals.
        sd: standard deviations that another fit chose, which are then kept.
    """
    A, D = shape
    scales = [np.ones(len(y))] + ([] if lead is None else [lead])
    further = np.zeros((len(y), 0)) if others is None else others
    first = np.array([*FIRST_SD, *(FIRST_SLOPE_SD if lead is not None else ())])
    chosen, fixed = (first if sd is None else np.asarray(sd)), sd is not None
    parts = _parts_of(agent, dimension, y, scales, further, shape)
    fit = _Fit(parts, 1 / _dispersion(agent, y, A), (A, D), len(scales), further.shape[1])
    for number in range(1 if fixed else ROUNDS):
        for _ in range(STEPS if number else FIRST_STEPS):
            fit.step(chosen)
        if fixed:
            break
        before, effects = chosen, fit.effects_by_kind()
        chosen = np.array([_effect_deviation(*of_kind, first[kind]) for kind, of_kind in enumerate(effects)])
        if np.abs(chosen - before).max() < CLOSE_SD:
            break
    tables = fit.tables()
    slope = tables[1] if lead is not None else np.zeros((A, D + 1))
    return Effects(tables[0], slope, fit.common[len(scales) * (1 + A) :], chosen)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The answers on one dimension."""

    dimension: int
    """Column of the dimension; D for an unknown dimension."""
    common: Floats
    """Columns (n, m) of the weights that all dimensions share: intercept and A agents of each scale, then S signals."""
    own: Floats
    """Columns (n, q) of the dimension's own weights: the dimension and A agents on it, for each scale."""
    y: Floats


def _parts_of(
    agent: Ints, dimension: Ints, y: Floats, scales: list[Floats], further: Floats, shape: tuple[int, int]
) -> list[_Part]:
    """Returns the answers of each dimension that has any."""
    parts = []
    for d in range(shape[1] + 1):
        rows = np.flatnonzero(dimension == d)
        if len(rows):
            is_agent = (agent[rows, None] == np.arange(shape[0])).astype(np.float64)
            effects = [np.concatenate([scale[rows, None], is_agent * scale[rows, None]], axis=1) for scale in scales]
            own = np.concatenate(effects, axis=1)
            parts.append(_Part(d, np.concatenate([own, further[rows]], axis=1), own, y[rows]))
    return parts


class _Fit:
    """The weights while they are fitted. Dimensions share only the common weights, so the own weights of each dimension
    are solved separately.
    """

    def __init__(self, parts: list[_Part], weigh: float, shape: tuple[int, int], scales: int, further: int) -> None:
        (self.A, self.D), self.parts, self.weigh, self.scales = shape, parts, weigh, scales
        width = scales * (1 + self.A)
        self.common, self.own = np.zeros(width + further), np.zeros((self.D, width))
        self.common_variance, self.own_variance = np.zeros(width + further), np.zeros((self.D, width))

    def step(self, sd: Floats) -> None:
        """Takes one of Newton's steps, with these standard deviations of the kinds of effects."""
        of_scale = sd.reshape(self.scales, 3)
        agents = np.array([[COMMON_PRECISION, *np.full(self.A, agent**-2.0)] for agent, _, _ in of_scale])
        signals = np.full(len(self.common) - agents.size, SIGNAL_PRECISION)
        precision = np.concatenate([agents.ravel(), signals])
        own_precision = np.concatenate([[of**-2.0, *np.full(self.A, both**-2.0)] for _, of, both in of_scale])
        gradient, curvature = -precision * self.common, np.diag(precision)
        # Each dimension's own weights are eliminated: what is left is a system of the common weights.
        solved: dict[int, Floats] = {}
        self.own_variance[:] = 1 / own_precision
        m = len(self.common)
        for part in self.parts:
            has_dimension = part.dimension < self.D
            score = part.common @ self.common + (part.own @ self.own[part.dimension] if has_dimension else 0.0)
            p = 1 / (1 + np.exp(-score))
            slope = (self.weigh * np.maximum(p * (1 - p), 1e-4))[:, None]
            error, weighted = self.weigh * (part.y - p), part.common * slope
            gradient += part.common.T @ error
            curvature += weighted.T @ part.common
            if has_dimension:
                block = (part.own * slope).T @ part.own + np.diag(own_precision)
                mixed = weighted.T @ part.own  # (m, q)
                pull = part.own.T @ error - own_precision * self.own[part.dimension]
                inverse = np.linalg.inv(block)
                solutions = solved[part.dimension] = np.column_stack([inverse @ mixed.T, inverse @ pull])
                gradient -= mixed @ solutions[:, m]
                curvature -= mixed @ solutions[:, :m]
                self.own_variance[part.dimension] = np.diag(inverse)
        common_step = np.linalg.solve(curvature, gradient)
        own_step = -self.own.copy()  # a dimension without answers goes to its prior's mean
        for d, solutions in solved.items():
            own_step[d] = solutions[:, m] - solutions[:, :m] @ common_step
        longest = max(float(np.abs(common_step).max()), float(np.abs(own_step).max(initial=0.0)), 1e-12)
        part_of_step = min(1.0, LONGEST / longest)
        self.common, self.own = self.common + part_of_step * common_step, self.own + part_of_step * own_step
        covariance = np.linalg.inv(curvature)
        self.common_variance = np.diag(covariance).copy()
        for d, solutions in solved.items():
            self.own_variance[d] += ((solutions[:, :m] @ covariance) * solutions[:, :m]).sum(axis=1)

    def effects_by_kind(self) -> list[tuple[Floats, Floats]]:
        """Returns weights and variances of each kind of effect: of agents, dimensions and both, for each scale."""
        found = []
        for s in range(self.scales):
            start, end = s * (1 + self.A), (s + 1) * (1 + self.A)
            found.append((self.common[start + 1 : end], self.common_variance[start + 1 : end]))
            found.append((self.own[:, start], self.own_variance[:, start]))
            found.append((self.own[:, start + 1 : end].ravel(), self.own_variance[:, start + 1 : end].ravel()))
        return found

    def tables(self) -> list[Floats]:
        """Returns for each scale the sums (A, D + 1) of the common weight and all effects."""
        found = []
        for s in range(self.scales):
            start, end = s * (1 + self.A), (s + 1) * (1 + self.A)
            usual = self.common[start] + self.common[start + 1 : end]
            effects = usual[:, None] + self.own[:, start] + self.own[:, start + 1 : end].T
            found.append(np.concatenate([effects, usual[:, None]], axis=1))
        return found


def _effect_deviation(weights: Floats, variance: Floats, first: float) -> float:
    """Returns the standard deviation of effects, where `PRIOR_EFFECTS` of standard deviation `first` were seen."""
    total = float((weights**2 + variance).sum()) + PRIOR_EFFECTS * first**2
    return float(np.sqrt(total / (len(weights) + PRIOR_EFFECTS)))


def _dispersion(agent: Ints, y: Floats, A: int) -> float:
    """Returns the variance of the outcomes around each agent's mean, as a share of that of coins of the same mean."""
    count = np.maximum(np.bincount(agent, minlength=A), 1)
    mean = np.bincount(agent, weights=y, minlength=A) / count
    usual = np.clip(mean, 0.02, 0.98)[agent]
    share = float(((y - mean[agent]) ** 2).sum()) / max(float((usual * (1 - usual)).sum()), 1e-12)
    return max(share, LEAST_DISPERSION)
