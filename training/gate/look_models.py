"""How a look judges: by trees on all statistics of the first tokens, or by their mean log-probability alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights, paired_difference
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.table import AnswerTable
from metaprobe.probes.features import schema
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.common.calibrate import Calibrator, Platt, choose_calibrator, fit_platt
from metaprobe.training.common.calibrators import Onnx
from metaprobe.training.common.roles import Roles, Rows, group_folds
from metaprobe.training.common.trees import fit_trees
from metaprobe.training.gate.stopping_thresholds import Surprise

SCHEMA = schema("prefix-50")
ROLES = ("train", "selection", "calibration")
"""Roles that a head learns from, in one way or another."""
REFERENCE_FOLDS = 3
"""Parts of the learning rows, each scored by trees fitted on the others."""
ONE_STANDARD_ERROR = 0.683
"""Of the interval that the gain of trees over the mean log-probability must lie above 0 with."""
RESAMPLES = 200
FEWEST = 5
"""Good answers, and bad ones, that a look needs in each role."""
FLAT = 1e-6
"""Log-odds that a calibrator must rise by to be called rising."""

Features = NDArray[np.float32]
Scores = NDArray[np.float64]


class LookScorer(Protocol):
    """Features in, a score out: higher for likelier good."""

    def score(self, X: Features) -> Scores: ...


@dataclass(frozen=True, slots=True)
class MeanLogprob:
    """The mean log-probability of the first tokens, as it is."""

    column: int
    """Of the features."""

    def score(self, X: Features) -> Scores:
        """(n,) nats; 0 where the response has fewer tokens, about which nothing is asked."""
        return np.nan_to_num(X[:, self.column].astype(np.float64), nan=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class GateHead:
    """The judgement at one look."""

    scorer: LookScorer
    calibrator: Calibrator
    """Strictly rising: a threshold on the probability is one on the score."""
    surprise: Surprise

    def probability(self, X: Features) -> Scores:
        """P(good) (n,) of features of `SCHEMA`."""
        return self.calibrator.probability(self.scorer.score(X))

    @property
    def for_graph(self) -> Any:
        """As `trees_graph` takes it."""
        if isinstance(self.scorer, MeanLogprob):
            return _MeanInGraph(self.scorer, self.calibrator)
        return self.scorer, self.calibrator


def fit_head(X: Features, table: AnswerTable, roles: Roles, look: int, *, seed: int = 0) -> GateHead:
    """The head of a look from the answers that long. Raises `RecordError` where they are too few.

    Trees are taken where, on learning rows that they were not fitted on, their AUROC is above that of the mean
    log-probability by more than a standard error: with few answers the mean is hard to beat.
    """
    y, long = table.y, table.tokens >= look
    own = replace(roles, **{role: rows[long[rows]] for role in ROLES for rows in (getattr(roles, role),)})
    for role in ROLES:
        bad, good = np.bincount(y[getattr(own, role)], minlength=2)
        if min(bad, good) < FEWEST:
            raise RecordError(
                f"of the {role} answers of {look} tokens {good} are good and {bad} bad, not {FEWEST} each"
            )
    rows, mean = own.learning, MeanLogprob(SCHEMA.names.index(f"first{look}.mean"))
    scorer: LookScorer = mean
    unseen = mean.score(X[rows])
    # Columns that are not to be seen are never defined, and so never split on: the graph takes all of them.
    seen = np.where(np.isin(SCHEMA.names, schema(f"prefix-{look}").names), X, np.float32(np.nan))
    try:
        trees = fit_trees(seen, y, own, names=SCHEMA.names, seed=seed)
        of_trees = _unseen_scores(seen, table, rows, trees.parameters, seed)
    except RecordError:
        pass  # too few for trees
    else:
        weights = cluster_weights(table.groups[rows].tolist(), RESAMPLES, seed)
        if paired_difference(auroc, y[rows], of_trees, unseen, weights, level=ONE_STANDARD_ERROR).low > 0:
            scorer, unseen = trees, of_trees
    at = own.calibration
    calibrator = rising_calibrator(scorer.score(X[at]), y[at], table.groups[at].tolist(), seed=seed)
    return GateHead(scorer, calibrator, Surprise.fit(unseen[y[rows] == 1]))


def _unseen_scores(X: Features, table: AnswerTable, rows: Rows, parameters: Mapping[str, Any], seed: int) -> Scores:
    """Scores of these rows, each by trees of these parameters that were fitted on other groups of them.

    The trees' own scores of what they were fitted on are too good, the more so the fewer answers are that long: late
    looks would seem harmless.
    """
    lightgbm = require("lightgbm", "fit")
    given = {name: value for name, value in parameters.items() if name != "rounds"}
    scores = np.full(len(X), np.nan)
    for rest, part in group_folds(rows, table.groups.tolist(), table.y, REFERENCE_FOLDS, seed):
        data = lightgbm.Dataset(X[rest], table.y[rest])
        booster = lightgbm.train(given, data, num_boost_round=int(parameters["rounds"]))
        scores[part] = booster.predict(X[part], raw_score=True)
    return scores[rows]


def rising_calibrator(scores: Scores, y: NDArray[np.int64], groups: Sequence[str], *, seed: int = 0) -> Calibrator:
    """As `choose_calibrator`, strictly rising, so that a threshold on the probability is one on the score.

    Platt's may fall and beta calibration may be flat on one side of its centre; isotonic regression is flat at its
    ends, where the thresholds lie. Scores that go the wrong way all get the share of good answers, so nearly the same
    that no threshold is crossed.
    """
    ends = np.array([scores.min() - 1, np.median(scores), scores.max() + 1])
    chosen = choose_calibrator(scores, y, groups, candidates=("platt", "beta"), seed=seed).calibrator
    for calibrator in (chosen, fit_platt(scores, y)):
        if (np.diff(calibrator.logit(ends)) > FLAT).all():
            return calibrator
    share = (float(y.sum()) + 1) / (len(y) + 2)
    return Platt(slope=2 * FLAT / (ends[-1] - ends[0]), intercept=float(np.log(share / (1 - share))))


@dataclass(frozen=True, slots=True)
class _MeanInGraph:
    """A calibrated mean log-probability, in the shape of `metaprobe.training.common.heads.FittedHead`."""

    mean: MeanLogprob
    calibrator: Calibrator
    kind: ClassVar[str] = "binary"

    @property
    def calibrations(self) -> tuple[str, ...]:
        return (self.calibrator.name,)

    def value(self, X: Features) -> Scores:
        """P(good) (n,)."""
        return self.calibrator.probability(self.mean.score(X))

    def onnx_nodes(self, input_name: str, output_name: str, width: int) -> Onnx:
        onnx = require("onnx", "fit")

        def own(name: str) -> str:
            return f"{output_name}_{name}"

        def node(kind: str, inputs: Sequence[str], output: str, **attributes: int) -> Any:
            return onnx.helper.make_node(kind, list(inputs), [output], **attributes)

        column = np.array([self.mean.column], dtype=np.int64)
        constants = [
            onnx.numpy_helper.from_array(column, own("column")),
            onnx.numpy_helper.from_array(np.zeros(1, dtype=np.float32), own("zero")),
        ]
        nodes = [
            node("Gather", [input_name, own("column")], own("mean"), axis=1),  # (n, 1)
            node("IsNaN", [own("mean")], own("unknown")),
            node("Where", [own("unknown"), own("zero"), own("mean")], own("score")),
        ]
        more, initializers = self.calibrator.onnx_nodes(own("score"), output_name, own("calibrator"))
        return [*nodes, *more], [*constants, *initializers]
