"""The score log: every verdict, the labels that came back for it, and what happened, in one database."""

import atexit
import json
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from metaprobe.monitoring import retention, waiting_labels
from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring.label_owners import OPERATOR, Labeller, known_answer
from metaprobe.monitoring.label_values import SOURCES
from metaprobe.monitoring.log_columns import (
    CURRENT_LABELS,
    FIRST_LABELS,
    STRENGTH,
    LogColumns,
    chosen_contexts,
    conditions,
    in_contexts,
    read_columns,
)
from metaprobe.monitoring.log_events import EVENT, LOST, event_row
from metaprobe.monitoring.log_rows import MAX_NOTE, MAX_TIME, SELECT, entry_of, text_of
from metaprobe.monitoring.log_writer import BackgroundWriter
from metaprobe.monitoring.spool import SUFFIX, Spool, spool_names, spools_beside, writer_of
from metaprobe.monitoring.tables import LogError, Tables, open_tables
from metaprobe.monitoring.unwritten import Accepted, beside_of, left_behind
from metaprobe.records.database import BUSY_SECONDS

logger = logging.getLogger(__name__)

CAPACITY = 10_000
"""Entries that may wait in memory to be written; a killed process loses so many at most."""
CLOSE_S = 20.0
"""How long `close` tries to store what waits."""
MAX_WHO = 200
"""Characters of who labelled."""
_LABEL = (
    "INSERT INTO labels (request_id, value, who, time, source, key_name) "
    "VALUES (:request_id, :value, :who, :time, :source, :key_name)"
)
_SAME_LABEL = "SELECT value, source FROM labels WHERE request_id = :request_id AND who = :who AND time = :time"


