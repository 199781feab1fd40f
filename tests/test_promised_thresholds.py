"""The thresholds that a checkpoint stores keep what they promise, whatever the map from scores to probabilities."""

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pytest
from conftest import made_up

from metaprobe.checkpoints import ContractMismatch
from metaprobe.checkpoints.flagging import promised
from metaprobe.eval.table import AnswerTable
from metaprobe.training.calibration import PARITY, Calibrator, Isotonic, Platt, sigmoid
from metaprobe.training.thresholds import (
    ScoredAnswers,
    critical_thresholds,
    promises_of,
    share_below,
)

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
            found[option] = promised(promises, option, value)  # type: ignore[arg-type]
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
