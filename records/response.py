"""An answer with its log-probabilities in the one form that everything here reads, whatever API it came from.

A reader of a format fills in a `ParsedResponse` and hands it to `settle`: tokens that only ended the answer are left
out, the thinking is told from the answer, and the tokens must spell the text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.endings import REFUSAL, TOOL_CALL
from metaprobe.records.errors import InvalidResponse, of_other_tokens
from metaprobe.records.logprobs import (
    alternatives,
    check_logprobs,
    float_list,
    implausible,
    listed_twice,
    refuse_placeholders,
    sample,
)
from metaprobe.records.reading import as_list, columns_of_each, fields, fields_of_each, text
from metaprobe.records.segments import Ending, Parts, locate, text_of
from metaprobe.records.spelling import names_tokens, spelled
from metaprobe.records.types import Call, FloatArray, Hidden, LogprobsMode, Segment, SegmentKind, Usage


@dataclass(frozen=True, slots=True, eq=False)
class ParsedResponse:
    """One answer: its text, tokens and log-probabilities."""

    text: str
    """The answer's text; empty where the answer was a tool call or a refusal."""
    tokens: tuple[str, ...]
    """The tokens as the server spelled them; empty where only log-probabilities were given."""
    logprobs: FloatArray
    """float32, shape (T,), nats, finite and at most 0. T >= 1, but for an answer that came with hidden states alone."""
    top_logprobs: FloatArray | None = None
    """float32, shape (T, k), nats, descending; NaN where a token has fewer than k alternatives."""
    finish_reason: str = ""
    """`stop`, `length`, `content_filter`, `refusal` or `tool_calls`, whatever the server calls it; another end by the
    server's own word; empty where the response does not say how the answer ended."""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    logprobs_mode: LogprobsMode = "unknown"
    """`raw` before temperature and truncation, `processed` after them; chat completions do not say."""
    temperature: float | None = None
    """The temperature at which the tokens were drawn, where the source states it."""
    segments: tuple[Segment, ...] = ()
    """The parts of the tokens, as in a `Call`; empty where all tokens are the answer's, as far as is known."""
    thinking: FloatArray | None = None
    """float32, shape (S,): the log-probabilities of the thinking, where `answer_of` has left only the answer."""
    reader: str = ""
    """The model of the log-probabilities, as in a `Call`; empty where they are the answering model's own."""
    left_out: int = 0
    """The number of tokens after the answer that only ended it."""
    note: str = ""
    """Text that a verdict must mention: that the stream has no end, or there are other answers. Empty for nothing."""
    top_fault: str = ""
    """Why the alternatives cannot be the likeliest tokens; they are then left out. Empty where nothing was found."""
    hidden: Hidden | None = None
    """Hidden states that came with the answer."""
    stated: Mapping[str, float] = field(default_factory=dict)
    """Maps `confidence` and `p_true` to the numbers in [0, 1] that the model stated of the answer, where it stated
    them."""


@dataclass(frozen=True, slots=True)
class ParsedText:
    """One answer without its log-probabilities."""

    text: str
    """The answer's text; empty where the answer was a tool call or a refusal."""
    finish_reason: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    thinking: str | None = None
    """The thinking that is shown before the answer; empty where it is only counted, None where there was none."""
    ending: Ending = ""


def tokens_of(segments: Sequence[Segment], kind: SegmentKind, count: int) -> NDArray[np.intp]:
    """The places of the tokens of that kind, of `count` tokens. Without segments all are of the answer."""
    if not segments:
        return np.arange(count if kind == "answer" else 0)
    return np.concatenate([np.arange(0), *(np.arange(s.start, s.end) for s in segments if s.kind == kind)])


def series_of(logprobs: FloatArray, segments: Sequence[Segment]) -> tuple[FloatArray, FloatArray]:
    """The log-probabilities of the answer, and those of the thinking before it: (A,) and (S,), either may be empty."""
    if not segments:
        return logprobs, logprobs[:0]
    values = np.asarray(logprobs)
    return values[tokens_of(segments, "answer", len(values))], values[tokens_of(segments, "thinking", len(values))]


def answer_logprobs(call: Call) -> FloatArray | None:
    """The log-probabilities of a call's answer, (A,), without those of its thinking; None where it has none."""
    return None if call.logprobs is None else series_of(call.logprobs, call.segments)[0]


def parse_entries(given: object, where: str, *, top: bool = True, **rest: Any) -> ParsedResponse:
    """A response from its entries {token, logprob, top_logprobs}, one a token; `rest`: its other fields."""
    values = as_list(given)
    columns = columns_of_each(values, ("token", "logprob", "top_logprobs")[: 2 + top]) if values is not None else None
    if columns is None:
        raise InvalidResponse(
            f"{where} is not a list of objects; expected {{token, logprob, top_logprobs}} for each token"
        )
    tokens, logprobs = columns[:2]
    checked = float_list(logprobs)
    parsed = ParsedResponse(
        tokens=tuple(tokens if _are_texts(tokens) else map(text, tokens)),
        logprobs=check_logprobs(logprobs) if checked is None else checked,
        **rest,
    )
    assert values is not None
    if top:
        return with_alternatives(parsed, columns[2], values)
    few = [entry or {} for entry in map(fields, sample(values, logprobs))]
    return replace(with_alternatives(parsed, [entry.get("top_logprobs") for entry in few], few), top_logprobs=None)


