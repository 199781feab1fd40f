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
    """Returns the log's id of each answer that the labeller names, for at most `ROWS_PER_TRANSACTION` names; None for
    unknown names.

    Raises `NotYours` for an answer of another key, and `LogError` if several answers have a name.

    Args:
        run: runs a statement.
        request_ids: our ids, or the caller's own.
        labeller: the labeller.
    """
    ids_of_callers_id: dict[str, set[str]] = {}
    names = set(request_ids)
    key_of_id: dict[str, str] = dict(
        run(sa.select(scores.c.request_id, scores.c.key_name).where(scores.c.request_id.in_(names)))
    )
    columns = (scores.c.callers_id, scores.c.request_id, scores.c.key_name)
    statement = sa.select(*columns).where(scores.c.callers_id.in_(names), scores.c.shadow_of.is_(None))
    for callers_id, request_id, key_name in run(statement):
        if labeller.admin or key_name == labeller.key_name:
            ids_of_callers_id.setdefault(callers_id, set()).add(request_id)
    found_ids: list[str | None] = []
    for name in request_ids:
        matching_ids = [name] if name in key_of_id else sorted(ids_of_callers_id.get(name, ()))
        if name in key_of_id and not labeller.admin and key_of_id[name] != labeller.key_name:
            raise NotYours(f"request {name} was asked for with another key; expected one of this key's answers")
        if len(matching_ids) > 1:
            raise LogError(
                f"request {name}: {len(matching_ids)} answers were asked for under that name, such as {matching_ids[0]}"
                f" and {matching_ids[1]}; expected the `request_id` that came with the verdict"
            )
        found_ids.append(matching_ids[0] if matching_ids else None)
    return found_ids
