"""Reads items and rows: from a file of items in JSON lines or CSV, a folder of JSON lines, or a hub data set.

A hub data set is read through `datasets`.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from metaprobe.api import ImportFileError, Item, RecordError, is_csv, iter_csv, iter_json_lines, require
from metaprobe.papers.tasks.task import Record, Row, Task, check_item

_LIST_FIELDS = ("gold", "choices")
"""Fields of an item that hold lists of texts."""
_ANSWER_COLUMNS = ("answer", "gold")
"""Columns of a CSV file that hold accepted answers."""


def read_items(path: Path) -> list[Item]:
    """Returns the items of a file: a JSON object a line, or a row of CSV. Raises `ImportFileError` with place and
    reason.

    `answer` is read as `gold`. In CSV a list (`gold`, `choices`) is a JSON list, `fields` is JSON, and a file without a
    column `id` names its items after the file and the row, as `sums-1`.
    """
    items: list[Item] = []
    line_of_id: dict[str, int] = {}
    task = path.name.split(".")[0]
    for number, record in _csv_rows(path, task) if is_csv(path) else iter_json_lines(path):
        try:
            item = _read_item(record, task=task)
            if item.id in line_of_id:
                raise ImportFileError(
                    f"id {item.id!r} was already used on line {line_of_id[item.id]}; every item needs its own"
                )
        except ImportFileError as error:
            raise ImportFileError(f"{path}:{number}: {error}") from error
        line_of_id[item.id] = number
        items.append(item)
    if not items:
        raise ImportFileError(f"{path} holds no items; expected one JSON object a line with id, question and gold")
    return items


def _csv_rows(path: Path, task: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line number, and the row as a line of JSON would have it."""
    for count, (number, row) in enumerate(iter_csv(path), 1):
        record: dict[str, Any] = {name: cell for name, cell in row.items() if cell.strip()}
        if "id" not in row:
            record["id"] = f"{task}-{count}"
        for name in (*_ANSWER_COLUMNS, "choices", "fields"):
            if name in record:
                record[name] = _cell(path, number, name, record[name])
        yield number, record


def _cell(path: Path, number: int, name: str, cell: str) -> Any:
    """Returns the cell's value: JSON, or for an answer also a plain text, which may look like JSON.

    Args:
        path: the file.
        number: number of the line.
        name: name of the column.
        cell: the cell.
    """
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        value = None
    if name in _ANSWER_COLUMNS:
        return value if isinstance(value, list) and all(isinstance(part, str) for part in value) else cell
    if not isinstance(value, list if name == "choices" else dict):
        example = '["Paris", "Rome"]' if name == "choices" else '{"name": "text"}'
        raise ImportFileError(f"{path}:{number}: {name} is {cell[:60]!r}; expected JSON, such as {example}")
    return value


def _read_item(record: dict[str, Any], *, task: str) -> Item:
    if "answer" in record:  # another name of gold
        answer = record["answer"]
        record = {"gold": answer, **{name: value for name, value in record.items() if name != "answer"}}
        if record["gold"] not in (answer, [answer]):
            raise ImportFileError(
                f"answer is {answer!r} and gold {record['gold']!r}; expected one of the two, or the same in both"
            )
    names = {field.name for field in dataclasses.fields(Item)}
    if unknown_fields := sorted(record.keys() - names):
        raise ImportFileError(f"unknown field {unknown_fields[0]!r}; an item has {', '.join(sorted(names))}")
    fields: dict[str, Any] = {"task": task, "check": "exact", **record}
    for name in _LIST_FIELDS:
        value = fields.get(name, ())
        fields[name] = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
        if not isinstance(fields[name], tuple) or not all(isinstance(part, str) for part in fields[name]):
            raise ImportFileError(f"{name} is {value!r}; expected a string or a list of strings")
    prompt_slots = fields.get("fields", {})
    if not isinstance(prompt_slots, dict) or not all(isinstance(text, str) for text in prompt_slots.values()):
        raise ImportFileError(f"fields is {prompt_slots!r}; expected an object of strings")
    for name in names - {*_LIST_FIELDS, "fields"}:
        if not isinstance(fields.get(name, ""), str):
            raise ImportFileError(f"{name} is {fields[name]!r}; expected a string")
    if not fields.get("id") or not fields.get("question"):
        raise ImportFileError(f"id and question are needed; the fields are {sorted(record)}")
    item = Item(**{**fields, "group": fields.get("group") or fields["id"]})
    check_item(item, f"item {item.id!r}")
    return item


