"""Takes a client's offer to speak another protocol (`Upgrade`, as Java's makes it) out of a request's header.

The parser would stop at such a header and take the body for the other protocol. A header may come in any number of
pieces, and behind the body of another request, so that every byte is known to be of a header or of a body.
"""

import re
from collections.abc import Callable, Sequence

_OFFER = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)
_NAME, _END = b"\r\nupgrade:", b"\r\n\r\n"


class OffersLeftOut:
    """Hands bytes on to a parser, which says by `header_is_whole` and `message_is_whole` how far it is."""

    def __init__(self, feed: Callable[[bytes], bool]) -> None:
        """`feed`: takes bytes, and says whether more may come."""
        self._feed = feed
        self._held = b""
        """The end of a header so far that may be the beginning of an offer, or of the header's end."""
        self._in_header = True
        self._left: int | None = None
        """Bytes of the body that are still to come; None for a body in chunks."""
        self._before = b""
        """The last bytes of a body in chunks, which ends as a header does."""

    def header_is_whole(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The parser has read a header, of these names (in lower case) and values."""
        length = next((value for name, value in headers if name == b"content-length"), b"")
        self._in_header, self._before = False, b""
        self._left = int(length) if length.isdigit() else None

    def message_is_whole(self) -> None:
        """The parser has read a request to its end."""
        self._in_header = True

    def take(self, data: bytes) -> None:
        """Hands on what came."""
        data = self._held + data
        self._held = b""
        while data:
            piece, data = self._piece_of_header(data) if self._in_header else self._piece_of_body(data)
            if not piece:
                self._held = data
                return
            if not self._feed(piece):
                return

    def _piece_of_header(self, data: bytes) -> tuple[bytes, bytes]:
        end = data.find(_END)
        until = end + len(_END) if end >= 0 else len(data) - _begun(data)
        return _OFFER.sub(b"\r\nx-grade", data[:until]), data[until:]

    def _piece_of_body(self, data: bytes) -> tuple[bytes, bytes]:
        if self._left is not None:
            until = min(self._left, len(data))
            self._left -= until
            return data[:until], data[until:]
        end = (self._before + data).find(_END)
        until = len(data) if end < 0 else end + len(_END) - len(self._before)
        self._before = (self._before + data[:until])[-len(_END) + 1 :] if end < 0 else b""
        return data[:until], data[until:]


def _begun(data: bytes) -> int:
    """How many bytes at the end may be the beginning of an offer, or of the header's end."""
    tail = data[-len(_NAME) :].lower()
    for size in range(min(len(tail), len(_NAME) - 1), 0, -1):
        if _NAME.startswith(tail[-size:]) or _END.startswith(tail[-size:]):
            return size
    return 0
