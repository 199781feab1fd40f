"""Looks into dictionaries, clients' objects and tensors alike, importing none of the libraries they are of."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import Usage

_DICT = attrgetter("__dict__")
_HUGE_COUNT = 1 << 40  # no usage; stored as 64-bit integers
_HOTTEST = 1e30  # no temperature; a plain float, for NumPy's warn when compared with a huge integer


def fields(value: object) -> Mapping[str, Any] | None:
    """Returns what a mapping or a client's object holds by name, one level deep; None for anything else.

    A pydantic object (openai, litellm) is looked into and not dumped: dumping 512 tokens with their alternatives takes
    milliseconds, and warns of what a lenient client let through.
    """
    if type(value) is dict or isinstance(value, Mapping):
        return value
    held = getattr(value, "__dict__", None)
    if hasattr(value, "__pydantic_serializer__") and isinstance(held, dict):
        extra = getattr(value, "__pydantic_extra__", None)
        return {**held, **extra} if isinstance(extra, dict) else held
    if hasattr(value, "model_dump"):
        dumped = value.model_dump()
        return dumped if isinstance(dumped, Mapping) else None
    return None


def fields_of_each(values: Sequence[Any]) -> list[Mapping[str, Any] | None]:
    """`fields` of every value, quicker where all are of one kind."""
    kind = type(values[0])
    if all(type(value) is kind for value in values):
        if kind is dict:
            return list(values)
        if hasattr(kind, "__pydantic_serializer__"):
            return [value.__dict__ for value in values]
    return [fields(value) for value in values]


def columns_of_each(values: Sequence[Any], names: Sequence[str]) -> list[list[Any]] | None:
    """Returns what stands under each of the names in every value, a list a name; None where a value lacks the name.

    None where a value is neither a mapping nor a client's object. Most lists are of one kind and have every name, and
    are read without a step of Python a value; one that is not fails there, and is read slowly.
    """
    with suppress(LookupError, AttributeError, TypeError):
        if type(values[0]) is dict:
            return [list(map(itemgetter(name), values)) for name in names]
        if hasattr(type(values[0]), "__pydantic_serializer__"):
            inside = list(map(_DICT, values))
            return [list(map(itemgetter(name), inside)) for name in names]
    held = [entry for entry in map(fields, values) if entry is not None]
    return [[entry.get(name) for entry in held] for name in names] if len(held) == len(values) else None


def get(value: object, name: str) -> Any:
    """`value[name]` of a mapping, `value.name` of an object; None where there is none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def as_list(value: object) -> Sequence[Any] | None:
    """The value where it is a sequence and no text, else None."""
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)) else None


def each(values: object) -> list[Mapping[str, Any]]:
    """Returns the mappings and clients' objects of a list, as `fields` reads them; nothing for what is no list."""
    return [held for held in map(fields, as_list(values) or ()) if held is not None]


def text(value: object) -> str:
    """The value where it is text, else empty: what only describes a response is never a reason to refuse it."""
    return value if isinstance(value, str) else ""


def first_keys(response: Mapping[str, Any]) -> list[str]:
    """The first of its keys, short enough for a message."""
    return [key[:40] for key in sorted(map(str, response))[:8]]


def error_message(response: Mapping[str, Any]) -> str:
    """Returns what a server says went wrong, cut to 200 characters; empty where that is not said."""
    error = response.get("error")
    held = response if response.get("object") == "error" else fields(error) or {}
    message = text(held.get("message")) or text(held.get("code")) or text(error) or text(response.get("detail"))
    return message[:200]


def read_temperature(value: object) -> float | None:
    """The value where it is a temperature, else None."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _HOTTEST:
        return float(value)
    return None


def usage(read: object, drawn: object) -> Usage:
    """Tokens of the prompt and of the answer; 0 for what is no count."""
    return Usage(*(count if type(count) is int and 0 <= count < _HUGE_COUNT else 0 for count in (read, drawn)))


def only_choice(choice: int, what: str) -> None:
    """Raises `InvalidResponse` where another than the one answer is asked for."""
    if choice != 0:
        raise InvalidResponse(
            f"choice={choice} was asked for; {what} holds one answer, expected 0: of a list, pass the one you mean"
        )


def array(tensor: object) -> NDArray[Any]:
    """A tensor of any library, or nested lists, as a NumPy array. Raises `InvalidResponse` where it is none."""
    if callable(getattr(tensor, "detach", None)):  # PyTorch gives NumPy no gradients, no other device, no bfloat16
        tensor = tensor.detach().cpu()  # type: ignore[attr-defined]
        if "bfloat16" in str(getattr(tensor, "dtype", "")):
            tensor = tensor.float()  # type: ignore[attr-defined]
    try:
        return np.asarray(tensor)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidResponse(
            f"a {type(tensor).__name__} cannot be read as an array ({type(error).__name__}); expected one of numbers:"
            " convert it with .numpy() or .tolist() first"
        ) from error


def without_surrogates(value: Any) -> Any:
    """Half surrogate pairs as U+FFFD, in every string."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {key: without_surrogates(entry) for key, entry in value.items()}
    return [without_surrogates(entry) for entry in value] if isinstance(value, (list, tuple)) else value
