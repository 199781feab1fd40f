"""Profiles of agents: each agent's success rate on each dimension, as the paper's moving average."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from metaprobe.api import DispatchedRun, Run

PROFILE_PREFIX = "profile:"
"""Prefix of the labels in which a run holds each agent's profile."""
UNKNOWN_DIMENSION = "unknown"
"""Dimension of items whose classification was unreadable; it has profiles of its own."""


@dataclass(frozen=True, slots=True)
class Experience:
    """One answer that was judged."""

    agent: str
    dimension: str
    correct: float
    """In [0, 1]; values between 0 and 1 are graded scores."""


class Profiles:
    """Success rates by agent and dimension: p <- p + rate (correct - p). MetaCogAgent, equation 4.

    The result depends on the order of outcomes. So give them in the items' order, not in the order in which concurrent
    runs happened to end.
    """

    def __init__(self, past: Iterable[Experience] = (), *, initial: float = 0.5, rate: float = 0.1) -> None:
        self.initial = initial
        self.rate = rate
        self._rates: dict[tuple[str, str], float] = {}
        for experience in past:
            self.learn(experience)

    def rate_of(self, agent: str, dimension: str) -> float:
        """Returns the rate in [0, 1]; the initial value if there was no outcome yet."""
        return self._rates.get((agent, dimension), self.initial)

    def learn(self, experience: Experience) -> None:
        """Updates the rate with one outcome."""
        key = (experience.agent, experience.dimension)
        before = self._rates.get(key, self.initial)
        self._rates[key] = before + self.rate * (experience.correct - before)


def experiences(run: Run) -> Iterator[Experience]:
    """Yields what the agents learn from a labelled run: each from its own answer, if the system made it answer.

    After a vote every agent learns, although MetaCogAgent (section III-D) speaks only of "the executing agent". An
    agent that answered for the record (variant `every-agent`), or whose draft was only read for its confidence, learns
    nothing. No agent learns from a run without a dimension, such as those of the baselines.
    """
    dimension = DispatchedRun(run).dimension
    if dimension is None:
        return
    for agent in DispatchedRun(run).executing:
        correct = DispatchedRun(run).correctness(agent)
        if correct is not None:
            yield Experience(agent, dimension, correct)
