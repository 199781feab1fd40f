"""The score log's database: one SQLite file, or PostgreSQL. Both are reached by SQLAlchemy.

No answer's number is given twice, and none is late: by its number a reader knows what it has read. In a SQLite file one
process writes at a time, so that a row's `id` is in the order of commits. In PostgreSQL a row may be committed after
rows with higher ids. There a row's number is that of its transaction, in the column `written`; a number is settled once
every transaction up to it has ended.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from sqlite3 import OperationalError
from typing import Any

from metaprobe.monitoring.schema import META, VERSION, identity, insert, marks, sa, scores
from metaprobe.records.database import BUSY_SECONDS, Database
from metaprobe.records.errors import RecordError

logger = logging.getLogger(__name__)

Values = Mapping[str, Any]
Row = Any
"""Values in the order of the columns that were asked for, which are attributes as well."""
Execute = Callable[..., Sequence[Row]]
"""`run(statement, values)` returns the rows found. With a list of values it runs once for each of them."""

APPLICATION = 0x6D704C47
POSTGRESQL = "postgresql"
LIBPQ = {"connect_timeout": 10, "tcp_user_timeout": 30_000}
"""Seconds to connect, and milliseconds in which sent data must be acknowledged."""
TIDY_S = 2.0
"""How long a prune waits for those who read a SQLite file: it only makes the journal short."""
ERASE_S = 60.0
"""How long a deletion may take to write a SQLite file anew: some gigabytes. Who writes meanwhile waits."""
CHUNK = 50_000
"""Rows fetched at a time."""

BASE, TOLD = "written_base", "settled"
"""Marks of PostgreSQL: what is added to a transaction's number; the highest number that a reader was told."""
_EPOCH = 1 << 48
"""Numbers of one server's transactions. A restored database is on another server, which counts from the beginning."""


class LogError(RecordError):
    """The score log cannot be opened, read or written."""


class LogUnavailable(LogError):
    """The database of the score log fails, or another process holds it; nothing was stored, and may be later."""


