"""Which of a response's log-probabilities are of its answer, and which of the thinking before it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.types import Call, FloatArray, Segment, SegmentKind


def tokens_of(segments: Sequence[Segment], kind: SegmentKind, count: int) -> NDArray[np.intp]:
    """The places of the tokens of that kind, of `count` tokens. Without segments all are of the answer."""
    if not segments:
        return np.arange(count if kind == "answer" else 0)
    return np.concatenate([np.arange(0), *(np.arange(s.start, s.end) for s in segments if s.kind == kind)])


def series_of(logprobs: FloatArray, segments: Sequence[Segment]) -> tuple[FloatArray, FloatArray]:
    """The log-probabilities of the answer, and those of the thinking before it: (A,) and (S,), either may be empty."""
    if not segments:
        return logprobs, logprobs[:0]
    values = np.asarray(logprobs)
    return values[tokens_of(segments, "answer", len(values))], values[tokens_of(segments, "thinking", len(values))]


def answer_logprobs(call: Call) -> FloatArray | None:
    """The log-probabilities of a call's answer, (A,), without those of its thinking; None where it has none."""
    return None if call.logprobs is None else series_of(call.logprobs, call.segments)[0]
