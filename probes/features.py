"""Numbers that describe a finished or begun response: windows x statistics over its token log-probabilities.

`WINDOWS` and `STATISTICS` are the definition; the batch reader below and `metaprobe.probes.incremental` both read it.
The windows are those of early-token confidence estimation (first, last, fractional), more densely.

Log-probabilities are rounded to float32 first, as they are recorded: what a server sends as JSON and what the run store
gives back then have the same features. All arithmetic after that is in float64; results are float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.types import FloatArray

COUNTS = (3, 5, 10, 20, 30, 50)
PERCENTS = (10, 25, 50)

Series = Sequence[float] | FloatArray
"""One number a token, (T,)."""
Value = float | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """A run of tokens at one end of a response: `count` of them, or `percent` of all where `count` is 0."""

    name: str
    from_end: bool = False
    count: int = 0
    percent: int = 0

    def width(self, length: int) -> int:
        """How many tokens it holds of a response of `length` tokens; 0 where the response is too short."""
        if self.count:
            return self.count if self.count <= length else 0
        return max(1, length * self.percent // 100)


WINDOWS = (
    *(Window(f"{side}{k}", side == "last", count=k) for side in ("first", "last") for k in COUNTS),
    *(Window(f"{side}{p}%", side == "last", percent=p) for side in ("first", "last") for p in PERCENTS),
    Window("full", percent=100),
)


@dataclass(frozen=True, slots=True)
class Summary:
    """All that the statistics need to know of a window: floats for one window, arrays for many."""

    width: Value
    low: Value
    median: Value
    high: Value
    mean: Value
    variance: Value
    covariance: Value
    """Of value and token index, divided by the width."""


def _slope(window: Summary) -> Value:
    # w consecutive indices have variance (w^2 - 1) / 12; a slope needs two tokens
    index_variance = (window.width**2 - 1) / 12
    return window.covariance / np.where(index_variance > 0, index_variance, np.nan)


STATISTICS: dict[str, Callable[[Summary], Value]] = {
    "mean": lambda window: window.mean,
    "median": lambda window: window.median,
    "min": lambda window: window.low,
    "max": lambda window: window.high,
    "var": lambda window: window.variance,
    "std": lambda window: window.variance**0.5,
    "range": lambda window: window.high - window.low,
    "slope": _slope,
}

TOP_SERIES = ("entropy", "margin")


@dataclass(frozen=True)
class Schema:
    """An ordered list of features. Get one by name from `schema`."""

    name: str
    windows: tuple[Window, ...] = field(compare=False, repr=False)
    names: tuple[str, ...] = field(compare=False, repr=False)
    limit: int | None = field(compare=False)
    """The number of tokens it may see, for the prefix schemas; None where it sees the finished response."""
    uses_top: bool = field(compare=False)
    """Whether it also describes entropy and margin of the likeliest tokens at each step."""

    @property
    def block(self) -> int:
        """How many features one series (log-probability, entropy, margin) has."""
        return len(self.windows) * len(STATISTICS)


SCHEMA_NAMES = tuple(name + top for top in ("", "+top") for name in ("full", *(f"prefix-{k}" for k in COUNTS)))


@cache
def schema(name: str) -> Schema:
    """The schema called `name`: "full", "prefix-3" ... "prefix-50", each also with "+top"."""
    if name not in SCHEMA_NAMES:
        raise RecordError(f"no feature schema is called {name!r}; there are: {', '.join(SCHEMA_NAMES)}")
    kind, *plus = name.split("+")
    limit = None if kind == "full" else int(kind.removeprefix("prefix-"))
    windows = WINDOWS if limit is None else tuple(w for w in WINDOWS if 0 < w.count <= limit and not w.from_end)
    names = [f"{w.name}.{statistic}" for w in windows for statistic in STATISTICS]
    if limit is None:
        names.append("length")
    if plus:
        names += [f"{w.name}.{series}.{s}" for series in TOP_SERIES for w in windows for s in STATISTICS]
    return Schema(name, windows, tuple(names), limit, uses_top=bool(plus))


def features(
    schema: Schema, logprobs: Sequence[Series], top_logprobs: Sequence[FloatArray | None] | None = None
) -> NDArray[np.float32]:
    """Features of n responses of any lengths, (n, len(schema.names)); NaN where a window or statistic is not defined.

    `logprobs[i]`: (T_i,), nats, checked (finite, <= 0). `top_logprobs[i]`: (T_i, k), descending, NaN where a token has
    fewer than k; None where there are none. Raises `InvalidResponse` for a response without tokens, or tops of another
    length.
    """
    n = len(logprobs)
    tops: Sequence[Any] = [None] * n
    if schema.uses_top and top_logprobs is not None:
        if len(top_logprobs) != n:
            raise InvalidResponse(f"{n} responses came with {len(top_logprobs)} sets of top log-probabilities")
        tops = [None if top is None else np.asarray(top, np.float32) for top in top_logprobs]
    shapes = np.array([_checked_shape(i, x, top) for i, (x, top) in enumerate(zip(logprobs, tops, strict=True))])
    result = np.empty((n, len(schema.names)), np.float32)
    if n == 0:
        return result
    # Responses of one shape make a dense matrix; a slice of it at a time stays in the processor's cache.
    order = np.lexsort(shapes.T)
    changes = np.flatnonzero(np.any(np.diff(shapes[order], axis=0), axis=1)) + 1
    for group in np.split(order, changes):
        length, k = shapes[group[0]].tolist()
        seen = min(length, schema.limit or length)
        rows = max(1, 2**15 // (4 * seen))
        for part in (group[i : i + rows] for i in range(0, len(group), rows)):
            x = np.concatenate([logprobs[i][:seen] for i in part], dtype=np.float32).reshape(len(part), seen)
            top = np.stack([tops[i][:seen] for i in part]) if k else None
            result[part] = _dense(schema, x, top)
    return result


def features_one(schema: Schema, logprobs: Series, top_logprobs: FloatArray | None = None) -> NDArray[np.float32]:
    """Features of one response, (len(schema.names),). As `features`, without the cost of grouping."""
    x = np.asarray(logprobs, np.float32)
    top = None if top_logprobs is None or not schema.uses_top else np.asarray(top_logprobs, np.float32)
    _, k = _checked_shape(0, x, top)
    result = _dense(schema, x[None, : schema.limit], top[None, : schema.limit] if top is not None and k else None)
    return result.reshape(-1)


def entropy(top: FloatArray) -> NDArray[np.float64]:
    """Entropy in nats of the given probabilities after they are scaled to sum to 1; (..., k) -> (...).

    `top` is descending, NaN where a token has fewer than k alternatives; those do not count. NaN where it has none.
    """
    # The k go to the front: NumPy adds a few long rows much faster than many short ones. -1e6 stands for "not given":
    # its exp is 0, and 0 x -1e6 is 0 where 0 x inf would be NaN.
    shifted = np.fmax(np.moveaxis(top, -1, 0), -1e6, dtype=np.float64, order="C")
    shifted -= shifted[0]
    weights = np.exp(shifted)
    total = weights.sum(axis=0)
    value = np.log(total) - (weights * shifted).sum(axis=0) / total
    return np.where(top[..., 0] > -np.inf, value, np.nan)


def margin(top: FloatArray) -> NDArray[np.float64]:
    """Log-probability of the likeliest token minus that of the second, `top` as for `entropy`; NaN without a second."""
    if top.shape[-1] < 2:
        return np.full(top.shape[:-1], np.nan)
    first, second = np.moveaxis(top[..., :2].astype(np.float64), -1, 0)
    return np.where(second > -np.inf, first - second, np.nan)


def _checked_shape(i: int, logprobs: Series, top: FloatArray | None) -> tuple[int, int]:
    """Tokens and alternatives a token (0 where there are none)."""
    length = len(logprobs)
    if length == 0:
        raise InvalidResponse(f"response {i} has no tokens: at least 1 log-probability is needed; leave it out")
    if top is None:
        return length, 0
    if top.ndim != 2 or len(top) != length:
        raise InvalidResponse(f"response {i}: top log-probabilities of shape {top.shape}, expected ({length}, k)")
    return length, top.shape[1]


def _dense(schema: Schema, logprobs: NDArray[np.float32], top: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Features of n responses that all have T tokens: (n, T) and (n, T, k) -> (n, len(schema.names))."""
    n, T = logprobs.shape
    spans = _spans(schema, T) if T <= 1024 else _spans.__wrapped__(schema, T)
    series: dict[int, FloatArray] = {0: logprobs}  # first column of the series' block -> values (n, T)
    if top is not None:
        series[len(schema.names) - 2 * schema.block] = entropy(top)
        series[len(schema.names) - schema.block] = margin(top)
    result = np.full((n, len(schema.names)), np.nan, np.float32)
    for start, values in series.items():
        block = result[:, start : start + schema.block].reshape(n, len(schema.windows), len(STATISTICS))  # a view
        block[:, spans.defined] = _statistics(spans, values)
    if schema.limit is None:
        result[:, schema.block] = T
    return result


