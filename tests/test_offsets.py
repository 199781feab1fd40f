"""Base rates of runs beside the weights of the evidence: what was planted is found, and few answers stay modest."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from metaprobe.training.calibration import sigmoid
from metaprobe.training.ladder import (
    FIRST_BETWEEN,
    INTERCEPT_SD,
    LEAST_BETWEEN,
    fit_offsets,
    scales_between,
)

WEIGHTS = np.array([1.0, -0.5])


def planted(runs: int, each: int, *, between: float, scales: float = 0.0, seed: int = 0):
    """Evidence (n, 2), labels, the run of each answer, and the runs' true offsets; each run has a scale of its own."""
    rng = np.random.default_rng(seed)
    offsets, scale = between * rng.normal(size=runs), 1 + scales * rng.normal(size=runs)
    place = np.repeat(np.arange(runs), each)
    Z = rng.normal(size=(len(place), 2))
    logit = 0.3 + offsets[place] + scale[place] * (Z @ WEIGHTS)
    y = (rng.uniform(size=len(place)) < sigmoid(logit)).astype(np.int64)
    return Z, y, np.char.add("run", np.char.zfill(place.astype(str), 3)), offsets


@pytest.mark.parametrize(("runs", "each"), [(60, 200), (150, 15)])
def test_the_spread_of_base_rates_is_recovered_from_runs_of_many_answers_and_of_few(runs: int, each: int) -> None:
    Z, y, names, _ = planted(runs, each, between=0.8)
    assert fit_offsets(Z, y, names).rates.between == pytest.approx(0.8, abs=0.2)


def test_planted_weights_and_base_rates_are_recovered() -> None:
    Z, y, runs, offsets = planted(60, 200, between=0.8)
    fit = fit_offsets(Z, y, runs)
    np.testing.assert_allclose(fit.weights, WEIGHTS, atol=0.07)
    found = np.array([fit.rates.runs[name] for name in sorted(fit.rates.runs)])
    true = offsets + 0.3
    assert np.abs(fit.rates.mean + found - true).max() < 0.55  # three standard errors of a run's rate
    assert np.corrcoef(found, offsets)[0, 1] > 0.95
    # Evidence that differs between runs is not taken for what tells their answers apart.
    place = np.unique(runs, return_inverse=True)[1]
    shifted = Z + np.array([1.0, 0.0]) * (3 * offsets[place])[:, None]
    np.testing.assert_allclose(fit_offsets(shifted, y, runs).weights, WEIGHTS, atol=0.12)


@pytest.mark.parametrize("seed", range(12))
def test_the_spread_of_base_rates_is_where_another_round_would_leave_it(seed: int) -> None:
    """Runs that hardly differ are the hard case: plain EM is far from its end after a hundred rounds."""
    Z, y, names, _ = planted(4, 40, between=0.1, seed=seed)
    fit = fit_offsets(Z, y, names)
    rates, place = fit.rates, np.unique(names, return_inverse=True)[1]
    p = sigmoid(rates.of(names) + Z @ fit.weights)
    own = np.bincount(place, p * (1 - p)) + rates.between**-2
    round_more = np.sqrt(np.mean(np.array([rates.runs[name] for name in np.unique(names)]) ** 2 + 1 / own))
    assert rates.between == pytest.approx(max(round_more, LEAST_BETWEEN), rel=1e-6)


@pytest.mark.parametrize("sd", [0.3, 1.0])
def test_of_one_run_it_is_the_logistic_regression_of_scikit_learn_with_the_same_prior(sd: float) -> None:
    Z, y, _, _ = planted(1, 300, between=0.0)
    fit = fit_offsets(Z, y, np.full(300, "one"), sd=sd)
    X = np.column_stack([sd * Z, np.full(300, INTERCEPT_SD)])  # so that each weight has a prior of N(0, 1)
    theirs = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(fit.weights, sd * theirs.coef_[0, :2], atol=1e-5)
    assert fit.rates.mean == pytest.approx(INTERCEPT_SD * theirs.coef_[0, 2], abs=1e-5)
    assert fit.rates.runs == {}
    assert fit.rates.between == FIRST_BETWEEN  # nothing shows it


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_still_has_a_finite_fit(label: int) -> None:
    rng = np.random.default_rng(0)
    Z, runs = rng.normal(size=(40, 2)), np.repeat(["a", "b"], 20)
    for names in (runs, np.full(40, "a")):
        fit = fit_offsets(Z, np.full(40, label), names)
        assert np.isfinite(fit.weights).all()
        p = sigmoid(Z @ fit.weights + fit.rates.of(names))
        assert np.isfinite(p).all()
        assert (np.abs(p - label) < 0.3).all()


def test_a_run_of_few_answers_stays_near_the_others_and_an_unknown_one_is_the_mean() -> None:
    Z, y, runs, _ = planted(20, 100, between=0.5)
    rng = np.random.default_rng(1)
    few, many = np.full(3, "few"), np.full(300, "many")
    Z = np.vstack([Z, rng.normal(size=(303, 2))])
    y, runs = np.concatenate([y, np.ones(303, dtype=np.int64)]), np.concatenate([runs, few, many])
    rates = fit_offsets(Z, y, runs).rates
    assert 0 < rates.runs["few"] < 0.5 * rates.runs["many"]
    found = rates.of(np.array(["few", "nobody", "many"]))
    np.testing.assert_allclose(found - rates.mean, [rates.runs["few"], 0.0, rates.runs["many"]])


@pytest.mark.parametrize(
    ("scales", "each", "low", "high"), [(0.4, 300, 0.25, 0.55), (0.4, 80, 0.2, 0.6), (0.0, 80, LEAST_BETWEEN, 0.2)]
)
def test_how_much_scales_of_runs_differ_is_recovered(scales: float, each: int, low: float, high: float) -> None:
    """The error of a scale that few answers show is not a difference between runs."""
    Z, y, runs, _ = planted(40, each, between=0.7, scales=scales, seed=2)
    assert low <= scales_between(Z @ WEIGHTS, y, runs) <= high
