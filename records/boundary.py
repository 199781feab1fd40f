"""What the tokens of an answer are of, by their texts and by what the server says: thinking, answer, or its end.

Where markers are among the tokens they decide; else the tokens are laid along the texts that the server has separated.
Where neither tells and the score would hang on it, the response is refused.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

from metaprobe.records.endings import STOP, read_end
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.scans import last_place
from metaprobe.records.segments import CLOSINGS, MESSAGE, OPENINGS, SPACE, Kind, ends_unopened, marked, runs_of, text_of
from metaprobe.records.types import Segment

ONLY_ANSWER = "the thinking before the answer came without log-probabilities"
"""The note on an answer whose thinking is known to have been, and nothing more."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the tokens of one answer turned out to be."""

    kept: int
    """How many tokens are the answer's, thinking and markers included; those after them only ended it."""
    segments: tuple[Segment, ...] = ()
    """Empty where all that is kept is the answer."""
    note: str = ""


_SPELLED_SPACE = "▁ĠĊĉč"
"""Space, line break, tab and carriage return as SentencePiece and byte-level BPE spell them."""

Ending = Literal["", "token", "text", "some"]
"""How an answer ended, as far as that says what its last tokens are: by an end token that is the last of them, by a
stop text, by one of these, or (empty) by none of them, as where a limit cut it."""

END_TOKEN = re.compile(r"<[|｜]\S+[|｜]>|</s>|<eos>|<end_of_turn>|<end_of_text>")
"""End tokens by their look, which a text never shows."""


def ending_of(finish_reason: object, choice: Mapping[str, Any]) -> Ending:
    """How the choice of a completion ended. vLLM (`stop_reason`) and SGLang (`matched_stop`) say by what."""
    if read_end(finish_reason) != STOP:
        return ""
    if "stop_reason" in choice:
        return "text" if isinstance(choice["stop_reason"], str) else "token"
    matched = choice.get("matched_stop")
    return "some" if matched is None else "text" if isinstance(matched, str) else "token"


def locate(pieces: Sequence[str], text: str, thinking: str | None = None, *, ending: Ending = "") -> Parts:
    """What each of the tokens is of, by their texts.

    `text`: the answer as the server shows it, with the thinking in it or without. `thinking`: what it shows of the
    thinking in a field of its own; None where nothing says that there was any, empty where there was some and its
    words are not known. Raises `InvalidResponse` where there was thinking and the tokens do not tell where it ends.
    """
    kept = len(pieces) - _end_tokens(pieces, text, ending)
    pieces = pieces[:kept]
    raw = "".join(pieces)
    if thinking is None and raw == text and "<" not in raw and "[" not in raw:  # most answers: no marker can be there
        return Parts(kept)
    begun = raw.lstrip(SPACE).startswith(OPENINGS)
    closed = not begun and any(mark in raw for mark in CLOSINGS)
    opened = closed and (bool(thinking) or ends_unopened(raw))
    if begun or opened:
        return _checked(pieces, Parts(kept, marked(pieces, opened=opened)), text_of(text, "answer").strip(SPACE))
    if MESSAGE in raw:  # the prompt ended within a header of harmony's
        shifted = marked(("<|channel|>", *pieces))
        return Parts(kept, tuple(Segment(s.kind, s.start - 1, s.end - 1) for s in shifted))
    if text.lstrip(SPACE).startswith(OPENINGS) or (not closed and ends_unopened(text)):
        return _aligned(pieces, kept, text_of(text, "answer"), text_of(text, "thinking"))
    if thinking is not None:
        return _aligned(pieces, kept, text, thinking)
    if closed:
        return Parts(kept, note="an end of thinking stands within a line and is taken for words of the answer")
    if ending == "text" and text.strip(SPACE) not in raw:
        return Parts(kept, note="which of the last tokens are of the stop text is not known, and all are scored")
    return _shown_only(pieces, kept, text) if raw != text and raw else Parts(kept)


def _end_tokens(pieces: Sequence[str], text: str, ending: Ending) -> int:
    """How many tokens at the end are none of the text's: an end token, or those of a stop text."""
    if not pieces:
        return 0
    last, shown = pieces[-1], text.strip(SPACE)
    if END_TOKEN.fullmatch(last) and not text.endswith(last):
        return 1
    if not ending:
        return 0
    if ending == "text":
        return _after(pieces, shown, text[len(text.rstrip(SPACE)) :])
    if last and text.endswith(last):
        return 0
    if last and (ending == "token" or not last.strip(SPACE)):
        return int(ending == "token")
    before = next((piece for piece in reversed(pieces[:-1]) if piece.strip(SPACE)), "").rstrip(SPACE)
    return int(bool(before) and shown.endswith(before))


