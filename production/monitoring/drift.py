"""Watches a checkpoint's outputs and inputs, and raises an alarm if they change.

Each watched value (score, length, finish reason, ...) has its own evidence; alarms call the value its `stream`. A value
raises an alarm when its evidence reaches (number of watched values) / `false_alarms`. So over any number of
exchangeable answers, the probability of any false alarm is at most `false_alarms`. (The mean of the evidence over all
values would raise alarms at 1 / false_alarms in about the same cases. But its promise would require that the ranks of
one value are independent of the past of the others.) After an alarm the test starts again, and learns what is usual
from the answers that follow.

The checkpoint's outputs (its score, and whether labels agree with it) are watched separately for each version, so
scores of two versions are never judged together. The promise above is for one version and the values that all versions
share. Each further version adds its own values, with the same threshold.

The promise holds for answers whose order carries no information. Answers of one conversation, or of day and night, are
not like that. Two things help. `batch` values are averaged before they are judged, so that dependent values become one.
`within` names the stratum of each answer (an hour of the day, a task), so that it is compared with earlier answers of
its own stratum.

Evidence for a change may be checked after every answer. It is the wealth of a gambler, who starts with 1 and bets,
before each value is seen, that values will differ from earlier ones. If nothing has changed, no way of betting gains
money on average. So the probability that 1 ever grows to 1 / alpha is at most alpha (Ville), for a stream of any length
and any number of checks. This is an e-process. A p-value would be valid only at one moment that was fixed in advance.

The time of the change is unknown, so the money is not bet at once. At every moment a decreasing part of it is put on
every kind of bet, and the rest is kept as cash. Of the first 1, after t values 1 / log2(t + 2) is left, so after a
million answers still a twentieth of it.

Bets are on the rank of each value among all earlier values, in a memory of fixed size. If values are exchangeable
(their order carries no information), these ranks are independent and uniform in [0, 1] (Vovk, Gammerman and Shafer,
Algorithmic Learning in a Random World), as the bets require. They must be ranks among *all* earlier values. A rank in a
fixed reference window is distributed as that window happened to be. Over a long stream a bet on this difference would
gain money, which would be a false alarm.

Numbers are put into the bins of a grid that was fixed in advance; ties are broken at random.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import floor, log, log2, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.api import RecordError

FALSE_ALARMS = 0.05
REFERENCE = 200
"""Number of values that are only learned from, at the beginning and after an alarm."""
SCORE_TOLERANCE = 0.05
"""Mean difference of score and label up to which labels do not count against the scores."""
LABEL_STREAM = "label"
AGREEMENT_STREAM = "agreement"
USUAL_STREAMS = ("score", "tokens", "finish_reason", "task", LABEL_STREAM)
"""Names of the values watched by default. `task` is the mix of tasks; `label` is whether labels agree with scores."""
WATCHED_STREAMS = (*USUAL_STREAMS, AGREEMENT_STREAM)
"""Names of all watchable values. `agreement` is whether a second answer to the same question says the same."""
NAME_STREAMS = ("finish_reason", "task")
STREAMS_BY_VERSION = ("score", LABEL_STREAM)
"""Values that are watched separately for each version, because two checkpoints score the same answers differently."""
LATEST_TIMES = 256
"""Number of values whose times are kept, to say when a change began."""
DRIFT_STATE_FORMAT = 4
MORE, FEWER, MIXED = "more wrong answers", "fewer wrong answers", "mixed"
"""Direction in which labels differ from scores; `MIXED` if it is not known."""
LABEL_MOVE_MEANINGS = {"too high": MORE, "too low": FEWER}
SCORE_MOVE_MEANINGS = {"lower": MORE, "higher": FEWER}
"""Maps the direction in which scores moved to its meaning."""
RARITY = {"lower": "rare values are more frequent", "higher": "frequent values are more frequent"}

STRENGTHS = (0.3, 0.6, 0.85)
"""Exponents of the bets on ranks: a bet assumes that a rank r has the density strength * r ** (strength - 1)."""
RANK_BIN_COUNT = 10
"""Number of rank bins of the bet on any shape."""
BIN_PRIOR = 3.0
"""Number of values that each of these bins holds at the start."""
REMEMBERED_VALUES = 300.0
"""Number of values after which the weight of a value in these bins has fallen to about a third."""
BET_DIRECTIONS = ("lower", "higher", "more extreme")
RANK_BETS = (*(kind for kind in BET_DIRECTIONS for _ in STRENGTHS), "closer to the middle", "otherwise distributed")
"""Names of the bets on ranks: how the values since the change differ."""
RANK_MARGIN = 1e-9
"""Ranks are clipped to [CLOSEST, 1 - CLOSEST]."""
LOG_OF_ZERO = -1e9
"""Replaces the logarithm of 0 in JSON."""

LABEL_STAKES = (0.1, 0.3, 0.8)
"""Shares of the money that the bets on labels risk."""
LABEL_BETS = tuple(
    kind
    for kind in ("too high", "too low", "too far from the middle", "too near the middle")
    for _ in LABEL_STAKES  # each kind of error of the scores, bet on carefully and boldly
)

RANK_BINS = 1000
MAX_BINNED_LOG_ODDS = 10.0
"""Log-odds at either end of the grid for scores."""


@dataclass(slots=True)
class Wealth:
    """Money of the bets on one watched value, over all starting times."""

    money: list[float]
    """Money of each bet, over the starting times so far."""
    best: list[float]
    """Logarithm of the money of each bet with its best single starting time."""
    began: list[int]
    """Step at which each bet's best starting time lies."""
    steps: int = 0

    @property
    def evidence(self) -> float:
        """Current money, of an initial 1."""
        return sum(self.money) + _cash(self.steps)

    @property
    def winner(self) -> int:
        """Index of the bet that best describes the change."""
        return self.best.index(max(self.best))

    def add(self, factors: Sequence[float]) -> None:
        """Multiplies each bet by its factor: at least 0, with a mean of at most 1 if nothing has changed."""
        starting_money = (_cash(self.steps) - _cash(self.steps + 1)) / len(self.money)
        log_starting_money = log(starting_money)
        for bet, factor in enumerate(factors):
            self.money[bet] = (self.money[bet] + starting_money) * factor
            if self.best[bet] < log_starting_money:
                self.best[bet], self.began[bet] = log_starting_money, self.steps
            self.best[bet] += log(factor) if factor > 0 else LOG_OF_ZERO
        self.steps += 1


