"""Reads an answer with its log-probabilities into arrays: `parse_response` for every format, and OpenAI's own formats.

It needs only the standard library and NumPy, because the base install uses it for every score.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np

from metaprobe.records.alternatives import alternatives
from metaprobe.records.answer_part import check_text, settle
from metaprobe.records.boundary import Ending, ending_of
from metaprobe.records.endings import REFUSAL, TOOL_CALL, end_of, once, read_end, refuse_error
from metaprobe.records.errors import InvalidResponse, NoLogprobs
from metaprobe.records.float_list import float_list
from metaprobe.records.logprobs import ASK, check_logprobs
from metaprobe.records.openai_reasoning import thinking_of
from metaprobe.records.placeholders import implausible, listed_twice, refuse_placeholders, sample
from metaprobe.records.reading import (
    as_list,
    columns_of_each,
    error_message,
    fields,
    first_keys,
    read_temperature,
    text,
    usage,
)
from metaprobe.records.spelling import spelled
from metaprobe.records.text_format import columns
from metaprobe.records.types import FloatArray, LogprobsMode, Segment, Usage

CALLED = (
    "the answer is a tool call, and how sure the model is of a call is not whether it is right; expected an answer in"
    " words: leave tool calls out"
)

_CALLS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=", "<|tool_call")
"""How a tool call begins that a server without a parser for it gives as text."""
_WHOLE = frozenset(("", "completed", "complete", "success", "succeeded", "ok", "done"))
"""States of a whole answer, where a server names one beside the choices."""
EVENTS_AS_TEXT = (
    "the response is the text of a stream (server-sent events); expected the list of its chunks: the JSON after each"
    " `data:`, without [DONE]"
)


@dataclass(frozen=True, slots=True, eq=False)
class ParsedResponse:
    """One answer: its text, tokens and log-probabilities."""

    text: str
    """The answer's text; empty where the answer was a tool call or a refusal."""
    tokens: tuple[str, ...]
    """The tokens as the server spelled them; empty where only log-probabilities were given."""
    logprobs: FloatArray
    """float32, shape (T,), T >= 1, nats, finite and at most 0."""
    top_logprobs: FloatArray | None = None
    """float32, shape (T, k), nats, descending; NaN where a token has fewer than k alternatives."""
    finish_reason: str = ""
    """`stop`, `length`, `content_filter`, `refusal` or `tool_calls`, whatever the server calls it; another end by the
    server's own word; empty where the response does not say how the answer ended."""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    logprobs_mode: LogprobsMode = "unknown"
    """`raw` before temperature and truncation, `processed` after them; chat completions do not say."""
    temperature: float | None = None
    """The temperature at which the tokens were drawn, where the source states it."""
    segments: tuple[Segment, ...] = ()
    """The parts of the tokens, as in a `Call`; empty where all tokens are the answer's, as far as is known."""
    thinking: FloatArray | None = None
    """float32, shape (S,): the log-probabilities of the thinking, where `answer_of` has left only the answer."""
    reader: str = ""
    """The model of the log-probabilities, as in a `Call`; empty where they are the answering model's own."""
    left_out: int = 0
    """The number of tokens after the answer that only ended it."""
    note: str = ""
    """What a verdict must mention: that the stream has no end, or that there are other answers. Empty for nothing."""
    top_fault: str = ""
    """Why the alternatives cannot be the likeliest tokens; they are then left out. Empty where nothing was found."""


@dataclass(frozen=True, slots=True)
class ParsedText:
    """One answer without its log-probabilities."""

    text: str
    """The answer's text; empty where the answer was a tool call or a refusal."""
    finish_reason: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    thinking: str | None = None
    """What is shown of the thinking before the answer; empty where it is counted only, None where there was none."""
    ending: Ending = ""


