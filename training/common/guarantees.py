"""Thresholds on probabilities, with a guarantee that needs no assumption but exchangeable answers.

Answers of one group (a question, a template) are not exchangeable one by one. Given `groups`, one answer a group is
kept, drawn by `seed`; the guarantee is then for an answer drawn from a new group.

The probabilities must come from a model and a calibrator that were fitted on other rows. The threshold of
`flag_thresholds` moves with any strictly increasing map, so there Platt's map may be fitted on the same rows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.common.calibrators import PARITY

Groups = Sequence[str] | NDArray[np.str_] | None
STEP = 0.01
"""Step between the thresholds that `accept_thresholds` tries."""


def flag_thresholds(
    probability: NDArray[np.float64],
    y: NDArray[np.int64],
    *,
    miss_rates: Sequence[float],
    groups: Groups = None,
    seed: int = 0,
) -> list[float]:
    """Returns for each of `miss_rates` the threshold below which answers are flagged.

    The expected share of wrong answers that are not flagged is then at most the rate. Conformal risk control
    (Angelopoulos et al. 2022, arXiv:2208.02814, Eq. 4) for the loss 1{wrong and not flagged}, which falls as the
    threshold rises: the smallest threshold with (n * risk + 1) / (n + 1) <= rate, over the n wrong answers of the
    calibration rows (with `groups`, one wrong answer of each group that has any, the same for all rates). A threshold
    is inf (flag everything) where n is too small for the rate. Raises `RecordError` for what is no probability or no
    label.
    """
    for rate in miss_rates:
        _check_rate("miss_rate", rate)
    p = _check(probability, y)
    wrong = np.sort(p[_one_a_group(p, y, groups, seed, among=y == 0)])
    missed = np.arange(len(wrong), -1, -1)  # answers left unflagged by a threshold just above 0, 1, ... of them
    found = []
    for rate in miss_rates:
        allowed = (missed + 1) / (len(wrong) + 1) <= rate
        flagged = int(np.argmax(allowed))
        just_above = float(wrong[flagged - 1]) + PARITY if flagged else 0.0
        found.append(just_above if allowed.any() else float("inf"))
    return found


def accept_thresholds(
    probability: NDArray[np.float64],
    y: NDArray[np.int64],
    *,
    errors: Sequence[float],
    confidence: float = 0.9,
    grid: ArrayLike | None = None,
    groups: Groups = None,
    seed: int = 0,
) -> list[float]:
    """Returns for each of `errors` the threshold from which on answers are accepted.

    With `confidence`, for each error by itself, at most that share of the accepted answers is wrong. Learn then Test
    (Angelopoulos et al. 2021, arXiv:2110.01052). The share of wrong answers among the accepted need not fall as the
    threshold rises, so each threshold of a grid is tested, strictest first, until one fails (fixed sequence testing,
    their section 3). The p-value of a threshold is the exact binomial tail: P(at most so many wrong answers among so
    many accepted, were the share `error`). The last threshold that passed is returned, inf (accept nothing) where the
    first fails: in any case below log(1 - confidence) / log(1 - error) accepted answers, 22 for 0.9 and 0.1.

    The `grid` is the user's before the rows are seen, and falls. The paper leaves it open; by default it starts at
    1 - error, the strictest threshold that a calibrated model needs (whatever lies above is right that often), and goes
    down by `STEP`. Grids that start higher fail for want of answers there; choosing the start by how many the rows
    have would void the proof where errors do not fall with the probability. Raises `RecordError` for what is no
    probability or no label, and for a grid that does not fall.
    """
    _check_rate("confidence", confidence)
    for error in errors:
        _check_rate("error", error)
    p = _check(probability, y)
    kept = _one_a_group(p, y, groups, seed, among=np.ones(len(y), dtype=np.bool_))
    order = kept[np.argsort(-p[kept], kind="stable")]
    falling, wrong_before = -p[order].astype(np.float64), np.concatenate([[0], np.cumsum(y[order] == 0)])
    found = []
    for error in errors:
        thresholds = _grid(error, grid)
        accepted = np.searchsorted(falling, -thresholds, side="right")
        tail = require("scipy.stats", "fit").binom.cdf(wrong_before[accepted], accepted, error)
        passed = tail <= 1 - confidence  # with none accepted the tail is 1: not passed
        last = len(passed) if passed.all() else int(np.argmin(passed))
        found.append(float(thresholds[last - 1]) if last else float("inf"))
    return found


def _grid(error: float, given: ArrayLike | None) -> NDArray[np.float64]:
    """The thresholds to try, strictest first."""
    thresholds = np.asarray(
        # Two roundings of a graph below the hundredths, where plateaus of an isotonic map like to lie: a tie stays
        # together on the side on which it was tested.
        np.arange(1 - error, STEP / 2, -STEP) - 2 * PARITY if given is None else given,
        dtype=np.float64,
    )
    if thresholds.ndim != 1 or not len(thresholds) or not (np.diff(thresholds) < 0).all():
        raise RecordError(
            "a grid of thresholds must be one row that falls, strictest first, fixed before seeing the rows"
        )
    return thresholds


def _check_rate(name: str, rate: float) -> None:
    if not 0 < rate < 1:
        raise RecordError(f"{name} must lie between 0 and 1, got {rate:g}")


def _check(probability: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float32]:
    """The probabilities in float32, as the exported graph answers."""
    if probability.shape != y.shape or probability.ndim != 1:
        raise RecordError(f"a threshold needs one probability a label, got shapes {probability.shape} and {y.shape}")
    if outside := int((~((probability >= 0) & (probability <= 1))).sum()):
        raise RecordError(
            f"a threshold needs probabilities in [0, 1], got {outside} of {len(y)} that are NaN or outside"
        )
    if not np.isin(y, (0, 1)).all():
        raise RecordError(f"a threshold needs labels 0 and 1, got {sorted({*y.tolist()})[:5]}")
    return probability.astype(np.float32)


def _one_a_group(
    probability: NDArray[np.float32], y: NDArray[np.int64], groups: Groups, seed: int, *, among: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Row indices: all that are eligible, or one of them, drawn at random, for each group that has any."""
    rows = np.flatnonzero(among)
    if groups is None:
        return rows
    if len(groups) != len(y):
        raise RecordError(f"a threshold needs one group a label, got {len(groups)} and {len(y)}")
    names = np.asarray(groups)
    rows = rows[np.lexsort((y[rows], probability[rows], names[rows]))]  # so that the order of the rows plays no part
    shuffled = np.random.default_rng(seed).permutation(rows)
    return shuffled[np.unique(names[shuffled], return_index=True)[1]]
