"""Where thinking ends and the answer begins, in the tokens of a reasoning model.

Boundaries are found by markers among the tokens (`<think>`, `</think>`, harmony's channels), or by the texts that a
server has separated. A token that holds part of a marker belongs to neither side, and so does white space beside one:
servers strip it or do not, and the same tokens must have the same segments behind every server.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Literal, get_args

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import Segment, SegmentKind

SPACE = " \t\r\n"
"""White space of ASCII only, so that bytes may be read one character a byte."""

_HARMONY = tuple(f"<|{name}|>" for name in ("channel", "start", "end", "return", "call", "constrain"))
_MESSAGE = "<|message|>"
_PAIRS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
}
"""What opens and closes thinking, of the models whose parsers vLLM and SGLang bring."""
OPENINGS = (*_PAIRS, "<|channel|>", "<|start|>")
CLOSINGS = tuple(_PAIRS.values())

Kind = SegmentKind | Literal["marker"]
"""What a token belongs to; a marker is of no segment."""

ONLY_ANSWER = "the thinking before the answer came without log-probabilities"
"""The note on an answer whose thinking is known to have been, and nothing more."""


class KindReader:
    """Tells of each token what it belongs to, as the tokens come.

        >>> reader = KindReader()
        >>> [kind for token in ("<think>", "Hm", ".</", "think>", "Yes") for kind in reader.push(token)]
        ['marker', 'thinking', 'marker', 'marker', 'answer']

    Thinking counts only where it is opened at the beginning; `opened`: it was opened in the prompt.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self._state: Literal["start", "inside", "header", "rest"] = "inside" if opened else "start"
        self._kind: SegmentKind = "thinking" if opened else "answer"
        self._marks: tuple[str, ...] = CLOSINGS if opened else ()
        """What ends the stretch that is being read."""
        self._edge = opened  # the next white space stands beside a marker
        self._text = ""  # has come and is not yet decided
        self._header = ""
        self._known = self._end = self._last = 0  # characters that are decided, that came, that decided tokens have
        self._spans: list[tuple[int, Kind | Literal["edge"]]] = []  # where each decided stretch ends, and what it is
        self._waiting: deque[int] = deque()  # where the tokens end that are not decided
        self._latest: Kind | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it is known if there is thinking."""
        return self._state != "start"

    @property
    def is_thinking(self) -> bool:
        """Whether the thinking has begun and not ended."""
        return self._state in ("inside", "header") and self._kind == "thinking"

    def push(self, piece: str) -> list[Kind]:
        """The kinds of the tokens that are decided now, in order; one that may begin a marker waits."""
        self._end += len(piece)
        self._waiting.append(self._end)
        self._text += piece
        while self._text and self._step():
            pass
        return self._decided()

    def close(self) -> list[Kind]:
        """The kinds of the tokens that were still waiting, now that no other comes."""
        self._give(len(self._text), "marker" if self._state == "header" else self._kind)
        self._state = "rest"
        return self._decided()

    def _step(self) -> bool:
        """Decides what it can of the text; False where more has to come first."""
        if self._edge:
            self._give(len(self._text) - len(self._text.lstrip(SPACE)), "edge")
            self._edge = not self._text
            return not self._edge
        if self._state == "start":
            return self._begin()
        if self._state == "header":
            return self._name()
        if self._state == "inside":
            return self._go_on()
        self._give(len(self._text), self._kind)
        return False

    def _begin(self) -> bool:
        shown = self._text.lstrip(SPACE)
        opening = next((mark for mark in OPENINGS if shown.startswith(mark)), "")
        if opening:
            self._give(len(self._text) - len(shown) + len(opening), "marker")
            self._open(opening)
        elif any(mark.startswith(shown) for mark in OPENINGS):
            return False
        else:
            self._state = "rest"
        return True

    def _open(self, mark: str) -> None:
        """What follows one of the markers."""
        if mark in _HARMONY:
            self._state, self._header, self._kind = "header", mark, "thinking"
        else:
            self._state, self._kind, self._marks, self._edge = "inside", "thinking", (_PAIRS[mark],), True

    def _go_on(self) -> bool:
        """Within thinking, or within a message of harmony's."""
        found = [(place, mark) for mark in self._marks if (place := self._text.find(mark)) >= 0]
        if not found:
            self._give(len(self._text) - _begun(self._text, self._marks), self._kind)
            return False
        place, mark = min(found)
        body = len(self._text[:place].rstrip(SPACE))
        self._give(body, self._kind)
        self._give(place - body, "edge")
        self._give(len(mark), "marker")
        if mark in _HARMONY:
            self._open(mark)
        else:
            self._state, self._kind, self._edge = "rest", "answer", True
        return True

    def _name(self) -> bool:
        """Between the messages of harmony: nothing here is said to anybody, and it names the next channel."""
        place = self._text.find(_MESSAGE)
        taken = len(self._text) - _begun(self._text, (_MESSAGE,)) if place < 0 else place + len(_MESSAGE)
        self._header += self._text[:taken]
        self._give(taken, "marker")
        if place < 0:
            return False
        channel = self._header.rpartition("<|channel|>")[2]
        called = " to=" in self._header or channel.startswith("commentary")
        self._kind = "tool" if called else "answer" if channel.startswith("final") else "thinking"
        self._state, self._marks, self._edge = "inside", _HARMONY, True
        return True

    def _give(self, count: int, kind: Kind | Literal["edge"]) -> None:
        """The next `count` characters are of this kind."""
        if count:
            self._known += count
            self._text = self._text[count:]
            self._spans.append((self._known, kind))

    def _decided(self) -> list[Kind]:
        kinds: list[Kind] = []
        # A token without text waits as long as what stands around it.
        settled = self._known == self._end and self._state != "start"
        while self._waiting and self._waiting[0] <= self._known and (settled or self._waiting[0] < self._known):
            kinds.append(self._kind_of(self._waiting.popleft()))
        return kinds

    def _kind_of(self, end: int) -> Kind:
        """What the token belongs to that ends there."""
        touched = set()
        while self._spans and self._last < end:
            stop, kind = self._spans[0]
            touched.add(kind)
            self._last = min(stop, end)
            if stop <= end:
                self._spans.pop(0)
        sides = touched - {"edge"}
        if not touched:  # without text: a part of a character, or a marker that the server left out
            self._latest = self._latest or self._kind
        elif len(sides) == 1:
            self._latest = sides.pop()  # type: ignore[assignment]
        else:
            self._latest = "marker"
        assert self._latest is not None
        return self._latest


