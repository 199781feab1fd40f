"""Policies for collecting, which try everything, or sometimes something else, and record the propensities."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metaprobe.api import (
    Action,
    Decision,
    Outcome,
    PaperRules,
    Policy,
    RecordError,
    State,
)


def learns(policy: Policy) -> bool:
    """Returns whether outcomes passed to `observe` change a policy's later decisions; False if the policy does not say.

    A collection then runs in waves, so that what it has seen does not depend on which run ended first.
    """
    return bool(getattr(policy, "learns", False))


@dataclass(frozen=True, slots=True)
class Exhaustive:
    """Never stops early: asks every agent and every critic, and runs every cycle. So its data are not censored."""

    rules: PaperRules = dataclasses.field(default_factory=PaperRules)
    label: ClassVar[str] = "exhaustive"
    own: ClassVar[tuple[str, ...]] = ("assess", "regulate", "iterate")

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the signals that the papers' rules read; the rules' decision is in the reason."""
        return self.rules.reads

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        decision = self.rules.decide(state, legal_actions)
        legal_actions = state.without_failed(legal_actions)[1]
        fullest_action = {"assess": Action.ASK, "regulate": Action.MONITOR_CONTROL}.get(state.point, decision.action)
        if state.point == "iterate":
            fullest_action = Action.STOP if state.round >= self.rules.cycles else Action.AGAIN
        if fullest_action == decision.action or fullest_action not in legal_actions:
            return decision
        reason = f"everything is tried; the papers' rule says {decision.action}: {decision.reason}"
        return state.make_decision(fullest_action, legal_actions, decision.scores, reason)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Learns nothing."""


class EpsilonGreedy:
    """Decides as another policy, but with probability `epsilon` draws a legal action uniformly."""

    def __init__(self, policy: Policy, *, epsilon: float, seed: int = 0) -> None:
        if not 0 <= epsilon <= 1:
            raise RecordError(f"epsilon is {epsilon}; expected a probability")
        self.policy = policy
        self.epsilon = epsilon
        self._seed = seed

    @property
    def label(self) -> str:
        """The name of the other policy, and that it explores."""
        return f"{getattr(self.policy, 'label', type(self.policy).__name__)} with epsilon {self.epsilon:g}"

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]] | None:
        """Returns the signals that the other policy reads."""
        return getattr(self.policy, "reads", None)

    @property
    def own(self) -> tuple[str, ...]:
        """The points of the other policy. If it decides everywhere, all its points, because each can be explored."""
        return getattr(self.policy, "own", ()) or tuple(self.reads or ())

    @property
    def rules(self) -> PaperRules | None:
        """The papers' rules below it."""
        return self.policy if isinstance(self.policy, PaperRules) else getattr(self.policy, "rules", None)

    def __repr__(self) -> str:
        return f"EpsilonGreedy({self.policy!r}, epsilon={self.epsilon}, seed={self._seed})"

    @property
    def learns(self) -> bool:
        """Whether the other policy learns."""
        return learns(self.policy)

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """Decides. The same decision id gives the same draw, so that a resumed collection decides in the same way."""
        legal_actions = state.without_failed(legal_actions)[1]  # a failed agent is not explored either
        decision = self.policy.decide(state, legal_actions)
        uniform_share = self.epsilon / len(legal_actions)
        propensities = {
            action: (1 - self.epsilon) * decision.propensities.get(action, 0.0) + uniform_share
            for action in legal_actions
        }
        digest = hashlib.sha256(f"{self._seed}/{state.decision_id}".encode()).digest()
        action = str(np.random.default_rng(list(digest)).choice(list(propensities), p=list(propensities.values())))
        reason = decision.reason if action == decision.action else f"explored in place of {decision.action}"
        return dataclasses.replace(decision, action=action, propensities=propensities, reason=reason)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Passes the outcome on."""
        self.policy.observe(decision_id, outcome)
