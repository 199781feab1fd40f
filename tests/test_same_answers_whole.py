"""Words and marks beside a number, a letter or a text that make it another answer."""

import pytest

from metaprobe.records.correctness import canonical, final_answer, function_code, is_correct
from metaprobe.records.types import AnswerCheck, Item


def form(answer: str, question: str = "How much is it?", check: AnswerCheck = "number") -> str:
    item = Item("i", question, check=check)
    return canonical(item, final_answer(item, answer))


APART_NUMBERS = [
    ("half a million", "a million", "half a billion"),
    ("half a dozen", "a dozen", "half a hundred"),
    ("half past 9", "half past 8", "9"),
    ("half past nine", "quarter past nine", "quarter to nine", "nine"),
    ("ten past nine", "ten past ten", "ten"),
    ("9 hours and a half", "9 hours"),
    ("9 heures et demie", "9 heures"),
    ("9 decades", "9 centuries", "9 millennia", "9 fortnights", "9 years", "9"),
    ("9 teaspoons", "9 tablespoons", "9 cups", "9 pints", "9"),
    ("9 pairs", "9 people"),
    ("9 kr", "9 zł", "9"),
    ("over 9", "under 9", "9"),
    ("It is over 9", "It is 9"),
    ("9 or undefined", "9 or none", "9"),
    ("up 9%", "down 9%"),
    ("9 more", "9 fewer"),
    ("an increase of 9", "a decrease of 9"),
    ("a profit of $9", "a loss of $9"),
    ("Week 9", "Day 9", "Tuesday 9", "Monday 9", "9"),
    ("\\boxed{9}, not \\boxed{8}", "\\boxed{8}"),
    ("So 4 are left, that is 2 + 2 = 4, not 3 + 6 = 9", "There are 2 of them: 3 + 6 = 9"),
    ("9 pairs of socks and 6 shirts", "8 pairs of socks and 6 shirts", "6"),
    ("He buys 9 kg of rice and 6 apples", "He buys 8 kg of rice and 6 apples", "6"),
]


@pytest.mark.parametrize("answers", APART_NUMBERS)
def test_what_changes_a_number_keeps_it_apart(answers: tuple[str, ...]) -> None:
    forms = [form(one) for one in answers]
    assert all(forms), dict(zip(answers, forms, strict=True))
    assert len(set(forms)) == len(forms), dict(zip(answers, forms, strict=True))


ONE_NUMBER = [
    ("What is the area?", ("720 sq. ft.", "720 sqft", "720 sq ft", "720 square feet", "It is 720 sq. ft. in all.")),
    ("How many fishes are there?", ("1050 fish", "1050", "There are 1050 fishes.")),
    ("How many?", ("15 Step-by-step", "15")),
    ("Wann wurde sie erbaut?", ("Die Kirche wurde im Jahr 1745 erbaut.", "1745 erbaut", "1745")),
    ("Wie alt ist er?", ("26 Jahre", "26")),
    ("Hur gammal är han?", ("26 år", "26")),
    ("Combien a-t-il coûté ?", ("550 millions de dollars", "550 millions $", "$550 million")),
    ("How many cups?", ("12 cups", "12")),
    ("How many fewer?", ("5 fewer", "5")),
    ("In which week?", ("Week 9", "9")),
    ("How many?", ("half a dozen", "6")),
    ("How many?", ("9 or so", "9")),
    ("How long is it?", ("28.3 cm (approximated using 3.14)", "28.3 cm")),
    ("How many are there?", ("9 (5 red and 4 blue)", "9")),
    ("How many?", ("\\boxed{9}, not \\boxed{8}", "9")),
]


@pytest.mark.parametrize(("question", "answers"), ONE_NUMBER)
def test_what_says_nothing_beside_a_number_is_left_out(question: str, answers: tuple[str, ...]) -> None:
    assert {one: form(one, question) for one in answers} == dict.fromkeys(answers, form(answers[-1], question))


def test_half_a_number_is_not_right_for_the_whole_number() -> None:
    for gold, answer in (("1000000", "half a million"), ("9", "half past nine"), ("8", "\\boxed{9}, not \\boxed{8}")):
        item = Item("i", "How much is it?", gold=(gold,), check="number")
        assert not is_correct(item, final_answer(item, answer)), answer


# Options

