"""When a stream may be ended: one conformal threshold for all looks together, and what it is at each of them.

Looks are made comparable by how rare a score is among good answers; an answer's statistic is the largest of that over
the looks it has. A threshold for each look by itself at level alpha would be crossed at *some* look far more often.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require

Floats = NDArray[np.float64]

NO_LOOK = -np.inf
"""Statistic of an answer that ended before the first look: no threshold stops it."""


@dataclass(frozen=True, slots=True, eq=False)
class Surprise:
    """How rare so low a score is among good answers, in nats: -ln of the share of them that score no higher.

    Straight lines between the reference scores; below the lowest it goes on rising, a nat each standard deviation of
    theirs, so that scores worse than all of them still differ. Any map that never rises with the score keeps
    the promise, as long as it is fixed before the calibration answers are looked at.
    """

    scores: Floats
    """(k,) reference scores, strictly rising."""
    nats: Floats
    """(k,) at these, strictly falling."""
    spread: float
    """Standard deviation of the reference scores; 1 where they do not vary."""

    @classmethod
    def fit(cls, good: Floats) -> "Surprise":
        """From scores (m,) of good answers: held out from the trees that gave them, and not for calibration."""
        if not len(good) or not np.isfinite(good).all():
            raise RecordError(f"a look is compared by the finite scores of good answers, got {len(good)}: add runs")
        scores, counts = np.unique(good, return_counts=True)
        return cls(scores, -np.log(np.cumsum(counts) / (len(good) + 1)), float(np.std(good)) or 1.0)

    def of(self, scores: Floats) -> Floats:
        """In nats, the same shape; NaN where the score is."""
        beyond = np.maximum(self.scores[0] - scores, 0) / self.spread
        return np.asarray(np.interp(scores, self.scores, self.nats) + beyond, dtype=np.float64)

    def score_at(self, nats: float) -> float:
        """The score below which surprise exceeds this: infinite where that of every score does."""
        if nats < self.nats[-1]:
            return np.inf
        if nats > self.nats[0]:
            return float(self.scores[0] - (nats - self.nats[0]) * self.spread)
        return float(np.interp(-nats, -self.nats, self.scores))


def joint_statistic(looks: Sequence[Floats]) -> Floats:
    """The largest surprise (n,) over the looks an answer has; each (n,), NaN where the answer ended before."""
    known = [np.where(np.isnan(surprise), NO_LOOK, surprise) for surprise in looks]
    return np.asarray(np.max(known, axis=0), dtype=np.float64)


def conformal_threshold(statistic: Floats, alpha: float) -> float:
    """What a further, exchangeable answer exceeds with a probability of at most `alpha`, given n of them.

    The ceil((1 - alpha) (n + 1))-th smallest (Vovk et al. 2005; Angelopoulos and Bates 2021, arXiv:2107.07511,
    section 1.1). Raises `RecordError` where n is too small for the rate.
    """
    if not 0 < alpha < 1:
        raise RecordError(f"a false-alarm rate must lie between 0 and 1, got {alpha:g}")
    n = len(statistic)
    # 1e-9: 0.3 x 10 must count as 3
    allowed = int(np.floor(alpha * (n + 1) + 1e-9))
    if allowed < 1:
        raise RecordError(too_few_groups(alpha, n))
    return float(np.sort(statistic)[n - allowed])


def groups_needed(alpha: float) -> int:
    """Good calibration answers, one a group, that a false-alarm rate needs."""
    return int(np.ceil(1 / alpha - 1e-9)) - 1


def too_few_groups(alpha: float, n: int) -> str:
    """Why n groups do not allow that rate, and what would."""
    return (
        f"a false-alarm rate of {alpha:g} needs good calibration answers in at least {groups_needed(alpha)} groups, "
        f"there are {n}: add runs, or ask for a rate of at least {1 / (n + 1):.2g}"
    )


def rate_at_most(alpha: float, n: int, *, confidence: float = 0.9) -> float:
    """What the false-alarm rate of one gate, calibrated on n groups, stays below with this confidence.

    `alpha` is its mean over calibration data; from one such data set to another it is beta distributed (Vovk 2012,
    arXiv:1209.2673; Angelopoulos and Bates 2021, section 3.2).
    """
    allowed = int(np.floor(alpha * (n + 1) + 1e-9))
    beta = require("scipy.stats", "fit").beta(allowed, n + 1 - allowed)
    return float(beta.ppf(confidence))


def one_a_group(rows: NDArray[np.int64], groups: NDArray[np.str_], *, seed: int) -> NDArray[np.int64]:
    """One of these rows for each of their groups, drawn at random: answers of one group are not exchangeable."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    return shuffled[np.unique(groups[shuffled], return_index=True)[1]]


def score_thresholds(
    surprises: Mapping[int, Surprise], statistic: Floats, alphas: Sequence[float]
) -> dict[float, dict[int, float]]:
    """Alpha -> look -> the score below which an answer is stopped there; `statistic` of calibration answers (n,).

    Rates that n does not allow are left out.
    """
    allowed = [alpha for alpha in alphas if len(statistic) >= groups_needed(alpha)]
    joint = {alpha: conformal_threshold(statistic, alpha) for alpha in allowed}
    return {
        alpha: {look: surprise.score_at(threshold) for look, surprise in surprises.items()}
        for alpha, threshold in joint.items()
    }
