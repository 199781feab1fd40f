"""How a way of asking stands to every control, on the same questions."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, holm, mean_interval, normal_p, resample_values
from metaprobe.eval.metrics.ranked import Floats

SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Against:
    """A way of routing minus one control, on the same questions."""

    difference: Interval
    """Difference of the mean score, 95 %, by a bootstrap over groups."""
    p: float
    """Two-sided, of the difference taken as normal with the bootstrap's standard error."""
    p_holm: float
    """Corrected by Holm over all controls."""

    @property
    def word(self) -> str:
        """`ahead`, `behind`, or `tie` where the corrected p does not separate the two."""
        if not self.p_holm < SIGNIFICANT:
            return "tie"
        return "ahead" if self.difference.estimate > 0 else "behind"


def against(mine: Floats, controls: Mapping[str, Floats], weights: NDArray[np.integer]) -> dict[str, Against]:
    """How a way of routing stands to each control, the strongest control first.

    `mine` and each control, (n,): the score of every question, or its expectation. `weights`: of `cluster_weights`.
    The strongest is the one of highest mean score on these very questions, which favours the controls: the word that
    is said of the router goes by that one.
    """
    rows: dict[str, tuple[Interval, float]] = {}
    for name in sorted(controls, key=lambda name: -float(controls[name].mean())):
        difference = mine - controls[name]
        found = mean_interval(difference, weights)
        rows[name] = found, normal_p(found.estimate, _standard_error(difference, weights))
    corrected = holm([p for _, p in rows.values()])
    return {
        name: Against(difference, p, float(p_holm))
        for (name, (difference, p)), p_holm in zip(rows.items(), corrected, strict=True)
    }


def _standard_error(values: Floats, weights: NDArray[np.integer]) -> float:
    """Returns the standard error of the mean of `values` (n,), over the resamples; 0 where they are all the same."""
    means = resample_values(lambda weight: weight @ values / weight.sum(axis=1), weights)
    return float(means.std()) if np.ptp(values) else 0.0
