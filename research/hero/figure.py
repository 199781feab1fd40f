"""The figure that docs/index.md leads with, and the sentences below it: explicit against implicit on recorded runs.

    python -m research.hero.figure

From docs/measured/hero.json and docs/measured/probes.json into docs/figures/hero.svg and docs/index.md.
"""

from dataclasses import dataclass
from html import escape
from typing import Any

from metaprobe.eval.controls import STATED
from metaprobe.training.methods import BLEND
from research.blocks import read_figures, write
from research.hero.measure import MEASURED, ROOT
from research.hidden import controls as probes_controls
from research.hidden import headline

GUIDE = ROOT / "docs" / "index.md"
FIGURE = ROOT / "docs" / "figures" / "hero.svg"
WIDTH, HEIGHT = 920, 592
LEFT, RIGHT = (64, 84, 316, 300), (584, 84, 296, 440)
"""x, y, width and height of the two panels."""
LOWEST = 0.35
"""Left end of the AUROC axis."""
STYLE = """text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1c2733 }
.title { font-weight: 600; font-size: 15px } .small { font-size: 11.5px; fill: #52606d } .end { text-anchor: end }
.middle { text-anchor: middle } .paper { fill: #ffffff } .axis { stroke: #9aa5b1 } .grid { stroke: #e4e7eb }
.ideal { stroke: #9aa5b1; stroke-dasharray: 4 4 } .explicit { stroke: #c2570c; fill: #c2570c }
.control { stroke: #7b8794; fill: #7b8794 } .learned { stroke: #1864ab; fill: #1864ab }
.hollow { fill: #ffffff; stroke-width: 1.8 } polyline { fill: none !important; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9fb0c0 } .paper { fill: #0d1117 } .grid { stroke: #26303b }
.axis, .ideal { stroke: #5b6875 }
.explicit { stroke: #ff9d5c; fill: #ff9d5c } .control { stroke: #a3b0bd; fill: #a3b0bd }
.learned { stroke: #6cb6ff; fill: #6cb6ff } .hollow { fill: #0d1117 }
}"""


@dataclass(frozen=True, slots=True)
class Row:
    """One pair of model and task: AUROC with its interval of three ways to judge the answers."""

    name: str
    explicit: list[float]
    control: list[float]
    learned: list[float]
    stands: bool
    """Whether the learned score is shown to beat every control."""


def main() -> None:
    """Draw the figure, and write what it says below it."""
    figures, rows = read_figures(MEASURED), rows_of(headline.read())
    FIGURE.write_text(svg(figures, rows), encoding="utf-8")
    write(GUIDE, "hero", [*below(figures, rows), ""])


def rows_of(probes: dict[str, Any]) -> list[Row]:
    """The pairs, the highest learned AUROC first. The control of each is the strongest on these very answers."""
    rows = []
    for name, row in probes.items():
        if "methods" not in row:
            continue
        methods, found = row["methods"], probes_controls.gain_of(row)
        control = methods[found["control"]]["auroc"]
        stands = not found["standing"]
        rows.append(Row(name.replace("/", ", "), methods[STATED]["auroc"], control, methods[BLEND]["auroc"], stands))
    return sorted(rows, key=lambda row: -row.learned[0])


def below(figures: dict[str, Any], rows: list[Row]) -> list[str]:
    """Returns the lines of the picture with its alternative text, and of what it shows."""
    top = figures["curves"]["stated"]["bins"][-1]
    pairs = headline.controlled(headline.gains(headline.read()))
    stands = sum(pair.stands for pair in pairs)
    over = sum(row.learned[1] > row.explicit[2] for row in rows)
    says = (
        f"Left: where 135M and 0.5B models state {top['mean']:.0%} confidence, {top['right'][0]:.0%} of answers are "
        f"right. Right: a blend of log-probabilities and hidden states beats stated confidence on {over} of "
        f"{len(rows)} model-task pairs, every control on {stands} of {len(pairs)}."
    )
    # The alternative text names the picture. Its content stands below it, where a screen reader reads it as well.
    alt = "Reliability of stated confidence and of a learned score, and AUROC by model and task"
    return [
        f"![{alt}](figures/hero.svg)",
        "",
        f"{says} [Every row](research/probes.md).",
    ]


