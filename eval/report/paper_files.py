"""What of a report goes into a paper: tables as LaTeX, drawings as PDF in the widths of its columns."""

from metaprobe.eval.report.latex import latex, printable
from metaprobe.eval.report.pdf import column_pdf, page_pdf
from metaprobe.eval.report.sections import sections
from metaprobe.eval.results import Comparison


def paper_files(comparison: Comparison) -> dict[str, bytes]:
    """Path inside the report's folder to content: `tables/*.tex`, `figures/*.pdf`.

    Figures are 3.3 inches wide; those that the page folds away are SVG only. The drawings in `figures/page-*.pdf` stand
    side by side, 6.9 inches wide in all.
    """
    shown = sections(comparison)
    tables = [table for section in shown for table in (*section.tables, *section.data) if printable(table)]
    figures = [figure for section in shown for figure in section.figures]
    spreads = [spread for section in shown for spread in section.spreads]
    return {
        **{f"tables/{table.ident}.tex": latex(table).encode() for table in tables},
        **{f"figures/{figure.ident}.pdf": column_pdf(figure) for figure in figures},
        **{f"figures/page-{spread.ident}.pdf": page_pdf(spread) for spread in spreads},
    }
