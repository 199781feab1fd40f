"""Sheets of answers to be labelled, as JSON lines: a line an answer, with a place for its label."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from metaprobe.monitoring.sampling import SheetRow
from metaprobe.records.atomic import atomic_write
from metaprobe.records.errors import ImportFileError
from metaprobe.records.json_lines import iter_json_lines

ANSWERED = "answered"
"""When the answer was given, in seconds since 1970."""


def write_sheet(path: str | Path, rows: Iterable[SheetRow]) -> None:
    """Writes the sheet, whole or not at all. Whoever labels puts 1, 0 or "unsure" into `label`."""
    with atomic_write(Path(path)) as file:
        for row in rows:
            held = asdict(row)
            # Not `time`: that would be the label's, and of two labels of an answer the later one counts.
            line = {"request_id": held.pop("request_id"), ANSWERED: held.pop("time"), **held}
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def read_sheet(path: str | Path) -> list[SheetRow]:
    """The answers of a sheet. Raises `ImportFileError` for a line that is none."""
    rows = []
    for number, held in iter_json_lines(path):
        if not isinstance(held.get("request_id"), str):
            raise ImportFileError(f"{path}:{number}: no request_id; expected a line that `metaprobe sample` wrote")
        rows.append(
            SheetRow(
                held["request_id"],
                float(held.get(ANSWERED) or 0.0),
                str(held.get("model") or ""),
                held.get("tags") or {},
                held.get("question"),
                held.get("answer"),
            )
        )
    return rows
