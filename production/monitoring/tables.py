"""The score log's database: its tables, parts that several queries share, and one SQLite file, or PostgreSQL.

Both are reached through SQLAlchemy, with the same tables.

No answer's number is given twice, and none arrives late, so a reader knows by a number what it has read. In a SQLite
file one process writes at a time, so a row's `id` is in the order of commits. In PostgreSQL a row may be committed
after rows with higher ids. There a row's number is that of its transaction, in the column `written`. A number is
settled once every transaction up to it has ended.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from sqlite3 import OperationalError
from typing import TYPE_CHECKING, Any

from metaprobe.api import Database, RecordError, how_to_install, require
from metaprobe.production.monitoring.entry import CONTEXT_COLUMNS, ENTRY_COLUMNS

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.dialects import postgresql
else:
    sqlalchemy = require("sqlalchemy", "serve")
    postgresql = require("sqlalchemy.dialects.postgresql", "serve")

sa = sqlalchemy
"""Other modules of this room import SQLAlchemy from here, so that an error about a missing one names the extra to
install.
"""
insert = postgresql.insert
"""SQLite accepts the same form of `on_conflict_do_nothing` and `on_conflict_do_update`."""

VERSION = 2
"""Version of the tables. It is raised when an earlier version could not read what this one writes."""

META = sa.MetaData()


def _id() -> sa.Column[int]:
    return sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True)


def _columns(kind: Any, *names: str, optional: bool = False, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=optional, **options) for name in names]


def _keys(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, primary_key=True, autoincrement=False) for name in names]


marks = sa.Table("marks", META, *_keys(sa.Text, "name"), *_columns(sa.BigInteger, "value"))
"""Numbers that outlive their rows, and the version of the tables (`version`)."""

identity = sa.Table("identity", META, *_keys(sa.Text, "identity"))
"""One row with the log's identity, by which a file of a reader recognises the log."""

writers = sa.Table("writers", META, *_keys(sa.Text, "writer"), *_columns(sa.BigInteger, "stored"))
"""Number of entries that each process has stored. Compared with the accepted number, it shows how many a
kill has lost.
"""

contexts = sa.Table(
    "contexts",
    META,
    _id(),
    *_columns(sa.Text, *CONTEXT_COLUMNS),
    sa.UniqueConstraint(*(name for name in CONTEXT_COLUMNS if name != "task")),
    sqlite_autoincrement=True,  # a number that processes remember is never given again
)
"""Values that many answers share are stored once: a digest in every row would be half of the log."""

scores = sa.Table(
    "scores",
    META,
    _id(),
    *_columns(sa.Text, "request_id"),
    *_columns(sa.Double, "time"),
    *_columns(sa.BigInteger, "context"),
    *_columns(sa.Text, "key_name", server_default=""),
    *_columns(sa.Double, "score", "critical", "cost_usd", "latency_s", optional=True),
    *_columns(sa.SmallInteger, "flagged", optional=True),
    *_columns(sa.BigInteger, "prompt_tokens", "tokens", "tokens_saved", "written", optional=True),
    *_columns(sa.Text, "heads", "reason", "shadow_of", "callers_id", "question", "answer", optional=True),
    *_columns(sa.LargeBinary, "logprobs", optional=True),
    sqlite_autoincrement=True,  # a cursor that has read up to a number must not meet it again
)
"""`written` is the number of the transaction in PostgreSQL; see `metaprobe.production.monitoring.tables`."""

labels = sa.Table(
    "labels",
    META,
    _id(),
    *_columns(sa.Text, "request_id"),
    *_columns(sa.Double, "value", "waits", optional=True),
    *_columns(sa.Double, "time"),
    *_columns(sa.Text, "who", "source", "key_name", server_default=""),
    sqlite_autoincrement=True,
)
"""Every label of every answer. For one request the last label of the strongest source counts.

`waits` is when a label arrived whose answer was not in the log; see `metaprobe.production.monitoring.waiting_labels`.
"""

