"""Records of a file, one in memory at a time: JSON lines and rows of CSV, plain or of gzip, and rows of Parquet.

Standard library only, but for Parquet (extra `fit`).
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from metaprobe.records.errors import ImportFileError
from metaprobe.records.extras import require

GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
"""First bytes of files of gzip and of Parquet."""
UNREAD = {
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard; expected plain lines or .gz: unpack it with `zstd -d`",
    b"ARROW1": "an Arrow file; expected Parquet: pyarrow.parquet.write_table writes it",
    b"\xff\xff\xff\xff": "an Arrow stream; expected Parquet: pyarrow.parquet.write_table writes it",
}
"""First bytes of files that are not read -> what to do with them."""
BLOCK = 1 << 16
"""Bytes that are read at once."""

MOST_COLUMNS = 10_000
"""Columns of a Parquet file, those within structs too; a run store has 80."""
MOST_VALUES = 4_000_000
"""Values in all columns of any Parquet file; a larger file may hold `VALUES_RATIO` for each of its bytes. A value takes
about 100 bytes as a Python object."""
VALUES_RATIO = 30
"""Recorded stores hold at most 1.02 values a byte."""

OnBytes = Callable[[int], object]
"""Is called with the number of bytes read so far of the file on the disk, before they are unpacked."""


@contextmanager
def opened(path: Path, on_bytes: OnBytes | None = None) -> Iterator[IO[bytes]]:
    """Yields the file's bytes, uncompressed. Raises `ImportFileError` where it cannot be opened.

    What reading a damaged file raises is known by `is_damage`.
    """
    expected = "expected JSON lines (.jsonl, .jsonl.gz) or a log"
    try:
        with io.BufferedReader(io.FileIO(path) if on_bytes is None else _Telling(path, on_bytes), BLOCK) as file:
            start = file.peek(6)[:6]  # a pipe cannot be read twice
            if unread := next((what for first, what in UNREAD.items() if start.startswith(first)), ""):
                raise ImportFileError(f"{path} is {unread}")
            if path.suffix == ".gz" or start.startswith(GZIP):
                with gzip.open(file) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield file
    except FileNotFoundError as error:
        raise ImportFileError(f"{path}: there is no such file; {expected}") from error
    except IsADirectoryError as error:
        raise ImportFileError(f"{path} is a folder; {expected}") from error


def is_damage(error: Exception) -> bool:
    """Returns whether the unpackers raise such an error for a compressed file that is damaged or cut off."""
    damaged = isinstance(error, (EOFError, gzip.BadGzipFile, zlib.error))
    return damaged or type(error).__name__ == "ZstdError"


def check_values(metadata: Any, size: int) -> None:
    """Raises `ValueError` where a Parquet file's footer speaks of far more values than a file of `size` bytes holds."""
    if metadata.num_columns > MOST_COLUMNS:
        raise ValueError(f"it has {metadata.num_columns} columns; expected at most {MOST_COLUMNS}")
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    count = sum(group.column(index).num_values for group in groups for index in range(group.num_columns))
    if count > max(MOST_VALUES, VALUES_RATIO * size):
        raise ValueError(
            f"its {size} bytes hold {count} values; expected at most {max(MOST_VALUES, VALUES_RATIO * size)}"
        )


class _Telling(io.FileIO):
    """A file that calls `on_bytes` with the number of bytes read so far."""

    def __init__(self, path: Path, on_bytes: OnBytes) -> None:
        super().__init__(path)
        self._read, self._on_bytes = 0, on_bytes

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._read += count or 0
        self._on_bytes(self._read)
        return count


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


def hand_over(error: ImportFileError, on_error: OnError | None, cause: Exception | None = None) -> None:
    """Hands the error, with its cause, to `on_error`, or raises it where that is None."""
    error.__cause__ = cause
    if on_error is None:
        raise error
    on_error(error)


def iter_json_lines(
    path: str | Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number from 1, object) for each line of a .jsonl file, also .gz. Blank lines are skipped.

    A bad line raises `ImportFileError`, or is handed to `on_error` and passed over. A file that is one JSON document,
    spread over its lines, always raises.
    """
    path = Path(path)
    number = blank = 0
    first = True
    with opened(path, on_bytes) as file:
        try:
            # It is read as bytes, so that what is not UTF-8 can be named with its line.
            for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
                if len(raw) > MAX_LINE:  # a few kilobytes of gzip can unpack to a line that fills the memory
                    raise at_line(
                        path, number, f"the line is longer than {MAX_LINE} bytes; expected one response a line"
                    )
                # Some editors put a mark in front.
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                opening = line.strip()
                blank = 0 if opening else blank + 1
                if blank > MAX_BLANK:
                    raise at_line(path, number, f"more than {MAX_BLANK} blank lines come before it; is it a log?")
                if first and opening in (b"[", b"{", b"[{"):
                    raise ImportFileError(
                        f"{path} is one JSON document spread over many lines; expected one object a line:"
                        f" jq -c '{'.' if opening == b'{' else '.[]'}' {path.name} > lines.jsonl"
                    )
                if blank:
                    continue
                first = False
                try:
                    record = json_object(line := line.rstrip(b"\r\n"))
                except ImportFileError as problem:
                    hand_over(at_line(path, number, str(problem), line), on_error, problem)
                else:
                    yield number, record
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


ENDS = tuple(f".{kind}{packed}" for kind in ("csv", "tsv") for packed in ("", ".gz"))
"""Endings of the names of CSV files."""
_DELIMITERS = ",;\t"
"""Signs that may separate cells. The head tells which one does: the sign that gives the most cells."""


def is_csv(path: Path) -> bool:
    """Returns whether the file's name ends as that of a CSV file."""
    return path.name.lower().endswith(ENDS)


