"""Answers in other scripts, languages and shapes are read whole: numbers, units, options and code."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.papers.tasks.task import letter_options
from metaprobe.records.correctness import canonical, final_answer, function_code, is_correct
from metaprobe.records.types import AnswerCheck, Item

ASKED = "How much is it?"


def form(answer: str, check: AnswerCheck = "number", question: str = ASKED) -> str:
    item = Item("i", question, check=check)
    return canonical(item, final_answer(item, answer))


SAME_NUMBERS = [
    ("-37", "﹘37", "˗37", "⁻37", "➖37", "минус 37", "moins 37", "menos 37", "ناقص ٣٧", "负37", "マイナス37"),
    ("14500", "14ʼ500", "14_500", "14\u2007500", "14\u3000500", "١٤٬٥٠٠", "1,45·10⁴", "1.45 x 10 to the 4th power"),
    ("3/8", "\\sfrac{3}{8}", "\\nicefrac{3}{8}", "{3 \\over 8}", "3∕8", "⅜", "three eighths", "375‰", "375 per mille"),
    ("2 3/8", "2 ⅜", "two and three eighths", "19/8"),
    ("6/100", "6%", "6 Prozent", "6 pour cent", "6 por ciento", "6 процентов", "6٪", "6パーセント", "6퍼센트"),
    ("4000000", "4 млн", "4 миллиона", "4 triệu", "4 ملايين", "40 लाख", "400万", "400만", "4,0 Millionen"),
    ("3000", "3 тыс.", "3 duizend", "3 tusen", "3천", "3 ألف"),
    ("7/2 €", "€ 3,50", "3,5 €", "3.5 euros"),
    ("21", "\\fbox{21}", "\\begin{equation}21\\end{equation}", "答案是 **21**。", "答えは21です", "Résultat : 21"),
    ("5 km", "5 км", "5 公里", "5 كم", "5 Kilometer", "5 kilómetros"),
    ("3 h", "3 Stunden", "3 heures", "3 horas", "3 часа"),
    ("\\boxed{3}, \\boxed{4}", "$\\boxed{3}$ and $\\boxed{4}$", "3, 4"),
]


@pytest.mark.parametrize("spellings", SAME_NUMBERS)
def test_a_number_is_the_same_in_every_script_and_language(spellings: tuple[str, ...]) -> None:
    assert {one: form(one) for one in spellings} == dict.fromkeys(spellings, form(spellings[-1]))


APART = [
    ("∛19", "√19", "∜19", "19", "⌊19.5⌋", "⌈19.5⌉", "19.5", "∑19"),
    ("4‰", "4%", "4", "4‱", "4 percentage points"),
    ("3 Stunden", "3 Minuten", "3 Tage", "3 Jahre", "3"),
    ("4 lux", "4 bits", "4 bytes", "4 px", "4 kr", "4 zł", "4 grand", "4"),
    ("4'", '4"', "4"),
    ("₿8", "₴8", "$8", "Fr. 8"),
    ("0.4\u0305", "0.4", "0.4 repeating"),
    ("8 or more", "8", "mindestens 8", "au moins 8", "8 below zero"),
    ("x ≠ 8", "8", "x > 8"),
    ("300 v. Chr.", "300 n. Chr.", "300"),
    ("8 de mayo de 1999", "9 de mayo de 1999", "1999"),
    ("al menos 8", "menos 8", "8"),
    ("2 x 10 to the 8", "3 x 10 to the 8", "8"),
    ("ten to the sixth", "ten to the fifth", "10"),
    ("\\boxed{5}, \\boxed{8}", "\\boxed{6}, \\boxed{8}", "\\boxed{8}"),
    ("x = \\boxed{5}, y = \\boxed{8}", "x = \\boxed{6}, y = \\boxed{8}", "8"),
    ("x = 5 and x = 8", "x = 6 and x = 8", "8"),
    ("treinta cinco", "cuarenta cinco"),
    ("6!!", "6!", "6"),
    ("3,5", "3", "5", "35"),
]


@pytest.mark.parametrize("answers", APART)
def test_what_belongs_to_a_number_keeps_it_apart(answers: tuple[str, ...]) -> None:
    forms = [form(one) for one in answers]
    assert all(forms)
    assert len(set(forms)) == len(forms), dict(zip(answers, forms, strict=True))


def test_what_is_counted_says_nothing() -> None:
    assert form("7 apples") == form("There are 7.") == form("7 people") == "7"


def test_the_last_of_two_boxes_counts_where_they_are_not_joined() -> None:
    assert form("First \\boxed{3}. But then \\boxed{4}") == form("\\boxed{3}\n\n\\boxed{4}") == "4"


def test_a_decimal_comma_is_read_where_the_question_is_asked_in_such_a_language() -> None:
    for question in ("Wie viele Liter sind das?", "Combien de litres ?", "¿Cuántos litros son?", "Сколько литров?"):
        assert form("3,5", question=question) == form("3.5", question=question) == "7/2"
        assert is_correct(Item("i", question, gold=("3,5",), check="number"), "3.5")
    assert form("3,5", question="Give all solutions.") not in ("7/2", "3", "5")


MINUS = st.sampled_from(("-", "−", "–", "－", "﹘", "minus ", "moins ", "menos ", "минус ", "负", "マイナス"))
UNIT = st.sampled_from(("", " km", " Stunden", " €", " %", " ‰", " Millionen", " млн", "万", " kr", " Jahre", " कि"))
WHOLE = st.integers(1, 9999)


@given(WHOLE, WHOLE, MINUS, UNIT, st.booleans(), st.booleans())
def test_numbers_that_differ_by_value_or_sign_differ(
    one: int, other: int, minus: str, unit: str, first_negative: bool, second_negative: bool
) -> None:
    first, second = (("" if not negative else minus) + str(value) + unit for value, negative in
                     ((one, first_negative), (other, second_negative)))  # fmt: skip
    assert (form(first) == form(second)) == (one == other and first_negative == second_negative), (first, second)


@given(WHOLE, st.sampled_from(("٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "๐๑๒๓๔๕๖๗๘๙")), MINUS)
def test_digits_of_every_script_are_digits(value: int, digits: str, minus: str) -> None:
    spelled = "".join(digits[int(digit)] for digit in str(value))
    assert form(spelled) == str(Fraction(value))
    assert form(minus + spelled) == str(-value)


# Texts

APART_TEXTS = [
    ("A–", "A", "A+"),
    ("か", "が"),
    ("は", "ば", "ぱ"),
    ("й", "и"),
    ("क", "क्"),
    ("./a", "../a", "/a"),
    (".*", "*"),
    ("n!", "n!!", "n"),
    ("x'", "x''", "x"),
]


@pytest.mark.parametrize("answers", APART_TEXTS)
def test_a_mark_that_makes_another_sign_keeps_texts_apart(answers: tuple[str, ...]) -> None:
    assert len({form(one, "exact", "What is it?") for one in answers}) == len(answers)


def test_accents_and_points_that_some_leave_out_say_nothing() -> None:
    for pair in (("São Paulo", "Sao Paulo"), ("ёлка", "елка"), ("كِتَاب", "كتاب"), ("Paris!", "paris")):
        assert len({form(one, "exact", "What is it?") for one in pair}) == 1, pair


# Options

PLANETS = ("Mercury", "Venus", "Earth", "Mars")
LINES = {
    "A - x": "{} - {}", "A – x": "{} – {}", "bullets": "- {}) {}", "bold": "**{}.** {}", "bold letter": "**{}** {}",
    "table": "| {} | {} |", "tab": "{}\t{}", "A、": "{}、{}", "fullwidth": "（{}）{}", "tight": "{}){}",
    "wide": "{})   {}", "Option": "Option {}: {}", "angle": "<{}> {}", "quoted": '"{}": "{}"',
}  # fmt: skip
INSIDE = {"(A) x (B) y": "({}) {} ", "A) x, B) y": "{}) {}, ", "A: x; B: y": "{}: {}; "}
SHOWN = {name: "\n".join(map(line.format, "ABCD", PLANETS)) for name, line in LINES.items()} | {
    name: "".join(map(part.format, "ABCD", PLANETS)) for name, part in INSIDE.items()
}
ASKS = "Which is the third planet?\n"
TO_EARTH = (
    "C", "(C)", "Ans: C", "I believe it's C.", "The answer must be C", "Solution: C", "Opción C",
    "La opción C es correcta", "La respuesta correcta es la opción C.", "Richtig ist Antwort C.", "Doğru cevap C",
    "Jawabannya adalah C", "故选：C", "因此选C。", "本题答案为C",
    "Cが正解です。", "정답은 C입니다.", "Ответ: C", "الجواب: C", "Neither A nor B, it's C",
)  # fmt: skip
NOT_EARTH = (
    "A correct answer", "Not C", "C or D", "C is tempting, but D is right", "I would not choose C", "答案不是C",
    "不选C", "La respuesta no es C", "Die Antwort ist nicht C", "Vitamin C", "C is wrong", "So A, therefore D", "C → D",
)  # fmt: skip


def option(answer: str, shown: str, listed: bool) -> str:
    item = Item("i", ASKS + shown, choices=PLANETS if listed else (), check="choice")
    return canonical(item, final_answer(item, answer))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("shape", SHOWN)
def test_a_letter_is_read_however_the_options_are_shown(shape: str, listed: bool) -> None:
    assert {answer: option(answer, SHOWN[shape], listed) for answer in TO_EARTH} == dict.fromkeys(TO_EARTH, "Earth")


def test_no_answer_is_read_as_a_letter_that_it_does_not_give() -> None:
    found = {answer: option(answer, letter_options(PLANETS), True) for answer in NOT_EARTH}
    assert [answer for answer, chosen in found.items() if chosen not in ("", "Mars")] == []


@pytest.mark.parametrize(
    ("labels", "answers"),
    [
        ("①②③④", ("③", "3", "③ Earth")),
        (("I.", "II.", "III.", "IV."), ("III", "(III)", "Answer: III", "III. Earth")),
        (("(i)", "(ii)", "(iii)", "(iv)"), ("iii", "(iii)")),
        (("А)", "Б)", "В)", "Г)"), ("В", "Ответ: В")),
        (("ア.", "イ.", "ウ.", "エ."), ("ウ", "答え：ウ")),
        (("가.", "나.", "다.", "라."), ("다", "정답: 다")),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_labels_of_other_series_are_read(labels: tuple[str, ...], answers: tuple[str, ...], listed: bool) -> None:
    shown = "\n".join(f"{label} {planet}" for label, planet in zip(labels, PLANETS, strict=True))
    assert [option(answer, shown, listed) for answer in answers] == ["Earth"] * len(answers)
    assert option("I think that it is far away", shown, listed) not in PLANETS


# Code

CODE = "def f(x):\n    return 2 * x"


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{CODE}\n```".replace("\n", "\r"),
        "> Here:\n>\n> ```python\n> def f(x):\n>     return 2 * x\n> ```",
        "```python def f(x): return 2 * x```",
        "`def f(x): return 2 * x`",
        f"```python\n{CODE}\n```".replace("    ", "\u00a0\u00a0\u00a0\u00a0"),
        f"~~~\ndef f(x):\n    return x\n~~~\n```py\n{CODE}\n```",
        f"````markdown\n```python\n{CODE}\n```\n````",
    ],
)
def test_code_is_found_in_quotations_in_one_line_and_with_odd_blanks(text: str) -> None:
    code = function_code(text)
    assert code is not None
    names: dict[str, object] = {}
    exec(code, names)
    assert names["f"](2) == 4  # type: ignore[operator]


def test_a_number_that_is_denied_or_left_open_is_not_right() -> None:
    item = Item("i", "How many are there?", gold=("5",), check="number")
    denied = ("nicht 5", "pas 5", "не 5", "5 oder 6", "5 ou 6", "不是5", "5ではない", "5 тыс.", "5‰", "∛5", "5 or more")
    assert [answer for answer in denied if is_correct(item, final_answer(item, answer))] == []
    plain = ("Es sind 5.", "合計5個です。", "一共有5个", "총 5개입니다", "Всего 5.", "Il y a 5 œufs.")
    assert [answer for answer in plain if not is_correct(item, final_answer(item, answer))] == []
