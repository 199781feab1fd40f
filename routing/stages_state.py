"""What the learned stage policy reads of a state: one row an answer, made alike at run time and from recorded runs."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.signals import Signals
from metaprobe.records.types import Call
from metaprobe.routing.policy import State

QUESTION = ""
"""Key of `State.features` for what is measured of the question itself."""
COLUMNS = (
    "mean_logprob",
    "min_logprob",
    "last_logprob",
    "log_tokens",
    "cut",
    "answered",
    "agreeing",
    "quality",
    "quality_change",
    "difficulty",
    "log_question",
    "round",
)
"""`last_logprob`: mean of the last quarter of the tokens (at least 1). `log_tokens`: log(1 + tokens), as `log_question`
of the question's characters. `cut`: max_tokens ended the answer. `answered`: an answer can be read from it. `agreeing`:
share of the other answers that are the same. `quality_change`: against the answer before. `round`: cycles before it."""
READS = {
    "iterate": COLUMNS,
    "select": COLUMNS,
    "regulate": tuple(name for name in COLUMNS if name not in ("agreeing", "quality_change", "round")),
    "budget": ("difficulty", "log_question", "round"),
}
"""Point -> the columns that its heads read."""


def measured(question: str, calls: Sequence[Call] = (), answers: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """`State.features` of answers in the order in which they were given, and of the question.

    `answers`: what each call answers, in a form in which equal answers are equal; "" where none can be read.
    """
    found = {QUESTION: {"log_question": math.log1p(len(question))}}
    for place, (call, answer) in enumerate(zip(calls, answers, strict=True)):
        features = {"cut": float(call.finish_reason == "length"), "answered": float(bool(answer))}
        if call.logprobs is not None and len(call.logprobs):
            last = np.asarray(call.logprobs[-max(1, len(call.logprobs) // 4) :], dtype=np.float64)
            features["last_logprob"] = float(last.mean())
        others = [other for at, other in enumerate(answers) if at != place]
        if others:
            features["agreeing"] = sum(bool(answer) and other == answer for other in others) / len(others)
        found[str(place)] = features
    return found


def answer_rows(state: State) -> NDArray[np.float32]:
    """(k, len(COLUMNS)): a row a candidate, in their order; else one for the answer of `signals`. NaN: not known."""
    known = state.candidates or {"0": state.signals}
    first = 0 if state.candidates else state.round
    question = state.features.get(QUESTION, {})
    rows = []
    before: float | None = None
    for place, (name, signals) in enumerate(known.items()):
        rows.append(_row(signals, {**question, **state.features.get(name, {})}, before, first + place))
        before = signals.value("quality")
    return np.array(rows, dtype=np.float32)


def _row(signals: Signals, features: Mapping[str, float], before: float | None, number: int) -> list[float]:
    named = {name: signals.value(name) for name in ("mean_logprob", "min_logprob", "quality", "difficulty")}
    tokens, quality = signals.value("tokens"), named["quality"]
    derived = {
        "log_tokens": None if tokens is None else math.log1p(tokens),
        "quality_change": None if quality is None or before is None else quality - before,
        "round": float(number),
    }
    values: dict[str, float | None] = {**features, **named, **derived}
    found = [values.get(name) for name in COLUMNS]
    return [math.nan if value is None else value for value in found]
