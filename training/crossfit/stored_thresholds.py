"""Thresholds that a head's checkpoint stores, on calibrated probabilities, each with what it promises."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.table import AnswerTable
from metaprobe.records.errors import RecordError
from metaprobe.training.common.calibrate import PARITY, fit_platt
from metaprobe.training.common.calibrators import Calibrator, sigmoid
from metaprobe.training.common.guarantees import accept_threshold, flag_threshold
from metaprobe.training.common.operating_points import operating_points
from metaprobe.training.common.roles import Rows, group_folds
from metaprobe.training.crossfit.methods import Evidence, Scores

MISS_RATE = 0.1
"""Share of wrong answers that the stored flag threshold may let pass, and of critical ones that `critical` may."""
ERROR, CONFIDENCE = 0.1, 0.95
"""Of the stored accept threshold: more than this share of the accepted is wrong in at most 1 - CONFIDENCE of all
trainings. Among those trainings that store one the share is another: in simulations (AUROC 0.56 to 0.92, 30 % to 87 %
right, 60 to 500 groups) up to 0.17 where some threshold can keep the bar, and all of them where none can, which happens
in up to 2 % of such trainings, at 0.9 in up to 6 %. No procedure avoids that: it is chance that gets stored there."""
FALSE_ALARMS = 0.05
"""Share of answers without a critical failure that `critical_sure` may call one."""
PROMISES = {
    "flag": (
        f" Below the threshold `flag` lie, in expectation, at least {1 - MISS_RATE:.0%} of the wrong answers "
        "(conformal risk control)."
    ),
    "accept": (
        f" Of the answers of at least `accept`, no more than {ERROR:.0%} are wrong: of 100 trainings like this one, at "
        f"most {100 * (1 - CONFIDENCE):.0f} store an `accept` that breaks this (Learn then Test). That counts the "
        "trainings that store none. Where no threshold could keep it, the few that are stored all break it: check "
        "it on labels of your own where the score tells little."
    ),
    "critical": (
        f" A probability `critical` of at least the threshold `critical` have, in expectation, at least "
        f"{1 - MISS_RATE:.0%} of the critical failures (conformal risk control)."
    ),
    "critical_sure": (
        f" One of at least `critical_sure` have, in expectation, at most {FALSE_ALARMS:.0%} of the answers without a "
        "critical failure (likewise)."
    ),
}

FEWEST_WRONG = round(1 / MISS_RATE) - 1
"""Wrong answers, one a group, without which no threshold can promise to miss at most `MISS_RATE` of them."""


def lacking_promises(thresholds: Mapping[str, float], wrong: int) -> str:
    """A sentence's end for each of `flag` and `accept` that is not among these thresholds: why, and what it takes.

    `wrong`: how many of the labelled answers are.
    """
    said = ""
    if "flag" not in thresholds:
        said += (
            f"; no threshold `flag`: {wrong} wrong ones among these do not carry the promise to miss at most "
            f"{MISS_RATE:.0%}, which takes {FEWEST_WRONG} of different groups"
        )
    if "accept" not in thresholds:
        said += "; no threshold `accept`: so many labels do not carry its promise, or no score is sure enough"
    return said


def promise_thresholds(
    scores: Scores, table: AnswerTable, rows: Rows, calibrator: Calibrator, *, seed: int = 0
) -> dict[str, float]:
    """Thresholds on the calibrated probability that keep a promise, of `PROMISES`; those that cannot be are left out.

    Both come from calibration rows, one a group. `flag` does not depend on the map from scores to probabilities, as
    long as it does not change direction. `accept` does: its grid must be fixed before its rows are seen, so that one
    half of the groups fits a calibrator, in whose probabilities the other half is tested.
    """
    found, groups, spread = {}, table.groups, _spread(scores)
    flag = _raw_threshold(scores, table.y, groups, rows, calibrator, MISS_RATE, seed)
    if flag is not None:
        # A calibrator may be flat there: all that share the probability are flagged.
        found["flag"] = min(_at(calibrator, flag) + PARITY, 1.0)
    try:
        (fits, tests), *_ = group_folds(rows, groups.tolist(), table.y, 2, seed)
        platt = fit_platt(scores[fits], table.y[fits])
    except RecordError:
        return found  # too few groups for two halves
    accept = accept_threshold(
        platt.probability(scores[tests]),
        table.y[tests],
        error=ERROR,
        confidence=CONFIDENCE,
        groups=groups[tests],
        seed=seed,
    )
    if np.isfinite(accept) and platt.slope > 0:
        raw = (_log_odds(accept) - platt.intercept) / platt.slope
        here = _at(calibrator, raw)
        # Where it is flat, answers just below the threshold share its probability, and none of them is accepted.
        found["accept"] = here if here > _at(calibrator, raw - 1e-3 * spread) else here + PARITY
    return found


def critical_thresholds(
    scores: Scores, table: AnswerTable, rows: Rows, calibrator: Calibrator, *, seed: int = 0
) -> dict[str, float]:
    """Thresholds on P(critical), of `PROMISES`; those that cannot be kept are left out. Alarm from the threshold on.

    From the calibration rows, one a group. `scores` and `y` are of the answer being sound, that is not critical.
    `critical` is the `flag` of these; for `critical_sure` the classes change places: of the sound answers, few may lie
    on the alarm's side.
    """
    found = {}
    caught = _raw_threshold(scores, table.y, table.groups, rows, calibrator, MISS_RATE, seed)
    if caught is not None:
        # Answers to which a flat calibrator gives the same probability are all caught.
        found["critical"] = max(1 - _at(calibrator, caught) - PARITY, 0.0)
    spared = _raw_threshold(scores, 1 - table.y, table.groups, rows, calibrator, FALSE_ALARMS, seed, falling=True)
    if spared is not None:
        # And here none of them is.
        found["critical_sure"] = min(1 - _at(calibrator, spared) + PARITY, 1.0)
    return found


def _raw_threshold(
    scores: Scores,
    y: NDArray[np.int64],
    groups: NDArray[np.str_],
    rows: Rows,
    calibrator: Calibrator,
    rate: float,
    seed: int,
    *,
    falling: bool = False,
) -> float | None:
    """The raw score on whose lower side, in probability, lie all but a share `rate` of the answers with `y` 0.

    With `falling`, on whose upper side. None where the rows are too few for the rate.
    """
    centre, spread = float(scores.mean()), _spread(scores)
    # A calibrator may fall, where scores turned out to go the wrong way round.
    rises = _at(calibrator, centre + spread) >= _at(calibrator, centre - spread)
    sign = -1.0 if rises == falling else 1.0
    order = sigmoid(sign * (scores[rows] - centre) / spread)  # any fixed rising map into [0, 1]
    found = flag_threshold(order, y[rows], miss_rate=rate, groups=groups[rows], seed=seed)
    return sign * _log_odds(max(found, 1e-9)) * spread + centre if found < 1 else None


def _at(calibrator: Calibrator, raw: float) -> float:
    return float(calibrator.probability(np.array([raw]))[0])


def _spread(scores: Scores) -> float:
    return float(scores.std()) or 1.0


def _log_odds(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def own_points(scores: Scores, evidence: Evidence, rows: Rows, calibrator: Calibrator) -> dict[str, float]:
    """The thresholds that take the place of a paper's, from the calibration rows."""
    call_ids = evidence.table.call_ids[rows].tolist()
    return operating_points(calibrator.probability(scores[rows]), call_ids, evidence.evaluated)
