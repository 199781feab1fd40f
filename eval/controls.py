"""All controls: simple scores that may explain a method's numbers, in comparisons, audits and cards.

There are four kinds of controls: numbers that come with the answer or the question, numbers that the model states about
itself, answers to a further question (P(true)), and fitted predictors. Controls without a fit are computed here, the
fitted ones in `metaprobe.training.methods`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.results import Family
from metaprobe.probes.features import baseline_scores

Scores = NDArray[np.float64]

STATED, EASE = "stated confidence", "stated ease"
P_TRUE = "P(true)"
MEAN, SCALED = "mean log-probability", "scaled log-probability"
CUT, LENGTH, QUESTION = "cut by max_tokens", "length", "length of the question"
PROMPT, ANSWER, CELLS, IDENTITY = "prompt TF-IDF", "answer TF-IDF", "dimension x level table", "run identity"
TERMS, JOINED = "terms of the log-probabilities", "words and log-probabilities"
TEXT = "layer 0, the text"
NUMBERS = {
    "scaled": SCALED,
    "total": "total log-probability",
    "lowest3": "mean of the three lowest",
    "mean": MEAN,
    "min": "minimum log-probability",
    "first": "first log-probability",
    "length": LENGTH,
}
"""Maps names of free numbers in `probes.features` to their names as controls."""
DECISION = "decision "
"""Prefix of a question's name: the number that a decision model gave for the question."""
FITTED = (PROMPT, ANSWER, CELLS, IDENTITY, TERMS, JOINED, TEXT)
"""Controls that are fitted, in the same folds as the methods."""
COLLECTION = frozenset({CUT, LENGTH, IDENTITY})
"""Controls that know only how answers were collected, neither the question nor the answer."""
UNANSWERED = frozenset({EASE, QUESTION, PROMPT, CELLS, IDENTITY})
"""Controls that exist before an answer is given."""
REVERSED = ", reversed"
"""Suffix for a control whose sign is reversed, because higher values go with wrong answers."""


def free_numbers(table: AnswerTable) -> dict[str, Scores]:
    """Returns the scores (n,) of every control that needs no fit, by name.

    Their sign is the expected one: surer, shorter and complete answers get higher scores. The scaled log-probability is
    the total divided by the root of the length. A number that was not stated or not asked for is NaN. Numbers that
    cannot be computed for these answers are left out.
    """
    stated_numbers = {STATED: table.stated_confidence, EASE: 1 - table.stated_difficulty, P_TRUE: table.p_true}
    numbers: dict[str, Scores] = {name: values for name, values in stated_numbers.items() if np.isfinite(values).any()}
    if table.measured:
        scores_by_name = baseline_scores(list(table.logprobs))
        scores_by_name["total_logprob"] = scores_by_name["mean_logprob"] * scores_by_name["length"]
        kinds = ("mean", "min", "lowest3", "scaled", "first", "total")
        numbers |= {NUMBERS[kind]: scores_by_name[f"{kind}_logprob"] for kind in kinds}
        numbers[LENGTH] = -np.log(table.tokens.astype(np.float64))
        if table.cut.any() and not table.cut.all():
            numbers[CUT] = -table.cut.astype(np.float64)
    if has_questions(table):
        numbers[QUESTION] = -np.char.str_len(table.questions).astype(np.float64)
    return numbers


@dataclass(frozen=True, slots=True)
class DistinctControls:
    """The free controls without those that tell nothing of their own on these answers."""

    scores: Mapping[str, Scores]
    """Scores (n,) of each kept control, by name."""
    same_order: Mapping[str, str]
    """Maps each control that was left out to the kept control that puts the answers in the same order."""
    constant: tuple[str, ...]
    """Controls that were left out because they are the same for all answers."""


def distinct_controls(table: AnswerTable) -> DistinctControls:
    """Returns `free_controls` with one control for each order of the answers.

    Answers of one token have one log-probability, which is their mean, their minimum and their total. As six controls
    it would be counted six times, also by Holm's correction. Stated numbers are always kept.
    """
    scores: dict[str, Scores] = {}
    same_order: dict[str, str] = {}
    constant: list[str] = []
    name_by_order: dict[bytes, str] = {}
    for name, values in free_controls(table).items():
        if name.removesuffix(REVERSED) in (STATED, EASE, P_TRUE):
            scores[name] = values
            continue
        distinct, order = np.unique(values, return_inverse=True)
        if len(distinct) == 1:
            constant.append(name)
            continue
        first_name = name_by_order.setdefault(order.tobytes(), name)
        if first_name == name:
            scores[name] = values
        else:
            same_order[name] = first_name
    return DistinctControls(scores, same_order, tuple(constant))


def free_controls(table: AnswerTable) -> dict[str, Scores]:
    """Returns the scores (n,) of every control that needs no fit, by name; a missing number is the median.

    A number that is higher for wrong answers is included a second time with its sign reversed. The log-probability of
    faulty arguments is such a number. The sign is read from these same answers, so that controls get every chance.
    """
    controls: dict[str, Scores] = {}
    for name, values in free_numbers(table).items():
        finite = np.isfinite(values)
        controls[name] = filled = np.where(finite, values, np.median(values[finite]))
        if auroc(table.y, filled) < 0.5:
            controls[f"{name}{REVERSED}"] = -filled
    return controls


def free_score(name: str, table: AnswerTable) -> Scores:
    """Returns the scores (n,) of one of `free_controls`; NaN if there is no number."""
    values = free_numbers(table)[name.removesuffix(REVERSED)]
    return -values if name.endswith(REVERSED) else values


def free_family(name: str) -> Family:
    """Returns the family of one of `free_controls`."""
    if name in (STATED, EASE):
        return "explicit"
    return "plain" if name.removesuffix(REVERSED) in (STATED, EASE, CUT, LENGTH, QUESTION) else "log-probability"


def is_fitted(name: str) -> bool:
    """Returns whether a control has to be fitted; the others are numbers that come with an answer."""
    return name.removesuffix(REVERSED) in FITTED


def describe_control(name: str) -> str:
    """Returns the control's name as a noun phrase with its kind, for sentences, such as `the free number length`."""
    unreversed_name = name.removesuffix(REVERSED)
    if unreversed_name in (STATED, EASE):
        return f"the model's own {name}"
    if unreversed_name.startswith(DECISION):
        return f"the decision model's number {name.removeprefix(DECISION)}"
    kind = "plain predictor" if is_fitted(name) else "further question" if unreversed_name == P_TRUE else "free number"
    return f"the {kind} {name}"


def has_questions(table: AnswerTable) -> bool:
    """Whether the questions were stored."""
    return any(question.strip() for question in table.questions.tolist())


def has_answers(table: AnswerTable) -> bool:
    """Whether the texts of the answers were stored."""
    return table.answers is not None and any(text.strip() for text in table.answers.tolist())
