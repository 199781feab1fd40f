"""What of a request stands elsewhere than in its own rows: the rules of sheets it could be on, events that name it."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from metaprobe.monitoring.log_columns import chosen_contexts, conditions, in_contexts

if TYPE_CHECKING:
    from metaprobe.monitoring.tables import Execute, Tables

INSTEAD = "(deleted)"
"""What an event says in place of the id of a request that was deleted."""
LEAST_WITHIN = 8
"""Characters of an id that is looked for within longer texts: a shorter one, such as 7, may be something else there."""
_SHEETS = "SELECT sheet, since, until, model, checkpoint, tags, stored_until FROM sheets"
_LIKE = "SELECT id, details FROM events WHERE details LIKE :like ESCAPE '!'"


def drop_sheets(tables: "Tables") -> None:
    """Takes away the sheets that no answer in the log was or could have been on: nothing is estimated by them."""
    drawn = {str(row[0]) for row in tables.read("SELECT DISTINCT sheet FROM samples")}
    for sheet, since, until, model, checkpoint, tags, stored_until in tables.read(_SHEETS):
        if sheet in drawn:
            continue
        contexts = chosen_contexts(
            tables, model=model or None, checkpoint=checkpoint or None, tags=json.loads(tags) or None
        )
        where, values = conditions(since, until, shadow=False)
        where += [f"{tables.number} <= :last", in_contexts(contexts)]
        values["last"] = stored_until
        if not contexts or not tables.read(f"SELECT 1 FROM scores s WHERE {' AND '.join(where)} LIMIT 1", values):
            with tables.transaction() as run:
                run("DELETE FROM sheets WHERE sheet = :sheet", {"sheet": sheet})


def leave_out_of_events(run: "Execute", request_ids: Sequence[str]) -> None:
    """Has no event name these requests any more. The events themselves stay."""
    for request_id in request_ids:
        held = json.dumps(request_id)[1:-1]
        escaped = re.sub("([!%_])", r"!\1", held)
        for at, details in run(_LIKE, {"like": f"%{escaped}%"}):
            changed = json.dumps(_without(json.loads(details), request_id))
            if changed != details:
                run("UPDATE events SET details = :details WHERE id = :id", {"id": at, "details": changed})


def _without(value: Any, request_id: str) -> Any:
    if isinstance(value, dict):
        return {_without(name, request_id): _without(held, request_id) for name, held in value.items()}
    if isinstance(value, list):
        return [_without(held, request_id) for held in value]
    if not isinstance(value, str):
        return value
    if len(request_id) < LEAST_WITHIN:
        return INSTEAD if value == request_id else value
    return re.sub(rf"(?<!\w){re.escape(request_id)}(?!\w)", INSTEAD, value)
