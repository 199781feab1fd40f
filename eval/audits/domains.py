"""Does what was learned on some domains hold on one that was left out?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.audits.simpler_predictors import Scores
from metaprobe.eval.method_results import Finding
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, resampled_interval
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.strongest_control import metric_values
from metaprobe.eval.table import AnswerTable

Rows = NDArray[np.int64]
FEWEST = 100
"""Answers that a domain needs, and a tenth of that of either class, for a number to say something."""
MOST = 8
"""Domains that are left out in turn, the largest: each takes a fit."""
ENOUGH_FOR_ECE = 1000


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Figures of answers of domains that the fit had not seen."""

    by: str
    """What a domain is: `task` or `dimension`."""
    auroc: Mapping[str, Interval]
    """By the domain that was left out."""
    mean: Interval
    """Of these, on the same resamples of groups."""
    gain: Interval
    """The same mean less that of the baseline, which needs no fit, paired."""
    ece: Interval | None
    """Of all domains together; None below `ENOUGH_FOR_ECE` answers."""


def domains_of(table: AnswerTable) -> tuple[str, dict[str, Rows]]:
    """What distinguishes domains, and the rows of each that is large enough: tasks, or of one task its dimensions.

    Empty where there are not two.
    """
    for by, names in (("task", table.tasks), ("dimension", table.dimensions)):
        rows = {str(name): np.flatnonzero(names == name) for name in np.unique(names)}
        large = {name: here for name, here in rows.items() if suffices(table.y[here])}
        if len(large) > 1:
            kept = sorted(large, key=lambda name: -len(large[name]))[:MOST]
            return by, {name: large[name] for name in sorted(kept)}
    return "", {}


def suffices(y: NDArray[np.int64]) -> bool:
    """Whether the answers (n,) of a domain suffice for a number."""
    return len(y) >= FEWEST and min(y.sum(), len(y) - y.sum()) >= FEWEST / 10


def judge_left_out(
    table: AnswerTable,
    fit: Callable[[Rows], tuple[Scores, Scores]],
    baseline: Scores,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Elsewhere | None:
    """Each domain judged by a fit on the others; None where there are not two domains.

    `fit` takes the rows of a domain, learns from the rest, and gives scores and probabilities (rows,) of that domain.
    `baseline` (n,): scores that were not fitted, to compare with.
    """
    by, domains = domains_of(table)
    if not domains:
        return None
    weights = cluster_weights(table.groups.tolist(), resamples, seed)
    found: dict[str, Interval] = {}
    fitted, plain = [], []
    probability = np.full(len(table), np.nan)
    for name, rows in domains.items():
        scores, probability[rows] = fit(rows)
        mine = weights[:, rows]
        fitted.append(metric_values(auroc, table.y[rows], scores, mine))
        plain.append(metric_values(auroc, table.y[rows], baseline[rows], mine))
        found[name] = resampled_interval(fitted[-1].estimate, fitted[-1].resamples, mine)
    mean = float(np.mean([one.estimate for one in fitted]))
    gained = float(np.mean([one.estimate - other.estimate for one, other in zip(fitted, plain, strict=True)]))
    judged = np.flatnonzero(np.isfinite(probability))
    error = None
    if len(judged) >= ENOUGH_FOR_ECE:
        error = ece_interval(table.y[judged], probability[judged], weights[:, judged])
    over, under = (np.mean([one.resamples for one in some], axis=0) for some in (fitted, plain))
    gain = resampled_interval(gained, over - under, weights)
    return Elsewhere(by, found, resampled_interval(mean, over, weights), gain, error)


def holds_elsewhere(found: Elsewhere, *, name: str, home: float) -> Finding:
    """The mean AUROC on domains that were left out is above chance."""
    worst = min(found.auroc, key=lambda domain: found.auroc[domain].estimate)
    detail = (
        f"mean AUROC {found.mean.estimate:.3f} [{found.mean.low:.3f}, {found.mean.high:.3f}] on each {found.by} by a "
        f"fit without it, {home:.3f} at home; lowest {found.auroc[worst].estimate:.3f} on {worst}; over mean "
        f"log-probability {found.gain.estimate:+.3f} [{found.gain.low:+.3f}, {found.gain.high:+.3f}]"
    )
    return Finding(f"{name} is above chance on a {found.by} it has not seen", bool(found.mean.low > 0.5), detail)
