"""Keeps each agent's past: its success rate on each dimension, as the paper's moving average.

`metaprobe collect --profiles FILE` keeps judged outcomes in one file, one row an observation. Several threads and
processes of one machine may write and read at once, and any of them may be killed (SIGKILL). Profiles are not stored
but folded from the rows, so no update can be lost between two writers.
"""

import hashlib
import math
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from metaprobe.records.database import Database
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Run
from metaprobe.routing.policy import COLLABORATE, EXECUTE

DIMENSION, DISPATCHED, PROFILE = "dimension:", "dispatched:", "profile:"
"""How a run names, with or without its texts, the dimension that a classifier gave the item (kind of a statement; its
value is None where that was unreadable), the agent that got it first, and each agent's profile (names of labels)."""
UNKNOWN = "unknown"
"""Dimension of items whose classification was unreadable; it has profiles of its own."""


@dataclass(frozen=True, slots=True)
class Experience:
    """One answer that was judged."""

    agent: str
    dimension: str
    correct: float
    """In [0, 1]; between them for a graded score."""


@dataclass(frozen=True, slots=True)
class Observation(Experience):
    """An experience that knows which one it is and when it was: what a file of them needs, so that none counts twice.

    Raises `RecordError` where the score is not in [0, 1], the time is not finite, or the id or the agent is empty.
    """

    id: str
    """Counts once, however often it is given."""
    time: float
    """Which came first: the item's place among all that were learned from."""

    def __post_init__(self) -> None:
        if not (self.id and self.agent):
            raise RecordError(f"observation {self.id!r} of agent {self.agent!r}: both must have a name")
        if not 0 <= self.correct <= 1:
            raise RecordError(f"observation {self.id}: correct is {self.correct}; expected a number from 0 to 1")
        if not math.isfinite(self.time):
            raise RecordError(f"observation {self.id}: time is {self.time}; expected a finite number")


class Profiles:
    """Success rates by agent and dimension: p <- p + rate (correct - p). MetaCogAgent, equation 4.

    A fold over outcomes in the order they are given: whoever feeds it, feeds it in the items' order, not in the order
    in which concurrent runs happened to end.
    """

    def __init__(self, past: Iterable[Experience] = (), *, initial: float = 0.5, rate: float = 0.1) -> None:
        self.initial = initial
        self.rate = rate
        self._rates: dict[tuple[str, str], float] = {}
        for experience in past:
            self.learn(experience)

    def rate_of(self, agent: str, dimension: str) -> float:
        """In [0, 1]; the initial value where nothing was seen yet."""
        return self._rates.get((agent, dimension), self.initial)

    def learn(self, experience: Experience) -> None:
        """Take one outcome in."""
        key = (experience.agent, experience.dimension)
        before = self._rates.get(key, self.initial)
        self._rates[key] = before + self.rate * (experience.correct - before)


def experiences(run: Run) -> Iterator[Experience]:
    """Yields what the agents learn from a labelled run: each from its own answer, if the system made it answer.

    After a vote that is every agent, where MetaCogAgent (section III-D) speaks of "the executing agent" only. An agent
    that answered for the record (variant `every-agent`), or whose draft was only read for its confidence, learns
    nothing. Neither does anybody from a run that has no dimension, as those of the baselines.
    """
    dimension = read_classification(run)
    if dimension is None:
        return
    for agent in executing(run):
        correct = read_correctness(run, agent)
        if correct is not None:
            yield Experience(agent, dimension, correct)


def run_observations(
    run: Run, learned: Callable[[Run], Iterable[Experience]] = experiences, *, time: float
) -> Iterator[Observation]:
    """Yields one observation per agent of a run, at the moment `time`; `learned` picks what is learned."""
    for one in learned(run):
        yield Observation(one.agent, one.dimension, one.correct, id=f"{run.id}/{one.agent}", time=time)


def every_answer(run: Run) -> Iterator[Experience]:
    """One for each agent whose answer was judged, also where it answered only for the record.

    Take one variant of an item: another one repeats answers of the same agents under another run id.
    """
    for agent in dict.fromkeys(call.agent for call in run.calls if call.stage == "answer"):
        correct = read_correctness(run, agent)
        if correct is not None:
            yield Experience(agent, read_classification(run) or UNKNOWN, correct)


def read_classification(run: Run) -> str | None:
    """The dimension that the classifier gave, `unknown` where it was unreadable; None where nobody classified."""
    return _named(DIMENSION, (statement.kind for statement in run.statements))


def first_agent(run: Run) -> str | None:
    """The agent that got the item first; None where the system dispatches to no single one."""
    return _named(DISPATCHED, (label.name for label in run.labels))


def executing(run: Run) -> tuple[str, ...]:
    """The agents whose answers made the final one: one that executed, one that was delegated to, or all that voted."""
    actions = {decision.point: decision.action for decision in run.decisions}
    action = actions.get("assign", actions.get("assess", COLLABORATE))
    if action == COLLABORATE:
        return tuple(dict.fromkeys(call.agent for call in run.calls if call.stage == "answer"))
    return (first_agent(run) or "",) if action == EXECUTE else (action,)


def read_correctness(run: Run, agent: str) -> float | None:
    """Returns the known correctness of an agent's last answer, in [0, 1]; None without an answer or a judgement."""
    answers = [call.id for call in run.calls if call.stage == "answer" and call.agent == agent]
    return run.label("correct", answers[-1]) if answers else None


def _named(prefix: str, names: Iterable[str]) -> str | None:
    return next((name.removeprefix(prefix) for name in names if name.startswith(prefix)), None)


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
    """Holds what a profile file held when a collection began. The items of the collection see this state, also when the
    collection is resumed."""

    before: float
    """Outcomes of an earlier time were there; those of the collection have this time and later ones."""
    outcomes: int
    """How many there were."""
    digest: str
    """SHA-256 of them, its beginning."""

    @classmethod
    def of(cls, past: Sequence[Observation], before: float) -> "Carried":
        """Makes the state from these outcomes, in this order."""
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
