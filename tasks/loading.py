"""From a task's name, or a file of items, to the items."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Item
from metaprobe.tasks import (
    arithmetic,
    asap,
    bbq,
    bold,
    ciar,
    creak,
    crows_pairs,
    essays,
    factual_qa,
    gsm8k,
    honest,
    metacog_eval,
    mmlu,
    places,
    true_false,
    truthfulqa,
)
from metaprobe.tasks.items_file import read_items
from metaprobe.tasks.sources import rows_of

DEFAULT_SEED = metacog_eval.SEED


TASKS = {
    task.name: task
    for task in (
        gsm8k.TASK,
        truthfulqa.TASK,
        ciar.TASK,
        creak.TASK,
        mmlu.TASK,
        bbq.TASK,
        crows_pairs.TASK,
        bold.TASK,
        honest.TASK,
        asap.TASK,
        essays.TASK,
        places.TASK,
        true_false.TASK,
        factual_qa.TASK,
        arithmetic.TASK,
        metacog_eval.TASK,
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
    """The items of a task set, or of a `.jsonl` file with one item a line (at least id, question and gold).

    `data`: a folder of JSON lines, or `hf:OWNER/NAME[:CONFIG]` for a hub data set (`hf:` alone for the known one); by
    default the task's folder within METAPROBE_DATA. `split`: by default the task's first. `limit` takes an even spread
    over dimensions and levels, always the same one. Raises `RecordError` for an unknown name or split and for data that
    are not there (with where to get them), `ImportFileError`, with file and line, for a bad item.
    """
    if limit is not None and limit < 1:
        raise RecordError(f"limit is {limit}; expected a whole number of 1 or more, or None for every item")
    if name in TASKS and TASKS[name].folder:
        task, split = TASKS[name], split or TASKS[name].default_split
        items = task.made(rows_of(task, data, split), seed, split)
    elif name in TASKS or name.endswith((".jsonl", ".jsonl.gz")):
        if data is not None or split is not None:
            raise RecordError(f"{name} has no splits and needs no data: leave out data={data!r} and split={split!r}")
        items = list(TASKS[name].items((), seed)) if name in TASKS else read_items(Path(name))
    else:
        raise RecordError(f"no task {name!r}; expected one of {', '.join(TASKS)}, or a .jsonl file of items")
    return items if limit is None else _spread(items, limit)


def _spread(items: Sequence[Item], limit: int) -> list[Item]:
    """The first of each cell of dimension x level, then the second of each, and so on, `limit` in all."""
    cells: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        cells.setdefault((item.dimension, item.level), []).append(item)
    rounds = itertools.zip_longest(*cells.values())
    return [item for one in rounds for item in one if item is not None][:limit]
