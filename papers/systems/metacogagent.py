"""MetaCogAgent: an agent that is not sure of itself asks the others, and delegates the task or votes with them.

Algorithm 1 with its baselines (section V-A) and ablations (Table IV). The classifier, the confidences (stage `assess`)
and the answers (stage `answer`) are calls of their own stage, so that they can be counted separately: the paper's 1,382
API calls on 700 tasks are fewer than one assessment and one execution each, so it cannot have counted both.

What the paper leaves open:

- The dispatcher uses the item's place among the items that are run.
- The weight of a vote is the score that the policy gave the agent; the paper's rules give c.
- After a vote each agent learns from its own answer (`metaprobe.papers.policies.profiles.experiences`).
- An item whose dimension could not be read has the dimension `unknown`, which has profiles of its own.
- Without self-assessment, every stated confidence is the rules' `unstated` (the paper's "fixed confidence") and the
  profiles stay. Without cross-evaluation, only the others' stated confidences are. Otherwise nothing could be delegated
  to anybody in particular, and Table IV has delegation precisions for both.

In the variant `panel` a panel replaces both rules: it names who answers, one agent after another, and keeps an answer.
A panel that stores no plan of asking has all agents answer, and replaces the vote.

A checkpoint that replaces the stated confidence and reads the prompt costs one token instead of an assessment. A
checkpoint that reads the answer makes every asked agent draft its answer first. Such drafts count as executions, and
the draft of the chosen agent is its answer, with no second call.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

from metaprobe.api import (
    Action,
    Call,
    DispatchedRun,
    Item,
    Message,
    RecordError,
    Run,
    Signal,
    Signals,
    canonical,
    parse_stated,
)
from metaprobe.papers.policies.profiles import PROFILE_PREFIX, UNKNOWN_DIMENSION, experiences
from metaprobe.papers.systems.self_report import CODE_TOKENS, DIRECT_TOKENS, extract_answer
from metaprobe.papers.systems.session import PANEL, Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.system_options import Constant
from metaprobe.papers.systems.vote_counting import most_voted

AGENTS = ("alpha", "beta", "gamma")
"""Agents for reasoning, retrieval and coding."""

CLASSIFY_TOKENS, ASSESS_TOKENS = 6, 16
TALK_ROUNDS = Constant("talk_rounds", 2, "how often each agent may speak in the variant conversation")
"""The paper's AutoGen made 2.08 calls a task."""

ABLATIONS = ("no-self-assessment", "no-delegation", "no-cross-evaluation", "no-collaboration")


async def metacogagent(session: Session) -> Run:
    """Runs Algorithm 1, or the baseline that the variant names."""
    team = Team(session)
    if session.variant in BASELINE_DISPATCH:
        return session.run(await BASELINE_DISPATCH[session.variant](team))
    first = team.next_in_turn
    await team.classify(first)
    if session.variant == "every-agent":
        await team.ask_everyone()

    own_signals = await team.assess(first, ask=session.variant != "no-self-assessment")
    legal: tuple[str, ...] = (Action.EXECUTE,) if session.variant == "no-delegation" else (Action.EXECUTE, Action.ASK)
    assess = session.decide("assess", legal, agent=first, signals=own_signals, dimension=team.dimension)
    if assess.action == Action.EXECUTE:
        return session.run(await team.answer(first))

    other_agents = [agent for agent in team.agents if agent != first]
    asks_peers = session.variant not in ("no-self-assessment", "no-cross-evaluation")
    peers = dict(
        zip(
            other_agents,
            await asyncio.gather(*(team.assess(agent, ask=asks_peers) for agent in other_agents)),
            strict=True,
        )
    )
    legal = tuple(other_agents) if session.variant == "no-collaboration" else (*other_agents, Action.COLLABORATE)
    assign = session.decide("assign", legal, agent=first, signals=own_signals, others=peers, dimension=team.dimension)
    if assign.action != Action.COLLABORATE:
        return session.run(await team.answer(assign.action))

    answers = await asyncio.gather(*(team.answer(agent) for agent in team.agents))
    scores = {**assign.scores, first: assess.scores.get(Action.EXECUTE, 0.0)}
    weights = [max(scores.get(agent, 0.0), 0.0) for agent in team.agents]
    votes = dict(zip(team.agents, zip(answers, weights, strict=True), strict=True))
    return session.run(votes[most_voted(session.item, votes)][0])