def _statistics(spans: "_Spans", values: FloatArray) -> NDArray[np.float64]:
    """(n, T) -> (n, windows defined at T, statistics). Windows lie side by side in one row, so few calls serve all."""
    row = values.take(spans.tokens, axis=1)  # (n, L), L the sum of all widths
    exact = row.astype(np.float64)
    for start, stop in spans.bounds:
        row[:, start:stop].sort(axis=1)
    low, below, above, high = row.take(spans.ranks, axis=1).astype(np.float64).transpose(1, 0, 2)  # (n, windows) each
    mean = np.add.reduceat(exact, spans.starts, axis=1) / spans.widths
    exact -= mean.repeat(spans.repeats, axis=1)
    covariance = np.add.reduceat(exact * spans.index, spans.starts, axis=1) / spans.widths
    variance = np.add.reduceat(np.square(exact, out=exact), spans.starts, axis=1) / spans.widths
    summary = Summary(spans.widths, low, (below + above) / 2, high, mean, variance, covariance)
    result = np.stack([statistic(summary) for statistic in STATISTICS.values()], axis=-1)
    result[np.isnan(mean)] = np.nan  # a value in the window is not known: then neither is its median
    return result


@dataclass(frozen=True, slots=True)
class _Spans:
    """Where the windows of a T-token response lie when written one after the other into a row of L numbers."""

    defined: NDArray[np.intp]
    """Which of the schema's windows there are."""
    widths: NDArray[np.float64]
    repeats: NDArray[np.intp]
    """The widths again, as counts."""
    starts: NDArray[np.intp]
    bounds: list[tuple[int, int]]
    tokens: NDArray[np.intp]
    """(L,) Which token stands where."""
    index: NDArray[np.float64]
    """(L,) Token index counted from the window's middle."""
    ranks: NDArray[np.intp]
    """(4, windows) Places of minimum, lower and upper middle, and maximum once each window is sorted."""


@lru_cache(maxsize=512)
def _spans(schema: Schema, length: int) -> _Spans:
    widths = np.array([w.width(length) for w in schema.windows], np.intp)
    defined = np.flatnonzero(widths)
    widths = widths[defined]
    stops = np.cumsum(widths)
    starts = stops - widths
    first = [length - w if schema.windows[i].from_end else 0 for i, w in zip(defined, widths, strict=True)]
    place = np.arange(widths.sum()) - starts.repeat(widths)  # 0, 1, ... within each window
    return _Spans(
        defined=defined,
        widths=widths.astype(np.float64),
        repeats=widths,
        starts=starts,
        bounds=list(zip(starts.tolist(), stops.tolist(), strict=True)),
        tokens=place + np.array(first, np.intp).repeat(widths),
        index=place - ((widths - 1) / 2).repeat(widths),
        ranks=np.stack([starts, starts + (widths - 1) // 2, starts + widths // 2, stops - 1]),
    )
