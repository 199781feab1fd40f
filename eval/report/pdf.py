"""Drawings as PDF for a paper: as wide as one column or as two, the legend below, the title left to the caption."""

import io
from collections.abc import Sequence
from string import ascii_lowercase

from matplotlib import figure as mpl_figure
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D

from metaprobe.eval.report.drawing import COLUMN_IN, HEIGHT_IN, PAGE_IN, dashes, drawing_style
from metaprobe.eval.report.layout import Figure, Legend, Spread
from metaprobe.eval.report.palette import PAPER

LEGEND_LINE_IN = 0.16
LETTER_IN = 0.055
"""Width of a letter of a legend, rather too much than too little."""
STACKED = 0.8
"""Times its usual height that a drawing has where several stand above each other."""
KEY_IN = 0.55
"""Width of the line before an entry and of the space after it."""


def column_pdf(figure: Figure) -> bytes:
    """Returns the PDF of a figure, 3.3 inches wide, without a date: the same figure gives the same bytes."""
    return _pdf([[figure]], COLUMN_IN)


def page_pdf(spread: Spread) -> bytes:
    """Returns the PDF of drawings side by side, 6.9 inches wide, with a letter above each."""
    return _pdf(spread.columns, PAGE_IN)


def _pdf(columns: Sequence[Sequence[Figure]], width: float) -> bytes:
    own_width = width / len(columns)
    tallest = max(_height(figure, own_width) for column in columns for figure in column)
    stacked = max(sum(_height(figure, own_width) for figure in column) for column in columns)
    letters = iter(ascii_lowercase if sum(map(len, columns)) > 1 else "")
    with drawing_style():
        canvas = mpl_figure.Figure(figsize=(width, max(tallest, STACKED * stacked)), layout="constrained")
        FigureCanvasPdf(canvas)
        sides = canvas.subfigures(1, len(columns), squeeze=False)[0]
        for side, column in zip(sides, columns, strict=True):
            parts = side.subfigures(len(column), 1, squeeze=False)[:, 0]
            for part, figure in zip(parts, column, strict=True):
                figure.paint(part.subplots())
                if letter := next(letters, ""):
                    part.suptitle(f"({letter})", x=0.02, ha="left", fontsize=8, fontweight="bold")
                _legend(figure.legend, own_width, part)
        file = io.BytesIO()
        canvas.savefig(file, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return file.getvalue()


def _height(figure: Figure, width: float) -> float:
    lines = -(-len(figure.legend) // _entries(figure.legend, width))
    return HEIGHT_IN * figure.height + LEGEND_LINE_IN * lines


def _entries(legend: Sequence[Legend], width: float) -> int:
    """How many entries fit beside each other; at least one."""
    if not legend:
        return 1
    longest = max(len(entry.text) for entry in legend)
    return max(1, min(len(legend), int(width / (KEY_IN + LETTER_IN * longest))))


def _legend(legend: Sequence[Legend], width: float, part: FigureBase) -> None:
    if not legend:
        return
    keys = [
        Line2D(
            [],
            [],
            color=entry.colour,
            linestyle=dashes(entry.number) if entry.lined else "none",
            marker=entry.marker or "none",
            markersize=4,
            markerfacecolor=PAPER if entry.hollow else entry.colour,
            label=entry.text,
        )
        for entry in legend
    ]
    part.legend(
        handles=keys,
        ncols=_entries(legend, width),
        loc="outside lower center",
        frameon=False,
        handlelength=2.4,
    )
