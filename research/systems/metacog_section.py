"""The section on MetaCogAgent, from replays of the recorded runs in ten orders of the items.

    python -m research.systems.metacog_section                 # some minutes of one core
    python -m research.systems.page metacogagent

The first keeps its numbers in docs/measured/metacogagent.json, from which the second writes.
"""

import json
from collections.abc import Sequence
from typing import Any

from metaprobe.pipelines.metacogagent import TABLE_IV, TABLE_V
from metaprobe.records.types import Run
from research.blocks import markdown
from research.systems.figures import ABOUT_ORDERS, ROOT, Lines, cell, packed
from research.systems.live_signals import row_of
from research.systems.metacog_controls import every_agent, series, with_constants, without_signal
from research.systems.metacog_orders import Series, share
from research.systems.metacog_replays import ORDERS

FIGURES = ROOT / "docs" / "measured" / "metacogagent.json"
FULL = "algorithm"
REPLAYED = ("single", "round-robin", "random", "keyword", "majority", FULL)
Row = dict[str, Any]


def main() -> None:
    """Replay every variant, ablation and sweep; keep the numbers."""
    FIGURES.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")


def measured() -> dict[str, Any]:
    """Returns the figures of the section. All variants but the recorded one are replayed from it."""
    world, full = every_agent(), series(FULL)
    alone = {f"{agent} alone": right for agent, right in zip(world.agents, world.right.T, strict=True)}
    alone |= without_signal(world)
    without = {name: series(variant, constants) for name, (variant, constants) in TABLE_IV.items()}
    return {
        "oracle": float(world.right.max(axis=1).mean()),
        "orders": len(ORDERS),
        "variants": [row_of(name, series(name)) for name in REPLAYED],
        "controls": [
            *({"name": name, "accuracy": packed(share(right[None], full.weights))} for name, right in alone.items()),
            *(row_of(name, one) for name, one in with_constants(world).items()),
        ],
        "ablations": [{**row_of(name, one), "over_full": packed(one.gain_over(full))} for name, one in without.items()],
        "sweeps": [
            swept(name, str(value), series(FULL, f"{name}={value}"), full)
            for name, values in TABLE_V.items()
            for value in values
        ],
    }


def swept(name: str, value: str, ours: Series, full: Series) -> Row:
    """The numbers of one value of a constant."""
    return {
        "constant": name,
        "value": value,
        "accuracy": packed(ours.accuracy()),
        "over_full": packed(ours.gain_over(full)),
        "asked": packed(ours.share_asked()),
    }


def metacog(runs: Sequence[Run], paper: dict[str, Any]) -> Lines:
    """Table II, controls, the ablations and the sweeps."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    models = {call.agent: call.model for run in runs[:1] for call in run.calls if call.stage == "answer"}
    rows = [cells_of(row, paper["table 2"].get(row["name"])) for row in figures["variants"]]
    rows += [cells_of({**row, "name": f"control: {row['name']}"}, None) for row in figures["controls"]]
    ablations = []
    for row in figures["ablations"]:
        cells = cells_of(row, paper["table 4"].get(row["name"]))
        ablations.append([*cells[:3], cell(row["over_full"], "points"), *cells[3:]])
    sweeps = []
    for row in figures["sweeps"]:
        name, value = row["constant"], row["value"]
        shown = [cell(row["accuracy"], "percent"), cell(row["over_full"], "points"), cell(row["asked"], "percent")]
        sweeps.append([f"{name} = {value}", str(paper["table 5"][name][value]), *shown])
    head = ["asked others", "delegation precision", "ECE of c, 15 bins of equal mass"]
    head += ["ECE of c, 10 bins of equal width (the paper's)", "calls"]
    difference = "against the full system, points"
    return [
        f"Agents: {', '.join(f'{agent} is {model}' for agent, model in models.items())}; an oracle that picks the "
        f"agent has {figures['oracle']:.1%}. The items ran one after another, as in the paper. "
        f"{ABOUT_ORDERS.format(n=figures['orders'])}",
        "",
        *markdown(["variant", "paper: accuracy %, precision, ECE, calls (GPT-4)", "accuracy", *head], rows),
        "",
        "The controls know of an item what the other half of the groups shows: which agent is the best, how often each "
        "is right. In the last two rows such constants stand in the place of the stated confidence.",
        "",
        "Ablations (table IV, and three of ours), the differences paired on the item in each order:",
        "",
        *markdown(["without", "paper: accuracy %, difference, precision", "accuracy", difference, *head], ablations),
        "",
        "Sweeps (table V):",
        "",
        *markdown(["constant", "paper: accuracy %", "accuracy", difference, "asked others"], sweeps),
    ]


def cells_of(row: Row, theirs: Sequence[float | None] | None) -> list[str]:
    """One variant beside the paper's; a control that asks nobody has an accuracy only."""
    return [
        row["name"],
        ", ".join("-" if value is None else str(value) for value in theirs) if theirs else "-",
        cell(row["accuracy"], "percent"),
        cell(row.get("asked"), "percent"),
        cell(row.get("precision"), "percent"),
        cell(row.get("ece"), "number"),
        cell(row.get("ece_equal_width"), "number"),
        row.get("calls", "-"),
    ]


if __name__ == "__main__":
    main()
