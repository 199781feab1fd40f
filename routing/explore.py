"""Policies for collecting: try everything, or now and then something else, with the propensities written down."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metaprobe.records.errors import RecordError
from metaprobe.records.types import Decision
from metaprobe.routing.paper import AGAIN, ASK, MONITOR_CONTROL, STOP, PaperRules
from metaprobe.routing.policy import Outcome, Policy, State, decided, learns


@dataclass(frozen=True, slots=True)
class Exhaustive:
    """Never stops early: asks every agent, hears every critic, runs every cycle. What it collects is not censored."""

    rules: PaperRules = dataclasses.field(default_factory=PaperRules)

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        decision = self.rules.decide(state, legal_actions)
        most = {"assess": ASK, "regulate": MONITOR_CONTROL}.get(state.point, decision.action)
        if state.point == "iterate":
            most = STOP if state.round >= self.rules.cycles else AGAIN
        if most == decision.action or most not in legal_actions:
            return decision
        why = f"everything is tried; the papers' rule says {decision.action}: {decision.reason}"
        return decided(state, most, legal_actions, decision.scores, why)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Learns nothing."""


class EpsilonGreedy:
    """Another policy's decision, but with probability `epsilon` a legal action drawn evenly."""

    def __init__(self, policy: Policy, *, epsilon: float, seed: int = 0) -> None:
        if not 0 <= epsilon <= 1:
            raise RecordError(f"epsilon is {epsilon}; expected a probability")
        self.policy = policy
        self.epsilon = epsilon
        self._seed = seed

    def __repr__(self) -> str:
        return f"EpsilonGreedy({self.policy!r}, epsilon={self.epsilon}, seed={self._seed})"

    @property
    def learns(self) -> bool:
        """Whether the other policy does."""
        return learns(self.policy)

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """The same draw for the same decision id, so that a resumed collection decides as it did."""
        decision = self.policy.decide(state, legal_actions)
        even = self.epsilon / len(legal_actions)
        propensities = {
            action: (1 - self.epsilon) * decision.propensities.get(action, 0.0) + even for action in legal_actions
        }
        digest = hashlib.sha256(f"{self._seed}/{state.decision_id}".encode()).digest()
        action = str(np.random.default_rng(list(digest)).choice(list(propensities), p=list(propensities.values())))
        reason = decision.reason if action == decision.action else f"explored in place of {decision.action}"
        return dataclasses.replace(decision, action=action, propensities=propensities, reason=reason)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Hands it on."""
        self.policy.observe(decision_id, outcome)
