"""meta-d', DeLong's test, Holm's correction and their neighbours: against published values and against brute force."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import ndtr
from scipy.stats import spearmanr

from metaprobe.eval.metrics.bootstrap import holm
from metaprobe.eval.metrics.ranked import (
    StratifiedAuroc,
    auroc,
    prediction_rejection_ratio,
    quadratic_weighted_kappa,
    risk_coverage,
    spearman,
)
from metaprobe.eval.metrics.type2 import equal_grades, fit_meta_d, response_counts

FEW = settings(max_examples=25)

# Counts from the most confident "not there" to the most confident "there", without and with the signal: the example of
# HMeta-d (Fleming 2017, doi:10.1093/nc/nix007).
ABSENT = (52, 32, 35, 37, 26, 12, 4, 2)
PRESENT = (2, 5, 15, 22, 33, 38, 40, 45)


def by_response(absent, present):
    """(signal, response, grade) of counts in that order."""
    half = len(absent) // 2
    return np.array([[row[:half][::-1], row[half:]] for row in (absent, present)], dtype=float)


def expected_counts(d_prime, criterion, distances, *, meta_d=None, n=1000.0):
    """Returns the mean counts of n trials of each signal: responses with d', grades with meta-d'.

    `distances` (2, K-1): ascending, of each response's thresholds from the criterion, on its own side.
    """
    meta_d = d_prime if meta_d is None else meta_d
    middle = criterion / d_prime * meta_d
    counts = np.empty((2, 2, len(distances[0]) + 1))
    for signal, response in product((0, 1), (0, 1)):
        side = 1 if response else -1
        said = ndtr(side * ((signal - 0.5) * d_prime - criterion))
        edges = middle + side * np.array([0, *distances[response], np.inf])
        tails = ndtr(side * ((signal - 0.5) * meta_d - edges))
        counts[signal, response] = n * said * -np.diff(tails) / tails[0]
    return counts


steps = st.lists(st.floats(0.2, 0.8), min_size=3, max_size=3).map(np.cumsum)
observers = st.tuples(st.floats(0.5, 2.5), st.floats(-0.6, 0.6), st.tuples(steps, steps))


def test_meta_d_is_what_metadpy_publishes_for_the_same_counts():
    # metadpy's own test of its maximum likelihood fit (metadpy/tests/test_mle.py), with its padding of 1 / (2 K).
    fit = fit_meta_d(by_response(ABSENT, PRESENT))
    assert fit.d_prime[0] == pytest.approx(1.535, abs=5e-4)
    assert fit.meta_d[0] == pytest.approx(1.634, abs=5e-4)
    assert fit.m_ratio[0] == pytest.approx(1.064, abs=5e-4)


@FEW
@given(observers)
def test_an_ideal_observer_has_an_m_ratio_of_one(observer):
    d_prime, criterion, distances = observer
    fit = fit_meta_d(expected_counts(d_prime, criterion, distances), pad=0)
    assert fit.d_prime[0] == pytest.approx(d_prime)
    assert fit.criterion[0] == pytest.approx(criterion)
    assert fit.m_ratio[0] == pytest.approx(1, abs=1e-4)


@FEW
@given(observers, st.floats(0.2, 1.6))
def test_a_planted_m_ratio_is_found(observer, planted):
    d_prime, criterion, distances = observer
    counts = expected_counts(d_prime, criterion, distances, meta_d=planted * d_prime)
    assert fit_meta_d(counts, pad=0).m_ratio[0] == pytest.approx(planted, abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_no_general_optimiser_finds_a_better_likelihood(seed):
    counts = np.random.default_rng(seed).integers(0, 40, (2, 2, 4)).astype(float)
    counts[0, 0] += 20  # better than guessing
    counts[1, 1] += 20
    fit = fit_meta_d(counts)
    padded, relative = counts + 1 / 8, fit.criterion[0] / fit.d_prime[0]

    def loss(theta):
        value = 0.0
        for signal, response in product((0, 1), (0, 1)):
            side = 1 if response else -1
            away = np.cumsum(np.exp(theta[1 + 3 * response : 4 + 3 * response]))
            edges = relative * theta[0] + side * np.array([0, *away, np.inf])
            tails = ndtr(side * ((signal - 0.5) * theta[0] - edges))
            value -= padded[signal, response] @ np.log(np.maximum(-np.diff(tails) / max(tails[0], 1e-300), 1e-300))
        return value

    found = minimize(loss, np.r_[fit.d_prime[0], np.full(6, -0.7)], method="BFGS")
    assert fit.log_likelihood[0] == pytest.approx(-found.fun, abs=1e-4)
    assert fit.meta_d[0] == pytest.approx(found.x[0], abs=1e-2)


def test_what_cannot_be_fitted_is_refused_with_the_reason():
    assert np.isnan(fit_meta_d(by_response(PRESENT, ABSENT)).m_ratio[0]), "worse than guessing"
    with pytest.raises(ValueError, match="pad the counts"):
        fit_meta_d(by_response((0, *ABSENT[1:]), PRESENT), pad=0)
    with pytest.raises(ValueError, match="at least 2"):
        fit_meta_d(np.ones((2, 2, 1)))
    with pytest.raises(ValueError, match=r"\(2, 2, K\)"):
        fit_meta_d(np.ones((2, 4)))
    with pytest.raises(ValueError, match="got 1 of 3"):
        equal_grades([0.1, 0.2, 0.3], grades=1)
    with pytest.raises(ValueError, match="got 4 of 0"):
        equal_grades([])
    with pytest.raises(ValueError, match=r"grades whole; got \(2,\), \(2,\) and \(3,\)"):
        response_counts([0, 1], [0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match=r"grades whole; got \(2,\), \(3,\)"):
        response_counts([0, 1], [0, 1, 1], [0, 1])
    with pytest.raises(ValueError, match="of float64"):
        response_counts([0, 1], [0, 1], [0.0, 1.0])
    with pytest.raises(ValueError, match="the smallest is -1"):
        response_counts([0, 1], [0, 1], [-1, 0])


@st.composite
def two_scores(draw):
    """y with both classes at least twice, and two scores with ties."""
    rows = draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=25))
    return np.array([*rows, (0, 1, 4), (0, 5, 2), (1, 2, 2), (1, 6, 3)], dtype=float).T


def test_holm_is_as_in_the_textbook_and_leaves_out_what_has_no_p():
    assert holm([0.01, 0.04, np.nan, 0.03, 0.005]) == pytest.approx([0.03, 0.06, np.nan, 0.06, 0.02], nan_ok=True)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_the_p_and_bonferroni_and_keeps_their_order(p):
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(1, np.array(p) * len(p)) + 1e-12).all()
    assert all(a <= b for a, b in pairwise(adjusted[np.argsort(p, kind="stable")]))


@given(two_scores(), st.lists(st.integers(0, 2), min_size=29, max_size=29))
def test_stratified_auroc_counts_the_pairs_of_one_stratum(data, drawn):
    y, score, _ = data
    strata = np.array(drawn[: len(y)])
    weight = np.array(drawn[::-1][: len(y)])
    won = pairs = 0.0
    for i, j in product(range(len(y)), repeat=2):
        if strata[i] == strata[j] and y[i] == 1 and y[j] == 0:
            both = weight[i] * weight[j]
            pairs += both
            won += both * ((score[i] > score[j]) + 0.5 * (score[i] == score[j]))
    found = StratifiedAuroc(strata)(y, score, weight)
    assert found == pytest.approx(won / pairs) if pairs else np.isnan(found)
    whole = StratifiedAuroc(np.zeros(len(y)))
    assert whole(y, score) == pytest.approx(auroc(y, score))


@given(two_scores())
def test_prediction_rejection_ratio_is_what_the_curves_give(data):
    y, score, _ = data
    error = 1 - y.mean()
    area, best = (risk_coverage(y, ranking)[1].mean() for ranking in (score, y))
    assert prediction_rejection_ratio(y, score) == pytest.approx((error - area) / (error - best))
    assert prediction_rejection_ratio(y, y) == pytest.approx(1)
    assert prediction_rejection_ratio(y, np.zeros(len(y))) == pytest.approx(0, abs=1e-12)


@given(two_scores(), st.lists(st.integers(0, 2), min_size=29, max_size=29), st.booleans())
def test_the_rank_correlation_is_that_of_scipy_with_copies_for_weights(data, drawn, finely):
    _, grade, score = data
    if finely:  # more distinct values than are counted at once
        grade, score = np.tile(grade, 3) + np.arange(3 * len(grade)) / 50, np.tile(score, 3) - np.arange(3 * len(grade))
    weight = np.tile(np.resize(np.array(drawn), len(grade)), (2, 1))
    weight[:, [-1, -2]] += 1
    copied = np.repeat(grade, weight[0]), np.repeat(score, weight[0])
    values = spearman(grade, score, weight)
    assert [*values, spearman(*copied)] == pytest.approx([spearmanr(*copied).statistic] * 3)
    assert np.isnan(spearman(np.zeros(len(score)), score))


def test_what_cannot_be_paired_is_refused_with_both_shapes():
    for metric in (spearman, quadratic_weighted_kappa):
        with pytest.raises(ValueError, match=r"same shape; got \(3,\) and \(2,\)"):
            metric([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="3 strata for y of shape"):
        StratifiedAuroc(np.zeros(3))([0, 1], [0.1, 0.2])
    with pytest.raises(ValueError, match=r"non-empty one-dimensional array; got shape \(0,\)"):
        quadratic_weighted_kappa([], [])
    with pytest.raises(ValueError, match=r"one-dimensional array; got shape \(1, 2\)"):
        quadratic_weighted_kappa([[1, 2]], [[1, 2]])
    assert quadratic_weighted_kappa([2], [3]) == 0
