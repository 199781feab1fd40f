"""Out-of-fold probabilities of every method on the same answers: the ground of each comparison and of each card."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.compare import BEST_BASELINE, Judged
from metaprobe.eval.method_results import Family
from metaprobe.eval.table import AnswerTable, usable_groups
from metaprobe.records.extras import require
from metaprobe.training.common.calibrate import choose_calibrator, sigmoid
from metaprobe.training.common.roles import Roles, Rows, outer_folds
from metaprobe.training.crossfit.finished_folds import Progress
from metaprobe.training.crossfit.methods import (
    BLEND,
    USUAL_CALIBRATORS,
    Evidence,
    Method,
    Scores,
    calibrators_of,
)
from metaprobe.training.linear.probe import LinearProbe

BASELINES: tuple[Family, ...] = ("log-probability", "plain")
"""Families among which the best plain baseline is chosen."""


BLEND_PRIOR = 20.0
"""Answers' worth of the belief that all parts of a blend weigh the same."""


@dataclass(frozen=True, slots=True, eq=False)
class CrossFit:
    """All methods on the same folds."""

    methods: tuple[Judged, ...]
    best_baseline: tuple[str, ...]
    """The plain baseline that each fold chose on its selection rows."""
    roles: tuple[Roles, ...]
    """Of each fold."""
    probes: Mapping[str, tuple[LinearProbe, ...]]
    """Of each method on hidden states, the probe of every fold."""

    def __getitem__(self, name: str) -> Judged:
        return next(method for method in self.methods if method.name == name)


def crossfit(
    evidence: Evidence,
    methods: Sequence[Method],
    *,
    folds: int = 5,
    seed: int = 0,
    blend: Sequence[str] = (),
    progress: Progress | None = None,
    on_step: Callable[[str], None] = lambda what: None,
) -> CrossFit:
    """Fit and calibrate every method in every outer fold, by group; the calibrator is chosen on calibration rows.

    Adds the best plain baseline (chosen in each fold on its selection rows) and, where `blend` names at least two
    methods, their blend (`blend_weights`), calibrated again. `progress`: where finished folds are kept for the next
    start. Raises `RecordError` where the groups do not suffice.
    """
    table = evidence.table
    usable_groups(list(table.groups), table.y, folds=folds)
    n = len(table)
    columns = _columns(methods, blend)
    probability = {name: np.full(n, np.nan) for name, _ in columns}
    ranking = dict(probability)  # the same arrays, but for given scores
    selected: dict[str, list[float]] = {method.name: [] for method in methods}
    probes: dict[str, list[LinearProbe]] = {}
    progress = progress or Progress()
    coverage: dict[str, float] = {name: 1.0 for name, _ in columns}
    chosen_baselines = []

    splits = tuple(outer_folds(list(table.groups), table.y, folds=folds, seed=seed))
    for number, roles in enumerate(splits):
        logits: dict[str, Scores] = {}
        for place, method in enumerate(methods, 1):
            on_step(f"fold {number + 1} of {folds}, method {place} of {len(methods)}: {method.name}")
            fitted = progress.fold(evidence, method, roles, seed=seed)
            if fitted.probe is not None:
                probes.setdefault(method.name, []).append(fitted.probe)
            scores, coverage[method.name] = _without_gaps(fitted.scores)
            if not method.fitted:
                ranking[method.name] = scores
            rows = roles.calibration if method.fitted else roles.seen
            logits[method.name] = _log_odds(scores, table, rows, calibrators_of(method), seed)
            selected[method.name].append(fitted.selection_auroc)
        if (BEST_BASELINE, "plain") in columns:
            best = max((m for m in methods if m.family in BASELINES), key=lambda m: selected[m.name][-1]).name
            chosen_baselines.append(best)
            logits[BEST_BASELINE] = logits[best]
        if len(blend) > 1:
            parts, rows = np.array([logits[name] for name in blend]), roles.calibration
            together = blend_weights(parts[:, rows], table.y[rows]) @ parts
            logits[BLEND] = _log_odds(together, table, rows, USUAL_CALIBRATORS, seed)
        for name, logit in logits.items():
            probability[name][roles.test] = 1 / (1 + np.exp(-logit[roles.test]))
    results = tuple(Judged(name, family, probability[name], ranking[name], coverage[name]) for name, family in columns)
    return CrossFit(
        methods=results,
        best_baseline=tuple(chosen_baselines),
        roles=splits,
        probes={name: tuple(found) for name, found in probes.items()},
    )


def _columns(methods: Sequence[Method], blend: Sequence[str]) -> list[tuple[str, Family]]:
    """Returns name and family of what is judged: the methods, then the best plain baseline and the blend, if any."""
    columns = [(method.name, method.family) for method in methods]
    if any(method.family in BASELINES for method in methods):
        columns.append((BEST_BASELINE, "plain"))
    if len(blend) > 1:
        columns.append((BLEND, "learned"))
    return columns


def _log_odds(scores: Scores, table: AnswerTable, rows: Rows, candidates: Sequence[str], seed: int) -> Scores:
    """Returns calibrated log-odds of all scores; calibrators among `candidates` are fitted on these rows alone."""
    found = choose_calibrator(scores[rows], table.y[rows], table.groups[rows], candidates=candidates, seed=seed)
    return found.calibrator.logit(scores)


def _without_gaps(scores: Scores) -> tuple[Scores, float]:
    """Returns the scores with the median in place of those that are not finite, and the share that was finite."""
    known = np.isfinite(scores)
    return np.where(known, scores, np.median(scores[known]) if known.any() else 0.0), float(known.mean())


def blend_weights(logits: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """(k,) weights of k methods' calibrated log-odds (k, n): logistic regression, none negative, shrunk to equal ones.

    With few answers the blend is the mean of the log-odds; with many, what adds nothing loses its weight (stacking,
    Breiman 1996, with the prior of a plain average).
    """
    optimize = require("scipy.optimize", "fit")
    k, n = logits.shape

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights, shift = parameters[:k], parameters[k]
        z = weights @ logits + shift
        error, away = sigmoid(z) - y, weights - 1 / k
        value = np.logaddexp(0, z).sum() - y @ z + BLEND_PRIOR * away @ away
        return float(value / n), np.r_[logits @ error + 2 * BLEND_PRIOR * away, error.sum()] / n

    bounds = [(0, None)] * k + [(None, None)]
    start = np.r_[np.full(k, 1 / k), 0.0]
    found = optimize.minimize(loss, start, jac=True, method="SLSQP", bounds=bounds, options={"ftol": 1e-12})
    return np.asarray(found.x[:k], dtype=np.float64)
