"""A question whose outcomes are recorded, played by a router: an agent's answer is seen once it was asked."""

from dataclasses import dataclass

from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.routing.learned import ASK, LearnedRouter
from metaprobe.routing.learned_state import AskedAgent, Known


@dataclass(frozen=True, slots=True)
class Game:
    """How one question was answered."""

    asked: tuple[str, ...]
    """In this order."""
    kept: str
    """Whose answer was returned; empty where every agent failed."""
    expected: float
    """P(right) of it, as the router saw it."""
    score: float
    """0 where every agent failed."""
    cost_usd: float
    """Of all that were asked, failed ones included."""
    latency_ms: float
    """Of all that were asked, one after the other; what is not recorded counts 0."""
    fell_back: bool
    """Whether the fixed rule decided at some step."""
    reason: str
    """Of the last decision."""


def known_of(outcome: AgentOutcome) -> AskedAgent:
    """Returns what a router may see of a recorded outcome once the agent was asked."""
    if outcome.error is not None:
        return AskedAgent.failed(outcome.error)
    # An answer was there to judge, also where its text is not in the record.
    untold = not outcome.answer and outcome.score is not None
    return AskedAgent(outcome.answer, outcome.confidence, outcome.confidence_source, untold=untold)


def play(router: LearnedRouter, question: QuestionOutcomes) -> Game:
    """Asks until the router keeps an answer. Only agents with a scored outcome can be asked.

    Raises `RecordError` where there is none that the router knows.
    """
    legal = [name for name in router.agents if name in question.agents and question.agents[name].score is not None]
    if not legal:
        raise RecordError(
            f"question {question.id} has no scored outcome of an agent the router knows ({', '.join(router.agents)})"
        )
    asked: dict[str, AskedAgent] = {}
    fell_back = False
    while True:
        # The router is handed what was asked, and nothing else of the outcomes.
        routed = router.decide(Known(dict(asked), question.question, question.dimension, legal))
        fell_back |= routed.fallback
        if routed.action != ASK:
            break
        asked[routed.agent] = known_of(question.agents[routed.agent])
    outcomes = [question.agents[name] for name in asked]
    return Game(
        asked=tuple(asked),
        kept=routed.agent,
        expected=routed.expected,
        score=(question.agents[routed.agent].score or 0.0) if routed.agent else 0.0,
        cost_usd=sum(outcome.cost_usd or 0.0 for outcome in outcomes),
        latency_ms=sum(outcome.latency_ms or 0.0 for outcome in outcomes),
        fell_back=fell_back,
        reason=routed.reason,
    )
