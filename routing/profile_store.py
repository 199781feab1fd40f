"""Judged outcomes of agents kept in one file, from one collection to the next: `metaprobe collect --profiles FILE`.

One row an observation. Several threads and processes of one machine may write and read at once, and any of them may be
killed (SIGKILL). Profiles are not stored but folded from the rows, so no update can be lost between two writers.
"""

import hashlib
import math
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from metaprobe.records.database import Database
from metaprobe.records.errors import RecordError
from metaprobe.routing.profiles import Observation

FORMAT = 1
"""Goes up when an older reader could no longer read what is written."""
APPLICATION_ID = 0x4D505046  # distinguishes our file from any other SQLite file

_TABLE = """
CREATE TABLE IF NOT EXISTS observations (
    id TEXT PRIMARY KEY, agent TEXT NOT NULL, dimension TEXT NOT NULL, correct REAL NOT NULL, time REAL NOT NULL,
    crc32 INTEGER NOT NULL
) WITHOUT ROWID
"""
_SELECT = "SELECT agent, dimension, correct, id, time, crc32 FROM observations"


@dataclass(frozen=True, slots=True)
class Carried:
    """What a profile file held when a collection began: that is what its items see, also when it is resumed."""

    before: float
    """Outcomes of an earlier time were there; those of the collection have this time and later ones."""
    outcomes: int
    """How many there were."""
    digest: str
    """SHA-256 of them, its beginning."""

    @classmethod
    def of(cls, past: Sequence[Observation], before: float) -> "Carried":
        """Of these outcomes, in this order."""
        digest = hashlib.sha256(repr([_content(one) for one in past]).encode()).hexdigest()[:16]
        return cls(float(before), len(past), digest)


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
        """Keep them all, or none where it raises; how many of them the file did not hold as they are now.

        One that is already there counts once. Where its score or dimension is another now (a label was corrected), the
        new one takes the old one's place, at the time that it had.
        """
        rows = [_content(one) for one in outcomes]
        changed = 0
        if not rows:
            return changed
        with self._db.named(), self._db.transaction():
            for row in rows:
                known = self._db.execute(f"{_SELECT} WHERE id = ?", row[:1]).fetchone()
                now = row if known is None else (*row[:-1], _read(known).time)
                if known is None or _content(_read(known)) != now:
                    changed += 1
                    insert = "INSERT OR REPLACE INTO observations VALUES (?, ?, ?, ?, ?, ?)"
                    self._db.execute(insert, (*now, _crc32(_observation(*now))))
        return changed

    def observations(self, before: float = math.inf) -> list[Observation]:
        """Those of an earlier time than `before`, by time and then by id, as of one moment."""
        with self._db.named():
            known = [_read(row) for row in self._db.execute(_SELECT).fetchall()]
        return sorted((one for one in known if one.time < before), key=lambda one: (one.time, one.id))

    @property
    def next_time(self) -> float:
        """A time after all that is stored; 0 where nothing is."""
        return max((math.floor(one.time) + 1.0 for one in self.observations()), default=0.0)

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
