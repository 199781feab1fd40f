"""A study: evidence, methods, and what the folds say of them. All training and comparing begins with one.

A method is a way of judging an answer: it is fitted on some rows and scores any rows. Higher scores mean likelier
right. A method that learns nothing (`fitted=False`) is calibrated on all rows but the test rows; one that learns is
calibrated on rows it has not seen.

Every method is fitted and calibrated in the same outer folds by group, so that each answer is judged by a model that
saw no answer of its group. A recipe of `metaprobe.training.recipes` then fits on all groups and writes a checkpoint,
whose figures are those of the folds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import FlagOptions
from metaprobe.eval.audits import AuditInputs, AuditReport, Elsewhere, judge_left_out, run_audits
from metaprobe.eval.compare import BEST_BASELINE, Judged, auroc_gain, control_names, method_results
from metaprobe.eval.controls import (
    ANSWER,
    CELLS,
    DECISION,
    FITTED,
    IDENTITY,
    JOINED,
    NUMBERS,
    P_TRUE,
    PROMPT,
    REVERSED,
    STATED,
    TERMS,
    TEXT,
    UNANSWERED,
    free_controls,
    free_family,
    free_score,
    has_answers,
    has_questions,
)
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import debiased_ece
from metaprobe.eval.metrics.ranked import StratifiedAuroc, auroc
from metaprobe.eval.results import CONTROL_FAMILIES, Family
from metaprobe.eval.table import AnswerTable, usable_groups
from metaprobe.probes.decisions import MADE, is_predicate
from metaprobe.probes.features import ALONE, DECIDED, TERM_NAMES, features, schema
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.training.calibration import (
    RISING,
    USUAL_CALIBRATORS,
    Floats,
    Platt,
    calibrator_on,
    clustered_se,
    fit_platt,
    sigmoid,
)
from metaprobe.training.evidence import INVERTED, Evidence, Scores, invert, load_evidence, origin_of_states, runs_of
from metaprobe.training.folds import Roles, Rows, group_folds, outer_folds, roles_without, with_fewer
from metaprobe.training.ladder import (
    ALL_TERMS,
    USUAL_BAR,
    WHOLE,
    WITH_TREES,
    Bar,
    Sample,
    decided_columns,
    fit_ladder,
    fit_offsets,
    fit_trees,
)
from metaprobe.training.options import BlendOptions, OnStep, quiet
from metaprobe.training.states import InMemory, LinearProbe, Wanted, fit_linear_probe
from metaprobe.training.thresholds import ScoredAnswers, flagging_of, operating_points, share_below

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
    joined: "JoinedFit | None" = None
    """The parts that a blend joins; None of other methods."""
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
        """Fits nothing; as a part of a blend its calibration says which way round the number tells."""
        values, y = self.values(evidence.table), evidence.table.y
        known = np.where(np.isfinite(values), values, np.nanmedian(values) if np.isfinite(values).any() else 0.0)
        as_it_is = LinearScore(np.zeros(1), np.ones(1), np.ones(1), 0.0)
        reached = float(auroc(y[roles.selection], known[roles.selection]))
        return Fitted(lambda rows: values[rows], reached, linear=as_it_is)


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
        sample = evidence.sample()
        X, runs = sample.X, sample.runs
        ladder = fit_ladder(sample, roles, climb=not self.new_tasks, bar=self.bar, seed=seed)
        if self.new_tasks:
            return Fitted(lambda rows: ladder.score(X[rows]), ladder.selection_auroc, number=ladder.reached)
        # Base rates of several runs change the order as well.
        alone = ladder.reached not in (ALL_TERMS, WITH_TREES) and len(set(runs.tolist())) == 1
        number = ladder.reached if alone else ""
        return Fitted(lambda rows: ladder.score_of(X[rows], runs[rows]), ladder.selection_auroc, number=number)


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
        X = evidence.features
        trees = fit_trees(X, evidence.table.y, roles, names=evidence.feature_names, seed=seed)
        return Fitted(lambda rows: trees.score(X[rows]), trees.selection_auroc)


@dataclass(frozen=True, slots=True)
class HiddenProbeMethod:
    """A linear probe; layer and position are chosen on rows that it was not fitted on."""

    name: str
    positions: tuple[str, ...]
    family: Family = "learned"
    layers: tuple[int, ...] = ()
    """Layers to choose among, of a control; all unless given."""
    fitted: bool = True

    def probe(self, evidence: Evidence, roles: Roles, *, seed: int) -> LinearProbe:
        """The probe that these roles give."""
        states, y, groups = evidence.states, evidence.table.y, evidence.table.groups.tolist()
        assert states is not None, "offered only where hidden states were captured"
        at = self.positions
        return fit_linear_probe(states, y, groups, roles, positions=at, layers=self.layers, seed=seed)

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        states, probe = evidence.states, self.probe(evidence, roles, seed=seed)
        assert states is not None, "offered only where hidden states were captured"
        return Fitted(lambda rows: probe.score(states, rows), max(point.auroc for point in probe.sweep), probe)


# The controls of `metaprobe.eval.controls` as methods of a study, so that they are fitted in the same folds.

PENALTIES = (0.1, 1.0, 10.0)
"""Inverse penalties that a regression on words chooses among."""


def make_tfidf(fewest: int = 2) -> Any:
    """Returns what turns texts into TF-IDF rows of their words and pairs of words, still to be fitted.

    `fewest`: texts that must hold a word for it to count.
    """
    text = require("sklearn.feature_extraction.text", "fit")
    return text.TfidfVectorizer(ngram_range=(1, 2), min_df=fewest, sublinear_tf=True, token_pattern=r"\S+")


def words_in(texts: NDArray[Any], learn: Rows) -> Any:
    """Returns sparse TF-IDF rows (n, words) of texts (n,), of the words that the rows to learn from hold."""
    for fewest in (2, 1):
        words = make_tfidf(fewest)
        try:
            words.fit(texts[learn])
        except ValueError:  # no word is in so many of them, as where every answer is a number of its own
            continue
        return words.transform(texts)
    return require("scipy.sparse", "fit").csr_matrix((len(texts), 1))


@dataclass(frozen=True, slots=True)
class TextWords:
    """Logistic regression on the words of texts: what can be known without any signal of the model.

    With `numbers` it also reads the terms of the log-probabilities and which run an answer is of.
    """

    name: str
    columns: tuple[str, ...]
    """Columns of the answer table that hold the texts."""
    numbers: bool = False
    family: Family = "plain"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        linear, sparse = require("sklearn.linear_model", "fit"), require("scipy.sparse", "fit")
        table = evidence.table
        # The way of asking is part of the prompt, so that a control may know it too.
        prompts = np.array([f"[{v}] {q}" for v, q in zip(table.variants, table.questions, strict=True)])
        texts = [prompts if name == "questions" else getattr(table, name) for name in self.columns]

        def rows_of(learn: Rows) -> Any:
            parts = [words_in(each, learn) for each in texts]
            if self.numbers:
                runs = np.unique(runs_of(table), return_inverse=True)[1]
                parts += [
                    sparse.csr_matrix(standard_terms(evidence, learn)),
                    sparse.csr_matrix(np.eye(max(runs) + 1)[runs]),
                ]
            return sparse.hstack(parts, format="csr")

        def fitted(X: Any, learn: Rows, penalty: float) -> Scorer:
            model = linear.LogisticRegression(C=penalty, max_iter=1000).fit(X[learn], table.y[learn])
            return lambda rows: np.asarray(model.decision_function(X[rows]), dtype=np.float64)

        X, at = rows_of(roles.train), roles.selection
        selected = {each: float(auroc(table.y[at], fitted(X, roles.train, each)(at))) for each in PENALTIES}
        best = max(selected, key=lambda penalty: selected[penalty])
        return Fitted(fitted(rows_of(roles.learning), roles.learning, best), selected[best])


@dataclass(frozen=True, slots=True)
class CellTable:
    """Smoothed share of right answers in each cell of the named columns: a judge that knows only what was asked."""

    name: str = CELLS
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
            y, of_cell = table.y[learn], cells[learn]
            share, known = float(np.mean(y)), {}
            for cell in np.unique(of_cell):
                here = y[of_cell == cell]
                known[str(cell)] = (float(here.sum()) + self.prior * share) / (len(here) + self.prior)
            return lambda rows: np.array([known.get(cell, share) for cell in cells[rows]])

        selected = float(auroc(table.y[roles.selection], fitted(roles.train)(roles.selection)))
        return Fitted(fitted(roles.learning), selected)


RUN_IDENTITY = CellTable(IDENTITY, ("models", "tasks", "variants"))
"""A judge that knows only which run an answer is of: which model answered which task, asked in which way."""


def standard_terms(evidence: Evidence, learn: Rows) -> Scores:
    """Returns the terms (n, 7) of the log-probabilities, standardised by the rows to learn from."""
    known = evidence.feature_names[-len(TERM_NAMES) :] == TERM_NAMES
    terms = WHOLE.of(evidence.features if known else terms_of(evidence.table))
    centre, spread = terms[learn].mean(axis=0), terms[learn].std(axis=0)
    standard: Scores = (terms - centre) / np.where(spread > 0, spread, 1.0)
    return standard


@dataclass(frozen=True, slots=True)
class TermsRegression:
    """Logistic regression on all terms of the log-probabilities, with a base rate for each run.

    Probes on hidden states, and trees on hundreds of features, have to do better than this.
    """

    name: str = TERMS
    family: Family = "log-probability"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        table, runs = evidence.table, runs_of(evidence.table)

        def fitted(learn: Rows) -> Scorer:
            standard = standard_terms(evidence, learn)
            fit = fit_offsets(standard[learn], table.y[learn], runs[learn])
            return lambda rows: standard[rows] @ fit.weights + fit.rates.of(runs[rows])

        selected = float(auroc(table.y[roles.selection], fitted(roles.train)(roles.selection)))
        return Fitted(fitted(roles.learning), selected)


def control_methods(evidence: Evidence) -> list[Method]:
    """Returns the controls that these answers allow, in the order of a comparison."""
    table, states = evidence.table, evidence.states
    free = [
        GivenScore(name, free_family(name), partial(free_score, name), probability=name in (STATED, P_TRUE))
        for name in free_controls(table)
    ]
    # Layer 0 is the embeddings of the tokens: the text as the model reads it, before any thought.
    embedded = () if states is None else (HiddenProbeMethod(TEXT, states.positions, "plain", (0,)),)
    # Questions or answers that are not stored say nothing.
    texts = (*(("questions",) if has_questions(table) else ()), *(("answers",) if has_answers(table) else ()))
    return [
        *free,
        *(TextWords(PROMPT if column == "questions" else ANSWER, (column,)) for column in texts),
        *(control for control in (CellTable(), RUN_IDENTITY) if control.varies(table)),
        *((TermsRegression(),) if table.measured else ()),
        *((TextWords(JOINED, texts, numbers=True),) if texts and table.measured else ()),
        # Where no other layer was captured, it is all that a probe reads.
        *(embedded if states is not None and 0 in states.layers and len(states.layers) > 1 else ()),
    ]


def controls_apart(method: Method, others: Sequence[Method], positions: Sequence[str]) -> tuple[str, ...]:
    """Returns the controls among the others that a method is not held against.

    A probe before the answer is held against what is known then; of `positions`, at which states were kept, layer 0
    reads all. A predictor for runs that nobody has seen is made to do without the runs and the questions: it is held
    against numbers that need no fit.
    """
    if isinstance(method, HiddenProbeMethod) and not method.layers and method.positions == ("prompt_last",):
        known = UNANSWERED | ({TEXT} if tuple(positions) == method.positions else frozenset())
        controls = [other.name for other in others if other.family in CONTROL_FAMILIES]
        return tuple(name for name in controls if name.removesuffix(REVERSED) not in known)
    return FITTED if isinstance(method, LogprobLadder) and method.new_tasks else ()


# Ways of judging an answer joined by their calibrated log-odds: the blend of a comparison, and of `train blend`.
#
# An answer may lack what a part reads. Each set of parts that answers have has weights and a calibration of its own, so
# that an answer without hidden states gets what its other parts are worth by themselves.

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
        ladder = fit_ladder(Sample(X, table.y, table.groups, one, TERM_NAMES), roles, seed=seed)
        zero, unit = np.zeros(X.shape[1]), np.ones(X.shape[1])
        linear = LinearScore(zero, unit, ladder.weights, ladder.rates.mean)
        return Fitted(lambda rows: linear(X[rows]), ladder.selection_auroc, linear=linear)


def terms_of(table: AnswerTable) -> NDArray[np.float32]:
    """Returns the terms (n, 7) of the answers' log-probabilities."""
    return features(schema(ALONE), list(table.logprobs))


