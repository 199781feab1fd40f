"""Tests that the measured pages count what their words say: whole groups, Holm's correction, draws that learned."""

from dataclasses import replace

import numpy as np
import pytest
from panel_worlds import panels

from research.agreement.measure import DRAWS, MOST_DRAWS, stores_calibrated
from research.production.gate import looks_told
from research.routing.measure import TEST, end_of_stream, group_splits, over_fixed, rate_errors


def test_no_group_of_questions_is_both_learned_from_and_judged_on() -> None:
    data = panels(np.zeros((300, 1)), np.ones((300, 1)))
    data = replace(data, groups=tuple(f"g{row // 7 if row < 200 else row}" for row in range(len(data))))
    groups = np.array(data.groups)
    for train, test, _ in group_splits(data, 100, 5):
        assert set(groups[train]).isdisjoint(groups[test])
        assert len(train) == 100
        assert TEST * len(data) - 7 <= len(test) <= TEST * len(data)


def test_questions_without_a_common_group_are_split_one_by_one() -> None:
    data = panels(np.zeros((100, 1)), np.ones((100, 1)))
    data = replace(data, groups=tuple(f"g{row}" for row in range(len(data))))
    order = np.random.default_rng(0).permutation(len(data))
    [(train, test, _)] = group_splits(data, 50, 1)
    assert test.tolist() == sorted(order[:30])
    assert train.tolist() == sorted(order[30:80])


@pytest.mark.parametrize(
    ("gain", "p_holm", "word"), [(0.02, 0.01, "ahead"), (-0.02, 0.01, "behind"), (0.02, 0.2, "tie")]
)
def test_routing_is_counted_by_holm_and_not_by_the_bare_interval(gain: float, p_holm: float, word: str) -> None:
    over = {"plain table": [gain, gain - 0.01, gain + 0.01, p_holm], "its own way": [0.1, 0.05, 0.15, 0.0]}
    kept = {"a set, 200 labels": {"area": {"over": over}}, "another, 200 labels": {"area": None}}
    assert over_fixed(kept) == {("a set, 200 labels", "plain table"): word}


def test_a_long_stream_is_counted_by_what_it_spends_itself() -> None:
    bounds = {"at_most": 0.0, "at_least": 0.0}
    row = {"budget": 2.0, "stated": 2.0, "stream": {"cost": 2.2, **bounds}, "long": {"cost": 2.02, **bounds}}
    assert (end_of_stream(row), end_of_stream(row, "long")) == ("missed", "kept")


def test_rates_are_known_where_all_questions_of_a_dimension_end_alike_and_not_where_they_are_drawn() -> None:
    rng = np.random.default_rng(0)
    dimension = rng.integers(0, 2, 400)
    for score, least, most in ((dimension * 1.0, 0.0, 1e-9), (rng.random(400) < 0.3 + 0.4 * dimension, 0.01, 0.2)):
        values = np.asarray(score, dtype=np.float64)[:, None]
        data = panels(values, np.ones((400, 1)))
        data = replace(data, dimension=dimension, dimensions=("a", "b"), score=values)
        [error] = rate_errors(data, 60, 1)
        assert least <= error <= most


def test_a_store_is_calibrated_only_where_nearly_all_draws_learned() -> None:
    way = "agreement, 100 x 2, adapted by 25 labels"
    stores = {
        str(draws): {"calibration": {way: {"ece": 0.05, "draws": draws}}}
        for draws in (10, MOST_DRAWS - 1, MOST_DRAWS, DRAWS)
    }
    assert stores_calibrated({**stores, "none": {"calibration": {}}}, 25) == 2


def test_looks_of_gates_that_read_the_form_are_told_apart() -> None:
    looks = [{"look": 3, "gain": {"low": 0.1}}, {"look": 5, "gain": {"low": 0.1}}, {"look": 10, "gain": {"low": -0.1}}]
    form = [{"look": at, "over_form": {"low": low}} for at, low in ((3, 0.1), (5, -0.1), (10, 0.1))]
    read = {"report": {"looks": looks}, "reads_question": True, "question": form}
    assert looks_told({"a": read, "b": {**read, "reads_question": False}}) == ({"a": [3, 5]}, 1)
