"""What an endpoint's answers say about its log-probabilities: one finding a check, each with a way on.

Each answer is read by `parse_response`, as `predict` reads it. What one response shows of itself is judged by `records`;
here answers are compared with each other and with what was asked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from metaprobe.llms.doctor import ALTERNATIVES, CUT_AT, HOT, TOOL_NAME, Interview
from metaprobe.llms.doctor_remedies import engine_of, remedy
from metaprobe.records.answer_part import answer_of
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.openai_format import ParsedResponse, ParsedText, parse_response, parse_text
from metaprobe.records.openai_stream import StreamedCompletion
from metaprobe.records.placeholders import doubtful, implausible, listed_twice, refuse_placeholders
from metaprobe.records.reading import as_list, fields, text
from metaprobe.records.segments import text_of
from metaprobe.records.spelling import names_tokens, spelled

Verdict = Literal["ok", "unknown", "fault"]
_WORST = ("fault", "unknown", "ok")
FAR_APART = 0.25
"""Mean difference, in nats, above which the log-probabilities of one answer asked for twice are not the same numbers.
Engines that batch or cache prompts differ by up to 0.15 at one token."""
SPREAD = 1.0
"""Fewest nats between the alternatives of one place that tell two temperatures apart."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    verdict: Verdict
    found: str
    do: str = ""
    """What to set or to do; empty where there is nothing to do."""


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
        return [text(entry.get("token")) for entry in self.entries]


def look(name: str, body: Any, choice: int = 0) -> Look | None:
    """The answer of a chat or text completion, whole or as chunks; None where there is none."""
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
    usage = fields(whole.get("usage")) or {}
    entries = _entries((fields(whole["choices"][choice]) or {}).get("logprobs"))
    hidden = (fields(usage.get("completion_tokens_details")) or {}).get("reasoning_tokens")
    counted = said.usage.completion_tokens if choice == 0 and len(whole["choices"]) == 1 else 0
    if type(hidden) is int and len(entries) <= counted - hidden + 1:  # counted, and never given
        counted -= hidden
    return Look(name, said, entries, parsed, refusal, counted)


def _entries(given: object) -> list[Mapping[str, Any]]:
    held = fields(given) or {}
    rows = [*(as_list(held.get("reasoning_content")) or ()), *(as_list(held.get("content")) or ())]
    if rows or held.get("token_logprobs") is None:
        return [found for row in rows if (found := fields(row)) is not None]
    numbers = as_list(held["token_logprobs"]) or ()
    names, tops = (as_list(held.get(key)) or [None] * len(numbers) for key in ("tokens", "top_logprobs"))
    return [
        {"token": t, "logprob": x, "top_logprobs": [{"token": k, "logprob": v} for k, v in (fields(top) or {}).items()]}
        for t, x, top in zip(names, numbers, tops, strict=False)
    ]


def diagnose(said: Interview) -> tuple[Finding, ...]:
    """All findings, in the order of the report."""
    plain, hot, cut = (look(name, said.body(name)) for name in ("plain", "hot", "cut"))
    engine = engine_of(said)
    found = [_given(said, plain)]
    if plain is not None and plain.entries:
        answers = [one for one in (plain, cut, hot) if one is not None]
        found += [_worst(map(check, answers)) for check in (spelling, count, alternatives, placeholders)]
        found += [_mode(said, cut, hot), _finish(plain, cut)]
    found += _others(said, plain)
    return tuple(Finding(f.check, f.verdict, f.found, remedy(f.do, engine)) for f in found)


def _others(said: Interview, plain: Look | None) -> Iterator[Finding]:
    yield _streamed(said, plain)
    if plain is not None and plain.entries:
        yield _two(said)
        yield _tool(said)
        yield _thinking(said, plain)
    for name, kind in (("text", "text completion"), ("responses", "Responses API")):
        reply = said.replies.get(name)
        if reply is None or (reply.failure is not None and reply.failure.status in (404, 405, 501)):
            continue  # the endpoint has none
        yield _other_api(kind, reply.body, str(reply.failure or ""))


