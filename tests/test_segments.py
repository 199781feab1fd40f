"""Where thinking ends, token by token: however a text is split, what counts on either side is the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.segments import (
    CLOSINGS,
    OPENINGS,
    SPACE,
    KindReader,
    check_segments,
    ending_of,
    locate,
)
from metaprobe.records.types import Segment


def kinds(pieces: list[str], *, opened: bool = False) -> list[str]:
    reader = KindReader(opened=opened)
    found = [kind for piece in pieces for kind in reader.push(piece)]
    return [*found, *reader.close()]


def test_a_token_waits_only_as_long_as_it_may_begin_a_marker() -> None:
    reader = KindReader()
    assert [reader.push(piece) for piece in ("<", "th", "is")] == [[], [], ["answer"] * 3]
    reader = KindReader(opened=True)
    assert [reader.push(piece) for piece in ("Hm", ".", "\n", "</", "think>", "\n", "So")] == [
        ["thinking"],
        ["thinking"],
        [],
        [],
        ["marker"] * 3,
        ["marker"],
        ["answer"],
    ]


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ("so 4.\n</think>\n\nFour.", True),
        ("The tag `</think>` ends it.", False),
        ("Write <think>a</think> then b.", False),
        ("one </think> two", False),
    ],
)
def test_an_end_that_nothing_opened_ends_thinking_unless_it_is_spoken_of(text: str, opened: bool) -> None:
    parts = locate(list(text), text)
    assert bool(parts.segments) == opened
    assert opened or "taken for words of the answer" in parts.note or "<think>" in text


ENDS = dict(zip(OPENINGS, CLOSINGS, strict=False))
TURNS = ("<|channel|>", "<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>")


def from_the_whole(text: str, *, opened: bool) -> list[str]:
    """Returns the kind of each character of a whole text, read from left to right with all of it at hand."""
    found: list[str] = []

    def take(upto: int, kind: str) -> None:
        found.extend([kind] * (upto - len(found)))

    def skip_blanks() -> None:
        take(len(text) - len(text[len(found) :].lstrip(SPACE)), "edge")

    begin = len(text) - len(text.lstrip(SPACE))
    mark = "" if opened else next((mark for mark in OPENINGS if text.startswith(mark, begin)), "")
    if not opened and not mark:
        return ["answer"] * len(text)
    take(0 if opened else begin + len(mark), "marker")
    kind, ends = "thinking", CLOSINGS if opened else (ENDS.get(mark, ""),)
    while True:
        if mark in TURNS:
            head = len(found) - len(mark)
            end = text.find("<|message|>", len(found))
            if end < 0:
                take(len(text), "marker")
                return found
            take(end + len("<|message|>"), "marker")
            name, ends = text[head:end], TURNS
            channel = name.rpartition("<|channel|>")[2]
            tool = " to=" in name or channel.startswith("commentary")
            kind = "tool" if tool else "answer" if channel.startswith("final") else "thinking"
        skip_blanks()
        places = [(place, end) for end in ends if (place := text.find(end, len(found))) >= 0]
        if not places:
            begun = max((n for end in ends for n in range(len(end)) if text.endswith(end[:n], len(found))), default=0)
            body = max(len(found), len(text[: len(text) - begun].rstrip(SPACE)))
            take(body, kind)
            take(len(text), "marker" if kind == "thinking" else kind)
            return found
        place, mark = min(places)
        take(max(len(found), len(text[:place].rstrip(SPACE))), kind)
        take(place, "edge")
        take(place + len(mark), "marker")
        if mark not in TURNS:
            skip_blanks()
            take(len(text), "answer")
            return found


BITS = (
    *OPENINGS,
    *CLOSINGS,
    *TURNS,
    "<|message|>",
    "final",
    "commentary",
    " to=",
    " ",
    "\n\n",
    "a",
    "<",
    "<|",
    "</th",
    "|>",
)


@given(st.lists(st.sampled_from(BITS), max_size=14), st.booleans(), st.data())
def test_token_by_token_the_kinds_are_those_of_the_whole_text(
    bits: list[str], opened: bool, data: st.DataObject
) -> None:
    text = "".join(bits)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=30)))
    pieces = [piece for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) if (piece := text[a:b])]
    expected, at, told_of = [], 0, from_the_whole(text, opened=opened)
    for piece in pieces:
        sides = set(told_of[at : at + len(piece)]) - {"edge"}
        expected.append(sides.pop() if len(sides) == 1 else "marker")
        at += len(piece)
    assert kinds(pieces, opened=opened) == expected


# ---- the end of an answer


@pytest.mark.parametrize(
    ("pieces", "text", "choice", "kept"),
    [
        (["4", ".", "<eot>"], "4.", {"stop_reason": None}, 2),
        (["4", ".", "<eot>"], "4.", {"matched_stop": 7}, 2),
        (["4", ".", "<eot>"], "4.", {}, 2),
        (["4", ".", ""], "4.", {}, 2),  # llama.cpp
        (["4", ".", "</s>"], "4.", {"finish_reason": None}, 2),  # by its look
        (["4", ".", "\n"], "4.", {}, 3),  # stripped by the server, and no end token
        (["4", "."], "4.", {"stop_reason": None}, 2),
        (["4", ".\n", "Q", ":", "x"], "4.\n", {"stop_reason": "Q:"}, 2),
        (["4", ".Q", ":"], "4.", {"stop_reason": "Q:"}, 2),  # the token that holds both stays
        (["4", "."], "4.", {"finish_reason": "length"}, 2),
        (["", "", ""], "4.", {}, 3),  # no token has a text
    ],
)
def test_what_only_ended_an_answer_is_left_out(
    pieces: list[str], text: str, choice: dict[str, object], kept: int
) -> None:
    said = {"finish_reason": "stop", **choice}
    parts = locate(pieces, text, ending=ending_of(said["finish_reason"], said))
    assert (parts.kept_count, parts.segments) == (kept, ())


def test_where_a_stop_text_cannot_be_told_from_the_answer_all_is_scored_and_said() -> None:
    parts = locate(["4", "2", "END"], "43", ending="text")
    assert (parts.kept_count, parts.segments) == (3, ())
    assert parts.note == "which of the last tokens are of the stop text is not known, and all are scored"
    assert locate(["4", "2", "END"], "42", ending="text").note == ""
    assert locate(["4", "2", "END"], "42", ending="text").kept_count == 2


def test_of_two_ends_of_thinking_the_answer_that_is_shown_decides() -> None:
    pieces = ["</think>", "Hm", ".", "</think>", "four", "."]
    parts = locate(pieces, "four.", "Hm.")
    assert parts.segments == (Segment("answer", 4, 6),)
    assert "before the answer that is shown" in parts.note
    other = locate(["<think>", "Hm", "</think>", "five"], "four.", "Hm")
    assert other.segments == (Segment("thinking", 1, 2), Segment("answer", 3, 4))
    assert "of other words than the answer that is shown" in other.note


@pytest.mark.parametrize(
    "segments",
    [
        [Segment("answer", 2, 1)],
        [Segment("answer", 0, 5)],
        [Segment("thinking", 0, 2), Segment("answer", 1, 3)],
        [Segment("doubt", 0, 1)],  # type: ignore[arg-type]
    ],
)
def test_segments_outside_of_the_tokens_or_of_unknown_kinds_are_refused(segments: list[Segment]) -> None:
    with pytest.raises(InvalidResponse, match="expected thinking, answer or tool, in order and within the 4 tokens"):
        check_segments(segments, 4)
