"""Agreement: whether another answer to the same question says the same. It stands in where there are no labels.

A model that is asked the same question several times gives several answers, its samples. How many of the others say the
same as one of them is known without anybody's judgement. What is trained on it tells, of a single answer, the
probability that the model would say it again. That is no probability of being right: a model may say the same wrong
thing each time.

Each answer makes one row for each other answer that it is compared with, with a label of 0 or 1. The mean of such
labels is the share of the others that agree, and a probability that is fitted to them is free of the noise of few
samples. An answer that did not end by itself has no end to compare, and makes no row.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.flagging import AGREEMENT, FLAGGED_BY
from metaprobe.eval.table import answers_in_words
from metaprobe.records.errors import RecordError
from metaprobe.records.reading import STOP
from metaprobe.records.types import Call, Item, Label, Run
from metaprobe.routing.panel_answers import COMPARABLE_CHECKS, EXACT, PanelAnswer, comparable_form
from metaprobe.routing.panel_lines import read_of_run
from metaprobe.routing.panel_rows import UNREADABLE_CLASS
from metaprobe.training.panel_same import LabelledQuestion, classes_by, item_of, own_form

SAMPLES = "samples"
"""Source of labels `agreement`."""
MAX_PARTNERS = 4
"""Other answers that each answer is compared with. More of them add rows, and hardly anything that is new."""
MAX_PAIRS = 8000
"""Pairs beyond which each answer is compared with fewer others, at least with one: fits take longer with each row."""
MIN_QUESTIONS = 20
"""Questions with two answers each below which nothing is learned."""
MIN_QUESTIONS_OF_A_KIND = 10
"""Questions with answers that agree, and questions with answers that differ, below which nothing is learned: five folds
need two of each kind."""


SAID_AGAIN_BEFORE = "Probability that two answers of the model to the question agree"
SAID_AGAIN_AFTER = "Probability that the model, asked again, would say the same"
"""First words of the card of a predictor that was trained on agreement and reads the question alone, or the answer."""
NOT_RIGHT = "It was learned without labels and is no probability of being right."


def flagged_by(target: str) -> dict[str, str]:
    """Returns the field of a contract that says that the flag lies on agreement; empty for another target."""
    return {FLAGGED_BY: AGREEMENT} if target == AGREEMENT else {}


@dataclass(frozen=True, slots=True)
class SampledQuestion:
    """One question, and the answers that one model gave to it."""

    item: Item
    calls: tuple[Call, ...]
    answers: tuple[PanelAnswer, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AgreementPairs:
    """m ordered pairs of answers to one question: of each pair the first answer is a row."""

    call_ids: tuple[str, ...]
    """(m,): the answer of each row."""
    same: NDArray[np.int64]
    """(m,): 1 where the other answer says the same, 0 where it does not."""
    questions: int
    """Questions with at least two answers that ended by themselves."""
    cut: int
    """Answers that are left out because they did not end by themselves."""
    alone: int
    """Answers that are left out because no other one to their question ended by itself."""
    reading: str
    """How it was decided when two answers are the same, in words."""

    @property
    def note(self) -> str:
        """Says in a line for card and terminal which answers were compared, and which were left out."""
        answers = len(set(self.call_ids))
        told = f"{answers} answers to {self.questions} questions, {len(self.same)} pairs of them compared; "
        told += f"{self.same.mean():.0%} of the pairs say the same. {self.reading}"
        left = [f"{self.cut} that did not end by themselves"] if self.cut else []
        left += [f"{self.alone} without a second answer to the same messages"] if self.alone else []
        return f"{told}. Left out: {', '.join(left)}" if left else told

    def rows_among(self, call_ids: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Returns for each pair whose answer is among these the answer's place there (r,), and the label (r,)."""
        place = {call_id: i for i, call_id in enumerate(call_ids)}
        known = [number for number, call_id in enumerate(self.call_ids) if call_id in place]
        return np.array([place[self.call_ids[number]] for number in known], dtype=np.intp), self.same[known]


