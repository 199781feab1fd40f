"""Estimates how many answers are right, with an interval: from scores alone, from scores and some labels, from labels
alone.

All three estimate the same share of right answers among answers like these, of which N are logged and n are labelled.

    scores    mean of the scores                                              trusts that scores are calibrated
    powered   lambda * mean score of all + labelled mean of (y - lambda * score)            trusts the labels only
    labelled  labelled mean of y                                                            trusts the labels only

`powered` is prediction-powered inference with its tuned lambda (PPI++, Angelopoulos, Duchi and Zrnic 2023,
arXiv:2311.01453): lambda is the slope of labels on scores, so that a score without information does no harm. A labelled
mean weights each label by 1 / propensity, the probability with which its answer was drawn for a label, and divides by
the sum of these weights (Hajek). If draws are independent of each other (Poisson sampling), its variance is

    sum((1 - propensity) * weight^2 * residual^2) / sum(weight)^2 + variance(y) / N

The first part is for the answers that were not labelled, the second for the answers that were not logged. With equal
weights this is the interval of the package `ppi-python` (`tests/test_estimates.py`). With unequal weights that package
leaves the mean inside the residuals, and its interval is too short or too wide. Also, its import takes seconds and
silences all warnings of the process, which a server cannot accept.

The normal interval of a share is too short for few labels. So two right and two wrong answers are added before the
interval is computed, with an average score and the average weight of a unit of weight (Agresti and Coull 1998 for plain
shares).

Answers to one question, or of one conversation, are similar, so intervals for independent answers are too short. If
groups of answers are given, the variance is that of the groups' sums

    C / (C - 1) * sum over groups of (lambda * sum(score - mean score) / N + sum(weight * residual) / sum(weight))^2

for C groups that hold labels, with a quantile of Student's t with C - 1 degrees of freedom.

People who label unrequested choose their answers, which may differ from the others. So if some answers were drawn,
labels of other answers do not enter the means above. But they limit what is unknown. Whatever the unlabelled answers
are, the share of right answers among the N lies between (right labels) / N and (right labels + unlabelled answers) / N
(Manski 1990 calls these worst-case bounds). The interval around these bounds, widened only by variance(y) / N, is used
if it is narrower. Once all answers are labelled it is the interval of a census, and each label counts.

In a log, a score, a flag and a threshold have a meaning for one checkpoint only. So answers that two versions scored
are never combined, even if only labels are used: the question is what one version's users got.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.api import RecordError, plain

if TYPE_CHECKING:
    from metaprobe.production.monitoring.log import ScoreLog
    from metaprobe.production.monitoring.rows import LogColumns

Floats = NDArray[np.float64]

INTERVAL_LEVEL = 0.95
ADDED_OF_EACH = 2
"""Number of right answers, and of wrong ones, that are added to the labels for the interval."""
SCORES, POWERED, LABELLED, COUNTED = "scores", "powered", "labelled", "counted"
CALIBRATED_ASSUMPTION = "scores are calibrated on these answers; no label was asked"
BOUNDED_ASSUMPTION = "labels are right, and answers are independent; nothing is assumed of the answers without a label"
DRAWN_ASSUMPTION = "labels are right, answers are independent, and were drawn for labels with the stored propensities"
UNASKED_ASSUMPTION = (
    "labels are right, answers are independent, and the labelled ones as good as drawn at random: no propensities are "
    "stored"
)
NO_INTERVAL = "none: all answers were counted"
QUESTION_TAG = "question"
"""Replaces a tag, and stands for answers to the same question."""
ALL_ANSWERS = "all"
"""Name of the part that holds all answers."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share in [0, 1] with its 95 % interval, and the assumption under which the interval holds."""

    value: float
    """The share; NaN if nothing is known, see `reason`."""
    low: float
    high: float
    method: str
    """`scores`, `powered`, `labelled` or `counted`."""
    labels: int
    """Number of labels that it uses."""
    rows: int
    """Number of answers that it is about."""
    assumption: str
    reason: str = ""
    """Why there is no estimate, or why its interval cannot be halved; empty otherwise."""
    next_halving: int | None = None
    """Number of further labels that would halve the interval; None if no number would."""
    left_out: int = 0
    """Number of labels that it does not use because their answers were not drawn; the assumption mentions this."""
    bounded: bool = False
    """Whether it uses all labels, and holds whatever the unlabelled answers are."""

    @property
    def width(self) -> float:
        return self.high - self.low

    def complement(self) -> "Estimate":
        """Returns the estimate of the other share: of wrong answers if this is of right ones."""
        return replace(self, value=1 - self.value, low=1 - self.high, high=1 - self.low)


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """Answers of which some are labelled."""

    score: Floats
    """Scores (N,) in [0, 1]; a missing score is replaced by the mean."""
    y: Floats
    """Labels (n,) of the answers that are used, in [0, 1]."""
    predicted: Floats
    """Scores (n,) of the answers that are used."""
    propensity: Floats
    """Propensities (n,) in (0, 1] of the answers that are used."""
    assumption: str
    group: NDArray[np.int64] | None
    """Number of each answer's group (N,); None if each answer is its own group."""
    used_rows: NDArray[np.int64]
    """Indices (n,) of the labelled answers that are used."""
    labelled_rows: NDArray[np.int64]
    """Indices (m,) of all labelled answers; m >= n."""
    known_y: Floats
    """Labels (m,) of all labelled answers, in [0, 1]."""
    answers: int
    """Number of answers whose share is estimated: N, unless `score` holds representatives of them."""


