"""Scores with the labels that came back for them, from a score log."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.monitoring.entry import moment
from metaprobe.records.errors import RecordError

if TYPE_CHECKING:
    from metaprobe.monitoring.log import ScoreLog

Floats = NDArray[np.float64]
NAMES = ("score", "label", "propensity", "time", "model", "group")


@dataclass(frozen=True, slots=True, eq=False)
class LabelledScores:
    """Answers with a score and a label. Every field has an entry for each, in the order of their times."""

    score: Floats
    """In [0, 1], as the checkpoint gave it."""
    label: Floats
    """1 right, 0 wrong, or the share of several judges."""
    propensity: Floats
    """Probability with which the answer was drawn for a label; NaN where it was not drawn."""
    time: Floats
    """Seconds since 1970 when the answer ended; 0 where it is not known."""
    model: NDArray[np.str_]
    group: NDArray[np.str_]
    """Name of what belongs together, such as answers to one question; in a log each answer is a group."""

    def __len__(self) -> int:
        return len(self.score)

    @property
    def y(self) -> NDArray[np.int64]:
        """Right or wrong, 1 or 0: what most judges said, and right where they were divided."""
        return (self.label >= 0.5).astype(np.int64)

    def rows(self, chosen: NDArray[Any]) -> "LabelledScores":
        """The chosen answers, by index or by mask."""
        return LabelledScores(**{name: getattr(self, name)[chosen] for name in NAMES})


def labelled_of_log(
    log: "ScoreLog",
    *,
    checkpoint: str,
    model: str | None = None,
    since: float | None = None,
    until: float | None = None,
) -> LabelledScores:
    """Returns the answers of a log that the checkpoint of this digest scored, and that have a label.

    Raises `RecordError` where there are none, and says whose labels there are.
    """
    columns = log.columns(since=since, until=until, model=model, labelled=True, ids=True)
    labelled = np.isfinite(columns.score) & np.isfinite(columns.label)
    mine = labelled & (columns.checkpoint == checkpoint)
    if not mine.any():
        if (since, until, model) != (None, None, None):
            of = "" if model is None else f" of model {model!r} and"
            among = labelled_of_log(log, checkpoint=checkpoint)  # raises where there are none at all
            raise RecordError(
                f"none of the {len(among)} labelled answers that checkpoint {checkpoint[:16]} scored is{of} of the "
                f"time asked for: they are of {', '.join(np.unique(among.model)[:5])}, from {moment(among.time.min())} "
                f"to {moment(among.time.max())} by the answers' own times, whenever they were labelled"
            )
        others = sorted({str(name)[:16] for name in columns.checkpoint[labelled]})
        raise RecordError(
            f"the log holds no labelled answer that checkpoint {checkpoint[:16]} scored; labelled are "
            f"{int(labelled.sum())} answers{' of checkpoints ' + ', '.join(others) if others else ''}: give the "
            "checkpoint that is in service, or label answers first (`metaprobe sample`, `metaprobe feedback`)"
        )
    return LabelledScores(
        score=columns.score[mine],
        label=columns.label[mine],
        propensity=columns.propensity[mine],
        time=columns.time[mine],
        model=columns.model[mine].astype(np.str_),
        group=columns.request_id[mine].astype(np.str_),
    )


def thin(propensity: ArrayLike, *, seed: int = 0) -> NDArray[np.bool_]:
    """Returns which of the labelled answers (n,) to keep so that all answers had the same chance to be among them.

    An answer that was drawn with probability p is kept with probability smallest p / p. What promises something of
    answers that are as good as new ones, as thresholds do, can then be used as it is, with fewer labels. Where some
    have a propensity, those without one are left out; where none has, all are kept.
    """
    drawn = np.asarray(propensity, dtype=np.float64)
    known = np.isfinite(drawn)
    if not known.any():
        return np.ones(len(drawn), dtype=np.bool_)
    lots = np.random.default_rng(seed).random(len(drawn))
    kept: NDArray[np.bool_] = known & (lots * np.where(known, drawn, 1.0) < drawn[known].min())
    return kept
