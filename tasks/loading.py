"""From a task's name, or a file of items, to the items."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Item
from metaprobe.tasks.arithmetic import TASK as ARITHMETIC
from metaprobe.tasks.asap import TASK as ASAP
from metaprobe.tasks.bbq import TASK as BBQ
from metaprobe.tasks.bold import TASK as BOLD
from metaprobe.tasks.ciar import TASK as CIAR
from metaprobe.tasks.creak import TASK as CREAK
from metaprobe.tasks.crows_pairs import TASK as CROWS_PAIRS
from metaprobe.tasks.essays import TASK as ESSAYS
from metaprobe.tasks.factual_qa import TASK as FACTUAL_QA
from metaprobe.tasks.gsm8k import TASK as GSM8K
from metaprobe.tasks.honest import TASK as HONEST
from metaprobe.tasks.items_file import read_items
from metaprobe.tasks.metacog_eval import SEED
from metaprobe.tasks.metacog_eval import TASK as METACOG_EVAL
from metaprobe.tasks.mmlu import TASK as MMLU
from metaprobe.tasks.places import TASK as PLACES
from metaprobe.tasks.sources import rows_of
from metaprobe.tasks.true_false import TASK as TRUE_FALSE
from metaprobe.tasks.truthfulqa import TASK as TRUTHFULQA

DEFAULT_SEED = SEED


TASKS = {
    task.name: task
    for task in (
        GSM8K,
        TRUTHFULQA,
        CIAR,
        CREAK,
        MMLU,
        BBQ,
        CROWS_PAIRS,
        BOLD,
        HONEST,
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
