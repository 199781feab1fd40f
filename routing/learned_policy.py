"""Learned policies, by the kind of their checkpoint; and the router in the place of MetaCogAgent's thresholds.

MetaCogAgent asks in two steps. At `assess` one agent i has said how sure it is: it answers, or all others must say so
too. At `assign` all have said so: another agent answers, or all vote. With P_j the router's P(right) of agent j given
the confidences heard so far, S_j the price of j's confidence, and A_j of its answer, these are worth

    execute         P_i - lambda A_i
    ask             E max over j != i of (P_j - lambda A_j) - lambda sum over j != i of S_j
    delegate to j   P_j - lambda A_j

The expectation is over what the others may say, drawn from what they said in training: confidences that say nothing
are not worth their price, and it shows here. Where a second of waiting has a price, it is part of S and A; the others
are asked at once, so that of their time the longest counts. The router's gain head is not used, for it prices another
game, in which asking an agent brings its answer as well.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist

import numpy as np

from metaprobe.checkpoints import ContractMismatch, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.probes.signals import Signals
from metaprobe.probes.source import SignalSource
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Decision
from metaprobe.routing import learned
from metaprobe.routing.learned import ALWAYS, LearnedRouter, Routed
from metaprobe.routing.learned_state import AskedAgent, Known, Past, describe_mismatch
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import ASK, EXECUTE, Outcome, Policy, State, make_decision, without_failed

DRAWS = 32
"""Of what the other agents may say, for the worth of asking them."""
ASSESSMENT = 0.5


class AgentPolicy:
    """Makes MetaCogAgent's two decisions by the router; where it cannot judge, and elsewhere, by the papers' rules.

    It never has all agents vote: no estimate of P(the vote is right) won on held-out items (docs/research/routing.md).
    May be shared by threads.
    """

    label = "learned (a router)"
    own = ("assess", "assign")

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Point -> the signals that decide there: those of the papers' rules, at its own points as well."""
        return self.rules.reads

    def __init__(
        self,
        router: LearnedRouter,
        rules: PaperRules | None = None,
        *,
        agents: Sequence[str] = (),
        assessment: float | None = None,
    ) -> None:
        """`agents`: the team, by default all that the router offers. Prices of money and time are the router's.

        `assessment`: part of an agent's price (as in the router's training: its confidence and its answer together)
        that its confidence alone takes; 1 where the confidence is read from a draft, which is then the answer. By
        default what it took in the runs that the router was trained on. Raises `RecordError` where it is not from 0
        to 1.
        """
        if assessment is None:
            assessment = float(router.checkpoint.manifest.contract.get("assessment", ASSESSMENT))
        if not 0 <= assessment <= 1:
            raise RecordError(f"assessment is {assessment}; expected the part of a price from 0 to 1")
        # At its lambda, but not bound to the agent that may have been best alone within a budget.
        self.router = router.at(router.lambda_, router.per_second)
        self.rules = rules or PaperRules()
        self.assessment = assessment
        self.team = tuple(name for name in agents or router.offered if name in router.agents)
        # Stated confidences are round numbers: the same few cases come again and again.
        self._imagined = lru_cache(maxsize=1024)(self._imagine)

    def __repr__(self) -> str:
        digest, lambda_ = self.router.checkpoint.digest[:16], self.router.lambda_
        prices = f"lambda={lambda_:.6g}, per_second={self.router.per_second:.6g}"
        return f"AgentPolicy({digest}, {prices}, assessment={self.assessment}, {self.team}, {self.rules})"

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """Scores are P(right) of each agent; `ask` has the P(right) from which the agent should answer instead, and
        `collaborate` has none."""
        failed = frozenset(state.failed)
        state, legal_actions, told = without_failed(state, legal_actions)
        decision = self._decide(state, legal_actions, failed)
        return dataclasses.replace(decision, reason=decision.reason + told) if told else decision

    def _decide(self, state: State, legal_actions: Sequence[str], failed: frozenset[str]) -> Decision:
        points = {"assess": self._assess, "assign": self._assign}
        if state.point not in points:
            return self._by_rule(state, legal_actions, f"the router decides {' and '.join(points)} only")
        if state.agent not in self.router.agents:
            return self._by_rule(state, legal_actions, f"nothing is known of {state.agent or 'the agent'}")
        return points[state.point](state, legal_actions, failed)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Fitted beforehand; outcomes are learned from by training again."""

    def _assess(self, state: State, legal_actions: Sequence[str], failed: frozenset[str]) -> Decision:
        if state.agent in failed:
            return make_decision(state, legal_actions[0], legal_actions, {}, "the agent's answer cannot be kept")
        own = {state.agent: _heard(state.signals)}
        judged = self._judge(own, state.dimension)
        if judged.fallback:
            return self._by_rule(state, legal_actions, judged.reason)
        others = len([name for name in self.team if name != state.agent and name not in failed])
        if not others:
            return self._by_rule(state, legal_actions, f"the router knows no agent to ask beside {state.agent}")
        worth, likeliest = self._worth_of_asking(state.agent, own[state.agent].confidence, state.dimension, failed)
        p = judged.scores[state.agent]
        needed = worth + self._answer(state.agent, state.dimension) - self.router.margin
        action = EXECUTE if p >= needed else ASK
        action = action if action in legal_actions else legal_actions[0]
        reason = (
            f"P(right) {p:.3f} {'>=' if p >= needed else '<'} {needed:.3f}, which makes up for asking {others} "
            f"others at their price, most often to hand it to {likeliest}"
        )
        return make_decision(state, action, legal_actions, {EXECUTE: p, ASK: needed}, reason)

    def _assign(self, state: State, legal_actions: Sequence[str], failed: frozenset[str]) -> Decision:
        signals = {state.agent: state.signals, **state.others}
        heard = {agent: _heard(one) for agent, one in signals.items() if agent not in failed}
        if not any(name in self.router.agents for name in (*heard, *(set(self.team) - failed))):
            return self._by_rule(state, legal_actions, "the router knows nobody who has not failed")
        judged = self._judge(heard, state.dimension, failed)
        legal = [name for name in legal_actions if name in judged.scores]
        if judged.fallback or not legal:
            why = judged.reason if judged.fallback else f"the router knows none of {', '.join(legal_actions)}"
            return self._by_rule(state, legal_actions, why)
        worth = {name: judged.scores[name] - self._answer(name, state.dimension) for name in legal}
        best = max(worth, key=lambda name: worth[name])
        scores = {name: judged.scores[name] for name in legal}
        shown = ", ".join(f"{name} {p:.3f}" for name, p in scores.items())
        reason = f"{best} is worth most, {worth[best]:.3f} after its price; P(right): {shown}"
        return make_decision(state, best, legal_actions, scores, reason)

    def _worth_of_asking(
        self, agent: str, confidence: float | None, dimension: str, failed: frozenset[str]
    ) -> tuple[float, str]:
        """What the best other agent will be worth once all have spoken, less that price; and who it most often is."""
        others = [name for name in self.team if name != agent and name not in failed]
        prices = {name: self._answer(name, dimension) for name in others}
        total, chosen = 0.0, Counter[str]()
        for p in self._imagined(agent, confidence, dimension, failed):
            best = max(others, key=lambda name: p[name] - prices[name])
            chosen[best] += 1
            total += p[best] - prices[best]
        paid = sum(self._price(name, dimension, self.assessment) for name in others)
        waited = max(self._wait(name, dimension, self.assessment) for name in others)
        return total / DRAWS - paid - waited, chosen.most_common(1)[0][0]

    def _imagine(
        self, agent: str, confidence: float | None, dimension: str, failed: frozenset[str]
    ) -> list[dict[str, float]]:
        """P(right) of every agent in `DRAWS` cases of what the others may say."""
        others = [name for name in self.team if name != agent and name not in failed]
        said = {name: draw_confidences(self.router.past(name, dimension), seed) for seed, name in enumerate(others)}
        own = {agent: AskedAgent("", confidence, untold=True)}
        return [
            self._judge(
                {**own, **{name: AskedAgent("", values[draw], untold=True) for name, values in said.items()}},
                dimension,
                failed,
            ).scores
            for draw in range(DRAWS)
        ]

    def _judge(self, heard: Mapping[str, AskedAgent], dimension: str, failed: frozenset[str] = frozenset()) -> Routed:
        team = [name for name in self.team if name not in failed]
        return self.router.decide(Known(heard, dimension=dimension, agents=team))

    def _answer(self, agent: str, dimension: str) -> float:
        part = 1 - self.assessment
        return self._price(agent, dimension, part) + self._wait(agent, dimension, part)

    def _price(self, agent: str, dimension: str, part: float) -> float:
        """lambda * that part of the agent's price: the accuracy that it must bring."""
        return 1000 * self.router.lambda_ * part * self.router.past(agent, dimension).price(0)

    def _wait(self, agent: str, dimension: str, part: float) -> float:
        """The same of its time."""
        return self.router.per_second * part * (self.router.past(agent, dimension).seconds or 0.0)

    def _by_rule(self, state: State, legal_actions: Sequence[str], why: str) -> Decision:
        return by_rule(self.rules, state, legal_actions, why)


