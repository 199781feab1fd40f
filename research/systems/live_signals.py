"""Explicit, implicit, both: MetaCogAgent with stated confidence, with a checkpoint in its place, and with both joined.

    python -m research.systems.live_signals measure
    python -m research.systems.live_signals page

From recorded/metacog-every-agent, in which every agent has answered and stated its confidence: no model is asked. The
items are halved by group; the checkpoints that read one half (a quality predictor on log-probabilities for each agent)
are trained on the other, and what the controls know is taken from that other half as well. `measure` keeps its numbers
in docs/measured/live_signals.json; `page` writes the sections `live` of docs/research/systems.md and docs/systems.md.
"""

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.checkpoints import FlagOptions, UntrustedCheckpoint
from metaprobe.checkpoints.rendered_table import p_cell
from metaprobe.probes.signal_source import SignalSource
from metaprobe.records.store import RunStore
from metaprobe.training.recipes.train_quality import write_quality
from metaprobe.training.study import study
from research.blocks import markdown, points, read_figures, write, write_figures
from research.systems.figures import ABOUT_ORDERS, GUIDE, PAGE, ROOT, about, cell, packed, recorded
from research.systems.metacog_controls import (
    BEST,
    WITHIN,
    World,
    with_constants,
    with_shuffled,
    without_signal,
)
from research.systems.metacog_orders import Floats, compared, share, spread_over
from research.systems.metacog_replays import ORDERS

PROMISED = FlagOptions(catch=0.9)
"""Flags of the measured figures' stored threshold: below it lie, on average, 90 % of the wrong answers."""
FIGURES = ROOT / "docs" / "measured" / "live_signals.json"
EXPLICIT, IMPLICIT, BOTH = "explicit", "implicit", "both"


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
def measure_command() -> None:
    """Train on each half, replay every row in every order, compare with every control."""
    world = World(recorded("metacog-every-agent"))
    read, auroc = readings(world)
    figures = measured(world, read)
    figures["auroc"] = auroc
    figures["about"] = about(world.runs)
    write_figures(FIGURES, figures)


def readings(world: World) -> tuple[Floats, dict[str, list[float]]]:
    """(items, agents): what the checkpoint of the other half reads of every answer; and their AUROC at home."""
    read = np.full_like(world.right, np.nan)
    auroc: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)  # said in the text
        for half in (0, 1):
            folder = Path(temporary) / str(half)
            RunStore(folder / "runs").append(
                [run for run, own in zip(world.runs, world.half, strict=True) if own != half]
            )
            for column, agent in enumerate(world.agents):
                learned = study([folder / "runs"], stage="answer", agent=agent, hidden=False)
                checkpoint = write_quality(
                    folder / agent, {"correct": learned}, command="live_signals.py", flags=PROMISED
                )
                auroc.setdefault(agent, []).append(checkpoint.manifest.metrics["auroc"].estimate)
                source = SignalSource.load([f"confidence={folder / agent}"])
                for row in np.flatnonzero(world.half == half):
                    calls = (call for call in world.runs[row].calls if call.stage == "answer")
                    answer = next(call for call in calls if call.agent == agent)
                    signal = source.signal("confidence", call=answer)
                    read[row, column] = np.nan if signal is None else signal.value
    return read, auroc


def measured(world: World, read: Floats, orders: Sequence[int] = ORDERS) -> dict[str, Any]:
    """Every row and every gain. `read` (items, agents): what stands in the place of the stated confidence."""
    systems = {
        EXPLICIT: world.play(orders=orders),
        IMPLICIT: world.play(lambda order: read, when="answer", orders=orders),
        BOTH: world.play(lambda order: read, with_stated=True, when="answer", orders=orders),
    }
    constants = with_constants(world, orders)
    dealt = {
        EXPLICIT: with_shuffled(world, world.stated, orders=orders),
        IMPLICIT: with_shuffled(world, read, when="answer", orders=orders),
        BOTH: with_shuffled(world, read, with_stated=True, when="answer", orders=orders),
    }
    plain = without_signal(world)
    shown = {f"{signal}, {name}": one for signal, found in dealt.items() for name, one in found.items()}
    rows = [
        {
            "name": name,
            "accuracy": packed(one.accuracy()),
            "asked": packed(one.share_asked()),
            "precision": packed(one.precision()),
            "ece": packed(one.calibration("equal mass")),
            "ece_equal_width": packed(one.calibration("equal width")),
            "calls": one.shown_calls(),
        }
        for name, one in {**systems, **constants, **shown}.items()
    ]
    alone = {f"{agent} alone": right for agent, right in zip(world.agents, world.right.T, strict=True)}
    rows += [
        {"name": name, "accuracy": packed(share(right[None], systems[EXPLICIT].weights))}
        for name, right in (alone | plain).items()
    ]
    gains = {}
    for name, ours in systems.items():
        controls = {key: one.outcome for key, one in {**constants, **dealt[name]}.items()} | plain
        found = compared(ours, controls)  # the strongest control first
        gains[name] = {
            "remains": found.beaten,
            "controls": [
                {
                    "name": one.name,
                    "accuracy": one.estimate,
                    "gain": [one.difference.estimate, one.difference.low, one.difference.high],
                    "orders": list(spread_over(ours, controls[one.name])),
                    "p_holm": one.p_holm,
                    "beaten": one.beaten,
                }
                for one in found.controls
            ],
        }
    return {"items": len(world.runs), "orders": len(orders), "rows": rows, "gains": gains}


