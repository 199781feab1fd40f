"""Records from JSON lines, or from the rows of a Parquet or Arrow file, a batch of rows in memory at a time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metaprobe.records.compressed import check_values
from metaprobe.records.errors import ImportFileError
from metaprobe.records.extras import require
from metaprobe.records.json_lines import MAX_LINE, at_line, iter_json_lines
from metaprobe.records.logs.sample import LogOptions

PARQUET, ARROW = b"PAR1", b"ARROW1"
"""What such files begin with; an Arrow stream begins with four bytes of 255."""
STREAM = b"\xff\xff\xff\xff"
_ROWS = 64
_NESTED = ("labels", "messages", "sampling")
"""Columns that may hold JSON as text; so may `response`, which is read as such anyway."""


def is_table(path: Path) -> bool:
    """Returns whether the file is Parquet or Arrow, by its first bytes."""
    with path.open("rb") as file:
        return file.read(6).startswith((PARQUET, ARROW, STREAM))


def records_of(path: Path, options: LogOptions) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, object) for each line or row; bad lines go to `options.on_error`, or raise.

    Of a row, columns without a value are left out, as keys are that a line does not have.
    """
    if path.is_file() and is_table(path):
        yield from _rows(path, options)
    else:
        yield from iter_json_lines(path, on_error=options.on_error, on_bytes=options.on_bytes)


def _rows(path: Path, options: LogOptions) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    size = path.stat().st_size
    with _batches(path) as (batches, total):
        for batch in batches:
            for index in range(batch.num_rows):
                number += 1
                row: dict[str, Any] = {}
                try:
                    row = _row(batch.slice(index, 1))
                    yield number, _record(row)
                except ValueError as problem:
                    error = at_line(path, number, str(problem), row)
                    if options.on_error is None:
                        raise error from problem
                    options.on_error(error)
            if options.on_bytes is not None and total:
                options.on_bytes(size * number // total)


def _row(one: Any) -> dict[str, Any]:
    """The one row of a batch. Raises `ValueError` where it is larger than a line may be."""
    if one.nbytes > MAX_LINE:
        raise ImportFileError(f"the row is larger than {MAX_LINE} bytes; expected one response a row")
    found: dict[str, Any] = one.to_pylist()[0]
    return found


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


@contextmanager
def _batches(path: Path) -> Iterator[tuple[Iterator[Any], int]]:
    """Yields (batches of rows, how many rows there are, or 0 where that is not known)."""
    arrow = require("pyarrow", "fit")
    try:
        with path.open("rb") as file:
            start = file.read(6)
        if start.startswith(PARQUET):
            with require("pyarrow.parquet", "fit").ParquetFile(path) as parquet:
                _check(parquet.metadata, path)
                yield _small(parquet.iter_batches(_ROWS, use_threads=False)), parquet.metadata.num_rows
            return
        with arrow.memory_map(str(path)) as source:
            if start.startswith(ARROW):
                reader = arrow.ipc.open_file(source)
                batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
                yield _small(batches), 0
            else:
                yield _small(arrow.ipc.open_stream(source)), 0
    except (arrow.ArrowException, OSError) as error:
        raise ImportFileError(
            f"{path} is damaged or no such table ({str(error).strip()[:200]}); expected Parquet or Arrow: copy or make"
            " it again"
        ) from error


def _check(metadata: Any, path: Path) -> None:
    try:
        check_values(metadata, path.stat().st_size)
    except ValueError as error:
        raise ImportFileError(f"{path}: {error}") from error


def _small(batches: Any) -> Iterator[Any]:
    """The same in batches of few rows, which hold what Arrow says of them: others could end the process."""
    for batch in batches:
        batch.validate(full=True)
        for start in range(0, batch.num_rows, _ROWS):
            yield batch.slice(start, _ROWS)
