"""Intervals hold the truth as often as they say: against known answers, another implementation, and drawn worlds.

A 90 % interval in place of a 95 % one fails each of these tests.
"""

from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import t

from metaprobe.eval.metrics.bootstrap import (
    cluster_weights,
    interval,
    mean_interval,
    paired_difference,
    resampled_interval,
)
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.ope import Logged, ips
from metaprobe.training.calibrators import clustered_se

WORLDS = 800


def test_the_interval_of_a_mean_of_many_groups_leaves_out_half_of_the_rest_at_either_end() -> None:
    rng = np.random.default_rng(0)
    numbers, weights = rng.normal(size=500), cluster_weights(np.arange(500), 4000)
    means = weights @ numbers / 500
    wide, narrow = mean_interval(numbers, weights), resampled_interval(numbers.mean(), means, weights, level=0.9)
    for found, level, tail in ((wide, 0.95, 0.025), (narrow, 0.9, 0.05)):
        assert np.mean(means < found.low) == pytest.approx(tail, rel=0.15)
        assert np.mean(means > found.high) == pytest.approx(tail, rel=0.15)
        assert found.level == level


def test_an_auroc_that_twelve_of_sixty_groups_decide_is_held_and_plain_quantiles_do_not_hold_it() -> None:
    """AUROC 0.921: plain quantiles hold it in 0.89 of the worlds, and lie below it in 0.10."""
    rng = np.random.default_rng(7)
    weights = [cluster_weights(np.arange(60), 400, seed) for seed in range(4)]
    truth, held, plain = NormalDist().cdf(2 / 2**0.5), [], []
    for world in range(500):
        y = (rng.random(60) < 0.2).astype(int)
        score, drawn = 2 * y + rng.normal(size=60), weights[world % 4]
        found = interval(auroc, y, score, drawn)
        held.append(found.low <= truth <= found.high)
        low, high = np.nanquantile(np.asarray(auroc(y, score, drawn)), [0.025, 0.975])
        plain.append(low <= truth <= high)
    assert 0.92 < np.mean(held) < 0.975
    assert np.mean(plain) < 0.92


def test_a_paired_difference_of_few_groups_is_held_at_its_rate() -> None:
    groups = 30
    rng = np.random.default_rng(8)
    weights = [cluster_weights(np.repeat(np.arange(groups), 3), 300, seed) for seed in range(4)]
    held = []
    for world in range(800):
        y = (rng.random(groups) < 0.4).astype(int).repeat(3)
        shared = rng.normal(size=groups).repeat(3)
        one, other = (y + shared + rng.normal(size=3 * groups) for _ in range(2))
        found = paired_difference(auroc, y, one, other, weights[world % 4])
        held.append(found.low <= 0 <= found.high)
    assert 0.93 < np.mean(held) < 0.98


def uneven() -> tuple[Logged, np.ndarray]:
    """Nine decisions of which four weigh four times as much: 6.4 effective groups, so 5 degrees of freedom."""
    heavy = np.arange(9) < 4
    propensity = np.where(heavy[:, None], [0.2, 0.8], [0.8, 0.2])
    reward = np.random.default_rng(0).random(9)
    return Logged(np.zeros(9, dtype=int), reward, propensity, np.arange(9)), np.tile([0.8, 0.2], (9, 1))


def test_an_off_policy_interval_has_the_effective_groups_less_one_for_degrees_of_freedom() -> None:
    logged, policy = uneven()
    found = ips(logged, policy)
    weight = np.where(np.arange(9) < 4, 4.0, 1.0)
    size = weight.sum() ** 2 / np.square(weight).sum()
    assert found.effective_sample_size == pytest.approx(size)
    assert 6 < size < 7
    half = t.ppf(0.975, 5) * found.standard_error
    assert found.value.high - found.value.estimate == pytest.approx(half)
    assert found.value.estimate - found.value.low == pytest.approx(half)
    assert found.value.level == found.mean_weight.level == 0.95


def test_off_policy_intervals_of_few_effective_groups_hold_the_truth_at_their_rate() -> None:
    """Twelve groups of even weight: with a normal's 1.96 they would hold it in 0.92, with 90 % in 0.90."""
    rng = np.random.default_rng(3)
    even = np.full((12, 2), 0.5)
    policy = np.tile([1.0, 0.0], (12, 1))
    held = []
    for _ in range(WORLDS):
        logged = Logged(np.zeros(12, dtype=int), rng.normal(size=12), even, np.arange(12))
        value = ips(logged, policy).value
        held.append(value.low <= 0 <= value.high)
    assert 0.93 < np.mean(held) < 0.97


def test_five_copies_of_a_row_in_one_group_tell_as_much_as_one_row() -> None:
    many = np.repeat(np.arange(150), 5)
    values = np.random.default_rng(4).normal(size=150)[many]
    assert clustered_se(values, many) / clustered_se(values, np.arange(750)) == pytest.approx(5**0.5, rel=0.01)


def test_the_clustered_standard_error_of_single_rows_is_the_usual_one_and_of_equal_values_nothing() -> None:
    values = np.random.default_rng(5).normal(3.0, 1.0, 40)
    assert clustered_se(values, np.arange(40)) == pytest.approx(values.std(ddof=1) / 40**0.5)
    assert clustered_se(np.full(40, 3.0), np.arange(40) // 3) == 0
