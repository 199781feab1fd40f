"""Asks an OpenAI-compatible endpoint a few small questions, and reports what it does to log-probabilities.

It makes at most `MOST_REQUESTS` requests, each once and within a time limit. Each has a few dozen tokens; a model that
thinks is given more. `parse_response` reads an answer, as `predict` does, and the rules of `records` about tokens,
numbers and alternatives judge it. Each finding names what to set.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from metaprobe.llms.base import LLMError
from metaprobe.llms.endpoint import KEY_VARIABLE, Endpoint, EndpointError
from metaprobe.llms.openai_client import CHAT_PATH
from metaprobe.llms.pricing import OPENAI_HOST
from metaprobe.records.answer_stream import AnswerStream
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.parse import from_json, parse_response, parse_text
from metaprobe.records.reading import LENGTH, STOP, TOOL_CALL, as_list, error_of, fields, refuse_error, text
from metaprobe.records.response import NO_LOGPROB, ParsedResponse, ParsedText, cut_to_answer, describe_doubts, first_of
from metaprobe.records.segments import CLOSINGS, ONLY_ANSWER, OPENINGS
from metaprobe.records.spelling import names_tokens

MOST_REQUESTS = 10
"""Most requests that are made. Checks that would need more are reported as unknown."""
ALTERNATIVES = 5
"""Number of likeliest tokens requested for each token."""
HOT_TEMPERATURE = 1.5
"""The higher of the two compared temperatures: far enough from 1 to show, low enough that the answer still
has words.
"""
CUT_AT_TOKENS = 4
"""Token limit of the answer that is to be cut: fewer tokens than the answer needs."""
SHORT_LIMIT, LONG_LIMIT = 48, 96
"""Token limits of answers. The longer one is for the question about which a model should think."""
MAX_MEAN_DIFFERENCE_NATS = 0.25
"""Mean difference, in nats, above which two answers to a repeated request count as having different numbers.

