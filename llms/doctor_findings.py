"""Judges an endpoint's answers: a finding for each check of its log-probabilities, with a remedy.

An answer is read by `parse_response`, as `predict` reads it, and judged by what `records` says of tokens, numbers and
alternatives. What to set about a fault depends on the engine: vLLM, SGLang, llama.cpp and others have options for it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import numpy as np

from metaprobe.llms.doctor import ALTERNATIVES, CUT_AT, HOT, PLAIN, TOOL_NAME, Interview
from metaprobe.records.answer_stream import AnswerStream
from metaprobe.records.endings import LENGTH, STOP, TOOL_CALL, error_of
from metaprobe.records.errors import InvalidResponse, NoLogprobs
from metaprobe.records.logprobs import NO_LOGPROB, ROUNDING, doubtful
from metaprobe.records.parse import parse_response, parse_text
from metaprobe.records.reading import as_list, fields, text
from metaprobe.records.response import ParsedResponse, ParsedText, answer_of, first_of
from metaprobe.records.segments import ONLY_ANSWER
from metaprobe.records.spelling import names_tokens

_OWNERS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "me": "llama-cpp-python",
    "library": "Ollama",
}
"""Owner of the models, as /models states it -> the engine."""

_ANY = ""
_SPECULATION = "switch speculative decoding off"
_REMEDIES: Mapping[str, Mapping[str, str]] = {
    "address": {_ANY: "check that URL is the address of an OpenAI-compatible API; it usually ends in /v1"},
    "given": {
        "llama-cpp-python": "start the server with --logits_all true",
        "llama.cpp": f"ask for top_logprobs of at least 1, and {_SPECULATION} (no -md, no --spec-type)",
        "Ollama": "use Ollama 0.12.11 or later: older versions drop logprobs without a word",
        _ANY: "ask another endpoint or model: LiteLLM drops logprobs under drop_params (name them in"
        " allowed_openai_params), FastDeploy wants --enable-logprob, llama-cpp-python --logits_all true",
    },
    "fails": {
        "llama-cpp-python": "start the server with --logits_all true",
        "vLLM": "raise --max-logprobs if it refuses the number; else update vLLM or its hardware plug-in",
        "SGLang": "send top_p 1: a token that top_p rules out has -inf, which is no JSON; else update SGLang",
        _ANY: "ask another model (OpenAI's reasoning models refuse logprobs), update the server, or name logprobs and"
        " top_logprobs in LiteLLM's allowed_openai_params",
    },
    "top": {
        "vLLM": f"raise --max-logprobs; {_SPECULATION} if alternatives are missing",
        _ANY: "predictors that read alternatives will refuse these answers; ask for as many as the server allows",
    },
    "again": {_ANY: "run doctor again: a request that failed once may fail again"},
    "fewer": {
        _ANY: "train and score with as many alternatives as come; the sampler's top_k or top_p may take the rest"
    },
    "ids": {_ANY: "switch return_tokens_as_token_ids off: whether tokens are the answer's cannot be checked by ids"},
    "refused": {_ANY: "predict refuses this answer for the reason given; leave such answers out, or mend the server"},
    "echo": {_ANY: "switch off what repeats the prompt: echo, or TGI's return_full_text"},
    "likeliest": {
        _ANY: "the likeliest tokens stand in place of the drawn ones: report it to the server's authors; until then"
        " only answers at temperature 0 can be scored"
    },
    "part": {
        "Ollama": "update Ollama, and do not stream",
        _ANY: f"some tokens come without numbers: {_SPECULATION}, prefix caching of answers and token healing; do not"
        " stream if only streams lack them",
    },
    "more": {
        _ANY: "tokens outside of the text come with numbers: switch off echo and TGI's decoder_input_details, name stop"
        " texts as end tokens, or leave the numbers of such tokens out"
    },
    "shifted": {_ANY: "the numbers are of the next token: update the server; do not score its answers until then"},
    "usage": {
        _ANY: "nothing checks that all tokens have numbers; send stream_options {include_usage: true}, or let the"
        " server count"
    },
    "null": {_ANY: "a missing number cannot be scored: ask for fewer alternatives, top_p 1 and top_k off"},
    "other": {
        "SGLang": "do not stream with several tokens a chunk: set --stream-interval 1 and no speculative decoding",
        _ANY: f"numbers and alternatives are not of one token: {_SPECULATION}, and update the server",
    },
    "placeholder": {
        "llama.cpp": "switch speculative decoding off: no -md (--model-draft), no --spec-type",
        "llama-cpp-python": "start the server with --logits_all true, and without --draft_model",
        "vLLM": "start vLLM without --speculative-config, or update it",
        "SGLang": "start SGLang without --speculative-algorithm",
        _ANY: f"{_SPECULATION}; OpenAI writes -9999 for a token outside of the likeliest 20: lower the temperature",
    },
    "positive": {_ANY: "these are probabilities or logits: set the server to give log-probabilities (raw_logprobs)"},
    "mode": {_ANY: "tell metaprobe what you know: logprobs_mode=raw or processed (collect: --api logprobs_mode=raw)"},
    "raw": {_ANY: "tell metaprobe: logprobs_mode=raw (collect: --api logprobs_mode=raw)"},
    "processed": {
        "vLLM": "start vLLM with --logprobs-mode raw_logprobs",
        "SGLang": "start SGLang with SGLANG_RETURN_ORIGINAL_LOGPROB=1",
        "llama.cpp": "send post_sampling_probs false",
        _ANY: "set raw log-probabilities (raw_logprobs) in the server, or train and score at one temperature with"
        " logprobs_mode=processed",
    },
    "penalty": {
        _ANY: "a penalty or filter changes what is drawn; switch it off by --extra-body, and in your own requests:"
        ' {"repeat_penalty": 1.0, "repetition_penalty": 1.0, "min_p": 0.0, "top_k": 0}'
    },
    "talks": {_ANY: "look at a longer answer of your own: its finish_reason should be stop"},
    "finish": {_ANY: "whether an answer was cut is not known: leave max_tokens away, or compare usage with max_tokens"},
    "limit": {_ANY: "the server ignores max_tokens: bound answers in the server"},
    "stream": {_ANY: "do not stream answers that are to be scored: watch and the gate have nothing to read there"},
    "chunks": {
        "SGLang": "set --stream-interval 1 and no speculative decoding: each chunk repeats its first token's"
        " alternatives",
        _ANY: "do not stream answers that are to be scored",
    },
    "done": {_ANY: "a proxy before this server may take the stream for cut; update the server"},
    "once": {_ANY: "ask n times for one answer each"},
    "tool": {
        "vLLM": "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME",
        "SGLang": "start SGLang with --tool-call-parser NAME",
        "llama.cpp": "start llama-server with --jinja",
        _ANY: "set the server's parser of tool calls, if tools are used: a call in words is scored as an answer",
    },
    "think": {_ANY: "if this model thinks, switch it on by --extra-body and ask again"},
    "thinking": {
        "vLLM": "ask without --reasoning-parser, or raise --thinking-tokens if the model was cut while it thought",
        _ANY: "raise --thinking-tokens if the model was cut while it thought; else switch the server's reasoning"
        " parser off, or the thinking",
    },
}


def engine_of(asked: Interview) -> str:
    """Returns the engine's name, by what it says of itself; empty where it is not known."""
    models = as_list((fields(asked.body("models")) or {}).get("data")) or ()
    owners = [text((fields(model) or {}).get("owned_by")) for model in models]
    fingerprint = text((fields(asked.body("plain")) or {}).get("system_fingerprint"))
    if fingerprint == "fp_ollama":
        return "Ollama"
    return next((_OWNERS[owner] for owner in owners if owner in _OWNERS), "")


