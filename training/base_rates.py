"""Logistic regression with a base rate for every run.

The base rates separate differences between runs from differences between answers of one run. A run is a model, a task
and a way of asking. Its base rate is an offset to the log-odds, with the prior N(0, between^2) around the mean of all
runs. So a run with few answers stays near that mean. `between` is estimated from the runs themselves (empirical Bayes,
by EM with Laplace's approximation).
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
FIRST_BETWEEN, MIN_BETWEEN = 1.0, 0.05
"""First and smallest value of `between`, in log-odds."""
MAX_FIT_ROUNDS = 100
"""Most rounds of a fit."""
MIN_STEP_PART = 1e-4
"""Smallest fraction of a Newton step that is tried."""
CONVERGED_PARAMETER_CHANGE = 1e-8
"""Largest change of a parameter at which the fit has converged."""
MAX_SETTLED_STEP = 0.01
"""Weights and offsets count as settled if no step is larger than this, in log-odds. Only then is `between`
extrapolated.
"""
MIN_SCALE_ANSWERS = 20
"""Fewest answers of a run for which the run gets a scale of its own."""
MIN_SCALE_CLASS_ANSWERS = 5
"""Fewest right, and fewest wrong, answers among these."""
MIN_SCALE_SD = 0.5
"""Standard deviation of the runs' scales that is assumed if there are too few runs to estimate it. `fit_scale` assumes
at least this.
"""
AGREEMENT_SD = 0.5
"""Standard deviation, in log-odds and around 0, of the base rate that labels give to agreement: the root mean square of
the difference between the share of right answers and the mean agreement over the five stores of samples of the 0.5B
coder (docs/research/no-labels.md). It keeps 25 labels from moving the mean by their own chance."""
BESIDE_SD = 0.2
"""Standard deviation of the normal prior, around 0, of each term's weight beside agreement when labels are added to it.
Its unit is log-odds per standard deviation of the term. Of 0.05, 0.1, 0.2 and 0.3 it had the highest mean AUROC at 25
and 50 labels on the five stores of the 0.5B coder (docs/research/no-labels.md)."""
LEAST_SCALE = 0.05
"""Smallest scale. If labels show that higher scores are worse, the order is kept and the scale is set to this."""
SAME_VALUE = 1e-9
"""Standard deviation, as a share of the mean's size, below which all values of a column count as equal."""
HELD_SD = 1e-6
"""Standard deviation of the prior of a weight that has to stay at its prior mean."""


