"""The main job on a local model, end to end: ask, compare, export, load, and flag answers that nobody has seen."""

from collections.abc import Callable
from pathlib import Path

from metaprobe.api import TrainedRuns
from metaprobe.papers.collecting.collect import CollectReport
from metaprobe.papers.collecting.launch import CollectionWatch, launch
from metaprobe.papers.collecting.plan import CollectionPlan

ASKING_MODULE = "metaprobe.papers.demo_asking"
RUNS, UNSEEN = "runs", "unseen"
"""Folders of the two run stores: questions that are learned from, and questions kept apart from all fitting."""
TASK_OF_STORE = {RUNS: "PLACES_TO_LEARN", UNSEEN: "UNSEEN_PLACES"}
"""Maps the folder of a run store to the task whose runs it holds."""
UNSEEN_SHARE = 0.4
"""Number of questions that are kept apart, per question to learn from."""


def collect_demo(
    folder: Path, *, model: str, limit: int, batch_size: int, watch: CollectionWatch
) -> tuple[CollectReport, ...]:
    """Asks `limit` questions to learn from, some of them twice, and others that are kept apart.

    Every third layer's hidden states are stored.

    Returns a report of each of the two stores.
    """
    reports = []
    for store, task in TASK_OF_STORE.items():
        plan = CollectionPlan(
            system=f"{ASKING_MODULE}:ASKED_AGAIN",
            task=f"{ASKING_MODULE}:{task}",
            llm=(model,),
            limit=limit if store == RUNS else max(1, round(UNSEEN_SHARE * limit)),
            layers="every:3",
            batch_size=batch_size,
        )
        reports.append(launch(plan, folder / store, watch))
    return tuple(reports)


def train_demo(
    folder: Path,
    *,
    collected: tuple[CollectReport, ...],
    folds: int = 5,
    seed: int = 0,
    command: str = "metaprobe demo",
    on_step: Callable[[str], None],
) -> TrainedRuns:
    """Compares the signals, and uses the recommended one on the questions that were kept apart.

    `command`: with the options that were given, for the records of what is made.
    """
    count = sum(len(report.failed) for report in collected)
    failure_note = f"{count} runs failed and are missing here; run the demo again to try them again."
    return TrainedRuns.train(
        [folder / RUNS],
        folder / UNSEEN,
        folder,  # a second run writes everything in this folder anew
        notes=[failure_note] * bool(count),
        folds=folds,
        seed=seed,
        command=command,
        on_step=on_step,
    )
