"""Does monitoring detect which answers are wrong, and does control fix what it flags? From recorded runs of any system.

A run counts by its first answer, by what monitoring says of that one, and by the answer it ends with. The runs should
not be censored: where control acts on what is flagged only, nothing is known of what it would have done to the rest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, statistic_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.ranked import Floats, ratio
from metaprobe.eval.system_results import Coupling
from metaprobe.eval.systems.mgv import attempts
from metaprobe.eval.table import group_of
from metaprobe.records.types import Run

ENOUGH = 0.85
"""Mean evaluation at which Monitor-Generate-Verify stops, and below which it flags an answer."""
FEW = 10
"""Groups below which no interval is given (its bounds are nan): resampling a handful shows less than is not known."""
CYCLED = ("verify", "feedback")
"""Stages that evaluate one answer before the next is made."""


@dataclass(frozen=True, slots=True)
class Monitor:
    """One way in which the first answer of a run is judged."""

    name: str
    says: Callable[[Run], float | None]
    """Higher for likelier wrong; None where it says nothing."""
    flags: bool
    """Whether it flags an answer by saying something above 0."""
    ends: Callable[[Run], float | None]
    """Whether the run ended with a right answer."""


def coupling(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[Coupling, ...]:
    """Of each system and variant, every monitor that says something of some first answer that a program checked."""
    by_variant: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.outcome is not None and _first_right(run) is not None:
            by_variant.setdefault((run.system, run.variant), []).append(run)
    rows = [
        _coupling(key, monitor, members, resamples, seed)
        for key, members in sorted(by_variant.items())
        for monitor in MONITORS
    ]
    return tuple(row for row in rows if row is not None)


def _coupling(
    key: tuple[str, str], monitor: Monitor, members: Sequence[Run], resamples: int, seed: int
) -> Coupling | None:
    judged = [(run, said) for run in members if (said := monitor.says(run)) is not None]
    if not judged:
        return None
    weights = cluster_weights([group_of(run.item) for run, _ in judged], resamples, seed)
    wrong = np.array([_first_right(run) == 0 for run, _ in judged])
    says = np.array([said for _, said in judged])
    flagged = says > 0
    ends = np.array([monitor.ends(run) for run, _ in judged], dtype=np.float64)
    fixed = _compare(ends, wrong, flagged, weights) if monitor.flags else NOTHING
    broken = _compare(1 - ends, ~wrong, flagged, weights) if monitor.flags else NOTHING
    return Coupling(
        system=key[0],
        variant=key[1],
        monitor=monitor.name,
        n=len(judged),
        failure_auroc=interval(auroc, wrong, says, weights) if 0 < wrong.sum() < len(wrong) else None,
        flagged_wrong=_mean_of(flagged, wrong, weights) if monitor.flags else None,
        flagged_right=_mean_of(flagged, ~wrong, weights) if monitor.flags else None,
        fixed_flagged=fixed[0],
        fixed_unflagged=fixed[1],
        fixed_difference=fixed[2],
        broken_flagged=broken[0],
        broken_unflagged=broken[1],
        broken_difference=broken[2],
    )


Rows = NDArray[np.bool_]
Compared = tuple[Interval | None, Interval | None, Interval | None]
NOTHING: Compared = (None, None, None)


def _compare(values: Floats, among: Rows, flagged: Rows, weights: NDArray[np.int32]) -> Compared:
    """Of the rows `among`: the mean of the flagged, that of the others, and their difference on the same resamples."""
    means = [_mean_of(values, among & side, weights) for side in (flagged, ~flagged)]
    if None in means:
        return means[0], means[1], None
    y, side = values[among], flagged[among]

    def difference(weight: NDArray[np.integer]) -> Floats:
        return _mean(y, weight * side) - _mean(y, weight * ~side)

    found = statistic_interval(difference, weights[:, among])
    return means[0], means[1], found if min(mean.groups for mean in means if mean) >= FEW else _unbounded(found)


def _mean_of(values: Floats | Rows, among: Rows, weights: NDArray[np.int32]) -> Interval | None:
    """Over the rows `among`; None where there is none. Resamples without any are left out."""
    if not among.any():
        return None
    y = np.asarray(values[among], dtype=np.float64)
    found = statistic_interval(lambda weight: _mean(y, weight), weights[:, among])
    return found if found.groups >= FEW else _unbounded(found)


def _unbounded(found: Interval) -> Interval:
    """The estimate alone: three of three would else be 1 [1, 1]."""
    return replace(found, low=float("nan"), high=float("nan"))


def _mean(values: Floats, weight: NDArray[np.integer]) -> Floats:
    return ratio(weight @ values, weight.sum(axis=1).astype(np.float64))


def _first_right(run: Run) -> float | None:
    """Whether the first checked answer is right."""
    return next((value for call in run.calls if (value := run.label("correct", call.id)) is not None), None)


def _stated_difficulty(run: Run) -> float | None:
    """Stated of the first answer, and not of a later one."""
    return next((s.value for s in run.statements if s.kind == "difficulty"), None)


def _flag(stage: str) -> Callable[[Run], float | None]:
    """What the critic of that stage flagged."""

    def says(run: Run) -> float | None:
        asked = next((call.id for call in run.calls if call.stage == stage), None)
        return None if asked is None else run.stated("flags", asked)

    return says


def _either(run: Run) -> float | None:
    both = [_flag(stage)(run) for stage in ("monitor", "control")]
    return None if None in both else max(flag for flag in both if flag is not None)


def _evaluated(run: Run) -> float | None:
    """By how much the first answer's evaluation falls short of being enough."""
    if not any(call.stage in CYCLED for call in run.calls):
        return None
    quality = attempts(run)[0].quality
    return None if quality is None else ENOUGH - quality


def _last_attempt(run: Run) -> float | None:
    """Whether the last cycle's answer is right, whichever is returned."""
    return attempts(run)[-1].correct


def _outcome(run: Run) -> float | None:
    return run.outcome


MONITORS = (
    Monitor("stated difficulty", _stated_difficulty, flags=False, ends=_outcome),
    Monitor("monitor flags", _flag("monitor"), flags=True, ends=_outcome),
    Monitor("control flags", _flag("control"), flags=True, ends=_outcome),
    Monitor("either flags", _either, flags=True, ends=_outcome),
    Monitor(f"evaluation below {ENOUGH}", _evaluated, flags=True, ends=_last_attempt),
)