sa.Index("scores_by_request", scores.c.request_id, unique=True)
sa.Index("scores_by_time", scores.c.time)
sa.Index("scores_by_context", scores.c.context)
sa.Index("scores_by_number", scores.c.written).ddl_if(dialect="postgresql")
sa.Index("labels_by_request", labels.c.request_id)
for _name, _column, _where in (
    ("scores_flagged", scores.c.score, scores.c.flagged == 1),
    ("scores_by_callers_id", scores.c.callers_id, scores.c.callers_id.is_not(None)),
    ("labels_waiting", labels.c.waits, labels.c.waits.is_not(None)),
):
    sa.Index(_name, _column, sqlite_where=_where, postgresql_where=_where)

samples = sa.Table(
    "samples",
    META,
    *_keys(sa.Text, "request_id"),
    *_columns(sa.Double, "propensity", "time"),
    *_columns(sa.Text, "sheet"),
)

sheets = sa.Table(
    "sheets",
    META,
    *_keys(sa.Text, "sheet"),
    *_columns(sa.Double, "time", "since", "until", "base", "slope"),
    *_columns(sa.Text, "model", "checkpoint", "tags"),
    *_columns(sa.BigInteger, "stored_until"),
)
"""The rule by which a sheet was drawn, from which a later sheet computes earlier propensities.

`stored_until` is the number of the last answer that could be drawn; answers stored later could not.
"""

events = sa.Table(
    "events",
    META,
    _id(),
    *_columns(sa.Double, "time"),
    *_columns(sa.Text, "kind", "details"),
    sqlite_autoincrement=True,
)

agreements = sa.Table(
    "agreements",
    META,
    _id(),
    *_columns(sa.Text, "request_id"),
    *_columns(sa.SmallInteger, "same"),
    *_columns(sa.Double, "time"),
    *_columns(sa.BigInteger, "prompt_tokens", "tokens", optional=True),
    *_columns(sa.Double, "cost_usd", optional=True),
    sqlite_autoincrement=True,  # a reader that has read up to a number must not meet it again
)
"""Whether the model, asked the same question once more, said the same (1) or not (0), for each answer that was asked
for again (`serve --teach-rate`). It is no label: nothing that counts labels reads this table.

`time` is when the second answer ended, `tokens` and `cost_usd` are the second answer's. Rows are written one
transaction at a time (`Tables.transaction(alone=True)`), so that a higher id is never readable before a lower one.
"""

sa.Index("agreements_by_request", agreements.c.request_id, unique=True)

HOURLY_SUMS = (
    "answers scored score_sum doubt_sum flagged abstained stopped escalated cut tokens tokens_saved cost_usd "
    "priced spared"
).split()
"""Names of the sums by the hour. `priced`: answers whose cost is known. `spared`: answers with `tokens_saved`."""
BIN_SUMS = ("answers", "score_sum", "flagged")

hours = sa.Table(
    "hours",
    META,
    *_keys(sa.BigInteger, "hour"),
    *_keys(sa.Text, "model", "checkpoint", "task"),
    *_keys(sa.SmallInteger, "shadow"),
    *_columns(sa.Double, *HOURLY_SUMS),
)
"""Pages read this table and `bins`, for any number of answers."""

bins = sa.Table(
    "bins",
    META,
    *_keys(sa.BigInteger, "day"),
    *_keys(sa.Text, "model", "checkpoint", "task"),
    *_keys(sa.SmallInteger, "shadow", "bin"),
    *_columns(sa.Double, *BIN_SUMS),
)
"""Sums of scores by the day, in bins of one hundredth."""

SOURCE_RANK = sa.case((labels.c.source == "judge", 2), (labels.c.source == "program", 1), else_=0)
"""Rank of a label's source: 0 for a person, and for labels without a source."""

_LABEL = ("request_id", "value", "who", "time", "source")


