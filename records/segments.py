"""Decides which tokens of an answer are thinking, which are the answer, and which only end it.

Boundaries are found by markers among the tokens (`<think>`, `</think>`, harmony's channels), or by aligning the tokens
with the texts that a server has separated. A token that holds part of a marker belongs to neither side, and neither
does white space beside a marker. Servers may strip this white space, and equal tokens must get equal segments for every
server. If neither way finds the boundary, and the score would depend on it, the response is refused.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, groupby
from typing import Any, Literal, get_args

from metaprobe.records.errors import InvalidResponse, of_other_tokens
from metaprobe.records.reading import STOP, read_end
from metaprobe.records.spelling import last_index, spelled, without_end_marks
from metaprobe.records.types import Segment, SegmentKind

SPACE = " \t\r\n"
"""White space in ASCII only, so that bytes can be read as one character a byte."""

_HARMONY = tuple(f"<|{name}|>" for name in ("channel", "start", "end", "return", "call", "constrain"))
MESSAGE = "<|message|>"
_PAIRS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "◁think▷": "◁/think▷",
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
}
"""Maps a marker that opens thinking to its closing marker, for the models that vLLM and SGLang have parsers for."""
OPENINGS = (*_PAIRS, "<|channel|>", "<|start|>")
CLOSINGS = tuple(_PAIRS.values())
_MARKER = re.compile("(" + "|".join(map(re.escape, (*_PAIRS, *CLOSINGS, *_HARMONY, MESSAGE))) + ")")
_NO_SPACE = re.compile(f"[^{SPACE}]")
_LONGEST_MARKER = max(map(len, (*_PAIRS, *CLOSINGS, *_HARMONY, MESSAGE)))
"""Characters of the longest marker. At most that many are read again when a token arrives."""

TokenKind = SegmentKind | Literal["marker"]
"""The kind of segment that a token belongs to; `marker` for a token of no segment."""


class KindReader:
    """Decides the kind of each token while the tokens arrive.

        >>> reader = KindReader()
        >>> [kind for token in ("<think>", "Hm", ".</", "think>", "Yes") for kind in reader.push(token)]
        ['marker', 'thinking', 'marker', 'marker', 'answer']

    Thinking counts only if it is opened at the beginning. `opened` says that the prompt opened it.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self._state: Literal["start", "inside", "header", "rest"] = "inside" if opened else "start"
        self._kind: SegmentKind = "thinking" if opened else "answer"
        self._marks: tuple[str, ...] = CLOSINGS if opened else ()
        """Markers that end the part that is being read."""
        self._is_beside_marker = opened  # the next white space stands beside a marker
        # Undecided are some characters of white space, and after them a text that may begin a marker. When a token
        # comes, only that text is read again, so that the work grows with the text and not with its square.
        self._undecided_space = 0
        self._undecided_text = ""
        self._header: list[str] = []
        self._decided_chars = self._total_chars = self._used_chars = 0  # numbers of characters
        self._spans: deque[tuple[int, TokenKind | Literal["edge"]]] = deque()  # each decided stretch: its end, its kind
        self._undecided_ends: deque[int] = deque()  # where the tokens end that are not decided
        self._latest_kind: TokenKind | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it is known if there is thinking."""
        return self._state != "start"

    @property
    def is_thinking(self) -> bool:
        """Whether the thinking has begun and not ended."""
        return self._state in ("inside", "header") and self._kind == "thinking"

    @property
    def is_settled(self) -> bool:
        """Whether all later tokens belong to the answer, whatever their text, and no token is undecided."""
        in_answer = self._state == "rest" and self._kind == self._latest_kind == "answer"
        return in_answer and not (self._is_beside_marker or self._undecided_ends)

    def push(self, piece: str) -> list[TokenKind]:
        """Takes in a token, and returns the kinds of the tokens that are now decided, in order.

        A token that may begin a marker stays undecided.
        """
        self._total_chars += len(piece)
        self._undecided_ends.append(self._total_chars)
        text, self._undecided_text = self._undecided_text + piece, ""
        position = 0
        while position < len(text):
            position = self._step(text, position)
        return self._decided_kinds()

    def close(self) -> list[TokenKind]:
        """Returns the kinds of the last tokens, which waited for a token after them, because the answer has ended."""
        # If the answer was cut, an end that may begin the closing marker belongs to neither side.
        is_neither = self._state == "header" or (self._state == "inside" and self._kind == "thinking")
        self._decide(len(self._undecided_text), "marker" if is_neither else self._kind)
        self._undecided_text, self._state = "", "rest"
        return self._decided_kinds()

    def _step(self, text: str, position: int) -> int:
        """Decides as much of the text from `position` on as possible, and returns where the next step begins."""
        if self._is_beside_marker:
            start = _skip_space(text, position)
            self._decide(start - position, "edge")
            self._is_beside_marker = start == len(text)
            return start
        if self._state == "start":
            return self._read_start(text, position)
        if self._state == "header":
            return self._read_header(text, position)
        if self._state == "inside":
            return self._read_inside(text, position)
        self._decide(len(text) - position, self._kind)
        return len(text)

    def _read_start(self, text: str, position: int) -> int:
        start = _skip_space(text, position)
        opening = next((mark for mark in OPENINGS if text.startswith(mark, start)), "")
        self._undecided_space += start - position
        if opening:
            self._decide(len(opening), "marker")
            self._open(opening)
            return start + len(opening)
        if len(text) - start < _LONGEST_MARKER and any(mark.startswith(text[start:]) for mark in OPENINGS):
            self._undecided_text = text[start:]
            return len(text)
        self._state = "rest"
        return start

    def _open(self, mark: str) -> None:
        """Sets the state that follows an opening marker."""
        if mark in _HARMONY:
            self._state, self._header, self._kind = "header", [mark], "thinking"
        else:
            self._state, self._kind, self._marks, self._is_beside_marker = "inside", "thinking", (_PAIRS[mark],), True

    def _read_inside(self, text: str, position: int) -> int:
        """Reads text inside a thinking block or a harmony message, and returns where the next step begins."""
        mark_match = _any_of(self._marks).search(text, position)
        if mark_match is None:
            self._decide_all_but_marker(text, position, self._marks, self._kind)
            return len(text)
        body_length = len(text[position : mark_match.start()].rstrip(SPACE))
        if body_length:
            self._decide(body_length, self._kind)
        self._decide(mark_match.start() - position - body_length, "edge")
        mark = mark_match[0]
        self._decide(len(mark), "marker")
        if mark in _HARMONY:
            self._open(mark)
        else:
            self._state, self._kind, self._is_beside_marker = "rest", "answer", True
        return mark_match.end()

    def _read_header(self, text: str, position: int) -> int:
        """Reads text between harmony's messages, which names the next channel, and returns where the next
        step begins.
        """
        message_start = text.find(MESSAGE, position)
        if message_start < 0:
            self._header.append(text[position : self._decide_all_but_marker(text, position, (MESSAGE,), "marker")])
            return len(text)
        self._decide(message_start + len(MESSAGE) - position, "marker")
        header = "".join((*self._header, text[position:message_start]))
        channel = header.rpartition("<|channel|>")[2]
        is_tool_call = " to=" in header or channel.startswith("commentary")
        self._kind = "tool" if is_tool_call else "answer" if channel.startswith("final") else "thinking"
        self._state, self._marks, self._is_beside_marker = "inside", _HARMONY, True
        return message_start + len(MESSAGE)

    def _decide_all_but_marker(self, text: str, position: int, marks: tuple[str, ...], kind: TokenKind) -> int:
        """Decides the text from `position` on, except an end that may begin a marker. Returns where this end begins.

        Args:
            text: the text.
            position: where the undecided text begins.
            marks: markers that may begin at the end of the text.
            kind: kind of the decided text.
        """
        marker_start = len(text) - _marker_start_length(text, position, marks)
        body_length = len(text[position:marker_start].rstrip(SPACE))
        if body_length:
            self._decide(body_length, kind)
        self._undecided_space += marker_start - position - body_length
        self._undecided_text = text[marker_start:]
        return marker_start

    def _decide(self, count: int, kind: TokenKind | Literal["edge"]) -> None:
        """Gives the waiting white space and the next `count` characters this kind."""
        if count := count + self._undecided_space:
            self._decided_chars, self._undecided_space = self._decided_chars + count, 0
            self._spans.append((self._decided_chars, kind))

    def _decided_kinds(self) -> list[TokenKind]:
        kinds: list[TokenKind] = []
        # A token without text stays undecided as long as the text around it.
        is_all_decided = self._decided_chars == self._total_chars and self._state != "start"
        while (
            self._undecided_ends
            and self._undecided_ends[0] <= self._decided_chars
            and (is_all_decided or self._undecided_ends[0] < self._decided_chars)
        ):
            end = self._undecided_ends.popleft()  # of the token
            kinds_touched = set()
            while self._spans and self._used_chars < end:
                span_end, kind = self._spans[0]
                kinds_touched.add(kind)
                self._used_chars = min(span_end, end)
                if span_end <= end:
                    self._spans.popleft()
            kinds_beside_edges = kinds_touched - {"edge"}
            if not kinds_touched:  # without text: a part of a character, or a marker that the server left out
                # If this is the first token, it takes the kind of the text that follows.
                following_kind = "marker" if self._spans and self._spans[0][1] == "marker" else self._kind
                self._latest_kind = self._latest_kind or following_kind
            elif len(kinds_beside_edges) == 1:
                self._latest_kind = kinds_beside_edges.pop()  # type: ignore[assignment]
            else:
                self._latest_kind = "marker"
            assert self._latest_kind is not None
            kinds.append(self._latest_kind)
        return kinds


@cache
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)))


def _skip_space(text: str, position: int) -> int:
    """Returns the place of the first character, from `position` on, that is no white space."""
    character = _NO_SPACE.search(text, position)
    return len(text) if character is None else character.start()


def _marker_start_length(text: str, position: int, marks: Iterable[str]) -> int:
    """Returns how many characters at the end, from `position` on, may be the beginning of a marker.

    Args:
        text: the text.
        position: where the undecided text begins.
        marks: the markers.
    """
    end = text[max(position, len(text) - _LONGEST_MARKER) :]
    return max((n for mark in marks for n in range(1, len(mark)) if end.endswith(mark[:n])), default=0)


def marked(pieces: Iterable[str], *, opened: bool = False) -> tuple[Segment, ...]:
    """Returns the segments that markers among the tokens delimit; empty if all tokens belong to the answer."""
    reader, kinds = KindReader(opened=opened), []
    for piece in pieces:
        kinds += reader.push(piece)
    return token_runs([*kinds, *reader.close()])


def ends_unopened(raw: str) -> bool:
    """Returns whether the text ends a thinking that the prompt opened. A tag that the answer only mentions does not
    count.
    """
    marks_found = [(mark_start, mark) for mark in CLOSINGS if (mark_start := raw.find(mark)) >= 0]
    if not marks_found or raw.lstrip(SPACE).startswith(OPENINGS):
        return False
    if len(marks_found) > 1 or raw.count(marks_found[0][1]) > 1:
        return False
    mark_start, mark = marks_found[0]
    is_quoted = any(0 <= raw.find(opening) < mark_start for opening in _PAIRS)
    before, after = raw[:mark_start], raw[mark_start + len(mark) :]
    stands_alone = before[-1:] not in (" ", "`", "'", '"', "(") and after[:1] not in (" ", "`", "'", '"', ")", ",", ".")
    return stands_alone and not is_quoted


def spoken_text(shown_text: str) -> str:
    """Returns the text without thinking at its beginning; empty if it holds nothing else."""
    return text_of(shown_text, "answer")


def text_of(shown_text: str, kind: SegmentKind) -> str:
    """Returns the part of the text that is of this kind. Without thinking all of it is the answer."""
    opened = ends_unopened(shown_text)
    if not opened and not shown_text.lstrip(SPACE).startswith(OPENINGS):
        return shown_text if kind == "answer" else ""
    pieces = _MARKER.split(shown_text)
    segments = marked(pieces, opened=opened)
    return "".join("".join(pieces[s.start : s.end]) for s in segments if s.kind == kind).strip(SPACE)


def token_runs(kinds: Sequence[TokenKind]) -> tuple[Segment, ...]:
    """Returns the segments of tokens of these kinds; empty if all tokens belong to the answer."""
    if all(kind == "answer" for kind in kinds):
        return ()
    counts = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    ends = accumulate(count for _, count in counts)
    return tuple(
        Segment(kind, end - count, end) for (kind, count), end in zip(counts, ends, strict=True) if kind != "marker"
    )


def check_segments(segments: Sequence[Segment], tokens: int) -> tuple[Segment, ...]:
    """Returns the segments if their kinds are known, and they are in order and within the number of tokens.

    Raises `InvalidResponse` otherwise.
    """
    end = 0
    for segment in segments:
        if segment.kind not in get_args(SegmentKind) or not end <= segment.start <= segment.end <= tokens:
            raise InvalidResponse(
                f"a segment is {segment.kind!r} from token {segment.start} to {segment.end}; expected thinking, answer"
                f" or tool, in order and within the {tokens} tokens that came"
            )
        end = segment.end
    return tuple(segments)


ONLY_ANSWER = "the thinking before the answer came without log-probabilities"
"""Note on an answer before which the model thought, without log-probabilities of the thinking."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Which tokens of one answer count, and their segments."""

    kept_count: int
    """Number of tokens of the answer, with thinking and markers. The tokens after them only ended it."""
    segments: tuple[Segment, ...] = ()
    """Segments of the kept tokens; empty if all of them belong to the answer."""
    note: str = ""


