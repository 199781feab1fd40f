"""Metacognitive efficiency of two-choice tasks: how much of the knowledge behind an answer is in its confidence.

Signal detection theory with equal variances (Maniscalco and Lau 2012, doi:10.1016/j.concog.2011.09.021; the likelihood
is written out in their chapter of 2014, doi:10.1007/978-3-642-45190-4_3). The signal is present (1) or absent (0). The
response says that it is present (1) or absent (0). A grade 0 ... K-1 says how confident the response was. d' is what
the responses know about the signal. meta-d' is the d' with which an ideal observer would have graded its responses as
these are graded. If it equals d', the confidence uses all that the response used.

Letters: R weightings (bootstrap resamples), K grades, P = 1 + 2 (K - 1) parameters.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.metrics.ranked import Floats, check_labels, check_weights, checked_scores, ratio
from metaprobe.records.extras import require

GRADES = 4
"""Number of grades of confidence."""
MAX_TYPE2_STEPS = 100
"""Most steps of the fit; about ten suffice."""
FIT_TOLERANCE = 1e-9
"""Gain in log-likelihood below which a fit has ended: the estimate then moves by less than a thousandth of
its error.
"""


@dataclass(frozen=True, slots=True, eq=False)
class MetaD:
    """Fits of meta-d' on R resamples; each field has shape (R,)."""

    d_prime: Floats
    criterion: Floats
    """Criterion c. Above 0, the response 1 is given less often than by an unbiased observer."""
    meta_d: Floats
    """meta-d'. nan if d' is 0 or below: then the model has no relative criterion c / d'."""
    log_likelihood: Floats
    """Log-likelihood of the grades, given the responses; nats."""

    @property
    def m_ratio(self) -> Floats:
        """The share of the knowledge behind answers that is in the confidence: meta-d' / d' (R,)."""
        return ratio(self.meta_d, self.d_prime)


