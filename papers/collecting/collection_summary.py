"""Says what run stores hold: the numbers of a collection (`summarize_runs`), and a store as text (`inspect`)."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from metaprobe.api import RecordError, Run, RunStore, plain, system_figures
from metaprobe.papers.collecting.collect import read_settings
from metaprobe.papers.tasks import TASKS

Summary = dict[str, Any]
SETTING_NAMES = {"task": "task set", "model": "model", "policy": "policy", "signals": "signals"}
"""Setting of a collection -> its name beside the numbers, where `task` stands for the task's own scores."""


def summarize_runs(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> list[Summary]:
    """For each system and variant: runs, cost, accuracy by stage, and the system's own analyses. Ready for JSON.

    Intervals are 95 % bootstrap intervals over groups: (estimate, low, high). Raises `RecordError` for no runs.
    """
    by_variant: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_variant.setdefault((run.system, run.variant), []).append(run)
    if not by_variant:
        raise RecordError("no runs to summarise: collect some first")
    summaries = []
    for (system, variant), members in sorted(by_variant.items()):
        figures = system_figures(members, resamples=resamples, seed=seed)
        before = {name: figures.pop(name) for name in ("cost", "accuracy by stage")}
        named = {"system": system, "variant": variant, "runs": len(members)}
        summaries.append({**named, **before, "task": plain(task_scores(members)), **figures})
    return summaries


def task_scores(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """For each task set: its own metrics of the final answers, beside what guessing reaches.

    None of items that were stored without their texts.
    """
    scores = {}
    for name in dict.fromkeys(run.item.task for run in runs):
        told = [run for run in runs if run.item.task == name and run.item.question]
        task = TASKS.get(name)
        if task is None or not told:
            continue
        items = [run.item for run in told]
        scores[name] = {"score": task.score(items, [run.final_answer for run in told]), "guessing": task.chance(items)}
    return scores


def summarize_stores(folders: Sequence[Path], *, resamples: int = 1000, seed: int = 0) -> list[dict[str, Any]]:
    """For each store and each system and variant in it, its numbers beside what it was collected with."""
    summaries_of_all = []
    for folder in folders:
        settings = read_settings(folder / RunStore.settings_name) or {}
        with_ = {name: settings[key] for key, name in SETTING_NAMES.items() if key in settings}
        summaries = summarize_runs(RunStore(folder), resamples=resamples, seed=seed)
        summaries_of_all += [{"store": str(folder), **with_, **summary} for summary in summaries]
    return summaries_of_all
