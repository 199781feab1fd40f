"""Reads the tool calls of a response, and decides when two answers make the same calls.

A call is compared by its name and its arguments as JSON, never by its id. Arguments that are no plain JSON are compared
as text, character by character.
"""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_format import CALLER_ITEMS, is_response
from metaprobe.records.reading import LENGTH, STOP, TOOL_CALL, as_list, each, fields, read_end, text

MAX_JSON_DEPTH = 64
"""Most levels of arrays and objects in arguments that are compared as JSON.

Deeper arguments are compared as text, so that no text of a model reaches the interpreter's limit.
"""
MAX_NUMBER_DIGITS = 400
"""Most characters of a number in arguments that are compared as JSON: more than any double has. Longer ones
are text.
"""
_COMPLETE_ENDS = frozenset((TOOL_CALL, STOP, ""))
"""Finish reasons of complete calls. For a forced call servers say `stop`."""
_FORCING_WORDS = frozenset(("required", "any"))
"""Words of `tool_choice` that require a call, of OpenAI and vLLM, and of Mistral and Anthropic."""
_NOT_ARGUMENTS = frozenset(("id", "call_id", "type", "status", "name", "server_label"))
"""Fields of an item of the Responses API that are not arguments of the call."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as a model wrote it."""

    name: str
    """Name of the tool; empty for a call that a server left as text."""
    arguments: str
    """The arguments as the model wrote them, usually JSON."""

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})" if self.name else self.arguments


def tool_calls_form(calls: Sequence[ToolCall]) -> Hashable:
    """Returns a form that is equal for equal calls: the name and the arguments of every call, in order.

    Keys of objects may come in any order, and numbers are equal by value (`1` and `1.0`). The form never equals a text.
    Arguments are compared as text if they hold NaN, a number beyond any double, or a repeated key, or are nested deeper
    than `MAX_JSON_DEPTH`.
    """
    return "tool calls", tuple((call.name, _arguments_form(call.arguments)) for call in calls)


def show_tool_calls(calls: Iterable[ToolCall]) -> str:
    """Returns calls in a readable form: `get_weather({"city": "Paris"})`."""
    return ", ".join(map(str, calls))


def requires_tool_call(tool_choice: object) -> bool:
    """Returns whether a request's `tool_choice` requires a call of some tool, or of a named one."""
    if isinstance(tool_choice, str):
        return tool_choice in _FORCING_WORDS
    choice_fields = fields(tool_choice) or {}
    kind = text(choice_fields.get("type"))
    if kind == "allowed_tools":
        return text((fields(choice_fields.get("allowed_tools")) or choice_fields).get("mode")) in _FORCING_WORDS
    return bool(kind) and kind not in ("auto", "none")


def tool_calls_in(response: object, choice: int = 0) -> tuple[tuple[ToolCall, ...], bool]:
    """Returns the calls in a response, in order, and whether they are complete; no calls for an answer in words.

    `response` is a mapping or a client's object: a chat completion, or an answer of the Responses API, Anthropic,
    Ollama, Cohere or Gemini. It may also be the list of chunks of a streamed chat completion. `choice` is the index of
    the answer in it.
    Raises `InvalidResponse` for arguments that cannot be written as JSON.
    """
    chunks = as_list(response)
    if chunks and fields(chunks[0]) is not None:
        body: Mapping[str, Any] | None = _join_call_chunks(chunks, choice)
    else:
        body = fields(response)
    if body is None:
        return (), True
    if "choices" in body:
        choice_fields = _choice(body, choice)
        chat = fields(choice_fields.get("message")) or {}
        calls = _calls_of_message(chat)
        finish_reason = read_end(choice_fields.get("finish_reason"))
        if not calls and finish_reason == TOOL_CALL and (plain_text := text(chat.get("content")).strip()):
            calls = [ToolCall("", plain_text)]  # of a server without a parser for the model's calls
        return tuple(calls), finish_reason in _COMPLETE_ENDS
    if is_response(body):
        items = [item for item in each(body.get("output")) if text(item.get("type")) in CALLER_ITEMS]
        are_complete = all(text(part.get("status")) in ("", "completed") for part in (body, *items))
        return tuple(map(_call_of_item, items)), are_complete
    if (message := fields(body.get("message"))) is not None:  # Ollama, Cohere
        return tuple(_calls_of_message(message)), read_end(body.get("done_reason")) != LENGTH
    if candidates := each(body.get("candidates")):  # Gemini
        parts = each((fields(candidates[choice].get("content")) or {}).get("parts")) if choice < len(candidates) else []
        function_calls = [fields(part.get("functionCall") or part.get("function_call")) for part in parts]
        return tuple(
            _tool_call(function_call.get("name"), function_call.get("args"))
            for function_call in function_calls
            if function_call
        ), True
    blocks = [part for part in each(body.get("content")) if part.get("type") == "tool_use"]  # Anthropic
    return tuple(_tool_call(block.get("name"), block.get("input")) for block in blocks), read_end(
        body.get("stop_reason")
    ) in _COMPLETE_ENDS


