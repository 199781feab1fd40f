"""Measures a panel and every simple way on questions that the panel has not learned from. The result is JSON.

The simple ways to stop, and to keep an answer, are tuned on the evaluated file itself, which favours them. The panel's
own plan is its checkpoint's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.eval.ope import Logged, doubly_robust, doubly_robust_gain, ips, snips
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import QuestionOutcomes
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.model_rows import JOINT, MAJORITY, PICKS, Floats, Ints
from metaprobe.routing.panel.planner import (
    CONSISTENT,
    FIRST_TO,
    FIXED,
    IN_A_ROW,
    AskPlan,
    AskSetting,
    Plan,
    Setting,
    draw_of,
    mixed,
    mixed_plan,
    probability_of,
)
from metaprobe.training.panel.checkpoint_plays import other_sources, played_by, view_of
from metaprobe.training.panel.labelled_panels import Panels, logged_panels
from metaprobe.training.panel.played_asks import Played, View, by_agent, expected_at, expected_of, play_setting
from metaprobe.training.panel.played_panels import PlayedPanels
from metaprobe.training.recipes.panel import sizes_shown, statistics_of, stop_settings, stopped

MEAN_ANSWERS = (2, 3, 4, 5, 6, 8, 10, 12)
"""Mean numbers of answers at which ways to stop are compared."""
BUDGET_STEP = 4
"""Step between the shown budgets of the checkpoint's curves: every fourth budget is shown."""
SIMPLE = (FIXED, FIRST_TO, IN_A_ROW, CONSISTENT)
"""Ways to stop that need no checkpoint."""
SIMPLE_PICKS = tuple(way for way in PICKS if way != JOINT)
"""Ways to keep an answer that need no checkpoint."""


