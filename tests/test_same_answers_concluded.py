"""The sentence that gives the answer is read whole: conclusions, bodies of functions, ticked options, last signs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.records.correctness import canonical, final_answer, function_code, is_correct
from metaprobe.records.types import AnswerCheck, Item
from metaprobe.routing.panel.compared_answers import PanelAnswer

EGGS = "Ann has 12 eggs and a basket. How many eggs are left?"
CITIES = ("Oslo", "Rome", "Lima", "Cairo")
ASKS = "Which city?\n" + "\n".join(f"{label}) {city}" for label, city in zip("ABCD", CITIES, strict=True))
STUB = (
    "from typing import List\n\n\ndef double(xs: List[int]) -> List[int]:\n"
    '    """Doubles all.\n\n    >>> double([1])\n    [2]\n    """\n'
)
BODY = "    out = []\n    for x in xs:\n        out.append(2 * x)\n    return out"


def form(answer: str, question: str = EGGS, check: AnswerCheck = "number") -> str:
    item = Item("i", question, check=check)
    return canonical(item, final_answer(item, answer))


def right(answer: str, gold: str, question: str = EGGS) -> bool:
    item = Item("i", question, gold=(gold,), check="number")
    return is_correct(item, final_answer(item, answer))


def option(answer: str) -> str:
    item = Item("i", ASKS, choices=CITIES, check="choice")
    return canonical(item, final_answer(item, answer))


# Numbers


@pytest.mark.parametrize(
    "answer",
    [
        "She has 9 left after selling 3",
        "Ann has 9, Bob has 8",
        "There are 9 eggs in 2 boxes.",
        "9 left, then 8",
        "Box: 9 eggs, bag: 8 eggs, together: 17 eggs",
        "9 eggs are left after 3 are sold.",
        "9 are left of 17",
        "the 9th of 17",
    ],
)
def test_one_of_several_new_numbers_is_not_taken_for_the_answer(answer: str) -> None:
    assert form(answer).startswith("text:"), form(answer)
    for number in ("9", "8", "3", "2", "17"):
        assert not right(answer, number), number


@given(st.integers(13, 999), st.integers(13, 999))
def test_two_unlike_numbers_with_a_name_each_are_never_one_of_them(one: int, other: int) -> None:
    both = f"Bob has {one}, Cem has {other}"
    assert one == other or form(both) not in (form(str(one)), form(str(other)))


@pytest.mark.parametrize(
    "answer",
    [
        "She sells 3 of the eggs. So she has 9 left.",
        "She sells 3 eggs at noon. Then 12 - 3 = 9. Therefore, there are 12 - 3 = 9 eggs left.",
        "First she sells 2, then 1. Hence, 9 are left after all.",
        "She keeps 20 and gives away 11. The answer is 9.",
        "Ann has 12 eggs. There are 9 eggs left.",
        "Sure! There are 9 eggs left.",
        "Mrs. Hill has 9 eggs left.",
        "... so she has 9 left.",
    ],
)
def test_the_sentence_that_concludes_gives_the_number(answer: str) -> None:
    assert right(answer, "9")
    assert form(answer) == "9"
    assert not right(answer, "3")


def test_a_conclusion_that_is_cut_gives_no_number_of_an_earlier_step() -> None:
    assert not right("55 * 5 = 275. Therefore, 275 + 936 =", "275", "What is 55 * 5 + 936?")
    assert form("55 * 5 = 275. Therefore, 275 + 936 =", "What is 55 * 5 + 936?").startswith("text:")


def test_an_explanation_after_the_number_says_nothing() -> None:
    assert right("9. She sells 3 of them.", "9")
    assert right("The code prints 7. This is because 14 divided by 2 equals 7.", "7", "What is printed?")
    assert not right("Impossible. She sells 3 of them.", "3")


def test_a_negation_of_the_question_does_not_deny_the_number() -> None:
    asked = "How many pupils do not read novels?"
    assert right("16 pupils do not read novels.", "16", asked)
    assert not right("not 16", "16", asked)
    assert form("not 16", asked) == "not 16" != form("16", asked)


def test_a_title_ends_no_sentence_of_a_text() -> None:
    asked = "In which country is St. Mary's Church located?"
    assert form("St. Mary's Church is located in India.", asked, "exact") == "india"


def test_two_units_of_one_dimension_are_one_quantity() -> None:
    assert form("1 hour 30 minutes", "How long?") == form("1 hour and 30 minutes", "How long?")
    assert form("1 hour 30 minutes", "How long?") != form("1 hour 31 minutes", "How long?")
    assert form("20 degrees Celsius", "How hot?") == form("20 °C", "How hot?") != form("20 degrees", "How hot?")


# Code


@pytest.mark.parametrize(
    "answer",
    [
        BODY,
        BODY.strip(),
        f"{BODY}\n\n\nprint(double([1]))\n",
        f"```python\n{BODY}\n```",
        f"The body is:\n```python\n{BODY.strip()}\n```\nIt doubles each.",
        "\treturn [2 * x for x in xs]",
        "return [2 * x for x in xs]",
        "<think>Easy.</think>\n    return [2 * x for x in xs]",
        "    def twice(x):\n        return 2 * x\n    return [twice(x) for x in xs]",
        f"{STUB}{BODY}",
    ],
)
@pytest.mark.parametrize(
    "question", [STUB, f"Complete this:\n```python\n{STUB}    # your code\n```\nAnswer with the body."]
)
def test_the_body_of_a_function_completes_the_one_that_the_question_leaves_open(answer: str, question: str) -> None:
    item = Item("i", question, gold=("assert double([1, 2]) == [2, 4]",), check="function")
    assert is_correct(item, final_answer(item, answer))
    assert not is_correct(item, final_answer(item, answer.replace("2 * x", "3 * x")))


def test_bodies_are_code_without_a_question_too() -> None:
    assert PanelAnswer(BODY).same_as(PanelAnswer(BODY.strip())) is True
    assert PanelAnswer("    return x + 1").same_as(PanelAnswer("    return x - 1")) is False
    assert PanelAnswer("def f():\n    return 1").same_as(PanelAnswer("def g():\n    return 1")) is False
    for prose in ("return to sender", "It returns x.", "I return home.", "    pass"):
        assert function_code(prose) is None, prose


def test_an_equation_alone_is_no_code() -> None:
    assert PanelAnswer("x = 5").same_as(PanelAnswer("x = 5.")) is True
    assert PanelAnswer("x = 5").same_as(PanelAnswer("5"), "Solve for x.") is True


# Options


@pytest.mark.parametrize(
    "answer",
    [
        "✅ A) Oslo\n✅ C) Lima",
        "✓ A\n✓ B",
        "A ✓, C ✓",
        "[x] A\n[ ] B\n[x] C\n[ ] D",
        "☑ A\n☐ B\n☑ C\n☐ D",
        "☑ A ☐ B ☑ C ☐ D",
        "A) Oslo ✔\nC) Lima ✔",
        "A) Oslo ✔\nB) Rome\nC) Lima ✔\nD) Cairo",
        "- [x] A) Oslo\n- [x] B) Rome\n- [x] C) Lima\n- [x] D) Cairo",
        "I'd say B, maybe C",
    ],
)
def test_several_ticked_options_are_no_single_one(answer: str) -> None:
    assert option(answer) == ""


@pytest.mark.parametrize(
    "answer",
    [
        "- [ ] A) Oslo\n- [x] B) Rome\n- [ ] C) Lima\n- [ ] D) Cairo",
        "☐ A\n☑ B\n☐ C\n☐ D",
        "[ ] A [x] B [ ] C [ ] D",
        "A: ✘, B: ✔, C: ✘, D: ✘",
        "Checked: ✅\nAnswer: B",
        "✔ B",
        "B ✔️",
        "A) Oslo ✔\nB) Rome ✔\n\nI choose B.",
        "✅ Rome",
    ],
)
def test_the_one_ticked_option_or_the_one_named_after_the_ticks_is_the_answer(answer: str) -> None:
    assert option(answer) == "Rome"


# Signs


@pytest.mark.parametrize(
    "answers",
    [
        ("a?", "a", "a??"),
        ("[a-z]?", "[a-z]", "[a-z]+"),
        ("(a|b)?", "(a|b)"),
        ("a?b", "a b", "ab"),
        ("#!", "#", "!"),
        ("a*?", "a*"),
        (":=", "=", "-=", "=="),
        ("<?", "<", "?>", ">"),
        ("The operator is :=", "The operator is ="),
    ],
)
def test_a_mark_that_belongs_to_a_sign_or_one_letter_keeps_texts_apart(answers: tuple[str, ...]) -> None:
    forms = [form(one, "Which one?", "exact") for one in answers]
    assert len(set(forms)) == len(forms), forms


@given(st.text("#!?+<>=&|^~@%:/-", min_size=1, max_size=3), st.text("#!?+<>=&|^~@%:/-", min_size=1, max_size=3))
def test_no_two_texts_of_signs_alone_are_one(one: str, other: str) -> None:
    stopped = re.sub("(?<=[#+<>=&|^~@%/]):$", "", one), re.sub("(?<=[#+<>=&|^~@%/]):$", "", other)
    same = form(one, "Which one?", "exact") == form(other, "Which one?", "exact")
    assert same == (stopped[0] == stopped[1])


def test_a_mark_after_a_word_ends_a_sentence() -> None:
    assert form("∞.", "How many?", "exact") == form("∞", "How many?", "exact")
    for one in ("Quack!", "Quack?", "Quack.", "quack!!", "“Quack”"):
        assert form(one, "Which sound?", "exact") == "quack", one


def test_scripts_and_greek_letters_of_latex_are_compared_as_shown() -> None:
    assert form("$x^{2}+1$", "Simplify.", "exact") == form("x^2+1", "Simplify.", "exact")
    assert form("x_{1}", "Simplify.", "exact") == form("x_1", "Simplify.", "exact") != form("x_2", "Simplify.", "exact")
    assert form("$\\alpha$", "Which?", "exact") == form("α", "Which?", "exact") != form("\\beta", "Which?", "exact")
    assert form("10^{3}5", "How many?") != form("10^{35}", "How many?")
