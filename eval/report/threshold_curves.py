"""What is accepted at every threshold: receiver operating characteristic beside risk and coverage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from metaprobe.eval.method_results import FAMILIES, MethodResult
from metaprobe.eval.metrics.discrimination import Roc, roc_curve
from metaprobe.eval.metrics.ranked import Floats
from metaprobe.eval.metrics.selective import RiskCoverage, risk_coverage
from metaprobe.eval.report.drawing import dashes, per_cent_axes
from metaprobe.eval.report.layout import Column, Figure, Legend, Section, Spread, Table, share, words
from metaprobe.eval.report.methods import main_methods
from metaprobe.eval.report.palette import FAMILY, INK, numbered
from metaprobe.eval.results import Comparison
from metaprobe.eval.wording import number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE_POINTS = 120
SMALLEST_COVERAGE = 0.02
"""A risk-coverage curve starts here: below, it is the luck of a handful of answers."""
COVERAGES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MAIN = "main"
Line = tuple[Floats, Floats]
"""x and y in per cent."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Methods that share a pair of drawings; all others may stand behind them in grey."""

    ident: str
    title: str
    methods: tuple[MethodResult, ...]
    others: tuple[MethodResult, ...] = ()


def thresholds_section(comparison: Comparison) -> Section:
    """ROC beside risk and coverage of the main methods; the same of each family folded."""
    if not comparison.methods:
        return Section(ident="risk", title="")
    risk = {m.name: risk_coverage(comparison.y, ranking(m)) for m in comparison.methods}
    # With answers of one kind only there is no ROC.
    both = 0 < comparison.base_rate < 1
    roc = {m.name: roc_curve(comparison.y, ranking(m)) for m in comparison.methods} if both else {}
    error_rate = 1 - comparison.base_rate

    def pair(group: _Group) -> tuple[Figure, ...]:
        return (*((_roc_figure(group, roc),) if roc else ()), _risk_figure(group, risk, error_rate))

    main = pair(_Group(MAIN, "main methods", main_methods(comparison)))
    families = [
        _Group(family, f"{family} methods", mine, tuple(m for m in comparison.methods if m not in mine))
        for family in FAMILIES
        if (mine := tuple(m for m in comparison.methods if m.family == family))
    ]
    return Section(
        ident="risk",
        title="Every threshold: ROC, risk and coverage",
        intro="Accept only the most confident answers. ROC: how many of the right answers are accepted, against how "
        "many of the wrong ones; higher is better, the broken line is guessing. Risk and coverage: how many of the "
        "accepted answers are wrong; lower is better, the broken line is the error rate of all answers. In brackets: "
        "the area under the curve (AUROC, AURC). Curves of risk start at 2 % accepted.",
        figures=main,
        folded=tuple(figure for group in families for figure in pair(group)),
        folded_title="Each family, the others in grey",
        data=(*((_roc_table(roc),) if roc else ()), _risk_table(risk)),
        spreads=(Spread(ident="roc-and-risk", columns=tuple((figure,) for figure in main)),) if roc else (),
    )


def ranking(method: MethodResult) -> Floats:
    """What orders the answers, shape (n,)."""
    return np.asarray(method.probability if method.ranking is None else method.ranking, dtype=np.float64)


def risk_at(comparison: Comparison, method: MethodResult, coverage: float) -> float:
    """Share of wrong answers among the so many most confident."""
    curve = risk_coverage(comparison.y, ranking(method))
    return float(np.interp(coverage, curve.coverage, curve.risk))


def _roc_figure(group: _Group, curves: Mapping[str, Roc]) -> Figure:
    def line(method: MethodResult) -> Line:
        curve = curves[method.name]
        at = _thin(0, len(curve.wrong))
        return 100 * curve.wrong[at], 100 * curve.right[at]

    def paint(ax: Axes) -> None:
        ax.plot([0, 100], [0, 100], color=INK, linewidth=0.9, dashes=(2, 2))
        _curves(group, line, ax)
        per_cent_axes(ax, "wrong answers accepted", "right answers accepted")
        ax.set(xlim=(0, 100), ylim=(0, 100))

    spoken = "; ".join(f"{method.name}: AUROC {number(method.auroc.estimate)}" for method in group.methods)
    return Figure(
        ident=f"roc-{group.ident}",
        title=f"ROC: {group.title}",
        label=f"Share of right answers accepted against share of wrong ones, {group.title}. {spoken}.",
        paint=paint,
        legend=_legend(group, [method.auroc.estimate for method in group.methods]),
        table="roc",
    )


