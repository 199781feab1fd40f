"""Every way of judging an answer that is compared, as one shape: fit on some rows, score any rows.

Higher scores mean likelier right. A method that learns nothing (`fitted=False`) is calibrated on all rows but the test
rows; one that learns is calibrated on rows it has not seen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Generator
from metaprobe.eval.audits.simpler_predictors import IDENTITY
from metaprobe.eval.compare import STATED
from metaprobe.eval.method_results import Family
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.table import AnswerTable
from metaprobe.probes.baselines import baseline_scores
from metaprobe.records.extras import require
from metaprobe.training.common.calibrators import Beta, Isotonic, Platt
from metaprobe.training.common.ladder import fit_ladder
from metaprobe.training.common.roles import Roles, Rows
from metaprobe.training.common.trees import fit_trees
from metaprobe.training.linear.probe import Kind, LinearProbe
from metaprobe.training.linear.states import States

MEAN_LOGPROB = "mean log-probability"
TREES = "LightGBM on logprobs"
LADDER = "learned on logprobs"
BEFORE = "hidden probe, before"
AFTER = "hidden probe, answer"
BLEND = "blend"

USUAL_CALIBRATORS = (Platt.name, Beta.name, Isotonic.name)

Scores = NDArray[np.float64]
Scorer = Callable[[Rows], Scores]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What the methods may look at, row by row."""

    table: AnswerTable
    features: NDArray[np.float32]
    """(n, d) of the schema named below."""
    feature_names: tuple[str, ...]
    schema: str
    states: States | None = None
    """Hidden states; row i belongs to row i of the table."""
    generator: Generator | None = None
    """None where a model is not named."""
    fingerprint: str = ""
    """Of the runs."""
    labels_by_source: Mapping[str, Scores] = field(default_factory=dict)
    """Source -> its labels (n,), NaN where it gave none."""
    without_hidden: int = 0
    """Answers whose hidden states are not stored; the probes are left out unless it is 0."""
    states_refused: str = ""
    """Why stored hidden states are left out; empty where they are not."""
    reader: str = ""
    """Which model read the states (`NAME@REVISION`), where it is another than the one that answered."""
    logprobs_reader: str = ""
    """The same of the log-probabilities."""
    regrouped: str = ""
    """Which groups were joined because their questions or answers repeat, in words; empty where none were."""
    evaluated: Mapping[str, float] = field(default_factory=dict)
    """Call id -> what the answer was evaluated at by a verifier, in [0, 1] (`operating_points.evaluations_of`)."""
    without_logprobs: int = 0
    """Labelled answers that are no rows here, because they hold no log-probabilities."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A method that has learned."""

    score: Scorer
    selection_auroc: float
    """On rows that it had not learned from when its hyper-parameters were chosen."""
    probe: LinearProbe | None = None
    """Where the method is a probe on hidden states."""


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
        """Its scores are NaN where there is nothing to go by."""
        ...


@dataclass(frozen=True, slots=True)
class GivenScore:
    """A number that is known without any fitting."""

    name: str
    family: Family
    values: Callable[[AnswerTable], Scores]
    fitted: bool = False

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        values, y = self.values(evidence.table), evidence.table.y
        known = np.where(np.isfinite(values), values, np.nanmedian(values) if np.isfinite(values).any() else 0.0)
        return Fitted(lambda rows: values[rows], float(auroc(y[roles.selection], known[roles.selection])))


def make_tfidf() -> Any:
    """Returns what turns texts into TF-IDF rows of their words and pairs of words, still to be fitted."""
    text = require("sklearn.feature_extraction.text", "fit")
    return text.TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, token_pattern=r"\S+")


