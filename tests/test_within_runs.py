"""A learned step must order the answers of one run better, and scores of two folds are never compared."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.eval.answer_table import bare_table
from metaprobe.eval.compare import Judged, auroc_gain, method_results
from metaprobe.eval.metrics.ranked import StratifiedAuroc, auroc, auroc_within
from metaprobe.probes.features import TERM_NAMES, TERMS
from metaprobe.training.calibrators import sigmoid
from metaprobe.training.folds import final_roles
from metaprobe.training.ladder import ALL_TERMS, Ladder, LadderRows, fit_ladder, paired_auroc_gain

MEAN, FIRST = TERMS.index("mean"), TERMS.index("first")


def climbed(*, runs: int, each: int, tells: float, seed: int) -> Ladder:
    """Returns the ladder on answers of many runs. The mean tells in each run; the first term tells how often answers
    of the run are right, and of an answer within its run as much as `tells`."""
    rng = np.random.default_rng(seed)
    n = runs * each
    place = np.repeat(np.arange(runs), each)
    rate = rng.normal(0, 2.0, runs)
    X = rng.normal(size=(n, len(TERM_NAMES))).astype(np.float32)
    own = rng.normal(size=n)
    X[:, FIRST] = rate[place] + (own if tells else 0.05 * own)
    y = (rng.uniform(size=n) < sigmoid(-1.5 * X[:, MEAN] + rate[place] + tells * own)).astype(np.int64)
    groups = np.array([f"g{i}" for i in range(n)])
    sample = LadderRows(X, y, groups, np.array([f"m{i}|t|" for i in place]), TERM_NAMES)
    return fit_ladder(sample, final_roles(groups.tolist(), y))


def test_a_step_that_tells_runs_apart_and_no_answers_within_a_run_is_not_taken() -> None:
    found = climbed(runs=120, each=6, tells=0.0, seed=1)
    [step] = [step for step in found.steps if step.name == ALL_TERMS]
    assert step.gain > 2 * step.se, "pooled it pays, for base rates are hardly known from six answers"
    assert not step.taken
    assert found.number in ("mean", "scaled", "total")


def test_a_step_that_tells_answers_of_one_run_apart_is_taken() -> None:
    found = climbed(runs=120, each=6, tells=1.5, seed=1)
    [step] = [step for step in found.steps if step.name == ALL_TERMS]
    assert step.taken
    assert step.within > 2 * step.within_se


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_the_gain_within_strata_is_the_difference_of_their_aurocs(seed: int, strata: int) -> None:
    rng = np.random.default_rng(seed)
    n = 60
    y, place = rng.integers(0, 2, n), rng.integers(0, strata, n)
    one, other = np.round(rng.normal(y, 1), 1), np.round(rng.normal(size=n), 1)
    gain, error = paired_auroc_gain(y, one, other, place, np.arange(n))
    metric = StratifiedAuroc(place)
    assert gain == pytest.approx(metric(y, one) - metric(y, other), abs=1e-12)
    assert error > 0
    assert paired_auroc_gain(y, one, 3 * one + 1, place, np.arange(n)) == (0.0, 0.0)


def test_the_error_of_a_gain_is_that_of_repeated_draws_and_knows_groups() -> None:
    rng = np.random.default_rng(0)
    gains, errors, blind = [], [], []
    for _ in range(200):
        group = np.repeat(np.arange(60), 4)
        y = np.repeat(rng.integers(0, 2, 60), 4)
        one, other = ((y + rng.normal(0, 1.5, 60)[group] + rng.normal(0, 0.3, 240)) for _ in range(2))
        strata = np.zeros(240, dtype=np.int64)
        gain, error = paired_auroc_gain(y, one, other, strata, group)
        gains.append(gain)
        errors.append(error)
        blind.append(paired_auroc_gain(y, one, other, strata, np.arange(240))[1])
    assert np.mean(errors) == pytest.approx(np.std(gains), rel=0.15)
    assert np.mean(blind) < 0.7 * np.std(gains)


def test_without_pairs_there_is_no_gain() -> None:
    y, alone = np.array([0, 1]), np.array([0, 1])
    assert np.isnan(paired_auroc_gain(y, y * 1.0, y * 2.0, alone, alone)).all()


@given(st.integers(0, 10**6), st.integers(2, 5))
def test_a_rising_map_of_a_number_in_each_fold_is_exactly_level_with_it(seed: int, folds: int) -> None:
    rng = np.random.default_rng(seed)
    n = 80
    y = np.arange(n) % 2
    number = rng.normal(y, 1.5)
    fold = rng.integers(0, folds, n)
    slope, shift = rng.uniform(0.1, 5, folds), rng.normal(0, 5, folds)
    mapped = slope[fold] * number + shift[fold]
    table = bare_table(y, np.array([f"g{i}" for i in range(n)]))
    free = Judged("length", "plain", sigmoid(number), number, 1.0)
    learned = Judged("learned", "learned", sigmoid(mapped), mapped, 1.0)
    gain = auroc_gain(table, learned, free, fold)
    assert (gain.estimate, gain.low, gain.high) == (0.0, 0.0, 0.0)
    result = method_results(table, [free, learned], fold=fold, resamples=50)[1]
    assert result.diff_control is not None
    assert result.diff_control.estimate == 0.0
    assert result.auroc.estimate == auroc_within(fold)(y, number)


def test_pairs_of_two_folds_would_call_a_map_of_a_number_behind_it() -> None:
    rng = np.random.default_rng(0)
    y, fold = np.arange(400) % 2, np.arange(400) // 200
    number = rng.normal(y, 1.0)
    mapped = number + 3.0 * fold
    assert auroc(y, mapped) < auroc(y, number) - 0.05
    assert auroc_within()(y, mapped) == auroc(y, mapped)
    both = auroc_within(fold, np.arange(400) % 3)(y, mapped)
    assert both == auroc_within(fold, np.arange(400) % 3)(y, number)
