"""LightGBM on log-probability features: one booster, its search, and its place in an ONNX graph.

The last fit may run on the workers of a Dask cluster, by LightGBM's own Dask interface (`on_cluster`).
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.calibrators import (
    Floats,
    fit_platt,
)
from metaprobe.training.export import TREE_ENSEMBLE_OPSET, GraphBuilder
from metaprobe.training.folds import Roles, Rows

DASK = "dask[array,dataframe,distributed]>=2026.1"

Parameters = dict[str, Any]

GRID: tuple[dict[str, float], ...] = (
    {"num_leaves": 4, "min_data_in_leaf": 20},
    {"num_leaves": 7, "min_data_in_leaf": 40},
    {"num_leaves": 15, "min_data_in_leaf": 20},
    {"num_leaves": 31, "min_data_in_leaf": 40},
)
"""Sizes of trees that are tried. Larger trees are taken if they win on the selection rows."""
Objective = Literal["binary", "regression"]
LOSS_OF_OBJECTIVE: dict[Objective, str] = {"binary": "binary_logloss", "regression": "l2"}
"""Maps an objective to the loss by which early stopping decides."""
COMMON_PARAMETERS: Parameters = {
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
"""Most boosting rounds."""
EARLY_STOPPING_ROUNDS = 30
"""Number of rounds without a lower loss on the selection rows after which a fit stops."""
MAX_ONE_THREAD_VALUES = 2_000_000
"""Most feature values for which one thread is fastest. Several threads would mostly wait for each other."""
MIN_CLASS_RATIO = 2.0
"""Least ratio of the larger class to the smaller one for which class weights are tried."""
RISING_STATISTICS = ("mean", "median", "min")
"""Statistics of a window with which P(right) may only rise: surer tokens mean a better answer."""
FALLING_FEATURES = tuple(f"terms.{name}" for name in ("lowest3", "mean", "min"))
"""Features with which P(right) may only fall. These terms are made of surprise, which is minus the log-probability."""


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A fitted booster whose split thresholds are float32 numbers, so that ONNX gives the same answers."""

    booster: Any
    parameters: Parameters
    selection_auroc: float
    """AUROC of the chosen parameters on the selection rows; nan for a regression."""

    def score(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Returns raw log-odds (n,), or for a regression the value itself, before calibration.

        X: float32 features (n, d), NaN where undefined.
        """
        return np.asarray(self.booster.predict(X, raw_score=True), dtype=np.float64)  # after the best round

    def add_to(self, graph: GraphBuilder, features: str, width: int, output: str = "") -> str:
        """Adds `score` to a graph, as one TreeEnsembleRegressor: (n, width) features in, (n, 1) log-odds out."""
        lightgbm, converter = require("lightgbm", "fit"), require("onnxmltools.convert", "fit")
        types = require("onnxmltools.convert.common.data_types", "fit")
        # The output of a regressor is the plain sum of leaves: no label output, no double rounding through a
        # probability.
        lines = self.booster.model_to_string().splitlines(keepends=True)
        as_regression = lightgbm.Booster(
            model_str="".join("objective=regression\n" if line.startswith("objective=") else line for line in lines)
        )
        converted = converter.convert_lightgbm(
            as_regression,
            initial_types=[("features", types.FloatTensorType([None, width]))],
            target_opset=TREE_ENSEMBLE_OPSET,
        )
        node = next(node for node in converted.graph.node if node.op_type == "TreeEnsembleRegressor")
        output = output or graph.name("trees")
        node.input[:], node.output[:], node.name = [features], [output], output
        graph.nodes.append(node)
        return output


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One candidate of the search, fitted on the train rows."""

    parameters: Parameters
    rounds: int
    """Number of boosting rounds with the least loss on the selection rows."""
    scores: Floats
    """Raw scores of the selection rows after these rounds."""


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
    """Returns trees whose parameters are chosen on the selection rows, fitted on train and selection rows.

    Three things are chosen in turn. The size of the trees is chosen by AUROC (for a regression by squared error). Class
    weights are tried if the classes are unequal, and kept if both AUROC and recalibrated log loss gain. Monotone
    constraints (scores rise with mean, median and minimum of every window) are kept if they lose nothing. Within
    `on_cluster` the search takes a sample of the rows, and the cluster's workers make the last fit.

    Args:
        X: features (n, d).
        y: labels or numbers (n,). The constraints expect higher values for better answers.
        roles: rows of each role.
        names: name of each feature.
        objective: what is fitted.
        start: log-odds (n,) to which the trees add. Trees are chosen by the sum; None for no start.
        seed: seed of the fits.
    """
    # The rows of the search, and how one candidate is fitted and judged.
    search_roles = roles
    if _CLIENT.get() is not None:
        search_roles = replace(roles, train=_sample(roles.train), selection=_sample(roles.selection))
    lightgbm, selection_rows = require("lightgbm", "fit"), search_roles.selection
    train = _data_set(X, y, search_roles.train, names, start)
    selection = _data_set(X, y, selection_rows, names, start, reference=train)
    selection_start = 0.0 if start is None else start[selection_rows]

    def fit_candidate(parameters: Parameters) -> Candidate:
        stop = lightgbm.early_stopping(EARLY_STOPPING_ROUNDS, verbose=False)
        booster = lightgbm.train(
            parameters, train, num_boost_round=MAX_ROUNDS, valid_sets=[selection], callbacks=[stop]
        )
        scores = np.asarray(booster.predict(X[selection_rows], raw_score=True), dtype=np.float64)
        return Candidate(parameters, booster.best_iteration, scores + selection_start)

    selection_y, is_binary = y[selection_rows], objective == "binary"

    def merit(fit_candidate: Candidate) -> float:
        if not is_binary:
            return -float(np.square(fit_candidate.scores - selection_y).mean())
        selection_auroc = float(auroc(selection_y, fit_candidate.scores))
        return selection_auroc if np.isfinite(selection_auroc) else 0.0  # with one class, all candidates are equal

    # The best size, then the refinements that gain.
    base: Parameters = {
        "objective": objective,
        "metric": LOSS_OF_OBJECTIVE[objective],
        **COMMON_PARAMETERS,
        "seed": seed,
    }
    base["num_threads"] = 1 if X.size < MAX_ONE_THREAD_VALUES else 0
    best = max((fit_candidate({**base, **size}) for size in GRID), key=merit)
    for refinement in _refinements(y[search_roles.train] if is_binary else None, names):
        candidate = fit_candidate({**best.parameters, **refinement})
        gain = merit(candidate) - merit(best)
        if (
            gain >= 0
            if "monotone_constraints" in refinement
            else gain > 0 and _loss(selection_y, candidate) < _loss(selection_y, best)
        ):
            best = candidate
    # The last fit, on train and selection rows.
    best_auroc = merit(best) if is_binary else float("nan")
    parameters = {**best.parameters, "rounds": best.rounds}
    trees = refit_trees(Trees(None, parameters, best_auroc), X, y, roles, names=names, start=start)
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
    """Returns trees with the parameters of `trees`, fitted on the train and selection rows of these roles.

    They are fitted in this process, or on the workers of the cluster that `on_cluster` opened. The arguments are those
    of `fit_trees`.
    """
    rows, rounds = roles.learning, trees.parameters["rounds"]
    parameters = {name: value for name, value in trees.parameters.items() if name != "rounds"}
    if (client := _CLIENT.get()) is not None:
        rows_start = None if start is None else start[rows]
        booster = _fit_on_workers(
            client,
            X=X[rows],
            y=y[rows],
            start=rows_start,
            names=lightgbm_names(names),
            parameters=parameters,
            rounds=rounds,
        )
    else:
        data = _data_set(X, y, rows, names, start)
        booster = require("lightgbm", "fit").train(parameters, data, num_boost_round=rounds)
    return Trees(float32_thresholds(booster), trees.parameters, trees.selection_auroc)


def _refinements(y: NDArray[np.int64] | None, names: Sequence[str]) -> Iterator[Parameters]:
    """Yields parameters that are tried in addition to the best size, in order. `y` is None for a regression."""
    ones = 0 if y is None else int(y.sum())
    zeros = 0 if y is None else len(y) - ones
    if min(ones, zeros) and max(ones, zeros) >= MIN_CLASS_RATIO * min(ones, zeros):
        yield {"scale_pos_weight": zeros / ones}
    # LightGBM's constraint of each feature: 1 if a score may only rise with it, -1 if it may only fall, else 0.
    signs = [-1 if name in FALLING_FEATURES else int(name.rpartition(".")[2] in RISING_STATISTICS) for name in names]
    if any(signs):
        yield {"monotone_constraints": signs}


def _loss(y: NDArray[np.int64], candidate: Candidate) -> float:
    """Returns the log loss after Platt's calibration.

    Class weights shift the log-odds, which calibration undoes, as it does in every head.
    """
    if len(np.unique(y)) < 2:
        return 0.0
    logit = fit_platt(candidate.scores, y).logit(candidate.scores)
    return float(np.logaddexp(0, np.where(y == 1, -logit, logit)).mean())


def _data_set(
    X: NDArray[np.float32], y: NDArray[Any], rows: Rows, names: Sequence[str], start: Floats | None, **options: Any
) -> Any:
    """Returns LightGBM's data set of some rows.

    Args:
        X: features (n, d).
        y: labels or numbers (n,).
        rows: the rows to use.
        names: name of each feature.
        start: log-odds (n,) to which the trees add; None for none.
        **options: further options of the data set.
    """
    rows_start = None if start is None else start[rows]
    lightgbm = require("lightgbm", "fit")
    return lightgbm.Dataset(
        X[rows], y[rows], init_score=rows_start, feature_name=lightgbm_names(names), free_raw_data=False, **options
    )


def float32_thresholds(booster: Any) -> Any:
    """Returns the booster with every split threshold rounded down to float32.

    LightGBM splits float32 features at float64 thresholds. For a float32 x, x <= t holds exactly when x <= the largest
    float32 not above t. So rounding down changes no prediction. Rounding to nearest or up, as converters do, changes
    predictions by 3e-3 on features that repeat values.
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
    """Returns the largest float32 that is not above each value."""
    rounded = values.astype(np.float32)
    return np.where(rounded.astype(np.float64) > values, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def lightgbm_names(names: Sequence[str]) -> list[str]:
    """Returns feature names without the characters that LightGBM refuses. The manifest keeps the original names."""
    return [name.replace("%", "pct") for name in names]


# The last fit on the workers of a Dask cluster, by LightGBM's own Dask interface.
#
# LightGBM's Dask interface does not stop early: its workers would stop at different rounds and wait for each other for
# ever (LightGBM issues 3712 and 6351). So size and rounds are searched on this machine, on a sample of the rows. The
# rows that a worker holds decide its bins and its bagging, so two fits differ as two seeds do on one machine.

SAMPLE_ROWS = 200_000
"""Most train rows, and most selection rows, on which parameters are searched if the last fit runs on a cluster."""
BLOCK_ROWS = 100_000
"""Most rows of a block that is sent to a worker."""
LOOK_INTERVAL_S = 1.0
"""Seconds between two checks that all workers are alive."""
_CLIENT: ContextVar[Any] = ContextVar("the Dask client whose workers fit", default=None)


@contextmanager
def on_cluster(scheduler: str | None) -> Iterator[None]:
    """Fits boosters on the workers of this Dask scheduler within the block; on this machine if `scheduler` is None."""
    if scheduler is None:
        yield
        return
    for module in (
        "dask.array",
        "dask.dataframe",
    ):  # LightGBM needs both, but its error does not say how to install them
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
    *,
    X: NDArray[np.float32],
    y: NDArray[Any],
    start: Floats | None,
    names: list[str],
    parameters: Parameters,
    rounds: int,
) -> Any:
    """Returns a booster that the workers of a Dask cluster fit.

    Args:
        client: the Dask client.
        X: features (n, d).
        y: labels or numbers (n,).
        start: log-odds (n,) to which the trees add; None for none.
        names: name of each feature.
        parameters: LightGBM's parameters.
        rounds: number of boosting rounds.
    """
    array, interface = require("dask.array", DASK), require("lightgbm.dask", DASK)
    estimator = interface.DaskLGBMClassifier if parameters["objective"] == "binary" else interface.DaskLGBMRegressor
    # Each worker uses the threads it has.
    estimator_parameters = {name: value for name, value in parameters.items() if name not in ("num_threads", "seed")}
    model = estimator(**estimator_parameters, random_state=parameters["seed"], n_estimators=rounds, client=client)
    block_rows = min(BLOCK_ROWS, max(1, -(-len(X) // (2 * len(client.nthreads())))))  # several blocks to each worker
    start_blocks = None if start is None else array.from_array(start, chunks=block_rows)
    with _fail_if_worker_lost(client), warnings.catch_warnings():
        # LightGBM gives this warning even for estimators that are made as documented.
        warnings.filterwarnings("ignore", message="Parameter n_jobs will be ignored")
        fitted = model.fit(
            array.from_array(X, chunks=(block_rows, -1)),
            array.from_array(y, chunks=block_rows),
            init_score=start_blocks,
            feature_name=names,
        )
    return fitted.booster_


@contextmanager
def _fail_if_worker_lost(client: Any) -> Iterator[None]:
    """Ends the block's fit with a `RecordError` if a worker is lost. Other errors of the fit are raised unchanged.

    LightGBM's workers speak to each other directly, and wait forever for a worker that died. If a worker is gone, the
    work of the others is cancelled and they are started again.
    """
    workers, lost, ended = set(client.nthreads()), set[str](), Event()

    def end_if_lost() -> bool:
        current = set(client.nthreads())
        if workers <= current:
            return False
        lost.update(workers - current)
        future = require("distributed", DASK).Future
        waiting = [key for key in list(client.futures) if "_train_part" in str(key)]
        client.cancel([future(key, client) for key in waiting], force=True)
        if remaining := sorted(workers & current):
            client.restart_workers(remaining, raise_for_error=False)
        return True

    def watch() -> None:
        while not ended.wait(LOOK_INTERVAL_S) and not end_if_lost():
            pass

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        ended.set()
        thread.join()
        if not lost:  # workers may report a broken connection before the scheduler reports the lost worker
            time.sleep(LOOK_INTERVAL_S)
        if not (lost or end_if_lost()):
            raise
        raise RecordError(
            f"the Dask cluster lost {', '.join(sorted(lost))} during a fit; look at the memory that the workers are"
            " allowed, and start again"
        ) from error
    finally:
        ended.set()
        thread.join()