def remedy(name: str, engine: str) -> str:
    """Returns what to do about a fault of this name; empty for no name."""
    if not name:
        return ""
    by_engine = _REMEDIES[name]
    return by_engine.get(engine) or by_engine[_ANY]


Verdict = Literal["ok", "unknown", "fault"]
Finding = tuple[Verdict, str, str]
"""Result of a check: the verdict, the words of the report, and the name of the remedy, empty for none."""
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
    """The remedy; empty where there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Look:
    """One answer: as `predict` reads it, and its numbers as they came."""

    name: str
    parsed_text: ParsedText
    entries: Sequence[Mapping[str, Any]]
    """{token, logprob, top_logprobs} of every token, thinking included, whatever shape they came in."""
    parsed: ParsedResponse | None
    refusal: str
    """Reason why `parse_response` refuses the answer; empty where it takes the answer."""
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
        places = [map(fields, as_list(entry.get("top_logprobs")) or ()) for entry in self.entries]
        return [
            {text(row.get("token")): float(x) if _is_number(x := row.get("logprob")) else None for row in rows if row}
            for rows in places
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
        parsed_text = parse_text(whole, choice=choice)
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
    counted = parsed_text.usage.completion_tokens if len(whole["choices"]) == 1 else 0
    if type(hidden) is int and len(entries) <= counted - hidden + 1:  # counted, and never given
        counted -= hidden
    return Look(name, parsed_text, entries, parsed, refusal, has_none, counted)


def spelling(one: Look) -> Finding:
    """Whether the tokens spell the text, and how they are spelled."""
    if PLAIN in one.parsed_text.text:
        return "fault", f"{one.name}: the answer repeats the question", "echo"
    if not names_tokens(one.tokens):
        return "unknown", "the tokens do not say their texts, so nothing tells whose numbers they have", "ids"
    if one.parsed is None:  # for its numbers, which have a line of their own, or for its tokens
        verdict: Verdict = "unknown" if numbers(one)[0] == "fault" else "fault"
        return verdict, f"{one.name}: {one.refusal}", _cause(one)
    if one.parsed.segments and not any(part.kind == "answer" for part in one.parsed.segments):
        return "unknown", f"{one.name}: only thinking came, and no answer", "thinking"
    notes = [note for note in one.parsed.note.split("; ") if note and note not in _HARMLESS]
    if notes:
        worst: Verdict = "fault" if any("all are scored" in note for note in notes) else "unknown"
        return worst, f"{one.name}: {'; '.join(notes)}", "more"
    styles = [name for name, mark in _STYLES.items() if any(re.match(mark, token) for token in one.tokens)]
    ends = f"; {one.parsed.left_out} that only ended it left out" if one.parsed.left_out else ""
    return "ok", f"the tokens spell the text ({' and '.join(styles) or 'as plain text'}){ends}", ""


def _cause(one: Look) -> str:
    """The name of the remedy, by what the tokens are instead of the text's."""
    if one.parsed_text.thinking is not None:
        return "thinking"
    bare, whole = ["".join(token.split()) for token in one.tokens], "".join(one.parsed_text.text.split())
    if one.name == HOT_ANSWER and all(token in row and row[token] == _most(row) for token, row in _places(one)):
        return "likeliest"
    return "shifted" if len(bare) > 1 and whole.endswith("".join(bare[:-1])) else "part"


