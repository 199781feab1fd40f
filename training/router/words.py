"""What the words of a question say of each agent: TF-IDF columns, and a score an agent from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metaprobe.records.extras import require
from metaprobe.routing.learned_stored import BUCKETS, WordScores, word_buckets
from metaprobe.training.router.data import Floats, Ints, Outcomes, relative

FEWEST_QUESTIONS = 3
"""In how many questions a word must stand to count."""
WORD_PENALTY = 20.0
"""L2 penalty on the words' weights, vectors of length 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The questions' words as one sparse matrix, made once."""

    counts: object
    """(n, BUCKETS) of 0 and 1, scipy CSR."""

    @classmethod
    def of(cls, questions: Sequence[str]) -> "Words":
        sparse = require("scipy.sparse", "fit")
        found = [word_buckets(question) for question in questions]
        ends = np.cumsum([0, *(len(buckets) for buckets in found)])
        columns = np.concatenate(found) if len(found) else np.empty(0, dtype=np.int64)
        return cls(sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(questions), BUCKETS)))


def word_scores(words: Words, data: Outcomes, rows: Ints) -> WordScores:
    """Ridge regression of how far each agent's score lies above its rate on the dimension, on TF-IDF of the words."""
    linear, sparse = require("sklearn.linear_model", "fit"), require("scipy.sparse", "fit")
    A = len(data.agents)
    counts = words.counts[rows]  # type: ignore[index]
    seen = np.asarray(counts.sum(axis=0)).ravel()
    idf = np.where(seen >= FEWEST_QUESTIONS, np.log((1 + len(rows)) / (1 + seen)) + 1, 0.0)
    if not idf.any():
        return WordScores(np.zeros((0, A + 1), dtype=np.float32), np.zeros(0, dtype=np.float32))
    X = normalise_rows(counts, idf, sparse)
    residual = data.score[rows] - _usual(data, rows)
    model = linear.Ridge(alpha=WORD_PENALTY, fit_intercept=False, solver="sparse_cg", tol=1e-4)
    if data.logged:  # each agent from what was asked of it
        coefficients = np.zeros((A, BUCKETS))
        for column in range(A):
            known = np.flatnonzero(np.isfinite(residual[:, column]))
            if len(known):
                often = relative(data.weight[rows[known], column])
                coefficients[column] = model.fit(X[known], residual[known, column], sample_weight=often).coef_  # type: ignore[index]
    else:
        coefficients = np.reshape(model.fit(X, np.nan_to_num(residual)).coef_, (A, BUCKETS))
    weights = coefficients.T * idf[:, None]
    weights = np.column_stack([weights, weights.mean(axis=1)])
    return WordScores(weights.astype(np.float32), (idf**2).astype(np.float32))


def normalise_rows(counts: object, idf: Floats, sparse: object) -> object:
    """TF-IDF rows of length 1 (0 where no word is known)."""
    X = counts.multiply(idf).tocsr()  # type: ignore[attr-defined]
    length = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return sparse.diags(1 / np.maximum(length, 1e-12)) @ X  # type: ignore[attr-defined]


def texts_of(scores: WordScores, words: Words, rows: Ints) -> Floats:
    """(n, A): what `WordScores.of` gives, for many questions; NaN where no word is known."""
    A = scores.weights.shape[1] - 1
    if not len(scores.weights):
        return np.full((len(rows), A + 1), np.nan)[:, :A]
    counts = words.counts[rows]  # type: ignore[index]
    length = np.asarray(counts @ scores.squares.astype(np.float64)).ravel()
    found = np.asarray(counts @ scores.weights.astype(np.float64))[:, :A]
    return np.where(length[:, None] > 0, found / np.sqrt(np.maximum(length, 1e-12))[:, None], np.nan)


def _usual(data: Outcomes, rows: Ints) -> Floats:
    """(n, A): mean score of the agent on the question's dimension."""
    usual = np.zeros((len(rows), len(data.agents)))
    for dimension in np.unique(data.dimension[rows]):
        here = data.dimension[rows] == dimension
        weight, score = data.weight[rows[here]], np.nan_to_num(data.score[rows[here]])
        total = weight.sum(axis=0)
        usual[here] = (weight * score).sum(axis=0) / np.where(total > 0, total, 1.0)
    return usual
