"""Only known words and signs may stand beside a number or a letter. Others make it a text, or no answer."""

import math
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaprobe.records.correctness import canonical, final_answer, is_correct, strip_decoration
from metaprobe.records.types import AnswerCheck, Item

EGGS = "How many eggs are left?"
VALUE = "What is the value?"
COST = "How much does it cost?"
GROWTH = "By what percent did it grow?"
BUILT = "When was it built?"


def form(answer: str, question: str = EGGS, check: AnswerCheck = "number") -> str:
    item = Item("i", question, check=check)
    return canonical(item, final_answer(item, answer))


def right(answer: str, gold: str, question: str = EGGS, check: AnswerCheck = "number") -> bool:
    item = Item("i", question, gold=(gold,), check=check)
    return is_correct(item, final_answer(item, answer))


# Words and signs beside a number

REFUSED = [
    (EGGS, "18", ("@18", "18@", "&18", "18&", "§18", "№18", "18=", "50% 18", "18©", "¬18", "†18")),
    (
        EGGS,
        "18",
        ("18, too many", "18: too few", "18, negative", "18, short", "18, in hexadecimal", "18, in thousands"),
    ),
    (
        EGGS,
        "18",
        ("18 (in dozens)", "18 (in hexadecimal)", "18 in Hexadecimal", "18 in Dozens", "18 sixes", "18 cubes"),
    ),
    (EGGS, "18", ("❌ 18", "18 ❌", "✗ 18", "🚫18", "18 👎", "18☐", "♯18", "¢18", "18 ⛔", "¿18♭")),
    (EGGS, "18", ("18 short", "18 shy", "18 behind", "18 ahead", "18 off", "18 odd", "18 over", "18 out", "18 nil")),
    (EGGS, "18", ("18 too many", "18 points short", "18 eggs short", "18 and some", "18 and a bit", "18 something")),
    (EGGS, "18", ("18 carat", "18 proof", "18 stone", "18 dpi", "18 fps", "18 furlongs", "18 nautical miles")),
    (EGGS, "18", ("18 octal", "18 hex", "18 in hexadecimal", "18 (hex)", "18 (negative)", "binary 18", "base 18")),
    (EGGS, "18", ("Apollo 18", "Windows 18", "Psalm 18", "Article 18", "Figure 18", "Player 18", "Week 18", "No. 18")),
    (EGGS, "18", ("all but 18", "except 18", "without 18", "barely 18", "hardly 18", "shy of 18", "north of 18")),
    (EGGS, "18", ("square of 18", "cube 18", "negative of 18", "reciprocal of 18", "roughly over 18", "off by 18")),
    (EGGS, "3", ("Step 3: Count the eggs.", "Step 3", "She takes 3 times", "Part 3")),
    (EGGS, "18", ("18 万", "18 千", "18 百", "18 打", "18打", "18 双", "18 半", "18个半", "18 倍", "第 18 个", "18番")),
    (EGGS, "18", ("18 десятков", "18 пар", "18 дюжин", "18 दर्जन", "18 दर्जन अंडे", "18 δεκάδες", "18 دزينة", "18 โหล")),
    (EGGS, "18", ("18 docenas", "Quedan 18 docenas", "Il reste 18 douzaines", "Es bleiben 18 Dutzend", "18 pares")),
    ("Сколько яиц осталось?", "18", ("18 десятков", "18 дюжин")),
    ("她还剩几个鸡蛋？", "18", ("18 打", "18双", "18 万")),
    (COST, "5", ("5 pence", "$5 off", "$5 short", "5 mill", "5 BTC", "5 thou")),
    (VALUE, "5", ("<= 5", ">=5", "!= 5", "x → 5", "x -> 5", "5 − δ", "5 below", "less 5", "neg 5")),
    (BUILT, "1999", ("by 1999", "pre-1999", "1999 at the latest", "no later than 1999", "Windows 1999", "12/1999")),
]


