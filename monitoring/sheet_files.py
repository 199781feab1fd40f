"""Sheets of answers to be labelled, as JSON lines: a line an answer, with a place for its label."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from metaprobe.monitoring.sampling import SheetRow
from metaprobe.records.writing import atomic_write

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
