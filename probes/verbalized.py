"""Reads a confidence or a difficulty out of what a model said. Nothing stated is None, and nothing is guessed.

How a number is read, with `scale=100`:

| written | read as | because |
|---|---|---|
| `85%`, `85 percent` | 0.85 | it says so |
| `8/10`, `8 out of 10`, `eight out of ten` | 0.8 | it says so |
| `0.85`, `1.0`, `.5` | 0.85, 1, 0.5 | with a decimal point and at most 1 it is a fraction already, whatever the scale |
| `85`, `85.5`, `1` | 0.85, 0.855, 0.01 | a bare number is of `scale`, or of the one the text names: `(0-10)` |
| `-5`, `150`, `11/10`, `80-90` | None | outside of [0, 1], or a range |

A number counts if it follows the name of the quantity (`Confidence: 85`, `{"confidence": 85}`). Without such a number,
one right before the name counts (`85% sure`), and else the only number of the text. If several numbers count and
differ, the result is None.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORD_RATIO = re.compile(rf"\b({'|'.join(_NUMBER_WORDS)}) out of ({'|'.join(_NUMBER_WORDS)})\b")
_ZERO_TO = r"(?:from )?[01](?:\.0+)?\s?(?:-|–|to)\s?([0-9]{1,4})(?:\.0+)?%?"
_STATED_SCALE = re.compile(rf"scale (?:of |from )?{_ZERO_TO}|[(\[]{_ZERO_TO}[)\]]")
_PLAIN_NUMBER = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
# A number that is no part of a word, a version or another number; perhaps with what it is out of, or as a range.
_NUMBER = (
    rf"(?<![\w.\-−])(?P<number>[-−]?{_PLAIN_NUMBER})(?![\w]|\.[0-9])(?:\s?(?P<percent>%|percent\b)"
    rf"|\s?\(?\s?(?:/|out of\b)\s?(?P<whole>{_PLAIN_NUMBER})(?![\w]|\.[0-9]))?(?P<range>\s?(?:-|–|—|to\b)\s?\.?[0-9])?"
)
_QUOTES = r"[\s\"'*_`~:=]"
_BETWEEN_NAME_AND_VALUE = (
    rf"(?:{_QUOTES}|->|→|\b(?:score|level|rating|estimate|value|is|of|at|about|around|approximately|roughly)\b)*"
)
_NUMBER_ALONE = re.compile(rf"^[ *_`]*{_NUMBER}[ *_`.]*$", re.MULTILINE)
_CLAUSE_END = re.compile(r"[,;}\n]|[.!?](?=\s|$)")
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)")


@dataclass(frozen=True, slots=True)
class _Subject:
    """A quantity that is asked for, and the words that models use for it."""

    names: str
    """Pattern of the words that come before a value: `confidence: 80`."""
    adjectives: str
    """Pattern of the words that come right after a value: `80 % sure`."""
    levels: dict[str, float]
    """Maps a level in words, such as "very high", to its value."""

    @property
    def any_name(self) -> str:
        return rf"\b(?:{self.names}|{self.adjectives})\b"


_MIDDLE = {"medium": 0.5, "moderate": 0.5}
_CONFIDENCE = _Subject(
    names="confidence|certainty|probability|likelihood",
    adjectives="confident|confidence|certain|certainty|sure",
    levels={"very low": 0.1, "low": 0.3, **_MIDDLE, "high": 0.7, "very high": 0.9},
)
_DIFFICULTY = _Subject(
    names="difficulty",
    adjectives="difficulty|difficult|hard",
    levels={"very easy": 0.1, "easy": 0.3, **_MIDDLE, "hard": 0.7, "difficult": 0.7, "very hard": 0.9}
    | {"very difficult": 0.9, "very low": 0.1, "low": 0.3, "high": 0.7, "very high": 0.9},
)


_SUBJECTS = {"confidence": _CONFIDENCE, "difficulty": _DIFFICULTY}


def parse_stated(kind: Literal["confidence", "difficulty"], text: str, *, scale: float = 100) -> float | None:
    """Returns the confidence or difficulty that a text states, in [0, 1], or None. A difficulty of 1 is the hardest.

    Args:
        kind: the number to look for.
        text: the text.
        scale: the number that bare numbers are out of.
    """
    return _stated(text, _SUBJECTS[kind], scale)


def parse_named_confidence(text: str) -> float | None:
    """Returns the confidence that a longer answer states; None if it states none.

    A number counts only beside the name, as in `Confidence: 80%` or `80% sure`.
    """
    spaced = _spaced(text)
    patterns = (
        rf"\b(?:{_CONFIDENCE.names})\b{_BETWEEN_NAME_AND_VALUE}{_NUMBER}",
        rf"{_NUMBER} ?(?:{_CONFIDENCE.adjectives})\b",
    )
    return _stated(text, _CONFIDENCE, 100) if any(re.search(pattern, spaced) for pattern in patterns) else None


def _stated(text: str, subject: _Subject, scale: float) -> float | None:
    if not scale > 0:
        raise ValueError(f"scale {scale}: expected what bare numbers are out of, for example 1, 10 or 100")
    text = _spaced(text)
    named_scales = {float(m[1] or m[2]) for m in _STATED_SCALE.finditer(text)} - {0.0}
    if named_scales:
        scale = named_scales.pop() if len(named_scales) == 1 else math.nan  # of two scales, neither is sure
    text = _STATED_SCALE.sub(" ", text)
    numbers = _numbers(text, subject)
    if not numbers:
        return _level(text, subject)
    values = {_stated_probability(number, scale) for number in numbers}
    return values.pop() if len(values) == 1 else None


def _spaced(text: str) -> str:
    """Returns the text in small letters, with single spaces, and ratios in figures."""
    text = re.sub(r"\s*\n\s*", "\n", re.sub(r"[^\S\n]+", " ", text.lower())).strip()
    return _WORD_RATIO.sub(lambda m: f"{_NUMBER_WORDS.index(m[1])}/{_NUMBER_WORDS.index(m[2])}", text)


def _numbers(text: str, subject: _Subject) -> list[re.Match[str]]:
    """Returns the numbers that may be meant."""
    numbers_after_name = list(re.finditer(rf"\b(?:{subject.names})\b{_BETWEEN_NAME_AND_VALUE}{_NUMBER}", text))
    if numbers_after_name:
        return numbers_after_name
    numbers_before_adjective = list(re.finditer(rf"{_NUMBER}\s?(?:{subject.adjectives})\b", text))
    if numbers_before_adjective:
        return numbers_before_adjective
    name_and_colon = re.search(rf"\b(?:{subject.names})\b[\"'*_`]*\s?[:=]", text)
    if name_and_colon:  # numbers outside of it are about other things
        return list(re.finditer(_NUMBER, _CLAUSE_END.split(text[name_and_colon.end() :])[0]))
    if not re.search(subject.any_name, text):
        return list(re.finditer(_NUMBER, text))
    # Where the thing is named, a number counts in the same sentence, or alone on its line.
    sentences = [s for s in _SENTENCE_END.split(text) if re.search(subject.any_name, s)]
    return [*_NUMBER_ALONE.finditer(text), *(m for s in sentences for m in re.finditer(_NUMBER, s))]


def _stated_probability(match: re.Match[str], scale: float) -> float | None:
    written = match["number"].replace("−", "-")
    number = float(written)
    if match["range"]:
        return None
    if match["percent"]:
        number /= 100
    elif match["whole"]:
        total = float(match["whole"])
        number = number / total if total else math.nan
    elif not ("." in written and number <= 1):
        number /= scale
    return number if 0 <= number <= 1 and not written.startswith("-") else None  # NaN gives None too


def _level(text: str, subject: _Subject) -> float | None:
    """Returns the value of a word such as "high" that follows the name, comes right before it, or is the whole text."""
    level_pattern = "|".join(subject.levels)
    levels = re.findall(rf"\b(?:{subject.names})\b{_BETWEEN_NAME_AND_VALUE}({level_pattern})\b", text)
    if not levels:
        matches = re.finditer(rf"\b(not (?:an? )?)?({level_pattern}) (?:{subject.names})\b", text)
        levels = [m[2] for m in matches if not m[1]]
    if not levels and (whole_match := re.fullmatch(rf"\W*({level_pattern})\W*", text)):
        levels = [whole_match[1]]
    values = {subject.levels[word] for word in levels}
    return values.pop() if len(values) == 1 else None
