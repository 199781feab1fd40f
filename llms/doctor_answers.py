"""What one answer of an endpoint shows of its log-probabilities.

It is read by `parse_response`, as `predict` reads it, and judged by what `records` says of tokens, numbers and
alternatives.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import numpy as np

from metaprobe.llms.doctor import ALTERNATIVES, PLAIN
from metaprobe.records.answer_stream import AnswerStream
from metaprobe.records.errors import InvalidResponse, NoLogprobs
from metaprobe.records.logprobs import NO_LOGPROB, ROUNDING, doubtful
from metaprobe.records.parse import parse_response, parse_text
from metaprobe.records.reading import as_list, fields, text
from metaprobe.records.response import ParsedResponse, ParsedText, first_of
from metaprobe.records.segments import ONLY_ANSWER
from metaprobe.records.spelling import names_tokens

Verdict = Literal["ok", "unknown", "fault"]
HOT_ANSWER = "hot"
_STYLES = {"Ġ": "[ĠĊ]", "▁": "▁", "bytes": r"bytes:|<0x[0-9A-F]{2}>|\ufffd", "##": "##."}
_HARMLESS = (ONLY_ANSWER, first_of(2, 0))
_NO_WORDS = "\ufffd \t\r\n"


@dataclass(frozen=True, slots=True)
class Sign:
    """One line of the report."""

    check: str
    verdict: Verdict
    found: str
    do: str = ""
    """What to set or to do, or the name of the remedy; empty where there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Look:
    """One answer: as `predict` reads it, and its numbers as they came."""

    name: str
    said: ParsedText
    entries: Sequence[Mapping[str, Any]]
    """{token, logprob, top_logprobs} of every token, thinking included, whatever shape they came in."""
    parsed: ParsedResponse | None
    refusal: str
    """Why `parse_response` refuses the answer; empty where it does not."""
    has_none: bool
    """Whether it refuses the answer because its numbers stand for no log-probabilities."""
    counted: int
    """The tokens that the usage counts and that should have numbers; 0 where it counts none."""

    @property
    def tokens(self) -> list[str]:
        """The tokens as the server spelled them."""
        return [text(entry.get("token")) for entry in self.entries]

    @property
    def numbers(self) -> list[float] | None:
        """The log-probability of each token; None where one has none."""
        given = [float(x) for entry in self.entries if _is_number(x := entry.get("logprob"))]
        return given if len(given) == len(self.entries) else None

    @property
    def top(self) -> list[dict[str, float | None]]:
        """The alternatives of each token: text -> log-probability, None where it has none."""
        return [
            {text(row.get("token")): float(x) if _is_number(x := row.get("logprob")) else None for row in _rows(entry)}
            for entry in self.entries
        ]


def look(name: str, body: Any, choice: int = 0) -> Look | None:
    """The answer of a chat completion, whole or as chunks; None where there is none."""
    whole = body
    try:
        if isinstance(body, list):
            joined = AnswerStream(choice)
            for chunk in body:
                joined.add(chunk)
            whole = joined.response()
        said = parse_text(whole, choice=choice)
    except InvalidResponse:
        return None
    parsed, refusal, has_none = None, "", False
    try:
        parsed = parse_response(body, choice=choice)
    except InvalidResponse as error:
        refusal, has_none = str(error), isinstance(error, NoLogprobs)
    entries = _entries((fields(whole["choices"][choice]) or {}).get("logprobs"))
    details = fields((fields(whole.get("usage")) or {}).get("completion_tokens_details")) or {}
    hidden = details.get("reasoning_tokens")
    counted = said.usage.completion_tokens if len(whole["choices"]) == 1 else 0
    if type(hidden) is int and len(entries) <= counted - hidden + 1:  # counted, and never given
        counted -= hidden
    return Look(name, said, entries, parsed, refusal, has_none, counted)


def spelling(one: Look) -> Sign:
    """Whether the tokens spell the text, and how they are spelled."""
    if PLAIN in one.said.text:
        return Sign("spelling", "fault", f"{one.name}: the answer repeats the question", "echo")
    if not names_tokens(one.tokens):
        found = "the tokens do not say their texts, so nothing tells whose numbers they have"
        return Sign("spelling", "unknown", found, "ids")
    if one.parsed is None:  # for its numbers, which have a line of their own, or for its tokens
        verdict: Verdict = "unknown" if numbers(one).verdict == "fault" else "fault"
        return Sign("spelling", verdict, f"{one.name}: {one.refusal}", _cause(one))
    if one.parsed.segments and not any(part.kind == "answer" for part in one.parsed.segments):
        return Sign("spelling", "unknown", f"{one.name}: only thinking came, and no answer", "thinking")
    notes = [note for note in one.parsed.note.split("; ") if note and note not in _HARMLESS]
    if notes:
        worst: Verdict = "fault" if any("all are scored" in note for note in notes) else "unknown"
        return Sign("spelling", worst, f"{one.name}: {'; '.join(notes)}", "more")
    styles = [name for name, mark in _STYLES.items() if any(re.match(mark, token) for token in one.tokens)]
    ends = f"; {one.parsed.left_out} that only ended it left out" if one.parsed.left_out else ""
    found = f"the tokens spell the text ({' and '.join(styles) or 'as plain text'}){ends}"
    return Sign("spelling", "ok", found)


def _cause(one: Look) -> str:
    """The name of the remedy, by what the tokens are instead of the text's."""
    if one.said.thinking is not None:
        return "thinking"
    bare, whole = ["".join(token.split()) for token in one.tokens], "".join(one.said.text.split())
    if one.name == HOT_ANSWER and all(token in row and row[token] == _most(row) for token, row in _places(one)):
        return "likeliest"
    return "shifted" if len(bare) > 1 and whole.endswith("".join(bare[:-1])) else "part"


