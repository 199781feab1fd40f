"""Joins the chunks of one streamed chat completion into the completion that the same request gives without streaming.

Every field is kept, known or not: tool calls, logprobs with their bytes, a server's own fields. `answer_stream` reads
what a chunk means; here chunks are only put together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import as_list, fields

_WHOLE_TEXTS = frozenset("id type role object name finish_reason format".split())
"""Texts that a server sends whole, and may send again: the last one counts, unless it is empty. Other texts are sent in
parts.
"""
_IDENTIFYING_TEXTS = ("id", "name")
"""Texts that tell one member of a list from another. If two differ, it is not known which parts belong together."""
_TOOL_CALLS_KEY = "tool_calls"
_INDEX_KEY = "index"
"""Field that says to which member of a list a part belongs."""
_MAX_DEPTH = 8
"""Depth of objects within each other below which parts replace each other. OpenAI's own chunks have 4."""


class JoinedChunks:
    """Collects the chunks of one chat completion."""

    def __init__(self) -> None:
        self._fields_beside_choices: dict[str, Any] = {}
        """Fields beside the choices."""
        self._choice: dict[str, Any] = {}
        self._delta: dict[str, Any] = {}

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Takes in a chunk. Raises `InvalidResponse` for a chunk of several answers."""
        for name, value in chunk.items():
            if value is not None and name not in ("choices", "object"):
                self._fields_beside_choices[name] = value
        for listed_choice in as_list(chunk.get("choices")) or ():
            choice = fields(listed_choice) or {}
            if choice.get(_INDEX_KEY) not in (None, 0):
                raise InvalidResponse(
                    f"a chunk is of answer {choice[_INDEX_KEY]}; expected chunks of one answer, of index 0"
                )
            for name, value in choice.items():
                if name in ("delta", "message"):
                    self._add_part(name, fields(value) or {})
                elif isinstance(value, str):
                    self._choice[name] = value or self._choice.get(name)
                elif name != _INDEX_KEY:
                    _join(self._choice, {name: value})

    def _add_part(self, name: str, part: Mapping[str, Any]) -> None:
        """Adds a part of the message. A server may send the whole message once more at its end: what it repeats is left
        out.
        """
        if name == "message":
            delta_end = _completed(self._delta)
            part = {
                field: value for field, value in part.items() if field not in delta_end or delta_end[field] != value
            }
        _join(self._delta, part)

    def completion(self) -> dict[str, Any]:
        """Returns the chat completion that the chunks so far make up.

        Raises `InvalidResponse` if a tool call has no name, because its parts cannot be put together then.
        """
        message = {"role": "assistant", "content": None, **_completed(self._delta)}
        for call in as_list(message.get(_TOOL_CALLS_KEY)) or ():
            call_fields = fields(call) or {}
            function_fields = fields(call_fields.get(call_fields.get("type") or "function")) or {}
            if not function_fields.get("name"):
                raise InvalidResponse("a tool call of the stream has no name; expected one in its first part")
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": None, **_completed(self._choice)}
        return {**self._fields_beside_choices, "object": "chat.completion", "choices": [choice]}


class _TextParts(list[str]):
    """Parts of a text that is not yet complete."""


class _ByIndex(dict[int, dict[str, Any]]):
    """Members of a list that is sent in parts, such as tool calls, by their index."""


def _join(joined_fields: dict[str, Any], part: Mapping[str, Any], depth: int = 0) -> None:
    """Adds the fields of a part to those of the whole: texts and lists are continued, objects joined by their fields,
    and other values replaced.

    Raises `InvalidResponse` if it is not known which parts belong together.
    """
    for name, value in part.items():
        if value is None:
            continue
        earlier = joined_fields.get(name)
        if isinstance(value, str):
            if name in _WHOLE_TEXTS:
                if earlier and value and earlier != value and name in _IDENTIFYING_TEXTS:
                    raise InvalidResponse(f"a part of the stream has the {name} {value!r} after {earlier!r}")
                if value:
                    joined_fields[name] = value
            elif isinstance(earlier, _TextParts):
                earlier.append(value)
            else:
                joined_fields[name] = _TextParts([value])
        elif (members := as_list(value)) is not None:
            _continue_list(joined_fields, name, members, depth)
        elif (inner := fields(value)) is not None and depth < _MAX_DEPTH:
            if type(earlier) is not dict:
                earlier = joined_fields[name] = {}
            _join(earlier, inner, depth + 1)
        else:
            joined_fields[name] = value


def _continue_list(joined_fields: dict[str, Any], name: str, members: Sequence[Any], depth: int) -> None:
    """Adds members to a list of the whole. Members with an index join the member of the same index."""
    earlier = joined_fields.get(name)
    if not members:
        joined_fields[name] = earlier if isinstance(earlier, list | _ByIndex) else []
        return
    parts = [fields(member) for member in members]
    have_index = [part is not None and type(part.get(_INDEX_KEY)) is int for part in parts]
    by_index = all(have_index) and depth < _MAX_DEPTH
    if earlier and by_index != isinstance(earlier, _ByIndex):
        raise InvalidResponse(f"parts of {name} came with an index and without one; expected one way")
    if not by_index:
        if not isinstance(earlier, list):
            joined_fields[name] = []
        joined_fields[name] += members
        return
    if not isinstance(earlier, _ByIndex):
        joined_fields[name] = _ByIndex()
    for part in parts:
        assert part is not None
        _join(joined_fields[name].setdefault(part[_INDEX_KEY], {}), part, depth + 1)


def _completed(value: Any, depth: int = 0, name: str = "") -> Any:
    """Returns a value with its texts whole, and its lists in the order of the indexes.

    Tool calls lose their indexes, as in a whole completion. `name` is the field of the value.
    """
    if isinstance(value, _TextParts):
        return "".join(value)
    if isinstance(value, _ByIndex):
        left_out = _INDEX_KEY if name == _TOOL_CALLS_KEY else ""
        in_order = (value[index] for index in sorted(value))
        return [
            {field: _completed(inner, depth + 1, field) for field, inner in part.items() if field != left_out}
            for part in in_order
        ]
    if type(value) is dict and depth <= _MAX_DEPTH + 1:
        return {field: _completed(inner, depth + 1, field) for field, inner in value.items()}
    return value
