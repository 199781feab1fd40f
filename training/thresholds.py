"""Thresholds on probabilities, with a guarantee that needs no assumption but exchangeable answers.

Answers of one group (a question, a template) are not exchangeable one by one. Given `groups`, one answer a group is
kept, drawn by `seed`; the guarantee is then for an answer drawn from a new group.

The probabilities must come from a model and a calibrator that were fitted on other rows. The threshold of
`flag_thresholds` moves with any strictly increasing map, so there Platt's map may be fitted on the same rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import FlagOptions, FlagPoint, Metric, OperatingPoint, Promise
from metaprobe.checkpoints.flagging import FLAG, MIN_THRESHOLD_GROUPS, USUAL_FLAGS, promise_refused, threshold_of
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, statistic_interval
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.routing.policy import GOOD
from metaprobe.training.calibrators import PARITY, Calibrator, fit_platt, sigmoid
from metaprobe.training.export import (
    CONFIDENCE,
    ERROR,
    EVALUATED_POINT,
    FALSE_ALARMS,
    MIN_ANSWERS_PER_LABEL,
    MISS_RATE,
    StoredFlags,
)
from metaprobe.training.folds import Rows, group_folds

Floats = NDArray[np.float64]
Groups = Sequence[str] | NDArray[np.str_] | None
THRESHOLD_STEP = 0.01
"""Distance between the thresholds that `accept_thresholds` tries."""


def flag_thresholds(
    probability: NDArray[np.float64],
    y: NDArray[np.int64],
    *,
    miss_rates: Sequence[float],
    groups: Groups = None,
    seed: int = 0,
) -> list[float]:
    """Returns for each rate the probability below which answers are flagged.

    The expected share of the wrong answers that are not flagged is at most the rate.

    Conformal risk control (Angelopoulos et al. 2022, arXiv:2208.02814, Eq. 4) for the loss 1{wrong and not flagged},
    which falls as the threshold rises: the smallest threshold with (n * risk + 1) / (n + 1) <= rate, over the n wrong
    answers of the calibration rows. With `groups`, one wrong answer of each group that has any is drawn once for all
    rates. A threshold is inf (flag everything) where n is too small for the rate. Raises `RecordError` for what is no
    probability or no label.
    """
    p = _check_inputs(probability, y, {"miss_rate": miss_rates})
    wrong = np.sort(p[_one_a_group(p, y, groups, seed, among=y == 0)])
    missed = np.arange(len(wrong), -1, -1)  # answers left unflagged by a threshold just above 0, 1, ... of them
    thresholds = []
    for rate in miss_rates:
        allowed = (missed + 1) / (len(wrong) + 1) <= rate
        flagged = int(np.argmax(allowed))
        just_above = float(wrong[flagged - 1]) + PARITY if flagged else 0.0
        thresholds.append(just_above if allowed.any() else float("inf"))
    return thresholds


def accept_thresholds(
    probability: NDArray[np.float64],
    y: NDArray[np.int64],
    *,
    errors: Sequence[float],
    confidence: float = 0.9,
    groups: Groups = None,
    seed: int = 0,
) -> list[float]:
    """Returns for each error the probability from which on answers are accepted.

    With `confidence`, for each error by itself, at most that share of the accepted answers is wrong.

    Learn then Test (Angelopoulos et al. 2021, arXiv:2110.01052). The share of wrong ones among the accepted need not
    fall as the threshold rises, so each threshold of a grid is tested, strictest first, until one fails (fixed sequence
    testing, their section 3). The p-value of a threshold is the exact binomial tail: P(at most so many wrong ones among
    so many accepted, were the share `error`). The threshold is the last that passed, or inf (accept nothing) where the
    first fails: in any case below log(1 - confidence) / log(1 - error) accepted answers, 22 for 0.1 and 0.9.

    The grid is fixed before the rows are seen. The paper leaves it open. Here it starts at 1 - error, the strictest
    threshold that a calibrated model needs (whatever lies above is right that often), and goes down by
    `THRESHOLD_STEP`. Grids that start higher fail for want of answers there; choosing the start by how many the rows
    have would void the proof where errors do not fall with the probability. Raises `RecordError` for what is no
    probability or no label.
    """
    p = _check_inputs(probability, y, {"confidence": [confidence], "error": errors})
    drawn_rows = _one_a_group(p, y, groups, seed, among=np.ones(len(y), dtype=np.bool_))
    order = drawn_rows[np.argsort(-p[drawn_rows], kind="stable")]
    falling, wrong_before = -p[order].astype(np.float64), np.concatenate([[0], np.cumsum(y[order] == 0)])
    passing = []
    for error in errors:
        # Two roundings of a graph below the hundredths, where plateaus of an isotonic map like to lie: a tie stays
        # together on the side on which it was tested.
        thresholds = np.arange(1 - error, THRESHOLD_STEP / 2, -THRESHOLD_STEP) - 2 * PARITY
        accepted = np.searchsorted(falling, -thresholds, side="right")
        tail = require("scipy.stats", "fit").binom.cdf(wrong_before[accepted], accepted, error)
        passed = tail <= 1 - confidence  # with none accepted the tail is 1: not passed
        last = len(passed) if passed.all() else int(np.argmin(passed))
        passing.append(float(thresholds[last - 1]) if last else float("inf"))
    return passing


def _check_inputs(
    probability: NDArray[np.float64], y: NDArray[np.int64], rates: Mapping[str, Sequence[float]]
) -> NDArray[np.float32]:
    """Returns the probabilities in float32, as the exported graph answers. `rates`: numbers that must lie between 0 and
    1."""
    for name, rate in ((name, rate) for name, rates_of_name in rates.items() for rate in rates_of_name):
        if not 0 < rate < 1:
            raise RecordError(f"{name} must lie between 0 and 1, got {rate:g}")
    if probability.shape != y.shape or probability.ndim != 1:
        raise RecordError(f"a threshold needs one probability a label, got shapes {probability.shape} and {y.shape}")
    if outside := int((~((probability >= 0) & (probability <= 1))).sum()):
        raise RecordError(
            f"a threshold needs probabilities in [0, 1], got {outside} of {len(y)} that are NaN or outside"
        )
    if not np.isin(y, (0, 1)).all():
        raise RecordError(f"a threshold needs labels 0 and 1, got {sorted({*y.tolist()})[:5]}")
    return probability.astype(np.float32)


def _one_a_group(
    probability: NDArray[np.float32], y: NDArray[np.int64], groups: Groups, seed: int, *, among: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Returns indices of the eligible rows; if `groups` are given, of one eligible row of each group,
    drawn at random.
    """
    rows = np.flatnonzero(among)
    if groups is None:
        return rows
    if len(groups) != len(y):
        raise RecordError(f"a threshold needs one group a label, got {len(groups)} and {len(y)}")
    names = np.asarray(groups)
    rows = rows[np.lexsort((y[rows], probability[rows], names[rows]))]  # so that the order of the rows plays no part
    return one_a_group(rows, names, seed=seed)


