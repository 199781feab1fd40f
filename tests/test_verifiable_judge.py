"""The judge that is a program, on arguments whose faults are known."""

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.papers.systems.verifiable import (
    Findings,
    argues_against,
    check_argument,
    is_gibberish,
    is_repetitive,
    occurs,
    plain_words,
    quotations,
)

ESSAY = (
    "Last week @PERSON1 waited ten minutes in the lunch line. He didn't complian. "
    'Then he said, "Thanks for saving me a seat", and we ate the dogs\' leftovers. '
    "I was not angry about that at all. We were glad to be out of that loud, crowded cafaterra."
)
FOR = 'The writer keeps to the topic. "Waited ten minutes in the lunch line" shows patience, "glad to be out" ends it.'


def check(argument: str, role: str = "advocate", essay: str = ESSAY, *elsewhere: str) -> Findings:
    return check_argument(argument, essay, role=role, other_texts=elsewhere)


def test_a_sound_argument_passes_every_check() -> None:
    found = check(FOR)
    assert found == Findings(2, (), False, False, False, False, False, 0)
    assert (found.critical, found.evidence) == (False, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('He says "one two three" here.', ["one two three"]),
        ("He says “one two three” here.", ["one two three"]),
        ("He says «one two three» here.", ["one two three"]),
        ("He says 'one two three' here.", ["one two three"]),
        ("He says ‘one two three’ here.", ["one two three"]),
        ("He says „one two three“ here.", ["one two three"]),
        ('("one two three")', ["one two three"]),
        ('"One two three," it begins.', ["One two three,"]),
        # an apostrophe is no quotation mark
        ("It isn't the boy's fault, and they don't say it's hers.", []),
        ("It isn’t the boy’s fault, and they don’t say it’s hers.", []),
        ("The dogs' tails and the cats' ears and the birds' wings.", []),
        ("He told 'em to wait, 'cause the boys' bus was late.", []),
        ("Back in the '90s the kids' games were fun.", []),
        ("He writes 'I didn't want to wait' plainly.", ["I didn't want to wait"]),
        ("He writes ‘I didn’t want to wait’ plainly.", ["I didn’t want to wait"]),
        # the outer marks count
        ("\"he said 'wait for me' to her\"", ["he said 'wait for me' to her"]),
        ("'he said \"wait for me\" to her'", ['he said "wait for me" to her']),
        ("“he said ‘wait for me’ to her”", ["he said 'wait for me' to her"]),
        # a mark alone opens nothing
        ('A stick 6" long and a board 8" wide were used.', []),
        ('He said "one two three and never stopped.', []),
        ('He said "one two\nthree" over two lines.', []),
        # too short to tell
        ('The "Ideas" trait and a "clear focus".', []),
        ('"one two three" and "four five six"', ["one two three", "four five six"]),
    ],
)
def test_quotations_are_what_stands_between_marks(text: str, expected: list[str]) -> None:
    straight = [passage.replace("’", "'").replace("‘", "'") for passage in expected]
    assert quotations(text) == straight


@pytest.mark.parametrize(
    ("quotation", "there"),
    [
        ("waited ten minutes in the lunch line", True),
        ("Waited  TEN minutes, in the lunch-line!", True),
        ("He didn’t complian", True),
        ("He didn't complain", True),  # mended spelling
        ("that loud, crowded cafeteria", True),
        ("waited ten minutes ... loud, crowded", True),
        ("[he] waited ten minutes", True),
        ('Then he said, "Thanks for saving me a seat"', True),
        ("@PERSON1 waited ten minutes", True),
        ("he said thanks for saving a seat", True),  # one word of seven left out
        ("waited twenty minutes in the lunch", False),
        ("he shared his lunch with everyone", False),
        ("He did complian", False),
        ("I was angry about that at all", False),  # the negation is gone
        ("glad to be in", False),
        ("loud, crowded ... waited ten minutes", False),  # the parts stand the other way round
        ("the lunch line was loud", False),
    ],
)
def test_a_quotation_occurs_in_other_dress_or_mended_and_not_where_it_says_something_else(
    quotation: str, there: bool
) -> None:
    assert occurs(quotation, plain_words(ESSAY)) == there


def test_an_invented_quotation_is_hallucinated_and_critical() -> None:
    found = check('The line "he shared his lunch with everyone" is vivid, and "waited ten minutes" is true.')
    assert found.hallucinated == ("he shared his lunch with everyone",)
    assert found.critical
    assert found.verbatim == 1


def test_quoting_the_rubric_or_the_opponent_is_neither_evidence_nor_hallucinated() -> None:
    argument = 'The rubric asks for "specific and relevant details", and the Advocate said "a lively little scene".'
    assert len(check(argument).hallucinated) == 2
    found = check(argument, "skeptic", ESSAY, "3: specific and relevant details", "It is a lively little scene.")
    assert (found.hallucinated, found.verbatim) == ((), 0)


@pytest.mark.parametrize(
    ("text", "scored"),
    [
        ("I would give it a 3 for that.", True),
        ("The essay deserves a score of four.", True),
        ("Score: 2", True),
        ("**Score:** 5/6", True),
        ("That makes 3 out of 4 for ideas.", True),
        ("It earns a 5 here.", True),
        ("This essay rates a 2.", True),
        ("It deserves full marks.", True),
        ("It should get the highest possible score.", True),
        ("I rate it at a 4.", True),
        ("It deserves an A for this.", True),
        ("I would give this essay five points for ideas.", True),
        ("It deserves 3 marks.", True),
        ("I will not give a score.", False),
        ("He scored a goal and waited 10 minutes.", False),
        ("Three friends waited for two hours.", False),
        ("The writer gives three examples of patience.", False),
        ('The passage "I give it a 3" is quoted.', False),
        ("The student gives a detailed account of the 2 friends.", False),
        ("3 out of 5 friends laughed.", False),
        ("It gives a two-part structure to the story.", False),
        ("He deserves a break after that.", False),
        ("The essay makes two points about patience, and gives three reasons.", False),
    ],
)
def test_a_score_given_is_seen_and_numbers_that_are_no_scores_are_let_be(text: str, scored: bool) -> None:
    assert check(f"The writer stays with the topic. {text}").scored == scored


