"""An answer that is taken back, bounded or only discussed is not the answer; lines after the answer are not read."""

import pytest

from metaprobe.records.correctness import canonical, final_answer, is_correct
from metaprobe.records.types import AnswerCheck, Item

EGGS = "Janet has 16 eggs a day. She eats 3, bakes with 4 and sells the rest for $2 each. How much does she make a day?"
CAPITAL = "What is the capital of Australia?"
CITIES = ("Oslo", "Rome", "Lima", "Cairo")
ASKS = "Which city?\n" + "\n".join(f"{label}) {city}" for label, city in zip("ABCD", CITIES, strict=True))


def form(answer: str, question: str = EGGS, check: AnswerCheck = "number") -> str:
    item = Item("i", question, check=check)
    return canonical(item, final_answer(item, answer))


def right(answer: str, gold: str, question: str = EGGS, check: AnswerCheck = "number") -> bool:
    item = Item("i", question, gold=(gold,), check=check)
    return is_correct(item, final_answer(item, answer))


def option(answer: str, question: str = ASKS) -> str:
    item = Item("i", question, choices=CITIES, check="choice")
    return canonical(item, final_answer(item, answer))


# Lines after the answer


@pytest.mark.parametrize(
    "after",
    [
        "Confidence: 90",
        "Confidence: 0.95",
        "**Confidence:** 95%",
        "My confidence is 80%.",
        "Confidence level: 3 of 5",
        "Let me know if you need 2 more examples!",
        "I hope this helps!",
        "Confidence: 90\n\nWould you like 3 more?",
    ],
)
def test_a_stated_confidence_or_an_offer_after_the_answer_is_not_the_answer(after: str) -> None:
    assert right(f"18\n{after}", "18")
    assert form(f"She makes $18.\n\n{after}") == "18"
    assert right(f"Canberra\n\n{after}", "Canberra", CAPITAL, "exact")
    for digits in ("90", "95", "19/20", "80", "3", "2"):
        assert not right(f"18\n{after}", digits)


def test_a_confidence_stays_the_answer_where_it_is_asked_for_or_alone() -> None:
    asked = "What confidence level has an interval of 2 standard errors?"
    assert right("It covers 19 of 20.\nConfidence level: 95%", "95%", asked)
    assert form("Confidence: 90", "State your confidence.") == "90"
    assert form("The interval holds.\nConfidence interval: 3", "How wide?") == "3"


@pytest.mark.parametrize(
    "answer",
    [
        'Here it is:\n{"answer": "Canberra"}',
        'Sure!\n```json\n{"answer": "Canberra", "confidence": 0.9}\n```',
        '```json\n{\n  "reason": "Sydney is larger.",\n  "answer": "Canberra"\n}\n```\nI hope this helps!',
    ],
)
def test_an_object_after_a_sentence_is_read(answer: str) -> None:
    assert right(answer, "Canberra", CAPITAL, "exact")
    assert form(answer, CAPITAL, "exact") == "canberra"


# Taken back


@pytest.mark.parametrize(
    "back", ["My mistake, {}.", "Oops, {}", "Correction: it is {}.", "On second thought, {} it is."]
)
def test_an_answer_that_is_taken_back_is_not_the_answer(back: str) -> None:
    number, city = back.format(20), back.format("Sydney")
    assert not right(f"18. {number}", "18")
    assert form(f"18. {number}") not in (form("18"), form("20"))
    assert not right(f"Canberra. {city}", "Canberra", CAPITAL, "exact")
    assert option(f"A. {back.format('C')}") == ""


@pytest.mark.parametrize(
    "answer",
    ["18 is wrong", "18 is not right", "18? No.", "18 is too high", "18 would be far too low", "I doubt it is 18"],
)
def test_a_number_that_is_denied_after_it_is_not_the_number(answer: str) -> None:
    assert not right(answer, "18")
    assert form(answer) != form("18")


@pytest.mark.parametrize("answer", ["18 at most", "18 dollars at least", "$18 minimum", "18, at most"])
def test_a_bound_after_a_number_is_part_of_it_unless_it_is_asked_for(answer: str) -> None:
    assert not right(answer, "18")
    assert form(answer) != form("18")
    for asked in ("How much does she make at most and at least?", "What is the minimum?"):
        if answer.split()[-1] in asked and answer.split()[-2] != "at":
            assert right(answer, "18", asked)
    assert right("18 at most", "18", "How many eggs can she sell at most?")


def test_a_year_that_only_bounds_the_time_is_not_the_year() -> None:
    asked = "In which year did the war end?"
    assert right("It ended in 1945.", "1945", asked)
    for word in ("before", "after", "since", "until"):
        assert not right(f"{word} 1945", "1945", asked), word
        assert form(f"{word} 1945", asked) != form("1945", asked), word
    assert right("after 1945", "1945", "After which year was it rebuilt?")
    assert right("After 1500 steps", "1500", "When does she rest?")


def test_a_decrease_is_not_the_amount_unless_less_is_asked_for() -> None:
    assert not right("a loss of $18", "18")
    assert right("a loss of $18", "18", "How large is the loss?")


def test_another_currency_than_the_one_of_the_question_is_wrong() -> None:
    assert right("$18", "18")
    assert right("18 dollars", "18")
    assert not right("€18", "18")
    assert right("$18", "18", "One egg costs 50 cents. How much are 36 eggs?")
    assert right("€18", "18", "What does it cost?")


