"""Simple ways to choose an agent, fixed beforehand, that the panel does not have, tuned as finely as its own."""

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.routing.panel.model_rows import ANSWER_SIGNALS, STATED, Floats, Ints
from metaprobe.routing.panel.planner import hull_corners
from metaprobe.training.folds import group_folds
from metaprobe.training.panel.fitted_asks import LEAST_EQUAL, PRICES, RANGE, mean_prices
from metaprobe.training.panel.labelled_panels import RATE_PRIOR_ANSWERS, Panels

FIXED = "plain table", "Platt cascade", "ask two, else a third", "TF-IDF logistic", "kNN on TF-IDF SVD"
"""Names of the ways, where a set has what they need."""
FOLDS = 3
"""Folds of the training questions in which P(right) of a control is held out."""
NEIGHBOURS = (10, 20, 40, 80, 160)
PENALTIES = (0.3, 1.0, 3.0, 10.0)
"""Inverse strengths of the L2 penalty on words. Of both lists the one of least held-out squared error counts."""
SEEN_IN = 3
"""Questions that must have a word before it counts."""
COMPONENTS = 64
THRESHOLDS = tuple(np.linspace(0.1, 0.98, 23).tolist())
"""P(right) below which a Platt cascade goes on, of those that are tried."""

Family = tuple[Floats, Floats, Floats]
"""Corners of a way's hull: cost (s,) and accuracy (s,) where it was tuned; score and cost on tests (s, 2, m)."""
Fit = Callable[[Ints, Ints], Floats]
"""From training rows and m others to P(right) of the others under each of s settings, (s, m, A)."""


def controls_of(data: Panels, train: Ints, test: Ints, *, seed: int = 0) -> dict[str, Family]:
    """Every control by its name, learned on the rows `train` and played on the rows `test`."""
    found = {
        FIXED[0]: _by_probability(data, train, test, _rates(data), seed),
        FIXED[3]: _by_probability(data, train, test, _logistic(data), seed),
        FIXED[4]: _by_probability(data, train, test, _neighbours(data, seed), seed),
    }
    confidence = _confidence(data)
    if np.isfinite(confidence[train]).mean() > 0.5:
        found[FIXED[1]] = _platt_cascade(data, confidence, train, test, seed)
    equal = (data.answer_class[:, :, None] == data.answer_class[:, None, :]) & (data.answer_class >= 0)[:, :, None]
    if equal[train][:, ~np.eye(len(data.agents), dtype=bool)].mean() > LEAST_EQUAL:
        found[FIXED[2]] = _two_agree(data, equal, train, test)
    return found


def _confidence(data: Panels) -> Floats:
    """Confidence (n, A) of each answer as log-odds: its stated one, or else its mean log-probability as it is."""
    stated = data.signals[..., ANSWER_SIGNALS.index(STATED)]
    if np.isfinite(stated).mean() > 0.5:
        return np.log(np.clip(stated, 0.01, 0.99) / (1 - np.clip(stated, 0.01, 0.99)))
    return -data.signals[..., ANSWER_SIGNALS.index("mean")]


def _platt_cascade(data: Panels, confidence: Floats, train: Ints, test: Ints, seed: int) -> Family:
    """Chains of up to three agents, the cheapest first, that go on while P(right) is below one threshold for the whole
    chain. P(right) by logistic regression on the confidence and the dimension, one an agent; held out for tuning.
    """
    linear, A = require("sklearn.linear_model", "fit"), len(data.agents)
    usual = np.nanmean(confidence[train], axis=0)
    known = np.where(np.isfinite(confidence), confidence, usual)
    where = np.eye(len(data.dimensions) + 1)[data.dimension]

    def fit(rows: Ints, others: Ints) -> Floats:
        P = np.zeros((len(others), A))
        for agent in range(A):
            right = data.score[rows, agent] > 0.5
            if right.all() or not right.any():
                P[:, agent] = right.mean()
            else:
                X = np.column_stack([known[:, agent], where])
                P[:, agent] = linear.LogisticRegression(max_iter=300).fit(X[rows], right).predict_proba(X[others])[:, 1]
        return P

    seen = np.zeros((len(data), A))
    for rest, fold in group_folds(train, data.groups, np.zeros(len(data), dtype=np.int64), FOLDS, seed):
        seen[fold] = fit(rest, fold)
    seen[test] = fit(train, test)
    order = np.argsort(data.cost[train].mean(axis=0), kind="stable").tolist()
    settings = [
        (chain, cut)
        for size in (1, 2, 3)
        for chain in combinations(order, size)
        for cut in (THRESHOLDS if size > 1 else (0.0,))
    ]

    def played(rows: Ints, chain: tuple[int, ...], cut: float) -> tuple[Floats, Floats]:
        score, cost = data.score[rows, chain[0]].copy(), 1000 * data.cost[rows, chain[0]]
        on = np.ones(len(rows), dtype=bool)
        for before, agent in pairwise(chain):
            on &= seen[rows, before] < cut
            score[on], cost = data.score[rows, agent][on], cost + 1000 * on * data.cost[rows, agent]
        return score, cost

    return _hull(settings, played, train, test)


