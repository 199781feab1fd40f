"""Joins the events of a streamed chat completion into the body that the same request gives without streaming."""

import json
from collections.abc import Callable

from metaprobe.api import AnswerStream, InvalidResponse
from metaprobe.production.http.bodies import Refusal, values_bytes
from metaprobe.production.http.completion_json import UNREADABLE, lenient_object
from metaprobe.production.http.streamed_answer import BYTES_AROUND, DONE, MAX_EVENT_BYTES, EventSplitter, data_of

VALUE_BYTES_AROUND = 1 << 10
"""Bytes that the values of an event around its part of the answer take. They are not kept."""


class JoinedEvents:
    """Takes in the bytes of a stream as they arrive. Each event is decoded, and its bytes are dropped."""

    def __init__(self, max_bytes: int, on_bytes: Callable[[int, int], None]) -> None:
        """Sets up the reader.

        Args:
            max_bytes: most bytes of the answer.
            on_bytes: called with the number of bytes so far, and with the bytes that their values take; may raise.
        """
        self._max_bytes, self._on_bytes = max_bytes, on_bytes
        self._value_bytes = 0
        self._events, self._stream = EventSplitter(), AnswerStream(keeps_all=True)
        self._answer_bytes = 0
        self._error = b""
        """The data of an event that is an error; it is the body then."""
        self.begun = False
        """Whether a chunk of the answer has come."""
        self.done = False
        """Whether the event that closes a stream has come."""

    def feed(self, data: bytes) -> None:
        """Takes in bytes. Raises `Refusal` for too many, and `InvalidResponse` for an event that is no chunk of one
        answer.
        """
        for event in self._events.feed(data):
            self._add(event)
        if self._events.pending > MAX_EVENT_BYTES:
            message = f"an event of the upstream's stream is larger than {MAX_EVENT_BYTES} bytes"
            raise Refusal(502, "upstream_too_large", message)
        self._hold_bytes(self._answer_bytes + self._events.pending)

    def body(self) -> bytes:
        """Returns the body at the end. Raises `InvalidResponse` if the stream does not say how the answer ended."""
        self._add(self._events.rest())
        if self._error:
            return self._error
        response = self._stream.response()
        if not self._stream.ended:
            raise InvalidResponse("the stream ended before the answer did")
        return json.dumps(response).encode()

    @property
    def failed(self) -> bool:
        """Whether an event was an error."""
        return bool(self._error)

    def _add(self, event: bytes) -> None:
        data = data_of(event)
        self.done = self.done or data == DONE
        if not data or data == DONE or self._error:
            return
        self._answer_bytes += max(len(event) - BYTES_AROUND, len(event) // 2)
        self._value_bytes += max(values_bytes(data) - VALUE_BYTES_AROUND, 0)
        try:
            chunk = lenient_object(data)
        except UNREADABLE as error:
            raise InvalidResponse("a chunk of the stream is not JSON") from error
        if chunk.get("error") or chunk.get("object") == "error":
            self._error = data
        else:
            self.begun = True
            self._stream.add(chunk)

    def _hold_bytes(self, size: int) -> None:
        self._on_bytes(size, self._value_bytes)
        if size > self._max_bytes:
            raise Refusal(502, "upstream_too_large", f"the upstream's answer is larger than {self._max_bytes} bytes")
