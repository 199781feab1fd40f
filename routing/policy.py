"""The one shape of a decision: heuristics and learned models answer the same question, and see the same outcomes."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

from metaprobe.probes.signals import Signals
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Decision


class Action:
    """Actions that the papers' systems decide among, as records and policies write them."""

    EXECUTE, ASK, COLLABORATE = "execute", "ask", "collaborate"
    """MetaCogAgent: answer alone or ask the others; then delegate (the action is the agent's name) or all vote."""
    SYNTHESISE, MONITOR, MONITOR_CONTROL = "synthesise", "monitor", "monitor+control"
    """MetaCrit: which critics are heard before the answer is synthesised."""
    GENERATE = "generate"
    """Monitor-Generate-Verify, point `budget`: a setting rather than a choice; the decision's scores hold it."""
    STOP, AGAIN = "stop", "again"
    """Monitor-Generate-Verify, point `iterate`: whether another cycle follows."""
    KEEP, JUDGE = "keep", "judge"
    """The essay debate, point `review`, beside `again`: what becomes of an argument."""


KEEPS = frozenset({Action.EXECUTE, Action.KEEP})
"""Actions that keep the answer of the agent whose turn it is."""

GOOD = 0.85
"""The mean evaluation score from which Monitor-Generate-Verify stops, as its paper has it."""


@dataclass(frozen=True, slots=True)
class State:
    """Holds what is known when a pipeline asks."""

    decision_id: str
    point: str
    """Point of the pipeline: `assess`, `assign`, `regulate`, `budget`, `iterate`, `select`, `review`, `ask-again`."""
    signals: Signals = field(default_factory=Signals)
    """Signals of the agent whose turn it is, or of its answer."""
    agent: str = ""
    others: Mapping[str, Signals] = field(default_factory=dict)
    """Maps each other agent that has been asked to its signals."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Maps an agent, or an answer of `candidates`, to the reason why its call failed. A failed call is never kept,
    voted for or delegated to: every policy decides among the others (`State.without_failed`).
    """
    candidates: Mapping[str, Signals] = field(default_factory=dict)
    """Maps each answer that could be returned to its signals, in the order in which the answers were given."""
    features: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Maps an answer to further numbers about it, and "" to numbers about the question. A cascade gives `spent_usd` and
    `price_usd`.
    """
    round: int = 0
    """Number of finished cycles."""
    dimension: str = ""

    @classmethod
    def at(cls, point: str, **known: Any) -> "State":
        """Returns a new state at a decision point, with an id of its own. `known`: other fields of this class.

        decision = policy.decide(State.at("assess", agent="drafter", signals=signals), ["execute", "ask"])
        """
        return cls(uuid4().hex, point, **known)

    def without_failed(self, legal_actions: Sequence[str]) -> "tuple[State, list[str], str]":
        """Returns the state and the legal actions without the agents that failed, and a clause that names these agents.

        Raises `RecordError`, which names the failed agents, if no action is left.
        """
        if not self.failed:
            return self, list(legal_actions), ""
        failed_clause = "failed: " + ", ".join(
            f"{name} ({why or 'no reason was given'})" for name, why in self.failed.items()
        )
        others = {name: signals for name, signals in self.others.items() if name not in self.failed}
        candidates = {name: signals for name, signals in self.candidates.items() if name not in self.failed}
        legal = [action for action in legal_actions if action not in self.failed]
        if self.agent in self.failed:
            legal = [action for action in legal if action not in KEEPS and (others or action != Action.COLLABORATE)]
        if not legal:
            raise RecordError(f"nothing is left to do at {self.point}; {failed_clause}")
        signals = Signals() if self.agent in self.failed else self.signals
        left = dataclasses.replace(self, signals=signals, others=others, candidates=candidates, failed={})
        return left, legal, f"; {failed_clause}"

    def make_decision(
        self, action: str, legal_actions: Sequence[str], scores: dict[str, float], reason: str
    ) -> Decision:
        """Returns a deterministic decision at this point: its action has propensity 1.

        Args:
            action: the action that is taken.
            legal_actions: all actions that could be taken.
            scores: scores of actions.
            reason: why the action is taken.
        """
        return Decision(
            id=self.decision_id,
            point=self.point,
            action=action,
            scores=scores,
            propensities={legal: float(legal == action) for legal in legal_actions},
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Holds what followed from a decision. It is never an input to a decision."""

    correct: float | None = None
    cost_usd: float | None = None
    latency_ms: float | None = None


@runtime_checkable
class Policy(Protocol):
    """Makes decisions, and learns from their outcomes.

    A policy that learns from `observe` while it runs has an attribute `learns` that is true (see
    `metaprobe.papers.policies.explore.learns`). A policy may also declare, for `metaprobe.papers.systems.suitability`:
    `reads`, a mapping from each of its points to the signals that decide there (without it, all signals count at every
    point); `own`, the points that it decides itself if it leaves other points to the papers' rules; `rules`, those
    rules; `label`, its name.
    """

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """Returns one of the legal actions, with every legal action's score and propensity, and the reason."""
        ...

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Learns from an outcome; a policy that does not learn ignores it."""
        ...