@main.command("page")
def page_command() -> None:
    """Write both sections from the numbers."""
    figures = read_figures(FIGURES)
    write(PAGE, "live", [*section(figures), ""])
    write(GUIDE, "live", [sentence(figures), ""])


def section(figures: dict[str, Any]) -> list[str]:
    """The section of docs/research/systems.md."""
    told = "; ".join(
        f"{agent} {' and '.join(f'{value:.2f}' for value in values)}" for agent, values in figures["auroc"].items()
    )
    head = ["confidence", "accuracy", "asked others", "delegation precision", "ECE of c, 15 bins of equal mass"]
    head += ["ECE of c, 10 bins of equal width (the paper's)", "calls"]
    rows = [
        [
            row["name"],
            *(cell(row.get(what), "percent") for what in ("accuracy", "asked", "precision")),
            *(cell(row.get(what), "number") for what in ("ece", "ece_equal_width")),
            row.get("calls", "-"),
        ]
        for row in figures["rows"]
    ]
    gains = [
        [
            name,
            control["name"],
            f"{control['accuracy']:.1%}",
            cell({"value": control["gain"], "orders": control["orders"]}, "points"),
            p_cell(control["p_holm"]).text,
        ]
        for name, found in figures["gains"].items()
        for control in found["controls"]
    ]
    return [
        *figures["about"],
        "",
        f"{ABOUT_ORDERS.format(n=figures['orders'])} AUROC of the checkpoints in folds of their own half: {told}. What "
        "a checkpoint or a control knows of an item is learned on the other half of the groups. A shuffled signal is "
        "dealt out again in every order, with the order's seed.",
        "",
        *markdown(head, rows),
        "",
        "What is left beside the controls (paired on the item, p after Holm over the controls of one signal):",
        "",
        *markdown(["confidence", "control", "its accuracy", "gain over it, points", "p"], gains),
        "",
        verdicts(figures),
    ]


def verdicts(figures: dict[str, Any]) -> str:
    """Says what the gains allow to be claimed of each signal."""
    parts = []
    for name, found in figures["gains"].items():
        strongest = found["controls"][0]
        against_it = f"{strongest['name']}, by {points(strongest['gain'])} points"
        if found["remains"]:
            parts.append(f"*{name}* is above every control, above the strongest, {against_it}.")
            continue
        standing = ", ".join(control["name"] for control in found["controls"] if not control["beaten"])
        parts.append(
            f"*{name}* gains nothing over controls that need no signal: it is not shown to be above {standing}; it "
            f"differs from the strongest, {against_it}. {apart(found)}"
        )
    return " ".join(parts)


def apart(found: dict[str, Any]) -> str:
    """Whether the signal distinguishes the questions of an agent, which is all that a question-level signal can do."""
    dealt = next(control for control in found["controls"] if control["name"] == WITHIN)
    start = "It does distinguish questions" if dealt["beaten"] else "Nor is it shown to distinguish questions"
    return f"{start}: over the same numbers, {WITHIN}, it has {points(dealt['gain'])} points."


def sentence(figures: dict[str, Any]) -> str:
    """Returns the guide's sentence on the signals."""
    accuracy = {row["name"]: row["accuracy"] for row in figures["rows"]}
    found = figures["gains"][IMPLICIT]
    strongest = found["controls"][0]
    alone = next(control for control in found["controls"] if control["name"] == BEST)
    start = (
        "In MetaCogAgent over three small models, a quality predictor on log-probabilities in the place of the stated "
        f"confidence takes accuracy on {figures['items']} items from {cell(accuracy[EXPLICIT], 'percent')} to "
        f"{cell(accuracy[IMPLICIT], 'percent')} (mean over {figures['orders']} orders of the items, 95 % interval, "
        "smallest and largest order). "
    )
    where = "[the measurement](research/systems.md#explicit-implicit-both)."
    if found["remains"]:
        return start + (
            f"It is above every control, above the strongest ({strongest['name']}, {strongest['accuracy']:.1%}) by "
            f"{points(strongest['gain'])} points. All controls: {where}"
        )
    return start + (
        f"That is no gain over asking one agent: the {BEST}, one answer a question, has {alone['accuracy']:.1%}, and "
        f"against it the predictor has {points(alone['gain'])} points. {apart(found)} All controls: {where}"
    )


if __name__ == "__main__":
    main()
