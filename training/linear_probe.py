"""The linear probe of hidden states: its fit, its choice of layer, position and penalty, and its ONNX graph."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.activations import CONVENTION
from metaprobe.records.extras import require
from metaprobe.records.types import HIDDEN, FloatArray
from metaprobe.training.calibrators import Calibrator
from metaprobe.training.export import GraphBuilder
from metaprobe.training.folds import Roles, Rows, group_folds
from metaprobe.training.stored_states import Block, States, check_captured

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """AUROC that one layer and position reached at its best penalty."""

    layer: int
    position: str
    penalty: float
    auroc: float
    """Mean AUROC over the inner folds, on learning rows that the probe was not fitted on."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearProbe:
    """score = ((h - mean) / scale) @ weights + intercept, where h holds the states of its layers at one position."""

    layers: tuple[int, ...]
    position: str
    penalty: float
    mean: Floats
    """Mean of each number of the states (layers * D,). `scale` and `weights` have the same shape."""
    scale: Floats
    weights: Floats
    intercept: float
    sweep: tuple[SweepPoint, ...] = ()
    """Results for every layer and position tried."""
    tried: int = 1
    """Number of combinations of layer, position and penalty among which the probe was chosen."""

    def contract(self, target: str) -> dict[str, Any]:
        """Returns the contract of the probe's checkpoint: its inputs and its outputs."""
        return {
            **({"layer": self.layers[0]} if len(self.layers) == 1 else {"layers": list(self.layers)}),
            "position": self.position,
            "width": len(self.weights) // len(self.layers),
            "convention": CONVENTION,
            "target": target,
        }

    def graph(self, output: str, calibrator: Calibrator) -> bytes:
        """Returns the probe for ONNX: float32 (n, layers * D) in, (n, 1) probabilities out."""
        return linear_graph(
            input_name=HIDDEN,
            mean=self.mean,
            scale=self.scale,
            weights=self.weights[:, None],
            intercept=np.array([self.intercept]),
            outputs=[output],
            calibrator=calibrator,
        )

    def score(self, states: States, rows: Rows | None = None) -> Floats:
        """Returns scores (rows,), higher for answers that are likelier right. They are not calibrated."""
        return self.score_of(self.read(states, rows))

    def read(self, states: States, rows: Rows | None = None) -> FloatArray:
        """Returns the states that the probe reads: float32 (rows, layers * D)."""
        blocks = [states.read(layer, self.position) for layer in self.layers]
        chosen = [block if rows is None else block[rows] for block in blocks]
        return np.concatenate(chosen, axis=1).astype(np.float32)

    def score_of(self, hidden: FloatArray) -> Floats:
        """Returns the scores (n,) of states (n, layers * D)."""
        return ((hidden.astype(np.float64) - self.mean) / self.scale) @ self.weights + self.intercept


def linear_graph(
    *,
    input_name: str,
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    weights: NDArray[np.float64],
    intercept: NDArray[np.float64],
    outputs: Sequence[str],
    calibrator: Calibrator | None = None,
    impute: bool = False,
) -> bytes:
    """Returns the graph of sigmoid(((x - mean) / scale) @ weights + intercept).

    The input is float32 (n, d). Each output is one probability (n, 1).

    Args:
        input_name: name of the input.
        mean: mean of each column (d,).
        scale: standard deviation of each column (d,).
        weights: weights (d, heads).
        intercept: intercepts (heads,).
        outputs: name of each output.
        calibrator: map that replaces the sigmoid, if there is one output.
        impute: whether NaN inputs take the training mean, which is 0 after standardising.
    """
    graph = GraphBuilder()
    x = graph.add("Div", graph.add("Sub", input_name, graph.number(mean)), graph.number(scale))
    if impute:
        x = graph.add("Where", graph.add("IsNaN", x), graph.number([0.0]), x)
    logits = graph.add("Add", graph.add("MatMul", x, graph.number(weights)), graph.number(intercept))
    if calibrator is not None:
        calibrator.add_to(graph, logits, outputs[0])
    elif len(outputs) == 1:
        graph.add("Sigmoid", logits, name=outputs[0])
    else:
        first_output = graph.add("Split", logits, graph.constant([1] * len(outputs)), more=len(outputs) - 1, axis=1)
        for index, output in enumerate(outputs):
            graph.add("Sigmoid", f"{first_output}_{index}" if index else first_output, name=output)
    return graph.model({input_name: len(weights)}, outputs)


