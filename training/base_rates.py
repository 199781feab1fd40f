"""Logistic regression with a base rate for every run.

What differs between runs is kept apart from what distinguishes answers of one run. A run is a model, a task and a way
of asking. Its base rate is an offset to the log-odds, drawn around the mean of all runs, N(0, between^2), so that a run
with few answers stays near that mean. `between` is estimated from the runs themselves (empirical Bayes, by EM with
Laplace's approximation).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.training.calibrators import (
    Floats,
    sigmoid,
)

WEIGHT_SD = 1.0
"""Standard deviation of the normal prior of a weight, in log-odds per standard deviation of its column."""
INTERCEPT_SD = 10.0
"""Standard deviation of the prior of the mean base rate. It hardly matters, but makes the fit finite if all answers are
of one class.
"""
FIRST_BETWEEN, LEAST_BETWEEN = 1.0, 0.05
ROUNDS = 100
SHORTEST = 1e-4
CLOSE = 1e-8
"""Largest change of a parameter at which the fit has converged."""
SETTLED = 0.01
"""Largest step of weights and offsets, in log-odds, below which the estimate of the runs' spread is extrapolated over
its rounds.
"""
FEWEST_FOR_SCALE = 20
"""Fewest answers of a run, with `FEWEST_OF_A_CLASS` right and wrong ones, for which the run gets a scale of its own."""
FEWEST_OF_A_CLASS = 5
USUAL_SCALES = 0.5
"""Standard deviation of the runs' scales, if there are too few runs to estimate it."""
AGREEMENT_SD = 0.5
"""Standard deviation, in log-odds and around 0, of the base rate that labels give to agreement: the root mean square of
the difference between the share of right answers and the mean agreement over the five stores of samples of the 0.5B
coder (docs/research/no-labels.md). It keeps 25 labels from moving the mean by their own chance."""
BESIDE_SD = 0.2
"""Standard deviation of the normal prior, around 0, of the weight that each term gets beside agreement when labels are
added to it, in log-odds per standard deviation of the term. Of 0.05, 0.1, 0.2 and 0.3 it had the highest mean AUROC at
25 and 50 labels on the five stores of the 0.5B coder (docs/research/no-labels.md)."""
LEAST_SCALE = 0.05
"""Smallest scale. If labels show that higher scores are worse, the order is kept and the scale is set to this."""
SAME_VALUE = 1e-9
"""Standard deviation, as a share of the mean's size, below which all values of a column count as equal."""
HELD_SD = 1e-6
"""Standard deviation of the prior of a weight that has to stay at its prior mean."""


