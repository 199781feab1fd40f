"""Drift in a score log: reads what is new, stores each alarm as an event, and remembers where it was."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metaprobe.eval.plain import plain
from metaprobe.monitoring.alarm_picture import draw_alarm, measure_move
from metaprobe.monitoring.drift import LABEL, NAMES, Alarm, DriftWatch
from metaprobe.monitoring.log import ScoreLog
from metaprobe.monitoring.log_columns import Floats, LogColumns
from metaprobe.records.errors import RecordError
from metaprobe.records.one_writer import OneWriter

DRIFT = "drift"
"""The kind of the events."""
HOUR = "hour"
"""In place of a tag: the hour of the day, in UTC."""
OF_CHECKPOINT = ("score", "in_support")
"""What another checkpoint says otherwise of the same answers: each is compared with its own only."""


@dataclass(slots=True)
class LogWatch:
    """A drift watch, and how far it has read the log."""

    watch: DriftWatch = field(default_factory=DriftWatch)
    model: str | None = None
    """Whose answers are watched; None for all."""
    within: str = ""
    """A tag, or `hour`: answers are compared with earlier ones of the same."""
    stored_until: int = 0
    """Number of the last answer that was read, in the order in which the log stored them."""
    read_until: float = -1.0
    """Of a state from before `stored_until`: time of the last answer that was read."""
    counted: set[str] = field(default_factory=set)
    """Marks of the answers whose label was read. No time says that: people date a label as they like."""
    labels_until: float = -1.0
    """Of a state from before `counted`: until when labels were read."""
    log: str = ""
    """Identity of the log that is watched; empty before the first reading."""

    @classmethod
    def load(cls, path: Path) -> "LogWatch":
        """Raises `RecordError` for a file that `save` has not written."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            watch = DriftWatch.from_json(stored.pop("watch"))
            counted = {str(mark) for mark in stored.pop("counted", ())}
            return cls(watch, **stored, counted=counted)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordError(f"{path} is no state of `metaprobe drift` ({error}); give another file") from error

    def save(self, path: Path) -> None:
        stored = {
            name: getattr(self, name)
            for name in ("model", "within", "stored_until", "read_until", "labels_until", "log")
        }
        stored["counted"] = sorted(self.counted)
        beside = path.with_name(path.name + ".new")
        beside.write_text(json.dumps({"watch": self.watch.to_json(), **stored}), encoding="utf-8")
        beside.replace(path)  # a killed process leaves the old one whole

    def read(self, log: ScoreLog, *, until: float | None = None) -> list[dict[str, Any]]:
        """Returns the alarms of what was stored since the last reading, each as the event that is now in the log.

        `until`: what was stored after the last answer that ended before then is left for the next time. Raises
        `RecordError` for another log than that of the readings before: its answers would be taken for read.
        """
        identity = log.identity()
        if self.log not in ("", identity):
            raise RecordError("the state is of another log than the one given; give this log a state file of its own")
        self.log = identity
        since = None if self.read_until < 0 else float(np.nextafter(self.read_until, np.inf))
        last = log.last_stored() if until is None else log.last_stored(until=until)
        found = log.columns(since=since, model=self.model, stored=(min(self.stored_until, last), last))
        strata = self._strata(found)
        own = {name: _column(found, name) for name in OF_CHECKPOINT}
        other = {name: _column(found, name) for name in ("tokens", "finish_reason", "task")}
        judged = np.char.add(np.char.add(found.checkpoint.astype(np.str_), "|"), strata)
        alarms = self.watch.update(found.time, own, within=judged)
        alarms += self.watch.update(found.time, other, within=strata)
        self.stored_until, self.read_until = last, -1.0
        alarms = sorted(alarms, key=lambda alarm: alarm.time) + self._labels(log)
        return [self._tell(log, alarm) for alarm in alarms]

    def _strata(self, found: LogColumns) -> Any:
        if self.within == HOUR:
            return (found.time // 3600 % 24).astype(np.int64).astype(np.str_)
        return (found.tag(self.within) if self.within else np.full(len(found), "")).astype(np.str_)

    def _labels(self, log: ScoreLog) -> list[Alarm]:
        """Of labels that came since the last reading, in the order of their own times."""
        names, times, score, label = self._labelled(log)
        marks = [_mark(name) for name in names]
        new = np.array([mark not in self.counted for mark in marks], dtype=np.bool_) & (times > self.labels_until)
        self.counted, self.labels_until = set(marks), -1.0
        return self.watch.update_labels(times[new], score[new], label[new])

    def _labelled(self, log: ScoreLog) -> tuple[list[str], Floats, Floats, Floats]:
        """Ids of labelled answers, times and values of their first labels, and the answers' scores, by these times.

        Bets look forward only: who has bet on an answer's label cannot bet on its correction, which is chosen by what
        the first one said. So a correction changes the estimates, and not this stream. Where some were drawn, labels
        that came unasked are left out, as in the estimates: who complains knows that the answer is wrong.
        """
        first = {one.request_id: (one.time, one.value) for one in log.first_labels()}
        found = log.columns(model=self.model, labelled=True, ids=True)
        drawn = np.isfinite(found.propensity)
        used = np.flatnonzero(drawn if drawn.any() else np.ones(len(found), dtype=np.bool_))
        names, scores = found.request_id[used], found.score[used]
        said = [first.get(str(name), (None, None)) for name in names.tolist()]
        times, label = np.array(said, dtype=np.float64).reshape(-1, 2).T  # None becomes NaN
        order = np.argsort(times, kind="stable")[: int(np.isfinite(times).sum())]
        return names[order].tolist(), times[order], scores[order], label[order]

    def _tell(self, log: ScoreLog, alarm: Alarm) -> dict[str, Any]:
        """Stores the alarm, with a picture of the stream up to it."""
        if alarm.stream == LABEL:
            _, times, score, label = self._labelled(log)
            values: Any = label - score
        else:
            found = log.columns(model=self.model, until=float(np.nextafter(alarm.time, np.inf)))
            times, values = found.time, _column(found, alarm.stream)
        details: Mapping[str, Any] = {
            **asdict(alarm),
            **asdict(measure_move(alarm, times, values)),
            "text": alarm.text,
            "model": self.model,
            "picture": draw_alarm(alarm, times, values),
        }
        stored: dict[str, Any] = plain(details)
        log.event(DRIFT, stored, time=alarm.time)
        return stored


@contextmanager
def kept_watch(
    path: Path, *, model: str | None = None, within: str | None = None, batch: int | None = None
) -> Iterator[LogWatch]:
    """Gives the watch of `open_watch`, and saves it where the block ends well.

    Raises `StoreHeld` where another process has it: both would read what is new, and both would ring.
    """
    if not path.parent.is_dir():
        raise RecordError(f"{path} cannot be written; expected a file in a folder that exists")
    with OneWriter(path.parent, of=path.name):
        watch = open_watch(path, model=model, within=within, batch=batch)
        yield watch
        watch.save(path)


def open_watch(
    path: Path, *, model: str | None = None, within: str | None = None, batch: int | None = None
) -> LogWatch:
    """Returns the watch that the file holds, or a new one of these settings where there is no file.

    Raises `RecordError` where the file's watch has other settings than those given, None being none.
    """
    if not path.exists():
        return LogWatch(DriftWatch(batch=batch or 1), model, within or "")
    found = LogWatch.load(path)
    asked, there = (model, within, batch), (found.model, found.within, found.watch.batch)
    for name, wanted, had in zip(("model", "within", "batch"), asked, there, strict=True):
        if wanted is not None and wanted != had:
            raise RecordError(f"{path} has watched with {name} {had!r}, and {wanted!r} was given: give another file")
    return found


def nothing_watched(found: LogWatch) -> bool:
    """Whether no answer was ever read that the watch is for."""
    return not any(stream.rows or stream.waiting for stream in found.watch.streams.values())


def _mark(request_id: str) -> str:
    """Stands for an id in the state, where the id itself has no business to be."""
    return hashlib.blake2b(request_id.encode(), digest_size=8).hexdigest()


def _column(found: LogColumns, name: str) -> Any:
    values = getattr(found, name)
    return values.astype(np.str_) if name in NAMES else values
