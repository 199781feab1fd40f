"""An answer suits its question: units that were asked for, bounds, totals before their parts, durations, numerals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.records.correctness import canonical, final_answer, is_correct
from metaprobe.records.types import AnswerCheck, Item

EGGS = "How many eggs are left?"
SALE = "Janet has 16 eggs a day and eats 7. She sells the rest for $2 each. How much does she make every day?"
VALUE = "What is the value?"


def form(answer: str, question: str = VALUE, check: AnswerCheck = "number") -> str:
    item = Item("i", question, check=check)
    return canonical(item, final_answer(item, answer))


def right(answer: str, gold: str, question: str = EGGS, check: AnswerCheck = "number") -> bool:
    item = Item("i", question, gold=(gold,), check=check)
    return is_correct(item, final_answer(item, answer))


# Units


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        (SALE, ("18 dollars", "$18", "18 USD", "18 dollars a day", "She makes $18.")),
        ("How much does she make in dollars?", ("18 dollars", "$18", "18")),
        (EGGS, ("18 eggs", "18", "18 are left", "18 boxes")),
        ("How far is the town?", ("18 km", "18 miles", "18")),
        ("How long does she work every day?", ("18 hours", "18 h", "18 minutes")),
        ("A box of 5 kg falls at 3.6 m/s^2. What is the force?", ("18 N", "18 newtons")),
        ("A field is 6 m by 3 m. What is its area?", ("18 m^2", "18 square meters", "18 m²")),
        ("How fast does the train go in km/h?", ("18 km/h", "18")),
        ("How many miles per hour does she drive?", ("18 mph", "18 miles per hour")),
        ("What percentage is it?", ("18%", "18 percent", "18")),
        ("How many dozen eggs are 216 eggs?", ("18 dozen", "18")),
        (VALUE, ("18 dollars", "18 km", "18 kg")),
        ("They share them equally. How many pieces does each get?", ("18 pieces/person", "18 pieces per person")),
        ("He has 3 nickels and 3 pennies. How much money does he have?", ("18 cents",)),
        ("What is the square footage of the room?", ("18 sq feet", "18 square feet")),
        ("Each tile is 1 inch square. How many tiles are needed?", ("18 square inches, a tile each", "18")),
    ],
)
def test_a_unit_beside_a_number_is_right_if_it_suits_the_question(question: str, answers: tuple[str, ...]) -> None:
    assert [answer for answer in answers if not right(answer, "18", question)] == []


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        (VALUE, ("18%", "18 percent", "18‰", "18 dozen", "18 thousand", "18 gross", "18 grand", "18 pairs", "18 bps")),
        (EGGS, ("18 dollars", "18 km", "18 hours", "18 kg", "18%", "18 dozen", "€18", "18 percentage points")),
        (SALE, ("€18", "18 km", "18 hours", "18 pounds", "18 thousand dollars", "18% of it")),
        ("How many minutes does it take?", ("18 hours", "18 km", "$18", "18 seconds")),
        ("How far is the town?", ("18 hours", "18 kg", "$18")),
        ("How heavy is it?", ("18 m", "18 hours")),
        ("How fast does the train go in km/h?", ("18 km", "18 h", "18 m/s", "18 mph")),
        ("A field is 6 m by 3 m. What is its area?", ("18 cm^2", "18 km²")),
        ("She drives 9 km twice. What distance is it?", ("18 miles", "18 m")),
        ("When was it founded?", ("18 BC",)),
    ],
)
def test_a_unit_that_the_question_does_not_want_is_wrong(question: str, answers: tuple[str, ...]) -> None:
    assert [answer for answer in answers if right(answer, "18", question)] == []


def test_a_word_that_multiplies_keeps_numbers_apart() -> None:
    forms = [form(answer, EGGS) for answer in ("18", "18 gross", "18 grand", "18 score", "18 dozen", "18 hundred")]
    assert len(set(forms)) == len(forms), forms


# Bounds

BOUNDS = (
    *("almost 18", "nearly 18", "less than 18", "at least 18", "over 18", "just under 18", "a little over 18"),
    *("in excess of 18", "a minimum of 18", "18 at the least", "as few as 18", "close to 18", "18 tops"),
    *("less than or equal to 18", "She has over 18 eggs.", "So at least 18 are left.", "It exceeds 18.", "18 plus"),
    *("über 18", "fast 18", "bis zu 18", "presque 18", "casi 18", "quasi 18", "bijna 18", "meer dan 18", "почти 18"),
    *("более 18", "最多18", "不到18", "18以上", "ponad 18", "The answer is almost 18.", "Answer: less than 18"),
)  # fmt: skip


def test_a_bound_is_not_the_number() -> None:
    assert [answer for answer in BOUNDS if right(answer, "18")] == []
    assert [answer for answer in BOUNDS if form(answer, EGGS) == "18"] == []


def test_a_bound_that_the_question_asks_for_is_the_number() -> None:
    assert right("at least 18", "18", "At least how many eggs are left?")
    assert right("a minimum of 18", "18", "What is the minimum of the sum?")
    assert right("at most 18", "18", "What can she sell at most?")


def test_an_approximate_number_is_the_number() -> None:
    for answer in (
        "about 18",
        "approximately 18",
        "around 18",
        "≈18",
        "~18",
        "18 or so",
        "etwa 18",
        "约18",
        "environ 18",
    ):
        assert right(answer, "18"), answer
        assert form(answer, EGGS) == "18", answer
        assert not right(answer, "17"), answer


# A total and its parts


@pytest.mark.parametrize(
    "answer",
    [
        "Total: 18\n- 9 red\n- 9 blue",
        "The total is 18 eggs:\n- 10 white\n- 8 brown",
        "**Total: 18**\n1. Red: 10\n2. Blue: 8",
        "18\n\n- 10 red\n- 8 blue",
        "18 eggs:\n• 10 white\n• 8 brown",
        "So there are 18 in all.\n\n| kind | n |\n|---|---|\n| red | 10 |\n| blue | 8 |",
        "| kind | n |\n|---|---|\n| red | 10 |\n| blue | 8 |\n| **Total** | **18** |",
        "- 10 red\n- 8 blue\n- 18 in total",
        "| 18 |",
        "Steps:\n- 10 + 6 = 16\n- 16 + 2 = 18",
    ],
)
def test_the_total_is_the_answer_before_and_after_its_parts(answer: str) -> None:
    assert right(answer, "18")
    assert form(answer, EGGS) == "18"
    for part in ("8", "9", "10", "16"):
        assert not right(answer, part), part


def test_a_row_of_a_table_that_is_no_total_is_no_number() -> None:
    for answer in ("| kind | n |\n|---|---|\n| red | 10 |\n| blue | 8 |", "| total | 10 | 18 |"):
        assert [number for number in ("8", "10", "18") if right(answer, number)] == []
        assert form(answer, EGGS).startswith("text:")


def test_the_number_of_kinds_is_not_the_total_of_a_list() -> None:
    assert not right("There are 2 kinds of eggs:\n- 10 white\n- 8 brown", "2")


# Capitals with points


@pytest.mark.parametrize(
    "spellings",
    [
        ("U.S.", "US"),
        ("U.S.A.", "USA"),
        ("Washington, D.C.", "Washington DC"),
        ("J.R.R. Tolkien", "J. R. R. Tolkien", "JRR Tolkien"),
        ("St. Louis", "St Louis"),
        ("F.B.I", "FBI"),
    ],
)
def test_capitals_with_points_are_one_word(spellings: tuple[str, ...]) -> None:
    assert len({form(one, "Which is it?", "exact") for one in spellings}) == 1
    assert all(right(one, other, "Which is it?", "exact") for one in spellings for other in spellings)


def test_letters_joined_by_a_point_are_not_one_of_them() -> None:
    forms = [
        form(one, "Which is it?", "exact") for one in ("A.B", "B", "A", "A.C", "A.M.", "M", "P.M.", "U.S.", "U.K.")
    ]
    assert len(set(forms)) == len(forms), forms


# Quantities in two units

SUMS = [
    ("1 h 30 min", "90 min", "1h30", "1h30m", "1 hour and 30 minutes", "1 hr, 30 mins", "1 Stunde 30 Minuten"),
    ("1.5 hours", "an hour and a half", "one and a half hours"),
    ("2 weeks and 3 days", "17 days"),
    ("5 ft 3 in", "63 inches", "5 feet and 3 inches"),
    ("3 lb 4 oz", "52 ounces"),
    ("5 dollars and 20 cents", "$5.20", "$5 20¢"),
    ("-1 h 30 min", "-90 min"),
]


@pytest.mark.parametrize("spellings", SUMS)
def test_a_quantity_in_two_units_is_their_sum(spellings: tuple[str, ...]) -> None:
    assert {one: form(one) for one in spellings} == dict.fromkeys(spellings, form(spellings[0]))


def test_a_part_of_a_quantity_in_two_units_is_not_the_quantity() -> None:
    for asked in ("How long does it take?", "How many minutes does it take?", "How many hours does it take?"):
        for answer in ("1 h 30 min", "1 hour 30 minutes", "1h30", "1 h 30", "1:30", "1 h 90 min"):
            assert [gold for gold in ("1", "30", "130", "1 h", "30 min") if right(answer, gold, asked)] == [], answer
    assert right("1 hour 30 minutes", "90", "How many minutes does it take?")
    assert right("90 minutes", "1 hour 30 minutes", "How long does it take?")
    forms = [form(one) for one in ("5 m x 3 cm", "5 m 3 cm", "5 m or 3 cm", "5 m to 3 cm", "5 m", "3 cm", "5 kg 3 m")]
    assert len(set(forms)) == len(forms), forms


# Chinese numerals


@given(st.integers(0, 99_999_999))
def test_a_number_in_chinese_numerals_is_the_number(value: int) -> None:
    shown = in_chinese(value)
    assert form(shown) == form(f"答案是{shown}。") == str(value), shown
    assert form(f"负{shown}") == str(-value), shown


def in_chinese(value: int) -> str:
    """Returns a number below 10^8 as Chinese writes it: 105 is 一百零五."""
    if value >= 10_000:
        head, rest = divmod(value, 10_000)
        joint = "零" if 0 < rest < 1000 else ""
        return f"{in_chinese(head)}万{joint}{in_chinese(rest) if rest else ''}"
    digits = [int(digit) for digit in str(value)]
    shown, skipped = "", False
    for digit, place in zip(digits, range(len(digits) - 1, -1, -1), strict=True):
        if digit:
            shown += ("零" if skipped else "") + "零一二三四五六七八九"[digit] + ("", "十", "百", "千")[place]
        skipped = shown != "" and not digit
    return shown or "零"


def test_chinese_numerals_that_are_words_or_may_be_two_numbers_are_no_number() -> None:
    for answer, value in (("二分之一", "1/2"), ("百分之五十", "1/2"), ("三点五", "7/2"), ("二〇二四", "2024")):
        assert form(answer) == value, answer
    assert right("四十二只鸡", "42")
    assert right("答えは四十二です", "42")
    for answer in ("一些", "三四个", "十分好", "万一", "第四", "一百五", "四川", "三角形", "一样", "〇"):
        assert not form(answer)[:1].isdigit(), answer


# Triples of an adversary: what stands beside the number


REFUSED = [
    (VALUE, "7/8", ("7/8 + 1", "\\frac{7}{8x}", "-\\frac{7}{8}", "2+7/8", "2-7/8", "7/(8)")),
    (VALUE, "23/8", ("27/8", "2, 7/8")),
    (VALUE, "8", ("2^{3^2}", "2^8", "\\boxed{8}\\%", "\\boxed{8}^2", "2\\boxed{8}", "-\\boxed{8}", "\\sqrt\\boxed{8}")),
    (VALUE, "3", ("{3}", "x ≥ 3", "3..4", "3 through 4", "3 ± 0.5", "3(4)", "(3,∞)", "18%3", "3_{16}", "3₁₆")),
    ("At what time?", "3", ("quarter to 3", "5 to 3", "20 past 3", "3:00", "00:03")),
    ("In what year?", "1990", ("the 1990s", "1990-1991", "12 May 1990", "1990 or 1991", "not before 1990")),
    ("How much does it cost?", "18", ("18 cents", "18¢", "$18 per kg", "$18K", "($18)", "$18 and change")),
    (EGGS, "18", ("Is it 18?", "Could it be 18?", "18 per day", "Room 18", "~~18~~", "~~18~~ 17", "17 + 1 ≠ 18")),
    (EGGS, "18", ("没有18个", "inte 18")),
    (VALUE, "6", ("5 = 6", "5=6", "-6 = 6", "The answer is 5 = 6")),
    (EGGS, "18", ("18개가 아닙니다", "18 नहीं", "Non restano 18 uova", "Geen 18", "bukan 18", "18或19")),
    ("How many square feet is it?", "18", ("18 feet", "18 square meters", "18 cubic feet")),
]  # fmt: skip


@pytest.mark.parametrize(("question", "gold", "answers"), REFUSED)
def test_a_number_with_something_else_beside_it_is_refused(question: str, gold: str, answers: tuple[str, ...]) -> None:
    assert [answer for answer in answers if right(answer, gold, question)] == []


ACCEPTED = [
    (VALUE, "7/8", ("\\frac{14}{16}", "seven-eighths", "7÷8 = 7/8", "0.875")),
    (VALUE, "23/8", ("2 + 7/8 = 23/8", "2\\tfrac{7}{8}", "2⅞", "two and seven eighths")),
    (VALUE, "18", ("\\boxed{18}", "$\\boxed{x=18}$", "So \\boxed{18} eggs", "- \\boxed{18}", "18 dB", "18°", "18,")),
    (VALUE, "6", ("6 = 6", "x = 6", "2 + 4 = 6", "12/2 = 6", "06 = 6")),
    (VALUE, "-18", ("-\\boxed{18}", "\\boxed{-18}", "− 18")),
    (VALUE, "0.0025", ("2.5·10⁻³", "2.5E-03", "2.5 × 10^{-3}")),
    ("In what year?", "1990", ("early 1990", "1990?", "in 1990 AD")),
    ("How much does it cost?", "18", ("18$", "US$18", "18 euros", "18 bucks")),
    ("How much does each kg cost?", "18", ("$18 per kg", "$18/kg", "$18")),
    (EGGS, "18", ("18 (eighteen) eggs", "Quedan 18 huevos.", "还剩18个鸡蛋", "十八个", "18 अंडे बचे हैं", "#18")),
    ("In which week?", "18", ("Week 18", "week 18")),
]


@pytest.mark.parametrize(("question", "gold", "answers"), ACCEPTED)
def test_a_number_with_only_dress_beside_it_is_right(question: str, gold: str, answers: tuple[str, ...]) -> None:
    assert [answer for answer in answers if not right(answer, gold, question)] == []


def test_abbreviations_with_points_are_words() -> None:
    for one, other in (("3 a.m.", "3 am"), ("Ph.D.", "PhD"), ("i.e.", "ie")):
        assert form(one, "Which is it?", "exact") == form(other, "Which is it?", "exact"), one
    assert form("3 a.m.", "Which is it?", "exact") != form("3 p.m.", "Which is it?", "exact")


# Options

PLANETS = ("mercury", "venus", "earth", "mars")
THIRD = "Which planet is third?\nA) mercury\nB) venus\nC) earth\nD) mars"


def option(answer: str) -> str:
    item = Item("i", THIRD, choices=PLANETS, check="choice")
    return canonical(item, final_answer(item, answer))


@pytest.mark.parametrize(
    "answer",
    [
        "C\nD",
        "(C)\n\n(D)",
        "Answer: C\n\nWait, D",
        "Answer: C\nActually, it is D.",
        "earth (D)",
        "C is the worst answer",
    ],
)
def test_an_option_beside_another_one_or_taken_back_is_no_answer(answer: str) -> None:
    assert option(answer) == ""


@pytest.mark.parametrize("answer", ["C\nC", "earth (C)", "C\n\nD is wrong", "選択肢C", "C가 정답입니다"])
def test_an_option_that_is_said_twice_or_in_another_language_is_read(answer: str) -> None:
    assert option(answer) == "earth"


def test_a_number_that_a_later_line_takes_back_is_no_answer() -> None:
    for answer in ("Answer: 18\n\nWait, it's 17.", "\\boxed{18}\nActually, 17", "#### 18\nNo, 17"):
        assert not right(answer, "18"), answer
        assert form(answer, EGGS) != "18", answer
    assert right("Answer: 18\n\nThis is because 20 - 2 = 18.", "18")
