"""Draws answers to be labelled by chance, the doubtful ones more often, and keeps how likely each draw was.

A share estimated from the drawn answers, each weighted by one over its propensity, is unbiased whatever the scores are
worth: they only decide how wide its interval is.
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
from metaprobe.production.monitoring.entry import entry_of, moment
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
"""The least propensity, as a share of what it would be if every answer were equally likely."""
SETTLED_S = 2.0
"""Answers younger than this are left for the next sheet: their servers may not have stored them yet."""
_DOUBT_WITHOUT_SCORE = 0.5

ANSWERED_AT_KEY = "answered"
"""Key of a sheet's line: when the answer was given, in seconds since 1970. `time` would be the label's."""
RECALIBRATED, RETRAINED = "recalibrated", "retrained"
"""Kinds of events that say until when a new version has learned from the log."""

_DRAWN = insert(samples)
_SAMPLE = _DRAWN.on_conflict_do_update(index_elements=["request_id"], set_={"propensity": _DRAWN.excluded.propensity})

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SheetRow:
    """One answer to be labelled. Its score is left out: whoever labels is not to lean on it."""

    request_id: str
    time: float
    model: str
    tags: Mapping[str, str]
    question: str | None
    """The question; None, like `answer`, where the log keeps no texts."""
    answer: str | None
    label: float | None = None
    """1 right, 0 wrong; None until somebody has said."""


@dataclass(frozen=True, slots=True)
class DrawnSheet:
    """Answers to be labelled, and what they were drawn from."""

    name: str
    rows: Sequence[SheetRow]
    candidates: int
    """Answers that could have been drawn."""
    known: int
    """Answers that were drawn as well and have a label already, so that nobody need look at them."""


@dataclass(frozen=True, slots=True)
class DrawRule:
    """How likely an answer is to be drawn: `min(1, base + slope * sqrt(score * (1 - score)))`."""

    base: float
    slope: float

    def propensities(self, doubts: Floats) -> Floats:
        """Returns the propensity of each answer, in (0, 1]. `doubts` (n,): values of `label_deviation`."""
        return np.minimum(1.0, self.base + self.slope * doubts)


def label_deviation(scores: Floats) -> Floats:
    """The standard deviation of a label that is 1 with that probability; shape (n,), NaN counts as one half.

    Drawing in proportion to it makes the interval narrowest, as far as the scores are calibrated.
    """
    known = np.clip(scores, 0.0, 1.0)
    return np.where(np.isnan(known), _DOUBT_WITHOUT_SCORE, np.sqrt(known * (1 - known)))


def rule_for(doubts: Floats, budget: int, *, floor: float = PROPENSITY_FLOOR) -> DrawRule:
    """The rule by which `budget` of these answers are drawn; all of them where there are no more.

    No propensity lies below `floor` times the share that is drawn. Raises `LogError` for a floor outside (0, 1].
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


