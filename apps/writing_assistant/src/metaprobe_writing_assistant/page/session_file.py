"""The file of the page: JSON texts in one SQLite table, addressed by kind, owner and number."""

import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metaprobe.records.database import Database
from metaprobe.records.errors import Unwritable

LOG = logging.getLogger(__name__)
SESSIONS_APPLICATION_ID = 0x6D705741  # "mpWA"
VERSION = 1
TABLE = """
CREATE TABLE kept (
    kind TEXT NOT NULL,
    owner TEXT NOT NULL,
    number INTEGER NOT NULL,
    at REAL NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (kind, owner, number)
) WITHOUT ROWID
"""

ERASE_S = 10.0
"""Seconds that a deletion may take to rewrite the file. The page waits meanwhile; a file of 100 MB takes a second."""
_ERASING = ("erasing", "", 0)
"""Kind, owner and number of an entry that exists until the bytes of a deletion are gone."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NewEntry:
    """One entry to write."""

    kind: str
    owner: str
    body: Body
    number: int | None = None
    """Number of the entry, which replaces one with that number. None is the owner's next number of that
    kind, from 0.
    """
    newest: int | None = None
    """Number of entries of that kind that the owner keeps, the newest ones; None for all."""


class SessionFile:
    """Every method is one transaction. Raises `Unwritable` if nothing can be written, as on a full disk."""

    def __init__(self, path: str | Path) -> None:
        self._database = Database(
            path,
            what="file of writing sessions",
            table=TABLE,
            application=SESSIONS_APPLICATION_ID,
            version=VERSION,
            lost="begin with an empty one",
        )
        if self.get(*_ERASING) is not None:  # a deletion that was stopped
            try:
                self._erase()
            except Unwritable as error:
                LOG.warning("%s", error)

    @property
    def path(self) -> Path:
        """The file's path."""
        return self._database.path

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def put(self, kind: str, owner: str, number: int, body: Body) -> None:
        """Writes one entry, in place of an earlier one.

        Args:
            kind: kind of the entry.
            owner: its owner.
            number: its number.
            body: its content.
        """
        self.write([NewEntry(kind, owner, body, number)])

    def write(self, entries: Iterable[NewEntry]) -> list[int]:
        """Writes all of the entries or none, and returns their numbers."""
        with self._database.named(keeping=True), self._database.transaction():
            return [self._write(entry) for entry in entries]

    def _write(self, entry: NewEntry) -> int:
        number = entry.number
        if number is None:
            (last,) = self._database.execute(
                "SELECT max(number) FROM kept WHERE kind = ? AND owner = ?", (entry.kind, entry.owner)
            ).fetchone()
            number = 0 if last is None else int(last) + 1
        self._database.execute(
            "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)",
            (entry.kind, entry.owner, number, time.time(), json.dumps(entry.body, ensure_ascii=False)),
        )
        if entry.newest is not None:
            self._database.execute(
                "DELETE FROM kept WHERE kind = ? AND owner = ? AND number <= ?",
                (entry.kind, entry.owner, number - entry.newest),
            )
        return number

    def get(self, kind: str, owner: str, number: int = 0) -> Body | None:
        """Returns one entry, or None if there is none.

        Args:
            kind: kind of the entry.
            owner: its owner.
            number: its number.
        """
        with self._database.named():
            row = self._database.execute(
                "SELECT body FROM kept WHERE kind = ? AND owner = ? AND number = ?", (kind, owner, number)
            ).fetchone()
        return None if row is None else json.loads(row[0])

    def last(self, kind: str, owner: str) -> tuple[int, float, Body] | None:
        """Returns number, time and body of the owner's last entry of a kind, or None."""
        with self._database.named():
            row = self._database.execute(
                "SELECT number, at, body FROM kept WHERE kind = ? AND owner = ? ORDER BY number DESC LIMIT 1",
                (kind, owner),
            ).fetchone()
        return None if row is None else (int(row[0]), float(row[1]), json.loads(row[2]))

    def entries(self, kind: str, owner: str) -> list[tuple[int, float, Body]]:
        """Returns number, time and body of all entries of an owner, by number."""
        with self._database.named():
            rows = self._database.execute(
                "SELECT number, at, body FROM kept WHERE kind = ? AND owner = ? ORDER BY number", (kind, owner)
            ).fetchall()
        return [(int(number), float(time_written), json.loads(body)) for number, time_written, body in rows]

    def first_entries(self, kind: str) -> list[tuple[str, float, Body]]:
        """Returns owner, time and body of the entry 0 of every owner, the latest first."""
        with self._database.named():
            rows = self._database.execute(
                "SELECT owner, at, body FROM kept WHERE kind = ? AND number = 0 ORDER BY at DESC", (kind,)
            ).fetchall()
        return [(str(owner), float(time_written), json.loads(body)) for owner, time_written, body in rows]

    def owners(self, kind: str) -> int:
        """Returns the number of owners with an entry 0 of a kind."""
        with self._database.named():
            row = self._database.execute("SELECT count(*) FROM kept WHERE kind = ? AND number = 0", (kind,)).fetchone()
        return int(row[0])

    def delete(self, *owners: str) -> int:
        """Deletes everything of these owners, and returns the number of entries.

        No byte of them is left in the file or in SQLite's files next to it. Raises `Unwritable` if the entries are
        deleted and their bytes are not gone yet; the next deletion or the next start of the program then removes them.
        """
        with self._database.named(keeping=True), self._database.transaction():
            kind, owner, number = _ERASING
            count = sum(self._database.execute("DELETE FROM kept WHERE owner = ?", (name,)).rowcount for name in owners)
            self._database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, 0, '{}')", (kind, owner, number))
        self._erase()
        return count

    def _erase(self) -> None:
        try:
            with self._database.named(keeping=True):
                self._database.write_anew(ERASE_S)
                self._database.execute("DELETE FROM kept WHERE kind = ? AND owner = ? AND number = ?", _ERASING)
        except Unwritable as error:
            raise Unwritable(
                "everything was deleted, but its bytes may be in the file until another text is deleted or the program "
                f"starts again: {error}"
            ) from error

    def limit_pages(self, pages: int) -> None:
        """Lets the file grow to this number of pages of 4 kB; beyond, it behaves as on a full disk."""
        with self._database.named():
            self._database.execute(f"PRAGMA max_page_count = {int(pages)}").fetchone()

    def __enter__(self) -> "SessionFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