Engines that batch requests or cache prompts differ by up to 0.15 at one token.
"""
MIN_SPREAD_NATS = 1.0
"""Fewest nats between the alternatives of one token with which two temperatures can be told apart."""

PLAIN_QUESTION = "What is the capital of France? Answer in one short sentence."
OPEN_QUESTION = "Name any animal, city or number that comes to your mind, and say in one sentence why."
TOOL_QUESTION = "What is the weather in Paris now? Call the tool get_weather; do not answer in words."
THINKING_QUESTION = "Is 91 a prime number? Think step by step, then answer yes or no."
TOOL_NAME = "get_weather"
_TOOL = {
    "name": TOOL_NAME,
    "description": "Returns the weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}

_SPECULATION_REMEDY = (
    "switch speculative decoding off (vLLM --speculative-config, SGLang --speculative-algorithm, llama.cpp -md)"
)
REMEDIES = {
    "address": "check that URL is the address of an OpenAI-compatible API; it usually ends in /v1",
    "given": "llama-cpp-python: --logits_all true; llama.cpp: ask for top_logprobs of at least 1, and "
    f"{_SPECULATION_REMEDY}; Ollama: 0.12.11 or later; LiteLLM: name logprobs in allowed_openai_params; else ask "
    "another endpoint or model",
    "fails": "ask another model (OpenAI's reasoning models refuse logprobs), or update the server; llama-cpp-python:"
    " --logits_all true; vLLM: raise --max-logprobs; LiteLLM: name logprobs and top_logprobs in allowed_openai_params",
    "top": "predictors that read alternatives will refuse these answers; ask for as many as the server allows (vLLM:"
    " --max-logprobs)",
    "again": "run doctor again: a request that failed once may fail again",
    "fewer": "train and score with as many alternatives as come; the sampler's top_k or top_p may take the rest",
    "ids": "switch return_tokens_as_token_ids off: whether tokens are the answer's cannot be checked by ids",
    "echo": "switch off what repeats the prompt: echo, or TGI's return_full_text",
    "numbers": "some numbers may be missing, stand for none, or be of the next token, or of the likeliest token in"
    f" place of the drawn one: {_SPECULATION_REMEDY}; send top_p 1 and no top_k; set log-probabilities, not "
    "probabilities (raw_logprobs); llama-cpp-python: --logits_all true; SGLang: --stream-interval 1; update the server",
    "more": "tokens outside of the text come with numbers: switch off echo and TGI's decoder_input_details, name stop"
    " texts as end tokens, or leave the numbers of such tokens out",
    "usage": "nothing checks that all tokens have numbers; send stream_options {include_usage: true}, or let the"
    " server count",
    "mode": "tell metaprobe what you know: logprobs_mode=raw or processed (collect: --api logprobs_mode=raw)",
    "processed": "vLLM: --logprobs-mode raw_logprobs; SGLang: SGLANG_RETURN_ORIGINAL_LOGPROB=1; llama.cpp: send"
    " post_sampling_probs false; or train and score at one temperature with logprobs_mode=processed",
    "penalty": "a penalty or filter changes what is drawn; switch it off by --extra-body, and in your own requests:"
    ' {"repeat_penalty": 1.0, "repetition_penalty": 1.0, "min_p": 0.0, "top_k": 0}',
    "talks": "look at a longer answer of your own: its finish_reason should be stop",
    "finish": "whether an answer was cut is not known: leave max_tokens away, or compare usage with max_tokens",
    "limit": "the server ignores max_tokens: bound answers in the server",
    "stream": "do not stream answers that are to be scored: watch and the gate have nothing to read there",
    "chunks": "do not stream answers that are to be scored; SGLang: --stream-interval 1 without speculative decoding",
    "done": "a proxy before this server may take the stream for cut; update the server",
    "once": "ask n times for one answer each",
    "tool": "set the server's parser of tool calls, if tools are used (vLLM: --enable-auto-tool-choice"
    " --tool-call-parser NAME; SGLang: --tool-call-parser NAME; llama-server: --jinja): a call in words is scored as "
    "an answer",
    "think": "if this model thinks, switch it on by --extra-body and ask again",
    "thinking": "raise --thinking-tokens if the model was cut while it thought; else switch the server's reasoning"
    " parser off, or the thinking",
}
"""Maps the name of a fault to what to do about it."""

CheckResult = Literal["ok", "unknown", "fault"]
CheckFinding = tuple[CheckResult, str, str]
"""Result of a check: (verdict, message about what was found, name in `REMEDIES` or empty)."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the report."""

    check: str
    verdict: CheckResult
    found: str
    do: str = ""
    """The remedy; empty if there is nothing to do."""


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """The answer to one request."""

    body: Any = None
    """The JSON object, or the list of a stream's chunks; None if the request failed."""
    failure: EndpointError | None = None
    ends: int = 0
    """Number of `[DONE]` lines of a stream."""


@dataclass(slots=True)
class Interview:
    """All replies of one endpoint, by the name of the question."""

    endpoint: str
    model: str
    replies: dict[str, EndpointReply] = field(default_factory=dict)
    """Replies to `plain`, `without`, `streamed`, `cut`, `hot`, `two`, `tool`, `thinking`. A question that was not asked
    has no reply.
    """
    first_failure: EndpointError | None = None
    """Why the first question failed, if a second attempt with other options succeeded."""
    has_alternatives: bool = True
    """Whether alternatives and a temperature are requested."""
    thinks: bool = False
    """Whether the first answer held thinking."""
    requests: int = 0

    def body(self, name: str) -> Any:
        """Returns the body of that reply; None if the question was not asked, or failed."""
        reply = self.replies.get(name)
        return reply.body if reply else None

    def failure(self, name: str) -> EndpointError | None:
        """Returns why that question has no answer; None if it has one."""
        reply = self.replies.get(name)
        return reply.failure if reply else EndpointError("it was not asked", passing=False)


