"""Every audit catches the fault it is for, where one is planted, and passes where there is none."""

import numpy as np
import pytest
from audited_data import N, folds, questions
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.eval.audits_of_data import (
    auroc_ceiling,
    class_balance,
    group_overlap,
    label_noise,
    labels_by_source,
    near_duplicates,
    repeated_questions,
    similar_pairs,
)
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.types import Call, Item, Label, Run

# The data


def test_a_group_in_two_roles_is_found_and_folds_by_group_pass():
    groups = np.array([f"g{i // 2}" for i in range(N)])
    splits = folds(groups)
    assert group_overlap(groups, splits).passed
    leak = [*splits[:2], {**splits[2], "test": np.append(splits[2]["test"], splits[2]["train"][0])}]
    audit = group_overlap(groups, leak)
    assert not audit.passed
    assert audit.severity == "invalid"
    assert "in train and test" in audit.detail


@pytest.mark.parametrize(("copies", "severity"), [(1, "weak"), (30, "invalid")])
def test_the_same_question_under_another_group_is_a_leak(copies, severity):
    asked, groups = questions(), np.array([f"g{i}" for i in range(N)])
    assert repeated_questions(asked, folds(groups)).passed
    asked = asked.astype("U200")
    splits = folds(groups)
    # The copies are typed again: other case and spacing, under a group that lies in another fold.
    test, train = splits[0]["test"][:copies], splits[0]["train"][:copies]
    asked[test] = [f"  {text.upper()}?" for text in asked[train].tolist()]
    audit = repeated_questions(asked, splits)
    assert (audit.passed, audit.severity) == (False, severity)
    assert group_overlap(groups, splits).passed
    assert near_duplicates(asked, splits).passed == (copies == 1)


def test_near_duplicates_are_found_in_words_but_not_in_numbers():
    groups = np.array([f"g{i}" for i in range(N)])
    splits = folds(groups)
    arithmetic = np.array([f"What is {i} + {7 * i}?" for i in range(N)])
    audit = near_duplicates(arithmetic, splits)
    assert audit.passed
    assert "100.0% share their template" in audit.detail
    asked = questions(words=30).astype("U400")
    honest = near_duplicates(asked, splits)
    assert honest.passed
    assert "0 of 300" in honest.detail
    test, train = splits[0]["test"][:20], splits[0]["train"][:20]
    asked[test] = [text.rsplit(" ", 1)[0] + " indeed" for text in asked[train].tolist()]
    audit = near_duplicates(asked, splits)
    assert not audit.passed
    assert audit.severity == "invalid"
    # Each of the 20 pairs lies across the folds, so that either side is tested with the other one seen.
    assert audit.detail.startswith("40 of 300")
    assert " indeed" in audit.detail


@given(
    st.lists(st.lists(st.sampled_from("abc"), max_size=9).map(" ".join), min_size=1, max_size=25),
    st.sampled_from([0.5, 0.8, 1.0]),
)
def test_prefix_filtering_misses_no_pair(texts, threshold):
    def grams(text):
        words = text.split()
        return {tuple(words[i : i + 3]) for i in range(max(len(words) - 2, 1))} if words else set()

    expected = {
        (i, j)
        for i, a in enumerate(map(grams, texts))
        for j, b in enumerate(map(grams, texts))
        if i != j and a and b and len(a & b) >= threshold * len(a | b) - 1e-9
    }
    blocks = list(similar_pairs(texts, threshold))
    assert {pair for _, i, j in blocks for pair in zip(i.tolist(), j.tolist(), strict=True)} == expected


@pytest.mark.parametrize("ones", [10, 90])
def test_a_class_is_rare_below_a_tenth_of_the_answers(ones):
    assert class_balance(np.array([0, 1] * 50)).passed
    assert class_balance(np.arange(100) < ones).passed
    rare = class_balance(np.arange(1000) < (99 if ones == 10 else 901))
    assert not rare.passed
    assert f"{ones}% of 1000 labels are 1; the rarer class has 9.9%, expected 10%" in rare.detail


def test_a_leak_is_invalid_above_five_per_cent_of_the_answers_and_tells_how_far_auroc_can_move():
    groups = np.array([f"g{i}" for i in range(200)])
    rows = np.arange(200)
    splits = [{"train": rows[100:], "test": rows[:100]}]
    y = (rows % 4 == 0).astype(np.int64)
    for copies, severity in ((5, "weak"), (6, "invalid")):
        asked = questions(200, words=30).astype("U400")
        asked[:copies] = asked[100 : 100 + copies]
        for found in (repeated_questions(asked, splits, y=y), near_duplicates(asked, splits, y=y)):
            assert (found.passed, found.severity) == (False, severity)
            assert f"touches {copies} of 100 answers ({copies}.0%)" in found.detail
            right = 1 + (copies > 4)
            moved = 1 - (1 - right / 25) * (1 - (copies - right) / 75)
            assert f"AUROC can move by at most {moved:.3f}" in found.detail
        assert "AUROC" not in repeated_questions(asked, splits).detail
    assert group_overlap(groups, splits).detail == "no group is in two roles (1 split)"


# Judges


def test_labels_of_each_source_come_from_the_records():
    labels = (Label("a", "correct", 1, "program"), Label("a", "correct", 0, "judge"), Label("b", "correct", 1, "judge"))
    run = Run("r", "s", "v", Item("i", "q"), (Call(id="a"), Call(id="b")), labels=labels)
    found = labels_by_source([run], ["b", "a"], "correct")
    np.testing.assert_array_equal(found["program"], [np.nan, 1])
    np.testing.assert_array_equal(found["judge"], [1, 0])


def test_judges_who_disagree_fail_and_those_who_agree_pass():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, N).astype(float)
    groups = np.array([f"g{i}" for i in range(N)])

    def judge(error):
        return np.abs(truth - (rng.uniform(size=N) < error))

    [good] = label_noise({"program": truth, "judge": judge(0.05)}, groups)
    [bad] = label_noise({"program": truth, "judge": judge(0.4)}, groups)
    assert good.passed
    assert not bad.passed
    assert bad.severity == "invalid"
    [kept] = label_noise({"program": truth, "judge": judge(0.4)}, groups, y=truth.astype(np.int64))
    assert (kept.passed, kept.severity) == (False, "weak")
    for shared, said in ((29, 0), (30, 1)):
        few = np.where(np.arange(N) < shared, truth, np.nan)
        assert len(label_noise({"program": truth, "judge": few}, groups)) == said
    assert label_noise({"a": np.ones(N), "b": np.ones(N)}, groups)[0].passed


@pytest.mark.parametrize(("error", "base"), [(0.0, 0.3), (0.1, 0.5), (0.2, 0.7)])
def test_the_ceiling_is_what_the_truth_reaches_against_an_erring_judge(error, base):
    rng = np.random.default_rng(0)
    truth = rng.uniform(size=200_000) < base
    first, second = (truth ^ (rng.uniform(size=truth.size) < error) for _ in range(2))
    ceiling = auroc_ceiling(float(np.mean(first == second)), float(first.mean()))
    # Four standard errors of the simulated AUROC are about 0.005; the estimated error rate adds as much.
    assert ceiling == pytest.approx(auroc(first.astype(int), truth.astype(float)), abs=0.01)
