"""Ways to choose an agent that the panel does not have: TF-IDF and neighbours, tuned as finely as its own."""

from collections.abc import Callable

import numpy as np

from metaprobe.records.extras import require
from metaprobe.routing.panel_asks import hull_corners
from metaprobe.routing.panel_rows import Floats, Ints
from metaprobe.training.folds import group_folds
from metaprobe.training.panel_data import Panels
from metaprobe.training.panel_fit import PRICES, RANGE, mean_prices

FOLDS = 3
"""Folds of the training questions in which P(right) of a control is held out."""
NEIGHBOURS = (10, 20, 40, 80, 160)
PENALTIES = (0.3, 1.0, 3.0, 10.0)
"""Inverse strengths of the L2 penalty on words. Of both lists the one of least held-out squared error counts."""
SEEN_IN = 3
"""Questions that must have a word before it counts."""
COMPONENTS = 64

Family = tuple[Floats, Floats, Floats]
"""Corners of a way's hull: cost (s,) and accuracy (s,) where it was tuned; score and cost on tests (s, 2, m)."""
Fit = Callable[[Ints, Ints], Floats]
"""From training rows and m others to P(right) of the others under each of s settings, (s, m, A)."""


def controls_of(data: Panels, train: Ints, test: Ints, *, seed: int = 0) -> dict[str, Family]:
    """Every control by its name, learned on the rows `train` and played on the rows `test`."""
    return {
        "TF-IDF logistic": _by_probability(data, train, test, _logistic(data), seed),
        "kNN on TF-IDF SVD": _by_probability(data, train, test, _neighbours(data, seed), seed),
    }


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
