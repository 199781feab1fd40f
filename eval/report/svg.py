"""Matplotlib drawings as SVG: inside a page, with its colours and ids of their own; and alone, as a file."""

import io
import re
from collections.abc import Sequence
from html import escape

from matplotlib import figure as mpl_figure
from matplotlib.backends.backend_svg import FigureCanvasSVG

from metaprobe.eval.report.drawing import COLUMN_IN, HEIGHT_IN, drawing_style
from metaprobe.eval.report.layout import Figure, Legend
from metaprobe.eval.report.palette import CSS, light

LINE = 12.0
"""Height of a line of the title and legend that a drawing has when it stands alone, in points."""
LETTER = 4.4
"""Width of a letter there, rather too much than too little."""
BOLD = 1.3
"""How much wider the letters of the title are, which is bold."""


def draw_svg(figure: Figure) -> str:
    """The SVG of a figure for a page, without a date: the same figure gives the same bytes.

    Title and legend, which the page writes itself, are in it too but not displayed; `standalone` shows them.
    """
    with drawing_style():
        canvas = mpl_figure.Figure(figsize=(COLUMN_IN, HEIGHT_IN * figure.height), layout="constrained")
        FigureCanvasSVG(canvas)
        figure.paint(canvas.subplots())
        text = io.StringIO()
        canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _embed(text.getvalue(), figure)


def standalone(svg: str) -> str:
    """A drawing of `draw_svg` as a file of its own: title and legend in it, colours as on white.

    `page.js` does the same in the browser.
    """
    colours = light()
    svg = re.sub(r'viewBox="[^"]+" data-alone="([^"]+)"', r'viewBox="\1"', svg, count=1)
    svg = svg.replace('<g class="alone" display="none">', "<g>")
    svg = re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], svg)
    paper = f'<svg style="color: {colours["--ink"]}; background: {colours["--paper"]}" font-family="sans-serif"'
    return svg.replace("<svg", paper, 1) + "\n"


def _embed(svg: str, figure: Figure) -> str:
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
    longest = max([BOLD * len(figure.title), *(len(entry.text) + 7 for entry in figure.legend)])
    lines = 1.5 + len(figure.legend)
    return f"0 {-1.5 * LINE:g} {max(width, LETTER * longest + 16):g} {height + LINE * (lines + 0.5):g}"


def _alone(title: str, legend: Sequence[Legend], height: float) -> str:
    text = 'font-size="8" fill="currentColor"'
    lines = [f'<text x="8" y="{-0.5 * LINE:g}" font-weight="bold" {text}>{escape(title)}</text>']
    for at, entry in enumerate(legend):
        y = height + LINE * (at + 0.7)
        lines.append(f'<g transform="translate(8 {y - 7:g})">{legend_key(entry)}</g>')
        lines.append(f'<text x="42" y="{y:g}" {text}>{escape(entry.text)}</text>')
    return f'<g class="alone" display="none">{"".join(lines)}</g>'


_MARKERS = {
    "o": '<circle cx="14" cy="4" r="3"',
    "s": '<rect x="11.2" y="1.2" width="5.6" height="5.6"',
    "^": '<polygon points="14,0.6 17.4,7 10.6,7"',
    "*": '<polygon points="14,0 15,2.9 18,2.9 15.6,4.7 16.5,7.6 14,5.8 11.5,7.6 12.4,4.7 10,2.9 13,2.9"',
}


def legend_key(entry: Legend) -> str:
    """Returns the line and the marker of a legend's entry, as SVG in a box of 28 by 8."""
    stroke = f'style="stroke: {entry.css}; stroke-width: 1.6; '
    line = f'<line x1="0" y1="4" x2="28" y2="4" {stroke}stroke-dasharray: {entry.dash}"/>' if entry.lined else ""
    if not entry.marker:
        return line
    fill = "var(--paper)" if entry.hollow else entry.css
    return f'{line}{_MARKERS[entry.marker]} {stroke}fill: {fill}"/>'
