"""Ways of deciding that research/routing/agents.py compares: rules, learned policies, and controls."""

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.records.types import Decision
from metaprobe.routing.actions import ASK, COLLABORATE, EXECUTE
from metaprobe.routing.learned import KEEP, LearnedRouter
from metaprobe.routing.learned_policy import AgentPolicy
from metaprobe.routing.learned_state import AskedAgent, Known
from metaprobe.routing.paper import PaperRules
from metaprobe.routing.policy import Outcome, Policy, State, make_decision
from metaprobe.routing.profiles import Profiles
from metaprobe.training.common.roles import group_folds
from metaprobe.training.router.data import outcomes_of as arrays_of
from metaprobe.training.router.fit import LAMBDAS, cost_scale, fit_router
from metaprobe.training.router.outcomes_of_runs import outcomes_of
from metaprobe.training.router.train import write_router
from metaprobe.training.router.words import Words
from research.routing.agents_play import PRICES, RULED, Floats, Ints, Played, Reads, Table, mean, play

INNER = 2
"""Folds within the training items."""
GRID = {"theta": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0), "weight": (0.0, 0.3, 0.6, 0.9), "damping": (0.0, 0.2, 0.5)}
"""Constants of the rule that are tuned: theta, lambda and gamma of the paper."""
Methods = dict[str, list[Played]]
RULE, TUNED, TUNED_CHEAP = "the paper's rule", "the paper's rule, tuned", "the paper's rule, tuned within its price"
LEARNED, FREE, CHEAPER = "learned policy", "learned policy, price ignored", "learned policy, at the rule's price"
GAIN_HEAD, VOTES, DRAFTS = "learned, by its gain head", "learned, with a vote head", "learned, from drafts' likelihoods"
BEST = "best single agent"
NO_PRICE = 1e-3
"""Part of the checkpoint's lambda."""


class OwnGain(AgentPolicy):
    """At `assess` by the router's gain head, whose game is another: an agent that is asked has answered."""

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        decision = super().decide(state, legal_actions)
        if state.point != "assess" or RULED in decision.reason:
            return decision
        asked = {state.agent: AskedAgent("", state.signals.value("confidence"), untold=True)}
        routed = self.router.decide(Known(asked, dimension=state.dimension, agents=self.team))
        action = EXECUTE if routed.action == KEEP else ASK
        return make_decision(state, action, legal_actions, decision.scores, routed.reason)


@dataclass(frozen=True, slots=True, eq=False)
class WithVotes:
    """A learned policy that has all vote where a head for P(the vote is right) promises more than delegating."""

    policy: AgentPolicy
    head: LogisticRegression
    correlation: dict[str, float]

    def decide(self, state: State, legal_actions: Sequence[str]) -> Decision:
        decision = self.policy.decide(state, legal_actions)
        if state.point != "assign" or RULED in decision.reason:
            return decision
        heard = {
            a: AskedAgent("", s.value("confidence"), untold=True)
            for a, s in {state.agent: state.signals, **state.others}.items()
        }
        p = self.policy.router.decide(Known(heard, dimension=state.dimension, agents=self.policy.team)).scores
        promised = self.head.predict_proba(vote_row(list(p.values()), self.correlation, state.dimension)[None])[0, 1]
        unit = 1000 * self.policy.router.lambda_ * (1 - self.policy.assessment)
        price = {a: unit * self.policy.router.past(a, state.dimension).price(0) for a in p}
        extra = sum(price.values()) - price[decision.action]
        if promised - p[decision.action] <= extra + self.policy.router.margin:
            return decision
        return make_decision(state, COLLABORATE, legal_actions, p, f"P(the vote is right) {promised:.3f}")

    def observe(self, decision_id: str, outcome: Outcome) -> None:
        """Learns nothing."""


def vote_row(p: Sequence[float], correlation: dict[str, float], dimension: str) -> Floats:
    """Log-odds of the agents' P(right) in falling order, and how far their errors went together on the dimension."""
    odds = [np.log(x / (1 - x)) for x in sorted(np.clip(p, 0.01, 0.99), reverse=True)]
    return np.array([*odds, correlation.get(dimension, correlation[""])])


