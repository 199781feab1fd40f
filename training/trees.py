"""LightGBM on log-probability features: one booster, its search, and its place in an ONNX graph."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.calibration import fit_platt
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.graphs import TREE_ENSEMBLE_OPSET, GraphBuilder

Floats = NDArray[np.float64]
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
"""What early stopping watches."""
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

        X: float32 features (n, d), NaN where undefined; also a Dask array.
        """
        return raw_scores(self.booster, X)

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        """Adds the same to a graph, as one TreeEnsembleRegressor: (n, width) features in, (n, 1) log-odds out."""
        lightgbm, converter = require("lightgbm", "fit"), require("onnxmltools.convert", "fit")
        types = require("onnxmltools.convert.common.data_types", "fit")
        # As a regressor its output is the plain sum of leaves: no label output, no double rounding through a
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
    """Where its loss on the selection rows was least."""
    scores: Floats
    """Raw scores of the selection rows after that many."""


class Grower(Protocol):
    """What grows boosters on given rows: this machine, or a cluster."""

    def grow(self, parameters: Parameters) -> Grown:
        """Fitted on the train rows, the rounds chosen on the selection rows."""
        ...

    def finish(self, parameters: Parameters, rounds: int) -> Any:
        """The booster on train and selection rows."""
        ...


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
    both reach together.

    X is an array (n, d), or a Dask array for rows beyond this machine's memory: then the cluster of the default Dask
    client fits (`Cluster`), with the same search.
    """
    grower = _grower(X, y, roles, names, start)
    at, binary = y[roles.selection], objective == "binary"
    merit = _auroc if binary else _closeness
    base: Parameters = {"objective": objective, "metric": METRIC[objective], **COMMON, "seed": seed}
    base["num_threads"] = 1 if X.size < SMALL else 0
    best = max((grower.grow({**base, **size}) for size in GRID), key=lambda grown: merit(at, grown))
    for more in _refinements(y[roles.train] if binary else None, names):
        tried = grower.grow({**best.parameters, **more})
        gain = merit(at, tried) - merit(at, best)
        if gain >= 0 if "monotone_constraints" in more else gain > 0 and _loss(at, tried) < _loss(at, best):
            best = tried
    booster = grower.finish(best.parameters, best.rounds)
    if not _splits(booster):
        raise RecordError(
            f"LightGBM finds nothing to split in {len(roles.learning)} answers: they are too few, or their "
            f"log-probabilities are all alike; add runs"
        )
    selected = merit(at, best) if binary else float("nan")
    return Trees(float32_thresholds(booster), {**best.parameters, "rounds": best.rounds}, selected)


def refit_trees(
    trees: Trees, X: NDArray[np.float32], y: NDArray[Any], roles: Roles, *, names: Sequence[str], start: Floats | None
) -> Trees:
    """Returns the same recipe fitted on train and selection rows of these roles; `start` as for `fit_trees`."""
    parameters = {name: value for name, value in trees.parameters.items() if name != "rounds"}
    booster = _grower(X, y, roles, names, start).finish(parameters, trees.parameters["rounds"])
    return Trees(float32_thresholds(booster), trees.parameters, trees.selection_auroc)


def _refinements(y: NDArray[np.int64] | None, names: Sequence[str]) -> Iterator[Parameters]:
    """What is tried on top of the best size, one after the other. `y`: None where there are no classes."""
    ones = 0 if y is None else int(y.sum())
    zeros = 0 if y is None else len(y) - ones
    if min(ones, zeros) and max(ones, zeros) >= IMBALANCE * min(ones, zeros):
        yield {"scale_pos_weight": zeros / ones}
    if any(_signs(names)):
        yield {"monotone_constraints": _signs(names)}


def _signs(names: Sequence[str]) -> list[int]:
    """LightGBM's constraint of each feature: 1 where a score may only rise with it, -1 where only fall, 0 for none."""
    return [-1 if name in FALLING else int(name.rpartition(".")[2] in RISING) for name in names]


def _auroc(y: NDArray[np.int64], grown: Grown) -> float:
    """0 where the selection rows are of one class: every candidate is as good as the next."""
    reached = float(auroc(y, grown.scores))
    return reached if np.isfinite(reached) else 0.0


def _closeness(y: NDArray[np.float64], grown: Grown) -> float:
    return -float(np.square(grown.scores - y).mean())


