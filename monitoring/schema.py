"""The tables of a score log, the same in SQLite and in PostgreSQL, and the parts that several queries share."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from metaprobe.monitoring.entry import COLUMNS, CONTEXT
from metaprobe.records.extras import require

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.dialects import postgresql
else:
    sqlalchemy = require("sqlalchemy", "serve")
    postgresql = require("sqlalchemy.dialects.postgresql", "serve")

sa = sqlalchemy
"""Other modules of this room take SQLAlchemy from here, so that a missing one is told with the extra to install."""
insert = postgresql.insert
"""SQLite takes the same form of `on_conflict_do_nothing` and `on_conflict_do_update`."""

VERSION = 2
"""Goes up when an earlier version could not read what this one writes."""

META = sa.MetaData()


def _id() -> sa.Column[int]:
    return sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True)


def _columns(kind: Any, *names: str, optional: bool = False, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=optional, **options) for name in names]


def _keys(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, primary_key=True, autoincrement=False) for name in names]


marks = sa.Table("marks", META, *_keys(sa.Text, "name"), *_columns(sa.BigInteger, "value"))
"""Numbers that outlive the rows they are of, and the version of the tables (`version`)."""

identity = sa.Table("identity", META, *_keys(sa.Text, "identity"))
"""One row, by which a file that has read a log part of the way knows it again."""

writers = sa.Table("writers", META, *_keys(sa.Text, "writer"), *_columns(sa.BigInteger, "stored"))
"""How many entries each process has stored: against what it had accepted, this says what a kill has lost."""

contexts = sa.Table(
    "contexts",
    META,
    _id(),
    *_columns(sa.Text, *CONTEXT),
    sa.UniqueConstraint(*(name for name in CONTEXT if name != "task")),
    sqlite_autoincrement=True,  # a number that processes remember is never given again
)
"""Values that many answers share are written once: a digest in every row would be half of the log."""

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
"""`written`: in PostgreSQL the number of the transaction; see `metaprobe.monitoring.tables`."""

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
"""Everything that was ever said of an answer. Of one request the label of the strongest source that came last counts.
`waits`: when a label came whose answer was not in the log; see `metaprobe.monitoring.labels`."""

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
"""The rule by which a sheet was drawn, from which a later sheet knows how likely the same answers had been.
`stored_until`: number of the last answer that could be drawn; those that were stored later could not."""

events = sa.Table(
    "events",
    META,
    _id(),
    *_columns(sa.Double, "time"),
    *_columns(sa.Text, "kind", "details"),
    sqlite_autoincrement=True,
)

SUMS = (
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
    *_columns(sa.Double, *SUMS),
)
"""Pages read this table and `bins`, however many answers there are."""

bins = sa.Table(
    "bins",
    META,
    *_keys(sa.BigInteger, "day"),
    *_keys(sa.Text, "model", "checkpoint", "task"),
    *_keys(sa.SmallInteger, "shadow", "bin"),
    *_columns(sa.Double, *BIN_SUMS),
)
"""Scores by the day in bins of one hundredth."""

STRENGTH = sa.case((labels.c.source == "judge", 2), (labels.c.source == "program", 1), else_=0)
"""Rank of a label by who gave it: 0 for a person, and for labels that do not say."""

_LABEL = ("request_id", "value", "who", "time", "source")


def _first_of_each(*order: Any, where: Iterable[sa.ColumnElement[bool]] = ()) -> Any:
    """The first label of each request by that order, as `FeedbackLabel` takes it, and its id."""
    place = sa.func.row_number().over(partition_by=labels.c.request_id, order_by=order).label("place")
    ranked = sa.select(*(labels.c[name] for name in _LABEL), labels.c.id, place).where(*where).subquery()
    return sa.select(*(ranked.c[name] for name in _LABEL), ranked.c.id).where(ranked.c.place == 1)


current_labels = _first_of_each(STRENGTH, labels.c.id.desc()).subquery("current_labels")
"""The label of each request that counts: the last label of the strongest source. Labellers' clocks play no part."""

first_labels = _first_of_each(labels.c.id, where=[labels.c.value.is_not(None)]).subquery("first_labels")
"""The first label of each request that says right or wrong; no correction changes it."""

answers = scores.join(contexts, contexts.c.id == scores.c.context)
"""Answers with what they share with others."""

ENTRIES = sa.select(
    *(scores.c[name] for name in COLUMNS if name != "context"), *(contexts.c[name] for name in CONTEXT)
).select_from(answers)
"""Selects what `metaprobe.monitoring.entry.entry_of` reads."""


def is_one_of(column: sa.ColumnElement[Any], values: Iterable[Any]) -> sa.ColumnElement[bool]:
    """Whether a column has one of these numbers, of which there may be more than a statement may have parameters."""
    return column.in_(sa.bindparam(None, [int(value) for value in values], expanding=True, literal_execute=True))
