"""What an endpoint's answers say about its log-probabilities: a finding for each check, with a way on."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from metaprobe.llms.doctor import CUT_AT, HOT, PREFIX, TOOL_NAME, Interview
from metaprobe.llms.doctor_answers import (
    CHECKS,
    Look,
    Sign,
    Verdict,
    alternatives,
    is_likeliest,
    look,
    numbers,
    spelling,
)
from metaprobe.llms.doctor_remedies import engine_of, remedy
from metaprobe.records.endings import LENGTH, STOP, TOOL_CALL, error_of
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.logprobs import NO_LOGPROB, doubtful
from metaprobe.records.parse import parse_response
from metaprobe.records.reading import as_list, fields, text
from metaprobe.records.response import answer_of
from metaprobe.records.spelling import names_tokens

FAR_APART = 0.25
"""Mean difference, in nats, above which an answer that is asked for twice has other numbers the second time. Engines
that batch requests or cache prompts differ by up to 0.15 at one token."""
SPREAD = 1.0
"""Fewest nats between the alternatives of one place by which two temperatures can be told apart."""
_NOT_THERE = (404, 405, 501)


def diagnose(said: Interview) -> tuple[Sign, ...]:
    """All findings, in the order of the report."""
    looks = {name: look(name, said.body(name)) for name in ("plain", "cut", "hot", "streamed", "thinking")}
    engine = engine_of(said)
    return tuple(Sign(f.check, f.verdict, f.found, remedy(f.do, engine)) for f in _all(said, looks))


def _all(said: Interview, looks: dict[str, Look | None]) -> Iterator[Sign]:
    plain, cut, hot = looks["plain"], looks["cut"], looks["hot"]
    yield _given(said, plain)
    if plain is not None and plain.entries:
        # Of a model that thinks, the short answers are cut within the thinking.
        answers = [one for one in (plain, *((cut, hot) if not said.thinks else ())) if one is not None]
        for check in CHECKS:
            yield _worst([check(one) for one in answers])
        yield _temperature(said, cut, hot)
        yield _finish(plain, cut)
    yield _streamed(said, plain, looks["streamed"])
    if plain is not None and plain.entries:
        yield _two(said)
        yield _tool(said)
        yield _thinking(said, plain if said.thinks else looks["thinking"])
    for name, kind in (("text", "text completion"), ("responses", "Responses API")):
        failure = said.failure(name)
        if failure is None or failure.status not in _NOT_THERE:
            yield _other_api(kind, said.body(name), str(failure))


def _given(said: Interview, plain: Look | None) -> Sign:
    why = said.first_failure
    if plain is None:
        if said.body("plain") is not None:
            return Sign("given", "fault", "the answer cannot be read as a chat completion", "address")
        return Sign("given", "fault", f"asking for log-probabilities makes the request fail: {why}", "fails")
    if not plain.entries:
        return Sign("given", "fault", f"none came, though they were asked for: {plain.refusal}", "given")
    came = f"{len(plain.entries)} log-probabilities of the first answer"
    if not said.has_alternatives:
        return Sign("given", "unknown", f"{came}, without alternatives and temperature; with them: {why}", "top")
    if why is not None:
        return Sign("given", "unknown", f"{came}, at the second attempt; the first failed: {why}", "again")
    return Sign("given", "ok", came)


def _temperature(said: Interview, cold: Look | None, hot: Look | None) -> Sign:
    """Whether the first place has the same distribution at both temperatures."""
    if cold is None or hot is None or not cold.entries or not hot.entries:
        why = said.failure("hot") or said.failure("cut")
        broken = why is not None and (why.status or 0) >= 500
        return Sign("temperature", "unknown", f"nothing to compare: {why}", "fails" if broken else "mode")
    if cold.numbers and not any(cold.numbers) and any(hot.numbers or ()):
        found = "at temperature 0 every number is 0: they are the sampler's"
        return Sign("temperature", "fault", found, "processed")
    a, b = ({token: x for token, x in one.top[0].items() if x is not None and x > NO_LOGPROB} for one in (cold, hot))
    shared = sorted(a.keys() & b.keys())
    x, y = (np.array([held[token] for token in shared]) for held in (a, b))
    if len(shared) < 2 or np.ptp(x) < SPREAD:
        return Sign("temperature", "unknown", f"{len(shared)} shared alternatives are too few or too close", "mode")
    x, y = x - x.mean(), y - y.mean()
    ratio = float(x @ y / (x @ x))
    found = f"from temperature 0 to {HOT:g} the differences of alternatives become {ratio:.2f} times as large"
    if abs(ratio - 1 / HOT) < 0.1:
        return Sign("temperature", "fault", f"processed: {found}", "processed")
    if abs(ratio - 1) > 0.15:
        return Sign("temperature", "unknown", f"neither raw nor processed: {found}", "mode")
    if is_likeliest(hot):
        found = f"the same at {HOT:g}, which may be ignored: only likeliest tokens were drawn"
        return Sign("temperature", "unknown", found, "mode")
    return Sign("temperature", "ok", f"raw: the same at temperature 0 and {HOT:g}", "raw")


def _finish(plain: Look, cut: Look | None) -> Sign:
    """Whether an answer that the model ended and one that the limit cut say so."""
    if cut is None:
        return Sign("finish", "unknown", "no answer came that the limit should have cut", "finish")
    whole, short, came = plain.said.finish_reason, cut.said.finish_reason, max(len(cut.entries), cut.counted)
    words = f"the whole answer says {whole!r}, the cut one {short!r}"
    if came > CUT_AT + 1:
        return Sign("finish", "fault", f"max_tokens {CUT_AT} gave {came} tokens", "limit")
    if not whole or not short or (short == STOP and came >= CUT_AT):
        return Sign("finish", "fault", words, "finish")
    if (whole, short) == (LENGTH, LENGTH):
        return Sign("finish", "unknown", "no answer ended by itself, so only a cut one was seen", "talks")
    verdict: Verdict = "ok" if (whole, short) == (STOP, LENGTH) else "unknown"
    return Sign("finish", verdict, words, "" if verdict == "ok" else "finish")


def _streamed(said: Interview, plain: Look | None, one: Look | None) -> Sign:
    reply = said.replies.get("streamed")
    if reply is None or not reply.body:
        return Sign("streamed", "fault", f"no stream came: {said.failure('streamed')}", "stream")
    errors = [error for chunk in reply.body if (error := error_of(fields(chunk) or {}))]
    if errors or one is None:
        return Sign("streamed", "fault", f"the stream holds an error: {errors or reply.body[:1]}"[:200], "stream")
    if not one.entries:
        return Sign("streamed", "fault", "the chunks hold no log-probabilities", "stream")
    if not one.said.finish_reason:
        return Sign("streamed", "fault", "no chunk says how the answer ended", "finish")
    if wrong := _first_fault(one):
        return Sign("streamed", "fault", wrong.found, "chunks" if wrong.check == "alternatives" else wrong.do)
    if plain is not None and (differing := _differing(plain, one)):
        return Sign("streamed", *differing)
    if reply.ends != 1 or reply.late:
        return Sign("streamed", "unknown", f"{reply.ends} times [DONE]; expected it once, at the end", "done")
    if not one.said.usage.completion_tokens:
        return Sign("streamed", "unknown", "the same numbers, and no usage, though it was asked for", "usage")
    return Sign("streamed", "ok", f"the same numbers in {len(reply.body)} chunks; end, usage and [DONE]")


def _differing(plain: Look, one: Look) -> tuple[Verdict, str, str] | None:
    """How the streamed answer differs from the whole one, to the same question at temperature 0."""
    if plain.said.text != one.said.text:
        return "unknown", "at temperature 0 another answer came than without streaming, so nothing to compare", "again"
    if plain.tokens != one.tokens:
        return "fault", f"{len(one.entries)} tokens for a text of {len(plain.entries)} tokens", "stream"
    places = [_apart([*a.values()], [*b.values()]) for a, b in zip(plain.top, one.top, strict=True)]
    worst = max(_apart(plain.numbers, one.numbers), float(np.mean(places)))
    if worst > FAR_APART:
        return "fault", f"other numbers than without streaming, {worst:.2f} nats apart on average", "chunks"
    return None


def _apart(a: Sequence[float | None] | None, b: Sequence[float | None] | None) -> float:
    """The mean difference of two rows of numbers, as far as both have some."""
    pairs = [(x, y) for x, y in zip(a or (), b or (), strict=False) if x is not None and y is not None]
    return float(np.mean([abs(x - y) for x, y in pairs])) if pairs else 0.0


def _two(said: Interview) -> Sign:
    body = fields(said.body("two")) or {}
    came = len(as_list(body.get("choices")) or ())
    if came != 2:
        why = said.failure("two") or "no error"
        return Sign("n = 2", "unknown", f"{came} of 2 answers came ({why})", "once")
    first, second = (look(f"answer {i + 1}", body, i) for i in range(2))
    if first is None or second is None or not first.entries or not second.entries:
        return Sign("n = 2", "fault", "an answer came without log-probabilities", "once")
    if wrong := _first_fault(first) or _first_fault(second):
        return Sign("n = 2", "fault", wrong.found, "once")
    if first.said.text == second.said.text:
        return Sign("n = 2", "unknown", "both answers are the same, so their numbers cannot be told apart", "again")
    if first.numbers == second.numbers:
        return Sign("n = 2", "fault", "two answers came with the same numbers", "once")
    return Sign("n = 2", "ok", "both answers have numbers of their own")


def _tool(said: Interview) -> Sign:
    for name, where in (("tool", ""), ("forced", ", where it is forced")):
        one = look(name, said.body(name))
        if one is not None and TOOL_NAME in one.said.text and "{" in one.said.text:
            return Sign("tool call", "fault", f"a call came as words: {one.said.text[:60]!r}", "tool")
        if one is not None and one.said.finish_reason == TOOL_CALL:
            return Sign("tool call", "ok", f"a call is marked as such{where}")
    return Sign("tool call", "unknown", f"no call came: {said.failure('forced') or said.failure('tool')}", "tool")


def _thinking(said: Interview, one: Look | None) -> Sign:
    if one is None or (one.said.thinking is None and not (one.parsed and one.parsed.segments) and not said.thinks):
        cut = " before the answer was cut" if one is not None and one.said.finish_reason == LENGTH else ""
        return Sign("thinking", "unknown", f"no thinking came{cut}", "think")
    if one.parsed is None:
        return Sign("thinking", "fault", one.refusal, "thinking")
    try:
        answer = answer_of(one.parsed)
    except InvalidResponse as error:  # it was cut while it thought
        return Sign("thinking", "unknown", str(error), "thinking")
    if said.thinks and not one.parsed.segments:
        return Sign("thinking", "fault", "thinking came, and its tokens are not told from the answer's", "thinking")
    thought = 0 if answer.thinking is None else len(answer.thinking)
    found = f"told apart: numbers of {thought} tokens of the thinking, {len(answer.logprobs)} of the answer"
    return Sign("thinking", "ok", found)


def _other_api(kind: str, body: Any, failure: str) -> Sign:
    """A text completion, or a response of the Responses API."""
    if body is None:
        return Sign(kind, "unknown", failure, "other api")
    try:
        parsed = answer_of(parse_response(body))
    except InvalidResponse as error:
        return Sign(kind, "fault", str(error), "other api")
    if not names_tokens(parsed.tokens):
        return Sign(kind, "unknown", f"{len(parsed.logprobs)} log-probabilities of tokens without texts", "ids")
    if wrong := parsed.top_fault or doubtful(parsed.logprobs):
        return Sign(kind, "fault", wrong, "placeholder")
    choices = as_list(body.get("choices")) or [None]
    echoed = text((fields(choices[0]) or {}).get("text")).startswith(PREFIX)
    found = f"{len(parsed.logprobs)} log-probabilities, and their tokens spell the text"
    return Sign(kind, "unknown" if echoed else "ok", found + "; the prompt is echoed" * echoed, "echo" * echoed)


def _first_fault(one: Look) -> Sign | None:
    checks: tuple[Callable[[Look], Sign], ...] = (spelling, alternatives, numbers)
    return next((found for check in checks if (found := check(one)).verdict == "fault"), None)


def _worst(found: Sequence[Sign]) -> Sign:
    """The worst finding; of equals, the first."""
    return min(found, key=lambda one: ("fault", "unknown", "ok").index(one.verdict))
