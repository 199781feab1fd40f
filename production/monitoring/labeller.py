"""Rules for which answers a caller may label.

Callers know an answer by our id or by their own, and label the answers that they requested.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from metaprobe.production.monitoring.tables import Execute, LogError, sa, scores


class NotYours(LogError):
    """A label belongs to an answer that was requested with another key."""


@dataclass(frozen=True, slots=True)
class Labeller:
    """A person or program that labels."""

    key_name: str = ""
    """Name of the labeller's key; empty for a key without a name, or no key."""
    admin: bool = True
    """Whether the labeller may label the answers of all keys."""


OPERATOR = Labeller()
"""A labeller with direct access to the log."""


def known_answers(run: Execute, request_ids: Sequence[str], labeller: Labeller) -> list[str | None]:
    """Returns the id in the log of each answer that the labeller names so, for at most `CHUNK` names; None for unknown
    ones.

    Raises `NotYours` for an answer of another key, and `LogError` if several answers have a name.

    Args:
        run: runs a statement.
        request_ids: our ids, or the caller's own.
        labeller: the labeller.
    """
    theirs: dict[str, set[str]] = {}
    names = set(request_ids)
    ours: dict[str, str] = dict(
        run(sa.select(scores.c.request_id, scores.c.key_name).where(scores.c.request_id.in_(names)))
    )
    columns = (scores.c.callers_id, scores.c.request_id, scores.c.key_name)
    statement = sa.select(*columns).where(scores.c.callers_id.in_(names), scores.c.shadow_of.is_(None))
    for callers_id, request_id, key_name in run(statement):
        if labeller.admin or key_name == labeller.key_name:
            theirs.setdefault(callers_id, set()).add(request_id)
    found_ids: list[str | None] = []
    for name in request_ids:
        mine = [name] if name in ours else sorted(theirs.get(name, ()))
        if name in ours and not labeller.admin and ours[name] != labeller.key_name:
            raise NotYours(f"request {name} was asked for with another key; expected one of this key's answers")
        if len(mine) > 1:
            raise LogError(
                f"request {name}: {len(mine)} answers were asked for under that name, such as {mine[0]} and"
                f" {mine[1]}; expected the `request_id` that came with the verdict"
            )
        found_ids.append(mine[0] if mine else None)
    return found_ids
