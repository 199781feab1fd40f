"""CAELF and its single-model baseline under the same contest: what a contest does to right grades and to wrong ones.

A system that never gives way keeps every right grade and corrects no wrong one, and one that always gives way does the
opposite, so the two shares are only worth something together. Runs without a contest are left out. A grade that could
not be read is a wrong one for accuracy, and where it is the second, it is neither kept nor corrected.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from metaprobe.eval.answer_table import group_of
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.ranked import quadratic_weighted_kappa
from metaprobe.papers.systems.caelf import CRITERIA, REVERSED_ORDER
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item, Run

Level = float | None
HIGHEST = 5
"""The best mark of a rating."""


@dataclass(frozen=True, slots=True)
class Framework:
    """Averages over runs of the solver's findings."""

    arguments: float
    attacks: float
    extensions: float


@dataclass(frozen=True, slots=True)
class Contested:
    """Effect of contests on the grades of one variant. A field is None where no run shows it."""

    variant: str
    n: int
    """Contested grades."""
    accuracy_before: Interval | None
    accuracy_after: Interval | None
    right_kept: Interval | None
    """Share of right first grades that are right after the contest."""
    wrong_corrected: Interval | None
    """Share of wrong first grades (those that can be read) that are right after the contest."""
    moved: Interval | None
    """Share of contests after which the grade is another one, where both can be read."""
    framework: tuple[Framework, Framework] | None
    """Before and after the contest; None for a variant without one."""
    contest_stands: Interval | None
    """Share of contests that are in at least one extension."""


@dataclass(frozen=True, slots=True)
class _Row:
    run: Run
    gold: Level
    before: Level
    after: Level
    answers: tuple[Call, Call]

    @property
    def right(self) -> tuple[bool, bool]:
        return self.before == self.gold, self.after == self.gold


@dataclass(frozen=True, slots=True)
class FeedbackRating:
    """How judges rated the feedback of one variant on one criterion, 1 to 5. People's ratings are another matter."""

    variant: str
    judge: str
    """The label's source, `judge:MODEL`."""
    criterion: str
    mean: Interval
    highest: Interval
    """Share of ratings of 5: near 1, the criterion distinguishes nothing."""
    n: int
    agreement: Interval | None
    """Quadratic weighted kappa with the same judge's rating in the reverse order; nan where neither varies."""
    pairs: int
    """Feedbacks that were rated in both orders."""


def feedback_ratings(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[FeedbackRating, ...]:
    """A row for each variant, judge and criterion of table 7; empty where no judge was asked. Clustered by group."""
    grades: dict[tuple[str, str, str], list[tuple[float, float | None, str]]] = {}
    for run in runs:
        labels = {(label.source, label.name, label.call_id): label.value for label in run.labels}
        for (source, name, call), value in labels.items():
            if name in CRITERIA and not source.endswith(REVERSED_ORDER):
                row = (value, labels.get((source + REVERSED_ORDER, name, call)), group_of(run.item))
                grades.setdefault((run.variant, source, name), []).append(row)
    rows = []
    for named, given in grades.items():
        weights = cluster_weights([group for *_, group in given], resamples, seed)
        both = [(first, again, group) for first, again, group in given if again is not None]
        agreement = None
        if both:
            paired = cluster_weights([group for *_, group in both], resamples, seed)
            first, again = [row[0] for row in both], [row[1] for row in both]
            agreement = interval(quadratic_weighted_kappa, first, again, paired)
        mean = mean_interval([value for value, *_ in given], weights)
        highest = mean_interval([float(value == HIGHEST) for value, *_ in given], weights)
        rows.append(FeedbackRating(*named, mean, highest, len(given), agreement, len(both)))
    return tuple(sorted(rows, key=lambda row: (row.variant, row.judge, CRITERIA.index(row.criterion))))


def summarise_contests(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[Contested, ...]:
    """A summary for each variant, in order of appearance. Give runs of one model; intervals are clustered by group.

    Raises `RecordError` where a variant graded an item twice.
    """
    return tuple(_summary(variant, rows, resamples, seed) for variant, rows in _rows(runs).items())


def _rows(runs: Iterable[Run]) -> dict[str, list[_Row]]:
    rows: dict[str, dict[str, _Row]] = {}
    for run in runs:
        answers = {call.round: call for call in run.calls if call.stage == "answer"}
        if answers.keys() != {0, 1} or not any(call.stage == "contest" for call in run.calls):
            continue
        of_variant = rows.setdefault(run.variant, {})
        if run.item.id in of_variant:
            raise RecordError(f"variant {run.variant!r} graded item {run.item.id!r} twice: give the runs of one model")
        both = answers[0], answers[1]
        of_variant[run.item.id] = _Row(run, _gold(run.item), *(_level(run, answer) for answer in both), answers=both)
    return {variant: list(of_variant.values()) for variant, of_variant in rows.items()}


def _summary(variant: str, rows: list[_Row], resamples: int, seed: int) -> Contested:
    def share(of: Sequence[_Row], values: Sequence[float]) -> Interval | None:
        pairs = [(value, group_of(row.run.item)) for value, row in zip(values, of, strict=True)]
        return Interval.of_mean(pairs, resamples=resamples, seed=seed)

    graded = [row for row in rows if row.gold is not None]
    right = [row for row in graded if row.right[0]]
    wrong = [row for row in graded if not row.right[0] and row.before is not None]
    readable = [row for row in rows if row.before is not None and row.after is not None]
    stands = [(row, row.run.label("contest_stands", row.answers[1].id)) for row in rows]
    solved = [(row, value) for row, value in stands if value is not None]
    return Contested(
        variant=variant,
        n=len(rows),
        accuracy_before=share(graded, [row.right[0] for row in graded]),
        accuracy_after=share(graded, [row.right[1] for row in graded]),
        right_kept=share(right, [row.right[1] for row in right]),
        wrong_corrected=share(wrong, [row.right[1] for row in wrong]),
        moved=share(readable, [row.before != row.after for row in readable]),
        framework=(_framework(solved, 0), _framework(solved, 1)) if solved else None,
        contest_stands=share([row for row, _ in solved], [value for _, value in solved]),
    )


def _framework(solved: Sequence[tuple[_Row, float]], number: int) -> Framework:
    """Means over runs of what was noted on the teacher's first (0) or second (1) answer."""

    def mean(name: str) -> float:
        values = [row.run.label(name, row.answers[number].id) for row, _ in solved]
        return fmean(value for value in values if value is not None)

    return Framework(arguments=mean("arguments"), attacks=mean("attacks"), extensions=mean("extensions"))


def _level(run: Run, call: Call) -> Level:
    """The stated level, back on the item's own scale (`low` to `high`, else 0 to 2)."""
    value = run.stated("level", call.id)
    low, high = (float(run.item.fields.get(name, default)) for name, default in (("low", "0"), ("high", "2")))
    return None if value is None else float(round(low + value * (high - low)))


def _gold(item: Item) -> Level:
    if not item.gold:
        return None
    try:
        return float(item.gold[0])
    except ValueError:
        raise RecordError(
            f"item {item.id!r} has the gold answer {item.gold[0]!r}: expected a level, a number"
        ) from None
