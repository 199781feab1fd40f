"""Draws answers for labels by chance, doubtful ones more often, and stores the probability of each draw.

A share estimated from drawn answers, each weighted by 1 / propensity, is unbiased for any quality of the scores. The
scores only decide how wide its interval is.
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.api import atomic_write
from metaprobe.production.monitoring.entry import entry_of, format_time
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.rows import LogColumns, batches, contexts_of_sheet
from metaprobe.production.monitoring.tables import (
    ENTRIES,
    Execute,
    LogError,
    answers,
    contexts,
    current_labels,
    insert,
    is_one_of,
    sa,
    samples,
    scores,
    sheets,
)

PROPENSITY_FLOOR = 0.25
"""Lowest propensity, relative to the propensity if every answer were equally likely."""
SETTLED_S = 2.0
"""Age in seconds below which answers are left for the next sheet: their servers may not have stored them yet."""
_DOUBT_WITHOUT_SCORE = 0.5

ANSWERED_AT_KEY = "answered"
"""Key of a sheet's line: when the answer was given, in seconds since 1970. `time` would be the label's time."""
RECALIBRATED, RETRAINED = "recalibrated", "retrained"
"""Kinds of events that record until when a new version has learned from the log."""

_NEW_SAMPLE = insert(samples)
_STORE_SAMPLE = _NEW_SAMPLE.on_conflict_do_update(
    index_elements=["request_id"], set_={"propensity": _NEW_SAMPLE.excluded.propensity}
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SheetRow:
    """One answer to label. Its score is left out, so that it does not influence the labeller."""

    request_id: str
    time: float
    model: str
    tags: Mapping[str, str]
    question: str | None
    """The question; None, like `answer`, if the log stores no texts."""
    answer: str | None
    label: float | None = None
    """1 right, 0 wrong; None until it is labelled."""


@dataclass(frozen=True, slots=True)
class DrawnSheet:
    """Answers to label, and the answers from which they were drawn."""

    name: str
    rows: Sequence[SheetRow]
    candidates: int
    """Number of answers that could have been drawn."""
    known: int
    """Number of drawn answers that already have a label, so that nobody needs to look at them."""


@dataclass(frozen=True, slots=True)
class DrawRule:
    """The probability of drawing an answer: `min(1, base + slope * sqrt(score * (1 - score)))`."""

    base: float
    slope: float

    def propensities(self, doubts: Floats) -> Floats:
        """Returns the propensity of each answer, in (0, 1]. `doubts` (n,) are values of `label_deviation`."""
        return np.minimum(1.0, self.base + self.slope * doubts)


def label_deviation(scores: Floats) -> Floats:
    """Returns the standard deviation (n,) of a label that is 1 with the probability `scores`; NaN counts as one half.

    Drawing in proportion to it makes the interval narrowest, if the scores are calibrated.
    """
    clipped = np.clip(scores, 0.0, 1.0)
    return np.where(np.isnan(clipped), _DOUBT_WITHOUT_SCORE, np.sqrt(clipped * (1 - clipped)))


def rule_for(doubts: Floats, budget: int, *, floor: float = PROPENSITY_FLOOR) -> DrawRule:
    """Returns the rule that draws `budget` of these answers; all of them if there are no more.

    No propensity lies below `floor` times the share that is drawn. Raises `LogError` for a floor outside (0, 1].

    Args:
        doubts: values of `label_deviation` (n,).
        budget: number of answers to draw.
        floor: lowest relative propensity.
    """
    if not 0 < floor <= 1:
        raise LogError(f"floor {floor}; expected more than 0 and at most 1: an answer that is never drawn biases all")
    if budget >= len(doubts):
        return DrawRule(1.0, 0.0)
    mean = float(doubts.mean())
    if mean == 0:
        return DrawRule(budget / len(doubts), 0.0)
    weights = floor * mean + (1 - floor) * doubts
    low, high = 0.0, 1.0 / float(weights.min())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1.0, middle * weights).sum() < budget else (low, middle)
    return DrawRule(high * floor * mean, high * (1 - floor))


def draw_indices(propensities: Floats, generator: np.random.Generator) -> NDArray[np.intp]:
    """Returns the indices of the drawn answers. Their number is the sum of the propensities, up to rounding.

    It is systematic sampling in a random order: the probabilities are exact, and the number does not vary from draw to
    draw.
    """
    order = generator.permutation(len(propensities))
    cumulated = np.cumsum(propensities[order])
    draw_count = round(float(cumulated[-1])) if len(cumulated) else 0
    if draw_count == 0:
        return np.empty(0, dtype=np.intp)
    marks = (np.arange(draw_count) + generator.random()) * (cumulated[-1] / draw_count)
    positions = np.minimum(np.searchsorted(cumulated, marks, side="right"), len(order) - 1)
    return np.asarray(order[positions], dtype=np.intp)


def draw_sheet(
    log: ScoreLog,
    budget: int,
    *,
    since: float | None = None,
    until: float | None = None,
    model: str | None = None,
    checkpoint: str | None = None,
    tags: Mapping[str, str] | None = None,
    floor: float = PROPENSITY_FLOOR,
    seed: int | None = None,
) -> DrawnSheet:
    """Draws answers for labels, and stores their propensities in the log.

    An answer that an earlier sheet drew is not drawn again; its propensity becomes the probability of being on either
    sheet. An answer with a label may be drawn, and does not count against the budget. Raises `LogError` if no answer is
    left.

    Args:
        log: the log.
        budget: number of answers to draw.
        since: earliest time, in seconds since 1970.
        until: latest time, exclusive.
        model: model that answered; by default any.
        checkpoint: digest of the checkpoint that scored them; by default any.
        tags: tags that answers must have.
        floor: lowest relative propensity.
        seed: seed of the draw.
    """
    if budget < 1:
        raise LogError(f"budget {budget}; expected at least one answer")
    log.flush()
    while True:
        # The answers that may be drawn.
        drawn_before = _sheet_names(log.tables.read)
        now = time.time()
        start, end = since or 0.0, now - SETTLED_S if until is None else until
        # An answer of which an earlier one may still come is left for the next sheet.
        stored = 0, log.tables.settled()
        candidates = log.columns(since=start, until=end, model=model, checkpoint=checkpoint, tags=tags, stored=stored)
        is_sampled, has_label = np.isfinite(candidates.propensity), np.isfinite(candidates.label)
        is_free, is_labelled_only, doubts = (
            ~is_sampled & ~has_label,
            ~is_sampled & has_label,
            label_deviation(candidates.score),
        )
        if not is_free.any():
            raise LogError(
                f"none of the {len(is_free)} answers of that time, model, checkpoint and tags is left to be labelled: "
                "widen the choice, or look again when more have come"
            )
        # Draw, and compute the propensities.
        generator = np.random.default_rng(seed)
        rule = rule_for(doubts[is_free], budget, floor=floor)
        propensities_now = rule.propensities(doubts)
        chosen_free = np.flatnonzero(is_free)[draw_indices(propensities_now[is_free], generator)]
        chosen_known = np.flatnonzero(is_labelled_only & (generator.random(len(is_labelled_only)) < propensities_now))
        rows_to_store = np.concatenate([chosen_free, chosen_known, np.flatnonzero(is_sampled)])
        propensities_before = _earlier_propensities(log, candidates, rows_to_store)
        on_either_sheet = 1 - (1 - propensities_before) * (1 - propensities_now[rows_to_store])
        sheet = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{uuid.uuid4().hex[:6]}"
        # Store the draw, unless another sheet was drawn meanwhile.
        with log.tables.transaction(alone=True) as run:
            if _sheet_names(run) != drawn_before:
                continue  # another one was drawn meanwhile, whose answers are no longer free
            ids: dict[int, str] = {}
            for batch in batches(candidates.row[rows_to_store].tolist()):
                statement = sa.select(scores.c.id, scores.c.request_id).where(is_one_of(scores.c.id, batch))
                ids |= {int(row_id): str(name) for row_id, name in run(statement)}
            sheet_row = {
                "sheet": sheet,
                "time": now,
                "since": start,
                "until": end,
                "base": rule.base,
                "slope": rule.slope,
            }
            sheet_row |= {"model": model or "", "checkpoint": checkpoint or ""}
            sheet_row |= {"tags": json.dumps(dict(tags or {}), sort_keys=True)}
            run(insert(sheets), {**sheet_row, "stored_until": int(candidates.number.max())})
            rows = [
                {"request_id": ids[row_id], "propensity": float(p), "sheet": sheet, "time": now}
                for row_id, p in zip(candidates.row[rows_to_store].tolist(), on_either_sheet, strict=True)
                if row_id in ids  # an answer may have been deleted meanwhile
            ]
            if rows:
                run(_STORE_SAMPLE, rows)
        return DrawnSheet(sheet, sheet_rows(log, sheet), int(is_free.sum()), len(chosen_known))


def _sheet_names(read: Execute) -> set[str]:
    return {str(row[0]) for row in read(sa.select(sheets.c.sheet))}


def sheet_rows(log: ScoreLog, sheet: str) -> list[SheetRow]:
    """Returns the answers of a sheet that are not labelled yet, in the order of time; none if all are labelled."""
    of_sheet = scores.c.request_id.in_(sa.select(samples.c.request_id).where(samples.c.sheet == sheet))
    unlabelled = scores.c.request_id.not_in(sa.select(current_labels.c.request_id))
    statement = ENTRIES.where(of_sheet, unlabelled).order_by(scores.c.time, scores.c.id)
    entries = [entry_of(row) for row in log.tables.read(statement)]
    if not entries and not log.tables.read(sa.select(sheets.c.sheet).where(sheets.c.sheet == sheet)):
        latest = log.tables.read(sa.select(sheets.c.sheet).order_by(sheets.c.time.desc()).limit(5))
        names = ", ".join(str(row[0]) for row in latest) or "none"
        raise LogError(f"there is no sheet {sheet!r} in this log; the latest are {names}")
    return [
        SheetRow(entry.request_id, entry.time, entry.model, entry.tags, entry.question, entry.answer)
        for entry in entries
    ]


def _earlier_propensities(log: ScoreLog, candidates: LogColumns, indices: NDArray[np.intp]) -> Floats:
    """Returns the probability of each answer at these indices of being on an earlier sheet; shape of `indices`.

    An answer that was stored after a sheet was drawn could not be on it, whatever its own time is.

    Args:
        log: the log.
        candidates: the answers.
        indices: indices of the answers.
    """
    p_not_drawn = np.ones(len(indices))
    for sheet in log.tables.read(sa.select(sheets)):
        context_ids = contexts_of_sheet(log.tables, sheet)
        could_be_drawn = (candidates.time[indices] >= sheet.since) & (candidates.time[indices] < sheet.until)
        could_be_drawn &= candidates.number[indices] <= sheet.stored_until
        could_be_drawn &= np.isin(candidates.context[indices], list(context_ids))
        propensities = DrawRule(sheet.base, sheet.slope).propensities(label_deviation(candidates.score[indices]))
        p_not_drawn *= np.where(could_be_drawn, 1 - propensities, 1.0)
    return 1 - p_not_drawn


def write_sheet(path: str | Path, rows: Iterable[SheetRow]) -> None:
    """Writes the sheet, completely or not at all. The labeller puts 1, 0 or "unsure" into `label`."""
    with atomic_write(Path(path)) as file:
        for row in rows:
            fields = asdict(row)
            line = {"request_id": fields.pop("request_id"), ANSWERED_AT_KEY: fields.pop("time"), **fields}
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def will_not_count(log: ScoreLog, rows: Sequence[SheetRow]) -> str:
    """Returns how many labels of these answers `promote` will not count, why, and which options of `sample` help.

    `promote` counts answers that the running version scored, and that ended after the last answer from which the new
    version may have learned. Returns an empty text if labels of all of them will count.
    """
    conditions = scores.c.shadow_of.is_(None), scores.c.score.is_not(None)
    last = sa.select(sa.func.max(scores.c.id)).select_from(answers).where(*conditions).group_by(contexts.c.model)
    latest = sa.select(contexts.c.model, contexts.c.checkpoint).select_from(answers).where(scores.c.id.in_(last))
    in_service = {str(model): str(checkpoint) for model, checkpoint in log.tables.read(latest)}
    learned = _learned_until(log, running=set(in_service.values()))
    replaced: Counter[str] = Counter()
    early, until = 0, 0.0
    for row, entry in zip(rows, log.entries_named(row.request_id for row in rows), strict=True):
        checkpoint = entry.checkpoint if entry else ""
        learned_until = max(learned.get(checkpoint, 0.0), learned.get("", 0.0))
        if checkpoint != in_service.get(row.model, checkpoint):
            replaced[checkpoint] += 1
        elif row.time <= learned_until:
            early, until = early + 1, max(until, learned_until)
    reasons, options = [], []
    if early:
        reasons.append(f"{early} ended by {format_time(until)}, until when a new version has learned from the log")
        options.append(f"--since {format_time(until + 1)}")
    if replaced:
        replaced_digests = ", ".join(checkpoint[:12] for checkpoint in replaced)
        reasons.append(
            f"{replaced.total()} were scored by a checkpoint that is not in service any more ({replaced_digests})"
        )
        options.append(f"--checkpoint {' or '.join(sorted({digest[:12] for digest in in_service.values()} - {''}))}")
    if not reasons:
        return ""
    uncounted = early + replaced.total()
    return (
        f"of these {len(rows)} answers {uncounted} will not count for `promote`: {'; '.join(reasons)}. To draw only "
        f"answers that count: {' '.join(options)}"
    )


def _learned_until(log: ScoreLog, *, running: set[str]) -> dict[str, float]:
    """Returns the time until which new versions have learned, by the digest of the version from which they were made.

    The digest is empty if it is unknown. Versions that already run are not new.
    """
    until: dict[str, float] = {}
    for event in (*log.events(RECALIBRATED), *log.events(RETRAINED)):
        key = str(event.details.get("from", ""))
        if event.details.get("to") not in running:
            until[key] = max(until.get(key, 0.0), float(event.details.get("until", event.time)))
    return until
