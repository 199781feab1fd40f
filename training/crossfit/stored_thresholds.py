"""Thresholds that a head's checkpoint stores, on calibrated probabilities, each with what it means.

`flagging_of` is the one place where a training sets the threshold `flag`; `checkpoints.flagging` reads the others off
what is stored, in training as when a checkpoint is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import FlagOptions, FlagPoint, OperatingPoint, Promise
from metaprobe.checkpoints.flagging import FLAG, meant, threshold_of
from metaprobe.eval.table import AnswerTable
from metaprobe.records.errors import RecordError
from metaprobe.training.common.calibrate import PARITY, fit_platt
from metaprobe.training.common.calibrators import Calibrator, sigmoid
from metaprobe.training.common.guarantees import accept_thresholds, flag_thresholds
from metaprobe.training.common.operating_points import match_share, operating_points
from metaprobe.training.common.roles import Rows, group_folds
from metaprobe.training.crossfit.flagging_measured import Floats, flag_points, measure_shares
from metaprobe.training.crossfit.methods import Evidence, Scores

FEWEST_GROUPS = 20
"""Groups of labelled answers from which on a threshold is stored. Of 20 the share of wrong answers is known to within
22 points (95 %, at worst): enough to say that a third or two thirds are to be flagged, and no more."""
FEWEST_OF_A_KIND = 3
"""Wrong answers, and right ones, without which shares of them are not measured."""
CATCHES = tuple(round(0.01 * step, 2) for step in range(1, 100))
"""Shares of the wrong answers for which a threshold is stored, where there are enough of them."""
RISKS = tuple(round(0.01 * step, 2) for step in range(1, 51))
"""Shares of wrong answers among those not flagged for which a threshold is stored, where one can be shown to hold."""
MISS_RATE = 0.1
"""Share of critical answers that the threshold `critical` may let pass."""
ERROR, CONFIDENCE = 0.1, 0.95
"""Of the stored accept threshold: more than this share of the accepted is wrong in at most 1 - CONFIDENCE of all
trainings. Among those trainings that store one the share is another: in simulations (AUROC 0.56 to 0.92, 30 % to 87 %
right, 60 to 500 groups) up to 0.17 where some threshold can keep the bar, and all of them where none can, which happens
in up to 2 % of such trainings, at 0.9 in up to 6 %. No procedure avoids that: it is chance that gets stored there."""
FALSE_ALARMS = 0.05
"""Share of answers without a critical failure that `critical_sure` may call one."""
PROMISES = {
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
OF_ALL_RUNS = (
    " It is one threshold for the answers of all these runs together: of a run that is right less often more are "
    "flagged, for each score holds its run's base rate. Of a run that is right more often fewer of the wrong ones are "
    "caught; a checkpoint of this run alone does not have this."
)


@dataclass(frozen=True, slots=True, eq=False)
class StoredFlags:
    """What a checkpoint stores of flagging by its score."""

    thresholds: Mapping[str, float] = field(default_factory=dict)
    """`flag` and `accept`, where they are stored."""
    flagging: tuple[FlagPoint, ...] = ()
    promises: tuple[Promise, ...] = ()
    operating: OperatingPoint | None = None
    lacking: str = ""
    """A sentence's end: which thresholds are not stored, why, and what they take; empty where none is lacking."""

    def said(self, *, runs: int = 1) -> str:
        """Returns sentences for a card: what the stored thresholds mean, for answers of so many runs."""
        flag = ""
        if self.operating is not None:
            flag = f" The threshold `{FLAG}` flags {meant(self.operating)}."
            flag += STORED_FROM if self.operating.option == "expected" else ""
            flag += OF_ALL_RUNS if runs > 1 else ""
        return flag + "".join(PROMISES[name] for name in self.thresholds if name in PROMISES)


STORED_FROM = (
    f" It is stored from {FEWEST_GROUPS} groups of labelled answers on, with {FEWEST_OF_A_KIND} wrong and "
    f"{FEWEST_OF_A_KIND} right ones: the share of wrong answers is then known to within 22 points, and the intervals "
    "say how well what is flagged is known here."
)


