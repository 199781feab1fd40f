"""Answers as models give them in public benchmarks: calculator notes, ticked options, JSON, code in several fences."""

import pytest

from metaprobe.records.correctness import canonical, final_answer, function_code, is_correct
from metaprobe.records.types import AnswerCheck, Item

METALS = ("Lead", "Gold", "Iron", "Tin")
ASKS = "Which metal is it?\n" + "\n".join(f"{label}) {metal}" for label, metal in zip("ABCD", METALS, strict=True))


def form(answer: str, question: str = "How much is it?", check: AnswerCheck = "number") -> str:
    item = Item("i", question, check=check)
    return canonical(item, final_answer(item, answer))


def option(answer: str, *, listed: bool = True) -> str:
    item = Item("i", ASKS, choices=METALS if listed else (), check="choice")
    return canonical(item, final_answer(item, answer))


def right(answer: str, gold: str, question: str) -> bool:
    item = Item("i", question, gold=(gold,), check="number")
    return is_correct(item, final_answer(item, answer))


# Numbers


def test_a_note_of_the_calculator_says_nothing() -> None:
    noted = "So the total amount of fabric is 2+1=<<2+1=3>>3 bolts of fabric"
    assert right(noted, "3", "How many bolts in total does it take?")
    assert not right(noted, "2", "How many bolts in total does it take?")
    assert form("9 * 2 = $<<9*2=18>>18") == form("$18") != form("9 * 2 = $<<9*2=18>>17")


def test_the_currency_that_how_much_in_asks_for_is_no_other() -> None:
    asked = "She sells 9 eggs for $2 each. How much in dollars does she make every day?"
    assert right("18 dollars", "18", asked)
    assert right("$18", "18", asked)
    assert not right("18 cents", "18", asked)


def test_an_end_of_a_range_is_not_the_number() -> None:
    asked = "She has 16 eggs and 20 hens. How many eggs are there tomorrow?"
    for answer in ("between 16 and 18", "It is between 18 and 20.", "between 16 eggs and 18 eggs"):
        assert not right(answer, "18", asked), answer
        assert form(answer, asked) != "18", answer
    assert right("The difference between 16 and 20 is 4", "4", asked)
    assert right("There are 4 primes between 16 and 20", "4", asked)


def test_a_decrease_in_the_present_tense_is_no_increase() -> None:
    for falls in ("decreases by 5%", "drops by 5%", "falls by 5%", "declines by 5%", "shrinks by 5%"):
        assert form(falls) == form("decreased by 5%") != form("increases by 5%"), falls
        assert form(falls, "By how much does it decrease?") == form("5%", "By how much does it decrease?"), falls


APART = [
    ("9 per day", "9 per week", "9"),
    ("9 eggs/day", "9 eggs/week", "9 eggs"),
    ("just over 9", "just under 9", "slightly above 9", "9"),
    ("9 of the 12", "8 of the 12", "12"),
    ("9 cal", "9 kcal"),
]


@pytest.mark.parametrize("answers", APART)
def test_a_rate_a_bound_and_a_part_of_a_whole_keep_numbers_apart(answers: tuple[str, ...]) -> None:
    forms = [form(one, "How many?") for one in answers]
    assert all(forms)
    assert len(set(forms)) == len(forms), dict(zip(answers, forms, strict=True))


def test_a_rate_that_the_question_names_says_nothing() -> None:
    asked = "How many eggs does a duck lay in a week, at 2 per day?"
    assert form("14 per week", asked) == form("14 eggs per week", asked) == form("14", asked)


# Options


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        "A) ❌\nB) ✅\nC) ❌\nD) ❌",
        "A: incorrect\nB: correct\nC: incorrect\nD: incorrect",
        "A - wrong\nB - right\nC - wrong\nD - wrong",
        "A) Lead ❌\n\nAnswer: B",
        "B ✅\n❌ Lead is dull",
        "A) Lead\nB) Gold ✅\nC) Iron\nD) Tin",
        "A) Lead ❌\nB) Gold\nC) Iron ❌\nD) Tin ❌",
        "A) Lead\nB) Gold (correct)\nC) Iron\nD) Tin",
        "A) Lead - incorrect\nB) Gold - correct\nC) Iron - incorrect\nD) Tin - incorrect",
        "A) Lead\nB) Gold\nC) Iron\nD) Tin\n\nI'd say gold.",
        "❌ A\n✅ B",
        '{"answer":"B","reason":"A is wrong"}',
        '```json\n{"reason": "The answer: A is wrong", "answer": "B"}\n```',
        "Vastaus: B",
        "जवाब: B",
        "సమాధానం: B",
        "جواب: B",
    ],
)
def test_the_option_that_is_ticked_or_named_by_a_key_is_the_answer(answer: str, listed: bool) -> None:
    assert option(answer, listed=listed) == "Gold"


