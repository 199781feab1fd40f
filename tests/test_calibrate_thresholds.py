"""Thresholds to flag and to accept keep their promises."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from conftest import made_up
from drawn_scores import Arrays, beta_world, drawn, uneven_world
from numpy.typing import NDArray

from metaprobe.checkpoints import ContractMismatch
from metaprobe.checkpoints.flagging import promised_threshold
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.records.errors import RecordError
from metaprobe.training.calibrators import PARITY, Calibrator, Isotonic, Platt, sigmoid
from metaprobe.training.thresholds import (
    CONFIDENCE,
    ERROR,
    ScoredAnswers,
    accept_thresholds,
    critical_thresholds,
    flag_thresholds,
    promises_of,
    share_below,
)

REPETITIONS = 300


def flag_threshold(p: NDArray[np.float64], y: NDArray[np.int64], *, miss_rate: float = 0.1, **given: Any) -> float:
    [threshold] = flag_thresholds(p, y, miss_rates=[miss_rate], **given)
    return threshold


def accept_threshold(p: NDArray[np.float64], y: NDArray[np.int64], *, error: float = 0.1, **given: Any) -> float:
    [threshold] = accept_thresholds(p, y, errors=[error], **given)
    return threshold


# Flag so that most wrong answers are caught


def test_the_flag_threshold_keeps_its_promise_in_expectation() -> None:
    rng = np.random.default_rng(0)
    missed, trivial = [], []
    for _ in range(400):
        p = rng.uniform(size=240)
        y = drawn(p, rng)
        threshold = flag_threshold(p[:120], y[:120], miss_rate=0.1)
        wrong = p[120:][y[120:] == 0]
        missed.append(float((wrong >= threshold).mean()))
        trivial.append(float((p[120:][y[120:] == 1] < threshold).mean()))
    # Three standard errors of the mean over 400 repetitions.
    assert np.mean(missed) <= 0.1 + 3 * np.std(missed) / 20
    assert np.mean(missed) > 0.06  # not by flagging everything
    assert np.mean(trivial) < 0.9


def test_a_question_asked_many_times_counts_once() -> None:
    rng = np.random.default_rng(2)
    missed: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(REPETITIONS):
        # 12 questions, 20 wrong answers each that all but agree; a new question stands for the next one.
        level = rng.uniform(size=13)
        p = np.repeat(level[:12], 20) + rng.uniform(0, 1e-4, 240)
        y = np.zeros(240, dtype=np.int64)
        groups = np.repeat([f"q{i}" for i in range(12)], 20)
        for grouped in (True, False):
            threshold = flag_threshold(np.minimum(p, 1), y, miss_rate=0.1, groups=groups if grouped else None)
            missed[grouped].append(float(level[12] >= threshold))
    margin = 3 * np.sqrt(0.1 * 0.9 / REPETITIONS)
    assert np.mean(missed[True]) <= 0.1 + margin
    assert np.mean(missed[False]) > np.mean(missed[True])


# Accept so that most accepted answers are right


def by_hand(p: NDArray[np.float64], y: NDArray[np.int64], error: float) -> float:
    """The loosest threshold with so few wrong ones among these very rows: what must not be called a guarantee."""
    order = np.argsort(-p)
    share = np.cumsum(y[order] == 0) / np.arange(1, len(p) + 1)
    fine = np.flatnonzero(share <= error)
    return float(p[order][fine[-1]]) if len(fine) else float("inf")


@pytest.mark.parametrize("world", [beta_world, uneven_world])
@pytest.mark.parametrize("n", [150, 600])
def test_the_accepted_are_right_as_often_as_promised(world: Callable[..., Arrays], n: int) -> None:
    rng = np.random.default_rng(n)
    p, y = world(rng, 200_000)
    order = np.argsort(p)
    accepted = np.arange(len(p), 0, -1)
    error_from = np.cumsum((y[order] == 0)[::-1])[::-1] / accepted  # true share of wrong ones from the i-th p upwards

    def violated(threshold: float) -> bool:
        at = int(np.searchsorted(p[order], threshold))
        return at < len(p) and bool(error_from[at] > 0.1)

    found = np.array(
        [
            [f(*rows) for f in (accept_threshold, lambda p, y: by_hand(p, y, 0.1))]
            for rows in (world(rng, n) for _ in range(REPETITIONS))
        ]
    )
    held, naive = np.vectorize(violated)(found).mean(axis=0)
    assert held <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / REPETITIONS)
    assert naive > 0.25
    assert np.isfinite(found[:, 0]).mean() > (0.15 if n == 150 else 0.5)  # not by accepting nothing


@pytest.mark.parametrize(("right", "distance"), [(0.7, 1.2), (0.8, 2.0)])
def test_stored_and_broken_is_rare_over_all_trainings_and_among_the_stored_ones_where_a_threshold_can_hold(
    right: float, distance: float
) -> None:
    """Scores are normal, `distance` higher where right, and the probabilities true."""
    rng, normal = np.random.default_rng(11), NormalDist()
    stored = broken = 0
    for _ in range(REPETITIONS):
        y = (rng.random(500) < right).astype(np.int64)
        score = distance * y + rng.normal(size=500)
        base = np.log(right / (1 - right)) - distance**2 / 2
        found = accept_threshold(sigmoid(base + distance * score), y, error=ERROR, confidence=CONFIDENCE)
        if not np.isfinite(found):
            continue
        at = (np.log(found / (1 - found)) - base) / distance
        wrong = (1 - right) * (1 - normal.cdf(at))
        stored += 1
        broken += wrong / (wrong + right * (1 - normal.cdf(at - distance))) > ERROR
    assert stored > 0.4 * REPETITIONS
    assert broken <= (1 - CONFIDENCE) * REPETITIONS
    assert broken <= 0.2 * stored


def test_an_accept_threshold_agrees_with_mapie() -> None:
    control = pytest.importorskip("mapie.risk_control")
    grid = np.arange(0.9, 0.005, -0.01) - 2 * PARITY
    rng = np.random.default_rng(0)
    equal = 0
    for _ in range(20):
        p, y = beta_world(rng, 400)
        p = p.astype(np.float32).astype(np.float64)
        theirs = control.BinaryClassificationController(
            lambda p: np.stack([1 - p, p], axis=1),
            "precision",
            0.9,
            confidence_level=0.9,
            list_predict_params=grid,
            fwer_method="fixed_sequence",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says so where nothing is controlled, or the risk is not monotone
            found = theirs.calibrate(p, y).valid_predict_params
        ours = accept_threshold(p, y)
        # It counts n * (1 - precision) errors, rounded up: often one more than there are, so it may stop earlier.
        assert ours <= min(found, default=np.inf)
        equal += ours == min(found, default=np.inf)
    assert equal >= 10


def test_the_sequence_stops_at_the_first_failure() -> None:
    p = np.concatenate([np.full(50, 0.95), np.full(20, 0.805), np.full(2000, 0.5)])
    y = np.concatenate([np.ones(50), np.zeros(20), np.ones(2000)]).astype(np.int64)
    threshold = accept_threshold(p, y)
    assert 0.805 < threshold < 0.82  # though 20 wrong among 2,070 would do


def test_one_answer_a_group_is_kept_whatever_the_order_of_rows() -> None:
    rng = np.random.default_rng(3)
    p, y = beta_world(rng, 400)
    groups = np.repeat([f"q{i}" for i in range(200)], 2)
    shuffled = rng.permutation(400)
    for threshold in (accept_threshold, flag_threshold):
        first = threshold(p, y, groups=groups, seed=1)
        assert threshold(p[shuffled], y[shuffled], groups=groups[shuffled], seed=1) == first
        assert len({threshold(p, y, groups=groups, seed=seed) for seed in range(10)}) > 1
    alike = np.full(400, 0.95), np.ones(400, dtype=np.int64)
    assert accept_threshold(*alike, groups=["the only one"] * 400) == float("inf")


@pytest.mark.parametrize("threshold", [flag_threshold, accept_threshold])
@pytest.mark.parametrize(
    ("p", "y", "said"),
    [
        ([0.1, np.nan], [0, 1], "1 of 2 that are NaN"),
        ([0.1, 1.5], [0, 1], "outside"),
        ([0.1, 0.5, 0.6], [0, 1], r"\(3,\) and \(2,\)"),
        ([0.1, 0.5], [0, 2], r"labels 0 and 1, got \[0, 2\]"),
    ],
)
def test_rows_that_can_give_no_threshold_are_refused(
    threshold: Callable[..., float], p: list[float], y: list[int], said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        threshold(np.array(p), np.array(y))


def test_rates_and_groups_that_promise_nothing_are_refused() -> None:
    p, y = np.array([0.1, 0.9]), np.array([0, 1])
    with pytest.raises(RecordError, match="error must lie between 0 and 1, got 0"):
        accept_threshold(p, y, error=0.0)
    with pytest.raises(RecordError, match="miss_rate must lie between 0 and 1, got 1"):
        flag_threshold(p, y, miss_rate=1.0)
    with pytest.raises(RecordError, match="one group a label, got 1 and 2"):
        accept_threshold(p, y, groups=["a"])


def test_thresholds_of_cases_worked_by_hand() -> None:
    """(missed + 1) / (n + 1) <= 0.1 allows no miss among 9 wrong answers, and one among 19. 22 right answers are the
    fewest that keep 0.1 with 0.9 (0.9^22 < 0.1); of 38 one may be wrong, of 37 none."""
    nine = np.arange(1, 10) / 16  # numbers that float32 holds
    assert flag_threshold(nine, np.zeros(9, dtype=np.int64)) == 9 / 16 + PARITY
    assert flag_threshold(nine[:8], np.zeros(8, dtype=np.int64)) == float("inf")
    nineteen = np.arange(1, 20) / 32
    assert flag_threshold(nineteen, np.zeros(19, dtype=np.int64)) == 18 / 32 + PARITY
    assert flag_threshold(nineteen, np.zeros(19, dtype=np.int64), miss_rate=0.5) == 10 / 32 + PARITY
    assert flag_threshold(nineteen, np.ones(19, dtype=np.int64), miss_rate=0.999) == float("inf")
    assert flag_threshold(nine[:1], np.zeros(1, dtype=np.int64), miss_rate=0.5) == 1 / 16 + PARITY

    def accepted(right: int, wrong: int, **asked: float) -> float:
        p = np.concatenate([np.full(right, 0.95), np.full(wrong, 0.75)])
        return accept_threshold(p, (p > 0.8).astype(np.int64), **asked)

    lowest = 0.01 - 2 * PARITY
    assert accepted(22, 0) == pytest.approx(lowest, abs=1e-9)
    assert accepted(37, 1) == pytest.approx(lowest, abs=1e-9)
    assert accepted(36, 1) == pytest.approx(0.76 - 2 * PARITY, abs=1e-9)
    assert accepted(21, 0) == float("inf")
    assert accepted(21, 0, confidence=0.89) == pytest.approx(lowest, abs=1e-9)
    assert accepted(11, 0, error=0.19) == pytest.approx(lowest, abs=1e-9)


# The thresholds that a checkpoint stores keep what they promise, whatever the map from scores to probabilities.


RISING = Platt(4.0, 0.5)
TEMPLATE = made_up(4).table


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Answers of groups of two, good with the probability that `RISING` gives their score."""

    scores: np.ndarray
    table: AnswerTable
    rows: np.ndarray
    """Calibration rows; the others are new."""


