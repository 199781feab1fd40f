"""Out-of-fold probabilities of every method on the same answers: the ground of each comparison and of each card."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from metaprobe.eval.compare import BEST_BASELINE, Judged
from metaprobe.eval.report.model import Family
from metaprobe.eval.table import usable_groups
from metaprobe.training.calibrate import fit_platt
from metaprobe.training.methods import BLEND, Evidence, Method, Scores
from metaprobe.training.roles import outer_folds

BASELINES: tuple[Family, ...] = ("log-probability", "plain")
"""Families among which the best plain baseline is chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class CrossFit:
    """All methods on the same folds."""

    methods: tuple[Judged, ...]
    best_baseline: tuple[str, ...]
    """The plain baseline that each fold chose on its selection rows."""

    def __getitem__(self, name: str) -> Judged:
        return next(method for method in self.methods if method.name == name)


def crossfit(
    evidence: Evidence,
    methods: Sequence[Method],
    *,
    folds: int = 5,
    seed: int = 0,
    blend: Sequence[str] = (),
    on_step: Callable[[str], None] = lambda what: None,
) -> CrossFit:
    """Fit and calibrate every method in every outer fold, by group.

    Adds the best plain baseline (chosen in each fold on its selection rows) and, where `blend` names at least two
    methods, their blend: the mean of their calibrated log-odds, calibrated again. Raises `RecordError` where the groups
    do not suffice.
    """
    table = evidence.table
    usable_groups(list(table.groups), table.y, folds=folds)
    n = len(table)
    extra: list[tuple[str, Family]] = [(BEST_BASELINE, "plain")] if any(m.family in BASELINES for m in methods) else []
    if len(blend) > 1:
        extra.append((BLEND, "learned"))
    columns = [(m.name, m.family) for m in methods] + extra
    probability = {name: np.full(n, np.nan) for name, _ in columns}
    ranking = dict(probability)  # the same arrays, but for given scores
    selected: dict[str, list[float]] = {method.name: [] for method in methods}
    coverage: dict[str, float] = {name: 1.0 for name, _ in columns}
    chosen_baselines = []
    for number, roles in enumerate(outer_folds(list(table.groups), table.y, folds=folds, seed=seed)):
        logits: dict[str, Scores] = {}
        for method in methods:
            on_step(f"fold {number + 1}: {method.name}")
            fitted = method.fit(evidence, roles, seed=seed)
            scores = fitted.score(np.arange(n))
            known = np.isfinite(scores)
            coverage[method.name] = float(known.mean())
            scores = np.where(known, scores, np.median(scores[known]) if known.any() else 0.0)
            if not method.fitted:
                ranking[method.name] = scores
            rows = roles.calibration if method.fitted else roles.seen
            logits[method.name] = fit_platt(scores[rows], table.y[rows]).logit(scores)
            selected[method.name].append(fitted.selection_auroc)
        if (BEST_BASELINE, "plain") in extra:
            best = max((m for m in methods if m.family in BASELINES), key=lambda m: selected[m.name][-1]).name
            chosen_baselines.append(best)
            logits[BEST_BASELINE] = logits[best]
        if len(blend) > 1:
            mean = np.mean([logits[name] for name in blend], axis=0)
            logits[BLEND] = fit_platt(mean[roles.calibration], table.y[roles.calibration]).logit(mean)
        for name, logit in logits.items():
            probability[name][roles.test] = 1 / (1 + np.exp(-logit[roles.test]))
    results = tuple(Judged(name, family, probability[name], ranking[name], coverage[name]) for name, family in columns)
    return CrossFit(methods=results, best_baseline=tuple(chosen_baselines))
