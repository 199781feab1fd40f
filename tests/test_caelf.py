"""The branches of CAELF, followed with a scripted model, and its solver against the definitions of extensions."""

import json
import re
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedLLM, run_once

pytest.importorskip("clingo")

from metaprobe.papers.systems import Models
from metaprobe.papers.systems.caelf import CRITERIA, SYSTEM, Argument, extensions, positions, read_level, yes_or_no
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item

ITEM = Item(
    id="e", question="", gold=("1",), check="exact", fields={"essay": "Cats are better than dogs.", "trait": "position"}
)


def script(attacks=(), *, unreadable=(), grade="Level: 1\nFeedback: well done", contest="Argument: no!\nLevel: 2"):
    """Arguments A (kind), B (strict), then a, b on reflection, then the contest C; `attacks` such as {"AB", "CA"}."""
    marks = {"kind": ("A", "a"), "strict": ("B", "b")}

    def said(request):
        return f"<{marks[request.agent][request.round]}> is my point\nLevel: {2 if request.agent == 'kind' else 0}"

    def attack(request):
        pair = "".join(re.findall(r"<(\w)>", request.messages[-1].content))
        return "perhaps" if pair in unreadable else "Yes." if pair in attacks else "no"

    return ScriptedLLM({"argue": said, "reflect": said, "attack": attack, "answer": grade, "contest": f"<C> {contest}"})


def solved(run, number):
    """Returns the solver's note on the teacher's first or second answer."""
    (answer,) = [call for call in run.calls if call.stage == "answer" and call.round == number]
    return {label.name: label.value for label in run.labels if label.call_id == answer.id}


def shown(llm, number):
    """The arguments that the teacher read."""
    return "".join(re.findall(r"<(\w)>", llm.prompts_of("answer")[number]))


def test_a_contest_can_overthrow_what_stood_and_bring_back_what_was_defeated():
    llm = script({"AB", "Ab", "aB", "ab", "CA", "Ca"})
    run = run_once(SYSTEM, ITEM, llm)
    assert shown(llm, 1) == "BbC"
    assert solved(run, 1) == {
        "arguments": 5,
        "attacks": 6,
        "extensions": 1,
        "extension_size": 3,
        "standing": 3,
        "contest_stands": 1,
    }


def test_two_camps_are_two_positions():
    llm = script({"AB", "Ab", "aB", "ab", "BA", "Ba", "bA", "ba"})
    run = run_once(SYSTEM, ITEM, llm)
    assert solved(run, 0)["extensions"] == 2
    assert sorted(shown(llm, 0)) == sorted("ABab")
    assert "Position 2:" in llm.prompts_of("answer")[0]


def test_where_no_argument_stands_the_teacher_reads_everything():
    llm = script({"AB", "Ba", "aA", "Ab"})
    run = run_once(SYSTEM, ITEM, llm)
    assert solved(run, 0)["standing"] == 0
    assert shown(llm, 0) == "ABab"
    assert "No argument stands" in llm.prompts_of("answer")[0]


def test_an_argument_of_two_positions_is_written_out_once():
    arguments = [Argument(name, Call(id=name, text=f"<{name}>")) for name in "ABC"]
    text = positions(arguments, (frozenset({0, 2}), frozenset({1, 2})))
    first = "Position 1:\nArgument 1 (A): <A>\nArgument 3 (C): <C>"
    assert text == f"{first}\n\nPosition 2:\nArgument 2 (B): <B>\nArgument 3 (C), as above"


def test_an_answer_that_is_neither_yes_nor_no_is_missing_and_no_attack():
    llm = script({"AB"}, unreadable={"AB"})
    run = run_once(SYSTEM, ITEM, llm)
    assert solved(run, 0)["attacks"] == 0
    said = [statement.value for statement in run.statements if statement.kind == "attack"]
    assert said.count(None) == 1
    assert said.count(0.0) == 19


