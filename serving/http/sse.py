"""Server-sent events as they come: whole events out, each as soon as its last byte is in."""

import re

_END = re.compile(rb"\r?\n\r?\n|\r\r")
_LONGEST_END = 4


class EventSplitter:
    """Cuts a stream of bytes into events, bytes unchanged: what comes out, joined, is what went in
    (but for a byte-order mark at the beginning)."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._size = 0
        self._begun = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that end in `data`, each with the empty line that ends it."""
        if not self._begun:
            data = data.removeprefix(b"\xef\xbb\xbf")  # a byte-order mark, which some servers write first
            self._begun = True
        newest = self._tail() + data
        if b"\n\n" not in newest and (b"\r" not in newest or not _END.search(newest)):
            self._keep(data)  # a long event that comes in small pieces is put together once, at its end
            return []
        seen = max(0, self._size - _LONGEST_END)  # an end may have begun in what came before
        buffer = self.rest() + data
        if b"\r" not in buffer:  # as of almost every server, and ten times faster
            *whole, rest = buffer.split(b"\n\n")
            self._keep(rest)
            return [event + b"\n\n" for event in whole]
        events, start = [], 0
        for end in _END.finditer(buffer, seen):
            events.append(buffer[start : end.end()])
            start = end.end()
        self._keep(buffer[start:])
        return events

    def _keep(self, data: bytes) -> None:
        if data:
            self._waiting.append(data)
            self._size += len(data)

    def _tail(self) -> bytes:
        """The last bytes that wait, in which an end may have begun."""
        tail = b""
        for part in reversed(self._waiting):
            if len(tail) >= _LONGEST_END:
                break
            tail = part[-_LONGEST_END:] + tail
        return tail[-_LONGEST_END:]

    @property
    def pending(self) -> int:
        """Bytes that wait for the end of their event."""
        return self._size

    def rest(self) -> bytes:
        """What came after the last event, and empties it."""
        rest = b"".join(self._waiting)
        self._waiting, self._size = [], 0
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