_SPELLED_SPACE = "▁ĠĊĉč"
"""Space, line break, tab and carriage return in the spelling of SentencePiece and byte-level BPE."""

Ending = Literal["", "token", "text", "some"]
"""How an answer ended, which tells what its last tokens are.

`token`: the last token is an end token. `text`: the last tokens spell a stop text. `some`: one of these two. Empty:
neither, as for an answer that a limit cut.
"""

END_TOKEN = re.compile(r"<[|｜]\S+[|｜]>|</s>|<eos>|<end_of_turn>|<end_of_text>")
"""Matches end tokens, which are never shown in a text."""


def ending_of(finish_reason: object, choice: Mapping[str, Any]) -> Ending:
    """Returns how the choice of a completion ended. vLLM (`stop_reason`) and SGLang (`matched_stop`) say
    what ended it.
    """
    if read_end(finish_reason) != STOP:
        return ""
    if "stop_reason" in choice:
        return "text" if isinstance(choice["stop_reason"], str) else "token"
    matched = choice.get("matched_stop")
    return "some" if matched is None else "text" if isinstance(matched, str) else "token"


def locate(pieces: Sequence[str], text: str, thinking: str | None = None, *, ending: Ending = "") -> Parts:
    """Returns the segment of each token, from the tokens' texts.

    Raises `InvalidResponse` if there was thinking, and the tokens do not show where it ends.

    Args:
        pieces: texts of the tokens.
        text: the answer as the server shows it, with or without the thinking.
        thinking: text of the thinking in a field of its own; None if there is no sign of thinking, empty if there was
            some with unknown words.
        ending: how the answer ended.
    """
    kept_count = len(pieces) - _end_tokens(pieces, text, ending)
    pieces = pieces[:kept_count]
    raw = "".join(pieces)
    if thinking is None and raw == text and "<" not in raw and "[" not in raw:  # most answers: no marker can be there
        return Parts(kept_count)
    starts_open = raw.lstrip(SPACE).startswith(OPENINGS)
    has_closing = not starts_open and any(mark in raw for mark in CLOSINGS)
    was_opened = has_closing and (bool(thinking) or ends_unopened(raw))
    if starts_open or was_opened:
        return _checked_parts(
            pieces, Parts(kept_count, marked(pieces, opened=was_opened)), text_of(text, "answer").strip(SPACE)
        )
    if MESSAGE in raw:  # the prompt ended within a header of harmony's
        shifted = marked(("<|channel|>", *pieces))
        return Parts(kept_count, tuple(Segment(s.kind, s.start - 1, s.end - 1) for s in shifted))
    if text.lstrip(SPACE).startswith(OPENINGS) or (not has_closing and ends_unopened(text)):
        return _aligned(pieces, kept_count, text_of(text, "answer"), text_of(text, "thinking"))
    if thinking is not None:
        return _aligned(pieces, kept_count, text, thinking)
    if has_closing:
        return Parts(kept_count, note="an end of thinking stands within a line and is taken for words of the answer")
    if ending == "text" and text.strip(SPACE) not in raw:
        return Parts(kept_count, note="which of the last tokens are of the stop text is not known, and all are scored")
    return _shown_only(pieces, kept_count, text) if raw != text and raw else Parts(kept_count)


