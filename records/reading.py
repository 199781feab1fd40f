"""Reads what servers and clients return: fields of dictionaries and objects, tensors, the end of an answer, errors.

The libraries of these objects are not imported.

Only the ends listed here are known. Any other word is kept unchanged, and a verdict on the answer names it. An answer
that was aborted, or that a server broke off with an error, did not end by itself.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import Usage

_DICT, _EXTRA = attrgetter("__dict__"), attrgetter("__pydantic_extra__")
_HUGE_COUNT = 1 << 40  # no usage; stored as 64-bit integers
_HOTTEST = 1e30  # no temperature; a plain float, for NumPy's warn when compared with a huge integer


def fields(value: object) -> Mapping[str, Any] | None:
    """Returns the fields of a mapping or a client's object by name, one level deep; None for anything else.

    The fields of a pydantic object (openai, litellm) are read directly. Dumping 512 tokens with their alternatives
    takes milliseconds, and warns of values that a lenient client accepted.
    """
    if type(value) is dict:
        return value
    if value is None:
        return None
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and hasattr(value, "__pydantic_serializer__"):
        extra = getattr(value, "__pydantic_extra__", None)
        return {**attributes, **extra} if extra and isinstance(extra, dict) else attributes
    if isinstance(value, Mapping):  # slow for an object of an unknown type, so it comes last
        return value
    if hasattr(value, "model_dump"):
        dumped = value.model_dump()
        return dumped if isinstance(dumped, Mapping) else None
    return None


def columns_of_each(values: Sequence[Any], names: Sequence[str]) -> list[list[Any]] | None:
    """Returns a list of values for each name, one value from each object; None if an object lacks a name.

    Returns None as well if an object is neither a mapping nor a client's object. Most lists hold objects of one kind
    with every name. These are read without a Python step for each object; the others are read slowly.
    """
    with suppress(LookupError, AttributeError, TypeError):
        if type(values[0]) is dict:
            own_keys = dict(
                zip(values[0], values[0], strict=True)
            )  # the same key objects are found without comparing texts
            return [list(map(itemgetter(own_keys[name]), values)) for name in names]
        if hasattr(type(values[0]), "__pydantic_serializer__"):
            attribute_dicts = list(map(_DICT, values))
            return [list(map(itemgetter(name), attribute_dicts)) for name in names]
    rows = [entry for entry in map(fields, values) if entry is not None]
    return [[entry.get(name) for entry in rows] for name in names] if len(rows) == len(values) else None


def all_fields(values: Sequence[Any]) -> list[Mapping[str, Any]] | None:
    """Returns the fields of every value; None if a value is neither a mapping nor a client's object.

    Values of one kind are read without a Python step for each.
    """
    kinds = set(map(type, values))
    if kinds <= {dict}:
        return list(values)
    kind = kinds.pop()
    if not kinds and hasattr(kind, "__pydantic_serializer__"):
        with suppress(AttributeError):
            if not any(map(_EXTRA, values)):
                return list(map(_DICT, values))
    rows = [row for row in map(fields, values) if row is not None]
    return rows if len(rows) == len(values) else None


def get(value: object, name: str) -> Any:
    """Returns `value[name]` of a mapping, or `value.name` of an object; None if it does not exist."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def as_list(value: object) -> Sequence[Any] | None:
    """Returns the value if it is a sequence other than a string, else None."""
    if type(value) is list:  # the usual case; the other test takes ten times as long
        return value
    if value is None or type(value) is str:
        return None
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)) else None


def each(values: object) -> list[Mapping[str, Any]]:
    """Returns the fields of the mappings and clients' objects in a list; an empty list for anything else."""
    return [row for row in map(fields, as_list(values) or ()) if row is not None]


def text(value: object) -> str:
    """Returns the value if it is a string, else an empty string.

    It is for fields that only describe a response, which is never refused because of them.
    """
    return value if isinstance(value, str) else ""


def some_keys(response: Mapping[str, Any]) -> list[str]:
    """Returns the first keys of a response, short enough for a message."""
    return [key[:40] for key in sorted(map(str, response))[:8]]


def error_message(response: Mapping[str, Any]) -> str:
    """Returns a server's error message, cut to 200 characters; empty if there is none."""
    error = response.get("error")
    error_fields = response if response.get("object") == "error" else fields(error) or {}
    message = (
        text(error_fields.get("message"))
        or text(error_fields.get("code"))
        or text(error)
        or text(response.get("detail"))
    )
    return message[:200]


def read_temperature(value: object) -> float | None:
    """Returns the value if it is a temperature, else None."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _HOTTEST:
        return float(value)
    return None


def usage(prompt_tokens: object, answer_tokens: object) -> Usage:
    """Returns the numbers of tokens of prompt (`prompt_tokens`) and answer (`answer_tokens`); 0 for a value that is no
    count.
    """
    return Usage(
        prompt_tokens if type(prompt_tokens) is int and 0 <= prompt_tokens < _HUGE_COUNT else 0,
        answer_tokens if type(answer_tokens) is int and 0 <= answer_tokens < _HUGE_COUNT else 0,
    )


def only_choice(choice: int, format_name: str) -> None:
    """Raises `InvalidResponse` if `choice` is not 0; for formats that hold one answer."""
    if choice != 0:
        raise InvalidResponse(
            f"choice={choice} was asked for; {format_name} holds one answer, expected 0: of a list, pass the one you "
            "mean"
        )


def array(tensor: object) -> NDArray[Any]:
    """Returns a tensor of any library, or nested lists, as a NumPy array. Raises `InvalidResponse` if it is neither."""
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
    """Returns the value with halves of surrogate pairs replaced by U+FFFD, in every string."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {key: without_surrogates(entry) for key, entry in value.items()}
    return [without_surrogates(entry) for entry in value] if isinstance(value, (list, tuple)) else value


