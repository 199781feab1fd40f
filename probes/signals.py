"""Everything known about one answer at one moment: stated, measured, probed; each None until known, with its source."""

from dataclasses import dataclass

import numpy as np

from metaprobe.records.types import Call


@dataclass(frozen=True, slots=True)
class Signal:
    """One number and where it is from."""

    value: float
    source: str
    """`stated`, `logprobs`, `profile`, or the digest of the checkpoint that gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The numbers a policy may look at."""

    difficulty: Signal | None = None
    """In [0, 1], before the answer."""
    confidence: Signal | None = None
    """In [0, 1], in the given answer."""
    mean_logprob: Signal | None = None
    """Nats."""
    min_logprob: Signal | None = None
    first_logprob: Signal | None = None
    tokens: Signal | None = None
    """Length of the answer."""
    quality: Signal | None = None
    """How good the answer is, in [0, 1]: the mean of stated evaluation scores, or the score of a predictor."""
    profile: Signal | None = None
    """Past success rate of the agent on this kind of item, in [0, 1]."""

    def value(self, name: str) -> float | None:
        """The number under a field's name, or None where it is not known."""
        signal: Signal | None = getattr(self, name)
        return None if signal is None else signal.value


def signals_of(answer: Call, *, difficulty: float | None = None, confidence: float | None = None) -> Signals:
    """What an answer and the model's statements about it tell. Log-probability signals stay None without any."""
    stated = {
        name: Signal(value, "stated")
        for name, value in (("difficulty", difficulty), ("confidence", confidence))
        if value is not None
    }
    if answer.logprobs is None or len(answer.logprobs) == 0:
        return Signals(**stated)
    logprobs = np.asarray(answer.logprobs, dtype=np.float64)
    measured = {
        "mean_logprob": logprobs.mean(),
        "min_logprob": logprobs.min(),
        "first_logprob": logprobs[0],
        "tokens": len(logprobs),
    }
    return Signals(**stated, **{name: Signal(float(value), "logprobs") for name, value in measured.items()})
