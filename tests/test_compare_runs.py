"""A comparison describes runs: efficiency, coupling, whose statement an answer has, the whole report."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from compared_answers import N, answers
from made_up_report import made_up
from stored_runs import example

from metaprobe.eval.compare import (
    Judged,
)
from metaprobe.eval.controls import control_named
from metaprobe.eval.metacognition import (
    NotTwoChoice,
    Responses,
    coupling,
    metacognitive_efficiency,
    two_choice_responses,
)
from metaprobe.eval.metrics.bootstrap import ControlComparison, ControlDifference, Interval
from metaprobe.eval.results import Comparison, MethodResult
from metaprobe.eval.systems import metacrit
from metaprobe.eval.table import AnswerTable, answer_table, bare_table
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run, Statement
from metaprobe.training.recipes.comparison import (
    answers_of,
    headline_method,
    recommended_checkpoint,
    write_comparison,
)
from metaprobe.training.study import AFTER, BEFORE, BLEND, LADDER, study

RECORDED = Path(__file__).parent.parent / "recorded"


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


# Answers and grades that a comparison takes from the runs themselves.


def table_of(*call_ids: str) -> AnswerTable:
    bare = bare_table(np.ones(len(call_ids), dtype=np.int64), np.array(call_ids))
    return replace(bare, call_ids=np.array(call_ids))


def answer(name: str, text: str, system: str = "someone else's") -> Run:
    call = Call(id=name, stage="answer", text=text)
    return replace(example(1), id=f"r-{name}", system=system, variant="step-by-step", calls=(call,), labels=())


def test_answers_come_in_the_order_of_the_table_as_the_system_that_gave_them_reads_them() -> None:
    runs = [
        answer("a", " 7 \n"),
        answer("b", ""),
        answer("c", "I think so.\nAnswer: 8", "self-report"),
        answer("d", "9"),
    ]
    items, found = answers_of(runs, table_of("c", "b", "a"))
    assert found == ["8", None, "7"], "read by its system, not stored, and as it stands"
    assert items == [runs[2].item, runs[1].item, runs[0].item]
    with pytest.raises(KeyError):
        answers_of(runs[:1], table_of("c"))


# The sentences at the top of a report claim what the numbers under them say, and no more.


MADE = made_up(60, resamples=20).methods[-1]


def about(estimate: float, low: float, high: float) -> Interval:
    return Interval(estimate, low, high, 400, 100)


GOOD = about(0.8, 0.7, 0.9)


def method(name: str, family: str = "learned", auroc: Interval = GOOD, **more: object) -> MethodResult:
    changed = {"name": name, "family": family, "auroc": auroc, "controls": None, "within_runs": None, "stated": None}
    return replace(MADE, **changed | more)  # type: ignore[arg-type]


def over(name: str, low: float, high: float, p: float) -> ControlDifference:
    return ControlDifference(name, 0.7, about((low + high) / 2, low, high), p / 3, p)


def test_the_headline_is_the_blend_then_the_predictor_then_a_probe_then_the_users_own_method() -> None:
    names = (BLEND, LADDER, AFTER, BEFORE)
    results = [method("length", "plain"), method("mine", "own"), *(method(name) for name in reversed(names))]
    for name in names:
        assert headline_method(results).name == name
        results = [result for result in results if result.name != name]
    assert headline_method(results).name == "mine"
    assert headline_method(results[:1]).name == "length"


def test_the_command_that_writes_the_recommended_method_is_named_with_what_it_does_not_beat() -> None:
    beaten, standing = over("length", 0.01, 0.1, 0.01), over("words", -0.1, 0.1, 0.9)
    some = method(BLEND, auroc=about(0.78, 0.7, 0.8), controls=ControlComparison(0.78, (beaten, standing)))
    found = recommended_checkpoint([some, method(LADDER)])
    assert "`metaprobe train blend my/runs --out C`" in recommended_checkpoint([some], "my/runs")
    assert "`metaprobe train blend RUNS --out C`" in found
    assert f"It is not shown to beat {control_named('words')}" in found
    alone = recommended_checkpoint([replace(some, controls=ControlComparison(0.78, (beaten,)))])
    assert "not shown" not in alone
    assert "`metaprobe train hidden --when after RUNS --out C`" in recommended_checkpoint([method(AFTER)])
    assert recommended_checkpoint([method("mine", family="own")]) == "", "there is no checkpoint of a user's method"
