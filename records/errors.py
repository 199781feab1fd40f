"""Errors about recorded or incoming data.

RecordError             a ValueError; the message names what came, what was expected, and what to do
|-- InvalidResponse     a response that cannot be scored (no log-probabilities, NaN, empty, wrong shape)
|   `-- NoLogprobs      a whole answer that came without log-probabilities
|-- ImportFileError     a line of an import file is not what it should be; carries file and line
|-- DamagedShard        a shard of a run store cannot be read; the other shards still can
|-- StoreMismatch       data of one kind or configuration offered where another is stored
|-- StoreHeld           another process is writing into the store
|-- Unwritable          what must be kept cannot be written (a full disk): whoever makes more of it stops

MissingExtra            an ImportError: an optional dependency is absent; names the extra to install
"""

import json


class RecordError(ValueError):
    """The base class of all errors about recorded or incoming data."""


class InvalidResponse(RecordError):
    """A response that cannot be scored."""

    other_tokens: bool = False
    """Whether the answer is complete, but its log-probabilities belong to other tokens or to a part of it."""
    lacks_logprobs: bool = False
    """Whether the answer is complete, but came without any log-probability."""


def of_other_tokens(message: str) -> InvalidResponse:
    """Returns the error about an answer whose log-probabilities belong to other tokens than its own."""
    error = InvalidResponse(message)
    error.other_tokens = True
    return error


class NoLogprobs(InvalidResponse):
    """A complete answer that came without log-probabilities."""

    lacks_logprobs = True
    placeholders: bool = False
    """Whether numbers came that are only placeholders, for example all 0."""


class ImportFileError(RecordError):
    """A line of an import file cannot be imported; the error carries file and line."""

    line: int | None = None
    """Number of the line, from 1; None if it is not known."""
    source: object = None
    """The line itself, as bytes or as its object; None if it is not known."""
    kind: str = ""
    """Why the line is bad, in words that are equal for all lines with this fault; empty if not set."""


def of_kind(message: str, kind: str) -> ImportFileError:
    """Returns an error about a line, with its message and the reason under which the line is counted."""
    error = ImportFileError(message)
    error.kind = kind
    return error


class DamagedShard(RecordError):
    """A shard cannot be read; the others still can."""


class StoreMismatch(RecordError):
    """The data are of another kind or configuration than those in the store."""


class StoreHeld(RecordError):
    """Another process is writing into the store."""


class Unwritable(RecordError):
    """Data that must be kept cannot be written, for example because the disk is full; the work that makes them
    stops."""


class MissingExtra(ImportError):
    """An optional dependency is absent; the message names the extra to install."""


def name_value(value: object) -> str:
    """Returns a value as JSON, cut to 60 characters, with the name of its type, for messages."""
    text = json.dumps(value, ensure_ascii=False, default=str)  # a table may hold dates and bytes
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
