"""Whether a prune is plausible: a clock that jumped ahead makes every answer look old.

Two questions are asked of what the log itself knows. Has the clock gone on by more than a week since the last prune, or
before the first one since the newest answer? Would more than half of all answers go, where the limit has moved by more
than a week since the last prune? Of either, nobody but a person knows whether it is right: a server that stood still
for a month looks the same as one whose clock is a month ahead.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from metaprobe.monitoring.log_rows import MAX_TIME

if TYPE_CHECKING:
    from metaprobe.monitoring.tables import Execute

DAY = 86400
STEP_S = 7 * DAY
"""How far clock and limit may move between two prunes. A server prunes every hour, and may rest over holidays."""
SHARE = 0.5
"""Of all answers, that may go where the limit has moved further."""

_CLOCK, _LIMIT = "pruned_at", "pruned_before"
_MARK = "INSERT INTO marks (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"


def implausible(run: "Execute", before: float, now: float) -> str:
    """Returns why nobody but a person should take away the answers from before that time; empty where all is well.

    A clock that seems to have jumped is remembered: answers that are logged by it later do not make it right.
    """
    known = {str(name): int(value) for name, value in run("SELECT name, value FROM marks")}
    if not run("SELECT 1 FROM scores WHERE time < :before LIMIT 1", {"before": before}):
        return ""
    clock = known.get(_CLOCK)
    if clock is None:
        newest = run("SELECT MAX(time) FROM scores WHERE time <= :now AND time < :most", {"now": now, "most": MAX_TIME})
        clock = int(newest[0][0])
        if now - clock > STEP_S:
            run(_MARK, {"name": _CLOCK, "value": clock})
    going, total = counts(run, before)
    if now - clock > STEP_S:
        return (
            f"the clock says {_day(now)}, {(now - clock) / DAY:.0f} days after the last prune or answer of this log "
            f"({_day(clock)}): it has jumped, or nothing ran meanwhile; {going} of {total} answers would go"
        )
    limit = known.get(_LIMIT)
    if going > SHARE * total and (limit is None or before - limit > STEP_S):
        return f"{going} of {total} answers would go at once, all from before {_day(before)}"
    return ""


def counts(run: "Execute", before: float) -> tuple[int, int]:
    """Returns how many answers are from before that time, and how many there are."""
    [(going, total)] = run(
        "SELECT (SELECT count(*) FROM scores WHERE time < :before), (SELECT count(*) FROM scores)", {"before": before}
    )
    return int(going), int(total)


def remember(run: "Execute", before: float, now: float) -> None:
    """Keeps by which clock and up to which time the log was pruned."""
    for name, value in ((_CLOCK, now), (_LIMIT, before)):
        run(_MARK, {"name": name, "value": int(value)})


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
