"""Figures of a log for a page: sums, estimates and events of a span of time, for any number of answers.

Counts come from sums by the hour and by the day. Labelled answers are read one by one. Figures from scores are separate
for each version of the checkpoint.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.api import AGREEMENT, Interval, plain
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
    agreements,
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
"""Number of bars in the histogram of scores."""
RELIABILITY_BINS = 8
MAX_REPRESENTATIVES = 100_000
"""Most scores that represent all in an estimate. More would not make an interval visibly narrower."""
MAX_REPRESENTATIVES_IN_PART = 5_000
QUEUE_LENGTH = 50
BY_TIME_S = 31 * 86400
"""Seconds. In a longer span the worst answers are searched by score instead of by time."""
EVENTS_SHOWN = 60
SHOWN_TEXT = 4_000
"""Most characters of a question or an answer in the queue."""

LABEL_WINDOWS = 8
"""Number of windows over time for labels."""

Floats = NDArray[np.float64]
Bin = tuple[int, int, float, float, float]
"""(day, hundredth, answers, sum of their scores, flagged answers)."""
MAX_DETAILED_VERSIONS = 8
"""Number of versions that are shown with charts; of earlier ones only sums are shown."""


@dataclass(frozen=True, slots=True)
class Span:
    """A selection of answers. Empty names select all."""

    since: float
    """Seconds since 1970; rounded down to the day, or to the hour for spans of at most three days."""
    until: float
    model: str = ""
    task: str = ""
    checkpoint: str = ""
    """Digest of the checkpoint."""

    @property
    def step(self) -> int:
        """Seconds between two points of a chart over time."""
        days = (self.until - self.since) / DAY
        return HOUR if days <= 3 else DAY if days <= 120 else 7 * DAY

    @property
    def start(self) -> float:
        """Beginning of the first whole hour or day."""
        unit = min(self.step, DAY)
        return self.since // unit * unit


def overview(log: ScoreLog, span: Span) -> dict[str, Any]:
    """Returns all figures of the selected answers except the queue, as JSON types; NaN becomes None.

    `versions` are the checkpoints that gave scores in that time, newest first. The first `MAX_DETAILED_VERSIONS` of
    them have estimates and charts. Only counts (`totals`) are about all versions together.
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
    for index, version in enumerate(versions):
        checkpoint = version["checkpoint"]
        version["path"] = names.get(checkpoint, "")
        if index < MAX_DETAILED_VERSIONS:
            version_hours = [row for row in hours if row["checkpoint"] == checkpoint]
            labelled_of_version = labelled.rows(labelled.checkpoint == checkpoint)
            version_bins = bins.get(checkpoint, [])
            version |= {
                "labels": int(np.isfinite(labelled_of_version.label).sum()),
                **_estimates(version_bins, labelled_of_version, MAX_REPRESENTATIVES),
                "over_time": _over_time(span, version_hours),
                "labels_over_time": _labels_over_time(span, version_bins, labelled_of_version),
                "histogram": _histogram(version_bins),
                "reliability": _reliability(version_bins, labelled_of_version),
                "coverage": _coverage(version_bins, labelled_of_version),
            }
    figures = {
        "now": time.time(),
        "span": {"since": span.start, "until": span.until, "step": span.step},
        "choices": _choices(log, names),
        "totals": {
            **{name: sum(row[name] for row in hours) for name in HOURLY_SUMS},
            "labels": int(np.isfinite(labelled.label).sum()),
            "drawn": int(np.isfinite(labelled.propensity).sum()),
        },
        "versions": versions,
        "second_answers": _second_answers(log, span),
        "events": [asdict(version) for version in log.events(since=span.start)[-EVENTS_SHOWN:]][::-1],
    }
    clean: dict[str, Any] = plain(figures)
    return clean


