"""Answer checking: what is accepted, what is refused, and what the sandbox stops."""

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metaprobe.papers.tasks.task import letter_options
from metaprobe.records.correctness import (
    canonical,
    chosen,
    final_answer,
    is_correct,
    stem,
    strip_decoration,
    words,
)
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Item

FRANCE = Item(id="f", question="What is the capital of France?", gold=("Paris",), check="exact")
YEN = Item(id="y", question="What is the currency of Japan?", gold=("yen", "Japanese yen"), check="exact")
DOG = Item(id="d", question="Anna has a cat. Ben has a dog. Who has the dog?", gold=("Ben",), check="exact")
KEY = Item(
    id="k",
    question="The key is in the box or in the bag. It is not in the box. Where is the key?",
    gold=("bag",),
    check="exact",
)
UPPER = Item(id="u", question='What does this Python code print?\nprint("sun".upper())', gold=("SUN",), check="exact")
SUM = Item(id="s", question="What is 3 + 4?", gold=("7",), check="number")
MINUS = Item(id="m", question="What is 10 - 5?", gold=("5",), check="number")
BIG = Item(id="b", question="How many people live there?", gold=("1200",), check="number")
PLACE = Item(id="p", question="In which country is Cádiz located?", gold=("Spain",), check="exact")
HALF = Item(id="h", question="What is half of 5?", gold=("2.5",), check="number")
COLD = Item(
    id="c",
    question="Which is the coldest: a fire, an ice cube or a cup of tea?",
    gold=("an ice cube",),
    choices=("a fire", "an ice cube", "a cup of tea"),
    check="choice",
)
YES = Item(
    id="q", question="Are all cats animals? Answer yes or no.", gold=("yes",), choices=("yes", "no"), check="choice"
)
NO = Item(id="n", question="Are all cats dogs? Answer yes or no.", gold=("no",), choices=("yes", "no"), check="choice")
TALL = Item(
    id="t", question="Ann is taller than Bob. Who is shorter: Ann or Bob?", gold=("Bob",), choices=("Ann", "Bob"),
    check="choice",
)  # fmt: skip
ADD = Item(
    id="a", question="Write a Python function add(a, b).", gold=("assert add(2, 3) == 5", "assert add(0, 0) == 0"),
    check="function",
)  # fmt: skip

MEN = ("The boy", "The old man", "Not known")
NOT_HIM = Item(
    id="o", question=f"A boy and an old man met. Who does not listen?\n\n{letter_options(MEN)}", gold=("The old man",),
    choices=MEN, check="choice",
)  # fmt: skip
CLAIM = Item(
    id="l", question="Claim: Soup is dry. True or false?", gold=("false",), choices=("true", "false"), check="choice"
)
DOZENS = Item(id="z", question="How many dozens of eggs are 84 eggs?", gold=("7",), check="number")

