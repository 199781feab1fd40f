"""Answer only where confident: the error among the accepted against the share accepted. y = 1 means a correct answer.

Equal scores are averaged over: the risk is its expectation when ties are broken at random, computed in closed form.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.eval.metrics.ranked import Floats, Ranked, Value, rank_scores, ratio


@dataclass(frozen=True, slots=True, eq=False)
class RiskCoverage:
    """Risk among the k most confident answers, k = 1 ... n."""

    coverage: Floats
    """(n,): k / n."""
    risk: Floats
    """(n,): expected share of wrong answers among the k."""


def risk_coverage(y: ArrayLike, score: ArrayLike) -> RiskCoverage:
    """The risk-coverage curve. El-Yaniv and Wiener 2010."""
    data = rank_scores(y, score)
    count, wrong = data.count[0], (data.count - data.ones)[0]  # (G,)
    n = data.weight.shape[1]
    pool = np.repeat(np.arange(len(count)), count.astype(int))  # (n,): the tie each k falls into
    k = np.arange(1, n + 1)
    into_pool = k - (np.cumsum(count) - count)[pool]
    errors = (np.cumsum(wrong) - wrong)[pool] + (wrong / count)[pool] * into_pool
    return RiskCoverage(k / n, errors / k)


def aurc(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Area under the risk-coverage curve, the mean of its n risks, in [0, 1]; lower is better.

    Defined for one class too. A random score gives the error rate. Geifman, Uziel and El-Yaniv 2019, arXiv:1805.08206.
    """
    data = rank_scores(y, score, weight)
    return data.value(_mean_risk(data))


def prediction_rejection_ratio(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Share of the gap between a random and a perfect ranking's AURC that this ranking closes: 1 is perfect, 0 random.

    (error rate - AURC) / (error rate - AURC of a perfect ranking), below 0 for one that is worse than random; nan for
    one class. Of the accepted answers only, all shares accepted weighing the same. Malinin and Gales 2021,
    arXiv:2002.07650, replace rejected answers by the truth instead; for right and wrong that ratio is
    2 AUROC - 1, and says nothing new.
    """
    data = rank_scores(y, score, weight)
    n = data.count.sum(axis=1)
    chance = ratio(n - data.ones.sum(axis=1), n)
    return data.value(ratio(chance - _mean_risk(data), chance - _least_mean_risk(data)))


@dataclass(frozen=True, slots=True)
class AccuracyAtCoverage:
    """A metric: the share of right ones among the share `coverage` of the answers with the highest scores.

    Equal scores at the edge count in part, as if their order were drawn.
    """

    coverage: float

    def __call__(self, y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, /) -> Value:
        data = rank_scores(y, score, weight)
        taken = self.coverage * data.count.sum(axis=1, keepdims=True)
        before = np.cumsum(data.count, axis=1) - data.count
        part = np.clip(ratio(taken - before, data.count), 0, 1)
        return data.value(ratio((np.nan_to_num(part) * data.ones).sum(axis=1), taken[:, 0]))


@dataclass(frozen=True, slots=True)
class ErrorFall:
    """A metric: by which share the error falls where only the share `coverage` of the answers is given; 0 by chance."""

    coverage: float

    def __call__(self, y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None, /) -> Value:
        data = rank_scores(y, score, weight)
        n = data.count.sum(axis=1)
        right = np.asarray(AccuracyAtCoverage(self.coverage)(y, score, weight)).reshape(-1)
        return data.value(1 - ratio(1 - right, ratio(n - data.ones.sum(axis=1), n)))


def _least_mean_risk(data: Ranked) -> Floats:
    """(R,): the AURC of a perfect ranking."""
    n, right = data.count.sum(axis=1), data.ones.sum(axis=1)
    # It errs only after its `right` correct answers: the sum of (k - right) / k for k = right + 1 ... n.
    spread = _harmonic(n)[n.astype(int)] - _harmonic(n)[right.astype(int)]
    return ratio(n - right - right * spread, n)


def _mean_risk(data: Ranked) -> Floats:
    """(R,). A pool of m ties with e errors, behind N answers with E errors, adds the sum over j = 1 ... m of

    (E + e j / m) / (N + j)  =  E h + (e / m) (m - N h),   h = H(N + m) - H(N),   H the harmonic numbers.
    """
    wrong = data.count - data.ones
    reached = np.cumsum(data.count, axis=1)
    before = reached - data.count
    errors_before = np.cumsum(wrong, axis=1) - wrong
    harmonic = _harmonic(reached[:, -1])
    h = harmonic[reached.astype(int)] - harmonic[before.astype(int)]
    share = wrong / np.maximum(data.count, 1)
    return ratio((errors_before * h + wrong - share * before * h).sum(axis=1), reached[:, -1])


def _harmonic(largest: Floats) -> Floats:
    """H(0) ... H(max)."""
    table: Floats = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, int(largest.max()) + 1))])
    return table
