"""Whom to label: answers are drawn by chance, the doubtful ones more often, and how likely each was is kept.

A share estimated from the drawn answers, each weighted by one over its propensity, is unbiased whatever the scores are
worth: they only decide how wide its interval is.
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.monitoring.log import ScoreLog
from metaprobe.monitoring.log_columns import CURRENT_LABELS, chosen_contexts, conditions, in_contexts
from metaprobe.monitoring.log_rows import SELECT, entry_of
from metaprobe.monitoring.tables import Execute, LogError, Row

FLOOR = 0.25
"""The least propensity, as a share of what it would be if every answer were equally likely."""
SETTLED_S = 2.0
"""Answers younger than this are left for the next sheet: their servers may not have stored them yet."""
_DOUBT_WITHOUT_SCORE = 0.5

_SHEET = (
    "INSERT INTO sheets (sheet, time, since, until, model, checkpoint, tags, base, slope, stored_until) "
    "VALUES (:sheet, :time, :since, :until, :model, :checkpoint, :tags, :base, :slope, :stored_until)"
)
_SAMPLE = (
    "INSERT INTO samples (request_id, propensity, sheet, time) VALUES (:request_id, :propensity, :sheet, :time) "
    "ON CONFLICT (request_id) DO UPDATE SET propensity = excluded.propensity"
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SheetRow:
    """One answer to be labelled. Its score is left out: whoever labels is not to lean on it."""

    request_id: str
    time: float
    model: str
    tags: Mapping[str, str]
    question: str | None
    """None, as `answer`, where the log keeps no texts."""
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
        """Of answers of which `doubts` are the values of `doubt`; shape (n,), in (0, 1]."""
        return np.minimum(1.0, self.base + self.slope * doubts)


def doubt(scores: Floats) -> Floats:
    """The standard deviation of a label that is 1 with that probability; shape (n,), NaN counts as one half.

    Drawing in proportion to it makes the interval narrowest, as far as the scores are calibrated.
    """
    known = np.clip(scores, 0.0, 1.0)
    return np.where(np.isnan(known), _DOUBT_WITHOUT_SCORE, np.sqrt(known * (1 - known)))


def rule_for(doubts: Floats, budget: int, *, floor: float = FLOOR) -> DrawRule:
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
    floor: float = FLOOR,
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
    choice = _Choice(model, checkpoint, tags)
    while (sheet := _draw(log, budget, since, until, choice, floor, seed)) is None:
        pass  # another one was drawn meanwhile
    return sheet


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which answers may be drawn; None for all."""

    model: str | None
    checkpoint: str | None
    tags: Mapping[str, str] | None

    def contexts(self, log: ScoreLog) -> Mapping[int, Row]:
        return chosen_contexts(log.tables, model=self.model, checkpoint=self.checkpoint, tags=self.tags)


def _draw(
    log: ScoreLog,
    budget: int,
    since: float | None,
    until: float | None,
    choice: _Choice,
    floor: float,
    seed: int | None,
) -> DrawnSheet | None:
    """None where a sheet was drawn while this one was: what it drew is then no longer free, and counts before."""
    drawn_before = _sheets(log.tables.read)
    now = time.time()
    start, end = since or 0.0, now - SETTLED_S if until is None else until
    candidates = _candidates(log, since=start, until=end, choice=choice)
    free, known = ~candidates.sampled & ~candidates.labelled, ~candidates.sampled & candidates.labelled
    if not free.any():
        raise LogError(
            f"none of the {len(free)} answers of that time, model, checkpoint and tags is left to be labelled: widen "
            "the choice, or look again when more have come"
        )
    generator = np.random.default_rng(seed)
    rule = rule_for(candidates.doubts[free], budget, floor=floor)
    now_likely = rule.propensities(candidates.doubts)
    chosen_free = np.flatnonzero(free)[drawn(now_likely[free], generator)]
    chosen_known = np.flatnonzero(known & (generator.random(len(known)) < now_likely))
    changed = np.concatenate([chosen_free, chosen_known, np.flatnonzero(candidates.sampled)])
    before = _earlier_propensities(log, candidates, changed)
    either = 1 - (1 - before) * (1 - now_likely[changed])
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{uuid.uuid4().hex[:6]}"
    with log.tables.transaction(alone=True) as run:
        if _sheets(run) != drawn_before:
            return None
        ids = _request_ids(run, candidates.ids[changed])
        given = {"sheet": name, "time": now, "since": start, "until": end, "base": rule.base, "slope": rule.slope}
        given |= {"model": choice.model or "", "checkpoint": choice.checkpoint or ""}
        given |= {"tags": json.dumps(dict(choice.tags or {}), sort_keys=True)}
        run(_SHEET, {**given, "stored_until": int(candidates.numbers.max())})
        run(
            _SAMPLE,
            [
                {"request_id": request_id, "propensity": float(p), "sheet": name, "time": now}
                for request_id, p in zip(ids, either, strict=True)
                if request_id is not None
            ],
        )
    return DrawnSheet(name, sheet_rows(log, name), int(free.sum()), len(chosen_known))


