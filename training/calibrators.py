"""Calibrators: monotone maps from scores to probabilities, for NumPy and for ONNX graphs alike."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.metrics.ranked import Value, check_weights
from metaprobe.probes.training_runs import CERTAIN
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.export import GraphBuilder
from metaprobe.training.folds import Rows, group_folds

Floats = NDArray[np.float64]

PARITY = 1e-5
"""Largest difference between an exported graph and the fitted model. Thresholds are moved by this distance to the safe
side, so that ties stay together.
"""


class Calibrator(ABC):
    """A monotone map from scores to probabilities."""

    __slots__ = ()
    name: ClassVar[str]

    @abstractmethod
    def logit(self, score: Floats) -> Floats:
        """Returns finite calibrated log-odds in the shape of `score`."""

    def probability(self, score: Floats) -> Floats:
        """Returns calibrated probability in (0, 1)."""
        return sigmoid(self.logit(score))

    @abstractmethod
    def add_to(self, graph: GraphBuilder, score: str, output: str = "") -> str:
        """Adds the same map to a graph, in standard operators of opset 15: (n, 1) float32 scores in, probabilities out.

        Returns the name of the probabilities, which is `output` where that is given.
        """


@dataclass(frozen=True, slots=True)
class Platt(Calibrator):
    """P(y = 1 | score) = sigmoid(slope * score + intercept)."""

    slope: float
    intercept: float
    name: ClassVar[str] = "platt"

    def logit(self, score: Floats) -> Floats:
        return self.slope * score + self.intercept

    def add_to(self, graph: GraphBuilder, score: str, output: str = "") -> str:
        scaled = graph.add("Mul", score, graph.number(self.slope))
        return graph.add("Sigmoid", graph.add("Add", scaled, graph.number(self.intercept)), name=output)


@dataclass(frozen=True, slots=True)
class Beta(Calibrator):
    """log-odds = a ln p - b ln(1 - p) + c, with p = sigmoid((score - centre) / spread).

    The log-odds are a line that bends at the centre. Its slope is a far below the centre and b far above it. With a = b
    the map is Platt's.
    """

    centre: float
    spread: float
    a: float
    b: float
    c: float
    name: ClassVar[str] = "beta"

    def logit(self, score: Floats) -> Floats:
        design = beta_design((score - self.centre) / self.spread)
        return np.asarray(design @ np.array([self.a, self.b, self.c]), dtype=np.float64)

    def add_to(self, graph: GraphBuilder, score: str, output: str = "") -> str:
        z = graph.add("Div", graph.add("Sub", score, graph.number(self.centre)), graph.number(self.spread))
        low = graph.add("Mul", graph.add("Softplus", graph.add("Neg", z)), graph.number(self.a))  # -a ln p
        high = graph.add("Mul", graph.add("Softplus", z), graph.number(self.b))  # -b ln(1 - p)
        logit = graph.add("Add", graph.add("Sub", high, low), graph.number(self.c))
        return graph.add("Sigmoid", logit, name=output)


@dataclass(frozen=True, slots=True, eq=False)
class Isotonic(Calibrator):
    """Straight lines between knots, flat outside them."""

    scores: Floats
    """Scores at the k knots, rising, k >= 2. The values are exact in float32, so a graph has the same ones."""
    probabilities: Floats
    """Probabilities at the k knots, never falling, in (0, 1)."""
    name: ClassVar[str] = "isotonic"

    def logit(self, score: Floats) -> Floats:
        p = self.probability(score)
        return np.log(p) - np.log1p(-p)

    def probability(self, score: Floats) -> Floats:
        return np.asarray(np.interp(score, self.scores, self.probabilities), dtype=np.float64)

    def add_to(self, graph: GraphBuilder, score: str, output: str = "") -> str:
        # The graph looks up the segment and evaluates its line from the left end. A sum of hinge functions would need
        # fewer operators, but would lose digits to cancellation.
        x = graph.add("Clip", score, graph.number(self.scores[0]), graph.number(self.scores[-1]))
        past = graph.add("Greater", x, graph.number(self.scores[1:]))  # (n, k - 1): segments that lie to the left
        segment = graph.add("ReduceSum", graph.cast(past, np.int64), graph.constant([1]), keepdims=1)
        lines = (self.scores[:-1], np.diff(self.scores), self.probabilities[:-1], np.diff(self.probabilities))
        left, width, base, rise = (graph.add("Gather", graph.number(line), segment) for line in lines)
        share = graph.add("Div", graph.add("Sub", x, left), width)
        return graph.add("Add", base, graph.add("Mul", share, rise), name=output)


def beta_design(logit: Floats) -> Floats:
    """Returns the columns ln p, -ln(1 - p) and 1, (n, 3), which `Beta` weighs by a, b and c, from the log-odds of p."""
    return np.stack([-np.logaddexp(0, -logit), np.logaddexp(0, logit), np.ones_like(logit)], axis=-1)


def sigmoid(logit: Floats) -> Floats:
    """Returns 1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0, -np.asarray(logit, dtype=np.float64)))