class Team:
    """The agents at work on one item. No agent assesses or answers it twice."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.agents = session.setup.agents or AGENTS
        if reserved := {Action.EXECUTE, Action.ASK, Action.COLLABORATE, ""} & set(self.agents):
            raise RecordError(f"agents {', '.join(self.agents)}: {reserved.pop()!r} is no name for an agent")
        self.dimension = UNKNOWN_DIMENSION
        self._signals: dict[str, Signals] = {}
        self._drafts: dict[str, Call] = {}

    @property
    def next_in_turn(self) -> str:
        """The next agent, round-robin over the items."""
        return self.agents[self.session.index % len(self.agents)]

    async def classify(self, first: str) -> None:
        """Finds the item's dimension; notes it, who got the item first, and the profiles as they are now."""
        entries = (entry.partition(":") for entry in self.session.setup.prompts.entries("dimensions"))
        names = {word.strip().lower(): name.strip() or word.strip() for word, _, name in entries}
        call = await self.session.ask("classify", stage="classify", max_tokens=CLASSIFY_TOKENS)
        named_dimensions = {word for word in names if re.search(rf"\b{re.escape(word)}\b", call.text.lower())}
        self.dimension = names[named_dimensions.pop()] if len(named_dimensions) == 1 else UNKNOWN_DIMENSION
        self.session.state(
            call, DispatchedRun.dimension_prefix + self.dimension, None if self.dimension == UNKNOWN_DIMENSION else 1.0
        )
        self.session.label(call, DispatchedRun.first_prefix + first, 1.0, source="round-robin")
        for agent in self.agents:
            self.session.label(call, PROFILE_PREFIX + agent, self._profile(agent), source="profile")

    async def assess(self, agent: str, *, ask: bool = True) -> Signals:
        """Returns how sure the agent is before it answers, and its profile: c_v and c_p of equation 2.

        Without `ask` it returns only the profile: the rules then take their fixed `unstated` for the confidence.
        """
        if agent not in self._signals:
            confidence = await self._confidence(agent) if ask else None
            self._signals[agent] = Signals(confidence=confidence, profile=Signal(self._profile(agent), "profile"))
        return self._signals[agent]

    async def answer(self, agent: str) -> str:
        """Returns the agent's own answer."""
        return extract_final(self.session.item, await self.draft(agent), self.session.variant)

    async def draft(self, agent: str) -> Call:
        """Asks an agent for its answer, and returns the call."""
        if agent not in self._drafts:
            self._drafts[agent] = await self._ask_for_answer(agent, "answer")
        return self._drafts[agent]

    async def ask_everyone(self) -> None:
        """Gets every agent's confidence and answer, for the record."""

        async def both(agent: str) -> None:
            await self.assess(agent)
            await self.answer(agent)

        await asyncio.gather(*(both(agent) for agent in self.agents))

    async def say(self, agent: str, turn: int, turns: list[str], last_call: Call) -> Call:
        """Returns the agent's answer after others have spoken.

        Args:
            agent: the agent.
            turn: number of the turn.
            turns: what was said.
            last_call: the last call.
        """
        return await self._ask_for_answer(agent, "discuss", round=turn, parent=last_call, said="\n".join(turns))

    async def _ask_for_answer(self, agent: str, prompt: str, **other_arguments: Any) -> Call:
        """Asks the agent, under its persona, for an answer to the item.

        Args:
            agent: the agent.
            prompt: name of the prompt.
            **other_arguments: other arguments of `Session.ask`.
        """
        limit = CODE_TOKENS if self.session.item.check == "function" else DIRECT_TOKENS
        other_arguments |= {"max_tokens": limit, "system_prompt": self._system_prompt(agent)}
        return await self.session.ask(prompt, stage="answer", agent=agent, hidden=True, **other_arguments)

    async def answer_dispatched(self, agent: str, answering: str = "", *, source: str) -> str:
        """Returns the answer of an agent, or of `answering` instead, and notes who got the item first.

        Args:
            agent: the agent that got the item.
            answering: another agent that answers.
            source: source of the note.
        """
        answer = await self.answer(answering or agent)
        self.session.label(self._drafts[answering or agent], DispatchedRun.first_prefix + agent, 1.0, source=source)
        return answer

    async def _confidence(self, agent: str) -> Signal | None:
        session, stated, call = self.session, None, None
        if session.signals.asks("confidence", agent):
            persona = self._system_prompt(agent)
            call = await session.ask(
                "assess", stage="assess", agent=agent, max_tokens=ASSESS_TOKENS, system_prompt=persona
            )
            stated = session.state(call, "confidence", parse_stated("confidence", call.text))
        reads = session.signals.reads("confidence", agent)
        if reads == "prompt":
            prompt = (Message("system", self._system_prompt(agent)), *session.messages("answer"))
            call = await session.read(prompt, agent=agent, model_of="answer")
        elif reads == "answer":
            call = await self.draft(agent)
        return session.signal("confidence", agent=agent, stated=stated, call=call)

    def _profile(self, agent: str) -> float:
        return self.session.setup.profiles.rate_of(agent, self.dimension)

    def _system_prompt(self, agent: str) -> str:
        """Returns the persona of the agent's own file, or of the general file if there is none."""
        name = agent if agent in self.session.setup.prompts.texts else "agent"
        return "\n".join(message.content for message in self.session.messages(name, agent=agent))


