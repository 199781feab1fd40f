"""Puts the chunks of a streamed chat completion together again.

Standard library only, as `openai_format`, which reads the result.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_format import content_text

_LASTING = ("id", "model", "system_fingerprint", "prompt_token_ids", "usage")


class StreamedCompletion:
    """`add` every chunk as it comes; `completion()` is then what the same request gives without streaming."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._text: list[str] = []
        self._entries: list[Any] = []
        self._token_ids: list[Any] = []
        self._has_logprobs = False
        self._finish_reason: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the server has said how the answer ended; without that it was cut."""
        return self._finish_reason is not None

    def add(self, chunk: object) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """The text that this chunk brings, and the entries (token, logprob, top_logprobs) of its tokens.

        Raises `InvalidResponse` for what is no chunk. Only the first choice is read.
        """
        if not isinstance(chunk, Mapping):
            raise InvalidResponse(f"a chunk of the stream came as {type(chunk).__name__}; expected an object")
        self._known.update({key: chunk[key] for key in _LASTING if chunk.get(key) is not None})
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, Sequence) and choices else None
        if not isinstance(choice, Mapping):
            return "", ()  # the last chunk holds only the usage
        delta, logprobs = choice.get("delta"), choice.get("logprobs")
        text = content_text(delta.get("content")) if isinstance(delta, Mapping) else ""
        entries: Sequence[Mapping[str, Any]] = ()
        if isinstance(logprobs, Mapping):
            given = logprobs.get("content") or logprobs.get("refusal") or ()
            entries = [entry for entry in given if isinstance(entry, Mapping)] if isinstance(given, Sequence) else ()
            self._has_logprobs = True
        self._text.append(text)
        self._entries.extend(entries)
        self._token_ids.extend(choice.get("token_ids") or ())
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        return text, entries

    def completion(self) -> dict[str, Any]:
        """The chat completion that the chunks so far amount to."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(self._text)},
            "logprobs": {"content": self._entries} if self._has_logprobs else None,
            "finish_reason": self._finish_reason,
            "token_ids": self._token_ids or None,
        }
        return {**self._known, "choices": [choice]}