def _end_tokens(pieces: Sequence[str], text: str, ending: Ending) -> int:
    """Returns how many tokens at the end are not part of the text: an end token, or the tokens of a stop text.

    Args:
        pieces: texts of the tokens.
        text: the answer as the server shows it.
        ending: how the answer ended.
    """
    if not pieces:
        return 0
    last, shown_text = pieces[-1], text.strip(SPACE)
    if END_TOKEN.fullmatch(last) and not text.endswith(last):
        return 1
    if not ending:
        return 0
    if ending == "text":
        return _tokens_after(pieces, shown_text, text[len(text.rstrip(SPACE)) :])
    if last and text.endswith(last):
        return 0
    spellings = list(without_end_marks(text))  # the last marks of a text may have no tokens
    if last and any(spelling.endswith(last) for spelling in spellings):
        return 0
    if last and (ending == "token" or not last.strip(SPACE)):
        return int(ending == "token")
    before = next((piece for piece in reversed(pieces[:-1]) if piece.strip(SPACE)), "").rstrip(SPACE)
    return int(bool(before) and any(spelling.rstrip(SPACE).endswith(before) for spelling in spellings))


def _tokens_after(pieces: Sequence[str], shown_text: str, space: str) -> int:
    """Returns how many tokens at the end begin after the shown text and the white space after it.

    Args:
        pieces: texts of the tokens.
        shown_text: the text.
        space: white space that may follow the text.
    """
    raw = "".join(pieces)
    leading_space = len(raw) - len(raw.lstrip(SPACE))
    shown_start = leading_space if raw.startswith(shown_text, leading_space) else last_index(raw, shown_text)
    if not shown_text or shown_start < 0:
        return 0
    end = shown_start + len(shown_text)
    end += len(space) if raw.startswith(space, end) else 0
    count, token_start = 0, len(raw)
    while count < len(pieces) and token_start - len(pieces[-1 - count]) >= end:
        count += 1
        token_start -= len(pieces[-count])
    return count