def evaluate_panel(
    panel: Panel, data: Panels, *, budget: float | None = None, resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Returns accuracy by number of answers for every way to pick, and by mean answers for every way to stop.

    For several agents with prices there are also figures by budget, for every way to choose whom to ask. Answers
    without costs have no figures by budget, and `reason` says so. Raises `RecordError` if the panel knows none of the
    agents, and for a `budget` if costs are missing.

    Args:
        panel: the panel.
        data: the questions with all answers.
        budget: US dollars for 1,000 questions. With a budget, the result holds the decisions for each question.
        resamples: number of bootstrap resamples.
        seed: seed of plays and bootstrap.
    """
    known_agents = [name for name in data.agents if name in panel.agents.names]
    # Check that the panel can judge these answers. With a single agent, its name may differ from the panel's.
    one_agent = len(panel.agents.names) == 1 and len(data.agents) == 1
    if not known_agents and not one_agent:
        raise RecordError(
            f"the panel knows {', '.join(panel.agents.names)}, and the answers are of {', '.join(data.agents)}"
        )
    if data.same != panel.same:
        raise RecordError(f"the panel compares answers by {panel.same}, and these questions are checked by {data.same}")
    # Figures by the number of answers.
    plays = played_by(panel, data, seed=seed)
    K = plays.states.shape[2]
    sizes = {}
    for size in sizes_shown(K):
        rows = np.flatnonzero(plays.answers >= size)
        sizes[str(size)] = _at_size(
            panel, plays, rows, size, cluster_weights(plays.groups[rows].tolist(), resamples, seed)
        )
    result: dict[str, Any] = {
        "questions": len(data),
        "groups": len(set(data.groups)),
        "agents": list(data.agents),
        "unknown_agents": [] if one_agent else sorted(set(data.agents) - set(known_agents)),
        "checkpoint": panel.checkpoint.digest,
        "pick": panel.pick,
        "answers": sizes,
        "mean_answers": {},
        "reason": other_sources(panel, data),
    }
    # Figures by the mean number of answers, for samples of one agent.
    if data.sampled and panel.settings:
        weights = cluster_weights(plays.groups.tolist(), resamples, seed)
        result["mean_answers"] = {
            str(budget): _at_budget(panel, plays, float(budget), weights) for budget in MEAN_ANSWERS if budget < K
        }
    # Figures by budget, for several agents with prices.
    by_agents = None
    if panel.asks is not None:
        try:
            by_agents = by_agent(data, panel.agents.names, fewest=1)
        except RecordError as error:
            if budget is not None:
                raise
            result["reason"] = "; ".join(filter(None, [result["reason"], f"no figures by budget: {error}"]))
    if panel.asks is not None and by_agents is not None:
        budgets = [budget] if budget else panel.asks.curves.budgets[::BUDGET_STEP].tolist()
        view, weights = view_of(panel, by_agents), cluster_weights(list(by_agents.groups), resamples, seed)
        curves: dict[str, dict[AskSetting, Played]] = {}
        for way, settings in panel.asks.curves.settings.items():
            played = [play_setting(view, setting, panel.pick) for setting in settings]
            costs = [float(result_of_setting.cost.mean()) for result_of_setting in played]  # on these questions
            repriced = [replace(setting, cost=cost) for setting, cost in zip(settings, costs, strict=True)]
            pairs = zip(repriced, played, strict=True)
            curves[way] = dict(sorted(pairs, key=lambda pair: pair[0].cost))
        result["budgets"] = {f"{limit:.4g}": _at_cost(panel, view, curves, limit, weights) for limit in budgets}
        result["decisions"] = _decisions(panel, view, by_agents, panel.ask_plan(budget=budget)) if budget else []
    jsonable: dict[str, Any] = _jsonable(result)
    return jsonable


def evaluate_logged(
    panel: Panel, questions: Sequence[QuestionOutcomes], *, budget: float | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns figures of the agent that the panel asks first, and the decision for each question.

    A logged decision shows one agent, so a panel that would continue asking is judged by its first agent alone. The
    doubly robust estimates use each agent's rate and price on the dimension, from the panel's training.

    Raises `NoOverlap` if the panel takes an action that was never tried. Raises `RecordError` as `logged_panels` does,
    and for agents that the panel does not know.
    """
    data = logged_panels(questions)
    names = data.single.agents
    if unknown_names := [name for name in names if name not in panel.agents.names]:
        panel_agents = ", ".join(panel.agents.names)
        raise RecordError(f"the panel knows nothing of {', '.join(unknown_names)}; it knows {panel_agents}")
    # The agent that the panel asks first, for each logged question.
    plan = panel.ask_plan(budget=budget)
    assert panel.asks is not None
    n, A = data.propensity.shape
    policy, rate, dollars = np.zeros((n, A)), np.zeros((n, A)), np.zeros((n, A))
    columns = [panel.agents.agent(name) for name in names]
    decisions = []
    chosen = {q.id: q.chosen for q in questions}
    for row, identity in enumerate(data.single.ids):
        dimension_index = data.single.dimension[row]
        dimension = data.single.dimensions[dimension_index] if dimension_index < len(data.single.dimensions) else ""
        infinite_prices = dict.fromkeys(panel.agents.names, math.inf)
        infinite_prices = {
            name: p
            for name, p in infinite_prices.items()
            if name not in names or not data.propensity[row, names.index(name)]
        }
        question = data.single.questions[row]
        step = panel.next(question, dimension, [], budget=budget, prices=infinite_prices, request_id=identity)
        if step.agent is not None:
            policy[row, names.index(step.agent)] = 1.0
        column_of_dimension = panel.agents.dimension(dimension)
        rate[row] = probability_of(panel.agents.rate[columns, column_of_dimension])
        dollars[row] = panel.asks.price[columns, column_of_dimension]
        decisions.append({"id": identity, "asked": [step.agent], "logged": chosen[identity], "reason": step.reason})

    # Off-policy estimates of its accuracy and cost.
    def log_of(reward: Floats) -> Logged:
        return Logged(data.action, reward, data.propensity, np.array(data.single.groups))

    score = log_of(data.score)
    estimates = {
        "ips": ips(score, policy),
        "snips": snips(score, policy),
        "doubly_robust": doubly_robust(score, policy, rate),
    }
    cost = doubly_robust(log_of(1000 * data.cost), policy, dollars)
    gain = doubly_robust_gain(score, policy, data.propensity, rate)
    robust_estimate = estimates["doubly_robust"]
    return {
        "questions": n,
        "groups": len(set(data.single.groups)),
        "agents": list(names),
        "checkpoint": panel.checkpoint.digest,
        "by": plan.name,
        "logged": True,
        "accuracy": {name: ends_of(value.value) for name, value in estimates.items()},
        "cost_per_1000": ends_of(cost.value),
        "accuracy_over_the_logging_policy": ends_of(gain),
        "effective_sample_size": robust_estimate.effective_sample_size,
        "largest_weight": robust_estimate.largest_weight,
        "mean_weight": ends_of(robust_estimate.mean_weight),
        "reliable": robust_estimate.reliable,
    }, decisions


def _at_cost(
    panel: Panel,
    view: View,
    curves: Mapping[str, Mapping[AskSetting, Played]],
    budget: float,
    weights: NDArray[np.int32],
) -> dict[str, Any]:
    """Returns accuracy and cost of the panel at a budget, and of every single way of the checkpoint.

    Ways and panel were tuned on the checkpoint's training data. The settings of each way are mixed so that it spends as
    much on these questions as the panel does. The best single agent and the oracle are chosen on these questions.

    Args:
        panel: the panel.
        view: the questions as the panel sees them.
        curves: the plays of each way, by setting.
        budget: US dollars for 1,000 questions.
        weights: the resamples.
    """
    plan = panel.ask_plan(budget=budget)
    expected = expected_at(view, plan, panel.pick)
    ways = {}
    for way, played in curves.items():
        first, second, share = mixed(list(played), float(expected.cost.mean()))
        ways[way] = expected_of(played[first], played[second], share)
    best = int(view.score.mean(axis=0).argmax())
    cheapest_right = np.where(view.score > 0.5, view.cost, np.inf).min(axis=1)
    return {
        "by": plan.name,
        "expected": plan.accuracy,
        "expected_cost": plan.cost,
        "accuracy": mean_interval(expected.score, weights),
        "cost_per_1000": mean_interval(expected.cost, weights),
        "asked": float(expected.asked.mean()),
        "ways": {
            way: {
                "accuracy": mean_interval(way_expected.score, weights),
                "cost_per_1000": float(way_expected.cost.mean()),
                "panel_over_it": mean_interval(expected.score - way_expected.score, weights),
            }
            for way, way_expected in ways.items()
        },
        "best_single": {
            "agent": panel.agents.names[best],
            "accuracy": mean_interval(view.score[:, best], weights),
            "cost_per_1000": float(view.cost[:, best].mean()),
        },
        "oracle": {
            "accuracy": float(view.score.max(axis=1).mean()),
            "cost_per_1000": float(np.where(np.isfinite(cheapest_right), cheapest_right, view.cost.min(axis=1)).mean()),
        },
    }


def _decisions(panel: Panel, view: View, data: Panels, plan: AskPlan) -> list[dict[str, Any]]:
    """Returns for each question the agents that were asked, in order, the agent whose answer was kept, and the outcome.

    `correct` is the label of the kept answer in [0, 1], from the outcomes. It is no estimate of the panel.
    """
    played = {setting: play_setting(view, setting, panel.pick) for setting in (plan.first, plan.second)}
    lines = []
    for row, name in enumerate(data.ids):
        by_setting = played[plan.setting(draw_of(name))]
        asked_agents = [panel.agents.names[column] for column in by_setting.order[row].tolist() if column >= 0]
        lines.append(
            {
                "id": name,
                "asked": asked_agents,
                "kept": panel.agents.names[by_setting.kept[row]] if by_setting.kept[row] >= 0 else None,
                "correct": float(by_setting.score[row]),
                "cost_usd": float(by_setting.cost[row]) / 1000,
            }
        )
    return lines


def _at_size(panel: Panel, plays: PlayedPanels, rows: Ints, size: int, weights: NDArray[np.int32]) -> dict[str, Any]:
    """Returns the figures after `size` answers.

    Args:
        panel: the panel.
        plays: the plays of the panel.
        rows: the questions with at least `size` answers.
        size: number of answers.
        weights: the resamples of these questions.
    """
    right = {way: plays.right[way][:, rows, size - 1] for way in PICKS}
    y, p = right[JOINT][0], plays.score[0, rows, size - 1]
    share = plays.counts[0, rows, size - 1, 0] / size
    both_labels = bool(y.min() < y.max())
    vote = right[MAJORITY][0]
    return {
        "questions": len(rows),
        "accuracy": {way: mean_interval(values.mean(axis=0), weights) for way, values in right.items()},
        "kept_over": {
            way: mean_interval((right[panel.pick] - values).mean(axis=0), weights)
            for way, values in right.items()
            if way != panel.pick
        },
        "auroc": interval(auroc, y, p, weights) if both_labels else None,
        "auroc_of_share": interval(auroc, vote, share, weights) if vote.min() < vote.max() else None,
        "ece": ece_interval(y, p, weights) if both_labels else None,
    }


def _at_budget(panel: Panel, plays: PlayedPanels, budget: float, weights: NDArray[np.int32]) -> dict[str, Any]:
    """Returns the figures at a mean number of answers: of the panel, and of each simple way to stop."""
    panel_accuracy, spent, others = at_budget(panel, plays, budget)
    best = max(others, key=lambda way: float(others[way].mean()))
    return {
        "panel": mean_interval(panel_accuracy, weights),
        "answers": float(spent.mean()),
        "by": sorted(
            {setting.way for setting in (panel.plan(samples=budget).first, panel.plan(samples=budget).second)}
        ),
        **{way: mean_interval(values, weights) for way, values in others.items()},
        "strongest_simple": best,
        "panel_over_it": mean_interval(panel_accuracy - others[best], weights),
    }


def at_budget(
    panel: Panel, plays: PlayedPanels, budget: float, keeps: Sequence[str] = SIMPLE_PICKS
) -> tuple[Floats, Floats, dict[str, Floats]]:
    """Returns three results at a mean number of answers, each by question (n,).

    The first is the panel's P(right) of the kept answer, the second the number of answers that it asks for. The third
    maps each simple way to stop to its P(right). The thresholds of a simple way, and the rule of `keeps` that chooses
    its answer, are tuned on these questions.
    """
    panel_accuracy, spent = _expected(plays, panel.plan(samples=budget), panel.pick)
    others: dict[str, Floats] = {}
    for keep in keeps:
        settings = stop_settings(plays, keep)
        for way in SIMPLE:
            tuned = [Setting(FIXED, 1.0, 1.0, 0.0), *(setting for setting in settings if setting.way == way)]
            right = _expected(plays, mixed_plan(sorted(tuned, key=lambda setting: setting.samples), budget), keep)[0]
            if way not in others or right.mean() > others[way].mean():
                others[way] = right
    return panel_accuracy, spent, others


def _expected(plays: PlayedPanels, plan: Plan, way: str) -> tuple[Floats, Floats]:
    """Returns P(right) of the kept answer, and the number of answers asked for, by question (n,), under a plan."""
    right, spent = np.zeros(len(plays.groups)), np.zeros(len(plays.groups))
    for setting, share in ((plan.first, plan.share), (plan.second, 1 - plan.share)):
        stop_places = stopped(plays, statistics_of(plays)[setting.way], setting)
        right += share * np.take_along_axis(plays.right[way], stop_places[..., None], axis=2)[..., 0].mean(axis=0)
        spent += share * (stop_places + 1).mean(axis=0)
    return right, spent


def _jsonable(value: Any) -> Any:
    """Returns a value for JSON: intervals as objects."""
    if isinstance(value, Interval):
        return ends_of(value)
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    return [_jsonable(item) for item in value] if isinstance(value, list) else value


def ends_of(interval: Interval) -> dict[str, float]:
    """Returns an interval as the JSON object of an evaluation."""
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