def count(one: Look) -> Finding:
    """Whether there is a number for each token that the usage counts."""
    came = len(one.entries)
    if not one.counted:
        return "unknown", f"{one.name}: {came} numbers, and the usage counts no tokens", "usage"
    if came < one.counted - 1 and one.parsed_text.thinking is not None:
        words = f"{one.name}: {came} numbers, and {one.counted} tokens by the usage, which counts the thinking too"
        return "unknown", words, "thinking"
    if abs(came - one.counted) > 1:  # an end token may be counted and not given, or the reverse
        return "fault", f"{one.name}: {came} numbers, and {one.counted} tokens by the usage", "part"
    return "ok", f"one number a token: {came}, and {one.counted} tokens by the usage", ""


def alternatives(one: Look) -> Finding:
    """Whether as many of the likeliest tokens came as were asked for, and can be the likeliest ones."""
    if any(None in row.values() for row in one.top):
        return "fault", f"{one.name}: one came without a number (null)", "null"
    widths = sorted(sum(x is not None and x > NO_LOGPROB for x in row.values()) for row in one.top)
    if not widths or not widths[-1]:
        return "unknown", f"{one.name}: none; {ALTERNATIVES} were asked for", "top"
    wrong = (one.parsed.top_fault if one.parsed else "") or _not_among(one)
    if wrong:
        return "fault", f"{one.name}: {wrong}", "other"
    if widths[0] < ALTERNATIVES:
        came = f"{widths[0]} to {widths[-1]}" if widths[0] < widths[-1] else str(widths[0])
        return "unknown", f"{one.name}: {came} a token of {ALTERNATIVES} asked for", "fewer"
    if one.name != HOT_ANSWER and not is_likeliest(one):
        return "unknown", f"{one.name}: at temperature 0 a token was drawn that is not the likeliest", "penalty"
    likeliest = [[x for x in row.values() if x is not None][:ALTERNATIVES] for row in one.top]
    ordered = all(row == sorted(row, reverse=True) for row in likeliest)
    return "ok", f"{widths[0]} a token, with numbers{'' if ordered else ', not in order'}", ""


