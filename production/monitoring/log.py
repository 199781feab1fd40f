"""The score log: every verdict, the labels that came back for it, and what happened, in one database.

A score means something for one version of a checkpoint only: figures of two versions are never put together. The log
knows which versions gave its scores, what they are called, and which of them somebody means.
"""

import atexit
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from metaprobe.api import CheckpointError, Database, LabelledScores, RecordError, bundled_digests, load_checkpoint
from metaprobe.production.monitoring import retention
from metaprobe.production.monitoring.entry import MAX_NOTE, MAX_TIME, Entry, entry_of, is_census, loggable_text, moment
from metaprobe.production.monitoring.labels import (
    LABEL_SOURCES,
    OPERATOR,
    Labeller,
    dropped_labels,
    known_answers,
    let_wait,
)
from metaprobe.production.monitoring.log_writer import LOST, BackgroundWriter, Spool, add_event, spool_start
from metaprobe.production.monitoring.rows import LogColumns, batches, chosen_contexts, conditions, read_columns
from metaprobe.production.monitoring.tables import (
    ENTRIES,
    STRENGTH,
    LogError,
    Tables,
    answers,
    contexts,
    current_labels,
    events,
    first_labels,
    identity,
    insert,
    is_one_of,
    open_tables,
    sa,
    scores,
    writers,
)
from metaprobe.production.monitoring.tables import labels as label_table

logger = logging.getLogger(__name__)

CAPACITY = 10_000
"""Entries that may wait in memory to be written; a killed process loses so many at most."""
CLOSE_S = 20.0
"""How long `close` tries to store what waits."""
MAX_WHO = 200
"""Characters of who labelled."""


@dataclass(frozen=True, slots=True)
class FeedbackLabel:
    """Judgement that someone gave of one answer."""

    request_id: str
    value: float | None
    """1 right, 0 wrong, None where whoever looked was unsure; a share between them where several were asked."""
    who: str = ""
    time: float | None = None
    """Seconds since 1970; None stands for now."""
    source: str = ""
    """`human`, `program` or `judge`; empty where it is not said, which counts as a person's."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Something that happened besides: an alarm, a promotion, entries lost."""

    time: float
    kind: str
    details: Mapping[str, Any]


