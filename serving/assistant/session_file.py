"""The file of the page: JSON texts in one SQLite table, addressed by kind, owner and number."""

import json
import time
from pathlib import Path
from typing import Any

from metaprobe.records.database import Database

APPLICATION = 0x6D705741  # "mpWA"
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

Body = dict[str, Any]


class SessionFile:
    """Every method is one transaction. Raises `Unwritable` where nothing can be written, as on a full disk."""

    def __init__(self, path: str | Path) -> None:
        self._database = Database(
            path,
            what="file of writing sessions",
            table=TABLE,
            application=APPLICATION,
            version=VERSION,
            lost="begin with an empty one",
        )

    @property
    def path(self) -> Path:
        """Where the file lies."""
        return self._database.path

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def put(self, kind: str, owner: str, number: int, body: Body) -> None:
        """Writes one entry, in place of an earlier one."""
        with self._database.named(keeping=True):
            self._database.execute(
                "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)",
                (kind, owner, number, time.time(), json.dumps(body, ensure_ascii=False)),
            )

    def add(self, kind: str, owner: str, body: Body) -> int:
        """Writes an entry under the owner's next number, from 0, and returns the number."""
        with self._database.named(keeping=True), self._database.transaction():
            number = self._next(kind, owner)
            self._database.execute(
                "INSERT INTO kept VALUES (?, ?, ?, ?, ?)",
                (kind, owner, number, time.time(), json.dumps(body, ensure_ascii=False)),
            )
        return number

    def get(self, kind: str, owner: str, number: int = 0) -> Body | None:
        """Returns one entry, or None where there is none."""
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
        return [(int(number), float(at), json.loads(body)) for number, at, body in rows]

    def first_entries(self, kind: str) -> list[tuple[str, float, Body]]:
        """Returns owner, time and body of the entry 0 of every owner, the latest first."""
        with self._database.named():
            rows = self._database.execute(
                "SELECT owner, at, body FROM kept WHERE kind = ? AND number = 0 ORDER BY at DESC", (kind,)
            ).fetchall()
        return [(str(owner), float(at), json.loads(body)) for owner, at, body in rows]

    def owners(self, kind: str) -> int:
        """Returns how many owners have an entry 0 of a kind."""
        with self._database.named():
            found = self._database.execute(
                "SELECT count(*) FROM kept WHERE kind = ? AND number = 0", (kind,)
            ).fetchone()
        return int(found[0])

    def delete(self, owner: str) -> int:
        """Deletes everything of an owner, and returns how many entries there were."""
        with self._database.named(keeping=True):
            return self._database.execute("DELETE FROM kept WHERE owner = ?", (owner,)).rowcount

    def limit_pages(self, pages: int) -> None:
        """Lets the file grow to so many pages of 4 kB and no further: beyond, it behaves as on a full disk."""
        with self._database.named():
            self._database.execute(f"PRAGMA max_page_count = {int(pages)}").fetchone()

    def _next(self, kind: str, owner: str) -> int:
        found = self._database.execute(
            "SELECT max(number) FROM kept WHERE kind = ? AND owner = ?", (kind, owner)
        ).fetchone()
        return 0 if found[0] is None else int(found[0]) + 1

    def __enter__(self) -> "SessionFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