def _cash(steps: int) -> float:
    return 1 / log2(steps + 2)


@dataclass(slots=True)
class RankBets:
    """Bets on ranks, which are uniform in [0, 1] and independent if values are exchangeable."""

    seen: list[float] = field(default_factory=lambda: [0.0] * RANK_BIN_COUNT)
    """Number of recent ranks in each tenth; older ranks fade."""

    def factors(self, rank: float) -> list[float]:
        """Returns the factor of each bet of `RANK_BETS`, and learns from the rank afterwards."""
        r = min(max(rank, RANK_MARGIN), 1 - RANK_MARGIN)
        low = [s * r ** (s - 1) for s in STRENGTHS]
        high = [s * (1 - r) ** (s - 1) for s in STRENGTHS]
        either_end = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        bin_index = min(int(r * RANK_BIN_COUNT), RANK_BIN_COUNT - 1)
        shape = RANK_BIN_COUNT * (self.seen[bin_index] + BIN_PRIOR) / (sum(self.seen) + RANK_BIN_COUNT * BIN_PRIOR)
        self.seen = [count * (1 - 1 / REMEMBERED_VALUES) for count in self.seen]
        self.seen[bin_index] += 1
        return [*low, *high, *either_end, 6 * r * (1 - r), shape]


def label_factors(score: float, label: float, tolerance: float) -> list[float]:
    """Returns the factor of each bet of `LABEL_BETS`, for a label of 0 or 1.

    Its mean is at most 1 if P(label = 1) is within `tolerance` of the score, for any answer and any choice of answers
    to label. It assumes nothing about the order of answers, or how they were drawn for labels, as long as the label
    itself had no influence.

    Args:
        score: score of the answer.
        label: 0 or 1.
        tolerance: accepted difference of score and P(label = 1).
    """
    missed = label - score
    outwards = missed if score > 0.5 else -missed
    gains = [(gain - tolerance) / (1 + tolerance) for gain in (-missed, missed, -outwards, outwards)]
    return [1 + stake * gain for gain in gains for stake in LABEL_STAKES]


