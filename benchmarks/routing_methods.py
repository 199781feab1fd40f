"""Ways of routing that benchmarks/routing.py compares, each as a family of plays from dear to cheap.

All learn on the training questions alone, and choose there the member of the family that keeps to a budget.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsRegressor

from metaprobe.eval.routing import Matrix, Played, replay
from metaprobe.eval.routing_cascade import tuned_cascade
from metaprobe.eval.routing_controls import always, domain_table, random_at_cost
from metaprobe.routing.learned_budget import Alone, Plan, Point, plan_of
from metaprobe.training.roles import group_folds
from metaprobe.training.router_curve import alone_of, choices_by_rule, cross_played, curve_of, rule_of
from metaprobe.training.router_data import Outcomes, Words, pasts_of
from metaprobe.training.router_evaluate import matrix_of
from metaprobe.training.router_fit import LAMBDAS, FittedRouter, cost_scale, fit_router
from metaprobe.training.router_rows import Rates, views_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Result = tuple[Floats, Floats, Floats]
"""(n,) each, of the test questions: score of the kept answer, US dollars for 1,000 questions, agents asked."""
NEIGHBOURS = 40
TEST = 0.3
COMPONENTS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    data: Outcomes
    words: Words
    train: Ints
    test: Ints
    budgets: tuple[float, ...]
    seed: int

    @property
    def training(self) -> Matrix:
        return matrix_of(self.data.take(self.train))

    @property
    def testing(self) -> Matrix:
        return matrix_of(self.data.take(self.test))

    def dimensions(self, rows: Ints) -> list[str]:
        return [self.data.dimensions[d] if d >= 0 else "" for d in self.data.dimension[rows]]

    @property
    def lambdas(self) -> Floats:
        return np.geomspace(*LAMBDAS, 16) / cost_scale(self.data.take(self.train))


def result_of(matrix: Matrix, played: Sequence[Played]) -> Result:
    run = replay(matrix, played)
    return run.score, 1000 * run.cost, run.asked.sum(axis=1).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """This project's router, and what its checkpoint would hold to read means off."""

    router: FittedRouter
    curve: list[Point]
    rule: list[Point]
    alone: list[Alone]


def fitted(split: Split) -> Fitted:
    train = split.data.take(split.train)
    words = Words(split.words.counts[split.train])  # type: ignore[index]
    held_out = cross_played(train, words, folds=3, seed=split.seed)
    router = fit_router(split.data, split.words, split.train, seed=split.seed)
    curve = curve_of(held_out, router, split.data, split.words, split.train)
    return Fitted(router, curve, rule_of(held_out), alone_of(held_out, train.agents))


def learned(split: Split) -> list[Result]:
    """This project's router; lambda from its own curve."""
    made = fitted(split)
    cheapest = min(point.cost for point in made.curve)
    plans = [plan_of(made.curve, made.rule, made.alone, budget=max(b, cheapest)) for b in split.budgets]
    return [planned(split, made.router, plan) for plan in plans]


def shuffled_labels(split: Split) -> list[Result]:
    """The same, trained on outcomes that were dealt to other questions: what is left is prices and mean rates."""
    order = np.random.default_rng(split.seed).permutation(split.train)
    score = split.data.score.copy()
    score[split.train] = split.data.score[order]
    other = dataclasses.replace(split, data=dataclasses.replace(split.data, score=score))
    return learned(other)


def planned(split: Split, router: FittedRouter, plan: Plan) -> Result:
    """What `LearnedRouter` does on the test questions by this plan."""
    return result_of(split.testing, plays(split, router, plan))


def plays(split: Split, router: FittedRouter, plan: Plan) -> list[Played]:
    """Whom it asks, and whose answer it keeps."""
    if plan.agent:
        return always(split.testing, split.data.agents.index(plan.agent))
    board = router.board(split.data, split.words, split.test)
    n, A = board.data.score.shape
    rates = Rates(np.full(n, plan.lambda_), np.full(n, plan.per_second))
    if plan.instead:
        chosen = choices_by_rule(board, np.arange(n), rates)
        mask = np.arange(A) == chosen[:, None]
    else:
        mask, p = board.play(router.gain, np.arange(n), np.zeros((n, A), dtype=bool), rates)
        chosen = np.where(mask, p, -1.0).argmax(axis=1)
    column = np.array(router.offered)
    return [Played(tuple(column[asked].tolist()), int(column[kept])) for asked, kept in zip(mask, chosen, strict=True)]


def split_of(data: Outcomes, words: Words, budgets: tuple[float, ...], seed: int) -> Split:
    """A random split by group."""
    groups = sorted(set(data.groups))
    test = set(np.random.default_rng(seed).permutation(groups)[: int(TEST * len(groups))].tolist())
    held = np.array([group in test for group in data.groups])
    return Split(data, words, np.flatnonzero(~held), np.flatnonzero(held), budgets, seed)


def at_lambda(split: Split, lambda_: float) -> Result:
    """The learned router at one price, without a budget."""
    router = fit_router(split.data, split.words, split.train, seed=split.seed)
    return planned(split, router, Plan(lambda_))


def best_single(split: Split) -> list[Result]:
    """The agent that is best on the training questions among those within the budget."""
    cost, accuracy = 1000 * split.training.cost.mean(axis=0), split.training.score.mean(axis=0)
    found = []
    for budget in split.budgets:
        within = np.where(cost <= max(budget * 1.02, cost.min()), accuracy, -1)
        found.append(result_of(split.testing, always(split.testing, int(within.argmax()))))
    return found


