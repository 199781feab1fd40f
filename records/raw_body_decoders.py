"""Decodes the raw body of a chat completion, or the chunks of its stream, into the few fields that `parse.py` reads.

This file needs msgspec; `records/parse.py` imports it only if that is installed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from metaprobe.records.one_answer import begins_anew
from metaprobe.records.reading import SAID_BESIDE

NOT_GIVEN: Any = ...
"""A value that no JSON holds. vLLM's `"stop_reason": null` has a meaning, and a missing key has none."""


class Alternative(msgspec.Struct, gc=False):
    logprob: float
    token: str | None = None


class TokenEntry(msgspec.Struct, gc=False):
    logprob: float
    token: str | None = None
    top_logprobs: msgspec.Raw = msgspec.Raw()
    """Kept as raw bytes; decoded for a few tokens only."""

    def alternatives(self) -> list[Any]:
        """Returns the alternatives as {token, logprob}. Raises `ValueError` if they cannot be read."""
        raw = memoryview(self.top_logprobs)
        return _ALTERNATIVES.decode(raw) or [] if raw.nbytes else []


class EntryWithTop(msgspec.Struct, gc=False):
    logprob: float
    token: str | None = None
    top_logprobs: list[Alternative] | None = None

    def alternatives(self) -> list[Any]:
        """Returns the alternatives as {token, logprob}."""
        return [{"token": other.token, "logprob": other.logprob} for other in self.top_logprobs or ()]


_ALTERNATIVES = msgspec.json.Decoder(list[dict[str, Any]] | None)


AnyTokenEntry = TypeVar("AnyTokenEntry", TokenEntry, EntryWithTop)
"""`EntryWithTop` if alternatives are requested; otherwise `TokenEntry`, which skips them."""


class Logprobs(msgspec.Struct, Generic[AnyTokenEntry], gc=False):
    content: list[AnyTokenEntry] | None = None
    refusal: list[AnyTokenEntry] | None = None
    reasoning_content: Any = None


class RawMessage(msgspec.Struct, gc=False):
    content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None


class Choice(msgspec.Struct, Generic[AnyTokenEntry], gc=False):
    message: RawMessage
    logprobs: Logprobs[AnyTokenEntry]
    finish_reason: Any = None
    stop_reason: Any = NOT_GIVEN
    matched_stop: Any = NOT_GIVEN
    token_ids: Any = None
    error: Any = None


class Completion(msgspec.Struct, Generic[AnyTokenEntry], gc=False):
    choices: list[Choice[AnyTokenEntry]]
    model: Any = None
    usage: Any = None
    error: Any = None
    n: Any = 1
    """How many choices the usage counts together; only `production.http.completion_json` states it."""


class PlainDelta(msgspec.Struct, gc=False):
    content: str | None = None
    role: Any = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    reasoning_content: None = None
    reasoning: None = None
    reasoning_details: None = None


class PlainLogprobs(msgspec.Struct, Generic[AnyTokenEntry], gc=False):
    content: list[AnyTokenEntry] | None = None
    refusal: None = None
    reasoning_content: None = None


class PlainChoice(msgspec.Struct, Generic[AnyTokenEntry], gc=False):
    error: None = None
    index: Literal[0] = 0
    delta: PlainDelta | None = None
    logprobs: PlainLogprobs[AnyTokenEntry] | None = None
    finish_reason: str | None = None
    stop_reason: Any = NOT_GIVEN
    matched_stop: Any = NOT_GIVEN


class PlainChunk(msgspec.Struct, Generic[AnyTokenEntry], gc=False):
    error: None = None
    choices: Annotated[list[PlainChoice[AnyTokenEntry]], msgspec.Meta(max_length=1)] = []
    id: Any = None
    model: Any = None
    usage: Any = None


@dataclass(frozen=True, slots=True)
class Decoders:
    """Decoders of bodies and chunks. Both return a completion, and raise `ValueError` for unknown input."""

    body: Callable[[str | bytes | bytearray], Completion[Any]]
    chunks: Callable[[bytes], Completion[Any]]
    """Reads a JSON list of all chunks of a stream."""


def decoders_of(top: bool) -> Decoders:
    """Returns decoders that read the alternatives of each token, or skip them without `top`."""
    if top:
        chunks = msgspec.json.Decoder(list[PlainChunk[EntryWithTop]])
        return Decoders(
            msgspec.json.Decoder(Completion[EntryWithTop]).decode, lambda body: _join_chunks(chunks.decode(body))
        )
    plain = msgspec.json.Decoder(list[PlainChunk[TokenEntry]])
    return Decoders(msgspec.json.Decoder(Completion[TokenEntry]).decode, lambda body: _join_chunks(plain.decode(body)))


def _join_chunks(chunks: list[PlainChunk[AnyTokenEntry]]) -> Completion[AnyTokenEntry]:
    """Returns the completion that the chunks of one stream make up.

    Raises `ValueError` if the answer has no end, or if the chunks may belong to more than one answer.
    """
    choices = [choice for chunk in chunks for choice in chunk.choices]
    texts = [choice.delta.content or "" if choice.delta is not None else "" for choice in choices]
    rows = [choice.logprobs.content or () if choice.logprobs is not None else () for choice in choices]
    entries = [entry for row in rows for entry in row]
    end_indices = [index for index, choice in enumerate(choices) if choice.finish_reason]
    if not end_indices:
        raise ValueError("the answer has no end")
    _check_one_answer(chunks, choices, texts, rows[end_indices[0] + 1 :], end_indices[0])
    if begins_anew([entry.token for entry in entries], [entry.logprob for entry in entries]):
        raise ValueError("an answer begins anew")
    end_fields = {name: getattr(choices[end_indices[-1]], name) for name in ("finish_reason", *SAID_BESIDE)}
    last_values = {
        name: next((value for chunk in reversed(chunks) if (value := getattr(chunk, name)) is not None), None)
        for name in ("model", "usage")
    }
    return Completion([Choice(RawMessage("".join(texts)), Logprobs(entries), **end_fields)], **last_values)


def _check_one_answer(
    chunks: list[PlainChunk[AnyTokenEntry]],
    choices: list[PlainChoice[AnyTokenEntry]],
    texts: list[str],
    late_rows: Sequence[Sequence[AnyTokenEntry]],
    end: int,
) -> None:
    """Raises `ValueError` if the chunks may belong to more than one answer.

    This check is fast. After an error `AnswerStream` reads the chunks one by one and decides.

    Args:
        chunks: all chunks.
        choices: the choice of each chunk that has a choice.
        texts: the text that each choice adds.
        late_rows: the tokens after the first end.
        end: index of the first choice that says how the answer ended.
    """
    chunks_with_choices = [chunk for chunk in chunks if chunk.choices]
    models = {chunk.model for chunk in chunks_with_choices if chunk.model}
    ids = {chunk.id for chunk in chunks_with_choices if chunk.id}
    first_text = next((index for index, text in enumerate(texts) if text), len(texts))
    roles = [choice.delta is not None and bool(choice.delta.role) for choice in choices[first_text + 1 : end]]
    has_late_content = any(texts[end + 1 :]) or any(late_rows)
    if (
        has_late_content
        or len(models) > 1
        or len(ids) not in (0, 1, len(chunks_with_choices))
        or (any(roles) and not all(roles))
    ):
        raise ValueError("the chunks may be of more than one answer")