class ScoreLog:
    """A log of verdicts. `write` puts an entry into a queue and returns at once; a thread stores it within a second.

        >>> log = ScoreLog.open("scores.sqlite")
        >>> log.write(Entry(request_id="r1", time=1.7e9, model="m", checkpoint="c", score=0.9, flagged=False))
        >>> log.label("r1", 1, who="ada")
        >>> log.flush()
        True
        >>> columns = log.columns()
        >>> float(columns.score[0]), float(columns.label[0])
        (0.9, 1.0)
        >>> log.close()
        True

    Any number of threads may use one log, and any number of processes of a machine one file; processes of several
    machines share a PostgreSQL database. Every method but `write` raises `LogError` where the database fails.
    """

    def __init__(self, reading: Tables, writing: Tables, writer: BackgroundWriter | None, *, lost: int = 0) -> None:
        """`ScoreLog.open` is the way to one."""
        self.lost = lost
        """Entries that processes killed before had accepted and not stored, as found out when this log was opened."""
        self.tables = reading
        self._writing = writing
        self._writer = writer
        self._closing = threading.Lock()
        self._closed = False
        atexit.register(self.close)

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        capacity: int = CAPACITY,
        entries: bool = True,
        wait_s: float = Database.busy_s,
        spool: Path | None = None,
    ) -> Self:
        """The log in a SQLite file, which is made where there is none, or in the database of a SQLAlchemy URL.

        `capacity`: entries that may wait in memory. `entries`: False where none will be written, only read and judged;
        then no file is kept beside the log, which a full disk would not hold. `wait_s`: how long a statement waits
        for another process that holds a SQLite file. `spool`: the folder for what the database does not take; by
        default beside a SQLite file, and for a URL the folder for temporary files. Raises `LogError` where there is no
        such database, and `MissingExtra` for a URL without SQLAlchemy.
        """
        if capacity < 1:
            raise LogError(f"capacity {capacity}; expected at least one entry")
        reading, writing = open_tables(where, wait_s=wait_s)
        if not entries:
            return cls(reading, writing, None)
        start = spool_start(str(where).removeprefix("sqlite:///"), spool)
        left = [*Spool.left_behind(start)]
        try:
            lost = sum(_settle(reading, one) for one in left)
            own = Spool.make(start)
        except (OSError, LogError) as error:
            for one in left:
                one.let_go()
            if isinstance(error, LogError):
                raise
            raise LogError(
                f"no counter can be kept beside the score log ({error}); check that its folder can be written"
            ) from error
        writer = BackgroundWriter(writing, capacity=capacity, spool=own, left=left)
        return cls(reading, writing, writer, lost=lost)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """Entries that were not stored: the queue was full, the log closed, or they held what cannot be stored."""
        return self._writer.dropped if self._writer else 0

    @property
    def spooled(self) -> int:
        """Entries that were put into a file because the database did not take them; they are stored from there."""
        return self._writer.spooled if self._writer else 0

    @property
    def repeated(self) -> int:
        """Entries with a request id that the log held already; the first one stays."""
        return self._writer.repeated if self._writer else 0

    @property
    def dropped_labels(self) -> int:
        """Labels that were dropped since the log was made, because their answers did not come."""
        return dropped_labels(self.tables.read)

    def write(self, entry: Entry) -> bool:
        """Hands an entry over, and says whether it was taken. Never waits nor raises.

        Where the queue is full, the entry is counted as dropped.
        Raises `LogError` only where the log was opened without entries.
        """
        if self._writer is None:
            raise LogError("this score log was opened with entries=False; expected ScoreLog.open(where)")
        return self._writer.put(entry)

    def flush(self, timeout_s: float = CLOSE_S) -> bool:
        """Whether all entries handed over so far were stored within that time."""
        return self._writer is None or self._writer.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Stores what waits, and ends; whether everything was stored. May be called again.

        What could not be stored is kept in a file, which the next one to open the log for entries stores.
        """
        with self._closing:
            if self._closed:
                return True
            self._closed = True
            atexit.unregister(self.close)
            whole = self._writer is None or self._writer.close(timeout_s)
            self._writing.close()
            self.tables.close()
            return whole

    def label(
        self, request_id: str, value: float | None, *, who: str = "", time: float | None = None, source: str = ""
    ) -> None:
        """Keeps what someone said of an answer; see `FeedbackLabel`.

        Of one request the label that came last counts, but none of a program replaces a person's, and none of a judge
        replaces either.
        """
        self.add_labels([FeedbackLabel(request_id, value, who, time, source)])

    def add_labels(self, labels: Iterable[FeedbackLabel], *, by: Labeller = OPERATOR) -> int:
        """Keeps labels, all or none, and says how many are of requests in the log; the others count once theirs are.

        A request is named by its id in the log or as its caller named it. Raises `NotYours` for a request that `by` may
        not label, and `LogError` where a caller gave several requests that name.
        The others wait for 7 days, and 10,000 at most; see `metaprobe.production.monitoring.labels`.

        Of one request the label that came last counts, whatever times the labels state: clocks differ. Labels that come
        together came in the order of their times. One that states its time and is in the log already, as of a file
        that is read again, is not stored a second time. A time in the future becomes the time of now.
        """
        now, known = time.time(), 0
        rows = [(_label_row(one, now, by), one.time is not None) for one in labels]
        if not rows:
            return 0
        with self.tables.transaction() as run:
            for some in batches(sorted(rows, key=lambda pair: float(pair[0]["time"]))):
                ids = known_answers(run, [row["request_id"] for row, _ in some], by)
                known += sum(one is not None for one in ids)
                for (row, _), request_id in zip(some, ids, strict=True):
                    row["request_id"] = request_id or row["request_id"]
                chosen = label_table.c.request_id.in_({row["request_id"] for row, _ in some})
                held = run(sa.select(*(label_table.c[name] for name in _SAME)).where(chosen))
                there, new = {tuple(row) for row in held}, []
                for row, stated in some:
                    told = tuple(row[name] for name in _SAME)
                    if not stated or told not in there:
                        new.append(row)
                        there.add(told)
                if new:
                    run(insert(label_table), new)
                let_wait(run, [row["request_id"] for row, _ in some], now)
        return known

    def unknown_ids(self, request_ids: Iterable[str]) -> list[str]:
        """Returns those of these ids that name no answer of the log, each once, in their order."""
        unknown: list[str] = []
        for some in batches(dict.fromkeys(loggable_text(one, MAX_NOTE) for one in request_ids)):
            found = known_answers(self.tables.read, some, OPERATOR)
            unknown += [name for name, known in zip(some, found, strict=True) if known is None]
        return unknown

    def current_labels(self) -> list[FeedbackLabel]:
        """Returns the label that counts of every labelled request."""
        return [FeedbackLabel(*row[:5]) for row in self.tables.read(sa.select(current_labels))]

    def passed_over(self, labels: Iterable[FeedbackLabel]) -> list[FeedbackLabel]:
        """Returns those of these labels that do not count, because the log holds one of a stronger source."""
        weak = [one for one in labels if one.source in LABEL_SOURCES[1:]]
        ids = list(dict.fromkeys(loggable_text(one.request_id, MAX_NOTE) for one in weak))
        strongest: dict[str, int] = {}
        for some in batches(ids):
            of = label_table.c.request_id
            asked = sa.select(of, sa.func.min(STRENGTH)).where(of.in_(some)).group_by(of)
            strongest |= {str(name): int(rank) for name, rank in self.tables.read(asked)}
        ranks = ((one, strongest.get(loggable_text(one.request_id, MAX_NOTE))) for one in weak)
        return [one for one, rank in ranks if rank is not None and rank < LABEL_SOURCES.index(one.source)]

    def first_labels(self) -> list[FeedbackLabel]:
        """Returns the first label of every labelled request that says right or wrong, whatever later labels say."""
        asked = sa.select(first_labels).order_by(first_labels.c.id)
        return [FeedbackLabel(*row[:5]) for row in self.tables.read(asked)]

    def event(self, kind: str, details: Mapping[str, Any], *, time: float | None = None) -> None:
        """Keeps what happened. `details` must be what JSON can hold."""
        with self.event_of(kind, details, time=time):
            pass

    @contextmanager
    def event_of(self, kind: str, details: Mapping[str, Any], *, time: float | None = None) -> Iterator[None]:
        """Keeps what the block does, and only where it ends well. Raises `LogError`.

        Most of what can go wrong with the log does so before the block begins. What remains, such as a full disk, is
        found out when the block has ended: its caller must then undo what it did. The log cannot be used inside.
        """
        with self.tables.transaction() as run:
            add_event(run, kind, details, time)
            yield

    def events(self, kind: str | None = None, *, since: float = 0.0) -> list[LogEvent]:
        """Returns the events of one kind, or of all kinds, oldest first."""
        asked = sa.select(events.c.time, events.c.kind, events.c.details).where(events.c.time >= since)
        if kind is not None:
            asked = asked.where(events.c.kind == kind)
        rows = self.tables.read(asked.order_by(events.c.time, events.c.id))
        return [LogEvent(float(at), str(name), json.loads(held)) for at, name, held in rows]

    def entry(self, request_id: str) -> Entry | None:
        """Returns the entry of a request, by its id or its caller's name for it; None where the log holds none."""
        [known] = known_answers(self.tables.read, [request_id], OPERATOR)
        rows = self.tables.read(ENTRIES.where(scores.c.request_id == (known or request_id)))
        return entry_of(rows[0]) if rows else None

    def columns(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        model: str | None = None,
        checkpoint: str | None = None,
        tags: Mapping[str, str] | None = None,
        shadow: bool = False,
        labelled: bool = False,
        ids: bool = False,
        stored: tuple[int, int] | None = None,
        gated: bool = False,
    ) -> LogColumns:
        """Stored answers as arrays, in the order of their times.

        Times are seconds since 1970, `since` included and `until` not. `tags`: those that have all of these. `shadow`:
        in place of the verdicts that callers were given, those that were only compared with them. `labelled`: only
        answers that have a label or were put on a sheet. `ids`: with the request ids. `stored`: only answers with a
        number above the first of these and up to the second; see `Tables.settled`. `gated`: with answers that the gate
        ended, whose score is the gate's own and whose rest nobody has seen, so that nobody can label them.
        """
        chosen = chosen_contexts(self.tables, model=model, checkpoint=checkpoint, tags=tags)
        where = conditions(since, until, shadow=shadow, labelled=labelled, gated=gated)
        if stored is not None:
            where += [self.tables.number > stored[0], self.tables.number <= stored[1]]
        if model is not None or checkpoint is not None or tags:
            where.append(is_one_of(scores.c.context, chosen))
        return read_columns(self.tables, chosen, where, ids=ids)

    def entries(
        self, *, since: float | None = None, model: str | None = None, checkpoint: str | None = None
    ) -> Iterator[Entry]:
        """Yields the entries of the log, without shadows, in the order of their times."""
        where = conditions(since, None, gated=True)
        if model is not None or checkpoint is not None:
            chosen = chosen_contexts(self.tables, model=model, checkpoint=checkpoint, tags=None)
            where.append(is_one_of(scores.c.context, chosen))
        for rows in self.tables.read_chunks(ENTRIES.where(*where).order_by(scores.c.time, scores.c.id)):
            yield from map(entry_of, rows)

    def count_scored(
        self, checkpoint: str, *, since: float | None = None, until: float | None = None, model: str | None = None
    ) -> int:
        """Returns how many answers the checkpoint of this digest gave a score, without shadows and gated answers."""
        chosen = chosen_contexts(self.tables, model=model, checkpoint=checkpoint, tags=None)
        where = [*conditions(since, until), scores.c.score.is_not(None), is_one_of(scores.c.context, chosen)]
        return int(self.tables.read(sa.select(sa.func.count()).select_from(scores).where(*where))[0][0])

    def has_scored(self, checkpoint: str) -> bool:
        """Whether the checkpoint of this digest has scored answers of the log."""
        return bool(self.tables.read(sa.select(contexts.c.id).where(contexts.c.checkpoint == checkpoint).limit(1)))

    def shadow_scores(self, checkpoint: str) -> dict[str, float]:
        """Returns request id -> score that the checkpoint of this digest gave the same answer as a shadow."""
        asked = sa.select(scores.c.shadow_of, scores.c.score).select_from(answers)
        where = scores.c.shadow_of.is_not(None), scores.c.score.is_not(None), contexts.c.checkpoint == checkpoint
        return {str(of): float(score) for of, score in self.tables.read(asked.where(*where))}

    def questions(self) -> dict[str, str]:
        """Returns request id -> question, of the answers whose texts the log keeps."""
        asked = sa.select(scores.c.request_id, scores.c.question).where(scores.c.question.is_not(None))
        return {name: text for rows in self.tables.read_chunks(asked) for name, text in rows}

    def identity(self) -> str:
        """Returns what no other log has but a copy, wherever this one is moved."""
        return str(self.tables.read(sa.select(identity))[0][0])

    def prune(self, days: float, *, sure: bool = False) -> int:
        """Takes away answers older than `days`, and their labels; how many they were.

        Raises `LogError` where that is not plausible (`metaprobe.production.monitoring.retention`), unless `sure`.
        """
        return retention.delete_older(self.tables, days, sure=sure)

    def delete_all(self, request_ids: Sequence[str]) -> list[str]:
        """Takes away all that is known of requests, and returns those of which nothing was.

        See `metaprobe.production.monitoring.retention.delete_requests`. A SQLite file is written anew once for all.
        """
        self.flush()
        return retention.delete_requests(self.tables, request_ids)