RIGHT = [(item, answer) for item, answers in (
    (FRANCE, (
        "Paris", " paris. ", '"Paris"', "**Paris**", "Answer: Paris", "The answer is: Paris!",
        "The capital of France is Paris.", "Paris is the capital of France.", "Paris, France", "It is Paris.",
        "Paris. It lies on the Seine.", "Paris, a city on the Seine.", "```\nParis\n```",
    )),
    (PLACE, (
        "Cádiz is located in Spain.", "Cádiz is located in Andalusia, Spain.",
        "It lies in the south of Europe, specifically in Spain.",
    )),
    (YEN, ("the Japanese yen (JPY)", "The currency of Japan is the yen.")),
    (DOG, ("Ben has the dog.",)),
    (KEY, ("The key is in the bag.", "in a bag")),
    (UPPER, ("SUN", 'The code prints "SUN".')),
    (SUM, (
        "7", "seven", "7.0", "3 + 4 = 7", "7 = 3 + 4", "The sum of 3 and 4 is 7.",
        "Ann has 3, gets 4 more, so she has 7 apples.",
    )),
    (MINUS, ("10 - 5 is 5", "Ann pays 10 with a 5, so she gets 5 back.")),
    (BIG, ("1,200", "1,200.00", "1200 people", "Answer: 1200.", "100 dozen")),
    (HALF, ("2.5 cm", "Half of 5 is 2.5.", "5/2")),
    (COLD, ("an ice cube", "Ice cube.", "The coldest is an ice cube.", "ice")),
    (YES, ("Yes.", "Yes, all cats are animals.")),
    (NO, ("No, cats are not dogs.",)),
    (TALL, ("Bob", "Bob is shorter than Ann.")),
    (NOT_HIM, (
        "B", "(B)", "b)", "B.", "**B**", "$B$", "\\boxed{B}", "B) The old man", "Option B", "Answer: B.", "A: B.",
        "The answer is B.", "The correct option is B.", "So I would pick B.", "B, because the boy is not deaf.",
        "B is right, A is wrong.", "The old man does not listen.", "It must therefore be option B",
    )),
    (CLAIM, (
        "False", "The claim is false because soup is not dry.", "False. Soup is not dry and nobody says it is true.",
    )),
    (DOZENS, ("7 dozens",)),
    (ADD, (
        "def add(a, b):\n    return a + b", "Sure!\n```python\ndef add(a, b):\n    return a + b\n```\nThis adds.",
        "Sure:\ndef add(a, b):\n    return a + b\nThis adds the two numbers.", "add = lambda a, b: a + b",
    )),
) for answer in answers]  # fmt: skip
WRONG = [(item, answer) for item, answers in (
    (FRANCE, (
        "", "London", "not Paris", "It isn't Paris.", "Paris or London", "Paris and London", "Paris, London",
        "Either Paris", "Paris? Maybe Lyon.", "Paris. No, actually it is Lyon.", "The capital of France", "Parisian",
        "Paris Hilton",
    )),
    (PLACE, (
        "in Andalusia", "Cádiz is located in Spain or Portugal, Europe.", "in Port of Spain, Trinidad",
        "It is not in Cuba, Spain.",
    )),
    (YEN, ("Chinese yuan",)),
    (DOG, ("Anna has a cat. Ben has a dog.", "Anna and Ben", "Ben has a cat.")),
    (KEY, ("box, bag", "The key is in the box or in the bag.")),
    (UPPER, ("sun",)),
    (SUM, ("8", "17", "-7", "7 or 8", "not 7", "3 + 4", "3 + 4 = 12", "7 = 12", "7 hundred", "7, 8, 9")),
    (MINUS, ("10 - 5",)),
    (BIG, ("1,20", "1.2", "1200 dozen", "1200%", "$1,200.00", "1200x", "1200 or more")),
    (HALF, ("2 and a half or 3",)),
    (COLD, ("a fire", "a fire, an ice cube or a cup of tea", "an ice cube or a fire", "not an ice cube", "snow")),
    (YES, ("No.", "Yes and no.", "maybe")),
    (NO, ("Yes",)),
    (TALL, ("Ann", "Ann is shorter than Bob.", "Ann, Bob")),
    (NOT_HIM, (
        "A", "C) Not known", "Not B", "A or B", "B or C", "B, C", "B and C", "D", "E)",
        "A) The boy\nB) The old man\nC) Not known", "B is not right.", "B. Wait, A.", "B) The boy",
        "Not the old man", "A boy or an old man", "Be that as it may",
    )),
    (CLAIM, ("B", "True", "not false", "False or true", "The claim may be true or false.")),
    (ADD, (
        "def add(a, b):\n    return a - b", "def plus(a, b):\n    return a + b", "The answer is a + b.",
        "def add(a, b) return a + b",
    )),
) for answer in answers]  # fmt: skip


@pytest.mark.parametrize(("item", "answer"), RIGHT)
def test_a_right_answer_is_accepted_however_it_is_dressed(item: Item, answer: str) -> None:
    assert is_correct(item, answer)


@pytest.mark.parametrize(("item", "answer"), WRONG)
def test_an_answer_that_is_wrong_or_open_is_refused(item: Item, answer: str) -> None:
    assert not is_correct(item, answer)


@given(st.text(max_size=200))
def test_any_text_gets_a_verdict(text: str) -> None:
    for item in (FRANCE, SUM, COLD, NOT_HIM):
        assert is_correct(item, text) in (True, False)


FORMS = ("{}", "{:,}", "The answer is {:,}.", "**{}**", "{:,} km", "x = {}")


@given(st.integers(-(10**9), 10**9), st.sampled_from(FORMS))
def test_a_number_is_found_in_every_form(number: int, form: str) -> None:
    item = Item(id="i", question="How many?", gold=(str(number),), check="number")
    assert is_correct(item, form.format(number))
    assert not is_correct(item, form.format(number + 1))