def svg(figures: dict[str, Any], rows: list[Row]) -> str:
    """The drawing: reliability on the left, a dot plot on the right; colours follow the reader's light or dark mode."""
    x, legend = 64, []  # the meaning of the colours, in both panels
    for style, text in (
        ("explicit", "explicit: confidence that the model states"),
        ("learned", "implicit: learned from its signals"),
        ("control", "strongest simple control"),
    ):
        legend += [f'<circle class="{style}" cx="{x}" cy="26" r="5"/>', words(x + 11, 30, text)]
        x += 44 + 7 * len(text)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Explicit against implicit: reliability, and AUROC by model and task">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        *legend,
        *reliability(figures["curves"]),
        *dots(rows),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def reliability(curves: dict[str, Any]) -> list[str]:
    """Share of right answers against the number that was given, with intervals."""
    x0, y0, width, height = LEFT
    parts = [words(x0, y0 - 16, "Does the number mean what it says?", "title")]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x, y = x0 + tick * width, y0 + (1 - tick) * height
        parts += [line(x0, y, x0 + width, y, "grid"), words(x0 - 8, y + 4, f"{tick:.0%}", "small end")]
        parts += [words(x, y0 + height + 18, f"{tick:.0%}", "small middle")]
    parts += [
        line(x0, y0 + height, x0 + width, y0, "ideal"),
        line(x0, y0 + height, x0 + width, y0 + height, "axis"),
        words(x0 + width / 2, y0 + height + 38, "confidence: stated as it is, or learned", "small middle"),
        f'<g transform="translate({x0 - 48} {y0 + height / 2}) rotate(-90)">',
        words(0, 0, "answers that are right", "small middle"),
        "</g>",
    ]
    for name, style in (("stated", "explicit"), ("learned", "learned")):
        bins = curves[name]["bins"]
        places = [(x0 + one["mean"] * width, [y0 + (1 - value) * height for value in one["right"]]) for one in bins]
        parts.append(f'<polyline class="{style}" points="{" ".join(f"{x:.1f},{at[0]:.1f}" for x, at in places)}"/>')
        for one, (x, (y, low, high)) in zip(bins, places, strict=True):
            parts += [line(x, low, x, high, style), dot(x, y, style, 2.5 + 4.5 * (one["n"] / curves[name]["n"]) ** 0.5)]
    return parts


def dots(rows: list[Row]) -> list[str]:
    """A line a pair: three AUROCs with their intervals of 95 %."""
    x0, y0, width, height = RIGHT

    def at(auroc: float) -> float:
        return x0 + (max(auroc, LOWEST) - LOWEST) / (1 - LOWEST) * width

    parts = [words(x0 - 150, y0 - 16, "Does it distinguish right from wrong answers?", "title")]
    for tick in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        x = at(tick)
        parts += [line(x, y0, x, y0 + height, "ideal" if tick == 0.5 else "grid")]
        parts += [words(x, y0 + height + 18, f"{tick:.1f}", "small middle")]
    parts += [words(x0 + width / 2, y0 + height + 38, "AUROC with 95 % interval; 0.5 is chance", "small middle")]
    filled = "filled blue: shown to be ahead of every control; hollow: not shown"
    parts += [words(x0 + width + 16, y0 + height + 56, filled, "small end")]
    step = height / len(rows)
    for number, row in enumerate(rows):
        y = y0 + (number + 0.5) * step
        parts.append(words(x0 - 10, y + 4, row.name, "small end"))
        for shift, style, found in (
            (-0.26, "explicit", row.explicit),
            (0.0, "control", row.control),
            (0.26, "learned", row.learned),
        ):
            value, low, high = map(at, found)
            parts.append(line(low, y + shift * step, high, y + shift * step, style))
            hollow = " hollow" if style == "learned" and not row.stands else ""
            parts.append(dot(value, y + shift * step, style + hollow, 3.6))
    return parts


def words(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{f" class={chr(34)}{style}{chr(34)}" if style else ""}>{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def dot(x: float, y: float, style: str, radius: float) -> str:
    return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'


if __name__ == "__main__":
    main()
