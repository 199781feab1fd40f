"""Metrics against scikit-learn, against brute force, and against what is known of simulated data."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from metaprobe.eval.metrics import bootstrap
from metaprobe.eval.metrics.bootstrap import (
    cluster_weights,
    interval,
    mean_interval,
    paired_difference,
    resampled_interval,
)
from metaprobe.eval.metrics.calibration import (
    brier,
    brier_skill,
    debiased_ece,
    ece,
    ece_equal_width,
    ece_interval,
    reliability_table,
    stated_calibration,
)
from metaprobe.eval.metrics.ranked import auprc, aurc, auroc, risk_coverage

RANK = [auroc, auprc, aurc]
PROBABILITY = [brier, brier_skill, ece, ece_equal_width]


@st.composite
def graded(draw):
    """(y, score in [0, 1], weight): both classes present, scores with many ties."""
    rows = draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=30))
    y, score, weight = np.array([*rows, (0, draw(st.integers(0, 8)), 1), (1, draw(st.integers(0, 8)), 1)]).T
    return y, score / 8, weight


@given(graded())
def test_rank_metrics_agree_with_scikit_learn_with_ties_and_weights(data):
    y, score, weight = data
    assert auroc(y, score, weight) == pytest.approx(roc_auc_score(y, score, sample_weight=weight))
    assert auprc(y, score, weight) == pytest.approx(average_precision_score(y, score, sample_weight=weight))
    assert brier(y, score, weight) == pytest.approx(brier_score_loss(y, score, sample_weight=weight))


@given(graded(), st.lists(st.floats(0.01, 100), min_size=9, max_size=9), st.randoms(), st.integers(0, 2**32 - 1))
def test_increasing_maps_order_copies_and_calls_together_leave_metrics_as_they_are(data, steps, random, seed):
    y, score, weight = data
    mapped = np.cumsum(steps)[(score * 8).astype(int)]
    order = np.array(random.sample(range(len(y)), len(y)))
    weights = np.random.default_rng(seed).integers(0, 3, (5, len(y)))
    for metric in (*RANK, *PROBABILITY):
        value = metric(y, score, weight)
        assert metric not in RANK or metric(y, mapped, weight) == value, metric.__name__
        assert metric(y[order], score[order], weight[order]) == pytest.approx(value, nan_ok=True), metric.__name__
        copied = metric(np.repeat(y, weight), np.repeat(score, weight))
        assert copied == pytest.approx(value, nan_ok=True), metric.__name__
        together = metric(y, score, weights)
        assert together.shape == (5,)
        np.testing.assert_allclose(together, [metric(y, score, row) for row in weights], rtol=1e-12, atol=1e-12)


def test_known_answers():
    y, score = [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]
    assert auroc(y, score) == 0.75
    assert auprc(y, score) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert aurc(y, score) == pytest.approx((0 + 1 / 2 + 1 / 3 + 2 / 4) / 4)
    assert brier(y, score) == pytest.approx((0.01 + 0.16 + 0.65**2 + 0.04) / 4)
    assert brier_skill(y, score) == pytest.approx(1 - brier(y, score) / 0.25)
    assert ece(y, score, bins=2) == pytest.approx((abs(0.225 - 0.5) + abs(0.6 - 0.5)) / 2)
    assert ece([0, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]) == pytest.approx(0.25)


def test_equal_width_bins_end_at_their_upper_edge_and_hold_what_falls_into_them():
    score, y = np.array([0.0, 0.1, 0.15, 0.3, 0.3, 0.7, 1.0]), np.array([0, 1, 0, 0, 1, 1, 0])
    # (0, 0.1]: 0 and 0.1; (0.1, 0.2]: 0.15; (0.2, 0.3]: both 0.3; (0.6, 0.7]: 0.7; (0.9, 1]: 1
    by_hand = (2 * abs(0.05 - 0.5) + abs(0.15 - 0) + 2 * abs(0.3 - 0.5) + abs(0.7 - 1) + abs(1 - 0)) / 7
    assert ece_equal_width(y, score) == pytest.approx(by_hand)
    apart = np.array([0.65, 0.75, 0.85, 0.95])  # the uppermost bins are apart as well
    assert ece_equal_width([0, 1, 0, 1], apart) == pytest.approx((0.65 + 0.25 + 0.85 + 0.05) / 4)
    assert ece_equal_width(y, score, bins=1) == pytest.approx(abs(score.mean() - y.mean()))
    assert ece(y, score, bins=1) == pytest.approx(abs(score.mean() - y.mean()))


def test_the_interval_of_an_expected_calibration_error_holds_its_estimate_where_resamples_do_not():
    rng = np.random.default_rng(7)
    y, p = calibrated(rng, 600)
    weights = cluster_weights(np.arange(600), resamples=200)
    found = ece_interval(y, p, weights)
    assert found.estimate == ece(y, p)
    assert interval(ece, y, p, weights).low > found.low >= 0
    assert found.low < found.estimate < found.high
    shifted = ece_interval(y, p + 0.15, weights)
    assert shifted.low > 0.08


def test_ties_in_aurc_are_the_average_over_all_orders():
    y, score = np.array([1, 0, 1, 1, 0, 0]), np.array([3, 2, 2, 2, 1, 1])
    orders = [list(order) for order in permutations(range(6))]
    by_score = [order for order in orders if np.all(np.diff(score[order]) <= 0)]
    risks = [np.cumsum(1 - y[order]) / np.arange(1, 7) for order in by_score]
    assert len(risks) == 12
    np.testing.assert_allclose(risk_coverage(y, score)[1], np.mean(risks, axis=0))
    assert aurc(y, score) == pytest.approx(np.mean(risks))


@given(graded())
def test_aurc_is_the_mean_of_its_curve_and_ends_at_the_error_rate(data):
    y, score, _ = data
    coverage, risk = risk_coverage(y, score)
    assert aurc(y, score) == pytest.approx(risk.mean())
    assert coverage[-1] == 1
    assert risk[-1] == pytest.approx(1 - y.mean())


@pytest.mark.parametrize("metric", [*RANK, *PROBABILITY])
def test_bad_input_is_named(metric):
    with pytest.raises(ValueError, match="non-empty"):
        metric([], [])
    with pytest.raises(ValueError, match="2 of 3 scores are NaN"):
        metric([0, 1, 1], [np.nan, 0.5, np.nan])
    with pytest.raises(ValueError, match=r"score must be one-dimensional; got shape \(1, 2\)"):
        metric([0, 1], [[0.1, 0.2]])
    with pytest.raises(ValueError, match="0 and 1 only; 1 of 2"):
        metric([0, 2], [0.1, 0.2])
    with pytest.raises(ValueError, match=r"same shape; got \(2,\) and \(3,\)"):
        metric([0, 1], [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="integer type; got float64"):
        metric([0, 1], [0.1, 0.2], [0.5, 0.5])
    with pytest.raises(ValueError, match="must not be negative"):
        metric([0, 1], [0.1, 0.2], [1, -1])
    with pytest.raises(ValueError, match=r"\(2,\) or \(R, 2\); got \(3,\)"):
        metric([0, 1], [0.1, 0.2], [1, 1, 1])


def calibrated(rng, n, shift=0.0):
    """Probabilities and labels drawn from them; the stated probability is off by `shift`."""
    p = rng.uniform(0.15, 0.85, n)
    return (rng.random(n) < p).astype(int), p + shift


@pytest.mark.parametrize(("copies", "shift"), [(1, 0.0), (5, 0.0), (5, 0.1)])
def test_the_debiased_error_averages_the_truth_and_its_interval_holds_it(copies, shift):
    """Five answers a group that are right or wrong together: 500 answers' worth of noise among 2,500."""
    rng = np.random.default_rng(0)
    weights = cluster_weights(np.repeat(np.arange(500), copies), resamples=200)
    found, plain, held = [], [], []
    for _ in range(150):
        y, p = (values.repeat(copies) for values in calibrated(rng, 500, shift))
        one = debiased_ece(y, p, weights)
        assert one.low <= one.estimate <= one.high
        found.append(one.estimate)
        plain.append(ece(y, p))
        held.append(one.low <= shift <= one.high)
    # The sd of one estimate is about 0.04 without a shift, so that the mean's standard error is 0.003.
    assert np.mean(found) == pytest.approx(shift, abs=0.008)
    assert np.mean(plain) > shift + (0.05 if not shift else 0.005)
    assert np.mean(held) > 0.88  # 0.93 to 0.96 of many draws


