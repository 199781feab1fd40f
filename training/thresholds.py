"""Thresholds on probabilities, with guarantees that assume only that answers are exchangeable.

Answers of one group (a question, a template) are not exchangeable. If `groups` are given, one answer of each group is
drawn by `seed`. The guarantee then holds for an answer drawn from a new group.

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

    This is conformal risk control (Angelopoulos et al. 2022, arXiv:2208.02814, Eq. 4) for the loss 1{wrong and not
    flagged}, which falls as the threshold rises. The threshold is the smallest with (n * risk + 1) / (n + 1) <= rate,
    over the n wrong answers of the calibration rows. It is inf (flag everything) if n is too small for the rate. Raises
    `RecordError` for values that are no probabilities or no labels.

    Args:
        probability: calibrated P(right) of each answer (n,).
        y: labels (n,) of 0 and 1.
        miss_rates: the rates, each between 0 and 1.
        groups: group of each answer. One wrong answer of each group is drawn, the same for all rates.
        seed: seed of the draw.
    """
    p = _check_inputs(probability, y, {"miss_rate": miss_rates})
    wrong = np.sort(p[_eligible_rows(p, y, groups, seed, eligible=y == 0)])
    unflagged_counts = np.arange(
        len(wrong), -1, -1
    )  # wrong answers left unflagged if the threshold is just above the lowest 0, 1, ... of them
    thresholds = []
    for rate in miss_rates:
        allowed = (unflagged_counts + 1) / (len(wrong) + 1) <= rate
        flagged_count = int(np.argmax(allowed))
        just_above = float(wrong[flagged_count - 1]) + PARITY if flagged_count else 0.0
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

    With `confidence`, for each error separately, at most the share `error` of the accepted answers is wrong.

    This is Learn then Test (Angelopoulos et al. 2021, arXiv:2110.01052). The share of wrong answers among the accepted
    need not fall as the threshold rises. So each threshold of a grid is tested, strictest first, until one fails (fixed
    sequence testing, their section 3). The p-value of a threshold is the exact binomial tail: the chance of at most
    this many wrong answers among the accepted if the share were `error`. The result is the last threshold that passed,
    or inf (accept nothing) if the first fails. The first always fails with fewer than log(1 - confidence) /
    log(1 - error) accepted answers, which is 22 for 0.1 and 0.9.

    The grid is fixed before the rows are seen; the paper leaves it open. Here it starts at 1 - error and goes down by
    `THRESHOLD_STEP`. A calibrated model needs no stricter threshold, because answers above it are right that often. A
    grid that starts higher fails for lack of answers. A start chosen by the rows would void the proof if errors do not
    fall with the probability. Raises `RecordError` for values that are no probabilities or no labels.

    Args:
        probability: calibrated P(right) of each answer (n,).
        y: labels (n,) of 0 and 1.
        errors: accepted shares of wrong answers, each between 0 and 1.
        confidence: share of calibration data sets for which the guarantee holds, at least.
        groups: group of each answer. One answer of each group is drawn.
        seed: seed of the draw.
    """
    p = _check_inputs(probability, y, {"confidence": [confidence], "error": errors})
    drawn_rows = _eligible_rows(p, y, groups, seed, eligible=np.ones(len(y), dtype=np.bool_))
    order = drawn_rows[np.argsort(-p[drawn_rows], kind="stable")]
    negated_p, wrong_before = -p[order].astype(np.float64), np.concatenate([[0], np.cumsum(y[order] == 0)])
    passing = []
    for error in errors:
        # Thresholds lie two roundings of a graph below the hundredths, because plateaus of an isotonic map often lie
        # at hundredths. Tied answers then stay on the side on which they were tested.
        thresholds = np.arange(1 - error, THRESHOLD_STEP / 2, -THRESHOLD_STEP) - 2 * PARITY
        accepted = np.searchsorted(negated_p, -thresholds, side="right")
        tail = require("scipy.stats", "fit").binom.cdf(wrong_before[accepted], accepted, error)
        passed = tail <= 1 - confidence  # with none accepted the tail is 1: not passed
        passed_count = len(passed) if passed.all() else int(np.argmin(passed))
        passing.append(float(thresholds[passed_count - 1]) if passed_count else float("inf"))
    return passing


def _check_inputs(
    probability: NDArray[np.float64], y: NDArray[np.int64], rates: Mapping[str, Sequence[float]]
) -> NDArray[np.float32]:
    """Returns the probabilities in float32, as the exported graph gives them. Raises `RecordError` for bad inputs.

    Args:
        probability: numbers that must lie in [0, 1], (n,).
        y: labels that must be 0 or 1, (n,).
        rates: maps a name to numbers that must lie between 0 and 1.
    """
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


def _eligible_rows(
    probability: NDArray[np.float32], y: NDArray[np.int64], groups: Groups, seed: int, *, eligible: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Returns the indices of the eligible rows; if `groups` are given, of one eligible row of each group, drawn at
    random.

    Args:
        probability: probabilities (n,).
        y: labels (n,).
        groups: group of each row; None for no groups.
        seed: seed of the draw.
        eligible: which rows are eligible, (n,).
    """
    rows = np.flatnonzero(eligible)
    if groups is None:
        return rows
    if len(groups) != len(y):
        raise RecordError(f"a threshold needs one group a label, got {len(groups)} and {len(y)}")
    names = np.asarray(groups)
    rows = rows[
        np.lexsort((y[rows], probability[rows], names[rows]))
    ]  # the result must not depend on the order of rows
    return one_a_group(rows, names, seed=seed)