# Where a checkpoint's number is reached as often as the stated one reached the paper's threshold.
#
# Monitor-Generate-Verify stops at a stated evaluation of 0.85, which models give to most of their answers. A calibrated
# probability may never get there. The checkpoint's threshold `iterate` is therefore the value of its number that is
# reached by the same share of the training answers as reached 0.85 by their stated evaluation.
#
# MetaCogAgent's 0.5 gets none. What is stated there is too high as well, so that agents hardly ever ask, and a
# threshold that is reached as often hands that fault on (docs/systems.md, "Which threshold a replaced number meets").

MIN_SHARE_ANSWERS = 50
"""Fewest evaluated answers for measuring a share."""
GRAPH_ROUNDING = 1e-5
"""How much lower than the fitted model's an exported graph's probability may be."""


def operating_points(probability: Floats, call_ids: Iterable[str], evaluated: Mapping[str, float]) -> dict[str, float]:
    """Returns the threshold `iterate` for probabilities (n,) of calls, as a dict (`EVALUATED_POINT`: threshold).

    No fit except a calibrator's may have seen the calls. `evaluated`: from `evaluations_of`. The dict is empty if fewer
    than `MIN_SHARE_ANSWERS` calls were evaluated, or if all or none of these reach the paper's threshold.
    """
    evaluations = np.array([evaluated.get(call_id, np.nan) for call_id in call_ids])
    is_finite = np.isfinite(evaluations)
    if is_finite.sum() < MIN_SHARE_ANSWERS:
        return {}
    threshold = match_share(probability[is_finite], float((evaluations[is_finite] >= GOOD).mean()))
    return {} if threshold is None else {EVALUATED_POINT: threshold}


