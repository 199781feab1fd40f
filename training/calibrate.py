"""From scores to probabilities, and from probabilities to thresholds with a guarantee."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require

PARITY = 1e-5
"""What an exported graph may differ by: thresholds lie that much on the safe side, so that ties stay together."""


@dataclass(frozen=True, slots=True)
class Platt:
    """P(y = 1 | score) = sigmoid(slope * score + intercept)."""

    slope: float
    intercept: float

    def logit(self, score: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrated log-odds, the same shape as `score`."""
        return self.slope * score + self.intercept

    def probability(self, score: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrated probability in (0, 1)."""
        return sigmoid(self.logit(score))


def fit_platt(score: NDArray[np.float64], y: NDArray[np.int64]) -> Platt:
    """Platt scaling (Platt 1999): a logistic regression on one score, with his smoothed targets against overconfidence.

    Raises `RecordError` where only one class is there.
    """
    positives, negatives = int((y == 1).sum()), int((y == 0).sum())
    if not positives or not negatives:
        raise RecordError(f"calibration needs both classes, got {positives} of label 1 and {negatives} of label 0")
    centre, spread = float(np.mean(score)), float(np.std(score)) or 1.0
    z = (score - centre) / spread
    targets = np.where(y == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logit = parameters[0] * z + parameters[1]
        error = sigmoid(logit) - targets
        value = np.logaddexp(0, logit) - targets * logit
        return float(value.mean()), np.array([(error * z).mean(), error.mean()])

    optimize = require("scipy.optimize", "train")
    start = np.array([0.0, np.log((positives + 1) / (negatives + 1))])
    slope, intercept = optimize.minimize(loss, start, jac=True, method="BFGS").x
    return Platt(slope=float(slope / spread), intercept=float(intercept - slope * centre / spread))


def flag_threshold(probability: NDArray[np.float64], y: NDArray[np.int64], *, miss_rate: float = 0.1) -> float:
    """Flag answers below this probability: expected share of wrong answers not flagged <= `miss_rate`.

    Conformal risk control (Angelopoulos et al. 2022, arXiv:2208.02814, Eq. 4) for the loss 1{wrong and not flagged},
    which falls as the threshold rises: the smallest threshold with (n * risk + 1) / (n + 1) <= miss_rate, over the n
    wrong answers of the calibration rows. Holds for answers exchangeable with them. Returns inf (flag everything) where
    n is too small for the rate.
    """
    # In float32, as the exported graph answers.
    wrong = np.sort(probability[y == 0].astype(np.float32))
    missed = np.arange(len(wrong), -1, -1)  # answers left unflagged by a threshold just above 0, 1, ... of them
    allowed = (missed + 1) / (len(wrong) + 1) <= miss_rate
    if not allowed.any():
        return float("inf")
    flagged = int(np.argmax(allowed))
    return float(wrong[flagged - 1]) + PARITY if flagged else 0.0


def sigmoid(logit: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0, -np.asarray(logit, dtype=np.float64)))