class Interviewer:
    """Asks one endpoint the questions of the examination."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str = KEY_VARIABLE,
        timeout_s: float = 60.0,
        thinking_tokens: int = 512,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `LLMError` for an invalid address, and for an impossible key.

        Args:
            url: address of the endpoint.
            model: name of the model.
            key_variable: environment variable that holds the key.
            timeout_s: seconds that one answer may take.
            thinking_tokens: tokens that a model may use for thinking, in addition to each answer.
            extra_body: additional fields of every request.
        """
        if not model:
            raise LLMError("the model's name is empty; expected one that the endpoint knows: see its /models")
        self._endpoint = Endpoint(
            url, concurrency=1, attempts=1, key_variable=key_variable, timeout_s=timeout_s, max_wait_s=timeout_s
        )
        # OpenAI's newer models know only the newer name, and many other servers only the older one.
        self._limit_field = "max_completion_tokens" if self._endpoint.host == OPENAI_HOST else "max_tokens"
        self._thinking_tokens = thinking_tokens
        self._extra_body = dict(extra_body or {})
        self._interview = Interview(self._endpoint.address, model)

    async def ask_all(self) -> Interview:
        """Returns all replies. Raises `LLMError` if the endpoint answers no question at all."""
        interview = self._interview
        try:
            if failure := (await self._make_request("plain", PLAIN_QUESTION, SHORT_LIMIT)).failure:
                # Find out whether the request fails because it asks for log-probabilities.
                bare: dict[str, Any] = {"logprobs": None, "top_logprobs": None, "temperature": None}
                if (await self._make_request("without", PLAIN_QUESTION, SHORT_LIMIT, **bare)).failure:
                    raise LLMError(f"the endpoint could not be asked: {failure}") from None
                interview.first_failure = failure
                # A second attempt tells whether the first one failed by chance.
                if (await self._make_request("plain", PLAIN_QUESTION, SHORT_LIMIT)).failure:
                    interview.has_alternatives = False
                    await self._make_request("plain", PLAIN_QUESTION, SHORT_LIMIT)
            interview.thinks = _thinks(interview.body("plain"))
            if interview.thinks:
                await self._make_request("plain", PLAIN_QUESTION, SHORT_LIMIT)
            await self._make_request("streamed", PLAIN_QUESTION, SHORT_LIMIT, stream=True)
            if not _has_logprobs(interview.body("plain")):
                return interview
            has_alternatives = interview.has_alternatives
            await self._make_request("cut", OPEN_QUESTION, CUT_AT_TOKENS, thinking_room=0)
            if has_alternatives:
                await self._make_request("hot", OPEN_QUESTION, 16, thinking_room=0, temperature=HOT_TEMPERATURE)
            await self._make_request("two", OPEN_QUESTION, 16, n=2, temperature=1.0 if has_alternatives else None)
            tools: dict[str, Any] = {"tools": [{"type": "function", "function": _TOOL}]}
            await self._make_request("tool", TOOL_QUESTION, SHORT_LIMIT, tool_choice="auto", **tools)
            if not interview.thinks:
                await self._make_request("thinking", THINKING_QUESTION, LONG_LIMIT)
        finally:
            await self._endpoint.aclose()
        return interview

    async def _make_request(
        self, name: str, content: str, token_limit: int, *, thinking_room: int | None = None, **other_fields: Any
    ) -> EndpointReply:
        """Makes one request, unless the number of requests is used up. A field of None is not sent.

        Args:
            name: name of the question.
            content: the question.
            token_limit: token limit of the answer.
            thinking_room: additional tokens for the thinking; by default the most that thinking may use.
            **more: other fields of the request.
        """
        interview = self._interview
        thinking_room = thinking_room if thinking_room is not None else self._thinking_tokens if interview.thinks else 0
        body: dict[str, Any] = {"model": interview.model, "messages": [{"role": "user", "content": content}]}
        body |= {self._limit_field: token_limit + thinking_room, "logprobs": True}
        if interview.has_alternatives:
            body |= {"temperature": 0.0, "top_logprobs": ALTERNATIVES}
        if other_fields.get("stream"):
            body["stream_options"] = {"include_usage": True}
        body = {key: value for key, value in (body | self._extra_body | other_fields).items() if value is not None}
        try:
            if interview.requests >= MOST_REQUESTS:
                raise EndpointError(f"not asked: {MOST_REQUESTS} requests are spent", passing=False)
            interview.requests += 1
            async with self._endpoint.slot() as client:
                # The answer is taken as text: `records` reads it, and a stream's [DONE] is seen.
                reply_text = await self._endpoint.once(client.post(CHAT_PATH, body=body, cast_to=str), name)
            if body.get("stream"):
                reply = read_stream(reply_text)
            else:
                parsed = from_json(reply_text)
                if not isinstance(parsed, Mapping):
                    raise InvalidResponse(f"JSON of the kind {type(parsed).__name__} came; expected an object")
                refuse_error(parsed)
                reply = EndpointReply(parsed)
        except InvalidResponse as error:
            failure = EndpointError(f"{name}: no readable answer: {error}", passing=False)
            reply = EndpointReply(failure=failure)
        except EndpointError as error:
            reply = EndpointReply(failure=error)
        interview.replies[name] = reply
        return reply