def _first_of_each(*order: Any, where: Iterable[sa.ColumnElement[bool]] = ()) -> Any:
    """Returns a query for the first label of each request in this order, as the fields of `FeedbackLabel`,
    and its id.
    """
    label_rank = sa.func.row_number().over(partition_by=labels.c.request_id, order_by=order).label("label_rank")
    ranked = sa.select(*(labels.c[name] for name in _LABEL), labels.c.id, label_rank).where(*where).subquery()
    return sa.select(*(ranked.c[name] for name in _LABEL), ranked.c.id).where(ranked.c.label_rank == 1)


current_labels = _first_of_each(SOURCE_RANK, labels.c.id.desc()).subquery("current_labels")
"""The label of each request that counts: the last label of the strongest source. Labellers' clocks do not matter."""

first_labels = _first_of_each(labels.c.id, where=[labels.c.value.is_not(None)]).subquery("first_labels")
"""The first label of each request that means right or wrong; no correction changes it."""

answers = scores.join(contexts, contexts.c.id == scores.c.context)
"""Answers with their shared values."""

ENTRIES = sa.select(
    *(scores.c[name] for name in ENTRY_COLUMNS if name != "context"), *(contexts.c[name] for name in CONTEXT_COLUMNS)
).select_from(answers)
"""Selects the columns that `metaprobe.production.monitoring.entry.entry_of` reads."""


def is_one_of(column: sa.ColumnElement[Any], values: Iterable[Any]) -> sa.ColumnElement[bool]:
    """Returns a condition that a column has one of these numbers, which may exceed a statement's limit of
    parameters.
    """
    return column.in_(sa.bindparam(None, [int(value) for value in values], expanding=True, literal_execute=True))


logger = logging.getLogger(__name__)

Values = Mapping[str, Any]
SelectedRow = Any
"""Values in the order of the requested columns, which are attributes as well."""
Execute = Callable[..., Sequence[SelectedRow]]
"""`run(statement, values)` returns the rows found. With a list of values it runs once for each of them."""

LOG_APPLICATION_ID = 0x6D704C47
POSTGRESQL = "postgresql"
_LOCK = sa.select(sa.func.pg_advisory_xact_lock(LOG_APPLICATION_ID))
LIBPQ = {"connect_timeout": 10, "tcp_user_timeout": 30_000}
"""libpq's seconds to connect, and milliseconds in which sent data must be acknowledged, unless the URL sets them.

Without them it would wait forever for a silent server.
"""
TIDY_S = 2.0
"""Seconds for which a prune waits for readers of a SQLite file. If they take longer, only the journal stays long."""
ERASE_S = 60.0
"""Seconds that a deletion may take to rewrite a SQLite file of some gigabytes. Writers wait meanwhile."""
ROWS_PER_FETCH = 50_000
"""Rows fetched at a time."""

BASE_MARK, SETTLED_MARK = "written_base", "settled"
"""Names of PostgreSQL's marks: the number added to a transaction's number, and the highest number that a reader got."""
_NUMBERS_PER_SERVER = 1 << 48
"""Range of numbers of one server's transactions. A restored database is on another server, which counts
from the start.
"""


class LogError(RecordError):
    """The score log cannot be opened, read or written."""


class LogUnavailable(LogError):
    """The database of the score log fails, or another process locks it. Nothing was stored; a later attempt may
    succeed.
    """