def _choice(completion: Mapping[str, Any], choice: int) -> Mapping[str, Any]:
    """Returns a choice of a completion by its index, or by its place if the indices are missing or repeated."""
    choices = each(completion.get("choices"))
    by_index = [
        listed_choice
        for listed_choice in choices
        if listed_choice.get("index") == choice and type(listed_choice.get("index")) is int
    ]
    return by_index[0] if len(by_index) == 1 else choices[choice] if 0 <= choice < len(choices) else {}


def _calls_of_message(message: Mapping[str, Any]) -> list[ToolCall]:
    """Returns the calls of a message: under `tool_calls`, or under `function_call`, as before 2024."""
    calls = []
    for entry in each(message.get("tool_calls")):
        function, custom = fields(entry.get("function")), fields(entry.get("custom"))
        if function is not None:
            calls.append(_tool_call(function.get("name"), function.get("arguments")))
        elif custom is not None:
            calls.append(ToolCall(text(custom.get("name")), text(custom.get("input"))))
        else:
            calls.append(_tool_call(entry.get("name"), entry.get("arguments", entry.get("args"))))
    legacy = fields(message.get("function_call"))
    if not calls and legacy is not None:
        calls.append(_tool_call(legacy.get("name"), legacy.get("arguments")))
    return calls


def _call_of_item(item: Mapping[str, Any]) -> ToolCall:
    """Returns the call in an item of the Responses API."""
    if item.get("type") == "custom_tool_call":
        return ToolCall(text(item.get("name")), text(item.get("input")))
    if "arguments" in item:
        return _tool_call(item.get("name"), item["arguments"])
    arguments = {key: value for key, value in item.items() if key not in _NOT_ARGUMENTS}
    return _tool_call(item.get("name") or item.get("type"), arguments)


def _tool_call(name: object, arguments: object) -> ToolCall:
    """Returns a call whose arguments are JSON text, or written as JSON. Missing or blank arguments become `{}`.

    Raises `InvalidResponse` for arguments that JSON cannot write.
    """
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return ToolCall(text(name), "{}")
    if isinstance(arguments, str):
        return ToolCall(text(name), arguments)
    try:
        return ToolCall(text(name), json.dumps(arguments, ensure_ascii=False, default=_as_mapping))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidResponse(
            f"the arguments of {text(name)[:80]!r} cannot be written as JSON ({type(error).__name__}); expected an "
            "object"
        ) from error


def _as_mapping(value: object) -> Mapping[str, Any]:
    """Returns the fields of a client's object. Raises `TypeError` for anything else."""
    object_fields = fields(value)
    if object_fields is None:
        raise TypeError(f"a {type(value).__name__} is no value of JSON")
    return dict(object_fields)


def _join_call_chunks(chunks: Sequence[Any], choice: int) -> Mapping[str, Any] | None:
    """Returns a completion with the calls that the chunks of a streamed chat completion carry in parts."""
    calls: dict[int, dict[str, str]] = {}
    legacy = {"name": "", "arguments": ""}
    finish_reason: object = None
    for chunk in each(chunks):
        for listed_choice in each(chunk.get("choices")):
            if listed_choice.get("index", choice) != choice:
                continue
            finish_reason = listed_choice.get("finish_reason") or finish_reason
            delta = fields(listed_choice.get("delta")) or {}
            for part in each(delta.get("tool_calls")):
                function, index = fields(part.get("function")) or {}, part.get("index")
                if type(index) is not int:  # of servers that send each call whole
                    index = len(calls) if function.get("name") or not calls else max(calls)
                _add(calls.setdefault(index, {"name": "", "arguments": ""}), function)
            _add(legacy, fields(delta.get("function_call")) or {})
    message: dict[str, Any] = {"tool_calls": [{"function": call_parts} for call_parts in calls.values()]}
    if legacy["name"]:
        message["function_call"] = legacy
    return {"choices": [{"index": choice, "message": message, "finish_reason": finish_reason or LENGTH}]}


def _add(call_parts: dict[str, str], part: Mapping[str, Any]) -> None:
    for name in call_parts:
        call_parts[name] += text(part.get(name))


def _arguments_form(arguments: str) -> Hashable:
    """Returns a form of arguments: the form of their JSON value, or their text."""
    try:
        value = json.loads(
            arguments,
            parse_int=_decimal_of,
            parse_float=_decimal_of,
            parse_constant=_decimal_of,
            object_pairs_hook=_object,
        )
        return _form(value, MAX_JSON_DEPTH)
    except (ValueError, RecursionError):
        return "text", arguments


def _decimal_of(text: str) -> Decimal:
    """Returns the value of a number. Raises `ValueError` for a number beyond any double."""
    if len(text) > MAX_NUMBER_DIGITS or not abs(float(text)) < float("inf"):
        raise ValueError("no double holds it")
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ValueError("the exponent is out of range") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object. Raises `ValueError` for a repeated key, because readers disagree about its meaning."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key comes twice")
    return members


def _form(value: object, depth: int) -> Hashable:
    """Returns a hashable form of a JSON value. The form names the type, because in Python `True == 1`."""
    if not depth:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        return "object", tuple(sorted((key, _form(inner, depth - 1)) for key, inner in value.items()))
    if isinstance(value, list):
        return "array", tuple(_form(inner, depth - 1) for inner in value)
    return type(value).__name__, value