def _loss(y: NDArray[np.int64], grown: Grown) -> float:
    """Log loss after Platt's map: weights shift the log-odds, and every head is calibrated anyway."""
    if len(np.unique(y)) < 2:
        return 0.0
    logit = fit_platt(grown.scores, y).logit(grown.scores)
    return float(np.logaddexp(0, np.where(y == 1, -logit, logit)).mean())


def _grower(X: Any, y: NDArray[Any], roles: Roles, names: Sequence[str], start: Floats | None) -> Grower:
    if isinstance(X, np.ndarray):
        return _Here(X, y, roles, names, start)
    return Cluster(X, y, roles, names, start)


class _Here:
    """Grows on this machine, with LightGBM's early stopping."""

    def __init__(
        self,
        X: NDArray[np.float32],
        y: NDArray[Any],
        roles: Roles,
        names: Sequence[str],
        start: Floats | None,
    ) -> None:
        self._lightgbm = require("lightgbm", "fit")
        self._X, self._y, self._roles, self._names, self._start = X, y, roles, safe(names), start
        self._train = self._rows(roles.train)
        self._selection = self._rows(roles.selection, reference=self._train)

    def _rows(self, rows: NDArray[np.int64], **more: Any) -> Any:
        return self._lightgbm.Dataset(
            self._X[rows],
            self._y[rows],
            init_score=None if self._start is None else self._start[rows],
            feature_name=self._names,
            free_raw_data=False,
            **more,
        )

    def grow(self, parameters: Parameters) -> Grown:
        booster = self._lightgbm.train(
            parameters,
            self._train,
            num_boost_round=MAX_ROUNDS,
            valid_sets=[self._selection],
            callbacks=[self._lightgbm.early_stopping(PATIENCE, verbose=False)],
        )
        scores = raw_scores(booster, self._X[self._roles.selection])
        if self._start is not None:
            scores = scores + self._start[self._roles.selection]
        return Grown(parameters, booster.best_iteration, scores)

    def finish(self, parameters: Parameters, rounds: int) -> Any:
        return self._lightgbm.train(parameters, self._rows(self._roles.learning), num_boost_round=rounds)


def raw_scores(booster: Any, X: Any, rounds: int | None = None) -> Floats:
    """Raw scores (n,) of an array, or of a Dask array block by block, after so many rounds (by default the best)."""
    if isinstance(X, np.ndarray):
        return np.asarray(booster.predict(X, raw_score=True, num_iteration=rounds), dtype=np.float64)
    return blockwise(lambda block: raw_scores(booster, block, rounds), X)


def in_memory(X: Any) -> NDArray[np.float32]:
    """The array itself; of a Dask array a sample of its rows, as many as are held easily."""
    if isinstance(X, np.ndarray):
        return X
    return sample(X)


def grow(
    parameters: Mapping[str, Any], X: NDArray[np.float32], y: Floats, seed: int, weight: Floats | None = None
) -> Trees:
    """Returns a booster of fixed parameters, without a search, whose thresholds float32 can hold."""
    lightgbm = require("lightgbm", "fit")
    parameters = {**parameters, "seed": seed, "deterministic": True, "force_row_wise": True, "num_threads": 1}
    rounds = parameters.pop("rounds")
    booster = lightgbm.train(
        {**parameters, "verbosity": -1}, lightgbm.Dataset(X, y, weight=weight), num_boost_round=rounds
    )
    # The converter to ONNX knows no cross-entropy; with labels 0 and 1 it is the binary objective, raw scores the same.
    named = booster.model_to_string().replace("cross_entropy]", "binary]")
    named = named.replace("objective=cross_entropy\n", "objective=binary sigmoid:1\n")
    return Trees(float32_thresholds(lightgbm.Booster(model_str=named)), {**parameters, "rounds": rounds}, float("nan"))


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


def _splits(booster: Any) -> int:
    lines = booster.model_to_string().splitlines()
    return sum(int(line.removeprefix("num_leaves=")) - 1 for line in lines if line.startswith("num_leaves="))


def safe(names: Sequence[str]) -> list[str]:
    """LightGBM refuses some characters in feature names; the manifest keeps the real ones."""
    return [name.replace("%", "pct") for name in names]


