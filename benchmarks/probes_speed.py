"""All layers' probes at once against scikit-learn layer by layer: (4000, 30, 576), 5 folds, 3 penalties, in one run.

    python -m benchmarks.probes_speed [--layers 30] [--out FILE.json]

The states are made up, with the spectrum that SmolLM2-135M's have (eigenvalues of the standardised states of layer 15,
recorded/smollm2-metacog-eval): it decides how many steps a solver needs. scikit-learn is used as its documentation
shows: `cross_val_predict` of StandardScaler and LogisticRegression (lbfgs, its default tolerance), on float32. The
second number leaves the scaler out of the folds. Timed is the way from float16 states to held-out scores, on all cores.
"""

import json
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from metaprobe.training.linear_probe import score_held_out

ROWS, WIDTH, FOLDS = 4000, 576, 5
C = (1.0, 0.1, 0.01)
LEARNED = ROWS * (FOLDS - 1) // FOLDS
PENALTIES = tuple(1 / (c * LEARNED) for c in C)
"""The same in the batched solver's units."""
RANK = np.array([1, 2, 3, 5, 9, 17, 33, 65, 129, 201, 576])
EIGENVALUE = np.array([86.8, 40.3, 27.2, 19.9, 10.7, 7.3, 4.3, 1.9, 0.38, 0.07, 0.005])
"""Eigenvalues of the standardised states, by rank; between these, straight lines on logarithmic axes."""


def made_up(layers: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(states (n, layers, D) float16, labels, groups): the label moves 20 of the principal components a little."""
    rng = np.random.default_rng(seed)
    spread = np.sqrt(np.exp(np.interp(np.log(np.arange(1, WIDTH + 1)), np.log(RANK), np.log(EIGENVALUE))))
    y = rng.integers(0, 2, ROWS)
    states = np.empty((ROWS, layers, WIDTH), dtype=np.float16)
    for layer in range(layers):
        components = rng.normal(size=(ROWS, WIDTH))
        components[:, rng.choice(120, 20, replace=False)] += 0.25 * (y - 0.5)[:, None]
        basis = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]
        states[:, layer] = (components * spread) @ basis + rng.normal(size=WIDTH)
    return states, y, np.repeat(np.arange(ROWS // 2), 2)


def folds_of(groups: np.ndarray) -> np.ndarray:
    """Returns the fold (n,) of each row, by group."""
    fold = np.empty(ROWS, dtype=np.intp)
    for number, (_, part) in enumerate(GroupKFold(FOLDS).split(groups, groups=groups)):
        fold[part] = number
    return fold


def batched(states: np.ndarray, y: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Held-out scores (layers, rows, penalties)."""
    return np.array([score_held_out(states[:, layer], y, fold, PENALTIES) for layer in range(states.shape[1])])


def layer_by_layer(states: np.ndarray, y: np.ndarray, fold: np.ndarray, *, scaler_in_folds: bool) -> np.ndarray:
    """Held-out scores (layers, rows, penalties)."""
    found = np.empty((states.shape[1], ROWS, len(C)))
    for layer in range(states.shape[1]):
        X = states[:, layer].astype(np.float32)
        if not scaler_in_folds:
            X = StandardScaler().fit_transform(X)
        for p, c in enumerate(C):
            model = LogisticRegression(C=c, max_iter=1000)
            model = make_pipeline(StandardScaler(), model) if scaler_in_folds else model
            found[layer, :, p] = cross_val_predict(model, X, y, cv=PredefinedSplit(fold), method="decision_function")
    return found


def aurocs(y: np.ndarray, fold: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """(layers, penalties, folds) from scores (layers, rows, penalties)."""
    return np.array(
        [
            [[roc_auc_score(y[fold == f], one[fold == f, p]) for f in range(FOLDS)] for p in range(len(C))]
            for one in scores
        ]
    )


@click.command()
@click.option("--layers", default=30, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path))
def main(layers: int, out: Path | None) -> None:
    """Print both times, their ratio, and how far the AUROCs are apart."""
    warnings.filterwarnings("error", message=".*failed to converge.*")
    states, y, groups = made_up(layers)
    fold = folds_of(groups)
    batched(states[:, :1], y, fold)  # torch starts its threads

    def timed(run: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
        start = time.perf_counter()
        found = run()
        return time.perf_counter() - start, found

    ours, found = timed(lambda: batched(states, y, fold))
    plain, reference = timed(lambda: layer_by_layer(states, y, fold, scaler_in_folds=True))
    bare, _ = timed(lambda: layer_by_layer(states, y, fold, scaler_in_folds=False))
    again, _ = timed(lambda: batched(states, y, fold))
    reached, expected = aurocs(y, fold, found), aurocs(y, fold, reference)
    result = {
        "states": [ROWS, layers, WIDTH],
        "fits": layers * FOLDS * len(C),
        "batched_s": [round(ours, 2), round(again, 2)],
        "scikit_learn_s": round(plain, 2),
        "scikit_learn_scaled_once_s": round(bare, 2),
        "ratio": round(plain / max(ours, again), 1),
        "ratio_scaled_once": round(bare / max(ours, again), 1),
        "largest_auroc_difference": float(np.abs(reached - expected).max()),
        "mean_auroc": round(float(reached.mean()), 3),
        "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(),
    }
    print(json.dumps(result, indent=2))
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
