"""Ways of judging an answer joined by their calibrated log-odds: the blend of a comparison, and of `train blend`.

An answer may lack what a part reads. Each set of parts that answers have has weights and a calibration of its own, so
that an answer without hidden states gets what its other parts are worth by themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.controls import P_TRUE
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import Family
from metaprobe.eval.table import AnswerTable
from metaprobe.probes.features import ALONE, TERM_NAMES, features, schema
from metaprobe.records.extras import require
from metaprobe.training.calibration import Floats, Platt, clustered_se, fit_platt, sigmoid
from metaprobe.training.evidence import Evidence
from metaprobe.training.folds import Roles, Rows, group_folds
from metaprobe.training.ladder import fit_ladder
from metaprobe.training.methods import BLEND, Fitted, GivenScore, LinearScore, Method

PRIOR = 20.0
"""Answers' worth of the belief that all parts weigh the same."""
FEWEST = 20
"""Calibration rows, with both labels among them, from which a set of parts gets weights of its own; of fewer the parts
weigh the same."""
FOLDS = 5
"""Folds of the calibration rows in which a further part must pay."""


@dataclass(frozen=True, slots=True)
class TermsPart:
    """The ladder on the terms of the log-probabilities alone: without trees, and without the base rates of runs."""

    name: str = "log-probabilities"
    family: Family = "learned"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        """Fits a free number, or all terms where they pay."""
        table, X = evidence.table, terms_of(evidence.table)
        one = np.full(len(table), "")
        ladder = fit_ladder(X, table.y, table.groups, one, roles, names=TERM_NAMES, seed=seed)
        zero, unit = np.zeros(X.shape[1]), np.ones(X.shape[1])
        linear = LinearScore(zero, unit, ladder.weights, ladder.rates.mean)
        return Fitted(lambda rows: linear(X[rows]), ladder.selection_auroc, linear=linear)


def terms_of(table: AnswerTable) -> NDArray[np.float32]:
    """Returns the terms (n, 7) of the answers' log-probabilities."""
    return features(schema(ALONE), list(table.logprobs))


@dataclass(frozen=True, slots=True)
class StatedNumber(GivenScore):
    """A number of the answer table as a part, as it stands; its calibration says which way round it tells."""

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        """Fits nothing."""
        known = GivenScore.fit(self, evidence, roles, seed=seed)
        return Fitted(known.score, known.selection_auroc, linear=LinearScore(np.zeros(1), np.ones(1), np.ones(1), 0.0))


CONFIDENCE = StatedNumber("stated confidence of the answer", "explicit", lambda table: table.stated_confidence)
TRUE = StatedNumber(P_TRUE, "explicit", lambda table: table.p_true)


@dataclass(frozen=True, slots=True, eq=False)
class JoinedFit:
    """Calibrated parts, and the weights of each set of them."""

    methods: tuple[Method, ...]
    parts: tuple[Fitted, ...]
    calibrators: tuple[Platt, ...]
    logits: Floats
    """(k, n): calibrated log-odds of each part; NaN where an answer lacks what the part reads."""
    y: NDArray[np.int64]
    rows: Rows
    """Rows that the parts have not seen: weights and calibrations are fitted here."""
    _made: dict[int, tuple[Floats, float]] = field(default_factory=dict)

    def score(self, among: int = -1) -> Floats:
        """Returns the log-odds (n,) of all answers, each by those parts of a set that it has; NaN where it has none.

        `among`: the set, by default all parts.
        """
        sets = (np.isfinite(self.logits).T @ (1 << np.arange(len(self.parts)))) & among
        scores = np.full(self.logits.shape[1], np.nan)
        for members in np.unique(sets[sets > 0]).tolist():
            weights, shift = self.of(members)
            here = sets == members
            scores[here] = weights @ np.nan_to_num(self.logits[:, here]) + shift
        return scores

    def of(self, members: int) -> tuple[Floats, float]:
        """Returns weights (k,) and shift of a set of parts, the sum of 2^i over its parts i; others weigh 0."""
        if members not in self._made:
            among = [i for i in range(len(self.parts)) if members >> i & 1]
            rows = self.rows[np.isfinite(self.logits[among][:, self.rows]).all(axis=0)]
            weights = np.zeros(len(self.parts))
            weights[among], shift = weigh(self.logits[among][:, rows], self.y[rows])
            self._made[members] = weights, shift
        return self._made[members]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedJoin(Fitted):
    """A blend that has learned."""

    joined: JoinedFit