@pytest.mark.parametrize("item", [COLD, YES, NO, TALL, NOT_HIM, CLAIM])
def test_votes_and_scores_read_choices_alike(item: Item) -> None:
    for _, answer in RIGHT + WRONG:
        assert is_correct(item, answer) == (chosen(item, answer) in item.gold) == (canonical(item, answer) in item.gold)


UNITS_UNASKED = {"2.5 cm": "5/2 cm"}
"""Right answers with a unit that neither the gold nor the question names: 5 cm and 5 m are two votes."""


@pytest.mark.parametrize("item", [SUM, MINUS, BIG, HALF])
def test_a_number_that_is_right_is_the_number_that_is_voted_for(item: Item) -> None:
    for _, answer in RIGHT + WRONG:
        if is_correct(item, answer):
            assert canonical(item, answer) == UNITS_UNASKED.get(answer, canonical(item, item.gold[0]))


TALLER = "Who is taller, Ann or Bob?"
LARGER = "Is Mars larger than Venus?"


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        (FRANCE.question, ("Paris", "The capital of France is Paris.", "It's Paris", "France's capital is **Paris**")),
        (PLACE.question, ("Spain", "In Spain.", "Cadiz is located in Spain.", "It is located in the country Spain")),
        (DOG.question, ("Ben", "Ben has the dog.")),
        ("How many legs does a crab have?", ("8", "A crab has eight legs.", "eight")),
        ("what is the capital of Mali", ("Bamako", "The capital of Mali is Bamako.")),
        (LARGER, ("Yes", "It is: yes.")),
    ],
)
def test_answers_that_repeat_their_question_are_the_same(question: str, answers: tuple[str, ...]) -> None:
    assert len({canonical(Item("i", question), answer) for answer in answers}) == 1


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        (TALLER, ("Ann", "Bob", "Ann, by 3 cm", "Bob, by 3 cm", "Ann and Bob", "Neither Ann nor Bob", "Not Ann")),
        *(
            (question, ("Ann, by 3 cm", "Bob, by 3 cm", "3 cm"))
            for question in (
                "Who is taller: Ann, Bob?",
                "Of Ann, Bob, who is taller?",
                "Who is taller (Ann/Bob)?",
                "Which of Ann, Bob is taller?",
                "Who won the race, Ann - Bob?",
                "Who won Ann vs Bob?",
            )
        ),
        (LARGER, ("Mars", "Venus", "Yes", "No", "Mars, by far", "Venus, by far", "Not Mars", "Mars is larger: true")),
        ("Which of Ann and Bob is first?", ("Ann, as ever", "Bob, as ever")),
        ("Choose the tallest.\nA) Ann\nB) Bob", ("A) Ann, as ever", "B) Bob, as ever", "Ann", "Bob")),
        ("What is the largest of 3, 7, 9?", ("9, of course", "7, of course", "3", "7", "9")),
        ("Is it true that all cats are animals?", ("True", "False", "It is not true", "True, by law", "False, by law")),
        ('What is the opposite of "heavy"?', ("light", "dark", "heavy", "light blue")),
        ("What is never late?", ("Time", "Not time", "Never time")),
        (DOG.question, ("Ann", "Ben", "not Ben", "Nobody", "The dog", "The cat")),
        ("Which house is red, white?", ("red and white", "white, and the house")),
    ],
)
def test_different_answers_stay_apart_whatever_words_they_share_with_the_question(
    question: str, answers: tuple[str, ...]
) -> None:
    assert len({canonical(Item("i", question), answer) for answer in answers}) == len(answers)


def test_a_list_of_numbers_or_a_number_denied_is_not_its_last_number() -> None:
    item = Item("i", "How many eggs are left?", check="number")
    apart = ("5", "3 and 5", "3 or 5", "2, 3 and 5", "It is not 5.", "Maybe 5", "10/5", "3 hours and 20 minutes", "20")
    assert len({canonical(item, answer) for answer in apart}) == len(apart)
    assert {canonical(item, answer) for answer in ("5", "Of 9 there are 5", "five")} == {"5"}
    for several in ("32 divided by 9 gives 3 with a remainder of 5", "Not 3 but 5"):
        assert canonical(item, several).startswith("text"), "a text of several numbers is read whole or not at all"
    assert {canonical(item, answer) for answer in ("3, 5", "3 and 5.", "three; five", "3 eggs, and 5")} == {"3 5"}
    asked = Item("i", "How many did Ann not hit?", check="number")
    assert canonical(asked, "Of 9 Ann did not hit 5 in 2 hours but 7").startswith("text")


WORD = st.text("bcdfg", min_size=3, max_size=6)


