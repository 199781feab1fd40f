"""Chooses when two answers are the same: each reading is tried on labelled answers, the plain vote by each beside it.

The reading that most answers have by their own form (a number, the letter of an option, code, or words) is left only
where the plain vote by another one is better by a whole interval. A reading that calls answers with different labels
equal, more often than the labels' own noise allows, is not taken.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprobe.checkpoints.rendered_table import format_interval
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval
from metaprobe.records.correctness import final_answer, function_code
from metaprobe.records.types import Item
from metaprobe.routing.panel.compared_answers import (
    CHOICE,
    COMPARABLE_CHECKS,
    EXACT,
    FUNCTION,
    NUMBER,
    OVERLAP,
    PanelAnswer,
    comparable_form,
    number_classes,
    overlapping,
    own_check,
)
from metaprobe.routing.panel.model_rows import UNREADABLE_CLASS, Floats, Ints

READINGS = (EXACT, NUMBER, CHOICE, FUNCTION, OVERLAP)
"""Readings that are tried. If several do equally well, the first of them is taken."""
MAX_UNEQUAL = 0.02
"""Share of pairs of equal answers with different labels that is always allowed. By the words that the question lacks it
was at most 0.001 on six recorded stores of samples, by half of the words from 0.03 to 0.17."""
MIN_NOISE_QUESTIONS = 30
"""Fewest questions with two answers that are equal letter for letter, for measuring the labels' noise by them."""
MIN_GROUPS_TO_TRY = 100
"""Fewest groups for trying readings. With fewer, a difference between two readings is mostly chance."""
MAX_QUESTIONS_TRIED = 1000
"""Most questions on which readings are tried, evenly spread over the data. More questions would not change the choice.
"""
MAX_TEXT_TRIED = 5_000_000
"""Most characters of answers on which readings are tried. They take some seconds, at 1.5 us a character for all
readings.
"""
TRIAL_FOLDS = 4
"""Number of folds by group. The reading is chosen on all folds but one, and measured on that one."""
FORM_SHARE = 0.5
"""Least share of the answers that must have a form, such as a number, for this form to be their reading."""
AnswerReading = Callable[[PanelAnswer, str], Hashable]
"""Function from an answer and its question to a form in which equal answers are equal; None for no answer."""
AUDIT = "equal answers have equal labels"
"""Name of the audit of how a panel tells equal answers."""


@dataclass(frozen=True, slots=True)
class LabelledQuestion:
    """One question, with labelled answers."""

    question: str
    group: str
    """Name of the unit that must stay in one split."""
    answers: Sequence[PanelAnswer]
    labels: Sequence[float | None]
    """Whether each answer is right, 0 or 1; None where that is not known."""


@dataclass(frozen=True, slots=True)
class TriedReading:
    """Results of one reading on labelled answers."""

    same: str
    accuracy: Interval
    """Accuracy of the majority vote with this reading."""
    unequal: Interval | None
    """Share of the pairs of equal answers whose labels differ; None if no two answers are equal."""
    sound: bool
    """Whether that share is within what is allowed."""


@dataclass(frozen=True, slots=True)
class ChosenReading:
    """The reading that a panel takes, and why."""

    same: str
    why: str
    """Reason for the choice: one line for the card, the manifest and the terminal."""
    tried: tuple[TriedReading, ...] = ()

    def to_contract(self) -> dict[str, Any]:
        """Returns the choice as a checkpoint's contract holds it."""
        tried = {
            reading.same: {
                "vote": [reading.accuracy.estimate, reading.accuracy.low, reading.accuracy.high],
                "unequal": None
                if reading.unequal is None
                else [reading.unequal.estimate, reading.unequal.low, reading.unequal.high],
            }
            for reading in self.tried
        }
        return {"same_chosen": self.why, "same_tried": tried}


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """Holds the figures of one reading on n questions."""

    vote: Floats
    """Probability (n,) that the majority vote keeps a right answer."""
    unequal: Floats
    """Share (n,) of the pairs of equal answers whose labels differ; NaN if no two labelled answers are equal."""