# The threshold that a checkpoint's number reaches as often as the stated evaluation reached the paper's threshold.
#
# Monitor-Generate-Verify stops at a stated evaluation of 0.85, which models give to most of their answers. A calibrated
# probability may never get there. So the checkpoint's threshold `iterate` is a value that the same share of the
# training answers reaches with its number as reached 0.85 by their stated evaluation.
#
# MetaCogAgent's 0.5 has no such threshold. Confidence stated there is too high as well, so agents hardly ever ask. A
# threshold reached as often would keep this fault (docs/systems.md, "Which threshold a replaced number meets").

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

    It is the probability whose share is nearest, and of two equally near ones the higher.
    """
    if not 0 < share < 1:
        return None
    values = np.unique(probability)[::-1]
    reached = 1 - np.searchsorted(np.sort(probability), values) / len(probability)
    return max(float(values[np.argmin(np.abs(reached - share))]) - GRAPH_ROUNDING, 0.0)


# Shares of wrong answers caught and of right answers flagged if the lowest scores are flagged, on held-out answers.

RATES = tuple(round(0.05 * step, 2) for step in range(1, 20))
"""Shares of the answers that are flagged at the stored thresholds: 5 % to 95 %."""


def share_below(seen: Floats, scores: Floats) -> Floats:
    """Returns the rank share of each score (n,): the share of the scores `seen` (m,) that is lower, in [0, 1].

    Scores between two neighbours of `seen` are spread over that gap in their own order, so that a share of them can be
    flagged. Equal scores have the same rank share.
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


def flag_lowest(rank_shares: Floats, share: float) -> NDArray[np.bool_]:
    """Returns which answers (n,) have the lowest rank shares: about `share` of the answers.

    Equal rank shares stay together. A rank share is counted within a fold. If one fold holds most of the wrong answers,
    more of its answers have low rank shares, and `rank_shares < share` would select more than the share.
    """
    cut = match_share(rank_shares, 1 - share)
    result: NDArray[np.bool_] = np.full(len(rank_shares), share >= 1) if cut is None else rank_shares < cut
    return result


def flag_points(table: AnswerTable, rank_shares: Floats, exported: Floats, *, seed: int = 0) -> tuple[FlagPoint, ...]:
    """Returns for each of `RATES` the exported model's threshold, and the shares of wrong and right answers it flags.

    No label influences a threshold.

    Args:
        table: the n answers, right and wrong ones.
        rank_shares: rank share (n,) of each held-out answer among the calibration answers of its fold
            (`share_below`). The answers with the lowest rank shares are flagged.
        exported: probabilities of the exported model, from which the thresholds are taken.
        seed: seed of the bootstrap.
    """
    points, weights = [], cluster_weights(table.groups.tolist(), seed=seed)
    for rate in RATES:
        threshold = match_share(exported, 1 - rate)
        if threshold is not None and (shares := measure_shares(table, flag_lowest(rank_shares, rate), weights)):
            points.append(FlagPoint(rate, threshold, *shares[1:]))
    return tuple(points)


