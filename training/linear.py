"""A linear probe on hidden states, fitted: which layers and position it reads, its weights, and what else was tried."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.ranked import MetricFunction
from metaprobe.records.activations import CONVENTION
from metaprobe.records.extras import require
from metaprobe.records.types import HIDDEN, FloatArray
from metaprobe.training.calibration import Calibrator
from metaprobe.training.folds import Roles, Rows, group_folds
from metaprobe.training.heads import linear_graph
from metaprobe.training.states import Block, States, check_captured, chunks

Kind = Literal["logistic", "ridge", "mass-mean"]
"""How the direction of a probe is fitted."""
KINDS: tuple[Kind, ...] = get_args(Kind)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """What one layer and position reached at its best penalty."""

    layer: int
    position: str
    penalty: float
    auroc: float
    """Mean over the inner folds, of rows of the learning part that the probe was not fitted on; for a graded target
    Spearman's correlation."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearProbe:
    """score = ((h - mean) / scale) @ weights + intercept; h: the states of its layers at one position, side by side."""

    kind: str
    layers: tuple[int, ...]
    position: str
    penalty: float
    mean: Floats
    """(layers * D,), as scale and weights."""
    scale: Floats
    weights: Floats
    intercept: float
    sweep: tuple[SweepPoint, ...] = ()
    """Every layer and position tried."""
    tried: int = 1
    """Combinations of layer, position and penalty among which it was chosen."""

    def contract(self, target: str) -> dict[str, Any]:
        """What its checkpoint says that it reads and gives."""
        return {
            **({"layer": self.layers[0]} if len(self.layers) == 1 else {"layers": list(self.layers)}),
            "position": self.position,
            "width": len(self.weights) // len(self.layers),
            "convention": CONVENTION,
            "target": target,
        }

    def graph(self, output: str, calibrator: Calibrator | None = None) -> bytes:
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
        """(rows,), higher is likelier to be right; not yet a probability."""
        return self.score_of(self.read(states, rows))

    def read(self, states: States, rows: Rows | None = None) -> FloatArray:
        """What it reads of these states: float32 (rows, layers * D)."""
        blocks = [states.read(layer, self.position) for layer in self.layers]
        chosen = [block if rows is None else block[rows] for block in blocks]
        return np.concatenate(chosen, axis=1).astype(np.float32)

    def score_of(self, hidden: FloatArray) -> Floats:
        """(n, layers * D) -> (n,)."""
        return ((hidden.astype(np.float64) - self.mean) / self.scale) @ self.weights + self.intercept


# Ridge and mass-mean probes from sums over rows: one pass over the states learns every fold, one more scores them.
#
# Gram matrices add up, so each fold's is the whole one minus that of the rows it leaves out; nothing larger than (D, D)
# a fold is kept, whatever the number of answers.