# The same boosters where the features are a Dask array: LightGBM fits them on the workers of a Dask cluster.
#
#     client = Client("scheduler:8786")
#     X = dask.array.from_array(features, chunks=(100_000, -1))   # or read by the workers themselves
#     fit_trees(X, y, roles, names=names)
#
# Labels, groups and scores, a few bytes an answer, stay on this machine; features never come back to it, but for the
# sample of `sample`.
#
# LightGBM's Dask interface evaluates on other rows but does not stop early (its workers would stop at different
# rounds and wait for each other for ever: LightGBM issues 3712 and 6351). Here all rounds are fitted, their losses on
# the selection rows are computed afterwards, and the rule of early stopping is applied to these: the same rounds as
# it would have found, for more work. Which rows a worker holds decides its bins and its bagging, so that two fits
# differ as two seeds do on one machine.

SAMPLE_ROWS = 200_000
"""Rows that come to this machine, for the region of support and for checking the graph."""

BLOCK_ROWS = 100_000

FITS = 3
"""How often a fit is begun, where each time a worker is lost."""
LOOK_AFTER = 1.0
"""Seconds between two looks at the workers."""


class Cluster:
    """Grows on the workers of the default Dask client."""

    def __init__(
        self, X: Any, y: NDArray[Any], roles: Roles, names: Sequence[str], start: Floats | None = None
    ) -> None:
        """X: a Dask array (n, d) of float32; `start` (n,): log-odds that the trees add to.

        Raises `RecordError` for anything else, and where there is no client.
        """
        for module in ("dask.dataframe", "distributed"):  # LightGBM asks for both, and says less
            require(module, "train,dask")
        self._array = require("dask.array", "dask")
        if not isinstance(X, self._array.Array):
            raise RecordError(f"features are a {type(X).__name__}; expected a NumPy or a Dask array")
        distributed = require("distributed", "dask")
        try:
            self._client = distributed.default_client()
        except ValueError as error:
            raise RecordError(
                "features are a Dask array, and there is no Dask client: make a distributed.Client first"
            ) from error
        self._X = X.rechunk({1: -1})
        self._y, self._roles, self._names, self._start = y, roles, safe(names), start

    def grow(self, parameters: Parameters) -> Grown:
        booster = self._fit(parameters, self._roles.train, MAX_ROUNDS)
        selection, y = self._X[self._roles.selection], self._y[self._roles.selection]
        known = np.zeros(len(y)) if self._start is None else self._start[self._roles.selection]
        starts = np.cumsum([0, *selection.chunks[0]])
        delayed = require("dask", "dask").delayed
        losses = log_losses_by_round if parameters["objective"] == "binary" else squares_by_round
        sums = [
            delayed(losses)(booster, block, y[start:end], known[start:end])
            for block, start, end in zip(selection.to_delayed()[:, 0], starts[:-1], starts[1:], strict=True)
        ]
        rounds = best_rounds(np.sum(self._client.gather(self._client.compute(sums)), axis=0))
        added = blockwise(lambda block: raw_scores(booster, block, rounds), selection)
        return Grown(parameters, rounds, added + known)

    def finish(self, parameters: Parameters, rounds: int) -> Any:
        return self._fit(parameters, self._roles.learning, rounds)

    def _fit(self, parameters: Parameters, rows: Rows, rounds: int) -> Any:
        interface = require("lightgbm.dask", "train,dask")
        # Each worker uses the threads it has.
        given = {name: value for name, value in parameters.items() if name not in ("num_threads", "seed")}
        binary = parameters["objective"] == "binary"
        kind = interface.DaskLGBMClassifier if binary else interface.DaskLGBMRegressor
        model = kind(**given, random_state=parameters["seed"], n_estimators=rounds, client=self._client)
        X = self._X[rows]
        y = self._array.from_array(self._y[rows], chunks=(X.chunks[0],))
        known = None if self._start is None else self._array.from_array(self._start[rows], chunks=(X.chunks[0],))

        def fit() -> Any:
            with warnings.catch_warnings():
                # It says so whenever its estimators are made as they are meant to be.
                warnings.filterwarnings("ignore", message="Parameter n_jobs will be ignored")
                return model.fit(X, y, init_score=known, feature_name=self._names).booster_

        return fit_with_who_is_left(self._client, fit)


