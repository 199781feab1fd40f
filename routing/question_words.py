"""How much likelier than usual each agent is right, from the words of a question alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.hashed_words import hashed_words

BUCKETS = 1 << 13
LONGEST = 400
"""Words that are read of a question."""
LARGEST = 1e6
"""Largest weight that is read: sums of larger ones pass float32. The largest trained on router_cascade9 is 0.3."""


@dataclass(frozen=True, slots=True, eq=False)
class QuestionWords:
    """A linear map on the hashed words of a question, one column an agent."""

    weights: NDArray[np.float32]
    """(BUCKETS, A), the inverse document frequencies multiplied in; no rows where there was no text to learn from."""
    squares: NDArray[np.float32]
    """(BUCKETS,): squared inverse document frequencies, for the length of a question's vector."""

    def shifts(self, question: str) -> NDArray[np.float64]:
        """Returns by how much likelier than usual each agent is right (A,); 0 where no word is known."""
        agents = self.weights.shape[1]
        if not len(self.weights) or not question:
            return np.zeros(agents)
        places = word_buckets(question)
        length = float(self.squares[places].sum()) if len(places) else 0.0
        if length == 0:
            return np.zeros(agents)
        return np.asarray(self.weights[places].sum(axis=0) / length**0.5, dtype=np.float64)

    def to_bytes(self) -> bytes:
        """Returns the bytes that `read_words` reads."""
        return np.column_stack([self.weights, self.squares]).astype("<f4").tobytes()


def word_buckets(question: str) -> NDArray[np.int64]:
    """Returns the buckets of the words and pairs of neighbours, each once, rising."""
    return hashed_words(question, BUCKETS, LONGEST)


def read_words(data: bytes, agents: int) -> QuestionWords:
    """Returns the weights in a checkpoint's file. Raises `ValueError` where they are not those of so many agents."""
    values = np.frombuffer(data, dtype="<f4")
    table = values.reshape(-1, agents + 1) if len(values) else values.reshape(0, agents + 1)
    if len(table) not in (0, BUCKETS) or not (np.abs(table) <= LARGEST).all() or (table[:, -1] < 0).any():
        raise ValueError(f"the words have {len(table)} rows; expected {BUCKETS} of finite numbers")
    return QuestionWords(table[:, :-1], table[:, -1])
