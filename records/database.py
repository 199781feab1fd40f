"""One SQLite file that any number of threads and processes of a machine write to: what was committed outlives them.

WAL mode: any process may be killed (SIGKILL) and costs the others nothing. After a power failure the last rows may be
missing; the file stays whole.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metaprobe.records.errors import RecordError, Unwritable

_STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock while a file is written anew: some milliseconds."""


class Database:
    """A file of one kind, with one table. Every error names the file and the way out."""

    busy_s = 60
    """Seconds for which another program may hold the file before that is an error."""

    def __init__(
        self,
        path: str | Path,
        *,
        what: str,
        table: str,
        application: int,
        version: int,
        lost: str,
        error: Callable[[str], RecordError] = RecordError,
        wait_s: float = busy_s,
    ) -> None:
        """Opens the file, or makes it with `table`, a CREATE statement.

        `what`: how errors call it, as in "call cache". `application` tells it from any other SQLite file; `version`
        goes up when an older reader could no longer read what is written. `lost`: what becomes of its rows where a
        damaged file is moved away. `wait_s`: how long a statement waits for another process that holds the file.
        Raises `error` where the file is something else, or damaged.
        """
        self.path = Path(path)
        self._what, self._lost, self._error, self._wait_s = what, lost, error, wait_s
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise error(f"no folder for the {what} {self.path}: {problem}") from problem
        with self.named():
            self._db = sqlite3.connect(self.path, timeout=wait_s, isolation_level=None, check_same_thread=False)
        # Damaged text is then read, and whoever reads the row tells.
        self._db.text_factory = lambda text: text.decode(errors="replace")
        try:
            with self.named():
                self._open(table, application, version)
                self._db.execute("PRAGMA secure_delete = ON")  # the bytes of what is deleted are overwritten
        except RecordError:
            self._db.close()
            raise

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection itself, for who brings statements of its own; used inside `named`."""
        return self._db

    def execute(self, statement: str, values: tuple[Any, ...] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        """One statement; inside `named`."""
        return self._db.execute(statement, values)

    def count(self, table: str) -> int:
        """Rows of a table."""
        with self.named():
            return int(self.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def check(self) -> None:
        """Reads the whole file. Raises `error` where its structure is damaged; who reads a row sees to its values."""
        with self.named():
            if (fault := self.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(" ".join(fault.split()))

    def write_anew(self, within_s: float) -> None:
        """Writes the file anew, so that no byte of a deleted row is left in it or in the journal; inside `named`.

        `secure_delete` alone is not enough: rows that SQLite moves to another page leave a copy in the unused part of
        the first one. Raises `sqlite3.OperationalError` where that takes longer than `within_s` seconds, or another
        process reads the file for as long.
        """
        deadline = time.monotonic() + within_s
        self._db.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        try:
            with self._waiting(within_s):
                self._db.execute("VACUUM")
        finally:
            self._db.set_progress_handler(None, 0)
        self.empty_journal(within_s)

    def empty_journal(self, within_s: float) -> None:
        """Moves the journal into the file; inside `named`.

        Raises `sqlite3.OperationalError` where others read it for as long as `within_s` seconds.
        """
        with self._waiting(within_s):
            if self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise sqlite3.OperationalError("another process reads the file")

    @contextmanager
    def _waiting(self, seconds: float) -> Iterator[None]:
        """Sets how long a statement inside the block waits for another process."""
        self._db.execute(f"PRAGMA busy_timeout = {int(1000 * seconds)}").fetchall()
        try:
            yield
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {int(1000 * self._wait_s)}").fetchall()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """All of the statements or none; inside `named`."""
        self._db.execute(f"BEGIN {kind}")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    @contextmanager
    def named(self, *, keeping: bool = False) -> Iterator[None]:
        """One thread at a time; what SQLite says goes out with the file's name and the way out.

        `keeping`: rows that must not be lost are written, so that what goes out is an `Unwritable`.
        """
        kind = Unwritable if keeping else self._error
        with self._lock:
            try:
                yield
            except sqlite3.ProgrammingError as error:
                raise kind(f"{self._what} {self.path}: {error}; it was closed while still in use") from error
            except sqlite3.OperationalError as error:
                raise kind(
                    f"{self._what} {self.path}: {error}; check that the folder can be written to, that the disk has "
                    "room, that no other process holds the file, and that it was not cut"
                ) from error
            except sqlite3.DatabaseError as error:
                raise kind(
                    f"{self._what} {self.path} is damaged ({error}): move it away, and {self._lost}, or save what can "
                    f"be read with: sqlite3 {self.path.name} .recover"
                ) from error

    def _open(self, table: str, application: int, version: int) -> None:
        self._db.execute("PRAGMA synchronous = NORMAL")
        deadline = time.monotonic() + Database.busy_s
        while not self._is_ours(application, version):
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                with self.transaction():  # another process sees either nothing or all of it
                    self._db.execute(table)
                    self._db.execute(f"PRAGMA application_id = {application}")
                    self._db.execute(f"PRAGMA user_version = {version}")
            except sqlite3.OperationalError as error:
                # SQLite does not wait by itself where two processes switch a new file to WAL at once.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _is_ours(self, application: int, version: int) -> bool:
        """False for an empty file. One transaction: another process may be making the table just now."""
        with self.transaction("DEFERRED"):
            kind, format_, tables = (
                self._db.execute(question).fetchone()[0]
                for question in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
            )
        if (kind, format_) == (application, version):
            return True
        if tables:
            why = f"format {format_}, this metaprobe writes {version}" if kind == application else "not ours"
            raise self._error(f"{self.path} is a database but no {self._what} ({why}): choose another file")
        return False
