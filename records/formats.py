"""Tells by its shape what a response is, and has it read: the list of all formats that `parse_response` takes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metaprobe.records import (
    llama_cpp_format,
    native_formats,
    responses_format,
    sglang_format,
    transformers_format,
    vllm_format,
)
from metaprobe.records.answer_part import check_text
from metaprobe.records.endings import read_end, refuse_error
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.logprobs import check_logprobs
from metaprobe.records.openai_format import ParsedResponse, first_of, from_json, read_completion
from metaprobe.records.openai_stream import StreamedCompletion, StreamedText
from metaprobe.records.placeholders import implausible, refuse_placeholders
from metaprobe.records.reading import array, as_list, error_message, fields, first_keys
from metaprobe.records.types import Call

LOOKED_AT = 8
"""Elements of a list that is no stream which are looked at: enough to say what the list holds. Each takes 10 us, and a
body of a megabyte holds a hundred thousand."""
_ASK = "make the call again asking for log-probabilities"


@dataclass(frozen=True, slots=True)
class Format:
    """One shape that a whole response may have."""

    recognises: Callable[[Any], bool]
    read: Callable[[Any, int, bool], ParsedResponse]
    """Of which choice, and whether its alternatives are wanted."""


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


def read(response: object, choice: int, top: bool = True) -> ParsedResponse:
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
            return form.read(response, choice, top)
    if isinstance(response, Mapping):
        raise InvalidResponse(_unknown(response))
    if hasattr(response, "__array__"):
        return ParsedResponse("", (), check_logprobs(array(response)))
    if isinstance(response, Iterable):
        return _from_parts(list(response), choice, top)
    return ParsedResponse("", (), check_logprobs(response))


def _unknown(response: Mapping[str, Any]) -> str:
    """What is wrong with a mapping that is no response."""
    if known := native_formats.refusal_of(response):
        return known
    came = f"the response has the keys {first_keys(response)}"
    for key in ("response", "body"):  # a line of an import file, or of Batch output
        if isinstance(response.get(key), (Mapping, list)):
            return f"{came}; expected what stands under its {key!r}: hand over that"
    if said := error_message(response):
        return f"the response is an error message ({said!r}); expected an answer: leave it out"
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
    if len(mappings) > 1 and all(map(native_formats.is_ollama_chunk, mappings)):
        return _from_parts([native_formats.ollama_as_chunk(part) for part in mappings], choice, top)
    kinds = {chunk_kind(part) for part in mappings}
    if "event" in kinds:
        events = [part for part in mappings if responses_format.is_event(part)]
        return responses_format.read_response(responses_format.from_events(events), choice, top)
    for kind, joined in (("chat", StreamedCompletion(choice)), ("text", StreamedText(choice))):
        if kind in kinds:
            for chunk in parts:
                joined.add(chunk)
            parsed = read_completion(joined.completion(), 0, top)
            notes = parsed.note, first_of(1 + joined.has_others, choice)
            return replace(parsed, note="; ".join(filter(None, notes)))
    few = parts[:LOOKED_AT]
    whole = [part for part in few if any(form.recognises(fields(part) or part) for form in FORMATS)]
    if len(parts) == 1 and whole:
        return read(parts[0], choice, top)
    if whole or mappings:
        raise InvalidResponse(
            f"a list of {len(parts)} came, {len(whole)} of the first {len(few)} whole answers; expected the chunks of"
            " one stream, or log-probabilities: score one answer at a time"
        )
    return ParsedResponse("", (), check_logprobs(parts))


def chunk_kind(part: Mapping[str, Any]) -> str:
    """`event`, `chat` or `text` for a piece of such a stream, else empty."""
    if responses_format.is_event(part):
        return "event"
    choices: Sequence[Any] = as_list(part.get("choices")) or ()
    first = next((held for held in map(fields, choices) if held is not None), {})
    if part.get("object") == "chat.completion.chunk" or "delta" in first:
        return "chat"
    return "text" if "text" in first and "message" not in first else ""


def _from_call(call: Call, top: bool) -> ParsedResponse:
    if call.logprobs is None:
        raise InvalidResponse(f"call {call.id!r} was recorded without log-probabilities; {_ASK}")
    logprobs, others = check_logprobs(call.logprobs), call.top_logprobs
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
    )
    return check_text(parsed)
