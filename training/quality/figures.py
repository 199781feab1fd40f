"""Held-out values of the heads that are no probability, and what they are worth beside a plain signal."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from metaprobe.eval.audits.simpler_predictors import beats_controls, free_controls
from metaprobe.eval.method_results import Finding
from metaprobe.eval.metrics.agreement import quadratic_weighted_kappa
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.discrimination import auprc
from metaprobe.eval.metrics.ordinal import spearman
from metaprobe.eval.metrics.ranked import Floats, Value, check_weights
from metaprobe.eval.metrics.strongest_control import against_controls
from metaprobe.eval.table import AnswerTable
from metaprobe.probes.baselines import baseline_scores
from metaprobe.training.common.heads import LEVELS, SCALES, Amount, Level, fit_amount, fit_level
from metaprobe.training.common.roles import Roles, final_roles, outer_folds
from metaprobe.training.crossfit.methods import RUN_IDENTITY, Evidence
from metaprobe.training.quality.data import Graded

RESAMPLES = 400
"""Of a bootstrap of rank correlations, which cannot be done in one array operation."""
NOT_AUDITED = ("refits on shuffled labels, near duplicates, agreement of sources: made for binary heads only",)


@dataclass(frozen=True, slots=True, eq=False)
class GradedStudy:
    """A head on a scale, in the folds."""

    data: Graded
    values: Floats
    """(n,): the head's value of each answer, by trees and calibrators that saw no answer of its group."""
    seed: int

    @property
    def evidence(self) -> Evidence:
        return self.data.evidence

    def roles(self, seed: int) -> Roles:
        """For the head that is exported."""
        return final_roles(self.evidence.table.groups.tolist(), self.data.strata, seed=seed)

    def fit(self, roles: Roles, seed: int) -> Level | Amount:
        """The head of these roles."""
        return _fit(self.data, roles, seed)


def study_grades(
    data: Graded, *, folds: int = 5, seed: int = 0, on_step: Callable[[str], None] = lambda what: None
) -> GradedStudy:
    """Fit and calibrate the head in every outer fold, by group. Raises `RecordError` where groups do not suffice."""
    X, groups = data.evidence.features, data.evidence.table.groups.tolist()
    values = np.full(len(X), np.nan)
    for number, roles in enumerate(outer_folds(groups, data.strata, folds=folds, seed=seed)):
        on_step(f"fold {number + 1} of {folds}")
        values[roles.test] = _fit(data, roles, seed).value(X[roles.test])
    return GradedStudy(data, values, seed)


def _fit(data: Graded, roles: Roles, seed: int) -> Level | Amount:
    evidence, names = data.evidence, data.evidence.feature_names
    if data.target not in LEVELS:
        scale = SCALES[data.target]
        return fit_amount(evidence.features, data.grades, roles, scale=scale, names=names, seed=seed)
    return fit_level(
        evidence.features,
        data.grades,
        evidence.table.groups,
        RUN_IDENTITY.cells(evidence.table),
        roles,
        steps=data.steps,
        scale=SCALES[data.target],
        names=names,
        seed=seed,
    )


def measure_grades(study: GradedStudy, *, seed: int = 0) -> tuple[dict[str, Interval], list[Finding]]:
    """Spearman, quadratic weighted kappa of the rounded value and mean absolute error, with clustered intervals.

    Beside them what the rank correlation gains over the mean log-probability, and how much more the best constant errs
    (the median of these very answers: more than a constant could know). The audits say whether the values order better
    than each number that anybody has for nothing (`free_controls`).
    """
    table, truth, values = study.evidence.table, study.data.grades, study.values
    weights = cluster_weights(table.groups.tolist(), RESAMPLES, seed)
    mean_logprob = baseline_scores(list(table.logprobs))["mean_logprob"]
    rounded = np.clip(np.rint(values), *SCALES[study.data.target])
    constant = np.full(len(truth), np.median(truth))
    found = against_controls(truth, values, free_controls(table), weights, metric=spearman)
    return {
        "spearman": interval(spearman, truth, values, weights),
        "quadratic_weighted_kappa": interval(quadratic_weighted_kappa, truth, rounded, weights),
        "mae": interval(mean_absolute_error, truth, values, weights),
        "spearman_gain_over_mean_log_probability": paired_difference(spearman, truth, values, mean_logprob, weights),
        "spearman_gain_over_strongest_control": found.strongest.difference,
        "mae_of_the_best_constant_minus_mae": paired_difference(mean_absolute_error, truth, constant, values, weights),
    }, beats_controls(found, name=study.data.target, metric="Spearman", chance=0.0)


def rare_figures(table: AnswerTable, sound: Floats, *, seed: int = 0) -> dict[str, Interval]:
    """Returns the AUPRC with failures as the positive class; `table.y` and `sound` speak of the answer being sound.

    AUROC and the Brier skill are the same for either class.
    """
    weights = cluster_weights(table.groups.tolist(), RESAMPLES, seed)
    return {"auprc": interval(auprc, 1 - table.y, 1 - sound, weights)}


def mean_absolute_error(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Mean of |y - score|, on the scale of y."""
    errors = np.abs(np.asarray(y, dtype=np.float64) - np.asarray(score, dtype=np.float64))
    weights, single = check_weights(weight, len(errors))
    values = weights @ errors / weights.sum(axis=1)
    return float(values[0]) if single else values
