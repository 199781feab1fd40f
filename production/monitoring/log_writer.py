"""The thread that writes the log, and its file: who answers a request puts an entry into a queue, and never waits.

The file stands beside the log, and outlives the process. Its first line counts the entries that the process has
accepted, so that a kill cannot hide how many it lost. The other lines are entries that the database did not take, until
it does: in this process or the next.
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
_COUNT = b"%20d\n"
_HEAD = len(_COUNT % 0)
"""Bytes of the first line."""
MAX_SPOOL_BYTES = 256 << 20
"""Most bytes of one file. Entries that do not fit are dropped and counted."""
_DROPPED = "dropped"
"""The key of a line that says how many entries were not even kept here."""

Rows = Sequence[Mapping[str, Any]]


class Spool:
    """Rows of the log's table, a JSON line each. While its process lives, the operating system's lock is on the file.

    The count is mapped into memory: counting costs no call of the system, and survives SIGKILL. The file is for its
    owner's eyes alone: it may hold texts.
    """

    def __init__(self, path: Path, file: int) -> None:
        """`make` and `left_behind` are the ways to one. `file`: the open file."""
        self.path = path
        self.writer = path.name.removesuffix(SPOOL_SUFFIX).rpartition(".")[2]
        """The name of the process in the log's database."""
        self._file = file
        self._count = mmap.mmap(file, _HEAD)
        self._read_until = _HEAD
        """The place in the file up to which rows were taken back."""
        self.waiting = sum(_row(line) is not None for line in self._lines())
        """Rows in the file that were not taken back."""

    @classmethod
    def make(cls, start: Path) -> Self:
        """Makes a file, whose name begins as `start` does. Raises `OSError`."""
        path = start.with_name(f"{start.name}.{uuid.uuid4().hex}{SPOOL_SUFFIX}")
        hidden = path.with_suffix(".new")  # until it is locked, nobody may take it for one left behind
        file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            os.write(file, _COUNT % 0)
            if sys.platform != "win32":
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hidden.rename(path)
            return cls(path, file)
        except (OSError, ValueError):
            os.close(file)
            hidden.unlink(missing_ok=True)
            raise

    @classmethod
    def left_behind(cls, start: Path) -> Iterator[Self]:
        """Yields the files of processes that have ended, unless they are not this user's own.

        Where the system has no such locks, nobody is taken for dead.
        """
        if sys.platform == "win32":
            return
        for path in sorted(start.parent.glob(f"{glob.escape(start.name)}.*{SPOOL_SUFFIX}")):
            with suppress(OSError):
                file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    held = os.fstat(file)
                    if held.st_uid != os.geteuid() or not stat.S_ISREG(held.st_mode):
                        raise PermissionError
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
                    spool = cls(path, file)
                except (OSError, ValueError):
                    os.close(file)
                else:
                    yield spool

    @property
    def accepted(self) -> int:
        """The number of entries that the process has accepted; 0 where that cannot be read."""
        with suppress(ValueError):
            return int(self._count[:])
        return 0

    def count(self, number: int) -> None:
        """Sets the number of entries accepted so far."""
        self._count[:] = _COUNT % number

    def add(self, rows: Rows) -> int:
        """Keeps rows, and says how many: fewer than all where the file is full, or cannot be written."""
        lines = [_line(row) for row in rows]
        try:
            room, size, kept = MAX_SPOOL_BYTES - os.fstat(self._file).st_size, 0, 0
            while kept < len(lines) and size + len(lines[kept]) <= room:
                size += len(lines[kept])
                kept += 1
            self._write(b"".join(lines[:kept]))
        except OSError:
            return 0
        self.waiting += kept
        return kept

    def add_dropped(self, number: int) -> None:
        """Keeps how many entries were lost, for whoever opens the log next. A full disk loses that number too."""
        with suppress(OSError):
            self._write(json.dumps({_DROPPED: number}).encode() + b"\n")

    def next(self, most: int) -> tuple[list[dict[str, Any]], int, int]:
        """Rows that wait, how many were dropped before them, and the place behind them for `taken`."""
        rows: list[dict[str, Any]] = []
        dropped, place = 0, self._read_until
        for line in self._lines():
            place += len(line)
            row = _row(line)
            if row is not None:
                rows.append(row)
            else:  # how many lost entries it stands for: the number in it, or one
                try:
                    dropped += max(0, int(json.loads(line)[_DROPPED]))
                except (ValueError, TypeError, KeyError, RecursionError):
                    dropped += 1
            if len(rows) == most:
                break
        return rows, dropped, place

    def taken(self, rows: int, place: int) -> None:
        """Notes that this many rows, up to that place, are in the log; an exhausted file becomes short."""
        self.waiting -= rows
        self._read_until = place
        if not self.unread:
            os.ftruncate(self._file, _HEAD)
            self._read_until = _HEAD

    @property
    def unread(self) -> bool:
        """Whether the file holds lines that were not taken back."""
        return self._read_until < os.fstat(self._file).st_size

    def close(self) -> None:
        """Lets go of the file: for the next process to find where lines wait in it, else it is removed."""
        if not self.unread:
            self.path.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """Closes the file and leaves it as it is."""
        self._count.close()
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        """Writes all at the end of the file, or nothing."""
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, end)
            raise

    def _lines(self) -> Iterator[bytes]:
        """Yields the lines behind the rows that were taken back."""
        with os.fdopen(os.dup(self._file), "rb") as held:
            held.seek(self._read_until)
            yield from held


