"""Drawings of a report, made with matplotlib, and the colours that mean the same everywhere.

A colour stands for the family of a method, or for right or wrong answers. It comes from the page's style sheet. Lines
of one colour differ in their dashes, points in their markers.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metaprobe.checkpoints.rendered_table import format_interval, number, percent
from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.metrics.calibration import StatedCalibration
from metaprobe.eval.metrics.ranked import risk_coverage
from metaprobe.eval.results import (
    FAMILIES,
    Comparison,
    Family,
    LayerPosition,
    LayerSweep,
    LearningCurve,
    MethodResult,
    ModelResult,
    SeenTokens,
    Trajectories,
)
from metaprobe.records.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, HEIGHT_IN = 3.3, 2.4
"""Size of a drawing without its legend: as wide as a column of a paper. Its text is readable on a phone."""
LEGEND_LINE_IN = 0.17
"""Height of a line of the legend, in inches."""
DASHES = ("-", "--", ":", "-.", (0, (1, 2)), (0, (8, 2)))
"""Line styles of the methods of one family, in their order."""
ALL_POINTS_AREA, SMALLEST_AREA = 120.0, 5.0
"""Area in square points: of all points of a reliability diagram together, divided in proportion to their answers, and
the least area of each point.
"""
CURVE_POINTS = 120
"""Most points of a drawn curve."""
SMALLEST_COVERAGE = 0.02
"""A risk-coverage curve starts at this coverage. Below it, the risk depends on a handful of answers."""
NAME_WIDTH, LINE_IN, FAMILY_GAP, WITHIN_RUNS_OFFSET_LINES = 23, 0.135, 0.7, 0.44
"""Measures of the forest plot: letters in a line of names, height of a line in inches, and free lines between two
families. The last is the number of lines by which a method's figure within runs is below its pooled figure.
"""

AS_STATED, RECALIBRATED = "as stated", "recalibrated"


_SHEET = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
_LIGHT_COLOURS = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", _SHEET[: _SHEET.index("@media")]))
"""Maps the custom properties of the style sheet to their colours on a white page."""
INK, PAPER, RIGHT_COLOUR, WRONG_COLOUR = (_LIGHT_COLOURS[name] for name in ("ink", "paper", "right", "wrong"))
FAMILY_COLOURS: dict[Family, str] = {family: _LIGHT_COLOURS[family] for family in FAMILIES}

REFERENCE_LINE_STYLE: dict[str, Any] = {"color": INK, "linewidth": 0.9, "dashes": (2, 2)}
"""Style of the line of guessing, and of the line on which a probability is exactly right."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the reader's own font
    "svg.hashsalt": "metaprobe",
    "pdf.fonttype": 42,  # text stays text here too; publishers refuse Type 3
    "text.parse_math": False,
    "font.size": 8,
    "legend.fontsize": 7.5,
    "legend.handlelength": 2.6,
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
    "figure.facecolor": PAPER,  # so that a file can be read on any background
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One drawing. Its title and note are in the page; its legend shows the lines that `paint` labels."""

    ident: str
    """Its file name without the ending."""
    title: str
    label: str
    """Text that a screen reader reads in place of the drawing."""
    paint: Callable[[Axes], None]
    note: str = ""
    height: float = 1.0
    """Height as a multiple of the usual height."""


def draw(figure: Figure) -> dict[str, bytes]:
    """Returns the drawing as `svg` and as `pdf`, without dates: the same figure gives the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    undated = {
        "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
        "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    }
    files = {form: io.BytesIO() for form in undated}
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user's matplotlibrc says
        mpl.rcParams.update(_STYLE)
        canvas = Canvas(layout="constrained")
        axes = canvas.subplots()
        figure.paint(axes)
        handles, names = axes.get_legend_handles_labels()
        if names:
            canvas.legend(handles, names, loc="outside lower left", frameon=False)
        canvas.set_size_inches(WIDTH_IN, HEIGHT_IN * figure.height + LEGEND_LINE_IN * len(names))
        for form, metadata in undated.items():
            canvas.savefig(files[form], format=form, metadata=metadata)
    return {form: file.getvalue() for form, file in files.items()}


def slug(index: int, name: str) -> str:
    """Returns a part of a file name from a number and a name: `03-mean-log-probability`."""
    return f"{index:02d}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')[:40]}".rstrip("-")


def _with_line_styles(methods: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Returns each method with its line style: methods of one family have different ones."""
    families = [method.family for method in methods]
    return [
        (method, DASHES[families[:index].count(method.family) % len(DASHES)]) for index, method in enumerate(methods)
    ]


def _per_cent_axes(ax: Axes, x: str, y: str) -> None:
    """Labels two axes: the second is in per cent, and the first goes from 0 to 100 %.

    Args:
        ax: the axes.
        x: label of the first axis.
        y: label of the second axis.
    """
    ax.set(xlabel=x, ylabel=y, xlim=(0, 100))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}%")


def forest(methods: Sequence[MethodResult]) -> Figure:
    """Draws every method's AUROC with its 95 % interval, grouped by family, the best of each family first.

    A hollow mark below each figure shows the AUROC within runs.
    """
    # Heights of the lines, with gaps between families.
    ordered = sorted(methods, key=lambda m: (FAMILIES.index(m.family), -m.auroc.estimate))
    names = [textwrap.fill(method.name, NAME_WIDTH) for method in ordered]
    heights, bottom = [], 0.0
    for i, (method, name) in enumerate(zip(ordered, names, strict=True)):
        bottom += FAMILY_GAP if i and method.family != ordered[i - 1].family else 0.0
        lines = max(name.count("\n") + 1, 1.3)
        heights.append(bottom + lines / 2)
        bottom += lines
    within = any(method.within_runs for method in ordered)

    # The drawing.
    def paint(ax: Axes) -> None:
        ax.axvline(0.5, **REFERENCE_LINE_STYLE)
        labelled: set[str] = set()
        for method, height in zip(ordered, heights, strict=True):
            colour = FAMILY_COLOURS[method.family]
            parts: list[tuple[Interval, float, str, str]] = [(method.auroc, height, colour, method.family)]
            if method.within_runs is not None:
                parts.append((method.within_runs, height + WITHIN_RUNS_OFFSET_LINES, PAPER, "within runs"))
            for interval, part_height, fill, label in parts:
                ax.hlines(part_height, interval.low, interval.high, color=colour, linewidth=1.3)
                label = label if label not in labelled else "_again"
                ax.plot([interval.estimate], [part_height], "o", color=colour, mfc=fill, markersize=4, label=label)
                labelled.add(label)
        ax.set_yticks(heights, names)
        ax.tick_params(axis="y", length=0, labelsize=7)
        ax.grid(visible=False, axis="y")
        ax.spines["left"].set_visible(False)
        ax.set(ylim=(bottom + 0.3, -0.3), xlabel="AUROC")

    def described(method: MethodResult) -> str:
        within_text = f", within runs {format_interval(method.within_runs)}" if method.within_runs else ""
        return f"{method.name} {format_interval(method.auroc)}{within_text}"

    return Figure(
        ident="forest",
        title="How well each method distinguishes right from wrong",
        label=f"AUROC of every method with its 95 % interval. {'; '.join(map(described, ordered))}.",
        paint=paint,
        note="AUROC with 95 % intervals. Broken line: guessing"
        + (". Hollow: among answers of one run only" if within else ""),
        height=(bottom * LINE_IN + 0.5) / HEIGHT_IN,
    )


def reliability(ident: str, method: MethodResult, *, title: str = "Reliability") -> Figure:
    """Draws the share of right answers against the recalibrated probability, and against stated numbers if there are
    any (hollow squares).

    Args:
        ident: id of the figure.
        method: the method.
        title: title of the figure.
    """
    stated_bins, colour = method.stated.reliability if method.stated else (), FAMILY_COLOURS[method.family]
    note = _calibration_of(method)
    if method.stated:
        note = f"{AS_STATED.capitalize()}: {_calibration_of(method.stated)}. {RECALIBRATED.capitalize()}: {note}"

    def paint(ax: Axes) -> None:
        ax.plot([0, 100], [0, 100], **REFERENCE_LINE_STYLE)
        for bins, marker, fill, line_style, label in (
            (method.reliability, "o", colour, "-", RECALIBRATED),
            (stated_bins, "s", PAPER, "--", AS_STATED),
        ):
            if not bins:
                continue
            p, right_share, low, high = (
                100 * np.array([getattr(b, field) for b in bins])
                for field in ("probability", "accuracy", "low", "high")
            )
            ax.vlines(p, low, high, color=colour, linewidth=1.1, alpha=0.7)
            ax.plot(p, right_share, color=colour, linewidth=1.0, linestyle=line_style)
            areas = np.array([b.n for b in bins]) / sum(b.n for b in bins) * ALL_POINTS_AREA + SMALLEST_AREA
            # Points at probability 0 or 1 lie on the edge and must not be clipped.
            edge_style: dict[str, Any] = {"edgecolors": colour, "linewidths": 1.0, "zorder": 3, "clip_on": False}
            ax.scatter(p, right_share, s=areas, marker=marker, facecolors=fill, **edge_style)
            legend_label = label if stated_bins else None
            ax.plot([], [], marker, color=colour, mfc=fill, markersize=4, linestyle=line_style, label=legend_label)
        _per_cent_axes(ax, "said to be right" if stated_bins else "predicted to be right", "share that is right")
        ax.set(ylim=(0, 100), xticks=range(0, 101, 25), yticks=range(0, 101, 25))

    return Figure(
        ident=ident,
        title=f"{title}: {method.name}",
        label=f"{title} of {method.name}: share right against probability in {len(method.reliability)} bins. {note}.",
        paint=paint,
        note=note,
    )


def _calibration_of(numbers: MethodResult | StatedCalibration) -> str:
    figures = {"ECE": numbers.ece, "Brier": numbers.brier, "Brier skill": numbers.brier_skill}
    return ", ".join(f"{name} {format_interval(figure)}" for name, figure in figures.items() if figure is not None)


def roc_and_risk_figures(comparison: Comparison, methods: Sequence[MethodResult]) -> tuple[Figure, ...]:
    """Draws the ROC, and risk against coverage. If all answers are right, or all wrong, there is no ROC."""
    y, error_rate = comparison.y, 1 - comparison.base_rate

    # The drawings.
    def thinned_in_per_cent(start: int, *curve: np.ndarray) -> list[np.ndarray]:
        indices = np.unique(np.linspace(start, len(curve[0]) - 1, CURVE_POINTS).astype(int))
        return [100 * values[indices] for values in curve]

    def paint_roc(ax: Axes) -> None:
        roc_curve: Any = require("sklearn.metrics", "fit").roc_curve
        ax.plot([0, 100], [0, 100], **REFERENCE_LINE_STYLE)
        for method, line in _with_line_styles(methods):
            false_positive_rate, true_positive_rate, _ = roc_curve(y, method.order, drop_intermediate=False)
            label = f"{method.name} ({number(method.auroc.estimate)})"
            ax.plot(
                *thinned_in_per_cent(0, false_positive_rate, true_positive_rate),
                color=FAMILY_COLOURS[method.family],
                linestyle=line,
                label=label,
            )
        _per_cent_axes(ax, "wrong answers accepted", "right answers accepted")
        ax.set_ylim(0, 100)

    def paint_risk(ax: Axes) -> None:
        for method, line in _with_line_styles(methods):
            coverage, risks = risk_coverage(y, method.order)
            label = f"{method.name} ({number(method.aurc.estimate)})"
            start = int(np.searchsorted(coverage, SMALLEST_COVERAGE))
            ax.plot(
                *thinned_in_per_cent(start, coverage, risks),
                color=FAMILY_COLOURS[method.family],
                linestyle=line,
                label=label,
            )
        ax.axhline(100 * error_rate, **REFERENCE_LINE_STYLE)
        _per_cent_axes(ax, "answers accepted, most confident first", "wrong among the accepted")
        ax.set_ylim(bottom=0)

    # The figures around them.
    areas = "; ".join(f"{m.name}: AUROC {number(m.auroc.estimate)}, AURC {number(m.aurc.estimate)}" for m in methods)
    roc = Figure(
        ident="roc",
        title="ROC",
        label=f"Share of right answers accepted against share of wrong ones. {areas}.",
        paint=paint_roc,
        note="Higher is better. Broken line: guessing. In brackets: AUROC",
    )
    risk = Figure(
        ident="risk",
        title="Risk and coverage",
        label=f"Share of wrong answers among the accepted against the share accepted. {areas}.",
        paint=paint_risk,
        note=f"Lower is better, from {percent(SMALLEST_COVERAGE)} accepted on. Broken line: error rate of all. "
        "In brackets: AURC",
    )
    return (*((roc,) if 0 < comparison.base_rate < 1 else ()), risk)


def auroc_against(curve: SeenTokens | LearningCurve) -> Figure:
    """Draws AUROC against tokens seen, or against the number of labels."""
    ident, axis_label, axis_values = (
        ("seen", "tokens seen", curve.tokens)
        if isinstance(curve, SeenTokens)
        else ("learning", "labels learned from", curve.labels)
    )
    methods = curve.methods

    def paint(ax: Axes) -> None:
        ax.axhline(0.5, **REFERENCE_LINE_STYLE)
        for method, line_style in _with_line_styles(methods):
            low, middle, high = np.array(
                [(interval.low, interval.estimate, interval.high) for interval in method.auroc]
            ).T
            colour = FAMILY_COLOURS[method.family]
            ax.fill_between(axis_values, low, high, color=colour, alpha=0.14, linewidth=0)
            ax.plot(
                axis_values, middle, color=colour, linestyle=line_style, marker="o", markersize=3, label=method.name
            )
        ax.set_xscale("log")
        ax.set_xticks(axis_values, [str(k) for k in axis_values])
        ax.minorticks_off()
        ax.set(xlabel=axis_label, ylabel="AUROC")

    ends = ", ".join(f"{m.name} {number(m.auroc[0].estimate)} to {number(m.auroc[-1].estimate)}" for m in methods)
    return Figure(
        ident=ident,
        title=f"AUROC against {axis_label}",
        label=f"AUROC from {axis_values[0]} to {axis_values[-1]} {axis_label}: {ends}.",
        paint=paint,
        note="Bands: 95 % intervals. Broken line: guessing",
    )


def model_sizes(rows: Sequence[ModelResult]) -> Figure:
    """Draws the gain of the headline method by model size, over the strongest control and over stated confidence."""
    sizes = [row.parameters or 0.0 for row in rows]
    size_labels = [f"{size / 1e9:g}B" if size >= 5e8 else f"{size / 1e6:g}M" for size in sizes]
    gains = {
        "over its strongest control": ([row.diff_control for row in rows], FAMILY_COLOURS["learned"], "o"),
        "over stated confidence": ([row.diff_stated for row in rows], FAMILY_COLOURS["explicit"], "s"),
    }

    def paint(ax: Axes) -> None:
        ax.axhline(0, **REFERENCE_LINE_STYLE)
        for name, (intervals, colour, marker) in gains.items():
            sizes_and_gains = [(size, gain) for size, gain in zip(sizes, intervals, strict=True) if gain is not None]
            if sizes_and_gains:
                x, gains_of_pairs = zip(*sizes_and_gains, strict=True)
                ends = [
                    [gain.estimate - gain.low for gain in gains_of_pairs],
                    [gain.high - gain.estimate for gain in gains_of_pairs],
                ]
                middle = [gain.estimate for gain in gains_of_pairs]
                ax.errorbar(x, middle, ends, color=colour, marker=marker, markersize=4, capsize=2, label=name)
        ax.set_xscale("log")
        ax.set_xticks(sizes, size_labels)
        ax.minorticks_off()
        ax.set(xlabel="parameters of the model", ylabel="gain in AUROC")

    gains_text = "; ".join(
        f"{row.model} {format_interval(row.diff_control, signed=True)}" for row in rows if row.diff_control is not None
    )
    return Figure(
        ident="models",
        title="Gain by model size",
        label=f"Gain in AUROC over the strongest control of each model: {gains_text}.",
        paint=paint,
        note="Bars: 95 % intervals. Broken line: no gain",
    )


def trajectory(bands_of: Trajectories) -> Figure:
    """Draws log-probabilities along right and along wrong answers."""
    right_and_wrong = (bands_of.correct, "right", RIGHT_COLOUR, "-"), (bands_of.wrong, "wrong", WRONG_COLOUR, "--")

    def paint(ax: Axes) -> None:
        for bands, name, colour, line_style in right_and_wrong:
            ax.fill_between(bands.position, bands.p10, bands.p90, color=colour, alpha=0.12, linewidth=0)
            ax.fill_between(bands.position, bands.p25, bands.p75, color=colour, alpha=0.22, linewidth=0)
            label = f"{name}, mean of {bands.n:,} answers"
            ax.plot(bands.position, bands.mean, color=colour, linestyle=line_style, label=label)
        ax.set(xlim=(0, 100), xlabel="position in the answer, %", ylabel="log-probability, nats")

    means = ", ".join(
        f"{name} answers {number(float(b.mean.mean()))} nats on average" for b, name, *_ in right_and_wrong
    )
    return Figure(
        ident="trajectory",
        title="Log-probability over an answer",
        label=f"Log-probability over the course of an answer: {means}.",
        paint=paint,
        note="Answers stretched to one length. Bands: 25th to 75th and 10th to 90th percentile",
    )


def layers_figure(index: int, sweep: LayerSweep) -> Figure:
    """Draws AUROC by layer, a line for each position; the place that most folds chose is marked."""
    layer, position = sweep.chosen
    chosen_auroc = sweep.selection_auroc[sweep.layers.index(layer), sweep.positions.index(position)]
    test = sweep.test_auroc

    def paint(ax: Axes) -> None:
        ax.axhspan(test.low, test.high, color=INK, alpha=0.08, linewidth=0)
        ax.axhline(test.estimate, **REFERENCE_LINE_STYLE)
        for i, name in enumerate(sweep.positions):
            line = DASHES[i % len(DASHES)]
            ax.plot(
                sweep.layers, sweep.selection_auroc[:, i], color=FAMILY_COLOURS["learned"], linestyle=line, label=name
            )
        ax.plot([layer], [chosen_auroc], "o", color=FAMILY_COLOURS["learned"], markersize=6)
        ax.locator_params(axis="x", integer=True)
        ax.set(xlabel="layer", ylabel="AUROC, selection data")

    is_highest = not chosen_auroc < float(np.nanmax(sweep.selection_auroc))
    chosen_text = (
        f"{_layer_position(sweep.chosen)}{'' if is_highest else ' by the one-standard-error rule, not the highest'}"
    )
    folds = ", ".join(f"{_layer_position(layer_position)} in {count}" for layer_position, count in sweep.fold_counts)
    shipped_text = "" if sweep.shipped is None else f". The checkpoint reads {_layer_position(sweep.shipped)}"
    choices_text = f"Chosen by {len(sweep.choices)} folds: {folds}{shipped_text}"
    return Figure(
        ident=f"layers-{slug(index, sweep.probe)}",
        title=f"{sweep.probe}: by layer",
        label=f"AUROC of the {sweep.probe} probe by layer; chosen {_layer_position(sweep.chosen)}, held-out AUROC "
        f"{format_interval(test)}. {choices_text}.",
        paint=paint,
        note=f"Dot: {chosen_text}. Held-out AUROC (broken line, band): {format_interval(test)}. {choices_text}",
    )


def _layer_position(position: LayerPosition) -> str:
    return f"layer {position[0]} at {position[1]}"
