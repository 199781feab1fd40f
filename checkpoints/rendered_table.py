"""A table with four renderings: text for a terminal, HTML, Markdown and CSV; and functions that write its numbers.

It is in this room because every room that shows rows may import from here. It needs only the standard library. pandas
makes LaTeX from the same table, in `eval.report.write`.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from math import isnan
from typing import Any, Literal, Protocol, Self

from metaprobe.checkpoints.manifest import printable

TERMINAL_CHARS = 110
"""Characters of a line on a terminal."""
ROW_NAME_CHARS = 48
"""Characters of a row's name on a terminal: more than most models and controls have."""
MAX_DECIMALS = 5
"""Most decimals, used if fewer would hide on which side of 0 the end of an interval lies."""
NOTEBOOK_CELL_STYLE = (
    "padding:2px 10px 2px 0;text-align:left;vertical-align:top;border:0;background:transparent;color:inherit"
)
"""Style of a cell in a table without a style sheet. The colours are those of the notebook, dark or light."""

CellValue = str | float | None


class Estimated(Protocol):
    """An estimate with the ends of its interval, such as `Interval` and `Metric`."""

    @property
    def estimate(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def number(value: float, digits: int = 2, *, signed: bool = False) -> str:
    """Returns a number such as `0.71`; `n/a` for nan; never a minus before zeros only.

    Args:
        value: the number.
        digits: decimals.
        signed: whether a positive number gets a plus sign.
    """
    if isnan(value):
        return "n/a"
    value = round(value, digits) + 0.0  # -0.0 + 0.0 is 0.0
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def bounds(interval: Estimated, digits: int = 2, *, signed: bool = False) -> str:
    """Returns the ends of an interval such as `[0.68, 0.74]`.

    Args:
        interval: the interval.
        digits: decimals.
        signed: whether the interval is a difference: signs are shown, and an end that would be rounded to 0 gets more
            decimals.
    """

    def end(value: float) -> str:
        decimals_to_try = range(digits, MAX_DECIMALS + 1) if signed else ()
        return number(value, next((n for n in decimals_to_try if round(value, n)), digits), signed=signed)

    return f"[{end(interval.low)}, {end(interval.high)}]"


def format_interval(interval: Estimated, digits: int = 2, *, signed: bool = False) -> str:
    """Returns an estimate with its interval, such as `0.71 [0.68, 0.74]`.

    Args:
        interval: the interval.
        digits: decimals.
        signed: whether the interval is a difference.
    """
    return f"{number(interval.estimate, digits, signed=signed)} {bounds(interval, digits, signed=signed)}"


def percent(share: float, digits: int = 0) -> str:
    """Returns a share in per cent: `71 %` for 0.71."""
    return "n/a" if isnan(share) else f"{number(100 * share, digits)}\u00a0%"


def difference_word(difference: Estimated) -> str:
    """Returns the sign of a paired difference as a word; `unclear` if the interval holds 0."""
    if difference.low > 0:
        return "better"
    return "worse" if difference.high < 0 else "unclear"


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry of a table."""

    text: str
    value: CellValue = None
    """Value for sorting and for the CSV; None if there is none."""
    ends: tuple[float, float] | None = None
    """Ends of the interval, if the column has intervals."""
    note: str = ""
    """Small print after the text: the interval, or the total."""
    mark: str = ""
    """A word that judges: `better`, `worse`, `unclear`. It is also an HTML class."""
    strong: bool = False
    css: str = ""
    """Classes of the text in HTML."""

    @property
    def plain(self) -> str:
        """The whole cell in one line."""
        return " ".join(filter(None, (self.text, self.note, self.mark))).replace("\n", " ")


EMPTY_CELL = Cell("-")


def text_cell(text: str, *, css: str = "") -> Cell:
    """Returns a cell with a text. `css`: its HTML classes."""
    return Cell(text, text, css=css)


def count_cell(value: int) -> Cell:
    """Returns a cell with a whole number."""
    return Cell(f"{value:,}", value)


def number_cell(value: float | None, digits: int = 2) -> Cell:
    """Returns a cell with a number without an interval."""
    return EMPTY_CELL if value is None else Cell(number(value, digits), value)


def share_cell(value: float | None, *, of: int | None = None) -> Cell:
    """Returns a cell with a share in per cent, and the total."""
    return EMPTY_CELL if value is None else Cell(percent(value), value, note="" if of is None else f"of {of:,}")


def p_cell(p: float) -> Cell:
    """Returns a cell with a p value: `0.012`, `< 0.001`."""
    return Cell("< 0.001" if p < 0.001 else number(p, 3), p)


def estimate_cell(interval: Estimated | None, *, strong: bool = False) -> Cell:
    """Returns a cell with an estimate and its interval."""
    if interval is None:
        return EMPTY_CELL
    ends = interval.low, interval.high
    return Cell(number(interval.estimate), interval.estimate, ends, bounds(interval), strong=strong)


def rate_cell(interval: Estimated | None) -> Cell:
    """Returns a cell with an estimate and its interval, in per cent."""
    if interval is None:
        return EMPTY_CELL
    ends = interval.low, interval.high
    note = f"[{percent(interval.low)}, {percent(interval.high)}]"
    return Cell(percent(interval.estimate), interval.estimate, ends, note)


def difference_cell(interval: Estimated | None, *, judged: bool = True) -> Cell:
    """Returns a cell with a paired difference and its sign. With `judged` it also says if the difference is better."""
    if interval is None:
        return EMPTY_CELL
    return Cell(
        number(interval.estimate, signed=True),
        interval.estimate,
        (interval.low, interval.high),
        bounds(interval, signed=True),
        difference_word(interval) if judged else "",
    )


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    key: str
    """Name in the CSV."""
    title: str
    kind: Literal["text", "prose", "number", "interval"] = "number"
    """`prose` is whole sentences. An `interval` takes three columns in the CSV: `key`, `key_low`, `key_high`."""
    better: Literal["", "higher", "lower"] = ""
    shown: bool = True
    """Whether readers see the column; the CSV always has it."""
    cell: Callable[[Any], Cell] | None = None
    """Makes the cell from the object of a row; see `Table.made`."""

    @property
    def arrow(self) -> str:
        return {"higher": " ↑", "lower": " ↓", "": ""}[self.better]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under named columns; the first column names the row."""

    ident: str = ""
    """Name of its files, and of its ids in HTML."""
    caption: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    records: Sequence[Mapping[str, CellValue | int]] = ()
    """Rows of the CSV, if programs need another form than readers."""

    @classmethod
    def of(cls, head: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "") -> Self:
        """Returns a table of objects, each shown by `str`.

        Args:
            head: titles of the columns.
            rows: the objects of each row.
            caption: caption of the table.
        """
        columns = tuple(Column(title, title, "text") for title in head)
        return cls(
            caption=caption, columns=columns, rows=tuple(tuple(text_cell(str(entry)) for entry in row) for row in rows)
        )

    @classmethod
    def made(
        cls,
        ident: str,
        caption: str,
        objects: Iterable[Any],
        *columns: Column,
        records: Sequence[Mapping[str, CellValue | int]] = (),
    ) -> Self:
        """Returns a table with one row for each object. Each column's `cell` makes the cells, by default from an
        attribute.

        Args:
            ident: name of the table's files and HTML ids.
            caption: caption of the table.
            objects: the objects.
            columns: the columns.
            records: rows of the CSV, if they differ from the table's.
        """
        makers = [column.cell or partial(_from_attribute, column) for column in columns]
        rows = tuple(tuple(make(row_object) for make in makers) for row_object in objects)
        return cls(ident=ident, caption=caption, columns=columns, rows=rows, records=records)

    @property
    def visible_indices(self) -> list[int]:
        """Indices of the columns that readers see, without columns in which every cell is empty."""
        shown_indices = [index for index, column in enumerate(self.columns) if column.shown]
        if not self.rows:
            return shown_indices
        columns = list(zip(*self.rows, strict=True))
        if len(columns) != len(self.columns):
            raise ValueError(f"table {self.ident}: a row has {len(columns)} cells for {len(self.columns)} columns")
        return [index for index in shown_indices if any(cell != EMPTY_CELL for cell in columns[index])]

    @property
    def visible_columns(self) -> list[Column]:
        """Columns that readers see."""
        return [self.columns[index] for index in self.visible_indices]

    @property
    def visible_rows(self) -> list[list[Cell]]:
        """Rows that readers see, with one cell for each of `visible_columns`."""
        indices = self.visible_indices
        return [[row[index] for index in indices] for row in self.rows]

    def csv(self) -> str:
        """Returns the table as CSV (RFC 4180), with numbers in full precision. Intervals take three columns."""
        return csv_text(self.records or as_records(self.columns, self.rows), [column.key for column in self.columns])

    def text(self, *, width: int | None = TERMINAL_CHARS, name_chars: int = ROW_NAME_CHARS) -> list[str]:
        """Returns lines of fixed-width columns; a row's name is cut to `name_chars` characters.

        Columns beyond `width` follow in further blocks, each with the rows' names again. `*` marks strong cells.
        Control characters are escaped, so that names from elsewhere cannot control a terminal.
        """
        entries = [
            [f"{column.title}{column.arrow}" for column in self.visible_columns],
            *([cell.plain + "*" * cell.strong for cell in row] for row in self.visible_rows),
        ]
        row_texts = [[printable(entry.replace("\u00a0", " ")) for entry in row] for row in entries]
        row_texts = [
            [name if len(name) <= name_chars else f"{name[: name_chars - 1]}…", *rest] for name, *rest in row_texts
        ]
        widths = [max(map(len, column)) for column in zip(*row_texts, strict=True)]
        blocks: list[list[int]] = [[0]]  # column indices of each block
        for column_index in range(1, len(widths)):
            used_width = sum(widths[index] + 2 for index in blocks[-1])
            if width is not None and used_width + widths[column_index] > width and len(blocks[-1]) > 1:
                blocks.append([0])
            blocks[-1].append(column_index)
        output_lines: list[str] = []
        for block in blocks:
            body = ["  ".join(texts[index].ljust(widths[index]) for index in block).rstrip() for texts in row_texts]
            output_lines += ["", body[0], "-" * max(map(len, body)), *body[1:]]
        return output_lines[1:]

    def markdown(self) -> list[str]:
        """Returns the lines of a Markdown table."""
        rows = [
            [f"{column.title}{column.arrow}" for column in self.visible_columns],
            ["---"] * len(self.visible_columns),
        ]
        rows += [[f"**{cell.plain}**" if cell.strong else cell.plain for cell in row] for row in self.visible_rows]
        return ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]

    def html(self, *, style: str = "") -> str:
        """Returns a `<table>`.

        `style` is the style of every cell in a table without a style sheet, such as `NOTEBOOK_CELL_STYLE`.
        """
        style_attribute = f' style="{style}"' if style else ""
        ident = f' id="table-{escape(self.ident)}" class="sortable"' if self.ident else ""
        name = f' id="{escape(self.ident)}-caption"' if self.ident else ""
        columns = self.visible_columns
        lines = [
            f"<table{ident}>",
            f"<caption{name}><span>{escape(self.caption)}</span></caption>" if self.caption else "",
            "<thead><tr>" + "".join(_header_html(column, style_attribute) for column in columns) + "</tr></thead>"
            if any(column.title for column in columns)
            else "",
            "<tbody>",
        ]
        for row in self.visible_rows:
            cells = (
                _cell_html(column, cell, style_attribute, index == 0)
                for index, (column, cell) in enumerate(zip(columns, row, strict=True))
            )
            lines.append("<tr>" + "".join(cells) + "</tr>")
        return "\n".join([*filter(None, lines), "</tbody>", "</table>"])


