"""What is known of each agent's past: its success rate on each dimension, as the paper's moving average."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.records.types import Run
from metaprobe.routing.paper import COLLABORATE, EXECUTE

DIMENSION, DISPATCHED, PROFILE = "dimension:", "dispatched:", "profile:"
"""How a run tells, with or without its texts, the dimension that a classifier gave the item (kind of a statement; its
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


@dataclass(frozen=True, slots=True)
class Observation(Experience):
    """An experience that knows which one it is and when it was: what a fold needs that must not depend on arrival.

    Raises `RecordError` where the score is not in [0, 1], the time is not finite, or the id or the agent is empty.
    """

    id: str
    """Counts once, however often it arrives."""
    time: float
    """The item's place in its task, or seconds: whatever says which came first."""

    def __post_init__(self) -> None:
        if not (self.id and self.agent):
            raise RecordError(f"observation {self.id!r} of agent {self.agent!r}: both must have a name")
        if not 0 <= self.correct <= 1:
            raise RecordError(f"observation {self.id}: correct is {self.correct}; expected a number from 0 to 1")
        if not math.isfinite(self.time):
            raise RecordError(f"observation {self.id}: time is {self.time}; expected a finite number")


def in_order(observations: Iterable[Observation]) -> list[Observation]:
    """Each once, by time and then by id. Raises `RecordError` where one id tells two different things."""
    known: dict[str, Observation] = {}
    for observation in observations:
        before = known.setdefault(observation.id, observation)
        if before != observation:
            raise RecordError(conflict(before, observation))
    return sorted(known.values(), key=lambda observation: (observation.time, observation.id))


def conflict(before: Observation, now: Observation) -> str:
    """The message for one id that tells two different things."""
    return (
        f"observation {now.id} was {astuple(before)[:3]} at {before.time} and is now {astuple(now)[:3]} at {now.time}; "
        "an outcome does not change: give another one its own id"
    )


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
    """What the agents learn from a labelled run: each from its own answer, if the system made it answer.

    After a vote that is every agent, where MetaCogAgent (section III-D) speaks of "the executing agent" only. An agent
    that answered for the record (variant `every-agent`), or whose draft was only read for its confidence, learns
    nothing. Neither does anybody from a run that has no dimension, as those of the baselines.
    """
    dimension = classified(run)
    if dimension is None:
        return
    for agent in executing(run):
        correct = answered_correctly(run, agent)
        if correct is not None:
            yield Experience(agent, dimension, correct)


def run_observations(run: Run, *, time: float, agents: Iterable[str] | None = None) -> Iterator[Observation]:
    """What `experiences` gives, as observations at the item's place `time`.

    With `agents`: each of them that gave an answer which was judged, also those that only answered for the record. Take
    one variant of an item: another one repeats answers of the same agents under another run id.
    """
    if agents is None:
        learned = experiences(run)
    else:
        dimension = classified(run) or UNKNOWN
        judged = ((agent, answered_correctly(run, agent)) for agent in agents)
        learned = (Experience(agent, dimension, correct) for agent, correct in judged if correct is not None)
    for one in learned:
        yield Observation(one.agent, one.dimension, one.correct, id=f"{run.id}/{one.agent}", time=time)


def question_observations(question: QuestionOutcomes, *, time: float) -> Iterator[Observation]:
    """One for each agent that was asked and has a score; a question without a dimension has `unknown`."""
    for agent, outcome in question.agents.items():
        if outcome.score is not None:
            dimension = question.dimension or UNKNOWN
            yield Observation(agent, dimension, outcome.score, id=f"{question.id}/{agent}", time=time)


def classified(run: Run) -> str | None:
    """The dimension that the classifier gave, `unknown` where it was unreadable; None where nobody classified."""
    return _named(DIMENSION, (statement.kind for statement in run.statements))


def dispatched(run: Run) -> str | None:
    """The agent that got the item first; None where the system dispatches to no single one."""
    return _named(DISPATCHED, (label.name for label in run.labels))


def executing(run: Run) -> tuple[str, ...]:
    """The agents whose answers made the final one: one that executed, one that was delegated to, or all that voted."""
    actions = {decision.point: decision.action for decision in run.decisions}
    action = actions.get("assign", actions.get("assess", COLLABORATE))
    if action == COLLABORATE:
        return tuple(dict.fromkeys(call.agent for call in run.calls if call.stage == "answer"))
    return (dispatched(run) or "",) if action == EXECUTE else (action,)


def answered_correctly(run: Run, agent: str) -> float | None:
    """The label of an agent's last answer; None where it gave none or nothing can check it."""
    answers = [call.id for call in run.calls if call.stage == "answer" and call.agent == agent]
    return run.label("correct", answers[-1]) if answers else None


def _named(prefix: str, names: Iterable[str]) -> str | None:
    return next((name.removeprefix(prefix) for name in names if name.startswith(prefix)), None)
