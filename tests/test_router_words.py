"""The words of a router are a ridge regression on TF-IDF that scikit-learn makes as well."""

import dataclasses

import numpy as np
import pytest
from routed_worlds import logged_outcomes, outcomes
from sklearn.linear_model import Ridge

from metaprobe.routing.learned_stored import word_buckets
from metaprobe.training.router.data import Outcomes, outcomes_of
from metaprobe.training.router.words import FEWEST_QUESTIONS, WORD_PENALTY, Words, normalise_rows, texts_of, word_scores


def dense(data: Outcomes, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """TF-IDF rows of length 1, the idf, and the buckets that are its columns."""
    found = [set(word_buckets(data.questions[row]).tolist()) for row in rows]
    buckets = sorted(set().union(*found))
    counts = np.array([[bucket in of for bucket in buckets] for of in found], dtype=float)
    seen = counts.sum(axis=0)
    idf = np.where(seen >= 3, np.log((1 + len(rows)) / (1 + seen)) + 1, 0.0)
    X = counts * idf
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12), idf, buckets


def test_a_words_weight_is_what_it_adds_to_the_usual_score_of_an_agent_on_the_dimension() -> None:
    data = outcomes_of(outcomes(90))
    rows = np.arange(0, 90, 2)
    found = word_scores(Words.of(data.questions), data, rows)
    X, idf, buckets = dense(data, rows)
    usual = np.zeros((len(rows), len(data.agents)))
    for d in range(-1, len(data.dimensions)):
        here = data.dimension[rows] == d
        usual[here] = data.score[rows[here]].mean(axis=0)
    ridge = Ridge(alpha=20.0, fit_intercept=False, solver="cholesky").fit(X, data.score[rows] - usual)
    weights = ridge.coef_.T * idf[:, None]
    np.testing.assert_allclose(found.weights[buckets, :-1], weights, atol=3e-3 * np.abs(weights).max())
    np.testing.assert_allclose(found.weights[:, -1], found.weights[:, :-1].mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(found.squares[buckets], idf**2, rtol=1e-6)
    assert np.count_nonzero(found.squares) == np.count_nonzero(idf)
    assert (FEWEST_QUESTIONS, WORD_PENALTY) == (3, 20.0), "or the docs' numbers are of other settings"
    texts = texts_of(found, Words.of(data.questions), rows)
    np.testing.assert_allclose(texts, X @ ridge.coef_.T, atol=3e-3 * np.abs(texts).max())


def test_of_logged_decisions_each_agent_is_learned_from_what_it_was_asked_by_the_chance_of_that() -> None:
    data = outcomes_of(logged_outcomes())
    rows = np.arange(300)
    found = word_scores(Words.of(data.questions), data, rows)
    X, idf, buckets = dense(data, rows)
    for column in range(len(data.agents)):
        known = np.flatnonzero(data.known[rows, column])
        weight = 1 / data.propensity[rows[known], column]
        usual = np.zeros(len(known))
        for d in range(-1, len(data.dimensions)):
            here = data.dimension[rows[known]] == d
            usual[here] = np.average(data.score[rows[known][here], column], weights=weight[here])
        ridge = Ridge(alpha=20.0, fit_intercept=False, solver="cholesky")
        ridge.fit(X[known], data.score[rows[known], column] - usual, sample_weight=weight / weight.mean())
        expected = ridge.coef_ * idf
        np.testing.assert_allclose(found.weights[buckets, column], expected, atol=5e-3 * np.abs(expected).max())


def test_without_a_word_that_three_questions_share_there_is_nothing_to_read() -> None:
    data = outcomes_of([dataclasses.replace(q, question=f"w{i} v{i}") for i, q in enumerate(outcomes(30))])
    words = Words.of(data.questions)
    found = word_scores(words, data, np.arange(30))
    assert (found.weights.shape, found.squares.shape) == ((0, 7), (0,))
    assert np.isnan(texts_of(found, words, np.arange(4))).all()
    assert texts_of(found, words, np.arange(4)).shape == (4, 6)
    repeated = outcomes_of([dataclasses.replace(q, question=f"w{i // 3}") for i, q in enumerate(outcomes(30))])
    assert len(word_scores(Words.of(repeated.questions), repeated, np.arange(30)).weights), "three are enough"


def test_rows_of_words_have_length_one_and_a_row_without_known_words_is_zero() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    rows = normalise_rows(sparse.csr_matrix([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), np.array([3.0, 4.0, 0.0]), sparse)
    np.testing.assert_allclose(rows.toarray(), [[0.6, 0.8, 0.0], [0.0, 0.0, 0.0]])  # type: ignore[attr-defined]
    counts = Words.of(["", "red red", "red"]).counts
    assert counts.toarray().sum(axis=1).tolist() == [0.0, len(word_buckets("red red")), 1.0]  # type: ignore[attr-defined]
