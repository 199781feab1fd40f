"""The numbers of a log's answers, by which a reader knows what it has read. No number is given twice, and none is late.

In a SQLite file one process writes at a time, so that the row's own `id` is in the order of commits. SQLite would give
the highest numbers again after their rows were deleted; two triggers in the file keep every program from
that. The numbers of contexts, which processes remember, are kept from that in the same way.

In PostgreSQL a row may be committed after rows with higher ids. There a row's number is that of its transaction, in
the column `written`. A number is settled once every transaction up to it has ended.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaprobe.monitoring.tables import Execute

DELETED, BASE, TOLD = "deleted", "written_base", "settled"
"""Marks: the highest number that was deleted; what is added to a transaction's number; the highest number told."""

_LAST = "SELECT max(coalesce((SELECT max(id) FROM {table}), 0), (SELECT value FROM marks WHERE name = '{mark}'))"
LAST_OF_FILE = _LAST.format(table="scores", mark=DELETED)
"""The number that was given last, whether or not its row is still there."""
_NUMBERED = (("scores", DELETED), ("contexts", "contexts_deleted"))
"""Tables of a SQLite file that give no number twice, and their marks."""

_FIRST_MARKS = "INSERT INTO marks (name, value) VALUES (:name, 0) ON CONFLICT (name) DO NOTHING"
_REMEMBER = """
CREATE TRIGGER IF NOT EXISTS {table}_deleted AFTER DELETE ON {table} BEGIN
    UPDATE marks SET value = OLD.id WHERE name = '{mark}' AND value < OLD.id;
END
"""
_MOVE_ON = f"""
CREATE TRIGGER IF NOT EXISTS {{table}}_numbered AFTER INSERT ON {{table}}
WHEN NEW.id <= (SELECT value FROM marks WHERE name = '{{mark}}') BEGIN
    UPDATE {{table}} SET id = 1 + ({_LAST}) WHERE id = NEW.id;
END
"""

_EPOCH = 1 << 48
"""Numbers of one server's transactions. A restored database is on another server, which counts from the beginning."""

OF_COMMIT = "s.written"
_INDEX = "CREATE INDEX IF NOT EXISTS scores_by_number ON scores (written)"
_HIGHEST = f"SELECT GREATEST((SELECT MAX(written) FROM scores), (SELECT value FROM marks WHERE name = '{TOLD}'))"
_BEGUN = "SELECT value FROM marks WHERE name = :name"
_SET = "INSERT INTO marks (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_TOLD = f"UPDATE marks SET value = :value WHERE name = '{TOLD}' AND value < :value"


def never_again(run: "Execute") -> None:
    """Sees to it that a SQLite file gives no number twice. Changes no row."""
    for table, mark in _NUMBERED:
        run(_FIRST_MARKS, {"name": mark})
        run(_REMEMBER.format(table=table, mark=mark))
        run(_MOVE_ON.format(table=table, mark=mark))


def by_commit(run: "Execute", *, begun: bool) -> None:
    """Numbers the rows of a PostgreSQL database by transaction. `begun`: whether the column is there already.

    Where the database was restored on a server that counts its transactions from a lower number, new rows get numbers
    above those that were given before.
    """
    for name in (BASE, TOLD):
        run(_FIRST_MARKS, {"name": name})
    base = int(run(_BEGUN, {"name": BASE})[0][0])
    highest = int(run(_HIGHEST)[0][0] or 0) if begun else 0
    next_ = int(run("SELECT txid_snapshot_xmax(txid_current_snapshot())")[0][0])
    restored = highest >= base + next_
    if restored:
        base = (highest // _EPOCH + 1) * _EPOCH
        run(_SET, {"name": BASE, "value": base})
    if not begun:
        run("ALTER TABLE scores ADD COLUMN written BIGINT")
    if restored or not begun:
        run(f"ALTER TABLE scores ALTER COLUMN written SET DEFAULT {base} + txid_current()")
    run(_INDEX)


def settled_by_commit(run: "Execute") -> int:
    """Returns the number below which every transaction of the server has ended; see `Tables.settled`."""
    base = int(run(_BEGUN, {"name": BASE})[0][0])
    last = base + int(run("SELECT txid_snapshot_xmin(txid_current_snapshot())")[0][0]) - 1
    run(_TOLD, {"value": last})
    return last
