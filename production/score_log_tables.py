"""Tables of the commands on a score log, and the function with which these commands open the log."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metaprobe.api import shown_number, text_table

if TYPE_CHECKING:
    from metaprobe.production.monitoring.log import ScoreLog

Line = Mapping[str, Any]


def estimate_table(lines: Sequence[Line]) -> Iterator[str]:
    """Yields a row for each estimate; below them the assumptions, and why an estimate is missing."""
    has_parts = len({(line["checkpoint"], line["part"]) for line in lines}) > 1
    head = ["share", "method", "value", "95 % interval", "labels", "answers", "labels to halve it"]
    rows = [["part", *head] if has_parts else head]
    for line in lines:
        interval = f"{shown_number(line['low'])} to {shown_number(line['high'])}"
        labels_to_halve = "-" if line["next_halving"] is None else f"{line['next_halving']} more"
        cells = [
            line["of"],
            line["method"],
            shown_number(line["value"]),
            interval,
            line["labels"],
            line["rows"],
            labels_to_halve,
        ]
        part = " ".join(filter(None, (str(line["checkpoint"])[:12], str(line["part"] or ""))))
        rows.append([str(cell) for cell in ([part, *cells] if has_parts else cells)])
    reasons = [(f"{line['of']} by {line['method']}", line["reason"]) for line in lines]
    yield from text_table(rows, reasons)
    yield from text_table([], [(f"{line['method']} assumes", line["assumption"]) for line in lines])


def alarm_table(alarms: Sequence[Line]) -> Iterator[str]:
    """Yields a row for each alarm: what moved, its direction, version, start, and the means before and after."""
    rows = [["stream", "moved", "version", "began", "before", "after", "evidence"]]
    for alarm in alarms:
        moved = " ".join(str(alarm[key]) for key in ("what", "moved") if alarm.get(key))
        means = [shown_number(alarm.get(key)) for key in ("before", "after", "evidence")]
        version, began = str(alarm.get("checkpoint") or "")[:12], "-"
        if alarm.get("began") is not None:
            began = datetime.fromtimestamp(float(alarm["began"]), UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        rows.append([str(alarm.get("stream", "")), moved, version, began, *means])
    yield from text_table(rows, ((str(alarm.get("stream", "")), alarm.get("text")) for alarm in alarms))


def show_lines(lines: Iterable[Line], as_json: bool, table: Callable[[Sequence[Line]], Iterable[str]]) -> None:
    """Prints results: each as a line of JSON, or all of them as `table` writes them.

    Args:
        lines: the results.
        as_json: whether to print JSON.
        table: makes the lines of the table.
    """
    if as_json:
        for line in lines:
            click.echo(json.dumps(line))
    elif listed := list(lines):
        click.echo("\n".join(table(listed)))


def promotion_table(promotion: Line) -> Iterator[str]:
    """Yields the decision, the gains with their intervals, the digest to run, and the reasons for a refusal."""
    rows = [["gain of the new version", "value", "95 % interval", "answers"]]
    names = {
        "auroc_gain": "AUROC",
        "brier_gain": "Brier score",
        "gain": "accuracy minus price",
        "log_loss_gain": "log loss",
    }
    for key, name in names.items():
        if gain := promotion.get(key):
            interval = _signed_interval(gain)
            rows.append([name, shown_number(gain["estimate"], sign=True), interval, str(gain.get("n", "-"))])
    yield "promoted" if promotion["promoted"] else "refused"
    yield from text_table(rows)
    yield f"run       {promotion['digest']}"
    if checked := promotion.get("check"):
        status_text = f"{checked['status']} beside the new version's own held-out figures"
        yield from text_table([], [("check", ": ".join(filter(None, [status_text, "; ".join(checked["reasons"])])))])
    reasons = promotion.get("reasons") or [promotion.get("reason")]
    yield from text_table([], (("reason", reason) for reason in reasons))


def _signed_interval(interval: Line) -> str:
    return f"{shown_number(interval.get('low'), sign=True)} to {shown_number(interval.get('high'), sign=True)}"


@contextmanager
def opened_log(url: str) -> Iterator["ScoreLog"]:
    """Yields the log, which is closed afterwards. A missing file is refused: labels in a new log would have
    no answers.
    """
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
