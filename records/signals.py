"""Reads `metaprobe_signals` of a response: hidden states, and the numbers that the model stated.

    "metaprobe_signals": {
        "hidden_states": {"model": "m", "layers": [18], "positions": ["answer_mean"], "values": [[[...]]]},
        "confidence": 0.8, "p_true": 0.7
    }

`values` are (layers, positions, width). In place of both `positions` and `values` there may be `tokens`, the states of
every token of the answer, (tokens, layers, width). Either may be base64 of little-endian numbers, with `dtype` (float16
or float32) and `shape`. `model` is needed only where another model than the one that answered read the states.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.response import ParsedResponse, tokens_of
from metaprobe.records.types import POSITIONS, FloatArray, Hidden, SegmentKind

KEY = "metaprobe_signals"
HIDDEN_STATES = "hidden_states"
STATED = ("confidence", "p_true")
"""Names of the numbers in [0, 1] that a model states of its answer."""
DTYPES = {"float16": "<f2", "float32": "<f4"}
POOLED = ("answer_first", "answer_last", "answer_mean", "thinking_first", "thinking_last", "thinking_mean")


def with_signals(parsed: ParsedResponse, given: object) -> ParsedResponse:
    """Returns the response with what came under `metaprobe_signals`. Raises `InvalidResponse` where it is damaged."""
    if not isinstance(given, Mapping):
        raise InvalidResponse(f"{KEY} is a {type(given).__name__}; expected an object with {HIDDEN_STATES}, confidence")
    if unknown := sorted(set(map(str, given)) - {HIDDEN_STATES, *STATED}):
        raise InvalidResponse(f"{KEY} has {unknown[0]!r}; expected {', '.join((HIDDEN_STATES, *STATED))}")
    stated = {name: number_of(name, given[name]) for name in STATED if given.get(name) is not None}
    states = given.get(HIDDEN_STATES)
    return replace(parsed, stated=stated, hidden=None if states is None else hidden_of(states, parsed))


def number_of(name: str, value: object) -> float:
    """Returns a stated number. Raises `InvalidResponse` for anything but a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:  # NaN fails too
        raise InvalidResponse(f"{name} is {value!r}; expected a number from 0 to 1, or null where none was stated")
    return float(value)


def hidden_of(given: object, parsed: ParsedResponse) -> Hidden:
    """Returns the states that a caller sent with an answer. Raises `InvalidResponse` where they cannot be read."""
    if not isinstance(given, Mapping):
        raise InvalidResponse(f"{HIDDEN_STATES} is a {type(given).__name__}; expected an object with layers and values")
    model, layers = given.get("model", ""), _listed(given, "layers", int)
    if not isinstance(model, str):
        raise InvalidResponse(f"the model of the hidden states is {model!r}; expected its name")
    if "tokens" in given:
        return of_tokens(_array(given, "tokens"), layers, parsed, model)
    positions = _listed(given, "positions", str)
    if unknown := sorted(set(positions) - set(POSITIONS)):
        raise InvalidResponse(f"hidden states at {unknown[0]!r}; expected positions out of {', '.join(POSITIONS)}")
    return Hidden(_array(given, "values"), layers, positions, model)


def of_tokens(values: FloatArray, layers: Sequence[int], parsed: ParsedResponse, model: str = "") -> Hidden:
    """Returns the states of an answer's tokens, (tokens, layers, width), at the positions that they give.

    Raises `InvalidResponse` where there is not one for each token of the answer.
    """
    tokens = len(parsed.logprobs)
    if values.ndim != 3 or values.shape[1] != len(layers):
        raise InvalidResponse(
            f"states of tokens have shape {values.shape}; expected (tokens, {len(layers)}, width) for layers "
            f"{list(layers)}"
        )
    if len(values) not in (tokens, tokens + parsed.left_out):
        fewer = " (engines that speculate may drop some)" if len(values) < tokens else ""
        raise InvalidResponse(
            f"states of {len(values)} tokens came for an answer of {tokens}{fewer}; expected one for each: read the "
            "answer again, or leave the states out"
        )
    read: dict[str, FloatArray] = {}
    kinds: tuple[SegmentKind, ...] = ("answer", "thinking")
    for kind in kinds:
        own = values[tokens_of(parsed.segments, kind, tokens)]
        if len(own):
            mean = own.astype(np.float64).mean(axis=0)
            read |= {f"{kind}_first": own[0], f"{kind}_last": own[-1], f"{kind}_mean": mean}
    positions = tuple(position for position in POOLED if position in read)
    stacked = np.stack([read[position].astype(np.float32) for position in positions], axis=1)
    return Hidden(stacked, tuple(layers), positions, model)


def _listed(given: Mapping[str, Any], key: str, kind: type) -> tuple[Any, ...]:
    values = given.get(key)
    if not isinstance(values, list | tuple) or not values or any(type(value) is not kind for value in values):
        what = "layer numbers" if kind is int else "names"
        raise InvalidResponse(f"{key} of the hidden states are {values!r:.80}; expected a list of {what}")
    return tuple(values)


def _array(given: Mapping[str, Any], key: str) -> FloatArray:
    values = given.get(key)
    try:
        if isinstance(values, str):
            dtype, shape = given.get("dtype"), given.get("shape")
            if dtype not in DTYPES:
                raise InvalidResponse(
                    f"hidden states came as {dtype!r}; expected dtype {' or '.join(DTYPES)}, little-endian in base64"
                )
            return np.frombuffer(base64.b64decode(values, validate=True), DTYPES[dtype]).reshape(shape)
        array = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError, binascii.Error, OverflowError) as error:
        raise InvalidResponse(f"{key} of the hidden states cannot be read ({error}); expected numbers") from error
    if array.ndim != 3:
        raise InvalidResponse(f"{key} of the hidden states have shape {array.shape}; expected three axes")
    return array
