"""Reads from a recorded run whom MetaCogAgent dispatched an item to, and what became of it."""

from collections.abc import Iterable

from metaprobe.records.types import Run
from metaprobe.routing.policy import Action

DIMENSION, DISPATCHED = "dimension:", "dispatched:"
"""How a run names, with or without its texts, the dimension that a classifier gave the item (kind of a statement; its
value is None where that was unreadable), and the agent that got it first (name of a label)."""


def read_classification(run: Run) -> str | None:
    """The dimension that the classifier gave, `unknown` where it was unreadable; None where nobody classified."""
    return _named(DIMENSION, (statement.kind for statement in run.statements))


def first_agent(run: Run) -> str | None:
    """The agent that got the item first; None where the system dispatches to no single one."""
    return _named(DISPATCHED, (label.name for label in run.labels))


def executing(run: Run) -> tuple[str, ...]:
    """The agents whose answers made the final one: one that executed, one that was delegated to, or all that voted."""
    actions = {decision.point: decision.action for decision in run.decisions}
    action = actions.get("assign", actions.get("assess", Action.COLLABORATE))
    if action == Action.COLLABORATE:
        return tuple(dict.fromkeys(call.agent for call in run.calls if call.stage == "answer"))
    return (first_agent(run) or "",) if action == Action.EXECUTE else (action,)


def read_correctness(run: Run, agent: str) -> float | None:
    """Returns the known correctness of an agent's last answer, in [0, 1]; None without an answer or a judgement."""
    answers = [call.id for call in run.calls if call.stage == "answer" and call.agent == agent]
    return run.label("correct", answers[-1]) if answers else None


def _named(prefix: str, names: Iterable[str]) -> str | None:
    return next((name.removeprefix(prefix) for name in names if name.startswith(prefix)), None)
