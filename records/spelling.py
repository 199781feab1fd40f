r"""Reads texts in linear time, and checks whether tokens spell an answer's text.

Servers drop, shift and replace log-probabilities. A number would then belong to other words than the answer's, so
tokens are aligned with the text before they are scored. The same token has several spellings, and all are read: its
text; its UTF-8 bytes; byte-level BPE (`Ġ`, GPT-2's table); SentencePiece (`▁`, `<0xE2>`); WordPiece (`##`); `</w>`;
`bytes:\\xe2`. A token without a readable text (U+FFFD, an empty piece, `token_id:7`) may stand for a part of the text.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

AT_LINE = r"^[^\w\n]*+"
"""Beginning of a pattern (with `re.MULTILINE`) whose first word is the first of its line.

`^\\W*` would match the same, but try again from every empty line before it.
"""

MAX_READ_DIGITS = 1000
"""Most digits of a number that are read. Python refuses more than 4,300, and no real answer has so many."""

MOST_MARKS = 30
"""Most combining marks on one letter, as in Unicode's stream-safe text. Sorting takes the square of their number."""

_WORD_CHARACTER = re.compile(r"\w")
_MAY_BE_MARKS = re.compile(rf"[^\w\x00-\x7f]{{{MOST_MARKS + 1}}}")
_SPLIT_INTO_MARKS = "\u0f73\u0f75\u0f81"
"""Tibetan vowel signs whose own combining class is 0, and which normalisation splits into combining marks."""


