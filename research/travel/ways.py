"""Six ways to use labels of answers by new models to new tasks; `measure.py` compares them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.features import TERMS
from metaprobe.records.errors import RecordError
from metaprobe.training.base_rates import fit_offsets, fit_scale
from metaprobe.training.calibrators import fit_platt
from metaprobe.training.folds import Roles, group_folds
from metaprobe.training.ladder import LadderRows, fit_ladder
from metaprobe.training.trees import fit_trees
from research.travel.sets import Answers, names_of

SIX = ("mean", "min", "total", "first", "halves", "length")
"""The terms of the smallest logistic regression that was tried."""
Floats = NDArray[np.float64]
Way = Callable[[NDArray[np.float32], Answers, Floats, NDArray[np.int64]], Floats]
"""Features (n, d), answers, log-odds of the default, rows whose labels are known -> log-odds (n,) of all rows."""


def adapted(X: NDArray[np.float32], answers: Answers, base: Floats, some: NDArray[np.int64]) -> Floats:
    """The bundled default with base rates and scale: `metaprobe adapt`."""
    fit = fit_scale(base[some], answers.y[some], answers.run[some])
    return fit.weights[0] * base + fit.rates.of(answers.run)


def platt_of_mean(X: NDArray[np.float32], answers: Answers, base: Floats, some: NDArray[np.int64]) -> Floats:
    """The mean log-probability, by Platt's map: what anybody would try first."""
    mean = np.array([values.mean() for values in answers.logprobs], dtype=np.float64)
    return fit_platt(mean[some], answers.y[some]).logit(mean)


def with_rates(*names: str) -> Way:
    """Returns a logistic regression on these terms with base rates of the runs, fitted on these labels alone."""

    def fitted(X: NDArray[np.float32], answers: Answers, base: Floats, some: NDArray[np.int64]) -> Floats:
        terms = X[:, -len(TERMS) :].astype(np.float64)[:, [TERMS.index(name) for name in names]]
        Z = (terms - terms[some].mean(axis=0)) / (terms[some].std(axis=0) + 1e-9)
        fit = fit_offsets(Z[some], answers.y[some], answers.run[some])
        return Z @ fit.weights + fit.rates.of(answers.run)

    return fitted


def trained(X: NDArray[np.float32], answers: Answers, base: Floats, some: NDArray[np.int64]) -> Floats:
    """`metaprobe train quality` on these labels alone."""
    roles = _roles(answers, some)
    fit = fit_ladder(LadderRows(X, answers.y, answers.group, answers.run, names_of("full+terms")), roles)
    scores = fit.score_of(X, answers.run)
    return fit_platt(scores[roles.calibration], answers.y[roles.calibration]).logit(scores)


def trees_alone(X: NDArray[np.float32], answers: Answers, base: Floats, some: NDArray[np.int64]) -> Floats:
    """The recipe before: LightGBM on all windows, without base rates. NaN where it finds nothing to split."""
    roles, names = _roles(answers, some), names_of("full")
    try:
        trees = fit_trees(X[:, : len(names)], answers.y, roles, names=names)
    except RecordError:
        return np.full(len(answers), np.nan)
    scores = trees.score(X[:, : len(names)])
    return fit_platt(scores[roles.calibration], answers.y[roles.calibration]).logit(scores)


WAYS: dict[str, Way] = {
    "adapted default": adapted,
    "trained": trained,
    "mean, Platt": platt_of_mean,
    "mean, base rates": with_rates("mean"),
    "six terms": with_rates(*SIX),
    "trees alone": trees_alone,
}


def _roles(answers: Answers, some: NDArray[np.int64]) -> Roles:
    """Roles among these rows."""
    parts = [part for _, part in group_folds(some, answers.group.tolist(), answers.y, 5, 1)]
    return Roles(np.sort(np.concatenate(parts[:3])), parts[3], parts[4], np.empty(0, dtype=np.int64))