def _from_attribute(column: Column, row_object: object) -> Cell:
    """Makes a cell from the attribute named by the column's key: a text, an interval, a count or a number."""
    value = getattr(row_object, column.key)
    if isinstance(value, str):
        return text_cell(value)
    if column.kind == "interval":
        return estimate_cell(value)
    return count_cell(value) if isinstance(value, int) else number_cell(value)


def _header_html(column: Column, style_attribute: str) -> str:
    class_attribute = ' class="n"' if column.kind in ("number", "interval") else ""
    better = f'<span class="unseen"> ({column.better} is better)</span>' if column.better else ""
    arrow = f'<span aria-hidden="true">{column.arrow}</span>' if column.better else ""
    return f'<th scope="col"{class_attribute}{style_attribute}>{escape(column.title)}{arrow}{better}</th>'


def _cell_html(column: Column, cell: Cell, style_attribute: str, is_row_header: bool) -> str:
    tag = 'th scope="row"' if is_row_header else "td"
    class_attribute = {"text": "", "prose": ' class="prose"'}.get(column.kind, ' class="n"')
    # Rows are sorted by this value: the text may be rounded or have a unit.
    sort_value = "" if cell.value == cell.text else f' data-value="{"" if cell.value is None else float(cell.value)}"'
    text = escape(cell.text)
    text = f'<span class="{escape(cell.css)}">{text}</span>' if cell.css else text
    mark = f' <span class="mark m-{escape(cell.mark)}">{escape(cell.mark)}</span>' if cell.mark else ""
    note = f' <span class="note">{escape(cell.note)}</span>' if cell.note else ""
    inner = f"<strong>{text}</strong>" if cell.strong else text
    return f"<{tag}{class_attribute}{sort_value}{style_attribute}>{inner}{mark}{note}</{tag[:2]}>"