def drawn(propensities: Floats, generator: np.random.Generator) -> NDArray[np.intp]:
    """Places of the answers drawn, each with its propensity; their number is the sum of all, up to rounding.

    Systematic sampling in a random order: the probabilities are exact, and the number does not vary from draw to draw.
    """
    order = generator.permutation(len(propensities))
    ends = np.cumsum(propensities[order])
    total = round(float(ends[-1])) if len(ends) else 0
    if total == 0:
        return np.empty(0, dtype=np.intp)
    marks = (np.arange(total) + generator.random()) * (ends[-1] / total)
    places = np.minimum(np.searchsorted(ends, marks, side="right"), len(order) - 1)
    return np.asarray(order[places], dtype=np.intp)


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
    """Draws answers of that time, model, checkpoint and tags to be labelled, and keeps their propensities in the log.

    `checkpoint`: the digest of the checkpoint that scored them.

    An answer that an earlier sheet drew is not drawn again; its propensity becomes that of being on either. One that
    has a label already may be drawn and does not count against the budget. Raises `LogError` where nothing is left.
    """
    if budget < 1:
        raise LogError(f"budget {budget}; expected at least one answer")
    log.flush()
    while True:
        drawn_before = _sheets(log.tables.read)
        now = time.time()
        start, end = since or 0.0, now - SETTLED_S if until is None else until
        # An answer of which an earlier one may still come is left for the next sheet.
        stored = 0, log.tables.settled()
        candidates = log.columns(since=start, until=end, model=model, checkpoint=checkpoint, tags=tags, stored=stored)
        sampled, labelled = np.isfinite(candidates.propensity), np.isfinite(candidates.label)
        free, known, doubts = ~sampled & ~labelled, ~sampled & labelled, label_deviation(candidates.score)
        if not free.any():
            raise LogError(
                f"none of the {len(free)} answers of that time, model, checkpoint and tags is left to be labelled: "
                "widen the choice, or look again when more have come"
            )
        generator = np.random.default_rng(seed)
        rule = rule_for(doubts[free], budget, floor=floor)
        now_likely = rule.propensities(doubts)
        chosen_free = np.flatnonzero(free)[drawn(now_likely[free], generator)]
        chosen_known = np.flatnonzero(known & (generator.random(len(known)) < now_likely))
        changed = np.concatenate([chosen_free, chosen_known, np.flatnonzero(sampled)])
        before = _earlier_propensities(log, candidates, changed)
        either = 1 - (1 - before) * (1 - now_likely[changed])
        sheet = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{uuid.uuid4().hex[:6]}"
        with log.tables.transaction(alone=True) as run:
            if _sheets(run) != drawn_before:
                continue  # another one was drawn meanwhile, whose answers are no longer free
            ids: dict[int, str] = {}
            for some in batches(candidates.row[changed].tolist()):
                asked = sa.select(scores.c.id, scores.c.request_id).where(is_one_of(scores.c.id, some))
                ids |= {int(at): str(name) for at, name in run(asked)}
            given = {"sheet": sheet, "time": now, "since": start, "until": end, "base": rule.base, "slope": rule.slope}
            given |= {"model": model or "", "checkpoint": checkpoint or ""}
            given |= {"tags": json.dumps(dict(tags or {}), sort_keys=True)}
            run(insert(sheets), {**given, "stored_until": int(candidates.number.max())})
            rows = [
                {"request_id": ids[at], "propensity": float(p), "sheet": sheet, "time": now}
                for at, p in zip(candidates.row[changed].tolist(), either, strict=True)
                if at in ids  # one may have been taken away meanwhile
            ]
            if rows:
                run(_SAMPLE, rows)
        return DrawnSheet(sheet, sheet_rows(log, sheet), int(free.sum()), len(chosen_known))


def _sheets(read: Execute) -> set[str]:
    return {str(row[0]) for row in read(sa.select(sheets.c.sheet))}


def sheet_rows(log: ScoreLog, sheet: str) -> list[SheetRow]:
    """The answers of a sheet that nobody has labelled yet, in the order of their times; of a sheet done, none."""
    of_sheet = scores.c.request_id.in_(sa.select(samples.c.request_id).where(samples.c.sheet == sheet))
    unlabelled = scores.c.request_id.not_in(sa.select(current_labels.c.request_id))
    asked = ENTRIES.where(of_sheet, unlabelled).order_by(scores.c.time, scores.c.id)
    entries = [entry_of(row) for row in log.tables.read(asked)]
    if not entries and not log.tables.read(sa.select(sheets.c.sheet).where(sheets.c.sheet == sheet)):
        latest = log.tables.read(sa.select(sheets.c.sheet).order_by(sheets.c.time.desc()).limit(5))
        names = ", ".join(str(row[0]) for row in latest) or "none"
        raise LogError(f"there is no sheet {sheet!r} in this log; the latest are {names}")
    return [SheetRow(e.request_id, e.time, e.model, e.tags, e.question, e.answer) for e in entries]