_SAME = ("request_id", "who", "time", "value", "source")
"""Fields by which a label that is read again is recognised."""


def _label_row(label: FeedbackLabel, now: float, by: Labeller) -> dict[str, Any]:
    """The label as a row. Raises `LogError` for one that cannot be stored."""
    name: Any = label.request_id
    value: Any = label.value
    at: Any = now if label.time is None else label.time
    if not isinstance(name, str) or not name:
        raise LogError(f"a label is of request {name!r}; expected the id that came with the verdict")
    if len(name) > MAX_NOTE:
        raise LogError(f"a request id has {len(name)} characters; expected the one that came with the verdict")
    if value is not None and (isinstance(value, str) or not 0 <= value <= 1):
        raise LogError(f"request {name}: label {value!r}; expected 1 (right), 0 (wrong) or None (unsure)")
    if isinstance(at, str) or not 0 <= at < MAX_TIME:
        raise LogError(f"request {name}: time {at!r}; expected seconds since 1970")
    if label.source not in ("", *LABEL_SOURCES):
        raise LogError(f"request {name}: source {label.source!r}; expected {', '.join(LABEL_SOURCES)}, or nothing")
    return {
        "request_id": loggable_text(name, MAX_NOTE),  # as that of its entry was
        "value": None if value is None else float(value),
        "who": loggable_text(label.who, MAX_WHO),
        "time": float(min(at, now)),
        "source": label.source,
        "key_name": by.key_name,
    }


