"""Labels of answers that are not in the log. They wait for a limited time, in a limited number."""

import logging
from collections.abc import Sequence

from metaprobe.production.monitoring.rows import known_requests
from metaprobe.production.monitoring.tables import Execute, labels, read_mark, sa, scores, set_mark

logger = logging.getLogger(__name__)


MAX_WAITING_LABELS = 10_000
"""Most labels that wait. If more arrive, the oldest are dropped."""
MAX_WAITING_DAYS = 7.0
"""Days for which a label waits. An answer arrives within seconds of its label, or within days if a log is
filled later.
"""
MAX_ID = 256
"""Most characters of the id of an answer that is not in the log: 10,000 such labels then take some megabytes."""
_DROPPED_MARK = "labels_dropped"
"""Name of the mark that counts dropped labels."""
_IS_WAITING = labels.c.waits.is_not(None)


def let_wait(run: Execute, request_ids: Sequence[str], now: float) -> None:
    """Marks labels of requests that are not in the log as waiting, and drops the labels beyond the limits.

    Args:
        run: runs a statement.
        request_ids: ids of at most `ROWS_PER_TRANSACTION` requests.
        now: seconds since 1970.
    """
    if unknown_ids := set(request_ids) - known_requests(run, request_ids):
        has_long_id = labels.c.request_id.in_([name for name in unknown_ids if len(name) > MAX_ID])
        _count_dropped(run, int(run(sa.select(sa.func.count()).where(has_long_id))[0][0]))
        run(sa.delete(labels).where(has_long_id))
        run(sa.update(labels).where(labels.c.request_id.in_(unknown_ids), labels.c.waits.is_(None)).values(waits=now))
    drop_waiting(run, now)


def drop_waiting(run: Execute, now: float) -> None:
    """Drops labels that have waited for `MAX_WAITING_DAYS` days, and the oldest beyond `MAX_WAITING_LABELS`."""
    earliest = now - MAX_WAITING_DAYS * 86400
    [(count, oldest)] = run(sa.select(sa.func.count(), sa.func.min(labels.c.waits)).where(_IS_WAITING))
    if count <= MAX_WAITING_LABELS and (oldest is None or oldest >= earliest):
        return
    answered = sa.exists().where(scores.c.request_id == labels.c.request_id)
    run(sa.update(labels).where(_IS_WAITING, answered).values(waits=None))
    waiting = run(sa.select(labels.c.id, labels.c.waits).where(_IS_WAITING).order_by(labels.c.waits, labels.c.id))
    excess_count = len(waiting) - MAX_WAITING_LABELS
    dropped = [{"gone": row[0]} for index, row in enumerate(waiting) if index < excess_count or row[1] < earliest]
    if dropped:
        run(sa.delete(labels).where(labels.c.id == sa.bindparam("gone")), dropped)
    _count_dropped(run, len(dropped))


def dropped_labels(run: Execute) -> int:
    """Returns how many labels the log has dropped so far."""
    return read_mark(run, _DROPPED_MARK) or 0


def _count_dropped(run: Execute, number: int) -> None:
    if number:
        set_mark(run, _DROPPED_MARK, number, add=True)
        logger.warning(
            "%d labels were dropped: their answers are not in the score log, where at most %d such labels wait for %g "
            "days, under ids of at most %d characters",
            number,
            MAX_WAITING_LABELS,
            MAX_WAITING_DAYS,
            MAX_ID,
        )
