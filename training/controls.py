"""The controls of `metaprobe.eval.controls` as methods of a study, so that they are fitted in the same folds."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.controls import (
    CELLS,
    FITTED,
    IDENTITY,
    PROMPT,
    SCALED,
    TERMS,
    free_controls,
    free_family,
    free_score,
    has_questions,
)
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import Family
from metaprobe.eval.table import AnswerTable
from metaprobe.probes.features import ALONE, TERM_NAMES, features, schema
from metaprobe.records.extras import require
from metaprobe.training.evidence import Evidence, Scores, runs_of
from metaprobe.training.folds import Roles, Rows
from metaprobe.training.ladder import fit_offsets, terms_in
from metaprobe.training.methods import Fitted, GivenScore, LogprobLadder, Method, Scorer


def make_tfidf() -> Any:
    """Returns what turns texts into TF-IDF rows of their words and pairs of words, still to be fitted."""
    text = require("sklearn.feature_extraction.text", "fit")
    return text.TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, token_pattern=r"\S+")


@dataclass(frozen=True, slots=True)
class PromptTfidf:
    """Logistic regression on the words of the question alone: what can be known without any signal of the model."""

    name: str = PROMPT
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


@dataclass(frozen=True, slots=True)
class TermsRegression:
    """Logistic regression on all terms of the log-probabilities, with a base rate for each run.

    Probes on hidden states, and trees on hundreds of features, have to do better than this.
    """

    name: str = TERMS
    family: Family = "log-probability"
    fitted: bool = True

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        table = evidence.table
        known = evidence.feature_names[-len(TERM_NAMES) :] == TERM_NAMES
        terms = terms_in(evidence.features if known else features(schema(ALONE), list(table.logprobs)))
        runs = runs_of(table)

        def fitted(learn: Rows) -> Scorer:
            centre, spread = terms[learn].mean(axis=0), terms[learn].std(axis=0)
            standard = (terms - centre) / np.where(spread > 0, spread, 1.0)
            fit = fit_offsets(standard[learn], table.y[learn], runs[learn])
            return lambda rows: standard[rows] @ fit.weights + fit.rates.of(runs[rows])

        selected = float(auroc(table.y[roles.selection], fitted(roles.train)(roles.selection)))
        return Fitted(fitted(roles.learning), selected)


def control_methods(evidence: Evidence) -> list[Method]:
    """Returns the controls that these answers allow, in the order of a comparison."""
    table = evidence.table
    free = [GivenScore(name, free_family(name), partial(free_score, name)) for name in free_controls(table)]
    return [
        *free,
        *((PromptTfidf(),) if has_questions(table) else ()),  # questions that are not stored say nothing
        *(control for control in (CellTable(), RUN_IDENTITY) if control.varies(table)),
        *((TermsRegression(),) if table.measured else ()),
    ]


def own_controls(method: Method) -> tuple[str, ...]:
    """Returns the controls that a method cannot beat: it is one of them, or has tried it as a step of its own.

    A predictor of runs that nobody has seen stays the scaled log-probability, and is made to do without the runs and
    the questions: it is held against free numbers only.
    """
    if not isinstance(method, LogprobLadder):
        return ()
    return (SCALED, *FITTED) if method.new_tasks else (TERMS,)
