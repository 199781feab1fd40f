"""Accuracy, flagged share and risk among the accepted, of a score log and of its parts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.plain import plain
from metaprobe.monitoring.estimates import Estimate, estimate_accuracy, estimate_risk, estimate_share, name_weeks
from metaprobe.monitoring.log_columns import LogColumns

WHOLE = "all"
"""The name of the part that is everything."""


def name_parts(columns: LogColumns, by: str) -> NDArray[np.str_]:
    """Returns the part of each answer (N,): by `model`, `checkpoint`, `task`, `week`, or a tag of that name."""
    if by == "week":
        return name_weeks(columns.time)
    if by in ("model", "checkpoint", "task"):
        return np.asarray(getattr(columns, by).astype(np.str_))
    return columns.tag(by).astype(np.str_)


def estimate_log(columns: LogColumns, *, by: str | None = None) -> Iterator[dict[str, Any]]:
    """Yields what is known of the answers, one object for each part, share and method, as JSON's own types.

    `of` is `accuracy`, `flagged` (of the answers for which that is known) or `risk` (share wrong among those that were
    not flagged); further keys are the fields of `Estimate`.
    """
    parts = np.full(len(columns), WHOLE) if by is None else name_parts(columns, by)
    for name in np.unique(parts).tolist():
        rows = parts == name
        score, label, propensity = columns.score[rows], columns.label[rows], columns.propensity[rows]
        flagged = columns.flagged[rows]
        known = np.isfinite(flagged)
        found: list[tuple[str, Estimate]] = [("accuracy", one) for one in estimate_accuracy(score, label, propensity)]
        if known.any():
            found.append(("flagged", estimate_share(flagged[known])))
            found += [("risk", one) for one in estimate_risk(score, label, propensity, flagged == 0)]
        for of, one in found:
            fields: dict[str, Any] = plain(one)
            yield {"part": name, "of": of, **fields}
