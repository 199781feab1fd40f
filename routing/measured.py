"""What a system measures of its answers beside their signals, for any policy that decides between them."""

import math
from collections.abc import Sequence

import numpy as np

from metaprobe.records.response import answer_logprobs
from metaprobe.records.types import Call

QUESTION = ""
"""Key of `State.features` for what is measured of the question itself."""


def measure_answers(
    question: str, calls: Sequence[Call] = (), answers: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """Returns `State.features` of answers in the order in which they were given, and of the question.

    `answers` is what each call answers, in a form in which equal answers are equal; "" where none can be read. Of an
    answer: `cut` (1 where max_tokens ended it), `answered` (1 where an answer can be read from it), `last_logprob`
    (mean of the last quarter of its tokens, at least 1), `agreeing` (share of the other answers that are the same). Of
    the question: `log_question`, log(1 + characters).
    """
    found = {QUESTION: {"log_question": math.log1p(len(question))}}
    for place, (call, answer) in enumerate(zip(calls, answers, strict=True)):
        features = {"cut": float(call.finish_reason == "length"), "answered": float(bool(answer))}
        logprobs = answer_logprobs(call)
        if logprobs is not None and len(logprobs):
            last = np.asarray(logprobs[-max(1, len(logprobs) // 4) :], dtype=np.float64)
            features["last_logprob"] = float(last.mean())
        others = [other for at, other in enumerate(answers) if at != place]
        if others:
            features["agreeing"] = sum(bool(answer) and other == answer for other in others) / len(others)
        found[str(place)] = features
    return found
