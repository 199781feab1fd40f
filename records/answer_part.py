"""Cuts a response to what counts: its tokens without those that only ended it, or the answer without the thinking."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from metaprobe.records.answer_series import series_of, tokens_of
from metaprobe.records.boundary import Ending
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_reasoning import parts_of

if TYPE_CHECKING:
    from metaprobe.records.openai_format import ParsedResponse  # which is built on this

NONE = "the model was still thinking when it was cut, or never left its thinking: give it more tokens, or leave it out"


def settle(
    parsed: "ParsedResponse", thinking: str | None, ending: Ending, entries: Sequence[Any] = ()
) -> "ParsedResponse":
    """The response with its segments, and without the tokens that only ended it.

    `thinking` and `ending` as for `locate`; `entries` as for `parts_of`. Raises `InvalidResponse` where there was
    thinking and it is not known where it ends, or where nothing was said.
    """
    tokens = parsed.tokens or ("",) * len(parsed.logprobs)
    parts = parts_of(tokens, parsed.text, thinking, ending, entries)
    cut = without_last(parsed, len(parsed.logprobs) - parts.kept)
    note = "; ".join(filter(None, (parsed.note, parts.note)))
    return replace(cut, segments=parts.segments, note=note) if parts.segments or parts.note else cut


def without_last(parsed: "ParsedResponse", count: int = 1) -> "ParsedResponse":
    """The response without its last tokens. Raises `InvalidResponse` where none would be left."""
    came = len(parsed.logprobs)
    if not count:
        return parsed
    if count >= came:
        raise InvalidResponse(f"the answer is empty: its {came} tokens only end it; expected words: leave it out")
    kept = came - count
    return replace(
        parsed,
        tokens=parsed.tokens[:kept],
        logprobs=parsed.logprobs[:kept],
        top_logprobs=None if parsed.top_logprobs is None else parsed.top_logprobs[:kept],
        left_out=parsed.left_out + count,
    )


def answer_of(parsed: "ParsedResponse") -> "ParsedResponse":
    """The response cut to its answer, its thinking apart; the note says what was left out.

    Raises `InvalidResponse` where no token is known to be of the answer.
    """
    if not parsed.segments:
        return parsed
    at = tokens_of(parsed.segments, "answer", len(parsed.logprobs))
    answer, thinking = series_of(parsed.logprobs, parsed.segments)
    if not len(answer):
        raise InvalidResponse(
            f"all {len(parsed.logprobs)} tokens are of the thinking, and none of an answer; expected an answer to"
            f" score: {NONE}"
        )
    said = f"scored are the answer's {len(answer)} tokens, not the {len(thinking)} of the thinking before it"
    return replace(
        parsed,
        tokens=tuple(parsed.tokens[i] for i in at) if parsed.tokens else (),
        logprobs=answer,
        top_logprobs=None if parsed.top_logprobs is None else parsed.top_logprobs[at],
        segments=(),
        thinking=thinking,
        note="; ".join(filter(None, (parsed.note, said if len(thinking) else ""))),
    )