@dataclass(slots=True)
class Ranks:
    """Gives the rank of each number of one watched value: the share of earlier numbers that are lower."""

    counts: Any = None
    """Counts of each bin (a list) or of each name (a dictionary); None before the first value."""

    def rank(self, value: Any, tie: float, grid: Callable[[float], int] | None) -> float:
        """Returns the share of earlier values that are lower, plus the share `tie` of the equal ones.

        Names are ranked by their frequency: a rare name is low. Spelling and order of arrival do not matter.

        Args:
            value: the value.
            tie: share in [0, 1) of the equal values that count as lower.
            grid: maps a number to one of `RANK_BINS` bins; None for names.
        """
        if grid is None:
            self.counts = self.counts or {}
            own_count = self.counts[value] = self.counts.get(value, 0) + 1
            below = sum(n for n in self.counts.values() if n < own_count)
            equal = sum(n for n in self.counts.values() if n == own_count)
            return float((below + tie * equal) / sum(self.counts.values()))
        self.counts = self.counts or [0] * RANK_BINS
        bin_index = min(max(grid(value), 0), RANK_BINS - 1)
        self.counts[bin_index] += 1
        return float((sum(self.counts[:bin_index]) + tie * self.counts[bin_index]) / sum(self.counts))


def place_score(value: float) -> int:
    """Returns the bin of a number in [0, 1], by its log-odds: 0.99 and 0.999 differ as much as 0.5 and 0.91."""
    p = min(max(value, 1e-6), 1 - 1e-6)
    return floor((log(p / (1 - p)) + MAX_BINNED_LOG_ODDS) / (2 * MAX_BINNED_LOG_ODDS) * RANK_BINS)


def place_count(value: float) -> int:
    """Returns the bin of a count up to a million, in steps of 2 %."""
    return floor(log2(1 + max(value, 0.0)) / 20 * RANK_BINS)


@dataclass(frozen=True, slots=True)
class Alarm:
    """A change in one stream."""

    stream: str
    time: float
    """Time of the value that raised the alarm, in seconds since 1970."""
    began: float
    """Time at which the change probably began: the starting time of the winning bet."""
    evidence: float
    """Money that the bets have won from 1; an alarm needs at least (number of streams) / false_alarms."""
    rows: int
    """Number of values of this stream since its start, or since its last alarm."""
    since: int
    """Number of these values since the change probably began."""
    moved: str
    """Name of the winning bet: `lower`, `higher`, `more extreme`, ...; for labels, how scores err: `too high`, ..."""
    checkpoint: str = ""
    """Digest of the version of the stream; empty for streams that all versions share, and if no version is given."""
    gap: float = nan
    """For labels: mean of label minus score since the change probably began."""
    direction: str = ""
    """Meaning for the answers: `more wrong answers` or `fewer wrong answers`; otherwise the same as `moved`."""
    first: float = nan
    """Time of the first of these `rows` values."""
    reference: int = 0
    """Number of first values of the stream, which were only learned from: later values are compared with all before
    them.

    0 for labels, which are compared with scores.
    """

    @property
    def text(self) -> str:
        of_checkpoint = f" of checkpoint {self.checkpoint[:12]}" if self.checkpoint else ""
        has_direction = self.direction in (MORE, FEWER)
        if self.stream == LABEL_STREAM:
            meaning = f": {self.direction} than they say" if has_direction else ""
            return f"scores{of_checkpoint} are {self.moved}, by {self.since} labels{meaning}"
        change = f" is {self.moved}"
        if self.stream in NAME_STREAMS:
            change = f": {RARITY.get(self.moved, self.moved)}"
        meaning = f": {self.direction} are expected" if has_direction else ""
        return (
            f"{self.stream}{of_checkpoint}{change} in the last {self.since} of {self.rows} values, of which the first "
            f"{self.reference} are the reference{meaning}"
        )