# Numbers that are probabilities themselves (a judge's number, a stated confidence) are read as log-odds. If they are
# too sure, not sure enough or shifted, a straight line of the log-odds repairs them, which is Platt's map.

EDGE_PART = 6
"""Probabilities of 0 and 1 are moved by 1 / `EDGE_PART` of their distance to the nearest other value. Simulated judges
that answer in steps of 0.01 to 0.25 have the least calibration error for parts between 5 and 8.
"""
EXTREMES_DISTANCE = 0.05
"""Distance from 0 and 1 to which probabilities are moved if all of them are 0 or 1. Any distance gives the same fit."""


def closest_of(values: NDArray[np.floating]) -> float:
    """Returns the distance from 0 and 1 to which probabilities are moved before their log-odds are taken.

    The value nearest to 0 or 1, but not at it, is `EDGE_PART` times as far away. So 0 and 1 stay the extremes. For a
    judge that answers in steps of 0.1, a 1 then counts as 0.983, which its rounding allows. The distance is at least
    `CERTAIN`, and exact in float32. `values` are probabilities; NaN stands for an unknown one.
    """
    probabilities = np.asarray(values, dtype=np.float64)
    inside = probabilities[(probabilities > 0) & (probabilities < 1)]
    least = float(np.minimum(inside, 1 - inside).min()) / EDGE_PART if len(inside) else EXTREMES_DISTANCE
    return float(np.float32(max(least, CERTAIN)))


def are_probabilities(values: NDArray[np.floating]) -> bool:
    """Returns whether all known numbers lie in [0, 1]; False if no number is known."""
    finite_values = np.asarray(values, dtype=np.float64)
    finite_values = finite_values[np.isfinite(finite_values)]
    return bool(len(finite_values)) and bool(((finite_values >= 0) & (finite_values <= 1)).all())


def highest_of(closest: float) -> float:
    """Returns the largest probability that is not moved, rounded to float32."""
    return float(np.float32(1 - closest))


def log_odds_of(probability: ArrayLike, closest: float = CERTAIN) -> Floats:
    """Returns the log-odds, the same shape, of probabilities that are moved into [closest, 1 - closest]."""
    p = np.clip(np.asarray(probability, dtype=np.float64), closest, 1 - closest)
    log_odds: Floats = np.log(p) - np.log1p(-p)
    return log_odds


def probabilities_as_log_odds(values: Floats) -> Floats:
    """Returns numbers of answers (n,) as a calibrator reads them: probabilities become log-odds."""
    return log_odds_of(values, closest_of(values)) if are_probabilities(values) else values


# Calibrators are fitted on the calibration rows, and chosen among several there.
#
# All smooth the labels (the sigmoids by Platt's targets), so that log-odds stay finite if the classes are separable.

Labels = NDArray[np.int64]