def _begun(text: str, marks: Iterable[str]) -> int:
    """How many characters at the end may turn out to be a mark's beginning, and the white space before it."""
    begun = max((n for mark in marks for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0)
    return len(text) - len(text[: len(text) - begun].rstrip(SPACE))


@dataclass(frozen=True, slots=True)
class Parts:
    """What the tokens of one answer turned out to be."""

    kept: int
    """How many tokens are the answer's, thinking and markers included; those after them only ended it."""
    segments: tuple[Segment, ...] = ()
    """Empty where all that is kept is the answer."""
    note: str = ""


Ending = Literal["", "token", "text", "some"]
"""How an answer ended, as far as that says what its last tokens are: by an end token that is the last of them, by a
stop text, by one of these, or (empty) by none of them, as where a limit cut it."""

STOPS = frozenset(("stop", "eos", "eos_token", "stop_sequence"))
"""What servers call an end that the model chose."""


def ending_of(finish_reason: object, choice: Mapping[str, Any]) -> Ending:
    """How the choice of a completion ended. vLLM (`stop_reason`) and SGLang (`matched_stop`) say by what."""
    if not isinstance(finish_reason, str) or finish_reason not in STOPS:
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
    begun = raw.lstrip(SPACE).startswith(OPENINGS)
    closed = not begun and any(mark in raw for mark in CLOSINGS)
    opened = closed and (bool(thinking) or _stands_alone(raw))
    if begun or opened:
        return Parts(kept, marked(pieces, opened=opened))
    if not raw and text.lstrip(SPACE).startswith(OPENINGS):
        thinking = thinking or ""
    if thinking is not None:
        return _aligned(pieces, kept, text, thinking)
    return Parts(kept, note="an end of thinking stands within a line and is taken for words of the answer" * closed)


def marked(pieces: Iterable[str], *, opened: bool = False) -> tuple[Segment, ...]:
    """The segments that markers among the tokens tell; empty where all tokens are of the answer."""
    reader, kinds = KindReader(opened=opened), []
    for piece in pieces:
        kinds += reader.push(piece)
    return runs_of([*kinds, *reader.close()])


def runs_of(kinds: Sequence[Kind]) -> tuple[Segment, ...]:
    """The segments of tokens of these kinds; empty where all are of the answer."""
    if all(kind == "answer" for kind in kinds):
        return ()
    counts = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    ends = accumulate(count for _, count in counts)
    return tuple(
        Segment(kind, end - count, end) for (kind, count), end in zip(counts, ends, strict=True) if kind != "marker"
    )


def _end_tokens(pieces: Sequence[str], text: str, ending: Ending) -> int:
    """How many tokens at the end are none of the text's: an end token, or those of a stop text."""
    if not ending or not pieces:
        return 0
    last, shown = pieces[-1], text.strip(SPACE)
    if ending == "text":
        return _after(pieces, shown)
    if last and text.endswith(last):
        return 0
    if last and (ending == "token" or not last.strip(SPACE)):
        return int(ending == "token")
    before = next((piece for piece in reversed(pieces[:-1]) if piece.strip(SPACE)), "").rstrip(SPACE)
    return int(bool(before) and shown.endswith(before))


def _after(pieces: Sequence[str], shown: str) -> int:
    """How many tokens at the end begin after the text that is shown."""
    raw = "".join(pieces)
    lead = len(raw) - len(raw.lstrip(SPACE))
    place = lead if raw.startswith(shown, lead) else raw.rfind(shown)
    if not shown or place < 0:
        return 0
    count, begin = 0, len(raw)
    while count < len(pieces) and begin - len(pieces[-1 - count]) >= place + len(shown):
        count += 1
        begin -= len(pieces[-count])
    return count


def _stands_alone(raw: str) -> bool:
    """Whether an end of thinking that nothing opened is one, and not the name of a tag that the answer speaks of."""
    place, mark = min((place, mark) for mark in CLOSINGS if (place := raw.find(mark)) >= 0)
    quoted = any(0 <= raw.find(opening) < place for opening in _PAIRS)
    before, after = raw[:place], raw[place + len(mark) :]
    beside = before[-1:] not in (" ", "`", "'", '"', "(") and after[:1] not in (" ", "`", "'", '"', ")", ",", ".")
    return beside and not quoted


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


def check_segments(given: Sequence[Segment], tokens: int) -> tuple[Segment, ...]:
    """The segments, where they are of known kinds, in order and within so many tokens. Raises `InvalidResponse`."""
    end = 0
    for segment in given:
        if segment.kind not in get_args(SegmentKind) or not end <= segment.start <= segment.end <= tokens:
            raise InvalidResponse(
                f"a segment is {segment.kind!r} from token {segment.start} to {segment.end}; expected thinking, answer"
                f" or tool, in order and within the {tokens} tokens that came"
            )
        end = segment.end
    return tuple(given)
