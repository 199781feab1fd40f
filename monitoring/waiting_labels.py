"""Labels that came before their answers: they wait for a bounded time, in a bounded number."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from metaprobe.monitoring.log_rows import known_requests

if TYPE_CHECKING:
    from metaprobe.monitoring.tables import Execute

logger = logging.getLogger(__name__)

MOST = 10_000
"""Labels that wait. Where more come, the oldest go."""
DAYS = 7.0
"""How long a label waits. An answer comes within seconds of its label, or within days where a log is filled later."""
MAX_ID = 256
"""Characters of the id of an answer that is not in the log: 10,000 such labels then take some megabytes."""

_CHUNK = 500
DROPPED = "labels_dropped"
_ANSWERED = "EXISTS (SELECT 1 FROM scores s WHERE s.request_id = labels.request_id)"
_OF = "WHERE request_id = :request_id"
_ADD = (
    "INSERT INTO marks (name, value) VALUES (:name, :value) "
    "ON CONFLICT (name) DO UPDATE SET value = marks.value + excluded.value"
)


def let_wait(run: "Execute", request_ids: Sequence[str], now: float) -> int:
    """Marks the labels of those of these requests that are not in the log, and drops those for which there is no room.

    Returns how many were dropped.
    """
    known: set[str] = set()
    for start in range(0, len(request_ids), _CHUNK):
        known |= known_requests(run, request_ids[start : start + _CHUNK])
    gone = 0
    for request_id in dict.fromkeys(name for name in request_ids if name not in known):
        given = {"request_id": request_id}
        if len(request_id) > MAX_ID:
            gone += int(run(f"SELECT count(*) FROM labels {_OF}", given)[0][0])
            run(f"DELETE FROM labels {_OF}", given)
        else:
            run(f"UPDATE labels SET waits = :now {_OF} AND waits IS NULL", {**given, "now": now})
    return _count(run, gone) + drop_waiting(run, now)


def drop_waiting(run: "Execute", now: float) -> int:
    """Drops the labels that have waited for `DAYS` days, and the oldest beyond `MOST`; returns how many they were."""
    before = now - DAYS * 86400
    [(count, oldest)] = run("SELECT count(*), min(waits) FROM labels WHERE waits IS NOT NULL")
    if count <= MOST and (oldest is None or oldest >= before):
        return 0
    run(f"UPDATE labels SET waits = NULL WHERE waits IS NOT NULL AND {_ANSWERED}")
    waiting = run("SELECT id, waits FROM labels WHERE waits IS NOT NULL ORDER BY waits, id")
    beyond = len(waiting) - MOST
    gone = [{"id": row[0]} for place, row in enumerate(waiting) if place < beyond or row[1] < before]
    if gone:
        run("DELETE FROM labels WHERE id = :id", gone)
    return _count(run, len(gone))


def dropped_labels(run: "Execute") -> int:
    """Returns how many labels the log has dropped so far."""
    rows = run("SELECT value FROM marks WHERE name = :name", {"name": DROPPED})
    return int(rows[0][0]) if rows else 0


def _count(run: "Execute", number: int) -> int:
    if number:
        run(_ADD, {"name": DROPPED, "value": number})
        logger.warning(
            "%d labels were dropped: their answers are not in the score log, where at most %d such labels wait for %g "
            "days, under ids of at most %d characters",
            number,
            MOST,
            DAYS,
            MAX_ID,
        )
    return number
