"""The form of a question: how long it is, and how many numbers it holds. It is known before the first token.

Longer questions, and questions with more numbers, are often harder, whatever model answers them. These counts need
neither states nor log-probabilities.
"""

import math
import re

import numpy as np
from numpy.typing import NDArray

QUESTION_FORM = ("characters", "words", "sentences", "numbers", "digits")
"""Counts of a question, in the order in which `question_form` gives their logarithms."""
MAX_FORM_CHARS = 100_000
"""Characters of a question that are counted. It bounds the time; few questions are longer."""
_SENTENCE = re.compile(r"[.!?](?=\s|$)")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_DIGIT = re.compile(r"\d")


def question_form(question: str) -> NDArray[np.float32]:
    """Returns ln(1 + count) for each count of `QUESTION_FORM`, shape (5,); NaN if the question is empty."""
    text = question[:MAX_FORM_CHARS].strip()
    if not text:
        return np.full(len(QUESTION_FORM), np.nan, np.float32)
    counts = (
        len(text),
        len(text.split()),
        len(_SENTENCE.findall(text)),
        len(_NUMBER.findall(text)),
        len(_DIGIT.findall(text)),
    )
    return np.array([math.log1p(count) for count in counts], np.float32)
