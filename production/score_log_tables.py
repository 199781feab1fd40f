"""Tables of the commands on a score log, and how these commands open the log."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metaprobe.terminal import aligned, notes, shown_number

if TYPE_CHECKING:
    from metaprobe.production.monitoring.log import ScoreLog

Line = Mapping[str, Any]


def estimate_table(lines: Sequence[Line]) -> Iterator[str]:
    """A row for each estimate; below them what is assumed, and why an estimate is missing."""
    several = len({(line["checkpoint"], line["part"]) for line in lines}) > 1
    head = ["share", "method", "value", "95 % interval", "labels", "answers", "labels to halve it"]
    rows = [["part", *head] if several else head]
    for line in lines:
        interval = f"{shown_number(line['low'])} to {shown_number(line['high'])}"
        more = "-" if line["next_halving"] is None else f"{line['next_halving']} more"
        own = [line["of"], line["method"], shown_number(line["value"]), interval, line["labels"], line["rows"], more]
        part = " ".join(filter(None, (str(line["checkpoint"])[:12], str(line["part"] or ""))))
        rows.append([str(cell) for cell in ([part, *own] if several else own)])
    yield from aligned(rows)
    yield from notes((f"{line['of']} by {line['method']}", line["reason"]) for line in lines)
    yield from notes((f"{line['method']} assumes", line["assumption"]) for line in lines)


def alarm_table(alarms: Sequence[Line]) -> Iterator[str]:
    """A row for each alarm: what moved, which way, of which version, since when, and the means before and after."""
    rows = [["stream", "moved", "version", "began", "before", "after", "evidence"]]
    for one in alarms:
        moved = " ".join(str(one[key]) for key in ("what", "moved") if one.get(key))
        means = [shown_number(one.get(key)) for key in ("before", "after", "evidence")]
        version, began = str(one.get("checkpoint") or "")[:12], "-"
        if one.get("began") is not None:
            began = datetime.fromtimestamp(float(one["began"]), UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        rows.append([str(one.get("stream", "")), moved, version, began, *means])
    yield from aligned(rows)
    yield from notes((str(one.get("stream", "")), one.get("text")) for one in alarms)


@contextmanager
def opened_log(url: str) -> Iterator["ScoreLog"]:
    """The log, closed afterwards. A file that is not there is refused: labels in a new log would be of no answer."""
    from metaprobe.production.monitoring.log import ScoreLog

    file = Path(url.removeprefix("sqlite:///"))
    if "://" not in str(url).removeprefix("sqlite:///") and not (file.is_file() and file.stat().st_size):
        empty = ": the file is empty" if file.is_file() else ""
        raise click.UsageError(
            f"there is no score log {file}{empty}; expected one that `metaprobe serve --log` has written"
        )
    log = ScoreLog.open(url, entries=False)  # a full disk must not keep anybody from reading
    try:
        yield log
    finally:
        log.close()
