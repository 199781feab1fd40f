"""Draws the map of the house for docs/architecture.md: rooms by floor, and how data flow through them.

python -m research.architecture.draw
"""

from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FIGURE = ROOT / "docs" / "figures" / "house.svg"
WIDTH, FLOOR, GAP = 920, 62, 12
FLOORS: tuple[dict[str, str], ...] = (
    {"records": "calls, runs, labels, the run store", "checkpoints": "manifest, checks, ONNX session, the hub"},
    {"llms": "local models, endpoints, call cache"},
    {"probes": "features, predictors, probes, signals"},
    {"routing": "policies, the panel, the streaming gate"},
    {"eval": "metrics, audits, report"},
    {"training": "fit, calibrate, audit, export, compare"},
    {"metaprobe": "public names, names for the houses, commands"},
    {"papers": "systems, policies, tasks", "production": "server, score log, labels, drift"},
)
"""Rooms and what lives in them, the ground floor first; the test of imports holds them to these floors."""
FLOW = ("system + task", "run store", "training", "checkpoint", "verdict")
STEPS = ("papers", "records", "training", "checkpoints", "probes, routing, production")
STYLE = """text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1c2733; text-anchor: middle }
.name { font-weight: 600; font-size: 14px } .small { font-size: 12px; fill: #52606d } .paper { fill: #ffffff }
.room { fill: #e7f0fa; stroke: #1864ab } .light { fill: #e6f5ec; stroke: #2b8a3e }
.flow { fill: #fdf1e6; stroke: #c2570c }
.arrow { stroke: #7b8794; stroke-width: 1.6; marker-end: url(#tip) } .tip { fill: #7b8794 }
.core { stroke: #1864ab; stroke-width: 1.6 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9fb0c0 } .paper { fill: #0d1117 } .room { fill: #12263a; stroke: #6cb6ff }
.core { stroke: #6cb6ff } .light { fill: #12291b; stroke: #69db7c } .flow { fill: #2e1d0e; stroke: #ff9d5c }
}"""


def main() -> None:
    """Write the drawing."""
    FIGURE.write_text(svg(), encoding="utf-8")


def svg() -> str:
    """The map: the front door on top, the ground floor below, and the flow of data under it."""
    top, bottom = 44, 44 + len(FLOORS) * (FLOOR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 128}" role="img" '
        'aria-label="The rooms of metaprobe by floor; imports run downwards">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        f'<rect class="paper" width="{WIDTH}" height="{bottom + 128}" rx="8"/>',
        words(WIDTH / 2, 26, "Imports run downwards; production and papers do not import each other", "name"),
        f'<line class="arrow" x1="26" y1="{top + 10}" x2="26" y2="{bottom - 20}"/>',
    ]
    for floor, rooms in enumerate(FLOORS):
        y = top + (len(FLOORS) - 1 - floor) * (FLOOR + GAP)
        parts += floor_of(rooms, floor, y)
    parts += core_label(top + FLOOR + GAP, bottom - GAP)
    return "\n".join([*parts, *flow(bottom + 20), "</svg>"]) + "\n"


def core_label(top: float, bottom: float) -> list[str]:
    """A line beside the floors of the core, and its name; papers and production stand above it."""
    x, middle = WIDTH - 18, (top + bottom) / 2
    return [
        f'<line class="core" x1="{x}" y1="{top}" x2="{x}" y2="{bottom}"/>',
        f'<g transform="rotate(90 {x + 6} {middle:.1f})">{words(x + 6, middle, "core", "name")}</g>',
    ]


def floor_of(rooms: dict[str, str], floor: int, y: float) -> list[str]:
    """One floor: its number and its rooms side by side. Green rooms need numpy and onnxruntime only."""
    left, width = 84, WIDTH - 108
    each = (width - GAP * (len(rooms) - 1)) / len(rooms)
    parts = [words(58, y + FLOOR / 2 + 5, str(floor), "small")]
    for at, (name, says) in enumerate(rooms.items()):
        x = left + at * (each + GAP)
        style = "light" if name in ("checkpoints", "probes", "routing") else "room"
        shown = "src/metaprobe/" if name == "metaprobe" else f"{name}/"
        parts.append(box(x, y, each, FLOOR, style))
        parts += [words(x + each / 2, y + 26, shown, "name"), words(x + each / 2, y + 46, says, "small")]
    return parts


def flow(y: float) -> list[str]:
    """From a system and a task to a verdict, with the room of each step below it."""
    each, gap, parts = 148, 34, []
    left = (WIDTH - 5 * each - 4 * gap) / 2
    for at, (name, room) in enumerate(zip(FLOW, STEPS, strict=True)):
        x = left + at * (each + gap)
        parts += [box(x, y, each, 46, "flow"), words(x + each / 2, y + 28, name, "name")]
        parts.append(words(x + each / 2, y + 66, room, "small"))
        if at:
            parts.append(f'<line class="arrow" x1="{x - gap + 3:.0f}" y1="{y + 23}" x2="{x - 3:.0f}" y2="{y + 23}"/>')
    return [*parts, words(WIDTH / 2, y + 92, "Green rooms need numpy and onnxruntime only.", "small")]


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="6"/>'


def words(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


if __name__ == "__main__":
    main()