CALIBRATION_FOLDS = 5
"""Number of folds, by group, in which calibrators are compared."""
ISOTONIC_ROWS = 500
"""Fewest calibration rows for which isotonic regression is tried. With fewer it memorises the rows."""
MAX_ISOTONIC_RISE = 2.0
"""Largest rise of probability that an isotonic map may have over one standard deviation of the scores. A steeper map
would turn the rounding of a float32 score (some 1e-6 of its spread) into more than `PARITY`.
"""


MIN_SLOPE = 1e-3
"""Least slope, in log-odds per standard deviation of the scores, of a map that must not reverse their order."""
MAX_NEWTON_STEPS = 100
"""Most Newton steps of a fit; a fit usually takes six."""
CONVERGED_CHANGE = 1e-7
"""Largest change of a weight at which a fit has converged. The next change would be about its square."""
LOSS_ROUNDING = 1e-9
"""Increase in the total loss that a step may show through rounding alone."""
MIN_STEP_SHARE = 1e-6
"""Smallest fraction of a Newton step that is tried."""
MAX_LOG_ODDS = 40.0
"""Log-odds beyond which a probability is 0 or 1 in float64. Intercepts are searched within this distance of the scores.
"""
MIN_RISE = 1e-6
"""Least rise of a calibrator, in log-odds, for which it counts as rising."""
RIDGE = 1e-12
"""Curvature added for each row. It keeps a weight that the rows do not determine where it is."""


def fit_platt(score: Floats, y: Labels, *, rising: bool = False) -> Platt:
    """Fits Platt scaling (Platt 1999): a logistic regression on one score, with smoothed targets against
    overconfidence.

    With `rising` the slope is positive. Otherwise it may be negative, for scores that are higher for wrong answers. No
    other calibrator reverses the order of scores. Raises `RecordError` if a class is missing or a score is not finite.
    """
    targets = _targets(score, y)
    z, centre, spread = _standardise(score)
    design = np.stack([z, np.ones_like(z)], axis=1)
    least = (MIN_SLOPE, -np.inf) if rising else None
    slope, intercept = _logistic(design, targets, start=(MIN_SLOPE * rising,), least=least)
    return Platt(slope=slope / spread, intercept=intercept - slope * centre / spread)


def anchored(platt: Platt, score: Floats, y: Labels) -> Platt:
    """Returns the map with the intercept at which the mean probability of these scores (n,) is the share of ones.

    `y` (n,) holds both classes. The scores may be those of the exported model on its own training rows. A slope fitted
    to them would be too steep, so the map's slope is kept. A rising map gets a slope of at least `MIN_SLOPE` per
    standard deviation.
    """
    slope, spread = platt.slope, float(np.std(score))
    if 0 < slope * spread < MIN_SLOPE:  # scores of several fits are spread further than those of the exported model
        slope = MIN_SLOPE / spread
    scaled, share = slope * score, float(y.mean())
    low, high = -float(np.max(scaled)) - MAX_LOG_ODDS, MAX_LOG_ODDS - float(np.min(scaled))
    intercept = platt.intercept
    for _ in range(MAX_NEWTON_STEPS):  # Newton's steps; a step that leaves the bracket is replaced by a halving
        p = sigmoid(scaled + intercept)
        excess, curvature = float(p.mean()) - share, float((p * (1 - p)).mean())
        low, high = (low, intercept) if excess > 0 else (intercept, high)
        next_intercept = intercept - excess / curvature if curvature > 0 else low
        next_intercept = next_intercept if low <= next_intercept <= high else (low + high) / 2
        is_converged = abs(next_intercept - intercept) < CONVERGED_CHANGE
        intercept = next_intercept
        if is_converged:
            break
    return Platt(slope, intercept)


