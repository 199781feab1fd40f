"""The method table for a terminal."""

import textwrap

from metaprobe.eval.metrics import Interval
from metaprobe.eval.report.methods import METRICS, baseline_words, clear_winner
from metaprobe.eval.report.model import Comparison, MethodResult
from metaprobe.eval.report.numbers import bounds, number, verdict

WIDTH = 110
NAME_WIDTH = 24  # where the other columns leave it


def comparison_table(comparison: Comparison) -> str:
    """Two blocks of fixed-width lines, at most 110 columns: AUROC with its paired differences, then the other metrics.

    `*` marks a method whose interval lies wholly on the better side of every other's.
    """
    first = [["method", "said", "AUROC", "vs stated", "vs baseline"]]
    second = [["method", *(column.title + (" ^" if column.higher_is_better else " v") for column in METRICS[1:])]]
    winners = {column.field: clear_winner(comparison.methods, column) for column in METRICS}
    for method in comparison.methods:
        name = method.name
        differences = [_difference(method.diff_stated), _difference(method.diff_baseline)]
        first.append([name, f"{100 * method.coverage:.0f}%", _cell(method, "auroc", winners), *differences])
        second.append([name, *(_cell(method, column.field, winners) for column in METRICS[1:])])
    about = (
        f"{len(comparison.y)} answers, {100 * comparison.base_rate:.1f}% right. Intervals: 95 %, resampled by group. "
        f"Baseline: {baseline_words(comparison)}."
    )
    lines = [
        *textwrap.wrap(about, WIDTH),
        "",
        *_aligned(first),
        "",
        *_aligned(second),
        "",
        "^ higher is better, v lower. * interval overlaps no other. Unclear: the interval of the difference holds 0.",
    ]
    return "\n".join(lines) + "\n"


def shorten(name: str, width: int = NAME_WIDTH) -> str:
    """One line of at most `width` characters."""
    name = " ".join(name.split())
    return name if len(name) <= width else name[: width - 1] + "…"


def _cell(method: MethodResult, field: str, winners: dict[str, str | None]) -> str:
    value: Interval = getattr(method, field)
    return f"{number(value.estimate)} {bounds(value)}" + ("*" if winners[field] == method.name else "")


def _difference(value: Interval | None) -> str:
    if value is None:
        return "-"
    return f"{number(value.estimate, signed=True)} {bounds(value, signed=True)} {verdict(value)}"


def _aligned(rows: list[list[str]]) -> list[str]:
    rest = sum(2 + max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])
    rows = [[shorten(row[0], min(NAME_WIDTH, WIDTH - rest)), *row[1:]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
