"""Where thinking ends and the answer begins, in the tokens of a reasoning model.

Boundaries are found by markers among the tokens (`<think>`, `</think>`, harmony's channels), or by the texts that a
server has separated. A token that holds part of a marker belongs to neither side, and so does white space beside one:
servers strip it or do not, and the same tokens must have the same segments behind every server.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import Literal, get_args

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import Segment, SegmentKind

SPACE = " \t\r\n"
"""White space of ASCII only, so that bytes may be read one character a byte."""

_HARMONY = tuple(f"<|{name}|>" for name in ("channel", "start", "end", "return", "call", "constrain"))
MESSAGE = "<|message|>"
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
_AT_MARKS = re.compile("(" + "|".join(map(re.escape, (*_PAIRS, *CLOSINGS, *_HARMONY, MESSAGE))) + ")")

Kind = SegmentKind | Literal["marker"]
"""What a token belongs to; a marker is of no segment."""


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
        # What may have begun the end of the thinking, when the answer was cut, counts for neither side.
        unsaid = self._state == "header" or (self._state == "inside" and self._kind == "thinking")
        self._give(len(self._text), "marker" if unsaid else self._kind)
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
        place = self._text.find(MESSAGE)
        taken = len(self._text) - _begun(self._text, (MESSAGE,)) if place < 0 else place + len(MESSAGE)
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
            # Before all others it stands with what follows.
            self._latest = self._latest or ("marker" if self._spans and self._spans[0][1] == "marker" else self._kind)
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


def marked(pieces: Iterable[str], *, opened: bool = False) -> tuple[Segment, ...]:
    """The segments that markers among the tokens tell; empty where all tokens are of the answer."""
    reader, kinds = KindReader(opened=opened), []
    for piece in pieces:
        kinds += reader.push(piece)
    return runs_of([*kinds, *reader.close()])


def ends_unopened(raw: str) -> bool:
    """Whether thinking ends here that was opened in the prompt, and no tag is meant that the answer speaks of."""
    places = [(place, mark) for mark in CLOSINGS if (place := raw.find(mark)) >= 0]
    if not places or raw.lstrip(SPACE).startswith(OPENINGS):
        return False
    if len(places) > 1 or raw.count(places[0][1]) > 1:
        return False
    place, mark = places[0]
    quoted = any(0 <= raw.find(opening) < place for opening in _PAIRS)
    before, after = raw[:place], raw[place + len(mark) :]
    beside = before[-1:] not in (" ", "`", "'", '"', "(") and after[:1] not in (" ", "`", "'", '"', ")", ",", ".")
    return beside and not quoted


def spoken_text(shown: str) -> str:
    """The text without the thinking that it begins with, if any; empty where it only thinks."""
    return text_of(shown, "answer")


def text_of(shown: str, kind: SegmentKind) -> str:
    """What of the text is of that kind; all of it is of the answer where it shows no thinking."""
    opened = ends_unopened(shown)
    if not opened and not shown.lstrip(SPACE).startswith(OPENINGS):
        return shown if kind == "answer" else ""
    pieces = _AT_MARKS.split(shown)
    segments = marked(pieces, opened=opened)
    return "".join("".join(pieces[s.start : s.end]) for s in segments if s.kind == kind).strip(SPACE)


def runs_of(kinds: Sequence[Kind]) -> tuple[Segment, ...]:
    """The segments of tokens of these kinds; empty where all are of the answer."""
    if all(kind == "answer" for kind in kinds):
        return ()
    counts = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    ends = accumulate(count for _, count in counts)
    return tuple(
        Segment(kind, end - count, end) for (kind, count), end in zip(counts, ends, strict=True) if kind != "marker"
    )


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
