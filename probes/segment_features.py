"""Features of the thinking before an answer, and of how the answer differs from it; used by `full+segments`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.errors import InvalidResponse
from metaprobe.records.types import FloatArray

BESIDE = 10
"""Tokens on each side of the boundary that are compared; fewer where there are fewer."""

SEGMENT_FEATURES = (
    "thinking.mean",
    "thinking.median",
    "thinking.min",
    "thinking.std",
    "thinking.length",
    "answer-thinking.mean",
    "answer-thinking.min",
    "boundary.drop",
    "thinking.share",
)
"""In nats, but for the length in tokens and the share. `answer-thinking` is the answer's number less the thinking's.
`boundary.drop` is the mean of the last 10 tokens of the thinking less that of the first 10 of the answer.
`thinking.share` is how much of the tokens is thinking, from 0 to 1. Without thinking the length and the share are 0,
and the others NaN."""


def segment_features(
    answers: Sequence[Sequence[float] | FloatArray], thinking: Sequence[FloatArray | None]
) -> NDArray[np.float32]:
    """The features of n answers and what was thought before them, (n, len(SEGMENT_FEATURES)).

    `answers[i]`: (T_i,), nats; `thinking[i]`: (S_i,), None or empty where there was none or its log-probabilities are
    not known. Raises `InvalidResponse` for an answer without tokens, or another number of each.
    """
    if len(answers) != len(thinking):
        raise InvalidResponse(f"{len(answers)} answers came with the thinking of {len(thinking)}; expected as many")
    return np.array([_one(a, s) for a, s in zip(answers, thinking, strict=True)], np.float32).reshape(
        len(answers), len(SEGMENT_FEATURES)
    )


def _one(answer: Any, thinking: FloatArray | None) -> list[float]:
    # Rounded to float32 first, as they are recorded.
    answered = np.asarray(answer, np.float32).astype(np.float64)
    thought = np.asarray([] if thinking is None else thinking, np.float32).astype(np.float64)
    if not len(answered):
        raise InvalidResponse("an answer has no tokens: at least 1 log-probability is needed; leave it out")
    if not len(thought):
        return [np.nan] * 4 + [0.0] + [np.nan] * 3 + [0.0]
    return [
        thought.mean(),
        float(np.median(thought)),
        thought.min(),
        thought.std(),
        len(thought),
        answered.mean() - thought.mean(),
        answered.min() - thought.min(),
        thought[-BESIDE:].mean() - answered[:BESIDE].mean(),
        len(thought) / (len(thought) + len(answered)),
    ]