def line_matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Yields the matches of a pattern that begins with `AT_LINE`, each with the index where the match begins.

    Lines before a match that hold only marks and blanks belong to the match.
    """
    done_to = 0
    for match in pattern.finditer(text):
        before = text[done_to : match.start()]
        last_word_character = _WORD_CHARACTER.search(before[::-1])
        marks_start = (
            done_to + len(before) - last_word_character.start() if last_word_character else done_to
        )  # where they may begin
        newline = (
            marks_start - 1
            if text[marks_start - 1 : marks_start] == "\n"
            else text.find("\n", marks_start, match.start())
        )
        yield (0 if not marks_start else newline + 1 if newline >= 0 else match.start()), match
        done_to = match.end()


def last_index(text: str, part: str) -> int:
    """Returns the character index of the last `part` in the text; -1 if the text does not hold it.

    For a part such as "ab" and a text of many a's, `str.rfind` takes time in proportion to the product of both lengths.
    `str.find` does not.
    """
    reversed_start = text[::-1].find(part[::-1])
    return reversed_start if reversed_start < 0 else len(text) - reversed_start - len(part)


def read_int(digits: str) -> int:
    """Returns the whole number of the first `MAX_READ_DIGITS` digits, without leading zeros."""
    return int(digits.lstrip("0")[:MAX_READ_DIGITS] or "0")


def normalize(form: "unicodedata._NormalizationForm", text: str) -> str:
    """Returns the text in a normal form of Unicode, with at most `MOST_MARKS` combining marks a letter."""
    if text.isascii():
        return text
    if not _MAY_BE_MARKS.search(text):  # without a long run of such characters, no letter has too many marks
        return unicodedata.normalize(form, text)
    characters, marks = [], 0
    for character in text:
        marks = marks + 1 if unicodedata.combining(character) or character in _SPLIT_INTO_MARKS else 0
        if marks <= MOST_MARKS:
            characters.append(character)
    return unicodedata.normalize(form, "".join(characters))


UNSAID = "\ufffd"
"""The character for a part of a character, as decoders write it."""
_UNKNOWN_TOKEN = "\ufffe"
"""The character that stands here for a token that names only its id. No text holds it."""
_HALVES = re.compile("[\ud800-\udfff]")
_HOLES = re.compile(f"([{UNSAID}{_UNKNOWN_TOKEN}]+)")
_CHARACTERS_A_PART = 1
"""Most characters that a U+FFFD or an empty piece may stand for. Partial bytes come several a character."""
_CHARACTERS_AN_ID = 64
"""Most characters that a token with only an id may stand for: more than the longest common token has."""

_ID_MARK = "token_id:"
_ID = re.compile(rf"{_ID_MARK}\d+")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")
_SPECIAL = re.compile(r"<[^<>\s]{1,60}>|\[[A-Z][A-Z_]{1,30}\]")
"""Matches control tokens by their look. Servers leave them out of the text everywhere."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """How much of the text the tokens spell."""

    missing: str = ""
    """The part of the text that no token spells, from the first difference; empty if the tokens spell all of it."""
    other_text: str = ""
    """The words that the tokens spell instead; empty if the tokens only leave something out."""
    has_more: bool = False
    """Whether the tokens spell all of the text, and more words."""
    only_marks: bool = False
    """Whether only marks without meaning at the end of the text are missing."""

    @property
    def all(self) -> bool:
        """Whether the tokens spell all of the text and nothing else."""
        return not (self.missing or self.other_text or self.has_more)


def names_tokens(pieces: Iterable[str]) -> bool:
    """Returns whether at least one token shows a part of the text. Otherwise nothing can be compared with the text."""
    return any(piece and not _ID.fullmatch(piece) for piece in pieces)


def spelled(pieces: Sequence[str], text: str, byte_rows: Sequence[bytes | None] = ()) -> Spelled:
    """Returns how much of the text the tokens spell.

    White space is not compared. Unicode is compared in NFC, then in NFKC.

    Args:
        pieces: texts of the tokens.
        text: the answer's text.
        byte_rows: bytes of each token, if the server gives them; else empty.
    """
    bare_text = _without_white_space(text)
    worst: Spelled | None = None
    marks_only: Spelled | None = None
    for reading in _readings(pieces, byte_rows):
        compared = _compare(_without_white_space(reading), bare_text)
        if compared.all:
            return compared
        folded = _compare(
            _without_white_space(normalize("NFKC", reading)), _without_white_space(normalize("NFKC", text))
        )
        if folded.all:
            return folded
        if worst is None or (compared.has_more and not worst.has_more):
            worst = compared
        if marks_only is None:
            marks_only = next((reading for reading in (compared, folded) if _lacks_marks_alone(reading, text)), None)
    assert worst is not None
    return worst if marks_only is None else replace(marks_only, only_marks=True)


_SENTENCE_ENDS = frozenset(".…!?‼‽⁇⁈⁉。．｡！？।॥۔؟։።။។")
_CLOSING_QUOTES = {
    '"': '"', "'": "'", "”": "“„", "“": "„", "’": "‘‚", "‘": "‚", "»": "«", "«": "»", "›": "‹", "‹": "›",
    "」": "「", "』": "『", "》": "《", "〉": "〈",
}  # fmt: skip
"""Maps a closing quotation mark to the marks that open its quotation."""
_END_MARKS = _SENTENCE_ENDS | _CLOSING_QUOTES.keys()
"""Characters without meaning at the end of a text: sentence ends and closing quotation marks.

