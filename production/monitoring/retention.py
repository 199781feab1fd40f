"""Deletes from the log: old answers, and requests that must be forgotten.

A clock that jumped ahead makes every answer look old. So two questions are checked before a prune, with data in the
log. Has the clock advanced by more than a week since the last prune, or, before the first prune, since the newest
answer? Would more than half of all answers be deleted, although the limit has moved by more than a week since the last
prune? In either case only a person can decide. A server that stood still for a month looks the same as one whose clock
is a month ahead.
"""

import json
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from metaprobe.production.monitoring.entry import MAX_NOTE, MAX_TIME, loggable_text
from metaprobe.production.monitoring.rows import (
    ROWS_PER_TRANSACTION,
    SCORED_ROWS,
    conditions,
    contexts_of_sheet,
    drop_contexts,
    known_requests,
    subtract_rows,
)
from metaprobe.production.monitoring.tables import (
    Execute,
    LogError,
    Tables,
    agreements,
    events,
    is_one_of,
    labels,
    read_mark,
    sa,
    samples,
    scores,
    set_mark,
    sheets,
)
from metaprobe.production.monitoring.waiting_labels import drop_waiting

DAY = 86400.0
MAX_STEP_S = 7 * DAY
"""Seconds by which clock and limit may move between two prunes. A server prunes every hour, and may rest
over holidays.
"""
MAX_DELETED_SHARE = 0.5
"""Share of all answers that may be deleted if the limit has moved further."""
MAX_REQUEST_ANSWERS = 129
"""Most answers to one request that are searched for; providers give at most 128."""
DELETED_ID = "(deleted)"
"""Replaces the id of a deleted request in events."""
MIN_ID_WITHIN_TEXT = 8
"""Fewest characters of an id that is searched within longer texts: a shorter one, such as 7, may mean something else
there.
"""

_CLOCK, _LIMIT = "pruned_at", "pruned_before"
"""Names of marks: the clock of the last prune, and the time up to which it deleted."""


def delete_older(tables: Tables, days: float, *, sure: bool = False, now: float | None = None) -> int:
    """Deletes answers older than `days`, with all data that belong only to them, and returns how many they were. Events
    stay.

    Raises `LogError` if the clock seems to have jumped, or most answers would be deleted, unless `sure`; see above.

    Args:
        tables: the database.
        days: age in days.
        sure: whether a person has confirmed.
        now: seconds since 1970; None for now.
    """
    if not days > 0:
        raise LogError(f"days {days}; expected more than 0")
    clock = time.time() if now is None else now
    before = clock - days * DAY
    with tables.transaction(alone=True) as run:
        doubt = "" if sure else _implausible(run, before, clock)
    if doubt:
        raise LogError(
            f"nothing was taken away: {doubt}; if that is right, run once: metaprobe log prune --older-than {days:g} "
            "--log LOG --yes"
        )
    total = 0
    while True:
        with tables.transaction(alone=True) as run:  # two that prune at once would subtract the same answers twice
            rows = run(SCORED_ROWS.where(scores.c.time < before).order_by(scores.c.time).limit(ROWS_PER_TRANSACTION))
            _delete_rows(run, rows)
            if len(rows) < ROWS_PER_TRANSACTION:
                set_mark(run, _CLOCK, int(clock))
                set_mark(run, _LIMIT, int(before))
        total += len(rows)
        if len(rows) < ROWS_PER_TRANSACTION:
            break
    with tables.transaction() as run:
        drop_waiting(run, clock)
        run(sa.delete(agreements).where(agreements.c.time < before))  # some belong to answers that were never logged
    _drop_unused(tables)
    tables.tidy()
    return total


def _implausible(run: Execute, before: float, now: float) -> str:
    """Returns why only a person should delete the answers from before that time; empty if the deletion is plausible.

    If the clock seems to have jumped, the time of the newest answer is stored as the last known clock. Answers that are
    logged by the wrong clock later therefore do not hide the jump.

    Args:
        run: runs a statement.
        before: time before which answers are deleted.
        now: seconds since 1970.
    """
    rows_to_delete = int(run(sa.select(sa.func.count()).where(scores.c.time < before))[0][0])
    if not rows_to_delete:
        return ""
    clock = read_mark(run, _CLOCK)
    if clock is None:
        newest = sa.select(sa.func.max(scores.c.time)).where(scores.c.time <= now, scores.c.time < MAX_TIME)
        clock = int(run(newest)[0][0])
        if now - clock > MAX_STEP_S:
            set_mark(run, _CLOCK, clock)
    answer_count = int(run(sa.select(sa.func.count()).select_from(scores))[0][0])
    if now - clock > MAX_STEP_S:
        return (
            f"the clock says {_format_minute(now)}, {(now - clock) / DAY:.0f} days after the last prune or answer of"
            f" this log ({_format_minute(clock)}): it has jumped, or nothing ran meanwhile; {rows_to_delete} of"
            f" {answer_count} answers would go"
        )
    limit = read_mark(run, _LIMIT)
    if rows_to_delete > MAX_DELETED_SHARE * answer_count and (limit is None or before - limit > MAX_STEP_S):
        return f"{rows_to_delete} of {answer_count} answers would go at once, all from before {_format_minute(before)}"
    return ""


