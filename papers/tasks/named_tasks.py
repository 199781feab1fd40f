"""Returns the items of a task by its name, or of a file."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from metaprobe.api import Item, Plugins, RecordError, is_csv
from metaprobe.papers.tasks.bbq import TASK as BBQ
from metaprobe.papers.tasks.bundled_tasks import ARITHMETIC, METACOG_EVAL, ROWS_SEED
from metaprobe.papers.tasks.graded_essays import ASAP, ESSAYS
from metaprobe.papers.tasks.item_files import read_items, rows_of
from metaprobe.papers.tasks.multiple_choice import MMLU, TRUTHFULQA
from metaprobe.papers.tasks.short_answers import CIAR, FACTUAL_QA, GSM8K, PLACES
from metaprobe.papers.tasks.task import Task
from metaprobe.papers.tasks.true_or_false import CREAK, TRUE_FALSE

DEFAULT_SEED = ROWS_SEED
TASK_PLUGINS = Plugins("metaprobe.tasks", Task, "task")
"""Task sets that installed packages offer."""

TASKS = {
    task.name: task
    for task in (
        GSM8K,
        TRUTHFULQA,
        CIAR,
        CREAK,
        MMLU,
        BBQ,
        ASAP,
        ESSAYS,
        PLACES,
        TRUE_FALSE,
        FACTUAL_QA,
        ARITHMETIC,
        METACOG_EVAL,
    )
}


def load_task(
    name: str,
    *,
    seed: int = DEFAULT_SEED,
    limit: int | None = None,
    data: str | Path | None = None,
    split: str | None = None,
) -> list[Item]:
    """Returns the items of a task set, or of a `.jsonl` or `.csv` file with one item a line (at least id, question and
    gold).

    Raises `RecordError` for an unknown name or split and for missing data (with where to get them), and
    `ImportFileError`, with file and line, for a bad item.

    Args:
        name: one of `task_names`, a path, or `MODULE:NAME` of a `Task` in code of your own.
        seed: seed of tasks whose items are drawn.
        limit: number of items, spread evenly over dimensions and levels, always in the same way.
        data: a folder of JSON lines, or `hf:OWNER/NAME[:CONFIG]` for a hub data set (`hf:` alone for the known one); by
            default the task's folder within METAPROBE_DATA.
        split: the split; by default the task's first.
    """
    if limit is not None and limit < 1:
        raise RecordError(f"limit is {limit}; expected a whole number of 1 or more, or None for every item")
    task = None if name.endswith((".jsonl", ".jsonl.gz")) or is_csv(Path(name)) else _find_task(name)
    if task is not None and task.folder:
        split = split or task.default_split
        items = task.made(rows_of(task, data, split), seed, split)
    elif data is not None or split is not None:
        raise RecordError(f"{name} has no splits and needs no data: leave out data={data!r} and split={split!r}")
    else:
        items = read_items(Path(name)) if task is None else task.made((), seed)
    return items if limit is None else _one_per_cell_first(items, limit)


def task_names() -> tuple[str, ...]:
    """Returns the names that `load_task` takes: those of the package, then those of installed packages."""
    return tuple(dict.fromkeys((*TASKS, *TASK_PLUGINS.names())))


def _find_task(name: str) -> Task:
    task = TASKS.get(name) or TASK_PLUGINS.load(name)
    if task is None:
        raise RecordError(
            f"no task {name!r}; expected one of {', '.join(task_names())}, a .jsonl or .csv file of items, MODULE:NAME "
            f"of a task of your own, or an entry point in {TASK_PLUGINS.group}"
        )
    if TASKS.get(task.name, task) is not task:
        raise RecordError(f"task {name!r} calls itself {task.name!r}, as one of the package: give it another name")
    return task


def _one_per_cell_first(items: Sequence[Item], limit: int) -> list[Item]:
    """Returns the first item of each cell of dimension x level, then the second of each, and so on, `limit` in all."""
    cells: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        cells.setdefault((item.dimension, item.level), []).append(item)
    rounds = itertools.zip_longest(*cells.values())
    return [item for items_of_round in rounds for item in items_of_round if item is not None][:limit]