def _second_answers(log: ScoreLog, span: Span) -> dict[str, Any]:
    """Returns how many second answers (`serve --teach-rate`) say the same as the first, with Wilson's 95 % interval: in
    all, and in windows of equal length by the time of the second answer. Windows without any are left out.
    """
    width = math.ceil((span.until - span.start) / LABEL_WINDOWS / span.step) * span.step
    window_starts = range(int(span.start), int(span.until) + 1, int(width))
    # One pass of the database over the rows: two sums for each window.
    ended_at, same = agreements.c.time, agreements.c.same
    sums: list[sa.ColumnElement[int]] = []
    for window_start in window_starts:
        in_window = sa.and_(ended_at >= window_start, ended_at < window_start + width)
        sums += [sa.func.sum(sa.case((in_window, column), else_=0)) for column in (1, same)]
    statement = sa.select(*sums).join_from(agreements, scores, scores.c.request_id == agreements.c.request_id)
    statement = statement.where(ended_at >= span.start, ended_at <= span.until)
    if span.model or span.task or span.checkpoint:
        tags = {"task": span.task} if span.task else None
        context_ids = chosen_contexts(
            log.tables, model=span.model or None, checkpoint=span.checkpoint or None, tags=tags
        )
        statement = statement.where(is_one_of(scores.c.context, context_ids))
    [row] = log.tables.read(statement)
    counts = [int(count or 0) for count in row]

    def share_of(answered: int, agreed: int) -> dict[str, Any]:
        if not answered:
            return {"answers": 0, **dict.fromkeys(("same", "low", "high"), math.nan)}
        interval = Interval.of_share(agreed / answered, answered)
        return {"answers": answered, "same": interval.estimate, "low": interval.low, "high": interval.high}

    windows = [
        {"from": window_start, "to": min(window_start + width, span.until), **share_of(answered, agreed)}
        for window_start, answered, agreed in zip(window_starts, counts[::2], counts[1::2], strict=True)
        if answered
    ]
    return {**share_of(sum(counts[::2]), sum(counts[1::2])), "windows": windows}


def flagged_queue(log: ScoreLog, span: Span, *, max_answers: int = QUEUE_LENGTH) -> list[dict[str, Any]]:
    """Returns flagged answers without labels, the lowest score first, with texts if the log stores them.

    An answer has a `score`, or an `agreement` if its checkpoint was trained without labels; else None.

    Args:
        log: the log.
        span: the selected answers.
        max_answers: most answers that are returned.
    """
    where = conditions(span.start, span.until, by_time=span.until - span.start <= BY_TIME_S)
    # A gate stops an answer without a number to show; training without labels gives an agreement and no score.
    has_number = sa.or_(scores.c.score.is_not(None), scores.c.heads.like(f'%"{AGREEMENT}"%'))
    where += [scores.c.flagged == 1, has_number]
    where.append(~sa.exists().where(labels.c.request_id == scores.c.request_id))
    if span.model or span.task or span.checkpoint:
        tags = {"task": span.task} if span.task else None
        context_ids = chosen_contexts(
            log.tables, model=span.model or None, checkpoint=span.checkpoint or None, tags=tags
        )
        where.append(is_one_of(scores.c.context, context_ids))
    statement = sa.select(
        *(scores.c[name] for name in ("request_id", "time", "score", "heads")),
        *(contexts.c[name] for name in ("model", "checkpoint", "task", "finish_reason")),
        scores.c.reason,
        *(sa.func.substr(scores.c[name], 1, SHOWN_TEXT).label(name) for name in ("question", "answer")),
    ).select_from(answers)
    rows = [
        dict(row._mapping)
        for row in log.tables.read(statement.where(*where).order_by(scores.c.score).limit(max_answers))
    ]
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
    rows = log.tables.read(
        sa.select(*key, *sums).where(*_span_conditions(span, hours, hours.c.hour, HOUR)).group_by(*key)
    )
    return [dict(row._mapping) for row in rows]


def _bins(log: ScoreLog, span: Span) -> dict[str, list[Bin]]:
    """Returns the sums of each version by day and hundredth, over answers with a score."""
    key = (bins.c.checkpoint, bins.c.day, bins.c.bin)
    sums = (sa.func.sum(bins.c[name]) for name in BIN_SUMS)
    where = [*_span_conditions(span, bins, bins.c.day, DAY), bins.c.bin != NO_SCORE]
    by_version: dict[str, list[Bin]] = {}
    for version, day, hundredth, n, total, flagged in log.tables.read(
        sa.select(*key, *sums).where(*where).group_by(*key)
    ):
        row = (int(day), int(hundredth), float(n), float(total), float(flagged))
        by_version.setdefault(str(version), []).append(row)
    return by_version


