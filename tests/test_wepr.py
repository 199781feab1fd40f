"""EPR and WEPR against known answers, against a plain reading of the formula, and against the package they are from."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.quality.wepr import Wepr, epr, wepr_features


def chat(rows: list[list[float]]) -> dict[str, Any]:
    """A chat completion whose tokens have these alternatives."""
    content = [
        {"token": "a", "logprob": -60.0 - i, "top_logprobs": [{"token": "b", "logprob": v} for v in row]}
        for i, row in enumerate(rows)
    ]
    return {"choices": [{"message": {"content": "a" * len(content)}, "logprobs": {"content": content}}]}


def plain_features(rows: list[list[float]], k: int) -> list[float]:
    s = [[-np.exp(v) * v for v in sorted(row, reverse=True)[:k]] for row in rows if row]
    return [*(float(np.mean(c)) for c in zip(*s, strict=True)), *(max(c) for c in zip(*s, strict=True))]


def normalised(row: list[float]) -> list[float]:
    """Log-probabilities that sum to 1."""
    values: list[float] = (np.array(row) - np.log(np.exp(row).sum())).tolist()
    return values


tables = st.integers(2, 6).flatmap(
    lambda k: st.lists(st.lists(st.floats(-30, 0), min_size=k, max_size=k + 2), min_size=1, max_size=9).map(
        lambda rows: (k, [normalised(row) for row in rows])
    )
)


@given(tables)
def test_features_and_entropy_rate_are_the_formula(table: tuple[int, list[list[float]]]) -> None:
    k, rows = table
    expected = plain_features(rows, k)
    np.testing.assert_allclose(wepr_features(chat(rows), k=k), expected, rtol=1e-6, atol=1e-6)
    assert epr(chat(rows), k=k) == pytest.approx(sum(expected[:k]), abs=1e-5)


def test_known_answers() -> None:
    half, quarter = np.log(0.5), np.log(0.25)
    response = chat([[half, quarter], [half, half]])
    np.testing.assert_allclose(
        wepr_features(response, k=2),
        [0.5 * np.log(2), (0.25 * np.log(4) + 0.5 * np.log(2)) / 2, 0.5 * np.log(2), 0.5 * np.log(2)],
    )
    assert epr(chat([[half, half]]), k=2) == pytest.approx(np.log(2))
    assert Wepr((0.0, 0.0, 0.0, 0.0), 0.0).probability(response) == 0.5
    assert Wepr((0.0, 0.0, 0.0, 0.0), -800.0).probability(response) == 0
    assert Wepr((1.0, 0.0, 0.0, 0.0), 0.0).probability(response) == pytest.approx(1 / (1 + 2**-0.5))


def test_the_package_they_are_from_gives_the_same() -> None:
    scoring = pytest.importorskip("artefactual.scoring")
    rng = np.random.default_rng(1)
    responses = [chat((-np.sort(rng.exponential(2, (int(n), 15)))).tolist()) for n in rng.integers(3, 40, 30)]
    detector = scoring.WEPR().fit(responses, rng.integers(0, 2, 30))
    mine = Wepr(tuple(detector.estimator.coef_[0].tolist()), float(detector.estimator.intercept_[0]))
    expected = [detector.predict_proba(response)[0, 1] for response in responses]
    np.testing.assert_allclose([mine.probability(r) for r in responses], expected, atol=1e-6)
