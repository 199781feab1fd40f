"""Figures of a log for a page: sums, estimates and events of a span of time, whatever the number of answers.

Counts come from the sums that are kept by the hour and by the day; labelled answers are read one by one. What is read
off scores stands apart for each version of the checkpoint.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.api import AGREEMENT, plain, wilson
from metaprobe.production.monitoring.entry import is_census
from metaprobe.production.monitoring.estimates import SCORES, estimate_accuracy
from metaprobe.production.monitoring.log import ScoreLog, version_names
from metaprobe.production.monitoring.rows import (
    DAY,
    HOUR,
    NO_SCORE,
    SCORE_BINS,
    LogColumns,
    chosen_contexts,
    conditions,
)
from metaprobe.production.monitoring.tables import (
    BIN_SUMS,
    HOURLY_SUMS,
    answers,
    bins,
    contexts,
    hours,
    is_one_of,
    labels,
    sa,
    scores,
)

SHOWN_BINS = 20
"""Bars of the picture of scores."""
RELIABILITY_BINS = 8
EXPANDED = 100_000
"""Scores that stand for all in an estimate; more make no interval visibly narrower."""
EXPANDED_IN_PART = 5_000
QUEUE = 50
BY_TIME_S = 31 * 86400
"""Seconds. In a longer span the worst answers are looked up by score, and not by time."""
EVENTS_SHOWN = 60
SHOWN_TEXT = 4_000
"""Characters of a question or an answer in the queue."""

LABEL_WINDOWS = 8
"""Number of windows into which labels are gathered over time."""

Floats = NDArray[np.float64]
Bin = tuple[int, int, float, float, float]
"""Day, hundredth, answers, sum of their scores, flagged ones."""
DETAILED = 8
"""Versions that are shown with pictures; of earlier ones only the sums are."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which answers are meant. Names are empty for all."""

    since: float
    """Seconds since 1970; taken down to the day, or the hour where it is no more than three days back."""
    until: float
    model: str = ""
    task: str = ""
    checkpoint: str = ""
    """Digest."""

    @property
    def step(self) -> int:
        """Seconds between two points of a picture over time."""
        days = (self.until - self.since) / DAY
        return HOUR if days <= 3 else DAY if days <= 120 else 7 * DAY

    @property
    def start(self) -> float:
        """The beginning of the first whole hour or day."""
        unit = min(self.step, DAY)
        return self.since // unit * unit


def overview(log: ScoreLog, span: Span) -> dict[str, Any]:
    """Everything about those answers but the queue, in types that JSON has; NaN is None.

    `versions` are the checkpoints that gave scores in that time, newest first, each with its own estimates and
    pictures; the first `DETAILED` of them have these. Only counts (`totals`) are of all of them together.
    """
    hours, bins, names = _hours(log, span), _bins(log, span), version_names(log)
    tags = {"task": span.task} if span.task else None
    labelled = log.columns(
        since=span.start,
        until=span.until,
        model=span.model or None,
        checkpoint=span.checkpoint or None,
        tags=tags,
        labelled=True,
    )
    versions = _versions(hours)
    for place, one in enumerate(versions):
        checkpoint = one["checkpoint"]
        one["path"] = names.get(checkpoint, "")
        if place < DETAILED:
            mine = [row for row in hours if row["checkpoint"] == checkpoint]
            here = labelled.rows(labelled.checkpoint == checkpoint)
            scored = bins.get(checkpoint, [])
            one |= {
                "labels": int(np.isfinite(here.label).sum()),
                **_estimates(scored, here, EXPANDED),
                "over_time": _over_time(span, mine),
                "labels_over_time": _labels_over_time(span, scored, here),
                "histogram": _histogram(scored),
                "reliability": _reliability(scored, here),
                "coverage": _coverage(scored, here),
            }
    shown = {
        "now": time.time(),
        "span": {"since": span.start, "until": span.until, "step": span.step},
        "choices": _choices(log, names),
        "totals": {
            **{name: sum(row[name] for row in hours) for name in HOURLY_SUMS},
            "labels": int(np.isfinite(labelled.label).sum()),
            "drawn": int(np.isfinite(labelled.propensity).sum()),
        },
        "versions": versions,
        "events": [asdict(one) for one in log.events(since=span.start)[-EVENTS_SHOWN:]][::-1],
    }
    clean: dict[str, Any] = plain(shown)
    return clean


