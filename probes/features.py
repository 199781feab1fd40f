"""Numbers that describe a finished or begun response: windows x statistics over its token log-probabilities.

`WINDOWS` and `STATISTICS` are the definition. The readers below give the same numbers to the bit, for one response or
many. The windows are those of early-token confidence estimation (first, last, fractional), more densely.

Log-probabilities are rounded to float32 first, as they are recorded: what a server sends as JSON and what the run store
gives back then have the same features. All arithmetic after that is in float64; results are float32.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch
from metaprobe.probes.terms import TERMS, terms
from metaprobe.probes.window_statistics import STATISTICS, Reader, WindowPlan, plan, prepare
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.types import FloatArray

COUNTS = (3, 5, 10, 20, 30, 50)
PERCENTS = (10, 25, 50)

Series = Sequence[float] | FloatArray
"""One number a token, (T,)."""


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

TOP_SERIES = ("entropy", "margin")
TERM_NAMES = tuple(f"terms.{name}" for name in TERMS)


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
    uses_terms: bool = field(compare=False, default=False)
    """Whether its last features are the terms of `metaprobe.probes.terms`."""

    @property
    def block(self) -> int:
        """How many features one series (log-probability, entropy, margin) has."""
        return len(self.windows) * len(STATISTICS)


ALONE, PLUS_TERMS = "terms", "+terms"
DECIDED = "decisions"
"""Schema of numbers that decision models gave (`metaprobe.probes.decisions`); each checkpoint names its own columns."""
SCHEMA_NAMES = (
    *(name + more for more in ("", "+top", PLUS_TERMS) for name in ("full", *(f"prefix-{k}" for k in COUNTS))),
    ALONE,
)


@cache
def schema(name: str) -> Schema:
    """The schema called `name`: "full", "prefix-3" ... "prefix-50", each also with "+top" or "+terms"; "terms"."""
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
    return Schema(
        name,
        windows,
        tuple(names),
        limit,
        uses_top="top" in plus,
        uses_terms="terms" in plus,
    )


def schema_of(checkpoint: Checkpoint) -> Schema:
    """Returns the schema of a checkpoint. Raises `ContractMismatch` where it was made for other features than ours."""
    contract = checkpoint.manifest.contract
    if contract.get("schema") == DECIDED:
        return Schema(DECIDED, (), tuple(map(str, contract.get("features", ()))), None, uses_top=False)
    try:
        own = schema(str(contract.get("schema")))
    except RecordError as error:
        raise ContractMismatch(f"{checkpoint.path}: {error}") from error
    if contract.get("features") != list(own.names):
        raise ContractMismatch(
            f"{checkpoint.path} was made for other {own.name!r} features than this version computes: train it again, "
            "or use the version of metaprobe it names"
        )
    return own


def features(
    schema: Schema,
    logprobs: Sequence[Series],
    top_logprobs: Sequence[FloatArray | None] | None = None,
) -> NDArray[np.float32]:
    """Features of n responses of any lengths, (n, len(schema.names)); NaN where a window or statistic is not defined.

    `logprobs[i]`: (T_i,), nats, checked (finite, <= 0), those of the answer alone. `top_logprobs[i]`: (T_i, k),
    descending, NaN where a token has fewer than k; None where there are none. Raises `InvalidResponse` for a response
    without tokens, or tops of another length.
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
        prepared: Prepared | None = {} if len(group) > 1 else None  # of one response, what is kept from the last one
        for part in (group[i : i + rows] for i in range(0, len(group), rows)):
            x = np.concatenate([logprobs[i][:seen] for i in part], dtype=np.float32).reshape(len(part), seen)
            top = np.stack([tops[i][:seen] for i in part]) if k else None
            result[part] = _dense(schema, x, top, prepared)
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


Prepared = dict[tuple[int, str], Reader]
"""Readers of n responses of one length and type, for one batch."""


def _dense(
    schema: Schema,
    logprobs: NDArray[np.float32],
    top: NDArray[np.float32] | None,
    prepared: Prepared | None = None,
) -> NDArray[np.float32]:
    """Features of n responses that all have T tokens: (n, T) and (n, T, k) -> (n, len(schema.names))."""
    if not schema.windows:
        return terms(logprobs)
    known = _read(schema, logprobs, prepared)
    if schema.uses_terms:
        return np.concatenate((known, terms(logprobs)), 1)
    if not schema.uses_top:
        return known
    result = np.full((len(logprobs), len(schema.names)), np.nan, np.float32)
    result[:, : known.shape[1]] = known
    if top is not None:
        for i, series in enumerate((entropy(top), margin(top))):
            start = known.shape[1] + i * schema.block
            result[:, start : start + schema.block] = _read(schema, series, prepared)[:, : schema.block]
    return result


def _read(schema: Schema, values: FloatArray, prepared: Prepared | None) -> NDArray[np.float32]:
    """(n, T) -> the features of one series, and the length where the schema has it."""
    n, T = values.shape
    kept = _kept(schema.name, T) if T <= LONGEST_KEPT else _kept.__wrapped__(schema.name, T)
    if kept.plan is None:
        return np.full((n, schema.block), np.nan, np.float32)
    if prepared is not None:
        key = (n, values.dtype.char)
        reader = prepared.get(key) or prepared.setdefault(key, prepare(kept.plan, n, values.dtype))
    else:
        try:
            reader = kept.spare[values.dtype.char].pop()
        except IndexError:
            reader = prepare(kept.plan, n, values.dtype)
    result = reader(values)
    if prepared is None:
        kept.spare[values.dtype.char].append(reader)
    return result


LONGEST_KEPT, MOST_KEPT = 1024, 8
"""Readers for responses of at most `LONGEST_KEPT` tokens are kept for the next response, `MOST_KEPT` for each length.
A reader takes 60 kB at 512 tokens, so hundreds of different lengths take some 30 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    plan: WindowPlan | None
    """The windows' places; None where the response is too short for any window."""
    spare: dict[str, deque[Reader]]
    """Readers of one response, by type, that no thread is using."""


@lru_cache(maxsize=512)
def _kept(name: str, length: int) -> _Kept:
    windows = schema(name).windows
    spare = {kind: deque[Reader](maxlen=MOST_KEPT) for kind in "fd"}
    widths = [window.width(length) for window in windows]
    ends = [window.from_end for window in windows]
    return _Kept(plan(length, widths, ends, with_length=schema(name).limit is None) if any(widths) else None, spare)
