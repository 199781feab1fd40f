"""Rows of a CSV file with a head, plain or compressed, a row in memory at a time."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from metaprobe.records.compressed import OnBytes, is_damage, opened
from metaprobe.records.errors import ImportFileError
from metaprobe.records.json_lines import MAX_LINE, OnError, at_line

ENDS = tuple(f".{kind}{packed}" for kind in ("csv", "tsv") for packed in ("", ".gz", ".zst"))
"""How the names of CSV files end."""
_DELIMITERS = ",;\t"
"""Which of them parts the cells is told by the head: the one that gives the most."""


def is_csv(path: Path) -> bool:
    """Returns whether the file's name ends as that of a CSV file."""
    return path.name.lower().endswith(ENDS)


def iter_csv(
    path: Path, *, on_error: OnError | None = None, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number from 1 on which the row begins, cells by column) for each row.

    Cells are parted by commas, semicolons or tabs, and rows without any text are passed over. A row with more or fewer
    cells than the head raises `ImportFileError`, or is handed to `on_error` and passed over. A file that cannot be read
    as CSV, or whose head names a column twice or not at all, always raises.
    """
    if csv.field_size_limit() < MAX_LINE:
        csv.field_size_limit(MAX_LINE)  # by default 128 kB, less than the log-probabilities of a long answer
    begun = 1
    try:
        with opened(path, on_bytes) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            first = text.readline()
            delimiter = max(_DELIMITERS, key=lambda sign: len(next(csv.reader([first], delimiter=sign), [])))
            head = _head(path, next(csv.reader([first], delimiter=delimiter, strict=True), []))
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            begun = 2
            for cells in reader:
                number, begun = begun, reader.line_num + 2
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) == len(head):
                    yield number, dict(zip(head, cells, strict=True))
                    continue
                what = (
                    f"the row has {len(cells)} cells, and the head has {len(head)}; expected as many: was it cut off?"
                )
                error = at_line(path, number, what, dict(zip(head, cells, strict=False)))
                if on_error is None:
                    raise error
                on_error(error)
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


def _head(path: Path, cells: list[str]) -> list[str]:
    """The names of the columns."""
    names = [cell.strip() for cell in cells]
    twice = next((name for name in names if names.count(name) > 1), None)
    if len(names) < 2 or "" in names or twice is not None:
        came = f"the column {twice!r} twice" if twice else f"the head {', '.join(names)[:80]!r}"
        raise ImportFileError(f"{path} has {came}; expected a first row that names each column once, as CSV has it")
    return names