@dataclass(frozen=True, slots=True)
class RunRates:
    """Base rates of the runs: log-odds of an answer whose evidence is 0."""

    mean: float = 0.0
    """Mean of the runs' base rates, in log-odds."""
    between: float = FIRST_BETWEEN
    """Standard deviation of the runs' base rates around their mean, in log-odds."""
    runs: Mapping[str, float] = field(default_factory=dict)
    """Maps a run to its offset from the mean base rate, shrunk towards 0."""

    def of(self, runs: NDArray[np.generic]) -> Floats:
        """Returns the log-odds (n,) of each answer's run; the mean for a run that is not known."""
        names, run_index = np.unique(runs, return_inverse=True)
        return self.mean + np.array([self.runs.get(str(name), 0.0) for name in names])[run_index]


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
    # Runs, priors and columns. The last column is constant, for the mean base rate.
    labels, k = np.asarray(y, dtype=np.float64), Z.shape[1]
    names, run_of_row = np.unique(runs, return_inverse=True)
    has_several_runs = len(names) > 1
    r = len(names) if has_several_runs else 0
    centre = np.broadcast_to(np.asarray(expected, dtype=np.float64), (k,))
    precision = np.concatenate([1 / np.broadcast_to(np.asarray(sd, dtype=np.float64), (k,)) ** 2, [mean_sd**-2]])
    prior, fast_sum = np.diag(precision), np.add.reduce  # `np.sum` takes longer to call than to add
    X = np.column_stack([Z, np.ones(len(Z))])
    # Rows of one run become neighbours, so that sums over runs take one call. A training makes tens of thousands.
    order = np.argsort(run_of_row, kind="stable") if r else slice(None)
    X, labels, run_of_row = np.ascontiguousarray(X[order]), labels[order], run_of_row[order]
    first_row_of_run = np.searchsorted(run_of_row, np.arange(r))
    common: NDArray[Any] = np.append(centre, 0.0)
    offsets: NDArray[Any] = np.zeros(r)
    between = FIRST_BETWEEN
    between_history = [between]
    target = np.append(centre, 0.0)

    def logits(common: NDArray[Any], offsets: NDArray[Any]) -> NDArray[Any]:
        shared: NDArray[Any] = X @ common
        return shared + offsets[run_of_row] if r else shared

    def penalty(common: NDArray[Any], offsets: NDArray[Any]) -> float:
        """Returns the penalty; loss plus penalty is the negative log posterior at the current `between`, up to a
        constant."""
        return float(precision @ (common - target) ** 2 / 2 + offsets @ offsets / between**2 / 2)

    # Each round takes a Newton step of weights and offsets, and then estimates `between`.
    logit = logits(common, offsets)
    softplus = np.logaddexp(0, logit)
    loss = float(fast_sum(softplus) - labels @ logit)
    for _ in range(MAX_FIT_ROUNDS):
        p = np.exp(logit - softplus)  # the logarithm of 1 / (1 + exp(-x)) is x - log(1 + exp(x))
        error, slope = labels - p, p * (1 - p)
        weighted = slope[:, None] * X
        gradient = X.T @ error - precision * (common - target)
        curvature = X.T @ weighted + prior
        run_curvature: NDArray[Any] = np.zeros(0)
        offset_step: NDArray[Any] = np.zeros(0)
        if not r:
            step = np.linalg.solve(curvature, gradient)
        else:
            # The offsets' block of the Hessian is diagonal, so offsets are eliminated, given the common part.
            mixed = np.add.reduceat(weighted, first_row_of_run, axis=0).T  # (k + 1, r)
            run_curvature = mixed[k] + between**-2  # the last column of X is 1
            pull = np.add.reduceat(error, first_row_of_run) - offsets / between**2
            shares = mixed / run_curvature
            step = np.linalg.solve(curvature - shares @ mixed.T, gradient - shares @ pull)
            offset_step = (pull - mixed.T @ step) / run_curvature
        largest_step = max(np.maximum.reduce(np.abs(step)), np.maximum.reduce(np.abs(offset_step), initial=0.0))
        # A full Newton step may increase the loss if many answers are far on the wrong side, so it may be halved.
        loss_before, step_part = loss + penalty(common, offsets), 1.0
        while True:
            next_common, next_offsets = common + step_part * step, offsets + step_part * offset_step
            logit = logits(next_common, next_offsets)
            softplus = np.logaddexp(0, logit)
            loss = float(fast_sum(softplus) - labels @ logit)
            if (
                step_part <= MIN_STEP_PART
                or loss + penalty(next_common, next_offsets) <= loss_before + CONVERGED_PARAMETER_CHANGE
            ):
                break
            step_part /= 2
        common, offsets, previous_between = next_common, next_offsets, between
        if r:
            between = max(math.sqrt(fast_sum(offsets**2 + 1 / run_curvature) / r), MIN_BETWEEN)
        if max(largest_step, abs(between - previous_between)) < CONVERGED_PARAMETER_CHANGE:
            break
        # If the runs hardly differ, EM takes hundreds of rounds. Three rounds show the factor by which steps shrink,
        # and so the limit (Aitken's extrapolation). It holds only once the weights have settled, because earlier steps
        # of `between` follow the moves of the weights.
        between_history.append(between)
        if len(between_history) > 3:
            previous, latest = between_history[2] - between_history[1], between_history[3] - between_history[2]
            if largest_step < MAX_SETTLED_STEP and previous and 0 < latest / previous < 1:
                between = min(max(between + latest**2 / (previous - latest), MIN_BETWEEN), 2 * between)
            between_history = [between]
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

    The scale is drawn towards 1, and is at least `LEAST_SCALE`. By default the mean base rate has a wide prior, so that
    the mean probability is the share of right answers. The weights are those of the log-odds, then those of the columns
    in `beside`.

    Args:
        before: log-odds (n,), or several rising functions of them (n, k), each with a scale of its own.
        y: labels (n,) of 0 and 1.
        runs: run of each answer (n,). Answers of one run share a base rate.
        scales: how much scales differed among the runs that gave the log-odds; at least `MIN_SCALE_SD` is assumed.
        mean_sd: standard deviation of the normal prior, around 0, of the base rates' mean.
        beside: standardised columns (n, m) whose weights are drawn towards 0 (`BESIDE_SD`); None for none.
    """
    columns = before.reshape(len(before), -1)
    k = columns.shape[1]
    expected, sd = np.ones(k), np.full(k, max(MIN_SCALE_SD, scales))
    if beside is not None:
        columns, beside_count = np.column_stack([columns, beside]), beside.shape[1]
        expected, sd = np.append(expected, np.zeros(beside_count)), np.append(sd, np.full(beside_count, BESIDE_SD))
    while True:
        fit = fit_offsets(columns, y, runs, expected=expected, sd=sd, mean_sd=mean_sd)
        is_too_low = (fit.weights < LEAST_SCALE) & (sd > HELD_SD)
        is_too_low[k:] = False
        if not is_too_low.any():
            return fit
        expected, sd = np.where(is_too_low, LEAST_SCALE, expected), np.where(is_too_low, HELD_SD, sd)


def standardised(columns: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns the columns (n, m) with mean 0 and standard deviation 1, then the means (m,) and deviations (m,).

    A column of one value has the deviation 1.
    """
    centre, spread = columns.mean(axis=0), columns.std(axis=0)
    spread = np.where(
        spread > SAME_VALUE * (1 + np.abs(centre)), spread, 1.0
    )  # rounding gives a constant column a deviation above 0
    return (columns - centre) / spread, centre, spread