def equal_grades(confidence: ArrayLike, *, grades: int = GRADES) -> NDArray[np.int64]:
    """Returns grades 0 ... K-1 (n,) of equal mass, higher for more confident; equal confidences get one grade.

    K may be less than `grades` if there are many ties.
    """
    values = checked_scores(confidence)
    if grades < 2 or values.size == 0:
        raise ValueError(f"at least 2 grades of at least one confidence are needed; got {grades} of {values.size}")
    _, pool, count = np.unique(values, return_inverse=True, return_counts=True)
    twice_mid = 2 * np.cumsum(count) - count
    bins = np.minimum(grades * twice_mid // (2 * len(values)), grades - 1)
    return np.asarray(np.unique(bins, return_inverse=True)[1][pool], dtype=np.int64)


def response_counts(
    signal: ArrayLike, response: ArrayLike, grade: ArrayLike, weight: ArrayLike | None = None
) -> NDArray[np.int64]:
    """Returns how often each grade was given, by signal and response, (R, 2, 2, K).

    Args:
        signal: the signals (n,) of 0 and 1.
        response: the responses (n,) of 0 and 1.
        grade: the grades (n,) of 0 ... K-1.
        weight: multiplicities of the answers.
    """
    signals, responses = check_labels(signal).astype(int), check_labels(response).astype(int)
    grades = np.asarray(grade)
    if grades.dtype.kind not in "iu" or grades.shape != signals.shape or responses.shape != signals.shape:
        raise ValueError(
            f"signal, response and grade must have one shape, grades whole; got {signals.shape}, {responses.shape} "
            f"and {grades.shape} of {grades.dtype}"
        )
    if grades.min() < 0:
        raise ValueError(f"grades begin at 0; the smallest is {grades.min()}")
    weights, _ = check_weights(weight, len(signals))
    grade_count = int(grades.max()) + 1
    cell = (2 * signals + responses) * grade_count + grades
    counts = weights @ (cell[:, None] == np.arange(4 * grade_count)).astype(np.int64)
    return np.asarray(counts.reshape(len(weights), 2, 2, grade_count), dtype=np.int64)


def sensitivity(counts: ArrayLike, *, pad: float | None = None) -> tuple[Floats, Floats]:
    """Returns d' and criterion (R,) of the responses, whatever their grades. Counts and `pad` as in `fit_meta_d`."""
    padded = _pad(counts, pad)
    quantile: Any = require("scipy.special", "fit").ndtri
    share = ratio(padded[:, :, 1].sum(axis=2), padded.sum(axis=(2, 3)))  # (R, signal): share of responses that are 1
    false_alarm, hit = quantile(share).T
    return hit - false_alarm, -(hit + false_alarm) / 2


def fit_meta_d(counts: ArrayLike, *, pad: float | None = None) -> MetaD:
    """Returns d', criterion and meta-d' by maximum likelihood.

    As the authors do, the criterion relative to d' is that of the responses, and only the grades are fitted, each given
    its response. All R fits run together, by Fisher scoring, which is damped if a step would lose likelihood
    (Levenberg-Marquardt). Raises ValueError for fewer than two grades, and without padding for empty cells.

    Args:
        counts: counts (2, 2, K) or (R, 2, 2, K) as `response_counts` returns them.
        pad: added to every cell, by default 1 / (2 K) as the authors advise, so that no rate is 0 or 1.
    """
    padded = _pad(counts, pad)
    if padded.shape[3] < 2:
        raise ValueError("all grades are equal: meta-d' needs at least 2")
    d_prime, criterion = sensitivity(padded, pad=0)
    meta_d, likelihood = (np.full(len(padded), np.nan) for _ in range(2))
    if (usable := np.flatnonzero(d_prime > 0)).size:
        relative = criterion[usable] / d_prime[usable]
        start = _start(padded[usable], d_prime[usable])
        meta_d[usable], likelihood[usable] = _fit(padded[usable], relative, start)
    return MetaD(d_prime, criterion, meta_d, likelihood)


def _pad(counts: ArrayLike, pad: float | None) -> Floats:
    """Returns the counts (R, 2, 2, K), all above 0."""
    raw = np.asarray(counts, dtype=np.float64)
    raw = raw[None] if raw.ndim == 3 else raw
    if raw.ndim != 4 or raw.shape[1:3] != (2, 2) or raw.shape[3] < 1:
        raise ValueError(f"counts must have shape (2, 2, K) or (R, 2, 2, K); got {raw.shape}")
    padded: Floats = raw + (1 / (2 * raw.shape[3]) if pad is None else pad)
    if not (padded > 0).all():
        raise ValueError("a cell is empty or negative: pad the counts, or use fewer grades")
    return padded


def _start(counts: Floats, d_prime: Floats) -> Floats:
    """Returns the start of the fit (R, P): meta-d' = d', and criteria from the shares of each grade or a higher one."""
    quantile: Any = require("scipy.special", "fit").ndtri
    share = counts / counts.sum(axis=(2, 3), keepdims=True)  # of each signal's answers
    tail = np.cumsum(share[..., ::-1], axis=3)[..., ::-1]  # (R, signal, response, K): this grade or a higher one
    z = quantile(np.stack([tail[:, :, r] for r in (0, 1)], axis=1))  # (R, response, signal, K)
    thresholds = -z.sum(axis=2) / 2  # away from the middle, on either side
    return np.concatenate([d_prime[:, None], np.log(np.diff(thresholds)).reshape(len(counts), -1)], axis=1)


def _fit(counts: Floats, relative: Floats, theta: Floats) -> tuple[Floats, Floats]:
    """Returns meta-d' (R,), and the log-likelihood (R,) at its maximum.

    Args:
        counts: the counts (R, 2, 2, K).
        relative: the relative criterion c / d' (R,).
        theta: start of the fit (R, P).
    """
    # By response and whether it was right: (R, response, wrong or right, K).
    by_right = np.stack([counts[:, ::-1, 0], counts[:, :, 1]], axis=1)
    likelihood, gradient, information = _likelihood(theta, relative, by_right)
    damping = np.full(len(theta), 1e-2)
    eye = np.eye(theta.shape[1])
    for _ in range(MAX_TYPE2_STEPS):
        scale = np.diagonal(information, axis1=1, axis2=2)[:, :, None] + 1e-9
        step = np.linalg.solve(information + damping[:, None, None] * scale * eye, gradient[:, :, None])[:, :, 0]
        trial = theta + np.clip(step, -2, 2)
        trial_likelihood, slope, curvature = _likelihood(trial, relative, by_right)
        better = trial_likelihood >= likelihood  # False for nan
        gain = np.where(better, trial_likelihood - likelihood, np.inf)
        theta, likelihood = np.where(better[:, None], trial, theta), np.where(better, trial_likelihood, likelihood)
        gradient = np.where(better[:, None], slope, gradient)
        information = np.where(better[:, None, None], curvature, information)
        # A fit that no step of any size improves is at its end too.
        ended = (gain < FIT_TOLERANCE) | (damping > 1e10)
        damping = np.where(better, np.maximum(damping / 10, 1e-12), damping * 10)
        if ended.all():
            break
    return theta[:, 0], likelihood


def _likelihood(theta: Floats, relative: Floats, counts: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns the log-likelihood (R,), its gradient (R, P) and expected information (R, P, P).

    Both responses are put in one frame; the response 0 is mirrored. Right answers come from N(D/2, 1) and wrong ones
    from N(-D/2, 1). A response was given because the evidence was above t_0 = +-(c / d') D. Its grade is at least j if
    the evidence was above t_j. The steps from one t to the next are exp(theta), so that they stay in order.

    Args:
        theta: the parameters (R, P).
        relative: the relative criterion c / d' (R,).
        counts: the counts (R, 2, 2, K).
    """
    normal: Any = require("scipy.special", "fit").ndtr
    rows, parameters = theta.shape
    grade_count = counts.shape[3]
    d, steps = theta[:, 0], np.exp(theta[:, 1:]).reshape(rows, 2, grade_count - 1)
    side = np.stack([-relative, relative], axis=1)  # (R, response)
    first_threshold = (side * d[:, None])[:, :, None]
    thresholds = np.concatenate(
        [first_threshold, first_threshold + np.cumsum(steps, axis=2)], axis=2
    )  # (R, response, K)
    half = np.array([-0.5, 0.5])  # of D: the mean of wrong and of right answers
    distance = half[None, None, :, None] * d[:, None, None, None] - thresholds[:, :, None, :]  # (R, 2, 2, K)
    tail, density = normal(distance), np.exp(-(distance**2) / 2) / np.sqrt(2 * np.pi)

    slopes = np.zeros((rows, 2, 2, grade_count + 1, parameters))  # of the tails; the last tail is 0
    slopes[:, :, :, :grade_count, 0] = density * (half[None, None, :, None] - side[:, :, None, None])
    is_below = np.tril(np.ones((grade_count, grade_count - 1)), -1)  # [j, i]: whether step i lies below threshold j
    for response in (0, 1):
        columns = slice(1 + response * (grade_count - 1), 1 + (response + 1) * (grade_count - 1))
        slope_of_step = -density[:, response, :, :, None] * steps[:, response, None, None, :] * is_below
        slopes[:, response, :, :grade_count, columns] = slope_of_step

    mass = np.maximum(tail - np.concatenate([tail[..., 1:], np.zeros_like(tail[..., :1])], axis=3), 1e-300)
    above_first = np.maximum(tail[..., :1], 1e-300)
    log_slopes = (slopes[..., :-1, :] - slopes[..., 1:, :]) / mass[..., None]
    log_slopes -= slopes[..., :1, :] / above_first[..., None]
    expected = counts.sum(axis=3, keepdims=True) * mass / above_first  # (R, 2, 2, K)
    flat = log_slopes.reshape(rows, -1, parameters)
    value = (counts * (np.log(mass) - np.log(above_first))).sum(axis=(1, 2, 3))
    gradient = np.einsum("rc,rcp->rp", counts.reshape(rows, -1), flat)
    information = np.einsum("rc,rcp,rcq->rpq", expected.reshape(rows, -1), flat, flat, optimize=True)
    return value, gradient, information
