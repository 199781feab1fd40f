"""The answer at a glance: the verdict, the stated numbers beside the learned ones, every method's AUROC."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from math import isnan
from typing import TYPE_CHECKING

from metaprobe.eval.method_results import FAMILIES, MethodResult
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.report.drawing import HEIGHT_IN
from metaprobe.eval.report.first_screen import verdict_words
from metaprobe.eval.report.layout import Figure, Legend, Section, Spread
from metaprobe.eval.report.methods import headline
from metaprobe.eval.report.palette import FAMILY, INK, PAPER
from metaprobe.eval.report.performance import reliability_figure
from metaprobe.eval.results import Comparison
from metaprobe.eval.wording import format_interval, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME_WIDTH = 23
"""Letters of a method's name in a line beside the forest plot; a longer name has several lines."""
LINE_IN = 0.135
"""Height of a line of names."""
FAMILY_GAP = 0.7
"""Lines left free between two families."""
BELOW = 0.22
"""How far below the figure of all answers that within runs stands, in lines."""


def glance_section(comparison: Comparison) -> Section:
    """The verdict in words and its three drawings; empty where there are no methods."""
    said, learned = _said(comparison), headline(comparison)
    halves = [
        *([_reliability("glance-said", _says(said), said)] if said and said.reliability else []),
        *([_reliability("glance-learned", "What was learned", learned)] if learned and learned.reliability else []),
    ]
    forest = [forest_figure(known)] if (known := [m for m in comparison.methods if not isnan(m.auroc.estimate)]) else []
    figures = (*halves, *forest)
    return Section(
        ident="glance",
        title="At a glance",
        intro=" ".join(verdict_words(comparison)),
        figures=figures,
        spreads=(Spread(ident="glance", columns=(tuple(halves), tuple(forest))),) if halves and forest else (),
    )


def _said(comparison: Comparison) -> MethodResult | None:
    """The first number that the model states of itself; where it states none, the strongest control."""
    stated = [method for method in comparison.methods if method.family == "explicit"]
    return next(iter((*stated, *comparison.controls)), None)


def _says(method: MethodResult) -> str:
    return "What the model says" if method.family == "explicit" else "What is free"


def _reliability(ident: str, title: str, method: MethodResult) -> Figure:
    stated = method.stated
    note = f"AUROC {format_interval(method.auroc)}. ECE " + (
        f"{number(stated.ece.estimate)} as stated, {number(method.ece.estimate)} recalibrated"
        if stated
        else number(method.ece.estimate)
    )
    return reliability_figure(
        ident,
        method.name,
        method.reliability,
        note,
        family=method.family,
        stated=stated.reliability if stated else (),
        title=title,
        table="reliability",
    )


def forest_figure(methods: Sequence[MethodResult]) -> Figure:
    """Every method's AUROC with its 95 % interval, by family, the best of each first; within runs below, hollow."""
    ordered = sorted(methods, key=lambda m: (FAMILIES.index(m.family), -m.auroc.estimate))
    names = [textwrap.fill(method.name, NAME_WIDTH) for method in ordered]
    within = any(method.within_runs for method in ordered)
    rows, at = [], 0.0
    for i, (method, name) in enumerate(zip(ordered, names, strict=True)):
        if i and method.family != ordered[i - 1].family:
            at += FAMILY_GAP
        lines = max(name.count("\n") + 1, 1.3)
        rows.append(at + lines / 2)
        at += lines
    families = [family for family in FAMILIES if any(method.family == family for method in ordered)]
    spoken = "; ".join(f"{m.name} {format_interval(m.auroc)}{_spoken_within(m)}" for m in ordered)
    return Figure(
        ident="forest",
        title="How well each method distinguishes right from wrong",
        label=f"AUROC of every method with its 95 % interval. {spoken}.",
        paint=partial(_forest, ordered, names, rows, at),
        note="AUROC with 95 % intervals. Broken line: guessing"
        + (". Hollow: among answers of one run only" if within else ""),
        legend=(
            *(Legend(FAMILY[family], family, marker="o") for family in families),
            *((Legend(INK, "within runs", marker="o", hollow=True),) if within else ()),
        ),
        height=(at * LINE_IN + 0.5) / HEIGHT_IN,
        table="methods",
    )


def _spoken_within(method: MethodResult) -> str:
    return f", within runs {format_interval(method.within_runs)}" if method.within_runs else ""


def _forest(
    methods: Sequence[MethodResult], names: Sequence[str], rows: Sequence[float], bottom: float, ax: Axes
) -> None:
    ax.axvline(0.5, color=INK, linewidth=0.9, dashes=(2, 2))
    for method, at in zip(methods, rows, strict=True):
        colour = FAMILY[method.family]
        _point(method.auroc, at, colour, colour, ax)
        if method.within_runs is not None:
            _point(method.within_runs, at + 2 * BELOW, colour, PAPER, ax)
    ax.set_yticks(rows, names)
    ax.tick_params(axis="y", length=0, labelsize=7)
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(False)
    ax.set_ylim(bottom + 0.3, -0.3)
    ax.set_xlabel("AUROC")


def _point(found: Interval, at: float, colour: str, fill: str, ax: Axes) -> None:
    ax.hlines(at, found.low, found.high, color=colour, linewidth=1.3)
    ax.plot([found.estimate], [at], "o", color=colour, markerfacecolor=fill, markersize=4)