def test_reliability_bins_nearer_than_asked_are_one_and_lose_no_answer():
    rng = np.random.default_rng(4)
    p = rng.choice([0.30, 0.31, 0.32, 0.33], 600)  # one stated number, calibrated otherwise in every fold
    p[:100] = 0.7
    y = rng.random(600) < p
    assert len(reliability_table(y, p)) == 5
    low, high = reliability_table(y, p, min_distance=0.05)
    assert (low.n, high.n) == (500, 100)
    assert low.probability == pytest.approx(p[100:].mean())
    assert low.accuracy == pytest.approx(y[100:].mean())
    assert low.high - low.low < 0.1  # the interval is that of all its answers
    found = stated_calibration(y, p, cluster_weights(np.arange(600), 20))
    assert found.reliability == reliability_table(y, p)  # apart, unless it is asked for
    assert stated_calibration(y, p, cluster_weights(np.arange(600), 20), min_distance=0.05).reliability == (low, high)
    assert stated_calibration(y, np.full(600, np.nan), cluster_weights(np.arange(600), 20)) is None


def test_a_score_does_not_differ_from_itself_and_pairing_narrows_a_difference():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, 300)
    score = y + rng.normal(0, 1, 300)
    other = score + rng.normal(0, 0.2, 300)
    weights = cluster_weights(np.arange(300), resamples=200)
    same = paired_difference(auroc, y, score, score, weights)
    assert (same.estimate, same.low, same.high) == (0, 0, 0)
    difference = paired_difference(auroc, y, score, other, weights)
    alone = interval(auroc, y, score, weights)
    assert difference.estimate == pytest.approx(auroc(y, score) - auroc(y, other))
    assert difference.high - difference.low < (alone.high - alone.low) / 2


