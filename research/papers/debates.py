"""The early-token confidence paper's verdicts and best features of the log-probabilities, from recorded debates.

Verdicts are its section 4.4, the features its tables 1, 3 and 4. Sets of essays are never pooled, nor roles, models or
judges. Every interval resamples essays, each with all its traits.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metaprobe.eval.answer_table import group_of
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.probes.features import features, schema
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Run

SYSTEM = "essay-debate"
ARGUMENT, JUDGE = "argument", "judge"
PROGRAM = "program"
DIMENSIONS = ("instruction", "justification", "evidence")
CRITICAL = "critical"
ORDINAL = ("q", *DIMENSIONS, "check:evidence")

Floats = NDArray[np.float64]
Name = tuple[str, str]
"""Source and name of a label."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts of one meta-evaluator, or of a checkpoint in its place, on one role's arguments."""

    essay_set: str
    role: str
    model: str
    """Model of the debater."""
    judge: str
    top: dict[str, Interval]
    """Dimension -> share of the highest score, 3. Figure 3 of the paper."""
    passed: dict[str, Interval]
    """Dimension -> share of 2 or 3. The paper speaks of pass rates and does not say what passes."""


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
    feature: str
    """The strongest, either sign; empty where the target does not vary."""
    score: Interval | None
    """Spearman's rho; for `critical` the AUROC of the feature as it stands, below 0.5 where low values go with flags.

    Of the best among many features this is too good; see `held_out`.
    """
    held_out: float
    """Association of the best feature where it was not chosen: chosen on one half of the essays, measured on the other;
    the mean of both ways. An AUROC for `critical`, else rho, turned so that the direction seen when choosing is
    positive. nan where a half does not vary."""


@dataclass(frozen=True, slots=True)
class DebatedArgument:
    """One debater's argument, and what is known of it."""

    essay_set: str
    role: str
    model: str
    group: str
    call: Call
    labels: dict[Name, float]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.essay_set, self.role, self.model


def verdicts(runs: Iterable[Run], *, resamples: int = 1000, seed: int = 0) -> tuple[Verdicts, ...]:
    """Returns the verdicts by set, role, debater and judge; none of a judge that said nothing readable."""
    rows = []
    for key, members in debated_arguments(runs).items():
        for judge in sorted({source for row in members for source, name in row.labels if name == "q"}):
            judged = [row for row in members if (judge, "q") in row.labels]
            weights = cluster_weights([row.group for row in judged], resamples, seed)
            scores = {name: np.rint(label_values(judged, (judge, name))) for name in DIMENSIONS}
            top = {name: mean_interval(given == 3, weights) for name, given in scores.items()}
            passed = {name: mean_interval(given >= 2, weights) for name, given in scores.items()}
            rows.append(Verdicts(*key, judge, top, passed))
    return tuple(rows)


def debated_arguments(runs: Iterable[Run]) -> dict[tuple[str, str, str], list[DebatedArgument]]:
    """Returns (set, role, debater) -> arguments. Raises `RecordError` where there is no debate."""
    debates = sorted((run for run in runs if run.system == SYSTEM), key=lambda run: run.id)
    if not debates:
        raise RecordError(f"no run of the system {SYSTEM!r}: collect some, or give the folder that holds them")
    cells: dict[tuple[str, str, str], list[DebatedArgument]] = defaultdict(list)
    for run in debates:
        for call in run.calls:
            if call.stage == ARGUMENT:
                labels = {(label.source, label.name): label.value for label in run.labels if label.call_id == call.id}
                argument = DebatedArgument(run.item.dimension, call.agent, call.model, group_of(run.item), call, labels)
                cells[argument.key].append(argument)
    return dict(sorted(cells.items()))


def label_values(rows: Sequence[DebatedArgument], name: Name) -> Floats:
    """Returns the value (n,) of one label of each argument."""
    return np.array([row.labels[name] for row in rows], dtype=np.float64)


def feature_associations(
    runs: Iterable[Run], *, min_share: float = 0.5, resamples: int = 200, seed: int = 0
) -> tuple[Association, ...]:
    """The best feature for every target of every judge, by set, role and debater.

    Features are those of the schema `full`; one that fewer than `min_share` of the arguments are long enough for is not
    ranked. They are ranked by |rho| or |AUROC - 0.5|; the paper does not say whether signs count.
    """
    names = schema("full").names
    rows = []
    for key, members in debated_arguments(runs).items():
        given = [row for row in members if row.call.logprobs is not None and len(row.call.logprobs)]
        # Labels by a checkpoint are left out, because they follow from these very features.
        judged = {name for row in given for name in row.labels if name[0].partition(":")[0] in (JUDGE, PROGRAM)}
        targets = sorted(name for name in judged if name[1] in (*ORDINAL, CRITICAL))
        if not targets:
            continue
        X = features(schema("full"), [np.asarray(row.call.logprobs) for row in given]).astype(np.float64)
        groups = np.array([row.group for row in given])
        for judge, target in targets:
            known = np.array([(judge, target) in row.labels for row in given])
            y = label_values([row for row, has in zip(given, known, strict=True) if has], (judge, target))
            data = _Data(X[known], y, groups[known], binary=target == CRITICAL)
            ranking = data.ranking(min_share)
            name, score = (names[ranking[0]], _score(data, ranking[0], resamples, seed)) if ranking else ("", None)
            rows.append(Association(*key, judge, target, len(y), name, score, data.held_out(min_share, seed)))
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
        """Scores columns without NaN from one ranking of each: rho is the correlation of ranks, AUROC their rank
        sum."""
        n = len(y)
        if n < 3 or np.ptp(y) == 0:
            return np.full(X.shape[1], np.nan)
        rank = stats.rankdata
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


def _score(data: _Data, column: int, resamples: int, seed: int) -> Interval:
    there = np.isfinite(data.X[:, column])
    weights = cluster_weights(data.groups, resamples, seed)  # (R, n)
    every = np.arange(len(data.y))
    drawn = np.array([data.score(column, np.repeat(every, weight)) for weight in weights])
    drawn = drawn[np.isfinite(drawn)]
    low, high = np.quantile(drawn, [0.025, 0.975]) if drawn.size else (np.nan, np.nan)
    shift = 0.5 * data.binary
    ends = (data.score(column) + shift, float(low) + shift, float(high) + shift)
    return Interval(*ends, int(there.sum()), len(set(data.groups[there])))
