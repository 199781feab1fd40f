"""Everything known about one answer at one moment: stated, measured, probed; each None until known, with its source."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints.display import explain_fields
from metaprobe.records.response import answer_logprobs
from metaprobe.records.types import Call

STATED_PREFIX = "stated+"
"""Prefix of the digest in the source of a joined number, and of the path of its checkpoint."""


def combine_probabilities(first: float, second: float) -> float:
    """Returns the mean of two probabilities on the log-odds scale; each is kept 0.01 away from 0 and 1 first."""
    log_odds = [math.log(p / (1 - p)) for p in (min(max(value, 0.01), 0.99) for value in (first, second))]
    return 1 / (1 + math.exp(-sum(log_odds) / 2))


@explain_fields
@dataclass(frozen=True, slots=True)
class Signal:
    """One number and its source."""

    value: float
    """The number itself."""
    source: str
    """Source of the number: `stated`, `logprobs`, `profile`, or the digest of a checkpoint. The digest follows
    `stated+` if the checkpoint's number is joined with the stated one.
    """
    thresholds: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Thresholds by name, on the number's own scale, of the checkpoint that gave the number; empty for other sources.
    """

    @property
    def is_joined(self) -> bool:
        """Whether the number joins a stated number and a checkpoint's."""
        return self.source.startswith(STATED_PREFIX)


@explain_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The numbers that a policy may read; each is None until it is known.

    An example:

        >>> known = Signals(confidence=Signal(0.8, "stated"))
        >>> known.value("confidence"), known.value("difficulty")
        (0.8, None)
    """

    difficulty: Signal | None = None
    """How hard the question is, in [0, 1], before the answer."""
    confidence: Signal | None = None
    """How likely the given answer is right, in [0, 1]."""
    mean_logprob: Signal | None = None
    """Mean log-probability of the answer's tokens, in nats."""
    min_logprob: Signal | None = None
    """Smallest log-probability of a token, in nats."""
    first_logprob: Signal | None = None
    """Log-probability of the first token, in nats."""
    tokens: Signal | None = None
    """Length of the answer in tokens."""
    quality: Signal | None = None
    """How good the answer is, in [0, 1]: the mean of stated evaluation scores, or the score of a predictor."""
    critical: Signal | None = None
    """Probability that the answer has a critical failure, in [0, 1]; only a checkpoint gives it."""
    profile: Signal | None = None
    """Past success rate of the agent on this kind of item, in [0, 1]."""

    @classmethod
    def of(cls, answer: Call, *, difficulty: float | None = None, confidence: float | None = None) -> "Signals":
        """Returns the signals of an answer and of the model's statements about it.

        Signals of log-probabilities are None if the answer has no log-probabilities.
        """
        stated_signals = {
            name: Signal(value, "stated")
            for name, value in (("difficulty", difficulty), ("confidence", confidence))
            if value is not None
        }
        return cls(**stated_signals, **measure_signals(answer_logprobs(answer)))

    def value(self, name: str) -> float | None:
        """Returns the number of the field with this name, or None if it is not known."""
        signal: Signal | None = getattr(self, name)
        return None if signal is None else signal.value


def measure_signals(logprobs: NDArray[np.floating] | None) -> dict[str, Signal]:
    """Returns the signals of an answer's log-probabilities, by field of `Signals`; empty if there are no
    log-probabilities.

    `logprobs`: (tokens,), in nats.
    """
    if logprobs is None or len(logprobs) == 0:
        return {}
    values = np.asarray(logprobs, dtype=np.float64)
    numbers = {
        "mean_logprob": values.mean(),
        "min_logprob": values.min(),
        "first_logprob": values[0],
        "tokens": len(values),
    }
    return {name: Signal(float(value), "logprobs") for name, value in numbers.items()}
