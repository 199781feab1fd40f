"""Methods that judge an answer, ours and the controls, all with one interface: fit on some rows, score any rows.

Higher scores mean likelier right. A method that learns nothing (`fitted=False`) is calibrated on all rows except the
test rows. A method that learns is calibrated on rows that it has not seen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.controls import (
    ANSWER,
    CELLS,
    FITTED,
    IDENTITY,
    JOINED,
    P_TRUE,
    PROMPT,
    REVERSED,
    STATED,
    TERMS,
    TEXT,
    UNANSWERED,
    distinct_controls,
    free_family,
    free_score,
    has_answers,
    has_questions,
)
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.results import CONTROL_FAMILIES, Family
from metaprobe.probes.features import ALONE, TERM_NAMES, features, schema
from metaprobe.records.extras import require
from metaprobe.training.base_rates import HELD_SD, INTERCEPT_SD, RunRates, fit_offsets, standardised
from metaprobe.training.calibrators import (
    RISING_PLATT,
    USUAL_CALIBRATORS,
    Calibrator,
    Floats,
    Platt,
    are_probabilities,
    calibrator_on,
    closest_of,
    clustered_se,
    fit_platt,
    highest_of,
    sigmoid,
)
from metaprobe.training.evidence import Evidence, Scores, runs_of
from metaprobe.training.folds import Roles, Rows, group_folds
from metaprobe.training.ladder import (
    FEWEST_FOR_TREES,
    SURE,
    USUAL_BAR,
    WHOLE,
    Bar,
    LadderRows,
    decided_columns,
    fit_ladder,
    scores_to_calibrate,
)
from metaprobe.training.linear_probe import LinearProbe, fit_linear_probe, unseen_probe_scores
from metaprobe.training.trees import fit_trees

MEAN_LOGPROB = "mean log-probability"
TREES = "LightGBM on logprobs"
LADDER = "learned on logprobs"
DECISIONS = "learned on decisions"
BEFORE = "hidden probe, before"
AFTER = "hidden probe, answer"
BLEND = "blend"


ScoreFunction = Callable[[Rows], Scores]


@dataclass(frozen=True, slots=True, eq=False)
class LinearScore:
    """score = ((x - mean) / scale) @ weights + intercept. Every array has shape (d,)."""

    mean: Scores
    scale: Scores
    weights: Scores
    intercept: float
    closest: float = 0.0
    """Distance from 0 and 1 to which probabilities are moved before their log-odds are read as x; 0 if x is read
    unchanged.
    """

    def __call__(self, X: NDArray[np.floating]) -> Scores:
        """Returns the scores (n,) of features (n, d)."""
        if self.closest:
            p = np.clip(X.astype(np.float64), self.closest, highest_of(self.closest))
            X = np.log(p) - np.log1p(-p)
        return np.asarray(((X.astype(np.float64) - self.mean) / self.scale) @ self.weights + self.intercept)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted method."""

    score: ScoreFunction
    selection_auroc: float
    """AUROC on rows that were held out when the hyper-parameters were chosen."""
    probe: LinearProbe | None = None
    """The probe of a method on hidden states; None for other methods."""
    joined: "JoinedFit | None" = None
    """The parts that a blend joins; None of other methods."""
    linear: LinearScore | None = None
    """The linear map of a method that is linear in numbers of an answer; None for other methods."""
    ordering_number: str = ""
    """Name, in the ladder, of the one number that orders the answers, perhaps reversed; empty if several do."""
    unseen: Scores | None = None
    """Scores (n,) of the seen rows, each by a fit that saw no answer of the row's group; NaN for other rows. None if
    the method has such scores of the calibration rows only.
    """


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
        """Fits on the rows of these roles. Scores are NaN for answers without the method's inputs."""
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
        """Fits nothing. In a blend, the calibration decides whether higher numbers are better."""
        values, y = self.values(evidence.table), evidence.table.y
        filled = np.where(np.isfinite(values), values, np.nanmedian(values) if np.isfinite(values).any() else 0.0)
        closest = closest_of(values) if are_probabilities(values) else 0.0
        identity = LinearScore(np.zeros(1), np.ones(1), np.ones(1), 0.0, closest)
        selection_auroc = float(auroc(y[roles.selection], filled[roles.selection]))
        return Fitted(lambda rows: values[rows], selection_auroc, linear=identity)


