"""LightGBM on log-probability features: one booster, its search, and its place in an ONNX graph."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.common.calibrate import fit_platt
from metaprobe.training.common.roles import Roles

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
TREE_ENSEMBLE_OPSET = 15
"""The newest that onnxmltools converts to."""


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A fitted booster whose split thresholds are float32 numbers, so that ONNX gives the same answers."""

    booster: Any
    parameters: Parameters
    selection_auroc: float
    """Of the chosen parameters, on the selection rows; nan for a regression."""

    def score(self, X: NDArray[np.floating[Any]]) -> Floats:
        """Raw log-odds (n,), or the number itself, before calibration.

        X: float32 features (n, d), NaN where undefined; also a Dask array.
        """
        return raw_scores(self.booster, X)

    def onnx_nodes(self, input_name: str, output_name: str, width: int) -> tuple[list[Any], list[Any]]:
        """The same for a graph: one TreeEnsembleRegressor, (n, width) features in, (n, 1) log-odds out."""
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
        node.input[:], node.output[:], node.name = [input_name], [output_name], output_name
        return [node], []


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
    client fits (`metaprobe.training.common.dask_trees`), with the same search.
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
    found = float(auroc(y, grown.scores))
    return found if np.isfinite(found) else 0.0


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
    from metaprobe.training.common.dask_trees import Cluster  # needs an extra

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
    from metaprobe.training.common.dask_trees import blockwise  # needs an extra

    return blockwise(lambda block: raw_scores(booster, block, rounds), X)


def in_memory(X: Any) -> NDArray[np.float32]:
    """The array itself; of a Dask array a sample of its rows, as many as are held easily."""
    if isinstance(X, np.ndarray):
        return X
    from metaprobe.training.common.dask_trees import sample  # needs an extra

    return sample(X)


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
