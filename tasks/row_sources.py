"""Reads the rows of a task set from a folder of JSON lines, or from a hub data set through `datasets`."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.extras import require
from metaprobe.records.lines import iter_json_lines
from metaprobe.tasks.task import Record, Row, Task

VARIABLE = "METAPROBE_DATA"
"""Environment variable: a folder that holds a folder for each task set."""
HUB = "hf:"


def rows_of(task: Task, data: str | Path | None, split: str) -> list[Row]:
    """The rows of one split, in their order. `data` as in `load_task`."""
    rows = list(_hub_rows(task, str(data), split) if str(data or "").startswith(HUB) else _file_rows(task, data, split))
    if not rows:
        raise RecordError(f"task {task.name}: no rows of split {split!r} in {data or os.environ.get(VARIABLE)}")
    return rows


def _file_rows(task: Task, data: str | Path | None, split: str) -> Iterator[Row]:
    if split not in task.files:
        raise RecordError(f"task {task.name} has no split {split!r}; expected {' or '.join(task.splits)}")
    path = _file(task, data, task.files[split])
    for number, record in iter_json_lines(path):
        if record.get("split", split) == split:
            yield from _rows(task, record, f"{path}:{number}", f"{task.name}-{split}-{number}")


def _file(task: Task, data: str | Path | None, stem: str) -> Path:
    root = Path(data or os.environ.get(VARIABLE) or "")
    tried = [folder / f"{stem}{end}" for folder in (root / task.folder, root) for end in (".jsonl", ".jsonl.gz")]
    file = next((path for path in tried if path.is_file()), None)
    if file is not None and (data or os.environ.get(VARIABLE)):
        return file
    if data:
        problem = f"{data} holds no {stem}.jsonl or {stem}.jsonl.gz"
    elif os.environ.get(VARIABLE):
        problem = f"{VARIABLE} is {root}, and {root / task.folder} holds no {stem}.jsonl or {stem}.jsonl.gz"
    else:
        problem = "no data given"
    hub = f", or data={HUB}{task.hub.split('@')[0]}" if task.hub else f", or data={HUB}OWNER/NAME[:CONFIG]"
    get = f"Get it from {task.source} (licence: {task.licence}), then give" if task.source else "Give"
    raise RecordError(
        f"task {task.name}: {problem}. {get} its folder (--data FOLDER, data=...), or set {VARIABLE} to the folder "
        f"that holds {task.folder}/{hub}"
    )


def _hub_rows(task: Task, data: str, split: str) -> Iterator[Row]:
    known, _, known_split = task.hub.partition("@")
    name, _, config = (data.removeprefix(HUB) or known).partition(":")
    if not name:
        raise RecordError(f"{data!r} names no data set; expected {HUB}OWNER/NAME or {HUB}OWNER/NAME:CONFIG")
    wanted = known_split if known_split and split == task.default_split and name == known.partition(":")[0] else split
    datasets: Any = require("datasets", "hub")
    try:
        table: Iterable[Record] = datasets.load_dataset(name, config or None, split=wanted)
    except (ValueError, OSError, RuntimeError) as error:
        raise RecordError(f"task {task.name}: {data} split {wanted!r} could not be loaded: {error}") from error
    for number, record in enumerate(table):
        yield from _rows(task, record, f"{data} row {number} of {wanted}", f"{task.name}-{wanted}-{number}")


def _rows(task: Task, record: Record, where: str, row_id: str) -> Iterator[Row]:
    try:
        adapted = list(task.adapt(record))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ImportFileError(
            f"{where}: not in a form that {task.name} knows ({error}); it has {sorted(record)}"
        ) from error
    for part, values in enumerate(adapted):
        known = {"id": row_id if len(adapted) == 1 else f"{row_id}-{part}", **values}
        yield Row(known if known["id"] is not None else {**known, "id": row_id}, where)
