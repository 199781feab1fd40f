"""The statistics of many windows at once: the arithmetic behind `metaprobe.probes.features`.

For one response a NumPy call costs as much as what it does. So all calls are prepared once for a length (`prepare`),
none of them slices or allocates, and each serves all windows. Responses alone and in a batch go through the same calls:
their features are equal to the bit.

Each value is first reduced by the first (or last) token's value, at which its window starts; the sums over a longer
window extend those over a shorter one. As that value, c, is one of the window's w values, (mean - c)^2 <= w var: what
is subtracted to get the variance is at most w times as large as the result, and a constant window has variance 0
exactly.
"""

from __future__ import annotations  # `prepare` would spend its time on evaluating them

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

STATISTICS = ("mean", "median", "min", "max", "var", "std", "range", "slope")
"""Variance and standard deviation with ddof 0; the slope is that of least squares against the token index."""
LARGEST = float(np.finfo(np.float32).max)
"""A variance beyond it (of numbers like -1e30) is taken for it: features are float32."""

# Rows of the table that the calls fill, a column a window. `read` are the values read off, the others worked out.
_BELOW, _ABOVE, _LOW, _HIGH, _FIRST, _MEAN, _MEDIAN, _RANGE, _SLOPE, _VAR, _STD = range(11)
_ROW_OF = dict(zip(STATISTICS, (_MEAN, _MEDIAN, _LOW, _HIGH, _VAR, _STD, _RANGE, _SLOPE), strict=True))
_UNCHECKED = "wrap"  # a plan's places are all inside, and this is the mode in which NumPy looks at them the least
_SMALL = 50  # windows up to so many tokens are sorted by one call, padded to the widest of them

Reader = Callable[[NDArray[Any]], NDArray[np.float32]]
"""Values (n, T) -> (n, windows x statistics [+ 1, the length]), NaN for what is not defined."""


def index_variance(width: int) -> float:
    """Variance of w consecutive indices, (w^2 - 1) / 12. NaN for one: a slope needs two tokens."""
    return (width * width - 1) / 12 if width > 1 else math.nan


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """Where the W windows that a T-token response has are found. Made once a length."""

    length: int
    tokens: NDArray[np.intp]
    """(L,) The first token, the last one, and then the windows; T where one is padded."""
    stacks: list[tuple[int, int, int]]
    """Start, stop and width of windows in L that are sorted by one call."""
    ranks: NDArray[np.intp]
    """(5, W) Places in L: lower and upper middle, minimum and maximum once sorted; the token a window starts from."""
    starts: NDArray[np.intp]
    """(S,) Where the parts begin from which the windows at one end are added up."""
    sums: NDArray[np.intp]
    """(3, W) Each window's places among the 3 x 2 x S sums: of distance, distance x index, and squared distance."""
    counts: NDArray[np.float64]
    """(1, 3, W) What these are divided by: the width, negative for the second where a window is read backwards."""
    middles: NDArray[np.float64]
    """(1, W) The mean token index, with the same sign."""
    index_variances: NDArray[np.float64]
    """(1, W)"""
    cells: NDArray[np.intp]
    """Where each feature is in the table; the length stands behind the table, and then a NaN."""


