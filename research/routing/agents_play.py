"""The recorded items of MetaCogAgent played by any policy, with what that costs: Algorithm 1 without its calls."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metaprobe.collecting.collect import collect
from metaprobe.eval.systems.metacogagent import outcome_matrix
from metaprobe.llms.pricing import Price
from metaprobe.llms.replay import ReplayLLM
from metaprobe.pipelines import SYSTEMS, Models, Prompts, Setup
from metaprobe.pipelines.answers import most_voted
from metaprobe.pipelines.metacogagent import extract
from metaprobe.probes.signals import Signal, Signals
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Decision, Run
from metaprobe.routing.actions import ASK, COLLABORATE, EXECUTE
from metaprobe.routing.learned_policy import AgentPolicy
from metaprobe.routing.policy import Outcome, Policy, State
from metaprobe.routing.profiles import Experience, Profiles, read_classification
from research.routing.data import PARAMETERS, USD_PER_BILLION

PRICES = {name: Price(size * USD_PER_BILLION, size * USD_PER_BILLION) for name, size in PARAMETERS.items()}
CLASSIFIER = PRICES["beta"]
"""It is the same model."""
RULED = "by the papers' rule"
"""In the reason of a learned policy's decision that the rule made."""
Reads = Literal["stated", "answer", "both", "free"]
"""The statement before the answer; a drafted answer, which is then the agent's; both; or what costs nothing."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Played:
    """What was done about one item, and what came of it."""

    right: float
    first_right: float
    """Of the agent that got the item."""
    asked: bool
    delegated: bool
    collaborated: bool
    fell_back: bool
    """Whether the papers' rule decided in the place of a learned policy."""
    calls: int
    tokens: int
    usd: float


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The recorded runs as arrays, items in the order of their ids; (n, A) unless said otherwise."""

    runs: tuple[Run, ...]
    agents: tuple[str, ...]
    dimensions: tuple[str, ...]
    groups: NDArray[np.str_]
    right: Floats
    stated: Floats
    likely: Floats
    """exp(mean log-probability) of the answer."""
    tokens: dict[str, Ints]
    """By stage; of `classify` (n, 1)."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Table":
        ordered = sorted(runs, key=lambda run: run.item.id)
        matrix = outcome_matrix(ordered)
        answers = [[call_of(run, "answer", agent) for agent in matrix.agents] for run in ordered]
        return cls(
            tuple(ordered),
            matrix.agents,
            tuple(read_classification(run) or "" for run in ordered),
            np.array(matrix.groups),
            matrix.correct,
            matrix.confidence,
            np.array([[np.exp(np.mean(call.logprobs)) for call in row] for row in answers]),
            {
                stage: np.array([[used(call_of(run, stage, agent)) for agent in agents] for run in ordered])
                for stage, agents in (("classify", ("",)), ("assess", matrix.agents), ("answer", matrix.agents))
            },
        )

    def voted(self, row: int, weights: Sequence[float]) -> int:
        """Column of the agent whose answer wins a vote."""
        run = self.runs[row]
        answers = {agent: extract(run.item, call_of(run, "answer", agent), "") for agent in self.agents}
        votes = {agent: (answers[agent], weight) for agent, weight in zip(self.agents, weights, strict=True)}
        return self.agents.index(most_voted(run.item, votes))

    def spent(
        self, row: int, assessed: Sequence[int], answered: Sequence[int], classifies: bool = True
    ) -> dict[str, Any]:
        """Calls, tokens and US dollars."""
        asked = [("assess", c) for c in assessed] + [("answer", c) for c in answered]
        tokens = [(int(self.tokens[stage][row, c]), PRICES[self.agents[c]]) for stage, c in asked]
        tokens += [(int(self.tokens["classify"][row, 0]), CLASSIFIER)] * classifies
        usd = sum(count * price.prompt for count, price in tokens) / 1e6
        return {"calls": len(tokens), "tokens": sum(count for count, _ in tokens), "usd": usd}

    def alone(self, row: int, column: int) -> Played:
        """One agent answers, and nobody classifies or assesses."""
        right = self.right[row, column]
        return Played(right, right, False, False, False, False, **self.spent(row, (), (column,), classifies=False))


