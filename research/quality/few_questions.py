"""Counts what the audits say of trainings on few questions, on the recorded samples.

    python -m research.quality.few_questions measure [--only STORE ...] [--draws N]
    python -m research.quality.few_questions page

Each draw takes other questions of a store and other answers to each, and trains on them by `metaprobe train quality`.
"""

import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from metaprobe.checkpoints import Checkpoint
from metaprobe.checkpoints.flagging import AGREEMENT
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.train import train_quality
from research.blocks import ROOT, keep_figures, read_figures, write
from research.panel.measure import SAMPLED

KEPT = ROOT / "docs" / "measured" / "few_questions.json"
GUIDE = ROOT / "docs" / "train.md"
CORRECT = "correct"
SETTINGS = ((100, 3, CORRECT), (300, 1, CORRECT), (100, 2, AGREEMENT))
"""Questions, answers of each, and the target: twice 300 labels, and what `metaprobe teach` asks for."""
DRAWS = 5
"""Draws of a store and setting. Each training takes some seconds."""
REFUSED = "refused"
"""Outcome of a training that the product refuses, because too few answers agree."""
SOUND, INVALID = "sound", "invalid"


@click.group()
def main() -> None:
    """Measure, write the page."""


def setting_name(questions: int, answers: int, target: str) -> str:
    """Returns the name under which the figures of a setting are kept."""
    return f"{target}, {questions} x {answers}"


def few_runs(runs: Sequence[Run], questions: int, answers: int, seed: int) -> list[Run]:
    """Returns so many runs, drawn without replacement, each with so many of its answers.

    Args:
        runs: all runs of a store; each has the answers to one question.
        questions: number of runs.
        answers: number of answers of each.
        seed: seed of the draw.
    """
    rng = np.random.default_rng(seed)
    few = []
    for place in rng.permutation(len(runs))[:questions]:
        run = runs[place]
        calls = [call for call in run.calls if call.logprobs is not None and len(call.logprobs)]
        drawn = [calls[number] for number in rng.permutation(len(calls))[:answers]]
        ids = {call.id for call in drawn}
        labels = tuple(label for label in run.labels if label.call_id in ids)
        few.append(replace(run, calls=tuple(drawn), labels=labels))
    return few


def trained(runs: Sequence[Run], target: str, seed: int) -> Checkpoint | None:
    """Returns the checkpoint that the product trains on these runs; None where it refuses to."""
    with tempfile.TemporaryDirectory() as folder:
        RunStore(Path(folder) / "runs").append(list(runs))
        try:
            return train_quality(Path(folder) / "runs", target=target, out=Path(folder) / "out", seed=seed)
        except RecordError:
            return None


def counts_of(checkpoints: Sequence[Checkpoint | None]) -> dict[str, Any]:
    """Returns how many trainings have each `trust`, and how many failed each audit as invalid."""
    made = [checkpoint for checkpoint in checkpoints if checkpoint is not None]
    audits = [checkpoint.manifest.audits for checkpoint in made]
    failed = Counter(
        name.rpartition(" beats ")[2]
        for found in audits
        for name, audit in found.items()
        if not audit.passed and audit.severity == INVALID
    )
    trust = Counter(checkpoint.trust if checkpoint is not None else REFUSED for checkpoint in checkpoints)
    return {"draws": len(checkpoints), "trust": dict(sorted(trust.items())), "failed": dict(sorted(failed.items()))}


@main.command()
@click.option("--only", multiple=True, help="Store, by its name in the table.")
@click.option("--draws", default=DRAWS)
def measure(only: Sequence[str], draws: int) -> None:
    """Train on draws of each store; half an hour of one core. Keeps the counts of each store as they are known."""
    warnings.simplefilter("ignore")
    for questions, answers, target in SETTINGS:
        for name in only or SAMPLED:
            runs = list(RunStore(ROOT / "recorded" / SAMPLED[name]).runs(hidden=False))
            made = [trained(few_runs(runs, questions, answers, seed), target, seed) for seed in range(draws)]
            keep_figures(KEPT, counts_of(made), setting_name(questions, answers, target), name, sort=False)
            click.echo(f"{questions} x {answers}, {target}: {name}")


@main.command("page")
def page_command() -> None:
    """Write how often trainings on few questions are called invalid into the guide."""
    figures = read_figures(KEPT)
    told = []
    for setting in SETTINGS:
        found = list(figures[setting_name(*setting)].values())
        trust = sum((Counter(one["trust"]) for one in found), Counter[str]())
        failed = sum((Counter(one["failed"]) for one in found), Counter[str]())
        why = ", ".join(f"{name} {count}" for name, count in failed.most_common())
        sound = f", {trust[SOUND]} `sound`" * bool(trust[SOUND])
        told.append(
            f"{WORDS[setting]}: {trust[INVALID]} `invalid`{f' ({why})' * bool(why)}, {trust[REFUSED]} refused{sound}"
        )
    stores = figures[setting_name(*SETTINGS[0])].values()
    lines = [
        f"[Audits](#what-the-audits-say) of {sum(one['draws'] for one in stores)} trainings each, on {len(stores)} "
        "stores of samples; the others are `weak`:",
        "",
        *(f"- {line}" for line in told),
    ]
    write(GUIDE, "questions", lines)


WORDS = {
    SETTINGS[0]: "300 labels of 100 questions",
    SETTINGS[1]: "300 labels of 300 questions",
    SETTINGS[2]: "100 questions asked twice, [without labels](no-labels.md)",
}
"""Settings in the words of the guide."""


if __name__ == "__main__":
    main()
