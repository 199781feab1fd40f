"""Accuracy, flagged share and risk among the accepted, of a score log and of its parts."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.plain import plain
from metaprobe.monitoring.estimates import Estimate, estimate_accuracy, estimate_share, estimate_wrong, name_weeks
from metaprobe.monitoring.log import ScoreLog
from metaprobe.monitoring.log_columns import LogColumns
from metaprobe.records.errors import RecordError

Estimator = Callable[..., tuple[Estimate, Estimate, Estimate]]
QUESTION = "question"
"""In place of a tag: answers to the same question."""
WHOLE = "all"
"""The name of the part that is everything."""


def name_parts(columns: LogColumns, by: str) -> NDArray[np.str_]:
    """Returns the part of each answer (N,): by `model`, `checkpoint`, `task`, `week`, or a tag of that name."""
    if by == "week":
        return name_weeks(columns.time)
    if by in ("model", "checkpoint", "task"):
        return np.asarray(getattr(columns, by).astype(np.str_))
    return columns.tag(by).astype(np.str_)


def estimate_log(
    columns: LogColumns, *, by: str | None = None, group: NDArray[Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields what is known of the answers, one object for each part, share and method, as JSON's own types.

    `of` is `accuracy`, `flagged` (of the answers for which that is known) or `risk` (share wrong among those that were
    not flagged); further keys are the fields of `Estimate`. What uses drawn labels is about the answers up to the last
    one that was drawn: those that came later had no chance to be, and may be other ones. `group` (N,): what belongs
    together, as in `estimate_accuracy`.
    """
    parts = np.full(len(columns), WHOLE) if by is None else name_parts(columns, by)
    for name in np.unique(parts).tolist():
        rows = parts == name
        flagged = columns.flagged[rows]
        known = np.isfinite(flagged)
        found = [("accuracy", one) for one in _of_part(columns, rows, estimate_accuracy, group)]
        if known.any():
            found.append(("flagged", estimate_share(flagged[known])))
            found += [("risk", one) for one in _of_part(columns, rows & (columns.flagged == 0), estimate_wrong, group)]
        for of, one in found:
            fields: dict[str, Any] = plain(one)
            yield {"part": name, "of": of, **fields}


def groups_of_log(log: ScoreLog, columns: LogColumns, by: str) -> NDArray[Any]:
    """Returns the group of each answer (N,), by the text of its question, or by a tag; empty where that is not known.

    For questions the columns must have been read with their ids. Raises `RecordError` where no answer has a group.
    """
    if by == QUESTION:
        asked = "SELECT request_id, question FROM scores WHERE question IS NOT NULL"
        said = {name: text for rows in log.tables.read_chunks(asked) for name, text in rows}
        found = np.array([said.get(name, "") for name in columns.request_id.tolist()], dtype=object)
    else:
        found = columns.tag(by)
    if len(found) and not any(found.tolist()):
        told = "texts of questions (serve --log-texts)" if by == QUESTION else f"a tag {by!r}"
        raise RecordError(f"no answer of the log has {told}: answers cannot be grouped by it")
    return found


def _of_part(
    columns: LogColumns, rows: NDArray[np.bool_], estimate: Estimator, group: NDArray[Any] | None
) -> list[Estimate]:
    """Returns the estimates of these answers, from labels only of those that were there when the last one was drawn."""
    drawn = rows & np.isfinite(columns.propensity) & np.isfinite(columns.label)
    early = rows & (columns.time <= columns.time[drawn].max()) if drawn.any() else rows
    whole, reached = (
        estimate(
            columns.score[some],
            columns.label[some],
            columns.propensity[some],
            group=None if group is None else group[some],
        )
        for some in (rows, early)
    )
    later = int(rows.sum() - early.sum())
    said = f"{later} answers came after the last one that was drawn, and are not part of it" if later else ""
    from_labels = [replace(one, reason="; ".join(filter(None, (one.reason, said)))) for one in reached[1:]]
    return [whole[0], *from_labels]