@dataclass(frozen=True, slots=True)
class PromptTfidf:
    """Logistic regression on the words of the question alone: what can be known without any signal of the model."""

    name: str = "prompt TF-IDF"
    family: Family = "plain"
    fitted: bool = True
    penalties: tuple[float, ...] = (0.1, 1.0, 10.0)

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        linear = require("sklearn.linear_model", "fit")
        table = evidence.table
        # The way of asking is part of the prompt, so this control may know it too.
        prompts = np.array([f"[{v}] {q}" for v, q in zip(table.variants, table.questions, strict=True)])

        def fitted(rows: Rows, penalty: float) -> Scorer:
            words = make_tfidf()
            model = linear.LogisticRegression(C=penalty, max_iter=1000)
            model.fit(words.fit_transform(prompts[rows]), table.y[rows])
            return lambda rows: np.asarray(model.decision_function(words.transform(prompts[rows])), dtype=np.float64)

        selected = {
            penalty: float(auroc(table.y[roles.selection], fitted(roles.train, penalty)(roles.selection)))
            for penalty in self.penalties
        }
        best = max(selected, key=lambda penalty: selected[penalty])
        return Fitted(fitted(roles.learning, best), selected[best])


def smooth_means(
    values: NDArray[np.int64] | Scores, cells: NDArray[np.str_], prior: float
) -> tuple[dict[str, float], float]:
    """Returns the mean value of each cell, as if it held `prior` more rows of the overall mean; and that mean."""
    overall = float(np.mean(values))
    found = {}
    for cell in np.unique(cells):
        here = values[cells == cell]
        found[str(cell)] = (float(here.sum()) + prior * overall) / (len(here) + prior)
    return found, overall


@dataclass(frozen=True, slots=True)
class CellTable:
    """Smoothed share of right answers in each cell of the named columns: a judge that knows only what was asked."""

    name: str = "dimension x level table"
    columns: tuple[str, ...] = ("dimensions", "levels", "variants")
    family: Family = "plain"
    fitted: bool = True
    prior: float = 5.0
    """Answers' worth of the overall share that each cell starts with."""

    def varies(self, table: AnswerTable) -> bool:
        """Whether there is more than one cell, so that there is something to know."""
        return len(np.unique(self.cells(table))) > 1

    def cells(self, table: AnswerTable) -> NDArray[np.str_]:
        """(n,): the cell of each answer."""
        return np.array(["|".join(cell) for cell in zip(*(getattr(table, c) for c in self.columns), strict=True)])

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        table = evidence.table
        cells = self.cells(table)

        def fitted(learn: Rows) -> Scorer:
            known, share = smooth_means(table.y[learn], cells[learn], self.prior)
            return lambda rows: np.array([known.get(cell, share) for cell in cells[rows]])

        selected = float(auroc(table.y[roles.selection], fitted(roles.train)(roles.selection)))
        return Fitted(fitted(roles.learning), selected)


RUN_IDENTITY = CellTable(IDENTITY, ("models", "tasks", "variants"))
"""A judge that knows only which run an answer is of: which model answered which task, asked in which way."""


@dataclass(frozen=True, slots=True)
class LogprobLadder:
    """The quality predictor: a free number, or what is better than it (`metaprobe.training.common.ladder`)."""

    new_tasks: bool = False
    """Whether it is made for models and tasks that the runs do not hold: then it stays the free number, and knows no
    run's base rate."""
    name: str = LADDER
    family: Family = "learned"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        table, X = evidence.table, evidence.features
        runs = RUN_IDENTITY.cells(table)
        ladder = fit_ladder(
            X,
            table.y,
            table.groups,
            runs,
            roles,
            names=evidence.feature_names,
            climb=not self.new_tasks,
            seed=seed,
        )
        if self.new_tasks:
            return Fitted(lambda rows: ladder.score(X[rows]), ladder.selection_auroc)
        return Fitted(lambda rows: ladder.score_of(X[rows], runs[rows]), ladder.selection_auroc)


USUAL_LADDER = LogprobLadder()


def calibrators_of(method: Method) -> tuple[str, ...]:
    """Returns the calibrators that a method's scores may get.

    The quality predictor gets Platt's alone: an exported base rate is added to its log-odds.
    """
    return (Platt.name,) if isinstance(method, LogprobLadder) else USUAL_CALIBRATORS


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


USUAL_TREES = FeatureTrees()


