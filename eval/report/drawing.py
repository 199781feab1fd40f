"""What several drawings share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaprobe.eval.report.layout import DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Dashes = str | tuple[float, tuple[float, ...]]


def dashes(series: int) -> Dashes:
    """matplotlib's line style of a series, the same as its legend in the page."""
    dash = DASHES[series % len(DASHES)]
    return "solid" if dash == "none" else (0.0, tuple(float(length) / 1.6 for length in dash.split()))


def per_cent_axes(ax: Axes, x: str, y: str) -> None:
    """Names of two axes that run in per cent."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.xaxis.set_major_formatter("{x:g}%")
    ax.yaxis.set_major_formatter("{x:g}%")
