"""Joins the chunks of one streamed chat completion into the completion that the same request gives without streaming.

Every field is kept, known or not: tool calls, logprobs with their bytes, a server's own fields. `answer_stream` reads
what a chunk means; here chunks are only put together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.reading import as_list, fields

_SAID_AGAIN = frozenset("id type role object name finish_reason".split())
"""Texts that a server sends whole, and may send again: the last one counts. All other texts are sent in parts."""
_PLACE = "index"
"""Field that says to which member of a list a part belongs."""
_DEEPEST = 8
"""Depth of objects within each other below which parts replace each other. OpenAI's own chunks have 4."""


class JoinedChunks:
    """Collects the chunks of one chat completion."""

    def __init__(self) -> None:
        self._around: dict[str, Any] = {}
        """Fields beside the choices."""
        self._choice: dict[str, Any] = {}
        self._delta: dict[str, Any] = {}

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Takes in a chunk. Raises `InvalidResponse` for a chunk of several answers."""
        for name, value in chunk.items():
            if value is not None and name not in ("choices", "object"):
                self._around[name] = value
        for listed in as_list(chunk.get("choices")) or ():
            choice = fields(listed) or {}
            if choice.get(_PLACE) not in (None, 0):
                raise InvalidResponse(
                    f"a chunk is of answer {choice[_PLACE]}; expected chunks of one answer, of index 0"
                )
            for name, value in choice.items():
                if name in ("delta", "message"):
                    self._add_part(name, fields(value) or {})
                elif isinstance(value, str):
                    self._choice[name] = value
                elif name != _PLACE:
                    _join(self._choice, {name: value})

    def _add_part(self, name: str, part: Mapping[str, Any]) -> None:
        """Adds a part of the message, unless a server sends the whole message once more at its end."""
        before, now = self._delta.get("content"), part.get("content")
        if name == "delta" or not before or _finished(before) != now:
            _join(self._delta, part)

    def completion(self) -> dict[str, Any]:
        """Returns the chat completion that the chunks so far make up."""
        message = {"role": "assistant", "content": None, **_finished(self._delta)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": None, **_finished(self._choice)}
        return {**self._around, "object": "chat.completion", "choices": [choice]}


class _Text(list[str]):
    """Parts of a text that is not yet complete."""


class _ByIndex(dict[int, dict[str, Any]]):
    """Members of a list that is sent in parts, such as tool calls, by their index."""


def _join(whole: dict[str, Any], part: Mapping[str, Any], depth: int = 0) -> None:
    """Adds the fields of a part to those of the whole: texts and lists are continued, objects joined by their fields,
    and other values replaced."""
    for name, value in part.items():
        if value is None:
            continue
        before = whole.get(name)
        if isinstance(value, str):
            if name in _SAID_AGAIN:
                whole[name] = value
            elif isinstance(before, _Text):
                before.append(value)
            else:
                whole[name] = _Text([value])
        elif (members := as_list(value)) is not None:
            _continue_list(whole, name, members, depth)
        elif (inner := fields(value)) is not None and depth < _DEEPEST:
            if type(before) is not dict:
                before = whole[name] = {}
            _join(before, inner, depth + 1)
        else:
            whole[name] = value


def _continue_list(whole: dict[str, Any], name: str, members: Sequence[Any], depth: int) -> None:
    """Adds members to a list of the whole. Members with an index join the member of the same index."""
    found = [fields(member) for member in members]
    has_places = [one is not None and type(one.get(_PLACE)) is int for one in found]
    if not members or not all(has_places) or depth >= _DEEPEST:
        if not isinstance(whole.get(name), list):
            whole[name] = []
        whole[name] += members
        return
    if not isinstance(whole.get(name), _ByIndex):
        whole[name] = _ByIndex()
    for one in found:
        assert one is not None
        _join(whole[name].setdefault(one[_PLACE], {}), one, depth + 1)


def _finished(value: Any, depth: int = 0) -> Any:
    """Returns a value with its texts whole, and its lists in the order of the indexes, which are left out."""
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, _ByIndex):
        in_order = (value[place] for place in sorted(value))
        return [
            {name: _finished(inner, depth + 1) for name, inner in one.items() if name != _PLACE} for one in in_order
        ]
    if type(value) is dict and depth <= _DEEPEST + 1:
        return {name: _finished(inner, depth + 1) for name, inner in value.items()}
    return value
