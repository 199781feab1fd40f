"""The upper hull of accuracy over cost: what mixtures of settings reach."""

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.records.errors import RecordError


def hull_corners(cost: ArrayLike, accuracy: ArrayLike) -> list[int]:
    """Returns which of the points (k,) are corners of their non-decreasing upper hull, cheapest first.

    Any point between two others can be had by choosing between them at random, question by question (RouterBench, Hu et
    al. 2024, section 3, arXiv:2403.12031). By Andrew's monotone chain, 1979; scipy's `ConvexHull` refuses points on one
    line. Raises `RecordError` for other shapes and for numbers that are not finite.
    """
    costs, accuracies = np.asarray(cost, dtype=np.float64), np.asarray(accuracy, dtype=np.float64)
    if costs.ndim != 1 or costs.shape != accuracies.shape or not costs.size:
        raise RecordError(f"costs and accuracies must be as many points; got {costs.shape} and {accuracies.shape}")
    if not (np.isfinite(costs).all() and np.isfinite(accuracies).all()):
        raise RecordError("a point has no finite cost or accuracy: leave it out, or record what is missing")
    order = np.lexsort((-accuracies, costs))
    # A point that costs as much or more and is no better than an earlier one cannot be a corner.
    best_before = np.maximum.accumulate(np.concatenate([[-np.inf], accuracies[order]]))[:-1]
    points: list[tuple[float, float]] = []
    corners: list[int] = []
    for place in order[accuracies[order] > best_before].tolist():
        point = (float(costs[place]), float(accuracies[place]))
        while len(points) > 1 and _below(points[-1], points[-2], point):
            points.pop()
            corners.pop()
        points.append(point)
        corners.append(place)
    return corners


def _below(middle: tuple[float, float], left: tuple[float, float], right: tuple[float, float]) -> bool:
    """Returns whether the middle point lies on or below the line from left to right."""
    rise = (middle[1] - left[1]) * (right[0] - left[0])
    return rise <= (right[1] - left[1]) * (middle[0] - left[0])
