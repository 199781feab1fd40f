"""Learns what the words of a question say of each agent (`metaprobe.routing.question_words`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.routing.question_words import BUCKETS, QuestionWords, word_buckets

Floats = NDArray[np.float64]

FEWEST_QUESTIONS = 3
"""In how many questions a word must stand to count."""
WORD_PENALTY = 20.0
"""L2 penalty on the words' weights, for vectors of length 1."""


def count_words(questions: Sequence[str]) -> Any:
    """Returns which buckets of words each question has, (n, BUCKETS) of 0 and 1 as scipy CSR."""
    sparse = require("scipy.sparse", "fit")
    places = [word_buckets(question) for question in questions]
    ends = np.cumsum([0, *(len(buckets) for buckets in places)])
    columns = np.concatenate(places) if places else np.empty(0, dtype=np.int64)
    return sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(questions), BUCKETS))


def fit_words(counts: Any, residual: Floats, weight: Floats | None = None) -> QuestionWords:
    """Fits a ridge regression, on TF-IDF of the words, of how far each score lies above what is usual.

    `counts` (n, BUCKETS); `residual` (n, A), NaN where an agent was not asked; `weight` (n, A) of each, 1 by default.
    """
    linear = require("sklearn.linear_model", "fit")
    n, A = residual.shape
    seen = np.asarray(counts.sum(axis=0)).ravel()
    idf = np.where(seen >= FEWEST_QUESTIONS, np.log((1 + n) / (1 + seen)) + 1, 0.0)
    if not idf.any():
        return QuestionWords(np.zeros((0, A), dtype=np.float32), np.zeros(0, dtype=np.float32))
    X = _unit_rows(counts, idf)
    model = linear.Ridge(alpha=WORD_PENALTY, fit_intercept=False, solver="sparse_cg", tol=1e-4)
    known = np.isfinite(residual)
    if known.all() and weight is None:
        coefficients = np.reshape(model.fit(X, residual).coef_, (A, BUCKETS))
    else:  # each agent from the questions that it was asked
        coefficients = np.zeros((A, BUCKETS))
        for column in range(A):
            rows = np.flatnonzero(known[:, column])
            if len(rows):
                often = np.ones(len(rows)) if weight is None else weight[rows, column]
                fit = model.fit(X[rows], residual[rows, column], sample_weight=often / often.mean())
                coefficients[column] = fit.coef_
    return QuestionWords((coefficients.T * idf[:, None]).astype(np.float32), (idf**2).astype(np.float32))


def word_shifts(words: QuestionWords, counts: Any) -> Floats:
    """Returns what `QuestionWords.shifts` gives, for many questions, (n, A)."""
    A = words.weights.shape[1]
    if not len(words.weights):
        return np.zeros((counts.shape[0], A))
    length = np.sqrt(np.asarray(counts @ words.squares.astype(np.float64)).ravel())
    sums = np.asarray(counts @ words.weights.astype(np.float64))
    return np.asarray(np.divide(sums, length[:, None], out=np.zeros_like(sums), where=length[:, None] > 0))


def _unit_rows(counts: Any, idf: Floats) -> Any:
    """Returns TF-IDF rows of length 1, and of length 0 where no word is known."""
    sparse = require("scipy.sparse", "fit")
    X = counts.multiply(idf).tocsr()
    length = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return sparse.diags(1 / np.maximum(length, 1e-12)) @ X
