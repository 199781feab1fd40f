"""The score log: every verdict, its labels, and events, in one database.

A score has a meaning only for one version of a checkpoint, so figures of two versions are never combined. The log knows
which versions gave its scores, their names, and which version a user names.
"""

import atexit
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from metaprobe.api import Checkpoint, CheckpointError, Database, LabelledScores, RecordError
from metaprobe.production.monitoring import retention
from metaprobe.production.monitoring.entry import (
    CONTEXT_COLUMNS,
    MAX_NOTE,
    MAX_TIME,
    Entry,
    entry_of,
    format_time,
    is_census,
    loggable_text,
)
from metaprobe.production.monitoring.label_words import LABEL_SOURCES
from metaprobe.production.monitoring.labeller import OPERATOR, Labeller, known_answers
from metaprobe.production.monitoring.log_writer import LOST_EVENT, BackgroundWriter, Spool, add_event, spool_start
from metaprobe.production.monitoring.rows import LogColumns, batches, chosen_contexts, conditions, read_columns
from metaprobe.production.monitoring.tables import (
    ENTRIES,
    SOURCE_RANK,
    LogError,
    Tables,
    agreements,
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
from metaprobe.production.monitoring.waiting_labels import dropped_labels, let_wait

logger = logging.getLogger(__name__)

CAPACITY = 10_000
"""Most entries that wait in memory to be written. A killed process loses at most this many."""
CLOSE_S = 20.0
"""Seconds for which `close` tries to store waiting entries."""
MAX_WHO = 200
"""Most characters of a labeller's name."""


@dataclass(frozen=True, slots=True)
class FeedbackLabel:
    """A judgement of one answer."""

    request_id: str
    value: float | None
    """1 right, 0 wrong, None unsure; a share between them for several judges."""
    who: str = ""
    time: float | None = None
    """Seconds since 1970; None for now."""
    source: str = ""
    """`human`, `program` or `judge`; empty if it is not stated, which counts as a person's."""


@dataclass(frozen=True, slots=True)
class LoggedAgreement:
    """Whether a second answer to the same question says the same as a logged one. It is no label."""

    request_id: str
    """Id of the logged answer."""
    same: bool
    time: float
    """Time when the second answer ended, in seconds since 1970."""
    prompt_tokens: int | None = None
    tokens: int | None = None
    """Tokens of the second answer."""
    cost_usd: float | None = None
    """Cost of the second answer; None if it is not known."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the logged answer, as read from the log; they are not stored again."""
    number: int = 0
    """Place in the order in which agreements were stored, from 1; 0 for one that was not read from a log."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An event: an alarm, a promotion, lost entries."""

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

    Any number of threads may share a log, and any number of processes of one machine may share a file. Processes of
    several machines share a PostgreSQL database. Every method except `write` raises `LogError` if the database fails.
    """

    def __init__(self, reading: Tables, writing: Tables, writer: BackgroundWriter | None, *, lost: int = 0) -> None:
        """Call `ScoreLog.open` instead.

        Args:
            reading: the database, for reading.
            writing: the database, for writing.
            writer: writes entries in a thread; None if no entries are written.
            lost: number of lost entries that opening found.
        """
        self.lost = lost
        """Entries that killed processes had accepted but not stored, as found when this log was opened."""
        self.tables = reading
        self._writing = writing
        self._writer = writer
        self._closing = threading.Lock()
        self._closed = False
        atexit.register(self.close)

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        capacity: int = CAPACITY,
        entries: bool = True,
        wait_s: float = Database.busy_s,
        spool: Path | None = None,
    ) -> Self:
        """Opens the log in a SQLite file, which is created if it does not exist, or in the database of a SQLAlchemy
        URL.

        Raises `LogError` if there is no such database, and `MissingExtra` for a URL without SQLAlchemy.

        Args:
            location: the path or URL.
            capacity: most entries that wait in memory.
            entries: whether entries will be written. If not, no file is kept beside the log, which a full disk could
                not hold.
            wait_s: seconds for which a statement waits for another process that locks a SQLite file.
            spool: folder for entries that the database does not accept; by default beside a SQLite file, and for a URL
                the folder for temporary files.
        """
        if capacity < 1:
            raise LogError(f"capacity {capacity}; expected at least one entry")
        reading, writing = open_tables(location, wait_s=wait_s)
        if not entries:
            return cls(reading, writing, None)
        start = spool_start(str(location).removeprefix("sqlite:///"), spool)
        left_spools = [*Spool.left_behind(start)]
        try:
            lost = sum(_settle_spool(reading, left_spool) for left_spool in left_spools)
            own_spool = Spool.make(start)
        except (OSError, LogError) as error:
            for left_spool in left_spools:
                left_spool.let_go()
            if isinstance(error, LogError):
                raise
            raise LogError(
                f"no counter can be kept beside the score log ({error}); check that its folder can be written"
            ) from error
        writer = BackgroundWriter(writing, capacity=capacity, spool=own_spool, left_spools=left_spools)
        return cls(reading, writing, writer, lost=lost)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """Entries that were not stored: the queue was full, the log closed, or they cannot be stored."""
        return self._writer.dropped if self._writer else 0

    @property
    def spooled(self) -> int:
        """Entries that were written to a file because the database did not accept them. They are stored from there."""
        return self._writer.spooled if self._writer else 0

    @property
    def repeated(self) -> int:
        """Entries with a request id that the log already held; the first entry stays."""
        return self._writer.repeated if self._writer else 0

    @property
    def dropped_labels(self) -> int:
        """Labels that were dropped since the log was created, because their answers did not arrive."""
        return dropped_labels(self.tables.read)

    def write(self, entry: Entry) -> bool:
        """Puts an entry into the queue, and returns whether it was accepted. Never waits.

        If the queue is full, the entry is counted as dropped. Raises `LogError` only if the log was opened without
        entries.
        """
        if self._writer is None:
            raise LogError("this score log was opened with entries=False; expected ScoreLog.open(where)")
        return self._writer.put(entry)

    def flush(self, timeout_s: float = CLOSE_S) -> bool:
        """Waits at most `timeout_s` seconds, and returns whether all entries so far were stored."""
        return self._writer is None or self._writer.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Stores waiting entries and closes the log. Returns whether everything was stored. May be called again.

        Entries that could not be stored are kept in a file. The next process that opens the log for entries stores
        them.
        """
        with self._closing:
            if self._closed:
                return True
            self._closed = True
            atexit.unregister(self.close)
            is_stored = self._writer is None or self._writer.close(timeout_s)
            self._writing.close()
            self.tables.close()
            return is_stored

    def label(
        self, request_id: str, value: float | None, *, who: str = "", time: float | None = None, source: str = ""
    ) -> None:
        """Stores one label; see `FeedbackLabel`.

        The last label of a request counts. But a program's label never replaces a person's, and a judge's replaces
        neither.

        Args:
            request_id: id of the answer.
            value: 1 right, 0 wrong, None unsure, or a share.
            who: name of the labeller.
            time: seconds since 1970; None for now.
            source: `human`, `program` or `judge`.
        """
        self.add_labels([FeedbackLabel(request_id, value, who, time, source)])

    def add_labels(self, labels: Iterable[FeedbackLabel], *, labeller: Labeller = OPERATOR) -> int:
        """Stores labels, all or none. Returns how many belong to requests in the log; the others count once their
        requests are.

        A request is named by its id in the log, or by its caller's id. Labels of unknown requests wait for 7 days, at
        most 10,000 of them; see `metaprobe.production.monitoring.waiting_labels`. Raises `NotYours` for a request that
        `labeller` may not label, and `LogError` if a caller gave several requests that id.

        The last label of a request counts, whatever times the labels state, because clocks differ. Labels in one call
        arrive in the order of their times. A label with a time that the log already holds, as from a file that is read
        again, is not stored twice. A time in the future becomes now.
        """
        now, known_count = time.time(), 0
        rows = [(_label_row(label, now, labeller), label.time is not None) for label in labels]
        if not rows:
            return 0
        with self.tables.transaction() as run:
            for batch in batches(sorted(rows, key=lambda pair: float(pair[0]["time"]))):
                ids = known_answers(run, [row["request_id"] for row, _ in batch], labeller)
                known_count += sum(request_id is not None for request_id in ids)
                for (row, _), request_id in zip(batch, ids, strict=True):
                    row["request_id"] = request_id or row["request_id"]
                is_labelled_request = label_table.c.request_id.in_({row["request_id"] for row, _ in batch})
                stored_rows = run(
                    sa.select(*(label_table.c[name] for name in _LABEL_IDENTITY)).where(is_labelled_request)
                )
                stored, new_rows = {tuple(row) for row in stored_rows}, []
                for row, has_time in batch:
                    key = tuple(row[name] for name in _LABEL_IDENTITY)
                    if not has_time or key not in stored:
                        new_rows.append(row)
                        stored.add(key)
                if new_rows:
                    run(insert(label_table), new_rows)
                let_wait(run, [row["request_id"] for row, _ in batch], now)
        return known_count

    def add_agreement(self, agreement: LoggedAgreement) -> None:
        """Stores whether a second answer says the same. Of two for one request the first stays."""
        row = {name: getattr(agreement, name) for name in _AGREEMENT_FIELDS} | {
            "request_id": loggable_text(agreement.request_id, MAX_NOTE),
            "same": int(agreement.same),
        }
        with self.tables.transaction(alone=True) as run:  # so that ids follow the order of commits
            run(insert(agreements).on_conflict_do_nothing(index_elements=["request_id"]), row)

    def agreements(
        self,
        *,
        since: float | None = None,
        model: str | None = None,
        checkpoint: str | None = None,
    ) -> tuple[list[LoggedAgreement], int]:
        """Returns the agreements of logged answers in the order in which they were stored, and the highest number read.

        Args:
            since: earliest time of the second answers, in seconds since 1970.
            model: model that answered; by default any.
            checkpoint: digest of the checkpoint that scored; by default any.
        """
        # The last number is read first. An answer that is stored meanwhile is read the next time, with its context.
        last = int(self.tables.read(sa.select(sa.func.coalesce(sa.func.max(agreements.c.id), 0)))[0][0])
        chosen = chosen_contexts(self.tables, model=model, checkpoint=checkpoint, tags=None)
        joined = agreements.join(scores, scores.c.request_id == agreements.c.request_id)
        read_columns = (scores.c.context, agreements.c.id, *(agreements.c[name] for name in _AGREEMENT_FIELDS))
        statement = sa.select(*read_columns).select_from(joined)
        where = [agreements.c.id <= last]
        if since is not None:
            where.append(agreements.c.time >= since)
        if model is not None or checkpoint is not None:
            where.append(is_one_of(scores.c.context, chosen))
        rows = self.tables.read(statement.where(*where).order_by(agreements.c.id))
        tags_index = CONTEXT_COLUMNS.index("tags")
        tags: dict[int, Mapping[str, str]] = {
            context: json.loads(chosen[context][tags_index]) for context in {int(row[0]) for row in rows}
        }
        found = [
            LoggedAgreement(str(name), bool(same), when, prompt_tokens, tokens, cost_usd, tags[context], number)
            for context, number, name, same, when, prompt_tokens, tokens, cost_usd in rows  # as in `_AGREEMENT`
        ]
        return found, last

    def has_agreements(self, *, model: str | None = None, checkpoint: str | None = None) -> bool:
        """Returns whether any logged answer of this model and checkpoint has an agreement; None stands for any."""
        statement = sa.select(agreements.c.id).join(scores, scores.c.request_id == agreements.c.request_id).limit(1)
        if model is not None or checkpoint is not None:
            chosen = chosen_contexts(self.tables, model=model, checkpoint=checkpoint, tags=None)
            statement = statement.where(is_one_of(scores.c.context, chosen))
        return bool(self.tables.read(statement))

    def unknown_ids(self, request_ids: Iterable[str]) -> list[str]:
        """Returns the ids that name no answer of the log, each once, in order."""
        ids_without_answer: list[str] = []
        for batch in batches(dict.fromkeys(loggable_text(request_id, MAX_NOTE) for request_id in request_ids)):
            known_ids = known_answers(self.tables.read, batch, OPERATOR)
            ids_without_answer += [name for name, log_id in zip(batch, known_ids, strict=True) if log_id is None]
        return ids_without_answer

    def current_labels(self) -> list[FeedbackLabel]:
        """Returns the label that counts for every labelled request."""
        return [FeedbackLabel(*row[:5]) for row in self.tables.read(sa.select(current_labels))]

    def passed_over(self, labels: Iterable[FeedbackLabel]) -> list[FeedbackLabel]:
        """Returns the labels that do not count, because the log holds one from a stronger source."""
        weak = [label for label in labels if label.source in LABEL_SOURCES[1:]]
        ids = list(dict.fromkeys(loggable_text(label.request_id, MAX_NOTE) for label in weak))
        strongest: dict[str, int] = {}
        for batch in batches(ids):
            request_id = label_table.c.request_id
            statement = (
                sa.select(request_id, sa.func.min(SOURCE_RANK)).where(request_id.in_(batch)).group_by(request_id)
            )
            strongest |= {str(name): int(rank) for name, rank in self.tables.read(statement)}
        ranks = ((label, strongest.get(loggable_text(label.request_id, MAX_NOTE))) for label in weak)
        return [label for label, rank in ranks if rank is not None and rank < LABEL_SOURCES.index(label.source)]

    def first_labels(self) -> list[FeedbackLabel]:
        """Returns the first label of every labelled request that means right or wrong, whatever later labels say."""
        statement = sa.select(first_labels).order_by(first_labels.c.id)
        return [FeedbackLabel(*row[:5]) for row in self.tables.read(statement)]

    def event(self, kind: str, details: Mapping[str, Any], *, time: float | None = None) -> None:
        """Stores an event. JSON must be able to hold `details`.

        Args:
            kind: kind of the event.
            details: its details.
            time: seconds since 1970; None for now.
        """
        with self.event_of(kind, details, time=time):
            pass

    @contextmanager
    def event_of(self, kind: str, details: Mapping[str, Any], *, time: float | None = None) -> Iterator[None]:
        """Stores an event together with the effect of the block: only if the block ends without an error. Raises
        `LogError`.

        Most failures of the log occur before the block begins. The remaining ones, such as a full disk, occur after the
        block: then the caller must undo the block's work. The log cannot be used inside the block.

        Args:
            kind: kind of the event.
            details: its details.
            time: seconds since 1970; None for now.
        """
        with self.tables.transaction() as run:
            add_event(run, kind, details, time)
            yield

    def events(self, kind: str | None = None, *, since: float = 0.0) -> list[LogEvent]:
        """Returns the events of one kind, or of all kinds, oldest first."""
        statement = sa.select(events.c.time, events.c.kind, events.c.details).where(events.c.time >= since)
        if kind is not None:
            statement = statement.where(events.c.kind == kind)
        rows = self.tables.read(statement.order_by(events.c.time, events.c.id))
        return [
            LogEvent(float(event_time), str(name), json.loads(event_details))
            for event_time, name, event_details in rows
        ]

    def entry(self, request_id: str) -> Entry | None:
        """Returns the entry of a request, by its id or its caller's id; None if the log holds none."""
        [log_id] = known_answers(self.tables.read, [request_id], OPERATOR)
        rows = self.tables.read(ENTRIES.where(scores.c.request_id == (log_id or request_id)))
        return entry_of(rows[0]) if rows else None

    def entries_named(self, request_ids: Iterable[str]) -> Iterator[Entry | None]:
        """Yields the entry of each of these ids of the log, in their order; None for one that the log does not hold."""
        for some in batches(request_ids):
            rows = self.tables.read(ENTRIES.where(scores.c.request_id.in_(some)))
            entry_by_id = {entry.request_id: entry for entry in map(entry_of, rows)}
            yield from map(entry_by_id.get, some)

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
        """Returns stored answers as arrays, in the order of time.

        Args:
            since: earliest time, in seconds since 1970, inclusive.
            until: latest time, exclusive.
            model: model that answered; by default any.
            checkpoint: digest of the checkpoint; by default any.
            tags: tags that answers must have.
            shadow: whether to return shadow verdicts, instead of those that callers got.
            labelled: whether to return only answers that have a label or were drawn for one.
            ids: whether to return request ids.
            stored: return only answers with a number above the first and up to the second; see `Tables.settled`.
            gated: whether to include answers that the gate ended. Their score is the gate's, and nobody saw the rest,
                so nobody can label them.
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
        """Yields the entries of the log, without shadows, in the order of time.

        Args:
            since: earliest time, in seconds since 1970; None for any.
            model: model that answered; None for any.
            checkpoint: digest of the checkpoint that scored; None for any.
        """
        where = conditions(since, None, gated=True)
        if model is not None or checkpoint is not None:
            chosen = chosen_contexts(self.tables, model=model, checkpoint=checkpoint, tags=None)
            where.append(is_one_of(scores.c.context, chosen))
        for rows in self.tables.read_chunks(ENTRIES.where(*where).order_by(scores.c.time, scores.c.id)):
            yield from map(entry_of, rows)

    def count_scored(
        self, checkpoint: str, *, since: float | None = None, until: float | None = None, model: str | None = None
    ) -> int:
        """Returns how many answers the checkpoint with this digest scored, without shadows and gated answers.

        Args:
            checkpoint: digest of the checkpoint.
            since: earliest time, in seconds since 1970.
            until: latest time, exclusive.
            model: model that answered; by default any.
        """
        chosen = chosen_contexts(self.tables, model=model, checkpoint=checkpoint, tags=None)
        where = [*conditions(since, until), scores.c.score.is_not(None), is_one_of(scores.c.context, chosen)]
        return int(self.tables.read(sa.select(sa.func.count()).select_from(scores).where(*where))[0][0])

    def has_scored(self, checkpoint: str) -> bool:
        """Returns whether the checkpoint with this digest has scored answers of the log."""
        return bool(self.tables.read(sa.select(contexts.c.id).where(contexts.c.checkpoint == checkpoint).limit(1)))

    def shadow_scores(self, checkpoint: str) -> dict[str, float]:
        """Maps request ids to the score that the checkpoint with this digest gave as a shadow."""
        statement = sa.select(scores.c.shadow_of, scores.c.score).select_from(answers)
        where = scores.c.shadow_of.is_not(None), scores.c.score.is_not(None), contexts.c.checkpoint == checkpoint
        return {str(request_id): float(score) for request_id, score in self.tables.read(statement.where(*where))}

    def questions(self) -> dict[str, str]:
        """Maps request ids to questions, for answers whose texts the log stores."""
        statement = sa.select(scores.c.request_id, scores.c.question).where(scores.c.question.is_not(None))
        return {name: text for rows in self.tables.read_chunks(statement) for name, text in rows}

    def identity(self) -> str:
        """Returns the log's identity, which only copies share, wherever the log is moved."""
        return str(self.tables.read(sa.select(identity))[0][0])

    def prune(self, days: float, *, sure: bool = False) -> int:
        """Deletes answers older than `days`, with their labels, and returns how many they were.

        Raises `LogError` if this is implausible (`metaprobe.production.monitoring.retention`), unless `sure`.
        """
        return retention.delete_older(self.tables, days, sure=sure)

    def delete_all(self, request_ids: Sequence[str]) -> list[str]:
        """Deletes all data of requests, and returns the ids of requests without any.

        See `metaprobe.production.monitoring.retention.delete_requests`. A SQLite file is rewritten once for all.
        """
        self.flush()
        return retention.delete_requests(self.tables, request_ids)


_AGREEMENT_FIELDS = ("request_id", "same", "time", "prompt_tokens", "tokens", "cost_usd")
"""Fields of an agreement that are stored."""
_LABEL_IDENTITY = ("request_id", "who", "time", "value", "source")
"""Fields by which a label that is read a second time is recognised."""


def _label_row(label: FeedbackLabel, now: float, labeller: Labeller) -> dict[str, Any]:
    """Returns the label as a row. Raises `LogError` for a label that cannot be stored.

    Args:
        label: the label.
        now: seconds since 1970.
        labeller: the labeller.
    """
    name: Any = label.request_id
    value: Any = label.value
    label_time: Any = now if label.time is None else label.time
    if not isinstance(name, str) or not name:
        raise LogError(f"a label is of request {name!r}; expected the id that came with the verdict")
    if len(name) > MAX_NOTE:
        raise LogError(f"a request id has {len(name)} characters; expected the one that came with the verdict")
    if value is not None and (isinstance(value, str) or not 0 <= value <= 1):
        raise LogError(f"request {name}: label {value!r}; expected 1 (right), 0 (wrong) or None (unsure)")
    if isinstance(label_time, str) or not 0 <= label_time < MAX_TIME:
        raise LogError(f"request {name}: time {label_time!r}; expected seconds since 1970")
    if label.source not in ("", *LABEL_SOURCES):
        raise LogError(f"request {name}: source {label.source!r}; expected {', '.join(LABEL_SOURCES)}, or nothing")
    return {
        "request_id": loggable_text(name, MAX_NOTE),  # as that of its entry was
        "value": None if value is None else float(value),
        "who": loggable_text(label.who, MAX_WHO),
        "time": float(min(label_time, now)),
        "source": label.source,
        "key_name": labeller.key_name,
    }


def _settle_spool(tables: Tables, spool: Spool) -> int:
    """Returns how many entries a killed process has lost, not counting those in its spool, and stores this
    as an event.
    """
    rows = tables.read(sa.select(writers.c.stored).where(writers.c.writer == spool.writer))
    accepted = spool.accepted
    lost = max(0, accepted - spool.waiting - int(rows[0][0] if rows else 0))
    if lost:
        logger.warning("a process that was killed lost %d entries of the score log", lost)
    with tables.transaction() as run:
        if lost:
            add_event(run, LOST_EVENT, {"entries": lost, "of": accepted})
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
    """Returns the labelled answers of a log that the checkpoint with this digest scored.

    If (nearly) all requested answers are labelled (`is_census`), each has propensity 1, even if no sheet drew it,
    because nobody chose among them. Raises `RecordError` if there are none, and says whose labels there are.

    Args:
        log: the log.
        checkpoint: digest of the checkpoint.
        model: model that answered; by default any.
        since: earliest time, in seconds since 1970.
        until: latest time, exclusive.
    """
    columns = log.columns(since=since, until=until, model=model, labelled=True, ids=True)
    is_labelled = np.isfinite(columns.score) & np.isfinite(columns.label)
    is_of_checkpoint = is_labelled & (columns.checkpoint == checkpoint)
    if not is_of_checkpoint.any():
        if (since, until, model) != (None, None, None):
            of_model = "" if model is None else f" of model {model!r} and"
            among = labelled_of_log(log, checkpoint=checkpoint)  # raises where there are none at all
            raise RecordError(
                f"none of the {len(among)} labelled answers that checkpoint {checkpoint[:16]} scored is{of_model} of "
                f"the time asked for: they are of {', '.join(np.unique(among.model)[:5])}, "
                f"from {format_time(among.time.min())} to {format_time(among.time.max())} by the answers' own times, "
                "whenever they were labelled"
            )
        unscored = int((np.isfinite(columns.label) & (columns.checkpoint == checkpoint)).sum())
        if unscored:
            raise RecordError(
                f"checkpoint {checkpoint[:16]} gave no score to the {unscored} labelled answers that it judged; "
                "expected a checkpoint that scores: of one that was taught agreement make P(right) by `metaprobe "
                "adapt` with labelled lines, and serve that"
            )
        digests = sorted({str(name)[:16] for name in columns.checkpoint[is_labelled]})
        raise RecordError(
            f"the log holds no labelled answer that checkpoint {checkpoint[:16]} scored; labelled are "
            f"{int(is_labelled.sum())} answers{' of checkpoints ' + ', '.join(digests) if digests else ''}: "
            "give the checkpoint that is in service, or label answers first (`metaprobe sample`, `metaprobe feedback`)"
        )
    count = int(is_of_checkpoint.sum())
    is_whole = is_census(count, log.count_scored(checkpoint, since=since, until=until, model=model))
    return LabelledScores(
        score=columns.score[is_of_checkpoint],
        label=columns.label[is_of_checkpoint],
        propensity=np.ones(count) if is_whole else columns.propensity[is_of_checkpoint],
        time=columns.time[is_of_checkpoint],
        model=columns.model[is_of_checkpoint].astype(np.str_),
        group=columns.request_id[is_of_checkpoint].astype(np.str_),
    )


SHOWN_DIGITS = 12
"""Digits of a digest in the name of a version."""
LEAST_DIGITS = 4
"""Fewest digits with which a user may choose a version."""
_PAIRS = (("from", "from_path"), ("to", "to_path"), ("digest", "path"), ("to", "path"))
"""Details of events that hold a digest and its folder."""
_VERSION_EVENTS = ("promoted", "rolled back", "recalibrated")


def version_names(log: ScoreLog) -> dict[str, str]:
    """Maps digests to the known folders of versions: from promotions and recalibrations in the log, and of bundled
    ones.
    """
    folders = dict(Checkpoint.bundled_digests())
    for event in log.events():
        if event.kind not in _VERSION_EVENTS:
            continue
        for digest, path in _PAIRS:
            version, folder = event.details.get(digest), event.details.get(path)
            if isinstance(version, str) and isinstance(folder, str) and folder:
                folders[version] = folder
    return folders


def name_version(checkpoint: str, names: Mapping[str, str]) -> str:
    """Returns the name of a version for users: the beginning of its digest, with its folder if it is known."""
    short = checkpoint[:SHOWN_DIGITS] or "none"
    return f"{short} ({names[checkpoint]})" if checkpoint in names else short


def find_version(log: ScoreLog, name: str) -> str:
    """Returns the digest of the version that a user names by the beginning of its digest, or by its folder.

    Raises `RecordError` if no version of the log fits, or several do.
    """
    versions = sorted({str(row[0]) for row in log.tables.read(sa.select(contexts.c.checkpoint).distinct())} - {""})
    names = version_names(log)
    matching = [digest for digest in versions if name == names.get(digest)]
    if not matching and len(name) >= LEAST_DIGITS:
        matching = [digest for digest in versions if digest.startswith(name.lower())]
    if not matching:
        with suppress(CheckpointError, OSError):
            matching = [digest for digest in versions if digest == Checkpoint.digest_at(name)]
    if len(matching) == 1:
        return matching[0]
    known_versions = ", ".join(name_version(digest, names) for digest in versions[:5])
    raise RecordError(
        f"{name!r} is {'the beginning of several' if matching else 'none'} of the checkpoints that gave this log's "
        f"scores ({known_versions or 'none yet'}); expected a folder, or at least {LEAST_DIGITS} digits of a digest"
    )


KEPT_LENGTHS = 5_000
"""Number of the latest lengths that are remembered for each model."""
MIN_LONGER_ANSWERS = 30
"""Fewest longer answers from which a mean is computed."""
MOST_MODELS = 256
"""Most models that are remembered, because callers choose the names."""


class AnswerLengths:
    """Lengths of answers by model, in tokens. Any number of threads may share one."""

    def __init__(self) -> None:
        self._by_model: dict[str, deque[int]] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_log(cls, tables: Tables) -> Self:
        """Returns the lengths of a log's latest answers that no gate ended. Raises `LogError`."""
        lengths = cls()
        statement = sa.select(contexts.c.model, scores.c.tokens).select_from(answers)
        was_not_stopped = contexts.c.action == "", scores.c.shadow_of.is_(None), scores.c.tokens.is_not(None)
        latest = statement.where(*was_not_stopped).order_by(scores.c.time.desc()).limit(4 * KEPT_LENGTHS)
        for model, tokens in reversed(tables.read(latest)):
            lengths.add(str(model), int(tokens))
        return lengths

    def add(self, model: str, tokens: int) -> None:
        """Adds an answer that no gate ended."""
        with self._lock:
            if model in self._by_model or len(self._by_model) < MOST_MODELS:
                self._by_model.setdefault(model, deque(maxlen=KEPT_LENGTHS)).append(tokens)

    def estimate_left(self, model: str, tokens: int, max_tokens: int | None = None) -> int | None:
        """Estimates how many more tokens an answer would have had that was ended after `tokens`.

        It is the mean remainder of longer answers of the same model, as if the ended answer had continued like them.
        None if fewer than `MIN_LONGER_ANSWERS` answers were longer.

        Args:
            model: model that answered.
            tokens: tokens of the ended answer.
            max_tokens: length at which the answer would have been cut, if it is known.
        """
        with self._lock:
            longer = [length - tokens for length in self._by_model.get(model, ()) if length > tokens]
        if len(longer) < MIN_LONGER_ANSWERS:
            return None
        mean_left = round(sum(longer) / len(longer))
        return mean_left if max_tokens is None else max(0, min(mean_left, max_tokens - tokens))


def has_scored(location: str, digest: str) -> bool:
    """Returns whether the checkpoint with this digest has scored an answer of the log at `location`, a path or URL."""
    with ScoreLog.open(location, entries=False) as log:
        return log.has_scored(digest)