def measure_shares(
    table: AnswerTable, flagged: NDArray[np.bool_], weights: NDArray[np.int32]
) -> tuple[Metric, Metric, Metric] | None:
    """Returns the flagged shares of all answers, of the wrong and of the right ones; None without wrong or right ones.

    Intervals are over groups. They are at least as wide as Wilson's, with groups counted as answers. A bootstrap alone
    would say "100 % to 100 %" of three wrong answers, all flagged.

    Args:
        table: the n answers.
        flagged: which answers are flagged, (n,).
        weights: the resamples, from `cluster_weights`.
    """
    wrong = table.y == 0
    if wrong.all() or not wrong.any():
        return None
    shares = []
    for eligible in (np.ones(len(wrong), dtype=np.bool_), wrong, ~wrong):
        share = statistic_interval(share_of(flagged & eligible, eligible), weights)
        wilson = Interval.of_share(share.estimate, len(np.unique(table.groups[eligible])))
        low, high = min(share.low, wilson.low), max(share.high, wilson.high)
        shares.append(Metric(share.estimate, low, high, int(eligible.sum())))
    of_all, caught, cost = shares
    return of_all, caught, cost


def share_of(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> Callable[[NDArray[np.integer]], Floats]:
    """Returns a function of weights (b, n): the weight of `part` (n,) divided by that of `whole` (n,); NaN for no
    weight.
    """
    part_mask, whole_mask = part.astype(np.float64), whole.astype(np.float64)

    def share(weight: NDArray[np.integer]) -> Floats:
        total = weight @ whole_mask
        return np.asarray(np.divide(weight @ part_mask, total, out=np.full(len(total), np.nan), where=total > 0))

    return share


# Thresholds on calibrated probabilities that a head's checkpoint stores, each with its meaning.
#
# A training sets the threshold `flag` only in `flagging_of`. `checkpoints.flagging` finds other thresholds in the
# stored ones, during training and when a checkpoint is loaded.

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
    """Probabilities of the exported model. The share of them below a threshold is the share that it flags."""
    held_out: Floats
    """Probability of each answer (n,) from the folds."""
    rank_shares: Floats
    """Rank share (n,) of each held-out answer: share of its fold's calibration answers that the fold's model scores
    lower.

    The models of two folds may give all answers 0.58 and 0.60. The exported model's threshold of 0.59 would then flag
    all answers of one fold and none of the other. So rank shares are compared with the share that a threshold flags.
    """

    @classmethod
    def of(
        cls,
        table: AnswerTable,
        rows: Rows,
        scores: Floats,
        calibrator: Calibrator,
        held_out: Floats,
        rank_shares: Floats,
        *,
        few_weights: bool = False,
    ) -> Self:
        """Returns the labelled answers with the scores of a model and of its folds.

        Args:
            table: the n answers.
            rows: the calibration rows, on which the calibrator was fitted.
            scores: raw scores (n,) of the exported model.
            calibrator: maps raw scores to probabilities.
            held_out: probability of each answer (n,) from the folds.
            rank_shares: rank share of each answer (n,) from the folds.
            few_weights: whether the model has so few weights that scores of its training answers are spread like those
                of new answers. The share below a threshold is then counted on all answers, not only on `rows`. For 300
                answers and a threshold for 40 %, the flagged share of new answers is then off by 3 points instead of 8
                (root mean square of 20 draws of noise).
        """
        exported = calibrator.probability(scores if few_weights else scores[rows])
        return cls(table, rows, scores, calibrator, exported, held_out, rank_shares)

    def flagged(self, threshold: float) -> NDArray[np.bool_]:
        """Returns which held-out answers are flagged (n,): as many as the exported model flags."""
        return flag_lowest(self.rank_shares, float((self.exported < threshold).mean()))

    @property
    def expected_wrong(self) -> float:
        """The share of the answers that is expected to be wrong, by the probabilities of the folds."""
        return float((1 - self.held_out).mean())


def flagging_of(answers: ScoredAnswers, options: FlagOptions, *, seed: int = 0) -> StoredFlags:
    """Returns the thresholds, curve and promises for which there are enough labels, and the effect of `flag`.

    Without an option, the share of answers below `flag` is the share that is expected to be wrong. Raises `RecordError`
    if there are too few labels for the given option, and `ContractMismatch` if no threshold keeps the option's promise.
    """
    table, rows = answers.table, answers.rows
    why_too_few = too_few(table.y, table.groups, calibrating=len(rows))
    if why_too_few and options.flags.keys() - {"flag_below"}:
        name = next(iter(options.flags))
        raise RecordError(f"{name}: {why_too_few}: label more, or leave {name} out")
    if why_too_few:
        stored = StoredFlags(lacking=f"; no threshold `flag`: {why_too_few}")
    else:
        points = flag_points(table, answers.rank_shares, answers.exported, seed=seed)
        promises = promises_of(answers, seed=seed)
        accept_threshold = next(
            (promise.threshold for promise in promises if (promise.option, promise.value) == ("risk", ERROR)), None
        )
        accept = {} if accept_threshold is None else {"accept": accept_threshold}
        lacking = ""
        if (
            highest_catch := max((promise.value for promise in promises if promise.option == "catch"), default=0.0)
        ) < 0.9:
            wrong_count = int((1 - table.y[rows]).sum())
            lacking += (
                f"; the {wrong_count} wrong ones carry `catch` up to {highest_catch:g}, and 0.9 takes 9 of different "
                "groups"
            )
        if not accept:
            lacking += "; no threshold `accept`: so many labels do not carry its promise, or no score is sure enough"
        stored = StoredFlags(accept, points, promises, lacking=lacking)
    expected_wrong = answers.expected_wrong
    labels_text = f"{len(table.y)} labels ({int((1 - table.y).sum())} wrong) of {len(np.unique(table.groups))} groups"
    flag_threshold = threshold_of(stored, options, labels=labels_text)
    if not options.flags and not why_too_few:
        flag_threshold = match_share(answers.exported, 1 - expected_wrong)
    return with_flag(stored, flag_threshold, options, answers, expected_wrong, seed=seed)


USUAL_RATE = 0.1
"""Share of the answers that is flagged if there are no labels: the least sure tenth."""


def flagging_without_labels(answers: ScoredAnswers, given_options: FlagOptions, *, seed: int = 0) -> StoredFlags:
    """Returns the curve of flag rates of a score that was learned from agreement, and the threshold `flag` of a rate.

    Without labels it is not known how many answers are wrong, so no threshold can promise to catch them. A rate (by
    default `USUAL_RATE`) or a score of the caller decides what is flagged. Raises `RecordError` for another option, and
    if too few answers were compared for the option.
    """
    table = answers.table
    if refused := promise_refused(given_options):
        raise RecordError(refused)
    if why_too_few := too_few(table.y, table.groups, calibrating=len(answers.rows)):
        if given_options.flags.keys() - {"flag_below"}:
            raise RecordError(
                f"{next(iter(given_options.flags))}: {why_too_few}: ask more questions twice, or leave the option out"
            )
        stored, default_options = StoredFlags(lacking=f"; no threshold `flag`: {why_too_few}"), USUAL_FLAGS
    else:
        stored = StoredFlags(flagging=flag_points(table, answers.rank_shares, answers.exported, seed=seed))
        default_options = FlagOptions(flag_rate=USUAL_RATE)
    options = given_options if given_options.flags else default_options
    return with_flag(stored, threshold_of(stored, options), options, answers, answers.expected_wrong, seed=seed)


def with_flag(
    stored: StoredFlags,
    threshold: float | None,
    options: FlagOptions,
    answers: ScoredAnswers,
    expected_wrong: float,
    *,
    seed: int = 0,
) -> StoredFlags:
    """Returns the stored flags with this threshold `flag`, and with its effect on the held-out answers.

    Args:
        stored: the flags without the threshold.
        threshold: the threshold; None for none.
        options: the option that set it.
        answers: the labelled answers.
        expected_wrong: expected share of wrong answers, to which a threshold without an option was set.
        seed: seed of the bootstrap.
    """
    if threshold is None:
        return stored
    option, value = next(iter(options.flags.items()), ("expected", expected_wrong))
    weights = cluster_weights(answers.table.groups.tolist(), seed=seed)
    shares = measure_shares(answers.table, answers.flagged(threshold), weights)
    operating = None if shares is None else OperatingPoint(option, float(value), *shares)  # type: ignore[arg-type]
    thresholds = {FLAG: threshold, **stored.thresholds}
    return StoredFlags(thresholds, stored.flagging, stored.promises, operating, stored.lacking)


def too_few(y: NDArray[np.int64], groups: NDArray[np.str_], *, calibrating: int) -> str:
    """Returns a clause that says why there are too few labelled answers for a threshold; empty if there are enough.

    `calibrating` is the number of answers on which the threshold is set.
    """
    group_count, right = len(np.unique(groups)), int(y.sum())
    if group_count >= MIN_THRESHOLD_GROUPS and min(right, len(y) - right) >= MIN_ANSWERS_PER_LABEL:
        clause = (
            f"{calibrating} of {len(y)} labelled answers are left for calibration; a threshold takes "
            f"{MIN_THRESHOLD_GROUPS}"
        )
        return clause if calibrating < MIN_THRESHOLD_GROUPS else ""
    return (
        f"the {len(y)} labelled answers are of {group_count} groups, {right} right and {len(y) - right} wrong; a "
        f"threshold takes {MIN_THRESHOLD_GROUPS} groups, with {MIN_ANSWERS_PER_LABEL} answers of either kind"
    )


def promises_of(answers: ScoredAnswers, *, seed: int = 0) -> tuple[Promise, ...]:
    """Returns thresholds on the calibrated probability that keep a promise of `CATCHES` or `RISKS`.

    A promise that cannot be kept is left out. All come from calibration rows, one of each group. Promises of `catch` do
    not depend on the map from scores to probabilities, as long as it keeps the order of scores. Promises of `risk` do,
    because their grids must be fixed before the rows are seen. So one half of the groups fits a calibrator, and the
    other half is tested on its probabilities.
    """
    table, rows, scores, calibrator = answers.table, answers.rows, answers.scores, answers.calibrator
    groups, promises = table.groups, list[Promise]()
    raw_thresholds = _raw_thresholds(answers, table.y, [round(1 - share, 2) for share in CATCHES], seed)
    for share, raw_threshold in zip(CATCHES, raw_thresholds, strict=True):
        if raw_threshold is not None:
            # A calibrator may be flat there, so all answers of this probability are flagged.
            promises.append(Promise("catch", share, min(_calibrated_number(calibrator, raw_threshold) + PARITY, 1.0)))
    try:
        (fit_rows, test_rows), *_ = group_folds(rows, groups.tolist(), table.y, 2, seed)
        platt = fit_platt(scores[fit_rows], table.y[fit_rows])
    except RecordError:
        return tuple(promises)  # too few groups for two halves
    if not platt.slope > 0:
        return tuple(promises)
    p, y, spread = platt.probability(scores[test_rows]), table.y[test_rows], _deviation_or_one(scores)
    accepts = accept_thresholds(p, y, errors=RISKS, confidence=CONFIDENCE, groups=groups[test_rows], seed=seed)
    for risk, accept in zip(RISKS, accepts, strict=True):
        if np.isfinite(accept):
            raw_threshold = (_log_odds(accept) - platt.intercept) / platt.slope
            probability = _calibrated_number(calibrator, raw_threshold)
            # If the calibrator is flat there, answers just below the threshold share its probability. None of them may
            # be accepted, so the threshold lies above that probability.
            kept_threshold = (
                probability
                if probability > _calibrated_number(calibrator, raw_threshold - 1e-3 * spread)
                else probability + PARITY
            )
            promises.append(Promise("risk", risk, kept_threshold))
    return tuple(promises)


def critical_thresholds(answers: ScoredAnswers, *, seed: int = 0) -> dict[str, float]:
    """Returns the thresholds on P(critical) that `PROMISE_SENTENCES` describes, except those that cannot be kept.

    An answer is flagged if P(critical) is at least the threshold. Thresholds are set on the calibration rows, one of
    each group. Scores and `y` are higher for sound answers, that is, answers that are not critical. `critical` catches
    90 % of the critical answers. For `critical_sure` the classes change places: few sound answers may be flagged.
    """
    thresholds, y, calibrator = {}, answers.table.y, answers.calibrator
    [catching] = _raw_thresholds(answers, y, [MISS_RATE], seed)
    if catching is not None:
        # Answers to which a flat calibrator gives this probability are all caught.
        thresholds["critical"] = max(1 - _calibrated_number(calibrator, catching) - PARITY, 0.0)
    [sparing] = _raw_thresholds(answers, 1 - y, [FALSE_ALARMS], seed, falling=True)
    if sparing is not None:
        # Answers to which a flat calibrator gives this probability are all spared.
        thresholds["critical_sure"] = min(1 - _calibrated_number(calibrator, sparing) + PARITY, 1.0)
    return thresholds


def _raw_thresholds(
    answers: ScoredAnswers, y: NDArray[np.int64], rates: Sequence[float], seed: int, *, falling: bool = False
) -> list[float | None]:
    """Returns a raw score for each rate: the share of answers with `y` 0 that are more probable is at most the rate.

    None stands for a rate for which the rows are too few.

    Args:
        answers: the scored answers.
        y: labels (n,) of 0 and 1.
        rates: the rates.
        seed: seed of the draw.
        falling: whether "more probable" is replaced by "less probable".
    """
    scores, rows, calibrator = answers.scores, answers.rows, answers.calibrator
    centre, spread = float(scores.mean()), _deviation_or_one(scores)
    # A calibrator may fall, if higher scores turned out to be likelier wrong.
    is_rising = _calibrated_number(calibrator, centre + spread) >= _calibrated_number(calibrator, centre - spread)
    sign = -1.0 if is_rising == falling else 1.0
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


# Thresholds for ending a stream: one conformal threshold for all looks together, turned into a score for each look.
#
# Looks are made comparable by the surprise: how rare a score is among good answers. An answer's statistic is its
# largest surprise over all its looks. Separate thresholds at level alpha would be crossed at *some* look far more
# often.


NO_LOOK = -np.inf
"""Statistic of an answer that ended before the first look. No threshold stops it."""


@dataclass(frozen=True, slots=True, eq=False)
class Surprise:
    """Surprise of a score, in nats: -ln of the share of good answers that score no higher.

    It is interpolated linearly between the reference scores. Below the lowest it rises by one nat for each standard
    deviation of the reference scores, so that scores below all of them still differ. Any map that never rises with the
    score keeps the promise, as long as it is fixed before the calibration answers are looked at.
    """

    scores: Floats
    """Reference scores (k,), strictly rising."""
    nats: Floats
    """Surprise in nats at each reference score (k,), strictly falling."""
    spread: float
    """Standard deviation of the reference scores; 1 if they do not vary."""

    @classmethod
    def fit(cls, good: Floats) -> "Surprise":
        """Fits on scores (m,) of good answers that were not used to fit the trees or the calibrator."""
        if not len(good) or not np.isfinite(good).all():
            raise RecordError(f"a look is compared by the finite scores of good answers, got {len(good)}: add runs")
        scores, counts = np.unique(good, return_counts=True)
        return cls(scores, -np.log(np.cumsum(counts) / (len(good) + 1)), float(np.std(good)) or 1.0)

    def of(self, scores: Floats) -> Floats:
        """Returns the surprise in nats, the same shape as the scores; NaN where a score is NaN."""
        beyond = np.maximum(self.scores[0] - scores, 0) / self.spread
        return np.asarray(np.interp(scores, self.scores, self.nats) + beyond, dtype=np.float64)

    def score_at(self, nats: float) -> float:
        """Returns the score below which the surprise exceeds `nats`; infinite if every score's surprise does."""
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
    """Returns the value that a further, exchangeable answer exceeds with a probability of at most `alpha`.

    It is the ceil((1 - alpha) (n + 1))-th smallest of the n statistics (Vovk et al. 2005; Angelopoulos and Bates 2021,
    arXiv:2107.07511, section 1.1). Raises `RecordError` if n is too small for the rate.
    """
    if not 0 < alpha < 1:
        raise RecordError(f"a false-alarm rate must lie between 0 and 1, got {alpha:g}")
    n = len(statistic)
    # 1e-9 corrects rounding: 0.3 x 10 must count as 3.
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
    """Returns the rate below which false alarms of one gate, calibrated on n groups, stay with a confidence of 90 %.

    `alpha` is the mean rate over calibration data sets. Between such data sets the rate is beta distributed (Vovk 2012,
    arXiv:1209.2673; Angelopoulos and Bates 2021, section 3.2).
    """
    allowed = int(np.floor(alpha * (n + 1) + 1e-9))
    return float(require("scipy.stats", "fit").beta(allowed, n + 1 - allowed).ppf(0.9))


def one_a_group(rows: NDArray[np.int64], groups: NDArray[np.str_], *, seed: int) -> NDArray[np.int64]:
    """Returns one row of each group, drawn at random, because answers of one group are not exchangeable."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    return shuffled[np.unique(groups[shuffled], return_index=True)[1]]


def score_thresholds(
    surprises: Mapping[int, Surprise], statistic: Floats, alphas: Sequence[float]
) -> dict[float, dict[int, float]]:
    """Maps alpha and look to the score below which an answer is stopped.

    Values of alpha that need more than n answers are left out.

    Args:
        surprises: the surprise of each look.
        statistic: statistic (n,) of calibration answers, from `joint_statistic`.
        alphas: false-alarm rates.
    """
    allowed = [alpha for alpha in alphas if len(statistic) >= groups_needed(alpha)]
    joint = {alpha: conformal_threshold(statistic, alpha) for alpha in allowed}
    return {
        alpha: {look: surprise.score_at(threshold) for look, surprise in surprises.items()}
        for alpha, threshold in joint.items()
    }