def item_of(question: str, same: str) -> Item:
    """Returns a question without a check of its own, as its answers are compared by `same`."""
    return Item("", question, check=same if same in COMPARABLE_CHECKS else "none")  # type: ignore[arg-type]


def literal_form(answer: PanelAnswer) -> Hashable:
    """Returns the answer letter for letter: its tool calls, its whole text if it is code, or else its final answer."""
    if answer.calls:
        return answer.calls
    if "```" in answer.text or function_code(answer.text) is not None:
        return answer.text.strip()
    return final_answer(item_of("", EXACT), answer.text).strip() or answer.text.strip()


def classes_by(same: str, forms: Sequence[Hashable | None]) -> list[int]:
    """Returns the class of each answer's form by a reading, from 0; `UNREADABLE_CLASS` for None."""
    return overlapping(forms) if same == OVERLAP else number_classes(forms)


def unequal_pairs(form: Ints, right: Floats) -> Floats:
    """Returns for each question (n,) the share of pairs of equal answers whose labels differ; NaN without a pair.

    `form` (n, K): class of each answer, `UNREADABLE_CLASS` for those that count against all. `right` (n, K): 0, 1 or
    NaN.
    """
    is_labelled = (form != UNREADABLE_CLASS) & np.isfinite(right)
    c = max(int(form.max(initial=UNREADABLE_CLASS)) + 1, 1)
    member = (form[:, None, :] == np.arange(c)[:, None]) & is_labelled[:, None, :]  # (n, c, K)
    count, good = member.sum(axis=2), (member * np.nan_to_num(right)[:, None, :]).sum(axis=2)
    pairs, mixed = (count * (count - 1) / 2).sum(axis=1), (good * (count - good)).sum(axis=1)
    return np.asarray(np.divide(mixed, pairs, out=np.full(len(form), np.nan), where=pairs > 0))


def noise_of_equal_answers(literal: Ints, right: Floats, groups: Sequence[str]) -> float:
    """Returns the share of unequal pairs that is allowed: `MAX_UNEQUAL`, or the upper end of the labels' own noise.

    The noise is measured on answers that are equal letter for letter and have different labels.
    """
    share = unequal_pairs(literal, right)
    rows = np.flatnonzero(np.isfinite(share))
    if len(rows) < MIN_NOISE_QUESTIONS:
        return MAX_UNEQUAL
    return max(MAX_UNEQUAL, _mean(share, rows, groups).high)


def unequal_labels(form: Ints, right: Floats, groups: Sequence[str]) -> Interval | None:
    """Returns the mean share of unequal pairs with its interval; None if no two answers are equal."""
    share = unequal_pairs(form, right)
    rows = np.flatnonzero(np.isfinite(share))
    return _mean(share, rows, groups) if len(rows) else None


def equality_audit(form: Ints, literal: Ints, right: Floats, groups: Sequence[str]) -> tuple[str, bool, str] | None:
    """Returns the audit of a reading: whether equal answers have equal labels, beyond what the labels' noise allows.

    None if no two answers to a question are equal.
    """
    unequal, allowed = unequal_labels(form, right, groups), noise_of_equal_answers(literal, right, groups)
    if unequal is None:
        return None
    passed = unequal.low <= allowed
    detail = f"labels differ in {format_interval(unequal, 4)} of the pairs of equal answers; {allowed:.4f} is allowed"
    if unequal.estimate > 0:
        detail += "; the majority of the labels counts"
    if not passed:
        detail += ". Give another reading (--same), or mend the labels"
    return AUDIT, passed, detail