@dataclass(frozen=True, slots=True)
class RunRates:
    """Base rates of the runs, in log-odds: of an answer whose evidence is 0."""

    mean: float = 0.0
    between: float = FIRST_BETWEEN
    """Standard deviation of the runs' base rates around their mean, in log-odds."""
    runs: Mapping[str, float] = field(default_factory=dict)
    """Maps a run to its offset from the mean base rate, shrunk towards 0."""

    def of(self, runs: NDArray[np.generic]) -> Floats:
        """Returns the log-odds (n,) of each answer's run; the mean for a run that is not known."""
        names, place = np.unique(runs, return_inverse=True)
        return self.mean + np.array([self.runs.get(str(name), 0.0) for name in names])[place]


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Fitted weights of the evidence, and fitted base rates of the runs."""

    weights: Floats
    """Weight of each of the k columns."""
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
    """Returns the weights of the columns, and the base rates of the runs.

    If there is one run, the mean is its base rate, and `between` keeps its assumed value.

    Args:
        Z: standardised columns (n, k).
        y: labels (n,) of 0 and 1.
        runs: run of each row (n,).
        expected: mean of the normal prior of each weight (k,).
        sd: standard deviation of this prior (k,).
        mean_sd: standard deviation of the prior of the mean base rate, around 0.
    """
    labels, k = np.asarray(y, dtype=np.float64), Z.shape[1]
    names, place = np.unique(runs, return_inverse=True)
    several = len(names) > 1
    r = len(names) if several else 0
    centre = np.broadcast_to(np.asarray(expected, dtype=np.float64), (k,))
    precision = np.concatenate([1 / np.broadcast_to(np.asarray(sd, dtype=np.float64), (k,)) ** 2, [mean_sd**-2]])
    prior, total = np.diag(precision), np.add.reduce  # NumPy's own sum takes longer to call than these arrays to add
    X = np.column_stack([Z, np.ones(len(Z))])
    # Rows of one run become neighbours, so that sums over runs take one call: a training makes tens of thousands.
    order = np.argsort(place, kind="stable") if r else slice(None)
    X, labels, place = np.ascontiguousarray(X[order]), labels[order], place[order]
    first = np.searchsorted(place, np.arange(r))
    common: NDArray[Any] = np.append(centre, 0.0)
    offsets: NDArray[Any] = np.zeros(r)
    between = FIRST_BETWEEN
    course = [between]
    target = np.append(centre, 0.0)

    def logits(common: NDArray[Any], offsets: NDArray[Any]) -> NDArray[Any]:
        shared: NDArray[Any] = X @ common
        return shared + offsets[place] if r else shared

    def penalty(common: NDArray[Any], offsets: NDArray[Any]) -> float:
        """Returns the penalty; loss plus penalty is the negative log posterior at the current `between`, up to a
        constant."""
        return float(precision @ (common - target) ** 2 / 2 + offsets @ offsets / between**2 / 2)

    logit = logits(common, offsets)
    softened = np.logaddexp(0, logit)
    loss = float(total(softened) - labels @ logit)
    for _ in range(ROUNDS):
        p = np.exp(logit - softened)  # the logarithm of 1 / (1 + exp(-x)) is x - log(1 + exp(x))
        error, slope = labels - p, p * (1 - p)
        weighted = slope[:, None] * X
        gradient = X.T @ error - precision * (common - target)
        curvature = X.T @ weighted + prior
        run_curvature: NDArray[Any] = np.zeros(0)
        moved: NDArray[Any] = np.zeros(0)
        if not r:
            step = np.linalg.solve(curvature, gradient)
        else:
            # The offsets' block is diagonal: they are solved for by themselves, given the common part.
            mixed = np.add.reduceat(weighted, first, axis=0).T  # (k + 1, r)
            run_curvature = mixed[k] + between**-2  # the last column of X is 1
            pull = np.add.reduceat(error, first) - offsets / between**2
            shares = mixed / run_curvature
            step = np.linalg.solve(curvature - shares @ mixed.T, gradient - shares @ pull)
            moved = (pull - mixed.T @ step) / run_curvature
        largest = max(np.maximum.reduce(np.abs(step)), np.maximum.reduce(np.abs(moved), initial=0.0))
        # A whole step of Newton's may lead away where many answers are far on the wrong side.
        now, part = loss + penalty(common, offsets), 1.0
        while True:
            common_there, offsets_there = common + part * step, offsets + part * moved
            logit = logits(common_there, offsets_there)
            softened = np.logaddexp(0, logit)
            loss = float(total(softened) - labels @ logit)
            if part <= SHORTEST or loss + penalty(common_there, offsets_there) <= now + CLOSE:
                break
            part /= 2
        common, offsets, before = common_there, offsets_there, between
        if r:
            between = max(math.sqrt(total(offsets**2 + 1 / run_curvature) / r), LEAST_BETWEEN)
        if max(largest, abs(between - before)) < CLOSE:
            break
        # Where the runs hardly differ, EM takes hundreds of rounds. Three show by which factor its steps shrink, and so
        # where they lead (Aitken's extrapolation), once the weights have settled: before, the steps are of their moves.
        course.append(between)
        if len(course) > 3:
            previous, latest = course[2] - course[1], course[3] - course[2]
            if largest < SETTLED and previous and 0 < latest / previous < 1:
                between = min(max(between + latest**2 / (previous - latest), LEAST_BETWEEN), 2 * between)
            course = [between]
    rates = RunRates(float(common[k]), between, {str(n): float(o) for n, o in zip(names, offsets, strict=False)})
    return Fit(common[:k], rates)


def fit_scale(
    before: Floats,
    y: NDArray[np.int64],
    runs: NDArray[np.str_],
    *,
    scales: float = 0.0,
    mean_sd: float = INTERCEPT_SD,
    beside: Floats | None = None,
) -> Fit:
    """Returns the scale of the log-odds `before` and the base rates of the runs, by labels.

    The scale is drawn towards 1, and is at least `LEAST_SCALE`. By default the mean of the base rates is not drawn
    anywhere, so that the mean probability is the share of right answers. The weights are those of the log-odds, then
    those of the columns beside them.

    Args:
        before: log-odds (n,), or several rising functions of them (n, k), each with a scale of its own.
        y: (n,) of 0 and 1.
        runs: (n,) which answers have a base rate in common.
        scales: how much scales differed among the runs that gave the log-odds; at least `USUAL_SCALES` is assumed.
        mean_sd: standard deviation of the normal prior, around 0, of the base rates' mean.
        beside: standardised columns (n, m) whose weights are drawn towards 0 (`BESIDE_SD`); None for none.
    """
    columns = before.reshape(len(before), -1)
    k = columns.shape[1]
    expected, sd = np.ones(k), np.full(k, max(USUAL_SCALES, scales))
    if beside is not None:
        columns, more = np.column_stack([columns, beside]), beside.shape[1]
        expected, sd = np.append(expected, np.zeros(more)), np.append(sd, np.full(more, BESIDE_SD))
    while True:
        fit = fit_offsets(columns, y, runs, expected=expected, sd=sd, mean_sd=mean_sd)
        low = (fit.weights < LEAST_SCALE) & (sd > HELD_SD)
        low[k:] = False
        if not low.any():
            return fit
        expected, sd = np.where(low, LEAST_SCALE, expected), np.where(low, HELD_SD, sd)


def standardised(columns: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns the columns (n, m) with mean 0 and standard deviation 1, then the means (m,) and deviations (m,).

    A column of one value has the deviation 1.
    """
    centre, spread = columns.mean(axis=0), columns.std(axis=0)
    spread = np.where(spread > SAME_VALUE * (1 + np.abs(centre)), spread, 1.0)  # a constant's is rounding, not 0
    return (columns - centre) / spread, centre, spread


