"""Names what the lines of outcomes lack: agents that were not asked, calls that failed, answers without a label."""

from collections import Counter
from collections.abc import Iterator, Sequence

from metaprobe.records.outcomes import QuestionOutcomes


def gaps_of(questions: Sequence[QuestionOutcomes], agents: Sequence[str]) -> Iterator[str]:
    """Yields a line for each kind of gap: how many lines lack what, of which agents, and what is done about it.

    Logged decisions hold one agent by their nature, so that the others are not missing there.
    """
    full = [question for question in questions if not question.propensities]
    missing = _lines(full, [[name for name in agents if name not in question.agents] for question in full])
    if missing:
        yield (
            f"{missing} lack agents: nothing is learned of an agent from a line without it, and an agent that is not "
            "on every line cannot be chosen to answer everything alone"
        )
    outcomes = [[(name, question.agents.get(name)) for name in agents] for question in questions]
    if failed := _lines(questions, [[n for n, o in of if o is not None and o.error is not None] for of in outcomes]):
        yield (
            f"{failed} hold failed calls: each counts as not right, at its cost_usd or else the agent's mean cost, and "
            "never as an answer that could be kept"
        )
    if unlabelled := _lines(questions, [[n for n, o in of if o is not None and o.score is None] for of in outcomes]):
        yield f'{unlabelled} hold answers without "correct" or "score": these answers are left out'
    if bare := sum(all(o is None or o.score is None for _, o in of) for of in outcomes):
        yield f"{bare} of {len(questions)} lines hold no scored answer of these agents: these lines are left out"


def _lines(questions: Sequence[QuestionOutcomes], named: Sequence[Sequence[str]]) -> str:
    """How many of the lines name an agent, and how often each is named; empty where none is."""
    counts = Counter(name for names in named for name in names)
    if not counts:
        return ""
    shown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda one: -one[1]))
    return f"{sum(map(bool, named))} of {len(questions)} lines ({shown})"
