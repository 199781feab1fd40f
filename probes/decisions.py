"""Answers of decision APIs as signals: each question's number and the probability of each option, with its source."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metaprobe.probes.signals import Signal
from metaprobe.records.types import DecisionAnswer


@dataclass(frozen=True, slots=True)
class DecisionSignals:
    """The signals of the decisions about one response, and why others are missing."""

    signals: Mapping[str, Signal]
    """`QUESTION` for a predicate's probability or a score's expected level, counted from 0; `QUESTION=OPTION` for the
    probability of an option or level. The source is the model that answered."""
    reasons: Mapping[str, str]
    """Question -> why a number of it is missing, as for a refusal; a question that lacks nothing is not there."""

    def value(self, name: str) -> float | None:
        """Returns the number under this name; None where it is not known."""
        signal = self.signals.get(name)
        return None if signal is None else signal.value


def decision_signals(answers: Iterable[DecisionAnswer]) -> DecisionSignals:
    """Returns the signals of the answers about one response. A refusal is no signal but a reason.

    Where several judges answered one question, the last one counts; choose by `DecisionAnswer.source` before.

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
