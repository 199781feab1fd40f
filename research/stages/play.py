"""What the stage heads are worth on groups that they were not fitted on, beside simple ways of deciding the same.

The value of a way is its share of right answers less `token_price` for every 1,000 tokens generated. A head wins where
its value is above that of every other way but the oracle, each by a paired interval over groups above 0.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.training.common.roles import group_folds
from research.stages.data import Candidates, Cycles, Floats, Ints, StageData
from research.stages.fit import fit_stages
from research.stages.policy import SYSTEM_POINTS
from research.stages.ways import (
    LEARNED,
    ORACLE,
    PlayedStages,
    Split,
    Ways,
    budget_ways,
    iterate_ways,
    regulate_ways,
    select_ways,
)

SEEDS = 5
WAYS: Mapping[str, Callable[[Split[Any]], Ways]] = {
    "iterate": iterate_ways,
    "select": select_ways,
    "budget": budget_ways,
    "regulate": regulate_ways,
}


def cross_played(
    data: StageData,
    *,
    token_price: float,
    used: Collection[str] = (),
    folds: int = 5,
    seeds: int = SEEDS,
    seed: int = 0,
) -> dict[str, Ways]:
    """Point -> way -> what it gave, every problem played by what was fitted on other groups, for each of the seeds.

    `used`: points whose learned head is in use at the others.
    """
    total: dict[str, dict[str, Floats]] = {}
    ever_right = (data.correct.max(axis=1) > 0).astype(np.int64)
    for run in range(seed, seed + seeds):
        rng = np.random.default_rng(run)
        for seen, test in group_folds(np.arange(len(data)), data.groups, ever_right, folds, run):
            split = _split(data, seen, test, token_price, used, run, rng)
            for point in SYSTEM_POINTS[data.system]:
                for way, played in WAYS[point](split).items():
                    sums = total.setdefault(point, {}).setdefault(way, np.zeros((3, len(data))))
                    sums[:, test] += np.stack([played.correct, played.tokens, played.steps])
    return {point: {way: PlayedStages(*(sums / seeds)) for way, sums in ways.items()} for point, ways in total.items()}


def value_gains(ways: Mapping[str, PlayedStages], groups: Collection[str], token_price: float) -> dict[str, Interval]:
    """By how much the learned way's value exceeds that of each other, paired."""
    weights = cluster_weights(list(groups))
    mine = ways[LEARNED].value(token_price)
    return {
        way: mean_interval(mine - played.value(token_price), weights) for way, played in ways.items() if way != LEARNED
    }


def verdict(gains: Mapping[str, Interval]) -> tuple[bool, str]:
    """Whether a head wins, and why, as a clause."""
    rivals = {way: gain for way, gain in gains.items() if way != ORACLE}
    way = min(rivals, key=lambda name: rivals[name].low)
    gain = rivals[way]
    shown = f"by value {gain.estimate:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] on held-out groups"
    if gain.low > 0:
        return True, f"its head was better than every simple way, least of all than '{way}', {shown}"
    return False, f"its head was not better than '{way}', {shown}"


def _split(
    data: StageData,
    seen: Ints,
    test: Ints,
    token_price: float,
    used: Collection[str],
    seed: int,
    rng: np.random.Generator,
) -> Split[Any]:
    part = data.take(seen)
    wrong = _shuffled(part, rng)
    fitted, shuffled = (fit_stages(each, used=used, seed=seed) for each in (part, wrong))
    return Split(fitted, shuffled, part, data.take(test), token_price, rng)


def _shuffled(data: StageData, rng: np.random.Generator) -> StageData:
    """With the outcomes of other problems; of other answers, where problems have not equally many."""
    if isinstance(data, Candidates):
        correct = data.correct.copy()
        correct[data.there] = rng.permutation(correct[data.there])
        return replace(data, correct=correct)
    order = rng.permutation(len(data))
    if isinstance(data, Cycles):
        return replace(data, correct=data.correct[order], lengths=data.lengths[order])
    return replace(data, correct=data.correct[order])
