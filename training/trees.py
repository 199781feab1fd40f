"""LightGBM on log-probability features: one binary head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics import auroc
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.roles import Roles

# A bounded search; larger trees are taken where they win on the selection rows.
GRID: tuple[dict[str, float], ...] = (
    {"num_leaves": 4, "min_data_in_leaf": 20},
    {"num_leaves": 7, "min_data_in_leaf": 40},
    {"num_leaves": 15, "min_data_in_leaf": 20},
    {"num_leaves": 31, "min_data_in_leaf": 40},
)
COMMON: dict[str, Any] = {
    "objective": "binary",
    "metric": "binary_logloss",
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


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A fitted booster whose split thresholds are float32 numbers, so that ONNX gives the same answers."""

    booster: Any
    parameters: dict[str, Any]
    selection_auroc: float
    """Of the chosen parameters, on the selection rows, before those joined the fit."""

    def score(self, X: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Raw log-odds (n,) before calibration. X: float32 features (n, d), NaN where undefined."""
        return np.asarray(self.booster.predict(X, raw_score=True), dtype=np.float64)


def fit_trees(
    X: NDArray[np.float32], y: NDArray[np.int64], roles: Roles, *, names: Sequence[str], seed: int = 0
) -> Trees:
    """Stop early and choose the size of the trees on the selection rows; then fit that on train and selection rows."""
    lightgbm = require("lightgbm", "train")
    best: tuple[float, dict[str, Any], int] | None = None
    train = lightgbm.Dataset(X[roles.train], y[roles.train], feature_name=_safe(names), free_raw_data=False)
    selection = lightgbm.Dataset(X[roles.selection], y[roles.selection], reference=train, free_raw_data=False)
    for size in GRID:
        parameters = {**COMMON, "num_threads": 1 if X.size < SMALL else 0, "seed": seed, **size}
        booster = lightgbm.train(
            parameters,
            train,
            num_boost_round=MAX_ROUNDS,
            valid_sets=[selection],
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
        )
        found = float(auroc(y[roles.selection], booster.predict(X[roles.selection], raw_score=True)))
        if best is None or found > best[0]:
            best = (found, parameters, booster.best_iteration)
    assert best is not None
    selected, parameters, rounds = best
    learning = lightgbm.Dataset(X[roles.learning], y[roles.learning], feature_name=_safe(names), free_raw_data=False)
    booster = lightgbm.train(parameters, learning, num_boost_round=rounds)
    if not _splits(booster):
        raise RecordError(
            f"LightGBM finds nothing to split in {len(roles.learning)} answers: they are too few, or their "
            f"log-probabilities are all alike; add runs"
        )
    return Trees(float32_thresholds(booster), {**parameters, "rounds": rounds}, selected)


def float32_thresholds(booster: Any) -> Any:
    """The booster with every split threshold rounded down to float32.

    LightGBM splits float32 features at float64 thresholds. For a float32 x, x <= t holds exactly when x <= the largest
    float32 not above t: rounding down changes no prediction, rounding to nearest or up (as converters do) does, by
    3e-3 on features that repeat values.
    """
    lightgbm = require("lightgbm", "train")
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


def _safe(names: Sequence[str]) -> list[str]:
    """LightGBM refuses some characters in feature names; the manifest keeps the real ones."""
    return [name.replace("%", "pct") for name in names]