@dataclass(frozen=True, slots=True)
class Blend:
    """Joins methods by their calibrated log-odds."""

    parts: tuple[Method, ...]
    extras: tuple[Method, ...] = ()
    """Parts that are joined only where they pay: weak evidence, weighed on few answers, costs more than it brings."""
    name: str = BLEND
    family: Family = "learned"
    fitted: bool = True
    calibrators: ClassVar[tuple[str, ...]] = (Platt.name,)
    """Platt's alone: a calibrated score is then linear in what the parts read."""

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        """Fits the parts and joins them."""
        return self.fit_with({}, evidence, roles, seed=seed)

    def fit_with(self, fitted: Mapping[Method, Fitted], evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        """Joins the parts; those that are `fitted` on the same roles are not fitted again."""
        joined = self.join(fitted, evidence, roles, seed=seed)
        scores, rows = joined.score(), roles.calibration
        selected = float(auroc(evidence.table.y[rows], np.nan_to_num(scores[rows])))
        return FittedJoin(score=lambda rows: scores[rows], selection_auroc=selected, joined=joined)

    def join(self, fitted: Mapping[Method, Fitted], evidence: Evidence, roles: Roles, *, seed: int) -> JoinedFit:
        """Returns the parts that are joined, calibrated; their weights are fitted when they are asked for."""
        table = evidence.table
        y, groups = table.y, table.groups
        kept: list[tuple[Method, Fitted, Platt, Floats]] = []
        for method in (*self.parts, *self.extras):
            part = fitted.get(method) or method.fit(evidence, roles, seed=seed)
            scores = np.asarray(part.score(np.arange(len(table))), dtype=np.float64)
            rows = roles.calibration if method.fitted else roles.seen
            rows = rows[np.isfinite(scores[rows])]
            told = len(np.unique(y[rows])) > 1
            platt = fit_platt(scores[rows], y[rows]) if told else Platt(0.0, 0.0)
            logit = platt.logit(scores)
            before = np.array([of for *_, of in kept])
            if method in self.parts or pays(logit, before, y, groups.tolist(), roles.calibration, seed):
                kept.append((method, part, platt, logit))
        methods, parts, calibrators, logits = zip(*kept, strict=True)
        return JoinedFit(methods, parts, calibrators, np.array(logits), y, roles.calibration)


def pays(extra: Floats, before: Floats, y: NDArray[np.int64], groups: Sequence[str], rows: Rows, seed: int) -> bool:
    """Returns whether a further part lowers the log loss on groups left out by more than a standard error.

    `extra` (n,) are its log-odds, `before` (k, n) those of the parts that are joined already.
    """
    both = np.vstack([before, extra])
    rows = rows[np.isfinite(both[:, rows]).all(axis=0)]
    counts = [len({groups[i] for i in rows[y[rows] == label]}) for label in (0, 1)]
    if min(counts) < FOLDS:
        return False
    gain = np.zeros(len(y))
    for rest, part in group_folds(rows, groups, y, FOLDS, seed):
        for sign, logits in ((1, before), (-1, both)):
            weights, shift = weigh(logits[:, rest], y[rest])
            z = weights @ logits[:, part] + shift
            gain[part] += sign * np.logaddexp(0, np.where(y[part] == 1, -z, z))
    clusters = np.unique([groups[i] for i in rows], return_inverse=True)[1]
    return bool(gain[rows].mean() > clustered_se(gain[rows], clusters))


def weigh(logits: Floats, y: NDArray[np.int64]) -> tuple[Floats, float]:
    """Returns weights (k,) and shift that make log-odds of the parts' (k, n); equal weights from too few answers."""
    k = len(logits)
    if len(y) < FEWEST or len(np.unique(y)) < 2:
        return np.full(k, 1 / k), 0.0
    weights = blend_weights(logits, y)
    platt = fit_platt(weights @ logits, y)
    return weights * platt.slope, platt.intercept


def blend_weights(logits: Floats, y: NDArray[np.int64]) -> Floats:
    """(k,) weights of k methods' calibrated log-odds (k, n): logistic regression, none negative, shrunk to equal ones.

    With few answers the blend is the mean of the log-odds; with many, what adds nothing loses its weight (stacking,
    Breiman 1996, with the prior of a plain average).
    """
    optimize = require("scipy.optimize", "fit")
    k, n = logits.shape

    def loss(parameters: Floats) -> tuple[float, Floats]:
        weights, shift = parameters[:k], parameters[k]
        z = weights @ logits + shift
        error, away = sigmoid(z) - y, weights - 1 / k
        value = np.logaddexp(0, z).sum() - y @ z + PRIOR * away @ away
        return float(value / n), np.r_[logits @ error + 2 * PRIOR * away, error.sum()] / n

    bounds = [(0, None)] * k + [(None, None)]
    start = np.r_[np.full(k, 1 / k), 0.0]
    fit = optimize.minimize(loss, start, jac=True, method="SLSQP", bounds=bounds, options={"ftol": 1e-12})
    return np.asarray(fit.x[:k], dtype=np.float64)
