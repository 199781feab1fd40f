"""Decisions that another policy took and logged: what a panel learns from them, and what it would have earned there.

Of each question one agent's outcome is known, with the probability that it had of being chosen. Each agent's score is
then estimated doubly robustly: its rate on the dimension, and for the agent that was chosen also how far its score lay
from that, divided by the probability. The mean of these over any questions is right where the probabilities are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.eval.ope import ENOUGH, Logged, doubly_robust, doubly_robust_gain, ips, snips
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.routing.panel import Panel
from metaprobe.routing.panel_asks import probability_of
from metaprobe.routing.panel_rows import Floats, Ints
from metaprobe.training.panel_data import PRIOR, Panels, panels_of_outcomes


@dataclass(frozen=True, slots=True, eq=False)
class LoggedPanels:
    """n logged decisions among A agents."""

    single: Panels
    """With the one answer of each question."""
    action: Ints
    """(n,): the agent that was chosen."""
    score: Floats
    """(n,): of its answer."""
    cost: Floats
    """(n,): US dollars."""
    propensity: Floats
    """(n, A)"""

    @property
    def weight(self) -> Floats:
        """(n, A): 1 / propensity of the chosen agent, 0 of the others."""
        chosen = np.arange(self.propensity.shape[1]) == self.action[:, None]
        return np.asarray(np.divide(chosen, self.propensity, out=np.zeros(self.propensity.shape), where=chosen))

    @property
    def effective(self) -> Floats:
        """(A,): effective number of decisions for each agent (Kish)."""
        weight = self.weight
        return np.asarray(weight.sum(axis=0) ** 2 / (weight**2).sum(axis=0))

    def usual(self, values: Floats) -> Floats:
        """Returns the weighted mean (n, A) of values (n,) for each agent on each question's dimension.

        As if `PRIOR` more answers of the usual weight had the agent's overall mean.
        """
        weight, dimension = self.weight, self.single.dimension
        overall = (weight * values[:, None]).sum(axis=0) / weight.sum(axis=0)
        prior = PRIOR * weight.sum(axis=0) / (weight > 0).sum(axis=0)
        found = np.zeros(weight.shape)
        for place in np.unique(dimension):
            here = dimension == place
            above = (weight[here] * values[here, None]).sum(axis=0) + prior * overall
            found[here] = above / (weight[here].sum(axis=0) + prior)
        return found

    def laid_out(self) -> Panels:
        """Returns the questions with an estimated score and price of every agent, in the order of the agents.

        Each answer is a class of its own; what is known of being right is that of the chosen one.
        """
        n, A = self.propensity.shape
        usual = self.usual(self.score)
        chosen = np.arange(A) == self.action[:, None]
        right = np.where(chosen, (self.score > 0.5)[:, None], np.nan)
        signals = np.full((n, A, self.single.signals.shape[2]), np.nan)
        signals[np.arange(n), self.action] = self.single.signals[:, 0]
        return replace(
            self.single,
            agent=np.repeat(np.arange(A)[None], n, axis=0),
            form=np.repeat(np.arange(A)[None], n, axis=0),
            right=right,
            signals=signals,
            present=np.ones((n, A), dtype=bool),
            score=usual + self.weight * (self.score[:, None] - usual),
            cost=self.usual(self.cost),
            tokens=np.full((n, A, 2), np.nan),
        )

    @property
    def audit(self) -> tuple[str, bool, str]:
        """Whether the least tried agent was tried often enough."""
        size = self.effective
        least = int(size.argmin())
        count = int((self.action == least).sum())
        told = f"{self.single.agents[least]}: {size[least]:.0f} effective of {count} decisions; expected {ENOUGH}"
        return "every agent was tried often enough", bool(size[least] >= ENOUGH), told


def logged_panels(questions: Sequence[QuestionOutcomes]) -> LoggedPanels:
    """Returns logged decisions as panels of one answer.

    Raises `RecordError` where a decision does not say what was chosen, with which propensity, and what came of it, or
    where it has no cost; and for agents that were never chosen.
    """
    if untold := [q.id for q in questions if not q.propensities]:
        raise RecordError(
            f"{len(untold)} of {len(questions)} questions have no propensities (first: {untold[0]}); give logged "
            "decisions alone, or full outcomes alone"
        )
    questions = [q for q in questions if any(one.score is not None for one in q.agents.values())]
    for question in questions:
        _check(question)
    single = panels_of_outcomes(questions, logged=True)
    kept = set(single.ids)
    questions = [q for q in questions if q.id in kept]
    if missing := sorted({name for q in questions for name, p in q.propensities.items() if p > 0} - set(single.agents)):
        raise RecordError(f"{', '.join(missing)} could be chosen and never was; leave it out of the propensities")
    return LoggedPanels(
        single=single,
        action=single.agent[:, 0],
        score=single.score[:, 0],
        cost=single.cost[:, 0],
        propensity=np.array([[q.propensities.get(name, 0.0) for name in single.agents] for q in questions]),
    )


def _check(question: QuestionOutcomes) -> None:
    scored = [name for name, outcome in question.agents.items() if outcome.score is not None]
    chosen, propensities = question.chosen, question.propensities
    if scored != [chosen]:
        raise RecordError(
            f"question {question.id} is a logged decision, with chosen = {chosen!r}, and has scored outcomes of "
            f"{', '.join(scored)}; expected one, of the chosen agent. Leave propensities out where all were asked"
        )
    if not propensities.get(chosen or "", 0.0) > 0 or not math.isclose(sum(propensities.values()), 1, abs_tol=1e-3):
        raise RecordError(
            f"question {question.id} has propensities {dict(propensities)}; expected those of every agent that could "
            f"be chosen, 1 in all, and above 0 for {chosen!r}, which was"
        )
    if question.agents[scored[0]].cost_usd is None:
        raise RecordError(f"question {question.id}: {chosen} has no cost_usd; give one, 0 where it costs nothing")


def evaluate_logged(
    panel: Panel, questions: Sequence[QuestionOutcomes], *, budget: float | None = None, price: float | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns figures of the agent that the panel asks first, and one decision a question.

    Single decisions show no second agent, so that a panel which would go on asking is judged by its first alone. What
    the doubly robust estimates expect of an agent is its rate and its price on the dimension, as the panel's training
    showed them. Raises `NoSupport` where the panel takes what was never tried, `RecordError` as `logged_panels`, and
    for agents that the panel does not know.
    """
    data = logged_panels(questions)
    names = data.single.agents
    if strangers := [name for name in names if name not in panel.agents.names]:
        known = ", ".join(panel.agents.names)
        raise RecordError(f"the panel knows nothing of {', '.join(strangers)}; it knows {known}")
    plan = panel.ask_plan(budget=budget, price=price)
    assert panel.asks is not None
    n, A = data.propensity.shape
    policy, rate, dollars = np.zeros((n, A)), np.zeros((n, A)), np.zeros((n, A))
    columns = [panel.agents.agent(name) for name in names]
    decided = []
    chosen = {q.id: q.chosen for q in questions}
    for row, identity in enumerate(data.single.ids):
        at = data.single.dimension[row]
        dimension = data.single.dimensions[at] if at < len(data.single.dimensions) else ""
        gone = dict.fromkeys(panel.agents.names, math.inf)
        gone = {name: p for name, p in gone.items() if name not in names or not data.propensity[row, names.index(name)]}
        step = panel.next(
            data.single.questions[row],
            dimension,
            [],
            price=price,
            budget=budget,
            prices=gone,
            request_id=identity,
        )
        if step.agent is not None:
            policy[row, names.index(step.agent)] = 1.0
        place = panel.agents.dimension(dimension)
        rate[row] = probability_of(panel.agents.rate[columns, place])
        dollars[row] = panel.asks.price[columns, place]
        decided.append({"id": identity, "asked": [step.agent], "logged": chosen[identity], "reason": step.reason})

    def logged(reward: Floats) -> Logged:
        return Logged(data.action, reward, data.propensity, np.array(data.single.groups))

    score = logged(data.score)
    estimates = {
        "ips": ips(score, policy),
        "snips": snips(score, policy),
        "doubly_robust": doubly_robust(score, policy, rate),
    }
    cost = doubly_robust(logged(1000 * data.cost), policy, dollars)
    gain = doubly_robust_gain(score, policy, data.propensity, rate)
    one = estimates["doubly_robust"]
    return {
        "questions": n,
        "groups": len(set(data.single.groups)),
        "agents": list(names),
        "checkpoint": panel.checkpoint.digest,
        "by": plan.first.way,
        "logged": True,
        "accuracy": {name: ends_of(value.value) for name, value in estimates.items()},
        "cost_per_1000": ends_of(cost.value),
        "accuracy_over_the_logging_policy": ends_of(gain),
        "effective_sample_size": one.effective_sample_size,
        "largest_weight": one.largest_weight,
        "mean_weight": ends_of(one.mean_weight),
        "reliable": one.reliable,
    }, decided


def ends_of(one: Interval) -> dict[str, float]:
    """Returns an interval as the evaluation of a panel gives it."""
    return {"estimate": one.estimate, "low": one.low, "high": one.high}