def html_table(title: str, rows: Iterable[Sequence[object]], *, head: Sequence[str] = ()) -> str:
    """Returns a table for a notebook's `_repr_html_`; title and cells are escaped.

    Args:
        title: title above the table.
        rows: cells of each row.
        head: titles of the columns.
    """
    row_lists = [list(row) for row in rows]
    table = Table.of(head or [""] * max(map(len, row_lists), default=0), row_lists)
    return f"<div><b>{escape(title)}</b>{table.html(style=NOTEBOOK_CELL_STYLE)}</div>"


def as_records(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> list[dict[str, CellValue]]:
    """Returns the rows as a CSV has them, with intervals in three columns."""
    records = []
    for row in rows:
        record: dict[str, CellValue] = {}
        for column, cell in zip(columns, row, strict=True):
            record[column.key] = "" if cell.value is None else cell.value
            if column.kind == "interval":
                low, high = cell.ends or ("", "")
                record |= {f"{column.key}_low": low, f"{column.key}_high": high}
        records.append(record)
    return records


def csv_text(records: Sequence[Mapping[str, CellValue | int]], fields: Sequence[str] = ()) -> str:
    """Returns records as CSV (RFC 4180), with ' before a text that a spreadsheet would compute.

    `fields` is the head line, used if there are no records.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(records[0]) if records else list(fields))
    writer.writeheader()
    for record in records:
        formula_keys = [
            key for key, value in record.items() if isinstance(value, str) and value.startswith(_FORMULA_STARTS)
        ]
        writer.writerow({**record, **{key: f"'{record[key]}" for key in formula_keys}})
    return buffer.getvalue()


_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Characters at the beginning of a cell that spreadsheets would compute, also in the name of a model or a method."""
