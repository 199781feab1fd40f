"""The tables of facts in `tables/`, read once each."""

import csv
from functools import cache
from pathlib import Path

Row = dict[str, str]


@cache
def table(name: str) -> tuple[Row, ...]:
    """The rows of `tables/<name>.csv` in file order. They are shared: do not change them."""
    text = (Path(__file__).parent / "tables" / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def where(name: str, **equals: str) -> tuple[Row, ...]:
    """The rows whose columns hold those values."""
    return tuple(row for row in table(name) if all(row[column] == value for column, value in equals.items()))


def own(name: str) -> tuple[Row, ...]:
    """The rows that knowledge retrieval may ask about: three of four. The others are `cross`, so no fact is in both."""
    return tuple(row for i, row in enumerate(table(name)) if i % 4 != 3)


def cross(name: str) -> tuple[Row, ...]:
    """The rows kept for cross-domain questions."""
    return table(name)[3::4]


def accepted(cell: str) -> tuple[str, ...]:
    """The accepted answers of a cell (`|` between them), the canonical one first."""
    return tuple(cell.split("|"))