def _given(said: Interview, plain: Look | None) -> Finding:
    why = said.first_failure
    if plain is None:
        if said.body("plain") is not None:
            return Finding("given", "fault", "the answer cannot be read as a chat completion", "address")
        return Finding("given", "fault", f"asking for log-probabilities makes the request fail: {why}", "fails")
    if not plain.entries:
        return Finding("given", "fault", f"none came, though they were asked for: {plain.refusal}", "given")
    got = f"{len(plain.entries)} log-probabilities of the first answer"
    if not said.has_alternatives:
        return Finding("given", "unknown", f"{got}, without alternatives and temperature; with them: {why}", "top")
    if why:
        return Finding("given", "unknown", f"{got}, at the second attempt; the first failed: {why}", "again")
    return Finding("given", "ok", got)


def spelling(one: Look) -> Finding:
    """Whether the tokens spell the text, and in which spelling they come."""
    if not names_tokens(one.tokens):
        return Finding(
            "spelling", "unknown", "the tokens do not say their texts, so nothing tells whose they are", "ids"
        )
    if one.parsed is None:
        pieces, shown = one.tokens, one.said.text
    else:
        answer = answer_of(one.parsed) if any(s.kind == "answer" for s in one.parsed.segments) else one.parsed
        pieces, shown = list(answer.tokens), text_of(one.said.text, "answer") if one.parsed.segments else one.said.text
    how = spelled(pieces, shown)
    if one.parsed is None and how.all:
        return Finding("spelling", "fault", f"{one.name}: {one.refusal}", "refused")
    if not how.all:
        return Finding("spelling", "fault", f"{one.name}: {_parting(how.missing, how.other)}", _cause(one, shown))
    ends = f"; {one.parsed.left_out} that only end the answer" if one.parsed and one.parsed.left_out else ""
    return Finding("spelling", "ok", f"the tokens spell the text ({_style(one.tokens)}){ends}")


def _parting(missing: str, other: str) -> str:
    if not missing:
        return "the tokens spell more than the text"
    instead = f", and spell {other[:24]!r} in its place" if other else ""
    return f"the tokens do not spell {missing[:24]!r} of the text{instead}"


def _cause(one: Look, shown: str) -> str:
    """The name of the remedy: what the tokens are instead."""
    bare = ["".join(token.split()) for token in one.tokens]
    whole = "".join(shown.split())
    if whole.startswith(bare[0] if bare else "\0"):
        first = [text((fields(row) or {}).get("token")) for entry in one.entries for row in _tops(entry)[:1]]
        return "likeliest" if first == one.tokens and len(one.tokens) > 1 else "part"
    return "shifted" if len(bare) > 1 and whole.endswith("".join(bare[:-1])) else "part"


def _style(tokens: Sequence[str]) -> str:
    styles = {"Ġ or Ċ for space": "[ĠĊ]", "▁ for space": "▁", "bytes": r"bytes:|<0x[0-9A-F]{2}>|\ufffd", "##": "##."}
    seen = [name for name, mark in styles.items() if any(re.match(mark, token) for token in tokens)]
    return ", ".join(seen) or "as plain text"


def count(one: Look) -> Finding:
    """Whether there is a number for each token that the usage counts."""
    came = len(one.entries)
    if not one.counted:
        return Finding("count", "unknown", f"{one.name}: {came} numbers, and the usage counts no tokens", "usage")
    if abs(came - one.counted) > 1:  # an end token may be counted and not given, or the reverse
        return Finding("count", "fault", f"{one.name}: {came} numbers for {one.counted} tokens of the usage", "part")
    return Finding("count", "ok", f"one number a token: {came}, and the usage counts {one.counted}")


