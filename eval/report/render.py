"""The report: a comparison in, one HTML file out, which needs nothing else to be read."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from metaprobe.eval.report.first_screen import brief
from metaprobe.eval.report.latex import latex, printable
from metaprobe.eval.report.layout import Section, Table
from metaprobe.eval.report.sections import sections
from metaprobe.eval.report.svg import draw_svg, legend_key, standalone
from metaprobe.eval.results import Comparison
from metaprobe.eval.wording import number

HERE = Path(__file__).parent


def report_files(comparison: Comparison) -> dict[str, str]:
    """Path inside the report's folder to text: `report.html`, `tables/*.csv`, `figures/*.svg`."""
    shown = sections(comparison)
    drawings = _drawings(shown)
    tables = [table for section in shown for table in (*section.tables, *section.data) if table.rows]
    return {
        "report.html": _page(comparison, shown, drawings),
        **{f"tables/{table.filename}": table.csv for table in tables},
        **{f"figures/{ident}.svg": standalone(svg) for ident, svg in drawings.items()},
    }


def _drawings(shown: Sequence[Section]) -> dict[str, str]:
    return {figure.ident: draw_svg(figure) for section in shown for figure in (*section.figures, *section.folded)}


def _page(comparison: Comparison, shown: Sequence[Section], drawings: Mapping[str, str]) -> str:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {"number": number, "csv_uri": _csv_uri, "tex_uri": _tex_uri, "legend_key": legend_key}
    script = (HERE / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(
        it=comparison,
        brief=brief(comparison),
        glance=next((section for section in shown if section.ident == "glance"), None),
        sections=[section for section in shown if section.ident != "glance"],
        drawings=drawings,
        style=(HERE / "style.css").read_text(encoding="utf-8"),
        script=script,
        # As it stands between the tags. Nothing else may run, and nothing may be fetched.
        script_hash=b64encode(sha256(f"\n{script}\n".encode()).digest()).decode(),
    )


def _csv_uri(table: Table) -> str:
    return "data:text/csv;charset=utf-8," + quote(table.csv)


def _tex_uri(table: Table) -> str:
    """Empty where no paper could print the table."""
    return "data:application/x-tex;charset=utf-8," + quote(latex(table)) if printable(table) else ""
