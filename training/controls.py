"""The controls of `metaprobe.eval.controls` as methods of a study, so that they are fitted in the same folds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    free_controls,
    free_family,
    free_score,
    has_answers,
    has_questions,
)
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import CONTROL_FAMILIES, Family
from metaprobe.eval.table import AnswerTable
from metaprobe.probes.features import ALONE, TERM_NAMES, features, schema
from metaprobe.records.extras import require
from metaprobe.training.evidence import Evidence, Scores, runs_of
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.ladder import fit_offsets, terms_in
from metaprobe.training.linear import fit_linear_probe
from metaprobe.training.methods import Fitted, GivenScore, HiddenProbeMethod, LogprobLadder, Method, Scorer

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
        texts = [prompts_of(table) if name == "questions" else getattr(table, name) for name in self.columns]

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


def prompts_of(table: AnswerTable) -> NDArray[np.str_]:
    """(n,): the questions. The way of asking is part of the prompt, so that a control may know it too."""
    return np.array([f"[{v}] {q}" for v, q in zip(table.variants, table.questions, strict=True)])


def smooth_means(values: NDArray[np.int64], cells: NDArray[np.str_], prior: float) -> tuple[dict[str, float], float]:
    """Returns the mean value of each cell, as if it held `prior` more rows of the overall mean; and that mean."""
    overall = float(np.mean(values))
    means = {}
    for cell in np.unique(cells):
        here = values[cells == cell]
        means[str(cell)] = (float(here.sum()) + prior * overall) / (len(here) + prior)
    return means, overall


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
            known, share = smooth_means(table.y[learn], cells[learn], self.prior)
            return lambda rows: np.array([known.get(cell, share) for cell in cells[rows]])

        selected = float(auroc(table.y[roles.selection], fitted(roles.train)(roles.selection)))
        return Fitted(fitted(roles.learning), selected)


RUN_IDENTITY = CellTable(IDENTITY, ("models", "tasks", "variants"))
"""A judge that knows only which run an answer is of: which model answered which task, asked in which way."""


def standard_terms(evidence: Evidence, learn: Rows) -> Scores:
    """Returns the terms (n, 7) of the log-probabilities, standardised by the rows to learn from."""
    known = evidence.feature_names[-len(TERM_NAMES) :] == TERM_NAMES
    terms = terms_in(evidence.features if known else features(schema(ALONE), list(evidence.table.logprobs)))
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


@dataclass(frozen=True, slots=True)
class TextProbe:
    """A linear probe of layer 0, the embeddings of the tokens: the text as the model reads it, before any thought."""

    name: str = TEXT
    family: Family = "plain"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        states, table = evidence.states, evidence.table
        assert states is not None, "offered only where layer 0 was captured"
        probe = fit_linear_probe(
            states, table.y, table.groups.tolist(), roles, positions=states.positions, layers=(0,), seed=seed
        )
        return Fitted(lambda rows: probe.score(states, rows), max(point.auroc for point in probe.sweep))


def control_methods(evidence: Evidence) -> list[Method]:
    """Returns the controls that these answers allow, in the order of a comparison."""
    table, states = evidence.table, evidence.states
    free = [
        GivenScore(name, free_family(name), partial(free_score, name), probability=name in (STATED, P_TRUE))
        for name in free_controls(table)
    ]
    # Questions or answers that are not stored say nothing.
    texts = (*(("questions",) if has_questions(table) else ()), *(("answers",) if has_answers(table) else ()))
    return [
        *free,
        *(TextWords(PROMPT if column == "questions" else ANSWER, (column,)) for column in texts),
        *(control for control in (CellTable(), RUN_IDENTITY) if control.varies(table)),
        *((TermsRegression(),) if table.measured else ()),
        *((TextWords(JOINED, texts, numbers=True),) if texts and table.measured else ()),
        # Where no other layer was captured, it is all that a probe reads.
        *((TextProbe(),) if states is not None and 0 in states.layers and len(states.layers) > 1 else ()),
    ]


def controls_apart(method: Method, others: Sequence[Method], positions: Sequence[str]) -> tuple[str, ...]:
    """Returns the controls among the others that a method is not held against.

    A probe before the answer is held against what is known then; of `positions`, at which states were kept, layer 0
    reads all. A predictor for runs that nobody has seen is made to do without the runs and the questions: it is held
    against numbers that need no fit.
    """
    if isinstance(method, HiddenProbeMethod) and method.positions == ("prompt_last",):
        known = UNANSWERED | ({TEXT} if tuple(positions) == method.positions else frozenset())
        controls = [other.name for other in others if other.family in CONTROL_FAMILIES]
        return tuple(name for name in controls if name.removesuffix(REVERSED) not in known)
    return FITTED if isinstance(method, LogprobLadder) and method.new_tasks else ()
