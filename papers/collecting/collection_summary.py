"""Summaries of run stores: the numbers of a collection (`summarize_runs`), and a store as text (`inspect`)."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from metaprobe.api import RecordError, Run, RunStore, plain, system_figures
from metaprobe.papers.tasks import TASKS

Summary = dict[str, Any]
SETTING_NAMES = {"task": "task set", "model": "model", "policy": "policy", "signals": "signals"}
"""Maps a setting of a collection to its name in a summary, in which `task` holds the task's own scores."""


def summarize_runs(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> list[Summary]:
    """Returns runs, cost, accuracy by stage and the system's own analyses for each system and variant. Ready for JSON.

    Intervals are 95 % bootstrap intervals over groups: (estimate, low, high). Raises `RecordError` if there are no
    runs.

    Args:
        runs: the runs.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    by_variant: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_variant.setdefault((run.system, run.variant), []).append(run)
    if not by_variant:
        raise RecordError("no runs to summarise: collect some first")
    summaries = []
    for (system, variant), members in sorted(by_variant.items()):
        figures = system_figures(members, resamples=resamples, seed=seed)
        leading_figures = {name: figures.pop(name) for name in ("cost", "accuracy by stage")}
        names = {"system": system, "variant": variant, "runs": len(members)}
        summaries.append({**names, **leading_figures, "task": plain(task_scores(members)), **figures})
    return summaries


def task_scores(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Returns each task set's own metrics of the final answers, and the result of guessing.

    Items that were stored without their texts are left out.
    """
    scores = {}
    for name in dict.fromkeys(run.item.task for run in runs):
        known_runs = [run for run in runs if run.item.task == name and run.item.question]
        task = TASKS.get(name)
        if task is None or not known_runs:
            continue
        items = [run.item for run in known_runs]
        scores[name] = {
            "score": task.score(items, [run.final_answer for run in known_runs]),
            "guessing": task.chance(items),
        }
    return scores


def summarize_stores(folders: Sequence[Path], *, resamples: int = 1000, seed: int = 0) -> list[dict[str, Any]]:
    """Returns the numbers of each system and variant in each store, with what the store was collected with.

    Args:
        folders: the stores.
        resamples: number of bootstrap resamples.
        seed: seed of the bootstrap.
    """
    summaries_of_all = []
    for folder in folders:
        store = RunStore(folder)
        settings = store.settings() or {}
        setting_values = {name: settings[key] for key, name in SETTING_NAMES.items() if key in settings}
        summaries = summarize_runs(store, resamples=resamples, seed=seed)
        summaries_of_all += [{"store": str(folder), **setting_values, **summary} for summary in summaries]
    return summaries_of_all