def flagged_queue(log: ScoreLog, span: Span, *, most: int = QUEUE) -> list[dict[str, Any]]:
    """Flagged answers that nobody has labelled, the lowest score first; texts where the log keeps them.

    An answer has a `score`, or an `agreement` where its checkpoint was trained without labels; else None.
    """
    where = conditions(span.start, span.until, by_time=span.until - span.start <= BY_TIME_S)
    # A gate stops an answer without a number to show; training without labels gives an agreement and no score.
    shown = sa.or_(scores.c.score.is_not(None), scores.c.heads.like(f'%"{AGREEMENT}"%'))
    where += [scores.c.flagged == 1, shown]
    where.append(~sa.exists().where(labels.c.request_id == scores.c.request_id))
    if span.model or span.task or span.checkpoint:
        tags = {"task": span.task} if span.task else None
        fitting = chosen_contexts(log.tables, model=span.model or None, checkpoint=span.checkpoint or None, tags=tags)
        where.append(is_one_of(scores.c.context, fitting))
    asked = sa.select(
        *(scores.c[name] for name in ("request_id", "time", "score", "heads")),
        *(contexts.c[name] for name in ("model", "checkpoint", "task", "finish_reason")),
        scores.c.reason,
        *(sa.func.substr(scores.c[name], 1, SHOWN_TEXT).label(name) for name in ("question", "answer")),
    ).select_from(answers)
    rows = [dict(row._mapping) for row in log.tables.read(asked.where(*where).order_by(scores.c.score).limit(most))]
    for row in rows:
        row[AGREEMENT] = json.loads(row.pop("heads") or "{}").get(AGREEMENT)
    return rows


