"""Drift in a score log: reads what is new, stores each alarm as an event, and remembers where it was.

Answers are read by their numbers, so that none is missed or read twice, however late it was stored, whatever clock it
was dated by, and whatever was taken away meanwhile.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.api import OneWriter, RecordError, plain
from metaprobe.production.monitoring.drift import BY_VERSION, LABEL_STREAM, NAME_STREAMS, Alarm, DriftWatch
from metaprobe.production.monitoring.log import ScoreLog, version_names
from metaprobe.production.monitoring.posting import NotPosted, post_json
from metaprobe.production.monitoring.rows import Floats, LogColumns
from metaprobe.production.monitoring.tables import sa, scores

DRIFT = "drift"
"""The kind of the events."""
HOUR = "hour"
"""Stands in place of a tag for the hour of the day, in UTC."""
ANSWER_STREAMS = ("score", "tokens", "finish_reason", "task")
"""Columns that are read of every answer."""
_KEPT = ("model", "checkpoint", "within", "read_to", "log")

NUMBER_FORMATS = ((1, ".3f"), (100, ".1f"))
"""Numbers below the first are written as the second says; larger ones without a decimal."""

TRY_TIMEOUT_S = 10.0
"""How long one try may take in all."""
TRIES = 2


@dataclass(slots=True)
class LogWatch:
    """A drift watch, and how far it has read the log."""

    watch: DriftWatch = field(default_factory=DriftWatch)
    model: str | None = None
    """Model whose answers are watched; None for all."""
    checkpoint: str | None = None
    """Digest of the version whose answers are watched; None for all, each by itself."""
    within: str = ""
    """A tag, or `hour`: answers are compared with earlier ones of the same."""
    read_to: int = 0
    """Number up to which all answers were read (`Tables.settled`); 0 before the first reading."""
    counted: set[str] = field(default_factory=set)
    """Marks of the answers whose label was read. No time says that: people date a label as they like."""
    log: str = ""
    """Identity of the log that is watched; empty before the first reading."""
    pending: list[dict[str, Any]] = field(default_factory=list)
    """Alarms that no webhook has taken yet."""
    waiting: int = 0
    """Answers that were not read: a transaction of the database, begun before theirs ended, goes on."""

    @classmethod
    def load(cls, path: Path) -> "LogWatch":
        """Raises `RecordError` for a file that `save` has not written."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            watch = DriftWatch.from_json(stored.pop("watch"))
            counted = {str(mark) for mark in stored.pop("counted")}
            return cls(watch, **stored, counted=counted)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RecordError(f"{path} is no state of `metaprobe drift` ({error}); give another file") from error

    def save(self, path: Path) -> None:
        stored = {name: getattr(self, name) for name in _KEPT}
        stored |= {"counted": sorted(self.counted), "pending": self.pending}
        beside = path.with_name(path.name + ".new")
        beside.write_text(json.dumps({"watch": self.watch.to_json(), **stored}), encoding="utf-8")
        beside.replace(path)  # a killed process leaves the old one whole

    def read(self, log: ScoreLog) -> list[dict[str, Any]]:
        """Returns the alarms of what was stored since the last reading, each as the event that is now in the log.

        Raises `RecordError` for another log than that of the readings before, and for one that was put back to what it
        was earlier: its answers would be taken for read.
        """
        identity = log.identity()
        if self.log not in ("", identity):
            raise RecordError("the state is of another log than the one given; give this log a state file of its own")
        self.log = identity
        first, last = self.read_to, log.tables.settled()
        if last < first:
            raise RecordError(
                f"the state has read up to number {first}, and the log has numbers up to {last} only: it was put back "
                "to an earlier copy, and its new answers would be taken for read; begin a new state file"
            )
        answers = log.columns(model=self.model, checkpoint=self.checkpoint, stored=(first, last))
        columns = {name: _column(answers, name) for name in ANSWER_STREAMS}
        versions = answers.checkpoint.astype(np.str_)
        if self.within == HOUR:
            strata: Any = (answers.time // 3600 % 24).astype(np.int64)
        else:
            strata = answers.tag(self.within) if self.within else None
        alarms = self.watch.update(answers.time, columns, within=strata, version=versions)
        self.read_to = last
        later = sa.select(sa.func.count()).select_from(scores).where(log.tables.number > last)
        self.waiting = 0 if log.tables.alone else int(log.tables.read(later)[0][0])
        # Labels since the last reading, in the order in which they came. Marks stand for the ids of their answers in
        # the state, where the ids themselves have no business to be.
        labelled = self._labelled(log)
        marks = [hashlib.blake2b(name.encode(), digest_size=8).hexdigest() for name in labelled.names]
        new = np.array([mark not in self.counted for mark in marks], dtype=np.bool_)
        self.counted = set(marks)
        told = (labelled.time[new], labelled.score[new], labelled.label[new])
        alarms = sorted(alarms, key=lambda alarm: alarm.time)
        alarms += self.watch.update_labels(*told, version=labelled.version[new])
        names = version_names(log) if alarms else {}
        return [self._tell(log, alarm, names) for alarm in alarms]

    def _labelled(self, log: ScoreLog) -> "_Labelled":
        """First labels of answers, in the order in which they came, with the answers' scores and versions.

        Bets look forward only: who has bet on an answer's label cannot bet on its correction, which is chosen by what
        the first one said. So a correction changes the estimates, and not this stream. Where some were drawn, labels
        that came unasked are left out, as in the estimates: who complains knows that the answer is wrong.
        """
        first = {one.request_id: (place, one.time, one.value) for place, one in enumerate(log.first_labels())}
        answers = log.columns(model=self.model, checkpoint=self.checkpoint, labelled=True, ids=True)
        drawn = np.isfinite(answers.propensity)
        used = np.flatnonzero(drawn if drawn.any() else np.ones(len(answers), dtype=np.bool_))
        used = np.array([at for at in used if str(answers.request_id[at]) in first], dtype=np.int64)
        labelled = [first[str(name)] for name in answers.request_id[used]]
        place, time, label = np.array(labelled, dtype=np.float64).reshape(-1, 3).T
        order = np.argsort(place)
        rows = used[order]
        version = answers.checkpoint[rows].astype(np.str_)
        return _Labelled(answers.request_id[rows].tolist(), time[order], answers.score[rows], label[order], version)

    def _tell(self, log: ScoreLog, alarm: Alarm, names: Mapping[str, str]) -> dict[str, Any]:
        """Stores the alarm with the means before and after it; not one that a killed process has stored."""
        if alarm.stream == LABEL_STREAM:
            labelled = self._labelled(log)
            mine = labelled.version == alarm.checkpoint
            times, values = labelled.time[mine], (labelled.label - labelled.score)[mine]
        else:
            of = alarm.checkpoint if alarm.stream in BY_VERSION else self.checkpoint
            answers = log.columns(model=self.model, checkpoint=of, until=float(np.nextafter(alarm.time, np.inf)))
            times, values = answers.time, _column(answers, alarm.stream)
        move = measure_move(alarm, times, values)
        text = say_alarm(alarm, move, names.get(alarm.checkpoint, ""))
        details: Mapping[str, Any] = {
            **asdict(alarm),
            **asdict(move),
            "text": text,
            "path": names.get(alarm.checkpoint, ""),
            "model": self.model,
        }
        stored: dict[str, Any] = plain(details)
        if stored not in [event.details for event in log.events(DRIFT, since=alarm.time)]:
            log.event(DRIFT, stored, time=alarm.time)
        return stored


class _Labelled(NamedTuple):
    """Labels in the order in which they came; arrays of shape (n,)."""

    names: list[str]
    time: Floats
    score: Floats
    label: Floats
    version: NDArray[np.str_]


@contextmanager
def kept_watch(
    path: Path,
    *,
    model: str | None = None,
    checkpoint: str | None = None,
    within: str | None = None,
    batch: int | None = None,
) -> Iterator[LogWatch]:
    """Gives the watch that the file holds, or a new one where there is no file, and saves it where the block ends well.

    Raises `RecordError` where the file's watch has other settings than those given, None being none, and `StoreHeld`
    where another process has it: both would read what is new, and both would ring.
    """
    if not path.parent.is_dir():
        raise RecordError(f"{path} cannot be written; expected a file in a folder that exists")
    asked = {"model": model, "checkpoint": checkpoint, "within": within, "batch": batch}
    with OneWriter(path.parent, of=path.name):
        if path.exists():
            watch = LogWatch.load(path)
            for name, wanted in asked.items():
                had = watch.watch.batch if name == "batch" else getattr(watch, name)
                if wanted is not None and wanted != had:
                    raise RecordError(
                        f"{path} has watched with {name} {had!r}, and {wanted!r} was given: give another file"
                    )
        else:
            watch = LogWatch(DriftWatch(batch=batch or 1), model, checkpoint, within or "")
        yield watch
        watch.save(path)


def say_progress(kept: LogWatch) -> str:
    """Returns what is known where nothing rings: how much evidence there is, or how much is still learned from."""
    watch = kept.watch
    if not any(stream.rows or stream.waiting for stream in watch.streams.values()):
        of = "" if kept.model is None else f" of model {kept.model}"
        of += "" if kept.checkpoint is None else f" of checkpoint {kept.checkpoint[:12]}"
        return f"nothing is watched yet: the log holds no answers{of}"
    name, highest = max(watch.evidence.items(), key=lambda pair: pair[1])
    text = f"no alarm; most evidence {highest:.2g} of {_short(name)}, rings at {watch.threshold:g}"
    learning = [
        f"{_short(key)} {stream.rows}"
        for key, stream in watch.streams.items()
        if stream.name != LABEL_STREAM and 0 < stream.rows < watch.reference
    ]
    if learning:
        text += f"; the first {watch.reference} values are the reference, of which there are: {', '.join(learning)}"
    return text


def _short(key: str) -> str:
    name, _, version = key.partition("|")
    return f"{name} of checkpoint {version[:12]}" if version else name


def _column(answers: LogColumns, name: str) -> Any:
    values = getattr(answers, name)
    return values.astype(np.str_) if name in NAME_STREAMS else values


@dataclass(frozen=True, slots=True)
class Move:
    """Means of a stream before and after a change."""

    what: str
    """Name of the numbers: `mean score`, `share of 'stop'`, ..."""
    before: float
    """Mean until the change likely began; NaN where nothing came before it."""
    after: float
    """Mean from then to the alarm."""


def measure_move(alarm: Alarm, time: ArrayLike, values: ArrayLike) -> Move:
    """Returns the means on either side of where the change likely began, from the first value on that it is told of.

    `time`, `values` (n,): of the stream, at least those until the alarm; of labels give label less score. Of names the
    share of the one that was commonest before is taken.
    """
    times, given = np.asarray(time, dtype=np.float64), np.asarray(values)
    if alarm.stream in NAME_STREAMS:
        known = given != ""
        earlier = given[known & (times < alarm.began)]
        names, counts = np.unique((earlier if len(earlier) else given[known]).astype(np.str_), return_counts=True)
        commonest = str(names[counts.argmax()]) if len(names) else ""
        numbers, what = (given == commonest).astype(np.float64), f"share of {commonest!r}"
    else:
        numbers = given.astype(np.float64)
        what = "label less score" if alarm.stream == LABEL_STREAM else f"mean {alarm.stream}"
        known = np.isfinite(numbers)
    times, numbers = times[known], numbers[known]
    compared = times >= alarm.first if alarm.stream != LABEL_STREAM and np.isfinite(alarm.first) else np.isfinite(times)
    before, after = compared & (times < alarm.began), (times >= alarm.began) & (times <= alarm.time)
    means = [float(some.mean()) if len(some) else float("nan") for some in (numbers[before], numbers[after])]
    return Move(what, *means)


def say_alarm(alarm: Alarm, move: Move, path: str = "") -> str:
    """Returns the alarm in a sentence, with its numbers. `path`: the folder of its version, where that is known."""
    text = alarm.text
    if path:
        text = text.replace(alarm.checkpoint[:12], f"{alarm.checkpoint[:12]} ({path})", 1)
    before = f"{_text(move.before)} before, " if np.isfinite(move.before) else ""
    return f"{text}; {move.what} {before}{_text(move.after)} since"


def _text(value: float) -> str:
    style = next((style for below, style in NUMBER_FORMATS if abs(value) < below), ".0f")
    return format(value, style)


def post_pending(url: str, pending: list[dict[str, Any]]) -> str:
    """Posts alarms in their order and takes each out of the list that was taken; returns why one was not, or nothing.

    After the first failure the others wait too, so that all this takes `TRIES` times `TRY_TIMEOUT_S` at most beyond
    what is answered.
    """
    while pending:
        for tries in range(1, TRIES + 1):
            try:
                post_json(url, pending[0], {}, timeout_s=TRY_TIMEOUT_S)
                break
            except NotPosted as error:
                if tries == TRIES:
                    return str(error)
        pending.pop(0)
    return ""
