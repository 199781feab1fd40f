"""Accuracy, flagged share and risk among the accepted, of each version in a score log, and of parts of it.

A score, a flag and a threshold mean something for one checkpoint only. So answers that two versions scored are never
put together, not even where labels alone are used: what a version's users got is what is asked.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.results import plain
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
    """Returns the part of each answer (N,): by `model`, `task`, `week`, or a tag of that name.

    Raises `RecordError` for `checkpoint`, by which estimates stand apart already.
    """
    if by == "checkpoint":
        raise RecordError("estimates of each checkpoint stand apart already; expected model, task, week or a tag")
    if by == "week":
        return name_weeks(columns.time)
    if by in ("model", "task"):
        return np.asarray(getattr(columns, by).astype(np.str_))
    return columns.tag(by).astype(np.str_)


def newest_versions(columns: LogColumns) -> list[str]:
    """Returns the digests of the checkpoints that gave the scores, the one whose latest answer is latest first."""
    names, place = np.unique(columns.checkpoint.astype(np.str_), return_inverse=True)
    last, first = np.full(len(names), -np.inf), np.full(len(names), np.inf)
    np.maximum.at(last, place, columns.time)
    np.minimum.at(first, place, columns.time)
    return [str(names[at]) for at in np.lexsort((-first, -last))]


def estimate_log(
    columns: LogColumns,
    *,
    by: str | None = None,
    group: NDArray[Any] | None = None,
    names: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields what is known of the answers, one object for each version, part, share and method, as JSON's own types.

    Versions come newest first; `checkpoint` is the digest, and `path` the folder that `names` (digest -> folder) has
    for it, or empty. `of` is `accuracy`, `flagged` (of the answers for which that is known) or `risk` (share wrong
    among those that were not flagged); further keys are the fields of `Estimate`. What uses drawn labels is about the
    answers up to the last one that was drawn: those that came later had no chance to be, and may be other ones. `group`
    (N,): what belongs together, as in `estimate_accuracy`.
    """
    parts = np.full(len(columns), WHOLE) if by is None else name_parts(columns, by)
    for version in newest_versions(columns):
        mine = columns.checkpoint == version
        told = {"checkpoint": version, "path": (names or {}).get(version, "")}
        for name in np.unique(parts[mine]).tolist():
            for of, one in _estimates(columns, mine & (parts == name), group):
                fields: dict[str, Any] = plain(one)
                yield {**told, "part": name, "of": of, **fields}


def _estimates(columns: LogColumns, rows: NDArray[np.bool_], group: NDArray[Any] | None) -> list[tuple[str, Estimate]]:
    flagged = columns.flagged[rows]
    known = np.isfinite(flagged)
    found = [("accuracy", one) for one in _of_part(columns, rows, estimate_accuracy, group)]
    if known.any():
        found.append(("flagged", estimate_share(flagged[known])))
        found += [("risk", one) for one in _of_part(columns, rows & (columns.flagged == 0), estimate_wrong, group)]
    return found


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