def _heard(signals: Signals) -> AskedAgent:
    """What an agent said of itself before it answered, and where the number is from."""
    signal = signals.confidence
    if signal is None:
        return AskedAgent(untold=True)  # it has not answered yet, and stated nothing
    return AskedAgent("", signal.value, signal.source)


def check_sources(policy: Policy, signals: SignalSource, agents: Sequence[str]) -> None:
    """Raises `ContractMismatch` where a router is to decide by confidences that it did not learn from.

    For a collection, before its first call: there every decision would fall back to the rules. Policies that hold
    another (exploration) are looked into; those that are no router are not asked.
    """
    inner = getattr(policy, "policy", policy)
    if not isinstance(inner, AgentPolicy):
        return
    for agent in agents or inner.team:
        if why := describe_mismatch(inner.router.sources, agent, signals.source("confidence", agent), whole=True):
            raise ContractMismatch(f"{inner.router.checkpoint.path}: {why}")


def by_rule(rules: PaperRules, state: State, legal_actions: Sequence[str], why: str) -> Decision:
    """The papers' decision, and why it is theirs."""
    decision = rules.decide(state, legal_actions)
    reason = f"{decision.reason}; by the papers' rule: {why}"
    return make_decision(state, decision.action, legal_actions, decision.scores, reason)


