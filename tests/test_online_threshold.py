"""A threshold that follows the labels keeps its promise whatever comes, also where everything changes."""

from collections.abc import Callable

import numpy as np
import pytest

from metaprobe.monitoring.labelled import OnlineThreshold
from metaprobe.records.errors import RecordError


def spiteful(threshold: OnlineThreshold, _: int) -> float:
    """A wrong answer just where it is not flagged."""
    return min(max(threshold.threshold, 0.0), 1.0)


def kind(threshold: OnlineThreshold, _: int) -> float:
    return min(max(threshold.threshold - 1e-6, 0.0), 1.0)


def drifting(_: OnlineThreshold, i: int) -> float:
    return float(np.random.default_rng(i).beta(2 + i / 300, 4))


WAYS = {
    "spiteful": spiteful,
    "kind": kind,
    "drifting": drifting,
    "all sure": lambda *_: 1.0,
    "all unsure": lambda *_: 0.0,
}


@pytest.mark.parametrize("score", WAYS.values(), ids=WAYS)
def test_the_share_missed_comes_to_the_rate_whatever_comes(
    score: Callable[[OnlineThreshold, int], float],
) -> None:
    rate = 0.3
    threshold = OnlineThreshold(0.5, rate=rate)
    for i in range(3000):
        threshold.observe(score(threshold, i), 0.0)
        assert abs(threshold.missed_share - rate) <= threshold.bound + 1e-9
        assert -threshold.step <= threshold.threshold <= 1 + threshold.step
    assert threshold.bound < 0.02
    assert threshold.wrong == 3000


def test_weighted_labels_keep_the_promise_for_all_answers() -> None:
    rng = np.random.default_rng(1)
    missed = []
    for _ in range(15):
        threshold = OnlineThreshold(0.5)
        score = rng.beta(3, 3, 3000)
        propensity = np.where(score < 0.4, 1.0, 0.2)  # low scores are labelled more often
        chosen = rng.random(3000) < propensity
        threshold.observe_all((s, 0.0, p) for s, p in zip(score[chosen], propensity[chosen], strict=True))
        assert abs(threshold.missed_share - 0.1) <= threshold.bound + 1e-9
        missed.append(np.mean(rng.beta(3, 3, 3000) >= threshold.threshold))
    assert np.mean(missed) == pytest.approx(0.1, abs=0.03)


def test_right_answers_and_what_is_unknown_move_nothing() -> None:
    threshold = OnlineThreshold(0.4)
    assert np.isnan(threshold.missed_share)
    assert threshold.bound == float("inf")
    threshold.observe_all([(0.2, 1.0, 1.0), (np.nan, 0.0, 1.0), (0.3, np.nan, np.nan)])
    assert (threshold.threshold, threshold.wrong) == (0.4, 0.0)
    assert threshold.observe(0.9, 0.0, np.nan) == pytest.approx(0.4 + 0.02 * 0.9)
    assert threshold.observe(0.1, 0.5) == pytest.approx(0.4 + 0.02 * 0.9 - 0.02 * 0.1 * 0.5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: OnlineThreshold(1.5), "threshold 1.5"),
        (lambda: OnlineThreshold(0.5, rate=0), "rate 0 "),
        (lambda: OnlineThreshold(0.5).observe(0.5, 2.0), "label 2"),
        (lambda: OnlineThreshold(0.5).observe(0.5, 0.0, 0.0), "propensity 0;"),
    ],
)
def test_what_is_out_of_range_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(RecordError, match=said):
        call()
