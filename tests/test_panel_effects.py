"""Rates of agents by dimension: fitted dimension by dimension, and held against one fit of everything together."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from metaprobe.training.panel.effects import (
    COMMON_PRECISION,
    FIRST_SD,
    FIRST_SLOPE_SD,
    SIGNAL_PRECISION,
    Effects,
    fit_effects,
)

Floats = NDArray[np.float64]


def outcomes(agents: int, dimensions: int, n: int, seed: int) -> dict[str, Any]:
    """Outcomes of agents that differ, on dimensions that differ and one that is not known, with signals."""
    rng = np.random.default_rng(seed)
    agent, dimension = rng.integers(0, agents, n), rng.integers(0, dimensions + 1, n)
    lead, others = rng.normal(size=n), rng.normal(size=(n, 2))
    odds = rng.normal(size=agents)[agent] + rng.normal(size=dimensions + 1)[dimension] + lead - 0.5 * others[:, 0]
    y = (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(np.float64)
    return {"agent": agent, "dimension": dimension, "y": y, "lead": lead, "others": others}


def fitted_together(
    agent: Any, dimension: Any, y: Floats, lead: Floats, others: Floats, *, shape: tuple[int, int], weigh: float
) -> tuple[Floats, Floats]:
    """Returns intercepts and slopes (A, D + 1) of one dense logistic regression with the same priors."""
    A, D = shape
    who, where = np.eye(A)[agent], np.eye(D + 1)[dimension][:, :D]
    both = (who[:, :, None] * where[:, None, :]).reshape(len(y), A * D)
    effects = np.concatenate([np.ones((len(y), 1)), who, where, both], axis=1)
    X = np.concatenate([effects, effects * lead[:, None], others], axis=1)
    parts = [
        np.repeat([COMMON_PRECISION, *np.array(sd) ** -2.0], [1, A, D, A * D]) for sd in (FIRST_SD, FIRST_SLOPE_SD)
    ]
    precision = np.concatenate([*parts, np.full(others.shape[1], SIGNAL_PRECISION)])

    def loss(w: Floats) -> tuple[float, Floats]:
        score = X @ w
        error = 1 / (1 + np.exp(-score)) - y
        value = weigh * float(np.logaddexp(0, score).sum() - y @ score) + float(precision @ w**2) / 2
        return value, weigh * (X.T @ error) + precision * w

    w = minimize(loss, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14}).x
    each, tables = 1 + A + D + A * D, []
    for at in (0, each):
        usual, of_dimension, of_both = (
            w[at] + w[at + 1 : at + 1 + A],
            w[at + 1 + A : at + 1 + A + D],
            w[at + 1 + A + D :],
        )
        known = usual[:, None] + of_dimension + of_both[: A * D].reshape(A, D)
        tables.append(np.concatenate([known, usual[:, None]], axis=1))
    return tables[0], tables[1]


@pytest.mark.parametrize(("agents", "dimensions", "n"), [(3, 4, 300), (5, 12, 400), (2, 30, 40), (4, 0, 60)])
def test_dimensions_that_are_fitted_one_by_one_give_the_fit_of_all_together(
    agents: int, dimensions: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.training.panel.effects.FIRST_STEPS", 40)
    monkeypatch.setattr("metaprobe.training.panel.effects._dispersion", lambda *given: 1.0)
    data = outcomes(agents, dimensions, n, seed=agents)
    sd = np.array([*FIRST_SD, *FIRST_SLOPE_SD])
    found = fit_effects(shape=(agents, dimensions), sd=sd, **data)
    intercept, slope = fitted_together(shape=(agents, dimensions), weigh=1.0, **data)
    np.testing.assert_allclose(found.intercept, intercept, atol=2e-3)
    np.testing.assert_allclose(found.slope, slope, atol=2e-3)


def test_a_dimension_without_answers_is_expected_to_be_what_the_agents_are_elsewhere() -> None:
    data = outcomes(3, 4, 300, seed=1)
    keep = data["dimension"] != 2
    fit = partial(fit_effects, shape=(3, 4))
    found: Effects = fit(**{name: values[keep] for name, values in data.items()})
    np.testing.assert_allclose(found.intercept[:, 2], found.intercept[:, 4], atol=1e-12)
    assert np.ptp(found.intercept[0]) > 0.1
