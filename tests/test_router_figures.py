"""Figures of a router that is evaluated: what its probabilities are worth, and the table that it must beat."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from metaprobe.training.audit import ENOUGH_FOR_ECE
from metaprobe.training.router import evaluate


def games(scores: list[float], expected: list[float]) -> list[Any]:
    return [SimpleNamespace(score=y, expected=p) for y, p in zip(scores, expected, strict=True)]


def data(n: int) -> Any:
    return SimpleNamespace(groups=[f"g{i}" for i in range(n)])


def test_only_scores_of_right_and_wrong_of_both_kinds_have_an_auroc() -> None:
    n = 40
    expected = np.linspace(0.1, 0.9, n).tolist()
    right = [float(p > 0.5) for p in expected]
    found = evaluate._calibration(games(right, expected), data(n), 100, 0)
    assert found["auroc"].estimate == 1.0
    assert (found["mean_expected"], found["ece"]) == (pytest.approx(0.5), None)
    graded = evaluate._calibration(games([0.5 * y for y in right], expected), data(n), 100, 0)
    alike = evaluate._calibration(games([1.0] * n, expected), data(n), 100, 0)
    assert graded["auroc"] is None
    assert alike["auroc"] is None


@pytest.mark.parametrize(("n", "known"), [(ENOUGH_FOR_ECE - 1, False), (ENOUGH_FOR_ECE, True)])
def test_a_calibration_error_is_given_from_so_many_questions_on(n: int, known: bool) -> None:
    expected = np.linspace(0.1, 0.9, n).tolist()
    found = evaluate._calibration(games([float(i % 2) for i in range(n)], expected), data(n), 50, 0)
    assert (found["ece"] is not None) == known


def test_the_table_takes_whoever_was_right_most_often_on_the_dimension_less_the_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    past = {  # log-odds of being right, and dollars a question
        ("small", "sums"): (2.0, 0.001),
        ("small", "facts"): (-1.0, 0.001),
        ("large", "sums"): (2.1, 0.004),
        ("large", "facts"): (1.0, 0.004),
    }
    router: Any = SimpleNamespace(
        past=lambda name, dimension: SimpleNamespace(rate=past[name, dimension][0], price_usd=past[name, dimension][1])
    )
    questions: Any = [SimpleNamespace(dimension="sums"), SimpleNamespace(dimension="facts")]
    monkeypatch.setattr(evaluate, "prices_of", lambda _: (0.0, 0.1, 1.0))
    columns = evaluate._tables(router, questions, SimpleNamespace(agents=("small", "large")))  # type: ignore[arg-type]
    # A rate is 1 / (1 + exp(-log-odds)): 0.88 and 0.89 of sums, 0.27 and 0.73 of facts; prices are 1 and 4 a thousand.
    assert columns.tolist() == [[1, 1], [0, 1], [0, 0]]