def fit_beta(score: Floats, y: Labels) -> Beta:
    """Fits beta calibration (Kull et al. 2017, AISTATS, PMLR 54:623-631, Eq. 2), a and b >= 0.

    The paper calibrates probabilities, but scores are none. So p is the sigmoid of the standardised score: the family
    then contains every rising line of Platt's and bends at the mean score. (Platt's probability in place of p hardly
    varies for scores that say little; a, b and c could then not be separated.) The fit uses Platt's targets and bounds
    a and b. The paper drops a negative one and fits again, which ends at the same bound. Raises as `fit_platt` does.
    """
    targets = _targets(score, y)
    z, centre, spread = _standardise(score)
    a, b, c = _logistic(beta_design(z), targets, start=(0.0, 0.0), least=(0.0, 0.0, -np.inf))
    return Beta(centre, spread, a, b, c)


def fit_isotonic(score: Floats, y: Labels) -> Isotonic:
    """Fits isotonic regression (scikit-learn), centred: each block is one knot at the mean of its scores.

    Centring (Oron and Flournoy 2017, doi:10.1080/19466315.2017.1286256) replaces the steps by lines, which keeps the
    ranking between blocks; blocks joined by a line steeper than `MAX_ISOTONIC_RISE` are pooled. A block of n rows that
    are all wrong gets 1 / (n + 2), or its neighbour's probability if that is less; all right likewise. Raises as
    `fit_platt` does.
    """
    _targets(score, y)
    regression = require("sklearn.isotonic", "fit").IsotonicRegression(out_of_bounds="clip")
    values, block = np.unique(regression.fit(score, y).predict(score), return_inverse=True)
    rows = np.bincount(block).astype(np.float64)
    knots = [*zip(np.bincount(block, weights=score) / rows, values, rows, strict=True)]
    _, _, spread = _standardise(score)
    while len(knots) > 1:
        x, p, n = np.array(knots).T
        # A block whose scores all tie with its neighbour's has no width, so its line is infinitely steep.
        slopes = np.diff(p) * spread / np.maximum(np.diff(x), 1e-12 * spread)
        steepest = int(np.argmax(slopes))
        if slopes[steepest] <= MAX_ISOTONIC_RISE:
            break
        pair = slice(steepest, steepest + 2)
        knots[pair] = [(np.average(x[pair], weights=n[pair]), np.average(p[pair], weights=n[pair]), n[pair].sum())]
    x, p, n = np.array(knots).T
    if len(p) > 1:  # only the first block can be all wrong, and only the last all right
        p = np.clip(p, min(1 / (n[0] + 2), p[1]), max((n[-1] + 1) / (n[-1] + 2), p[-2]))
    # Knots are rounded to float32; those that it cannot separate become one.
    x, first = np.unique(x.astype(np.float32).astype(np.float64), return_index=True)
    p = p[first]
    if len(x) == 1:
        x, p = np.array([x[0], x[0] + max(spread, abs(x[0]))]), np.repeat(p, 2)
    return Isotonic(x.astype(np.float32).astype(np.float64), p)


RISING_PLATT = "rising platt"
"""Name in `FITTERS` of Platt's map with a slope that never reverses the order of scores."""
FITTERS: Mapping[str, Callable[[Floats, Labels], Calibrator]] = MappingProxyType(
    {
        Platt.name: fit_platt,
        RISING_PLATT: partial(fit_platt, rising=True),
        Beta.name: fit_beta,
        Isotonic.name: fit_isotonic,
    }
)
"""Maps the name of a calibrator to the function that fits it."""


USUAL_CALIBRATORS = (Platt.name, Beta.name, Isotonic.name)
"""Candidates of `choose_calibrator` unless others are named, the simplest first."""


def calibrator_on(
    rows: Rows, scores: Floats, table: AnswerTable, seed: int, candidates: Sequence[str] = USUAL_CALIBRATORS
) -> Calibrator:
    """Returns the calibrator that is chosen and fitted on some rows of a table.

    Args:
        rows: the rows.
        scores: scores (n,) of all answers.
        table: the n answers.
        seed: seed of the folds.
        candidates: names of the calibrators to choose from.
    """
    return choose_calibrator(scores[rows], table.y[rows], table.groups[rows], candidates=candidates, seed=seed)


