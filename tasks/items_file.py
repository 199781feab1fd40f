"""Items from a file of JSON lines."""

import dataclasses
from pathlib import Path
from typing import Any, get_args

from metaprobe.records.errors import ImportFileError
from metaprobe.records.json_lines import iter_json_lines
from metaprobe.records.types import Check, Item

_LISTS = ("gold", "choices")


def read_items(path: Path) -> list[Item]:
    """Returns the items of a file, one JSON object a line. Raises `ImportFileError` that says where and what."""
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