@dataclass(frozen=True, slots=True)
class HiddenProbeMethod:
    """A linear probe; layer and position are chosen on rows it was not fitted on."""

    name: str
    positions: tuple[str, ...]
    kind: Kind = "logistic"
    family: Family = "learned"
    fitted: bool = True

    def probe(self, evidence: Evidence, roles: Roles, *, seed: int) -> LinearProbe:
        """The probe that these roles give."""
        from metaprobe.training.linear.layer_choice import fit_linear_probe

        states, table = evidence.states, evidence.table
        assert states is not None, "offered only where hidden states were captured"
        groups = table.groups.tolist()
        return fit_linear_probe(states, table.y, groups, roles, positions=self.positions, kind=self.kind, seed=seed)

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        return _fitted_probe(self, evidence, roles, seed)


@dataclass(frozen=True, slots=True)
class LowRankProbe:
    """A probe over all layers at once; position, rank and penalty are chosen on the selection rows."""

    name: str
    positions: tuple[str, ...]
    family: Family = "learned"
    fitted: bool = True

    def probe(self, evidence: Evidence, roles: Roles, *, seed: int) -> LinearProbe:
        """The probe that these roles give."""
        require("torch", "train")
        from metaprobe.training.linear.lowrank import fit_low_rank_probe

        states = evidence.states
        assert states is not None, "offered only where hidden states were captured"
        return fit_low_rank_probe(states, evidence.table.y, roles, positions=self.positions)

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        return _fitted_probe(self, evidence, roles, seed)


def _fitted_probe(method: HiddenProbeMethod | LowRankProbe, evidence: Evidence, roles: Roles, seed: int) -> Fitted:
    states, probe = evidence.states, method.probe(evidence, roles, seed=seed)
    assert states is not None, "offered only where hidden states were captured"
    return Fitted(lambda rows: probe.score(states, rows), max(point.auroc for point in probe.sweep), probe)


ProbeKind = Literal[Kind, "low-rank"]


def standard_methods(
    evidence: Evidence, *, kind: ProbeKind = "logistic", ladder: LogprobLadder = USUAL_LADDER
) -> list[Method]:
    """The methods of the comparison, in its order. Probes, of that kind, only where hidden states were captured."""
    table = evidence.table
    methods: list[Method] = [
        GivenScore(STATED, "explicit", lambda t: t.stated_confidence),
        GivenScore("stated ease", "explicit", lambda t: 1 - t.stated_difficulty),
        GivenScore("P(true)", "log-probability", lambda t: t.p_true),
        *(_of_logprobs() if table.measured else ()),
        PromptTfidf(),
        *(control for control in (CellTable(), RUN_IDENTITY) if control.varies(table)),
        *((ladder,) if table.measured else ()),
    ]
    if evidence.states is not None:
        positions = evidence.states.positions
        answer = tuple(position for position in positions if position != "prompt_last")
        for name, read in ((BEFORE, ("prompt_last",) if "prompt_last" in positions else ()), (AFTER, answer)):
            if read:
                methods.append(LowRankProbe(name, read) if kind == "low-rank" else HiddenProbeMethod(name, read, kind))
    # What was never stated, and questions that were not stored, have no numbers.
    if not any(question.strip() for question in table.questions.tolist()):
        methods = [m for m in methods if not isinstance(m, PromptTfidf)]
    return [m for m in methods if not isinstance(m, GivenScore) or np.isfinite(m.values(table)).any()]


def _of_logprobs() -> list[Method]:
    """What the log-probabilities give without any fitting, and how long the answers are."""
    return [
        GivenScore(MEAN_LOGPROB, "log-probability", lambda t: _baseline(t, "mean_logprob")),
        GivenScore("minimum log-probability", "log-probability", lambda t: _baseline(t, "min_logprob")),
        GivenScore("scaled log-probability", "log-probability", lambda t: _baseline(t, "scaled_logprob")),
        GivenScore("first log-probability", "log-probability", lambda t: _baseline(t, "first_logprob")),
        GivenScore("length", "plain", lambda t: -np.log(t.tokens.astype(np.float64))),
        GivenScore("cut by max_tokens", "plain", lambda t: -t.cut.astype(np.float64)),
    ]


def _baseline(table: AnswerTable, name: str) -> Scores:
    return baseline_scores(list(table.logprobs))[name]
