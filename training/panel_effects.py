"""Fits how often each agent is right on each dimension, and what its signals tell, with shrinkage that the data choose.

The model is a logistic regression with effects of the agent, of the dimension and of both together, on the intercept
and on the slope of each agent's leading signal. Each kind of effect has a normal prior around 0 whose standard
deviation is fitted too (empirical Bayes, by EM on Laplace's approximation). With few labels an agent on a dimension is
therefore expected to be what the agent and the dimension are elsewhere.
"""

from dataclasses import dataclass

import numpy as np

from metaprobe.routing.panel_rows import Floats, Ints

FIRST_SD = (0.7, 0.7, 0.4)
"""Standard deviations, in log-odds, of the effects of agents, of dimensions and of both, before any label."""
FIRST_SLOPE_SD = (0.4, 0.3, 0.2)
"""The same of the effects on the slope of the leading signal, per unit of its normal score."""
PRIOR_EFFECTS = 4.0
"""Number of effects that the first standard deviation of each kind weighs."""
COMMON_PRECISION = 0.1
"""Precision of the prior of the overall intercept and of the common slope of the leading signal."""
SIGNAL_PRECISION = 1.0
"""Precision of the prior of the slopes of all other signals."""
ROUNDS, STEPS, FIRST_STEPS = 8, 2, 5
"""Rounds of EM, and Newton's steps in each and in the first."""
CLOSE_SD = 0.01
"""Change of the standard deviations below which EM ends."""
LONGEST = 2.0
"""Longest change of a weight in one of Newton's steps."""
LEAST_DISPERSION = 0.1
"""Least variance of the outcomes, as a share of a coin's of the same mean, that is believed."""


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Fitted log-odds by agent and dimension."""

    intercept: Floats
    """(A, D + 1): log-odds without signals, of an answer on each dimension; in the last column on an unknown one."""
    slope: Floats
    """(A, D + 1): by how much they rise for each unit of the leading signal; 0 where there is none."""
    others: Floats
    """(S,): the same of each other signal, for all agents."""
    sd: Floats
    """(3,) or (6,): standard deviations of the effects of agents, dimensions and both: intercepts, then slopes."""


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
    each, S = 1 + A + D + A * D, further.shape[1]
    k = each * len(scales) + S
    # Kind of effect of each weight: 3 for each scale; -1 for the common weights, -2 for further signals.
    kinds = [np.repeat([-1, 3 * s, 3 * s + 1, 3 * s + 2], [1, A, D, A * D]) for s in range(len(scales))]
    kind = np.concatenate([*kinds, np.full(S, -2)])
    parts = []
    for d in range(D + 1):
        rows = np.flatnonzero(dimension == d)
        if not len(rows):
            continue
        who = (agent[rows, None] == np.arange(A)).astype(np.float64)
        columns: list[Ints] = []
        values: list[Floats] = []
        for s, scale in enumerate(scales):
            own, at = scale[rows, None], s * each
            columns += [at + np.arange(1 + A)]
            values += [own, who * own]
            if d < D:
                columns += [np.array([at + 1 + A + d]), at + 1 + A + D + np.arange(A) * D + d]
                values += [own, who * own]
        columns.append(each * len(scales) + np.arange(S))
        parts.append((np.concatenate(columns), np.concatenate([*values, further[rows]], axis=1), y[rows]))
    weigh = 1 / _dispersion(agent, y, A)
    first = np.array([*FIRST_SD, *(FIRST_SLOPE_SD if lead is not None else ())])
    chosen, fixed = (first if sd is None else np.asarray(sd)), sd is not None
    w = np.zeros(k)
    for number in range(1 if fixed else ROUNDS):
        precision = np.where(kind == -1, COMMON_PRECISION, SIGNAL_PRECISION)
        precision = np.where(kind >= 0, chosen[np.maximum(kind, 0)] ** -2.0, precision)
        for _ in range(STEPS if number else FIRST_STEPS):
            gradient, curvature = -precision * w, np.diag(precision)
            for columns_here, X, outcome in parts:
                p = 1 / (1 + np.exp(-(X @ w[columns_here])))
                gradient[columns_here] += weigh * (X.T @ (outcome - p))
                weighted = X * (weigh * np.maximum(p * (1 - p), 1e-4))[:, None]
                curvature[np.ix_(columns_here, columns_here)] += weighted.T @ X
            step = np.linalg.solve(curvature, gradient)
            w = w + step * min(1.0, LONGEST / max(float(np.abs(step).max()), 1e-12))
        if fixed:
            break
        before, variance = chosen, np.diag(np.linalg.inv(curvature))
        chosen = np.array([_spread(w[kind == one], variance[kind == one], first[one]) for one in range(len(first))])
        if np.abs(chosen - before).max() < CLOSE_SD:
            break
    tables = [_table(w[s * each : (s + 1) * each], A, D) for s in range(len(scales))]
    slope = tables[1] if lead is not None else np.zeros((A, D + 1))
    return Effects(tables[0], slope, w[each * len(scales) :], chosen)


def _spread(weights: Floats, variance: Floats, first: float) -> float:
    """Returns the standard deviation of effects, where `PRIOR_EFFECTS` of standard deviation `first` were seen."""
    total = float((weights**2 + variance).sum()) + PRIOR_EFFECTS * first**2
    return float(np.sqrt(total / (len(weights) + PRIOR_EFFECTS)))


def _table(w: Floats, A: int, D: int) -> Floats:
    """Returns the sums (A, D + 1) of the common weight and the effects of agents, dimensions and both."""
    usual, of_dimension, both = w[0] + w[1 : 1 + A], w[1 + A : 1 + A + D], w[1 + A + D :].reshape(A, D)
    return np.concatenate([usual[:, None] + of_dimension + both, usual[:, None]], axis=1)


def _dispersion(agent: Ints, y: Floats, A: int) -> float:
    """Returns the variance of the outcomes around each agent's mean, as a share of that of coins of the same mean."""
    count = np.maximum(np.bincount(agent, minlength=A), 1)
    mean = np.bincount(agent, weights=y, minlength=A) / count
    usual = np.clip(mean, 0.02, 0.98)[agent]
    share = float(((y - mean[agent]) ** 2).sum()) / max(float((usual * (1 - usual)).sum()), 1e-12)
    return max(share, LEAST_DISPERSION)