def alternatives(one: Look) -> Finding:
    """Whether the likeliest tokens came, as many as were asked for, and can be the likeliest tokens."""
    rows = [_tops(entry) for entry in one.entries]
    widths = sorted(map(len, rows))
    if not widths or not widths[-1]:
        return Finding("alternatives", "unknown", f"{one.name}: none came; {ALTERNATIVES} were asked for", "top")
    if any(type((fields(row) or {}).get("logprob")) not in (int, float) for top in rows for row in top):
        return Finding("alternatives", "fault", f"{one.name}: one came without a number (null)", "null")
    wrong = listed_twice(one.entries)
    if not wrong and one.parsed is not None and one.parsed.top_logprobs is not None:
        wrong = implausible(one.parsed.logprobs, one.parsed.top_logprobs) or _missing_drawn(one)
    if wrong:
        return Finding("alternatives", "fault", f"{one.name}: {wrong}", "other")
    if widths[0] < ALTERNATIVES:
        came = f"{widths[0]} to {widths[-1]}" if widths[0] < widths[-1] else str(widths[0])
        return Finding("alternatives", "unknown", f"{one.name}: {came} a token of {ALTERNATIVES} asked for", "fewer")
    ordered = all(a["logprob"] >= b["logprob"] for top in rows for a, b in pairwise(top[:ALTERNATIVES]))
    return Finding("alternatives", "ok", f"{widths[0]} a token{'' if ordered else ', not in order'}, with numbers")


def _missing_drawn(one: Look) -> str:
    """Why the numbers cannot be the drawn tokens': likely enough to be among the likeliest, and not there."""
    for entry in one.entries:
        own, token = entry.get("logprob"), text(entry.get("token"))
        rows = [fields(row) or {} for row in _tops(entry)]
        if token.strip("\ufffd \t\r\n") and rows and token not in [row.get("token") for row in rows]:
            lowest = min(row["logprob"] for row in rows)
            if isinstance(own, float) and own > lowest + 0.02:
                return (
                    f"the drawn token {token[:20]!r} has {own:.3g}, and is none of the likeliest down to {lowest:.3g}"
                )
    return ""


def _tops(entry: Mapping[str, Any]) -> Sequence[Any]:
    return as_list(entry.get("top_logprobs")) or ()


def placeholders(one: Look) -> Finding:
    """Whether the numbers are log-probabilities and no constants."""
    given = [entry.get("logprob") for entry in one.entries]
    if any(type(value) not in (int, float) for value in given):
        return Finding("numbers", "fault", f"{one.name}: a token came without a number (null)", "null")
    numbers = np.array(given, np.float32)
    top = one.parsed.top_logprobs if one.parsed is not None else None
    try:
        refuse_placeholders(numbers, numbers if top is not None and len(top) == len(numbers) else None, top)
    except InvalidResponse as error:
        return Finding("numbers", "fault", f"{one.name}: {error}", "placeholder")
    if wrong := doubtful(numbers):
        return Finding("numbers", "fault", f"{one.name}: {wrong}", "placeholder")
    if numbers.max() > 1e-4:
        return Finding("numbers", "fault", f"{one.name}: {one.refusal}", "positive")
    return Finding("numbers", "ok", f"different log-probabilities, {numbers.min():.3g} to {numbers.max():.3g}")


def _mode(said: Interview, cold: Look | None, hot: Look | None) -> Finding:
    """Whether the first place has the same distribution at both temperatures."""
    if cold is None or hot is None or not cold.entries or not hot.entries:
        why = said.replies["hot"].failure if "hot" in said.replies else "not asked"
        return Finding("temperature", "unknown", f"no answers at 0 and at {HOT:g} to compare ({why})", "mode")
    a, b = (_first_place(one) for one in (cold, hot))
    shared = sorted(a.keys() & b.keys())
    if all(entry.get("logprob") == 0 for entry in cold.entries) and any(e.get("logprob") for e in hot.entries):
        return Finding(
            "temperature", "fault", "at temperature 0 every number is 0: they are of the sampler", "processed"
        )
    x, y = (np.array([held[token] for token in shared]) for held in (a, b))
    if len(shared) < 2 or np.ptp(x) < SPREAD:
        return Finding("temperature", "unknown", f"{len(shared)} shared alternatives are too few to compare", "mode")
    x, y = x - x.mean(), y - y.mean()
    ratio = float(x @ y / (x @ x))
    at = f"between temperature 0 and {HOT:g} differences of alternatives change by {ratio:.2f}"
    if abs(ratio - 1 / HOT) < 0.1:
        return Finding("temperature", "fault", f"processed: {at}, as after the temperature", "processed")
    if abs(ratio - 1) > 0.15:
        return Finding("temperature", "unknown", f"neither raw nor processed: {at}", "mode")
    if all(_is_likeliest(entry) for entry in hot.entries):
        found = (
            f"the numbers are the same at {HOT:g}, and so may be the temperature: every drawn token is the likeliest"
        )
        return Finding("temperature", "unknown", found, "mode")
    return Finding("temperature", "ok", "raw: the same at temperature 0 and " + f"{HOT:g}", "raw")


