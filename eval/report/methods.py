"""Which method tells right from wrong: the method table, the tests of its differences, the rarer metrics."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from metaprobe.eval.metrics.calibration import DEFAULT_BINS
from metaprobe.eval.report.layout import (
    NOTHING,
    Cell,
    Column,
    Section,
    Table,
    difference,
    estimate,
    figure_of,
    rate,
    share,
    words,
)
from metaprobe.eval.report.model import Comparison, Family, MethodResult
from metaprobe.eval.report.numbers import number, p_value, percent


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """One metric of the method table."""

    field: str
    title: str
    higher_is_better: bool


METRICS = (
    MetricColumn("auroc", "AUROC", True),
    MetricColumn("auprc", "AUPRC", True),
    MetricColumn("ece", "ECE", False),
    MetricColumn("brier_skill", "Brier skill", True),
    MetricColumn("aurc", "AURC", False),
)
DIFFERENCES = (("diff_stated", "vs stated"), ("diff_baseline", "vs baseline"))
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


def baseline_words(comparison: Comparison) -> str:
    """What the baseline is: its name, and which measures the folds chose for it."""
    if not comparison.baselines:
        return f"{comparison.best_baseline}, the best plain one on selection data"
    return (
        f"{comparison.best_baseline}, in each fold the plain measure that was best on its selection data "
        f"({chosen_in_folds(comparison)}); another may do better on the held-out answers"
    )


def chosen_in_folds(comparison: Comparison) -> str:
    """`mean log-probability in 3 of 5 folds, length in 2`: the measures that the baseline is."""
    (first, folds), *others = comparison.baselines.items()
    rest = "".join(f", {name} in {count}" for name, count in others)
    return f"{first} in {folds} of {sum(comparison.baselines.values())} folds{rest}"


def main_methods(comparison: Comparison) -> tuple[MethodResult, ...]:
    """The one named beforehand, and of every other family the first; and the baseline."""
    by_family: dict[Family, MethodResult] = {}
    for method in comparison.methods:
        by_family.setdefault(method.family, method)
    first = headline(comparison)
    names = {method.name for family, method in by_family.items() if family not in ("plain", "learned")}
    names |= {comparison.best_baseline} | ({first.name} if first else set())
    return tuple(method for method in comparison.methods if method.name in names)


def methods_section(comparison: Comparison) -> Section:
    """The method table, the tests of its differences, and the rarer metrics."""
    clear = any(clear_winner(comparison.methods, column) for column in METRICS)
    rest = [
        "Bold: its interval overlaps no other method's."
        + ("" if clear else " No method is that clearly ahead in any column."),
        "Said: share of answers about which the method says anything; the others get a fallback.",
        "“vs” columns are differences in AUROC, to stated confidence or to the baseline, and paired: both methods "
        "on the same resampled answers. “Better” or “worse” where the interval leaves out 0, else “unclear”.",
        f"A random score has AUROC 0.50, AUPRC {number(comparison.base_rate)} (the base rate) and AURC "
        f"{number(1 - comparison.base_rate)} (the error rate). Brier skill 0 is no better than always saying the base "
        "rate.",
        f"ECE: debiased root-mean-square calibration error over {DEFAULT_BINS} bins of equal mass; below 0 means less "
        "than noise explains. A constant has ECE 0 too: read it beside the Brier skill.",
    ]
    return Section(
        ident="methods",
        title="Which method tells right from wrong",
        tables=(method_table(comparison),),
        data=tuple(table for table in (_more(comparison), _pairs(comparison)) if table.rows),
        data_title="More metrics, and tests of the differences",
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
        caption="Held-out answers. In brackets: 95 % intervals, resampled by group. "
        f"Baseline: {baseline_words(comparison)}.",
        columns=(
            Column("method", "Method", "text"),
            heads[0],
            # Nothing to show where no confidence was stated; the CSV keeps its columns.
            *(Column(field, title, "interval", shown=known(field)) for field, title in DIFFERENCES),
            *heads[1:],
            Column("coverage", "Said"),
            Column("family", "Family", "text"),
            *facts,
        ),
        rows=tuple(
            (
                words(method.name),
                metric(method, METRICS[0]),
                *(difference(getattr(method, field)) for field, _ in DIFFERENCES),
                *(metric(method, column) for column in METRICS[1:]),
                share(method.coverage),
                words(method.family),
                *(figure_of(getattr(method.auroc, fact.key)) for fact in facts),
            )
            for method in comparison.methods
        ),
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
