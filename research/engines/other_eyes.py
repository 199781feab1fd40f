"""Answers of one model judged by another's log-probabilities: AUROC beside that by the answering model's own.

    python -m research.engines.other_eyes measure --models MODELS   # MODELS/NAME/model.gguf; into docs/measured
    python -m research.engines.other_eyes write                     # the block of docs/tables/engines.md

The number that is compared is the total log-probability over the root of the length, which is free and needs no
training: what another reader's numbers say, not what a training makes of them. Both together are the sum of the two,
each with mean 0 and deviation 1 over the answers of the store; no label is looked at.
"""

from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from metaprobe.eval.metrics.bootstrap import cluster_weights, paired_difference
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.llms.local import LocalLLM
from metaprobe.llms.readings import read_answers
from metaprobe.records.response import answer_logprobs
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Run
from research.blocks import ROOT, ahead, columns, packed, read_figures, signed, write, write_figures

MEASURED, PAGE = ROOT / "docs" / "measured" / "other_eyes.json", ROOT / "docs" / "engines.md"
TASKS = ("arithmetic", "places", "creak", "factual-qa")
ANSWERED = {"smollm2-135m": "smollm2-135m", "qwen-coder-0.5b": "qwen-coder-0.5b"}
"""Model -> the beginning of the names of its recorded stores."""
ANSWERS = 300
"""Number of answers taken from each store, spread evenly over it."""
WITHIN = 0.02


def chosen(store: Path, most: int) -> list[tuple[Run, Call, float]]:
    """Labelled answers with their texts, and the labels."""
    found = [
        (run, call, label)
        for run in RunStore(store)
        for call in run.calls
        if call.stage == "answer" and call.text and (label := run.label("correct", call.id)) is not None
    ]
    return [found[i] for i in np.linspace(0, len(found) - 1, min(most, len(found))).astype(int)]


def compare(store: Path, reader: LocalLLM, most: int) -> dict[str, object]:
    """AUROC by own and by the reader's numbers on the same answers, and the paired difference."""
    rows = chosen(store, most)
    read = read_answers(reader, [call for _, call, _ in rows], batch_size=16)
    series = ([answer_logprobs(call) for call in calls] for calls in ([c for _, c, _ in rows], [r.call for r in read]))
    own, theirs = (
        np.array([np.sum(x) / np.sqrt(len(x)) if x is not None and len(x) else np.nan for x in numbers])
        for numbers in series
    )
    usable = np.isfinite(own) & np.isfinite(theirs)
    y = np.array([label for _, _, label in rows])[usable]
    groups = np.array([run.item.group for run, _, _ in rows])[usable]
    own, theirs = own[usable], theirs[usable]
    both = (own - own.mean()) / own.std() + (theirs - theirs.mean()) / theirs.std()
    weights = cluster_weights(groups)
    gap, gain = (paired_difference(auroc, y, scores, own, weights) for scores in (theirs, both))
    return {
        "answers": len(y),
        "right": float(y.mean()),
        "own": float(auroc(y, own)),
        "read": float(auroc(y, theirs)),
        "both": float(auroc(y, both)),
        "gap": packed(gap),
        "gain": packed(gain),
    }


@click.group()
def main() -> None:
    """Other eyes."""


@main.command()
@click.option("--models", type=click.Path(path_type=Path), required=True, help="Folder with qwen-coder-0.5b.")
@click.option("--answers", default=ANSWERS)
def measure(models: Path, answers: int) -> None:
    """Reads, and records the numbers after every store."""
    found = read_figures(MEASURED)
    for reader in ANSWERED:
        llm = None
        for answered in ANSWERED:
            for task in TASKS:
                if answered == reader or f"{answered}|{task}|{reader}" in found:
                    continue
                llm = llm or LocalLLM.load(reader if reader == "smollm2-135m" else str(models / reader / "model.gguf"))
                result = compare(ROOT / "recorded" / f"{ANSWERED[answered]}-{task}", llm, answers)
                found[f"{answered}|{task}|{reader}"] = result
                write_figures(MEASURED, found)
                click.echo(f"{answered} {task} {reader} {result}")


@main.command("write")
def write_page() -> None:
    """Writes the block of docs/tables/engines.md."""
    found = read_figures(MEASURED)
    cells: dict[str, Callable[..., object]] = {
        "answered": lambda name, one: name.split("|")[0],
        "task": lambda name, one: name.split("|")[1],
        "read by": lambda name, one: name.split("|")[2],
        "answers": lambda name, one: one["answers"],
        "right": lambda name, one: f"{one['right']:.0%}",
        "AUROC, own": lambda name, one: f"{one['own']:.3f}",
        "reader's": lambda name, one: f"{one['read']:.3f}",
        "difference": lambda name, one: signed(one["gap"]),
        "both": lambda name, one: f"{one['both']:.3f}",
        "gain over own": lambda name, one: signed(one["gain"]),
    }
    near, surely = (sum(one["gap"][i] >= -WITHIN for one in found.values()) for i in (0, 1))
    more = ahead(one["gain"] for one in found.values())
    said = (
        f"In {near} of {len(found)} cases the reader's AUROC is at most {WITHIN} below the model's own, or above it; "
        f"by the whole interval in {surely}. "
        f"Both numbers together are better than the model's own in {more} of {len(found)} cases, by the whole interval."
    )
    write(PAGE, "other-eyes", [*columns(found.items(), cells), "", said, ""])


if __name__ == "__main__":
    main()
