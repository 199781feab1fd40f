"""Reads the raw body of a chat completion or of the chunks of its stream, much faster than `json.loads` does, where
msgspec is installed.

Alternatives are nine tenths of such a body (512 tokens with 15 each: half a megabyte). A typed decoder walks over what
is not asked for and makes no objects of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from metaprobe.records.endings import REFUSAL, SAID_BESIDE, TOOL_CALL, once
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.logprobs import check_logprobs, sample
from metaprobe.records.openai_format import content_text, read_ending, thinking_of
from metaprobe.records.parse import from_json, parse_response
from metaprobe.records.reading import text, usage
from metaprobe.records.response import ParsedResponse, first_of, settle, with_alternatives
from metaprobe.records.segments import ending_of
from metaprobe.records.signals import KEY

if TYPE_CHECKING:
    from metaprobe.records.raw_body_decoders import Decoders

_EXACT = 2.0**53
"""Beyond it a JSON integer and the double that the decoder makes of it differ."""

Body = str | bytes | bytearray


@np.errstate(all="ignore")  # a host application may have NumPy raise for what is rounded to 0 here
def parse_body(body: Body, *, choice: int = 0, top: bool = True) -> ParsedResponse:
    """Returns what `parse_response(body)` gives, from a text or bytes. Raises `InvalidResponse` as that does.

    With `top=False` the alternatives of a chat completion are not looked at: `top_logprobs` is None, whatever they are.

    What the decoder does not know or refuses (another format, a damaged body, NaN, UTF-16) is left to `json.loads`, so
    the outcome is the same with and without msgspec. Known exceptions: a body with an integer of more than 4300 digits,
    or nested as deeply as the interpreter can just bear, in a part that is not read.
    """
    signals = KEY in body if isinstance(body, str) else KEY.encode() in body
    decoders = None if signals else _decoders(top)
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


@np.errstate(all="ignore")  # a host application may have NumPy raise for what is rounded to 0 here
def parse_chunks(chunks: Sequence[bytes], *, top: bool = True) -> ParsedResponse | None:
    """Returns what the chunks of a streamed chat completion amount to, from the JSON of each.

    Alternatives are read only with `top`. None where msgspec is not installed, and for all but a plain answer: one
    choice, of index 0, with words and their log-probabilities and neither thinking, refusal nor tool call.
    `AnswerStream` then tells what it is.
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
    if chosen.error or completion.error:
        return None
    entries = chosen.logprobs.content
    if entries is None:
        entries = chosen.logprobs.refusal  # the tokens of a refusal stand under a key of their own
    if not entries:
        return None
    given = [entry.logprob for entry in entries]
    spoken = content_text(chosen.message.content)
    logprobs = {"content": chosen.logprobs.content, "refusal": chosen.logprobs.refusal}
    message = {name: getattr(chosen.message, name) for name in chosen.message.__struct_fields__}
    few = [{"token": e.token, "logprob": e.logprob, "top_logprobs": e.alternatives()} for e in sample(entries, given)]
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
        finish_reason=reason,
        model=once(text(completion.model)),
        usage=usage(counted.get("prompt_tokens"), counted.get("completion_tokens")),
        note=first_of(len(completion.choices), choice),
    )
    parsed = with_alternatives(parsed, rows if top else [entry["top_logprobs"] for entry in few], few)
    parsed = parsed if top else replace(parsed, top_logprobs=None)
    if reason in (TOOL_CALL, REFUSAL):
        return parsed
    ended_by = {name: getattr(chosen, name) for name in SAID_BESIDE if getattr(chosen, name) is not ...}
    drawn = len(chosen.token_ids) if isinstance(chosen.token_ids, list) else 0
    if not drawn and len(completion.choices) == 1 and completion.n == 1:
        drawn = parsed.usage.completion_tokens
    return settle(parsed, None, ending_of(chosen.finish_reason, ended_by), counted=drawn)


@cache
def _decoders(top: bool) -> "Decoders | None":
    """Returns the decoders, or None where msgspec, of the extra `serve`, is not installed."""
    try:
        import msgspec
    except ModuleNotFoundError:
        return None
    if not issubclass(msgspec.DecodeError, ValueError):  # before 0.21, beside a base install
        return None
    from metaprobe.records.raw_body_decoders import decoders_of

    return decoders_of(top)
