"""Measures the words of a question for each agent (`routing.panel.planner.QuestionWords`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprobe.records.extras import require
from metaprobe.routing.panel.model_rows import Floats
from metaprobe.routing.panel.planner import QUESTION_BUCKETS, QuestionWords, word_buckets

FEWEST_QUESTIONS = 3
"""Fewest questions that must hold a word for it to count."""
WORD_PENALTY = 20.0
"""L2 penalty on the words' weights, for vectors of length 1."""


def count_words(questions: Sequence[str]) -> Any:
    """Returns which buckets of words each question has, (n, QUESTION_BUCKETS) of 0 and 1 as scipy CSR."""
    sparse = require("scipy.sparse", "fit")
    places = [word_buckets(question) for question in questions]
    ends = np.cumsum([0, *(len(buckets) for buckets in places)])
    columns = np.concatenate(places) if places else np.empty(0, dtype=np.int64)
    return sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(questions), QUESTION_BUCKETS))


def fit_words(counts: Any, residual: Floats) -> QuestionWords:
    """Fits a ridge regression of residuals on TF-IDF of the words.

    Args:
        counts: words of the questions, (n, QUESTION_BUCKETS).
        residual: how far each agent's score lies above its usual score, (n, A).
    """
    linear = require("sklearn.linear_model", "fit")
    n, A = residual.shape
    seen = np.asarray(counts.sum(axis=0)).ravel()
    idf = np.where(seen >= FEWEST_QUESTIONS, np.log((1 + n) / (1 + seen)) + 1, 0.0)
    if not idf.any():
        return QuestionWords(np.zeros((0, A), dtype=np.float32), np.zeros(0, dtype=np.float32))
    X = counts.multiply(idf).tocsr()
    length = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    X = require("scipy.sparse", "fit").diags(1 / np.maximum(length, 1e-12)) @ X
    model = linear.Ridge(alpha=WORD_PENALTY, fit_intercept=False, solver="sparse_cg", tol=1e-4)
    coefficients = np.reshape(model.fit(X, residual).coef_, (A, QUESTION_BUCKETS))
    return QuestionWords((coefficients.T * idf[:, None]).astype(np.float32), (idf**2).astype(np.float32))


def word_shifts(words: QuestionWords, counts: Any) -> Floats:
    """Returns `QuestionWords.shifts` of n questions, (n, A), from their word counts (n, QUESTION_BUCKETS)."""
    A = words.weights.shape[1]
    if not len(words.weights):
        return np.zeros((counts.shape[0], A))
    length = np.sqrt(np.asarray(counts @ words.squares.astype(np.float64)).ravel())
    sums = np.asarray(counts @ words.weights.astype(np.float64))
    return np.asarray(np.divide(sums, length[:, None], out=np.zeros_like(sums), where=length[:, None] > 0))