@dataclass(frozen=True, slots=True, eq=False)
class ScoredAnswers:
    """The labelled answers by which thresholds are set and measured."""

    table: AnswerTable
    rows: Rows
    """Calibration rows among the n."""
    scores: Scores
    """(n,): raw scores that no label of the calibration rows has ordered."""
    calibrator: Calibrator
    """From raw scores to the probabilities of the exported model."""
    exported: Floats
    """Probabilities of the exported model on the calibration rows."""
    held_out: Floats
    """(n,): probabilities of the folds."""
    ranking: Floats
    """(n,): probabilities that order held-out answers, where these are others than `held_out`."""

    @property
    def expected_wrong(self) -> float:
        """The share of the answers that is expected to be wrong, by the probabilities of the folds."""
        return float((1 - self.held_out).mean())


def flagging_of(answers: ScoredAnswers, asked: FlagOptions, *, seed: int = 0) -> StoredFlags:
    """Returns the thresholds, the curve and the promises that these labels carry, and what the threshold `flag` does.

    Without an option `flag` is the score below which as many answers lie as are expected to be wrong. Raises
    `RecordError` where an option is given that so few labels do not carry, and `ContractMismatch` where no threshold
    keeps what it asks for.
    """
    table, rows = answers.table, answers.rows
    few = too_few(table.y, table.groups, calibrating=len(rows))
    if few and asked.flags.keys() - {"flag_below"}:
        name = next(iter(asked.flags))
        raise RecordError(f"{name}: {few}: label more, or leave {name} out")
    if few:
        stored = StoredFlags(lacking=f"; no threshold `flag`: {few}")
    else:
        points = flag_points(table, answers.ranking, answers.exported, seed=seed)
        promises = promises_of(answers.scores, table, rows, answers.calibrator, seed=seed)
        sure = next((one.threshold for one in promises if (one.option, one.value) == ("risk", ERROR)), None)
        accept = {} if sure is None else {"accept": sure}
        stored = StoredFlags(accept, points, promises, lacking=_lacking(promises, table.y[rows], accept))
    wrong = answers.expected_wrong
    flag = threshold_of(stored, asked)
    if not asked.flags and not few:
        flag = match_share(answers.exported, 1 - wrong)
    return with_flag(stored, flag, asked, answers, wrong, seed=seed)


def with_flag(
    stored: StoredFlags,
    threshold: float | None,
    asked: FlagOptions,
    answers: ScoredAnswers,
    expected_wrong: float,
    *,
    seed: int = 0,
) -> StoredFlags:
    """Returns what is stored with this threshold `flag`, and with what the threshold does on the held-out answers.

    `expected_wrong`: the share of the answers that is expected to be wrong, to which a threshold without an option was
    set.
    """
    if threshold is None:
        return stored
    option, value = next(iter(asked.flags.items()), ("expected", expected_wrong))
    shares = measure_shares(answers.table, answers.held_out, threshold, seed=seed)
    operating = None if shares is None else OperatingPoint(option, float(value), *shares)  # type: ignore[arg-type]
    thresholds = {FLAG: threshold, **stored.thresholds}
    return StoredFlags(thresholds, stored.flagging, stored.promises, operating, stored.lacking)


def too_few(y: NDArray[np.int64], groups: NDArray[np.str_], *, calibrating: int) -> str:
    """Returns why so few labelled answers carry no threshold, as a clause; empty where they suffice.

    `calibrating`: how many of them the threshold is set on.
    """
    different, right = len(np.unique(groups)), int(y.sum())
    if different >= FEWEST_GROUPS and min(right, len(y) - right) >= FEWEST_OF_A_KIND:
        few = f"{calibrating} of {len(y)} labelled answers are left for calibration; a threshold takes {FEWEST_GROUPS}"
        return few if calibrating < FEWEST_GROUPS else ""
    return (
        f"the {len(y)} labelled answers are of {different} groups, {right} right and {len(y) - right} wrong; a "
        f"threshold takes {FEWEST_GROUPS} groups, with {FEWEST_OF_A_KIND} answers of either kind"
    )


def _lacking(promises: tuple[Promise, ...], y: NDArray[np.int64], accept: Mapping[str, float]) -> str:
    said = ""
    most = max((one.value for one in promises if one.option == "catch"), default=0.0)
    if most < 0.9:
        wrong = int((1 - y).sum())
        said += f"; the {wrong} wrong ones carry `catch` up to {most:g}, and 0.9 takes 9 of different groups"
    if not accept:
        said += "; no threshold `accept`: so many labels do not carry its promise, or no score is sure enough"
    return said


