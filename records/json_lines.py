"""JSON lines from a file, plain or compressed, a line in memory at a time."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from metaprobe.records.compressed import OnBytes, is_damage, opened
from metaprobe.records.errors import ImportFileError
from metaprobe.records.line_fields import name_value

MAX_LINE = 64 << 20
"""Bytes of one line; a response of 512 tokens with 15 alternatives each has 0.6 MB."""

MAX_BLANK = 1_000_000
"""Blank lines in a row; a few kilobytes of gzip can unpack to billions."""

OnError = Callable[[ImportFileError], None]


def at_line(path: Path, number: int, what: str, source: object = None) -> ImportFileError:
    """Returns an error about that line; `source` is what the line holds, for whoever keeps bad lines."""
    error = ImportFileError(f"{path}:{number}: {what}")
    error.line, error.source = number, source
    return error


def iter_json_lines(
    path: str | Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) for each line of a .jsonl file, also .gz or .zst; blank lines are passed over.

    A bad line raises `ImportFileError`, or is handed to `on_error` and passed over. A file that is one JSON document,
    spread over its lines, always raises.
    """
    path = Path(path)
    first = True
    for number, raw in _raw_lines(path, on_bytes):
        if first and (opening := raw.strip()) in (b"[", b"{", b"[{"):
            raise ImportFileError(
                f"{path} is one JSON document spread over many lines; expected one object a line:"
                f" jq -c '{'.' if opening == b'{' else '.[]'}' {path.name} > lines.jsonl"
            )
        first = False
        try:
            record = json_object(raw)
        except ImportFileError as problem:
            error = at_line(path, number, str(problem), raw)
            if on_error is None:
                raise error from problem
            on_error(error)
        else:
            yield number, record


def _raw_lines(path: Path, on_bytes: OnBytes | None) -> Iterator[tuple[int, bytes]]:
    """Lines as bytes, so that what is not UTF-8 can be named with its line. A file that breaks off always raises."""
    number = blank = 0
    with opened(path, on_bytes) as file:
        try:
            for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
                if len(raw) > MAX_LINE:  # a few kilobytes of gzip can unpack to a line that fills the memory
                    raise at_line(
                        path, number, f"the line is longer than {MAX_LINE} bytes; expected one response a line"
                    )
                # Some editors put a mark in front.
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                blank = 0 if line.strip() else blank + 1
                if blank > MAX_BLANK:
                    raise at_line(path, number, f"more than {MAX_BLANK} blank lines come before it; is it a log?")
                if not blank:
                    yield number, line.rstrip(b"\r\n")
        except Exception as error:
            if not is_damage(error):
                raise
            what = f"the compressed file is damaged or cut off here ({error}); copy or make it again"
            raise at_line(path, number + 1, what) from error


def json_object(raw: bytes) -> dict[str, Any]:
    """Returns the JSON object that a line is. Raises `ImportFileError`, without file and line, where it is none."""
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ImportFileError(
            f"byte {error.start + 1} (0x{raw[error.start]:02x}) is not UTF-8; convert the file, for instance with iconv"
        ) from error
    except (ValueError, RecursionError) as error:
        # Its own message would speak of "line 1" of this line.
        what = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise ImportFileError(
            f"not JSON: {what} (the line is {len(raw)} bytes long); expected one whole JSON object a line:"
            " if it was cut off, write it again or remove it"
        ) from error
    if not isinstance(record, dict):
        raise ImportFileError(f"came {name_value(record)}; expected one JSON object a line")
    return record
