"""Plays panels answer by answer, judged by models that have not seen them, to choose when to stop.

For samples of one agent, trees learn the gain of asking on from the panel's state. Their target is "right in the end
minus right now", halfway between outcome and probability, which has less noise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.model_rows import JOINT, PANEL_STATE, PICKS, Floats, Ints, pick, state_rows
from metaprobe.training.panel.fitted_panel import PANEL_FOLDS, CrossFitPanel, FittedPanel, Placed, kept_right
from metaprobe.training.panel.labelled_panels import Panels
from metaprobe.training.trees import Trees, float32_thresholds

GAIN_TREES: Mapping[str, Any] = {
    "objective": "regression",
    "num_leaves": 8,
    "min_data_in_leaf": 200,
    "learning_rate": 0.05,
    "rounds": 120,
}
"""Fixed parameters of the trees that predict the gain of asking on; `rounds` is the number of trees."""
ORDERS = 6
"""Number of random orders of each question's answers that are played."""


@dataclass(frozen=True, slots=True, eq=False)
class PlayedPanels:
    """Panels of n questions after each answer, in o orders, judged by models that have not seen the questions."""

    groups: NDArray[np.str_]
    """Group of each question (n,)."""
    right: Mapping[str, Floats]
    """Maps a way to pick to whether the kept answer is right after 1, ..., K answers, (o, n, K)."""
    states: NDArray[np.float32]
    """State of each panel after 1, ..., K answers (o, n, K, len(STATE))."""
    counts: Ints
    """Three counts after 1, ..., K answers (o, n, K, 3): answers of the largest class, answers of the next class, and
    equal answers in a row up to the latest.
    """
    gain: Floats | None
    """Expected gain after 1, ..., K answers (o, n, K), by trees that have not seen the question."""
    answers: Ints
    """Number of answers to each question (n,). Places after the last answer repeat it."""

    def with_gain(self, gain: Callable[[NDArray[np.float32]], Floats]) -> "PlayedPanels":
        """Returns a copy whose `gain` is predicted by a model from the states."""
        rows = self.states.reshape(-1, self.states.shape[-1])
        return replace(self, gain=np.asarray(gain(rows).reshape(self.states.shape[:-1])))

    @property
    def score(self) -> Floats:
        """P(right) of the answer that the way `JOINT` keeps after 1, ..., K answers, (o, n, K)."""
        return np.asarray(self.states[..., PANEL_STATE.index("kept")], dtype=np.float64)


def play_panels(data: Panels, cross: CrossFitPanel, *, seed: int = 0) -> tuple[FittedPanel, PlayedPanels]:
    """Plays each question by models that have not seen its group.

    For samples of one agent the panel also gets trees that predict the gain of asking on.
    """
    rng = np.random.default_rng([seed, 1])
    folds = [np.flatnonzero(cross.fold == number) for number in range(PANEL_FOLDS)]
    groups = np.array(data.groups)
    played = [
        play(model, cross.placed.rows(fold), groups[fold], rng) for model, fold in zip(cross.models, folds, strict=True)
    ]
    fitted = cross.fitted
    if data.sampled and fitted.exclusive:
        gain_rows = []
        for panels in played:
            # The gain of asking all remaining answers: the mean of the changes in outcome and in probability.
            right, score = panels.right[JOINT], panels.score
            gain = (right[..., -1:] - right[..., :-1] + score[..., -1:] - score[..., :-1]) / 2
            gain_rows.append((panels.states[..., :-1, :].reshape(-1, len(PANEL_STATE)), gain.ravel()))
        trees = [
            grow_gain(GAIN_TREES, gain_rows, int(rng.integers(1 << 30)), without=fold) for fold in range(PANEL_FOLDS)
        ]
        played = [panels.with_gain(tree.score) for panels, tree in zip(played, trees, strict=True)]
        fitted = replace(fitted, gain=grow_gain(GAIN_TREES, gain_rows, int(rng.integers(1 << 30))))
    return fitted, _join_parts(played, np.argsort(np.concatenate(folds)))


def play(
    model: FittedPanel | Panel,
    placed: Placed,
    groups: NDArray[np.str_],
    rng: np.random.Generator,
    *,
    orders: int = ORDERS,
) -> PlayedPanels:
    """Returns the state of each panel after each of its answers, in `orders` random orders of the answers."""
    n, K = placed.answers.answer_class.shape
    right = {way: np.zeros((orders, n, K)) for way in PICKS}
    states = np.zeros((orders, n, K, len(PANEL_STATE)), dtype=np.float32)
    counts = np.zeros((orders, n, K, 3), dtype=np.int64)
    for number in range(orders):
        order = placed.draw(K, rng)
        form, in_a_row = order.answers.answer_class, np.zeros(n, dtype=np.int64)
        for size in range(1, K + 1):
            last, part = form[:, size - 1], order.first(size)
            goes_on = last == form[:, size - 2] if size > 1 else np.zeros(n, dtype=bool)
            in_a_row = np.where(last >= 0, np.where(goes_on, in_a_row, 0) + 1, 0)  # 0 after an unreadable answer
            counts[number, :, size - 1, 2] = in_a_row
            classes, p = model.classes_of(part.answers, part.odds)
            for way in PICKS:
                kept = pick(way, classes, p)
                right[way][number, :, size - 1] = kept_right(part, kept)
            states[number, :, size - 1] = state_rows(classes, p, kept)
            largest = -np.sort(-classes.count, axis=1)[:, :2]
            counts[number, :, size - 1, : largest.shape[1]] = largest
    return PlayedPanels(groups, right, states, counts, None, placed.answers.present.sum(axis=1))


def _join_parts(parts: Sequence[PlayedPanels], order: Ints) -> PlayedPanels:
    """Returns the panels of all parts, with the questions in their original order."""

    def joined(values: Sequence[NDArray[Any]], axis: int = 1) -> NDArray[Any]:
        return np.take(np.concatenate(values, axis=axis), order, axis=axis)

    right = {way: joined([part.right[way] for part in parts]) for way in PICKS}
    states, counts = joined([part.states for part in parts]), joined([part.counts for part in parts])
    gains = [part.gain for part in parts if part.gain is not None]
    groups, answers = joined([part.groups for part in parts], 0), joined([part.answers for part in parts], 0)
    return PlayedPanels(groups, right, states, counts, joined(gains) if gains else None, answers)


def grow_gain(
    settings: Mapping[str, Any],
    parts: Sequence[tuple[NDArray[np.float32], Floats]],
    seed: int,
    *,
    without: int | None = None,
) -> Trees:
    """Fits trees of fixed parameters to the rows and gains of all parts except the part `without`."""
    rest = [part for place, part in enumerate(parts) if place != without]
    X, y = (np.concatenate(columns) for columns in zip(*rest, strict=True))
    lightgbm, fixed = require("lightgbm", "fit"), {"deterministic": True, "force_row_wise": True, "num_threads": 1}
    parameters = {**settings, **fixed, "seed": seed, "verbosity": -1}
    rounds = parameters.pop("rounds")
    booster = lightgbm.train(parameters, lightgbm.Dataset(X, y), num_boost_round=rounds)
    return Trees(float32_thresholds(booster), dict(settings), float("nan"))
