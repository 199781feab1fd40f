"""A streamed answer on its way to the caller: passed on as it arrives, read along, and ended with a verdict."""

import json
import logging
import re
import time
from collections import deque
from collections.abc import Mapping
from math import inf
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw

from metaprobe.api import AnswerStream, GatedAnswer, InvalidResponse, StreamingGate, parse_chunks
from metaprobe.production.http.bodies import error_object
from metaprobe.production.http.completion_json import (
    MAX_CHOICES,
    UNREADABLE,
    VERDICT_KEY,
    ChatRequest,
    beyond_limit,
    combine_verdicts,
    hide_logprobs,
    with_verdict,
)
from metaprobe.production.http.judges import Scorer
from metaprobe.production.http.metrics import log_unexpected

logger = logging.getLogger(__name__)

_EVENT_END = re.compile(rb"\r?\n\r?\n|\r\r")
_MAX_END_BYTES = 4
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Bytes that some servers write before the first event."""


class EventSplitter:
    """Splits a stream of bytes into events. Joined, they give the input bytes, except a byte-order mark at the
    beginning.
    """

    def __init__(self) -> None:
        self._incomplete = bytearray()
        self._begun = self._has_returns = False

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the events that are complete with `data`, each with the empty line that ends it."""
        if not self._begun:
            data = data.removeprefix(BYTE_ORDER_MARK)
            self._begun = True
        self._has_returns = self._has_returns or b"\r" in data
        # Most servers send each event by itself.
        if not self._incomplete and not self._has_returns and data.find(b"\n\n") == len(data) - 2 >= 0:
            return [data]
        search_from = max(0, len(self._incomplete) - _MAX_END_BYTES)  # an end may have begun in what came before
        self._incomplete += data
        if not self._has_returns:  # as of almost every server, and ten times faster
            if self._incomplete.find(b"\n\n", search_from) < 0:
                return []
            *whole_events, incomplete_event = bytes(self._incomplete).split(b"\n\n")
            self._incomplete = bytearray(incomplete_event)
            return [event + b"\n\n" for event in whole_events]
        events, start = [], 0
        for end in [end_match.end() for end_match in _EVENT_END.finditer(self._incomplete, search_from)]:
            events.append(bytes(self._incomplete[start:end]))
            start = end
        del self._incomplete[:start]
        return events

    @property
    def pending(self) -> int:
        """Number of bytes of an incomplete event."""
        return len(self._incomplete)

    def rest(self) -> bytes:
        """Returns the bytes after the last event, and forgets them."""
        rest, self._incomplete = bytes(self._incomplete), bytearray()
        return rest


class FirstEvent:
    """Waits for the first event of a stream. Later bytes are not inspected."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> int:
        """Takes in bytes of the stream. Returns where the first event ends in all bytes so far; 0 before it ends."""
        search_from = max(0, len(self._received) - _MAX_END_BYTES)
        self._received += data
        end_match = _EVENT_END.search(self._received, search_from)
        return 0 if end_match is None else end_match.end()

    @property
    def pending(self) -> int:
        """Number of bytes so far."""
        return len(self._received)

    def received(self) -> bytes:
        """Returns all bytes so far."""
        return bytes(self._received)


def data_of(event: bytes) -> bytes:
    """Returns the data of an event; empty for a comment, which servers send to keep a connection alive."""
    if event.startswith(b"data: ") and event.find(b"\n", 0, len(event) - _MAX_END_BYTES) < 0:
        return event[6:].strip()
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines).strip()


def with_data(event: bytes, data: bytes) -> bytes:
    """Returns the event with other data; its other lines stay."""
    other_lines = [line for line in event.splitlines() if line and not line.startswith(b"data:")]
    return b"\n".join([*other_lines, b"data: " + data, b"", b""])


_NO_VALUES = (b"", b"null")
_LOGPROBS_KEY = b'"logprobs"'
"""The key, with its quotation marks. No JSON string holds it, because quotation marks are escaped there."""


class OutlinedChoice(msgspec.Struct, gc=False):
    index: Literal[0] = 0
    logprobs: Raw = Raw()
    finish_reason: str | None = None
    message: None = None
    """A whole answer in place of a part. Its stream is read chunk by chunk."""


class Outline(msgspec.Struct, gc=False):
    """The fields of a chunk that are read."""

    choices: Annotated[list[OutlinedChoice], msgspec.Meta(max_length=1)] = []
    error: None = None
    usage: Raw = Raw()

    @property
    def is_usage(self) -> bool:
        """Whether the chunk carries the usage and nothing of the answer."""
        return not self.choices and bytes(self.usage) not in _NO_VALUES

    @property
    def logprobs(self) -> bytes:
        """JSON of the chunk's log-probabilities; empty if there are none."""
        raw = bytes(self.choices[0].logprobs) if self.choices else b""
        return b"" if raw in _NO_VALUES else raw


