"""From a task's name, or a file of items, to the items."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from metaprobe.eval.tasks import (
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
    mmlu,
    places,
    true_false,
    truthfulqa,
)
from metaprobe.eval.tasks.metacog_eval import metacog_eval
from metaprobe.eval.tasks.sources import rows_of
from metaprobe.eval.tasks.task import Row, Task
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.importer import iter_json_lines
from metaprobe.records.types import Check, Item

DEFAULT_SEED = 20261121


def _metacog_eval(rows: Sequence[Row], seed: int) -> Iterable[Item]:
    return metacog_eval(seed)


METACOG_EVAL = Task(name="metacog-eval", items=_metacog_eval, source="made here from templates", licence="Apache-2.0")

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
        METACOG_EVAL,
    )
}

_LISTS = ("gold", "choices")


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
        items = list(TASKS[name].items((), seed)) if name in TASKS else _read_items(Path(name))
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


def _read_items(path: Path) -> list[Item]:
    items: list[Item] = []
    seen: dict[str, int] = {}
    for number, record in iter_json_lines(path):
        try:
            item = _item(record, task=path.name.split(".")[0])
            if item.id in seen:
                raise ImportFileError(
                    f"id {item.id!r} was already used on line {seen[item.id]}; every item needs its own"
                )
        except ImportFileError as error:
            raise ImportFileError(f"{path}:{number}: {error}") from error
        seen[item.id] = number
        items.append(item)
    if not items:
        raise ImportFileError(f"{path} holds no items; expected one JSON object a line with id, question and gold")
    return items


def _item(record: dict[str, Any], *, task: str) -> Item:
    names = {field.name for field in dataclasses.fields(Item)}
    if unknown := sorted(record.keys() - names):
        raise ImportFileError(f"unknown field {unknown[0]!r}; an item has {', '.join(sorted(names))}")
    fields: dict[str, Any] = {"task": task, "check": "exact", **record}
    for name in _LISTS:
        value = fields.get(name, ())
        fields[name] = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
        if not isinstance(fields[name], tuple) or not all(isinstance(part, str) for part in fields[name]):
            raise ImportFileError(f"{name} is {value!r}; expected a string or a list of strings")
    slots = fields.get("fields", {})
    if not isinstance(slots, dict) or not all(isinstance(text, str) for text in slots.values()):
        raise ImportFileError(f"fields is {slots!r}; expected an object of strings")
    for name in names - {*_LISTS, "fields"}:
        if not isinstance(fields.get(name, ""), str):
            raise ImportFileError(f"{name} is {fields[name]!r}; expected a string")
    if not fields.get("id") or not fields.get("question"):
        raise ImportFileError(f"id and question are needed; the fields are {sorted(record)}")
    if fields["check"] not in get_args(Check):
        raise ImportFileError(f"check is {fields['check']!r}; expected one of {', '.join(get_args(Check))}")
    if fields["check"] != "none" and not fields["gold"]:
        raise ImportFileError(f"check is {fields['check']!r} but gold is empty; give the accepted answers")
    return Item(**{**fields, "group": fields.get("group") or fields["id"]})