def random_mixture(split: Split) -> list[Result]:
    return [
        result_of(split.testing, random_at_cost(split.training, split.testing, budget, seed=split.seed))
        for budget in split.budgets
    ]


def table(split: Split) -> list[Result]:
    """The best agent of each dimension at a price."""
    names, others = split.dimensions(split.train), split.dimensions(split.test)
    family = [
        (
            domain_table(split.training, names, names, price=1000 * lambda_),
            domain_table(split.training, names, others, price=1000 * lambda_),
        )
        for lambda_ in split.lambdas
    ]
    return _chosen(split, family)


def cascade(split: Split) -> list[Result]:
    """Thresholds on each agent's own confidence, tuned for the same prices on the same training questions."""
    data = split.data
    if not np.isfinite(data.confidence).any():
        return []
    # Confidences of one agent on different dimensions are made comparable by the calibration that the router uses.
    odds = calibrated(split)
    family = []
    for lambda_ in split.lambdas[::2]:
        tuned = tuned_cascade(split.training, odds[split.train], price=1000 * float(lambda_))
        family.append((tuned.play(odds[split.train]), tuned.play(odds[split.test])))
    return _chosen(split, family)


def calibrated(split: Split) -> Floats:
    """(n, A): log-odds that an agent's own confidence gives its answer, as learned on the training questions."""
    no_text = np.full(split.data.score.shape, np.nan)
    return views_of(split.data, pasts_of(split.data.take(split.train)), no_text).calibrated


def tfidf(split: Split) -> list[Result]:
    """Logistic regression on TF-IDF of prompt and dimension, one an agent; argmax of P(right) - lambda * price."""
    texts = _texts(split)

    def fit(rows: Ints, others: Ints) -> Floats:
        vectors = TfidfVectorizer(ngram_range=(1, 2), min_df=3, sublinear_tf=True, max_features=30_000)
        X, Z = vectors.fit_transform([texts[i] for i in rows]), vectors.transform([texts[i] for i in others])
        columns = []
        for score in split.data.score[rows].T:
            right = score > 0.5
            if right.all() or not right.any():
                columns.append(np.full(len(others), right.mean()))
            else:
                columns.append(LogisticRegression(max_iter=300).fit(X, right).predict_proba(Z)[:, 1])
        return np.stack(columns, axis=1)

    return _by_probability(split, fit)


def neighbours(split: Split) -> list[Result]:
    """Mean score of the nearest training questions, in an SVD of TF-IDF."""
    texts = _texts(split)

    def fit(rows: Ints, others: Ints) -> Floats:
        vectors = TfidfVectorizer(ngram_range=(1, 2), min_df=3, sublinear_tf=True, max_features=30_000)
        X, Z = vectors.fit_transform([texts[i] for i in rows]), vectors.transform([texts[i] for i in others])
        svd = TruncatedSVD(min(COMPONENTS, X.shape[1] - 1), random_state=split.seed).fit(X)
        near = KNeighborsRegressor(min(NEIGHBOURS, len(rows)), metric="cosine").fit(
            svd.transform(X), split.data.score[rows]
        )
        return np.asarray(near.predict(svd.transform(Z)))

    return _by_probability(split, fit)


def _texts(split: Split) -> list[str]:
    names = split.dimensions(np.arange(len(split.data)))
    named = zip(names, split.data.questions, strict=True)
    return [f"dimension_{name.replace(' ', '_')} {text}" for name, text in named]


def _by_probability(split: Split, fit: Callable[[Ints, Ints], Floats]) -> list[Result]:
    """P(right) of training questions is held out, so that lambda is chosen on what test questions look like."""
    P = np.zeros(split.data.score.shape)
    groups = split.data.groups
    for rest, fold in group_folds(split.train, groups, np.zeros(len(groups), dtype=np.int64), 3, split.seed):
        P[fold] = fit(rest, fold)
    P[split.test] = fit(split.train, split.test)
    price = np.zeros_like(P)
    for d in np.unique(split.data.dimension):
        seen = split.train[split.data.dimension[split.train] == d]
        price[split.data.dimension == d] = 1000 * split.data.cost[seen if len(seen) else split.train].mean(axis=0)
    family = []
    for lambda_ in split.lambdas:
        best = (P - lambda_ * price).argmax(axis=1).tolist()
        family.append(tuple([Played((best[i],), best[i]) for i in rows] for rows in (split.train, split.test)))
    return _chosen(split, family)


def _chosen(split: Split, family: Sequence[tuple[Sequence[Played], ...]]) -> list[Result]:
    """For each budget the member of highest accuracy within it on the training questions, played on the others."""
    seen = [result_of(split.training, member[0]) for member in family]
    costs, accuracy = (np.array([one[k].mean() for one in seen]) for k in (1, 0))
    found = []
    for budget in split.budgets:
        within = np.where(costs <= max(budget * 1.02, costs.min()), accuracy, -1)
        found.append(result_of(split.testing, family[int(within.argmax())][1]))
    return found


ROUTER = "learned router"
METHODS: dict[str, Callable[[Split], list[Result]]] = {
    ROUTER: learned,
    "best single within budget": best_single,
    "random mixture": random_mixture,
    "domain table": table,
    "TF-IDF logistic": tfidf,
    "kNN on TF-IDF SVD": neighbours,
    "tuned cascade": cascade,
}