@dataclass(frozen=True, slots=True)
class LogprobLadder:
    """The quality predictor: a free number, or a better step of the ladder (`metaprobe.training.ladder`)."""

    new_tasks: bool = False
    """Whether the predictor is for models and tasks outside the runs. It then stays the free number, and knows no run's
    base rate.
    """
    bar: Bar = USUAL_BAR
    only: str = ""
    """The single step that is allowed: a free number, maybe reversed, or all terms. Empty if the answers choose the
    step.
    """
    name: str = LADDER
    family: Family = "learned"
    fitted: bool = True
    calibrators: ClassVar[tuple[str, ...]] = (RISING_PLATT,)
    """Only Platt's map, because an exported base rate is added to its log-odds. It must rise, because the ladder has
    already decided the direction of its number.
    """

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        sample = evidence.sample()
        X, runs = sample.X, sample.runs
        ladder = fit_ladder(sample, roles, climb=not self.new_tasks, only=self.only, bar=self.bar, seed=seed)
        rows, scores = scores_to_calibrate(ladder, sample, roles, rates=not self.new_tasks, seed=seed)
        unseen = np.full(len(X), np.nan)
        unseen[rows] = scores
        if self.new_tasks:
            number, score = ladder.reached, ladder.score
            return Fitted(lambda rows: score(X[rows]), ladder.selection_auroc, ordering_number=number, unseen=unseen)
        # Base rates of several runs change the order as well.
        number = ladder.number if len(set(runs.tolist())) == 1 else ""
        return Fitted(
            lambda rows: ladder.score_of(X[rows], runs[rows]),
            ladder.selection_auroc,
            ordering_number=number,
            unseen=unseen,
        )


USUAL_LADDER = LogprobLadder()


def agreement_ladder(answers: int) -> LogprobLadder:
    """Returns the ladder for learning agreement: all terms, with a prior centred on the scaled total.

    A pair of samples tells less than a label, so the signal is weak and spread over all terms. Each answer has several
    rows. Trees are tried if `answers`, the number of answers, is as large as elsewhere.
    """
    return LogprobLadder(bar=Bar(min_rows=inf, trees=SURE if answers >= FEWEST_FOR_TREES else 1.0))


def calibrators_of(method: Method) -> tuple[str, ...]:
    """Returns the names of the calibrators that are tried on a method's scores; by default the usual ones."""
    return getattr(method, "calibrators", USUAL_CALIBRATORS)


def calibrator_of(
    method: Method, fitted: Fitted, scores: Scores, table: AnswerTable, roles: Roles, seed: int
) -> Calibrator:
    """Returns the calibrator of a fitted method, fitted on all rows for which the method has unseen scores.

    These are all seen rows if the method learns nothing, the rows with `unseen` scores if it has them, else the
    calibration rows.

    Args:
        method: names its calibrators.
        fitted: the method after its fit.
        scores: scores (n,) as the calibrator reads them.
        table: the n answers.
        roles: the rows of each role: train, selection, calibration and test.
        seed: seed of the folds in which calibrators are compared.
    """
    rows = roles.calibration if method.fitted else roles.seen
    if fitted.unseen is not None:
        scores, rows = fitted.unseen, np.flatnonzero(np.isfinite(fitted.unseen))
    return calibrator_on(rows, scores, table, seed, calibrators_of(method))


DECISION_LADDER = LogprobLadder(name=DECISIONS, family="decision")
"""The ladder that reads decisions in place of log-probabilities (`evidence.read_decisions`)."""