@dataclass(frozen=True, slots=True)
class FeedbackLabel:
    """What someone said of one answer."""

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
    """What happened besides: an alarm, a promotion, entries lost."""

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
        wait_s: float = BUSY_SECONDS,
        spool: Path | None = None,
    ) -> Self:
        """The log in a SQLite file, which is made where there is none, or in the database of a SQLAlchemy URL.

        `capacity`: entries that may wait in memory. `entries`: False where none will be written, only read and judged;
        then no counter is kept beside the log, which a full disk would not hold. `wait_s`: how long a statement waits
        for another process that holds a SQLite file. `spool`: the folder for what the database does not take; by
        default beside a SQLite file, and for a URL the folder for temporary files. Raises `LogError` where there is no
        such database, and `MissingExtra` for a URL without SQLAlchemy.
        """
        if capacity < 1:
            raise LogError(f"capacity {capacity}; expected at least one entry")
        reading, writing = open_tables(where, wait_s=wait_s)
        if not entries:
            return cls(reading, writing, None)
        beside = beside_of(str(where).removeprefix("sqlite:///"))
        spools = spool_names(str(where), beside, spool)
        left = [found for path in spools_beside(spools) if (found := Spool.left_behind(path)) is not None]
        try:
            waiting = {writer_of(one.path): one.waiting for one in left}
            lost = sum(_settle(reading, name, n, waiting.get(name, 0)) for name, n in left_behind(beside))
            accepted = Accepted(beside)
        except OSError as error:
            for one in left:
                one.close()
            raise LogError(
                f"no counter can be kept beside the score log ({error}); check that its folder can be written"
            ) from error
        own = Spool(spools.with_name(f"{spools.name}.{accepted.name}{SUFFIX}"))
        writer = BackgroundWriter(writing, accepted, capacity=capacity, spool=own, left=left)
        return cls(reading, writing, writer, lost=lost)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        return waiting_labels.dropped_labels(self.tables.read)

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
        The others wait for 7 days, and 10,000 at most; see `metaprobe.monitoring.waiting_labels`.

        Of one request the label that came last counts, whatever times the labels state: clocks differ. Labels that come
        together came in the order of their times. One that states its time and is in the log already, as of a file
        that is read again, is not stored a second time. A time in the future becomes the time of now.
        """
        now, labels = time.time(), list(labels)
        rows: list[dict[str, Any]] = [
            {
                "request_id": one.request_id,
                "value": one.value,
                "who": text_of(one.who, MAX_WHO),
                "time": now if one.time is None else one.time,
                "source": one.source,
                "key_name": by.key_name,
            }
            for one in labels
        ]
        for row in rows:
            _check_label(row)
            row["request_id"] = text_of(row["request_id"], MAX_NOTE)  # as that of its entry was
            row["time"] = min(row["time"], now)
        stated = [one.time is not None for one in labels]
        places = sorted(range(len(rows)), key=lambda place: float(rows[place]["time"]))
        if not rows:
            return 0
        with self.tables.transaction() as run:
            known = [known_answer(run, str(row["request_id"]), by) for row in rows]
            for row, found in zip(rows, known, strict=True):
                row["request_id"] = found or row["request_id"]
            for place in places:
                row = rows[place]
                there = run(_SAME_LABEL, row) if stated[place] else ()
                if (row["value"], row["source"]) not in [tuple(one) for one in there]:
                    run(_LABEL, row)
            waiting_labels.let_wait(run, [str(row["request_id"]) for row in rows], now)
        return sum(found is not None for found in known)

    def current_labels(self) -> list[FeedbackLabel]:
        """Of every labelled request the label that counts."""
        return [FeedbackLabel(*row) for row in self.tables.read(CURRENT_LABELS)]

    def passed_over(self, labels: Iterable[FeedbackLabel]) -> list[FeedbackLabel]:
        """Returns those of these labels that do not count, because the log holds one of a stronger source."""
        weak = [one for one in labels if one.source in SOURCES[1:]]
        found = []
        for one in weak:
            asked = f"SELECT 1 FROM labels WHERE request_id = :request_id AND {STRENGTH} < :strength LIMIT 1"
            values = {"request_id": text_of(one.request_id, MAX_NOTE), "strength": SOURCES.index(one.source)}
            if self.tables.read(asked, values):
                found.append(one)
        return found

    def first_labels(self) -> list[FeedbackLabel]:
        """Of every labelled request the first label that says something, whatever was said later."""
        return [FeedbackLabel(*row) for row in self.tables.read(FIRST_LABELS)]

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
            run(EVENT, event_row(kind, details, time))
            yield

    def events(self, kind: str | None = None, *, since: float = 0.0) -> list[LogEvent]:
        """What happened, oldest first; of one kind, or of all."""
        asked = "SELECT time, kind, details FROM events WHERE time >= :since"
        values: dict[str, Any] = {"since": since}
        if kind is not None:
            asked += " AND kind = :kind"
            values["kind"] = kind
        rows = self.tables.read(asked + " ORDER BY time, id", values)
        return [LogEvent(float(at), str(name), json.loads(held)) for at, name, held in rows]

    def entry(self, request_id: str) -> Entry | None:
        """What the log holds of one request, by its id or as its caller named it; None where it holds nothing."""
        request_id = known_answer(self.tables.read, request_id, OPERATOR) or request_id
        rows = self.tables.read(f"{SELECT} WHERE s.request_id = :request_id", {"request_id": request_id})
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
        number above the first of these and up to the second; see `settled`. `gated`: with answers that the gate ended,
        whose score is the gate's own and whose rest nobody has seen, so that nobody can label them.
        """
        contexts = chosen_contexts(self.tables, model=model, checkpoint=checkpoint, tags=tags)
        where, values = conditions(since, until, shadow=shadow, labelled=labelled, gated=gated)
        if stored is not None:
            where.append(f"{self.tables.number} > :after AND {self.tables.number} <= :last")
            values["after"], values["last"] = stored
        if model is not None or checkpoint is not None or tags:
            where.append(in_contexts(contexts))
        return read_columns(self.tables, contexts, where, values, ids=ids)

    def identity(self) -> str:
        """Returns what no other log has but a copy, wherever this one is moved; made when it is first asked for."""
        with self.tables.transaction(alone=True) as run:
            if not run("SELECT identity FROM identity"):
                run("INSERT INTO identity (identity) VALUES (:identity)", {"identity": uuid.uuid4().hex})
            return str(run("SELECT identity FROM identity")[0][0])

    def settled(self) -> int:
        """Returns the number up to which all answers are there: none at or below it will come later.

        Answers are numbered as they are stored, and no number is given twice. Who has read up to this number has
        missed no answer, however late it was stored and whatever its own time is.
        """
        return self.tables.settled()

    def prune(self, days: float, *, sure: bool = False) -> int:
        """Takes away answers older than `days`, and their labels; how many they were.

        Raises `LogError` where that is not plausible (`metaprobe.monitoring.pruning`), unless `sure`.
        """
        return retention.prune(self.tables, days, sure=sure)

    def delete(self, request_id: str, *, store: str | Path | None = None) -> bool:
        """Takes away all that is known of one request; whether anything was. See `delete_all`."""
        return not self.delete_all([request_id], store=store)

    def delete_all(self, request_ids: Sequence[str], *, store: str | Path | None = None) -> list[str]:
        """Takes away all that is known of requests, and returns those of which nothing was.

        See `metaprobe.monitoring.retention.delete`. A SQLite file is written anew once for all of them.
        """
        self.flush()
        return retention.delete(self.tables, request_ids, store=store)

    def rotate(self, store: str | Path, *, days: float) -> int:
        """Moves log-probabilities older than `days` to a run store; see `metaprobe.monitoring.retention.rotate`."""
        return retention.rotate(self.tables, store, days=days)


def _check_label(row: Mapping[str, Any]) -> None:
    value, at, identity = row["value"], row["time"], row["request_id"]
    if not isinstance(identity, str) or not identity:
        raise LogError(f"a label is of request {identity!r}; expected the id that came with the verdict")
    if len(identity) > MAX_NOTE:
        raise LogError(f"a request id has {len(identity)} characters; expected the one that came with the verdict")
    if value is not None and (isinstance(value, str) or not 0 <= value <= 1):
        raise LogError(f"request {identity}: label {value!r}; expected 1 (right), 0 (wrong) or None (unsure)")
    if isinstance(at, str) or not 0 <= at < MAX_TIME:
        raise LogError(f"request {identity}: time {at!r}; expected seconds since 1970")
    if row["source"] not in ("", *SOURCES):
        raise LogError(f"request {identity}: source {row['source']!r}; expected {', '.join(SOURCES)}, or nothing")


def _settle(tables: Tables, writer: str, accepted: int, spooled: int) -> int:
    """How many entries a process that was killed has lost, those in its file not counted; said in the log's events."""
    rows = tables.read("SELECT stored FROM writers WHERE writer = :writer", {"writer": writer})
    lost = max(0, accepted - spooled - int(rows[0][0] if rows else 0))
    if lost:
        logger.warning("a process that was killed lost %d entries of the score log", lost)
    with tables.transaction() as run:
        if lost:
            run(EVENT, event_row(LOST, {"entries": lost, "of": accepted}, None))
        run("DELETE FROM writers WHERE writer = :writer", {"writer": writer})
    return lost