def _not_among(one: Look) -> str:
    """Why the numbers cannot be of the drawn tokens: likely enough to be among the likeliest ones, and not there."""
    for (token, row), entry in zip(_places(one), one.entries, strict=True):
        own, lowest = entry.get("logprob"), min((x for x in row.values() if x is not None), default=0.0)
        if token.strip(_NO_WORDS) and token not in row and isinstance(own, float) and own > lowest + 0.02:
            return f"the drawn token {token[:20]!r} has {own:.3g}, and is none of the likeliest down to {lowest:.3g}"
    return ""


def numbers(one: Look) -> Finding:
    """Whether the numbers are log-probabilities, and no constants that stand for none."""
    if one.numbers is None:
        return "fault", f"{one.name}: a token came without a number (null)", "null"
    given = np.array(one.numbers, np.float32)
    if not len(given):
        return "fault", f"{one.name}: no numbers came", "part"
    if not np.isfinite(given).all():
        return "fault", f"{one.name}: {one.refusal}", "null"
    if given.max() > ROUNDING:
        return "fault", f"{one.name}: one is {given.max():g}; expected at most 0", "positive"
    wrong = one.refusal if one.has_none else doubtful(given)
    if not wrong:
        return "ok", f"log-probabilities from {given.min():.3g} to {given.max():.3g}", ""
    # So hot, OpenAI may draw a token that is none of the likeliest 20, and gives no number for it.
    strange = one.name == HOT_ANSWER and given.min() <= NO_LOGPROB
    return "unknown" if strange else "fault", f"{one.name}: {wrong}", "placeholder"


CHECKS = {"spelling": spelling, "count": count, "alternatives": alternatives, "numbers": numbers}


def is_likeliest(one: Look) -> bool:
    """Whether every drawn token is the likeliest of its place, as far as alternatives tell."""
    return all(not row or not token.strip(_NO_WORDS) or row.get(token) == _most(row) for token, row in _places(one))


def _places(one: Look) -> list[tuple[str, dict[str, float | None]]]:
    return list(zip(one.tokens, one.top, strict=True))


def _most(row: Mapping[str, float | None]) -> float:
    return max((x for x in row.values() if x is not None), default=-np.inf)


def _entries(given: object) -> list[Mapping[str, Any]]:
    held = fields(given) or {}
    rows = [*(as_list(held.get("reasoning_content")) or ()), *(as_list(held.get("content")) or ())]
    if not rows:  # the older shape, which some servers give in chats too
        numbers = as_list(held.get("token_logprobs")) or ()
        names, tops = (as_list(held.get(name)) or [None] * len(numbers) for name in ("tokens", "top_logprobs"))
        for token, x, top in zip(names, numbers, tops, strict=False):
            others = [{"token": other, "logprob": y} for other, y in (fields(top) or {}).items()]
            rows.append({"token": token, "logprob": x, "top_logprobs": others})
    return [entry for row in rows if (entry := fields(row)) is not None]


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


FAR_APART = 0.25
"""Mean difference, in nats, above which an answer that is asked for twice has other numbers the second time. Engines
that batch requests or cache prompts differ by up to 0.15 at one token."""
SPREAD = 1.0
"""Fewest nats between the alternatives of one place by which two temperatures can be told apart."""


def diagnose(asked: Interview) -> tuple[Sign, ...]:
    """Returns all findings, in the order of the report."""
    looks = {name: look(name, asked.body(name)) for name in ("plain", "cut", "hot", "streamed", "thinking")}
    engine = engine_of(asked)
    return tuple(Sign(check, verdict, words, remedy(do, engine)) for check, (verdict, words, do) in _all(asked, looks))


