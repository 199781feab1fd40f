"""What right and wrong answers are given, and how far the probabilities can be believed: tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from metaprobe.eval.method_results import Family, MethodResult
from metaprobe.eval.metrics.calibration import ReliabilityBin
from metaprobe.eval.report.drawing import dashes, per_cent_axes
from metaprobe.eval.report.layout import (
    Column,
    Figure,
    Legend,
    Section,
    Table,
    count,
    number_of,
    share,
    slug,
    words,
)
from metaprobe.eval.report.methods import main_methods
from metaprobe.eval.report.palette import FAMILY, INK, PAPER, RIGHT, WRONG
from metaprobe.eval.results import Comparison
from metaprobe.eval.wording import format_interval, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HISTOGRAM = np.linspace(0, 1, 21)
AS_STATED = "as stated"
RECALIBRATED = "recalibrated"
POINTS_AREA, SMALLEST_AREA = 120.0, 5.0
"""In square points: of all points of a reliability diagram together, shared by their answers, and of each besides."""
QUARTERS = (0, 25, 50, 75, 100)
OUTCOMES = (RIGHT, WRONG)
Bins = Sequence[ReliabilityBin]


def scores_section(comparison: Comparison) -> Section:
    """What right and wrong answers are given, by the main methods."""
    figures, rows = [], []
    both = ((1, "right"), (0, "wrong"))
    for at, method in enumerate(main_methods(comparison)):
        counts = [np.histogram(method.probability[comparison.y == y], HISTOGRAM)[0] for y, _ in both]
        shares = [found / max(found.sum(), 1) for found in counts]
        means = [_mean(method.probability[comparison.y == y]) for y, _ in both]
        figures.append(
            Figure(
                ident=f"scores-{slug(at + 1, method.name)}",
                title=f"Scores: {method.name}",
                label=f"Distribution of the probability by {method.name}: right answers are given {number(means[0])} "
                f"on average, wrong ones {number(means[1])}.",
                paint=partial(_histogram, shares),
                note=f"Mean of right answers {number(means[0])}, of wrong ones {number(means[1])}",
                legend=tuple(
                    Legend(OUTCOMES[i], f"{name}, {found.sum():,}", i)
                    for i, (found, (_, name)) in enumerate(zip(counts, both, strict=True))
                ),
            )
        )
        rows += [
            (
                words(method.name),
                number_of(float(low)),
                number_of(float(high)),
                *(share(float(found[i])) for found in shares),
            )
            for i, (low, high) in enumerate(pairwise(HISTOGRAM))
            if counts[0][i] or counts[1][i]
        ]
    return Section(
        ident="scores",
        title="Scores of right and of wrong answers",
        intro="The calibrated out-of-fold probability that an answer is right, among the right answers and among the "
        "wrong ones. The less the two overlap, the better a method distinguishes them."
        if figures
        else "",
        figures=tuple(figures),
        data=(
            Table(
                ident="scores",
                caption="Share of the right and of the wrong answers whose probability lies in each range.",
                columns=(
                    Column("method", "Method", "text"),
                    Column("low", "From"),
                    Column("high", "To"),
                    Column("right", "Of the right"),
                    Column("wrong", "Of the wrong"),
                ),
                rows=tuple(rows),
            ),
        )
        if rows
        else (),
    )


def _histogram(shares: Sequence[np.ndarray], ax: Axes) -> None:
    for i, values in enumerate(shares):
        ax.stairs(100 * values, 100 * HISTOGRAM, fill=True, color=OUTCOMES[i], alpha=0.18)
        ax.stairs(100 * values, 100 * HISTOGRAM, color=OUTCOMES[i], linewidth=1.4, linestyle=dashes(i))
    per_cent_axes(ax, "predicted to be right", "share of the answers")
    ax.set_xlim(0, 100)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def reliability_section(comparison: Comparison) -> Section:
    """One reliability diagram a method that has bins; those beside the main ones folded."""
    mains = {method.name for method in main_methods(comparison)}
    figures: dict[bool, list[Figure]] = {True: [], False: []}
    rows: list[tuple[str, str, Bins]] = []
    for at, method in enumerate(comparison.methods):
        if method.reliability:
            drawing = reliability_figure(
                f"reliability-{slug(at + 1, method.name)}",
                method.name,
                method.reliability,
                _calibration_note(method),
                family=method.family,
                stated=method.stated.reliability if method.stated else (),
            )
            figures[method.name in mains or method.stated is not None].append(drawing)
            rows += [(method.name, AS_STATED, method.stated.reliability)] if method.stated else []
            rows.append((method.name, RECALIBRATED, method.reliability))
    main, others = (figures[True], figures[False]) if figures[True] else (figures[False], [])
    return Section(
        ident="reliability",
        title="Reliability",
        intro="How often answers are right, against the probability that they are. Recalibrated: out of fold, by a "
        "calibrator that saw other groups of questions. As stated: the number that the model gave, as it gave it. On "
        "the broken line a probability means what it says; bars are 95 % intervals of one bin; the larger a point, the "
        "more answers it stands for."
        if main
        else "",
        figures=tuple(main),
        folded=tuple(others),
        folded_title="The other methods",
        data=(reliability_table("reliability", "method", rows),) if main else (),
    )


def _calibration_note(method: MethodResult) -> str:
    recalibrated = f"ECE {format_interval(method.ece)}, Brier skill {format_interval(method.brier_skill)}"
    if method.stated is None:
        return recalibrated
    said = f"ECE {format_interval(method.stated.ece)}, Brier skill {format_interval(method.stated.brier_skill)}"
    return f"{AS_STATED.capitalize()}: {said}. {RECALIBRATED.capitalize()}: {recalibrated}"


def reliability_table(ident: str, of: str, rows: Sequence[tuple[str, str, Bins]]) -> Table:
    """The bins of reliability diagrams: the name, whether as stated or recalibrated, the bins."""
    return Table(
        ident=ident,
        caption="Bins of equal mass, put together where their points would touch: mean probability, share that is "
        "right with its 95 % interval, answers.",
        columns=(
            Column(of, of.capitalize(), "text"),
            Column("kind", "Probability is", "text"),
            Column("probability", "Predicted"),
            Column("accuracy", "Right"),
            Column("low", "Low"),
            Column("high", "High"),
            Column("n", "Answers"),
        ),
        rows=tuple(
            (words(name), words(kind), *(number_of(v) for v in (b.probability, b.accuracy, b.low, b.high)), count(b.n))
            for name, kind, found in rows
            for b in found
        ),
    )


def reliability_figure(
    ident: str,
    name: str,
    bins: Bins,
    note: str,
    *,
    family: Family,
    stated: Bins = (),
    title: str = "Reliability",
    table: str = "",
) -> Figure:
    """Share right against probability, recalibrated and, where there are such numbers, as stated.

    Both have the colour of the method's family; what was stated is hollow, square and broken.
    """
    colour = FAMILY[family]
    label = f"{title} of {name}: share right against probability in {len(bins)} bins. {note}."
    legend = Legend(colour, RECALIBRATED, 0, "o"), Legend(colour, AS_STATED, 1, "s", hollow=True)
    return Figure(
        ident=ident,
        title=f"{title}: {name}",
        label=label,
        paint=partial(_reliability, bins, stated, colour),
        note=note,
        legend=legend if stated else (),
        table=table,
    )


def _reliability(bins: Bins, stated: Bins, colour: str, ax: Axes) -> None:
    ax.plot([0, 100], [0, 100], color=INK, linewidth=0.9, dashes=(2, 2))
    for at, (found, marker, fill) in enumerate(((bins, "o", colour), (stated, "s", PAPER))):
        if not found:
            continue
        p, right, low, high = (
            100 * np.array([getattr(b, field) for b in found]) for field in ("probability", "accuracy", "low", "high")
        )
        ax.vlines(p, low, high, color=colour, linewidth=1.1, alpha=0.7)
        ax.plot(p, right, color=colour, linewidth=1.0, linestyle=dashes(at))
        area = np.array([b.n for b in found]) / sum(b.n for b in found) * POINTS_AREA + SMALLEST_AREA
        # What is said to be certain stands on the edge, whole.
        ax.scatter(
            p, right, s=area, marker=marker, facecolors=fill, edgecolors=colour, linewidths=1.0, zorder=3, clip_on=False
        )
    per_cent_axes(ax, "said to be right" if stated else "predicted to be right", "share that is right")
    ax.set(xlim=(0, 100), ylim=(0, 100), xticks=QUARTERS, yticks=QUARTERS)
