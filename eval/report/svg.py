"""Matplotlib drawings as SVG inside a page: colours from the page's style sheet, ids of their own, no date."""

import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN = 4.2, 2.9
"""Drawn for a phone's width, so that 9 pt text is still read there; wider screens show several side by side."""

# Colours that stand for something the style sheet decides, since it knows whether the page is light or dark.
INK = "#010203"
SERIES = tuple(f"#0102{0x10 + i:02x}" for i in range(6))
_CSS = {INK: "currentColor"} | {colour: f"var(--s{i + 1})" for i, colour in enumerate(SERIES)}

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


def drawn(ident: str, label: str, draw: Callable[[Axes], None]) -> str:
    """The SVG of what `draw` puts on the axes it is given. Its ids begin with `ident`; `label` is read out for it."""
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc must not change the report
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _embedded(text.getvalue(), ident, label)


def _embedded(svg: str, ident: str, label: str) -> str:
    svg = svg[svg.index("<svg") :]  # without the XML declaration and document type
    box = re.search(r'viewBox="([^"]+)"', svg)
    assert box is not None
    head = f'<svg viewBox="{box[1]}" role="img" aria-label="{_attribute(label)}" xmlns="http://www.w3.org/2000/svg">'
    svg = head + svg[svg.index(">") + 1 :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)  # its `*` is the whole page
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{ident}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{ident}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{ident}-\1)", svg)
    svg = re.sub(r" font-family: [^;]*;", "", svg)
    for colour, css in _CSS.items():
        svg = svg.replace(colour, css)
    return svg.strip()


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