def match_share(probability: NDArray[np.float64], share: float) -> float | None:
    """Returns the threshold that about this share of the probabilities reaches; None for a share of 0 or 1.

    It is one of the probabilities: the one whose share is nearest, and of two equally near ones the higher.
    """
    if not 0 < share < 1:
        return None
    values = np.unique(probability)[::-1]
    reached = 1 - np.searchsorted(np.sort(probability), values) / len(probability)
    return max(float(values[np.argmin(np.abs(reached - share))]) - GRAPH_ROUNDING, 0.0)


# Shares of wrong and right answers that flagging the lowest scores catches and costs, on answers that no fit has seen.

RATES = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Shares of the answers that are flagged at the stored thresholds: 5 % to 95 %."""


def share_below(seen: Floats, scores: Floats) -> Floats:
    """Returns the place of each of the scores (n,) among the scores `seen` (m,), from 0 to 1: the share that is lower.

    Scores between the same two of `seen` are spread over that gap in their own order, so that a share of them can be
    flagged; equal scores have the same place.
    """
    ordered, ordered_scores, m = np.sort(seen), np.sort(scores), len(seen)
    below, upto = (np.searchsorted(ordered, scores, side) for side in ("left", "right"))
    lower, upper = (np.searchsorted(ordered_scores, scores, side) for side in ("left", "right"))
    # The scores of one gap lie from `first` to before `last` among the sorted ones.
    first = np.where(below > 0, np.searchsorted(ordered_scores, ordered[np.maximum(below - 1, 0)], "right"), 0)
    last = np.where(
        below < m, np.searchsorted(ordered_scores, ordered[np.minimum(below, m - 1)], "left"), len(ordered_scores)
    )
    within = np.where(below == upto, ((lower + upper) / 2 - first) / np.maximum(last - first, 1), 0.5)
    shares: Floats = ((below + upto) / 2 + within) / (m + 1)
    return shares


def lowest(places: Floats, share: float) -> NDArray[np.bool_]:
    """Returns which answers (n,) have the lowest places: about this share of them, for equal ones stay together.

    A place is counted within a fold. If one fold holds most of the wrong answers, more of its answers have low places,
    and `places < share` would select more than the share.
    """
    cut = match_share(places, 1 - share)
    result: NDArray[np.bool_] = np.full(len(places), share >= 1) if cut is None else places < cut
    return result


def flag_points(table: AnswerTable, places: Floats, exported: Floats, *, seed: int = 0) -> tuple[FlagPoint, ...]:
    """Returns, for each of `RATES`, the exported model's threshold, and the shares of wrong and of right answers that
    it flags.

    `places` (n,): where a held-out answer lies among those that its fold was calibrated on (`share_below`); those of
    the lowest places are flagged. `exported`: probabilities of the exported model, among which the thresholds lie. No
    label plays a part in a threshold. `table` holds right and wrong answers.
    """
    points, weights = [], cluster_weights(table.groups.tolist(), seed=seed)
    for rate in RATES:
        threshold = match_share(exported, 1 - rate)
        if threshold is not None and (shares := measure_shares(table, lowest(places, rate), weights)):
            points.append(FlagPoint(rate, threshold, *shares[1:]))
    return tuple(points)


def measure_shares(
    table: AnswerTable, flagged: NDArray[np.bool_], weights: NDArray[np.int32]
) -> tuple[Metric, Metric, Metric] | None:
    """Returns which shares of all, of the wrong and of the right answers are flagged (n,); None where there are no
    wrong or no right answers.

    Intervals are over groups (`weights`: of `cluster_weights`), at least as wide as Wilson's for as many independent
    answers as there are groups. A bootstrap alone would say "100 % to 100 %" of three wrong answers, all flagged.
    """
    wrong = table.y == 0
    if wrong.all() or not wrong.any():
        return None
    shares = []
    for among in (np.ones(len(wrong), dtype=np.bool_), wrong, ~wrong):
        share = statistic_interval(share_of(flagged & among, among), weights)
        widest = Interval.of_share(share.estimate, len(np.unique(table.groups[among])))
        low, high = min(share.low, widest.low), max(share.high, widest.high)
        shares.append(Metric(share.estimate, low, high, int(among.sum())))
    of_all, caught, cost = shares
    return of_all, caught, cost


def share_of(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> Callable[[NDArray[np.integer]], Floats]:
    """Returns a function of weights (b, n): the share of the weight of `whole` (n,) that lies on `part`; NaN if `whole`
    has no weight.
    """
    inside, every = part.astype(np.float64), whole.astype(np.float64)

    def share(weight: NDArray[np.integer]) -> Floats:
        total = weight @ every
        return np.asarray(np.divide(weight @ inside, total, out=np.full(len(total), np.nan), where=total > 0))

    return share


# Thresholds that a head's checkpoint stores, on calibrated probabilities, each with what it means.
#
# `flagging_of` is the one place where a training sets the threshold `flag`; `checkpoints.flagging` reads the others off
# what is stored, in training as when a checkpoint is loaded.

CATCHES = tuple(round(0.01 * step, 2) for step in range(1, 100))
"""Shares of wrong answers caught for which a threshold is stored, if there are enough wrong answers."""
RISKS = tuple(round(0.01 * step, 2) for step in range(1, 51))
"""Shares of wrong answers among those not flagged for which a threshold is stored, if one can be shown to hold."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoredAnswers:
    """The labelled answers by which thresholds are set and measured."""

    table: AnswerTable
    rows: Rows
    """Indices of the calibration rows among the n rows."""
    scores: Floats
    """Raw scores (n,) whose order was not learned from labels of the calibration rows."""
    calibrator: Calibrator
    """Maps raw scores to the probabilities of the exported model."""
    exported: Floats
    """Probabilities of the exported model on the answers by which it is decided how many lie below a threshold."""
    held_out: Floats
    """Probability of each answer (n,) from the folds."""
    places: Floats
    """(n,): share of the answers that a fold was calibrated on which its model scores lower than this held-out one.

    The models of two folds may give all answers 0.58 and 0.60. A threshold of the exported model, at 0.59, would flag
    all answers of one fold and none of the other: what is compared is therefore the share that it flags."""

    @classmethod
    def of(
        cls,
        table: AnswerTable,
        rows: Rows,
        scores: Floats,
        calibrator: Calibrator,
        held_out: Floats,
        places: Floats,
        *,
        few_weights: bool = False,
    ) -> Self:
        """Returns the answers of a model whose calibrator was fitted on these rows, and of its folds.

        `few_weights`: whether the model has so few weights that scores of its training answers are spread like those of
        new answers. How many lie below a threshold is then counted on all answers: of 300, and a threshold for 40 %,
        the share of new ones that is flagged is then off by 3 points, and by 8 where the 60 calibration rows are
        counted (root mean square of 20 draws of noise).
        """
        exported = calibrator.probability(scores if few_weights else scores[rows])
        return cls(table, rows, scores, calibrator, exported, held_out, places)

    def flagged(self, threshold: float) -> NDArray[np.bool_]:
        """Returns which held-out answers are flagged (n,): as large a share as this threshold of the exported model
        flags."""
        return lowest(self.places, float((self.exported < threshold).mean()))

    @property
    def expected_wrong(self) -> float:
        """The share of the answers that is expected to be wrong, by the probabilities of the folds."""
        return float((1 - self.held_out).mean())


