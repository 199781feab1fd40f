"""JSON to dataclasses and back, with no benefit of the doubt: the annotations of a dataclass are the schema."""

import dataclasses
import json
import math
import types
import typing
from functools import lru_cache
from typing import Any, Literal, NoReturn, TypeVar, Union, cast

import numpy as np

from metaprobe.checkpoints.errors import CheckpointError, ContractMismatch, NotACheckpoint

T = TypeVar("T")

_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def loads(data: bytes, what: str) -> Any:
    """The value of JSON bytes. Refuses NaN, infinities (also 1e999) and repeated keys; `what` names the source."""
    try:
        return json.loads(
            data.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_object
        )
    except (ValueError, RecursionError) as error:
        raise NotACheckpoint(f"{what} is not strict JSON: {error}") from error


def dumps(value: Any) -> bytes:
    """UTF-8 JSON of what `plain` returns, indented, ending in a newline."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def plain(value: Any, where: str) -> Any:
    """Dataclasses, tuples, arrays and NumPy scalars as what JSON has. Refuses what JSON has not, NaN and infinities."""
    match value:
        case np.generic() | np.ndarray():
            return plain(value.tolist(), where)
        case None | bool() | int() | str():
            return value
        case float():
            if not math.isfinite(value):
                raise ContractMismatch(f"{where}: expected a finite number, got {value}")
            return value
        case list() | tuple():
            return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        case dict():
            if odd := [key for key in value if not isinstance(key, str)]:
                raise ContractMismatch(f"{where}: the keys of an object are strings, got {odd[0]!r}")
            return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), f"{where}.{f.name}") for f in dataclasses.fields(value)}
    raise ContractMismatch(f"{where}: a {type(value).__name__} cannot be written as JSON")


def build(kind: type[T], value: Any, where: str) -> T:
    """`value`, as `plain` or `loads` gives it, as an instance of the dataclass `kind`.

    Every field must be there, none may be unknown, and each must have the annotated type
    (an integer passes for a number, a boolean does not). Errors name the path to the field, beginning with `where`.
    """
    return cast(T, _build(kind, value, where))


def _build(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(cast(type, kind), value, where)
    if kind is Any:
        return value
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (kept,) = (arg for arg in args if arg is not type(None))
        return _build(kept, value, where)
    if origin is Literal:
        if value not in args:
            _fail(where, " or ".join(map(repr, args)), value)
        return value
    if origin is tuple:
        if not isinstance(value, list):
            _fail(where, _NAMES[list], value)
        return tuple(_build(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            _fail(where, _NAMES[dict], value)
        return {key: _build(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            _fail(where, "a number that fits a double", value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        _fail(where, _NAMES[kind], value)
    return value


def _build_dataclass(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        _fail(where, _NAMES[dict], value)
    hints = _hints(kind)
    if missing := [name for name in hints if name not in value]:
        raise ContractMismatch(f"{where}: missing {', '.join(map(repr, missing))}")
    if unknown := [name for name in value if name not in hints]:
        raise ContractMismatch(f"{where}: unknown field {', '.join(map(repr, unknown))}; known are {', '.join(hints)}")
    arguments = {name: _build(hint, value[name], f"{where}.{name}") for name, hint in hints.items()}
    try:
        return kind(**arguments)
    except CheckpointError as error:
        raise type(error)(f"{where}: {error}") from error


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _fail(where: str, expected: str, got: Any) -> NoReturn:
    text = repr(got)
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    raise ContractMismatch(f"{where}: expected {expected}, got {shown}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is too large for a double")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"key {name[:80]!r} occurs twice in one object")
        members[name] = value
    return members
