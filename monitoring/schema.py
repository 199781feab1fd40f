"""The tables of a score log, the same in SQLite and in PostgreSQL, and the parts that several queries share."""

from collections.abc import Iterable
from typing import Any

from metaprobe.monitoring.entry import COLUMNS, CONTEXT
from metaprobe.records.extras import require

require("sqlalchemy", "monitor")

# Further modules of this room take these from here, so that a missing SQLAlchemy is told with the extra to install.
from sqlalchemy import (  # noqa: E402
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    case,
)
from sqlalchemy import ColumnElement as ColumnElement  # noqa: E402
from sqlalchemy import Executable as Executable  # noqa: E402
from sqlalchemy import bindparam as bindparam  # noqa: E402
from sqlalchemy import delete as delete  # noqa: E402
from sqlalchemy import exists as exists  # noqa: E402
from sqlalchemy import func as func  # noqa: E402
from sqlalchemy import literal_column as literal_column  # noqa: E402
from sqlalchemy import or_ as or_  # noqa: E402
from sqlalchemy import select as select  # noqa: E402
from sqlalchemy import text as text  # noqa: E402
from sqlalchemy import update as update  # noqa: E402

# Both dialects take the same form of `on_conflict_do_nothing` and `on_conflict_do_update`.
from sqlalchemy.dialects.postgresql import insert as insert  # noqa: E402

VERSION = 2
"""Goes up when an earlier version could not read what this one writes."""

META = MetaData()


def _id() -> Column[int]:
    return Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


def _columns(kind: Any, *names: str, optional: bool = False, **options: Any) -> list[Column[Any]]:
    return [Column(name, kind, nullable=optional, **options) for name in names]


def _keys(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, primary_key=True, autoincrement=False) for name in names]


marks = Table("marks", META, *_keys(Text, "name"), *_columns(BigInteger, "value"))
"""Numbers that outlive the rows they are of, and the version of the tables (`version`)."""

identity = Table("identity", META, *_keys(Text, "identity"))
"""One row, by which a file that has read a log part of the way knows it again."""

writers = Table("writers", META, *_keys(Text, "writer"), *_columns(BigInteger, "stored"))
"""How many entries each process has stored: against what it had accepted, this says what a kill has lost."""

contexts = Table(
    "contexts",
    META,
    _id(),
    *_columns(Text, *CONTEXT),
    UniqueConstraint(*(name for name in CONTEXT if name != "task")),
    sqlite_autoincrement=True,  # a number that processes remember is never given again
)
"""What many answers share is written once: a digest in every row would be half of the log."""

scores = Table(
    "scores",
    META,
    _id(),
    *_columns(Text, "request_id"),
    *_columns(Double, "time"),
    *_columns(BigInteger, "context"),
    *_columns(Text, "key_name", server_default=""),
    *_columns(Double, "score", "critical", "cost_usd", "latency_s", optional=True),
    *_columns(SmallInteger, "flagged", optional=True),
    *_columns(BigInteger, "prompt_tokens", "tokens", "tokens_saved", "written", optional=True),
    *_columns(Text, "heads", "reason", "shadow_of", "callers_id", "question", "answer", optional=True),
    *_columns(LargeBinary, "logprobs", optional=True),
    sqlite_autoincrement=True,  # a cursor that has read up to a number must not meet it again
)
"""`written`: in PostgreSQL the number of the transaction; see `metaprobe.monitoring.tables`."""

labels = Table(
    "labels",
    META,
    _id(),
    *_columns(Text, "request_id"),
    *_columns(Double, "value", "waits", optional=True),
    *_columns(Double, "time"),
    *_columns(Text, "who", "source", "key_name", server_default=""),
    sqlite_autoincrement=True,
)
"""Everything that was ever said of an answer. Of one request the label of the strongest source that came last counts.
`waits`: when a label came whose answer was not in the log; see `metaprobe.monitoring.labels`."""