def spool_start(where: str, folder: Path | None) -> Path:
    """Returns the start of the names of a log's spools: its file, or a name in the given folder.

    For a URL the folder is that for temporary files, unless another is given.
    """
    if folder is None and "://" not in where:
        return Path(where)
    named = where if "://" in where else str(Path(where).resolve())
    name = f"metaprobe-log-{hashlib.sha256(named.encode()).hexdigest()[:16]}"
    return Path(folder or tempfile.gettempdir()) / name


def _line(row: Mapping[str, Any]) -> bytes:
    held = dict(row)
    if held.get("logprobs") is not None:
        held["logprobs"] = base64.b64encode(held["logprobs"]).decode()
    return json.dumps(held).encode() + b"\n"


def _row(line: bytes) -> dict[str, Any] | None:
    """The row that a line holds; None for a line that holds none, or that was cut."""
    try:
        held = json.loads(line) if line.endswith(b"\n") else None
        if not isinstance(held, dict) or "request_id" not in held:
            return None
        if held.get("logprobs") is not None:
            held["logprobs"] = base64.b64decode(held["logprobs"])
    except (ValueError, TypeError, RecursionError):
        return None
    return held


logger = logging.getLogger(__name__)

EVERY_S = 0.5
"""How long an entry may wait for others to be written with."""
ENTRIES_PER_TRANSACTION = 500
"""Entries in one transaction."""
RETRY_S = 1.0
"""How long the writer waits after a failure of the database."""
FAILING_CLOSE_S = 2.0
"""How long `close` waits for a database that fails already."""
TELL_S = 60.0
"""Seconds between two events that tell of dropped entries."""

LOST = "entries_lost"
"""The kind of the event that says how many entries a killed process, or a full queue, has lost."""

_EMPTY = row_of(Entry(request_id="", time=0.0, model="", checkpoint="", score=None))
"""Stands in for what a line of a spool does not hold."""
_ADOPT = (
    sa.update(labels)
    .where(labels.c.request_id == sa.bindparam("name"), labels.c.key_name == sa.bindparam("key"))
    .values(request_id=sa.bindparam("ours"))
)
"""Gives answers the labels that came before them under the name that their own caller gave them."""
_COUNTED = insert(writers)
_STORED = _COUNTED.on_conflict_do_update(index_elements=["writer"], set_={"stored": _COUNTED.excluded.stored})


def add_event(run: Execute, kind: str, details: Mapping[str, Any], at: float | None = None) -> None:
    """Stores what happened. `at`: seconds since 1970; None stands for now."""
    given = {"time": time.time() if at is None else at, "kind": kind, "details": json.dumps(details)}
    run(insert(events), given)


