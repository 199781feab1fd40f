"""Tables as LaTeX, with the rules of booktabs: what the page shows, an interval in the line below its estimate."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from metaprobe.eval.report.layout import Cell, Column, Table

MOST_ROWS = 40
"""Longer tables do not fit a page, and no paper prints them: they are CSV only."""
HEAD_WIDTH = 10
"""Letters of a column's title in a line; a longer title has several lines."""
NAME_WIDTH = 22
"""Letters of a line of a row's name; a longer name has several lines."""
PROSE_WIDTH = 40
"""Letters of a line of whole sentences."""
COLUMN_PT, PAGE_PT = 238.0, 497.0
"""Width of a column of a paper with two of them, and of both."""
SIZES = (
    (r"\small", 4.6, 6.0, r"\scriptsize", 3.6),
    (r"\footnotesize", 4.1, 4.0, r"\tiny", 2.9),
    (r"\scriptsize", 3.5, 2.0, r"\tiny", 2.9),
)
"""Type, width of a letter in it, space beside a column; type of intervals, width of a letter in it. In points."""
Size = tuple[str, float, float, str, float]

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "–": "--", "—": "---", "“": "``", "”": "''", "’": "'",
    "…": r"\ldots{}", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$", "\u00a0": "~", "\n": " ",
}  # fmt: skip
_CHARACTER = re.compile("|".join(map(re.escape, _SPECIAL)))
_MINUS = re.compile(r"(?<![\w.)-])-(?=\d)")


def escaped(text: str) -> str:
    """Returns text that LaTeX prints as it is; a minus before a digit becomes one."""
    return _MINUS.sub("$-$", _CHARACTER.sub(lambda found: _SPECIAL[found[0]], text))


def latex(table: Table) -> str:
    """Returns a floating table with caption and label. It needs `\\usepackage{booktabs}` and nothing else.

    Raises ValueError where no type is small enough; `printable` says so beforehand.
    """
    found = _fitting(table)
    if found is None:
        raise ValueError(f"table {table.ident} is too wide or too long for a page of a paper; use its CSV")
    float_name, (size, _, space, small, _) = found
    rows = [_print(row) for row in table.shown]
    heads = [column for column, _ in rows[0]]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            rf"\begin{{{float_name}}}",
            r"\centering",
            rf"\caption{{{escaped(table.caption)}}}",
            rf"\label{{tab:{table.ident}}}",
            r"\smallskip",
            rf"{size}\setlength{{\tabcolsep}}{{{space:g}pt}}",
            rf"\begin{{tabular}}{{@{{}}{''.join(map(_alignment, heads))}@{{}}}}",
            r"\toprule",
            *_head(heads),
            r"\midrule",
            *(line for row in rows for line in _lines(row, small)),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\end{{{float_name}}}",
            "",
        ]
    )


def printable(table: Table) -> bool:
    """Whether it has rows, no more than a page holds, fits the width of a page, and its sentences can be broken."""
    return _fitting(table) is not None


def _fitting(table: Table) -> tuple[str, Size] | None:
    """Returns the environment and the largest type in which it fits, one column before two; None where none does."""
    sentences = [cell.text for row in table.shown for column, cell in row if column.kind == "prose"]
    unbroken = any(len(word) > PROSE_WIDTH for text in sentences for word in text.split())
    if unbroken or not 0 < len(table.rows) <= MOST_ROWS:
        return None
    for float_name, room in (("table", COLUMN_PT), ("table*", PAGE_PT)):
        for size in SIZES:
            if _width(table, size) <= room:
                return float_name, size
    return None


def _print(row: list[tuple[Column, Cell]]) -> list[tuple[Column, Cell]]:
    """Without the family, which the page shows as a colour and a paper's reader knows by the name."""
    return [(column, cell) for column, cell in row if column.key != "family"]


def _width(table: Table, size: Size) -> float:
    _, letter, space, _, small = size
    columns = list(zip(*map(_print, table.shown), strict=True))
    return sum(_column_width(cells, letter, small) + 2 * space for cells in columns) - 2 * space


def _column_width(cells: Iterable[tuple[Column, Cell]], letter: float, small: float) -> float:
    found = list(cells)
    column = found[0][0]
    if column.kind == "prose":
        return PROSE_WIDTH * letter
    head = max(map(len, _head_lines(column))) + (2 if column.better else 0)
    longest = max(head, *(len(_plain(cell)) for _, cell in found))
    if column.kind == "text":
        longest = min(longest, NAME_WIDTH)
    return max(letter * longest, small * max(len(cell.note) for _, cell in found))


def _alignment(column: Column) -> str:
    return {"text": "l", "prose": rf"p{{{PROSE_WIDTH / 2:g}em}}"}.get(column.kind, "r")


def _head_lines(column: Column) -> list[str]:
    return textwrap.wrap(column.title, HEAD_WIDTH, break_long_words=False) or [""]


def _head(heads: Sequence[Column]) -> list[str]:
    """The titles in as many lines as the longest needs; below them those that say which way is better."""
    arrows = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "": ""}
    titles = [[escaped(line) for line in _head_lines(column)] for column in heads]
    for column, title in zip(heads, titles, strict=True):
        title[-1] += arrows[column.better]
    lines = max(map(len, titles))
    padded = [[""] * (lines - len(title)) + title for title in titles]
    return [_row(line) for line in zip(*padded, strict=True)]


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _lines(row: list[tuple[Column, Cell]], size: str) -> list[str]:
    """The estimates, below them the intervals where any cell has one, and what is left of a long name."""
    cells = [_cell_lines(column, cell, size) for column, cell in row]
    lines = [_row(line) for line in zip_longest(*cells, fillvalue="")]
    return [*lines, r"\addlinespace[2pt]"] if len(lines) > 1 else lines


def _cell_lines(column: Column, cell: Cell, size: str) -> list[str]:
    text = _plain(cell)
    lines = textwrap.wrap(text, NAME_WIDTH) if column.kind == "text" else [text]
    shown = [rf"\textbf{{{escaped(line)}}}" if cell.strong else escaped(line) for line in lines]
    return [*shown, rf"{{{size} {escaped(cell.note)}}}"] if cell.note else shown


def _plain(cell: Cell) -> str:
    if cell.mark in ("passed", "failed"):
        return f"{cell.mark}: {cell.text}" if cell.text else cell.mark
    return cell.text
