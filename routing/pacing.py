"""Policies that spend evenly: another agent is asked for the answers that look worst, at a rate or within a budget.

A threshold says how good an answer must be, and not how often another one will be asked. These policies say how often,
and find the threshold in the answers that they have seen. Both decide at `assess`: `execute` keeps the answer, `ask`
asks another agent.
"""

import math
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import ClassVar

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Decision
from metaprobe.routing.policy import ASK, EXECUTE, Outcome, State, choose, make_decision, without_failed

SPENT_USD, PRICE_USD = "spent_usd", "price_usd"
"""Under `State.features[""]`: what the question has cost so far, and what asking the other agent will about cost."""
WINDOW = 1000
MAX_PENDING = 10_000
"""So many decisions are remembered until their real cost is known."""


class _Ranked:
    """The last confidences that were seen, to say how low a new one is among them."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise RecordError(f"window is {window}; expected how many answers are looked back on, 1 or more")
        self._window = window
        self._last: deque[float] = deque()
        self._sorted: list[float] = []

    def share_below(self, state: State) -> tuple[float, str]:
        """Takes in a confidence. Returns the share that is not above it, itself included, in (0, 1], and as words.

        None counts as the lowest, so that what nobody knows anything of is asked first.
        """
        known = state.signals.value("confidence")
        value = -math.inf if known is None else known
        if len(self._last) == self._window:
            self._sorted.remove(self._last.popleft())
        self._last.append(value)
        insort(self._sorted, value)
        share = bisect_right(self._sorted, value) / len(self._sorted)
        shown = "no confidence is known" if known is None else f"confidence {known:.3f}"
        return share, f"{shown}, among the lowest {share:.0%} of the last {len(self._sorted)}"


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
        self.rate = rate
        self._ranked = _Ranked(window)
        self._lock = Lock()

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """Returns `ask` for an answer that is among the lowest `rate` of the last ones, else `execute`."""
        state, legal_actions, told = without_failed(state, legal_actions)
        with self._lock:
            share, shown = self._ranked.share_below(state)
        action = choose(state, ASK if share <= self.rate else EXECUTE, legal_actions)
        reason = f"{shown}; asked about are {self.rate:.0%}{told}"
        return make_decision(state, action, legal_actions, {EXECUTE: share, ASK: self.rate}, reason)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Learns nothing from what came of it: the rate is over answers, whatever they are worth."""


class AskWithinBudget:
    """Asks another agent as often as a mean cost of a question allows, and then about the lowest confidences.

    Spending stays within the budget, except where answers cost more than was expected of them (`State.features`); later
    questions then make up for it. May be shared by threads.
    """

    label: ClassVar[str] = "budget"
    own: ClassVar[tuple[str, ...]] = ("assess",)
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {"assess": ("confidence",)}
    learns: ClassVar[bool] = True

    def __init__(self, usd_per_1000: float, *, window: int = WINDOW) -> None:
        """`usd_per_1000`: US dollars for 1,000 questions, the first agent's answers included; above 0."""
        if not 0 < usd_per_1000 < math.inf:
            raise RecordError(f"budget is {usd_per_1000}; expected US dollars for 1,000 questions, above 0")
        self.budget = usd_per_1000 / 1000
        self._ranked = _Ranked(window)
        self._questions = 0
        self._first = self._prices = self._total = 0.0
        self._expected: OrderedDict[str, float] = OrderedDict()
        self._lock = Lock()

    @property
    def mean_usd(self) -> float:
        """Returns the mean cost of a question so far, in US dollars; 0 before the first."""
        return self._total / max(self._questions, 1)

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """Returns `ask` where the budget allows it and the confidence is among the lowest that it allows for.

        Raises `RecordError` where the state does not say what the question has cost and what asking will.
        """
        state, legal_actions, told = without_failed(state, legal_actions)
        spent, price = self._costs(state)
        with self._lock:
            share, shown = self._ranked.share_below(state)
            self._questions += 1
            self._first, self._prices = self._first + spent, self._prices + price
            left = self.budget - self._first / self._questions
            allowed = min(max(left * self._questions / self._prices, 0.0), 1.0) if self._prices else float(left >= 0)
            affordable = self._total + spent + price <= self.budget * self._questions
            wanted = ASK if affordable and share <= allowed else EXECUTE
            action = choose(state, wanted, legal_actions)
            asks = action == ASK
            self._total += spent + price * asks
            self._expected[state.decision_id] = spent + price * asks
            if len(self._expected) > MAX_PENDING:
                self._expected.popitem(last=False)
        why = "" if affordable else ", but what was saved so far does not pay for it yet"
        reason = f"{shown}; the budget allows for {allowed:.0%}{why}{told}"
        return make_decision(state, action, legal_actions, {EXECUTE: share, ASK: allowed}, reason)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Puts the question's real cost in the place of the expected one; nothing where either is not known."""
        with self._lock:
            expected = self._expected.pop(decision_id, None)
            if expected is not None and outcome.cost_usd is not None:
                self._total += outcome.cost_usd - expected

    def count(self, cost_usd: float) -> None:
        """Counts a question that left no choice, because the first agent failed, with all that it cost."""
        with self._lock:
            self._questions += 1
            self._first, self._total = self._first + cost_usd, self._total + cost_usd

    def _costs(self, state: State) -> tuple[float, float]:
        known = state.features.get("", {})
        if missing := [name for name in (SPENT_USD, PRICE_USD) if name not in known]:
            raise RecordError(
                f"a budget needs {' and '.join(missing)} in the state's features: "
                f'State.at("assess", ..., features={{"": {{"{SPENT_USD}": 0.0001, "{PRICE_USD}": 0.002}}}})'
            )
        return known[SPENT_USD], known[PRICE_USD]
