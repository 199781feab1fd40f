"""The thread that writes the log, and its spool file. A request's handler puts an entry into a queue, and never waits.

The file is beside the log, and outlives the process. Its first line counts the entries that the process has accepted,
so that the number lost in a kill is known. The other lines are entries that the database did not accept. They stay
until it accepts them, in this process or the next.
"""

import base64
import glob
import hashlib
import json
import logging
import math
import mmap
import os
import stat
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Self

from metaprobe.production.monitoring.entry import Entry, row_of
from metaprobe.production.monitoring.rows import add_rows, insert_rows
from metaprobe.production.monitoring.tables import Execute, LogError, Tables, events, insert, labels, sa, writers

if sys.platform != "win32":
    import fcntl

SPOOL_SUFFIX = ".spool"
_COUNT_FORMAT = b"%20d\n"
_HEAD_BYTES = len(_COUNT_FORMAT % 0)
"""Bytes of the first line."""
MAX_SPOOL_BYTES = 256 << 20
"""Most bytes of one file. Entries that do not fit are dropped and counted."""
_DROPPED_KEY = "dropped"
"""Key of a line that counts entries which could not be kept here either."""

LogRows = Sequence[Mapping[str, Any]]


class Spool:
    """Rows of the log's table in a file, one JSON line each. The operating system locks the file while its process
    lives.

    The count is mapped into memory, so counting needs no system call, and survives SIGKILL. Only its owner may read the
    file, because it may hold texts.
    """

    def __init__(self, path: Path, file: int) -> None:
        """Call `make` or `left_behind` instead. `file` is the descriptor of the open file."""
        self.path = path
        self.writer = path.name.removesuffix(SPOOL_SUFFIX).rpartition(".")[2]
        """Name of the process in the log's database."""
        self._file = file
        self._count = mmap.mmap(file, _HEAD_BYTES)
        self._read_until = _HEAD_BYTES
        """Place in the file up to which rows were stored in the database."""
        self.waiting = sum(_row_of_line(line) is not None for line in self._lines())
        """Number of rows in the file that were not yet stored."""

    @classmethod
    def make(cls, start: Path) -> Self:
        """Creates a file whose name begins with `start`. Raises `OSError`."""
        path = start.with_name(f"{start.name}.{uuid.uuid4().hex}{SPOOL_SUFFIX}")
        unlocked_path = path.with_suffix(".new")  # without the suffix of spools until it is locked
        file = os.open(unlocked_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            os.write(file, _COUNT_FORMAT % 0)
            if sys.platform != "win32":
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlocked_path.rename(path)
            return cls(path, file)
        except (OSError, ValueError):
            os.close(file)
            unlocked_path.unlink(missing_ok=True)
            raise

    @classmethod
    def left_behind(cls, start: Path) -> Iterator[Self]:
        """Yields the files of this user's processes that have ended.

        On systems without such locks it yields none.
        """
        if sys.platform == "win32":
            return
        for path in sorted(start.parent.glob(f"{glob.escape(start.name)}.*{SPOOL_SUFFIX}")):
            with suppress(OSError):
                file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    status = os.fstat(file)
                    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
                        raise PermissionError
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                    spool = cls(path, file)
                except (OSError, ValueError):
                    os.close(file)
                else:
                    yield spool

    @property
    def accepted(self) -> int:
        """Number of entries that the process has accepted; 0 if it cannot be read."""
        with suppress(ValueError):
            return int(self._count[:])
        return 0

    def count(self, number: int) -> None:
        """Sets the number of entries accepted so far."""
        self._count[:] = _COUNT_FORMAT % number

    def add(self, rows: LogRows) -> int:
        """Adds rows, and returns how many: fewer than all if the file is full, or cannot be written."""
        lines = [_line_of_row(row) for row in rows]
        try:
            room, size, kept_count = MAX_SPOOL_BYTES - os.fstat(self._file).st_size, 0, 0
            while kept_count < len(lines) and size + len(lines[kept_count]) <= room:
                size += len(lines[kept_count])
                kept_count += 1
            self._write(b"".join(lines[:kept_count]))
        except OSError:
            return 0
        self.waiting += kept_count
        return kept_count

    def add_dropped(self, number: int) -> None:
        """Records how many entries were lost, for the next process that opens the log. On a full disk this number is
        lost too.
        """
        with suppress(OSError):
            self._write(json.dumps({_DROPPED_KEY: number}).encode() + b"\n")

    def next(self, max_rows: int) -> tuple[list[dict[str, Any]], int, int]:
        """Returns (waiting rows, number of entries dropped before them, byte offset after them for `taken`)."""
        rows: list[dict[str, Any]] = []
        dropped, next_offset = 0, self._read_until
        for line in self._lines():
            next_offset += len(line)
            row = _row_of_line(line)
            if row is not None:
                rows.append(row)
            else:  # how many lost entries it stands for: the number in it, or one
                try:
                    dropped += max(0, int(json.loads(line)[_DROPPED_KEY]))
                except (ValueError, TypeError, KeyError, RecursionError):
                    dropped += 1
            if len(rows) == max_rows:
                break
        return rows, dropped, next_offset

    def taken(self, rows: int, next_offset: int) -> None:
        """Records that this many rows, up to the byte `next_offset` of the file, are in the log.

        An exhausted file becomes short.
        """
        self.waiting -= rows
        self._read_until = next_offset
        if not self.unread:
            os.ftruncate(self._file, _HEAD_BYTES)
            self._read_until = _HEAD_BYTES

    @property
    def unread(self) -> bool:
        """Whether the file holds lines that were not yet stored."""
        return self._read_until < os.fstat(self._file).st_size

    def close(self) -> None:
        """Closes the file. It is removed if no lines wait in it; otherwise it is left for the next process."""
        if not self.unread:
            self.path.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """Closes the file and leaves it unchanged."""
        self._count.close()
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        """Writes all data at the end of the file, or nothing."""
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            unwritten = memoryview(data)
            while unwritten:
                unwritten = unwritten[os.write(self._file, unwritten) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, end)
            raise

    def _lines(self) -> Iterator[bytes]:
        """Yields the lines after the rows that were stored."""
        with os.fdopen(os.dup(self._file), "rb") as copy:
            copy.seek(self._read_until)
            yield from copy


def spool_start(where: str, folder: Path | None) -> Path:
    """Returns the beginning of the names of a log's spools: its file, or a name in the given folder.

    For a URL the default folder is the one for temporary files.
    """
    if folder is None and "://" not in where:
        return Path(where)
    location = where if "://" in where else str(Path(where).resolve())
    name = f"metaprobe-log-{hashlib.sha256(location.encode()).hexdigest()[:16]}"
    return Path(folder or tempfile.gettempdir()) / name


def _line_of_row(row: Mapping[str, Any]) -> bytes:
    fields = dict(row)
    if fields.get("logprobs") is not None:
        fields["logprobs"] = base64.b64encode(fields["logprobs"]).decode()
    return json.dumps(fields).encode() + b"\n"


def _row_of_line(line: bytes) -> dict[str, Any] | None:
    """Returns the row of a line; None for a line without a row, or a cut line."""
    try:
        fields = json.loads(line) if line.endswith(b"\n") else None
        if not isinstance(fields, dict) or "request_id" not in fields:
            return None
        if fields.get("logprobs") is not None:
            fields["logprobs"] = base64.b64decode(fields["logprobs"])
    except (ValueError, TypeError, RecursionError):
        return None
    return fields


logger = logging.getLogger(__name__)

BATCH_WAIT_S = 0.5
"""Longest time in seconds that an entry waits to be written together with others."""
ENTRIES_PER_TRANSACTION = 500
"""Most entries in one transaction."""
RETRY_S = 1.0
"""Seconds for which the writer waits after a failure of the database."""
FAILING_CLOSE_S = 2.0
"""Seconds for which `close` waits for a database that already fails."""
REPORT_EVERY_S = 60.0
"""Seconds between two events that report dropped entries."""

LOST_EVENT = "entries_lost"
"""Kind of the event that reports how many entries a killed process, or a full queue, has lost."""

_DEFAULT_ROW = row_of(Entry(request_id="", time=0.0, model="", checkpoint="", score=None))
"""Default values of fields that a spool's line lacks."""
_ASSIGN_LABELS = (
    sa.update(labels)
    .where(labels.c.request_id == sa.bindparam("name"), labels.c.key_name == sa.bindparam("key"))
    .values(request_id=sa.bindparam("ours"))
)
"""Assigns labels to an answer that arrived before it, under its caller's id."""
_WRITER_ROW = insert(writers)
_SET_STORED = _WRITER_ROW.on_conflict_do_update(index_elements=["writer"], set_={"stored": _WRITER_ROW.excluded.stored})


def add_event(run: Execute, kind: str, details: Mapping[str, Any], time_of_event: float | None = None) -> None:
    """Stores an event.

    Args:
        run: runs a statement.
        kind: kind of the event.
        details: its details.
        time_of_event: seconds since 1970; None for now.
    """
    row = {
        "time": time.time() if time_of_event is None else time_of_event,
        "kind": kind,
        "details": json.dumps(details),
    }
    run(insert(events), row)


class BackgroundWriter:
    """A bounded queue, and the thread that empties it, one batch a transaction.

    Entries that the database does not accept go into a file beside the log, once half of the queue waits, and when the
    log is closed. They are stored from there as soon as the database accepts entries again, by this process or the
    next.
    """

    def __init__(self, tables: Tables, *, capacity: int, spool: Spool, left_spools: Sequence[Spool]) -> None:
        """Starts the thread.

        Args:
            tables: the database.
            capacity: most entries that wait in memory.
            spool: this process's file.
            left_spools: files of processes that have ended.
        """
        self.dropped = 0
        """Entries that found the queue full, or could be stored neither in the database nor in the file."""
        self.repeated = 0
        """Entries whose request id was already in the log; the first entry counts."""
        self.spooled = 0
        """Entries that were written to the file."""
        self._tables = tables
        self._capacity = capacity
        self._spool = spool
        self._left_spools = [*left_spools]
        self._queue: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()
        self._accepted_count = 0
        self._stored_count = 0
        self._reported_count = 0
        """Number of dropped entries that an event of the log has reported."""
        self._reported_at = self._warned_at = -REPORT_EVERY_S
        self._warned_count = 0
        self._is_failing = False
        self._leaving_lock = threading.Lock()
        """Lock for removing entries from the queue."""
        self._ending = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="metaprobe-log", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> bool:
        """Returns whether the entry was accepted.

        An entry is dropped and counted if it cannot be stored, or if the queue is full or the log closed.
        """
        row = None
        try:
            row = row_of(entry)
        except Exception as error:
            logger.warning("an entry of the score log was dropped: it cannot be stored (%s)", type(error).__name__)
        with self._lock:
            if row is None or len(self._queue) >= self._capacity or self._ending.is_set():
                self.dropped += 1
                return False
            self._queue.append(row)
            self._accepted_count += 1
            self._spool.count(self._accepted_count)
        if len(self._queue) == ENTRIES_PER_TRANSACTION:
            self._wake.set()
        return True

    def flush(self, timeout_s: float, failing_s: float = math.inf) -> bool:
        """Returns whether all entries accepted before are stored within that time.

        `failing_s` is how long to wait for a database that already fails.
        """
        with self._lock:
            accepted_count = self._accepted_count
        started_at = time.monotonic()
        while self._stored_count < accepted_count:
            limit_s = min(failing_s, timeout_s) if self._is_failing else timeout_s
            if time.monotonic() > started_at + limit_s or not self._thread.is_alive():
                return False
            self._wake.set()
            time.sleep(0.002)
        return True

    def close(self, timeout_s: float) -> bool:
        """Returns whether everything was stored; the rest goes into the file. No entry is accepted from now on.

        It waits less for a database that already fails, because the process may end soon.
        """
        is_stored = self.flush(timeout_s, FAILING_CLOSE_S)
        with self._lock:
            self._ending.set()
        self._wake.set()
        self._thread.join(timeout=timeout_s if is_stored else FAILING_CLOSE_S)
        with self._leaving_lock:
            self._spool_waiting()
            self.dropped += len(self._queue)
            self._queue.clear()
        if self._spool.waiting:
            logger.error(
                "%d entries of the score log wait in %s, and are stored by whoever opens the log next",
                self._spool.waiting,
                self._spool.path,
            )
        if self.dropped:
            logger.error("%d entries of the score log were dropped, and are in no file", self.dropped)
        if self.dropped > self._reported_count:
            self._spool.add_dropped(self.dropped - self._reported_count)
        self._spool.count(0)  # all accepted entries are stored by now, or are in the file
        if not self._thread.is_alive():
            for spool in (self._spool, *self._left_spools):
                spool.close()
        return is_stored and not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            is_ending = self._ending.is_set()
            try:
                more_waits = self._step(is_ending)
                self._is_failing = False
            except LogError as error:
                if not self._is_failing:
                    logger.error("%s (entries wait, and go into a file once half of %d do)", error, self._capacity)
                self._is_failing = True
                self._warn()
                if is_ending:
                    return
                if len(self._queue) * 2 > self._capacity:
                    with self._leaving_lock:
                        self._spool_waiting()
                self._ending.wait(RETRY_S)
                continue
            if not self._queue and not more_waits:
                if is_ending:
                    return
                self._wake.wait(BATCH_WAIT_S)
                self._wake.clear()

    def _step(self, is_ending: bool) -> bool:
        """Stores a batch from the queue, and one from a file. Returns whether a file holds more."""
        batch = self._next_batch()  # the entries leave the queue when they are stored
        if batch:
            try:
                self.repeated += self._insert(batch, len(batch))
            except LogError:
                raise
            except Exception as error:  # the thread must go on, whatever is wrong with these
                stack_text = "".join(traceback.format_tb(error.__traceback__))
                logger.error("a batch of the score log was dropped: %s\n%s", type(error).__name__, stack_text)
                self.dropped += len(batch)
            with self._leaving_lock:  # unless `close` has moved them meanwhile
                self._take_off(min(len(batch), len(self._queue)))
            self._stored_count += len(batch)
        more_waits = not is_ending and self._replay()
        self._report_dropped(is_ending)
        return more_waits

    def _next_batch(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(islice(self._queue, ENTRIES_PER_TRANSACTION))

    def _take_off(self, number: int) -> None:
        with self._lock:
            for _ in range(number):
                self._queue.popleft()

    def _spool_waiting(self) -> None:
        """Moves waiting entries into the file, as far as it has room."""
        while kept_count := self._spool.add(self._next_batch()):
            self._take_off(kept_count)
            self.spooled += kept_count

    def _replay(self) -> bool:
        """Stores a batch from a file, this process's own first. Returns whether there is more."""
        files = [self._spool] * self._spool.unread + self._left_spools
        if not files:
            return False
        spool, is_own = files[0], files[0] is self._spool
        rows, dropped, next_offset = spool.next(ENTRIES_PER_TRANSACTION)
        if rows:
            self.repeated += self._insert([_DEFAULT_ROW | row for row in rows], len(rows) if is_own else 0)
        if dropped:
            self._say_lost(dropped)
        spool.taken(len(rows), next_offset)
        if is_own:
            self._stored_count += len(rows)
        more_waits = len(files) > 1 or spool.unread
        if not is_own and not spool.unread:
            self._left_spools.remove(spool)
            spool.close()
            logger.info("the score log holds what waited in %s", spool.path)
        return more_waits

    def _warn(self) -> None:
        """Reports dropped entries in the program's log, at most once a minute."""
        number = self.dropped - self._warned_count
        if number and time.monotonic() - self._warned_at > REPORT_EVERY_S:
            logger.error("%d entries of the score log were dropped: its queue was full, or they were unfit", number)
            self._warned_count, self._warned_at = self.dropped, time.monotonic()

    def _report_dropped(self, now: bool) -> None:
        """Stores an event about dropped entries, at most once a minute unless `now`."""
        self._warn()
        number = self.dropped - self._reported_count
        if number and (now or time.monotonic() - self._reported_at > REPORT_EVERY_S):
            self._say_lost(number)
            self._reported_count += number
            self._reported_at = time.monotonic()

    def _say_lost(self, number: int) -> None:
        with self._tables.transaction() as run:
            add_event(run, LOST_EVENT, {"entries": number, "of": self._accepted_count + self.dropped})

    def _insert(self, rows: Sequence[dict[str, Any]], entry_count: int) -> int:
        """Writes rows, and returns how many were already in the log. `entry_count` is the number of entries that this
        completes.
        """
        with self._tables.transaction() as run:
            first: dict[str, dict[str, Any]] = {}
            for row in rows:
                first.setdefault(row["request_id"], row)
            new = insert_rows(run, list(first.values()), alone=self._tables.alone)
            add_rows(run, new)
            renamed = [
                {"ours": row["request_id"], "name": row["callers_id"], "key": row["key_name"]}
                for row in new
                if row["callers_id"]
            ]
            if renamed:
                run(_ASSIGN_LABELS, renamed)
            run(_SET_STORED, {"writer": self._spool.writer, "stored": self._stored_count + entry_count})
        return len(rows) - len(new)
