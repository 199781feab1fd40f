"""What one answer of an endpoint shows of its log-probabilities.

It is read by `parse_response`, as `predict` reads it, and judged by what `records` says of tokens, numbers and
alternatives.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from metaprobe.llms.doctor import ALTERNATIVES, PLAIN
from metaprobe.records.alternatives import ROUNDING
from metaprobe.records.alternatives import alternatives as rows_of
from metaprobe.records.answer_part import answer_of
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_format import ParsedResponse, ParsedText, parse_response, parse_text
from metaprobe.records.openai_stream import StreamedCompletion
from metaprobe.records.placeholders import NO_LOGPROB, doubtful, implausible, listed_twice, refuse_placeholders
from metaprobe.records.reading import as_list, fields, text
from metaprobe.records.segments import text_of
from metaprobe.records.spelling import names_tokens, spelled
from metaprobe.records.types import FloatArray

Verdict = Literal["ok", "unknown", "fault"]
HOT_ANSWER = "hot"
_STYLES = {"Ġ": "[ĠĊ]", "▁": "▁", "bytes": r"bytes:|<0x[0-9A-F]{2}>|\ufffd", "##": "##."}
_NO_WORDS = "\ufffd \t\r\n"


@dataclass(frozen=True, slots=True)
class Finding:
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
    counted: int
    """The tokens that the usage counts and that should have numbers; 0 where it counts none."""

    @property
    def tokens(self) -> list[str]:
        """The tokens as the server spelled them."""
        return [text(entry.get("token")) for entry in self.entries]

    @property
    def numbers(self) -> list[float] | None:
        """The log-probability of each token; None where one has none."""
        given = [entry.get("logprob") for entry in self.entries]
        return [float(x) for x in given] if all(map(_is_number, given)) else None

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
            joined = StreamedCompletion(choice)
            for chunk in body:
                joined.add(chunk)
            whole = joined.completion()
        said = parse_text(whole, choice=choice)
    except InvalidResponse:
        return None
    parsed, refusal = None, ""
    try:
        parsed = parse_response(body, choice=choice)
    except InvalidResponse as error:
        refusal = str(error)
    entries = _entries((fields(whole["choices"][choice]) or {}).get("logprobs"))
    details = fields((fields(whole.get("usage")) or {}).get("completion_tokens_details")) or {}
    hidden = details.get("reasoning_tokens")
    counted = said.usage.completion_tokens if len(whole["choices"]) == 1 else 0
    if type(hidden) is int and len(entries) <= counted - hidden + 1:  # counted, and never given
        counted -= hidden
    return Look(name, said, entries, parsed, refusal, counted)


def spelling(one: Look) -> EndpointFinding:
    """Whether the tokens spell the text, and how they are spelled."""
    if PLAIN in one.said.text:
        return EndpointFinding("spelling", "fault", f"{one.name}: the answer repeats the question", "echo")
    if not names_tokens(one.tokens):
        found = "the tokens do not say their texts, so nothing tells whose numbers they have"
        return EndpointFinding("spelling", "unknown", found, "ids")
    pieces, shown = one.tokens, one.said.text
    if one.parsed is not None and any(part.kind == "answer" for part in one.parsed.segments):
        pieces, shown = list(answer_of(one.parsed).tokens), text_of(shown, "answer")
    elif one.parsed is not None:
        pieces = list(one.parsed.tokens)
    how = spelled(pieces, shown)
    if not how.all:
        return EndpointFinding(
            "spelling", "fault", f"{one.name}: {parting(how.missing, how.other)}", _cause(one, shown)
        )
    if one.parsed is None and one.numbers is not None:  # missing numbers have a line of their own
        return EndpointFinding("spelling", "fault", f"{one.name}: {one.refusal}", "refused")
    styles = [name for name, mark in _STYLES.items() if any(re.match(mark, token) for token in one.tokens)]
    ends = f"; {one.parsed.left_out} that only ended it left out" if one.parsed and one.parsed.left_out else ""
    return EndpointFinding(
        "spelling", "ok", f"the tokens spell the text ({' and '.join(styles) or 'as plain text'}){ends}"
    )


def parting(missing: str, other: str) -> str:
    """How the tokens differ from the text that they should spell."""
    if not missing:
        return "the tokens spell more than the text"
    instead = f", and spell {other[:24]!r} in its place" if other else ""
    return f"no token spells {missing[:24]!r} of the text{instead}"


def _cause(one: Look, shown: str) -> str:
    """The name of the remedy, by what the tokens are instead of the text's."""
    bare, whole = ["".join(token.split()) for token in one.tokens], "".join(shown.split())
    if one.name == HOT_ANSWER and all(token in row and row[token] == _most(row) for token, row in _places(one)):
        return "likeliest"
    return "shifted" if len(bare) > 1 and whole.endswith("".join(bare[:-1])) else "part"


