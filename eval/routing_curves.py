"""Cost against quality over a family of policies, mostly one router at several prices: hull, AIQ, APGR, CPT.

A point is (US dollars for 1,000 questions, accuracy). Any point between two others can be had by choosing between the
two policies at random, question by question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval
from metaprobe.eval.metrics.ranked import Floats, MetricFunction, Value, check_weights
from metaprobe.eval.routing_performance import RESAMPLES, Matrix, Played, best_single, cheapest, replay
from metaprobe.records.errors import RecordError


@dataclass(frozen=True, slots=True, eq=False)
class Hull:
    """The best accuracy that mixtures of the points reach at each cost: concave and increasing, then flat."""

    cost: Floats
    """(k,) of its corners, ascending."""
    accuracy: Floats
    """(k,), ascending."""

    def at(self, cost: ArrayLike) -> Floats:
        """Accuracy at a budget, whatever its shape; nan below the cheapest point. Money left over buys nothing."""
        budgets = np.asarray(cost, dtype=np.float64)
        return np.asarray(np.interp(budgets, self.cost, self.accuracy, left=np.nan))

    def cost_of(self, accuracy: float) -> float:
        """The least cost that reaches this accuracy; nan where none does."""
        if accuracy > self.accuracy[-1]:
            return float("nan")
        return float(np.interp(accuracy, self.accuracy, self.cost))


def upper_hull(cost: ArrayLike, accuracy: ArrayLike) -> Hull:
    """The non-decreasing upper convex hull of points (k,). RouterBench, Hu et al. 2024, section 3, arXiv:2403.12031."""
    corners = hull_corners(cost, accuracy)
    return Hull(np.asarray(cost, dtype=np.float64)[corners], np.asarray(accuracy, dtype=np.float64)[corners])


def hull_corners(cost: ArrayLike, accuracy: ArrayLike) -> list[int]:
    """Which of the points (k,) are the corners of that hull, cheapest first.

    (Andrew's monotone chain, 1979; scipy's `ConvexHull` refuses points on one line.)
    """
    costs, accuracies = np.asarray(cost, dtype=np.float64), np.asarray(accuracy, dtype=np.float64)
    if costs.ndim != 1 or costs.shape != accuracies.shape or not costs.size:
        raise RecordError(f"costs and accuracies must be as many points; got {costs.shape} and {accuracies.shape}")
    if not (np.isfinite(costs).all() and np.isfinite(accuracies).all()):
        raise RecordError("a point has no finite cost or accuracy: leave it out, or record what is missing")
    order = np.lexsort((-accuracies, costs))
    # What costs as much or more and is no better than one before it cannot be a corner.
    best_before = np.maximum.accumulate(np.concatenate([[-np.inf], accuracies[order]]))[:-1]
    points: list[tuple[float, float]] = []
    corners: list[int] = []
    for place in order[accuracies[order] > best_before].tolist():
        point = (float(costs[place]), float(accuracies[place]))
        while len(points) > 1 and _below(points[-1], points[-2], point):
            points.pop()
            corners.pop()
        points.append(point)
        corners.append(place)
    return corners


def _below(middle: tuple[float, float], left: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether the middle point lies on or below the line from left to right."""
    rise = (middle[1] - left[1]) * (right[0] - left[0])
    return rise <= (right[1] - left[1]) * (middle[0] - left[0])


def aiq(hull: Hull, low: float, high: float) -> float:
    """Average improvement in quality: area under the hull from cost `low` to `high`, over high - low. RouterBench.

    The mean accuracy over budgets spread evenly between the two; compare routers over one range only. The range must
    begin where the hull does, or later.
    """
    if not hull.cost[0] <= low < high:
        raise RecordError(f"costs from {low} to {high}: expected a range that begins at {hull.cost[0]} or later")
    inside = hull.cost[(hull.cost > low) & (hull.cost < high)]
    knots = np.concatenate([[low], inside, [high]])
    return float(np.trapezoid(hull.at(knots), knots) / (high - low))


@dataclass(frozen=True, slots=True)
class Recovered:
    """How much of the gap between a weak and a strong agent a router closes, and for which part of the extra cost."""

    apgr: float
    """Average performance gap recovered: 0.5 for choosing at random, 1 for the strong agent's accuracy at no cost."""
    cpt50: float
    """Call-performance threshold: the least part of the extra cost that closes half of the gap."""
    cpt80: float
    """The same for 80 % of it."""


def measure_recovery(
    cost: ArrayLike, accuracy: ArrayLike, weak: tuple[float, float], strong: tuple[float, float]
) -> Recovered:
    """From a router's points (k,) and those of the two agents. RouteLLM, Ong et al. 2024, arXiv:2406.18665.

    There are two agents there, and the horizontal axis is the share of calls that go to the strong one. For any number
    of agents it is here the cost share s = (cost - weak) / (strong - weak): the same for two agents, one call a
    question and even prices. The gap closed at s is g = (accuracy - weak) / (strong - weak); APGR is its integral over
    s from 0 to 1 (exact, where the paper adds up ten steps), CPT(x) the least s where g >= x. Between points g is
    linear; the two agents are its ends, as the extremes of a threshold are. It is no hull, so that a router worse than
    chance shows as less than 0.5. Points dearer than the strong agent are left out, those cheaper than the weak one
    count as s = 0. All nan where the strong agent is not better and dearer than the weak one.
    """
    if not (strong[0] > weak[0] and strong[1] > weak[1]):
        return Recovered(float("nan"), float("nan"), float("nan"))
    s = np.maximum((np.asarray(cost, dtype=np.float64) - weak[0]) / (strong[0] - weak[0]), 0.0)
    g = (np.asarray(accuracy, dtype=np.float64) - weak[1]) / (strong[1] - weak[1])
    s, g = np.r_[0.0, s[s <= 1], 1.0], np.r_[0.0, g[s <= 1], 1.0]
    order = np.lexsort((-g, s))  # of points that cost the same, the best
    s, first = np.unique(s[order], return_index=True)
    g = g[order][first]
    return Recovered(float(np.trapezoid(g, s)), _reached(s, g, 0.5), _reached(s, g, 0.8))


