"""Routing numbers against matrices worked out by hand, against properties, and on a real matrix of nine models."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routed_matrices import CASCADE, HAND, NAN, matrix_of, routed

from metaprobe.eval.routing_controls import always
from metaprobe.eval.routing_performance import (
    Played,
    best_single,
    cheapest,
    compare,
    oracle,
    outcome_of,
    quantile,
    replay,
)
from metaprobe.records.errors import RecordError


def test_every_figure_of_a_cascade_on_four_questions_is_the_one_worked_out_by_hand():
    found = outcome_of(HAND, CASCADE, resamples=50)
    assert found.accuracy.estimate == 0.5  # 1, 1, 0, 0
    assert found.cost_per_1000.estimate == pytest.approx(1000 * (0.001 + 0.003 + 0.003 + 0.011) / 4)
    assert found.latency_ms.estimate == (10 + 30 + 30 + 90) / 4
    assert found.latency_p50_ms.estimate == 30
    assert found.latency_p99_ms.estimate == 90
    assert found.calls.estimate == 7 / 4
    assert found.oracle_regret.estimate == 0.5  # the oracle is right four times
    assert found.single == "c"  # 3 of 4
    assert found.single_regret.estimate == 0.25
    assert found.delegated.estimate == 0.75
    assert found.delegation_precision.estimate == pytest.approx(1 / 3)
    assert found.delegation_recall.estimate == 0.5  # questions 2 and 3 could be rescued
    assert found.harm_rate.estimate == pytest.approx(1 / 3)
    assert found.asked == {"a": 1.0, "b": 0.5, "c": 0.25}
    assert found.kept == {"a": 0.25, "b": 0.5, "c": 0.25}
    assert found.accuracy.groups == 4


def test_a_price_turns_costs_into_score():
    found = outcome_of(HAND, always(HAND, 2), price=50.0, resamples=10)
    # Values at price 50: a 0.95, -0.05, -0.05, 0.95; b 0.9, 0.9, -0.1, -0.1; c 0.5, 0.5, 0.5, -0.5.
    assert found.oracle_regret.estimate == pytest.approx((0.95 + 0.9 + 0.5 + 0.95) / 4 - 0.25)
    assert found.single == "a"
    assert found.single_regret.estimate == pytest.approx(0.45 - 0.25)
    assert [play.kept for play in oracle(HAND, price=50.0)] == [0, 1, 2, 0]


def test_the_oracle_asks_the_cheapest_right_agent_and_the_cheapest_where_none_is_right():
    matrix = matrix_of([[0, 1, 1], [0, 0, 0], [1, 1, 1]], [0.003, 0.002, 0.001])
    assert [play.asked for play in oracle(matrix)] == [(2,), (2,), (2,)]
    assert [play.kept for play in oracle(matrix_of([[0, 1, 1]], [1.0, NAN, NAN]))] == [1]


def test_nothing_delegated_leaves_precision_and_harm_undefined():
    found = outcome_of(HAND, always(HAND, 0), resamples=10)
    assert np.isnan(found.delegation_precision.estimate)
    assert np.isnan(found.harm_rate.estimate)
    assert found.delegation_recall.estimate == 0


def test_what_the_matrix_does_not_hold_is_none_and_what_it_cannot_answer_is_refused():
    partial = matrix_of([[1, NAN], [0, 1]], [[0.001, NAN], [0.001, NAN]])
    found = outcome_of(partial, [Played((0,), 0), Played((1,), 1)], resamples=10)
    assert found.accuracy.estimate == 1
    assert found.cost_per_1000 is found.oracle_regret is found.single is found.delegation_recall is None
    with pytest.raises(RecordError, match="question 0: b is asked"):
        replay(partial, always(partial, 1))
    with pytest.raises(RecordError, match=r"question 1: .*the kept one asked"):
        replay(HAND, [CASCADE[0], Played((0, 1), 2), *CASCADE[2:]])
    with pytest.raises(RecordError, match="distinct agents"):
        replay(HAND, [Played((0, 0), 0)] * 4)
    with pytest.raises(RecordError, match="3 questions were played; the matrix has 4"):
        replay(HAND, CASCADE[:3])
    with pytest.raises(RecordError, match="no recorded cost"):
        compare(partial, always(partial, 0), always(partial, 0), price=1.0)
    for worth in (2, -0.1, np.inf):
        with pytest.raises(RecordError, match="score must be from 0 to 1"):
            matrix_of([[worth]], [0])
    for cost in (-0.001, np.inf):
        with pytest.raises(RecordError, match="cost must be finite and at least 0"):
            matrix_of([[1]], [cost])
    with pytest.raises(RecordError, match="latency must be finite and at least 0"):
        matrix_of([[1]], [2.0], latency=[[-1]])
    assert matrix_of([[1]], [2.0], latency=[[0]]).latency.tolist() == [[0]]
    with pytest.raises(RecordError, match=r"score has shape \(1, 2\); groups and agents say \(3, 2\)"):
        matrix_of([[1, 0]], [0, 0], groups=["x", "y", "z"])
    with pytest.raises(RecordError, match="0 questions and 2 agents: at least one of each"):
        matrix_of(np.zeros((0, 2)), [0, 0])
    with pytest.raises(RecordError, match="question 1: no agent's score is known"):
        matrix_of([[1, NAN], [NAN, NAN]], [0, 0])
    with pytest.raises(RecordError, match="some agents were not asked everything"):
        best_single(partial)
    assert not partial.full
    assert HAND.full


def test_questions_are_taken_with_all_that_belongs_to_them():
    part = HAND.take(np.array([2, 0]))
    assert len(part) == 2
    assert part.score.tolist() == [[0, 0, 1], [1, 1, 1]]
    assert list(part.groups) == ["2", "0"]
    assert HAND.take(np.array([False, False, False, True])).latency.tolist() == [[10, 20, 80]]


def test_of_equals_the_cheapest_agent_is_the_best_and_the_best_one_the_cheapest():
    assert best_single(matrix_of([[1, 1, 0]], [0.002, 0.001, 0.0])) == 1
    assert best_single(matrix_of([[1, 1, 0]], [NAN, 5.0, 0.0])) == 1  # an unknown cost comes last
    assert best_single(HAND, price=50.0) == 0
    assert cheapest(matrix_of([[0, 0.5, 0.4]], [0.001, 0.001, 0.002])) == 1


def test_asking_several_costs_and_takes_the_sum_of_them():
    run = replay(HAND, CASCADE)
    assert run.cost.tolist() == pytest.approx([0.001, 0.003, 0.003, 0.011])
    assert run.latency.tolist() == [10, 30, 30, 90]
    assert run.first.tolist() == [1, 0, 0, 1]
    assert run.kept.tolist() == [0, 1, 1, 2]
    assert run.asked.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 0, 1]]
    found = outcome_of(HAND, CASCADE, price=50.0, single=1, resamples=10)
    assert found.single == "b"
    # Values 0.95, 0.85, -0.15, -0.55 of the cascade; 0.9, 0.9, -0.1, -0.1 of b.
    assert found.single_regret.estimate == pytest.approx((1.6 - 1.1) / 4)
    with pytest.raises(RecordError, match=r"distinct agents from 0 to 2"):
        replay(HAND, [Played((3,), 3), *CASCADE[1:]])
    with pytest.raises(RecordError, match=r"question 2: a is asked.*\(2 such calls\)"):
        replay(matrix_of([[1, 0], [1, 0], [NAN, 0], [NAN, 1]], [0, 0]), [Played((0,), 0)] * 4)


def test_what_was_not_timed_or_priced_has_no_figure():
    untimed = matrix_of([[1, 0], [0, 1]], [0.001, NAN], latency=[[10, 20], [NAN, 20]])
    found = outcome_of(untimed, always(untimed, 0), resamples=10)
    assert found.latency_ms is found.latency_p50_ms is found.latency_p99_ms is None
    assert found.cost_per_1000.estimate == pytest.approx(1.0)
    found = outcome_of(untimed, always(untimed, 1), resamples=10)
    assert found.cost_per_1000 is None
    assert found.latency_ms.estimate == 20
    assert compare(untimed, always(untimed, 1), always(untimed, 0), resamples=10).cost_per_1000 is None


@pytest.mark.parametrize(("questions", "promotable"), [(29, False), (30, True)])
def test_a_policy_is_promoted_from_thirty_groups_on(questions, promotable):
    matrix = matrix_of([[0, 1]] * questions, [0.001, 0.002])
    found = compare(matrix, always(matrix, 1), always(matrix, 0), resamples=20)
    assert (found.value.low, found.promotable) == (1, promotable)


def test_a_gain_is_told_at_the_level_and_price_that_are_asked_for():
    rng = np.random.default_rng(3)
    matrix = matrix_of(rng.random((200, 2)) < [0.4, 0.6], [0.001, 0.003])
    wide, narrow = (
        compare(matrix, always(matrix, 1), always(matrix, 0), price=10.0, level=level) for level in (0.99, 0.8)
    )
    for part in ("value", "score", "cost_per_1000"):
        assert (getattr(wide, part).level, getattr(narrow, part).level) == (0.99, 0.8)
    assert wide.value.low < narrow.value.low
    assert wide.value.estimate == pytest.approx(wide.score.estimate - 10 * 0.002)
    assert wide.cost_per_1000.estimate == pytest.approx(2.0)


def test_intervals_widen_when_questions_come_in_groups_of_copies():
    score = np.random.default_rng(0).integers(0, 2, (60, 1))
    alone = outcome_of(matrix_of(score, [0.001]), [Played((0,), 0)] * 60).accuracy
    copies = matrix_of(np.repeat(score, 9, axis=0), [0.001], groups=np.repeat(np.arange(60), 9))
    grouped = outcome_of(copies, [Played((0,), 0)] * 540).accuracy
    assert grouped.estimate == pytest.approx(alone.estimate)
    assert (grouped.low, grouped.high) == pytest.approx((alone.low, alone.high))
    assert grouped.groups == 60


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), min_size=1, max_size=30), st.floats(0.01, 1))
def test_a_weighted_quantile_is_numpys_of_the_copies(rows, part):
    values, counts = np.array([*rows, (7, 1)]).T
    repeated = np.repeat(values, counts)
    assert quantile(part)(values, values, counts) == np.quantile(repeated, part, method="inverted_cdf")


@settings(max_examples=40)
@given(routed(), st.sampled_from([0.0, 1.0, 100.0]))
def test_no_policy_beats_the_oracle_and_delegation_accounts_for_what_it_changes(case, price):
    matrix, played = case
    found = outcome_of(matrix, played, price=price, resamples=5)
    assert found.oracle_regret.estimate >= -1e-12
    assert found.oracle_regret.low >= -1e-12
    assert outcome_of(matrix, oracle(matrix, price=price), price=price, resamples=5).oracle_regret.estimate == 0
    best = outcome_of(matrix, always(matrix, best_single(matrix, price=price)), price=price, resamples=5)
    assert best.single_regret.estimate == 0
    if found.delegated.estimate:
        changed = found.delegated.estimate * (found.delegation_precision.estimate - found.harm_rate.estimate)
        assert replay(matrix, played).first.mean() + changed == pytest.approx(found.accuracy.estimate)
    assert sum(found.kept.values()) == pytest.approx(1)
    assert sum(found.asked.values()) == pytest.approx(found.calls.estimate)


# Curves


# Controls


# Comparison


# Nine real models
