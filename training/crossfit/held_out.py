"""What a method of a cross-fit is worth on answers that it was not fitted on, as checkpoints and cards say it."""

from collections.abc import Mapping

import numpy as np

from metaprobe.checkpoints import Training
from metaprobe.eval.audits.run_audits import AuditReport
from metaprobe.eval.compare import Judged, auroc_gain, method_results
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.calibration import debiased_ece
from metaprobe.eval.metrics.discrimination import auroc
from metaprobe.eval.metrics.stratified import StratifiedAuroc
from metaprobe.eval.table import AnswerTable
from metaprobe.training.common.calibrate import Calibrator, choose_calibrator
from metaprobe.training.common.roles import Rows
from metaprobe.training.crossfit.audit import audit_method, out_of_domain
from metaprobe.training.crossfit.folds import CrossFit
from metaprobe.training.crossfit.methods import (
    MEAN_LOGPROB,
    RUN_IDENTITY,
    Evidence,
    Method,
    Scores,
)

ENOUGH_FOR_ECE = 1000
"""Held-out answers below which no calibration error is quoted."""


def final_calibrator(scores: Scores, table: AnswerTable, rows: Rows, seed: int) -> Calibrator:
    return choose_calibrator(scores[rows], table.y[rows], table.groups[rows], seed=seed).calibrator


def measure_held_out(
    evidence: Evidence, fits: CrossFit, method: Method, seed: int
) -> tuple[dict[str, Interval], AuditReport]:
    """Figures and audits of one method from the folds."""
    judged = fits[method.name]
    [found] = method_results(evidence.table, [judged])
    metrics = {
        "auroc": found.auroc,
        "auprc": found.auprc,
        "brier_skill": found.brier_skill,
        "aurc": found.aurc,
    }
    if len(evidence.table) >= ENOUGH_FOR_ECE:
        metrics["ece"] = found.ece
        weights = cluster_weights(evidence.table.groups.tolist(), seed=seed)
        metrics["ece_debiased"] = debiased_ece(evidence.table.y, judged.probability, weights)
    if evidence.table.measured:  # the baseline that needs no selecting, and that anybody would try first
        metrics["auroc_gain_over_mean_log_probability"] = auroc_gain(evidence.table, judged, fits[MEAN_LOGPROB])
    # The refits need all features at once.
    refits = isinstance(evidence.features, np.ndarray)
    elsewhere = out_of_domain(evidence, method, seed=seed) if refits else None
    if elsewhere is not None:
        metrics |= {f"auroc_without_{elsewhere.by}.{name}": value for name, value in elsewhere.auroc.items()}
        metrics[f"auroc_without_{elsewhere.by}"] = elsewhere.mean
        metrics[f"auroc_gain_over_mean_log_probability_without_{elsewhere.by}"] = elsewhere.gain
        if elsewhere.ece is not None:
            metrics[f"ece_without_{elsewhere.by}"] = elsewhere.ece
    report = audit_method(evidence, fits, method, refits=refits, elsewhere=elsewhere, seed=seed)
    if report.controls is not None:
        metrics["auroc_gain_over_strongest_control"] = report.controls.strongest.difference
    inside = within_runs(evidence.table, fits, judged, seed=seed)
    if report.controls_within is not None:
        inside["auroc_within_runs_gain_over_strongest_control"] = report.controls_within.strongest.difference
    return inside | metrics, report


def within_runs(table: AnswerTable, fits: CrossFit, judged: Judged, *, seed: int = 0) -> dict[str, Interval]:
    """AUROC over pairs of answers of one run only, and of knowing nothing but the run.

    A run is a model, a task and a way of asking. Empty where there is one run, or where its identity was not fitted.
    """
    if not RUN_IDENTITY.varies(table) or RUN_IDENTITY.name not in {found.name for found in fits.methods}:
        return {}
    within, weights = StratifiedAuroc(RUN_IDENTITY.cells(table)), cluster_weights(table.groups.tolist(), seed=seed)
    mean = fits[MEAN_LOGPROB].ranking
    found = {
        "auroc_within_runs": interval(within, table.y, judged.ranking, weights),
        "auroc_within_runs_gain_over_mean_log_probability": paired_difference(
            within, table.y, judged.ranking, mean, weights
        ),
        "auroc_of_run_identity": interval(auroc, table.y, fits[RUN_IDENTITY.name].ranking, weights),
    }
    return known_figures(found)


def known_figures(found: Mapping[str, Interval]) -> dict[str, Interval]:
    """Without those that cannot be computed, such as the AUROC within runs where no run has right and wrong answers."""
    return {name: figure for name, figure in found.items() if np.isfinite(figure.estimate)}


def training_record(evidence: Evidence, seed: int, command: str) -> Training:
    groups = len(set(evidence.table.groups.tolist()))
    return Training(evidence.fingerprint, len(evidence.table), groups, seed, command, evidence.regrouped)
