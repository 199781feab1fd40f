"""Agreement: whether another answer to the same question says the same. It replaces labels where there are none.

A model that is asked the same question several times gives several answers, its samples. Whether two samples say the
same is known without anybody's judgement. A predictor trained on agreement gives the probability that the model would
repeat an answer. That is no probability of being right: a model may say the same wrong thing each time.

Each answer makes one row for each other answer that it is compared with, with a label of 0 or 1. The mean of these
labels is the share of the other answers that agree. A probability that is fitted to them is free of the noise of few
samples. An answer that did not end by itself has no end to compare, and makes no row.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.flagging import AGREEMENT, FLAGGED_BY
from metaprobe.eval.answer_table import answers_in_words
from metaprobe.records.correctness import final_answer, read_number
from metaprobe.records.errors import RecordError
from metaprobe.records.reading import STOP
from metaprobe.records.types import Call, Item, Label, Run
from metaprobe.routing.panel.compared_answers import (
    COMPARABLE_CHECKS,
    EXACT,
    NUMBER,
    PanelAnswer,
    comparable_form,
    own_check,
)
from metaprobe.routing.panel.model_rows import UNREADABLE_CLASS
from metaprobe.routing.panel.stored_panels import read_of_run
from metaprobe.training.panel.same_answers import FORM_SHARE, READINGS, LabelledQuestion, classes_by, item_of, own_form

SAMPLES = "samples"
"""Source of the labels `agreement`."""
MAX_PARTNERS = 4
"""Most other answers that each answer is compared with. More partners add rows, but hardly any information."""
MAX_PAIRS = 8000
"""Most pairs of answers in all. If there would be more, each answer is compared with fewer others, but at least with
one. Fits take longer with each row.
"""
MIN_QUESTIONS = 20
"""Fewest questions with two answers each for learning agreement."""
MIN_QUESTIONS_OF_A_KIND = 10
"""Fewest questions with equal answers, and fewest with different answers, for learning agreement. Five folds need two
of each kind.
"""
MAX_WORDS_BESIDE_NUMBER = 12
"""Most words beside the number in an answer that is read as a number. An answer with more words is a text that mentions
a number.
"""
MAX_QUESTIONS_READ_OTHERWISE = 300
"""Most questions on which other readings are counted, evenly spread over the data."""
FAR_MORE_SHARE = 0.2
"""How much larger the share of equal pairs must be by another reading for a note to name that reading."""
_WORD = re.compile(r"[^\W\d_]+")


SAID_AGAIN_BEFORE = "Probability that two answers of the model to the question agree"
SAID_AGAIN_AFTER = "Probability that the model, asked again, would say the same"
"""First words of the card of a predictor that learned agreement. One text is for readers of the question alone, the
other for readers of the answer.
"""
NOT_RIGHT = "It was learned without labels and is no probability of being right."


def flagged_by(target: str) -> dict[str, str]:
    """Returns the contract's field that says that the flag is about agreement; empty for another target."""
    return {FLAGGED_BY: AGREEMENT} if target == AGREEMENT else {}


