"""Reads texts in time that grows with the text and not with its square; tells whether tokens spell an answer's text.

Servers drop, shift and replace log-probabilities. Then a number comes out that is of other words than the answer's, so
tokens are laid along the text before they are scored. Several spellings of the same token are in use, and all are read:
its text; its UTF-8 bytes; byte-level BPE (`Ġ`, GPT-2's table); SentencePiece (`▁`, `<0xE2>`); WordPiece (`##`); `</w>`;
`bytes:\\xe2`. What a token does not say (U+FFFD, an empty piece, `token_id:7`) may stand for a part of the text.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
    for match in pattern.finditer(text):
        before = text[done : match.start()]
        last = _WORD_CHARACTER.search(before[::-1])
        marks = done + len(before) - last.start() if last else done  # where they may begin
        newline = marks - 1 if text[marks - 1 : marks] == "\n" else text.find("\n", marks, match.start())
        yield (0 if not marks else newline + 1 if newline >= 0 else match.start()), match
        done = match.end()


def last_place(text: str, part: str) -> int:
    """Returns the last place of `part` in the text; -1 where the text does not hold it.

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


UNSAID = "\ufffd"
"""Stands for a part of a character, as decoders write it."""
_ANY = "\ufffe"
"""Stands, here, for a token that names only its id. It is no character, so no text holds it."""
_HALVES = re.compile("[\ud800-\udfff]")
_HOLES = re.compile(f"([{UNSAID}{_ANY}]+)")
_CHARACTERS_A_PART = 1
"""How many characters a U+FFFD or an empty piece may stand for. Bytes that are no whole character come several a
character."""
_CHARACTERS_AN_ID = 64
"""How many characters a token that names only its id may stand for: more than the longest common token has."""

_ID = re.compile(r"token_id:\d+")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")
_SPECIAL = re.compile(r"<[^<>\s]{1,60}>|\[[A-Z][A-Z_]{1,30}\]")
"""Control tokens by their look: servers leave them out of the text, wherever they stand."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """How far the tokens spell the text."""

    missing: str = ""
    """The part of the text that no token spells, from the first difference; empty where they spell all of it."""
    other: str = ""
    """The words that the tokens spell in its place; empty where they only leave something out."""
    more: bool = False
    """Whether the tokens spell all of the text, and words beyond it."""

    @property
    def all(self) -> bool:
        """Whether the tokens spell all of the text and nothing else."""
        return not (self.missing or self.other or self.more)


def names_tokens(pieces: Iterable[str]) -> bool:
    """Whether at least one token says a part of the text. Without that there is nothing to hold against the text."""
    return any(piece and not _ID.fullmatch(piece) for piece in pieces)


def spelled(pieces: Sequence[str], text: str, byte_rows: Sequence[bytes | None] = ()) -> Spelled:
    """Returns how far the tokens spell the text. White space is not compared; Unicode is compared in NFC, then NFKC.

    `byte_rows`: the bytes of each token where the server gives them, else empty.
    """
    wanted = _bare(text)
    worst: Spelled | None = None
    for reading in _readings(pieces, byte_rows):
        compared = _compare(_bare(reading), wanted)
        if compared.all:
            return compared
        folded = _compare(_bare(normalize("NFKC", reading)), _bare(normalize("NFKC", text)))
        if folded.all:
            return folded
        if worst is None or (compared.more and not worst.more):
            worst = compared
    assert worst is not None
    return worst


def _bare(text: str) -> str:
    """The text in NFC without white space, and without half surrogate pairs, which are no characters."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # two halves make a character
    return "".join(_HALVES.sub("", normalize("NFC", whole)).split())


