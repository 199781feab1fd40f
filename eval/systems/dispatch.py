"""Reads from a recorded run to whom MetaCogAgent dispatched an item, and how it ended."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from metaprobe.records.types import Run
from metaprobe.routing.policy import Action


@dataclass(frozen=True, slots=True)
class DispatchedRun:
    """A run of MetaCogAgent, with or without its texts, and the agents that got its item."""

    run: Run
    dimension_prefix: ClassVar[str] = "dimension:"
    """Prefix of the kind of a statement that names the dimension which a classifier gave the item. The statement's
    value is None if it was unreadable.
    """
    first_prefix: ClassVar[str] = "dispatched:"
    """Prefix of the name of a label that names the agent which got the item first."""

    @property
    def dimension(self) -> str | None:
        """The dimension that the classifier gave, `unknown` if it was unreadable; None if nobody classified."""
        return _first_with_prefix(self.dimension_prefix, (statement.kind for statement in self.run.statements))

    @property
    def first(self) -> str | None:
        """The agent that got the item first; None if the system dispatches to no single agent."""
        return _first_with_prefix(self.first_prefix, (label.name for label in self.run.labels))

    @property
    def executing(self) -> tuple[str, ...]:
        """The agents whose answers made the final one: the agent that executed or was delegated to, or all
        that voted.
        """
        actions = {decision.point: decision.action for decision in self.run.decisions}
        action = actions.get("assign", actions.get("assess", Action.COLLABORATE))
        if action == Action.COLLABORATE:
            return tuple(dict.fromkeys(call.agent for call in self.run.calls if call.stage == "answer"))
        return (self.first or "",) if action == Action.EXECUTE else (action,)

    def correctness(self, agent: str | None) -> float | None:
        """Returns the known correctness of an agent's last answer, in [0, 1]; None without an answer or a judgement."""
        answers = [call.id for call in self.run.calls if call.stage == "answer" and call.agent == agent]
        return self.run.label("correct", answers[-1]) if answers else None


def _first_with_prefix(prefix: str, names: Iterable[str]) -> str | None:
    return next((name.removeprefix(prefix) for name in names if name.startswith(prefix)), None)