def estimate_accuracy(
    score: ArrayLike,
    label: ArrayLike,
    propensity: ArrayLike | None = None,
    *,
    group: Sequence[str] | NDArray[Any] | None = None,
    level: float = INTERVAL_LEVEL,
    answers: int | None = None,
) -> tuple[Estimate, Estimate, Estimate]:
    """Returns the share of right answers in three ways: from scores, powered by scores, and from labels alone.

    If some labels have a propensity, labels of other answers are used only if so many answers are labelled that their
    choice does not matter (`Estimate.bounded`). Otherwise they are left out and counted. If no label has a propensity,
    all labelled answers count as drawn at random. Raises `RecordError` for invalid scores, labels or propensities.

    Args:
        score: scores (N,); NaN for none.
        label: labels (N,): 0, 1, or the share of several judges; NaN for none.
        propensity: probability (N,) with which each answer was drawn for a label; NaN if it was not drawn.
        group: name (N,) of each answer's group, such as its question; an answer with an empty name is its own group.
        level: share of the intervals that hold.
        answers: number of answers, if `score` holds representatives of them; N by default.
    """
    labelled = _check_answers(score, label, propensity, group, answers)
    rows = len(labelled.score)
    scores = _no_estimate(SCORES, 0, CALIBRATED_ASSUMPTION, "there are no answers")
    if rows and not np.isfinite(np.asarray(score, dtype=np.float64)).any():
        scores = _no_estimate(SCORES, rows, CALIBRATED_ASSUMPTION, "no answer has a score, only labels can tell")
    elif rows:
        value = float(labelled.score.mean())
        variance = value * (1 - value) / rows  # as if each answer were right by chance, at its score
        low, high = _interval_ends(value, variance, level)
        scores = Estimate(value, low, high, SCORES, 0, rows, CALIBRATED_ASSUMPTION)
    return scores, _estimate_from_labels(labelled, level, POWERED), _estimate_from_labels(labelled, level, LABELLED)


def estimate_share(flags: ArrayLike, *, level: float = INTERVAL_LEVEL) -> Estimate:
    """Returns the share of true values (N,), such as flags, with the interval of Agresti and Coull."""
    values = np.asarray(flags, dtype=np.float64)
    if not len(values):
        return _no_estimate(COUNTED, 0, NO_INTERVAL, "there are no answers")
    n = len(values) + 2 * ADDED_OF_EACH
    centre = (values.sum() + ADDED_OF_EACH) / n
    low, high = _interval_ends(centre, centre * (1 - centre) / n, level)
    return Estimate(float(values.mean()), low, high, COUNTED, 0, len(values), NO_INTERVAL)


