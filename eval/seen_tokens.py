"""How early right answers can be distinguished from wrong ones."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.eval.method_results import Family
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.results import SeenMethod, SeenTokens
from metaprobe.eval.table import AnswerTable
from metaprobe.records.errors import RecordError

TOKENS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200)
ENOUGH_LONGER = 0.05
"""Beyond the k at which no more than this share of the answers goes on, nothing changes any more."""


def auroc_by_tokens_seen(
    table: AnswerTable,
    *,
    learned: Mapping[str, Mapping[int, ArrayLike]] | None = None,
    tokens: Sequence[int] = TOKENS,
    resamples: int = 1000,
    seed: int = 0,
) -> SeenTokens | None:
    """AUROC of the mean and minimum log-probability of the first k tokens, of all answers at every k.

    `learned`: name -> k -> (n,) out-of-fold scores from the first k tokens, as a model of the schema `prefix-k` gives
    them; it must have the same k everywhere, and they are the ones shown. Shorter answers are read to their end. None
    where all answers are right, or all are wrong, or there are no log-probabilities.
    """
    if len(np.unique(table.y)) < 2 or not table.measured:
        return None
    given = learned or {}
    if given:
        tokens = sorted(next(iter(given.values())))
        for name, scores in given.items():
            if sorted(scores) != tokens:
                raise RecordError(f"{name} has scores for k in {sorted(scores)}; the others for k in {tokens}")
    else:
        longer = [float(np.mean(table.tokens > k)) for k in tokens]
        # The first k at which nearly all answers have ended is the last one worth showing.
        end = next((at + 1 for at, left in enumerate(longer) if left <= ENOUGH_LONGER), len(longer))
        tokens = tokens[:end]
    weights = cluster_weights(list(table.groups), resamples, seed)

    def method(name: str, family: Family, scores: Mapping[int, ArrayLike]) -> SeenMethod:
        return SeenMethod(name, family, tuple(interval(auroc, table.y, scores[k], weights) for k in tokens))

    mean, lowest = _prefixes(table.logprobs, tokens)
    return SeenTokens(
        tokens=tuple(tokens),
        finished=tuple(float(np.mean(table.tokens <= k)) for k in tokens),
        methods=(
            method("mean log-probability", "log-probability", mean),
            method("minimum log-probability", "log-probability", lowest),
            *(method(name, "learned", scores) for name, scores in given.items()),
        ),
    )


def _prefixes(
    logprobs: NDArray[np.object_], tokens: Sequence[int]
) -> tuple[dict[int, NDArray[np.float64]], dict[int, NDArray[np.float64]]]:
    """k -> (n,) mean, and minimum, of the first k."""
    mean = {k: np.empty(len(logprobs)) for k in tokens}
    lowest = {k: np.empty(len(logprobs)) for k in tokens}
    for row, values in enumerate(logprobs):
        curve = np.asarray(values, dtype=np.float64)
        sums, lows = np.cumsum(curve), np.minimum.accumulate(curve)
        for k in tokens:
            end = min(k, len(curve))
            mean[k][row], lowest[k][row] = sums[end - 1] / end, lows[end - 1]
    return mean, lowest
