"""A verdict is that of the interval's bound, not of the estimate: what may be chance is neither praised nor blamed."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import made_up
from numpy.typing import NDArray

from metaprobe.eval.audits import (
    Elsewhere,
    beats_controls,
    domains_of,
    holds_elsewhere,
    random_features,
    shuffled_labels,
)
from metaprobe.eval.metrics.bootstrap import ControlComparison, ControlDifference, Interval
from metaprobe.eval.metrics.ranked import auroc

N = 300
GROUPS = np.array([f"g{i}" for i in range(N)])


def told(low: float, estimate: float, high: float) -> Interval:
    return Interval(estimate, low, high, N, N)


def weak(y: NDArray[np.int64], seed: int, strength: float) -> NDArray[np.float64]:
    """Scores that know a little of the labels."""
    return strength * y + np.random.default_rng(seed).normal(size=len(y))


def against(name: str, estimate: float, gain: Interval, p: float) -> ControlComparison:
    return ControlComparison(0.6, (ControlDifference(name, estimate, gain, p, p),))


@pytest.mark.parametrize(
    ("name", "control", "gain", "p", "passed", "severity"),
    [
        ("length", 0.6, told(-0.03, 0.01, 0.019), 0.5, False, "invalid"),
        ("length", 0.6, told(-0.03, 0.01, 0.03), 0.5, False, "weak"),  # it may well be better
        ("length", 0.51, told(-0.03, 0.01, 0.019), 0.5, False, "weak"),  # the control tells nothing
        ("mean log-probability", 0.6, told(-0.03, 0.01, 0.019), 0.5, False, "weak"),  # knows the answers
        ("mean log-probability", 0.6, told(0.001, 0.05, 0.1), 0.04, True, "weak"),
        ("mean log-probability", 0.6, told(-0.001, 0.05, 0.1), 0.04, False, "weak"),
        ("mean log-probability", 0.6, told(0.001, 0.05, 0.1), 0.06, False, "weak"),
    ],
)
def test_a_control_is_beaten_by_the_lower_bound_and_the_corrected_p_and_explains_by_the_upper_bound(
    name: str, control: float, gain: Interval, p: float, passed: bool, severity: str
) -> None:
    [audit] = beats_controls(against(name, control, gain, p), name="probe")
    assert (audit.passed, audit.severity) == (passed, severity)


@pytest.mark.parametrize(("strength", "passed"), [(0.08, True), (0.4, False)])
def test_a_recipe_leaks_where_the_interval_of_its_mean_lies_above_chance(strength: float, passed: bool) -> None:
    """The weaker one is above 0.5 by its estimate alone."""
    y = np.arange(N) % 2
    draws = iter(range(100))
    scores = [weak(y, seed, strength) for seed in range(10)]
    assert np.mean([auroc(y, score) for score in scores]) > 0.5
    shuffled = shuffled_labels(lambda labels: weak(labels, next(draws), strength), y, y + 0.0, GROUPS)
    noise = random_features(lambda X: weak(y, next(draws), strength), y, (N, 2), GROUPS)
    for audit in (shuffled, noise):
        assert float(audit.detail.split("mean AUROC ")[1][:5]) > 0.5
        assert (audit.passed, audit.severity) == (passed, "invalid")


@pytest.mark.parametrize(("low", "passed"), [(0.49, False), (0.51, True)])
def test_it_holds_elsewhere_by_the_lower_bound_of_the_mean(low: float, passed: bool) -> None:
    found = Elsewhere("task", {"a": told(0.4, 0.6, 0.7)}, told(low, 0.6, 0.7), told(-0.1, 0.0, 0.1), None)
    assert holds_elsewhere(found, name="probe", home=0.7).passed == passed


@pytest.mark.parametrize(("n", "right", "known"), [(100, 10, True), (100, 9, False), (99, 50, False), (100, 91, False)])
def test_a_domain_tells_from_100_answers_on_with_a_tenth_of_either_class(n: int, right: int, known: bool) -> None:
    table = made_up(100 + n).table
    y = np.r_[np.arange(100) % 2, np.arange(n) < right].astype(np.int64)
    found = domains_of(replace(table, y=y, tasks=np.repeat(["first", "second"], [100, n])))
    assert found[0] == ("task" if known else "")