Index("scores_by_request", scores.c.request_id, unique=True)
Index("scores_by_time", scores.c.time)
Index("scores_by_context", scores.c.context)
Index("scores_by_number", scores.c.written).ddl_if(dialect="postgresql")
Index("labels_by_request", labels.c.request_id)
for _name, _column, _where in (
    ("scores_flagged", scores.c.score, scores.c.flagged == 1),
    ("scores_by_callers_id", scores.c.callers_id, scores.c.callers_id.is_not(None)),
    ("labels_waiting", labels.c.waits, labels.c.waits.is_not(None)),
):
    Index(_name, _column, sqlite_where=_where, postgresql_where=_where)

samples = Table(
    "samples", META, *_keys(Text, "request_id"), *_columns(Double, "propensity", "time"), *_columns(Text, "sheet")
)

sheets = Table(
    "sheets",
    META,
    *_keys(Text, "sheet"),
    *_columns(Double, "time", "since", "until", "base", "slope"),
    *_columns(Text, "model", "checkpoint", "tags"),
    *_columns(BigInteger, "stored_until"),
)
"""By which rule a sheet was drawn, so that a later one over the same answers knows how likely they had been before.
`stored_until`: number of the last answer that could be drawn; those that were stored later could not."""

events = Table(
    "events", META, _id(), *_columns(Double, "time"), *_columns(Text, "kind", "details"), sqlite_autoincrement=True
)

SUMS = (
    "answers scored score_sum doubt_sum flagged abstained stopped escalated cut tokens tokens_saved cost_usd "
    "priced spared"
).split()
"""What is added up by the hour; `priced` are answers whose cost is known, `spared` those with `tokens_saved`."""
BIN_SUMS = ("answers", "score_sum", "flagged")

hours = Table(
    "hours",
    META,
    *_keys(BigInteger, "hour"),
    *_keys(Text, "model", "checkpoint", "task"),
    *_keys(SmallInteger, "shadow"),
    *_columns(Double, *SUMS),
)
"""What a page shows is read from here and from `bins`, however many answers there are."""

bins = Table(
    "bins",
    META,
    *_keys(BigInteger, "day"),
    *_keys(Text, "model", "checkpoint", "task"),
    *_keys(SmallInteger, "shadow", "bin"),
    *_columns(Double, *BIN_SUMS),
)
"""Scores by the day in bins of one hundredth."""

STRENGTH = case((labels.c.source == "judge", 2), (labels.c.source == "program", 1), else_=0)
"""Rank of a label by who gave it: 0 for a person, and for labels that do not say."""

_LABEL = ("request_id", "value", "who", "time", "source")


def _first_of_each(*order: Any, where: Iterable[ColumnElement[bool]] = ()) -> Any:
    """The first label of each request by that order, as `FeedbackLabel` takes it, and its id."""
    place = func.row_number().over(partition_by=labels.c.request_id, order_by=order).label("place")
    ranked = select(*(labels.c[name] for name in _LABEL), labels.c.id, place).where(*where).subquery()
    return select(*(ranked.c[name] for name in _LABEL), ranked.c.id).where(ranked.c.place == 1)


current_labels = _first_of_each(STRENGTH, labels.c.id.desc()).subquery("current_labels")
"""Of each request the label that counts: of the strongest source the one that came last. The clocks of those who label
play no part."""

first_labels = _first_of_each(labels.c.id, where=[labels.c.value.is_not(None)]).subquery("first_labels")
"""Of each request the first label that came and says right or wrong; no correction changes it."""

answers = scores.join(contexts, contexts.c.id == scores.c.context)
"""Answers with what they share with others."""

ENTRIES = select(
    *(scores.c[name] for name in COLUMNS if name != "context"), *(contexts.c[name] for name in CONTEXT)
).select_from(answers)
"""What `metaprobe.monitoring.entry.entry_of` reads."""


def is_one_of(column: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
    """Whether a column has one of these numbers, of which there may be more than a statement may have parameters."""
    return column.in_(bindparam(None, [int(value) for value in values], expanding=True, literal_execute=True))