CONFIDENCE = GivenScore("stated confidence of the answer", "explicit", lambda table: table.stated_confidence)
TRUE = GivenScore(P_TRUE, "explicit", lambda table: table.p_true)


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
        return Fitted(lambda rows: scores[rows], selected, joined=joined)

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


# A study: evidence, methods, and what the folds say of them.


OwnMethods = Callable[[Evidence, Sequence[str]], Sequence[Method]]


@dataclass(frozen=True, slots=True, eq=False)
class CrossFit:
    """All methods on the same folds."""

    methods: tuple[Judged, ...]
    best_baseline: tuple[str, ...]
    """The control that each fold chose on its selection rows."""
    roles: tuple[Roles, ...]
    """Roles of each fold."""
    probes: Mapping[str, tuple[LinearProbe, ...]]
    """Name of each method on hidden states -> its probe of every fold."""
    joined: Mapping[str, tuple[JoinedFit, ...]] = field(default_factory=dict)
    """Name of each method that joins others -> what it joined in every fold."""
    places: Mapping[str, Scores] = field(default_factory=dict)
    """Name of each method -> (n,): where an answer lies among those that its fold was calibrated on (`share_below`)."""
    decided: tuple[str, ...] = ()
    """The decision that alone orders the answers of each fold, where one was learned; empty where more does."""

    def __getitem__(self, name: str) -> Judged:
        return next(method for method in self.methods if method.name == name)


