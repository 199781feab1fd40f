"""What a way of routing is worth: numbers with intervals, from a matrix of every agent's outcome on every question.

Letters: n questions, A agents. `price` is the lambda of cost-aware routing: the score that one US dollar must bring, so
that a question is worth score - price * cost_usd. Agents are asked one after the other: a question's cost and latency
are sums over those asked.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.ranked import Floats, MetricFunction, Value, check_weights, ratio
from metaprobe.records.errors import RecordError

RESAMPLES = 1000
FEWEST_GROUPS = 30
"""Groups from which a bootstrap interval may decide: with fewer it is too narrow, with one it has no width at all."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """What every agent's answer to every question was worth, and what it took."""

    score: Floats
    """(n, A) in [0, 1], NaN where the agent was not asked."""
    cost: Floats
    """(n, A) US dollars a call, NaN where not recorded."""
    latency: Floats
    """(n, A) milliseconds a call, NaN where not recorded."""
    agents: tuple[str, ...]
    groups: Sequence[object] | NDArray[np.generic]
    """(n,): questions of one group are not independent."""

    def __post_init__(self) -> None:
        shape = (len(self.groups), len(self.agents))
        for name in ("score", "cost", "latency"):
            values = getattr(self, name)
            if values.shape != shape:
                raise RecordError(f"{name} has shape {values.shape}; groups and agents say {shape}")
            if np.any(values < 0) or np.any(np.isinf(values)) or (name == "score" and np.any(values > 1)):
                raise RecordError(f"{name} must be {'from 0 to 1' if name == 'score' else 'finite and at least 0'}")
        if 0 in shape:
            raise RecordError(f"a matrix of {shape[0]} questions and {shape[1]} agents: at least one of each is needed")
        if (silent := np.isnan(self.score).all(axis=1)).any():
            raise RecordError(f"question {silent.argmax()}: no agent's score is known; leave such questions out")

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def full(self) -> bool:
        """Whether every agent's score is known for every question."""
        return not bool(np.isnan(self.score).any())

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> "Matrix":
        """The questions of these rows."""
        parts = (self.score[rows], self.cost[rows], self.latency[rows])
        return Matrix(*parts, self.agents, np.asarray(self.groups)[rows])

    def value(self, price: float = 0.0) -> Floats:
        """(n, A): score - price * cost of asking one agent alone."""
        if not 0 <= price < np.inf:
            raise RecordError(f"price is {price}; expected the score a dollar must bring, a number of at least 0")
        if price and np.isnan(self.cost[~np.isnan(self.score)]).any():
            raise RecordError(f"price is {price}, but some calls have no recorded cost: give price 0, or the costs")
        return self.score - price * self.cost if price else self.score


@dataclass(frozen=True, slots=True)
class Played:
    """What was done about one question. Agents are columns of the matrix."""

    asked: tuple[int, ...]
    """In this order, each once."""
    kept: int
    """Whose answer was returned."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What came of a policy's choices, looked up in the matrix."""

    score: Floats
    """(n,): of the kept answers."""
    first: Floats
    """(n,): of the first agents asked."""
    cost: Floats
    """(n,) US dollars, NaN where that of an asked agent is not recorded."""
    latency: Floats
    """(n,) milliseconds, likewise."""
    asked: NDArray[np.bool_]
    """(n, A)."""
    kept: NDArray[np.intp]
    """(n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingFigures:
    """A policy on n questions. A share without a case to count is nan; None needs what the matrix does not hold."""

    accuracy: Interval
    """Mean score of the kept answers."""
    cost_per_1000: Interval | None
    """US dollars for 1,000 questions."""
    latency_ms: Interval | None
    latency_p50_ms: Interval | None
    """The smallest latency that at least half of the questions do not exceed; p99 likewise."""
    latency_p99_ms: Interval | None
    calls: Interval
    """Agents asked a question."""
    oracle_regret: Interval | None
    """Mean value of the best agent of each question, minus the policy's; never negative."""
    single_regret: Interval | None
    """Mean value of the best single agent minus the policy's; negative where the policy is better."""
    single: str | None
    """That agent."""
    delegated: Interval
    """Share of questions for which more than the first agent was asked."""
    delegation_precision: Interval
    """Of the delegated questions, the share whose kept answer scores above the first agent's (it was wrong, is right).
    For scores of 0 and 1, accuracy minus that of the first agents is delegated x (precision - harm)."""
    delegation_recall: Interval | None
    """The same questions as a share of those where the first agent scores below some other: that could be rescued."""
    harm_rate: Interval
    """Of the delegated questions, the share whose kept answer scores below the first agent's (it was right)."""
    asked: dict[str, float]
    """Agent -> share of the questions for which it was asked."""
    kept: dict[str, float]
    """Agent -> share of the questions for which its answer was kept."""


