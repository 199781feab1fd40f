"""The figures of a report. Names stay outside the drawing, in captions and legends of the page, where they can wrap."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from metaprobe.eval.metrics import ReliabilityBin, risk_coverage
from metaprobe.eval.report.model import FAMILIES, Comparison, LayerSweep, MethodResult, Trajectories
from metaprobe.eval.report.svg import INK, SERIES, drawn
from metaprobe.eval.report.tables import bounds, number

DASHES = ("none", "6 2", "2 2", "8 2 2 2", "1 2", "12 3")
"""As SVG writes them; one series is told from the next by its dash as well as its colour."""
CURVE_POINTS = 120
SMALLEST_COVERAGE = 0.02
"""A risk-coverage curve starts here: below, it is the luck of a handful of answers."""


@dataclass(frozen=True, slots=True)
class Legend:
    """One line of a figure's legend."""

    series: int
    """Index into the page's series colours, and into `DASHES` where `dashed`."""
    text: str
    dashed: bool = True

    @property
    def dash(self) -> str:
        return DASHES[self.series % len(DASHES)] if self.dashed else "none"


@dataclass(frozen=True, slots=True)
class Figure:
    """One drawing with the words that go with it."""

    title: str
    svg: str
    note: str = ""
    legend: tuple[Legend, ...] = ()


def reliability_figures(comparison: Comparison) -> list[Figure]:
    """One reliability diagram a method that has bins."""
    return [
        _reliability(
            f"rel{at}",
            method.name,
            method.reliability,
            SERIES[FAMILIES.index(method.family)],
            f"ECE {number(method.ece.estimate)} {bounds(method.ece)}, "
            f"Brier skill {number(method.brier_skill.estimate)} {bounds(method.brier_skill)}",
        )
        for at, method in enumerate(comparison.methods)
        if method.reliability
    ]


def choice_figures(comparison: Comparison) -> list[Figure]:
    """One reliability diagram a policy that chooses by a probability."""
    return [
        _reliability(f"choice{at}", policy.policy, policy.reliability, SERIES[3], "The probability it chooses by")
        for at, policy in enumerate(comparison.choices)
        if policy.reliability
    ]


def risk_figures(comparison: Comparison) -> list[Figure]:
    """One risk-coverage diagram a family; the other families' curves stand behind in grey, for comparison."""
    curves = {
        method.name: risk_coverage(comparison.y, method.probability if method.ranking is None else method.ranking)
        for method in comparison.methods
    }

    def draw(mine: Sequence[MethodResult], ax: Axes) -> None:
        shown = [method for method in comparison.methods if method not in mine]
        for method in [*shown, *mine]:
            curve = curves[method.name]
            start = np.searchsorted(curve.coverage, SMALLEST_COVERAGE)
            at = np.unique(np.linspace(start, len(curve.risk) - 1, CURVE_POINTS).astype(int))
            behind = {"color": INK, "alpha": 0.22, "linewidth": 0.9}
            style = _series(mine.index(method)) if method in mine else behind
            ax.plot(100 * curve.coverage[at], 100 * curve.risk[at], **style)
        ax.axhline(100 * (1 - comparison.base_rate), color=INK, linewidth=0.9, dashes=(2, 2))
        _per_cent(ax, "answers accepted, most confident first", "wrong among them")
        ax.set_xlim(0, 100)
        ax.set_ylim(bottom=0)

    figures = []
    for at, family in enumerate(FAMILIES):
        mine = [method for method in comparison.methods if method.family == family]
        if mine:
            spoken = "; ".join(f"{method.name}: AURC {number(method.aurc.estimate)}" for method in mine)
            svg = drawn(f"risk{at}", f"Risk against coverage, {family} methods. {spoken}.", partial(draw, mine))
            legend = tuple(Legend(i, f"{m.name} ({number(m.aurc.estimate)})") for i, m in enumerate(mine))
            figures.append(Figure(family.capitalize(), svg, legend=legend))
    return figures


