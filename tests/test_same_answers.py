"""When two answers are the same: each is read whole, and what cannot be read is compared as text."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metaprobe.papers.tasks.task import letter_options
from metaprobe.records.answers.mathematics import is_equal_latex
from metaprobe.records.answers.texts import words
from metaprobe.records.correctness import canonical, chosen, final_answer, function_code, is_correct
from metaprobe.records.types import AnswerCheck, Item
from metaprobe.routing.panel.compared_answers import MOST_TEXT, PanelAnswer, form_of

CASES = Path(__file__).parents[2] / "shared" / "cases"
"""Inputs that a contributor may have beside the repository."""
EGGS = "How many eggs are left?"


def form(answer: str, check: AnswerCheck = "number", question: str = EGGS) -> str:
    item = Item("i", question, check=check)
    return canonical(item, final_answer(item, answer))


def right(answer: str, gold: str, question: str = EGGS) -> bool:
    item = Item("i", question, gold=(gold,), check="number")
    return is_correct(item, final_answer(item, answer))


# Numbers

SAME_NUMBERS = [
    ("1/2", "0.5", "\\frac{1}{2}", "\\dfrac12", "½", "2/4", "one half", "50%", "$\\boxed{\\frac{1}{2}}$", ".5"),
    ("1 1/2", "1½", "1.5", "\\frac{3}{2}", "1\\frac{1}{2}", "one and a half", "150 %", "15e-1"),
    ("12500", "12,500", "12 500", "12\u202f500", "12\u00a0500", "12'500", "12’500", "12\\,500", "１２５００"),
    ("300000000", "3e8", "3 x 10^8", "3 × 10⁸", "3 \\times 10^{8}", "3*10**8", "300 million", "30,00,00,000"),
    ("-5", "–5", "−5", "－5", "- 5", "minus five", "negative 5", "\\boxed{-5}"),
    ("25", "twenty-five", "Twenty five", "#### 25", "So there are 25 eggs left.", "5^2", "Answer: 25.", "٢٥"),
    ("1234567.5", "1.234.567,5", "1,234,567.5", "1 234 567.5"),
    ("42", "She has 6 * 7 = 42 eggs.", "The answer is 42!", "\\[ \\boxed{42} \\]", "forty-two", "3.5 dozen"),
    ("5 cm^2", "5 cm²", "5 square centimeters", "5\\,\\text{cm}^2", "5 cm2"),
]


SAME_NUMBERS += [
    ("3000000", "3 million", "3 Millionen", "3 millones", "3 milhões", "30 lakh", "300万", "3 mln", "3 миллиона"),
    ("3/1000000", "3 millionths", "3e-6", "0.000003"),
    ("$5000000", "$5M", "$5 million", "$5m", "USD 5M", "US$ 5 million"),
    ("-5/11", "\\frac{5}{-11}", "\\frac{-5}{11}", "-\\frac{5}{11}"),
    ("12", "**Answer: 12**", "Answer: **12**", "Final answer: **$12$**.", "**12**"),
    ("1/2", "half", "a half", "Half."),
    ("1/3", "one-third", "one third"),
    ("-286 kJ/mol", "-286 kJ mol^-1", "\u2212286 kJ\u00b7mol\u207b\u00b9"),
    ("1, 2, 3", "1,2,3", "1, 2 and 3"),
    ("3 pm", "3 PM", "3 p.m."),
]


@pytest.mark.parametrize("spellings", SAME_NUMBERS)
def test_a_number_is_the_same_however_it_is_spelled(spellings: tuple[str, ...]) -> None:
    assert {form(one): one for one in spellings} == {form(spellings[0]): spellings[-1]}


APART = [
    ("3/7", "\\frac{2}{7}", "\\frac{3}{8}", "3", "7", "\\frac{3}{7}x"),
    ("1 1/2", "3 1/2", "1/2", "1"),
    ("14 500", "15 500", "500", "14"),
    ("2e8", "2 million", "8", "2"),
    ("10^6", "10^5", "6", "10"),
    ("6 cm^2", "8 cm^2", "6 cm", "6 m^2", "6"),
    ("6 cm", "6 m", "6 kg", "6 km/h", "6 °C", "6 am", "6 pm", "6"),
    ("2:45", "3:45", "45", "2"),
    ("–8", "8", "±8", "8!"),
    ("\\pm 8", "8", "-8"),
    ("thirty-five", "forty-five", "5"),
    ("\\sqrt{11}", "11", "\\sqrt{12}", "√13", "sqrt(14)"),
    ("4\\pi", "4", "4π^2", "5\\pi"),
    ("7x", "7", "7y", "x^7", "7x^2", "7i"),
    ("[1, 3]", "(1, 3)", "{1, 3}", "[1, 3)", "(1, 3]", "1, 3", "3"),
    ("3-9", "9", "3", "3 to 8", "3:9", "1 3 9"),
    ("2024-03-07", "2024-03-08", "7", "March 7", "April 7"),
    ("x = 2 or x = -2", "x = 3 or x = -2", "-2", "2"),
    ("x=1, y=4", "4", "x=2, y=4"),
    ("at least 4", "at most 4", "4", "more than 4", "4+"),
    ("9/0", "9", "0"),
    ("9%", "9", "8%"),
    ("$6", "£6", "€6", "6 cents"),
    ("0.666...", "0.666", "2/3"),
    ("f(4)", "4", "log 4", "twice 4", "4 squared", "4 mod 9"),
    ("1" * 1001, "1" * 1000, "1" * 1002),
    ("1e100000", "1e100001", "1"),
    ("3 h 10 min", "10 min", "3 h", "4 h 10 min"),
    ("five ten", "ten", "five"),
    ("12,5", "5", "12"),
    ("4 4", "4"),
    ("2x = 10", "10", "3x = 10", "x^2 = 10"),
    ("3 out of 5", "4 out of 5", "5"),
]


APART += [
    ("3 millionths", "3", "3 hundredths", "3 lakh", "3 crore", "3 万", "3 Milliarden", "3 mil"),
    ("$5M", "$5K", "$5", "$5B"),
    ("0.5 mol/L", "0.5 mol/kg", "0.5 mol", "0.5"),
    ("3 eV", "3 MeV", "3"),
    ("10 Ω", "10 kΩ", "10"),
    ("100 BTU", "100", "100 J", "100 kJ", "100 kWh"),
    ("3 PM", "3 AM", "3"),
    ("500 BC", "500"),
    ("\\frac{\\pi}{4}", "\\frac{\\pi}{3}", "4"),
    ("\\frac{x}{2}", "\\frac{2}{x}", "2"),
    ("12 \\pm \\pi x 12", "12", "\\pi x 12"),
    ("--5", "5", "-5"),
    ("\\times 12", "∞ 12", "12 )\\times", "[°12", "12"),
    ("($200)", "$200"),
    ("It was 5 on Monday and 7 on Tuesday", "It was 6 on Monday and 7 on Tuesday", "7"),
]


@pytest.mark.parametrize("answers", APART)
def test_no_answer_is_the_number_that_is_a_part_of_it(answers: tuple[str, ...]) -> None:
    forms = [form(one) for one in answers]
    assert len(set(forms)) == len(forms), dict(zip(answers, forms, strict=True))
    assert all(forms)


@pytest.mark.parametrize(
    ("gold", "refused"),
    [
        ("13", ("\\sqrt{13}", "13x", "13 or 14", "13%", "\\boxed{\\frac{1}{13}}", "-13", "13:00", "[13]", "13^2")),
        ("8", ("8\\pi", "\\pm 8", "8!", "2^8", "x > 8", "\\log 8", "1.8", "3/8", "5 - 8", "8 million", "8th")),
        ("1/3", ("0.33", "3", "1", "1/3x", "\\frac{1}{3}\\pi")),
    ],
)
def test_a_longer_expression_is_not_the_gold_number(gold: str, refused: tuple[str, ...]) -> None:
    assert [answer for answer in refused if right(answer, gold)] == []


@pytest.mark.parametrize(
    ("answer", "gold", "question"),
    [
        ("\\frac{1}{4}", "1/4", EGGS),
        ("0.25", "1/4", EGGS),
        ("5 apples", "5", "How many apples has she?"),
        ("2.5 cm", "2.5", "What is half of 5?"),
        ("It costs $18.00 in total.", "18", "An egg costs $3. What do 6 eggs cost?"),
        ("25%", "25", "What percentage is it?"),
        ("7 dozen", "7", "How many dozen eggs are 84 eggs?"),
        ("72 hours per year", "72", "How many hours does he work per year?"),
        ("She walked 10 miles after the 3rd turn.", "10", "How far did she walk after the 3rd turn?"),
        ("3. Add them: 5 + 6 = 11.\n4. So the total is 11 eggs.", "11", EGGS),
        ("32个", "32", "一共有多少个?"),
    ],
)
def test_a_number_in_its_dress_is_right(answer: str, gold: str, question: str) -> None:
    assert right(answer, gold, question)


def test_a_unit_that_the_question_asks_for_says_nothing_and_another_is_wrong() -> None:
    asked = "How many meters long is the rope?"
    assert form("5 m", question=asked) == form("5 meters", question=asked) == form("5", question=asked) == "5"
    assert form("5 km", question=asked) != "5"
    assert right("5 metres", "5", asked)
    assert not right("5 km", "5", asked)
    both = "The rope of 300 cm is cut into pieces of 1 m. How long is the rest?"
    assert len({form(one, question=both) for one in ("2", "2 m", "2 cm")}) == 3


def test_a_letter_that_was_not_asked_for_keeps_its_value_apart() -> None:
    asked = "Solve x + y = 6. What is x?"
    assert form("x = 3", question=asked) == form("3", question=asked) != form("y = 3", question=asked)
    assert form("y = 3", question="Find y.") == form("3", question="Find y.")
    assert form("F = 10 N", question="What is the force?") == form("10 N", question="What is the force?")


def test_a_number_that_only_repeats_the_question_is_not_the_answer() -> None:
    lottery = "Ann won $50. She paid 20% for the tax. How much is left?"
    assert form("Ann won $50. She paid 20%, so $50 * 0.2 = $10.", question=lottery) != form("50", question=lottery)
    books = "John writes 20 pages a day. How many days for 3 books that are 400 pages each?"
    assert form("He needs 60 days to write 3 books that are 400 pages each.", question=books) == "60"
    lights = "A trip takes 14 minutes. How many minutes more if all 3 lights are red?"
    assert form("14 minutes - 13 minutes = 1 minute longer if all 3 lights are red.", question=lights) != "3"


def test_a_unit_that_the_question_names_in_a_rate_or_by_how_old_says_nothing() -> None:
    speed = "A fox runs 50 km/h. What distance does it run in 2 hours?"
    assert form("100 km", question=speed) == form("100", question=speed) != form("100 m", question=speed)
    assert form("25 years old", question="How old is Matt?") == "25"
    wage = "He makes $80 in 8 hours. How much does he make per hour?"
    assert form("$10 per hour", question=wage) == form("10", question=wage) == form("$10", question=wage)
    assert form("$10 per hour", question="What is it?") != form("10", question="What is it?")
    assert not right("7 km/s", "7", "How fast is it, in m/s?")


def test_what_holds_no_number_is_a_text_only_where_it_may_be_an_answer() -> None:
    assert form("No solution") == form("no solution.") != ""
    assert form("\\emptyset") not in ("", form("\\infty"))
    assert {form("I do not know."), form("There is no way to tell that from the text."), form("")} == {""}


def spelled(value: Fraction, draw: Callable[[st.SearchStrategy[Any]], Any]) -> str:
    """The number in one of its spellings."""
    minus = draw(st.sampled_from(("-", "−", "–", "－", "minus "))) if value < 0 else ""
    size = abs(value)
    whole, rest = divmod(size.numerator, size.denominator)
    kinds = ["{n}/{d}", "\\frac{{{n}}}{{{d}}}", "$\\dfrac{{{n}}}{{{d}}}$"]
    if size.denominator == 1:
        kinds = ["{w}", "{w:,}", "{w}.0", "{w}e0", "\\boxed{{{w}}}", "#### {w}", "Answer: {w}.", "so we get {w} eggs."]
        if whole >= 1000:
            kinds += ["thin", "apostrophe"]
    elif whole and not minus.startswith("m"):
        kinds.append("{w} {r}/{d}")
    if 10**6 % size.denominator == 0:
        kinds.append("decimal")
    kind = draw(st.sampled_from(kinds))
    if kind == "decimal":
        digits = f"{size.numerator * 10**6 // size.denominator:07d}"
        return f"{minus}{digits[:-6]}.{digits[-6:]}"
    if kind in ("thin", "apostrophe"):
        return minus + f"{whole:,}".replace(",", "\u2009" if kind == "thin" else "'")
    shown = kind.format(n=size.numerator, d=size.denominator, w=whole, r=rest)
    for lead in ("$\\dfrac", "\\boxed{", "#### ", "Answer: ", "so we get "):
        if shown.startswith(lead):
            at = 1 if lead.startswith("$") else len(lead)
            return shown[:at] + minus + shown[at:]
    return minus + shown


VALUES = st.integers(-3000, 10**7).map(Fraction) | st.fractions(-50, 50, max_denominator=40) | st.builds(
    Fraction, st.integers(-5000, 5000), st.sampled_from((10, 100, 1000))
)  # fmt: skip


@given(VALUES, VALUES, st.data())
def test_numbers_are_the_same_exactly_where_they_are_equal(one: Fraction, other: Fraction, data: st.DataObject) -> None:
    first, second, third = (spelled(value, data.draw) for value in (one, one, other))
    assert form(first) == form(second) == str(one), (first, second)
    assert (form(first) == form(third)) == (one == other), (first, third)
    assert right(first, str(one))
    assert right(third, str(one)) == (one == other)


TOKENS = st.sampled_from(
    (
        "3",
        "12",
        "0.5",
        "1/2",
        "+",
        "-",
        "*",
        "/",
        "^",
        "=",
        "<",
        "(",
        ")",
        "[",
        "]",
        "x",
        "\\sqrt{2}",
        "\\pi",
        "\\pm",
        ",",
    )
)


@given(st.lists(TOKENS, min_size=2, max_size=6), st.data())
def test_an_expression_is_no_number_that_stands_in_it(tokens: list[str], data: st.DataObject) -> None:
    """A number that follows the last `=` or stands in brackets may be the answer; nothing else is a part of it."""
    assume(not {"=", "(", ")", ","} & set(tokens))
    numerals = [n for n, token in enumerate(tokens) if token[0].isdigit()]
    assume(numerals and tokens[0] not in "*+-")  # a sign, or what begins an item of a list
    lone = tokens[data.draw(st.sampled_from(numerals))]
    assume("".join(tokens) not in (f"+{lone}", lone))
    assert form(" ".join(tokens)) != form(lone), tokens
    assume(not (len(tokens) == 2 and tokens[1] in "-+:"))  # a mark behind a number may end a sentence
    assert form("".join(tokens)) != form(lone) or "".join(tokens).strip("+") == lone, tokens


# Texts

APART_TEXTS = [
    ("C", "C++", "C#", "C*", "D"),
    ("B+", "B-", "B"),
    ("y<4", "y>4", "y=4", "y<=4", "y≤4", "y≠4", "y 4"),
    ("[2,3)", "(2,3]", "[2,3]", "(2,3)", "{2,3}", "2,3"),
    ("==", "!=", "=", "->", "<-", "=>"),
    ("$7", "£7", "€7", "7", "7%", "7°"),
    ("[]", "{}", "()", '""', "[[]]", "[0]"),
    ("['a']", "[a]", "['a', 'b']"),
    ("2**3", "2*3", "2 3", "2+3", "2-3", "2/3"),
    ("os.path", "os path", "ospath"),
    ("a_b", "a b"),
    ("p -> ~q", "~p -> q", "p -> q"),
    ("Vitamin A", "Vitamin C", "Vitamin"),
    ("a+b", "b", "a", "a-b"),
    ("3:45", "3.45", "345", "3 45"),
    ("--help", "help"),
    ("f(x)", "f x", "fx"),
    (".5", "5"),
    ("R&B", "R B"),
    ("👍", "👎"),
]


APART_TEXTS += [
    ("-$200", "$200", "-£200"),
    ("- 3", "3"),
    ("5'", '5"', "5"),
]


@pytest.mark.parametrize("answers", APART_TEXTS)
def test_a_sign_that_carries_meaning_keeps_answers_apart(answers: tuple[str, ...]) -> None:
    forms = [form(one, "exact", "Which is it?") for one in answers]
    assert len(set(forms)) == len(forms), dict(zip(answers, forms, strict=True))
    assert all(forms)
    for gold in answers:
        item = Item("i", "Which is it?", gold=(gold,), check="exact")
        assert [other for other in answers if is_correct(item, other)] == [gold]


@pytest.mark.parametrize(
    "spellings",
    [
        (
            "Paris",
            "paris.",
            "**Paris**",
            '"Paris"',
            "*Paris*",
            "`Paris`",
            "Paris!",
            "$\\text{Paris}$",
            "“Paris”",
            "_Paris_",
        ),
        ("New York", "new york.", "New York", "Answer: New York", "- New York", "The answer is New York."),
        ("C++", "**C++**", "`C++`", "c++.", "Answer: C++"),
        ("well-known", "well known"),
        ("東京", "東京。", "「東京」"),
        ("-$200", "$-200", "−$200"),
        ("COVID-19", "Covid 19"),
        ("Qué", "¿Qué?"),
        ("São Paulo", "Sao Paulo"),
        ("x < 5", "x<5", "$x < 5$", "$x<5$"),
        ("[1, 2)", "[1,2)", "$[1, 2)$"),
    ],
)
def test_decoration_of_a_text_says_nothing(spellings: tuple[str, ...]) -> None:
    assert len({form(one, "exact", "Which is it?") for one in spellings}) == 1


MEANS = st.sampled_from("+/<>=[]{}%&|~^@")
NAMES = st.sampled_from(("b", "c1", "Paris", "x", "7", "red"))


@given(st.lists(st.tuples(NAMES, MEANS), min_size=1, max_size=5), NAMES | st.just(""), st.data())
def test_a_text_without_one_of_its_signs_or_words_is_another(
    parts: list[tuple[str, str]], end: str, data: st.DataObject
) -> None:
    left_out = data.draw(st.integers(0, 2 * len(parts) - 1))
    tokens = [token for part in parts for token in part] + [end]
    text, left = ("".join(one) for one in (tokens, tokens[:left_out] + tokens[left_out + 1 :]))
    assert form(text, "exact", "") != form(left, "exact", ""), (text, left)


def test_signs_alone_are_an_answer_that_a_panel_reads() -> None:
    for answer in ("[]", "{}", '""', "==", "->", "```\n[]\n```"):
        read, why = form_of(PanelAnswer(answer), Item("i", "What does it print?", check="exact"), "exact")
        assert (bool(read), why) == (True, ""), answer


# Options

COLOURS = ("red", "green", "blue", "none of these")
SHOWN = {
    "A)": letter_options(COLOURS),
    "(a)": "\n".join(f"({'abcd'[place]}) {choice}" for place, choice in enumerate(COLOURS)),
    "a.": "\n".join(f"{'abcd'[place]}. {choice}" for place, choice in enumerate(COLOURS)),
    "A.": "\n".join(f"{'ABCD'[place]}. {choice}" for place, choice in enumerate(COLOURS)),
}
BLUE = (
    *(
        "C",
        "c",
        "(c)",
        "c.",
        "C.",
        "**C**",
        "\\boxed{C}",
        "$\\boxed{\\text{C}}$",
        "\\textbf{C}",
        "[C]",
        "Option C",
        "C: blue",
    ),
    *(
        "The final answer is $\\boxed{C}$. I hope it is correct.",
        "Answer: (c) blue",
        "Neither A nor B, it's C.",
        "Not A, but C",
    ),
    *(
        "Antwort: C",
        "答案：C",
        "答案是C",
        "Réponse : C",
        "Respuesta: c)",
        "ответ: C",
        "答え：C",
        "정답: C",
        "Die Antwort ist C.",
    ),
    *("<think>A is right</think>C", "<think>\nAnswer: B\n</think>\n\nC", "I doubt it.\nAnswer: C", "I think it's C."),
)
NOT_ONE = ("(b) or (c)", "B or C", "B, C", "Neither A nor B", "B is wrong", "A cat", "Neither A nor C, it's C", "E", "")


BLUE += (
    *("La bonne réponse est la C.", "La respuesta correcta es C", "La opción correcta es C", "A resposta é a C"),
    *("La risposta corretta è C", "Правильный ответ: C", "Doğru cevap: C", "Jawaban yang benar adalah C", "选C"),
    *("Đáp án đúng là C", "सही उत्तर C है", "الإجابة الصحيحة هي C", "Het juiste antwoord is C", "答えはCです。"),
    *("정답은 C입니다", "答案为C", "Die Antwort lautet C", "คำตอบคือ C", "I'd go with C.", "C (not B)"),
)
NOT_ONE += (
    *(
        "Die Antwort ist nicht C",
        "La respuesta no es C",
        "答案不是C",
        "정답은 C가 아닙니다",
        "Ответ: A или C",
        "答案是A或C",
    ),
    *("La respuesta es A o C", "Jawaban bukan C", "Die Antwort ist A oder C", "الإجابة ليست C"),
)


@pytest.mark.parametrize("shown", SHOWN)
def test_the_letter_of_an_option_is_read_however_it_is_written(shown: str) -> None:
    item = Item("i", f"Which?\n{SHOWN[shown]}", choices=COLOURS, check="choice")
    assert [answer for answer in BLUE if chosen(item, final_answer(item, answer)) != "blue"] == []
    assert [answer for answer in NOT_ONE if chosen(item, final_answer(item, answer)) is not None] == []


def test_options_that_only_the_question_shows_are_compared_by_letter_or_words() -> None:
    item = Item("i", f"Which?\n{SHOWN['A)']}", check="choice")
    forms = {canonical(item, final_answer(item, one)) for one in (*BLUE, "C) blue", "C. blue", "blue", "[C]")}
    assert len(forms) == 1, forms
    others = [canonical(item, final_answer(item, one)) for one in ("A", "B", "D", "B or C", "not C", "E")]
    assert len({*others, *forms}) == len(others) + 1


def test_the_number_of_an_option_is_read_and_not_taken_for_its_text() -> None:
    item = Item(
        "i", "Which?\n" + "\n".join(f"{n}) {c}" for n, c in enumerate(COLOURS, 1)), choices=COLOURS, check="choice"
    )
    for answer in (
        "3",
        "3)",
        "(3)",
        "3.",
        "option 3",
        "The answer is 3.",
        "\\boxed{3}",
        "3) blue",
        "Neither 1 nor 2, it's 3",
    ):
        assert chosen(item, final_answer(item, answer)) == "blue", answer
    for answer in ("2 or 3", "3 apples", "5", "0", "3.5"):
        assert chosen(item, final_answer(item, answer)) is None, answer
    counts = ("2", "3", "1")
    turned = Item("i", "How many?\n1) 2\n2) 3\n3) 1", choices=counts, check="choice")
    assert chosen(turned, "3") is None, "the text of the second and the number of the third"
    assert chosen(turned, "2) 3") == "3"


LETTERS = st.sampled_from("ABCD")


@given(LETTERS, st.sampled_from(sorted(SHOWN)), st.text(" .,()*abcdABCD:\n", max_size=12))
def test_no_text_is_read_as_another_letter_than_it_holds(letter: str, shown: str, around: str) -> None:
    item = Item("i", f"Which?\n{SHOWN[shown]}", choices=COLOURS, check="choice")
    read = chosen(item, final_answer(item, f"{around}\nAnswer: {letter}"))
    assert read == COLOURS["ABCD".index(letter)]
    alone = chosen(item, around)
    assert alone is None or "abcd"[COLOURS.index(alone)] in around.lower()


# Code

DOUBLE, DRAFT = "def f(x):\n    return 2 * x", "def f(x):\n    return x"
F = "```"


def documented(label: str) -> str:
    """Code with a fence in its docstring."""
    return f'def f(x):\n    """Doubles.\n\n    {F}{label}\n    f(2)\n    {F}\n    """\n    return 2 * x'


CODE = {
    "alone": DOUBLE,
    "a fence": f"{F}python\n{DOUBLE}\n{F}",
    "without a label": f"Sure:\n{F}\n{DOUBLE}\n{F}\nDone.",
    "a draft before it": f"{F}python\n{DRAFT}\n{F}\nBetter:\n{F}python\n{DOUBLE}\n{F}",
    "a draft that does not parse": f"{F}python\ndef f(x)\n    return\n{F}\nBetter:\n{F}python\n{DOUBLE}\n{F}",
    "a draft in thinking": f"<think>\n{F}python\n{DRAFT}\n{F}\n</think>\n{F}python\n{DOUBLE}\n{F}",
    "an open fence in thinking": f"<think>\n{F}python\n{DRAFT}\n</think>\n{F}python\n{DOUBLE}\n{F}",
    "thinking before bare code": f"<think>\n{F}python\n{DRAFT}\n{F}\n</think>\n{DOUBLE}",
    "a shell before it": f"{F}bash\npip install numpy\n{F}\n{F}python\n{DOUBLE}\n{F}",
    "a shell after it": f"{F}python\n{DOUBLE}\n{F}\n{F}bash\npython f.py\n{F}",
    "its output after it": f"{F}python\n{DOUBLE}\n{F}\nOutput:\n{F}\n4\n{F}",
    "its use after it": f"{F}python\n{DOUBLE}\n{F}\nUse:\n{F}python\ny = f(2)\nprint(y)\n{F}",
    "other code after it": f"{F}python\n{DOUBLE}\n{F}\n{F}js\nfunction f(x) {{}}\n{F}",
    "in a list": f"1. Code:\n   {F}python\n   def f(x):\n       return 2 * x\n   {F}",
    "a fence in its docstring": f"{F}python\n{documented('')}\n{F}",
    "code in its docstring": f"{F}py\n{documented('python')}\n{F}",
    "a fence in a string": f'{F}python\ndef f(x):\n    s = """\n{F}\n"""\n    return 2 * x\n{F}',
    "only a closing mark": f"{DOUBLE}\n{F}",
    "a closing mark and words": f"Here it is:\n{DOUBLE}\n{F}\nThis doubles x.",
    "no closing mark": f"Here it is:\n{F}python\n{DOUBLE}",
    "a later one that is broken": f"{F}python\n{DOUBLE}\n{F}\nOr\n{F}python\ndef f(x):\n    return (\n{F}",
    "tildes": f"~~~python\n{DOUBLE}\n~~~",
    "four marks": f"{F}`python\n{DOUBLE}\n{F}`",
    "a mark at the end of its line": f"{F}python\n{DOUBLE}{F}",
    "lines of Windows": f"{F}python\n{DOUBLE}\n{F}\n".replace("\n", "\r\n"),
}


CODE |= {
    "its tests after it": f"{F}python\n{DOUBLE}\n{F}\n{F}python\ndef test_f():\n    assert f(2) == 4\n{F}",
    "a test case after it": f"{F}python\n{DOUBLE}\n{F}\n{F}python\nclass T(unittest.TestCase):\n    pass\n{F}",
    "marks of MBPP": f"[BEGIN]\n{DOUBLE}\n[DONE]",
    "a token at its end": f"{DOUBLE}<|endoftext|>",
    "prompts": f"{F}python\n>>> def f(x):\n...     return 2 * x\n>>> f(2)\n4\n{F}",
}


@pytest.mark.parametrize("kind", CODE)
def test_the_code_is_the_last_whole_fence_after_thinking(kind: str) -> None:
    item = Item("i", "Write f.", check="function")
    code = function_code(final_answer(item, CODE[kind]))
    scope: dict[str, Any] = {}
    exec(code or "", scope)
    assert scope["f"](4) == 8, code


def test_words_and_shells_are_no_code() -> None:
    for text in ("It is x plus x.", f"{F}bash\npip install x\n{F}", f"{F}\n4\n{F}", F, f"{F}python\n{F}", ""):
        assert function_code(text) is None, text


# Cost

UNITS = (
    "1 ",
    "1.",
    "five ",
    "a ",
    "answer: ",
    "\\boxed{",
    "\\frac{1",
    "$a$",
    "[",
    "(",
    "*",
    "<think>",
    "</think>",
    "\n",
    "A) ",
    "-",
)
"""Parts of which a hostile text consists."""
MOST_CALLS = 400_000
"""Calls of Python functions for one text of 100 KB. An honest answer takes some hundred."""


def calls_of(read: Callable[[], object]) -> int:
    """How many functions are called, of Python and of C."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        read()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("check", ["number", "choice", "exact"])
