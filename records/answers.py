"""The answer within a model's text, and whether two answers are the same."""

import re

from metaprobe.records.correctness import (
    chosen,
    chosen_letter,
    function_code,
    last_number,
    numbers,
    read_number,
    words_beside,
)
from metaprobe.records.types import Item

_TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.IGNORECASE | re.DOTALL)
_MARKED = re.compile(
    r"(?:^|\n|[.!?]\s)\W{0,8}(?:(?:so|therefore|thus|hence)\b\W{0,8})?(?:the )?(?:(?:final|correct|right|numerical) )*"
    r"answer\W{0,8}(?::|is\b)[\s:*]*(.+)",
    re.IGNORECASE,
)
_HASHED = re.compile(r"^[^\S\n]*+####\s*(.+)", re.MULTILINE)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


def final_answer(item: Item, text: str) -> str:
    """Returns the text in `<answer>`, after the last "Answer:" or "####", or in `\\boxed{}`; of a function all text.

    Else the first line if it is the letter of an option, or the last line that names an option, or, where a number is
    asked for, holds one; or the last line.
    """
    text = text.strip()
    if item.check == "function":
        return text
    for marker in (_TAGGED, _MARKED, _HASHED, _BOXED):
        if marked := [answer for answer in marker.findall(text) if answer.strip()]:
            return str(marked[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if item.choices and lines:
        if chosen_letter(item, lines[0]):
            return lines[0]
        return next((line for line in reversed(lines) if chosen(item, line)), lines[-1])
    if item.check == "number" and lines:
        return next((line for line in reversed(lines) if numbers(line)), lines[-1])
    return lines[-1] if lines else ""


def canonical(item: Item, answer: str) -> str:
    """A form in which equal answers are equal: the number, the choice, the code, or the words. Empty for no answer.

    Numbers and choices are read as the scorer reads them; of several numbers, which the scorer refuses, the last, but
    a list stays a list ("3 5"), "3 or 5" is neither, and "not 5" is not 5. Words are those that the question does not
    have: "Bamako" for "The capital of Mali is Bamako."
    """
    if item.check == "function":
        return function_code(answer) or ""
    if item.check == "number":
        stated = read_number(item.question, answer)
        return last_number(item.question, answer) if stated is None else str(stated)
    if item.choices:
        return chosen(item, answer) or ""
    return " ".join(words_beside(answer, item.question))


def most_voted(item: Item, answers: dict[str, tuple[str, float]]) -> str:
    """The name whose answer has most weight behind it; the heaviest single vote, then the first, among equals.

    `answers`: voter -> (answer, weight >= 0). Empty answers do not count while another is there. MetaCogAgent, eq. 3.
    """
    forms = {name: canonical(item, answer) for name, (answer, _) in answers.items()}
    voters = [name for name in answers if forms[name]] or list(answers)
    total = {form: sum(answers[v][1] for v in voters if forms[v] == form) for form in {forms[v] for v in voters}}
    return max(voters, key=lambda name: (total[forms[name]], answers[name][1]))