@pytest.mark.parametrize("variant", ["caelf", "single"])
def test_both_grades_are_recorded_and_the_last_one_is_the_answer(variant):
    llm = script(grade="unused")
    llm.answers["answer"] = ["Level: 0\nFeedback: weak", "**Level: 2**\nFeedback: strong"]
    run = run_once(SYSTEM, ITEM, llm, variant=variant)
    answers = [call for call in run.calls if call.stage == "answer"]
    assert [run.stated("level", call.id) for call in answers] == [0.0, 1.0]
    assert [SYSTEM.extract_answer(ITEM, call, variant) for call in answers] == ["0", "2"]
    assert run.final_answer == "2"
    (contest,) = [call for call in run.calls if call.stage == "contest"]
    assert (contest.parent, answers[1].parent) == (answers[0].id, contest.id)


def test_an_unreadable_grade_stays_unreadable():
    llm = script(contest="I just disagree")
    llm.answers["answer"] = ["Level: 1\nFeedback: fine", "I would keep my grade."]
    run = run_once(SYSTEM, ITEM, llm)
    assert run.final_answer == ""
    levels = {call.stage: run.stated("level", call.id) for call in run.calls if call.stage in ("contest", "answer")}
    assert levels == {"contest": None, "answer": None}


def test_the_item_s_own_rubric_and_levels_take_the_place_of_caelf_s():
    own = Item(id="e", question="", fields={**ITEM.fields, "trait": "ideas", "rubric": "More is better.", "high": "3"})
    llm = script(grade="Level: 3\nFeedback: all there")
    run = run_once(SYSTEM, own, llm, variant="single")
    assert run.final_answer == "3"
    assert run.stated("level") == 1.0
    assert "More is better." in llm.prompts_of("answer")[0]
    assert "0 or 1 or 2." in llm.prompts_of("contest")[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trait": "issue"}, "needs `essay` and `trait`"),
        ({"essay": "Cats.", "trait": "spelling"}, "has no `rubric`"),
        ({"essay": "Cats.", "trait": "issue", "high": "5"}, "has no `rubric`"),
        ({"essay": "Cats.", "trait": "issue", "low": "2"}, "levels from '2' to '2'"),
        ({"essay": "Cats.", "trait": "issue", "high": "best"}, "levels from '0' to 'best'"),
    ],
)
def test_an_item_that_cannot_be_graded_is_refused(fields, message):
    with pytest.raises(RecordError, match=message):
        run_once(SYSTEM, Item(id="e", question="", fields=fields), script())


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("Level: 2\nFeedback: good", 2),
        ("Good.\n**Level: 1**", 1),
        ("**Level**: 0", 0),
        ("Level 2", 2),
        ("level: 2. It is clear.", 2),
        ("Level: 1\nAs I said.\nLevel: 1", 1),
        ("The essay does not reach Level 2.", None),
        ("Level 2 asks for more than this", None),
        ("Level: 0\nLevel: 2", None),
        ("Level: 3", None),
        ("Level: 1-2", None),
        ("Level: 1 or 2", None),
        ("Level: 1.5", None),
        ("Level: N", None),
        ("", None),
    ],
)
def test_a_level_is_read_or_missing_but_not_guessed(text, level):
    assert read_level(text, 0, 2) == level


@pytest.mark.parametrize(
    ("text", "value"),
    [("Yes", 1.0), (" **no**", 0.0), ("yes, it does", 1.0), ("None", None), ("yesterday", None), ("", None)],
)
def test_yes_and_no_are_read_at_the_beginning_only(text, value):
    assert yes_or_no(text) == value


def rating(request, high=5):
    """Grades by criterion, one lower where the criteria are asked for in reverse order."""
    names = re.findall(r"for each of: (.*)\.", request.messages[-1].content)[0].split(", ")
    lower = int(names[0] != "readability")
    return json.dumps({name: high - lower - place for place, name in enumerate(CRITERIA)})


