"""Figures of the early-token confidence paper on its debates, from recorded runs: scores and judges.

Sets of essays are never pooled, nor roles, models or judges. Every interval resamples essays, each with all its traits.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.ranked import quadratic_weighted_kappa
from metaprobe.eval.table import group_of
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Run

SYSTEM = "essay-debate"
ARGUMENT, SCORE, JUDGE = "argument", "score", "judge"
PROGRAM = "program"
DIMENSIONS = ("instruction", "justification", "evidence")
CRITICAL = "critical"

Floats = NDArray[np.float64]
Name = tuple[str, str]
"""Source and name of a label."""


@dataclass(frozen=True, slots=True)
class ScoreAgreement:
    """The Synthesizer-Judge's scores beside the human ones."""

    essay_set: str
    model: str
    variant: str
    kappa: Interval | None
    """Quadratic weighted; None where no score can be read. nan where both give one grade only."""
    exact: Interval | None
    """Share of equal scores."""
    missing: int
    """Scores that could not be read, or lie outside the trait's range: in neither number."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts of one meta-evaluator on one role's arguments."""

    essay_set: str
    role: str
    model: str
    """Model of the debater."""
    judge: str
    asked: int
    """Arguments it was asked about."""
    retried: int
    """Arguments whose first verdict was malformed."""
    missing: int
    """Arguments whose second verdict was malformed as well."""
    top: dict[str, Interval] = field(default_factory=dict)
    """Dimension -> share of the highest score, 3. Figure 3 of the paper."""
    passed: dict[str, Interval] = field(default_factory=dict)
    """Dimension -> share of 2 or 3. The paper speaks of pass rates and does not say what passes."""
    critical: Interval | None = None
    """Share flagged."""
    q: Interval | None = None
    """Mean aggregate, 0 to 9."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Findings of the program in one role's arguments."""

    essay_set: str
    role: str
    model: str
    rates: dict[str, Interval]
    """Label -> share of the arguments where it is above 0 (`check:evidence`: above 1)."""


@dataclass(frozen=True, slots=True)
class JudgeAgreement:
    """A meta-evaluator and the program on the same arguments."""

    essay_set: str
    role: str
    model: str
    judge: str
    flags: dict[tuple[bool, bool], int]
    """(flagged by the program, flagged by the model) -> arguments."""
    critical: Interval
    """Cohen's kappa of the flags; nan where neither judge varies."""
    evidence: Interval
    """Quadratic weighted kappa of the evidence scores; the program's counts verbatim quotations only."""


