"""Reads an OpenAI chat completion, from any server that speaks that format, into arrays.

Standard library and NumPy only: this is on the way of every score in the base install.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import Call, FloatArray, LogprobsMode, Usage

_HUGE_COUNT = 1 << 40  # no usage; stored as 64-bit integers

ROUNDING = 1e-4
"""Log-probabilities up to this far above 0 are rounding (a softmax in half precision) and become 0."""

_ASK = "request the completion with logprobs=True (and top_logprobs=k for the alternatives)"


@dataclass(frozen=True, slots=True, eq=False)
class ParsedResponse:
    """What one answer says about itself."""

    text: str
    """Empty where the answer was a tool call or a refusal."""
    tokens: tuple[str, ...]
    """As the server spelled them; empty where only log-probabilities were given."""
    logprobs: FloatArray
    """float32, shape (T,), T >= 1, nats, finite and at most 0."""
    top_logprobs: FloatArray | None = None
    """float32, shape (T, k), nats, descending; NaN where a token has fewer than k alternatives."""
    finish_reason: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    logprobs_mode: LogprobsMode = "unknown"
    """`raw` before temperature and truncation, `processed` after them; chat completions do not say."""
    temperature: float | None = None
    """At which the tokens were drawn, where the source says so."""


@dataclass(frozen=True, slots=True)
class ParsedText:
    """What one answer says, its log-probabilities aside."""

    text: str
    """Empty where the answer was a tool call or a refusal."""
    finish_reason: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)


def parse_response(response: object, *, choice: int = 0) -> ParsedResponse:
    """What a response says about itself. Raises `InvalidResponse` for one that cannot be scored.

    `response` is a chat completion (a dict, JSON text or bytes, or a client's object with `model_dump()`), a `Call`, or
    a plain sequence of log-probabilities. OpenAI gives -9999.0 for a sampled token outside of the likeliest 20; it is
    kept as it came, being finite and meaning what it says, and so it weighs in a mean.
    """
    if isinstance(response, ParsedResponse):
        return response
    if isinstance(response, Call):
        return _from_call(response)
    if isinstance(response, (str, bytes, bytearray)):
        response = _from_json(response)
    elif not isinstance(response, Mapping) and hasattr(response, "model_dump"):
        response = response.model_dump()
    if not isinstance(response, Mapping):
        return ParsedResponse(text="", tokens=(), logprobs=check_logprobs(response))
    return _from_completion(response, choice)


def parse_text(response: object, *, choice: int = 0) -> ParsedText:
    """What a chat completion (a dict, JSON text or bytes) says, with or without log-probabilities.

    Raises `InvalidResponse` for one that holds no answer.
    """
    if isinstance(response, (str, bytes, bytearray)):
        response = _from_json(response)
    if not isinstance(response, Mapping):
        raise InvalidResponse(f"the response came as {type(response).__name__}; expected a chat completion")
    return _said(response, choice)


def check_logprobs(values: object) -> NDArray[np.float32]:
    """Log-probabilities as float32 (T,), T >= 1, finite and at most 0. Raises `InvalidResponse` for anything else."""
    if values is None:
        raise InvalidResponse(f"the response holds no log-probabilities; {_ASK}")
    given = _numbers(values)
    if given.ndim != 1:
        raise InvalidResponse(
            f"log-probabilities came with shape {given.shape}; expected one number a token, shape (T,):"
            " score one answer at a time"
        )
    if not given.size:
        raise InvalidResponse(
            f"the response holds no tokens (0 log-probabilities); expected at least 1; if it has text, {_ASK}"
        )
    with np.errstate(over="ignore"):  # beyond float32 becomes -inf, and is refused as that below
        logprobs = given.astype(np.float32)
    if not (logprobs.max() <= ROUNDING and logprobs.min() > -np.inf):  # a NaN fails both
        _refuse(given, logprobs)
    return np.minimum(logprobs, np.float32(0))


def content_text(content: object) -> str:
    """The text of a message's `content`: a string, a list of parts (of which the text ones count), or None."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(
            part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        )
    return ""


def _numbers(values: object) -> NDArray[Any]:
    """Real numbers as an array of any shape. NumPy alone would take True for 1 and "-0.5" for a string array."""
    if not hasattr(values, "__array__"):
        if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
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
        why = (
            f"is {value:g}; expected a finite number: the token was ruled out by the sampler, so ask the server for raw"
            " log-probabilities (before temperature, top-k and top-p)"
        )
    raise InvalidResponse(f"the log-probability of token {index} (of {given.size}) {why}, or leave this response out")


