"""Items from a file of JSON lines, or of CSV."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metaprobe.records.errors import ImportFileError
from metaprobe.records.lines import is_csv, iter_csv, iter_json_lines
from metaprobe.records.types import Item
from metaprobe.tasks.task import check_item

_LISTS = ("gold", "choices")
_TEXTS = ("answer", "gold")
"""Columns of accepted answers."""


def read_items(path: Path) -> list[Item]:
    """Returns the items of a file: a JSON object a line, or of CSV a row. Raises `ImportFileError`: where and what.

    `answer` is taken for `gold`. In CSV a list (`gold`, `choices`) is a JSON list, `fields` is JSON, and a file without
    a column `id` names its items after itself and the row, as `sums-1`.
    """
    items: list[Item] = []
    seen: dict[str, int] = {}
    task = path.name.split(".")[0]
    for number, record in _rows(path, task) if is_csv(path) else iter_json_lines(path):
        try:
            item = _item(_with_gold(record), task=task)
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


def _rows(path: Path, task: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, the row as a line of JSON would say it)."""
    for count, (number, row) in enumerate(iter_csv(path), 1):
        record: dict[str, Any] = {name: cell for name, cell in row.items() if cell.strip()}
        if "id" not in row:
            record["id"] = f"{task}-{count}"
        for name in (*_TEXTS, "choices", "fields"):
            if name in record:
                record[name] = _cell(path, number, name, record[name])
        yield number, record


def _cell(path: Path, number: int, name: str, cell: str) -> Any:
    """Returns what the cell holds: JSON, or for an answer also a text, which may begin as JSON does."""
    try:
        held = json.loads(cell)
    except (ValueError, RecursionError):
        held = None
    if name in _TEXTS:
        return held if isinstance(held, list) and all(isinstance(part, str) for part in held) else cell
    if not isinstance(held, list if name == "choices" else dict):
        what = '["Paris", "Rome"]' if name == "choices" else '{"name": "text"}'
        raise ImportFileError(f"{path}:{number}: {name} is {cell[:60]!r}; expected JSON, such as {what}")
    return held


def _with_gold(record: dict[str, Any]) -> dict[str, Any]:
    """The record with `answer` as `gold`. Raises `ImportFileError` where it has both and they differ."""
    if "answer" not in record:
        return record
    rest = {name: value for name, value in record.items() if name != "answer"}
    if rest.setdefault("gold", record["answer"]) not in (record["answer"], [record["answer"]]):
        raise ImportFileError(
            f"answer is {record['answer']!r} and gold {rest['gold']!r}; expected one of the two, or the same in both"
        )
    return rest


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
    item = Item(**{**fields, "group": fields.get("group") or fields["id"]})
    check_item(item, f"item {item.id!r}")
    return item