def scales_between(evidence: Floats, y: ArrayLike, runs: NDArray[np.generic]) -> float:
    """Returns how much the runs' own scales of the evidence (n,) differ: their standard deviation around 1.

    Each run's scale is fitted with a base rate of its own. The variance that standard errors explain is subtracted (the
    moment estimator of DerSimonian and Laird 1986). Returns `MIN_SCALE_SD` if fewer than three runs have enough
    answers.
    """
    labels, scales = np.asarray(y, dtype=np.float64), []
    for name in np.unique(runs):
        rows = np.flatnonzero(runs == name)
        ones = int(labels[rows].sum())
        if len(rows) >= MIN_SCALE_ANSWERS and min(ones, len(rows) - ones) >= MIN_SCALE_CLASS_ANSWERS:
            centred = evidence[rows] - evidence[rows].mean()
            fit = fit_offsets(centred[:, None], labels[rows], runs[rows], expected=1.0, sd=10.0)
            p = sigmoid(centred * fit.weights[0] + fit.rates.mean)
            scales.append((fit.weights[0], float(np.sum(p * (1 - p) * centred**2)) + 1e-12))
    if len(scales) < 3:
        return MIN_SCALE_SD
    scale, weight = np.array(scales).T
    mean = weight @ scale / weight.sum()
    excess = weight @ (scale - mean) ** 2 - (len(scale) - 1)
    spread = max(float(excess / (weight.sum() - weight @ weight / weight.sum())), 0.0)
    return max(float(np.sqrt(spread)), MIN_BETWEEN)