def call_of(run: Run, stage: str, agent: str) -> Call:
    return next(call for call in run.calls if call.stage == stage and call.agent == agent)


def used(call: Call) -> int:
    return call.usage.prompt_tokens + call.usage.completion_tokens


def play(
    table: Table,
    policy: Policy,
    rows: Ints,
    profiles: Profiles,
    *,
    reads: Reads = "stated",
    confidence: Floats | None = None,
    source: str = "stated",
) -> list[Played]:
    """Algorithm 1 over these items one after another, as the pipeline runs it; the profiles learn.

    `reads`: what is paid for to know how sure an agent is. `confidence`, (n, A) of all items: that number, by default
    the stated one, and of a draft its likelihood; `source`: where it is from, as the policy is informed.
    """
    found, A = [], len(table.agents)
    if confidence is None:
        confidence = table.likely if reads == "answer" else table.stated
    for row in rows.tolist():
        dimension, first = table.dimensions[row], row % A
        signals = [
            Signals(
                confidence=None if np.isnan(c) else Signal(float(c), source),
                profile=Signal(profiles.rate_of(agent, dimension), "profile"),
            )
            for agent, c in zip(table.agents, confidence[row], strict=True)
        ]
        name, identity = table.agents[first], f"-/-/-/{table.runs[row].item.id}/-"
        state = State(f"{identity}/assess/0", "assess", signals[first], name, dimension=dimension)
        assess = policy.decide(state, (EXECUTE, ASK))
        executing, heard, reasons = (first,), (first,), assess.reason
        kept = first
        if assess.action == ASK:
            others = [c for c in range(A) if c != first]
            known = {table.agents[c]: signals[c] for c in others}
            state = State(f"{identity}/assign/0", "assign", signals[first], name, known, dimension=dimension)
            assign = policy.decide(state, (*known, COLLABORATE))
            heard, reasons = tuple(range(A)), reasons + assign.reason
            if assign.action == COLLABORATE:
                executing = heard
                scores = {**assign.scores, name: assess.scores.get(EXECUTE, 0.0)}
                kept = table.voted(row, [max(scores.get(agent, 0.0), 0.0) for agent in table.agents])
            else:
                kept = table.agents.index(assign.action)
                executing = (kept,)
        for c in executing:
            profiles.learn(Experience(table.agents[c], dimension, table.right[row, c]))
        assessed = heard if reads in ("stated", "both") else ()
        spent = table.spent(row, assessed, heard if reads in ("answer", "both") else executing)
        asked, alone = assess.action == ASK, len(executing) == 1
        how = (asked, asked and alone, asked and not alone, RULED in reasons)
        found.append(Played(table.right[row, kept], table.right[row, first], *how, **spent))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class ByItem:
    """Each item's decisions by the policy that did not see it."""

    policies: dict[str, AgentPolicy]

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        # system/variant/models/ITEM/digest/point/number, and an item's own id has slashes too
        return self.policies["/".join(state.decision_id.split("/")[3:-3])].decide(state, legal_actions)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Learns nothing."""


def check_against_pipeline(table: Table, policy: Policy, played: Sequence[Played]) -> None:
    """The pipeline itself, replayed from the recorded calls, must do on every item what was played here."""
    system = SYSTEMS["metacogagent"]
    prompts = Prompts.load(system.name, system.prompts, optional=system.agents)
    setup = Setup(Models(ReplayLLM.from_runs(table.runs)), prompts, policy=policy, agents=table.agents)
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder))
        items = [run.item for run in table.runs]
        report = asyncio.run(collect(system, items, setup, store, variants=["algorithm"], wave=1))
        if report.failed:
            raise RuntimeError(report.failed[0])
        outcome = {run.item.id: (run.outcome, len(run.calls)) for run in store}
    here = {run.item.id: (game.right, game.calls) for run, game in zip(table.runs, played, strict=True)}
    if differing := [item for item in here if here[item] != outcome[item]]:
        raise RuntimeError(f"{len(differing)} items end otherwise in the pipeline, such as {differing[:3]}")


def mean(games: Sequence[Played], name: str) -> float:
    return float(np.mean([getattr(game, name) for game in games]))
