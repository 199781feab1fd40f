"""Reads the raw body of a chat completion or of the chunks of its stream, much faster than `json.loads` does, where
msgspec is installed.

Alternatives are nine tenths of such a body (512 tokens with 15 each: half a megabyte). A typed decoder walks over what
is not asked for and makes no objects of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from metaprobe.records.alternatives import alternatives
from metaprobe.records.answer_part import settle
from metaprobe.records.boundary import ending_of
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_format import (
    REFUSAL,
    TOOL_CALL,
    ParsedResponse,
    check_logprobs,
    content_text,
    first_of,
    from_json,
    parse_response,
    read_ending,
)
from metaprobe.records.openai_reasoning import thinking_of
from metaprobe.records.openai_stream import ENDS
from metaprobe.records.reading import text, usage

_EXACT = 2.0**53
"""Beyond it a JSON integer and the double that the decoder makes of it differ."""

Body = str | bytes | bytearray


def parse_body(body: Body, *, choice: int = 0, top: bool = True) -> ParsedResponse:
    """What `parse_response(body)` gives, from the text or bytes of a response. Raises `InvalidResponse` as that does.

    With `top=False` the alternatives of a chat completion are not looked at: `top_logprobs` is None, whatever they are.

    What the decoder does not know or refuses (another format, a damaged body, NaN, UTF-16) is left to `json.loads`, so
    the outcome is the same with and without msgspec. Known exceptions: a body with an integer of more than 4300 digits,
    or nested as deeply as the interpreter can just bear, in a part that is not read.
    """
    decoders = _decoders(top)
    if decoders is not None:
        try:
            if not isinstance(body, str):
                body.decode("utf-8", "surrogatepass")  # in what it skips, the decoder would not mind
            parsed = _parsed(decoders.body(body), choice, top)
        except (ValueError, RecursionError, InvalidResponse):
            parsed = None
        if parsed is not None:
            return parsed
    return parse_response(from_json(body), choice=choice, top=top)


def parse_chunks(chunks: Sequence[bytes], *, top: bool = True) -> ParsedResponse | None:
    """What the chunks of a streamed chat completion amount to, from the JSON of each; alternatives only with `top`.

    None where msgspec is not installed, and for all but a plain answer: one choice, of index 0, with words and their
    log-probabilities and neither thinking, refusal nor tool call. `StreamedCompletion` then tells what it is.
    """
    decoders = _decoders(top)
    if decoders is None:
        return None
    try:
        return _parsed(decoders.chunks(b"[" + b",".join(chunks) + b"]"), 0, top)
    except (ValueError, RecursionError, InvalidResponse):
        return None


def _parsed(completion: Any, choice: int, top: bool) -> ParsedResponse | None:
    """From what the decoder gives; None where the slow way should look."""
    if not 0 <= choice < len(completion.choices):
        return None
    chosen = completion.choices[choice]
    entries = chosen.logprobs.content
    if entries is None:
        entries = chosen.logprobs.refusal  # the tokens of a refusal stand under a key of their own
    if not entries:
        return None
    given = [entry.logprob for entry in entries]
    spoken = content_text(chosen.message.content)
    logprobs = {"content": chosen.logprobs.content, "refusal": chosen.logprobs.refusal}
    message = {name: getattr(chosen.message, name) for name in chosen.message.__struct_fields__}
    rows = [[other.logprob for other in entry.top_logprobs or ()] for entry in entries] if top else []
    if min(given) < -_EXACT or min(map(min, filter(None, rows)), default=0.0) < -_EXACT:
        return None
    counted = completion.usage if isinstance(completion.usage, dict) else {}
    if chosen.logprobs.reasoning_content or thinking_of(message, counted) is not None:
        return None
    reason = read_ending(chosen.finish_reason, spoken, message, logprobs)
    parsed = ParsedResponse(
        text=spoken,
        tokens=tuple([entry.token or "" for entry in entries]),
        logprobs=check_logprobs(given),
        top_logprobs=alternatives(rows) if top else None,
        finish_reason=reason,
        model=text(completion.model),
        usage=usage(counted.get("prompt_tokens"), counted.get("completion_tokens")),
        note=first_of(len(completion.choices), choice),
    )
    if reason in (TOOL_CALL, REFUSAL):
        return parsed
    said = {name: getattr(chosen, name) for name in ENDS if getattr(chosen, name) is not ...}
    return settle(parsed, None, ending_of(chosen.finish_reason, said))


@dataclass(frozen=True, slots=True)
class _Decoders:
    """Each gives what `_parsed` reads, and raises a `ValueError` for what it does not know."""

    body: Callable[[Body], Any]
    chunks: Callable[[bytes], Any]
    """From a list of all chunks."""


@cache
def _decoders(top: bool) -> _Decoders | None:
    """None where msgspec, of the extra `serve`, is not installed."""
    try:
        import msgspec
    except ModuleNotFoundError:
        return None
    if not issubclass(msgspec.DecodeError, ValueError):  # before 0.21, beside a base install
        return None

    class Alternative(msgspec.Struct, gc=False):
        logprob: float

    class TokenEntry(msgspec.Struct, gc=False):
        logprob: float
        token: str | None = None

    class EntryWithTop(TokenEntry, gc=False):
        top_logprobs: list[Alternative] | None = None

    entry = EntryWithTop if top else TokenEntry

    class Logprobs(msgspec.Struct):
        content: list[entry] | None = None  # type: ignore[valid-type]
        refusal: list[entry] | None = None  # type: ignore[valid-type]
        reasoning_content: Any = None

    class RawMessage(msgspec.Struct):
        content: Any = None
        refusal: Any = None
        tool_calls: Any = None
        function_call: Any = None
        reasoning_content: Any = None
        reasoning: Any = None
        reasoning_details: Any = None

    class Choice(msgspec.Struct):
        message: RawMessage
        logprobs: Logprobs
        finish_reason: Any = None
        stop_reason: Any = ...  # what no JSON holds: vLLM's null says something, and no key says nothing
        matched_stop: Any = ...

    class Completion(msgspec.Struct):
        choices: list[Choice]
        model: Any = None
        usage: Any = None

    class PlainDelta(msgspec.Struct):
        content: str | None = None
        refusal: None = None
        tool_calls: None = None
        function_call: None = None
        reasoning_content: None = None
        reasoning: None = None
        reasoning_details: None = None

    class PlainLogprobs(msgspec.Struct):
        content: list[entry] | None = None  # type: ignore[valid-type]
        refusal: None = None
        reasoning_content: None = None

    class PlainChoice(msgspec.Struct):
        index: Literal[0] = 0
        delta: PlainDelta | None = None
        logprobs: PlainLogprobs | None = None
        finish_reason: str | None = None
        stop_reason: Any = ...
        matched_stop: Any = ...

    class PlainChunk(msgspec.Struct):
        choices: Annotated[list[PlainChoice], msgspec.Meta(max_length=1)] = []
        model: Any = None
        usage: Any = None

    decode = msgspec.json.Decoder(list[PlainChunk]).decode

    def joined(body: bytes) -> Completion:
        chunks = decode(body)
        choices = [choice for chunk in chunks for choice in chunk.choices]
        spoken = "".join([choice.delta.content or "" for choice in choices if choice.delta is not None])
        entries = [e for choice in choices if choice.logprobs is not None for e in choice.logprobs.content or ()]
        ends = [choice for choice in choices if choice.finish_reason]
        if not ends:
            raise ValueError("the answer has no end")
        said = {name: getattr(ends[-1], name) for name in ("finish_reason", *ENDS)}
        named = {
            name: next((value for chunk in reversed(chunks) if (value := getattr(chunk, name)) is not None), None)
            for name in ("model", "usage")
        }
        return Completion([Choice(RawMessage(spoken), Logprobs(entries), **said)], **named)

    return _Decoders(msgspec.json.Decoder(Completion).decode, joined)
