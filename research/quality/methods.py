"""The rivals of the quality predictor, as methods of `metaprobe.training.methods`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from lightgbm import Dataset, early_stopping, train
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression

from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.results import Family
from metaprobe.probes.features import baseline_scores, features, schema
from metaprobe.records.errors import RecordError
from metaprobe.training.evidence import Evidence, Scores
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.methods import MEAN_LOGPROB, TREES, CellTable, FeatureTrees, Fitted, GivenScore, Method
from research.quality.data import runs_of
from research.quality.wepr import entropy_contributions

EARLY = ("first3", "first5", "first10")
"""The windows that the paper calls early."""
PAPER_WINDOWS = (*EARLY, "first30", "last50%", "full")
"""Those that the paper names."""
SINGLE, SINGLE_EARLY, SINGLE_FULL = "best single feature", "best early feature", "best full-response feature"
STEADY, TERMS = "LightGBM held back", "logistic on six terms"
LOWEST = "lowest group confidence"
EPR, WEPR, TOP_TREES = "EPR", "WEPR", "LightGBM on alternatives too"
WITH_RUN = " + run"


def column_scores(X: NDArray[np.floating[Any]], y: NDArray[Any]) -> Scores:
    """Spearman's rho of each column with y, from one ranking of each; X (n, d) without NaN. 0 where one is constant.

    Of two classes it orders columns without ties as their AUROC does.
    """
    ranks = rankdata(X, axis=0) - (len(y) + 1) / 2
    own = rankdata(y) - (len(y) + 1) / 2
    spread = np.sqrt((ranks**2).sum(axis=0) * (own**2).sum())
    return np.asarray(own @ ranks / np.where(spread > 0, spread, 1), dtype=np.float64)


def filled(X: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
    """X with the median of the given rows where a feature is not defined; 0 where it is in none of them."""
    known = np.isfinite(X[rows]).any(axis=0)
    middle = np.zeros(X.shape[1], np.float32)
    middle[known] = np.nanmedian(X[rows][:, known], axis=0)
    return np.where(np.isfinite(X), X, middle)


@dataclass(frozen=True, slots=True)
class SingleFeature:
    """One window's one statistic and its direction, chosen on learning rows: what the paper's tables rank.

    A response that is too short for the window gets the median.
    """

    name: str
    windows: tuple[str, ...]
    family: Family = "log-probability"
    fitted: bool = True

    def columns(self, names: Sequence[str]) -> list[int]:
        """Returns the columns of the features that the method may choose from."""
        return [i for i, name in enumerate(names) if "." in name and name.split(".")[0] in self.windows]

    def choose(self, evidence: Evidence, rows: Rows) -> tuple[int, float]:
        """The strongest column, and 1 or -1."""
        columns = self.columns(evidence.feature_names)
        strength = column_scores(filled(evidence.features[:, columns], rows)[rows], evidence.table.y[rows])
        best = int(np.argmax(np.abs(strength)))
        return columns[best], 1.0 if strength[best] >= 0 else -1.0

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        y = evidence.table.y

        def scores(rows: Rows) -> Scores:
            column, sign = self.choose(evidence, rows)
            return sign * filled(evidence.features[:, [column]], rows)[:, 0].astype(np.float64)

        selected = float(auroc(y[roles.selection], scores(roles.train)[roles.selection]))
        found = scores(roles.learning)
        return Fitted(lambda rows: found[rows], selected)


@dataclass(frozen=True, slots=True)
class LowestGroup:
    """Mean log-probability of the worst of all windows of w neighbouring tokens; w is chosen on train rows.

    After DeepConf (arXiv:2508.15260), whose group confidence is made of the likeliest tokens' log-probabilities, which
    these data do not have. An answer shorter than w is one group.
    """

    name: str = LOWEST
    widths: tuple[int, ...] = (2, 3, 5, 10, 20, 50)
    family: Family = "log-probability"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        y = evidence.table.y
        scores = {width: lowest_group(evidence.table.logprobs, width) for width in self.widths}
        selected = {width: float(auroc(y[roles.train], scores[width][roles.train])) for width in self.widths}
        best = max(selected, key=lambda width: selected[width])
        return Fitted(lambda rows: scores[best][rows], float(auroc(y[roles.selection], scores[best][roles.selection])))


def lowest_group(logprobs: NDArray[np.object_], width: int) -> Scores:
    """(n,): the lowest mean of `width` neighbouring tokens."""
    found = np.empty(len(logprobs))
    for i, values in enumerate(logprobs):
        sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        w = min(width, len(values))
        found[i] = ((sums[w:] - sums[:-w]) / w).min()
    return found


def terms(table: AnswerTable) -> Scores:
    """(n, 6): mean, minimum, first, sum, worst three in a row, each as -sqrt(-x), which tames the tails; log length."""
    base = baseline_scores(list(table.logprobs))
    total = base["mean_logprob"] * base["length"]
    low = lowest_group(table.logprobs, 3)
    values = [base["mean_logprob"], base["min_logprob"], base["first_logprob"], total, low]
    return np.stack([*(-np.sqrt(np.maximum(-x, 0)) for x in values), np.log(base["length"])], axis=1)


def run_columns(table: AnswerTable) -> Scores:
    """(n, runs): 1 in the column of the answer's run."""
    names, member = np.unique(runs_of(table), return_inverse=True)
    return np.eye(len(names))[member]


