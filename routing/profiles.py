"""Keeps each agent's past: its success rate on each dimension, as the paper's moving average."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from metaprobe.records.types import Run
from metaprobe.routing.policy import COLLABORATE, EXECUTE

DIMENSION, DISPATCHED, PROFILE = "dimension:", "dispatched:", "profile:"
"""How a run names, with or without its texts, the dimension that a classifier gave the item (kind of a statement; its
value is None where that was unreadable), the agent that got it first, and each agent's profile (names of labels)."""
UNKNOWN = "unknown"
"""Dimension of items whose classification was unreadable; it has profiles of its own."""


@dataclass(frozen=True, slots=True)
class Experience:
    """One answer that was judged."""

    agent: str
    dimension: str
    correct: float
    """In [0, 1]; between them for a graded score."""


class Profiles:
    """Success rates by agent and dimension: p <- p + rate (correct - p). MetaCogAgent, equation 4.

    A fold over outcomes in the order they are given: whoever feeds it, feeds it in the items' order, not in the order
    in which concurrent runs happened to end.
    """

    def __init__(self, past: Iterable[Experience] = (), *, initial: float = 0.5, rate: float = 0.1) -> None:
        self.initial = initial
        self.rate = rate
        self._rates: dict[tuple[str, str], float] = {}
        for experience in past:
            self.learn(experience)

    def rate_of(self, agent: str, dimension: str) -> float:
        """In [0, 1]; the initial value where nothing was seen yet."""
        return self._rates.get((agent, dimension), self.initial)

    def learn(self, experience: Experience) -> None:
        """Take one outcome in."""
        key = (experience.agent, experience.dimension)
        before = self._rates.get(key, self.initial)
        self._rates[key] = before + self.rate * (experience.correct - before)


def experiences(run: Run) -> Iterator[Experience]:
    """Yields what the agents learn from a labelled run: each from its own answer, if the system made it answer.

    After a vote that is every agent, where MetaCogAgent (section III-D) speaks of "the executing agent" only. An agent
    that answered for the record (variant `every-agent`), or whose draft was only read for its confidence, learns
    nothing. Neither does anybody from a run that has no dimension, as those of the baselines.
    """
    dimension = read_classification(run)
    if dimension is None:
        return
    for agent in executing(run):
        correct = read_correctness(run, agent)
        if correct is not None:
            yield Experience(agent, dimension, correct)


def read_classification(run: Run) -> str | None:
    """The dimension that the classifier gave, `unknown` where it was unreadable; None where nobody classified."""
    return _named(DIMENSION, (statement.kind for statement in run.statements))


def first_agent(run: Run) -> str | None:
    """The agent that got the item first; None where the system dispatches to no single one."""
    return _named(DISPATCHED, (label.name for label in run.labels))


def executing(run: Run) -> tuple[str, ...]:
    """The agents whose answers made the final one: one that executed, one that was delegated to, or all that voted."""
    actions = {decision.point: decision.action for decision in run.decisions}
    action = actions.get("assign", actions.get("assess", COLLABORATE))
    if action == COLLABORATE:
        return tuple(dict.fromkeys(call.agent for call in run.calls if call.stage == "answer"))
    return (first_agent(run) or "",) if action == EXECUTE else (action,)


def read_correctness(run: Run, agent: str) -> float | None:
    """Returns the known correctness of an agent's last answer, in [0, 1]; None without an answer or a judgement."""
    answers = [call.id for call in run.calls if call.stage == "answer" and call.agent == agent]
    return run.label("correct", answers[-1]) if answers else None


def _named(prefix: str, names: Iterable[str]) -> str | None:
    return next((name.removeprefix(prefix) for name in names if name.startswith(prefix)), None)
