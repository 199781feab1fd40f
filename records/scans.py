"""Parts of readers whose time grows with the text and not with its square, whatever a model or a caller wrote."""

import re
import unicodedata
from collections.abc import Iterator

AT_LINE = r"^[^\w\n]*+"
"""Begins a pattern (with `re.MULTILINE`) whose first word is the first of its line. `^\\W*` would find the same, and
try again from every empty line before it."""

MOST_DIGITS = 1000
"""Digits of a number that are read. Python refuses to read more than 4,300, and none that is meant has so many."""

MOST_MARKS = 30
"""Combining marks that one letter may bear, as in Unicode's stream-safe text; sorting more takes the square of their
number."""

_WORD_CHARACTER = re.compile(r"\w")
_MAY_BE_MARKS = re.compile(rf"[^\w\x00-\x7f]{{{MOST_MARKS + 1}}}")
_SPLIT_INTO_MARKS = "\u0f73\u0f75\u0f81"
"""Letters of no combining class that consist of marks alone."""


def line_matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """The matches of a pattern that begins with `AT_LINE`, each with where it begins.

    Lines before it that hold nothing but marks and blanks belong to it.
    """
    done = 0
    for found in pattern.finditer(text):
        before = text[done : found.start()]
        last = _WORD_CHARACTER.search(before[::-1])
        marks = done + len(before) - last.start() if last else done  # where they may begin
        newline = marks - 1 if text[marks - 1 : marks] == "\n" else text.find("\n", marks, found.start())
        yield (0 if not marks else newline + 1 if newline >= 0 else found.start()), found
        done = found.end()


def last_place(text: str, part: str) -> int:
    """Where `part` stands last in the text; -1 where it does not.

    `str.rfind` takes the product of both lengths for a part such as "ab" and many a's; `str.find` does not.
    """
    place = text[::-1].find(part[::-1])
    return place if place < 0 else len(text) - place - len(part)


def read_int(digits: str) -> int:
    """The whole number that the first `MOST_DIGITS` of these digits make, those without leading zeros."""
    return int(digits.lstrip("0")[:MOST_DIGITS] or "0")


def normalize(form: "unicodedata._NormalizationForm", text: str) -> str:
    """The text in a normal form of Unicode, with `MOST_MARKS` combining marks a letter at most."""
    if text.isascii():
        return text
    if not _MAY_BE_MARKS.search(text):  # of marks alone no letter consists
        return unicodedata.normalize(form, text)
    kept, marks = [], 0
    for character in text:
        marks = marks + 1 if unicodedata.combining(character) or character in _SPLIT_INTO_MARKS else 0
        if marks <= MOST_MARKS:
            kept.append(character)
    return unicodedata.normalize(form, "".join(kept))
