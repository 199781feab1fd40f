"""A policy that asks another agent at a rate: for the answers that look worst among the last ones.

A threshold says how good an answer must be, and not how often another agent will be asked. This policy says how often,
and finds the threshold in the answers that it has seen. It decides at `assess`: `execute` keeps the answer, `ask` asks
another agent. For a budget in US dollars there is the panel (`metaprobe.routing.panel`).
"""

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import ClassVar

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Decision
from metaprobe.routing.policy import ASK, EXECUTE, Outcome, State, choose, make_decision, without_failed

WINDOW = 1000


class AskAtRate:
    """Asks another agent for at most the share `rate` of the answers: those of lowest confidence among the last ones.

    Where answers come in no particular order, the probability that one is asked about is at most `rate` from the first
    on; confidences that are equal count as one, so that many equal ones are asked about less often. May be shared by
    threads.
    """

    label: ClassVar[str] = "rate"
    own: ClassVar[tuple[str, ...]] = ("assess",)
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {"assess": ("confidence",)}

    def __init__(self, rate: float, *, window: int = WINDOW) -> None:
        """`rate`: from 0 to 1; `window`: so many answers are looked back on. Raises `RecordError` for another rate."""
        if not 0 <= rate <= 1:
            raise RecordError(
                f"rate is {rate}; expected the share of answers, from 0 to 1, that another agent is asked"
            )
        if window < 1:
            raise RecordError(f"window is {window}; expected how many answers are looked back on, 1 or more")
        self.rate = rate
        self._window = window
        self._last: deque[float] = deque()
        self._sorted: list[float] = []
        self._lock = Lock()

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """Returns `ask` for an answer that is among the lowest `rate` of the last ones, else `execute`."""
        state, legal_actions, told = without_failed(state, legal_actions)
        known = state.signals.value("confidence")
        with self._lock:
            share = self._share_below(-math.inf if known is None else known)
            seen = len(self._sorted)
        shown = "no confidence is known" if known is None else f"confidence {known:.3f}"
        action = choose(state, ASK if share <= self.rate else EXECUTE, legal_actions)
        reason = f"{shown}, among the lowest {share:.0%} of the last {seen}; asked about are {self.rate:.0%}{told}"
        return make_decision(state, action, legal_actions, {EXECUTE: share, ASK: self.rate}, reason)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Learns nothing from what came of it: the rate is over answers, whatever they are worth."""

    def _share_below(self, value: float) -> float:
        """Takes in a confidence, and returns the share of the last ones that is not above it, itself included.

        A confidence that is not known counts as the lowest, so that such answers are asked about first.
        """
        if len(self._last) == self._window:
            self._sorted.remove(self._last.popleft())
        self._last.append(value)
        insort(self._sorted, value)
        return bisect_right(self._sorted, value) / len(self._sorted)