def _settle(tables: Tables, spool: Spool) -> int:
    """Returns how many entries a killed process has lost, without those in its spool, and stores that as an event."""
    rows = tables.read(sa.select(writers.c.stored).where(writers.c.writer == spool.writer))
    accepted = spool.accepted
    lost = max(0, accepted - spool.waiting - int(rows[0][0] if rows else 0))
    if lost:
        logger.warning("a process that was killed lost %d entries of the score log", lost)
    with tables.transaction() as run:
        if lost:
            add_event(run, LOST, {"entries": lost, "of": accepted})
        run(sa.delete(writers).where(writers.c.writer == spool.writer))
    spool.count(0)
    return lost


def labelled_of_log(
    log: ScoreLog,
    *,
    checkpoint: str,
    model: str | None = None,
    since: float | None = None,
    until: float | None = None,
) -> LabelledScores:
    """Returns the answers of a log that the checkpoint of this digest scored, and that have a label.

    Where (nearly) all answers that were asked for are labelled (`is_census`), each has propensity 1, also those that no
    sheet drew: nobody chose among them. Raises `RecordError` where there are none, and says whose labels there are.
    """
    columns = log.columns(since=since, until=until, model=model, labelled=True, ids=True)
    labelled = np.isfinite(columns.score) & np.isfinite(columns.label)
    mine = labelled & (columns.checkpoint == checkpoint)
    if not mine.any():
        if (since, until, model) != (None, None, None):
            of = "" if model is None else f" of model {model!r} and"
            among = labelled_of_log(log, checkpoint=checkpoint)  # raises where there are none at all
            raise RecordError(
                f"none of the {len(among)} labelled answers that checkpoint {checkpoint[:16]} scored is{of} of the "
                f"time asked for: they are of {', '.join(np.unique(among.model)[:5])}, from {moment(among.time.min())} "
                f"to {moment(among.time.max())} by the answers' own times, whenever they were labelled"
            )
        others = sorted({str(name)[:16] for name in columns.checkpoint[labelled]})
        raise RecordError(
            f"the log holds no labelled answer that checkpoint {checkpoint[:16]} scored; labelled are "
            f"{int(labelled.sum())} answers{' of checkpoints ' + ', '.join(others) if others else ''}: give the "
            "checkpoint that is in service, or label answers first (`metaprobe sample`, `metaprobe feedback`)"
        )
    count = int(mine.sum())
    whole = is_census(count, log.count_scored(checkpoint, since=since, until=until, model=model))
    return LabelledScores(
        score=columns.score[mine],
        label=columns.label[mine],
        propensity=np.ones(count) if whole else columns.propensity[mine],
        time=columns.time[mine],
        model=columns.model[mine].astype(np.str_),
        group=columns.request_id[mine].astype(np.str_),
    )


