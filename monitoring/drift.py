"""Watching what a checkpoint says and what it reads, and ringing where it is not as before.

Each stream (score, length, finish reason, ...) has its own evidence (`monitoring.evidence`). It rings at
streams / false_alarms, so that over a whole stream of exchangeable answers, however long, the probability of any false
alarm of any stream is at most `false_alarms`. (The mean of the streams' evidence would ring at 1 / false_alarms in
about the same cases; its promise would need the ranks of one stream to be independent of the past of the others.)
After an alarm that stream begins anew, with what came after it as what is usual.

What is promised holds for answers whose order says nothing. Answers of one conversation, or a day and its night, are
not like that. Two things help: `batch` values are averaged before they are judged, so that what hangs together is one
value; and `within` names the stratum of each answer (an hour of the day, a task), so that each is compared with earlier
answers of its own stratum.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.monitoring.evidence import LABEL_BETS, RANK_BETS, RankBets, Wealth, label_factors
from metaprobe.monitoring.ranks import NameRanks, NumberRanks, Ranks, place_count, place_score, ranks_from_json
from metaprobe.records.errors import RecordError

FALSE_ALARMS = 0.05
REFERENCE = 200
"""Values that are only learned from, at the beginning and after an alarm."""
TOLERANCE = 0.05
"""By how much scores may be off on average before labels count against them."""
LABEL = "label"
STREAMS = ("score", "tokens", "in_support", "finish_reason", "task", LABEL)
"""What is watched. `task` is the mix of tasks; `label` is whether labels are what scores say."""
NAMES = ("finish_reason", "task")
LATEST = 256
"""Times of values that are kept, for saying when a change began."""
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Alarm:
    """One stream is not as it was."""

    stream: str
    time: float
    """Of the value that made it ring; seconds since 1970, as it was given."""
    began: float
    """When the change likely began: of the beginning of the bet that won most."""
    evidence: float
    """What 1 has become; at least streams / false_alarms."""
    rows: int
    """Values of this stream since it began, or since its last alarm."""
    since: int
    """Values of these since the change likely began."""
    moved: str
    """What the winning bet says: `lower`, `higher`, `more extreme`, ...; of labels, what scores are: `too high`, ..."""

    @property
    def text(self) -> str:
        if self.stream == LABEL:
            return f"scores are {self.moved}, by {self.since} labels"
        return f"{self.stream} is {self.moved} in the last {self.since} of {self.rows} values"


@dataclass(slots=True, eq=False)
class Stream:
    """One number or name of each answer."""

    name: str
    wealth: Wealth
    bets: RankBets = field(default_factory=RankBets)
    ranks: dict[str, Ranks] = field(default_factory=dict)
    """Stratum -> the ranks of its values."""
    rows: int = 0
    times: list[list[float]] = field(default_factory=list)
    """Step and time of some values, the latest ones all."""
    waiting: list[float] = field(default_factory=list)
    """Values of the batch that is not full."""


class DriftWatch:
    """Watches streams of answers, as they come or in portions; what it knows can be stored between portions."""

    def __init__(
        self,
        streams: Sequence[str] = STREAMS,
        *,
        false_alarms: float = FALSE_ALARMS,
        reference: int = REFERENCE,
        tolerance: float = TOLERANCE,
        batch: int = 1,
        seed: int = 0,
    ) -> None:
        """`streams` of `STREAMS`; `batch`: values averaged into one; `reference`: values, averaged ones, learned from.

        Raises `RecordError` for a stream that is not known and for numbers out of range.
        """
        if unknown := [name for name in streams if name not in STREAMS]:
            raise RecordError(f"there is no stream {', '.join(unknown)}; expected some of {', '.join(STREAMS)}")
        if not (streams and 0 < false_alarms < 1 and reference >= 1 and 0 <= tolerance < 1 and batch >= 1):
            raise RecordError(
                f"got {len(streams)} streams, false_alarms {false_alarms:g}, reference {reference}, tolerance "
                f"{tolerance:g}, batch {batch}; expected at least one stream, a share between 0 and 1, at least 1 "
                "value, a tolerance in [0, 1) and a batch of at least 1"
            )
        self.false_alarms, self.reference, self.tolerance, self.batch = false_alarms, reference, tolerance, batch
        self.streams = {name: _begin(name) for name in dict.fromkeys(streams)}
        self._ties = np.random.default_rng(seed)

    @property
    def threshold(self) -> float:
        """Evidence at which a stream rings."""
        return len(self.streams) / self.false_alarms

    @property
    def evidence(self) -> dict[str, float]:
        """What 1 has become, by stream."""
        return {name: stream.wealth.evidence for name, stream in self.streams.items()}

    def update(
        self, time: ArrayLike, values: Mapping[str, ArrayLike], *, within: ArrayLike | None = None
    ) -> list[Alarm]:
        """Returns the alarms of answers that ended at `time` (n,), in their order.

        `values`: of each stream (n,) numbers, where NaN is passed over, or names, where the empty one is. `within`:
        (n,) name of the stratum of each. Streams that are not watched are passed over. Labels go to `update_labels`.
        """
        times = np.asarray(time, dtype=np.float64)
        columns = {name: np.asarray(values[name]) for name in self.streams if name in values and name != LABEL}
        strata = np.full(len(times), "") if within is None else np.asarray(within).astype(np.str_)
        for name, column in {**columns, "within": strata}.items():
            if column.shape != times.shape:
                raise RecordError(f"{name} has the shape {column.shape}; expected one value a time, {times.shape}")
        given = {name: column.tolist() for name, column in columns.items()}
        alarms = []
        for row, (when, stratum) in enumerate(zip(times.tolist(), strata.tolist(), strict=True)):
            for name, column in given.items():
                found = self._add(self.streams[name], when, column[row], stratum)
                alarms += [] if found is None else [found]
        return alarms

    def update_labels(self, time: ArrayLike, score: ArrayLike, label: ArrayLike) -> list[Alarm]:
        """Returns the alarms of labels (n,) of 0 and 1, in the order in which they came, and of their answers' scores.

        Answers may have been chosen for labels in any way that does not look at the label. NaN is passed over.
        """
        columns = [np.asarray(column, dtype=np.float64) for column in (time, score, label)]
        if len({column.shape for column in columns}) != 1:
            raise RecordError(f"got {[column.shape for column in columns]} times, scores and labels; expected as many")
        if LABEL not in self.streams:
            return []
        alarms = []
        for when, s, y in zip(*(column.tolist() for column in columns), strict=True):
            if np.isnan(s) or np.isnan(y):
                continue
            stream = self.streams[LABEL]  # another one after each alarm
            stream.rows += 1
            found = self._bet(stream, when, label_factors(s, y, self.tolerance), LABEL_BETS)
            alarms += [] if found is None else [found]
        return alarms

    def _add(self, stream: Stream, when: float, value: Any, stratum: str) -> Alarm | None:
        named = stream.name in NAMES
        if (named and not value) or (not named and np.isnan(value)):
            return None
        stream.waiting.append(0.0 if named else float(value))
        if len(stream.waiting) < self.batch:
            return None
        # Of names, which have no mean, the last one of each batch counts.
        read: Any = str(value) if named else sum(stream.waiting) / len(stream.waiting)
        stream.waiting.clear()
        ranks = stream.ranks.setdefault(stratum, _empty_ranks(stream.name))
        factors = stream.bets.factors(ranks.rank(read, float(self._ties.random())))
        stream.rows += 1
        if stream.rows <= self.reference:
            return None
        return self._bet(stream, when, factors, RANK_BETS)

    def _bet(self, stream: Stream, when: float, factors: list[float], bets: tuple[str, ...]) -> Alarm | None:
        wealth = stream.wealth
        stream.times.append([wealth.steps, when])
        if len(stream.times) > 2 * LATEST:
            stream.times[:LATEST] = stream.times[:LATEST:2]  # the older, the coarser
        wealth.add(factors)
        if wealth.evidence < self.threshold:
            return None
        step, winner = int(wealth.began[wealth.winner]), wealth.winner
        began = next(time for at, time in reversed(stream.times) if at <= step or at == stream.times[0][0])
        rows, since = stream.rows * self._size(stream), (wealth.steps - step) * self._size(stream)
        alarm = Alarm(stream.name, when, began, wealth.evidence, rows, since, bets[winner])
        self.streams[stream.name] = _begin(stream.name)
        return alarm

    def _size(self, stream: Stream) -> int:
        return 1 if stream.name == LABEL else self.batch

    def to_json(self) -> str:
        """Returns what is known so far, as one line of JSON; `from_json` goes on with it as if nothing had been."""
        streams = {
            name: {
                "wealth": asdict(stream.wealth),
                "seen": stream.bets.seen,
                "ranks": {stratum: ranks.as_json() for stratum, ranks in stream.ranks.items()},
                "rows": stream.rows,
                "times": stream.times,
                "waiting": stream.waiting,
            }
            for name, stream in self.streams.items()
        }
        settings = {name: getattr(self, name) for name in ("false_alarms", "reference", "tolerance", "batch")}
        ties = self._ties.bit_generator.state
        return json.dumps({"format": FORMAT, "settings": settings, "ties": ties, "streams": streams})

    @classmethod
    def from_json(cls, text: str) -> "DriftWatch":
        """Raises `RecordError` for a text that `to_json` has not written."""
        try:
            stored = json.loads(text)
            if stored["format"] != FORMAT:
                raise RecordError(f"the state has format {stored['format']}; expected {FORMAT}: begin a new one")
            watch = cls(list(stored["streams"]), **stored["settings"])
            watch._ties.bit_generator.state = stored["ties"]
            for name, known in stored["streams"].items():
                stream = watch.streams[name]
                stream.wealth = Wealth(**known["wealth"])
                stream.bets.seen = known["seen"]
                for stratum, ranks in known["ranks"].items():
                    stream.ranks[stratum] = ranks_from_json(_empty_ranks(name), ranks)
                stream.rows, stream.times, stream.waiting = known["rows"], known["times"], known["waiting"]
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"this is no state of a drift watch ({error}); begin a new one") from error
        return watch


def _begin(name: str) -> Stream:
    return Stream(name, Wealth.of(len(LABEL_BETS if name == LABEL else RANK_BETS)))


def _empty_ranks(name: str) -> Ranks:
    if name in NAMES:
        return NameRanks()
    return NumberRanks(place_count if name == "tokens" else place_score)