def with_alternatives(parsed: ParsedResponse, rows: Sequence[Any], entries: Sequence[Any] = ()) -> ParsedResponse:
    """The response with its alternatives, where a row of them came for each token and they can be the likeliest ones.

    Rows of a few tokens only are looked at for faults, and not kept; `entries` are then those tokens {token, logprob,
    top_logprobs}. Alternatives that cannot be read, or cannot be, are left out, and `top_fault` says why. Raises
    `NoLogprobs` where the log-probabilities stand for none.
    """
    try:
        top, fault = alternatives(rows), ""
    except InvalidResponse as error:
        top, fault = None, str(error)
    whole = len(rows) == len(parsed.logprobs)
    drawn = parsed.logprobs if whole or top is None else check_logprobs([row.get("logprob") for row in entries])
    if parsed.finish_reason not in (TOOL_CALL, REFUSAL):  # those are refused for what they are
        refuse_placeholders(parsed.logprobs, drawn, top)
    fault = fault or (implausible(drawn, top) if top is not None else "") or listed_twice(entries)
    kept = top if whole and not fault else None
    return replace(parsed, top_logprobs=kept, top_fault=fault) if fault or kept is not None else parsed


def _are_texts(values: list[Any]) -> bool:
    """Whether all are strings. Joining them takes a third of the time of looking at each one's type."""
    try:
        "".join(values)
    except TypeError:
        return False
    return True


def first_of(count: int, choice: int) -> str:
    """The note on an answer that is the first of several, where nobody asked for it; else empty."""
    if count < 2 or choice:
        return ""
    return "the response holds several answers and this is of the first: parse_response(response, choice=1) is the next"


_WHOLE = "expected one for each token of the answer: ask the server for all of them, or leave this response out"


MOST_WORDS = 3
"""Words that one token without a name may stand for: more than a tokenizer has in one token."""


NONE = "the model was still thinking when it was cut, or never left its thinking: give it more tokens, or leave it out"


def settle(
    parsed: ParsedResponse,
    thinking: str | None,
    ending: Ending,
    entries: Sequence[Any] = (),
    *,
    counted: int = 0,
) -> ParsedResponse:
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


def check_text(parsed: ParsedResponse, entries: Sequence[Any] = (), *, counted: int = 0) -> ParsedResponse:
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
            came_short = of_all or f"log-probabilities came for {len(at)} tokens of {len(parsed.text.split())} words"
            raise of_other_tokens(f"{came_short}, and name no tokens; {_WHOLE}")
        return parsed
    shown = text_of(parsed.text, "answer") if parsed.segments else parsed.text
    if "".join(pieces) == shown:
        return _noted(parsed, of_all)
    if not shown.strip():
        return _noted(parsed, "the response shows no text, so whether the tokens are the whole answer is not known")
    reading = spelled(pieces, shown, rows)
    if parsed.segments and not reading.all:  # a server that leaves out the markers may show the thinking as text
        whole = spelled(parsed.tokens, parsed.text)
        reading = whole if whole.all else reading
    if reading.missing or reading.other:
        where = f"they say {reading.other[:30]!r} where the text says" if reading.other else "they leave out"
        raise of_other_tokens(
            f"{of_all or 'the tokens with the log-probabilities do not spell the answer'}: {where}"
            f" {reading.missing[:30]!r}; {_WHOLE}"
        )
    more = "the tokens hold more than the text that is shown, and all are scored" if reading.more else ""
    return _noted(parsed, of_all or ("" if parsed.note else more))


def _noted(parsed: ParsedResponse, note: str) -> ParsedResponse:
    return replace(parsed, note="; ".join(filter(None, (parsed.note, note)))) if note else parsed


def _bytes_of(entry: object) -> bytes | None:
    """A token's UTF-8 bytes; None where they did not come."""
    given = as_list((fields(entry) or {}).get("bytes"))
    return bytes(given) if given is not None and all(type(b) is int and 0 <= b < 256 for b in given) else None


def without_last(parsed: ParsedResponse, count: int = 1) -> ParsedResponse:
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


def answer_of(parsed: ParsedResponse) -> ParsedResponse:
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
    note = f"scored are the answer's {len(answer)} tokens, not the {len(thinking)} of the thinking before it"
    return replace(
        parsed,
        tokens=tuple(parsed.tokens[i] for i in at) if parsed.tokens else (),
        logprobs=answer,
        top_logprobs=top,
        segments=(),
        thinking=thinking,
        note="; ".join(filter(None, (parsed.note, note if len(thinking) else ""))),
    )


def parts_of(
    tokens: Sequence[str], spoken: str, thinking: str | None, ending: Ending, entries: Sequence[Any] = ()
) -> Parts:
    """Tells thinking from answer. Raises `InvalidResponse` where that is unknown and the score depends on it.

    `entries` have the bytes of tokens that are no whole characters, where the server gives them.
    """
    try:
        return locate(tokens, spoken, thinking, ending=ending)
    except InvalidResponse:
        pieces = [_from_bytes(entry) for entry in fields_of_each(entries)] if entries else [None]
        if None in pieces:
            raise
        shown, thought = (_bytewise(written or "") for written in (spoken, thinking))
        return locate([piece for piece in pieces if piece is not None], shown, thought, ending=ending)


def _from_bytes(entry: Mapping[str, Any] | None) -> str | None:
    """A token's bytes, each as one character; None where they did not come."""
    given = as_list((entry or {}).get("bytes"))
    if given is None or not all(type(value) is int and 0 <= value < 256 for value in given):
        return None
    return bytes(given).decode("latin-1")


def _bytewise(written: str) -> str:
    return written.encode("utf-8", "surrogatepass").decode("latin-1")