def score_held_out(block: Block, y: Floats, fold: NDArray[np.intp], penalties: Sequence[float]) -> Floats:
    """Returns each row's score (n, P) by the probe that was fitted on the rows of all other folds.

    States are standardised by the moments of all rows, which use no labels.

    Args:
        block: hidden states (n, D).
        y: targets (n,) in [0, 1].
        fold: fold of each row (n,), counted from 0.
        penalties: the P penalties.
    """
    solved = _solve(block, y, fold != np.arange(int(fold.max()) + 1)[:, None], penalties)[0]
    scores: Floats = solved.scores.double().numpy().transpose(0, 2, 1)  # (F, n, P)
    return scores[fold, np.arange(len(y))]


def _solve(
    block: Block, y: Floats, learns: NDArray[np.bool_], penalties: Sequence[float]
) -> tuple[Any, Floats, Floats]:
    """Returns the probes of all folds and penalties (`Solved`), with mean and scale (D,) of the states.

    A constant unit has scale infinity.

    Args:
        block: hidden states (n, D).
        y: targets (n,) in [0, 1].
        learns: whether each fold learns from each row, (F, n).
        penalties: the P penalties.
    """
    torch = require("torch", "train")  # takes seconds to load

    from metaprobe.training.solve import GRADIENT_TOLERANCE, solve_logistic, standardise

    # torch widens float16 ten times as fast as NumPy does.
    Z, mean, scale = standardise(torch.tensor(block).float())
    solved = solve_logistic(
        Z,
        torch.from_numpy(y).float(),
        torch.from_numpy(learns).float(),
        torch.tensor(penalties, dtype=torch.float32),
    )
    if not solved.gradient <= GRADIENT_TOLERANCE:
        warnings.warn(
            f"a logistic probe ended with a gradient of {solved.gradient:.1e}, above {GRADIENT_TOLERANCE:g}: its "
            "states may "
            "hold units of very different spread, or the penalty may be too small",
            RuntimeWarning,
            stacklevel=3,
        )
    return solved, mean.double().numpy(), scale.double().numpy()


# The choice of layer, position and penalty of a probe: all combinations are tried in inner folds.
#
# The choice is made on learning rows that the probe was not fitted on; test rows are never read.

RIDGE_PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Ridge penalties, in units of the mean eigenvalue of the standardised states' covariance, which is 1."""
PENALTY_FOLDS = 5
"""Number of inner folds in which combinations are compared."""


def fit_linear_probe(
    states: States,
    y: NDArray[np.int64],
    groups: Sequence[str],
    roles: Roles,
    *,
    positions: Sequence[str],
    layers: Sequence[int] = (),
    penalties: Sequence[float] = RIDGE_PENALTIES,
    seed: int = 0,
) -> LinearProbe:
    """Returns the probe of the simplest layer, position and penalty of `near_best`, fitted on all learning rows.

    Hundreds of combinations are tried, so a single selection part of some hundred rows would mostly select noise. Every
    learning row takes its turn, in `PENALTY_FOLDS` folds by group.

    Args:
        states: the hidden states.
        y: labels (n,) of 0 and 1.
        groups: group of each row (n,).
        roles: rows of each role.
        positions: positions to choose among.
        layers: layers to choose among; all if empty.
        penalties: penalties to choose among.
        seed: seed of the folds.

    Raises `RecordError` if a position is missing.
    """
    check_captured(states, (), positions)
    # Try every layer, position and penalty.
    learning_rows, target = roles.learning, y.astype(np.float64)
    places = [(layer, position) for position in positions for layer in layers or states.layers]
    aurocs = held_out_folds(states, y, groups, roles, places, penalties=penalties, seed=seed)
    means, is_near = aurocs.mean(axis=1), near_best(aurocs)
    # Choose the strongest penalty of those near the best, and with it the best mean. Breiman et al. 1984, section
    # 3.4.3, give the rule of one standard error. Here the penalty decides what is simple, because one layer is no
    # simpler than another.
    penalty_index = int(np.flatnonzero(is_near.any(axis=0)).max())
    place_index = int(np.where(is_near[:, penalty_index], means[:, penalty_index], -np.inf).argmax())
    best = means.argmax(axis=1)
    layer, position = places[place_index]
    # Fit the chosen probe on all learning rows.
    all_rows = np.ones((1, len(learning_rows)), dtype=np.bool_)
    solved, mean, scale = _solve(
        states.read(layer, position)[learning_rows],
        target[learning_rows],
        all_rows,
        penalties[penalty_index : penalty_index + 1],
    )
    is_constant = np.isinf(scale)
    return LinearProbe(
        layers=(layer,),
        position=position,
        penalty=penalties[penalty_index],
        mean=mean,
        scale=np.where(is_constant, 1.0, scale),
        weights=np.where(is_constant, 0.0, solved.weights[0, 0].double().numpy()),
        intercept=float(solved.intercept[0, 0]),
        sweep=tuple(
            SweepPoint(layer, position, penalties[best[i]], float(means[i, best[i]]))
            for i, (layer, position) in enumerate(places)
        ),
        tried=aurocs.shape[0] * aurocs.shape[2],
    )