def world(n: int, seed: int, *, sure: float = 0.0) -> World:
    rng = np.random.default_rng(seed)
    scores = rng.normal(loc=sure, size=n + 4000)
    y = (rng.uniform(size=len(scores)) < RISING.probability(scores)).astype(np.int64)
    groups = np.array([f"g{i // 2}" for i in range(len(scores))])
    return World(scores, replace(TEMPLATE, y=y, groups=groups), np.arange(n))


def scored(scores: np.ndarray, table: AnswerTable, rows: np.ndarray, calibrator: Calibrator) -> ScoredAnswers:
    p = calibrator.probability(scores)
    return ScoredAnswers.of(table, rows, scores, calibrator, p, share_below(p[rows], p))


def found_by(
    scores: np.ndarray, table: AnswerTable, rows: np.ndarray, calibrator: Calibrator, seed: int = 0
) -> dict[str, float]:
    """The threshold below which 90 % of the wrong answers lie, and the one above which 10 % are wrong, where stored."""
    promises, found = promises_of(scored(scores, table, rows, calibrator), seed=seed), {}
    for option, value in (("catch", 0.9), ("risk", 0.1)):
        with suppress(ContractMismatch):
            found[option] = promised_threshold(promises, option, value)  # type: ignore[arg-type]
    return found