def replay(matrix: Matrix, played: Sequence[Played]) -> Replay:
    """Raises `RecordError` where a choice is not one the matrix can answer, naming the question."""
    n, A = matrix.score.shape
    if len(played) != n:
        raise RecordError(f"{len(played)} questions were played; the matrix has {n}")
    asked = np.zeros((n, A), dtype=bool)
    for row, play in enumerate(played):
        known = set(play.asked) <= set(range(A))
        if not known or play.kept not in play.asked or len(set(play.asked)) < len(play.asked):
            raise RecordError(f"question {row}: {play}; expected distinct agents from 0 to {A - 1}, the kept one asked")
        asked[row, list(play.asked)] = True
    if (unknown := np.argwhere(asked & np.isnan(matrix.score))).size:
        row, agent = unknown[0]
        raise RecordError(
            f"question {row}: {matrix.agents[agent]} is asked, but what it answers is not in the matrix "
            f"({len(unknown)} such calls): choose among known outcomes, or estimate off-policy (metaprobe.eval.ope)"
        )
    rows = np.arange(n)
    kept = np.array([play.kept for play in played])
    return Replay(
        score=matrix.score[rows, kept],
        first=matrix.score[rows, [play.asked[0] for play in played]],
        cost=np.where(asked, matrix.cost, 0.0).sum(axis=1),
        latency=np.where(asked, matrix.latency, 0.0).sum(axis=1),
        asked=asked,
        kept=kept,
    )


def oracle(matrix: Matrix, *, price: float = 0.0) -> list[Played]:
    """The agent of highest value for each question, the cheapest of equals: at price 0 the cheapest right one."""
    value = matrix.value(price)
    best = value >= np.nanmax(value, axis=1, keepdims=True)
    # Unrecorded costs come last, but before the agents that are not among the best.
    cost = np.where(best, np.nan_to_num(matrix.cost, nan=np.finfo(np.float64).max), np.inf)
    return [Played((agent,), agent) for agent in cost.argmin(axis=1).tolist()]


def best_single(matrix: Matrix, *, price: float = 0.0) -> int:
    """The agent of highest mean value, the cheapest of equals. Learn it from training rows, play it on others."""
    if not matrix.full:
        raise RecordError("some agents were not asked everything: their means are not of the same questions")
    return int(np.lexsort((mean_costs(matrix), -column_means(matrix.value(price))))[0])


def cheapest(matrix: Matrix) -> int:
    """The agent of lowest mean cost, the best of equals; one whose costs are not all recorded comes last."""
    return int(np.lexsort((-column_means(matrix.score), mean_costs(matrix)))[0])


def cheapest_first(matrix: Matrix, agents: Sequence[int] | None = None) -> list[int]:
    """Returns these agents, by default all, by their mean cost; equally dear ones stay in their order.

    An agent whose costs are not all recorded comes last.
    """
    cost = mean_costs(matrix)
    return sorted(range(len(matrix.agents)) if agents is None else agents, key=lambda agent: float(cost[agent]))


def mean_costs(matrix: Matrix) -> Floats:
    """Returns the mean cost (A,) of each agent, inf where not all of its costs are recorded."""
    return np.nan_to_num(column_means(matrix.cost), nan=np.inf)


def column_means(values: Floats) -> Floats:
    """Returns the mean of each column (n, A) to 12 significant digits; NaN for a column with a NaN.

    Agents are ordered by these means. Equal costs in another order must not tell two agents apart, so the sum is exact,
    and what the last digits of a float say is dropped.
    """
    return np.array([float(f"{math.fsum(column) / len(values):.12g}") for column in values.T.tolist()])


