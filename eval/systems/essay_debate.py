"""What the early-token confidence paper reports of its debates, from recorded runs: scores, judges, and what predicts
the judges.

Sets of essays are never pooled, nor roles, models or judges. Every interval resamples essays, each with all its traits.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.agreement import quadratic_weighted_kappa
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.table import group_of
from metaprobe.probes.features import features, schema
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.records.types import Call, Run

SYSTEM = "essay-debate"
ARGUMENT, SCORE, JUDGE = "argument", "score", "judge"
PROGRAM = "program"
DIMENSIONS = ("instruction", "justification", "evidence")
CRITICAL = "critical"
ORDINAL = ("q", *DIMENSIONS, "check:evidence")

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
    """What one meta-evaluator said of one role's arguments."""

    essay_set: str
    role: str
    model: str
    """Of the debater."""
    judge: str
    asked: int
    """Arguments it was asked about."""
    retried: int
    """Of these, where the first output was malformed."""
    missing: int
    """Of these, where the second was as well."""
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
    """What the program found in one role's arguments."""

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
class FeatureScore:
    """How well one feature of the token log-probabilities goes with a target."""

    feature: str
    n: int
    """Arguments long enough to have it."""
    score: Interval
    """Spearman's rho; for `critical` the AUROC of the feature as it stands, below 0.5 where low values go with flags.

    Of the best among many features this is too good; see `Association.held_out`.
    """
    second: float
    """Kendall's tau-b; for `critical` the point-biserial correlation."""


@dataclass(frozen=True, slots=True)
class Association:
    """The features that go best with one target. Tables 1, 3 and 4."""

    essay_set: str
    role: str
    model: str
    judge: str
    """Source of the target."""
    target: str
    n: int
    best: tuple[FeatureScore, ...]
    """The strongest first, either sign; empty where the target does not vary."""
    held_out: float
    """Of the best feature where it was not chosen: chosen on one half of the essays, measured on the other; the mean of
    both ways. An AUROC for `critical`, else rho, turned so that the direction seen when choosing is positive. nan where
    a half does not vary."""


@dataclass(frozen=True, slots=True)
class _Argument:
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
    """What the meta-evaluators said, by set, role, debater and judge, with what they failed to say."""
    rows = []
    for key, members in _cells(runs).items():
        for judge in sorted({judge for row in members for judge in row.judges}):
            asked = [row for row in members if judge in row.judges]
            judged = [row for row in asked if (judge, "q") in row.labels]
            retried = sum(row.judges[judge] > 1 for row in asked)
            counts = (len(asked), retried, len(asked) - len(judged))
            if not judged:
                rows.append(Verdicts(*key, judge, *counts))
                continue
            weights = _weights(judged, resamples, seed)
            scores = {name: _values(judged, (judge, name)) for name in (*DIMENSIONS, CRITICAL, "q")}
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
    for key, members in _cells(runs).items():
        checked = [row for row in members if (PROGRAM, CRITICAL) in row.labels]
        if not checked:
            continue
        weights = _weights(checked, resamples, seed)
        names = sorted(name for source, name in checked[0].labels if source == PROGRAM)
        rates = {
            name: mean_interval(_values(checked, (PROGRAM, name)) > (name == "check:evidence"), weights)
            for name in names
        }
        rows.append(Checks(*key, rates))
    return tuple(rows)


