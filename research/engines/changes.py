"""Checks a predictor of SmolLM2-135M after real changes of engine and number format; writes docs/tables/adapt.md.

    python -m research.engines.changes measure     # recorded runs alone, no model; into docs/measured
    python -m research.engines.changes write       # the block of docs/tables/adapt.md

The predictor learns from a third of the questions of recorded/breadth, answered by transformers in bfloat16 with the
embedded weights (Q4_1). The other questions are the answers of before; after stand the same ones in recorded/quantised
and recorded/engines (recorded/README.md says how they were recorded).
"""

import hashlib
import tempfile
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.eval.results import plain
from metaprobe.records.store import RunStore
from metaprobe.training.check import Check, check
from metaprobe.training.ladder import SURE
from metaprobe.training.recipes.train_quality import train_quality
from metaprobe.training.training_options import QualityOptions
from research.blocks import ROOT, markdown, older_ladder, read_figures, signed, write, write_figures

RECORDED, MEASURED = ROOT / "recorded", ROOT / "docs" / "measured" / "changes.json"
PAGE = ROOT / "docs" / "adapt.md"
BEFORE = RECORDED / "breadth" / "smollm2-135m"
DIRECT, WORKED = "direct", "worked"
"""Ways of asking: the answer only, and one sentence of working before it."""
CHANGES = {
    "Q4_1 to Q4_0, transformers": (RECORDED / "quantised" / "smollm2-135m-q4_0", DIRECT),
    "bfloat16 to float32, transformers": (RECORDED / "engines" / "float32", DIRECT),
    "transformers to vLLM, both bfloat16": (RECORDED / "engines" / "vllm", DIRECT),
    "transformers in bfloat16 to llama.cpp on Q4_1": (RECORDED / "engines" / "llama-cpp", DIRECT),
    "prompt: the answer only to one sentence of working": (BEFORE, WORKED),
}
"""Change -> where the answers after it are recorded, and how they were asked."""
THIRDS = 3
MARGINS = (0.05, 0.1)


def learned(item: str) -> bool:
    """Returns whether the predictor learns from the item: a third, drawn by a hash of its id."""
    return int(hashlib.sha256(item.encode()).hexdigest(), 16) % THIRDS == 0


def copied(source: Path, target: Path, *, learn: bool, asked: str = DIRECT) -> Path:
    """Writes one part of the answers of a store, as of one task: users of one predictor have one."""
    with RunStore(target).writer(shard_runs=10_000) as writer:
        for run in RunStore(source).runs(hidden=False):
            if run.variant == asked and learned(run.item.id) == learn:
                writer.add(replace(run, item=replace(run.item, task="breadth")))
    return target


def compared(told: Check) -> dict[str, Any]:
    """Returns what the page shows of one check."""
    return {
        "status": told.status,
        "more": told.more,
        "n": told.criteria[0].after.n,
        "groups": told.criteria[0].after.groups,
        "figures": {one.name: plain(asdict(one)) for one in told.criteria},
    }


@click.group()
def main() -> None:
    """Measure, or write the page."""


@main.command()
def measure() -> None:
    """Checks every change that was recorded."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        trained = train_quality(
            [copied(BEFORE, base / "learn", learn=True)], QualityOptions(out=base / "c", command="research")
        )
        before = copied(BEFORE, base / "before", learn=False)
        kept: dict[str, Any] = {"learned": trained.manifest.training.n if trained.manifest.training else 0}
        kept |= {"sure": SURE, "changes": {}}
        for name, (source, asked) in CHANGES.items():
            if not source.is_dir():
                click.echo(f"{name}: not recorded")
                continue
            after = copied(source, base / name.replace("/", "-"), learn=False, asked=asked)
            first, then = ({run.item.id: run for run in RunStore(one).runs(hidden=False)} for one in (before, after))
            pairs = [(one, first[item]) for item, one in then.items()]
            kept["changes"][name] = {
                "same_text": float(np.mean([one.calls[0].text == other.calls[0].text for one, other in pairs])),
                "paired": {f"{m:g}": compared(check(base / "c", [after], before=[before], margin=m)) for m in MARGINS},
                "stored": compared(check(base / "c", [after])),
            }
            click.echo(f"{name}: {kept['changes'][name]['paired']['0.05']['status']}")
        kept["none"] = compared(check(base / "c", [before]))
    write_figures(MEASURED, kept)


@main.command("write")
def write_page() -> None:
    """Writes the block of the page."""
    kept = read_figures(MEASURED)

    def change(figures: dict[str, Any], name: str) -> str:
        return signed([figures[name]["change"][key] for key in ("estimate", "low", "high")])

    rows = []
    for name, one in kept["changes"].items():
        paired = one["paired"]["0.05"]
        more = f" (about {paired['more']:,} more)" if paired["more"] and paired["status"] == "INCONCLUSIVE" else ""
        figures = [change(paired["figures"], key) for key in ("order", "share flagged", "risk", "level")]
        status = [paired["status"] + more, one["paired"]["0.1"]["status"], one["stored"]["status"]]
        rows.append([name, f"{paired['n']:,}", f"{one['same_text']:.0%}", *figures, *status])
    head = ["change", "answers", "same text", "order", "share flagged", "risk", "level", "with --before"]
    head += ["margin 0.1", "stored figures"]
    lines = [
        f"Really changed: a predictor of SmolLM2-135M that learned from {kept['learned']} answers to questions of 57 "
        "kinds, checked on answers to other questions. Each figure is its change with a 95 % interval.",
        "",
        *markdown(head, rows),
        "",
        f"Without any change, the answers of before to {kept['none']['n']:,} questions beside the stored figures of "
        f"{kept['learned']} are {kept['none']['status']}: order {change(kept['none']['figures'], 'order')}.",
    ]
    write(PAGE, "same-questions", [*lines, "", *older_ladder({"these changes": kept})])


if __name__ == "__main__":
    main()