def standard_methods(evidence: Evidence, *, ladder: LogprobLadder = USUAL_LADDER) -> list[Method]:
    """Returns the methods of the comparison, in its order.

    There are probes only where hidden states were captured. What was never stated has no number.
    """
    methods: list[Method] = [*decision_methods(evidence), *control_methods(evidence)]
    methods += [ladder] if evidence.feature_names else []
    positions = () if evidence.states is None else evidence.states.positions
    answer = tuple(position for position in positions if position != "prompt_last")
    for name, read in ((BEFORE, ("prompt_last",) if "prompt_last" in positions else ()), (AFTER, answer)):
        if read:
            methods.append(HiddenProbeMethod(name, read))
    blend = blend_of(evidence.table, [method for method in methods if isinstance(method, HiddenProbeMethod)])
    return methods if blend is None else [*methods, blend]


def blend_of(table: AnswerTable, probes: Sequence[HiddenProbeMethod]) -> Blend | None:
    """Returns the blend of one signal of each kind that these answers have; None where they have but one.

    The log-probabilities and the states of the answer are joined, fixed beforehand; what was stated of the answer and
    the state of the prompt where they pay.
    """
    own = [probe for probe in probes if probe.name == AFTER]
    parts: list[Method] = [*((TermsPart(),) if table.measured else ()), *own]
    extras: list[Method] = [part for part in (TRUE, CONFIDENCE) if np.isfinite(part.values(table)).any()]
    extras += [probe for probe in probes if probe.name == BEFORE]
    return Blend(tuple(parts), tuple(extras)) if parts and len(parts) + len(extras) > 1 else None