def found_in(made: World, calibrator: Calibrator = RISING, sign: float = 1.0) -> dict[str, float]:
    return found_by(sign * made.scores, made.table, made.rows, calibrator)


def test_flagged_are_nine_in_ten_wrong_answers_and_accepted_are_right_nine_times_in_ten() -> None:
    missed, kept, failed, worlds = [], [], 0, 12
    for seed in range(worlds):
        made = world(800, seed, sure=0.5)
        new = np.arange(800, len(made.scores))
        p, y = RISING.probability(made.scores[new]), made.table.y[new]
        found = found_in(made)
        missed.append((p[y == 0] >= found["catch"]).mean())
        accepted = p >= found.get("risk", np.inf)
        kept.append(accepted.mean())
        failed += accepted.any() and (y[accepted] == 0).mean() > 0.1
    assert 0.07 < np.mean(missed) < 0.11
    assert 0.5 < np.mean(kept) < 0.75
    assert failed <= 0.2 * worlds


def test_scores_that_go_the_wrong_way_round_are_turned_by_their_calibrator() -> None:
    made = world(600, 1)
    falling = Platt(-4.0, 0.5)
    right, wrong = found_in(made), found_in(made, falling, sign=-1.0)
    assert wrong["catch"] == pytest.approx(right["catch"], abs=2e-3)
    assert "risk" not in wrong  # the other half of the groups must not be judged by a map that falls
    turned = replace(made.table, y=1 - made.table.y)
    sound = critical_thresholds(scored(made.scores, turned, made.rows, falling))
    alike = critical_thresholds(scored(-made.scores, turned, made.rows, RISING))
    assert sound == pytest.approx(alike, abs=2e-3)