@dataclass(slots=True, eq=False)
class Moments:
    """Sums over rows: their number, the states, the targets, and products of both."""

    n: float
    x: Floats
    """(D,)."""
    xx: Floats
    """(D, D)."""
    y: float
    xy: Floats
    """(D,): also the sum of the states of right answers, for y of 0 and 1."""

    @classmethod
    def none(cls, width: int) -> "Moments":
        return cls(0.0, np.zeros(width), np.zeros((width, width)), 0.0, np.zeros(width))

    def add(self, X: Floats, y: Floats) -> None:
        """Rows X (m, D) with targets y (m,)."""
        self.n += len(X)
        self.x += X.sum(axis=0)
        self.xx += X.T @ X
        self.y += float(y.sum())
        self.xy += X.T @ y

    @classmethod
    def total(cls, parts: "Sequence[Moments]") -> "Moments":
        """The sums over the rows of all parts."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.sum([getattr(part, name) for part in parts], axis=0) for name in names})

    def without(self, other: "Moments") -> "Moments":
        """The sums over the rows that are not in `other`."""
        return Moments(self.n - other.n, self.x - other.x, self.xx - other.xx, self.y - other.y, self.xy - other.xy)

    def spread(self) -> tuple[Floats, Floats]:
        """(mean, scale) of each unit; a constant unit has scale infinity, so that it weighs nothing."""
        mean = self.x / self.n
        scale = np.sqrt(np.maximum(np.diagonal(self.xx) / self.n - mean**2, 0))
        # What is left of a constant unit by cancellation is about 1e-8 of its size.
        return mean, np.where(scale > 1e-6 * np.abs(mean), scale, np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """score = ((x - mean) / scale) @ weights + intercept, for P penalties."""

    mean: Floats
    """(D,)."""
    scale: Floats
    """(D,), positive; 1 for a unit that is constant, which weighs nothing."""
    weights: Floats
    """(D, P)."""
    intercept: Floats
    """(P,)."""

    def score(self, X: Floats) -> Floats:
        """(n, D) -> (n, P)."""
        scores: Floats = ((X - self.mean) / self.scale) @ self.weights + self.intercept
        return scores


def ridge(moments: Moments, penalties: Sequence[float]) -> Direction:
    """Least squares on standardised states, min (1/N) sum (w z + b - y)^2 / 2 + (alpha / 2) |w|^2, for each alpha.

    For labels 0 and 1 the direction is that of regularised linear discriminant analysis.
    """
    linalg: Any = require("scipy.linalg", "fit")
    mean, scale = moments.spread()
    level = moments.y / moments.n
    gram = (moments.xx / moments.n - np.outer(mean, mean)) / scale[:, None] / scale
    target = (moments.xy / moments.n - mean * level) / scale
    weights = np.stack(
        [
            linalg.cho_solve(linalg.cho_factor(gram + (alpha + 1e-10) * np.eye(len(mean))), target)
            for alpha in penalties
        ],
        axis=1,
    )
    return direction(weights, mean, scale, np.full(len(penalties), level))


def mass_mean(moments: Moments) -> Direction:
    """Mean of the right answers' states minus that of the wrong ones' (Marks & Tegmark 2023, arXiv:2310.06824).

    On standardised states, so that units of large spread do not decide alone. P is 1: there is no penalty.
    """
    mean, scale = moments.spread()
    right = moments.xy / moments.y
    wrong = (moments.x - moments.xy) / (moments.n - moments.y)
    return direction(((right - wrong) / scale)[:, None], mean, scale, np.array([moments.y / moments.n]))


def direction(weights: Floats, mean: Floats, scale: Floats, intercept: Floats) -> Direction:
    """Returns a direction with scale 1 and weight 0 where the scale is infinite."""
    constant = np.isinf(scale)
    return Direction(mean, np.where(constant, 1.0, scale), np.where(constant[:, None], 0.0, weights), intercept)


# Linear probes on one block of hidden states, of three kinds, with one shape: fit, or score folds held out.


def fit_linear(block: Block, y: Floats, kind: Kind, penalties: Sequence[float]) -> Direction:
    """The direction of each penalty, for raw states. `y` (n,) in [0, 1]; mass-mean takes 0 and 1, and no penalty."""
    if kind == "logistic":
        return _logistic(block, y, np.ones((1, len(y)), dtype=bool), penalties)[0][0]
    [moments] = _moments(block, y, np.zeros(len(y), dtype=np.intp))
    return _from_moments(kind, moments, penalties)


def score_held_out(block: Block, y: Floats, fold: NDArray[np.intp], kind: Kind, penalties: Sequence[float]) -> Floats:
    """(n, P): each row's score by the probe that was fitted on the rows of all other folds.

    `fold` (n,): each row's number, from 0. States are standardised by the moments of all rows, which know no labels
    (logistic), or by those of the rows learned from.
    """
    if kind == "logistic":
        learns = fold != np.arange(int(fold.max()) + 1)[:, None]  # (F, n)
        scores = _logistic(block, y, learns, penalties)[1]  # (F, P, n)
        return scores.transpose(0, 2, 1)[fold, np.arange(len(y))]
    parts = _moments(block, y, fold)
    whole = Moments.total(parts)
    directions = [_from_moments(kind, whole.without(part), penalties) for part in parts]
    out = np.empty((len(y), len(penalties)))
    for rows, X in chunks(block):
        for number, learned in enumerate(directions):
            here = fold[rows] == number
            out[rows][here] = learned.score(X[here])
    return out


def _moments(block: Block, y: Floats, fold: NDArray[np.intp]) -> list[Moments]:
    """The sums over the rows of each fold."""
    moments = [Moments.none(block.shape[1]) for _ in range(int(fold.max()) + 1)]
    for rows, X in chunks(block):
        for number, part in enumerate(moments):
            here = fold[rows] == number
            part.add(X[here], y[rows][here])
    return moments


def _from_moments(kind: Kind, moments: Moments, penalties: Sequence[float]) -> Direction:
    return ridge(moments, penalties) if kind == "ridge" else mass_mean(moments)


def _logistic(
    block: Block, y: Floats, learns: NDArray[np.bool_], penalties: Sequence[float]
) -> tuple[list[Direction], Floats]:
    """(a direction for each fold, scores (F, P, n)); `learns` (F, n): whether a fold learns from a row."""
    torch = require("torch", "train")  # takes seconds to load, and the other kinds do without

    from metaprobe.training.solve import TOLERANCE, solve_logistic, standardise

    # torch widens float16 ten times as fast as NumPy does.
    Z, mean, scale = standardise(torch.tensor(block).float())
    solved = solve_logistic(
        Z,
        torch.from_numpy(y).float(),
        torch.from_numpy(learns).float(),
        torch.tensor(penalties, dtype=torch.float32),
    )
    if not solved.gradient <= TOLERANCE:
        warnings.warn(
            f"a logistic probe ended with a gradient of {solved.gradient:.1e}, above {TOLERANCE:g}: its states may "
            "hold units of very different spread, or the penalty may be too small",
            RuntimeWarning,
            stacklevel=3,
        )
    directions = [
        direction(w.T, mean.double().numpy(), scale.double().numpy(), b)
        for w, b in zip(solved.weights.double().numpy(), solved.intercept.double().numpy(), strict=True)
    ]
    return directions, solved.scores.double().numpy()


# The choice of layer, position and penalty of a probe: all are tried in inner folds, and one is chosen.
#
# What is chosen is chosen on rows of the learning part that the probe was not fitted on; test rows are never read.

PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Ridge penalties, in units of the mean eigenvalue of the standardised states' covariance, which is 1."""
INNER_FOLDS = 5


