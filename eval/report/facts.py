"""What the numbers rest on: accuracy by dimension and level, audits, limits, provenance."""

from metaprobe.eval.method_results import Finding
from metaprobe.eval.report.layout import NOTHING, Cell, Column, Section, Table, share, words
from metaprobe.eval.results import Comparison


def accuracy_section(comparison: Comparison) -> Section:
    """Share of right answers by dimension and level."""
    rows, variants = comparison.accuracy, comparison.variants

    def cell(row_at: int, variant: str) -> Cell:
        found = rows[row_at].by_variant.get(variant)
        return NOTHING if found is None else share(found.accuracy, of=found.n)

    table = Table(
        ident="accuracy",
        caption="Share of right answers, and of how many.",
        columns=(
            Column("dimension", "Dimension", "text"),
            Column("level", "Level", "text"),
            *(Column(variant, variant or "answer") for variant in variants),
        ),
        rows=tuple(
            (words(row.dimension), words(row.level), *(cell(at, variant) for variant in variants))
            for at, row in enumerate(rows)
        ),
        records=[
            {
                "dimension": row.dimension,
                "level": row.level,
                "variant": variant,
                "accuracy": found.accuracy,
                "n": found.n,
            }
            for row in rows
            for variant, found in row.by_variant.items()
        ],
    )
    return Section(ident="accuracy", title="Accuracy by dimension and level", tables=(table,) if rows else ())


def audits_section(audits: tuple[Finding, ...]) -> Section:
    """What could make the numbers mean less than they seem to, those that failed first."""
    passed = sum(audit.passed for audit in audits)
    order = sorted(audits, key=lambda audit: (audit.passed, audit.severity != "invalid"))
    table = Table(
        ident="audits",
        caption=f"{passed} of {len(audits)} audits passed.",
        columns=(
            Column("name", "Finding", "text"),
            Column("result", "Result", "text"),
            Column("detail", "What was found", "prose"),
        ),
        rows=tuple(
            (words(audit.name), Cell(consequence(audit), audit.passed, mark=_mark(audit)), words(audit.detail))
            for audit in order
        ),
        records=[
            {
                "name": audit.name,
                "method": audit.method,
                "passed": int(audit.passed),
                "severity": audit.severity,
                "detail": audit.detail,
            }
            for audit in audits
        ],
    )
    return Section(
        ident="audits",
        title="Audits",
        intro="What could make these numbers mean less than they seem to." if audits else "",
        tables=(table,) if audits else (),
    )


def consequence(audit: Finding) -> str:
    """What the result of an audit means for the numbers of its method, or of every method; empty where it passed."""
    if audit.passed:
        return ""
    numbers = f"the numbers of {audit.method}" if audit.method else "the numbers"
    return f"{numbers} cannot be believed" if audit.severity == "invalid" else f"{numbers} are weaker than they look"


def disqualifying_audits(audits: tuple[Finding, ...]) -> dict[str, list[str]]:
    """Returns the names of the failed audits after which numbers cannot be believed, by the method they are about.

    The key is empty for audits of the answers, after which no method's numbers can be believed.
    """
    failed: dict[str, list[str]] = {}
    for audit in audits:
        if not audit.passed and audit.severity == "invalid":
            failed.setdefault(audit.method, []).append(audit.name)
    return failed


def _mark(audit: Finding) -> str:
    return "passed" if audit.passed else "failed"


def notes_section(notes: tuple[str, ...]) -> Section:
    return Section(ident="notes", title="Limits", remarks=notes)


def provenance_section(comparison: Comparison) -> Section:
    """Where the numbers come from, and how to make them again."""
    known = comparison.provenance
    table = Table(
        ident="provenance",
        caption="Where these numbers come from. The command makes them again from the same runs; runs that another "
        "machine collects anew differ a little, and the numbers with them.",
        columns=(Column("key", "What", "text"), Column("value", "Value", "prose")),
        rows=tuple((words(key), words(value)) for key, value in known.items()),
    )
    return Section(ident="provenance", title="Provenance", tables=(table,) if known else ())