def read_stream(text: str) -> EndpointReply:
    """Returns the chunks of a stream's text. Raises `InvalidResponse` if a chunk is not JSON."""
    chunks: list[Any] = []
    ends = 0
    # Not by splitlines: JSON may hold U+2028 as it is.
    for line in re.split(r"\r\n|\n|\r", text):
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or not data:
            continue
        if data == "[DONE]":
            ends += 1
        else:
            chunks.append(from_json(data))
    if not chunks:
        raise InvalidResponse(f"a stream came without chunks ({text[:60]!r}); expected `data:` and JSON, line by line")
    return EndpointReply(chunks, ends=ends)


def _has_logprobs(answer: Any) -> bool:
    """Returns whether the first choice came with log-probabilities, right or wrong."""
    choices = as_list((fields(answer) or {}).get("choices")) or ()
    logprobs = fields((fields(choices[0]) or {}).get("logprobs")) if choices else None
    return any((logprobs or {}).get(name) for name in ("content", "reasoning_content", "token_logprobs"))


def _thinks(answer: Any) -> bool:
    """Returns whether an answer holds thinking, separated or not."""
    try:
        parsed_text = parse_text(answer)
    except InvalidResponse:
        return False
    answer_text = parsed_text.text.lstrip()
    return (
        parsed_text.thinking is not None
        or answer_text.startswith(OPENINGS)
        or any(mark in answer_text for mark in CLOSINGS)
    )


# Judging the answers

_HARMLESS_NOTES = (ONLY_ANSWER, first_of(2, 0))
"""Notes of `parse_response` that are no finding."""
_BLANK_CHARS = "\ufffd \t\r\n"
"""Characters that are removed before a token is looked up among the alternatives."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """One answer: as `predict` reads it, and its numbers as the server sent them."""

    name: str
    parsed_text: ParsedText
    tokens: list[str]
    """Tokens in the server's spelling, with the thinking, from either format."""
    numbers: list[float | None]
    """Log-probability of each token; None if it has none."""
    top: list[dict[str, float | None]]
    """Alternatives of each token: text -> log-probability, or None."""
    parsed: ParsedResponse | None
    refusal: str
    """Why `parse_response` refuses the answer; empty if it accepts the answer."""
    usage_count: int
    """Number of tokens that should have numbers, according to the usage; 0 if the usage counts none."""

    @property
    def likeliest_only(self) -> bool:
        """Whether every drawn token is the likeliest one, as far as alternatives show."""
        return all(
            not row or not token.strip(_BLANK_CHARS) or row.get(token) == max(map(_or_lowest, row.values()))
            for token, row in zip(self.tokens, self.top, strict=True)
        )


def _or_lowest(number: float | None) -> float:
    return -np.inf if number is None else number


