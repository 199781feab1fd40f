"""Simple ways of routing that a router is held against, tuned as finely as it is and spending the same budget.

Each is a family of settings, from cheap to dear. It learns on training questions; there too the two settings are found
whose mixture spends a budget (`metaprobe.eval.routing_controls.mixture_at`), and what that mixture is expected to come
to is read off the other questions. Nothing of those is used to choose.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaprobe.eval.routing_cascade import cascades_on_hull
from metaprobe.eval.routing_controls import domain_table, mixture_at
from metaprobe.eval.routing_performance import Matrix, replay
from metaprobe.records.extras import require
from metaprobe.training.folds import group_folds
from metaprobe.training.router.data import Floats, Ints, Outcomes, pasts_of
from metaprobe.training.router.fit import LAMBDAS, LOST, cost_scale
from metaprobe.training.router.rows import views_of

PRICES = 300
"""Prices at which a control is tuned, beside 0 and one so high that only the cheapest agent is asked."""
FOLDS = 3
"""Folds of the training questions in which P(right) of a control is held out."""
NEIGHBOURS = (10, 20, 40, 80, 160)
PENALTIES = (0.3, 1.0, 3.0, 10.0)
"""Inverse strengths of the L2 penalty on words. Of both lists the one of least held-out squared error counts."""
SEEN_IN = 3
"""Questions that must have a word before it counts."""
COMPONENTS = 64
BISECTIONS = 20

Spent = tuple[Floats, Floats, Floats]
"""(m,) each: expected score of the kept answer, US dollars for 1,000 questions, agents asked."""
Fit = Callable[[Ints, Ints], Floats]
"""From training rows and m other rows to P(right) of the others under each of s settings, (s, m, A)."""


@dataclass(frozen=True, slots=True, eq=False)
class ControlFamily:
    """k settings of one way of routing, and what each comes to on m questions that it was not tuned on."""

    cost: Floats
    """(k,) mean US dollars for 1,000 of the questions that it was tuned on."""
    accuracy: Floats
    """(k,) mean score there."""
    settings: Floats
    """(k, 3, m): score, US dollars for 1,000 questions and agents asked, on the other questions."""

    def at(self, budget: float) -> Spent:
        """The expectation, question by question, of the mixture that spends the budget on the tuning questions."""
        score, cost, calls = mixture_at(self.cost, self.accuracy, budget).of(self.settings)
        return score, cost, calls

    def spending(self, cost: float) -> Spent:
        """Returns the mixture, as `at` does, whose cost on the other questions is `cost`, not on the tuning questions.

        A budget is kept on the tuning questions, and more or less is then spent on others. Where two ways are to be
        compared at equal spending, one is taken at what the other spent. Only costs of the other questions are used.
        """
        low, high = 0.0, float(self.cost.max())
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = float(self.at(middle)[1].mean()) < cost
            low, high = (middle, high) if below else (low, middle)
        return self.at(high)

    def below(self, budget: float) -> Spent:
        """The most accurate setting that costs no more than the budget, unmixed; the cheapest where none does."""
        within = np.where(self.cost <= max(budget, self.cost.min()), self.accuracy, -1.0)
        score, cost, calls = self.settings[int(within.argmax())]
        return score, cost, calls


def families_of(data: Outcomes, train: Ints, test: Ints, *, seed: int = 0) -> dict[str, ControlFamily]:
    """Every control by its name, learned on the rows `train` and played on the rows `test`.

    All scores and costs must be known. The cascade is left out where no agent has a confidence.
    """
    found = {
        "random mixture": _one_agent(data, train, test),
        "domain table": _table(data, train, test),
        "TF-IDF logistic": _by_probability(data, train, test, _logistic(data), seed),
        "kNN on TF-IDF SVD": _by_probability(data, train, test, _neighbours(data, seed), seed),
    }
    if np.isfinite(data.confidence[train]).any():
        found["tuned cascade"] = _cascade(data, train, test)
    return found


def prices_of(data: Outcomes) -> Floats:
    """(PRICES + 2,) accuracies that a US dollar for 1,000 questions must bring: the router's range, and its ends."""
    inner = np.geomspace(*LAMBDAS, PRICES) / cost_scale(data)
    return np.concatenate([[0.0], inner, [1e9 * inner[-1]]])


def _one_agent(data: Outcomes, train: Ints, test: Ints) -> ControlFamily:
    columns = range(len(data.agents))
    return family_of_choices(
        data, train, test, *(np.repeat(np.array(columns)[:, None], len(r), 1) for r in (train, test))
    )


def _table(data: Outcomes, train: Ints, test: Ints) -> ControlFamily:
    """The best agent of each dimension at each price."""
    part = data.take(train)
    matrix = _matrix(part)
    names = [str(d) for d in part.dimension]
    every = [str(d) for d in range(-1, len(data.dimensions))]
    tables = np.array(
        [
            [play.kept for play in domain_table(matrix, names, every, price=1000 * float(price))]
            for price in prices_of(part)
        ]
    )
    return family_of_choices(
        data, train, test, tables[:, 1 + data.dimension[train]], tables[:, 1 + data.dimension[test]]
    )


def _by_probability(data: Outcomes, train: Ints, test: Ints, fit: Fit, seed: int) -> ControlFamily:
    """argmax of P(right) - lambda * price; of the training questions P is held out, as it is of new ones."""
    P = None
    right = np.zeros(len(data), dtype=np.int64)
    for rest, fold in group_folds(train, data.groups, right, FOLDS, seed):
        held_out = fit(rest, fold)
        P = np.zeros((len(held_out), len(data), len(data.agents))) if P is None else P
        P[:, fold] = held_out
    assert P is not None
    errors = ((P[:, train] - data.score[train]) ** 2).mean(axis=(1, 2))
    best = int(errors.argmin())
    seen, new = P[best, train], fit(train, test)[best]
    price = _past_prices(data, train)
    lambdas = prices_of(data.take(train))
    choices = (
        np.stack([(p - lambda_ * price[data.dimension[rows] + 1]).argmax(axis=1) for lambda_ in lambdas])
        for p, rows in ((seen, train), (new, test))
    )
    return family_of_choices(data, train, test, *choices)