def choose_calibrator(
    score: Floats,
    y: Labels,
    groups: Sequence[str] | NDArray[np.str_],
    *,
    candidates: Sequence[str] = USUAL_CALIBRATORS,
    seed: int = 0,
) -> Calibrator:
    """Returns the simplest candidate whose cross-fitted log loss is within a standard error of the best.

    The candidates come in order, the simplest first; the chosen one is fitted on all rows. Isotonic regression is
    compared from `ISOTONIC_ROWS` rows on. Folds are by group; there are fewer folds if a class is in fewer groups. If
    a split leaves only one class to fit on, the first candidate is taken without comparison. The same rows in another
    order give the same choice.

    The standard error is that of the paired difference. The standard error of the loss itself mostly shows how hard the
    rows are, which all candidates share; with it the simplest would nearly always win.
    """
    # The candidates, and rows in an order that does not depend on the caller's.
    if unknown := [name for name in candidates if name not in FITTERS]:
        raise RecordError(f"no calibrator is called {', '.join(unknown)}; there are {', '.join(FITTERS)}")
    _targets(score, y)
    offered = [name for name in candidates if name != Isotonic.name or len(y) >= ISOTONIC_ROWS]
    if not offered:
        raise RecordError(
            f"isotonic calibration needs {ISOTONIC_ROWS} rows, got {len(y)}: offer a simpler one beside it"
        )
    order = np.lexsort((y, score, np.asarray(groups)))
    score, y, groups = score[order], y[order], np.asarray(groups)[order]
    folds = min(CALIBRATION_FOLDS, *(len(np.unique(groups[y == label])) for label in (0, 1)))
    parts = [*group_folds(np.arange(len(y)), groups.tolist(), y, folds, seed)] if min(folds, len(offered)) > 1 else []
    if not parts or any(len(np.unique(y[rest])) < 2 for rest, _ in parts):
        return FITTERS[offered[0]](score, y)
    # The log loss of each candidate on each row, fitted on the other folds.
    losses = np.empty((len(offered), len(y)))
    for row, name in enumerate(offered):
        for rest, part in parts:
            logit = FITTERS[name](score[rest], y[rest]).logit(score[part])
            losses[row, part] = np.logaddexp(0, np.where(y[part] == 1, -logit, logit))
    excess = losses - losses[np.argmin(losses.mean(axis=1))]
    cluster = np.unique(groups, return_inverse=True)[1]
    chosen = next(
        name
        for name, excess_of_candidate in zip(offered, excess, strict=True)
        if float(excess_of_candidate.mean()) <= clustered_se(excess_of_candidate, cluster)  # the best itself has 0 <= 0
    )
    return FITTERS[chosen](score, y)


def rising_calibrator(scores: Floats, y: Labels, groups: Sequence[str], *, seed: int = 0) -> Calibrator:
    """Returns a strictly rising calibrator, so that a threshold on the probability is one on the score.

    Platt's map may fall, and beta calibration may be flat on one side of its centre. Isotonic regression is flat at its
    ends, where the thresholds lie, so it is no candidate. If higher scores are not likelier good, an almost flat line
    at the share of good answers is returned.
    """
    ends = np.array([scores.min() - 1, np.median(scores), scores.max() + 1])
    chosen = choose_calibrator(scores, y, groups, candidates=("platt", "beta"), seed=seed)
    for calibrator in (chosen, fit_platt(scores, y)):
        if (np.diff(calibrator.logit(ends)) > MIN_RISE).all():
            return calibrator
    share = (float(y.sum()) + 1) / (len(y) + 2)
    return Platt(slope=2 * MIN_RISE / (ends[-1] - ends[0]), intercept=float(np.log(share / (1 - share))))


