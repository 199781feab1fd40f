"""An SQLite file that many threads and processes of one machine write to; committed rows outlive their process.

The file is in WAL mode: a killed process (SIGKILL) does not harm the others. After a power failure the last rows may be
missing, but the file stays valid.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metaprobe.records.errors import RecordError, Unwritable

_STEPS_PER_CHECK = 10_000
"""Steps of SQLite's virtual machine between two checks of the time limit while a file is rewritten: a few
milliseconds.
"""


class Database:
    """An SQLite file of one kind, with one table. Every error names the file and what to do."""

    busy_s = 60
    """Seconds for which another program may lock the file before an error is raised."""

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
        """Opens the file, or creates it. Raises `error` if the file is of another kind, or damaged.

        Args:
            path: the file.
            what: name of the kind of file in errors, such as "call cache".
            table: CREATE statement of the table.
            application: number that distinguishes this kind from other SQLite files.
            version: version of the format; it is raised when an older reader could no longer read the file.
            lost: what errors say is lost if a damaged file is moved away.
            error: class of the errors that are raised.
            wait_s: seconds for which a statement waits for another process that locks the file.
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
        # Damaged text is read with replaced characters. The reader of the row finds the damage.
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
        """The SQLite connection, for callers with statements of their own. Use it inside `named`."""
        return self._db

    def execute(self, statement: str, values: tuple[Any, ...] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        """Runs one statement. Use it inside `named`."""
        return self._db.execute(statement, values)

    def count(self, table: str) -> int:
        """Returns the number of rows of a table."""
        with self.named():
            return int(self.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def check(self) -> None:
        """Reads the whole file. Raises `error` if its structure is damaged. The values of a row are checked by its
        reader.
        """
        with self.named():
            if (fault := self.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(" ".join(fault.split()))

    def write_anew(self, within_s: float) -> None:
        """Rewrites the file, so that no byte of a deleted row stays in it or in the journal. Use it inside `named`.

        `secure_delete` alone is not enough: a row that SQLite moves to another page leaves a copy in the unused part of
        the first page. Raises `sqlite3.OperationalError` if rewriting takes longer than `within_s` seconds, or another
        process reads the file for that long.
        """
        deadline = time.monotonic() + within_s
        self._db.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_CHECK)
        try:
            with self._waiting(within_s):
                self._db.execute("VACUUM")
        finally:
            self._db.set_progress_handler(None, 0)
        self.empty_journal(within_s)

    def empty_journal(self, within_s: float) -> None:
        """Moves the journal into the file. Use it inside `named`.

        Raises `sqlite3.OperationalError` if other processes read the journal for longer than `within_s` seconds.
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
        """Commits all statements of the block, or none if one fails. Use it inside `named`."""
        self._db.execute(f"BEGIN {kind}")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    @contextmanager
    def named(self, *, keeping: bool = False) -> Iterator[None]:
        """Locks the connection for one thread; errors of SQLite are raised with the file's name and what to do.

        With `keeping`, the block writes rows that must not be lost, so an error is raised as `Unwritable`.
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
        """Returns whether the file has our application id and version; False for an empty file.

        Both are read in one transaction, because another process may be creating the table.
        """
        with self.transaction("DEFERRED"):
            application_id, file_version, tables = (
                self._db.execute(pragma).fetchone()[0]
                for pragma in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
            )
        if (application_id, file_version) == (application, version):
            return True
        if tables:
            reason = (
                f"format {file_version}, this metaprobe writes {version}"
                if application_id == application
                else "not ours"
            )
            raise self._error(f"{self.path} is a database but no {self._what} ({reason}): choose another file")
        return False