def parse_reply(name: str, body: Any, choice: int = 0) -> ParsedReply | None:
    """Returns the answer of a chat completion, whole or as chunks; None if there is none.

    Args:
        name: name of the question.
        body: the completion, or its chunks.
        choice: number of the answer.
    """
    whole_body = body
    try:
        if isinstance(body, list):
            answer_stream = AnswerStream(choice)
            for chunk in body:
                answer_stream.add(chunk)
            whole_body = answer_stream.response()
        parsed_text = parse_text(whole_body, choice=choice)
    except InvalidResponse:
        return None
    # The answer with its log-probabilities, or why it is refused.
    parsed, refusal = None, ""
    try:
        parsed = parse_response(body, choice=choice)
    except InvalidResponse as error:
        refusal = str(error)
    logprobs = fields((fields(whole_body["choices"][choice]) or {}).get("logprobs")) or {}
    listed_entries = [*(as_list(logprobs.get("reasoning_content")) or ()), *(as_list(logprobs.get("content")) or ())]
    if not listed_entries:  # the older shape, which some servers give in chats too
        numbers = as_list(logprobs.get("token_logprobs")) or ()
        names, tops = (as_list(logprobs.get(key)) or [None] * len(numbers) for key in ("tokens", "top_logprobs"))
        for token, logprob, top in zip(names, numbers, tops, strict=False):
            alternatives = [
                {"token": alternative, "logprob": other_logprob}
                for alternative, other_logprob in (fields(top) or {}).items()
            ]
            listed_entries.append({"token": token, "logprob": logprob, "top_logprobs": alternatives})
    # The tokens as they came, and how many of them should have numbers according to the usage.
    entries = [entry for listed_entry in listed_entries if (entry := fields(listed_entry)) is not None]
    alternatives_by_token = [map(fields, as_list(entry.get("top_logprobs")) or ()) for entry in entries]
    details = fields((fields(whole_body.get("usage")) or {}).get("completion_tokens_details")) or {}
    thinking_count = details.get("reasoning_tokens")
    usage_count = parsed_text.usage.completion_tokens if len(whole_body["choices"]) == 1 else 0
    if type(thinking_count) is int and len(entries) <= usage_count - thinking_count + 1:  # counted, but without numbers
        usage_count -= thinking_count
    return ParsedReply(
        name,
        parsed_text,
        tokens=[text(entry.get("token")) for entry in entries],
        numbers=[_number_or_none(entry.get("logprob")) for entry in entries],
        top=[
            {text(row.get("token")): _number_or_none(row.get("logprob")) for row in rows if row}
            for rows in alternatives_by_token
        ],
        parsed=parsed,
        refusal=refusal,
        usage_count=usage_count,
    )


def _number_or_none(value: object) -> float | None:
    return float(value) if type(value) in (int, float) else None  # type: ignore[arg-type]


def diagnose(interview: Interview) -> tuple[Diagnosis, ...]:
    """Returns all findings, in the order of the report."""
    return tuple(
        Diagnosis(check, verdict, words, REMEDIES[do] if do else "")
        for check, (verdict, words, do) in _findings(interview)
    )


def _findings(interview: Interview) -> Iterator[tuple[str, CheckFinding]]:
    """Yields the name and the finding of each check. Without tokens to judge, the stream alone is checked."""
    replies = {
        name: parse_reply(name, interview.body(name)) for name in ("plain", "cut", "hot", "streamed", "thinking")
    }
    plain, cut, hot = replies["plain"], replies["cut"], replies["hot"]
    yield "given", _check_plain_answer(interview, plain)
    if plain is None or not plain.tokens:
        yield "streamed", _check_stream(interview, plain, replies["streamed"])
        return
    # The short answers of a model that thinks are cut within the thinking.
    answers = [reply for reply in (plain, *((cut, hot) if not interview.thinks else ())) if reply is not None]
    for name, check in REPLY_CHECKS.items():  # the worst finding; of equals, the first
        yield (
            name,
            min((check(reply) for reply in answers), key=lambda finding: ("fault", "unknown", "ok").index(finding[0])),
        )
    yield "temperature", _check_temperature(interview, cut, hot)
    yield "finish", _check_finish_reason(plain, cut)
    yield "streamed", _check_stream(interview, plain, replies["streamed"])
    yield "n = 2", _check_two_answers(interview)
    yield "tool call", _check_tool_call(interview)
    yield "thinking", _check_thinking(interview, plain if interview.thinks else replies["thinking"])


def _check_plain_answer(interview: Interview, plain: ParsedReply | None) -> CheckFinding:
    reason = interview.first_failure
    if plain is None:
        if interview.body("plain") is not None:
            return "fault", "the answer cannot be read as a chat completion", "address"
        return "fault", f"asking for log-probabilities makes the request fail: {reason}", "fails"
    if not plain.tokens:
        return "fault", f"none came, though they were asked for: {plain.refusal}", "given"
    received = f"{len(plain.tokens)} log-probabilities of the first answer"
    if not interview.has_alternatives:
        return "unknown", f"{received}, without alternatives and temperature; with them: {reason}", "top"
    if reason is not None:
        return "unknown", f"{received}, at the second attempt; the first failed: {reason}", "again"
    return "ok", received, ""


