"""A panel that replaces MetaCogAgent's thresholds.

MetaCogAgent decides in two steps. At `assess` one agent i has said how sure it is: it answers, or all others have to
say how sure they are too. At `assign` all have said it: another agent answers, or all vote. Let P_j be the panel's
P(right) of agent j given the confidences so far, S_j the price of j's confidence, and A_j of its answer. The actions
are worth

    execute         P_i - lambda A_i
    ask             E max over j != i of (P_j - lambda A_j) - lambda sum over j != i of S_j
    delegate to j   P_j - lambda A_j

The expectation is over what the others may say, drawn from what they said in training. So if confidences are
uninformative, asking is not worth their price. The panel's own plan of asking is not used, because it prices another
procedure, in which asking an agent brings its answer as well.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from metaprobe.api import (
    Action,
    ContractMismatch,
    Decision,
    Outcome,
    Panel,
    PaperRules,
    Policy,
    RecordError,
    Signals,
    SignalSource,
    State,
)

IMAGINED_DRAWS = 32
"""Number of random draws of what the other agents may say. The draws give the worth of asking them."""
DEFAULT_ASSESSMENT = 0.5
MIN_SCALE_WIDTH = 0.5
"""Least width of an agent's scale of confidence: an agent that always gave the same value may give another
within it.
"""


class AgentPolicy:
    """Makes MetaCogAgent's two decisions by a panel; if it cannot judge, and at other points, by the papers' rules.

    It never has all agents vote: no estimate of P(the vote is right) won on held-out items. A system that asks in its
    own order spends a different sum from the one that the panel's curves show. It may be shared by threads.
    """

    label = "learned (a panel)"
    own = ("assess", "assign")

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Maps a point to the signals that decide there. At every point, its own points included, these are the signals
        of the papers' rules.
        """
        return self.rules.reads

    def __init__(
        self,
        panel: Panel,
        rules: PaperRules | None = None,
        *,
        price: float | None = None,
        budget: float | None = None,
        agents: Sequence[str] = (),
        assessment: float | None = None,
    ) -> None:
        """Raises `RecordError` if `assessment` is not from 0 to 1, and as `Panel.ask_plan`.

        Args:
            panel: the panel.
            rules: the papers' rules.
            price: accuracy that a US dollar for 1,000 questions must bring; by default what it brings at `budget`, or
                at the checkpoint's own budget.
            budget: US dollars for 1,000 questions.
            agents: the team, by default all that the panel knows.
            assessment: part of an agent's price (in the panel's training: its confidence and its answer together) that
                its confidence alone takes. It is 1 if the confidence is read from a draft, which is then the answer. By
                default what it took in the runs on which the panel was trained.
        """
        contract = panel.checkpoint.manifest.contract
        if assessment is None:
            assessment = float(contract.get("assessment", DEFAULT_ASSESSMENT))
        if not 0 <= assessment <= 1:
            raise RecordError(f"assessment is {assessment}; expected the part of a price from 0 to 1")
        plan = panel.ask_plan(price=price, budget=budget)
        assert panel.asks is not None
        self.panel, self.asks = panel, panel.asks
        self.lambda_ = panel.asks.curves.implied_price(plan.cost) if price is None else float(price)
        self.sources = panel.sources
        self.rules = rules or PaperRules()
        self.assessment = assessment
        self.team = tuple(name for name in agents or panel.agents.names if name in panel.agents.names)
        # Stated confidences are round numbers: the same few cases come again and again.
        self._imagined = lru_cache(maxsize=1024)(self._imagine)

    def __repr__(self) -> str:
        digest = self.panel.checkpoint.digest[:16]
        return (
            f"AgentPolicy({digest}, lambda={self.lambda_:.6g}, assessment={self.assessment}, {self.team}, {self.rules})"
        )

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        """Returns the decision, scored by each agent's P(right).

        The score of `ask` is the P(right) from which the agent keeps its own answer; `collaborate` has none.
        """
        failed = frozenset(state.failed)
        state, legal_actions, note = state.without_failed(legal_actions)
        decision = self._decide(state, legal_actions, failed)
        return dataclasses.replace(decision, reason=decision.reason + note) if note else decision

    def _decide(self, state: State, legal_actions: Sequence[str], failed: frozenset[str]) -> Decision:
        points = {"assess": self._assess, "assign": self._assign}
        if state.point not in points:
            return self._by_rule(state, legal_actions, f"the panel decides {' and '.join(points)} only")
        if state.agent not in self.panel.agents.names:
            return self._by_rule(state, legal_actions, f"nothing is known of {state.agent or 'the agent'}")
        return points[state.point](state, legal_actions, failed)

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Does nothing: the policy is fitted in advance, and learns from outcomes only by training again."""

    def _assess(self, state: State, legal_actions: Sequence[str], failed: frozenset[str]) -> Decision:
        if state.agent in failed:
            return state.make_decision(legal_actions[0], legal_actions, {}, "the agent's answer cannot be kept")
        if fault := self._mismatch_reason({state.agent: state.signals}):
            return self._by_rule(state, legal_actions, fault)
        other_agents = [name for name in self.team if name != state.agent and name not in failed]
        if not other_agents:
            return self._by_rule(state, legal_actions, f"the panel knows no agent to ask beside {state.agent}")
        # The worth of the best other agent once all have spoken, less the prices, and who is most often best.
        prices = {name: self._price(name, state.dimension, 1 - self.assessment) for name in other_agents}
        total, count_by_agent = 0.0, Counter[str]()
        for imagined in self._imagined(state.agent, _confidence(state.signals), state.dimension, failed):
            best = max(other_agents, key=lambda name: imagined[name] - prices[name])
            count_by_agent[best] += 1
            total += imagined[best] - prices[best]
        worth = total / IMAGINED_DRAWS - sum(
            self._price(name, state.dimension, self.assessment) for name in other_agents
        )
        [(most_often_best, _)] = count_by_agent.most_common(1)
        p = self._p_right({state.agent: _confidence(state.signals)}, state.dimension)[state.agent]
        needed = worth + self._price(state.agent, state.dimension, 1 - self.assessment) - self.panel.least_gain
        action = Action.EXECUTE if p >= needed else Action.ASK
        action = action if action in legal_actions else legal_actions[0]
        reason = (
            f"P(right) {p:.3f} {'>=' if p >= needed else '<'} {needed:.3f}, which makes up for asking "
            f"{len(other_agents)} others at their price, most often to hand it to {most_often_best}"
        )
        return state.make_decision(action, legal_actions, {Action.EXECUTE: p, Action.ASK: needed}, reason)

    def _assign(self, state: State, legal_actions: Sequence[str], failed: frozenset[str]) -> Decision:
        signals = {state.agent: state.signals, **state.others}
        heard_signals = {
            agent: signals_of_agent
            for agent, signals_of_agent in signals.items()
            if agent not in failed and agent in self.panel.agents.names
        }
        if unknown_agents := sorted(set(signals) - set(self.panel.agents.names)):
            return self._by_rule(state, legal_actions, f"nothing is known of {', '.join(unknown_agents)}")
        if fault := self._mismatch_reason(heard_signals):
            return self._by_rule(state, legal_actions, fault)
        p_right = self._p_right(
            {agent: _confidence(signals_of_agent) for agent, signals_of_agent in heard_signals.items()}, state.dimension
        )
        legal = [name for name in legal_actions if name in p_right and name in self.team]
        if not legal:
            return self._by_rule(state, legal_actions, f"the panel knows none of {', '.join(legal_actions)}")
        price_part = 1 - self.assessment
        worth = {name: p_right[name] - self._price(name, state.dimension, price_part) for name in legal}
        best = max(worth, key=lambda name: worth[name])
        scores = {name: p_right[name] for name in legal}
        scores_text = ", ".join(f"{name} {p:.3f}" for name, p in scores.items())
        reason = f"{best} is worth most, {worth[best]:.3f} after its price; P(right): {scores_text}"
        return state.make_decision(best, legal_actions, scores, reason)

    def _imagine(
        self, agent: str, confidence: float | None, dimension: str, failed: frozenset[str]
    ) -> list[dict[str, float]]:
        """Returns P(right) of every agent in `IMAGINED_DRAWS` cases of what the others may say.

        Args:
            agent: the agent that has spoken.
            confidence: its confidence.
            dimension: dimension of the item.
            failed: agents that failed.
        """
        other_agents = [name for name in self.team if name != agent and name not in failed]
        imagined = {name: draw_confidences(self.panel, name, seed) for seed, name in enumerate(other_agents)}
        return [
            self._p_right({agent: confidence, **{name: values[draw] for name, values in imagined.items()}}, dimension)
            for draw in range(IMAGINED_DRAWS)
        ]

    def _mismatch_reason(self, heard: Mapping[str, Signals]) -> str:
        """Returns why stated confidences do not match those of training; empty if they do."""
        for agent, signals in heard.items():
            signal = signals.confidence
            if signal is None:
                if agent in self.panel.always_stated:
                    return f"{agent} gave no confidence, and did in training"
            elif reason := self.panel.source_mismatch(agent, signal.source):
                return reason
            elif (levels := self.panel.agents.stated_levels(agent)) is not None:
                low, high = float(levels[0]), float(levels[-1])
                width = max(high - low, MIN_SCALE_WIDTH)  # a number further away must be on another scale
                if not low - width <= signal.value <= high + width and signal.value != -math.inf:
                    range_text = f"from {low:g} to {high:g}"
                    return f"the confidence of {agent} is {signal.value:g}, and in training it was {range_text}"
        return ""

    def _p_right(self, stated: Mapping[str, float | None], dimension: str) -> dict[str, float]:
        return self.panel.chances_of_stated(stated, dimension=dimension)  # `_doubt` has checked where these are from

    def _price(self, agent: str, dimension: str, price_part: float) -> float:
        """Returns lambda * that part of the agent's price: the accuracy that it must bring.

        Args:
            agent: the agent.
            dimension: dimension of the item.
            price_part: part of the price.
        """
        agents = self.panel.agents
        price = self.asks.price[agents.agent(agent), agents.dimension(dimension)]
        return float(self.lambda_ * price_part * price)

    def _by_rule(self, state: State, legal_actions: Sequence[str], fault: str) -> Decision:
        """Returns the papers' decision, and why their rule decided.

        Args:
            state: the state.
            legal_actions: the legal actions.
            fault: why the panel did not decide.
        """
        decision = self.rules.decide(state, legal_actions)
        reason = f"{decision.reason}; by the papers' rule: {fault}"
        return state.make_decision(decision.action, legal_actions, decision.scores, reason)


def _confidence(signals: Signals) -> float | None:
    """Returns how sure an agent said it was before it answered; None if it said nothing."""
    return None if signals.confidence is None else signals.confidence.value


def check_sources(policy: Policy, signals: SignalSource, agents: Sequence[str]) -> None:
    """Raises `ContractMismatch` if a panel would decide by confidences from which it did not learn.

    It is called before a collection's first call, because every decision would fall back to the rules. The inner policy
    of an exploring one is checked; policies that are no panel are not.

    Args:
        policy: the policy.
        signals: source of the signals.
        agents: names of the agents.
    """
    inner = getattr(policy, "policy", policy)
    if not isinstance(inner, AgentPolicy):
        return
    for agent in agents or inner.team:
        if reason := inner.panel.source_mismatch(agent, signals.source("confidence", agent), whole=True):
            raise ContractMismatch(f"{inner.panel.checkpoint.path}: {reason}")


def draw_confidences(panel: Panel, agent: str, seed: int) -> list[float | None]:
    """Returns `IMAGINED_DRAWS` confidences like those of the agent in training: evenly spaced quantiles, shuffled.

    All are None if the agent gave none in training.

    Args:
        panel: the panel.
        agent: the agent.
        seed: seed of the order.
    """
    levels = panel.agents.stated_levels(agent)
    if levels is None:
        return [None] * IMAGINED_DRAWS
    ranks = (np.random.default_rng(seed).permutation(IMAGINED_DRAWS) + 0.5) / IMAGINED_DRAWS
    return [float(level) for level in levels[(ranks * len(levels)).astype(int)]]