def error_correlation(table: Table, rows: Ints) -> dict[str, float]:
    """Mean over pairs of agents, by dimension, and over all under the empty name."""

    def mean(chosen: Ints) -> float:
        pairs = np.corrcoef(table.right[chosen].T)[np.triu_indices(len(table.agents), 1)]
        return float(np.nan_to_num(pairs).mean())

    names = np.array(table.dimensions)[rows]
    return {"": mean(rows)} | {d: mean(rows[names == d]) for d in np.unique(names) if (names == d).sum() > 20}


def vote_head(
    table: Table, questions: Sequence[QuestionOutcomes], train: Ints, seed: int
) -> tuple[Any, dict[str, float]]:
    """Fitted on P(right) that the router gives items it was not fitted on."""
    data = arrays_of(questions)
    words = Words.of(data.questions)
    p = np.zeros((len(train), len(table.agents)))
    y = np.zeros(len(train), dtype=np.int64)
    for rest, fold in group_folds(np.arange(len(train)), data.groups, y, INNER, seed):
        board = fit_router(data, words, rest, seed=seed).board(data, words, fold)
        p[fold] = board.success(np.arange(len(fold)), np.ones((len(fold), p.shape[1]), dtype=bool))
    correlation = error_correlation(table, train)
    X = np.stack([vote_row(row, correlation, table.dimensions[at]) for row, at in zip(p, train.tolist(), strict=True)])
    right = [table.right[at, table.voted(at, row)] for row, at in zip(p.tolist(), train.tolist(), strict=True)]
    return LogisticRegression(C=1.0, max_iter=1000).fit(X, np.array(right)), correlation


def learned(questions: Sequence[QuestionOutcomes], seed: int) -> LearnedRouter:
    """The router in a checkpoint made from these questions, as `metaprobe train router` writes it."""
    with tempfile.TemporaryDirectory() as folder:
        return LearnedRouter(write_router(Path(folder) / "c", questions, folds=INNER, seed=seed))


def drafted(table: Table, rows: Ints) -> list[QuestionOutcomes]:
    """Outcomes whose confidence is read from the answer, which is all that is paid for."""
    return [
        QuestionOutcomes(
            table.runs[row].item.id,
            str(table.groups[row]),
            dimension=table.dimensions[row],
            agents={
                agent: AgentOutcome(
                    "",
                    float(table.right[row, c]),
                    float(table.likely[row, c]),
                    int(table.tokens["answer"][row, c]) * PRICES[agent].prompt / 1e6,
                )
                for c, agent in enumerate(table.agents)
            },
        )
        for row in rows.tolist()
    ]


def tuned(table: Table, train: Ints, usd: float = np.inf) -> PaperRules:
    """The rule whose constants were most accurate on the training items at no more than this, the cheapest of equals.

    Its profiles start anew, as they did when `usd` was spent.
    """
    best, chosen = (-1.0, 0.0), PaperRules()
    for values in product(*GRID.values()):
        rules = PaperRules(**dict(zip(GRID, values, strict=True)))
        games = play(table, rules, train, Profiles())
        worth = (mean(games, "right"), -mean(games, "usd"))
        if worth > best and -worth[1] <= usd:
            best, chosen = worth, rules
    return chosen


def at_lambda(policy: AgentPolicy, lambda_: float) -> AgentPolicy:
    return AgentPolicy(policy.router.at(lambda_), agents=policy.team, assessment=policy.assessment)


def at_price(table: Table, policy: AgentPolicy, train: Ints, usd: float) -> AgentPolicy:
    """The policy at the least lambda at which the training items cost no more than this."""
    scale = cost_scale(arrays_of(outcomes_of([table.runs[row] for row in train], prices=PRICES)))
    for lambda_ in np.geomspace(*LAMBDAS, 40) / scale:
        cheaper = at_lambda(policy, float(lambda_))
        if mean(play(table, cheaper, train, Profiles()), "usd") <= usd:
            return cheaper
    return cheaper