def unseen_probe_scores(
    probe: LinearProbe, states: States, y: NDArray[np.int64], groups: Sequence[str], roles: Roles, *, seed: int = 0
) -> Floats:
    """Returns a score (n,) of each seen row by a probe that saw no answer of the row's group; NaN for other rows.

    Calibration rows have the scores of the probe itself, which must read one layer. Learning rows have scores of probes
    of the same layer, position and penalty that were fitted on the other inner folds.

    Args:
        probe: the fitted probe.
        states: the hidden states.
        y: labels (n,) of 0 and 1.
        groups: group of each row (n,).
        roles: rows of each role.
        seed: seed of the folds.
    """
    learning_rows, scores = roles.learning, np.full(len(y), np.nan)
    scores[roles.calibration] = probe.score(states, roles.calibration)
    fold = np.empty(len(y), dtype=np.intp)
    for fold_index, (_, part) in enumerate(group_folds(learning_rows, groups, y, PENALTY_FOLDS, seed + 2)):
        fold[part] = fold_index
    block = states.read(probe.layers[0], probe.position)[learning_rows]
    scores[learning_rows] = score_held_out(
        block, y[learning_rows].astype(np.float64), fold[learning_rows], [probe.penalty]
    )[:, 0]
    return scores


def held_out_folds(
    states: States,
    y: NDArray[np.int64],
    groups: Sequence[str],
    roles: Roles,
    places: Sequence[tuple[int, str]],
    *,
    penalties: Sequence[float] = RIDGE_PENALTIES,
    seed: int = 0,
) -> Floats:
    """Returns the AUROC (places, folds, penalties) on each inner fold, by probes fitted on the other folds.

    Args:
        states: the hidden states.
        y: labels (n,) of 0 and 1.
        groups: group of each row (n,).
        roles: rows of each role.
        places: layers with positions.
        penalties: penalties of the probes.
        seed: seed of the folds.
    """
    learning_rows, target = roles.learning, y.astype(np.float64)
    fold = np.empty(len(y), dtype=np.intp)
    for fold_index, (_, part) in enumerate(group_folds(learning_rows, groups, y, PENALTY_FOLDS, seed + 2)):
        fold[part] = fold_index
    aurocs = np.empty((len(places), PENALTY_FOLDS, len(penalties)))
    for i, (layer, position) in enumerate(places):
        scores = score_held_out(
            states.read(layer, position)[learning_rows], target[learning_rows], fold[learning_rows], penalties
        )
        for f, p in np.ndindex(aurocs.shape[1:]):
            in_fold = fold[learning_rows] == f
            aurocs[i, f, p] = auroc(y[learning_rows][in_fold], scores[in_fold, p])
    return np.where(np.isnan(aurocs), 0.5, aurocs)  # a fold of one class says nothing


def near_best(aurocs: Floats) -> NDArray[np.bool_]:
    """Returns whether each choice (places, penalties) is within a standard error of the best one.

    `aurocs` has the shape (places, folds, penalties). The standard error is that of the paired difference from the best
    choice over the folds, because an easier fold is easier for both.
    """
    means = aurocs.mean(axis=1)
    best = np.unravel_index(int(means.argmax()), means.shape)
    deficit = aurocs[best[0], :, best[1]][None, :, None] - aurocs
    error = deficit.std(axis=1, ddof=1) / np.sqrt(aurocs.shape[1])
    is_near: NDArray[np.bool_] = deficit.mean(axis=1) <= error  # the best itself has 0 <= 0
    return is_near
