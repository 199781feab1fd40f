"""The tables of a score log, in one SQLite file or in a database that SQLAlchemy reaches. Statements are the same."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from sqlite3 import OperationalError
from typing import Any, Protocol

from metaprobe.monitoring import log_numbers
from metaprobe.monitoring.database_errors import kind_of
from metaprobe.monitoring.log_schema import FIRST, FURTHER
from metaprobe.records.database import BUSY_SECONDS, Database
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require

logger = logging.getLogger(__name__)

Values = Mapping[str, Any]
Row = Sequence[Any]
Execute = Callable[..., Sequence[Row]]
"""`run(statement, values)` returns the rows found; with a list of values it runs for each, and returns nothing."""

APPLICATION = 0x6D704C47
VERSION = 1
POSTGRESQL = "postgresql"
LIBPQ = {"connect_timeout": 10, "tcp_user_timeout": 30_000}
"""Seconds to connect, and milliseconds in which sent data must be acknowledged."""
TIDY_S = 2.0
"""How long a prune waits for those who read a SQLite file: it only makes the journal short."""
ERASE_S = 60.0
"""How long a deletion may take to write a SQLite file anew: some gigabytes. Who writes meanwhile waits."""
CHUNK = 50_000
"""Rows fetched at a time."""

_URL_COLUMNS = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = :name"
)


class LogError(RecordError):
    """The score log cannot be opened, read or written."""


class LogUnavailable(LogError):
    """The database of the score log fails, or another process holds it; nothing was stored, and may be later."""


class Tables(Protocol):
    """What a score log asks of its database. Statements name their values as `:name`."""

    alone: bool
    """Whether every transaction has the database to itself, so that what it has read cannot change before it ends."""
    number: str
    """SQL for the number of a row `s` of the table of scores; see `monitoring.log_numbers`."""

    def settled(self) -> int:
        """Returns the number up to which all rows are there: none at or below it can come later. Raises `LogError`."""

    def transaction(self, *, alone: bool = False) -> AbstractContextManager[Execute]:
        """All statements that are run inside, or none. Raises `LogError`. `alone`: while no other such one runs."""

    def read(self, statement: str, values: Values | None = None) -> Sequence[Row]:
        """The rows that a statement finds. Raises `LogError`."""

    def read_chunks(self, statement: str, values: Values | None = None) -> Iterator[Sequence[Row]]:
        """The same, `CHUNK` rows at a time. Raises `LogError`."""

    def tidy(self) -> None:
        """Lets go of what was deleted, as far as nobody else reads it. Raises `LogError`."""

    def erase(self) -> None:
        """Sees to it that no byte of what was deleted is left in a file, or raises `LogError`."""

    def close(self) -> None:
        """Gives the connections back."""


def open_tables(where: str | Path, *, wait_s: float = BUSY_SECONDS) -> tuple[Tables, Tables]:
    """Two ways to one database, for who reads and for who writes in the background; the tables are made if missing.

    `where`: the path of a SQLite file, or a URL for SQLAlchemy such as `postgresql+psycopg://user@host/name`. `wait_s`:
    how long a statement waits for another process that holds the file. Raises `LogError` where it cannot be
    opened, and `MissingExtra` where a URL is given without the extra `monitor`.
    """
    name = str(where)
    if name.startswith("sqlite:///"):
        name = name.removeprefix("sqlite:///")
    if "://" not in name:
        return SqliteTables(Path(name), wait_s), SqliteTables(Path(name), wait_s)
    tables = UrlTables(name)
    return tables, tables


class SqliteTables:
    """The tables in one file, by the standard library alone.

    A file that was moved or deleted while it was open would go on taking what nobody can find again. So a new one is
    begun in its place, or the one that was put there is taken.
    """

    alone, number = True, "s.id"

    def __init__(self, path: Path, wait_s: float = BUSY_SECONDS) -> None:
        self._path, self._wait_s = path, wait_s
        self._changing = threading.Lock()
        self._open()

    def _open(self) -> None:
        self._db = Database(
            self._path,
            what="score log",
            table=FIRST,
            application=APPLICATION,
            version=VERSION,
            lost="begin a new one, without what it held",
            error=LogUnavailable,
            wait_s=self._wait_s,
        )
        with self._db.named(), self._db.transaction():
            for statement in FURTHER:
                self._db.execute(statement.format(serial="INTEGER PRIMARY KEY"))
            log_numbers.never_again(self._run)
        self._file = _file_at(self._path)

    def _take_what_is_there(self) -> None:
        """Opens the file anew where another one stands there than the one that is open, or none."""
        with self._changing:
            if _file_at(self._path) != self._file:
                logger.error("%s was moved or deleted while it was open; what is there now is taken", self._path)
                self._db.close()
                self._open()

    @contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[Execute]:
        self._take_what_is_there()  # a file has one writer at a time, so that all are alone
        with self._db.named(), self._db.transaction():
            yield self._run

    def settled(self) -> int:
        return int(self.read(log_numbers.LAST_OF_FILE)[0][0])

    def read(self, statement: str, values: Values | None = None) -> Sequence[Row]:
        self._take_what_is_there()
        with self._db.named():
            return self._db.execute(statement, values or {}).fetchall()

    def read_chunks(self, statement: str, values: Values | None = None) -> Iterator[Sequence[Row]]:
        self._take_what_is_there()
        with self._db.named():
            cursor = self._db.execute(statement, values or {})
            while rows := cursor.fetchmany(CHUNK):
                yield rows

    def tidy(self) -> None:
        with self._db.named(), suppress(OperationalError):  # it stays in the journal until that is written over
            self._db.empty_journal(TIDY_S)

    def erase(self) -> None:
        self._take_what_is_there()
        with self._db.named():
            self._db.write_anew(ERASE_S)

    def close(self) -> None:
        self._db.close()

    def _run(self, statement: str, values: Values | Sequence[Values] = ()) -> Sequence[Row]:
        if isinstance(values, Mapping):
            return self._db.execute(statement, values).fetchall()
        if values:
            self._db.execute_many(statement, values)
            return ()
        return self._db.execute(statement).fetchall()


class UrlTables:
    """The tables in a PostgreSQL database, which SQLAlchemy reaches."""

    alone, number = False, log_numbers.OF_COMMIT

    def __init__(self, url: str) -> None:
        sqlalchemy: Any = require("sqlalchemy", "monitor")
        self._text = cache(sqlalchemy.text)
        self._failures: tuple[type[Exception], ...] = (
            sqlalchemy.exc.SQLAlchemyError,
            ImportError,
            OSError,
            UnicodeError,
        )
        with self._named():
            # A connection that the server closed meanwhile is found out before it is used.
            self._engine = sqlalchemy.create_engine(
                url, pool_pre_ping=True, isolation_level="READ COMMITTED", connect_args=self._limits(url)
            )
        if self._engine.dialect.name != POSTGRESQL:
            raise LogError(
                f"a score log in {self._engine.dialect.name}; expected the path of a SQLite file, or a URL such as "
                "postgresql+psycopg://user@host/name"
            )
        with self.transaction(alone=True) as run:  # two that make the tables at once wait for each other
            for statement in (FIRST, *FURTHER):
                run(statement.format(serial="BIGSERIAL PRIMARY KEY"))
            log_numbers.by_commit(run, begun=("written",) in map(tuple, run(_URL_COLUMNS, {"name": "scores"})))

    @contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[Execute]:
        with self._named(), self._engine.begin() as connection:

            def run(statement: str, values: Values | Sequence[Values] = ()) -> Sequence[Row]:
                result = connection.execute(self._text(statement), values or {})
                rows: Sequence[Row] = result.fetchall() if result.returns_rows else ()
                return rows

            if alone:
                run("SELECT pg_advisory_xact_lock(:key)", {"key": APPLICATION})
            yield run

    def settled(self) -> int:
        with self.transaction() as run:
            return log_numbers.settled_by_commit(run)

    def read(self, statement: str, values: Values | None = None) -> Sequence[Row]:
        with self.transaction() as run:
            return run(statement, values or {})

    def read_chunks(self, statement: str, values: Values | None = None) -> Iterator[Sequence[Row]]:
        with self._named(), self._engine.connect() as connection:
            streamed = connection.execution_options(stream_results=True)
            yield from streamed.execute(self._text(statement), values or {}).partitions(CHUNK)

    def tidy(self) -> None:
        """Nothing: the database sees to it by itself."""

    def erase(self) -> None:
        """Nothing: PostgreSQL keeps the bytes until it vacuums, and longer in its own log and in copies."""

    def close(self) -> None:
        self._engine.dispose()

    def _limits(self, written: str) -> dict[str, Any]:
        """How long libpq waits for a server that is silent, where the URL does not say it: for ever by itself."""
        sqlalchemy: Any = require("sqlalchemy", "monitor")
        try:
            url = sqlalchemy.make_url(written)
        except ValueError as error:  # its port is no number
            raise sqlalchemy.exc.ArgumentError("could not parse the URL") from error
        if not url.drivername.startswith("postgresql") or "psycopg" not in url.drivername:
            return {}
        return {name: value for name, value in LIBPQ.items() if name not in url.query}

    @contextmanager
    def _named(self) -> Iterator[None]:
        """What goes wrong goes out as `LogUnavailable`, without anything that the URL holds."""
        try:
            yield
        except self._failures as error:
            # Not its text, which names host, port and user; an open secret in a log is found by whoever reads logs.
            raise LogUnavailable(
                f"the score log's database failed ({kind_of(error)}); check its URL (such as"
                " postgresql+psycopg://user@host/name), that the server runs, and that its driver is installed: pip"
                " install 'metaprobe[postgres]'"
            ) from error


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file stands there, whatever it is called; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