def iter_csv(
    path: Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (line number from 1 on which the row begins, cells by column) for each row.

    Cells are parted by commas, semicolons or tabs, and rows without any text are passed over. A row with more or fewer
    cells than the head raises `ImportFileError`, or is handed to `on_error` and passed over. A file that cannot be read
    as CSV, or whose head names a column twice or not at all, always raises.
    """
    if csv.field_size_limit() < MAX_LINE:
        csv.field_size_limit(MAX_LINE)  # by default 128 kB, less than the log-probabilities of a long answer
    begun, held = 1, 0

    def lines() -> Iterator[str]:
        nonlocal held
        while line := text.readline(MAX_LINE + 1):
            held += len(line)
            if held > MAX_LINE:  # a few kilobytes of gzip can unpack to a row that fills the memory
                raise at_line(path, begun, f"the row is longer than {MAX_LINE} characters; expected one response a row")
            yield line

    try:
        with opened(path, on_bytes) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            first = next(lines(), "")
            delimiter = max(_DELIMITERS, key=lambda sign: len(next(csv.reader([first], delimiter=sign), [])))
            head = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter, strict=True), [])]
            twice = next((name for name in head if head.count(name) > 1), None)
            if len(head) < 2 or "" in head or twice is not None:
                came = f"the column {twice!r} twice" if twice else f"the head {', '.join(head)[:80]!r}"
                raise ImportFileError(
                    f"{path} has {came}; expected a first row that names each column once, as CSV has it"
                )
            reader = csv.reader(lines(), delimiter=delimiter, strict=True)
            begun, held = 2, 0
            for cells in reader:
                number, begun, held = begun, reader.line_num + 2, 0
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) == len(head):
                    yield number, dict(zip(head, cells, strict=True))
                    continue
                what = (
                    f"the row has {len(cells)} cells, and the head has {len(head)}; expected as many: was it cut off?"
                )
                hand_over(at_line(path, number, what, dict(zip(head, cells, strict=False))), on_error)
    except UnicodeDecodeError as error:
        what = f"it is not UTF-8 ({error.reason}); save it as CSV UTF-8, or convert it with iconv"
        raise at_line(path, begun, what) from error
    except csv.Error as error:
        what = f"it cannot be read as CSV ({error}); expected whole rows: is a quote left open, or the file cut off?"
        raise at_line(path, begun, what) from error
    except Exception as error:
        if not is_damage(error):
            raise
        what = f"the compressed file is damaged or cut off here ({error}); copy or make it again"
        raise at_line(path, begun, what) from error


_ROWS = 64
_NESTED = ("labels", "messages", "sampling")
"""Columns that may hold JSON as text; so may `response`, which is read as such anyway."""


def is_table(path: Path) -> bool:
    """Returns whether the file is Parquet, by its first bytes."""
    with path.open("rb") as file:
        return file.read(4) == PARQUET


def records_of(
    path: Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, object) for each line or row; bad lines go to `on_error`, or raise.

    Of a row, columns without a value are left out, as keys are that a line does not have.
    """
    if path.is_file() and is_table(path):
        yield from _rows(path, on_error, on_bytes)
    else:
        yield from iter_json_lines(path, on_error=on_error, on_bytes=on_bytes)


def _rows(path: Path, on_error: OnError | None, on_bytes: OnBytes | None) -> Iterator[tuple[int, dict[str, Any]]]:
    arrow, number, size = require("pyarrow", "fit"), 0, path.stat().st_size
    try:
        with require("pyarrow.parquet", "fit").ParquetFile(path) as parquet:
            try:
                check_values(parquet.metadata, size)
            except ValueError as error:
                raise ImportFileError(f"{path}: {error}") from error
            for batch in parquet.iter_batches(_ROWS, use_threads=False):
                batch.validate(full=True)  # reading a damaged batch could crash the process
                for index in range(batch.num_rows):
                    number += 1
                    row: dict[str, Any] = {}
                    try:
                        one = batch.slice(index, 1)
                        if one.nbytes > MAX_LINE:
                            raise ImportFileError(
                                f"the row is larger than {MAX_LINE} bytes; expected one response a row"
                            )
                        [row] = one.to_pylist()
                        yield number, _record(row)
                    except ValueError as problem:
                        hand_over(at_line(path, number, str(problem), row), on_error, problem)
                if on_bytes is not None:
                    on_bytes(size * number // parquet.metadata.num_rows)
    except (arrow.ArrowException, OSError) as error:
        raise ImportFileError(
            f"{path} is damaged or no such table ({str(error).strip()[:200]}); expected Parquet: copy or make it again"
        ) from error


def _record(row: dict[str, Any]) -> dict[str, Any]:
    record = {key: value for key, value in row.items() if value is not None}
    for key in _NESTED:
        if isinstance(held := record.get(key), str):
            try:
                record[key] = json.loads(held)
            except (ValueError, RecursionError) as error:
                raise ImportFileError(
                    f'the text under "{key}" is no JSON ({error}); expected JSON, or columns'
                ) from error
        elif isinstance(held, dict):  # a struct has all its fields in every row
            record[key] = {name: value for name, value in held.items() if value is not None}
    return record


def name_value(value: object) -> str:
    """Returns a value as JSON, cut to 60 characters, with the name of its type, for messages."""
    text = json.dumps(value, ensure_ascii=False, default=str)  # a table may hold dates and bytes
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