def _first_place(one: Look) -> dict[str, float]:
    rows = [fields(row) or {} for row in _tops(one.entries[0])]
    return {
        text(row.get("token")): float(row["logprob"])
        for row in rows
        if isinstance(row.get("logprob"), int | float) and row["logprob"] > -1000
    }


def _is_likeliest(entry: Mapping[str, Any]) -> bool:
    numbers = [(fields(row) or {}).get("logprob") for row in _tops(entry)]
    own = entry.get("logprob")
    return not numbers or (isinstance(own, int | float) and own >= max(x for x in numbers if x is not None) - 1e-6)


def _finish(plain: Look, cut: Look | None) -> Finding:
    """Whether an answer that the model ended and one that the limit cut say so."""
    whole, short = plain.said.finish_reason, cut.said.finish_reason if cut else ""
    words = f"the whole answer says {whole!r}, the cut one {short!r}"
    if cut is None:
        return Finding("finish", "unknown", f"{words[:-9]}nothing came for the cut one", "")
    came = max(len(cut.entries), cut.counted)
    if came > CUT_AT + 1:
        return Finding("finish", "fault", f"max_tokens {CUT_AT} gave {came} tokens", "limit")
    if not whole or not short or (short == "stop" and came >= CUT_AT):
        return Finding("finish", "fault", words, "finish")
    if (whole, short) == ("stop", "length"):
        return Finding("finish", "ok", words)
    return Finding("finish", "unknown", f"{words}; expected 'stop' and 'length'", "finish")


def _streamed(said: Interview, plain: Look | None) -> Finding:
    reply = said.replies.get("streamed")
    if reply is None or reply.body is None:
        return Finding("streamed", "fault", f"no stream came: {reply.failure if reply else 'not asked'}", "stream")
    one = look("streamed", reply.body)
    errors = [error for chunk in reply.body if (error := (fields(chunk) or {}).get("error"))]
    if errors or one is None:
        return Finding("streamed", "fault", f"the stream holds an error: {str(errors or reply.body)[:120]}", "stream")
    if not one.entries:
        return Finding("streamed", "fault", "the chunks hold no log-probabilities", "stream")
    if not one.said.finish_reason:
        return Finding("streamed", "fault", "no chunk says how the answer ended", "finish")
    for check in (spelling, alternatives, placeholders):
        if (found := check(one)).verdict == "fault":
            return Finding("streamed", "fault", found.found, "chunks" if check is alternatives else found.do)
    if plain is not None and (differing := _differing(plain, one)):
        return Finding("streamed", *differing)
    if reply.ends != 1 or reply.late:
        found = f"{reply.ends} [DONE], {reply.late} chunks after it; expected one at the end"
        return Finding("streamed", "unknown", found, "done")
    if not one.said.usage.completion_tokens:
        return Finding("streamed", "unknown", "the same numbers, and no usage, though it was asked for", "usage")
    widest = max(
        len(_entries(c.get("logprobs"))) for part in reply.body for c in (fields(part) or {}).get("choices") or ()
    )
    return Finding("streamed", "ok", f"the same numbers, up to {widest} tokens a chunk, end, usage and [DONE]")


def _differing(plain: Look, one: Look) -> tuple[Verdict, str, str] | None:
    """How the streamed answer differs from the whole one to the same question at temperature 0."""
    if plain.said.text != one.said.text:
        return "unknown", "the same question at temperature 0 got another answer, so numbers cannot be compared", ""
    if plain.tokens != one.tokens:
        return "fault", f"{len(one.entries)} tokens came, {len(plain.entries)} without streaming, of one text", "stream"
    if plain.parsed is None or one.parsed is None:
        return None
    pairs = [(plain.parsed.logprobs, one.parsed.logprobs)]
    if plain.parsed.top_logprobs is not None and one.parsed.top_logprobs is not None:
        pairs.append((plain.parsed.top_logprobs[:, 0], one.parsed.top_logprobs[:, 0]))
    apart = max(float(np.abs(a - b).mean()) for a, b in pairs)
    if apart > FAR_APART:
        return "fault", f"other numbers than without streaming, {apart:.2f} nats apart on average", "chunks"
    return None


