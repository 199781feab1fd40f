"""The ladder: judges answers by their log-probabilities, with the simplest step that the data justify.

    the best free number -> a reversed free number -> all terms -> terms and trees

With few answers of one run (`MIN_ROWS_TO_CHOOSE`) no step is chosen: all terms are taken, drawn to the scaled total.

All free numbers are equally complex (a weight and a base rate), so the one of least log loss on groups left out is
taken; the first one if others are as good. Theory gives the sign of the weight: more surprise means a worse answer. If
the answers say otherwise, the weight is nearly 0, so that chance does not reverse the order. A reversed number is a
step of its own.

A further step is taken only if it lowers the log loss, on groups that it was not fitted on, by more than a standard
error. All steps have the same base rates of runs, so no step is taken for knowing the run of an answer. With several
runs, the AUROC over pairs of answers of one run must also gain more than a standard error. So a step that does not
order the answers of any run better is not taken, even if it tells runs apart.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.controls import REVERSED
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.decision_predictor import COMPUTED_SUFFIXES, is_predicate, question_of
from metaprobe.probes.features import FREE, SCALED, SURPRISE_FLOOR, TERM_NAMES, TERMS
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.base_rates import HELD_SD, WEIGHT_SD, RunRates, fit_offsets, standardised
from metaprobe.training.calibrators import (
    Floats,
    are_probabilities,
    closest_of,
    clustered_se,
    highest_of,
)
from metaprobe.training.export import GraphBuilder
from metaprobe.training.folds import Roles, Rows, group_folds
from metaprobe.training.trees import Trees, fit_trees, refit_trees

ALL_TERMS, WITH_TREES = "all terms", "terms and trees"
DRAWN_TERMS = "all terms, drawn to scaled"
DRAWN_SLOPE, DRAWN_SLOPE_SD, DRAWN_SD = -0.8, 0.5, 0.3
"""Normal priors of `DRAWN_TERMS`, in log-odds per standard deviation of a column: mean and standard deviation of the
weight of the scaled total, and standard deviation, around 0, of the weight that each term has beside it. A slope of
-0.8 is an AUROC of about 0.72. Chosen on the stores of the 0.5B coder (docs/research/no-labels.md): in trials that are
not recorded 0.2 to 0.5 for the terms, and -0.8 or -1 for the slope, were within 0.005 AUROC."""
MIN_ROWS_TO_CHOOSE = 250
"""Fewest labelled answers for choosing among the steps if there is one run. Answers of all roles are counted, so that
folds do as the whole does. With fewer, the choice among seven free numbers is mostly chance. All terms are then taken,
drawn to the number that was never far behind elsewhere. With several runs there is always a choice, because terms also
tell runs apart: with 200 labels of `token_logprobs_qa` the AUROC of all terms was 0.017 lower than by a choice.
"""
SURE = 0.84
"""One-sided confidence that a further step's gain is above 0, about one standard error. Of 99, 95, 84 and 50 % it has
the lowest log loss on data sets and planted worlds (research/quality/bar.py, docs/research/ladder.md). It is nowhere
0.005 AUROC behind the free number alone.
"""
TIED_LOSS = 1e-6
"""Difference in log loss, in nats per answer, below which two free numbers count as equally good. Rounding differs by
less.
"""
MIN_FREE_SLOPE = 1e-3
"""Least slope of a free number, in log-odds per standard deviation. With this slope the number still orders answers,
but hardly moves probabilities.
"""
LADDER_FOLDS = 5
"""Number of folds by group in which steps are compared."""
FEWEST_FOR_TREES = 500
"""Fewest train and selection answers together for trying trees. With fewer, trees were never better in any data set
that was tried.
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One-sided confidence, that the gain is above 0, which each further step must reach. A step with a bar of 1 is
    never taken.
    """

    linear: float = SURE
    """Confidence that is needed for a reversed free number, and for all terms."""
    trees: float = SURE
    min_rows: float = MIN_ROWS_TO_CHOOSE
    """Fewest labelled answers for comparing linear steps. With fewer answers of one run, `DRAWN_TERMS` are taken
    without comparison.
    """

    def of(self, step: str) -> float:
        """Returns the bar of a step."""
        return self.trees if step == WITH_TREES else self.linear


USUAL_BAR = Bar()


@dataclass(frozen=True, slots=True)
class LadderColumns:
    """The m features that the linear part reads, and the free numbers made of these features."""

    places: tuple[int, ...]
    """Indices of the columns among the features; negative ones count from the end."""
    free: Mapping[str, tuple[float, ...]]
    """Maps a free number to a weight for each column. A larger number means a worse answer. Of numbers that are equally
    good, the first is taken.
    """
    logprobs: bool = False
    """Whether the columns are log-probabilities. Then the logarithm of the surprise is read. Otherwise the columns are
    read unchanged, or as log-odds (`closest`).
    """
    priors: tuple[float, ...] = (WEIGHT_SD,)
    """Standard deviations of the weights' prior that are tried if all columns are read."""
    closest: tuple[float, ...] = ()
    """Distance from 0 and 1 (m,) to which a column of probabilities is moved before its log-odds are read
    (`closest_of`); 0 for a column that is read unchanged. Empty if no column holds probabilities.
    """

    def of(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Returns the values (n, m) that the ladder reads from features (n, d); an undefined log-probability counts as
        0."""
        values = X[:, list(self.places)].astype(np.float64)
        if self.logprobs:
            return np.log(SURPRISE_FLOOR - np.nan_to_num(values))
        for place in np.flatnonzero(self.closest).tolist():
            closest = self.closest[place]
            p = np.clip(values[:, place], closest, highest_of(closest))
            values[:, place] = np.log(p) - np.log1p(-p)
        return values

    def add_to(self, graph: GraphBuilder, features: str, width: int) -> str:
        """Adds the computation of `of` to a graph: from float32 features (n, width) to columns (n, m)."""
        places = graph.constant(np.array(self.places) % width)
        values = graph.add("Gather", features, places, axis=1)
        if any(self.closest):
            return self._add_log_odds(graph, values)
        if not self.logprobs:
            return values
        filled = graph.add("Where", graph.add("IsNaN", values), graph.number([0.0]), values)
        return graph.add("Log", graph.add("Sub", graph.number(SURPRISE_FLOOR), filled))

    def _add_log_odds(self, graph: GraphBuilder, values: str) -> str:
        """Adds columns (n, m) to a graph: log-odds of the columns that hold probabilities, the others unchanged."""
        closest, is_probability = np.array(self.closest), graph.constant(np.array(self.closest) > 0, np.bool_)
        low = graph.number(np.where(closest > 0, closest, 0.5))
        high = graph.number(np.where(closest > 0, [highest_of(bound) for bound in self.closest], 0.5))
        p = graph.add("Min", graph.add("Max", values, low), high)
        odds = graph.add("Sub", graph.add("Log", p), graph.add("Log", graph.add("Sub", graph.number(1.0), p)))
        return graph.add("Where", is_probability, odds, values)

    def columns(self, name: str) -> Floats:
        """Returns a matrix (m, k) that turns the m columns into the k inputs of the step `name`.

        The inputs are all columns, or the single number `name`, maybe reversed. For `DRAWN_TERMS` the first input is
        the scaled total, and the others are all columns.
        """
        if name == ALL_TERMS:
            return np.eye(len(self.places))
        if name == DRAWN_TERMS:
            return np.column_stack([self.columns(SCALED), self.columns(ALL_TERMS)])
        sign = -1.0 if name.endswith(REVERSED) else 1.0
        return sign * np.array(self.free[name.removesuffix(REVERSED)])[:, None]


WHOLE = LadderColumns(
    tuple(range(-len(TERMS), 0)),
    {name: tuple(parts.get(term, 0.0) for term in TERMS) for name, parts in FREE.items()},
)
"""Columns of a finished answer: the terms, which are the last features of a schema with terms."""


@dataclass(frozen=True, slots=True, eq=False)
class LadderRows:
    """n labelled answers that a ladder is fitted on."""

    X: NDArray[np.float32]
    """Features (n, d). For `WHOLE` answers they are of a schema with terms."""
    y: NDArray[np.int64]
    """Label of each answer (n,): 1 for a good answer."""
    groups: NDArray[np.str_]
    runs: NDArray[np.generic]
    """Run of each answer (n,)."""
    names: Sequence[str]
    """Name of each of the d features."""
    read: LadderColumns = WHOLE


@dataclass(frozen=True, slots=True)
class LadderStep:
    """Result of trying one step of the ladder."""

    name: str
    against: str
    """Step that this step is compared with: the step reached before. A free number is compared with the number that is
    taken if both are equally good.
    """
    gain: float
    """How much lower the log loss of this step is, in nats per answer, on groups that neither step was fitted on."""
    se: float
    """Standard error of the gain, clustered by group."""
    taken: bool
    within: float = np.nan
    """How much higher the AUROC of this step is over pairs of answers of one run, on the same groups. nan if it was not
    computed: there is one run, or the log loss did not improve enough.
    """
    within_se: float = np.nan
    """Standard error of `within`, clustered by group."""


@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """The step that was reached, fitted. A score is log-odds: evidence, plus the base rate of the answer's run."""

    linear: str
    """Linear step that was reached: a free number, or all terms."""
    weights: Floats
    """Weight (m,) of each column; 0 for a column that is not used."""
    rates: RunRates
    """Base rates of the runs, for an answer whose columns are all 0."""
    trees: Trees | None = None
    steps: tuple[LadderStep, ...] = ()
    selection_auroc: float = np.nan
    """AUROC over all answers, base rates included, by fits that saw no answer of the row's group."""
    read: LadderColumns = WHOLE
    prior: float = WEIGHT_SD
    """Standard deviation of the weights' prior."""

    @property
    def reached(self) -> str:
        """The last step that was taken."""
        return self.linear if self.trees is None else WITH_TREES

    @property
    def number(self) -> str:
        """The single free number, maybe reversed, that orders answers of one run; empty if several numbers do."""
        return "" if self.reached in (ALL_TERMS, DRAWN_TERMS, WITH_TREES) else self.linear

    def score(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Returns the log-odds (n,) that answers with features X (n, d) are right, in a run with the
        average base rate.
        """
        linear = self.read.of(X) @ self.weights + self.rates.mean
        return linear if self.trees is None else linear + self.trees.score(X)

    def score_of(self, X: NDArray[np.floating[Any]], runs: NDArray[np.generic]) -> Floats:
        """Returns the log-odds (n,) that answers with features X (n, d) of these runs (n,) are right. An unknown run
        has the average base rate.
        """
        return self.score(X) + self.rates.of(runs) - self.rates.mean

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        """Adds the evidence to a graph: (n, width) float32 features in, (n, 1) log-odds out."""
        columns, weights = self.read.add_to(graph, features, width), graph.number(self.weights[:, None])
        weighted, mean = graph.add("MatMul", columns, weights), graph.number([[self.rates.mean]])
        if self.trees is None:
            return graph.add("Add", weighted, mean, name=output)
        linear = graph.add("Add", weighted, mean)
        return graph.add("Add", linear, self.trees.add_to(graph, features, width), name=output)


PRIORS = (0.05, 0.1, 0.2, 0.5)
"""Standard deviations of the weights' prior that are tried for decisions. They are small, because numbers of many
questions are correlated and labels are few.
"""


def decided_columns(names: Sequence[str], values: NDArray[np.floating[Any]]) -> LadderColumns:
    """Returns how the columns `values` (n, d) of `probes.decision_predictor.decision_columns` are read.

    The free numbers are each question's own number, and the probability of each option of a choice. Probabilities are
    read as log-odds; expected levels, entropies and margins are read unchanged.
    """
    own_number = {name for name in names if "=" not in name}
    free_names = [
        n for n in names if not n.endswith(COMPUTED_SUFFIXES) and (n in own_number or question_of(n) not in own_number)
    ]
    weights = {name: tuple(-1.0 * (other == name) for other in names) for name in free_names}
    closest = tuple(
        closest_of(column) if _holds_probabilities(name, names, column) else 0.0
        for name, column in zip(names, np.asarray(values, dtype=np.float64).T, strict=True)
    )
    return LadderColumns(tuple(range(len(names))), weights, priors=PRIORS, closest=closest)


def _holds_probabilities(name: str, names: Sequence[str], column: Floats) -> bool:
    """Returns whether a column of decisions holds probabilities, of a predicate or of an option."""
    if name.endswith(COMPUTED_SUFFIXES):
        return False
    return are_probabilities(column) and ("=" in name or is_predicate(name, names, column))


def fit_ladder(
    sample: LadderRows, roles: Roles, *, climb: bool = True, only: str = "", bar: Bar = USUAL_BAR, seed: int = 0
) -> Ladder:
    """Takes steps as long as the train and selection rows support them, and fits the last step on both.

    Args:
        sample: the labelled answers.
        roles: rows of each role.
        climb: whether steps may be taken. If not, the ladder stays the scaled total, as for new models and tasks, on
            which steps learned elsewhere gave no gain (docs/research/travel.md).
        only: the one linear step that is allowed, such as `min`; empty to choose by the rows.
        bar: confidence that a step must reach.
        seed: seed of folds and fits.
    """
    names, columns, rows = sample.names, sample.read, roles.learning
    if columns is WHOLE and tuple(names[-len(TERMS) :]) != TERM_NAMES:
        raise RecordError(f"the last features are {', '.join(names[-len(TERMS) :])}; expected {', '.join(TERM_NAMES)}")
    values = columns.of(sample.X)
    steps = _Climb(sample, values, rows, bar, seed)
    trees = None
    if only:
        steps.linear = only
    elif climb:
        if columns is WHOLE and len(sample.y) < bar.min_rows and steps.one_run:
            steps.linear = DRAWN_TERMS
        else:
            steps.choose_linear()
        if len(names) > len(columns.places) and len(rows) >= FEWEST_FOR_TREES:
            trees = steps.try_trees(roles)
    linear = fit_linear_step(steps.linear, sample, values, rows, steps.prior)
    if trees is not None:
        start = linear.score_of(sample.X, sample.runs)
        trees = refit_trees(trees, sample.X, sample.y, roles, names=names, start=start)
    return replace(linear, trees=trees, steps=tuple(steps.steps), selection_auroc=steps.selection_auroc())


def unseen_scores(
    ladder: Ladder, sample: LadderRows, rows: Rows, *, folds: int, rates: bool = False, seed: int = 0
) -> Floats:
    """Returns a score of each of `rows` by the steps of this ladder, fitted on the other folds of these rows.

    A ladder's scores of its own training rows would be too good. Raises `RecordError` if there are too few groups for
    this number of folds.

    Args:
        ladder: the fitted ladder, whose steps are fitted again.
        sample: the labelled answers.
        rows: the rows to score.
        folds: number of folds by group.
        rates: whether a score includes the base rate of the answer's run.
        seed: seed of folds and fits.
    """
    X, y, no_rows = sample.X, sample.y, rows[:0]
    values, scores = ladder.read.of(X), np.full(len(X), np.nan)
    for rest, part in group_folds(rows, sample.groups.tolist(), y, folds, seed):
        fit = fit_linear_step(ladder.linear, sample, values, rest, ladder.prior)
        if ladder.trees is not None:
            fold_roles, start = Roles(rest, no_rows, no_rows, part), fit.score_of(X, sample.runs)
            fit = replace(fit, trees=refit_trees(ladder.trees, X, y, fold_roles, names=sample.names, start=start))
        scores[part] = fit.score_of(X[part], sample.runs[part]) if rates else fit.score(X[part])
    return scores[rows]


def scores_to_calibrate(
    ladder: Ladder, sample: LadderRows, roles: Roles, *, rates: bool, seed: int = 0
) -> tuple[Rows, Floats]:
    """Returns the seen rows (m,) and a score (m,) of each by a fit that saw no answer of the row's group.

    Calibration rows have scores of the ladder itself. Learning rows have scores of the same steps, fitted on the other
    folds; they are left out if they have too few groups for folds.

    Args:
        ladder: the ladder, fitted on train and selection rows of these roles.
        sample: the answers that it was fitted on.
        roles: the rows of each role: train, selection, calibration and test.
        rates: whether a score includes the base rate of the answer's run.
        seed: seed of the folds.
    """
    X, calibration = sample.X, roles.calibration
    calibration_scores = (
        ladder.score_of(X[calibration], sample.runs[calibration]) if rates else ladder.score(X[calibration])
    )
    with suppress(RecordError):
        learning_scores = unseen_scores(ladder, sample, roles.learning, folds=LADDER_FOLDS, rates=rates, seed=seed + 3)
        return np.concatenate([calibration, roles.learning]), np.concatenate([calibration_scores, learning_scores])
    return calibration, calibration_scores


def fit_linear_step(name: str, sample: LadderRows, values: Floats, rows: Rows, prior: float) -> Ladder:
    """Returns the linear step `name`, fitted on these rows.

    Args:
        name: name of the step.
        sample: the n answers.
        values: values (n, m) that the ladder reads of them.
        rows: rows to fit on.
        prior: standard deviation of the prior of a weight, if the step is all terms.
    """
    ladder_columns, y, runs = sample.read, sample.y, sample.runs
    columns = ladder_columns.columns(name)
    step_values = values[rows] @ columns
    standard, centre, spread = standardised(step_values)
    if name == DRAWN_TERMS:
        zeros = np.zeros(len(ladder_columns.places))
        expected, sd = np.append(DRAWN_SLOPE, zeros), np.append(DRAWN_SLOPE_SD, zeros + DRAWN_SD)
        fit = fit_offsets(standard, y[rows], runs[rows], expected=expected, sd=sd)
    else:
        fit = fit_offsets(standard, y[rows], runs[rows], sd=prior if name == ALL_TERMS else WEIGHT_SD)
    if name not in (ALL_TERMS, DRAWN_TERMS) and fit.weights[0] > -MIN_FREE_SLOPE:
        fit = fit_offsets(standard, y[rows], runs[rows], expected=-MIN_FREE_SLOPE, sd=HELD_SD)
    weights = columns @ (fit.weights / spread)
    rates = replace(fit.rates, mean=fit.rates.mean - float(fit.weights / spread @ centre))
    return Ladder(name, weights, rates, read=ladder_columns, prior=prior)


@dataclass(eq=False)
class _Climb:
    """The ladder's comparisons on some rows."""

    sample: LadderRows
    values: Floats
    """Values (n, m) that the ladder reads of the answers."""
    rows: Rows
    """The rows to learn from."""
    bar: Bar
    seed: int

    def __post_init__(self) -> None:
        self.y, self.read, self.groups = self.sample.y, self.sample.read, self.sample.groups
        self.runs = np.unique(self.sample.runs, return_inverse=True)[1]  # numbers are compared much faster than names
        self.sample = replace(self.sample, runs=self.runs)
        self.clusters = np.unique(self.groups, return_inverse=True)[1]
        self.folds: list[tuple[Rows, Rows]] = []  # (rows to fit on, rows to judge on), by group
        with suppress(RecordError):  # with too few groups there are no folds
            self.folds = list(group_folds(self.rows, self.groups.tolist(), self.y, LADDER_FOLDS, self.seed + 3))
        self.steps: list[LadderStep] = []
        self.linear, self.prior = next(iter(self.read.free)), self.read.priors[0]
        self.scores: dict[str, Floats] = {}
        self.evidence: dict[str, Floats] = {}

    def choose_linear(self) -> None:
        """Takes the best free number. Takes its reverse, or all terms, instead if this pays on folds left out."""
        if not self.folds:
            return
        first_number, *other_numbers = self.read.free
        gains_over_first = {
            name: self._compare(self._unseen(name), self._unseen(first_number), self._judged_rows)
            for name in other_numbers
        }
        best_number = max(other_numbers, key=lambda name: gains_over_first[name][0], default=first_number)
        if other_numbers and gains_over_first[best_number][0] > TIED_LOSS:
            self.linear = best_number
        self.steps += [
            LadderStep(name, first_number, *gains_over_first[name][:2], name == self.linear) for name in other_numbers
        ]

        def gain_over_linear(name: str) -> tuple[float, float, int]:
            return self._compare(self._unseen(name), self._unseen(self.linear), self._judged_rows)

        reversed_gains = {f"{name}{REVERSED}": gain_over_linear(f"{name}{REVERSED}") for name in self.read.free}
        best_reversed = max(reversed_gains, key=lambda name: reversed_gains[name][0])
        if len(self.read.priors) > 1:  # take the prior with which all columns gain most on folds left out
            gain_of_prior = {}
            for prior in self.read.priors:
                self.prior = prior
                gain_of_prior[prior] = gain_over_linear(ALL_TERMS)[0]
                del self.scores[ALL_TERMS]
            self.prior = max(gain_of_prior, key=lambda each_prior: gain_of_prior[each_prior])
        for name, known_gain in ((best_reversed, reversed_gains[best_reversed]), (ALL_TERMS, None)):
            evidence = self._evidence(name), self._evidence(self.linear)
            if self._pays(name, known_gain or gain_over_linear(name), evidence, self._judged_rows):
                self.linear = name

    def try_trees(self, roles: Roles) -> Trees | None:
        """Returns trees on top of the linear part if they improve on unseen selection rows; else None."""
        X, train, held_out = self.sample.X, roles.train, roles.selection
        try:
            parts = [part for _, part in group_folds(train, self.groups.tolist(), self.y, 4, self.seed + 2)]
            fold_roles = Roles(np.sort(np.concatenate(parts[:3])), parts[3], held_out, held_out)
            linear = self._fit(self.linear, train)
            start = linear.score_of(X, self.runs)
            trees = fit_trees(X, self.y, fold_roles, names=self.sample.names, start=start, seed=self.seed)
        except RecordError:
            return None
        linear_scores = linear.score(X[held_out])
        scores = (linear_scores + trees.score(X[held_out]), linear_scores)
        compared = self._compare(*scores, held_out)
        return trees if self._pays(WITH_TREES, compared, scores, held_out) else None

    def selection_auroc(self) -> float:
        """Returns the AUROC of the linear step that was reached, on folds left out; without folds, on the fitted rows
        themselves.
        """
        if not self.folds:
            return float(auroc(self.y[self.rows], self._scores_of(self._fit(self.linear, self.rows), self.rows)))
        return float(auroc(self.y[self._judged_rows], self._unseen(self.linear)))

    @property
    def one_run(self) -> bool:
        """Whether the answers that may be learned from are of one run."""
        return len(np.unique(self.runs[self.rows])) < 2

    @property
    def _judged_rows(self) -> Rows:
        """The rows of all folds, in the folds' order."""
        return np.concatenate([part for _, part in self.folds])

    def _fit(self, name: str, rows: Rows) -> Ladder:
        return fit_linear_step(name, self.sample, self.values, rows, self.prior)

    def _scores_of(self, fit: Ladder, rows: Rows) -> Floats:
        scores: Floats = self.values[rows] @ fit.weights + fit.rates.of(self.runs[rows])
        return scores

    def _unseen(self, name: str) -> Floats:
        """Returns a score for each judged row, from a fit on the other folds. Scores of a step are computed once."""
        if name not in self.scores:
            fits = [(self._fit(name, rest), part) for rest, part in self.folds]
            self.scores[name] = np.concatenate([self._scores_of(fit, part) for fit, part in fits])
            evidence = [self.values[part] @ fit.weights for fit, part in fits]
            self.evidence[name] = np.concatenate([fold_scores - fold_scores.mean() for fold_scores in evidence])
        return self.scores[name]

    def _evidence(self, name: str) -> Floats:
        """Returns the held-out scores of a step without the runs' base rates, centred in each fold.

        A base rate fitted without a fold is lower if the fold has more right answers of the run. With these base rates
        the scores would rank answers of one run in reverse.
        """
        self._unseen(name)
        return self.evidence[name]

    def _compare(self, scores: Floats, against: Floats, rows: Rows) -> tuple[float, float, int]:
        """Returns the mean gain in log loss, its standard error, and the number of clusters."""
        gain = self._losses(against, rows) - self._losses(scores, rows)
        cluster = np.unique(self.clusters[rows], return_inverse=True)[1]
        return float(gain.mean()), clustered_se(gain, cluster), int(cluster.max()) + 1

    def _losses(self, scores: Floats, rows: Rows) -> Floats:
        """Returns log losses (m,) after each run got its best base rate, so that only evidence within runs counts."""
        y, runs = self.y[rows], self.runs[rows]
        fit = fit_offsets(scores[:, None], y, runs, expected=1.0, sd=HELD_SD)
        logit = fit.weights[0] * scores + fit.rates.of(runs)
        losses: Floats = np.logaddexp(0, np.where(y == 1, -logit, logit))
        return losses

    def _pays(self, name: str, compared: tuple[float, float, int], evidence: tuple[Floats, Floats], rows: Rows) -> bool:
        """Records a further step, and returns whether its gain is certain enough, overall and within runs.

        Args:
            name: name of the step.
            compared: gain, standard error and number of clusters, from `_compare`.
            evidence: scores of the rows by this step, and by the step reached before, both without base rates of runs.
            rows: the judged rows.
        """
        gain, se, clusters = compared
        quantile = require("scipy.special", "fit").stdtrit
        needed_confidence = self.bar.of(name)
        is_taken = bool(clusters > 1 and gain > quantile(clusters - 1, needed_confidence) * se)
        within = within_se = np.nan
        runs = self.runs[rows]
        if is_taken and (runs != runs[0]).any():
            within, within_se = paired_auroc_gain(self.y[rows], *evidence, runs, self.clusters[rows])
            is_taken = bool(within > quantile(clusters - 1, needed_confidence) * within_se)
        self.steps.append(LadderStep(name, self.linear, gain, se, is_taken, within, within_se))
        return is_taken


def paired_auroc_gain(
    y: NDArray[np.int64], scores: Floats, against: Floats, strata: Rows, clusters: Rows
) -> tuple[float, float]:
    """Returns the AUROC of `scores` minus that of `against`, over pairs of one stratum, and its standard error.

    The strata's AUROCs are weighted by their pairs. The error is that of the placements (DeLong et al. 1988,
    doi:10.2307/2531595), summed over clusters. Both are nan if no stratum holds right and wrong answers.

    Args:
        y: labels (n,), 1 for right answers.
        scores: scores (n,) of the step.
        against: scores (n,) that they are compared with.
        strata: index (n,) of each answer's stratum.
        clusters: index (n,) of each answer's group; answers of one group depend on each other.
    """
    total_gain, influence, total_pairs = 0.0, np.zeros(len(y)), 0
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        right, wrong = rows[y[rows] == 1], rows[y[rows] == 0]
        if not len(right) or not len(wrong):
            continue
        placements = np.zeros(
            len(rows)
        )  # gain in the share of the other class that lies on the right side of an answer, ties half
        is_right = y[rows] == 1
        for sign, values in ((1.0, scores), (-1.0, against)):
            for ranked_rows, other, side in ((is_right, ~is_right, 1.0), (~is_right, is_right, -1.0)):
                ordered = np.sort(side * values[rows][other])
                below = [np.searchsorted(ordered, side * values[rows][ranked_rows], edge) for edge in ("left", "right")]
                placements[ranked_rows] += sign * (below[0] + below[1]) / 2 / len(ordered)
        gain, pair_count = float(placements[is_right].mean()), len(right) * len(wrong)
        total_gain, total_pairs = total_gain + pair_count * gain, total_pairs + pair_count
        influence[rows] = pair_count * (placements - gain) / np.where(is_right, len(right), len(wrong))
    if not total_pairs:
        return np.nan, np.nan
    sums = np.bincount(clusters, weights=influence)
    return total_gain / total_pairs, float(np.sqrt(np.square(sums).sum())) / total_pairs