SHOWN_DIGITS = 12
"""Digits of a digest by which a version is named."""
LEAST_DIGITS = 4
"""Digits by which a version may be chosen, at least."""
_PAIRS = (("from", "from_path"), ("to", "to_path"), ("digest", "path"), ("to", "path"))
"""Details of events that name a digest and its folder."""
_KINDS = ("promoted", "rolled back", "recalibrated")


def version_names(log: ScoreLog) -> dict[str, str]:
    """Returns digest -> folder of the versions whose folder is known: from promotions and recalibrations in the log,
    and of those that come with metaprobe."""
    folders = dict(bundled_digests())
    for event in log.events():
        if event.kind not in _KINDS:
            continue
        for digest, path in _PAIRS:
            version, folder = event.details.get(digest), event.details.get(path)
            if isinstance(version, str) and isinstance(folder, str) and folder:
                folders[version] = folder
    return folders


def name_version(checkpoint: str, names: Mapping[str, str]) -> str:
    """Returns how people are told of a version: the beginning of its digest, with its folder where that is known."""
    short = checkpoint[:SHOWN_DIGITS] or "none"
    return f"{short} ({names[checkpoint]})" if checkpoint in names else short


def find_version(log: ScoreLog, given: str) -> str:
    """Returns the digest of the version that somebody names by the beginning of its digest, or by its folder.

    Raises `RecordError` where no version of the log is meant, or several are.
    """
    there = sorted({str(row[0]) for row in log.tables.read(sa.select(contexts.c.checkpoint).distinct())} - {""})
    names = version_names(log)
    meant = [one for one in there if given == names.get(one)]
    if not meant and len(given) >= LEAST_DIGITS:
        meant = [one for one in there if one.startswith(given.lower())]
    if not meant:
        with suppress(CheckpointError, OSError):
            meant = [one for one in there if one == load_checkpoint(given).digest]
    if len(meant) == 1:
        return meant[0]
    known = ", ".join(name_version(one, names) for one in there[:5])
    raise RecordError(
        f"{given!r} is {'the beginning of several' if meant else 'none'} of the checkpoints that gave this log's "
        f"scores ({known or 'none yet'}); expected a folder, or at least {LEAST_DIGITS} digits of a digest"
    )


