"""The alternatives that a server gives beside each token, as one array."""

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse

ROUNDING = 1e-4
"""Log-probabilities up to this far above 0 are rounding (a softmax in half precision) and become 0."""

MOST_PADDED = 1 << 22
"""Numbers, 16 MiB of them, to which rows of unequal lengths may be filled up. Rows that hold a quarter of their numbers
may be larger; one long row among a million empty ones would take terabytes."""


def alternatives(rows: Sequence[Any]) -> NDArray[np.float32] | None:
    """(T, k), descending, from a row a token; None where none has any. Padded with NaN.

    A row holds numbers, or {token, logprob} as dictionaries or objects. Those that the sampler ruled out count as not
    given: they are -inf, or null, for JSON has no -inf.
    """
    try:
        rows = [row or () for row in rows]
        lengths = np.fromiter(map(len, rows), dtype=np.intp, count=len(rows))
        width = int(lengths.max(initial=0))
        if not width:
            return None
        if len(rows) * width > max(MOST_PADDED, 4 * int(lengths.sum())):
            raise InvalidResponse(
                f"one token has {width} alternatives, and the {len(rows)} tokens have {int(lengths.sum())} in all;"
                " expected about as many for each token: ask for the same top_logprobs for all"
            )
        padded = np.full((len(rows), width), np.nan, dtype=np.float32)
        flat = np.array(_numbers_of(rows))
        if flat.dtype.kind == "O":  # a null among them
            flat = np.array([-np.inf if value is None else value for value in flat])
        if flat.dtype.kind not in "fiu" or flat.ndim != 1:
            raise TypeError("a logprob among them is no number")
        with np.errstate(over="ignore"):
            padded[np.arange(width) < lengths[:, None]] = flat
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidResponse(
            f"top_logprobs cannot be read ({type(error).__name__}: {error});"
            " expected a list of {token, logprob} for each token"
        ) from error
    if np.any(padded > ROUNDING):
        token = int(np.argwhere(padded > ROUNDING)[0, 0])
        raise InvalidResponse(f"token {token} has an alternative with a log-probability above 0; expected at most 0")
    padded[np.isneginf(padded)] = np.nan
    return -np.sort(-np.minimum(padded, np.float32(0)), axis=1)  # NumPy sorts NaN last


def _numbers_of(rows: list[Any]) -> list[Any]:
    """All alternatives in one list; the first tells what they are, for there may be thousands."""
    first = next(chain.from_iterable(rows))
    if first is None or isinstance(first, (float, int)):
        return list(chain.from_iterable(rows))
    read = itemgetter("logprob") if isinstance(first, Mapping) else attrgetter("logprob")
    return list(map(read, chain.from_iterable(rows)))