@dataclass(frozen=True, slots=True)
class SampledQuestion:
    """One question, and the answers that one model gave to it."""

    item: Item
    calls: tuple[Call, ...]
    answers: tuple[PanelAnswer, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AgreementPairs:
    """Ordered pairs (m,) of answers, both to the same question. Each pair is a row about its first answer."""

    call_ids: tuple[str, ...]
    """Id (m,) of the answer of each row."""
    same: NDArray[np.int64]
    """1 if the other answer of the row says the same, else 0; (m,)."""
    questions: int
    """Number of questions with at least two answers that ended by themselves."""
    cut: int
    """Number of answers left out because they did not end by themselves."""
    alone: int
    """Number of answers left out because no other answer of the same model, stage and agent to the same messages ended
    by itself.
    """
    reading: str
    """Rule by which two answers are the same, in words."""

    @property
    def note(self) -> str:
        """Says in a line for card and terminal which answers were compared, and which were left out."""
        answers = len(set(self.call_ids))
        text = f"{answers} answers to {self.questions} questions, {len(self.same)} pairs of them compared; "
        text += f"{self.same.mean():.0%} of the pairs say the same. {self.reading}"
        left = [f"{self.cut} that did not end by themselves"] if self.cut else []
        left += [f"{self.alone} without a second answer to the same messages"] if self.alone else []
        return f"{text}. Left out: {', '.join(left)}" if left else text

    def rows_among(self, call_ids: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Returns the pairs about one of these answers: the answer's index in `call_ids` (r,), and the pair's label
        (r,).
        """
        index_of_call = {call_id: i for i, call_id in enumerate(call_ids)}
        pair_indices = [pair_index for pair_index, call_id in enumerate(self.call_ids) if call_id in index_of_call]
        return np.array(
            [index_of_call[self.call_ids[pair_index]] for pair_index in pair_indices], dtype=np.intp
        ), self.same[pair_indices]


def agreement_pairs(
    runs: Sequence[Run], *, stage: str | None = None, agent: str | None = None, same: str | None = None
) -> AgreementPairs:
    """Returns pairs of answers to one question, each with whether both say the same.

    Answers belong to one question if model, stage, agent and messages are equal, and also the item (in a run store) or
    the `question_id` (in lines). Two answers are compared by `same`, else by the item's check, else by the form that
    most answers have: a number, alone or in a sentence, a letter, code, or words. An answer that came with its
    agreement (`given_agreements`) makes a row of its own.

    Args:
        runs: runs of a store or of lines; labels of right and wrong are not read.
        stage: only calls of this stage; by default the only one that has several answers to a question.
        agent: only calls of this agent; by default of any.
        same: the reading of all answers, one of `READINGS`; by default that of the check, or of the answers' own form.

    Raises `RecordError` if fewer than `MIN_QUESTIONS` questions have two answers, or if answers of several stages do
    and no stage is named. Fewer than `MIN_QUESTIONS_OF_A_KIND` questions with answers that agree, or with answers that
    differ, are an error too.
    """
    # The questions with several answers, and answers whose agreement was logged.
    questions, cut, alone = sampled_questions(runs, stage=stage, agent=agent)
    logged_pairs = given_agreements(runs, stage=stage, agent=agent)
    logged_pairs -= {(call.id, same) for question in questions for call in question.calls for same in (0, 1)}
    alone -= len({call_id for call_id, _ in logged_pairs})
    stages = sorted({question.calls[0].stage for question in questions})
    if len(stages) > 1:
        raise RecordError(
            f"questions have several answers at the stages {', '.join(stages)}; expected one: name it (`--stage`)"
        )
    if len(questions) + len(logged_pairs) < MIN_QUESTIONS:
        raise RecordError(
            f"{len(questions) + len(logged_pairs)} questions have two answers of one model to the same messages that "
            f"ended by themselves; expected at least {MIN_QUESTIONS}: {_way_to_more(runs, stage=stage, agent=agent)}"
        )
    default_reading, reading_note = _reading_of(questions, same)
    # Compare each answer with a few others.
    partners = min(MAX_PARTNERS, max(1, MAX_PAIRS // max(1, sum(len(question.calls) for question in questions))))
    call_ids: list[str] = []
    labels: list[int] = []
    for question in questions:
        is_checked = same is None and question.item.check in COMPARABLE_CHECKS
        classes = _classes(question, question.item.check if is_checked else default_reading)
        count = len(classes)
        for row, answer_class in enumerate(classes):
            for step in range(1, min(count, partners + 1)):
                call_ids.append(question.calls[row].id)
                labels.append(int(answer_class != UNREADABLE_CLASS and answer_class == classes[(row + step) % count]))
    question_of: dict[str, Hashable] = {
        call.id: question_index for question_index, sampled in enumerate(questions) for call in sampled.calls
    }
    # Add the logged agreements, and check that there is something to learn.
    if logged_pairs:
        reading_note = "; ".join(filter(None, (reading_note, f"{len(logged_pairs)} answers came with their agreement")))
    for call_id, same_again in sorted(logged_pairs):
        call_ids.append(call_id)
        labels.append(same_again)
        question_of[call_id] = call_id
    label_array = np.array(labels, dtype=np.int64)
    question_count = len(questions) + len(logged_pairs)
    label_of_question = list(zip((question_of[call_id] for call_id in call_ids), labels, strict=True))
    agreeing, differing = (
        len({question for question, sampled in label_of_question if sampled == kind}) for kind in (1, 0)
    )
    _check_both_kinds(agreeing, differing, question_count, reading_note)
    return AgreementPairs(tuple(call_ids), label_array, question_count, cut, alone, reading_note)


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


def _way_to_more(runs: Sequence[Run], *, stage: str | None, agent: str | None) -> str:
    """Returns what to do where too few questions have two answers that ended by themselves."""
    answers = [
        call
        for run in runs
        for call in run.calls
        if stage in (None, call.stage) and agent in (None, call.agent) and answers_in_words(call) and call.text.strip()
    ]
    if unstated_count := sum(not call.finish_reason for call in answers):
        return (
            f'{unstated_count} of {len(answers)} answers do not say how they ended: add "finish_reason" beside '
            '"answer", or in the choice of a whole response ("stop", or "length" where a limit cut the answer)'
        )
    if differing_count := _asked_otherwise(runs, stage=stage, agent=agent):
        return (
            f"{differing_count} more have two answers, to messages that differ (a time or an id in the prompt?): give "
            "all answers to a question the same messages"
        )
    return "ask more questions, each of them twice (lines share a question_id)"


def _asked_otherwise(runs: Sequence[Run], *, stage: str | None, agent: str | None) -> int:
    """Returns how many questions have several answers that ended, and no two of them to the same messages."""
    runs_without_messages = [
        replace(run, calls=tuple(replace(call, messages=()) for call in run.calls)) for run in runs
    ]
    with_equal_messages, with_any_messages = (
        {
            (
                question.item.task,
                question.item.id,
                question.calls[0].model,
                question.calls[0].stage,
                question.calls[0].agent,
            )
            for question in questions
        }
        for questions, _, _ in (
            sampled_questions(compared_runs, stage=stage, agent=agent)
            for compared_runs in (runs, runs_without_messages)
        )
    )
    return len(with_any_messages - with_equal_messages)


def sampled_questions(
    runs: Sequence[Run], *, stage: str | None = None, agent: str | None = None
) -> tuple[list[SampledQuestion], int, int]:
    """Returns the questions with at least two answers that ended by themselves, and how many answers are left out.

    There are two counts of answers left out: those that did not end by themselves, and those without another answer to
    their question. Refusals and tool calls are no answers.
    """
    calls_by_question: dict[Hashable, list[tuple[Run, Call]]] = {}
    cut_count = 0
    for run in runs:
        for call in run.calls:
            if stage not in (None, call.stage) or agent not in (None, call.agent) or not answers_in_words(call):
                continue
            if call.finish_reason != STOP or not call.text.strip():
                cut_count += 1
                continue
            question_key = (run.item.task, run.item.id, call.model, call.stage, call.agent, call.messages)
            calls_by_question.setdefault(question_key, []).append((run, call))
    questions = [
        SampledQuestion(
            members[0][0].item,
            tuple(call for _, call in members),
            tuple(read_of_run(run, call) for run, call in members),
        )
        for members in calls_by_question.values()
        if len(members) > 1
    ]
    return questions, cut_count, sum(len(members) == 1 for members in calls_by_question.values())


def given_agreements(
    runs: Sequence[Run], *, stage: str | None = None, agent: str | None = None
) -> set[tuple[str, int]]:
    """Returns (call id, 1 or 0) for each answer with logged agreement, as of a server that asks a question again.

    Such an answer has a label `agreement` of the source `samples`. Labels of other sources are not read.
    """
    return {
        (call.id, int(label.value >= 0.5))
        for run in runs
        for call in run.calls
        if stage in (None, call.stage) and agent in (None, call.agent) and call.finish_reason == STOP
        for label in run.labels
        if label.call_id == call.id and label.name == AGREEMENT and label.source == SAMPLES
    }


def with_agreement_labels(runs: Sequence[Run], pairs: AgreementPairs) -> list[Run]:
    """Returns the runs with a label `agreement` for each answer that has a pair, so that only these get table rows.

    The label's value is a placeholder. The real values are filled in later, one for each pair of the answer.
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


def _classes(question: SampledQuestion, same: str) -> list[int]:
    """Returns the class of each answer by the reading `same`; `UNREADABLE_CLASS` if no answer can be read in it."""
    item = question.item if same == question.item.check else item_of(question.item.question, same)
    return classes_by(same, [comparable_form(answer, item, same)[0] for answer in question.answers])


def _reading_of(questions: Sequence[SampledQuestion], given_same: str | None) -> tuple[str, str]:
    """Returns the reading by which answers to items without a check are compared, and a sentence on how all answers are
    compared.

    `given_same`: the reading that the caller gave for all answers, if any. Raises `RecordError` for an unknown reading.
    """
    if given_same is not None:
        if given_same not in READINGS:
            raise RecordError(f"same is {given_same!r}; expected one of {', '.join(READINGS)}")
        return given_same, f"Answers are the same by {given_same}, as was asked for"
    unchecked = [question for question in questions if question.item.check not in COMPARABLE_CHECKS]
    checks = sorted({question.item.check for question in questions if question.item.check in COMPARABLE_CHECKS})
    notes = [f"Answers are the same by the items' checks ({', '.join(checks)})"] if checks else []
    same = EXACT
    if unchecked:
        unlabelled = [
            LabelledQuestion(q.item.question, q.item.id, q.answers, [None] * len(q.answers)) for q in unchecked
        ]
        same, why = own_form(unlabelled)
        if same == EXACT and (numbers := _numbers_in_sentences(unchecked)):
            same, why = NUMBER, numbers
        notes.append(f"Answers are the same by {same}: {why}")
        notes += _other_readings(unchecked, same)
    return same, "; ".join(notes)


def _numbers_in_sentences(questions: Sequence[SampledQuestion]) -> str:
    """Returns in words that most answers give one number, alone or in a sentence; empty where they do not."""
    gives_number = [
        _gives_number(answer, question.item.question)
        for question in questions
        for answer in question.answers
        if not answer.calls
    ]
    if sum(gives_number) <= FORM_SHARE * len(gives_number):
        return ""
    return f"{sum(gives_number)} of {len(gives_number)} answers give one number, alone or in a sentence"


def _gives_number(answer: PanelAnswer, question: str) -> bool:
    """Returns whether the answer is a number, or a short sentence that gives one.

    A sentence with a name that the question lacks, such as "Marie Curie, in 1898", mentions a number and is a text.
    """
    if own_check(answer, question) == NUMBER:
        return True
    final = final_answer(item_of(question, NUMBER), answer.text)
    words = _WORD.findall(final)
    other_names = [word for word in words[1:] if len(word) > 1 and word[0].isupper() and word not in question]
    if len(words) > MAX_WORDS_BESIDE_NUMBER or other_names or not any(sign.isdigit() for sign in final):
        return False
    return read_number(question, final) is not None


def _other_readings(questions: Sequence[SampledQuestion], same: str) -> list[str]:
    """Returns a warning in words where another reading finds far more pairs of equal answers; else an empty list.

    A reading with which answers differ on too few questions is not named, because nothing could be learned with it.
    """
    sampled = questions[:: max(1, -(-len(questions) // MAX_QUESTIONS_READ_OTHERWISE))]
    classes_by_reading = {other: [_classes(question, other) for question in sampled] for other in READINGS}
    shares = {
        other: _equal_share(classes)
        for other, classes in classes_by_reading.items()
        if other == same
        or sum(len(set(question_classes)) > 1 for question_classes in classes) >= MIN_QUESTIONS_OF_A_KIND
    }
    best = max(shares, key=shares.__getitem__)
    if shares[best] - shares[same] <= FAR_MORE_SHARE:
        return []
    return [
        f"WARNING: by {best} {shares[best]:.0%} of the pairs would say the same, by {same} {shares[same]:.0%}: read "
        f"some answers, and give the reading that suits them (`--same {best}`)"
    ]


def _equal_share(classes: Sequence[Sequence[int]]) -> float:
    """Returns the share of the pairs of answers to one question that are of one class."""
    equal = pairs = 0
    for classes_of_question in classes:
        pairs += len(classes_of_question) * (len(classes_of_question) - 1) // 2
        compared = [number for number in classes_of_question if number != UNREADABLE_CLASS]
        equal += sum(compared.count(number) * (compared.count(number) - 1) // 2 for number in set(compared))
    return equal / max(1, pairs)