@given(
    st.sampled_from((FRANCE.question, PLACE.question, TALLER, LARGER, "")) | st.text(max_size=60), st.text(max_size=80)
)
def test_a_form_holds_words_of_the_answer_in_their_order(question: str, answer: str) -> None:
    spoken, form = list(words(strip_decoration(answer))), canonical(Item("i", question), answer).split()
    assert bool(form) == bool(spoken)
    rest = iter(spoken)
    assert all(word in rest for word in form)
    assert [word for word in form if not word.isalpha()] == [word for word in spoken if not word.isalpha()]


@given(WORD, WORD, WORD)
def test_an_answer_in_a_sentence_is_the_answer_alone(kind: str, name: str, answer: str) -> None:
    assume(answer not in (kind, name) and stem(answer) == answer)
    item = Item("i", f"What is the {kind} of {name}?")
    assert canonical(item, f"The {kind} of {name} is {answer}.") == canonical(item, answer) == answer


def test_recorded_answers_that_are_the_same_are_right_or_wrong_together() -> None:
    classes = spellings = 0
    for run in RunStore(Path("recorded/states/qwen-coder-1.5b/metacog-eval-samples")).runs(hidden=False):
        if run.item.check == "exact":
            answers = [final_answer(run.item, call.text) for call in run.calls]
            labels: dict[str, set[float | None]] = {}
            for call, answer in zip(run.calls, answers, strict=True):
                labels.setdefault(canonical(run.item, answer), set()).add(run.label("correct", call.id))
            assert all(len(given) == 1 for given in labels.values()), run.item.id
            classes += len(labels)
            spellings += len({words(strip_decoration(answer)) for answer in answers})
    assert classes < 0.75 * spellings


@pytest.mark.parametrize(
    ("item", "text", "answer"),
    [
        (SUM, "3 and 4.\nAnswer: 7", "7"),
        (SUM, "I add. So the final numerical answer is 7 eggs.", "7 eggs."),
        (SUM, "I add.\n#### 7", "7"),
        (SUM, "\\[\n\\boxed{7}\n\\]", "7"),
        (SUM, "It makes 7.\nDoes this help you?", "It makes 7."),
        (NOT_HIM, "B) The old man\n\nThe boy listens.", "B) The old man"),
        (NOT_HIM, "Let us see.\nIt is the old man.\nI hope this helps.", "It is the old man."),
        (FRANCE, "I know.\n<answer>Paris</answer> ok", "Paris"),
    ],
)
def test_the_answer_is_found_in_a_longer_text(item: Item, text: str, answer: str) -> None:
    assert final_answer(item, text) == answer


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (Item(id="x", question="?", check="exact"), "no gold"),
        (Item(id="x", question="?", gold=("a",), check="none"), "check 'none'"),
        (Item(id="x", question="?", gold=("a",), choices=("b",), check="choice"), "none of its choices"),
        (Item(id="x", question="?", gold=("many",), check="number"), "not one number"),
    ],
)
def test_an_item_that_cannot_be_checked_is_an_error(item: Item, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        is_correct(item, "a")


def test_a_letter_with_a_colon_may_introduce_the_answer() -> None:
    item = Item(id="l", question="Which?\nA) red\nB) green\nC) blue", choices=("red", "green", "blue"), gold=("green",))
    assert chosen(item, "A: B") == "green"
    assert chosen(item, "A: red") == "red"
    assert chosen(item, "B: green") == "green"
    assert chosen(item, "C") == "blue"
    assert chosen(item, "D") is None
    # "A:" introduces the answer, as in "Q: ... A: ...", but where what follows is none, it is one.
    for said in ("A: because of the sky", "A: this one.", "A: it is the likelier one"):
        assert chosen(item, said) == "red"


def test_of_choices_that_hold_one_another_the_longest_is_named() -> None:
    item = Item(id="n", question="Who wrote it?", choices=("Ann", "Ann Lee", "Bob"), gold=("Ann Lee",))
    assert chosen(item, "I think it was Ann Lee who did") in (None, "Ann Lee")
    assert chosen(item, "Ann Lee wrote it") == "Ann Lee"
    assert chosen(item, "Ann wrote it") == "Ann"
    assert chosen(item, "Ann Lee or Bob") is None
    turned = Item(id="n", question="Who wrote it?", choices=("Ann Lee", "Ann"), gold=("Ann Lee",))
    assert chosen(turned, "Ann Lee wrote it") == "Ann Lee"
