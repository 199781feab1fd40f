"""Matplotlib drawings as SVG: inside a page, with its colours and ids of their own; and alone, as a file."""

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib import figure as mpl_figure
from matplotlib.backends.backend_svg import FigureCanvasSVG

from metaprobe.eval.report.layout import Figure, Legend
from metaprobe.eval.report.palette import CSS, INK, light

WIDTH_IN, HEIGHT_IN = 4.2, 2.9
"""Drawn for a phone's width, so that 9 pt text is still read there; wider screens show several side by side."""

LINE = 13.0
"""Height of a line of the title and legend that a drawing has when it stands alone, in points."""
LETTER = 4.9
"""Width of a letter there, rather too much than too little."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be selected, and is read in the page's own font
    "svg.hashsalt": "metaprobe",
    "text.parse_math": False,
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.14,
    "grid.linewidth": 0.6,
    "figure.facecolor": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.6,
}


def drawn(figure: Figure) -> str:
    """The SVG of a figure for a page, without a date: the same figure gives the same bytes.

    Title and legend, which the page writes itself, are in it too but not displayed; `standalone` shows them.
    """
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc must not change the report
        mpl.rcParams.update(_STYLE)
        canvas = mpl_figure.Figure(figsize=(WIDTH_IN, HEIGHT_IN * figure.height), layout="constrained")
        FigureCanvasSVG(canvas)
        figure.paint(canvas.subplots())
        text = io.StringIO()
        canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _embedded(text.getvalue(), figure)


def standalone(svg: str) -> str:
    """A drawing of `drawn` as a file of its own: title and legend in it, colours as on white.

    `page.js` does the same in the browser.
    """
    colours = light()
    svg = re.sub(r'viewBox="[^"]+" data-alone="([^"]+)"', r'viewBox="\1"', svg, count=1)
    svg = svg.replace('<g class="alone" display="none">', "<g>")
    svg = re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], svg)
    paper = f'<svg style="color: {colours["--ink"]}; background: {colours["--paper"]}" font-family="sans-serif"'
    return svg.replace("<svg", paper, 1) + "\n"


def _embedded(svg: str, figure: Figure) -> str:
    svg = svg[svg.index("<svg") :]  # without the XML declaration and document type
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert box is not None
    width, height = float(box[1]), float(box[2])
    svg = svg[svg.index(">") + 1 :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)  # its `*` is the whole page
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{figure.ident}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{figure.ident}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{figure.ident}-\1)", svg)
    svg = re.sub(r" font-family: [^;]*;", "", svg)
    for colour, css in CSS.items():
        svg = svg.replace(colour, css)
    head = (
        f'<svg viewBox="0 0 {width:g} {height:g}" data-alone="{_box_alone(figure, width, height)}" role="img" '
        f'aria-label="{escape(figure.label)}" xmlns="http://www.w3.org/2000/svg">'
    )
    svg = svg.strip().removesuffix("</svg>")
    return f"{head}{svg}{_alone(figure.title, figure.legend, height)}</svg>"


def _box_alone(figure: Figure, width: float, height: float) -> str:
    """The view box with room for title and legend."""
    longest = max([len(figure.title), *(len(entry.text) + 7 for entry in figure.legend)])
    lines = 1.5 + len(figure.legend)
    return f"0 {-1.5 * LINE:g} {max(width, LETTER * longest + 16):g} {height + LINE * (lines + 0.5):g}"


def _alone(title: str, legend: Sequence[Legend], height: float) -> str:
    text = 'font-size="9" fill="currentColor"'
    lines = [f'<text x="8" y="{-0.5 * LINE:g}" font-weight="bold" {text}>{escape(title)}</text>']
    for at, entry in enumerate(legend):
        y = height + LINE * (at + 0.7)
        key = f'stroke="var(--s{entry.series % 6 + 1})" stroke-width="1.8" stroke-dasharray="{entry.dash}"'
        lines.append(f'<line x1="8" y1="{y - 3:g}" x2="36" y2="{y - 3:g}" {key}/>')
        lines.append(f'<text x="42" y="{y:g}" {text}>{escape(entry.text)}</text>')
    return f'<g class="alone" display="none">{"".join(lines)}</g>'
