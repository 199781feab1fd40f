"""Selects calls of a run store by stage and agent, as the options `--stage` and `--agent` name them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated

from metaprobe.checkpoints.option_fields import Option
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call

Stage = Annotated[str | None, Option("Only calls of this stage.")]
Agent = Annotated[str | None, Option("Only calls of this agent.")]


@dataclass(slots=True)
class CallSelection:
    """Selects the calls to read, and counts the others."""

    stage: Stage = None
    agent: Agent = None
    done: Collection[str] = ()
    """Ids of the calls that already have everything requested."""
    stored: set[str] = field(default_factory=set)
    """Ids of the calls of this stage and agent that are done."""
    failed: int = 0
    """Number of calls of this stage and agent that ended in an error, so that there is nothing to read."""
    seen: set[tuple[str, str]] = field(default_factory=set)
    """Stage and agent of every call that was seen."""

    def holds(self, call: Call) -> bool:
        """Returns whether the call is of this stage and agent; None accepts any."""
        self.seen.add((call.stage, call.agent))
        return self.stage in (None, call.stage) and self.agent in (None, call.agent)

    def takes(self, call: Call) -> bool:
        """Returns whether the call has to be read: of this stage and agent, not failed, and not done."""
        if not self.holds(call):
            return False
        self.failed += call.error is not None
        if call.error is None and call.id in self.done:
            self.stored.add(call.id)
        return call.error is None and call.id not in self.done

    def nothing(self) -> RecordError:
        """Returns the error for a store in which no call has to be read and none is done."""
        stages, agents = (", ".join(sorted({pair[i] for pair in self.seen} - {""})) or "none" for i in (0, 1))
        return RecordError(
            f"no call of stage {self.stage or 'any'} by agent {self.agent or 'any'} that holds an answer "
            f"({self.failed} had failed); stages found: {stages}; agents found: {agents}"
        )
