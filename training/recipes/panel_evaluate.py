"""What a panel is worth on questions that it has not learned from, beside every simple way; as JSON.

The simple ways to stop are tuned on the very file that is evaluated, which favours them; the panel's own plan is its
checkpoint's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.records.errors import RecordError
from metaprobe.routing.panel import Panel
from metaprobe.routing.panel_rows import JOINT, MAJORITY, PICKS, Floats, Ints
from metaprobe.routing.panel_stops import CONSISTENT, FIRST_TO, FIXED, IN_A_ROW, Plan, Setting
from metaprobe.training.panel_data import Panels
from metaprobe.training.recipes.panel import (
    ORDERS,
    Placed,
    PlayedPanels,
    play,
    settings_of,
    sizes_shown,
    statistics_of,
    stopped,
)

BUDGETS = (2, 3, 4, 5, 6, 8, 10, 12)
"""Mean numbers of answers at which ways to stop are compared."""
SIMPLE = (FIXED, FIRST_TO, IN_A_ROW, CONSISTENT)
"""Ways to stop that need no checkpoint; they keep the majority's answer."""


def evaluate_panel(panel: Panel, data: Panels, *, resamples: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Returns accuracy by number of answers for every way to pick, and by mean answers for every way to stop.

    Raises `RecordError` where the panel knows none of the agents.
    """
    known = [name for name in data.agents if name in panel.agents.names]
    one = len(panel.agents.names) == 1 and len(data.agents) == 1  # samples of one agent, whatever its name
    if not known and not one:
        raise RecordError(
            f"the panel knows {', '.join(panel.agents.names)}, and the answers are of {', '.join(data.agents)}"
        )
    if data.same != panel.same:
        raise RecordError(f"the panel compares answers by {panel.same}, and these questions are checked by {data.same}")
    held = played_by(panel, data, seed=seed)
    K = held.states.shape[2]
    sizes = {}
    for size in sizes_shown(K):
        rows = np.flatnonzero(held.answers >= size)
        sizes[str(size)] = _at_size(
            panel, held, rows, size, cluster_weights(held.groups[rows].tolist(), resamples, seed)
        )
    result: dict[str, Any] = {
        "questions": len(data),
        "groups": len(set(data.groups)),
        "agents": list(data.agents),
        "unknown_agents": [] if one else sorted(set(data.agents) - set(known)),
        "checkpoint": panel.checkpoint.digest,
        "pick": panel.pick,
        "answers": sizes,
        "mean_answers": {},
    }
    if data.sampled and panel.settings:
        weights = cluster_weights(held.groups.tolist(), resamples, seed)
        result["mean_answers"] = {
            str(budget): _at_budget(panel, held, float(budget), weights) for budget in BUDGETS if budget < K
        }
    plain: dict[str, Any] = _plain(result)
    return plain


class _Judge:
    """The panel of a checkpoint, in the form of a fitted one, which `play` asks."""

    def __init__(self, panel: Panel) -> None:
        self.agents = panel.agents
        self.judge = panel.classes


def played_by(panel: Panel, data: Panels, *, seed: int = 0, orders: int = ORDERS) -> PlayedPanels:
    """Returns the questions played by the panel of a checkpoint, in so many random orders of their answers."""
    who = np.array([0 if len(panel.agents.names) == 1 else panel.agents.agent(name) for name in data.agents])
    where = np.array([panel.agents.dimension(name) for name in data.dimensions] + [len(panel.agents.dimensions)])
    answers = data.answers(panel.agents, agent=who[data.agent], dimension=where[data.dimension])
    placed = Placed(answers, panel.odds(answers), data.right)
    held = play(_Judge(panel), placed, np.array(data.groups), np.random.default_rng(seed), orders=orders)
    if not (data.sampled and panel.settings):
        return held
    states = held.states
    return held.with_gain(panel.gain(states.reshape(-1, states.shape[-1])).reshape(states.shape[:-1]))


def _at_size(panel: Panel, held: PlayedPanels, rows: Ints, size: int, weights: NDArray[np.int32]) -> dict[str, Any]:
    right = {way: held.right[way][:, rows, size - 1] for way in PICKS}
    y, p = right[JOINT][0], held.score[0, rows, size - 1]
    share = held.counts[0, rows, size - 1, 0] / size
    two = bool(y.min() < y.max())
    vote = right[MAJORITY][0]
    return {
        "questions": len(rows),
        "accuracy": {way: mean_interval(values.mean(axis=0), weights) for way, values in right.items()},
        "kept_over": {
            way: mean_interval((right[panel.pick] - values).mean(axis=0), weights)
            for way, values in right.items()
            if way != panel.pick
        },
        "auroc": interval(auroc, y, p, weights) if two else None,
        "auroc_of_share": interval(auroc, vote, share, weights) if vote.min() < vote.max() else None,
        "ece": ece_interval(y, p, weights) if two else None,
    }


def _at_budget(panel: Panel, held: PlayedPanels, budget: float, weights: NDArray[np.int32]) -> dict[str, Any]:
    own, spent, others = at_budget(panel, held, budget)
    best = max(others, key=lambda way: float(others[way].mean()))
    return {
        "panel": mean_interval(own, weights),
        "answers": float(spent.mean()),
        "by": sorted({one.way for one in (panel.plan(samples=budget).first, panel.plan(samples=budget).second)}),
        **{way: mean_interval(values, weights) for way, values in others.items()},
        "strongest_simple": best,
        "panel_over_it": mean_interval(own - others[best], weights),
    }


def at_budget(panel: Panel, held: PlayedPanels, budget: float) -> tuple[Floats, Floats, dict[str, Floats]]:
    """Returns what asking gives at a mean number of answers, by question (n,): P(the kept answer is right) and the
    answers asked for by the panel's plan, and the first by each simple way, tuned here to spend the budget."""
    own, spent = _expected(held, panel.plan(samples=budget), panel.pick)
    others: dict[str, Floats] = {}
    for way in SIMPLE:
        tuned = _mixed([one for one in settings_of(held, MAJORITY) if one.way == way], budget)
        others[way] = _expected(held, tuned, MAJORITY)[0]
    return own, spent, others


def _expected(held: PlayedPanels, plan: Plan, way: str) -> tuple[Floats, Floats]:
    """Returns what a plan gives on each question (n,): P(the kept answer is right), and the answers it asks for."""
    right, spent = np.zeros(len(held.groups)), np.zeros(len(held.groups))
    for setting, share in ((plan.first, plan.share), (plan.second, 1 - plan.share)):
        at = stopped(held, statistics_of(held)[setting.way], setting)
        right += share * np.take_along_axis(held.right[way], at[..., None], axis=2)[..., 0].mean(axis=0)
        spent += share * (at + 1).mean(axis=0)
    return right, spent


def _mixed(settings: Sequence[Setting], budget: float) -> Plan:
    """Returns two settings of one way mixed to spend a budget, or a single answer and the least of them.

    The dearest setting alone where none spends as much.
    """
    order = sorted([Setting(FIXED, 1.0, 1.0, 0.0), *settings], key=lambda one: one.samples)
    below = [one for one in order if one.samples <= budget]
    above = [one for one in order if one.samples >= budget] or below[-1:]
    left, right = below[-1], above[0]
    width = right.samples - left.samples
    return Plan(left, right, 1.0 if not width else (right.samples - budget) / width)


def _plain(value: Any) -> Any:
    """Returns a value for JSON: intervals as objects."""
    if isinstance(value, Interval):
        return {"estimate": value.estimate, "low": value.low, "high": value.high}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
