"""Is an answer right? Exact match after normalisation, in the four forms of `Item.check`.

An answer may be dressed: "Answer: **Paris**.", "the yen (JPY)", "$1,200", "3 + 4 = 7", "The capital is Paris.";
beside the gold it may hold only words of the question's own sentence and words without content. It may not be hedged,
negated, or one of several: "not Paris", "Paris or London" and "Paris, London" are wrong.
"""

import re

from metaprobe.records.answers import (
    FILLER,
    SENTENCE_END,
    Words,
    chosen,
    find_words,
    function_code,
    is_hedged,
    numbers,
    read_number,
    stem,
    strip_decoration,
    words,
)
from metaprobe.records.errors import RecordError
from metaprobe.records.sandbox import run_assertions
from metaprobe.records.types import Item

_ASIDE = re.compile(r"(?<!\s)\s*+\([^()]*\)")


def is_correct(item: Item, answer: str) -> bool:
    """Whether `answer` is what the item asks for. Raises `RecordError` where the item cannot be checked by a program.

    `answer` is the answer alone (a first line, or what followed "Answer:"); for functions the whole text.
    """
    if not item.gold:
        raise RecordError(f"item {item.id!r} has no gold answer: give one, or do not score it")
    if item.check == "function":
        code = function_code(answer)
        return code is not None and run_assertions(code, item.gold).passed
    if item.check == "number":
        return any(_is_number(answer, item.question, gold) for gold in item.gold)
    if item.check == "choice":
        return _is_choice(answer, item)
    if item.check == "exact":
        return any(_is_text(answer, item.question, gold) for gold in item.gold)
    raise RecordError(f"item {item.id!r} has check {item.check!r}: expected exact, number, choice or function")


def _question_words(question: str) -> frozenset[str]:
    """The stems of the sentence that asks: the last one ending in "?", or everything where there is none."""
    asking = [part for part in SENTENCE_END.split(question) if part.rstrip().endswith("?")]
    return frozenset(stem(word) for word in words(asking[-1] if asking else question))


def _is_text(answer: str, question: str, gold: str) -> bool:
    # `print("cat".upper())` must not be answered by copying: case counts where the question has the gold in other case.
    fold = gold in question or gold.casefold() not in question.casefold()
    wanted = words(strip_decoration(gold), fold=fold)
    whole = strip_decoration(answer)
    sentences = [part for part in SENTENCE_END.split(whole) if words(part)]
    if not sentences or not wanted:
        return False
    aside = _ASIDE.sub("", whole)
    if words(aside) and not any(is_hedged(words(found)) for found in _ASIDE.findall(whole)):
        whole = aside
    if _says(whole, wanted, question, fold=fold):
        return True
    first, rest = _ASIDE.sub("", sentences[0]), " ".join(sentences[1:])
    if len(words(rest)) >= 3 and not is_hedged(words(rest)):
        return _says(first, wanted, question, fold=fold)
    head, _, apposition = whole.partition(", ")
    return (
        re.match(r"(?:an?|the|which|who)\b", apposition) is not None
        and not is_hedged(words(apposition), ("and",))
        and words(head, fold=fold) == wanted
    )


def _says(text: str, wanted: Words, question: str, *, fold: bool) -> bool:
    """Whether the text is `wanted`, or `wanted` and otherwise only words of the question and filler."""
    found = words(text, fold=fold)
    if found == wanted:
        return True
    places = find_words(found, wanted)
    if not places or is_hedged(found, wanted):
        return False
    covered = {place + i for place in places for i in range(len(wanted))}
    beside = {stem(word.casefold()) for i, word in enumerate(found) if i not in covered}
    return beside <= _question_words(question) | FILLER


def _is_number(answer: str, question: str, gold: str) -> bool:
    wanted = numbers(gold)
    if len(wanted) != 1:
        raise RecordError(f"the gold {gold!r} of a number item is not one number")
    return read_number(question, answer) == wanted[0]


def _is_choice(answer: str, item: Item) -> bool:
    if missing := [gold for gold in item.gold if gold not in item.choices]:
        raise RecordError(f"the gold {missing[0]!r} of choice item {item.id!r} is none of its choices {item.choices}")
    return chosen(item, answer) in item.gold