# How an answer ended.
STOP = "stop"
"""Our finish reason for an answer that the model ended, with an end token or a stop text."""
LENGTH = "length"
"""Our finish reason for an answer that was cut by its token limit."""
FILTERED = "content_filter"
"""Our finish reason for an answer that was cut by the server's content filter."""
REFUSAL = "refusal"
"""Our finish reason for an answer that only says why there is none. Chat completions call it `stop`."""
TOOL_CALL = "tool_calls"
"""Our finish reason for every answer that calls a tool. For a forced call servers say `stop`."""

SAID_BESIDE = ("stop_reason", "matched_stop")
"""Fields beside the finish reason in which vLLM and SGLang say what ended an answer."""

_END_WORDS = {
    STOP: "stop eos eos_token end_turn stop_sequence complete completed",
    LENGTH: "length max_tokens max_output_tokens model_length",
    FILTERED: "content_filter safety recitation blocklist prohibited_content spii",
    TOOL_CALL: "tool_calls tool_call tool_use function_call",
    REFUSAL: "refusal",
}
_END_OF_WORD = {word: end for end, words in _END_WORDS.items() for word in words.split()}
"""Maps each word for the end of an answer to our finish reason.

The words are those of OpenAI, vLLM, SGLang, llama.cpp, TGI, Ollama, Gemini, Anthropic, Cohere, Mistral and Inspect, in
lower case.
"""

_DOUBT_OF_END = {
    LENGTH: "the answer is cut by its token limit, and scored as far as it came",
    FILTERED: "the server's content filter cut the answer",
    REFUSAL: "the answer is a refusal, and has no score",
    TOOL_CALL: "the answer calls a tool, and has no score",
}


def read_end(end_as_sent: object) -> str:
    """Returns one of the known ends, or else the server's own word; empty if no end is stated.

    A mapping names its end under `type` (SGLang) or `reason`. A doubled word counts once: LangChain joins the words of
    two chunks to `lengthlength`.
    """
    if type(end_as_sent) is str and (end := _END_OF_WORD.get(end_as_sent)) is not None:  # as nearly always
        return end
    word_or_fields = end_as_sent if isinstance(end_as_sent, str) else fields(end_as_sent)
    if isinstance(word_or_fields, Mapping):
        end_words = [text(word_or_fields.get(name)) for name in ("type", "reason")]
        word_or_fields = both_ends(*map(read_end, end_words)) or str(dict(word_or_fields))[:80]
    if not word_or_fields:
        return "" if end_as_sent is None or end_as_sent == "" else repr(end_as_sent)[:80]
    word = once(word_or_fields)
    return _END_OF_WORD.get(word.casefold(), word)


def both_ends(first: str, then: str) -> str:
    """Returns the end from two statements: one of them if they agree or one is empty, else both."""
    return first if then in ("", first) else f"{first}, then {then}" if first else then


def end_of(choice: Mapping[str, Any]) -> str:
    """Returns how a choice ended, from its finish reason and its other fields about the end."""
    end = read_end(choice.get("finish_reason"))
    details = fields(choice.get("finish_details")) or {}
    for other in (choice.get("native_finish_reason"), details.get("type")):
        if other and read_end(other) != end:
            end = both_ends(end, read_end(other)) if end != TOOL_CALL else end
    filters = fields(choice.get("content_filter_results")) or {}
    if any((fields(filter_result) or {}).get("filtered") is True for filter_result in filters.values()):
        end = FILTERED if end == STOP else end
    return end


def once(word: str) -> str:
    """Returns a doubled text once; other texts are returned unchanged."""
    half = len(word) // 2
    return word[:half] if half >= 3 and word == word[:half] * 2 else word


UNSTATED = "the response does not say how the answer ended: is it cut?"


def doubt(end: str) -> str:
    """Returns what a verdict must say about a response with this end; empty if the model ended the answer."""
    if end == STOP:
        return ""
    if not end:
        return UNSTATED
    return _DOUBT_OF_END.get(end) or f"the answer ended by {end!r}, not by the model, and is scored as far as it came"


_ERROR_KEYS = frozenset(("error", "errors", "error_code", "type"))


def refuse_error(response_fields: Mapping[str, Any]) -> None:
    """Raises `InvalidResponse` if a response, a part of it, a chunk or an event is an error of the server."""
    if response_fields.get("object") != "error" and _ERROR_KEYS.isdisjoint(response_fields):
        return
    is_named_error = "error" in (response_fields.get("type"), response_fields.get("object"))
    error = error_of(response_fields) or (text(response_fields.get("message")) or "error" if is_named_error else "")
    if error:
        raise InvalidResponse(
            f"the server broke the answer off with the error {error!r}; expected a whole answer: ask again, or leave "
            "it out"
        )


def error_of(answer_fields: Mapping[str, Any]) -> str:
    """Returns the error in an answer, a choice or a chunk, cut to 200 characters; empty if there is none."""
    error = answer_fields.get("error") or answer_fields.get("errors") or answer_fields.get("error_code")
    if not error:
        return ""
    error_fields = fields(error) or {}
    message = ": ".join(filter(None, (text(error_fields.get("code")), text(error_fields.get("message"))))) or text(
        error
    )
    return (message or repr(error))[:200]
