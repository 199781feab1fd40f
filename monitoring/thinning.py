"""Labels of answers that were chosen, thinned to what a plain draw would have given."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def thin(propensity: ArrayLike, *, seed: int = 0) -> NDArray[np.bool_]:
    """Returns which of the labelled answers (n,) to keep so that all answers had the same chance to be among them.

    An answer that was drawn with probability p is kept with probability smallest p / p. What promises something of
    answers that are as good as new ones, as thresholds do, can then be used as it is, with fewer labels. Where some
    have a propensity, those without one are left out; where none has, all are kept.
    """
    drawn = np.asarray(propensity, dtype=np.float64)
    known = np.isfinite(drawn)
    if not known.any():
        return np.ones(len(drawn), dtype=np.bool_)
    lots = np.random.default_rng(seed).random(len(drawn))
    kept: NDArray[np.bool_] = known & (lots * np.where(known, drawn, 1.0) < drawn[known].min())
    return kept
