"""Answers of decision APIs as signals: each question's number and the probability of each option, with its source."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.signals import Signal
from metaprobe.records.types import DecisionAnswer

ENTROPY, MARGIN = MADE = (".entropy", ".margin")
"""Ends of the names of columns that are made of the others."""


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


def decision_columns(
    decided: Sequence[Mapping[str, float | None]],
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """Returns the names (d,) and values (n, d) of the decisions about n responses; NaN where a number is not known.

    Each response has a mapping as signals of decisions are named: `QUESTION` for a probability or an expected level,
    and `QUESTION=OPTION` for the probability of an option. `QUESTION.entropy` (nats) and `QUESTION.margin`, the
    likeliest option's probability minus the next one's, are added where every option is known, for a predicate too.

        >>> names, values = decision_columns([{"right": 0.8}, {"right": None}])
        >>> names, [f"{value:.1f}" for value in values[0]]
        (('right', 'right.entropy', 'right.margin'), ['0.8', '0.5', '0.6'])
    """
    given = sorted({name for row in decided for name in row})
    options: dict[str, list[str]] = {}
    for name in given:
        question, mark, _ = name.partition("=")
        options.setdefault(question, []).extend([name] if mark else [])
    values = np.array([[_number(row.get(name)) for name in given] for row in decided], dtype=np.float64)
    columns = {name: values[:, place] for place, name in enumerate(given)}
    for question, held in options.items():
        known = [columns[name] for name in held]
        if not known and question in columns and _probabilities(columns[question]):
            known = [columns[question], 1 - columns[question]]
        if len(known) > 1:
            shares = np.sort(np.stack(known, axis=1), axis=1)
            columns[f"{question}{ENTROPY}"] = -(shares * np.log(np.maximum(shares, 1e-12))).sum(axis=1)
            columns[f"{question}{MARGIN}"] = shares[:, -1] - shares[:, -2]
    names = tuple(sorted(columns))
    made = [columns[name] for name in names]
    return names, np.array(made, dtype=np.float32).reshape(len(names), len(decided)).T


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _probabilities(column: NDArray[np.float64]) -> bool:
    """Whether a column without options is a predicate's: a score has its levels beside it."""
    known = column[np.isfinite(column)]
    return bool(len(known)) and bool(((known >= 0) & (known <= 1)).all())
