"""Ways of judging an answer, with one interface: fit on some rows, score any rows.

Higher scores mean likelier right. A method that learns nothing (`fitted=False`) is calibrated on all rows but the test
rows; one that learns is calibrated on rows it has not seen.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import Family
from metaprobe.eval.table import AnswerTable
from metaprobe.training.calibration import RISING, USUAL_CALIBRATORS
from metaprobe.training.evidence import Evidence, Scores, runs_of
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.ladder import ALL_TERMS, USUAL_BAR, WITH_TREES, Bar, decided_columns, fit_ladder
from metaprobe.training.linear import LinearProbe, fit_linear_probe
from metaprobe.training.trees import fit_trees

MEAN_LOGPROB = "mean log-probability"
TREES = "LightGBM on logprobs"
LADDER = "learned on logprobs"
DECISIONS = "learned on decisions"
BEFORE = "hidden probe, before"
AFTER = "hidden probe, answer"
BLEND = "blend"


Scorer = Callable[[Rows], Scores]


@dataclass(frozen=True, slots=True, eq=False)
class LinearScore:
    """score = ((x - mean) / scale) @ weights + intercept, all (d,) but the intercept."""

    mean: Scores
    scale: Scores
    weights: Scores
    intercept: float

    def __call__(self, X: NDArray[np.floating]) -> Scores:
        """(n, d) -> (n,)."""
        return np.asarray(((X.astype(np.float64) - self.mean) / self.scale) @ self.weights + self.intercept)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A method that has learned."""

    score: Scorer
    selection_auroc: float
    """On rows that it had not learned from when its hyper-parameters were chosen."""
    probe: LinearProbe | None = None
    """The probe, of a method on hidden states; else None."""
    linear: LinearScore | None = None
    """The linear map, of a method that is linear in numbers that come with an answer; else None."""
    number: str = ""
    """The number, maybe reversed, that alone orders the answers, as the ladder names it; empty where more does."""


class Method(Protocol):
    """A way of judging answers."""

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> Family: ...

    @property
    def fitted(self) -> bool:
        """Whether it learns from train and selection rows, and so must be calibrated on others."""
        ...

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        """Fits on the rows of these roles. Scores are NaN where the method knows nothing of an answer."""
        ...


@dataclass(frozen=True, slots=True)
class GivenScore:
    """A number that is known without any fitting."""

    name: str
    family: Family
    values: Callable[[AnswerTable], Scores]
    fitted: bool = False
    probability: bool = False
    """Whether the numbers are probabilities that the answers are right, as a model or a judge gave them."""

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        values, y = self.values(evidence.table), evidence.table.y
        known = np.where(np.isfinite(values), values, np.nanmedian(values) if np.isfinite(values).any() else 0.0)
        return Fitted(lambda rows: values[rows], float(auroc(y[roles.selection], known[roles.selection])))


@dataclass(frozen=True, slots=True)
class LogprobLadder:
    """The quality predictor: a free number, or what is better than it (`metaprobe.training.ladder`)."""

    new_tasks: bool = False
    """Whether it is made for models and tasks that the runs do not hold: then it stays the free number, and knows no
    run's base rate."""
    bar: Bar = USUAL_BAR
    name: str = LADDER
    family: Family = "learned"
    fitted: bool = True
    calibrators: ClassVar[tuple[str, ...]] = (RISING,)
    """Platt's alone: an exported base rate is added to its log-odds. It must rise, because the ladder has decided which
    way round its number tells."""

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        table, X = evidence.table, evidence.features
        runs = runs_of(table)
        ladder = fit_ladder(
            X,
            table.y,
            table.groups,
            runs,
            roles,
            names=evidence.feature_names,
            read=evidence.read,
            climb=not self.new_tasks,
            bar=self.bar,
            seed=seed,
        )
        if self.new_tasks:
            return Fitted(lambda rows: ladder.score(X[rows]), ladder.selection_auroc, number=ladder.reached)
        # Base rates of several runs change the order as well.
        alone = ladder.reached not in (ALL_TERMS, WITH_TREES) and len(set(runs.tolist())) == 1
        return Fitted(
            lambda rows: ladder.score_of(X[rows], runs[rows]),
            ladder.selection_auroc,
            number=ladder.reached if alone else "",
        )


USUAL_LADDER = LogprobLadder()


def calibrators_of(method: Method) -> tuple[str, ...]:
    """Returns the calibrators that a method's scores may get: those that it names itself, else the usual ones."""
    return getattr(method, "calibrators", USUAL_CALIBRATORS)


DECISION_LADDER = LogprobLadder(name=DECISIONS, family="decision")
"""The same predictor on decisions (`evidence.read_decisions`)."""


@dataclass(frozen=True, slots=True)
class LearnedDecisions:
    """The quality predictor on decisions, also where some are missing: one question's number, or what is better.

    A number that is missing has its mean; an answer of which nothing was said has no score.
    """

    name: str = DECISIONS
    family: Family = "decision"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        X = evidence.decisions
        assert X is not None, "offered only where decisions were made"
        held = np.flatnonzero(np.isfinite(X[roles.learning]).any(axis=0))
        names = tuple(evidence.decision_names[place] for place in held)
        known = np.where(np.isfinite(X[:, held]), X[:, held], np.nanmean(X[roles.learning][:, held], axis=0))
        whole = replace(evidence, features=known.astype(np.float32), feature_names=names, read=decided_columns(names))
        fitted = DECISION_LADDER.fit(whole, roles, seed=seed)
        nothing = np.asarray(np.isnan(X[:, held]).all(axis=1))
        return replace(fitted, score=lambda rows: np.where(nothing[rows], np.nan, fitted.score(rows)))


@dataclass(frozen=True, slots=True)
class FeatureTrees:
    """LightGBM on windowed log-probability statistics by itself, without base rates and without a free number."""

    name: str = TREES
    family: Family = "learned"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        trees = fit_trees(
            evidence.features,
            evidence.table.y,
            roles,
            names=evidence.feature_names,
            seed=seed,
        )
        return Fitted(lambda rows: trees.score(evidence.features[rows]), trees.selection_auroc)


@dataclass(frozen=True, slots=True)
class HiddenProbeMethod:
    """A linear probe; layer and position are chosen on rows that it was not fitted on."""

    name: str
    positions: tuple[str, ...]
    family: Family = "learned"
    fitted: bool = True

    def probe(self, evidence: Evidence, roles: Roles, *, seed: int) -> LinearProbe:
        """The probe that these roles give."""
        states, table, positions = evidence.states, evidence.table, self.positions
        assert states is not None, "offered only where hidden states were captured"
        return fit_linear_probe(states, table.y, table.groups.tolist(), roles, positions=positions, seed=seed)

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        states, probe = evidence.states, self.probe(evidence, roles, seed=seed)
        assert states is not None, "offered only where hidden states were captured"
        return Fitted(lambda rows: probe.score(states, rows), max(point.auroc for point in probe.sweep), probe)