def check_numbers(answer: ParsedReply) -> CheckFinding:
    """Checks that the tokens spell the text, that each has a log-probability, and that the usage counts as many."""
    thinks, token_count = answer.parsed_text.thinking is not None, len(answer.tokens)
    counts = f"{answer.name}: {token_count} numbers, and {answer.usage_count} tokens by the usage"
    if PLAIN_QUESTION in answer.parsed_text.text:
        return "fault", f"{answer.name}: the answer repeats the question", "echo"
    if answer.parsed is None:
        return "fault", f"{answer.name}: {answer.refusal}", "thinking" if thinks else "numbers"
    if answer.parsed.segments and not any(part.kind == "answer" for part in answer.parsed.segments):
        return "unknown", f"{answer.name}: only thinking came, and no answer", "thinking"
    if doubt := describe_doubts(answer.parsed.logprobs):
        # At this temperature OpenAI may draw a token outside the 20 likeliest, and gives no number for it.
        is_unlisted_token = answer.name == "hot" and answer.parsed.logprobs.min() <= NO_LOGPROB
        return "unknown" if is_unlisted_token else "fault", f"{answer.name}: {doubt}", "numbers"
    if token_count < answer.usage_count - 1 and thinks:
        return "unknown", f"{counts}, which counts the thinking too", "thinking"
    # An end token may be counted and not given, or the reverse.
    if answer.usage_count and abs(token_count - answer.usage_count) > 1:
        return "fault", counts, "numbers"
    notes = [note for note in answer.parsed.note.split("; ") if note and note not in _HARMLESS_NOTES]
    if notes:
        worst: CheckResult = "fault" if any("all are scored" in note for note in notes) else "unknown"
        return worst, f"{answer.name}: {'; '.join(notes)}", "more"
    if not names_tokens(answer.tokens):
        return "unknown", "the tokens do not say their texts, so nothing tells whose numbers they have", "ids"
    if not answer.usage_count:
        return "unknown", f"{answer.name}: {token_count} numbers, and the usage counts no tokens", "usage"
    words = "the tokens spell the text, each with a log-probability, and the usage counts"
    return "ok", f"{words} {answer.usage_count}", ""


def check_alternatives(answer: ParsedReply) -> CheckFinding:
    """Checks that as many alternatives came as requested, and that they can be the likeliest tokens."""
    if any(None in row.values() for row in answer.top):
        return "fault", f"{answer.name}: one came without a number (null)", "numbers"
    widths = sorted(sum(x is not None and x > NO_LOGPROB for x in row.values()) for row in answer.top)
    if not widths or not widths[-1]:
        return "unknown", f"{answer.name}: none; {ALTERNATIVES} were asked for", "top"
    if answer.parsed and answer.parsed.top_fault:
        return "fault", f"{answer.name}: {answer.parsed.top_fault}", "numbers"
    for token, own_logprob, row in zip(answer.tokens, answer.numbers, answer.top, strict=True):
        lowest = min(map(_or_lowest, row.values()), default=0.0)
        # Such a token is likely enough to be among the likeliest ones: the numbers are not of the drawn tokens.
        if token.strip(_BLANK_CHARS) and token not in row and own_logprob is not None and own_logprob > lowest + 0.02:
            wrong = (
                f"the drawn token {token[:20]!r} has {own_logprob:.3g}, "
                f"and is none of the likeliest down to {lowest:.3g}"
            )
            return "fault", f"{answer.name}: {wrong}", "numbers"
    if widths[0] < ALTERNATIVES:
        widths_text = f"{widths[0]} to {widths[-1]}" if widths[0] < widths[-1] else str(widths[0])
        return "unknown", f"{answer.name}: {widths_text} a token of {ALTERNATIVES} asked for", "fewer"
    if answer.name != "hot" and not answer.likeliest_only:
        return "unknown", f"{answer.name}: at temperature 0 a token was drawn that is not the likeliest", "penalty"
    return "ok", f"{widths[0]} a token, with numbers", ""


REPLY_CHECKS = {"numbers": check_numbers, "alternatives": check_alternatives}