@np.errstate(all="ignore")  # a host application may have NumPy raise for what is rounded to 0 here
def parse_response(
    response: object,
    *,
    choice: int = 0,
    logprobs_mode: LogprobsMode | None = None,
    temperature: float | None = None,
    top: bool = True,
) -> ParsedResponse:
    """Returns the answer in a response. Raises `InvalidResponse`, and nothing else, where it cannot be scored.

        >>> parse_response([-0.1, -0.25]).logprobs.tolist()[1]
        -0.25

    `response`, recognised by its shape, is one of:

    - an OpenAI chat completion, text completion or Responses API response, of any server: a client's object, a
      dictionary, JSON text or bytes;
    - the chunks or events of a stream of these, as a list or iterator, even where the stream was cut;
    - vLLM's `RequestOutput` or `CompletionOutput`; SGLang's or llama.cpp's native answer; what transformers' `generate`
      returns with `return_dict_in_generate` and `output_logits` or `output_scores` (`records/transformers_format.py`
      says how padding is left out);
    - a `Call`, a `ParsedResponse`, or a sequence or one-dimensional array of log-probabilities.

    `choice`: which of several answers to read. `logprobs_mode` and `temperature` state what the caller knows; they take
    precedence over what the source says or is assumed to do, and are "unknown" and None where nothing is known. The
    engines' defaults are assumed, because the APIs do not state them: raw for vLLM (`logprobs_mode` of the engine) and
    llama.cpp (`post_sampling_probs` changes it, which is visible), processed for SGLang
    (`SGLANG_RETURN_ORIGINAL_LOGPROB` changes it).

    With `top=False` the alternatives of a few tokens only are looked at, for faults; this takes a fifth of the time,
    and `top_logprobs` is None.

    The tokens must spell the answer's text. Refused are log-probabilities of a part of the answer or of other words,
    and numbers that stand for none (all 0, a constant).

    OpenAI gives -9999.0 for a sampled token outside of the likeliest 20. It is kept unchanged, because it is finite and
    the server's own number, and so it counts in a mean.
    """
    parsed = _parsed(response, choice, top)
    if logprobs_mode is not None:
        if logprobs_mode not in get_args(LogprobsMode):
            raise ValueError(
                f"logprobs_mode is {logprobs_mode!r}; expected one of {', '.join(get_args(LogprobsMode))}, or None"
            )
        parsed = replace(parsed, logprobs_mode=logprobs_mode)
    if temperature is not None:
        if read_temperature(temperature) is None:
            raise ValueError(f"temperature is {temperature!r}; expected a number of at least 0, or None")
        parsed = replace(parsed, temperature=float(temperature))
    return parsed


def _parsed(response: object, choice: int, top: bool) -> ParsedResponse:
    if isinstance(response, ParsedResponse):
        return response
    try:
        if isinstance(response, np.ndarray) or (type(response) is list and response and type(response[0]) is float):
            return ParsedResponse("", (), check_logprobs(response))
        from metaprobe.records.formats import read  # the formats are built on what is below

        return read(response, choice, top)
    except RecursionError as error:
        raise InvalidResponse("the response is nested too deeply; expected one answer as its API gives it") from error


def parse_text(response: object, *, choice: int = 0) -> ParsedText:
    """What a chat completion (a dict, a client's object, JSON text or bytes) says, with or without log-probabilities.

    Raises `InvalidResponse` for one that holds no answer.
    """
    if isinstance(response, (str, bytes, bytearray)):
        response = from_json(response)
    held = fields(response)
    if held is None:
        raise InvalidResponse(f"the response came as {type(response).__name__}; expected a chat completion")
    return _said(held, choice)[0]


def content_text(content: object) -> str:
    """The text of a message's `content`: a string, a list of parts (of which the text ones count), or None."""
    if isinstance(content, str):
        return content
    return "".join(text((fields(part) or {}).get("text")) for part in as_list(content) or ())


