"""What a page is made of: sections of words, tables and figures. A table is its own CSV; a figure waits to be drawn."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.report.palette import CSS, DASHES
from metaprobe.eval.wording import bounds, number, percent, percent_bounds, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Value = str | float | None
Painter = Callable[["Axes"], None]
Marker = Literal["", "o", "s", "^", "*"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry of a table."""

    text: str
    value: Value = None
    """What sorts and is downloaded; None where there is nothing."""
    ends: tuple[float, float] | None = None
    """Of the interval, where the column has one."""
    note: str = ""
    """In small print below the text: the interval, or of how many."""
    mark: str = ""
    """A word that judges: `better`, `worse`, `unclear`, `passed`, `failed`."""
    strong: bool = False


NOTHING = Cell("–")


def words(text: str, *, mark: str = "") -> Cell:
    return Cell(text, text, mark=mark)


def count(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def number_of(value: float | None, digits: int = 2) -> Cell:
    """A number without an interval."""
    return NOTHING if value is None else Cell(number(value, digits), value)


def share(value: float | None, *, of: int | None = None) -> Cell:
    """A share in per cent, and of how many."""
    return NOTHING if value is None else Cell(percent(value), value, note="" if of is None else f"of {of:,}")


def estimate(interval: Interval | None, *, strong: bool = False) -> Cell:
    """An estimate with its interval."""
    if interval is None:
        return NOTHING
    ends = interval.low, interval.high
    return Cell(number(interval.estimate), interval.estimate, ends, bounds(interval), strong=strong)


def rate(interval: Interval | None) -> Cell:
    """The same in per cent."""
    if interval is None:
        return NOTHING
    ends = interval.low, interval.high
    return Cell(percent(interval.estimate), interval.estimate, ends, percent_bounds(interval))


def difference(interval: Interval | None, *, judged: bool = True) -> Cell:
    """A paired difference with its sign, and where `judged` whether that is better."""
    if interval is None:
        return NOTHING
    return Cell(
        number(interval.estimate, signed=True),
        interval.estimate,
        (interval.low, interval.high),
        bounds(interval, signed=True),
        verdict(interval) if judged else "",
    )


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    key: str
    """Its name in the CSV."""
    title: str
    kind: Literal["text", "prose", "number", "interval"] = "number"
    """Prose is whole sentences. An interval is three columns in the CSV: `key`, `key_low`, `key_high`."""
    better: Literal["", "higher", "lower"] = ""
    shown: bool = True
    """Whether the page may show it; the CSV always has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under named columns; the first column names the row."""

    ident: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    records: Sequence[Mapping[str, Value | int]] = ()
    """What the CSV holds, where a program wants another form than a reader."""

    @property
    def filename(self) -> str:
        return f"{self.ident}.csv"

    @property
    def heads(self) -> list[Column]:
        """The columns that the page has: not those in which no row says anything."""
        filled = [any(cell != NOTHING for cell in cells) for cells in zip(*self.rows, strict=True)]
        return [c for c, has in zip(self.columns, filled, strict=True) if c.shown and has] if self.rows else []

    @property
    def shown(self) -> list[list[tuple[Column, Cell]]]:
        """The rows as the page has them."""
        heads = self.heads
        return [[(c, cell) for c, cell in zip(self.columns, row, strict=True) if c in heads] for row in self.rows]

    @property
    def csv(self) -> str:
        """RFC 4180, numbers in full precision, and ' before a text that a spreadsheet would compute."""
        records = self.records or as_records(self.columns, self.rows)
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(records[0]) if records else [c.key for c in self.columns])
        writer.writeheader()
        writer.writerows({key: _not_computed(value) for key, value in record.items()} for record in records)
        return text.getvalue()


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheets compute a cell that begins so, whoever named the model or the method in it."""


def _not_computed(value: Value | int) -> Value | int:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def as_records(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> list[dict[str, Value]]:
    """The rows as a CSV has them: intervals in three columns."""
    records = []
    for row in rows:
        record: dict[str, Value] = {}
        for column, cell in zip(columns, row, strict=True):
            record[column.key] = "" if cell.value is None else cell.value
            if column.kind == "interval":
                low, high = cell.ends or ("", "")
                record |= {f"{column.key}_low": low, f"{column.key}_high": high}
        records.append(record)
    return records


@dataclass(frozen=True, slots=True)
class Legend:
    """One line of a figure's legend."""

    colour: str
    """One of the palette's."""
    text: str
    number: int = 0
    """Which of `DASHES` its line has."""
    marker: Marker = ""
    """What stands on the line; matplotlib's letter for it."""
    lined: bool = True
    """Whether there is a line, or the marker alone."""
    hollow: bool = False
    """Whether the marker is drawn by its edge only."""

    @property
    def dash(self) -> str:
        return DASHES[self.number % len(DASHES)]

    @property
    def css(self) -> str:
        """Its colour in the page."""
        return CSS[self.colour]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One drawing with the words that go with it. Names stay outside it, in caption and legend, where they can wrap."""

    ident: str
    """Its file name without the ending, and the beginning of its ids."""
    title: str
    label: str
    """Read out in place of the drawing."""
    paint: Painter
    note: str = ""
    legend: tuple[Legend, ...] = ()
    height: float = 1.0
    """Times the usual one."""
    table: str = ""
    """Ident of the table with the same numbers, where it is not the first below the section's figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Drawings side by side, as wide as both columns of a paper. The page has them one by one, so that they wrap."""

    ident: str
    """Its file name without the ending."""
    columns: tuple[tuple[Figure, ...], ...]
    """What stands in each column, from the top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One heading and what stands below it, in this order."""

    ident: str
    title: str
    intro: str = ""
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    folded: tuple[Figure, ...] = ()
    """More of the same, shown when asked for."""
    folded_title: str = ""
    data: tuple[Table, ...] = ()
    """More tables, shown when asked for."""
    data_title: str = "The numbers in the figures"
    remarks: tuple[str, ...] = ()
    spreads: tuple[Spread, ...] = ()
    """Files only."""

    @property
    def empty(self) -> bool:
        return not (self.intro or self.tables or self.figures or self.remarks)


def slug(at: int, name: str) -> str:
    """A part of a file name, for the name at this place: `03-mean-log-probability`."""
    return f"{at:02d}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')[:40]}".rstrip("-")