@dataclass(frozen=True, slots=True)
class LearnedDecisions:
    """The quality predictor on decisions: one question's number, or a better step of the ladder.

    A missing number is replaced by its mean. An answer without any decision has no score.
    """

    name: str = DECISIONS
    family: Family = "decision"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        assert evidence.decisions is not None, "offered only where decisions were made"
        X = evidence.decisions.values
        columns = np.flatnonzero(np.isfinite(X[roles.learning]).any(axis=0))
        names = tuple(evidence.decisions.names[index] for index in columns)
        filled = np.where(np.isfinite(X[:, columns]), X[:, columns], np.nanmean(X[roles.learning][:, columns], axis=0))
        filled_evidence = replace(evidence, features=filled.astype(np.float32), feature_names=names)
        filled_evidence = replace(filled_evidence, read=decided_columns(names, filled_evidence.features))
        fitted = DECISION_LADDER.fit(filled_evidence, roles, seed=seed)
        has_no_number = np.asarray(np.isnan(X[:, columns]).all(axis=1))
        unseen = None if fitted.unseen is None else np.where(has_no_number, np.nan, fitted.unseen)
        return replace(
            fitted, score=lambda rows: np.where(has_no_number[rows], np.nan, fitted.score(rows)), unseen=unseen
        )


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
    """Layers to choose among, for a control; empty for all layers."""
    fitted: bool = True

    def probe(self, evidence: Evidence, roles: Roles, *, seed: int) -> LinearProbe:
        """Returns the probe that these roles give."""
        states, y, groups = evidence.states, evidence.table.y, evidence.table.groups.tolist()
        assert states is not None, "offered only where hidden states were captured"
        positions = self.positions
        return fit_linear_probe(states, y, groups, roles, positions=positions, layers=self.layers, seed=seed)

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        states, probe, table = evidence.states, self.probe(evidence, roles, seed=seed), evidence.table
        assert states is not None, "offered only where hidden states were captured"
        unseen = unseen_probe_scores(probe, states, table.y, table.groups.tolist(), roles, seed=seed)
        best = max(point.auroc for point in probe.sweep)
        return Fitted(lambda rows: probe.score(states, rows), best, probe, unseen=unseen)


# The controls of `metaprobe.eval.controls` as methods of a study, so that they are fitted in the same folds.

WORD_PENALTIES = (0.1, 1.0, 10.0)
"""Inverse penalties that are tried for a regression on words."""


def make_tfidf(fewest: int = 2) -> Any:
    """Returns an unfitted vectorizer of texts: TF-IDF of words and pairs of neighbouring words.

    A word is used if at least `fewest` texts contain it.
    """
    text = require("sklearn.feature_extraction.text", "fit")
    return text.TfidfVectorizer(ngram_range=(1, 2), min_df=fewest, sublinear_tf=True, token_pattern=r"\S+")


def words_in(texts: NDArray[Any], learn_rows: Rows) -> Any:
    """Returns sparse TF-IDF rows (n, words) of texts (n,), for the words that occur in `learn_rows`."""
    for fewest in (2, 1):
        vectorizer = make_tfidf(fewest)
        try:
            vectorizer.fit(texts[learn_rows])
        except ValueError:  # no word is in that many texts, as if every answer is a different number
            continue
        return vectorizer.transform(texts)
    return require("scipy.sparse", "fit").csr_matrix((len(texts), 1))


def fit_word_weights(X: Any, y: NDArray[np.int64], penalty: float, *, rounds: int) -> Any:
    """Returns a logistic regression on sparse rows, fitted with one BLAS thread.

    Each round adds a few short vectors, so that several threads mostly wait for one another: on two busy cores a fit
    took 18 times as much processor time.

    Args:
        X: sparse rows (n, words).
        y: labels (n,).
        penalty: inverse penalty.
        rounds: most rounds of the solver.
    """
    linear: Any = require("sklearn.linear_model", "fit")
    with require("threadpoolctl", "fit").threadpool_limits(1, user_api="blas"):
        return linear.LogisticRegression(C=penalty, max_iter=rounds).fit(X, y)


