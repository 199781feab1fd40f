"""How the pages of the docs are written: a block between two markers, a Markdown table, a number with its interval."""

import re
from pathlib import Path

import click

from metaprobe.checkpoints.table import Table

Row = dict[str, str]


def write(path: Path, name: str, lines: list[str]) -> None:
    """Replace what stands between the markers of that name."""
    mark = re.compile(rf"(<!-- {name}:.*? -->\n).*?(<!-- /{name} -->)", re.S)
    text, count = mark.subn(lambda m: m[1] + "\n" + "\n".join(lines) + m[2], path.read_text(encoding="utf-8"))
    if count != 1:
        raise click.ClickException(f"{path.name} has lost its {name} markers")
    path.write_text(text, encoding="utf-8")


def spread(row: Row, name: str, *, signed: bool = False) -> str:
    """An estimate with its interval."""
    if not row[name]:
        return "-"
    style = "+.3f" if signed else ".3f"
    estimate, low, high = (float(row[key]) for key in (name, f"{name}_low", f"{name}_high"))
    return f"{estimate:{style}} [{low:{style}}, {high:{style}}]"


def markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return Table.of(head, rows).markdown()
