"""Linear probes on one block of hidden states, of three kinds, with one shape: fit, or score folds held out."""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.training.linear.moments import Direction, Moments, direction, mass_mean, ridge
from metaprobe.training.linear.probe import Kind
from metaprobe.training.linear.states import Block, chunks

Floats = NDArray[np.float64]


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
    found = [Moments.none(block.shape[1]) for _ in range(int(fold.max()) + 1)]
    for rows, X in chunks(block):
        for number, part in enumerate(found):
            here = fold[rows] == number
            part.add(X[here], y[rows][here])
    return found


def _from_moments(kind: Kind, moments: Moments, penalties: Sequence[float]) -> Direction:
    return ridge(moments, penalties) if kind == "ridge" else mass_mean(moments)


def _logistic(
    block: Block, y: Floats, learns: NDArray[np.bool_], penalties: Sequence[float]
) -> tuple[list[Direction], Floats]:
    """(a direction for each fold, scores (F, P, n)); `learns` (F, n): whether a fold learns from a row."""
    torch = require("torch", "train")  # takes seconds to load, and the other kinds do without

    from metaprobe.training.linear.solve import TOLERANCE, solve_logistic, standardise

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
