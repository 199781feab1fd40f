"""The numbers of one data set: every method on held-out answers, pooled and within runs, and what they depend on.

AUROC compares only answers of one outer fold, and within runs only answers of one run and fold: each fold has models of
its own, and their scales differ, so that pooling over folds would count that difference against whatever is fitted
(Forman and Scholz 2010).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import Judged
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import brier_skill, ece_interval
from metaprobe.eval.metrics.ranked import StratifiedAuroc, auprc
from metaprobe.probes.features import COUNTS
from metaprobe.training.folds import Roles
from metaprobe.training.methods import BLEND, MEAN_LOGPROB, TREES, Blend, GivenScore, Method
from metaprobe.training.study import CrossFit, crossfit
from research.blocks import packed
from research.quality.controls import over_controls
from research.quality.data import DataSet, with_tokens
from research.quality.methods import (
    SINGLE_EARLY,
    SINGLE_FULL,
    STEADY,
    TERMS,
    WITH_RUN,
    SingleFeature,
    SteadyTrees,
    Terms,
    entropy_rivals,
    rivals,
)

FOLDS = 5
RESAMPLES = 300
ENOUGH_FOR_ECE = 1000
BLEND_RUN = BLEND + WITH_RUN

Packed = list[float]
Figures = dict[str, Any]
Strata = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Holds the results of the folds of one data set."""

    of: DataSet
    judged: Mapping[str, Judged]
    fold: Strata
    best_baseline: tuple[str, ...]
    roles: tuple[Roles, ...]

    @property
    def in_fold(self) -> StratifiedAuroc:
        """AUROC among answers of one fold."""
        return StratifiedAuroc(self.fold)

    @property
    def in_run(self) -> StratifiedAuroc:
        """AUROC among answers of one fold and run."""
        runs = np.unique(self.of.runs, return_inverse=True)[1]
        return StratifiedAuroc(runs * FOLDS + self.fold)


def too_few(of: DataSet) -> str:
    """Why the set cannot be cross-fitted; empty where it can."""
    table = of.evidence.table
    counts = [len(np.unique(table.groups[table.y == label])) for label in (0, 1)]
    needed = 2 * FOLDS
    return "" if min(counts) >= needed else f"{counts[1]} groups good, {counts[0]} not; {needed} of each are needed"


def fold_of(roles: Sequence[Roles], n: int) -> Strata:
    """The outer fold in which each row is a test row."""
    fold = np.empty(n, dtype=np.int64)
    for number, role in enumerate(roles):
        fold[role.test] = number
    return fold


def measure(of: DataSet, *, seed: int, on_step: Callable[[str], None] = lambda what: None) -> Measured:
    """Cross-fit every rival; where there are several runs, also those that know which run an answer is of."""
    evidence = of.evidence
    methods = rivals(evidence.table)
    if of.alternatives is not None:
        methods += entropy_rivals(of.alternatives)
    blend = Blend(tuple(method for method in methods if method.name in (STEADY, TERMS)))
    fits = crossfit(evidence, [*methods, blend], folds=FOLDS, seed=seed, on_step=on_step)
    judged = {method.name: method for method in fits.methods}
    if len(np.unique(of.runs)) > 1:
        known: list[Method] = [SteadyTrees(STEADY + WITH_RUN, with_run=True), Terms(TERMS + WITH_RUN, with_run=True)]
        known.append(Blend(tuple(known), name=BLEND_RUN))
        joined: CrossFit = crossfit(evidence, known, folds=FOLDS, seed=seed, on_step=on_step)
        judged |= {m.name: m for m in joined.methods}
    fold = fold_of(fits.roles, len(evidence.table))
    return Measured(of, judged, fold, fits.best_baseline, fits.roles)


def figures(found: Measured, *, seed: int = 0, on_step: Callable[[str], None]) -> Figures:
    """Everything that the page shows of one data set."""
    of = found.of
    table = of.evidence.table
    weights = cluster_weights(list(table.groups), RESAMPLES, seed)
    several = len(np.unique(of.runs)) > 1
    on_step("figures")
    single = {}  # the features that the folds chose on their learning rows
    for method in rivals(table):
        if isinstance(method, SingleFeature):
            picks = [method.choose(of.evidence, roles.learning) for roles in found.roles]
            names = of.evidence.feature_names
            single[method.name] = [f"{'+' if sign > 0 else '-'}{names[column]}" for column, sign in picks]
    rankings = {name: judged.ranking for name, judged in found.judged.items()}

    def over(other: str) -> Packed:
        best = rankings[SINGLE_EARLY], rankings[other]
        return packed(paired_difference(found.in_fold, table.y, *best, weights))

    strongest = over_controls(table.y, found.judged, found.in_fold, weights)
    within = over_controls(table.y, found.judged, found.in_run, weights) if several else {}
    return {
        **about(of),
        "seed": seed,
        "methods": {
            name: method_figures(found, name, weights, several)
            | {"over_strongest": strongest.get(name), "within_over_strongest": within.get(name)}
            for name in found.judged
        },
        "best_baseline": sorted(set(found.best_baseline)),
        "single": single,
        # The paper's first finding: the best early feature against the best of the full response, and against all.
        "early": {f"early_over_{name}": over(other) for name, other in (("full", SINGLE_FULL), ("trees", TREES))},
        "prefix": prefixes(of, seed, on_step),
        "trajectory": trajectory(of, weights[:100]),
    }


