"""Reads records of a file one at a time: JSON lines and CSV rows, plain or gzip, and rows of Parquet.

Standard library only, except for Parquet (extra `fit`).
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from metaprobe.records.bad_lines import RawLine, at_line
from metaprobe.records.errors import ImportFileError, name_value, of_kind
from metaprobe.records.extras import require

GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
"""First bytes of gzip files and of Parquet files."""
UNREAD_COMPRESSIONS = {
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard; expected plain lines or .gz: unpack it with `zstd -d`",
    b"ARROW1": "an Arrow file; expected Parquet: pyarrow.parquet.write_table writes it",
    b"SQLite format 3\0": "a SQLite file; expected lines: `estimate`, `sample` and `retrain` read a score log (--log)",
    b"\xff\xff\xff\xff": "an Arrow stream; expected Parquet: pyarrow.parquet.write_table writes it",
}
"""Maps the first bytes of files that cannot be read to what to do with them."""
READ_BYTES = 1 << 16
"""Bytes that are read at once."""

MOST_COLUMNS = 10_000
"""Most columns of a Parquet file, with those within structs. A run store has 80."""
MOST_VALUES = 4_000_000
"""Most values of all columns of a Parquet file. A larger file may hold `VALUES_RATIO` values for each of its bytes.

A value takes about 100 bytes as a Python object.
"""
VALUES_RATIO = 30
"""Most values for each byte of a large Parquet file. Recorded stores hold at most 1.02 values a byte."""
MAX_UNPACKED_BYTES = 256 << 20
"""Bytes that any Parquet file may unpack to. A larger file may unpack to `BYTES_RATIO` times its size."""
BYTES_RATIO = 400
"""Most unpacked bytes for each byte of a large Parquet file.

Recorded stores unpack to 2 to 20 times their size. Repeated prompts may be a hundred times smaller on disk.
"""

OnBytes = Callable[[int], object]
"""A function that is called with the number of bytes read so far of the file on disk, before unpacking."""


@contextmanager
def opened(path: Path, on_bytes: OnBytes | None = None) -> Iterator[IO[bytes]]:
    """Yields the file's bytes, uncompressed. Raises `ImportFileError` if the file cannot be opened.

    `is_damage` recognises the errors of reading a damaged file.
    """
    expected = "expected JSON lines (.jsonl, .jsonl.gz) or a log"
    try:
        with io.BufferedReader(
            io.FileIO(path) if on_bytes is None else _CountingFile(path, on_bytes), READ_BYTES
        ) as file:
            start = file.peek(16)[:16]  # a pipe cannot be read twice
            if unread := next(
                (compression for magic, compression in UNREAD_COMPRESSIONS.items() if start.startswith(magic)), ""
            ):
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
    """Returns whether an error is one that the unpackers raise for a damaged or truncated file."""
    is_unpack_error = isinstance(error, (EOFError, gzip.BadGzipFile, zlib.error))
    return is_unpack_error or type(error).__name__ == "ZstdError"


def read_whole(path: Path, max_bytes: int, expected: str) -> bytes:
    """Returns the bytes of a file, unpacked if it is compressed.

    Raises `ImportFileError` for a larger file, and for a damaged compressed file.

    Args:
        path: the file.
        max_bytes: most bytes that are accepted, because a few kilobytes may unpack to more than the memory.
        expected: what errors say was expected in place of a larger file, and what to do.
    """
    try:
        with opened(path) as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise ImportFileError(f"{path}: holds more than {max_bytes >> 20} MiB; expected {expected}")
    except Exception as error:
        if not is_damage(error):
            raise
        raise ImportFileError(f"{path}: the compressed file is damaged or cut off ({error}); make it again") from error
    return data


def check_values(metadata: Any, size: int) -> None:
    """Raises `ValueError` if a Parquet file's footer states far more values or bytes than `size` bytes can hold."""
    if metadata.num_columns > MOST_COLUMNS:
        raise ValueError(f"it has {metadata.num_columns} columns; expected at most {MOST_COLUMNS}")
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    count = sum(column.num_values for column in columns)
    if count > max(MOST_VALUES, VALUES_RATIO * size):
        raise ValueError(
            f"its {size} bytes hold {count} values; expected at most {max(MOST_VALUES, VALUES_RATIO * size)}"
        )
    check_unpacked(sum(column.total_uncompressed_size for column in columns), size)


