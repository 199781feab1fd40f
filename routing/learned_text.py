"""What a question's words say about who will answer it: hashed words times stored weights, in NumPy alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.hashed_words import hashed_words

BUCKETS = 1 << 13
LONGEST = 400
"""Words that are read of a question."""


@dataclass(frozen=True, slots=True, eq=False)
class WordScores:
    """A linear map on the hashed words of a question, one column an agent, and a last one that is their mean."""

    weights: NDArray[np.float32]
    """(BUCKETS, A + 1), the inverse document frequencies multiplied in; no rows where there was no text to learn."""
    squares: NDArray[np.float32]
    """(BUCKETS,): squared inverse document frequencies, for the length of a question's vector."""

    def of(self, question: str) -> tuple[float, ...] | None:
        """(A + 1,): by how much likelier than usual each agent is right; None where no word is known."""
        if not len(self.weights) or not question:
            return None
        found = word_buckets(question)
        length = float(self.squares[found].sum()) if len(found) else 0.0
        if length == 0:
            return None
        return tuple((self.weights[found].sum(axis=0) / length**0.5).tolist())


def word_buckets(question: str) -> NDArray[np.int64]:
    """Buckets of the words and pairs of neighbours, each once, rising."""
    return hashed_words(question, BUCKETS, LONGEST)
