"""The comparison: planted truths in its sections, and what it says of really recorded runs."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from scipy.stats import norm

from metaprobe.eval.compare import (
    BEST_BASELINE,
    STATED,
    Judged,
    PolicyOutcomes,
    accuracy_rows,
    method_results,
    policy_results,
    run_of_answers,
    trajectories,
)
from metaprobe.eval.compare_details import add_details, level_ranks, ordinal_outcome
from metaprobe.eval.compare_difficulty import at_equal_difficulty, difficulty_strata, overconfidence
from metaprobe.eval.compare_efficiency import NotTwoChoice, Responses, metacognitive_efficiency, two_choice_responses
from metaprobe.eval.compare_items import write_item_table
from metaprobe.eval.compare_pairs import pair_tests
from metaprobe.eval.coupling import coupling
from metaprobe.eval.metrics.delong import delong_test
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.ordinal import spearman
from metaprobe.eval.results import Comparison
from metaprobe.eval.systems import metacrit
from metaprobe.eval.systems.mgv import EVALUATIONS
from metaprobe.eval.table import AnswerTable, answer_table
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Statement
from metaprobe.training.comparison.write_comparison import write_comparison
from metaprobe.training.crossfit.methods import LADDER
from metaprobe.training.crossfit.study import study

RECORDED = Path(__file__).parent.parent / "recorded"
N = 600
LEVELS = np.array(["easy", "medium", "hard"])
RIGHT = np.array([0.85, 0.5, 0.15])
"""By level."""
LENGTH = "length"
"""A control."""


def answers(*, groups=None, seed=0) -> AnswerTable:
    """Answers whose rightness depends on the level; stated confidence knows the level and nothing else."""
    rng = np.random.default_rng(seed)
    level = np.arange(N) % 3
    names = np.array([f"c{i}" for i in range(N)])
    logprobs = np.empty(N, dtype=object)
    logprobs[:] = [np.zeros(1, np.float32)] * N
    return AnswerTable(
        call_ids=names,
        items=names,
        tasks=np.full(N, "t"),
        groups=names if groups is None else groups,
        variants=np.full(N, "v"),
        dimensions=np.full(N, "d"),
        levels=LEVELS[level],
        questions=names,
        models=np.full(N, "m"),
        y=(rng.uniform(size=N) < RIGHT[level]).astype(np.int64),
        stated_difficulty=np.full(N, np.nan),
        stated_confidence=np.array([0.9, 0.8, 0.7])[level],
        p_true=np.full(N, np.nan),
        logprobs=logprobs,
        tokens=np.ones(N, dtype=np.int64),
        cut=np.zeros(N, dtype=bool),
    )


def judges(table: AnswerTable, *, seed=1) -> list[Judged]:
    """Stated confidence, a baseline that knows nothing, and a method that knows the answer a little."""
    noise = np.random.default_rng(seed).normal(size=(2, len(table)))
    knows = table.y + noise[0]
    return [
        Judged(STATED, "explicit", table.stated_confidence, table.stated_confidence, 1.0),
        Judged(LADDER, "learned", 1 / (1 + np.exp(0.5 - knows)), knows, 1.0),
        Judged(LENGTH, "plain", np.full(len(table), table.y.mean()), noise[1], 1.0),
    ]


def logistic(score):
    return 1 / (1 + np.exp(-score))


def test_a_method_that_beats_the_row_chosen_in_folds_is_held_against_the_control_that_row_missed():
    """0.72 for the row, 0.76 for one of its own candidates: what beats the first has not beaten the second."""
    table = answers()
    rng = np.random.default_rng(2)
    cut = table.y + rng.normal(size=N)
    learned = cut + 0.02 * rng.normal(size=N)  # knows what being cut tells, and no more
    row = np.where(np.arange(N) % 5 < 2, rng.normal(size=N), cut)  # two folds of five chose badly
    scores = {LADDER: ("learned", learned), "cut by max_tokens": ("plain", cut), BEST_BASELINE: ("plain", row)}
    judged = [Judged(name, family, logistic(score), score, 1.0) for name, (family, score) in scores.items()]
    trees, cut_result, row_result = method_results(table, judged, resamples=300)
    assert trees.auroc.estimate - row_result.auroc.estimate > 0.05
    assert [control.name for control in trees.controls.controls] == ["cut by max_tokens"]
    assert trees.controls.strongest.estimate == cut_result.auroc.estimate
    assert not trees.controls.beaten
    assert trees.diff_control == trees.controls.strongest.difference
    assert cut_result.diff_control is None
    assert cut_result.controls is None
    assert row_result.diff_control.high < 0


def test_a_score_that_only_tells_runs_apart_is_at_chance_within_runs():
    table = answers()
    model = np.where(np.arange(N) % 2, "good", "bad")
    right = (np.random.default_rng(3).uniform(size=N) < np.where(model == "good", 0.9, 0.1)).astype(np.int64)
    table = replace(table, models=model, y=right)
    assert sorted(np.unique(run_of_answers(table))) == [0, 1]
    knows_run = (model == "good").astype(float)
    judged = [
        Judged(LADDER, "learned", 0.1 + 0.8 * knows_run, knows_run, 1.0),
        Judged(LENGTH, "plain", np.full(N, 0.5), np.random.default_rng(4).normal(size=N), 1.0),
    ]
    trees = method_results(table, judged, resamples=200)[0]
    assert trees.auroc.low > 0.85
    assert trees.controls.beaten
    assert trees.within_runs.estimate == 0.5
    assert not trees.controls_within.beaten
    alone = method_results(answers(), judges(answers()), resamples=50)[0]
    assert alone.within_runs is None
    assert alone.controls_within is None


def test_stated_confidence_is_measured_as_stated_and_as_recalibrated():
    table = answers()
    share = table.y.mean()
    silent = np.arange(N) >= 400
    table = replace(table, stated_confidence=np.where(silent, np.nan, 0.9))
    constant = Judged(STATED, "explicit", np.full(N, share), np.full(N, 0.9), 2 / 3)
    (found,) = method_results(table, [constant], resamples=50)
    assert found.stated.mean == pytest.approx(0.9)
    assert found.stated.accuracy == table.y[:400].mean()
    assert found.stated.ece.estimate == pytest.approx(0.9 - table.y[:400].mean())
    assert found.stated.ece.n == 400  # of the answers that have a number
    assert found.ece.estimate == pytest.approx(0, abs=1e-9)
    assert found.stated.brier_skill.high < 0
    assert [b.n for b in found.stated.reliability] == [400]


def test_confidence_that_only_tracks_the_level_is_chance_at_equal_difficulty():
    table = answers()
    judged = judges(table)
    assert auroc(table.y, judged[0].ranking) > 0.75
    found = at_equal_difficulty(table, judged, difficulty_strata(table), resamples=100)
    assert found.by == "level"
    assert [s.name for s in found.strata] == LEVELS.tolist()
    assert [s.accuracy for s in found.strata] == pytest.approx(RIGHT, abs=0.08)
    stated, learned, plain = found.methods
    assert stated.auroc.estimate == 0.5
    assert stated.diff_stated is None
    assert learned.auroc.low > 0.65
    assert learned.diff_stated.low > 0.1
    assert plain.auroc.low < 0.5 < plain.auroc.high
    assert [round(i.estimate, 6) for i in stated.by_stratum] == [0.5] * 3


def test_items_without_levels_are_sorted_by_an_estimate_that_comes_from_other_folds():
    table = replace(answers(), levels=np.full(N, ""))
    assert difficulty_strata(table) is None
    knows = (RIGHT[np.arange(N) % 3] + np.linspace(0, 0.1, N)) / 2
    words = Judged("prompt TF-IDF", "plain", knows, knows, 1.0)
    strata = difficulty_strata(table, estimate=words)
    assert "prompt TF-IDF" in strata.by
    assert np.bincount(strata.member).tolist() == [N // 5] * 5
    assert strata.names[strata.member[2]] == "5 of 5, hardest"  # least likely right
    guesses = replace(words, probability=np.random.default_rng(0).uniform(size=N))
    assert difficulty_strata(table, estimate=guesses) is None


def test_overconfidence_is_confidence_minus_accuracy_and_grows_with_the_level():
    table = answers()
    silent = np.arange(N) >= 300
    table = replace(table, stated_confidence=np.where(silent, np.nan, table.stated_confidence))
    rows = {(row.method, row.level): row for row in overconfidence(table, judges(table), None, resamples=100)}
    stated = rows[STATED, "all"]
    assert (stated.stated, stated.gap.n) == (True, 300)  # of the answers with a statement
    assert stated.gap.estimate == pytest.approx(0.8 - table.y[:300].mean())
    gaps = [rows[STATED, level].gap for level in LEVELS]
    assert gaps == sorted(gaps, key=lambda gap: gap.estimate)
    assert gaps[2].low > 0.35
    assert not rows[LADDER, "all"].stated
    assert rows[LADDER, "all"].confidence == pytest.approx(judges(table)[1].probability.mean())
    assert rows[LADDER, "all"].accuracy == table.y.mean()
    assert (LENGTH, "all") not in rows


def test_overconfidence_is_told_of_every_level_and_method_that_has_a_number():
    table = answers()
    hard = table.levels == "hard"
    said = np.where(hard, np.nan, table.stated_confidence)
    plain, stated, learned = (judges(table)[at] for at in (2, 0, 1))
    rows = overconfidence(replace(table, stated_confidence=said), [plain, stated, learned], None, resamples=20)
    assert [(row.method, row.level) for row in rows] == [
        (STATED, "all"), (STATED, "easy"), (STATED, "medium"),
        (LADDER, "all"), (LADDER, "easy"), (LADDER, "medium"), (LADDER, "hard"),
    ]  # fmt: skip
    other = replace(table, levels=np.where(hard, "", np.where(table.levels == "easy", "cross", "odd")))
    rows = overconfidence(other, [stated], None, resamples=20)
    assert [row.level for row in rows] == ["all", "cross", "no level", "odd"]
    flat = replace(table, levels=np.full(N, "easy"))
    halves = difficulty_strata(replace(table, levels=np.where(hard, "hard", "easy")))
    assert [row.level for row in overconfidence(flat, [stated], halves, resamples=20)] == ["all", "easy", "hard"]
    assert [row.level for row in overconfidence(flat, [stated], None, resamples=20)] == ["all"]


def test_strata_are_cells_of_what_differs_in_the_order_of_difficulty():
    table = answers()
    mixed = replace(table, dimensions=np.where(np.arange(N) < 300, "sums", "facts"))
    found = difficulty_strata(mixed)
    assert found.by == "dimension x level"
    assert found.names == tuple(f"{d} / {level}" for d in ("facts", "sums") for level in LEVELS)
    assert found.names[found.member[0]] == "sums / easy"
    alone = difficulty_strata(replace(mixed, levels=np.full(N, "easy")))
    assert (alone.by, alone.names) == ("dimension", ("facts", "sums"))
    assert difficulty_strata(table).names == tuple(LEVELS)


def test_an_estimate_that_takes_all_questions_for_equal_gives_no_strata():
    table = replace(answers(), levels=np.full(N, ""))
    hard = np.arange(N) % 3 == 2
    two = Judged("words", "plain", np.where(hard, 0.2, 0.7), np.where(hard, 0.2, 0.7), 1.0)
    assert difficulty_strata(table, estimate=two).names == ("1 of 2, easiest", "2 of 2, hardest")
    same = Judged("words", "plain", np.full(N, 0.5), np.full(N, 0.5), 1.0)
    assert difficulty_strata(table, estimate=same) is None


def test_a_stratum_of_one_class_has_no_auroc_and_without_statements_nothing_is_compared_with_them():
    table = answers()
    table = replace(table, y=np.where(table.levels == "easy", 1, table.y))
    learned = judges(table)[1]
    (found,) = at_equal_difficulty(table, [learned], difficulty_strata(table), resamples=20).methods
    assert found.diff_stated is None
    assert found.by_stratum[0] is None
    medium = table.levels == "medium"
    assert found.by_stratum[1].estimate == auroc(table.y[medium], learned.ranking[medium])


def test_pairs_are_tested_by_delong_where_answers_are_independent_and_by_the_bootstrap_else():
    table = answers()
    found = pair_tests(table, judges(table))
    assert {pair.test for pair in found} == {"DeLong"}
    # each pair once, though both are references
    assert [(p.method, p.reference) for p in found] == [
        (LADDER, STATED), (LENGTH, STATED), (LADDER, LENGTH),
    ]  # fmt: skip
    assert all(pair.p_holm >= pair.p for pair in found)
    in_pairs = replace(table, groups=np.array([f"g{i // 2}" for i in range(N)]))
    clustered = pair_tests(in_pairs, judges(table))
    assert {pair.test for pair in clustered} == {"clustered bootstrap"}
    for one in found:
        assert one.difference.level == 0.95
        half = one.difference.high - one.difference.estimate
        error = delong_test(table.y, *(next(m.ranking for m in judges(table) if m.name == name)
                                       for name in (one.method, one.reference))).standard_error  # fmt: skip
        assert half == pytest.approx(norm.ppf(0.975) * error)
    for one, other in zip(found, clustered, strict=True):
        # the pairs are independent in truth, so that both must come to about the same
        assert one.difference.estimate == pytest.approx(other.difference.estimate)
        assert one.difference.low == pytest.approx(other.difference.low, abs=0.02)


def test_a_method_that_is_its_own_reference_in_disguise_differs_by_nothing():
    table = answers(groups=np.array([f"g{i // 2}" for i in range(N)]))
    judged = [*judges(table), Judged("same", "explicit", table.stated_confidence, table.stated_confidence, 1.0)]
    same = next(pair for pair in pair_tests(table, judged, resamples=50) if pair.method == "same")
    assert (same.difference.estimate, same.p, same.p_holm) == (0, 1, 1)


def test_details_fill_every_figure_and_correlate_with_the_level_or_a_graded_label():
    table = answers()
    judged = judges(table)
    level = ordinal_outcome(table, {})
    assert level.name == "ease of the item's level"
    results = method_results(table, judged, resamples=20)
    stated, learned, _ = add_details(table, judged, results, ordinal=level, resamples=20)
    assert stated.spearman.estimate == pytest.approx(1)
    assert stated.kendall.estimate == pytest.approx(1)
    assert learned.brier.estimate == pytest.approx(np.mean((judged[1].probability - table.y) ** 2))
    assert [at.risk for at in learned.coverage_at] == [0.05, 0.1, 0.2]
    shares = [at.coverage.estimate for at in learned.coverage_at]
    assert shares == sorted(shares)
    assert learned.prr.estimate > 0.2
    grades = np.where(np.arange(N) % 4 == 0, np.nan, table.y + np.arange(N) % 2)
    graded = ordinal_outcome(table, {"quality": grades, "correct": table.y.astype(float)})
    assert graded.name == "label 'quality'"
    _, learned, _ = add_details(table, judged, results, ordinal=graded, resamples=20)
    known = np.isfinite(grades)
    assert learned.spearman.n == known.sum()
    assert learned.spearman.estimate == pytest.approx(spearman(grades[known], judged[1].ranking[known]))
    assert ordinal_outcome(replace(table, levels=np.full(N, "cross")), {}) is None


def test_levels_are_ranked_by_name_or_number_and_what_is_no_level_has_none():
    found = level_ranks(np.array(["easy", "medium", "hard", "3", "level 12", "cross", "", "  ", "x"]))
    assert found[:5].tolist() == [0, 1, 2, 3, 12]
    assert np.isnan(found[5:]).all()


def test_a_correlation_needs_thirty_answers_with_more_than_two_grades():
    table = answers()
    flat = replace(table, levels=np.full(N, "easy"))
    for graded, told_ in ((29, False), (30, True)):
        grades = np.where(np.arange(N) < graded, np.arange(N) % 3, np.nan)
        assert (ordinal_outcome(flat, {"g": grades}) is not None) == told_
        few = replace(table, levels=np.where(np.arange(N) < graded, table.levels, "cross"))
        assert (ordinal_outcome(few, {}) is not None) == told_
    two = np.arange(N) % 2.0
    assert ordinal_outcome(flat, {"g": two}) is None
    most = {"fewer": np.where(np.arange(N) < 300, np.arange(N) % 3, np.nan), "more": np.arange(N) % 3.0}
    assert ordinal_outcome(flat, most).name == "label 'more'"
    _, learned, _ = add_details(flat, judges(flat), method_results(flat, judges(flat), resamples=5), resamples=5)
    assert learned.spearman is learned.kendall is None


def test_accuracy_is_told_of_each_cell_in_its_order_and_of_all():
    table = answers()
    hard = table.levels == "hard"
    mixed = replace(
        table,
        levels=np.where(hard, "cross", np.where(table.levels == "medium", "odd", "easy")),
        variants=np.where(np.arange(N) % 2, "b", "a"),
    )
    rows = accuracy_rows(mixed)
    assert [(row.dimension, row.level) for row in rows] == [
        ("d", "easy"), ("d", "cross"), ("d", "odd"), ("all", "all")
    ]  # fmt: skip
    assert list(rows[0].by_variant) == ["a", "b"]
    cell = (mixed.levels == "cross") & (mixed.variants == "b")
    assert (rows[1].by_variant["b"].accuracy, rows[1].by_variant["b"].n) == (mixed.y[cell].mean(), cell.sum())
    assert rows[-1].by_variant["a"].n == N / 2
    assert trajectories(replace(table, y=np.ones(N, dtype=np.int64))) is None
    assert trajectories(replace(table, y=np.zeros(N, dtype=np.int64))) is None
    assert trajectories(table).correct.n == table.y.sum()


def test_what_a_policy_costs_and_reaches_are_means_over_the_items():
    outcomes = PolicyOutcomes(
        "p", np.array([1.0, 0.0, 1.0, 1.0]), np.array([5.0, 7.0, 9.0, 11.0]), np.array([True, False, False, False])
    )
    (found,) = policy_results(["a", "b", "c", "d"], [outcomes], resamples=5)
    assert (found.policy, found.accuracy.estimate, found.tokens_per_question) == ("p", 0.75, 8.0)
    assert found.step_by_step == 0.25


def test_pairs_need_both_classes_and_something_to_be_held_against():
    table = answers()
    assert pair_tests(replace(table, y=np.ones(N, dtype=np.int64)), judges(table)) == ()
    assert pair_tests(table, judges(table)[1:2]) == ()
    one = replace(table, y=np.arange(N) < 1)  # one right answer has no variance
    one = replace(one, y=one.y.astype(np.int64))
    assert {pair.test for pair in pair_tests(one, judges(table), resamples=20)} == {"clustered bootstrap"}
    two = replace(table, y=(np.arange(N) < 2).astype(np.int64))
    assert {pair.test for pair in pair_tests(two, judges(table), resamples=20)} == {"DeLong"}


def test_the_item_table_has_a_row_for_every_answer_and_method_in_both_formats(tmp_path):
    table = answers()
    judged = judges(table)
    paths = write_item_table(tmp_path / "new", table, judged)
    with paths[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    stored = pyarrow.parquet.read_table(paths[1]).to_pylist()
    assert len(rows) == len(stored) == N * len(judged)
    of_trees = [row for row in stored if row["method"] == LADDER]
    assert auroc([row["y"] for row in of_trees], [row["score"] for row in of_trees]) == auroc(
        table.y, judged[1].ranking
    )
    assert {key: str(value) for key, value in stored[7].items() if isinstance(value, str | int)} == {
        key: value for key, value in rows[7].items() if key not in ("score", "probability")
    }
    assert float(rows[7]["probability"]) == stored[7]["probability"]


CLAIM = Item(id="i", question="Is it?", choices=("true", "false"), check="choice", gold=("true",))


def test_responses_are_read_from_right_answers_and_from_what_wrong_ones_say():
    items = [CLAIM, CLAIM, replace(CLAIM, gold=("false",)), CLAIM]
    found = two_choice_responses(items, ["true", "false", "true", "I cannot say"], np.array([1, 0, 0, 0]))
    assert found.choices == ("true", "false")
    assert found.signal.tolist() == [1, 1, 0, 1]
    assert found.response.tolist() == [1, 0, 1, -1]


@pytest.mark.parametrize(
    ("items", "answers_", "reason"),
    [
        ([CLAIM, replace(CLAIM, choices=("yes", "no"))], ["a", "b"], "different sets"),
        ([CLAIM, replace(CLAIM, check="exact", choices=())], ["a", "b"], "1 of 2 answers are to items without choices"),
        ([replace(CLAIM, choices=("true", "false", "both"))] * 2, ["a", "b"], "have 3 choices"),
        ([replace(CLAIM, gold=("maybe",))] * 2, ["a", "b"], "'maybe'"),
        ([CLAIM] * 2, ["true", None], "texts were not stored"),
    ],
)
def test_what_is_no_choice_between_two_is_refused_with_the_reason(items, answers_, reason):
    with pytest.raises(NotTwoChoice, match=reason):
        two_choice_responses(items, answers_, np.array([1, 0]))


def observed(d_prime, *, seed=0):
    """Answers of an observer, with its evidence as the confidence."""
    rng = np.random.default_rng(seed)
    signal = np.arange(N) % 2
    evidence = (signal - 0.5) * d_prime + rng.normal(size=N)
    response = (evidence > 0).astype(np.int64)
    table = replace(answers(), y=(signal == response).astype(np.int64))
    sure = Judged("ideal", "learned", np.full(N, 0.5), np.abs(evidence), 1.0)
    blind = Judged("blind", "learned", np.full(N, 0.5), rng.normal(size=N), 1.0)
    same = Judged("silent", "explicit", np.full(N, 0.5), np.ones(N), 1.0)
    return table, [sure, blind, same], Responses(("true", "false"), signal, response)


def test_efficiency_is_one_of_the_ideal_confidence_and_none_of_a_blind_one():
    table, judged, responses = observed(1.5)
    found = metacognitive_efficiency(table, judged, responses, resamples=200)
    ideal, blind, silent = found.methods
    assert found.d_prime.low < 1.5 < found.d_prime.high
    assert found.criterion.low < 0 < found.criterion.high
    assert ideal.m_ratio.low < 1 < ideal.m_ratio.high
    assert ideal.m_ratio.high - ideal.m_ratio.low < 0.8
    assert blind.m_ratio.low < 0 < blind.m_ratio.high
    assert blind.m_ratio.high < ideal.m_ratio.low
    assert (ideal.bins, silent.meta_d, silent.refused) == (4, None, "all scores are equal")


def test_answers_that_cannot_be_read_are_left_out_and_counted():
    table, judged, responses = observed(1.5)
    lost = replace(responses, response=np.where(np.arange(N) < 50, -1, responses.response))
    found = metacognitive_efficiency(table, judged[:1], lost, resamples=50)
    assert (found.n, found.unreadable) == (N - 50, 50)
    for keep in ("nothing", "one choice"):
        kept = np.zeros(N, bool) if keep == "nothing" else responses.signal == 1
        none = replace(responses, response=np.where(kept, responses.response, -1))
        with pytest.raises(NotTwoChoice, match=f"of {N} answers {kept.sum()} can be read, and not both true and false"):
            metacognitive_efficiency(table, judged, none)


def test_the_ratio_to_a_d_prime_of_guessing_is_refused():
    table, judged, responses = observed(0.0)
    [sure, *_] = metacognitive_efficiency(table, judged, responses, resamples=100).methods
    assert sure.m_ratio is None
    assert "not clearly better than guessing" in sure.refused
    assert 0 < sure.type2_auroc.estimate < 1


def criticised(first: int, flag: float | None, final: int, number: int) -> Run:
    """A run of MetaCrit."""
    calls = tuple(Call(id=f"{number}/{stage}", stage=stage) for stage in ("answer", "monitor", "control", "synthesis"))
    return Run(
        id=str(number),
        system="metacrit",
        variant="v",
        item=Item(id=f"i{number}", question="q"),
        calls=calls,
        statements=(Statement(calls[1].id, "flags", flag), Statement(calls[2].id, "flags", 0.0)),
        labels=(Label(calls[0].id, "correct", first, "program"), Label(calls[3].id, "correct", final, "program")),
        outcome=final,
    )


def test_coupling_counts_what_is_flagged_fixed_and_broken():
    # 20 wrong and flagged, 15 of them fixed; 20 wrong and not flagged, 5 fixed; 20 right, 12 flagged, of which 6 break
    kinds = [(0, 1, 1)] * 15 + [(0, 1, 0)] * 5 + [(0, 0, 1)] * 5 + [(0, 0, 0)] * 15
    kinds += [(1, 1, 0)] * 6 + [(1, 1, 1)] * 6 + [(1, 0, 1)] * 8 + [(0, None, 0)] * 3
    runs = [criticised(first, flag, final, i) for i, (first, flag, final) in enumerate(kinds)]
    rows = {row.monitor: row for row in coupling(runs, resamples=200)}
    row = rows["monitor flags"]
    assert row.n == 60  # what could not be read is left out
    assert row.flagged_wrong.estimate == 0.5
    assert row.flagged_right.estimate == pytest.approx(12 / 20)
    assert row.fixed_flagged.estimate == pytest.approx(0.75)
    assert row.fixed_unflagged.estimate == pytest.approx(0.25)
    assert row.fixed_difference.estimate == pytest.approx(0.5)
    assert row.fixed_difference.low > 0.15
    assert row.broken_difference.estimate == pytest.approx(0.5)
    assert np.isnan([row.broken_unflagged.low, row.broken_unflagged.high]).all()  # of 8 answers no interval is given
    assert np.isnan([row.broken_difference.low, row.broken_difference.high]).all()  # nor of a difference from them
    assert (row.broken_unflagged.estimate, row.broken_unflagged.n) == (0, 8)
    assert row.failure_auroc.estimate == pytest.approx(0.45)
    never = rows["control flags"]
    assert (never.fixed_flagged, never.fixed_difference) == (None, None)
    assert never.fixed_unflagged.estimate == pytest.approx(20 / 43)
    assert rows["either flags"].n == 60


@pytest.mark.parametrize(("flagged", "known"), [(9, False), (10, True)])
def test_shares_have_an_interval_from_ten_groups_on(flagged, known):
    kinds = [(0, 1, i % 2) for i in range(flagged)] + [(0, 0, i % 2) for i in range(20)]
    runs = [criticised(first, flag, final, i) for i, (first, flag, final) in enumerate(kinds)]
    row = coupling(runs, resamples=100)[0]
    assert row.monitor == "monitor flags"
    for found in (row.fixed_flagged, row.fixed_difference):
        assert np.isfinite([found.low, found.high]).all() == known
        assert found.level == 0.95
    assert np.isfinite(row.fixed_unflagged.high)
    assert row.failure_auroc is None  # all first answers were wrong
    assert row.broken_flagged is row.flagged_right is None


def test_runs_without_a_checked_answer_couple_nothing_and_variants_are_told_apart():
    runs = [replace(criticised(i % 2, i % 2, 1, i), variant="ab"[i // 20]) for i in range(40)]
    unchecked = [replace(run, id=f"{run.id}x", labels=()) for run in runs]
    unjudged = [replace(run, id=f"{run.id}y", outcome=None) for run in runs]
    assert coupling([*unchecked, *unjudged]) == ()
    rows = coupling([*runs, *unchecked, *unjudged], resamples=20)
    assert [(row.variant, row.monitor) for row in rows] == [
        (variant, f"{monitor} flags") for variant in "ab" for monitor in ("monitor", "control", "either")
    ]
    assert {row.n for row in rows} == {20}
    assert rows[0].failure_auroc.estimate == 0  # it flags what is right


def test_coupling_of_recorded_metacrit_agrees_with_its_agreement_table():
    runs = list(RunStore(RECORDED / "creak-metacrit"))
    row = next(row for row in coupling(runs, resamples=50) if row.monitor == "either flags")
    by_pattern = {found.pattern: found for found in metacrit.agreement(runs, resamples=50)}
    assert row.n == sum(found.n for pattern, found in by_pattern.items() if pattern != metacrit.UNREADABLE)
    quiet = by_pattern[metacrit.NEITHER]
    assert row.fixed_unflagged.estimate == pytest.approx(quiet.repaired.estimate)
    assert row.broken_unflagged.estimate == pytest.approx(quiet.broken.estimate)


def test_recorded_cycles_couple_stated_difficulty_and_evaluation_with_failure():
    rows = {row.monitor: row for row in coupling(RunStore(RECORDED / "gsm8k-mgv"), resamples=50)}
    stated, evaluated = rows["stated difficulty"], rows["evaluation below 0.85"]
    assert 100 < stated.n < evaluated.n == 200
    assert stated.fixed_difference is None  # a difficulty is no flag
    assert evaluated.fixed_difference is not None


@pytest.mark.parametrize(("quality", "flagged"), [(0.84, True), (0.86, False)])
def test_an_evaluation_flags_what_is_not_yet_enough_to_stop(quality, flagged):
    calls = (Call(id="a", stage="answer"), Call(id="v", stage="verify", parent="a"))
    run = Run(
        id="r", system="monitor-generate-verify", variant="v", item=Item(id="i", question="q"), calls=calls,
        statements=tuple(Statement("v", kind, quality) for kind in EVALUATIONS["verify"]),
        labels=(Label("a", "correct", 0.0, "program"),), outcome=0.0,
    )  # fmt: skip
    (row,) = coupling([run], resamples=5)
    assert row.monitor == "evaluation below 0.85"
    assert row.flagged_wrong.estimate == flagged


def test_each_agents_answer_has_its_own_statement():
    runs = list(RunStore(RECORDED / "metacog-every-agent"))[:20]
    table = answer_table(runs)
    stated = {
        (run.id, call.agent): run.stated("confidence", call.id)
        for run in runs
        for call in run.calls
        if call.stage == "assess"
    }
    place = {call.id: (run.id, call.agent) for run in runs for call in run.calls}
    expected = [stated.get(place[call_id]) for call_id in table.call_ids.tolist()]
    assert len({place[call_id][1] for call_id in table.call_ids.tolist()}) > 1
    for found, value in zip(table.stated_confidence, expected, strict=True):
        assert np.isnan(found) if value is None else found == value


def test_what_one_call_states_of_the_run_holds_for_its_answers_and_another_rounds_does_not():
    calls = (
        Call(id="d0", stage="monitor", round=0),
        Call(id="a0", stage="answer", round=0, logprobs=np.zeros(2, np.float32)),
        Call(id="d1", stage="monitor", round=1),
        Call(id="a1", stage="answer", round=1, logprobs=np.zeros(2, np.float32)),
        Call(id="c1", stage="confidence", round=5, parent="a1"),
    )
    labels = tuple(Label(call, "correct", 1.0, "program") for call in ("a0", "a1"))
    run = Run("r", "s", "v", Item("i", "q"), calls, labels=labels, statements=(
        Statement("d0", "difficulty", 0.2), Statement("d1", "difficulty", None), Statement("c1", "confidence", 0.7),
    ))  # fmt: skip
    table = answer_table([run])
    other = replace(run, statements=(*run.statements, Statement("a0", "confidence", 0.4)))
    assert answer_table([other]).stated_confidence.tolist() == [0.4, 0.7]  # its own; of who was asked about it
    assert table.stated_difficulty.tolist() == pytest.approx([0.2, np.nan], nan_ok=True)
    assert table.stated_confidence.tolist() == [0.7, 0.7]


def test_answers_that_cannot_be_learned_from_are_refused_with_what_there_is():
    call = Call(id="c", stage="answer", agent="a", logprobs=np.zeros(1, np.float32))
    run = Run("r", "s", "v", Item("i", "q"), (call,), labels=(Label("c", "correct", 1.0, "program"),))
    assert answer_table([run]).y.tolist() == [1]
    graded = replace(run, labels=(Label("c", "correct", 0.5, "judge:m"),))
    with pytest.raises(RecordError, match=r"call c: label correct is 0\.5; expected 0 or 1"):
        answer_table([graded])
    with pytest.raises(RecordError, match="of stage verify by agent any; stages found: answer; agents found: a"):
        answer_table([run], stage="verify")
    with pytest.raises(RecordError, match="no call of stage any by agent b"):
        answer_table([run], agent="b")
    bare = replace(run, calls=(replace(call, logprobs=None), replace(call, id="d")))
    with pytest.raises(RecordError, match="1 calls have no such label, 1 have it but no log-probabilities"):
        answer_table([bare])


def test_answers_of_a_table_come_by_their_name_and_say_whether_they_were_cut():
    calls = tuple(
        Call(id=name, stage="answer", model="m", logprobs=np.zeros(n, np.float32), finish_reason=reason)
        for name, n, reason in (("b", 2, "length"), ("a", 3, "stop"))
    )
    labels = tuple(Label(name, "correct", y, "program") for name, y in (("b", 1.0), ("a", 0.0)))
    item = Item("i", "q", task="t", group="g", dimension="d", level="easy")
    table = answer_table([Run("r", "s", "v", item, calls, labels=labels)])
    assert (table.call_ids.tolist(), table.y.tolist()) == (["a", "b"], [0, 1])
    assert (table.tokens.tolist(), table.cut.tolist()) == ([3, 2], [False, True])
    for name, value in (("items", "i"), ("tasks", "t"), ("groups", "t/g"), ("variants", "v"), ("dimensions", "d"),
                        ("levels", "easy"), ("questions", "q"), ("models", "m")):  # fmt: skip
        assert getattr(table, name).tolist() == [value] * 2
    assert table.rows(np.array([1])).call_ids.tolist() == ["b"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[Comparison, Path]:
    """The recorded runs of MetaCrit, the first answers only."""
    folder = tmp_path_factory.mktemp("compared")
    found = study([RECORDED / "creak-metacrit"], stage="answer", folds=2, hidden=False)
    found = replace(found, evidence=replace(found.evidence, states_refused="they are of two models"))
    return write_comparison(folder, found, command="test")


def test_recorded_runs_get_every_section_that_they_allow(compared):
    found, report = compared
    assert report.is_file()
    assert found.pairs
    assert found.difficulty is None  # claims have no levels, and their words do not tell
    assert any("nothing is held constant" in note for note in found.notes)
    assert "No probes: they are of two models." in found.notes
    assert any("state neither choice" in sentence for sentence in found.summary)
    assert found.two_choice.choices == ("true", "false")
    assert found.two_choice.n + found.two_choice.unreadable == len(found.y)
    assert {row.monitor for row in found.coupling} == {"monitor flags", "control flags", "either flags"}
    assert sum(row.n for row in found.agreement) == 200
    assert found.failures.wrong == sum(run.outcome == 0 for run in RunStore(RECORDED / "creak-metacrit"))
    assert {method.prr is not None for method in found.methods} == {True}


def test_the_json_says_the_same_and_the_item_table_lies_beside_it(compared):
    found, report = compared
    stored = json.loads((report.parent / "comparison.json").read_text())
    assert stored["answers"] == len(found.y)
    by_name = {method.name: method for method in found.methods}
    assert stored["methods"].keys() == by_name.keys()
    trees = stored["methods"][LADDER]
    assert trees["auroc"]["estimate"] == by_name[LADDER].auroc.estimate
    assert "probability" not in trees
    assert stored["two_choice"]["d_prime"]["n"] == found.two_choice.n
    assert len(stored["pairs"]) == len(found.pairs)
    items = pyarrow.parquet.read_table(report.parent / "items.parquet")
    assert items.num_rows == len(found.y) * len(found.methods)
