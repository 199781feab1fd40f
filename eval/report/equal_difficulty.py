"""What is left at equal difficulty, over-confidence, metacognitive efficiency: tables."""

from metaprobe.eval.report.layout import (
    Cell,
    Column,
    Section,
    Table,
    as_records,
    count,
    difference,
    estimate,
    number_of,
    share,
    words,
)
from metaprobe.eval.report.methods import headline
from metaprobe.eval.results import Comparison, Overconfidence, TwoChoice
from metaprobe.eval.wording import format_interval, number


def difficulty_section(comparison: Comparison) -> Section:
    """AUROC within strata of difficulty, and confidence against accuracy by level."""
    found = comparison.difficulty
    tables = []
    if found is not None:
        strata = [Column(f"stratum_{i}", s.name, "interval") for i, s in enumerate(found.strata, start=1)]
        overall = {method.name: method.auroc for method in comparison.methods}
        tables.append(
            Table(
                ident="within-strata",
                caption=f"AUROC over pairs of a right and a wrong answer of the same stratum ({found.by}), beside that "
                "over all pairs. 0.5 within strata: the method knew how hard the question was, and no more.",
                columns=(
                    Column("method", "Method", "text"),
                    Column("auroc", "All pairs", "interval", "higher"),
                    Column("within", "Same difficulty", "interval", "higher"),
                    Column("diff_stated", "vs stated", "interval"),
                ),
                rows=tuple(
                    (
                        words(row.method),
                        estimate(overall.get(row.method)),
                        estimate(row.auroc),
                        difference(row.diff_stated),
                    )
                    for row in found.methods
                ),
            )
        )
    if comparison.overconfidence:
        named = headline(comparison)
        tables.append(_overconfidence(comparison.overconfidence, named.name if named else ""))
    if found is None:
        return Section(ident="difficulty", title="At equal difficulty", intro=_about(tables), tables=tuple(tables))
    by_stratum = Table(
        ident="strata",
        caption="AUROC within each stratum; none where only right or only wrong answers are in it.",
        columns=(Column("method", "Method", "text"), *strata),
        rows=tuple((words(row.method), *map(estimate, row.by_stratum)) for row in found.methods),
    )
    sizes = Table(
        ident="strata-sizes",
        caption="The strata.",
        columns=(Column("stratum", "Stratum", "text"), Column("n", "Answers"), Column("accuracy", "Right")),
        rows=tuple((words(s.name), count(s.n), share(s.accuracy)) for s in found.strata),
    )
    return Section(
        ident="difficulty",
        title="At equal difficulty",
        intro=_about(tables),
        tables=tuple(tables),
        data=(sizes, by_stratum),
        data_title="The strata",
    )


def _about(tables: list[Table]) -> str:
    if not tables:
        return ""
    return (
        "Stated confidence mostly follows how hard a question looks. Here answers are compared with others to "
        "questions of the same difficulty only."
    )


def _overconfidence(rows: tuple[Overconfidence, ...], named: str) -> Table:
    """The page shows what was stated and the method named beforehand, the CSV every method."""
    columns = (
        Column("method", "Method", "text"),
        Column("level", "Level", "text"),
        Column("confidence", "Confidence"),
        Column("accuracy", "Right"),
        Column("gap", "Gap", "interval"),
        Column("source", "Confidence is", "text"),
    )

    def cells(row: Overconfidence) -> tuple[Cell, ...]:
        return (
            words(row.method),
            words(row.level),
            share(row.confidence),
            share(row.accuracy),
            difference(row.gap, judged=False),
            words("as stated" if row.stated else "recalibrated"),
        )

    return Table(
        ident="overconfidence",
        caption="Mean confidence against accuracy. Gap: confidence minus accuracy, above 0 is over-confident. The "
        "CSV has every method.",
        columns=columns,
        rows=tuple(cells(row) for row in rows if row.stated or row.method == named),
        records=as_records(columns, [cells(row) for row in rows]),
    )


def efficiency_section(comparison: Comparison) -> Section:
    """Type-2 AUROC, meta-d' and M-ratio of two-choice answers; or why they are refused."""
    title = "Metacognitive efficiency"
    found = comparison.two_choice
    if found is None:
        refused = comparison.two_choice_refused
        return Section(ident="efficiency", title=title, intro=f"Not given: {refused}" if refused else "")
    return Section(ident="efficiency", title=title, intro=_sensitivity(found), tables=(_efficiency(found),))


def _sensitivity(found: TwoChoice) -> str:
    first, second = found.choices
    return (
        f"How much of what its answers know its confidence knows too. {found.n:,} answers say {first} or {second}"
        + (f", {found.unreadable:,} say neither and are left out" if found.unreadable else "")
        + f". Sensitivity d' of the answers themselves {format_interval(found.d_prime)} (0 is guessing), criterion "
        f"{format_interval(found.criterion)} (above 0: {first} is said less often than it would be without bias). "
        "M-ratio 1: the confidence knows as much as the answer; 0: nothing."
    )


def _efficiency(found: TwoChoice) -> Table:
    return Table(
        ident="efficiency",
        caption=f"meta-d' is the d' that an ideal observer with this confidence would have; M-ratio is meta-d' over d' "
        f"({number(found.d_prime.estimate)}).",
        columns=(
            Column("method", "Method", "text"),
            Column("type2_auroc", "Type-2 AUROC", "interval", "higher"),
            Column("meta_d", "meta-d'", "interval", "higher"),
            Column("m_ratio", "M-ratio", "interval", "higher"),
            Column("bins", "Grades"),
            Column("refused", "Not given because", "prose", shown=any(row.refused for row in found.methods)),
        ),
        rows=tuple(
            (
                words(row.method),
                estimate(row.type2_auroc),
                estimate(row.meta_d),
                estimate(row.m_ratio),
                number_of(row.bins, 0),
                words(row.refused),
            )
            for row in found.methods
        ),
    )