DATA_VARIABLE = "METAPROBE_DATA"
"""Environment variable with a folder that holds a folder for each task set."""
HUB_PREFIX = "hf:"


def rows_of(task: Task, data: str | Path | None, split: str) -> list[Row]:
    """Returns the rows of one split, in their order. `data` as in `load_task`.

    Args:
        task: the task.
        data: the data.
        split: the split.
    """
    rows = list(
        _hub_rows(task, str(data), split) if str(data or "").startswith(HUB_PREFIX) else _file_rows(task, data, split)
    )
    if not rows:
        raise RecordError(f"task {task.name}: no rows of split {split!r} in {data or os.environ.get(DATA_VARIABLE)}")
    return rows


def _file_rows(task: Task, data: str | Path | None, split: str) -> Iterator[Row]:
    if split not in task.files:
        raise RecordError(f"task {task.name} has no split {split!r}; expected {' or '.join(task.splits)}")
    path = _find_file(task, data, task.files[split])
    for number, record in iter_json_lines(path):
        if record.get("split", split) == split:
            yield _adapt_row(task, record, f"{path}:{number}", f"{task.name}-{split}-{number}")


def _find_file(task: Task, data: str | Path | None, stem: str) -> Path:
    root = Path(data or os.environ.get(DATA_VARIABLE) or "")
    tried = [folder / f"{stem}{suffix}" for folder in (root / task.folder, root) for suffix in (".jsonl", ".jsonl.gz")]
    file = next((path for path in tried if path.is_file()), None)
    if file is not None and (data or os.environ.get(DATA_VARIABLE)):
        return file
    if data:
        problem = f"{data} holds no {stem}.jsonl or {stem}.jsonl.gz"
    elif os.environ.get(DATA_VARIABLE):
        problem = f"{DATA_VARIABLE} is {root}, and {root / task.folder} holds no {stem}.jsonl or {stem}.jsonl.gz"
    else:
        problem = "no data given"
    hub = (
        f", or data={HUB_PREFIX}{task.hub.split('@')[0]}" if task.hub else f", or data={HUB_PREFIX}OWNER/NAME[:CONFIG]"
    )
    advice = f"Get it from {task.source} (licence: {task.licence}), then give" if task.source else "Give"
    raise RecordError(
        f"task {task.name}: {problem}. {advice} its folder (--data FOLDER, data=...), or set {DATA_VARIABLE} to the"
        f" folder that holds {task.folder}/{hub}"
    )


def _hub_rows(task: Task, data: str, split: str) -> Iterator[Row]:
    known_name, _, known_split = task.hub.partition("@")
    name, _, config = (data.removeprefix(HUB_PREFIX) or known_name).partition(":")
    if not name:
        raise RecordError(
            f"{data!r} names no data set; expected {HUB_PREFIX}OWNER/NAME or {HUB_PREFIX}OWNER/NAME:CONFIG"
        )
    split_read = (
        known_split if known_split and split == task.default_split and name == known_name.partition(":")[0] else split
    )
    datasets: Any = require("datasets", "hub")
    try:
        table: Iterable[Record] = datasets.load_dataset(name, config or None, split=split_read)
    except (ValueError, OSError, RuntimeError) as error:
        raise RecordError(f"task {task.name}: {data} split {split_read!r} could not be loaded: {error}") from error
    for number, record in enumerate(table):
        yield _adapt_row(task, record, f"{data} row {number} of {split_read}", f"{task.name}-{split_read}-{number}")


def _adapt_row(task: Task, record: Record, where: str, row_id: str) -> Row:
    try:
        values = {"id": row_id, **task.adapt(record)}
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ImportFileError(
            f"{where}: not in a form that {task.name} knows ({error}); it has {sorted(record)}"
        ) from error
    return Row(values if values["id"] is not None else {**values, "id": row_id}, where)