@dataclass(frozen=True, slots=True)
class TextWords:
    """Logistic regression on the words of texts: what can be predicted without any signal of the model.

    With `numbers` it also reads the terms of the log-probabilities and which run an answer is of.
    """

    name: str
    columns: tuple[str, ...]
    """Columns of the answer table that hold the texts."""
    numbers: bool = False
    family: Family = "plain"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        sparse, table = require("scipy.sparse", "fit"), evidence.table
        # The way of asking is part of the prompt, so a control may read it too.
        prompts = np.array([f"[{v}] {q}" for v, q in zip(table.variants, table.questions, strict=True)])
        texts = [prompts if name == "questions" else getattr(table, name) for name in self.columns]

        def rows_of(learn_rows: Rows) -> Any:
            parts = [words_in(choice, learn_rows) for choice in texts]
            if self.numbers:
                runs = np.unique(runs_of(table), return_inverse=True)[1]
                parts += [
                    sparse.csr_matrix(standard_terms(evidence, learn_rows)),
                    sparse.csr_matrix(np.eye(max(runs) + 1)[runs]),
                ]
            return sparse.hstack(parts, format="csr")

        def fit_words(X: Any, learn_rows: Rows, penalty: float) -> ScoreFunction:
            model = fit_word_weights(X[learn_rows], table.y[learn_rows], penalty, rounds=1000)
            return lambda rows: np.asarray(model.decision_function(X[rows]), dtype=np.float64)

        X, selection = rows_of(roles.train), roles.selection
        auroc_of_penalty = {
            choice: float(auroc(table.y[selection], fit_words(X, roles.train, choice)(selection)))
            for choice in WORD_PENALTIES
        }
        best_penalty = max(auroc_of_penalty, key=lambda penalty: auroc_of_penalty[penalty])
        return Fitted(fit_words(rows_of(roles.learning), roles.learning, best_penalty), auroc_of_penalty[best_penalty])


@dataclass(frozen=True, slots=True)
class CellTable:
    """Smoothed share of right answers in each cell of the named columns: a control that reads only these columns."""

    name: str = CELLS
    columns: tuple[str, ...] = ("dimensions", "levels", "variants")
    family: Family = "plain"
    fitted: bool = True
    prior: float = 5.0
    """Weight of the overall share in each cell, in answers."""

    def varies(self, table: AnswerTable) -> bool:
        """Returns whether the answers lie in more than one cell; otherwise the cells tell nothing."""
        return len(np.unique(self.cells(table))) > 1

    def cells(self, table: AnswerTable) -> NDArray[np.str_]:
        """Returns the cell of each answer (n,)."""
        return np.array(["|".join(cell) for cell in zip(*(getattr(table, c) for c in self.columns), strict=True)])

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        table = evidence.table
        cells = self.cells(table)

        def fit_cells(learn_rows: Rows) -> ScoreFunction:
            y, learned_cells = table.y[learn_rows], cells[learn_rows]
            share, share_of_cell = float(np.mean(y)), {}
            for cell in np.unique(learned_cells):
                labels_of_cell = y[learned_cells == cell]
                share_of_cell[str(cell)] = (float(labels_of_cell.sum()) + self.prior * share) / (
                    len(labels_of_cell) + self.prior
                )
            return lambda rows: np.array([share_of_cell.get(cell, share) for cell in cells[rows]])

        selection_auroc = float(auroc(table.y[roles.selection], fit_cells(roles.train)(roles.selection)))
        return Fitted(fit_cells(roles.learning), selection_auroc)


RUN_IDENTITY = CellTable(IDENTITY, ("models", "tasks", "variants"))
"""Control that knows only the run of an answer: which model answered which task, asked in which way."""


