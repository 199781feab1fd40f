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
    """Places of the W windows of a response of T tokens. Made once a length."""

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
    """Place of each feature in the table; the length stands behind the table, and then a NaN."""


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


@dataclass(slots=True, eq=False)
class _WorkingArrays:
    """Buffers in which the calls for n responses of one length read and write; made once, so that no call allocates."""

    given: NDArray[Any]
    """(n, T) What is to be read; `padded` has an infinity behind it, for windows that are padded."""
    padded: NDArray[Any]
    row: NDArray[Any]
    """(n, L) The values of all windows, side by side."""
    read: NDArray[Any]
    """(n, 5, W) What is read off the sorted windows."""
    exact: NDArray[np.float64]
    """(n, T) The values in double precision."""
    terms: NDArray[np.float64]
    """(n, 3, 2, T) Distance, distance x index and squared distance, forwards and backwards."""
    parts: NDArray[np.float64]
    """(n, 3, 2, S) Their sums over parts of the response, and `sums` the sums of these."""
    sums: NDArray[np.float64]
    totals: NDArray[np.float64]
    """(n, 3, W) The sums over each window, and `means` these divided by its width."""
    means: NDArray[np.float64]
    products: NDArray[np.float64]
    """(n, 2, W)"""
    moments: NDArray[np.float64]
    """(n, 2, W) Covariance with the index, and variance."""
    bounded: NDArray[np.float64]
    """(n, W)"""
    doubled: NDArray[np.float64]
    """(n, W)"""
    numbers: NDArray[np.float64]
    """(n, rows x W + 2) The table, the length and a NaN; `table` (n, rows, W) is its first part."""
    table: NDArray[np.float64]
    out: NDArray[np.float64]
    """(n, windows x statistics [+ 1, the length])"""


def _allocate(plan: WindowPlan, n: int, dtype: np.dtype[Any]) -> _WorkingArrays:
    T, W, S = plan.length, plan.middles.size, len(plan.starts)
    padded = np.full((n, T + 1), np.inf, dtype)
    numbers = np.empty((n, (_STD + 1) * W + 2))
    numbers[:, -2:] = T, np.nan
    return _WorkingArrays(
        given=padded[:, :T],
        padded=padded,
        row=np.empty((n, len(plan.tokens)), dtype),
        read=np.empty((n, 5, W), dtype),
        exact=np.empty((n, T)),
        terms=np.empty((n, 3, 2, T)),
        parts=np.empty((n, 3, 2, S)),
        sums=np.empty((n, 3, 2, S)),
        totals=np.empty((n, 3, W)),
        means=np.empty((n, 3, W)),
        products=np.empty((n, 2, W)),
        moments=np.empty((n, 2, W)),
        bounded=np.empty((n, W)),
        doubled=np.empty((n, W)),
        numbers=numbers,
        table=numbers[:, :-2].reshape(n, _STD + 1, W),
        out=np.empty((n, len(plan.cells))),
    )


def _calls_of_windows(plan: WindowPlan, at: _WorkingArrays) -> list[Callable[[], object]]:
    """The calls that read each window: its order statistics, and the sums over it."""
    n, T = at.given.shape
    distance, exact = at.terms[:, 0], at.exact
    # NumPy is quickest with a plain number or equal shapes: for one response they are that.
    first, last = (exact[0, 0:1].reshape(()), exact[0, -1:].reshape(())) if n == 1 else (exact[:, :1], exact[:, -1:])
    index = np.arange(T) * np.ones((1, 2, 1))
    return [
        partial(at.padded.take, plan.tokens, 1, at.row, _UNCHECKED),
        *(partial(at.row[:, a:b].reshape(n, -1, width).sort, 2) for a, b, width in plan.stacks),
        partial(at.row.take, plan.ranks, 1, at.read, _UNCHECKED),
        partial(np.copyto, at.table[:, : _FIRST + 1], at.read),
        partial(np.copyto, exact, at.given),
        partial(np.subtract, exact, first, distance[:, 0]),
        partial(np.subtract, exact[:, ::-1], last, distance[:, 1]),
        partial(np.multiply, distance, index, at.terms[:, 1]),
        partial(np.multiply, distance, distance, at.terms[:, 2]),
        partial(np.add.reduceat, at.terms, plan.starts, 3, None, at.parts),
        partial(np.add.accumulate, at.parts, 3, None, at.sums),
        partial(at.sums.reshape(n, 3 * 2 * len(plan.starts)).take, plan.sums, 1, at.totals, _UNCHECKED),
    ]


def _calls_of_statistics(plan: WindowPlan, at: _WorkingArrays) -> list[Callable[[], object]]:
    """The calls that work out the other statistics from the sums; the table is full afterwards."""
    W = plan.middles.size
    half, zero, largest = np.full((1, W), 0.5), np.zeros((1, W)), np.full((1, W), LARGEST)
    table, shift, products, moments = at.table, at.means[:, 0], at.products, at.moments
    return [
        partial(np.divide, at.totals, plan.counts, at.means),
        partial(np.multiply, shift, plan.middles, products[:, 0]),
        partial(np.multiply, shift, shift, products[:, 1]),
        partial(np.subtract, at.means[:, 1:], products, moments),
        partial(np.divide, moments[:, 0], plan.index_variances, table[:, _SLOPE]),
        partial(np.minimum, moments[:, 1], largest, out=at.bounded),
        partial(np.maximum, at.bounded, zero, out=table[:, _VAR]),
        partial(np.sqrt, table[:, _VAR], table[:, _STD]),
        partial(np.add, table[:, _FIRST], shift, table[:, _MEAN]),
        partial(np.add, table[:, _BELOW], table[:, _ABOVE], at.doubled),
        partial(np.multiply, at.doubled, half, table[:, _MEDIAN]),
        partial(np.subtract, table[:, _HIGH], table[:, _LOW], table[:, _RANGE]),
    ]


def prepare(plan: WindowPlan, n: int, dtype: np.dtype[Any]) -> Reader:
    """Returns a reader of n responses of the plan's length and this type, shape (n, T).

    One thread at a time may use it, for it works in its own arrays.
    """
    arrays = _allocate(plan, n, dtype)
    given, table, out = arrays.given, arrays.table, arrays.out
    calls = [*_calls_of_windows(plan, arrays), *_calls_of_statistics(plan, arrays)]
    arrange = partial(arrays.numbers.take, plan.cells, 1, out, _UNCHECKED)

    def reader(values: NDArray[Any]) -> NDArray[np.float32]:
        np.copyto(given, values)
        for call in calls:
            call()
        return out.astype(np.float32)

    def reader_of_gaps(values: NDArray[Any]) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore"):
            return reader(values)

    if dtype == np.float32:  # log-probabilities
        calls.append(arrange)
        return reader
    # Entropy and margin have gaps. Where a value of a window is not known, nor is its median.
    calls += [lambda: np.copyto(table, np.nan, where=np.isnan(table[:, _MEAN : _MEAN + 1])), arrange]
    return reader_of_gaps
