"""Finds the answer in a model's text, tells whether it is right, and whether two answers are equal.

Other rooms reach `records.answers` through this module. It reads texts, numbers, options and code: the four forms of
`Item.check`. Systems that vote and task sets that score compare answers by the same functions, so votes and scores
agree.

An answer may have additions: "Answer: **Paris**.", "the yen (JPY)", "$1,200", "3 + 4 = 7", "The capital is Paris."
Beside the gold it may hold only words of the question's own sentence and words without content. It may not be hedged,
negated, or one of several: "not Paris", "Paris or London" and "Paris, London" are wrong. A number is read whole, with
its sign, fraction, exponent and unit, and never from a part of a longer expression.
"""

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from metaprobe.records.answers.code import function_code
from metaprobe.records.answers.latex import boxed_parts
from metaprobe.records.answers.mathematics import is_equal_latex
from metaprobe.records.answers.numbers import (
    asks_factorial,
    canonical_number,
    gold_number,
    numbers,
    read_number,
    read_quantity,
    same_quantity,
)
from metaprobe.records.answers.options import (
    chosen,
    denies_letter,
    discussed_options,
    find_choices,
    names_letter,
    options_in,
    repeated_options,
    repeats_option,
    ticked_options,
    with_check_boxes,
)
from metaprobe.records.answers.texts import (
    AFTER_LEAD,
    ASKS_BACK,
    BEFORE_LEAD,
    FILLER,
    LEADS,
    MAX_COMPARED_CHARS,
    NEGATIONS,
    NO_OF_SOMETHING,
    SENTENCE_END,
    TAKES_BACK,
    WORDS_FOR_IS,
    WORDS_FOR_IS_JOINED,
    Words,
    find_words,
    has_words,
    is_hedged,
    plain_form,
    sentences,
    stem,
    strip_decoration,
    with_past,
    without_accents,
    words,
    words_beside,
)
from metaprobe.records.errors import RecordError
from metaprobe.records.sandbox import run_assertions
from metaprobe.records.segments import CLOSINGS, OPENINGS, spoken_text
from metaprobe.records.spelling import last_index
from metaprobe.records.types import Item