def standard_terms(evidence: Evidence, learn_rows: Rows) -> Scores:
    """Returns the terms (n, 7) of the log-probabilities, standardised by the moments of `learn_rows`."""
    has_terms = evidence.feature_names[-len(TERM_NAMES) :] == TERM_NAMES
    terms = WHOLE.of(evidence.features if has_terms else terms_of(evidence.table))
    centre, spread = terms[learn_rows].mean(axis=0), terms[learn_rows].std(axis=0)
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

        def fit_terms(learn_rows: Rows) -> ScoreFunction:
            standard_values = standard_terms(evidence, learn_rows)
            fit = fit_offsets(standard_values[learn_rows], table.y[learn_rows], runs[learn_rows])
            return lambda rows: standard_values[rows] @ fit.weights + fit.rates.of(runs[rows])

        selection_auroc = float(auroc(table.y[roles.selection], fit_terms(roles.train)(roles.selection)))
        return Fitted(fit_terms(roles.learning), selection_auroc)


def control_methods(evidence: Evidence) -> list[Method]:
    """Returns the controls that these answers allow, in the order of a comparison."""
    table, states = evidence.table, evidence.states
    free = [
        GivenScore(name, free_family(name), partial(free_score, name), probability=name in (STATED, P_TRUE))
        for name in distinct_controls(table).scores
    ]
    # Layer 0 holds the embeddings of the tokens: the text before any computation of the model.
    embedded = () if states is None else (HiddenProbeMethod(TEXT, states.positions, "plain", (0,)),)
    # Questions or answers that are not stored make no control.
    texts = (*(("questions",) if has_questions(table) else ()), *(("answers",) if has_answers(table) else ()))
    return [
        *free,
        *(TextWords(PROMPT if column == "questions" else ANSWER, (column,)) for column in texts),
        *(control for control in (CellTable(), RUN_IDENTITY) if control.varies(table)),
        *((TermsRegression(),) if table.measured else ()),
        *((TextWords(JOINED, texts, numbers=True),) if texts and table.measured else ()),
        # If no other layer was captured, layer 0 is what the probe itself reads, and so no control.
        *(embedded if states is not None and 0 in states.layers and len(states.layers) > 1 else ()),
    ]


def controls_to_exclude(method: Method, others: Sequence[Method], positions: Sequence[str]) -> tuple[str, ...]:
    """Returns the controls among the others that a method is not compared with.

    A probe before the answer is compared only with controls that exist before the answer. A predictor for new runs may
    use neither the runs nor the questions, so it is compared only with controls that need no fit.

    Args:
        method: the method.
        others: all methods of the comparison.
        positions: positions of the stored states.
    """
    if isinstance(method, HiddenProbeMethod) and not method.layers and method.positions == ("prompt_last",):
        inputs_of_method = UNANSWERED | ({TEXT} if tuple(positions) == method.positions else frozenset())
        controls = [other.name for other in others if other.family in CONTROL_FAMILIES]
        return tuple(name for name in controls if name.removesuffix(REVERSED) not in inputs_of_method)
    return FITTED if isinstance(method, LogprobLadder) and method.new_tasks else ()


# The blend: methods joined by their calibrated log-odds, in a comparison and in `train blend`.
#
# An answer may lack the input of a part. Each set of parts whose inputs answers have gets weights and a calibration of
# its own. So an answer without hidden states gets the score that its other parts give without them.

EQUAL_WEIGHTS_ANSWERS = 20.0
"""Strength of the prior that all parts of a blend weigh the same, in answers."""
MIN_WEIGHTED_ROWS = 20
"""Fewest calibration rows, of both labels, for which a set of parts gets weights of its own. With fewer rows the parts
weigh the same.
"""
PART_FOLDS = 5
"""Number of folds of the calibration rows in which a further part is tried."""