@dataclass(slots=True, eq=False)
class WatchedValue:
    """Drift-test state of one value that is logged per answer."""

    name: str
    wealth: Wealth
    bets: RankBets = field(default_factory=RankBets)
    ranks: dict[str, Ranks] = field(default_factory=dict)
    """Maps a stratum to the ranks of its values."""
    rows: int = 0
    times: list[list[float]] = field(default_factory=list)
    """Step and time of some values, with all of the latest. For labels also the earlier value of `missed`."""
    waiting: list[float] = field(default_factory=list)
    """Values of the batch that is not yet full."""
    version: str = ""
    first: float | None = None
    """Time of the first value, in seconds since 1970; None before it."""
    missed: float = 0.0
    """For labels: sum of label minus score."""
    told: str = ""
    """For labels: direction of the last alarm. No second alarm is raised while the direction stays."""


class DriftWatch:
    """Watches values of answers, one answer at a time or in portions. Its state can be stored between portions."""

    def __init__(
        self,
        streams: Sequence[str] = USUAL_STREAMS,
        *,
        false_alarms: float = FALSE_ALARMS,
        reference: int = REFERENCE,
        tolerance: float = SCORE_TOLERANCE,
        batch: int = 1,
        seed: int = 0,
    ) -> None:
        """Raises `RecordError` for an unknown stream, and for numbers out of range.

        Args:
            streams: names from `WATCHED_STREAMS`.
            false_alarms: greatest probability of a false alarm.
            reference: number of (averaged) values that are only learned from.
            tolerance: mean difference of score and label that is accepted.
            batch: number of values that are averaged into one.
            seed: seed of the random tie breaks.
        """
        if unknown_streams := [name for name in streams if name not in WATCHED_STREAMS]:
            raise RecordError(
                f"there is no stream {', '.join(unknown_streams)}; expected some of {', '.join(WATCHED_STREAMS)}"
            )
        if not (streams and 0 < false_alarms < 1 and reference >= 1 and 0 <= tolerance < 1 and batch >= 1):
            raise RecordError(
                f"got {len(streams)} streams, false_alarms {false_alarms:g}, reference {reference}, tolerance "
                f"{tolerance:g}, batch {batch}; expected at least one stream, a share between 0 and 1, at least 1 "
                "value, a tolerance in [0, 1) and a batch of at least 1"
            )
        self.false_alarms, self.reference, self.tolerance, self.batch = false_alarms, reference, tolerance, batch
        self.names = tuple(dict.fromkeys(streams))
        self.watched_values: dict[str, WatchedValue] = {}
        """Maps `key_of` to the watched value. Those of a version begin with its first answer."""
        self._ties = np.random.default_rng(seed)

    @property
    def threshold(self) -> float:
        """Evidence at which a watched value raises an alarm."""
        return len(self.names) / self.false_alarms

    @property
    def evidence(self) -> dict[str, float]:
        """Current money of each watched value, by `key_of`; it begins with 1."""
        return {name: watched.wealth.evidence for name, watched in self.watched_values.items()}

    def update(
        self,
        time: ArrayLike,
        values: Mapping[str, ArrayLike],
        *,
        within: ArrayLike | None = None,
        version: ArrayLike | None = None,
    ) -> list[Alarm]:
        """Returns the alarms of answers that ended at `time` (n,), in their order. Labels go to `update_labels`.

        Args:
            time: end of each answer, in seconds since 1970.
            values: for each stream (n,) numbers, where NaN is skipped, or names, where an empty one is skipped. Streams
                that are not watched are ignored.
            within: (n,) name of each answer's stratum.
            version: (n,) digest of the checkpoint of each score; None if there is only one.
        """
        times = np.asarray(time, dtype=np.float64)
        columns = {name: np.asarray(values[name]) for name in self.names if name in values and name != LABEL_STREAM}
        strata, versions = _names_or_empty(within, len(times)), _names_or_empty(version, len(times))
        for name, column in {**columns, "within": strata, "version": versions}.items():
            if column.shape != times.shape:
                raise RecordError(f"{name} has the shape {column.shape}; expected one value a time, {times.shape}")
        values_of = {name: column.tolist() for name, column in columns.items()}
        alarms = []
        for row, (when, stratum, digest) in enumerate(
            zip(times.tolist(), strata.tolist(), versions.tolist(), strict=True)
        ):
            for name, column in values_of.items():
                alarm = self._watch_value(self._watched_value(name, digest), when, column[row], stratum)
                alarms += [] if alarm is None else [alarm]
        return alarms

    def update_labels(
        self, time: ArrayLike, score: ArrayLike, label: ArrayLike, *, version: ArrayLike | None = None
    ) -> list[Alarm]:
        """Returns the alarms of labels (n,), each 0 or 1, in the order of their arrival.

        Answers may have been chosen for labels in any way that does not look at the label. NaN is skipped. While scores
        err in one direction, only one alarm is raised. Another is raised after another direction, or after the scores
        were right for as many labels as the reference has values.

        Args:
            time: arrival of each label, in seconds since 1970.
            score: score of each answer.
            label: 0 or 1 for each answer.
            version: as in `update`.
        """
        columns = [np.asarray(column, dtype=np.float64) for column in (time, score, label)]
        versions = _names_or_empty(version, len(columns[0]))
        if len({column.shape for column in (*columns, versions)}) != 1:
            raise RecordError(f"got {[column.shape for column in columns]} times, scores and labels; expected as many")
        if LABEL_STREAM not in self.names:
            return []
        alarms = []
        for when, s, y, digest in zip(*(column.tolist() for column in (*columns, versions)), strict=True):
            if np.isnan(s) or np.isnan(y):
                continue
            watched = self._watched_value(LABEL_STREAM, digest)  # another one after each alarm
            watched.first = when if watched.first is None else watched.first
            watched.rows += 1
            watched.missed += y - s
            alarm = self._alarm_after_bet(watched, when, label_factors(s, y, self.tolerance), LABEL_BETS)
            alarms += [] if alarm is None else [alarm]
        return alarms

    def _watched_value(self, name: str, version: str) -> WatchedValue:
        key = key_of(name, version)
        if key not in self.watched_values:
            self.watched_values[key] = _new_watched_value(name, version)
        return self.watched_values[key]

    def _watch_value(self, watched: WatchedValue, when: float, value: Any, stratum: str) -> Alarm | None:
        has_names = watched.name in NAME_STREAMS
        if (has_names and not value) or (not has_names and np.isnan(value)):
            return None
        if not watched.rows and not watched.waiting:
            watched.first = when
        watched.waiting.append(0.0 if has_names else float(value))
        if len(watched.waiting) < self.batch:
            return None
        # Names have no mean, so the last name of a batch stands for the batch.
        averaged: Any = str(value) if has_names else sum(watched.waiting) / len(watched.waiting)
        watched.waiting.clear()
        grid = None if has_names else place_count if watched.name == "tokens" else place_score
        rank = watched.ranks.setdefault(stratum, Ranks()).rank(averaged, float(self._ties.random()), grid)
        factors = watched.bets.factors(rank)
        watched.rows += 1
        if watched.rows <= self.reference:
            return None
        return self._alarm_after_bet(watched, when, factors, RANK_BETS)

    def _alarm_after_bet(
        self, watched: WatchedValue, when: float, factors: list[float], bets: tuple[str, ...]
    ) -> Alarm | None:
        """Bets on one value. Returns an alarm if the evidence now reaches the threshold, and then starts anew.

        Args:
            watched: the state of the watched value.
            when: time of the value, in seconds since 1970.
            factors: factor of each bet.
            bets: names of the bets.
        """
        wealth = watched.wealth
        watched.times.append([wealth.steps, when, watched.missed])
        if len(watched.times) > 2 * LATEST_TIMES:
            watched.times[:LATEST_TIMES] = watched.times[:LATEST_TIMES:2]  # the older, the coarser
        wealth.add(factors)
        if wealth.evidence < self.threshold:
            return None
        self.watched_values[key_of(watched.name, watched.version)] = next_watched = _new_watched_value(
            watched.name, watched.version
        )
        start_step, values_per_row = int(wealth.began[wealth.winner]), 1 if watched.name == LABEL_STREAM else self.batch
        at_step, began, missed = next(
            entry for entry in reversed(watched.times) if entry[0] <= start_step or entry is watched.times[0]
        )
        rows, since, moved = (
            watched.rows * values_per_row,
            (wealth.steps - start_step) * values_per_row,
            bets[wealth.winner],
        )
        first = nan if watched.first is None else watched.first
        alarm = Alarm(watched.name, when, began, wealth.evidence, rows, since, moved, watched.version, first=first)
        if watched.name != LABEL_STREAM:
            direction = SCORE_MOVE_MEANINGS.get(moved, moved) if watched.name == "score" else moved
            return replace(alarm, direction=direction, reference=self.reference * values_per_row)
        n = wealth.steps - int(at_step)
        gap = (watched.missed - missed) / n
        is_significant = abs(gap) > self.tolerance + 1 / sqrt(n)  # two standard errors of a share of one half
        direction = LABEL_MOVE_MEANINGS.get(moved, (MORE if gap < 0 else FEWER) if is_significant else MIXED)
        next_watched.told = direction
        if watched.told and start_step < self.reference and direction in (watched.told, MIXED):
            next_watched.told = watched.told
            return None  # the direction has not changed since the last alarm
        # The labels of this alarm differ from the scores in a new direction, or did so again after a while.
        return replace(alarm, gap=gap, direction=moved if direction == MIXED else direction)

    def to_json(self) -> str:
        """Returns the state as one line of JSON; `from_json` continues from it without any difference."""
        streams = {key: asdict(watched) for key, watched in self.watched_values.items()}
        settings = {name: getattr(self, name) for name in ("false_alarms", "reference", "tolerance", "batch")}
        header = {"format": DRIFT_STATE_FORMAT, "names": self.names, "settings": settings}
        return json.dumps({**header, "ties": self._ties.bit_generator.state, "streams": streams})

    @classmethod
    def from_json(cls, text: str) -> "DriftWatch":
        """Returns the watch of a text that `to_json` wrote. Raises `RecordError` for any other text."""
        try:
            stored = json.loads(text)
            if stored["format"] != DRIFT_STATE_FORMAT:
                raise RecordError(
                    f"the state has format {stored['format']}; expected {DRIFT_STATE_FORMAT}: begin a new one"
                )
            watch = cls(stored["names"], **stored["settings"])
            watch._ties.bit_generator.state = stored["ties"]
            for key, stored_value in stored["streams"].items():
                ranks = {stratum: Ranks(**stored_ranks) for stratum, stored_ranks in stored_value["ranks"].items()}
                parts = {
                    "wealth": Wealth(**stored_value["wealth"]),
                    "bets": RankBets(**stored_value["bets"]),
                    "ranks": ranks,
                }
                watch.watched_values[key] = WatchedValue(**{**stored_value, **parts})
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RecordError(f"this is no state of a drift watch ({error}); begin a new one") from error
        return watch


def key_of(name: str, version: str) -> str:
    """Returns the key of a watched value: its name, with the version's digest if versions are watched separately."""
    return f"{name}|{version}" if version and name in STREAMS_BY_VERSION else name


def _new_watched_value(name: str, version: str) -> WatchedValue:
    bets = len(LABEL_BETS if name == LABEL_STREAM else RANK_BETS)
    wealth = Wealth([0.0] * bets, [LOG_OF_ZERO] * bets, [0] * bets)
    return WatchedValue(name, wealth, version=version if name in STREAMS_BY_VERSION else "")


def _names_or_empty(names: ArrayLike | None, n: int) -> NDArray[np.str_]:
    return np.full(n, "") if names is None else np.asarray(names).astype(np.str_)