def _earlier_propensities(log: ScoreLog, candidates: LogColumns, places: NDArray[np.intp]) -> Floats:
    """Returns how likely the answers at these places were to be on an earlier sheet; shape of `places`.

    An answer that was stored after a sheet was drawn could not be on it, whatever its own time is.
    """
    spared = np.ones(len(places))
    for sheet in log.tables.read(sa.select(sheets)):
        fitting = contexts_of_sheet(log.tables, sheet)
        covered = (candidates.time[places] >= sheet.since) & (candidates.time[places] < sheet.until)
        covered &= candidates.number[places] <= sheet.stored_until
        covered &= np.isin(candidates.context[places], list(fitting))
        likely = DrawRule(sheet.base, sheet.slope).propensities(label_deviation(candidates.score[places]))
        spared *= np.where(covered, 1 - likely, 1.0)
    return 1 - spared


def write_sheet(path: str | Path, rows: Iterable[SheetRow]) -> None:
    """Writes the sheet, whole or not at all. Whoever labels puts 1, 0 or "unsure" into `label`."""
    with atomic_write(Path(path)) as file:
        for row in rows:
            held = asdict(row)
            line = {"request_id": held.pop("request_id"), ANSWERED_AT_KEY: held.pop("time"), **held}
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def will_not_count(log: ScoreLog, rows: Sequence[SheetRow]) -> str:
    """Returns how many labels of these answers `promote` will not count, why, and which options of `sample` help.

    It counts answers that the running version scored, and that ended after the last answer from which the new version
    may have learned. Returns nothing where labels of all of them will count.
    """
    given = scores.c.shadow_of.is_(None), scores.c.score.is_not(None)
    last = sa.select(sa.func.max(scores.c.id)).select_from(answers).where(*given).group_by(contexts.c.model)
    latest = sa.select(contexts.c.model, contexts.c.checkpoint).select_from(answers).where(scores.c.id.in_(last))
    in_service = {str(model): str(checkpoint) for model, checkpoint in log.tables.read(latest)}
    learned = _learned(log, running=set(in_service.values()))
    replaced: Counter[str] = Counter()
    early, until = 0, 0.0
    for row in rows:
        entry = log.entry(row.request_id)
        checkpoint = entry.checkpoint if entry else ""
        learned_until = max(learned.get(checkpoint, 0.0), learned.get("", 0.0))
        if checkpoint != in_service.get(row.model, checkpoint):
            replaced[checkpoint] += 1
        elif row.time <= learned_until:
            early, until = early + 1, max(until, learned_until)
    whys, helps = [], []
    if early:
        whys.append(f"{early} ended by {moment(until)}, until when a new version has learned from the log")
        helps.append(f"--since {moment(until + 1)}")
    if replaced:
        named = ", ".join(checkpoint[:12] for checkpoint in replaced)
        whys.append(f"{replaced.total()} were scored by a checkpoint that is not in service any more ({named})")
        helps.append(f"--checkpoint {' or '.join(sorted({one[:12] for one in in_service.values()} - {''}))}")
    if not whys:
        return ""
    uncounted = early + replaced.total()
    return (
        f"of these {len(rows)} answers {uncounted} will not count for `promote`: {'; '.join(whys)}. To draw only "
        f"answers that count: {' '.join(helps)}"
    )


def _learned(log: ScoreLog, *, running: set[str]) -> dict[str, float]:
    """Returns the time until which new versions have learned, by the digest of the version they were made of.

    The digest is empty where that is unknown. Versions that run by now are no new ones.
    """
    until: dict[str, float] = {}
    for event in (*log.events(RECALIBRATED), *log.events(RETRAINED)):
        key = str(event.details.get("from", ""))
        if event.details.get("to") not in running:
            until[key] = max(until.get(key, 0.0), float(event.details.get("until", event.time)))
    return until