def count(one: Look) -> EndpointFinding:
    """Whether there is a number for each token that the usage counts."""
    came = len(one.entries)
    if not one.counted:
        return EndpointFinding(
            "count", "unknown", f"{one.name}: {came} numbers, and the usage counts no tokens", "usage"
        )
    if abs(came - one.counted) > 1:  # an end token may be counted and not given, or the reverse
        return EndpointFinding(
            "count", "fault", f"{one.name}: {came} numbers, and {one.counted} tokens by the usage", "part"
        )
    return EndpointFinding("count", "ok", f"one number a token: {came}, and {one.counted} tokens by the usage")


def alternatives(one: Look) -> EndpointFinding:
    """Whether as many of the likeliest tokens came as were asked for, and can be the likeliest ones."""
    widths = sorted(len(_rows(entry)) for entry in one.entries)
    if not widths or not widths[-1]:
        return EndpointFinding("alternatives", "unknown", f"{one.name}: none; {ALTERNATIVES} were asked for", "top")
    if any(None in row.values() for row in one.top):
        return EndpointFinding("alternatives", "fault", f"{one.name}: one came without a number (null)", "null")
    top = _top_array(one)
    wrong = listed_twice(one.entries) or _not_among(one)
    if not wrong and top is not None and one.numbers is not None:
        wrong = implausible(np.array(one.numbers, np.float32), top)
    if wrong:
        return EndpointFinding("alternatives", "fault", f"{one.name}: {wrong}", "other")
    if widths[0] < ALTERNATIVES:
        came = f"{widths[0]} to {widths[-1]}" if widths[0] < widths[-1] else str(widths[0])
        return EndpointFinding(
            "alternatives", "unknown", f"{one.name}: {came} a token of {ALTERNATIVES} asked for", "fewer"
        )
    likeliest = [[x for x in row.values() if x is not None][:ALTERNATIVES] for row in one.top]
    ordered = all(row == sorted(row, reverse=True) for row in likeliest)
    return EndpointFinding(
        "alternatives", "ok", f"{widths[0]} a token, with numbers{'' if ordered else ', not in order'}"
    )


def _not_among(one: Look) -> str:
    """Why the numbers cannot be of the drawn tokens: likely enough to be among the likeliest ones, and not there."""
    for (token, row), entry in zip(_places(one), one.entries, strict=True):
        own, lowest = entry.get("logprob"), min((x for x in row.values() if x is not None), default=0.0)
        if token.strip(_NO_WORDS) and token not in row and isinstance(own, float) and own > lowest + 0.02:
            return f"the drawn token {token[:20]!r} has {own:.3g}, and is none of the likeliest down to {lowest:.3g}"
    return ""


def numbers(one: Look) -> EndpointFinding:
    """Whether the numbers are log-probabilities, and no constants that stand for none."""
    if one.numbers is None:
        return EndpointFinding("numbers", "fault", f"{one.name}: a token came without a number (null)", "null")
    given = np.array(one.numbers, np.float32)
    if not len(given):
        return EndpointFinding("numbers", "fault", f"{one.name}: no numbers came", "part")
    if given.max() > ROUNDING:
        return EndpointFinding(
            "numbers", "fault", f"{one.name}: one is {given.max():g}; expected at most 0", "positive"
        )
    top = _top_array(one)
    try:
        refuse_placeholders(given, given if top is not None else None, top)
        wrong = doubtful(given)
    except InvalidResponse as error:
        wrong = str(error)
    if not wrong:
        return EndpointFinding("numbers", "ok", f"log-probabilities from {given.min():.3g} to {given.max():.3g}")
    # So hot, OpenAI may draw a token that is none of the likeliest 20, and gives no number for it.
    strange = one.name == HOT_ANSWER and given.min() <= NO_LOGPROB
    return EndpointFinding("numbers", "unknown" if strange else "fault", f"{one.name}: {wrong}", "placeholder")


CHECKS = (spelling, count, alternatives, numbers)


def is_likeliest(one: Look) -> bool:
    """Whether every drawn token is the likeliest of its place, as far as alternatives tell."""
    return all(not row or row.get(token) == _most(row) for token, row in _places(one))


def _places(one: Look) -> list[tuple[str, dict[str, float | None]]]:
    return list(zip(one.tokens, one.top, strict=True))


def _most(row: Mapping[str, float | None]) -> float:
    return max((x for x in row.values() if x is not None), default=-np.inf)


def _top_array(one: Look) -> FloatArray | None:
    try:
        return rows_of([_rows(entry) for entry in one.entries])
    except InvalidResponse:
        return None


def _rows(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [found for row in as_list(entry.get("top_logprobs")) or () if (found := fields(row)) is not None]


def _entries(given: object) -> list[Mapping[str, Any]]:
    held = fields(given) or {}
    rows = [*(as_list(held.get("reasoning_content")) or ()), *(as_list(held.get("content")) or ())]
    return [found for row in rows if (found := fields(row)) is not None]


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
