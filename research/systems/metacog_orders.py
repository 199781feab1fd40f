"""MetaCogAgent's numbers over several orders of the items: mean, interval over groups, and how far the orders differ.

For live_signals.py and research/papers/metacogagent.py. A number is taken in each order; what is shown is the mean over
the orders with an interval by a bootstrap over groups (a group keeps its multiplicity in every order), and the smallest
and the largest single order. Differences are paired within the order, on the item.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.metrics.bootstrap import (
    ControlComparison,
    Interval,
    against_controls,
    cluster_weights,
    resample_values,
    resampled_interval,
)
from metaprobe.eval.metrics.calibration import ece, ece_equal_width
from metaprobe.eval.metrics.ranked import MetricFunction
from metaprobe.eval.systems.dispatch import DispatchedRun
from metaprobe.eval.systems.metacogagent_figures import competence, delegate
from metaprobe.records.types import Run

Floats = NDArray[np.float64]
CALIBRATION: dict[str, MetricFunction] = {"equal mass": ece, "equal width": ece_equal_width}
"""ECE over 15 bins of equal mass, and over 10 of equal width, which is the paper's."""


@dataclass(frozen=True, slots=True)
class OverOrders:
    """One number over several orders."""

    value: Interval
    """The mean over the orders."""
    low: float
    """The smallest of a single order."""
    high: float
    orders: int

    @property
    def spread(self) -> tuple[float, float]:
        return (self.low, self.high)


class Series:
    """One variant over all items, once in each order. Arrays are (orders, items), the items by id."""

    def __init__(self, replays: Sequence[Sequence[Run]]) -> None:
        """`replays`: the runs of each order, of the same items. Raises ValueError where they differ."""
        by_id = [sorted(runs, key=lambda run: run.item.id) for runs in replays]
        self.items = [run.item for run in by_id[0]]
        if any([run.item.id for run in runs] != [item.id for item in self.items] for runs in by_id):
            raise ValueError("the orders are not of the same items")
        self.outcome = _array([[run.outcome or 0.0 for run in runs] for runs in by_id])
        self.first = [[DispatchedRun(run).first for run in runs] for runs in by_id]
        self.to = [[delegate(run) for run in runs] for runs in by_id]
        voted = [[any(one.point == "assign" for one in run.decisions) for run in runs] for runs in by_id]
        self.asked = _array([[to is not None for to in row] for row in self.to])
        self.asked[np.array(voted)] = 1.0
        self.right = _array(
            [
                [None if to is None else DispatchedRun(run).correctness(to) for run, to in zip(runs, row, strict=True)]
                for runs, row in zip(by_id, self.to, strict=True)
            ]
        )
        """Whether the agent that an item was delegated to has it right; nan where it was not delegated."""
        self.judged = [_judged(runs) for runs in by_id]
        self.calls = [Counter(call.stage for run in runs for call in run.calls) for runs in by_id]

    @property
    def weights(self) -> NDArray[np.int32]:
        """(resamples, items): the same for every series over these items."""
        return cluster_weights([item.group or item.id for item in self.items])

    def of_level(self, level: str) -> NDArray[np.bool_]:
        return np.array([item.level == level for item in self.items])

    def accuracy(self, keep: ArrayLike = True) -> OverOrders:
        """Returns the accuracy of the final answers, over the items of this mask."""
        return share(self._kept(self.outcome, keep), self.weights)

    def share_asked(self, keep: ArrayLike = True) -> OverOrders:
        """Share of items that the first agent did not answer alone."""
        return share(self._kept(self.asked, keep), self.weights)

    def precision(self) -> OverOrders | None:
        """Share of delegated items that the other agent has right; None where nothing was delegated in some order."""
        return None if np.isnan(self.right).all(axis=1).any() else share(self.right, self.weights)

    def calibration(self, bins: str, keep: ArrayLike = True) -> OverOrders | None:
        """ECE of c over the answers that were returned or voted with; `bins` as in `CALIBRATION`. None without any.

        Resampling adds noise, which absolute gaps count as error: the resamples are moved down by as much as they lie
        above the estimate in the mean, or else the interval would not hold it.
        """
        kept = np.broadcast_to(keep, len(self.items))
        judged = [(place[kept[place]], c[kept[place]], right[kept[place]]) for place, c, right in self.judged]
        if not all(len(place) for place, _, _ in judged):
            return None
        return _over_orders([_statistic(CALIBRATION[bins], *one) for one in judged], self.weights, centred=True)

    def gain_over(self, other: "Series") -> OverOrders:
        """Difference of accuracy, paired in each order."""
        return share(self.outcome - other.outcome, self.weights)

    def shown_calls(self) -> str:
        """Calls by stage, the mean over the orders."""
        total = sum(self.calls, Counter())
        return ", ".join(f"{count / len(self.calls):.0f} {stage}" for stage, count in sorted(total.items()))

    def _kept(self, values: Floats, keep: ArrayLike) -> Floats:
        return np.where(np.broadcast_to(keep, values.shape), values, np.nan)


