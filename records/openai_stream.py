"""Puts the chunks of a streamed chat or text completion together again.

Standard library only, as `openai_format`, which reads the result.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metaprobe.records.answer_stream import AnswerTokens
from metaprobe.records.endings import TOOL_CALL, both_ends, end_of, refuse_error
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_format import content_text
from metaprobe.records.openai_reasoning import FIELDS
from metaprobe.records.reading import as_list, fields, first_keys, text

_LASTING = ("id", "model", "system_fingerprint", "prompt_token_ids", "usage")
_SHOWN = ("content", *FIELDS)
ENDS = ("stop_reason", "matched_stop")
"""What vLLM and SGLang say beside the finish reason."""
_COLUMNS = ("tokens", "token_logprobs", "top_logprobs")


class _Streamed:
    """What the chunks of both kinds have in common."""

    def __init__(self, choice: int = 0) -> None:
        """`choice`: which answer to follow, where the chunks are of several."""
        self._choice = choice
        self._known: dict[str, Any] = {}
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._ended_by: dict[str, Any] = {}
        self.has_others = False
        """Whether chunks came of an answer that is not followed."""

    @property
    def ended(self) -> bool:
        """Whether the server has said how the answer ended; without that it was cut."""
        return self._finish_reason is not None

    def _chosen(self, chunk: object) -> Mapping[str, Any]:
        """What the chunk brings of the answer that is followed; empty where it brings the usage or another answer's."""
        held = fields(chunk)
        if held is None:
            raise InvalidResponse(f"a chunk of the stream came as {type(chunk).__name__}; expected an object")
        refuse_error(held)
        if held and "choices" not in held and not held.get("usage"):
            raise InvalidResponse(
                f"a chunk of the stream has the keys {first_keys(held)} and no choices; expected chunks of one answer:"
                " if this is an error message, ask again"
            )
        self._known.update({key: held[key] for key in _LASTING if held.get(key) is not None})
        chosen: Mapping[str, Any] | None = None
        for choice in filter(None, map(fields, as_list(held.get("choices")) or ())):
            if choice.get("index", self._choice) != self._choice or chosen is not None:
                self.has_others = True
            else:
                refuse_error(choice)
                refuse_error(fields(choice.get("delta")) or {})
                if end := end_of(choice):
                    self._finish_reason = both_ends(self._finish_reason or "", end)
                if choice.get("finish_reason"):
                    self._ended_by = {name: choice[name] for name in ENDS if name in choice}
                chosen = choice
        return chosen or {}


class StreamedCompletion(_Streamed):
    """`add` every chunk as it comes; `completion()` is then what the same request gives without streaming.

    Of tool calls only that there are any is kept, as the finish reason.
    """

    def __init__(self, choice: int = 0) -> None:
        super().__init__(choice)
        self._entries: list[Mapping[str, Any]] = []
        self._thinking: list[str] = []
        self._thinking_entries: list[Mapping[str, Any]] = []
        self._token_ids: list[Any] = []
        self._refusal: list[str] = []
        self._has_logprobs = False
        self._answer = AnswerTokens()
        self.spoken: Sequence[Mapping[str, Any]] = ()
        """Of all tokens so far, those that have now turned out to be the answer's, and were not there before."""
        self.declined = False
        """Whether a refusal has begun."""
        self.called = False
        """Whether a tool call has begun."""
        self.shown = False
        """Whether the last chunk brought text, of the answer or of the reasoning before it."""
        self.thought = ""
        """The text of the reasoning that the last chunk brought."""

    def add(self, chunk: object) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """The text that this chunk brings, and the entries (token, logprob, top_logprobs) of its tokens.

        Raises `InvalidResponse` for what is no chunk.
        """
        choice = self._chosen(chunk)
        delta, logprobs = fields(choice.get("delta")) or {}, fields(choice.get("logprobs"))
        brought = content_text(delta.get("content"))
        self.shown = any(delta.get(name) for name in _SHOWN)
        self.called |= bool(delta.get("tool_calls") or delta.get("function_call"))
        self._refusal.append(text(delta.get("refusal")))
        self.declined |= bool(self._refusal[-1] or (logprobs is not None and logprobs.get("refusal")))
        entries: Sequence[Mapping[str, Any]] = ()
        if logprobs is not None:
            entries = _entries(logprobs.get("content") or logprobs.get("refusal") or ())
            self._thinking_entries.extend(_entries(logprobs.get("reasoning_content") or ()))
            self._has_logprobs = True
        self.thought = next((delta[name] for name in FIELDS if isinstance(delta.get(name), str)), "")
        self._thinking.append(self.thought)
        self._text.append(brought)
        self._entries.extend(entries)
        self._token_ids.extend(as_list(choice.get("token_ids")) or ())
        self.spoken = self._answer.feed(entries, thought=self.thought, brought=brought)
        return brought, entries

    def completion(self) -> dict[str, Any]:
        """The chat completion that the chunks so far amount to."""
        message = {"role": "assistant", "content": "".join(self._text)}
        if refusal := "".join(self._refusal):
            message["refusal"] = refusal
        # As without streaming, where the tokens of a refusal stand under a key of their own.
        held = {"content": None, "refusal": self._entries} if self.declined else {"content": self._entries}
        if self._thinking_entries:
            held["reasoning_content"] = self._thinking_entries
        if thinking := "".join(self._thinking):
            message["reasoning_content"] = thinking
        choice = {
            "index": 0,
            "message": message,
            "logprobs": held if self._has_logprobs else None,
            "finish_reason": TOOL_CALL if self.called else self._finish_reason,
            "token_ids": self._token_ids or None,
            **self._ended_by,
        }
        return {**self._known, "choices": [choice]}