KEPT_LENGTHS = 5_000
"""How many of the latest lengths are remembered for each model."""
LEAST_LONGER = 30
"""Fewest longer answers of which a mean is taken."""
MOST_MODELS = 256
"""How many models are remembered. The bound is needed because callers choose the names."""


class AnswerLengths:
    """Lengths of answers by model, in tokens. Any number of threads may use one."""

    def __init__(self) -> None:
        self._by_model: dict[str, deque[int]] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_log(cls, tables: Tables) -> Self:
        """Returns the lengths of the latest answers of a log that no gate ended. Raises `LogError`."""
        lengths = cls()
        asked = sa.select(contexts.c.model, scores.c.tokens).select_from(answers)
        let_go_on = contexts.c.action == "", scores.c.shadow_of.is_(None), scores.c.tokens.is_not(None)
        latest = asked.where(*let_go_on).order_by(scores.c.time.desc()).limit(4 * KEPT_LENGTHS)
        for model, tokens in reversed(tables.read(latest)):
            lengths.add(str(model), int(tokens))
        return lengths

    def add(self, model: str, tokens: int) -> None:
        """Takes in an answer that no gate ended."""
        with self._lock:
            if model in self._by_model or len(self._by_model) < MOST_MODELS:
                self._by_model.setdefault(model, deque(maxlen=KEPT_LENGTHS)).append(tokens)

    def estimate_left(self, model: str, tokens: int, most: int | None = None) -> int | None:
        """Returns how many tokens an answer that was ended after `tokens` would about have had still to come.

        It is what answers of the same model that became longer than that had still to come on average: an estimate, as
        if the ended answer had gone on like those that were let go on. None where fewer than `LEAST_LONGER` became
        longer. `most`: length at which the answer would have been cut, where that is known.
        """
        with self._lock:
            longer = [length - tokens for length in self._by_model.get(model, ()) if length > tokens]
        if len(longer) < LEAST_LONGER:
            return None
        left = round(sum(longer) / len(longer))
        return left if most is None else max(0, min(left, most - tokens))


def has_scored(where: str, digest: str) -> bool:
    """Returns whether the checkpoint of this digest has scored an answer of the log at `where`, a path or URL."""
    with ScoreLog.open(where, entries=False) as log:
        return log.has_scored(digest)
