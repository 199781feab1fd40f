"""Cuts a response to what counts: its tokens without those that only ended it, or the answer without the thinking."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from metaprobe.records.answer_series import series_of, tokens_of
from metaprobe.records.boundary import Ending
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_reasoning import parts_of
from metaprobe.records.placeholders import refuse_placeholders
from metaprobe.records.reading import as_list, fields
from metaprobe.records.segments import text_of
from metaprobe.records.spelling import names_tokens, spelled

if TYPE_CHECKING:
    from metaprobe.records.openai_format import ParsedResponse  # which is built on this

_WHOLE = "expected one for each token of the answer: ask the server for all of them, or leave this response out"
MOST_WORDS = 3
"""Words that one token without a name may stand for: more than a tokenizer has in one token."""
NONE = "the model was still thinking when it was cut, or never left its thinking: give it more tokens, or leave it out"


def settle(
    parsed: "ParsedResponse",
    thinking: str | None,
    ending: Ending,
    entries: Sequence[Any] = (),
    *,
    counted: int = 0,
) -> "ParsedResponse":
    """The response with its segments, and without the tokens that only ended it.

    `thinking` and `ending` as for `locate`; `entries` as for `parts_of`; `counted`: how many tokens the server says
    that it drew, 0 where it does not say. Raises `InvalidResponse` where there was thinking and it is not known where
    it ends, where nothing was said, and where the log-probabilities are not those of the answer's tokens.
    """
    tokens = parsed.tokens or ("",) * len(parsed.logprobs)
    parts = parts_of(tokens, parsed.text, thinking, ending, entries)
    cut = without_last(parsed, len(parsed.logprobs) - parts.kept)
    if parts.segments or parts.note:
        note = "; ".join(filter(None, (cut.note, parts.note)))
        cut = replace(cut, segments=parts.segments, note=note)
    if thinking is not None or parts.segments:
        counted = 0  # thinking is counted, and may have come without log-probabilities
    return check_text(cut, entries, counted=counted)


def check_text(parsed: "ParsedResponse", entries: Sequence[Any] = (), *, counted: int = 0) -> "ParsedResponse":
    """The response, where the tokens of its answer spell its text; a note says where they hold more than the text.

    `entries`: {token, bytes} of each token, where the server gives the bytes. `counted`: how many tokens the server
    drew, ends included, 0 where it does not say. Raises `InvalidResponse` where the tokens are of a part of the answer
    or of other words. Tokens without names are held against the count alone.
    """
    came = len(parsed.logprobs) + parsed.left_out
    differ = bool(counted) and abs(counted - came) > 1  # an end token is counted or not
    of_all = f"log-probabilities came for {came} tokens, and the server counts {counted}" if differ else ""
    if differ and came < counted:
        of_all = f"the log-probabilities are of {came} of the {counted} tokens that the server counts"
    at = tokens_of(parsed.segments, "answer", len(parsed.logprobs))
    rows = [_bytes_of(entries[i]) for i in at] if len(at) and len(entries) > max(at) else []
    pieces = [parsed.tokens[i] for i in at] if parsed.tokens else []
    if rows:  # a token without text may have bytes
        pieces = [piece or (row or b"").decode("utf-8", "replace") for piece, row in zip(pieces, rows, strict=True)]
    if not names_tokens(pieces):
        if differ or (not parsed.segments and len(parsed.text.split()) > MOST_WORDS * len(at)):
            said = of_all or f"log-probabilities came for {len(at)} tokens of {len(parsed.text.split())} words"
            raise InvalidResponse(f"{said}, and name no tokens; {_WHOLE}")
        return parsed
    shown = text_of(parsed.text, "answer") if parsed.segments else parsed.text
    if "".join(pieces) == shown:
        return _noted(parsed, of_all)
    if not shown.strip():
        return _noted(parsed, "the response shows no text, so whether the tokens are the whole answer is not known")
    found = spelled(pieces, shown, rows)
    if parsed.segments and not found.all:  # a server that leaves out the markers may show the thinking as text
        whole = spelled(parsed.tokens, parsed.text)
        found = whole if whole.all else found
    if found.missing or found.other:
        where = f"they say {found.other[:30]!r} where the text says" if found.other else "they leave out"
        raise InvalidResponse(
            f"{of_all or 'the log-probabilities are not of the tokens of this answer'}: {where}"
            f" {found.missing[:30]!r}; {_WHOLE}"
        )
    more = "the tokens hold more than the text that is shown, and all are scored" if found.more else ""
    return _noted(parsed, of_all or ("" if parsed.note else more))


def _noted(parsed: "ParsedResponse", note: str) -> "ParsedResponse":
    return replace(parsed, note="; ".join(filter(None, (parsed.note, note)))) if note else parsed


def _bytes_of(entry: object) -> bytes | None:
    """A token's UTF-8 bytes; None where they did not come."""
    given = as_list((fields(entry) or {}).get("bytes"))
    return bytes(given) if given is not None and all(type(b) is int and 0 <= b < 256 for b in given) else None


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
    top = None if parsed.top_logprobs is None else parsed.top_logprobs[at]
    if not len(answer):
        raise InvalidResponse(
            f"all {len(parsed.logprobs)} tokens are of the thinking, and none of an answer; expected an answer to"
            f" score: {NONE}"
        )
    if parsed.tokens:
        refuse_placeholders(answer, answer, top)
    said = f"scored are the answer's {len(answer)} tokens, not the {len(thinking)} of the thinking before it"
    return replace(
        parsed,
        tokens=tuple(parsed.tokens[i] for i in at) if parsed.tokens else (),
        logprobs=answer,
        top_logprobs=top,
        segments=(),
        thinking=thinking,
        note="; ".join(filter(None, (parsed.note, said if len(thinking) else ""))),
    )