def name_weeks(time: ArrayLike) -> NDArray[np.str_]:
    """Returns the ISO week, such as `2026-W48`, of each time (N,) in seconds since 1970, in UTC."""
    days = np.asarray(time, dtype=np.float64).astype("datetime64[s]").astype("datetime64[D]")
    unique, day_index = np.unique(days, return_inverse=True)
    week_names = [f"{year}-W{week:02d}" for year, week, _ in (day.isocalendar() for day in unique.tolist())]
    return np.array(week_names, dtype=np.str_)[day_index] if len(week_names) else np.zeros(0, dtype=np.str_)


def _check_answers(
    score: ArrayLike,
    label: ArrayLike,
    propensity: ArrayLike | None,
    group: Sequence[str] | NDArray[Any] | None,
    answers: int | None,
) -> Labelled:
    scores, labels = np.asarray(score, dtype=np.float64), np.asarray(label, dtype=np.float64)
    propensities = np.full(len(scores), np.nan) if propensity is None else np.asarray(propensity, dtype=np.float64)
    if not scores.shape == labels.shape == propensities.shape or scores.ndim != 1:
        raise RecordError(
            f"scores, labels and propensities have the shapes {scores.shape}, {labels.shape} and {propensities.shape}; "
            "expected one of each an answer, NaN where there is none"
        )
    has_label = np.isfinite(labels)
    for name, bad, expected in (
        ("scores", (scores < 0) | (scores > 1), "in [0, 1], or NaN"),
        ("labels", (labels < 0) | (labels > 1), "in [0, 1], or NaN"),
        ("propensities", (propensities <= 0) | (propensities > 1), "above 0 and at most 1, or NaN"),
    ):
        if bad.any():
            raise RecordError(f"{int(bad.sum())} of {len(scores)} {name} are not {expected}: mend them in the log")
    mean = float(np.nanmean(scores)) if np.isfinite(scores).any() else 0.5
    scores = np.where(np.isfinite(scores), scores, mean)
    was_drawn = has_label & np.isfinite(propensities)
    is_used = was_drawn if was_drawn.any() else has_label
    if was_drawn.any():
        assumption = DRAWN_ASSUMPTION
    else:
        propensities, assumption = (
            np.full(len(scores), max(int(has_label.sum()), 1) / max(len(scores), 1)),
            UNASKED_ASSUMPTION,
        )
    groups = None if group is None else _number_groups(group, len(scores))
    if groups is not None:
        assumption = assumption.replace("answers are independent", "groups of answers are independent")
    return Labelled(
        score=scores,
        y=labels[is_used],
        predicted=scores[is_used],
        propensity=propensities[is_used],
        assumption=assumption,
        group=groups,
        used_rows=np.flatnonzero(is_used),
        labelled_rows=np.flatnonzero(has_label),
        known_y=labels[has_label],
        answers=len(scores) if answers is None else max(answers, int(has_label.sum())),
    )


