"""Server-sent events as they come: whole events out, each as soon as its last byte is in."""

import re

_END = re.compile(rb"\r?\n\r?\n|\r\r")
_LONGEST_END = 4


class EventSplitter:
    """Cuts a stream of bytes into events, bytes unchanged: what comes out, joined, is what went in
    (but for a byte-order mark at the beginning)."""

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that end in `data`, each with the empty line that ends it."""
        if not self._begun:
            data = data.removeprefix(b"\xef\xbb\xbf")  # a byte-order mark, which some servers write first
            self._begun = True
        seen = max(0, len(self._rest) - _LONGEST_END)  # an end may have begun in what came before
        buffer = self._rest + data if self._rest else data
        if b"\r" not in buffer:  # as of almost every server, and ten times faster
            *whole, self._rest = buffer.split(b"\n\n")
            return [event + b"\n\n" for event in whole]
        events, start = [], 0
        for end in _END.finditer(buffer, seen):
            events.append(buffer[start : end.end()])
            start = end.end()
        self._rest = buffer[start:]
        return events

    @property
    def pending(self) -> int:
        """Bytes that wait for the end of their event."""
        return len(self._rest)

    def rest(self) -> bytes:
        """What came after the last event, and empties it."""
        rest, self._rest = self._rest, b""
        return rest


def data_of(event: bytes) -> bytes:
    """The data of an event; empty for a comment, such as a server sends to keep a connection alive."""
    if event.startswith(b"data: ") and event.find(b"\n", 0, len(event) - _LONGEST_END) < 0:
        return event[6:].strip()
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines).strip()


def with_data(event: bytes, data: bytes) -> bytes:
    """The event with other data; its other lines stay."""
    others = [line for line in event.splitlines() if line and not line.startswith(b"data:")]
    return b"\n".join([*others, b"data: " + data, b"", b""])
