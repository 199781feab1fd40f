"""Reads what a router's checkpoint stores beside its graph: each agent's past, and the weights of words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.probes.hashed_words import hashed_words
from metaprobe.routing.learned_state import ANY, Past

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


AGENTS, WORDS = "agents.json", "words.f32"


def read_pasts(record: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Past]]:
    """Returns agent -> dimension -> past. Raises `ValueError` where the record is not whole."""
    found: dict[str, dict[str, Past]] = {}
    for name, dimensions in record.items():
        found[name] = {}
        for dimension, fields in dimensions.items():
            stored: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
            past = Past(**stored)
            if len(past.knots) != len(past.scores):
                raise ValueError(f"{name}: {len(past.knots)} knots and {len(past.scores)} scores")
            found[name][dimension] = past
        if ANY not in found[name]:
            raise ValueError(f"{name} has no past for unknown dimensions")
    return found


def read_words(data: bytes, agents: int) -> WordScores:
    """Returns the weights of `WORDS`. Raises `ValueError` for another number of rows than there are buckets."""
    values = np.frombuffer(data, dtype="<f4")
    table = values.reshape(-1, agents + 2) if len(values) else values.reshape(0, agents + 2)
    if len(table) not in (0, BUCKETS):
        raise ValueError(f"{WORDS} has {len(table)} rows; expected {BUCKETS}")
    return WordScores(table[:, :-1], table[:, -1])