@dataclass(frozen=True, slots=True)
class DebatedArgument:
    """One debater's argument, and what is known of it."""

    essay_set: str
    role: str
    model: str
    group: str
    call: Call
    labels: dict[Name, float]
    judges: dict[str, int]
    """Judge, or digest of the checkpoint in its place -> times it was asked, 1 for a checkpoint."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.essay_set, self.role, self.model


def score_agreement(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[ScoreAgreement, ...]:
    """Final score against the human one, by set, model and variant; essays without one do not count."""
    cells: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in _debates(runs):
        if not run.item.gold:
            continue
        model = next((call.model for call in run.calls if call.stage == SCORE), "")
        cells[run.item.dimension, model, run.variant].append(run)
    rows = []
    for (essay_set, model, variant), members in sorted(cells.items()):
        read = [run for run in members if run.final_answer]
        kappa = exact = None
        if read:
            human = np.array([float(run.item.gold[0]) for run in read])
            given = np.array([float(run.final_answer) for run in read])
            weights = cluster_weights([group_of(run.item) for run in read], resamples, seed)
            kappa = interval(quadratic_weighted_kappa, human, given, weights)
            exact = mean_interval(human == given, weights)
        rows.append(ScoreAgreement(essay_set, model, variant, kappa, exact, len(members) - len(read)))
    return tuple(rows)


def verdicts(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[Verdicts, ...]:
    """Returns verdicts of the meta-evaluators and counts of missing ones, by set, role, debater and judge."""
    rows = []
    for key, members in debated_arguments(runs).items():
        for judge in sorted({judge for row in members for judge in row.judges}):
            asked = [row for row in members if judge in row.judges]
            judged = [row for row in asked if (judge, "q") in row.labels]
            retried = sum(row.judges[judge] > 1 for row in asked)
            counts = (len(asked), retried, len(asked) - len(judged))
            if not judged:
                rows.append(Verdicts(*key, judge, *counts))
                continue
            weights = _weights(judged, resamples, seed)
            scores = {name: label_values(judged, (judge, name)) for name in (*DIMENSIONS, CRITICAL, "q")}
            rows.append(
                Verdicts(
                    *key,
                    judge,
                    *counts,
                    top={name: mean_interval(np.rint(scores[name]) == 3, weights) for name in DIMENSIONS},
                    passed={name: mean_interval(np.rint(scores[name]) >= 2, weights) for name in DIMENSIONS},
                    critical=mean_interval(scores[CRITICAL], weights),
                    q=mean_interval(scores["q"], weights),
                )
            )
    return tuple(rows)


def checks(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[Checks, ...]:
    """How often the program found what, by set, role and debater."""
    rows = []
    for key, members in debated_arguments(runs).items():
        checked = [row for row in members if (PROGRAM, CRITICAL) in row.labels]
        if not checked:
            continue
        weights = _weights(checked, resamples, seed)
        names = sorted(name for source, name in checked[0].labels if source == PROGRAM)
        rates = {
            name: mean_interval(label_values(checked, (PROGRAM, name)) > (name == "check:evidence"), weights)
            for name in names
        }
        rows.append(Checks(*key, rates))
    return tuple(rows)


def judge_agreement(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[JudgeAgreement, ...]:
    """Each meta-evaluator beside the program, on the arguments that both have judged."""
    rows = []
    for key, members in debated_arguments(runs).items():
        for judge in sorted({judge for row in members for judge in row.judges}):
            both = [row for row in members if {(judge, CRITICAL), (PROGRAM, CRITICAL)} <= row.labels.keys()]
            if not both:
                continue
            weights = _weights(both, resamples, seed)
            program, model = (label_values(both, (source, CRITICAL)) for source in (PROGRAM, judge))
            cited, grounded = label_values(both, (PROGRAM, "check:evidence")), label_values(both, (judge, "evidence"))
            rows.append(
                JudgeAgreement(
                    *key,
                    judge,
                    flags={
                        (p, m): int(np.count_nonzero((program == p) & (model == m)))
                        for p in (False, True)
                        for m in (False, True)
                    },
                    critical=interval(quadratic_weighted_kappa, program, model, weights),  # of two grades: Cohen's
                    evidence=interval(quadratic_weighted_kappa, cited, grounded, weights),
                )
            )
    return tuple(rows)


def _debates(runs: Iterable[Run]) -> list[Run]:
    debates = sorted((run for run in runs if run.system == SYSTEM), key=lambda run: run.id)
    if not debates:
        raise RecordError(f"no run of the system {SYSTEM!r}: collect some, or give the folder that holds them")
    return debates


def debated_arguments(runs: Iterable[Run]) -> dict[tuple[str, str, str], list[DebatedArgument]]:
    """Returns (set, role, debater) -> arguments."""
    cells: dict[tuple[str, str, str], list[DebatedArgument]] = defaultdict(list)
    for run in _debates(runs):
        for call in run.calls:
            if call.stage != ARGUMENT:
                continue
            asked = [other for other in run.calls if other.stage == JUDGE and other.parent == call.id]
            judges: dict[str, int] = defaultdict(int)
            for other in asked:
                judges[f"{JUDGE}:{other.model}"] += 1
            labels = {(label.source, label.name): label.value for label in run.labels if label.call_id == call.id}
            for source, name in labels:  # a checkpoint in the judge's place is asked nothing: it says at once
                if name == "q" and source not in judges:
                    judges[source] = 1
            argument = DebatedArgument(
                run.item.dimension, call.agent, call.model, group_of(run.item), call, labels, dict(judges)
            )
            cells[argument.key].append(argument)
    return dict(sorted(cells.items()))


def label_values(rows: Sequence[DebatedArgument], name: Name) -> Floats:
    """Returns the value (n,) of one label of each argument."""
    return np.array([row.labels[name] for row in rows], dtype=np.float64)


def _weights(rows: Sequence[DebatedArgument], resamples: int, seed: int) -> NDArray[np.int32]:
    return cluster_weights([row.group for row in rows], resamples, seed)