_outline = msgspec.json.Decoder(Outline).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


BYTES_AROUND = 128
"""Bytes of an event around its part of the answer. The verdict's decoder skips these bytes.

At most half of a stream is discounted this way, so at worst twice the allowed bytes are read at once.
"""


class PlainChunks:
    """Chunks of one plain answer."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        """JSON of each chunk."""
        self.ended = False
        """Whether the server has said how the answer ended."""

    def add(self, data: bytes) -> Outline | None:
        """Stores a chunk, and returns its outline. Returns None, and does not store it, if it does not belong to a
        plain answer.
        """
        try:
            outline = _outline(data)
        except UNREADABLE:
            return None
        self.chunks.append(data)
        if outline.choices:
            self.ended |= bool(outline.choices[0].finish_reason)
        return outline


def without_logprobs(event: bytes, logprobs: bytes) -> bytes | None:
    """Returns the event with null instead of these log-probabilities; None if the event's first key `logprobs` does not
    hold them.
    """
    name_at = event.find(_LOGPROBS_KEY)
    value_at = name_at + len(_LOGPROBS_KEY) + (2 if event.startswith(b": ", name_at + len(_LOGPROBS_KEY)) else 1)
    if name_at < 0 or not event.startswith(logprobs, value_at):
        return None
    return b"".join((event[:value_at], b"null", event[value_at + len(logprobs) :]))


DONE = b"[DONE]"
MAX_EVENT_BYTES = 4 << 20
"""Most bytes of an event that is read. A longer event passes unread, and there is no verdict."""
_NOT_JSON = "a chunk of the upstream's stream is not JSON"
_ANSWER_FIELDS = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


STREAM_COST = 10
"""Memory of a stream whose chunks are read one by one, in multiples of its bytes."""


class _TooMuchToRead(Exception):
    """The next event requires more work than is allowed now."""

    def __init__(self, byte_count: int) -> None:
        """`byte_count` is the number of bytes to read."""
        super().__init__(byte_count)
        self.byte_count = byte_count


class ScoredStream:
    """A stream that is passed on with a verdict.

    `feed` returns the bytes to pass on for the bytes that arrived. `end` and `cut` return the rest. Chunks of a chat or
    text completion get one additional chunk with the verdict, before [DONE]. Of the events of a response, the last
    event's `response` gets the verdict.
    """

    def __init__(
        self,
        scorer: Scorer,
        chat_request: ChatRequest | None = None,
        gates: StreamingGate | None = None,
        *,
        max_bytes: int,
        gated_reason: str = "",
        no_logprobs: str = "",
    ) -> None:
        """Sets up the stream.

        Args:
            scorer: judges the answer.
            chat_request: request of the chat completion; None for a request that passed unchanged, of whose answer
                nothing is hidden.
            gates: the gate; None for none.
            max_bytes: most bytes of the answer that are read.
            gated_reason: finish reason of an answer that the gate ended.
            no_logprobs: why there are no log-probabilities; empty if they were requested.
        """
        self._scorer = scorer
        self._gated_reason = gated_reason
        self._chat_request = chat_request
        self._asked_model = None if chat_request is None else chat_request.model
        """Model that the upstream was asked for with log-probabilities; None if the request passed unchanged."""
        self._hides = chat_request is not None and chat_request.is_changed
        """Whether the caller gets fewer log-probabilities than arrive."""
        self._hides_all = chat_request is not None and not chat_request.wants_logprobs
        """Whether the caller gets no log-probabilities."""
        # One of several answers in one stream cannot be ended without the others.
        if chat_request is None or chat_request.wants_several:
            gates = None
        reads_question = chat_request is not None and getattr(gates, "reads_question", False)
        reads_limit = chat_request is not None and getattr(gates, "token_limit", None) is not None
        self._gated = GatedAnswer(
            gates,
            question=chat_request.question if chat_request and reads_question else "",
            max_tokens=chat_request.max_tokens if chat_request and reads_limit else None,
        )
        self._plain = (
            PlainChunks() if chat_request is not None and gates is None and not chat_request.wants_several else None
        )
        """Chunks so far, as long as nobody needs them one by one; None if they are read one by one."""
        self._max_bytes = max_bytes
        self._events = EventSplitter()
        self._unread_events: deque[bytes] = deque()
        """Complete events that have not been read yet."""
        self.waiting_bytes = 0
        """Bytes that the next call of `feed` reads, if the last call left events; 0 if it left none."""
        self._max_reread_bytes = inf
        """Most bytes that may be read again at once."""
        self._dropped = False
        """Whether events pass unread."""
        self._choices_beyond = 0
        """Number of choices of the answer if there are more than `MOST_CHOICES`, else 0; the rest are not followed."""
        self._kind: str = "" if chat_request is None else "chat"
        self._choices: dict[int, AnswerStream] = {}
        self._answer_fields: dict[str, Any] = {}
        self._usage_field: dict[str, Any] = {}
        """The usage, once it has arrived."""
        self._reason = no_logprobs
        """Why there will be no verdict; empty while there may be one."""
        self._bytes = 0
        self._verdict_sent = False
        """Whether the verdict was sent."""
        self._has_ended = False
        """Whether the stream has its end: [DONE], the last event of a response, or an error."""
        self.seconds = 0.0
        """Seconds spent here."""

    @property
    def action(self) -> str:
        """How the gate ended the answer, after which the upstream is to be closed; empty until then."""
        return self._gated.action

    @property
    def is_plain(self) -> bool:
        """Whether only the outline of each event is read, so far."""
        return self._plain is not None

    @property
    def pending(self) -> int:
        """Number of bytes of an incomplete event."""
        return self._events.pending

    @property
    def bytes_at_end(self) -> int:
        """Number of bytes that `end` reads: all bytes so far if the verdict is still missing, else the unread ones."""
        return self.pending if self._verdict_sent or self._dropped else self._bytes

    def held_bytes(self, received: int) -> int:
        """Returns about how many bytes of memory the stream takes after `received` bytes."""
        if self._dropped:
            return 0
        return received * (2 if self._plain is not None else STREAM_COST)

    def drop(self, reason: str) -> None:
        """Passes all further events unread, and forgets what was read. There is no verdict, for this reason."""
        self._give_up(reason)
        self._choices.clear()
        self._plain, self._dropped = None, True

    def feed(self, data: bytes, *, max_reread: float = inf) -> bytes:
        """Returns the bytes to pass on: of the events that are now complete.

        `max_reread` is how many bytes of earlier events may be read again. If more have to be read, as for the verdict,
        `waiting_bytes` says so, and the next call continues there.
        """
        started = time.perf_counter()
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            self._give_up(f"the answer is longer than {self._max_bytes} bytes")
            self._choices.clear()
            self._plain = None
        out = []
        self._unread_events.extend(self._events.feed(data))
        self.waiting_bytes, self._max_reread_bytes = 0, max_reread
        while self._unread_events:
            try:
                out.append(self._pass_event(self._unread_events[0]))
            except _TooMuchToRead as too_much:
                self.waiting_bytes = too_much.byte_count
                break
            self._unread_events.popleft()
            if self._gated.action:
                out.append(self._stop())
                self._unread_events.clear()
        self._max_reread_bytes = inf
        if not self.waiting_bytes and self._events.pending > MAX_EVENT_BYTES:
            self._give_up("an event of the stream was too long to be read")
            out.append(self._events.rest())
        self.seconds += time.perf_counter() - started
        return b"".join(out)

    def end(self) -> bytes:
        """Returns the bytes to pass on after the upstream has closed the stream normally."""
        # The last event may lack its empty line. A missing [DONE] is not added.
        last_bytes = b"" if self.action else self._events.rest()
        if not last_bytes.strip():
            out = last_bytes
        elif is_unfinished(last_bytes):
            return self.cut(502, "upstream_cut", "the upstream's stream ended in the middle of an event")
        else:
            out = self._pass_event(last_bytes)
            out += b"" if out.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"  # what follows is an event of its own
        if not self._verdict_sent and self._kind != "event":  # no event of a response is made up
            out += self._verdict_event()
        elif not self._verdict_sent and self._dropped:
            self._no_verdict()
        return out

    def cut(self, status: int, code: str, message: str) -> bytes:
        """Returns the bytes to pass on if the stream broke before [DONE]: an error that clients raise, without [DONE].

        If the verdict was sent, it stays the only verdict.

        Args:
            status: HTTP status of the error.
            code: code for programs.
            message: message for people.
        """
        if self._has_ended:
            return b""
        self._has_ended = True
        event: dict[str, Any] = {"error": error_object(status, code, message)}
        if not self._verdict_sent:
            event[VERDICT_KEY] = self._scorer.none(message)
        self._verdict_sent = True
        if self._kind == "chat":
            return _event(event)
        return b"event: error\n" + _event({"type": "error", **event})

    def _pass_event(self, event: bytes) -> bytes:
        # The end of the stream, and events that pass unread.
        data = data_of(event)
        if not data:
            return event
        if data == DONE:
            if not self._verdict_sent:
                self._check_affordable()
            self._has_ended = True
            return event if self._verdict_sent else self._verdict_event() + event
        if self._dropped:
            return event
        # Chunks that need not be read one by one.
        if self._plain is not None and not self._verdict_sent:
            outline = self._plain.add(data)
            if outline is None:
                self._check_affordable()
            else:
                if not outline.choices and outline.is_usage and self._is_over():
                    try:
                        self._check_affordable()
                    except _TooMuchToRead:
                        self._plain.chunks.pop()  # it comes again
                        raise
                    return self._verdict_event() + event
                if not self._hides or not (logprobs := outline.logprobs):
                    return event
                event_without_logprobs = without_logprobs(event, logprobs) if self._hides_all else None
                return self._hide(event, data) if event_without_logprobs is None else event_without_logprobs
            self._read_chunk_by_chunk()
        # Read the chunk.
        try:
            # A stream that passes as it came may hold NaN and half of a surrogate pair, which Python reads.
            chunk = json.loads(data) if self._chat_request is None else msgspec.json.decode(data)
        except UNREADABLE:
            self._give_up(_NOT_JSON)
            return event
        if not isinstance(chunk, dict):
            self._give_up("a chunk of the upstream's stream is not an object")
            return event
        if chunk.get("error"):
            self._give_up("the upstream sent an error instead of the rest of the answer")
            return event
        # Pass it on by its kind.
        self._kind = self._kind or AnswerStream.kind_of(chunk)
        if self._kind == "event":
            return self._pass_response_event(event, chunk)
        if chunk.get("usage") and not chunk.get("choices") and not self._verdict_sent and self._is_over():
            self._check_affordable()
            self._take_in(chunk)
            return self._verdict_event() + event  # openai's helper takes the usage from the last chunk, and no other
        has_logprobs = self._take_in(chunk)
        return self._hide(event, data) if has_logprobs else event

    def _check_affordable(self) -> None:
        """Raises `_TooMuchToRead` if reading the events so far again would take more bytes than are allowed now."""
        weight = self._bytes
        if self._plain is not None:
            weight = max(weight - BYTES_AROUND * len(self._plain.chunks), weight // 2)
        if weight > self._max_reread_bytes and not self._dropped:
            raise _TooMuchToRead(self._bytes)

    def _hide(self, event: bytes, data: bytes) -> bytes:
        """Returns the event without log-probabilities that the caller did not request."""
        if self._chat_request is None or not self._hides:
            return event
        return with_data(event, hide_logprobs(data, self._chat_request))

    def _pass_response_event(self, event: bytes, event_fields: dict[str, Any]) -> bytes:
        """Returns an event of a response. The last event gets the verdict, because nothing follows it."""
        if self._verdict_sent:
            return event
        if event_fields.get("type") in _LAST_EVENTS:
            self._check_affordable()
        self._take_in(event_fields)
        if event_fields.get("type") not in _LAST_EVENTS or not isinstance(event_fields.get("response"), dict):
            return event
        self._verdict_sent = self._has_ended = True
        verdict = self._judge_stream(self._choices[0]) if self._choices else self._no_verdict()
        try:
            fields = msgspec.json.decode(data_of(event), type=dict[str, msgspec.Raw])
            fields["response"] = msgspec.Raw(with_verdict(bytes(fields["response"]), verdict))
            return with_data(event, msgspec.json.encode(fields))
        except UNREADABLE:  # NaN or half of a surrogate pair, which Python reads and writes
            response = {**event_fields["response"], VERDICT_KEY: verdict}
            return with_data(event, json.dumps({**event_fields, "response": response}).encode())

    def _read_chunk_by_chunk(self) -> None:
        """Reads chunk by chunk, from the first one on: the answer is not plain, or has a fault."""
        chunks, self._plain = () if self._plain is None else self._plain.chunks, None
        for data in chunks:
            try:
                self._take_in(msgspec.json.decode(data))
            except UNREADABLE:  # in a part that the outline passes over
                self._give_up(_NOT_JSON)

    def _take_in(self, chunk: dict[str, Any]) -> bool:
        """Does the work of `_take_chunk`, but never raises: the answer must reach its caller even if a chunk is bad."""
        try:
            return self._take_chunk(chunk)
        except Exception as error:
            if not isinstance(error, InvalidResponse):
                log_unexpected(logger, "reading a chunk", error)
            self._give_up("a chunk of the upstream's stream is not what a chunk should be")
            return True

    def _take_chunk(self, chunk: dict[str, Any]) -> bool:
        """Takes in a chunk. Returns whether it carried log-probabilities."""
        # Fields of the whole answer.
        for name in _ANSWER_FIELDS:
            if name in chunk:
                self._answer_fields[name] = chunk[name]
        if self._kind == "event":
            if not self._reason:
                self._choices.setdefault(0, AnswerStream()).add(chunk)
            return False
        if chunk.get("usage"):  # of all choices together, in a chunk of its own
            self._usage_field["usage"] = chunk["usage"]
        # The choices of the chunk.
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            return False
        has_logprobs = False
        choices_read = 0
        if len(choices) > 1:
            listed = [_index_of(choice) for choice in choices[: MAX_CHOICES + 1] if isinstance(choice, Mapping)]
            indices = [index for index in listed if type(index) is int]
            if len(set(indices)) < len(indices):
                self._give_up(AnswerStream.two_of_one_index)
        for choice in choices:
            if not isinstance(choice, Mapping):
                raise InvalidResponse(f"a choice came as {type(choice).__name__}; expected an object")
            has_logprobs |= choice.get("logprobs") is not None
            if self._reason:
                continue
            index = _index_of(choice)
            if not isinstance(index, int) or index < 0:
                raise InvalidResponse("a choice has no index from 0 on")
            if index >= MAX_CHOICES:
                self._choices_beyond = max(self._choices_beyond, min(index, 1 << 20) + 1)
                self._gated.step_back()
                continue
            if (choices_read := choices_read + 1) > MAX_CHOICES:
                self._give_up(f"a chunk holds {len(choices)} choices; at most {MAX_CHOICES} are read")
                continue
            answer = self._choices.get(index)
            if answer is None:
                answer = self._choices[index] = AnswerStream(index)
            added_part = answer.add(chunk if len(choices) == 1 else {**chunk, "choices": [choice]})
            if len(self._choices) > 1:
                self._gated.step_back()
            self._gated.follow(answer, added_part)
        return has_logprobs

    def _is_over(self) -> bool:
        """Returns whether nothing that follows can change the verdict."""
        if self._plain is not None:
            return bool(self._reason) or self._plain.ended
        return bool(self._reason or self._choices) and all(choice.ended for choice in self._choices.values())

    def _give_up(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._gated.step_back()

    def _stop(self) -> bytes:
        """Returns the end of an answer that the gate ended.

        The verdict is sent twice, because openai's own helper raises an error for most finish reasons and drops their
        chunk.
        """
        self._verdict_sent = self._has_ended = True
        score, reason, details = self._gated.verdict()
        choice = self._choice(next(iter(self._choices)))
        verdict = self._scorer.stopped(score, reason, details, str(self._answer_fields.get("model") or ""))
        last = self._chunk({**choice, "finish_reason": self._gated_reason}, verdict)
        return self._chunk(choice, verdict) + last + b"data: " + DONE + b"\n\n"

    def _verdict_event(self) -> bytes:
        if self._plain is not None and not self._reason:
            chunks = self._plain.chunks
            parsed = parse_chunks(chunks, top=False) if self._plain.ended else None
            if parsed is not None:
                self._verdict_sent = True
                for chunk in map(_object, (*chunks[:1], *chunks[-1:])):
                    self._answer_fields.update({name: chunk[name] for name in _ANSWER_FIELDS if name in chunk})
                return self._chunk(self._choice(0), self._scorer.verdict(parsed, asked_model=self._asked_model))
            self._read_chunk_by_chunk()
        self._verdict_sent = True
        # An empty delta, not an empty list of choices: many callers read `chunk.choices[0]` without a check.
        choice = self._choice(min(self._choices, default=0))
        if self._reason or not self._choices:
            return self._chunk(choice, self._no_verdict())
        verdicts = [self._judge_stream(self._choices[index]) for index in sorted(self._choices)]
        if not self._choices_beyond:
            return self._chunk(choice, combine_verdicts(verdicts))
        rest = beyond_limit(self._choices_beyond)
        verdict = combine_verdicts([*verdicts, self._scorer.none(rest)])
        verdict["reason"] = "; ".join(filter(None, [verdict["reason"], rest]))
        return self._chunk(choice, verdict)

    def _no_verdict(self) -> dict[str, Any]:
        return self._scorer.none(self._reason or "the upstream's stream holds no answer")

    def _judge_stream(self, answer: AnswerStream) -> dict[str, Any]:
        if self._reason:
            return self._no_verdict()
        if not answer.ended and self._kind != "event":  # of a response, the last event says how it ended
            return self._scorer.none("the upstream's stream ended before the answer did (it has no finish_reason)")
        try:
            response = answer.response()
        except InvalidResponse as error:  # the chunks are of more than one answer
            return self._scorer.none(str(error))
        verdict = self._scorer.verdict(
            {**self._usage_field, **response, "n": len(self._choices)}, asked_model=self._asked_model
        )
        verdict["reason"] = "; ".join(dict.fromkeys(filter(None, [verdict["reason"], self._gated.note])))
        return verdict

    def _choice(self, index: int) -> dict[str, Any]:
        """Returns a choice that adds nothing to the answer."""
        empty_part: dict[str, Any] = {"text": ""} if self._kind == "text" else {"delta": {}}
        return {"index": index, **empty_part, "logprobs": None, "finish_reason": None}

    def _chunk(self, choice: dict[str, Any], verdict: dict[str, Any]) -> bytes:
        kind = "text_completion" if self._kind == "text" else "chat.completion.chunk"
        # Names as Python writes them: half of a surrogate pair can be read here, and msgspec would not write it.
        common_fields = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in self._answer_fields.items()}
        chunk_fields = {"id": "metaprobe", "object": kind, "created": int(time.time()), "model": "", **common_fields}
        return _event({**chunk_fields, "choices": [choice], VERDICT_KEY: verdict})


def _index_of(choice: Mapping[str, Any]) -> Any:
    """Returns the choice's index; 0 if it has none."""
    index = choice.get("index")
    return 0 if index is None else index


def _event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def is_unfinished(event: bytes) -> bool:
    """Returns whether the upstream stopped in the middle of its last event."""
    data = data_of(event)
    if not data:
        return not event.lstrip().startswith((b":", b"event:", b"id:", b"retry:"))
    if data == DONE:
        return False
    try:
        msgspec.json.decode(data)
    except UNREADABLE:
        return True
    return False