def flagging_of(answers: ScoredAnswers, asked: FlagOptions, *, seed: int = 0) -> StoredFlags:
    """Returns the thresholds, the curve and the promises for which there are enough labels, and the effect of the
    threshold `flag`.

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
        points = flag_points(table, answers.places, answers.exported, seed=seed)
        promises = promises_of(answers, seed=seed)
        sure = next(
            (promise.threshold for promise in promises if (promise.option, promise.value) == ("risk", ERROR)), None
        )
        accept = {} if sure is None else {"accept": sure}
        lacking = ""
        if (most := max((promise.value for promise in promises if promise.option == "catch"), default=0.0)) < 0.9:
            count = int((1 - table.y[rows]).sum())
            lacking += f"; the {count} wrong ones carry `catch` up to {most:g}, and 0.9 takes 9 of different groups"
        if not accept:
            lacking += "; no threshold `accept`: so many labels do not carry its promise, or no score is sure enough"
        stored = StoredFlags(accept, points, promises, lacking=lacking)
    wrong = answers.expected_wrong
    labels_text = f"{len(table.y)} labels ({int((1 - table.y).sum())} wrong) of {len(np.unique(table.groups))} groups"
    flag = threshold_of(stored, asked, labels=labels_text)
    if not asked.flags and not few:
        flag = match_share(answers.exported, 1 - wrong)
    return with_flag(stored, flag, asked, answers, wrong, seed=seed)


USUAL_RATE = 0.1
"""Share of the answers that is flagged if there are no labels: the least sure tenth."""


def flagging_without_labels(answers: ScoredAnswers, asked: FlagOptions, *, seed: int = 0) -> StoredFlags:
    """Returns the curve of flag rates of a score that was learned from agreement, and the threshold `flag` of a rate.

    How many answers are wrong is not known without labels, and no threshold can promise to catch them: a rate, by
    default `USUAL_RATE`, or a score of the caller's own says what is flagged. Raises `RecordError` for another option,
    and where too few answers were compared for the option.
    """
    table = answers.table
    if refused := promise_refused(asked):
        raise RecordError(refused)
    if few := too_few(table.y, table.groups, calibrating=len(answers.rows)):
        if asked.flags.keys() - {"flag_below"}:
            raise RecordError(f"{next(iter(asked.flags))}: {few}: ask more questions twice, or leave the option out")
        stored, usual = StoredFlags(lacking=f"; no threshold `flag`: {few}"), USUAL_FLAGS
    else:
        stored = StoredFlags(flagging=flag_points(table, answers.places, answers.exported, seed=seed))
        usual = FlagOptions(flag_rate=USUAL_RATE)
    options = asked if asked.flags else usual
    return with_flag(stored, threshold_of(stored, options), options, answers, answers.expected_wrong, seed=seed)


def with_flag(
    stored: StoredFlags,
    threshold: float | None,
    asked: FlagOptions,
    answers: ScoredAnswers,
    expected_wrong: float,
    *,
    seed: int = 0,
) -> StoredFlags:
    """Returns the stored flags with this threshold `flag`, and with its effect on the held-out answers.

    Args:
        stored: the flags without the threshold.
        threshold: the threshold; None for none.
        asked: the option that set it.
        answers: the labelled answers.
        expected_wrong: expected share of wrong answers, to which a threshold without an option was set.
        seed: seed of the bootstrap.
    """
    if threshold is None:
        return stored
    option, value = next(iter(asked.flags.items()), ("expected", expected_wrong))
    weights = cluster_weights(answers.table.groups.tolist(), seed=seed)
    shares = measure_shares(answers.table, answers.flagged(threshold), weights)
    operating = None if shares is None else OperatingPoint(option, float(value), *shares)  # type: ignore[arg-type]
    thresholds = {FLAG: threshold, **stored.thresholds}
    return StoredFlags(thresholds, stored.flagging, stored.promises, operating, stored.lacking)


def too_few(y: NDArray[np.int64], groups: NDArray[np.str_], *, calibrating: int) -> str:
    """Returns a clause that says why there are too few labelled answers for a threshold; empty if there are enough.

    `calibrating`: how many of them the threshold is set on.
    """
    different, right = len(np.unique(groups)), int(y.sum())
    if different >= MIN_THRESHOLD_GROUPS and min(right, len(y) - right) >= MIN_ANSWERS_PER_LABEL:
        few = (
            f"{calibrating} of {len(y)} labelled answers are left for calibration; a threshold takes "
            f"{MIN_THRESHOLD_GROUPS}"
        )
        return few if calibrating < MIN_THRESHOLD_GROUPS else ""
    return (
        f"the {len(y)} labelled answers are of {different} groups, {right} right and {len(y) - right} wrong; a "
        f"threshold takes {MIN_THRESHOLD_GROUPS} groups, with {MIN_ANSWERS_PER_LABEL} answers of either kind"
    )


def promises_of(answers: ScoredAnswers, *, seed: int = 0) -> tuple[Promise, ...]:
    """Thresholds on the calibrated probability that keep a promise, for `CATCHES` and `RISKS`; others are left out.

    All come from calibration rows, one a group. Promises of `catch` do not depend on the map from scores to
    probabilities, as long as it keeps the order of scores. Promises of `risk` do: their grids must be fixed before the
    rows are seen. So one half of the groups fits a calibrator, and the other half is tested on its probabilities.
    """
    table, rows, scores, calibrator = answers.table, answers.rows, answers.scores, answers.calibrator
    groups, promises = table.groups, list[Promise]()
    raw_thresholds = _raw_thresholds(answers, table.y, [round(1 - share, 2) for share in CATCHES], seed)
    for share, raw in zip(CATCHES, raw_thresholds, strict=True):
        if raw is not None:
            # A calibrator may be flat there: all that share the probability are flagged.
            promises.append(Promise("catch", share, min(_calibrated_number(calibrator, raw) + PARITY, 1.0)))
    try:
        (fits, tests), *_ = group_folds(rows, groups.tolist(), table.y, 2, seed)
        platt = fit_platt(scores[fits], table.y[fits])
    except RecordError:
        return tuple(promises)  # too few groups for two halves
    if not platt.slope > 0:
        return tuple(promises)
    p, y, spread = platt.probability(scores[tests]), table.y[tests], _deviation_or_one(scores)
    accepts = accept_thresholds(p, y, errors=RISKS, confidence=CONFIDENCE, groups=groups[tests], seed=seed)
    for risk, accept in zip(RISKS, accepts, strict=True):
        if np.isfinite(accept):
            raw = (_log_odds(accept) - platt.intercept) / platt.slope
            probability = _calibrated_number(calibrator, raw)
            # Where it is flat, answers just below the threshold share its probability, and none of them is accepted.
            sure = (
                probability
                if probability > _calibrated_number(calibrator, raw - 1e-3 * spread)
                else probability + PARITY
            )
            promises.append(Promise("risk", risk, sure))
    return tuple(promises)


def critical_thresholds(answers: ScoredAnswers, *, seed: int = 0) -> dict[str, float]:
    """Returns the thresholds on P(critical) that `PROMISE_SENTENCES` describes, except those that cannot be kept.

    An answer is flagged from the threshold on.

    They are set on the calibration rows, one of each group. Scores and `y` are of the answer being sound, that is not
    critical. `critical` catches 90 % of the critical answers. For `critical_sure` the classes change places: only a few
    of the sound answers may be flagged.
    """
    thresholds, y, calibrator = {}, answers.table.y, answers.calibrator
    [caught] = _raw_thresholds(answers, y, [MISS_RATE], seed)
    if caught is not None:
        # Answers to which a flat calibrator gives the same probability are all caught.
        thresholds["critical"] = max(1 - _calibrated_number(calibrator, caught) - PARITY, 0.0)
    [spared] = _raw_thresholds(answers, 1 - y, [FALSE_ALARMS], seed, falling=True)
    if spared is not None:
        # And here none of them is.
        thresholds["critical_sure"] = min(1 - _calibrated_number(calibrator, spared) + PARITY, 1.0)
    return thresholds


def _raw_thresholds(
    answers: ScoredAnswers, y: NDArray[np.int64], rates: Sequence[float], seed: int, *, falling: bool = False
) -> list[float | None]:
    """Returns a raw score for each rate: all but this share of the answers with `y` 0 are less probable than an answer
    with this score; with `falling`, more probable. None where the rows are too few for a rate.
    """
    scores, rows, calibrator = answers.scores, answers.rows, answers.calibrator
    centre, spread = float(scores.mean()), _deviation_or_one(scores)
    # A calibrator may fall, where scores turned out to go the wrong way round.
    rises = _calibrated_number(calibrator, centre + spread) >= _calibrated_number(calibrator, centre - spread)
    sign = -1.0 if rises == falling else 1.0
    order = sigmoid(sign * (scores[rows] - centre) / spread)  # any fixed rising map into [0, 1]
    return [
        sign * _log_odds(max(threshold, 1e-9)) * spread + centre if threshold < 1 else None
        for threshold in flag_thresholds(order, y[rows], miss_rates=rates, groups=answers.table.groups[rows], seed=seed)
    ]


def _calibrated_number(calibrator: Calibrator, raw: float) -> float:
    return float(calibrator.probability(np.array([raw]))[0])


def _deviation_or_one(scores: Floats) -> float:
    return float(scores.std()) or 1.0


def _log_odds(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


# When a stream may be ended: one conformal threshold for all looks together, and what it is at each of them.
#
# Looks are made comparable by how rare a score is among good answers; an answer's statistic is the largest of that over
# the looks it has. A threshold for each look by itself at level alpha would be crossed at *some* look far more often.


NO_LOOK = -np.inf
"""Statistic of an answer that ended before the first look. No threshold stops it."""


@dataclass(frozen=True, slots=True, eq=False)
class Surprise:
    """How rare so low a score is among good answers, in nats: -ln of the share of them that score no higher.

    Straight lines between the reference scores; below the lowest it goes on rising, a nat each standard deviation of
    theirs, so that scores worse than all of them still differ. Any map that never rises with the score keeps
    the promise, as long as it is fixed before the calibration answers are looked at.
    """

    scores: Floats
    """Reference scores (k,), strictly rising."""
    nats: Floats
    """Surprise in nats at each reference score (k,), strictly falling."""
    spread: float
    """Standard deviation of the reference scores; 1 if they do not vary."""

    @classmethod
    def fit(cls, good: Floats) -> "Surprise":
        """Fits on scores (m,) of good answers, held out from the trees that gave them and not used for calibration."""
        if not len(good) or not np.isfinite(good).all():
            raise RecordError(f"a look is compared by the finite scores of good answers, got {len(good)}: add runs")
        scores, counts = np.unique(good, return_counts=True)
        return cls(scores, -np.log(np.cumsum(counts) / (len(good) + 1)), float(np.std(good)) or 1.0)

    def of(self, scores: Floats) -> Floats:
        """Returns the surprise in nats, the same shape as the scores; NaN where a score is NaN."""
        beyond = np.maximum(self.scores[0] - scores, 0) / self.spread
        return np.asarray(np.interp(scores, self.scores, self.nats) + beyond, dtype=np.float64)

    def score_at(self, nats: float) -> float:
        """Returns the score below which the surprise exceeds `nats`; infinite if it does so for every score."""
        if nats < self.nats[-1]:
            return np.inf
        if nats > self.nats[0]:
            return float(self.scores[0] - (nats - self.nats[0]) * self.spread)
        return float(np.interp(-nats, -self.nats, self.scores))


def joint_statistic(looks: Sequence[Floats]) -> Floats:
    """Returns the largest surprise (n,) over an answer's looks. Each look's surprise is (n,), with NaN for answers that
    ended before it.
    """
    surprises = [np.where(np.isnan(surprise), NO_LOOK, surprise) for surprise in looks]
    return np.asarray(np.max(surprises, axis=0), dtype=np.float64)


def conformal_threshold(statistic: Floats, alpha: float) -> float:
    """Returns the value that a further, exchangeable answer exceeds with a probability of at most `alpha`, given n.

    The ceil((1 - alpha) (n + 1))-th smallest (Vovk et al. 2005; Angelopoulos and Bates 2021, arXiv:2107.07511,
    section 1.1). Raises `RecordError` where n is too small for the rate.
    """
    if not 0 < alpha < 1:
        raise RecordError(f"a false-alarm rate must lie between 0 and 1, got {alpha:g}")
    n = len(statistic)
    # 1e-9: 0.3 x 10 must count as 3
    allowed = int(np.floor(alpha * (n + 1) + 1e-9))
    if allowed < 1:
        raise RecordError(too_few_groups(alpha, n))
    return float(np.sort(statistic)[n - allowed])


def groups_needed(alpha: float) -> int:
    """Returns how many good calibration answers, one a group, a false-alarm rate needs."""
    return int(np.ceil(1 / alpha - 1e-9)) - 1


def too_few_groups(alpha: float, n: int) -> str:
    """Returns a message: why n groups are too few for the rate `alpha`, and how many groups would be enough."""
    return (
        f"a false-alarm rate of {alpha:g} needs good calibration answers in at least {groups_needed(alpha)} groups, "
        f"there are {n}: add runs, or ask for a rate of at least {1 / (n + 1):.2g}"
    )


def rate_at_most(alpha: float, n: int) -> float:
    """Returns the rate that false alarms of one gate, calibrated on n groups, stay below with a confidence of 90 %.

    `alpha` is its mean over calibration data; from one such data set to another it is beta distributed (Vovk 2012,
    arXiv:1209.2673; Angelopoulos and Bates 2021, section 3.2).
    """
    allowed = int(np.floor(alpha * (n + 1) + 1e-9))
    return float(require("scipy.stats", "fit").beta(allowed, n + 1 - allowed).ppf(0.9))


def one_a_group(rows: NDArray[np.int64], groups: NDArray[np.str_], *, seed: int) -> NDArray[np.int64]:
    """Returns one of these rows for each of their groups, drawn at random: one group's answers are not exchangeable."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    return shuffled[np.unique(groups[shuffled], return_index=True)[1]]


def score_thresholds(
    surprises: Mapping[int, Surprise], statistic: Floats, alphas: Sequence[float]
) -> dict[float, dict[int, float]]:
    """Maps alpha to look to the score below which an answer is stopped. `statistic` (n,) belongs to calibration
    answers.

    Values of alpha that need more than n answers are left out.
    """
    allowed = [alpha for alpha in alphas if len(statistic) >= groups_needed(alpha)]
    joint = {alpha: conformal_threshold(statistic, alpha) for alpha in allowed}
    return {
        alpha: {look: surprise.score_at(threshold) for look, surprise in surprises.items()}
        for alpha, threshold in joint.items()
    }
