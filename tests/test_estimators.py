"""The probes keep scikit-learn's conventions."""

from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.utils.estimator_checks import parametrize_with_checks

from metaprobe.training.hidden.estimators import ProbeClassifier
from metaprobe.training.linear.probe import Kind


@parametrize_with_checks([ProbeClassifier(kind) for kind in ("logistic", "ridge", "mass-mean")])
def test_scikit_learns_own_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_search_over_kinds_and_penalties_finds_a_planted_direction() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    X = rng.normal(size=(300, 20))
    X[:, 3] += 2 * y
    search = GridSearchCV(
        ProbeClassifier(),
        {"kind": ["logistic", "mass-mean"], "penalty": [0.1, 1.0]},
        cv=GroupKFold(3),
        scoring="roc_auc",
    ).fit(X, y, groups=np.arange(300) // 3)
    assert search.best_score_ > 0.85
    assert int(np.argmax(np.abs(search.best_estimator_.coef_[0]))) == 3
    np.testing.assert_allclose(search.predict_proba(X).sum(axis=1), 1)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="expected one of logistic, ridge, mass-mean"):
        ProbeClassifier("quadratic").fit(np.eye(4), [0, 1, 0, 1])  # type: ignore[arg-type]


@pytest.mark.parametrize("penalty", [-1.0, 0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["logistic", "ridge"])
def test_a_penalty_that_is_none_is_named(kind: Kind, penalty: float) -> None:
    with pytest.raises(ValueError, match=rf"penalty is {penalty}; expected a positive number"):
        ProbeClassifier(kind, penalty).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.parametrize("kind", ["logistic", "ridge", "mass-mean"])
@pytest.mark.parametrize("size", [1e-8, 1e8])
def test_what_a_probe_says_does_not_depend_on_the_size_of_the_states(kind: Kind, size: float) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    X = rng.normal(size=(300, 20))
    X[:, 3] += 2 * y
    X[:, 4] = 0.3  # constant
    usual, scaled = ProbeClassifier(kind).fit(X, y), ProbeClassifier(kind).fit(X * size, y)
    np.testing.assert_allclose(scaled.decision_function(X * size), usual.decision_function(X), atol=2e-3)
