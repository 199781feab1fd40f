"""What was found about systems of several calls, as plain dataclasses."""

from dataclasses import dataclass
from typing import Literal

from metaprobe.eval.metrics.bootstrap import Interval


@dataclass(frozen=True, slots=True)
class StageAccuracy:
    """How often the answers of one stage are right."""

    system: str
    variant: str
    stage: str
    """`final` is what the run returned."""
    accuracy: Interval
    gain: Interval | None
    """Over the first stage in the same runs (a run's mean where it has several answers); None for the first itself."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What came of the runs in which the same critics flagged a concern. Table 9."""

    pattern: str
    """Of `PATTERNS`; `unreadable` where a critic's flag could not be read."""
    n: int
    accuracy: Interval | None
    """Of the returned answer; None where there is no run."""
    first_accuracy: Interval | None
    """Of A1's answer."""
    repaired: Interval | None
    """Share of A1's wrong answers that ended right; None where none was wrong."""
    broken: Interval | None
    """Share of A1's right answers that ended wrong; None where none was right."""


@dataclass(frozen=True, slots=True)
class Failures:
    """How wrong runs went wrong. Table 10."""

    counts: dict[str, int]
    """Of each of `FAILURES`."""
    evidence: float
    """Mean number of checked answers by the same models to the same item, over the runs taken for a collapse or a gap:
    the more there are, the more "never right" says. NaN where there is no such run."""

    @property
    def wrong(self) -> int:
        return sum(self.counts.values())

    def share(self, kind: str) -> float:
        """Of the wrong runs; NaN where none is wrong."""
        return self.counts[kind] / self.wrong if self.wrong else float("nan")


@dataclass(frozen=True, slots=True)
class StageSimilarity:
    """How near the texts of one stage are to what they are compared with. Figure 4."""

    stage: str
    similarity: Interval
    """Cosine, in [-1, 1]."""
    change: Interval | None
    """Against the stage before it in the same run (figure 4b); None for the first."""


@dataclass(frozen=True, slots=True)
class SimilarityFlow:
    """How near each stage's text is to what it is compared with, in one variant of a system."""

    system: str
    variant: str
    reference: str
    """`previous`, `final` or `gold`."""
    by: str
    """What compares: `TF-IDF` (shared words), or the name of an embedding."""
    stages: tuple[StageSimilarity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupling:
    """Does monitoring detect which answers are wrong, and does control fix them? Of one system and variant."""

    system: str
    variant: str
    monitor: str
    """What judges the first answer: `stated difficulty`, `monitor flags`, `control flags`, `either flags`, ..."""
    n: int
    """Runs with a checked first answer about which the monitor says something."""
    failure_auroc: Interval | None
    """AUROC of what it says for the first answer being wrong; None where all are right, or all wrong."""
    flagged_wrong: Interval | None
    """P(flagged | first answer wrong); None where nothing is flagged by this monitor, or none is wrong."""
    flagged_right: Interval | None
    """P(flagged | first answer right): false alarms."""
    fixed_flagged: Interval | None
    """P(ends right | first answer wrong and flagged)."""
    fixed_unflagged: Interval | None
    """P(ends right | first answer wrong and not flagged)."""
    fixed_difference: Interval | None
    """The first minus the second: above 0, control fixes what monitoring flags."""
    broken_flagged: Interval | None
    """P(ends wrong | first answer right and flagged)."""
    broken_unflagged: Interval | None
    """P(ends wrong | first answer right and not flagged)."""
    broken_difference: Interval | None
    """The first minus the second: above 0, a false alarm harms."""


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One way of routing, or one agent asked alone."""

    name: str
    kind: Literal["router", "agent", "control", "oracle"]
    cost: float
    """In `CostQuality.unit`."""
    accuracy: float
    interval: Interval | None = None
    """Of the accuracy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostQuality:
    """What accuracy costs, and the best that mixtures reach at each cost."""

    title: str
    unit: str
    """Of all costs, such as `US dollars for 1,000 questions`."""
    points: tuple[CostPoint, ...]
    hull: tuple[tuple[float, float], ...]
    """(cost, accuracy) of the corners, by cost; picked on the questions they are measured on."""
    n: int
    """Questions."""
