"""Tells by its shape what a response is, and has it read: `parse_response` for every format.

It needs only the standard library and NumPy, because the base install uses it for every score.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from metaprobe.records import (
    llama_cpp_format,
    native_formats,
    responses_format,
    sglang_format,
    transformers_format,
    vllm_format,
)
from metaprobe.records.answer_stream import AnswerStream, kind_of
from metaprobe.records.endings import read_end, refuse_error
from metaprobe.records.errors import InvalidResponse, NoLogprobs
from metaprobe.records.logprobs import check_logprobs, implausible, refuse_placeholders
from metaprobe.records.openai_format import read_completion, read_said
from metaprobe.records.reading import array, error_message, fields, first_keys, read_temperature
from metaprobe.records.response import ParsedResponse, ParsedText, check_text, first_of
from metaprobe.records.signals import HIDDEN_STATES, KEY, with_signals
from metaprobe.records.types import Call, LogprobsMode

EVENTS_AS_TEXT = (
    "the response is the text of a stream (server-sent events); expected the list of its chunks: the JSON after each"
    " `data:`, without [DONE]"
)


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
        return _read(response, choice, top)
    except RecursionError as error:
        raise InvalidResponse("the response is nested too deeply; expected one answer as its API gives it") from error


def parse_text(response: object, *, choice: int = 0) -> ParsedText:
    """Reads the text of a chat completion (dict, client's object, JSON text or bytes), with or without numbers.

    Raises `InvalidResponse` for one that holds no answer.
    """
    if isinstance(response, (str, bytes, bytearray)):
        response = from_json(response)
    held = fields(response)
    if held is None:
        raise InvalidResponse(f"the response came as {type(response).__name__}; expected a chat completion")
    return read_said(held, choice)[0]


def from_json(body: str | bytes | bytearray) -> object:
    """Decodes a body of JSON. Raises `InvalidResponse` where it is none."""
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


LOOKED_AT = 8
"""Elements of a list that is no stream which are looked at: enough to say what the list holds. Each takes 10 us, and a
body of a megabyte holds a hundred thousand."""
NO_NUMBERS = np.empty(0, dtype=np.float32)
"""Log-probabilities of an answer that came with hidden states alone."""
_ASK = "make the call again asking for log-probabilities"


@dataclass(frozen=True, slots=True)
class Format:
    """One shape that a whole response may have."""

    recognises: Callable[[Any], bool]
    read: Callable[[Any, int, bool], ParsedResponse]
    """Takes the response, the number of the choice, and whether its alternatives are wanted."""


FORMATS = (
    Format(lambda response: isinstance(response, Call), lambda call, choice, top: _from_call(call, top)),
    Format(lambda response: isinstance(response, Mapping) and "choices" in response, read_completion),
    Format(responses_format.is_response, responses_format.read_response),
    Format(sglang_format.is_sglang, sglang_format.read_sglang),
    Format(llama_cpp_format.is_llama_cpp, llama_cpp_format.read_llama_cpp),
    Format(transformers_format.is_generated, transformers_format.read_generated),
    Format(vllm_format.is_vllm, vllm_format.read_vllm),
    Format(native_formats.is_native, native_formats.read_native),
)
"""The first that recognises a response reads it."""


def _read(response: object, choice: int, top: bool) -> ParsedResponse:
    """The response, of whatever format, without its alternatives unless `top`.

    Raises `InvalidResponse` where it is of none, or damaged.
    """
    if isinstance(response, (str, bytes, bytearray)):
        response = from_json(response)
    if (held := fields(response)) is not None:
        response = held
    for form in FORMATS:
        if form.recognises(response):
            if isinstance(response, Mapping):
                refuse_error(response)
                if response.get(KEY) is not None:
                    return _with_signals(form, response, choice, top)
            return form.read(response, choice, top)
    if isinstance(response, Mapping):
        raise InvalidResponse(_unknown(response))
    if hasattr(response, "__array__"):
        return ParsedResponse("", (), check_logprobs(array(response)))
    if isinstance(response, Iterable):
        return _from_parts(list(response), choice, top)
    return ParsedResponse("", (), check_logprobs(response))


def _with_signals(form: Format, response: Mapping[str, Any], choice: int, top: bool) -> ParsedResponse:
    """A response with what else came with it; its log-probabilities may be missing where hidden states came."""
    given = response[KEY]
    try:
        parsed = form.read(response, choice, top)
    except NoLogprobs:
        if not isinstance(given, Mapping) or given.get(HIDDEN_STATES) is None:
            raise
        said = read_said(response, choice)[0]
        parsed = ParsedResponse(said.text, (), NO_NUMBERS, None, said.finish_reason, said.model, said.usage)
    return with_signals(parsed, given)


def _unknown(response: Mapping[str, Any]) -> str:
    """Says what is wrong with a mapping that is no response."""
    if known := native_formats.refusal_of(response):
        return known
    came = f"the response has the keys {first_keys(response)}"
    for key in ("response", "body"):  # a line of an import file, or of Batch output
        if isinstance(response.get(key), (Mapping, list)):
            return f"{came}; expected what stands under its {key!r}: hand over that"
    if message := error_message(response):
        return f"the response is an error message ({message!r}); expected an answer: leave it out"
    return (
        f"{came}; expected a chat completion (choices), a response of the Responses API (output) or an engine's own"
        f" answer ({native_formats.NAMES}, vLLM, SGLang, llama.cpp): if this is an error message, leave it out"
    )


def _from_parts(parts: list[Any], choice: int, top: bool) -> ParsedResponse:
    """A list: chunks of a stream, log-probabilities, or one answer in a list (engines give that for a batch of one)."""
    held = [fields(part) for part in parts]
    mappings = [part for part in held if part is not None]
    for part in mappings:
        refuse_error(part)
    is_ollama = len(mappings) > 1 and all(map(native_formats.is_ollama_chunk, mappings))
    if is_ollama or any(map(kind_of, mappings)):
        stream = AnswerStream(choice)
        for chunk in parts:
            stream.add(chunk)
        if stream.kind == "event":
            return responses_format.read_response(stream.response(), choice, top)
        parsed = read_completion(stream.response(), 0, top)
        notes = parsed.note, first_of(1 + stream.has_others, choice)
        return replace(parsed, note="; ".join(filter(None, notes)))
    few = parts[:LOOKED_AT]
    whole = [part for part in few if any(form.recognises(fields(part) or part) for form in FORMATS)]
    if len(parts) == 1 and whole:
        return _read(parts[0], choice, top)
    if whole or mappings:
        raise InvalidResponse(
            f"a list of {len(parts)} came, {len(whole)} of the first {len(few)} whole answers; expected the chunks of"
            " one stream, or log-probabilities: score one answer at a time"
        )
    return ParsedResponse("", (), check_logprobs(parts))


def _from_call(call: Call, top: bool) -> ParsedResponse:
    if call.logprobs is None and call.hidden is not None:
        end = read_end(call.finish_reason)
        return ParsedResponse(call.text, (), NO_NUMBERS, None, end, call.model, call.usage, hidden=call.hidden)
    if call.logprobs is None:
        raise InvalidResponse(f"call {call.id!r} was recorded without log-probabilities; {_ASK}")
    logprobs, others = check_logprobs(call.logprobs), call.top_logprobs
    for name, held in (("tokens", call.tokens or None), ("alternatives", others)):
        if held is not None and len(held) != len(logprobs):
            raise InvalidResponse(
                f"call {call.id!r} was recorded with {len(logprobs)} log-probabilities and the {name} of {len(held)}"
                " tokens; expected one for each token"
            )
    refuse_placeholders(logprobs, logprobs, others)
    fault = implausible(logprobs, others) if others is not None else ""
    parsed = ParsedResponse(
        call.text,
        call.tokens,
        logprobs,
        others if top and not fault else None,
        read_end(call.finish_reason),
        call.model,
        call.usage,
        call.logprobs_mode,
        call.sampling.temperature,
        call.segments,
        reader=call.reader,
        note=call.note,
        top_fault=fault,
        hidden=call.hidden,
    )
    return check_text(parsed)