@pytest.mark.parametrize("answer", ["A) ❌", "A) ❌\nB) ❌", "A) ❌\nB) ✅\nC) ✅", "A is wrong\nB is wrong", "❌ A"])
def test_an_option_that_is_crossed_out_is_no_answer(answer: str) -> None:
    assert option(answer) == ""


@pytest.mark.parametrize(
    "answer",
    [
        "A) Lead\nB) Gold\nC) Iron\nD) Tin",
        "A) Lead ✅\nB) Gold ✅\nC) Iron\nD) Tin",
        "A) Lead ❌\nB) Gold ❌\nC) Iron ❌\nD) Tin ❌",
        "A: wrong. The metal is gold.",
    ],
)
def test_options_that_are_only_repeated_are_no_answer(answer: str) -> None:
    assert option(answer) == ""


def test_an_option_that_reads_as_a_denial_is_an_answer() -> None:
    item = Item("i", "Is it gold?\nA) Yes\nB) No", choices=("Yes", "No"), check="choice")
    for answer in ("B) No", "B. No. It is dull.", "B) No\n\nA is not so, as gold shines."):
        assert canonical(item, final_answer(item, answer)) == "No", answer


def test_only_one_text_or_number_under_the_key_is_the_answer_of_an_object() -> None:
    assert form('{"steps": "5 + 4", "final_answer": 9}') == form('{"answer": "9"}') == "9"
    assert form('{"answer": 9.50}') == form("9.5")
    for answer in ('{"answer": 9, "final_answer": 8}', '{"answer": [9]}', '{"answer": null}', '{"answer": 9'):
        assert form(answer) != "8", answer
    assert form('{"answer": 9, "final_answer": 8}') != form('{"answer": 7, "final_answer": 8}')


# Code

F = "```"
FENCES = {
    "a helper before it": ("def g(x):\n    return 2 * x", "def f(x):\n    return g(x)"),
    "a helper after it": ("def f(x):\n    return g(x)", "def g(x):\n    return 2 * x"),
    "its imports before it": ("import operator", "def f(x):\n    return operator.mul(2, x)"),
    "a helper of a helper": (
        "import operator",
        "def g(x):\n    return operator.mul(2, x)",
        "def f(x):\n    return g(x)",
    ),
    "a draft of the helper before it": (
        "def g(x):\n    return 3 * x",
        "def g(x):\n    return 2 * x",
        "def f(x):\n    return g(x)",
    ),
    "a draft that calls a helper": ("def f(x):\n    return g(x)", "def f(x):\n    return 2 * x"),
    "a use that reads input": ("def f(x):\n    return 2 * x", "print(f(int(input())))"),
}


@pytest.mark.parametrize("kind", FENCES)
def test_code_in_several_fences_is_joined_where_one_needs_the_other(kind: str) -> None:
    text = "\nThen:\n".join(f"{F}python\n{code}\n{F}" for code in FENCES[kind])
    names: dict[str, object] = {}
    exec(function_code(text) or "", names)
    assert names["f"](2) == 4  # type: ignore[operator]


def test_another_helper_makes_another_answer() -> None:
    texts = [
        f"{F}python\ndef g(x):\n    return {n} * x\n{F}\nThen\n{F}python\ndef f(x):\n    return g(x)\n{F}"
        for n in (2, 3)
    ]
    assert function_code(texts[0]) != function_code(texts[1])


def test_code_without_need_is_left_out() -> None:
    code = "def f(x):\n    return 2 * x"
    assert function_code(f"{F}python\nimport os\n{F}\n{F}python\n{code}\n{F}") == code


def test_the_tests_that_mbpp_marks_are_no_code() -> None:
    names: dict[str, object] = {}
    code = "def f(x):\n    return 2 * x"
    exec(function_code(f"[PYTHON]\n{code}\n[/PYTHON]\n[TESTS]\nassert f(2) == 4\n[/TESTS]") or "", names)
    assert names["f"](2) == 4  # type: ignore[operator]
