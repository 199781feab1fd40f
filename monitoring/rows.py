"""Answers as rows of the log: stored with what they share with others, and added to the sums that pages read.

Sums by the hour and counts by the day change in the transaction that changes the rows, and by the rows that it really
stored or deleted. What a page shows over ten million answers is read from them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from metaprobe.monitoring.entry import COLUMNS, CONTEXT
from metaprobe.monitoring.schema import BIN_SUMS, SUMS, bins, contexts, hours, insert, is_one_of, labels, sa, scores
from metaprobe.monitoring.tables import Execute, Tables

HOUR, DAY = 3600, 86400
BINS = 100
NO_SCORE = -1
"""The bin of answers without a score."""
CHUNK = 500
"""Rows taken away in one transaction, so that who writes meanwhile waits for little, and names in one statement."""

Item = TypeVar("Item")

_OWN = "time shadow_of score flagged tokens tokens_saved cost_usd".split()
_SHARED = "model checkpoint task action finish_reason".split()
"""Columns of an answer and of its context that `add_rows` reads."""
ROWS = sa.select(*(scores.c[name] for name in ("id", "request_id", "context", *_OWN)))

_INSERT = insert(scores).on_conflict_do_nothing(index_elements=["request_id"])
_RETURNING = _INSERT.returning(scores.c.request_id)


def _upsert(table: Any, sums: Iterable[str]) -> Any:
    given = insert(table)
    added = {name: table.c[name] + given.excluded[name] for name in sums}
    return given.on_conflict_do_update(index_elements=list(table.primary_key), set_=added)


_ADD_HOURS, _ADD_BINS = _upsert(hours, SUMS), _upsert(bins, BIN_SUMS)


def insert_rows(run: Execute, rows: Sequence[dict[str, Any]], *, alone: bool) -> list[dict[str, Any]]:
    """Stores rows of different requests, with their contexts, and returns those that were stored.

    A request that the log holds already is left out. `alone`: as `Tables.alone`. Where others write at the same time,
    the database itself says which rows are new.
    """
    _link_contexts(run, rows, alone=alone)
    if alone:
        known = known_requests(run, [row["request_id"] for row in rows])
        new = [row for row in rows if row["request_id"] not in known]
        if new:
            run(_INSERT, new)
        return new
    # In one order, so that two processes never wait for each other in a circle.
    ordered = [{name: row[name] for name in COLUMNS} for row in sorted(rows, key=lambda row: str(row["request_id"]))]
    inserted = run(_RETURNING, ordered) if ordered else ()
    stored = {row[0] for row in inserted}
    return [row for row in rows if row["request_id"] in stored]


def known_requests(run: Execute, request_ids: Iterable[str]) -> set[str]:
    """Returns which of these requests, `CHUNK` at most, are in the log."""
    there = run(sa.select(scores.c.request_id).where(scores.c.request_id.in_(set(request_ids))))
    return {str(row[0]) for row in there}


def batches(items: Iterable[Item], most: int = CHUNK) -> Iterator[list[Item]]:
    """Yields the items in lists of `most`, the last one perhaps shorter."""
    left = iter(items)
    while some := list(islice(left, most)):
        yield some


def add_rows(run: Execute, rows: Iterable[Mapping[str, Any]], *, sign: int = 1) -> None:
    """Adds rows, with the names of `_OWN` and `_SHARED`, to the sums; with `sign=-1` takes them out again."""
    by_hour: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0] * len(SUMS))
    by_bin: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0] * len(BIN_SUMS))
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
        counts = by_bin[int(row["time"] // DAY), *key, bin_of(score)]
        counts[0] += 1
        counts[1] += score or 0.0
        counts[2] += flagged
    # In one order, so that two processes that write at once never wait for each other in a circle.
    for statement, table, names, added in (
        (_ADD_HOURS, hours, SUMS, by_hour),
        (_ADD_BINS, bins, BIN_SUMS, by_bin),
    ):
        keys = [column.name for column in table.primary_key]
        given = [
            {**dict(zip(keys, at, strict=True)), **{n: sign * v for n, v in zip(names, values, strict=True)}}
            for at, values in sorted(added.items())
        ]
        if given:
            run(statement, given)


def subtract_rows(run: Execute, rows: Sequence[Sequence[Any]]) -> None:
    """Takes rows that `ROWS` found out of the sums, and sums over no answers away."""
    # Without a join: the texts that many rows share are read once.
    asked = sa.select(contexts.c.id, *(contexts.c[name] for name in _SHARED))
    those = is_one_of(contexts.c.id, {row[2] for row in rows})
    shared = {at: dict(zip(_SHARED, values, strict=True)) for at, *values in run(asked.where(those))}
    add_rows(run, ({**dict(zip(_OWN, row[3:], strict=True)), **shared[row[2]]} for row in rows), sign=-1)
    for table in (hours, bins):
        run(sa.delete(table).where(table.c.answers <= 0))


def bin_of(score: float | None) -> int:
    """Returns the hundredth in which a score lies, from 0; `NO_SCORE` where there is no score."""
    return NO_SCORE if score is None else min(BINS - 1, max(0, int(score * BINS)))


_ADOPT = (
    sa.update(labels)
    .where(labels.c.request_id == sa.bindparam("name"), labels.c.key_name == sa.bindparam("key"))
    .values(request_id=sa.bindparam("ours"))
)


def adopt_labels(run: Execute, rows: Sequence[Mapping[str, Any]]) -> None:
    """Gives answers the labels that came before them under the name that their own caller gave them."""
    named = [
        {"ours": row["request_id"], "name": row["callers_id"], "key": row["key_name"]}
        for row in rows
        if row["callers_id"]
    ]
    if named:
        run(_ADOPT, named)


def drop_contexts(tables: Tables) -> None:
    """Takes away the contexts, with their tags, that no answer has any more."""
    unused = ~sa.exists().where(scores.c.context == contexts.c.id)
    ids = [row[0] for row in tables.read(sa.select(contexts.c.id).where(unused).order_by(contexts.c.id))]
    for chosen in batches(ids):
        with tables.transaction() as run:
            if not tables.alone:  # one that a writer holds just now is in use; whoever comes later waits, and looks
                locked = sa.select(contexts.c.id).where(is_one_of(contexts.c.id, chosen)).order_by(contexts.c.id)
                chosen = [row[0] for row in run(locked.with_for_update(skip_locked=True))]
            run(sa.delete(contexts).where(is_one_of(contexts.c.id, chosen), unused))


def _link_contexts(run: Execute, rows: Sequence[dict[str, Any]], *, alone: bool) -> None:
    """Gives each row the number of its context, under `context`, and adds contexts that the log lacks.

    They stay until the transaction ends: where others write, and take contexts away, at the same time, they are locked.
    """
    keys = [tuple(row[name] for name in CONTEXT) for row in rows]
    given = {key: dict(zip(CONTEXT, key, strict=True)) for key in keys}
    numbers: dict[tuple[Any, ...], int] = {}
    while missing := [key for key in given if key not in numbers]:
        numbers |= {key: _number_of(run, given[key]) for key in missing}
        if not alone:
            held = sa.select(contexts.c.id).where(is_one_of(contexts.c.id, sorted(numbers.values())))
            locked = held.order_by(contexts.c.id).with_for_update(read=True, key_share=True)
            there = {row[0] for row in run(locked)}
            numbers = {key: number for key, number in numbers.items() if number in there}
    for row, key in zip(rows, keys, strict=True):
        row["context"] = numbers[key]


def _number_of(run: Execute, given: Mapping[str, Any]) -> int:
    asked = sa.select(contexts.c.id).where(*(contexts.c[name] == given[name] for name in CONTEXT if name != "task"))
    if not (numbers := run(asked)):
        run(insert(contexts).on_conflict_do_nothing(), given)
        numbers = run(asked)
    return int(numbers[0][0])
