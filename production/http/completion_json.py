"""Reads and changes the JSON of requests and completions. All other bytes stay: numbers, unknown fields, order."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from metaprobe.api import events_as_text
from metaprobe.production.http.bodies import Refusal, count_elements

Object = dict[str, Raw]
Element = TypeVar("Element")

_object = msgspec.json.Decoder(Object)
_objects = msgspec.json.Decoder(list[Object])
_array = msgspec.json.Decoder(list[Raw])
_encode = msgspec.json.Encoder().encode

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors that a decoder raises for bytes that are not the expected JSON."""

_TRUE, _UNSET_VALUES, _NULL = Raw(b"true"), (b"false", b"null", b""), Raw(b"null")
_NO_TOP = {"top_logprobs": Raw(b"[]")}
VERDICT_KEY = "metaprobe"
MAX_CHOICES = 128
"""Most choices of one answer that are scored. Each costs a verdict and a row of the log, and no caller reads more."""
MAX_OTHER_BYTES = 64 << 10
"""Most bytes of the fields beside `choices` that are all copied to each choice. Of larger answers only the
fields in `_ANSWER_FIELDS` are copied.
"""
_ANSWER_FIELDS = ("id", "object", "created", "model", "system_fingerprint", "service_tier", "usage")
"""Fields of a completion that describe its answers."""
MAX_UNCOUNTED_COMMAS = 1 << 18
"""Most commas of a list that is decoded without counting its elements first. Each element takes 128 bytes, 32 MiB in
all.
"""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a chat completion: in the caller's form, and in the form that the upstream gets."""

    body: bytes
    """The caller's original request."""
    sent: bytes
    """The request with log-probabilities, and at least one alternative, switched on."""
    wants_several: bool
    """Whether more than one answer was requested."""
    wants_logprobs: bool
    fields: Object
    """Fields of the body, unchanged, except those of the log-probabilities."""

    @property
    def model(self) -> str:
        """Model that the caller names."""
        return _decode_field(self.fields.get("model"), str) or ""

    @property
    def messages(self) -> list[Any] | None:
        """The messages, decoded; None if they are no list."""
        return _decode_field(self.fields.get("messages"), list[Any])

    @property
    def question(self) -> str:
        """Text of the user's last message; empty if there is none."""
        for message in reversed(self.messages or ()):
            if isinstance(message, dict) and message.get("role") == "user":
                content = message.get("content")
                parts = content if isinstance(content, list) else [{"text": content}]
                texts = [part.get("text") for part in parts if isinstance(part, dict)]
                return "".join(text for text in texts if isinstance(text, str))
        return ""

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of the answer; None if the caller sets no limit."""
        for name in ("max_completion_tokens", "max_tokens"):
            if _is_set(self.fields, name):
                return _decode_field(self.fields[name], int)
        return None

    @property
    def is_changed(self) -> bool:
        return self.sent is not self.body

    @property
    def added(self) -> str:
        """Name of what was added to the caller's request; empty if nothing was added."""
        if not self.is_changed:
            return ""
        return "alternatives" if self.wants_logprobs else "log-probabilities"


def read_chat(body: bytes) -> ChatRequest:
    """Reads a request for a chat completion."""
    try:
        fields = _object.decode(body)
    except UNREADABLE as error:
        raise Refusal(400, "invalid_json", f"the body is not a JSON object ({type(error).__name__})") from error
    wants_logprobs = _is_set(fields, "logprobs")
    wants_top = wants_logprobs and _is_set(fields, "top_logprobs") and bytes(fields["top_logprobs"]).strip() != b"0"
    sent = body
    if not wants_top:
        if not wants_logprobs:
            fields["logprobs"] = _TRUE
        # One: llama.cpp and llama-cpp-python give no log-probabilities where no alternatives are asked for.
        fields["top_logprobs"] = Raw(b"1")
        sent = _encode(fields)
    wants_several = _is_set(fields, "n") and bytes(fields["n"]).strip() != b"1"
    return ChatRequest(body, sent, wants_several, wants_logprobs, fields)


def for_one_answer(body: bytes, model: str) -> bytes:
    """Returns the request for one whole answer of this model; all other fields stay unchanged."""
    return _encode({**_without_stream(body), "model": model})


def for_stream(body: bytes) -> bytes:
    """Returns the request for one whole answer as a request for a stream with its usage."""
    return _encode({**_object.decode(body), "stream": _TRUE, "stream_options": Raw(b'{"include_usage":true}')})


def unstreamed(body: bytes) -> bytes:
    """Returns the request for a whole answer; all other fields stay unchanged."""
    return _encode(_without_stream(body))


