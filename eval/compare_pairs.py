"""Which methods distinguish right from wrong better than stated confidence or the strongest control, beyond chance."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import RESAMPLES, STATED, Judged, control_names
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, resample_values, resampled_interval
from metaprobe.eval.metrics.delong import delong_test, holm, normal_p
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.ranked import Floats
from metaprobe.eval.results import PairTest
from metaprobe.eval.table import AnswerTable

Z = 1.959963984540054
"""97.5 % point of the normal distribution."""


def pair_tests(
    table: AnswerTable, judged: Sequence[Judged], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[PairTest, ...]:
    """Every method against stated confidence and against the single control that is strongest on these answers,
    corrected by Holm over all of these pairs.

    Where every group has one answer, and each class two, by DeLong's test; else the answers of a group are not
    independent, and the standard error is that of the bootstrap over groups. Its p-value takes the difference as
    normal, for a share of 1,000 resamples could not stand a correction for some thirty tests. Methods were fitted on
    other folds; that they would come out otherwise on other training data is in neither.
    """
    if len(np.unique(table.y)) < 2:
        return ()
    references = _references(table, judged)
    pairs = [
        (method.name, reference)
        for number, reference in enumerate(references)
        for method in judged
        # The two references are compared with each other once.
        if method.name != reference and (number == 0 or method.name not in references[:number])
    ]
    if not pairs:
        return ()
    row = {method.name: i for i, method in enumerate(judged)}
    scores = np.stack([method.ranking for method in judged])  # (k, n)
    independent = len(np.unique(table.groups)) == len(table) and min(np.bincount(table.y, minlength=2)) >= 2
    if independent:
        found = [_delong(scores, table, row[a], row[b]) for a, b in pairs]
    else:
        weights = cluster_weights(list(table.groups), resamples, seed)
        aurocs = np.array([float(auroc(table.y, score)) for score in scores])
        spread = np.stack([_over_resamples(table, score, weights) for score in scores])  # (k, R)
        found = [
            _bootstrap(float(aurocs[row[a]] - aurocs[row[b]]), spread[row[a]] - spread[row[b]], weights)
            for a, b in pairs
        ]
    corrected = holm([p for _, p in found])
    return tuple(
        PairTest(
            method=method,
            reference=reference,
            difference=difference,
            test="DeLong" if independent else "clustered bootstrap",
            p=p,
            p_holm=float(p_holm),
        )
        for (method, reference), (difference, p), p_holm in zip(pairs, found, corrected, strict=True)
    )


def _references(table: AnswerTable, judged: Sequence[Judged]) -> list[str]:
    """Stated confidence and the strongest control, as far as there are such."""
    rankings = {method.name: method.ranking for method in judged}
    strongest = sorted(control_names(judged), key=lambda name: -float(auroc(table.y, rankings[name])))[:1]
    return [*(name for name in rankings if name == STATED), *strongest]


def _over_resamples(table: AnswerTable, score: Floats, weights: NDArray[np.int32]) -> Floats:
    return resample_values(lambda weight: np.asarray(auroc(table.y, score, weight)), weights)


def _bootstrap(difference: float, spread: Floats, weights: NDArray[np.int32]) -> tuple[Interval, float]:
    error = float(np.nanstd(spread, ddof=1))
    return resampled_interval(difference, spread, weights), normal_p(difference, error)


def _delong(scores: Floats, table: AnswerTable, a: int, b: int) -> tuple[Interval, float]:
    test = delong_test(table.y, scores[a], scores[b])
    half = Z * test.standard_error
    n = len(table)
    return Interval(test.difference, test.difference - half, test.difference + half, n, n), test.p