def _check_temperature(interview: Interview, cold: ParsedReply | None, hot: ParsedReply | None) -> CheckFinding:
    """Checks whether the first token has the same distribution at both temperatures.

    Args:
        interview: the interview.
        cold: the answer at temperature 0.
        hot: the answer at a higher temperature.
    """
    if cold is None or hot is None or not cold.tokens or not hot.tokens:
        reason = interview.failure("hot") or interview.failure("cut")
        broken = reason is not None and (reason.status or 0) >= 500
        return "unknown", f"nothing to compare: {reason}", "fails" if broken else "mode"
    if not any(cold.numbers) and None not in cold.numbers and any(hot.numbers):
        return "fault", "at temperature 0 every number is 0: they are the sampler's", "processed"
    a, b = (
        {token: x for token, x in answer.top[0].items() if x is not None and x > NO_LOGPROB} for answer in (cold, hot)
    )
    shared = sorted(a.keys() & b.keys())
    x, y = (np.array([logprob_of[token] for token in shared]) for logprob_of in (a, b))
    if len(shared) < 2 or np.ptp(x) < MIN_SPREAD_NATS:
        return "unknown", f"{len(shared)} shared alternatives are too few or too close", "mode"
    x, y = x - x.mean(), y - y.mean()
    ratio = float(x @ y / (x @ x))
    change = (
        f"from temperature 0 to {HOT_TEMPERATURE:g} the differences of alternatives become {ratio:.2f} times as large"
    )
    if abs(ratio - 1 / HOT_TEMPERATURE) < 0.1:
        return "fault", f"processed: {change}", "processed"
    if abs(ratio - 1) > 0.15:
        return "unknown", f"neither raw nor processed: {change}", "mode"
    if hot.likeliest_only:
        return (
            "unknown",
            f"the same at {HOT_TEMPERATURE:g}, which may be ignored: only likeliest tokens were drawn",
            "mode",
        )
    return "ok", f"raw: the same at temperature 0 and {HOT_TEMPERATURE:g}", "mode"


def _check_finish_reason(plain: ParsedReply, cut: ParsedReply | None) -> CheckFinding:
    """Checks that an ended answer and a cut answer state how they ended."""
    if cut is None:
        return "unknown", "no answer came that the limit should have cut", "finish"
    plain_reason, cut_reason = plain.parsed_text.finish_reason, cut.parsed_text.finish_reason
    token_count = max(len(cut.tokens), cut.usage_count)
    words = f"the whole answer says {plain_reason!r}, the cut one {cut_reason!r}"
    if token_count > CUT_AT_TOKENS + 1:
        return "fault", f"max_tokens {CUT_AT_TOKENS} gave {token_count} tokens", "limit"
    if not plain_reason or not cut_reason or (cut_reason == STOP and token_count >= CUT_AT_TOKENS):
        return "fault", words, "finish"
    if (plain_reason, cut_reason) == (LENGTH, LENGTH):
        return "unknown", "no answer ended by itself, so only a cut one was seen", "talks"
    return ("ok", words, "") if (plain_reason, cut_reason) == (STOP, LENGTH) else ("unknown", words, "finish")


def _check_stream(interview: Interview, plain: ParsedReply | None, parsed: ParsedReply | None) -> CheckFinding:
    """Returns whether the streamed answer is whole and has the numbers of the same answer without streaming."""
    reply = interview.replies.get("streamed")
    if reply is None or not reply.body:
        return "fault", f"no stream came: {interview.failure('streamed')}", "stream"
    errors = [error for chunk in reply.body if (error := error_of(fields(chunk) or {}))]
    if errors or parsed is None:
        return "fault", f"the stream holds an error: {errors or reply.body[:1]}"[:200], "stream"
    if not parsed.tokens:
        return "fault", "the chunks hold no log-probabilities", "stream"
    if not parsed.parsed_text.finish_reason:
        return "fault", "no chunk says how the answer ended", "finish"
    if wrong := _first_fault(parsed):
        return "fault", wrong, "chunks"
    if plain is not None:  # the answer to the same question, at temperature 0
        if plain.parsed_text.text != parsed.parsed_text.text:
            explanation = "at temperature 0 another answer came than without streaming, so nothing to compare"
            return "unknown", explanation, "again"
        # llama.cpp lists the end token in a whole answer, without text, and not in a stream.
        plain_count, streamed_count = _count_up_to_text(plain.tokens), _count_up_to_text(parsed.tokens)
        if plain.tokens[:plain_count] != parsed.tokens[:streamed_count]:
            return "fault", f"{streamed_count} tokens for a text of {plain_count} tokens", "stream"
        differences_by_token = [
            _mean_difference([*a.values()], [*b.values()])
            for a, b in zip(plain.top[:plain_count], parsed.top[:streamed_count], strict=True)
        ]
        worst_difference = max(
            _mean_difference(plain.numbers[:plain_count], parsed.numbers[:streamed_count]),
            float(np.mean(differences_by_token or [0.0])),
        )
        if worst_difference > MAX_MEAN_DIFFERENCE_NATS:
            return (
                "fault",
                f"other numbers than without streaming, {worst_difference:.2f} nats apart on average",
                "chunks",
            )
    if reply.ends != 1:
        return "unknown", f"{reply.ends} times [DONE]; expected it once, at the end", "done"
    if not parsed.parsed_text.usage.completion_tokens:
        return "unknown", "the same numbers, and no usage, though it was asked for", "usage"
    return "ok", f"the same numbers in {len(reply.body)} chunks; end, usage and [DONE]", ""