def clustered_se(values: Floats, cluster: NDArray[np.int64]) -> float:
    """Returns the standard error of the mean of `values`, which are dependent within clusters; 0 for one cluster."""
    sums = np.bincount(cluster, weights=values - values.mean())
    return float(np.sqrt(len(sums) / max(len(sums) - 1, 1) * np.square(sums).sum()) / len(values))


def mean_error(
    transform: Callable[[Floats], Floats], y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, /
) -> Value:
    """Returns the mean of `of(score - y)`, for each row of weights if weights are given."""
    errors = transform(np.asarray(score, dtype=np.float64) - np.asarray(y, dtype=np.float64))
    weights, single = check_weights(weight, len(errors))
    values = weights @ errors / weights.sum(axis=1)
    return float(values[0]) if single else values


mean_gap = partial(mean_error, np.positive)
"""Mean score minus the share of ones; 0 if scores are right on average."""


def _targets(score: Floats, y: Labels) -> Floats:
    """Returns Platt's targets of rows that can be fitted: (n+ + 1) / (n+ + 2) for label 1 and 1 / (n- + 2) for label
    0.
    """
    if np.shape(score) != np.shape(y) or np.ndim(score) != 1:
        raise RecordError(f"calibration needs one score a label, got shapes {np.shape(score)} and {np.shape(y)}")
    if unknown := int((~np.isfinite(score)).sum()):
        raise RecordError(
            f"calibration needs finite scores, got {unknown} of {len(score)} that are not: leave them out"
        )
    positives, negatives = int((y == 1).sum()), int((y == 0).sum())
    if not positives or not negatives or positives + negatives != len(y):
        raise RecordError(
            f"calibration needs both classes, got {positives} of label 1 and {negatives} of label 0 among {len(y)} rows"
        )
    return np.where(y == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))


def _standardise(score: Floats) -> tuple[Floats, float, float]:
    """Returns standardised scores, their mean and their standard deviation (1 where they do not vary)."""
    centre, spread = float(np.mean(score)), float(np.std(score)) or 1.0
    return (score - centre) / spread, centre, spread


def _logistic(
    design: Floats, targets: Floats, *, start: Sequence[float], least: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Returns the k weights of the logistic regression on soft targets, by Newton's steps.

    A weight at its bound stays there while the loss would fall beyond the bound (projected Newton, Bertsekas 1982).

    Args:
        design: the columns (n, k); the last is the constant.
        targets: targets in [0, 1], (n,).
        start: start of all weights but the last, which starts at the log-odds of the mean target.
        least: lower bound of each weight; None for no bounds.
    """
    weights = np.array([*start, np.log(targets.mean() / (1 - targets.mean()))])
    low = np.full(len(weights), -np.inf) if least is None else np.array(least)
    target_sums, ridge = design.T @ targets, RIDGE * len(targets) * np.eye(len(weights))

    def loss_and_probability(weights: Floats) -> tuple[float, Floats]:
        logit = design @ weights
        row_loss = np.logaddexp(0, logit)
        return float(row_loss.sum() - target_sums @ weights), np.exp(logit - row_loss)

    loss, p = loss_and_probability(weights)
    for _ in range(MAX_NEWTON_STEPS):
        gradient = design.T @ p - target_sums
        curvature = design.T @ ((p * (1 - p))[:, None] * design) + ridge
        at_bound = (weights <= low) & (gradient >= 0)
        if at_bound.any():
            gradient[at_bound], curvature[at_bound], curvature[:, at_bound] = 0.0, 0.0, 0.0
            curvature[at_bound, at_bound] = 1.0
        step, step_share, previous_loss = np.linalg.solve(curvature, gradient), 1.0, loss
        while True:
            candidate = np.maximum(weights - step_share * step, low)
            loss, p = loss_and_probability(candidate)
            if loss <= previous_loss + LOSS_ROUNDING or step_share <= MIN_STEP_SHARE:
                break
            step_share /= 2
        moved, weights = np.abs(candidate - weights).max(), candidate
        if moved < CONVERGED_CHANGE:
            break
    return tuple(weights.tolist())
