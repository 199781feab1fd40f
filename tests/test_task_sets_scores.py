"""Bias scores and agreement with human grades follow the published formulas and find what was planted."""

import gzip
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from outside_rows import DATA, bbq_row, items_of, real_data, rows
from sklearn.metrics import cohen_kappa_score

from metaprobe.eval.metrics.agreement import quadratic_weighted_kappa
from metaprobe.records.answers import final_answer
from metaprobe.records.correctness import is_correct
from metaprobe.tasks import TASKS, load_task
from metaprobe.tasks.bbq import ambiguous_bias_score, bias_score
from metaprobe.tasks.graded_essays import grade
from metaprobe.tasks.task import Row

# --- bias


def test_bbq_scores_of_answerers_whose_bias_is_known() -> None:
    items, score = items_of("bbq"), TASKS["bbq"].score
    unknown = "Can't be determined"
    biased = score(items, [item.fields["biased"] for item in items])
    assert (biased["s_DIS"].estimate, biased["s_AMB"].estimate) == (1, 1)
    assert biased["accuracy, ambiguous"].estimate == 0
    opposed = score(items, [item.fields["unbiased"] for item in items])
    assert (opposed["s_DIS"].estimate, opposed["s_AMB"].estimate) == (-1, -1)
    silent = score(items, [unknown] * len(items))
    assert silent["accuracy, ambiguous"].estimate == 1
    assert silent["s_AMB"].estimate == 0
    assert np.isnan(silent["s_DIS"].estimate)
    assert score(items, [item.gold[0] for item in items])["accuracy, disambiguated"].estimate == 1


def test_the_biased_option_of_bbq_is_the_target_of_a_negative_question_and_the_other_of_a_non_negative_one() -> None:
    for item, row in zip(items_of("bbq", 8), rows("bbq", 8), strict=True):
        target = row.values["choices"][row.values["answer_groups"].index("old")]
        negative = row.values["question_polarity"] == "neg"
        assert item.fields["biased" if negative else "unbiased"] == target


def test_bbq_finds_the_target_by_name_where_the_group_does_not_tell_and_gives_up_where_nothing_does() -> None:
    row = bbq_row(1) | {"id": "n", "answer_groups": ["Africa", "Europe", "unknown"], "stereotyped_groups": ["old"]}
    assert TASKS["bbq"].made([Row(row, "")], 1, "test")[0].fields["biased"] == "The old man"
    row["stereotyped_groups"] = ["Kenyan"]
    assert TASKS["bbq"].made([Row(row, "")], 1, "test")[0].fields == {"biased": "", "unbiased": ""}


def test_bias_scores_follow_the_published_formulas() -> None:
    lean = [1, 1, 1, -1, 0, 0]  # 3 biased of 4 not unknown: 2 * 3/4 - 1
    assert bias_score([0] * 6, lean) == pytest.approx(0.5)
    assert ambiguous_bias_score([0, 0, 0, 0, 1, 1], lean) == pytest.approx((1 - 2 / 6) * 0.5)
    with pytest.raises(ValueError, match="lean must hold -1, 0 and 1 only; 1 of 2"):
        bias_score([0, 1], [2, -1])
    for metric in (bias_score, ambiguous_bias_score):
        with pytest.raises(ValueError, match=r"same shape; got \(2,\) and \(3,\)"):
            metric([0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="1 of 2 grades are missing"):
        quadratic_weighted_kappa([2, float("nan")], [2, 2])
    assert ambiguous_bias_score([1, 1], [0, 0]) == 0  # all say "unknown", as is right: nobody leans
    assert np.isnan(bias_score([1, 1], [0, 0]))


@pytest.mark.parametrize("metric", [bias_score, ambiguous_bias_score, quadratic_weighted_kappa])
def test_weights_are_repetitions(metric: Any) -> None:
    rng = np.random.default_rng(3)
    y, score = rng.integers(0, 2, 50), rng.integers(-1, 2, 50)
    weight = rng.integers(0, 4, (3, 50))
    for value, row in zip(metric(y, score, weight), weight, strict=True):
        assert value == pytest.approx(metric(np.repeat(y, row), np.repeat(score, row)))


# --- agreement with human grades


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=40))
def test_kappa_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    human, judge = (list(side) for side in zip(*pairs, strict=True))
    assume(len({*human, *judge}) > 1)
    theirs = cohen_kappa_score(human, judge, weights="quadratic", labels=range(6))
    assert quadratic_weighted_kappa(human, judge) == pytest.approx(theirs, abs=1e-12)


def test_asap_sets_are_scored_apart_and_unreadable_grades_left_out() -> None:
    items = items_of("asap", 40)
    scores = TASKS["asap"].score(items, [item.gold[0] if item.dimension == "set 8" else "9" for item in items])
    assert scores["quadratic weighted kappa, set 8"].estimate == pytest.approx(1)
    assert "quadratic weighted kappa, set 7" not in scores
    edges = {"0": "set 7", "3": "set 7", "1": "set 8", "6": "set 8", "-1": "", "4": "set 8", "7": "", "2.5": ""}
    for answer, dimension in edges.items():
        legal = {item.dimension for item in items if grade(item, answer) is not None}
        assert (dimension in legal) if dimension else not legal
    assert scores["accuracy"].estimate == pytest.approx(0.6)


# --- GSM8K as others scored it


@real_data
def test_scoring_agrees_with_the_recorded_labels_of_four_models_on_gsm8k() -> None:
    items = {item.id: item for item in load_task("gsm8k", split="test", data=DATA)}
    differ = checked = 0
    with gzip.open(DATA / "gsm8k" / "model_solutions.jsonl.gz", "rt", encoding="utf-8") as file:
        for record in map(json.loads, file):
            item = items[record["id"]]
            for model in record["models"].values():
                checked += 1
                differ += is_correct(item, final_answer(item, model["solution"])) != bool(model["correct"])
    assert checked > 2000
    assert differ == 0
