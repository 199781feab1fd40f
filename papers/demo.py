"""The main job on a local model, end to end: collect, train, export, compare, report."""

from dataclasses import dataclass
from pathlib import Path

from metaprobe.checkpoints import Checkpoint
from metaprobe.eval.results import Comparison
from metaprobe.papers.collecting.collect import CollectReport
from metaprobe.papers.collecting.launch import CollectionWatch, launch
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.records.errors import RecordError
from metaprobe.training.evidence import load_runs
from metaprobe.training.methods import AFTER, BEFORE
from metaprobe.training.options import OnStep, ReplaceOptions, RouterOptions
from metaprobe.training.recipes.comparison import write_comparison
from metaprobe.training.recipes.hidden import write_hidden
from metaprobe.training.recipes.outcomes_of_runs import outcomes_of_variants
from metaprobe.training.recipes.panel import train_router
from metaprobe.training.recipes.quality import write_quality
from metaprobe.training.study import study

SYSTEM = "self-report"
TASK = "metacog-eval"


@dataclass(frozen=True, slots=True, eq=False)
class Demo:
    """Results of the demo."""

    checkpoints: tuple[Checkpoint, ...]
    comparison: Comparison
    report: Path


def collect_demo(folder: Path, *, model: str, limit: int, batch_size: int, watch: CollectionWatch) -> CollectReport:
    """`limit` items of MetaCog-Eval, directly and step by step, with every third layer's hidden states."""
    plan = CollectionPlan(system=SYSTEM, task=TASK, llm=(model,), limit=limit, layers="every:3", batch_size=batch_size)
    return launch(plan, folder / "runs", watch)


def train_demo(
    folder: Path,
    *,
    collected: CollectReport,
    folds: int = 5,
    seed: int = 0,
    command: str = "metaprobe demo",
    on_step: OnStep,
) -> Demo:
    """Checkpoints and the report, from the runs that `collect_demo` stored.

    `command`: with the options that were given, for the records of what is made.
    """
    stores = [folder / "runs"]
    answers = study(stores, folds=folds, seed=seed, on_step=on_step)
    with ReplaceOptions(replace=True).replacing():  # the folder is the demo's own, and a second run makes all again
        at = folder / "checkpoints"
        on_step("audit and export: quality")
        quality = write_quality(at / "quality", {"correct": answers}, command=command)
        on_step("audit and export: difficulty")
        difficulty = write_hidden(at / "difficulty", answers, when="before", target="correct", command=command)
        on_step("audit and export: confidence")
        confidence = write_hidden(at / "confidence", answers, when="after", target="correct", command=command)
        checkpoints, notes = [quality, difficulty, confidence], list[str]()
        on_step("audit and export: panel")
        try:
            outcomes = outcomes_of_variants(load_runs(stores))
            checkpoints.append(train_router(outcomes, RouterOptions(out=at / "panel", seed=seed, command=command)))
        except RecordError as error:  # with --limit there may be too few items; the rest is worth having
            notes.append(f"No panel of direct and step-by-step answers was trained: {error}")
        if collected.failed:
            notes.append(
                f"{len(collected.failed)} runs failed and are missing here; run the demo again to try them again."
            )
        on_step("compare and report")
        comparison, report = write_comparison(
            folder / "report",
            answers,
            notes=notes,
            probes={BEFORE: difficulty, AFTER: confidence},
            command=command,
        )
    return Demo(tuple(checkpoints), comparison, report)
