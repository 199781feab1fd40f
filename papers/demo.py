"""The main job on a local model, end to end: collect, train, export, compare, report."""

from collections.abc import Callable
from pathlib import Path

from metaprobe.api import TrainedRuns
from metaprobe.papers.collecting.collect import CollectReport
from metaprobe.papers.collecting.launch import CollectionWatch, launch
from metaprobe.papers.collecting.plan import CollectionPlan

DEMO_SYSTEM = "self-report"
DEMO_TASK = "metacog-eval"


def collect_demo(folder: Path, *, model: str, limit: int, batch_size: int, watch: CollectionWatch) -> CollectReport:
    """`limit` items of MetaCog-Eval, directly and step by step, with every third layer's hidden states."""
    plan = CollectionPlan(
        system=DEMO_SYSTEM, task=DEMO_TASK, llm=(model,), limit=limit, layers="every:3", batch_size=batch_size
    )
    return launch(plan, folder / "runs", watch)


def train_demo(
    folder: Path,
    *,
    collected: CollectReport,
    folds: int = 5,
    seed: int = 0,
    command: str = "metaprobe demo",
    on_step: Callable[[str], None],
) -> TrainedRuns:
    """Checkpoints and the report, from the runs that `collect_demo` stored.

    `command`: with the options that were given, for the records of what is made.
    """
    failed = f"{len(collected.failed)} runs failed and are missing here; run the demo again to try them again."
    return TrainedRuns.train(
        [folder / "runs"],
        folder,  # the demo's own: a second run makes all again
        notes=[failed] * bool(collected.failed),
        folds=folds,
        seed=seed,
        command=command,
        on_step=on_step,
    )