@dataclass(frozen=True, slots=True)
class TermsPart:
    """The ladder on the terms of the log-probabilities alone, without trees.

    Its weights are fitted beside base rates of the runs, so that they tell answers of one run apart. Its score holds
    the mean base rate only.
    """

    name: str = "log-probabilities"
    family: Family = "learned"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        """Fits a free number, or all terms if they pay."""
        table, X = evidence.table, terms_of(evidence.table)
        sample = LadderRows(X, table.y, table.groups, runs_of(table), TERM_NAMES)
        ladder = fit_ladder(sample, roles, seed=seed)
        zero, unit = np.zeros(X.shape[1]), np.ones(X.shape[1])
        linear, unseen = LinearScore(zero, unit, ladder.weights, ladder.rates.mean), np.full(len(X), np.nan)
        rows, scores = scores_to_calibrate(ladder, sample, roles, rates=False, seed=seed)
        unseen[rows] = scores
        return Fitted(lambda rows: linear(X[rows]), ladder.selection_auroc, linear=linear, unseen=unseen)


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
    """Calibrated log-odds (k, n) of each part; NaN if an answer lacks the input of the part."""
    unseen: Floats
    """Log-odds (k, n) of each part from fits without the row's group; NaN if a part has none. Weights and calibrations
    are fitted on them.
    """
    y: NDArray[np.int64]
    runs: NDArray[np.generic]
    """Run of each answer (n,). Weights are fitted beside base rates of the runs, which the scores leave out: a
    checkpoint is used on runs that it has not seen.
    """
    rows: Rows
    """Rows that were used in the fit."""
    _weights_of_set: dict[int, tuple[Floats, float]] = field(default_factory=dict)
    """Cache of `of`."""

    def score(self, allowed_parts: int = -1) -> Floats:
        """Returns the log-odds (n,) of all answers. Each answer is scored by the allowed parts whose inputs it has; NaN
        if it has none.

        `allowed_parts` is a set of parts, the sum of 2^i over its parts i; -1 allows all parts.
        """
        return self._score_of(self.logits, allowed_parts)

    def unseen_score(self) -> Floats:
        """Returns the log-odds (n,) of seen rows, by parts without the row's group; NaN for other rows."""
        # False if the answer has the input of a part, but the part has no unseen score of the answer.
        has_unseen = np.isfinite(self.logits) <= np.isfinite(self.unseen)
        scores = self._score_of(self.unseen, -1)
        seen = np.isin(np.arange(len(scores)), self.rows)
        return np.where(seen & has_unseen.all(axis=0), scores, np.nan)

    def _score_of(self, logits: Floats, allowed_parts: int) -> Floats:
        """Returns the log-odds (n,) of answers with these log-odds (k, n) of the parts; NaN where all are."""
        part_sets = (np.isfinite(logits).T @ (1 << np.arange(len(self.parts)))) & allowed_parts
        scores = np.full(logits.shape[1], np.nan)
        for members in np.unique(part_sets[part_sets > 0]).tolist():
            weights, shift = self.of(members)
            has_members = part_sets == members
            scores[has_members] = weights @ np.nan_to_num(logits[:, has_members]) + shift
        return scores

    def of(self, members: int) -> tuple[Floats, float]:
        """Returns weights (k,) and intercept that join a set of parts. Parts outside the set have weight 0.

        `members`: the set as bits, bit i for part i.
        """
        if members not in self._weights_of_set:
            members_listed = [i for i in range(len(self.parts)) if members >> i & 1]
            rows = self.rows[np.isfinite(self.unseen[members_listed][:, self.rows]).all(axis=0)]
            weights = np.zeros(len(self.parts))
            joined_rows = self.unseen[members_listed][:, rows]
            weights[members_listed], rates = weigh_parts(joined_rows, self.y[rows], self.runs[rows])
            self._weights_of_set[members] = weights, rates.mean
        return self._weights_of_set[members]


