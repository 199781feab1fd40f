"""Answers of decision APIs as signals: each question's number and the probability of each option, with its source.

A predictor that was trained on these numbers (`metaprobe train quality --reads decisions`) reads them here.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch
from metaprobe.probes.quality import FEATURES_INPUT, AnswerInputs, QualityPredictor
from metaprobe.probes.signals import Signal
from metaprobe.records.decision_questions import DecisionQuestion
from metaprobe.records.errors import InvalidResponse
from metaprobe.records.response import ParsedText
from metaprobe.records.types import DecisionAnswer

ENTROPY, MARGIN = COMPUTED_SUFFIXES = (".entropy", ".margin")
"""Suffixes of columns that are computed from the other columns."""


@dataclass(frozen=True, slots=True)
class DecisionSignals:
    """The signals of the decisions about one response, and why others are missing."""

    signals: Mapping[str, Signal]
    """`QUESTION` for a predicate's probability or a score's expected level, counted from 0; `QUESTION=OPTION` for the
    probability of an option or level. The source is the model that answered."""
    reasons: Mapping[str, str]
    """Maps a question to the reason why one of its numbers is missing, such as a refusal. Questions with all numbers
    are left out.
    """

    def value(self, name: str) -> float | None:
        """Returns the number under this name; None if it is not known."""
        signal = self.signals.get(name)
        return None if signal is None else signal.value


def decision_signals(answers: Iterable[DecisionAnswer]) -> DecisionSignals:
    """Returns the signals of the answers about one response. A refusal is no signal but a reason.

    If several judges answered one question, the last answer counts. To choose a judge, filter by
    `DecisionAnswer.source` before.

    An example:

        >>> answer = DecisionAnswer(call_id="1", question="right", source="luna", kind="predicate", value=0.8)
        >>> decision_signals([answer]).value("right"), decision_signals([answer]).value("wrong")
        (0.8, None)
    """
    signals: dict[str, Signal] = {}
    reasons: dict[str, str] = {}
    for answer in {answer.question: answer for answer in answers}.values():
        if answer.value is not None:
            signals[answer.question] = Signal(answer.value, answer.source)
        for option, probability in zip(answer.options, answer.probabilities, strict=True):
            if probability is not None:
                signals[f"{answer.question}={option}"] = Signal(probability, answer.source)
        if answer.reason:
            reasons[answer.question] = answer.reason
    return DecisionSignals(signals, reasons)


def decision_columns(
    decisions: Sequence[Mapping[str, float | None]],
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """Returns the names (d,) and values (n, d) of the decisions about n responses; NaN where a number is not known.

    Each response has a mapping as signals of decisions are named: `QUESTION` for a probability or an expected level,
    and `QUESTION=OPTION` for the probability of an option. `QUESTION.entropy` (nats) and `QUESTION.margin`, the
    likeliest option's probability minus the next one's, are added where every option is known, for a predicate too.

        >>> names, values = decision_columns([{"right": 0.8}, {"right": None}])
        >>> names, [f"{value:.1f}" for value in values[0]]
        (('right', 'right.entropy', 'right.margin'), ['0.8', '0.5', '0.6'])
    """
    column_names = sorted({name for row in decisions for name in row})
    options: dict[str, list[str]] = {}
    for name in column_names:
        question, separator, _ = name.partition("=")
        options.setdefault(question, []).extend([name] if separator else [])
    values = np.array([[row.get(name) for name in column_names] for row in decisions], dtype=np.float64)  # None is NaN
    columns = {name: values[:, index] for index, name in enumerate(column_names)}
    for question, option_names in options.items():
        option_columns = [columns[name] for name in option_names]
        if question in columns and is_predicate(question, column_names, columns[question]):
            option_columns = [columns[question], 1 - columns[question]]
        if len(option_columns) > 1:
            shares = np.sort(np.stack(option_columns, axis=1), axis=1)
            columns[f"{question}{ENTROPY}"] = -(shares * np.log(np.maximum(shares, 1e-12))).sum(axis=1)
            columns[f"{question}{MARGIN}"] = shares[:, -1] - shares[:, -2]
    names = tuple(sorted(columns))
    ordered_columns = [columns[name] for name in names]
    return names, np.array(ordered_columns, dtype=np.float32).reshape(len(names), len(decisions)).T


def is_predicate(question: str, names: Iterable[str], column: NDArray[np.float64]) -> bool:
    """Returns whether the column of a question holds the probability of a predicate. A score has its levels in `names`.

    Args:
        question: name of the question.
        names: names of all columns.
        column: values (n,) of the question's column; NaN where unknown.
    """
    finite_values = column[np.isfinite(column)]
    if not len(finite_values) or any(name.startswith(f"{question}=") for name in names):
        return False
    return bool(((finite_values >= 0) & (finite_values <= 1)).all())


JUDGES = "judges"
"""Key of the contract with the models whose decisions were learned from."""


@dataclass(frozen=True, slots=True)
class DecidedAnswer(ParsedText):
    """An answer that is known only by a decision about it."""

    decision: tuple[DecisionAnswer, ...] = ()


class DecisionPredictor(QualityPredictor):
    """Scores answers by what a decision model said of them.

    `predict` takes a `Decision` of openai-python, the same as a dictionary or JSON text, or the `DecisionAnswer`s about
    one answer, as `Run.decisions_about` gives them. A decision without a number that the checkpoint reads is refused,
    and the question is named.
    """

    input_kind = "decisions"

    def __init__(self, checkpoint: Checkpoint, **options: Any) -> None:
        """Takes what `QualityPredictor` takes. `on_mismatch` is about the model that decided."""
        super().__init__(checkpoint, **options)
        self.judges = tuple(map(str, checkpoint.manifest.contract.get(JUDGES, ())))
        # A recorded judge is MODEL@REVISION. A new decision names the model or the revision.
        self._judge_names = {name for judge in self.judges for name in (judge, *judge.split("@", 1))} - {"", "unknown"}

    def parse(self, response: object) -> DecidedAnswer:
        """Returns the decision about an answer in the form that is scored. Raises `InvalidResponse` as `answers_in`."""
        return DecidedAnswer("", decision=tuple(self.answers_in(response)))

    @staticmethod
    def answers_in(decision: object) -> list[DecisionAnswer]:
        """Returns the answers in a decision of any form that `predict` takes. Raises `InvalidResponse` for anything
        else, and for decisions about several answers.
        """
        if isinstance(decision, DecidedAnswer):
            return list(decision.decision)
        if isinstance(decision, (list, tuple)) and all(isinstance(member, DecisionAnswer) for member in decision):
            answers: list[DecisionAnswer] = list(decision)
            if len({answer.call_id for answer in answers}) > 1:
                raise InvalidResponse("these decisions are about several answers; expected those about one")
            return answers
        return list(DecisionQuestion.read_answers(decision, ""))

    def _read_response(self, response: object) -> AnswerInputs:
        answers = self.answers_in(response)
        answers = [answer for answer in answers if answer.source in self._judge_names] or answers
        decision = decision_signals(answers)
        names, values = decision_columns([{name: signal.value for name, signal in decision.signals.items()}])
        row = dict(zip(names, values[0].tolist(), strict=True))
        if missing_columns := [name for name in self.schema.names if not np.isfinite(row.get(name, np.nan))]:
            missing_questions = dict.fromkeys(question_of(name) for name in missing_columns)
            reasons = "; ".join(
                decision.reasons[question] for question in missing_questions if question in decision.reasons
            )
            raise InvalidResponse(
                f"the decision lacks {', '.join(missing_questions)}{f' ({reasons})' if reasons else ''}, which this "
                f"predictor reads; expected {', '.join(self.schema.names)}: ask the judge all its questions again"
            )
        inputs = np.array([[row[name] for name in self.schema.names]], dtype=np.float32)
        return AnswerInputs(
            np.empty(0, np.float32), None, None, self._other_judge_note(answers), {FEATURES_INPUT: inputs}
        )

    def _other_judge_note(self, answers: Sequence[DecisionAnswer]) -> str:
        """Returns a note if a decision is of a model that the checkpoint did not learn from. Raises or warns as
        `on_mismatch` says.
        """
        other_sources = sorted({answer.source for answer in answers} - {"", *self._judge_names})
        if not other_sources or not self.judges or self._on_mismatch == "ignore":
            return ""
        other_names = ", ".join(map(repr, other_sources))
        note = f"decisions of {other_names}, checkpoint trained on those of {', '.join(self.judges)}"
        if self._on_mismatch == "refuse":
            raise ContractMismatch(f"{note}: train a checkpoint on such decisions, or take on_mismatch 'warn'")
        if self._on_mismatch == "warn":
            warnings.warn(f"metaprobe: {note}; the score may mean nothing", stacklevel=5)
        return note

    def _inputs(self, answer: AnswerInputs) -> dict[str, NDArray[np.float32]]:
        return dict(answer.inputs)

    def _inputs_of(self, answers: Sequence[AnswerInputs]) -> dict[str, NDArray[np.float32]]:
        return {FEATURES_INPUT: np.concatenate([answer.inputs[FEATURES_INPUT] for answer in answers])}


def question_of(column: str) -> str:
    """Returns the name of the question that a column of `decision_columns` is about."""
    return next(
        (column.removesuffix(end) for end in COMPUTED_SUFFIXES if column.endswith(end)), column.partition("=")[0]
    )