def agreement_pairs(runs: Sequence[Run], *, stage: str | None = None, agent: str | None = None) -> AgreementPairs:
    """Returns which answers of these runs say the same as others to their question.

    Answers to one question are those of one model, stage and agent to the same messages, of a run store to one item, of
    lines to one `question_id`. When two are the same is said by the item's check, or, where it has none, by the form
    that most answers have: a number, a letter, code, or words.

    Args:
        runs: of a store or of lines. Labels are not looked at.
        stage: only calls of this stage; by default the only one that has several answers to a question.
        agent: only calls of this agent; by default of any.

    Raises `RecordError` where fewer than `MIN_QUESTIONS` questions have two answers, where answers of several stages do
    and none is named, and where fewer than `MIN_QUESTIONS_OF_A_KIND` questions have answers that agree, or that differ.
    """
    questions, cut, alone = sampled_questions(runs, stage=stage, agent=agent)
    stages = sorted({question.calls[0].stage for question in questions})
    if len(stages) > 1:
        raise RecordError(
            f"questions have several answers at the stages {', '.join(stages)}; expected one: name it (`--stage`)"
        )
    if len(questions) < MIN_QUESTIONS:
        apart = _asked_otherwise(runs, stage=stage, agent=agent)
        raise RecordError(
            f"{len(questions)} questions have two answers of one model to the same messages that ended by themselves; "
            f"expected at least {MIN_QUESTIONS}: "
            + (
                f"{apart} more have two answers, to messages that differ (a time or an id in the prompt?): give all "
                "answers to a question the same messages"
                if apart
                else "ask more questions, each of them twice (lines share a question_id)"
            )
        )
    same, reading = _reading_of(questions)
    partners = min(MAX_PARTNERS, max(1, MAX_PAIRS // sum(len(question.calls) for question in questions)))
    call_ids: list[str] = []
    labels: list[int] = []
    for question in questions:
        check = question.item.check if question.item.check in COMPARABLE_CHECKS else same
        item = question.item if check == question.item.check else replace(item_of(question.item.question, check))
        forms: list[Hashable | None] = [comparable_form(answer, item, check)[0] for answer in question.answers]
        classes = classes_by(check, forms)
        count = len(classes)
        for row, own in enumerate(classes):
            for step in range(1, min(count, partners + 1)):
                call_ids.append(question.calls[row].id)
                labels.append(int(own != UNREADABLE_CLASS and own == classes[(row + step) % count]))
    found = np.array(labels, dtype=np.int64)
    question_of = {call.id: number for number, question in enumerate(questions) for call in question.calls}
    asked = np.array([question_of[call_id] for call_id in call_ids])
    _check_both_kinds(len(set(asked[found == 1])), len(set(asked[found == 0])), len(questions), reading)
    return AgreementPairs(tuple(call_ids), found, len(questions), cut, alone, reading)


def _check_both_kinds(agreeing: int, differing: int, questions: int, reading: str) -> None:
    """Raises `RecordError` where too few questions have answers that agree, or answers that differ."""
    if min(agreeing, differing) >= MIN_QUESTIONS_OF_A_KIND:
        return
    advice = (
        "ask for short answers (a number, a name, a letter), ask at a lower temperature, or ask more questions"
        if agreeing < differing
        else "ask at a temperature of 0.7 to 1, or ask more and harder questions"
    )
    raise RecordError(
        f"of {questions} questions {agreeing} have two answers that say the same, and {differing} have two that "
        f"differ; expected at least {MIN_QUESTIONS_OF_A_KIND} of each kind: {advice}. {reading}"
    )


def _asked_otherwise(runs: Sequence[Run], *, stage: str | None, agent: str | None) -> int:
    """Returns how many questions have several answers that ended, and no two of them to the same messages."""
    without = [replace(run, calls=tuple(replace(call, messages=()) for call in run.calls)) for run in runs]
    alike, together = (
        {(one.item.task, one.item.id, one.calls[0].model, one.calls[0].stage, one.calls[0].agent) for one in questions}
        for questions, _, _ in (sampled_questions(these, stage=stage, agent=agent) for these in (runs, without))
    )
    return len(together - alike)


def sampled_questions(
    runs: Sequence[Run], *, stage: str | None = None, agent: str | None = None
) -> tuple[list[SampledQuestion], int, int]:
    """Returns the questions with at least two answers that ended by themselves, and how many answers are left out.

    These are counted twice over: those that did not end by themselves, and those that are alone with their question.
    Refusals and tool calls are no answers.
    """
    asked: dict[Hashable, list[tuple[Run, Call]]] = {}
    cut = 0
    for run in runs:
        for call in run.calls:
            if stage not in (None, call.stage) or agent not in (None, call.agent) or not answers_in_words(call):
                continue
            if call.finish_reason != STOP or not call.text.strip():
                cut += 1
                continue
            name = (run.item.task, run.item.id, call.model, call.stage, call.agent, call.messages)
            asked.setdefault(name, []).append((run, call))
    questions = [
        SampledQuestion(
            together[0][0].item,
            tuple(call for _, call in together),
            tuple(read_of_run(run, call) for run, call in together),
        )
        for together in asked.values()
        if len(together) > 1
    ]
    return questions, cut, sum(len(together) == 1 for together in asked.values())


def with_agreement_labels(runs: Sequence[Run], pairs: AgreementPairs) -> list[Run]:
    """Returns the runs with one label `agreement` at each answer that has a pair, so that a table holds these alone.

    What the label says is put in its place afterwards: an answer has as many labels as pairs.
    """
    paired = set(pairs.call_ids)
    return [
        replace(
            run,
            labels=(
                *(label for label in run.labels if label.name != AGREEMENT),
                *(Label(call.id, AGREEMENT, 1.0, SAMPLES) for call in run.calls if call.id in paired),
            ),
        )
        for run in runs
    ]


def _reading_of(questions: Sequence[SampledQuestion]) -> tuple[str, str]:
    """Returns when two answers are the same where items have no check, and in words how all are compared."""
    unchecked = [question for question in questions if question.item.check not in COMPARABLE_CHECKS]
    checks = sorted({question.item.check for question in questions if question.item.check in COMPARABLE_CHECKS})
    told = [f"Answers are the same by the items' checks ({', '.join(checks)})"] if checks else []
    same = EXACT
    if unchecked:
        given = [LabelledQuestion(q.item.question, q.item.id, q.answers, [None] * len(q.answers)) for q in unchecked]
        same, why = own_form(given)
        told.append(f"Answers are the same by {same}: {why}")
    return same, "; ".join(told)
