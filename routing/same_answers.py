"""When two answers to one question are the same: by their form, or by their words."""

import re
from collections.abc import Hashable, Sequence
from functools import lru_cache

EXACT = "exact"
"""Answers are the same where their words are, without those of the question (`records.answers.canonical`)."""
TEXTS = "words that the question does not have, lists apart"
"""How texts are compared, as a checkpoint names it. One that names another way learned from other classes."""
OVERLAP = "overlap"
"""Answers are the same where more than half of their words are."""
NO_TEXTS = ("number", "function", OVERLAP)
"""Ways that never compare texts as `EXACT` does; an answer to a choice is a text where no options are known."""
SAME = 0.5
"""Agreement above which two answers count as one."""

_MARK = re.compile(r"####|\\boxed\{")
_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")
_COMMA = re.compile(r"(?<=\d),(?=\d{3})")


@lru_cache(maxsize=8192)
def content(answer: str) -> frozenset[str]:
    """Returns the words and numbers of an answer, in lower case; of a worked one (`#### 12`) those of its end."""
    return frozenset(_WORD.findall(_COMMA.sub("", _MARK.split(answer)[-1].lower())))


def agreement(one: frozenset[str], other: frozenset[str]) -> float:
    """Returns how far two answers say the same, in [0, 1]: the Jaccard index of their contents; 0 of two empty ones."""
    if one == other:
        return float(bool(one))
    return len(one & other) / len(one | other)


def number_classes(forms: Sequence[Hashable | None]) -> list[int]:
    """Returns the class of each answer, from 0 in order of appearance, by equality; -1 for None."""
    numbers: dict[Hashable, int] = {}
    return [-1 if form is None else numbers.setdefault(form, len(numbers)) for form in forms]


def overlapping(answers: Sequence[str | None]) -> list[int]:
    """Returns the same by words: an answer joins the first earlier class whose first answer it agrees with."""
    firsts: list[frozenset[str]] = []
    classes = []
    for answer in answers:
        if answer is None:
            classes.append(-1)
            continue
        own = content(answer)
        number = next((c for c, first in enumerate(firsts) if agreement(own, first) > SAME), len(firsts))
        if number == len(firsts):
            firsts.append(own)
        classes.append(number)
    return classes