@dataclass(frozen=True, slots=True)
class Blend:
    """Joins methods by their calibrated log-odds."""

    parts: tuple[Method, ...]
    extras: tuple[Method, ...] = ()
    """Parts that are joined only if they pay. Weak evidence that is weighed on few answers costs more than it brings.
    """
    name: str = BLEND
    family: Family = "learned"
    fitted: bool = True
    calibrators: ClassVar[tuple[str, ...]] = (Platt.name,)
    """Only Platt's map: a calibrated score is then linear in the inputs of the parts."""

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        """Fits all parts on the rows of their roles, and joins them."""
        return self.fit_with({}, evidence, roles, seed=seed)

    def fit_with(self, fitted: Mapping[Method, Fitted], evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        """Joins the parts. Parts in `fitted` were fitted on the same roles, and are not fitted again."""
        joined = self.join(fitted, evidence, roles, seed=seed)
        scores, unseen, rows = joined.score(), joined.unseen_score(), roles.calibration
        selection_auroc = float(auroc(evidence.table.y[rows], np.nan_to_num(scores[rows])))
        return Fitted(lambda rows: scores[rows], selection_auroc, joined=joined, unseen=unseen)

    def join(self, fitted: Mapping[Method, Fitted], evidence: Evidence, roles: Roles, *, seed: int) -> JoinedFit:
        """Returns the parts that are joined, calibrated; their weights are fitted when they are asked for."""
        table = evidence.table
        y, groups, runs = table.y, table.groups, runs_of(table)
        joined_parts: list[tuple[Method, Fitted, Platt, Floats, Floats]] = []
        for method in (*self.parts, *self.extras):
            part = fitted.get(method) or method.fit(evidence, roles, seed=seed)
            scores = np.asarray(part.score(np.arange(len(table))), dtype=np.float64)
            if not method.fitted and part.linear is not None:  # a given probability is read as log-odds
                scores = part.linear(scores[:, None])
            unseen = part.unseen
            if unseen is None:
                unseen_rows = roles.calibration if method.fitted else roles.seen
                unseen = np.where(np.isin(np.arange(len(table)), unseen_rows), scores, np.nan)
            rows = np.flatnonzero(np.isfinite(unseen))
            has_both_classes = len(np.unique(y[rows])) > 1
            platt = fit_beside_rates(unseen[rows], y[rows], runs[rows])[0] if has_both_classes else Platt(0.0, 0.0)
            logit, unseen_logit = platt.logit(scores), platt.logit(unseen)
            joined_logits = np.array([logit_of_part for *_, logit_of_part in joined_parts])
            if method in self.parts or pays(unseen_logit, joined_logits, y, groups.tolist(), runs, roles.seen, seed):
                joined_parts.append((method, part, platt, logit, unseen_logit))
        methods, parts, calibrators, logits, unseen_logits = zip(*joined_parts, strict=True)
        return JoinedFit(methods, parts, calibrators, np.array(logits), np.array(unseen_logits), y, runs, roles.seen)


def pays(
    extra: Floats,
    before: Floats,
    y: NDArray[np.int64],
    groups: Sequence[str],
    runs: NDArray[np.generic],
    rows: Rows,
    seed: int,
) -> bool:
    """Returns whether a further part lowers the log loss on groups left out by more than a standard error.

    Both losses know the base rates of the runs, so that a part has to tell answers of one run apart.

    Args:
        extra: log-odds (n,) of the further part.
        before: log-odds (k, n) of the parts that are joined already.
        y: labels (n,) of 0 and 1.
        groups: group of each row (n,).
        runs: run of each row (n,).
        rows: calibration rows.
        seed: seed of the folds.
    """
    all_logits = np.vstack([before, extra])
    rows = rows[np.isfinite(all_logits[:, rows]).all(axis=0)]
    counts = [len({groups[i] for i in rows[y[rows] == label]}) for label in (0, 1)]
    if min(counts) < PART_FOLDS:
        return False
    gain = np.zeros(len(y))
    for rest, part in group_folds(rows, groups, y, PART_FOLDS, seed):
        for sign, logits in ((1, before), (-1, all_logits)):
            weights, rates = weigh_parts(logits[:, rest], y[rest], runs[rest])
            z = weights @ logits[:, part] + rates.of(runs[part])
            gain[part] += sign * np.logaddexp(0, np.where(y[part] == 1, -z, z))
    clusters = np.unique([groups[i] for i in rows], return_inverse=True)[1]
    return bool(gain[rows].mean() > clustered_se(gain[rows], clusters))


def weigh_parts(logits: Floats, y: NDArray[np.int64], runs: NDArray[np.generic]) -> tuple[Floats, RunRates]:
    """Returns weights (k,) of the parts' log-odds (k, n), and the base rates of the runs beside them.

    From too few answers the weights are equal. With several runs, weights and calibration are fitted beside a base rate
    for each run. Otherwise the parts would be weighed by how well they tell easy tasks from hard ones.
    """
    k = len(logits)
    if len(y) < MIN_WEIGHTED_ROWS or len(np.unique(y)) < 2:
        return np.full(k, 1 / k), RunRates()
    weights = blend_weights(logits, y) if len(np.unique(runs)) == 1 else blend_weights_within(logits, y, runs)
    platt, rates = fit_beside_rates(weights @ logits, y, runs)
    return weights * platt.slope, rates


def fit_beside_rates(score: Floats, y: NDArray[np.int64], runs: NDArray[np.generic]) -> tuple[Platt, RunRates]:
    """Returns Platt's map of one score (n,) at the mean base rate, and the base rates of the runs beside its slope."""
    if len(np.unique(runs)) == 1:
        platt = fit_platt(score, y)
        return platt, RunRates(platt.intercept)
    z, centre, spread = standardised(score[:, None])
    fit = fit_offsets(z, y, runs, sd=INTERCEPT_SD)
    slope = float(fit.weights[0] / spread[0])
    rates = replace(fit.rates, mean=float(fit.rates.mean - slope * centre[0]))
    return Platt(slope, rates.mean), rates


def blend_weights_within(logits: Floats, y: NDArray[np.int64], runs: NDArray[np.generic]) -> Floats:
    """Returns (k,) weights like `blend_weights`, fitted beside a base rate for each run."""
    k = len(logits)
    expected, sd = np.full(k, 1 / k), np.full(k, (2 * EQUAL_WEIGHTS_ANSWERS) ** -0.5)
    while True:
        weights = fit_offsets(logits.T, y, runs, expected=expected, sd=sd).weights
        negative = (weights < 0) & (sd > HELD_SD)
        if not negative.any():
            return np.maximum(weights, 0.0)
        expected, sd = np.where(negative, 0.0, expected), np.where(negative, HELD_SD, sd)


def blend_weights(logits: Floats, y: NDArray[np.int64]) -> Floats:
    """Returns weights (k,) of k methods' calibrated log-odds (k, n): a logistic regression with weights of at least 0.

    Weights are shrunk towards equal ones. With few answers the blend is the mean of the log-odds; with many, a method
    that adds nothing loses its weight (stacking, Breiman 1996, with the prior of a plain average).
    """
    optimize = require("scipy.optimize", "fit")
    k, n = logits.shape

    def loss(parameters: Floats) -> tuple[float, Floats]:
        weights, shift = parameters[:k], parameters[k]
        z = weights @ logits + shift
        error, distance = sigmoid(z) - y, weights - 1 / k
        value = np.logaddexp(0, z).sum() - y @ z + EQUAL_WEIGHTS_ANSWERS * distance @ distance
        return float(value / n), np.r_[logits @ error + 2 * EQUAL_WEIGHTS_ANSWERS * distance, error.sum()] / n

    bounds = [(0, None)] * k + [(None, None)]
    start = np.r_[np.full(k, 1 / k), 0.0]
    fit = optimize.minimize(loss, start, jac=True, method="SLSQP", bounds=bounds, options={"ftol": 1e-12})
    return np.asarray(fit.x[:k], dtype=np.float64)