def test_a_negation_reaches_three_words_far_and_a_majority_of_at_least_two_decides() -> None:
    assert argues_against("It is weak. It is poor.", sign=1)
    assert not argues_against("It is weak.", sign=1)
    assert not argues_against("It is weak. It is poor. It is clear. It is vivid.", sign=1)
    assert argues_against("It is weak. It is poor. It is vague. It is clear. It is vivid.", sign=1)
    assert argues_against("It is clear. It is vivid.", sign=-1)
    assert argues_against("It is not at all clear. It isn't really very vivid.", sign=1)
    assert not argues_against("It is not in any way clear. It isn't by any means vivid.", sign=1)
    assert not argues_against("It is weak and strong. It is poor and rich.", sign=1)  # neither


def test_one_word_in_five_may_be_missing_and_words_that_begin_alike_are_the_same() -> None:
    source = plain_words("one two three four five six seven eight nine ten")
    assert occurs("one two four five six", source)  # one added word of five
    assert not occurs("one two four five", source)
    assert not occurs("one two four five six seven nine ten", source)  # two of eight
    assert occurs("one two three ... nine ten", source)
    assert not occurs("nine ten ... one two three", source)  # parts must follow each other
    assert occurs("wonderfull people came", plain_words("wonderful people came"))
    assert not occurs("wonder people came", plain_words("wonderful people came"))  # three letters apart
    assert not occurs("cat dog sat", plain_words("cot dog sat"))  # too short to be spelling


def test_retelling_the_essay_or_the_opponent_word_for_word_is_copied_and_quoting_is_not() -> None:
    retold = "He waited ten minutes in the lunch line. We were glad to be out of that loud, crowded cafaterra."
    assert check(retold).copied
    assert not check(f'The writer says "{retold}" and so keeps to the topic, as the rubric asks of stories.').copied
    said = 'It stays with its topic all the way. The words "glad to be out" show that he is patient until the very end.'
    assert check(said, "skeptic", ESSAY, said).copied
    assert not check(said, "skeptic", ESSAY).copied
    assert not check(FOR).copied
    assert not check("He waited ten minutes.").copied


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Yes.",
        "xkcd qwrt zxcv bnm plk trw sdf ghj",
        "{}[]();;== !! @@ ## $$ %% ^^ && ** def (x): {{}}",
        "这篇文章很好 因为作者写得很清楚 而且有很多细节 the end of it is good",
        "banana table river seven green running quickly window paper stone music yellow garden bottle winter "
        "number pocket silver animal letter",
    ],
)
def test_gibberish_is_seen(text: str) -> None:
    assert is_gibberish(text)


def test_prose_is_no_gibberish_whatever_its_spelling() -> None:
    assert not is_gibberish(FOR)
    assert not is_gibberish("He was verry pashient wen he wayted in the lunch lyne and didnt complian wons.")


def test_placeholders_count_only_outside_true_quotations() -> None:
    assert check('"@PERSON1 waited ten minutes" shows it well enough for the reader.').placeholders == 0
    assert check("It says @PERSON1 and @CAPS2, and these placeholders confuse the reader.").placeholders == 3
    found = check('The words "@CAPS1 went to @LOCATION1 alone" confuse the reader of it.')
    assert (found.placeholders, len(found.hallucinated)) == (2, 1)


@given(st.text(max_size=200))
def test_any_text_at_all_can_be_checked(text: str) -> None:
    found = check(text, "skeptic", text)
    assert found.hallucinated == ()  # whatever it quotes, it quotes from itself
    assert all(value >= 0 for value in found.labels().values())


def test_a_long_argument_full_of_open_marks_is_checked_at_once() -> None:
    """Quadratic matching would take minutes."""
    assert quotations("'a " * 20_000) == []
    assert quotations('"a ' * 20_000 + "\n") == []


@given(st.integers(0, 30), st.integers(3, 12), st.sampled_from(['"{}"', "“{}”", "'{}'", "‘{}’"]), st.booleans())
def test_whatever_is_copied_from_the_essay_is_never_hallucinated(
    start: int, length: int, marks: str, upper: bool
) -> None:
    copied = takewhile(lambda word: not set("\"'") & set(word), ESSAY.split()[start : start + length])
    passage = " ".join(copied)
    quoted = marks.format(passage.strip(",.").upper() if upper else passage)
    assert check(f"The writer says {quoted} here.").hallucinated == ()


@pytest.mark.parametrize(
    "text",
    [
        "the the the",
        "the the the the the the the the the",
        f"{FOR} It is clear and the the the the the the the the the the the",
        f"{FOR} the essay is the essay is the essay is the essay is the essay",
        f"{FOR} " + "and he waited for a long time in line " * 4,
    ],
)
def test_a_degenerate_argument_is_critical_even_where_it_begins_well(text: str) -> None:
    assert check(text).critical


@pytest.mark.parametrize(
    "text",
    [
        "It was a very very very long wait, and the writer says so.",
        "He says that that is that, and what he had had had been good.",
        "The friend laughs ha ha ha ha at the end, which shows the mood of the story.",
        "First he waits, then he waits again, then he waits once more, and so the reader waits with him.",
    ],
)
def test_emphasis_is_no_loop(text: str) -> None:
    assert not is_repetitive(text)