def _without_stream(body: bytes) -> Object:
    return {name: value for name, value in _object.decode(body).items() if name not in ("stream", "stream_options")}


def model_of(body: bytes) -> str:
    """Returns the model that a request names; empty if it names none."""
    try:
        return _decode_field(_object.decode(body).get("model"), str) or ""
    except UNREADABLE:
        return ""


def _decode_field(raw: Raw | None, kind: type[Element]) -> Element | None:
    """Returns a field's value; None if it is missing, or of another kind."""
    try:
        return None if raw is None else msgspec.json.decode(raw, type=kind)
    except UNREADABLE:
        return None


def _is_set(fields: Object, name: str) -> bool:
    return bytes(fields.get(name, b"")).strip() not in _UNSET_VALUES


def hide_logprobs(data: bytes, chat_request: ChatRequest) -> bytes:
    """Returns a completion or chunk without log-probabilities that the caller did not request."""
    if not chat_request.is_changed:
        return data
    try:
        fields = _object.decode(data)
    except UNREADABLE:
        return _hide_leniently(data, chat_request)
    fields_to_send = _hide_in_fields(fields, chat_request)
    return data if fields_to_send is fields else _encode(fields_to_send)


def _hide_in_fields(fields: Object, chat_request: ChatRequest) -> dict[str, Any]:
    """Returns the fields of a completion without log-probabilities that were not requested.

    Nothing is encoded yet, so that a large answer is written once. An object without choices is returned unchanged.
    """
    try:
        choices = _array.decode(fields["choices"])
    except (*UNREADABLE, KeyError):
        return fields
    return {**fields, "choices": [_hide_in_choice(choice, chat_request) for choice in choices]}


def _hide_leniently(data: bytes, chat_request: ChatRequest) -> bytes:
    """Does the work of `hide_logprobs` for JSON that Python wrote. Its NaN is usually a log-probability, and is removed
    with the log-probabilities.
    """
    try:
        completion = lenient_object(data)
    except UNREADABLE:
        return data
    choices = completion.get("choices")
    if chat_request.wants_logprobs or not isinstance(choices, list):
        return data
    bare = [
        {**choice, "logprobs": None} if isinstance(choice, dict) and "logprobs" in choice else choice
        for choice in choices
    ]
    return json.dumps({**completion, "choices": bare}).encode()


def _hide_in_choice(choice: Raw, chat_request: ChatRequest) -> object:
    fields: dict[str, Any]
    try:
        fields = dict(_object.decode(choice))
    except UNREADABLE:
        return choice  # no object, so it holds none
    if "logprobs" in fields and not chat_request.wants_logprobs:
        fields["logprobs"] = _NULL
    elif "logprobs" in fields:
        with suppress(*UNREADABLE):  # what cannot be read holds no alternatives
            logprobs: dict[str, Any] = dict(_object.decode(fields["logprobs"]))
            for name in ("content", "refusal"):
                if _is_set(logprobs, name):
                    entries = _objects.decode(logprobs[name])
                    logprobs[name] = [entry | _NO_TOP if "top_logprobs" in entry else entry for entry in entries]
            fields["logprobs"] = logprobs
    return fields


def lenient_object(body: bytes) -> dict[str, Any]:
    """Decodes a JSON object, also with NaN or a number beyond any float, as Python writes them.

    Raises one of `UNREADABLE` for anything else.
    """
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        parsed = json.loads(body.decode("utf-8", "surrogatepass"), parse_int=_read_whole_number)
    if not isinstance(parsed, dict):
        raise ValueError(f"a {type(parsed).__name__} came; expected an object")
    return parsed


def _read_whole_number(digits: str) -> int | float:
    """Returns a whole number; infinite if it has more digits than Python reads (4,300), as for other numbers beyond a
    float.
    """
    try:
        return int(digits)
    except ValueError:
        return float(digits)


def choices_of(body: bytes) -> tuple[list[bytes], int]:
    """Returns one completion for each of the first `MAX_CHOICES` choices of a completion, and the number of choices.

    With several choices, `n` says how many the usage counts together. A number that JSON does not allow affects only
    its own choice. Raises one of `UNREADABLE` if the bytes are no JSON object.
    """
    fields: dict[str, Any]
    choices: Any
    encode: Callable[[object], bytes] = _encode
    try:
        fields = dict(_object.decode(body))
        other_bytes = sum(len(value) for name, value in fields.items() if name != "choices")
    except UNREADABLE:
        fields, encode, other_bytes = lenient_object(body), _encode_as_python, len(body)
        choices = fields.get("choices")
        if not isinstance(choices, list) or len(choices) < 2:
            raise  # the fault is this answer's own, which passes as it came
    else:
        try:
            choices = _array.decode(fields.get("choices", b"[]"))
        except UNREADABLE:
            choices = []
    if len(choices) < 2:
        return [body], 1
    del fields["choices"]
    if other_bytes > MAX_OTHER_BYTES:
        fields = {name: fields[name] for name in _ANSWER_FIELDS if name in fields and _is_short(fields[name])}
    fields["n"] = len(choices)
    return [encode({**fields, "choices": [choice]}) for choice in choices[:MAX_CHOICES]], len(choices)


