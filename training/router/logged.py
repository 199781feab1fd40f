"""What a router would have earned on decisions that another policy took and logged: off-policy estimates as JSON."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from metaprobe.eval.ope import Logged, PolicyValue, doubly_robust, doubly_robust_gain, ips, snips
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.routing.learned import LearnedRouter
from metaprobe.routing.learned_state import Known
from metaprobe.training.router.data import Floats, Outcomes, outcomes_of


def evaluate_logged(
    router: LearnedRouter, questions: Sequence[QuestionOutcomes], *, clip: float | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures of the agent that the router asks first, and one decision a question.

    Single decisions show no second agent, so that a router which would go on asking is judged by its first alone.
    What the doubly robust estimates expect of an agent is its past rate and price on the dimension, as the router's
    training showed them. Raises `NoSupport` where the router takes what was never tried, `RecordError` where a decision
    names no propensities, or agents that the router does not know.
    """
    if untold := [q.id for q in questions if not q.propensities]:
        raise RecordError(
            f"{len(untold)} of {len(questions)} questions have no propensities (first: {untold[0]}); give logged "
            "decisions alone, or full outcomes alone"
        )
    data = outcomes_of(questions)
    if strangers := [name for name in data.agents if name not in router.agents]:
        raise RecordError(f"the router knows nothing of {', '.join(strangers)}; it knows {', '.join(router.agents)}")
    n = len(data.score)
    scored = [q for q in questions if any(outcome.score is not None for outcome in q.agents.values())]
    policy, rate, price, decided = _first_asked(router, scored, data)
    action = data.known.argmax(axis=1)
    at = np.arange(n)
    groups = np.array(data.groups)

    def logged(reward: Floats) -> Logged:
        return Logged(action, reward[at, action], data.propensity, groups)

    score = logged(data.score)
    estimates = {
        "ips": ips(score, policy, clip=clip),
        "snips": snips(score, policy, clip=clip),
        "doubly_robust": doubly_robust(score, policy, rate, clip=clip),
    }
    cost = doubly_robust(logged(1000 * data.cost), policy, 1000 * price, clip=clip)
    gain = doubly_robust_gain(score, policy, data.propensity, rate, clip=clip)
    one = estimates["doubly_robust"]
    return {
        "questions": n,
        "groups": len(set(data.groups)),
        "agents": list(data.agents),
        "checkpoint": router.checkpoint.digest,
        "lambda": router.lambda_,
        "per_second": router.per_second,
        "logged": True,
        "first_agent_only": router.max_asked > 1,
        "accuracy": {name: _interval(found) for name, found in estimates.items()},
        "cost_per_1000": _interval(cost),
        "accuracy_over_the_logging_policy": {"estimate": gain.estimate, "low": gain.low, "high": gain.high},
        "effective_sample_size": one.effective_sample_size,
        "largest_weight": one.largest_weight,
        "mean_weight": {"estimate": one.mean_weight.estimate, "low": one.mean_weight.low, "high": one.mean_weight.high},
        "reliable": one.reliable,
    }, decided


def _first_asked(
    router: LearnedRouter, scored: Sequence[QuestionOutcomes], data: Outcomes
) -> tuple[Floats, Floats, Floats, list[dict[str, Any]]]:
    """Returns whom the router asks first, and what the past says of each agent, (n, A) each, and its decisions.

    The first array holds 1 for the agent asked; the second each agent's past rate, the third its price in dollars.
    """
    n, A = data.score.shape
    policy, rate, price = np.zeros((n, A)), np.zeros((n, A)), np.zeros((n, A))
    decided = []
    for row, question in enumerate(scored):
        legal = [name for column, name in enumerate(data.agents) if data.legal[row, column]]
        routed = router.decide(Known(question=question.question, dimension=question.dimension, agents=legal))
        policy[row, data.agents.index(routed.agent)] = 1.0
        for column, name in enumerate(data.agents):
            past = router.past(name, question.dimension)
            rate[row, column] = 1 / (1 + math.exp(-past.rate))
            price[row, column] = past.price(len(question.question))
        decided.append({"id": question.id, "asked": [routed.agent], "logged": question.chosen, "reason": routed.reason})
    return policy, rate, price, decided


def _interval(found: PolicyValue) -> dict[str, float]:
    return {"estimate": found.value.estimate, "low": found.value.low, "high": found.value.high}