def _from_json(text: str | bytes | bytearray) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, bad UTF-8, a number of 5000 digits
        raise InvalidResponse(
            f"the response ({len(text)} long) is not JSON ({error}); expected a whole chat completion: was it cut off?"
        ) from error


def _from_call(call: Call) -> ParsedResponse:
    if call.logprobs is None:
        raise InvalidResponse(f"call {call.id!r} was recorded without log-probabilities; {_ASK}")
    return ParsedResponse(
        call.text,
        call.tokens,
        check_logprobs(call.logprobs),
        call.top_logprobs,
        call.finish_reason,
        call.model,
        call.usage,
        call.logprobs_mode,
        call.sampling.temperature,
    )


def _from_completion(response: Mapping[str, Any], choice: int) -> ParsedResponse:
    said = _said(response, choice)
    entries = _token_entries(response["choices"][choice].get("logprobs"), choice)
    return ParsedResponse(
        text=said.text,
        tokens=tuple([str(entry.get("token") or "") for entry in entries]),
        logprobs=check_logprobs([entry.get("logprob") for entry in entries]),
        top_logprobs=_alternatives(entries),
        finish_reason=said.finish_reason,
        model=said.model,
        usage=said.usage,
    )


def _said(response: Mapping[str, Any], choice: int) -> ParsedText:
    choices = response.get("choices")
    if not isinstance(choices, Sequence) or not 0 <= choice < len(choices):
        came = (
            f"{len(choices)} choices" if isinstance(choices, Sequence) else f"the keys {sorted(map(str, response))[:8]}"
        )
        raise InvalidResponse(f"the response has {came}; expected a chat completion with choices[{choice}]")
    chosen = choices[choice]
    message = chosen.get("message") if isinstance(chosen, Mapping) else None
    if not isinstance(message, Mapping):
        raise InvalidResponse(
            f"choices[{choice}] has no message; expected a whole chat completion:"
            " join the chunks of a stream first, and use chat completions rather than the older text completions"
        )
    return ParsedText(
        text=content_text(message.get("content")),
        finish_reason=str(chosen.get("finish_reason") or ""),
        model=str(response.get("model") or ""),
        usage=_usage(response.get("usage")),
    )


def _token_entries(logprobs: object, choice: int) -> Sequence[Mapping[str, Any]]:
    """The entries of the generated tokens; those of a refusal stand under a key of their own."""
    entries = None
    if isinstance(logprobs, Mapping):
        entries = logprobs.get("content") if logprobs.get("content") is not None else logprobs.get("refusal")
    if entries is None:
        raise InvalidResponse(
            f"the response holds no log-probabilities (choices[{choice}].logprobs.content is missing); {_ASK}"
        )
    if not isinstance(entries, Sequence) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InvalidResponse(
            f"choices[{choice}].logprobs.content is not a list of objects;"
            " expected {token, logprob, top_logprobs} for each token"
        )
    return entries


def _alternatives(entries: Sequence[Mapping[str, Any]]) -> NDArray[np.float32] | None:
    """(T, k), descending. Alternatives that the sampler ruled out (-inf) count as not given."""
    try:
        rows = [[alternative["logprob"] for alternative in entry.get("top_logprobs") or ()] for entry in entries]
        lengths = np.fromiter(map(len, rows), dtype=np.intp, count=len(rows))
        width = int(lengths.max())
        if not width:
            return None
        padded = np.full((len(rows), width), np.nan, dtype=np.float32)
        flat = np.array(list(chain.from_iterable(rows)))
        if flat.dtype.kind not in "fiu":
            raise TypeError("a logprob among them is no number")
        with np.errstate(over="ignore"):
            padded[np.arange(width) < lengths[:, None]] = flat
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidResponse(
            f"top_logprobs cannot be read ({type(error).__name__}: {error});"
            " expected a list of {token, logprob} for each token"
        ) from error
    if np.any(padded > ROUNDING):
        token = int(np.argwhere(padded > ROUNDING)[0, 0])
        raise InvalidResponse(f"token {token} has an alternative with a log-probability above 0; expected at most 0")
    padded[np.isneginf(padded)] = np.nan
    return -np.sort(-np.minimum(padded, np.float32(0)), axis=1)  # NumPy sorts NaN last


def _usage(usage: object) -> Usage:
    if not isinstance(usage, Mapping):
        return Usage()
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    return Usage(*(count if isinstance(count, int) and 0 <= count < _HUGE_COUNT else 0 for count in counts))