def draw_confidences(past: Past, seed: int) -> list[float | None]:
    """`DRAWS` confidences as the agent gave them in training, evenly over their quantiles, in random order.

    Among them None as often as it gave none, unless that was too seldom to be learned from.
    """
    levels = (np.random.default_rng(seed).permutation(DRAWS) + 0.5) / DRAWS
    stated = 1.0 if past.stated >= ALWAYS else past.stated
    if not past.knots or not stated:
        return [None] * DRAWS
    # Knots carry mid-ranks: half of a knot's own share lies below it, and all of the shares before.
    below, shares = 0.0, []
    for score in past.scores:
        shares.append(max(2 * (NormalDist().cdf(score) - below), 0.0))
        below += shares[-1]
    ends = np.array(list(accumulate(shares))) / below
    at = np.searchsorted(ends, levels / stated).clip(max=len(past.knots) - 1)
    return [past.knots[k] if level <= stated else None for k, level in zip(at, levels, strict=True)]


def load_policy(
    path: str | os.PathLike[str],
    rules: PaperRules | None = None,
    *,
    budget: float | None = None,
    seconds: float | None = None,
    lambda_: float | None = None,
    per_second: float | None = None,
    agents: Sequence[str] = (),
    assessment: float | None = None,
) -> Policy:
    """Returns the policy of the router in a checkpoint folder, verified; `rules` decide what it cannot.

    `budget` and `seconds`, or `lambda_` and `per_second`, are as `LearnedRouter` has them, `agents` and `assessment` as
    `AgentPolicy` does. A system that asks in an order of its own spends another sum than the router's curve says.
    Raises a `CheckpointError` for a bad checkpoint or one of another kind, `RecordError` for options that exclude each
    other.
    """
    checkpoint = load_checkpoint(path)
    check_kind(path, checkpoint.manifest.kind, learned.KIND)
    means = {"budget": budget, "seconds": seconds}
    prices = {"lambda": lambda_, "per_second": per_second}
    if any(value is not None for value in means.values()) and any(value is not None for value in prices.values()):
        named = {name: value for name, value in {**means, **prices}.items() if value is not None}
        raise RecordError(f"{named}: budget and seconds fix lambda and per_second; give either")
    router = LearnedRouter(checkpoint, budget=budget, seconds=seconds, lambda_=lambda_, per_second=per_second)
    return AgentPolicy(router, rules or PaperRules(), agents=agents, assessment=assessment)