def _checked_parts(pieces: Sequence[str], parts: Parts, shown_text: str) -> Parts:
    """Returns the parts if the answer's tokens spell the shown answer; otherwise corrected parts, or parts with a note.

    Args:
        pieces: texts of the tokens.
        parts: segments by the markers.
        shown_text: the answer as the server shows it.
    """
    answer_of_tokens = "".join("".join(pieces[s.start : s.end]) for s in parts.segments if s.kind == "answer").strip(
        SPACE
    )
    # A token that reaches into a marker is missing here, and a character that several tokens make up cannot be read.
    if (
        not shown_text
        or answer_of_tokens in shown_text
        or answer_of_tokens.startswith(shown_text)
        or "\ufffd" in answer_of_tokens
        or "\\x" in answer_of_tokens
    ):
        return parts
    if not answer_of_tokens.endswith(shown_text):
        return replace(parts, note="the tokens after the thinking are of other words than the answer that is shown")
    raw = "".join(pieces)
    cut = raw.rindex(shown_text)
    [answer] = _spans(pieces, (0, 0), (cut, cut + len(shown_text))) or [Segment("answer", 0, parts.kept_count)]
    before = [s for s in parts.segments if s.kind != "answer" and s.end <= answer.start]
    return Parts(parts.kept_count, (*before, answer), "tokens before the answer that is shown are not scored")


