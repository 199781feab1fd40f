"""Log-probabilities as they came, checked: real numbers, finite and at most 0, one a token."""

from collections.abc import Iterable, Mapping, Set
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.alternatives import ROUNDING
from metaprobe.records.errors import InvalidResponse

ASK = "request the completion with logprobs=True (and top_logprobs=k for the alternatives)"


def check_logprobs(values: object) -> NDArray[np.float32]:
    """Log-probabilities as float32 (T,), T >= 1, finite and at most 0. Raises `InvalidResponse` for anything else."""
    if values is None:
        raise InvalidResponse(f"the response holds no log-probabilities; {ASK}")
    given = _numbers(values)
    if given.ndim != 1:
        raise InvalidResponse(
            f"log-probabilities came with shape {given.shape}; expected one number a token, shape (T,):"
            " score one answer at a time"
        )
    if not given.size:
        raise InvalidResponse(
            f"the response holds no tokens (0 log-probabilities); expected at least 1; if it has text, {ASK}"
        )
    with np.errstate(over="ignore"):  # beyond float32 becomes -inf, and is refused as that below
        logprobs = given.astype(np.float32)
    if not (logprobs.max() <= ROUNDING and logprobs.min() > -np.inf):  # a NaN fails both
        _refuse(given, logprobs)
    return np.minimum(logprobs, np.float32(0))


def _numbers(values: object) -> NDArray[Any]:
    """Real numbers as an array of any shape. NumPy alone would take True for 1 and "-0.5" for a string array."""
    if not hasattr(values, "__array__"):
        if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
            raise InvalidResponse(
                f"log-probabilities came as {type(values).__name__}; expected a list or array of numbers, one a token"
            )
        values = list(values)
        for kind in set(map(type, values)):
            if kind in (list, tuple, np.ndarray):
                raise InvalidResponse(
                    "log-probabilities came nested; expected one number a token, shape (T,): score one answer at a time"
                )
            if not issubclass(kind, (float, int, np.floating, np.integer)) or issubclass(kind, bool):
                index = next(i for i, value in enumerate(values) if type(value) is kind)
                raise InvalidResponse(
                    f"the log-probability of token {index} is {values[index]!r} ({kind.__name__}); expected a number"
                )
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "fiu":
        raise InvalidResponse(f"log-probabilities came as an array of {array.dtype}; expected real numbers in nats")
    return array


def _refuse(given: NDArray[Any], logprobs: NDArray[np.float32]) -> NoReturn:
    """Says which log-probability is none, and what to do about it."""
    index = int(np.flatnonzero(~((logprobs <= ROUNDING) & (logprobs > -np.inf)))[0])
    value = given[index]
    if np.isnan(value):
        why = "is NaN; expected a number of at most 0: the model overflowed, run it in bfloat16 or float32"
    elif value > 0:
        why = (
            f"is {value:g}; expected at most 0: take the logarithm if these are probabilities,"
            " the log-softmax if they are logits"
        )
    else:
        size = "a finite number" if np.isinf(value) else "a number of nats that 32 bits hold (above -3.4e38)"
        why = (
            f"is {value:g}; expected {size}: the token was ruled out by the sampler, so ask the server for raw"
            " log-probabilities (before temperature, top-k and top-p)"
        )
    raise InvalidResponse(f"the log-probability of token {index} (of {given.size}) {why}, or leave this response out")