PLANETS = ("Mercury", "Venus", "Earth", "Mars")
TEN = (*PLANETS, "Jupiter", "Saturn", "Uranus", "Neptune", "Pluto", "Ceres")


def option(answer: str, ask: str = "Which is the third planet?", choices: tuple[str, ...] = PLANETS) -> str:
    shown = "\n".join(f"{label}) {choice}" for label, choice in zip("ABCDEFGHIJ", choices, strict=False))
    item = Item("i", f"{ask}\n{shown}", choices=choices, check="choice")
    return canonical(item, final_answer(item, answer))


@pytest.mark.parametrize(
    "answer",
    ["C is false", "Option C is out", "Option C is eliminated", "Option C fails", "The wrong answer is C", "~~C~~",
     "C++", "C#", "A-C", "Answer: C -> B", "The incorrect option is C", "C was my first guess; B is my answer",
     "A: wrong", "A: no. B: no. C: yes.", "A - wrong\nB - right\nC - right", "The answer is A B",
     "\\boxed{B}, \\boxed{C}"],
)  # fmt: skip
def test_no_letter_is_read_that_is_denied_or_one_of_several(answer: str) -> None:
    assert option(answer) == ""


def test_what_the_question_asks_to_deny_is_the_answer() -> None:
    for ask, answer in (
        ("Which of these is not a planet?", "C is not a planet"),
        ("Which statement is false?", "C is false"),
        ("Which one is wrong?", "The wrong answer is C"),
        ("All of these are hot except:", "C is not hot."),
    ):
        assert option(answer, ask) == "Earth", answer
    assert option("C is not correct", "Which of these is not a planet?") == ""


def test_a_letter_beside_a_struck_out_or_denied_one_is_read() -> None:
    assert option("~~B~~ C") == option("\\boxed{C}, not \\boxed{B}") == option("Option B fails, option C") == "Earth"
    assert option("C, so I choose C", choices=TEN) == option("C and I am sure", choices=TEN) == "Earth"


def test_a_text_and_a_letter_of_two_options_are_no_answer() -> None:
    assert option("It is 4, so C", "How many?", ("3", "4", "5", "6")) == ""
    assert option("It is 5, so C", "How many?", ("3", "4", "5", "6")) == "5"


# Texts


@pytest.mark.parametrize("answers", [("f'(x)", "f''(x)", "f(x)"), ("f()", "f"), ("__init__", "init"), ("x::y", "x:y")])
def test_signs_that_belong_to_a_name_keep_texts_apart(answers: tuple[str, ...]) -> None:
    assert len({form(one, "What is it?", "exact") for one in answers}) == len(answers)


def test_bold_type_and_primes_of_quotations_say_nothing() -> None:
    for pair in (("__Paris__", "Paris"), ("**Paris**", "Paris"), ("'Paris'", "Paris"), ("don't", "dont")):
        assert len({form(one, "What is it?", "exact") for one in pair}) == 1, pair


# Code

CODE = "def f(x):\n    return 2 * x"
FENCED = f"```python\n{CODE}\n```"


@pytest.mark.parametrize(
    "text",
    [
        f"{FENCED}\nUse:\n```python\ndef main():\n    print(f(2))\n\nmain()\n```",
        "Answer:\n\n    def f(x):\n        return 2 * x\n",
        "- It doubles:\n\n    def f(x):\n        return 2 * x\n\nDone.",
        "```python\n\u200bdef f(x):\n    return 2 * x\n```",
        f"```python\n{CODE}``` That is it.",
        "> > ```python\n> > def f(x):\n> >     return 2 * x\n> > ```",
    ],
)
def test_code_is_found_beside_its_use_and_in_indented_text(text: str) -> None:
    code = function_code(text)
    assert code is not None
    names: dict[str, object] = {}
    exec(code, names)
    assert names["f"](2) == 4  # type: ignore[operator]


def test_a_main_function_is_the_answer_where_nothing_else_is_defined() -> None:
    assert function_code("```python\ndef main():\n    return 4\n```\nRun:\n```python\nmain()\n```") == (
        "def main():\n    return 4"
    )


def test_options_of_marks_alone_are_found_by_their_letters() -> None:
    assert option("C", "Which operator is the power?", ("not in", "is", "**", "//")) == "**"
    assert option("B", "Which is bold?", ("_", "__", "*", "~")) == "__"
