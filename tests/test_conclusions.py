"""The sentences at the top of a report claim what the numbers under them say; answers are taken from their runs."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_report import made_up
from stored_runs import example

from metaprobe.eval.answer_table import AnswerTable, bare_table
from metaprobe.eval.controls import CELLS, JOINED, PROMPT, QUESTION, REVERSED, SCALED, STATED
from metaprobe.eval.metrics.bootstrap import ControlDifference, Interval
from metaprobe.eval.results import MethodResult
from metaprobe.records.types import Call, Run
from metaprobe.training.methods import AFTER, BEFORE, BLEND, LADDER
from metaprobe.training.recipes.compare_runs import answer_texts, headline_method, recommended_checkpoint

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


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (BLEND, "`metaprobe train blend my/runs --out C`"),
        (AFTER, "`metaprobe train hidden --when after my/runs --out C`"),
        (JOINED, "`metaprobe train text my/runs --with-logprobs --out C`"),
        (PROMPT, "`metaprobe train text my/runs --out C`"),
        (SCALED, "`metaprobe adapt bundled:quality my/runs --out C`"),
        ("minimum log-probability", "`metaprobe compare my/runs --out REPORT --export C`"),
        (f"length{REVERSED}", "`metaprobe compare my/runs --out REPORT --export C`"),
        (STATED, "`metaprobe compare my/runs --out REPORT --export C`"),
    ],
)
def test_the_command_writes_the_method_that_is_recommended_and_no_other(name: str, command: str) -> None:
    found = recommended_checkpoint(method(name), "my/runs")
    assert command in found
    assert found.count("`metaprobe") == 1


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (LADDER, "`metaprobe train quality my/runs --stage 'last one' --folds 3 --out C`"),
        (PROMPT, "`metaprobe train text my/runs --stage 'last one' --folds 3 --out C`"),
        (SCALED, "`metaprobe adapt bundled:quality my/runs --stage 'last one' --out C`"),
        (STATED, "`metaprobe compare my/runs --stage 'last one' --folds 3 --out REPORT --export C`"),
    ],
)
def test_the_command_repeats_the_options_that_were_given(name: str, command: str) -> None:
    given = {"stage": "last one", "folds": "3"}
    assert command in recommended_checkpoint(method(name), "my/runs", options=given)


def test_the_bundled_predictor_is_named_for_its_own_label_alone() -> None:
    found = recommended_checkpoint(method(SCALED), "my/runs", options={"target": "critical"})
    assert "bundled" not in found
    assert "`metaprobe compare my/runs --target critical --out REPORT --export C`" in found


def test_no_command_is_named_for_what_has_no_checkpoint() -> None:
    for none in (None, method("mine", family="own"), method(CELLS, family="plain"), method(QUESTION, family="plain")):
        assert recommended_checkpoint(none) == ""


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
    items, found = answer_texts(runs, table_of("c", "b", "a"))
    assert found == ["8", None, "7"], "read by its system, not stored, and as it stands"
    assert items == [runs[2].item, runs[1].item, runs[0].item]
    with pytest.raises(KeyError):
        answer_texts(runs[:1], table_of("c"))
