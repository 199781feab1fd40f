"""AUROC among answers of the same kind only: what a score knows beyond which kind an answer is of."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.ranked import Floats, Value, check_weights, ratio


@dataclass(frozen=True, slots=True, eq=False)
class StratifiedAuroc:
    """A metric: P(score of a 1 > score of a 0), both drawn from one stratum, over all such pairs; ties count half.

    The mean of the strata's AUROCs, weighted by their pairs. 0.5 for a score that only knows the stratum, however well
    the strata distinguishes right from wrong. nan where no stratum has both classes.
    """

    strata: NDArray[np.generic]
    """(n,): the stratum of each answer, any labels."""

    def __call__(self, y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, /) -> Value:
        labels, scores = np.asarray(y, dtype=np.float64), np.asarray(score, dtype=np.float64)
        if not labels.shape == scores.shape == self.strata.shape:
            raise ValueError(f"{len(self.strata)} strata for y of shape {labels.shape} and score {scores.shape}")
        weights, single = check_weights(weight, len(labels))
        above: Floats = np.zeros(len(weights))
        pairs: Floats = np.zeros(len(weights))
        for stratum in np.unique(self.strata):
            rows = np.flatnonzero(self.strata == stratum)
            here = weights[:, rows]
            both = (here @ labels[rows]) * (here @ (1 - labels[rows]))  # (R,)
            if both.any():
                above += both * np.nan_to_num(np.asarray(auroc(labels[rows], scores[rows], here)))
                pairs += both
        value = ratio(above, pairs)
        return float(value[0]) if single else value
