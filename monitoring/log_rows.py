"""An entry as a row of the log's table, and back: whatever is in it can be stored."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metaprobe.monitoring import contexts
from metaprobe.monitoring.entry import Entry

if TYPE_CHECKING:
    from metaprobe.monitoring.tables import Execute

MAX_TEXT = 200_000
"""Characters of a question or an answer that are kept."""
MAX_NOTE = 2_000
"""Of a reason, an id or a tag."""

MAX_TIME = 1e11
"""Seconds since 1970: milliseconds are no times."""

COLUMNS = (
    "request_id time context score flagged critical heads reason prompt_tokens tokens tokens_saved cost_usd "
    "latency_s shadow_of callers_id key_name logprobs question answer"
).split()
_INTO = f"INSERT INTO scores ({', '.join(COLUMNS)}) VALUES "
_ONCE = " ON CONFLICT (request_id) DO NOTHING"
_INSERT = f"{_INTO}({', '.join(':' + name for name in COLUMNS)}){_ONCE}"
_BLOCKS = (100, 10, 1)
"""Rows of one statement: few sizes, so that few statements are prepared."""
CONTEXT = contexts.CONTEXT
"""What is written once for many entries."""
SELECT = (
    f"SELECT {', '.join('s.' + name for name in COLUMNS if name != 'context')}, "
    f"{', '.join('c.' + name for name in CONTEXT)} FROM scores s JOIN contexts c ON c.id = s.context"
)
SELECTED = [*(name for name in COLUMNS if name != "context"), *CONTEXT]


def row_of(entry: Entry) -> dict[str, Any]:
    """The entry's values under the names of the table's columns, with those of `CONTEXT` beside them.

    Raises `ValueError` for a time that is none.
    """
    if not 0 <= entry.time < MAX_TIME:
        raise ValueError(f"time {entry.time}; expected seconds since 1970")
    tags = {text_of(name, MAX_NOTE): text_of(value, MAX_NOTE) for name, value in entry.tags.items()}
    return {
        "request_id": text_of(entry.request_id, MAX_NOTE),
        "time": float(entry.time),
        "score": _number(entry.score),
        "flagged": _bit(entry.flagged),
        "critical": _number(entry.critical),
        "heads": json.dumps({name: _number(value) for name, value in entry.heads.items()}) if entry.heads else None,
        "reason": text_of(entry.reason, MAX_NOTE) or None,
        "prompt_tokens": _count(entry.prompt_tokens),
        "tokens": _count(entry.tokens),
        "tokens_saved": _count(entry.tokens_saved),
        "cost_usd": _number(entry.cost_usd),
        "latency_s": _number(entry.latency_s),
        "shadow_of": text_of(entry.shadow_of, MAX_NOTE) or None,
        "callers_id": text_of(entry.callers_id, MAX_NOTE) or None,
        "key_name": text_of(entry.key_name, MAX_NOTE),
        "logprobs": None if entry.logprobs is None else np.asarray(entry.logprobs, dtype="<f4").tobytes(),
        "question": None if entry.question is None else text_of(entry.question, MAX_TEXT),
        "answer": None if entry.answer is None else text_of(entry.answer, MAX_TEXT),
        "model": text_of(entry.model, MAX_NOTE),
        "checkpoint": text_of(entry.checkpoint, MAX_NOTE),
        "task": tags.get("task", ""),
        "finish_reason": text_of(entry.finish_reason, MAX_NOTE),
        "action": text_of(entry.action, MAX_NOTE),
        "tags": json.dumps(tags, sort_keys=True, ensure_ascii=False) if tags else "{}",
    }


def entry_of(row: Sequence[Any]) -> Entry:
    """The entry that a row found by `SELECT` holds."""
    known: Mapping[str, Any] = dict(zip(SELECTED, row, strict=True))
    given = {name: known[name] for name in SELECTED if name != "task"}
    logprobs = known["logprobs"]
    return Entry(
        **given
        | {
            "flagged": None if known["flagged"] is None else bool(known["flagged"]),
            "heads": json.loads(known["heads"] or "{}"),
            "reason": known["reason"] or "",
            "shadow_of": known["shadow_of"] or "",
            "callers_id": known["callers_id"] or "",
            "tags": json.loads(known["tags"]),
            "logprobs": None if logprobs is None else np.frombuffer(logprobs, dtype="<f4").tolist(),
        }
    )


def text_of(value: object, most: int) -> str:
    """Returns what the log holds for a text: its first `most` characters, and nothing that a database refuses.

    Half of a surrogate pair and the character 0 can be in JSON, and not in a database: they are written out.
    """
    text = str(value)[:most]
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _number(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def _count(value: int | None) -> int | None:
    """What an upstream says of its tokens may be anything; a database holds 64 bits."""
    return None if value is None or not 0 <= value < 1 << 53 else int(value)


def _bit(value: bool | None) -> int | None:
    return None if value is None else int(value)


def insert_rows(run: "Execute", rows: Sequence[dict[str, Any]], *, alone: bool) -> list[dict[str, Any]]:
    """Stores rows of different requests, with their contexts, and returns those that were stored.

    A request that the log holds already is left out.
    `alone`: as `Tables.alone`. Where others write at the same time, the database itself says which rows are new.
    """
    contexts.link_contexts(run, rows, alone=alone)
    if alone:
        known = known_requests(run, [row["request_id"] for row in rows])
        new = [row for row in rows if row["request_id"] not in known]
        if new:
            run(_INSERT, new)
        return new
    stored: set[str] = set()
    waiting = sorted(rows, key=lambda row: str(row["request_id"]))  # two never wait for each other in a circle
    while waiting:
        size = next(size for size in _BLOCKS if size <= len(waiting))
        block, waiting = waiting[:size], waiting[size:]
        places = (", ".join(f":{name}_{i}" for name in COLUMNS) for i in range(size))
        asked = f"{_INTO}{', '.join(f'({one})' for one in places)}{_ONCE} RETURNING request_id"
        found = run(asked, {f"{name}_{i}": row[name] for i, row in enumerate(block) for name in COLUMNS})
        stored |= {str(row[0]) for row in found}
    return [row for row in rows if row["request_id"] in stored]


def known_requests(run: "Execute", request_ids: Sequence[str]) -> set[str]:
    """Returns which of these requests are in the log."""
    names = {f"r{i}": request_id for i, request_id in enumerate(dict.fromkeys(request_ids))}
    if not names:
        return set()
    asked = ", ".join(f":{name}" for name in names)
    return {str(row[0]) for row in run(f"SELECT request_id FROM scores WHERE request_id IN ({asked})", names)}
