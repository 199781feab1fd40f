"""From some hundred labels on `adapt` may bend its map: taken where it is planted, and nowhere else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.eval.answer_table import bare_table
from metaprobe.training.calibrators import Beta, sigmoid
from metaprobe.training.rescale import MIN_BEND_LABELS, Bend, Rescaled, rescale

ONE_RUN = "m||"


def adapted(n: int, seed: int, *, below: float, above: float, may_bend: bool = True) -> tuple[Rescaled, np.ndarray]:
    """Returns the head adapted to n answers whose log-odds have these scales below and above 1, and the fresh error."""

    def truth(x: np.ndarray) -> np.ndarray:
        return np.where(x < 1, below, above) * (x - 1) + 0.5

    rng = np.random.default_rng(seed)
    before, fresh = rng.normal(1, 2.0, n), rng.normal(1, 2.0, 4000)
    y = (rng.uniform(size=n) < sigmoid(truth(before))).astype(np.int64)
    table = bare_table(y, np.array([f"g{i}" for i in range(n)]))
    head = rescale("correct", table, np.full(n, ONE_RUN), before, None, may_bend=may_bend)
    order = np.array_split(np.argsort(fresh), 15)
    p, true = head.calibrator.probability(fresh), sigmoid(truth(fresh))
    return head, sum(abs(p[part].mean() - true[part].mean()) for part in order) / len(order)


def test_a_planted_bend_is_taken_and_makes_probabilities_right() -> None:
    bent = [adapted(800, seed, below=0.15, above=1.6) for seed in range(5)]
    straight = [adapted(800, seed, below=0.15, above=1.6, may_bend=False) for seed in range(5)]
    assert all(head.bend is not None and isinstance(head.calibrator, Beta) for head, _ in bent)
    assert all(head.bend is None for head, _ in straight)
    assert np.mean([error for _, error in bent]) < 0.7 * np.mean([error for _, error in straight])
    assert all("a map that bends" in head.in_words for head, _ in bent)


def test_a_straight_map_is_hardly_ever_bent_and_few_labels_never_bend() -> None:
    taken = [adapted(800, seed, below=0.8, above=0.8)[0].bend is not None for seed in range(20)]
    assert sum(taken) <= 3
    assert adapted(MIN_BEND_LABELS - 1, 0, below=0.15, above=1.6)[0].bend is None


def test_adapted_scores_are_right_on_average_on_their_own_labels() -> None:
    for n, below, above in ((60, 1.0, 1.0), (800, 1.0, 1.0), (800, 0.15, 1.6)):
        head, _ = adapted(n, 3, below=below, above=above)
        assert sigmoid(head.log_odds).mean() == pytest.approx(head.table.y.mean(), abs=0.002)


@given(st.floats(-5, 5), st.floats(0.1, 4), st.floats(0.05, 3), st.floats(0.05, 3))
def test_a_bent_map_rises_and_is_the_sum_of_its_columns(
    centre: float, spread: float, below: float, above: float
) -> None:
    bend, x = Bend(centre, spread), np.linspace(-12, 12, 200)
    weights = np.array([below, above])
    found = bend.map(weights, 0.3).logit(x)
    np.testing.assert_allclose(found, bend.columns(x) @ weights + 0.3, atol=1e-9)
    slope = np.diff(found) / np.diff(x)
    assert slope.min() >= min(below, above) - 1e-9
    assert slope.max() <= max(below, above) + 1e-9
    np.testing.assert_allclose(bend.map(np.array([below, below]), 0.3).logit(x), below * x + 0.3, atol=1e-9)
