"""The thread that writes the log: who answers a request puts an entry into a queue, and never waits."""

import json
import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from metaprobe.monitoring.entry import Entry, row_of
from metaprobe.monitoring.rows import add_rows, adopt_labels, insert_rows
from metaprobe.monitoring.schema import events, insert, writers
from metaprobe.monitoring.spool import Spool
from metaprobe.monitoring.tables import Execute, LogError, Tables

logger = logging.getLogger(__name__)

EVERY_S = 0.5
"""How long an entry may wait for others to be written with."""
BATCH = 500
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
_COUNTED = insert(writers)
_COUNT = _COUNTED.on_conflict_do_update(index_elements=["writer"], set_={"stored": _COUNTED.excluded.stored})


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
        if len(self._queue) == BATCH:
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
            return list(islice(self._queue, BATCH))

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
        rows, dropped, place = spool.next(BATCH)
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
            adopt_labels(run, new)
            run(_COUNT, {"writer": self._spool.writer, "stored": self._stored + taken})
        return len(rows) - len(new)