class Tables:
    """The database operations that a score log needs."""

    alone: bool
    """Whether every transaction has the database to itself, so that data it has read cannot change before it ends."""
    number: sa.ColumnElement[Any]
    """Number of a row of the table of scores; see above."""

    _engine: sa.Engine

    def settled(self) -> int:
        """Returns the number up to which all rows are there: none at or below it can come later. Raises `LogError`."""
        raise NotImplementedError

    @contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[Execute]:
        """Runs all statements in the block, or none. Raises `LogError`. `alone` excludes other such transactions."""
        with self._converting_errors(), self._engine.begin() as connection:
            if alone and not self.alone:
                connection.execute(_LOCK)
            yield partial(_run, connection)

    def read(self, statement: str | sa.Executable, values: Values | None = None) -> Sequence[SelectedRow]:
        """Returns the rows that a statement finds. Raises `LogError`."""
        with self._reading() as connection:
            return _run(connection, statement, values or {})

    def read_chunks(
        self, statement: str | sa.Executable, values: Values | None = None
    ) -> Iterator[Sequence[SelectedRow]]:
        """Yields the rows that a statement finds, `ROWS_PER_FETCH` at a time. Raises `LogError`."""
        with self._reading() as connection:
            result = connection.execution_options(stream_results=True).execute(_executable(statement), values or {})
            yield from result.partitions(ROWS_PER_FETCH)

    def tidy(self) -> None:
        """Frees deleted data, as far as no reader uses it. PostgreSQL does this by itself."""

    def erase(self) -> None:
        """Removes every byte of deleted data from a SQLite file, or raises `LogError`.

        PostgreSQL keeps the bytes until it vacuums, and longer in its own log and in copies.
        """

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._converting_errors(), self._engine.connect() as connection:
            yield connection

    def _converting_errors(self) -> AbstractContextManager[None]:
        """Converts errors in the block to `LogUnavailable`, which names no password."""
        raise NotImplementedError


def _create_tables(connection: sa.Connection) -> None:
    """Creates the tables if there are none. Raises `LogError` if another version has created them."""
    run = partial(_run, connection)
    table_names = sa.inspect(connection).get_table_names()
    if scores.name not in table_names:
        META.create_all(connection)
        run(insert(marks), {"name": "version", "value": VERSION})
        run(insert(identity), {"identity": uuid.uuid4().hex})
        return
    try:
        version = read_mark(run, "version") if marks.name in table_names else None
    except ValueError:  # no number, so none of ours
        version = -1
    if version != VERSION:
        raise LogError(
            f"this score log has format {version or 'of an earlier version'}, and this metaprobe writes {VERSION}; "
            "expected a new file or an empty database"
        )
    if agreements.name not in table_names:  # an earlier version made the log; that version still reads the rest
        META.create_all(connection, tables=[agreements])


def open_tables(where: str | Path, *, wait_s: float = Database.busy_s) -> tuple[Tables, Tables]:
    """Opens one database twice, for readers and for the background writer; the tables are created if missing.

    `where` is the path of a SQLite file, or a URL for SQLAlchemy such as `postgresql+psycopg://user@host/name`.
    `wait_s` is how long a statement waits for another process that locks the file. Raises `LogError` if it cannot be
    opened.
    """
    name = str(where).removeprefix("sqlite:///")
    if "://" not in name:
        return SqliteTables(Path(name), wait_s), SqliteTables(Path(name), wait_s)
    tables = UrlTables(name)
    return tables, tables


def set_mark(run: Execute, name: str, value: int, *, add: bool = False) -> None:
    """Sets a mark, or adds to it.

    Args:
        run: runs a statement.
        name: name of the mark.
        value: the number.
        add: whether to add the number to the mark.
    """
    new_row = insert(marks)
    new = marks.c.value + new_row.excluded.value if add else new_row.excluded.value
    run(
        new_row.on_conflict_do_update(index_elements=["name"], set_={"value": new}), {"name": name, "value": int(value)}
    )


def read_mark(run: Execute, name: str) -> int | None:
    """Returns a mark; None if it was never set."""
    rows = run(sa.select(marks.c.value).where(marks.c.name == name))
    return int(rows[0][0]) if rows else None