def fit_linear_probe(
    states: States,
    y: NDArray[np.int64] | Floats,
    groups: Sequence[str],
    roles: Roles,
    *,
    positions: Sequence[str],
    kind: Kind = "logistic",
    penalties: Sequence[float] = PENALTIES,
    metric: MetricFunction = auroc,
    seed: int = 0,
) -> LinearProbe:
    """The probe of the layer, position and penalty chosen by `one_standard_error`, fitted on all learning rows.

    Hundreds of combinations are tried, so a single selection part of some hundred rows would mostly select noise: every
    learning row takes its turn, in `INNER_FOLDS` folds by group. Raises `RecordError` where a position is missing.
    """
    check_captured(states, (), positions)
    penalties = (0.0,) if kind == "mass-mean" else tuple(penalties)
    pool, target = roles.learning, y.astype(np.float64)
    fold = np.empty(len(y), dtype=np.intp)
    balanced = (target > np.median(target[pool])).astype(np.int64) if metric is not auroc else y.astype(np.int64)
    for number, (_, part) in enumerate(group_folds(pool, groups, balanced, INNER_FOLDS, seed + 2)):
        fold[part] = number
    places = [(layer, position) for position in positions for layer in states.layers]
    reached = np.empty((len(places), INNER_FOLDS, len(penalties)))
    for i, (layer, position) in enumerate(places):
        scores = score_held_out(states.read(layer, position)[pool], target[pool], fold[pool], kind, penalties)
        for f, p in np.ndindex(reached.shape[1:]):
            here = fold[pool] == f
            reached[i, f, p] = metric(y[pool][here], scores[here, p])
    # A fold of one class, or a score that never varies, says nothing.
    reached = np.where(np.isnan(reached), 0.5 if metric is auroc else 0.0, reached)
    place, p = one_standard_error(reached)
    means = reached.mean(axis=1)
    best = means.argmax(axis=1)
    layer, position = places[place]
    fitted = fit_linear(states.read(layer, position)[pool], target[pool], kind, penalties[p : p + 1])
    return LinearProbe(
        kind=kind,
        layers=(layer,),
        position=position,
        penalty=penalties[p],
        mean=fitted.mean,
        scale=fitted.scale,
        weights=fitted.weights[:, 0],
        intercept=float(fitted.intercept[0]),
        sweep=tuple(
            SweepPoint(layer, position, penalties[best[i]], float(means[i, best[i]]))
            for i, (layer, position) in enumerate(places)
        ),
        tried=reached.shape[0] * reached.shape[2],
    )


def one_standard_error(found: Floats) -> tuple[int, int]:
    """(place, penalty) of the simplest choice that the folds cannot distinguish from the best one.

    `found` (places, folds, penalties): held-out AUROC, places in the order of their layers, penalties ascending. The
    standard error is that of the paired difference from the best over the folds, for what makes one fold easier than
    another is shared. Simplest: the strongest penalty, then the best mean (Breiman et al. 1984, section 3.4.3, for the
    rule; the choice of what is simple is ours, for one layer is no simpler than another).
    """
    means = found.mean(axis=1)
    best = np.unravel_index(int(means.argmax()), means.shape)
    behind = found[best[0], :, best[1]][None, :, None] - found
    error = behind.std(axis=1, ddof=1) / np.sqrt(found.shape[1])
    near = behind.mean(axis=1) <= error  # the best itself has 0 <= 0
    penalty = int(np.flatnonzero(near.any(axis=0)).max())
    return int(np.where(near[:, penalty], means[:, penalty], -np.inf).argmax()), penalty
