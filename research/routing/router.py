"""The learned router's own plays on the test questions of a split: fitted once, and kept where a folder is given.

Controls change more often than the router does. With `--keep FOLDER` they are measured anew beside what it did.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.routing.learned_budget import BudgetPlan, plan_of
from research.routing.methods import Fitted, Result, Split, fitted, planned

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RouterPlays:
    """What one fit of the router does on the test questions of a split. k settings, m test questions, B budgets."""

    cost: Floats
    """(k,) US dollars for 1,000 questions of each setting, as the checkpoint's own curve promises it."""
    accuracy: Floats
    """(k,) likewise."""
    settings: Floats
    """(k, 3, m): what came of each setting; score of the kept answer, US dollars for 1,000 questions, agents asked."""
    shipped: Floats
    """(B, 3, m): the same of the one setting that `--budget` takes."""

    def shipped_at(self, budget: int) -> Result:
        """Score, cost and calls (m,) each of the setting taken for the budget of this place in `Split.budgets`."""
        score, cost, calls = self.shipped[budget]
        return score, cost, calls


def router_plays(split: Split, keep: Path | None = None, name: str = "") -> RouterPlays:
    """Fits the router on the split's training questions and plays every setting of its curve on the others.

    `keep`: folder of stored plays; those under `name` and the split's seed are taken from there in place of a fit.
    """
    path = None if keep is None else keep / f"{name}-{split.seed}.npz"
    if path is not None and path.exists():
        with np.load(path) as stored:
            return RouterPlays(**{field.name: stored[field.name] for field in dataclasses.fields(RouterPlays)})
    made = _played(split, fitted(split))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **{field.name: getattr(made, field.name) for field in dataclasses.fields(made)})
    return made


def shuffled_labels(split: Split, keep: Path | None = None, name: str = "") -> RouterPlays:
    """The same, trained on outcomes that were dealt to other questions: what is left is prices and mean rates."""
    order = np.random.default_rng(split.seed).permutation(split.train)
    score = split.data.score.copy()
    score[split.train] = split.data.score[order]
    other = dataclasses.replace(split, data=dataclasses.replace(split.data, score=score))
    return router_plays(other, keep, f"{name}, shuffled labels")


def _played(split: Split, made: Fitted) -> RouterPlays:
    cheapest = min(point.cost for point in made.curve)
    shipped = [plan_of(made.curve, made.rule, made.alone, budget=max(b, cheapest)) for b in split.budgets]
    free = [point for point in made.curve if not point.per_second]
    ruled = [point for point in made.rule if not point.per_second]
    plans = [
        *(BudgetPlan(point.lambda_) for point in free),
        *(BudgetPlan(point.lambda_, instead="it is one of the settings") for point in ruled),
        *(BudgetPlan(1.0, agent=one.agent) for one in made.alone),
    ]
    ways = [*free, *ruled, *made.alone]
    return RouterPlays(
        cost=np.array([way.cost for way in ways]),
        accuracy=np.array([way.accuracy for way in ways]),
        settings=np.stack([np.stack(planned(split, made.router, plan)) for plan in plans]),
        shipped=np.stack([np.stack(planned(split, made.router, plan)) for plan in shipped]),
    )
