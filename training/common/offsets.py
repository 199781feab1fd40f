"""Logistic regression with a base rate for every run: what differs between runs is kept apart from what
distinguishes answers of one run.

A run is a model, a task and a way of asking. Its base rate is an offset to the log-odds, drawn around the mean of all
runs, N(0, between^2), so that a run with few answers stays near that mean; `between` is estimated from the runs
themselves (empirical Bayes, by EM with Laplace's approximation).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.training.common.calibrators import Floats, sigmoid

WEIGHT_SD = 1.0
"""Of the normal prior of a weight, per standard deviation of its column."""
INTERCEPT_SD = 10.0
"""Of the mean's prior: nearly none, but the answers of one class still have a finite fit."""
FIRST_BETWEEN, LEAST_BETWEEN = 1.0, 0.05
ROUNDS = 100
SHORTEST = 1e-4
CLOSE = 1e-8
"""Largest change of a parameter at which the fit is taken as found."""
FEWEST_FOR_SCALE = 20
"""Answers of a run, with `FEWEST_OF_A_CLASS` of either kind, from which its own scale can be estimated."""
FEWEST_OF_A_CLASS = 5
USUAL_SCALES = 0.5
"""Standard deviation of the runs' scales where too few runs show it."""


@dataclass(frozen=True, slots=True)
class RunRates:
    """What the runs' base rates are, as log-odds at evidence of 0."""

    mean: float = 0.0
    between: float = FIRST_BETWEEN
    """Standard deviation of the runs around the mean."""
    runs: Mapping[str, float] = field(default_factory=dict)
    """Run -> its offset from the mean, shrunk towards 0."""

    def of(self, runs: NDArray[np.generic]) -> Floats:
        """Returns the log-odds (n,) of each answer's run; the mean for a run that is not known."""
        names, place = np.unique(runs, return_inverse=True)
        return self.mean + np.array([self.runs.get(str(name), 0.0) for name in names])[place]


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Weights of the evidence, and the base rates beside it."""

    weights: Floats
    """(k,)"""
    rates: RunRates


def fit_offsets(
    Z: Floats,
    y: ArrayLike,
    runs: NDArray[np.generic],
    *,
    expected: ArrayLike = 0.0,
    sd: ArrayLike = WEIGHT_SD,
    mean_sd: float = INTERCEPT_SD,
) -> Fit:
    """Returns the weights of the columns of Z (n, k), standardised beforehand, and the base rates of the runs.

    `y` (n,): 0 and 1. `expected`, `sd`: mean and standard deviation of the normal prior of each weight (k,); `mean_sd`
    that of the mean, around 0. Of one run the mean is its base rate, and `between` stays as it is assumed.
    """
    labels, k = np.asarray(y, dtype=np.float64), Z.shape[1]
    names, place = np.unique(runs, return_inverse=True)
    several = len(names) > 1
    r = len(names) if several else 0
    centre = np.broadcast_to(np.asarray(expected, dtype=np.float64), (k,))
    precision = np.concatenate([1 / np.broadcast_to(np.asarray(sd, dtype=np.float64), (k,)) ** 2, [mean_sd**-2]])
    X = np.column_stack([Z, np.ones(len(Z))])
    # Rows of one run become neighbours, so that sums over runs take one call: a training makes tens of thousands.
    order = np.argsort(place, kind="stable") if r else slice(None)
    X, labels, place = np.ascontiguousarray(X[order]), labels[order], place[order]
    first = np.searchsorted(place, np.arange(r))
    common: NDArray[Any] = np.append(centre, 0.0)
    offsets: NDArray[Any] = np.zeros(r)
    between = FIRST_BETWEEN
    target = np.append(centre, 0.0)

    def logits(common: NDArray[Any], offsets: NDArray[Any]) -> NDArray[Any]:
        shared: NDArray[Any] = X @ common
        return shared + offsets[place] if r else shared

    def penalty(common: NDArray[Any], offsets: NDArray[Any]) -> float:
        """With the loss, minus the log of the posterior, but for a constant, with `between` as it stands."""
        return float(precision @ (common - target) ** 2 / 2 + offsets @ offsets / between**2 / 2)

    logit = logits(common, offsets)
    softened = np.logaddexp(0, logit)
    loss = float(softened.sum() - labels @ logit)
    for _ in range(ROUNDS):
        p = np.exp(logit - softened)  # the logarithm of 1 / (1 + exp(-x)) is x - log(1 + exp(x))
        error, slope = labels - p, p * (1 - p)
        weighted = slope[:, None] * X
        gradient = X.T @ error - precision * (common - target)
        curvature = X.T @ weighted + np.diag(precision)
        own: NDArray[Any] = np.zeros(0)
        moved: NDArray[Any] = np.zeros(0)
        if not r:
            step = np.linalg.solve(curvature, gradient)
        else:
            # The offsets' block is diagonal: they are solved for by themselves, given the common part.
            mixed = np.add.reduceat(weighted, first, axis=0).T  # (k + 1, r)
            own = mixed[k] + between**-2  # the last column of X is 1
            pull = np.add.reduceat(error, first) - offsets / between**2
            step = np.linalg.solve(curvature - (mixed / own) @ mixed.T, gradient - (mixed / own) @ pull)
            moved = (pull - mixed.T @ step) / own
        largest = max(np.abs(step).max(initial=0.0), np.abs(moved).max(initial=0.0))
        # A whole step of Newton's may lead away where many answers are far on the wrong side.
        now, part = loss + penalty(common, offsets), 1.0
        while True:
            there, offsets_there = common + part * step, offsets + part * moved
            logit = logits(there, offsets_there)
            softened = np.logaddexp(0, logit)
            loss = float(softened.sum() - labels @ logit)
            if part <= SHORTEST or loss + penalty(there, offsets_there) <= now + CLOSE:
                break
            part /= 2
        common, offsets, before = there, offsets_there, between
        if r:
            between = max(float(np.sqrt(np.mean(offsets**2 + 1 / own))), LEAST_BETWEEN)
        if max(largest, abs(between - before)) < CLOSE:
            break
    rates = RunRates(float(common[k]), between, {str(n): float(o) for n, o in zip(names, offsets, strict=False)})
    return Fit(common[:k], rates)


def scales_between(evidence: Floats, y: ArrayLike, runs: NDArray[np.generic]) -> float:
    """Returns how much the runs' own scales of the evidence (n,) differ: their standard deviation around 1.

    Each run's scale is fitted with a base rate of its own; what its standard error explains is taken away (the moment
    estimator of DerSimonian and Laird 1986). `USUAL_SCALES` where fewer than three runs have enough answers.
    """
    labels, found = np.asarray(y, dtype=np.float64), []
    for name in np.unique(runs):
        rows = np.flatnonzero(runs == name)
        ones = int(labels[rows].sum())
        if len(rows) >= FEWEST_FOR_SCALE and min(ones, len(rows) - ones) >= FEWEST_OF_A_CLASS:
            here = evidence[rows] - evidence[rows].mean()
            fit = fit_offsets(here[:, None], labels[rows], runs[rows], expected=1.0, sd=10.0)
            p = sigmoid(here * fit.weights[0] + fit.rates.mean)
            found.append((fit.weights[0], float(np.sum(p * (1 - p) * here**2)) + 1e-12))
    if len(found) < 3:
        return USUAL_SCALES
    scale, weight = np.array(found).T
    mean = weight @ scale / weight.sum()
    excess = weight @ (scale - mean) ** 2 - (len(scale) - 1)
    spread = max(float(excess / (weight.sum() - weight @ weight / weight.sum())), 0.0)
    return max(float(np.sqrt(spread)), LEAST_BETWEEN)