def outcome_of(
    matrix: Matrix,
    played: Sequence[Played],
    *,
    price: float = 0.0,
    single: int | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> RoutingFigures:
    """All numbers of one policy, intervals by a bootstrap over groups.

    `single`: the best single agent as other rows showed it; by default the best on these, which favours it.
    """
    run = replay(matrix, played)
    weights = cluster_weights(matrix.groups, resamples, seed)
    several = run.asked.sum(axis=1) > 1
    rescued, harmed = several & (run.score > run.first), several & (run.score < run.first)
    costs, times = not np.isnan(run.cost).any(), not np.isnan(run.latency).any()
    oracle_regret = single_regret = recall = None
    if matrix.full:
        single = best_single(matrix, price=price) if single is None else single
        value = matrix.value(price)
        mine = run.score - price * run.cost if price else run.score
        oracle_regret = mean_interval(value.max(axis=1) - mine, weights)
        single_regret = mean_interval(value[:, single] - mine, weights)
        recall = interval(share, rescued, matrix.score.max(axis=1) > run.first, weights)
    return RoutingFigures(
        accuracy=mean_interval(run.score, weights),
        cost_per_1000=mean_interval(1000 * run.cost, weights) if costs else None,
        latency_ms=mean_interval(run.latency, weights) if times else None,
        latency_p50_ms=interval(quantile(0.5), run.latency, run.latency, weights) if times else None,
        latency_p99_ms=interval(quantile(0.99), run.latency, run.latency, weights) if times else None,
        calls=mean_interval(run.asked.sum(axis=1), weights),
        oracle_regret=oracle_regret,
        single_regret=single_regret,
        single=matrix.agents[single] if matrix.full and single is not None else None,
        delegated=mean_interval(several, weights),
        delegation_precision=interval(share, rescued, several, weights),
        delegation_recall=recall,
        harm_rate=interval(share, harmed, several, weights),
        asked=dict(zip(matrix.agents, run.asked.mean(axis=0).tolist(), strict=True)),
        kept={name: float((run.kept == column).mean()) for column, name in enumerate(matrix.agents)},
    )


@dataclass(frozen=True, slots=True)
class Gain:
    """One policy minus another on the same questions, intervals from the same resamples of groups."""

    value: Interval
    """Of score - price * cost."""
    score: Interval
    cost_per_1000: Interval | None
    """US dollars; None where a cost is not recorded."""

    @property
    def promotable(self) -> bool:
        """Whether the policy may replace the other: the interval of the value lies above 0, from enough groups.

        From a two-sided 95 % interval: of policies that are no better, about one in 40 passes.
        """
        return self.value.low > 0 and self.value.groups >= FEWEST_GROUPS


def compare(
    matrix: Matrix,
    played: Sequence[Played],
    running: Sequence[Played],
    *,
    price: float = 0.0,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Gain:
    """`played` minus `running`."""
    matrix.value(price)  # refuses a price without costs
    new, old = replay(matrix, played), replay(matrix, running)
    weights = cluster_weights(matrix.groups, resamples, seed)
    score, cost = new.score - old.score, new.cost - old.cost
    return Gain(
        value=mean_interval(score - price * cost if price else score, weights, level=level),
        score=mean_interval(score, weights, level=level),
        cost_per_1000=None if np.isnan(cost).any() else mean_interval(1000 * cost, weights, level=level),
    )


def share(hit: ArrayLike, counted: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Sum of `hit` over the sum of `counted`, both (n,); nan where nothing is counted. A `Metric`."""
    weights, one = check_weights(weight, np.size(hit))
    above, below = np.asarray(hit, dtype=np.float64), np.asarray(counted, dtype=np.float64)
    counts: Floats = weights.astype(np.float64)
    result = ratio(counts @ above, counts @ below)
    return float(result[0]) if one else result


def quantile(part: float) -> MetricFunction:
    """A `Metric` of its second argument: the smallest value that at least this part of the values do not exceed."""

    def metric(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, /) -> Value:
        values = np.asarray(score, dtype=np.float64)
        weights, one = check_weights(weight, len(values))
        order = np.argsort(values)
        reached = np.cumsum(weights[:, order], axis=1)
        result: Floats = values[order[(reached < part * reached[:, -1:]).sum(axis=1)]]
        return float(result[0]) if one else result

    return metric
