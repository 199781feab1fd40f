"""Looks into what servers and clients give: fields of dictionaries and objects, tensors, the end of an answer, errors.

None of the libraries that the objects are of is imported.

Only the ends listed here are known. Every other word is kept as it came, and a verdict on the answer says it: an answer
that was aborted, or that a server broke off with an error, is not an answer that ended by itself.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import Usage

_DICT, _EXTRA = attrgetter("__dict__"), attrgetter("__pydantic_extra__")
_HUGE_COUNT = 1 << 40  # no usage; stored as 64-bit integers
_HOTTEST = 1e30  # no temperature; a plain float, for NumPy's warn when compared with a huge integer


def fields(value: object) -> Mapping[str, Any] | None:
    """Returns what a mapping or a client's object holds by name, one level deep; None for anything else.

    A pydantic object (openai, litellm) is looked into and not dumped: dumping 512 tokens with their alternatives takes
    milliseconds, and warns of what a lenient client let through.
    """
    if type(value) is dict:
        return value
    if value is None:
        return None
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict) and hasattr(value, "__pydantic_serializer__"):
        extra = getattr(value, "__pydantic_extra__", None)
        return {**held, **extra} if extra and isinstance(extra, dict) else held
    if isinstance(value, Mapping):  # slow for an object of an unknown type, so it comes last
        return value
    if hasattr(value, "model_dump"):
        dumped = value.model_dump()
        return dumped if isinstance(dumped, Mapping) else None
    return None


def columns_of_each(values: Sequence[Any], names: Sequence[str]) -> list[list[Any]] | None:
    """Returns what stands under each of the names in every value, a list a name; None where a value lacks the name.

    None where a value is neither a mapping nor a client's object. Most lists are of one kind and have every name, and
    are read without a step of Python a value; one that is not fails there, and is read slowly.
    """
    with suppress(LookupError, AttributeError, TypeError):
        if type(values[0]) is dict:
            same = dict(zip(values[0], values[0], strict=True))  # the keys themselves are found without comparing texts
            return [[value[key] for value in values] for key in [same[name] for name in names]]
        if hasattr(type(values[0]), "__pydantic_serializer__"):
            inside = list(map(_DICT, values))
            return [[value[name] for value in inside] for name in names]
    held = [entry for entry in map(fields, values) if entry is not None]
    return [[entry.get(name) for entry in held] for name in names] if len(held) == len(values) else None


def all_fields(values: Sequence[Any]) -> list[Mapping[str, Any]] | None:
    """Returns what `fields` reads of every value; None where a value is neither a mapping nor a client's object.

    Values of one kind are read without a step of Python for each.
    """
    kinds = set(map(type, values))
    if kinds <= {dict}:
        return list(values)
    kind = kinds.pop()
    if not kinds and hasattr(kind, "__pydantic_serializer__"):
        with suppress(AttributeError):
            if not any(map(_EXTRA, values)):
                return list(map(_DICT, values))
    held = [one for one in map(fields, values) if one is not None]
    return held if len(held) == len(values) else None


def get(value: object, name: str) -> Any:
    """`value[name]` of a mapping, `value.name` of an object; None where there is none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def as_list(value: object) -> Sequence[Any] | None:
    """The value where it is a sequence and no text, else None."""
    if type(value) is list:  # as almost always; what the other test asks takes ten times as long
        return value
    if value is None or type(value) is str:
        return None
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)) else None


def each(values: object) -> list[Mapping[str, Any]]:
    """Returns the mappings and clients' objects of a list, as `fields` reads them; nothing for what is no list."""
    return [held for held in map(fields, as_list(values) or ()) if held is not None]


def text(value: object) -> str:
    """The value where it is text, else empty: what only describes a response is never a reason to refuse it."""
    return value if isinstance(value, str) else ""


def some_keys(response: Mapping[str, Any]) -> list[str]:
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
    return Usage(
        read if type(read) is int and 0 <= read < _HUGE_COUNT else 0,
        drawn if type(drawn) is int and 0 <= drawn < _HUGE_COUNT else 0,
    )


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


# How an answer ended.
STOP = "stop"
"""The finish reason, here, of an answer that the model ended, by an end token or a stop text."""
LENGTH = "length"
"""The finish reason, here, of an answer that its token limit cut."""
FILTERED = "content_filter"
"""The finish reason, here, of an answer that the server's content filter cut."""
REFUSAL = "refusal"
"""The finish reason, here, of an answer that only says why there is none; chat completions call it `stop`."""
TOOL_CALL = "tool_calls"
"""The finish reason, here, of every answer that calls a tool; of a call that was forced servers say `stop`."""