@pytest.mark.parametrize(("question", "gold", "answers"), REFUSED)
def test_an_unknown_word_or_sign_beside_a_number_makes_it_a_text(
    question: str, gold: str, answers: tuple[str, ...]
) -> None:
    assert [answer for answer in answers if right(answer, gold, question)] == []
    assert [answer for answer in answers if form(answer, question) == form(gold, question)] == []


ACCEPTED = [
    (EGGS, "18", ("18 eggs", "18 in total", "18 left", "18 brown eggs", "18 fresh duck eggs", "18 of them", "18 each")),
    (EGGS, "18", ("18 eggs remain", "18 would be left", "18 because she ate 2", "18 in all", "18 in May")),
    (EGGS, "18", ("So 18", "Exactly 18", "about 18", "Total 18", "I get 18", "It's 18", "= 18", "-> 18", "✅ 18")),
    (EGGS, "18", ("a total of 18", "the sum of all is 18", "They have 18", "Left: 18", "#18", "ca. 18", "approx. 18")),
    (EGGS, "18", ("18 eggs (3 broken)", "18 (10 red and 8 blue)", "18 eggs (9 each)", "18 (eighteen)")),
    (EGGS, "18", ("18, in total", "18 (in total)", "18, eggs left.", "18 (brown eggs)", "18, correct!")),
    (EGGS, "18", ("✅ 18", "18 ✔️", "👉 18", "18 🎉")),
    (EGGS, "18", ("18 个", "18个", "18 枚", "18 个鸡蛋", "18 個の卵", "18 개", "18개입니다", "她还剩下 18 个鸡蛋")),
    (EGGS, "18", ("18 яиц", "18 штук", "Осталось 18 яиц", "18 अंडे", "18 بيضة", "18 αυγά", "18 ביצים", "18 œufs")),
    (EGGS, "18", ("all of the 18 eggs", "any of the 18 eggs")),
    ("Сколько яиц осталось?", "18", ("18 больших яиц", "осталось 18", "18")),
    ("她还剩几个鸡蛋？", "18", ("18 个", "18枚鸡蛋", "还剩18个")),
    (COST, "5", ("$5 in total", "It costs $5", "exactly $5", "5 bucks")),
    (GROWTH, "5", ("5 pct", "by 5%", "It grew by 5%.", "an increase of 5%", "up 5%", "+5%")),
    (BUILT, "1999", ("c. 1999", "ca. 1999", "c.1999", "early 1999", "It was built in 1999.")),
    ("Was it built in AD 1998 or AD 1999?", "1999", ("AD 1999", "1999 AD", "1999 CE")),
    ("How heavy is it in kg?", "18", ("18 kgs", "18kgs", "18 kilos")),
    ("How many push-ups can she do in a minute?", "18", ("18 push-ups with breaks", "18 push-ups")),
    ("¿Cuántos huevos quedan?", "18", ("Quedan 18 huevos frescos", "18")),
]


@pytest.mark.parametrize(("question", "gold", "answers"), ACCEPTED)
def test_known_words_beside_a_number_leave_it_as_it_is(question: str, gold: str, answers: tuple[str, ...]) -> None:
    assert [answer for answer in answers if not right(answer, gold, question)] == []
    assert [answer for answer in answers if form(answer, question) != form(gold, question)] == []


@given(
    st.integers(2, 999),
    st.text("bcdfghjklmnpqrtvwxz", min_size=4, max_size=8).filter(lambda word: not word.startswith("x")),
    st.booleans(),
)
def test_a_word_that_nobody_knows_beside_a_number_makes_another_answer(value: int, word: str, before: bool) -> None:
    answer = f"{word} {value}" if before else f"{value} {word}"
    assert not right(answer, str(value))
    assert form(answer) != str(value)


@given(
    st.integers(2, 999),
    st.characters(min_codepoint=0x2600, categories=["So"], exclude_characters="✅✔✓☑🎉🎊✨👉➡➜🟢💡📌🔢🧮🏆⭐").filter(
        lambda sign: unicodedata.normalize("NFKC", sign) == sign  # no letter or number of another form
    ),
    st.booleans(),
)
def test_a_picture_that_nobody_knows_beside_a_number_makes_another_answer(value: int, sign: str, before: bool) -> None:
    assert not right(f"{sign} {value}" if before else f"{value} {sign}", str(value))


