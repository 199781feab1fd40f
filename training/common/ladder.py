"""What judges answers by their log-probabilities: the least that the data justify, a free number first.

    scaled total -> another free number -> all terms -> terms and trees

Each step is taken only where, on groups that it was not fitted on, it lowers the log loss by more than chance would.
All have the same base rates of runs beside them (`metaprobe.training.common.offsets`), so that no step is taken for
knowing which run an answer is of.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.probes.features import TERM_NAMES
from metaprobe.probes.terms import FREE, SCALED, TERMS
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.common.calibrators import Floats
from metaprobe.training.common.offsets import RunRates, fit_offsets
from metaprobe.training.common.roles import Roles, Rows, group_folds
from metaprobe.training.common.trees import Trees, fit_trees, refit_trees

ALL_TERMS, WITH_TREES = "all terms", "terms and trees"
SURE = 0.99
"""One-sided confidence that a step's gain is above 0: there are several, and on noise none of them should be taken."""
FOLDS = 5
FEWEST_FOR_TREES = 500
"""Answers of train and selection together; below, trees were never worth it in any data set that was tried."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the ladder, as it was tried."""

    name: str
    against: str
    """What stood before."""
    gain: float
    """Log loss less, in nats an answer, on groups that neither was fitted on."""
    se: float
    """Its standard error, clustered by group."""
    taken: bool


