"""Which method distinguishes right from wrong: the method table, the tests of its differences, the rarer metrics."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from metaprobe.eval.method_results import Family, MethodResult
from metaprobe.eval.metrics.calibration import DEFAULT_BINS
from metaprobe.eval.report.layout import (
    NOTHING,
    Cell,
    Column,
    Section,
    Table,
    as_records,
    difference,
    estimate,
    number_of,
    rate,
    share,
    words,
)
from metaprobe.eval.results import Comparison
from metaprobe.eval.wording import number, p_value, percent


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """One metric of the method table."""

    field: str
    title: str
    higher_is_better: bool


METRICS = (
    MetricColumn("auroc", "AUROC", True),
    MetricColumn("auprc", "AUPRC", True),
    MetricColumn("ece", "ECE, recalibrated", False),
    MetricColumn("brier_skill", "Brier skill", True),
    MetricColumn("aurc", "AURC", False),
)
DIFFERENCES = (("diff_stated", "vs stated"), ("diff_control", "vs strongest control"))
WITHIN_RUNS = "Within runs"
AS_STATED = "ECE, as stated"
MORE: tuple[tuple[str, str, Literal["", "higher", "lower"]], ...] = (
    ("prr", "Rejection ratio", "higher"),
    ("excess_aurc", "Excess AURC", "lower"),
    ("brier", "Brier", "lower"),
    ("brier_reliability", "Reliability", "lower"),
    ("brier_resolution", "Resolution", "higher"),
    ("brier_uncertainty", "Uncertainty", ""),
    ("spearman", "Spearman", "higher"),
    ("kendall", "Kendall", "higher"),
)
"""Shown in a second table, where they are known."""


def clear_winner(methods: Iterable[MethodResult], column: MetricColumn) -> str | None:
    """The method whose interval lies wholly on the better side of every other's; None where there is none.

    Intervals that do not overlap ask for more than a difference being significant: bold is never a matter of luck.
    """
    sign = 1 if column.higher_is_better else -1
    # (worse end, better end) of each, larger is better
    ends = {m.name: sorted((sign * i.low, sign * i.high)) for m in methods for i in [getattr(m, column.field)]}
    if len(ends) < 2:
        return None
    best = max(ends, key=lambda name: ends[name][0])
    return best if all(ends[best][0] > other[1] for name, other in ends.items() if name != best) else None


def headline(comparison: Comparison) -> MethodResult | None:
    """The learned method that was named beforehand, or else the last of them; None where there is none."""
    learned = [method for method in comparison.methods if method.family == "learned"]
    return next((m for m in comparison.methods if m.name == comparison.headline), learned[-1] if learned else None)


def control_words(comparison: Comparison) -> str:
    """Which control is the strongest, and what the row of those that the folds chose is; empty without controls."""
    if not comparison.controls:
        return ""
    strongest = comparison.controls[0].name
    said = f"Strongest control: {strongest}, the best of {len(comparison.controls)} on these same answers."
    if not comparison.baselines:
        return said
    return f"{said} {comparison.best_baseline.capitalize()}: {chosen_in_folds(comparison)}, chosen in advance."


def chosen_in_folds(comparison: Comparison) -> str:
    """`mean log-probability in 3 of 5 folds, length in 2`: the controls that were chosen in advance."""
    (first, folds), *others = comparison.baselines.items()
    rest = "".join(f", {name} in {count}" for name, count in others)
    return f"{first} in {folds} of {sum(comparison.baselines.values())} folds{rest}"


def main_methods(comparison: Comparison) -> tuple[MethodResult, ...]:
    """The one named beforehand, and of every other family the first; and the strongest control."""
    by_family: dict[Family, MethodResult] = {}
    for method in comparison.methods:
        by_family.setdefault(method.family, method)
    first = headline(comparison)
    names = {method.name for family, method in by_family.items() if family not in ("plain", "learned")}
    names |= {method.name for method in comparison.controls[:1]} | ({first.name} if first else set())
    return tuple(method for method in comparison.methods if method.name in names)


def methods_section(comparison: Comparison) -> Section:
    """The method table, the tests of its differences, and the rarer metrics."""
    clear = any(clear_winner(comparison.methods, column) for column in METRICS)
    rest = [
        "Bold: its interval overlaps no other method's."
        + ("" if clear else " No method is that clearly ahead in any column."),
        "Said: share of answers about which the method says anything; the others get a fallback.",
        "“vs” columns are differences in AUROC, to stated confidence or to the control that is strongest on these "
        "answers, and paired: both methods on the same resampled answers. “Better” or “worse” where the interval "
        "leaves out 0, else “unclear”. That a method beats its controls is said only where it is better than every one "
        "of them, corrected for their number (Holm).",
        f"A random score has AUROC 0.50, AUPRC {number(comparison.base_rate)} (the base rate) and AURC "
        f"{number(1 - comparison.base_rate)} (the error rate). Brier skill 0 is no better than always saying the base "
        "rate.",
        f"ECE: expected calibration error, the mean of |probability - share right| over {DEFAULT_BINS} bins of equal "
        "mass, weighted by their answers. As stated: the model's own numbers as it gave them, of the answers that have "
        "one. Recalibrated: after a calibrator that saw other groups only. Noise makes it too high, the more so the "
        "fewer the answers, and a constant at the base rate has 0: read it beside the Brier skill.",
    ]
    if any(method.within_runs for method in comparison.methods):
        rest.append(
            f"{WITHIN_RUNS}: AUROC over pairs of answers of one run only (same model, task and way of asking), which "
            "is what is left for whoever uses one model for one task; a score that only knows which run an answer is "
            "from has 0.50."
        )
    return Section(
        ident="methods",
        title="Which method distinguishes right from wrong",
        tables=(method_table(comparison),),
        data=tuple(t for t in (controls_table(comparison), _more(comparison), _pairs(comparison)) if t.rows),
        data_title="Against every control, more metrics, and tests of the differences",
        remarks=tuple(rest),
    )


def method_table(comparison: Comparison) -> Table:
    """A row a method: discrimination, differences, calibration."""
    winners = {column.field: clear_winner(comparison.methods, column) for column in METRICS}

    def metric(method: MethodResult, column: MetricColumn) -> Cell:
        return estimate(getattr(method, column.field), strong=winners[column.field] == method.name)

    def known(field: str) -> bool:
        return any(getattr(method, field) is not None for method in comparison.methods)

    heads = [Column(c.field, c.title, "interval", better="higher" if c.higher_is_better else "lower") for c in METRICS]
    facts = [Column(name, name, shown=False) for name in ("n", "groups", "level")]
    return Table(
        ident="methods",
        caption="Held-out answers. In brackets: 95 % intervals, resampled by group. " + control_words(comparison),
        columns=(
            Column("method", "Method", "text"),
            heads[0],
            # Nothing to show where no confidence was stated, or of one run; the CSV keeps its columns.
            Column("within_runs", WITHIN_RUNS, "interval", "higher", shown=known("within_runs")),
            *(Column(field, title, "interval", shown=known(field)) for field, title in DIFFERENCES),
            heads[1],
            Column("ece_stated", AS_STATED, "interval", "lower", shown=known("stated")),
            *heads[2:],
            Column("coverage", "Said"),
            Column("family", "Family", "text"),
            *facts,
        ),
        rows=tuple(
            (
                words(method.name),
                metric(method, METRICS[0]),
                estimate(method.within_runs),
                *(difference(getattr(method, field)) for field, _ in DIFFERENCES),
                metric(method, METRICS[1]),
                estimate(method.stated.ece if method.stated else None),
                *(metric(method, column) for column in METRICS[2:]),
                share(method.coverage),
                words(method.family),
                *(number_of(getattr(method.auroc, fact.key)) for fact in facts),
            )
            for method in comparison.methods
        ),
    )


def controls_table(comparison: Comparison) -> Table:
    """The method named beforehand against every control, pooled and within runs; the CSV has every method that is
    learned or that the model states."""
    columns = (
        Column("method", "Method", "text"),
        Column("pairs", "Over", "text"),
        Column("control", "Control", "text"),
        Column("auroc", "Control's AUROC"),
        Column("difference", "Difference", "interval"),
        Column("p", "p"),
        Column("p_holm", "p, Holm", better="lower"),
        Column("beaten", "Beaten", "text"),
    )
    rows = {
        method.name: [
            (
                words(method.name),
                words(kind),
                words(control.name),
                number_of(control.estimate),
                difference(control.difference, judged=False),
                Cell(p_value(control.p), control.p),
                Cell(p_value(control.p_holm), control.p_holm),
                Cell("yes" if control.beaten else "no", float(control.beaten)),
            )
            for over, kind in ((method.controls, "all answers"), (method.controls_within, "within runs"))
            if over is not None
            for control in over.controls
        ]
        for method in comparison.methods
    }
    first = headline(comparison)
    return Table(
        ident="controls",
        caption="AUROC minus that of every single control on the same answers, paired. The last columns: how likely a "
        "difference at least as large is by chance alone, and the same corrected for the number of controls of this "
        "method (Holm). A control is beaten where that is at most 0.05 and the interval above 0. The CSV has every "
        "learned and stated method.",
        columns=columns,
        rows=tuple(rows[first.name]) if first else (),
        records=as_records(columns, [row for found in rows.values() for row in found]),
    )


def _more(comparison: Comparison) -> Table:
    methods = comparison.methods
    known = [(field, title, better) for field, title, better in MORE if any(getattr(m, field) for m in methods)]
    risks = sorted({at.risk for method in methods for at in method.coverage_at})

    def accepted(method: MethodResult, risk: float) -> Cell:
        return next((rate(at.coverage) for at in method.coverage_at if at.risk == risk), NOTHING)

    order = f" Spearman and Kendall: with {comparison.ordinal}." if comparison.ordinal else ""
    return Table(
        ident="methods-more",
        caption="Rejection ratio: 1 is a perfect order of the answers, 0 a random one. Excess AURC: 0 is perfect. "
        "Brier = reliability - resolution + uncertainty + what varies within bins. Accepted: the share of answers "
        "that can be accepted where at most so many of them may be wrong." + order,
        columns=(
            Column("method", "Method", "text"),
            *(
                Column(f"accepted_at_{risk:g}", f"Accepted at {percent(risk)} wrong", "interval", "higher")
                for risk in risks
            ),
            *(Column(field, title, "interval", better) for field, title, better in known),
        ),
        rows=tuple(
            (
                words(method.name),
                *(accepted(method, risk) for risk in risks),
                *(estimate(getattr(method, field)) for field, _, _ in known),
            )
            for method in (methods if known or risks else ())
        ),
    )


def _pairs(comparison: Comparison) -> Table:
    return Table(
        ident="pairs",
        caption="Differences in AUROC and how likely one at least as large is by chance alone; the last column is "
        "corrected for the number of comparisons in this table (Holm).",
        columns=(
            Column("method", "Method", "text"),
            Column("reference", "Against", "text"),
            Column("difference", "Difference", "interval"),
            Column("p", "p"),
            Column("p_holm", "p, Holm", better="lower"),
            Column("test", "Test", "text"),
        ),
        rows=tuple(
            (
                words(pair.method),
                words(pair.reference),
                difference(pair.difference, judged=False),
                Cell(p_value(pair.p), pair.p),
                Cell(p_value(pair.p_holm), pair.p_holm),
                words(pair.test),
            )
            for pair in comparison.pairs
        ),
    )
