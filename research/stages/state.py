"""What the learned stage policy reads of a state: one row an answer, made alike at run time and from recorded runs."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.signals import Signals
from metaprobe.routing.measured import QUESTION
from metaprobe.routing.policy import State

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