def fit_with_who_is_left(client: Any, fit: Callable[[], Any]) -> Any:
    """Returns what `fit` returns; where a worker is lost meanwhile, fits anew with those that are left or came back.

    LightGBM's workers speak to each other directly, and wait for one that died for ever, or fail when their connection
    to it ends. So they are watched: when one is gone, what they compute is cancelled and the others are started again.
    Raises `RecordError` where a worker was lost each of `FITS` times, and whatever else ends a fit of which no worker
    was lost.
    """
    for _ in range(FITS):
        watch = _WorkerWatch(client)
        try:
            with watch:
                return fit()
        except Exception:
            if not watch.lost and not watch.look_once_more():
                raise
    raise RecordError(
        f"a worker of the Dask cluster was lost in each of {FITS} fits, last {', '.join(sorted(watch.lost))}; look"
        " at the memory that the workers are allowed, and start again"
    )


class _WorkerWatch:
    """Looks every second whether all workers are still there, from its beginning to its end."""

    def __init__(self, client: Any) -> None:
        self._client, self._there = client, set(client.nthreads())
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self.lost: set[str] = set()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def look_once_more(self) -> bool:
        """Tells whether a worker is gone, a second after the fit failed.

        The others may report a broken connection before the scheduler reports who broke it.
        """
        time.sleep(LOOK_AFTER)
        return self._look()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_AFTER):
            if self._look():
                return

    def _look(self) -> bool:
        now = set(self._client.nthreads())
        self.lost = self._there - now
        if self.lost:
            future = require("distributed", "dask").Future
            waiting = [key for key in list(self._client.futures) if "_train_part" in str(key)]
            self._client.cancel([future(key, self._client) for key in waiting], force=True)
            left = sorted(self._there & now)
            if left:  # they are inside LightGBM's code, which waits for the lost one
                self._client.restart_workers(left, raise_for_error=False)
        return bool(self.lost)


def log_losses_by_round(booster: Any, X: NDArray[np.float32], y: NDArray[np.int64], start: Floats) -> Floats:
    """Returns the summed log loss (rounds,) after each round, from log-odds `start` (n,) before the first."""
    sign = 1.0 - 2.0 * y
    return np.array([np.logaddexp(0, sign * scores).sum() for scores in _stages(booster, X, start)])


def squares_by_round(booster: Any, X: NDArray[np.float32], y: Floats, start: Floats) -> Floats:
    """Returns the summed squared errors (rounds,) of these rows after each round."""
    return np.array([np.square(scores - y).sum() for scores in _stages(booster, X, start)])


def _stages(booster: Any, X: NDArray[np.float32], start: Floats) -> Iterator[Floats]:
    """Raw scores (n,) after each round: one array, that changes."""
    scores = start.copy()
    for number in range(booster.num_trees()):
        scores += booster.predict(X, raw_score=True, start_iteration=number, num_iteration=1)
        yield scores


def best_rounds(losses: Floats, patience: int = PATIENCE) -> int:
    """How many rounds early stopping would keep, by these losses (rounds,)."""
    best = 0
    for number, loss in enumerate(losses):
        if loss < losses[best]:
            best = number
        elif number - best >= patience:
            break
    return best + 1


def blockwise(function: Callable[[NDArray[np.float32]], Floats], X: Any) -> Floats:
    """`function` of every block of rows, computed where the block is: (n,) on this machine."""
    if not X.shape[0]:
        return np.empty(0)
    blocks = X.rechunk({1: -1}).map_blocks(function, dtype=np.float64, drop_axis=1, meta=np.empty(0))
    return np.asarray(blocks.compute(), dtype=np.float64)


def sample(X: Any, most: int = SAMPLE_ROWS) -> NDArray[np.float32]:
    """Some rows of a Dask array, evenly spread; all where they are few."""
    return np.asarray(X[:: max(1, -(-X.shape[0] // most))].compute(), dtype=np.float32)


def distribute(X: NDArray[np.float32], rows: int = BLOCK_ROWS) -> Any:
    """X as a Dask array whose blocks of so many rows lie with the workers of the default client, several to each."""
    array, distributed = require("dask.array", "dask"), require("distributed", "dask")
    client = distributed.default_client()
    rows = min(rows, max(1, -(-len(X) // (2 * len(client.nthreads())))))
    return client.persist(array.from_array(X, chunks=(rows, -1)))
