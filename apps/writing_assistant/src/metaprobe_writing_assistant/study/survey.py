"""A participant's way: consent, 23 questions on four aspects in our own words, an order of conditions, and a code.

The aspects and their numbers of questions are those of MetaCrit (appendix L, Table 13). Its survey repeats three
questions and shares one word between two; ours asks each thing once. Every question is answered with one of the
assistants that were used, or with "I cannot say", which counts as no answer.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

ASPECTS = {
    "critical_thinking": "Critical thinking",
    "instructiveness": "Instructiveness",
    "interactiveness": "Interactiveness",
    "intelligence": "Intelligence",
}
"""Maps an aspect to its name in tables."""

CONSENT = (
    "You will write three short texts, each with the help of another writing assistant, and then compare the three.",
    "The assistants are computer programs. They can be wrong.",
    "What you write, what the assistant answers and your answers to the questions are kept under a random code. Your "
    "name is not asked for. Please write nothing into your texts that tells who you are.",
    "Taking part is voluntary. You can stop at any time, and you can have what was kept under your code deleted: tell "
    "the code to the person who runs the study.",
)
"""Paragraphs that are shown before anything is kept."""

ALPHABET = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
"""Characters of codes: no two that look alike in handwriting."""


@dataclass(frozen=True, slots=True)
class SurveyQuestion:
    """One question: which assistant?"""

    id: str
    aspect: str
    text: str


def _questions(aspect: str, prefix: str, *texts: str) -> tuple[SurveyQuestion, ...]:
    return tuple(SurveyQuestion(f"{prefix}{number}", aspect, text) for number, text in enumerate(texts, 1))


QUESTIONS: tuple[SurveyQuestion, ...] = (
    *_questions(
        "critical_thinking",
        "ct",
        "Which assistant pointed out a weak step in your reasoning?",
        "Which assistant helped you most to take a difficult idea apart?",
        "Which assistant made you look at your topic from another side?",
        "Which assistant gave reasons for what it criticised?",
        "Which assistant planned ahead with you, and did not only react to your last sentence?",
        "Which assistant noticed when a claim of yours was not true or not shown?",
    ),
    *_questions(
        "instructiveness",
        "in",
        "Which assistant led you step by step without writing the text for you?",
        "Which assistant taught you something that you can use in your next text?",
        "Which assistant helped you to learn from a mistake?",
        "Which assistant was more a teacher than a machine that hands out answers?",
        "Which assistant would you choose for a course in academic writing?",
    ),
    *_questions(
        "interactiveness",
        "ia",
        "Which assistant took up best what you had said before?",
        "Which assistant asked you questions that helped you?",
        "Which assistant was quickest to the point when your request was simple?",
        "Which assistant spoke to you at the right level?",
    ),
    *_questions(
        "intelligence",
        "iq",
        "Which assistant gave the clearest line of argument?",
        "Which assistant thought of most that mattered to your text?",
        "Which assistant coped best with the most difficult request?",
        "Which assistant explained its suggestions best?",
        "Which assistant showed how it had come to its advice?",
        "Which assistant knew most about your topic?",
        "Which assistant was least misled by a false or unclear request?",
        "Which assistant could you rely on most?",
    ),
)


def questions_of(aspect: str) -> tuple[SurveyQuestion, ...]:
    """Returns the questions of one aspect, in their order."""
    return tuple(question for question in QUESTIONS if question.aspect == aspect)


def balanced_orders(conditions: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the rows of a Latin square in which every condition also follows every other equally often.

    Participant i takes row i modulo their number. An even number of conditions needs as many rows, an odd number twice
    as many: three conditions have six. Williams 1949, Australian Journal of Scientific Research A 2: 149-168.
    """
    k = len(conditions)
    if k < 2 or len(set(conditions)) < k:
        raise ValueError(f"conditions are {list(conditions)}; expected two or more, each once")
    first = [0, *((step + 1) // 2 if step % 2 else k - step // 2 for step in range(1, k))]  # 0, 1, k-1, 2, k-2, ...
    rows = [[(entry + shift) % k for entry in first] for shift in range(k)]
    if k % 2:
        rows += [row[::-1] for row in rows]
    return tuple(tuple(conditions[entry] for entry in row) for row in rows)


def draw_code() -> str:
    """Returns a code such as `K7QD-2MXA`: 39 random bits, so that two participants never share one by chance."""
    characters = "".join(secrets.choice(ALPHABET) for _ in range(8))
    return f"{characters[:4]}-{characters[4:]}"
