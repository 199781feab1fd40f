"""Judged outcomes of agents kept in one file, for any number of writers: what `add` returned from outlives them.

One row an observation, only ever added to. Several threads and processes of one machine may write and read at once, and
any of them may be killed (SIGKILL). Profiles are not stored but folded from the rows, so no update can be lost between
two writers.
"""

import sqlite3
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from metaprobe.records.database import Database
from metaprobe.records.errors import RecordError
from metaprobe.routing.posteriors import DISCOUNT, PRIOR, Discount, Posteriors, Prior
from metaprobe.routing.profiles import Observation, Profiles, conflict, in_order

FORMAT = 1
"""Goes up when an older reader could no longer read what is written."""
APPLICATION_ID = 0x4D505046  # tells our file from any other SQLite file

_TABLE = """
CREATE TABLE IF NOT EXISTS observations (
    id TEXT PRIMARY KEY, agent TEXT NOT NULL, dimension TEXT NOT NULL, correct REAL NOT NULL, time REAL NOT NULL,
    crc32 INTEGER NOT NULL
) WITHOUT ROWID
"""
_SELECT = "SELECT agent, dimension, correct, id, time, crc32 FROM observations"


class ProfileStore:
    """Observations by id, in one SQLite file."""

    def __init__(self, path: str | Path) -> None:
        """Opens the file, or makes it. Raises `RecordError` where it is something else, or damaged."""
        self.path = Path(path)
        self._db = Database(
            path,
            what="profile store",
            table=_TABLE,
            application=APPLICATION_ID,
            version=FORMAT,
            lost="add the outcomes again",
        )

    def __repr__(self) -> str:
        return f"ProfileStore({str(self.path)!r})"

    def add(self, outcomes: Iterable[Observation]) -> int:
        """Keep them all, or none where it raises; how many were new.

        One that is already there as it is counts once. Raises `RecordError` where its id is there with other content.
        """
        rows = [(*_content(one), _crc32(one)) for one in outcomes]
        if not rows:
            return 0
        added = 0
        with self._db.named(), self._db.transaction():
            for row in rows:
                insert = "INSERT INTO observations VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
                new = self._db.execute(insert, row).rowcount
                added += new
                if not new:
                    before = _read(self._db.execute(f"{_SELECT} WHERE id = ?", row[:1]).fetchone())
                    if _content(before) != row[:-1]:
                        raise RecordError(f"profile store {self.path}: {conflict(before, _observation(*row[:-1]))}")
        return added

    def observations(self) -> list[Observation]:
        """All of them by time and then by id, as of one moment."""
        with self._db.named():
            rows = self._db.execute(_SELECT).fetchall()
            return in_order(_read(row) for row in rows)

    def posterior(self, now: float | None = None, *, prior: Prior = PRIOR, discount: Discount = DISCOUNT) -> Posteriors:
        """Discounted Beta posteriors from everything that was known at `now`, by default from all."""
        return Posteriors(self.observations(), prior=prior, discount=discount, now=now)

    def ema(self, *, initial: float = 0.5, rate: float = 0.1) -> Profiles:
        """The paper's moving averages from everything stored."""
        return Profiles(self.observations(), initial=initial, rate=rate)

    def __len__(self) -> int:
        return self._db.count("observations")

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(row: tuple[object, ...]) -> Observation:
    """The row's observation. SQLite does not notice a flipped bit inside a value; the sum does."""
    *values, crc32 = row
    try:
        observation = Observation(*values)  # type: ignore[arg-type]
    except (TypeError, RecordError):
        observation = None
    if observation is None or _crc32(observation) != crc32:
        raise sqlite3.DatabaseError(f"observation {values[3]!r} is not what was written")
    return observation


def _content(one: Observation) -> tuple[str, str, str, float, float]:
    # + 0.0: SQLite gives -0.0 back as 0.0
    return one.id, one.agent, one.dimension, float(one.correct) + 0.0, float(one.time) + 0.0


def _observation(identity: str, agent: str, dimension: str, correct: float, time: float) -> Observation:
    return Observation(agent, dimension, correct, identity, time)


def _crc32(one: Observation) -> int:
    return zlib.crc32(repr(_content(one)).encode())
