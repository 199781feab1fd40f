"""What several drawings share: the style, the widths of a paper's columns, dashes, axes in per cent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from metaprobe.eval.report.palette import DASHES, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Dashes = Literal["solid"] | tuple[float, tuple[float, ...]]

COLUMN_IN, PAGE_IN = 3.3, 6.9
"""Width of a column of a paper with two of them, and of both. A phone shows the text of a column's width as well."""
HEIGHT_IN = 2.4
"""Of a drawing whose `height` is 1."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be selected, and is read in the page's own font
    "svg.hashsalt": "metaprobe",
    "pdf.fonttype": 42,  # text stays text here too; publishers refuse Type 3
    "text.parse_math": False,
    "font.size": 8,
    "legend.fontsize": 7.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.14,
    "grid.linewidth": 0.5,
    "figure.facecolor": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.4,
}


@contextmanager
def drawing_style() -> Iterator[None]:
    """Inside it matplotlib draws in the report's style, whatever the user's matplotlibrc says."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def dashes(number: int) -> Dashes:
    """Returns matplotlib's line style of the numbered dash, the same as its legend in the page."""
    dash = DASHES[number % len(DASHES)]
    return "solid" if dash == "none" else (0.0, tuple(float(length) / 1.6 for length in dash.split()))


def per_cent_axes(ax: Axes, x: str, y: str) -> None:
    """Names of two axes that run in per cent."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.xaxis.set_major_formatter("{x:g}%")
    ax.yaxis.set_major_formatter("{x:g}%")