def _aligned(pieces: Sequence[str], kept_count: int, text: str, thinking: str) -> Parts:
    """Returns the parts from the texts alone: there was thinking, but no marker among the tokens.

    Args:
        pieces: texts of the tokens.
        kept_count: number of tokens that count.
        text: the answer as the server shows it.
        thinking: text of the thinking.
    """
    raw, thought = "".join(pieces), thinking.strip(SPACE)
    shown_text = raw.strip(SPACE)
    answers = [ending.strip(SPACE) for ending in without_end_marks(text)]  # the last marks of a text may have no tokens
    answer = next((ending for ending in answers if shown_text.endswith(ending)), answers[0])
    start = len(raw) - len(raw.lstrip(SPACE))
    if shown_text and shown_text == answer:
        return Parts(kept_count, (Segment("answer", 0, kept_count),), ONLY_ANSWER)
    if shown_text and thought and shown_text == thought:
        return Parts(kept_count, _spans(pieces, (start, start + len(thought)), (0, 0)))
    if answer and shown_text.endswith(answer):
        cut = raw.rindex(answer)
        before = raw[:cut].strip(SPACE)
        if before and before in thought:  # all of it, or what a stream kept of it
            return Parts(kept_count, _spans(pieces, (start, start + len(before)), (cut, cut + len(answer))))
    raise of_other_tokens(
        f"the answer came after thinking, and its {len(pieces)} log-probabilities"
        f" {'name no tokens' if not shown_text else 'are of other words than thinking and answer'}, so where the"
        " thinking ends is not known; expected tokens that make up the answer, or thinking and answer: ask the server"
        " for their texts, switch its reasoning parser off, or leave this response out"
    )


