"""Compares the ways to choose whom to ask on groups left out, where each was tuned on the other groups.

Which way decides at a budget follows from that. The settings that it mixes there are those tuned on all questions.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from metaprobe.routing.panel.model_rows import Floats, Ints
from metaprobe.routing.panel.planner import AGREE, ONE, PRICED, TABLE, Curves, mixed, neighbours
from metaprobe.training.folds import group_folds
from metaprobe.training.panel.fitted_asks import FittedAsks, fit_asks
from metaprobe.training.panel.fitted_panel import CrossFitPanel
from metaprobe.training.panel.labelled_panels import Panels
from metaprobe.training.panel.played_asks import expected_of, play_setting
from metaprobe.training.panel.question_words import count_words

OUTER = 3
"""Number of folds by group in which the ways are compared."""
BUDGET_COUNT = 24
"""Number of budgets at which the ways to ask are compared."""
NEAR_BUDGETS = 3
"""Number of neighbouring budgets on each side whose gains are included when two ways are compared."""
LEAST_AHEAD = 0.003
"""Least accuracy, beyond a standard error, by which a way must exceed the default way (`standing_way`)."""


def standing_way(ways: Collection[str], signals: bool) -> str:
    """Returns the default way, which is used unless another way is shown to be better.

    It is the priced cascade if answers have signals, else agreement if answers can be equal, else the domain table.
    """
    if signals and PRICED in ways:
        return PRICED
    return AGREE if AGREE in ways else TABLE


def cross_played(
    data: Panels,
    fitted: FittedAsks,
    crossed: Callable[[Ints], CrossFitPanel],
    *,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda _: None,
) -> tuple[Curves, dict[str, Floats]]:
    """Tunes each way on some groups and compares the ways on held-out groups, at equal spending.

    A way other than the default (`standing_way`) must be more accurate there by a standard error of the difference plus
    `LEAST_AHEAD`. Returns the curves, and for each way the expected scores (g, n) of n questions at g budgets, whose
    means are its curve.

    Args:
        data: the panels of n questions.
        fitted: the ways and their settings on all questions.
        crossed: returns the models fitted on the questions with these rows.
        seed: seed of the folds and fits.
        on_step: called with the name of each step.
    """
    counts = count_words(data.questions)
    spent = [setting.cost for settings in fitted.settings.values() for setting in settings]
    budgets = np.geomspace(max(min(spent), 1e-9), max(max(spent), 2e-9), BUDGET_COUNT)
    by_budget = {way: np.zeros((2, BUDGET_COUNT, len(data))) for way in fitted.settings}
    right = np.zeros(len(data), dtype=np.int64)
    for number, (rest, test_rows) in enumerate(group_folds(np.arange(len(data)), data.groups, right, OUTER, seed)):
        on_step(f"whom to ask: fold {number + 1} of {OUTER}")
        part = data.take(rest)
        tuned = fit_asks(part, counts[rest], crossed(rest), fitted.pick, ways=tuple(fitted.settings), seed=seed)
        view = tuned.view(data.take(test_rows), counts[test_rows])
        for way in fitted.settings:
            settings = tuned.settings.get(way) or tuned.settings[ONE]  # answers may hardly ever be equal in a fold
            played = {setting: play_setting(view, setting, fitted.pick) for setting in settings}
            for place, budget in enumerate(budgets.tolist()):
                first, second, share = mixed(settings, budget)
                both = expected_of(played[first], played[second], share)
                by_budget[way][:, place, test_rows] = both.score, both.cost
    at_budgets = {way: _at_spending(score, cost, budgets) for way, (score, cost) in by_budget.items()}
    accuracy = {way: values.mean(axis=1) for way, values in at_budgets.items()}
    prior = standing_way(fitted.settings, bool(fitted.panel.agents.leading))
    margin = {}
    for way in at_budgets:
        if way != prior:  # both spend the same, also where one of the two cannot spend as little as the budget
            least = max(float(by_budget[setting][1].mean(axis=1).min()) for setting in (way, prior))
            budgets_reachable = np.maximum(budgets, least)
            own, standing = (
                _at_spending(by_budget[setting][0], by_budget[setting][1], budgets_reachable)
                for setting in (way, prior)
            )
            margin[way] = accuracy[way] - accuracy[prior] - _surely_ahead(own - standing, data.groups)
    return Curves(fitted.settings, budgets, accuracy, margin), at_budgets


def _at_spending(score: Floats, cost: Floats, budgets: Floats) -> Floats:
    """Returns the scores (g, n) of a way where it spends each of the budgets (g,) on these very questions, from scores
    and costs (g, n) at plans for these budgets; or where it spends the most or the least that it does."""
    spent = cost.mean(axis=1)
    order = np.argsort(spent, kind="stable")
    found = np.zeros(score.shape)
    for place, budget in enumerate(budgets.tolist()):
        left, right, share = neighbours(spent[order].tolist(), budget)
        found[place] = share * score[order[left]] + (1 - share) * score[order[right]]
    return found


def _surely_ahead(gain: Floats, groups: Sequence[str]) -> Floats:
    """Returns by how much a way is ahead (g,) for sure, from its gain (g, n) on each question: a standard error over
    groups below the mean of neighbouring budgets, and `LEAST_AHEAD` below that. May be negative."""
    g, n = gain.shape
    number = np.unique(np.array(groups), return_inverse=True)[1]
    near = np.abs(np.arange(g)[:, None] - np.arange(g)) <= NEAR_BUDGETS
    smooth = near / near.sum(axis=1, keepdims=True) @ gain  # (g, n)
    mean = smooth.mean(axis=1)
    sums = np.zeros((g, number.max() + 1))
    np.add.at(sums.T, number, (smooth - mean[:, None]).T)
    return np.asarray(mean - np.sqrt((sums**2).sum(axis=1)) / n - LEAST_AHEAD)
