"""Numbers that describe a finished or begun response: windows x statistics over its token log-probabilities, and terms.

`WINDOWS` and `STATISTICS` are the definition. The readers below give the same numbers to the bit, for one response or
many. The windows are those of early-token confidence estimation (first, last, fractional), more densely.

Log-probabilities are rounded to float32 first, as they are recorded: what a server sends as JSON and what the run store
gives back then have the same features. All arithmetic after that is in float64; results are float32.

`TERMS` are seven numbers of a finished response that a linear model can read: how surprising its tokens were, on a log
scale. A token's surprise is minus its log-probability, in nats. The terms are the definition of what free scores
(`baseline_scores`) are made of: mean, maximum and total surprise, that of the first token, and the mean of the three
largest.
"""

from __future__ import annotations  # `prepare` would spend its time on evaluating them

import math
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.types import LOOKS, FloatArray

COUNTS = LOOKS
"""Numbers of tokens in the windows of fixed width."""
PERCENTS = (10, 25, 50)
"""Percentages of the response in the windows of relative width."""

Series = Sequence[float] | FloatArray
"""One number for each token, shape (T,)."""


@dataclass(frozen=True, slots=True)
class Window:
    """A run of tokens at one end of a response: `count` tokens, or `percent` of all tokens if `count` is 0."""

    name: str
    from_end: bool = False
    count: int = 0
    percent: int = 0

    def width(self, length: int) -> int:
        """Returns the number of tokens that the window holds of a response of `length` tokens; 0 if the response is too
        short.
        """
        if self.count:
            return self.count if self.count <= length else 0
        return max(1, length * self.percent // 100)


WINDOWS = (
    *(Window(f"{side}{k}", side == "last", count=k) for side in ("first", "last") for k in COUNTS),
    *(Window(f"{side}{p}%", side == "last", percent=p) for side in ("first", "last") for p in PERCENTS),
    Window("full", percent=100),
)

STATISTICS = ("mean", "median", "min", "max", "var", "std", "range", "slope")
"""Statistics of a window. Variance and standard deviation have ddof 0; the slope is that of least squares against the
token index.
"""
SURPRISE_FLOOR = 1e-4
"""Nats added to every surprise before its logarithm is taken. Servers round smaller surprises to 0."""
MOST_SURPRISING = 3
"""Number of tokens with the largest surprise whose mean is `lowest3`. For a shorter answer it is the mean of all
tokens.
"""
TERMS = ("lowest3", "mean", "min", "total", "first", "halves", "length")
"""Names of the terms, in this order. Each is named after the log-probability that it is computed from. `halves`
compares the mean surprise of the first half with that of the second.
"""
SCALED = "scaled"
FREE: Mapping[str, Mapping[str, float]] = {
    SCALED: {"mean": 1.0, "length": 0.5},
    "total": {"total": 1.0},
    "lowest3": {"lowest3": 1.0},
    "mean": {"mean": 1.0},
    "min": {"min": 1.0},
    "first": {"first": 1.0},
    "length": {"length": 1.0},
}
"""Numbers that order answers without training, as weights of the terms. More surprise, or more tokens, stands for a
worse answer.

`scaled` is the total surprise over the root of the length, half-way between mean and total. On models and tasks that
were left out it was never far behind the best of these numbers (docs/research/travel.md).
"""
TOP_SERIES = ("entropy", "margin")
"""Series that are computed from the likeliest tokens at each step."""
TERM_NAMES = tuple(f"terms.{name}" for name in TERMS)
"""Names of the terms as features."""


@dataclass(frozen=True)
class Schema:
    """An ordered list of features. Get one by name from `schema`."""

    name: str
    windows: tuple[Window, ...] = field(compare=False, repr=False)
    names: tuple[str, ...] = field(compare=False, repr=False)
    limit: int | None = field(compare=False)
    """Number of tokens that a prefix schema may see; None for a schema that sees the finished response."""
    uses_top: bool = field(compare=False)
    """Whether it also describes entropy and margin of the likeliest tokens at each step."""
    uses_terms: bool = field(compare=False, default=False)
    """Whether its last features are the terms (`terms`)."""

    @property
    def block(self) -> int:
        """Number of features of one series (log-probability, entropy or margin)."""
        return len(self.windows) * len(STATISTICS)


ALONE, PLUS_TERMS = "terms", "+terms"
DECIDED = "decisions"
"""Name of the schema of numbers from decision models (`probes/decision_predictor.py`). Each checkpoint names its own
columns.
"""
SCHEMA_NAMES = (
    *(name + more for more in ("", "+top", PLUS_TERMS) for name in ("full", *(f"prefix-{k}" for k in COUNTS))),
    ALONE,
)


@cache
def schema(name: str) -> Schema:
    """Returns the schema called `name`: "full", "prefix-3" ... "prefix-50", each also with "+top" or "+terms";
    "terms".
    """
    if name not in SCHEMA_NAMES:
        raise RecordError(f"no feature schema is called {name!r}; there are: {', '.join(SCHEMA_NAMES)}")
    if name == ALONE:
        return Schema(name, (), TERM_NAMES, None, uses_top=False, uses_terms=True)
    kind, *plus = name.split("+")
    limit = None if kind == "full" else int(kind.removeprefix("prefix-"))
    windows = WINDOWS if limit is None else tuple(w for w in WINDOWS if 0 < w.count <= limit and not w.from_end)
    names = [f"{w.name}.{statistic}" for w in windows for statistic in STATISTICS]
    if limit is None:
        names.append("length")
    if "top" in plus:
        names += [f"{w.name}.{series}.{s}" for series in TOP_SERIES for w in windows for s in STATISTICS]
    if "terms" in plus:
        names += TERM_NAMES
    return Schema(name, windows, tuple(names), limit, uses_top="top" in plus, uses_terms="terms" in plus)


def schema_of(checkpoint: Checkpoint) -> Schema:
    """Returns the schema of a checkpoint. Raises `ContractMismatch` if the checkpoint was made for features that this
    version does not compute.
    """
    contract = checkpoint.manifest.contract
    if contract.get("schema") == DECIDED:
        return Schema(DECIDED, (), tuple(map(str, contract.get("features", ()))), None, uses_top=False)
    try:
        own_schema = schema(str(contract.get("schema")))
    except RecordError as error:
        raise ContractMismatch(f"{checkpoint.path}: {error}") from error
    if contract.get("features") != list(own_schema.names):
        raise ContractMismatch(
            f"{checkpoint.path} was made for other {own_schema.name!r} features than this version computes: train it "
            "again, or use the version of metaprobe it names"
        )
    return own_schema


def features(
    schema: Schema,
    logprobs: Sequence[Series],
    top_logprobs: Sequence[FloatArray | None] | None = None,
) -> NDArray[np.float32]:
    """Returns the features of n responses of any lengths, (n, len(schema.names)). An undefined feature is NaN.

    Raises `InvalidResponse` for a response without tokens, or with top log-probabilities of another length.

    Args:
        schema: the features to compute.
        logprobs: log-probabilities (T_i,) of each answer, in nats, checked to be finite and at most 0.
        top_logprobs: (T_i, k) for each answer, descending; NaN where a token has fewer than k, None if there are none.
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
        seen_tokens = min(length, schema.limit or length)
        rows_at_once = max(1, 2**15 // (4 * seen_tokens))
        prepared: Prepared | None = (
            {} if len(group) > 1 else None
        )  # a single response uses readers of earlier responses
        for slice_indices in (group[i : i + rows_at_once] for i in range(0, len(group), rows_at_once)):
            x = np.concatenate([logprobs[i][:seen_tokens] for i in slice_indices], dtype=np.float32).reshape(
                len(slice_indices), seen_tokens
            )
            top = np.stack([tops[i][:seen_tokens] for i in slice_indices]) if k else None
            result[slice_indices] = _features_of_one_length(schema, x, top, prepared)
    return result


def features_one(schema: Schema, logprobs: Series, top_logprobs: FloatArray | None = None) -> NDArray[np.float32]:
    """Returns the features of one response, (len(schema.names),), as `features` does, without the cost of grouping.

    Args:
        schema: the features to compute.
        logprobs: log-probabilities (T,), in nats.
        top_logprobs: log-probabilities of the likeliest tokens (T, k), descending; None if there are none.
    """
    x = np.asarray(logprobs, np.float32)
    top = None if top_logprobs is None or not schema.uses_top else np.asarray(top_logprobs, np.float32)
    _, k = _checked_shape(0, x, top)
    result = _features_of_one_length(
        schema, x[None, : schema.limit], top[None, : schema.limit] if top is not None and k else None
    )
    return result.reshape(-1)


def entropy(top: FloatArray) -> NDArray[np.float64]:
    """Returns the entropy in nats of the given probabilities, scaled to sum to 1; (..., k) -> (...).

    `top` is descending, and NaN where a token has fewer than k alternatives. Such a NaN does not count. A token without
    alternatives has the entropy NaN.
    """
    # The axis of the k alternatives goes to the front: NumPy adds a few long rows much faster than many short ones.
    # -1e6 stands for a missing alternative: its exp is 0, and 0 x -1e6 is 0, while 0 x inf would be NaN.
    shifted = np.fmax(np.moveaxis(top, -1, 0), -1e6, dtype=np.float64, order="C")
    shifted -= shifted[0]
    weights = np.exp(shifted)
    total = weights.sum(axis=0)
    value = np.log(total) - (weights * shifted).sum(axis=0) / total
    return np.where(top[..., 0] > -np.inf, value, np.nan)


def margin(top: FloatArray) -> NDArray[np.float64]:
    """Returns the log-probability of the likeliest token minus that of the second; NaN without a second. `top`: as for
    `entropy`."""
    if top.shape[-1] < 2:
        return np.full(top.shape[:-1], np.nan)
    first, second = np.moveaxis(top[..., :2].astype(np.float64), -1, 0)
    return np.where(second > -np.inf, first - second, np.nan)


def _checked_shape(i: int, logprobs: Series, top: FloatArray | None) -> tuple[int, int]:
    """Returns the number of tokens, and of alternatives of each token (0 if there are none).

    Raises `InvalidResponse` for a response without tokens, or with alternatives of another length.

    Args:
        i: index of the response, for errors.
        logprobs: its log-probabilities (T,).
        top: its alternatives (T, k); None if there are none.
    """
    length = len(logprobs)
    if length == 0:
        raise InvalidResponse(f"response {i} has no tokens: at least 1 log-probability is needed; leave it out")
    if top is None:
        return length, 0
    if top.ndim != 2 or len(top) != length:
        raise InvalidResponse(f"response {i}: top log-probabilities of shape {top.shape}, expected ({length}, k)")
    return length, top.shape[1]


FeatureFunction = Callable[[NDArray[Any]], NDArray[np.float32]]
"""Function from values (n, T) to features (n, windows x statistics), with the length as one more column for some
schemas. NaN for undefined features.
"""
Prepared = dict[tuple[int, str], FeatureFunction]
"""Readers for n responses of one length and type, kept for the rest of the batch."""


def _features_of_one_length(
    schema: Schema,
    logprobs: NDArray[np.float32],
    top: NDArray[np.float32] | None,
    prepared: Prepared | None = None,
) -> NDArray[np.float32]:
    """Returns the features of n responses of T tokens each, (n, len(schema.names)).

    Args:
        schema: the features to compute.
        logprobs: (n, T), in nats.
        top: log-probabilities of the likeliest tokens (n, T, k); None if there are none.
        prepared: readers of the batch, which are used again; None for a single response.
    """
    if not schema.windows:
        return terms(logprobs)
    logprob_features = _features_of_series(schema, logprobs, prepared)
    if schema.uses_terms:
        return np.concatenate((logprob_features, terms(logprobs)), 1)
    if not schema.uses_top:
        return logprob_features
    result = np.full((len(logprobs), len(schema.names)), np.nan, np.float32)
    result[:, : logprob_features.shape[1]] = logprob_features
    if top is not None:
        for i, series in enumerate((entropy(top), margin(top))):
            start = logprob_features.shape[1] + i * schema.block
            result[:, start : start + schema.block] = _features_of_series(schema, series, prepared)[:, : schema.block]
    return result


def _features_of_series(schema: Schema, values: FloatArray, prepared: Prepared | None) -> NDArray[np.float32]:
    """Returns the features of one series, and the length where the schema has it.

    Args:
        schema: the features to compute.
        values: the series (n, T).
        prepared: readers of the batch, which are used again; None for a single response.
    """
    n, T = values.shape
    window_plan, idle_readers = (
        _plan_and_idle_readers(schema.name, T)
        if T <= MAX_CACHED_TOKENS
        else _plan_and_idle_readers.__wrapped__(schema.name, T)
    )
    if window_plan is None:
        return np.full((n, schema.block), np.nan, np.float32)
    if prepared is not None:
        key = (n, values.dtype.char)
        reader = prepared.get(key) or prepared.setdefault(key, prepare(window_plan, n, values.dtype))
        return reader(values)
    try:
        reader = idle_readers[values.dtype.char].pop()
    except IndexError:
        reader = prepare(window_plan, n, values.dtype)
    result = reader(values)
    idle_readers[values.dtype.char].append(reader)
    return result


MAX_CACHED_TOKENS, MAX_CACHED_READERS = 1024, 8
"""Readers for responses of at most `MAX_CACHED_TOKENS` tokens are kept for the next response, at most
`MAX_CACHED_READERS` for each length. A reader takes 60 kB at 512 tokens, so hundreds of lengths take some 30 MB.
"""


@lru_cache(maxsize=512)
def _plan_and_idle_readers(name: str, length: int) -> tuple[WindowPlan | None, dict[str, deque[FeatureFunction]]]:
    """Returns the windows' plan, None where the response is too short for any window, and prepared readers by dtype.

    A caller takes a reader out of the queue of its dtype character (`f`, `d`) and puts it back. Results are cached by
    schema and length, so that callers share the queues.
    """
    windows = schema(name).windows
    widths = [window.width(length) for window in windows]
    ends = [window.from_end for window in windows]
    window_plan = plan(length, widths, ends, with_length=schema(name).limit is None) if any(widths) else None
    return window_plan, {dtype_char: deque[FeatureFunction](maxlen=MAX_CACHED_READERS) for dtype_char in "fd"}


def terms(logprobs: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Returns the terms (n, 7) of n responses of one length: natural logarithms, `length` of the token count.

    `logprobs` (n, T), T >= 1: nats, finite and at most 0; they are rounded to float32 first, as in all features. The
    terms of a response do not depend on the other responses, to the bit.
    """
    sorted_logprobs = np.array(logprobs, np.float32)
    length = sorted_logprobs.shape[1]
    half = max(1, length // 2)
    # With an odd number of tokens, the middle token belongs to neither half.
    starts = sorted({0, half, length - half} - {length})
    sums = _columns(np.add.reduceat(sorted_logprobs, starts, 1, np.float64))
    first = _columns(sorted_logprobs[:, :1].astype(np.float64))[0]
    sorted_logprobs.sort(1)  # quicker than a partition of the usual few hundred tokens
    lowest = _columns(sorted_logprobs[:, :MOST_SURPRISING].astype(np.float64))
    total = _sum_from_left(sums)
    logprob = [
        _sum_from_left(lowest) / len(lowest),
        total / length,
        lowest[0],
        total,
        first,
        sums[0] / half,
        sums[-1] / half,
    ]
    logs = np.log(SURPRISE_FLOOR - np.array(logprob))
    logs[5] -= logs[6]
    logs[6] = math.log(length)
    return logs.T.astype(np.float32, order="C").reshape(-1, len(TERMS))


def _columns(values: NDArray[np.float64]) -> list[Any]:
    """Returns the columns (n,) of values (n, k).

    For one row they are plain numbers, which are faster to compute with.
    """
    columns: list[Any] = values[0].tolist() if len(values) == 1 else list(values.T)
    return columns


def _sum_from_left(columns: Sequence[Any]) -> Any:
    """Returns the sum of the columns from left to right; `sum` adds plain numbers more exactly than arrays."""
    return reduce(operator.add, columns)


BASELINE_FEATURES = (
    "mean_logprob", "min_logprob", "lowest3_logprob", "scaled_logprob", "first_logprob", "length", "perplexity",
)  # fmt: skip


def baseline_scores(logprobs: Sequence[Series]) -> dict[str, NDArray[np.float64]]:
    """Returns the values (n,) of each of `BASELINE_FEATURES` for n responses.

    The values do not share one direction: a high perplexity is a bad sign, a high log-probability a good sign, and
    length may be either. `scaled_logprob` is the total over the root of the length. `lowest3_logprob` is the mean of
    the three lowest log-probabilities, or of all if there are fewer. Perplexities beyond e^700 are given as e^700.
    """
    lengths = np.array([len(x) for x in logprobs], np.intp)
    if not len(lengths):
        return {name: np.empty(0) for name in BASELINE_FEATURES}
    if not lengths.all():
        raise InvalidResponse(
            f"response {lengths.argmin()} has no tokens: at least 1 log-probability is needed; leave it out"
        )
    tokens = np.concatenate(logprobs, dtype=np.float64)
    starts = np.cumsum(lengths) - lengths
    mean = np.add.reduceat(tokens, starts) / lengths
    return {
        "mean_logprob": mean,
        "min_logprob": np.minimum.reduceat(tokens, starts),
        "lowest3_logprob": np.array([_mean_lowest(x) for x in np.split(tokens, starts[1:])]),
        "scaled_logprob": mean * np.sqrt(lengths),
        "first_logprob": tokens[starts],
        "length": lengths.astype(np.float64),
        "perplexity": np.exp(np.minimum(-mean, 700)),
    }


def _mean_lowest(values: NDArray[np.float64]) -> float:
    if len(values) > MOST_SURPRISING:
        values = np.partition(values, MOST_SURPRISING - 1)[:MOST_SURPRISING]
    return float(values.mean())


# The statistics of many windows at once.
#
# For one response a NumPy call costs as much as what it does. So all calls are prepared once for a length (`prepare`),
# none of them slices or allocates, and each serves all windows. Responses alone and in a batch go through the same
# calls: their features are equal to the bit.
#
# The value c of the first (or last) token, at which a window starts, is first subtracted from each value. The sums over
# a longer window extend those over a shorter one. As c is one of the window's w values, (mean - c)^2 <= w var. So the
# term that is subtracted to get the variance is at most w times as large as the variance, and a constant window has
# variance 0 exactly.

MAX_FEATURE = float(np.finfo(np.float32).max)
"""Largest feature. A larger variance, as of log-probabilities near -1e30, is replaced by it, because features are
float32.
"""

# Rows of the table that the calls fill; it has a column for each window. The rows up to `_FIRST` are read off the
# sorted windows, and the others are computed from them.
_BELOW, _ABOVE, _LOW, _HIGH, _FIRST, _MEAN, _MEDIAN, _RANGE, _SLOPE, _VAR, _STD = range(11)
_ROW_OF = dict(zip(STATISTICS, (_MEAN, _MEDIAN, _LOW, _HIGH, _VAR, _STD, _RANGE, _SLOPE), strict=True))
_TAKE_MODE = "wrap"  # a plan's indices are all valid, and in this mode NumPy checks them least
_MAX_SORTED_TOGETHER = 50  # windows of at most this many tokens are sorted by one call, padded to the widest of them


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """Indices by which the statistics of W windows are computed for a response of T tokens. Made once for each T."""

    length: int
    tokens: NDArray[np.intp]
    """Indices (L,) of the tokens to read: the first token, the last one, then the windows' tokens. T is
    padding.
    """
    stacks: list[tuple[int, int, int]]
    """Start, stop and width, within L, of windows of equal width. One call sorts them all."""
    ranks: NDArray[np.intp]
    """Indices into L (5, W) for each window: lower and upper middle, minimum and maximum after sorting, and the
    token at which the window starts.
    """
    starts: NDArray[np.intp]
    """First token (S,) of each part that is summed. A window's sum is a running total of the sums of these parts."""
    sums: NDArray[np.intp]
    """Indices (3, W) of each window's sums among the 3 x 2 x S sums of distance, distance x index, and squared
    distance.
    """
    counts: NDArray[np.float64]
    """Divisors (1, 3, W) of these sums: the width of the window. The second is negative for a window that is read
    backwards.
    """
    middles: NDArray[np.float64]
    """Mean token index (1, W) of each window; negative for a window that is read backwards."""
    index_variances: NDArray[np.float64]
    """Variance (1, W) of w consecutive indices, (w^2 - 1) / 12. NaN for w = 1, because a slope needs two tokens."""
    cells: NDArray[np.intp]
    """Index of each feature in the flat table of windows x statistics. After the table come the length and a NaN."""


def plan(length: int, widths: Sequence[int], from_end: Sequence[bool], *, with_length: bool) -> WindowPlan:
    """Returns the plan for the windows of a response.

    Args:
        length: tokens of the response.
        widths: tokens of each window; 0 for a window that the response is too short for.
        from_end: whether each window is at the end of the response.
        with_length: whether the length is the last feature.
    """
    # The indices of the tokens: first the two outer tokens, then the windows in up to three stacks of equal width.
    defined = [i for i, width in enumerate(widths) if width]
    window_widths = np.array([widths[i] for i in defined], np.intp)
    backwards = np.array([from_end[i] for i in defined], np.bool_)
    first_tokens = np.where(backwards, length - window_widths, 0)
    tokens, stacks, window_starts, next_start = [np.array([0, length - 1])], [], np.empty_like(window_widths), 2
    widest = window_widths.max()
    for in_stack in (
        (window_widths <= _MAX_SORTED_TOGETHER) & (window_widths < widest),
        (window_widths > _MAX_SORTED_TOGETHER) & (window_widths < widest),
        window_widths == widest,
    ):
        if not in_stack.any():
            continue
        stack_width = int(window_widths[in_stack].max())
        offsets = np.arange(stack_width)
        tokens.append(
            np.where(offsets < window_widths[in_stack, None], first_tokens[in_stack, None] + offsets, length).ravel()
        )
        window_starts[in_stack] = next_start + stack_width * np.arange(in_stack.sum())
        stacks.append((next_start, next_start + tokens[-1].size, stack_width))
        next_start = stacks[-1][1]
    # The parts of the response that are summed.
    part_ends = np.unique(window_widths)
    # If no window holds the whole response, the last part is in no window.
    part_starts = np.concatenate([[0], part_ends[part_ends < length]])
    sums = np.searchsorted(part_ends, window_widths) + len(part_starts) * backwards
    signs = np.where(backwards, -1.0, 1.0)
    # The features in the table.
    length_cell = (_STD + 1) * len(window_widths)
    cells = np.full((len(STATISTICS), len(widths)), length_cell + 1)  # the NaN
    cells[:, defined] = np.array([*_ROW_OF.values()])[:, None] * len(window_widths) + np.arange(len(window_widths))
    return WindowPlan(
        length=length,
        tokens=np.concatenate(tokens),
        stacks=stacks,
        ranks=np.stack(
            [
                window_starts + (window_widths - 1) // 2,
                window_starts + window_widths // 2,
                window_starts,
                window_starts + window_widths - 1,
                backwards,
            ]
        ),
        starts=part_starts,
        sums=sums + 2 * len(part_starts) * np.arange(3)[:, None],
        counts=np.stack([window_widths, signs * window_widths, window_widths], dtype=np.float64)[None],
        middles=(signs * (window_widths - 1) / 2)[None],
        index_variances=np.where(window_widths > 1, (window_widths * window_widths - 1) / 12, np.nan)[None],
        cells=np.append(cells.T.ravel(), [length_cell] * with_length).astype(np.intp),
    )


def prepare(plan: WindowPlan, n: int, dtype: np.dtype[Any]) -> FeatureFunction:
    """Returns a reader of n responses of the plan's length and this type, shape (n, T).

    Only one thread at a time may use the reader, because it works in its own arrays. They are made here, so that no
    call of the reader allocates.

    Args:
        plan: the plan of the windows.
        n: number of responses.
        dtype: float32 for log-probabilities, float64 for entropy and margin, which may hold NaN.
    """
    T, W, S = plan.length, plan.middles.size, len(plan.starts)
    padded = np.full((n, T + 1), np.inf, dtype)  # an infinity behind the T values, for windows that are padded
    part = padded[:, :T]
    row = np.empty((n, len(plan.tokens)), dtype)  # (n, L): the values of all windows, side by side
    ranked_values = np.empty((n, 5, W), dtype)  # what is read off the sorted windows
    exact = np.empty((n, T))  # the values in double precision
    terms = np.empty((n, 3, 2, T))  # distance, distance x index and squared distance, forwards and backwards
    parts, sums = np.empty((n, 3, 2, S)), np.empty((n, 3, 2, S))  # sums over parts of the response, and of these
    totals, means = np.empty((n, 3, W)), np.empty((n, 3, W))  # sums over each window, and these by its width
    products = np.empty((n, 2, W))
    moments = np.empty((n, 2, W))  # covariance with the index, and variance
    bounded, doubled = np.empty((n, W)), np.empty((n, W))
    numbers = np.empty((n, (_STD + 1) * W + 2))  # the table (n, rows, W), then the length and a NaN
    numbers[:, -2:] = T, np.nan
    table = numbers[:, :-2].reshape(n, _STD + 1, W)
    out = np.empty((n, len(plan.cells)))
    distance, shift = terms[:, 0], means[:, 0]
    # NumPy is quickest with a plain number or equal shapes: for one response they are that.
    first, last = (exact[0, 0:1].reshape(()), exact[0, -1:].reshape(())) if n == 1 else (exact[:, :1], exact[:, -1:])
    index = np.arange(T) * np.ones((1, 2, 1))
    half, zero, largest = np.full((1, W), 0.5), np.zeros((1, W)), np.full((1, W), MAX_FEATURE)
    calls: list[Callable[[], object]] = [
        # The order statistics of each window, and the sums over it.
        partial(padded.take, plan.tokens, 1, row, _TAKE_MODE),
        *(partial(row[:, a:b].reshape(n, -1, width).sort, 2) for a, b, width in plan.stacks),
        partial(row.take, plan.ranks, 1, ranked_values, _TAKE_MODE),
        partial(np.copyto, table[:, : _FIRST + 1], ranked_values),
        partial(np.copyto, exact, part),
        partial(np.subtract, exact, first, distance[:, 0]),
        partial(np.subtract, exact[:, ::-1], last, distance[:, 1]),
        partial(np.multiply, distance, index, terms[:, 1]),
        partial(np.multiply, distance, distance, terms[:, 2]),
        partial(np.add.reduceat, terms, plan.starts, 3, None, parts),
        partial(np.add.accumulate, parts, 3, None, sums),
        partial(sums.reshape(n, 3 * 2 * S).take, plan.sums, 1, totals, _TAKE_MODE),
        # The other statistics, from the sums.
        partial(np.divide, totals, plan.counts, means),
        partial(np.multiply, shift, plan.middles, products[:, 0]),
        partial(np.multiply, shift, shift, products[:, 1]),
        partial(np.subtract, means[:, 1:], products, moments),
        partial(np.divide, moments[:, 0], plan.index_variances, table[:, _SLOPE]),
        partial(np.minimum, moments[:, 1], largest, out=bounded),
        partial(np.maximum, bounded, zero, out=table[:, _VAR]),
        partial(np.sqrt, table[:, _VAR], table[:, _STD]),
        partial(np.add, table[:, _FIRST], shift, table[:, _MEAN]),
        partial(np.add, table[:, _BELOW], table[:, _ABOVE], doubled),
        partial(np.multiply, doubled, half, table[:, _MEDIAN]),
        partial(np.subtract, table[:, _HIGH], table[:, _LOW], table[:, _RANGE]),
    ]
    has_gaps = dtype != np.float32  # in entropy and margin; log-probabilities have none
    if has_gaps:  # a window with an unknown value has no known median
        calls.append(lambda: np.copyto(table, np.nan, where=np.isnan(table[:, _MEAN : _MEAN + 1])))
    calls.append(partial(numbers.take, plan.cells, 1, out, _TAKE_MODE))

    def reader(values: NDArray[Any]) -> NDArray[np.float32]:
        np.copyto(part, values)
        for call in calls:
            call()
        return out.astype(np.float32)

    return np.errstate(invalid="ignore")(reader) if has_gaps else reader
