"""Bias scores and agreement with human grades follow the published formulas and find what was planted."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from outside_rows import DATA, bbq_row, items_of, real_data, rows
from scripted import ScriptedLLM, run_once
from sklearn.metrics import cohen_kappa_score

from metaprobe.eval.metrics.agreement import quadratic_weighted_kappa
from metaprobe.eval.metrics.bias import (
    ambiguous_bias_score,
    bias_score,
    polarity_gap,
    stereotype_score,
)
from metaprobe.pipelines import SYSTEMS
from metaprobe.records.answers import final_answer
from metaprobe.records.correctness import is_correct
from metaprobe.records.errors import RecordError
from metaprobe.tasks import TASKS, load_task
from metaprobe.tasks.grading import grade
from metaprobe.tasks.honest import WordList
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
    assert stereotype_score([-1, -2, -3, -4], [-2, -1, -4, -4]) == pytest.approx(2.5 / 4)
    assert polarity_gap([1, 1, 0, 0], [0.5, 0.1, 0.2, -0.2]) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="lean must hold -1, 0 and 1 only; 1 of 2"):
        bias_score([0, 1], [2, -1])
    for metric in (bias_score, ambiguous_bias_score, stereotype_score, polarity_gap):
        with pytest.raises(ValueError, match=r"same shape; got \(2,\) and \(3,\)"):
            metric([0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="1 of 2 grades are missing"):
        quadratic_weighted_kappa([2, float("nan")], [2, 2])
    assert ambiguous_bias_score([1, 1], [0, 0]) == 0  # all say "unknown", as is right: nobody leans
    assert np.isnan(bias_score([1, 1], [0, 0]))
    assert np.isnan(polarity_gap([1, 1], [0.5, 0.1]))


@pytest.mark.parametrize("metric", [bias_score, ambiguous_bias_score, polarity_gap, quadratic_weighted_kappa])
def test_weights_are_repetitions(metric: Any) -> None:
    rng = np.random.default_rng(3)
    y, score = rng.integers(0, 2, 50), rng.integers(-1, 2, 50)
    weight = rng.integers(0, 4, (3, 50))
    for value, row in zip(metric(y, score, weight), weight, strict=True):
        assert value == pytest.approx(metric(np.repeat(y, row), np.repeat(score, row)))


def test_crows_pairs_are_scored_by_the_likelihood_of_each_sentence_as_plain_text() -> None:
    items = items_of("crows-pairs", 10)
    llm = ScriptedLLM({})  # -0.5 a word, and `sent_less` has one word more
    runs = [run_once(SYSTEMS["likelier-choice"], item, llm) for item in items]
    assert all(not call.messages for run in runs for call in run.calls)
    assert TASKS["crows-pairs"].score(items, [run.final_answer for run in runs])["stereotype score"].estimate == 1
    assert TASKS["crows-pairs"].score(items, [i.fields["sent_less"] for i in items])["stereotype score"].estimate == 0


def test_bold_and_honest_take_a_classifier_and_find_what_was_planted() -> None:
    bold = items_of("bold")
    answers = ["good" if item.dimension == "female" else "bad" for item in bold]
    gap = TASKS["bold"].score(bold, answers, polarity=lambda text: 1.0 if text == "good" else -1.0)
    assert gap["polarity gap"].estimate == 2
    assert (gap["polarity, female"].estimate, gap["polarity, male"].estimate) == (1, -1)
    assert gap["polarity, male"].n == sum(item.dimension == "male" for item in bold)
    men = [item for item in bold if item.dimension == "male"]
    assert set(TASKS["bold"].score(men, ["bad"] * len(men), polarity=lambda _: 0.0)) == {
        "polarity, male", "polarity gap"
    }  # fmt: skip
    honest = items_of("honest")
    hurt = TASKS["honest"].score(honest, ["Old Fool!", "nice"] * 150, hurtful=WordList(["old fool", "brute"]))
    assert hurt["HONEST score"].estimate == 0.5
    with pytest.raises(TypeError, match="hurtful"):
        TASKS["honest"].score(honest, [""] * 300)


def test_word_lists_are_read_from_lines_and_from_hurtlex(tmp_path: Path) -> None:
    plain, table = tmp_path / "words.txt", tmp_path / "hurtlex.tsv"
    plain.write_text("brute\nold fool\n", encoding="utf-8")
    table.write_text(
        "id\tpos\tcategory\tstereotype\tlemma\tlevel\n1\tn\tre\tno\told fool\tinclusive\n", encoding="utf-8"
    )
    assert WordList.read(plain).phrases == {("brute",), ("old", "fool")}
    assert WordList.read(table)("an Old fool.") == 1
    assert WordList.read(table)("an old man, a fool") == 0
    with pytest.raises(RecordError, match="empty"):
        WordList([])
    with pytest.raises(RecordError, match=r"nosuch\.txt: there is no such file"):
        WordList.read(tmp_path / "nosuch.txt")
    table.write_text("id\tlemma\n1\n2\tbrute\n3\told fool\tx\n", encoding="utf-8")
    assert WordList.read(table).phrases == {("brute",), ("old", "fool")}  # a row that is cut short is passed over
    assert WordList(["x"])("") == 0
    assert WordList(["b c"])("a b c") == 1


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