def share(values: Floats, weights: NDArray[np.int32]) -> OverOrders:
    """The mean of `values` (orders, items) over the items that are not nan, in each order."""
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)

    def of_order(order: int) -> Callable[[NDArray[np.integer]], Floats]:
        def mean(weight: NDArray[np.integer]) -> Floats:
            mass = weight @ known[order].astype(np.float64)
            return np.divide(weight @ filled[order], mass, out=np.full(len(weight), np.nan), where=mass > 0)

        return mean

    found = _over_orders([of_order(order) for order in range(len(values))], weights)
    items = int(known.any(axis=0).sum())
    return replace(found, value=replace(found.value, n=items))


def compared(ours: Series, controls: Mapping[str, Floats]) -> ControlComparison:
    """Accuracy against each control, paired on the item and averaged over the orders; p-values after Holm.

    `controls`: name -> (orders, items) or (items,), right or wrong.
    """
    means = {name: np.atleast_2d(values).mean(axis=0) for name, values in controls.items()}
    return against_controls(
        np.zeros(len(ours.items)), ours.outcome.mean(axis=0), means, ours.weights, metric=weighted_mean
    )


def spread_over(ours: Series, control: Floats) -> tuple[float, float]:
    """The smallest and the largest gain over a control in a single order."""
    gains = (ours.outcome - np.atleast_2d(control)).mean(axis=1)
    return float(gains.min()), float(gains.max())


def weighted_mean(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Floats:
    """The mean of the scores as a metric: whatever the labels."""
    values = np.asarray(score, dtype=np.float64)
    if weight is None:
        return np.asarray(values.mean())
    multiplicity = np.asarray(weight, dtype=np.float64)
    return np.asarray(multiplicity @ values / multiplicity.sum(axis=1))


def _over_orders(
    statistics: Sequence[Callable[[NDArray[np.integer]], Floats]], weights: NDArray[np.int32], *, centred: bool = False
) -> OverOrders:
    once = np.ones((1, weights.shape[1]), dtype=np.int32)
    each = np.array([statistic(once)[0] for statistic in statistics])
    values = np.mean([resample_values(statistic, weights) for statistic in statistics], axis=0)
    if centred:
        values = np.maximum(values - (np.nanmean(values) - each.mean()), 0.0)
    found = resampled_interval(float(each.mean()), values, weights)
    return OverOrders(found, float(each.min()), float(each.max()), len(each))


def _statistic(
    metric: MetricFunction, place: NDArray[np.int_], score: Floats, right: Floats
) -> Callable[[NDArray[np.integer]], Floats]:
    return lambda weight: np.asarray(metric(right, score, weight[:, place]))


def _judged(runs: Sequence[Run]) -> tuple[NDArray[np.int_], Floats, Floats]:
    """Places of the items, c, and right or wrong, of the answers that were returned or voted with."""
    found = [
        (place, c, right)
        for place, run in enumerate(runs)
        for agent in DispatchedRun(run).executing
        if (right := DispatchedRun(run).correctness(agent)) is not None and (c := competence(run, agent)) is not None
    ]
    place, c, right = zip(*found, strict=True) if found else ((), (), ())
    return np.array(place, dtype=np.int_), _array(c), _array(right)


def _array(values: object) -> Floats:
    return np.array(values, dtype=np.float64)