class Tables:
    """The operations that a score log needs of its database."""

    alone: bool
    """Whether every transaction has the database to itself, so that what it has read cannot change before it ends."""
    number: sa.ColumnElement[Any]
    """The number of a row of the table of scores; see above."""

    _engine: sa.Engine

    def settled(self) -> int:
        """Returns the number up to which all rows are there: none at or below it can come later. Raises `LogError`."""
        raise NotImplementedError

    @contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[Execute]:
        """Runs all statements inside, or none. Raises `LogError`. `alone`: while no other such one runs."""
        with self._named(), self._begun(alone) as connection:
            yield partial(_run, connection)

    @contextmanager
    def _begun(self, alone: bool) -> Iterator[sa.Connection]:
        with self._engine.begin() as connection:
            if alone and not self.alone:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(APPLICATION)))
            yield connection

    def read(self, statement: str | sa.Executable, values: Values | None = None) -> Sequence[Row]:
        """Returns the rows that a statement finds. Raises `LogError`."""
        with self._reading() as connection:
            return _run(connection, statement, values or {})

    def read_chunks(self, statement: str | sa.Executable, values: Values | None = None) -> Iterator[Sequence[Row]]:
        """Yields the same, `CHUNK` rows at a time. Raises `LogError`."""
        with self._reading() as connection:
            result = connection.execution_options(stream_results=True).execute(_executable(statement), values or {})
            yield from result.partitions(CHUNK)

    def tidy(self) -> None:
        """Lets go of what was deleted, as far as nobody else reads it: PostgreSQL does that by itself."""

    def erase(self) -> None:
        """Sees to it that no byte of what was deleted is left in a SQLite file, or raises `LogError`.

        PostgreSQL keeps the bytes until it vacuums, and longer in its own log and in copies.
        """

    def close(self) -> None:
        """Gives the connections back."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._named(), self._engine.connect() as connection:
            yield connection

    def _named(self) -> AbstractContextManager[None]:
        """Turns errors inside into `LogUnavailable`, which names no password."""
        raise NotImplementedError


def _make(connection: sa.Connection) -> None:
    """Makes the tables where there are none. Raises `LogError` where another version has made them."""
    run = partial(_run, connection)
    there = sa.inspect(connection).get_table_names()
    if scores.name not in there:
        META.create_all(connection)
        run(insert(marks), {"name": "version", "value": VERSION})
        run(insert(identity), {"identity": uuid.uuid4().hex})
    elif (made := read_mark(run, "version") if marks.name in there else None) != VERSION:
        raise LogError(
            f"this score log has format {made or 'of an earlier version'}, and this metaprobe writes {VERSION}; "
            "expected a new file or an empty database"
        )


def open_tables(where: str | Path, *, wait_s: float = BUSY_SECONDS) -> tuple[Tables, Tables]:
    """Two ways to one database, for who reads and for who writes in the background; the tables are made if missing.

    `where`: the path of a SQLite file, or a URL for SQLAlchemy such as `postgresql+psycopg://user@host/name`. `wait_s`:
    how long a statement waits for another process that holds the file. Raises `LogError` where it cannot be opened.
    """
    name = str(where).removeprefix("sqlite:///")
    if "://" not in name:
        return SqliteTables(Path(name), wait_s), SqliteTables(Path(name), wait_s)
    tables = UrlTables(name)
    return tables, tables


def set_mark(run: Execute, name: str, value: int, *, add: bool = False) -> None:
    """Sets a mark, or adds to it."""
    given = insert(marks)
    new = marks.c.value + given.excluded.value if add else given.excluded.value
    run(given.on_conflict_do_update(index_elements=["name"], set_={"value": new}), {"name": name, "value": int(value)})


def read_mark(run: Execute, name: str) -> int | None:
    """Returns a mark; None where it was never set."""
    rows = run(sa.select(marks.c.value).where(marks.c.name == name))
    return int(rows[0][0]) if rows else None


class SqliteTables(Tables):
    """The tables in one file.

    A file that was moved or deleted while it was open would go on taking what nobody can find again. So a new one is
    begun in its place, or the one that was put there is taken.
    """

    alone, number = True, scores.c.id

    def __init__(self, path: Path, wait_s: float = BUSY_SECONDS) -> None:
        self._path, self._wait_s = path, wait_s
        self._changing = threading.Lock()
        self._open()

    def _open(self) -> None:
        self._database = Database(
            self._path,
            what="score log",
            table=str(sa.schema.CreateTable(marks)),
            application=APPLICATION,
            version=VERSION,
            lost="begin a new one, without what it held",
            error=LogUnavailable,
            wait_s=self._wait_s,
        )
        self._file = _file_at(self._path)
        self._engine = sa.create_engine(
            "sqlite://",
            creator=lambda: self._database.connection,
            poolclass=sa.pool.StaticPool,
            paramstyle="named",
        )
        sa.event.listen(self._engine, "begin", _begin_writing)
        with self._told(), self._begun(alone=True) as connection:
            _make(connection)

    def _take_what_is_there(self) -> None:
        """Opens the file anew where another one stands there than the one that is open, or none."""
        with self._changing:
            if _file_at(self._path) != self._file:
                logger.error("%s was moved or deleted while it was open; what is there now is taken", self._path)
                self._database.close()
                self._open()

    def settled(self) -> int:
        rows = self.read("SELECT seq FROM sqlite_sequence WHERE name = 'scores'")  # also of rows that are gone
        return int(rows[0][0]) if rows else 0

    def read_chunks(self, statement: str | sa.Executable, values: Values | None = None) -> Iterator[Sequence[Row]]:
        with self._reading() as connection:
            result = connection.execute(_executable(statement), values or {})
            # Plain tuples: SQLAlchemy's own rows take half as long again to make, which tells for millions of answers.
            while result.cursor is not None and (rows := result.cursor.fetchmany(CHUNK)):
                yield rows

    def tidy(self) -> None:
        with self._database.named(), suppress(OperationalError):  # it stays in the journal until that is written over
            self._database.empty_journal(TIDY_S)

    def erase(self) -> None:
        self._take_what_is_there()
        with self._database.named():
            self._database.write_anew(ERASE_S)

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._named(), self._engine.connect() as connection:
            yield connection.execution_options(reads=True)

    def _named(self) -> AbstractContextManager[None]:
        self._take_what_is_there()
        return self._told()

    @contextmanager
    def _told(self) -> Iterator[None]:
        with self._database.named():
            try:
                yield
            except sa.exc.DBAPIError as error:
                raise error.orig or error from error


def _begin_writing(connection: sa.Connection) -> None:
    """Begins a transaction that has the file to itself; who only reads needs none."""
    if not connection.get_execution_options().get("reads"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


class UrlTables(Tables):
    """The tables in a PostgreSQL database."""

    alone, number = False, scores.c.written

    def __init__(self, url: str) -> None:
        with self._named():
            # A connection that the server closed meanwhile is found out before it is used.
            self._engine = sa.create_engine(
                url, pool_pre_ping=True, isolation_level="READ COMMITTED", connect_args=_limits(url)
            )
        if self._engine.dialect.name != POSTGRESQL:
            raise LogError(
                f"a score log in {self._engine.dialect.name}; expected the path of a SQLite file, or a URL such as "
                "postgresql+psycopg://user@host/name"
            )
        with self._named(), self._begun(alone=True) as connection:  # two that make the tables wait for each other
            _make(connection)
            _number_by_transaction(partial(_run, connection))

    def settled(self) -> int:
        with self.transaction() as run:
            base = read_mark(run, BASE) or 0
            last = base + int(run(sa.select(sa.func.txid_snapshot_xmin(sa.func.txid_current_snapshot())))[0][0]) - 1
            run(sa.update(marks).where(marks.c.name == TOLD, marks.c.value < last).values(value=last))
        return last

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.SQLAlchemyError, ImportError, OSError, UnicodeError) as error:
            # Not its text, which names host, port and user; an open secret in a log is found by whoever reads logs.
            raise LogUnavailable(
                f"the score log's database failed ({kind_of(error)}); check its URL (such as"
                " postgresql+psycopg://user@host/name), that the server runs, and that its driver is installed: pip"
                " install 'metaprobe[postgres]'"
            ) from error


def _number_by_transaction(run: Execute) -> None:
    """Has rows numbered by transaction.

    Where the database was restored on a server that counts its transactions from a lower number, new rows get numbers
    above those that were given before.
    """
    base, told = read_mark(run, BASE), read_mark(run, TOLD) or 0
    highest = max(told, int(run(sa.select(sa.func.max(scores.c.written)))[0][0] or 0))
    restored = base is not None and highest >= base + int(
        run(sa.select(sa.func.txid_snapshot_xmax(sa.func.txid_current_snapshot())))[0][0]
    )
    if base is None or restored:
        base = (highest // _EPOCH + 1) * _EPOCH if restored else 0
        set_mark(run, BASE, base)
        set_mark(run, TOLD, told)
        run(f"ALTER TABLE scores ALTER COLUMN written SET DEFAULT {base} + txid_current()")


def _limits(written: str) -> dict[str, Any]:
    """Returns time limits for libpq, unless the URL sets them: by itself it waits for a silent server for ever."""
    try:
        url = sa.make_url(written)
    except ValueError as error:  # its port is no number
        raise sa.exc.ArgumentError("could not parse the URL") from error
    if not url.drivername.startswith("postgresql") or "psycopg" not in url.drivername:
        return {}
    return {name: value for name, value in LIBPQ.items() if name not in url.query}


def _executable(statement: str | sa.Executable) -> sa.Executable:
    return sa.text(statement) if isinstance(statement, str) else statement


def _run(
    connection: sa.Connection, statement: str | sa.Executable, values: Values | Sequence[Values] = ()
) -> Sequence[Row]:
    if isinstance(statement, sa.UpdateBase) and isinstance(values, list) and not statement._returning:
        return _run_many(connection, statement, values)
    result = connection.execute(_executable(statement), values or None)
    return result.fetchall() if result.returns_rows else ()


def _run_many(connection: sa.Connection, statement: sa.UpdateBase, rows: Sequence[Values]) -> Sequence[Row]:
    """Runs a statement once for each row, by the driver itself: SQLAlchemy takes twice as long to bind the values.

    An insertion passes over names that are no columns.
    """
    names = None
    if isinstance(statement, sa.Insert):
        names = tuple(name for name in rows[0] if name in statement.table.c)
    connection.exec_driver_sql(_compiled(statement, connection.dialect, names), list(rows))
    return ()


@lru_cache(maxsize=32)
def _compiled(statement: sa.UpdateBase, dialect: sa.Dialect, columns: tuple[str, ...] | None) -> str:
    """Returns the statement's text, in which values stand by their names, as both drivers take them."""
    return str(statement.compile(dialect=dialect, column_keys=None if columns is None else list(columns)))


