"""The models that are fitted on features: LightGBM, logistic regression, and the ladder that climbs to either.

The regression has a base rate for every run: what differs between runs is kept apart from what distinguishes answers
of one run. A run is a model, a task and a way of asking. Its base rate is an offset to the log-odds, drawn around the
mean of all runs, N(0, between^2), so that a run with few answers stays near that mean; `between` is estimated from the
runs themselves (empirical Bayes, by EM with Laplace's approximation).
"""

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.controls import REVERSED
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.decisions import MADE, is_predicate, question_of
from metaprobe.probes.features import FREE, SCALED, SURPRISE_FLOOR, TERM_NAMES, TERMS
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.calibration import (
    Floats,
    are_probabilities,
    closest_of,
    clustered_se,
    fit_platt,
    highest_of,
    sigmoid,
)
from metaprobe.training.checkpoint import TREE_ENSEMBLE_OPSET, GraphBuilder
from metaprobe.training.folds import Roles, Rows, group_folds

# LightGBM on log-probability features: one booster, its search, and its place in an ONNX graph.

DASK = "dask[array,dataframe,distributed]>=2026.1"

Parameters = dict[str, Any]

# A bounded search; larger trees are taken where they win on the selection rows.
GRID: tuple[dict[str, float], ...] = (
    {"num_leaves": 4, "min_data_in_leaf": 20},
    {"num_leaves": 7, "min_data_in_leaf": 40},
    {"num_leaves": 15, "min_data_in_leaf": 20},
    {"num_leaves": 31, "min_data_in_leaf": 40},
)
Objective = Literal["binary", "regression"]
METRIC: dict[Objective, str] = {"binary": "binary_logloss", "regression": "l2"}
"""Loss that early stopping watches."""
COMMON: Parameters = {
    "learning_rate": 0.05,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
MAX_ROUNDS = 300
PATIENCE = 30
SMALL = 2_000_000
"""Feature values below which one thread is fastest: more of them mostly wait for each other."""
IMBALANCE = 2.0
"""Answers of the larger class for one of the smaller from which class weights are tried."""
RISING = ("mean", "median", "min")
"""Statistics that the theory gives a sign: the surer the tokens of a window, the better the answer."""
FALLING = tuple(f"terms.{name}" for name in ("lowest3", "mean", "min"))
"""Features with the other sign: these terms are made of surprise, which is minus the log-probability."""


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A fitted booster whose split thresholds are float32 numbers, so that ONNX gives the same answers."""

    booster: Any
    parameters: Parameters
    selection_auroc: float
    """AUROC of the chosen parameters on the selection rows; nan for a regression."""

    def score(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Raw log-odds (n,), or the number itself, before calibration.

        X: float32 features (n, d), NaN where undefined.
        """
        return np.asarray(self.booster.predict(X, raw_score=True), dtype=np.float64)  # after the best round

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        """Adds the same to a graph, as one TreeEnsembleRegressor: (n, width) features in, (n, 1) log-odds out."""
        lightgbm, converter = require("lightgbm", "fit"), require("onnxmltools.convert", "fit")
        types = require("onnxmltools.convert.common.data_types", "fit")
        # The output of a regressor is the plain sum of leaves: no label output, no double rounding through a
        # probability.
        lines = self.booster.model_to_string().splitlines(keepends=True)
        raw = lightgbm.Booster(
            model_str="".join("objective=regression\n" if x.startswith("objective=") else x for x in lines)
        )
        converted = converter.convert_lightgbm(
            raw, initial_types=[("features", types.FloatTensorType([None, width]))], target_opset=TREE_ENSEMBLE_OPSET
        )
        node = next(node for node in converted.graph.node if node.op_type == "TreeEnsembleRegressor")
        output = output or graph.name("trees")
        node.input[:], node.output[:], node.name = [features], [output], output
        graph.nodes.append(node)
        return output


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """One candidate of the search, fitted on the train rows."""

    parameters: Parameters
    rounds: int
    """Boosting round with the least loss on the selection rows."""
    scores: Floats
    """Raw scores of the selection rows after that many."""


def fit_trees(
    X: NDArray[np.float32],
    y: NDArray[Any],
    roles: Roles,
    *,
    names: Sequence[str],
    objective: Objective = "binary",
    start: Floats | None = None,
    seed: int = 0,
) -> Trees:
    """Choose on the selection rows, with early stopping, and fit that on train and selection rows.

    Chosen are, in turn, the size of the trees (by AUROC; by squared error for a regression); class weights, tried where
    the classes are unequal and kept where both AUROC and recalibrated log loss gain; and a rise with mean, median and
    minimum of every window, kept where it loses nothing. `y` (n,) is higher for better answers: the theory gives the
    sign of a constraint that way round.

    `start` (n,): log-odds that are known already; the trees learn what is to be added to them, and are chosen by what
    both reach together. Within `on_cluster` the search takes a sample of the rows, and the workers make the last fit.
    """
    searched = roles
    if _CLIENT.get() is not None:
        searched = replace(roles, train=_sample(roles.train), selection=_sample(roles.selection))
    lightgbm, held = require("lightgbm", "fit"), searched.selection
    train = _data_set(X, y, searched.train, names, start)
    selection = _data_set(X, y, held, names, start, reference=train)
    known = 0.0 if start is None else start[held]

    def grown(parameters: Parameters) -> Grown:
        stop = lightgbm.early_stopping(PATIENCE, verbose=False)
        booster = lightgbm.train(
            parameters, train, num_boost_round=MAX_ROUNDS, valid_sets=[selection], callbacks=[stop]
        )
        scores = np.asarray(booster.predict(X[held], raw_score=True), dtype=np.float64)
        return Grown(parameters, booster.best_iteration, scores + known)

    at, binary = y[held], objective == "binary"

    def merit(one: Grown) -> float:
        if not binary:
            return -float(np.square(one.scores - at).mean())
        reached = float(auroc(at, one.scores))
        return reached if np.isfinite(reached) else 0.0  # of one class every candidate is as good as the next

    base: Parameters = {"objective": objective, "metric": METRIC[objective], **COMMON, "seed": seed}
    base["num_threads"] = 1 if X.size < SMALL else 0
    best = max((grown({**base, **size}) for size in GRID), key=merit)
    for more in _refinements(y[searched.train] if binary else None, names):
        tried = grown({**best.parameters, **more})
        gain = merit(tried) - merit(best)
        if gain >= 0 if "monotone_constraints" in more else gain > 0 and _loss(at, tried) < _loss(at, best):
            best = tried
    selected = merit(best) if binary else float("nan")
    parameters = {**best.parameters, "rounds": best.rounds}
    trees = refit_trees(Trees(None, parameters, selected), X, y, roles, names=names, start=start)
    leaves = {line for line in trees.booster.model_to_string().splitlines() if line.startswith("num_leaves=")}
    if leaves <= {"num_leaves=1"}:
        raise RecordError(
            f"LightGBM finds nothing to split in {len(roles.learning)} answers: they are too few, or their "
            f"log-probabilities are all alike; add runs"
        )
    return trees


def refit_trees(
    trees: Trees, X: NDArray[np.float32], y: NDArray[Any], roles: Roles, *, names: Sequence[str], start: Floats | None
) -> Trees:
    """Returns the same recipe fitted on train and selection rows of these roles; `start` as for `fit_trees`.

    It is fitted here, or on the workers of the cluster that `on_cluster` opened.
    """
    rows, rounds = roles.learning, trees.parameters["rounds"]
    parameters = {name: value for name, value in trees.parameters.items() if name != "rounds"}
    if (client := _CLIENT.get()) is not None:
        known = None if start is None else start[rows]
        booster = _fit_on_workers(client, X[rows], y[rows], known, safe(names), parameters, rounds)
    else:
        data = _data_set(X, y, rows, names, start)
        booster = require("lightgbm", "fit").train(parameters, data, num_boost_round=rounds)
    return Trees(float32_thresholds(booster), trees.parameters, trees.selection_auroc)


def _refinements(y: NDArray[np.int64] | None, names: Sequence[str]) -> Iterator[Parameters]:
    """Yields what is tried on top of the best size, one after the other. `y`: None where there are no classes."""
    ones = 0 if y is None else int(y.sum())
    zeros = 0 if y is None else len(y) - ones
    if min(ones, zeros) and max(ones, zeros) >= IMBALANCE * min(ones, zeros):
        yield {"scale_pos_weight": zeros / ones}
    # LightGBM's constraint of each feature: 1 where a score may only rise with it, -1 where only fall, 0 for none.
    signs = [-1 if name in FALLING else int(name.rpartition(".")[2] in RISING) for name in names]
    if any(signs):
        yield {"monotone_constraints": signs}


def _loss(y: NDArray[np.int64], grown: Grown) -> float:
    """Log loss after Platt's map: weights shift the log-odds, and every head is calibrated anyway."""
    if len(np.unique(y)) < 2:
        return 0.0
    logit = fit_platt(grown.scores, y).logit(grown.scores)
    return float(np.logaddexp(0, np.where(y == 1, -logit, logit)).mean())


def _data_set(
    X: NDArray[np.float32], y: NDArray[Any], rows: Rows, names: Sequence[str], start: Floats | None, **more: Any
) -> Any:
    known = None if start is None else start[rows]
    lightgbm = require("lightgbm", "fit")
    return lightgbm.Dataset(X[rows], y[rows], init_score=known, feature_name=safe(names), free_raw_data=False, **more)


def float32_thresholds(booster: Any) -> Any:
    """The booster with every split threshold rounded down to float32.

    LightGBM splits float32 features at float64 thresholds. For a float32 x, x <= t holds exactly when x <= the largest
    float32 not above t: rounding down changes no prediction, rounding to nearest or up (as converters do) does, by
    3e-3 on features that repeat values.
    """
    lightgbm = require("lightgbm", "fit")
    lines = booster.model_to_string().splitlines(keepends=True)
    for i, line in enumerate(lines):
        if line.startswith("threshold="):
            thresholds = np.array(line.removeprefix("threshold=").split(), dtype=np.float64)
            lines[i] = "threshold=" + " ".join(repr(float(t)) for t in round_down(thresholds)) + "\n"
        elif line.startswith("tree_sizes="):
            lines[i] = ""  # byte offsets of the trees, no longer true; LightGBM reads the text without them
    return lightgbm.Booster(model_str="".join(lines))


def round_down(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest float32 not above each value."""
    rounded = values.astype(np.float32)
    return np.where(rounded.astype(np.float64) > values, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def safe(names: Sequence[str]) -> list[str]:
    """LightGBM refuses some characters in feature names; the manifest keeps the real ones."""
    return [name.replace("%", "pct") for name in names]


# The last fit on the workers of a Dask cluster, by LightGBM's own Dask interface.
#
# LightGBM's Dask interface does not stop early: its workers would stop at different rounds and wait for each other for
# ever (LightGBM issues 3712 and 6351). So size and rounds are searched on this machine, on a sample of the rows. Which
# rows a worker holds decides its bins and its bagging, so that two fits differ as two seeds do on one machine.

SAMPLE_ROWS = 200_000
"""Most train rows, and most selection rows, of a search whose last fit is on a cluster."""
BLOCK_ROWS = 100_000
LOOK_AFTER = 1.0
"""Seconds between two looks at the workers."""
_CLIENT: ContextVar[Any] = ContextVar("the Dask client whose workers fit", default=None)


@contextmanager
def on_cluster(scheduler: str | None) -> Iterator[None]:
    """Fits boosters on the workers of this Dask scheduler meanwhile; on this machine where it is None."""
    if scheduler is None:
        yield
        return
    for module in ("dask.array", "dask.dataframe"):  # LightGBM asks for both, and says less
        require(module, DASK)
    with require("distributed", DASK).Client(scheduler) as client:
        token = _CLIENT.set(client)
        try:
            yield
        finally:
            _CLIENT.reset(token)


def _sample(rows: Rows) -> Rows:
    """Returns at most `SAMPLE_ROWS` of the rows, evenly spread."""
    return rows[:: max(1, -(-len(rows) // SAMPLE_ROWS))]


def _fit_on_workers(
    client: Any,
    X: NDArray[np.float32],
    y: NDArray[Any],
    start: Floats | None,
    names: list[str],
    parameters: Parameters,
    rounds: int,
) -> Any:
    array, interface = require("dask.array", DASK), require("lightgbm.dask", DASK)
    kind = interface.DaskLGBMClassifier if parameters["objective"] == "binary" else interface.DaskLGBMRegressor
    # Each worker uses the threads it has.
    given = {name: value for name, value in parameters.items() if name not in ("num_threads", "seed")}
    model = kind(**given, random_state=parameters["seed"], n_estimators=rounds, client=client)
    block = min(BLOCK_ROWS, max(1, -(-len(X) // (2 * len(client.nthreads())))))  # several blocks to each worker
    known = None if start is None else array.from_array(start, chunks=block)
    with _watched(client), warnings.catch_warnings():
        # LightGBM warns so whenever its Dask estimators are made as they are meant to be.
        warnings.filterwarnings("ignore", message="Parameter n_jobs will be ignored")
        fitted = model.fit(
            array.from_array(X, chunks=(block, -1)),
            array.from_array(y, chunks=block),
            init_score=known,
            feature_name=names,
        )
    return fitted.booster_


@contextmanager
def _watched(client: Any) -> Iterator[None]:
    """Ends the block's fit where a worker is lost. Raises `RecordError` then, and whatever else ends the fit.

    LightGBM's workers speak to each other directly, and wait for a worker that died for ever. When a worker is gone,
    the others' work is cancelled and they are started again.
    """
    there, lost, ended = set(client.nthreads()), set[str](), Event()

    def look() -> bool:
        now = set(client.nthreads())
        if there <= now:
            return False
        lost.update(there - now)
        future = require("distributed", DASK).Future
        waiting = [key for key in list(client.futures) if "_train_part" in str(key)]
        client.cancel([future(key, client) for key in waiting], force=True)
        if left := sorted(there & now):
            client.restart_workers(left, raise_for_error=False)
        return True

    def watch() -> None:
        while not ended.wait(LOOK_AFTER) and not look():
            pass

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        ended.set()
        thread.join()
        if not lost:  # the others may report a broken connection before the scheduler reports who broke it
            time.sleep(LOOK_AFTER)
        if not (lost or look()):
            raise
        raise RecordError(
            f"the Dask cluster lost {', '.join(sorted(lost))} during a fit; look at the memory that the workers are"
            " allowed, and start again"
        ) from error
    finally:
        ended.set()
        thread.join()


# Logistic regression with a base rate for every run.


WEIGHT_SD = 1.0
"""Standard deviation of the normal prior of a weight, per standard deviation of its column."""
INTERCEPT_SD = 10.0
"""Standard deviation of the mean's prior: it hardly matters, but answers of one class have a finite fit."""
FIRST_BETWEEN, LEAST_BETWEEN = 1.0, 0.05
ROUNDS = 100
SHORTEST = 1e-4
CLOSE = 1e-8
"""Largest change of a parameter at which the fit is taken as found."""
SETTLED = 0.01
"""Largest step of weights and offsets, in log-odds, below which the rounds of the runs' spread are extrapolated."""
FEWEST_FOR_SCALE = 20
"""Answers of a run, with `FEWEST_OF_A_CLASS` of either kind, from which its own scale can be estimated."""
FEWEST_OF_A_CLASS = 5
USUAL_SCALES = 0.5
"""Standard deviation of the runs' scales where too few runs show it."""
AGREEMENT_SD = 0.5
"""Standard deviation, in log-odds and around 0, of the base rate that labels give to agreement: the root mean square of
the difference between the share of right answers and the mean agreement over the five stores of samples of the 0.5B
coder (docs/research/no-labels.md). It keeps 25 labels from moving the mean by their own chance."""
LEAST_SCALE = 0.05
"""Where the labels say that higher scores are worse, the order is kept and the scores are drawn together to this."""
SAME_VALUE = 1e-9
"""Standard deviation, as a share of the mean's size, below which a column holds one value but for rounding."""
HELD_SD = 1e-6
"""Standard deviation of the prior of a weight that is to stay where its prior is."""


@dataclass(frozen=True, slots=True)
class RunRates:
    """Base rates of the runs, as log-odds at evidence of 0."""

    mean: float = 0.0
    between: float = FIRST_BETWEEN
    """Standard deviation of the runs around the mean."""
    runs: Mapping[str, float] = field(default_factory=dict)
    """Run -> its offset from the mean, shrunk towards 0."""

    def of(self, runs: NDArray[np.generic]) -> Floats:
        """Returns the log-odds (n,) of each answer's run; the mean for a run that is not known."""
        names, place = np.unique(runs, return_inverse=True)
        return self.mean + np.array([self.runs.get(str(name), 0.0) for name in names])[place]


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Weights of the evidence, and the base rates beside it."""

    weights: Floats
    """(k,)"""
    rates: RunRates


def fit_offsets(
    Z: Floats,
    y: ArrayLike,
    runs: NDArray[np.generic],
    *,
    expected: ArrayLike = 0.0,
    sd: ArrayLike = WEIGHT_SD,
    mean_sd: float = INTERCEPT_SD,
) -> Fit:
    """Returns the weights of the columns of Z (n, k), standardised beforehand, and the base rates of the runs.

    `y` (n,): 0 and 1. `expected`, `sd`: mean and standard deviation of the normal prior of each weight (k,); `mean_sd`
    that of the mean, around 0. Of one run the mean is its base rate, and `between` stays as it is assumed.
    """
    labels, k = np.asarray(y, dtype=np.float64), Z.shape[1]
    names, place = np.unique(runs, return_inverse=True)
    several = len(names) > 1
    r = len(names) if several else 0
    centre = np.broadcast_to(np.asarray(expected, dtype=np.float64), (k,))
    precision = np.concatenate([1 / np.broadcast_to(np.asarray(sd, dtype=np.float64), (k,)) ** 2, [mean_sd**-2]])
    prior, total = np.diag(precision), np.add.reduce  # NumPy's own sum takes longer to call than these arrays to add
    X = np.column_stack([Z, np.ones(len(Z))])
    # Rows of one run become neighbours, so that sums over runs take one call: a training makes tens of thousands.
    order = np.argsort(place, kind="stable") if r else slice(None)
    X, labels, place = np.ascontiguousarray(X[order]), labels[order], place[order]
    first = np.searchsorted(place, np.arange(r))
    common: NDArray[Any] = np.append(centre, 0.0)
    offsets: NDArray[Any] = np.zeros(r)
    between = FIRST_BETWEEN
    course = [between]
    target = np.append(centre, 0.0)

    def logits(common: NDArray[Any], offsets: NDArray[Any]) -> NDArray[Any]:
        shared: NDArray[Any] = X @ common
        return shared + offsets[place] if r else shared

    def penalty(common: NDArray[Any], offsets: NDArray[Any]) -> float:
        """With the loss, minus the log of the posterior, but for a constant, with `between` as it stands."""
        return float(precision @ (common - target) ** 2 / 2 + offsets @ offsets / between**2 / 2)

    logit = logits(common, offsets)
    softened = np.logaddexp(0, logit)
    loss = float(total(softened) - labels @ logit)
    for _ in range(ROUNDS):
        p = np.exp(logit - softened)  # the logarithm of 1 / (1 + exp(-x)) is x - log(1 + exp(x))
        error, slope = labels - p, p * (1 - p)
        weighted = slope[:, None] * X
        gradient = X.T @ error - precision * (common - target)
        curvature = X.T @ weighted + prior
        own: NDArray[Any] = np.zeros(0)
        moved: NDArray[Any] = np.zeros(0)
        if not r:
            step = np.linalg.solve(curvature, gradient)
        else:
            # The offsets' block is diagonal: they are solved for by themselves, given the common part.
            mixed = np.add.reduceat(weighted, first, axis=0).T  # (k + 1, r)
            own = mixed[k] + between**-2  # the last column of X is 1
            pull = np.add.reduceat(error, first) - offsets / between**2
            shares = mixed / own
            step = np.linalg.solve(curvature - shares @ mixed.T, gradient - shares @ pull)
            moved = (pull - mixed.T @ step) / own
        largest = max(np.maximum.reduce(np.abs(step)), np.maximum.reduce(np.abs(moved), initial=0.0))
        # A whole step of Newton's may lead away where many answers are far on the wrong side.
        now, part = loss + penalty(common, offsets), 1.0
        while True:
            there, offsets_there = common + part * step, offsets + part * moved
            logit = logits(there, offsets_there)
            softened = np.logaddexp(0, logit)
            loss = float(total(softened) - labels @ logit)
            if part <= SHORTEST or loss + penalty(there, offsets_there) <= now + CLOSE:
                break
            part /= 2
        common, offsets, before = there, offsets_there, between
        if r:
            between = max(math.sqrt(total(offsets**2 + 1 / own) / r), LEAST_BETWEEN)
        if max(largest, abs(between - before)) < CLOSE:
            break
        # Where the runs hardly differ, EM takes hundreds of rounds. Three show by which factor its steps shrink, and so
        # where they lead (Aitken's extrapolation), once the weights have settled: before, the steps are of their moves.
        course.append(between)
        if len(course) > 3:
            previous, latest = course[2] - course[1], course[3] - course[2]
            if largest < SETTLED and previous and 0 < latest / previous < 1:
                between = min(max(between + latest**2 / (previous - latest), LEAST_BETWEEN), 2 * between)
            course = [between]
    rates = RunRates(float(common[k]), between, {str(n): float(o) for n, o in zip(names, offsets, strict=False)})
    return Fit(common[:k], rates)


def fit_scale(
    before: Floats,
    y: NDArray[np.int64],
    runs: NDArray[np.str_],
    *,
    scales: float = 0.0,
    mean_sd: float = INTERCEPT_SD,
) -> Fit:
    """Returns the scale of the log-odds `before` and the base rates of the runs, by labels.

    The scale is drawn towards 1, and is at least `LEAST_SCALE`. By default the mean of the base rates is not drawn
    anywhere, so that the mean probability is the share of right answers.

    Args:
        before: log-odds (n,), or several rising functions of them (n, k), each with a scale of its own.
        y: (n,) of 0 and 1.
        runs: (n,) which answers have a base rate in common.
        scales: how much scales differed among the runs that gave the log-odds; at least `USUAL_SCALES` is assumed.
        mean_sd: standard deviation of the normal prior, around 0, of the base rates' mean.
    """
    columns = before.reshape(len(before), -1)
    expected, sd = np.ones(columns.shape[1]), np.full(columns.shape[1], max(USUAL_SCALES, scales))
    while True:
        fit = fit_offsets(columns, y, runs, expected=expected, sd=sd, mean_sd=mean_sd)
        low = (fit.weights < LEAST_SCALE) & (sd > HELD_SD)
        if not low.any():
            return fit
        expected, sd = np.where(low, LEAST_SCALE, expected), np.where(low, HELD_SD, sd)


def scales_between(evidence: Floats, y: ArrayLike, runs: NDArray[np.generic]) -> float:
    """Returns how much the runs' own scales of the evidence (n,) differ: their standard deviation around 1.

    Each run's scale is fitted with a base rate of its own; what its standard error explains is taken away (the moment
    estimator of DerSimonian and Laird 1986). `USUAL_SCALES` where fewer than three runs have enough answers.
    """
    labels, scales = np.asarray(y, dtype=np.float64), []
    for name in np.unique(runs):
        rows = np.flatnonzero(runs == name)
        ones = int(labels[rows].sum())
        if len(rows) >= FEWEST_FOR_SCALE and min(ones, len(rows) - ones) >= FEWEST_OF_A_CLASS:
            here = evidence[rows] - evidence[rows].mean()
            fit = fit_offsets(here[:, None], labels[rows], runs[rows], expected=1.0, sd=10.0)
            p = sigmoid(here * fit.weights[0] + fit.rates.mean)
            scales.append((fit.weights[0], float(np.sum(p * (1 - p) * here**2)) + 1e-12))
    if len(scales) < 3:
        return USUAL_SCALES
    scale, weight = np.array(scales).T
    mean = weight @ scale / weight.sum()
    excess = weight @ (scale - mean) ** 2 - (len(scale) - 1)
    spread = max(float(excess / (weight.sum() - weight @ weight / weight.sum())), 0.0)
    return max(float(np.sqrt(spread)), LEAST_BETWEEN)


# The ladder judges answers by their log-probabilities, with the least that the data justify, a free number first.
#
#     the best free number -> one the wrong way round -> all terms -> terms and trees
#
# Few answers of one run do not choose (`MIN_ROWS_TO_CHOOSE`): they have all terms, drawn to the scaled total.
#
# The free numbers are of one complexity, a weight and a base rate, so that the one of least log loss on groups left out
# is taken; the first one is taken where others are as good. The theory gives the sign of the weight: more surprise is a
# worse answer. Where the answers say otherwise the weight is next to none, so that chance does not turn the order
# round; that it is the other way round is a step of its own. Each further step is taken only where, on groups that it
# was not fitted on, it lowers the log loss by more than a standard error. All have the same base rates of runs beside
# them, so that no step is taken for knowing which run an answer is of. Where there are several runs, the AUROC over
# pairs of answers of one run must gain more than a standard error as well: a step that orders no run better is not
# taken, however well it tells runs apart whose base rates are known from few answers.

ALL_TERMS, WITH_TREES = "all terms", "terms and trees"
DRAWN_TERMS = "all terms, drawn to scaled"
DRAWN_SLOPE, DRAWN_SLOPE_SD, DRAWN_SD = -0.8, 0.5, 0.3
"""Normal priors of `DRAWN_TERMS`, in log-odds per standard deviation of a column: mean and standard deviation of the
weight of the scaled total, and standard deviation, around 0, of the weight that each term has beside it. A slope of
-0.8 is an AUROC of about 0.72. Chosen on the stores of the 0.5B coder (docs/research/no-labels.md): in trials that are
not recorded 0.2 to 0.5 for the terms, and -0.8 or -1 for the slope, were within 0.005 AUROC."""
MIN_ROWS_TO_CHOOSE = 250
"""Labelled answers of all roles together, so that folds do as the whole does, from which on they choose among the
steps. With fewer, of one run, the choice among seven free numbers is mostly chance: all terms are taken, drawn to the
one that was never far behind elsewhere. Of several runs the terms tell runs apart as well as answers: by 200 labels of
`token_logprobs_qa` AUROC was 0.017 lower than by a choice."""
SURE = 0.84
"""One-sided confidence that a further step's gain is above 0: one standard error. Of 99, 95, 84 and 50 % it has the
lowest log loss on data sets and planted worlds, and is nowhere 0.005 AUROC behind the free number alone
(research/quality/bar.py, docs/research/ladder.md)."""
TIED = 1e-6
"""Log loss, in nats an answer, by which two free numbers may differ and be as good: rounding differs by less."""
LEAST = 1e-3
"""Least log-odds that a standard deviation of a free number takes away: it then orders answers, and hardly more."""
FOLDS = 5
FEWEST_FOR_TREES = 500
"""Answers of train and selection together; below, trees were never worth it in any data set that was tried."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One-sided confidence that a further step's gain is above 0. A step whose confidence is 1 is never taken."""

    linear: float = SURE
    """The bar of a free number the wrong way round, and of all terms."""
    trees: float = SURE
    min_rows: float = MIN_ROWS_TO_CHOOSE
    """Labelled answers from which on linear steps are compared; fewer, of one run, take `DRAWN_TERMS`."""

    def of(self, step: str) -> float:
        """Returns the bar of a step."""
        return self.trees if step == WITH_TREES else self.linear


USUAL_BAR = Bar()


@dataclass(frozen=True, slots=True)
class LadderColumns:
    """The features that the linear part reads, m of them, and the free numbers that are made of them."""

    places: tuple[int, ...]
    """Columns of the features, counted from the end where negative."""
    free: Mapping[str, tuple[float, ...]]
    """Free number -> a weight for each of the columns, so that more of it is a worse answer; ties go to the first."""
    logprobs: bool = False
    """Whether the columns are log-probabilities, of which the logarithm of the surprise is read; else they are terms,
    read as they are."""
    priors: tuple[float, ...] = (WEIGHT_SD,)
    """Standard deviations of the prior of a weight that are tried where everything is read."""
    closest: tuple[float, ...] = ()
    """(m,): for a column of probabilities, the distance from 0 and 1 to which they are moved before their log-odds are
    read (`closest_of`); 0 for a number that is read as it is. Empty where no column holds probabilities."""

    def of(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Returns what is read (n, m) of features (n, d); an undefined log-probability reads as one of 0."""
        values = X[:, list(self.places)].astype(np.float64)
        if self.logprobs:
            return np.log(SURPRISE_FLOOR - np.nan_to_num(values))
        for place in np.flatnonzero(self.closest).tolist():
            closest = self.closest[place]
            p = np.clip(values[:, place], closest, highest_of(closest))
            values[:, place] = np.log(p) - np.log1p(-p)
        return values

    def add_to(self, graph: GraphBuilder, features: str, width: int) -> str:
        """Adds the same to a graph: (n, width) float32 features in, (n, m) out."""
        places = graph.constant(np.array(self.places) % width)
        values = graph.add("Gather", features, places, axis=1)
        if any(self.closest):
            return self._add_log_odds(graph, values)
        if not self.logprobs:
            return values
        known = graph.add("Where", graph.add("IsNaN", values), graph.number([0.0]), values)
        return graph.add("Log", graph.add("Sub", graph.number(SURPRISE_FLOOR), known))

    def _add_log_odds(self, graph: GraphBuilder, values: str) -> str:
        """Adds the log-odds of those columns (n, m) that hold probabilities; the others pass as they are."""
        closest, given = np.array(self.closest), graph.constant(np.array(self.closest) > 0, np.bool_)
        low = graph.number(np.where(closest > 0, closest, 0.5))
        high = graph.number(np.where(closest > 0, [highest_of(one) for one in self.closest], 0.5))
        p = graph.add("Min", graph.add("Max", values, low), high)
        odds = graph.add("Sub", graph.add("Log", p), graph.add("Log", graph.add("Sub", graph.number(1.0), p)))
        return graph.add("Where", given, odds, values)

    def columns(self, name: str) -> Floats:
        """Returns (m, k): everything that is read, or the one number `name` that is made of it, maybe reversed.

        For `DRAWN_TERMS` the scaled total stands before everything that is read.
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
"""The terms of a finished answer, which are the last features of a schema with terms."""


@dataclass(frozen=True, slots=True, eq=False)
class LadderRows:
    """n labelled answers that a ladder is fitted on."""

    X: NDArray[np.float32]
    """(n, d): features; where the `WHOLE` answer is read, of a schema with terms."""
    y: NDArray[np.int64]
    """(n,): 1 for good answers."""
    groups: NDArray[np.str_]
    runs: NDArray[np.generic]
    """(n,): the run of each answer."""
    names: Sequence[str]
    """(d,): of the features."""
    read: LadderColumns = WHOLE


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the ladder, as it was tried."""

    name: str
    against: str
    """The step that was reached before; of a free number, the one that ties go to."""
    gain: float
    """Log loss less, in nats an answer, on groups that neither was fitted on."""
    se: float
    """Standard error of the gain, clustered by group."""
    taken: bool
    within: float = np.nan
    """AUROC more over pairs of answers of one run, on the same groups; nan where that was not looked at, because there
    is one run or because the log loss did not pay."""
    within_se: float = np.nan
    """Standard error of `within`, clustered by group."""


@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """The step that was reached, fitted. A score is log-odds: evidence, plus the base rate of the answer's run."""

    linear: str
    """The linear step: a free number, or all terms."""
    weights: Floats
    """(m,) of what is read; 0 for what is not used."""
    rates: RunRates
    """Base rates where all that is read is 0."""
    trees: Trees | None = None
    steps: tuple[Step, ...] = ()
    selection_auroc: float = np.nan
    """On groups that it was not fitted on; of all answers together, base rates included."""
    read: LadderColumns = WHOLE
    prior: float = WEIGHT_SD
    """Standard deviation of the prior of a weight."""

    @property
    def reached(self) -> str:
        """The last step that was taken."""
        return self.linear if self.trees is None else WITH_TREES

    @property
    def number(self) -> str:
        """The free number, maybe reversed, that alone orders answers of one run; empty where more does."""
        return "" if self.reached in (ALL_TERMS, DRAWN_TERMS, WITH_TREES) else self.linear

    def score(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Log-odds (n,) of answers of a run of average base rate; X (n, d) features."""
        linear = self.read.of(X) @ self.weights + self.rates.mean
        return linear if self.trees is None else linear + self.trees.score(X)

    def score_of(self, X: NDArray[np.floating[Any]], runs: NDArray[np.generic]) -> Floats:
        """Log-odds (n,) of answers of these runs; one that is not known has the average base rate."""
        return self.score(X) + self.rates.of(runs) - self.rates.mean

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        """Adds the evidence to a graph: (n, width) float32 features in, (n, 1) log-odds out."""
        read, weights = self.read.add_to(graph, features, width), graph.number(self.weights[:, None])
        weighted, mean = graph.add("MatMul", read, weights), graph.number([[self.rates.mean]])
        if self.trees is None:
            return graph.add("Add", weighted, mean, name=output)
        linear = graph.add("Add", weighted, mean)
        return graph.add("Add", linear, self.trees.add_to(graph, features, width), name=output)


PRIORS = (0.05, 0.1, 0.2, 0.5)
"""Tried for decisions: levels of many questions go together, and labels are few."""


def decided_columns(names: Sequence[str], values: NDArray[np.floating[Any]]) -> LadderColumns:
    """Returns how the columns of `probes.decisions.decision_columns` are read.

    The free numbers are each question's own number, and the probability of each option of a choice. Probabilities are
    read on their log-odds; expected levels, entropies and margins as they are. `values` (n, d): the columns.
    """
    scored = {name for name in names if "=" not in name}
    free = [n for n in names if not n.endswith(MADE) and (n in scored or question_of(n) not in scored)]
    weights = {name: tuple(-1.0 * (other == name) for other in names) for name in free}
    closest = tuple(
        closest_of(column) if _holds_probabilities(name, names, column) else 0.0
        for name, column in zip(names, np.asarray(values, dtype=np.float64).T, strict=True)
    )
    return LadderColumns(tuple(range(len(names))), weights, priors=PRIORS, closest=closest)


def _holds_probabilities(name: str, names: Sequence[str], column: Floats) -> bool:
    """Returns whether a column of decisions holds probabilities, of a predicate or of an option."""
    if name.endswith(MADE):
        return False
    return are_probabilities(column) and ("=" in name or is_predicate(name, names, column))


def fit_ladder(
    sample: LadderRows, roles: Roles, *, climb: bool = True, only: str = "", bar: Bar = USUAL_BAR, seed: int = 0
) -> Ladder:
    """Climbs as far as the train and selection rows carry, and fits what was reached on both.

    Without `climb` it stays the scaled total: for models and tasks that nobody has seen, steps that were taken on other
    models and tasks lost what they had gained (docs/research/travel.md). `only`: the linear step that it is kept to,
    such as `min`, whatever the rows say; empty where they choose.
    """
    names, read, rows = sample.names, sample.read, roles.learning
    if read is WHOLE and tuple(names[-len(TERMS) :]) != TERM_NAMES:
        raise RecordError(f"the last features are {', '.join(names[-len(TERMS) :])}; expected {', '.join(TERM_NAMES)}")
    values = read.of(sample.X)
    steps = _Climb(sample, values, rows, bar, seed)
    trees = None
    if only:
        steps.linear = only
    elif climb:
        if read is WHOLE and len(sample.y) < bar.min_rows and steps.one_run:
            steps.linear = DRAWN_TERMS
        else:
            steps.choose_linear()
        if len(names) > len(read.places) and len(rows) >= FEWEST_FOR_TREES:
            trees = steps.try_trees(roles)
    linear = _fit_linear(steps.linear, sample, values, rows, steps.prior)
    if trees is not None:
        start = linear.score_of(sample.X, sample.runs)
        trees = refit_trees(trees, sample.X, sample.y, roles, names=names, start=start)
    return replace(linear, trees=trees, steps=tuple(steps.steps), selection_auroc=steps.selection_auroc())


def unseen_scores(
    ladder: Ladder, sample: LadderRows, rows: Rows, *, folds: int, rates: bool = False, seed: int = 0
) -> Floats:
    """Returns a score (rows,) of each row by the steps of this ladder, fitted on the other folds of these rows.

    A ladder's own scores of what it was fitted on are too good. `rates`: whether a score holds the base rate of the
    answer's run. Raises `RecordError` where the groups do not suffice for so many folds.
    """
    X, y, nothing = sample.X, sample.y, rows[:0]
    values, scores = ladder.read.of(X), np.full(len(X), np.nan)
    for rest, part in group_folds(rows, sample.groups.tolist(), y, folds, seed):
        fit = _fit_linear(ladder.linear, sample, values, rest, ladder.prior)
        if ladder.trees is not None:
            own, start = Roles(rest, nothing, nothing, part), fit.score_of(X, sample.runs)
            fit = replace(fit, trees=refit_trees(ladder.trees, X, y, own, names=sample.names, start=start))
        scores[part] = fit.score_of(X[part], sample.runs[part]) if rates else fit.score(X[part])
    return scores[rows]


def scores_to_calibrate(
    ladder: Ladder, sample: LadderRows, roles: Roles, *, rates: bool, seed: int = 0
) -> tuple[Rows, Floats]:
    """Returns the seen rows (m,) and a score (m,) of each by a fit that saw no answer of the row's group.

    Calibration rows have scores of the ladder itself; learning rows have scores of the same steps, fitted on the other
    folds. Learning rows are left out where their groups do not suffice for folds.

    Args:
        ladder: fitted on train and selection rows of these roles.
        sample: the answers it was fitted on.
        roles: who learned from which rows.
        rates: whether a score holds the base rate of the answer's run.
        seed: of the folds.
    """
    X, held = sample.X, roles.calibration
    own = ladder.score_of(X[held], sample.runs[held]) if rates else ladder.score(X[held])
    with suppress(RecordError):
        learned = unseen_scores(ladder, sample, roles.learning, folds=FOLDS, rates=rates, seed=seed + 3)
        return np.concatenate([held, roles.learning]), np.concatenate([own, learned])
    return held, own


def _fit_linear(name: str, sample: LadderRows, values: Floats, rows: Rows, prior: float) -> Ladder:
    """The linear step `name` on what is read (n, m), fitted on these rows."""
    read, y, runs = sample.read, sample.y, sample.runs
    columns = read.columns(name)
    here = values[rows] @ columns
    centre, spread = here.mean(axis=0), here.std(axis=0)
    spread = np.where(spread > SAME_VALUE * (1 + np.abs(centre)), spread, 1.0)  # a constant's is rounding, not 0
    standard = (here - centre) / spread
    if name == DRAWN_TERMS:
        beside = np.zeros(len(read.places))
        expected, sd = np.append(DRAWN_SLOPE, beside), np.append(DRAWN_SLOPE_SD, beside + DRAWN_SD)
        fit = fit_offsets(standard, y[rows], runs[rows], expected=expected, sd=sd)
    else:
        fit = fit_offsets(standard, y[rows], runs[rows], sd=prior if name == ALL_TERMS else WEIGHT_SD)
    if name not in (ALL_TERMS, DRAWN_TERMS) and fit.weights[0] > -LEAST:
        fit = fit_offsets(standard, y[rows], runs[rows], expected=-LEAST, sd=HELD_SD)
    weights = columns @ (fit.weights / spread)
    rates = replace(fit.rates, mean=fit.rates.mean - float(fit.weights / spread @ centre))
    return Ladder(name, weights, rates, read=read, prior=prior)


@dataclass(eq=False)
class _Climb:
    """The ladder's comparisons on some rows."""

    sample: LadderRows
    values: Floats
    rows: Rows
    bar: Bar
    seed: int

    def __post_init__(self) -> None:
        self.y, self.read, self.groups = self.sample.y, self.sample.read, self.sample.groups
        self.runs = np.unique(self.sample.runs, return_inverse=True)[1]  # numbers are compared much faster than names
        self.sample = replace(self.sample, runs=self.runs)
        self.clusters = np.unique(self.groups, return_inverse=True)[1]
        self.folds: list[tuple[Rows, Rows]] = []  # (rows to fit on, rows to judge on), by group
        with suppress(RecordError):  # with too few groups there are no folds
            self.folds = list(group_folds(self.rows, self.groups.tolist(), self.y, FOLDS, self.seed + 3))
        self.steps: list[Step] = []
        self.linear, self.prior = next(iter(self.read.free)), self.read.priors[0]
        self.scores: dict[str, Floats] = {}
        self.evidence: dict[str, Floats] = {}

    def choose_linear(self) -> None:
        """Takes the best free number, then one the wrong way round or all terms where that pays on folds left out."""
        if not self.folds:
            return
        first, *others = self.read.free
        compared = {name: self._compare(self._unseen(name), self._unseen(first), self._judged) for name in others}
        best = max(others, key=lambda name: compared[name][0], default=first)
        if others and compared[best][0] > TIED:
            self.linear = best
        self.steps += [Step(name, first, *compared[name][:2], name == self.linear) for name in others]

        def over_linear(name: str) -> tuple[float, float, int]:
            return self._compare(self._unseen(name), self._unseen(self.linear), self._judged)

        turned = {f"{name}{REVERSED}": over_linear(f"{name}{REVERSED}") for name in self.read.free}
        contrary = max(turned, key=lambda name: turned[name][0])
        if len(self.read.priors) > 1:  # the one by which all that is read judges best on folds left out
            gains = {}
            for prior in self.read.priors:
                self.prior = prior
                gains[prior] = over_linear(ALL_TERMS)[0]
                del self.scores[ALL_TERMS]
            self.prior = max(gains, key=lambda one: gains[one])
        for name, found in ((contrary, turned[contrary]), (ALL_TERMS, None)):
            evidence = self._evidence(name), self._evidence(self.linear)
            if self._pays(name, found or over_linear(name), evidence, self._judged):
                self.linear = name

    def try_trees(self, roles: Roles) -> Trees | None:
        """Trees on top of the linear part, where selection rows that neither has seen show a gain."""
        X, train, held_out = self.sample.X, roles.train, roles.selection
        try:
            parts = [part for _, part in group_folds(train, self.groups.tolist(), self.y, 4, self.seed + 2)]
            own = Roles(np.sort(np.concatenate(parts[:3])), parts[3], held_out, held_out)
            linear = self._fit(self.linear, train)
            start = linear.score_of(X, self.runs)
            trees = fit_trees(X, self.y, own, names=self.sample.names, start=start, seed=self.seed)
        except RecordError:
            return None
        plain = linear.score(X[held_out])
        scores = (plain + trees.score(X[held_out]), plain)
        compared = self._compare(*scores, held_out)
        return trees if self._pays(WITH_TREES, compared, scores, held_out) else None

    def selection_auroc(self) -> float:
        """AUROC of the linear step reached on folds left out; of the fit itself where there are no folds."""
        if not self.folds:
            return float(auroc(self.y[self.rows], self._scores_of(self._fit(self.linear, self.rows), self.rows)))
        return float(auroc(self.y[self._judged], self._unseen(self.linear)))

    @property
    def one_run(self) -> bool:
        """Whether the answers that may be learned from are of one run."""
        return len(np.unique(self.runs[self.rows])) < 2

    @property
    def _judged(self) -> Rows:
        return np.concatenate([part for _, part in self.folds])

    def _fit(self, name: str, rows: Rows) -> Ladder:
        return _fit_linear(name, self.sample, self.values, rows, self.prior)

    def _scores_of(self, fit: Ladder, rows: Rows) -> Floats:
        scores: Floats = self.values[rows] @ fit.weights + fit.rates.of(self.runs[rows])
        return scores

    def _unseen(self, name: str) -> Floats:
        """Scores of the judged rows, each by a fit on the other folds."""
        if name not in self.scores:
            fits = [(self._fit(name, rest), part) for rest, part in self.folds]
            self.scores[name] = np.concatenate([self._scores_of(fit, part) for fit, part in fits])
            evidence = [self.values[part] @ fit.weights for fit, part in fits]
            self.evidence[name] = np.concatenate([one - one.mean() for one in evidence])
        return self.scores[name]

    def _evidence(self, name: str) -> Floats:
        """The same scores without the base rates of the runs, less their mean in each fold.

        A base rate that was fitted without an answer is the lower, the more right answers of its run are in the
        answer's fold: among answers of one run such scores are turned round.
        """
        self._unseen(name)
        return self.evidence[name]

    def _compare(self, scores: Floats, against: Floats, rows: Rows) -> tuple[float, float, int]:
        """Gain, its standard error, and the number of clusters."""
        gain = self._losses(against, rows) - self._losses(scores, rows)
        cluster = np.unique(self.clusters[rows], return_inverse=True)[1]
        return float(gain.mean()), clustered_se(gain, cluster), int(cluster.max()) + 1

    def _losses(self, scores: Floats, rows: Rows) -> Floats:
        """Log losses (m,) after each run got the base rate that suits it: what is compared is the evidence."""
        y, runs = self.y[rows], self.runs[rows]
        fit = fit_offsets(scores[:, None], y, runs, expected=1.0, sd=HELD_SD)
        logit = fit.weights[0] * scores + fit.rates.of(runs)
        losses: Floats = np.logaddexp(0, np.where(y == 1, -logit, logit))
        return losses

    def _pays(self, name: str, compared: tuple[float, float, int], evidence: tuple[Floats, Floats], rows: Rows) -> bool:
        """Notes a further step, and returns whether its gain is as sure as the bar asks, within runs as well.

        Args:
            name: of the step.
            compared: what `_compare` says of it.
            evidence: of the rows by the step, and by the step that was reached before, without base rates of runs.
            rows: the judged rows.
        """
        gain, se, clusters = compared
        quantile = require("scipy.special", "fit").stdtrit
        sure = self.bar.of(name)
        taken = bool(clusters > 1 and gain > quantile(clusters - 1, sure) * se)
        within = within_se = np.nan
        runs = self.runs[rows]
        if taken and (runs != runs[0]).any():
            within, within_se = paired_auroc_gain(self.y[rows], *evidence, runs, self.clusters[rows])
            taken = bool(within > quantile(clusters - 1, sure) * within_se)
        self.steps.append(Step(name, self.linear, gain, se, taken, within, within_se))
        return taken


def paired_auroc_gain(
    y: NDArray[np.int64], scores: Floats, against: Floats, strata: Rows, clusters: Rows
) -> tuple[float, float]:
    """Returns how much more the AUROC of `scores` is over pairs of one stratum, and its standard error.

    The strata's AUROCs are weighted by their pairs. The error is that of the placements (DeLong et al. 1988,
    doi:10.2307/2531595), summed over clusters. Both are nan where no stratum holds right and wrong answers.

    Args:
        y: (n,) 1 for right answers.
        scores: (n,) whose AUROC is compared.
        against: (n,) scores that it is compared with.
        strata: (n,) number of the stratum of each answer.
        clusters: (n,) number of the group of each answer; answers of one group depend on each other.
    """
    gained, pull, pairs = 0.0, np.zeros(len(y)), 0
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        right, wrong = rows[y[rows] == 1], rows[y[rows] == 0]
        if not len(right) or not len(wrong):
            continue
        placed = np.zeros(len(rows))  # share of the other class that an answer is on the right side of, ties half
        is_right = y[rows] == 1
        for sign, values in ((1.0, scores), (-1.0, against)):
            for own, other, side in ((is_right, ~is_right, 1.0), (~is_right, is_right, -1.0)):
                ordered = np.sort(side * values[rows][other])
                below = [np.searchsorted(ordered, side * values[rows][own], edge) for edge in ("left", "right")]
                placed[own] += sign * (below[0] + below[1]) / 2 / len(ordered)
        gain, here = float(placed[is_right].mean()), len(right) * len(wrong)
        gained, pairs = gained + here * gain, pairs + here
        pull[rows] = here * (placed - gain) / np.where(is_right, len(right), len(wrong))
    if not pairs:
        return np.nan, np.nan
    sums = np.bincount(clusters, weights=pull)
    return gained / pairs, float(np.sqrt(np.square(sums).sum())) / pairs