def test_intervals_survive_resamples_with_one_class_and_say_nan_when_all_are_so():
    weights = cluster_weights(["a", "b", "c"], resamples=50)
    result = interval(auroc, [0, 1, 1], [0.1, 0.9, 0.8], weights)
    assert (result.low, result.high) == (1, 1)
    nothing = interval(auroc, [1, 1, 1], [0.1, 0.9, 0.8], weights)
    assert np.isnan([nothing.estimate, nothing.low, nothing.high]).all()


def test_intervals_refuse_what_they_cannot_resample():
    with pytest.raises(ValueError, match="groups is empty"):
        cluster_weights([])
    with pytest.raises(ValueError, match=r"\(resamples, n\)"):
        mean_interval([1.0, 2.0], np.ones(2, dtype=int))
    with pytest.raises(ValueError, match="1 of 2 values are not finite"):
        mean_interval([1.0, np.nan], np.ones((3, 2), dtype=int))
    for level in (0, 1, 1.5):
        with pytest.raises(ValueError, match=f"between 0 and 1; got {level}"):
            resampled_interval(1.5, np.ones(3), np.ones((3, 2), dtype=int), level=level)


def test_resampled_values_do_not_depend_on_how_many_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    y, score = rng.integers(0, 2, 90), rng.normal(size=90).round(1)
    weights = cluster_weights(rng.integers(0, 30, 90), 50)
    whole = interval(auroc, y, score, weights)
    for block, most in ((1, 1), (1, 90 * 7), (90 * 3, 90 * 3)):
        monkeypatch.setattr(bootstrap, "BLOCK_MULTIPLICITIES", block)
        monkeypatch.setattr(bootstrap, "MAX_MULTIPLICITIES", most)
        assert interval(auroc, y, score, weights) == whole