def decision_methods(evidence: Evidence) -> list[Method]:
    """Returns each question's number as a score, and what is learned of all of them; nothing without decisions.

    A number that is higher for wrong answers is there a second time with its sign reversed, as in `free_controls`.
    """
    if evidence.decisions is None:
        return []

    def held(_: AnswerTable, *, column: Scores) -> Scores:
        return column

    columns = zip(evidence.decision_names, evidence.decisions.T, strict=True)
    asked = [(name, column) for name, column in columns if "=" not in name and not name.endswith(MADE)]
    known = [(name, column) for name, column in asked if np.isfinite(column).any()]
    against = [one for one in known if auroc(evidence.table.y, _without_gaps(one[1])[0]) < 0.5]
    signed = [*known, *((f"{name}{REVERSED}", 1 - column) for name, column in against)]
    predicates = {name for name, column in known if is_predicate(name, evidence.decision_names, column)}
    given = [
        GivenScore(
            f"{DECISION}{name}",
            "decision",
            partial(held, column=column),
            probability=name.removesuffix(REVERSED) in predicates,
        )
        for name, column in signed
    ]
    return [*given, *(() if evidence.schema == DECIDED else (LearnedDecisions(),))]


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Evidence, methods, and what the folds say of them."""

    evidence: Evidence
    methods: tuple[Method, ...]
    fits: CrossFit
    seed: int
    target: str = "correct"
    """The label that was studied."""
    stores: tuple[Path, ...] = ()
    """Folders of the runs, for what a comparison says of them; empty where they are not in stores."""

    @property
    def ladder(self) -> LogprobLadder:
        """The recipe of the quality predictor."""
        return next(method for method in self.methods if isinstance(method, LogprobLadder))


def study(
    stores: Sequence[str | Path],
    *,
    target: str = "correct",
    stage: str | None = None,
    agent: str | None = None,
    folds: int = 5,
    seed: int = 0,
    hidden: bool = True,
    own: OwnMethods = lambda evidence, names: (),
    bare: bool = False,
    on_step: OnStep = quiet,
) -> Study:
    """Makes a study of the labelled answers of these stores, by every standard method.

    `own` gives further methods for the evidence and the names of the standard ones. `hidden=False` leaves out the
    probes. With `bare` answers without log-probabilities will do, where none has any. Of a
    label whose 1 is the bad one, `critical`, the opposite is studied, so that everywhere higher scores are better
    answers.
    """
    evidence = load_evidence(stores, target=target, stage=stage, agent=agent, hidden=hidden, bare=bare)
    if target in INVERTED:
        evidence = invert(evidence)
    made = study_of(evidence, folds=folds, seed=seed, own=own, on_step=on_step)
    return replace(made, target=target, stores=tuple(Path(store) for store in stores))


def load_with_states(stores: Sequence[str | Path], options: BlendOptions) -> Evidence:
    """Returns the labelled answers with the hidden states that the options choose, and says which these are.

    Raises `RecordError` where answers have none.
    """
    wanted = Wanted(options.layers, tuple(options.position), options.states_of)
    evidence = load_evidence(stores, target=options.target, stage=options.stage, agent=options.agent, wanted=wanted)
    if (states := evidence.states) is None:
        raise RecordError(
            f"{evidence.without_hidden} of {len(evidence.table)} labelled answers have no hidden states: run "
            "`metaprobe extract`, or collect them with a local model and --layers; without them there is `metaprobe "
            "train quality`"
        )
    options.on_line(f"states      layers {', '.join(map(str, states.layers))} at {', '.join(states.positions)}")
    for line in (*origin_of_states(evidence), *filter(None, [evidence.regrouped])):
        options.on_line(line)
    return evidence


def study_of(
    evidence: Evidence,
    *,
    folds: int = 5,
    seed: int = 0,
    ladder: LogprobLadder = USUAL_LADDER,
    own: OwnMethods = lambda evidence, names: (),
    on_step: OnStep = quiet,
) -> Study:
    """Makes a study of evidence that is loaded."""
    methods = tuple(standard_methods(evidence, ladder=ladder))
    methods += tuple(own(evidence, [method.name for method in methods]))
    fits = crossfit(evidence, methods, folds=folds, seed=seed, on_step=on_step)
    return Study(evidence, methods, fits, seed)


def crossfit(
    evidence: Evidence,
    methods: Sequence[Method],
    *,
    folds: int = 5,
    seed: int = 0,
    labels: int | None = None,
    on_step: OnStep = quiet,
) -> CrossFit:
    """Fit and calibrate every method in every outer fold, by group; the calibrator is chosen on calibration rows.

    `labels`: how many labels each fold learns from, calibration included, in whole groups drawn by `seed`; None for
    all. The test rows are the same.

    Adds the best plain baseline, chosen in each fold on its selection rows. What a blend joins is not fitted again
    where it is among the methods. Raises `RecordError` where the groups do not suffice.
    """
    table = evidence.table
    usable_groups(list(table.groups), table.y, folds=folds)
    n = len(table)
    columns = [(method.name, method.family) for method in methods if not isinstance(method, Blend)]
    if any(method.family in CONTROL_FAMILIES for method in methods):
        columns.append((BEST_BASELINE, "plain"))
    columns += [(method.name, method.family) for method in methods if isinstance(method, Blend)]
    probability = {name: np.full(n, np.nan) for name, _ in columns}
    ranking = dict(probability)  # the same arrays, but for given scores
    places = {name: np.full(n, np.nan) for name, _ in columns}
    selected: dict[str, list[float]] = {method.name: [] for method in methods}
    alone: dict[str, list[str]] = {}
    probes: dict[str, list[LinearProbe]] = {}
    joined: dict[str, list[JoinedFit]] = {}
    given: dict[str, Scores] = {}
    coverage: dict[str, float] = {name: 1.0 for name, _ in columns}
    chosen_baselines = []

    splits = tuple(
        roles if labels is None else with_fewer(roles, labels, list(table.groups), table.y, seed=seed)
        for roles in outer_folds(list(table.groups), table.y, folds=folds, seed=seed)
    )
    blends_last = sorted(methods, key=lambda method: isinstance(method, Blend))
    for number, roles in enumerate(splits):
        logits: dict[str, Scores] = {}
        made: dict[Method, Fitted] = {}
        for place, method in enumerate(blends_last, 1):
            on_step(f"fold {number + 1} of {folds}, method {place} of {len(methods)}: {method.name}")
            if isinstance(method, Blend):
                fitted = method.fit_with(made, evidence, roles, seed=seed)
            else:
                made[method] = fitted = method.fit(evidence, roles, seed=seed)
            if fitted.probe is not None:
                probes.setdefault(method.name, []).append(fitted.probe)
            if fitted.joined is not None:
                joined.setdefault(method.name, []).append(fitted.joined)
            raw = fitted.score(np.arange(n))
            if isinstance(method, GivenScore) and method.probability:
                given[method.name] = raw
            scores, coverage[method.name] = _without_gaps(raw)
            if not method.fitted:
                ranking[method.name] = scores
            rows = roles.calibration if method.fitted else roles.seen
            logits[method.name] = calibrator_on(rows, scores, table, seed, calibrators_of(method)).logit(scores)
            selected[method.name].append(fitted.selection_auroc)
            if isinstance(method, LogprobLadder | LearnedDecisions):
                alone.setdefault(method.name, []).append(fitted.number)
        if (BEST_BASELINE, "plain") in columns:
            # Which way round a reversed control tells was read off all answers, the test rows too.
            chosen = [m.name for m in methods if m.family in CONTROL_FAMILIES and not m.name.endswith(REVERSED)]
            best = max(chosen, key=lambda name: selected[name][-1])
            chosen_baselines.append(best)
            logits[BEST_BASELINE] = logits[best]
        for name, logit in logits.items():
            probability[name][roles.test] = sigmoid(logit[roles.test])
            places[name][roles.test] = share_below(logit[roles.calibration], logit[roles.test])
    # Where every fold is made of one and the same number, calibrators that differ by fold do not change the order.
    itself = {}
    for name, reached in alone.items():
        if len(set(reached)) == 1:
            bare = reached[0].removesuffix(REVERSED)
            control = f"{NUMBERS.get(bare, '')}{reached[0].removeprefix(bare)}"
            itself[name] = f"{DECISION}{reached[0]}" if name == DECISIONS else control
    itself = {name: number for name, number in itself.items() if number in ranking}
    ranking |= {name: ranking[number] for name, number in itself.items()}
    positions = () if evidence.states is None else evidence.states.positions
    apart = {method.name: controls_apart(method, methods, positions) for method in methods}
    numbers = tuple(method.name for method in methods if method.family == "decision" and not method.fitted)
    results = tuple(
        Judged(
            name,
            family,
            probability[name],
            ranking[name],
            coverage[name],
            apart.get(name, ()),
            numbers if name == DECISIONS else (),
            given.get(name),
            itself.get(name, ""),
        )
        for name, family in columns
    )
    return CrossFit(
        methods=results,
        best_baseline=tuple(chosen_baselines),
        roles=splits,
        probes={name: tuple(of_folds) for name, of_folds in probes.items()},
        joined={name: tuple(of_folds) for name, of_folds in joined.items()},
        places=places,
        decided=tuple(alone.get(DECISIONS, ())),
    )


def _without_gaps(scores: Scores) -> tuple[Scores, float]:
    """Returns the scores with the median in place of those that are not finite, and the share that was finite."""
    known = np.isfinite(scores)
    return np.where(known, scores, np.median(scores[known]) if known.any() else 0.0), float(known.mean())


# The audits of one method of a cross-fit: what `eval/audits` needs, gathered from evidence and folds.

REFIT_FOLDS = 2
"""Outer folds of the refits on shuffled labels and on noise: their scores need be held out, not good."""


def audit_method(
    evidence: Evidence,
    fits: CrossFit,
    method: Method | Judged,
    *,
    elsewhere: Elsewhere | None = None,
    seed: int = 0,
) -> AuditReport:
    """Every audit of this method that can be made; those that fit it anew are for a `Method`.

    It is held against every control of the folds but those `apart`. `elsewhere`: what `out_of_domain` found. Where the
    answers are too few for refits in two folds, these audits are named as not made, with the reason.
    """
    judged, recipe = fits[method.name], None if isinstance(method, Judged) else method
    shape, on_noise = (None, None) if recipe is None else _on_noise(evidence, recipe)
    controls = {*control_names(fits.methods), *judged.beside} - {judged.name, judged.itself, *judged.apart}
    sweeps = fits.probes.get(method.name)
    inputs = AuditInputs(
        name=method.name,
        table=evidence.table,
        score=judged.ranking,
        splits=[roles.parts for roles in fits.roles],
        controls={each.name: each.ranking for each in fits.methods if each.name in controls},
        itself=judged.itself,
        refit_labels=None
        if recipe is None
        else lambda y: _refit(replace(evidence, table=replace(evidence.table, y=y)), recipe),
        refit_features=on_noise,
        features_shape=shape,
        labels=evidence.labels_by_source,
        elsewhere=elsewhere,
        selection_auroc=(
            None if sweeps is None else np.array([[point.auroc for point in probe.sweep] for probe in sweeps])
        ),
    )
    return made_audits(inputs, seed=seed)


def made_audits(inputs: AuditInputs, *, seed: int = 0) -> AuditReport:
    """Runs the audits; where the answers are too few for refits, those are named as not made, with the reason."""
    try:
        return run_audits(inputs, seed=seed)
    except RecordError as error:
        if inputs.refit_labels is None:
            raise
        without = replace(inputs, refit_labels=None, refit_features=None, features_shape=None)
        report = run_audits(without, seed=seed)
        return replace(report, skipped=(*report.skipped, f"refits: {error}"))


def out_of_domain(evidence: Evidence, method: Method, *, seed: int = 0) -> Elsewhere | None:
    """Returns what the recipe reaches on each task, or for one task on each dimension, when it is fitted without it.

    None where there are not two, where what is left does not suffice for a fit, or without log-probabilities, which
    the numbers are compared with.
    """
    table = evidence.table
    if not table.measured:
        return None

    def fit(rows: NDArray[np.int64]) -> tuple[Scores, Scores]:
        roles = roles_without(rows, table.groups.tolist(), table.y, seed=seed)
        scores = method.fit(evidence, roles, seed=seed).score(np.arange(len(table)))
        calibrator = calibrator_on(roles.calibration, scores, table, seed, calibrators_of(method))
        return scores[rows], calibrator.probability(scores[rows])

    try:
        mean = np.array([values.mean() for values in table.logprobs])
        return judge_left_out(table, fit, mean, seed=seed)
    except RecordError:
        return None


def _on_noise(
    evidence: Evidence, method: Method
) -> tuple[tuple[int, ...] | None, Callable[[NDArray[np.float32]], Scores] | None]:
    """Returns the shape of the noise that replaces the features (all of them, or one layer's states at one position),
    and what fits the method on such noise; None where it reads neither."""
    table, states = evidence.table, evidence.states
    if isinstance(method, FeatureTrees | LogprobLadder):
        # The run of an answer is no feature: with one run for all, base rates cannot stand in for noise.
        nothing = np.full(len(table), "")
        alike = replace(evidence, table=replace(table, models=nothing, tasks=nothing, variants=nothing))
        return evidence.features.shape, lambda noise: _refit(replace(alike, features=noise), method)
    if not isinstance(method, HiddenProbeMethod) or states is None:
        return None, None
    ids, position = tuple(table.call_ids.tolist()), method.positions[:1]

    def refitted(noise: NDArray[np.float32]) -> Scores:
        held = Activations(ids, noise[:, None, None].astype(np.float16), (0,), position)
        return _refit(replace(evidence, states=InMemory(held)), replace(method, positions=position))

    return states.read(states.layers[0], position[0]).shape, refitted


def _refit(evidence: Evidence, method: Method) -> Scores:
    """Held-out log-odds (n,) of the recipe in `REFIT_FOLDS` folds."""
    table = evidence.table
    scores = np.full(len(table), np.nan)
    for roles in outer_folds(table.groups.tolist(), table.y, folds=REFIT_FOLDS):
        every = method.fit(evidence, roles, seed=0).score(np.arange(len(table)))
        rows = roles.calibration
        scores[roles.test] = fit_platt(every[rows], table.y[rows]).logit(every)[roles.test]
    return scores


# Figures held out, as checkpoints and cards give them

ENOUGH_FOR_ECE = 1000
"""Held-out answers below which no calibration error is quoted."""


def measure_held_out(
    evidence: Evidence, fits: CrossFit, method: Method, seed: int
) -> tuple[dict[str, Interval], AuditReport]:
    """Returns figures and audits of one method from the folds."""
    table, judged = evidence.table, fits[method.name]
    # The mean needs no selecting, and anybody would try it first.
    metrics = figures_of(table, judged, fits[MEAN_LOGPROB] if table.measured else None)
    if "ece" in metrics:
        weights = cluster_weights(table.groups.tolist(), seed=seed)
        metrics["ece_debiased"] = debiased_ece(table.y, judged.probability, weights)
    elsewhere = out_of_domain(evidence, method, seed=seed)
    if elsewhere is not None:
        metrics |= {f"auroc_without_{elsewhere.by}.{name}": value for name, value in elsewhere.auroc.items()}
        metrics[f"auroc_without_{elsewhere.by}"] = elsewhere.mean
        metrics[f"auroc_gain_over_mean_log_probability_without_{elsewhere.by}"] = elsewhere.gain
        if elsewhere.ece is not None:
            metrics[f"ece_without_{elsewhere.by}"] = elsewhere.ece
    report = audit_method(evidence, fits, method, elsewhere=elsewhere, seed=seed)
    if report.controls is not None:
        metrics["auroc_gain_over_strongest_control"] = report.controls.strongest.difference
    inside = within_runs(table, fits, judged, seed=seed)
    if report.controls_within is not None:
        inside["auroc_within_runs_gain_over_strongest_control"] = report.controls_within.strongest.difference
    return inside | metrics, report


def held_out_fields(
    study: Study, method: Method, answers: ScoredAnswers, *, target: str, flags: FlagOptions, command: str
) -> dict[str, Any]:
    """Returns the fields of an `Export` about the one probability of a method: its origin, figures, audits and flags.

    `answers`: the calibration rows that the thresholds are set on. `flags`: what the stored threshold flags.
    """
    evidence, seed = study.evidence, study.seed
    stored = flagging_of(answers, flags, seed=seed)
    metrics, report = measure_held_out(evidence, study.fits, method, seed)
    calibrated = evidence.table.call_ids[answers.rows].tolist()
    return {
        **evidence.origin(seed, command),
        "metrics": metrics,
        "audits": report.audits,
        "not_audited": report.skipped,
        "stored": stored,
        "thresholds": operating_points(answers.exported, calibrated, evidence.evaluated),
        "heads": [f"{target}: a probability{stored.lacking}"] if stored.lacking else (),
    }


def within_runs(table: AnswerTable, fits: CrossFit, judged: Judged, *, seed: int = 0) -> dict[str, Interval]:
    """Returns the AUROC over pairs of answers of one run only, and that of knowing nothing but the run.

    A run is a model, a task and a way of asking. Empty where there is one run, or where its identity was not fitted.
    """
    if not RUN_IDENTITY.varies(table) or RUN_IDENTITY.name not in {one.name for one in fits.methods}:
        return {}
    within, weights = StratifiedAuroc(runs_of(table)), cluster_weights(table.groups.tolist(), seed=seed)
    known, mean = fits[RUN_IDENTITY.name].ranking, fits[MEAN_LOGPROB].ranking if table.measured else None
    return {
        **figures_within(within, table.y, judged.ranking, mean, weights),
        "auroc_of_run_identity": interval(auroc, table.y, known, weights),
    }


def figures_of(table: AnswerTable, judged: Judged, mean: Judged | None) -> dict[str, Interval]:
    """Returns what a method's held-out scores are worth, also beside the mean log-probability where that is given."""
    [result] = method_results(table, [judged])
    metrics = {name: getattr(result, name) for name in ("auroc", "auprc", "brier_skill", "aurc")}
    if len(table) >= ENOUGH_FOR_ECE:
        metrics["ece"] = result.ece
    if mean is not None:
        metrics["auroc_gain_over_mean_log_probability"] = auroc_gain(table, judged, mean)
    return metrics


def figures_within(
    within: StratifiedAuroc, y: NDArray[np.int64], ranking: Scores, mean: Scores | None, weights: NDArray[np.int32]
) -> dict[str, Interval]:
    """Returns the AUROC within runs and its gain over the mean log-probability, where there is one.

    Both are left out where they cannot be computed, because no run has right and wrong answers.
    """
    figures = {"auroc_within_runs": interval(within, y, ranking, weights)}
    if mean is not None:
        over_mean = paired_difference(within, y, ranking, mean, weights)
        figures["auroc_within_runs_gain_over_mean_log_probability"] = over_mean
    return {name: figure for name, figure in figures.items() if np.isfinite(figure.estimate)}