def _reached(s: Floats, g: Floats, level: float) -> float:
    """The least s where the line through the points is at `level`; the last of them is at 1."""
    at = int(np.argmax(g >= level))
    if at == 0:
        return float(s[0])
    return float(s[at - 1] + (s[at] - s[at - 1]) * (level - g[at - 1]) / (g[at] - g[at - 1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFigures:
    """A family of policies on the same questions."""

    points: tuple[tuple[float, float], ...]
    """(US dollars for 1,000 questions, accuracy) of each policy, as given."""
    hull: Hull
    """Of these points and the weak agent's, which any router can fall back to. Its corners were picked on the questions
    they are measured on; a price picked on other questions is for `outcome_of`."""
    weak: str
    """The cheapest agent: where the cost range of AIQ begins."""
    strong: str
    """The best single agent: where it ends."""
    aiq: Interval
    apgr: Interval
    cpt50: Interval
    cpt80: Interval
    accuracy_at: dict[float, Interval]
    """Budget in US dollars for 1,000 questions -> accuracy, interpolated on the hull."""
    cost_of: dict[float, Interval]
    """Accuracy -> US dollars for 1,000 questions that reach it, on the hull; nan where nothing does."""


def curve_figures(
    matrix: Matrix,
    policies: Sequence[Sequence[Played]],
    *,
    weak: int | None = None,
    strong: int | None = None,
    budgets: Sequence[float] = (),
    accuracies: Sequence[float] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> CurveFigures:
    """Points, hull and numbers; every resample of groups has its own points, hull and cost range.

    `weak` and `strong`: agents as other rows showed them; by default the cheapest and the best on these. Resamples
    where a number is undefined are left out of its interval: for `cost_of` those where the accuracy is not reached.
    """
    if not policies:
        raise RecordError("no policies: a curve needs at least one")
    weak = cheapest(matrix) if weak is None else weak
    strong = best_single(matrix) if strong is None else strong
    ends = [[Played((agent,), agent)] * len(matrix) for agent in (weak, strong)]
    runs = [replay(matrix, played) for played in (*policies, *ends)]
    score = np.stack([run.score for run in runs])  # (k + 2, n), the two agents last
    cost = 1000 * np.stack([run.cost for run in runs])
    if np.isnan(cost).any():
        raise RecordError("some calls have no recorded cost: there is no curve of cost and quality")
    weights = cluster_weights(matrix.groups, resamples, seed)

    def figure(of: Callable[[Floats, Floats], float]) -> Interval:
        return interval(_of_points(of), score, cost, weights)

    costs, accuracy = cost.mean(axis=1), score.mean(axis=1)
    return CurveFigures(
        points=tuple(zip(costs[:-2].tolist(), accuracy[:-2].tolist(), strict=True)),
        hull=_hull(costs, accuracy),
        weak=matrix.agents[weak],
        strong=matrix.agents[strong],
        aiq=figure(_aiq),
        apgr=figure(lambda c, a: _recovered(c, a).apgr),
        cpt50=figure(lambda c, a: _recovered(c, a).cpt50),
        cpt80=figure(lambda c, a: _recovered(c, a).cpt80),
        accuracy_at={b: figure(partial(lambda budget, c, a: float(_hull(c, a).at(budget)), b)) for b in budgets},
        cost_of={x: figure(partial(lambda level, c, a: _hull(c, a).cost_of(level), x)) for x in accuracies},
    )


def _of_points(of: Callable[[Floats, Floats], float]) -> MetricFunction:
    """A metric of scores and costs (k, n) from a function of the points they make."""

    def metric(score: ArrayLike, cost: ArrayLike, weight: ArrayLike | None = None, /) -> Value:
        scores, costs = np.asarray(score), np.asarray(cost)
        weights, one = check_weights(weight, scores.shape[1])
        total = weights.sum(axis=1, keepdims=True)
        points = zip(weights @ costs.T / total, weights @ scores.T / total, strict=True)
        values = np.array([of(c, a) for c, a in points])
        return float(values[0]) if one else values

    return metric


def _hull(cost: Floats, accuracy: Floats) -> Hull:
    return upper_hull(cost[:-1], accuracy[:-1])


def _aiq(cost: Floats, accuracy: Floats) -> float:
    weak, strong = float(cost[-2]), float(cost[-1])
    return aiq(_hull(cost, accuracy), weak, strong) if weak < strong else float("nan")


def _recovered(cost: Floats, accuracy: Floats) -> Recovered:
    ends = [(float(cost[end]), float(accuracy[end])) for end in (-2, -1)]
    return measure_recovery(cost[:-2], accuracy[:-2], *ends)
