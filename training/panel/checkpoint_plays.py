"""Plays questions, whose answers are known, by the panel of a checkpoint: whom it asks, and what comes of it."""

from dataclasses import replace

import numpy as np

from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.model_rows import ANSWER_SIGNALS, STATED
from metaprobe.routing.panel.planner import ASKED_ON
from metaprobe.routing.panel.sources import FROM_LOGPROBS, is_from, mean_confidence, source_for
from metaprobe.training.panel.fitted_panel import Placed
from metaprobe.training.panel.labelled_panels import Panels
from metaprobe.training.panel.played_asks import View
from metaprobe.training.panel.played_panels import ORDERS, PlayedPanels, play


def with_learned_sources(panel: Panel, data: Panels) -> Panels:
    """Returns questions with confidences from the sources that the panel learned from; all others are left out.

    Where it learned from log-probabilities and these came, they give the confidence.
    """
    agents = panel.agents
    if STATED not in agents.signals:
        return data
    signals, place = data.signals.copy(), ANSWER_SIGNALS.index(STATED)
    with np.errstate(over="ignore"):
        mean = -np.exp(signals[..., ANSWER_SIGNALS.index("mean")])
    for column, name in enumerate(data.agents):
        row = 0 if len(agents.names) == 1 else agents.agent(name)
        learned = source_for(panel.sources, agents.names[row] if row < len(agents.names) else None)
        of_agent = data.agent == column
        if is_from(learned, data.sources.get(name, "")):
            continue
        levels = agents.scales[row][agents.signals.index(STATED)]
        confidences = [
            mean_confidence(logprob, levels) if learned in FROM_LOGPROBS else np.nan
            for logprob in mean[of_agent].tolist()
        ]
        signals[of_agent, place] = confidences
    return replace(data, signals=signals)


def other_sources(panel: Panel, data: Panels) -> str:
    """Describes the confidences that the panel cannot read, because it learned from another source; empty if none."""
    if STATED not in panel.agents.signals:
        return ""
    is_stated = data.present & np.isfinite(data.signals[..., ANSWER_SIGNALS.index(STATED)])
    read = np.isfinite(with_learned_sources(panel, data).signals[..., ANSWER_SIGNALS.index(STATED)])
    lost = is_stated & ~read
    if not lost.any():
        return ""
    names = sorted({data.agents[column] for column in data.agent[lost].tolist()})
    return (
        f"{int(lost.sum())} confidences (of {', '.join(names)}) are from another source than those that the panel "
        "learned from, and were left out"
    )


def view_of(panel: Panel, data: Panels) -> View:
    """Returns the view of the questions by a checkpoint's panel. Columns are in the order of the panel's agents."""
    assert panel.asks is not None
    agents, data = panel.agents, with_learned_sources(panel, data)
    where = np.array([agents.dimension(name) for name in data.dimensions] + [len(agents.dimensions)])
    dimension = where[data.dimension]
    answers = data.answers(agents, dimension=dimension)
    shift = np.stack([panel.asks.words.shifts(text) for text in data.questions])
    view_fields = {
        "gain": panel.gain,
        "shift": shift,
        "rate": agents.rate,
        "price": panel.asks.price,
        "sure": panel.asks.sure,
    }
    return View.of(panel, data, answers, panel.odds(answers), **view_fields)


def played_by(panel: Panel, data: Panels, *, seed: int = 0, orders: int = ORDERS) -> PlayedPanels:
    """Returns the questions played by the panel of a checkpoint, in so many random orders of their answers."""
    data = with_learned_sources(panel, data)
    agent_columns = np.array([0 if len(panel.agents.names) == 1 else panel.agents.agent(name) for name in data.agents])
    where = np.array([panel.agents.dimension(name) for name in data.dimensions] + [len(panel.agents.dimensions)])
    answers = data.answers(panel.agents, agent=agent_columns[data.agent], dimension=where[data.dimension])
    placed = Placed(answers, panel.odds(answers), data.right)
    played = play(panel, placed, np.array(data.groups), np.random.default_rng(seed), orders=orders)
    # Where several answers can be right no gain is learned, and no way to stop goes by one.
    by_gain = any(setting.way == ASKED_ON for setting in panel.settings)
    return played.with_gain(panel.gain) if data.sampled and by_gain else played