def promises_of(
    scores: Scores, table: AnswerTable, rows: Rows, calibrator: Calibrator, *, seed: int = 0
) -> tuple[Promise, ...]:
    """Thresholds on the calibrated probability that keep a promise, for `CATCHES` and `RISKS`; others are left out.

    All come from calibration rows, one a group. Those of `catch` do not depend on the map from scores to probabilities,
    as long as it does not change direction. Those of `risk` do: their grids must be fixed before the rows are seen, so
    that one half of the groups fits a calibrator, in whose probabilities the other half is tested.
    """
    groups, found = table.groups, []
    misses = [round(1 - share, 2) for share in CATCHES]
    raw_thresholds = _raw_thresholds(scores, table.y, groups, rows, calibrator, misses, seed)
    for share, raw in zip(CATCHES, raw_thresholds, strict=True):
        if raw is not None:
            # A calibrator may be flat there: all that share the probability are flagged.
            found.append(Promise("catch", share, min(_at(calibrator, raw) + PARITY, 1.0)))
    try:
        (fits, tests), *_ = group_folds(rows, groups.tolist(), table.y, 2, seed)
        platt = fit_platt(scores[fits], table.y[fits])
    except RecordError:
        return tuple(found)  # too few groups for two halves
    if not platt.slope > 0:
        return tuple(found)
    p, y, spread = platt.probability(scores[tests]), table.y[tests], _spread(scores)
    accepts = accept_thresholds(p, y, errors=RISKS, confidence=CONFIDENCE, groups=groups[tests], seed=seed)
    for risk, accept in zip(RISKS, accepts, strict=True):
        if np.isfinite(accept):
            raw = (_log_odds(accept) - platt.intercept) / platt.slope
            here = _at(calibrator, raw)
            # Where it is flat, answers just below the threshold share its probability, and none of them is accepted.
            sure = here if here > _at(calibrator, raw - 1e-3 * spread) else here + PARITY
            found.append(Promise("risk", risk, sure))
    return tuple(found)


def critical_thresholds(
    scores: Scores, table: AnswerTable, rows: Rows, calibrator: Calibrator, *, seed: int = 0
) -> dict[str, float]:
    """Thresholds on P(critical), of `PROMISES`; those that cannot be kept are left out. Alarm from the threshold on.

    From the calibration rows, one a group. `scores` and `y` are of the answer being sound, that is not critical.
    `critical` catches 90 % of the critical ones; for `critical_sure` the classes change places: of the sound answers,
    few may lie on the alarm's side.
    """
    found = {}
    [caught] = _raw_thresholds(scores, table.y, table.groups, rows, calibrator, [MISS_RATE], seed)
    if caught is not None:
        # Answers to which a flat calibrator gives the same probability are all caught.
        found["critical"] = max(1 - _at(calibrator, caught) - PARITY, 0.0)
    [spared] = _raw_thresholds(scores, 1 - table.y, table.groups, rows, calibrator, [FALSE_ALARMS], seed, falling=True)
    if spared is not None:
        # And here none of them is.
        found["critical_sure"] = min(1 - _at(calibrator, spared) + PARITY, 1.0)
    return found


def _raw_thresholds(
    scores: Scores,
    y: NDArray[np.int64],
    groups: NDArray[np.str_],
    rows: Rows,
    calibrator: Calibrator,
    rates: list[float],
    seed: int,
    *,
    falling: bool = False,
) -> list[float | None]:
    """The raw scores on whose lower side, in probability, lie all but each of these shares of the answers with `y` 0.

    With `falling`, on whose upper side. None where the rows are too few for a rate.
    """
    centre, spread = float(scores.mean()), _spread(scores)
    # A calibrator may fall, where scores turned out to go the wrong way round.
    rises = _at(calibrator, centre + spread) >= _at(calibrator, centre - spread)
    sign = -1.0 if rises == falling else 1.0
    order = sigmoid(sign * (scores[rows] - centre) / spread)  # any fixed rising map into [0, 1]
    return [
        sign * _log_odds(max(found, 1e-9)) * spread + centre if found < 1 else None
        for found in flag_thresholds(order, y[rows], miss_rates=rates, groups=groups[rows], seed=seed)
    ]


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
