"""Colours of drawings, each with one meaning in the whole report: the family of a method, or right and wrong answers.

A drawing is made in the style sheet's colours on white. In the page each of them becomes the style sheet's custom
property, which knows whether the page is light or dark.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from metaprobe.eval.method_results import FAMILIES, Family

MEANINGS = ("ink", "paper", *FAMILIES, "right", "wrong")
DASHES = ("none", "6 2", "2 2", "8 2 2 2", "1 2", "12 3")
"""As SVG writes them; lines of one colour are distinguished by them."""


def light() -> dict[str, str]:
    """Returns the custom properties of the style sheet and their colours on white."""
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6})", style[: style.index("@media")]))


_LIGHT = light()
INK, PAPER = _LIGHT["--ink"], _LIGHT["--paper"]
FAMILY: dict[Family, str] = {family: _LIGHT[f"--{family}"] for family in FAMILIES}
RIGHT, WRONG = _LIGHT["--right"], _LIGHT["--wrong"]
CSS = {_LIGHT[f"--{name}"]: f"var(--{name})" for name in MEANINGS} | {INK: "currentColor"}
"""Colour in a drawing -> what stands in the page."""


def numbered(families: Sequence[Family]) -> list[int]:
    """Returns for each method how many of its family stand before it: which of `DASHES` it has."""
    return [list(families[:at]).count(family) for at, family in enumerate(families)]