def judge_agreement(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[JudgeAgreement, ...]:
    """Each meta-evaluator beside the program, on the arguments that both have judged."""
    rows = []
    for key, members in _cells(runs).items():
        for judge in sorted({judge for row in members for judge in row.judges}):
            both = [row for row in members if {(judge, CRITICAL), (PROGRAM, CRITICAL)} <= row.labels.keys()]
            if not both:
                continue
            weights = _weights(both, resamples, seed)
            program, model = (_values(both, (source, CRITICAL)) for source in (PROGRAM, judge))
            cited, grounded = _values(both, (PROGRAM, "check:evidence")), _values(both, (judge, "evidence"))
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


def feature_associations(
    runs: Iterable[Run], *, top: int = 3, min_share: float = 0.5, resamples: int = 200, seed: int = 0
) -> tuple[Association, ...]:
    """The `top` features for every target of every judge, by set, role and debater.

    Features are those of the schema `full`; one that fewer than `min_share` of the arguments are long enough for is not
    ranked. They are ranked by |rho| or |AUROC - 0.5|; the paper does not say whether signs count. Needs scipy.
    """
    names = schema("full").names
    rows = []
    for key, members in _cells(runs).items():
        given = [row for row in members if row.call.logprobs is not None and len(row.call.logprobs)]
        # What a checkpoint said follows from these very features.
        judged = {name for row in given for name in row.labels if name[0].partition(":")[0] in (JUDGE, PROGRAM)}
        targets = sorted(name for name in judged if name[1] in (*ORDINAL, CRITICAL))
        if not targets:
            continue
        X = features(schema("full"), [np.asarray(row.call.logprobs) for row in given]).astype(np.float64)
        groups = np.array([row.group for row in given])
        for judge, target in targets:
            known = np.array([(judge, target) in row.labels for row in given])
            y = _values([row for row, has in zip(given, known, strict=True) if has], (judge, target))
            data = _Data(X[known], y, groups[known], binary=target == CRITICAL)
            best = [
                _feature_score(data, column, names[column], resamples, seed) for column in data.ranking(min_share)[:top]
            ]
            rows.append(Association(*key, judge, target, len(y), tuple(best), data.held_out(min_share, seed)))
    return tuple(rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Data:
    X: Floats
    """(n, features), NaN where an argument has none."""
    y: Floats
    groups: NDArray[np.str_]
    binary: bool

    def scores(self) -> Floats:
        """(features,): rho, or AUROC - 0.5; nan where feature or target does not vary."""
        there = np.isfinite(self.X)
        found = np.full(self.X.shape[1], np.nan)
        whole = there.all(axis=0)
        found[whole] = self._scores(self.X[:, whole], self.y)
        for column in np.flatnonzero(~whole & there.any(axis=0)):
            found[column] = self.score(int(column))
        return found

    def score(self, column: int, rows: NDArray[np.intp] | None = None) -> float:
        x, y = (self.X[:, column], self.y) if rows is None else (self.X[rows, column], self.y[rows])
        there = np.isfinite(x)
        return float(self._scores(x[there, None], y[there])[0])

    def _scores(self, X: Floats, y: Floats) -> Floats:
        """Of columns without NaN, from one ranking of each: rho is the correlation of ranks, AUROC their rank sum."""
        n = len(y)
        if n < 3 or np.ptp(y) == 0:
            return np.full(X.shape[1], np.nan)
        rank = require("scipy.stats", "fit").rankdata
        ranks = rank(X, axis=0) - (n + 1) / 2  # centred; ties share their mean rank
        varies = np.ptp(X, axis=0) > 0
        if self.binary:
            shift = y @ ranks / (y.sum() * (n - y.sum()))
        else:
            own = rank(y) - (n + 1) / 2
            spread = np.sqrt((ranks**2).sum(axis=0) * (own**2).sum())
            shift = own @ ranks / np.where(varies, spread, 1)
        return np.where(varies, shift, np.nan)

    def ranking(self, min_share: float) -> list[int]:
        """Columns from the strongest; those that cannot be ranked are left out."""
        if not len(self.y):
            return []
        strength = np.abs(self.scores())
        strength[np.isfinite(self.X).mean(axis=0) < min_share] = np.nan
        order = np.argsort(-strength, kind="stable")  # NaN comes last
        return [int(column) for column in order if np.isfinite(strength[column])]

    def held_out(self, min_share: float, seed: int) -> float:
        distinct = np.unique(self.groups)
        half = np.random.default_rng(seed).permutation(distinct)[: len(distinct) // 2]
        inside = np.isin(self.groups, half)
        found = []
        for chosen_on, measured_on in ((inside, ~inside), (~inside, inside)):
            choice = self._rows(chosen_on)
            ranking = choice.ranking(min_share)
            if not ranking:
                return float("nan")
            direction = np.sign(choice.score(ranking[0]))
            found.append(direction * self._rows(measured_on).score(ranking[0]) + 0.5 * self.binary)
        return float(np.mean(found))

    def _rows(self, chosen: NDArray[np.bool_]) -> "_Data":
        return _Data(self.X[chosen], self.y[chosen], self.groups[chosen], self.binary)


def _feature_score(data: _Data, column: int, name: str, resamples: int, seed: int) -> FeatureScore:
    stats = require("scipy.stats", "fit")
    there = np.isfinite(data.X[:, column])
    x, y = data.X[there, column], data.y[there]
    weights = cluster_weights(data.groups, resamples, seed)  # (R, n)
    every = np.arange(len(data.y))
    drawn = np.array([data.score(column, np.repeat(every, weight)) for weight in weights])
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975]) if drawn.size else (np.nan, np.nan)
    shift = 0.5 * data.binary
    score = Interval(
        data.score(column) + shift, float(low) + shift, float(high) + shift, len(x), len(set(data.groups[there]))
    )
    second = stats.pointbiserialr(y, x) if data.binary else stats.kendalltau(x, y)
    return FeatureScore(name, len(x), score, float(second.statistic))


def _debates(runs: Iterable[Run]) -> list[Run]:
    found = sorted((run for run in runs if run.system == SYSTEM), key=lambda run: run.id)
    if not found:
        raise RecordError(f"no run of the system {SYSTEM!r}: collect some, or give the folder that holds them")
    return found


def _cells(runs: Iterable[Run]) -> dict[tuple[str, str, str], list[_Argument]]:
    """(set, role, debater) -> arguments."""
    cells: dict[tuple[str, str, str], list[_Argument]] = defaultdict(list)
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
            argument = _Argument(
                run.item.dimension, call.agent, call.model, group_of(run.item), call, labels, dict(judges)
            )
            cells[argument.key].append(argument)
    return dict(sorted(cells.items()))


def _values(rows: Sequence[_Argument], name: Name) -> Floats:
    return np.array([row.labels[name] for row in rows], dtype=np.float64)


def _weights(rows: Sequence[_Argument], resamples: int, seed: int) -> NDArray[np.int32]:
    return cluster_weights([row.group for row in rows], resamples, seed)
