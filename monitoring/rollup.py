"""Sums by the hour and counts by the day, kept with every row that is written or taken away.

What a page shows over ten million answers is read from here. Sums change in the transaction that changes the rows, and
by the rows that it really stored or deleted.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from metaprobe.monitoring.log_schema import SUMS

if TYPE_CHECKING:
    from metaprobe.monitoring.tables import Execute

HOUR, DAY = 3600, 86400
BINS = 100
NO_SCORE = -1
"""The bin of answers without a score."""

READ = (
    "s.time, c.model, c.checkpoint, c.task, s.shadow_of, s.score, s.flagged, c.action, c.finish_reason, "
    "s.tokens, s.tokens_saved, s.cost_usd"
)
"""Columns that a row must have, of `scores s JOIN contexts c`."""
READ_NAMES = [name.partition(".")[2] for name in READ.split(", ")]

_KEY = ("model", "checkpoint", "task", "shadow")
_HOUR_KEY, _BIN_KEY = ("hour", *_KEY), ("day", *_KEY, "bin")
_BIN_SUMS = ("answers", "score_sum", "flagged")


def _upsert(table: str, key: tuple[str, ...], sums: Iterable[str]) -> str:
    names = [*key, *sums]
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in sums)
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(':' + name for name in names)}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added}"
    )


_ADD_HOURS, _ADD_BINS = _upsert("hours", _HOUR_KEY, SUMS), _upsert("bins", _BIN_KEY, _BIN_SUMS)


def add_rows(run: "Execute", rows: Iterable[Mapping[str, Any]], *, sign: int = 1) -> None:
    """Adds rows, with the names of `READ`, to the sums; with `sign=-1` takes them out again."""
    hours: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0] * len(SUMS))
    bins: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0] * len(_BIN_SUMS))
    for row in rows:
        key = (row["model"], row["checkpoint"], row["task"], int(bool(row["shadow_of"])))
        flagged, gated = row["flagged"] or 0, bool(row["action"])
        score = None if gated else row["score"]  # the gate's own score is of another scale
        found = (
            1,
            score is not None,
            score or 0.0,
            0.0 if score is None else score * (1 - score),
            flagged,
            score is None and not gated,
            row["action"] == "stop",
            row["action"] == "escalate",
            row["finish_reason"] == "length",
            row["tokens"] or 0,
            row["tokens_saved"] or 0,
            row["cost_usd"] or 0.0,
            row["cost_usd"] is not None,
            row["tokens_saved"] is not None,
        )
        sums = hours[int(row["time"] // HOUR), *key]
        for i, value in enumerate(found):
            sums[i] += value
        counts = bins[int(row["time"] // DAY), *key, bin_of(score)]
        counts[0] += 1
        counts[1] += score or 0.0
        counts[2] += flagged
    # In one order, so that two processes that write at once never wait for each other in a circle.
    for statement, key_names, sum_names, added in (
        (_ADD_HOURS, _HOUR_KEY, SUMS, hours),
        (_ADD_BINS, _BIN_KEY, _BIN_SUMS, bins),
    ):
        given = [
            {**dict(zip(key_names, at, strict=True)), **{n: sign * v for n, v in zip(sum_names, values, strict=True)}}
            for at, values in sorted(added.items())
        ]
        if given:
            run(statement, given)


def drop_empty(run: "Execute") -> None:
    """Takes away sums over no answers."""
    run("DELETE FROM hours WHERE answers <= 0")
    run("DELETE FROM bins WHERE answers <= 0")


def bin_of(score: float | None) -> int:
    """Which hundredth a score lies in, from 0; `NO_SCORE` for none."""
    return NO_SCORE if score is None else min(BINS - 1, max(0, int(score * BINS)))
