"""Recognises the format of a response by its shape, and reads it.

It needs only the standard library and NumPy, because the base install uses it for every score. With msgspec installed,
a raw body is read much faster than by `json.loads`. Nine tenths of a body are alternatives (512 tokens with 15 each:
half a megabyte), and a typed decoder skips unrequested ones without making objects.

A response may carry hidden states, and numbers that the model stated, under `metaprobe_signals`:

    "metaprobe_signals": {
        "hidden_states": {"model": "m", "layers": [18], "positions": ["answer_mean"], "values": [[[...]]]},
        "confidence": 0.8, "p_true": 0.7
    }

`values` are (layers, positions, width). In place of both `positions` and `values` there may be `tokens`, the states of
every token of the answer, (tokens, layers, width). Either may be base64 of little-endian numbers, with `dtype` (float16
or float32) and `shape`. `model` is needed only where another model than the one that answered read the states.
`canaries` is what `metaprobe.records.canaries.CanaryStates.to_json` gives for the source of the states, or the digest
of canaries that this process was sent before: without them a checkpoint that holds canaries leaves the states out.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from metaprobe.records import engine_formats, native_formats
from metaprobe.records.answer_stream import AnswerStream
from metaprobe.records.canaries import CanaryStates
from metaprobe.records.errors import ImportFileError, InvalidResponse, NoLogprobs, RecordError
from metaprobe.records.openai_format import (
    content_text,
    is_response,
    read_completion,
    read_ending,
    read_response,
    read_text_and_choice,
    thinking_of,
)
from metaprobe.records.reading import (
    REFUSAL,
    SAID_BESIDE,
    TOOL_CALL,
    array,
    error_message,
    fields,
    once,
    read_end,
    read_temperature,
    refuse_error,
    some_keys,
    text,
    usage,
)
from metaprobe.records.response import (
    ParsedResponse,
    ParsedText,
    check_logprobs,
    check_text,
    first_of,
    float_list,
    implausible,
    refuse_placeholders,
    sample_entries,
    settle,
    tokens_of,
    with_alternatives,
    without_alternatives,
)
from metaprobe.records.segments import ending_of
from metaprobe.records.short_line import is_short, response_of_short_line
from metaprobe.records.types import POSITIONS, Call, FloatArray, Hidden, LogprobsMode, SegmentKind

if TYPE_CHECKING:
    from metaprobe.records.raw_body_decoders import Decoders

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
    """Returns the answer in a response. Raises `InvalidResponse`, and nothing else, if it cannot be scored.

        >>> parse_response([-0.1, -0.25]).logprobs.tolist()[1]
        -0.25

    The engines' defaults are assumed, because the APIs do not state them. They are raw for vLLM (changed by the
    engine's `logprobs_mode`) and llama.cpp (changed by `post_sampling_probs`, which is visible), and processed for
    SGLang (changed by `SGLANG_RETURN_ORIGINAL_LOGPROB`).

    The tokens must spell the answer's text. Only marks without meaning at its end, such as a full stop, may be missing;
    then the note says so. Refused are log-probabilities of a part of the answer or of other words, numbers that are
    placeholders (all 0, or a constant), and chunks of more than one answer (see `records/one_answer.py`). OpenAI gives
    -9999.0 for a sampled token that is not among the likeliest 20. It is kept unchanged and counts in a mean, because
    it is finite and the server's own number.

    Args:
        response: one of the formats below, recognised by its shape.
        choice: which of several answers to read.
        logprobs_mode: `raw` or `processed`, if the caller knows it; it overrides what the source states or is assumed
            to do.
        temperature: sampling temperature, if the caller knows it; it overrides what the source states.
        top: whether all alternatives are read. If not, only alternatives of a few tokens are checked for faults, which
            takes a fifth of the time, and `top_logprobs` is None.

    Formats:
    - an OpenAI chat completion, text completion or Responses API response, of any server: a client's object, a
      dictionary, JSON text or bytes;
    - the chunks or events of a stream of these, as a list or iterator, even if the stream was cut;
    - vLLM's `RequestOutput` or `CompletionOutput`; SGLang's or llama.cpp's native answer; an output of transformers'
      `generate` with `return_dict_in_generate` and `output_logits` or `output_scores` (see `records/engine_formats.py`
      for padding);
    - a line of a file: `{"question", "answer", "logprobs", "tokens"}`, or `{"response": ...}` with one of the above;
    - a `Call`, a `ParsedResponse`, or a sequence or one-dimensional array of log-probabilities.
    """
    try:
        if isinstance(response, (str, bytes, bytearray)):
            decoded = _decoded_body(response, choice, top)
            response = from_json(response) if decoded is None else decoded
        if isinstance(response, ParsedResponse):
            parsed = response
        elif isinstance(response, np.ndarray) or (type(response) is list and response and type(response[0]) is float):
            parsed = ParsedResponse("", (), check_logprobs(response))
        else:
            parsed = _parse_any_format(response, choice, top)
    except RecursionError as error:
        raise InvalidResponse("the response is nested too deeply; expected one answer as its API gives it") from error
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


def parse_text(response: object, *, choice: int = 0) -> ParsedText:
    """Reads the text of a chat completion (dict, client's object, JSON text or bytes), with or without
    log-probabilities.

    Raises `InvalidResponse` if the completion holds no answer.
    """
    if isinstance(response, (str, bytes, bytearray)):
        response = from_json(response)
    completion_fields = fields(response)
    if completion_fields is None:
        raise InvalidResponse(f"the response came as {type(response).__name__}; expected a chat completion")
    return read_text_and_choice(completion_fields, choice)[0]


def from_json(body: str | bytes | bytearray) -> object:
    """Decodes a JSON body. Raises `InvalidResponse` if it is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, bad UTF-8, a number of 5000 digits
        if fault := events_as_text(body):
            raise InvalidResponse(fault) from error
        raise InvalidResponse(
            f"the response ({len(body)} long) is not JSON ({error}); expected a whole answer: was it cut off?"
        ) from error


def events_as_text(body: str | bytes | bytearray) -> str:
    """Returns what to do about a body that is the raw text of an event stream; empty for other bodies."""
    head = body[:16] if isinstance(body, str) else body[:16].decode("ascii", "replace")
    events = head.lstrip().startswith(("data:", "event:", "id:", ":"))  # a comment comes first where a server was slow
    return EVENTS_AS_TEXT if events else ""


LIST_ELEMENTS = 8
"""Elements of a list that are read to say in an error what the list holds.

Each takes 10 us, and a body of a megabyte holds a hundred thousand.
"""
NO_NUMBERS = np.empty(0, dtype=np.float32)
"""Log-probabilities of an answer that came with hidden states alone."""
_ASK = "make the call again asking for log-probabilities"


@dataclass(frozen=True, slots=True)
class Format:
    """One format of a whole response."""

    recognises: Callable[[Any], bool]
    read: Callable[[Any, int, bool], ParsedResponse]
    """Reads a response; takes it, the number of the choice, and whether alternatives are wanted."""


RESPONSE_FORMATS = (
    Format(lambda response: isinstance(response, Call), lambda call, choice, top: _from_call(call, top)),
    Format(lambda response: isinstance(response, Mapping) and "choices" in response, read_completion),
    Format(is_response, read_response),
    Format(engine_formats.is_sglang, engine_formats.read_sglang),
    Format(engine_formats.is_llama_cpp, engine_formats.read_llama_cpp),
    Format(engine_formats.is_generated, engine_formats.read_generated),
    Format(engine_formats.is_vllm, engine_formats.read_vllm),
    Format(native_formats.is_native, native_formats.read_native),
    Format(is_short, lambda line, choice, top: _read_line(line, choice, top)),
)
"""The first format that recognises a response reads it."""


def _parse_any_format(response: object, choice: int, top: bool) -> ParsedResponse:
    """Returns the response in any known format, without its alternatives unless `top`.

    Raises `InvalidResponse` if the response has no known format, or is damaged.

    Args:
        response: the response.
        choice: which of several answers to read.
        top: whether alternatives are read.
    """
    if isinstance(response, (str, bytes, bytearray)):
        response = from_json(response)
    if (response_fields := fields(response)) is not None:
        response = response_fields
    for form in RESPONSE_FORMATS:
        if form.recognises(response):
            if isinstance(response, Mapping):
                refuse_error(response)
                if response.get(SIGNALS_KEY) is not None:
                    return _with_signals(form, response, choice, top)
            return form.read(response, choice, top)
    if isinstance(response, Mapping):
        raise InvalidResponse(_unknown(response))
    if hasattr(response, "__array__"):
        return ParsedResponse("", (), check_logprobs(array(response)))
    if isinstance(response, Iterable):
        return _from_parts(list(response), choice, top)
    return ParsedResponse("", (), check_logprobs(response))


def _read_line(line: Mapping[str, Any], choice: int, top: bool) -> ParsedResponse:
    """Reads a line of a file: the response in the line, or the response made of its answer and log-probabilities.

    Args:
        line: the line.
        choice: which of several answers to read.
        top: whether alternatives are read.
    """
    try:
        response = response_of_short_line(line)
    except ImportFileError as error:
        raise InvalidResponse(str(error)) from error
    if is_short(response):
        raise InvalidResponse('the line holds a line under "response"; expected a response as its API gives it')
    return _parse_any_format(response, choice, top)


def _with_signals(form: Format, response: Mapping[str, Any], choice: int, top: bool) -> ParsedResponse:
    """Returns a response with the signals beside it. Its log-probabilities may be missing if hidden states came.

    Raises `InvalidResponse` if the value under `metaprobe_signals` is damaged.

    Args:
        form: format of the response.
        response: the response.
        choice: which of several answers to read.
        top: whether alternatives are read.
    """
    signals = response[SIGNALS_KEY]
    try:
        parsed = form.read(response, choice, top)
    except NoLogprobs:
        if not isinstance(signals, Mapping) or signals.get(HIDDEN_STATES) is None:
            raise
        parsed_text = read_text_and_choice(response, choice)[0]
        parsed = ParsedResponse(
            parsed_text.text, (), NO_NUMBERS, None, parsed_text.finish_reason, parsed_text.model, parsed_text.usage
        )
    if not isinstance(signals, Mapping):
        raise InvalidResponse(
            f"{SIGNALS_KEY} is a {type(signals).__name__}; expected an object with {HIDDEN_STATES}, confidence"
        )
    if unknown := sorted(set(map(str, signals)) - {HIDDEN_STATES, *STATED_NAMES}):
        raise InvalidResponse(f"{SIGNALS_KEY} has {unknown[0]!r}; expected {', '.join((HIDDEN_STATES, *STATED_NAMES))}")
    stated = {name: number_of(name, signals[name]) for name in STATED_NAMES if signals.get(name) is not None}
    states = signals.get(HIDDEN_STATES)
    return replace(parsed, stated=stated, hidden=None if states is None else hidden_of(states, parsed))


def _unknown(response: Mapping[str, Any]) -> str:
    """Returns what is wrong with a mapping that is no response."""
    if refusal := native_formats.refusal_of(response):
        return refusal
    received = f"the response has the keys {some_keys(response)}"
    for key in ("response", "body"):  # a line of an import file, or of Batch output
        if isinstance(response.get(key), (Mapping, list)):
            return f"{received}; expected what stands under its {key!r}: hand over that"
    if message := error_message(response):
        return f"the response is an error message ({message!r}); expected an answer: leave it out"
    return (
        f"{received}; expected a chat completion (choices), a response of the Responses API (output) or an engine's own"
        f" answer ({native_formats.NATIVE_FORMAT_NAMES}, vLLM, SGLang, llama.cpp): if this is an error message, "
        "leave it out"
    )


def _from_parts(parts: list[Any], choice: int, top: bool) -> ParsedResponse:
    """Reads a list: chunks of a stream, log-probabilities, or one answer in a list (as engines give for a batch of
    one).

    Args:
        parts: elements of the list.
        choice: which of several answers to read.
        top: whether alternatives are read.
    """
    part_fields = [fields(part) for part in parts]
    mappings = [part for part in part_fields if part is not None]
    for part in mappings:
        refuse_error(part)
    is_ollama = len(mappings) > 1 and all(map(native_formats.is_ollama_chunk, mappings))
    if is_ollama or any(map(AnswerStream.kind_of, mappings)):
        stream = AnswerStream(choice)
        for chunk in parts:
            stream.add(chunk)
        if stream.kind == "event":
            return read_response(stream.response(), choice, top)
        parsed = read_completion(stream.response(), 0, top)
        notes = parsed.note, first_of(1 + stream.has_others, choice)
        return replace(parsed, note="; ".join(filter(None, notes)))
    first_parts = parts[:LIST_ELEMENTS]
    whole_answers = [
        part for part in first_parts if any(form.recognises(fields(part) or part) for form in RESPONSE_FORMATS)
    ]
    if len(parts) == 1 and whole_answers:
        return _parse_any_format(parts[0], choice, top)
    if whole_answers or mappings:
        raise InvalidResponse(
            f"a list of {len(parts)} came, {len(whole_answers)} of the first {len(first_parts)} whole answers; "
            "expected the chunks of one stream, or log-probabilities: score one answer at a time"
        )
    return ParsedResponse("", (), check_logprobs(parts))


def _from_call(call: Call, top: bool) -> ParsedResponse:
    """Returns a recorded call as a response. A call without log-probabilities is read only for its hidden states."""
    if call.logprobs is None and call.hidden is not None:
        end = read_end(call.finish_reason)
        return ParsedResponse(call.text, (), NO_NUMBERS, None, end, call.model, call.usage, hidden=call.hidden)
    if call.logprobs is None:
        raise InvalidResponse(f"call {call.id!r} was recorded without log-probabilities; {_ASK}")
    logprobs, alternatives = check_logprobs(call.logprobs), call.top_logprobs
    for name, values in (("tokens", call.tokens or None), ("alternatives", alternatives)):
        if values is not None and len(values) != len(logprobs):
            raise InvalidResponse(
                f"call {call.id!r} was recorded with {len(logprobs)} log-probabilities and the {name} of {len(values)}"
                " tokens; expected one for each token"
            )
    refuse_placeholders(logprobs, logprobs, alternatives)
    fault = implausible(logprobs, alternatives) if alternatives is not None else ""
    parsed = ParsedResponse(
        call.text,
        call.tokens,
        logprobs,
        alternatives if top and not fault else None,
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


SIGNALS_KEY = "metaprobe_signals"
HIDDEN_STATES = "hidden_states"
STATED_NAMES = ("confidence", "p_true")
"""Names of the numbers in [0, 1] that a model states about its answer."""
DTYPES = {"float16": "<f2", "float32": "<f4"}


def number_of(name: str, value: object) -> float:
    """Returns a stated number. Raises `InvalidResponse` for anything but a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:  # NaN fails too
        raise InvalidResponse(f"{name} is {value!r}; expected a number from 0 to 1, or null where none was stated")
    return float(value)


def hidden_of(sent_states: object, parsed: ParsedResponse) -> Hidden:
    """Returns the hidden states that a caller sent with an answer; states of tokens are reduced to positions.

    Raises `InvalidResponse` if they cannot be read, or if there is not one state for each of the answer's tokens.
    """
    if not isinstance(sent_states, Mapping):
        raise InvalidResponse(
            f"{HIDDEN_STATES} is a {type(sent_states).__name__}; expected an object with layers and values"
        )
    model, layers = sent_states.get("model", ""), _listed_states(sent_states, "layers", int)
    if not isinstance(model, str):
        raise InvalidResponse(f"the model of the hidden states is {model!r}; expected its name")
    if "tokens" not in sent_states:
        positions = _listed_states(sent_states, "positions", str)
        if unknown := sorted(set(positions) - set(POSITIONS)):
            raise InvalidResponse(f"hidden states at {unknown[0]!r}; expected positions out of {', '.join(POSITIONS)}")
        return Hidden(_state_array(sent_states, "values"), layers, positions, model, _canaries_of(sent_states))
    token_count, values = len(parsed.logprobs), _state_array(sent_states, "tokens")  # (tokens, layers, width)
    if values.ndim != 3 or values.shape[1] != len(layers):
        raise InvalidResponse(
            f"states of tokens have shape {values.shape}; expected (tokens, {len(layers)}, width) for layers "
            f"{list(layers)}"
        )
    if len(values) not in (token_count, token_count + parsed.left_out):
        hint = " (engines that speculate may drop some)" if len(values) < token_count else ""
        raise InvalidResponse(
            f"states of {len(values)} tokens came for an answer of {token_count}{hint}; expected one for each: read "
            "the answer again, or leave the states out"
        )
    states_by_position: dict[str, FloatArray] = {}
    kinds: tuple[SegmentKind, ...] = ("answer", "thinking")
    for kind in kinds:
        states_of_kind = values[tokens_of(parsed.segments, kind, token_count)]
        if len(states_of_kind):
            states_by_position |= {
                f"{kind}_first": states_of_kind[0],
                f"{kind}_last": states_of_kind[-1],
                f"{kind}_mean": states_of_kind.astype(np.float64).mean(axis=0),
            }
    all_states = np.stack([states.astype(np.float32) for states in states_by_position.values()], axis=1)
    return Hidden(all_states, layers, tuple(states_by_position), model, _canaries_of(sent_states))


def _canaries_of(response_fields: Mapping[str, Any]) -> CanaryStates | None:
    """Returns the canaries' states from the source of the sent states.

    A request holds them, or the digest of states that this process got before. Returns None if the request holds
    neither, or if the digest is not known.
    """
    sent = response_fields.get("canaries")
    if sent is None:
        return None
    if isinstance(sent, str):
        return _sent_canaries.get(sent)
    try:
        states = CanaryStates.from_json(sent)
    except RecordError as error:
        raise InvalidResponse(str(error)) from error
    if states.digest not in _sent_canaries and len(_sent_canaries) >= MOST_SOURCES:
        _sent_canaries.pop(next(iter(_sent_canaries)), None)
    return _sent_canaries.setdefault(states.digest, states)


MOST_SOURCES = 64
"""Most sources of hidden states whose canaries are remembered. The newest sources are kept."""
_sent_canaries: dict[str, CanaryStates] = {}


def _listed_states(response_fields: Mapping[str, Any], key: str, kind: type) -> tuple[Any, ...]:
    values = response_fields.get(key)
    if not isinstance(values, list | tuple) or not values or any(type(value) is not kind for value in values):
        expected = "layer numbers" if kind is int else "names"
        raise InvalidResponse(f"{key} of the hidden states are {values!r:.80}; expected a list of {expected}")
    return tuple(values)


def _state_array(response_fields: Mapping[str, Any], key: str) -> FloatArray:
    """Returns hidden states of three axes, which came as numbers, or in base64 with a dtype and a shape."""
    values = response_fields.get(key)
    try:
        if isinstance(values, str):
            dtype, shape = response_fields.get("dtype"), response_fields.get("shape")
            if dtype not in DTYPES:
                raise InvalidResponse(
                    f"hidden states came as {dtype!r}; expected dtype {' or '.join(DTYPES)}, little-endian in base64"
                )
            return np.frombuffer(base64.b64decode(values, validate=True), DTYPES[dtype]).reshape(shape)
        array = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError, binascii.Error, OverflowError) as error:
        raise InvalidResponse(f"{key} of the hidden states cannot be read ({error}); expected numbers") from error
    if array.ndim != 3:
        raise InvalidResponse(f"{key} of the hidden states have shape {array.shape}; expected three axes")
    return array


_EXACT_INTEGER_LIMIT = 2.0**53
"""From this magnitude on a JSON integer and the decoder's double may differ."""


def _decoded_body(body: str | bytes | bytearray, choice: int, top: bool) -> ParsedResponse | None:
    """Returns the answer in the JSON text of a chat completion, by a decoder that reads only what is needed.

    Returns None if msgspec is not installed, and if the decoder does not know or refuses a body (another format, a
    damaged body, NaN, UTF-16). `json.loads` then reads it, so the outcome is the same with and without msgspec. Known
    exceptions, in a part that is not read: an integer of more than 4300 digits, and nesting just within the
    interpreter's limit.

    Args:
        body: JSON as a string or bytes.
        choice: which of several answers to read.
        top: whether alternatives are read. If not, `top_logprobs` is None.
    """
    has_signals = SIGNALS_KEY in body if isinstance(body, str) else SIGNALS_KEY.encode() in body
    decoders = None if has_signals else _decoders(top)
    if decoders is None:
        return None
    try:
        if not isinstance(body, str):
            body.decode("utf-8", "surrogatepass")  # the decoder does not check the parts that it skips
        return _parse_decoded(decoders.body(body), choice, top)
    except (ValueError, RecursionError, InvalidResponse):
        return None


@np.errstate(all="ignore")  # a host application may have NumPy raise for what is rounded to 0 here
def parse_chunks(chunks: Sequence[bytes], *, top: bool = True) -> ParsedResponse | None:
    """Returns the answer in the chunks of a streamed chat completion, given as the JSON of each chunk.

    Alternatives are read only with `top`. Returns None if msgspec is not installed. Returns None as well unless the
    answer is plain: one choice, of index 0, with words and their log-probabilities, without thinking, refusal or tool
    call. `AnswerStream` reads the others.
    """
    decoders = _decoders(top)
    if decoders is None:
        return None
    try:
        return _parse_decoded(decoders.chunks(b"[" + b",".join(chunks) + b"]"), 0, top)
    except (ValueError, RecursionError, InvalidResponse):
        return None


def _parse_decoded(completion: Any, choice: int, top: bool) -> ParsedResponse | None:
    """Returns the answer from a decoded completion; None if the slower reader has to read it.

    Args:
        completion: the decoded completion.
        choice: which of several answers to read.
        top: whether alternatives are read.
    """
    # Answers that need the general reader are left to it.
    if not 0 <= choice < len(completion.choices):
        return None
    choice_fields = completion.choices[choice]
    if choice_fields.error or completion.error:
        return None
    entries = choice_fields.logprobs.content
    if entries is None:
        entries = choice_fields.logprobs.refusal  # the tokens of a refusal stand under a key of their own
    if not entries:
        return None
    # Text, log-probabilities and alternatives.
    logprob_values = [entry.logprob for entry in entries]
    checked_logprobs = float_list(logprob_values)
    checked_logprobs = check_logprobs(logprob_values) if checked_logprobs is None else checked_logprobs
    spoken = content_text(choice_fields.message.content)
    logprobs = {"content": choice_fields.logprobs.content, "refusal": choice_fields.logprobs.refusal}
    message = {name: getattr(choice_fields.message, name) for name in choice_fields.message.__struct_fields__}
    sampled_entries = [
        {"token": sampled_entry.token, "logprob": sampled_entry.logprob, "top_logprobs": sampled_entry.alternatives()}
        for sampled_entry in sample_entries(entries, checked_logprobs)
    ]
    rows = [[alternative.logprob for alternative in entry.top_logprobs or ()] for entry in entries] if top else []
    if (
        min(logprob_values) < -_EXACT_INTEGER_LIMIT
        or min(map(min, filter(None, rows)), default=0.0) < -_EXACT_INTEGER_LIMIT
    ):
        return None
    usage_fields = completion.usage if isinstance(completion.usage, dict) else {}
    if choice_fields.logprobs.reasoning_content or thinking_of(message, usage_fields) is not None:
        return None
    # The response, and the end of its answer.
    reason = read_ending(choice_fields.finish_reason, spoken, message, logprobs)
    parsed = ParsedResponse(
        text=spoken,
        tokens=tuple([entry.token or "" for entry in entries]),
        logprobs=checked_logprobs,
        finish_reason=reason,
        model=once(text(completion.model)),
        usage=usage(usage_fields.get("prompt_tokens"), usage_fields.get("completion_tokens")),
        note=first_of(len(completion.choices), choice),
    )
    parsed = with_alternatives(parsed, rows, sampled_entries) if top else without_alternatives(parsed, sampled_entries)
    if reason in (TOOL_CALL, REFUSAL):
        return parsed
    ended_by = {name: getattr(choice_fields, name) for name in SAID_BESIDE if getattr(choice_fields, name) is not ...}
    drawn_count = len(choice_fields.token_ids) if isinstance(choice_fields.token_ids, list) else 0
    if not drawn_count and len(completion.choices) == 1 and completion.n == 1:
        drawn_count = parsed.usage.completion_tokens
    return settle(parsed, None, ending_of(choice_fields.finish_reason, ended_by), counted=drawn_count)


@cache
def _decoders(top: bool) -> "Decoders | None":
    """Returns the decoders, or None if msgspec (extra `serve`) is not installed."""
    try:
        import msgspec
    except ModuleNotFoundError:
        return None
    if not issubclass(msgspec.DecodeError, ValueError):  # before 0.21, beside a base install
        return None
    from metaprobe.records.raw_body_decoders import decoders_of

    return decoders_of(top)