@dataclass(frozen=True, slots=True)
class Terms:
    """Logistic regression on six numbers that each of the plain baselines uses; with the run, one intercept a run."""

    name: str = TERMS
    with_run: bool = False
    penalties: tuple[float, ...] = (0.03, 0.3, 3.0)
    family: Family = "learned"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        table = evidence.table
        X = terms(table)
        own = run_columns(table) if self.with_run else np.empty((len(table), 0))

        def scores(rows: Rows, penalty: float) -> Scores:
            spread = X[rows].std(axis=0)
            design = np.hstack([(X - X[rows].mean(axis=0)) / np.where(spread > 0, spread, 1), own])
            model = LogisticRegression(C=penalty, max_iter=2000).fit(design[rows], table.y[rows])
            return np.asarray(model.decision_function(design), dtype=np.float64)

        chosen, selected = best_of(table.y, roles, self.penalties, scores)
        found = scores(roles.learning, chosen)
        return Fitted(lambda rows: found[rows], selected)


def best_of(y: NDArray[np.int64], roles: Roles, options: Sequence[float], scores: Any) -> tuple[float, float]:
    """The option with the highest AUROC on selection rows when fitted on train rows, and that AUROC."""
    found = {o: float(auroc(y[roles.selection], scores(roles.train, o)[roles.selection])) for o in options}
    best = max(found, key=lambda option: found[option])
    return best, found[best]