@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """The step that was reached, fitted. A score is log-odds: evidence, plus the base rate of the answer's run."""

    reached: str
    weights: Floats
    """(7,) of the terms as they are; 0 for those that are not used."""
    rates: RunRates
    """Base rates where all terms are 0."""
    trees: Trees | None
    steps: tuple[Step, ...]
    selection_auroc: float
    """On groups that it was not fitted on; of all answers together, base rates included."""

    def score(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Log-odds (n,) of answers of a run of average base rate; X (n, d), whose last 7 columns are the terms."""
        found = terms_in(X) @ self.weights + self.rates.mean
        return found if self.trees is None else found + self.trees.score(X)

    def score_of(self, X: NDArray[np.floating[Any]], runs: NDArray[np.generic]) -> Floats:
        """Log-odds (n,) of answers of these runs; one that is not known has the average base rate."""
        return self.score(X) + self.rates.of(runs) - self.rates.mean

    def onnx_nodes(self, input_name: str, output_name: str, width: int) -> tuple[list[Any], list[Any]]:
        """The evidence for a graph: (n, width) float32 features in, (n, 1) log-odds out."""
        onnx = require("onnx", "fit")
        node, constant = onnx.helper.make_node, onnx.numpy_helper.from_array
        own = {name: f"{output_name}_{name}" for name in ("columns", "terms", "weights", "weighted", "mean", "linear")}
        linear = output_name if self.trees is None else own["linear"]
        nodes = [
            node("Gather", [input_name, own["columns"]], [own["terms"]], axis=1),
            node("MatMul", [own["terms"], own["weights"]], [own["weighted"]]),
            node("Add", [own["weighted"], own["mean"]], [linear]),
        ]
        constants = [
            constant(np.arange(width - len(TERMS), width, dtype=np.int64), own["columns"]),
            constant(self.weights.astype(np.float32)[:, None], own["weights"]),
            constant(np.array([[self.rates.mean]], dtype=np.float32), own["mean"]),
        ]
        if self.trees is not None:
            grown = f"{output_name}_trees"
            nodes += [
                *self.trees.onnx_nodes(input_name, grown, width)[0],
                node("Add", [own["linear"], grown], [output_name]),
            ]
        return nodes, constants


def terms_in(X: Any) -> Floats:
    """Returns the terms (n, 7) among features, an array or a Dask array (n, d): the last columns."""
    last = X[:, -len(TERMS) :]
    return np.asarray(last if isinstance(last, np.ndarray) else last.compute(), dtype=np.float64)


def fit_ladder(
    X: NDArray[np.float32],
    y: NDArray[np.int64],
    groups: NDArray[np.str_],
    runs: NDArray[np.str_],
    roles: Roles,
    *,
    names: Sequence[str],
    climb: bool = True,
    seed: int = 0,
) -> Ladder:
    """Climbs as far as the train and selection rows carry, and fits what was reached on both.

    X (n, d): features of a schema with terms, also a Dask array; `names` (d,). `runs` (n,): the run of each answer.
    Without `climb` it stays the scaled total: for models and tasks that nobody has seen, steps that were taken on other
    models and tasks lost what they had gained (docs/research/travel.md).
    """
    if tuple(names[-len(TERMS) :]) != TERM_NAMES:
        raise RecordError(f"the last features are {', '.join(names[-len(TERMS) :])}; expected {', '.join(TERM_NAMES)}")
    terms, rows = terms_in(X), roles.learning
    steps = _Climb(terms, y, groups, runs, rows, seed)
    trees = None
    if climb:
        steps.choose_linear()
        if len(names) > len(TERMS) and len(rows) >= FEWEST_FOR_TREES:
            trees = steps.try_trees(X, roles, names)
    linear = _fit_columns(terms, y, runs, rows, steps.columns)
    if trees is not None:
        trees = refit_trees(trees, X, y, roles, names=names, start=linear.score_of(X, runs))
    return replace(
        linear,
        reached=steps.reached,
        trees=trees,
        steps=tuple(steps.steps),
        selection_auroc=steps.selection_auroc(),
    )


def _fit_columns(terms: Floats, y: NDArray[np.int64], runs: NDArray[np.generic], rows: Rows, columns: Floats) -> Ladder:
    """The linear part on some columns (7, k), each made of the terms, fitted on these rows."""
    here = terms[rows] @ columns
    centre, spread = here.mean(axis=0), here.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    fit = fit_offsets((here - centre) / spread, y[rows], runs[rows])
    weights = columns @ (fit.weights / spread)
    rates = replace(fit.rates, mean=fit.rates.mean - float(fit.weights / spread @ centre))
    return Ladder("", weights, rates, None, (), np.nan)


class _Climb:
    """The ladder's comparisons on some rows."""

    def __init__(
        self,
        terms: Floats,
        y: NDArray[np.int64],
        groups: NDArray[np.str_],
        runs: NDArray[np.str_],
        rows: Rows,
        seed: int,
    ) -> None:
        self._terms, self._y, self._groups, self._rows = terms, y, groups, rows
        self._runs = np.unique(runs, return_inverse=True)[1]  # numbers are compared much faster than names
        self._clusters, self._seed = np.unique(groups, return_inverse=True)[1], seed
        self._folds = _folds(rows, groups, y, seed)
        self.steps: list[Step] = []
        self.reached = self._linear = SCALED
        self._scores: dict[str, Floats] = {}

    @property
    def columns(self) -> Floats:
        """What the linear part is made of, (7, k)."""
        return _columns(self._linear)

    def choose_linear(self) -> None:
        """Takes another free number, and then all terms, where they are better on folds left out."""
        if not self._folds:
            return
        for name in (*(free for free in FREE if free != SCALED), ALL_TERMS):
            found = self._compare(self._unseen(name), self._unseen(self.reached), self._judged)
            self._note(name, *found)

    def try_trees(self, X: NDArray[np.float32], roles: Roles, names: Sequence[str]) -> Trees | None:
        """Trees on top of the linear part, where selection rows that neither has seen show a gain."""
        train, held_out = roles.train, roles.selection
        try:
            parts = [part for _, part in group_folds(train, self._groups.tolist(), self._y, 4, self._seed + 2)]
            own = Roles(np.sort(np.concatenate(parts[:3])), parts[3], held_out, held_out)
            linear = _fit_columns(self._terms, self._y, self._runs, train, self.columns)
            start = linear.score_of(X, self._runs)
            trees = fit_trees(X, self._y, own, names=names, start=start, seed=self._seed)
        except RecordError:
            return None
        plain = linear.score(X[held_out])
        found = self._compare(plain + trees.score(X[held_out]), plain, held_out)
        self._note(WITH_TREES, *found)
        return trees if self.steps[-1].taken else None

    def selection_auroc(self) -> float:
        """AUROC of the linear step reached on folds left out; of the fit itself where there are no folds."""
        if not self._folds:
            found = _fit_columns(self._terms, self._y, self._runs, self._rows, self.columns)
            return float(auroc(self._y[self._rows], found.score_of(self._terms[self._rows], self._runs[self._rows])))
        return float(auroc(self._y[self._judged], self._unseen(self._linear)))

    @property
    def _judged(self) -> Rows:
        return np.concatenate([part for _, part in self._folds])

    def _unseen(self, name: str) -> Floats:
        """Scores of the judged rows, each by a fit on the other folds."""
        if name not in self._scores:
            found = []
            for rest, part in self._folds:
                fit = _fit_columns(self._terms, self._y, self._runs, rest, _columns(name))
                found.append(fit.score_of(self._terms[part], self._runs[part]))
            self._scores[name] = np.concatenate(found)
        return self._scores[name]

    def _compare(self, scores: Floats, against: Floats, rows: Rows) -> tuple[float, float, int]:
        """Gain, its standard error, and the number of clusters."""
        gain = self._losses(against, rows) - self._losses(scores, rows)
        cluster = np.unique(self._clusters[rows], return_inverse=True)[1]
        sums = np.bincount(cluster, weights=gain - gain.mean())
        count = len(sums)
        se = float(np.sqrt(count / max(count - 1, 1) * np.square(sums).sum()) / len(gain))
        return float(gain.mean()), se, count

    def _losses(self, scores: Floats, rows: Rows) -> Floats:
        """Log losses (m,) after each run got the base rate that suits it: what is compared is the evidence."""
        y, runs = self._y[rows], self._runs[rows]
        fit = fit_offsets(scores[:, None], y, runs, expected=1.0, sd=1e-6)
        logit = fit.weights[0] * scores + fit.rates.of(runs)
        losses: Floats = np.logaddexp(0, np.where(y == 1, -logit, logit))
        return losses

    def _note(self, name: str, gain: float, se: float, clusters: int) -> None:
        quantile = require("scipy.special", "fit").stdtrit
        taken = clusters > 1 and gain > quantile(clusters - 1, SURE) * se
        self.steps.append(Step(name, self.reached, gain, se, bool(taken)))
        if taken:
            self.reached = name
            self._linear = self._linear if name == WITH_TREES else name


def _columns(name: str) -> Floats:
    """(7, k): the terms themselves, or the one number that is made of them."""
    if name == ALL_TERMS:
        return np.eye(len(TERMS))
    return np.array([[FREE[name].get(term, 0.0)] for term in TERMS])


def _folds(rows: Rows, groups: NDArray[np.str_], y: NDArray[np.int64], seed: int) -> list[tuple[Rows, Rows]]:
    """(rows to fit on, rows to judge on), by group; none where the groups are too few."""
    try:
        return list(group_folds(rows, groups.tolist(), y, FOLDS, seed + 3))
    except RecordError:
        return []