def choose_reading(
    questions: Sequence[LabelledQuestion], *, readings: Mapping[str, AnswerReading] | None = None
) -> ChosenReading:
    """Returns the reading by which a panel of these questions compares answers. The same questions give the same one.

    Args:
        questions: labelled answers, as the panel will learn from them.
        readings: the readings to try by name, in place of `READINGS`.
    """
    characters = sum(len(answer.text) for each in questions for answer in each.answers)
    step = max(1, -(-len(questions) // MAX_QUESTIONS_TRIED), -(-characters // MAX_TEXT_TRIED))
    taken = [each for each in questions[::step] if sum(label is not None for label in each.labels) > 1]
    if not taken or not any(answer.text.strip() and not answer.cut for each in taken for answer in each.answers):
        return ChosenReading(EXACT, f"answers are the same by {EXACT}: there are no texts to try readings on")
    forms = readings or {same: _reading(same) for same in READINGS}
    right, groups = _labels(taken), [each.group for each in taken]
    literal = _classes(taken, lambda answer, _: literal_form(answer), EXACT)
    own_reading, whose = own_form(taken)
    form: dict[str, Ints] = {}
    for same in sorted(forms, key=lambda name: name != own_reading):  # the answers' own form first
        classes = _classes(taken, forms[same], same)
        if not any(np.array_equal(classes, other) for other in form.values()):
            form[same] = classes
    trials = {same: _Trial(_vote(each, right), unequal_pairs(each, right)) for same, each in form.items()}
    allowed = noise_of_equal_answers(literal, right, groups)
    own_reading = own_reading if own_reading in trials else next(iter(trials))
    rows, many = np.arange(len(taken)), len(set(groups)) >= MIN_GROUPS_TO_TRY
    same = _chosen(trials, rows, groups, own_reading, allowed, many=many)
    tried = []
    for name, each in trials.items():
        with_pairs = np.flatnonzero(np.isfinite(each.unequal))
        unequal = _mean(each.unequal, with_pairs, groups) if len(with_pairs) else None
        sound = unequal is None or unequal.low <= allowed
        tried.append(TriedReading(name, _mean(each.vote, rows, groups), unequal, sound))
    votes = ", ".join(f"{each.same} {each.accuracy.estimate:.3f}" for each in tried)
    unsound = [each.same for each in tried if not each.sound]
    why = f"answers are the same by {same}: {whose}"
    if same != own_reading:
        why += f", but by {own_reading} " + (
            "equal answers have different labels" if own_reading in unsound else "the vote is behind"
        )
    if not many:
        why += f"; {len(set(groups))} groups are too few to try others ({MIN_GROUPS_TO_TRY} are needed)"
    why += f"; accuracy of the plain vote by {votes}"
    if many:
        crossed = _crossed(trials, groups, own_reading, allowed)
        why += f"; chosen on other groups it has {crossed.estimate:.3f}"
    if unsound:
        why += f"; equal answers have different labels by {', '.join(unsound)}"
    return ChosenReading(same, why, tuple(tried))


def own_form(questions: Sequence[LabelledQuestion]) -> tuple[str, str]:
    """Returns the form that most answers have by themselves (number, letter or code), and the reason in words.

    The form is `EXACT` if no form is that of more than `FORM_SHARE` of the answers.
    """
    counts = dict.fromkeys((NUMBER, CHOICE, FUNCTION), 0)
    total = 0
    for question in questions:
        for answer in question.answers:
            if answer.cut or answer.calls or not answer.text.strip():
                continue
            total += 1
            if (check := own_check(answer, question.question)) in counts:
                counts[check] += 1
    best = max(counts, key=counts.__getitem__)
    what = {NUMBER: "a number and nothing else", CHOICE: "one letter", FUNCTION: "code"}
    if counts[best] > FORM_SHARE * total:
        return best, f"{counts[best]} of {total} answers are {what[best]}"
    return EXACT, f"most of {total} answers are neither a number, nor a letter, nor code"


def _reading(same: str) -> AnswerReading:
    return lambda answer, question: comparable_form(answer, item_of(question, same), same)[0]


def _classes(questions: Sequence[LabelledQuestion], reading: AnswerReading, same: str) -> Ints:
    """Returns the class of each answer (n, K) by a reading."""
    K = max(len(question.answers) for question in questions)
    form = np.full((len(questions), K), UNREADABLE_CLASS)
    for row, question in enumerate(questions):
        forms = [None if answer.cut else reading(answer, question.question) for answer in question.answers]
        form[row, : len(forms)] = classes_by(same, forms)
    return form


def _labels(questions: Sequence[LabelledQuestion]) -> Floats:
    """Returns whether each answer is right (n, K), NaN where that is not known."""
    right = np.full((len(questions), max(len(question.answers) for question in questions)), np.nan)
    for row, question in enumerate(questions):
        right[row, : len(question.labels)] = [np.nan if label is None else label > 0.5 for label in question.labels]
    return right


def _vote(form: Ints, right: Floats) -> Floats:
    """Returns the chance (n,) that the plain vote keeps a right answer: the mean label of the largest class.

    Among classes of one size any may be kept. 0 where no answer can be read. An answer without a label votes, and the
    labels of its class tell whether it is right.
    """
    c = max(int(form.max(initial=UNREADABLE_CLASS)) + 1, 1)
    member = form[:, None, :] == np.arange(c)[:, None]  # (n, c, K)
    count, labelled_count = member.sum(axis=2), (member & np.isfinite(right)[:, None, :]).sum(axis=2)
    good = (member * np.nan_to_num(right)[:, None, :]).sum(axis=2) / np.maximum(labelled_count, 1)
    top = (count == count.max(axis=1, keepdims=True)) & (count > 0)
    return np.asarray((good * top).sum(axis=1) / np.maximum(top.sum(axis=1), 1))


def _mean(values: Floats, rows: Ints, groups: Sequence[str]) -> Interval:
    return mean_interval(values[rows], cluster_weights([groups[row] for row in rows], 400))


def _chosen(
    trials: Mapping[str, _Trial], rows: Ints, groups: Sequence[str], own_reading: str, allowed: float, *, many: bool
) -> str:
    """Returns the reading that these rows speak for: the answers' own form, unless another is ahead of it.

    Args:
        own_reading: the reading that most answers have by their own form.
        allowed: share of pairs of equal answers whose labels may differ.
        many: whether there are enough groups to leave it for one whose vote is better.
    """
    least: dict[str, float] = {}
    for same, trial in trials.items():
        rows_with_pairs = rows[np.isfinite(trial.unequal[rows])]
        least[same] = _mean(trial.unequal, rows_with_pairs, groups).low if len(rows_with_pairs) else 0.0
    sound = [same for same in trials if least[same] <= allowed]
    if not sound:
        return min(trials, key=least.__getitem__)
    start = own_reading if own_reading in sound else EXACT if EXACT in sound else sound[0]
    best = max(sound, key=lambda same: float(trials[same].vote[rows].mean()))
    if not many or best == start:
        return start
    return best if _mean(trials[best].vote - trials[start].vote, rows, groups).low > 0 else start


def _crossed(trials: Mapping[str, _Trial], groups: Sequence[str], own_reading: str, allowed: float) -> Interval:
    """Returns the accuracy of the vote by the reading that is chosen on the other groups, on each fold's groups."""
    names = sorted(set(groups))
    fold_of = {name: place % TRIAL_FOLDS for place, name in enumerate(names)}
    fold = np.array([fold_of[group] for group in groups])
    vote = np.zeros(len(groups))
    for number in range(TRIAL_FOLDS):
        here = fold == number
        same = _chosen(trials, np.flatnonzero(~here), groups, own_reading, allowed, many=True)
        vote[here] = trials[same].vote[here]
    return _mean(vote, np.arange(len(groups)), groups)