@given(st.integers(2, 999), st.text("бгджзклмнпрстфхцчш", min_size=4, max_size=8), st.booleans())
def test_a_word_of_another_script_that_nobody_knows_makes_another_answer(value: int, word: str, before: bool) -> None:
    answer = f"{word} {value}" if before else f"{value} {word}"
    assert not right(answer, str(value))
    assert form(answer) != str(value)


# Explanations beside a number

EXPLAINED = (
    "18 because she ate 2",
    "18 because 2 broke",
    "18 since 2 broke",
    "18 eggs since she ate 2",
    "18, as 2 were eaten",
    "18 as she broke 2 of them",
    "18 because 20 - 2 = 18",
    "18 because she had 20 and ate 2",
    "18 because there are 9 each",
    "18 because she has 20 eggs and ate 2",
    "18 (2 broke)",
    "18 eggs (2 eaten)",
    "18 (10 + 8 = 18)",
    "18 (eighteen)",
)
CONTRADICTED = (
    "18 because she has 17 left",
    "18 because 17",
    "18 because there are 17",
    "18 because 20 - 2 = 17",
    "18 since 17 remain",
    "18 since 2020",
    "18 as she has 17 eggs",
    "18 eggs (17 if one is broken)",
    "18 eggs (17 left)",
    "18 (17)",
    "18 (10 + 7 = 17)",
    "18 eggs (20 before)",
    "18 as well as 17",
)


def test_an_explanation_leaves_a_number_as_it_is() -> None:
    assert [answer for answer in EXPLAINED if not right(answer, "18")] == []
    assert [answer for answer in EXPLAINED if form(answer) != "18"] == []


def test_a_number_of_another_time_or_another_person_explains() -> None:
    assert right("18 because she is 13 now", "18", "How old will Ann be after the war?")
    assert right("18 because Ann has 9 apples and Tom has twice as many", "18", "How many apples does Tom have?")
    assert not right("18 because Tom has 9 apples", "18", "How many apples does Tom have?")
    assert not right("18 eggs (17 now)", "18")


def test_an_explanation_that_states_another_number_makes_the_answer_neither() -> None:
    for number in ("17", "18", "20", "2020"):
        assert [answer for answer in CONTRADICTED if right(answer, number)] == []
        assert [answer for answer in CONTRADICTED if form(answer) == number] == []


@given(
    st.integers(2, 999),
    st.integers(2, 999),
    st.sampled_from(
        (
            "{} because she has {} left",
            "{} eggs, since {} remain",
            "{} eggs ({} left)",
            "{} eggs ({} if one is broken)",
            "{}, as there are {} eggs left",
        )
    ),
)
def test_two_numbers_for_what_is_asked_are_one_answer_only_if_they_are_equal(one: int, other: int, shape: str) -> None:
    answer = shape.format(one, other)
    assert one == other or not {str(one), str(other)} & {form(answer)}
    assert right(answer, str(one)) is right(answer, str(other)) is False or one == other


@given(
    st.integers(20, 999), st.integers(2, 19), st.sampled_from(("because", "since")), st.sampled_from(("ate", "broke"))
)
def test_a_number_of_what_was_done_before_is_no_second_answer(left: int, lost: int, link: str, verb: str) -> None:
    assert form(f"{left} eggs {link} she {verb} {lost}") == str(left)
    assert form(f"{left} eggs ({lost} {verb})") == str(left)


def test_a_number_written_as_digits_of_another_one_is_no_explanation() -> None:
    asked = 'How do you write the number "eighty-eight" in digits?'
    assert not right("Eighty-eight is written as 888.", "88", asked)
    assert right("Eighty-eight is written as 88.", "88", asked)


# Exclamation marks


def test_a_number_with_an_exclamation_mark_alone_may_be_a_factorial_and_is_a_text() -> None:
    for answer in ("18!", "**18!**", "\\boxed{18!}", "Answer: 18!", "18!!"):
        assert not right(answer, "18"), answer
        assert form(answer) not in ("18", str(math.factorial(18))), answer