class StreamedText(_Streamed):
    """The same for text completions, whose log-probabilities come as columns, or as entries from llama.cpp's server."""

    declined = called = False
    """A text completion neither refuses nor calls."""

    def __init__(self, choice: int = 0) -> None:
        super().__init__(choice)
        self._columns: dict[str, list[Any]] = {}
        self._answer = AnswerTokens()
        self.spoken: Sequence[Mapping[str, Any]] = ()
        """As in `StreamedCompletion`."""
        self.shown = False
        """Whether the last chunk brought text."""

    def add(self, chunk: object) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """As `StreamedCompletion.add`."""
        choice = self._chosen(chunk)
        brought = text(choice.get("text"))
        self.shown = bool(brought)
        self._text.append(brought)
        given = fields(choice.get("logprobs")) or {}
        for name, column in given.items():
            if name in (*_COLUMNS, "content") and column is not None:
                if as_list(column) is None:
                    raise InvalidResponse(
                        f"logprobs.{name} of a chunk came as {type(column).__name__}; expected a list"
                    )
                self._columns.setdefault(name, []).extend(column)
        entries = _entries(given["content"]) if given.get("content") else _entries_of_columns(given)
        self.spoken = self._answer.feed(entries, thought="", brought=brought)
        return brought, entries

    def completion(self) -> dict[str, Any]:
        """The text completion that the chunks so far amount to."""
        choice = {
            "index": 0,
            "text": "".join(self._text),
            "logprobs": self._columns or None,
            "finish_reason": self._finish_reason,
            **self._ended_by,
        }
        return {**self._known, "choices": [choice]}


def _entries_of_columns(given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """{token, logprob, top_logprobs} of each token, from the columns of a chunk of a text completion."""
    values = as_list(given.get("token_logprobs")) or ()
    tokens, rows = as_list(given.get("tokens")) or (), as_list(given.get("top_logprobs")) or ()
    entries: list[Mapping[str, Any]] = []
    for place, value in enumerate(values):
        row = fields(rows[place]) if place < len(rows) else None
        entries.append(
            {
                "token": text(tokens[place]) if place < len(tokens) else "",
                "logprob": value,
                "top_logprobs": [{"token": token, "logprob": one} for token, one in (row or {}).items()],
            }
        )
    return entries


def _entries(given: object) -> list[Mapping[str, Any]]:
    """{token, logprob, top_logprobs} of each token that a chunk brings."""
    values = as_list(given)
    held = [fields(entry) for entry in values] if values is not None else [None]
    entries = [entry for entry in held if entry is not None]
    if len(entries) < len(held):
        raise InvalidResponse(
            "the log-probabilities of a chunk are not a list of objects; expected {token, logprob, top_logprobs} for"
            " each token"
        )
    return entries
