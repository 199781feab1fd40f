"""What goes on while a model answers: tokens seen, layers, log-probabilities over the course of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from metaprobe.eval.report.drawing import dashes
from metaprobe.eval.report.layout import (
    NOTHING,
    Cell,
    Column,
    Figure,
    Legend,
    Section,
    Table,
    count,
    estimate,
    number_of,
    share,
    slug,
    words,
)
from metaprobe.eval.report.palette import FAMILY, INK, RIGHT, WRONG, numbered
from metaprobe.eval.results import LayerSweep, Place, SeenTokens, Trajectories, TrajectoryBands
from metaprobe.eval.wording import format_interval, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAINTEST = 0.04
"""Opacity of the lowest AUROC of a heat map; the highest has 1."""
MOST_SHOWN = 5
"""Figures of trajectories; where there are more, those by role are folded."""
STEP = 10
"""Per cent of the answer between two rows of the table of trajectories."""


def seen_section(seen: SeenTokens | None) -> Section:
    """AUROC against tokens seen."""
    if seen is None:
        return Section(ident="seen", title="How early right and wrong answers differ")
    dash_of = numbered([method.family for method in seen.methods])

    def paint(ax: Axes) -> None:
        ax.axhline(0.5, color=INK, linewidth=0.9, dashes=(2, 2))
        for method, dash in zip(seen.methods, dash_of, strict=True):
            low, middle, high = np.array([(a.low, a.estimate, a.high) for a in method.auroc]).T
            colour = FAMILY[method.family]
            ax.fill_between(seen.tokens, low, high, color=colour, alpha=0.14, linewidth=0)
            ax.plot(seen.tokens, middle, color=colour, linestyle=dashes(dash), marker="o", markersize=3)
        ax.set_xscale("log")
        ax.set_xticks(seen.tokens, [str(k) for k in seen.tokens])
        ax.minorticks_off()
        ax.set_xlabel("tokens seen")
        ax.set_ylabel("AUROC")

    last = ", ".join(f"{m.name} {number(m.auroc[0].estimate)} to {number(m.auroc[-1].estimate)}" for m in seen.methods)
    columns = tuple(Column(f"auroc_{i}", m.name, "interval", "higher") for i, m in enumerate(seen.methods, start=1))
    table = Table(
        ident="seen",
        caption="AUROC on the same answers after k tokens, with 95 % intervals; and how many answers end there.",
        columns=(Column("tokens", "Tokens"), Column("finished", "Ended"), *columns),
        rows=tuple(
            (count(k), share(finished), *(estimate(method.auroc[at]) for method in seen.methods))
            for at, (k, finished) in enumerate(zip(seen.tokens, seen.finished, strict=True))
        ),
    )
    figure = Figure(
        ident="seen",
        title="AUROC against tokens seen",
        label=f"AUROC from {seen.tokens[0]} to {seen.tokens[-1]} tokens seen: {last}.",
        paint=paint,
        note="Bands: 95 % intervals. Broken line: chance",
        legend=tuple(
            Legend(FAMILY[method.family], method.name, dash, "o")
            for method, dash in zip(seen.methods, dash_of, strict=True)
        ),
    )
    return Section(
        ident="seen",
        title="How early right and wrong answers differ",
        intro="How well right answers are distinguished from wrong ones when only the first tokens are known, as while "
        "an answer streams. The same answers everywhere; a shorter one is read to its end.",
        figures=(figure,),
        data=(table,),
    )


def layers_section(sweeps: Sequence[LayerSweep]) -> Section:
    """A heat map of layer and position, and the same as lines, for each probe."""
    figures = []
    for at, sweep in enumerate(sweeps, start=1):
        where = _place(sweep.chosen)
        framed = f"{where}{_why(sweep, float(np.nanmax(sweep.selection_auroc)))}"
        test = format_interval(sweep.test_auroc)
        low, high = float(np.nanmin(sweep.selection_auroc)), float(np.nanmax(sweep.selection_auroc))
        if sweep.selection_auroc.size > 1:
            figures.append(
                Figure(
                    ident=f"layers-map-{slug(at, sweep.probe)}",
                    title=f"{sweep.probe}: layer and position",
                    label=f"Heat map of the AUROC of the {sweep.probe} probe on selection data, from {number(low)} to "
                    f"{number(high)}; chosen {where}.",
                    paint=partial(_heat_map, sweep),
                    note=f"Faintest {number(low)}, fullest {number(high)}. Framed: chosen by most folds, {framed}",
                    height=0.45 + 0.11 * len(sweep.positions),
                )
            )
        figures.append(
            Figure(
                ident=f"layers-{slug(at, sweep.probe)}",
                title=f"{sweep.probe}: by layer",
                label=f"AUROC of the {sweep.probe} probe by layer; chosen {where}, held-out AUROC {test}. "
                f"{_choices(sweep)}.",
                paint=partial(_lines, sweep),
                note=f"Dot: {framed}. Held-out AUROC (broken line, band): {test}. {_choices(sweep)}",
                legend=tuple(Legend(FAMILY["learned"], position, i) for i, position in enumerate(sweep.positions)),
            )
        )
    return Section(
        ident="layers",
        title="Layers",
        intro="Linear probes on hidden states. Layer 0 is the embeddings' output, layer i the output of block i. The "
        "layer is chosen on selection data, never on the held-out answers: each fold takes the strongest penalty that "
        "cannot be distinguished from the best by one standard error, and the layer best at that. Drawn is the mean "
        "over the folds, marked what most of them chose; the audits name the best of any single fold, which is higher. "
        "A checkpoint is none of these probes: it is fitted once more, to the learning part of all groups, and chooses "
        "its layer there by the same rule, so it may read another layer than most folds did; the held-out AUROC is "
        "that of the recipe."
        if sweeps
        else "",
        figures=tuple(figures),
        data=(_layers_table(sweeps),) if sweeps else (),
    )


def _place(place: Place) -> str:
    return f"layer {place[0]} at {place[1]}"


def _choices(sweep: LayerSweep) -> str:
    """What each fold chose, and what the checkpoint reads."""
    folds = ", ".join(f"{_place(place)} in {count}" for place, count in sweep.counted)
    ships = "" if sweep.shipped is None else f". The checkpoint reads {_place(sweep.shipped)}"
    return f"Chosen by {len(sweep.choices)} folds: {folds}{ships}"


def _why(sweep: LayerSweep, best: float) -> str:
    """Why the one that is marked is not the highest, where it is not."""
    layer, position = sweep.chosen
    at = sweep.layers.index(layer), sweep.positions.index(position)
    return " by the one-standard-error rule, not the highest" if sweep.selection_auroc[at] < best else ""


def _layers_table(sweeps: Sequence[LayerSweep]) -> Table:
    positions = tuple(dict.fromkeys(position for sweep in sweeps for position in sweep.positions))

    def cell(sweep: LayerSweep, i: int, position: str) -> Cell:
        if position not in sweep.positions:
            return NOTHING
        value = float(sweep.selection_auroc[i, sweep.positions.index(position)])
        chosen = (sweep.layers[i], position) == sweep.chosen
        return Cell(number(value), value, strong=chosen)

    return Table(
        ident="layers",
        caption="AUROC on selection data, by layer and position. Bold: chosen.",
        columns=(
            Column("probe", "Probe", "text"),
            Column("layer", "Layer"),
            *(Column(position, position) for position in positions),
        ),
        rows=tuple(
            (words(sweep.probe), count(layer), *(cell(sweep, i, position) for position in positions))
            for sweep in sweeps
            for i, layer in enumerate(sweep.layers)
        ),
        records=[
            {
                "probe": sweep.probe,
                "layer": layer,
                "position": position,
                "selection_auroc": float(sweep.selection_auroc[i, j]),
                "chosen": int((layer, position) == sweep.chosen),
                "folds": sweep.choices.count((layer, position)),
                "shipped": "" if sweep.shipped is None else int((layer, position) == sweep.shipped),
            }
            for sweep in sweeps
            for i, layer in enumerate(sweep.layers)
            for j, position in enumerate(sweep.positions)
        ],
    )


def _heat_map(sweep: LayerSweep, ax: Axes) -> None:
    values = sweep.selection_auroc
    low, high = np.nanmin(values), np.nanmax(values)
    strength = (values - low) / (high - low) if high > low else np.ones_like(values)
    for i in range(len(sweep.layers)):
        for j in range(len(sweep.positions)):
            if np.isfinite(strength[i, j]):
                # One colour, more or less of it: so the page's own light and dark colours serve.
                opacity = FAINTEST + (1 - FAINTEST) * float(strength[i, j])
                ax.bar(i, 0.94, 0.94, bottom=j - 0.47, color=FAMILY["learned"], alpha=opacity, linewidth=0)
    layer, position = sweep.chosen
    i, j = sweep.layers.index(layer), sweep.positions.index(position)
    ax.bar(i, 0.94, 0.94, bottom=j - 0.47, fill=False, edgecolor=INK, linewidth=1.6)
    every = max(1, round(len(sweep.layers) / 10))
    ax.set_xticks(range(0, len(sweep.layers), every), [str(layer) for layer in sweep.layers[::every]])
    ax.set_yticks(range(len(sweep.positions)), sweep.positions)
    ax.set_xlabel("layer")
    ax.grid(visible=False)
    ax.set_xlim(-0.6, len(sweep.layers) - 0.4)
    ax.set_ylim(len(sweep.positions) - 0.4, -0.6)


def _lines(sweep: LayerSweep, ax: Axes) -> None:
    test = sweep.test_auroc
    ax.axhspan(test.low, test.high, color=INK, alpha=0.08, linewidth=0)
    ax.axhline(test.estimate, color=INK, linewidth=0.9, dashes=(2, 2))
    for i in range(len(sweep.positions)):
        ax.plot(sweep.layers, sweep.selection_auroc[:, i], color=FAMILY["learned"], linestyle=dashes(i))
    layer, position = sweep.chosen
    best = sweep.selection_auroc[sweep.layers.index(layer), sweep.positions.index(position)]
    ax.plot([layer], [best], "o", color=FAMILY["learned"], markersize=6)
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("layer")
    ax.set_ylabel("AUROC, selection data")


def trajectories_section(whole: Trajectories | None, by_role: Sequence[Trajectories]) -> Section:
    """Log-probability over the course of right and of wrong answers, of all and by role."""
    # One role says what all of them say.
    shown = [*([whole] if whole else []), *(by_role if len(by_role) > 1 or whole is None else ())]
    figures = tuple(_trajectory(at, found) for at, found in enumerate(shown, start=1))
    first = len(figures) if len(figures) <= MOST_SHOWN else 1
    return Section(
        ident="trajectories",
        title="Log-probability over an answer",
        intro="Every answer is stretched to the same length, from its first token (0 %) to its last (100 %). Bands: "
        "25th to 75th and 10th to 90th percentile of the answers."
        if shown
        else "",
        figures=figures[:first],
        folded=figures[first:],
        folded_title="By role",
        data=(_trajectories_table(shown),) if shown else (),
    )


def _both(found: Trajectories) -> tuple[tuple[TrajectoryBands, str, str], ...]:
    return (found.correct, "right", RIGHT), (found.wrong, "wrong", WRONG)


def _trajectory(at: int, found: Trajectories) -> Figure:
    def paint(ax: Axes) -> None:
        for i, (bands, _, colour) in enumerate(_both(found)):
            ax.fill_between(bands.position, bands.p10, bands.p90, color=colour, alpha=0.12, linewidth=0)
            ax.fill_between(bands.position, bands.p25, bands.p75, color=colour, alpha=0.22, linewidth=0)
            ax.plot(bands.position, bands.mean, color=colour, linestyle=dashes(i))
        ax.set_xlim(0, 100)
        ax.set_xlabel("position in the answer, %")
        ax.set_ylabel("log-probability, nats")

    means = ", ".join(f"{name} answers {number(float(b.mean.mean()))} nats on average" for b, name, _ in _both(found))
    title = f"Log-probability: {found.role or 'all answers'}"
    return Figure(
        ident=f"trajectory-{slug(at, found.role or 'all answers')}",
        title=title,
        label=f"Over the course of an answer. {title}: {means}.",
        paint=paint,
        legend=tuple(
            Legend(colour, f"{name}, mean of {b.n:,} answers", i) for i, (b, name, colour) in enumerate(_both(found))
        ),
    )


def _trajectories_table(shown: Sequence[Trajectories]) -> Table:
    columns = (Column("mean", "Mean"), *(Column(f"p{p}", f"{p}th") for p in (10, 25, 75, 90)))

    def at(bands: TrajectoryBands, position: int) -> tuple[Cell, ...]:
        return tuple(
            number_of(float(np.interp(position, bands.position, getattr(bands, column.key)))) for column in columns
        )

    return Table(
        ident="trajectories",
        caption="Log-probability in nats at positions of the answer: mean and percentiles over the answers.",
        columns=(
            Column("role", "Answers", "text"),
            Column("kind", "Kind", "text"),
            Column("position", "Position"),
            *columns,
        ),
        rows=tuple(
            (words(found.role or "all"), words(name), Cell(percent(p / 100), p), *at(bands, p))
            for found in shown
            for bands, name, _ in _both(found)
            for p in range(0, 101, STEP)
        ),
    )
