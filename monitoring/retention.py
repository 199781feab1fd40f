"""What leaves the log: old answers, one request that is to be forgotten, log-probabilities that move to a run store."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.monitoring import forgetting, pruning, waiting_labels
from metaprobe.monitoring.contexts import drop_contexts
from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring.log_columns import CURRENT_LABELS
from metaprobe.monitoring.log_rows import MAX_NOTE, SELECT, entry_of, known_requests, text_of
from metaprobe.monitoring.rollup import READ, READ_NAMES, add_rows, drop_empty
from metaprobe.monitoring.tables import Execute, LogError, Tables
from metaprobe.records.extras import require
from metaprobe.records.types import Call, Item, Label, Message, Run, Usage

DAY = 86400.0
CHUNK = 500
"""Answers taken away in one transaction, so that who writes meanwhile waits for little."""
MOST_ANSWERS = 129
"""Answers to one request that are looked for; providers give 128 at most."""
SYSTEM = "logged"
"""The system that runs from a log name."""

_ROWS = f"SELECT s.id, s.request_id, {READ} FROM scores s JOIN contexts c ON c.id = s.context"
_HEAVY = "(s.logprobs IS NOT NULL OR s.question IS NOT NULL OR s.answer IS NOT NULL)"
_MOVED = "UPDATE scores SET logprobs = NULL, question = NULL, answer = NULL WHERE request_id = :request_id"


def prune(tables: Tables, days: float, *, sure: bool = False, now: float | None = None) -> int:
    """Takes away answers older than `days`, with all that is only of them; how many they were. Events stay.

    Raises `LogError` where the clock seems to have jumped or most answers would go, unless a person is `sure`; see
    `monitoring.pruning`.
    """
    if not days > 0:
        raise LogError(f"days {days}; expected more than 0")
    clock = time.time() if now is None else now
    before = clock - days * DAY
    with tables.transaction(alone=True) as run:
        doubt = "" if sure else pruning.implausible(run, before, clock)
    if doubt:
        raise LogError(
            f"nothing was taken away: {doubt}; if that is right, run once: metaprobe log prune --older-than {days:g} "
            "--log LOG --yes"
        )
    total = 0
    while True:
        with tables.transaction(alone=True) as run:  # two that prune at once would subtract the same answers twice
            rows = run(f"{_ROWS} WHERE s.time < :before ORDER BY s.time LIMIT {CHUNK}", {"before": before})
            _take_away(run, rows)
            if len(rows) < CHUNK:
                pruning.remember(run, before, clock)
        total += len(rows)
        if len(rows) < CHUNK:
            break
    with tables.transaction() as run:
        waiting_labels.drop_waiting(run, clock)
    _drop_shared(tables)
    tables.tidy()
    return total


def delete(tables: Tables, request_ids: Sequence[str], *, store: str | Path | None = None) -> list[str]:
    """Takes away all that is known of requests, in `store` too where log-probabilities were moved into one.

    Returns those of which nothing was known. No byte of them is left in a SQLite file, or `LogError` is raised: then
    the rows are gone, and the same call takes away the bytes. Needs the extra `fit` for a store.
    """
    unknown = []
    for request_id in request_ids:
        found = _delete_one(tables, text_of(request_id, MAX_NOTE))
        if store is not None:
            found |= _delete_stored(Path(store), request_id)
        if not found:
            unknown.append(request_id)
    _drop_shared(tables)
    try:
        tables.erase()
    except LogError as error:
        raise LogError(
            "all that is known of these requests was taken away, but its bytes may still be in the file: run the same "
            f"command again when no other process reads the log and the disk has room for a second copy ({error})"
        ) from error
    return unknown


def further_answers(tables: Tables, request_id: str) -> list[str]:
    """Returns the ids of the other answers to a request, as the proxy numbers them, that the log holds."""
    with tables.transaction() as run:
        found = known_requests(run, [f"{request_id}:{place}" for place in range(1, MOST_ANSWERS)])
    return sorted(found, key=lambda name: int(name.rpartition(":")[2]))


def _delete_one(tables: Tables, request_id: str) -> bool:
    asked = "s.request_id = :request_id OR s.shadow_of = :request_id"
    with tables.transaction(alone=True) as run:
        given = {"request_id": request_id}
        rows = run(f"{_ROWS} WHERE {asked}", given)
        said = run("SELECT 1 FROM labels WHERE request_id = :request_id LIMIT 1", given)
        _take_away(run, rows)
        _forget(run, [request_id])
        forgetting.leave_out_of_events(run, [request_id, *(str(row[1]) for row in rows)])
    return bool(rows or said)


def _drop_shared(tables: Tables) -> None:
    """Takes away what no answer has any more: contexts with their tags, and the rules of sheets."""
    forgetting.drop_sheets(tables)
    drop_contexts(tables)


def rotate(tables: Tables, store: str | Path, *, days: float, now: float | None = None) -> int:
    """Moves log-probabilities and texts of answers older than `days` into a run store; how many answers they were of.

    Each becomes a run of the system `logged` whose id is the request's, with the label that counts. Its score stays in
    the log. What a shadow kept of the same answer is not stored a second time. A kill in the middle costs nothing: a
    run that is stored twice is read once. Needs the extra `fit`.
    """
    if not days >= 0:
        raise LogError(f"days {days}; expected 0 or more")
    runs = require("metaprobe.records.store", "fit").RunStore(store)
    before = (time.time() if now is None else now) - days * DAY
    labels = {row[0]: float(row[1]) for row in tables.read(CURRENT_LABELS) if row[1] is not None}
    asked = f"{SELECT} WHERE s.time < :before AND {_HEAVY} ORDER BY s.time LIMIT {CHUNK}"
    total = 0
    while rows := tables.read(asked, {"before": before}):
        entries = [entry_of(row) for row in rows]
        given = [entry for entry in entries if not entry.shadow_of]
        if given:
            runs.append([run_of(entry, labels.get(entry.request_id)) for entry in given])
        with tables.transaction() as run:
            run(_MOVED, [{"request_id": entry.request_id} for entry in entries])
            stored = [entry.request_id for entry in given]
            gone = set(stored) - known_requests(run, stored)
        if gone:  # deleted since they were read: who deleted them has not found them in the store
            runs.rewrite(lambda run, gone=gone: None if run.id in gone else run)
        total += len(given) - len(gone)
    tables.tidy()
    return total


def run_of(entry: Entry, label: float | None) -> Run:
    """The entry as a run of one call. `label`: 1 right, 0 wrong, None where it is not known."""
    asked = (Message("user", entry.question),) if entry.question is not None else ()
    call = Call(
        id=entry.request_id,
        stage="answer",
        model=entry.model,
        messages=asked,
        text=entry.answer or "",
        logprobs=None if entry.logprobs is None else np.asarray(entry.logprobs, dtype=np.float32),
        finish_reason=entry.finish_reason,
        usage=Usage(entry.prompt_tokens or 0, entry.tokens or 0),
        latency_ms=None if entry.latency_s is None else 1e3 * entry.latency_s,
        cost_usd=entry.cost_usd,
    )
    said = () if label is None else (Label(call.id, "correct", label, "feedback"),)
    item = Item(entry.request_id, entry.question or "", group=entry.request_id, task=entry.tags.get("task", ""))
    return Run(entry.request_id, SYSTEM, "", item, (call,), labels=said, final_answer=call.text, outcome=label)


def _take_away(run: Execute, rows: Sequence[Sequence[Any]]) -> None:
    """Takes away rows found by `_ROWS`, and all that is said of their requests."""
    if not rows:
        return
    add_rows(run, [dict(zip(READ_NAMES, row[2:], strict=True)) for row in rows], sign=-1)
    run("DELETE FROM scores WHERE id = :id", [{"id": row[0]} for row in rows])
    _forget(run, [row[1] for row in rows])
    drop_empty(run)


def _forget(run: Execute, request_ids: Sequence[str]) -> None:
    given = [{"request_id": request_id} for request_id in request_ids]
    for table in ("labels", "samples"):
        run(f"DELETE FROM {table} WHERE request_id = :request_id", given)


def _delete_stored(path: Path, request_id: str) -> bool:
    store = require("metaprobe.records.store", "fit").RunStore(path)
    where = store.shards_of_runs().get(request_id)
    if where is None:
        return False
    store.rewrite(lambda run: None if run.id == request_id else run)
    return True