def beyond_limit(count: int) -> str:
    """Returns the reason why some choices of an answer are not scored. `count`: number of choices of the answer."""
    return f"choices {MAX_CHOICES} to {count - 1} are not scored: at most {MAX_CHOICES} of an answer are"


def _is_short(value: Any) -> bool:
    return len(value if isinstance(value, Raw) else _encode_as_python(value)) <= MAX_OTHER_BYTES


def _encode_as_python(value: object) -> bytes:
    return json.dumps(value).encode()


def with_verdict(body: bytes, verdict: dict[str, Any], chat_request: ChatRequest | None = None) -> bytes:
    """Returns the JSON object with a verdict under `metaprobe`.

    Args:
        body: the object.
        verdict: the verdict.
        chat_request: the caller's request; parts of the answer that it did not request are removed.
    """
    chat_request = chat_request if chat_request is not None and chat_request.is_changed else None
    try:
        fields = _object.decode(body)
        return _encode(
            {**(fields if chat_request is None else _hide_in_fields(fields, chat_request)), VERDICT_KEY: verdict}
        )
    except UNREADABLE:  # JSON as Python writes it, which stays as it is
        body = body if chat_request is None else _hide_leniently(body, chat_request)
        return b"".join((body.rstrip()[:-1], b',"', VERDICT_KEY.encode(), b'":', _encode(verdict), b"}"))


def combine_verdicts(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the first choice's verdict. With several choices it has all verdicts in order under `choices`."""
    return verdicts[0] if len(verdicts) == 1 else {**verdicts[0], "choices": verdicts}


class _Batch(msgspec.Struct):
    responses: Raw | msgspec.UnsetType = msgspec.UNSET


_batch = msgspec.json.Decoder(_Batch)


def batch(body: bytes, max_count: int) -> list[bytes] | None:
    """Returns the responses of a batch; None if the body is one response.

    Raises `Refusal` if the body is not JSON, and for more than `max_count` responses.
    """
    try:
        if not body.lstrip().startswith(b"{"):
            msgspec.json.decode(body, type=Raw)
            return None
        responses = _batch.decode(body).responses
        if responses is msgspec.UNSET:
            return None
        return list(map(bytes, bounded(bytes(responses), max_count, _array.decode, "responses")))
    except UNREADABLE:
        return _lenient_batch(body, max_count)


def bounded(array: bytes, max_count: int, decode: Callable[[bytes], list[Element]], name: str) -> list[Element]:
    """Returns the elements of a list. If they may be very many, they are counted before they are decoded.

    Raises `Refusal` (413) for more than `max_count`.

    Args:
        array: JSON of the list.
        max_count: most elements that are accepted.
        decode: decodes the list.
        name: name of the elements in errors.
    """
    count = count_elements(array) if array.count(b",") > MAX_UNCOUNTED_COMMAS else 0
    elements = [] if count > max_count else decode(array)
    if max(count, len(elements)) > max_count:
        message = f"{max(count, len(elements))} {name} in one request; at most {max_count} are taken at once"
        raise Refusal(413, "batch_too_large", message)
    return elements


def _lenient_batch(body: bytes, max_count: int) -> list[bytes] | None:
    """Returns the result of `batch` for JSON that Python wrote, so that NaN or half a surrogate pair spoils only one
    response.
    """
    try:
        parsed = json.loads(body.decode("utf-8", "surrogatepass"))
    except UNREADABLE as error:
        if fault := events_as_text(body):
            raise Refusal(400, "invalid_json", fault) from error
        raise Refusal(400, "invalid_json", f"the body is not JSON ({type(error).__name__}: {error})") from error
    if not isinstance(parsed, dict) or "responses" not in parsed:
        return None
    if not isinstance(parsed["responses"], list):
        raise Refusal(400, "invalid_request", "`responses` is no list; expected a list of responses")
    responses = bounded(b"", max_count, lambda _: parsed["responses"], "responses")
    return [json.dumps(response).encode() for response in responses]