def sweep_figures(comparison: Comparison) -> list[Figure]:
    """One figure a probe: AUROC on selection data over layers, a line a position."""
    return [_sweep(f"sweep{at}", sweep) for at, sweep in enumerate(comparison.sweeps)]


def trajectory_figure(trajectories: Trajectories) -> Figure:
    """Mean log-probability over the course of right and of wrong answers, with bands of percentiles."""
    both = ((trajectories.correct, "right"), (trajectories.wrong, "wrong"))

    def draw(ax: Axes) -> None:
        for i, (bands, _) in enumerate(both):
            ax.fill_between(bands.position, bands.p10, bands.p90, color=SERIES[i], alpha=0.12, linewidth=0)
            ax.fill_between(bands.position, bands.p25, bands.p75, color=SERIES[i], alpha=0.22, linewidth=0)
            ax.plot(bands.position, bands.mean, **_series(i))
        ax.set_xlim(0, 100)
        ax.set_xlabel("position in the answer, %")
        ax.set_ylabel("log-probability, nats")

    legend = tuple(Legend(i, f"{name}, mean of {bands.n} answers") for i, (bands, name) in enumerate(both))
    means = ", ".join(f"{name} answers {number(float(bands.mean.mean()))} nats on average" for bands, name in both)
    svg = drawn("trajectory", f"Log-probability over the course of an answer: {means}.", draw)
    return Figure("Right and wrong answers", svg, "Bands: 25th to 75th and 10th to 90th percentile", legend)


def _reliability(ident: str, name: str, bins: Sequence[ReliabilityBin], colour: str, note: str) -> Figure:
    def draw(ax: Axes) -> None:
        p, share, low, high = (
            100 * np.array([getattr(b, field) for b in bins]) for field in ("probability", "accuracy", "low", "high")
        )
        ax.plot([0, 100], [0, 100], color=INK, linewidth=0.9, dashes=(2, 2))
        ax.vlines(p, low, high, color=colour, linewidth=1.2, alpha=0.7)
        ax.plot(p, share, color=colour, marker="o", markersize=4, linewidth=1.0)
        _per_cent(ax, "predicted to be right", "right")
        ax.set_xlim(0, 100)
        ax.set_ylim(0, 100)

    label = f"Reliability of {name}: share right against predicted probability in {len(bins)} bins. {note}."
    return Figure(name, drawn(ident, label, draw), note)


def _sweep(ident: str, sweep: LayerSweep) -> Figure:
    def draw(ax: Axes) -> None:
        test = sweep.test_auroc
        ax.axhspan(test.low, test.high, color=INK, alpha=0.08, linewidth=0)
        ax.axhline(test.estimate, color=INK, linewidth=0.9, dashes=(2, 2))
        for i in range(len(sweep.positions)):
            ax.plot(sweep.layers, sweep.selection_auroc[:, i], **_series(i))
        at = sweep.positions.index(sweep.chosen_position)
        best = sweep.selection_auroc[sweep.layers.index(sweep.chosen_layer), at]
        ax.plot([sweep.chosen_layer], [best], "o", color=SERIES[at % len(SERIES)], markersize=7)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel("layer")
        ax.set_ylabel("AUROC, selection data")

    where = f"layer {sweep.chosen_layer} at {sweep.chosen_position}"
    test = f"{number(sweep.test_auroc.estimate)} {bounds(sweep.test_auroc)}"
    return Figure(
        sweep.probe,
        drawn(ident, f"AUROC of the {sweep.probe} probe by layer; chosen {where}, held-out AUROC {test}.", draw),
        f"Chosen (dot): {where}. Held-out AUROC (broken line, band): {test}",
        tuple(Legend(i, position) for i, position in enumerate(sweep.positions)),
    )


def _series(i: int) -> dict[str, Any]:
    """Colour and dash of the i-th series, the same as `Legend` shows."""
    dash = DASHES[i % len(DASHES)]
    style: dict[str, Any] = {"color": SERIES[i % len(SERIES)]}
    return style if dash == "none" else style | {"dashes": [float(length) / 1.6 for length in dash.split()]}


def _per_cent(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    ax.yaxis.set_major_formatter(PercentFormatter(decimals=0))