def test_a_judge_rates_the_first_feedback_twice_and_in_both_orders():
    llm, judge = script(), ScriptedLLM({"judge": rating}, name="rater")
    run = run_once(SYSTEM, ITEM, llm, models=Models(llm, {"judge": judge}))
    first = next(call for call in run.calls if call.stage == "answer")
    graded = {label.name: label.value for label in run.labels if label.source == "judge:rater"}
    again = {label.name: label.value for label in run.labels if label.source == "judge:rater:reversed"}
    assert graded == {"readability": 5, "factuality": 4, "self_regulation": 3, "future_improvement": 2}
    assert again == {name: value - 1 for name, value in graded.items()}
    assert {label.call_id for label in run.labels if label.source.startswith("judge")} == {first.id}
    shown = "|".join(CRITERIA)
    order = [re.findall(rf"^({shown}): ", prompt, re.MULTILINE) for prompt in judge.prompts_of("judge")]
    assert order == [list(CRITERIA), list(CRITERIA[::-1])]


@pytest.mark.parametrize("said", ["{}", '{"readability": 3}', "five", '{"readability": 6, "factuality": 1}'])
def test_a_rating_that_is_not_whole_is_missing(said):
    llm, judge = script(), ScriptedLLM({"judge": said}, name="rater")
    run = run_once(SYSTEM, ITEM, llm, models=Models(llm, {"judge": judge}))
    assert not [label for label in run.labels if label.source.startswith("judge")]


# Extensions, against the definitions themselves (every subset tried) and against the textbook's frameworks

Attacks = set[tuple[int, int]]


@st.composite
def frameworks(draw: st.DrawFn) -> tuple[int, Attacks]:
    n = draw(st.integers(0, 6))
    pairs = [(i, k) for i in range(n) for k in range(n)]
    return n, draw(st.sets(st.sampled_from(pairs))) if pairs else set()


def by_definition(n: int, attacks: Attacks) -> set[frozenset[int]]:
    """Dung's definitions, word for word, over all subsets."""
    subsets = [frozenset(s) for s in chain.from_iterable(combinations(range(n), size) for size in range(n + 1))]

    def hit(s: frozenset[int]) -> set[int]:
        return {k for i, k in attacks if i in s}

    def defended(s: frozenset[int]) -> set[int]:
        return {k for k in range(n) if all(i in hit(s) for i, target in attacks if target == k)}

    free = [s for s in subsets if not s & hit(s)]
    admissible = [s for s in free if s <= defended(s)]
    return {s for s in admissible if not any(s < larger for larger in admissible)}


@given(framework=frameworks())
def test_extensions_are_those_of_the_definitions(framework):
    n, attacks = framework
    found = extensions(n, attacks)
    assert len(set(found)) == len(found)
    assert set(found) == by_definition(n, attacks)


@pytest.mark.parametrize(
    ("name", "n", "attacks", "preferred"),
    [
        ("no arguments at all", 0, set(), [set()]),
        ("no attacks", 2, set(), [{0, 1}]),
        ("Nixon diamond", 2, {(0, 1), (1, 0)}, [{0}, {1}]),
        ("odd cycle", 3, {(0, 1), (1, 2), (2, 0)}, [set()]),
        ("even cycle", 4, {(0, 1), (1, 2), (2, 3), (3, 0)}, [{0, 2}, {1, 3}]),
        ("self-attacker", 1, {(0, 0)}, [set()]),
        ("attacked by a self-attacker", 2, {(0, 0), (0, 1)}, [set()]),
        ("self-attacker that is defeated", 2, {(0, 0), (1, 0)}, [{1}]),
        ("reinstatement", 3, {(0, 1), (1, 2)}, [{0, 2}]),
        ("floating", 4, {(0, 1), (1, 0), (0, 2), (1, 2), (2, 3)}, [{0, 3}, {1, 3}]),
    ],
)
def test_textbook_frameworks(name, n, attacks, preferred):
    assert list(extensions(n, attacks)) == preferred, name


def test_an_unknown_argument_is_named():
    with pytest.raises(ValueError, match=r"\[2\]; expected numbers from 0 to 1"):
        extensions(2, {(0, 2)})
