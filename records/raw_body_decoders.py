"""Decodes the raw body of a chat completion, or the chunks of its stream, into the few fields that `parse.py` reads.

This file needs msgspec; `records/parse.py` imports it only where that is installed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from metaprobe.records.reading import SAID_BESIDE

NOT_GIVEN: Any = ...
"""A value that no JSON holds: vLLM's `"stop_reason": null` says something, and a missing key says nothing."""


class Alternative(msgspec.Struct, gc=False):
    logprob: float
    token: str | None = None


class TokenEntry(msgspec.Struct, gc=False):
    logprob: float
    token: str | None = None
    top_logprobs: msgspec.Raw = msgspec.Raw()
    """Not decoded, but for a few tokens."""

    def alternatives(self) -> list[Any]:
        """The alternatives as {token, logprob}. Raises `ValueError` where they cannot be read."""
        raw = memoryview(self.top_logprobs)
        return _ALTERNATIVES.decode(raw) or [] if raw.nbytes else []


class EntryWithTop(msgspec.Struct, gc=False):
    logprob: float
    token: str | None = None
    top_logprobs: list[Alternative] | None = None

    def alternatives(self) -> list[Any]:
        """The alternatives as {token, logprob}."""
        return [{"token": other.token, "logprob": other.logprob} for other in self.top_logprobs or ()]


_ALTERNATIVES = msgspec.json.Decoder(list[dict[str, Any]] | None)


Entry = TypeVar("Entry", TokenEntry, EntryWithTop)
"""`EntryWithTop` where the alternatives are asked for; otherwise `TokenEntry`, which skips them."""


class Logprobs(msgspec.Struct, Generic[Entry], gc=False):
    content: list[Entry] | None = None
    refusal: list[Entry] | None = None
    reasoning_content: Any = None


class RawMessage(msgspec.Struct, gc=False):
    content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None


class Choice(msgspec.Struct, Generic[Entry], gc=False):
    message: RawMessage
    logprobs: Logprobs[Entry]
    finish_reason: Any = None
    stop_reason: Any = NOT_GIVEN
    matched_stop: Any = NOT_GIVEN
    token_ids: Any = None
    error: Any = None


class Completion(msgspec.Struct, Generic[Entry], gc=False):
    choices: list[Choice[Entry]]
    model: Any = None
    usage: Any = None
    error: Any = None
    n: Any = 1
    """How many choices the usage counts together; only `serving.http.wire` states it."""


class PlainDelta(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    reasoning_content: None = None
    reasoning: None = None
    reasoning_details: None = None


class PlainLogprobs(msgspec.Struct, Generic[Entry], gc=False):
    content: list[Entry] | None = None
    refusal: None = None
    reasoning_content: None = None


class PlainChoice(msgspec.Struct, Generic[Entry], gc=False):
    error: None = None
    index: Literal[0] = 0
    delta: PlainDelta | None = None
    logprobs: PlainLogprobs[Entry] | None = None
    finish_reason: str | None = None
    stop_reason: Any = NOT_GIVEN
    matched_stop: Any = NOT_GIVEN


class PlainChunk(msgspec.Struct, Generic[Entry], gc=False):
    error: None = None
    choices: Annotated[list[PlainChoice[Entry]], msgspec.Meta(max_length=1)] = []
    model: Any = None
    usage: Any = None


@dataclass(frozen=True, slots=True)
class Decoders:
    """Both return a completion, and raise `ValueError` for what they do not know."""

    body: Callable[[str | bytes | bytearray], Completion[Any]]
    chunks: Callable[[bytes], Completion[Any]]
    """From a JSON list of all chunks of a stream."""


def decoders_of(top: bool) -> Decoders:
    """Returns decoders that read the alternatives of each token, or without `top` skip them."""
    if top:
        chunks = msgspec.json.Decoder(list[PlainChunk[EntryWithTop]])
        return Decoders(
            msgspec.json.Decoder(Completion[EntryWithTop]).decode, lambda body: _joined(chunks.decode(body))
        )
    plain = msgspec.json.Decoder(list[PlainChunk[TokenEntry]])
    return Decoders(msgspec.json.Decoder(Completion[TokenEntry]).decode, lambda body: _joined(plain.decode(body)))


def _joined(chunks: list[PlainChunk[Entry]]) -> Completion[Entry]:
    """Returns what the chunks of one stream amount to. Raises `ValueError` where the answer has no end."""
    choices = [choice for chunk in chunks for choice in chunk.choices]
    spoken = "".join([choice.delta.content or "" for choice in choices if choice.delta is not None])
    entries = [e for choice in choices if choice.logprobs is not None for e in choice.logprobs.content or ()]
    ends = [choice for choice in choices if choice.finish_reason]
    if not ends:
        raise ValueError("the answer has no end")
    ended_by = {name: getattr(ends[-1], name) for name in ("finish_reason", *SAID_BESIDE)}
    named = {
        name: next((value for chunk in reversed(chunks) if (value := getattr(chunk, name)) is not None), None)
        for name in ("model", "usage")
    }
    return Completion([Choice(RawMessage(spoken), Logprobs(entries), **ended_by)], **named)
