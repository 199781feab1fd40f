"""What accuracy costs: direct answers against step by step, and routing among agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metaprobe.eval.report.drawing import per_cent_axes
from metaprobe.eval.report.layout import (
    Cell,
    Column,
    Figure,
    Legend,
    Marker,
    Section,
    Table,
    number_of,
    rate,
    share,
    slug,
    words,
)
from metaprobe.eval.report.palette import FAMILY, INK, RIGHT
from metaprobe.eval.report.performance import RECALIBRATED, reliability_figure, reliability_table
from metaprobe.eval.results import PolicyResult
from metaprobe.eval.system_results import CostQuality
from metaprobe.eval.wording import number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS: dict[str, tuple[Marker, str]] = {
    "router": ("o", FAMILY["learned"]),
    "agent": ("s", INK),
    "control": ("^", FAMILY["plain"]),
    "oracle": ("*", RIGHT),
}
"""Marker and colour of each kind of point."""


def choice_section(policies: Sequence[PolicyResult]) -> Section:
    """The choice between a direct answer and one step by step."""
    with_bins = {policy.policy: policy.reliability for policy in policies if policy.reliability}
    table = Table(
        ident="choices",
        caption="What each policy would have got, with 95 % intervals.",
        columns=(
            Column("policy", "Policy", "text"),
            Column("accuracy", "Accuracy", "interval", "higher"),
            Column("tokens_per_question", "Tokens per question", better="lower"),
            Column("step_by_step", "Step by step"),
        ),
        rows=tuple(
            (words(p.policy), rate(p.accuracy), number_of(p.tokens_per_question, 0), share(p.step_by_step))
            for p in policies
        ),
    )
    return Section(
        ident="choice",
        title="Direct or step by step",
        intro="Every question was answered both ways, so what each policy would have got is known. The oracle sees "
        "which way is right; nothing can beat it."
        if policies
        else "",
        tables=(table,) if policies else (),
        figures=tuple(
            reliability_figure(
                f"choice-{slug(at, name)}", name, bins, "The probability it chooses by", family="learned"
            )
            for at, (name, bins) in enumerate(with_bins.items(), start=1)
        ),
        data=(reliability_table("choices-reliability", "policy", [(n, RECALIBRATED, b) for n, b in with_bins.items()]),)
        if with_bins
        else (),
    )


def routing_section(found: Sequence[CostQuality]) -> Section:
    """Cost against accuracy, with the hull of what mixtures reach."""
    return Section(
        ident="routing",
        title="What accuracy costs",
        intro="Each point is an agent asked alone or a way of routing among them. Choosing between two of them at "
        "random, question by question, reaches every point on the line between; the line drawn is the best of these. "
        "Its corners were picked on these very questions, which favours it."
        if found
        else "",
        figures=tuple(_hull(at, costs) for at, costs in enumerate(found, start=1)),
        tables=tuple(_points(at, costs) for at, costs in enumerate(found, start=1)),
    )


def _hull(at: int, found: CostQuality) -> Figure:
    kinds = [kind for kind in KINDS if any(point.kind == kind for point in found.points)]

    def paint(ax: Axes) -> None:
        ax.plot([c for c, _ in found.hull], [100 * a for _, a in found.hull], color=INK, linewidth=1.0, alpha=0.6)
        for kind in kinds:
            marker, colour = KINDS[kind]
            for point in (point for point in found.points if point.kind == kind):
                if point.interval is not None:
                    ends = 100 * point.interval.low, 100 * point.interval.high
                    ax.vlines(point.cost, *ends, color=colour, linewidth=1.0, alpha=0.5)
                ax.plot([point.cost], [100 * point.accuracy], marker, color=colour, markersize=6)
        per_cent_axes(ax, found.unit, "share that is right")
        ax.xaxis.set_major_formatter("{x:g}")

    spoken = "; ".join(f"{p.name}: {number(p.cost)}, {percent(p.accuracy, 1)}" for p in found.points)
    return Figure(
        ident=f"routing-{slug(at, found.title)}",
        title=found.title,
        label=f"Accuracy against {found.unit}, {found.n:,} questions. {spoken}.",
        paint=paint,
        note="Line: the best that mixtures of points reach. Bars: 95 % intervals",
        legend=tuple(Legend(KINDS[kind][1], _kind(kind), marker=KINDS[kind][0], lined=False) for kind in kinds),
        height=1.15,
    )


def _kind(kind: str) -> str:
    return {
        "router": "router (round)",
        "agent": "one agent alone (square)",
        "control": "control (triangle)",
        "oracle": "oracle, sees who is right (star)",
    }[kind]


def _points(at: int, found: CostQuality) -> Table:
    corners = set(found.hull)

    def accuracy(estimate: float, cell: Cell) -> Cell:
        return Cell(percent(estimate, 1), estimate, cell.ends, cell.note)

    return Table(
        ident="routing" if at == 1 else f"routing-{at}",
        caption=f"{found.title}: {found.n:,} questions; cost in {found.unit}. Hull: whether the point is a corner of "
        "the line.",
        columns=(
            Column("policy", "Policy", "text"),
            Column("kind", "Kind", "text"),
            Column("cost", "Cost", better="lower"),
            Column("accuracy", "Accuracy", "interval", "higher"),
            Column("hull", "Hull", "text"),
        ),
        rows=tuple(
            (
                words(point.name),
                words(point.kind),
                number_of(point.cost),
                accuracy(point.accuracy, rate(point.interval)),
                words("corner" if (point.cost, point.accuracy) in corners else ""),
            )
            for point in found.points
        ),
    )