def _two(said: Interview) -> Finding:
    reply = said.replies.get("two")
    if reply is None or reply.body is None:
        return Finding("n = 2", "unknown", f"no answer: {reply.failure if reply else 'not asked'}", "once")
    choices = as_list(reply.body.get("choices")) or ()
    if len(choices) != 2:
        return Finding("n = 2", "unknown", f"{len(choices)} answer came", "once")
    both = [look(f"choice {i}", reply.body, i) for i in range(2)]
    first, second = both
    if first is None or second is None or not first.entries or not second.entries:
        return Finding("n = 2", "fault", "a choice came without log-probabilities", "once")
    for one in (first, second):
        for check in (spelling, alternatives, placeholders):
            if (found := check(one)).verdict == "fault":
                return Finding("n = 2", "fault", found.found, "once")
    same = [entry.get("logprob") for entry in first.entries] == [entry.get("logprob") for entry in second.entries]
    if first.said.text == second.said.text:
        return Finding("n = 2", "unknown", "both answers are the same, so their numbers cannot be told apart", "")
    if same:
        return Finding("n = 2", "fault", "two answers came with the same numbers", "once")
    return Finding("n = 2", "ok", "both answers have numbers of their own")


def _tool(said: Interview) -> Finding:
    for name in ("tool", "forced"):
        one = look(name, said.body(name))
        if one is None:
            continue
        if one.said.finish_reason == "tool_calls":
            return Finding("tool call", "ok", f"a call is marked as such{', where it is forced' * (name == 'forced')}")
        if TOOL_NAME in one.said.text and "{" in one.said.text:
            return Finding("tool call", "fault", f"a call came as words: {one.said.text[:60]!r}", "tool")
    reply = said.replies.get("forced") or said.replies.get("tool")
    why = str(reply.failure) if reply and reply.failure else "the model answered in words"
    return Finding("tool call", "unknown", f"no call came: {why}", "tool")


def _thinking(said: Interview, plain: Look) -> Finding:
    one = plain if said.thinks else look("thinking", said.body("thinking"))
    if one is None or (one.said.thinking is None and one.parsed is not None and not one.parsed.segments):
        return Finding("thinking", "unknown", "no thinking came", "think")
    if one.parsed is None:
        return Finding("thinking", "fault", one.refusal, "thinking")
    answer = answer_of(one.parsed)
    thought = 0 if answer.thinking is None else len(answer.thinking)
    if said.thinks and not one.parsed.segments:
        return Finding("thinking", "fault", "thinking came, and its tokens are not told from the answer's", "thinking")
    return Finding("thinking", "ok", f"told apart: {thought} tokens of thinking, {len(answer.logprobs)} of the answer")


def _other_api(kind: str, body: Any, failure: str) -> Finding:
    """A text completion, or a response of the Responses API."""
    if body is None:
        return Finding(kind, "unknown", failure, "")
    try:
        parsed = parse_response(body)
    except InvalidResponse as error:
        return Finding(kind, "fault", str(error), "other api")
    how = spelled(parsed.tokens, text_of(parsed.text, "answer") if parsed.segments else parsed.text)
    if parsed.tokens and not parsed.segments and not how.all:
        return Finding(kind, "fault", _parting(how.missing, how.other), "other api")
    if wrong := doubtful(parsed.logprobs):
        return Finding(kind, "fault", wrong, "placeholder")
    return Finding(kind, "ok", f"{len(parsed.logprobs)} log-probabilities; the tokens spell the text")


def _worst(found: Iterator[Finding]) -> Finding:
    """The worst finding; of equals, the first."""
    return min(found, key=lambda one: _WORST.index(one.verdict))