def one_fold(table: Table, train: Ints, test: Ints, seed: int) -> tuple[Methods, AgentPolicy, dict[str, Any]]:
    """Every way of deciding, on the items of one fold; the learned policy; what was tuned, and the vote's numbers."""
    rules = tuned(table, train)
    within = tuned(table, train, mean(play(table, PaperRules(), train, Profiles()), "usd"))
    found: Methods = {}
    paid = {}
    for name, rule in ((RULE, PaperRules()), (TUNED, rules), (TUNED_CHEAP, within)):
        profiles = Profiles()
        play(table, rule, train, profiles)
        paid[name] = mean(play(table, rule, train, copy.deepcopy(profiles)), "usd")  # once they have learned
        found[name] = play(table, rule, test, profiles)
    questions = outcomes_of([table.runs[row] for row in train], prices=PRICES)
    assessed = table.tokens["assess"][train] / (table.tokens["assess"] + table.tokens["answer"])[train]
    policy = AgentPolicy(learned(questions, seed), agents=table.agents, assessment=float(assessed.mean()))
    drafted_policy = AgentPolicy(learned(drafted(table, train), seed), agents=table.agents, assessment=1.0)
    head, correlation = vote_head(table, questions, train, seed)
    policies: dict[str, tuple[Policy, Reads]] = {
        LEARNED: (policy, "stated"),
        FREE: (at_lambda(policy, NO_PRICE * policy.router.lambda_), "stated"),
        CHEAPER: (at_price(table, policy, train, paid[RULE]), "stated"),
        GAIN_HEAD: (OwnGain(policy.router, agents=policy.team, assessment=policy.assessment), "stated"),
        VOTES: (WithVotes(policy, head, correlation), "stated"),
        DRAFTS: (drafted_policy, "answer"),
    }
    found |= {name: play(table, one, test, Profiles(), reads=reads) for name, (one, reads) in policies.items()}
    found |= simple(table, train, test, seed)
    return found, policy, {"tuned": asdict(rules), **votes(table, policy, head, correlation, test)}


def simple(table: Table, train: Ints, test: Ints, seed: int) -> Methods:
    """Controls that ask nobody how sure it is. A vote is weighted by log-odds of the agents' past accuracy."""
    A = len(table.agents)
    rates = table.right[train].mean(axis=0)
    odds = np.log(rates / (1 - rates)) - np.log(rates / (1 - rates)).min() + 0.1
    drawn = np.random.default_rng(seed).integers(A, size=len(test))
    rows = test.tolist()

    def vote(row: int, weights: Sequence[float]) -> Played:
        right, everyone = table.right[row], range(A)
        spent = table.spent(row, (), everyone, classifies=False)
        return Played(right[table.voted(row, weights)], right[row % A], False, False, False, False, **spent)

    return {
        BEST: [table.alone(row, int(rates.argmax())) for row in rows],
        "the agent whose turn it is": [table.alone(row, row % A) for row in rows],
        "random agent": [table.alone(row, int(column)) for row, column in zip(rows, drawn, strict=True)],
        "majority vote": [vote(row, [1.0] * A) for row in rows],
        "weighted vote": [vote(row, odds.tolist()) for row in rows],
        "oracle": [table.alone(row, int(table.right[row].argmax())) for row in rows],
    }


def votes(table: Table, policy: AgentPolicy, head: Any, correlation: dict[str, float], test: Ints) -> dict[str, Any]:
    """Of every test item: whether the vote was right, P of it, and the greatest P(right) of an agent."""
    found = []
    for row in test.tolist():
        dimension = table.dimensions[row]
        stated = {
            agent: AskedAgent("", None if np.isnan(c) else float(c), untold=True)
            for agent, c in zip(table.agents, table.stated[row], strict=True)
        }
        routed = policy.router.decide(Known(stated, dimension=dimension, agents=table.agents))
        p = [routed.scores[agent] for agent in table.agents]
        promised = float(head.predict_proba(vote_row(p, correlation, dimension)[None])[0, 1])
        best = int(np.argmax(p))
        found.append((table.right[row, table.voted(row, p)], promised, max(p), table.right[row, best]))
    return {"votes": found}
