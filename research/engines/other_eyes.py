"""Answers of one model judged by another's log-probabilities: AUROC beside that by the answering model's own.

    python -m research.engines.other_eyes measure --models MODELS   # MODELS/NAME/model.gguf; into docs/measured
    python -m research.engines.other_eyes write                     # the block of docs/tables/engines.md

The number that is compared is the total log-probability over the root of the length, which is free and needs no
training: what another reader's numbers say, not what a training makes of them. Both together are the sum of the two,
each with mean 0 and deviation 1 over the answers of the store; no label is looked at.
"""

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
from research.blocks import ROOT, markdown, packed, read_figures, signed, write, write_figures

MEASURED, PAGE = ROOT / "docs" / "measured" / "other_eyes.json", ROOT / "docs" / "engines.md"
TASKS = ("arithmetic", "places", "creak", "factual-qa")
ANSWERED = {"smollm2-135m": "smollm2-135m", "qwen-coder-0.5b": "qwen-coder-0.5b"}
"""Model -> the beginning of the names of its recorded stores."""
ANSWERS = 300
"""Number of answers taken from each store, spread evenly over it."""
WITHIN = 0.02


def scaled(call: Call) -> float:
    """The total log-probability over the root of the length; NaN for an empty answer."""
    numbers = answer_logprobs(call)
    return float(np.sum(numbers) / np.sqrt(len(numbers))) if numbers is not None and len(numbers) else float("nan")


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
    own = np.array([scaled(call) for _, call, _ in rows])
    theirs = np.array([scaled(one.call) for one in read])
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
    rows = []
    for name, one in found.items():
        answered, task, reader = name.split("|")
        numbers = [
            f"{one['own']:.3f}",
            f"{one['read']:.3f}",
            signed(one["gap"]),
            f"{one['both']:.3f}",
            signed(one["gain"]),
        ]
        rows.append([answered, task, reader, f"{one['answers']}", f"{one['right']:.0%}", *numbers])
    near, surely = (sum(one["gap"][i] >= -WITHIN for one in found.values()) for i in (0, 1))
    more = sum(one["gain"][1] > 0 for one in found.values())
    head = [
        "answered",
        "task",
        "read by",
        "answers",
        "right",
        "AUROC, own",
        "reader's",
        "difference",
        "both",
        "gain over own",
    ]
    said = (
        f"In {near} of {len(found)} cases the reader's AUROC is at most {WITHIN} below the model's own, or above it; "
        f"by the whole interval in {surely}. "
        f"Both numbers together are better than the model's own in {more} of {len(found)} cases, by the whole interval."
    )
    write(PAGE, "other-eyes", [*markdown(head, rows), "", said, ""])


if __name__ == "__main__":
    main()
