"""The report: a comparison in, one HTML file out, which needs nothing else to be read."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from metaprobe.eval.metrics.calibration import DEFAULT_BINS
from metaprobe.eval.report.figures import (
    choice_figures,
    reliability_figures,
    risk_figures,
    sweep_figures,
    trajectory_figure,
)
from metaprobe.eval.report.model import Comparison
from metaprobe.eval.report.tables import DIFFERENCES, METRICS, bounds, clear_winner, number, verdict

HERE = Path(__file__).parent


def render_report(comparison: Comparison) -> str:
    """The HTML of a report: styles, figures and the script that sorts its table are inside, nothing is fetched.

    The same comparison gives the same bytes.
    """
    page = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page.globals |= {"number": number, "bounds": bounds, "verdict": verdict, "bins": DEFAULT_BINS}
    return page.get_template("report.html.j2").render(
        it=comparison,
        metrics=METRICS,
        differences=DIFFERENCES,
        winners={column.field: clear_winner(comparison.methods, column) for column in METRICS},
        reliability=reliability_figures(comparison),
        risk=risk_figures(comparison),
        sweeps=sweep_figures(comparison),
        trajectory=trajectory_figure(comparison.trajectories) if comparison.trajectories else None,
        choices=choice_figures(comparison),
        style=(HERE / "style.css").read_text(encoding="utf-8"),
        script=(HERE / "sort.js").read_text(encoding="utf-8"),
    )
