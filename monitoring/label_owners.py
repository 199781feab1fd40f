"""Whose answer a label is of: callers know an answer by our id or by their own, and label what they asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metaprobe.monitoring.tables import Execute, LogError

_OURS = "SELECT key_name FROM scores WHERE request_id = :request_id"
_THEIRS = "SELECT request_id, key_name FROM scores WHERE callers_id = :request_id AND shadow_of IS NULL"
_ADOPT = "UPDATE labels SET request_id = :request_id WHERE request_id = :callers_id AND key_name = :key_name"


class NotYours(LogError):
    """A label is of an answer that was asked for with another key."""


@dataclass(frozen=True, slots=True)
class Labeller:
    """Who labels."""

    key_name: str = ""
    """The name of his key; empty for a key without a name, or none."""
    admin: bool = True
    """Whether he may label the answers of all keys."""


OPERATOR = Labeller()
"""Who has the log itself."""


def known_answer(run: Execute, request_id: str, labeller: Labeller) -> str | None:
    """The id in the log of the answer that the labeller calls so; None where the log holds none.

    Raises `NotYours` for an answer of another key, and `LogError` where several answers have that name.
    """
    if found := run(_OURS, {"request_id": request_id}):
        if not labeller.admin and found[0][0] != labeller.key_name:
            raise NotYours(f"request {request_id} was asked for with another key; expected one of this key's answers")
        return request_id
    named = run(_THEIRS, {"request_id": request_id})
    mine = sorted({str(row[0]) for row in named if labeller.admin or row[1] == labeller.key_name})
    if len(mine) > 1:
        raise LogError(
            f"request {request_id}: {len(mine)} answers were asked for under that name, such as {mine[0]} and"
            f" {mine[1]}; expected the `request_id` that came with the verdict"
        )
    return mine[0] if mine else None


def adopt_labels(run: Execute, rows: Sequence[Mapping[str, Any]]) -> None:
    """Gives answers the labels that came before them under the name that their own caller gave them."""
    named = [
        {name: row[name] for name in ("request_id", "callers_id", "key_name")} for row in rows if row["callers_id"]
    ]
    if named:
        run(_ADOPT, named)