def _hours(log: ScoreLog, span: Span) -> list[dict[str, Any]]:
    step = max(span.step // HOUR, 1)  # days and weeks are added up by the database
    key = (
        (hours.c.hour - hours.c.hour % sa.literal_column(str(step))).label("hour"),
        hours.c.model,
        hours.c.checkpoint,
    )
    sums = (sa.func.sum(hours.c[name]).label(name) for name in HOURLY_SUMS)
    rows = log.tables.read(sa.select(*key, *sums).where(*_chosen(span, hours, hours.c.hour, HOUR)).group_by(*key))
    return [dict(row._mapping) for row in rows]


def _bins(log: ScoreLog, span: Span) -> dict[str, list[Bin]]:
    """Returns the sums of each version by day and hundredth, of answers with a score."""
    key = (bins.c.checkpoint, bins.c.day, bins.c.bin)
    sums = (sa.func.sum(bins.c[name]) for name in BIN_SUMS)
    where = [*_chosen(span, bins, bins.c.day, DAY), bins.c.bin != NO_SCORE]
    by_version: dict[str, list[Bin]] = {}
    for version, day, at, n, total, flagged in log.tables.read(sa.select(*key, *sums).where(*where).group_by(*key)):
        row = (int(day), int(at), float(n), float(total), float(flagged))
        by_version.setdefault(str(version), []).append(row)
    return by_version


def _chosen(span: Span, table: Any, column: sa.ColumnElement[int], unit: int) -> list[sa.ColumnElement[bool]]:
    where = [column >= int(span.start // unit), column <= int(span.until // unit), table.c.shadow == 0]
    return where + [
        table.c[name] == chosen for name in ("model", "task", "checkpoint") if (chosen := getattr(span, name))
    ]


def _choices(log: ScoreLog, names: Mapping[str, str]) -> dict[str, Any]:
    """Models, tasks and versions that the log holds; versions newest first, each with its folder where it is known."""
    choices: dict[str, Any] = {
        name: [
            str(row[0]) for row in log.tables.read(sa.select(bins.c[name]).distinct().order_by(bins.c[name]).limit(100))
        ]
        for name in ("model", "task")
    }
    asked = sa.select(bins.c.checkpoint).where(bins.c.shadow == 0).group_by(bins.c.checkpoint)
    newest = asked.order_by(sa.func.max(bins.c.day).desc(), sa.func.min(bins.c.day).desc()).limit(100)
    versions = log.tables.read(newest)
    choices["checkpoint"] = [{"checkpoint": row[0], "path": names.get(str(row[0]), "")} for row in versions]
    return choices


def _estimates(bins: Sequence[Bin], labelled: LogColumns, most: int) -> dict[str, Any]:
    """Accuracy of all answers, and the share of wrong ones among the accepted, each in three ways.

    What uses drawn labels is about the days up to the last one of which answers were drawn: later ones had no chance.
    Where so many of all answers are labelled that the draw does not matter, it is about all days.
    """
    drawn = np.isfinite(labelled.propensity) & np.isfinite(labelled.label)
    last = labelled.time[drawn].max() // DAY if drawn.any() else math.inf
    estimates: dict[str, dict[str, Any]] = {"accuracy": {}, "risk": {}}
    for some in ([row for row in bins if row[0] <= last], bins):  # the second time for what is about all days
        score, accepted = _expanded(some, most)
        nothing = np.full(len(score), np.nan)
        columns = [(score, labelled.score), (nothing, labelled.label), (nothing, labelled.propensity)]
        joined = [np.concatenate(pair) for pair in columns]
        kept = np.concatenate((accepted, labelled.flagged != 1))
        there = round(sum(n for _, _, n, _, _ in bins))
        unflagged = there - round(sum(f for *_, f in bins))
        for of, ways in (
            ("accuracy", estimate_accuracy(*joined, answers=there)),
            (
                "risk",
                [
                    one.complement()
                    for one in estimate_accuracy(*(column[kept] for column in joined), answers=unflagged)
                ],
            ),
        ):
            whole = {one.method: asdict(one) for one in ways if some is not bins or one.method == SCORES or one.bounded}
            estimates[of] |= whole
    return estimates


def _expanded(bins: Sequence[Bin], most: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Scores with the distribution of all, at most about `most`, and which of them were not flagged."""
    total = sum(n for _, _, n, _, _ in bins)
    share = min(1.0, most / total) if total else 0.0
    means = np.array([scores / n for _, _, n, scores, _ in bins], dtype=np.float64)
    parts = []
    for wanted in (np.array([n - f for _, _, n, _, f in bins]), np.array([f for *_, f in bins])):
        # Rounded in their running sum, so that many small bins do not all vanish.
        ends = np.round(np.cumsum(wanted * share)).astype(np.int64) if len(bins) else np.zeros(0, dtype=np.int64)
        parts.append(np.repeat(means, np.diff(ends, prepend=0)))
    accepted = np.concatenate((np.ones(len(parts[0]), dtype=bool), np.zeros(len(parts[1]), dtype=bool)))
    return np.clip(np.concatenate(parts), 0, 1), accepted


def _over_time(span: Span, hours: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A point a step: answers, how many of them are flagged, and the mean score."""
    counts: dict[int, dict[str, float]] = {}
    for row in hours:
        at = int(row["hour"]) * HOUR // span.step * span.step
        point = counts.setdefault(at, dict.fromkeys(("answers", "scored", "flagged", "score_sum"), 0.0))
        for name in point:
            point[name] += row[name]
    return [
        {
            "time": at,
            "answers": point["answers"],
            "flagged": point["flagged"],
            "score": point["score_sum"] / point["scored"] if point["scored"] else math.nan,
        }
        for at, point in sorted(counts.items())
    ]


def _labels_over_time(span: Span, bins: Sequence[Bin], labelled: LogColumns) -> list[dict[str, Any]]:
    """Returns estimates from labels and scores in windows of equal length: a label a day would say nothing."""
    width = math.ceil((span.until - span.start) / LABEL_WINDOWS / span.step) * span.step
    windows = []
    for first in range(int(span.start), int(span.until) + 1, int(width)):
        here = (labelled.time >= first) & (labelled.time < first + width)
        if not np.isfinite(labelled.label[here]).any():
            continue
        # Scores of whole days are also taken for windows of hours: they only help the estimate.
        within = [one for one in bins if first - DAY < one[0] * DAY < first + width]
        scores, _ = _expanded(within, EXPANDED_IN_PART)
        nothing = np.full(len(scores), np.nan)
        powered = estimate_accuracy(
            np.concatenate((scores, labelled.score[here])),
            np.concatenate((nothing, labelled.label[here])),
            np.concatenate((nothing, labelled.propensity[here])),
            answers=round(sum(n for _, _, n, _, _ in within)),
        )[1]
        if powered.labels:
            windows.append({"from": first, "to": min(first + width, span.until), **asdict(powered)})
    return windows


def _histogram(bins: Sequence[Bin]) -> list[dict[str, float]]:
    width = SCORE_BINS // SHOWN_BINS
    shown = [{"from": i / SHOWN_BINS, "answers": 0.0, "flagged": 0.0} for i in range(SHOWN_BINS)]
    for _, at, n, _, flagged in bins:
        shown[at // width]["answers"] += n
        shown[at // width]["flagged"] += flagged
    return shown


def _weights(labelled: LogColumns, answers: float) -> tuple[NDArray[np.bool_], Floats]:
    """Returns the mask of rows with label and score that count, and their weights.

    Where some were drawn, these count by their propensities; all labels count where (nearly) all `answers` have one.
    """
    known = np.isfinite(labelled.label) & np.isfinite(labelled.score)
    asked = known & np.isfinite(labelled.propensity)
    if not asked.any() or is_census(int(known.sum()), round(answers)):
        return known, np.ones(int(known.sum()))
    return asked, 1 / labelled.propensity[asked]


def _reliability(bins: Sequence[Bin], labelled: LogColumns) -> list[dict[str, float]]:
    """Share of right answers by score, in bins of about as many labels each, with Wilson's interval."""
    used, weight = _weights(labelled, sum(n for _, _, n, _, _ in bins))
    score, label = labelled.score[used], labelled.label[used]
    if len(score) < 2:
        return []
    shown = []
    for part in np.array_split(np.argsort(score, kind="stable"), min(RELIABILITY_BINS, max(len(score) // 10, 1))):
        w = weight[part]
        share, n = float(w @ label[part] / w.sum()), float(w.sum() ** 2 / (w @ w))  # as many labels of equal weight
        low, high = wilson(share, n)
        mean = float(w @ score[part] / w.sum())
        shown.append({"score": mean, "right": share, "low": low, "high": high, "labels": len(part)})
    return shown


def _coverage(bins: Sequence[Bin], labelled: LogColumns) -> dict[str, Any]:
    """Share of wrong answers among the best-scored: as the scores promise, and as labels say."""
    totals = np.zeros((SCORE_BINS, 2))
    for _, at, n, total, _ in bins:
        totals[at] += n, total
    down = totals[::-1][totals[::-1, 0] > 0]
    counts, sums = np.cumsum(down[:, 0]), np.cumsum(down[:, 1])
    promised = [[float(n / counts[-1]), float(1 - total / n)] for n, total in zip(counts, sums, strict=True)]
    used, weight = _weights(labelled, counts[-1] if len(counts) else 0)
    order = np.argsort(-labelled.score[used], kind="stable")
    w, wrong = weight[order], 1 - labelled.label[used][order]
    covered, missed = np.cumsum(w), np.cumsum(w * wrong)
    first = 10  # before, a single label moves the curve by more than a tenth
    shown: list[int] = []
    if len(w) >= first:
        shown = (np.unique(np.linspace(first, len(w), 60).astype(int)) - 1).tolist()
    return {"promised": promised, "labelled": [[covered[i] / covered[-1], missed[i] / covered[i]] for i in shown]}


def _versions(hours: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the checkpoints that gave scores, each with its models and its times, the newest first."""
    versions: dict[str, dict[str, Any]] = {}
    counted = ("answers", "flagged", "score_sum", "scored")
    for row in hours:
        empty = {
            "checkpoint": row["checkpoint"],
            "models": [],
            "first": math.inf,
            "last": 0,
            **dict.fromkeys(counted, 0.0),
        }
        one = versions.setdefault(row["checkpoint"], empty)
        one["first"] = min(one["first"], int(row["hour"]) * HOUR)
        one["last"] = max(one["last"], int(row["hour"]) * HOUR)
        for name in counted:
            one[name] += row[name]
        if row["model"] not in one["models"]:
            one["models"] = sorted([*one["models"], row["model"]])
    return sorted(versions.values(), key=lambda one: (-one["last"], -one["first"]))
