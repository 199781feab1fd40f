"""Contexts: what many answers share, such as their model and tags. Each goes with the last answer that has it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaprobe.monitoring.tables import Execute, Tables

CONTEXT = ("model", "checkpoint", "task", "finish_reason", "action", "tags")
"""What is written once for many entries."""
CHUNK = 500
"""Contexts taken away in one transaction, so that who writes meanwhile waits for little."""

_INDEXED = "contexts_indexed"
_INDEX = "CREATE INDEX IF NOT EXISTS scores_by_context ON scores (context)"
_MARK = "INSERT INTO marks (name, value) VALUES (:name, 1) ON CONFLICT (name) DO NOTHING"
_UNUSED = "NOT EXISTS (SELECT 1 FROM scores s WHERE s.context = contexts.id)"
_FIND = f"SELECT id FROM contexts WHERE {' AND '.join(f'{name} = :{name}' for name in CONTEXT if name != 'task')}"
_ADD = (
    f"INSERT INTO contexts ({', '.join(CONTEXT)}) VALUES ({', '.join(':' + name for name in CONTEXT)}) "
    "ON CONFLICT DO NOTHING"
)


def link_contexts(run: "Execute", rows: Sequence[dict[str, Any]], *, alone: bool) -> None:
    """Gives each row the number of its context, under `context`, and adds contexts that the log lacks.

    They stay until the transaction ends. `alone`: as `Tables.alone`; where others write, and take contexts away, at the
    same time, the contexts are locked.
    """
    keys = [tuple(row[name] for name in CONTEXT) for row in rows]
    given = {key: dict(zip(CONTEXT, key, strict=True)) for key in keys}
    numbers: dict[tuple[Any, ...], int] = {}
    while missing := [key for key in given if key not in numbers]:
        numbers |= {key: _found(run, given[key]) for key in missing}
        held = _held(run, set(numbers.values()), alone=alone)
        numbers = {key: number for key, number in numbers.items() if number in held}
    for row, key in zip(rows, keys, strict=True):
        row["context"] = numbers[key]


def drop_contexts(tables: "Tables") -> None:
    """Takes away the contexts, with their tags, that no answer has any more.

    The first time, the log gets an index by context: some seconds for millions of answers.
    """
    if not tables.read("SELECT 1 FROM marks WHERE name = :name", {"name": _INDEXED}):
        with tables.transaction(alone=True) as run:
            run(_INDEX)
            run(_MARK, {"name": _INDEXED})
    unused = [int(row[0]) for row in tables.read(f"SELECT id FROM contexts WHERE {_UNUSED} ORDER BY id")]
    for start in range(0, len(unused), CHUNK):
        asked, names = _among(unused[start : start + CHUNK])
        with tables.transaction() as run:
            if not tables.alone:  # one that a writer holds just now is in use; whoever comes later waits, and looks
                locked = run(f"SELECT id FROM contexts WHERE {asked} ORDER BY id FOR UPDATE SKIP LOCKED", names)
                asked, names = _among([int(row[0]) for row in locked])
            run(f"DELETE FROM contexts WHERE {asked} AND {_UNUSED}", names)


def _found(run: "Execute", given: Mapping[str, Any]) -> int:
    if not (found := run(_FIND, given)):
        run(_ADD, given)
        found = run(_FIND, given)
    return int(found[0][0])


def _held(run: "Execute", numbers: set[int], *, alone: bool) -> set[int]:
    if alone:
        return numbers
    asked, names = _among(sorted(numbers))
    return {int(row[0]) for row in run(f"SELECT id FROM contexts WHERE {asked} ORDER BY id FOR KEY SHARE", names)}


def _among(numbers: Sequence[int]) -> tuple[str, dict[str, int]]:
    names = {f"c{place}": number for place, number in enumerate(numbers)}
    return (f"id IN ({', '.join(':' + name for name in names)})" if names else "1 = 0"), names
