"""Finds the answer in a model's text, tells whether it is right, and whether two answers are equal.

Other rooms reach `records.answers` through this module. It reads texts, numbers, options and code: the four forms of
`Item.check`. Systems that vote and task sets that score compare answers by the same functions, so votes and scores
agree.

An answer may have additions: "Answer: **Paris**.", "the yen (JPY)", "$1,200", "3 + 4 = 7", "The capital is Paris."
Beside the gold it may hold only words of the question's own sentence and words without content. It may not be hedged,
negated, or one of several: "not Paris", "Paris or London" and "Paris, London" are wrong. A number is read whole, with
its sign, fraction, exponent and unit, and never from a part of a longer expression.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from metaprobe.records.answers.code import function_code
from metaprobe.records.answers.latex import boxed_parts
from metaprobe.records.answers.mathematics import is_equal_latex
from metaprobe.records.answers.numbers import (
    canonical_number,
    gold_number,
    numbers,
    read_number,
    read_quantity,
    same_quantity,
)
from metaprobe.records.answers.options import chosen, find_choices, letter_options, names_letter, options_in
from metaprobe.records.answers.texts import (
    AFTER_LEAD,
    BEFORE_LEAD,
    FILLER,
    IS,
    IS_JOINED,
    LEADS,
    MAX_COMPARED_CHARS,
    SENTENCE_END,
    Words,
    find_words,
    has_words,
    is_hedged,
    plain_form,
    sentences,
    stem,
    strip_decoration,
    without_accents,
    words,
    words_beside,
)
from metaprobe.records.errors import RecordError
from metaprobe.records.sandbox import run_assertions
from metaprobe.records.segments import CLOSINGS, OPENINGS, spoken_text
from metaprobe.records.spelling import last_place
from metaprobe.records.types import Item

__all__ = [
    "canonical",
    "chosen",
    "final_answer",
    "find_choices",
    "find_words",
    "function_code",
    "is_correct",
    "letter_options",
    "most_voted",
    "numbers",
    "read_number",
    "stem",
    "strip_decoration",
    "words",
]

_IN_WHICH = re.compile(r"\bin (?:which|what)\b", re.IGNORECASE)
_PLACED = re.compile(r"^.*?\bin\s+", re.IGNORECASE | re.DOTALL)
_FURTHER = re.compile(r"^\W*(?:(?:more )?(?:specifically|precisely)\W+)?(?:in\s+)?", re.IGNORECASE)
_ASIDE = re.compile(r"(?<!\s)\s*+(?<!\w)\([^()]*\)")


def is_correct(item: Item, answer: str) -> bool:
    """Returns whether `answer` is what the item asks for. Raises `RecordError` if no program can check the item.

    `answer` is the answer alone (a first line, or the text after "Answer:"). For functions it is the whole text.
    """
    if not item.gold:
        raise RecordError(f"item {item.id!r} has no gold answer: give one, or do not score it")
    if item.check == "function":
        code = function_code(answer)
        return code is not None and run_assertions(code, item.gold).passed
    if item.check == "number":
        return any(_is_number(answer, item.question, gold) for gold in item.gold)
    if item.check == "choice":
        if missing := [gold for gold in item.gold if gold not in item.choices]:
            raise RecordError(
                f"the gold {missing[0]!r} of choice item {item.id!r} is none of its choices {item.choices}"
            )
        return chosen(item, answer) in item.gold
    if item.check == "exact":
        return any(_is_text(answer, item.question, gold) for gold in item.gold)
    raise RecordError(f"item {item.id!r} has check {item.check!r}: expected exact, number, choice or function")


def _is_number(answer: str, question: str, gold: str) -> bool:
    wanted = gold_number(gold, question)
    if wanted is None:
        raise RecordError(f"the gold {gold!r} of a number item is not one number")
    found = read_quantity(question, answer)
    if found is not None:
        return same_quantity(found, wanted, question)
    return wanted.value is not None and not wanted.unit and is_equal_latex(answer, wanted.value)


def _is_text(answer: str, question: str, gold: str) -> bool:
    # `print("cat".upper())` must not be answered by copying: case counts where the question has the gold in other case.
    fold = gold in question or gold.casefold() not in question.casefold()
    wanted = words(strip_decoration(gold), fold=fold)
    whole = strip_decoration(answer)
    if not whole or not wanted:
        return False
    if words(whole, fold=fold) == wanted:
        return True
    parts = sentences(whole)
    if not parts:
        return False
    aside = _ASIDE.sub("", whole)
    if has_words(aside) and not any(is_hedged(words(inside)) for inside in _ASIDE.findall(whole)):
        whole = aside
    if _says(whole, wanted, question, fold=fold):
        return True
    if _IN_WHICH.search(question) and not is_hedged(words(whole), {*wanted, *words(question)}):
        # "In London, England" answers in which country, or city, something is.
        places = _PLACED.sub("", whole, count=1).split(",")
        if any(words(_FURTHER.sub("", part)) == wanted for part in places):
            return True
    first, rest = _ASIDE.sub("", parts[0]), " ".join(parts[1:])
    if len(words(rest)) >= 3 and not is_hedged(words(rest)):
        return _says(first, wanted, question, fold=fold)
    head, _, apposition = whole.partition(", ")
    return (
        re.match(r"(?:an?|the|which|who)\b", apposition) is not None
        and not is_hedged(words(apposition), ("and",))
        and words(head, fold=fold) == wanted
    )


def _says(text: str, wanted: Words, question: str, *, fold: bool) -> bool:
    """Returns whether the text is `wanted`, alone or with only words of the question and filler beside it.

    Args:
        text: text of the answer.
        wanted: words of the gold.
        question: the question.
        fold: whether upper and lower case are equal.
    """
    spoken = words(text, fold=fold)
    if spoken == wanted:
        return True
    places = find_words(spoken, wanted)
    if not places or is_hedged(spoken, wanted):
        return False
    covered = {place + i for place in places for i in range(len(wanted))}
    beside = {stem(word.casefold()) for i, word in enumerate(spoken) if i not in covered}
    if spoken[-len(wanted) :] == wanted:
        beside.discard("=")  # "x = 5"
    plain_question = without_accents(question)  # as an answer is read that repeats its names
    # The sentence that asks is the last one that ends in "?"; where there is none, all of them count.
    asking = [part for part in SENTENCE_END.split(plain_question) if part.rstrip().endswith("?")]
    return beside <= {stem(word) for word in words(asking[-1] if asking else plain_question)} | FILLER


MOST_ANSWER_MARKS = 32
"""Most marks such as "answer" and "####" that are read, counted from the end of a text. A text with more repeats
itself.
"""
MOST_BEFORE = 80
"""Most characters before "answer" that may lead to it: "So the final numerical"."""
MOST_LINES = 40
"""Most lines in which an answer without a mark is searched, counted from the end of the text."""
MOST_LINE_TEXT = 4000
"""Most characters of these lines together. A longer last line is still read, but no line before it."""
MOST_THOUGHTS = 64
"""Most marks of thinking that are read one by one. In a text with more, the answer is what follows the last closing
mark.
"""

_ASCII_LEADS = tuple(filter(str.isascii, LEADS))
_LEADS_TO = re.compile(
    r"(?:\A|\n|[.!?:。]\s)\W{0,8}(?:(?:so|therefore|thus|hence)\b\W{0,8})?"
    rf"(?:the )?(?:(?:final|correct|right|numerical) )*(?:(?:{'|'.join(BEFORE_LEAD)})(?: |\b)?){{0,2}}\Z",
    re.IGNORECASE,
)
_SAYS = re.compile(
    rf"(?: (?:{'|'.join(AFTER_LEAD)}))?(?:\W{{0,8}}(?:[:：]|(?:{'|'.join(IS)})\b|{'|'.join(IS_JOINED)})|\s[-–—]\s)"
    r"[\s:：*]*(?:(?:la|el|le|il|die|a|o)\s+(?=\(?[A-Z]\)?\W{0,4}(?:\n|\Z)))?([^\n]+)",
    re.IGNORECASE,
)
FENCE = "```"
_BOLD_ENDS = re.compile(r"\*\*[\s.!]*\Z")
_DIGIT = re.compile(r"\d")
_TAGGED = re.compile(r"<answer>", re.IGNORECASE)
_TAG_ENDS = re.compile(r"</answer>", re.IGNORECASE)
_HASHED = re.compile(r"^[^\S\n]*+####(?!#)[ \t]*([^\n]+)", re.MULTILINE)
_NUMBERED = re.compile(r"\W{0,4}(\d{1,2})[.)]\s+(?=\S)")


def final_answer(item: Item, text: str) -> str:
    r"""Returns the answer in a model's text: the text in `<answer>`, or after the last "Answer:", "####" or in
    `\\boxed{}`.

    Without such a mark it is the first line if that is an option's letter. Otherwise it is the last line that names an
    option, or, for a number item, the last line that holds a number. Otherwise it is the last line. For a function it
    is the whole text. Thinking before the answer is left out.
    """
    item, text = _with_shown_options(item), text.strip()
    if len(text) <= 15 and text.isalnum():
        return text
    spoken = _spoken(text).strip()
    if item.check == "function":
        return spoken
    text = spoken or text  # an answer that never left its thinking may hold its result all the same
    if marked := _marked(text):
        return marked
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[-1] == FENCE and (item.check == "exact" or not item.choices):
        lines = _last_fenced(lines) if item.check == "exact" else [line for line in lines if not line.startswith(FENCE)]
        if not lines:
            return ""
    if item.choices:
        if names_letter(item, lines[0]):
            return lines[0]
        return next((line for line in _last_lines(lines) if chosen(item, line)), lines[-1])
    if item.check == "number":
        last = next((line for line in _last_lines(lines) if _DIGIT.search(line) or numbers(line)), "")
        return _without_place(last, lines) if last else lines[-1]
    return lines[-1]


def _with_shown_options(item: Item) -> Item:
    """Returns the item with the options that its question shows, if the item is checked by options but lists none."""
    if item.check != "choice" or item.choices or not (shown := options_in(item.question)):
        return item
    return replace(item, choices=shown)


def _last_fenced(lines: list[str]) -> list[str]:
    """Returns the text of the fence that the last line closes, as one line of an answer."""
    opening = next((place for place in range(len(lines) - 2, -1, -1) if lines[place].startswith(FENCE)), -1)
    inside = lines[opening + 1 : -1]
    return ["\n".join(inside)] if inside else []


def _spoken(text: str) -> str:
    """Returns the text without the thinking before it."""
    if "<" not in text and "THINK" not in text and "◁" not in text:
        return text
    if sum(text.count(mark) for mark in (*CLOSINGS, *OPENINGS)) <= MOST_THOUGHTS:
        return spoken_text(text)
    return text[max(last_place(text, mark) + len(mark) for mark in CLOSINGS if mark in text or mark == CLOSINGS[0]) :]


def _last_lines(lines: list[str]) -> Iterator[str]:
    """Yields the last lines, the last first: at most `MOST_LINES`, and only lines within the last `MOST_LINE_TEXT`
    characters.
    """
    left = MOST_LINE_TEXT
    for line in reversed(lines[-MOST_LINES:]):
        yield line
        left -= len(line)
        if left < 0:
            return


def _without_place(line: str, lines: list[str]) -> str:
    """Returns the line without its number in an enumeration, if the previous number begins another line."""
    place = _NUMBERED.match(line)
    if place and any(
        (other := _NUMBERED.match(earlier)) and int(other[1]) == int(place[1]) - 1 for earlier in lines[-MOST_LINES:]
    ):
        return line[place.end() :]
    return line


def _marked(text: str) -> str:
    """Returns the answer in the last tag, or else after the last "Answer:" or "####" or in the last box; empty without
    one.
    """
    for tag in reversed(deque(_TAGGED.finditer(text), MOST_ANSWER_MARKS)) if "<" in text else ():
        end = _TAG_ENDS.search(text, tag.end())
        if answer := text[tag.end() : end.start() if end else len(text)].strip():
            return answer
    found = [*_named(text), *((m.start(), m[1]) for m in _last(_HASHED, text, "####"))]
    boxes = [(start, text[inner:end]) for start, inner, end in boxed_parts(text) if text[inner:end].strip()]
    for place, answer in sorted(found, reverse=True):
        inside = [box for start, box in boxes if start >= place]
        if inside or answer.strip():
            if boxes and not inside and boxes[-1][0] > place:
                break
            return (inside[-1] if inside else answer).strip()
    return boxes[-1][1].strip() if boxes else ""


def _last(pattern: re.Pattern[str], text: str, needs: str) -> list[re.Match[str]]:
    """Returns the last matches of a pattern, at most `MOST_ANSWER_MARKS`; none if the text lacks `needs`.

    Args:
        pattern: what to find.
        text: where to search.
        needs: a text without which the pattern cannot match; checked first, because it is fast.
    """
    return list(deque(pattern.finditer(text), MOST_ANSWER_MARKS)) if needs in text else []


def _named(text: str) -> Iterator[tuple[int, str]]:
    """Yields the place of each "Answer:" or the like at the beginning of a sentence, and the rest of its line."""
    lower = text.replace("İ", "I").lower()  # as long as the text
    for name in _ASCII_LEADS if text.isascii() else LEADS:
        place, left = lower.rfind(name), MOST_ANSWER_MARKS
        while place >= 0 and left:
            said = _SAYS.match(text, place + len(name))
            if said and _LEADS_TO.search(text[max(0, place - MOST_BEFORE) : place]):
                yield place, _sentence_of(said)
            place, left = lower.rfind(name, 0, place), left - 1


def _sentence_of(said: re.Match[str]) -> str:
    """Returns the answer to which "Answer:" or "The answer is" leads, without an unopened end of bold type.

    After "is" the answer is a sentence, so its last exclamation mark is no factorial.
    """
    answer = said[1]
    if answer.count("**") == 1 and (bold := _BOLD_ENDS.search(answer)):
        answer = answer[: bold.start()]
    return answer if said.group().lstrip().startswith((":", "：")) else answer.rstrip("!")


def canonical(item: Item, answer: str) -> str:
    """Returns a form in which equal answers are equal: the number, the choice, the code, or the words. Empty for no
    answer.

    Numbers and choices are read as the scorer reads them. Of several numbers, which the scorer refuses, the last
    counts. But a list stays a list ("3 5"), "3 or 5" is neither, and "not 5" is not 5. An answer to a number item that
    is no number is compared as text. Words of the question are left out: "Bamako" for "The capital of Mali is Bamako."
    """
    if item.check == "function":
        return function_code(answer) or ""
    if item.check == "number":
        return canonical_number(item.question, answer)
    if item.choices:
        return chosen(item, answer) or ""
    shown = _with_shown_options(item)
    if shown.choices and (option := chosen(shown, answer)):
        return option
    if len(answer) > MAX_COMPARED_CHARS:
        return plain_form(answer)
    return " ".join(words_beside(answer, item.question))


def most_voted(item: Item, answers: dict[str, tuple[str, float]]) -> str:
    """Returns the name of the voter whose answer has the largest total weight. MetaCogAgent, equation 3.

    Among equal totals the heaviest single vote wins, then the first. Empty answers do not count if there is another
    answer. `answers` maps each voter to (answer, weight >= 0).
    """
    forms = {name: canonical(item, answer) for name, (answer, _) in answers.items()}
    voters = [name for name in answers if forms[name]] or list(answers)
    total = {form: sum(answers[v][1] for v in voters if forms[v] == form) for form in {forms[v] for v in voters}}
    return max(voters, key=lambda name: (total[forms[name]], answers[name][1]))
