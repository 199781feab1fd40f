"""Reads which option an answer names: by its letter or number if the question shows labels, else by its words."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from metaprobe.records.answers.texts import (
    AFTER_LEAD,
    BEFORE_LEAD,
    FILLER,
    IS,
    IS_JOINED,
    LEADS,
    NEGATIONS,
    POLAR,
    Words,
    find_words,
    is_hedged,
    stem,
    strip_decoration,
    without_accents,
    words,
)
from metaprobe.records.spelling import AT_LINE
from metaprobe.records.types import Item

MOST_OPTION_TEXT = 4000
"""Most characters of an answer that are read. Of a longer answer the first half and the last half of this number are
read.
"""


def _any_of(names: Sequence[str]) -> str:
    """Returns a pattern that matches any of these words in a text without accents."""
    return "|".join(re.escape(without_accents(name)).replace(r"\ ", "[ ]") for name in names)


_TO_LETTER = rf"""\W{{0,8}}(?:(?:so|therefore|thus|hence)\b\W{{0,8}})?
    (?:(?:(?:{_any_of(BEFORE_LEAD)})(?:\s+|\b)){{0,2}}(?:{_any_of(LEADS[1:])})(?:\s+(?:{_any_of(AFTER_LEAD)}))?
    \s*(?:(?:{_any_of(IS)})(?!\w)|{_any_of(IS_JOINED)}|[-:：–—]|(?=\s[A-Z]\s))
    (?:\s+(?:la|el|le|il|a|o|die|opcion|opcao|opzione|option)(?=\s))?\W{{0,8}})?
    (?:选择?|選擇?)?
    (?:(?:i\s+(?:would\s+)?|i'd\s+|let\s+me\s+|let's\s+)(?:choose|pick|say|select|think|go\s+with)\s+)?(?:probably\s+)?(?:(?:that\s+)?it(?:'s|\s+is)\s+)?
    (?:the\s+)?(?:(?:correct|right|best|final)\s+)?(?:(?:option|choice|answer|letter)\b\s*(?:is\b)?\W{{0,8}})?
    (?:option\s+)?\W{{0,8}}"""
"""Words that may precede the letter with which an answer begins."""


@dataclass(frozen=True, slots=True)
class _Labels:
    """Patterns that find the label of an option in an answer."""

    first: re.Pattern[str]
    """Finds a label at the beginning of the answer."""
    anywhere: re.Pattern[str]
    """Finds a label after "option" or "answer"."""
    next: re.Pattern[str]
    """Finds another label after the first."""
    line: re.Pattern[str]
    """Finds a label at the beginning of a line."""
    denied: re.Pattern[str]
    """Finds a label after denied labels, as in "Neither A nor B, it's C"."""


def _labels(upper: str, lower: str, any_case: str) -> _Labels:
    name = rf"\(?({any_case})\)?(?![\w'])"
    return _Labels(
        re.compile(
            rf"(?i:{_TO_LETTER})(?:({upper})(?=\s*[).:,;/\n–—-](?!\d)|\W*$|\s+(?:is|was|because|since|as|and|or)\b"
            rf"|\s*(?:{_any_of(('です', 'である', '입니다', '이다', 'है'))})\W*$|\s+\(not\s+[A-Z]\)\W*$)"
            rf"|({lower})(?=\s*[).:](?!\d)|\W*$))(?!')",
            re.X,
        ),
        re.compile(rf"\b(?i:option|choice|answer)\s+(?:(?i:is)\s+)?(?:(?i:option)\s+)?\(?({upper})(?!\w|'|\.\d)"),
        re.compile(
            rf"^\W*?(?:,|/|;|&|\band\b|\bor\b)\s*(?:option\s*)?(?:\(?({upper})(?![\w'])|\(?({lower})(?=[).:]|\W*$))"
        ),
        re.compile(rf"{AT_LINE}({upper})[).:](?!\d)", re.M),
        re.compile(
            rf"\W*(?:neither\s+(?:option\s+)?{name}\s+nor|not)\s+(?:option\s+)?{name}\W+(?:(?:so|but|rather)\s+)?"
            rf"(?:it'?s\s+|it\s+is\s+|(?:the\s+)?(?:correct\s+|right\s+)?(?:answer|option|choice)\s+is\s+)?(?:option\s+)?{name}\W*",
            re.I,
        ),
    )


_LETTERS, _DIGITS = _labels("[A-Z]", "[a-z]", "[A-Za-z]"), _labels(r"\d{1,2}", r"\d{1,2}", r"\d{1,2}")
_SHOWN_BY = (")", ".", ":", "]", ".**", ")**", "**")
"""Marks between a label and its option in a question."""
_TAKEN_BACK = re.compile(r"^\W{0,8}(?:is|was)(?:n't|\s+(?:not|wrong|incorrect))\b|\b(?:wait|actually|sorry)\b", re.I)
_NEGATED = re.compile(r"(?:(?<=\w)n't|(?<!\s)\s*+\bnot)\s+(true|false)\b|(?<!\s)\s*+\buntrue\b", re.IGNORECASE)
"""Matches "not true" and "not false". True and false are the only options of which the negation of one
names the other.
"""


# The functions below cache a question and its options: many answers, and many lines of one, are compared with them.


@lru_cache(maxsize=16)
def _negations_in(question: str) -> frozenset[str]:
    return NEGATIONS & set(words(question))


@lru_cache(maxsize=512)
def _option_words(choice: str) -> Words:
    return words(strip_decoration(choice, lead=False))


@lru_cache(maxsize=512)
def _bare(text: str) -> str:
    return strip_decoration(text).rstrip(". ")


@lru_cache(maxsize=16)
def _asked_last(question: str) -> frozenset[str]:
    return frozenset(words(question.split(". ")[-1]))


@lru_cache(maxsize=16)
def _shown(question: str, choices: tuple[str, ...]) -> _Labels | None:
    """Returns how the question labels its options: letters (`A) ...`, `(a) ...`, `c. ...`) or numbers (`3) ...`). None
    if it does not.
    """
    for first, labels in (("A", _LETTERS), ("a", _LETTERS), ("1", _DIGITS)):
        if choices and all(
            any(_has_line(question, f"{_label(first, place)}{mark} {choice}") for mark in _SHOWN_BY)
            for place, choice in enumerate(choices)
        ):
            return labels
    return None


_OPTION_LINE = re.compile(r"^[^\S\n]*\(?([A-Ja-j])(?:\)|\.|:|\]) (\S[^\n]*?)[^\S\n]*$", re.M)
MOST_OPTION_LINES = 40
"""Most lines beginning with a letter that are read, counted from the end of the question."""


@lru_cache(maxsize=64)
def options_in(question: str) -> tuple[str, ...]:
    """Returns the options that a question shows in lines with letters, from the last such list. Empty if there are
    fewer than two.
    """
    lines = _OPTION_LINE.findall(question[-MOST_OPTION_TEXT:])[-MOST_OPTION_LINES:]
    starts = [place for place, (letter, _) in enumerate(lines) if letter in "Aa"]
    if not starts:
        return ()
    last = lines[starts[-1] :]
    names = [chr(ord(last[0][0]) + place) for place in range(len(last))]
    found = tuple(text for _, text in last)
    return found if [letter for letter, _ in last] == names and len(set(found)) == len(found) > 1 else ()


def _label(first: str, place: int) -> str:
    return str(place + 1) if first == "1" else chr(ord(first) + place)


def _has_line(question: str, shown: str) -> bool:
    """Returns whether the question holds the text, and not as the end of a longer word."""
    place = question.find(shown)
    return place == 0 or (place > 0 and not question[place - 1].isalnum())


def find_choices(among: Words, options: Mapping[str, Words]) -> list[str]:
    """Returns the choices that occur, the longest first. Each word counts for one choice only."""
    taken: set[int] = set()
    found_choices = []
    for choice, option in sorted(options.items(), key=lambda pair: -len(pair[1])):
        spans = [set(range(place, place + len(option))) for place in find_words(among, option)]
        free = [span for span in spans if not span & taken]
        if free:
            found_choices.append(choice)
            taken.update(*free)
    return found_choices


def letter_options(choices: Sequence[str]) -> str:
    """Returns the options, one a line, with letters: `A) ...`."""
    return "\n".join(f"{chr(ord('A') + place)}) {choice}" for place, choice in enumerate(choices))


def chosen(item: Item, answer: str) -> str | None:
    """Returns the one option that an answer names, or None if it names none or several, hedges, or takes it back.

    If the question shows letters, a letter at the start ("B", "(b)", "B) ...", "option B is right") counts before
    words.
    """
    if len(answer) > MOST_OPTION_TEXT:
        answer = f"{answer[: MOST_OPTION_TEXT // 2]}\n{answer[-MOST_OPTION_TEXT // 2 :]}"
    if {choice.casefold() for choice in item.choices} == {"true", "false"}:
        answer = _NEGATED.sub(lambda match: " false" if (match[1] or "true").casefold() == "true" else " true", answer)
    text = strip_decoration(answer)
    labels = _shown(item.question, item.choices)
    bare = _bare(text)
    literal = {choice for choice in item.choices if _bare(choice) == bare}
    if len(literal) == 1 and not (labels and (len(bare) == 1 or bare.isdigit())):
        return literal.pop()
    if labels is None:
        return _of_words(item, text, labels)
    if denied := labels.denied.fullmatch(text):
        places = [_place(name) for name in denied.groups() if name]
        if places[-1] not in places[:-1] and places[-1] < len(item.choices):
            return item.choices[places[-1]]
        return None
    whole = strip_decoration(answer, lead=False)  # in which "A: ..." keeps its letter
    if letter := _chosen_label(labels, item, whole):
        place = _place(letter[1] or letter[2])
        if labels is _DIGITS and literal and literal != {item.choices[place]}:
            return None  # "3" is the number of one option and the text of another
        # The option of the letter, unless what follows is another letter or another option, or takes it back.
        option, rest = item.choices[place], whole[letter.end() :]
        if _bare(rest.lstrip(").:,;/–— ")) == _bare(option):
            return option
        other_places = {number for number, choice in enumerate(item.choices) if choice != option}
        following = [found[1] or found[2] for found in labels.next.finditer(rest)]
        following += [found[1] for found in labels.line.finditer(rest)]
        if not other_places.isdisjoint(map(_place, following)) or _TAKEN_BACK.search(rest.replace(option, "")):
            return None
        spoken, words_of = words(rest), {choice: words(choice) for choice in item.choices}
        opening = [choice for choice, said in words_of.items() if said and spoken[: len(said)] == said]
        return option if not opening or option in opening else None
    return _of_words(item, text, labels)


def names_letter(item: Item, line: str) -> bool:
    """Returns whether a line begins with an option's label, and the question shows labels."""
    labels = _shown(item.question, item.choices)
    return labels is not None and _chosen_label(labels, item, line) is not None


def _chosen_label(labels: _Labels, item: Item, answer: str) -> re.Match[str] | None:
    """Returns the option's label with which an answer begins; None if there is none.

    Args:
        labels: the labels of the options.
        item: the item.
        answer: the answer.
    """
    letter = labels.first.match(answer)
    if letter and letter.end() < len(answer) and answer[letter.end()] == ":" and _place(letter[1] or letter[2]) == 0:
        letter = labels.first.match(answer, letter.end() + 1) or letter  # "A: B" answers B
    return letter if letter and 0 <= _place(letter[1] or letter[2]) < len(item.choices) else None


def _place(label: str) -> int:
    return int(label) - 1 if label.isdigit() else ord(label.upper()) - ord("A")


def _of_words(item: Item, text: str, labels: _Labels | None) -> str | None:
    spoken = words(text)
    options = {choice: option for choice in item.choices if (option := _option_words(choice))}
    if spoken and spoken[0] in POLAR and spoken[:1] in options.values():
        return None if spoken[1:2] in (("or",), ("and",)) else next(c for c, o in options.items() if o == spoken[:1])
    found_choices = find_choices(spoken, options)
    if len(found_choices) == 2 and "than" in spoken:
        # "Ben is shorter than Anna" names both and answers "Who is shorter?" with the first.
        left, right = spoken[: spoken.index("than")], spoken[spoken.index("than") + 1 :]
        subject, other = find_choices(left, options), find_choices(right, options)
        beside = {word for word in left if all(word not in options[choice] for choice in subject)}
        asking = {"is", "are", "was"} | _asked_last(item.question)
        found_choices = subject if len(subject) == len(other) == 1 and beside <= asking else found_choices
    if labels is not None and len(found_choices) != 1:
        places = {_place(label) for label in labels.anywhere.findall(text)}
        found_choices = [item.choices[place] for place in places if 0 <= place < len(item.choices)]
    elif not found_choices and spoken:
        content = {word for word in spoken if stem(word) not in FILLER} or set(spoken)
        found_choices = [choice for choice, option in options.items() if content <= set(option)]
    if len(found_choices) != 1 or list(options.values()).count(options.get(found_choices[0], ())) > 1:
        return None
    option = options.get(found_choices[0], ())
    place = next(iter(find_words(spoken, option)), 0)
    before, after = spoken[:place], spoken[place + len(option) :]
    if len(option) == 1 and option[0] in POLAR:
        unsure = is_hedged(before) or is_hedged(after[:1], NEGATIONS)
    else:
        # "Who does not care?" may be answered with "Ben does not care", not with "Not Ben".
        unsure = is_hedged(before, option) or is_hedged(after, _negations_in(item.question) | set(option))
    return None if unsure else found_choices[0]