def test_critical_failures_are_caught_and_sound_answers_are_not_called_critical() -> None:
    missed, alarms = [], []
    for seed in range(12):
        made = world(600, seed)
        new = np.arange(600, len(made.scores))
        critical, y = 1 - RISING.probability(made.scores[new]), made.table.y[new]
        found = critical_thresholds(scored(made.scores, made.table, made.rows, RISING))
        missed.append((critical[y == 0] < found["critical"]).mean())
        alarms.append((critical[y == 1] >= found["critical_sure"]).mean())
    assert 0.07 < np.mean(missed) < 0.11
    assert 0.03 < np.mean(alarms) < 0.055


def test_promises_that_too_few_answers_allow_are_not_made() -> None:
    made = world(30, 0)
    few = replace(made.table, y=np.r_[np.zeros(8, np.int64), np.ones(len(made.table.y) - 8, np.int64)])
    assert found_by(made.scores, few, made.rows, RISING) == {}
    assert critical_thresholds(scored(made.scores, few, made.rows, RISING)) == {}
    alike = found_by(np.zeros_like(made.scores), world(200, 0).table, np.arange(200), RISING)
    assert alike["catch"] == pytest.approx(float(sigmoid(np.array(0.5))) + PARITY, abs=1e-4)


def test_thresholds_on_probabilities_do_not_depend_on_the_scale_of_the_scores() -> None:
    made = world(800, 3, sure=0.5)
    scaled, shifted = 5 * made.scores + 3, Platt(4 / 5, 0.5 - 3 * 4 / 5)
    assert found_by(scaled, made.table, made.rows, shifted) == pytest.approx(found_in(made), abs=2e-3)
    bent = Isotonic(np.array([-9.0, -1.0, 1.0, 9.0]), np.array([0.1, 0.2, 0.9, 0.95]))
    raw = (np.log(1 / (1 / found_in(made)["risk"] - 1)) - 0.5) / 4
    assert found_in(made, bent)["risk"] == pytest.approx(float(bent.probability(np.array(raw))), abs=1e-7)


def test_answers_of_one_group_count_once_and_the_seed_draws_them() -> None:
    made = world(800, 3, sure=0.5)
    assert found_by(made.scores, made.table, made.rows, RISING, seed=1) != found_in(made)
    assert found_by(made.scores, made.table, made.rows, RISING, seed=0) == found_in(made)
    few = replace(made.table, groups=np.array([f"g{i // 20}" for i in range(len(made.scores))]))
    assert "risk" not in found_by(made.scores, few, made.rows, RISING)  # 20 groups in each half, and it takes 22
