"""What flagging the answers of lowest score catches and costs, measured on answers that no fit has seen."""

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import FlagPoint, Metric
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, statistic_interval
from metaprobe.eval.table import AnswerTable
from metaprobe.training.common.operating_points import match_share

RATES = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Shares of the answers that are flagged, 5 % to 95 %."""
FEWEST = 50
"""Calibration answers below which a share of 5 % is a matter of two or three."""
FEWEST_WRONG = 10
"""Wrong answers below which the share of them that is caught is a matter of one or two."""

Floats = NDArray[np.float64]


def flag_points(table: AnswerTable, held_out: Floats, exported: Floats, *, seed: int = 0) -> tuple[FlagPoint, ...]:
    """Returns for each of `RATES` the exported model's threshold, and what flagging as many catches and costs.

    `held_out` (n,) are the probabilities of the folds, of which numbers are taken; `exported` those of the exported
    model on its calibration answers, where the thresholds lie. Empty where there are fewer than `FEWEST` of these, or
    fewer than `FEWEST_WRONG` wrong answers. No label plays a part in a threshold.
    """
    if len(exported) < FEWEST or (table.y == 0).sum() < FEWEST_WRONG:
        return ()
    weights = cluster_weights(table.groups.tolist(), seed=seed)
    found = []
    for rate in RATES:
        threshold, here = match_share(exported, 1 - rate), match_share(held_out, 1 - rate)
        if threshold is None or here is None:
            continue
        flagged = held_out < here
        caught, cost = (_share(flagged, table.y == label, weights) for label in (0, 1))
        found.append(FlagPoint(rate, threshold, caught, cost))
    return tuple(found)


def _share(flagged: NDArray[np.bool_], among: NDArray[np.bool_], weights: NDArray[np.int32]) -> Metric:
    """The share of these answers that is flagged, with its interval over groups."""
    both, rows = (flagged & among).astype(np.float64), among.astype(np.float64)

    def share(weight: NDArray[np.integer]) -> Floats:
        total = weight @ rows
        found: Floats = np.divide(weight @ both, total, out=np.full(len(total), np.nan), where=total > 0)
        return found

    whole: Interval = statistic_interval(share, weights)
    return Metric(whole.estimate, whole.low, whole.high, int(among.sum()))
