"""The method table for a terminal."""

import textwrap

from metaprobe.eval.method_results import MethodResult
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.report.methods import (
    AS_STATED,
    METRICS,
    WITHIN_RUNS,
    MetricColumn,
    clear_winner,
    control_words,
)
from metaprobe.eval.results import Comparison
from metaprobe.eval.wording import bounds, number, verdict

WIDTH = 110
NAME_WIDTH = 24  # where the other columns leave it
ECE = next(column for column in METRICS if column.field == "ece")


def comparison_table(comparison: Comparison) -> str:
    """Blocks of fixed-width lines, at most 110 columns: AUROC with its paired differences, AUROC within runs and the
    other rank metrics, calibration.

    `*` marks a method whose interval lies wholly on the better side of every other's.
    """
    winners = {column.field: clear_winner(comparison.methods, column) for column in METRICS}
    rank = [column for column in METRICS[1:] if column.field != "ece"]
    within = any(method.within_runs for method in comparison.methods)
    stated = any(method.stated for method in comparison.methods)
    first = [["method", "said", "AUROC", "vs stated", "vs strongest control"]]
    second = [["method", *([f"{WITHIN_RUNS.lower()} ^"] if within else []), *map(_title, rank)]]
    third = [["method", *([f"{AS_STATED} v"] if stated else []), _title(ECE)]]
    for method in comparison.methods:
        name = method.name
        differences = [_difference(method.diff_stated), _difference(method.diff_control)]
        first.append([name, f"{100 * method.coverage:.0f}%", _cell(method, "auroc", winners), *differences])
        inside = [_estimate(method.within_runs)] if within else []
        second.append([name, *inside, *(_cell(method, column.field, winners) for column in rank)])
        said = [_estimate(method.stated.ece if method.stated else None)] if stated else []
        third.append([name, *said, _cell(method, "ece", winners)])
    about = (
        f"{len(comparison.y)} answers, {100 * comparison.base_rate:.1f}% right. Intervals: 95 %, resampled by group. "
        f"{control_words(comparison)}"
    )
    lines = [
        *textwrap.wrap(about.strip(), WIDTH),
        *(line for block in (first, second, third) for line in ("", *align(block))),
        "",
        "^ higher is better, v lower. * interval overlaps no other. Unclear: the interval of the difference holds 0.",
    ]
    return "\n".join(lines) + "\n"


def _title(column: MetricColumn) -> str:
    return column.title + (" ^" if column.higher_is_better else " v")


def shorten(name: str, width: int = NAME_WIDTH) -> str:
    """One line of at most `width` characters."""
    name = " ".join(name.split())
    return name if len(name) <= width else name[: width - 1] + "…"


def _cell(method: MethodResult, field: str, winners: dict[str, str | None]) -> str:
    return _estimate(getattr(method, field)) + ("*" if winners[field] == method.name else "")


def _estimate(value: Interval | None) -> str:
    return "-" if value is None else f"{number(value.estimate)} {bounds(value)}"


def _difference(value: Interval | None) -> str:
    if value is None:
        return "-"
    return f"{number(value.estimate, signed=True)} {bounds(value, signed=True)} {verdict(value)}"


def align(rows: list[list[str]], name_width: int | None = None) -> list[str]:
    """Lines of a table of fixed-width columns, whose first row is the head.

    The first column is shortened to `name_width` characters, by default to what the width of the table leaves for it.
    """
    rest = sum(2 + max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])
    most = min(NAME_WIDTH, WIDTH - rest) if name_width is None else name_width
    rows = [[shorten(row[0], most), *row[1:]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