def test_a_sentence_that_ends_in_an_exclamation_mark_gives_its_number() -> None:
    for answer in ("The answer is 18!", "She has 18!", "So 18 eggs are left!", "18 eggs!", "There are 18! Great."):
        assert right(answer, "18"), answer
        assert form(answer) == "18", answer


def test_an_exclamation_mark_is_a_factorial_where_the_question_may_ask_for_one() -> None:
    for asked in ("In how many different ways can 18 books be arranged?", "What is 18! divided by 17!?"):
        for answer in ("The answer is 18!", "There are 18!", "There are 18! ways.", "18!"):
            assert not right(answer, "18", asked), (asked, answer)
            assert form(answer, asked) != "18", (asked, answer)
    asked = "In how many different ways can 5 books be arranged?"
    assert right("There are 5! = 120 ways", "120", asked)
    assert right("The 5 books can be arranged in 5! ways, which is 120.", "120", asked)


def test_a_number_in_brackets_that_may_be_the_answer_itself_is_not_left_out() -> None:
    for answer in ("18 (or 20)", "18 (20 with the broken ones)", "18 (mod 20)", "20 (18 without the broken ones)"):
        assert not right(answer, "18"), answer


# Mixed numbers and lists


def test_a_whole_number_and_a_fraction_are_one_number_unless_several_are_asked_for() -> None:
    for answer in ("2 and 7/8", "two and 7/8", "2 7/8", "2⅞", "two and seven eighths"):
        assert form(answer, VALUE) == "23/8", answer
        assert not right(answer, "7/8", VALUE)
        assert not right(answer, "2", VALUE)
    for question in ("What are the roots?", "What are the two numbers?", "Find all solutions."):
        assert len({form(one, question) for one in ("2 and 1/2", "5/2", "2", "1/2")}) == 4, question
    assert form("2 and 8/7", VALUE) != form("22/7", VALUE)


def test_a_number_of_the_question_in_a_list_is_not_dropped() -> None:
    asked = "She has 2 hens and 3 cows. How many eggs and cakes are there?"
    assert form("2 and 9", asked) not in (form("9", asked), form("3 and 9", asked))
    assert not right("2, 2, 9", "9", asked)
    assert form("9,-7", "Find the real roots of (x - 7)(x - 9).") != form("9", "Find the real roots of (x - 7)(x - 9).")


def test_a_list_that_goes_on_with_the_one_of_the_question_gives_its_new_number() -> None:
    asked = "Count on: 4, 8, 12, 16,"
    assert right("4, 8, 12, 16, 20", "20", asked)
    assert form("4, 8, 12, 16, 20", asked) == form("20", asked)
    assert not right("4, 8, 16, 20", "20", asked)


@pytest.mark.parametrize(
    "answer",
    ["- 10 red\n- 8 blue", "* Red: 10\n* Blue: 8", "1. 10\n2. 8", "Here:\n- 10\n- 8", "1) Ann: 10\n2) Bob: 8"],
)
def test_a_list_without_a_total_is_not_its_last_item(answer: str) -> None:
    assert [number for number in ("8", "10", "18") if right(answer, number)] == []
    assert form(answer) not in ("8", "10", "18")


def test_the_last_item_of_a_list_that_concludes_is_the_answer() -> None:
    for answer in (
        "- 10 red\n- 8 blue\n- 18 in total",
        "1. Count: 10\n2. So 18 are left",
        "- 10 red\n- 8 blue\nTotal: 18",
        "1. She has 20 eggs.\n2. She eats 2 eggs.\n3. 20 - 2 = 18",
    ):
        assert right(answer, "18"), answer


# Options

PLANETS = ("mercury", "venus", "earth", "mars")
THIRD = "Which planet is third?\nA) mercury\nB) venus\nC) earth\nD) mars"


def option(answer: str) -> str:
    item = Item("i", THIRD, choices=PLANETS, check="choice")
    return canonical(item, final_answer(item, answer))