def _after(pieces: Sequence[str], shown: str, space: str) -> int:
    """How many tokens at the end begin after the text that is shown, and the white space behind it."""
    raw = "".join(pieces)
    lead = len(raw) - len(raw.lstrip(SPACE))
    place = lead if raw.startswith(shown, lead) else last_place(raw, shown)
    if not shown or place < 0:
        return 0
    end = place + len(shown)
    end += len(space) if raw.startswith(space, end) else 0
    count, begin = 0, len(raw)
    while count < len(pieces) and begin - len(pieces[-1 - count]) >= end:
        count += 1
        begin -= len(pieces[-count])
    return count


def _checked(pieces: Sequence[str], parts: Parts, shown: str) -> Parts:
    """The parts, where the tokens of the answer are those of the answer that is shown; else with a note."""
    said = "".join("".join(pieces[s.start : s.end]) for s in parts.segments if s.kind == "answer").strip(SPACE)
    # A token that reaches into a marker is missing here, and a character that several tokens make up cannot be read.
    if not shown or said in shown or said.startswith(shown) or "\ufffd" in said or "\\x" in said:
        return parts
    if not said.endswith(shown):
        return replace(parts, note="the tokens after the thinking are of other words than the answer that is shown")
    raw = "".join(pieces)
    cut = raw.rindex(shown)
    [answer] = _spans(pieces, (0, 0), (cut, cut + len(shown))) or [Segment("answer", 0, parts.kept)]
    before = [s for s in parts.segments if s.kind != "answer" and s.end <= answer.start]
    return Parts(parts.kept, (*before, answer), "tokens before the answer that is shown are not scored")


def _aligned(pieces: Sequence[str], kept: int, text: str, thinking: str) -> Parts:
    """By the texts alone: there was thinking, and no marker is among the tokens."""
    raw, answer, thought = "".join(pieces), text.strip(SPACE), thinking.strip(SPACE)
    shown = raw.strip(SPACE)
    start = len(raw) - len(raw.lstrip(SPACE))
    if shown and shown == answer:
        return Parts(kept, (Segment("answer", 0, kept),), ONLY_ANSWER)
    if shown and thought and shown == thought:
        return Parts(kept, _spans(pieces, (start, start + len(thought)), (0, 0)))
    if answer and shown.endswith(answer):
        cut = raw.rindex(answer)
        before = raw[:cut].strip(SPACE)
        if before and before in thought:  # all of it, or what a stream kept of it
            return Parts(kept, _spans(pieces, (start, start + len(before)), (cut, cut + len(answer))))
    raise InvalidResponse(
        f"the answer came after thinking, and its {len(pieces)} log-probabilities"
        f" {'name no tokens' if not shown else 'are of other words than thinking and answer'}, so where the thinking"
        " ends is not known; expected tokens that make up the answer, or thinking and answer: ask the server for their"
        " texts, switch its reasoning parser off, or leave this response out"
    )


def _shown_only(pieces: Sequence[str], kept: int, text: str) -> Parts:
    """Where nothing is said of thinking: the tokens of the text that is shown, where others stand around it."""
    raw, shown = "".join(pieces), text.strip(SPACE)
    lead = len(raw) - len(raw.lstrip(SPACE))
    if not shown or not (raw.startswith(shown, lead) or raw.rstrip(SPACE).endswith(shown)):
        return Parts(kept)
    start = lead if raw.startswith(shown, lead) else raw.rfind(shown)
    stop, ends = start + len(shown), list(accumulate(map(len, pieces)))
    outside = [piece for piece, end in zip(pieces, ends, strict=True) if end <= start or end - len(piece) >= stop]
    if not "".join(outside).strip(SPACE + _SPELLED_SPACE):
        return Parts(kept)
    spans = _spans(pieces, (0, 0), (start, stop))
    return Parts(kept, spans, "tokens before or after the text that is shown are not scored")


def _spans(pieces: Sequence[str], thinking: tuple[int, int], answer: tuple[int, int]) -> tuple[Segment, ...]:
    """The tokens of these stretches of their text; a token that reaches into both is of neither."""
    ends = list(accumulate(map(len, pieces)))
    kinds: list[Kind] = []
    for piece, end in zip(pieces, ends, strict=True):
        begin = end - len(piece)
        in_thinking = begin < thinking[1] and end > thinking[0]
        in_answer = begin < answer[1] and end > answer[0]
        kinds.append("marker" if in_thinking == in_answer else "thinking" if in_thinking else "answer")
    return runs_of(kinds)