__all__ = [
    "canonical",
    "chosen",
    "final_answer",
    "find_choices",
    "find_words",
    "function_code",
    "is_correct",
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
        code = function_code(answer, item.question)
        return code is not None and run_assertions(code, item.gold).passed
    if item.check == "number":
        return any(_is_number(answer, item.question, gold) for gold in item.gold)
    if item.check == "choice":
        if unlisted_gold := [gold for gold in item.gold if gold not in item.choices]:
            raise RecordError(
                f"the gold {unlisted_gold[0]!r} of choice item {item.id!r} is none of its choices {item.choices}"
            )
        return chosen(item, answer) in item.gold
    if item.check == "exact":
        return any(_is_text(answer, item.question, gold) for gold in item.gold)
    raise RecordError(f"item {item.id!r} has check {item.check!r}: expected exact, number, choice or function")


def _is_number(answer: str, question: str, gold: str) -> bool:
    gold_quantity = gold_number(gold, question)
    if gold_quantity is None:
        raise RecordError(f"the gold {gold!r} of a number item is not one number")
    given_quantity = read_quantity(question, answer)
    if given_quantity is not None:
        return same_quantity(given_quantity, gold_quantity, question)
    return gold_quantity.value is not None and not gold_quantity.unit and is_equal_latex(answer, gold_quantity.value)


def _is_text(answer: str, question: str, gold: str) -> bool:
    """Returns whether an answer says the gold text, alone or beside words that leave it as the answer."""
    # `print("cat".upper())` must not be answered by copying: case counts where the question has the gold in other case.
    fold = gold in question or gold.casefold() not in question.casefold()
    gold_words = words(strip_decoration(gold), fold=fold)
    answer_text = strip_decoration(answer)
    if not answer_text or not gold_words:
        return False
    if "?" in answer_text and ASKS_BACK.fullmatch(answer_text) and words(answer_text, fold=fold) != gold_words:
        return False
    if gold_words == ("no",) and NO_OF_SOMETHING.match(answer_text):
        return False
    if words(answer_text, fold=fold) == gold_words:
        return True
    answer_sentences = sentences(answer_text)
    if not answer_sentences:
        return False
    text_without_asides = _ASIDE.sub("", answer_text)
    if has_words(text_without_asides) and not any(
        is_hedged(words(aside_text)) for aside_text in _ASIDE.findall(answer_text)
    ):
        answer_text = text_without_asides
    if _says(answer_text, gold_words, question, fold=fold):
        return True
    if _IN_WHICH.search(question) and not is_hedged(words(answer_text), {*gold_words, *words(question)}):
        # "In London, England" answers in which country, or city, something is.
        place_names = _PLACED.sub("", answer_text, count=1).split(",")
        if any(words(_FURTHER.sub("", place_name)) == gold_words for place_name in place_names):
            return True
    first_sentence, text_after = _ASIDE.sub("", answer_sentences[0]), " ".join(answer_sentences[1:])
    if TAKES_BACK.search(answer_text):
        return False
    if len(words(text_after)) >= 3 and not is_hedged(words(text_after)):
        return _says(first_sentence, gold_words, question, fold=fold)
    text_before_comma, _, apposition = answer_text.partition(", ")
    return (
        re.match(r"(?:an?|the|which|who)\b", apposition) is not None
        and not is_hedged(words(apposition), ("and",))
        and words(text_before_comma, fold=fold) == gold_words
    )


def _says(text: str, wanted_words: Words, question: str, *, fold: bool) -> bool:
    """Returns whether the text is `wanted_words`, alone or with only words of the question and filler beside it.

    Args:
        text: text of the answer.
        wanted_words: words of the gold.
        question: the question.
        fold: whether upper and lower case are equal.
    """
    spoken_words = words(text, fold=fold)
    if spoken_words == wanted_words:
        return True
    start_indices = find_words(spoken_words, wanted_words)
    denials = NEGATIONS if wanted_words == spoken_words[:1] == ("no",) else frozenset()  # "No, it is not."
    if not start_indices or is_hedged(spoken_words, {*wanted_words, *denials}):
        return False
    covered_indices = {start + offset for start in start_indices for offset in range(len(wanted_words))}
    stems_beside = {
        stem(word.casefold()) for index, word in enumerate(spoken_words) if index not in covered_indices
    } - denials
    if spoken_words[-len(wanted_words) :] == wanted_words:
        stems_beside.discard("=")  # "x = 5"
    plain_question = without_accents(question)  # as an answer is read that repeats its names
    # The sentence that asks is the last one that ends in "?"; where there is none, all of them count.
    asking_sentences = [sentence for sentence in SENTENCE_END.split(plain_question) if sentence.rstrip().endswith("?")]
    asking_text = asking_sentences[-1] if asking_sentences else plain_question
    return stems_beside <= {stem(word) for word in with_past(words(asking_text))} | FILLER


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
"""Matches a text before "answer" if "answer" then begins a sentence."""
_SAYS = re.compile(
    rf"(?: (?:{'|'.join(AFTER_LEAD)}))?(?: \((?:in|as|to|rounded|correct)\b[^()\n]{{1,40}}\))?"
    rf"(?:\W{{0,8}}(?:[:：]|(?:{'|'.join(WORDS_FOR_IS)})\b|{'|'.join(WORDS_FOR_IS_JOINED)})|\s[-–—]\s)"
    r"[\s:：*]*(?:(?:la|el|le|il|die|(?-i:a|o))\s+(?=\(?[A-Z]\)?\W{0,4}(?:\n|\Z)))?([^\n]+)",
    re.IGNORECASE,
)
"""Matches the words after "answer" that lead to the answer, such as " is" or ":", and the rest of the line."""
FENCE = "```"
_BOLD_ENDS = re.compile(r"\*\*[\s.!。！]*\Z")
_DIGIT = re.compile(r"\d")
_TAGGED = re.compile(r"<answer>", re.IGNORECASE)
_TAG_ENDS = re.compile(r"</answer>", re.IGNORECASE)
_HASHED = re.compile(r"^[^\S\n]*+####(?!#)[ \t]*([^\n]+)", re.MULTILINE)
_NUMBERED = re.compile(r"\W{0,4}(\d{1,2})[.)]\s+(?=\S)")
_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")


def final_answer(item: Item, text: str) -> str:
    r"""Returns the answer in a model's text: the text in `<answer>`, or after the last "Answer:", "####" or in
    `\\boxed{}`.

    Without such a mark it is the ticked options of a list, or the first line if that is an option's letter. Otherwise
    it is the last line that names an option, or, for a number item, the last line that holds a number; a list or table
    at the end is left out if the line before it gives its total. Otherwise it is the last line. For a function it is
    the whole text. Thinking before the answer is left out.
    """
    if item.check == "function":
        return _BLANK_LINES.sub("", _without_thinking(text).rstrip())  # the first line of a body keeps its indentation
    item, text = _with_shown_options(item), text.strip()
    if len(text) <= 15 and text.isalnum():
        return text
    spoken = _without_thinking(text).strip()
    text = spoken or text  # an answer that never left its thinking may still hold its result
    # An answer with a mark.
    text = _without_closing_lines(text, item.question)
    if marked := _marked_answer(text, item.question):
        after = text[text.rfind(marked) + len(marked) :]
        retracted = _RETRACTS.match(after)
        return f"{marked}. {after[retracted.start(1) :].strip()}" if retracted else marked
    # An answer without a mark is searched line by line.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[-1] == FENCE and (item.check == "exact" or not item.choices):
        lines = _last_fenced(lines) if item.check == "exact" else [line for line in lines if not line.startswith(FENCE)]
        if not lines:
            return ""
    if item.choices:
        lines = with_check_boxes(lines)
        ticked, end = ticked_options(item, lines)
        if ticked:
            lines = [line for line in lines[end:] if chosen(item, line) and not repeats_option(item, line)]
            if not lines:
                return " or ".join(ticked)
        options_left = repeated_options(item, lines)
        if options_left is not None:
            lines = [" or ".join(options_left)] if options_left else lines[len(item.choices) :]
            if not lines:
                return ""
        elif discussed := discussed_options(item, lines):
            later = next((line for line in _last_lines(lines[len(item.choices) :]) if chosen(item, line)), "")
            return later or " or ".join(discussed)
        if denies_letter(item, lines[0]):
            return _option_left(item, lines)
        if names_letter(item, lines[0]):
            return " or ".join([lines[0], *_other_letters(item, lines)])
        return next((line for line in _last_lines(lines) if chosen(item, line)), lines[-1])
    if item.check == "number":
        if total := _total_before_parts(lines[-MOST_LINES:]):
            return total
        if parts := _parts_without_total(lines[-MOST_LINES:]):
            return parts
        last = next((line for line in _last_lines(lines) if _DIGIT.search(line) or numbers(line)), "")
        return _total_of_row(_without_place(last, lines)) if last else lines[-1]
    return lines[-1]


def _other_letters(item: Item, lines: list[str]) -> list[str]:
    """Returns the lines after the first that are a letter alone, or take back the first line, with another option."""
    first_choice = chosen(item, lines[0])
    letters = [line for line in _last_lines(lines[1:]) if _LETTER_ALONE.fullmatch(line) and chosen(item, line)]
    taken_back = [line for line in _last_lines(lines[1:]) if _TAKES_BACK_LINE.match(line)]
    return [line for line in (*letters, *taken_back) if first_choice is None or chosen(item, line) != first_choice]


_LIST_ITEM = re.compile(r"(?:[-+*•·–]|\d{1,2}[.)])\s+(?=\S)|\|")
"""Matches the beginning of an item of a list, or of a row of a table."""
_CALCULATES = re.compile(
    r"[=≈→⇒]|\b(?:so|therefore|thus|hence|answer|total|together|sum|result|left|remain\w*)\b", re.I
)
"""Matches what an item of a list has if it concludes from the items before."""
_TOTALS = re.compile(
    r"\b(?:totals?|in all|altogether|together|overall|sum|so|therefore|thus|hence|answer|result|insgesamt"
    r"|zusammen|totale?|en tout|итого|всего)\b|总共|一共|合計|共",
    re.I,
)
"""Matches a word of a line that gives the total of the list after it."""
_ROW_TOTAL = re.compile(r"\W*(?:grand\s+)?(?:total|sum|answer|result|altogether|overall)\W*", re.I)


def _total_before_parts(lines: list[str]) -> str:
    """Returns the line before a list or table at the end, if it gives the total of which the list gives the parts.

    The line is a number alone with at most one word, has a word such as "total", or gives the sum of the list's
    numbers. Empty if there is no list of two items, if an item concludes or calculates, or if the line is no total.

    Args:
        lines: the last lines of an answer, without blank lines.
    """
    list_start = len(lines)
    while list_start and _LIST_ITEM.match(lines[list_start - 1]):
        list_start -= 1
    parts = lines[list_start:]
    if not list_start or len(parts) < 2 or any(_CALCULATES.search(_LIST_ITEM.sub("", part, count=1)) for part in parts):
        return ""
    line = lines[list_start - 1].rstrip("* ").removesuffix(":").rstrip("* ")
    stated_numbers = numbers(line)
    if len(stated_numbers) != 1 or _STEPS.search(line):
        return ""
    is_bare_number = len(words(strip_decoration(line))) <= 2
    numbers_of_parts = [numbers(_LIST_ITEM.sub("", part, count=1)) for part in parts]
    is_sum = sum(value for values in numbers_of_parts for value in values[:1]) == stated_numbers[0]
    return line if is_bare_number or is_sum or _TOTALS.search(line) else ""


MAX_PART_WORDS = 5
"""Most words of an item of a list that is a part of an answer. A longer item is a step."""


def _parts_without_total(lines: list[str]) -> str:
    """Returns the items of a list at the end as one line, if the list is the whole answer: "10 red; 8 blue" for items
    that are a number with a few words each. Empty for steps, for a list with a total, and after another line with a
    number.

    Args:
        lines: the last lines of an answer, without blank lines.
    """
    list_start = len(lines)
    while list_start and _LIST_ITEM.match(lines[list_start - 1]):
        list_start -= 1
    parts = [_LIST_ITEM.sub("", line, count=1).strip() for line in lines[list_start:]]
    if len(parts) < 2 or lines[-1].startswith("|") or any(map(_CALCULATES.search, parts)):
        return ""
    if any(len(numbers(part)) != 1 or len(words(part)) > MAX_PART_WORDS for part in parts):
        return ""
    return "; ".join(parts)


_STEPS = re.compile(r"\b(?:steps?|parts?|ways?|kinds?|types?|things|cases|reasons|options|factors)\b", re.I)
"""Matches a word for the items of a list: "There are 2 kinds of eggs"."""


def _total_of_row(line: str) -> str:
    """Returns the number of a table's row that has one cell, or two of which the first says "total"; else the line."""
    if not (line.startswith("| ") and line.endswith("|")):
        return line
    cells = [cell for cell in map(str.strip, line.split("|")) if cell]
    if len(cells) == 1 or (len(cells) == 2 and _ROW_TOTAL.fullmatch(cells[0])):
        return cells[-1]
    return line


_TAKES_BACK_LINE = re.compile(
    r"\W*((?:wait|hold on|actually|sorry|no(?=,)|oops|correction|scratch that|my mistake|on second thoughts?)\b)", re.I
)
_RETRACTS = re.compile(rf"[^\w\n]*\n{_TAKES_BACK_LINE.pattern}", re.I)
"""Matches a line after the answer that takes it back."""
_LETTER_ALONE = re.compile(r"\W{0,4}[A-Z]\W{0,4}")
_CONFIDENCE_LINE = re.compile(
    r"\W*(?:(?:my|overall|estimated) )?(?:confidence|certainty)(?: (?:level|score|rating|in (?:this|my|the) answer))?"
    r"\W{0,4}(?::|=|\bis\b)[^\n]{0,60}",
    re.I,
)
_ASKS_CONFIDENCE = re.compile(r"\b(?:what|which|find|calculate|compute|determine)\b[^.?!\n]{0,60}\bconfidence\b", re.I)
_POLITE_LINE = re.compile(
    r"\W*(?:(?:please )?(?:let me know|feel free|don't hesitate)|(?:i )?hope (?:this|that|it) helps?"
    r"|is there anything else|would you like|if you (?:have|need|want|would like|'d like))\b[^\n]*",
    re.I,
)


def _without_closing_lines(text: str, question: str) -> str:
    """Returns the text without lines at its end that state a confidence or offer more help.

    Such a line stays if it is the only line, and a confidence stays if the question asks for it.
    """
    while True:
        before, _, line = text.rpartition("\n")
        states_confidence = _CONFIDENCE_LINE.fullmatch(line) and not _ASKS_CONFIDENCE.search(question)
        if not before.strip() or not (states_confidence or _POLITE_LINE.fullmatch(line)):
            return text
        text = before.rstrip()


def _with_shown_options(item: Item) -> Item:
    """Returns the item with the options that its question shows, if the item is checked by options but lists none."""
    if item.check != "choice" or item.choices or not (shown_options := options_in(item.question)):
        return item
    return replace(item, choices=shown_options)


def _last_fenced(lines: list[str]) -> list[str]:
    """Returns the text of the fence that the last line closes, as one line of an answer."""
    opening = next((index for index in range(len(lines) - 2, -1, -1) if lines[index].startswith(FENCE)), -1)
    lines_inside = lines[opening + 1 : -1]
    return ["\n".join(lines_inside)] if lines_inside else []


def _without_thinking(text: str) -> str:
    """Returns the text without the thinking before it."""
    if "<" not in text and "THINK" not in text and "◁" not in text:
        return text
    if sum(text.count(mark) for mark in (*CLOSINGS, *OPENINGS)) <= MOST_THOUGHTS:
        return spoken_text(text)
    return text[max(last_index(text, mark) + len(mark) for mark in CLOSINGS if mark in text or mark == CLOSINGS[0]) :]


def _option_left(item: Item, lines: list[str]) -> str:
    """Returns the one line of a list of options that names one, as in "A: wrong", "B: right"; else the first line."""
    line_of_choice = {choice: line for line in _last_lines(lines) if (choice := chosen(item, line))}
    return next(iter(line_of_choice.values())) if len(line_of_choice) == 1 else lines[0]


def _last_lines(lines: list[str]) -> Iterator[str]:
    """Yields the last lines, the last first: at most `MOST_LINES`, and only lines within the last `MOST_LINE_TEXT`
    characters.
    """
    chars_left = MOST_LINE_TEXT
    for line in reversed(lines[-MOST_LINES:]):
        yield line
        chars_left -= len(line)
        if chars_left < 0:
            return


def _without_place(line: str, lines: list[str]) -> str:
    """Returns the line without its number in an enumeration, if the previous number begins another line."""
    number = _NUMBERED.match(line)
    if number and any(
        (earlier_number := _NUMBERED.match(earlier)) and int(earlier_number[1]) == int(number[1]) - 1
        for earlier in lines[-MOST_LINES:]
    ):
        return line[number.end() :]
    return line


def _marked_answer(text: str, question: str) -> str:
    """Returns the answer of a JSON object, or in the last tag, or else after the last "Answer:" or "####" or in the
    last box; empty without one.
    """
    if answer := _json_answer(text):
        return answer
    for tag in reversed(deque(_TAGGED.finditer(text), MOST_ANSWER_MARKS)) if "<" in text else ():
        end = _TAG_ENDS.search(text, tag.end())
        if answer := text[tag.end() : end.start() if end else len(text)].strip():
            return answer
    candidates = [*_answer_leads(text, question), *((m.start(), m[1]) for m in _last_matches(_HASHED, text, "####"))]
    boxes = [(start, text[inner:end]) for start, inner, end in _joined_boxes(text) if text[inner:end].strip()]
    for lead_start, answer in sorted(candidates, reverse=True):
        later_boxes = [box for start, box in boxes if start >= lead_start]
        if later_boxes or answer.strip():
            if boxes and not later_boxes and boxes[-1][0] > lead_start:
                break
            return (later_boxes[-1] if later_boxes else answer).strip()
    return boxes[-1][1].strip() if boxes else ""


_OBJECT_BEGINS = re.compile(r"^(?:```(?:json)?\s*)?(?=\{)", re.M)
_ANSWER_KEYS = ("answer", "final_answer", "final answer")
MOST_JSON = 20_000
"""Most characters of a text that is read as one JSON object."""


def _json_answer(text: str) -> str:
    """Returns the value of "answer" if the text ends with a JSON object, as its only one; empty otherwise, and if the
    value is no text and no number.
    """
    text = text.removesuffix(FENCE).rstrip() if "nswer" in text and len(text) <= MOST_JSON else ""
    beginning = _OBJECT_BEGINS.search(text) if text.endswith("}") else None
    if beginning is None:
        return ""
    try:
        parsed = json.loads(text[beginning.end() :], parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return ""
    values = [value for key, value in parsed.items() if key.casefold() in _ANSWER_KEYS]
    return values[0].strip() if len(values) == 1 and isinstance(values[0], str) else ""


_BESIDE_BOX = r"(?:\s|\$|\\[()\[\],;! ]|\\q?quad)*"
_BETWEEN_BOXES = re.compile(
    rf"{_BESIDE_BOX}(?:(?:\\text\s*\{{\s*)?(?:[,;&]|\b(?:and|or|und|oder|et|ou|y|o|e)\b|[和或])(?:\s*\}})?{_BESIDE_BOX})+"
    r"(?:[^\W\d_]\s*=\s*\$?)?"
)
"""Matches text between boxes that together are one answer: a comma, "and" or "or", and the next letter with "="."""
_DENIES_BOX = re.compile(
    rf"{_BESIDE_BOX}[,;(]?{_BESIDE_BOX}(?:and\s+)?(?:not|rather\s+than|instead\s+of){_BESIDE_BOX}", re.I
)
"""Matches text between two boxes that makes the second one no answer: ", not"."""
MOST_BETWEEN_BOXES = 60
"""Most characters between two boxes that together are one answer."""
_GLUED_BEFORE = re.compile(r"(?:[-−±√\d]|\\pm\s*|\\sqrt\s*)\Z")
_GLUED_AFTER = re.compile(r"\s*(?:\\?%|\\pi\b|π)|\^\s*(?:\{[^{}]*\}|\S)")
"""Match what stands right beside a box and belongs to the number in it: "-\\boxed{5}", "\\boxed{5}\\%"."""
_NAME_OF_BOX = re.compile(r"(?<!\w)[^\W\d_]\s*=\s*\$?\s*\Z")


def _joined_boxes(text: str) -> list[tuple[int, int, int]]:
    """Returns the boxes of a text as (start, start of the content, end of the content).

    Boxes with only a comma, "and" or "or" between them are one answer, and so count as one box: its content is all from
    the first to the last. A sign that belongs to the number in a box counts as its content. A box after ", not" is left
    out.
    """
    box_groups: list[tuple[int, int, int]] = []
    for start, inner, end in boxed_parts(text):
        is_near = box_groups and start - box_groups[-1][2] <= MOST_BETWEEN_BOXES
        if is_near and _DENIES_BOX.fullmatch(text, box_groups[-1][2] + 1, start):
            continue
        if is_near and _BETWEEN_BOXES.fullmatch(text, box_groups[-1][2] + 1, start):
            first = box_groups[-1][0]
            name = _NAME_OF_BOX.search(text, max(0, first - 8), first)
            box_groups[-1] = (first, min(box_groups[-1][1], name.start() if name else first), end + 1)
        else:
            before = _GLUED_BEFORE.search(text, max(0, start - 8), start)
            after = _GLUED_AFTER.match(text, end + 1)
            if before or after:
                inner, end = before.start() if before else start, after.end() if after else end + 1
            box_groups.append((start, inner, end))
    return box_groups


def _last_matches(pattern: re.Pattern[str], text: str, required_text: str) -> list[re.Match[str]]:
    """Returns the last matches of a pattern, at most `MOST_ANSWER_MARKS`; none if the text lacks `required_text`.

    Args:
        pattern: what to find.
        text: where to search.
        required_text: a text without which the pattern cannot match; checked first, because it is fast.
    """
    return list(deque(pattern.finditer(text), MOST_ANSWER_MARKS)) if required_text in text else []


def _answer_leads(text: str, question: str) -> Iterator[tuple[int, str]]:
    """Yields the character index of each "Answer:" or the like that begins a sentence, and the rest of its line."""
    lower = text.replace("İ", "I").lower()  # as long as the text
    for name in _ASCII_LEADS if text.isascii() else LEADS:
        start, marks_left = lower.rfind(name), MOST_ANSWER_MARKS
        while start >= 0 and marks_left:
            lead = _SAYS.match(text, start + len(name))
            if lead and _LEADS_TO.search(text[max(0, start - MOST_BEFORE) : start]):
                yield start, _sentence_of(lead, question)
            start, marks_left = lower.rfind(name, 0, start), marks_left - 1


def _sentence_of(match: re.Match[str], question: str) -> str:
    """Returns the answer to which "Answer:" or "The answer is" leads, without an unopened end of bold type.

    After "is" the answer is a sentence, so its last exclamation mark is no factorial, unless the question may be
    answered by one. After a colon "18!" may be either, and stays as it is.
    """
    answer = match[1]
    if answer.count("**") == 1 and (bold := _BOLD_ENDS.search(answer)):
        answer = answer[: bold.start()]
    elif answer.count("**") == 1 and match.group()[: match.start(1) - match.start()].endswith("**"):
        answer = answer.replace("**", "")  # "The answer is **18** eggs."
    is_sentence = not match.group().lstrip().startswith((":", "：")) and not asks_factorial(question)
    return answer.rstrip("!") if is_sentence else answer


def canonical(item: Item, answer: str) -> str:
    """Returns a form in which equal answers are equal: the number, the choice, the code, or the words. Empty for no
    answer.

    Numbers and choices are read as the scorer reads them. A list stays a list ("3 5"), "3 or 5" is neither, and "not 5"
    is not 5. Any other answer to a number item that is no number, such as "Ann has 9, Bob has 8", is compared as text.
    Words of the question are left out: "Bamako" for "The capital of Mali is Bamako."
    """
    if item.check == "function":
        return function_code(answer, item.question) or ""
    if item.check == "number":
        return canonical_number(item.question, answer)
    if item.choices:
        return chosen(item, answer) or ""
    item_with_options = _with_shown_options(item)
    if item_with_options.choices and (option := chosen(item_with_options, answer)):
        return option
    if len(answer) > MAX_COMPARED_CHARS:
        return plain_form(answer)
    return " ".join(words_beside(answer, item.question))