@pytest.mark.parametrize(
    "answers",
    [
        ("A. B", "A B", "A+B", "A-B", "A to B", "B. A", "C+D", "C..D", "C, then B", "C, no, B", "A, not C, B"),
        ("C-", "C--", "C*", "-C", "!C", "~C", "¬C", "C!=", "°C", "C.1", "C'", "C++", "30 C"),
        ("C or so", "C or earth or mars", "C, I guess not", "C\nWait, B", "Is it C?", "C, or maybe not"),
        ("C?", "C ?", "C?!", "C？", "C♯", "C♭", "C★", "C 👎", "C 🤔", "I think C?", "earth?"),
        ("C, unlikely", "C - unlikely", "C; unlikely", "C (unlikely)", "C. Unlikely.", "C is unlikely"),
        ("Option C seems unlikely", "C seems unlikely", "C is doubtful", "earth, unlikely", "C: earth?"),
        ("C, I doubt it", "C, I am not sure", "C. I'm unsure", "C, not sure", "C, hardly", "C, no way", "C, as if"),
        ("C, perhaps", "C, if at all", "C, but I am unsure", "C，不太可能", "C, vielleicht", "C, nope"),
        ("C mars", "D earth", "B earth", "earth D", "mars (C)", "C) mars", "earth or mars"),
    ],
)  # fmt: skip
def test_a_letter_beside_another_one_or_an_unknown_sign_is_no_answer(answers: tuple[str, ...]) -> None:
    assert [answer for answer in answers if option(answer) != ""] == []


@pytest.mark.parametrize(
    "answer",
    ["C", "C - earth", "C – third", "- C", "✅ C", "C ✅", "`C`", "\"C\"", "<C>", "[C]", "C!", "C. It is third.",
     "C, because it is third", "C, since the others are hotter", "C, the third planet", "C, earth",
     "C. It is the third one.", "C, obviously", "C, of course", "C, no doubt", "C, final answer", "C, I think", "C 🎉",
     "C, I am sure", "C, 90% sure", "C, not venus", "C, with 90% confidence", "C is the third planet", "C is correct",
     "C, weil sie die dritte ist", "C，因为它是第三个", "C …", "earth, because it is third", "earth, the third planet",
     "C, rather than B", "C: earth, of course", "C - earth, of course",
     "C. Explanation:", "C. Here's why:",
     "C, not B", "C\nC", "C. B is too hot.", "earth (C)", "C earth", "(C) earth, as A and B are hotter"],
)  # fmt: skip
def test_a_letter_with_only_marks_or_an_explanation_beside_it_is_the_answer(answer: str) -> None:
    assert option(answer) == "earth"