def scales_between(evidence: Floats, y: ArrayLike, runs: NDArray[np.generic]) -> float:
    """Returns how much the runs' own scales of the evidence (n,) differ: their standard deviation around 1.

    Each run's scale is fitted with a base rate of its own. The variance that standard errors explain is subtracted (the
    moment estimator of DerSimonian and Laird 1986). `USUAL_SCALES` where fewer than three runs have enough answers.
    """
    labels, scales = np.asarray(y, dtype=np.float64), []
    for name in np.unique(runs):
        rows = np.flatnonzero(runs == name)
        ones = int(labels[rows].sum())
        if len(rows) >= FEWEST_FOR_SCALE and min(ones, len(rows) - ones) >= FEWEST_OF_A_CLASS:
            centred = evidence[rows] - evidence[rows].mean()
            fit = fit_offsets(centred[:, None], labels[rows], runs[rows], expected=1.0, sd=10.0)
            p = sigmoid(centred * fit.weights[0] + fit.rates.mean)
            scales.append((fit.weights[0], float(np.sum(p * (1 - p) * centred**2)) + 1e-12))
    if len(scales) < 3:
        return USUAL_SCALES
    scale, weight = np.array(scales).T
    mean = weight @ scale / weight.sum()
    excess = weight @ (scale - mean) ** 2 - (len(scale) - 1)
    spread = max(float(excess / (weight.sum() - weight @ weight / weight.sum())), 0.0)
    return max(float(np.sqrt(spread)), LEAST_BETWEEN)
