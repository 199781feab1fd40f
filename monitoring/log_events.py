"""Events of a score log as rows of its table."""

import json
import time
from collections.abc import Mapping
from typing import Any

LOST = "entries_lost"
"""The kind of the event that says how many entries a killed process, or a full queue, has lost."""
EVENT = "INSERT INTO events (time, kind, details) VALUES (:time, :kind, :details)"


def event_row(kind: str, details: Mapping[str, Any], at: float | None) -> dict[str, Any]:
    """What happened, as values for `EVENT`. `at`: seconds since 1970; None stands for now."""
    return {"time": time.time() if at is None else at, "kind": kind, "details": json.dumps(details)}