def _past_prices(data: Outcomes, train: Ints) -> Floats:
    """(1 + dimensions, A) mean US dollars for 1,000 questions; first over all, which stands for an unseen dimension."""
    overall = data.cost[train].mean(axis=0)
    rows = [train[data.dimension[train] == d] for d in range(len(data.dimensions))]
    return 1000 * np.stack([overall, *(data.cost[r].mean(axis=0) if len(r) else overall for r in rows)])


def _logistic(data: Outcomes) -> Fit:
    """Logistic regression on TF-IDF of prompt and dimension, one an agent."""
    texts = _texts(data)

    def fit(rows: Ints, others: Ints) -> Floats:
        linear = require("sklearn.linear_model", "fit")
        X, Z = _vectors(texts, rows, others)
        P = np.zeros((len(PENALTIES), len(others), len(data.agents)))
        for column, score in enumerate(data.score[rows].T):
            right = score > 0.5
            for place, penalty in enumerate(PENALTIES):
                if right.all() or not right.any():
                    P[place, :, column] = right.mean()
                else:
                    model = linear.LogisticRegression(C=penalty, max_iter=300).fit(X, right)
                    P[place, :, column] = model.predict_proba(Z)[:, 1]
        return P

    return fit


def _neighbours(data: Outcomes, seed: int) -> Fit:
    """Mean score of the nearest training questions, in an SVD of TF-IDF."""
    texts = _texts(data)

    def fit(rows: Ints, others: Ints) -> Floats:
        near = require("sklearn.neighbors", "fit")
        X, Z = _vectors(texts, rows, others)
        if X.shape[1] > COMPONENTS:
            svd = require("sklearn.decomposition", "fit").TruncatedSVD(COMPONENTS, random_state=seed)
            X, Z = svd.fit_transform(X), svd.transform(Z)
        most = min(max(NEIGHBOURS), len(rows))
        index = near.NearestNeighbors(n_neighbors=most, metric="cosine").fit(X)
        found = index.kneighbors(Z, return_distance=False)  # (m, most)
        summed = np.cumsum(data.score[rows][found], axis=1)
        return np.stack([summed[:, min(k, most) - 1] / min(k, most) for k in NEIGHBOURS])

    return fit


def _vectors(texts: list[str], rows: Ints, others: Ints) -> tuple[Any, Any]:
    """TF-IDF of both, of words that at least `SEEN_IN` of the first have; of the commonest where none is in so many."""
    text = require("sklearn.feature_extraction.text", "fit")
    first, second = ([texts[i] for i in chosen] for chosen in (rows, others))
    counts = text.CountVectorizer(ngram_range=(1, 2), min_df=1, binary=True).fit_transform(first).sum(axis=0)
    made = text.TfidfVectorizer(
        ngram_range=(1, 2), min_df=min(SEEN_IN, int(counts.max())), sublinear_tf=True, max_features=30_000
    )
    return made.fit_transform(first), made.transform(second)


def _texts(data: Outcomes) -> list[str]:
    names = ("unknown", *data.dimensions)
    named = zip(data.dimension, data.questions, strict=True)
    return [f"dimension_{names[d + 1].replace(' ', '_')} {text}" for d, text in named]


def _cascade(data: Outcomes, train: Ints, test: Ints) -> ControlFamily:
    """Thresholds on each agent's own confidence; those of one agent on two dimensions are made comparable as the router
    makes them (`router_rows.views_of`)."""
    part = data.take(train)
    odds = views_of(data, pasts_of(part), np.full(data.score.shape, np.nan)).calibrated
    odds = np.where(data.failed, LOST, odds)
    tuned = cascades_on_hull(_matrix(part), odds[train])
    seen, new = (
        np.stack([_came_to(_matrix(data.take(rows)), chain.play(odds[rows])) for chain in tuned])
        for rows in (train, test)
    )
    return ControlFamily(seen[:, 1].mean(axis=1), seen[:, 0].mean(axis=1), new)


def _came_to(matrix: Matrix, played: Any) -> Floats:
    run = replay(matrix, played)
    return np.stack([run.score, 1000 * run.cost, run.asked.sum(axis=1)])


def family_of_choices(data: Outcomes, train: Ints, test: Ints, seen: Ints, new: Ints) -> ControlFamily:
    """Of ways that ask one agent a question: its column, (k, n) on the training rows and (k, m) on the others.

    Neighbouring settings that choose alike on all training rows are one setting, of which the middle is taken: at the
    edge of such a run the other questions, whose P(right) is a little surer, would be dealt with as at the next.
    """
    starts = np.flatnonzero(np.concatenate([[True], (seen[1:] != seen[:-1]).any(axis=1)]))
    middle = (starts + np.append(starts[1:], len(seen)) - 1) // 2
    seen, new = seen[middle], new[middle]
    score, cost = data.score[test, new], 1000 * data.cost[test, new]
    settings = np.stack([score, cost, np.ones_like(score)], axis=1)
    return ControlFamily(1000 * data.cost[train, seen].mean(axis=1), data.score[train, seen].mean(axis=1), settings)


def _matrix(data: Outcomes) -> Matrix:
    return Matrix(data.score, data.cost, np.full(data.score.shape, np.nan), data.agents, np.array(data.groups))
