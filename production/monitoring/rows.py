"""Answers in the log's tables: stored as rows, added to the sums that pages read, and read back by columns.

Sums by the hour and counts by the day change in the transaction that changes the rows, and only for rows that it really
stored or deleted. Pages about ten million answers are computed from these sums. Columns are arrays with one entry for
each answer, read in SQL.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metaprobe.production.monitoring.entry import CONTEXT_COLUMNS, ENTRY_COLUMNS
from metaprobe.production.monitoring.tables import (
    BIN_SUMS,
    HOURLY_SUMS,
    Execute,
    SelectedRow,
    Tables,
    bins,
    contexts,
    current_labels,
    hours,
    insert,
    is_one_of,
    labels,
    sa,
    samples,
    scores,
)

HOUR, DAY = 3600, 86400
SCORE_BINS = 100
NO_SCORE = -1
"""Bin of answers without a score."""
ROWS_PER_TRANSACTION = 500
"""Most rows deleted in one transaction, so that other writers wait little; also most names in one statement."""

Element = TypeVar("Element")

_SCORE_COLUMNS = "time shadow_of score flagged tokens tokens_saved cost_usd".split()
_CONTEXT_COLUMNS = "model checkpoint task action finish_reason".split()
"""Columns of an answer and of its context that `add_rows` reads."""
SCORED_ROWS = sa.select(*(scores.c[name] for name in ("id", "request_id", "context", *_SCORE_COLUMNS)))

_INSERT = insert(scores).on_conflict_do_nothing(index_elements=["request_id"])
_RETURNING = _INSERT.returning(scores.c.request_id)


def _upsert(table: Any, sums: Iterable[str]) -> Any:
    new_row = insert(table)
    added = {name: table.c[name] + new_row.excluded[name] for name in sums}
    return new_row.on_conflict_do_update(index_elements=list(table.primary_key), set_=added)


_ADD_HOURS, _ADD_BINS = _upsert(hours, HOURLY_SUMS), _upsert(bins, BIN_SUMS)


def insert_rows(run: Execute, rows: Sequence[dict[str, Any]], *, alone: bool) -> list[dict[str, Any]]:
    """Stores rows of different requests, with their contexts, and returns those that were stored.

    A request that the log already holds is left out. If others write at the same time, the database itself reports
    which rows are new.

    Args:
        run: runs a statement.
        rows: the rows.
        alone: as `Tables.alone`.
    """
    _link_contexts(run, rows, alone=alone)
    if alone:
        known_ids = known_requests(run, [row["request_id"] for row in rows])
        new = [row for row in rows if row["request_id"] not in known_ids]
        if new:
            run(_INSERT, new)
        return new
    # Rows are sorted, so that two processes never wait for each other in a circle.
    ordered = [
        {name: row[name] for name in ENTRY_COLUMNS} for row in sorted(rows, key=lambda row: str(row["request_id"]))
    ]
    inserted = run(_RETURNING, ordered) if ordered else ()
    stored = {row[0] for row in inserted}
    return [row for row in rows if row["request_id"] in stored]


def known_requests(run: Execute, request_ids: Iterable[str]) -> set[str]:
    """Returns which of these requests (at most `ROWS_PER_TRANSACTION`) are in the log."""
    stored = run(sa.select(scores.c.request_id).where(scores.c.request_id.in_(set(request_ids))))
    return {str(row[0]) for row in stored}


def batches(items: Iterable[Element], size: int = ROWS_PER_TRANSACTION) -> Iterator[list[Element]]:
    """Yields the items in lists of `size`; the last may be shorter."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def add_rows(run: Execute, rows: Iterable[Mapping[str, Any]], *, sign: int = 1) -> None:
    """Adds rows, with the names of `_SCORE_COLUMNS` and `_CONTEXT_COLUMNS`, to the sums; with `sign=-1` subtracts them.

    Args:
        run: runs a statement.
        rows: the rows.
        sign: 1 or -1.
    """
    by_hour: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0] * len(HOURLY_SUMS))
    by_bin: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0] * len(BIN_SUMS))
    # Sum the rows by hour and by bin of scores.
    for row in rows:
        key = (row["model"], row["checkpoint"], row["task"], int(bool(row["shadow_of"])))
        flagged, gated = row["flagged"] or 0, bool(row["action"])
        score = None if gated else row["score"]  # the gate's own score is of another scale
        values = (
            1,
            score is not None,
            score or 0.0,
            0.0 if score is None else score * (1 - score),
            flagged,
            score is None and not gated,
            row["action"] == "stop",
            row["action"] == "escalate",
            row["finish_reason"] == "length",
            row["tokens"] or 0,
            row["tokens_saved"] or 0,
            row["cost_usd"] or 0.0,
            row["cost_usd"] is not None,
            row["tokens_saved"] is not None,
        )
        sums = by_hour[int(row["time"] // HOUR), *key]
        for i, value in enumerate(values):
            sums[i] += value
        bin_index = NO_SCORE if score is None else min(SCORE_BINS - 1, max(0, int(score * SCORE_BINS)))
        counts = by_bin[int(row["time"] // DAY), *key, bin_index]
        counts[0] += 1
        counts[1] += score or 0.0
        counts[2] += flagged
    # Sums are sorted, so that two processes that write at once never wait for each other in a circle.
    for statement, table, names, sums_by_key in (
        (_ADD_HOURS, hours, HOURLY_SUMS, by_hour),
        (_ADD_BINS, bins, BIN_SUMS, by_bin),
    ):
        keys = [column.name for column in table.primary_key]
        sum_rows = [
            {**dict(zip(keys, key_values, strict=True)), **{n: sign * v for n, v in zip(names, values, strict=True)}}
            for key_values, values in sorted(sums_by_key.items())
        ]
        if sum_rows:
            run(statement, sum_rows)


def subtract_rows(run: Execute, rows: Sequence[Sequence[Any]]) -> None:
    """Subtracts rows that `SCORED_ROWS` found from the sums, and deletes sums over no answers."""
    # Without a join: the texts that many rows share are read once.
    statement = sa.select(contexts.c.id, *(contexts.c[name] for name in _CONTEXT_COLUMNS))
    is_of_rows = is_one_of(contexts.c.id, {row[2] for row in rows})
    values_of_context = {
        context_id: dict(zip(_CONTEXT_COLUMNS, values, strict=True))
        for context_id, *values in run(statement.where(is_of_rows))
    }
    add_rows(
        run, ({**dict(zip(_SCORE_COLUMNS, row[3:], strict=True)), **values_of_context[row[2]]} for row in rows), sign=-1
    )
    for table in (hours, bins):
        run(sa.delete(table).where(table.c.answers <= 0))


def drop_contexts(tables: Tables) -> None:
    """Deletes the contexts, with their tags, that no answer has any more."""
    unused = ~sa.exists().where(scores.c.context == contexts.c.id)
    ids = [row[0] for row in tables.read(sa.select(contexts.c.id).where(unused).order_by(contexts.c.id))]
    for id_batch in batches(ids):
        with tables.transaction() as run:
            if not tables.alone:  # contexts that a writer has locked are in use; later writers wait, then look again
                locked = sa.select(contexts.c.id).where(is_one_of(contexts.c.id, id_batch)).order_by(contexts.c.id)
                id_batch = [row[0] for row in run(locked.with_for_update(skip_locked=True))]
            run(sa.delete(contexts).where(is_one_of(contexts.c.id, id_batch), unused))


def _link_contexts(run: Execute, rows: Sequence[dict[str, Any]], *, alone: bool) -> None:
    """Sets the number of each row's context under `context`, and adds contexts that the log lacks.

    They are locked until the transaction ends if others may write and delete contexts at the same time.

    Args:
        run: runs a statement.
        rows: the rows.
        alone: as `Tables.alone`.
    """
    keys = [tuple(row[name] for name in CONTEXT_COLUMNS) for row in rows]
    context_of = {key: dict(zip(CONTEXT_COLUMNS, key, strict=True)) for key in keys}
    numbers: dict[tuple[Any, ...], int] = {}
    while missing_keys := [key for key in context_of if key not in numbers]:
        for key in missing_keys:
            same = (contexts.c[name] == context_of[key][name] for name in CONTEXT_COLUMNS if name != "task")
            statement = sa.select(contexts.c.id).where(*same)
            if not (context_rows := run(statement)):
                run(insert(contexts).on_conflict_do_nothing(), context_of[key])
                context_rows = run(statement)
            numbers[key] = int(context_rows[0][0])
        if not alone:
            context_query = sa.select(contexts.c.id).where(is_one_of(contexts.c.id, sorted(numbers.values())))
            locked = context_query.order_by(contexts.c.id).with_for_update(read=True, key_share=True)
            locked_ids = {row[0] for row in run(locked)}
            numbers = {key: number for key, number in numbers.items() if number in locked_ids}
    for row, key in zip(rows, keys, strict=True):
        row["context"] = numbers[key]


Floats = NDArray[np.float64]
Texts = NDArray[np.object_]

NUMBER_COLUMNS = (
    "time score flagged critical label propensity tokens prompt_tokens tokens_saved cost_usd latency_s"
).split()
"""Columns of type float64, with NaN for no value; flagged and label are 0 or 1."""

_INTEGER_COLUMNS = ("row", "number", "context")
"""Columns of type int64."""
_COLUMNS_OF_OTHER_TABLES = {"label": current_labels.c.value, "propensity": samples.c.propensity}
_SELECTED = [
    _COLUMNS_OF_OTHER_TABLES[name].label(name) if name in _COLUMNS_OF_OTHER_TABLES else scores.c[name]
    for name in NUMBER_COLUMNS
]
_FROM = scores.outerjoin(current_labels, current_labels.c.request_id == scores.c.request_id).outerjoin(
    samples, samples.c.request_id == scores.c.request_id
)


@dataclass(frozen=True)
class LogColumns:
    """Answers of a log in the order of time; every array has one entry for each answer."""

    time: Floats
    """Seconds since 1970."""
    score: Floats
    flagged: Floats
    critical: Floats
    label: Floats
    """0 or 1; NaN without a label, or with the label unsure."""
    propensity: Floats
    """Probability with which the answer was drawn for a label; NaN if it was not drawn."""
    tokens: Floats
    prompt_tokens: Floats
    tokens_saved: Floats
    cost_usd: Floats
    latency_s: Floats
    request_id: Texts
    """Request ids; empty if `columns` was called without `ids`."""
    row: NDArray[np.int64]
    """Ids of the rows in the table of scores."""
    number: NDArray[np.int64]
    """Numbers in the order of commits; see `metaprobe.production.monitoring.tables`."""
    context: NDArray[np.int64]
    """Numbers of the contexts, which answers share."""
    _contexts: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.time)

    @cached_property
    def model(self) -> Texts:
        """Names of the models that answered."""
        return self._context_column("model")

    @cached_property
    def checkpoint(self) -> Texts:
        """Digests of the checkpoints that gave the scores."""
        return self._context_column("checkpoint")

    @cached_property
    def task(self) -> Texts:
        """The tag `task`; empty if it was not given."""
        return self._context_column("task")

    @cached_property
    def finish_reason(self) -> Texts:
        return self._context_column("finish_reason")

    @cached_property
    def action(self) -> Texts:
        """Action of the gate: empty, `stop` or `escalate`."""
        return self._context_column("action")

    def rows(self, chosen: NDArray[np.bool_]) -> "LogColumns":
        """Returns the answers at which the mask (n,) is true."""
        ids = self.request_id[chosen] if len(self.request_id) == len(self) else self.request_id
        arrays = {name: getattr(self, name)[chosen] for name in (*NUMBER_COLUMNS, *_INTEGER_COLUMNS)}
        return LogColumns(**arrays, request_id=ids, _contexts=self._contexts)

    def tag(self, name: str) -> Texts:
        """Returns each answer's tag with that name; empty if it was not given."""
        column_index = CONTEXT_COLUMNS.index("tags")
        return self._names_of_answers(
            {number: str(json.loads(context[column_index]).get(name, "")) for number, context in self._contexts.items()}
        )

    def _context_column(self, name: str) -> Texts:
        column_index = CONTEXT_COLUMNS.index(name)
        return self._names_of_answers({number: context[column_index] for number, context in self._contexts.items()})

    def _names_of_answers(self, name_by_context: Mapping[int, str]) -> Texts:
        """Returns each answer's name from its context's number. Answers of one context share one string."""
        numbers, where = np.unique(self.context, return_inverse=True)
        names = np.empty(len(numbers), dtype=object)
        names[:] = [name_by_context[int(number)] for number in numbers]
        return names[where]


def read_columns(
    tables: Tables, context_rows: Mapping[int, SelectedRow], where: Sequence[sa.ColumnElement[bool]], *, ids: bool
) -> LogColumns:
    """Returns the answers that meet all conditions `where`, in the order of time.

    Args:
        tables: the database.
        context_rows: context of each answer (`chosen_contexts`), except of answers stored since.
        where: conditions.
        ids: whether request ids are read.
    """
    columns = [*_SELECTED, scores.c.id, tables.number, scores.c.context, *([scores.c.request_id] if ids else [])]
    statement = sa.select(*columns).select_from(_FROM).where(*where).order_by(scores.c.time, scores.c.id)
    number_parts, integer_parts = (
        [np.empty((len(NUMBER_COLUMNS), 0))],
        [np.empty((len(_INTEGER_COLUMNS), 0), dtype=np.int64)],
    )
    id_arrays, end = [np.empty(0, dtype=object)], len(NUMBER_COLUMNS) + len(_INTEGER_COLUMNS)
    for rows in tables.read_chunks(statement):
        columns_of_rows = list(zip(*rows, strict=True))
        number_parts.append(np.array(columns_of_rows[: len(NUMBER_COLUMNS)], dtype=np.float64))  # None becomes NaN
        integer_parts.append(np.array(columns_of_rows[len(NUMBER_COLUMNS) : end], dtype=np.int64))
        id_arrays += [np.array(columns_of_rows[end], dtype=object)] if ids else []
    arrays = [*np.concatenate(number_parts, axis=1), *np.concatenate(integer_parts, axis=1)]
    if not context_rows.keys() >= set(arrays[-1].tolist()):
        context_rows = {**chosen_contexts(tables, model=None, checkpoint=None, tags=None), **context_rows}
    columns_read = dict(zip((*NUMBER_COLUMNS, *_INTEGER_COLUMNS), arrays, strict=True))
    return LogColumns(**columns_read, request_id=np.concatenate(id_arrays), _contexts=context_rows)


def chosen_contexts(
    tables: Tables, *, model: str | None, checkpoint: str | None, tags: Mapping[str, str] | None
) -> dict[int, SelectedRow]:
    """Returns the number of each context that fits, with its values in the order of `CONTEXT`.

    Args:
        tables: the database.
        model: model that answered; None for any.
        checkpoint: digest of the checkpoint; None for any.
        tags: tags that the context must have.
    """
    statement = sa.select(contexts.c.id, *(contexts.c[name] for name in CONTEXT_COLUMNS))
    if model is not None:
        statement = statement.where(contexts.c.model == model)
    if checkpoint is not None:
        statement = statement.where(contexts.c.checkpoint == checkpoint)
    column_index = CONTEXT_COLUMNS.index("tags")
    return {
        int(number): values
        for number, *values in tables.read(statement)
        if not tags or tags.items() <= json.loads(values[column_index]).items()
    }


def contexts_of_sheet(tables: Tables, sheet: SelectedRow) -> dict[int, SelectedRow]:
    """Returns the contexts of answers that could be on a sheet, as `chosen_contexts`."""
    names = {"model": sheet.model or None, "checkpoint": sheet.checkpoint or None}
    return chosen_contexts(tables, **names, tags=json.loads(sheet.tags))


def conditions(
    since: float | None,
    until: float | None,
    *,
    shadow: bool = False,
    labelled: bool = False,
    gated: bool = False,
    by_time: bool = True,
) -> list[sa.ColumnElement[bool]]:
    """Returns conditions on rows of the table of scores.

    Args:
        since: earliest time, in seconds since 1970.
        until: latest time, exclusive.
        shadow: whether to select shadow verdicts.
        labelled: whether to select only answers that have a label or were drawn for one.
        gated: whether to include answers that the gate ended.
        by_time: whether the rows may be searched by time, instead of in another order that ends sooner.
    """
    where: list[sa.ColumnElement[bool]] = [scores.c.shadow_of.is_not(None) if shadow else scores.c.shadow_of.is_(None)]
    if not gated:
        where.append(scores.c.context.not_in(sa.select(contexts.c.id).where(contexts.c.action != "")))
    time = scores.c.time if by_time else scores.c.time + 0.0  # an index is not used for a sum
    if since is not None:
        where.append(time >= float(since))
    if until is not None:
        where.append(time < float(until))
    if labelled:
        where.append(scores.c.request_id.in_(sa.select(labels.c.request_id).union(sa.select(samples.c.request_id))))
    return where
