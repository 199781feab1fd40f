"""Calibrators find what was planted, say the same in ONNX, and the simplest that is right is chosen."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from drawn_scores import drawn, planted, sample, small_samples
from hypothesis import given, settings
from numpy.typing import NDArray

from metaprobe.records.errors import RecordError
from metaprobe.training.calibrators import (
    FITTERS,
    ISOTONIC_ROWS,
    MAX_ISOTONIC_RISE,
    PARITY,
    Calibrator,
    Platt,
    choose_calibrator,
    fit_beta,
    fit_isotonic,
    fit_platt,
    sigmoid,
)
from metaprobe.training.export import GraphBuilder

# Calibrators


def test_platt_recovers_a_planted_line() -> None:
    rng = np.random.default_rng(0)
    score = rng.normal(3, 2, 20_000)
    platt = fit_platt(score, drawn(sigmoid(0.7 * score - 1), rng))
    assert (platt.slope, platt.intercept) == (pytest.approx(0.7, abs=0.05), pytest.approx(-1, abs=0.1))


def test_beta_recovers_a_planted_bend_that_platt_cannot_follow() -> None:
    def bend(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return 3 * np.logaddexp(0, x) - 0.5 * np.logaddexp(0, -x) - 2

    score, y = planted(40_000, 3, bend)
    beta, platt = fit_beta(score, y), fit_platt(score, y)
    assert (beta.a, beta.b, beta.c) == (
        pytest.approx(0.5, abs=0.3),
        pytest.approx(3, abs=0.3),
        pytest.approx(-2, abs=0.3),
    )
    x = np.linspace(-2, 2, 40)
    error = {found.name: float(np.abs(found.probability(x) - sigmoid(bend(x))).max()) for found in (beta, platt)}
    assert error["beta"] < 0.02 < error["platt"]


def test_isotonic_follows_a_shape_that_no_sigmoid_has() -> None:
    score, y = planted(20_000, 4, lambda x: np.where(np.abs(x) < 0.7, 0.0, 2 * np.sign(x)))
    x = np.array([-1.5, -0.3, 0.3, 1.5])
    np.testing.assert_allclose(fit_isotonic(score, y).probability(x), sigmoid(np.array([-2, 0, 0, 2])), atol=0.04)


def test_isotonic_gives_a_pure_end_what_its_own_rows_allow() -> None:
    score = np.repeat([0.0, 1.0, 2.0, 3.0], 50)
    y = np.concatenate([np.zeros(50), np.tile([0, 1], 50), np.ones(50)]).astype(np.int64)
    np.testing.assert_allclose(fit_isotonic(score, y).probability(np.array([-1.0, 4.0])), [1 / 52, 51 / 52])


def test_beta_changes_nothing_where_scores_are_calibrated() -> None:
    log_odds, y = planted(40_000, 2, lambda x: x)
    beta = fit_beta(log_odds, y)
    x = np.linspace(-2.5, 2.5, 50)
    np.testing.assert_allclose(beta.probability(x), sigmoid(x), atol=0.02)


@given(drawing=small_samples)
def test_no_map_beside_the_fitted_one_has_less_loss(drawing: tuple[int, int, float, float]) -> None:
    score, y = sample(*drawing)
    ones = int(y.sum())
    targets = np.where(y == 1, (ones + 1) / (ones + 2), 1 / (len(y) - ones + 2))

    def loss(found: Calibrator) -> float:
        logit = found.logit(score)
        return float((np.logaddexp(0, logit) - targets * logit).mean())

    unit = 1 / np.std(score)
    sizes = {fit_platt: {"slope": unit, "intercept": 1.0}, fit_beta: {"a": 1.0, "b": 1.0, "c": 1.0}}
    for best, name, size in [(fit(score, y), *one) for fit, fields in sizes.items() for one in fields.items()]:
        for step in (-1e-3, 1e-3):
            moved = getattr(best, name) + step * size
            beside = replace(best, **{name: max(moved, 0.0) if name in ("a", "b") else moved})
            assert loss(best) <= loss(beside) + 1e-12


@pytest.mark.parametrize("fit", FITTERS.values(), ids=FITTERS)
@settings(max_examples=20)
@given(drawing=small_samples)
def test_every_calibrator_is_monotone_finite_and_blind_to_the_order_of_rows(
    fit: Callable[..., Calibrator], drawing: tuple[int, int, float, float]
) -> None:
    score, y = sample(*drawing)
    calibrator = fit(score, y)
    assert np.isfinite(calibrator.logit(100 * score)).all()
    x = np.linspace(score.min(), score.max(), 101)
    p, logit = calibrator.probability(x), calibrator.logit(x)
    assert ((p > 0) & (p < 1)).all()
    np.testing.assert_allclose(sigmoid(logit), p, atol=1e-12)
    falls = isinstance(calibrator, Platt) and calibrator.slope < 0
    assert (np.diff(p) * (-1 if falls else 1) >= -1e-12).all()
    shuffled = np.random.default_rng(0).permutation(len(y))
    np.testing.assert_allclose(fit(score[shuffled], y[shuffled]).probability(x), p, atol=1e-6)


@given(drawing=small_samples)
@settings(max_examples=20)
def test_isotonic_is_never_steeper_than_float32_scores_can_bear(drawing: tuple[int, int, float, float]) -> None:
    score, y = sample(*drawing)
    isotonic = fit_isotonic(score, y)
    steepest = (np.diff(isotonic.probabilities) / np.diff(isotonic.scores)).max() * score.std()
    assert steepest <= MAX_ISOTONIC_RISE * (1 + 1e-4)  # knots are rounded to float32


def answered(calibrator: Calibrator, score: NDArray[np.float64]) -> NDArray[np.float32]:
    graph = GraphBuilder("here")
    calibrator.add_to(graph, "score", "p")
    model = onnx.load_from_string(graph.model({"score": 1}, ["p"]))
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    [p] = session.run(["p"], {"score": score.astype(np.float32)[:, None]})
    assert p.shape == (len(score), 1)
    return np.asarray(p[:, 0])


@pytest.mark.parametrize("fit", FITTERS.values(), ids=FITTERS)
@pytest.mark.parametrize(
    "log_odds", [lambda x: 0.7 * x - 1, lambda x: 40 * x, lambda x: -x], ids=["soft", "hard", "off"]
)
def test_the_graph_gives_what_numpy_gives(
    fit: Callable[..., Calibrator], log_odds: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> None:
    score, y = planted(2000, 5, log_odds)
    calibrator = fit(score, y)
    x = np.concatenate([score, np.linspace(-30, 30, 500)])  # float64: the graph's own rounding of scores is counted
    np.testing.assert_allclose(answered(calibrator, x), calibrator.probability(x), atol=PARITY / 2)


@pytest.mark.parametrize("fit", FITTERS.values(), ids=FITTERS)
@pytest.mark.parametrize(
    ("score", "y", "said"),
    [
        ([0.1, 0.2, 0.3], [1, 1, 1], "3 of label 1 and 0 of label 0"),
        ([0.1, np.nan, 0.3], [0, 1, 1], "1 of 3 that are not"),
        ([0.1, np.inf, 0.3], [0, 1, 1], "finite"),
        ([0.1, 0.2], [0, 1, 1], r"\(2,\) and \(3,\)"),
        ([0.1, 0.2, 0.3], [0, 1, 2], "among 3 rows"),
    ],
)
def test_rows_that_cannot_be_calibrated_are_refused(
    fit: Callable[..., Calibrator], score: list[float], y: list[int], said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        fit(np.array(score), np.array(y))


# The choice among them


def in_groups(n: int, of: int = 2) -> list[str]:
    return [f"g{i // of}" for i in range(n)]


def test_the_simplest_is_chosen_where_it_is_right() -> None:
    score, y = planted(2000, 7, lambda x: 1.3 * x - 0.4)
    groups = np.array(in_groups(2000))
    order = np.lexsort((y, score, groups))
    assert choose_calibrator(score, y, groups) == fit_platt(score[order], y[order])


@pytest.mark.parametrize(("n", "name"), [(3000, "isotonic"), (ISOTONIC_ROWS - 1, "platt")])
def test_isotonic_is_chosen_where_no_sigmoid_fits_and_not_for_few_rows(n: int, name: str) -> None:
    score, y = planted(n, 8, lambda x: np.where(np.abs(x) < 1, 0.0, 3 * np.sign(x)))
    assert choose_calibrator(score, y, in_groups(n)).name == name
    if n < ISOTONIC_ROWS:
        with pytest.raises(RecordError, match="500 rows, got 499"):
            choose_calibrator(score, y, in_groups(n), candidates=["isotonic"])


def test_the_choice_does_not_depend_on_the_order_of_rows() -> None:
    score, y = planted(600, 10, lambda x: x)
    groups = np.array(in_groups(600, of=3))
    shuffled = np.random.default_rng(1).permutation(600)
    again = choose_calibrator(score[shuffled], y[shuffled], groups[shuffled], seed=4)
    assert again == choose_calibrator(score, y, groups, seed=4)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_groups_than_folds_still_give_a_calibrator(count: int) -> None:
    score, y = planted(90, 11, lambda x: x)
    assert choose_calibrator(score, y, [f"g{i % count}" for i in range(90)]).name in FITTERS


def test_a_class_that_is_in_one_group_only_leaves_the_first_candidate() -> None:
    score, y = np.arange(40.0), np.array([1] * 10 + [0] * 30)
    groups = [f"g{i // 10}" for i in range(40)]
    assert choose_calibrator(score, y, groups, candidates=["beta", "platt"]).name == "beta"
