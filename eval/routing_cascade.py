"""The tuned threshold cascade: ask a cheap agent, and a dearer one where the first is not confident enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.ranked import Floats
from metaprobe.eval.routing_curves import hull_corners
from metaprobe.eval.routing_performance import Matrix, Played, cheapest_first
from metaprobe.records.errors import RecordError

CUTS = 64
"""First thresholds that are tried for a chain of three: every one of so many quantiles. All others are exact."""

DECIMALS = 13
"""Decimals to which mean values of chains are compared. Values are of the order of 1, where floats have 16."""


@dataclass(frozen=True, slots=True)
class TunedCascade:
    """Agents in order; the next one is asked where the last one's confidence lies below its threshold, or is unknown.

    The answer of the last agent asked is kept.
    """

    agents: tuple[int, ...]
    thresholds: tuple[float, ...]
    """One fewer than agents."""

    def play(self, confidence: Floats) -> list[Played]:
        """On questions with these confidences (n, A), NaN where none was stated."""
        asked = np.ones(len(confidence), dtype=np.int64)
        for depth, (agent, threshold) in enumerate(zip(self.agents, self.thresholds, strict=False), start=1):
            asked += (asked == depth) & (_known(confidence[:, agent]) < threshold)
        return [Played(self.agents[:count], self.agents[count - 1]) for count in asked.tolist()]


def tune_cascade(
    training: Matrix,
    confidence: Floats,
    *,
    price: float = 0.0,
    candidates: Sequence[int] | None = None,
    longest: int = 3,
) -> TunedCascade:
    """The chain of one to `longest` (at most 3) agents, dearer ones later, of highest mean value on training rows.

    `confidence` (n, A): any number that is higher for a better answer of the same agent. Thresholds of a chain of two
    are the best there are; for three, the first is one of `CUTS`, the second the best for it.
    """
    if confidence.shape != training.score.shape:
        raise RecordError(f"confidence has shape {confidence.shape}; the matrix has {training.score.shape}")
    if not training.full or np.isnan(training.cost).any():
        raise RecordError("a cascade is tuned on questions whose every score and cost is known")
    if longest not in (1, 2, 3):
        raise RecordError(f"longest is {longest}; expected 1, 2 or 3")
    by_cost = cheapest_first(training, candidates)
    known = _known(confidence)
    chains = [chain for length in range(1, longest + 1) for chain in combinations(by_cost, length)]
    scored = [_tune(training, known, price, chain) for chain in chains]
    # The first, and shortest, of equals. Values are sums in different orders: their last digits say nothing.
    return max(scored, key=lambda pair: round(pair[0], DECIMALS))[1]


def _tune(matrix: Matrix, confidence: Floats, price: float, chain: tuple[int, ...]) -> tuple[float, TunedCascade]:
    """Mean value on these rows, and the chain with its best thresholds."""
    alone = matrix.value(price)
    first = chain[0]
    if len(chain) == 1:
        return float(alone[:, first].mean()), TunedCascade(chain, ())
    n = len(matrix)
    # What the next agent adds where it is asked: its value, in place of the answer at hand (which is paid for).
    added = [alone[:, after] - matrix.score[:, at] for at, after in pairwise(chain)]
    if len(chain) == 2:
        gain, threshold = _best_cut(confidence[:, first], added[0][None])
        return float(alone[:, first].mean() + gain[0] / n), TunedCascade(chain, (float(threshold[0]),))
    cuts = np.append(np.unique(np.quantile(confidence[:, first], np.linspace(0, 1, CUTS), method="higher")), np.inf)
    passed = confidence[:, first] < cuts[:, None]  # (cuts, n)
    later, threshold = _best_cut(confidence[:, chain[1]], np.where(passed, added[1], 0.0))
    total = passed @ added[0] + later
    best = int(total.argmax())
    thresholds = (float(cuts[best]), float(threshold[best]))
    return float(alone[:, first].mean() + total[best] / n), TunedCascade(chain, thresholds)


def cascades_on_hull(training: Matrix, confidence: Floats, *, longest: int = 3) -> list[TunedCascade]:
    """Every chain of one to `longest` (at most 3) agents that is the best at some price, cheapest first.

    Cost and mean score of each chain at every pair of `CUTS` thresholds are counted on the training rows, and what
    stands on the upper hull of them all is returned: as if `tune_cascade` had been tuned at all prices there are.
    `confidence` (n, A) as there. Raises `RecordError` where a score or a cost is unknown.
    """
    if not training.full or np.isnan(training.cost).any():
        raise RecordError("a cascade is tuned on questions whose every score and cost is known")
    known = _known(confidence)
    by_cost = cheapest_first(training)
    points: list[tuple[float, float]] = []
    made: list[TunedCascade] = []
    for length in range(1, longest + 1):
        for chain in combinations(by_cost, length):
            cuts = [_cuts(known[:, agent]) for agent in chain[:-1]]
            cost, score = _at_all_cuts(training, known, chain, cuts)
            for corner in hull_corners(cost.ravel(), score.ravel()):
                at = np.unravel_index(corner, cost.shape)
                points.append((float(cost[at]), float(score[at])))
                thresholds = tuple(float(cut[place]) for cut, place in zip(cuts, at, strict=True))
                made.append(TunedCascade(chain, thresholds))
    return [made[corner] for corner in hull_corners(*np.array(points).T)]


def _cuts(confidence: Floats) -> Floats:
    """Thresholds that are tried: quantiles, -inf to stop for sure and inf to go on for sure."""
    finite = confidence[np.isfinite(confidence)]
    inner = np.unique(np.quantile(finite, np.linspace(0, 1, CUTS), method="higher")) if len(finite) else finite
    return np.concatenate([[-np.inf], inner, [np.inf]])


def _at_all_cuts(
    matrix: Matrix, confidence: Floats, chain: tuple[int, ...], cuts: list[Floats]
) -> tuple[Floats, Floats]:
    """Mean cost and mean score of a chain at all its thresholds: one axis for each of `cuts`."""
    # A confidence goes on at every threshold above it: it counts from place `at` of the cuts on.
    place = [np.searchsorted(cut, confidence[:, agent], side="right") for agent, cut in zip(chain, cuts, strict=False)]
    shape = tuple(len(cut) for cut in cuts)
    cost = np.full(shape, matrix.cost[:, chain[0]].mean())
    score = np.full(shape, matrix.score[:, chain[0]].mean())
    for depth in range(1, len(chain)):
        sizes = [size + 1 for size in shape[:depth]]  # the last place is of confidences above every threshold
        where = np.ravel_multi_index(place[:depth], sizes)
        before, agent = chain[depth - 1], chain[depth]
        gained = matrix.score[:, agent] - matrix.score[:, before]
        for total, adds in ((cost, matrix.cost[:, agent]), (score, gained)):
            counted = np.bincount(where, weights=adds, minlength=int(np.prod(sizes))).reshape(sizes)
            for axis in range(depth):
                counted = np.cumsum(counted, axis=axis)
            kept = counted[tuple(slice(0, size) for size in shape[:depth])] / len(matrix)
            total += kept.reshape(kept.shape + (1,) * (len(shape) - depth))
    return cost, score


def _best_cut(confidence: Floats, gain: Floats) -> tuple[Floats, Floats]:
    """For each row of `gain` (R, n): its greatest sum below a threshold, and that threshold; 0 and -inf for none."""
    order = np.argsort(confidence, kind="stable")
    values = confidence[order]
    summed = np.concatenate([np.zeros((len(gain), 1)), np.cumsum(gain[:, order], axis=1)], axis=1)  # (R, n + 1)
    bounds = np.concatenate([[-np.inf], values[1:], [np.inf]])
    # Equal confidences go on together: a cut lies only where the value changes, at the ends always.
    allowed: NDArray[np.bool_] = np.concatenate([[True], values[1:] > values[:-1], [True]])
    summed = np.where(allowed, summed, -np.inf)
    best = summed.argmax(axis=1)
    return summed[np.arange(len(gain)), best], bounds[best]


def _known(confidence: Floats) -> Floats:
    """Unknown is below every threshold, and nothing reaches that of a chain which always goes on."""
    return np.nan_to_num(confidence, nan=-np.inf, neginf=-np.inf)