def check_unpacked(unpacked: int, size: int) -> None:
    """Raises `ValueError` if a Parquet file of `size` bytes unpacks to far more bytes than answers do."""
    max_unpacked = max(MAX_UNPACKED_BYTES, BYTES_RATIO * size)
    if unpacked > max_unpacked:
        raise ValueError(
            f"its {size} bytes unpack to {unpacked} or more; expected at most {max_unpacked}, as answers do"
        )


class _CountingFile(io.FileIO):
    """A file that calls `on_bytes` with the number of bytes read so far."""

    def __init__(self, path: Path, on_bytes: OnBytes) -> None:
        super().__init__(path)
        self._bytes_read, self._on_bytes = 0, on_bytes

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._bytes_read += count or 0
        self._on_bytes(self._bytes_read)
        return count


MAX_LINE = 64 << 20
"""Most bytes of one line. A response of 512 tokens with 15 alternatives each has 0.6 MB."""
MAX_PASSED = 16
"""Most blocks of `MAX_LINE` bytes of an overlong line that are skipped. A few megabytes of gzip can unpack to a line of
terabytes.
"""

MAX_BLANK = 1_000_000
"""Most blank lines in a row. A few kilobytes of gzip can unpack to billions."""

OnError = Callable[[ImportFileError], None]


def hand_over(error: ImportFileError, on_error: OnError | None, cause: Exception | None = None) -> None:
    """Passes the error, with its cause, to `on_error`; raises it if `on_error` is None.

    Args:
        error: the error.
        on_error: called with the error.
        cause: the exception from which the error arose.
    """
    error.__cause__ = cause
    if on_error is None:
        raise error
    on_error(error)


def iter_json_lines(
    path: str | Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number from 1, object) for each line of a .jsonl file, also .gz. Blank lines are skipped.

    A bad line raises `ImportFileError`, or is passed to `on_error` and skipped. Two faults always raise: a file that is
    one JSON document over several lines, and a damaged or truncated compressed file, because it is not known how much
    is missing.

    Args:
        path: the file.
        on_error: called with the error about each bad line; by default the error is raised.
        on_bytes: called with the number of bytes read so far.
    """
    path = Path(path)
    number = blank = 0
    opening: tuple[int, bytes] | None = None
    is_first_line = True
    with opened(path, on_bytes) as file:
        try:
            # Lines are read as bytes, so that an error about bytes that are not UTF-8 can name the line.
            for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
                if len(raw) > MAX_LINE and not raw.endswith(b"\n"):
                    # A few kilobytes of gzip can unpack to a line that fills the memory.
                    fault = f"the line is longer than {MAX_LINE} bytes; expected one response a line"
                    error = at_line(path, number, fault, raw[:MAX_SHOWN])
                    if not _to_end_of_line(file):
                        raise error
                    hand_over(error, on_error)
                    continue
                # Some editors write a byte-order mark first.
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                stripped = line.strip()
                blank = 0 if stripped else blank + 1
                if blank > MAX_BLANK:
                    raise at_line(path, number, f"more than {MAX_BLANK} blank lines come before it; is it a log?")
                if blank:
                    continue
                if is_first_line and stripped in (
                    b"[",
                    b"{",
                    b"[{",
                ):  # the next line shows whether this is a document or a line that was cut
                    is_first_line, opening = False, (number, line)
                    continue
                is_first_line = False
                try:
                    record = RawLine(json_object(line.rstrip(b"\r\n")), line)
                except ImportFileError as problem:
                    if opening is not None:
                        raise _document_error(path, opening[1].strip()) from problem
                    hand_over(at_line(path, number, problem, line), on_error, problem)
                    continue
                if opening is not None:
                    hand_over(_error_of_opening(path, *opening), on_error)
                    opening = None
                yield number, record
            if opening is not None:
                hand_over(_error_of_opening(path, *opening), on_error)
        except Exception as error:
            if not is_damage(error):
                raise
            fault = f"the compressed file is damaged or cut off here ({error}); copy or make it again"
            raise at_line(path, number + 1, fault) from error


MAX_SHOWN = 1000
"""Bytes that are kept of an overlong line."""


def _to_end_of_line(file: IO[bytes]) -> bool:
    """Skips to the end of an overlong line. Returns whether the line ends within `MAX_PASSED` blocks."""
    for _ in range(MAX_PASSED):
        block = file.readline(MAX_LINE)
        if not block or block.endswith(b"\n"):
            return True
    return False


def _document_error(path: Path, opening: bytes) -> ImportFileError:
    return ImportFileError(
        f"{path} is one JSON document spread over many lines; expected one object a line:"
        f" jq -c '{'.' if opening == b'{' else '.[]'}' {path.name} > lines.jsonl"
    )


def _error_of_opening(path: Path, number: int, line: bytes) -> ImportFileError:
    """Returns the error about a first line that holds only an opening bracket.

    Args:
        path: the file.
        number: number of the line.
        line: the line.
    """
    try:
        json_object(line.rstrip(b"\r\n"))
    except ImportFileError as problem:
        return at_line(path, number, problem, line)
    raise AssertionError(line)


def json_object(raw: bytes) -> dict[str, Any]:
    """Returns the JSON object of a line. Raises `ImportFileError`, without file and line, if it is no JSON object."""
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        message = (
            f"byte {error.start + 1} (0x{raw[error.start]:02x}) is not UTF-8; convert the file, for instance with iconv"
        )
        raise of_kind(message, NOT_UTF8) from error
    except (ValueError, RecursionError) as error:
        # Its own message would speak of "line 1" of this line.
        fault = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        message = f"not JSON: {fault} (the line is {len(raw)} bytes long); expected one whole JSON object a line:"
        raise of_kind(f"{message} if it was cut off, write it again or remove it", NOT_JSON) from error
    if not isinstance(record, dict):
        raise of_kind(f"came {name_value(record)}; expected one JSON object a line", NOT_JSON)
    return record


NOT_UTF8, NOT_JSON = "not UTF-8", "not one whole JSON object"
"""Reasons why a line is bad."""


CSV_ENDINGS = tuple(f".{kind}{packed}" for kind in ("csv", "tsv") for packed in ("", ".gz"))
"""Endings of the names of CSV files."""
_DELIMITERS = ",;\t"
"""Signs that may separate cells. The sign that gives the most cells in the head line is used."""


def is_csv(path: Path) -> bool:
    """Returns whether the file's name ends like that of a CSV file."""
    return path.name.lower().endswith(CSV_ENDINGS)