class SqliteTables(Tables):
    """The tables in one file.

    If a file is moved or deleted while it is open, further entries would go into a file that nobody can find. So a new
    file is created in its place, or the file that was put there is opened.
    """

    alone, number = True, scores.c.id

    def __init__(self, path: Path, wait_s: float = Database.busy_s) -> None:
        self._path, self._wait_s = path, wait_s
        self._changing = threading.Lock()
        self._open()

    def _open(self) -> None:
        self._database = Database(
            self._path,
            what="score log",
            table=str(sa.schema.CreateTable(marks)),
            application=LOG_APPLICATION_ID,
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

        @sa.event.listens_for(self._engine, "begin")
        def begin_writing(connection: sa.Connection) -> None:
            """Begins a transaction that has the file to itself; readers need none."""
            if not connection.get_execution_options().get("reads"):
                connection.exec_driver_sql("BEGIN IMMEDIATE")

        with self._with_driver_errors(), self._engine.begin() as connection:
            _create_tables(connection)

    def _reopen_if_moved(self) -> None:
        """Reopens the file if another file, or none, is at its path."""
        with self._changing:
            if _file_at(self._path) != self._file:
                logger.error("%s was moved or deleted while it was open; what is there now is taken", self._path)
                self._database.close()
                self._open()

    def settled(self) -> int:
        rows = self.read("SELECT seq FROM sqlite_sequence WHERE name = 'scores'")  # also of rows that are gone
        return int(rows[0][0]) if rows else 0

    def read_chunks(
        self, statement: str | sa.Executable, values: Values | None = None
    ) -> Iterator[Sequence[SelectedRow]]:
        with self._reading() as connection:
            result = connection.execute(_executable(statement), values or {})
            # Plain tuples: SQLAlchemy's own rows take half as long again to make, which tells for millions of answers.
            while result.cursor is not None and (rows := result.cursor.fetchmany(ROWS_PER_FETCH)):
                yield rows

    def tidy(self) -> None:
        with self._database.named(), suppress(OperationalError):  # the data stays in the journal until overwritten
            self._database.empty_journal(TIDY_S)

    def erase(self) -> None:
        self._reopen_if_moved()
        with self._database.named():
            self._database.write_anew(ERASE_S)

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._converting_errors(), self._engine.connect() as connection:
            yield connection.execution_options(reads=True)

    def _converting_errors(self) -> AbstractContextManager[None]:
        self._reopen_if_moved()
        return self._with_driver_errors()

    @contextmanager
    def _with_driver_errors(self) -> Iterator[None]:
        with self._database.named():
            try:
                yield
            except sa.exc.DBAPIError as error:
                raise error.orig or error from error


class UrlTables(Tables):
    """The tables in a PostgreSQL database."""

    alone, number = False, scores.c.written

    def __init__(self, url: str) -> None:
        with self._converting_errors():
            try:
                parsed = sa.make_url(url)
            except ValueError as error:  # its port is no number
                raise sa.exc.ArgumentError("could not parse the URL") from error
            limits = {}
            if parsed.drivername.startswith("postgresql") and "psycopg" in parsed.drivername:
                limits = {name: value for name, value in LIBPQ.items() if name not in parsed.query}
            # A connection that the server closed meanwhile is found out before it is used.
            self._engine = sa.create_engine(
                url, pool_pre_ping=True, isolation_level="READ COMMITTED", connect_args=limits
            )
        if self._engine.dialect.name != POSTGRESQL:
            raise LogError(
                f"a score log in {self._engine.dialect.name}; expected the path of a SQLite file, or a URL such as "
                "postgresql+psycopg://user@host/name"
            )
        with self._converting_errors(), self._engine.begin() as connection:
            connection.execute(_LOCK)  # two that make the tables wait for each other
            _create_tables(connection)
            _number_by_transaction(partial(_run, connection))

    def settled(self) -> int:
        with self.transaction() as run:
            base = read_mark(run, BASE_MARK) or 0
            last = base + int(run(sa.select(sa.func.txid_snapshot_xmin(sa.func.txid_current_snapshot())))[0][0]) - 1
            run(sa.update(marks).where(marks.c.name == SETTLED_MARK, marks.c.value < last).values(value=last))
        return last

    @contextmanager
    def _converting_errors(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.SQLAlchemyError, ImportError, OSError, UnicodeError) as error:
            # The error's text is left out: it names host, port and user, and logs have many readers.
            raise LogUnavailable(
                f"the score log's database failed ({error_kind(error)}); check its URL (such as"
                " postgresql+psycopg://user@host/name), that the server runs, and that its driver is installed:"
                f" {how_to_install('postgres')}"
            ) from error


def _number_by_transaction(run: Execute) -> None:
    """Numbers rows by transaction.

    If the database was restored on a server that counts its transactions from a lower number, new rows get numbers
    above the earlier ones.
    """
    base, highest_told = read_mark(run, BASE_MARK), read_mark(run, SETTLED_MARK) or 0
    highest = max(highest_told, int(run(sa.select(sa.func.max(scores.c.written)))[0][0] or 0))
    restored = base is not None and highest >= base + int(
        run(sa.select(sa.func.txid_snapshot_xmax(sa.func.txid_current_snapshot())))[0][0]
    )
    if base is None or restored:
        base = (highest // _NUMBERS_PER_SERVER + 1) * _NUMBERS_PER_SERVER if restored else 0
        set_mark(run, BASE_MARK, base)
        set_mark(run, SETTLED_MARK, highest_told)
        run(f"ALTER TABLE scores ALTER COLUMN written SET DEFAULT {base} + txid_current()")


def _executable(statement: str | sa.Executable) -> sa.Executable:
    return sa.text(statement) if isinstance(statement, str) else statement


def _run(
    connection: sa.Connection, statement: str | sa.Executable, values: Values | Sequence[Values] = ()
) -> Sequence[SelectedRow]:
    if isinstance(statement, sa.UpdateBase) and isinstance(values, list) and not statement._returning:
        # By the driver itself: SQLAlchemy takes twice as long to bind the values. An insertion passes over names that
        # are no columns.
        names = None
        if isinstance(statement, sa.Insert):
            names = tuple(name for name in values[0] if name in statement.table.c)
        connection.exec_driver_sql(_compiled(statement, connection.dialect, names), values)
        return ()
    result = connection.execute(_executable(statement), values or None)
    return result.fetchall() if result.returns_rows else ()


@lru_cache(maxsize=32)
def _compiled(statement: sa.UpdateBase, dialect: sa.Dialect, columns: tuple[str, ...] | None) -> str:
    """Returns the statement's text, with named values, in the form that both drivers accept.

    Args:
        statement: the statement.
        dialect: dialect of the database.
        columns: names of the columns to set; None for all.
    """
    return str(statement.compile(dialect=dialect, column_keys=None if columns is None else list(columns)))


def _file_at(path: Path) -> tuple[int, int] | None:
    """Returns the identity of the file at that path; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Only the kind of a database's error may be shown. Its text names hosts, ports, users and sometimes passwords.

_SHOWN_PHRASES = (
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
"""Phrases, in lower case, that messages may repeat from an error's text.

They belong to errors before a session, which have no SQLSTATE. For any other error the class says what went wrong.
"""


def error_kind(error: BaseException) -> str:
    """Returns the error's class, its SQLSTATE if it has one, and known phrases of its text, without names."""
    problem = getattr(error, "orig", None) or error
    # Names stand in quotation marks, and are left out: 'role "log" does not exist'.
    text = " ".join("".join(str(problem).split('"')[::2]).lower().split())
    parts = [type(problem).__name__]
    if code := getattr(problem, "sqlstate", None) or getattr(problem, "pgcode", None):
        parts.append(f"SQLSTATE {code}")
    return ": ".join(
        [", ".join(parts), *filter(None, [" and ".join(phrase for phrase in _SHOWN_PHRASES if phrase in text)])]
    )