def test_reading_a_longer_text_takes_no_more_calls_where_it_is_bounded(check: AnswerCheck) -> None:
    """Regular expressions are linear; `test_linear_readers` tries them. What Python does for each match is counted."""
    choices = COLOURS if check == "choice" else ()
    item = Item("i", f"Which?\n{SHOWN['A)']}", choices=choices, check=check)
    for unit in UNITS:
        texts = [PanelAnswer(unit * (size // len(unit))) for size in (25_000, 100_000)]
        short, long = (calls_of(lambda text=text: form_of(text, item, check)) for text in texts)  # type: ignore[misc]
        assert long < 1.5 * short + 2000, (unit, short, long)
        assert long < MOST_CALLS / 8, (unit, long)


def test_a_text_that_grows_in_nfkc_is_too_long() -> None:
    item = Item("i", EGGS, check="exact")
    read, why = form_of(PanelAnswer("\ufdfa" * (MOST_TEXT // 10)), item, "exact")
    assert read is None
    assert "characters" in why
    assert form_of(PanelAnswer("\ufdfa" * 10), item, "exact")[0] is not None
    assert form_of(PanelAnswer("é" * 1000), item, "exact", most=1000)[0] is not None


def test_long_texts_are_the_same_where_all_of_them_is() -> None:
    long = "It rained on every day of that summer. " * 200
    assert form(long, "exact") == form(long.upper() + " ", "exact") != form(f"{long} Not.", "exact")


# Tables that lie beside the repository, and the extra


@pytest.mark.skipif(not (CASES / "equality" / "pairs.csv").exists(), reason="the shared cases are not here")
def test_the_shared_pairs_are_told_apart() -> None:
    with (CASES / "equality" / "pairs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            one, other = (form(row[side], row["reading"], row["question"]) for side in "ab")  # type: ignore[arg-type]
            assert (one == other) == (row["same"] == "yes"), row


@pytest.mark.skipif(not (CASES / "code" / "texts.jsonl").exists(), reason="the shared cases are not here")
def test_the_shared_texts_give_the_code_that_doubles() -> None:
    item = Item("i", "Write f.", check="function")
    for line in (CASES / "code" / "texts.jsonl").read_text(encoding="utf-8").splitlines():
        code = function_code(final_answer(item, json.loads(line)["text"]))
        assert code is not None
        assert "2 * x" in code


def test_math_verify_agrees_where_both_read() -> None:
    pytest.importorskip("math_verify")
    for text, value in (
        ("\\frac{7}{13}", "7/13"),
        ("\\dfrac{1}{2}", "1/2"),
        ("-\\frac{3}{4}", "-3/4"),
        ("3 \\times 10^{8}", "3e8"),
    ):
        wanted = Fraction(value)
        assert form(f"\\boxed{{{text}}}") == str(wanted)
        assert is_equal_latex(f"\\boxed{{{text}}}", wanted)
        assert not is_equal_latex(f"\\boxed{{{text}}}", wanted + 1)
    for text, value in (("\\sqrt{17}", 17), ("6\\pi", 6), ("\\pm 3", 3), ("5x", 5), ("\\{5\\}", 5), ("[5, 6)", 5)):
        assert not is_equal_latex(f"\\boxed{{{text}}}", Fraction(value)), text
    assert right("\\boxed{\\sqrt{16}}", "4"), "what only the library reads"
    assert not right("\\boxed{9^{9^{9^{9}}}}", "4"), "and what it would never end with is not given to it"


def test_words_of_a_plain_text_are_what_they_were() -> None:
    assert words("The capital of France is Paris.") == ("capital", "of", "france", "is", "paris")
    assert words("it's 3 + 4 = seven") == ("its", "3", "+", "4", "=", "7")


def test_odd_code_of_a_model_makes_no_warning() -> None:
    """In a process of its own, for pytest sets filters of warnings by itself."""
    script = (
        "from metaprobe.records.correctness import function_code; print(function_code('def f():\\n    return 1(2)'))"
    )
    done = subprocess.run([sys.executable, "-W", "default", "-c", script], capture_output=True, text=True, check=True)
    assert "return 1(2)" in done.stdout
    assert done.stderr == ""