class BackgroundWriter:
    """A bounded queue and the thread that empties it, a batch a transaction.

    What the database does not take goes into a file beside the log once half of the queue waits, and when the log is
    closed. It is stored from there as soon as the database takes entries again, by this process or the next.
    """

    def __init__(self, tables: Tables, *, capacity: int, spool: Spool, left: Sequence[Spool]) -> None:
        """`left`: the files of processes that have ended."""
        self.dropped = 0
        """Entries that found the queue full, or could neither be stored nor kept in the file."""
        self.repeated = 0
        """Entries whose request id was in the log already; the first one counts."""
        self.spooled = 0
        """Entries that were put into the file."""
        self._tables = tables
        self._capacity = capacity
        self._spool = spool
        self._left = [*left]
        self._queue: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()
        self._number = 0
        self._stored = 0
        self._told = 0
        """Number of dropped entries of which an event of the log tells."""
        self._told_at = self._warned_at = -TELL_S
        self._warned = 0
        self._failing = False
        self._moving = threading.Lock()
        """Held while entries leave the queue."""
        self._ending = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._work, name="metaprobe-log", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> bool:
        """Whether the entry was taken. One that cannot be stored, or finds the queue full or the log closed, is dropped
        and counted."""
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
            self._number += 1
            self._spool.count(self._number)
        if len(self._queue) == ENTRIES_PER_TRANSACTION:
            self._hurry.set()
        return True

    def flush(self, timeout_s: float, failing_s: float = math.inf) -> bool:
        """Whether everything that was taken before is stored within that time.

        `failing_s`: how long a database that fails already is waited for.
        """
        with self._lock:
            number = self._number
        began = time.monotonic()
        while self._stored < number:
            most = min(failing_s, timeout_s) if self._failing else timeout_s
            if time.monotonic() > began + most or not self._thread.is_alive():
                return False
            self._hurry.set()
            time.sleep(0.002)
        return True

    def close(self, timeout_s: float) -> bool:
        """Whether everything was stored; the rest goes into the file. No entry is taken from now on.

        A database that fails already is not waited for as long: the end of the process may be near.
        """
        whole = self.flush(timeout_s, FAILING_CLOSE_S)
        with self._lock:
            self._ending.set()
        self._hurry.set()
        self._thread.join(timeout=timeout_s if whole else FAILING_CLOSE_S)
        with self._moving:
            self._keep()
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
        if self.dropped > self._told:
            self._spool.add_dropped(self.dropped - self._told)
        self._spool.count(0)  # whatever was accepted is stored by now, or stands in the file
        if not self._thread.is_alive():
            for spool in (self._spool, *self._left):
                spool.close()
        return whole and not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            ending = self._ending.is_set()
            try:
                more = self._step(ending)
                self._failing = False
            except LogError as error:
                if not self._failing:
                    logger.error("%s (entries wait, and go into a file once half of %d do)", error, self._capacity)
                self._failing = True
                self._warn()
                if ending:
                    return
                if len(self._queue) * 2 > self._capacity:
                    with self._moving:
                        self._keep()
                self._ending.wait(RETRY_S)
                continue
            if not self._queue and not more:
                if ending:
                    return
                self._hurry.wait(EVERY_S)
                self._hurry.clear()

    def _step(self, ending: bool) -> bool:
        """Stores a batch, and one of what is in a file; whether there is more in one."""
        batch = self._first()  # they leave it when they are stored
        if batch:
            try:
                self.repeated += self._insert(batch, len(batch))
            except LogError:
                raise
            except Exception as error:  # the thread must go on, whatever is wrong with these
                places = "".join(traceback.format_tb(error.__traceback__))
                logger.error("a batch of the score log was dropped: %s\n%s", type(error).__name__, places)
                self.dropped += len(batch)
            with self._moving:  # unless `close` has moved them meanwhile
                self._take_off(min(len(batch), len(self._queue)))
            self._stored += len(batch)
        more = not ending and self._replay()
        self._tell(ending)
        return more

    def _first(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(islice(self._queue, ENTRIES_PER_TRANSACTION))

    def _take_off(self, number: int) -> None:
        with self._lock:
            for _ in range(number):
                self._queue.popleft()

    def _keep(self) -> None:
        """Moves what waits into the file, as far as the file takes it."""
        while kept := self._spool.add(self._first()):
            self._take_off(kept)
            self.spooled += kept

    def _replay(self) -> bool:
        """Stores a batch of what is in a file, this process's own first; whether there is more."""
        files = [self._spool] * self._spool.unread + self._left
        if not files:
            return False
        spool, own = files[0], files[0] is self._spool
        rows, dropped, place = spool.next(ENTRIES_PER_TRANSACTION)
        if rows:
            self.repeated += self._insert([_EMPTY | row for row in rows], len(rows) if own else 0)
        if dropped:
            self._say_lost(dropped)
        spool.taken(len(rows), place)
        if own:
            self._stored += len(rows)
        more = len(files) > 1 or spool.unread
        if not own and not spool.unread:
            self._left.remove(spool)
            spool.close()
            logger.info("the score log holds what waited in %s", spool.path)
        return more

    def _warn(self) -> None:
        """Says in the program's log what was dropped, once a minute at most."""
        number = self.dropped - self._warned
        if number and time.monotonic() - self._warned_at > TELL_S:
            logger.error("%d entries of the score log were dropped: its queue was full, or they were unfit", number)
            self._warned, self._warned_at = self.dropped, time.monotonic()

    def _tell(self, now: bool) -> None:
        """Has an event of the log say what was dropped, once a minute at most unless it must be `now`."""
        self._warn()
        number = self.dropped - self._told
        if number and (now or time.monotonic() - self._told_at > TELL_S):
            self._say_lost(number)
            self._told += number
            self._told_at = time.monotonic()

    def _say_lost(self, number: int) -> None:
        with self._tables.transaction() as run:
            add_event(run, LOST, {"entries": number, "of": self._number + self.dropped})

    def _insert(self, rows: Sequence[dict[str, Any]], taken: int) -> int:
        """Writes rows and says how many were known already. `taken`: entries that are done with it."""
        with self._tables.transaction() as run:
            first: dict[str, dict[str, Any]] = {}
            for row in rows:
                first.setdefault(row["request_id"], row)
            new = insert_rows(run, list(first.values()), alone=self._tables.alone)
            add_rows(run, new)
            named = [
                {"ours": row["request_id"], "name": row["callers_id"], "key": row["key_name"]}
                for row in new
                if row["callers_id"]
            ]
            if named:
                run(_ADOPT, named)
            run(_STORED, {"writer": self._spool.writer, "stored": self._stored + taken})
        return len(rows) - len(new)