def from_json(body: str | bytes | bytearray) -> object:
    """What a body of JSON holds. Raises `InvalidResponse` where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, bad UTF-8, a number of 5000 digits
        if is_events(body):
            raise InvalidResponse(EVENTS_AS_TEXT) from error
        raise InvalidResponse(
            f"the response ({len(body)} long) is not JSON ({error}); expected a whole answer: was it cut off?"
        ) from error


def is_events(body: str | bytes | bytearray) -> bool:
    """Whether this is the text of a stream, as it comes over the wire."""
    head = body[:16] if isinstance(body, str) else body[:16].decode("ascii", "replace")
    return head.lstrip().startswith(("data:", "event:", "id:", ":"))  # a comment comes first where a server was slow


def first_of(count: int, choice: int) -> str:
    """The note on an answer that is the first of several, where nobody asked for it; else empty."""
    if count < 2 or choice:
        return ""
    return "the response holds several answers and this is of the first: parse_response(response, choice=1) is the next"


def read_completion(response: Mapping[str, Any], choice: int, top: bool = True) -> ParsedResponse:
    """What a chat or text completion says, whichever of the two shapes its log-probabilities have."""
    said, chosen = _said(response, choice)
    given = fields(chosen.get("logprobs")) or {}
    rest: dict[str, Any] = {
        "text": said.text,
        "finish_reason": said.finish_reason,
        "model": said.model,
        "usage": said.usage,
        "note": first_of(len(response["choices"]), choice),
    }
    if before := as_list(given.get("reasoning_content")):
        return _with_thinking(before, as_list(given.get("content")) or (), choice, top, rest)
    # Those of a refusal stand under a key of their own.
    entries = given.get("content") if given.get("content") is not None else given.get("refusal")
    has_none = said.finish_reason in (TOOL_CALL, REFUSAL)
    if said.finish_reason == TOOL_CALL and not entries and not given.get("token_logprobs"):
        raise InvalidResponse(CALLED)  # OpenAI gives none of a call, however they are asked for
    counted = _counted(chosen, said, alone=len(response["choices"]) == 1 and response.get("n", 1) == 1)
    if entries is not None:
        parsed = parse_entries(entries, f"choices[{choice}].logprobs.content", top=top, **rest)
        if has_none:
            return parsed
        return settle(parsed, said.thinking, said.ending, as_list(entries) or (), counted=counted)
    if given.get("token_logprobs") is None:
        raise NoLogprobs(
            f"the response holds no log-probabilities (choices[{choice}].logprobs.content is missing); {ASK}"
        )
    tokens, logprobs, rows = columns(given, said.usage)
    if len(logprobs) < len(given["token_logprobs"]) and spelled(list(map(text, given["tokens"] or ())), said.text).all:
        rest["text"] = "".join(tokens)  # the prompt was echoed
    parsed = with_alternatives(ParsedResponse(tokens=tokens, logprobs=check_logprobs(logprobs), **rest), rows)
    parsed = parsed if top else replace(parsed, top_logprobs=None)
    return parsed if has_none else settle(parsed, said.thinking, said.ending, counted=counted)


def _counted(chosen: Mapping[str, Any], said: ParsedText, *, alone: bool) -> int:
    """How many tokens the server says that it drew for this answer; 0 where it does not say."""
    if ids := as_list(chosen.get("token_ids")):
        return len(ids)
    return said.usage.completion_tokens if alone else 0  # the usage is of all choices together


def _with_thinking(
    before: Sequence[Any], entries: Sequence[Any], choice: int, top: bool, rest: dict[str, Any]
) -> ParsedResponse:
    """Where the thinking's log-probabilities stand under a key of their own, as DeepSeek gives them."""
    parsed = parse_entries([*before, *entries], f"choices[{choice}].logprobs", top=top, **rest)
    count = len(before)
    segments = Segment("thinking", 0, count), Segment("answer", count, len(parsed.logprobs))
    return check_text(replace(parsed, segments=segments if entries else segments[:1]), [*before, *entries])


def parse_entries(given: object, where: str, *, top: bool = True, **rest: Any) -> ParsedResponse:
    """A response from its entries {token, logprob, top_logprobs}, one a token; `rest`: its other fields."""
    values = as_list(given)
    found = columns_of_each(values, ("token", "logprob", "top_logprobs")[: 2 + top]) if values is not None else None
    if found is None:
        raise InvalidResponse(
            f"{where} is not a list of objects; expected {{token, logprob, top_logprobs}} for each token"
        )
    tokens, logprobs = found[:2]
    checked = float_list(logprobs)
    parsed = ParsedResponse(
        tokens=tuple(tokens if _are_texts(tokens) else map(text, tokens)),
        logprobs=check_logprobs(logprobs) if checked is None else checked,
        **rest,
    )
    assert values is not None
    if top:
        return with_alternatives(parsed, found[2], values)
    few = [entry or {} for entry in map(fields, sample(values, logprobs))]
    return replace(with_alternatives(parsed, [entry.get("top_logprobs") for entry in few], few), top_logprobs=None)