async def random(team: Team) -> str:
    """Asks any agent, drawn from the seed and the item's id."""
    digest = hashlib.sha256(f"{team.session.setup.seed}/{team.session.item.id}".encode()).digest()
    return await team.answer_dispatched(
        team.agents[int.from_bytes(digest[:8], "big") % len(team.agents)], source="random"
    )


async def keyword(team: Team) -> str:
    """Asks the agent with most keywords in the question; if there are none, the agent whose turn it is.

    The prompt file `keywords` has a line for each agent, in the agents' order.
    """
    question = team.session.item.question.lower()
    entries = team.session.setup.prompts.entries("keywords")
    if len(entries) != len(team.agents):
        raise RecordError(
            f"keywords.txt has {len(entries)} lines for {len(team.agents)} agents ({', '.join(team.agents)}): give a "
            f"prompt folder of your own (--prompts), with a line for each of them in this order"
        )
    hits = {
        agent: sum(bool(re.search(rf"\b{re.escape(word.strip())}\b", question)) for word in words.split(","))
        for agent, words in zip(team.agents, entries, strict=True)
    }
    best = max(hits, key=lambda agent: hits[agent])
    return await team.answer_dispatched(team.next_in_turn, best if hits[best] else "", source="round-robin")


async def majority(team: Team) -> str:
    """Asks all agents, and counts every vote equally."""
    answers = await asyncio.gather(*(team.answer(agent) for agent in team.agents))
    votes = {agent: (answer, 1.0) for agent, answer in zip(team.agents, answers, strict=True)}
    return votes[most_voted(team.session.item, votes)][0]


async def panel(team: Team) -> str:
    """Asks the agents that the panel names, one after another, and returns the answer that it keeps. A panel that names
    no agents is asked what to keep of all answers.
    """
    session, drafts, kept_index = team.session, list[Call](), None
    await team.classify(team.next_in_turn)
    if session.panel.asks is None:
        drafts += await asyncio.gather(*(team.draft(agent) for agent in team.agents))
    else:
        while (step := session.panel_step(team.agents, drafts, team.dimension)).agent is not None:
            drafts.append(await team.draft(step.agent))
        kept_index = step.keep
    if not drafts:
        raise RecordError(f"the panel asks none of {', '.join(team.agents)}: train it on answers of these agents")
    return extract_final(session.item, session.keep(drafts, team.dimension, kept_index), session.variant)


async def conversation(team: Team) -> str:
    """Lets the agents speak in turn, each seeing what was said, until one agrees with the agent before it, or all have
    spoken twice.

    This replaces AutoGen's default conversation. The last word is the answer.
    """
    item, variant, start = team.session.item, team.session.variant, team.agents.index(team.next_in_turn)
    order = [*team.agents[start:], *team.agents[:start]]
    last = await team.draft(order[0])
    answer = extract_final(item, last, variant)
    turns = [f"{order[0]}: {answer}"]
    for turn in range(1, team.session.constant(TALK_ROUNDS) * len(order)):
        speaker = order[turn % len(order)]
        last = await team.say(speaker, turn // len(order), turns, last)
        previous_answer, answer = answer, extract_final(item, last, variant)
        turns.append(f"{speaker}: {answer}")
        if canonical(item, answer) and canonical(item, answer) == canonical(item, previous_answer):
            break
    return answer


def extract_final(item: Item, answer: Call, variant: str) -> str:
    """Returns the answer within an answer call, the same in every variant.

    Args:
        item: the item.
        answer: the call.
        variant: the variant.
    """
    return extract_answer(item, answer, "direct")


BASELINE_DISPATCH: dict[str, Callable[[Team], Awaitable[str]]] = {
    "single": lambda team: team.answer_dispatched(team.agents[0], source="single"),
    "round-robin": lambda team: team.answer_dispatched(team.next_in_turn, source="round-robin"),
    "random": random,
    "keyword": keyword,
    "majority": majority,
    PANEL: panel,
    "conversation": conversation,
}


SYSTEM = System(
    name="metacogagent",
    run=metacogagent,
    prompts=("classify", "dimensions", "assess", "answer", "discuss", "keywords", "agent", *AGENTS),
    variants=("algorithm", "every-agent", *BASELINE_DISPATCH, *ABLATIONS),
    panel_variants=(PANEL,),
    stages=("classify", "assess", "answer"),
    signals={"confidence": "answer"},
    decides=("assess", "assign"),
    without={
        **dict.fromkeys(("algorithm", "every-agent", *ABLATIONS), (TALK_ROUNDS.name,)),
        **dict.fromkeys((*BASELINE_DISPATCH, "no-delegation"), ("confidence", "assess", "assign", TALK_ROUNDS.name)),
        "no-self-assessment": ("confidence", TALK_ROUNDS.name),
        "conversation": ("confidence", "assess", "assign"),
    },
    extract_answer=extract_final,
    agents=AGENTS,
    experiences=experiences,
    limits={"classify": CLASSIFY_TOKENS, "assess": ASSESS_TOKENS, "answer": CODE_TOKENS},
    constants=(TALK_ROUNDS,),
)
