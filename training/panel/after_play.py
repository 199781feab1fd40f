"""Corrects P(right) of the kept answer once asking stopped, because the answers that came were chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.routing.panel.model_rows import UNREADABLE_CLASS, Answers, Floats, Ints
from metaprobe.routing.panel.planner import MAX_AFTER, SUREST_BEFORE, After, AskPlan, Curves, probability_of
from metaprobe.training.panel.fitted_panel import renumbered
from metaprobe.training.panel.played_asks import View, play_setting

PLANS = 6
"""Number of budgets whose plans give the plays on which P(right) is corrected."""
AFTER_SD = (0.2, 0.1, 0.2, 0.2, 0.2)
"""Standard deviations of the priors around 0 of the weights of `planner.AFTER_COLUMNS`, in log-odds. They are small,
because the models of the plays have a quarter fewer labels than the exported models, and are less sure.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """Kept answers of m plays after asking has stopped. Plays without a kept answer are left out."""

    before: Floats
    """P(right) of each play's kept answer (m,) before the correction: it ignores that the answers were chosen."""
    answers: Ints
    """Number of readable answers in each play (m,)."""
    agreeing: Ints
    """Number of other answers in each play (m,) that are equal to the kept one."""
    score: Floats
    """Score of each play's kept answer (m,), in [0, 1]."""
    weight: Floats
    """Share of the question's plays that end like this (m,). The weights of one question sum to 1 over all plans."""
    question: Ints
    """Row of each play's question in the view (m,). A question has one play for each setting."""

    @property
    def columns(self) -> Floats:
        """(m, len(AFTER_COLUMNS))"""
        p = np.clip(self.before, SUREST_BEFORE, 1 - SUREST_BEFORE)
        return np.stack(
            [np.ones(len(p)), np.log(p / (1 - p)), self.answers == 2, self.answers > 2, self.agreeing > 0], axis=1
        ).astype(np.float64)

    def probability(self, after: After) -> Floats:
        """Returns the corrected P(right) (m,) of each play, by the formula of `After.probability`."""
        X = self.columns
        return self.before if not any(after.weights) else probability_of(X[:, 1] + X @ np.array(after.weights))


def plans_of(curves: Curves) -> list[AskPlan]:
    """Returns the plans of budgets that are spread over the curves."""
    return [curves.plan(budget=float(budget)) for budget in curves.budgets[:: max(len(curves.budgets) // PLANS, 1)]]


def ended(view: View, plans: Sequence[AskPlan], way: str) -> Ended:
    """Returns how the plans end on the questions of a view, one plan after another."""
    parts: list[list[NDArray[Any]]] = []
    for plan in plans:
        for setting, share in ((plan.first, plan.share), (plan.second, 1 - plan.share)):
            if share <= 0:
                continue
            played = play_setting(view, setting, way)
            rows = np.flatnonzero(played.kept >= 0)
            part, asked = view.answers.rows(rows), played.asked[rows]
            form = np.where(asked, part.answer_class, UNREADABLE_CLASS)
            answers = renumbered(Answers(form, part.agent, part.dimension, part.scaled, asked))
            _, p = view.model.classes_of(answers, view.odds[rows])
            kept_class = answers.answer_class[np.arange(len(rows)), played.kept[rows]]
            same = (answers.answer_class == kept_class[:, None]).sum(axis=1)
            readable_count = (answers.answer_class >= 0).sum(axis=1)
            weight = np.full(len(rows), share / len(plans))
            before, score = p[np.arange(len(rows)), kept_class], played.score[rows]
            parts.append([before, readable_count, same - 1, score, weight, rows])
    return Ended(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def fit_after(endings: Sequence[Ended]) -> After:
    """Returns the correction of P(right) after the play: a logistic regression, shrunk towards no correction."""
    X = np.concatenate([ending.columns for ending in endings])
    y, weight = (np.concatenate([getattr(ending, name) for ending in endings]) for name in ("score", "weight"))
    precision = np.diag(np.array(AFTER_SD) ** -2.0)
    w = np.zeros(X.shape[1])
    for _ in range(20):  # Newton's steps; from a start at no correction it takes a handful
        p = probability_of(X[:, 1] + X @ w)
        curvature = (X * (weight * p * (1 - p))[:, None]).T @ X + precision
        w = w + np.linalg.solve(curvature, X.T @ (weight * (y - p)) - precision @ w)
    return After(tuple(np.clip(w, -MAX_AFTER, MAX_AFTER).tolist()))
