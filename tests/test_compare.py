"""The comparison: planted truths in its sections, and what it says of really recorded runs."""

import csv
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
from compared_answers import LEVELS, RIGHT, N, answers

from metaprobe.eval.compare import (
    BEST_BASELINE,
    STATED,
    Judged,
    add_details,
    method_results,
    run_of_answers,
    write_item_table,
)
from metaprobe.eval.metacognition import at_equal_difficulty, difficulty_strata, overconfidence
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.table import AnswerTable
from metaprobe.training.study import LADDER

LENGTH = "length"
"""A control."""


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
    constant = Judged(STATED, "explicit", np.full(N, share), np.full(N, 0.9), 2 / 3, given=table.stated_confidence)
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


def test_details_fill_every_figure():
    table = answers()
    judged = judges(table)
    results = method_results(table, judged, resamples=20)
    _, learned, _ = add_details(table, judged, results, resamples=20)
    assert learned.brier.estimate == pytest.approx(np.mean((judged[1].probability - table.y) ** 2))
    assert learned.prr.estimate > 0.2


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