def _all(asked: Interview, looks: dict[str, Look | None]) -> Iterator[tuple[str, Finding]]:
    plain, cut, hot = looks["plain"], looks["cut"], looks["hot"]
    yield "given", _given(asked, plain)
    if plain is not None and plain.entries:
        # The short answers of a model that thinks are cut within the thinking.
        answers = [one for one in (plain, *((cut, hot) if not asked.thinks else ())) if one is not None]
        for name, check in CHECKS.items():  # the worst finding; of equals, the first
            yield name, min((check(one) for one in answers), key=lambda one: ("fault", "unknown", "ok").index(one[0]))
        yield "temperature", _temperature(asked, cut, hot)
        yield "finish", _finish(plain, cut)
    yield "streamed", _streamed(asked, plain, looks["streamed"])
    if plain is not None and plain.entries:
        yield "n = 2", _two(asked)
        yield "tool call", _tool(asked)
        yield "thinking", _thinking(asked, plain if asked.thinks else looks["thinking"])


def _given(asked: Interview, plain: Look | None) -> Finding:
    why = asked.first_failure
    if plain is None:
        if asked.body("plain") is not None:
            return "fault", "the answer cannot be read as a chat completion", "address"
        return "fault", f"asking for log-probabilities makes the request fail: {why}", "fails"
    if not plain.entries:
        return "fault", f"none came, though they were asked for: {plain.refusal}", "given"
    came = f"{len(plain.entries)} log-probabilities of the first answer"
    if not asked.has_alternatives:
        return "unknown", f"{came}, without alternatives and temperature; with them: {why}", "top"
    if why is not None:
        return "unknown", f"{came}, at the second attempt; the first failed: {why}", "again"
    return "ok", came, ""


def _temperature(asked: Interview, cold: Look | None, hot: Look | None) -> Finding:
    """Whether the first place has the same distribution at both temperatures."""
    if cold is None or hot is None or not cold.entries or not hot.entries:
        why = asked.failure("hot") or asked.failure("cut")
        broken = why is not None and (why.status or 0) >= 500
        return "unknown", f"nothing to compare: {why}", "fails" if broken else "mode"
    if cold.numbers and not any(cold.numbers) and any(hot.numbers or ()):
        return "fault", "at temperature 0 every number is 0: they are the sampler's", "processed"
    a, b = ({token: x for token, x in one.top[0].items() if x is not None and x > NO_LOGPROB} for one in (cold, hot))
    shared = sorted(a.keys() & b.keys())
    x, y = (np.array([held[token] for token in shared]) for held in (a, b))
    if len(shared) < 2 or np.ptp(x) < SPREAD:
        return "unknown", f"{len(shared)} shared alternatives are too few or too close", "mode"
    x, y = x - x.mean(), y - y.mean()
    ratio = float(x @ y / (x @ x))
    change = f"from temperature 0 to {HOT:g} the differences of alternatives become {ratio:.2f} times as large"
    if abs(ratio - 1 / HOT) < 0.1:
        return "fault", f"processed: {change}", "processed"
    if abs(ratio - 1) > 0.15:
        return "unknown", f"neither raw nor processed: {change}", "mode"
    if is_likeliest(hot):
        return "unknown", f"the same at {HOT:g}, which may be ignored: only likeliest tokens were drawn", "mode"
    return "ok", f"raw: the same at temperature 0 and {HOT:g}", "raw"


def _finish(plain: Look, cut: Look | None) -> Finding:
    """Whether an answer that the model ended and one that the limit cut say so."""
    if cut is None:
        return "unknown", "no answer came that the limit should have cut", "finish"
    whole, short, came = (
        plain.parsed_text.finish_reason,
        cut.parsed_text.finish_reason,
        max(len(cut.entries), cut.counted),
    )
    words = f"the whole answer says {whole!r}, the cut one {short!r}"
    if came > CUT_AT + 1:
        return "fault", f"max_tokens {CUT_AT} gave {came} tokens", "limit"
    if not whole or not short or (short == STOP and came >= CUT_AT):
        return "fault", words, "finish"
    if (whole, short) == (LENGTH, LENGTH):
        return "unknown", "no answer ended by itself, so only a cut one was seen", "talks"
    verdict: Verdict = "ok" if (whole, short) == (STOP, LENGTH) else "unknown"
    return verdict, words, "" if verdict == "ok" else "finish"


