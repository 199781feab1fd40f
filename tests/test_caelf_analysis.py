"""The effect of a contest on the grades is read from runs whose grades are planted."""

from dataclasses import replace
from itertools import count

import pytest
from scripted import ScriptedLLM, run_once

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item, Label, Run, Statement
from research.systems import contests
from research.systems.contests import feedback_ratings, summarise_contests

NUMBERS = count()


def graded(variant, item, gold, before, claimed, after, *, stands=None, group="", attacks=(), fields=None):
    """A run with two grades and a contest between them; levels 0 to 2."""
    run = f"{variant}/{item}/{next(NUMBERS)}"
    calls = (
        *(Call(id=f"{run}/attack/{i}", stage="attack", round=i) for i in range(len(attacks))),
        Call(id=f"{run}/answer", stage="answer"),
        Call(id=f"{run}/contest", stage="contest"),
        Call(id=f"{run}/answer/1", stage="answer", round=1),
    )
    values = zip(calls[-3:], (before, claimed, after), strict=True)
    statements = [Statement(call.id, "attack", value) for call, value in zip(calls, attacks, strict=False)]
    statements += [Statement(call.id, "level", None if level is None else level / 2) for call, level in values]
    labels = []
    if stands is not None:
        sizes = {"arguments": 2, "attacks": 1, "extensions": 1, "extension_size": 1, "standing": 1}
        labels += [Label(calls[-3].id, name, value, "solver") for name, value in sizes.items()]
        sizes = {"arguments": 3, "attacks": 4, "extensions": 2, "extension_size": 1.5, "standing": 3}
        labels += [Label(calls[-1].id, name, value, "solver") for name, value in sizes.items()]
        labels.append(Label(calls[-1].id, "contest_stands", stands, "solver"))
    return Run(
        id=run,
        system="caelf",
        variant=variant,
        item=Item(
            id=item, question="", gold=() if gold is None else (str(gold),), group=group or item, fields=fields or {}
        ),
        calls=calls,
        statements=tuple(statements),
        labels=tuple(labels),
    )


def test_kept_and_corrected_are_told_apart():
    runs = [
        graded("caelf", "kept", 1, 1, 2, 1),
        graded("caelf", "lost", 1, 1, 2, 2),
        graded("caelf", "corrected", 1, 0, 1, 1),
        graded("caelf", "wrong to wrong", 1, 0, 2, 2),
        graded("caelf", "stays wrong", 1, 0, 1, 0),
    ]
    (found,) = summarise_contests(runs)
    assert found.n == 5
    assert found.accuracy_before.estimate == pytest.approx(2 / 5)
    assert found.accuracy_after.estimate == pytest.approx(2 / 5)
    (better,) = summarise_contests([*runs, graded("caelf", "also corrected", 1, 0, 1, 1)])
    assert better.accuracy_after.estimate - better.accuracy_before.estimate == pytest.approx(1 / 6)
    assert found.right_kept.estimate == pytest.approx(1 / 2)
    assert found.wrong_corrected.estimate == pytest.approx(1 / 3)
    assert found.moved.estimate == pytest.approx(3 / 5)
    assert found.framework is None


def test_an_unreadable_grade_is_wrong_but_not_a_wrong_grade_to_correct():
    runs = [
        graded("caelf", "first", 1, None, 2, 1),
        graded("caelf", "contest", 1, 1, None, 1),
        graded("caelf", "second", 1, 1, 2, None),
    ]
    (found,) = summarise_contests(runs)
    assert found.accuracy_before.estimate == pytest.approx(2 / 3)
    assert found.accuracy_after.estimate == pytest.approx(2 / 3)
    assert found.right_kept.estimate == pytest.approx(1 / 2)
    assert found.wrong_corrected is None
    assert found.moved.n == 1


@pytest.mark.parametrize("variant", ["caelf", "single"])
def test_a_run_of_the_system_itself_is_read(variant):
    pytest.importorskip("clingo")
    from metaprobe.papers.systems.caelf import SYSTEM

    item = Item(id="e", question="", gold=("2",), fields={"essay": "Cats.", "trait": "issue"})
    llm = ScriptedLLM({"*": "Level: 1", "attack": "no", "contest": "Level: 2", "answer": ["Level: 1", "Level: 2"]})
    (found,) = summarise_contests([run_once(SYSTEM, item, llm, variant=variant)])
    assert found.wrong_corrected.estimate == 1
    assert (found.framework is not None) == (variant == "caelf")
    assert (found.contest_stands is not None) == (variant == "caelf")


def test_what_a_run_does_not_show_is_left_out_and_what_contradicts_itself_refused():
    (ungraded,) = summarise_contests([graded("caelf", "e", None, 1, 2, 2)])
    assert (ungraded.accuracy_before, ungraded.right_kept, ungraded.moved.estimate) == (None, None, 1)
    (wide,) = summarise_contests([graded("caelf", "e", 5, 0, 1, 2, fields={"low": "1", "high": "5"})])
    assert (wide.accuracy_before.estimate, wide.accuracy_after.estimate) == (0, 1)
    run = graded("no-contest", "e", 1, 1, 2, 1)
    assert summarise_contests([replace(run, calls=run.calls[:1])]) == ()
    with pytest.raises(RecordError, match="twice"):
        summarise_contests([graded("caelf", "e", 1, 1, 2, 1), graded("caelf", "e", 1, 1, 2, 1)])
    with pytest.raises(RecordError, match="'good': expected a level"):
        summarise_contests([graded("caelf", "e", "good", 1, 2, 1)])
    traits = [graded("caelf", f"{essay}/{trait}", 1, 1, 2, 1, group=str(essay)) for essay in "abc" for trait in "wxyz"]
    (grouped,) = summarise_contests(traits)
    assert (grouped.accuracy_after.n, grouped.accuracy_after.groups) == (12, 3)


def rated(item, first, again, *, judge="judge:j", variant="caelf"):
    """A run whose feedback a judge rated on readability, in both orders; None for a rating that is missing."""
    call = Call(id=f"{item}/{next(NUMBERS)}/answer", stage="answer")
    given = ((first, judge), (again, judge + contests.REVERSED_ORDER))
    labels = tuple(Label(call.id, "readability", grade, source) for grade, source in given if grade is not None)
    return Run(
        id=call.id, system="caelf", variant=variant, item=Item(id=item, question=""), calls=(call,), labels=labels
    )


def test_ratings_are_summed_up_with_the_judge_s_agreement_with_itself():
    grades = [(5, 5), (1, 1), (3, 3), (5, 5), (2, None)]
    (found,) = feedback_ratings([rated(str(i), *pair) for i, pair in enumerate(grades)])
    assert (found.variant, found.judge, found.criterion, found.n, found.pairs) == (
        "caelf",
        "judge:j",
        "readability",
        5,
        4,
    )
    assert found.mean.estimate == pytest.approx(16 / 5)
    assert found.highest.estimate == pytest.approx(2 / 5)
    assert found.agreement.estimate == pytest.approx(1)
