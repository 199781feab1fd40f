"""The thread that writes the log: who answers a request puts an entry into a queue, and never waits."""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring.log_rows import CONTEXT, insert_rows, row_of
from metaprobe.monitoring.rollup import add_rows
from metaprobe.monitoring.tables import Execute, LogError, Tables
from metaprobe.monitoring.unwritten import Accepted

logger = logging.getLogger(__name__)

EVERY_S = 0.5
"""How long an entry may wait for others to be written with."""
BATCH = 500
"""Entries in one transaction."""
RETRY_S = 1.0
"""How long the writer waits after a failure of the database."""
MAX_CONTEXTS = 50_000
"""Contexts whose number is remembered; a caller who tags every request with something new has more."""

_SAME = " AND ".join(f"{name} = :{name}" for name in CONTEXT if name != "task")
_FIND_CONTEXT = f"SELECT id FROM contexts WHERE {_SAME}"
_ADD_CONTEXT = (
    f"INSERT INTO contexts ({', '.join(CONTEXT)}) VALUES ({', '.join(':' + name for name in CONTEXT)}) "
    "ON CONFLICT DO NOTHING"
)
_COUNT = (
    "INSERT INTO writers (writer, stored) VALUES (:writer, :stored) "
    "ON CONFLICT (writer) DO UPDATE SET stored = excluded.stored"
)


class BackgroundWriter:
    """A bounded queue and the thread that empties it, a batch a transaction."""

    def __init__(self, tables: Tables, accepted: Accepted, *, capacity: int) -> None:
        self.dropped = 0
        """Entries that found the queue full, or could not be stored."""
        self.repeated = 0
        """Entries whose request id was in the log already; the first one counts."""
        self._tables = tables
        self._accepted = accepted
        self._capacity = capacity
        self._queue: deque[Entry] = deque()
        self._lock = threading.Lock()
        self._number = 0
        self._stored = 0
        self._ending = threading.Event()
        self._hurry = threading.Event()
        self._contexts: dict[tuple[str, ...], int] = {}
        self._opened = tables.opened
        self._thread = threading.Thread(target=self._work, name="metaprobe-log", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> bool:
        """Whether the entry was taken; it is dropped, and counted, where the queue is full or the log closed."""
        with self._lock:
            if len(self._queue) >= self._capacity or self._ending.is_set():
                self.dropped += 1
                return False
            self._queue.append(entry)
            self._number += 1
            self._accepted.set(self._number)
        if len(self._queue) == BATCH:
            self._hurry.set()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Whether everything that was taken before is stored within that time."""
        with self._lock:
            number = self._number
        deadline = time.monotonic() + timeout_s
        while self._stored < number:
            if time.monotonic() > deadline or not self._thread.is_alive():
                return False
            self._hurry.set()
            time.sleep(0.002)
        return True

    def close(self, timeout_s: float) -> bool:
        """Whether everything was stored; what was not is counted as dropped. No entry is taken from now on."""
        whole = self.flush(timeout_s)
        with self._lock:
            self._ending.set()
        self._hurry.set()
        self._thread.join(timeout=timeout_s)
        with self._lock:
            self.dropped += len(self._queue)
            self._queue.clear()
        return whole and not self._thread.is_alive()

    def _work(self) -> None:
        failing = False
        while True:
            ending = self._ending.is_set()
            batch = [self._queue[i] for i in range(min(BATCH, len(self._queue)))]  # they leave it when they are stored
            try:
                if batch:
                    self._store(batch)
                    failing = False
            except LogError as error:
                if not failing:
                    logger.error("%s (entries wait, and are dropped once %d do)", error, self._capacity)
                failing = True
                if ending:
                    return
                self._ending.wait(RETRY_S)
                continue
            except Exception:  # the thread must go on, whatever is wrong with these
                logger.exception("%d entries of the score log were dropped", len(batch))
                self.dropped += len(batch)
            with self._lock:
                for _ in batch:
                    self._queue.popleft()
            self._stored += len(batch)
            if not self._queue:
                if ending:
                    return
                self._hurry.wait(EVERY_S)
                self._hurry.clear()

    def _store(self, batch: Sequence[Entry]) -> None:
        rows, unfit = [], 0
        for entry in batch:
            try:
                rows.append(row_of(entry))
            except Exception as error:
                unfit += 1
                logger.warning("an entry of the score log was dropped: it cannot be stored (%s)", type(error).__name__)
        try:
            repeated = self._insert(rows, len(batch))
        except LogError:
            self._contexts.clear()  # those of a transaction that was rolled back are not there
            raise
        self.dropped += unfit
        self.repeated += repeated

    def _insert(self, rows: Sequence[dict[str, Any]], taken: int) -> int:
        """Writes rows and says how many were known already. `taken`: entries that are done with it."""
        with self._tables.transaction() as run:
            if self._opened != self._tables.opened:  # another file stands in the place of the one before
                self._contexts.clear()
                self._opened = self._tables.opened
            first: dict[str, dict[str, Any]] = {}
            for row in rows:
                first.setdefault(row["request_id"], row)
            for row in first.values():
                row["context"] = self._context(run, row)
            new = insert_rows(run, list(first.values()), alone=self._tables.alone)
            add_rows(run, new)
            run(_COUNT, {"writer": self._accepted.name, "stored": self._stored + taken})
        return len(rows) - len(new)

    def _context(self, run: Execute, row: dict[str, Any]) -> int:
        key = tuple(row[name] for name in CONTEXT)
        if key not in self._contexts:
            if len(self._contexts) >= MAX_CONTEXTS:
                self._contexts.clear()
            given = {name: row[name] for name in CONTEXT}
            if not (found := run(_FIND_CONTEXT, given)):
                run(_ADD_CONTEXT, given)
                found = run(_FIND_CONTEXT, given)
            self._contexts[key] = int(found[0][0])
        return self._contexts[key]