def count(one: Look) -> Sign:
    """Whether there is a number for each token that the usage counts."""
    came = len(one.entries)
    if not one.counted:
        return Sign("count", "unknown", f"{one.name}: {came} numbers, and the usage counts no tokens", "usage")
    if came < one.counted - 1 and one.said.thinking is not None:
        found = f"{one.name}: {came} numbers, and {one.counted} tokens by the usage, which counts the thinking too"
        return Sign("count", "unknown", found, "thinking")
    if abs(came - one.counted) > 1:  # an end token may be counted and not given, or the reverse
        return Sign("count", "fault", f"{one.name}: {came} numbers, and {one.counted} tokens by the usage", "part")
    return Sign("count", "ok", f"one number a token: {came}, and {one.counted} tokens by the usage")


def alternatives(one: Look) -> Sign:
    """Whether as many of the likeliest tokens came as were asked for, and can be the likeliest ones."""
    if any(None in row.values() for row in one.top):
        return Sign("alternatives", "fault", f"{one.name}: one came without a number (null)", "null")
    widths = sorted(sum(x is not None and x > NO_LOGPROB for x in row.values()) for row in one.top)
    if not widths or not widths[-1]:
        return Sign("alternatives", "unknown", f"{one.name}: none; {ALTERNATIVES} were asked for", "top")
    wrong = (one.parsed.top_fault if one.parsed else "") or _not_among(one)
    if wrong:
        return Sign("alternatives", "fault", f"{one.name}: {wrong}", "other")
    if widths[0] < ALTERNATIVES:
        came = f"{widths[0]} to {widths[-1]}" if widths[0] < widths[-1] else str(widths[0])
        return Sign("alternatives", "unknown", f"{one.name}: {came} a token of {ALTERNATIVES} asked for", "fewer")
    if one.name != HOT_ANSWER and not is_likeliest(one):
        found = f"{one.name}: at temperature 0 a token was drawn that is not the likeliest"
        return Sign("alternatives", "unknown", found, "penalty")
    likeliest = [[x for x in row.values() if x is not None][:ALTERNATIVES] for row in one.top]
    ordered = all(row == sorted(row, reverse=True) for row in likeliest)
    return Sign("alternatives", "ok", f"{widths[0]} a token, with numbers{'' if ordered else ', not in order'}")


def _not_among(one: Look) -> str:
    """Why the numbers cannot be of the drawn tokens: likely enough to be among the likeliest ones, and not there."""
    for (token, row), entry in zip(_places(one), one.entries, strict=True):
        own, lowest = entry.get("logprob"), min((x for x in row.values() if x is not None), default=0.0)
        if token.strip(_NO_WORDS) and token not in row and isinstance(own, float) and own > lowest + 0.02:
            return f"the drawn token {token[:20]!r} has {own:.3g}, and is none of the likeliest down to {lowest:.3g}"
    return ""


def numbers(one: Look) -> Sign:
    """Whether the numbers are log-probabilities, and no constants that stand for none."""
    if one.numbers is None:
        return Sign("numbers", "fault", f"{one.name}: a token came without a number (null)", "null")
    given = np.array(one.numbers, np.float32)
    if not len(given):
        return Sign("numbers", "fault", f"{one.name}: no numbers came", "part")
    if not np.isfinite(given).all():
        return Sign("numbers", "fault", f"{one.name}: {one.refusal}", "null")
    if given.max() > ROUNDING:
        return Sign("numbers", "fault", f"{one.name}: one is {given.max():g}; expected at most 0", "positive")
    wrong = one.refusal if one.has_none else doubtful(given)
    if not wrong:
        return Sign("numbers", "ok", f"log-probabilities from {given.min():.3g} to {given.max():.3g}")
    # So hot, OpenAI may draw a token that is none of the likeliest 20, and gives no number for it.
    strange = one.name == HOT_ANSWER and given.min() <= NO_LOGPROB
    return Sign("numbers", "unknown" if strange else "fault", f"{one.name}: {wrong}", "placeholder")


CHECKS = (spelling, count, alternatives, numbers)


def is_likeliest(one: Look) -> bool:
    """Whether every drawn token is the likeliest of its place, as far as alternatives tell."""
    return all(not row or not token.strip(_NO_WORDS) or row.get(token) == _most(row) for token, row in _places(one))


def _places(one: Look) -> list[tuple[str, dict[str, float | None]]]:
    return list(zip(one.tokens, one.top, strict=True))


def _most(row: Mapping[str, float | None]) -> float:
    return max((x for x in row.values() if x is not None), default=-np.inf)


def _rows(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [found for row in as_list(entry.get("top_logprobs")) or () if (found := fields(row)) is not None]


def _entries(given: object) -> list[Mapping[str, Any]]:
    held = fields(given) or {}
    rows = [*(as_list(held.get("reasoning_content")) or ()), *(as_list(held.get("content")) or ())]
    if not rows:  # the older shape, which some servers give in chats too
        numbers = as_list(held.get("token_logprobs")) or ()
        names, tops = (as_list(held.get(name)) or [None] * len(numbers) for name in ("tokens", "top_logprobs"))
        for token, x, top in zip(names, numbers, tops, strict=False):
            others = [{"token": other, "logprob": y} for other, y in (fields(top) or {}).items()]
            rows.append({"token": token, "logprob": x, "top_logprobs": others})
    return [found for row in rows if (found := fields(row)) is not None]


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)
