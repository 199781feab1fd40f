"""Tests and measures on choices: how often each of n participants chose each of k conditions.

Letters: n participants, k conditions, q questions of one aspect. One participant's answers resemble each other, so the
n participants are the independent cases, never the answers. The plain chi-square over answers is given because papers
give it, together with a form that is corrected for the resemblance.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from metaprobe.eval.metrics.ranked import Floats

Choices = NDArray[np.int64]
"""Number of the chosen condition, -1 for none, (n, q)."""
FLIP_COUNT = 9999
"""Number of random flips of signs in the test of a pair."""
MIN_PARTICIPANTS = 3
"""Fewest participants with which anything is tested."""


def counts_of(choices: Choices, k: int) -> Choices:
    """Returns how often each participant chose each condition, shape (n, k)."""
    counts: Choices = (choices[:, :, None] == np.arange(k)).sum(axis=1)
    return counts


def shares_of(counts: Choices) -> Floats:
    """Returns each participant's shares, shape (n, k); nan for a participant who chose nothing."""
    with np.errstate(invalid="ignore"):
        shares: Floats = counts / counts.sum(axis=-1, keepdims=True)
    return shares


def friedman(values: NDArray[Any]) -> tuple[Floats, Floats]:
    """Returns Friedman's chi-square, corrected for ties, and its p-value, of values (..., n, k).

    nan if nobody prefers anything. Friedman 1937, doi:10.1080/01621459.1937.10503522.
    """
    n, k = values.shape[-2:]
    ranks = stats.rankdata(values, axis=-1)  # (..., n, k)
    between = np.square(ranks.sum(axis=-2) - n * (k + 1) / 2).sum(axis=-1)
    within = np.square(ranks - (k + 1) / 2).sum(axis=(-2, -1))  # smaller where ties are many
    with np.errstate(invalid="ignore", divide="ignore"):
        statistic = np.where(within > 0, (k - 1) * between / within, np.nan)
    return statistic, stats.chi2.sf(statistic, k - 1)


def repeated_f(shares: Floats) -> tuple[float, float]:
    """Returns F and p of a repeated-measures analysis of variance of values (n, k), without a correction of degrees.

    nan if the values leave nothing unexplained. It is here because MetaCrit's Table 5 has an F.
    """
    n, k = shares.shape
    grand_mean = shares.mean()
    between_squares = n * np.square(shares.mean(axis=0) - grand_mean).sum()
    residual_squares = np.square(shares - shares.mean(axis=0) - shares.mean(axis=1, keepdims=True) + grand_mean).sum()
    if n < 2 or residual_squares < 1e-12:
        return float("nan"), float("nan")
    f = (between_squares / (k - 1)) / (residual_squares / ((n - 1) * (k - 1)))
    return float(f), float(stats.f.sf(f, k - 1, (n - 1) * (k - 1)))


def chi_square(totals: NDArray[Any], design_effect: float = 1.0) -> tuple[float, float]:
    """Returns chi-square and p-value against equal shares, from the number of choices of each condition, shape (k,).

    The statistic is divided by `design_effect`: the factor by which the resemblance of one participant's answers
    enlarges the variance. Rao and Scott 1981, doi:10.1080/01621459.1981.10477633.
    """
    if not totals.sum():
        return float("nan"), float("nan")
    expected = totals.sum() / len(totals)
    statistic = float(np.square(totals - expected).sum() / expected / design_effect)
    return statistic, float(stats.chi2.sf(statistic, len(totals) - 1))


def likeness_of(choices: Choices, k: int) -> float:
    """Returns how much one participant's answers resemble each other beyond chance: 0 not at all, 1 if they are all
    equal.

    It is the intraclass correlation of a Dirichlet-multinomial, from the share of equal pairs of answers within
    participants. Sampling can bring it below 0; then 0 is returned. nan if no two answers differ at all.
    """
    counts = counts_of(choices, k).astype(np.float64)
    answered = counts.sum(axis=1)
    pairs = (answered * (answered - 1)).sum()
    if not pairs:
        return float("nan")
    equal_share = (counts * (counts - 1)).sum() / pairs
    shares = counts.sum(axis=0) / counts.sum()
    chance = float(np.square(shares).sum())
    return float("nan") if chance == 1 else float(np.clip((equal_share - chance) / (1 - chance), 0, 1))


def paired_p(differences: Floats) -> float:
    """Returns the two-sided p-value that the differences (n,) of one pair of conditions have mean 0.

    Each participant's sign is flipped at random: without a preference for one of the two, both signs are equally
    likely.
    """
    n = len(differences)
    observed = abs(differences.mean())
    if n < MIN_PARTICIPANTS:
        return float("nan")
    if observed == 0:
        return 1.0
    if n <= 13:  # all 8192 or fewer ways to flip the signs are tried
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float(np.mean(np.abs(signs @ differences) / n >= observed - 1e-12))
    as_extreme_count = np.count_nonzero(np.abs(_drawn_signs(n) @ differences) / n >= observed - 1e-12)
    return float((as_extreme_count + 1) / (FLIP_COUNT + 1))


@lru_cache(maxsize=2)
def _drawn_signs(n: int) -> Floats:
    """Returns random signs (FLIP_COUNT, n), the same for every pair of one study."""
    random_bytes = np.random.default_rng(0).bytes(FLIP_COUNT * n // 8 + 1)
    bits = np.unpackbits(np.frombuffer(random_bytes, np.uint8), count=FLIP_COUNT * n)
    signs: Floats = bits.reshape(FLIP_COUNT, n).astype(np.float64) * 2 - 1
    return signs


def cronbach_alpha(items: Floats, weight: NDArray[Any]) -> Floats:
    """Returns Cronbach's alpha of items (n, q) for multiplicities (R, n), shape (R,); nan if the sum never varies.

    Cronbach 1951, doi:10.1007/BF02310555.
    """
    n, q = items.shape
    total = weight.sum(axis=1)

    def variances(values: Floats) -> Floats:
        means = weight @ values / total[:, None]
        squares: Floats = weight @ np.square(values) / total[:, None] - means**2
        return squares

    sums = variances(items.sum(axis=1, keepdims=True))[:, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        alpha: Floats = q / (q - 1) * (1 - variances(items).sum(axis=1) / sums)
    return np.where((sums > 1e-12) & (q > 1) & (n > 1), alpha, np.nan)


def fleiss_kappa(choices: Choices, k: int) -> float:
    """Returns how much participants agree beyond chance over the questions; nan if all always chose the same.

    Only participants who answered every question count. Fleiss 1971, doi:10.1037/h0031619.
    """
    complete = choices[(choices >= 0).all(axis=1)]
    raters = len(complete)
    if raters < 2:
        return float("nan")
    table = (complete[:, :, None] == np.arange(k)).sum(axis=0).astype(np.float64)  # (q, k)
    observed = (np.square(table).sum(axis=1) - raters).mean() / (raters * (raters - 1))
    chance = float(np.square(table.sum(axis=0) / table.sum()).sum())
    return float("nan") if chance == 1 else float((observed - chance) / (1 - chance))