def _two_agree(data: Panels, equal: NDArray[np.bool_], train: Ints, test: Ints) -> Family:
    """Every two agents, with a third where their answers differ, whose answer is then kept; and single agents."""
    agents = range(len(data.agents))
    settings = [(a,) for a in agents] + [(i, j, k) for i, j, k in permutations(agents, 3) if i < j]

    def played(rows: Ints, *chain: int) -> tuple[Floats, Floats]:
        score, cost = data.score[rows], 1000 * data.cost[rows]
        if len(chain) == 1:
            return score[:, chain[0]], cost[:, chain[0]]
        i, j, k = chain
        same = equal[rows, i, j]
        return np.where(same, score[:, j], score[:, k]), cost[:, i] + cost[:, j] + ~same * cost[:, k]

    return _hull(settings, played, train, test)


def _hull(settings: Sequence[Any], played: Callable[..., tuple[Floats, Floats]], train: Ints, test: Ints) -> Family:
    """Returns the settings on the upper hull of the training questions, played on the test questions."""
    points = np.array([[values.mean() for values in played(train, *one)] for one in settings])
    corners = hull_corners(points[:, 1], points[:, 0])
    on_test = np.stack([np.stack(played(test, *settings[corner])) for corner in corners])
    return points[corners, 1], points[corners, 0], on_test


def _by_probability(data: Panels, train: Ints, test: Ints, fit: Fit, seed: int) -> Family:
    """argmax of P(right) - lambda * price; of the training questions P is held out, as it is of new ones."""
    held: dict[int, Floats] = {}
    for rest, fold in group_folds(train, data.groups, np.zeros(len(data), dtype=np.int64), FOLDS, seed):
        P = fit(rest, fold)
        held.update({int(row): P[:, at] for at, row in enumerate(fold)})
    seen = np.stack([held[int(row)] for row in train], axis=1)
    best = int(((seen - data.score[train]) ** 2).mean(axis=(1, 2)).argmin())
    new = fit(train, test)[best]
    price = mean_prices(data.take(train))
    mean = 1000 * data.cost[train].mean()
    lambdas = np.concatenate([[0.0], np.geomspace(*RANGE, PRICES) / mean, [1e9 / mean]])
    chosen = [
        np.stack([(p - value * price[:, data.dimension[rows]].T).argmax(axis=1) for value in lambdas])
        for p, rows in ((seen[best], train), (new, test))
    ]
    starts = np.flatnonzero(np.concatenate([[True], (chosen[0][1:] != chosen[0][:-1]).any(axis=1)]))
    middle = (starts + np.append(starts[1:], len(lambdas)) - 1) // 2
    mine, theirs = (one[middle] for one in chosen)
    cost = 1000 * data.cost[train, mine].mean(axis=1)
    accuracy = data.score[train, mine].mean(axis=1)
    corners = hull_corners(cost, accuracy)
    played = np.stack([data.score[test, theirs], 1000 * data.cost[test, theirs]], axis=1)
    return cost[corners], accuracy[corners], played[corners]


def _rates(data: Panels) -> Fit:
    """Returns the mean score on the dimension, with `RATE_PRIOR_ANSWERS` answers of the agent's overall mean."""

    def fit(rows: Ints, others: Ints) -> Floats:
        overall, P = data.score[rows].mean(axis=0), np.zeros((1, len(others), len(data.agents)))
        for d in np.unique(data.dimension[others]):
            here = data.score[rows][data.dimension[rows] == d]
            total = here.sum(axis=0) + RATE_PRIOR_ANSWERS * overall
            P[0, data.dimension[others] == d] = total / (len(here) + RATE_PRIOR_ANSWERS)
        return P

    return fit


def _logistic(data: Panels) -> Fit:
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


def _neighbours(data: Panels, seed: int) -> Fit:
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
        nearest = index.kneighbors(Z, return_distance=False)  # (m, most)
        summed = np.cumsum(data.score[rows][nearest], axis=1)
        return np.stack([summed[:, min(k, most) - 1] / min(k, most) for k in NEIGHBOURS])

    return fit


def _vectors(texts: list[str], rows: Ints, others: Ints) -> tuple[Floats, Floats]:
    """TF-IDF of both, of words that at least `SEEN_IN` of the first have; of the commonest where none is in so many."""
    text = require("sklearn.feature_extraction.text", "fit")
    first, second = ([texts[i] for i in chosen] for chosen in (rows, others))
    counts = text.CountVectorizer(ngram_range=(1, 2), min_df=1, binary=True).fit_transform(first).sum(axis=0)
    made = text.TfidfVectorizer(
        ngram_range=(1, 2), min_df=min(SEEN_IN, int(counts.max())), sublinear_tf=True, max_features=30_000
    )
    return made.fit_transform(first), made.transform(second)


def _texts(data: Panels) -> list[str]:
    names = (*data.dimensions, "unknown")
    named = zip(data.dimension, data.questions, strict=True)
    return [f"dimension_{names[d].replace(' ', '_')} {text}" for d, text in named]
