"""The chunks of a streamed answer kept as they came, and read all together at its end, which takes a tenth of the time.

Of each chunk only its outline is looked at: is it one of a plain answer, does it bring log-probabilities, does it end
the answer? What is not plain is for `StreamedCompletion`, chunk by chunk.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw

from metaprobe.records.raw_body import parse_chunks
from metaprobe.records.response import ParsedResponse
from metaprobe.serving.http.wire import UNREADABLE

_NOTHING = (b"", b"null")
_NAME = b'"logprobs"'
"""Stands in no string of JSON, where quotation marks are escaped."""


class OutlinedChoice(msgspec.Struct, gc=False):
    index: Literal[0] = 0
    logprobs: Raw = Raw()
    finish_reason: str | None = None


class Outline(msgspec.Struct, gc=False):
    """What is looked at of a chunk."""

    choices: Annotated[list[OutlinedChoice], msgspec.Meta(max_length=1)] = []
    error: None = None
    usage: Raw = Raw()

    @property
    def is_usage(self) -> bool:
        """Whether the chunk brings the usage and nothing of the answer."""
        return not self.choices and bytes(self.usage) not in _NOTHING

    @property
    def logprobs(self) -> bytes:
        """The JSON of the log-probabilities that it brings; empty where it brings none."""
        raw = bytes(self.choices[0].logprobs) if self.choices else b""
        return b"" if raw in _NOTHING else raw


_outline = msgspec.json.Decoder(Outline).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


class PlainChunks:
    """The chunks of one plain answer."""

    def __init__(self) -> None:
        self.held: list[bytes] = []
        """The JSON of each."""
        self.ended = False
        """Whether the server has said how the answer ended."""

    def add(self, data: bytes) -> Outline | None:
        """Keeps a chunk, and says what it brings; None, and it is not kept, where it is not of a plain answer."""
        try:
            outline = _outline(data)
        except UNREADABLE:
            return None
        self.held.append(data)
        if outline.choices:
            self.ended |= bool(outline.choices[0].finish_reason)
        return outline

    def parsed(self, *, top: bool) -> ParsedResponse | None:
        """The whole answer; None where it is not plain after all."""
        return parse_chunks(self.held, top=top) if self.ended else None

    def named(self, names: tuple[str, ...]) -> dict[str, Any]:
        """What stands under these names in the first and the last chunk."""
        ends = [_object(data) for data in (*self.held[:1], *self.held[-1:])]
        return {name: held[name] for held in ends for name in names if name in held}


def without_logprobs(event: bytes, logprobs: bytes) -> bytes | None:
    """The event with null in place of these log-probabilities; None where they do not stand behind their first name."""
    named = event.find(_NAME)
    at = named + len(_NAME) + (2 if event.startswith(b": ", named + len(_NAME)) else 1)
    if named < 0 or not event.startswith(logprobs, at):
        return None
    return b"".join((event[:at], b"null", event[at + len(logprobs) :]))