def _file_at(path: Path) -> tuple[int, int] | None:
    """Returns the identity of the file at that path; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Only the kind of a database's error may be shown. Its text names hosts, ports, users and sometimes passwords.

_KNOWN = (
    "connection refused",
    "connection timed out",
    "timeout expired",
    "connection reset by peer",
    "network is unreachable",
    "no route to host",
    "server closed the connection unexpectedly",
    "connection is lost",
    "the database system is starting up",
    "the database system is shutting down",
    "the database system is in recovery mode",
    "name or service not known",
    "temporary failure in name resolution",
    "could not translate host name",
    "failed to resolve host",
    "no such file or directory",
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "role does not exist",
    "database does not exist",
    "permission denied",
    "too many clients",
    "remaining connection slots are reserved",
    "certificate verify failed",
    "ssl",
    "could not parse",
    "can't load plugin",
    "no module named",
)
"""Phrases that are repeated of an error's text, in lower case. They are of errors before a session, which have no
SQLSTATE; the class of any other error says what went wrong."""


def kind_of(error: BaseException) -> str:
    """Returns the error's class, its SQLSTATE where it has one, and known phrases of its text, without names."""
    problem = getattr(error, "orig", None) or error
    # Names stand in quotation marks, and are left out: 'role "log" does not exist'.
    text = " ".join("".join(str(problem).split('"')[::2]).lower().split())
    told = [type(problem).__name__]
    if code := getattr(problem, "sqlstate", None) or getattr(problem, "pgcode", None):
        told.append(f"SQLSTATE {code}")
    return ": ".join([", ".join(told), *filter(None, [" and ".join(known for known in _KNOWN if known in text)])])
