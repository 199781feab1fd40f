"""How log-probabilities run over an answer, whatever its length."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.eval.results import TrajectoryBands


def trajectory_bands(logprobs: Sequence[ArrayLike], points: int = 50) -> TrajectoryBands:
    """Bands over answers, each interpolated linearly to `points` positions, so that every answer weighs the same.

    An answer of one token is constant. Raises ValueError for no answers, and for an answer that is empty or not finite.
    """
    if not logprobs:
        raise ValueError("no answers: trajectories need at least one list of log-probabilities")
    position = np.linspace(0.0, 1.0, points)
    curves = np.empty((len(logprobs), points))
    for row, values in enumerate(logprobs):
        curve = np.asarray(values, dtype=np.float64)
        if curve.ndim != 1 or curve.size == 0 or not np.isfinite(curve).all():
            raise ValueError(
                f"answer {row}: one finite log-probability a token is needed; got shape {curve.shape} with "
                f"{np.count_nonzero(~np.isfinite(curve))} not finite. Leave such answers out"
            )
        curves[row] = np.interp(position, np.linspace(0.0, 1.0, curve.size), curve)
    p10, p25, p75, p90 = np.percentile(curves, [10, 25, 75, 90], axis=0)
    return TrajectoryBands(100 * position, curves.mean(axis=0), p10, p25, p75, p90, len(curves))