def _span_conditions(span: Span, table: Any, column: sa.ColumnElement[int], unit: int) -> list[sa.ColumnElement[bool]]:
    where = [column >= int(span.start // unit), column <= int(span.until // unit), table.c.shadow == 0]
    return where + [
        table.c[name] == chosen for name in ("model", "task", "checkpoint") if (chosen := getattr(span, name))
    ]


def _choices(log: ScoreLog, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the models, tasks and versions in the log; versions newest first, each with its folder if it is known."""
    choices: dict[str, Any] = {
        name: [
            str(row[0]) for row in log.tables.read(sa.select(bins.c[name]).distinct().order_by(bins.c[name]).limit(100))
        ]
        for name in ("model", "task")
    }
    statement = sa.select(bins.c.checkpoint).where(bins.c.shadow == 0).group_by(bins.c.checkpoint)
    newest = statement.order_by(sa.func.max(bins.c.day).desc(), sa.func.min(bins.c.day).desc()).limit(100)
    versions = log.tables.read(newest)
    choices["checkpoint"] = [{"checkpoint": row[0], "path": names.get(str(row[0]), "")} for row in versions]
    return choices


def _estimates(bins: Sequence[Bin], labelled: LogColumns, max_scores: int) -> dict[str, Any]:
    """Returns the accuracy of all answers, and the share of wrong ones among the accepted, each in three ways.

    Estimates from drawn labels are about the days up to the last one with a draw, because later answers had no chance.
    If so many answers are labelled that the draw does not matter, the estimates are about all days.

    Args:
        bins: sums by day and hundredth.
        labelled: the labelled answers.
        max_scores: most scores that represent all.
    """
    is_drawn = np.isfinite(labelled.propensity) & np.isfinite(labelled.label)
    last = labelled.time[is_drawn].max() // DAY if is_drawn.any() else math.inf
    estimates: dict[str, dict[str, Any]] = {"accuracy": {}, "risk": {}}
    for chosen_bins in ([row for row in bins if row[0] <= last], bins):  # days up to the last draw, then all days
        score, accepted = _representative_scores(chosen_bins, max_scores)
        nothing = np.full(len(score), np.nan)
        columns = [(score, labelled.score), (nothing, labelled.label), (nothing, labelled.propensity)]
        joined_columns = [np.concatenate(pair) for pair in columns]
        is_accepted = np.concatenate((accepted, labelled.flagged != 1))
        answer_count = round(sum(n for _, _, n, _, _ in bins))
        unflagged = answer_count - round(sum(flagged for *_, flagged in bins))
        for share_name, ways in (
            ("accuracy", estimate_accuracy(*joined_columns, answers=answer_count)),
            (
                "risk",
                [
                    estimate.complement()
                    for estimate in estimate_accuracy(
                        *(column[is_accepted] for column in joined_columns), answers=unflagged
                    )
                ],
            ),
        ):
            by_method = {
                estimate.method: asdict(estimate)
                for estimate in ways
                if chosen_bins is not bins or estimate.method == SCORES or estimate.bounded
            }
            estimates[share_name] |= by_method
    return estimates


def _representative_scores(bins: Sequence[Bin], max_scores: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Returns at most about `max_scores` scores with the distribution of all, and which of them were not flagged."""
    total = sum(n for _, _, n, _, _ in bins)
    share = min(1.0, max_scores / total) if total else 0.0
    means = np.array([scores / n for _, _, n, scores, _ in bins], dtype=np.float64)
    parts = []
    for bin_counts in (
        np.array([n - flagged for _, _, n, _, flagged in bins]),
        np.array([flagged for *_, flagged in bins]),
    ):
        # Rounded in their running sum, so that many small bins do not all vanish.
        ends = np.round(np.cumsum(bin_counts * share)).astype(np.int64) if len(bins) else np.zeros(0, dtype=np.int64)
        parts.append(np.repeat(means, np.diff(ends, prepend=0)))
    accepted = np.concatenate((np.ones(len(parts[0]), dtype=bool), np.zeros(len(parts[1]), dtype=bool)))
    return np.clip(np.concatenate(parts), 0, 1), accepted


def _over_time(span: Span, hours: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns one point a step: number of answers, how many of them are flagged, and the mean score."""
    counts: dict[int, dict[str, float]] = {}
    for row in hours:
        step_start = int(row["hour"]) * HOUR // span.step * span.step
        point = counts.setdefault(step_start, dict.fromkeys(("answers", "scored", "flagged", "score_sum"), 0.0))
        for name in point:
            point[name] += row[name]
    return [
        {
            "time": step_start,
            "answers": point["answers"],
            "flagged": point["flagged"],
            "score": point["score_sum"] / point["scored"] if point["scored"] else math.nan,
        }
        for step_start, point in sorted(counts.items())
    ]


def _labels_over_time(span: Span, bins: Sequence[Bin], labelled: LogColumns) -> list[dict[str, Any]]:
    """Returns estimates from labels and scores in windows of equal length, because one day has too few labels.

    Args:
        span: the selected answers.
        bins: sums by day and hundredth.
        labelled: the labelled answers.
    """
    width = math.ceil((span.until - span.start) / LABEL_WINDOWS / span.step) * span.step
    windows = []
    for window_start in range(int(span.start), int(span.until) + 1, int(width)):
        is_in_window = (labelled.time >= window_start) & (labelled.time < window_start + width)
        if not np.isfinite(labelled.label[is_in_window]).any():
            continue
        # Scores of whole days are also taken for windows of hours: they only help the estimate.
        bins_in_window = [row for row in bins if window_start - DAY < row[0] * DAY < window_start + width]
        scores, _ = _representative_scores(bins_in_window, MAX_REPRESENTATIVES_IN_PART)
        nothing = np.full(len(scores), np.nan)
        powered = estimate_accuracy(
            np.concatenate((scores, labelled.score[is_in_window])),
            np.concatenate((nothing, labelled.label[is_in_window])),
            np.concatenate((nothing, labelled.propensity[is_in_window])),
            answers=round(sum(n for _, _, n, _, _ in bins_in_window)),
        )[1]
        if powered.labels:
            windows.append({"from": window_start, "to": min(window_start + width, span.until), **asdict(powered)})
    return windows


def _histogram(bins: Sequence[Bin]) -> list[dict[str, float]]:
    width = SCORE_BINS // SHOWN_BINS
    bars = [{"from": i / SHOWN_BINS, "answers": 0.0, "flagged": 0.0} for i in range(SHOWN_BINS)]
    for _, hundredth, n, _, flagged in bins:
        bars[hundredth // width]["answers"] += n
        bars[hundredth // width]["flagged"] += flagged
    return bars


def _weights(labelled: LogColumns, answers: float) -> tuple[NDArray[np.bool_], Floats]:
    """Returns the mask of the rows with label and score that count, and their weights.

    If some answers were drawn, these count by their propensities. If (nearly) all `answers` are labelled, all labels
    count.
    """
    has_both = np.isfinite(labelled.label) & np.isfinite(labelled.score)
    is_drawn = has_both & np.isfinite(labelled.propensity)
    if not is_drawn.any() or is_census(int(has_both.sum()), round(answers)):
        return has_both, np.ones(int(has_both.sum()))
    return is_drawn, 1 / labelled.propensity[is_drawn]


def _reliability(bins: Sequence[Bin], labelled: LogColumns) -> list[dict[str, float]]:
    """Returns the share of right answers by score, in bins with about equal numbers of labels, with
    Wilson's interval.
    """
    is_used, weight = _weights(labelled, sum(n for _, _, n, _, _ in bins))
    score, label = labelled.score[is_used], labelled.label[is_used]
    if len(score) < 2:
        return []
    points = []
    for part in np.array_split(np.argsort(score, kind="stable"), min(RELIABILITY_BINS, max(len(score) // 10, 1))):
        w = weight[part]
        share, n = float(w @ label[part] / w.sum()), float(w.sum() ** 2 / (w @ w))  # as many labels of equal weight
        interval = Interval.of_share(share, n)
        mean = float(w @ score[part] / w.sum())
        points.append({"score": mean, "right": share, "low": interval.low, "high": interval.high, "labels": len(part)})
    return points


def _coverage(bins: Sequence[Bin], labelled: LogColumns) -> dict[str, Any]:
    """Returns the share of wrong answers among the best-scored: by the scores, and by the labels."""
    totals = np.zeros((SCORE_BINS, 2))
    for _, hundredth, n, total, _ in bins:
        totals[hundredth] += n, total
    descending = totals[::-1][totals[::-1, 0] > 0]
    counts, sums = np.cumsum(descending[:, 0]), np.cumsum(descending[:, 1])
    promised = [[float(n / counts[-1]), float(1 - total / n)] for n, total in zip(counts, sums, strict=True)]
    is_used, weight = _weights(labelled, counts[-1] if len(counts) else 0)
    order = np.argsort(-labelled.score[is_used], kind="stable")
    w, wrong = weight[order], 1 - labelled.label[is_used][order]
    covered, missed = np.cumsum(w), np.cumsum(w * wrong)
    min_labels = 10  # before, a single label moves the curve by more than a tenth
    shown_indices: list[int] = []
    if len(w) >= min_labels:
        shown_indices = (np.unique(np.linspace(min_labels, len(w), 60).astype(int)) - 1).tolist()
    return {
        "promised": promised,
        "labelled": [[covered[i] / covered[-1], missed[i] / covered[i]] for i in shown_indices],
    }


def _versions(hours: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the checkpoints that gave scores, each with its models and times, the newest first."""
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
        version = versions.setdefault(row["checkpoint"], empty)
        version["first"] = min(version["first"], int(row["hour"]) * HOUR)
        version["last"] = max(version["last"], int(row["hour"]) * HOUR)
        for name in counted:
            version[name] += row[name]
        if row["model"] not in version["models"]:
            version["models"] = sorted([*version["models"], row["model"]])
    return sorted(versions.values(), key=lambda version: (-version["last"], -version["first"]))