def test_an_option_in_latex_may_be_repeated_beside_its_letter_as_plain_text() -> None:
    choices = ("$0$", "$1$", "$\\infty$", "$\\frac{1}{2}$")
    shown = "\n".join(f"{letter}) {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    item = Item("i", f"What is the limit?\n{shown}", choices=choices, check="choice")
    for answer in ("C) ∞", "C. $\\infty$", "C: \\infty", "C, ∞"):
        assert canonical(item, final_answer(item, answer)) == choices[2], answer


@given(
    st.sampled_from("ABCD"), st.sampled_from("ABCD"), st.sampled_from((". ", " ", "+", "-", "/", " to ", " or ", ", "))
)
def test_two_letters_with_a_joint_are_never_one_of_them(one: str, other: str, joint: str) -> None:
    assert one == other or option(f"{one}{joint}{other}") == ""


@given(
    st.sampled_from("ABCD"),
    st.sampled_from((", ", " - ", "; ", ". ", " is ")),
    st.text("bcdfghjklmnpqrtvwxz", min_size=4),
)
def test_a_letter_beside_a_word_that_nobody_knows_is_no_answer(letter: str, joint: str, word: str) -> None:
    assert option(f"{letter}{joint}{word}") == ""


@given(
    st.sampled_from("ABCD"),
    st.characters(categories=["So", "Sm", "Sk"], exclude_characters="✅✔✓☑🎉🎊✨👉➡➜🟢💡📌🏆⭐👍→<>=`|").filter(
        lambda sign: strip_decoration(sign) == sign  # no accent that stands alone, and no other form of a plain sign
    ),
)
@example("A", "۞")
def test_a_letter_beside_a_sign_that_nobody_knows_is_no_answer(letter: str, sign: str) -> None:
    assert option(f"{letter}{sign}") == option(f"{letter} {sign}") == ""


@given(
    st.sampled_from("ABCD"),
    st.sampled_from((", because it ", ", since the others ", ", as it ", ". It ", ", which ")),
    st.lists(st.text("bcdfghjklmnpqrtvwxz", min_size=3, max_size=8), min_size=2, max_size=6),
)
def test_a_letter_with_an_explanation_is_the_answer_whatever_the_explanation_says(
    letter: str, joint: str, explanation: list[str]
) -> None:
    assert option(f"{letter}{joint}{' '.join(explanation)}") == PLANETS["ABCD".index(letter)]


# Texts

PARIS = "Is Paris the capital of France?"


def test_no_with_a_short_sentence_is_no_and_no_of_something_is_not() -> None:
    for answer in ("No.", "No, it is not.", "No, it isn't", "No, Paris is not the capital of France."):
        assert right(answer, "no", PARIS, "exact"), answer
        assert form(answer, PARIS, "exact") == "no", answer
    for answer in ("No answer", "No idea", "There is no doubt", "No, actually yes"):
        assert not right(answer, "no", PARIS, "exact"), answer
        assert form(answer, PARIS, "exact") != "no", answer
    jorps = Item("i", "No jorp is a dax. Is a jorp a dax?", choices=("yes", "no"), check="choice")
    assert canonical(jorps, "No, all are jorps. No jorp is a dax.") == "no"
    assert canonical(jorps, "No jorp is a dax. Is a jorp a dax? No.") == "no"
    assert canonical(jorps, "No idea") == canonical(jorps, "No jorps are daxs.") == ""
    assert form("Yes, it is.", PARIS, "exact") == form("yes", PARIS, "exact")


def test_a_heading_a_quotation_and_a_tick_say_nothing() -> None:
    asked = "What is the capital of Australia?"
    for answer in ("# Canberra", "> Canberra", "Canberra ✅", "✔ Canberra"):
        assert right(answer, "Canberra", asked, "exact"), answer
        assert form(answer, asked, "exact") == "canberra", answer
    assert not right("Is it Canberra?", "Canberra", asked, "exact")
    assert form("> 5", asked, "exact") != form("5", asked, "exact")


def test_signs_of_code_between_names_keep_texts_apart() -> None:
    names = ("x::y", "x:y", "x;y", "x?.y", "x??y", "x y", "x.y", "xy")
    assert len({form(one, "What is it?", "exact") for one in names}) == len(names)


# Shapes of whole answers


def test_bold_type_within_a_sentence_that_leads_to_the_number_says_nothing() -> None:
    for answer in ("The answer is **18** eggs.", "The answer is **18 eggs**.", "Answer: **18** eggs", "**18** eggs"):
        assert right(answer, "18"), answer
        assert form(answer) == "18", answer


def test_a_sentence_in_another_language_is_read_to_an_english_question() -> None:
    for answer in ("Es bleiben 18 Eier.", "Restano 18 uova.", "剩下18个鸡蛋", "Il reste 18 œufs.", "Осталось 18 яиц."):
        assert right(answer, "18"), answer


def test_a_number_of_which_a_part_is_named_is_not_the_answer() -> None:
    for answer in ("none of the 18", "some of these 18", "half of his 18"):
        assert not right(answer, "18"), answer
        assert form(answer) != "18", answer


def test_a_root_of_a_number_is_the_same_in_latex_and_as_a_sign() -> None:
    assert len({form(one, VALUE) for one in ("√2", "\\sqrt{2}", "\\sqrt2", "$\\sqrt{2}$")}) == 1
    apart = ("√2", "√3", "2", "2\\sqrt{2}", "\\sqrt{2}x", "\\sqrt[3]{2}", "-\\sqrt{2}", "\\sqrt{23}", "\\sqrt{2}/2")
    assert len({form(one, VALUE) for one in apart}) == len(apart)