def with_alternatives(parsed: ParsedResponse, rows: Sequence[Any], entries: Sequence[Any] = ()) -> ParsedResponse:
    """The response with its alternatives, where a row of them came for each token and they can be the likeliest ones.

    Rows of a few tokens only are looked at for faults, and not kept; `entries` are then those tokens {token, logprob,
    top_logprobs}. Alternatives that cannot be read, or cannot be, are left out, and `top_fault` says why. Raises
    `NoLogprobs` where the log-probabilities stand for none.
    """
    try:
        top, fault = alternatives(rows), ""
    except InvalidResponse as error:
        top, fault = None, str(error)
    whole = len(rows) == len(parsed.logprobs)
    drawn = parsed.logprobs if whole or top is None else check_logprobs([row.get("logprob") for row in entries])
    if parsed.finish_reason not in (TOOL_CALL, REFUSAL):  # those are refused for what they are
        refuse_placeholders(parsed.logprobs, drawn, top)
    fault = fault or (implausible(drawn, top) if top is not None else "") or listed_twice(entries)
    kept = top if whole and not fault else None
    return replace(parsed, top_logprobs=kept, top_fault=fault) if fault or kept is not None else parsed


def _are_texts(values: list[Any]) -> bool:
    """Whether all are strings. Joining them takes a third of the time of looking at each one's type."""
    try:
        "".join(values)
    except TypeError:
        return False
    return True


def read_ending(finish_reason: object, spoken: str, message: Mapping[str, Any], logprobs: Mapping[str, Any]) -> str:
    """How the answer ended: `TOOL_CALL` where it calls a tool, `REFUSAL` where it only says why there is none.

    A refusal has a message and tokens of its own. `message` may hold `refusal`, `tool_calls` and `function_call`.
    """
    if message.get("tool_calls") or message.get("function_call") or read_end(finish_reason) == TOOL_CALL:
        return TOOL_CALL
    if spoken.lstrip().startswith(_CALLS):
        return TOOL_CALL
    of_refusal = logprobs.get("content") is None and bool(logprobs.get("refusal"))
    return REFUSAL if of_refusal or (text(message.get("refusal")) and not spoken) else read_end(finish_reason)


def _in_order(choices: Sequence[Any] | None) -> Sequence[Any] | None:
    """The choices by their index, where there are several and each states one."""
    indices = [(fields(one) or {}).get("index") for one in choices or ()]
    if choices is None or sorted(map(str, indices)) != sorted(map(str, range(len(choices)))):
        return choices
    return [one for _, one in sorted(zip(indices, choices, strict=True), key=lambda pair: int(pair[0] or 0))]


def _said(response: Mapping[str, Any], choice: int) -> tuple[ParsedText, Mapping[str, Any]]:
    """(what the choice says, the choice)."""
    choices = _in_order(as_list(response.get("choices")))
    if choices is None or not 0 <= choice < len(choices):
        came = f"the keys {first_keys(response)}" if choices is None else f"{len(choices)} choices"
        if error := error_message(response):
            came += f" and the error {error!r}"
        raise InvalidResponse(f"the response has {came}; expected a chat completion with choices[{choice}]")
    chosen = fields(choices[choice]) or {}
    for part in (response, chosen, fields(chosen.get("message")), fields(chosen.get("logprobs"))):
        refuse_error(part or {})
    if text(response.get("status")) not in _WHOLE:
        refuse_error({"error": f"status {text(response.get('status'))}"})
    message = fields(chosen.get("message"))
    if message is None and not isinstance(chosen.get("text"), str):
        raise InvalidResponse(
            f"choices[{choice}] has neither message nor text; expected a whole completion:"
            " join the chunks of a stream first, or pass the list of all of them"
        )
    counted = fields(response.get("usage")) or {}
    spoken = content_text(message.get("content")) if message is not None else chosen["text"]
    logprobs = fields(chosen.get("logprobs")) or {}
    said = ParsedText(
        text=spoken,
        finish_reason=read_ending(end_of(chosen), spoken, message or {}, logprobs),
        model=once(text(response.get("model"))),
        usage=usage(counted.get("prompt_tokens"), counted.get("completion_tokens")),
        thinking=thinking_of(message or {}, counted),
        ending=ending_of(chosen.get("finish_reason"), chosen),
    )
    return said, chosen
