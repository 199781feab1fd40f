"""What flagging the answers of lowest score catches and costs, measured on answers that no fit has seen."""

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import FlagPoint, Metric
from metaprobe.eval.metrics.bootstrap import NORMAL, Interval, cluster_weights, statistic_interval
from metaprobe.eval.table import AnswerTable
from metaprobe.training.common.operating_points import match_share

RATES = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Shares of the answers that are flagged, 5 % to 95 %."""

Floats = NDArray[np.float64]


def flag_points(table: AnswerTable, held_out: Floats, exported: Floats, *, seed: int = 0) -> tuple[FlagPoint, ...]:
    """Returns for each of `RATES` the exported model's threshold, and what flagging as many catches and costs.

    `held_out` (n,) are the probabilities of the folds, of which numbers are taken; `exported` those of the exported
    model on its calibration answers, where the thresholds lie. No label plays a part in a threshold. `table` holds
    right and wrong answers.
    """
    weights = cluster_weights(table.groups.tolist(), seed=seed)
    found = []
    for rate in RATES:
        threshold, here = match_share(exported, 1 - rate), match_share(held_out, 1 - rate)
        if threshold is None or here is None:
            continue
        _, caught, cost = _shares(held_out < here, table, weights)
        found.append(FlagPoint(rate, threshold, caught, cost))
    return tuple(found)


def measure_shares(
    table: AnswerTable, held_out: Floats, threshold: float, *, seed: int = 0
) -> tuple[Metric, Metric, Metric] | None:
    """Returns which shares of all, of the wrong and of the right answers have a held-out probability (n,) below the
    threshold; None where there are no wrong or no right answers."""
    if len(np.unique(table.y)) < 2:
        return None
    return _shares(held_out < threshold, table, cluster_weights(table.groups.tolist(), seed=seed))


def _shares(
    flagged: NDArray[np.bool_], table: AnswerTable, weights: NDArray[np.int32]
) -> tuple[Metric, Metric, Metric]:
    """The flagged share of all, of the wrong and of the right answers."""
    every, wrong, right = np.ones(len(table.y), dtype=np.bool_), table.y == 0, table.y == 1
    of_all, caught, cost = (_share(flagged, among, table.groups, weights) for among in (every, wrong, right))
    return of_all, caught, cost


def _share(
    flagged: NDArray[np.bool_], among: NDArray[np.bool_], groups: NDArray[np.str_], weights: NDArray[np.int32]
) -> Metric:
    """The share of these answers that is flagged, with its interval over groups.

    The interval is at least as wide as Wilson's for as many independent answers as there are groups. A bootstrap alone
    would say "100 % to 100 %" of three wrong answers that are all flagged.
    """
    both, rows = (flagged & among).astype(np.float64), among.astype(np.float64)

    def share(weight: NDArray[np.integer]) -> Floats:
        total = weight @ rows
        found: Floats = np.divide(weight @ both, total, out=np.full(len(total), np.nan), where=total > 0)
        return found

    whole: Interval = statistic_interval(share, weights)
    low, high = wilson(whole.estimate, len(np.unique(groups[among])))
    return Metric(whole.estimate, min(whole.low, low), max(whole.high, high), int(among.sum()))


def wilson(share: float, n: int) -> tuple[float, float]:
    """Returns Wilson's 95 % interval of a share of n independent answers (Wilson 1927, doi:10.2307/2276774)."""
    z = NORMAL.inv_cdf(0.975)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return max(centre - half, 0.0), min(centre + half, 1.0)
