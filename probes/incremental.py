"""The prefix features of a response that is still being written: one push a token, a few microseconds each."""

import math
from bisect import insort
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.features import Schema
from metaprobe.probes.terms import TERMS, terms
from metaprobe.probes.window_statistics import LARGEST, STATISTICS, index_variance
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.logprobs import ROUNDING
from metaprobe.records.types import FloatArray


class PrefixReader:
    """Reads a response token by token; what it knows equals `features` of the tokens so far. For prefix schemas."""

    def __init__(self, schema: Schema) -> None:
        if schema.limit is None:
            raise RecordError(f"schema {schema.name!r} needs a finished response: read a stream with a prefix-k schema")
        self.schema = schema
        self.tokens_seen = 0
        """At most the schema's k: later tokens are not looked at."""
        self._limit = schema.limit
        self._columns = {window.count: i * len(STATISTICS) for i, window in enumerate(schema.windows)}
        self._series = [_Prefix() for _ in range(3 if schema.uses_top else 1)]
        self._vector = np.full(len(schema.names), np.nan, np.float32)
        self._logprobs: list[float] = []
        """For the terms, which are made of all tokens so far whenever they are asked for."""

    def push(self, logprob: float, top: Sequence[float] | FloatArray | None = None) -> None:
        """Take in one token's log-probability and its k likeliest, descending. Does nothing beyond the schema's k."""
        if self.tokens_seen >= self._limit:
            return
        if not -LARGEST <= logprob <= ROUNDING:
            raise InvalidResponse(
                f"token {self.tokens_seen}: log-probability {logprob}, expected a number of nats, at most 0,"
                " that 32 bits hold"
            )
        self.tokens_seen += 1
        value = float(np.float32(min(logprob, 0.0)))
        self._series[0].push(value)
        if self.schema.uses_terms:
            self._logprobs.append(value)
        if self.schema.uses_top:
            entropy, margin = _top_values([] if top is None else np.asarray(top, np.float32).tolist())
            self._series[1].push(entropy)
            self._series[2].push(margin)
        column = self._columns.get(self.tokens_seen)
        if column is not None:
            for i, prefix in enumerate(self._series):
                start = i * self.schema.block + column
                self._vector[start : start + len(STATISTICS)] = prefix.statistics()

    def vector(self) -> NDArray[np.float32]:
        """The features as far as they are known, (len(schema.names),); NaN where a window is not yet complete."""
        known = self._vector.copy()
        if self._logprobs:
            known[-len(TERMS) :] = terms(np.array([self._logprobs]))
        return known


class _Prefix:
    """Sorted values and sums of all values so far.

    Sums are of distances to the first value, c. Since c is one of the w values, (mean - c)^2 <= w var: what is
    subtracted to get the variance is at most w times as large as the result, and a constant series gives exactly 0.
    """

    __slots__ = ("_first", "_products", "_sorted", "_squares", "_total")

    def __init__(self) -> None:
        self._sorted: list[float] = []
        self._first = self._total = self._squares = self._products = 0.0

    def push(self, value: float) -> None:
        count = len(self._sorted)
        if count == 0:
            self._first = value
        distance = value - self._first
        self._total += distance
        self._squares += distance * distance
        self._products += distance * count
        insort(self._sorted, value)

    def statistics(self) -> tuple[float, ...]:
        """In the order of `STATISTICS`; NaN where a value was NaN, that is, not known."""
        if math.isnan(self._total):
            return (math.nan,) * len(STATISTICS)
        values, w = self._sorted, len(self._sorted)
        low, high, shift = values[0], values[-1], self._total / w
        median = (values[(w - 1) // 2] + values[w // 2]) / 2
        variance = min(max(0.0, self._squares / w - shift * shift), LARGEST)
        covariance = self._products / w - shift * (w - 1) / 2
        slope = covariance / index_variance(w)
        return self._first + shift, median, low, high, variance, math.sqrt(variance), high - low, slope


def _top_values(top: list[float]) -> tuple[float, float]:
    """Entropy and margin of one token, as `features.entropy` and `features.margin`, without the cost of arrays."""
    given = [value for value in top if value > -math.inf]  # leaves out NaN too
    if not given:
        return math.nan, math.nan
    shifted = [value - given[0] for value in given]
    weights = [math.exp(value) for value in shifted]
    total = sum(weights)
    entropy = math.log(total) - sum(w * s for w, s in zip(weights, shifted, strict=True)) / total
    return entropy, -shifted[1] if len(given) > 1 else math.nan