def _readings(pieces: Sequence[str], byte_rows: Sequence[bytes | None]) -> Iterator[str]:
    """Yields what the tokens may say, by each way of spelling; the likeliest ways first."""
    plain = ["" if _SPECIAL.fullmatch(piece) and not _BYTE.fullmatch(piece) else piece for piece in pieces]
    for given in dict.fromkeys((tuple(pieces), tuple(plain))):
        yield "".join(_unsaid(piece) or piece for piece in given)
        yield _decoded(_as_bytes(piece) for piece in given)
        yield _decoded(_from_byte_level(piece) for piece in given)
    if byte_rows and any(row is not None for row in byte_rows):
        rows = list(byte_rows)
        yield _decoded(_as_bytes(p) if r is None else r for p, r in zip(pieces, rows, strict=True))
        yield _decoded(_as_bytes(p) if r is None or not p else r for p, r in zip(plain, rows, strict=True))


def _unsaid(piece: str) -> str:
    """Returns the sign for a token that does not say its text; empty for any other token."""
    return UNSAID if not piece else _ANY if _ID.fullmatch(piece) else ""


def _decoded(rows: Iterable[bytes]) -> str:
    return b"".join(rows).decode("utf-8", "replace")


def _as_bytes(piece: str) -> bytes:
    """The bytes of a token that is spelled as text, as SentencePiece or WordPiece spell it, or by its bytes."""
    if hole := _unsaid(piece):
        return hole.encode()
    if byte := _BYTE.fullmatch(piece):
        return bytes((int(byte[1], 16),))
    if piece.startswith("bytes:"):
        raw = piece.removeprefix("bytes:").encode("utf-8", "surrogatepass")
        return _ESCAPED.sub(lambda escaped: bytes((int(escaped[1], 16),)), raw)
    bare = piece.removeprefix("##") if len(piece) > 2 else piece
    return bare.removesuffix("</w>").replace("▁", " ").encode("utf-8", "replace")


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTE_LEVEL = {chr(byte): byte for byte in _PRINTABLE}
_BYTE_LEVEL |= {chr(code): byte for code, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)), 256)}
"""Character to byte: printable bytes of Latin-1 stand for themselves, the others follow from U+0100 on."""


def _from_byte_level(piece: str) -> bytes:
    """The bytes of a token in the spelling of byte-level BPE, whose every byte is one printable character."""
    if hole := _unsaid(piece):
        return hole.encode()
    if all(character in _BYTE_LEVEL for character in piece):
        return bytes(_BYTE_LEVEL[character] for character in piece)
    return piece.encode("utf-8", "replace")


def _compare(reading: str, wanted: str) -> Spelled:
    """Lays a reading without white space along the text. A hole takes the fewest characters that let the rest fit."""
    if reading == wanted:
        return Spelled()
    place = 0
    hole = ""
    for number, part in enumerate(_HOLES.split(reading)):
        if number % 2:
            hole = part
            continue
        if not part and hole:
            continue
        start = place
        if hole:  # takes as few characters as let the part fit
            start = wanted.find(part, place, place + _room(hole) + len(part))
        if start < 0 or not wanted.startswith(part, start) or not _fits(wanted[place:start], hole):
            rest = wanted[place:]
            if part.startswith(rest) or (not place and rest in part):
                return Spelled(more=True)
            pairs = enumerate(zip(part, rest, strict=False))
            shared = next((i for i, (a, b) in pairs if a != b), min(len(part), len(rest)))
            left_out = rest.find(part[shared:], shared) >= 0
            return Spelled(missing=rest[shared:], other="" if left_out else part[shared:])
        place, hole = start + len(part), ""
    if _fits(wanted[place:], hole):
        return Spelled()
    return Spelled(missing=wanted[place:])


def _room(hole: str) -> int:
    return hole.count(UNSAID) * _CHARACTERS_A_PART + hole.count(_ANY) * _CHARACTERS_AN_ID


def _fits(skipped: str, hole: str) -> bool:
    """Whether a hole may stand for these characters: parts of characters are never of ASCII."""
    return len(skipped) <= _room(hole) and (_ANY in hole or not any(map(str.isascii, skipped)))