# Sentences


def test_the_last_of_a_chain_of_calculations_is_the_answer() -> None:
    chain = "Janet has 16 - 3 - 4 = 9 eggs left. She sells them for 9 * $2 = $18."
    assert right(chain, "18")
    assert form(chain) == "18"
    assert not right(chain, "9")
    assert right("She makes 9 * 2 = 18. Check: 18 / 2 = 9.", "18")
    assert right("She makes 9 * 2 = 18. The eggs were 16 - 7 = 9.", "18")


def test_two_calculations_without_a_common_result_give_no_number() -> None:
    both = "Eggs make 4 * 3 = 12. Cakes make 2 * 7 = 14."
    for digits in ("12", "14"):
        assert not right(both, digits)
        assert form(both) != digits
    assert form("Eggs make 4 * 3 = 12. Cakes make 2 * 7 = 14. In total 12 + 14 = 26.") == "26"


def test_a_note_between_answer_and_colon_is_not_read() -> None:
    assert right("9 * 2\nAnswer (in dollars): 18", "18")
    assert right("**Final answer (rounded to 2 decimals):** 18.00", "18")
    assert not right("Final answer (rounded to 2 decimals): 18.00", "2")
    assert right("The answer (18) is the product of both.", "18")


def test_a_comparison_answers_with_its_subject_or_not_at_all() -> None:
    asked = "Which is bigger, 9.11 or 9.9?"
    assert right("9.9 is bigger than 9.11", "9.9", asked)
    assert form("9.9 is bigger than 9.11.", asked) == form("9.9", asked)
    assert form("9.11 is bigger than 9.9", asked) == form("9.11", asked)
    assert not right("9.9 is smaller than 9.11", "9.9", asked)
    assert form("9.9 is bigger than 9.11", "How many?") not in (form("9.9"), form("9.11"))


def test_yes_with_words_of_the_question_is_yes() -> None:
    asked = "Is 7 prime?"
    assert form("Yes, 7 is prime.", asked, "exact") == "yes"
    assert form("No, 7 is not prime.", asked, "exact") == "no"
    assert form("Yes, 7 is not prime.", asked, "exact") != "yes"
    assert form("Yes, 8 is prime.", asked, "exact") != "yes"
    assert form("No, it is prime.", "Is it not prime?", "exact") != form(
        "No, it is not prime.", "Is it not prime?", "exact"
    )
    assert form("Yes, Ann is here.", "Is Ann or Bob here?", "exact") != form("Yes, Bob is here.", "Is Ann or Bob here?")


def test_the_past_of_a_verb_repeats_the_question() -> None:
    asked = "When did the war end?"
    assert right("The war ended in May.", "May", asked, "exact")
    assert form("The war ended in May.", asked, "exact") == "may"
    assert not right("The war started in May.", "May", asked, "exact")


# Options


@pytest.mark.parametrize(
    "answer",
    [
        "- [ ] A\n- [ ] B\n- [ ] C\n- [ ] D",
        "☐ A) Oslo\n☐ B) Rome\n☐ C) Lima\n☐ D) Cairo",
        "○ A\n○ B\n○ C\n○ D",
        "A: 0.1\nB: 0.1\nC: 0.7\nD: 0.1",
        "A) Oslo is cold\nB) Rome is old\nC) Lima is wet\nD) Cairo is hot",
        "● A\n○ B\n● C\n○ D",
        "Eliminate Oslo",
        "All except Oslo",
        "Oslo is ruled out.",
        "Oslo can be excluded.",
    ],
)
def test_options_that_are_listed_discussed_or_excluded_are_no_answer(answer: str) -> None:
    assert option(answer) == ""


@pytest.mark.parametrize(
    "answer",
    [
        "○ A\n○ B\n● C\n○ D",
        "( ) A\n( ) B\n(x) C\n( ) D",
        "○ A\n○ B\n○ C\n○ D\nAnswer: C",
        "- [ ] A\n- [ ] B\n- [ ] C\n- [ ] D\n\nC",
        "A. Oslo is cold.\nB. Rome is old.\nC. Lima is wet.\nD. Cairo is hot.\nSo C.",
        "A - false\nB - false\nC - true\nD - false",
        "● C",
        "It's not A; it's C.",
        "Definitely C",
        "C\nConfidence: 90%",
    ],
)
def test_the_option_that_is_chosen_in_or_after_a_list_is_read(answer: str) -> None:
    assert option(answer) == "Lima"


def test_an_option_or_gold_that_has_such_words_itself_is_an_answer() -> None:
    choices = ("Error correction", "Oops, a game", "Rome")
    item = Item("i", "Which?\nA) Error correction\nB) Oops, a game\nC) Rome", choices=choices, check="choice")
    assert canonical(item, "It is error correction") == "Error correction"
    assert canonical(item, "Oops, a game") == "Oops, a game"
    assert right("Error correction. It repairs all flipped bits.", "error correction", "Which?", "exact")


def test_a_later_answer_overrules_the_first_letter() -> None:
    assert option("A is tempting; the answer is C.") == ""
    assert option("A is tempting; the answer is A.") == "Oslo"
    assert option("Oslo", "Which can be eliminated?\nA) Oslo\nB) Rome\nC) Lima\nD) Cairo") == "Oslo"
    assert option("Oslo can be eliminated", "Which can be eliminated?\nA) Oslo\nB) Rome\nC) Lima\nD) Cairo") == "Oslo"