@dataclass(frozen=True, slots=True)
class SteadyTrees:
    """LightGBM held back: small trees, random thresholds, and never a lower score for surer tokens.

    Levels (mean, median, minimum, maximum of any window) may only raise the score.
    """

    name: str = STEADY
    with_run: bool = False
    schema: str = "full"
    family: Family = "learned"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        evidence = seen_as(evidence, self.schema)
        y = evidence.table.y
        X = evidence.features.astype(np.float64)
        rising = [int(name.split(".")[-1] in ("mean", "median", "min", "max")) for name in evidence.feature_names]
        if self.with_run:
            own = run_columns(evidence.table)
            X, rising = np.hstack([X, own]), [*rising, *[0] * own.shape[1]]
        parameters = {
            "objective": "binary",
            "learning_rate": 0.05,
            "num_leaves": 7,
            "min_data_in_leaf": max(5, min(40, len(roles.train) // 20)),
            "feature_fraction": 0.5,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "lambda_l2": 5.0,
            "extra_trees": True,
            "monotone_constraints": rising,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
            "seed": seed,
            "verbosity": -1,
        }
        known = Dataset(X[roles.train], y[roles.train], free_raw_data=False)
        held = Dataset(X[roles.selection], y[roles.selection], reference=known, free_raw_data=False)
        stopping = [early_stopping(30, verbose=False)]
        first = train(parameters, known, num_boost_round=300, valid_sets=[held], callbacks=stopping)
        selected = float(auroc(y[roles.selection], first.predict(X[roles.selection], raw_score=True)))
        joined = Dataset(X[roles.learning], y[roles.learning], free_raw_data=False)
        last = train(parameters, joined, num_boost_round=max(1, first.best_iteration))
        found = np.asarray(last.predict(X, raw_score=True), dtype=np.float64)
        return Fitted(lambda rows: found[rows], selected)


@dataclass(frozen=True, slots=True)
class Trees:
    """The quality predictor itself; where it finds nothing to split, all answers are alike to it."""

    name: str = TREES
    family: Family = "learned"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        try:
            return FeatureTrees().fit(evidence, roles, seed=seed)
        except RecordError:
            return Fitted(lambda rows: np.zeros(len(rows)), 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class WeprRegression:
    """WEPR (wepr.py): logistic regression on each rank's mean and largest entropy contribution.

    Its authors' regression has scikit-learn's default penalty; so has this one.
    """

    alternatives: NDArray[np.object_]
    """Log-probabilities of the alternatives of each answer, (T, k)."""
    name: str = WEPR
    family: Family = "log-probability"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        y = evidence.table.y
        found = [entropy_contributions(-np.sort(-top.astype(np.float64), axis=1)) for top in self.alternatives]
        X = np.array([np.concatenate([one.mean(axis=0), one.max(axis=0)]) for one in found])

        def scores(rows: Rows) -> Scores:
            model = LogisticRegression(max_iter=2000).fit(X[rows], y[rows])
            return np.asarray(model.decision_function(X), dtype=np.float64)

        selected = float(auroc(y[roles.selection], scores(roles.train)[roles.selection]))
        learned = scores(roles.learning)
        return Fitted(lambda rows: learned[rows], selected)


def entropy_rivals(alternatives: NDArray[np.object_]) -> list[Method]:
    """EPR and WEPR, where the likeliest tokens' log-probabilities were recorded."""
    mean = np.array([-entropy_contributions(top.astype(np.float64)).sum(axis=1).mean() for top in alternatives])
    known = [GivenScore(EPR, "log-probability", lambda table: mean), WeprRegression(alternatives)]
    return [*known, TopTrees(alternatives)]


@dataclass(frozen=True, slots=True, eq=False)
class TopTrees:
    """The quality predictor on the schema with entropy and margin of the alternatives (`full+top`)."""

    alternatives: NDArray[np.object_]
    name: str = TOP_TREES
    family: Family = "learned"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        seen = schema("full+top")
        X = features(seen, list(evidence.table.logprobs), list(self.alternatives))
        return Trees().fit(replace(evidence, features=X, feature_names=seen.names, schema=seen.name), roles, seed=seed)


def rivals(table: AnswerTable) -> list[Method]:
    """Everything that is compared on every data set, without the run's identity but for the table of it."""

    def plain(name: str) -> Any:
        return lambda table: baseline_scores(list(table.logprobs))[name]

    def total(table: AnswerTable) -> Scores:
        return np.array([float(np.sum(values, dtype=np.float64)) for values in table.logprobs])

    methods: list[Method] = [
        GivenScore(MEAN_LOGPROB, "log-probability", plain("mean_logprob")),
        GivenScore("minimum log-probability", "log-probability", plain("min_logprob")),
        GivenScore("first log-probability", "log-probability", plain("first_logprob")),
        GivenScore("sum of log-probabilities", "log-probability", total),
        GivenScore("length (shorter is better)", "plain", lambda t: -np.log(t.tokens.astype(np.float64))),
        LowestGroup(),
        SingleFeature(SINGLE, PAPER_WINDOWS),
        SingleFeature(SINGLE_EARLY, EARLY),
        SingleFeature(SINGLE_FULL, ("full",)),
    ]
    if len(np.unique(table.cut)) > 1:
        methods.append(GivenScore("not cut by max_tokens", "plain", lambda t: -t.cut.astype(np.float64)))
    if (identity := CellTable("run identity", ("models", "variants"))).varies(table):
        methods.append(identity)
    return [*methods, Trees(), SteadyTrees(), Terms()]


def seen_as(evidence: Evidence, name: str) -> Evidence:
    """The evidence with the features of another schema."""
    if name == evidence.schema:
        return evidence
    seen = schema(name)
    found = features(seen, list(evidence.table.logprobs))
    return replace(evidence, features=found, feature_names=seen.names, schema=seen.name)