def _streamed(asked: Interview, plain: Look | None, one: Look | None) -> Finding:
    reply = asked.replies.get("streamed")
    if reply is None or not reply.body:
        return "fault", f"no stream came: {asked.failure('streamed')}", "stream"
    errors = [error for chunk in reply.body if (error := error_of(fields(chunk) or {}))]
    if errors or one is None:
        return "fault", f"the stream holds an error: {errors or reply.body[:1]}"[:200], "stream"
    if not one.entries:
        return "fault", "the chunks hold no log-probabilities", "stream"
    if not one.parsed_text.finish_reason:
        return "fault", "no chunk says how the answer ended", "finish"
    if wrong := _first_fault(one):
        check, words, do = wrong
        return "fault", words, "chunks" if check == "alternatives" else do
    if plain is not None and (differing := _differing(plain, one)):
        return differing
    if reply.ends != 1 or reply.late:
        return "unknown", f"{reply.ends} times [DONE]; expected it once, at the end", "done"
    if not one.parsed_text.usage.completion_tokens:
        return "unknown", "the same numbers, and no usage, though it was asked for", "usage"
    return "ok", f"the same numbers in {len(reply.body)} chunks; end, usage and [DONE]", ""


def _differing(plain: Look, one: Look) -> Finding | None:
    """Returns how the streamed answer differs from the whole one, to the same question at temperature 0."""
    if plain.parsed_text.text != one.parsed_text.text:
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


def _two(asked: Interview) -> Finding:
    body = fields(asked.body("two")) or {}
    came = len(as_list(body.get("choices")) or ())
    if came != 2:
        why = asked.failure("two") or "no error"
        return "unknown", f"{came} of 2 answers came ({why})", "once"
    first, second = (look(f"answer {i + 1}", body, i) for i in range(2))
    if first is None or second is None or not first.entries or not second.entries:
        return "fault", "an answer came without log-probabilities", "once"
    if wrong := _first_fault(first) or _first_fault(second):
        return "fault", wrong[1], "once"
    if first.parsed_text.text == second.parsed_text.text:
        return "unknown", "both answers are the same, so their numbers cannot be told apart", "again"
    if first.numbers == second.numbers:
        return "fault", "two answers came with the same numbers", "once"
    return "ok", "both answers have numbers of their own", ""


def _tool(asked: Interview) -> Finding:
    for name, where in (("tool", ""), ("forced", ", where it is forced")):
        one = look(name, asked.body(name))
        if one is not None and TOOL_NAME in one.parsed_text.text and "{" in one.parsed_text.text:
            return "fault", f"a call came as words: {one.parsed_text.text[:60]!r}", "tool"
        if one is not None and one.parsed_text.finish_reason == TOOL_CALL:
            return "ok", f"a call is marked as such{where}", ""
    return "unknown", f"no call came: {asked.failure('forced') or asked.failure('tool')}", "tool"


def _thinking(asked: Interview, one: Look | None) -> Finding:
    if one is None or (
        one.parsed_text.thinking is None and not (one.parsed and one.parsed.segments) and not asked.thinks
    ):
        cut = " before the answer was cut" if one is not None and one.parsed_text.finish_reason == LENGTH else ""
        return "unknown", f"no thinking came{cut}", "think"
    if one.parsed is None:
        return "fault", one.refusal, "thinking"
    try:
        answer = answer_of(one.parsed)
    except InvalidResponse as error:  # it was cut while it thought
        return "unknown", str(error), "thinking"
    if asked.thinks and not one.parsed.segments:
        return "fault", "thinking came, and its tokens are not told from the answer's", "thinking"
    thought = 0 if answer.thinking is None else len(answer.thinking)
    return "ok", f"told apart: numbers of {thought} tokens of the thinking, {len(answer.logprobs)} of the answer", ""


def _first_fault(one: Look) -> tuple[str, str, str] | None:
    """Returns check, words and remedy of the first check that finds a fault; None where there is none.

    `count` is left out: a stream, or one of two answers, need not have a usage of its own.
    """
    for name in ("spelling", "alternatives", "numbers"):
        verdict, words, do = CHECKS[name](one)
        if verdict == "fault":
            return name, words, do
    return None
