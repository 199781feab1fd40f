"""The stage heads find what was planted, and none is used where there is nothing to find."""

import numpy as np
import planted_stages
from numpy.typing import NDArray
from planted_stages import CYCLE_TOKENS, PLACE, PRICE, T, blank_rows, cycles_with, fix, planted_critics, planted_cycles

from metaprobe.training.common.calibrate import sigmoid
from research.stages.data import Cycles
from research.stages.fit import fit_stages
from research.stages.train import PointStudy, study_stages
from research.stages.ways import LEARNED, ORACLE, RULE, learned_critics, learned_stops

planted = planted_stages.planted


def chances(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, T): P(right) after each cycle."""
    right = [np.full(len(x), 0.5)]
    for _ in range(T - 1):
        right.append(right[-1] + (1 - right[-1]) * fix(x) - right[-1] * fix(-x))
    return np.stack(right, axis=1)


def regret(stops: NDArray[np.intp], x: NDArray[np.float64]) -> float:
    """Against who knows every probability."""
    value = chances(x) - PRICE * CYCLE_TOKENS * np.arange(1, T + 1) / 1000
    return float((value.max(axis=1) - value[np.arange(len(x)), stops]).mean())


def test_the_continue_heads_regret_falls_to_the_oracles_with_more_problems() -> None:
    test, x = planted_cycles(3000, seed=9)
    regrets = [
        np.mean([regret(learned_stops(fit_stages(planted_cycles(n, seed)[0]), test, PRICE), x) for seed in range(2)])
        for n in (40, 500)
    ]
    fixed = min(regret(np.full(len(x), stop), x) for stop in range(T))
    assert fixed > 0.15, "there is something to learn"
    assert regrets[1] < 0.01
    assert regrets[1] < regrets[0] < fixed


def test_a_head_that_finds_what_was_planted_wins_and_is_used(planted: tuple[Cycles, dict[str, PointStudy]]) -> None:
    _, studies = planted
    study = studies["iterate"]
    assert study.used
    assert all(gain.low > 0 for way, gain in study.gains.items() if way != ORACLE)
    assert study.gains[ORACLE].high <= 0, "nothing is better than the oracle"
    assert study.ways[LEARNED].correct.mean() > study.ways[RULE].correct.mean() + 0.1


def test_where_outcomes_have_nothing_to_do_with_the_answers_no_head_is_used() -> None:
    rng = np.random.default_rng(3)
    data = cycles_with(blank_rows(150, rng), (rng.random((150, T)) < 0.4).astype(float))
    studies = study_stages(data, token_price=PRICE, folds=3, seeds=1, use=["budget"])
    assert [point for point, study in studies.items() if study.used] == ["budget"], "which was asked for"
    assert studies["budget"].why.startswith("it was asked for, though its head was not better than")
    assert all("not better than" in study.why for study in studies.values())


def test_the_selection_head_returns_the_answer_that_was_planted_as_right() -> None:
    rng = np.random.default_rng(4)
    rows = blank_rows(300, rng)
    signal = rng.normal(size=(300, T))
    rows[:, -1, :, PLACE["last_logprob"]] = signal
    data = cycles_with(rows, (rng.random((300, T)) < sigmoid(4 * signal)).astype(float))
    study = study_stages(data, token_price=PRICE, folds=3, seeds=1)["select"]
    assert study.used
    assert study.ways[LEARNED].correct.mean() > 0.9 * study.ways[ORACLE].correct.mean()


def test_the_stage_heads_hear_the_critics_where_they_help_and_spare_them_elsewhere() -> None:
    data, _ = planted_critics(300, seed=5)
    test, p = planted_critics(3000, seed=6)
    value = p - PRICE * test.tokens / 1000
    chosen = learned_critics(fit_stages(data), test, PRICE)
    regret = float((value.max(axis=1) - value[np.arange(len(p)), chosen]).mean())
    assert regret < 0.02
    assert float((value.max(axis=1) - value[:, 2]).mean()) > 0.15, "hearing them always is not as good"
    study = study_stages(data, token_price=PRICE, folds=3, seeds=1)["regulate"]
    assert study.used