def _format_minute(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def delete_requests(tables: Tables, request_ids: Sequence[str]) -> list[str]:
    """Deletes all data of requests, and returns the ids of requests without any.

    No byte of them stays in a SQLite file. Otherwise `LogError` is raised: then the rows are deleted, and the same call
    deletes the bytes.
    """
    ids_without_answer = []
    for name in request_ids:
        request_id = loggable_text(name, MAX_NOTE)
        with tables.transaction(alone=True) as run:
            rows = run(SCORED_ROWS.where(sa.or_(scores.c.request_id == request_id, scores.c.shadow_of == request_id)))
            labelled = run(sa.select(labels.c.id).where(labels.c.request_id == request_id).limit(1))
            _delete_rows(run, rows)
            _delete_related(run, [request_id])
            _leave_out_of_events(run, [request_id, *(str(row[1]) for row in rows)])
        if not rows and not labelled:
            ids_without_answer.append(name)
    _drop_unused(tables)
    try:
        tables.erase()
    except LogError as error:
        raise LogError(
            "all that is known of these requests was taken away, but its bytes may still be in the file: run the same "
            f"command again when no other process reads the log and the disk has room for a second copy ({error})"
        ) from error
    return ids_without_answer


def further_answers(tables: Tables, request_id: str) -> list[str]:
    """Returns the ids of the other answers to a request, as the proxy numbers them, that the log holds."""
    with tables.transaction() as run:
        further = known_requests(run, [f"{request_id}:{index}" for index in range(1, MAX_REQUEST_ANSWERS)])
    return sorted(further, key=lambda name: int(name.rpartition(":")[2]))


def _drop_unused(tables: Tables) -> None:
    """Deletes contexts that no answer refers to, and label sheets that have no drawn answer and could draw none."""
    for sheet in tables.read(sa.select(sheets).where(sheets.c.sheet.not_in(sa.select(samples.c.sheet)))):
        where = [*conditions(sheet.since, sheet.until), tables.number <= sheet.stored_until]
        where.append(is_one_of(scores.c.context, contexts_of_sheet(tables, sheet)))
        if not tables.read(sa.select(scores.c.id).where(*where).limit(1)):  # no propensity depends on the sheet
            with tables.transaction() as run:
                run(sa.delete(sheets).where(sheets.c.sheet == sheet.sheet))
    drop_contexts(tables)


def _delete_rows(run: Execute, rows: Sequence[Sequence[Any]]) -> None:
    """Deletes rows found by `SCORED_ROWS`, and all data of their requests."""
    if rows:
        subtract_rows(run, rows)
        run(_DELETE, [{"gone": row[0]} for row in rows])
        _delete_related(run, [row[1] for row in rows])


def _delete_related(run: Execute, request_ids: Sequence[str]) -> None:
    for statement in _DELETE_RELATED:
        run(statement, [{"gone": request_id} for request_id in request_ids])


# The driver deletes one row at a time: SQLAlchemy takes longer to write out a list of five hundred.
_DELETE = sa.delete(scores).where(scores.c.id == sa.bindparam("gone"))
_DELETE_RELATED = [
    sa.delete(table).where(table.c.request_id == sa.bindparam("gone")) for table in (labels, samples, agreements)
]


def _leave_out_of_events(run: Execute, request_ids: Sequence[str]) -> None:
    """Removes the ids of these requests from all events. The events themselves stay."""
    for request_id in request_ids:
        id_in_json = json.dumps(request_id)[1:-1]
        escaped = re.sub("([!%_])", r"!\1", id_in_json)
        events_found = sa.select(events.c.id, events.c.details).where(events.c.details.like(f"%{escaped}%", escape="!"))
        for event_id, details in run(events_found):
            changed = json.dumps(_replace_id(json.loads(details), request_id))
            if changed != details:
                run(sa.update(events).where(events.c.id == event_id).values(details=changed))


def _replace_id(value: Any, request_id: str) -> Any:
    if isinstance(value, dict):
        return {_replace_id(name, request_id): _replace_id(inner, request_id) for name, inner in value.items()}
    if isinstance(value, list):
        return [_replace_id(inner, request_id) for inner in value]
    if not isinstance(value, str):
        return value
    if len(request_id) < MIN_ID_WITHIN_TEXT:
        return DELETED_ID if value == request_id else value
    return re.sub(rf"(?<!\w){re.escape(request_id)}(?!\w)", DELETED_ID, value)
