"""Colours of drawings: they stand for what the style sheet decides, which knows whether the page is light or dark."""

import re
from pathlib import Path

INK = "#010203"
SERIES = tuple(f"#0102{0x10 + i:02x}" for i in range(6))
CSS = {INK: "currentColor"} | {colour: f"var(--s{i + 1})" for i, colour in enumerate(SERIES)}
"""Colour in a drawing -> what stands in the page."""


def light() -> dict[str, str]:
    """Custom property of the style sheet -> its colour on white, for drawings that leave the page."""
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6})", style[: style.index("@media")]))