def _number_groups(group: Sequence[str] | NDArray[Any], n: int) -> NDArray[np.int64]:
    """Returns a number for each group; each empty name gets its own."""
    names = np.asarray(group).astype(np.str_)
    if names.shape != (n,):
        raise RecordError(f"groups have the shape {names.shape}; expected one name for each of {n} answers")
    numbers = np.unique(names, return_inverse=True)[1].reshape(-1)
    alone = np.flatnonzero(names == "")
    numbers[alone] = n + np.arange(len(alone))
    return np.unique(numbers, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _estimate_from_labels(labelled: Labelled, level: float, method: str) -> Estimate:
    """Returns the estimate from the drawn labels. If the bounds from all labels are narrower, it returns these.

    Args:
        labelled: the answers.
        level: confidence level of the interval.
        method: `powered` or `labelled`.
    """
    estimate = _estimate_from_drawn(labelled, level, method)
    if not len(labelled.labelled_rows):
        return estimate
    bounded = _estimate_within_bounds(labelled, level, estimate)
    if len(labelled.labelled_rows) == labelled.answers or bounded.width < estimate.width:
        return bounded
    if not (undrawn := len(labelled.labelled_rows) - len(labelled.y)):
        return estimate
    assumption = (
        f"{estimate.assumption}; {undrawn} other labels are left out: their answers were not drawn, and who chose them "
        "may have had a reason (all count once all answers are labelled)"
    )
    return replace(estimate, assumption=assumption, left_out=undrawn)


def _estimate_within_bounds(labelled: Labelled, level: float, drawn_estimate: Estimate) -> Estimate:
    """Returns the estimate from all labels, which holds whatever the unlabelled answers are.

    Args:
        labelled: the answers.
        level: share of the intervals that hold.
        drawn_estimate: the estimate from the drawn labels.
    """
    label_count, rows, right = len(labelled.labelled_rows), labelled.answers, float(labelled.known_y.sum())
    unlabelled, rows_with_added = rows - label_count, rows + 2 * ADDED_OF_EACH
    # The lowest and the highest possible share, each with the spread of answers that were not logged.
    ends = []
    for centre in ((right + ADDED_OF_EACH) / rows_with_added, (right + unlabelled + ADDED_OF_EACH) / rows_with_added):
        variance, groups = centre * (1 - centre) / rows_with_added, 0
        if labelled.group is not None:
            all_labels = replace(labelled, y=labelled.known_y, used_rows=labelled.labelled_rows)
            parts = (
                np.concatenate([labelled.known_y, np.repeat([0.0, 1.0], ADDED_OF_EACH)]) - centre
            ) / rows_with_added
            clustered, groups = _group_variance(all_labels, 0.0, parts)
            variance = max(variance, clustered)
        ends.append(_interval_ends(centre, variance, level, groups=groups))
    low, high = ends[0][0], ends[1][1]
    value = float(np.clip(drawn_estimate.value, right / rows, (right + unlabelled) / rows))
    further = ceil((high - low) / 2 * rows_with_added)  # each further label brings the ends nearer by 1 / added
    reason = "" if further <= unlabelled else f"{rows} answers are too few: no number of labels halves the interval"
    if labelled.group is not None:
        reason = "how many labels halve the interval depends on how they fall on groups"
    assumption = (
        BOUNDED_ASSUMPTION
        if labelled.group is None
        else BOUNDED_ASSUMPTION.replace("answers are", "groups of answers are", 1)
    )
    if unlabelled:
        assumption += f" ({unlabelled} of {rows})"
    added_labels = None if reason else further
    low, high = min(low, value), max(high, value)
    return Estimate(
        value, low, high, drawn_estimate.method, label_count, rows, assumption, reason, added_labels, bounded=True
    )


def _estimate_from_drawn(labelled: Labelled, level: float, method: str) -> Estimate:
    rows, n = len(labelled.score), len(labelled.y)
    if not n:
        return _no_estimate(method, rows, labelled.assumption, "there are no labels")
    mean, weight = float(labelled.score.mean()), 1 / labelled.propensity
    y = np.concatenate([labelled.y, np.repeat([0.0, 1.0], ADDED_OF_EACH)])
    f = np.concatenate([labelled.predicted, np.full(2 * ADDED_OF_EACH, mean)])
    # An added label weighs as much as a typical unit of weight. With two sheets, few labels may stand for many answers,
    # and many labels for few answers; then the interval depends on the few labels.
    typical_weight = float((weight**2).sum() / weight.sum())
    w = np.append(weight, np.full(2 * ADDED_OF_EACH, typical_weight))
    slope, spread = 0.0, float(labelled.score.var())
    if method == POWERED and spread > 1e-12:  # lambda: the slope of labels on scores
        covariance = w @ ((y - w @ y / w.sum()) * (f - w @ f / w.sum())) / w.sum()
        slope = float(np.clip(covariance / spread, 0, 1))
    residual = y - slope * f
    centred = residual - w @ residual / w.sum()
    missed_shares = np.append(1 - labelled.propensity, np.full(2 * ADDED_OF_EACH, 1 - 1 / typical_weight))
    draw_variance = float((missed_shares * w**2) @ centred**2 / w.sum() ** 2)
    share = float(w @ y / w.sum())
    answer_variance = share * (1 - share) / (rows + 2 * ADDED_OF_EACH)
    centre = float(slope * mean + w @ residual / w.sum())
    if labelled.group is not None:
        variance, groups = _group_variance(labelled, slope, w * centred / w.sum())
        low, high = _interval_ends(centre, max(variance, draw_variance + answer_variance), level, groups=groups)
    else:
        low, high = _interval_ends(centre, draw_variance + answer_variance, level)
    value = slope * mean + float(weight @ (labelled.y - slope * labelled.predicted)) / weight.sum()
    further, all_labels, all_rows = None, n + 2 * ADDED_OF_EACH, rows + 2 * ADDED_OF_EACH
    wanted_draw_variance = (
        draw_variance + answer_variance
    ) / 4 - answer_variance  # aim for `drawing`, which is proportional to 1 / labels - 1 / rows
    if labelled.group is None and wanted_draw_variance > 0 and all_labels < all_rows:
        labels_factor = (1 / all_labels - 1 / all_rows) * wanted_draw_variance / draw_variance
        further = max(ceil(1 / (labels_factor + 1 / all_rows)) - all_labels, 1)
    reason = "" if further is not None else f"{rows} answers are too few: no number of labels halves the interval"
    if labelled.group is not None:
        reason = "how many labels halve the interval depends on how they fall on groups"
    value = float(np.clip(value, 0, 1))
    return Estimate(value, min(low, value), max(high, value), method, n, rows, labelled.assumption, reason, further)


def _group_variance(labelled: Labelled, slope: float, parts: Floats) -> tuple[float, int]:
    """Returns the variance of the groups' sums, and how many groups hold labels.

    Args:
        labelled: the answers.
        slope: slope of labels on scores (lambda).
        parts: what each label (n,) adds to the estimate, followed by what each of the 4 added labels adds. Each added
            label is a group of its own.
    """
    assert labelled.group is not None
    n, rows = len(labelled.y), len(labelled.score)
    sums = np.bincount(labelled.group, weights=slope * (labelled.score - labelled.score.mean()) / rows)
    np.add.at(sums, labelled.group[labelled.used_rows], parts[:n])
    groups = len(np.unique(labelled.group[labelled.used_rows])) + 2 * ADDED_OF_EACH
    total = float(sums @ sums + parts[n:] @ parts[n:])
    return total * groups / max(groups - 1, 1), groups


def _interval_ends(centre: float, variance: float, level: float, *, groups: int = 0) -> tuple[float, float]:
    quantile = NormalDist().inv_cdf((1 + level) / 2)
    if groups:  # Student's t, by its expansion about the normal one (Cornish and Fisher)
        z, df = quantile, groups - 1
        quantile += (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    half = quantile * sqrt(max(variance, 0.0))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def _no_estimate(method: str, rows: int, assumption: str, reason: str) -> Estimate:
    return Estimate(np.nan, np.nan, np.nan, method, 0, rows, assumption, reason)


def estimate_log(
    columns: "LogColumns",
    *,
    by: str | None = None,
    group: NDArray[Any] | None = None,
    names: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the estimates of a log, one object for each version, part, share and method, as JSON types.

    Versions come newest first. `checkpoint` is the digest, and `path` its folder in `names`, or empty. `of` is
    `accuracy`, `flagged` (among answers for which the flag is known) or `risk` (share of wrong answers among those not
    flagged). The other keys are the fields of `Estimate`. Estimates from drawn labels are about the answers up to the
    last drawn one: later answers had no chance to be drawn, and may differ. Raises `RecordError` for the part
    `checkpoint`, because estimates are separate by version already.

    Args:
        columns: the answers.
        by: how answers are divided into parts: by `model`, `task`, `week`, or a tag of that name.
        group: name (N,) of each answer's group, as in `estimate_accuracy`.
        names: folder of each version, by its digest.
    """
    if by == "checkpoint":
        raise RecordError("estimates of each checkpoint stand apart already; expected model, task, week or a tag")
    if by is None:
        parts = np.full(len(columns), ALL_ANSWERS)
    elif by == "week":
        parts = name_weeks(columns.time)
    else:
        parts = (getattr(columns, by) if by in ("model", "task") else columns.tag(by)).astype(np.str_)
    versions, version_index = np.unique(columns.checkpoint.astype(np.str_), return_inverse=True)
    last_time, first_time = np.full(len(versions), -np.inf), np.full(len(versions), np.inf)
    np.maximum.at(last_time, version_index, columns.time)
    np.minimum.at(first_time, version_index, columns.time)
    for version in versions[
        np.lexsort((-first_time, -last_time))
    ].tolist():  # the one whose latest answer is latest first
        is_of_version = columns.checkpoint == version
        version_fields = {"checkpoint": version, "path": (names or {}).get(version, "")}
        for name in np.unique(parts[is_of_version]).tolist():
            rows = is_of_version & (parts == name)
            flagged = columns.flagged[rows & np.isfinite(columns.flagged)]
            estimates = [("accuracy", estimate) for estimate in _estimate_part(columns, rows, group)]
            if len(flagged):
                estimates.append(("flagged", estimate_share(flagged)))
                accepted = _estimate_part(columns, rows & (columns.flagged == 0), group)
                estimates += [("risk", estimate.complement()) for estimate in accepted]
            for share_name, estimate in estimates:
                fields: dict[str, Any] = plain(estimate)
                yield {**version_fields, "part": name, "of": share_name, **fields}


def groups_of_log(log: "ScoreLog", columns: "LogColumns", by: str) -> NDArray[Any]:
    """Returns the group of each answer (N,): the text of its question, or the value of a tag; empty if it is not known.

    For questions the columns must have been read with ids. Raises `RecordError` if no answer has a group.

    Args:
        log: the log.
        columns: the answers.
        by: `question`, or the name of a tag.
    """
    if by == QUESTION_TAG:
        questions = log.questions()
        groups = np.array([questions.get(name, "") for name in columns.request_id.tolist()], dtype=object)
    else:
        groups = columns.tag(by)
    if len(groups) and not any(groups.tolist()):
        needed = "texts of questions (serve --log-texts)" if by == QUESTION_TAG else f"a tag {by!r}"
        raise RecordError(f"no answer of the log has {needed}: answers cannot be grouped by it")
    return groups


def _estimate_part(columns: "LogColumns", rows: NDArray[np.bool_], group: NDArray[Any] | None) -> list[Estimate]:
    """Returns the share of right answers in three ways, about the answers up to the last one that was drawn.

    If so many answers are labelled that the draw does not matter, the shares are about all answers.

    Args:
        columns: the answers.
        rows: mask of the answers of the part.
        group: name of each answer's group.
    """
    is_drawn = rows & np.isfinite(columns.propensity) & np.isfinite(columns.label)
    early = rows & (columns.time <= columns.time[is_drawn].max()) if is_drawn.any() else rows
    from_all, from_reached = (
        estimate_accuracy(
            columns.score[chosen],
            columns.label[chosen],
            columns.propensity[chosen],
            group=None if group is None else group[chosen],
        )
        for chosen in (rows, early)
    )
    late = rows & ~early
    note = ""
    if late.any():
        labels = int(np.isfinite(columns.label[late]).sum())
        note = f"{int(late.sum())} answers came after the last one that was drawn, and are not part of it"
        note += f", nor are their {labels} labels" if labels else ""
        note += ": `metaprobe sample` draws from them"
    noted = [
        replace(estimate, reason="; ".join(filter(None, (estimate.reason, note)))) for estimate in from_reached[1:]
    ]
    return [
        from_all[0],
        *(
            all_estimate if all_estimate.bounded else estimate
            for all_estimate, estimate in zip(from_all[1:], noted, strict=True)
        ),
    ]