def plan(length: int, widths: Sequence[int], from_end: Sequence[bool], *, with_length: bool) -> WindowPlan:
    """For windows of these widths (0 for one that the response is too short for)."""
    defined = [i for i, width in enumerate(widths) if width]
    w = np.array([widths[i] for i in defined], np.intp)
    backwards = np.array([from_end[i] for i in defined], np.bool_)
    first = np.where(backwards, length - w, 0)
    tokens, stacks, places, begin = [np.array([0, length - 1])], [], np.empty_like(w), 2
    widest = w.max()
    for members in ((w <= _SMALL) & (w < widest), (w > _SMALL) & (w < widest), w == widest):
        if not members.any():
            continue
        wide = int(w[members].max())
        place = np.arange(wide)
        tokens.append(np.where(place < w[members, None], first[members, None] + place, length).ravel())
        places[members] = begin + wide * np.arange(members.sum())
        stacks.append((begin, begin + tokens[-1].size, wide))
        begin = stacks[-1][1]
    ends = np.unique(w)
    starts = np.concatenate([[0], ends[ends < length]])  # of parts: the last is in no window where none is that long
    sums = np.searchsorted(ends, w) + len(starts) * backwards
    sign = np.where(backwards, -1.0, 1.0)
    length_cell = (_STD + 1) * len(w)
    columns = np.full((len(STATISTICS), len(widths)), length_cell + 1)  # the NaN
    columns[:, defined] = np.array([*_ROW_OF.values()])[:, None] * len(w) + np.arange(len(w))
    return WindowPlan(
        length=length,
        tokens=np.concatenate(tokens),
        stacks=stacks,
        ranks=np.stack([places + (w - 1) // 2, places + w // 2, places, places + w - 1, backwards]),
        starts=starts,
        sums=sums + 2 * len(starts) * np.arange(3)[:, None],
        counts=np.stack([w, sign * w, w], dtype=np.float64)[None],
        middles=(sign * (w - 1) / 2)[None],
        index_variances=np.array([[index_variance(width) for width in w.tolist()]]),
        cells=np.append(columns.T.ravel(), [length_cell] * with_length).astype(np.intp),
    )


def prepare(plan: WindowPlan, n: int, dtype: np.dtype[Any]) -> Reader:
    """A reader of n responses of the plan's length and this type. One thread at a time: it works in its own arrays."""
    T, W, S = plan.length, plan.middles.size, len(plan.starts)
    padded = np.full((n, T + 1), np.inf, dtype)
    given = padded[:, :T]
    row = np.empty((n, len(plan.tokens)), dtype)
    exact, terms = np.empty((n, T)), np.empty((n, 3, 2, T))
    distance = terms[:, 0]
    # NumPy is quickest with a plain number or equal shapes: for one response they are that.
    first, last = (exact[0, 0:1].reshape(()), exact[0, -1:].reshape(())) if n == 1 else (exact[:, :1], exact[:, -1:])
    index, half, zero = np.arange(T) * np.ones((1, 2, 1)), np.full((1, W), 0.5), np.zeros((1, W))
    parts, sums = np.empty((n, 3, 2, S)), np.empty((n, 3, 2, S))
    totals = np.empty((n, 3, W))
    means, products = np.empty((n, 3, W)), np.empty((n, 2, W))
    shift = means[:, 0]
    numbers = np.empty((n, (_STD + 1) * W + 2))
    numbers[:, -2:] = T, np.nan
    table = numbers[:, :-2].reshape(n, _STD + 1, W)
    read = np.empty((n, 5, W), dtype)
    out, largest = np.empty((n, len(plan.cells))), np.full((1, W), LARGEST)
    doubled, moments, bounded = np.empty((n, W)), np.empty((n, 2, W)), np.empty((n, W))
    calls: list[Callable[[], object]] = [
        partial(padded.take, plan.tokens, 1, row, _UNCHECKED),
        *(partial(row[:, a:b].reshape(n, -1, width).sort, 2) for a, b, width in plan.stacks),
        partial(row.take, plan.ranks, 1, read, _UNCHECKED),
        partial(np.copyto, table[:, : _FIRST + 1], read),
        partial(np.copyto, exact, given),
        partial(np.subtract, exact, first, distance[:, 0]),
        partial(np.subtract, exact[:, ::-1], last, distance[:, 1]),
        partial(np.multiply, distance, index, terms[:, 1]),
        partial(np.multiply, distance, distance, terms[:, 2]),
        partial(np.add.reduceat, terms, plan.starts, 3, None, parts),
        partial(np.add.accumulate, parts, 3, None, sums),
        partial(sums.reshape(n, 3 * 2 * S).take, plan.sums, 1, totals, _UNCHECKED),
        partial(np.divide, totals, plan.counts, means),
        partial(np.multiply, shift, plan.middles, products[:, 0]),
        partial(np.multiply, shift, shift, products[:, 1]),
        partial(np.subtract, means[:, 1:], products, moments),  # covariance, variance
        partial(np.divide, moments[:, 0], plan.index_variances, table[:, _SLOPE]),
        partial(np.minimum, moments[:, 1], largest, out=bounded),
        partial(np.maximum, bounded, zero, out=table[:, _VAR]),
        partial(np.sqrt, table[:, _VAR], table[:, _STD]),
        partial(np.add, table[:, _FIRST], shift, table[:, _MEAN]),
        partial(np.add, table[:, _BELOW], table[:, _ABOVE], doubled),
        partial(np.multiply, doubled, half, table[:, _MEDIAN]),
        partial(np.subtract, table[:, _HIGH], table[:, _LOW], table[:, _RANGE]),
        partial(numbers.take, plan.cells, 1, out, _UNCHECKED),
    ]

    def reader(values: NDArray[Any]) -> NDArray[np.float32]:
        np.copyto(given, values)
        for call in calls:
            call()
        return out.astype(np.float32)

    def reader_of_gaps(values: NDArray[Any]) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore"):
            return reader(values)

    if dtype == np.float32:  # log-probabilities
        return reader
    # Entropy and margin have gaps. Where a value of a window is not known, nor is its median.
    calls.insert(-1, lambda: np.copyto(table, np.nan, where=np.isnan(table[:, _MEAN : _MEAN + 1])))
    return reader_of_gaps
