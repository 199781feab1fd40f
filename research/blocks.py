"""How the pages of the docs are written: a block between two markers, a Markdown table, a number with its interval.

A measured page has a picture and short blocks. Long tables are blocks of the page of the same name in the folder
tables/ beside it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from metaprobe.checkpoints.rendered_table import Table
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.training.ladder import SURE

Row = dict[str, str]
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MEASURED = DOCS / "measured"
"""The kept figures."""


def read_figures(path: Path) -> Any:
    """Returns the figures that are kept in a file of docs/measured; none where it is not there yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_figures(path: Path, figures: Any, *, sort: bool = False) -> None:
    """Keeps figures in a file of docs/measured."""
    path.write_text(json.dumps(figures, indent=1, sort_keys=sort) + "\n", encoding="utf-8")


def keep_figures(path: Path, figures: Any, *place: str, sort: bool = True) -> None:
    """Keeps figures at a place in what the file holds, beside the others, by name."""
    whole = inside = read_figures(path)
    for name in place[:-1]:
        inside = inside.setdefault(name, {})
    inside[place[-1]] = figures
    write_figures(path, whole, sort=sort)


def add_figures(path: Path, figures: Mapping[str, Any], name: str) -> None:
    """Adds figures to those that are kept under a name."""
    keep_figures(path, read_figures(path).get(name, {}) | figures, name)


def packed(value: Interval | None, digits: int = 4) -> Any:
    """Returns an interval as it is kept: estimate, low and high; None where there is none."""
    return None if value is None else [round(float(v), digits) for v in (value.estimate, value.low, value.high)]


def shown(ends: Sequence[float] | None, style: str = ".3f", scale: float = 1) -> str:
    """An estimate with its interval; a dash where there is none."""
    if ends is None:
        return "-"
    estimate, low, high = (f"{scale * value:{style}}" for value in ends[:3])
    return f"{estimate} [{low}, {high}]"


def signed(ends: Sequence[float] | None) -> str:
    """A difference with its interval."""
    return shown(ends, "+.3f")


def points(ends: Sequence[float]) -> str:
    """A difference of shares with its interval, in points."""
    return shown(ends, "+.1f", 100)


def write(path: Path, name: str, lines: list[str]) -> None:
    """Replaces the lines between the markers of that name, on the page or on its page of further tables."""
    mark = re.compile(rf"(<!-- {name}:.*? -->\n).*?(<!-- /{name} -->)", re.S)
    for page in (path, path.parent / "tables" / path.name):
        if page.exists() and len(mark.findall(page.read_text(encoding="utf-8"))) == 1:
            break
    else:
        raise click.ClickException(f"{path.name} has lost its {name} markers")
    text = page.read_text(encoding="utf-8")
    page.write_text(mark.sub(lambda m: m[1] + "\n" + "\n".join(lines) + m[2], text), encoding="utf-8")


def spread(row: Row, name: str, *, signed: bool = False) -> str:
    """An estimate with its interval, from the row of a table in CSV."""
    ends = [float(row[key]) for key in (name, f"{name}_low", f"{name}_high")] if row[name] else None
    return shown(ends, "+.3f" if signed else ".3f")


BAR_BEFORE = 0.99
"""Confidence at which the predictor's ladder left a rung before another was measured to be better
(docs/research/ladder.md)."""


def older_ladder(kept: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a sentence on the figures of a ladder with another bar than today's; none where all are today's.

    `kept`: name -> its figures. Their key `sure` is the confidence at which the ladder left a rung; without it that was
    `BAR_BEFORE`.
    """
    old = [name for name, figures in kept.items() if figures.get("sure", BAR_BEFORE) != SURE]
    new = [name for name in kept if name not in old]
    if not old:
        return []
    but = f" but {', '.join(new)}" if new else ""
    named = ", ".join(old) if len(old) <= len(new) else f"all{but}"
    return [
        f"Not measured again since the ladder of the log-probabilities leaves a rung when {SURE:.0%} sure, where it "
        f"was {BAR_BEFORE:.0%}: {named}.",
        "",
    ]


def ahead(gains: Iterable[Sequence[float]]) -> int:
    """Returns how many differences are above 0 by their whole interval."""
    return sum(gain[1] > 0 for gain in gains)


def behind(gains: Iterable[Sequence[float]]) -> int:
    """Returns how many differences are below 0 by their whole interval."""
    return sum(gain[2] < 0 for gain in gains)


def markdown(head: Iterable[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return Table.of([*head], rows).markdown()


def columns(rows: Iterable[tuple[Any, ...]], of: Mapping[str, Callable[..., object]]) -> list[str]:
    """A Markdown table from title -> the cell that a column makes of the parts of each row."""
    return markdown(of, [[str(cell(*row)) for cell in of.values()] for row in rows])
