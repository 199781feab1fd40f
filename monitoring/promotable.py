"""Which answers' labels will count when a new version is compared with the running one (`metaprobe promote`)."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from metaprobe.monitoring.log import ScoreLog
from metaprobe.monitoring.sampling import SheetRow

RECALIBRATED, RETRAINED = "recalibrated", "retrained"
"""Kinds of events that say until when a new version has learned from the log."""
_LATEST = (
    "SELECT c.model, c.checkpoint FROM scores s JOIN contexts c ON c.id = s.context JOIN (SELECT c.model AS model, "
    "MAX(s.id) AS last FROM scores s JOIN contexts c ON c.id = s.context WHERE s.shadow_of IS NULL AND s.score IS NOT "
    "NULL GROUP BY c.model) latest ON latest.last = s.id"
)
_SCORED = "SELECT c.checkpoint FROM scores s JOIN contexts c ON c.id = s.context WHERE s.request_id = :request_id"


def will_not_count(log: ScoreLog, rows: Sequence[SheetRow]) -> str:
    """Returns how many labels of these answers `promote` will not count, why, and which options of `sample` help.

    It counts answers that the running version scored, and that ended after the last answer from which the new version
    may have learned. Returns nothing where labels of all of them will count.
    """
    in_service = {str(model): str(checkpoint) for model, checkpoint in log.tables.read(_LATEST)}
    learned = _learned(log, running=set(in_service.values()))
    replaced: Counter[str] = Counter()
    early, until = 0, 0.0
    for row in rows:
        found = log.tables.read(_SCORED, {"request_id": row.request_id})
        checkpoint = str(found[0][0]) if found else ""
        learned_until = max(learned.get(checkpoint, 0.0), learned.get("", 0.0))
        if checkpoint != in_service.get(row.model, checkpoint):
            replaced[checkpoint] += 1
        elif row.time <= learned_until:
            early, until = early + 1, max(until, learned_until)
    whys, helps = [], []
    if early:
        whys.append(f"{early} ended by {_moment(until)}, until when a new version has learned from the log")
        helps.append(f"--since {_moment(until + 1)}")
    if replaced:
        named = ", ".join(checkpoint[:12] for checkpoint in replaced)
        whys.append(f"{replaced.total()} were scored by a checkpoint that is not in service any more ({named})")
        helps.append(f"--checkpoint {' or '.join(sorted({one[:12] for one in in_service.values()} - {''}))}")
    if not whys:
        return ""
    uncounted = early + replaced.total()
    return (
        f"of these {len(rows)} answers {uncounted} will not count for `promote`: {'; '.join(whys)}. To draw only "
        f"answers that count: {' '.join(helps)}"
    )


def _learned(log: ScoreLog, *, running: set[str]) -> dict[str, float]:
    """Until when new versions have learned, by the digest of the version that they were made of.

    The digest is empty where that is unknown. Versions that run by now are no new ones.
    """
    found: dict[str, float] = {}
    for event in (*log.events(RECALIBRATED), *log.events(RETRAINED)):
        key = str(event.details.get("from", ""))
        if event.details.get("to") not in running:
            found[key] = max(found.get(key, 0.0), float(event.details.get("until", event.time)))
    return found


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