SAID_BESIDE = ("stop_reason", "matched_stop")
"""Fields in which vLLM and SGLang say, beside the finish reason, by what an answer ended."""

_WORDS = {
    STOP: "stop eos eos_token end_turn stop_sequence complete completed",
    LENGTH: "length max_tokens max_output_tokens model_length",
    FILTERED: "content_filter safety recitation blocklist prohibited_content spii",
    TOOL_CALL: "tool_calls tool_call tool_use function_call",
    REFUSAL: "refusal",
}
_KNOWN = {word: end for end, words in _WORDS.items() for word in words.split()}
"""The word of OpenAI, vLLM, SGLang, llama.cpp, TGI, Ollama, Gemini, Anthropic, Cohere, Mistral and Inspect -> the end
that it means. Words are compared in lower case."""

_SAID = {
    LENGTH: "the answer is cut by its token limit, and scored as far as it came",
    FILTERED: "the server's content filter cut the answer",
    REFUSAL: "the answer is a refusal, and has no score",
    TOOL_CALL: "the answer calls a tool, and has no score",
}


def read_end(given: object) -> str:
    """Returns one of the known ends, or the server's own word where it is none of them; empty where nothing is said.

    A mapping names its end under `type` (SGLang) or `reason`. A word that is doubled (LangChain joins what a provider
    says in two chunks: `lengthlength`) counts once.
    """
    if type(given) is str and (end := _KNOWN.get(given)) is not None:  # as nearly always
        return end
    held = given if isinstance(given, str) else fields(given)
    if isinstance(held, Mapping):
        stated = [text(held.get(name)) for name in ("type", "reason")]
        held = both_ends(*map(read_end, stated)) or str(dict(held))[:80]
    if not held:
        return "" if given is None or given == "" else repr(given)[:80]
    word = once(held)
    return _KNOWN.get(word.casefold(), word)


def both_ends(first: str, then: str) -> str:
    """Returns the end that two statements make: one of them where they agree, or only one says something, else both."""
    return first if then in ("", first) else f"{first}, then {then}" if first else then


def end_of(choice: Mapping[str, Any]) -> str:
    """Returns how a choice ended, by its finish reason and by what else it says of its end."""
    end = read_end(choice.get("finish_reason"))
    details = fields(choice.get("finish_details")) or {}
    for other in (choice.get("native_finish_reason"), details.get("type")):
        if other and read_end(other) != end:
            end = both_ends(end, read_end(other)) if end != TOOL_CALL else end
    filters = fields(choice.get("content_filter_results")) or {}
    if any((fields(one) or {}).get("filtered") is True for one in filters.values()):
        end = FILTERED if end == STOP else end
    return end


def once(word: str) -> str:
    """Returns a text that was joined to itself once only; other texts are returned unchanged."""
    half = len(word) // 2
    return word[:half] if half >= 3 and word == word[:half] * 2 else word


UNSTATED = "the response does not say how the answer ended: is it cut?"


def doubt(end: str) -> str:
    """Returns what a verdict must say of a response that ended so; empty for an answer that the model ended."""
    if end == STOP:
        return ""
    if not end:
        return UNSTATED
    return _SAID.get(end) or f"the answer ended by {end!r}, not by the model, and is scored as far as it came"


_MAY_SAY_AN_ERROR = frozenset(("error", "errors", "error_code", "type"))


def refuse_error(held: Mapping[str, Any]) -> None:
    """Raises `InvalidResponse` where a response, a part of it, a chunk or an event is an error of the server."""
    if held.get("object") != "error" and _MAY_SAY_AN_ERROR.isdisjoint(held):
        return
    named = "error" in (held.get("type"), held.get("object"))
    error = error_of(held) or (text(held.get("message")) or "error" if named else "")
    if error:
        raise InvalidResponse(
            f"the server broke the answer off with the error {error!r}; expected a whole answer: ask again, or leave it"
            " out"
        )


def error_of(held: Mapping[str, Any]) -> str:
    """Returns what an answer, a choice or a chunk says of an error, cut to 200 characters; empty where it says none."""
    error = held.get("error") or held.get("errors") or held.get("error_code")
    if not error:
        return ""
    inside = fields(error) or {}
    message = ": ".join(filter(None, (text(inside.get("code")), text(inside.get("message"))))) or text(error)
    return (message or repr(error))[:200]
