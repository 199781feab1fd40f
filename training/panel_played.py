"""Questions whose answers are known, played by the panel of a checkpoint: whom it asks, and what comes of it."""

import numpy as np

from metaprobe.routing.panel import Panel
from metaprobe.routing.panel_asks import AskPlan
from metaprobe.routing.panel_stops import GAIN as ASKED_ON
from metaprobe.training.panel_asks import FAILED, Expected, View, expected_of, play_setting
from metaprobe.training.panel_data import Panels
from metaprobe.training.panel_fit import ORDERS, Placed, PlayedPanels, play


def expected_at(panel: Panel, view: View, plan: AskPlan) -> Expected:
    """Returns what a panel's plan comes to on the questions of a view."""
    first, second = (play_setting(view, one, panel.pick) for one in (plan.first, plan.second))
    return expected_of(first, second, plan.share)


def view_of(panel: Panel, data: Panels) -> View:
    """Returns what the panel of a checkpoint knows of questions in the order of its agents."""
    assert panel.asks is not None
    agents = panel.agents
    where = np.array([agents.dimension(name) for name in data.dimensions] + [len(agents.dimensions)])
    dimension = where[data.dimension]
    answers = data.answers(agents, dimension=dimension)
    return View(
        model=panel,
        gain=panel.gain,
        answers=answers,
        odds=np.where(answers.form >= 0, panel.odds(answers), FAILED),
        rate=np.repeat(agents.rate[None, :, -1], len(data), axis=0),
        rate_here=agents.rate[:, dimension].T,
        shift=np.stack([panel.asks.words.shifts(text) for text in data.questions]),
        price=panel.asks.price[:, dimension].T,
        score=data.score,
        cost=1000 * data.cost,
    )


def played_by(panel: Panel, data: Panels, *, seed: int = 0, orders: int = ORDERS) -> PlayedPanels:
    """Returns the questions played by the panel of a checkpoint, in so many random orders of their answers."""
    who = np.array([0 if len(panel.agents.names) == 1 else panel.agents.agent(name) for name in data.agents])
    where = np.array([panel.agents.dimension(name) for name in data.dimensions] + [len(panel.agents.dimensions)])
    answers = data.answers(panel.agents, agent=who[data.agent], dimension=where[data.dimension])
    placed = Placed(answers, panel.odds(answers), data.right)
    held = play(panel, placed, np.array(data.groups), np.random.default_rng(seed), orders=orders)
    # Where several answers can be right no gain is learned, and no way to stop goes by one.
    by_gain = any(one.way == ASKED_ON for one in panel.settings)
    return held.with_gain(panel.gain) if data.sampled and by_gain else held
