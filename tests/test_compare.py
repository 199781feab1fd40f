"""The comparison: planted truths in its sections, and what it says of really recorded runs: efficiency, coupling, whose
statement an answer has, the whole report."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from metaprobe.eval.answer_table import AnswerTable, answer_table
from metaprobe.eval.compare import (
    BEST_BASELINE,
    STATED,
    Judged,
    add_details,
    headline_by_model,
    method_results,
    run_of_answers,
    write_item_table,
)
from metaprobe.eval.metacognition import (
    NotTwoChoice,
    Responses,
    at_equal_difficulty,
    coupling,
    difficulty_strata,
    metacognitive_efficiency,
    overconfidence,
    two_choice_responses,
)
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.results import Comparison
from metaprobe.eval.systems import metacrit_figures as metacrit
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Statement
from metaprobe.training.methods import LADDER
from metaprobe.training.recipes.compare_runs import write_comparison
from metaprobe.training.study import study

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


def test_each_model_has_its_own_row_where_models_state_their_confidence():
    table = answers()
    table = replace(table, models=np.where(np.arange(N) % 2, "big-7b", "small-1b"))
    stated, *others = judges(table)
    judged = [replace(stated, stated_probability=table.stated_confidence), *others]
    small, big = headline_by_model(table, judged, LADDER)
    assert (small.model, small.n, big.model) == ("small-1b", N // 2, "big-7b")
    at = table.models == "big-7b"
    assert big.auroc.estimate == auroc(table.y[at], others[0].ranking[at])
    assert big.diff_stated.estimate == pytest.approx(
        auroc(table.y[at], others[0].ranking[at]) - auroc(table.y[at], stated.ranking[at])
    )


def test_stated_confidence_is_measured_as_stated_and_as_recalibrated():
    table = answers()
    share = table.y.mean()
    silent = np.arange(N) >= 400
    table = replace(table, stated_confidence=np.where(silent, np.nan, 0.9))
    constant = Judged(
        STATED, "explicit", np.full(N, share), np.full(N, 0.9), 2 / 3, stated_probability=table.stated_confidence
    )
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


# Runs


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


def test_coupling_of_recorded_metacrit_agrees_with_its_agreement_table():
    runs = list(RunStore(RECORDED / "creak-metacrit"))
    row = next(row for row in coupling(runs, resamples=50) if row.monitor == "either flags")
    by_pattern = {found.pattern: found for found in metacrit.agreement(runs, resamples=50)}
    assert row.n == sum(found.n for pattern, found in by_pattern.items() if pattern != metacrit.UNREADABLE)
    quiet = by_pattern[metacrit.NEITHER]
    assert row.fixed_unflagged.estimate == pytest.approx(quiet.repaired.estimate)
    assert row.broken_unflagged.estimate == pytest.approx(quiet.broken.estimate)


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


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[Comparison, Path]:
    """The recorded runs of MetaCrit, the first answers only."""
    folder = tmp_path_factory.mktemp("compared")
    found = study([RECORDED / "creak-metacrit"], stage="answer", folds=2, hidden=False)
    found = replace(found, evidence=replace(found.evidence, states_refused="they are of two models"))
    return write_comparison(folder, found, command="test")


@pytest.mark.slow
def test_recorded_runs_get_every_section_that_they_allow(compared):
    found, report = compared
    assert report.is_file()
    assert found.difficulty is None  # claims have no levels, and their words do not tell
    assert any("nothing is held constant" in note for note in found.notes)
    assert "No probes: they are of two models." in found.notes
    assert found.two_choice.choices == ("true", "false")
    assert found.two_choice.n + found.two_choice.unreadable == len(found.y)
    assert {row.monitor for row in found.coupling} == {"monitor flags", "control flags", "either flags"}
    assert sum(row.n for row in found.agreement) == 200
    assert found.failures.wrong == sum(run.outcome == 0 for run in RunStore(RECORDED / "creak-metacrit"))
    assert {method.prr is not None for method in found.methods} == {True}


@pytest.mark.slow
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
    items = pyarrow.parquet.read_table(report.parent / "items.parquet")
    assert items.num_rows == len(found.y) * len(found.methods)