def _risk_figure(group: _Group, curves: Mapping[str, RiskCoverage], error_rate: float) -> Figure:
    def line(method: MethodResult) -> Line:
        curve = curves[method.name]
        at = _thin(int(np.searchsorted(curve.coverage, SMALLEST_COVERAGE)), len(curve.risk))
        return 100 * curve.coverage[at], 100 * curve.risk[at]

    def paint(ax: Axes) -> None:
        _curves(group, line, ax)
        ax.axhline(100 * error_rate, color=INK, linewidth=0.9, dashes=(2, 2))
        per_cent_axes(ax, "answers accepted, most confident first", "wrong among the accepted")
        ax.set_xlim(0, 100)
        ax.set_ylim(bottom=0)

    spoken = "; ".join(f"{method.name}: AURC {number(method.aurc.estimate)}" for method in group.methods)
    return Figure(
        ident=f"risk-{group.ident}",
        title=f"Risk and coverage: {group.title}",
        label=f"Risk against coverage, {group.title}. {spoken}.",
        paint=paint,
        legend=_legend(group, [method.aurc.estimate for method in group.methods]),
        table="risk",
    )


def _thin(start: int, end: int) -> np.ndarray:
    """Indices of at most `CURVE_POINTS` points, both ends among them."""
    return np.unique(np.linspace(start, end - 1, CURVE_POINTS).astype(int))


def _curves(group: _Group, line: Callable[[MethodResult], Line], ax: Axes) -> None:
    for method in group.others:
        ax.plot(*line(method), color=INK, alpha=0.22, linewidth=0.8)
    for method, dash in zip(group.methods, numbered([m.family for m in group.methods]), strict=True):
        ax.plot(*line(method), color=FAMILY[method.family], linestyle=dashes(dash))


def _legend(group: _Group, areas: Sequence[float]) -> tuple[Legend, ...]:
    dash_of = numbered([method.family for method in group.methods])
    return tuple(
        Legend(FAMILY[method.family], f"{method.name} ({number(area)})", dash)
        for method, dash, area in zip(group.methods, dash_of, areas, strict=True)
    )


def _roc_table(curves: Mapping[str, Roc]) -> Table:
    at = COVERAGES[:-1]
    return _table(
        "roc",
        "Share of the right answers that are accepted, where so many of the wrong ones are.",
        [Column(f"right_at_{wrong:g}", percent(wrong), better="higher") for wrong in at],
        {name: [_highest_at(curve, wrong) for wrong in at] for name, curve in curves.items()},
    )


def _highest_at(curve: Roc, wrong: float) -> float:
    """Where a curve rises straight up, its top."""
    past = int(np.searchsorted(curve.wrong, wrong, side="right"))
    if curve.wrong[past - 1] == wrong:
        return float(curve.right[past - 1])
    return float(np.interp(wrong, curve.wrong[past - 1 : past + 1], curve.right[past - 1 : past + 1]))


def _risk_table(curves: Mapping[str, RiskCoverage]) -> Table:
    return _table(
        "risk",
        "Share of wrong answers among the accepted, where so many are accepted.",
        [Column(f"risk_at_{at:g}", percent(at), better="lower") for at in COVERAGES],
        {name: [float(np.interp(at, c.coverage, c.risk)) for at in COVERAGES] for name, c in curves.items()},
    )


def _table(ident: str, caption: str, columns: Sequence[Column], rows: Mapping[str, Sequence[float]]) -> Table:
    return Table(
        ident=ident,
        caption=caption,
        columns=(Column("method", "Method", "text"), *columns),
        rows=tuple((words(name), *map(share, values)) for name, values in rows.items()),
    )