Every other character has meaning: letters, digits, signs, brackets, commas.
"""
_FACTORIALS = frozenset("!‼！")
_MOST_END_MARKS = 8
"""Most marks at the end of a text that may be missing. A text that ends in more of them is a text of marks."""
_AT_THE_END = "".join(_END_MARKS) + "".join(filter(str.isspace, map(chr, range(0x3001))))
"""End marks and white space."""


def without_end_marks(text: str) -> Iterator[str]:
    """Yields the text, and then the text with one mark less at its end each time, while these marks have no meaning.

    After a number or a variable of one letter marks have meaning: 5! is a factorial, f' a derivative, 6" a length, and
    the dots of 0.33... are more digits.
    """
    yield text
    core, shortened, marks = text.rstrip(_AT_THE_END), text.rstrip(), ""
    are_letters = [letter.isalpha() for letter in core[-2:]]
    is_word = are_letters == [True, True] or (are_letters[-1:] == [True] and core[-1].lower() == core[-1].upper())
    while core and len(shortened) > len(core) and len(marks) < _MOST_END_MARKS:
        marks, shortened = shortened[-1] + marks, shortened[:-1].rstrip()
        if not is_word and ("…" in marks or ".." in marks or not _FACTORIALS.isdisjoint(marks)):
            return
        if not is_word and marks[0] in _CLOSING_QUOTES and not _is_open(marks[0], shortened):
            return
        yield shortened


def _is_open(mark: str, before: str) -> bool:
    """Returns whether the text before a closing quotation mark opens the quotation that the mark ends."""
    if mark in "\"'":
        return before.count(mark) % 2 == 1
    return any(opening in before for opening in _CLOSING_QUOTES[mark])


def _lacks_marks_alone(compared: Spelled, text: str) -> bool:
    """Returns whether only marks without meaning at the end of the text are missing."""
    if not compared.missing or compared.other_text or len(compared.missing) > _MOST_END_MARKS:
        return False
    form: unicodedata._NormalizationForm
    for form in ("NFC", "NFKC"):
        whole_text = normalize(form, text)
        bare = _without_white_space(whole_text)
        kept_length = len(bare) - len(compared.missing)
        if bare.endswith(compared.missing) and kept_length:
            return any(len(_without_white_space(cut)) == kept_length for cut in without_end_marks(whole_text))
    return False


def _without_white_space(text: str) -> str:
    """Returns the text in NFC without white space, and without halves of surrogate pairs."""
    if text.isascii():
        return "".join(text.split())
    joined_halves = text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "surrogatepass"
    )  # two halves make a character
    return "".join(_HALVES.sub("", normalize("NFC", joined_halves)).split())


def _readings(pieces: Sequence[str], byte_rows: Sequence[bytes | None]) -> Iterator[str]:
    """Yields the texts that the tokens may spell, one for each way of spelling, the likeliest ways first."""
    readable = list(pieces)
    if "" in readable or _ID_MARK in "".join(readable):
        readable = [UNSAID if not piece else _UNKNOWN_TOKEN if _ID.fullmatch(piece) else piece for piece in readable]
    yield from _by_each_table(readable)
    is_shown_list = list(map(bool, pieces))
    if _SPECIAL.search("".join(pieces)):  # control tokens are left out, as servers do
        is_shown_list = [
            piece != "" and (not _SPECIAL.fullmatch(piece) or bool(_BYTE.fullmatch(piece))) for piece in pieces
        ]
        yield from _by_each_table(
            [piece if is_shown else UNSAID for piece, is_shown in zip(readable, is_shown_list, strict=True)]
        )
    if any(row is not None for row in byte_rows):
        token_bytes = [
            bytes_by_text if row_bytes is None else row_bytes
            for bytes_by_text, row_bytes in zip(_as_bytes(readable), byte_rows, strict=True)
        ]
        yield _decoded(token_bytes)
        if not all(is_shown_list):
            hole = UNSAID.encode()
            yield _decoded(
                [row if is_shown else hole for row, is_shown in zip(token_bytes, is_shown_list, strict=True)]
            )


def _by_each_table(pieces: list[str]) -> Iterator[str]:
    """Yields the joined tokens, then the texts by the tables of tokenizers whose signs the tokens hold."""
    joined_pieces = "".join(pieces)
    yield joined_pieces
    if any(sign in joined_pieces for sign in _SIGNS):
        yield _decoded(_as_bytes(pieces))
    if not joined_pieces.isascii():
        yield _decoded(_from_byte_level(pieces))


def _decoded(rows: Iterable[bytes]) -> str:
    return b"".join(rows).decode("utf-8", "replace")


_SIGNS = ("▁", "<0x", "bytes:", "##", "</w>")
"""Signs of SentencePiece, of tokens spelled by their bytes, of WordPiece and of BPE with word ends."""


def _as_bytes(pieces: Iterable[str]) -> list[bytes]:
    """Returns the bytes of tokens that are spelled as text, as in SentencePiece or WordPiece, or by their bytes.

    Only tokens that are spelled by their bytes need a function call each.
    """
    return [
        _from_escapes(piece)
        if piece.startswith(("<0x", "bytes:"))
        else (piece.removeprefix("##") if len(piece) > 2 else piece)
        .removesuffix("</w>")
        .replace("▁", " ")
        .encode("utf-8", "replace")
        for piece in pieces
    ]


def _from_escapes(piece: str) -> bytes:
    r"""Returns the bytes of a token such as `<0xE2>` or `bytes:\\xe2\\x80`."""
    if byte := _BYTE.fullmatch(piece):
        return bytes((int(byte[1], 16),))
    if piece.startswith("<"):
        return piece.replace("▁", " ").encode("utf-8", "replace")
    raw = piece.removeprefix("bytes:").encode("utf-8", "surrogatepass")
    return _ESCAPED.sub(lambda escaped: bytes((int(escaped[1], 16),)), raw)


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTE_LEVEL = {chr(byte): byte for byte in _PRINTABLE}
_BYTE_LEVEL |= {chr(code): byte for code, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)), 256)}
"""Maps characters to bytes: printable bytes of Latin-1 map to themselves, the others follow from U+0100 on."""
_BYTE_LEVEL_SIGNS = frozenset(_BYTE_LEVEL)
_TO_LATIN_1 = str.maketrans(_BYTE_LEVEL)


def _from_byte_level(pieces: Iterable[str]) -> list[bytes]:
    """Returns the bytes of tokens in the spelling of byte-level BPE, where each byte is one printable character."""
    return [
        piece.translate(_TO_LATIN_1).encode("latin-1")
        if _BYTE_LEVEL_SIGNS.issuperset(piece)
        else piece.encode("utf-8", "replace")
        for piece in pieces
    ]


def _compare(reading: str, text: str) -> Spelled:
    """Aligns a reading without white space with the text. A hole takes the fewest characters that let the rest fit."""
    if reading == text:
        return Spelled()
    position = 0
    hole = ""
    for part_index, part in enumerate(_HOLES.split(reading)):
        if part_index % 2:
            hole = part
            continue
        if not part and hole:
            continue
        start = position
        if hole:  # the hole takes as few characters as possible
            start = text.find(part, position, position + _max_characters(hole) + len(part))
        if start < 0 or not text.startswith(part, start) or not _fits(text[position:start], hole):
            remaining_text = text[position:]
            if part.startswith(remaining_text) or (not position and remaining_text in part):
                return Spelled(has_more=True)
            pairs = enumerate(zip(part, remaining_text, strict=False))
            equal_length = next((i for i, (a, b) in pairs if a != b), min(len(part), len(remaining_text)))
            is_only_left_out = remaining_text.find(part[equal_length:], equal_length) >= 0
            return Spelled(
                missing=remaining_text[equal_length:], other_text="" if is_only_left_out else part[equal_length:]
            )
        position, hole = start + len(part), ""
    if _fits(text[position:], hole):
        return Spelled()
    return Spelled(missing=text[position:])


def _max_characters(hole: str) -> int:
    return hole.count(UNSAID) * _CHARACTERS_A_PART + hole.count(_UNKNOWN_TOKEN) * _CHARACTERS_AN_ID


def _fits(skipped: str, hole: str) -> bool:
    """Returns whether a hole may stand for these characters. Parts of characters are never ASCII."""
    return len(skipped) <= _max_characters(hole) and (_UNKNOWN_TOKEN in hole or not any(map(str.isascii, skipped)))