def _sheets(read: Execute) -> set[str]:
    return {str(row[0]) for row in read("SELECT sheet FROM sheets")}


def sheet_rows(log: ScoreLog, sheet: str) -> list[SheetRow]:
    """The answers of a sheet that nobody has labelled yet, in the order of their times; of a sheet done, none."""
    asked = (
        f"{SELECT} JOIN samples p ON p.request_id = s.request_id LEFT JOIN ({CURRENT_LABELS}) l "
        "ON l.request_id = s.request_id WHERE p.sheet = :sheet AND l.request_id IS NULL ORDER BY s.time, s.id"
    )
    entries = [entry_of(row) for row in log.tables.read(asked, {"sheet": sheet})]
    if not entries and not log.tables.read("SELECT 1 FROM sheets WHERE sheet = :sheet", {"sheet": sheet}):
        names = [str(row[0]) for row in log.tables.read("SELECT sheet FROM sheets ORDER BY time DESC LIMIT 5")]
        raise LogError(f"there is no sheet {sheet!r} in this log; the latest are {', '.join(names) or 'none'}")
    return [SheetRow(e.request_id, e.time, e.model, e.tags, e.question, e.answer) for e in entries]


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Answers that may be drawn; arrays of shape (n,)."""

    ids: NDArray[np.int64]
    numbers: NDArray[np.int64]
    """In the order of commits; see `monitoring.log_numbers`."""
    times: Floats
    contexts: NDArray[np.int64]
    doubts: Floats
    sampled: NDArray[np.bool_]
    labelled: NDArray[np.bool_]


def _candidates(log: ScoreLog, *, since: float, until: float, choice: _Choice) -> _Candidates:
    where, values = conditions(since, until, shadow=False)
    if choice.model is not None or choice.checkpoint is not None or choice.tags:
        where.append(in_contexts(choice.contexts(log)))
    number = log.tables.number  # an answer of which an earlier one may still come is left for the next sheet
    where, values = [*where, f"{number} <= :last"], {**values, "last": log.settled()}
    asked = (
        "SELECT s.id, s.time, s.context, s.score, p.request_id IS NOT NULL, l.value IS NOT NULL, "
        f"{number} FROM scores s "
        "LEFT JOIN samples p ON p.request_id = s.request_id "
        f"LEFT JOIN ({CURRENT_LABELS}) l ON l.request_id = s.request_id WHERE {' AND '.join(where)}"
    )
    chunks = list(log.tables.read_chunks(asked, values))
    parts = [np.array([row[:6] for row in rows], dtype=np.float64).reshape(-1, 6) for rows in chunks]
    held = np.concatenate(parts) if parts else np.empty((0, 6))
    return _Candidates(
        held[:, 0].astype(np.int64),
        np.array([row[6] for rows in chunks for row in rows], dtype=np.int64),
        held[:, 1],
        held[:, 2].astype(np.int64),
        doubt(held[:, 3]),
        held[:, 4].astype(bool),
        held[:, 5].astype(bool),
    )


def _earlier_propensities(log: ScoreLog, candidates: _Candidates, places: NDArray[np.intp]) -> Floats:
    """How likely the answers at these places were to be on one of the sheets drawn before; shape of `places`.

    An answer that was stored after a sheet was drawn could not be on it, whatever its own time is.
    """
    spared = np.ones(len(places))
    for since, until, model, checkpoint, tags, base, slope, stored_until in log.tables.read(
        "SELECT since, until, model, checkpoint, tags, base, slope, stored_until FROM sheets"
    ):
        fitting = _Choice(model or None, checkpoint or None, _tags(tags)).contexts(log)
        covered = (candidates.times[places] >= since) & (candidates.times[places] < until)
        covered &= candidates.numbers[places] <= stored_until
        covered &= np.isin(candidates.contexts[places], list(fitting))
        likely = DrawRule(float(base), float(slope)).propensities(candidates.doubts[places])
        spared *= np.where(covered, 1 - likely, 1.0)
    return 1 - spared


def _tags(held: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in json.loads(held).items()}


def _request_ids(run: Execute, ids: NDArray[np.int64]) -> list[str | None]:
    """The request ids of rows; None for one that was taken away meanwhile."""
    found = [run("SELECT request_id FROM scores WHERE id = :id", {"id": int(at)}) for at in ids]
    return [str(rows[0][0]) if rows else None for rows in found]