def _count_up_to_text(tokens: Sequence[str]) -> int:
    """Returns the number of tokens up to the last one with a text."""
    return max((count for count, token in enumerate(tokens, start=1) if token), default=0)


def _mean_difference(a: Sequence[float | None], b: Sequence[float | None]) -> float:
    """Returns the mean difference of two rows of numbers, over the indices at which both have numbers."""
    pairs = [(x, y) for x, y in zip(a, b, strict=False) if x is not None and y is not None]
    return float(np.mean([abs(x - y) for x, y in pairs])) if pairs else 0.0


def _check_two_answers(interview: Interview) -> CheckFinding:
    """Returns whether two answers to one request (`n = 2`) each have their own numbers."""
    body = fields(interview.body("two")) or {}
    answer_count = len(as_list(body.get("choices")) or ())
    if answer_count != 2:
        return "unknown", f"{answer_count} of 2 answers came ({interview.failure('two') or 'no error'})", "once"
    first, second = (parse_reply(f"answer {i + 1}", body, i) for i in range(2))
    if first is None or second is None or not first.tokens or not second.tokens:
        return "fault", "an answer came without log-probabilities", "once"
    if wrong := _first_fault(first) or _first_fault(second):
        return "fault", wrong, "once"
    if first.parsed_text.text == second.parsed_text.text:
        return "unknown", "both answers are the same, so their numbers cannot be told apart", "again"
    if first.numbers == second.numbers:
        return "fault", "two answers came with the same numbers", "once"
    return "ok", "both answers have numbers of their own", ""


def _check_tool_call(interview: Interview) -> CheckFinding:
    reply = parse_reply("tool", interview.body("tool"))
    if reply is not None and TOOL_NAME in reply.parsed_text.text and "{" in reply.parsed_text.text:
        return "fault", f"a call came as words: {reply.parsed_text.text[:60]!r}", "tool"
    if reply is not None and reply.parsed_text.finish_reason == TOOL_CALL:
        return "ok", "a call is marked as such", ""
    return "unknown", f"no call came: {interview.failure('tool') or 'the model answered in words'}", "tool"


def _check_thinking(interview: Interview, reply: ParsedReply | None) -> CheckFinding:
    """Returns whether tokens of the thinking are told from those of the answer."""
    if reply is None or (
        reply.parsed_text.thinking is None and not (reply.parsed and reply.parsed.segments) and not interview.thinks
    ):
        cut = " before the answer was cut" if reply is not None and reply.parsed_text.finish_reason == LENGTH else ""
        return "unknown", f"no thinking came{cut}", "think"
    if reply.parsed is None:
        return "fault", reply.refusal, "thinking"
    try:
        answer = cut_to_answer(reply.parsed)
    except InvalidResponse as error:  # it was cut while it thought
        return "unknown", str(error), "thinking"
    if interview.thinks and not reply.parsed.segments:
        return "fault", "thinking came, and its tokens are not told from the answer's", "thinking"
    thinking_count = 0 if answer.thinking is None else len(answer.thinking)
    return (
        "ok",
        f"told apart: numbers of {thinking_count} tokens of the thinking, {len(answer.logprobs)} of the answer",
        "",
    )


def _first_fault(reply: ParsedReply) -> str:
    """Returns the message of the first check that finds a fault; empty if there is none.

    A stream, and each of two answers, may come without a usage of its own.
    """
    findings = (check(replace(reply, usage_count=0)) for check in REPLY_CHECKS.values())
    return next((words for verdict, words, _ in findings if verdict == "fault"), "")
