"""Reads what a router's checkpoint stores beside its graph: each agent's past, and the weights of words."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from metaprobe.routing.learned_state import ANY, Past
from metaprobe.routing.learned_text import BUCKETS, WordScores

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