def _shown_only(pieces: Sequence[str], kept_count: int, text: str) -> Parts:
    """Returns the parts for a shown text with other tokens around it, without a sign of thinking. Only its tokens
    count.

    Args:
        pieces: texts of the tokens.
        kept_count: number of tokens that count.
        text: the answer as the server shows it.
    """
    raw, shown_text = "".join(pieces), text.strip(SPACE)
    lead = len(raw) - len(raw.lstrip(SPACE))
    if not shown_text or not (raw.startswith(shown_text, lead) or raw.rstrip(SPACE).endswith(shown_text)):
        return Parts(kept_count)
    start = lead if raw.startswith(shown_text, lead) else raw.rfind(shown_text)
    stop, ends = start + len(shown_text), list(accumulate(map(len, pieces)))
    outside = [piece for piece, end in zip(pieces, ends, strict=True) if end <= start or end - len(piece) >= stop]
    if not "".join(outside).strip(SPACE + _SPELLED_SPACE):
        return Parts(kept_count)
    if spelled(pieces[:kept_count], text).all:  # in a spelling whose last characters are the text's: `Â¡` for `¡`
        return Parts(kept_count)
    spans = _spans(pieces, (0, 0), (start, stop))
    return Parts(kept_count, spans, "tokens before or after the text that is shown are not scored")


def _spans(pieces: Sequence[str], thinking: tuple[int, int], answer: tuple[int, int]) -> tuple[Segment, ...]:
    """Returns the segments of the tokens in two ranges of characters. A token that reaches into both belongs to
    neither.

    Args:
        pieces: texts of the tokens.
        thinking: begin and end of the thinking.
        answer: begin and end of the answer.
    """
    ends = list(accumulate(map(len, pieces)))
    kinds: list[TokenKind] = []
    for piece, end in zip(pieces, ends, strict=True):
        begin = end - len(piece)
        in_thinking = begin < thinking[1] and end > thinking[0]
        in_answer = begin < answer[1] and end > answer[0]
        kinds.append("marker" if in_thinking == in_answer else "thinking" if in_thinking else "answer")
    return token_runs(kinds)
