"""Drift in a score log: reads new answers, stores each alarm as an event, and remembers how far it has read.

Answers are read by their numbers, so that none is missed or read twice: late storage, wrong clocks and deletions do not
matter.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.api import OneWriter, RecordError, plain
from metaprobe.production.monitoring.drift import (
    AGREEMENT_STREAM,
    LABEL_STREAM,
    NAME_STREAMS,
    STREAMS_BY_VERSION,
    USUAL_STREAMS,
    Alarm,
    DriftWatch,
)
from metaprobe.production.monitoring.log import LoggedAgreement, ScoreLog, version_names
from metaprobe.production.monitoring.posting import NotPosted, post_json
from metaprobe.production.monitoring.rows import Floats, LogColumns
from metaprobe.production.monitoring.tables import sa, scores

DRIFT_EVENT = "drift"
"""Kind of the events."""
HOUR_STRATUM = "hour"
"""Replaces a tag, and stands for the hour of the day in UTC."""
ANSWER_STREAMS = ("score", "tokens", "finish_reason", "task")
"""Columns that are read of every answer."""
_STATE_FIELDS = ("model", "checkpoint", "within", "read_to", "agreements_read_to", "log")
SHOWN_AGREEMENTS = 100
"""Latest second answers whose mean agreement is shown beside that of all earlier ones."""

NUMBER_FORMATS = ((1, ".3f"), (100, ".1f"))
"""(upper limit, format) of numbers that are written with decimals; larger ones have none."""

TRY_TIMEOUT_S = 10.0
"""Seconds that one attempt may take in all."""
MAX_TRIES = 2


@dataclass(slots=True)
class LogWatch:
    """A drift watch, and how far it has read the log."""

    watch: DriftWatch = field(default_factory=DriftWatch)
    model: str | None = None
    """Model whose answers are watched; None for all."""
    checkpoint: str | None = None
    """Digest of the version whose answers are watched; None for all versions, each separately."""
    within: str = ""
    """A tag, or `hour`: answers are compared with earlier ones that have the same value."""
    read_to: int = 0
    """Number up to which all answers were read (`Tables.settled`); 0 before the first reading."""
    agreements_read_to: int = 0
    """Number up to which all agreements of second answers were read."""
    counted: set[str] = field(default_factory=set)
    """Marks of answers whose label was read. Times cannot replace them, because users choose a label's time."""
    log: str = ""
    """Identity of the watched log; empty before the first reading."""
    pending: list[dict[str, Any]] = field(default_factory=list)
    """Alarms that no webhook has accepted yet."""
    waiting: int = 0
    """Number of answers not read yet, because an older transaction of the database is still open."""
    second_agreements: list[LoggedAgreement] = field(default_factory=list)
    """Agreements of all second answers of this model and version, as `read` found them; not kept in the file."""

    @classmethod
    def load(cls, path: Path) -> "LogWatch":
        """Loads the state from a file. Raises `RecordError` for a file that `save` has not written."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            watch = DriftWatch.from_json(stored.pop("watch"))
            counted = {str(mark) for mark in stored.pop("counted")}
            return cls(watch, **stored, counted=counted)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RecordError(f"{path} is no state of `metaprobe drift` ({error}); give another file") from error

    def save(self, path: Path) -> None:
        stored = {name: getattr(self, name) for name in _STATE_FIELDS}
        stored |= {"counted": sorted(self.counted), "pending": self.pending}
        new_path = path.with_name(path.name + ".new")
        new_path.write_text(json.dumps({"watch": self.watch.to_json(), **stored}), encoding="utf-8")
        new_path.replace(path)  # a killed process leaves the old one whole

    def read(self, log: ScoreLog) -> list[dict[str, Any]]:
        """Returns the alarms of answers stored since the last reading, each as its event in the log.

        Raises `RecordError` for another log than before, and for one that was restored to an earlier state, because its
        new answers would be taken for read.
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
        if self.within == HOUR_STRATUM:
            strata: Any = (answers.time // 3600 % 24).astype(np.int64)
        else:
            strata = answers.tag(self.within) if self.within else None
        alarms = self.watch.update(answers.time, columns, within=strata, version=versions)
        self.read_to = last
        later_count = sa.select(sa.func.count()).select_from(scores).where(log.tables.number > last)
        self.waiting = 0 if log.tables.alone else int(log.tables.read(later_count)[0][0])
        # Labels since the last reading, in the order in which they came. The state keeps hashes of the answers' ids,
        # not the ids themselves.
        labelled = self._read_labels(log)
        marks = [hashlib.blake2b(name.encode(), digest_size=8).hexdigest() for name in labelled.names]
        is_new = np.array([mark not in self.counted for mark in marks], dtype=np.bool_)
        self.counted = set(marks)
        label_columns = (labelled.time[is_new], labelled.score[is_new], labelled.label[is_new])
        alarms = sorted(alarms + self._read_agreements(log), key=lambda alarm: alarm.time)
        alarms += self.watch.update_labels(*label_columns, version=labelled.version[is_new])
        names = version_names(log) if alarms else {}
        return [self._store_alarm(log, alarm, names) for alarm in alarms]

    def _read_agreements(self, log: ScoreLog) -> list[Alarm]:
        """Returns the alarms of second answers since the last reading. They come later than the answers themselves."""
        first = self.agreements_read_to
        self.second_agreements, self.agreements_read_to = log.agreements(model=self.model, checkpoint=self.checkpoint)
        new_agreements = [agreement for agreement in self.second_agreements if agreement.number > first]
        times = np.array([agreement.time for agreement in new_agreements])
        if self.within == HOUR_STRATUM:
            strata: Any = (times // 3600 % 24).astype(np.int64)
        else:
            strata = np.array([agreement.tags.get(self.within, "") for agreement in new_agreements], dtype=np.str_)
        same_values = np.array([agreement.same for agreement in new_agreements], dtype=np.float64)
        return self.watch.update(times, {AGREEMENT_STREAM: same_values}, within=strata)

    def _read_labels(self, log: ScoreLog) -> "_LabelColumns":
        """Returns the first label of each answer, in order of arrival, with the answers' scores and versions.

        A bet on an answer's label cannot be repeated on its correction, because the correction depends on the first
        label. So a correction changes the estimates, but not this stream. If some answers were drawn, unrequested
        labels are left out, as in the estimates: a user who complains knows that the answer is wrong.
        """
        first_label_of = {
            first_label.request_id: (arrival, first_label.time, first_label.value)
            for arrival, first_label in enumerate(log.first_labels())
        }
        answers = log.columns(model=self.model, checkpoint=self.checkpoint, labelled=True, ids=True)
        is_drawn = np.isfinite(answers.propensity)
        rows_used = np.flatnonzero(is_drawn if is_drawn.any() else np.ones(len(answers), dtype=np.bool_))
        rows_used = np.array(
            [row for row in rows_used if str(answers.request_id[row]) in first_label_of], dtype=np.int64
        )
        labelled = [first_label_of[str(name)] for name in answers.request_id[rows_used]]
        arrival, time, label = np.array(labelled, dtype=np.float64).reshape(-1, 3).T
        order = np.argsort(arrival)
        rows = rows_used[order]
        version = answers.checkpoint[rows].astype(np.str_)
        return _LabelColumns(answers.request_id[rows].tolist(), time[order], answers.score[rows], label[order], version)

    def _store_alarm(self, log: ScoreLog, alarm: Alarm, names: Mapping[str, str]) -> dict[str, Any]:
        """Stores the alarm with the means before and after it, unless a killed process has already stored it.

        Args:
            log: the log.
            alarm: the alarm.
            names: folder of each version, by its digest.
        """
        if alarm.stream == LABEL_STREAM:
            labelled = self._read_labels(log)
            is_of_version = labelled.version == alarm.checkpoint
            times, values = labelled.time[is_of_version], (labelled.label - labelled.score)[is_of_version]
        elif alarm.stream == AGREEMENT_STREAM:
            times = np.array([agreement.time for agreement in self.second_agreements])
            values = np.array([agreement.same for agreement in self.second_agreements], dtype=np.float64)
        else:
            digest = alarm.checkpoint if alarm.stream in STREAMS_BY_VERSION else self.checkpoint
            answers = log.columns(model=self.model, checkpoint=digest, until=float(np.nextafter(alarm.time, np.inf)))
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
        if stored not in [event.details for event in log.events(DRIFT_EVENT, since=alarm.time)]:
            log.event(DRIFT_EVENT, stored, time=alarm.time)
        return stored


class _LabelColumns(NamedTuple):
    """Labels in order of arrival; arrays of shape (n,)."""

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
    streams: Sequence[str] = USUAL_STREAMS,
) -> Iterator[LogWatch]:
    """Yields the watch that the file holds, or a new one if there is no file, and saves it if the block ends without an
    error.

    Raises `RecordError` if the file's watch has other settings than the given ones. Raises `StoreHeld` if another
    process uses it: both would read the same answers, and both would raise alarms.

    Args:
        path: the file.
        model: model whose answers are watched; None for the file's.
        checkpoint: digest of the version that is watched; None for the file's.
        within: tag of the strata; None for the file's.
        batch: values that are averaged into one; None for the file's.
        streams: streams of a new watch; a file's watch keeps its own.
    """
    if not path.parent.is_dir():
        raise RecordError(f"{path} cannot be written; expected a file in a folder that exists")
    settings = {"model": model, "checkpoint": checkpoint, "within": within, "batch": batch}
    with OneWriter(path.parent, of=path.name):
        if path.exists():
            watch = LogWatch.load(path)
            for name, expected in settings.items():
                stored_value = watch.watch.batch if name == "batch" else getattr(watch, name)
                if expected is not None and expected != stored_value:
                    raise RecordError(
                        f"{path} has watched with {name} {stored_value!r}, and {expected!r} was given: give another"
                        " file"
                    )
        else:
            watch = LogWatch(DriftWatch(streams, batch=batch or 1), model, checkpoint, within or "")
        yield watch
        watch.save(path)


def say_progress(log_watch: LogWatch) -> str:
    """Returns the state if there is no alarm: how much evidence there is, or how much is still learned from."""
    watch = log_watch.watch
    if not any(watched.rows or watched.waiting for watched in watch.watched_values.values()):
        scope = "" if log_watch.model is None else f" of model {log_watch.model}"
        scope += "" if log_watch.checkpoint is None else f" of checkpoint {log_watch.checkpoint[:12]}"
        return f"nothing is watched yet: the log holds no answers{scope}"
    name, highest = max(watch.evidence.items(), key=lambda pair: pair[1])
    text = f"no alarm; most evidence: {highest:.2g}, for {_short(name)}; an alarm takes {watch.threshold:g}"
    learning = [
        f"{_short(key)} {watched.rows}"
        for key, watched in watch.watched_values.items()
        if watched.name != LABEL_STREAM and 0 < watched.rows < watch.reference
    ]
    if learning:
        text += f"; the first {watch.reference} values are the reference, of which there are: {', '.join(learning)}"
    return text


def say_agreement(log_watch: LogWatch) -> str:
    """Returns the mean agreement of the latest second answers and of the earlier ones, and whether it is watched.

    The watch must have read its log. Only answers of its model and version count. Empty if none of them was asked for
    again.
    """
    agreed = [agreement.same for agreement in log_watch.second_agreements]
    if not agreed:
        return ""
    latest, earlier = agreed[-SHOWN_AGREEMENTS:], agreed[:-SHOWN_AGREEMENTS]
    text = f"agreement {np.mean(latest):.2f} of the latest {len(latest)} second answers"
    if earlier:
        text += f", {np.mean(earlier):.2f} of the {len(earlier)} before"
    if AGREEMENT_STREAM not in log_watch.watch.names:
        text += "; it is not watched, because the state began before there were any: begin a new state file to watch it"
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
    """Mean before the change probably began; NaN if there were no values."""
    after: float
    """Mean from then to the alarm."""


def measure_move(alarm: Alarm, time: ArrayLike, values: ArrayLike) -> Move:
    """Returns the means before and after the probable start of the change, from the alarm's first value on.

    For names the numbers are the share of the name that was most frequent before.

    Args:
        alarm: the alarm.
        time: times (n,) of the stream's values, at least until the alarm.
        values: values (n,); for labels, label minus score.
    """
    times, raw_values = np.asarray(time, dtype=np.float64), np.asarray(values)
    if alarm.stream in NAME_STREAMS:
        is_valid = raw_values != ""
        earlier = raw_values[is_valid & (times < alarm.began)]
        names, counts = np.unique(
            (earlier if len(earlier) else raw_values[is_valid]).astype(np.str_), return_counts=True
        )
        commonest = str(names[counts.argmax()]) if len(names) else ""
        numbers, quantity = (raw_values == commonest).astype(np.float64), f"share of {commonest!r}"
    else:
        numbers = raw_values.astype(np.float64)
        quantity = "label less score" if alarm.stream == LABEL_STREAM else f"mean {alarm.stream}"
        is_valid = np.isfinite(numbers)
    times, numbers = times[is_valid], numbers[is_valid]
    is_compared = (
        times >= alarm.first if alarm.stream != LABEL_STREAM and np.isfinite(alarm.first) else np.isfinite(times)
    )
    before, after = is_compared & (times < alarm.began), (times >= alarm.began) & (times <= alarm.time)
    means = [float(part.mean()) if len(part) else float("nan") for part in (numbers[before], numbers[after])]
    return Move(quantity, *means)


def say_alarm(alarm: Alarm, move: Move, path: str = "") -> str:
    """Returns the alarm as a sentence with its numbers.

    Args:
        alarm: the alarm.
        move: means before and after.
        path: folder of the alarm's version, if it is known.
    """
    text = alarm.text
    if path:
        text = text.replace(alarm.checkpoint[:12], f"{alarm.checkpoint[:12]} ({path})", 1)
    before = f"{_format_number(move.before)} before, " if np.isfinite(move.before) else ""
    return f"{text}; {move.what} {before}{_format_number(move.after)} since"


def _format_number(value: float) -> str:
    style = next((style for below, style in NUMBER_FORMATS if abs(value) < below), ".0f")
    return format(value, style)


def post_pending(url: str, pending: list[dict[str, Any]]) -> str:
    """Posts alarms in order, and removes each accepted one from the list. Returns why one was refused, or an empty
    text.

    After the first failure the others wait too, so that failures take at most `MAX_TRIES` times `TRY_TIMEOUT_S`.
    """
    while pending:
        for try_number in range(1, MAX_TRIES + 1):
            try:
                post_json(url, pending[0], {}, timeout_s=TRY_TIMEOUT_S)
                break
            except NotPosted as error:
                if try_number == MAX_TRIES:
                    return str(error)
        pending.pop(0)
    return ""
