"""Remembers lengths of answers that no gate ended, and estimates how many tokens an ended answer had still to come."""

import threading
from collections import deque
from typing import Self

from metaprobe.monitoring.schema import answers, contexts, sa, scores
from metaprobe.monitoring.tables import Tables

KEPT = 5_000
"""How many of the latest lengths are remembered for each model."""
LEAST = 30
"""Fewest longer answers of which a mean is taken."""
MODELS = 256
"""How many models are remembered. The bound is needed because callers choose the names."""


class AnswerLengths:
    """Lengths of answers by model, in tokens. Any number of threads may use one."""

    def __init__(self) -> None:
        self._by_model: dict[str, deque[int]] = {}
        self._lock = threading.Lock()

    @classmethod
    def of_log(cls, tables: Tables) -> Self:
        """Returns the lengths of the latest answers of a log that no gate ended. Raises `LogError`."""
        lengths = cls()
        asked = sa.select(contexts.c.model, scores.c.tokens).select_from(answers)
        let_go_on = contexts.c.action == "", scores.c.shadow_of.is_(None), scores.c.tokens.is_not(None)
        latest = asked.where(*let_go_on).order_by(scores.c.time.desc()).limit(4 * KEPT)
        for model, tokens in reversed(tables.read(latest)):
            lengths.add(str(model), int(tokens))
        return lengths

    def add(self, model: str, tokens: int) -> None:
        """Takes in an answer that no gate ended."""
        with self._lock:
            if model in self._by_model or len(self._by_model) < MODELS:
                self._by_model.setdefault(model, deque(maxlen=KEPT)).append(tokens)

    def estimate_left(self, model: str, tokens: int, most: int | None = None) -> int | None:
        """Returns how many tokens an answer that was ended after `tokens` would about have had still to come.

        It is what answers of the same model that became longer than that had still to come on average: an estimate, as
        if the ended answer had gone on like those that were let go on. None where fewer than `LEAST` became longer.
        `most`: length at which the answer would have been cut, where that is known.
        """
        with self._lock:
            longer = [length - tokens for length in self._by_model.get(model, ()) if length > tokens]
        if len(longer) < LEAST:
            return None
        left = round(sum(longer) / len(longer))
        return left if most is None else max(0, min(left, most - tokens))
