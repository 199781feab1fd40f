"""What the stages of a monitor-control system do to an answer: accuracy, coupling, agreement, failures, similarity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from metaprobe.eval.report.drawing import dashes
from metaprobe.eval.report.layout import (
    Column,
    Figure,
    Legend,
    Section,
    Table,
    count,
    difference,
    estimate,
    rate,
    share,
    words,
)
from metaprobe.eval.report.palette import INK
from metaprobe.eval.results import Comparison
from metaprobe.eval.system_results import Agreement, Coupling, Failures, SimilarityFlow, StageAccuracy
from metaprobe.eval.systems.metacrit import STAGES
from metaprobe.eval.wording import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REFERENCES = {"previous": "the stage before it", "final": "the last stage's text", "gold": "the gold answer"}


def systems_section(comparison: Comparison) -> Section:
    """Everything about stages that the runs give."""
    tables = [
        *([_stages(comparison.stages)] if comparison.stages else []),
        *([_coupling(comparison.coupling)] if comparison.coupling else []),
        *([_agreement(comparison.agreement)] if any(row.n for row in comparison.agreement) else []),
        *([_failures(comparison.failures)] if comparison.failures and comparison.failures.wrong else []),
    ]
    flows = comparison.similarity
    there = bool(tables or flows)
    return Section(
        ident="systems",
        title="Monitoring and control",
        intro="What the stages of the system do to an answer: whether monitoring detects which answers are wrong, and "
        "whether control mends them without breaking right ones."
        if there
        else "",
        tables=tuple(tables),
        figures=tuple(
            _flow(reference, [flow for flow in flows if flow.reference == reference])
            for reference in dict.fromkeys(flow.reference for flow in flows)
        ),
        data=(_similarity(flows),) if flows else (),
    )


def _origin(rows: Sequence[StageAccuracy | Coupling | SimilarityFlow]) -> tuple[Column, Column]:
    """Columns of system and variant; the page shows them where there are several."""
    return (
        Column("system", "System", "text", shown=len({row.system for row in rows}) > 1),
        Column("variant", "Variant", "text", shown=len({row.variant for row in rows}) > 1),
    )


def _stages(rows: Sequence[StageAccuracy]) -> Table:
    return Table(
        ident="stages",
        caption="Share of right answers after each stage, and what it gains over the first stage of the same runs.",
        columns=(
            Column("stage", "Stage", "text"),
            *_origin(rows),
            Column("accuracy", "Right", "interval", "higher"),
            Column("gain", "Gain", "interval", "higher"),
        ),
        rows=tuple(
            (words(row.stage), words(row.system), words(row.variant), rate(row.accuracy), difference(row.gain))
            for row in rows
        ),
    )


def _coupling(rows: Sequence[Coupling]) -> Table:
    flags = (
        ("failure_auroc", "AUROC for wrong"),
        ("flagged_wrong", "Flags wrong"),
        ("flagged_right", "Flags right"),
        ("fixed_flagged", "Mended if flagged"),
        ("fixed_unflagged", "Mended if not"),
        ("fixed_difference", "Difference"),
        ("broken_flagged", "Broken if flagged"),
        ("broken_unflagged", "Broken if not"),
        ("broken_difference", "Difference"),
    )

    def known(part: str) -> bool:
        return any(getattr(row, field) is not None for row in rows for field, _ in flags if part in field)

    # Only what the page shows is explained: a column in which no row says anything is not there.
    asked = "Does the monitor detect which first answers are wrong"
    asked += ", and does control mend those it flags?" if known("fixed") else "?"
    terms = [known("fixed") * "Mended: wrong at first and right at the end"]
    terms += [known("broken") * "Broken: right at first and wrong at the end"]
    if known("difference"):
        terms.append("A difference above 0 says that mending, or breaking, follows the flag")
    return Table(
        ident="coupling",
        caption=" ".join([asked, *(f"{term}." for term in terms if term)]),
        columns=(
            Column("monitor", "Monitor", "text"),
            *_origin(rows),
            Column("n", "Runs"),
            *(Column(field, title, "interval") for field, title in flags),
        ),
        rows=tuple(
            (
                words(row.monitor),
                words(row.system),
                words(row.variant),
                count(row.n),
                estimate(row.failure_auroc),
                *(
                    difference(value, judged=False) if field.endswith("difference") else rate(value)
                    for field, value in ((field, getattr(row, field)) for field, _ in flags[1:])
                ),
            )
            for row in rows
        ),
    )


def _agreement(rows: Sequence[Agreement]) -> Table:
    return Table(
        ident="agreement",
        caption="By who flags a concern: how often the first and the returned answer are right, and what became of "
        "first answers that were wrong (mended) or right (broken).",
        columns=(
            Column("pattern", "Flagged by", "text"),
            Column("n", "Runs"),
            Column("first_accuracy", "First right", "interval"),
            Column("accuracy", "Returned right", "interval", "higher"),
            Column("repaired", "Mended", "interval", "higher"),
            Column("broken", "Broken", "interval", "lower"),
        ),
        rows=tuple(
            (
                words(row.pattern),
                count(row.n),
                rate(row.first_accuracy),
                rate(row.accuracy),
                rate(row.repaired),
                rate(row.broken),
            )
            for row in rows
        ),
    )


def _failures(found: Failures) -> Table:
    about = (
        ""
        if np.isnan(found.evidence)
        else f" Whether the models could have known is judged by {number(found.evidence, 1)} of their answers an item."
    )
    return Table(
        ident="failures",
        caption="How the runs that ended wrong went wrong." + about,
        columns=(
            Column("failure", "Failure", "text"),
            Column("n", "Runs"),
            Column("share", "Of the wrong"),
        ),
        rows=tuple((words(kind), count(n), share(found.share(kind))) for kind, n in found.counts.items()),
    )


def _flow(reference: str, flows: Sequence[SimilarityFlow]) -> Figure:
    """Every variant's similarity to one reference, stage by stage."""
    stages = [stage for stage in STAGES if any(found.stage == stage for flow in flows for found in flow.stages)]

    def paint(ax: Axes) -> None:
        for i, flow in enumerate(flows):
            x = [stages.index(found.stage) + 0.06 * i for found in flow.stages]
            intervals = [found.similarity for found in flow.stages]
            low, middle, high = np.array([(value.low, value.estimate, value.high) for value in intervals]).T
            ax.vlines(x, low, high, color=INK, linewidth=1.2)
            ax.plot(x, middle, color=INK, linestyle=dashes(i), marker="o", markersize=4)
        ax.set_xticks(range(len(stages)), stages)
        ax.margins(x=0.15)
        ax.set_ylabel("cosine similarity")

    to = REFERENCES.get(reference, reference)
    by = ", ".join(dict.fromkeys(flow.by for flow in flows))
    values = "; ".join(
        f"{flow.variant}: " + ", ".join(f"{s.stage} {number(s.similarity.estimate)}" for s in flow.stages)
        for flow in flows
    )
    return Figure(
        ident=f"similarity-{reference}",
        title=f"Similarity to {to}",
        label=f"Cosine similarity of each stage's text to {to}, by {by}. {values}.",
        paint=paint,
        note=f"By {by}. Bars: 95 % intervals",
        legend=tuple(Legend(INK, f"{flow.system}, {flow.variant}", i, "o") for i, flow in enumerate(flows)),
        height=0.8,
    )


def _similarity(flows: Sequence[SimilarityFlow]) -> Table:
    return Table(
        ident="similarity",
        caption="Cosine similarity of each stage's text, and its change against the stage before in the same run.",
        columns=(
            Column("stage", "Stage", "text"),
            *_origin(flows),
            Column("reference", "Compared with", "text"),
            Column("similarity", "Similarity", "interval"),
            Column("change", "Change", "interval"),
        ),
        rows=tuple(
            (
                words(stage.stage),
                words(flow.system),
                words(flow.variant),
                words(REFERENCES.get(flow.reference, flow.reference)),
                estimate(stage.similarity),
                difference(stage.change, judged=False),
            )
            for flow in flows
            for stage in flow.stages
        ),
    )