OTHER_CELLS = "more or fewer cells than the head has"
NO_ROW = "no row of CSV"
"""Reasons why a row is bad."""
TOO_LONG = "too long"
FEW_LINES = 20
"""Most lines of a text in a cell. If more lines with two cells each follow a bad row, these lines are rows."""
MAX_OPEN = 100_000
"""Most lines of one row, and most lines in which the end of a bad row is searched.

A response of 512 tokens with 15 alternatives, spread over lines, has 30,000.
"""


def iter_csv(
    path: Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (line number from 1 on which the row begins, cells by column) for each row of a CSV file.

    Cells are separated by commas, semicolons or tabs. Rows without text are skipped. A bad row raises
    `ImportFileError`, or is passed to `on_error` and skipped. A row is bad if it has more or fewer cells than the head,
    an open or misplaced quote, or bytes that are not UTF-8. Lines after a bad row are read as if that row were not
    there. A file always raises if its head cannot be read, repeats a column's name, or lacks one.

    Args:
        path: the file.
        on_error: called with the error about each bad row; by default the error is raised.
        on_bytes: called with the number of bytes read so far.
    """
    if csv.field_size_limit() < MAX_LINE:
        csv.field_size_limit(MAX_LINE)  # by default 128 kB, less than the log-probabilities of a long answer
    number = 1
    try:
        with (
            opened(path, on_bytes) as file,
            io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
        ):
            # The head, which must name each column once.
            first_line = text.readline(MAX_LINE + 1)
            _check_utf8(path, first_line)
            delimiter = max(_DELIMITERS, key=lambda sign: len(next(csv.reader([first_line], delimiter=sign), [])))
            try:
                head = [cell.strip() for cell in next(csv.reader([first_line], delimiter=delimiter, strict=True), [])]
            except csv.Error as error:
                fault = f"it cannot be read as CSV ({error}); expected a first row that names the columns"
                raise at_line(path, 1, fault) from error
            repeated_name = next((name for name in head if head.count(name) > 1), None)
            if len(head) < 2 or "" in head or repeated_name is not None:
                received_text = (
                    f"the column {repeated_name!r} twice" if repeated_name else f"the head {', '.join(head)[:80]!r}"
                )
                raise ImportFileError(
                    f"{path} has {received_text}; expected a first row that names each column once, as CSV has it"
                )
            # The rows, of which a bad one is reported and skipped.
            raw_head = _raw_bytes(first_line)
            rows = _CsvRows(path, text, delimiter, len(head))
            while (row := rows.next()) is not None:
                number = row.number
                raw = _raw_bytes(row.text)
                if row.fault:
                    kind, fault = row.fault
                    problem = at_line(path, number, fault, RawLine({}, raw, raw_head))
                    problem.kind = kind
                    hand_over(problem, on_error)
                elif any(cell.strip() for cell in row.cells):
                    yield number, RawLine(dict(zip(head, row.cells, strict=True)), raw, raw_head)
    except Exception as error:
        if not is_damage(error):
            raise
        fault = f"the compressed file is damaged or cut off here ({error}); copy or make it again"
        raise at_line(path, number, fault) from error


def _check_utf8(path: Path, head: str) -> None:
    try:
        head.encode("utf-8")
    except UnicodeEncodeError as error:
        fault = "it is not UTF-8; save it as CSV UTF-8, or convert it with iconv"
        raise at_line(path, 1, fault) from error


def _raw_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@dataclass(slots=True)
class _CsvRow:
    """One row of CSV: its cells, or why it is bad."""

    number: int
    text: str
    """All lines of the row."""
    cells: list[str]
    fault: tuple[str, str] | None = None
    """The reason under which the row is counted, and the message."""


class _CsvRows:
    """Reads rows of CSV one by one, so that a bad row does not change how other rows are read."""

    def __init__(self, path: Path, text: IO[str], delimiter: str, width: int) -> None:
        self._path, self._text, self._delimiter, self._width = path, text, delimiter, width
        self._ahead: list[str] = []
        """Lines that were read and not yet used."""
        self._number = 1
        """Number of the line that was used last."""
        cell = rf'(?:"(?:[^"]|"")*"|[^"{delimiter}\r\n]*)'
        self._regular_row = re.compile(rf"{cell}(?:{delimiter}{cell})*[\r\n]*")

    def next(self) -> _CsvRow | None:
        """Returns the next row; None at the end of the file."""
        if self._line_at(0) is None:
            return None
        row, count = self._row_at(0)
        if row.fault:
            count = self._lines_of_fault()
            row.text = "".join(self._ahead[:count])
        del self._ahead[:count]
        self._number += count
        return row

    def _line_at(self, offset: int) -> str | None:
        """Returns the line that is `offset` lines ahead; None after the end of the file."""
        while len(self._ahead) <= offset:
            line = self._text.readline(MAX_LINE + 1)
            if not line:
                return None
            if len(line) > MAX_LINE:  # a few kilobytes of gzip can unpack to a line that fills the memory
                fault = f"the row is longer than {MAX_LINE} characters; expected one response a row"
                raise at_line(self._path, self._number + 1 + len(self._ahead), fault)
            self._ahead.append(line)
        return self._ahead[offset]

    def _row_at(self, offset: int) -> tuple[_CsvRow, int]:
        """Returns the row that begins `offset` lines ahead, and how many lines were read for it."""
        lines_read, chars_read = 0, 0

        def lines() -> Iterator[str]:
            nonlocal lines_read, chars_read
            while (line := self._line_at(offset + lines_read)) is not None:
                lines_read, chars_read = lines_read + 1, chars_read + len(line)
                if chars_read > MAX_LINE or lines_read > MAX_OPEN:
                    raise csv.Error(TOO_LONG)
                yield line

        number, cells, fault = self._number + 1 + offset, list[str](), None
        try:
            cells = next(csv.reader(lines(), delimiter=self._delimiter, strict=True), [])
        except csv.Error as error:
            problem = "a quote is left open" if "unexpected end" in str(error) else str(error)
            csv_message = f"it cannot be read as CSV ({problem}); expected whole rows: is a quote in the wrong place?"
            too_long_message = (
                f"the row is longer than {MAX_LINE} characters or {MAX_OPEN} lines; expected one response a row"
            )
            fault = NO_ROW, too_long_message if problem == TOO_LONG else csv_message
        text = self._ahead[offset] if lines_read == 1 else "".join(self._ahead[offset : offset + lines_read])
        if fault is None and len(cells) != self._width and any(cell.strip() for cell in cells):
            received = f"the row has {len(cells)} cells, and the head has {self._width}"
            fault = OTHER_CELLS, f"{received}; expected as many: was it cut off?"
        if fault is None and not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                byte = _raw_bytes(text[: error.start + 1])[-1]
                fault = (
                    NOT_UTF8,
                    f"byte 0x{byte:02x} is not UTF-8; save the file as CSV UTF-8, or convert it with iconv",
                )
        return _CsvRow(number, text, cells, fault), lines_read

    def _is_valid_row(self, offset: int) -> bool:
        """Returns whether a valid row begins `offset` lines ahead, with quotes only around whole cells."""
        row, _ = self._row_at(offset)
        return row.fault is None and self._regular_row.fullmatch(row.text) is not None

    def _lines_of_fault(self) -> int:
        """Returns how many of the lines ahead belong to the bad row that begins with the first of them.

        A quote that the first line leaves open may be a fault of that line alone, or open a cell of several lines. The
        quote that would close the cell decides: if a valid row begins on its line, only the first line is bad. Only the
        first line is bad, too, if most lines before that quote are valid rows. With two columns this takes many lines,
        because prose with one comma is no row.
        """
        first_line = self._line_at(0) or ""
        if first_line.count('"') % 2 == 0:
            return 1
        chars_read, valid_rows = len(first_line), 0
        for offset in range(1, MAX_OPEN):
            if chars_read > MAX_LINE or (line := self._line_at(offset)) is None:
                return 1
            chars_read += len(line)
            if line.count('"') % 2:
                are_rows = 2 * valid_rows > offset - 1 and (self._width > 2 or offset > FEW_LINES)
                return 1 if are_rows or self._is_valid_row(offset) else offset + 1
            valid_rows += self._is_valid_row(offset)
        return 1


_ROWS_PER_BATCH = 64
"""Number of rows of a Parquet file that are in memory at once."""
_COLUMNS_OF_JSON = ("labels", "messages", "sampling")
"""Columns that may hold JSON as text. `response` may too, and is always read so."""


def is_table(path: Path) -> bool:
    """Returns whether the path is a Parquet file, by its first bytes; False if there is no such file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == PARQUET


def records_of(
    path: Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, object) for each line of JSON, or row of CSV or Parquet. Bad ones go to `on_error`, or
    raise.

    Columns without a value are left out of a row, like keys that a line does not have. Cells of CSV are texts.

    Args:
        path: the file.
        on_error: called with the error about each bad line or row; by default the error is raised.
        on_bytes: called with the number of bytes read so far.
    """
    if is_csv(path):
        for number, row in iter_csv(path, on_error=on_error, on_bytes=on_bytes):
            filled = {name: cell for name, cell in row.items() if cell.strip()}
            yield number, RawLine(filled, row.raw, row.head) if isinstance(row, RawLine) else filled
    elif is_table(path):
        yield from _parquet_rows(path, on_error, on_bytes)
    else:
        yield from iter_json_lines(path, on_error=on_error, on_bytes=on_bytes)


def _parquet_rows(
    path: Path, on_error: OnError | None, on_bytes: OnBytes | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, record) for each row of a Parquet file.

    A file that unpacks to far more than its size is refused.
    """
    arrow, number, unpacked, size = require("pyarrow", "fit"), 0, 0, path.stat().st_size
    try:
        with require("pyarrow.parquet", "fit").ParquetFile(path) as parquet:
            try:
                check_values(parquet.metadata, size)
            except ValueError as error:
                raise ImportFileError(f"{path}: {error}") from error
            names = parquet.schema_arrow.names
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ImportFileError(f"{path} has the column {twice!r} twice; expected each name once: rename one")
            for batch in parquet.iter_batches(_ROWS_PER_BATCH, use_threads=False):
                unpacked += batch.nbytes  # a text that the file holds once may stand in every row
                try:
                    check_unpacked(unpacked, size)
                except ValueError as error:
                    raise ImportFileError(f"{path}: {error}") from error
                batch.validate(full=True)  # reading a damaged batch could crash the process
                for index in range(batch.num_rows):
                    number += 1
                    row: dict[str, Any] = {}
                    try:
                        single_row = batch.slice(index, 1)
                        if single_row.nbytes > MAX_LINE:
                            raise ImportFileError(
                                f"the row is larger than {MAX_LINE} bytes; expected one response a row"
                            )
                        [row] = single_row.to_pylist()
                        yield number, _record_of_row(row)
                    except ValueError as problem:
                        hand_over(at_line(path, number, problem, row), on_error, problem)
                if on_bytes is not None:
                    on_bytes(size * number // parquet.metadata.num_rows)
    except (arrow.ArrowException, OSError) as error:
        raise ImportFileError(
            f"{path} is damaged or no such table ({str(error).strip()[:200]}); expected Parquet: copy or make it again"
        ) from error


def _record_of_row(row: dict[str, Any]) -> dict[str, Any]:
    record = {key: value for key, value in row.items() if value is not None}
    for key in _COLUMNS_OF_JSON:
        if isinstance(cell := record.get(key), str):
            try:
                record[key] = json.loads(cell)
            except (ValueError, RecursionError) as error:
                raise ImportFileError(
                    f'the text under "{key}" is no JSON ({error}); expected JSON, or columns'
                ) from error
        elif isinstance(cell, dict):  # a struct has all its fields in every row
            record[key] = {name: value for name, value in cell.items() if value is not None}
    return record