def about(of: DataSet) -> Figures:
    """Describes the data set that was measured."""
    table = of.evidence.table
    return {
        "what": of.what,
        "n": len(table),
        "groups": len(np.unique(table.groups)),
        "runs": len(np.unique(of.runs)),
        "models": sorted(set(table.models.tolist())),
        "base_rate": round(float(table.y.mean()), 4),
        "median_tokens": float(np.median(table.tokens)),
        "tokens": int(table.tokens.sum()),
        "cut": round(float(table.cut.mean()), 4),
    }


def method_figures(found: Measured, name: str, weights: NDArray[np.int32], several: bool) -> Figures:
    """One method's numbers; differences are paired, to the mean log-probability."""
    y, method, mean = found.of.evidence.table.y, found.judged[name], found.judged[MEAN_LOGPROB]

    def over(metric: StratifiedAuroc, other: Judged) -> Packed | None:
        if other is method:
            return None
        return packed(paired_difference(metric, y, method.ranking, other.ranking, weights))

    return {
        "family": method.family,
        "auroc": packed(interval(found.in_fold, y, method.ranking, weights)),
        "over_mean": over(found.in_fold, mean),
        "within": packed(interval(found.in_run, y, method.ranking, weights)) if several else None,
        "within_over_mean": over(found.in_run, mean) if several else None,
        "auprc": packed(interval(auprc, y, method.probability, weights)),
        "ece": packed(ece_interval(y, method.probability, weights)) if len(y) >= ENOUGH_FOR_ECE else None,
        "brier_skill": packed(interval(brier_skill, y, method.probability, weights)),
    }


def prefixes(of: DataSet, seed: int, on_step: Callable[[str], None]) -> Figures:
    """AUROC after k tokens among the answers that have k: of trees that know no more, of the mean so far, and of trees
    that know the whole of the same answers. An answer that has ended is no longer a question for a prefix."""
    rows = {}
    for k in COUNTS:
        part = with_tokens(of, k)
        table = part.evidence.table
        if too_few(part):
            break
        trees, whole = SteadyTrees(f"prefix-{k}", schema=f"prefix-{k}"), SteadyTrees()
        means = np.array([float(np.mean(x[:k])) for x in table.logprobs])
        mean = GivenScore(f"mean of {k}", "log-probability", lambda _, means=means: means)  # type: ignore[misc]
        fits = crossfit(part.evidence, [trees, mean, whole], folds=FOLDS, seed=seed, on_step=on_step)
        metric = StratifiedAuroc(fold_of(fits.roles, len(table)))
        weights = cluster_weights(list(table.groups), RESAMPLES, seed)
        known, full = fits[trees.name].ranking, fits[whole.name].ranking
        rows[str(k)] = {
            "n": len(table),
            "trees": packed(interval(metric, table.y, known, weights)),
            "mean": packed(interval(metric, table.y, fits[mean.name].ranking, weights)),
            "whole": packed(interval(metric, table.y, full, weights)),
            "trees_over_whole": packed(paired_difference(metric, table.y, known, full, weights)),
        }
    return rows


def trajectory(of: DataSet, weights: NDArray[np.int32], points: int = 20) -> Figures:
    """How log-probabilities run over the answer, after the paper's section 4.3; intervals over groups.

    Each answer is interpolated to `points` positions. Start, middle and end are the first and last tenth and what lies
    between 30 and 70 %; the dip is the lowest fifth's mean in the first half. Spread: 10th to 90th percentile of the
    answers. Gap: good minus bad, in standard deviations of all answers at that part. Answers of one token are left out.
    """
    table = of.evidence.table
    kept = np.flatnonzero(table.tokens > 1)
    position = np.linspace(0, 1, points)
    curves = np.stack(
        [np.interp(position, np.linspace(0, 1, len(x)), x) for x in table.logprobs[kept]]
    )  # (n, points), nats
    parts = {"start": position <= 0.1, "middle": (position >= 0.3) & (position <= 0.7), "end": position >= 0.9}
    levels = np.stack([curves[:, part].mean(axis=1) for part in parts.values()], axis=1)  # (n, 3)
    y = table.y[kept].astype(np.float64)

    def values(count: NDArray[Any]) -> NDArray[np.float64]:
        """Level, spread and gap at start, middle and end; then the differences that the finding is about."""
        level = count @ levels / count.sum()
        rows = np.repeat(np.arange(len(curves)), count)
        low, high = np.percentile(curves[rows], [10, 90], axis=0)
        spread = np.array([(high - low)[part].mean() for part in parts.values()])
        good, bad = count * y, count * (1 - y)
        if not good.sum() or not bad.sum():
            gap = np.full(3, np.nan)
        else:
            deviation = np.sqrt(np.maximum(count @ (levels - level) ** 2 / count.sum(), 1e-12))
            gap = (good @ levels / good.sum() - bad @ levels / bad.sum()) / deviation
        return np.concatenate(
            [level, spread, gap, [level[0] - level[1], level[2] - level[1], spread[0] - spread[1], gap[0] - gap[1]]]
        )

    names = [f"{what} {part}" for what in ("level", "spread", "gap") for part in parts]
    names += ["start over middle", "end over middle", "spread start over middle", "gap start over middle"]
    drawn = np.array([values(row[kept]) for row in weights])
    low, high = np.nanquantile(drawn, [0.025, 0.975], axis=0)
    estimate = values(np.ones(len(kept), dtype=np.int64))
    return {name: [round(float(v), 4) for v in row] for name, *row in zip(names, estimate, low, high, strict=True)}
